// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// draft.h - a batch under construction: its lengths and numbers, and what draft_blocks.h (blocks
// and slots) and draft_step.h share with it.

#ifndef AULE_CORE_DRAFT_H
#define AULE_CORE_DRAFT_H

#include "batch.h"

// Blocks of the cache that it names are `seen` in the session's hold table; those that it writes
// carry its stamp, and in `mark` their place in batch->writes, plus one. Slots of the session's own
// block tensors stand in a table of its own.
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

// Everything, in the order in which each check may rely on those before it. Fills the batch but for
// its engine's part.
enum status draft_check(struct draft *draft);
void draft_finish(struct draft *draft); // forgets what was seen; the batch keeps its own

enum status draft_check_length(const char *name, uint64_t has, uint64_t wanted,
                               struct error *error);
enum status draft_check_step_numbers(struct draft *draft); // memory and positions
// Lengths of sequence `s` before its entries, and what depends on both after them.
enum status draft_check_seq_len(const struct draft *draft, uint32_t s);
enum status draft_end_sequence(const struct draft *draft, uint32_t s);

enum status draft_no_memory(const struct draft *draft);
// How many rows of sequence `s` are queries; all its rows.
uint32_t draft_q_len(const struct draft *draft, uint32_t s);
uint32_t draft_rows(const struct draft *draft, uint32_t s);
// Where token `t` lies in the run's tensors, in slot_mapping and in positions.
uint32_t draft_row(const struct draft *draft, uint32_t t);

#endif
