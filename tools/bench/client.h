// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// client.h - a worker process of the bench: some sequences of a workload, through a daemon or on an
// engine that this process owns, started by fleet.c, which it talks with by its standard input and
// output: "ready", then it waits for a line; then a line a step, "wall_us gpu_us"; then "done
// elapsed_us rows worst".

#ifndef AULE_BENCH_CLIENT_H
#define AULE_BENCH_CLIENT_H

#include "options.h"
#include "workload.h"

// The options' part'th of so many clients takes its share of the sequences. False: standard error
// says why.
bool client_run(const struct options *options, const struct workload *workload);

#endif
