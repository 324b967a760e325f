// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// growth.h - how long a step is delayed while the pool grows beside it.

#ifndef AULE_BENCH_GROWTH_H
#define AULE_BENCH_GROWTH_H

#include "world.h"

struct growth {
    struct times still, growing; // of a step from submission to end, on the wall clock
    double worst_still_us, worst_us;
    uint32_t num_chunks;
    double grown_gib;
};

// Half of `seconds` without growth; then the pool grows chunk by chunk, by at least two chunks.
// False: standard error says why.
bool growth_measure(struct world *world, double seconds, struct growth *growth);

#endif
