// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// park.h - commands that wait: a lease for blocks, a Wait for its ticket, GPU work for a free
// ticket. Each is a record with a deadline, never a blocked thread. They are tried again in the
// order of arrival when core says that something came free. Work never overtakes older work of its
// session. A lease does, if it can be met while the older one cannot: who waits for many blocks may
// wait for those that another session gives back only once its own small lease has let it go on.
// What comes free is offered to the oldest first. Dispatcher thread.

#ifndef AULE_SERVER_PARK_H
#define AULE_SERVER_PARK_H

#include "dispatch.h"

// Park a copy of *command (its kind, deadline, union and bytes; session and asker come from the
// call); arrays of its work are copied. LIMIT: a session may have --max-tickets and a few more
// commands parked, which keep --max-parked-memory bytes.
enum status park(struct call *call, const struct parked *command);
uint32_t park_max(const struct server_params *params); // how many of a session's
// Answers the call with the end of the ticket's run: at once if it is over, else parked until
// `deadline_ns`. TIMEOUT: that has passed.
enum status park_wait(struct call *call, uint64_t ticket, int64_t deadline_ns);

void park_retry(struct server *server); // after core_step() said so
void park_retry_leases(struct server *server,
                       uint64_t cache);                  // before a new lease of `cache` is tried
void park_expire(struct server *server, int64_t now_ns); // answers what is late, arms the rest
void park_drop_session(struct session *session,
                       const char *why); // its session ends: answered NO_SESSION
// Answer what waits: leases and work, which are new, or tickets' waits too.
void park_refuse_all(struct server *server, const struct error *why, bool waits_too);

#endif
