// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attachment.h - one life of a session with its daemon: connection, segment, arena.
// aule_session_reconnect() gives the session a new attachment. Caches and batches keep a reference
// to the attachment on which they were made. So they may outlive their session, and they know when
// the attachment was replaced.

#ifndef AULE_CLIENT_ATTACHMENT_H
#define AULE_CLIENT_ATTACHMENT_H

#include "arena.h"
#include "aule/aule.h"
#include "client/src/link/connection.h"
#include "client/src/link/lane.h"
#include "client/src/link/notice.h"
#include "client/src/link/segment.h"
#include "device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

struct own_cache;

enum attachment_state { ATTACHMENT_LIVE, ATTACHMENT_CLOSED, ATTACHMENT_REPLACED };

struct attachment {
    pid_t pid; // of the process that opened it
    atomic_uint references;
    uint16_t generation;                   // counts the session's attachments
    int grace_ms;                          // how long an answer may take; -1: for ever
    uint32_t paged_threshold;              // of aule_attention(), in keys
    struct aule_session_info info;         // what the handshake said
    char export_socket[WIRE_MAX_NAME + 1]; // file name; "": the daemon exports nothing
    struct connection *connection;         // this and the next four are NULL after the end
    struct lane *lane;                     // NULL: every command goes as a message
    struct segment segment;
    struct arena *arena;
    struct device_arena *device;     // NULL: none was asked for
    _Atomic(struct notice *) notice; // owned; NULL until aule_session_fd()
    // Held from the request of a token until its descriptor is there: a session has one at a time.
    pthread_mutex_t token_mutex;
    pthread_mutex_t mutex; // guards the rest
    pthread_cond_t idle;   // users became 0
    enum attachment_state state;
    uint32_t users;      // threads between enter and leave
    uint64_t *abandoned; // unreaped tickets of calls that gave up waiting, oldest first; owned
    uint32_t num_abandoned, max_abandoned;
    struct own_cache *caches; // opened by the library for itself; owned
};

// Connects to params->socket (a path), shakes hands, maps the segment. One reference, the caller's.
enum aule_status attachment_open(const struct aule_session_params *params, uint16_t generation,
                                 struct attachment **out);
struct attachment *attachment_ref(struct attachment *attachment);
// The last reference frees the memory; in a forked child it touches nothing else. Takes NULL.
void attachment_unref(struct attachment *attachment);

// Refuses new users, makes pending calls return AULE_DAEMON_GONE and waits until all users have
// left. Then ends the session in the daemon, closes the connection and unmaps the segment. A second
// call does nothing.
void attachment_end(struct attachment *attachment, enum attachment_state state);

// Keeps connection, segment and arena in place until attachment_leave(). AULE_FORKED.
// AULE_NO_SESSION: it was closed. AULE_EPOCH: it was replaced.
enum aule_status attachment_enter(struct attachment *attachment);
void attachment_leave(struct attachment *attachment);

// Keeps `fd` up to date from now on, see notice.h; only the first call for an attachment does
// something. Between enter and leave, one thread at a time. AULE_UNSUPPORTED: the daemon is too
// old. AULE_NO_MEMORY.
enum aule_status attachment_notify(struct attachment *attachment, int fd);
// NULL: nothing has asked for a descriptor. Then a ticket costs this one load.
static inline struct notice *attachment_notice(const struct attachment *attachment)
{
    return atomic_load_explicit(&attachment->notice, memory_order_acquire);
}

// The `life` of this attachment's tensors; never 0.
uint32_t attachment_life(const struct attachment *attachment);
// AULE_EPOCH, with the name `what`: `life` is that of another attachment. 0, a tensor made by hand,
// passes.
enum aule_status attachment_check_life(const struct attachment *attachment, uint32_t life,
                                       const char *what);

// connection_call() with the session's id and epoch, between enter and leave. Waits at most
// `wait_ms`, for which the daemon itself may wait, and the grace. If a command that changes
// something in the daemon has no answer by then, this returns AULE_TIMEOUT and ends the connection;
// later calls return AULE_DAEMON_GONE.
enum aule_status attachment_call(struct attachment *attachment, struct wire_request *request,
                                 int wait_ms, enum wire_answer expected, struct answer *answer);
// How many bytes all vectors of a command may have in one message.
uint64_t attachment_room(const struct attachment *attachment);
// enter, call, leave.
enum aule_status attachment_ask(struct attachment *attachment, struct wire_request *request,
                                int wait_ms, enum wire_answer expected, struct answer *answer);
// The same for a command whose answer is empty.
enum aule_status attachment_tell(struct attachment *attachment, struct wire_request *request);

#endif
