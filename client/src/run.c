// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// run.c - attention of a batch, queued and waited for. What a run may be is the daemon's to say: also the parameters that no
// version does yet go out, so that it can name the one it refuses. Slopes and sinks go through the arena, for as long as the
// call takes: the daemon copies them when the command arrives. Any thread.

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "error.h"
#include "metadata.h"
#include "session.h"

// A public ticket is the daemon's, under the generation of the attachment that gave it: after a reconnect the daemon counts
// from the start, and an old ticket must not be taken for a new one.
enum { TICKET_BITS = 48 };
static const uint64_t ticket_mask = (UINT64_C(1) << TICKET_BITS) - 1;

// ---- submit ----

static struct wire_tensor tensor_of(const struct aule_tensor *tensor)
{
    return (struct wire_tensor){.memory = tensor->memory,
                                .dtype = tensor->dtype,
                                .offset = tensor->offset,
                                .token_stride = tensor->token_stride,
                                .head_stride = tensor->head_stride};
}

static enum aule_status check_tensors(const struct attachment *attachment, const struct aule_run_params *params)
{
    const struct {
        const struct aule_tensor *tensor;
        const char *name;
    } tensors[] = {
        {&params->q, "q"}, {&params->k, "k"}, {&params->v, "v"}, {&params->out, "out"}, {&params->lse, "lse"}};
    enum aule_status status = AULE_OK;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors && status == AULE_OK; i++)
        status = attachment_check_life(attachment, tensors[i].tensor->life, tensors[i].name);
    return status;
}

// The arrays of a run, one f32 a head.
enum { SLOPES, SINKS, NUM_ARRAYS };

static struct vector heads_of(const float *values, uint32_t num_heads)
{
    return (struct vector){.data = values, .count = values ? num_heads : 0, .element_size = sizeof *values};
}

static struct wire_run command_of(uint64_t batch, const struct aule_run_params *params, const struct vector *arrays,
                                  int timeout_ms, bool detached)
{
    return (struct wire_run){
        .batch = batch,
        .layer = params->layer,
        .num_heads = params->num_heads,
        .q = tensor_of(&params->q),
        .k = tensor_of(&params->k),
        .v = tensor_of(&params->v),
        .out = tensor_of(&params->out),
        .lse = tensor_of(&params->lse),
        .slopes = arrays[SLOPES].span,
        .sinks = arrays[SINKS].span,
        .scale = params->scale,
        .logits_soft_cap = params->logits_soft_cap,
        .mask_value = params->mask_value,
        .window_left = params->window.enabled ? params->window.left : -1,
        .window_right = params->window.enabled ? params->window.right : -1,
        .num_splits = params->num_splits,
        .flags = (params->causal ? WIRE_RUN_CAUSAL : 0u) | (detached ? WIRE_RUN_DETACHED : 0u),
        .timeout_ms = timeout_ms,
    };
}

// `ticket` NULL: nobody will wait.
static enum aule_status queue(const struct aule_batch *batch, const struct aule_run_params *params, int timeout_ms,
                              struct aule_ticket *ticket)
{
    struct attachment *attachment = batch->attachment;
    struct vector arrays[NUM_ARRAYS] = {[SLOPES] = heads_of(params->alibi_slopes, params->num_heads),
                                        [SINKS] = heads_of(params->sinks, params->num_heads)};
    struct metadata metadata;
    struct answer answer;
    enum aule_status status = metadata_place(attachment, arrays, NUM_ARRAYS, "slopes and sinks", &metadata);
    if (status != AULE_OK)
        return status;
    struct wire_request request = {.command = WIRE_COMMAND_RUN,
                                   .run = command_of(batch->id, params, arrays, timeout_ms, !ticket)};
    status = attachment_call(attachment, &request, timeout_ms, WIRE_ANSWER_RUN, &answer);
    metadata_finish(attachment, &metadata);
    if (status != AULE_OK)
        return status;
    uint64_t id = answer.reply.run.ticket;
    answer_finish(&answer);
    if (id > ticket_mask)
        return fail(AULE_INTERNAL, "ticket %" PRIu64 " has more than %d bits", id, TICKET_BITS);
    if (ticket)
        ticket->id = (uint64_t)attachment->generation << TICKET_BITS | id;
    return AULE_OK;
}

// ---- wait ----

static enum aule_status reap(struct attachment *attachment, uint64_t id, int timeout_ms, struct aule_run_result *result)
{
    struct wire_request request = {.command = WIRE_COMMAND_WAIT, .wait = {.ticket = id, .timeout_ms = timeout_ms}};
    struct answer answer;
    enum aule_status status = attachment_call(attachment, &request, timeout_ms, WIRE_ANSWER_WAIT, &answer);
    if (status != AULE_OK)
        return status;
    const struct wire_wait_reply *reply = &answer.reply.wait;
    if (reply->run_status != STATUS_OK)
        status = fail((enum aule_status)reply->run_status, "the run of ticket %" PRIu64 " failed: %s", id,
                      reply->run_message ? reply->run_message : aule_status_text((enum aule_status)reply->run_status));
    if (result)
        *result = (struct aule_run_result){
            .gpu_ns = reply->gpu_ns, .num_runs = reply->num_runs, .num_sessions = reply->num_sessions};
    answer_finish(&answer);
    return status;
}

enum aule_status aule_ticket_wait(struct aule_session *session, struct aule_ticket ticket, int timeout_ms,
                                  struct aule_run_result *result)
{
    REQUIRE(session);
    enum aule_status status = timeout_check(timeout_ms);
    if (status != AULE_OK)
        return status;
    struct attachment *attachment;
    status = session_get(session, &attachment);
    if (status != AULE_OK)
        return status;
    if (ticket.id >> TICKET_BITS == attachment->generation)
        status = reap(attachment, ticket.id & ticket_mask, timeout_ms, result);
    else
        status = fail(AULE_EPOCH, "ticket %" PRIu64 " was given before the reconnect", ticket.id & ticket_mask);
    session_put(attachment);
    return status;
}

// ---- tickets that nobody can wait for ----
// aule_run() keeps its ticket to itself. When its wait times out, the run goes on, and the ticket counts against max_tickets
// until somebody reaps it: the next submission does, and waits for the oldest where the daemon has no room for another.

static void abandon(struct attachment *attachment, uint64_t id)
{
    pthread_mutex_lock(&attachment->mutex);
    if (attachment->num_abandoned == attachment->max_abandoned) {
        uint32_t room = attachment->max_abandoned ? attachment->max_abandoned * 2 : 8;
        uint64_t *more = realloc(attachment->abandoned, room * sizeof *more);
        if (more) {
            attachment->abandoned = more;
            attachment->max_abandoned = room;
        }
    }
    // With no memory the ticket stays unreaped until the session ends; max_tickets bounds how many can.
    if (attachment->num_abandoned < attachment->max_abandoned)
        attachment->abandoned[attachment->num_abandoned++] = id;
    pthread_mutex_unlock(&attachment->mutex);
}

// The one that was abandoned first.
static bool take_abandoned(struct attachment *attachment, uint64_t *id)
{
    pthread_mutex_lock(&attachment->mutex);
    bool any = attachment->num_abandoned > 0;
    if (any) {
        *id = attachment->abandoned[0];
        attachment->num_abandoned--;
        memmove(attachment->abandoned, attachment->abandoned + 1,
                attachment->num_abandoned * sizeof *attachment->abandoned);
    }
    pthread_mutex_unlock(&attachment->mutex);
    return any;
}

static void reap_abandoned(struct attachment *attachment)
{
    uint64_t id;
    while (take_abandoned(attachment, &id)) {
        if (reap(attachment, id, 0, NULL) != AULE_TIMEOUT)
            continue;
        abandon(attachment, id);
        return;
    }
}

// While a run waits for room in the daemon nobody would reap what was abandoned; so with any of those it does not wait there.
static enum aule_status submit(struct aule_batch *batch, const struct aule_run_params *params, int timeout_ms,
                               struct aule_ticket *ticket)
{
    struct attachment *attachment = batch->attachment;
    const struct timeout timeout = timeout_start(timeout_ms);
    uint64_t id;
    for (bool waited = true; waited && take_abandoned(attachment, &id);) {
        enum aule_status status = queue(batch, params, 0, ticket);
        waited = status == AULE_BUSY && reap(attachment, id, timeout_left(&timeout), NULL) != AULE_TIMEOUT;
        if (!waited)
            abandon(attachment, id);
        if (status != AULE_BUSY)
            return status;
    }
    return queue(batch, params, timeout_left(&timeout), ticket);
}

// ---- the public calls ----

static enum aule_status begin(struct aule_batch *batch, const struct aule_run_params *params, int timeout_ms)
{
    REQUIRE(batch);
    REQUIRE(params);
    enum aule_status status = timeout_check(timeout_ms);
    if (status == AULE_OK)
        status = attachment_enter(batch->attachment);
    if (status != AULE_OK)
        return status;
    status = check_tensors(batch->attachment, params);
    if (status == AULE_OK)
        reap_abandoned(batch->attachment);
    else
        attachment_leave(batch->attachment);
    return status;
}

enum aule_status aule_run_submit(struct aule_batch *batch, const struct aule_run_params *params, int timeout_ms,
                                 struct aule_ticket *ticket)
{
    enum aule_status status = begin(batch, params, timeout_ms);
    if (status != AULE_OK)
        return status;
    status = submit(batch, params, timeout_ms, ticket);
    attachment_leave(batch->attachment);
    return status;
}

enum aule_status aule_run(struct aule_batch *batch, const struct aule_run_params *params, int timeout_ms,
                          struct aule_run_result *result)
{
    enum aule_status status = begin(batch, params, timeout_ms);
    if (status != AULE_OK)
        return status;
    struct aule_ticket ticket;
    status = submit(batch, params, timeout_ms, &ticket);
    if (status == AULE_OK) {
        status = reap(batch->attachment, ticket.id & ticket_mask, timeout_ms, result);
        if (status == AULE_TIMEOUT)
            abandon(batch->attachment, ticket.id & ticket_mask);
    }
    attachment_leave(batch->attachment);
    return status;
}
