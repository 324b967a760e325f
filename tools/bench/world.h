// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// world.h - one workload, or some of its sequences, on an engine in this process: filled K and V,
// and the batch. What is timed and what is checked are the same buffers and pipelines. One thread.

#ifndef AULE_BENCH_WORLD_H
#define AULE_BENCH_WORLD_H

#include "check.h"
#include "measure.h"
#include "options.h"
#include "tools/bench/gpu/store.h"

struct world_params {
    enum dtype dtype, kv_dtype; // of q and out; of K and V
    uint64_t pool_bytes; // fill at least so much with K and V in turns, so that no cache holds them
    uint32_t num_splits; // as in engine_run
    bool rows;           // K and V contiguous in the arena, no blocks
    void (*progress)(double share); // of a check; NULL = nobody is told
    // What stands for a client of a daemon, and goes with WORKLOAD_ATTEND and blocks alone:
    uint32_t first, count; // its sequences; count 0: all
    uint32_t layers;       // sets, each with q and out of its own, so that steps over several are
                           // independent; 0: by pool_bytes
    bool host;             // q, out and new K and V in shared memory
    bool append;           // a run also writes K and V of each sequence's last token
};

struct world {
    const struct workload *workload;
    struct world_params params;
    struct shape shape;
    struct engine *engine;
    struct store store;
    struct engine_cache *cache; // NULL with rows
    struct engine_batch *batch;
    uint32_t num_sets;   // of K and V: layers of the cache, or places in the arena; of an append a
                         // step takes several
    uint32_t num_q_sets; // of Q
    uint32_t num_out_sets; // of out
    uint32_t chunk_blocks; // the pool's step
    uint32_t num_chunks, chunks_asked, chunks_failed;
    uint64_t q_bytes, kv_bytes, new_bytes; // of one set, of K or V alone
    uint64_t out_at, kv_at, new_at;        // in the arena; Q is at 0
    uint64_t submitted, done;              // the last submissions
    uint32_t last_set;                     // of the last one's last step
};

// An engine, for worlds one after the other, as the options want it. NULL: standard error says why.
struct engine *world_engine(const struct options *options);

// False: standard error says why. world_close() takes a zeroed and a half-made one.
bool world_open(struct world *world, struct engine *engine, const struct workload *workload,
                const struct world_params *params);
void world_close(struct world *world);

bool world_appends(const struct world *world); // writes K and V, and attends to nothing
uint64_t world_out_at(const struct world *world, uint32_t set);
uint32_t world_step_runs(
    const struct world *world); // independent of each other, each over a set of K and V of its own
struct lane world_lane(struct world *world);
// Does step `set` of the lane's num_sets, and looks at what it left.
bool world_check(struct world *world, uint32_t set, struct verdict *verdict);
// The two halves of it, of attention: no out is left, and with `append` no K and V of the last
// tokens; what a step over `set` has put there.
bool world_poison(struct world *world);
bool world_look(struct world *world, uint32_t set, struct verdict *verdict);

// The kernels that serve it, each with its number of sequences.
void world_kernels(struct world *world, char *text, size_t size);

// Ask for one chunk more. Outcomes arrive while steps are waited for: num_chunks or chunks_failed
// rises.
void world_grow(struct world *world);

#endif
