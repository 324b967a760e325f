// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// world.h - one workload, or some of its sequences, on an engine in this process: filled K and V,
// and the batch. Timing and check use the same buffers and pipelines. One thread.

#ifndef AULE_BENCH_WORLD_H
#define AULE_BENCH_WORLD_H

#include "check.h"
#include "measure.h"
#include "options.h"
#include "tools/bench/gpu/store.h"

struct world_params {
    enum dtype dtype, kv_dtype; // of q and out; of K and V
    uint64_t pool_bytes; // read at least this much of K and V in turn, so that no cache holds them
    uint32_t num_splits; // as in engine_run
    bool rows;           // K and V contiguous in the arena, no blocks
    void (*progress)(double share); // of a check; NULL = not wanted
    // To act like a client of a daemon; only with WORKLOAD_ATTEND and blocks:
    uint32_t first, count; // its sequences; count 0: all
    uint32_t layers;       // sets, each with its own q and out, so that steps over several sets are
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
    uint32_t num_sets;     // of K and V: layers of the cache, or places in the arena; a step of an
                           // append takes several
    uint32_t num_q_sets;   // of Q
    uint32_t num_out_sets; // of out
    uint32_t chunk_blocks; // the pool grows by this
    uint32_t num_chunks, chunks_asked, chunks_failed;
    uint64_t q_bytes, kv_bytes, new_bytes; // of one set, of K or V alone
    uint64_t out_at, kv_at, new_at;        // in the arena; Q is at 0
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

bool world_appends(const struct world *world); // it writes K and V, and does not attend
uint64_t world_out_at(const struct world *world, uint32_t set);
// Runs of a step. They are independent: each has its own set of K and V.
uint32_t world_step_runs(const struct world *world);
struct lane world_lane(struct world *world);
// Runs step `set` of the lane's num_sets, and checks its result.
bool world_check(struct world *world, uint32_t set, struct verdict *verdict);
// The two halves of it, for attention. The first poisons out and, with `append`, K and V of the
// last tokens. The second checks what a step over `set` wrote.
bool world_poison(struct world *world);
bool world_look(struct world *world, uint32_t set, struct verdict *verdict);

// Names the kernels that serve it, each with its number of sequences.
void world_kernels(struct world *world, char *text, size_t size);

// Asks for one more chunk. The result arrives while steps are waited for: num_chunks or
// chunks_failed rises.
void world_grow(struct world *world);

#endif
