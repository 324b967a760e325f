// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// world.h - one workload, or some of its sequences, on an engine in this process: filled K and V,
// and the batch. Timing and check use the same buffers and pipelines. One thread.

#ifndef AULE_BENCH_WORLD_H
#define AULE_BENCH_WORLD_H

#include "tools/bench/check.h"
#include "tools/bench/gpu/store.h"
#include "tools/bench/measure.h"
#include "tools/bench/options.h"

struct world_params {
    enum dtype dtype, kv_dtype; // of q and out; of K and V
    uint64_t pool_bytes; // read at least this much of K and V in turn, so that no cache holds them;
                         // 0: one set
    uint32_t num_splits; // as in engine_run
    void (*progress)(double share); // of a check; NULL = not wanted
    uint32_t first, count;          // its sequences; count 0: all
    bool host;                      // q, out and new K and V in shared memory, as a client has them
    bool append;                    // with `host`: a run also writes K and V of each sequence's
                                    // last token
};

struct world {
    const struct workload *workload;
    struct world_params params;
    struct shape shape;
    struct engine *engine; // lent
    struct store store;
    struct engine_cache *cache;
    struct engine_batch *batch;
    uint32_t num_sets;                     // of K and V: layers of the cache
    uint32_t num_q_sets;                   // of Q; there is one out
    uint32_t chunk_blocks, num_chunks;     // the pool grows by this; chunks that it has
    uint64_t q_bytes, kv_bytes, new_bytes; // of one set, of K or V alone
    uint64_t out_at, new_at;               // in the arena; Q is at 0
    uint64_t submitted, done;              // the last submissions
    uint32_t last_set;                     // of the last submission's last step
};

// Opens an engine, for one world after the other, with these options. NULL: standard error says
// why.
struct engine *world_engine(const struct options *options);

// False: standard error says why. world_close() takes a zeroed or half-made world.
bool world_open(struct world *world, struct engine *engine, const struct workload *workload,
                const struct world_params *params);
void world_close(struct world *world);

struct lane world_lane(struct world *world);
// Runs a step over `set`, and checks its result.
bool world_check(struct world *world, uint32_t set, struct verdict *verdict);
// The two halves of it: the first fills out with NaN, the second checks what a step over `set`
// wrote.
bool world_poison(struct world *world);
bool world_look(struct world *world, uint32_t set, struct verdict *verdict);

// Names the kernels that serve it, each with its number of sequences.
void world_kernels(struct world *world, char *text, size_t size);

#endif
