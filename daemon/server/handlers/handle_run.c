// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// handle_run.c - the commands that queue GPU work and are answered by a ticket (Run, BlocksCopy,
// Merge), and the wait for a ticket. Flags, kinds and options that only a newer client knows are
// refused here, with their number; core checks all else. Core takes a run as the wire's structs: an
// option of a run needs no line here. Dispatcher thread.

#include "metadata.h"
#include "server/park.h"
#include "server/work.h"

#include <inttypes.h>

// ---- waiting for the end of a run ----

// The answer to a Wait whose ticket was reaped. *reply points into *error, which core_ticket_reap()
// filled.
static void fill_wait(struct wire_reply *reply, const struct core_ticket_result *result,
                      const struct error *error)
{
    reply->answer = WIRE_ANSWER_WAIT;
    reply->wait = (struct wire_wait_reply){
        .run_status = result->status,
        .gpu_ns = result->gpu_ns,
        .num_runs = result->num_runs,
        .num_sessions = result->num_sessions,
        .run_message = result->status == STATUS_OK ? "" : error->text,
    };
}

static bool retry_wait(struct parked *parked, bool last)
{
    struct core_ticket_result result;
    struct wire_reply reply = {.message = ""};
    struct error error = {.status = STATUS_OK};
    enum status status = core_ticket_reap(parked->session->core, parked->ticket, &result, &error);
    if (status == STATUS_TIMEOUT && !last)
        return true;
    if (status == STATUS_TIMEOUT)
        error_set(&error, STATUS_TIMEOUT,
                  "ticket %" PRIu64 " was not done in time; its run goes on", parked->ticket);
    if (status == STATUS_OK)
        fill_wait(&reply, &result, &error);
    return park_tried(parked, status, false, &reply, &error);
}

static const struct park_kind end_of_run = {.list = PARK_ENDS, .retry = retry_wait};

// Answers with the result of a run: at once if the run is over, else when it ends, until
// `deadline_ns`. TIMEOUT: the run is not over and the deadline has passed.
// Most often the call has queued the run itself, so the error text is skipped: nobody reads it.
static enum status wait_for_end(struct call *call, uint64_t ticket, int64_t deadline_ns)
{
    struct core_session *core = call->session->core;
    struct core_ticket_result result;
    const struct park_command command = {
        .kind = &end_of_run, .deadline_ns = deadline_ns, .ticket = ticket};
    const bool is_own = call->asker.ticket == ticket, in_time = clock_now_ns() < deadline_ns;
    if (is_own && in_time && core_tickets_ended(core) < ticket)
        return park(call, &command, NULL);
    enum status status = core_ticket_reap(core, ticket, &result, &call->error);
    if (status == STATUS_TIMEOUT && in_time)
        return park(call, &command, NULL);
    if (status == STATUS_OK)
        fill_wait(&call->reply, &result, &call->error);
    return status;
}

enum status handle_wait(struct call *call)
{
    const struct wire_wait *wait = &call->request->wait;
    enum status status = call_check_time(call, "timeout_ms", wait->timeout_ms);
    return status == STATUS_OK
               ? wait_for_end(call, wait->ticket, clock_deadline_ns(wait->timeout_ms))
               : status;
}

// TIMEOUT: not all tickets up to `ticket` have ended.
static enum status fill_ended(const struct core_session *session, uint64_t ticket,
                              struct wire_reply *reply, struct error *error)
{
    uint64_t ended = core_tickets_ended(session);
    reply->answer = WIRE_ANSWER_TICKETS_ENDED;
    reply->tickets_ended.ticket = ended;
    return ended >= ticket ? STATUS_OK
                           : error_set(error, STATUS_TIMEOUT,
                                       "ticket %" PRIu64 " has not ended in time", ticket);
}

static bool retry_ended(struct parked *parked, bool last)
{
    struct wire_reply reply = {.message = ""};
    struct error error = {.status = STATUS_OK};
    const enum status status = fill_ended(parked->session->core, parked->ticket, &reply, &error);
    return park_tried(parked, status, !last, &reply, &error);
}

// Waits for the end of tickets that it does not reap.
enum status handle_tickets_ended(struct call *call)
{
    static const struct park_kind kind = {.list = PARK_ENDS, .retry = retry_ended};
    const struct wire_tickets_ended *given = &call->request->tickets_ended;
    enum status status = call_check_time(call, "timeout_ms", given->timeout_ms);
    if (status != STATUS_OK)
        return status;
    const struct park_command command = {.kind = &kind,
                                         .deadline_ns = clock_deadline_ns(given->timeout_ms),
                                         .ticket = given->ticket};
    status = fill_ended(call->session->core, given->ticket, &call->reply, &call->error);
    return status == STATUS_OK || clock_now_ns() >= command.deadline_ns
               ? status
               : park(call, &command, NULL);
}

// ---- all that queues work ----

static enum status check_queued(struct call *call, uint32_t flags, uint32_t known,
                                int32_t timeout_ms)
{
    const char *name = wire_command_name(call->request->command);
    if (flags & ~known)
        return error_set(&call->error, STATUS_UNSUPPORTED,
                         "%s: flags 0x%" PRIx32 " hold the unknown 0x%" PRIx32, name, flags,
                         flags & ~known);
    return call_check_time(call, "timeout_ms", timeout_ms);
}

// When a command is too late for a ticket. A Run that waits has one deadline for its ticket and its
// end together; that deadline may come first.
static int64_t ticket_deadline_ns(const struct call *call, int32_t timeout_ms)
{
    const struct asker *asker = &call->asker;
    int64_t deadline_ns = clock_deadline_ns(timeout_ms);
    return asker->waits && asker->deadline_ns < deadline_ns ? asker->deadline_ns : deadline_ns;
}

static bool keep_work(void *own)
{
    return work_keep(own);
}

static void finish_work(void *own)
{
    work_finish(own);
}

// At its deadline it is not tried: it might overtake older work.
static bool retry_work(struct parked *parked, bool last)
{
    struct error error = {.status = STATUS_OK};
    uint64_t ticket;
    if (last)
        error_set(&error, STATUS_BUSY,
                  "no ticket of the session came free in time (--max-tickets %u)",
                  parked->session->server->params->core.max_tickets);
    const enum status status =
        last ? STATUS_BUSY
             : work_submit(parked->session->core, (const void *)parked->own, &ticket, &error);
    if (status == STATUS_BUSY && !last)
        return true;
    if (status != STATUS_OK) {
        park_refuse(parked, &error);
    } else if (parked->asker.waits) { // its client waits for the end of the run
        park_become(parked, &end_of_run, ticket, parked->asker.deadline_ns);
    } else {
        const struct wire_reply reply = {.message = "", .answer = WIRE_ANSWER_RUN, .run = {ticket}};
        park_answer(parked, &reply);
    }
    return false;
}

// Core said BUSY: the command is parked, unless the client does not want to wait.
static enum status wait_for_ticket(struct call *call, const struct gpu_command *work,
                                   int32_t timeout_ms)
{
    static const struct park_kind kind = {.list = PARK_WORK,
                                          .size = sizeof *work,
                                          .retry = retry_work,
                                          .keep = keep_work,
                                          .finish = finish_work};
    if (timeout_ms == 0)
        return STATUS_BUSY;
    const struct park_command command = {.kind = &kind,
                                         .deadline_ns = ticket_deadline_ns(call, timeout_ms),
                                         .bytes = work_size(work)};
    return park(call, &command, work);
}

static enum status queue_work(struct call *call, const struct gpu_command *work, int32_t timeout_ms)
{
    const struct session *session = call->session;
    uint64_t ticket;
    if (session->num_parked_work > 0) {
        error_set(&call->error, STATUS_BUSY,
                  "%u commands of session %" PRIu64 " wait for a ticket already (--max-tickets)",
                  session->num_parked_work, session->id);
        return wait_for_ticket(call, work, timeout_ms);
    }
    enum status status = work_submit(session->core, work, &ticket, &call->error);
    if (status == STATUS_BUSY)
        return wait_for_ticket(call, work, timeout_ms);
    if (status == STATUS_OK && call->asker.waits) {
        call->asker.ticket = ticket;
        return wait_for_end(call, ticket, call->asker.deadline_ns);
    }
    call->reply.answer = WIRE_ANSWER_RUN;
    call->reply.run.ticket = ticket;
    return status;
}

// ---- runs ----

static enum status check_kind(struct call *call, uint32_t kind)
{
    if (kind <= WIRE_RUN_GATHER)
        return STATUS_OK;
    return error_set(&call->error, STATUS_UNSUPPORTED, "a run of the unknown kind %" PRIu32, kind);
}

// An option that a newer client knows.
static enum status check_options(struct call *call, const struct wire_run_options *options)
{
    const size_t count = sizeof options->reserved / sizeof options->reserved[0];
    for (size_t i = 0; i < count; i++) {
        if (options->reserved[i])
            return error_set(&call->error, STATUS_UNSUPPORTED,
                             "a run with the unknown option 0x%" PRIx32
                             ", %zu words before the end",
                             options->reserved[i], count - i);
    }
    return STATUS_OK;
}

static enum status begin_wait(struct call *call, const struct wire_run *run)
{
    call->asker.waits = run->waits;
    call->asker.deadline_ns = run->waits ? clock_deadline_ns(run->wait_ms) : 0;
    return run->waits ? call_check_time(call, "wait_ms", run->wait_ms) : STATUS_OK;
}

// Kernels skip excluded keys. A value that would let these keys in cannot be meant.
static enum status check_mask_value(struct call *call, float value)
{
    if (value == 0 || value <= -1e30f)
        return STATUS_OK;
    return error_set(
        &call->error, STATUS_INVALID,
        "mask_value is %g; 0, -inf or anything from -1e30 down means excluded, others are not done",
        (double)value);
}

// A vector of a run that lies in the arena. It has `wanted` entries, one for each of what `per`
// names.
struct run_vector {
    const char *name, *per;
    struct wire_span span;
    uint64_t wanted;
    uint32_t element_size;
};

// *values is NULL if the span is not given. The memory lives as long as the call.
static enum status fetch_vector(struct call *call, const struct run_vector *vector,
                                const void **values)
{
    const struct metadata field = {
        .name = vector->name, .span = vector->span, .element_size = vector->element_size};
    uint32_t count;
    if (vector->span.count && vector->span.count != vector->wanted)
        return error_set(&call->error, STATUS_INVALID, "%s has %" PRIu64 " entries; %s is %" PRIu64,
                         vector->name, vector->span.count, vector->per, vector->wanted);
    return metadata_fetch(call, &field, values, &count);
}

static enum status fetch_vectors(struct call *call, struct core_run_params *params)
{
    const struct wire_run *run = &call->request->run;
    const char *heads =
        run->layers.num_layers > 1 ? "what num_heads and the layers come to" : "num_heads";
    const struct run_vector vectors[] = {
        {"slopes", heads, run->entry.slopes, core_run_heads(params, run->layers.slopes),
         sizeof(float)},
        {"sinks", heads, run->entry.sinks, core_run_heads(params, run->layers.sinks),
         sizeof(float)},
        {"rope_frequencies", "rope_dim / 2", run->entry.rope_frequencies, run->entry.rope_dim / 2,
         sizeof(double)},
        {"scales", "two for each layer", run->scales, UINT64_C(2) * core_run_layers(params),
         sizeof(float)},
    };
    const void *values[sizeof vectors / sizeof vectors[0]] = {NULL};
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        enum status status = fetch_vector(call, &vectors[i], &values[i]);
        if (status != STATUS_OK)
            return status;
    }
    params->slopes = values[0];
    params->sinks = values[1];
    params->frequencies = values[2];
    if (values[3]) {
        params->k_scales = values[3];
        params->v_scales = params->k_scales + core_run_layers(params);
    }
    return STATUS_OK;
}

enum status handle_run(struct call *call)
{
    const struct wire_run *run = &call->request->run;
    const uint32_t flags = WIRE_RUN_CAUSAL | WIRE_RUN_DETACHED | WIRE_RUN_ROPE_INTERLEAVED;
    enum status status = check_queued(call, run->entry.flags, flags, run->timeout_ms);
    if (status == STATUS_OK)
        status = begin_wait(call, run);
    if (status == STATUS_OK)
        status = check_kind(call, run->entry.kind);
    if (status == STATUS_OK)
        status = check_options(call, &run->options);
    if (status == STATUS_OK)
        status = check_mask_value(call, run->entry.mask_value);
    if (status != STATUS_OK)
        return status;
    struct gpu_command work = {
        .kind = WORK_RUN,
        .run = {.entry = run->entry, .layers = run->layers, .options = run->options},
    };
    status = fetch_vectors(call, &work.run);
    return status == STATUS_OK ? queue_work(call, &work, run->timeout_ms) : status;
}

// ---- copies and merges ----

// A copy between blocks and the session's arena.
static enum status move_blocks(struct call *call, const struct wire_blocks_copy *copy)
{
    const bool out = copy->way == WIRE_COPY_OUT;
    const struct wire_ints *blocks = out ? &copy->from : &copy->to,
                           *others = out ? &copy->to : &copy->from;
    if (others->count)
        return error_set(&call->error, STATUS_INVALID,
                         "a copy %s the arena names %" PRIu32 " blocks on the arena's side",
                         out ? "to" : "from", others->count);
    const struct gpu_command work = {
        .kind = WORK_MOVE,
        .move =
            {
                .cache = copy->cache,
                .out = out,
                .blocks = blocks->data,
                .count = blocks->count,
                .offset = copy->offset,
                .detached = copy->flags & WIRE_RUN_DETACHED,
            },
    };
    return queue_work(call, &work, copy->timeout_ms);
}

enum status handle_blocks_copy(struct call *call)
{
    const struct wire_blocks_copy *copy = &call->request->blocks_copy;
    enum status status = check_queued(call, copy->flags, WIRE_RUN_DETACHED, copy->timeout_ms);
    if (status != STATUS_OK)
        return status;
    if (copy->way == WIRE_COPY_IN || copy->way == WIRE_COPY_OUT)
        return move_blocks(call, copy);
    if (copy->way != WIRE_COPY_WITHIN)
        return error_set(&call->error, STATUS_UNSUPPORTED, "a copy has no way %" PRIu32, copy->way);
    if (copy->from.count != copy->to.count)
        return error_set(&call->error, STATUS_INVALID, "a copy from %" PRIu32 " blocks to %" PRIu32,
                         copy->from.count, copy->to.count);
    const struct gpu_command work = {
        .kind = WORK_COPY,
        .copy =
            {
                .cache = copy->cache,
                .from = copy->from.data,
                .to = copy->to.data,
                .count = copy->to.count,
                .detached = copy->flags & WIRE_RUN_DETACHED,
            },
    };
    return queue_work(call, &work, copy->timeout_ms);
}

static enum status parts_of(struct call *call, const struct wire_merge *merge,
                            const struct engine_part **out)
{
    if (merge->outs.count != merge->lses.count)
        return error_set(&call->error, STATUS_INVALID,
                         "a merge of %" PRIu32 " outs and %" PRIu32 " lses", merge->outs.count,
                         merge->lses.count);
    struct engine_part *parts = call_alloc(call, (size_t)merge->outs.count + 1, sizeof *parts);
    if (!parts)
        return call->error.status;
    for (uint32_t i = 0; i < merge->outs.count; i++)
        parts[i] = (struct engine_part){merge->outs.data[i], merge->lses.data[i]};
    *out = parts;
    return STATUS_OK;
}

enum status handle_merge(struct call *call)
{
    const struct wire_merge *merge = &call->request->merge;
    const struct engine_part *parts = NULL;
    enum status status = check_queued(call, merge->flags, WIRE_RUN_DETACHED, merge->timeout_ms);
    if (status == STATUS_OK)
        status = parts_of(call, merge, &parts);
    if (status != STATUS_OK)
        return status;
    const struct gpu_command work = {
        .kind = WORK_MERGE,
        .merge =
            {
                .num_tokens = merge->num_tokens,
                .num_heads = merge->num_heads,
                .head_dim = merge->head_dim,
                .parts = parts,
                .num_parts = merge->outs.count,
                .out = merge->out,
                .lse = merge->lse,
                .lse_base2 = merge->lse_base2,
                .detached = merge->flags & WIRE_RUN_DETACHED,
            },
    };
    return queue_work(call, &work, merge->timeout_ms);
}
