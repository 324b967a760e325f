// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// draft_blocks.h - checks the block table entries and slots of a draft: may the session read and
// write these blocks? It also lists the blocks that the batch names. Knows holds and seals, not how
// long sequences may be. Dispatcher thread, or any with a sketch of the hold table; but
// draft_check_written() only the dispatcher.

#ifndef AULE_CORE_DRAFT_BLOCKS_H
#define AULE_CORE_DRAFT_BLOCKS_H

#include "draft.h"

// Columns of the block table that a sequence of `seq_len` tokens reaches.
uint32_t draft_num_used(const struct draft *draft, int32_t seq_len);
// Why the session may not read block `id`: OUT_OF_RANGE or NOT_HELD.
enum status draft_entry_status(const struct draft *draft, int32_t id);
// Sets the error for block_table[s][i] = id and returns its status.
enum status draft_entry_error(const struct draft *draft, enum status status, uint32_t s, uint32_t i,
                              int32_t id);
// The row of sequence `s` begins with `entries` times -1. Notes which windows hide these entries,
// or fails if none does.
enum status draft_check_missing(struct draft *draft, uint32_t s, uint32_t entries);
// Notes an entry for batch->hole, unless one is noted already.
void draft_note_hole(const struct draft *draft, uint32_t s, uint32_t entry, int32_t id);
// How many of row[0 .. visible) are -1 before the first other value.
uint32_t draft_count_missing(const int32_t *row, uint32_t visible);

// Call these in this order: the entries of each sequence, all slots, then naming the blocks that
// the slots write, and whether the session may write them.
enum status draft_check_entries(struct draft *draft, uint32_t s);
enum status draft_check_slots(struct draft *draft);
enum status draft_name_writes(struct draft *draft);
enum status draft_check_written(struct draft *draft, const struct hold_table *table);

#endif
