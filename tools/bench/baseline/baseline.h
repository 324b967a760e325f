// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// baseline.h - the same attention in plain C on all cores, in f16 with f32 sums, as a comparison
// for software devices. It is compiled for the build machine, with -ffast-math.

#ifndef AULE_BENCH_BASELINE_H
#define AULE_BENCH_BASELINE_H

#include "tools/bench/check.h"
#include "tools/bench/measure.h"

struct baseline {
    struct times times;
    struct verdict verdict;
    double gflops;
    uint32_t threads;
};

// q, out, K and V are f16, contiguous. False: standard error says why, for example that the
// workload is no attention.
bool baseline_measure(const struct workload *workload, double seconds, struct baseline *baseline);

#endif
