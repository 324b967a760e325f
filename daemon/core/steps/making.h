// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// making.h - a batch that is being made, in three parts: what is known without the arrays, what the
// arrays say, and what the session may do now. The dispatcher does the first and the last; if the
// arrays are large, another thread does the part between. Then core gives that thread a sketch of
// what the session holds, and nothing that the dispatcher changes meanwhile. The functions of
// core.h over a core_draft are in making.c.

#ifndef AULE_CORE_MAKING_H
#define AULE_CORE_MAKING_H

#include "draft.h"

struct core_draft {
    struct core_draft *prev, *next; // session->drafts, if another thread fills it
    struct core_session *session;
    struct batch *batch;             // owned until it is registered
    struct batch *old;               // the step that it replaces; NULL: none
    struct core_batch_params params; // `layout` only until making_open() has returned
    struct draft draft;
    // Only if another thread fills it.
    struct hold_table *table;    // of the batch; it has a user for the draft
    struct hold_table *sketch;   // of `table`; owned
    uint8_t *whole;              // block_whole_bits() at the begin; owned
    struct core_advance advance; // if it has `old`, which has a user for the draft, too
    int32_t *arrays;             // of the next step; owned
};

// Finds the place of K and V, and checks the sizes.
enum status making_open(struct core_draft *making, struct error *error);
// Checks the arrays, and makes the engine's batch. Any thread, if the draft has a sketch.
enum status making_fill(struct core_draft *making, struct error *error);
// Checks the rights, and registers the batch. On failure nothing has changed.
enum status making_close(struct core_draft *making, struct error *error);
// Ends a draft that another thread has filled; the session may be freed after it.
void making_discard(struct core_draft *making);

#endif
