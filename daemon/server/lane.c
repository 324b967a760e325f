// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// lane.c - see lane.h. A session's ring is awake or asleep. The dispatcher looks at awake rings in
// every turn. The client of a ring that sleeps rings the doorbell. A datagram says nothing: the
// dispatcher then looks at every sleeping ring, with one load each. So a datagram that is lost to a
// full queue does no harm, and one from a stranger costs little.

#include "lane.h"

#include "base/forecast.h"
#include "base/list.h"
#include "dispatch.h"
#include "log.h"
#include "session.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { ENTRIES_A_TURN = 32, BELLS_A_TURN = 64 };
static const int64_t entries_ns = 4 * NS_PER_MS; // a turn
enum { LEAST_CORES_TO_SPIN = 3 }; // one for the client that spins, one for the engine's threads
static const int64_t default_spin_ns = 50000;

// ---- the doorbell ----

static int64_t spin_ns(const struct server *server)
{
    cpu_set_t cores;
    if (server->params->ring_spin_us != SERVER_UNSET)
        return (int64_t)server->params->ring_spin_us * 1000;
    const int num_cores = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 0;
    return forecast_look_ns(default_spin_ns, num_cores, LEAST_CORES_TO_SPIN);
}

enum status lane_open_bell(struct server *server, struct error *error)
{
    struct side_socket *bell = &server->bell;
    side_socket_name(bell, server->socket, ".bell", "doorbell", SOCK_DGRAM);
    struct error unheard; // without a doorbell, a file of its name does no harm
    if (server->params->ring_entries == 0) {
        side_socket_clear(bell, &unheard);
        return STATUS_OK;
    }
    server->bell_watch = (struct watch){WATCH_BELL, NULL};
    enum status status = side_socket_open(bell, server->groups != NULL, server->epoll_fd,
                                          &server->bell_watch, error);
    if (status != STATUS_OK)
        return status;
    server->ring_entries = server->params->ring_entries;
    server->ring_spin_ns = spin_ns(server);
    return STATUS_OK;
}

void lane_close_bell(struct server *server)
{
    side_socket_close(&server->bell);
}

// ---- awake and asleep ----

static void wake_up(struct session *session)
{
    struct lane *lane = &session->lane;
    lane->busy_ns = clock_now_ns();
    if (lane->awake || lane->held)
        return;
    ring_wake_up(&lane->ring);
    lane->awake = true;
    LIST_APPEND_BY(session->server->awake, session, lane.prev, lane.next);
}

static void leave_awake(struct session *session)
{
    if (session->lane.awake)
        LIST_DELETE_BY(session->server->awake, session, lane.prev, lane.next);
    session->lane.awake = false;
}

void lane_hold(struct session *session)
{
    session->lane.held = true;
    leave_awake(session);
}

void lane_release(struct session *session)
{
    session->lane.held = false;
    if (session->lane.open)
        wake_up(session);
}

void lane_open(struct session *session)
{
    const struct segment *segment = &session->segment;
    if (segment->ring_entries == 0)
        return;
    uint8_t *base = segment->base;
    const struct ring_place place = {
        .submissions = base + segment->submissions_offset,
        .completions = base + segment->completions_offset,
        .num_entries = segment->ring_entries,
        .submission_size = WIRE_SUBMISSION_SIZE,
        .completion_size = WIRE_COMPLETION_SIZE,
    };
    ring_daemon_init(&session->lane.ring, &place);
    session->lane.open = true;
}

void lane_hear_bell(struct server *server)
{
    struct session *session, *next;
    uint8_t note;
    for (int i = 0; i < BELLS_A_TURN && recv(server->bell.fd, &note, sizeof note, 0) >= 0; i++)
        ;
    HASH_ITER(hh, server->sessions, session, next) {
        if (session->lane.open && !session->lane.awake && !session->lane.held &&
            ring_has_news(&session->lane.ring))
            wake_up(session);
    }
}

bool lane_has_news(const struct server *server)
{
    const struct session *session;
    LIST_EACH_BY(server->awake, session, lane.next) {
        if (ring_has_news(&session->lane.ring))
            return true;
    }
    return false;
}

uint32_t lane_count_awake(const struct server *server)
{
    const struct session *session;
    uint32_t count = 0;
    LIST_EACH_BY(server->awake, session, lane.next)
        count++;
    return count;
}

bool lane_fall_asleep(struct server *server)
{
    struct session *session, *next;
    bool asleep = true;
    int64_t now_ns = server->awake && server->ring_spin_ns ? clock_now_ns() : 0;
    LIST_EACH_SAFE_BY(server->awake, session, next, lane.next) {
        struct lane *lane = &session->lane;
        bool rests = now_ns - lane->busy_ns >= server->ring_spin_ns || server->ring_spin_ns == 0;
        if (rests && ring_fall_asleep(&lane->ring))
            leave_awake(session);
        else
            asleep = false;
    }
    return asleep;
}

// ---- commands that lie in the arena ----

// The place has `count` bytes for the request and `room` for the reply, from one offset on.
static enum status check_place(const struct session *session,
                               const struct wire_submission *submission, struct error *error)
{
    const char *name = wire_command_name((int)submission->command);
    const struct wire_span *message = &submission->message;
    const uint64_t size = session->segment.arena_size + session->segment.places_size,
                   end = message->count > submission->room ? message->count : submission->room;
    if (message->count == 0)
        return error_set(error, STATUS_INVALID, "%s: its entry names no message", name);
    if (message->offset % sizeof(uint64_t))
        return error_set(error, STATUS_MISALIGNED,
                         "%s: a message at arena offset %" PRIu64 ", which is no multiple of %zu",
                         name, message->offset, sizeof(uint64_t));
    if (end > size || message->offset > size - end)
        return error_set(error, STATUS_OUT_OF_RANGE,
                         "%s: a message of %" PRIu64 " bytes with room for %" PRIu64
                         " at offset %" PRIu64
                         " reaches past the arena and its places, which have %" PRIu64 " bytes",
                         name, message->count, submission->room, message->offset, size);
    return STATUS_OK;
}

static uint8_t *arena_at(const struct session *session, uint64_t offset)
{
    return (uint8_t *)session->segment.base + session->segment.arena_offset + offset;
}

// Copies the request once and verifies the copy: the client can write the arena at any time.
static enum status fetch_message(struct asker *asker, const struct wire_submission *submission,
                                 struct wire_request *request, struct error *error)
{
    struct session *session = asker->ring;
    const char *name = wire_command_name((int)submission->command);
    const struct wire_span *message = &submission->message;
    enum status status = check_place(session, submission, error);
    if (status != STATUS_OK)
        return status;
    status = dispatch_verify(session->server, arena_at(session, message->offset), message->count,
                             request, error);
    const enum status copied = session_check_copy(session, name, error);
    if (copied != STATUS_OK || status != STATUS_OK)
        return copied != STATUS_OK ? copied : status;
    if (request->command != submission->command)
        return error_set(error, STATUS_MALFORMED, "%s: its message is %s", name,
                         wire_command_name((int)request->command));
    if (submission->room < wire_reply_room(request))
        return error_set(error, STATUS_LIMIT,
                         "%s: its answer may take %" PRIu64 " bytes, and its room has %" PRIu64,
                         name, wire_reply_room(request), submission->room);
    asker->place = (struct wire_span){message->offset, submission->room};
    return STATUS_OK;
}

// ---- serving ----

static enum status request_of(struct asker *asker, const struct wire_submission *submission,
                              struct wire_request *request, struct error *error)
{
    const struct session *session = asker->ring;
    const int command = (int)submission->command;
    if (!(wire_command_rules(command) & WIRE_BY_RING))
        return error_set(error, STATUS_UNSUPPORTED,
                         "command %" PRIu32 " (%s) has no place in a submission ring",
                         submission->command, wire_command_name(command));
    *request = (struct wire_request){
        .session = session->id,
        .epoch = session->server->epoch,
        .command = (enum wire_command)command,
    };
    switch (command) {
    case WIRE_COMMAND_RUN: request->run = submission->run; return STATUS_OK;
    case WIRE_COMMAND_WAIT: request->wait = submission->wait; return STATUS_OK;
    default: return fetch_message(asker, submission, request, error);
    }
}

static void serve(struct session *session, const struct wire_submission *submission)
{
    struct server *server = session->server;
    struct asker asker = {.ring = session, .sequence = submission->sequence};
    struct wire_request request;
    struct error error;
    if (request_of(&asker, submission, &request, &error) != STATUS_OK) {
        log_debug("%s: entry %" PRIu32 " of its ring: %s: %s", session->label, asker.sequence,
                  status_name(error.status), error.text);
        dispatch_refuse(server, session, &asker, &error);
        return;
    }
    dispatch_request(server, session->peer, &asker, &request);
}

// Serves one entry. False: there is none, or the entry has ended the session.
static bool serve_next(struct session *session)
{
    // The private copy; the rest is 0 if the client's entries are smaller.
    uint64_t entry[WIRE_SUBMISSION_SIZE / sizeof(uint64_t)] = {0};
    struct wire_submission submission;
    struct lane *lane = &session->lane;
    const uint32_t sequence = lane->ring.taken;
    enum ring_look look = ring_take(&lane->ring, entry);
    if (look == RING_NOTHING)
        return false;
    if (look == RING_BROKEN) {
        session_end(session, true, "its submission ring claims what no client can have written");
        return false;
    }
    wire_get_submission(entry, &submission);
    submission.sequence = sequence; // by our own count, whatever it says
    serve(session, &submission);
    return lane->open && !lane->held;
}

// Serves one entry at least, if there is one.
static void serve_session(struct session *session, int64_t end_ns)
{
    int64_t now_ns = 0;
    for (int i = 0; i < ENTRIES_A_TURN && now_ns < end_ns && serve_next(session); i++)
        now_ns = clock_now_ns();
    if (now_ns)
        session->lane.busy_ns = now_ns;
}

// A session that was served goes to the end of the list: if a turn ends early, the next one goes on
// with the others.
void lane_serve(struct server *server)
{
    if (!server->awake)
        return;
    const int64_t end_ns = clock_now_ns() + entries_ns;
    uint32_t count = lane_count_awake(server);
    while (count-- && server->awake && clock_now_ns() < end_ns) {
        struct session *session = server->awake;
        LIST_DELETE_BY(server->awake, session, lane.prev, lane.next);
        LIST_APPEND_BY(server->awake, session, lane.prev, lane.next);
        serve_session(session, end_ns);
    }
}

// ---- answers ----

static void set_text(struct wire_completion *completion, const char *text)
{
    snprintf(completion->text, sizeof completion->text, "%s", text);
}

static struct wire_completion completion_of(const struct asker *asker,
                                            const struct wire_reply *reply)
{
    struct wire_completion completion = {
        .sequence = asker->sequence,
        .status = reply->status,
        .answer = reply->answer,
        .ticket = reply->ticket,
    };
    const char *text = reply->message;
    if (reply->answer == WIRE_ANSWER_RUN) {
        completion.ticket = reply->run.ticket;
    } else if (reply->answer == WIRE_ANSWER_WAIT) {
        completion.run_status = reply->wait.run_status;
        completion.num_runs = reply->wait.num_runs;
        completion.num_sessions = reply->wait.num_sessions;
        completion.gpu_ns = reply->wait.gpu_ns;
        text = reply->status == STATUS_OK ? reply->wait.run_message : reply->message;
    }
    set_text(&completion, text);
    return completion;
}

// Writes the reply to the place of its request, and its size to the completion. Allocates nothing:
// the command was done, and a client without its answer could not undo it.
static void put_reply(const struct asker *asker, const struct wire_reply *reply,
                      struct wire_completion *completion)
{
    uint8_t *encoded = asker->ring->server->reply;
    struct error error;
    size_t size = 0;
    enum status status = wire_encode_reply_in(reply, encoded, WIRE_ENCODE_ROOM, &size, &error);
    if (status == STATUS_OK && size > asker->place.count)
        status = error_set(&error, STATUS_LIMIT,
                           "the command was done, but its answer of %zu bytes exceeds the room of "
                           "%" PRIu64 " bytes",
                           size, asker->place.count);
    if (status == STATUS_OK) {
        memcpy(arena_at(asker->ring, asker->place.offset), encoded, size);
        completion->ticket = size;
    } else {
        completion->status = status;
        completion->answer = WIRE_ANSWER_EMPTY;
        set_text(completion, error.text);
    }
}

// True: a thread of the client must be woken.
static bool post(const struct asker *asker, const struct wire_reply *reply)
{
    uint64_t entry[WIRE_COMPLETION_SIZE / sizeof(uint64_t)];
    struct wire_completion completion = completion_of(asker, reply);
    if (!wire_fits_completion(reply->answer))
        put_reply(asker, reply, &completion);
    wire_put_completion(&completion, entry);
    return ring_put(&asker->ring->lane.ring, entry);
}

static void note_sleeper(struct session *session)
{
    struct lane *lane = &session->lane;
    if (!lane->has_sleeper)
        LIST_APPEND_BY(session->server->sleepers, session, lane.sleeper_prev, lane.sleeper_next);
    lane->has_sleeper = true;
}

static void forget_sleeper(struct session *session)
{
    struct lane *lane = &session->lane;
    if (lane->has_sleeper)
        LIST_DELETE_BY(session->server->sleepers, session, lane.sleeper_prev, lane.sleeper_next);
    lane->has_sleeper = false;
}

void lane_wake_clients(struct server *server)
{
    while (server->sleepers) {
        struct session *session = server->sleepers;
        forget_sleeper(session);
        ring_wake_sleepers(&session->lane.ring);
    }
}

void lane_answer(struct server *server, const struct asker *asker, const struct wire_reply *reply)
{
    if (!asker->ring->lane.open)
        return; // the session has ended, and its segment may be gone
    if (server->ring_spin_ns)
        wake_up(asker->ring); // a client that has its answer often asks the next thing soon
    if (post(asker, reply))
        note_sleeper(asker->ring);
}

// ---- the end ----

// Refuses as many entries as the ring has room for. A client that goes on submitting gets no more
// answers.
void lane_close(struct session *session, const char *why)
{
    uint64_t entry[WIRE_SUBMISSION_SIZE / sizeof(uint64_t)];
    struct lane *lane = &session->lane;
    struct error error;
    if (!lane->open)
        return;
    leave_awake(session);
    ring_finish(&lane->ring);
    error_set(&error, STATUS_NO_SESSION, "session %" PRIu64 " has ended: %s", session->id, why);
    const struct wire_reply refusal = {
        .status = error.status, .message = error.text, .answer = WIRE_ANSWER_EMPTY};
    for (uint32_t i = 0;
         i < lane->ring.place.num_entries && ring_take(&lane->ring, entry) == RING_TAKEN; i++) {
        const struct asker asker = {.ring = session, .sequence = lane->ring.taken - 1};
        post(&asker, &refusal);
    }
    forget_sleeper(session);
    ring_wake_sleepers(&lane->ring);
    lane->open = false;
}
