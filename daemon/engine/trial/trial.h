// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// trial.h - compares a kernel's candidates in bounded time: which one is next, when to stop, which
// one is best. Knows no clock and no GPU; the caller passes times in. No lock.

#ifndef AULE_ENGINE_TRIAL_H
#define AULE_ENGINE_TRIAL_H

#include "engine/tuning/tune.h"

enum { MOST_CANDIDATES = 8 };

struct trial {
    uint32_t candidates[MOST_CANDIDATES]; // local sizes: invocations of a workgroup
    uint32_t num_candidates;
    uint64_t best_ns[MOST_CANDIDATES];     // the shortest of each; valid if num_samples is not 0
    uint32_t num_samples[MOST_CANDIDATES]; // without round 0
    uint32_t next, round; // candidate and round; round 0 warms up and does not count
    uint64_t deadline_ns;
};

// `candidates` ends with 0. Those above `most` are left out; if fewer than two are left, there is
// nothing to compare.
void trial_begin(struct trial *trial, const uint32_t *candidates, uint32_t most, uint64_t now_ns,
                 uint64_t budget_ns);
// The local size to measure next. 0: enough is known, or the time is over.
uint32_t trial_next(const struct trial *trial, uint64_t now_ns);
void trial_add(struct trial *trial, uint64_t gpu_ns); // result of the candidate from trial_next()
// Stores the best candidate in *entry. The rule's size stays unless another is faster by more than
// the noise. false: too little was measured.
bool trial_end(const struct trial *trial, struct tune_entry *entry);

#endif
