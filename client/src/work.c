// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// work.c - see work.h. What a command may ask is the daemon's to say. Any thread.

#include "work.h"

#include "error.h"
#include "ticket.h"

struct wire_tensor work_tensor(const struct aule_tensor *tensor)
{
    return (struct wire_tensor){.memory = tensor->memory,
                                .dtype = tensor->dtype,
                                .offset = tensor->offset,
                                .token_stride = tensor->token_stride,
                                .head_stride = tensor->head_stride,
                                .outer_stride = tensor->outer_stride};
}

static enum aule_status send_work(struct attachment *attachment, struct work *work, int timeout_ms, uint64_t *id)
{
    struct metadata metadata;
    struct answer answer;
    enum aule_status status = metadata_place(attachment, work->arrays, work->num_arrays, work->what, &metadata);
    if (status != AULE_OK)
        return status;
    for (uint32_t i = 0; i < work->num_arrays; i++)
        *work->spans[i] = work->arrays[i].span;
    *work->timeout_ms = timeout_ms;
    *work->flags = (*work->flags & ~(uint32_t)WIRE_RUN_DETACHED) | (id ? 0u : WIRE_RUN_DETACHED);
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

// While a run waits for room in the daemon nobody would reap what was abandoned; so with any of those it does not wait there.
enum aule_status work_submit(struct attachment *attachment, struct work *work, int timeout_ms, uint64_t *id)
{
    const struct timeout timeout = timeout_start(timeout_ms);
    uint64_t abandoned;
    ticket_reap_abandoned(attachment);
    for (bool waited = true; waited && ticket_take_abandoned(attachment, &abandoned);) {
        enum aule_status status = send_work(attachment, work, 0, id);
        waited =
            status == AULE_BUSY && ticket_reap(attachment, abandoned, timeout_left(&timeout), NULL) != AULE_TIMEOUT;
        if (!waited)
            ticket_abandon(attachment, abandoned);
        if (status != AULE_BUSY)
            return status;
    }
    return send_work(attachment, work, timeout_left(&timeout), id);
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
