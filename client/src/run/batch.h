// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// batch.h - what a run needs to know about its batch, and how the library makes batches for itself.

#ifndef AULE_CLIENT_BATCH_H
#define AULE_CLIENT_BATCH_H

#include "client/src/cache.h"
#include "client/src/handle.h"

struct aule_batch {
    struct handle handle;
    struct life *life; // a reference
    uint64_t id;
    uint32_t num_kv_heads, num_seqs, num_tokens;
    enum aule_path path; // contiguous: K and V are rows in the arena
    // How far runs reach into tensors.
    bool has_slots;
    uint32_t last_seq, last_rows;    // the last sequence that has rows, and how many; 0, 0: none
    uint64_t num_queries;            // of all sequences
    uint64_t num_keys;               // of all sequences: the rows of a gather
    uint32_t num_blocks, block_size; // of block tensors in the arena; 0: there are none
};

// Where a batch's keys and values are. One of the two is given.
struct batch_source {
    const struct aule_cache *cache;
    const struct aule_kv_layout *layout; // of K and V in the arena
};

// AULE_INVALID: mask and mask_size contradict each other. The other arrays must be as long as
// `params` says.
enum aule_status batch_check_mask(const struct aule_batch_params *params);

// aule_batch_create(), between life_enter() and life_leave(). The arrays must be as
// long as `params` says. With seq_lens_kv NULL, runs of the batch can write K and V but not attend.
enum aule_status batch_create(struct life *life, const struct batch_source *source,
                              const struct aule_batch_params *params, struct aule_batch **out);

#endif
