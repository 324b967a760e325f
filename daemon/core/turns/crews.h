// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// crews.h - which ready runs wait for sessions that are about to queue a run over the same prefix,
// so that one dispatch reads the prefix for all of them. Knows numbers only: no clock, no session.
// Dispatcher thread only.
//
// A crew is all sessions whose next runs read one prefix in one layer. Its ready runs wait for
// - its sessions whose runs are on the GPU or ended just now;
// - the crews up to half of the layers behind, which will reach this layer, unless another crew
//   already waits for this one.
// A wait may let the GPU idle. It does so only if the usual gap of the sessions and the preparing
// of a submission take no longer than reading the shared tokens again, in all layers of the runs.
// That time also limits the wait. A session is waited for up to the longest gap that counts as in
// time, or half of the GPU's time for it, if that is longer.

#ifndef AULE_CORE_CREWS_H
#define AULE_CORE_CREWS_H

#include "habit.h"

// Crews in all, and of one tenant. Runs of further prefixes and layers have no crew: they do not
// wait, so they share fewer dispatches. No option sets these, because nothing is refused.
enum { CREWS_MOST = 64, CREWS_OF_TENANT = 16 };

// Sessions of a crew, and what to know about them.
struct crew_part {
    uint32_t count;
    struct reading reading; // of the first one
    int64_t mean_ns;        // the longest usual gap
    int64_t step_ns;        // the longest usual gap where a model step ends
    int64_t token_ps;       // the smallest habit.token_ps
    int64_t gpu_ns;         // the smallest habit.gpu_ns
};

struct crew {
    struct reading reading; // of the session that came first
    uint32_t num_ready;     // sessions with a run queued, trusted or not
    uint32_t num_held;      // of these, those that have waited already
    struct crew_part ready; // of these, those that are trusted: habit_next()
    struct crew_part expected;
    int64_t ended_ns; // when the last run of those expected ended; FOREVER: one is on the GPU
    int64_t due_ns;   // when the last of those expected should be back; FOREVER likewise
    int64_t until_ns; // by crews_decide(): the ready runs wait until then; 0 = they do not
};

struct crews {
    struct crew list[CREWS_MOST];
    uint32_t count;
};

// True: both begin with the same block, in any layer.
bool crews_same_prefix(const struct reading *a, const struct reading *b);
// The crew of a run that reads `reading`. NULL: there is none, and no place for another one
// of its tenant.
struct crew *crews_get(struct crews *crews, const struct reading *reading);
// A session has a run queued that reads `reading`. `held`: it has waited already.
void crews_add_ready(struct crews *crews, const struct reading *reading, const struct habit *habit,
                     bool held);
// A session has no run queued. Its last run ended at `ended_ns`; FOREVER: it is on the GPU. False:
// the session is overdue or not trusted, and nobody waits for it.
bool crews_add_expected(struct crews *crews, const struct habit *habit, int64_t ended_ns,
                        int64_t now_ns);
// Sets until_ns of all crews. `prepares_ns`: time from a submission until the GPU has it.
void crews_decide(struct crews *crews, int64_t prepares_ns, int64_t now_ns);

#endif
