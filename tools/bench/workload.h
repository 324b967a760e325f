// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// workload.h - the workloads by name: which sequences, heads and types. Knows no device and no
// time.

#ifndef AULE_BENCH_WORKLOAD_H
#define AULE_BENCH_WORKLOAD_H

#include "schema/status.h"

enum workload_kind {
    WORKLOAD_ATTEND,  // attention, again and again
    WORKLOAD_APPEND,  // no attention: one new token a sequence is written, in every layer
    WORKLOAD_GROWTH,  // attention while the pool grows
    WORKLOAD_STUDY,   // several cases beside each other: see study.h; no sequences of its own
    WORKLOAD_LONGEST, // attention over the longest batch that a pool holds: see workload_fit()
};

enum { WORKLOAD_NAME_SIZE = 32 };

struct workload {
    char name[WORKLOAD_NAME_SIZE];
    const char *what;
    enum workload_kind kind;
    uint32_t num_heads, num_kv_heads, head_dim, block_size;
    // The sequences: lengths[i] of each entry, ended by count 0; or a list of their own.
    struct run_of {
        uint32_t count, q_len, kv_len;
    } runs[9];
    const uint32_t *kv_lens; // [num_kv_lens] decodes of these lengths instead
    uint32_t num_kv_lens;
    uint32_t shared_prefix; // tokens that all sequences have in common, in the same blocks
    uint32_t num_layers; // that a step writes or a pool must hold; 0: as many as the rotation wants
    enum dtype kv_dtype; // of K and V, whatever the command line says; 0: as it says
    bool token_scales;   // K and V, of 8 bits, have a scale for each token and head
    bool bound_by_memory; // the ceiling is memory, not arithmetic
};

extern const struct workload workloads[];
extern const uint32_t num_workloads;

// What a command line names: a malloc'd list, in the order of the table.
struct selection {
    struct workload *list;
    uint32_t count;
};

// Adds what `name` means: a row of the table (D6 is two), "all" (but the studies), "sharing" (the
// studies), a family ("lengths", "batches"), or decode:NxLENGTH and prefill:NxLENGTH. False: it
// means nothing, or there is no memory; standard error says which.
bool selection_add(struct selection *selection, const char *name);
// All of them with another head_dim (0: with their own), and with token_scales or not.
void selection_shape(struct selection *selection, uint32_t head_dim, bool token_scales);
void selection_finish(struct selection *selection);

uint32_t workload_num_seqs(const struct workload *workload);
// Lengths of sequence `seq`.
void workload_seq(const struct workload *workload, uint32_t seq, uint32_t *q_len, uint32_t *kv_len);

// What K and V have if the command line says so of q and of them; `asked` 0: as q.
enum dtype workload_kv_dtype(const struct workload *workload, enum dtype dtype, enum dtype asked);
// Bytes of K and V that are read at least: each token once, a shared prefix once; of an append,
// those that are read and written.
double workload_bytes(const struct workload *workload, enum dtype dtype, enum dtype kv_dtype);
double workload_flops(const struct workload *workload); // 4 * heads * dim * causal pairs

// Of a batch of which each sequence is half as long as the one before: the longest first length, a
// multiple of 256, for which K and V of all layers fit `bytes`. Paged, each sequence has its own
// blocks; contiguous, each has room for the longest.
uint32_t workload_longest(const struct workload *workload, uint64_t bytes, enum dtype kv_dtype,
                          bool paged);
// That batch in place of the workload's own sequences.
void workload_fit(struct workload *workload, uint32_t longest);

#endif
