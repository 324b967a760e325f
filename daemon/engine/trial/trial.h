// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// trial.h - measuring a kernel's candidates against each other in a bounded time: whose turn it is,
// when enough is known, who won. The clock and the measured times come from outside, so that it
// knows neither. No lock.

#ifndef AULE_ENGINE_TRIAL_H
#define AULE_ENGINE_TRIAL_H

#include "engine/tuning/tune.h"

enum { MOST_CANDIDATES = 8 };

struct trial {
    uint32_t candidates[MOST_CANDIDATES]; // local sizes
    uint32_t num_candidates;
    uint64_t best_ns[MOST_CANDIDATES];
    uint32_t num_samples[MOST_CANDIDATES]; // that count
    uint32_t next, round;                  // round 0 warms up and counts nothing
    uint64_t deadline_ns;
};

// `candidates` ends with 0; those above `most` are left out. Fewer than two left: nothing to try.
void trial_begin(struct trial *trial, const uint32_t *candidates, uint32_t most, uint64_t now_ns,
                 uint64_t budget_ns);
// The candidate to measure next. 0: enough is known, or the time is over.
uint32_t trial_next(const struct trial *trial, uint64_t now_ns);
void trial_add(struct trial *trial, uint64_t gpu_ns); // what the one from trial_next() took
// Who won, into *entry; the rule wins if nobody is better by more than the noise. false: too little
// was measured.
bool trial_end(const struct trial *trial, struct tune_entry *entry);

#endif
