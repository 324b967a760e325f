// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ticket.h - waits for queued work, and reaps the tickets of calls that gave up waiting. All
// functions between life_enter() and life_leave(); ids are the daemon's.

#ifndef AULE_CLIENT_TICKET_H
#define AULE_CLIENT_TICKET_H

#include "caller.h"
#include "life.h"

// A public ticket is the daemon's id below the generation of the life that gave it. After a
// reconnect the daemon counts anew, and an old ticket must not be taken for a new one.
enum { TICKET_BITS = 48 };

struct aule_ticket ticket_make(const struct life *life, uint64_t id, enum aule_path path);
// AULE_INTERNAL: the daemon's ids have become too large.
enum aule_status ticket_check(uint64_t id);

// The status and result in the answer to a Wait for ticket `id`.
enum aule_status ticket_read(const struct wire_wait_reply *reply, uint64_t id,
                             const struct caller_result *result);
// Waits for ticket `id`, as aule_ticket_wait() does.
enum aule_status ticket_reap(struct life *life, uint64_t id, int timeout_ms,
                             const struct caller_result *result);
// The same for a ticket that only this call knows. False: the ticket may still be there (*status
// says why), so it is abandoned.
bool ticket_reap_own(struct life *life, uint64_t id, int timeout_ms,
                     const struct caller_result *result, enum aule_status *status);
// Waits for a ticket that only this call knows, as long as its work takes, but for each answer no
// longer than the session's grace. The ticket is reaped or abandoned.
enum aule_status ticket_reap_to_end(struct life *life, uint64_t id);
// ticket_reap() for a public ticket and the one before it. Reaps both or leaves both. `own`: only
// this call knows them, so tickets that are left are abandoned.
enum aule_status ticket_settle(struct life *life, const struct aule_ticket *ticket, int timeout_ms,
                               bool own, const struct caller_result *result);

// Call this if a call that keeps its ticket to itself gives up waiting. The ticket counts against
// max_tickets until it is reaped.
void ticket_abandon(struct life *life, uint64_t id);
bool ticket_any_abandoned(struct life *life);
// Takes the oldest abandoned ticket; false: there is none.
bool ticket_take_abandoned(struct life *life, uint64_t *id);
// Reaps the abandoned tickets that are done, oldest first.
void ticket_reap_abandoned(struct life *life);

#endif
