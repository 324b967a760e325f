// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// draft_step.h - checks the next step of a batch in a cache. It reads all lengths, all slots, and
// only those block table entries that change or come within their sequence's length. Its result
// says which blocks are mentioned more and which less (mentions.h); it counts nothing itself.
// Dispatcher thread only.

#ifndef AULE_CORE_DRAFT_STEP_H
#define AULE_CORE_DRAFT_STEP_H

#include "draft.h"

// One change of the block table.
struct draft_change {
    uint32_t seq, column; // the entry
    uint32_t index;       // of the change in core_advance.entries
    int32_t was;          // the entry before this change
};
// A list of block ids; a block occurs once for each mention.
struct draft_pile {
    int32_t *blocks; // [capacity], the first `count` used; freed by the caller of the check
    size_t count, capacity;
};
struct draft_step {
    struct draft *draft;                // its params and block table are the next step's
    const struct batch *old;            // the step before
    const struct draft_change *changes; // [num_changes], sorted by seq, column, index; already made
    uint32_t num_changes, next_change;  // next_change: of the sequence that is checked next
    struct named_columns *named_columns; // [num_seqs], filled by the check; the caller's
    struct draft_pile adds, drops;       // mentions that the next step adds, that it drops
};
// draft->batch must already have what does not change from `old`.
enum status draft_check_step(struct draft_step *step);

#endif
