// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// park.h - commands that wait. Each is a record with a deadline, never a blocked thread. Knows no
// command: a handler's file has a struct park_kind for each kind that waits, and parks its own part
// of the record. Core names the records that may succeed now (core/waits.h), so an event costs what
// it wakes, not all that waits. Work never overtakes older work of its session. Thread: dispatcher.

#ifndef AULE_SERVER_PARK_H
#define AULE_SERVER_PARK_H

#include "dispatch.h"

#include <stddef.h>

// How commands of one kind wait.
struct park_kind {
    enum park_list list;
    size_t size; // bytes of the own part
    // PARK_OTHERS: begins the wait in core. On failure the command does not wait.
    enum status (*wait)(struct core_session *session, struct core_wait *wait, void *own,
                        struct error *error);
    // Tries again, and answers the command if it succeeds or fails for good. `last`: its deadline
    // has passed, so it is answered in any case. True: it waits still.
    bool (*retry)(struct parked *parked, bool last);
    bool (*keep)(void *own);   // makes copies of the arrays; false: no memory. NULL: it has none
    void (*finish)(void *own); // frees the copies; NULL: there are none
};

// A command to park, without its own part.
struct park_command {
    const struct park_kind *kind;
    int64_t deadline_ns;
    uint64_t ticket; // PARK_ENDS
    uint64_t bytes;  // that kind->keep() copies
};
// Parks the command with a copy of `own`. LIMIT: the session has park_max() commands parked, or
// their arrays would exceed --max-batch-memory. NO_MEMORY, or as kind->wait().
enum status park(struct call *call, const struct park_command *command, const void *own);
uint32_t park_max(const struct server_params *params); // commands that a session may have parked

// A command that waits. Handlers read it.
struct parked {
    const struct park_kind *kind;
    struct session *session;
    struct asker asker;
    struct core_wait wait; // PARK_OTHERS
    int64_t deadline_ns;
    uint64_t ticket;                          // PARK_ENDS
    uint64_t bytes;                           // of copies of arrays
    struct parked *prev, *next;               // server->parked, in the order of arrival
    struct parked *beside_prev, *beside_next; // of its list of session->parked
    max_align_t own[];                        // [kind->size bytes]
};
// The two ends of a parked command.
void park_answer(struct parked *parked, const struct wire_reply *reply);
void park_refuse(struct parked *parked, const struct error *error);
// The end of kind->retry(). OK: answers with `reply`. Else refuses with `error`, unless the command
// `waits` still. True: it does.
bool park_tried(struct parked *parked, enum status status, bool waits,
                const struct wire_reply *reply, const struct error *error);
// The command waits for the end of its ticket from now on. It is of that kind, without an own part.
void park_become(struct parked *parked, const struct park_kind *kind, uint64_t ticket,
                 int64_t deadline_ns);

void park_retry(struct server *server); // call this when core has news
// Answers the commands whose deadline has passed, and arms the other deadlines.
void park_expire(struct server *server, int64_t now_ns);
// The session ends: its commands are answered NO_SESSION, with `why` in the text.
void park_drop_session(struct session *session, const char *why);
// Answers all parked commands with the error `why`, except those that wait for the end of a run;
// these, too, if `ends_too`.
void park_refuse_all(struct server *server, const struct error *why, bool ends_too);

#endif
