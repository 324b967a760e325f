// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// run.c - a batch and a layer, queued. What a run may be is the daemon's to say: every parameter goes out, so that it can name
// the one it refuses. Slopes, sinks and frequencies go through the arena, for as long as the call takes: the daemon copies
// them when the command arrives. Any thread.

#include "run.h"

#include "error.h"
#include "ticket.h"
#include "work.h"

static enum aule_status check_tensors(const struct attachment *attachment, const struct aule_run_params *params)
{
    const struct {
        const struct aule_tensor *tensor;
        const char *name;
    } tensors[] = {{&params->q, "q"},     {&params->k, "k"},       {&params->v, "v"},          {&params->out, "out"},
                   {&params->lse, "lse"}, {&params->keys, "keys"}, {&params->values, "values"}};
    enum aule_status status = AULE_OK;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors && status == AULE_OK; i++)
        status = attachment_check_life(attachment, tensors[i].tensor->life, tensors[i].name);
    return status;
}

static struct wire_run command_of(uint64_t batch, enum wire_run_kind kind, const struct aule_run_params *params)
{
    return (struct wire_run){
        .batch = batch,
        .kind = kind,
        .layer = params->layer,
        .num_heads = params->num_heads,
        .q = work_tensor(&params->q),
        .k = work_tensor(&params->k),
        .v = work_tensor(&params->v),
        .out = work_tensor(&params->out),
        .lse = work_tensor(&params->lse),
        .keys = work_tensor(&params->keys),
        .values = work_tensor(&params->values),
        .scale = params->scale,
        .logits_soft_cap = params->logits_soft_cap,
        .mask_value = params->mask_value,
        .window_left = params->window.enabled ? params->window.left : -1,
        .window_right = params->window.enabled ? params->window.right : -1,
        .num_splits = params->num_splits,
        .rope_dim = params->rope.dim,
        .rope_theta = params->rope.theta,
        .k_scale = params->k_scale,
        .v_scale = params->v_scale,
        .flags = (params->causal ? WIRE_RUN_CAUSAL : 0u) | (params->rope.interleaved ? WIRE_RUN_ROPE_INTERLEAVED : 0u),
    };
}

static void add_array(struct work *work, const void *data, uint32_t count, uint32_t element_size,
                      struct wire_span *span)
{
    if (!data)
        return;
    work->arrays[work->num_arrays] = (struct vector){.data = data, .count = count, .element_size = element_size};
    work->spans[work->num_arrays++] = span;
}

// *work points into itself: it stays where it is.
static enum aule_status prepare(const struct aule_batch *batch, enum wire_run_kind kind,
                                const struct aule_run_params *params, struct work *work)
{
    enum aule_status status = check_tensors(batch->attachment, params);
    if (status != AULE_OK)
        return status;
    *work = (struct work){
        .request = {.command = WIRE_COMMAND_RUN, .run = command_of(batch->id, kind, params)},
        .what = "slopes, sinks and frequencies",
    };
    struct wire_run *run = &work->request.run;
    work->timeout_ms = &run->timeout_ms;
    work->flags = &run->flags;
    add_array(work, params->alibi_slopes, params->num_heads, sizeof(float), &run->slopes);
    add_array(work, params->sinks, params->num_heads, sizeof(float), &run->sinks);
    add_array(work, params->rope.frequencies, params->rope.dim / 2, sizeof(double), &run->rope_frequencies);
    return AULE_OK;
}

enum aule_status run_submit(const struct aule_batch *batch, enum wire_run_kind kind,
                            const struct aule_run_params *params, int timeout_ms, uint64_t *id)
{
    struct work work;
    enum aule_status status = prepare(batch, kind, params, &work);
    return status == AULE_OK ? work_submit(batch->attachment, &work, timeout_ms, id) : status;
}

enum aule_status run_queue(const struct aule_batch *batch, enum wire_run_kind kind,
                           const struct aule_run_params *params, int timeout_ms, struct aule_ticket *ticket)
{
    uint64_t id = 0;
    enum aule_status status = timeout_check(timeout_ms);
    if (status == AULE_OK)
        status = attachment_enter(batch->attachment);
    if (status != AULE_OK)
        return status;
    status = run_submit(batch, kind, params, timeout_ms, ticket ? &id : NULL);
    if (status == AULE_OK && ticket)
        *ticket = ticket_make(batch->attachment, id, kind == WIRE_RUN_ATTEND ? batch->path : AULE_PATH_AUTO);
    attachment_leave(batch->attachment);
    return status;
}

enum aule_status aule_run_submit(struct aule_batch *batch, const struct aule_run_params *params, int timeout_ms,
                                 struct aule_ticket *ticket)
{
    REQUIRE(batch);
    REQUIRE(params);
    return run_queue(batch, WIRE_RUN_ATTEND, params, timeout_ms, ticket);
}

enum aule_status aule_run(struct aule_batch *batch, const struct aule_run_params *params, int timeout_ms,
                          struct aule_run_result *result)
{
    REQUIRE(batch);
    REQUIRE(params);
    struct work work;
    enum aule_status status = timeout_check(timeout_ms);
    if (status == AULE_OK)
        status = attachment_enter(batch->attachment);
    if (status != AULE_OK)
        return status;
    status = prepare(batch, WIRE_RUN_ATTEND, params, &work);
    if (status == AULE_OK)
        status = work_run(batch->attachment, &work, timeout_ms, result);
    attachment_leave(batch->attachment);
    return status;
}
