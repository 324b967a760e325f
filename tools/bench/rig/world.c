// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// world.c - see world.h.

#include "world.h"

#include "engine/measuring.h"
#include "tools/bench/gpu/served.h"
#include "tools/bench/values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
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
        .no_cascade = options->no_cascade,
        .statistics = options->verbose,
        .wake = wake,
        .log = options->verbose ? tell : complain,
    };
    if (engine_create(&params, &engine, &error) != STATUS_OK)
        failed(&error);
    return engine;
}

// ---- the pool ----

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
        .scale_mode = values_scaled(world->params.kv_dtype) ? SCALE_PER_TENSOR : SCALE_NONE,
    };
}

static bool grow_pool(struct world *world)
{
    uint32_t chunks = (world->shape.num_blocks + world->chunk_blocks - 1) / world->chunk_blocks;
    for (uint32_t i = 0; i < chunks; i++)
        engine_cache_grow(world->cache, i);
    while (world->num_chunks < chunks) {
        struct engine_event event;
        if (!engine_poll(world->engine, &event))
            usleep(POLL_US);
        else if (event.kind != ENGINE_EVENT_CHUNK || event.error.status != STATUS_OK)
            return failed(&event.error);
        else
            world->num_chunks++;
    }
    return true;
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
                .num_parts = left < world->chunk_blocks ? left : world->chunk_blocks,
                .address = measuring_block_address(world->cache, set, (int32_t)block),
            };
            if (!store_fill(&world->store, &fill))
                return false;
        }
    }
    return true;
}

static uint32_t sets_for(const struct world *world)
{
    uint64_t all = 2 * world->kv_bytes, sets = (world->params.pool_bytes + all - 1) / all;
    return sets < 1 ? 1 : sets > MOST_SETS ? MOST_SETS : (uint32_t)sets;
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
    world->chunk_blocks = 1;
    while (world->chunk_blocks < world->shape.num_blocks && world->chunk_blocks < MOST_CHUNK_BLOCKS)
        world->chunk_blocks *= 2;
    const struct engine_cache_params params = {.name = world->workload->name,
                                               .num_layers = world->num_sets,
                                               .chunk_blocks = world->chunk_blocks,
                                               .kv = kv_of(world)};
    if (engine_cache_check(world->engine, &params, &error) != STATUS_OK ||
        engine_cache_create(world->engine, &params, &world->cache, &error) != STATUS_OK)
        return failed(&error);
    return grow_pool(world) && fill_pool(world);
}

// ---- the arena: Q of each set, out, and new K and V of each set ----

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + 4095) / 4096 * 4096;
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

static uint64_t newest_at(const struct world *world, uint32_t set, enum shape_part part)
{
    return world->new_at + (2 * (uint64_t)set + (part == SHAPE_V)) * world->new_bytes;
}

static bool make_arena(struct world *world)
{
    uint64_t elements = shape_query_elements(&world->shape);
    uint64_t most = most_q_bytes / world->q_bytes;
    uint64_t each = world->params.append ? world->new_bytes : 0;
    world->num_q_sets = most < 1 ? 1 : most < world->num_sets ? (uint32_t)most : world->num_sets;
    world->out_at = world->num_q_sets * world->q_bytes;
    world->new_at = world->out_at + world->q_bytes;
    if (!store_init(&world->store, world->engine, world->new_at + 2 * world->num_sets * each,
                    world->params.host))
        return false;
    for (uint32_t set = 0; set < world->num_q_sets; set++) {
        if (!fill_arena(world, set * world->q_bytes, elements, world->params.dtype,
                        shape_stream(set, SHAPE_Q)))
            return false;
    }
    for (uint32_t i = 0; world->params.append && i < 2 * world->num_sets; i++) {
        enum shape_part part = i % 2 ? SHAPE_V : SHAPE_K;
        shape_newest(&world->shape, world->params.dtype, i / 2, part,
                     (char *)world->store.memory + newest_at(world, i / 2, part));
    }
    return true;
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
    bool writes = world->params.append;
    int64_t *slots = writes ? calloc(shape->num_seqs, sizeof *slots) : NULL;
    if (slots)
        set_slots(world, slots);
    else if (writes)
        error_set(&error, STATUS_NO_MEMORY, "no host memory");
    const struct engine_batch_params params = {
        .engine = world->engine,
        .cache = world->cache,
        .place = ENGINE_POOL,
        .kv = kv_of(world),
        .num_seqs = shape->num_seqs,
        .max_blocks = shape->max_blocks,
        .num_tokens = shape->num_tokens,
        .cu_seqlens_q = shape->cu_seqlens_q,
        .seq_lens_kv = shape->seq_lens_kv,
        .block_table = shape->block_table,
        .slot_mapping = slots,
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
    if (!shape_init(&world->shape, workload, params->first, count))
        return false;
    world->q_bytes = rounded(shape_query_elements(&world->shape) * dtype_size(params->dtype));
    world->kv_bytes = rounded(shape_elements(&world->shape) * dtype_size(params->kv_dtype));
    world->new_bytes = rounded(shape_newest_elements(&world->shape) * dtype_size(params->dtype));
    world->num_sets = sets_for(world);
    return make_arena(world) && make_pool(world) && make_batch(world);
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

static struct engine_run attend_run(struct world *world, uint32_t set)
{
    const float scale = values_scale(world->params.kv_dtype);
    struct engine_run run = {
        .kind = ENGINE_ATTEND,
        .batch = world->batch,
        .arena = world->store.arena,
        .layer = set,
        .num_heads = world->workload->num_heads,
        .q = tensor(world, set % world->num_q_sets * world->q_bytes, world->workload->num_heads),
        .out = tensor(world, world->out_at, world->workload->num_heads),
        .scale = 1.0f / sqrtf((float)world->workload->head_dim),
        .causal = true,
        .num_splits = world->params.num_splits,
        .k_scale = scale,
        .v_scale = scale,
    };
    if (world->params.append) {
        run.k = tensor(world, newest_at(world, set, SHAPE_K), world->workload->num_kv_heads);
        run.v = tensor(world, newest_at(world, set, SHAPE_V), world->workload->num_kv_heads);
    }
    return run;
}

void world_kernels(struct world *world, char *text, size_t size)
{
    const struct engine_run run = attend_run(world, 0);
    served_text(world->engine, &run, &world->shape, text, size);
}

// Each step is a wave, which begins when the one before is done.
static uint64_t submit(void *context, uint32_t first_set, uint32_t count)
{
    struct world *world = context;
    struct error error = {0};
    uint64_t sequence = 0;
    struct engine_run runs[MOST_STEPS];
    uint32_t ends[MOST_STEPS];
    for (uint32_t i = 0; i < count; i++) {
        runs[i] = attend_run(world, (first_set + i) % world->num_sets);
        ends[i] = i + 1;
    }
    const struct engine_submission submission = {
        .runs = runs, .num_runs = count, .wave_ends = ends, .num_waves = count};
    if (engine_submit(world->engine, &submission, &sequence, &error) != STATUS_OK)
        failed(&error);
    if (sequence) {
        world->submitted = sequence;
        world->last_set = (first_set + count - 1) % world->num_sets;
    }
    return sequence;
}

static bool wait(void *context, uint64_t sequence, uint32_t count, uint64_t *gpu_ns)
{
    struct world *world = context;
    struct engine_event event;
    if (engine_wait(world->engine, sequence, DEADLINE_MS) != STATUS_OK ||
        !engine_poll(world->engine, &event)) {
        fprintf(stderr, "aule-bench: submission %llu was not done after %d ms\n",
                (unsigned long long)sequence, DEADLINE_MS);
        return false;
    }
    world->done = sequence;
    if (event.kind != ENGINE_EVENT_DONE || event.num_results != count) {
        fprintf(stderr, "aule-bench: submission %llu failed: %s\n", (unsigned long long)sequence,
                event.error.text);
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        const struct engine_run_result *result = &event.results[i];
        if (result->status != STATUS_OK) {
            fprintf(stderr, "aule-bench: a run failed: %s\n",
                    result->message ? result->message : status_text((int)result->status));
            return false;
        }
        gpu_ns[i] = result->gpu_ns;
    }
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
                         .num_sets = world->num_sets,
                         .most = MOST_STEPS,
                         .in_flight = 2,
                         .submit = submit,
                         .wait = wait,
                         .run = run};
}

// ---- the check ----

bool world_poison(struct world *world)
{
    return store_poison(&world->store, world->out_at, world->q_bytes);
}

bool world_look(struct world *world, uint32_t set, struct verdict *verdict)
{
    const struct check check = {
        .shape = &world->shape,
        .dtype = world->params.dtype,
        .kv_dtype = world->params.kv_dtype,
        .q_set = set % world->num_q_sets,
        .kv_set = set,
        .out = store_read(&world->store, world->out_at, world->q_bytes),
        .progress = world->params.progress,
    };
    return check.out && check_rows(&check, verdict);
}

bool world_check(struct world *world, uint32_t set, struct verdict *verdict)
{
    uint64_t gpu_ns;
    return world_poison(world) && run(world, set, 1, &gpu_ns) && world_look(world, set, verdict);
}
