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
// The session has closed a cache: leases of it that wait there are to be tried again, to fail.
void queue_retry_all(struct pool *pool);
// core_retry_begin() and core_retry_next().
void queue_begin_round(struct pool *pool);
struct core_waiter *queue_next(struct pool *pool);

#endif
