// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// queue.h - what the queue of leases that wait must be told, so that each question about it takes
// O(log tenants): queue.c has the rules. Dispatcher thread only.

#ifndef AULE_CORE_QUEUE_H
#define AULE_CORE_QUEUE_H

#include "tenant.h"

struct core_session;

// Call this when the session has got its first block or lost its last one.
void queue_settle_session(struct core_session *session);
// Call this when tenant->used has changed.
void queue_outdate(struct tenant *tenant);
// The session begins to wait for what another one does: a lease, a claim or the take of an offer.
void queue_count_wait(struct core_session *session, bool begins);
// OK, or NO_BLOCKS: a lease that waits goes before this one; `wait` NULL: this one is new.
enum status queue_turn(const struct core_session *session, const struct core_wait *wait,
                       uint64_t cache, uint32_t count, struct error *error);
void queue_granted(struct pool *pool); // a lease that waited; the next ones may have their turn
void queue_end_wait(struct core_wait *wait);

// core_next_ready(): a round names each lease once.
void queue_begin_round(struct pool *pool);
struct core_wait *queue_next(struct pool *pool);

#endif
