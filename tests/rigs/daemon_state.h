// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// daemon_state.h - some metrics of a daemon at one moment, as a struct. Knows no way to ask for
// them.

#ifndef AULE_TESTS_RIGS_DAEMON_STATE_H
#define AULE_TESTS_RIGS_DAEMON_STATE_H

#include <stdint.h>
#include <string.h>

#define DAEMON_STATE_MAP(X)                                                                        \
    X(num_sessions, "aule_sessions")                                                               \
    X(pool_blocks, "aule_pool_blocks")                                                             \
    X(free_blocks, "aule_blocks{state=\"free\"}")                                                  \
    X(leased_blocks, "aule_blocks{state=\"leased\"}")                                              \
    X(held_blocks, "aule_blocks{state=\"held\"}")                                                  \
    X(cached_blocks, "aule_blocks{state=\"cached\"}")                                              \
    X(quarantined_blocks, "aule_blocks{state=\"quarantined\"}")                                    \
    X(runs_done, "aule_runs_done_total")                                                           \
    X(submissions, "aule_submissions_total")                                                       \
    X(session_deaths, "aule_sessions_died_total")                                                  \
    X(ends_awake, "aule_gpu_ends_total{daemon=\"awake\"}")                                         \
    X(ends_asleep, "aule_gpu_ends_total{daemon=\"asleep\"}")

struct daemon_state {
#define FIELD(field, metric) uint64_t field;
    DAEMON_STATE_MAP(FIELD)
#undef FIELD
};

// Other metrics change nothing.
static inline void daemon_state_take(struct daemon_state *state, const char *name, uint64_t value)
{
#define TAKE(field, metric)                                                                        \
    if (strcmp(name, metric) == 0)                                                                 \
        state->field = value;
    DAEMON_STATE_MAP(TAKE)
#undef TAKE
}

#endif
