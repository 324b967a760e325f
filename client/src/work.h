// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// work.h - a command that queues GPU work and gets a ticket: a run, a copy of blocks, a merge.

#ifndef AULE_CLIENT_WORK_H
#define AULE_CLIENT_WORK_H

#include "caller.h"
#include "metadata.h"

enum { WORK_MAX_ARRAYS = 4 };

struct call_work {
    struct wire_request request;
    int32_t *timeout_ms; // inside the request, like `flags` and `spans`
    uint32_t *flags;
    const char *what; // the arrays' name in a sentence
    uint32_t num_arrays;
    struct vector arrays[WORK_MAX_ARRAYS]; // they lie in the arena during the call
    struct wire_span *spans[WORK_MAX_ARRAYS];
};

// Queues the work, between life_enter() and life_leave(). Waits up to timeout_ms for a
// free ticket. *id is the daemon's ticket; `id` NULL: no call will wait for it. AULE_BUSY: no
// ticket came free, and nothing was queued.
enum aule_status work_submit(struct life *life, struct call_work *work, int timeout_ms,
                             uint64_t *id);

// Queues a run and waits for its end, for timeout_ms in all. AULE_BUSY: nothing was queued.
// AULE_TIMEOUT: the run may go on, but its ticket is abandoned.
enum aule_status work_run(struct life *life, struct call_work *work, int timeout_ms,
                          const struct caller_result *result);

// The body of a public call that queues work: timeout_check(), life_enter(), work_submit(),
// life_leave(). Fills *ticket unless it is NULL.
enum aule_status work_queue(struct life *life, struct call_work *work, int timeout_ms,
                            struct aule_ticket *ticket);

struct wire_tensor work_tensor(const struct aule_tensor *tensor);

#endif
