// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// growth.h - how long a step is delayed while the pool grows beside it.

#ifndef AULE_BENCH_GROWTH_H
#define AULE_BENCH_GROWTH_H

#include "world.h"

struct growth {
    struct times still, growing; // of a step from submission to its end, on the wall
    double worst_still_us, worst_us;
    uint32_t num_chunks;
    double grown_gib;
};

// Half of `seconds` without growth, then chunk after chunk until they are over, two chunks at
// least. False: standard error says why.
bool growth_measure(struct world *world, double seconds, struct growth *growth);

#endif
