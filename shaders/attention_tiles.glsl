// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_tiles.glsl - attention with a tile's scores in shared memory: the main part of
// attention_plain and attention_subgroup. One workgroup computes one work item (struct gpu_item):
// TILE_ROWS rows of one sequence and KV head, against all their keys or one part of them. After
// including this file a shader defines scores_begin() and scores(), which multiply Q and K, and
// values_thread() and values(), which may call values_add(). Then it calls tiles_main().
// shaders/README.md gives the reasons.
//
// Grid: x = KV head; item number = gl_WorkGroupID.y + gl_WorkGroupID.z * items_y. The item belongs
// to the last run whose first_item is not beyond it. Bindings: none; all memory is reached by
// address. Push constants: struct gpu_dispatch. Specialisation constants: all of layout.h (host:
// struct geometry). LOCAL_SIZE is a multiple of TILE_ROWS and at least HEAD_DIM_V / 4. A feature
// whose bit is not in FEATURES is not compiled.
//
// Keys come in tiles of 4 * LOCAL_SIZE, counted from the item's first key. Each tile takes three
// steps. (1) scores(). (2) LOCAL_SIZE / TILE_ROWS threads for each row apply soft cap, ALiBi and
// mask, find the maximum, and turn scores into weights 2^(s - max). (3) Thread (group, quad) adds
// four dims of V over every GROUPS-th pair of keys. The groups are added once, at the end. This is
// online softmax; formula: tests/oracle/oracle.h.
//
// Same bits: a row takes the same operations in the same order, whichever rows share its tile. A
// key that a row does not see has the weight UNSEEN and is left out by selection. A product with 0
// would not do, because the V of a later token may be NaN.

#ifndef AULE_ATTENTION_TILES_GLSL
#define AULE_ATTENTION_TILES_GLSL

#include "attention_rows.glsl"

#include "attention_query.glsl"

layout(constant_id = AULE_SPEC_SOFTWARE) const uint SOFTWARE = 0;

const uint LOCAL_SIZE = gl_WorkGroupSize.x;
const uint KEYS = 4; // keys that share one load of Q; a block never ends inside them
const uint TILE_KEYS = KEYS * LOCAL_SIZE;
const uint TILE_PAIRS = TILE_KEYS / 2;
const uint ROW_THREADS = LOCAL_SIZE / TILE_ROWS; // for each row, in step 2
const uint QUADS = HEAD_DIM_V / 4;
const uint GROUPS = LOCAL_SIZE / QUADS;         // of threads, in step 3
// A thread adds so many pairs before it touches its total; see README.md.
const uint CHUNK_PAIRS = 32;
// Pairs that a thread loads before it uses them, so that more bytes are in flight. On a software
// device each load is a loop.
const uint AT_ONCE = SOFTWARE != 0 ? 1 : 4;
const uint TILE_PARTS = TILE_KEYS / 8;          // the most blocks in a tile: those of 8 keys
const uint K_OCTS = HEAD_DIM_K / 8;
const uint V_OCTS = HEAD_DIM_V / 8;
const uint K_OCT_BYTES = 8 * DTYPE_BYTES(K_DTYPE);
// A value is not at a fixed distance from its key.
const bool V_APART = V_IN_K == 0 && PLACE != AULE_PLACE_POOL;

const float UNSEEN = -1.0; // a weight is never negative

// Shared memory holds pairs of floats: a 64-bit access is the cheapest on lavapipe, and as good
// elsewhere.
shared uint64_t q_pairs[TILE_ROWS * HEAD_DIM_K / 2];    // [row][pair of dims]
// [row][pair of keys]: scores, then weights; at the end the groups' sums
shared uint64_t weight_pairs[TILE_ROWS * TILE_PAIRS];
shared float row_partials[LOCAL_SIZE];                  // [row][ROW_THREADS]
shared float row_rescale[TILE_ROWS]; // factor of the row's sums; at the end its maximum
// Addresses of the tile's blocks, for this KV head. Two tiles take turns.
shared uint64_t key_parts[2 * TILE_PARTS];
shared uint64_t value_parts[V_APART ? 2 * TILE_PARTS : 1];

// ---- Q ----

void q_load()
{
    for (uint i = gl_LocalInvocationID.x; i < TILE_ROWS * K_OCTS; i += LOCAL_SIZE) {
        const uint row = i / K_OCTS, oct = i % K_OCTS;
        Eight q = Eight(vec4(0), vec4(0));
        if (row < num_rows)
            q = q_oct(row, oct);
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

// ---- addresses of the tile's keys ----

// Looks up the blocks that hold keys [keys.x, keys.y) of the tile at key `start`, and no others.
void parts_load(uint start, uvec2 keys, uint slot)
{
    const uint number = gl_LocalInvocationID.x;
    if (number >= keys.x / BLOCK_SIZE && number < (keys.y + BLOCK_SIZE - 1) / BLOCK_SIZE) {
        key_parts[slot * TILE_PARTS + number] =
            part_keys(seq, start / BLOCK_SIZE + number, kv_head);
        if (V_APART)
            value_parts[slot * TILE_PARTS + number] =
                part_values(seq, start / BLOCK_SIZE + number, kv_head);
    }
}

uint64_t tile_key(uint slot, uint key)
{
    return key_parts[slot * TILE_PARTS + key / BLOCK_SIZE] + key_offset(key & BLOCK_SIZE - 1);
}

uint64_t tile_value(uint slot, uint key)
{
    const uint part = slot * TILE_PARTS + key / BLOCK_SIZE;
    const uint64_t base =
        V_APART ? value_parts[part]
        : V_IN_K != 0
            ? key_parts[part]
            : key_parts[part] + ((NUM_KV_HEADS - kv_head) * K_HEAD_BYTES + kv_head * V_HEAD_BYTES);
    return base + value_offset(key & BLOCK_SIZE - 1);
}

// The scale of a key or value. Scales lie behind the elements of a block, in the pool only.
float tile_scale(uint slot, uint key, bool value)
{
    const uint64_t block = key_parts[slot * TILE_PARTS + key / BLOCK_SIZE] - kv_head * K_HEAD_BYTES;
    const uint at = kv_head * BLOCK_SIZE + (key & BLOCK_SIZE - 1);
    return Floats(block + SCALES_AT + (value && V_IN_K == 0 ? SCALES_BYTES : 0)).at[at];
}

// ---- step 1: scores(slot, keys) stores the products of keys (key, key + 1) with this ----

void scores_store(uint slot, uint row, uint key, float first, float second)
{
    weight_pairs[row * TILE_PAIRS + key / 2] =
        pair_store(first * run.scale_log2e, second * run.scale_log2e);
}

void scores_begin(); // called when Q is in shared memory
void scores(uint slot, uvec2 keys);

// ---- step 2 ----

// A final score as bits. UNSEEN_SCORE stands for a key that is not seen.
uint shaped_bits(float score)
{
    const uint bits = floatBitsToUint(score);
    return MASK && bits == UNSEEN_SCORE ? floatBitsToUint(LEAST_SCORE) : bits;
}

// SHAPED pipelines: applies soft cap, ALiBi and mask to two scores. `start` is the tile's first
// key.
uint64_t pair_shape(Row self, vec2 pair, uint start, uint key, uvec2 seen)
{
    uvec2 bits = uvec2(UNSEEN_SCORE);
    if (key_between(key, seen) && (!MASK || mask_seen(self, start + key)))
        bits.x = shaped_bits(score_shape(self, pair.x, start + key));
    if (key_between(key + 1, seen) && (!MASK || mask_seen(self, start + key + 1)))
        bits.y = shaped_bits(score_shape(self, pair.y, start + key + 1));
    return packUint2x32(bits);
}

bvec2 pair_seen(uint64_t bits, uint key, uvec2 seen)
{
    if (SHAPED)
        return notEqual(unpackUint2x32(bits), uvec2(UNSEEN_SCORE));
    return bvec2(key_between(key, seen), key_between(key + 1, seen));
}

// A thread's first pair in step 2. Pairs are shared out from the tile's first key, wherever the
// keys in use begin.
uint share_begin(uint share, uvec2 keys)
{
    return (WINDOW ? keys.x / 2 / ROW_THREADS * ROW_THREADS : 0) + share;
}

// First half of step 2: the maximum of the row's scores in this thread's share. The row sees at
// most keys [seen.x, seen.y) of the tile.
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

// Second half of step 2: turns scores into weights and returns the share's sum of weights. V's
// scale per token and head becomes part of the weight, after it was added.
float scores_weigh(uint slot, uint row, uint share, uvec2 seen, uvec2 keys, float maximum)
{
    float sum = 0;
    uint pair = share_begin(share, keys);
    do {
        const uint64_t bits = weight_pairs[row * TILE_PAIRS + pair];
        const vec2 s = pair_load(bits);
        const bvec2 sees = pair_seen(bits, pair * 2, seen);
        float first = sees.x ? exp2(s.x - maximum) : UNSEEN;
        float second = sees.y ? exp2(s.y - maximum) : UNSEEN;
        sum += (sees.x ? first : 0.0) + (sees.y ? second : 0.0); // max() would lose a NaN
        if (V_SCALES && sees.x)
            first *= tile_scale(slot, pair * 2, true);
        if (V_SCALES && sees.y)
            second *= tile_scale(slot, pair * 2 + 1, true);
        weight_pairs[row * TILE_PAIRS + pair] = pair_store(first, second);
        pair += ROW_THREADS;
    } while (pair < (keys.y + 1) / 2);
    return sum;
}

// ---- step 3 ----

vec4 weighted(vec4 sum, float weight, vec4 v)
{
    return floatBitsToUint(weight) == floatBitsToUint(UNSEEN) ? sum : fma(vec4(weight), v, sum);
}

// Adds this thread's pairs among keys [keys.x, keys.y) of the tile. Chunks are counted from the
// tile's first key.
void values_add(uint slot, uvec2 keys, uint quad, uint group_index, inout vec4 totals[TILE_ROWS])
{
    for (uint r = 0; r < TILE_ROWS; r++)
        totals[r] *= row_rescale[r];
    const uint quad_bytes = quad * 4 * DTYPE_BYTES(V_DTYPE);
    const uint rounds = ((keys.y + 1) / 2 + GROUPS - 1) / GROUPS;
    uint round = WINDOW ? keys.x / 2 / GROUPS : 0;
    do {
        vec4 sums[TILE_ROWS];
        for (uint r = 0; r < TILE_ROWS; r++)
            sums[r] = vec4(0);
        const uint end = min((round / CHUNK_PAIRS + 1) * CHUNK_PAIRS, rounds);
        do {
            vec4 v[2 * AT_ONCE];
            [[unroll]] for (uint i = 0; i < AT_ONCE; i++) {
                const uint key = (min(round + i, end - 1) * GROUPS + group_index) * 2;
                const uint first = clamp(key, keys.x, keys.y - 1),
                           second = clamp(key + 1, keys.x, keys.y - 1);
                const uint64_t at = tile_value(slot, first) + quad_bytes;
                v[2 * i] = four_load(at, V_DTYPE);
                v[2 * i + 1] = four_load(at + value_offset(second - first), V_DTYPE);
            }
            [[unroll]] for (uint i = 0; i < AT_ONCE; i++) {
                const uint pair = min(round + i, end - 1) * GROUPS + group_index;
                const bool weighed = round + i < end && pair * 2 < keys.y &&
                                     (!WINDOW || pair * 2 + 1 >= keys.x);
                for (uint r = 0; r < TILE_ROWS; r++) {
                    const vec2 w =
                        weighed ? pair_load(weight_pairs[r * TILE_PAIRS + pair]) : vec2(UNSEEN);
                    sums[r] = weighted(weighted(sums[r], w.x, v[2 * i]), w.y, v[2 * i + 1]);
                }
            }
            round += AT_ONCE;
        } while (round < end);
        round = end;
        for (uint r = 0; r < TILE_ROWS; r++)
            totals[r] += sums[r];
    } while (round < rounds);
}

// values() adds the tile's values to `totals`, for every thread that has a group. values_thread()
// gives the thread's number.
uint values_thread();
void values(uint slot, uvec2 keys, uint quad, uint group_index, inout vec4 totals[TILE_ROWS]);

// ---- the end ----

// Stores the groups' totals in the memory of the weights: [group][row][quad], two pairs for each
// quad.
void totals_share(uint group_index, uint quad, vec4 totals[TILE_ROWS])
{
    for (uint r = 0; r < TILE_ROWS; r++) {
        const uint at = ((group_index * TILE_ROWS + r) * QUADS + quad) * 2;
        weight_pairs[at] = pair_store(totals[r].x, totals[r].y);
        weight_pairs[at + 1] = pair_store(totals[r].z, totals[r].w);
    }
}

Eight totals_eight(uint row, uint oct)
{
    vec4 low = vec4(0), high = vec4(0);
    [[dont_unroll]] for (uint g = 0; g < GROUPS; g++) {
        const uint at = ((g * TILE_ROWS + row) * QUADS + oct * 2) * 2;
        low += vec4(pair_load(weight_pairs[at]), pair_load(weight_pairs[at + 1]));
        high += vec4(pair_load(weight_pairs[at + 2]), pair_load(weight_pairs[at + 3]));
    }
    return Eight(low, high);
}

float row_sum(uint row)
{
    float sum = 0;
    [[dont_unroll]] for (uint i = 0; i < ROW_THREADS; i++)
        sum += row_partials[row * ROW_THREADS + i];
    return sum;
}

void out_store()
{
    for (uint i = gl_LocalInvocationID.x; i < num_rows * V_OCTS; i += LOCAL_SIZE) {
        const uint row = i / V_OCTS, oct = i % V_OCTS;
        const Eight total = totals_eight(row, oct);
        const vec2 end = row_end(row, row_sum(row), row_rescale[row]);
        if (LSE && oct == 0)
            lse_store(row, end.y);
        oct_store(out_address(row) + oct * IO_OCT_BYTES, IO_DTYPE,
                  oct_convert(Oct(plus_zero(total.low * end.x), plus_zero(total.high * end.x)),
                              DTYPE_F32, IO_DTYPE));
    }
}

layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Partial {
    float at[];
};
layout(buffer_reference, scalar, buffer_reference_align = 8) writeonly buffer PartialOcts {
    u64vec4 at[];
};

// Stores the result of a part, not normalised. Its maxima count ALiBi from the row's nearest key,
// as in all parts of the row.
void partial_store(uint number)
{
    const uint64_t address = partial_address(number);
    for (uint i = gl_LocalInvocationID.x; i < num_rows * V_OCTS; i += LOCAL_SIZE) {
        const Eight total = totals_eight(i / V_OCTS, i % V_OCTS);
        PartialOcts(address).at[i] =
            u64vec4(pair_store(total.low.x, total.low.y), pair_store(total.low.z, total.low.w),
                    pair_store(total.high.x, total.high.y), pair_store(total.high.z, total.high.w));
    }
    for (uint row = gl_LocalInvocationID.x; row < num_rows; row += LOCAL_SIZE) {
        Partial(address).at[PARTIAL_MAXIMA + row] = row_rescale[row];
        Partial(address).at[PARTIAL_WEIGHTS + row] = row_sum(row);
    }
}

void tiles_main()
{
    gpu_item item;
    if (!item_find(item))
        return;
    work_begin(item.tile);
    q_load();

    const uint thread = gl_LocalInvocationID.x;
    const uint row = thread / ROW_THREADS, share = thread % ROW_THREADS; // in step 2
    // For step 3; a thread without a group is idle there.
    const uint group_index = values_thread() / QUADS, quad = values_thread() % QUADS;
    const uint first_key = SPLIT ? item.first_key : 0;
    const Row self = row_begin(row);
    uvec2 range = tile_range(), own = self.range;
    if (SPLIT) {
        range = uvec2(max(range.x, first_key), min(range.y, item.end_key));
        own.y = min(own.y, item.end_key);
    }
    float maximum = NO_MAXIMUM, sum = 0;
    vec4 totals[TILE_ROWS];
    for (uint r = 0; r < TILE_ROWS; r++)
        totals[r] = vec4(0);

    barrier();
    scores_begin();
    uint slot = 0;
    if (range.x < range.y) {
        uint start = first_key + (WINDOW ? (range.x - first_key) / TILE_KEYS * TILE_KEYS : 0);
        do {
            const uvec2 keys =
                uvec2(WINDOW ? max(range.x, start) - start : 0, min(range.y - start, TILE_KEYS));
            const uvec2 seen = max(own, start) - start;
            parts_load(start, keys, slot);
            barrier(); // also: all threads have finished with the last tile's weights
            scores(slot, keys);
            barrier();
            row_partials[thread] = scores_maximum(self, row, share, start, seen, keys);
            barrier();
            float tile_maximum = maximum;
            [[dont_unroll]] for (uint i = 0; i < ROW_THREADS; i++)
                tile_maximum = max(tile_maximum, row_partials[row * ROW_THREADS + i]);
            const float rescale = tile_maximum == maximum ? 1 : exp2(maximum - tile_maximum);
            maximum = tile_maximum;
            sum = fma(sum, rescale, scores_weigh(slot, row, share, seen, keys, maximum));
            if (share == 0)
                row_rescale[row] = rescale;
            barrier();
            if (group_index < GROUPS)
                values(slot, keys, quad, group_index, totals);
            start += TILE_KEYS;
            slot ^= 1;
        } while (start < range.y);
    }
    const bool partial = SPLIT && item.partial != AULE_NO_PARTIAL;
    barrier();
    row_partials[thread] = sum;
    if (share == 0) // the factor is not needed any more; now the row's maximum
        row_rescale[row] = ALIBI && !partial ? true_maximum(self, maximum) : maximum;
    if (group_index < GROUPS)
        totals_share(group_index, quad, totals);
    barrier();
    if (partial)
        partial_store(item.partial);
    else
        out_store();
}

#endif
