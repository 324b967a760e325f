// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// caller.h - some sequences of a workload through libaule-client: what a world (world.h) is to an
// engine of our own, to a daemon. Knows aule by its public header alone. One thread.

#ifndef AULE_BENCH_CALLER_H
#define AULE_BENCH_CALLER_H

#include "check.h"
#include "measure.h"

#include <aule/aule.h>

struct caller_params {
    const char *socket, *lane; // "nng" or "ring"
    const struct workload *workload;
    enum dtype dtype, kv_dtype;
    uint32_t first, count; // its sequences
    uint32_t splits;       // as in engine_run
    uint64_t pool_bytes;   // as in world_params
    uint32_t layers;       // as there
    uint32_t in_flight;    // steps that nobody has waited for; each has q and out of its own
    bool append;           // as there
};

enum { CALLER_MOST_IN_FLIGHT = 64 };

struct caller {
    struct caller_params params;
    struct shape shape;
    struct aule_session *session;
    struct aule_cache *cache;
    struct aule_batch *batch;
    uint32_t num_sets, num_q_sets;           // layers; those of q, out and new K and V
    uint64_t q_bytes, new_bytes;             // of one set
    struct aule_tensor q, out, new_k, new_v; // of set 0; the others follow
    char *memory;                            // of all of them
    int32_t *blocks; // [num_blocks] the daemon's number of each block of the shape
    struct aule_ticket tickets[CALLER_MOST_IN_FLIGHT];
    uint64_t submitted;
    uint32_t last_set; // that a run was submitted over
};

// False: standard error says why. caller_close() takes a zeroed and a half-made one.
bool caller_open(struct caller *caller, const struct caller_params *params);
void caller_close(struct caller *caller);

struct lane caller_lane(struct caller *caller);
// As world.h has them.
bool caller_check(struct caller *caller, uint32_t set, struct verdict *verdict);
bool caller_poison(struct caller *caller);
bool caller_look(struct caller *caller, uint32_t set, struct verdict *verdict);

#endif
