// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// offload.h - commands that would hold the dispatcher for long. The job thread copies and checks
// large metadata. Then the dispatcher goes on, perhaps in pieces, of which it makes one a turn. The
// session's later commands wait meanwhile in their order: messages in a list, ring entries in their
// ring. Other sessions go on. Knows calls, not what they ask. Thread: dispatcher; `fill`: job
// thread.

#ifndef AULE_SERVER_OFFLOAD_H
#define AULE_SERVER_OFFLOAD_H

#include "dispatch.h"

// Commands with more bytes of metadata than this are offloaded: copying and checking as many takes
// the dispatcher less than two milliseconds.
#define OFFLOAD_BYTES (UINT64_C(128) << 10)

// What a command does. `context` is memory of the call.
struct offload_steps {
    // On the job thread. It may read the session's segment, but not what core or the server change.
    // Sets call->error on failure. NULL: there is nothing to do there.
    enum status (*fill)(struct call *call, void *context);
    // After success, if the session lives. Fills the answer, or sets *more, which is false: then it
    // is called again in a later turn.
    enum status (*end)(struct call *call, void *context, bool *more);
    void (*drop)(void *context); // always, at last; the session may then be gone
    // What its copies of the arrays are, in errors: they count as host memory. NULL: core counts
    // them, or they are few.
    const char *memory;
};

// Takes over the call, which is answered when the job has ended. On failure nothing has begun, and
// `drop` was not called. LIMIT (--max-host-memory), NO_MEMORY. `bytes`: of the command's arrays.
enum status offload_start(struct call *call, const struct offload_steps *steps, void *context,
                          uint64_t bytes);
// True: an earlier command of its connection goes first, and the message is taken. If it cannot
// wait, *status is LIMIT or NO_MEMORY, and *error says why.
bool offload_defer(struct server *server, struct message *message, enum status *status,
                   struct error *error);
// Serves messages that need not wait any more. Call this once a turn.
void offload_replay(struct server *server);
// Makes the next piece of one command, in turn. Call this once a turn, and do not sleep while
// server->unfinished is not NULL.
void offload_step(struct server *server);
// The session ends, and its offloaded command is answered NO_SESSION, with `why` in the text.
void offload_drop_session(struct session *session, const char *why);
void offload_forget_peer(struct server *server, const struct peer *peer); // drops its messages
void offload_forget_all(struct server *server);
// Frees the memory on the job thread.
void offload_free(struct server *server, void *memory);

#endif
