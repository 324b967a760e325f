// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// turns.h - which session's turn it is among those with queued runs, and which sessions are
// expected to queue a run soon, or are away. Knows how much each session was served, not what for.
// Dispatcher thread only.

#ifndef AULE_CORE_TURNS_H
#define AULE_CORE_TURNS_H

#include "core/pool/session.h"

enum {
    // A session may be this many tokens attended ahead of another before it has to wait: a decode
    // step of one long sequence or of many short ones. The quantum must be less than what clients
    // have in flight. Otherwise a client with more in flight would be served more.
    TURNS_QUANTUM = 1 << 12,
};

struct turns {
    struct heap ready;     // sessions with queued runs, by served / TURNS_QUANTUM
    uint64_t now;          // virtual time in tokens: `served` of the session that was served last
    uint64_t last_ended;   // the submission that ended last, by the engine's number; 0 = none
    uint32_t num_expected; // sessions that it served and that have queued no run since
    // Open sessions whose last run has ended and that have queued no run since, until they are
    // overdue: a list through away_prev and away_next.
    struct core_session *away;
    // Errands whose first queued run is a haul, in the order of their coming: a list through
    // haul_prev and haul_next. They take no turns (core/hauls.h).
    struct core_session *hauling;
};

// It had no queued run and has one now, or its queued run waited for a compile.
void turns_ready(struct core_session *session);
void turns_wait(struct core_session *session);   // one was picked, and it has more
void turns_rejoin(struct core_session *session); // it was out of the heap, and gets its old place
// It has no queued run any more, or is closing.
void turns_forget(struct core_session *session);
// A submission with a run of it has ended, and it has no queued run.
void turns_away(struct core_session *session, int64_t now_ns);
void turns_overdue(struct core_session *session); // takes it out of `away`, if it is there
// True: the last submission served it, and it has queued nothing since.
bool turns_expects(const struct core_session *session);

#endif
