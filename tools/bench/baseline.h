// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// baseline.h - the same attention in plain C on all cores, in f16 with f32 sums: what a software
// device is to be compared with. It is compiled for this very machine, with -ffast-math.

#ifndef AULE_BENCH_BASELINE_H
#define AULE_BENCH_BASELINE_H

#include "check.h"
#include "measure.h"

struct baseline {
    struct times times;
    struct verdict verdict;
    double gflops;
    uint32_t threads;
};

// False: standard error says why. What is no attention has none, and standard error says so. q,
// out, K and V are f16, contiguous.
bool baseline_measure(const struct workload *workload, double seconds, struct baseline *baseline);

#endif
