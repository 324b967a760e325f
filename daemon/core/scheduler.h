// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// scheduler.h - whose runs go into the next submission, and in which wave. Knows runs and their cost, not what they compute.

#ifndef AULE_CORE_SCHEDULER_H
#define AULE_CORE_SCHEDULER_H

#include "core.h"
#include "heap.h"
#include "run.h"

enum {
    // Submissions ahead of the GPU: one it works on and one that starts without waiting for this thread. A third would only
    // take runs away from merging with those that are still to come.
    SCHEDULER_MAX_IN_FLIGHT = 2,
    // Runs in one submission: bounds the time to record it when runs are tiny.
    SCHEDULER_MAX_RUNS = 1024,
    // Tokens attended by which one session may be ahead of another before it has to wait: a decode step of one long sequence or of
    // many short ones. It is less than what clients have in flight, else who has more there would be served more.
    SCHEDULER_QUANTUM = 1 << 12,
    // Tokens attended after which a submission is closed at the latest: some milliseconds of decode on a large GPU. With two in
    // flight it bounds how long a newcomer waits for others; smaller ones would leave the GPU to submission overhead.
    SCHEDULER_BUDGET = 1 << 22,
    // GPU time that a submission should not take: on slow devices it is closed sooner, as those before it tell.
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
    struct heap ready; // sessions with queued runs, by served / SCHEDULER_QUANTUM
    uint64_t now;      // virtual time: `served` of the session that was served last
    uint64_t submissions;
    uint64_t budget;                         // tokens attended after which the next submission is closed
    uint64_t last_ended;                     // the submission, by the engine's number; 0 = none
    uint64_t prepared_ns;                    // it took the engine so long until the GPU had it
    uint32_t num_expected;                   // of the sessions that it served: those that have asked for nothing since
    uint32_t num_in_flight, first_in_flight; // ring positions in `in_flight`
    struct submission in_flight[SCHEDULER_MAX_IN_FLIGHT];
    // Scratch of the submission that is being built or finished.
    struct link picked[SCHEDULER_MAX_RUNS];
    struct engine_run engine_runs[SCHEDULER_MAX_RUNS];
    uint32_t wave_ends[SCHEDULER_MAX_RUNS];
    uint32_t order[SCHEDULER_MAX_RUNS];
    struct core_session *served[SCHEDULER_MAX_RUNS];
};

void scheduler_init(struct scheduler *scheduler);           // one of zeroes
void scheduler_ready(struct core_session *session);         // it has queued runs now
void scheduler_forget(struct core_session *session);        // it has none any more, or will never have one again
bool scheduler_expects(const struct core_session *session); // back, soon
void scheduler_submit(struct core *core);                   // while the GPU can take more
void scheduler_done(struct core *core, const struct engine_event *event);
void scheduler_lost(struct core *core); // every run fails

#endif
