// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// audit_session.h - the part of the audit that counts again what sessions count: held blocks, users
// of tables, batch memory, runs, tickets and offers. Also what both parts use. See audit.h.

#ifndef AULE_CORE_AUDIT_SESSION_H
#define AULE_CORE_AUDIT_SESSION_H

#include "core/core.h"
#include "core/turns/heap.h"

struct run;

// For a function with a `struct error *error` that returns false if a counter is wrong.
#define EXPECT(condition, ...)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            error_set(error, STATUS_INTERNAL, __VA_ARGS__);                                        \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

static inline bool in_heap(const struct heap *heap, const struct heap_node *node)
{
    return node->place && node->place <= heap->size && heap->entries[node->place - 1].node == node;
}

// True if `run` is the session's first run of a batch that is not registered: a destroyed one or an
// earlier step. With the registered batches, these runs then name every live batch once.
bool audit_first_mention(const struct core_session *session, const struct run *run);

// The batch that the draft advances, if neither the session nor a run has it any more; else NULL.
const struct batch *audit_kept_by(const struct core_draft *draft);

// False: *error names the first counter that is wrong.
bool audit_sessions(const struct core *core, struct error *error);

#endif
