// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// batch.h - the checked metadata of one model step: which blocks it names and which slots it
// writes, or how far it reaches into K and V in the arena. The engine has the arrays themselves.
// Knows blocks and holds, not runs, which only count as users. Dispatcher thread only.
// A batch that advances becomes a chain of steps, one struct batch each: the newest step is
// registered under the id, and an older one lives while it has runs.

#ifndef AULE_CORE_BATCH_H
#define AULE_CORE_BATCH_H

#include "core/pool/hold.h"
#include "core/pool/mentions.h"

// Some rows of the block table may begin with entries of -1. A run may use the batch only if its
// window hides these entries: window_left from 0 to `max_left`. The struct describes the row with
// the smallest max_left; error texts name this row.
struct missing {
    uint32_t num_entries; // entries of -1 that the row begins with; 0 = no row does
    uint32_t seq;         // the row
    int64_t max_left;     // tokens, at least 0
};

// The first block table entry that no query sees and whose block the session may not read.
// Attention may use such a batch; a gather may not, because it reads all entries.
struct hole {
    bool there; // there is such an entry
    uint32_t seq, entry;
    int32_t id; // what the entry says
};

// Tile sizes for estimates of work (weight.c): about what the attention shaders compute at once. A
// single row or key costs as much as a whole tile.
enum { BATCH_TILE_ROWS = 8, BATCH_TILE_KEYS = 512 };

struct batch {
    UT_hash_handle hh; // in session->batches, by id, while registered
    uint64_t id;
    struct core_session *session;
    struct hold_table *table; // of the cache; NULL: K and V lie in the session's arena
    enum engine_place place;
    struct engine_kv kv;
    struct engine_batch *engine; // the arrays; owned
    uint32_t users;              // 1 while registered, and 1 for each run that is not over
    bool has_keys;               // seq_lens_kv was given; false: only ENGINE_WRITE runs may use it
    bool has_slots, has_mask, has_positions, has_token_rows, has_kv_starts;
    struct missing missing;
    struct hole hole;
    uint32_t num_seqs, num_tokens;
    uint32_t max_rows;    // rows of q that the longest sequence has, queries or not
    uint32_t max_seq_len; // keys of the longest sequence
    uint64_t end_block;   // ENGINE_BLOCKS: runs touch blocks [0, end_block)
    uint64_t end_row;     // ENGINE_ROWS without an outer stride: runs touch rows [0, end_row)

    // Bytes that count in session->memory.batches until the batch is freed; see batch_bytes().
    uint64_t bytes;       // of the engine's arrays, without the block table
    uint64_t table_bytes; // of the engine's block table; 0 if shares_table
    bool shares_table;    // this step uses the block table of the step before, which still has runs
    uint64_t kept_bytes;  // of `kept_arrays` and `named_columns`; 0 unless this is the newest step

    // Sums over the sequences, for weight.c.
    uint64_t attended; // tokens: q_len * seq_len; at least 1
    uint64_t causal;   // tokens: pairs of query and key that a causal run without positions sees
    uint64_t keys;     // seq_len in whole tiles of BATCH_TILE_KEYS, of sequences with queries
    uint64_t all_keys; // seq_len: rows of a gather
    // Tokens of all_keys that the batch names again, or that lie behind the end of a sequence's
    // last block (then negative): counted when the batch was created.
    int64_t again_tokens;
    uint64_t local_keys; // seq_len in whole blocks, if K and V lie in the arena; else 0

    // Blocks of the cache.
    uint64_t seals;  // cache->seals at the last check, when none of `writes` was sealed
    int32_t *blocks; // [num_blocks] the blocks that it names, each once, referenced; owned
    uint32_t num_blocks, block_capacity;
    uint64_t num_again;    // mentions of these blocks beyond the first mention of each
    struct block **writes; // [num_writes] blocks that it writes; owned
    uint8_t *write_masks;  // [num_writes, block_size / 8] a bit for each slot that it writes; owned
    uint32_t num_writes, write_capacity;
    int64_t began_ns;            // when its first run that writes was accepted; 0: none was
    uint32_t num_layers_written; // by runs that succeeded
    bool reserves; // the slots of write_masks are reserved: it is registered and has not run yet

    // Kept for the next step. Only the newest step has these.
    struct core_batch_params kept; // its params without slots and mask; kept.layout is NULL
    int32_t *kept_arrays;          // one allocation with all arrays of `kept`; owned
    int32_t *kept_lens, *kept_table, *kept_positions; // those of them that change; in kept_arrays
    uint32_t *kept_whole; // [num_seqs] columns that reads.c has found whole; likewise
    uint64_t unwholes;    // tenant->unwholes when it did; if that changes, kept_whole is void
    // [num_layers of the cache, num_seqs] the same for blocks that are written in one layer; NULL
    // until a run has found one that is not whole; owned. Void if tenant->unwrites changes.
    uint32_t *kept_full;
    uint64_t unwrites;
    uint32_t num_layout_blocks;          // core_layout.num_blocks
    struct named_columns *named_columns; // [num_seqs] once it has advanced; owned

    // The chain of steps that live.
    uint64_t step; // number of this step, from 0
    struct batch *older, *newer;
    struct mentions *mentions; // the newest step's, once a batch of a cache has advanced; then
                               // `blocks` is NULL; owned
    struct mentions_dropped *dropped; // blocks that this step names and the next does not; owned
};

// The columns of a sequence's block table row whose blocks the step references: [from, to).
struct named_columns {
    uint32_t from, to;
    // True: the sequence has queries. Then entries before `from` are -1, and `to` is the sequence's
    // end. False: `from` is 0, and `to` is the first entry that the session may not read, or the
    // sequence's end.
    bool is_query;
};

// Makes a batch from `params`, which are not checked yet. The new batch replaces `old` under the
// same id; `old` NULL: it gets an id of its own. On failure nothing has changed.
enum status batch_make(struct core_session *session, const struct core_batch_params *params,
                       struct batch *old, struct batch **out, struct error *error);
// LIMIT: the session has all its batches. DEVICE_LOST.
enum status batch_check_number(const struct core_session *session, struct error *error);
enum status batch_find(struct core_session *session, uint64_t id, struct batch **out,
                       struct error *error);
// Registering the next step of `old` takes two calls, because the engine's part is made in between
// and may fail. batch_enter() reserves the place in session->batches; NO_MEMORY: nothing has
// changed. Then batch_succeed() puts `next` in the place of `old`, or batch_withdraw() undoes
// batch_enter(). Nothing may look the batch up in between.
enum status batch_enter(struct batch *next, const struct batch *old, struct error *error);
void batch_succeed(struct batch *next, struct batch *old);
void batch_withdraw(struct batch *next);
// Bytes of the batch in session->memory.batches, without its `mentions` and `dropped`.
uint64_t batch_bytes(const struct batch *batch);
bool batch_has_whole(const struct batch *batch); // it has `kept_whole`
// Makes `kept_full`. False: no memory, or --max-batch-memory; nothing has changed.
bool batch_keep_full(struct batch *batch);
// The columns of the sequence from `column` on may have other blocks than reads.c has seen.
void batch_forget_columns(const struct batch *batch, uint32_t seq, uint32_t column);
void batch_discard(struct batch *batch); // frees one that was never registered; takes NULL
// Unregisters the batch. It is freed when its last run is over.
void batch_destroy(struct batch *batch);
void batch_unref(struct batch *batch); // one user less; the last one frees it
// Reserves the slots that the batch writes, so that no other batch may write them before it runs.
// They must be free. Runs of a session are ordered, so a slot may be written again after that. A
// batch without keys, an import, neither reserves slots nor heeds those of others: it runs at once.
void batch_reserve(struct batch *batch);
void batch_unreserve(struct batch *batch); // if they are reserved
// SEALED if a block that it writes was sealed after the batch was created.
enum status batch_check_seals(struct batch *batch, struct error *error);

#endif
