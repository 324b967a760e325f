// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// dispatch.h - one request at a time: copy, verify, check who asks, call the handler of the table,
// answer. Handlers see only verified messages of living sessions; they still check ranges.
// Dispatcher thread.

#ifndef AULE_SERVER_DISPATCH_H
#define AULE_SERVER_DISPATCH_H

#include "state.h"

// One command in hand, and the memory that lives as long as its reply is being made.
struct call {
    struct server *server;
    struct peer *peer;
    struct session *session; // NULL if the command needs none
    struct asker asker;
    const struct wire_request *request; // points into server->message, or to an entry's copy
    struct wire_reply reply;            // to fill: `answer` and its member; EMPTY if left alone
    struct error error;                 // to fill on failure
    bool later;                         // the handler parked it: no reply now
    uint64_t metadata_size;             // bytes taken from the arena so far
    struct scratch *scratch;            // call_alloc()
};

// Zeroed memory until the reply is sent; NULL with call->error set.
void *call_alloc(struct call *call, size_t count, size_t size);
// INVALID if `ms`, the request's `name`, is no time to wait: -1 is for ever.
enum status call_check_time(struct call *call, const char *name, int32_t ms);

// Returns a status; on failure call->error says why.
typedef enum status (*handler)(struct call *call);

void dispatch_message(struct server *server, const struct message *message);
// Why a peer is refused, which its every command is answered.
void dispatch_explain(const struct server *server, const struct peer *peer, struct error *error);
// One that came by a ring: served and answered as a message's.
void dispatch_request(struct server *server, struct peer *peer, const struct asker *asker,
                      const struct wire_request *request);

// Answer a parked command. `message` of *reply is never NULL.
void dispatch_reply(struct server *server, const struct asker *asker,
                    const struct wire_reply *reply);
void dispatch_refuse(struct server *server, const struct asker *asker, const struct error *error);

// The most block ids that one reply can hold.
#define DISPATCH_MAX_IDS ((WIRE_MAX_MESSAGE - 4096u) / sizeof(int32_t))

// A handler for each command of aule.fbs: handle_hello() and so on, in handlers_*.c.
#define HANDLER(NAME, name, rules, since) enum status handle_##name(struct call *call);
WIRE_RULES_MAP(HANDLER)
#undef HANDLER

#endif
