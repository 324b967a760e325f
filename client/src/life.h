// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// life.h - one life of a session with its daemon: connection, segment, arena.
// aule_session_reconnect() gives the session a new life. Caches and batches keep a reference to the
// life in which they were made. So they may outlive their session, and they know when the life was
// replaced. Files that stand above keep what they need for a life as parts of it.

#ifndef AULE_CLIENT_LIFE_H
#define AULE_CLIENT_LIFE_H

#include "arena.h"
#include "aule/aule.h"
#include "client/src/link/connection.h"
#include "client/src/link/lane.h"
#include "client/src/link/notice.h"
#include "client/src/link/segment.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

enum life_state { LIFE_LIVE, LIFE_CLOSED, LIFE_REPLACED };

// Something that another file keeps for a life. That file finds its own parts by `end`.
struct life_part {
    void (*end)(struct life_part *part); // frees it. The life has ended, and no thread is inside;
                                         // in a forked child it only frees memory
    struct life_part *prev, *next;
};

struct life {
    pid_t pid; // of the process that opened it
    atomic_uint references;
    uint16_t generation;                   // counts the session's lives
    int grace_ms;                          // how long an answer may take; -1: for ever
    uint32_t paged_threshold;              // of aule_attention(), in keys
    struct aule_session_info info;         // what the handshake said
    char export_socket[WIRE_MAX_NAME + 1]; // file name; "": the daemon exports nothing
    struct connection *connection;         // this and the next three are NULL after the end
    struct lane *lane;                     // NULL: every command goes as a message
    struct segment segment;
    struct arena *arena;
    _Atomic(struct notice *) notice; // owned; NULL until aule_session_fd()
    // Held from the request of a token until its descriptor is there: a session has one at a time.
    pthread_mutex_t token_mutex;
    pthread_mutex_t mutex; // guards the rest
    pthread_cond_t idle;   // users became 0
    enum life_state state;
    uint32_t users;      // threads between enter and leave
    uint64_t *abandoned; // unreaped tickets of calls that gave up waiting, oldest first; owned
    uint32_t num_abandoned, max_abandoned;
    struct life_part *parts; // owned
};

// Connects to params->socket (a path), shakes hands, maps the segment. One reference, the caller's.
enum aule_status life_open(const struct aule_session_params *params, uint16_t generation,
                           struct life **out);
struct life *life_ref(struct life *life);
// The last reference frees the memory; in a forked child it touches nothing else. Takes NULL.
void life_unref(struct life *life);

// Refuses new users, makes pending calls return AULE_DAEMON_GONE and waits until all users have
// left. Then ends the session in the daemon, closes the connection and unmaps the segment. A second
// call does nothing.
void life_end(struct life *life, enum life_state state);

// Keeps connection, segment and arena in place until life_leave(). AULE_FORKED.
// AULE_NO_SESSION: it was closed. AULE_EPOCH: it was replaced.
enum aule_status life_enter(struct life *life);
void life_leave(struct life *life);

// Keeps `fd` up to date from now on, see notice.h; only the first call for a life does something.
// Between enter and leave, one thread at a time. AULE_NO_MEMORY.
enum aule_status life_notify(struct life *life, int fd);
// NULL: nothing has asked for a descriptor. Then a ticket costs this one load.
static inline struct notice *life_notice(const struct life *life)
{
    return atomic_load_explicit(&life->notice, memory_order_acquire);
}

// The `life` of its tensors; never 0.
uint32_t life_number(const struct life *life);
// AULE_EPOCH, with the name `what`: `number` is that of another life. 0, a tensor made by hand,
// passes.
enum aule_status life_check(const struct life *life, uint32_t number, const char *what);

// connection_call() with the session's id and epoch, between enter and leave. Waits at most
// `wait_ms`, for which the daemon itself may wait, and the grace. If a command that changes
// something in the daemon has no answer by then, this returns AULE_TIMEOUT and ends the connection;
// later calls return AULE_DAEMON_GONE.
enum aule_status life_call(struct life *life, struct wire_request *request, int wait_ms,
                           enum wire_answer expected, struct answer *answer);
// How many bytes all vectors of a command may have in one message.
uint64_t life_room(const struct life *life);
// enter, call, leave.
enum aule_status life_ask(struct life *life, struct wire_request *request, int wait_ms,
                          enum wire_answer expected, struct answer *answer);
// The same for a command whose answer is empty.
enum aule_status life_tell(struct life *life, struct wire_request *request);

#endif
