// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// run.c - queues runs, and keeps each ticket until it is reaped. run_check.c checks them; the
// scheduler decides what runs when. Dispatcher thread.
//
// A run's life. core_run() checks everything, then copies the arrays behind the struct run: from
// here on the run reads nothing of the client's. run_queue() gives it a ticket and a place in its
// session's list. The scheduler picks its links (run_picked()), the engine ends them
// (run_link_over()), and the last one delivers the result (run_deliver()). The ticket stays until
// core_ticket_reap().
//
// Links. A run is one link for each slice of each layer: run_next_link() names the next one. A
// layer is cut anew when it begins (run_cut()), so the number of slices can change from layer to
// layer.
//
// Order. Tickets of a session end in order, though links may end in another one: a run is delivered
// only behind all runs before it. The engine returns links in order; links that it puts off come
// back by run_put_back().
//
// Dropping. Queued runs are dropped from the last one on, because a copy behind a dropped run would
// read what that run never wrote. A run with layers in flight loses only its other layers, and ends
// with those in flight.

#include "run.h"

#include "base/clock.h"
#include "base/keep.h"
#include "base/list.h"
#include "core/pool/ledger.h"
#include "core/pool/salt.h"
#include "core/pool/session.h"
#include "core/pool/tenant.h"
#include "core/turns/turns.h"
#include "reads.h"
#include "run_check.h"
#include "weight.h"
#include "window.h"
#include "written.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- for all kinds ----

bool core_session_waits(const struct core_session *session)
{
    return session->runs.num_unreaped >= session->ledger->params->max_tickets;
}

enum status run_check_tickets(const struct core_session *session, enum status so_far,
                              struct error *error)
{
    if (so_far != STATUS_OK || !core_session_waits(session))
        return so_far;
    return error_set(error, STATUS_BUSY,
                     "%" PRIu32 " tickets of the session are unreaped (--max-tickets)",
                     session->runs.num_unreaped);
}

enum status run_check_work(const struct core_session *session, uint64_t work, const char *what,
                           const char *advice, struct error *error)
{
    uint64_t most = session->ledger->params->max_run_work;
    if (!most || work <= most)
        return STATUS_OK;
    return error_set(error, STATUS_LIMIT,
                     "%s takes %" PRIu64 " multiply-adds; one run may take %" PRIu64
                     " (--max-run-work): %s",
                     what, work, most, advice);
}

enum status run_create(struct core_session *session, size_t arrays_size, size_t beside,
                       struct run **out, struct error *error)
{
    uint64_t bytes = (uint64_t)arrays_size + beside;
    enum status status = session_check_batch_memory(session, bytes, "arrays", error);
    if (status != STATUS_OK)
        return status;
    struct run *run = calloc(1, sizeof *run + arrays_size);
    if (!run)
        return error_set(error, STATUS_NO_MEMORY,
                         "no host memory for a run with %zu bytes of arrays", arrays_size);
    run->session = session;
    run->num_links = run->cut.slices = 1;
    run->bytes = bytes;
    session_charge(session, bytes);
    *out = run;
    return STATUS_OK;
}

void run_free(struct run *run)
{
    session_discharge(run->session, run->bytes);
    free(run->why);
    free(run);
}

enum status run_queue(struct run *run, bool detached, uint64_t *ticket, struct error *error)
{
    struct core_session *session = run->session;
    run->ticket = session->runs.last_ticket + 1;
    run->detached = detached;
    run->queued_ns = session->ledger->now_ns;
    if (!detached) {
        HASH_ADD(hh, session->runs.tickets, ticket, sizeof run->ticket, run);
        if (!HASH_ADDED(run))
            return error_set(error, STATUS_NO_MEMORY, "no host memory for a run");
    }
    *ticket = session->runs.last_ticket = run->ticket;
    session->runs.num_unreaped++;
    LIST_APPEND(session->runs.list, run);
    habit_queued(&session->turn.habit, &run->reading, run->queued_ns);
    if (!session->runs.queued) {
        session->runs.queued = run;
        turns_ready(&session->turn);
    }
    return STATUS_OK;
}

// ---- runs of a batch ----

// Copies the arrays to `place`, and makes *p point to the copies. `place` NULL: copies nothing.
// Returns their bytes.
static uint64_t keep_arrays(struct core_run_params *p, void *place)
{
    struct keeper keeper = {.place = place};
#define X(array, length) KEEP(&keeper, array, length);
    CORE_RUN_ARRAYS(X, p)
#undef X
    return keeper.size;
}

// Without the arrays that a run of this kind ignores.
static struct core_run_params used_params(const struct core_run_params *p)
{
    struct core_run_params used = *p;
    if (p->entry.kind == ENGINE_GATHER)
        used.frequencies = NULL;
    if (p->entry.kind != ENGINE_ATTEND)
        used.slopes = used.sinks = NULL;
    return used;
}

static float scale_at(const float *scales, uint32_t link, float otherwise)
{
    float scale = scales ? scales[link] : otherwise;
    return scale != 0.0f ? scale : 1.0f;
}

static void describe_scales(struct engine_run *engine, const struct run *run, uint32_t link,
                            float k, float v)
{
    engine->k_scale = scale_at(run->k_scales, link, k);
    engine->v_scale = scale_at(run->v_scales, link, v);
    if (run->batch->kv.v_is_k_prefix) // V is stored as a part of K
        engine->v_scale = engine->k_scale;
}

static void describe_kv(struct run *run, const struct core_run_params *p)
{
    const struct batch *batch = run->batch;
    struct engine_run *engine = &run->engine;
    bool two = !batch->kv.v_is_k_prefix;
    if (batch->has_slots || p->entry.kind == ENGINE_GATHER) {
        engine->k = p->entry.k;
        engine->v = two ? p->entry.v : engine->v;
    }
    if (!batch->table) {
        engine->keys = p->entry.keys;
        engine->values = two ? p->entry.values : engine->values;
    }
    describe_scales(engine, run, 0, p->entry.k_scale, p->entry.v_scale);
}

static void describe_rope(struct run *run, const struct core_run_params *p)
{
    if (!p->entry.rope_dim || p->entry.kind == ENGINE_GATHER)
        return;
    run->engine.rope = (struct engine_rope){
        .dim = p->entry.rope_dim,
        .interleaved = p->entry.flags & WIRE_RUN_ROPE_INTERLEAVED,
        .theta = p->entry.rope_theta != 0.0f ? p->entry.rope_theta : 10000.0f,
        .frequencies = p->frequencies,
    };
}

static void describe_attention(struct run *run, const struct core_run_params *p)
{
    struct engine_run *engine = &run->engine;
    engine->num_heads = p->entry.num_heads;
    engine->q = p->entry.q;
    engine->out = p->entry.out;
    engine->scale =
        p->entry.scale != 0.0f ? p->entry.scale : 1.0f / sqrtf((float)run->batch->kv.head_dim_k);
    engine->causal = window_is_causal(p);
    engine->windowed = p->entry.window_left != -1 || p->entry.window_right != -1;
    engine->window_left = p->entry.window_left;
    engine->window_right = p->entry.window_right;
    engine->soft_cap = p->entry.logits_soft_cap;
    engine->lse = p->entry.lse;
    engine->num_splits = p->entry.num_splits;
}

// The arrays of *p are the run's.
static void describe(struct run *run, const struct core_run_params *p)
{
    run->k_scales = p->k_scales; // before describe_kv(), which reads them
    run->v_scales = p->v_scales;
    run->engine = (struct engine_run){
        .kind = (enum engine_kind)p->entry.kind,
        .batch = run->batch->engine,
        .arena = run_arena(run->session, run->tensors.memory),
        .layer = p->entry.layer,
        .num_heads = run->batch->kv.num_kv_heads,
        .scale = 1.0f,
        .options = p->options,
        .slopes = p->slopes,
        .sinks = p->sinks,
    };
    describe_kv(run, p);
    describe_rope(run, p);
    if (p->entry.kind == ENGINE_ATTEND)
        describe_attention(run, p);
}

static struct wire_layers layers_of(const struct core_run_params *p)
{
    struct wire_layers layers = p->layers;
    if (layers.num_layers < 2)
        return (struct wire_layers){.num_layers = 1, .layer_step = 1};
    layers.layer_step = layers.layer_step ? layers.layer_step : 1;
    return layers;
}

static const float *move_floats(const float *from, uint64_t bytes)
{
    return from ? (const float *)((const char *)from + bytes) : NULL;
}

// ---- slices ----

static uint32_t links_of_layer(struct layer_cut cut)
{
    return cut.writes + cut.slices;
}

static bool link_writes(const struct layer_run *link)
{
    return link->slice < link->cut.writes;
}

// Which one the link is of those of its kind in the layer.
static struct link_place {
    uint32_t index, count;
} place_of(const struct layer_run *link)
{
    return link_writes(link)
               ? (struct link_place){link->slice, link->cut.writes}
               : (struct link_place){link->slice - link->cut.writes, link->cut.slices};
}

uint32_t run_num_layers(const struct run *run)
{
    return run->layers.num_layers ? run->layers.num_layers : 1;
}

static void count_links(struct run *run)
{
    run->num_links = run->num_picked - run->next_slice +
                     (run_num_layers(run) - run->next_layer) * links_of_layer(run->cut);
}

void run_slice(struct run *run, struct layer_cut cut)
{
    run->cut = cut;
    count_links(run);
}

bool run_is_sliced(const struct run *run)
{
    return links_of_layer(run->cut) > 1;
}

bool link_is_sliced(const struct layer_run *link)
{
    return links_of_layer(link->cut) > 1;
}

struct layer_run run_next_link(struct run *run)
{
    return (struct layer_run){
        .run = run, .cut = run->cut, .number = run->next_layer, .slice = run->next_slice};
}

void run_picked(struct run *run)
{
    run->num_picked++;
    if (++run->next_slice < links_of_layer(run->cut))
        return;
    run->next_slice = 0;
    run->next_layer++;
}

uint64_t run_link_weight(const struct layer_run *link)
{
    const uint64_t weight = link->run->weight / links_of_layer(link->cut);
    return weight ? weight : 1;
}

uint64_t run_link_work(const struct layer_run *link)
{
    return link->run->work / links_of_layer(link->cut);
}

// All links of the kind in the layer.
static uint64_t cost_of_layer(const struct layer_run *link)
{
    const struct run *run = link->run;
    if (link_writes(link))
        return run->write_work;
    return run->own_work - (link_is_sliced(link) ? 0 : run->saved_work) +
           (link->cut.writes ? 0 : run->write_work);
}

uint64_t run_link_cost(const struct layer_run *link)
{
    return cost_of_layer(link) / place_of(link).count;
}

enum speed_kind run_link_kind(const struct layer_run *link)
{
    return link_writes(link) ? SPEED_WRITE : link->run->speed;
}

bool run_link_took(const struct layer_run *link, uint64_t ns, uint64_t *work, uint64_t *layer_ns)
{
    struct run *run = link->run;
    const struct link_place place = place_of(link);
    run->layer_ns = ns + (place.index ? run->layer_ns : 0);
    *work = cost_of_layer(link);
    *layer_ns = run->layer_ns;
    return place.index + 1 == place.count;
}

// Sets which slice of the layer the link is.
static void describe_slice(struct engine_run *engine, const struct layer_run *link)
{
    if (!link_is_sliced(link))
        return;
    const struct link_place place = place_of(link);
    engine->kind = link_writes(link) ? ENGINE_WRITE : engine->kind;
    engine->is_written = link->cut.writes > 0;
    engine->slice = place.index;
    engine->num_slices = place.count;
}

static void describe_layer(struct engine_run *engine, const struct run *run, uint32_t link)
{
    const struct wire_layers *l = &run->layers;
    const struct {
        uint64_t *offset, stride;
    } moves[] = {
        {&engine->q.offset, l->q},           {&engine->k.offset, l->k},
        {&engine->v.offset, l->v},           {&engine->out.offset, l->out},
        {&engine->lse.offset, l->lse},       {&engine->keys.offset, l->keys},
        {&engine->values.offset, l->values},
    };
    for (size_t i = 0; i < sizeof moves / sizeof *moves; i++)
        *moves[i].offset += link * moves[i].stride;
    engine->layer += run->batch->table ? link * l->layer_step : 0;
    engine->slopes = move_floats(engine->slopes, link * l->slopes);
    engine->sinks = move_floats(engine->sinks, link * l->sinks);
    describe_scales(engine, run, link, engine->k_scale, engine->v_scale);
}

struct engine_run run_link(const struct layer_run *link)
{
    const struct run *run = link->run;
    struct engine_run engine = run->engine;
    engine.line = run->session->id;
    engine.payer = run->session->salt->tenant->id;
    if (link->number)
        describe_layer(&engine, run, link->number);
    describe_slice(&engine, link);
    return engine;
}

// The kernels for few rows read each key for a few products, those for many rows are bound by
// these.
static enum speed_kind speed_of(const struct batch *batch, const struct core_run_params *p)
{
    const uint64_t rows = (uint64_t)batch->max_rows * p->entry.num_heads / batch->kv.num_kv_heads;
    if (p->entry.kind != ENGINE_ATTEND)
        return p->entry.kind == ENGINE_GATHER ? SPEED_GATHER : SPEED_WRITE;
    return rows > BATCH_TILE_ROWS ? SPEED_PREFILL : SPEED_DECODE;
}

static enum status check_work(const struct core_session *session, const struct batch *batch,
                              const struct core_run_params *p, struct error *error)
{
    bool several = p->layers.num_layers > 1;
    enum status status =
        run_check_work(session, weight_alone(batch, p),
                       several ? "the longest sequence of each layer, in one piece,"
                               : "the run's longest sequence, in one piece,",
                       "give it fewer keys, or few rows and num_splits other than 1", error);
    if (status != STATUS_OK)
        return status;
    return run_check_work(session, weight_work(batch, p),
                          several ? "each layer of the run" : "the run",
                          "use smaller chunks of queries or fewer sequences", error);
}

static enum status check_all(struct core_session *session, const struct core_run_params *params,
                             struct batch **batch, struct run_tensors *tensors, struct error *error)
{
    enum status status = session_usable(session, error);
    if (status == STATUS_OK)
        status = batch_find(session, params->entry.batch, batch, error);
    if (status == STATUS_OK)
        status = run_check(*batch, params, tensors, error);
    if (status == STATUS_OK)
        status = check_work(session, *batch, params, error);
    if (status == STATUS_OK)
        status = batch_check_seals(*batch, error);
    status = run_check_tickets(session, status, error);
    return status == STATUS_OK ? reads_check(*batch, params, error) : status;
}

enum status core_run(struct core_session *session, const struct core_run_params *params,
                     uint64_t *ticket, struct error *error)
{
    struct batch *batch;
    struct run_tensors tensors;
    enum status status = check_all(session, params, &batch, &tensors, error);
    if (status != STATUS_OK)
        return status;
    struct core_run_params used = used_params(params);
    struct run *run;
    status = run_create(session, keep_arrays(&used, NULL), 0, &run, error);
    if (status != STATUS_OK)
        return status;
    run->batch = batch;
    run->tensors = tensors;
    run->layers = layers_of(params);
    run->num_links = run->layers.num_layers;
    run->attended = weight_attended(batch, params);
    run->weight = weight_in_queue(batch, params);
    run->work = weight_work(batch, params);
    run->write_work = weight_writes(batch, params);
    run->own_work = weight_spread(batch, params) - run->write_work;
    run->saved_work = weight_saved(batch, params);
    run->write_units = batch->num_tokens;
    run->own_units = weight_units(batch, params);
    run->speed = speed_of(batch, params);
    weight_reading(batch, params, &run->reading);
    keep_arrays(&used, run->arrays);
    describe(run, &used);
    status = params->entry.kind == ENGINE_ATTEND
                 ? engine_run_check(session->ledger->engine, &run->engine, error)
                 : STATUS_OK;
    if (status == STATUS_OK)
        status = run_queue(run, params->entry.flags & WIRE_RUN_DETACHED, ticket, error);
    if (status != STATUS_OK) {
        run_free(run);
        return status;
    }
    batch->users++;
    written_begin(run);
    return STATUS_OK;
}

// ---- after the queue ----

static void count_run(const struct run *run)
{
    struct core_session *session = run->session;
    struct ledger *ledger = session->ledger;
    if (run->result.status != STATUS_OK || !run->result.num_runs) {
        ledger->metrics[METRIC_RUNS_FAILED]++;
        return;
    }
    ledger->metrics[METRIC_RUNS_DONE]++;
    const uint64_t attended = run->attended * run_num_layers(run);
    ledger->metrics[METRIC_TOKENS_ATTENDED] += attended;
    session->totals.runs_done++;
    session->totals.tokens_attended += attended;
}

static void run_end(struct run *run)
{
    run->over = true;
    count_run(run);
    written_end(run, run->result.status == STATUS_OK);
    if (run->batch)
        batch_unref(run->batch);
    if (run->copy && run->copy->outcome)
        *run->copy->outcome = run->result.status;
    copy_destroy(run->copy);
    run->batch = NULL;
    run->copy = NULL;
}

struct run *run_next_live(const struct run *run)
{
    struct run *next = run->next;
    while (next && next->over)
        next = next->next;
    return next;
}

// Drops the layers that are not picked yet. A run with some layers picked is the first in its
// session's queue, so it leaves the queue.
static void run_cut(struct run *run)
{
    struct core_session *session = run->session;
    bool leaves = run->num_picked && run->num_picked < run->num_links;
    run->num_links = run->num_picked ? run->num_picked : 1;
    if (!leaves || session->runs.queued != run)
        return;
    session->runs.queued = run_next_live(run);
    if (!session->runs.queued)
        turns_forget(&session->turn);
}

void run_fail(struct run *run, enum status status, const char *why)
{
    if (run->result.status != STATUS_OK)
        return;
    run->result = (struct core_ticket_result){.status = status};
    run->why = why && *why ? strdup(why) : NULL;
    run_cut(run);
}

void run_link_over(struct run *run)
{
    if (++run->num_over == run->num_links)
        run_end(run);
}

// The engine returns a session's links in order. If it puts one off, it puts off all later ones,
// too. So the links that stay picked are those before it.
void run_put_back(const struct layer_run *link)
{
    struct run *run = link->run;
    struct core_session *session = run->session;
    if (session->closed)
        run_fail(run, STATUS_NO_SESSION, NULL);
    if (run->result.status != STATUS_OK) { // nothing more of it will run
        run_link_over(run);
        return;
    }
    run->num_picked--;
    if (link->number < run->next_layer ||
        (link->number == run->next_layer && link->slice < run->next_slice)) {
        run->next_layer = link->number;
        run->next_slice = link->slice;
        run->cut = link->cut;
    }
    count_links(run);
    turns_unserve(&session->turn, run_link_weight(link));
    if (!session->runs.queued || run->ticket < session->runs.queued->ticket)
        session->runs.queued = run;
    session->runs.put_off = true;
    turns_forget(&session->turn);
}

uint64_t core_tickets_ended(const struct core_session *session)
{
    return session->runs.list ? session->runs.list->ticket - 1 : session->runs.last_ticket;
}

void run_deliver(struct core_session *session)
{
    while (session->runs.list && session->runs.list->over) {
        struct run *run = session->runs.list;
        LIST_DELETE(session->runs.list, run);
        run->delivered = true;
        session->ledger->news |= !session->closed;
        ledger_wake(session->ledger, session->wait);
        if (run->detached)
            session->runs.num_unreaped--;
        if (run->detached || session->closed)
            run_free(run);
    }
}

// Drops a run. If some of its layers are in flight, only the others are dropped, and the run ends
// with those in flight.
static void run_drop(struct run *run, enum status status)
{
    bool partly = run->num_picked > run->num_over;
    run_fail(run, status, NULL);
    if (partly)
        return;
    run->num_links = run->num_over + 1; // one link stands for all that will never run
    run_link_over(run);
}

// Drops the last run first. Otherwise a copy behind a dropped run would read what the dropped run
// never wrote.
void run_drop_queued(struct core_session *session, enum status status)
{
    turns_forget(&session->turn);
    session->runs.put_off = false;
    if (!session->runs.queued)
        return;
    struct run *first = session->runs.queued, *run = session->runs.list->prev;
    session->runs.queued = NULL;
    for (; run != first; run = run->prev) {
        if (!run->over)
            run_drop(run, status);
    }
    run_drop(first, status);
}

bool run_expire(struct run *run)
{
    struct core_session *session = run->session;
    const uint32_t most_ms = run->engine.options.max_queue_ms;
    const int64_t waited_ms = (session->ledger->now_ns - run->queued_ns) / NS_PER_MS;
    char why[96];
    if (!most_ms || run->num_picked || waited_ms < most_ms)
        return false;
    snprintf(why, sizeof why, "it waited %" PRId64 " ms for its turn; max_queue_ms is %" PRIu32,
             waited_ms, most_ms);
    session->runs.queued = run_next_live(run);
    if (!session->runs.queued)
        turns_forget(&session->turn);
    run_fail(run, STATUS_LIMIT, why);
    run_link_over(run);
    run_deliver(session);
    return true;
}

enum status core_ticket_reap(struct core_session *session, uint64_t ticket,
                             struct core_ticket_result *out, struct error *error)
{
    struct run *run;
    HASH_FIND(hh, session->runs.tickets, &ticket, sizeof ticket, run);
    if (!run)
        return error_set(error, STATUS_NOT_FOUND,
                         "session %" PRIu64 " has no ticket %" PRIu64 "; %" PRIu64
                         " were given, some are reaped or detached",
                         session->id, ticket, session->runs.last_ticket);
    if (!run->delivered)
        return error_set(error, STATUS_TIMEOUT, "ticket %" PRIu64 " is not done", ticket);
    *out = run->result;
    if (run->result.status != STATUS_OK)
        error_set(error, run->result.status, "%s",
                  run->why ? run->why : status_text(run->result.status));
    HASH_DEL(session->runs.tickets, run);
    session->runs.num_unreaped--;
    session->ledger->news = true;
    ledger_wake(session->ledger, session->wait); // a ticket came free
    run_free(run);
    return STATUS_OK;
}
