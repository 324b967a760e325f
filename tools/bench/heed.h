// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// heed.h - whether what a command line names goes with its options, before anything is begun.

#ifndef AULE_BENCH_HEED_H
#define AULE_BENCH_HEED_H

#include "options.h"
#include "workload.h"

// False: standard error says what does not.
bool all_heed(const struct selection *selection, const struct options *options);

#endif
