// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// speed.c - see speed.h.

#include "speed.h"

#include <math.h>

// Before anything is measured. Measured on two loaded cores with lavapipe, all kinds take 0.4 to 2
// ns. An H200 takes a fifth of this value for prefill; rows that are gathered one by one take long
// for their bytes. Slow GPUs take more, which is learnt soon.
static const double FIRST_NS_SOFTWARE = 1, FIRST_NS = 1e-5, FIRST_NS_GATHER = 1e-4;

enum {
    // A step down goes this part of the way. One up goes all of it, but at most to twice the value.
    LEARN_PART = 4,
    // In shorter dispatches, launch overhead dominates.
    LEARN_LEAST = 16,
};

void speed_init(struct speed *speed, bool software, uint64_t slice_ns)
{
    for (int i = 0; i < SPEEDS; i++) {
        const double first = i == SPEED_GATHER ? FIRST_NS_GATHER : FIRST_NS;
        speed->ns[i] = speed->last[i] = software ? FIRST_NS_SOFTWARE : first;
    }
    speed->slice_ns = software ? SPEED_SLICE_NS_SOFTWARE : SPEED_SLICE_NS;
    if (slice_ns)
        speed->slice_ns = (double)slice_ns;
}

double speed_ns(const struct speed *speed, enum speed_kind kind, uint64_t work)
{
    return speed->ns[kind] * (double)work;
}

uint32_t speed_slices(const struct speed *speed, enum speed_kind kind, uint64_t work,
                      uint64_t units, double slice_ns)
{
    const double slices = speed_ns(speed, kind, work) / slice_ns;
    const uint32_t most = units < SPEED_MOST_SLICES ? (uint32_t)units : SPEED_MOST_SLICES;
    if (slices <= 1 || most <= 1)
        return 1;
    return slices < most ? (uint32_t)ceil(slices) : most;
}

// A single measurement changes nothing, because the first dispatch of a pipeline may include a
// compile: it counts as far as the one before confirms it. Work that takes less time than was
// expected is learnt from, however short it was. Otherwise a value that is too high would stay.
void speed_learn(struct speed *speed, enum speed_kind kind, uint64_t work, uint64_t ns)
{
    const double known = speed->ns[kind], seen = (double)ns / (double)(work ? work : 1),
                 low = fmin(seen, speed->last[kind]), high = fmax(seen, speed->last[kind]);
    if (!ns || fmax((double)ns, speed_ns(speed, kind, work)) * LEARN_LEAST < speed->slice_ns)
        return;
    speed->last[kind] = seen;
    if (low > known)
        speed->ns[kind] = fmin(low, 2 * known);
    else if (high < known)
        speed->ns[kind] += (high - known) / LEARN_PART;
}
