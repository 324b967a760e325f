// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// life.c - the handshake, and the life and end of what it gives. Knows connection, segment and
// arena, but no caches, devices, batches or runs. Any thread; `users` keeps the parts in place
// while a thread is inside.

#include "life.h"

#include "base/list.h"
#include "error.h"
#include "fork.h"

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

static void remember(struct life *life, const struct wire_hello_reply *hello)
{
    struct aule_session_info *info = &life->info;
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
    snprintf(life->export_socket, sizeof life->export_socket, "%s",
             hello->export_socket ? hello->export_socket : "");
}

static enum aule_status settle(struct life *life, const struct aule_session_params *params,
                               const struct lane_plan *plan, const struct wire_hello_reply *hello)
{
    if (hello->major != WIRE_PROTOCOL_MAJOR)
        return fail(AULE_VERSION, "the daemon speaks protocol %u.%u, this library %u.%u",
                    hello->major, hello->minor, WIRE_PROTOCOL_MAJOR, WIRE_PROTOCOL_MINOR);
    if (!hello->segment_name)
        return fail(AULE_MALFORMED, "the daemon's greeting names no segment");
    if (hello->device_arena_size < params->device_arena_size)
        return fail(AULE_MALFORMED,
                    "the daemon gave a device arena of %" PRIu64 " bytes; %" PRIu64
                    " were asked for",
                    hello->device_arena_size, params->device_arena_size);
    remember(life, hello);
    enum aule_status status = segment_open(hello, &life->segment);
    if (status == AULE_OK)
        status = arena_create(life->segment.arena_size, &life->arena);
    const struct lane_parts parts = {.segment = &life->segment, .connection = life->connection};
    if (status == AULE_OK)
        status = lane_open(plan, params->socket, hello, &parts, &life->lane);
    life->info.ring_entries = lane_num_entries(life->lane);
    return status;
}

static enum aule_status greet(struct life *life, const struct aule_session_params *params,
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
        connection_call(life->connection, &request, timeout, WIRE_ANSWER_HELLO, &answer);
    if (status != AULE_OK)
        return status;
    status = settle(life, params, plan, &answer.reply.hello);
    answer_finish(&answer);
    return status;
}

// The daemon unlinks the segment when it hears that it is mapped.
static enum aule_status confirm(struct life *life, const struct timeout *timeout)
{
    struct wire_request request = {
        .session = life->info.session, .epoch = life->info.epoch, .command = WIRE_COMMAND_MAPPED};
    struct answer answer;
    enum aule_status status =
        connection_call(life->connection, &request, timeout, WIRE_ANSWER_EMPTY, &answer);
    answer_finish(&answer);
    return status;
}

enum aule_status life_open(const struct aule_session_params *params, uint16_t generation,
                           struct life **out)
{
    struct life *life = calloc(1, sizeof *life);
    if (!life)
        return fail(AULE_NO_MEMORY, "no memory for a session");
    life->pid = getpid();
    atomic_init(&life->references, 1);
    life->generation = generation;
    life->grace_ms = params->timeout_ms ? params->timeout_ms : TIMEOUT_DEFAULT_MS;
    life->paged_threshold =
        params->paged_threshold ? params->paged_threshold : DEFAULT_PAGED_THRESHOLD;
    pthread_mutex_init(&life->token_mutex, NULL);
    pthread_mutex_init(&life->mutex, NULL);
    pthread_cond_init(&life->idle, NULL);
    const struct timeout timeout = timeout_start(life->grace_ms); // of the three steps together
    struct lane_plan plan;
    enum aule_status status = lane_choose(params->ring_spin_us, &plan);
    if (status == AULE_OK)
        status = connection_open(params->socket, &timeout, &life->connection);
    if (status == AULE_OK)
        status = greet(life, params, &plan, &timeout);
    if (status == AULE_OK)
        status = confirm(life, &timeout);
    if (status == AULE_OK)
        *out = life;
    else
        life_unref(life);
    return status;
}

// ---- the end ----

static void let_go(struct life *life)
{
    struct life_part *part, *next;
    connection_close(life->connection);
    notice_destroy(atomic_exchange(&life->notice, NULL));
    lane_close(life->lane);
    segment_close(&life->segment);
    arena_destroy(life->arena);
    LIST_EACH_SAFE(life->parts, part, next)
        part->end(part);
    life->connection = NULL;
    life->lane = NULL;
    life->arena = NULL;
    life->parts = NULL;
}

void life_end(struct life *life, enum life_state state)
{
    pthread_mutex_lock(&life->mutex);
    bool live = life->state == LIFE_LIVE;
    life->state = state;
    if (live)
        connection_interrupt(life->connection);
    while (life->users > 0)
        pthread_cond_wait(&life->idle, &life->mutex);
    pthread_mutex_unlock(&life->mutex);
    if (!live)
        return;
    // The daemon would notice the connection's end by itself. But if it is asked, it has released
    // everything by the time this returns.
    struct wire_request request = {.session = life->info.session,
                                   .epoch = life->info.epoch,
                                   .command = WIRE_COMMAND_CLOSE_SESSION};
    connection_farewell(life->connection, &request, FAREWELL_MS);
    let_go(life);
}

struct life *life_ref(struct life *life)
{
    atomic_fetch_add(&life->references, 1);
    return life;
}

void life_unref(struct life *life)
{
    if (!life || atomic_fetch_sub(&life->references, 1) != 1)
        return;
    let_go(life);
    if (life->pid == getpid()) { // in a child another thread may seem to hold them
        pthread_cond_destroy(&life->idle);
        pthread_mutex_destroy(&life->token_mutex);
        pthread_mutex_destroy(&life->mutex);
    }
    free(life->abandoned);
    free(life);
}

// ---- use ----

static enum aule_status check_state(const struct life *life)
{
    switch (life->state) {
    case LIFE_LIVE: return AULE_OK;
    case LIFE_CLOSED:
        return fail(AULE_NO_SESSION, "session %" PRIu64 " was closed", life->info.session);
    case LIFE_REPLACED: break;
    }
    return fail(AULE_EPOCH,
                "the handle belongs to session %" PRIu64 " of epoch %" PRIu64
                ", before the reconnect",
                life->info.session, life->info.epoch);
}

enum aule_status life_enter(struct life *life)
{
    enum aule_status status = fork_check(life->pid, "the session");
    if (status != AULE_OK)
        return status;
    pthread_mutex_lock(&life->mutex);
    status = check_state(life);
    if (status == AULE_OK)
        life->users++;
    pthread_mutex_unlock(&life->mutex);
    return status;
}

void life_leave(struct life *life)
{
    pthread_mutex_lock(&life->mutex);
    if (--life->users == 0)
        pthread_cond_broadcast(&life->idle);
    pthread_mutex_unlock(&life->mutex);
}

enum aule_status life_notify(struct life *life, int fd)
{
    struct notice *notice = NULL;
    const struct aule_session_info *info = &life->info;
    if (life_notice(life))
        return AULE_OK;
    const struct notice_params params = {
        .connection = life->connection, .session = info->session, .epoch = info->epoch, .fd = fd};
    enum aule_status status = notice_create(&params, &notice);
    atomic_store_explicit(&life->notice, notice, memory_order_release);
    return status;
}

uint32_t life_number(const struct life *life)
{
    return life->generation + 1u;
}

enum aule_status life_check(const struct life *life, uint32_t number, const char *what)
{
    if (number == 0 || number == life_number(life))
        return AULE_OK;
    return fail(
        AULE_EPOCH,
        "%s lies in the arena of life %u of the session, before the reconnect; this is life %u",
        what, number, life_number(life));
}

// Other commands change the daemon's state. Without an answer that it can read, the library could
// neither use nor give back what the daemon did.
static bool only_reads(enum wire_command command)
{
    return command == WIRE_COMMAND_CACHE_STATE || command == WIRE_COMMAND_PING;
}

enum aule_status life_call(struct life *life, struct wire_request *request, int wait_ms,
                           enum wire_answer expected, struct answer *answer)
{
    request->session = life->info.session;
    request->epoch = life->info.epoch;
    const struct timeout timeout = timeout_start(timeout_sum(wait_ms, life->grace_ms));
    const char *command = wire_command_name(request->command);
    enum aule_status status;
    if (!lane_call(life->lane, request, &timeout, expected, answer, &status))
        status = connection_call(life->connection, request, &timeout, expected, answer);
    if (!answer->missing || only_reads(request->command))
        return status;
    connection_hang_up(life->connection, command);
    if (status != AULE_TIMEOUT)
        return status;
    return fail(AULE_TIMEOUT,
                "the daemon at %s did not answer %s within %d ms; the session is ended, "
                "aule_session_reconnect() begins another",
                connection_path(life->connection), command, timeout.ms);
}

uint64_t life_room(const struct life *life)
{
    uint64_t size = life->info.max_message;
    return size > MESSAGE_OVERHEAD ? size - MESSAGE_OVERHEAD : 0;
}

enum aule_status life_ask(struct life *life, struct wire_request *request, int wait_ms,
                          enum wire_answer expected, struct answer *answer)
{
    *answer = (struct answer){.message = NULL};
    enum aule_status status = life_enter(life);
    if (status != AULE_OK)
        return status;
    status = life_call(life, request, wait_ms, expected, answer);
    life_leave(life);
    return status;
}

enum aule_status life_tell(struct life *life, struct wire_request *request)
{
    struct answer answer;
    enum aule_status status = life_ask(life, request, 0, WIRE_ANSWER_EMPTY, &answer);
    answer_finish(&answer);
    return status;
}
