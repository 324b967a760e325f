// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_columns.glsl - what attention_decode and attention_cascade do for a row inside a unit
// of keys. The row's bits depend on this and on the order of the products, which is not here. Rows
// of the tile are columns of matrices; keys and values are rows. Knows no items, no shared memory,
// and not where keys lie.
//
//   S^T[16 keys, 8 rows] = K Q^T      K is A, Q^T is B; dims are permuted alike: q_pair_of()
//   P = 2^(S^T - m)                   each lane: 2 keys x 2 rows
//   O^T[d, 8 rows] += V^T P^T         V^T is A, rows permuted: value_words(); P comes by shuffles

#ifndef AULE_ATTENTION_COLUMNS_GLSL
#define AULE_ATTENTION_COLUMNS_GLSL

#include "attention_parts.glsl"

#include "attention_query.glsl"

#include "matrix.glsl" // needs the workgroup's size

#include "halves.glsl"

const uint ROWS = 8;
const uint KEYS = 16; // of one tile; all in one block
// Fewer units, because code for f16 takes too long to compile there. bf16 is emulated exactly as on
// a device.
const bool LITTLE_CODE = EMULATED && MATRIX_DTYPE == DTYPE_F16;
const uint UNITS = LITTLE_CODE ? 4 : 8; // units of a half
const uint STEP = 2 * KEYS;         // keys from one tile of a half to the next
const uint WARPS = gl_WorkGroupSize.x / WARP;
const uint K_ELEMENTS = 16 / DTYPE_BYTES(K_DTYPE); // elements in a piece of 16 bytes
const uint V_ELEMENTS = 16 / DTYPE_BYTES(V_DTYPE);
const uint K_PIECES = HEAD_DIM_K / K_ELEMENTS; // pieces of a key
const uint V_PIECES = HEAD_DIM_V / V_ELEMENTS;
const uint K_STEPS = (K_PIECES + 3) / 4; // pieces of a key that one lane has
const uint V_STEPS = (V_PIECES + 7) / 8; // likewise of a value
const uint K_MATRICES = K_ELEMENTS / 4;  // matrices that use one piece of a key
const uint V_MATRICES = V_ELEMENTS / 2;
const uint Q_MATRICES = K_STEPS * K_MATRICES;
const uint Q_PAIRS = Q_MATRICES / 2;
const uint SUM_MATRICES = V_STEPS * V_MATRICES;
const bool V_WHOLE = V_PIECES % 8 == 0; // no lane has pieces beyond the row

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Pieces {
    uvec4 at[];
};

uint g, t; // the lane in its warp is 4 g + t

// ---- Q ----

// Elements [8 * oct, 8 * oct + 8) of a row, or zeros beyond rows and dims. FEW_ROWS (the tile has a
// row): loads something even then, since other loads could not overlap with a load behind a branch.
uvec4 q_halves(uint row, uint oct)
{
    const bool idle = row >= num_rows || oct >= HEAD_DIM_K / 8;
#ifndef FEW_ROWS
    if (idle)
        return uvec4(0);
#endif
    const uint at_row = idle ? num_rows - 1 : row, at = idle ? 0 : oct;
    uvec4 halves;
    if (!ROPE) {
        halves = Pieces(q_address(at_row)).at[at];
    } else {
        const Eight q = q_oct(at_row, at);
        halves = oct_convert(Oct(floatBitsToUint(q.low), floatBitsToUint(q.high)), DTYPE_F32,
                             MATRIX_DTYPE)
                     .first;
    }
    return mix(halves, uvec4(0), bvec4(idle));
}

// Pair number `i` of Q matrices, for row `row`. Matrix n of piece j uses elements 4n to 4n + 3 of
// pieces 4j + t, for each lane, in the order of key_words().
uvec4 q_pair_of(uint row, uint i)
{
    const uint octs = K_ELEMENTS / 8;
    const uvec4 q = q_halves(row, (4 * (i / octs) + t) * octs + i % octs);
    if (DTYPE_BYTES(K_DTYPE) == 2)
        return q;
    return uvec4(halves_low(q.x, q.y), halves_high(q.x, q.y), halves_low(q.z, q.w),
                 halves_high(q.z, q.w));
}

uvec4 q_pair(uint i)
{
    return q_pair_of(g, i);
}

// ---- K and V ----
// A lane has pieces 4j + t of keys g and g + 8 of the tile. It has pieces 8s + g of values 2t, 2t +
// 1, 2t + 8 and 2t + 9.

// Elements 4n to 4n + 3 of a key's piece. 8-bit elements come as 0, 2, 1, 3, which takes the fewest
// operations.
uvec2 key_words(uvec4 piece, uint n)
{
    if (DTYPE_BYTES(K_DTYPE) == 2)
        return n == 0 ? piece.xy : piece.zw;
    return uvec2(halves_even(piece[n], K_DTYPE), halves_odd(piece[n], K_DTYPE));
}

// Elements 2n and 2n + 1 of four values' pieces, as the words of A, one element for each row.
uvec4 value_words(uvec4 a, uvec4 b, uvec4 c, uvec4 d, uint n)
{
    if (DTYPE_BYTES(V_DTYPE) == 2)
        return matrix_words_turned(uvec4(a[n], b[n], c[n], d[n]));
    const uint w = n / 2;
    const uint x = n % 2 == 0 ? halves_low(a[w], b[w]) : halves_high(a[w], b[w]);
    const uint y = n % 2 == 0 ? halves_low(c[w], d[w]) : halves_high(c[w], d[w]);
    return uvec4(halves_even(x, V_DTYPE), halves_even(y, V_DTYPE), halves_odd(x, V_DTYPE),
                 halves_odd(y, V_DTYPE));
}

// ---- one tile of keys ----

// Scores from the two sums of products.
vec4 scores_scaled(MatrixC even, MatrixC odd)
{
    // Not fused with later operations: one pipeline might do so and another not.
    const vec4 products = halves_numbers(matrix_elements(even) + matrix_elements(odd), K_DTYPE);
    precise vec4 scaled = products * (run.scale_log2e * HALVES_FACTOR(K_DTYPE));
    return scaled;
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

// The weights as matrix B. Row 2t of B is key 2t, whose weights are in lane 4 * 2t + column / 2.
MatrixB weight_matrix(vec4 p)
{
    const uint low = halves_round(p.xy), high = halves_round(p.zw), from = 8 * t + g / 2;
    const uint a = warp_shuffle(low, from), b = warp_shuffle(low, from + 4);
    const uint c = warp_shuffle(high, from), d = warp_shuffle(high, from + 4);
    if ((g & 1) != 0)
        return matrix_b(uvec2(halves_high(a, b), halves_high(c, d)));
    return matrix_b(uvec2(halves_low(a, b), halves_low(c, d)));
}

// ---- V with scales per token and head ----
// Scales are far from 1, so a weight times its value's scale may not fit into f16. So the weighted
// values have a frame of their own: the largest score + log2(scale) among the keys that a row sees.
// It is counted from the row's maximum, since large scores have no digits left for log2(scale). The
// factor of a value is 2^(score - maximum + log2(scale) - frame), at most 1. The sum of weights
// stays in the frame of the scores, and so does a unit's result.

const float NO_SCALE = -1.0e30;  // stands for log2(0): finite, and below all differences of scores
const float MOST_SCALE = 1.0e30; // above log2 of all scales; what nobody wrote may be infinite

// log2 of a value's scale. Finite, since a key that no row sees may have any scale.
float scale_log2(float scale)
{
    return scale > 0 ? min(log2(scale), MOST_SCALE) : NO_SCALE;
}

// Factors that bring a unit's sums back to the frame of the scores. A row that sees no key of the
// unit has sums of 0, and any frame.
vec2 frames_of(vec2 maxima, vec2 frames)
{
    return mix(exp2(frames), vec2(1), equal(maxima, vec2(NO_MAXIMUM)));
}

// A warp's state for a unit of keys. Lanes with the same t have the same maxima; sums are each
// lane's own.
struct State {
    vec2 maxima, weights;
    vec2 frames; // V_SCALES: the frame of the sums, counted from `maxima`
    // [s][k]: dims (8s + g) * V_ELEMENTS + 2k and + 1 (matrix rows g, g + 8), rows 2t and 2t + 1.
    MatrixC sums[SUM_MATRICES];
};

void state_clear(out State state)
{
    state.maxima = state.frames = vec2(NO_MAXIMUM);
    state.weights = vec2(0);
    [[unroll]] for (uint i = 0; i < SUM_MATRICES; i++)
        state.sums[i] = matrix_c(vec4(0));
}

// Both rows' largest score over all lanes with the same t.
vec2 column_tops(vec4 s)
{
    return vec2(column_maximum(max(s.x, s.z)), column_maximum(max(s.y, s.w)));
}

// Turns scores into weights. x, y: key g, rows 2t, 2t + 1; z, w: key g + 8. Each row follows its
// maximum by its own scores only. Sums are scaled even if the maximum stays: at a branch, all loads
// in flight would be waited for. `logs`: scale_log2() for both keys' values.
vec4 weigh(inout State state, vec4 s, bvec4 seen, vec2 logs)
{
    s = mix(vec4(NO_MAXIMUM), s, seen);
    const vec2 larger = max(state.maxima, column_tops(s));
    precise vec2 moved = state.maxima - larger;
    const vec2 factor = exp2(moved);
    state.maxima = larger;
    if (!V_SCALES)
        [[unroll]] for (uint i = 0; i < SUM_MATRICES; i++)
            matrix_scale(state.sums[i], factor.xyxy);
    precise vec4 exponents = s - larger.xyxy; // not fused with other operations
    const vec4 p = mix(vec4(0), exp2(exponents), seen);
    precise vec2 weights = state.weights * factor + (p.xy + p.zw);
    state.weights = weights;
    if (!V_SCALES)
        return p;
    // A key that the row does not see is far below all others, or all weights are 0 so far.
    precise vec4 values = exponents + logs.xxyy;
    precise vec2 kept = state.frames + moved;
    const vec2 top = max(kept, column_tops(values)), value_factor = exp2(kept - top);
    state.frames = top;
    [[unroll]] for (uint i = 0; i < SUM_MATRICES; i++)
        matrix_scale(state.sums[i], value_factor.xyxy);
    precise vec4 value_exponents = values - top.xyxy;
    return mix(vec4(0), exp2(value_exponents), seen);
}

// ---- units ----

// A sum matrix as sums of weighted values.
vec4 sums_numbers(MatrixC sums)
{
    return halves_numbers(matrix_elements(sums), V_DTYPE) * HALVES_FACTOR(V_DTYPE);
}

// The piece of V that this lane has in sum matrix `i`.
uint piece_of(uint i)
{
    return 8 * (i / V_MATRICES) + g;
}

#endif
