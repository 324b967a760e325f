// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// oracle.h - what attention means, and that in float64 on the CPU, one row at a time: what every
// kernel is held against. Knows host arrays only, nothing of engine or shaders. Any thread.
//
// Tokens are ragged: sequence s has the tokens cu_seqlens_q[s] .. cu_seqlens_q[s + 1], of which the
// first q_len are queries (all, unless q_lens says less), and kv_len = seq_lens_kv[s] keys, those
// that the same run writes included. Query i of it stands at p_i = kv_len - q_len + i unless
// positions are given; q_len > kv_len is legal. Head h reads KV head h / (num_heads /
// num_kv_heads).
//
//   q_i is turned by p_i with RoPE: pair n of its first dim elements by the angle p_i *
//   frequency_n,
//                                                   (x, y) -> (x cos - y sin, x sin + y cos),
//                                                   rounded to Q's dtype. Keys lie turned in
//                                                   memory.
//   s_ij = scale * (q_i . k_j)            then  s_ij = cap * tanh(s_ij / cap)  if cap > 0
//                                         then  s_ij -= slope_h * |p_i - j|    with ALiBi
//   i sees j if  p_i - left <= j <= p_i + right (-1 = unbounded), and j <= p_i if causal; a mask
//   replaces causal by its
//                bit i * kv_len + j
//   D     = sum over seen j of exp(s_ij), + exp(sink_h) with sinks
//   out_i = sum over seen j of exp(s_ij) v_j / D,   LSE_i = ln D
//
// A row that sees no key gives zeros, never NaN, and without a sink the LSE -inf; so does a token
// that is no query, with a sink too. K and V count as stored: rounded to their dtypes, times the
// scale that goes with them. Only what a query sees is read.

#ifndef AULE_ORACLE_H
#define AULE_ORACLE_H

#include "schema/status.h"

// Element `index` of an array; and the value stored there, rounded to the dtype.
double oracle_load(const void *array, enum dtype dtype, uint64_t index);
void oracle_store(void *array, enum dtype dtype, uint64_t index, float value);

// Where K, or V, lies: token i of part o begins at part o + i * token_stride + kv_head *
// head_stride. Strides are bytes. Part o is at base + o * outer_stride, or, with `parts`, at
// parts[o] + parts_offset. With a block table part o is the block o, and i a token of it. Without,
// part o is the sequence, i its key; with kv_starts and an outer stride of 0 there is one part, in
// which the sequence's key j is the token kv_starts[s] + j.
struct oracle_kv {
    enum dtype dtype;
    const uint8_t *base;
    const uint8_t *const *parts;
    uint64_t parts_offset;
    uint64_t outer_stride, token_stride, head_stride;
    double scale;           // of all elements; 0 = 1
    uint64_t scales_offset; // in a part: f32 [num_kv_heads, block_size], multiplied too; 0 = none
};

struct oracle_rope {
    uint32_t dim;              // 0 = none
    bool interleaved;          // pairs are (2n, 2n + 1), else (n, n + dim / 2)
    double theta;              // frequency n = theta ^ (-2 n / dim) radians a position
    const double *frequencies; // [dim / 2], instead
};
// Turns an array of `rope->dim` values or more in place.
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

    // What is off when zero.
    bool windowed;
    int32_t window_left, window_right; // only if `windowed`; -1 = unbounded
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

// How far a kernel that is right may be from a row, step by step: what no bound that is a share of
// the row's largest element can say where values cancel each other, or where one number of Q weighs
// much.
//   Q     what was turned in f32 may be rounded to another number than what was turned exactly:
//   ORACLE_TURN of its pair's length s     sums and products of f32: 2^-22 of what they are made of
//   P     weights of matrix units are of Q's dtype: each half a unit of its own, none less than
//   half of the least number out   half a unit of Q's dtype, which is the output's
// Each as if all of them went the same way. Slower than the row itself: to be asked where a plain
// bound does not hold.
#define ORACLE_TURN 5e-7
struct oracle_doubt {
    double *out; // [head_dim_v]; the caller's
    double lse;
};
// `out` and `lse` are oracle_row()'s. False: no memory.
bool oracle_doubt(const struct oracle_params *params, uint32_t token, uint32_t head,
                  const double *out, double lse, struct oracle_doubt *doubt);

#endif
