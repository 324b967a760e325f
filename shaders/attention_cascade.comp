// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_cascade - attention for decode on tensor cores, where several sequences share parts of
// their keys (a shared prefix). K and V are read once for all of them. One workgroup computes one
// work item (struct gpu_crowd): half a part of the keys, against rows of up to AULE_MOST_MEMBERS
// sequences, for one KV head. A warp has 16 rows, of any of these sequences. The operations for a
// row, and their order, are those of attention_decode, so its bits are the same. Only the lanes
// that compute them differ:
//
//   S[16 rows, 16 keys] = Q K^T       Q is A, K^T is B; keys 0 to 7 and 8 to 15 apart
//   P = 2^(S - m)                     each lane: 2 rows x 4 keys; C has them where A needs them
//   O[16 rows, d] += P V              V is B, its columns permuted: see quad_number()
//
// This needs a tensor core that adds rows of A and columns of B in the same order. Tests check it
// bit by bit.
//
// The warp that has the rows folds the units, as in attention_decode. A step is TILES tiles of 16
// keys. All warps load it into shared memory as fragments: the words that a lane needs for B. Two
// matrices B form one fragment: keys and keys + 8, or even and odd dims. Then each warp multiplies
// all fragments with its rows. Meanwhile the next step is loaded; it has its own place in shared
// memory.
//
// If V has more than 128 dims, a warp has too few registers for whole rows. Then two warps share 16
// rows. Both compute the same scores, and each has half of V's dims.
//
// With the feature COMPANY the sequences belong to several runs, which differ in where Q and
// results lie, but not in how keys become scores.
//
// All rows see all keys here: there is no window, and the keys end before the first query.
//
// Grid: x = KV head; item number = gl_WorkGroupID.y + gl_WorkGroupID.z * items_y. The item belongs
// to the last run whose first_item is not beyond it; the run's `items` are struct gpu_crowd.
// Bindings: none. Push constants: struct gpu_dispatch. Specialisation constants: those of
// attention_decode, but LOCAL_SIZE is 32 times 4 or 8, and PLACE is not ROWS. Head dims are at most
// 256. No POSITIONS, no WINDOW.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

#define PARTS_COHERENT coherent
#include "attention_columns.glsl"

const uint WARP_ROWS = 16;
const bool WIDE = HEAD_DIM_K > AULE_NARROW_HEAD_DIM || HEAD_DIM_V > AULE_NARROW_HEAD_DIM;
const uint SHARERS = HEAD_DIM_V > AULE_NARROW_HEAD_DIM ? 2 : 1; // warps that share 16 rows
const uint TILES = WIDE || WARPS < 8 ? 1 : WARPS / 4;
const uint STEP_KEYS = TILES * STEP;      // of both halves; only the half's own tiles are loaded
const uint LOADERS = WARPS / TILES;       // warps that load a tile: half of them K, the others V
const uint HALF_LOADERS = LOADERS / 2;
const uint K_SHARE = (K_STEPS + HALF_LOADERS - 1) / HALF_LOADERS; // steps of a tile's K for a warp
const uint V_SHARE = (V_STEPS + HALF_LOADERS - 1) / HALF_LOADERS; // likewise of V
const uint MY_STEPS = (V_STEPS + SHARERS - 1) / SHARERS; // steps of V that a warp multiplies
const uint SUMS = MY_STEPS * V_MATRICES;
const uint FRAGMENTS = Q_MATRICES + SHARERS * SUMS; // of a tile of keys, each a pair of matrices B
const bool SUMS_WHOLE = V_WHOLE && V_STEPS % SHARERS == 0;
// Pieces of 16 bytes that a lane has in flight. More than 4 only if four warps load wide rows.
const uint MOVED = WIDE && LOADERS < 8 ? 8 : 4;
// Steps in shared memory. Emulated matrices need some of it, too.
const uint STAGES = WIDE && EMULATED ? 1 : 2;

shared uvec4 fragments[STAGES * TILES * FRAGMENTS * WARP];
shared float key_scales[K_SCALES ? STAGES * TILES * KEYS : 1];
shared float value_logs[V_SCALES ? STAGES * TILES * KEYS : 1]; // as scale_log2()

// For the lane's two rows, g and g + 8 of the warp:
MatrixA q_matrices[Q_MATRICES];
Row selves[2];
uint inside[2];        // row number inside the member's tile
uint64_t addresses[2]; // of the member's partial result; 0: there is no such row

// ---- loading the next step ----

struct Place {
    uint64_t keys, values; // addresses for the tile's first key
    uint64_t scales;       // of K's scales from that key on; V's are SCALES_BYTES further
};

uint tile_block(uint key)
{
    return seq_block(seq, key / BLOCK_SIZE);
}

// `block` has the key.
Place tile_place(uint block, uint key)
{
    const uint inside = key & BLOCK_SIZE - 1;
    if (PLACE == AULE_PLACE_BLOCKS)
        return Place(key_block(block, kv_head) + key_offset(inside),
                     value_block(block, kv_head) + value_offset(inside), 0);
    const uint64_t base = pool_block(block);
    return Place(base + kv_head * K_HEAD_BYTES + inside * K_ROW_BYTES,
                 base + NUM_KV_HEADS * K_HEAD_BYTES + kv_head * V_HEAD_BYTES + inside * V_ROW_BYTES,
                 base + SCALES_AT + (kv_head * BLOCK_SIZE + inside) * 4);
}

// LOADERS warps load a tile: half of them share K, the others V.

uint my_tile() { return warp_number() / LOADERS; }
uint my_part() { return warp_number() % HALF_LOADERS; }
bool brings_values() { return warp_number() % LOADERS >= HALF_LOADERS; }

void pieces_load(Place place, out uvec4 moved[MOVED], out float scale)
{
    if (brings_values())
        [[unroll]] for (uint i = 0; i < 4; i++) {
            const uint64_t row = place.values + value_offset(2 * t + (i & 1) + (i >> 1) * 8);
            [[unroll]] for (uint n = 0; n < V_SHARE; n++)
                moved[n * 4 + i] =
                    Pieces(row).at[min((my_part() * V_SHARE + n) * 8 + g, V_PIECES - 1)];
        }
    else
        [[unroll]] for (uint n = 0; n < K_SHARE; n++) {
            const uint piece = min((my_part() * K_SHARE + n) * 4 + t, K_PIECES - 1);
            moved[n * 2] = Pieces(place.keys + key_offset(g)).at[piece];
            moved[n * 2 + 1] = Pieces(place.keys + key_offset(g + 8)).at[piece];
        }
    scale = K_SCALES || V_SCALES
                ? Floats(place.scales + (brings_values() ? SCALES_BYTES : 0)).at[warp_lane() % KEYS]
                : 1;
}

uint stage_of(uint step)
{
    return STAGES == 1 ? 0 : step & 1;
}

void fragment_store(uint stage, uint number, uvec4 words)
{
    fragments[((stage * TILES + my_tile()) * FRAGMENTS + number) * WARP + warp_lane()] = words;
}

void keys_store(uint stage, uvec4 moved[MOVED])
{
    const uint each = K_MATRICES;
    [[unroll]] for (uint i = 0; i < K_SHARE * each; i++) {
        const uint number = my_part() * K_SHARE * each + i, n = i / each;
        if (number < Q_MATRICES)
            fragment_store(
                stage, number,
                uvec4(key_words(moved[n * 2], i % each), key_words(moved[n * 2 + 1], i % each)));
    }
}

void values_store(uint stage, uvec4 moved[MOVED])
{
    [[unroll]] for (uint i = 0; i < V_SHARE * V_MATRICES; i++) {
        const uint number = my_part() * V_SHARE * V_MATRICES + i, n = i / V_MATRICES * 4;
        if (number < SUM_MATRICES)
            fragment_store(
                stage, Q_MATRICES + number,
                value_words(moved[n], moved[n + 1], moved[n + 2], moved[n + 3], i % V_MATRICES));
    }
}

void pieces_store(uint stage, uvec4 moved[MOVED], float scale)
{
    if (brings_values())
        values_store(stage, moved);
    else
        keys_store(stage, moved);
    if (K_SCALES && warp_number() % LOADERS == 0 && warp_lane() < KEYS)
        key_scales[(stage * TILES + my_tile()) * KEYS + warp_lane()] = scale;
    if (V_SCALES && warp_number() % LOADERS == HALF_LOADERS && warp_lane() < KEYS)
        value_logs[(stage * TILES + my_tile()) * KEYS + warp_lane()] = scale_log2(scale);
}

// ---- one tile of keys ----

// The first step of V that this warp multiplies.
uint my_first_step()
{
    return SHARERS > 1 ? warp_number() % SHARERS * MY_STEPS : 0;
}

// A warp's state for a unit of keys. Lanes with the same g have the same maxima; weights and sums
// are each lane's own.
struct Tally {
    vec2 maxima;
    vec2 frames;                     // as in struct State
    // Row g: of keys 2t and 2t + 8 of each tile, then of 2t + 1 and 2t + 9. Row g + 8 likewise.
    vec4 weights;
    // [s][k][e]: column c is dim (8s + c) * V_ELEMENTS + 2k + e; s counts from my_first_step().
    MatrixC sums[2 * SUMS];
};

void tally_clear(out Tally tally)
{
    tally.maxima = tally.frames = vec2(NO_MAXIMUM);
    tally.weights = vec4(0);
    [[unroll]] for (uint i = 0; i < 2 * SUMS; i++)
        tally.sums[i] = matrix_c(vec4(0));
}

float row_maximum(float value)
{
    value = max(value, warp_xor(value, 1));
    return max(value, warp_xor(value, 2));
}

// Shapes the scores of keys 2t and 2t + 1, counted from `key`, for both rows.
vec4 keys_shape(vec4 s, uint key)
{
    [[unroll]] for (uint i = 0; i < 4; i++)
        s[i] = score_shape(selves[i >> 1], s[i], key + 2 * t + (i & 1));
    return s;
}

vec2 row_tops(vec4 low, vec4 high)
{
    const vec4 pairs = max(low, high);
    return vec2(row_maximum(max(pairs.x, pairs.y)), row_maximum(max(pairs.z, pairs.w)));
}

// Scores to weights, as in weigh(). low: rows g and g + 8, keys 2t and 2t + 1; high: keys 2t + 8
// and 2t + 9. The logs are those of the same keys.
MatrixA tally_weigh(inout Tally tally, vec4 low, vec4 high, vec4 low_logs, vec4 high_logs)
{
    const vec2 larger = max(tally.maxima, row_tops(low, high));
    precise vec2 moved = tally.maxima - larger;
    const vec2 factor = exp2(moved);
    tally.maxima = larger;
    if (!V_SCALES)
        [[unroll]] for (uint i = 0; i < 2 * SUMS; i++)
            matrix_scale(tally.sums[i], factor.xxyy);
    precise vec4 low_exponents = low - larger.xxyy, high_exponents = high - larger.xxyy;
    const vec4 p = exp2(low_exponents), q = exp2(high_exponents);
    precise vec4 weights = tally.weights * factor.xxyy + (p + q);
    tally.weights = weights;
    if (!V_SCALES)
        return matrix_a(
            uvec4(halves_round(p.xy), halves_round(q.xy), halves_round(p.zw), halves_round(q.zw)));
    precise vec4 low_values = low_exponents + low_logs, high_values = high_exponents + high_logs;
    precise vec2 kept = tally.frames + moved;
    const vec2 top = max(kept, row_tops(low_values, high_values)), value_factor = exp2(kept - top);
    tally.frames = top;
    [[unroll]] for (uint i = 0; i < 2 * SUMS; i++)
        matrix_scale(tally.sums[i], value_factor.xxyy);
    precise vec4 low_powers = low_values - top.xxyy, high_powers = high_values - top.xxyy;
    const vec4 v = exp2(low_powers), w = exp2(high_powers);
    return matrix_a(
        uvec4(halves_round(v.xy), halves_round(w.xy), halves_round(v.zw), halves_round(w.zw)));
}

// `at`: the lane's first fragment of the tile; `key`: the tile's first key.
void tile_compute(uint at, uint key, vec4 low_scales, vec4 high_scales, vec4 low_logs,
                  vec4 high_logs, inout Tally tally)
{
    MatrixC even_low = matrix_c(vec4(0)), even_high = even_low, odd_low = even_low,
            odd_high = even_low;
    [[unroll]] for (uint i = 0; i < Q_MATRICES; i += 2) {
        const uvec4 even = fragments[at + i * WARP], odd = fragments[at + (i + 1) * WARP];
        matrix_multiply_two(q_matrices[i], matrix_b(even.xy), matrix_b(even.zw), even_low,
                            even_high);
        matrix_multiply_two(q_matrices[i + 1], matrix_b(odd.xy), matrix_b(odd.zw), odd_low,
                            odd_high);
    }
    precise vec4 low = scores_scaled(even_low, odd_low), high = scores_scaled(even_high, odd_high);
    if (K_SCALES) {
        low *= low_scales;
        high *= high_scales;
    }
    if (SHAPED) {
        low = keys_shape(low, key);
        high = keys_shape(high, key + 8);
    }
    const MatrixA weights = tally_weigh(tally, low, high, low_logs, high_logs);
    [[unroll]] for (uint i = 0; i < SUMS; i++) {
        const uvec4 words = fragments[at + (Q_MATRICES + my_first_step() * V_MATRICES + i) * WARP];
        matrix_multiply_two(weights, matrix_b(words.xy), matrix_b(words.zw), tally.sums[2 * i],
                            tally.sums[2 * i + 1]);
    }
}

#ifdef MATRIX_EMULATED
#define STEP_LOOP [[dont_unroll]] // a software device compiles unrolled code for too long
#else
#define STEP_LOOP [[unroll]]
#endif

vec4 scales_of(uint first)
{
    return K_SCALES ? vec2(key_scales[first], key_scales[first + 1]).xyxy : vec4(1);
}

vec4 logs_of(uint first)
{
    return V_SCALES ? vec2(value_logs[first], value_logs[first + 1]).xyxy : vec4(0);
}

void step_compute(uint stage, uint key, inout Tally tally)
{
    STEP_LOOP for (uint tile = 0; tile < TILES; tile++) {
        const uint number = stage * TILES + tile, first = number * KEYS + 2 * t;
        tile_compute(number * FRAGMENTS * WARP + warp_lane(), key + tile * STEP, scales_of(first),
                     scales_of(first + 8), logs_of(first), logs_of(first + 8), tally);
    }
}

// ---- units ----

// The folded result of the units so far, for both rows; the sums are each lane's own.
struct Half {
    vec2 maxima, weights;
    vec4 sums[2 * SUMS];
};

// Sums of four dims of row `i`: those of fragments `m` and m + 1, column 2t + c. quad_number() says
// which dims they are.
vec4 quad_of(Tally tally, uint m, uint c, uint i)
{
    const uint e = 2 * i + c;
    return vec4(sums_numbers(tally.sums[2 * m])[e], sums_numbers(tally.sums[2 * m + 1])[e],
                sums_numbers(tally.sums[2 * m + 2])[e], sums_numbers(tally.sums[2 * m + 3])[e]);
}

uint quad_piece(uint m, uint c) { return 8 * (my_first_step() + m / V_MATRICES) + 2 * t + c; }
uint quad_number(uint m, uint c)
{
    return (quad_piece(m, c) * V_ELEMENTS + m % V_MATRICES * 2) / 4;
}

float row_sum(vec2 value)
{
    float sum = value.x + value.y;
    sum += warp_xor(sum, 1);
    return sum + warp_xor(sum, 2);
}

// Takes over the first unit's result, or folds a later unit's with it.
void unit_take(inout Half whole, Tally tally, bool joins)
{
    const vec2 weights = vec2(row_sum(tally.weights.xy), row_sum(tally.weights.zw));
    const vec2 frames = V_SCALES ? frames_of(tally.maxima, tally.frames) : vec2(1);
    [[unroll]] for (uint i = 0; i < 2; i++) {
        const Fold f = fold_begin(whole.maxima[i], tally.maxima[i]);
        [[unroll]] for (uint m = 0; m < SUMS; m += 2)
            [[unroll]] for (uint c = 0; c < 2; c++) {
                precise vec4 quad = quad_of(tally, m, c, i);
                if (V_SCALES)
                    quad *= frames[i];
                const uint n = (m + c) * 2 + i;
                whole.sums[n] = joins ? fold(f, whole.sums[n], quad) : quad;
            }
        whole.weights[i] = joins ? fold(f, whole.weights[i], weights[i]) : weights[i];
        whole.maxima[i] = joins ? f.maximum : tally.maxima[i];
    }
}

// Stores the half's result, after the last unit.
void half_leave(Half whole)
{
    [[unroll]] for (uint i = 0; i < 2; i++) {
        if (addresses[i] == 0)
            continue;
        [[unroll]] for (uint m = 0; m < SUMS; m += 2)
            [[unroll]] for (uint c = 0; c < 2; c++)
                if (SUMS_WHOLE || quad_piece(m, c) < V_PIECES)
                    PartSums(addresses[i]).at[inside[i] * (HEAD_DIM_V / 4) + quad_number(m, c)] =
                        whole.sums[(m + c) * 2 + i];
        if (t == 0 && my_first_step() == 0) {
            PartFloats(addresses[i]).at[PARTIAL_MAXIMA + inside[i]] = whole.maxima[i];
            PartFloats(addresses[i]).at[PARTIAL_WEIGHTS + inside[i]] = whole.weights[i];
        }
    }
}

// ---- the item ----

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Crowds {
    gpu_crowd at[];
};

gpu_crowd crowd;

const bool COMPANY = (FEATURES & AULE_FEATURE_COMPANY) != 0;

layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Numbers { uint at[]; };

// Sets `run` to that of a member.
void member_take(uint member)
{
    if (COMPANY) {
        const uint64_t numbers = crowd.members + crowd.num_members * (AULE_MEMBER_BYTES - 4);
        run = Runs(dispatch.runs).at[run_number + Numbers(numbers).at[member]];
    }
}

// Finds the member and the tile of row `i` of the lane's two.
void row_take(uint i)
{
    const uint row = warp_number() / SHARERS * WARP_ROWS + g + 8 * i, member = row / crowd.width;
    inside[i] = row % crowd.width;
    num_rows = 0;
    addresses[i] = 0;
    if (member < crowd.num_members) {
        member_take(member);
        const gpu_item item = Items(crowd.members).at[member];
        work_begin(item.tile);
        if (inside[i] < num_rows)
            addresses[i] = partial_address(item.partial);
    }
    selves[i] = row_begin(inside[i]);
}

void rows_begin()
{
    uvec4 words[Q_MATRICES]; // pairs of both rows
    [[unroll]] for (uint i = 0; i < 2; i++) {
        row_take(i);
        [[unroll]] for (uint n = 0; n < Q_MATRICES / 2; n++)
            words[i * (Q_MATRICES / 2) + n] = q_pair_of(inside[i], n);
    }
    [[unroll]] for (uint n = 0; n < Q_MATRICES / 2; n++) {
        const uvec4 first = words[n], second = words[Q_MATRICES / 2 + n];
        q_matrices[2 * n] = matrix_a(uvec4(first.xy, second.xy));
        q_matrices[2 * n + 1] = matrix_a(uvec4(first.zw, second.zw));
    }
}

// Computes all units of `steps` steps each, from key `first` on. While a step is computed, the next
// one's keys are in flight, and the block of the one after that is known.
void units_compute(uint first, uint steps)
{
    const uint total = UNITS * steps, mine = first + my_tile() * STEP,
               last = mine + (total - 1) * STEP_KEYS;
    uvec4 moved[MOVED];
    float scale;
    uint step = 0;
    Half whole;
    Place place = tile_place(tile_block(mine), mine);
    pieces_load(place, moved, scale);
    place = tile_place(tile_block(min(mine + STEP_KEYS, last)), min(mine + STEP_KEYS, last));
    uint block = tile_block(min(mine + 2 * STEP_KEYS, last));
    [[dont_unroll]] for (uint end = steps; end <= total; end += steps) {
        Tally tally;
        tally_clear(tally);
        [[dont_unroll]] do {
            if (STAGES == 1)
                barrier(); // no warp needs the last step any more
            pieces_store(stage_of(step), moved, scale);
            // The step is stored, and no warp needs the one that it replaces next.
            barrier();
            pieces_load(place, moved, scale);
            place = tile_place(block, min(mine + (step + 2) * STEP_KEYS, last));
            block = tile_block(min(mine + (step + 3) * STEP_KEYS, last));
            step_compute(stage_of(step), first + step * STEP_KEYS, tally);
        } while (++step < end);
        unit_take(whole, tally, end > steps);
    }
    half_leave(whole);
}

layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Counter { uint done; };
shared bool is_last[AULE_MOST_MEMBERS];

// Whether all workgroups with parts of member `i` have stored their results.
bool member_done(uint i)
{
    const gpu_item item = Items(crowd.members).at[i];
    member_take(i);
    Counter counter = Counter(run.counters + (uint64_t(item.merge) * NUM_KV_HEADS + kv_head) * 4);
    const bool last = atomicAdd(counter.done, 1) == item.num_partials - 1;
    if (last)
        counter.done = 0; // for the next dispatch
    return last;
}

// Merges the tiles of members whose other workgroups have all finished. The threads share the rows
// of all members.
void members_end()
{
    groupMemoryBarrier(); // the threads that ask release what all have stored
    barrier();
    if (gl_LocalInvocationID.x < crowd.num_members) {
        memoryBarrierBuffer();
        is_last[gl_LocalInvocationID.x] = member_done(gl_LocalInvocationID.x);
        memoryBarrierBuffer();
    }
    barrier();
    groupMemoryBarrier(); // what they have acquired is visible to all
    const uint each = crowd.width * V_QUADS;
    [[dont_unroll]] for (uint i = gl_LocalInvocationID.x; i < crowd.num_members * each;
                         i += gl_WorkGroupSize.x) {
        const uint member = i / each, row = i % each / V_QUADS;
        if (!is_last[member])
            continue;
        const gpu_item item = Items(crowd.members).at[member];
        member_take(member);
        work_begin(item.tile);
        if (row < num_rows)
            part_end(item.first_partial, item.num_partials, item.num_halved, row, i % V_QUADS);
    }
}

// Sets `crowd`, and `run` to its run.
void crowd_find(uint number)
{
    Runs runs = Runs(dispatch.runs);
    run_number = 0;
    if (dispatch.items != 0) { // the two loads do not wait for each other
        run = runs.at[0];
        crowd = Crowds(dispatch.items).at[number];
        return;
    }
    RUN_FIND(runs, dispatch.num_runs, dispatch.each, first_item, number, run_number)
    run = runs.at[run_number];
    crowd = Crowds(run.items).at[number - run.first_item];
}

void main()
{
    const uint number = gl_WorkGroupID.y + gl_WorkGroupID.z * dispatch.items_y;
    if (number >= dispatch.num_items)
        return;
    crowd_find(number);
    g = warp_lane() / 4;
    t = warp_lane() % 4;
    kv_head = gl_WorkGroupID.x;
    rows_begin();
    member_take(0);
    const gpu_item item = Items(crowd.members).at[0];
    seq = item.tile.seq; // a crowd's keys are in the tables of all members; this one is read
    units_compute(item.first_key + item.which_half * KEYS, item.span / (UNITS * STEP_KEYS));
    members_end();
}
