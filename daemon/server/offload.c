// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// offload.c - see offload.h. A session has one offloaded command at most. While the job thread has
// that, or will have it, the session's segment stays mapped, even if the session ends: release()
// then says that it is gone. Between two pieces the job thread has nothing of it.

#include "offload.h"

#include "base/container_of.h"
#include "base/list.h"
#include "lane.h"
#include "park.h"
#include "session.h"

#include <inttypes.h>
#include <stdlib.h>

struct offload {
    struct job job;
    struct offload *prev, *next; // server->unfinished, if it has more pieces
    struct call call;
    struct wire_request request; // a copy without its arrays
    struct offload_steps steps;
    void *context;
    uint64_t counted;   // bytes of it in core's total of host memory
    enum status status; // of `fill`
    bool answered;      // the session has ended
    bool unfinished;    // it is in server->unfinished
};

static void fill(struct job *job)
{
    struct offload *offload = container_of(job, struct offload, job);
    offload->status = offload->steps.fill(&offload->call, offload->context);
}

// ---- memory ----

struct garbage {
    struct job job;
    void *memory;
};

static void free_memory(struct job *job)
{
    free(container_of(job, struct garbage, job)->memory);
}

static void freed(struct job *job, void *context)
{
    struct server *server = context;
    server->num_offloads--;
    free(container_of(job, struct garbage, job));
}

void offload_free(struct server *server, void *memory)
{
    struct garbage *garbage = server->jobs ? malloc(sizeof *garbage) : NULL;
    if (!garbage) {
        free(memory);
        return;
    }
    *garbage = (struct garbage){.job = {.work = free_memory, .done = freed, .is_long = true},
                                .memory = memory};
    server->num_offloads++;
    jobs_start(server->jobs, &garbage->job);
}

static void free_call(struct job *job)
{
    call_finish(&container_of(job, struct offload, job)->call);
}

static void call_freed(struct job *job, void *context)
{
    struct server *server = context;
    server->num_offloads--;
    free(container_of(job, struct offload, job));
}

// ---- a command ----

// True: it has more pieces.
static bool advance(struct offload *offload)
{
    struct call *call = &offload->call;
    bool more = false;
    enum status status =
        session_check_copy(call->session, wire_command_name(call->request->command), &call->error);
    if (status != STATUS_OK)
        return false; // the session has ended, which has answered
    status = offload->status;
    if (status == STATUS_OK)
        status = offload->steps.end(call, offload->context, &more);
    if (status != STATUS_OK || !more)
        dispatch_finish(call, status);
    return status == STATUS_OK && more;
}

// The session lives in core.
static void discount(struct offload *offload)
{
    core_memory_count(offload->call.session->core, -(int64_t)offload->counted);
    offload->counted = 0;
}

static void release(struct server *server, struct offload *offload)
{
    struct session *session = offload->call.session;
    if (session) {
        if (offload->counted)
            discount(offload);
        session->offload = NULL;
        lane_release(session);
        if (session->gone)
            session_gone(server, session);
    }
    offload->steps.drop(offload->context);
    offload->job = (struct job){.work = free_call, .done = call_freed, .is_long = true};
    jobs_start(server->jobs, &offload->job);
}

static void go_on(struct server *server, struct offload *offload)
{
    offload->unfinished = !offload->answered && advance(offload);
    if (offload->unfinished)
        LIST_APPEND(server->unfinished, offload);
    else
        release(server, offload);
}

void offload_step(struct server *server)
{
    struct offload *first = server->unfinished;
    if (!first)
        return;
    LIST_DELETE(server->unfinished, first);
    first->unfinished = false;
    go_on(server, first);
}

void offload_drop_session(struct session *session, const char *why)
{
    struct offload *offload = session->offload;
    struct error error;
    if (session->deferred_bytes) // its messages are answered without it
        core_memory_count(session->core, -(int64_t)session->deferred_bytes);
    session->deferred_bytes = session->num_deferred = 0;
    if (!offload || offload->answered)
        return;
    if (offload->counted)
        discount(offload);
    offload->answered = true;
    error_set(&error, STATUS_NO_SESSION, "session %" PRIu64 " has ended: %s", session->id, why);
    dispatch_refuse(session->server, NULL, &offload->call.asker, &error);
    if (!offload->unfinished)
        return; // the job's end, or advance(), goes on
    session->offload = NULL;
    offload->call.session = NULL; // it may be freed before the next turn
}

static void filled(struct job *job, void *context)
{
    go_on(context, container_of(job, struct offload, job));
}

static uint64_t tenant_of(const struct session *session)
{
    return session->group ? (uint64_t)(uintptr_t)session->group : session->uid;
}

enum status offload_start(struct call *call, const struct offload_steps *steps, void *context,
                          uint64_t bytes)
{
    const uint64_t counted = steps->memory ? bytes : 0;
    enum status status =
        core_memory_check(call->session->core, counted, steps->memory, &call->error);
    struct offload *offload = status == STATUS_OK ? malloc(sizeof *offload) : NULL;
    if (status == STATUS_OK && !offload)
        status =
            error_set(&call->error, STATUS_NO_MEMORY, "the daemon has no memory for a command");
    if (status != STATUS_OK)
        return status;
    core_memory_count(call->session->core, (int64_t)counted);
    *offload = (struct offload){
        .job = {.work = fill,
                .done = filled,
                .is_long = true,
                .tenant = tenant_of(call->session),
                .bytes = bytes},
        .call = *call,
        .request = *call->request,
        .steps = *steps,
        .context = context,
        .counted = counted,
    };
    offload->call.request = &offload->request;
    call->scratch = NULL;
    call->later = true;
    call->session->offload = offload;
    call->server->num_offloads++;
    lane_hold(call->session);
    offload->unfinished = !steps->fill;
    if (offload->unfinished)
        LIST_APPEND(call->server->unfinished, offload);
    else
        jobs_start(call->server->jobs, &offload->job);
    return STATUS_OK;
}

// ---- messages that wait ----

struct deferred {
    struct message message;
    uint64_t session; // which it counts for; 0 = none. Its peer may have another one by now
    struct deferred *prev, *next;
};

static enum status check_limits(const struct server *server, const struct session *session,
                                size_t size, struct error *error)
{
    const uint64_t most = server->params->core.max_batch_memory; // 0 = no limit
    if (session->num_deferred >= park_max(server->params))
        return error_set(error, STATUS_LIMIT,
                         "session %" PRIu64 " has %u messages waiting already (--max-tickets %u)",
                         session->id, session->num_deferred, server->params->core.max_tickets);
    if (most && (size > most || session->deferred_bytes > most - size))
        return error_set(error, STATUS_LIMIT,
                         "a message of %zu bytes cannot wait beside the %" PRIu64
                         " bytes of other waiting messages of session %" PRIu64
                         "; --max-batch-memory is %" PRIu64,
                         size, session->deferred_bytes, session->id, most);
    return core_memory_check(session->core, size, "a waiting message", error);
}

static struct session *session_of(const struct message *message)
{
    return message->peer->session;
}

// The session that it counts for; NULL: that has ended, or there was none.
static struct session *counted_for(const struct deferred *deferred)
{
    struct session *session = session_of(&deferred->message);
    return session && session->id == deferred->session ? session : NULL;
}

static void count(const struct deferred *deferred, bool in)
{
    struct session *session = counted_for(deferred);
    const int64_t size = (int64_t)deferred->message.size;
    if (!session || session->stage == SESSION_ENDING)
        return;
    session->num_deferred += in ? 1 : UINT32_MAX; // adding UINT32_MAX subtracts 1
    session->deferred_bytes += (uint64_t)(in ? size : -size);
    core_memory_count(session->core, in ? size : -size);
}

static bool has_deferred(const struct server *server, const struct peer *peer)
{
    for (const struct deferred *deferred = server->deferred; deferred; deferred = deferred->next)
        if (deferred->message.peer == peer)
            return true;
    return false;
}

bool offload_defer(struct server *server, struct message *message, enum status *status,
                   struct error *error)
{
    const struct session *session = session_of(message);
    *status = STATUS_OK;
    if (!(session && session->offload) && !has_deferred(server, message->peer))
        return false;
    if (session && session->core)
        *status = check_limits(server, session, message->size, error);
    struct deferred *deferred = *status == STATUS_OK ? malloc(sizeof *deferred) : NULL;
    if (*status == STATUS_OK && !deferred)
        *status =
            error_set(error, STATUS_NO_MEMORY, "the daemon has no memory for a message that waits");
    if (!deferred)
        return true;
    *deferred = (struct deferred){.message = *message,
                                  .session = session && session->core ? session->id : 0};
    message->handle = NULL;
    count(deferred, true);
    LIST_APPEND(server->deferred, deferred);
    return true;
}

static void drop(struct server *server, struct deferred *deferred)
{
    LIST_DELETE(server->deferred, deferred);
    message_finish(&deferred->message);
    free(deferred);
}

void offload_replay(struct server *server)
{
    struct deferred *deferred, *next;
    LIST_EACH_SAFE(server->deferred, deferred, next) {
        const struct session *session = counted_for(deferred);
        if (session && session->offload)
            continue;
        count(deferred, false);
        dispatch_now(server, &deferred->message);
        drop(server, deferred);
    }
}

void offload_forget_peer(struct server *server, const struct peer *peer)
{
    struct deferred *deferred, *next;
    LIST_EACH_SAFE(server->deferred, deferred, next) {
        if (deferred->message.peer == peer)
            drop(server, deferred);
    }
}

void offload_forget_all(struct server *server)
{
    while (server->deferred)
        drop(server, server->deferred);
}
