// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// world.h - an engine with a filled pool and one workload's batch on it: what is timed and what is checked are the same buffers
// and pipelines. One thread.

#ifndef AULE_BENCH_WORLD_H
#define AULE_BENCH_WORLD_H

#include "engine.h"
#include "workload.h"

struct world_params {
    const char *device, *variant; // NULL = the best
    enum dtype dtype, kv_dtype;   // of q and out; of K and V
    uint64_t pool_bytes;          // fill at least so much with K and V in turns, so that no cache holds them
};

struct world {
    const struct workload *workload;
    struct world_params params;
    struct engine *engine;
    struct engine_cache *cache;
    struct engine_arena *arena;
    struct engine_batch *batch;
    void *base; // of the arena
    uint64_t arena_size;
    uint32_t num_seqs, num_tokens, max_blocks, num_blocks;
    uint32_t num_sets; // layers of the cache: K and V that are read in turns
    int32_t *cu_seqlens_q, *seq_lens_kv, *block_table;
    struct engine_tensor q, out;
};

// False: standard error says why. world_close() takes a zeroed and a half-made one.
bool world_open(struct world *world, const struct workload *workload, const struct world_params *params);
void world_close(struct world *world);

// Queue one run over set `set`; its number, or 0 with a message.
uint64_t world_submit(struct world *world, uint32_t set);
// Wait until run `sequence`, the oldest one, is done: its time on the GPU. False with a message.
bool world_wait(struct world *world, uint64_t sequence, uint64_t *gpu_ns);

// Element (token 0, dim 0) of a KV head of a block, counted in the stream of values.h that set's K or V is made of.
uint64_t world_stream(uint32_t set, bool value);
uint64_t world_element(const struct world *world, int32_t block, uint32_t kv_head);
enum { WORLD_Q_STREAM = 1 };

#endif
