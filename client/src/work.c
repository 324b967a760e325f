// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// work.c - see work.h. The daemon checks what a command asks. Any thread.

#include "work.h"

#include "error.h"
#include "ticket.h"

enum { SLICE_MS = 500 }; // long enough for a waiting command to keep its turn in most cases

struct wire_tensor work_tensor(const struct aule_tensor *tensor)
{
    return (struct wire_tensor){.memory = tensor->memory,
                                .dtype = tensor->dtype,
                                .offset = tensor->offset,
                                .token_stride = tensor->token_stride,
                                .head_stride = tensor->head_stride,
                                .outer_stride = tensor->outer_stride};
}

// After AULE_OK the arrays lie in the arena until metadata_finish().
static enum aule_status prepare(struct attachment *attachment, struct work *work, int timeout_ms,
                                bool detached, struct metadata *metadata)
{
    enum aule_status status =
        metadata_place(attachment, work->arrays, work->num_arrays, work->what, metadata);
    if (status != AULE_OK)
        return status;
    for (uint32_t i = 0; i < work->num_arrays; i++)
        *work->spans[i] = work->arrays[i].span;
    *work->timeout_ms = timeout_ms;
    *work->flags =
        (*work->flags & ~(uint32_t)WIRE_RUN_DETACHED) | (detached ? WIRE_RUN_DETACHED : 0u);
    return AULE_OK;
}

static enum aule_status send_work(struct attachment *attachment, struct work *work, int timeout_ms,
                                  uint64_t *id)
{
    struct metadata metadata;
    struct answer answer;
    enum aule_status status = prepare(attachment, work, timeout_ms, !id, &metadata);
    if (status != AULE_OK)
        return status;
    status = attachment_call(attachment, &work->request, timeout_ms, WIRE_ANSWER_RUN, &answer);
    metadata_finish(attachment, &metadata);
    if (status != AULE_OK)
        return status;
    uint64_t ticket = answer.reply.run.ticket;
    answer_finish(&answer);
    if (id)
        *id = ticket;
    return ticket_check(ticket);
}

// ---- waiting for a free ticket ----
// A command that waits in the daemon for a free ticket reaps no abandoned tickets. Other threads
// may abandon some meanwhile. So if there are abandoned tickets, work does not wait in the daemon;
// otherwise it waits there one slice at a time.

static struct timeout begin_slice(const struct timeout *timeout)
{
    int left_ms = timeout_left(timeout);
    return timeout_start(left_ms < 0 || left_ms > SLICE_MS ? SLICE_MS : left_ms);
}

// True: no ticket came free in the whole slice, and time is left. If the daemon refused sooner, it
// is not asked again.
static bool goes_on(enum aule_status status, const struct timeout *slice,
                    const struct timeout *timeout)
{
    return status == AULE_BUSY && timeout_left(slice) == 0 && timeout_left(timeout) != 0;
}

// AULE_BUSY: no ticket is free, and none is abandoned, or the wait for an abandoned one failed.
static enum aule_status submit_after_abandoned(struct attachment *attachment, struct work *work,
                                               const struct timeout *timeout, uint64_t *id)
{
    uint64_t abandoned;
    enum aule_status status = AULE_BUSY, waited;
    ticket_reap_abandoned(attachment);
    while (status == AULE_BUSY && ticket_take_abandoned(attachment, &abandoned)) {
        status = send_work(attachment, work, 0, id);
        if (status != AULE_BUSY)
            ticket_abandon(attachment, abandoned);
        else if (!ticket_reap_own(attachment, abandoned, timeout_left(timeout), NULL, &waited))
            break;
    }
    return status;
}

enum aule_status work_submit(struct attachment *attachment, struct work *work, int timeout_ms,
                             uint64_t *id)
{
    const struct timeout timeout = timeout_start(timeout_ms);
    struct timeout slice;
    enum aule_status status;
    do {
        status = submit_after_abandoned(attachment, work, &timeout, id);
        slice = begin_slice(&timeout);
        if (status == AULE_BUSY)
            status = send_work(attachment, work, slice.ms, id);
    } while (goes_on(status, &slice, &timeout));
    return status;
}

// ---- to the end ----

// Runs and waits by one request. False: no ticket came free in the first slice.
static bool run_at_once(struct attachment *attachment, struct work *work,
                        const struct timeout *timeout, const struct caller_result *result,
                        enum aule_status *status)
{
    const struct timeout slice = begin_slice(timeout);
    struct wire_run *run = &work->request.run;
    struct metadata metadata;
    struct answer answer;
    *status = prepare(attachment, work, slice.ms, false, &metadata);
    if (*status != AULE_OK)
        return true;
    run->waits = true;
    run->wait_ms = timeout_left(timeout);
    *status = attachment_call(attachment, &work->request, run->wait_ms, WIRE_ANSWER_WAIT, &answer);
    run->waits = false;
    metadata_finish(attachment, &metadata);
    if (*status == AULE_OK) {
        *status = ticket_read(&answer.reply.wait, answer.reply.ticket, result);
        answer_finish(&answer);
    } else if (answer.reply.ticket && *status != AULE_NOT_FOUND) {
        ticket_abandon(attachment, answer.reply.ticket);
    }
    return !goes_on(*status, &slice, timeout);
}

// If there are abandoned tickets, a submission may have to reap some first, so it is a request of
// its own.
enum aule_status work_run(struct attachment *attachment, struct work *work, int timeout_ms,
                          const struct caller_result *result)
{
    const struct timeout timeout = timeout_start(timeout_ms);
    enum aule_status status;
    uint64_t id;
    ticket_reap_abandoned(attachment);
    if (!ticket_any_abandoned(attachment) &&
        run_at_once(attachment, work, &timeout, result, &status))
        return status;
    status = work_submit(attachment, work, timeout_left(&timeout), &id);
    if (status != AULE_OK)
        return status;
    ticket_reap_own(attachment, id, timeout_left(&timeout), result, &status);
    return status;
}

enum aule_status work_queue(struct attachment *attachment, struct work *work, int timeout_ms,
                            struct aule_ticket *ticket)
{
    uint64_t id = 0;
    enum aule_status status = timeout_check(timeout_ms);
    if (status == AULE_OK)
        status = attachment_enter(attachment);
    if (status != AULE_OK)
        return status;
    status = work_submit(attachment, work, timeout_ms, ticket ? &id : NULL);
    if (status == AULE_OK && ticket)
        *ticket = ticket_make(attachment, id, AULE_PATH_AUTO);
    attachment_leave(attachment);
    return status;
}
