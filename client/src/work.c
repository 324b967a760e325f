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
static enum aule_status prepare(struct life *life, struct call_work *work, int timeout_ms,
                                bool detached, struct metadata *metadata)
{
    enum aule_status status =
        metadata_place(life, work->arrays, work->num_arrays, work->what, metadata);
    if (status != AULE_OK)
        return status;
    for (uint32_t i = 0; i < work->num_arrays; i++)
        *work->spans[i] = work->arrays[i].span;
    *work->timeout_ms = timeout_ms;
    *work->flags =
        (*work->flags & ~(uint32_t)WIRE_RUN_DETACHED) | (detached ? WIRE_RUN_DETACHED : 0u);
    return AULE_OK;
}

static enum aule_status send_work(struct life *life, struct call_work *work, int timeout_ms,
                                  uint64_t *id)
{
    struct metadata metadata;
    struct answer answer;
    enum aule_status status = prepare(life, work, timeout_ms, !id, &metadata);
    if (status != AULE_OK)
        return status;
    status = life_call(life, &work->request, timeout_ms, WIRE_ANSWER_RUN, &answer);
    metadata_finish(life, &metadata);
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
static enum aule_status submit_after_abandoned(struct life *life, struct call_work *work,
                                               const struct timeout *timeout, uint64_t *id)
{
    uint64_t abandoned;
    enum aule_status status = AULE_BUSY, waited;
    ticket_reap_abandoned(life);
    while (status == AULE_BUSY && ticket_take_abandoned(life, &abandoned)) {
        status = send_work(life, work, 0, id);
        if (status != AULE_BUSY)
            ticket_abandon(life, abandoned);
        else if (!ticket_reap_own(life, abandoned, timeout_left(timeout), NULL, &waited))
            break;
    }
    return status;
}

enum aule_status work_submit(struct life *life, struct call_work *work, int timeout_ms,
                             uint64_t *id)
{
    const struct timeout timeout = timeout_start(timeout_ms);
    struct timeout slice;
    enum aule_status status;
    do {
        status = submit_after_abandoned(life, work, &timeout, id);
        slice = begin_slice(&timeout);
        if (status == AULE_BUSY)
            status = send_work(life, work, slice.ms, id);
    } while (goes_on(status, &slice, &timeout));
    return status;
}

// ---- to the end ----

// Runs and waits by one request. False: no ticket came free in the first slice.
static bool run_at_once(struct life *life, struct call_work *work, const struct timeout *timeout,
                        const struct caller_result *result, enum aule_status *status)
{
    const struct timeout slice = begin_slice(timeout);
    struct wire_run *run = &work->request.run;
    struct metadata metadata;
    struct answer answer;
    *status = prepare(life, work, slice.ms, false, &metadata);
    if (*status != AULE_OK)
        return true;
    run->waits = true;
    run->wait_ms = timeout_left(timeout);
    *status = life_call(life, &work->request, run->wait_ms, WIRE_ANSWER_WAIT, &answer);
    run->waits = false;
    metadata_finish(life, &metadata);
    if (*status == AULE_OK) {
        *status = ticket_read(&answer.reply.wait, answer.reply.ticket, result);
        answer_finish(&answer);
    } else if (answer.reply.ticket && *status != AULE_NOT_FOUND) {
        ticket_abandon(life, answer.reply.ticket);
    }
    return !goes_on(*status, &slice, timeout);
}

// If there are abandoned tickets, a submission may have to reap some first, so it is a request of
// its own.
enum aule_status work_run(struct life *life, struct call_work *work, int timeout_ms,
                          const struct caller_result *result)
{
    const struct timeout timeout = timeout_start(timeout_ms);
    enum aule_status status;
    uint64_t id;
    ticket_reap_abandoned(life);
    if (!ticket_any_abandoned(life) && run_at_once(life, work, &timeout, result, &status))
        return status;
    status = work_submit(life, work, timeout_left(&timeout), &id);
    if (status != AULE_OK)
        return status;
    ticket_reap_own(life, id, timeout_left(&timeout), result, &status);
    return status;
}

enum aule_status work_queue(struct life *life, struct call_work *work, int timeout_ms,
                            struct aule_ticket *ticket)
{
    uint64_t id = 0;
    enum aule_status status = timeout_check(timeout_ms);
    if (status == AULE_OK)
        status = life_enter(life);
    if (status != AULE_OK)
        return status;
    status = work_submit(life, work, timeout_ms, ticket ? &id : NULL);
    if (status == AULE_OK && ticket)
        *ticket = ticket_make(life, id, AULE_PATH_AUTO);
    life_leave(life);
    return status;
}
