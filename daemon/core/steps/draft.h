// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// draft.h - a batch while its metadata is checked. This file has the checks of lengths and numbers,
// draft_blocks.h those of blocks and slots, draft_step.h those of a next step. Knows what the
// session may read and write, not what the engine supports. Dispatcher thread only.

#ifndef AULE_CORE_DRAFT_H
#define AULE_CORE_DRAFT_H

#include "batch.h"

// How a check marks what it has seen:
// - a named block of the cache: the `seen` bit in the hold table;
// - a written block of the cache: block->stamp is draft->stamp, and block->mark is the block's
//   place in batch->writes plus 1;
// - a written slot in the arena: an entry in draft->seen.
struct draft {
    const struct core_batch_params *params;
    struct core_session *session;
    const struct hold_table *table;   // NULL: K and V lie in the arena
    struct batch *batch;              // the batch that the checks fill; the caller's
    uint32_t block_size, block_shift; // tokens, and log2; ENGINE_ROWS: 0
    uint32_t num_blocks;              // ENGINE_BLOCKS: of the block tensors in the arena
    uint64_t stamp;                   // of this check
    uint64_t *seen;  // [num_seen] hash table of slots in the arena, each plus 1; 0 = free; owned
    size_t num_seen; // a power of two
    struct error *error;
};

// Checks all metadata and fills the batch, except its engine's part. Later checks rely on earlier
// ones.
enum status draft_check(struct draft *draft);
// Call this after draft_check(), whatever it returned. Clears the marks.
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
