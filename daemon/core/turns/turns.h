// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// turns.h - whose turn it is among sessions with queued runs, and which sessions are expected to
// queue a run soon, or are away. Time is shared among tenants first, and each tenant's part among
// its sessions. A session and a tenant have a struct of here as a part of theirs. Knows how much
// each was served, not what for, and neither sessions nor tenants. Dispatcher thread only.

#ifndef AULE_CORE_TURNS_H
#define AULE_CORE_TURNS_H

#include "habit.h"
#include "heap.h"

enum {
    // A tenant may be this many tokens attended ahead of another one before it has to wait, and a
    // session ahead of another one of its tenant: a decode step of one long sequence or of many
    // short ones. The quantum must be less than what clients have in flight. Otherwise a client
    // with more in flight would be served more.
    TURNS_QUANTUM = 1 << 12,
};

struct turns {
    struct heap ready;     // payers with ready turns, by served / TURNS_QUANTUM
    uint32_t num_ready;    // these turns
    uint64_t now;          // virtual time in tokens: `served` of the payer that was served last
    uint64_t last_ended;   // the submission that ended last, by the engine's number; 0 = none
    uint32_t num_expected; // sessions that it served and that have queued no run since
    // Open sessions whose last run has ended and that have queued no run since, until they are
    // overdue: a list through away_prev and away_next.
    struct turn *away;
    // Errands whose first queued run is a haul, in the order of their coming: a list through
    // haul_prev and haul_next. They take no turns (errands/hauls.h).
    struct turn *hauling;
};

// A tenant's part.
struct turn_payer {
    struct heap ready;     // its sessions' turns while runs are queued
    struct heap_node node; // in turns->ready while `ready` is not empty
    uint64_t served, now;  // weight of its sessions' picked links; virtual time of `ready`
};

// A session's part.
struct turn {
    struct turns *turns; // these two stay
    struct turn_payer *payer;
    struct heap_node node; // in payer->ready while runs are queued, unless they are put off
    uint64_t served;       // weight of its picked links, in tokens of virtual time
    uint64_t expected;     // number of the last ended submission that served it; 0 = none, or it
                           // has queued a run since then
    struct habit habit;    // when its next run is expected, and what that reads
    int64_t held_ns;       // its first queued run was first held back then; 0 = it was not
    bool is_away;          // it is in turns->away
    struct turn *away_prev, *away_next;
    bool hauls;      // an errand: its runs are hauls, because the engine has these
    bool is_hauling; // it is in turns->hauling
    struct turn *haul_prev, *haul_next;
};

// Makes room for `sessions` open sessions in all, `of_payer` of them of `payer`. False: no memory.
bool turns_reserve(struct turns *turns, struct turn_payer *payer, size_t sessions, size_t of_payer);
void turns_finish(struct turns *turns);

// The first turn. NULL: none is ready.
struct turn *turns_first(const struct turns *turns);
// The one that is next within the payer of `turn`, which may be `turn`. NULL: none.
struct turn *turns_first_beside(const struct turn *turn);
// The ready turn behind `turn`, in no certain order; behind NULL: one of them. NULL: there is no
// further one.
struct turn *turns_next(const struct turns *turns, const struct turn *turn);
bool turns_is_ready(const struct turn *turn); // it is among these
bool turns_sound(const struct turns *turns);  // checks orders and counts; for tests

// It had no queued run and has one now, or its queued run waited for a compile.
void turns_ready(struct turn *turn);
// It is ready, and a link of this weight was picked. `more`: it stays ready.
void turns_serve(struct turn *turn, uint64_t weight, bool more);
void turns_unserve(struct turn *turn, uint64_t weight); // the link came back unstarted
// Takes it out of the heap until turns_rejoin().
void turns_leave(struct turn *turn);
void turns_rejoin(struct turn *turn); // then it gets its old place
// It has no queued run any more, or is closing.
void turns_forget(struct turn *turn);
// A submission with a run of it has ended, and it has no queued run.
void turns_away(struct turn *turn, int64_t now_ns);
void turns_overdue(struct turn *turn); // takes it out of `away`, if it is there
// True: the last submission served it, and it has queued nothing since.
bool turns_expects(const struct turn *turn);

#endif
