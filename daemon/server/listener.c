// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// listener.c - see listener.h. channel.c has the bytes of one connection, and streams.c those of
// nng. streams_next() names a connection by its number.

#include "listener.h"

#include "base/clock.h"
#include "base/container_of.h"
#include "base/hash.h"
#include "base/list.h"
#include "base/owner.h"
#include "log.h"
#include "schema/wire.h"
#include "server/nng/channel.h"
#include "server/nng/nng_cures.h"
#include "server/nng/streams.h"
#include "server/process/limits.h"
#include "side_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { WORKERS, CONTROL, NUM_EARS }; // their numbers; connections have larger ones
enum { STEPS_A_CALL = 16 };
enum { MAX_CONTROL = 32, MAX_SURPLUS = 16, SURPLUS_OF_USER = 4 };
// SMALL_MESSAGE: the largest request of a peer without a session. UNREAD_PAUSE: above so many
// unread bytes of answers its requests are not read.
enum { SMALL_MESSAGE = 16 << 10, UNREAD_PAUSE = 256 << 10, MAX_PARTING = 8192 + 1024 };

static const int64_t greeting_ns = 10 * NS_PER_S, request_ns = 30 * NS_PER_S;
static const int64_t refused_stay_ns = 3 * NS_PER_S, pause_ns = NS_PER_S / 10,
                     spare_ns = 2 * NS_PER_MS;

struct event {
    struct entry *entry;
    bool removed;
    struct event *prev, *next;
};

// A group of users, or a user of none, with connections.
struct holder {
    struct holder_key {
        const struct group_places *group; // NULL: a user of none
        uint64_t uid;                     // 0 for a group
    } key;
    uint32_t num_entries;
    uint64_t held;     // bytes of all its connections
    UT_hash_handle hh; // by key
};

struct entry {
    struct peer peer;
    struct channel channel;
    struct error refusal;
    struct holder *holder;
    bool gone;         // closed; the caller has not forgotten it yet
    bool paused;       // it does not read its answers, so its requests are not read
    bool spared;       // its deadline has passed once, and was extended by a second
    int64_t opened_ns; // when it connected, or when the unfinished request began
    int64_t moved_ns;  // when a byte went out, or one came in while no answer waited
    struct event added_event, removed_event;
    UT_hash_handle hh; // by peer.pipe
};

struct listener {
    struct listener_params params;
    struct streams *streams; // owned
    struct ear *ears[NUM_EARS];
    bool is_stopped[NUM_EARS]; // its last accept failed; it goes on at accepts_ns
    int64_t accepts_ns;
    int spare_fd; // closed to accept and refuse when there are no descriptors
    uint32_t last_pipe;
    struct entry *entries;  // by pipe; owned
    struct holder *holders; // owned
    struct event *events;   // oldest first
    uint64_t held;          // bytes of all connections: params.max_bytes
    int64_t deadline_ns;    // at most the nearest deadline
    uint32_t num_refused;
    struct error refused; // the last one that was closed at once
};

int listener_owner(const struct peer *peer)
{
    const struct entry *entry = (const struct entry *)peer; // its first member
    return entry->gone ? -1 : owner_open(ipc_stream_descriptor(entry->channel.stream));
}

bool listener_is_operator(const struct peer *peer)
{
    return places_is_operator(peer->user.uid);
}

static void arm(struct listener *listener, int64_t deadline_ns)
{
    if (deadline_ns < listener->deadline_ns)
        listener->deadline_ns = deadline_ns;
}

static void push_event(struct listener *listener, struct event *event, struct entry *entry,
                       bool removed)
{
    event->entry = entry;
    event->removed = removed;
    LIST_APPEND(listener->events, event);
}

// ---- ends ----

// Tells the peer why, if its socket has room: a frame that answers no request.
static void send_parting(struct channel *channel, const struct error *why)
{
    _Alignas(8) static uint8_t bytes[MAX_PARTING];
    const struct wire_reply reply = {
        .status = why->status, .message = why->text, .answer = WIRE_ANSWER_EMPTY};
    size_t size;
    if (!channel->answers &&
        wire_encode_reply_in(&reply, bytes, sizeof bytes, &size, NULL) == STATUS_OK)
        (void)channel_write(channel, FRAME_PARTING, bytes, size);
}

// `why` NULL: the peer has hung up.
static void end(struct listener *listener, struct entry *entry, const struct error *why)
{
    if (entry->gone)
        return;
    const size_t held = channel_held(&entry->channel); // what account() knows
    listener->held -= held;
    entry->holder->held -= held;
    if (why)
        send_parting(&entry->channel, why);
    channel_close(&entry->channel);
    entry->gone = true;
    push_event(listener, &entry->removed_event, entry, true);
}

// Ends a connection that harms others, or could.
static void end_offender(struct listener *listener, struct entry *entry, const struct error *why)
{
    log_info("connection of pid %" PRIu64 ", uid %u: closed: %s", entry->peer.pid,
             entry->peer.user.uid, why->text);
    end(listener, entry, why);
}

// ---- memory of all connections ----

static struct entry *find_offender(const struct listener *listener)
{
    struct entry *worst = NULL;
    for (struct entry *entry = listener->entries; entry; entry = entry->hh.next) {
        if (entry->gone || channel_held(&entry->channel) == 0)
            continue;
        const uint64_t held = entry->holder->held, most = worst ? worst->holder->held : 0;
        if (held > most || (held == most && entry->moved_ns < worst->moved_ns))
            worst = entry;
    }
    return worst;
}

// `before`: what the connection held before it read or was written to.
static void account(struct listener *listener, const struct entry *entry, size_t before)
{
    struct entry *worst;
    const uint64_t more = channel_held(&entry->channel) - before; // may wrap, as the sums do
    listener->held += more;
    entry->holder->held += more;
    while (listener->held > listener->params.max_bytes && (worst = find_offender(listener))) {
        struct error error;
        error_set(&error, STATUS_LIMIT,
                  "requests that are not whole and answers that are not read exceed "
                  "--max-message-memory %" PRIu64 "; this connection has %zu bytes of them",
                  listener->params.max_bytes, channel_held(&worst->channel));
        end_offender(listener, worst, &error);
    }
}

// ---- connections that come ----

// A connection with answers that are not sent gets no parting: its client would not learn that they
// were served. So it gives way last.
static bool gives_way_before(const struct entry *one, const struct entry *other)
{
    if (!one->channel.answers != !other->channel.answers)
        return !one->channel.answers;
    return one->peer.active_ns < other->peer.active_ns;
}

// A full control socket serves the next operator all the same: the connection that has asked
// nothing for the longest time ends. The library's monitors connect anew.
static void make_control_place(struct listener *listener)
{
    struct entry *idlest = NULL;
    for (struct entry *entry = listener->entries; entry; entry = entry->hh.next) {
        const struct peer *peer = &entry->peer;
        if (!entry->gone && peer->by_control && !peer->refusal &&
            (!idlest || gives_way_before(entry, idlest)))
            idlest = entry;
    }
    struct error error;
    error_set(
        &error, STATUS_NO_SESSION,
        "another operator needs one of the %d connections of the control socket, and this one "
        "asked nothing for the longest time",
        MAX_CONTROL);
    if (idlest)
        end(listener, idlest, &error);
}

// True: both count against the same places. Each socket has its own; so have refused connections,
// by reason.
static bool shares_places(const struct peer *one, const struct peer *other)
{
    if (!one->refusal != !other->refusal || one->by_control != other->by_control)
        return false;
    return !one->refusal || one->refusal->status == other->refusal->status;
}

static struct places_taken count_places(const struct listener *listener, const struct peer *peer)
{
    struct places_taken taken = {0};
    for (const struct entry *entry = listener->entries; entry; entry = entry->hh.next)
        if (!entry->gone && shares_places(peer, &entry->peer))
            places_count(&taken, &peer->user, &entry->peer.user);
    return taken;
}

static enum status check_place(struct listener *listener, const struct peer *peer,
                               struct error *error)
{
    const struct listener_params *params = &listener->params;
    const struct places places = {.what = "connections",
                                  .option = "--max-connections",
                                  .most = params->max_connections,
                                  .share = params->tenant_share,
                                  .group_word = "connections:N of its --tenant; ",
                                  .group_field = offsetof(struct group_places, connections)};
    enum status status = places_check_user(params->groups, &peer->user, error);
    if (status != STATUS_OK)
        return status;
    const struct places_taken taken = count_places(listener, peer);
    if (!peer->by_control)
        return places_check(&places, &taken, &peer->user, error);
    if (taken.all >= MAX_CONTROL)
        make_control_place(listener);
    return STATUS_OK;
}

// Some are kept for a moment although there is no place, so that their commands can be answered.
static bool may_stay(const struct listener *listener, const struct peer *peer)
{
    if (!peer->refusal)
        return true;
    const struct places_taken taken = count_places(listener, peer);
    return taken.all < MAX_SURPLUS && taken.of_user < SURPLUS_OF_USER;
}

static bool read_credentials(struct listener *listener, const struct ipc_stream *stream,
                             struct peer *peer)
{
    struct ipc_peer who;
    if (!ipc_stream_credentials(stream, &who))
        return false;
    peer->user = places_user(listener->params.groups, who.uid, who.gid);
    peer->pid = who.pid;
    return true;
}

// Closes a connection that is in no table, and tells it why.
static void turn_away(struct listener *listener, struct ipc_stream *stream, const struct error *why)
{
    struct channel channel;
    channel_open(&channel, stream);
    send_parting(&channel, why);
    channel_close(&channel);
    listener->num_refused++;
    listener->refused = *why;
}

static uint32_t free_pipe(struct listener *listener)
{
    struct entry *taken;
    do {
        if (++listener->last_pipe < NUM_EARS)
            listener->last_pipe = NUM_EARS;
        HASH_FIND(hh, listener->entries, &listener->last_pipe, sizeof listener->last_pipe, taken);
    } while (taken);
    return listener->last_pipe;
}

static struct holder *find_holder(struct listener *listener, const struct place_user *user)
{
    struct holder *holder;
    const struct holder_key key = {user->group, user->group ? 0 : user->uid};
    HASH_FIND(hh, listener->holders, &key, sizeof key, holder);
    if (holder || !(holder = calloc(1, sizeof *holder)))
        return holder;
    holder->key = key;
    HASH_ADD(hh, listener->holders, key, sizeof holder->key, holder);
    if (HASH_ADDED(holder))
        return holder;
    free(holder);
    return NULL;
}

static void leave_holder(struct listener *listener, struct holder *holder)
{
    if (--holder->num_entries > 0)
        return;
    HASH_DEL(listener->holders, holder);
    free(holder);
}

static bool enter(struct listener *listener, struct entry *entry)
{
    entry->holder = find_holder(listener, &entry->peer.user);
    if (!entry->holder)
        return false;
    entry->holder->num_entries++;
    HASH_ADD(hh, listener->entries, peer.pipe, sizeof entry->peer.pipe, entry);
    if (HASH_ADDED(entry))
        return true;
    leave_holder(listener, entry->holder);
    return false;
}

static bool add(struct listener *listener, struct entry *entry, struct ipc_stream *stream)
{
    entry->peer.pipe = free_pipe(listener);
    entry->opened_ns = entry->moved_ns = entry->peer.active_ns = clock_now_ns();
    if (!enter(listener, entry))
        return false;
    channel_open(&entry->channel, stream);
    ipc_stream_watch(stream, entry->peer.pipe);
    (void)channel_flush(&entry->channel); // if it fails, so does the next read
    push_event(listener, &entry->added_event, entry, false);
    arm(listener, entry->opened_ns + (entry->peer.refusal ? refused_stay_ns : greeting_ns));
    return true;
}

static void admit(struct listener *listener, struct ipc_stream *stream, bool by_control)
{
    struct entry *entry = NULL;
    struct error error;
    error_set(&error, STATUS_NO_MEMORY, "no memory for another connection");
    if (!nng_reserve_is_short())
        entry = calloc(1, sizeof *entry);
    if (entry && !read_credentials(listener, stream, &entry->peer)) {
        error_set(&error, STATUS_DENIED, "the kernel does not tell this connection's user");
        free(entry);
        entry = NULL;
    }
    if (!entry) {
        turn_away(listener, stream, &error);
        return;
    }
    struct peer *peer = &entry->peer;
    peer->by_control = by_control;
    if (check_place(listener, peer, &entry->refusal) != STATUS_OK)
        peer->refusal = &entry->refusal;
    if (!may_stay(listener, peer))
        turn_away(listener, stream, peer->refusal);
    else if (!add(listener, entry, stream))
        turn_away(listener, stream, &error);
    else
        return;
    free(entry);
}

static bool has_spare(struct listener *listener)
{
    if (listener->spare_fd < 0)
        listener->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return listener->spare_fd >= 0;
}

// A descriptor is kept for a connection that finds none, so that its client learns why.
static void take(struct listener *listener, uint32_t ear, struct ipc_stream *stream)
{
    struct error error;
    if (has_spare(listener)) {
        admit(listener, stream, ear == CONTROL);
        return;
    }
    limits_no_descriptor(&error);
    turn_away(listener, stream, &error);
    arm(listener, clock_now_ns() + spare_ns); // nng closes it in a moment
}

// Accepting resumes 100 ms later, when memory or descriptors may be free again.
static void stop_accepting(struct listener *listener, uint32_t ear)
{
    listener->is_stopped[ear] = true;
    listener->accepts_ns = clock_now_ns() + pause_ns;
    arm(listener, listener->accepts_ns);
}

static void accept_next(struct listener *listener, uint32_t ear)
{
    struct ipc_stream *stream;
    switch (ear_accept(listener->ears[ear], &stream)) {
    case EAR_NOTHING: return;
    case EAR_STREAM: take(listener, ear, stream); return;
    case EAR_NO_DESCRIPTORS:
        if (listener->spare_fd < 0)
            break;
        close(listener->spare_fd);
        listener->spare_fd = -1;
        ear_resume(listener->ears[ear]);
        arm(listener, clock_now_ns() + spare_ns); // perhaps no connection waits
        return;
    case EAR_FAILED: break;
    }
    stop_accepting(listener, ear);
}

static void accept_again(struct listener *listener, int64_t now_ns)
{
    if (!has_spare(listener))
        arm(listener, now_ns + pause_ns);
    for (uint32_t ear = 0; ear < NUM_EARS; ear++) {
        if (!listener->is_stopped[ear])
            continue;
        if (now_ns < listener->accepts_ns) {
            arm(listener, listener->accepts_ns);
            continue;
        }
        listener->is_stopped[ear] = false;
        ear_resume(listener->ears[ear]);
    }
}

// ---- requests and answers ----

size_t listener_max_request(const struct listener *listener, const struct peer *peer)
{
    return peer->session ? listener->params.max_message : SMALL_MESSAGE;
}

// Reads or stops to read, by what the peer has not read.
static void set_pause(struct entry *entry)
{
    const bool was_paused = entry->paused;
    entry->paused = entry->channel.unread > UNREAD_PAUSE;
    if (was_paused && !entry->paused)
        ipc_stream_again(entry->channel.stream);
}

static bool give(struct entry *entry, const struct channel_request *request, struct message *out)
{
    entry->peer.active_ns = clock_now_ns();
    entry->spared = false;
    *out = (struct message){.peer = &entry->peer,
                            .route = {entry->peer.pipe, request->number},
                            .data = request->data,
                            .size = request->size,
                            .handle = request->data};
    return true;
}

// True: a request is whole.
static bool read_from(struct listener *listener, struct entry *entry, struct message *out)
{
    struct channel_request request;
    struct channel *channel = &entry->channel;
    const size_t before = channel_held(channel);
    const bool was_amid = channel_is_amid(channel);
    const size_t got = channel->got;
    const int64_t now_ns = clock_now_ns();
    enum channel_news news =
        channel_read(channel, listener_max_request(listener, &entry->peer), &request);
    if ((news == CHANNEL_REQUEST || channel->got != got) && !channel->answers)
        entry->moved_ns = now_ns;
    account(listener, entry, before);
    if (news == CHANNEL_OVER)
        end(listener, entry, NULL);
    if (entry->gone) {
        if (news == CHANNEL_REQUEST)
            free(request.data);
        return false;
    }
    if (channel_is_amid(channel) && !was_amid) {
        entry->opened_ns = now_ns;
        arm(listener, now_ns + request_ns);
    }
    return news == CHANNEL_REQUEST && give(entry, &request, out);
}

static void write_to(struct listener *listener, struct entry *entry)
{
    const size_t before = channel_held(&entry->channel);
    const bool lives = channel_flush(&entry->channel);
    if (channel_held(&entry->channel) < before)
        entry->moved_ns = entry->peer.active_ns = clock_now_ns();
    account(listener, entry, before);
    if (!lives)
        end(listener, entry, NULL);
    if (!entry->gone)
        set_pause(entry);
}

static struct entry *find(struct listener *listener, uint32_t pipe)
{
    struct entry *entry;
    HASH_FIND(hh, listener->entries, &pipe, sizeof pipe, entry);
    return entry && !entry->gone ? entry : NULL;
}

// After a request was given, the connection is looked at again: a second one may lie behind it.
static bool serve(struct listener *listener, uint32_t number, struct message *out)
{
    if (number < NUM_EARS) {
        accept_next(listener, number);
        return false;
    }
    struct entry *entry = find(listener, number);
    if (entry)
        write_to(listener, entry);
    if (!entry || entry->gone)
        return false;
    if (!entry->paused) {
        const bool given = read_from(listener, entry, out);
        if (given)
            ipc_stream_again(entry->channel.stream);
        return given;
    }
    if (ipc_stream_is_over(entry->channel.stream))
        end(listener, entry, NULL);
    return false;
}

// Connections that come and go, and bytes that make no request, must not hold the caller.
bool listener_receive(struct listener *listener, struct message *out)
{
    uint32_t number;
    for (int i = 0; i < STEPS_A_CALL && streams_next(listener->streams, &number); i++)
        if (serve(listener, number, out))
            return true;
    return false;
}

void message_finish(struct message *message)
{
    free(message->handle);
    message->handle = NULL;
}

bool listener_reply(struct listener *listener, const struct route *route, const void *data,
                    size_t size)
{
    struct entry *entry = find(listener, route->pipe);
    if (!entry)
        return true;
    const size_t before = channel_held(&entry->channel);
    const bool idle = before == 0;
    const bool sent = channel_write(&entry->channel, route->number, data, size);
    account(listener, entry, before);
    if (entry->gone)
        return true;
    entry->peer.active_ns = clock_now_ns();
    if (idle)
        entry->moved_ns = entry->peer.active_ns;
    if (sent && entry->channel.answers) {
        set_pause(entry);
        arm(listener, entry->moved_ns + listener->params.idle_ns);
    }
    if (!sent)
        end(listener, entry, NULL);
    return sent;
}

// ---- time ----

static int64_t sooner(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

// When the request that comes now must be whole.
static int64_t request_due_ns(const struct entry *entry)
{
    return channel_is_amid(&entry->channel) && !entry->paused ? entry->opened_ns + request_ns
                                                              : FOREVER;
}

static int64_t due_ns(const struct listener *listener, const struct entry *entry)
{
    const struct peer *peer = &entry->peer;
    const int64_t idle_ns = listener->params.idle_ns;
    if (peer->refusal)
        return entry->opened_ns + refused_stay_ns;
    if (!entry->channel.greeted)
        return entry->opened_ns + greeting_ns;
    if (entry->channel.answers)
        return sooner(entry->moved_ns + idle_ns, request_due_ns(entry));
    return sooner(request_due_ns(entry), peer->session ? FOREVER : peer->active_ns + idle_ns);
}

static void say_why_due(const struct listener *listener, const struct entry *entry, int64_t now_ns,
                        struct error *error)
{
    const int64_t idle_s = listener->params.idle_ns / NS_PER_S;
    if (!entry->channel.greeted)
        error_set(error, STATUS_TIMEOUT, "a greeting did not come whole within %" PRId64 " s",
                  greeting_ns / NS_PER_S);
    else if (request_due_ns(entry) <= now_ns)
        error_set(error, STATUS_TIMEOUT, "a request did not come whole within %" PRId64 " s",
                  request_ns / NS_PER_S);
    else if (entry->channel.answers)
        error_set(error, STATUS_TIMEOUT,
                  "%zu bytes of answers were not read for %" PRId64 " s (--idle-timeout)",
                  entry->channel.unread, idle_s);
    else
        error_set(error, STATUS_NO_SESSION,
                  "the daemon closes connections without a session that ask nothing for %" PRId64
                  " s (--idle-timeout)",
                  idle_s);
}

static void expire_one(struct listener *listener, struct entry *entry, int64_t now_ns)
{
    struct error error;
    if (entry->peer.refusal) {
        end(listener, entry, entry->peer.refusal);
        return;
    }
    say_why_due(listener, entry, now_ns, &error);
    if (error.status == STATUS_TIMEOUT)
        end_offender(listener, entry, &error);
    else
        end(listener, entry, &error);
}

// Bytes may have come in time that nng has not read yet: perhaps the process stood still.
static void spare(struct listener *listener, struct entry *entry, int64_t now_ns)
{
    entry->spared = true;
    arm(listener, now_ns + NS_PER_S);
}

void listener_expire(struct listener *listener, int64_t now_ns)
{
    struct entry *entry, *next;
    listener->deadline_ns = FOREVER;
    accept_again(listener, now_ns);
    HASH_ITER(hh, listener->entries, entry, next) {
        const int64_t at_ns = entry->gone ? FOREVER : due_ns(listener, entry);
        if (at_ns > now_ns)
            arm(listener, at_ns);
        else if (entry->spared || entry->peer.refusal)
            expire_one(listener, entry, now_ns);
        else
            spare(listener, entry, now_ns);
    }
}

int64_t listener_deadline_ns(const struct listener *listener)
{
    return listener->events ? 0 : listener->deadline_ns;
}

// ---- opening and closing ----

static enum status open_ear(struct listener *listener, uint32_t number, struct error *error)
{
    static const struct {
        const char *suffix, *what;
    } kinds[NUM_EARS] = {{"", "socket"}, {SOCKET_CONTROL, "control socket"}};
    const struct listener_params *params = &listener->params;
    struct side_socket side;
    side_socket_name(&side, params->path, kinds[number].suffix, kinds[number].what, SOCK_STREAM);
    enum status status = side_socket_clear(&side, error);
    if (status != STATUS_OK)
        return status;
    const mode_t mode = number == WORKERS && params->groups ? 0666 : 0600;
    return ear_open(listener->streams, number, side.path, mode, &listener->ears[number], error);
}

enum status listener_open(const struct listener_params *params, struct listener **out,
                          struct error *error)
{
    struct listener *listener = calloc(1, sizeof *listener);
    if (!listener)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the listener");
    listener->params = *params;
    listener->deadline_ns = FOREVER;
    listener->spare_fd = -1;
    enum status status = has_spare(listener)
                             ? streams_open(&listener->streams, error)
                             : error_set(error, STATUS_INTERNAL,
                                         "no descriptor for the listener: %s", strerror(errno));
    // The control socket first: a client that finds the other one can rely on it.
    for (uint32_t number = NUM_EARS; status == STATUS_OK && number-- > 0;)
        status = open_ear(listener, number, error);
    if (status == STATUS_OK)
        *out = listener;
    else
        listener_close(listener);
    return status;
}

void listener_unlink(const struct listener *listener)
{
    for (uint32_t i = 0; i < NUM_EARS; i++)
        ear_unlink(listener->ears[i]);
}

void listener_close(struct listener *listener)
{
    struct entry *entry, *next;
    if (!listener)
        return;
    for (uint32_t i = 0; i < NUM_EARS; i++)
        ear_close(listener->ears[i]);
    HASH_ITER(hh, listener->entries, entry, next) {
        channel_close(&entry->channel);
        listener_forget(listener, &entry->peer);
    }
    streams_close(listener->streams);
    if (listener->spare_fd >= 0)
        close(listener->spare_fd);
    free(listener);
}

int listener_fd(const struct listener *listener)
{
    return streams_fd(listener->streams);
}

// ---- events ----

bool listener_next_event(struct listener *listener, struct peer **peer, bool *removed)
{
    struct event *event = listener->events;
    if (!event)
        return false;
    LIST_DELETE(listener->events, event);
    *peer = &event->entry->peer;
    *removed = event->removed;
    return true;
}

void listener_forget(struct listener *listener, struct peer *peer)
{
    struct entry *entry = container_of(peer, struct entry, peer);
    HASH_DEL(listener->entries, entry);
    leave_holder(listener, entry->holder);
    free(entry);
}

uint32_t listener_num_refused(struct listener *listener, const char **why)
{
    uint32_t count = listener->num_refused;
    listener->num_refused = 0;
    *why = listener->refused.text;
    return count;
}
