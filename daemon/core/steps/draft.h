// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// draft.h - a batch while its metadata is checked. This file has the checks of lengths and numbers,
// draft_blocks.h those of blocks and slots, draft_step.h those of a next step. Knows what the
// session may read and write, not what the engine supports. Dispatcher thread, except
// draft_check_arrays().

#ifndef AULE_CORE_DRAFT_H
#define AULE_CORE_DRAFT_H

#include "batch.h"

// How a check marks what it has seen:
// - a named block of the cache: the `seen` bit in the hold table;
// - a written block of the cache: block->stamp is draft->stamp, and block->mark is the block's
// place
//   in batch->writes plus 1. While the table is a sketch, an entry in draft->places instead;
// - a written slot in the arena: an entry in draft->seen.
struct draft_write {
    int32_t id;   // of a block that is written
    uint32_t row; // the first row of slot_mapping that does
};
struct draft {
    const struct core_batch_params *params;
    struct core_session *session;
    const struct hold_table *table;   // the session's, or a sketch; NULL: K and V lie in the arena
    uint64_t num_ids;                 // of the cache, when the check began
    struct batch *batch;              // the batch that the checks fill; the caller's
    uint32_t block_size, block_shift; // tokens, and log2; ENGINE_ROWS: 0
    uint32_t num_blocks;              // ENGINE_BLOCKS: of the block tensors in the arena
    uint64_t stamp;                   // of this check
    uint64_t *seen;  // [num_seen] hash table of slots in the arena, each plus 1; 0 = free; owned
    size_t num_seen; // a power of two
    struct draft_write *writes; // [batch->num_writes] those of batch->writes; owned
    uint32_t *places;           // [num_places] hash table of them, each plus 1; 0 = free; owned
    uint32_t num_places;        // a power of two, or 0
    uint32_t last_write;        // the place in `writes` of the last slot
    struct error *error;
};

// The three parts of checking all metadata; they fill the batch, except its engine's part. Later
// checks rely on earlier ones.
// Which arrays there are, their lengths and the session's memory. Reads no array.
enum status draft_check_sizes(struct draft *draft);
// What the arrays say. Any thread, if draft->table is a sketch: reads nothing of core that changes.
enum status draft_check_arrays(struct draft *draft);
// What may have changed meanwhile: the session still holds the blocks, and may write those that the
// batch writes.
enum status draft_check_rights(struct draft *draft, const struct hold_table *table);
// Call this after all checks, whatever they returned. Clears the marks.
void draft_finish(struct draft *draft);

enum status draft_check_length(const char *name, uint64_t has, uint64_t wanted,
                               struct error *error);
enum status draft_check_step_numbers(struct draft *draft); // of a next step: memory and positions
// For each sequence: draft_check_seq_len(), then the checks of its block table entries, then
// draft_end_sequence(), which checks the slots against the length and adds up the work.
enum status draft_check_seq_len(const struct draft *draft, uint32_t s);
enum status draft_end_sequence(const struct draft *draft, uint32_t s);

enum status draft_no_memory(const struct draft *draft);
uint32_t draft_q_len(const struct draft *draft, uint32_t s); // queries of sequence `s`
uint32_t draft_rows(const struct draft *draft, uint32_t s);  // its rows, at least as many
// The row of token `t` in the run's tensors, in slot_mapping and in positions.
uint32_t draft_row(const struct draft *draft, uint32_t t);

#endif
