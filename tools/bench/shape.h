// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// shape.h - a workload's sequences, or some of them, as the metadata of a batch, and the number
// (values.h) of each element. An engine in this process and a daemon are filled and checked by the
// same numbers.

#ifndef AULE_BENCH_SHAPE_H
#define AULE_BENCH_SHAPE_H

#include "workload.h"

struct shape {
    const struct workload *workload;
    uint32_t num_seqs, num_tokens, max_blocks, num_blocks;
    uint32_t num_contents; // blocks i and i + num_contents have the same contents; num_blocks: all
                           // differ
    int32_t *cu_seqlens_q, *seq_lens_kv;
    // [num_seqs, max_blocks] scattered numbers below num_blocks; -1 after the sequence's last
    // block. The blocks of a shared prefix have the lowest numbers, in an order that depends on the
    // workload alone, so that shapes of other sequences of it may name the same blocks.
    int32_t *block_table;
};

// Sequences [first, first + count). False: no host memory, said on standard error. shape_finish()
// takes a zeroed or half-made shape.
bool shape_init(struct shape *shape, const struct workload *workload, uint32_t first,
                uint32_t count);
void shape_finish(struct shape *shape);

uint32_t shape_seq_of(const struct shape *shape, uint32_t token);
// The number of element 0 of a key in its set's streams.
uint64_t shape_element(const struct shape *shape, uint32_t seq, uint32_t key, uint32_t kv_head);
// The slot of the last token of sequence `seq`, if block i of the shape is blocks[i] (NULL: i).
int64_t shape_last_slot(const struct shape *shape, uint32_t seq, const int32_t *blocks);
uint64_t shape_elements(const struct shape *shape);       // of K, in all blocks
uint64_t shape_block_elements(const struct shape *shape); // of K in one block
uint64_t shape_query_elements(const struct shape *shape);

// The streams of values.h for one set of inputs.
enum shape_part { SHAPE_Q, SHAPE_K, SHAPE_V, SHAPE_PARTS };
uint64_t shape_stream(uint32_t set, enum shape_part part);
// K or V of each sequence's last token, as [num_seqs, KV heads, dim]. A decode would write it; here
// the same values are there already.
void shape_newest(const struct shape *shape, enum dtype dtype, uint32_t set, enum shape_part part,
                  void *rows);
uint64_t shape_newest_elements(const struct shape *shape);

#endif
