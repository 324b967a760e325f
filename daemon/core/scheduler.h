// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// scheduler.h - whose runs go into the next submission, and in which wave. Knows runs and their
// cost, not what they compute.

#ifndef AULE_CORE_SCHEDULER_H
#define AULE_CORE_SCHEDULER_H

#include "core/runs/run.h"
#include "core/runs/turns.h"

enum {
    // Submissions ahead of the GPU: one it works on and one that starts without waiting for this
    // thread. A third would only
    // take runs away from merging with those that are still to come.
    SCHEDULER_MAX_IN_FLIGHT = 2,
    // Runs in one submission: bounds the time to record it when runs are tiny.
    SCHEDULER_MAX_RUNS = 1024,
    // Tokens attended after which a submission is closed at the latest: some milliseconds of decode
    // on a large GPU. With two in
    // flight it bounds how long a newcomer waits for others; smaller ones would leave the GPU to
    // submission overhead.
    SCHEDULER_BUDGET = 1 << 22,
    // GPU time that a submission should not take: on slow devices it is closed sooner, as those
    // before it tell.
    SCHEDULER_TIME_NS = 20 * 1000 * 1000,
};

// One layer of a run, which is a run to the engine.
struct link {
    struct run *run;
    uint32_t number, wave;
};

struct submission {
    uint64_t sequence; // the engine's
    uint32_t num_links;
    struct link links[SCHEDULER_MAX_RUNS]; // in the engine's order
};

struct scheduler {
    struct turns turns;
    uint64_t submissions;
    uint64_t budget;      // tokens attended after which the next submission is closed
    uint64_t prepared_ns; // turns.last_ended took the engine so long until the GPU had it
    uint32_t num_in_flight, first_in_flight; // ring positions in `in_flight`
    struct submission in_flight[SCHEDULER_MAX_IN_FLIGHT];
    // Scratch of the submission that is being built or finished.
    struct link picked[SCHEDULER_MAX_RUNS];
    struct engine_run engine_runs[SCHEDULER_MAX_RUNS];
    uint32_t wave_ends[SCHEDULER_MAX_RUNS];
    uint32_t order[SCHEDULER_MAX_RUNS];
    struct core_session *served[SCHEDULER_MAX_RUNS];
};

void scheduler_init(struct scheduler *scheduler); // one of zeroes
void scheduler_submit(struct core *core);         // while the GPU can take more
int64_t scheduler_wake_ns(struct core *core);     // core_wake_ns(), after scheduler_submit()
void scheduler_done(struct core *core, const struct engine_event *event);
void scheduler_lost(struct core *core); // every run fails

#endif
