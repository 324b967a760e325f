// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tiers.h - takes blocks to places outside the GPU and back. Each store and each load is an
// errand: a session of core's own, which holds or leases the blocks and copies them like any other
// session. So ownership, quotas, eviction and quarantine need no rule for tiers. Knows tier.h and
// host.h, not what a tier is made of. Dispatcher thread only.
//
// A store: blocks that became visible are held, copied to the host tier's memory on the GPU, and
// released; then the host tier and after it the others keep them. Stores use half of the host
// tier's memory at most, so that loads find room; blocks that do not fit wait on the GPU.
// A load claims its blocks as if it computed them, so that look-ups wait for it or go on behind it.
// Tiers that cannot answer at once are asked first. Then it leases blocks, loads, copies on the GPU
// and publishes, a window of blocks at a time. Blocks behind one that did not come are left out. No
// errand waits for a session. Tiers end their jobs or are abandoned. So every claim of an errand
// ends.

#ifndef AULE_CORE_TIERS_H
#define AULE_CORE_TIERS_H

#include "core/core.h"

struct errand;

enum { TIERS_SOURCES = 1 + CORE_MAX_TIERS }; // the host tier first

struct tiers {
    struct errand *errands; // a list; owned
    uint32_t num_errands;
    struct core_wait *loaders; // what waits for loads
    uint64_t store_bytes;      // of memory that stores use
    bool full;                 // stores wait for memory, until an errand ends
    bool stopped;              // no errand begins
    bool finished;             // core ends: nothing moves any more
    // What a load takes, learnt: nanoseconds for a MiB from each source; 0 = unknown.
    int64_t load_ns[TIERS_SOURCES];
    bool ran_out[TIERS_SOURCES]; // it is of a load that did not come in time, so at least that
    uint32_t declined;           // loads that would have taken longer than computing
};

void tiers_step(struct core *core);
int64_t tiers_wake_ns(const struct core *core);
void tiers_finish(struct core *core); // all sessions are closed, and the GPU has ended their runs

#endif
