// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// oracle.h - the definition of attention, in float64 on the CPU, one row at a time. Every kernel is
// compared with it. It knows host arrays only, nothing of engine or shaders. Any thread.
//
// Tokens are ragged: sequence s has the tokens cu_seqlens_q[s] .. cu_seqlens_q[s + 1]. The first
// q_len of them are queries (all, unless q_lens says less). It has kv_len = seq_lens_kv[s] keys,
// including those that the same run writes. Query i is at p_i = kv_len - q_len + i, or at its given
// position; q_len > kv_len is legal. Head h reads KV head h / (num_heads / num_kv_heads).
//
// With RoPE, q_i is rotated by p_i and rounded to Q's dtype. Pair n of its first dim elements turns
// by the angle p_i * frequency_n: (x, y) -> (x cos - y sin, x sin + y cos). Stored keys are rotated
// already.
//
//   s_ij  = scale * (q_i . k_j)
//   s_ij  = cap * tanh(s_ij / cap)       if cap > 0
//   s_ij -= slope_h * |p_i - j|          with ALiBi
//   i sees j if  p_i - left <= j <= p_i + right  (-1 = unbounded), and j <= p_i if causal;
//                a mask replaces causal by its bit i * kv_len + j
//   D     = sum over seen j of exp(s_ij), + exp(sink_h) with sinks
//   out_i = sum over seen j of exp(s_ij) v_j / D,   LSE_i = ln D
//
// A row that sees no key gives zeros, never NaN, and without a sink its LSE is -inf. So does a
// token that is no query, even with a sink. K and V count as stored: rounded to their dtypes and
// multiplied by their scale. Only keys that a query sees are read.

#ifndef AULE_ORACLE_H
#define AULE_ORACLE_H

#include "schema/status.h"

// Element `index` of an array; and the value stored there, rounded to the dtype.
double oracle_load(const void *array, enum dtype dtype, uint64_t index);
void oracle_store(void *array, enum dtype dtype, uint64_t index, float value);

// The place of K, or of V: token i of part o begins at part o + i * token_stride + kv_head *
// head_stride. Strides are bytes. Part o is at base + o * outer_stride, or, with `parts`, at
// parts[o] + parts_offset. With a block table, part o is block o, and i is a token of the block.
// Without one, part o is a sequence, and i is its key. With kv_starts and an outer stride of 0
// there is one part, in which key j of sequence s is the token kv_starts[s] + j.
struct oracle_kv {
    enum dtype dtype;
    const uint8_t *base;
    const uint8_t *const *parts;
    uint64_t parts_offset;
    uint64_t outer_stride, token_stride, head_stride;
    double scale;           // of all elements; 0 = 1
    uint64_t scales_offset; // in a part: f32 [num_kv_heads, block_size], a second factor; 0 = none
};

struct oracle_rope {
    uint32_t dim;              // 0 = none
    bool interleaved;          // pairs are (2n, 2n + 1), else (n, n + dim / 2)
    double theta;              // frequency n = theta ^ (-2 n / dim) radians a position
    const double *frequencies; // [dim / 2], instead
};
// Rotates an array of at least `rope->dim` values in place.
void oracle_turn(const struct oracle_rope *rope, int64_t position, double *values);

struct oracle_params {
    uint32_t num_seqs, max_blocks;
    uint32_t num_heads, num_kv_heads, head_dim_k, head_dim_v, block_size;
    enum dtype q_dtype;
    const int32_t *cu_seqlens_q; // [num_seqs + 1]
    const int32_t *seq_lens_kv;  // [num_seqs]
    const int32_t *block_table;  // [num_seqs, max_blocks]; entries that the row does not see are
                                 // never read; NULL: contiguous
    struct oracle_kv k, v;
    const void *q; // token 0, head 0
    uint64_t q_outer_stride, q_token_stride,
        q_head_stride; // bytes; an outer stride is that of a sequence
    double scale;      // final: never 0
    bool causal;

    // Features; zero switches each off.
    bool windowed;
    int32_t window_left, window_right; // only if `windowed`; -1 = unbounded
    uint32_t chunk;                    // only keys of the query's own chunk of so many; 0 = all
    double cap;                        // logits soft cap
    const float *slopes;               // ALiBi, [num_heads]
    const float *sinks;                // [num_heads]
    const int32_t *positions;          // [num_tokens] by row, instead of bottom-right alignment
    const uint8_t *mask;               // bits, LSB first; replaces causal
    const uint64_t *mask_starts;       // [num_seqs], only with `mask`: the sequence's bit (0, 0)
    const int32_t *q_lens;             // [num_seqs]
    const int32_t
        *token_rows;          // [num_tokens] the row of a token in q and positions; NULL: the token
    const int32_t *kv_starts; // [num_seqs]
    struct oracle_rope rope;
};

// The output of one row, out[0..head_dim_v), and its LSE (natural log, sink included; -inf if no
// key is seen and there is no sink; NULL = not wanted). `token` counts over the whole batch. False:
// no memory.
bool oracle_row(const struct oracle_params *params, uint32_t token, uint32_t head, double *out,
                double *lse);

// How far a correct kernel may be from a row: the sum of the rounding errors of each step. A bound
// relative to the row's largest element is too strict where values cancel each other, or where one
// element of Q has a large weight.
//   Q:    an element rotated in f32 may round to another number than one rotated exactly; it is off
//         by ORACLE_TURN of the length of its pair
//   s:    sums and products of f32: 2^-22 of their parts
//   P:    weights on tensor cores have Q's dtype: half a unit of each weight, at least half of the
//         least number
//   out:  half a unit of Q's dtype, which is the output's, too
// All errors count as if they had the same sign. This is slower than the row itself, so use it only
// where a plain bound does not hold.
#define ORACLE_TURN 5e-7
struct oracle_doubt {
    double *out; // [head_dim_v]; the caller's
    double lse;
};
// `out` and `lse` are oracle_row()'s. False: no memory.
bool oracle_doubt(const struct oracle_params *params, uint32_t token, uint32_t head,
                  const double *out, double lse, struct oracle_doubt *doubt);

#endif
