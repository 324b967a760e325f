// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// dispatch.c - see dispatch.h.

#include "dispatch.h"

#include "lane.h"
#include "log.h"
#include "offload.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const handler handlers[WIRE_COMMAND_COUNT] = {
#define COMMAND(NAME, name, rules, since) [WIRE_COMMAND_##NAME] = handle_##name,
    WIRE_RULES_MAP(COMMAND)
#undef COMMAND
};

// ---- replies ----

static void send_reply(struct server *server, const struct route *route,
                       const struct wire_reply *reply);

static void send_refusal(struct server *server, const struct route *route,
                         const struct error *error)
{
    const struct wire_reply reply = {
        .status = error->status, .message = error->text, .answer = WIRE_ANSWER_EMPTY};
    send_reply(server, route, &reply);
}

// Only a list of names may need more than the server's own room. No command that changes something
// is answered by one.
static enum status encode(const struct server *server, const struct wire_reply *reply,
                          struct wire_buffer *own, const void **data, size_t *size,
                          struct error *error)
{
    enum status status = wire_encode_reply_in(reply, server->reply, WIRE_ENCODE_ROOM, size, error);
    *own = (struct wire_buffer){.data = NULL};
    *data = server->reply;
    if (status != STATUS_LIMIT)
        return status;
    status = wire_encode_reply(reply, own, error);
    *data = own->data;
    *size = own->size;
    return status;
}

static void send_reply(struct server *server, const struct route *route,
                       const struct wire_reply *reply)
{
    struct wire_buffer own;
    struct error error = {.status = STATUS_OK};
    const void *data;
    size_t size;
    if (encode(server, reply, &own, &data, &size, &error) == STATUS_OK) {
        if (!listener_reply(server->listener, route, data, size))
            log_error("daemon: no memory for a reply of %zu bytes; its connection is closed", size);
        wire_buffer_finish(&own);
    } else if (reply->answer != WIRE_ANSWER_EMPTY) {
        log_error("daemon: a reply could not be encoded: %s", error.text);
        send_refusal(server, route, &error);
    } else {
        log_error("daemon: a refusal could not be encoded: %s", error.text);
    }
}

void dispatch_reply(struct server *server, const struct asker *asker,
                    const struct wire_reply *reply)
{
    struct wire_reply told = *reply;
    told.ticket = asker->ticket;
    if (asker->ring)
        lane_answer(server, asker, &told);
    else
        send_reply(server, &asker->route, &told);
}

// Counts a request once, when it is refused for good: not at each retry while it was parked, nor
// for each part of a client's wait.
void dispatch_refuse(struct server *server, struct session *session, const struct asker *asker,
                     const struct error *error)
{
    bool counts =
        (error->status == STATUS_NO_BLOCKS && !asker->again) || error->status == STATUS_QUOTA;
    if (counts && session && session->core) {
        core_count_refusal(session->core, error->status);
        log_info("%s: refused, %s: %s", session->label, status_name(error->status), error->text);
    }
    const struct wire_reply reply = {
        .status = error->status, .message = error->text, .answer = WIRE_ANSWER_EMPTY};
    dispatch_reply(server, asker, &reply);
}

// ---- one call ----

struct scratch {
    struct scratch *next;
    max_align_t memory[];
};

void *call_alloc(struct call *call, size_t count, size_t size)
{
    size_t bytes;
    struct scratch *scratch = NULL;
    if (!__builtin_mul_overflow(count, size, &bytes) && bytes <= SIZE_MAX - sizeof *scratch)
        scratch = calloc(1, sizeof *scratch + bytes);
    if (!scratch) {
        error_set(&call->error, STATUS_NO_MEMORY, "the daemon has no memory for %zu x %zu bytes",
                  count, size);
        return NULL;
    }
    scratch->next = call->scratch;
    call->scratch = scratch;
    return scratch->memory;
}

enum status call_check_time(struct call *call, const char *name, int32_t ms)
{
    if (ms >= -1)
        return STATUS_OK;
    return error_set(&call->error, STATUS_INVALID, "%s = %" PRId32 "; -1 waits for ever", name, ms);
}

void call_finish(struct call *call)
{
    while (call->scratch) {
        struct scratch *next = call->scratch->next;
        free(call->scratch);
        call->scratch = next;
    }
}

static enum status check_state(const struct server *server, const struct call *call,
                               struct error *error)
{
    const char *name = wire_command_name(call->request->command);
    const bool takes_work = !(wire_command_rules(call->request->command) & WIRE_WHILE_STOPPING);
    if (server->device_lost && takes_work)
        return error_set(error, STATUS_DEVICE_LOST, "%s: the GPU is lost and the daemon ends",
                         name);
    if (server->stopping && takes_work)
        return error_set(error, STATUS_STOPPING, "%s: the daemon is stopping and takes no new work",
                         name);
    return STATUS_OK;
}

static enum status no_session(const struct server *server, const struct peer *peer,
                              const struct wire_request *request, struct error *error)
{
    const char *name = wire_command_name(request->command);
    if (peer->unmapped_session && peer->unmapped_session == request->session)
        return error_set(error, STATUS_NO_SESSION,
                         "%s: session %" PRIu64
                         " has ended: it was not mapped within %u s (--idle-timeout)",
                         name, request->session, server->params->idle_timeout_s);
    return error_set(error, STATUS_NO_SESSION,
                     "%s: session %" PRIu64 " is not open on this connection", name,
                     request->session);
}

// Members of a group that are neither root nor the daemon's user look into nobody else's sessions.
static enum status check_operator(const struct call *call, struct error *error)
{
    enum wire_command command = call->request->command;
    if (command == WIRE_COMMAND_HELLO || command == WIRE_COMMAND_PING ||
        listener_is_operator(call->peer))
        return STATUS_OK;
    return error_set(error, STATUS_DENIED,
                     "only uid %u and root may look at what is of others, or change it; the caller "
                     "has uid %u",
                     geteuid(), call->peer->user.uid);
}

// A worker changes nothing of others, not even of its own user's other workers.
static enum status check_control(const struct call *call, struct error *error)
{
    const enum wire_command command = call->request->command;
    const bool wanted = wire_command_rules(command) & WIRE_BY_CONTROL;
    if (wanted && !call->peer->by_control)
        return error_set(error, STATUS_DENIED, "%s is served only on the control socket, %s%s",
                         wire_command_name(command), call->server->socket, SOCKET_CONTROL);
    if (command == WIRE_COMMAND_HELLO && call->peer->by_control)
        return error_set(error, STATUS_DENIED,
                         "the control socket has no sessions; %s is the socket of workers",
                         call->server->socket);
    return STATUS_OK;
}

// The attributes of the command's table in aule.fbs say when the command is served.
static enum status find_session(struct server *server, struct call *call, struct error *error)
{
    const struct wire_request *request = call->request;
    const char *name = wire_command_name(request->command);
    const unsigned rules = wire_command_rules(request->command);
    struct session *session = call->peer->session;
    if (rules & WIRE_NO_SESSION) {
        enum status status = check_operator(call, error);
        return status == STATUS_OK ? check_control(call, error) : status;
    }
    if (request->epoch != server->epoch && request->epoch != 0)
        return error_set(error, STATUS_EPOCH, "%s: epoch %" PRIu64 " is not this daemon's %" PRIu64,
                         name, request->epoch, server->epoch);
    if (!session || session->id != request->session || session->stage == SESSION_MAKING)
        return no_session(server, call->peer, request, error);
    if (request->epoch == 0)
        return error_set(error, STATUS_EPOCH,
                         "%s: the request names no epoch; this daemon's is %" PRIu64, name,
                         server->epoch);
    if (session->stage == SESSION_UNMAPPED && !(rules & WIRE_BEFORE_MAPPED))
        return error_set(error, STATUS_INVALID, "%s: session %" PRIu64 " has not sent Mapped yet",
                         name, session->id);
    call->session = session;
    return STATUS_OK;
}

static enum status serve(struct server *server, struct call *call)
{
    enum status status = find_session(server, call, &call->error);
    if (status == STATUS_OK)
        status = check_state(server, call, &call->error);
    return status == STATUS_OK ? handlers[call->request->command](call) : status;
}

void dispatch_finish(struct call *call, enum status status)
{
    struct session *session = call->session;
    if (status != STATUS_OK)
        log_debug("%s: %s: %s: %s", session ? session->label : "connection",
                  wire_command_name(call->request->command), status_name(status), call->error.text);
    if (call->later && status == STATUS_OK)
        return;
    call->error.status = status;
    call->reply.status = status;
    if (status == STATUS_OK)
        dispatch_reply(call->server, &call->asker, &call->reply);
    else
        dispatch_refuse(call->server, session, &call->asker, &call->error);
}

enum status dispatch_verify(struct server *server, const void *data, size_t size,
                            struct wire_request *request, struct error *error)
{
    if (size > WIRE_MAX_MESSAGE)
        return error_set(error, STATUS_MALFORMED, "a message of %zu bytes exceeds the limit of %u",
                         size, WIRE_MAX_MESSAGE);
    memcpy(server->message, data, size);
    return wire_decode_request(server->message, size, request, error);
}

void dispatch_request(struct server *server, struct peer *peer, const struct asker *asker,
                      const struct wire_request *request)
{
    struct call call = {
        .server = server,
        .peer = peer,
        .asker = *asker,
        .request = request,
        .reply = {.message = "", .answer = WIRE_ANSWER_EMPTY},
    };
    enum status status = serve(server, &call);
    dispatch_finish(&call, status);
    call_finish(&call);
}

static enum status check_size(const struct server *server, const struct message *message,
                              struct error *error)
{
    if (message->data || message->size > WIRE_MAX_MESSAGE)
        return STATUS_OK; // dispatch_verify() refuses what is larger than any message
    return error_set(error, STATUS_LIMIT,
                     "a message of %zu bytes; a connection without a session sends at most %zu",
                     message->size, listener_max_request(server->listener, message->peer));
}

void dispatch_message(struct server *server, struct message *message)
{
    struct error error;
    enum status status;
    if (!offload_defer(server, message, &status, &error))
        dispatch_now(server, message);
    else if (status != STATUS_OK)
        send_refusal(server, &message->route, &error);
}

void dispatch_now(struct server *server, const struct message *message)
{
    const struct asker asker = {.route = message->route};
    struct wire_request request;
    struct error error;
    if (message->peer->refusal) {
        send_refusal(server, &message->route, message->peer->refusal);
    } else if (check_size(server, message, &error) != STATUS_OK ||
               dispatch_verify(server, message->data, message->size, &request, &error) !=
                   STATUS_OK) {
        log_debug("connection of pid %" PRIu64 ": %s", message->peer->pid, error.text);
        send_refusal(server, &message->route, &error);
    } else {
        dispatch_request(server, message->peer, &asker, &request);
    }
}
