// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// workload.h - the workloads by name: which sequences, heads and types. Knows no device and no time.

#ifndef AULE_BENCH_WORKLOAD_H
#define AULE_BENCH_WORKLOAD_H

#include "status.h"

struct workload {
    const char *name, *what;
    uint32_t num_heads, num_kv_heads, head_dim, block_size;
    // The sequences: lengths[i] of each entry, ended by count 0; or a list of their own.
    struct run_of {
        uint32_t count, q_len, kv_len;
    } runs[9];
    const uint32_t *kv_lens; // [num_kv_lens] decodes of these lengths instead
    uint32_t num_kv_lens;
    uint32_t shared_prefix; // tokens that all sequences have in common, in the same blocks
    bool bound_by_memory;   // the ceiling is reading K and V, not arithmetic
};

extern const struct workload workloads[];
extern const uint32_t num_workloads;

const struct workload *workload_find(const char *name); // NULL: there is none

uint32_t workload_num_seqs(const struct workload *workload);
// Lengths of sequence `seq`.
void workload_seq(const struct workload *workload, uint32_t seq, uint32_t *q_len, uint32_t *kv_len);

// Bytes of K and V that are read at least: each token once, a shared prefix once. 4 * heads * dim * causal pairs.
double workload_bytes(const struct workload *workload, enum dtype kv_dtype);
double workload_flops(const struct workload *workload);

#endif
