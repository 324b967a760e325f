// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_plain - one workgroup computes one tile of attention: TILE_ROWS rows (a row is one query token and one of the
// query heads that share a KV head, see struct gpu_item) of one sequence against every key that some row of the tile sees.
// The variant for any device: no subgroup operation, no f16 arithmetic, no matrix unit. Formula: tests/oracle.h;
// NOTES.md says why it is built as it is.
//
// Grid: x = KV head, item number = gl_WorkGroupID.y + gl_WorkGroupID.z * items_y, the run is the one whose first_item is
// the last not beyond it. Bindings: none; everything is reached by address. Push constants: struct gpu_dispatch.
// Specialisation constants: all of layout.h. LOCAL_SIZE is a multiple of TILE_ROWS and at least HEAD_DIM_V / 4.
// FEATURES are compiled in by their bits: a pipeline without them has none of their code.
//
// Keys come in tiles of 4 * LOCAL_SIZE, counted from key 0. Per tile: (1) each thread dots four consecutive keys with all
// rows; (2) LOCAL_SIZE / TILE_ROWS threads a row cap and bias its scores, find its maximum and turn scores into weights
// 2^(s - max);
// (3) thread (group, quad) adds up four dims of V over every GROUPS-th pair of keys. The groups are summed once, at the end.
//
// Same bits: a row meets the same operations in the same order whoever shares its tile. A key that a row does not see has
// the weight UNSEEN and is left out by selection, not by multiplying with 0: the V of a later token may be NaN.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

#include "geometry.glsl"

#include "numbers.glsl"

#include "paging.glsl"

layout(constant_id = AULE_SPEC_TILE_ROWS) const uint TILE_ROWS = 8;
layout(constant_id = AULE_SPEC_FEATURES) const uint FEATURES = 0;
layout(push_constant, scalar) uniform Push { gpu_dispatch dispatch; };

const uint LOCAL_SIZE = gl_WorkGroupSize.x;
const uint KEYS = 4;                            // a thread in step 1; a block never ends inside
const uint TILE_KEYS = KEYS * LOCAL_SIZE;
const uint TILE_PAIRS = TILE_KEYS / 2;
const uint ROW_THREADS = LOCAL_SIZE / TILE_ROWS; // in step 2
const uint QUADS = HEAD_DIM_V / 4;
const uint GROUPS = LOCAL_SIZE / QUADS;         // in step 3
const uint CHUNK_PAIRS = 32;                    // a thread sums so many pairs before it touches its total: see NOTES.md
const uint TILE_BLOCKS = TILE_KEYS / 8;         // of the least block size
const uint K_OCTS = HEAD_DIM_K / 8;
const uint V_OCTS = HEAD_DIM_V / 8;

const bool SOFT_CAP = (FEATURES & AULE_FEATURE_SOFT_CAP) != 0;
const bool ALIBI = (FEATURES & AULE_FEATURE_ALIBI) != 0;
const bool WINDOW = (FEATURES & AULE_FEATURE_WINDOW) != 0;
const bool MASK = (FEATURES & AULE_FEATURE_MASK) != 0;
const bool POSITIONS = (FEATURES & AULE_FEATURE_POSITIONS) != 0;
const bool SINKS = (FEATURES & AULE_FEATURE_SINKS) != 0;
const bool LSE = (FEATURES & AULE_FEATURE_LSE) != 0;
const bool SHAPED = SOFT_CAP || ALIBI || MASK; // step 2 changes the scores

const float NO_MAXIMUM = -3.0e38;       // finite, so that no difference of two maxima is NaN
const float UNSEEN = -1.0;              // a weight is never negative
const uint UNSEEN_SCORE = 0xff800000u;  // -infinity, in SHAPED pipelines
const float LOG2_E = 1.4426950408889634;
const float LN_2 = 0.6931471805599453;

// Shared memory holds floats by the pair: one 64-bit access is the cheapest that lavapipe has, and as good elsewhere.
shared uint64_t q_pairs[TILE_ROWS * HEAD_DIM_K / 2];    // [row][pair of dims]
shared uint64_t weight_pairs[TILE_ROWS * TILE_PAIRS];   // [row][pair of keys]: scores, then weights; at the end, partial sums
shared float row_partials[LOCAL_SIZE];                  // [row][ROW_THREADS]
shared float row_rescale[TILE_ROWS];
shared uint64_t block_addresses[2 * TILE_BLOCKS];       // this KV head's K in the blocks of the tile; two tiles by turns

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Longs2 { u64vec2 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Longs1 { uint64_t at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Floats { float at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Word { uint bits; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Result { float value; };

vec2 pair_load(uint64_t bits)
{
    return uintBitsToFloat(unpackUint2x32(bits));
}

uint64_t pair_store(float first, float second)
{
    return packUint2x32(floatBitsToUint(vec2(first, second)));
}

vec4 halves_load(uint64_t bits)
{
    const uvec2 words = unpackUint2x32(bits);
    return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
}

struct Eight {
    vec4 low, high;
};

Eight eight_load(uint64_t address, uint dtype)
{
    Longs2 longs = Longs2(address);
    const u64vec2 first = longs.at[0];
    if (dtype == DTYPE_F16)
        return Eight(halves_load(first.x), halves_load(first.y));
    const u64vec2 second = longs.at[1];
    return Eight(vec4(pair_load(first.x), pair_load(first.y)), vec4(pair_load(second.x), pair_load(second.y)));
}

vec4 four_load(uint64_t address, uint dtype)
{
    if (dtype == DTYPE_F16)
        return halves_load(Longs1(address).at[0]);
    const u64vec2 bits = Longs2(address).at[0];
    return vec4(pair_load(bits.x), pair_load(bits.y));
}

float dot_eight(Eight a, Eight b)
{
    float sum = a.low.x * b.low.x;
    sum = fma(a.low.y, b.low.y, sum);
    sum = fma(a.low.z, b.low.z, sum);
    sum = fma(a.low.w, b.low.w, sum);
    sum = fma(a.high.x, b.high.x, sum);
    sum = fma(a.high.y, b.high.y, sum);
    sum = fma(a.high.z, b.high.z, sum);
    return fma(a.high.w, b.high.w, sum);
}

// What this workgroup is to do, the same in every thread.
gpu_run run;
uint kv_head, group;      // group: query heads a KV head
uint first_token;         // of the sequence, among the run's tokens
uint q_len, kv_len;
uint first_row, num_rows; // of the tile; rows beyond the sequence's end are idle
uint64_t table;           // the sequence's row of the block table

// Where row `row` of the tile stands among the keys.
int row_position(uint row)
{
    const uint query = (first_row + row) / group;
    if (POSITIONS)
        return Ints(run.positions).at[first_token + query];
    return int(kv_len) - int(q_len) + int(query);
}

// The row sees no key but [x, y), and without a mask all of these; (0, 0) for a row that sees none. 64 bits, since a
// position and a window's side may both be as large as an int.
uvec2 row_range(uint row)
{
    if (row >= num_rows)
        return uvec2(0);
    const int64_t position = row_position(row);
    int64_t first = 0, last = int64_t(kv_len) - 1;
    if (run.causal != 0)
        last = min(last, position);
    if (WINDOW) {
        first = max(first, position - int64_t(run.window_left));
        last = min(last, position + int64_t(run.window_right));
    }
    return first > last ? uvec2(0) : uvec2(first, last + 1);
}

// The hull of all rows' ranges: outside of it neither keys nor block table are touched. Without window and positions the
// rows are in order, so that the last sees the most.
uvec2 tile_range()
{
    if (!WINDOW && !POSITIONS)
        return row_range(num_rows - 1);
    uvec2 hull = uvec2(0xffffffffu, 0);
    [[dont_unroll]] for (uint row = 0; row < num_rows; row++) {
        const uvec2 range = row_range(row);
        if (range.x < range.y)
            hull = uvec2(min(hull.x, range.x), max(hull.y, range.y));
    }
    return hull;
}

uint row_head(uint row)
{
    return kv_head * group + (first_row + row) % group;
}

// What a thread knows in step 2 of the row that it works on.
struct Row {
    uvec2 range;
    int position;
    int nearest;       // least distance of the position to a key in range; 0 nearly always
    float slope_log2e;
    float cap_log2e;
    uint64_t mask_bit; // of key 0, counted from the begin of all masks
};

// ALiBi counts distances from the nearest key: far from all keys the bias is large, and only its differences matter.
Row row_begin(uint row, uint seq)
{
    Row self = Row(row_range(row), 0, 0, 0.0, 0.0, uint64_t(0));
    if (row >= num_rows)
        return self;
    if (SOFT_CAP)
        self.cap_log2e = run.soft_cap * LOG2_E;
    if (ALIBI) {
        self.position = row_position(row);
        if (self.range.x < self.range.y)
            self.nearest = max(max(int(self.range.x) - self.position, self.position - int(self.range.y - 1)), 0);
        self.slope_log2e = Floats(run.slopes).at[row_head(row)] * LOG2_E;
    }
    if (MASK)
        self.mask_bit = Longs1(run.mask_starts).at[seq] * 8 + uint64_t((first_row + row) / group) * kv_len;
    return self;
}

bool mask_seen(Row self, uint key)
{
    const uint64_t bit = self.mask_bit + key;
    return (Word(run.mask + (bit >> 5) * 4).bits >> (uint(bit) & 31u) & 1u) != 0;
}

// tanh to some 2.5e-7 of its value, for small arguments too: there the polynomial of Cephes' tanhf.
float tanh_exact(float x)
{
    const float z = x * x;
    float series = fma(z, -5.70498872745e-3, 2.06390887954e-2);
    series = fma(z, series, -5.37397155531e-2);
    series = fma(z, series, 1.33314422036e-1);
    series = fma(z, series, -3.33332819422e-1);
    const float power = exp2(-2 * LOG2_E * abs(x)), large = 1 - 2 * power / (1 + power);
    return abs(x) < 0.625 ? fma(x * z, series, x) : x < 0 ? -large : large;
}

// From scale * q . k to the score that is weighed, both times log2(e).
float score_shape(Row self, float score, uint key)
{
    if (SOFT_CAP)
        score = self.cap_log2e * tanh_exact(score / self.cap_log2e);
    if (ALIBI)
        score = fma(-self.slope_log2e, float(abs(self.position - int(key)) - self.nearest), score);
    return score;
}

bool work_find(out gpu_item item)
{
    const uint number = gl_WorkGroupID.y + gl_WorkGroupID.z * dispatch.items_y;
    if (number >= dispatch.num_items)
        return false;
    Runs runs = Runs(dispatch.runs);
    uint index;
    RUN_FIND(runs, dispatch.num_runs, first_item, number, index)
    run = runs.at[index];
    item = Items(run.items).at[number - run.first_item];
    return true;
}

void work_begin(gpu_item item)
{
    kv_head = gl_WorkGroupID.x;
    group = run.num_heads / NUM_KV_HEADS;
    Ints cu_seqlens = Ints(run.cu_seqlens_q);
    first_token = uint(cu_seqlens.at[item.seq]);
    q_len = uint(cu_seqlens.at[item.seq + 1]) - first_token;
    kv_len = uint(Ints(run.seq_lens_kv).at[item.seq]);
    first_row = item.first_row;
    num_rows = min(TILE_ROWS, q_len * group - first_row);
    table = run.block_table + uint64_t(item.seq) * run.max_blocks * 4;
}

// The address of row `row` in q or out; strides in 16-byte units.
uint64_t row_address(uint64_t base, uint token_stride, uint head_stride, uint row)
{
    const uint token = first_token + (first_row + row) / group;
    return base + (uint64_t(token) * token_stride + uint64_t(row_head(row)) * head_stride) * 16;
}

void q_load()
{
    for (uint i = gl_LocalInvocationID.x; i < TILE_ROWS * K_OCTS; i += LOCAL_SIZE) {
        const uint row = i / K_OCTS, oct = i % K_OCTS;
        Eight q = Eight(vec4(0), vec4(0));
        if (row < num_rows)
            q = eight_load(row_address(run.q, run.q_token_stride, run.q_head_stride, row) +
                               oct * oct_units(IO_DTYPE) * 16, IO_DTYPE);
        q_pairs[i * 4] = pair_store(q.low.x, q.low.y);
        q_pairs[i * 4 + 1] = pair_store(q.low.z, q.low.w);
        q_pairs[i * 4 + 2] = pair_store(q.high.x, q.high.y);
        q_pairs[i * 4 + 3] = pair_store(q.high.z, q.high.w);
    }
}

Eight q_eight(uint row, uint oct)
{
    const uint at = row * (HEAD_DIM_K / 2) + oct * 4;
    return Eight(vec4(pair_load(q_pairs[at]), pair_load(q_pairs[at + 1])),
                 vec4(pair_load(q_pairs[at + 2]), pair_load(q_pairs[at + 3])));
}

// The entries of the block table that hold keys [keys.x, keys.y) of the tile that begins with key `start`, and no others.
void blocks_load(uint start, uvec2 keys, uint slot)
{
    const uint number = gl_LocalInvocationID.x;
    if (number >= keys.x / BLOCK_SIZE && number < (keys.y + BLOCK_SIZE - 1) / BLOCK_SIZE) {
        const uint block = uint(Ints(table).at[start / BLOCK_SIZE + number]);
        block_addresses[slot * TILE_BLOCKS + number] =
            block_address(run.chunks, run.chunk_stride, run.chunk_shift, block) + kv_head * K_HEAD_BYTES;
    }
}

// Step 1. Keys outside [keys.x, keys.y) are not touched: the first or the last one takes their place, and no row uses that
// score.
void scores(uint slot, uvec2 keys)
{
    const uint key = gl_LocalInvocationID.x * KEYS;
    if (key >= keys.y || key + KEYS <= keys.x)
        return;
    const uint64_t block = block_addresses[slot * TILE_BLOCKS + key / BLOCK_SIZE];
    uint64_t k[KEYS];
    for (uint j = 0; j < KEYS; j++)
        k[j] = block + (clamp(key + j, keys.x, keys.y - 1) & BLOCK_SIZE - 1) * K_ROW_BYTES;

    float sums[TILE_ROWS][KEYS];
    for (uint r = 0; r < TILE_ROWS; r++)
        for (uint j = 0; j < KEYS; j++)
            sums[r][j] = 0;
    uint oct = 0;
    [[dont_unroll]] do {
        Eight keys8[KEYS];
        for (uint j = 0; j < KEYS; j++)
            keys8[j] = eight_load(k[j] + oct * oct_units(K_DTYPE) * 16, K_DTYPE);
        for (uint r = 0; r < TILE_ROWS; r++) {
            const Eight q = q_eight(r, oct);
            for (uint j = 0; j < KEYS; j++)
                sums[r][j] += dot_eight(q, keys8[j]);
        }
    } while (++oct < K_OCTS);
    for (uint r = 0; r < TILE_ROWS; r++)
        for (uint j = 0; j < KEYS; j += 2)
            weight_pairs[r * TILE_PAIRS + (key + j) / 2] =
                pair_store(sums[r][j] * run.scale_log2e, sums[r][j + 1] * run.scale_log2e);
}

bool key_between(uint key, uvec2 range)
{
    return (!WINDOW || key >= range.x) && key < range.y;
}

// Of two scores in SHAPED pipelines, what is weighed. `start`: the tile's first key.
uint64_t pair_shape(Row self, vec2 pair, uint start, uint key, uvec2 seen)
{
    uvec2 bits = uvec2(UNSEEN_SCORE);
    if (key_between(key, seen) && (!MASK || mask_seen(self, start + key)))
        bits.x = floatBitsToUint(score_shape(self, pair.x, start + key));
    if (key_between(key + 1, seen) && (!MASK || mask_seen(self, start + key + 1)))
        bits.y = floatBitsToUint(score_shape(self, pair.y, start + key + 1));
    return packUint2x32(bits);
}

bvec2 pair_seen(uint64_t bits, uint key, uvec2 seen)
{
    if (SHAPED)
        return notEqual(unpackUint2x32(bits), uvec2(UNSEEN_SCORE));
    return bvec2(key_between(key, seen), key_between(key + 1, seen));
}

// A thread's first pair in step 2. Which thread sums which pairs is counted from the tile's begin, wherever the keys begin.
uint share_begin(uint share, uvec2 keys)
{
    return (WINDOW ? keys.x / 2 / ROW_THREADS * ROW_THREADS : 0) + share;
}

// Step 2, first half: the maximum over this thread's share of the row, which sees keys [seen.x, seen.y) of the tile at most.
float scores_maximum(Row self, uint row, uint share, uint start, uvec2 seen, uvec2 keys)
{
    float maximum = NO_MAXIMUM;
    uint pair = share_begin(share, keys);
    do {
        const uint at = row * TILE_PAIRS + pair;
        if (SHAPED)
            weight_pairs[at] = pair_shape(self, pair_load(weight_pairs[at]), start, pair * 2, seen);
        const uint64_t bits = weight_pairs[at];
        const vec2 s = pair_load(bits);
        const bvec2 sees = pair_seen(bits, pair * 2, seen);
        maximum = sees.x ? max(maximum, s.x) : maximum;
        maximum = sees.y ? max(maximum, s.y) : maximum;
        pair += ROW_THREADS;
    } while (pair < (keys.y + 1) / 2);
    return maximum;
}

// Second half: scores become weights; returns this share's sum of them.
float scores_weigh(uint row, uint share, uvec2 seen, uvec2 keys, float maximum)
{
    float sum = 0;
    uint pair = share_begin(share, keys);
    do {
        const uint64_t bits = weight_pairs[row * TILE_PAIRS + pair];
        const vec2 s = pair_load(bits);
        const bvec2 sees = pair_seen(bits, pair * 2, seen);
        const float first = sees.x ? exp2(s.x - maximum) : UNSEEN;
        const float second = sees.y ? exp2(s.y - maximum) : UNSEEN;
        sum += max(first, 0.0) + max(second, 0.0);
        weight_pairs[row * TILE_PAIRS + pair] = pair_store(first, second);
        pair += ROW_THREADS;
    } while (pair < (keys.y + 1) / 2);
    return sum;
}

vec4 weighted(vec4 sum, float weight, vec4 v)
{
    return weight < 0 ? sum : fma(vec4(weight), v, sum);
}

// Step 3 for this thread's pairs among keys [keys.x, keys.y) of the tile. Chunks are counted from the tile's begin.
void values_add(uint slot, uvec2 keys, uint64_t v_delta, uint group_index, inout vec4 totals[TILE_ROWS])
{
    for (uint r = 0; r < TILE_ROWS; r++)
        totals[r] *= row_rescale[r];
    const uint rounds = ((keys.y + 1) / 2 + GROUPS - 1) / GROUPS;
    uint round = WINDOW ? keys.x / 2 / GROUPS : 0;
    do {
        vec4 sums[TILE_ROWS];
        for (uint r = 0; r < TILE_ROWS; r++)
            sums[r] = vec4(0);
        const uint end = min((round / CHUNK_PAIRS + 1) * CHUNK_PAIRS, rounds);
        do {
            const uint pair = round * GROUPS + group_index;
            const uint first = clamp(pair * 2, keys.x, keys.y - 1), second = clamp(pair * 2 + 1, keys.x, keys.y - 1);
            const bool weighed = pair * 2 < keys.y && (!WINDOW || pair * 2 + 1 >= keys.x);
            const uint64_t block = block_addresses[slot * TILE_BLOCKS + first / BLOCK_SIZE] + v_delta;
            const vec4 v0 = four_load(block + (first & BLOCK_SIZE - 1) * V_ROW_BYTES, V_DTYPE);
            const vec4 v1 = four_load(block + (second & BLOCK_SIZE - 1) * V_ROW_BYTES, V_DTYPE);
            for (uint r = 0; r < TILE_ROWS; r++) {
                const vec2 w = weighed ? pair_load(weight_pairs[r * TILE_PAIRS + pair]) : vec2(UNSEEN);
                sums[r] = weighted(weighted(sums[r], w.x, v0), w.y, v1);
            }
        } while (++round < end);
        for (uint r = 0; r < TILE_ROWS; r++)
            totals[r] += sums[r];
    } while (round < rounds);
}

// The groups' totals, through the weights' memory: [group][row][quad], two pairs a quad.
void totals_share(uint group_index, uint quad, vec4 totals[TILE_ROWS])
{
    for (uint r = 0; r < TILE_ROWS; r++) {
        const uint at = ((group_index * TILE_ROWS + r) * QUADS + quad) * 2;
        weight_pairs[at] = pair_store(totals[r].x, totals[r].y);
        weight_pairs[at + 1] = pair_store(totals[r].z, totals[r].w);
    }
}

float row_sum(uint row)
{
    float sum = 0;
    [[dont_unroll]] for (uint i = 0; i < ROW_THREADS; i++)
        sum += row_partials[row * ROW_THREADS + i];
    return sum;
}

// A zero may have either sign, depending on how many tiles went by: let it have one.
uvec4 plus_zero(vec4 value)
{
    const uvec4 bits = floatBitsToUint(value);
    return mix(bits, uvec4(0), equal(bits, uvec4(0x80000000u)));
}

// What a row's totals are to be multiplied with, and its LSE. A sink joins the sum as if it were a key without a value; a row
// that sees nothing and has no sink gives zeros and -infinity.
vec2 row_end(uint row)
{
    float sum = row_sum(row), maximum = SINKS || LSE ? row_rescale[row] : 0.0, keep = 1;
    if (SINKS) {
        const float sink = Floats(run.sinks).at[row_head(row)] * LOG2_E, larger = max(maximum, sink);
        keep = exp2(maximum - larger);
        sum = fma(sum, keep, sink > NO_MAXIMUM ? exp2(sink - larger) : 0.0);
        maximum = larger;
    }
    if (sum == 0)
        return vec2(0, uintBitsToFloat(0xff800000u));
    return vec2(keep / sum, LSE ? (maximum + log2(sum)) * LN_2 : 0.0);
}

void lse_store(uint row, float lse)
{
    const uint token = first_token + (first_row + row) / group;
    Result(run.lse + (uint64_t(token) * run.lse_token_stride + row_head(row)) * 4).value = lse;
}

void out_store()
{
    for (uint i = gl_LocalInvocationID.x; i < num_rows * V_OCTS; i += LOCAL_SIZE) {
        const uint row = i / V_OCTS, oct = i % V_OCTS;
        vec4 low = vec4(0), high = vec4(0);
        [[dont_unroll]] for (uint g = 0; g < GROUPS; g++) {
            const uint at = ((g * TILE_ROWS + row) * QUADS + oct * 2) * 2;
            low += vec4(pair_load(weight_pairs[at]), pair_load(weight_pairs[at + 1]));
            high += vec4(pair_load(weight_pairs[at + 2]), pair_load(weight_pairs[at + 3]));
        }
        const vec2 end = row_end(row);
        const float factor = end.x;
        if (LSE && oct == 0)
            lse_store(row, end.y);
        oct_store(row_address(run.result, run.out_token_stride, run.out_head_stride, row) + oct * oct_units(IO_DTYPE) * 16,
                  IO_DTYPE, oct_convert(Oct(plus_zero(low * factor), plus_zero(high * factor)), DTYPE_F32, IO_DTYPE));
    }
}

void main()
{
    gpu_item item;
    if (!work_find(item))
        return;
    work_begin(item);
    q_load();

    const uint thread = gl_LocalInvocationID.x;
    const uint row = thread / ROW_THREADS, share = thread % ROW_THREADS; // of step 2
    const uint group_index = thread / QUADS, quad = thread % QUADS;      // of step 3; threads beyond GROUPS idle
    const uint64_t v_delta = (NUM_KV_HEADS - kv_head) * K_HEAD_BYTES + kv_head * V_HEAD_BYTES + quad * (V_ROW_BYTES / QUADS);
    const uvec2 range = tile_range();
    const Row self = row_begin(row, item.seq);
    float maximum = NO_MAXIMUM, sum = 0;
    vec4 totals[TILE_ROWS];
    for (uint r = 0; r < TILE_ROWS; r++)
        totals[r] = vec4(0);

    uint slot = 0;
    if (range.x < range.y) {
        uint start = WINDOW ? range.x / TILE_KEYS * TILE_KEYS : 0;
        do {
            const uvec2 keys = uvec2(WINDOW ? max(range.x, start) - start : 0, min(range.y - start, TILE_KEYS));
            const uvec2 seen = max(self.range, start) - start;
            blocks_load(start, keys, slot);
            barrier(); // and everybody is done with the last tile's weights
            scores(slot, keys);
            barrier();
            row_partials[thread] = scores_maximum(self, row, share, start, seen, keys);
            barrier();
            float tile_maximum = maximum;
            [[dont_unroll]] for (uint i = 0; i < ROW_THREADS; i++)
                tile_maximum = max(tile_maximum, row_partials[row * ROW_THREADS + i]);
            const float rescale = tile_maximum == maximum ? 1 : exp2(maximum - tile_maximum);
            maximum = tile_maximum;
            sum = fma(sum, rescale, scores_weigh(row, share, seen, keys, maximum));
            if (share == 0)
                row_rescale[row] = rescale;
            barrier();
            if (group_index < GROUPS)
                values_add(slot, keys, v_delta, group_index, totals);
            start += TILE_KEYS;
            slot ^= 1;
        } while (start < range.y);
    }
    barrier();
    row_partials[thread] = sum;
    if ((SINKS || LSE) && share == 0)
        row_rescale[row] = fma(-self.slope_log2e, float(self.nearest), maximum); // the maximum itself
    if (group_index < GROUPS)
        totals_share(group_index, quad, totals);
    barrier();
    out_store();
}
