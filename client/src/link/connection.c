// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// connection.c - one pipe to the daemon for the connection's whole life. When the pipe breaks, the
// connection is over: no request is sent twice or to another daemon. Several threads may call at
// once. Each calling thread sends its own request. The connection's reader thread receives the
// answers and wakes the call that each answer belongs to. The reader also notices the daemon's end
// while no call waits. Knows nothing of sessions. Any thread.

#include "connection.h"

#include "base/list.h"
#include "client/src/error.h"
#include "client/src/fork.h"
#include "knock.h"
#include "pipe.h"
#include "schema/frame.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

// A request that has no answer yet. Lies on the caller's stack, unless it was posted.
struct call {
    uint32_t id;
    connection_heard heard; // posted: the reader gives it the answer and frees the call; else NULL
    void *context;          // for heard()
    bool answered;
    void *body; // malloc'd; NULL: there was no memory for it
    size_t size;
    pthread_cond_t done; // answered, or the connection ended
    struct call *prev, *next;
};

struct connection {
    pid_t pid;
    char *path; // owned
    int fd;     // -1: none
    pthread_t reader;
    bool reading;            // the thread was started
    pthread_mutex_t mutex;   // guards all below but `unsent`, which `sending` guards
    pthread_cond_t sendable; // `sending` became false
    bool sending;            // a thread is writing a frame
    uint8_t *unsent;         // the rest of a frame whose caller gave up; sent first; owned
    size_t unsent_size;      // bytes
    struct call *pending;
    uint32_t last_id;
    bool gone; // the pipe went
    bool interrupted;
    bool read_out;          // the reader has ended: it has read all that the daemon sent
    bool answered;          // an answer has come
    struct error parting;   // why the daemon closed the connection; OK = it did not say
    const char *unanswered; // the command that ended the connection, or NULL
    struct connection_watcher *watchers; // the callers'
};

// ---- the end of the pipe ----

static void wake_pending(struct connection *connection)
{
    struct call *call;
    LIST_EACH(connection->pending, call) {
        if (!call->heard)
            pthread_cond_signal(&call->done);
    }
    pthread_cond_broadcast(&connection->sendable);
}

// Tells the watchers if the connection is over. Pending calls are awake already. A watcher in the
// list never changes, so the list is read without the mutex.
static void tell_end(struct connection *connection)
{
    pthread_mutex_lock(&connection->mutex);
    bool over = connection->gone || connection->interrupted;
    const struct connection_watcher *watcher = over ? connection->watchers : NULL;
    pthread_mutex_unlock(&connection->mutex);
    for (; watcher; watcher = watcher->next)
        watcher->ended(watcher->context);
}

void connection_watch(struct connection *connection, struct connection_watcher *watcher)
{
    pthread_mutex_lock(&connection->mutex);
    LIST_PREPEND(connection->watchers, watcher);
    pthread_mutex_unlock(&connection->mutex);
    tell_end(connection);
}

static void end_pipe(struct connection *connection)
{
    pthread_mutex_lock(&connection->mutex);
    connection->gone = true;
    wake_pending(connection);
    pthread_mutex_unlock(&connection->mutex);
    shutdown(connection->fd, SHUT_RDWR); // wakes the reader, and the daemon notices
    tell_end(connection);
}

// ---- the reader ----

static struct call *find_pending(const struct connection *connection, uint32_t id)
{
    struct call *call;
    LIST_EACH(connection->pending, call) {
        if (call->id == id)
            break;
    }
    return call;
}

// Ends a posted call, which is not pending any more.
static void tell_posted(struct call *call, void *body, size_t size)
{
    struct error error;
    struct wire_reply reply = {.status = STATUS_OK};
    bool readable = wire_decode_reply(body, size, &reply, &error) == STATUS_OK;
    call->heard(call->context, readable ? &reply : NULL);
    if (readable)
        wire_reply_finish(&reply);
    free(call);
}

static void hear_parting(struct connection *connection, const void *body, size_t size)
{
    struct error error;
    struct wire_reply reply;
    if (!body || wire_decode_reply(body, size, &reply, &error) != STATUS_OK)
        return;
    pthread_mutex_lock(&connection->mutex);
    if (reply.status > STATUS_OK && reply.status <= STATUS_INTERNAL)
        error_set(&connection->parting, (enum status)reply.status, "%s",
                  reply.message ? reply.message : "");
    pthread_mutex_unlock(&connection->mutex);
    wire_reply_finish(&reply);
}

static void deliver(struct connection *connection, uint32_t id, void *body, size_t size)
{
    if (id == FRAME_PARTING) {
        hear_parting(connection, body, size);
        free(body);
        return;
    }
    pthread_mutex_lock(&connection->mutex);
    connection->answered = true;
    struct call *call = find_pending(connection, id), *posted = call && call->heard ? call : NULL;
    if (posted) {
        LIST_DELETE(connection->pending, posted);
    } else if (call && !call->answered) {
        call->answered = true;
        call->body = body;
        call->size = size;
        body = NULL;
        pthread_cond_signal(&call->done);
    }
    pthread_mutex_unlock(&connection->mutex);
    if (posted)
        tell_posted(posted, body, size);
    free(body); // of a posted call, or of one that was given up
}

static void *read_answers(void *context)
{
    struct connection *connection = context;
    uint32_t id;
    void *body;
    size_t size;
    while (pipe_receive(connection->fd, &id, &body, &size))
        deliver(connection, id, body, size);
    pthread_mutex_lock(&connection->mutex);
    connection->read_out = true;
    pthread_mutex_unlock(&connection->mutex);
    end_pipe(connection);
    return NULL;
}

// The reader blocks all signals: they are for the program's own threads.
static enum aule_status start_reader(struct connection *connection)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&connection->reader, NULL, read_answers, connection);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    connection->reading = error == 0;
    return error == 0 ? AULE_OK
                      : fail(AULE_NO_MEMORY, "no thread for a connection to %s: %s",
                             connection->path, strerror(error));
}

// ---- opening and closing ----

enum aule_status connection_open(const char *path, const struct timeout *timeout,
                                 struct connection **out)
{
    struct connection *connection = calloc(1, sizeof *connection);
    if (!connection)
        return fail(AULE_NO_MEMORY, "no memory for a connection to %s", path);
    pthread_mutex_init(&connection->mutex, NULL);
    clock_init_cond(&connection->sendable);
    connection->pid = getpid();
    connection->fd = -1;
    connection->path = strdup(path);
    enum aule_status status = connection->path
                                  ? pipe_open(path, timeout, &connection->fd)
                                  : fail(AULE_NO_MEMORY, "no memory for a connection to %s", path);
    if (status == AULE_OK)
        status = start_reader(connection);
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

// In a forked child the descriptor is a copy, so the parent's pipe stays open. The child does not
// destroy the locks, because a thread of the parent may have held them at the fork.
void connection_close(struct connection *connection)
{
    if (!connection)
        return;
    bool ours = connection->pid == getpid();
    if (ours && connection->reading) {
        shutdown(connection->fd, SHUT_RDWR);
        pthread_join(connection->reader, NULL);
    }
    if (connection->fd >= 0)
        close(connection->fd);
    // Posted ones. In a child there may be others, on the stacks of its parent's threads.
    for (struct call *call = ours ? connection->pending : NULL, *next; call; call = next) {
        next = call->next;
        free(call);
    }
    if (ours) {
        pthread_cond_destroy(&connection->sendable);
        pthread_mutex_destroy(&connection->mutex);
    }
    free(connection->unsent);
    free(connection->path);
    free(connection);
}

void connection_interrupt(struct connection *connection)
{
    pthread_mutex_lock(&connection->mutex);
    connection->interrupted = true;
    wake_pending(connection);
    pthread_mutex_unlock(&connection->mutex);
    tell_end(connection);
}

void connection_hang_up(struct connection *connection, const char *command)
{
    pthread_mutex_lock(&connection->mutex);
    connection->unanswered = command;
    pthread_mutex_unlock(&connection->mutex);
    end_pipe(connection);
}

// ---- calling ----

// With the mutex held.
static bool may_call(const struct connection *connection, bool farewell)
{
    return !connection->gone && (farewell || !connection->interrupted);
}

// Waits, with the mutex held, until `condition` is signalled. False: the deadline has passed.
static bool wait_on(struct connection *connection, pthread_cond_t *condition,
                    const struct timeout *timeout)
{
    int left = timeout_left(timeout);
    return left != 0 &&
           clock_wait(condition, &connection->mutex, clock_deadline_ns(left)) != ETIMEDOUT;
}

// Sends what it can until the timeout. Checks now and then whether the call was interrupted,
// because a stopped daemon may never read. Returns the bytes that were sent.
static size_t send_some(struct connection *connection, const uint8_t *data, size_t size,
                        const struct timeout *timeout, bool farewell, int *error)
{
    size_t sent = 0;
    *error = 0;
    while (*error == 0 && sent < size) {
        int left = timeout_left(timeout);
        const struct timeout look = timeout_start(timeout_look(timeout));
        bool gone = false;
        sent += pipe_send(connection->fd, data + sent, size - sent, &look, &gone);
        pthread_mutex_lock(&connection->mutex);
        bool may = may_call(connection, farewell);
        pthread_mutex_unlock(&connection->mutex);
        if (sent < size)
            *error = gone ? ECONNRESET : !may ? ECANCELED : left == 0 ? ETIMEDOUT : 0;
    }
    return sent;
}

// Sends the rest that an earlier caller has left, then the frame. If time runs out inside the
// frame, the next caller sends its rest, so that the stream stays whole. Returns 0, ETIMEDOUT,
// ECANCELED (interrupted) or ECONNRESET.
static int write_frame(struct connection *connection, const uint8_t *frame, size_t size,
                       const struct timeout *timeout, bool farewell)
{
    int error;
    size_t sent = send_some(connection, connection->unsent, connection->unsent_size, timeout,
                            farewell, &error);
    connection->unsent_size -= sent;
    if (connection->unsent_size > 0) {
        memmove(connection->unsent, connection->unsent + sent, connection->unsent_size);
        return error;
    }
    sent = send_some(connection, frame, size, timeout, farewell, &error);
    if (error == 0 || error == ECONNRESET || sent == 0)
        return error;
    free(connection->unsent);
    connection->unsent = malloc(size - sent);
    if (!connection->unsent)
        return ECONNRESET;
    connection->unsent_size = size - sent;
    memcpy(connection->unsent, frame + sent, size - sent);
    return error;
}

// Lets one thread at a time write its frame.
static int send_frame(struct connection *connection, const uint8_t *frame, size_t size,
                      const struct timeout *timeout, bool farewell)
{
    int error = 0;
    pthread_mutex_lock(&connection->mutex);
    while (error == 0 && connection->sending && may_call(connection, farewell))
        error = wait_on(connection, &connection->sendable, timeout) ? 0 : ETIMEDOUT;
    if (error == 0 && !may_call(connection, farewell))
        error = ECONNRESET;
    connection->sending = error == 0 || connection->sending;
    pthread_mutex_unlock(&connection->mutex);
    if (error)
        return error;
    error = write_frame(connection, frame, size, timeout, farewell);
    pthread_mutex_lock(&connection->mutex);
    connection->sending = false;
    pthread_cond_broadcast(&connection->sendable);
    pthread_mutex_unlock(&connection->mutex);
    if (error == ECONNRESET)
        end_pipe(connection); // the reader may not have noticed yet, and nothing can be sent
    return error;
}

static void make_pending(struct connection *connection, struct call *call)
{
    pthread_mutex_lock(&connection->mutex);
    call->id = ++connection->last_id | UINT32_C(1) << 31;
    LIST_APPEND(connection->pending, call);
    pthread_mutex_unlock(&connection->mutex);
}

static void call_begin(struct connection *connection, struct call *call)
{
    clock_init_cond(&call->done);
    make_pending(connection, call);
}

static int await_answer(struct connection *connection, struct call *call,
                        const struct timeout *timeout, bool farewell)
{
    bool in_time = true;
    pthread_mutex_lock(&connection->mutex);
    while (in_time && !call->answered && may_call(connection, farewell))
        in_time = wait_on(connection, &call->done, timeout);
    int error = call->answered ? call->body ? 0 : ENOMEM : in_time ? ECONNRESET : ETIMEDOUT;
    pthread_mutex_unlock(&connection->mutex);
    return error;
}

static void call_end(struct connection *connection, struct call *call)
{
    pthread_mutex_lock(&connection->mutex);
    LIST_DELETE(connection->pending, call);
    pthread_mutex_unlock(&connection->mutex);
    pthread_cond_destroy(&call->done);
}

// Writes the frame's head, sends the frame and gets the body of its answer.
static int exchange(struct connection *connection, uint8_t *frame, size_t size,
                    const struct timeout *timeout, bool farewell, struct call *call)
{
    *call = (struct call){.answered = false};
    call_begin(connection, call);
    frame_write_head(frame, call->id, size - FRAME_HEAD);
    int error = send_frame(connection, frame, size, timeout, farewell);
    if (error == 0)
        error = await_answer(connection, call, timeout, farewell);
    call_end(connection, call);
    if (error) {
        free(call->body);
        call->body = NULL;
    }
    return error;
}

// The pipe is gone, so the reader ends as soon as it has read what the daemon sent before.
static struct error read_parting(struct connection *connection, bool *answered)
{
    const struct timeout limit = timeout_start(1000);
    pthread_mutex_lock(&connection->mutex);
    while (!connection->read_out && !pthread_equal(pthread_self(), connection->reader) &&
           wait_on(connection, &connection->sendable, &limit))
        ;
    const struct error parting = connection->parting;
    *answered = connection->answered;
    pthread_mutex_unlock(&connection->mutex);
    return parting;
}

// Python's connect() waits for another daemon after a sentence that begins "the daemon at".
static enum aule_status gone_error(struct connection *connection, const char *command)
{
    bool answered;
    const struct error parting = read_parting(connection, &answered);
    if (parting.status != STATUS_OK &&
        (!answered || parting.status == STATUS_DENIED || parting.status == STATUS_NO_SESSION))
        return fail((enum aule_status)parting.status, "%s", parting.text);
    if (parting.status != STATUS_OK)
        return fail(AULE_DAEMON_GONE, "the daemon at %s has closed this connection: %s",
                    connection->path, parting.text);
    if (knock(connection->path) == AULE_OK)
        return fail(AULE_DAEMON_GONE,
                    "the daemon at %s has closed this connection, or has ended and another one "
                    "listens there (its log says why); %s has no answer",
                    connection->path, command);
    return fail(AULE_DAEMON_GONE, "the daemon at %s is gone; %s has no answer", connection->path,
                command);
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
    case ETIMEDOUT:
        return fail(AULE_TIMEOUT, "the daemon at %s did not answer %s within %d ms",
                    connection->path, command, timeout->ms);
    case ENOMEM:
        return fail(AULE_NO_MEMORY, "no memory for the answer of %s to %s", connection->path,
                    command);
    default: break;
    }
    if (closed)
        return fail(AULE_DAEMON_GONE, "the session was closed before %s was answered", command);
    if (unanswered)
        return fail(
            AULE_DAEMON_GONE,
            "no %s: the session ended when the daemon at %s did not answer %s in time, or not "
            "readably",
            command, connection->path, unanswered);
    return gone_error(connection, command);
}

bool connection_was_idle(struct connection *connection)
{
    pthread_mutex_lock(&connection->mutex);
    const bool was = connection->gone && connection->parting.status == STATUS_NO_SESSION;
    pthread_mutex_unlock(&connection->mutex);
    return was;
}

enum aule_status connection_end_error(struct connection *connection, const char *command)
{
    pthread_mutex_lock(&connection->mutex);
    bool over = connection->gone || connection->interrupted;
    pthread_mutex_unlock(&connection->mutex);
    return over ? call_error(connection, ECONNRESET, command, NULL) : AULE_OK;
}

// *frame is malloc'd: room for a head, then the message.
static enum aule_status encode(const struct wire_request *request, uint8_t **frame, size_t *size)
{
    struct error error = {.status = STATUS_OK};
    struct wire_buffer buffer = {.data = NULL};
    enum status status = wire_encode_request(request, &buffer, &error);
    if (status != STATUS_OK)
        return fail((enum aule_status)status, "%s: %s", wire_command_name(request->command),
                    error.text);
    *size = FRAME_HEAD + buffer.size;
    *frame = malloc(*size);
    enum aule_status result = AULE_OK;
    if (*frame)
        memcpy(*frame + FRAME_HEAD, buffer.data, buffer.size);
    else
        result = fail(AULE_NO_MEMORY, "no memory for a message of %zu bytes", buffer.size);
    wire_buffer_finish(&buffer);
    return result;
}

// ---- answers ----

enum aule_status answer_decode(struct answer *answer, size_t size, const char *command)
{
    struct error error = {.status = STATUS_OK};
    enum status status = wire_decode_reply(answer->message, size, &answer->reply, &error);
    if (status != STATUS_OK)
        return fail((enum aule_status)status, "the answer to %s: %s", command, error.text);
    return AULE_OK;
}

enum aule_status answer_judge(const struct wire_reply *reply, enum wire_answer expected,
                              const char *command)
{
    if (reply->status < STATUS_OK || reply->status > STATUS_INTERNAL)
        return fail(AULE_MALFORMED, "%s was answered with the unknown status %d: %s", command,
                    reply->status, reply->message ? reply->message : "");
    if (reply->status != STATUS_OK)
        return fail((enum aule_status)reply->status, "%s", reply->message ? reply->message : "");
    if (reply->answer != expected)
        return fail(AULE_MALFORMED, "%s was answered with kind %d instead of %d", command,
                    (int)reply->answer, (int)expected);
    return AULE_OK;
}

void answer_finish(struct answer *answer)
{
    wire_reply_finish(&answer->reply);
    free(answer->message);
    *answer = (struct answer){.message = NULL};
}

void answer_drop(struct answer *answer)
{
    const uint64_t ticket = answer->reply.ticket;
    const bool missing = answer->missing;
    answer_finish(answer);
    answer->reply.ticket = ticket;
    answer->missing = missing;
}

// ---- one call ----

static enum aule_status call(struct connection *connection, const struct wire_request *request,
                             const struct timeout *timeout, bool farewell,
                             enum wire_answer expected, struct answer *answer)
{
    const char *command = wire_command_name(request->command);
    uint8_t *frame = NULL;
    size_t size = 0;
    struct call exchanged;
    enum aule_status status = encode(request, &frame, &size);
    if (status != AULE_OK)
        return status;
    int error = exchange(connection, frame, size, timeout, farewell, &exchanged);
    free(frame);
    answer->missing = error == ETIMEDOUT || error == ENOMEM; // what it said is lost
    status = call_error(connection, error, command, timeout);
    if (status != AULE_OK)
        return status;
    answer->message = exchanged.body;
    status = answer_decode(answer, exchanged.size, command);
    answer->missing = status != AULE_OK;
    if (status == AULE_OK)
        status = answer_judge(&answer->reply, expected, command);
    if (status != AULE_OK)
        answer_drop(answer);
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

// Takes back a posted call that was not sent. The reader may have ended it: a daemon can answer
// what it was not asked.
static void unpost(struct connection *connection, uint32_t id)
{
    pthread_mutex_lock(&connection->mutex);
    struct call *call = find_pending(connection, id);
    if (call)
        LIST_DELETE(connection->pending, call);
    pthread_mutex_unlock(&connection->mutex);
    free(call);
}

enum aule_status connection_post(struct connection *connection, const struct wire_request *request,
                                 const struct timeout *timeout, connection_heard heard,
                                 void *context)
{
    const char *command = wire_command_name(request->command);
    uint8_t *frame = NULL;
    size_t size = 0;
    struct call *call = calloc(1, sizeof *call);
    enum aule_status status = call ? encode(request, &frame, &size)
                                   : fail(AULE_NO_MEMORY, "no memory to send %s", command);
    if (status != AULE_OK) {
        free(call);
        return status;
    }
    call->heard = heard;
    call->context = context;
    make_pending(connection, call);
    const uint32_t id = call->id; // once the frame is sent, the reader may free the call
    frame_write_head(frame, id, size - FRAME_HEAD);
    int error = send_frame(connection, frame, size, timeout, false);
    free(frame);
    if (error)
        unpost(connection, id);
    return call_error(connection, error, command, timeout);
}

void connection_farewell(struct connection *connection, const struct wire_request *request,
                         int timeout_ms)
{
    const struct timeout timeout = timeout_start(timeout_ms);
    struct answer answer = {.message = NULL};
    if (call(connection, request, &timeout, true, WIRE_ANSWER_EMPTY, &answer) == AULE_OK)
        answer_finish(&answer);
}
