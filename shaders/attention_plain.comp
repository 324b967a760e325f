// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_plain - one workgroup computes one tile of attention: TILE_ROWS rows (a row is one query token and one of the
// query heads that share a KV head, see struct gpu_item) of one sequence against every key that some row of the tile sees.
// The variant for any device: no subgroup operation, no f16 arithmetic, no matrix unit. Formula: DESIGN.md, "Semantics of
// attention"; NOTES.md says why it is built as it is.
//
// Grid: x = KV head, item number = gl_WorkGroupID.y + gl_WorkGroupID.z * items_y, the run is the one whose first_item is
// the last not beyond it. Bindings: none; everything is reached by address. Push constants: struct gpu_dispatch.
// Specialisation constants: all of layout.h. LOCAL_SIZE is a multiple of TILE_ROWS and at least HEAD_DIM_V / 4.
//
// Keys come in tiles of 4 * LOCAL_SIZE, counted from key 0. Per tile: (1) each thread dots four consecutive keys with all
// rows; (2) LOCAL_SIZE / TILE_ROWS threads a row find the row's maximum and turn scores into weights 2^(s - max);
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

const float NO_MAXIMUM = -3.0e38; // finite, so that no difference of two maxima is NaN
const float UNSEEN = -1.0;        // a weight is never negative

// Shared memory holds floats by the pair: one 64-bit access is the cheapest that lavapipe has, and as good elsewhere.
shared uint64_t q_pairs[TILE_ROWS * HEAD_DIM_K / 2];    // [row][pair of dims]
shared uint64_t weight_pairs[TILE_ROWS * TILE_PAIRS];   // [row][pair of keys]: scores, then weights; at the end, partial sums
shared float row_partials[LOCAL_SIZE];                  // [row][ROW_THREADS]
shared float row_rescale[TILE_ROWS];
shared uint64_t block_addresses[2 * TILE_BLOCKS];       // this KV head's K in the blocks of the tile; two tiles by turns

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Longs2 { u64vec2 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Longs1 { uint64_t at[]; };

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

// Keys [0, row_limit) are seen by row `row` of the tile; rows are in order, so the last sees the most.
uint row_limit(uint row)
{
    if (row >= num_rows)
        return 0;
    if (run.causal == 0)
        return kv_len;
    const int seen = int(kv_len) - int(q_len) + int((first_row + row) / group) + 1;
    return uint(clamp(seen, 0, int(kv_len)));
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
    const uint token = first_token + (first_row + row) / group, head = kv_head * group + (first_row + row) % group;
    return base + (uint64_t(token) * token_stride + uint64_t(head) * head_stride) * 16;
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

// Entries of the block table that hold keys [start, end), and no others.
void blocks_load(uint start, uint end, uint slot)
{
    const uint first = start / BLOCK_SIZE, num = (end - start + BLOCK_SIZE - 1) / BLOCK_SIZE;
    if (gl_LocalInvocationID.x < num) {
        const uint block = uint(Ints(table).at[first + gl_LocalInvocationID.x]);
        block_addresses[slot * TILE_BLOCKS + gl_LocalInvocationID.x] =
            block_address(run.chunks, run.chunk_stride, run.chunk_shift, block) + kv_head * K_HEAD_BYTES;
    }
}

// Step 1. Keys at or beyond `keys` are not touched: their place is taken by the last one, and nobody reads that score.
void scores(uint slot, uint keys)
{
    const uint key = gl_LocalInvocationID.x * KEYS;
    if (key >= keys)
        return;
    const uint64_t block = block_addresses[slot * TILE_BLOCKS + key / BLOCK_SIZE];
    uint64_t k[KEYS];
    for (uint j = 0; j < KEYS; j++)
        k[j] = block + (min(key + j, keys - 1) & BLOCK_SIZE - 1) * K_ROW_BYTES;

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

// Step 2, first half: the maximum over this thread's share of the row.
float scores_maximum(uint row, uint share, uint seen, uint pairs)
{
    float maximum = NO_MAXIMUM;
    uint pair = share;
    do {
        const vec2 s = pair_load(weight_pairs[row * TILE_PAIRS + pair]);
        maximum = pair * 2 < seen ? max(maximum, s.x) : maximum;
        maximum = pair * 2 + 1 < seen ? max(maximum, s.y) : maximum;
        pair += ROW_THREADS;
    } while (pair < pairs);
    return maximum;
}

// Second half: scores become weights; returns this share's sum of them.
float scores_weigh(uint row, uint share, uint seen, uint pairs, float maximum)
{
    float sum = 0;
    uint pair = share;
    do {
        const vec2 s = pair_load(weight_pairs[row * TILE_PAIRS + pair]);
        const float first = pair * 2 < seen ? exp2(s.x - maximum) : UNSEEN;
        const float second = pair * 2 + 1 < seen ? exp2(s.y - maximum) : UNSEEN;
        sum += max(first, 0.0) + max(second, 0.0);
        weight_pairs[row * TILE_PAIRS + pair] = pair_store(first, second);
        pair += ROW_THREADS;
    } while (pair < pairs);
    return sum;
}

vec4 weighted(vec4 sum, float weight, vec4 v)
{
    return weight < 0 ? sum : fma(vec4(weight), v, sum);
}

// Step 3 for this thread's pairs of keys among the tile's first `keys`.
void values_add(uint slot, uint keys, uint64_t v_delta, uint group_index, inout vec4 totals[TILE_ROWS])
{
    for (uint r = 0; r < TILE_ROWS; r++)
        totals[r] *= row_rescale[r];
    const uint rounds = ((keys + 1) / 2 + GROUPS - 1) / GROUPS;
    uint round = 0;
    do {
        vec4 sums[TILE_ROWS];
        for (uint r = 0; r < TILE_ROWS; r++)
            sums[r] = vec4(0);
        const uint end = min(round + CHUNK_PAIRS, rounds);
        do {
            const uint pair = round * GROUPS + group_index;
            const uint first = min(pair * 2, keys - 1), second = min(pair * 2 + 1, keys - 1);
            const uint64_t block = block_addresses[slot * TILE_BLOCKS + first / BLOCK_SIZE] + v_delta;
            const vec4 v0 = four_load(block + (first & BLOCK_SIZE - 1) * V_ROW_BYTES, V_DTYPE);
            const vec4 v1 = four_load(block + (second & BLOCK_SIZE - 1) * V_ROW_BYTES, V_DTYPE);
            for (uint r = 0; r < TILE_ROWS; r++) {
                const vec2 w = pair * 2 < keys ? pair_load(weight_pairs[r * TILE_PAIRS + pair]) : vec2(UNSEEN);
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
        const float sum = row_sum(row);
        const float factor = sum == 0 ? 0 : 1 / sum; // a row that sees nothing
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
    const uint limit = row_limit(num_rows - 1), own_limit = row_limit(row);
    float maximum = NO_MAXIMUM, sum = 0;
    vec4 totals[TILE_ROWS];
    for (uint r = 0; r < TILE_ROWS; r++)
        totals[r] = vec4(0);

    uint start = 0, slot = 0;
    if (limit > 0) {
        do {
            const uint keys = min(limit - start, TILE_KEYS), pairs = (keys + 1) / 2;
            const uint seen = own_limit > start ? own_limit - start : 0;
            blocks_load(start, start + keys, slot);
            barrier(); // and everybody is done with the last tile's weights
            scores(slot, keys);
            barrier();
            row_partials[thread] = scores_maximum(row, share, seen, pairs);
            barrier();
            float tile_maximum = maximum;
            [[dont_unroll]] for (uint i = 0; i < ROW_THREADS; i++)
                tile_maximum = max(tile_maximum, row_partials[row * ROW_THREADS + i]);
            const float rescale = tile_maximum == maximum ? 1 : exp2(maximum - tile_maximum);
            maximum = tile_maximum;
            sum = fma(sum, rescale, scores_weigh(row, share, seen, pairs, maximum));
            if (share == 0)
                row_rescale[row] = rescale;
            barrier();
            if (group_index < GROUPS)
                values_add(slot, keys, v_delta, group_index, totals);
            start += TILE_KEYS;
            slot ^= 1;
        } while (start < limit);
    }
    barrier();
    row_partials[thread] = sum;
    if (group_index < GROUPS)
        totals_share(group_index, quad, totals);
    barrier();
    out_store();
}
