// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// heed.h - checks that the named workloads can be run with the given options, before anything
// starts.

#ifndef AULE_BENCH_HEED_H
#define AULE_BENCH_HEED_H

#include "tools/bench/options.h"
#include "tools/bench/workload.h"

// False: standard error says what does not fit.
bool all_heed(const struct selection *selection, const struct options *options);

#endif
