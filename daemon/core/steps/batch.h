// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// batch.h - one model step's metadata after it was checked: which blocks it names and which slots
// it writes, or how far into the session's own K and V it reaches. The arrays themselves are with
// the engine.

#ifndef AULE_CORE_BATCH_H
#define AULE_CORE_BATCH_H

#include "core/pool/hold.h"
#include "core/pool/names.h"

// Rows of the block table that begin with -1. Only a run whose window_left is from 0 to `max_left`
// sees none of the keys there. The strictest row decides, and is the one that a sentence names.
struct missing {
    uint32_t num_entries; // of that row; 0 = no row begins so
    uint32_t seq;
    int64_t max_left; // tokens, at least 0
};

// The first entry that no query sees, a gather would read, and that names no block which the
// session may read.
struct hole {
    bool there;
    uint32_t seq, entry;
    int32_t id;
};

// What the attention shaders compute at once: a query row or a key that stands alone costs as much
// as a whole tile.
enum { BATCH_TILE_ROWS = 8, BATCH_TILE_KEYS = 512 };

struct batch {
    UT_hash_handle hh; // session->batches until destroyed
    uint64_t id;
    struct core_session *session;
    struct hold_table *table; // NULL: K and V lie in the session's arena
    enum engine_place place;
    struct engine_kv kv;
    struct engine_batch *engine; // owned
    uint32_t users;              // 1 until destroyed, and one a run that is not over
    bool has_keys;               // seq_lens_kv was given; without, it only writes
    bool has_slots, has_mask, has_positions, has_token_rows, has_kv_starts;
    struct missing missing;
    struct hole hole;
    uint32_t num_seqs, num_tokens;
    uint32_t max_rows;    // of one sequence in q, queries or not
    uint32_t max_seq_len; // keys
    uint64_t end_block;   // ENGINE_BLOCKS: the largest id that a run can touch, plus 1
    uint64_t end_row;     // ENGINE_ROWS: the same for rows without an outer stride
    uint64_t bytes; // of its arrays, which count for the session until the engine has ended it;
                    // with the next two
    uint64_t
        table_bytes;   // of the engine's block table; of the steps that share one the oldest has it
    bool shares_table; // with the step before, which lives
    uint64_t kept_bytes; // of what is for the next step, of the newest one
    uint64_t attended;   // tokens: sum of q_len * seq_len, at least 1
    uint64_t causal;     // of them, what a causal run without positions sees
    uint64_t keys; // of sequences with queries: sum of seq_len in whole tiles of BATCH_TILE_KEYS
    uint64_t all_keys;   // sum of seq_len: rows of a gather
    uint64_t local_keys; // of them in the arena, in whole blocks: a mirrored one copies these for
                         // every run
    uint64_t seals;      // the cache's counter when none of `writes` was sealed
    int32_t *blocks;     // each block of the cache that it names, once; referenced
    uint32_t num_blocks, block_capacity;
    uint64_t num_again;    // how often more it names them, in entries and slots
    struct block **writes; // those that it writes
    uint8_t *masks;        // [num_writes, block_size / 8]: the slots it writes
    uint32_t num_writes, write_capacity;

    // For the next step: of the newest one only.
    struct core_batch_params
        kept;             // as it was made, but for what no later step needs: slots and the mask
    int32_t *kept_arrays; // owned: all that `kept` points to, and of that the next three
    int32_t *kept_lens, *kept_table, *kept_positions;
    uint32_t num_layout_blocks; // of the block tensors in the arena
    struct named *named;        // [num_seqs] once it has advanced; owned
    // Its steps, by age, as long as they live: one that has advanced lives while it has runs.
    uint64_t step;
    struct batch *older, *newer;
    struct names *names; // the newest one's: instead of `blocks`, of a batch in a cache that has
                         // advanced; owned
    struct names_left
        *left; // blocks that it named and the next step did not, each with a reference; owned
};

// Columns [from, to) of a sequence's row of the table are named by the batch.
struct named {
    uint32_t from, to;
    bool is_query; // the sequence has some: then entries before `from` are -1, else what is at `to`
                   // may not be read
};

// A new one from checked parameters, under the id of `old`, which it replaces; NULL: under an id of
// its own. On failure nothing has changed.
enum status batch_make(struct core_session *session, const struct core_batch_params *params,
                       struct batch *old, struct batch **out, struct error *error);
enum status batch_find(struct core_session *session, uint64_t id, struct batch **out,
                       struct error *error);
// The next step of `old`, in two: room among the session's batches, where nobody looks for it yet
// (NO_MEMORY: nothing has changed), then it takes its place, or with batch_withdraw() leaves the
// room. In between only the engine's part is made.
enum status batch_enter(struct batch *next, const struct batch *old, struct error *error);
void batch_succeed(struct batch *next, struct batch *old);
void batch_withdraw(struct batch *next);
uint64_t batch_bytes(const struct batch *batch); // that count for the session, but for names
void batch_discard(struct batch *batch);         // one that was never registered; takes NULL
void batch_destroy(struct batch *batch);         // its runs finish first
void batch_unref(struct batch *batch);
// SEALED if a block that it writes was sealed since it was created.
enum status batch_check_seals(struct batch *batch, struct error *error);

#endif
