// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fleet.h - a private daemon and the client processes that measure a workload through it.

#ifndef AULE_BENCH_FLEET_H
#define AULE_BENCH_FLEET_H

#include "check.h"
#include "measure.h"
#include "options.h"
#include "process.h"

struct fleet {
    const struct options *options;
    struct process daemon;
    char folder[64], socket[96];
    char device[256], driver[256], variant[64];
};

// Starts the daemon, in a folder of its own. False: standard error says why. fleet_close() takes a zeroed and a half-made one.
bool fleet_open(struct fleet *fleet, const struct options *options);
void fleet_close(struct fleet *fleet);

// One workload, its sequences shared out among options->clients. times.wall_us is a step of all of them. False: standard error says why.
bool fleet_run(struct fleet *fleet, const struct workload *workload, enum dtype kv_dtype, struct times *times,
               struct verdict *verdict);

#endif
