// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// measure.h - how long a world's runs take, again and again. Says nothing of what the times mean.

#ifndef AULE_BENCH_MEASURE_H
#define AULE_BENCH_MEASURE_H

#include "world.h"

struct times {
    double median_us, p99_us; // of one run on the GPU; where the device has no clock, on the wall
    double wall_us;           // of one run, with others queued behind it: median
    uint32_t runs;            // that were counted
    bool gpu_clock;
};

// For about `seconds`, of which the first half only warms up, and at least `least` runs are counted. `progress` (may be NULL) is called with
// a share from 0 to 1. False: standard error says why.
bool measure(struct world *world, double seconds, uint32_t least, void (*progress)(double share), struct times *times);

#endif
