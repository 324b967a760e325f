// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// draft_step.h - the draft of the next step of a batch that has names.

#ifndef AULE_CORE_DRAFT_STEP_H
#define AULE_CORE_DRAFT_STEP_H

#include "draft.h"

// What `changes` says is in the draft's table already; the draft's batch has of the
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

#endif
