// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// turns.h - which session's turn it is among those with queued runs, and which sessions are
// expected to queue a run soon, or are away. Time is shared among tenants first, and each tenant's
// part among its sessions. Knows how much each was served, not what for. Dispatcher thread only.

#ifndef AULE_CORE_TURNS_H
#define AULE_CORE_TURNS_H

#include "core/pool/session.h"

struct tenant;

enum {
    // A tenant may be this many tokens attended ahead of another one before it has to wait, and a
    // session ahead of another one of its tenant: a decode step of one long sequence or of many
    // short ones. The quantum must be less than what clients have in flight. Otherwise a client
    // with more in flight would be served more.
    TURNS_QUANTUM = 1 << 12,
};

struct turns {
    struct heap ready;     // tenants with ready sessions, by served / TURNS_QUANTUM
    uint32_t num_ready;    // these sessions
    uint64_t now;          // virtual time in tokens: `served` of the tenant that was served last
    uint64_t last_ended;   // the submission that ended last, by the engine's number; 0 = none
    uint32_t num_expected; // sessions that it served and that have queued no run since
    // Open sessions whose last run has ended and that have queued no run since, until they are
    // overdue: a list through away_prev and away_next.
    struct core_session *away;
    // Errands whose first queued run is a haul, in the order of their coming: a list through
    // haul_prev and haul_next. They take no turns (errands/hauls.h).
    struct core_session *hauling;
};

// Makes room for `sessions` open sessions in all, `of_tenant` of them of `tenant`. False: no
// memory.
bool turns_reserve(struct turns *turns, struct tenant *tenant, size_t sessions, size_t of_tenant);
void turns_finish(struct turns *turns);

// The session whose turn it is. NULL: none is ready.
struct core_session *turns_first(const struct turns *turns);
// The one that is next within the tenant of `session`, which may be `session`. NULL: none.
struct core_session *turns_first_beside(const struct core_session *session);
// The ready session behind `session`, in no certain order; behind NULL: one of them. NULL: there
// is no further one.
struct core_session *turns_next(const struct turns *turns, const struct core_session *session);
bool turns_is_ready(const struct core_session *session); // it is among these
bool turns_sound(const struct turns *turns);             // checks orders and counts; for tests

// It had no queued run and has one now, or its queued run waited for a compile.
void turns_ready(struct core_session *session);
// It is ready, and a link of this weight was picked. It stays ready if it has more.
void turns_serve(struct core_session *session, uint64_t weight);
void turns_unserve(struct core_session *session, uint64_t weight); // the link came back unstarted
// Takes the session out of the heap until turns_rejoin().
void turns_leave(struct core_session *session);
void turns_rejoin(struct core_session *session); // then it gets its old place
// It has no queued run any more, or is closing.
void turns_forget(struct core_session *session);
// A submission with a run of it has ended, and it has no queued run.
void turns_away(struct core_session *session, int64_t now_ns);
void turns_overdue(struct core_session *session); // takes it out of `away`, if it is there
// True: the last submission served it, and it has queued nothing since.
bool turns_expects(const struct core_session *session);

#endif
