// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// world.c - see world.h.

#include "world.h"

#include "values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { CHUNK_BLOCKS = 512, DEADLINE_MS = 120000, MAX_SETS = 64 };

static void wake(void *context)
{
    (void)context; // engine_wait() is all that waits
}

static void complain(void *context, int level, const char *text)
{
    (void)context;
    if (level <= 1)
        fprintf(stderr, "aule-bench: %s\n", text);
}

static bool failed(const struct error *error)
{
    fprintf(stderr, "aule-bench: %s\n", error->text);
    return false;
}

static bool no_memory(void)
{
    fprintf(stderr, "aule-bench: no host memory\n");
    return false;
}

// ---- sequences and blocks ----

static uint32_t blocks_of(const struct world *world, uint32_t tokens)
{
    return (tokens + world->workload->block_size - 1) / world->workload->block_size;
}

static bool lengths_make(struct world *world)
{
    const struct workload *workload = world->workload;
    world->num_seqs = workload_num_seqs(workload);
    world->cu_seqlens_q = calloc(world->num_seqs + 1, sizeof(int32_t));
    world->seq_lens_kv = calloc(world->num_seqs, sizeof(int32_t));
    if (!world->cu_seqlens_q || !world->seq_lens_kv)
        return no_memory();
    for (uint32_t s = 0; s < world->num_seqs; s++) {
        uint32_t q_len, kv_len;
        workload_seq(workload, s, &q_len, &kv_len);
        world->cu_seqlens_q[s + 1] = world->cu_seqlens_q[s] + (int32_t)q_len;
        world->seq_lens_kv[s] = (int32_t)kv_len;
        if (blocks_of(world, kv_len) > world->max_blocks)
            world->max_blocks = blocks_of(world, kv_len);
    }
    world->num_tokens = (uint32_t)world->cu_seqlens_q[world->num_seqs];
    return true;
}

// Every block where chance wants it: nothing of one sequence lies together.
static void shuffle(int32_t *blocks, uint32_t count)
{
    uint64_t state = 0x1234567;
    for (uint32_t i = count; i > 1; i--) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint32_t other = (uint32_t)((state >> 33) % i);
        int32_t held = blocks[i - 1];
        blocks[i - 1] = blocks[other];
        blocks[other] = held;
    }
}

static bool table_make(struct world *world)
{
    uint32_t prefix = world->workload->shared_prefix / world->workload->block_size, next = prefix;
    for (uint32_t s = 0; s < world->num_seqs; s++)
        next += blocks_of(world, (uint32_t)world->seq_lens_kv[s]) - prefix;
    world->num_blocks = next;
    int32_t *blocks = malloc(world->num_blocks * sizeof *blocks);
    world->block_table = malloc((size_t)world->num_seqs * world->max_blocks * sizeof(int32_t));
    if (!blocks || !world->block_table) {
        free(blocks);
        return no_memory();
    }
    for (uint32_t i = 0; i < world->num_blocks; i++)
        blocks[i] = (int32_t)i;
    shuffle(blocks, world->num_blocks);
    next = prefix;
    for (uint32_t s = 0; s < world->num_seqs; s++) {
        int32_t *row = world->block_table + (size_t)s * world->max_blocks;
        uint32_t has = blocks_of(world, (uint32_t)world->seq_lens_kv[s]);
        for (uint32_t i = 0; i < world->max_blocks; i++)
            row[i] = i < prefix ? blocks[i] : i < has ? blocks[next++] : -1;
    }
    free(blocks);
    return true;
}

// ---- the pool ----

uint64_t world_stream(uint32_t set, bool value)
{
    return WORLD_Q_STREAM + 1 + 2 * (uint64_t)set + value;
}

uint64_t world_element(const struct world *world, int32_t block, uint32_t kv_head)
{
    const struct workload *w = world->workload;
    return ((uint64_t)(uint32_t)block * w->num_kv_heads + kv_head) * w->block_size * w->head_dim;
}

static bool chunks_grow(struct world *world)
{
    uint32_t chunks = (world->num_blocks + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS, made = 0;
    for (uint32_t i = 0; i < chunks; i++)
        engine_cache_grow(world->cache, i);
    while (made < chunks) {
        struct engine_event event;
        if (!engine_poll(world->engine, &event))
            continue; // once a run; memory is there in milliseconds
        if (event.error.status != STATUS_OK)
            return failed(&event.error);
        made += event.kind == ENGINE_EVENT_CHUNK;
    }
    return true;
}

static bool block_fill(struct world *world, uint32_t set, int32_t block, char *bytes)
{
    const struct workload *w = world->workload;
    uint64_t first = world_element(world, block, 0), count = (uint64_t)w->num_kv_heads * w->block_size * w->head_dim;
    enum dtype dtype = world->params.kv_dtype;
    values_fill(dtype, world_stream(set, false), first, count, bytes);
    values_fill(dtype, world_stream(set, true), first, count, bytes + count * dtype_size(dtype));
    return engine_block_write(world->cache, set, block, bytes) == STATUS_OK;
}

static bool pool_fill(struct world *world, uint64_t block_bytes)
{
    char *bytes = malloc(block_bytes);
    bool ok = bytes != NULL || no_memory();
    for (uint32_t set = 0; ok && set < world->num_sets; set++) {
        for (uint32_t block = 0; ok && block < world->num_blocks; block++)
            ok = block_fill(world, set, (int32_t)block, bytes);
    }
    free(bytes);
    return ok;
}

static struct engine_kv kv_of(const struct world *world)
{
    const struct workload *w = world->workload;
    return (struct engine_kv){
        .num_kv_heads = w->num_kv_heads,
        .head_dim_k = w->head_dim,
        .head_dim_v = w->head_dim,
        .block_size = w->block_size,
        .k_dtype = world->params.kv_dtype,
        .v_dtype = world->params.kv_dtype,
        .scale_mode = world->params.kv_dtype == DTYPE_INT8 ? SCALE_PER_TENSOR : SCALE_NONE,
    };
}

static bool pool_make(struct world *world)
{
    struct error error = {0};
    struct engine_cache_params params = {
        .name = world->workload->name, .num_layers = 1, .chunk_blocks = CHUNK_BLOCKS, .kv = kv_of(world)};
    uint64_t block_bytes = engine_layer_block_bytes(&params), all = block_bytes * world->num_blocks;
    uint64_t sets = (world->params.pool_bytes + all - 1) / all;
    world->num_sets = params.num_layers = sets < 1 ? 1 : sets > MAX_SETS ? MAX_SETS : (uint32_t)sets;
    if (engine_cache_check(world->engine, &params, &error) != STATUS_OK ||
        engine_cache_create(world->engine, &params, &world->cache, &error) != STATUS_OK)
        return failed(&error);
    return chunks_grow(world) && pool_fill(world, block_bytes);
}

// ---- the arena ----

static struct engine_tensor tensor_at(const struct world *world, uint64_t offset)
{
    uint64_t head = (uint64_t)world->workload->head_dim * dtype_size(world->params.dtype);
    return (struct engine_tensor){
        .offset = offset,
        .token_stride = head * world->workload->num_heads,
        .head_stride = head,
        .dtype = world->params.dtype,
    };
}

static bool arena_make(struct world *world)
{
    struct error error = {0};
    uint64_t elements = (uint64_t)world->num_tokens * world->workload->num_heads * world->workload->head_dim;
    uint64_t bytes = (elements * dtype_size(world->params.dtype) + 4095) / 4096 * 4096;
    world->arena_size = 2 * bytes;
    void *base = mmap(NULL, world->arena_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return no_memory();
    world->base = base;
    world->q = tensor_at(world, 0);
    world->out = tensor_at(world, bytes);
    values_fill(world->params.dtype, WORLD_Q_STREAM, 0, elements, base);
    memset((char *)base + bytes, 0xff, bytes);
    if (engine_arena_create(world->engine, base, world->arena_size, &world->arena, &error) != STATUS_OK)
        return failed(&error);
    return true;
}

static bool batch_make(struct world *world)
{
    struct error error = {0};
    const struct engine_batch_params params = {
        .engine = world->engine,
        .cache = world->cache,
        .place = ENGINE_POOL,
        .kv = kv_of(world),
        .num_seqs = world->num_seqs,
        .max_blocks = world->max_blocks,
        .num_tokens = world->num_tokens,
        .cu_seqlens_q = world->cu_seqlens_q,
        .seq_lens_kv = world->seq_lens_kv,
        .block_table = world->block_table,
    };
    return engine_batch_create(&params, &world->batch, &error) == STATUS_OK || failed(&error);
}

bool world_open(struct world *world, const struct workload *workload, const struct world_params *params)
{
    struct error error = {0};
    const struct engine_params engine = {
        .device = params->device, .variant = params->variant, .wake = wake, .log = complain};
    *world = (struct world){.workload = workload, .params = *params};
    if (!lengths_make(world) || !table_make(world))
        return false;
    if (engine_create(&engine, &world->engine, &error) != STATUS_OK)
        return failed(&error);
    return pool_make(world) && arena_make(world) && batch_make(world);
}

void world_close(struct world *world)
{
    engine_batch_destroy(world->batch);
    if (world->cache)
        engine_cache_destroy(world->cache);
    engine_arena_destroy(world->arena);
    engine_destroy(world->engine);
    if (world->base)
        munmap(world->base, world->arena_size);
    free(world->cu_seqlens_q);
    free(world->seq_lens_kv);
    free(world->block_table);
}

// ---- runs ----

uint64_t world_submit(struct world *world, uint32_t set)
{
    struct error error = {0};
    uint64_t sequence;
    const uint32_t one = 1;
    const float scale = values_scale(world->params.kv_dtype);
    const struct engine_run run = {
        .kind = ENGINE_ATTEND,
        .batch = world->batch,
        .arena = world->arena,
        .layer = set,
        .num_heads = world->workload->num_heads,
        .q = world->q,
        .out = world->out,
        .scale = 1.0f / sqrtf((float)world->workload->head_dim),
        .causal = true,
        .k_scale = scale,
        .v_scale = scale,
    };
    const struct engine_submission submission = {.runs = &run, .num_runs = 1, .wave_ends = &one, .num_waves = 1};
    if (engine_submit(world->engine, &submission, &sequence, &error) == STATUS_OK)
        return sequence;
    failed(&error);
    return 0;
}

bool world_wait(struct world *world, uint64_t sequence, uint64_t *gpu_ns)
{
    struct engine_event event;
    if (engine_wait(world->engine, sequence, DEADLINE_MS) != STATUS_OK || !engine_poll(world->engine, &event)) {
        fprintf(stderr, "aule-bench: run %llu was not done after %d ms\n", (unsigned long long)sequence, DEADLINE_MS);
        return false;
    }
    if (event.kind != ENGINE_EVENT_DONE || event.num_results != 1 || event.results[0].status != STATUS_OK) {
        fprintf(stderr, "aule-bench: run %llu failed: %s\n", (unsigned long long)sequence,
                event.kind == ENGINE_EVENT_DONE && event.num_results ? status_text((int)event.results[0].status)
                                                                     : event.error.text);
        return false;
    }
    *gpu_ns = event.results[0].gpu_ns;
    return true;
}
