// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hauls.h - copies of errands between the GPU and host memory where the engine has hauls: it moves
// them beside the submissions, so runs do not wait for them, and they take no turns. In the queue
// they are runs like others, so holds, quarantine and failures need no rule for hauls. Dispatcher
// thread only.

#ifndef AULE_CORE_HAULS_H
#define AULE_CORE_HAULS_H

#include "core/runs/run.h"

struct core;

// Most hauls in flight in each direction. The GPU holds at most eight: two in each of four lanes.
// Another one starts as soon as one ends.
enum { HAULS_IN_FLIGHT = 6 };

struct hauls {
    struct {
        uint64_t number; // engine_haul()'s
        struct run *run;
    } flying[2 * HAULS_IN_FLIGHT]; // [num_flying]
    uint32_t num_flying;
};

bool hauls_go_in(const struct core *core); // one that waits writes blocks on the GPU
// Fails the queued hauls that write to the GPU, because their blocks cannot be zeroed.
void hauls_refuse(struct core *core);
void hauls_submit(struct core *core); // gives the engine what it can take
void hauls_done(struct core *core, const struct engine_event *event); // ENGINE_EVENT_HAULED
void hauls_lost(struct core *core); // the device is lost: those in flight fail

#endif
