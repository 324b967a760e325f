// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// batch.h - one model step's metadata where shaders read it, and the work lists made from it.

#ifndef AULE_ENGINE_BATCH_H
#define AULE_ENGINE_BATCH_H

#include "cache.h"

struct items;

struct engine_batch {
    struct engine *engine;
    struct engine_cache *cache;
    uint32_t num_seqs, max_blocks, num_tokens;
    int32_t *cu_seqlens_q;                                               // [num_seqs + 1]; owned
    struct piece piece;                                                  // all the arrays; owned
    uint64_t cu_address, seq_lens_address, table_address, slots_address; // slots_address 0 = no writes
    uint64_t positions_address, mask_address, mask_starts_address;       // 0 = none
    struct items *items;    // work lists, one for each group size of late, the latest first; submitter only
    uint64_t last_sequence; // of a submission that names it, 0 = none; caller's thread
    struct job end;
    struct engine_batch *prev, *next;
};

// The work list for `group` query heads a KV head, good for submission `sequence`. Made on first use; a batch keeps but a few.
// `address` 0 and count 0 for a batch without tokens.
// Submitter only. LIMIT: more items than a dispatch can count. NO_MEMORY.
enum status batch_items(struct engine_batch *batch, uint32_t group, uint64_t sequence, uint64_t *address,
                        uint32_t *count, struct error *error);

// Ends `batch` now: no thread and no submission uses it.
void batch_free(struct engine_batch *batch);

#endif
