// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// measuring.c - see measuring.h. Caller's thread.

#include "measuring.h"

#include "engine/kernels/kv.h"
#include "engine/memory/arena.h"
#include "engine/plan/cut.h"
#include "engine/plan/items.h"
#include "engine/plan/run_geometry.h"
#include "engine/state/state.h"

#include <stdlib.h>

enum status measuring_device_init(struct device *device, const struct engine_params *params,
                                  struct error *error)
{
    return device_init(device, params, variant_least_shared_memory(), false, error);
}

struct device *measuring_device(struct engine *engine)
{
    return &engine->device;
}

struct transfer *measuring_transfer(struct engine *engine)
{
    return &engine->transfer;
}

// ---- memory ----

enum status measuring_arena_create(struct engine *engine, uint64_t size, struct engine_arena **out,
                                   const struct buffer **buffer, struct error *error)
{
    struct engine_arena *arena = calloc(1, sizeof *arena);
    if (!arena)
        return error_set(error, STATUS_NO_MEMORY, "no memory for an arena");
    *arena = (struct engine_arena){.engine = engine, .size = size, .imported = true};
    enum status status =
        buffer_init(&engine->device, MEMORY_POOL, size, "arena to measure", &arena->buffer, error);
    if (status != STATUS_OK) {
        free(arena);
        return status;
    }
    *out = arena;
    *buffer = &arena->buffer;
    return STATUS_OK;
}

void measuring_arena_destroy(struct engine_arena *arena)
{
    if (!arena)
        return;
    buffer_finish(&arena->engine->device, &arena->buffer);
    free(arena);
}

uint64_t measuring_arena_address(const struct engine_arena *arena)
{
    return arena->buffer.address;
}

uint64_t measuring_block_address(struct engine_cache *cache, uint32_t layer, int32_t block)
{
    return cache_block_address(cache, layer, block);
}

// ---- kernels ----

static const struct variant *variant_of(const struct engine_run *run)
{
    return run->batch->engine->pipelines.variant;
}

const char *measuring_kernel(const struct engine *engine, uint32_t index)
{
    const struct variant *variant = engine->pipelines.variant;
    return index < variant->num_kernels ? variant->kernels[index]->shader.name : NULL;
}

uint32_t measuring_kernel_of(const struct engine_run *run, uint64_t q_len, uint64_t kv_len)
{
    struct cutting cutting = cutting_of_run(run);
    return cut_kernel(run->batch, &cutting, q_len * cutting.group, kv_len);
}

uint32_t measuring_shared_parts(const struct engine_run *run, const char **kernel)
{
    struct cutting cutting = cutting_of_run(run);
    struct cuts cuts;
    if (!cuts_make(&cuts, &run->batch, 1, &cutting))
        return 0;
    uint32_t count = cuts.crowds.num_crowds;
    if (count)
        *kernel = variant_of(run)->kernels[cuts.helper]->shader.name;
    cuts_finish(&cuts);
    return count;
}
