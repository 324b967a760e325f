// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// scheduler.h - whose runs go into the next submission, and in which wave. Knows what a run costs,
// not what it computes. Dispatcher thread only.

#ifndef AULE_CORE_SCHEDULER_H
#define AULE_CORE_SCHEDULER_H

#include "core/errands/hauls.h"
#include "core/runs/run.h"
#include "core/turns/turns.h"
#include "gather.h"

enum {
    // One submission runs on the GPU, and one starts behind it without waiting for this thread. A
    // third would only take runs that could still share a dispatch with later ones.
    SCHEDULER_MAX_IN_FLIGHT = 2,
    // Links in one submission: bounds the time to record many tiny runs.
    SCHEDULER_MAX_RUNS = 1024,
    // A submission is closed at the latest when its runs' weights (about tokens attended) reach
    // this: some milliseconds of decode on a large GPU. With two submissions in flight, it bounds
    // how long a new run waits. With a smaller bound, submission overhead would fill the GPU.
    // Links that read the same prefix as the last one go along, up to twice this.
    SCHEDULER_BUDGET = 1 << 22,
    // A submission to an idle GPU takes so many waves that it has about this many links. So the GPU
    // begins sooner, and what follows is prepared meanwhile.
    SCHEDULER_FIRST_LINKS = 32,
    // Each further submission may have this many times the waves of the one before. If its sessions
    // share a long prompt, preparing a wave takes at most a third of its GPU time.
    SCHEDULER_GROWTH = 3,
    // A session is alone if no other one had a run picked for so long.
    SCHEDULER_LATELY_NS = 1000 * 1000 * 1000,
    // GPU time that a submission should not exceed. After one that does, learn_budget() closes the
    // next ones sooner.
    SCHEDULER_TIME_NS = 20 * 1000 * 1000,
};

struct submission {
    uint64_t sequence;  // engine_submit()'s number
    uint32_t num_links; // slices of layers; SCHEDULER_MAX_RUNS at most
    bool zeroes;        // it zeroes blocks
    bool is_long;       // it ends with a slice that is longer than one should be
    struct layer_run links[SCHEDULER_MAX_RUNS]; // [num_links] in the engine's order
};

struct scheduler {
    struct turns turns;
    struct gather gather;
    struct hauls hauls;
    struct speed speed;
    uint64_t last_zeroes; // the newest submission that zeroes blocks; 0 = none
    uint64_t submissions; // built so far; the number of one is kept in session->last_picked_in
    uint64_t budget;      // tokens attended after which the next submission is closed
    uint64_t latest;      // session of the last pick, by its id; 0 = none
    // Times of its last pick, and of the last one of another session; 0 = none.
    int64_t latest_ns, others_ns;
    uint64_t prepared_ns; // of the last submission that ended: from engine_submit() to the GPU
    // Bound on the waves of the newest submission. 0: no session reached it with more queued.
    uint32_t cut_at;
    uint32_t num_in_flight, first_in_flight; // `in_flight` is a ring: entries, and the oldest one
    struct submission in_flight[SCHEDULER_MAX_IN_FLIGHT];
    // Scratch for the submission that is being built or finished.
    struct layer_run picked[SCHEDULER_MAX_RUNS];
    struct engine_run engine_runs[SCHEDULER_MAX_RUNS];
    uint32_t wave_ends[SCHEDULER_MAX_RUNS];
    uint32_t order[SCHEDULER_MAX_RUNS];
    struct core_session *served[SCHEDULER_MAX_RUNS];
    struct core_session *halted[SCHEDULER_MAX_RUNS]; // [num_halted]: the submission has their part
    uint32_t num_halted;
};

// Takes a zeroed one. `slice_ns` as in core_params.
void scheduler_init(struct scheduler *scheduler, bool software, uint64_t slice_ns);
// Submits ready runs until the GPU has enough or runs have to wait for other sessions.
void scheduler_submit(struct core *core);
// What core_wake_ns() returns. Call it after scheduler_submit().
int64_t scheduler_wake_ns(struct core *core);
void scheduler_done(struct core *core, const struct engine_event *event); // ENGINE_EVENT_DONE
void scheduler_compiled(struct core *core);                               // ENGINE_EVENT_COMPILED
void scheduler_lost(struct core *core); // the device is lost: every run fails

#endif
