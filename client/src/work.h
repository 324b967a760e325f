// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// work.h - a command that queues something on the GPU and is answered by a ticket: a run, a copy of
// blocks, a merge.

#ifndef AULE_CLIENT_WORK_H
#define AULE_CLIENT_WORK_H

#include "caller.h"
#include "metadata.h"

enum { WORK_MAX_ARRAYS = 4 };

struct work {
    struct wire_request request;
    int32_t *timeout_ms; // inside the request, as are the others that point
    uint32_t *flags;
    const char *what; // the arrays' name in a sentence
    uint32_t num_arrays;
    struct vector
        arrays[WORK_MAX_ARRAYS]; // they go through the arena, for as long as the call takes
    struct wire_span *spans[WORK_MAX_ARRAYS];
};

// Queues it, waiting up to timeout_ms for a ticket; *id is the daemon's. `id` NULL: nobody will
// wait. AULE_BUSY: nothing was queued. Between attachment_enter() and attachment_leave().
enum aule_status work_submit(struct attachment *attachment, struct work *work, int timeout_ms,
                             uint64_t *id);

// Queues a run and waits for its end, for timeout_ms in all. AULE_BUSY: nothing was queued.
// AULE_TIMEOUT: nobody can wait for it any more.
enum aule_status work_run(struct attachment *attachment, struct work *work, int timeout_ms,
                          const struct caller_result *result);

// What every public call that queues work of `attachment` does: timeout_check(),
// attachment_enter(), work_submit(), attachment_leave(), and a ticket (NULL: none is wanted).
enum aule_status work_queue(struct attachment *attachment, struct work *work, int timeout_ms,
                            struct aule_ticket *ticket);

struct wire_tensor work_tensor(const struct aule_tensor *tensor);

#endif
