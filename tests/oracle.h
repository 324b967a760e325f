// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// oracle.h - attention as DESIGN.md's "Semantics of attention" defines it, in float64 on the CPU, one row at a time: what
// every kernel is held against. Knows host arrays only, nothing of engine or shaders. Any thread; nothing is kept.

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
