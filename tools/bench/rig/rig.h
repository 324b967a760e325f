// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// rig.h - what measurements run on: an engine in this process, a private daemon, and client
// processes that measure a workload through it or on engines of their own. bare_core.h has the
// daemon's core without a daemon. One thread.

#ifndef AULE_BENCH_RIG_H
#define AULE_BENCH_RIG_H

#include "process.h"
#include "tools/bench/check.h"
#include "tools/bench/measure.h"
#include "tools/bench/options.h"

struct rig {
    const struct options *options; // lent
    struct engine *engine;
    struct process daemon;
    char folder[64], socket[96];
    char device[256], driver[256], variant[64]; // the daemon's
};

// False, here and below: standard error says why. rig_close() takes a zeroed or half-made rig.
bool rig_engine(struct rig *rig, const struct options *options);
// Starts the daemon, in a folder of its own. `more`: further options of the daemon, which overrule;
// it ends with NULL and has MOST_DAEMON_OPTIONS words at most. NULL: none.
enum { MOST_DAEMON_OPTIONS = 8 };
bool rig_daemon(struct rig *rig, const struct options *options, const char *const *more);
void rig_close(struct rig *rig);

// The job of one client: its part of the workload, through the daemon or on its own engine, with
// this many steps in flight.
struct rig_job {
    const struct workload *workload;
    enum via via;
    uint32_t part, clients, in_flight;
    enum dtype kv_dtype;
    bool append; // its runs also write K and V of each sequence's last token
};
// Runs all jobs at once. samples[i], zeroed before, are those of jobs[i], and `verdict` covers all
// their rows. Without a daemon only `options` must be set.
bool rig_measure(const struct rig *rig, const struct rig_job *jobs, uint32_t count,
                 struct samples *samples, struct verdict *verdict);

// One workload, whose sequences are divided among options->clients. times.wall_us is a step of all
// of them.
bool rig_run(struct rig *rig, const struct workload *workload, enum dtype kv_dtype,
             struct times *times, struct verdict *verdict);

#endif
