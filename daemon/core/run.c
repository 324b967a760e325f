// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// run.c - checks a run's tensors, queues it, and keeps its ticket until it is reaped. What runs when is the scheduler's.

#include "run.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

static enum status missing_error(const struct missing *missing, const struct core_run_params *p, struct error *error)
{
    uint32_t last = missing->num_entries - 1;
    if (!p->windowed || p->window_left < 0)
        return error_set(error, STATUS_INVALID,
                         "block_table[%" PRIu32 "][%" PRIu32 "] = -1, but the run has no left window, and only a "
                         "window_left of at most %" PRId64 " hides the keys there",
                         missing->seq, last, missing->max_left);
    return error_set(error, STATUS_INVALID,
                     "block_table[%" PRIu32 "][%" PRIu32 "] = -1, but with window_left %" PRId32
                     " queries of that sequence see keys there; at most %" PRId64 " hides them",
                     missing->seq, last, p->window_left, missing->max_left);
}

static enum status check_window(const struct batch *batch, const struct core_run_params *p, struct error *error)
{
    const struct missing *missing = &batch->missing;
    if (p->windowed && (p->window_left < -1 || p->window_right < -1))
        return error_set(error, STATUS_INVALID,
                         "window_left %" PRId32 ", window_right %" PRId32 ": neither may be below -1, unbounded",
                         p->window_left, p->window_right);
    bool hidden = p->windowed && p->window_left >= 0 && p->window_left <= missing->max_left;
    return missing->num_entries && !hidden ? missing_error(missing, p, error) : STATUS_OK;
}

// Attention of a head whose slope or sink is no number would be none; a sink of -inf is none at all, and harms nobody.
static enum status check_heads(const struct core_run_params *p, struct error *error)
{
    const struct {
        const char *name;
        const float *values;
        float least;
    } arrays[] = {{"slopes", p->slopes, -FLT_MAX}, {"sinks", p->sinks, -INFINITY}};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        for (uint32_t h = 0; arrays[i].values && h < p->num_heads; h++) {
            float value = arrays[i].values[h];
            if (!(value >= arrays[i].least && value <= FLT_MAX))
                return error_set(error, STATUS_INVALID, "%s[%" PRIu32 "] is %f", arrays[i].name, h, (double)value);
        }
    }
    return STATUS_OK;
}

static enum status check_features(const struct batch *batch, const struct core_run_params *p, struct error *error)
{
    enum status status = check_window(batch, p, error);
    if (status == STATUS_OK && !(p->soft_cap >= 0.0f && p->soft_cap <= FLT_MAX))
        status = error_set(error, STATUS_INVALID, "logits_soft_cap is %f; it must be finite and not negative",
                           (double)p->soft_cap);
    if (status == STATUS_OK)
        status = check_heads(p, error);
    if (status == STATUS_OK && p->lse.dtype && p->lse.head_stride != 0 && p->lse.head_stride != sizeof(float))
        status = error_set(error, STATUS_INVALID,
                           "lse has head stride %" PRIu64 "; its heads are contiguous: 4, or 0 for the same",
                           p->lse.head_stride);
    return status;
}

static enum status check_tensors(const struct batch *batch, const struct core_run_params *p, struct error *error)
{
    const struct core_cache_identity *identity = &batch->table->cache->identity;
    struct core_tensor lse = p->lse;
    lse.head_stride = 0; // the heads of a token are one row
    const struct {
        struct tensor_use use;
        bool used;
    } tensors[] = {
        {{"out", &p->out, p->num_heads, identity->head_dim_v, 0, true}, true},
        {{"q", &p->q, p->num_heads, identity->head_dim_k, 0, false}, true},
        {{"k", &p->k, identity->num_kv_heads, identity->head_dim_k, 0, false}, batch->has_slots},
        {{"v", &p->v, identity->num_kv_heads, identity->head_dim_v, 0, false}, batch->has_slots},
        {{"lse", &lse, 1, p->num_heads, DTYPE_F32, true}, lse.dtype != 0},
    };
    struct tensor_use uses[sizeof tensors / sizeof *tensors];
    uint32_t count = 0;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        if (tensors[i].used)
            uses[count++] = tensors[i].use;
    }
    return tensor_check_run(uses, count, batch->num_tokens, batch->session->arena_size, error);
}

// What the run weighs in the queue: no query sees more keys than its window has.
static uint64_t attended_by(const struct batch *batch, const struct core_run_params *p)
{
    int64_t right = p->causal && !batch->has_mask ? 0 : p->window_right;
    if (!p->windowed || p->window_left < 0 || right < 0)
        return batch->attended;
    uint64_t seen = batch->num_tokens * (uint64_t)(p->window_left + right + 1);
    return seen && seen < batch->attended ? seen : batch->attended;
}

// What the run costs the GPU, in multiply-adds: each pair of a query row and a key that it sees, in all dims of both, and
// what the shaders compute beside them, for they take rows and keys by the tile. Positions may spread what a tile sees
// over all its keys, so with them neither causality nor a window counts.
static uint64_t work_of(const struct batch *batch, const struct core_run_params *p)
{
    const struct core_cache_identity *identity = &batch->table->cache->identity;
    uint64_t pairs = batch->attended, in_window = attended_by(batch, p);
    if (p->causal && !batch->has_mask && !batch->has_positions)
        pairs = batch->causal;
    if (in_window < pairs && !batch->has_positions)
        pairs = in_window;
    unsigned __int128 rows = (unsigned __int128)pairs + (uint64_t)batch->num_tokens * BATCH_TILE_KEYS;
    rows *= p->num_heads / identity->num_kv_heads;
    rows += (unsigned __int128)batch->keys * (BATCH_TILE_ROWS - 1);
    uint64_t dims = (uint64_t)identity->head_dim_k + identity->head_dim_v;
    unsigned __int128 most = UINT64_MAX / dims / identity->num_kv_heads;
    return rows > most ? UINT64_MAX : (uint64_t)rows * identity->num_kv_heads * dims;
}

static enum status check_work(const struct batch *batch, const struct core_run_params *p, struct error *error)
{
    uint64_t most = batch->session->core->params.max_run_work, work = most ? work_of(batch, p) : 0;
    if (work <= most)
        return STATUS_OK;
    return error_set(error, STATUS_LIMIT,
                     "the run takes %" PRIu64 " multiply-adds; one run may take %" PRIu64
                     " (--max-run-work): use smaller chunks of queries or fewer sequences",
                     work, most);
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
    if (status == STATUS_OK)
        status = check_features(*batch, params, error);
    if (status == STATUS_OK && !session->arena)
        status = error_set(error, STATUS_INVALID, "session %" PRIu64 " has no arena to run in", session->id);
    if (status == STATUS_OK)
        status = check_tensors(*batch, params, error);
    if (status == STATUS_OK)
        status = check_work(*batch, params, error);
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

static const float *copy_heads(float *to, const float *values, uint32_t num_heads)
{
    return values ? memcpy(to, values, num_heads * sizeof *values) : NULL;
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
        .windowed = p->windowed,
        .window_left = p->window_left,
        .window_right = p->window_right,
        .soft_cap = p->soft_cap,
        .lse = engine_tensor(&p->lse),
    };
    run->engine.slopes = copy_heads(run->heads, p->slopes, p->num_heads);
    run->engine.sinks = copy_heads(run->heads + (p->slopes ? p->num_heads : 0), p->sinks, p->num_heads);
    if (run->batch->has_slots) {
        run->engine.k = engine_tensor(&p->k);
        run->engine.v = engine_tensor(&p->v);
    }
}

static struct run *run_alloc(const struct core_run_params *p)
{
    size_t arrays = (p->slopes != NULL) + (p->sinks != NULL);
    return calloc(1, sizeof(struct run) + arrays * p->num_heads * sizeof(float));
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
    struct run *run = run_alloc(params);
    if (!run)
        return error_set(error, STATUS_NO_MEMORY, "no host memory for a run");
    run->session = session;
    run->batch = batch;
    run->ticket = session->last_ticket + 1;
    run->attended = attended_by(batch, params);
    run->work = work_of(batch, params);
    run->detached = params->detached;
    describe(run, params);
    if (!run->detached) {
        HASH_ADD(hh, session->tickets, ticket, sizeof run->ticket, run);
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
    HASH_FIND(hh, session->tickets, &ticket, sizeof ticket, run);
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
