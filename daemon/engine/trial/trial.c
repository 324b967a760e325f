// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// trial.c - see trial.h. A candidate's shortest time counts: other work on the device can only
// lengthen a time.

#include "trial.h"

enum {
    ROUNDS = 12,       // besides round 0
    NOISE_PERCENT = 1, // a smaller gain is no reason to leave the rule
};

void trial_begin(struct trial *trial, const uint32_t *candidates, uint32_t most, uint64_t now_ns,
                 uint64_t budget_ns)
{
    *trial = (struct trial){.deadline_ns = now_ns + budget_ns};
    for (uint32_t i = 0; candidates && candidates[i] && trial->num_candidates < MOST_CANDIDATES;
         i++)
        if (candidates[i] <= most)
            trial->candidates[trial->num_candidates++] = candidates[i];
}

uint32_t trial_next(const struct trial *trial, uint64_t now_ns)
{
    bool over = trial->round > ROUNDS || now_ns >= trial->deadline_ns;
    return over || trial->num_candidates == 0 ? 0 : trial->candidates[trial->next];
}

void trial_add(struct trial *trial, uint64_t gpu_ns)
{
    uint32_t i = trial->next;
    if (trial->round > 0) {
        if (trial->num_samples[i]++ == 0 || gpu_ns < trial->best_ns[i])
            trial->best_ns[i] = gpu_ns;
    }
    trial->next = (i + 1) % trial->num_candidates;
    trial->round += trial->next == 0;
}

// All candidates have as many samples as the last one, or one more.
static bool measured(const struct trial *trial)
{
    return trial->num_candidates > 0 && trial->num_samples[trial->num_candidates - 1] > 0;
}

static uint32_t fastest(const struct trial *trial)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < trial->num_candidates; i++)
        if (trial->best_ns[i] < trial->best_ns[best])
            best = i;
    return best;
}

bool trial_end(const struct trial *trial, struct tune_entry *entry)
{
    uint32_t rule = 0, best = fastest(trial);
    while (rule < trial->num_candidates && trial->candidates[rule] != entry->rule_local_size)
        rule++;
    entry->num_candidates = trial->num_candidates;
    if (!measured(trial) || rule == trial->num_candidates)
        return false;
    if (trial->best_ns[best] >= trial->best_ns[rule] - trial->best_ns[rule] / 100 * NOISE_PERCENT)
        best = rule;
    entry->local_size = trial->candidates[best];
    entry->gpu_ns = trial->best_ns[best];
    entry->rule_gpu_ns = trial->best_ns[rule];
    entry->num_samples = trial->num_samples[trial->num_candidates - 1];
    return true;
}
