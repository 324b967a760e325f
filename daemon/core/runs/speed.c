// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// speed.c - see speed.h.

#include "speed.h"

// Before anything is measured. Measured on two loaded cores with lavapipe, all kinds take 0.4 to 2
// ns. An H200 takes a fifth of this value for prefill, and slow GPUs take more, which is learnt
// soon.
static const double FIRST_NS_SOFTWARE = 1, FIRST_NS = 1e-5;

enum {
    // A step of learning goes this part of the way, and at most to twice or half the value: the
    // first dispatch of a pipeline may include a compile.
    LEARN_PART = 4,
    // What took less than this part of a slice says more about dispatches than about work.
    LEARN_LEAST = 16,
};

void speed_init(struct speed *speed, bool software, uint64_t slice_ns)
{
    for (int i = 0; i < SPEEDS; i++)
        speed->ns[i] = software ? FIRST_NS_SOFTWARE : FIRST_NS;
    speed->slice_ns = software ? SPEED_SLICE_NS_SOFTWARE : SPEED_SLICE_NS;
    if (slice_ns)
        speed->slice_ns = (double)slice_ns;
}

double speed_ns(const struct speed *speed, enum speed_kind kind, uint64_t work)
{
    return speed->ns[kind] * (double)work;
}

uint32_t speed_slices(const struct speed *speed, enum speed_kind kind, uint64_t work)
{
    const double slices = speed_ns(speed, kind, work) / speed->slice_ns;
    if (slices >= SPEED_MOST_SLICES)
        return SPEED_MOST_SLICES;
    const uint32_t whole = (uint32_t)slices;
    return whole + ((double)whole < slices);
}

void speed_learn(struct speed *speed, enum speed_kind kind, uint64_t work, uint64_t ns)
{
    double *known = &speed->ns[kind], seen = (double)ns / (double)(work ? work : 1);
    if ((double)ns * LEARN_LEAST < speed->slice_ns)
        return;
    seen = seen > *known * 2 ? *known * 2 : seen < *known / 2 ? *known / 2 : seen;
    *known += (seen - *known) / (seen > *known ? 1 : LEARN_PART);
}
