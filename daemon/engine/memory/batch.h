// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// batch.h - one model step's metadata where shaders read it, and what staging and work lists need
// of it on the CPU.

#ifndef AULE_ENGINE_BATCH_H
#define AULE_ENGINE_BATCH_H

#include "cache.h"
#include "lists.h"
#include "sharing.h"

#include <stdatomic.h>

// The arrays on the GPU, by the names of struct gpu_run.
enum batch_array {
    BATCH_CU_SEQLENS_Q,
    BATCH_SEQ_LENS_KV,
    BATCH_BLOCK_TABLE,
    BATCH_SLOT_MAPPING,
    BATCH_POSITIONS,
    BATCH_Q_LENS,
    BATCH_TOKEN_ROWS,
    BATCH_KV_STARTS,
    BATCH_KV_OFFSETS,
    BATCH_MASK_STARTS,
    BATCH_MASK,
    BATCH_ARRAYS
};

// A block table on the GPU, which the steps of a batch share. An entry changes in place where no
// work that is not over reads it: behind what steps have in sight that have any. Any other change
// to a block under way copies the whole table. An entry that becomes -1 stays as it was: no run of
// the steps that follow reads it, so the table may name blocks that the batch does not name any
// more. Caller's thread, but for `users`.
struct table {
    struct piece piece; // owned
    atomic_uint users;  // batches
    uint32_t *seen;     // [num_seqs]: leading columns that some step up to then has in sight; NULL
                        // until the second step; owned
};

struct engine_batch {
    struct engine *engine;
    struct engine_cache *cache; // NULL unless ENGINE_POOL
    enum engine_place place;
    struct engine_kv kv;
    uint32_t num_seqs, max_blocks, num_tokens;
    uint64_t num_keys;              // of all sequences
    struct table *table;            // one of its users; NULL = there is none
    struct piece piece;             // all the arrays but the table; owned
    uint64_t address[BATCH_ARRAYS]; // 0 = not there

    // On the CPU; owned.
    int32_t *cu_seqlens_q;       // [num_seqs + 1]; NULL without sequences
    int32_t *seq_lens_kv;        // [num_seqs]; NULL in a batch that only writes
    int32_t *q_lens, *kv_starts; // [num_seqs]; NULL = not there
    int32_t *token_rows;         // [num_tokens]; NULL = not there
    int64_t *slots;              // ENGINE_BLOCKS: [num_tokens]; NULL = no writes
    int32_t *blocks; // ENGINE_BLOCKS: [num_blocks] that a query may see, and some that none does
    uint64_t num_blocks;              // submitter only, as the next
    bool blocks_sorted;               // and each stands there once
    bool sharing_known;               // that of the step before stands
    struct sharing sharing;           // of few queries each: those whose tables begin alike
    bool checked;                     // the next two are set; caller's thread
    struct cutting checked_cutting;   // of the run that was checked last
    struct partials checked_partials; // that it makes
    struct lists lists;               // work lists that plan/items.h made; submitter only
    uint64_t last_sequence;           // of a submission that names it, 0 = none; caller's thread
    struct job end;
    struct engine_batch *prev, *next;
};

// Ends `batch` now: no thread and no submission uses it.
void batch_free(struct engine_batch *batch);
uint32_t batch_num_queries(const struct engine_batch *batch,
                           uint32_t seq); // its rows of tokens that see keys at all
// ENGINE_BLOCKS: sorts `blocks`, each once. Submitter only.
void batch_sort_blocks(struct engine_batch *batch);

#endif
