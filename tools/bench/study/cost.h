// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// cost.h - what the studies "growth" and "cached" share: the CPU time of calls of core.h over a
// real engine, without the process border and without the GPU's time. One thread.

#ifndef AULE_BENCH_COST_H
#define AULE_BENCH_COST_H

#include "study.h"
#include "tools/bench/rig/bare_core.h"

// One kind of call that is timed, as a size grows.
struct cost {
    const char *name, *unit; // of the size
    double aim_ns;           // target for one of `units`
    uint32_t units;          // of one call; 0: as many as the size
    struct samples samples;
};

struct moment {
    double wall_us, cpu_us;
};
struct moment cost_begin(void);
// Notes a call that began then. False: no memory, said on standard error.
bool cost_note(struct cost *cost, struct moment begin);
// Prints the calls noted so far, and forgets them. False also if the core's counts are wrong.
bool cost_say(struct cost *cost, const struct study *study, struct bare_core *core, uint32_t size);

void blocks_shuffle(int32_t *blocks, uint32_t count); // as use scatters them

#endif
