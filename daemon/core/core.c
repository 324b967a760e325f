// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// core.c - the whole: makes and ends it, takes the engine's news, keeps the list of blocks to zero. Knows no single block's
// state and no queue.

#include "core.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "state.h"

void core_log(const struct core *core, int level, const char *format, ...)
{
    if (!core->params.log)
        return;
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    core->params.log(core->params.context, level, text);
}

static unsigned hash_prefix(uint64_t seed, const void *key, size_t size)
{
    XXH64_hash_t hash = XXH3_64bits_withSeed(key, size, seed);
    return (unsigned)(hash ^ (hash >> 32));
}

enum status core_create(const struct core_params *params, struct core **out, struct error *error)
{
    *out = NULL;
    struct {
        uint32_t value;
        const char *option;
    } limits[] = {
        {params->max_sessions, "--max-sessions"},
        {params->max_caches, "--max-caches"},
        {params->max_batches, "--max-batches"},
        {params->max_tickets, "--max-tickets"},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        if (!limits[i].value)
            return error_set(error, STATUS_INVALID, "%s is 0; it must be at least 1", limits[i].option);
    }
    struct core *core = calloc(1, sizeof *core);
    if (!core)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the core");
    core->params = *params;
    core->engine = params->engine;
    core->pool.limit_bytes = params->pool_limit_bytes;
    core->pool.limit_blocks = params->max_blocks ? params->max_blocks : UINT64_MAX;
    core->hash = hash_prefix;
    scheduler_init(&core->scheduler);
    *out = core;
    return STATUS_OK;
}

// Until the last arena of a closed session is out of the GPU's hands.
static void drain(struct core *core)
{
    while (core->scheduler.num_in_flight && !core->lost) {
        const struct scheduler *s = &core->scheduler;
        if (engine_wait(core->engine, s->in_flight[s->first_in_flight].sequence, -1) != STATUS_OK)
            break;
        core_step(core);
    }
    if (core->scheduler.num_in_flight)
        scheduler_lost(core);
}

void core_destroy(struct core *core)
{
    if (!core)
        return;
    while (core->sessions)
        core_session_close(core->sessions, false);
    drain(core);
    while (core->num_caches)
        cache_destroy(core->caches[core->num_caches - 1]);
    heap_finish(&core->scheduler.ready);
    free(core->caches);
    free(core->zeroes);
    free(core->zero_blocks);
    free(core);
}

static void chunk_news(struct core *core, const struct engine_event *event)
{
    for (uint32_t i = 0; i < core->num_caches; i++) {
        if (core->caches[i]->engine == event->cache) {
            cache_grown(core->caches[i], event->chunk, &event->error);
            return;
        }
    }
}

static void device_news(struct core *core, const struct engine_event *event)
{
    if (core->lost)
        return;
    core->lost_why = event->error;
    core_log(core, CORE_LOG_ERROR, "the device is lost: %s", event->error.text);
    scheduler_lost(core);
}

bool core_step(struct core *core)
{
    struct engine_event event;
    while (engine_poll(core->engine, &event)) {
        switch (event.kind) {
        case ENGINE_EVENT_DONE: scheduler_done(core, &event); break;
        case ENGINE_EVENT_CHUNK: chunk_news(core, &event); break;
        case ENGINE_EVENT_LOST: device_news(core, &event); break;
        }
    }
    scheduler_submit(core);
    bool news = core->news;
    core->news = false;
    return news;
}

enum status core_device_status(const struct core *core)
{
    return core->lost ? STATUS_DEVICE_LOST : STATUS_OK;
}

bool core_idle(const struct core *core)
{
    return !core->scheduler.num_in_flight && !heap_first(&core->scheduler.ready);
}

bool zeroes_reserve(struct core *core, uint32_t more)
{
    uint64_t wanted = (uint64_t)core->num_zeroes + more;
    if (wanted <= core->zero_capacity)
        return true;
    wanted = wanted < 2 * (uint64_t)core->zero_capacity ? 2 * (uint64_t)core->zero_capacity : wanted;
    if (wanted > UINT32_MAX)
        return false;
    struct engine_zero *zeroes = realloc(core->zeroes, wanted * sizeof *zeroes);
    if (zeroes)
        core->zeroes = zeroes;
    struct block **blocks = realloc(core->zero_blocks, wanted * sizeof(struct block *));
    if (blocks)
        core->zero_blocks = blocks;
    if (!zeroes || !blocks)
        return false;
    core->zero_capacity = (uint32_t)wanted;
    return true;
}

void zeroes_add(struct core *core, struct cache *cache, struct block *block)
{
    if (block->zeroing)
        return;
    block->zeroing = true;
    core->zero_blocks[core->num_zeroes] = block;
    core->zeroes[core->num_zeroes++] = (struct engine_zero){.cache = cache->engine, .block = block->id};
}

void zeroes_forget(struct core *core, const struct cache *cache, const struct chunk *chunk)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < core->num_zeroes; i++) {
        const struct engine_zero *zero = &core->zeroes[i];
        if (zero->cache == cache->engine && (uint32_t)zero->block >> cache->chunk_shift == chunk->number)
            continue;
        core->zeroes[kept] = *zero;
        core->zero_blocks[kept++] = core->zero_blocks[i];
    }
    core->num_zeroes = kept;
}

// Ranges of memory, one a block and layer, that one submission zeroes: bounds its lists to a megabyte.
enum { ZEROES_MAX_RANGES = 65536 };
_Static_assert((int)ZEROES_MAX_RANGES >= (int)CORE_MAX_LAYERS, "one block at least");

uint32_t zeroes_slice(const struct core *core)
{
    uint32_t layers = 1;
    for (uint32_t i = 0; i < core->num_caches; i++) {
        uint32_t more = core->caches[i]->identity.num_layers;
        layers = more > layers ? more : layers;
    }
    uint32_t count = ZEROES_MAX_RANGES / layers;
    return count < core->num_zeroes ? count : core->num_zeroes;
}

void zeroes_drop(struct core *core, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        core->zero_blocks[i]->zeroing = false;
    core->num_zeroes -= count;
    if (!core->num_zeroes)
        return;
    memmove(core->zeroes, core->zeroes + count, core->num_zeroes * sizeof *core->zeroes);
    memmove(core->zero_blocks, core->zero_blocks + count, core->num_zeroes * sizeof(struct block *));
}
