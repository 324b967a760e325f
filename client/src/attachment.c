// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attachment.c - the handshake, and the life and end of what it gives. Knows connection, segment
// and arena, but no batches or runs; it also frees the caches that the library opened for itself.
// Any thread; `users` keeps the parts in place while a thread is inside.

#include "attachment.h"

#include "error.h"
#include "fork.h"
#include "own_cache.h"
#include "torch.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEFAULT_ARENA = 64 << 20, MESSAGE_OVERHEAD = 4096 }; // bytes
enum { DEFAULT_PAGED_THRESHOLD = 2048 };                    // keys
// Longer than any working daemon needs.
enum { FAREWELL_MS = 10000 };

// ---- the handshake ----

static void remember(struct attachment *attachment, const struct wire_hello_reply *hello)
{
    struct aule_session_info *info = &attachment->info;
    *info = (struct aule_session_info){
        .session = hello->session,
        .epoch = hello->epoch,
        .arena_size = hello->arena_size,
        .arena_imported = hello->arena_imported,
        .max_tickets = hello->max_tickets,
        .max_batches = hello->max_batches,
        .quota_blocks = hello->quota_blocks,
        .max_message = hello->max_message,
        .protocol_major = hello->major,
        .protocol_minor = hello->minor,
        .device_arena_size = hello->device_arena_size,
    };
    if (info->max_message == 0 || info->max_message > WIRE_MAX_MESSAGE)
        info->max_message = WIRE_MAX_MESSAGE;
    snprintf(info->device_name, sizeof info->device_name, "%s",
             hello->device_name ? hello->device_name : "");
    memcpy(info->device_uuid, hello->device_uuid, sizeof info->device_uuid);
    snprintf(attachment->export_socket, sizeof attachment->export_socket, "%s",
             hello->export_socket ? hello->export_socket : "");
}

static enum aule_status settle(struct attachment *attachment,
                               const struct aule_session_params *params,
                               const struct lane_plan *plan, const struct wire_hello_reply *hello)
{
    if (hello->major != WIRE_PROTOCOL_MAJOR)
        return fail(AULE_VERSION, "the daemon speaks protocol %u.%u, this library %u.%u",
                    hello->major, hello->minor, WIRE_PROTOCOL_MAJOR, WIRE_PROTOCOL_MINOR);
    if (!hello->segment_name)
        return fail(AULE_MALFORMED, "the daemon's greeting names no segment");
    remember(attachment, hello);
    enum aule_status status = segment_open(hello, &attachment->segment);
    if (status == AULE_OK)
        status = arena_create(attachment->segment.arena_size, &attachment->arena);
    if (status == AULE_OK)
        status = device_open(hello, params->device_arena_size, params->socket, &attachment->device);
    const struct lane_parts parts = {.segment = &attachment->segment,
                                     .connection = attachment->connection};
    if (status == AULE_OK)
        status = lane_open(plan, params->socket, hello, &parts, &attachment->lane);
    attachment->info.ring_entries = lane_num_entries(attachment->lane);
    return status;
}

static enum aule_status greet(struct attachment *attachment,
                              const struct aule_session_params *params,
                              const struct lane_plan *plan, const struct timeout *timeout)
{
    struct wire_request request = {
        .command = WIRE_COMMAND_HELLO,
        .hello = {.major = WIRE_PROTOCOL_MAJOR,
                  .minor = WIRE_PROTOCOL_MINOR,
                  .client_name = params->name ? params->name : program_invocation_short_name,
                  .tenant = params->tenant ? params->tenant : "",
                  .arena_size = params->arena_size ? params->arena_size : DEFAULT_ARENA,
                  .device_arena_size = params->device_arena_size},
    };
    struct answer answer;
    enum aule_status status =
        connection_call(attachment->connection, &request, timeout, WIRE_ANSWER_HELLO, &answer);
    if (status != AULE_OK)
        return status;
    status = settle(attachment, params, plan, &answer.reply.hello);
    answer_finish(&answer);
    return status;
}

// The daemon unlinks the segment when it hears that it is mapped.
static enum aule_status confirm(struct attachment *attachment, const struct timeout *timeout)
{
    struct wire_request request = {.session = attachment->info.session,
                                   .epoch = attachment->info.epoch,
                                   .command = WIRE_COMMAND_MAPPED};
    struct answer answer;
    enum aule_status status =
        connection_call(attachment->connection, &request, timeout, WIRE_ANSWER_EMPTY, &answer);
    answer_finish(&answer);
    return status;
}

enum aule_status attachment_open(const struct aule_session_params *params, uint16_t generation,
                                 struct attachment **out)
{
    struct attachment *attachment = calloc(1, sizeof *attachment);
    if (!attachment)
        return fail(AULE_NO_MEMORY, "no memory for a session");
    attachment->pid = getpid();
    atomic_init(&attachment->references, 1);
    attachment->generation = generation;
    attachment->grace_ms = params->timeout_ms ? params->timeout_ms : TIMEOUT_DEFAULT_MS;
    attachment->paged_threshold =
        params->paged_threshold ? params->paged_threshold : DEFAULT_PAGED_THRESHOLD;
    pthread_mutex_init(&attachment->token_mutex, NULL);
    pthread_mutex_init(&attachment->mutex, NULL);
    pthread_cond_init(&attachment->idle, NULL);
    const struct timeout timeout =
        timeout_start(attachment->grace_ms); // of the three steps together
    struct lane_plan plan;
    enum aule_status status = lane_choose(params->ring_spin_us, &plan);
    if (status == AULE_OK)
        status = connection_open(params->socket, &timeout, &attachment->connection);
    if (status == AULE_OK)
        status = greet(attachment, params, &plan, &timeout);
    if (status == AULE_OK)
        status = confirm(attachment, &timeout);
    if (status == AULE_OK)
        *out = attachment;
    else
        attachment_unref(attachment);
    return status;
}

// ---- the end ----

static void drop_parts(struct attachment *attachment)
{
    connection_close(attachment->connection);
    notice_destroy(atomic_exchange(&attachment->notice, NULL));
    lane_close(attachment->lane);
    segment_close(&attachment->segment);
    arena_destroy(attachment->arena);
    if (attachment->pid == getpid()) // a child of fork() has no torch to serve, only a mutex's copy
        torch_ended(attachment->device);
    device_unref(attachment->device);
    attachment->connection = NULL;
    attachment->lane = NULL;
    attachment->arena = NULL;
    attachment->device = NULL;
}

void attachment_end(struct attachment *attachment, enum attachment_state state)
{
    pthread_mutex_lock(&attachment->mutex);
    bool live = attachment->state == ATTACHMENT_LIVE;
    attachment->state = state;
    if (live)
        connection_interrupt(attachment->connection);
    while (attachment->users > 0)
        pthread_cond_wait(&attachment->idle, &attachment->mutex);
    pthread_mutex_unlock(&attachment->mutex);
    if (!live)
        return;
    // The daemon would notice the connection's end by itself. But if it is asked, it has released
    // everything by the time this returns.
    struct wire_request request = {.session = attachment->info.session,
                                   .epoch = attachment->info.epoch,
                                   .command = WIRE_COMMAND_CLOSE_SESSION};
    connection_farewell(attachment->connection, &request, FAREWELL_MS);
    drop_parts(attachment);
}

struct attachment *attachment_ref(struct attachment *attachment)
{
    atomic_fetch_add(&attachment->references, 1);
    return attachment;
}

void attachment_unref(struct attachment *attachment)
{
    if (!attachment || atomic_fetch_sub(&attachment->references, 1) != 1)
        return;
    drop_parts(attachment);
    if (attachment->pid == getpid()) { // in a child another thread may seem to hold them
        pthread_cond_destroy(&attachment->idle);
        pthread_mutex_destroy(&attachment->token_mutex);
        pthread_mutex_destroy(&attachment->mutex);
    }
    own_cache_free(attachment->caches);
    free(attachment->abandoned);
    free(attachment);
}

// ---- use ----

static enum aule_status check_state(const struct attachment *attachment)
{
    switch (attachment->state) {
    case ATTACHMENT_LIVE: return AULE_OK;
    case ATTACHMENT_CLOSED:
        return fail(AULE_NO_SESSION, "session %" PRIu64 " was closed", attachment->info.session);
    case ATTACHMENT_REPLACED: break;
    }
    return fail(AULE_EPOCH,
                "the handle belongs to session %" PRIu64 " of epoch %" PRIu64
                ", before the reconnect",
                attachment->info.session, attachment->info.epoch);
}

enum aule_status attachment_enter(struct attachment *attachment)
{
    enum aule_status status = fork_check(attachment->pid, "the session");
    if (status != AULE_OK)
        return status;
    pthread_mutex_lock(&attachment->mutex);
    status = check_state(attachment);
    if (status == AULE_OK)
        attachment->users++;
    pthread_mutex_unlock(&attachment->mutex);
    return status;
}

void attachment_leave(struct attachment *attachment)
{
    pthread_mutex_lock(&attachment->mutex);
    if (--attachment->users == 0)
        pthread_cond_broadcast(&attachment->idle);
    pthread_mutex_unlock(&attachment->mutex);
}

enum aule_status attachment_notify(struct attachment *attachment, int fd)
{
    struct notice *notice = NULL;
    const struct aule_session_info *info = &attachment->info;
    if (attachment_notice(attachment))
        return AULE_OK;
    const struct notice_params params = {.connection = attachment->connection,
                                         .session = info->session,
                                         .epoch = info->epoch,
                                         .fd = fd};
    enum aule_status status = notice_create(&params, &notice);
    atomic_store_explicit(&attachment->notice, notice, memory_order_release);
    return status;
}

uint32_t attachment_life(const struct attachment *attachment)
{
    return attachment->generation + 1u;
}

enum aule_status attachment_check_life(const struct attachment *attachment, uint32_t life,
                                       const char *what)
{
    if (life == 0 || life == attachment_life(attachment))
        return AULE_OK;
    return fail(
        AULE_EPOCH,
        "%s lies in the arena of life %u of the session, before the reconnect; this is life %u",
        what, life, attachment_life(attachment));
}

// Other commands change the daemon's state. Without an answer that it can read, the library could
// neither use nor give back what the daemon did.
static bool only_reads(enum wire_command command)
{
    return command == WIRE_COMMAND_CACHE_STATE || command == WIRE_COMMAND_PING;
}

enum aule_status attachment_call(struct attachment *attachment, struct wire_request *request,
                                 int wait_ms, enum wire_answer expected, struct answer *answer)
{
    request->session = attachment->info.session;
    request->epoch = attachment->info.epoch;
    const struct timeout timeout = timeout_start(timeout_sum(wait_ms, attachment->grace_ms));
    const char *command = wire_command_name(request->command);
    enum aule_status status;
    if (!lane_call(attachment->lane, request, &timeout, expected, answer, &status))
        status = connection_call(attachment->connection, request, &timeout, expected, answer);
    if (!answer->missing || only_reads(request->command))
        return status;
    connection_hang_up(attachment->connection, command);
    if (status != AULE_TIMEOUT)
        return status;
    return fail(AULE_TIMEOUT,
                "the daemon at %s did not answer %s within %d ms; the session is ended, "
                "aule_session_reconnect() begins another",
                connection_path(attachment->connection), command, timeout.ms);
}

uint64_t attachment_room(const struct attachment *attachment)
{
    uint64_t size = attachment->info.max_message;
    return size > MESSAGE_OVERHEAD ? size - MESSAGE_OVERHEAD : 0;
}

enum aule_status attachment_ask(struct attachment *attachment, struct wire_request *request,
                                int wait_ms, enum wire_answer expected, struct answer *answer)
{
    *answer = (struct answer){.message = NULL};
    enum aule_status status = attachment_enter(attachment);
    if (status != AULE_OK)
        return status;
    status = attachment_call(attachment, request, wait_ms, expected, answer);
    attachment_leave(attachment);
    return status;
}

enum aule_status attachment_tell(struct attachment *attachment, struct wire_request *request)
{
    struct answer answer;
    enum aule_status status = attachment_ask(attachment, request, 0, WIRE_ANSWER_EMPTY, &answer);
    answer_finish(&answer);
    return status;
}
