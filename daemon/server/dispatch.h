// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// dispatch.h - serves one request at a time: copies and verifies the message, checks that the
// command is allowed now, calls its handler and answers. Handlers get verified messages, and a
// living session unless the command needs none. They check ranges. Thread: dispatcher.

#ifndef AULE_SERVER_DISPATCH_H
#define AULE_SERVER_DISPATCH_H

#include "state.h"

// A command that is being served, and the memory that lives until its reply is made.
struct call {
    struct server *server;
    struct peer *peer;
    struct session *session; // NULL if the command needs none
    struct asker asker;
    const struct wire_request *request; // in server->message, or a copy of a ring's entry; verified
    struct wire_reply reply;            // to fill: `answer` and its member; default: EMPTY
    struct error error;                 // to fill on failure
    bool later;                         // the handler parked it: no reply now
    uint64_t metadata_size;             // bytes taken from the arena so far
    struct scratch *scratch;            // call_alloc()
};

// Zeroed memory until the reply is sent; NULL with call->error set.
void *call_alloc(struct call *call, size_t count, size_t size);
void call_finish(struct call *call); // frees that memory; any thread
// INVALID if `ms`, the request's field `name`, is below -1, which waits for ever.
enum status call_check_time(struct call *call, const char *name, int32_t ms);

// Returns a status; on failure call->error says why.
typedef enum status (*handler)(struct call *call);

// Serves a message, or keeps it until an earlier command of its session is done (offload.h).
void dispatch_message(struct server *server, struct message *message);
void dispatch_now(struct server *server, const struct message *message); // at once
// Answers the call, unless a handler has put the answer off.
void dispatch_finish(struct call *call, enum status status);
// Copies the `size` bytes of a request to server->message, once, and verifies the copy. It lives
// until the next call. `data` may be memory that the client can write. MALFORMED, NO_MEMORY.
enum status dispatch_verify(struct server *server, const void *data, size_t size,
                            struct wire_request *request, struct error *error);
// Serves a request that is verified: a message's or a ring's.
void dispatch_request(struct server *server, struct peer *peer, const struct asker *asker,
                      const struct wire_request *request);

// Answer a parked command. `message` of *reply is never NULL.
void dispatch_reply(struct server *server, const struct asker *asker,
                    const struct wire_reply *reply);
// `session` NULL: none was opened.
void dispatch_refuse(struct server *server, struct session *session, const struct asker *asker,
                     const struct error *error);

// Block ids that one reply can hold.
#define DISPATCH_MAX_IDS ((WIRE_MAX_MESSAGE - 4096u) / sizeof(int32_t))

// A handler for each command of aule.fbs: handle_hello() and so on, in handlers/.
#define HANDLER(NAME, name, rules, since) enum status handle_##name(struct call *call);
WIRE_RULES_MAP(HANDLER)
#undef HANDLER

#endif
