// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// draft_blocks.h - the blocks and slots of a draft: which the session may read and write, and which
// the batch names.

#ifndef AULE_CORE_DRAFT_BLOCKS_H
#define AULE_CORE_DRAFT_BLOCKS_H

#include "draft.h"

uint32_t draft_num_used(const struct draft *draft, int32_t seq_len); // columns
// Why the session may not read block `id`.
enum status draft_entry_status(const struct draft *draft, int32_t id);
enum status draft_entry_error(const struct draft *draft, enum status status, uint32_t s, uint32_t i,
                              int32_t id);
enum status draft_check_missing(struct draft *draft, uint32_t s,
                                uint32_t entries); // that its row begins with
void draft_note_hole(const struct draft *draft, uint32_t s, uint32_t entry, int32_t id);
uint32_t draft_count_missing(const int32_t *row, uint32_t visible);

// The table entries of sequence `s` that a run can read, and all slots; then what the slots write
// is named, too.
enum status draft_check_entries(struct draft *draft, uint32_t s);
enum status draft_check_slots(struct draft *draft);
enum status draft_name_writes(struct draft *draft);

#endif
