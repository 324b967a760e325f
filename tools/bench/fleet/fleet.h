// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fleet.h - a private daemon and the client processes that measure a workload through it.

#ifndef AULE_BENCH_FLEET_H
#define AULE_BENCH_FLEET_H

#include "process.h"
#include "tools/bench/check.h"
#include "tools/bench/measure.h"
#include "tools/bench/options.h"

struct fleet {
    const struct options *options;
    struct process daemon;
    char folder[64], socket[96];
    char device[256], driver[256], variant[64];
};

// Starts the daemon, in a folder of its own. `tune` false: the daemon does not tune. False:
// standard error says why. fleet_close() takes a zeroed or half-made fleet.
bool fleet_open(struct fleet *fleet, const struct options *options, bool tune);
// The same with another part of the device's memory for its pool: --memory-fraction.
bool fleet_open_part(struct fleet *fleet, const struct options *options, bool tune,
                     const char *memory_fraction);
// The same with more options of the daemon: `more` ends with NULL, and has MOST_DAEMON_OPTIONS
// words at most. They come last, so that they overrule.
enum { MOST_DAEMON_OPTIONS = 16 };
bool fleet_open_with(struct fleet *fleet, const struct options *options, bool tune,
                     const char *const *more);
void fleet_close(struct fleet *fleet);

// The job of one client: its part of the workload, through the daemon or on its own engine, with
// this many steps in flight.
struct fleet_job {
    const struct workload *workload;
    enum via via;
    uint32_t part, clients, in_flight;
    enum dtype kv_dtype;
    bool append; // its runs also write K and V of each sequence's last token
};
// Runs all jobs at once. samples[i], zeroed before, are those of jobs[i], and `verdict` covers all
// their rows. Without a daemon (fleet_open()) only `options` must be set. False: standard error
// says why.
bool fleet_measure(const struct fleet *fleet, const struct fleet_job *jobs, uint32_t count,
                   struct samples *samples, struct verdict *verdict);

// One workload, whose sequences are divided among options->clients. times.wall_us is a step of all
// of them. False: standard error says why.
bool fleet_run(struct fleet *fleet, const struct workload *workload, enum dtype kv_dtype,
               struct times *times, struct verdict *verdict);

#endif
