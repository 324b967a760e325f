// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_decode - attention for few rows (decode) against many keys, on tensor cores. One
// workgroup computes one work item: TILE_ROWS = 8 rows of one sequence and KV head, against one
// part of the keys or half of it. Memory bandwidth bounds it. A lane reads K and V in pieces of 16
// bytes, which are its own matrix elements. So the loop over tiles needs no shared memory for K and
// V. Warps wait for each other only between units or at the end. NOTEBOOK.md has the measurements.
//
//   S^T[16 keys, 8 rows] = K Q^T      K is A, Q^T is B; dims are permuted alike in both: key_load()
//   P = 2^(S^T - m)                   each lane: 2 keys x 2 rows
//   O^T[d, 8 rows] += V^T P^T         V^T is A, rows permuted: value_load(); P comes by shuffles
//
// A part has gpu_item.span keys, in tiles of 16 keys. The tiles belong in turn to two halves. A
// half has UNITS units of consecutive tiles of the half, equally many in each. Each unit is
// computed from scratch. Units are folded from the left (attention_parts.glsl): a half is ((unit +
// unit) + unit) + .., a part is half + half. LOCAL_SIZE decides what a workgroup and a warp
// compute:
//
//   2 warps       a workgroup computes a part; each warp folds its half as it goes. Or it computes
//                 all parts of a tile, one after another, and folds them
//   more warps    the same; the warps of a half take turns with its units, then fold in turn
//   UNITS warps   a workgroup computes half a part; each warp has one unit
//
// The last workgroup to finish a tile merges the results of all its parts.
//
// Same bits: a unit's result for a row depends on the unit's keys and on that row only. The numbers
// of warps and items, and the other rows of the tile, do not matter.
//
// Grid: x = KV head; item number = gl_WorkGroupID.y + gl_WorkGroupID.z * items_y. The item belongs
// to the last run whose first_item is not beyond it. Bindings: none. Push constants: struct
// gpu_dispatch. Specialisation constants: all of layout.h (host: struct geometry). LOCAL_SIZE is 32
// times 2, 4 or UNITS. Q and out are MATRIX_DTYPE; K and V are MATRIX_DTYPE or 8-bit. Head dims are
// at most 256, with 8 bits multiples of 16. BLOCK_SIZE is at least 16. V is not in K. No MASK.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

#define PARTS_COHERENT coherent
#define FEW_ROWS
#include "attention_columns.glsl"

const bool HALVES = WARPS == UNITS;        // an item is half a part
const uint SHARE = HALVES ? 1 : WARPS / 2; // warps that take turns with the units of a half
const uint SLOTS = HALVES ? WARPS : 2;     // a slot has a half's result; with HALVES a unit's
// An item may be all parts of a tile.
const bool WHOLE = SPLIT && WARPS == 2 && HEAD_DIM_K <= AULE_NARROW_HEAD_DIM &&
                   HEAD_DIM_V <= AULE_NARROW_HEAD_DIM;
const uint V_LOADS = V_STEPS * 4;          // pieces of a tile's values that a lane loads
const bool K_WHOLE = K_PIECES % 4 == 0;    // no lane reads beyond the row

// With a head dim beyond 128 there are too few registers for Q. Then Q lies in shared memory, once
// for all warps, so the warps begin together.
const bool Q_SHARED = HEAD_DIM_K > AULE_NARROW_HEAD_DIM || HEAD_DIM_V > AULE_NARROW_HEAD_DIM;
// Pairs of Q matrices that a lane loads.
const uint Q_LOADS = Q_SHARED ? (Q_PAIRS + WARPS - 1) / WARPS : Q_PAIRS;

// With such a head dim, shared memory is too small for whole rows of UNITS warps. So rows go
// through shared memory in rounds of some dims each.
const uint ROUNDS = HALVES && HEAD_DIM_V > AULE_NARROW_HEAD_DIM ? 2 : 1; // rounds for one row
const uint ROUND_DIMS = ROUNDS > 1 ? AULE_NARROW_HEAD_DIM : HEAD_DIM_V;
const uint ROUND_MATRICES = ROUNDS > 1 ? 8 : SUM_MATRICES;
const bool ROUNDS_WHOLE = V_WHOLE && SUM_MATRICES == ROUNDS * ROUND_MATRICES;

// A tile of short rows has at most half as many bytes as one of 128 dims of 16 bits. So two tiles
// are loaded at a time, to have as many bytes in flight. A unit with an odd number of tiles gets
// one more tile, which no row sees.
const uint SHORT_ROW = 128; // bytes
const bool PAIRED = K_ROW_BYTES <= SHORT_ROW && V_ROW_BYTES <= SHORT_ROW && !LITTLE_CODE;
const uint AT_ONCE = PAIRED ? 2 : 1;

// Each warp's result at the end: its unit or its half, not normalised. Kept small, because shared
// memory limits the occupancy.
const uint ROUND_QUADS = ROUND_DIMS / 4;         // of four dims each
const uint ROW_QUADS = ROUND_QUADS + 7 & ~7u;    // quads_place() permutes eight neighbours
shared vec4 slot_sums[SLOTS * ROWS * ROW_QUADS]; // [slot][row][place of a quad]
// [slot][row]. WHOLE: slots SLOTS and SLOTS + 1 have the parts before this one, by turns.
shared float slot_maxima[(SLOTS + (WHOLE ? 2 : 0)) * ROWS],
    slot_weights[(SLOTS + (WHOLE ? 2 : 0)) * ROWS];
shared uvec4 q_words[Q_SHARED ? Q_PAIRS * WARP : 1]; // [pair][lane]

uint part_first; // first key of the item's first part
uint parts_done; // WHOLE: the parts before this one
// WHOLE: their sums, each thread those of quads that it folds. In registers: with a third slot, a
// multiprocessor would hold three workgroups instead of four.
const uint THREADS = gl_WorkGroupSize.x;
const uint OWN_QUADS = WHOLE ? (ROWS * ROUND_QUADS + THREADS - 1) / THREADS : 1;
vec4 own_sums[OWN_QUADS];
uvec2 hull;      // no row sees a key outside
Row selves[2];   // rows 2t and 2t + 1

MatrixB q_matrices[Q_MATRICES];

// Which pair of Q matrices a lane loads as its load `i`. Q_PAIRS or more: none.
uint q_number(uint i)
{
    return Q_SHARED ? warp_number() * Q_LOADS + i : i;
}

// Q is loaded and used in two steps, so that block tables are read in between.
void q_load(out uvec4 pairs[Q_LOADS])
{
    [[unroll]] for (uint i = 0; i < Q_LOADS; i++)
        pairs[i] = q_pair(Q_SHARED ? min(q_number(i), Q_PAIRS - 1) : i);
}

void q_take(uvec4 pairs[Q_LOADS])
{
    if (Q_SHARED) {
        [[unroll]] for (uint i = 0; i < Q_LOADS; i++)
            if (q_number(i) < Q_PAIRS)
                q_words[q_number(i) * WARP + warp_lane()] = pairs[i];
        barrier();
    } else {
        [[unroll]] for (uint i = 0; i < Q_LOADS; i++) {
            q_matrices[2 * i] = matrix_b(pairs[i].xy);
            q_matrices[2 * i + 1] = matrix_b(pairs[i].zw);
        }
    }
}

// ---- K and V ----
struct Place {
    uint64_t keys, values; // of the tile's first key
};

// Finds a tile's address by block table and chunk. Each lane does it for a tile of its own. So the
// look-ups of 32 tiles happen together, long before the tiles are loaded.
Place place_find(uint key)
{
    const uint inside = key & BLOCK_SIZE - 1, part = key / BLOCK_SIZE;
    return Place(part_keys(seq, part, kv_head) + key_offset(inside),
                 PLACE == AULE_PLACE_POOL ? 0
                                          : part_values(seq, part, kv_head) + value_offset(inside));
}

uint64_t warp_shuffle(uint64_t value, uint lane)
{
    const uvec2 words = unpackUint2x32(value);
    return packUint2x32(uvec2(warp_shuffle(words.x, lane), warp_shuffle(words.y, lane)));
}

// The place that lane `lane` has found for `key`. In the pool values and scales are at a fixed
// distance from the keys.
Place place_of(Place found, uint lane, uint key)
{
    const uint inside = key & BLOCK_SIZE - 1;
    const uint64_t keys = warp_shuffle(found.keys, lane);
    if (PLACE != AULE_PLACE_POOL)
        return Place(keys, warp_shuffle(found.values, lane));
    const uint64_t values =
        keys + (NUM_KV_HEADS * K_HEAD_BYTES - kv_head * K_HEAD_BYTES) + kv_head * V_HEAD_BYTES;
    return Place(keys, values - inside * K_ROW_BYTES + inside * V_ROW_BYTES);
}

// In contiguous rows there may be no memory beyond the sequence's end, so the last key is loaded
// instead. A block is always whole.
uint safe_key(uint key, uint offset)
{
    return PLACE == AULE_PLACE_ROWS ? min(key + offset, kv_len - 1) - key : offset;
}

// A value that no row sees may be NaN, and 0 * NaN is NaN. So the nearest value that a row sees is
// loaded instead.
uint seen_key(uint key, uint offset)
{
    return (WINDOW ? clamp(key + offset, hull.x, hull.y - 1) : min(key + offset, hull.y - 1)) - key;
}

// Load indices are constants where possible; constants cost no instruction.
void key_load(Place place, uint key, out uvec4 low[K_STEPS], out uvec4 high[K_STEPS])
{
    const uint64_t first = place.keys + key_offset(safe_key(key, g)),
                   second = place.keys + key_offset(safe_key(key, g + 8));
    [[unroll]] for (uint j = 0; j < K_STEPS; j++) {
        const uint piece = K_WHOLE ? t : min(t, K_PIECES - 1 - 4 * j); // beyond the row Q is 0
        low[j] = Pieces(first + piece * 16).at[4 * j];
        high[j] = Pieces(second + piece * 16).at[4 * j];
    }
}

void value_load(Place place, uint key, out uvec4 v[V_LOADS])
{
    [[unroll]] for (uint i = 0; i < 4; i++) {
        const uint64_t row =
            place.values + value_offset(seen_key(key, 2 * t + (i & 1) + (i >> 1) * 8));
        [[unroll]] for (uint s = 0; s < V_STEPS; s++) {
            // Pieces beyond the row are not stored.
            const uint piece = V_WHOLE ? g : min(g, V_PIECES - 1 - 8 * s);
            v[s * 4 + i] = Pieces(row + piece * 16).at[8 * s];
        }
    }
}

// Scales of keys g and g + 8. The scales of their values are `offset` bytes further.
vec2 scales_load(Place place, uint key, const uint offset)
{
    const uint inside = key & BLOCK_SIZE - 1;
    const uint64_t scales =
        place.keys - kv_head * K_HEAD_BYTES - inside * K_ROW_BYTES + (SCALES_AT + offset);
    Floats floats = Floats(scales + (kv_head * BLOCK_SIZE + inside + g) * 4);
    return vec2(floats.at[0], floats.at[8]);
}

struct Scales {
    vec2 keys, values; // for keys g and g + 8; 1 without scales
};

Scales tile_scales(Place place, uint key)
{
    return Scales(K_SCALES ? scales_load(place, key, 0) : vec2(1),
                  V_SCALES ? scales_load(place, key, SCALES_BYTES) : vec2(1));
}

vec2 value_logs(Scales scales)
{
    return V_SCALES ? vec2(scale_log2(scales.values.x), scale_log2(scales.values.y)) : vec2(0);
}

// ---- one tile ----

vec4 scores(uvec4 low[K_STEPS], uvec4 high[K_STEPS])
{
    MatrixC even = matrix_c(vec4(0)), odd = matrix_c(vec4(0));
    [[unroll]] for (uint i = 0; i < Q_MATRICES; i += 2) {
        const uint j = i / K_MATRICES, n = i % K_MATRICES;
        if (Q_SHARED) {
            const uvec4 pair = q_words[i / 2 * WARP + warp_lane()];
            q_matrices[i] = matrix_b(pair.xy);
            q_matrices[i + 1] = matrix_b(pair.zw);
        }
        even = matrix_multiply(matrix_a(uvec4(key_words(low[j], n), key_words(high[j], n))),
                               q_matrices[i], even);
        odd = matrix_multiply(matrix_a(uvec4(key_words(low[j], n + 1), key_words(high[j], n + 1))),
                              q_matrices[i + 1], odd);
    }
    return scores_scaled(even, odd);
}

// Elements x and y: key g, rows 2t and 2t + 1; z and w: key g + 8.
bvec4 seen_of(uint key, inout vec4 s)
{
    bvec4 seen = bvec4(true);
    [[unroll]] for (uint i = 0; i < 4; i++) {
        const uint at = key + g + (i >> 1) * 8;
        const Row self = selves[i & 1];
        seen[i] = key_between(at, self.range);
        if (SHAPED && seen[i])
            s[i] = score_shape(self, s[i], at);
    }
    return seen;
}

void values_add(inout State state, uvec4 v[V_LOADS], MatrixB weights)
{
    [[unroll]] for (uint i = 0; i < SUM_MATRICES; i++) {
        const uint s = i / V_MATRICES * 4, n = i % V_MATRICES;
        // The driver makes fewer instructions from named halves than from words.
        if (DTYPE_BYTES(V_DTYPE) == 2)
            state.sums[i] = matrix_multiply(
                matrix_a_turned(uvec4(v[s][n], v[s + 1][n], v[s + 2][n], v[s + 3][n])), weights,
                state.sums[i]);
        else
            state.sums[i] =
                matrix_multiply(matrix_a(value_words(v[s], v[s + 1], v[s + 2], v[s + 3], n)),
                                weights, state.sums[i]);
    }
}

// ---- units ----

// Where a quad of a row lies in slot_sums. Eight lanes with two neighbouring g store at the same
// time. Their quads are in 32 different banks.
uint quad_place(uint slot, uint row, uint quad)
{
    return (slot * ROWS + row) * ROW_QUADS + (quad ^ (row >> 1 & 1 | row & 4));
}

void quad_take(uint at, vec4 sums, Fold f, bool joins)
{
    slot_sums[at] = joins ? fold(f, slot_sums[at], sums) : sums;
}

// A sum matrix's numbers in the frame of the scores.
vec4 sums_framed(MatrixC matrix, vec2 frames)
{
    precise vec4 sums = sums_numbers(matrix);
    if (V_SCALES)
        sums *= frames.xyxy;
    return sums;
}

// Puts a unit's state into a slot, or folds it with what is there. Weights are first added over all
// lanes with the same t. `mine`: it is this warp's turn. `round`: which dims of a row are put. Two
// matrices are a quad of both rows.
void slot_take(uint slot, State state, bool joins, bool mine, const uint round)
{
    const vec2 weights = vec2(column_sum(state.weights.x), column_sum(state.weights.y));
    const vec2 frames = V_SCALES ? frames_of(state.maxima, state.frames) : vec2(1);
    const uint row = slot * ROWS + 2 * t, begin = ROUNDS > 1 ? round * ROUND_MATRICES : 0;
    Fold folds[2];
    if (mine) {
        [[unroll]] for (uint i = 0; i < 2; i++)
            folds[i] = fold_begin(joins ? slot_maxima[row + i] : NO_MAXIMUM, state.maxima[i]);
        [[unroll]] for (uint k = 0; k < ROUND_MATRICES && begin + k < SUM_MATRICES &&
                                    (ROUNDS_WHOLE || piece_of(begin + k) < V_PIECES);
                        k += 2) {
            const uint i = ROUNDS > 1 ? begin + k : k;
            const uint quad = (piece_of(i) * V_ELEMENTS + i % V_MATRICES * 2) / 4 -
                              (ROUNDS > 1 ? round * ROUND_QUADS : 0);
            const vec4 a = sums_framed(state.sums[i], frames),
                       b = sums_framed(state.sums[i + 1], frames);
            quad_take(quad_place(slot, 2 * t, quad), vec4(a.xz, b.xz), folds[0], joins);
            quad_take(quad_place(slot, 2 * t + 1, quad), vec4(a.yw, b.yw), folds[1], joins);
        }
    }
    warp_wait(); // all lanes have read the maxima before lane t changes them
    if (g == 0 && mine)
        [[unroll]] for (uint i = 0; i < 2; i++) {
            slot_weights[row + i] =
                joins ? fold(folds[i], slot_weights[row + i], weights[i]) : weights[i];
            slot_maxima[row + i] = joins ? folds[i].maximum : state.maxima[i];
        }
    warp_wait();
}

// The first key of a tile, moved into the hull's tiles.
uint tile_key(uint first, uint number)
{
    const uint key = first + number * STEP, last = hull.y - 1 & ~(KEYS - 1);
    // Without a window the hull begins at key 0.
    return WINDOW ? clamp(key, hull.x & ~(KEYS - 1), last) : min(key, last);
}

void slot_clear(uint slot, bool mine)
{
    State state;
    state_clear(state);
    slot_take(slot, state, false, mine, 0);
}

// Clears a slot's sums, which a product of 0 and a value may have made NaN. Writes zeros without a
// matrix, which would be spilled to memory.
void slot_zero(uint slot)
{
    for (uint i = warp_lane(); i < ROWS * ROW_QUADS; i += WARP)
        slot_sums[slot * ROWS * ROW_QUADS + i] = vec4(0);
}

// Makes a slot that no row has weights in; then its sums do not matter.
void slot_empty(uint slot)
{
    if (warp_lane() < ROWS) {
        slot_maxima[slot * ROWS + warp_lane()] = NO_MAXIMUM;
        slot_weights[slot * ROWS + warp_lane()] = 0;
    }
}

// How many of `count` units begin before the hull's end; 0 if all end before the hull. Emulated:
// all, because warps must not diverge.
uint units_needed(uint first, uint count, uint tiles)
{
    const uint keys = first < hull.y ? hull.y - first : 0;
    if (EMULATED)
        return count;
    return first + count * tiles * STEP <= hull.x
               ? 0
               : min((keys + tiles * STEP - 1) / (tiles * STEP), count);
}

// Tiles that a unit of `tiles` tiles computes.
uint tiles_counted(uint tiles)
{
    return PAIRED ? tiles + 1 & ~1u : tiles;
}

// A walk over the tiles of some units. A tile's V is requested before its Q K^T is computed, and
// the K of the next tile after that.
struct Walk {
    uint begin, skip;    // first key of tile 0; keys of other warps' units between two units
    uint first;          // where tile 0 would be if the tiles before `number` were contiguous
    uint number;         // of the tile whose keys are loaded
    uint found_from;     // lane i has found the place of tile found_from + i
    Place found, coming; // these places, and those of the next 32 tiles
    Place place;         // of tile `number`
    uvec4 low[K_STEPS], high[K_STEPS];
    Place other_place; // PAIRED: of the tile after it
    uvec4 other_low[K_STEPS], other_high[K_STEPS];
};

// The first key of tile `number`. `tiles`: tiles of a unit.
uint walk_key(Walk walk, uint number, uint tiles)
{
    return tile_key(
        walk.begin + (SHARE > 1 || PAIRED ? number / tiles_counted(tiles) * walk.skip : 0), number);
}

void walk_begin(out Walk walk, uint first, uint number, uint tiles)
{
    walk.begin = first;
    walk.skip = (SHARE * tiles - tiles_counted(tiles)) * STEP;
    walk.first = first + (SHARE > 1 || PAIRED ? number / tiles_counted(tiles) * walk.skip : 0);
    walk.number = walk.found_from = number;
    walk.found = place_find(walk_key(walk, number + warp_lane(), tiles));
    walk.coming = place_find(walk_key(walk, number + warp_lane() + WARP, tiles));
    walk.place = place_of(walk.found, 0, tile_key(walk.first, number));
    key_load(walk.place, tile_key(walk.first, number), walk.low, walk.high);
    if (PAIRED) {
        walk.other_place = place_of(walk.found, 1, tile_key(walk.first, number + 1));
        key_load(walk.other_place, tile_key(walk.first, number + 1), walk.other_low,
                 walk.other_high);
    }
}

// `end`: the first tile behind the unit.
void tile_compute(inout Walk walk, inout State state, uint end)
{
    // The tile may lie beyond the keys. Then no row sees it, and keys of another tile are loaded.
    const uint key = walk.first + walk.number * STEP;
    const uint at = tile_key(walk.first, walk.number);
    if (SHARE > 1)
        walk.first += walk.number + 1 == end ? walk.skip : 0;
    const uint next = tile_key(walk.first, walk.number + 1);
    uvec4 v[V_LOADS];
    value_load(walk.place, at, v);
    const Scales scales = tile_scales(walk.place, at);
    walk.number++;
    walk.place = place_of(walk.found, walk.number - walk.found_from, next);
    precise vec4 s = scores(walk.low, walk.high);
    if (K_SCALES)
        s *= scales.keys.xxyy;
    key_load(walk.place, next, walk.low, walk.high);
    const bvec4 seen = seen_of(key, s);
    values_add(state, v, weight_matrix(weigh(state, s, seen, value_logs(scales))));
}

// Computes two tiles together. If the unit has an odd number of tiles, the second tile of its last
// pair belongs to no unit.
void pair_compute(inout Walk walk, inout State state, uint end, bool odd)
{
    const uint key = walk.first + walk.number * STEP;
    const uint at = tile_key(walk.first, walk.number),
               other_at = tile_key(walk.first, walk.number + 1);
    const bool last = walk.number + 2 == end, alone = odd && last;
    walk.first += last ? walk.skip : 0;
    walk.number += 2;
    const uint next = tile_key(walk.first, walk.number),
               other_next = tile_key(walk.first, walk.number + 1);
    uvec4 v[V_LOADS], other_v[V_LOADS];
    value_load(walk.place, at, v);
    value_load(walk.other_place, other_at, other_v);
    const Scales scales = tile_scales(walk.place, at),
                 other_scales = tile_scales(walk.other_place, other_at);
    walk.place = place_of(walk.found, walk.number - walk.found_from, next);
    walk.other_place = place_of(walk.found, walk.number + 1 - walk.found_from, other_next);
    precise vec4 s = scores(walk.low, walk.high);
    precise vec4 other_s = scores(walk.other_low, walk.other_high);
    if (K_SCALES) {
        s *= scales.keys.xxyy;
        other_s *= other_scales.keys.xxyy;
    }
    key_load(walk.place, next, walk.low, walk.high);
    key_load(walk.other_place, other_next, walk.other_low, walk.other_high);
    const bvec4 seen = seen_of(key, s);
    const bvec4 other_seen = mix(seen_of(key + STEP, other_s), bvec4(false), bvec4(alone));
    values_add(state, v, weight_matrix(weigh(state, s, seen, value_logs(scales))));
    values_add(state, other_v,
               weight_matrix(weigh(state, other_s, other_seen, value_logs(other_scales))));
}

// Computes the tiles up to `end`. The inner loop has no branch.
void tiles_compute(inout Walk walk, inout State state, uint end, uint tiles)
{
    [[dont_unroll]] do {
        if (walk.number + AT_ONCE == walk.found_from + WARP) {
            walk.found_from += WARP;
            walk.found = walk.coming;
            walk.coming = place_find(walk_key(walk, walk.found_from + warp_lane() + WARP, tiles));
        }
        const uint stop = min(end, walk.found_from + WARP - AT_ONCE);
        [[dont_unroll]] do {
            if (PAIRED)
                pair_compute(walk, state, end, tiles % 2 != 0);
            else
                tile_compute(walk, state, end);
        } while (walk.number < stop);
    } while (walk.number < end);
}

// Tiles before the window that can be skipped. Warps that share a half skip whole rounds of units,
// the same for each.
uint hidden_tiles(uint first, uint tiles)
{
    if (EMULATED || !WINDOW || hull.x <= first)
        return 0;
    if (SHARE > 1)
        return (hull.x - part_first) / (SHARE * tiles * STEP) * tiles_counted(tiles);
    const uint hidden = (hull.x - first) / STEP;
    return PAIRED ? hidden / tiles * tiles_counted(tiles) + (hidden % tiles & ~1u) : hidden;
}

// ---- the end ----

// Some dims of a row, folded over all slots. `quad` counts from the first dim of the round.
Part slots_fold(uint row, uint quad)
{
    Part all;
    for (uint slot = 0; slot < SLOTS; slot++) {
        const uint at = slot * ROWS + row;
        const vec4 sums = sums_weighed(slot_sums[quad_place(slot, row, quad)], slot_weights[at]);
        const Part part = Part(slot_maxima[at], slot_weights[at], sums);
        if (slot == 0)
            all = part;
        else
            all = part_join(all, part);
    }
    all.sums = sums_weighed(all.sums, all.weights);
    return all;
}

// The same, with the item's parts before this one, whose sums are `before`.
Part parts_fold(uint row, uint quad, vec4 before)
{
    Part part = slots_fold(row, quad);
    if (WHOLE && parts_done > 0) {
        const uint at = (SLOTS + parts_done % 2) * ROWS + row;
        part = part_join(Part(slot_maxima[at], slot_weights[at], before), part);
    }
    return part;
}

// Folds a part that is computed with those before it. Called by all threads. The slots may be
// filled anew then.
void part_take()
{
    barrier();
    [[unroll]] for (uint n = 0; n < OWN_QUADS; n++) {
        const uint i = n * THREADS + gl_LocalInvocationID.x;
        const uint row = i / ROUND_QUADS, quad = i % ROUND_QUADS;
        if (row >= num_rows)
            continue;
        const Part all = parts_fold(row, quad, own_sums[n]);
        own_sums[n] = all.sums;
        if (quad == 0) {
            const uint at = (SLOTS + (parts_done + 1) % 2) * ROWS + row;
            slot_maxima[at] = all.maximum;
            slot_weights[at] = all.weights;
        }
    }
    parts_done++;
    barrier();
}

void quad_store(uint row, uint quad, Part all)
{
    const vec2 end = row_end(row, all.weights,
                             ALIBI ? true_maximum(row_begin(row), all.maximum) : all.maximum);
    if (LSE && quad == 0)
        lse_store(row, end.y);
    quad_end(row, quad, sums_weighed(all.sums, all.weights) * end.x);
}

void quad_leave(uint64_t address, uint row, uint quad, Part all)
{
    PartSums(address).at[row * (HEAD_DIM_V / 4) + quad] = all.sums;
    if (quad == 0) {
        PartFloats(address).at[PARTIAL_MAXIMA + row] = all.maximum;
        PartFloats(address).at[PARTIAL_WEIGHTS + row] = all.weights;
    }
}

layout(buffer_reference, scalar, buffer_reference_align = 4) coherent buffer Counter { uint done; };
shared bool is_last;

// Whether all workgroups of the tile have stored their results. Thread 0 asks for all threads.
bool tile_done(gpu_item item)
{
    groupMemoryBarrier(); // thread 0 releases what all threads have stored
    barrier();
    if (gl_LocalInvocationID.x == 0) {
        Counter counter =
            Counter(run.counters + (uint64_t(item.merge) * NUM_KV_HEADS + kv_head) * 4);
        memoryBarrierBuffer();
        is_last = atomicAdd(counter.done, 1) == item.num_partials - 1;
        if (is_last) {
            memoryBarrierBuffer();
            counter.done = 0; // for the next dispatch
        }
    }
    barrier();
    groupMemoryBarrier(); // what thread 0 has acquired is visible to all threads
    return is_last;
}

bool item_leaves(gpu_item item)
{
    return SPLIT && item.partial != AULE_NO_PARTIAL;
}

// Stores a quad of the slots' results. `quad` counts from `first`, the first quad of the round.
void slots_quad_end(gpu_item item, uint row, uint first, uint quad, vec4 before)
{
    const Part all = parts_fold(row, quad, before);
    if (item_leaves(item))
        quad_leave(partial_address(item.partial), row, first + quad, all);
    else
        quad_store(row, first + quad, all);
}

// Stores the slots' results for the dims of one round.
void slots_end(gpu_item item, const uint round)
{
    const uint first = ROUNDS > 1 ? round * ROUND_QUADS : 0;
    const uint quads = ROUNDS > 1 ? min(ROUND_QUADS, HEAD_DIM_V / 4 - first) : ROUND_QUADS;
    barrier();
    if (WHOLE) {
        [[unroll]] for (uint n = 0; n < OWN_QUADS; n++) {
            const uint i = n * THREADS + gl_LocalInvocationID.x;
            if (i / quads < num_rows)
                slots_quad_end(item, i / quads, first, i % quads, own_sums[n]);
        }
    } else {
        for (uint i = gl_LocalInvocationID.x; i < num_rows * quads; i += THREADS)
            slots_quad_end(item, i / quads, first, i % quads, vec4(0));
    }
}

// ---- the item ----

// Computes `units` units of `tiles` tiles each into the slot. The first begins at key `first`, and
// SHARE - 1 units of other warps lie between two. Warps that share a half compute equally many
// units and wait for their turns to fold them. If there are several ROUNDS, the slots hold the last
// round at the end. If the item is WHOLE, they hold its last part.
void units_compute(gpu_item item, uint slot, uint first, uint units, uint tiles)
{
    // An idle warp computes one tile that no row sees.
    const bool idle = Q_SHARED && SHARE == 1 && units == 0;
    const uint counted = tiles_counted(tiles), part_tiles = UNITS * counted;
    // Parts that end before the window; both warps skip them. WHOLE: the first tile of the next
    // part, and its first key.
    const uint skipped =
        WHOLE && WINDOW && !EMULATED ? warp_first((hull.x - part_first) / item.span) : 0;
    uint part_stop = (skipped + 1) * part_tiles, part_key = part_first + (skipped + 1) * item.span;
    const uint hidden = idle ? 0 : max(hidden_tiles(first, tiles), skipped * part_tiles);
    const uint last = idle ? 1 : units;
    // The tile behind the first unit with a visible key. Units before it are skipped.
    const uint first_end = (hidden / counted + 1) * counted;
    const uint turn = SHARE > 1 ? warp_number() % SHARE : 0;
    Walk walk;
    uvec4 q_pairs[Q_LOADS];
    q_load(q_pairs);
    walk_begin(walk, first, hidden, tiles);
    q_take(q_pairs);
    if (SHARE > 1)
        slot_clear(slot, turn == 0);
    uint unit_first = first + (first_end / counted - 1) * SHARE * tiles * STEP;
    uint end = first_end;
    bool more;
    [[dont_unroll]] do {
        const uint begin = end, stop = WHOLE ? min(part_stop, last * counted) : last * counted;
        if (WHOLE && begin > stop)
            slot_empty(slot); // the other warp has the part's only keys
        [[dont_unroll]] for (; end <= stop; end += counted) {
            State state;
            state_clear(state);
            tiles_compute(walk, state, idle ? 1 : end, tiles);
            if (SHARE > 1) {
                // Folding a unit without a visible key changes nothing, unless a value is infinite.
                // With other numbers of warps such units are skipped. So they are skipped here.
                const bool seen = unit_first < hull.y && unit_first + tiles * STEP > hull.x;
                unit_first += SHARE * tiles * STEP;
                [[dont_unroll]] for (uint i = 0; i < SHARE; i++) {
                    barrier();
                    slot_take(slot, state, true, i == turn && seen, 0);
                }
            } else {
                [[unroll]] for (uint round = 0; round < ROUNDS; round++) {
                    if (round > 0) {
                        slots_end(item, round - 1);
                        barrier(); // all threads have read the slots
                    }
                    slot_take(slot, state, !HALVES && end > begin, true, round);
                    if (idle)
                        slot_zero(slot);
                }
            }
        }
        more = WHOLE && part_key < hull.y;
        if (more) {
            part_take();
            part_stop += part_tiles;
            part_key += item.span;
        }
    } while (more);
}

void item_end(gpu_item item)
{
    if (item_leaves(item) && tile_done(item))
        parts_end(item.first_partial, item.num_partials, item.num_halved);
}

void ranges_find(gpu_item item)
{
    hull = tile_range();
    if (SPLIT) {
        hull = uvec2(max(hull.x, item.first_key), min(hull.y, item.end_key));
        for (uint i = 0; i < 2; i++)
            selves[i].range.y = min(selves[i].range.y, item.end_key);
    }
}

// Tells the compiler which values all lanes have in common. Otherwise the compiled code tests in
// each loop whether all lanes are still active, and keeps the loop's state twice.
void work_uniform(inout gpu_item item)
{
    item.tile.seq = warp_first(item.tile.seq);
    item.tile.first_row = warp_first(item.tile.first_row);
    item.tile.first_token = warp_first(item.tile.first_token);
    item.tile.num_tokens = warp_first(item.tile.num_tokens);
    item.tile.q_len = warp_first(item.tile.q_len);
    item.tile.kv_len = warp_first(item.tile.kv_len);
    item.first_key = warp_first(item.first_key);
    item.end_key = warp_first(item.end_key);
    item.span = warp_first(item.span);
    item.which_half = warp_first(item.which_half);
    run.num_heads = warp_first(run.num_heads);
    run.token_row_step = warp_first(run.token_row_step);
    const uvec2 token_rows = unpackUint2x32(run.token_rows);
    run.token_rows = packUint2x32(uvec2(warp_first(token_rows.x), warp_first(token_rows.y)));
}

// How many parts the item has.
uint item_parts(gpu_item item)
{
    const uint keys = item.end_key - item.first_key;
    return WHOLE && keys > item.span ? (keys + item.span - 1) / item.span : 1;
}

void main()
{
    gpu_item item;
    if (!item_find(item))
        return;
    work_uniform(item);
    work_begin(item.tile);
    g = warp_lane() / 4;
    t = warp_lane() % 4;
    for (uint i = 0; i < 2; i++)
        selves[i] = row_begin(2 * t + i);
    ranges_find(item);
    hull = uvec2(warp_first(hull.x), warp_first(hull.y));
    const uint count = HALVES ? 1 : UNITS / SHARE * item_parts(item),
               tiles = item.span / (UNITS * STEP);
    const uint slot = HALVES ? warp_number() : warp_number() / SHARE;
    const uint half_number = HALVES ? item.which_half : slot,
               unit = HALVES ? warp_number() : warp_number() % SHARE;
    part_first = SPLIT ? item.first_key : 0;
    parts_done = 0;
    [[unroll]] for (uint n = 0; n < OWN_QUADS; n++)
        own_sums[n] = vec4(0);
    const uint first = warp_first(part_first + half_number * KEYS + unit * tiles * STEP);
    // Warps that share halves all go through equally many rounds of units.
    const uint needed = warp_first(
        hull.x < hull.y ? units_needed(SHARE > 1 ? part_first : first, count, SHARE * tiles) : 0);
    uint round = ROUNDS - 1;
    if (Q_SHARED ? hull.x < hull.y : needed > 0) {
        units_compute(item, slot, first, needed, tiles);
    } else {
        slot_clear(slot, unit == 0 || HALVES);
        round = 0;
    }
    [[dont_unroll]] do {
        slots_end(item, round);
    } while (ROUNDS > 1 && ++round < ROUNDS);
    item_end(item);
}
