// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// batch.h - one model step's metadata in memory that shaders read, and the copies that staging and
// work lists need on the CPU. Knows arrays and lengths; the caller has checked them. Each field
// names its thread where it is not the caller's.

#ifndef AULE_ENGINE_BATCH_H
#define AULE_ENGINE_BATCH_H

#include "cache.h"
#include "lists.h"
#include "sharing.h"

#include <stdatomic.h>

// The arrays on the GPU, named as in struct gpu_run.
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

// A block table on the GPU. The steps of a batch share it. An entry changes in place if no
// unfinished run can read it, that is, beyond the columns in `seen`. Replacing an entry that
// unfinished runs can still read copies the table first. An entry that becomes -1 keeps its old
// value here, because no run of a later step reads it. So the table may hold blocks that the batch
// no longer names. Caller's thread, except `users`.
struct table {
    struct piece piece; // owned
    atomic_uint users;  // number of batches that use the table; any thread
    // [num_seqs, max_blocks]: the same entries for the planner, because reading `piece` is slow;
    // NULL if no sequence is searched for shared keys; owned. The submitter reads the columns that
    // a step can read, while the caller's thread changes others.
    int32_t *rows;
    // [num_seqs]: leading columns that some step so far can read; NULL until the second step;
    // owned.
    uint32_t *seen;
};

struct engine_batch {
    struct engine *engine;
    struct engine_cache *cache; // NULL unless ENGINE_POOL
    enum engine_place place;
    struct engine_kv kv;
    uint32_t num_seqs, max_blocks, num_tokens;
    uint64_t num_keys;              // of all sequences together
    struct table *table;            // counted in its `users`; NULL = no table
    struct piece piece;             // all arrays except the table; owned
    uint64_t address[BATCH_ARRAYS]; // 0 = the array is absent

    // Copies on the CPU; owned.
    int32_t *cu_seqlens_q;       // [num_seqs + 1]; NULL without sequences
    int32_t *seq_lens_kv;        // [num_seqs]; NULL in a batch that only writes
    int32_t *q_lens, *kv_starts; // [num_seqs]; NULL = absent
    int32_t *token_rows;         // [num_tokens]; NULL = absent
    int64_t *slots;              // ENGINE_BLOCKS: [num_tokens]; NULL = nothing is written
    // ENGINE_BLOCKS: [num_blocks], all blocks that a query sees; some others may be among them.
    int32_t *blocks;
    uint64_t num_blocks;              // submitter only
    bool blocks_sorted;               // `blocks` is sorted and has no duplicates; submitter only
    uint64_t serial;                  // differs from that of all other batches of the engine
    bool sharing_known;               // `sharing` was copied from the step before
    struct sharing sharing;           // sequences with few queries, by their leading blocks
    bool checked;                     // the next two fields are set; caller's thread, like them
    struct cutting checked_cutting;   // of the run that was checked last
    struct partials checked_partials; // the partial results that it makes
    struct lists lists;               // work lists, made by plan/items.h; submitter only
    uint64_t last_sequence; // of the last submission that uses the batch, 0 = none; caller's thread
    struct job end;
    struct engine_batch *prev, *next;
};

// Frees `batch` now. No thread and no submission uses it.
void batch_free(struct engine_batch *batch);
// Columns of the block table that hold keys of the sequence.
uint32_t batch_num_columns(const struct engine_batch *batch, uint32_t seq);
// Number of the sequence's queries: its tokens, or q_lens if the batch has them.
uint32_t batch_num_queries(const struct engine_batch *batch, uint32_t seq);
// ENGINE_BLOCKS: sorts `blocks` and drops duplicates. Submitter only.
void batch_sort_blocks(struct engine_batch *batch);

#endif
