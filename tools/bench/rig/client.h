// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// client.h - a worker process of the bench. It runs some sequences of a workload, through a daemon
// or on its own engine. clients.c starts it and talks with it over standard input and output: it
// prints "ready" and waits for a line; then it prints a line for each step, "wall_us gpu_us", and
// at the end "done elapsed_us rows worst".

#ifndef AULE_BENCH_CLIENT_H
#define AULE_BENCH_CLIENT_H

#include "tools/bench/options.h"
#include "tools/bench/workload.h"

// Runs this client's share of the sequences: options->part of options->clients. False: standard
// error says why.
bool client_run(const struct options *options, const struct workload *workload);

#endif
