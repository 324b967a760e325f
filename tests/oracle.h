// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// oracle.h - what attention means, and that in float64 on the CPU, one row at a time: what every kernel is held against.
// Knows host arrays only, nothing of engine or shaders. Any thread; nothing is kept.
//
// Tokens are ragged: sequence s has the query tokens cu_seqlens_q[s] .. cu_seqlens_q[s + 1], q_len of them, and kv_len =
// seq_lens_kv[s] keys, those that the same run writes included. Query i of it stands at p_i = kv_len - q_len + i unless
// positions are given; q_len > kv_len is legal. Head h reads KV head h / (num_heads / num_kv_heads).
//
//   s_ij = scale * (q_i . k_j)            then  s_ij = cap * tanh(s_ij / cap)  if cap > 0
//                                         then  s_ij -= slope_h * |p_i - j|    with ALiBi
//   i sees j if  p_i - left <= j <= p_i + right (-1 = unbounded), and j <= p_i if causal; a mask replaces causal by its
//                bit i * kv_len + j
//   D     = sum over seen j of exp(s_ij), + exp(sink_h) with sinks
//   out_i = sum over seen j of exp(s_ij) v_j / D,   LSE_i = ln D
//
// A row that sees no key gives zeros, never NaN, and without a sink the LSE -inf. K and V count as stored, that is rounded
// to the cache's dtypes. In a run all writes come before all reads. Only the table's entries that a query sees are read.

#ifndef AULE_ORACLE_H
#define AULE_ORACLE_H

#include "status.h"

// The value of an IEEE half, and the half nearest to a float (ties to even, overflow to infinity, NaN to a quiet NaN).
double oracle_half_value(uint16_t bits);
uint16_t oracle_half_round(float value);

// Element `index` of an array of DTYPE_F32 or DTYPE_F16; and the value stored there, rounded to the dtype.
double oracle_load(const void *array, enum dtype dtype, uint64_t index);
void oracle_store(void *array, enum dtype dtype, uint64_t index, float value);

struct oracle_params {
    uint32_t num_seqs, max_blocks;
    uint32_t num_heads, num_kv_heads, head_dim_k, head_dim_v, block_size;
    enum dtype q_dtype, k_dtype, v_dtype;
    const int32_t *cu_seqlens_q;  // [num_seqs + 1]
    const int32_t *seq_lens_kv;   // [num_seqs]
    const int32_t *block_table;   // [num_seqs, max_blocks]; entries that the row does not see are never read
    const uint8_t *const *blocks; // by block id: one layer of it, [num_kv_heads, block_size, head_dim_k] of K, then V
    const void *q;                // token 0, head 0
    uint64_t q_token_stride, q_head_stride; // bytes
    double scale;                           // final: never 0
    bool causal;

    // What is off when zero.
    bool windowed;
    int32_t window_left, window_right; // only if `windowed`; -1 = unbounded
    double cap;                        // logits soft cap
    const float *slopes;               // ALiBi, [num_heads]
    const float *sinks;                // [num_heads]
    const int32_t *positions;          // [num_tokens], instead of bottom-right alignment
    const uint8_t *mask;               // bits, LSB first; replaces causal
    const uint64_t *mask_starts;       // [num_seqs], only with `mask`: the sequence's bit (0, 0)
};

// The output of one row, out[0..head_dim_v), and its LSE (natural log, sink included; -inf if no key is seen and there is
// no sink; NULL = not wanted). `token` counts over the whole batch. False: no memory.
bool oracle_row(const struct oracle_params *params, uint32_t token, uint32_t head, double *out, double *lse);

#endif
