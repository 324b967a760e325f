// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// world.c - see world.h.

#include "world.h"

#include "engine/measuring.h"
#include "tools/bench/gpu/served.h"
#include "values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MOST_CHUNK_BLOCKS = 512,
    DEADLINE_MS = 600000,
    MOST_SETS = 64,
    MOST_STEPS = 64,
    POLL_US = 100
};
static const uint64_t most_q_bytes = UINT64_C(512) << 20; // all sets of Q together

static void wake(void *context)
{
    (void)context; // engine_wait() does all the waiting
}

static void complain(void *context, int level, const char *format, const char *text)
{
    (void)context;
    (void)format;
    if (level <= 1)
        fprintf(stderr, "aule-bench: %s\n", text);
}

static bool failed(const struct error *error)
{
    fprintf(stderr, "aule-bench: %s\n", error->text);
    return false;
}

static void tell(void *context, int level, const char *format, const char *text)
{
    (void)level;
    complain(context, 0, format, text);
}

struct engine *world_engine(const struct options *options)
{
    struct error error = {0};
    struct engine *engine = NULL;
    const struct engine_params params = {
        .device = options->device,
        .variant = options->variant,
        .force_staging = options->force_staging,
        .no_cascade = options->no_cascade,
        .completion_poll_us = options->completion_poll_us,
        .statistics = options->verbose,
        .wake = wake,
        .log = options->verbose ? tell : complain,
    };
    if (engine_create(&params, &engine, &error) != STATUS_OK)
        failed(&error);
    return engine;
}

bool world_appends(const struct world *world)
{
    return world->workload->kind == WORKLOAD_APPEND;
}

// ---- the pool ----

static struct engine_kv kv_of(const struct world *world)
{
    const struct workload *w = world->workload;
    return (struct engine_kv){
        .num_kv_heads = w->num_kv_heads,
        .head_dim_k = w->head_dim,
        .head_dim_v = w->head_dim,
        .block_size = world->params.rows ? 0 : w->block_size,
        .k_dtype = world->params.kv_dtype,
        .v_dtype = world->params.kv_dtype,
        .scale_mode = w->token_scales                        ? SCALE_PER_TOKEN_HEAD
                      : world->params.kv_dtype == DTYPE_INT8 ? SCALE_PER_TENSOR
                                                             : SCALE_NONE,
    };
}

void world_grow(struct world *world)
{
    engine_cache_grow(world->cache, world->chunks_asked++);
}

// Events that are not the end of a submission.
static void take_chunk(struct world *world, const struct engine_event *event)
{
    if (event->error.status != STATUS_OK) {
        failed(&event->error);
        world->chunks_failed++;
    } else {
        world->num_chunks++;
    }
}

static bool grow_pool(struct world *world)
{
    uint32_t chunks = (world->shape.num_blocks + world->chunk_blocks - 1) / world->chunk_blocks;
    while (world->chunks_asked < chunks)
        world_grow(world);
    while (world->num_chunks < chunks && !world->chunks_failed) {
        struct engine_event event;
        if (!engine_poll(world->engine, &event))
            usleep(POLL_US);
        else if (event.kind == ENGINE_EVENT_CHUNK)
            take_chunk(world, &event);
        else
            return failed(&event.error);
    }
    return !world->chunks_failed;
}

// The rows of K or V in a block that have a scale.
static uint32_t scaled_rows(const struct world *world)
{
    const struct workload *w = world->workload;
    return w->token_scales ? w->num_kv_heads * w->block_size : 0;
}

static uint64_t block_bytes(const struct world *world)
{
    return 2 * (shape_block_elements(&world->shape) * dtype_size(world->params.kv_dtype) +
                scaled_rows(world) * sizeof(float));
}

static bool fill_pool(struct world *world)
{
    uint64_t elements = shape_block_elements(&world->shape);
    for (uint32_t set = 0; set < world->num_sets; set++) {
        for (uint32_t block = 0; block < world->shape.num_blocks; block += world->chunk_blocks) {
            uint32_t left = world->shape.num_blocks - block;
            const struct fill_params fill = {
                .dtype = world->params.kv_dtype,
                .k_stream = shape_stream(set, SHAPE_K),
                .v_stream = shape_stream(set, SHAPE_V),
                .first = block * elements,
                .part_elements = elements,
                .part_rows = scaled_rows(world),
                .num_parts = left < world->chunk_blocks ? left : world->chunk_blocks,
                .address = measuring_block_address(world->cache, set, (int32_t)block),
            };
            if (!store_fill(&world->store, &fill))
                return false;
        }
    }
    return true;
}

// Layers of the pool for few steps. If the pool must not exceed its size, a number that whole steps
// fit.
static uint32_t chunk_blocks_for(const struct world *world)
{
    uint64_t allowed = world->params.pool_bytes / (block_bytes(world) * world->num_sets);
    uint32_t num_blocks = world->shape.num_blocks, blocks = 1;
    while (blocks < num_blocks && blocks < MOST_CHUNK_BLOCKS)
        blocks *= 2;
    if (world->workload->kind == WORKLOAD_LONGEST)
        while (blocks > 1 && ((uint64_t)num_blocks + blocks - 1) / blocks * blocks > allowed)
            blocks /= 2;
    return blocks;
}

// The pool memory of one step, with the blocks that it writes.
static uint64_t step_bytes(const struct world *world)
{
    uint64_t blocks = 2 * shape_elements(&world->shape) * dtype_size(world->params.kv_dtype);
    return world_appends(world) ? blocks * world->workload->num_layers : 2 * world->kv_bytes;
}

static uint32_t sets_for(const struct world *world)
{
    if (world->params.layers)
        return world->params.layers;
    uint64_t all = step_bytes(world), sets = (world->params.pool_bytes + all - 1) / all;
    uint32_t wanted = sets < 1 ? 1 : sets > MOST_SETS ? MOST_SETS : (uint32_t)sets;
    switch (world->workload->kind) {
    case WORKLOAD_APPEND: return world->workload->num_layers * wanted;
    case WORKLOAD_LONGEST: return world->workload->num_layers;
    case WORKLOAD_GROWTH:
        return wanted < world->workload->num_layers ? wanted : world->workload->num_layers;
    case WORKLOAD_STUDY:
    case WORKLOAD_ATTEND: break;
    }
    return wanted;
}

// A software device allocates from the machine's memory, which other processes need, too.
static bool pool_fits(const struct world *world)
{
    const struct engine_device *device = engine_device(world->engine);
    double wanted = 2.0 * (double)world->kv_bytes * world->num_sets;
    if (wanted <= (double)device->heap_bytes)
        return true;
    fprintf(stderr, "aule-bench: %s: K and V take %.2f GiB, and %s has %.2f GiB of memory\n",
            world->workload->name, wanted / 0x1p30, device->name,
            (double)device->heap_bytes / 0x1p30);
    return false;
}

static bool make_pool(struct world *world)
{
    struct error error = {0};
    if (!pool_fits(world))
        return false;
    world->chunk_blocks = chunk_blocks_for(world);
    const struct engine_cache_params params = {.name = world->workload->name,
                                               .num_layers = world->num_sets,
                                               .chunk_blocks = world->chunk_blocks,
                                               .kv = kv_of(world)};
    if (engine_cache_check(world->engine, &params, &error) != STATUS_OK ||
        engine_cache_create(world->engine, &params, &world->cache, &error) != STATUS_OK)
        return failed(&error);
    return grow_pool(world) && (world_appends(world) || fill_pool(world));
}

// ---- the arena: Q of each set, out, and with rows K and V of each set ----

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
}

// The arena is one allocation. Fewer sets repeat sooner; fewer layers would be another workload.
static bool limit_sets(struct world *world)
{
    uint64_t most = engine_device(world->engine)->max_allocation_bytes / 4096 * 4096;
    uint64_t out = world->q_bytes, q = most_q_bytes / world->q_bytes;
    world->num_q_sets = q < 1 || world_appends(world) ? 1
                        : q < world->num_sets         ? (uint32_t)q
                                                      : world->num_sets;
    world->num_out_sets = 1;
    if (world->params.layers)
        world->num_q_sets = world->num_out_sets = world->num_sets;
    if (!world->params.rows)
        return true;
    world->num_q_sets = 1;
    uint64_t fit = most > 2 * out ? (most - 2 * out) / (2 * world->kv_bytes) : 0;
    if (fit < world->num_sets && world->workload->kind == WORKLOAD_LONGEST) {
        fprintf(stderr,
                "aule-bench: %s: K and V of %u layers take %.2f GiB in one piece, of which the "
                "device has %.2f\n",
                world->workload->name, world->num_sets,
                2.0 * (double)world->kv_bytes * world->num_sets / 0x1p30, (double)most / 0x1p30);
        return false;
    }
    if (fit < world->num_sets)
        world->num_sets = fit < 1 ? 1 : (uint32_t)fit;
    return true;
}

static bool fill_arena(struct world *world, uint64_t at, uint64_t elements, enum dtype dtype,
                       uint64_t stream)
{
    if (world->store.memory) {
        values_fill(dtype, stream, 0, elements, (char *)world->store.memory + at);
        return true;
    }
    const struct fill_params fill = {.dtype = dtype,
                                     .k_stream = stream,
                                     .part_elements = elements,
                                     .num_parts = 1,
                                     .address = measuring_arena_address(world->store.arena) + at};
    return store_fill(&world->store, &fill);
}

static uint64_t rows_at(const struct world *world, uint32_t set, enum shape_part part)
{
    return world->kv_at + (2 * (uint64_t)set + (part == SHAPE_V)) * world->kv_bytes;
}

// What is filled into the arena: with rows, K and V of each set; for an append, the new rows of
// each layer.
static bool fill_rows(struct world *world)
{
    uint64_t elements = world_appends(world)
                            ? (uint64_t)world->shape.num_tokens * world->workload->num_kv_heads *
                                  world->workload->head_dim
                            : shape_elements(&world->shape);
    enum dtype dtype = world_appends(world) ? world->params.dtype : world->params.kv_dtype;
    for (uint32_t set = 0; set < world->num_sets; set++) {
        if (!fill_arena(world, rows_at(world, set, SHAPE_K), elements, dtype,
                        shape_stream(set, SHAPE_K)) ||
            !fill_arena(world, rows_at(world, set, SHAPE_V), elements, dtype,
                        shape_stream(set, SHAPE_V)))
            return false;
    }
    return true;
}

static uint64_t newest_at(const struct world *world, uint32_t set, enum shape_part part)
{
    return world->new_at + (2 * (uint64_t)set + (part == SHAPE_V)) * world->new_bytes;
}

static bool write_newest(struct world *world)
{
    uint64_t size = shape_newest_elements(&world->shape) * dtype_size(world->params.dtype);
    void *rows = malloc(size);
    bool ok = rows != NULL;
    if (!ok)
        fprintf(stderr, "aule-bench: no host memory\n");
    for (uint32_t i = 0; ok && i < 2 * world->num_sets; i++) {
        enum shape_part part = i % 2 ? SHAPE_V : SHAPE_K;
        shape_newest(&world->shape, world->params.dtype, i / 2, part, rows);
        ok = store_write(&world->store, newest_at(world, i / 2, part), size, rows);
    }
    free(rows);
    return ok;
}

static bool make_arena(struct world *world)
{
    uint64_t elements = shape_query_elements(&world->shape);
    bool rows = world->params.rows || world_appends(world);
    world->out_at = world->num_q_sets * world->q_bytes;
    world->kv_at = world->new_at = world->out_at + world->num_out_sets * world->q_bytes;
    uint64_t each = rows ? world->kv_bytes : world->params.append ? world->new_bytes : 0;
    if (!store_init(&world->store, world->engine, world->kv_at + 2 * world->num_sets * each,
                    world->params.host))
        return false;
    for (uint32_t set = 0; set < world->num_q_sets; set++) {
        if (!fill_arena(world, set * world->q_bytes, elements, world->params.dtype,
                        shape_stream(set, SHAPE_Q)))
            return false;
    }
    return (!rows || fill_rows(world)) && (!world->params.append || write_newest(world));
}

// ---- the batch ----

// The last token of each sequence.
static void set_slots(const struct world *world, int64_t *slots)
{
    for (uint32_t s = 0; s < world->shape.num_seqs; s++)
        slots[s] = shape_last_slot(&world->shape, s, NULL);
}

static bool make_batch(struct world *world)
{
    struct error error = {0};
    const struct shape *shape = &world->shape;
    bool rows = world->params.rows;
    bool writes = world_appends(world) || world->params.append;
    int64_t *slots = writes ? calloc(shape->num_seqs, sizeof *slots) : NULL;
    if (slots)
        set_slots(world, slots);
    else if (writes)
        error_set(&error, STATUS_NO_MEMORY, "no host memory");
    const struct engine_batch_params params = {
        .engine = world->engine,
        .cache = world->cache,
        .place = rows ? ENGINE_ROWS : ENGINE_POOL,
        .kv = kv_of(world),
        .num_seqs = shape->num_seqs,
        .max_blocks = rows ? 0 : shape->max_blocks,
        .num_tokens = shape->num_tokens,
        .cu_seqlens_q = shape->cu_seqlens_q,
        .seq_lens_kv = shape->seq_lens_kv,
        .block_table = rows ? NULL : shape->block_table,
        .slot_mapping = slots,
        .kv_starts = rows ? shape->kv_starts : NULL,
    };
    bool ok = error.status == STATUS_OK &&
              engine_batch_create(&params, &world->batch, &error) == STATUS_OK;
    free(slots);
    return ok || failed(&error);
}

bool world_open(struct world *world, struct engine *engine, const struct workload *workload,
                const struct world_params *params)
{
    *world = (struct world){.workload = workload, .params = *params, .engine = engine};
    uint32_t count = params->count ? params->count : workload_num_seqs(workload);
    if (!shape_init(&world->shape, workload, params->first, count, params->rows))
        return false;
    uint64_t tokens =
        (uint64_t)world->shape.num_tokens * workload->num_kv_heads * workload->head_dim;
    world->q_bytes = rounded(shape_query_elements(&world->shape) * dtype_size(params->dtype));
    world->kv_bytes = rounded((world_appends(world) ? tokens : shape_elements(&world->shape)) *
                              dtype_size(params->kv_dtype));
    world->new_bytes = rounded(shape_newest_elements(&world->shape) * dtype_size(params->dtype));
    world->num_sets = sets_for(world);
    return limit_sets(world) && make_arena(world) && (params->rows || make_pool(world)) &&
           make_batch(world);
}

// After a failure, steps may still be in flight, and their events are not for the next world.
static void settle(struct world *world)
{
    struct engine_event event;
    if (world->submitted > world->done &&
        engine_wait(world->engine, world->submitted, -1) != STATUS_OK)
        return; // the device is lost
    while (world->submitted && engine_poll(world->engine, &event)) {
    }
}

void world_close(struct world *world)
{
    settle(world);
    engine_batch_destroy(world->batch);
    if (world->cache)
        engine_cache_destroy(world->cache);
    store_finish(&world->store);
    shape_finish(&world->shape);
    *world = (struct world){0};
}

// ---- steps ----

static struct wire_tensor tensor(const struct world *world, uint64_t offset, uint32_t heads)
{
    uint64_t head = (uint64_t)world->workload->head_dim * dtype_size(world->params.dtype);
    return (struct wire_tensor){.offset = offset,
                                .token_stride = head * heads,
                                .head_stride = head,
                                .dtype = world->params.dtype};
}

// [KV heads, keys, dim]
static struct wire_tensor rows_tensor(const struct world *world, uint64_t offset)
{
    uint64_t row = (uint64_t)world->workload->head_dim * dtype_size(world->params.kv_dtype);
    return (struct wire_tensor){.offset = offset,
                                .token_stride = row,
                                .head_stride = row * world->shape.num_keys,
                                .dtype = world->params.kv_dtype};
}

uint64_t world_out_at(const struct world *world, uint32_t set)
{
    return world->out_at + set % world->num_out_sets * world->q_bytes;
}

static struct engine_run attend_run(struct world *world, uint32_t set)
{
    const float scale = world->workload->token_scales ? 1 : values_scale(world->params.kv_dtype);
    struct engine_run run = {
        .kind = ENGINE_ATTEND,
        .batch = world->batch,
        .arena = world->store.arena,
        .layer = world->cache ? set : 0,
        .num_heads = world->workload->num_heads,
        .q = tensor(world, set % world->num_q_sets * world->q_bytes, world->workload->num_heads),
        .out = tensor(world, world_out_at(world, set), world->workload->num_heads),
        .scale = 1.0f / sqrtf((float)world->workload->head_dim),
        .causal = true,
        .num_splits = world->params.num_splits,
        .k_scale = scale,
        .v_scale = scale,
    };
    if (world->params.rows) {
        run.keys = rows_tensor(world, rows_at(world, set, SHAPE_K));
        run.values = rows_tensor(world, rows_at(world, set, SHAPE_V));
    }
    if (world->params.append) {
        run.k = tensor(world, newest_at(world, set, SHAPE_K), world->workload->num_kv_heads);
        run.v = tensor(world, newest_at(world, set, SHAPE_V), world->workload->num_kv_heads);
    }
    return run;
}

static struct engine_run append_run(struct world *world, uint32_t layer)
{
    return (struct engine_run){
        .kind = ENGINE_WRITE,
        .batch = world->batch,
        .arena = world->store.arena,
        .layer = layer,
        .num_heads = world->workload->num_heads,
        .k = tensor(world, rows_at(world, layer, SHAPE_K), world->workload->num_kv_heads),
        .v = tensor(world, rows_at(world, layer, SHAPE_V), world->workload->num_kv_heads),
        .scale = 1,
        .k_scale = 1,
        .v_scale = 1,
    };
}

void world_kernels(struct world *world, char *text, size_t size)
{
    const struct engine_run run = attend_run(world, 0);
    if (world_appends(world))
        snprintf(text, size, "kv_write %u", world->shape.num_seqs);
    else
        served_text(world->engine, &run, &world->shape, text, size);
}

uint32_t world_step_runs(const struct world *world)
{
    return world_appends(world) ? world->workload->num_layers : 1;
}

// Each step of an append has its own layers, so that no cache holds what it reads and writes.
static struct engine_run step_run(struct world *world, uint32_t turn, uint32_t layer)
{
    return world_appends(world) ? append_run(world, turn * world_step_runs(world) + layer)
                                : attend_run(world, turn);
}

// Each step is a wave, which begins when the one before is done. Layers together are one wave.
static uint64_t submit(void *context, uint32_t first_set, uint32_t count)
{
    struct world *world = context;
    struct error error = {0};
    uint64_t sequence = 0;
    uint32_t each = world_step_runs(world), turns = world->num_sets / each, ends[MOST_STEPS];
    struct engine_run *runs = calloc((size_t)each * count, sizeof *runs);
    if (!runs)
        error_set(&error, STATUS_NO_MEMORY, "no host memory");
    for (uint32_t i = 0; runs && i < count; i++) {
        for (uint32_t j = 0; j < each; j++)
            runs[i * each + j] = step_run(world, (first_set + i) % turns, j);
        ends[i] = (i + 1) * each;
    }
    const struct engine_submission submission = {
        .runs = runs,
        .num_runs = each * count,
        .wave_ends = world->params.layers ? &ends[count - 1] : ends,
        .num_waves = world->params.layers ? 1 : count,
    };
    if (!runs || engine_submit(world->engine, &submission, &sequence, &error) != STATUS_OK)
        failed(&error);
    free(runs);
    if (sequence) {
        world->submitted = sequence;
        world->last_set = (first_set + count - 1) % turns;
    }
    return sequence;
}

// The next end of a submission. False: there is none.
static bool poll_done(struct world *world, struct engine_event *event)
{
    while (engine_poll(world->engine, event)) {
        if (event->kind != ENGINE_EVENT_CHUNK)
            return true;
        take_chunk(world, event);
    }
    return false;
}

// The time of a step: the sum of its dispatches. Runs of one dispatch each have their own time.
static bool add_up(const struct engine_run_result *results, uint32_t count, uint64_t *gpu_ns)
{
    *gpu_ns = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (results[i].status != STATUS_OK) {
            fprintf(stderr, "aule-bench: a run failed: %s\n",
                    results[i].message ? results[i].message : status_text((int)results[i].status));
            return false;
        }
        if (i == 0 || results[i].dispatch != results[i - 1].dispatch)
            *gpu_ns += results[i].gpu_ns;
    }
    return true;
}

static bool wait(void *context, uint64_t sequence, uint32_t count, uint64_t *gpu_ns)
{
    struct world *world = context;
    struct engine_event event;
    uint32_t each = world_step_runs(world);
    if (engine_wait(world->engine, sequence, DEADLINE_MS) != STATUS_OK ||
        !poll_done(world, &event)) {
        fprintf(stderr, "aule-bench: submission %llu was not done after %d ms\n",
                (unsigned long long)sequence, DEADLINE_MS);
        return false;
    }
    world->done = sequence;
    if (event.kind != ENGINE_EVENT_DONE || event.num_results != each * count) {
        fprintf(stderr, "aule-bench: submission %llu failed: %s\n", (unsigned long long)sequence,
                event.error.text);
        return false;
    }
    for (uint32_t i = 0; i < count; i++)
        if (!add_up(event.results + (size_t)i * each, each, &gpu_ns[i]))
            return false;
    return true;
}

static bool run(void *context, uint32_t first_set, uint32_t count, uint64_t *gpu_ns)
{
    uint64_t sequence = submit(context, first_set, count);
    return sequence && wait(context, sequence, count, gpu_ns);
}

struct lane world_lane(struct world *world)
{
    return (struct lane){.context = world,
                         .num_sets = world->num_sets / world_step_runs(world),
                         .most = MOST_STEPS,
                         .in_flight = 2,
                         .submit = submit,
                         .wait = wait,
                         .run = run};
}
