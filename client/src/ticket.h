// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ticket.h - waiting for what is queued, and the tickets that nobody can wait for any more. All
// between attachment_enter() and attachment_leave(); ids are the daemon's.

#ifndef AULE_CLIENT_TICKET_H
#define AULE_CLIENT_TICKET_H

#include "attachment.h"
#include "caller.h"

// A public ticket is the daemon's, under the generation of the attachment that gave it: after a
// reconnect the daemon counts from the start, and an old ticket must not be taken for a new one.
enum { TICKET_BITS = 48 };

struct aule_ticket ticket_make(const struct attachment *attachment, uint64_t id,
                               enum aule_path path);
// AULE_INTERNAL: the daemon's ids have become too large.
enum aule_status ticket_check(uint64_t id);

// What the answer to a Wait for the daemon's ticket `id` says.
enum aule_status ticket_read(const struct wire_wait_reply *reply, uint64_t id,
                             const struct caller_result *result);
// aule_ticket_wait() of the daemon's ticket `id`.
enum aule_status ticket_reap(struct attachment *attachment, uint64_t id, int timeout_ms,
                             const struct caller_result *result);
// The same of one that nobody else can wait for. False: no answer says that it is gone (*status
// says why), and it is abandoned.
bool ticket_reap_own(struct attachment *attachment, uint64_t id, int timeout_ms,
                     const struct caller_result *result, enum aule_status *status);
// ticket_reap() of a public one and of what goes before it; all of it is left, or nothing. `own`:
// nobody else can wait for it, and what is left is abandoned.
enum aule_status ticket_settle(struct attachment *attachment, const struct aule_ticket *ticket,
                               int timeout_ms, bool own, const struct caller_result *result);

// A call that keeps its ticket to itself gave up waiting: the ticket counts against max_tickets
// until somebody reaps it.
void ticket_abandon(struct attachment *attachment, uint64_t id);
bool ticket_any_abandoned(struct attachment *attachment);
// The oldest one; false: there is none.
bool ticket_take_abandoned(struct attachment *attachment, uint64_t *id);
// Reap those that are done.
void ticket_reap_abandoned(struct attachment *attachment);

#endif
