// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// draft.h - a batch under construction: what batch.c, draft.c (lengths and numbers) and draft_blocks.c (blocks and slots) share.

#ifndef AULE_CORE_DRAFT_H
#define AULE_CORE_DRAFT_H

#include "batch.h"

// Blocks of the cache that it names are `seen` in the session's hold table; those that it writes carry its stamp, and in `mark` their place in
// batch->writes, plus one. Slots of the session's own block tensors stand in a table of its own.
struct draft {
    const struct core_batch_params *params;
    struct core_session *session;
    const struct hold_table *table; // NULL: K and V lie in the arena
    struct batch *batch;
    uint32_t block_size, block_shift; // of ENGINE_ROWS: 0
    uint32_t num_blocks;              // of the session's own block tensors
    uint64_t stamp;
    uint64_t *seen; // [num_seen], a power of two: hash table of local slots, each plus 1; owned
    size_t num_seen;
    struct error *error;
};

// Everything, in the order in which each check may rely on those before it. Fills the batch but for its engine's part.
enum status draft_check(struct draft *draft);
void draft_finish(struct draft *draft); // forgets what was seen; the batch keeps its own

// draft_step.c: the next step of a batch that has names. What `changes` says is in the draft's table already; the draft's batch has of the
// step before what does not change.
struct draft_change {
    uint32_t seq, column, index; // in this order; the index is that of the caller's list
    int32_t was;                 // before that change
};
struct draft_pile {
    int32_t *blocks; // owned
    size_t count, capacity;
};
struct draft_step {
    struct draft *draft;
    const struct batch *old;
    const struct draft_change *changes; // [num_changes]
    uint32_t num_changes, next_change;
    struct named *named;           // [num_seqs], to be filled
    struct draft_pile adds, drops; // what is named once more, once less; owned by whoever began
};
enum status draft_check_step(struct draft_step *step);

enum status draft_check_length(const char *name, uint64_t has, uint64_t wanted, struct error *error); // draft.c
enum status draft_check_step_numbers(struct draft *draft); // draft.c: memory and positions
// Lengths of sequence `s` before its entries, and what depends on both after them.
enum status draft_check_seq_len(const struct draft *draft, uint32_t s);
enum status draft_end_sequence(const struct draft *draft, uint32_t s);
uint32_t draft_num_used(const struct draft *draft, int32_t seq_len); // columns

// draft_blocks.c: why the session may not read block `id`.
enum status draft_entry_status(const struct draft *draft, int32_t id);
enum status draft_entry_error(const struct draft *draft, enum status status, uint32_t s, uint32_t i, int32_t id);
enum status draft_check_missing(struct draft *draft, uint32_t s, uint32_t entries); // that its row begins with
void draft_note_hole(const struct draft *draft, uint32_t s, uint32_t entry, int32_t id);
uint32_t draft_count_missing(const int32_t *row, uint32_t visible);

// draft_blocks.c: the table entries of sequence `s` that a run can read, and all slots; then what the slots write is named, too.
enum status draft_check_entries(struct draft *draft, uint32_t s);
enum status draft_check_slots(struct draft *draft);
enum status draft_name_writes(struct draft *draft);

enum status draft_no_memory(const struct draft *draft);
// How many rows of sequence `s` are queries; all its rows.
uint32_t draft_q_len(const struct draft *draft, uint32_t s);
uint32_t draft_rows(const struct draft *draft, uint32_t s);
// Where token `t` lies in the run's tensors, in slot_mapping and in positions.
uint32_t draft_row(const struct draft *draft, uint32_t t);

#endif
