// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attachment.h - one life of a session with its daemon: connection, segment, arena.
// aule_session_reconnect() gives a session another one. Caches and batches hold on to the
// attachment that they were made on, so they may outlive their session and know when it was
// replaced.

#ifndef AULE_CLIENT_ATTACHMENT_H
#define AULE_CLIENT_ATTACHMENT_H

#include "arena.h"
#include "aule/aule.h"
#include "connection.h"
#include "lane.h"
#include "segment.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

struct own_cache;

enum attachment_state { ATTACHMENT_LIVE, ATTACHMENT_CLOSED, ATTACHMENT_REPLACED };

struct attachment {
    pid_t pid; // of the process that opened it
    atomic_uint references;
    uint16_t generation;           // counts the session's attachments
    int grace_ms;                  // for an answer; -1 = none
    uint32_t paged_threshold;      // of aule_attention(), in keys
    struct aule_session_info info; // as the handshake told
    struct connection *connection; // these four until the end of the attachment, then NULL
    struct lane *lane;             // NULL = every command goes out as a message
    struct segment segment;
    struct arena *arena;
    pthread_mutex_t mutex; // guards the rest
    pthread_cond_t idle;   // users became 0
    enum attachment_state state;
    uint32_t users;      // threads between enter and leave
    uint64_t *abandoned; // tickets that nobody can wait for any more; owned
    uint32_t num_abandoned, max_abandoned;
    struct own_cache *caches; // that the library has opened itself; owned
};

// Connects to params->socket (a path), shakes hands, maps the segment. One reference, the caller's.
enum aule_status attachment_open(const struct aule_session_params *params, uint16_t generation,
                                 struct attachment **out);
struct attachment *attachment_ref(struct attachment *attachment);
// The last one frees the memory, and in a forked child touches nothing else. Takes NULL.
void attachment_unref(struct attachment *attachment);

// Refuse new users, make pending calls return AULE_DAEMON_GONE, wait for the users to leave, take
// leave of the daemon, close the connection, unmap. Once; a second time does nothing.
void attachment_end(struct attachment *attachment, enum attachment_state state);

// Between enter and leave the connection, the segment and the arena stay. Otherwise: AULE_FORKED,
// AULE_NO_SESSION (closed), AULE_EPOCH (replaced).
enum aule_status attachment_enter(struct attachment *attachment);
void attachment_leave(struct attachment *attachment);

// What a tensor of this attachment carries, never 0; and AULE_EPOCH, naming `what`, where one
// carries another's. 0 passes.
uint32_t attachment_life(const struct attachment *attachment);
enum aule_status attachment_check_life(const struct attachment *attachment, uint32_t life,
                                       const char *what);

// connection_call() with the session's id and epoch, for at most `wait_ms` (which the daemon waits)
// and the grace. Where a command that changes something in the daemon has no answer by then, the
// connection ends: AULE_TIMEOUT, and AULE_DAEMON_GONE from then on. Between enter and leave.
enum aule_status attachment_call(struct attachment *attachment, struct wire_request *request,
                                 int wait_ms, enum wire_answer expected, struct answer *answer);
// Bytes of one message that a command's vectors may have together.
uint64_t attachment_room(const struct attachment *attachment);
// enter, call, leave.
enum aule_status attachment_ask(struct attachment *attachment, struct wire_request *request,
                                int wait_ms, enum wire_answer expected, struct answer *answer);
// The same for a command whose answer is empty.
enum aule_status attachment_tell(struct attachment *attachment, struct wire_request *request);

#endif
