// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// workload.h - workloads by name: their sequences, heads and types. It knows no device and no time.

#ifndef AULE_BENCH_WORKLOAD_H
#define AULE_BENCH_WORKLOAD_H

#include "schema/status.h"

enum { WORKLOAD_NAME_SIZE = 32 };

struct workload {
    char name[WORKLOAD_NAME_SIZE];
    const char *what;
    bool is_study; // several cases: see study.h; it has no sequences of its own
    uint32_t num_heads, num_kv_heads, head_dim, block_size;
    // The sequences: lengths[i] of each entry, up to an entry with count 0; or a list of lengths.
    struct run_of {
        uint32_t count, q_len, kv_len;
    } runs[9];
    const uint32_t *kv_lens; // [num_kv_lens]: decodes of these lengths instead
    uint32_t num_kv_lens;
    uint32_t shared_prefix; // tokens that all sequences share, in the same blocks
    enum dtype kv_dtype;    // of K and V, and the command line cannot change it; 0: by the command
                            // line
    bool bound_by_memory;   // its ceiling is memory, not arithmetic
};

extern const struct workload workloads[];
extern const uint32_t num_workloads;

// The workloads that a command line names: a malloc'd list, in the order of the table.
struct selection {
    struct workload *list;
    uint32_t count;
};

// Adds the workloads of `name`: a row of the table (D6 is two), "all" (without the studies),
// "sharing" (the studies), or decode:NxLENGTH, prefill:NxLENGTH and shared:NxPREFIX+OWN. False:
// there is no such name, or no memory; standard error says which.
bool selection_add(struct selection *selection, const char *name);
// Gives all of them another head_dim; 0: their own.
void selection_shape(struct selection *selection, uint32_t head_dim);
void selection_finish(struct selection *selection);

uint32_t workload_num_seqs(const struct workload *workload);
// The lengths of sequence `seq`.
void workload_seq(const struct workload *workload, uint32_t seq, uint32_t *q_len, uint32_t *kv_len);

// The type of K and V if the command line asks for `asked` (0: the type of q).
enum dtype workload_kv_dtype(const struct workload *workload, enum dtype dtype, enum dtype asked);
// The least bytes of K and V that are read: each token once, a shared prefix once.
double workload_bytes(const struct workload *workload, enum dtype kv_dtype);
double workload_flops(const struct workload *workload); // 4 * heads * dim * causal pairs

#endif
