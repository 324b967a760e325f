// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// caller.h - some sequences of a workload through libaule-client: the counterpart of a world
// (world.h) for a daemon. It uses only aule's public header. One thread. Callers whose sequences
// share a prefix share its blocks: the first writes and publishes them, the others wait for that.

#ifndef AULE_BENCH_CALLER_H
#define AULE_BENCH_CALLER_H

#include "tools/bench/check.h"
#include "tools/bench/measure.h"

#include <aule/aule.h>

struct caller_params {
    const char *socket, *lane; // "nng" or "ring"
    const struct workload *workload;
    enum dtype dtype, kv_dtype;
    uint32_t first, count; // its sequences
    uint32_t splits;       // as in engine_run
    uint64_t pool_bytes;   // as in world_params
    uint32_t in_flight;    // steps that are submitted and not yet waited for; each has its own q
                           // and out
    bool append;           // as in world_params
};

enum { CALLER_MOST_IN_FLIGHT = 64 };

struct caller {
    struct caller_params params;
    struct shape shape;
    struct aule_session *session;
    struct aule_cache *cache;
    struct aule_batch *batch;
    uint32_t num_sets, num_q_sets;           // layers; sets of q, out and new K and V
    uint64_t q_bytes, new_bytes;             // of one set
    struct aule_tensor q, out, new_k, new_v; // of set 0; the others follow
    char *memory;                            // memory of all sets
    int32_t *blocks;    // [num_blocks]: the daemon's id of each block of the shape
    uint32_t num_found; // the first of them, a shared prefix that another client has written
    struct aule_ticket tickets[CALLER_MOST_IN_FLIGHT];
    uint64_t submitted;
    uint32_t last_set; // over which the last run was submitted
};

// False: standard error says why. caller_close() takes a zeroed or half-made caller.
bool caller_open(struct caller *caller, const struct caller_params *params);
void caller_close(struct caller *caller);

struct lane caller_lane(struct caller *caller);
// The same as in world.h.
bool caller_check(struct caller *caller, uint32_t set, struct verdict *verdict);
bool caller_poison(struct caller *caller);
bool caller_look(struct caller *caller, uint32_t set, struct verdict *verdict);

#endif
