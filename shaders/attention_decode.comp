// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_decode - few rows a KV head (up to 8, as decoding has them) against many keys, on matrix units. One workgroup computes one
// item: TILE_ROWS = 8 rows of one sequence and KV head, the columns of all matrices here, against a part of the keys. What it is
// bound by is memory: every key and value is read once, in whole 16-byte pieces that are at once the reading lane's own matrix
// elements, so that nothing goes through shared memory and no lane waits for another before the end. NOTES.md has the measurements.
//
//   S^T[16 keys, 8 rows] = K Q^T      K is A, Q^T is B; which dims meet in one product is permuted alike in both: see key_load()
//   P = 2^(S^T - m)                   per lane: 2 keys x 2 rows
//   O^T[d, 8 rows] += V^T P^T         V^T is A with its rows permuted: see value_load(); P comes by shuffles
//
// A part of gpu_item.span keys has UNITS units of equal size, each from scratch, and two halves of so many. The halves and what they
// consist of are folded from the left: half = ((unit + unit) + unit) + .., part = half + half. With two warps each folds its half as it
// goes; with UNITS warps each has one unit, and the folding is done at the end.
//
// Same bits: what a unit does for a row depends on its keys and that row alone, so neither the number of warps nor the number of
// items nor the row's neighbours matter.
//
// Grid: x = KV head, item number = gl_WorkGroupID.y + gl_WorkGroupID.z * items_y, the run is the one whose first_item is the last
// not beyond it. Bindings: none. Push constants: struct gpu_dispatch. Specialisation constants: all of layout.h; LOCAL_SIZE is 32 times
// 2 or UNITS; Q and out are MATRIX_DTYPE, K and V that or of 8 bits, head dims up to 128, those of 8 bits multiples of 16;
// BLOCK_SIZE is 16 or more, V is not in K and has no scales per token and head: no f16 weight could hold them. No MASK.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

#include "attention_rows.glsl"

#include "attention_query.glsl"

#include "matrix.glsl" // behind the workgroup's size

#include "halves.glsl"

const uint ROWS = 8;
const uint KEYS = 16; // of one tile, all in one block
const uint UNITS = EMULATED ? 4 : 8;
const uint WARPS = gl_WorkGroupSize.x / WARP;
const uint K_ELEMENTS = 16 / DTYPE_BYTES(K_DTYPE); // of a piece of 16 bytes
const uint V_ELEMENTS = 16 / DTYPE_BYTES(V_DTYPE);
const uint K_PIECES = HEAD_DIM_K / K_ELEMENTS; // of a key
const uint V_PIECES = HEAD_DIM_V / V_ELEMENTS;
const uint K_STEPS = (K_PIECES + 3) / 4; // pieces of a key that one lane reads
const uint V_STEPS = (V_PIECES + 7) / 8; // the same of a value
const uint Q_MATRICES = K_STEPS * K_ELEMENTS / 4;
const uint SUM_MATRICES = V_STEPS * V_ELEMENTS / 2;
const uint V_LOADS = V_STEPS * 4;                                    // that a lane has of the tile's values
const bool K_WHOLE = K_PIECES % 4 == 0, V_WHOLE = V_PIECES % 8 == 0; // no lane reads beyond

const float LAZY = 8; // a maximum may be exceeded so far, in log2 units, before sums are scaled down

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Pieces { uvec4 at[]; };

// What each warp has in the end: of its unit, or of its half. Small, since what a multiprocessor has of this bounds its workgroups.
shared float slot_sums[WARPS * ROWS * HEAD_DIM_V]; // [slot][row][dim], not normalised
shared float slot_maxima[WARPS * ROWS], slot_weights[WARPS * ROWS];

uint g, t;     // the lane in its warp: 4 g + t
uvec2 hull;    // keys that some row sees are in here
uvec2 full;    // keys that all rows see
Row selves[2]; // of rows 2t and 2t + 1

MatrixB q_matrices[Q_MATRICES];

// ---- Q ----

// Elements [8 * oct, 8 * oct + 8) of a row; zeroes where there are none.
uvec4 q_halves(uint row, uint oct)
{
    if (row >= num_rows || oct >= HEAD_DIM_K / 8)
        return uvec4(0);
    if (!ROPE)
        return Pieces(q_address(row)).at[oct];
    const Eight q = q_oct(row, oct);
    return oct_convert(Oct(floatBitsToUint(q.low), floatBitsToUint(q.high)), DTYPE_F32, MATRIX_DTYPE).first;
}

// Matrix number n of piece j belongs to elements 4n to 4n + 3 of pieces 4j + t, lane by lane.
void q_load()
{
    const uint octs = K_ELEMENTS / 8;
    for (uint i = 0; i < K_STEPS * octs; i++) {
        const uvec4 words = q_halves(g, (4 * (i / octs) + t) * octs + i % octs);
        q_matrices[2 * i] = matrix_b(words.xy);
        q_matrices[2 * i + 1] = matrix_b(words.zw);
    }
}

// ---- K and V ----
// A lane reads keys g and g + 8 of the tile, pieces 4j + t; and values 2t, 2t + 1, 2t + 8, 2t + 9, pieces 8s + g.

struct Place {
    uint64_t keys, values; // of the tile's first key
    uint64_t scales;       // of this key and those behind it, if there are any
};

uint tile_block(uint key)
{
    return PLACE == AULE_PLACE_ROWS ? 0 : seq_block(seq, key / BLOCK_SIZE);
}

// `block` is the key's.
Place tile_place(uint block, uint key)
{
    const uint inside = key & BLOCK_SIZE - 1, part = key / BLOCK_SIZE;
    if (PLACE == AULE_PLACE_ROWS)
        return Place(part_keys(seq, part, kv_head) + key_offset(inside),
                     part_values(seq, part, kv_head) + value_offset(inside), 0);
    if (PLACE == AULE_PLACE_BLOCKS)
        return Place(key_block(block, kv_head) + key_offset(inside), value_block(block, kv_head) + value_offset(inside), 0);
    const uint64_t base = pool_block(block);
    return Place(base + kv_head * K_HEAD_BYTES + inside * K_ROW_BYTES,
                 base + NUM_KV_HEADS * K_HEAD_BYTES + kv_head * V_HEAD_BYTES + inside * V_ROW_BYTES,
                 base + SCALES_AT + (kv_head * BLOCK_SIZE + inside) * 4);
}

// Rows are as long as they are: beyond a sequence's end there need be no memory. A block is always whole.
uint safe_key(uint key, uint offset)
{
    return PLACE == AULE_PLACE_ROWS ? min(key + offset, kv_len - 1) - key : offset;
}

// Indices of the loads are constants where they can be: then they cost no instruction.
void key_load(Place place, uint key, out uvec4 low[K_STEPS], out uvec4 high[K_STEPS])
{
    const uint64_t first = place.keys + key_offset(safe_key(key, g)), second = place.keys + key_offset(safe_key(key, g + 8));
    [[unroll]] for (uint j = 0; j < K_STEPS; j++) {
        const uint piece = K_WHOLE ? t : min(t, K_PIECES - 1 - 4 * j); // beyond the end Q is 0
        low[j] = Pieces(first + piece * 16).at[4 * j];
        high[j] = Pieces(second + piece * 16).at[4 * j];
    }
}

void value_load(Place place, uint key, out uvec4 v[V_LOADS])
{
    [[unroll]] for (uint i = 0; i < 4; i++) {
        const uint64_t row = place.values + value_offset(safe_key(key, 2 * t + (i & 1) + (i >> 1) * 8));
        [[unroll]] for (uint s = 0; s < V_STEPS; s++) {
            const uint piece = V_WHOLE ? g : min(g, V_PIECES - 1 - 8 * s); // what is beyond the end is not stored
            v[s * 4 + i] = Pieces(row + piece * 16).at[8 * s];
        }
    }
}

// Values that no row sees may be anything, and nothing times what is no number is no number.
void value_clean(uint key, inout uvec4 v[V_LOADS])
{
    [[unroll]] for (uint i = 0; i < 4; i++) {
        const uint at = key + 2 * t + (i & 1) + (i >> 1) * 8;
        if (at < hull.x || at >= hull.y)
            [[unroll]] for (uint s = 0; s < V_STEPS; s++)
                v[s * 4 + i] = uvec4(0);
    }
}

// Of keys g and g + 8.
vec2 scales_load(Place place)
{
    Floats scales = Floats(place.scales + g * 4);
    return vec2(scales.at[0], scales.at[8]);
}

// ---- one tile ----

// Elements 4n to 4n + 3 of a piece.
uvec2 four_halves(uvec4 piece, uint n)
{
    if (DTYPE_BYTES(K_DTYPE) == 2)
        return n == 0 ? piece.xy : piece.zw;
    return halves_widen(piece[n], K_DTYPE);
}

vec4 scores(uvec4 low[K_STEPS], uvec4 high[K_STEPS])
{
    MatrixC even = matrix_c(vec4(0)), odd = matrix_c(vec4(0));
    [[unroll]] for (uint i = 0; i < Q_MATRICES; i += 2) {
        const uint j = i / (K_ELEMENTS / 4), n = i % (K_ELEMENTS / 4);
        even = matrix_multiply(matrix_a(uvec4(four_halves(low[j], n), four_halves(high[j], n))), q_matrices[i], even);
        odd = matrix_multiply(matrix_a(uvec4(four_halves(low[j], n + 1), four_halves(high[j], n + 1))), q_matrices[i + 1],
                              odd);
    }
    // not to be fused with what follows, in one pipeline more than in the other
    precise vec4 scaled = (matrix_elements(even) + matrix_elements(odd)) * (run.scale_log2e * HALVES_FACTOR(K_DTYPE));
    return scaled;
}

// Elements x, y: key g, rows 2t, 2t + 1; z, w: key g + 8.
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

float column_maximum(float value)
{
    value = max(value, warp_xor(value, 4));
    value = max(value, warp_xor(value, 8));
    return max(value, warp_xor(value, 16));
}

float column_sum(float value)
{
    value += warp_xor(value, 4);
    value += warp_xor(value, 8);
    return value + warp_xor(value, 16);
}

// Weights as B: row 2t of the matrix is key 2t, whose weights lane 4 * 2t + column / 2 has.
MatrixB weight_matrix(vec4 p)
{
    const uint low = halves_round(p.xy), high = halves_round(p.zw), from = 8 * t + g / 2;
    const uint a = warp_shuffle(low, from), b = warp_shuffle(low, from + 4);
    const uint c = warp_shuffle(high, from), d = warp_shuffle(high, from + 4);
    if ((g & 1) != 0)
        return matrix_b(uvec2(halves_high(a, b), halves_high(c, d)));
    return matrix_b(uvec2(halves_low(a, b), halves_low(c, d)));
}

// What a warp has of its unit. The maxima are those of all lanes with the same t, the sums each lane's own.
struct State {
    vec2 maxima, weights;
    MatrixC sums[SUM_MATRICES]; // [s][k]: dims (8s + g) * V_ELEMENTS + 2k and + 1 (rows g, g + 8 of the matrix), rows 2t, 2t + 1
};

void state_clear(out State state)
{
    state.maxima = vec2(NO_MAXIMUM);
    state.weights = vec2(0);
    [[unroll]] for (uint i = 0; i < SUM_MATRICES; i++)
        state.sums[i] = matrix_c(vec4(0));
}

// `maxima` are the lane's own. Each row follows by its own scores alone, whoever voted for this.
void rescale(inout State state, vec2 maxima)
{
    const vec2 tops = vec2(column_maximum(maxima.x), column_maximum(maxima.y));
    const vec2 larger = mix(state.maxima, tops, greaterThan(tops, state.maxima + LAZY));
    const vec2 factor = exp2(state.maxima - larger);
    state.maxima = larger;
    state.weights *= factor;
    [[unroll]] for (uint i = 0; i < SUM_MATRICES; i++)
        matrix_scale(state.sums[i], factor.xyxy);
}

// Scores to weights.
vec4 weigh(inout State state, vec4 s, uint key)
{
    bvec4 seen = bvec4(true);
    if (SHAPED || key < full.x || key + KEYS > full.y)
        seen = seen_of(key, s);
    s = mix(vec4(NO_MAXIMUM), s, seen);
    const vec2 maxima = max(s.xy, s.zw);
    if (warp_any(any(greaterThan(maxima, state.maxima + LAZY))))
        rescale(state, maxima);
    const vec4 p = mix(vec4(0), exp2(s - state.maxima.xyxy), seen);
    state.weights += p.xy + p.zw;
    return p;
}

void values_add(inout State state, uvec4 v[V_LOADS], MatrixB weights)
{
    [[unroll]] for (uint i = 0; i < V_STEPS * 4; i++) {
        const uint s = i / 4, w = i % 4;
        const uint a = v[s * 4][w], b = v[s * 4 + 1][w], c = v[s * 4 + 2][w], d = v[s * 4 + 3][w];
        if (DTYPE_BYTES(V_DTYPE) == 2) {
            state.sums[i] = matrix_multiply(matrix_a_turned(uvec4(a, b, c, d)), weights, state.sums[i]);
        } else {
            const uvec2 a2 = halves_widen(a, V_DTYPE), b2 = halves_widen(b, V_DTYPE);
            const uvec2 c2 = halves_widen(c, V_DTYPE), d2 = halves_widen(d, V_DTYPE);
            state.sums[i * 2] = matrix_multiply(matrix_a_turned(uvec4(a2.x, b2.x, c2.x, d2.x)), weights, state.sums[i * 2]);
            state.sums[i * 2 + 1] = matrix_multiply(matrix_a_turned(uvec4(a2.y, b2.y, c2.y, d2.y)), weights, state.sums[i * 2 + 1]);
        }
    }
}

// ---- units ----

// Which piece of V this lane has in sum matrix `i`.
uint piece_of(uint i)
{
    return 8 * (i / (V_ELEMENTS / 2)) + g;
}

// Two sums that count from two maxima.
struct Fold {
    float maximum, first, second; // what the sums of both are multiplied with
};

Fold fold_begin(float first, float second)
{
    const float maximum = max(first, second);
    return Fold(maximum, exp2(first - maximum), exp2(second - maximum));
}

float fold(Fold f, float first, float second)
{
    precise float kept = first * f.first;
    return fma(second, f.second, kept);
}

// The unit's state, with its own weights on all lanes that have the same t, becomes the slot's or joins it.
void slot_take(uint slot, State state, bool joins)
{
    const vec2 weights = vec2(column_sum(state.weights.x), column_sum(state.weights.y));
    const uint row = slot * ROWS + 2 * t;
    Fold folds[2];
    [[unroll]] for (uint i = 0; i < 2; i++)
        folds[i] = fold_begin(joins ? slot_maxima[row + i] : NO_MAXIMUM, state.maxima[i]);
    [[unroll]] for (uint i = 0; i < SUM_MATRICES && (V_WHOLE || piece_of(i) < V_PIECES); i++) {
        const vec4 sums = matrix_elements(state.sums[i]) * HALVES_FACTOR(V_DTYPE);
        [[unroll]] for (uint n = 0; n < 4; n++) {
            const uint at = (row + (n & 1)) * HEAD_DIM_V + piece_of(i) * V_ELEMENTS + i % (V_ELEMENTS / 2) * 2 + (n >> 1);
            slot_sums[at] = joins ? fold(folds[n & 1], slot_sums[at], sums[n]) : sums[n];
        }
    }
    warp_wait(); // every lane has read the maxima that lane t changes now
    if (g == 0)
        [[unroll]] for (uint i = 0; i < 2; i++) {
            slot_weights[row + i] = joins ? fold(folds[i], slot_weights[row + i], weights[i]) : weights[i];
            slot_maxima[row + i] = joins ? folds[i].maximum : state.maxima[i];
        }
    warp_wait();
}

// The first key of a tile, moved to where there are keys.
uint tile_key(uint first, uint number)
{
    return clamp(first + number * KEYS, hull.x & ~(KEYS - 1), hull.y - 1 & ~(KEYS - 1));
}

void slot_clear(uint slot)
{
    State state;
    state_clear(state);
    slot_take(slot, state, false);
}

// Of `count` units, those up to the hull's end; 0 if they all lie before it. (Emulated, all warps go together.)
uint units_needed(uint first, uint count, uint tiles)
{
    const uint keys = first < hull.y ? hull.y - first : 0;
    if (EMULATED)
        return count;
    return first + count * tiles * KEYS <= hull.x ? 0 : min((keys + tiles * KEYS - 1) / (tiles * KEYS), count);
}

// `units` units of `tiles` tiles each, of which the first begins at key `first`: all tiles in one go, so that the keys of the next tile
// are on their way over a unit's end, too. Tiles without a key of the hull count nothing.
void units_compute(uint first, uint units, uint tiles)
{
    uvec4 low[K_STEPS], high[K_STEPS], v[V_LOADS];
    const uint total = units * tiles, hidden = !EMULATED && WINDOW && hull.x > first ? (hull.x - first) / KEYS : 0;
    const uint first_end = (hidden / tiles + 1) * tiles; // of the first unit with a key that is seen: others would fold as nothing
    uint number = hidden;
    // Of the tiles behind this one: where they lie, and in which block.
    uint block = tile_block(tile_key(first, number + 2));
    Place place = tile_place(tile_block(tile_key(first, number)), tile_key(first, number));
    Place next = tile_place(tile_block(tile_key(first, number + 1)), tile_key(first, number + 1));
    key_load(place, tile_key(first, number), low, high);
    value_load(place, tile_key(first, number), v);
    vec2 scales = K_SCALES ? scales_load(place) : vec2(1);
    [[dont_unroll]] for (uint end = first_end; end <= total; end += tiles) {
        State state;
        state_clear(state);
        [[dont_unroll]] do {
            const uint key = first + number * KEYS, following = tile_key(first, number + 1);
            precise vec4 s = scores(low, high);
            if (K_SCALES)
                s *= scales.xxyy;
            if (number + 1 < total)
                key_load(next, following, low, high);
            place = next;
            next = tile_place(block, tile_key(first, number + 2));
            block = tile_block(tile_key(first, number + 3));
            const vec4 p = weigh(state, s, key);
            const MatrixB weights = weight_matrix(p);
            if (K_SCALES)
                scales = scales_load(place);
            if (key < hull.x || key + KEYS > hull.y)
                value_clean(key, v);
            values_add(state, v, weights);
            if (number + 1 < total)
                value_load(place, following, v);
        } while (++number < end);
        slot_take(warp_number(), state, end > first_end);
    }
}

// ---- the end ----

// One value of each slot that counts from its maximum, folded: `at` of slot 0, and how far it is from slot to slot.
#define FOLD_SLOTS(RESULT, VALUES, AT, STEP)                                                                           \
    {                                                                                                                  \
        float halves[2], maxima[2];                                                                                    \
        for (uint h = 0; h < 2; h++) {                                                                                 \
            const uint begin = h * (WARPS / 2);                                                                        \
            halves[h] = (VALUES)[(AT) + begin * (STEP)];                                                               \
            maxima[h] = slot_maxima[begin * ROWS + row];                                                               \
            for (uint slot = begin + 1; slot < begin + WARPS / 2; slot++) {                                            \
                const Fold f = fold_begin(maxima[h], slot_maxima[slot * ROWS + row]);                                  \
                halves[h] = fold(f, halves[h], (VALUES)[(AT) + slot * (STEP)]);                                        \
                maxima[h] = f.maximum;                                                                                 \
            }                                                                                                          \
        }                                                                                                              \
        const Fold f = fold_begin(maxima[0], maxima[1]);                                                               \
        RESULT = fold(f, halves[0], halves[1]);                                                                        \
    }

float row_maximum(uint row)
{
    float maximum = slot_maxima[row];
    for (uint slot = 1; slot < WARPS; slot++)
        maximum = max(maximum, slot_maxima[slot * ROWS + row]);
    return maximum;
}

float row_weights(uint row)
{
    float weights;
    FOLD_SLOTS(weights, slot_weights, row, ROWS)
    return weights;
}

Eight row_sums(uint row, uint oct)
{
    Eight sums;
    for (uint i = 0; i < 4; i++) {
        const uint at = row * HEAD_DIM_V + oct * 8 + i;
        FOLD_SLOTS(sums.low[i], slot_sums, at, ROWS * HEAD_DIM_V)
        FOLD_SLOTS(sums.high[i], slot_sums, at + 4, ROWS * HEAD_DIM_V)
    }
    return sums;
}

layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Partial { float at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer PartialQuads { vec4 at[]; };

void oct_end(gpu_item item, uint row, uint oct)
{
    const float maximum = row_maximum(row), weights = row_weights(row);
    const Eight sums = row_sums(row, oct);
    if (SPLIT && item.partial != AULE_NO_PARTIAL) {
        const uint64_t address = partial_address(item.partial);
        PartialQuads(address).at[(row * (HEAD_DIM_V / 8) + oct) * 2] = sums.low;
        PartialQuads(address).at[(row * (HEAD_DIM_V / 8) + oct) * 2 + 1] = sums.high;
        if (oct == 0) {
            Partial(address).at[PARTIAL_MAXIMA + row] = maximum;
            Partial(address).at[PARTIAL_WEIGHTS + row] = weights;
        }
        return;
    }
    const vec2 end = row_end(row, weights, ALIBI ? true_maximum(row_begin(row), maximum) : maximum);
    if (LSE && oct == 0)
        lse_store(row, end.y);
    oct_store(out_address(row) + oct * IO_OCT_BYTES, IO_DTYPE,
              oct_convert(Oct(plus_zero(sums.low * end.x), plus_zero(sums.high * end.x)), DTYPE_F32, IO_DTYPE));
}

void ranges_find(gpu_item item)
{
    hull = tile_range();
    full = uvec2(0, 0xffffffffu);
    for (uint row = 0; row < num_rows; row++) {
        const uvec2 range = row_range(row);
        full = uvec2(max(full.x, range.x), min(full.y, range.y));
    }
    if (SPLIT) {
        hull = uvec2(max(hull.x, item.first_key), min(hull.y, item.end_key));
        full.y = min(full.y, item.end_key);
        for (uint i = 0; i < 2; i++)
            selves[i].range.y = min(selves[i].range.y, item.end_key);
    }
}

void main()
{
    gpu_item item;
    if (!item_find(item))
        return;
    work_begin(item.seq, item.first_row);
    g = warp_lane() / 4;
    t = warp_lane() % 4;
    for (uint i = 0; i < 2; i++)
        selves[i] = row_begin(2 * t + i);
    ranges_find(item);
    const uint count = UNITS / WARPS, tiles = item.span / (UNITS * KEYS);
    const uint first = (SPLIT ? item.first_key : 0) + warp_number() * count * tiles * KEYS;
    const uint needed = hull.x < hull.y ? units_needed(first, count, tiles) : 0;
    if (hull.x < hull.y)
        q_load();
    if (needed > 0)
        units_compute(first, needed, tiles);
    else
        slot_clear(warp_number());
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < num_rows * (HEAD_DIM_V / 8); i += gl_WorkGroupSize.x)
        oct_end(item, i / (HEAD_DIM_V / 8), i % (HEAD_DIM_V / 8));
}
