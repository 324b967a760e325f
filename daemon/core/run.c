// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// run.c - checks a run's tensors, queues it, and keeps its ticket until it is reaped. What runs when is the scheduler's.

#include "run.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "state.h"
#include "tensor.h"

static enum status check_run(const struct batch *batch, const struct core_run_params *p, struct error *error)
{
    const struct core_cache_identity *identity = &batch->table->cache->identity;
    if (p->layer >= identity->num_layers)
        return error_set(error, STATUS_OUT_OF_RANGE, "layer %" PRIu32 " of a cache with %" PRIu32 " layers", p->layer,
                         identity->num_layers);
    if (p->num_heads == 0 || p->num_heads % identity->num_kv_heads)
        return error_set(error, STATUS_INVALID,
                         "num_heads %" PRIu32 " is not a multiple of the cache's %" PRIu32 " KV heads", p->num_heads,
                         identity->num_kv_heads);
    if (!isfinite(p->scale))
        return error_set(error, STATUS_INVALID, "scale is %f", (double)p->scale);
    return STATUS_OK;
}

static enum status check_tensors(const struct batch *batch, const struct core_run_params *p, struct error *error)
{
    const struct core_cache_identity *identity = &batch->table->cache->identity;
    const struct tensor_use uses[] = {
        {"out", &p->out, p->num_heads, identity->head_dim_v},
        {"q", &p->q, p->num_heads, identity->head_dim_k},
        {"k", &p->k, identity->num_kv_heads, identity->head_dim_k},
        {"v", &p->v, identity->num_kv_heads, identity->head_dim_v},
    };
    return tensor_check_run(uses, batch->has_slots ? 4 : 2, batch->num_tokens, batch->session->arena_size, error);
}

static enum status check_all(struct core_session *session, const struct core_run_params *params, struct batch **batch,
                             struct error *error)
{
    enum status status = session_usable(session, error);
    if (status == STATUS_OK && params->unsupported)
        status = error_set(error, STATUS_UNSUPPORTED, "%s is not supported yet", params->unsupported);
    if (status == STATUS_OK)
        status = batch_find(session, params->batch, batch, error);
    if (status == STATUS_OK)
        status = check_run(*batch, params, error);
    if (status == STATUS_OK && !session->arena)
        status = error_set(error, STATUS_INVALID, "session %" PRIu64 " has no arena to run in", session->id);
    if (status == STATUS_OK)
        status = check_tensors(*batch, params, error);
    if (status == STATUS_OK)
        status = batch_check_seals(*batch, error);
    if (status == STATUS_OK && session->num_unreaped >= session->core->params.max_tickets)
        status = error_set(error, STATUS_BUSY, "%" PRIu32 " tickets of the session are unreaped (--max-tickets)",
                           session->num_unreaped);
    return status;
}

static struct engine_tensor engine_tensor(const struct core_tensor *t)
{
    return (struct engine_tensor){t->offset, t->token_stride, t->head_stride, t->dtype};
}

static void describe(struct run *run, const struct core_run_params *p)
{
    float head_dim = (float)run->batch->table->cache->identity.head_dim_k;
    run->engine = (struct engine_run){
        .batch = run->batch->engine,
        .arena = run->session->arena,
        .layer = p->layer,
        .num_heads = p->num_heads,
        .q = engine_tensor(&p->q),
        .out = engine_tensor(&p->out),
        .scale = p->scale != 0.0f ? p->scale : 1.0f / sqrtf(head_dim),
        .causal = p->causal,
    };
    if (run->batch->has_slots) {
        run->engine.k = engine_tensor(&p->k);
        run->engine.v = engine_tensor(&p->v);
    }
}

static void accept(struct run *run)
{
    struct core_session *session = run->session;
    run->batch->users++;
    batch_write_begins(run->batch, run->engine.layer);
    session->last_ticket = run->ticket;
    session->num_unreaped++;
    DL_APPEND(session->runs, run);
    if (!session->queued) {
        session->queued = run;
        scheduler_ready(session);
    }
}

enum status core_run(struct core_session *session, const struct core_run_params *params, uint64_t *ticket,
                     struct error *error)
{
    struct batch *batch;
    enum status status = check_all(session, params, &batch, error);
    if (status != STATUS_OK)
        return status;
    struct run *run = calloc(1, sizeof(*run));
    if (!run)
        return error_set(error, STATUS_NO_MEMORY, "no host memory for a run");
    run->session = session;
    run->batch = batch;
    run->ticket = session->last_ticket + 1;
    run->attended = batch->attended;
    run->detached = params->detached;
    describe(run, params);
    if (!run->detached) {
        HASH_ADD(hh, session->tickets, ticket, sizeof(run->ticket), run);
        if (!HASH_ADDED(run)) {
            free(run);
            return error_set(error, STATUS_NO_MEMORY, "no host memory for a run");
        }
    }
    accept(run);
    *ticket = run->ticket;
    return STATUS_OK;
}

// ---- after the queue ----

static void count_run(const struct run *run)
{
    struct core_session *session = run->session;
    struct core *core = session->core;
    if (run->result.status != STATUS_OK || !run->result.num_runs) {
        core->runs_failed++;
        return;
    }
    core->runs_done++;
    core->tokens_attended += run->attended;
    session->runs_done++;
    session->tokens_attended += run->attended;
    session->gpu_ns += run->result.gpu_ns / run->result.num_runs; // its share of the dispatch
}

void run_end(struct run *run, const struct core_ticket_result *result)
{
    run->result = *result;
    run->over = true;
    count_run(run);
    batch_write_ends(run->batch, run->engine.layer, result->status == STATUS_OK);
    batch_unref(run->batch);
    run->batch = NULL;
}

void run_deliver(struct core_session *session)
{
    while (session->runs && session->runs->over) {
        struct run *run = session->runs;
        DL_DELETE(session->runs, run);
        run->delivered = true;
        session->core->news |= !session->closed;
        if (run->detached)
            session->num_unreaped--;
        if (run->detached || session->closed)
            free(run);
    }
}

void run_drop_queued(struct core_session *session, enum status status)
{
    const struct core_ticket_result result = {.status = status};
    scheduler_forget(session);
    while (session->queued) {
        struct run *run = session->queued;
        session->queued = run->next;
        run_end(run, &result);
    }
}

enum status core_ticket_reap(struct core_session *session, uint64_t ticket, struct core_ticket_result *out,
                             struct error *error)
{
    struct run *run;
    HASH_FIND(hh, session->tickets, &ticket, sizeof(ticket), run);
    if (!run)
        return error_set(error, STATUS_NOT_FOUND,
                         "session %" PRIu64 " has no ticket %" PRIu64 "; %" PRIu64
                         " were given, some are reaped or detached",
                         session->id, ticket, session->last_ticket);
    if (!run->delivered)
        return error_set(error, STATUS_TIMEOUT, "ticket %" PRIu64 " is not done", ticket);
    *out = run->result;
    HASH_DEL(session->tickets, run);
    session->num_unreaped--;
    session->core->news = true;
    free(run);
    return STATUS_OK;
}
