// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// connection.c - an nng REQ socket with one pipe for its whole life. When the pipe goes, the
// connection is gone, so nothing is sent twice or to another daemon. Each call takes an nng context
// of its own, so that calls of several threads run side by side; contexts are kept for later calls.
// Knows nothing of sessions. Any thread; nng's threads run the callbacks.
//
// The mutex is held while an nng operation starts. The end of the pipe sets `gone` and aborts
// pending operations under the same mutex. So an operation either starts before and is aborted, or
// it sees `gone`. None can wait for a pipe that never comes.
//
// Known limitation of nng 1.5.2 (the daemon's nng_cures.c explains it): a pipe may be closed in the
// microseconds between the head and the body of an incoming message. nng then never destroys the
// pipe, and nng_close() waits for ever. So the farewell's answer is the last message of a daemon,
// and this side waits longer for it than any working daemon needs. A hang remains possible only if
// an answer arrives at the very moment when the farewell or connection_hang_up() gives up.

#include "connection.h"

#include "error.h"
#include "fork.h"
#include "knock.h"
#include "socket_path.h"

#include <limits.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

struct call {
    nng_ctx context;
    nng_aio *aio;
    struct call *prev, *next;
};

struct connection {
    pid_t pid;
    char *path; // owned
    nng_socket socket;
    bool socket_open;
    pthread_mutex_t mutex; // guards the rest
    struct call *pending;  // owned by their callers
    struct call *spare;    // owned; at most as many as ever ran side by side
    nng_dialer dialer;
    nng_pipe pipe;
    pthread_cond_t changed; // ready or gone
    bool piped;             // the one pipe exists, or existed
    bool ready;             // it could be used
    bool gone;              // it is gone
    bool interrupted;
    const char *unanswered; // the command that ended the connection, or NULL
    void (*ended)(void *context);
    void *ended_context;
};

// What is left of a timeout, as nng wants it.
static nng_duration time_left(const struct timeout *timeout)
{
    int left = timeout_left(timeout);
    return left < 0 ? NNG_DURATION_INFINITE : (nng_duration)left;
}

// ---- the pipe: nng's threads ----

static void abort_pending(struct connection *connection)
{
    struct call *call;
    DL_FOREACH(connection->pending, call)
    nng_aio_abort(call->aio, NNG_ECONNRESET);
}

// Tells the watcher if the connection has ended. Pending operations are aborted already.
static void tell_end(struct connection *connection)
{
    pthread_mutex_lock(&connection->mutex);
    bool over = connection->gone || connection->interrupted;
    void (*ended)(void *) = over ? connection->ended : NULL;
    void *context = connection->ended_context;
    pthread_mutex_unlock(&connection->mutex);
    if (ended)
        ended(context);
}

void connection_watch(struct connection *connection, void (*ended)(void *context), void *context)
{
    pthread_mutex_lock(&connection->mutex);
    connection->ended = ended;
    connection->ended_context = context;
    pthread_mutex_unlock(&connection->mutex);
    tell_end(connection);
}

// nng dials again when a pipe is lost. But requests to one life of the daemon must not reach
// another one, so a second pipe is closed.
static void on_pipe_adding(nng_pipe pipe, nng_pipe_ev event, void *context)
{
    struct connection *connection = context;
    (void)event;
    pthread_mutex_lock(&connection->mutex);
    bool second = connection->piped;
    if (!second)
        connection->pipe = pipe;
    connection->piped = true;
    pthread_mutex_unlock(&connection->mutex);
    if (second)
        nng_pipe_close(pipe);
}

static void on_pipe_added(nng_pipe pipe, nng_pipe_ev event, void *context)
{
    struct connection *connection = context;
    (void)pipe;
    (void)event;
    pthread_mutex_lock(&connection->mutex);
    connection->ready = true;
    pthread_cond_broadcast(&connection->changed);
    pthread_mutex_unlock(&connection->mutex);
}

static void on_pipe_removed(nng_pipe pipe, nng_pipe_ev event, void *context)
{
    struct connection *connection = context;
    (void)pipe;
    (void)event;
    pthread_mutex_lock(&connection->mutex);
    connection->gone = true;
    pthread_cond_broadcast(&connection->changed);
    abort_pending(connection);
    pthread_mutex_unlock(&connection->mutex);
    tell_end(connection);
}

// ---- opening ----

static int socket_prepare(struct connection *connection)
{
    int error = nng_req0_open(&connection->socket);
    if (error)
        return error;
    connection->socket_open = true;
    error = nng_socket_set_size(connection->socket, NNG_OPT_RECVMAXSZ, WIRE_MAX_MESSAGE);
    if (!error)
        error =
            nng_socket_set_ms(connection->socket, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
    if (!error)
        error =
            nng_pipe_notify(connection->socket, NNG_PIPE_EV_ADD_PRE, on_pipe_adding, connection);
    if (!error)
        error =
            nng_pipe_notify(connection->socket, NNG_PIPE_EV_ADD_POST, on_pipe_added, connection);
    if (!error)
        error =
            nng_pipe_notify(connection->socket, NNG_PIPE_EV_REM_POST, on_pipe_removed, connection);
    return error;
}

// nng dials by itself, with growing pauses, until there is a pipe. The socket's queue holds 128
// clients that wait to be accepted. If all workers of a host start at once, some must dial again.
// nng's synchronous start is no choice: it knows no deadline, and never returns if the dialer is
// closed just before.
static int dial(struct connection *connection)
{
    enum { FIRST_PAUSE_MS = 10, LONGEST_PAUSE_MS = 320 };
    char url[sizeof "ipc://" + SOCKET_PATH_MAX];
    snprintf(url, sizeof url, "ipc://%s", connection->path);
    int error = nng_dialer_create(&connection->dialer, connection->socket, url);
    if (!error)
        error = nng_dialer_set_ms(connection->dialer, NNG_OPT_RECONNMINT, FIRST_PAUSE_MS);
    if (!error)
        error = nng_dialer_set_ms(connection->dialer, NNG_OPT_RECONNMAXT, LONGEST_PAUSE_MS);
    if (!error)
        error = nng_dialer_start(connection->dialer, NNG_FLAG_NONBLOCK);
    return error;
}

// The first pipe is also the last one.
static void dial_no_more(struct connection *connection)
{
    nng_dialer_set_ms(connection->dialer, NNG_OPT_RECONNMINT, INT_MAX);
    nng_dialer_set_ms(connection->dialer, NNG_OPT_RECONNMAXT, INT_MAX);
}

// Waits for at most `left_ms`.
static enum {
    NO_PIPE,
    PIPE_READY,
    PIPE_GONE
} look_for_pipe(struct connection *connection, int left_ms)
{
    pthread_mutex_lock(&connection->mutex);
    if (!connection->ready && !connection->gone && left_ms)
        clock_wait(&connection->changed, &connection->mutex, clock_deadline_ns(left_ms));
    bool ready = connection->ready, gone = connection->gone;
    pthread_mutex_unlock(&connection->mutex);
    return gone ? PIPE_GONE : ready ? PIPE_READY : NO_PIPE;
}

// Checks now and then whether the daemon still lives. Returns only after nng's greeting is over: a
// client that leaves in the middle of it can stop an nng 1.5.2 listener from accepting.
static enum aule_status await_pipe(struct connection *connection, const struct timeout *timeout)
{
    enum { LOOK_MS = 200 };
    for (;;) {
        int left = timeout_left(timeout);
        switch (look_for_pipe(connection, left < 0 || left > LOOK_MS ? LOOK_MS : left)) {
        case PIPE_READY: return AULE_OK;
        case PIPE_GONE:
            return fail(AULE_DAEMON_GONE,
                        "the process that listens at %s hung up at once: it is no daemon, it "
                        "has just ended, or it has reached --max-connections (its log says so)",
                        connection->path);
        case NO_PIPE: break;
        }
        enum aule_status status = knock(connection->path);
        if (status != AULE_OK)
            return status;
        if (left == 0)
            return fail(AULE_TIMEOUT, "the daemon at %s did not accept the connection within %d ms",
                        connection->path, timeout->ms);
    }
}

static enum aule_status no_room(const char *path, int error)
{
    if (error == NNG_ENOFILES)
        return fail_no_descriptor(path);
    return fail(AULE_NO_MEMORY, "no memory to connect to %s", path);
}

static enum aule_status connection_dial(struct connection *connection,
                                        const struct timeout *timeout)
{
    enum aule_status status = knock(connection->path);
    if (status != AULE_OK)
        return status;
    int error = socket_prepare(connection);
    if (!error)
        error = dial(connection);
    if (error == NNG_ENOMEM || error == NNG_ENOFILES)
        return no_room(connection->path, error);
    if (error)
        return fail(AULE_INTERNAL, "nng failed for %s: %s", connection->path, nng_strerror(error));
    status = await_pipe(connection, timeout);
    if (status == AULE_OK)
        dial_no_more(connection);
    return status;
}

enum aule_status connection_open(const char *path, const struct timeout *timeout,
                                 struct connection **out)
{
    enum aule_status status = fork_claim();
    if (status != AULE_OK)
        return status;
    struct connection *connection = calloc(1, sizeof *connection);
    if (!connection)
        return fail(AULE_NO_MEMORY, "no memory for a connection to %s", path);
    pthread_mutex_init(&connection->mutex, NULL);
    clock_init_cond(&connection->changed);
    connection->pid = getpid();
    connection->path = strdup(path);
    status = connection->path ? connection_dial(connection, timeout)
                              : fail(AULE_NO_MEMORY, "no memory for a connection to %s", path);
    if (status == AULE_OK)
        *out = connection;
    else
        connection_close(connection);
    return status;
}

const char *connection_path(const struct connection *connection)
{
    return connection->path;
}

// ---- closing ----

// In a forked child (`ours` is false) nng's objects are left alone; memory is freed in any process.
static void call_destroy(struct call *call, bool ours)
{
    if (ours) {
        nng_ctx_close(call->context);
        nng_aio_free(call->aio);
    }
    free(call);
}

void connection_close(struct connection *connection)
{
    if (!connection)
        return;
    bool ours = connection->pid == getpid();
    struct call *call, *next;
    // At a fork another thread of the parent may have been changing the list.
    if (pthread_mutex_trylock(&connection->mutex) == 0) {
        DL_FOREACH_SAFE(connection->spare, call, next)
        call_destroy(call, ours);
        pthread_mutex_unlock(&connection->mutex);
    }
    if (ours && connection->socket_open)
        nng_close(connection->socket); // returns when the callbacks are over
    if (ours) {
        pthread_cond_destroy(&connection->changed);
        pthread_mutex_destroy(&connection->mutex);
    }
    free(connection->path);
    free(connection);
}

void connection_interrupt(struct connection *connection)
{
    pthread_mutex_lock(&connection->mutex);
    connection->interrupted = true;
    abort_pending(connection);
    pthread_mutex_unlock(&connection->mutex);
    tell_end(connection);
}

enum aule_status connection_hang_up(struct connection *connection, const char *command,
                                    int timeout_ms)
{
    pthread_mutex_lock(&connection->mutex);
    connection->gone = true;
    connection->unanswered = command;
    abort_pending(connection);
    nng_pipe pipe = connection->pipe;
    pthread_mutex_unlock(&connection->mutex);
    tell_end(connection);
    // Without the mutex, because both call back. An open dialer would dial again.
    nng_dialer_close(connection->dialer);
    nng_pipe_close(pipe);
    return fail(AULE_TIMEOUT,
                "the daemon at %s did not answer %s within %d ms; the session is ended, "
                "aule_session_reconnect() begins another",
                connection->path, command, timeout_ms);
}

// ---- calling ----

static struct call *call_create(struct connection *connection)
{
    struct call *call = calloc(1, sizeof *call);
    if (!call)
        return NULL;
    if (nng_ctx_open(&call->context, connection->socket) != 0)
        goto fail;
    if (nng_aio_alloc(&call->aio, NULL, NULL) == 0)
        return call;
    nng_ctx_close(call->context);
fail:
    free(call);
    return NULL;
}

static struct call *call_begin(struct connection *connection)
{
    pthread_mutex_lock(&connection->mutex);
    struct call *call = connection->spare;
    if (call)
        DL_DELETE(connection->spare, call);
    pthread_mutex_unlock(&connection->mutex);
    if (!call)
        call = call_create(connection);
    if (!call)
        return NULL;
    pthread_mutex_lock(&connection->mutex);
    DL_APPEND(connection->pending, call);
    pthread_mutex_unlock(&connection->mutex);
    return call;
}

// A context whose exchange failed may still get its late answer, so it is not used again.
static void call_end(struct connection *connection, struct call *call, bool reusable)
{
    pthread_mutex_lock(&connection->mutex);
    DL_DELETE(connection->pending, call);
    if (reusable)
        DL_APPEND(connection->spare, call);
    pthread_mutex_unlock(&connection->mutex);
    if (!reusable)
        call_destroy(call, true);
}

// Starts one half of an exchange and waits for it. Returns an nng error.
static int call_step(struct connection *connection, struct call *call,
                     void (*start)(nng_ctx, nng_aio *), nng_duration timeout_ms, bool farewell)
{
    nng_aio_set_timeout(call->aio, timeout_ms);
    pthread_mutex_lock(&connection->mutex);
    bool open = !connection->gone && (farewell || !connection->interrupted);
    if (open)
        start(call->context, call->aio);
    pthread_mutex_unlock(&connection->mutex);
    if (!open)
        return NNG_ECONNRESET;
    nng_aio_wait(call->aio);
    return nng_aio_result(call->aio);
}

// Sends *message; *message then is the answer, or NULL after a failure. Returns an nng error.
static int exchange(struct connection *connection, nng_msg **message, const struct timeout *timeout,
                    bool farewell)
{
    struct call *call = call_begin(connection);
    int error = call ? 0 : NNG_ENOMEM;
    if (call) {
        nng_aio_set_msg(call->aio, *message);
        error = call_step(connection, call, nng_ctx_send, time_left(timeout), farewell);
    }
    if (error) { // after success nng owns the message
        nng_msg_free(*message);
        *message = NULL;
    } else {
        *message = NULL;
        error = call_step(connection, call, nng_ctx_recv, time_left(timeout), farewell);
        if (!error)
            *message = nng_aio_get_msg(call->aio);
    }
    if (call)
        call_end(connection, call, !error);
    return error;
}

static enum aule_status call_error(struct connection *connection, int error, const char *command,
                                   const struct timeout *timeout)
{
    pthread_mutex_lock(&connection->mutex);
    bool closed = connection->interrupted;
    const char *unanswered = connection->unanswered;
    pthread_mutex_unlock(&connection->mutex);
    switch (error) {
    case 0: return AULE_OK;
    case NNG_ETIMEDOUT:
        return fail(AULE_TIMEOUT, "the daemon at %s did not answer %s within %d ms",
                    connection->path, command, timeout->ms);
    case NNG_ENOMEM:
        return fail(AULE_NO_MEMORY, "no memory to send %s to %s", command, connection->path);
    case NNG_ECONNRESET:
    case NNG_ECLOSED:
    case NNG_ECANCELED:
        if (closed)
            return fail(AULE_DAEMON_GONE, "the session was closed before %s was answered", command);
        if (unanswered)
            return fail(AULE_DAEMON_GONE,
                        "%s failed: the session ended when the daemon at %s did not answer %s in "
                        "time",
                        command, connection->path, unanswered);
        return fail(AULE_DAEMON_GONE, "the daemon at %s is gone; %s has no answer",
                    connection->path, command);
    default:
        return fail(AULE_INTERNAL, "%s to %s: %s", command, connection->path, nng_strerror(error));
    }
}

enum aule_status connection_end_error(struct connection *connection, const char *command)
{
    pthread_mutex_lock(&connection->mutex);
    bool over = connection->gone || connection->interrupted;
    pthread_mutex_unlock(&connection->mutex);
    return over ? call_error(connection, NNG_ECONNRESET, command, NULL) : AULE_OK;
}

static enum aule_status encode(const struct wire_request *request, nng_msg **message)
{
    struct error error = {.status = STATUS_OK};
    struct wire_buffer buffer = {.data = NULL};
    enum status status = wire_encode_request(request, &buffer, &error);
    if (status != STATUS_OK)
        return fail((enum aule_status)status, "%s: %s", wire_command_name(request->command),
                    error.text);
    enum aule_status result = AULE_OK;
    if (nng_msg_alloc(message, 0) != 0) {
        result = fail(AULE_NO_MEMORY, "no memory for a message of %zu bytes", buffer.size);
    } else if (nng_msg_append(*message, buffer.data, buffer.size) != 0) {
        nng_msg_free(*message);
        result = fail(AULE_NO_MEMORY, "no memory for a message of %zu bytes", buffer.size);
    }
    wire_buffer_finish(&buffer);
    return result;
}

// nng's message body may have any alignment. The decoder wants a private, aligned copy.
static enum aule_status decode(nng_msg *message, const char *command, struct answer *answer)
{
    size_t size = nng_msg_len(message);
    answer->message = malloc(size ? size : 1);
    if (!answer->message)
        return fail(AULE_NO_MEMORY, "no memory for the answer to %s, %zu bytes", command, size);
    memcpy(answer->message, nng_msg_body(message), size);
    struct error error = {.status = STATUS_OK};
    enum status status = wire_decode_reply(answer->message, size, &answer->reply, &error);
    if (status != STATUS_OK)
        return fail((enum aule_status)status, "the answer to %s: %s", command, error.text);
    return AULE_OK;
}

static bool is_answer(const struct wire_request *request, enum wire_answer expected,
                      enum wire_answer answer)
{
    bool waits = request->command == WIRE_COMMAND_RUN && request->run.waits;
    return answer == expected || (waits && answer == WIRE_ANSWER_RUN);
}

static enum aule_status judge(const struct wire_reply *reply, const struct wire_request *request,
                              enum wire_answer expected)
{
    const char *command = wire_command_name(request->command);
    if (reply->status < STATUS_OK || reply->status > STATUS_INTERNAL)
        return fail(AULE_MALFORMED, "%s was answered with the unknown status %d: %s", command,
                    reply->status, reply->message ? reply->message : "");
    if (reply->status != STATUS_OK)
        return fail((enum aule_status)reply->status, "%s", reply->message ? reply->message : "");
    if (!is_answer(request, expected, reply->answer))
        return fail(AULE_MALFORMED, "%s was answered with kind %d instead of %d", command,
                    (int)reply->answer, (int)expected);
    return AULE_OK;
}

static enum aule_status call(struct connection *connection, const struct wire_request *request,
                             const struct timeout *timeout, bool farewell,
                             enum wire_answer expected, struct answer *answer)
{
    const char *command = wire_command_name(request->command);
    nng_msg *message = NULL;
    enum aule_status status = encode(request, &message);
    if (status != AULE_OK)
        return status;
    int error = exchange(connection, &message, timeout, farewell);
    answer->missing = error == NNG_ETIMEDOUT;
    status = call_error(connection, error, command, timeout);
    if (status != AULE_OK)
        return status;
    status = decode(message, command, answer);
    nng_msg_free(message);
    if (status == AULE_OK)
        status = judge(&answer->reply, request, expected);
    if (status != AULE_OK) {
        uint64_t ticket = answer->reply.ticket;
        answer_finish(answer);
        answer->reply.ticket = ticket;
    }
    return status;
}

enum aule_status connection_call(struct connection *connection, const struct wire_request *request,
                                 const struct timeout *timeout, enum wire_answer expected,
                                 struct answer *answer)
{
    *answer = (struct answer){.message = NULL};
    enum aule_status status = fork_check(connection->pid, "the connection");
    return status == AULE_OK ? call(connection, request, timeout, false, expected, answer) : status;
}

void connection_farewell(struct connection *connection, const struct wire_request *request,
                         int timeout_ms)
{
    const struct timeout timeout = timeout_start(timeout_ms);
    struct answer answer = {.message = NULL};
    if (call(connection, request, &timeout, true, WIRE_ANSWER_EMPTY, &answer) == AULE_OK)
        answer_finish(&answer);
}

void answer_finish(struct answer *answer)
{
    wire_reply_finish(&answer->reply);
    free(answer->message);
    *answer = (struct answer){.message = NULL};
}
