// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// cache.c - memory for blocks. A chunk is as few allocations as the device allows, each of whole
// layers. Shaders find a chunk by a table of addresses [chunk][layer]. Blocks never move: growing
// adds chunks, and a full table is replaced by a longer copy. The old table is freed when the
// submissions that may read it have completed. Knows nothing of holds. The caller's thread asks;
// the maker allocates and frees.

#include "cache.h"

#include "base/container_of.h"
#include "base/list.h"
#include "engine/kernels/kv.h"
#include "engine/state/event.h"
#include "engine/state/state.h"
#include "engine/vulkan/vk.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct chunk {
    struct engine_cache *cache;
    uint32_t number, num_parts, layers_per_part;
    bool given_back; // engine->lock guards it; `end` is posted
    struct job end;
    struct buffer parts[]; // owned
};

// One requested chunk: first a job of the maker, then the event that reports the outcome.
struct growth {
    struct job job;
    struct event_node node;
    struct engine_cache *cache;
    uint32_t chunk;
};

// A table that was replaced, until it is freed.
struct old_table {
    struct job job;
    struct piece piece;
};

// ---- shapes ----

uint64_t engine_layer_block_bytes(const struct engine_cache_params *params)
{
    return kv_block_bytes(&params->kv);
}

uint64_t engine_block_bytes(const struct engine_cache_params *params)
{
    return engine_layer_block_bytes(params) * params->num_layers;
}

enum status engine_cache_check(const struct engine *engine,
                               const struct engine_cache_params *params, struct error *error)
{
    const struct adapter *adapter = &engine->device.adapter;
    enum status status = kv_check(ENGINE_POOL, &params->kv, adapter->max_groups[0], error);
    if (status != STATUS_OK)
        return status;
    if (params->num_layers == 0)
        return error_set(error, STATUS_INVALID, "num_layers is 0");
    if (params->exported && !adapter->info.memory_export)
        return error_set(error, STATUS_UNSUPPORTED,
                         "device %s exports no memory (VK_KHR_external_memory_fd)",
                         adapter->info.name);
    if (params->chunk_blocks == 0 || params->chunk_blocks & (params->chunk_blocks - 1))
        return error_set(error, STATUS_INVALID, "chunk_blocks %u is no power of two",
                         params->chunk_blocks);
    uint64_t bytes;
    if (__builtin_mul_overflow(engine_layer_block_bytes(params), (uint64_t)params->chunk_blocks,
                               &bytes) ||
        bytes > adapter->info.max_allocation_bytes)
        return error_set(error, STATUS_UNSUPPORTED,
                         "one layer of a chunk of %u blocks takes %" PRIu64
                         " bytes, more than the device's largest allocation of %" PRIu64,
                         params->chunk_blocks, bytes, adapter->info.max_allocation_bytes);
    return STATUS_OK;
}

// ---- addresses ----

static uint64_t layer_offset(const struct engine_cache *cache, const struct chunk *chunk,
                             uint32_t layer)
{
    return layer % chunk->layers_per_part * cache->layer_bytes;
}

static uint64_t layer_address(const struct engine_cache *cache, const struct chunk *chunk,
                              uint32_t layer)
{
    return chunk->parts[layer / chunk->layers_per_part].address + layer_offset(cache, chunk, layer);
}

uint64_t cache_table_address(struct engine_cache *cache, uint32_t layer)
{
    pthread_mutex_lock(&cache->engine->lock);
    uint64_t address = cache->table.address;
    pthread_mutex_unlock(&cache->engine->lock);
    return address ? address + layer * sizeof(uint64_t) : 0;
}

static struct chunk *chunk_of(const struct engine_cache *cache, int32_t block)
{
    uint32_t index = (uint32_t)block >> cache->chunk_shift;
    return block >= 0 && index < cache->capacity ? cache->chunks[index] : NULL;
}

static uint64_t block_offset(const struct engine_cache *cache, int32_t block)
{
    return ((uint32_t)block & (cache->params.chunk_blocks - 1)) * cache->layer_block_bytes;
}

uint64_t cache_block_address(struct engine_cache *cache, uint32_t layer, int32_t block)
{
    pthread_mutex_lock(&cache->engine->lock);
    const struct chunk *chunk = chunk_of(cache, block);
    uint64_t address = chunk ? layer_address(cache, chunk, layer) + block_offset(cache, block) : 0;
    pthread_mutex_unlock(&cache->engine->lock);
    return address;
}

bool cache_block_place(struct engine_cache *cache, uint32_t layer, int32_t block, VkBuffer *buffer,
                       uint64_t *offset)
{
    pthread_mutex_lock(&cache->engine->lock);
    const struct chunk *chunk = chunk_of(cache, block);
    if (chunk) {
        *buffer = chunk->parts[layer / chunk->layers_per_part].handle;
        *offset = layer_offset(cache, chunk, layer) + block_offset(cache, block);
    }
    pthread_mutex_unlock(&cache->engine->lock);
    return chunk != NULL;
}

// ---- chunks ----

static void chunk_free(struct engine *engine, struct chunk *chunk)
{
    if (!chunk)
        return;
    for (uint32_t i = 0; i < chunk->num_parts; i++)
        buffer_finish(&engine->device, &chunk->parts[i]);
    free(chunk);
}

static enum status make_part(struct engine_cache *cache, uint32_t number, struct chunk *chunk,
                             uint32_t part, struct error *error)
{
    struct engine *engine = cache->engine;
    uint32_t first = part * chunk->layers_per_part;
    uint32_t left = cache->params.num_layers - first;
    uint32_t layers = left < chunk->layers_per_part ? left : chunk->layers_per_part;
    char name[128];
    snprintf(name, sizeof name, "cache %.64s chunk %u layers %u-%u", cache->params.name, number,
             first, first + layers - 1);
    enum status status =
        buffer_init(&engine->device, cache->params.exported ? MEMORY_EXPORTED : MEMORY_POOL,
                    layers * cache->layer_bytes, name, &chunk->parts[part], error);
    if (status == STATUS_OK)
        status = transfer_zero(&engine->transfer, &chunk->parts[part], error);
    return status;
}

static void run_lost_end(struct engine *engine, struct job *job)
{
    chunk_free(engine, container_of(job, struct chunk, end));
}

// The device was lost, and the GPU may still write to the chunk. It is freed with the engine, if
// the GPU ever becomes idle; usually the process ends before.
static void chunk_lose(struct engine *engine, struct chunk *chunk)
{
    chunk->end = (struct job){.after = UINT64_MAX, .run = run_lost_end};
    pthread_mutex_lock(&engine->lock);
    job_post(engine, &chunk->end);
    pthread_mutex_unlock(&engine->lock);
}

static enum status chunk_create(struct engine_cache *cache, uint32_t number, struct chunk **out,
                                struct error *error)
{
    uint32_t num_layers = cache->params.num_layers;
    uint64_t fit = cache->engine->device.adapter.info.max_allocation_bytes / cache->layer_bytes;
    uint32_t per_part = fit < num_layers ? (uint32_t)fit : num_layers;
    uint32_t num_parts = (num_layers + per_part - 1) / per_part;
    struct chunk *chunk = calloc(1, sizeof *chunk + num_parts * sizeof *chunk->parts);
    if (!chunk)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a chunk of %u parts", num_parts);
    chunk->cache = cache;
    chunk->number = number;
    chunk->num_parts = num_parts;
    chunk->layers_per_part = per_part;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < num_parts && status == STATUS_OK; i++)
        status = make_part(cache, number, chunk, i, error);
    if (status == STATUS_OK)
        *out = chunk;
    else if (status == STATUS_DEVICE_LOST)
        chunk_lose(cache->engine, chunk);
    else
        chunk_free(cache->engine, chunk);
    return status;
}

// ---- the table ----

static void fill_row(const struct engine_cache *cache, uint64_t *table, uint32_t index,
                     const struct chunk *chunk)
{
    for (uint32_t layer = 0; layer < cache->params.num_layers; layer++)
        table[(size_t)index * cache->params.num_layers + layer] =
            chunk ? layer_address(cache, chunk, layer) : 0;
}

// Frees a chunk that was given back. Its cache still lives: the job that frees the cache stands
// behind this one.
static void run_chunk_end(struct engine *engine, struct job *job)
{
    struct chunk *chunk = container_of(job, struct chunk, end);
    pthread_mutex_lock(&engine->lock);
    chunk->cache->chunks[chunk->number] = NULL;
    fill_row(chunk->cache, chunk->cache->table.mapped, chunk->number, NULL);
    pthread_mutex_unlock(&engine->lock);
    chunk_free(engine, chunk);
}

static void run_table_end(struct engine *engine, struct job *job)
{
    struct old_table *old = container_of(job, struct old_table, job);
    slab_give(&engine->slabs, &old->piece);
    free(old);
}

// Longer arrays for a cache, before they replace its own.
struct room {
    struct chunk **chunks;
    struct piece table;
    struct old_table *old;
};

static void copy_chunks(const struct engine_cache *cache, struct room *room)
{
    if (cache->capacity)
        memcpy(room->chunks, cache->chunks, cache->capacity * sizeof *room->chunks);
}

// A table may be large, so it is filled without the lock: only this thread puts chunks into the
// cache's array and takes them out. Chunks that were given back are in the new table too, because
// submissions that are not planned yet may use them.
static void fill_room(struct engine_cache *cache, uint32_t capacity, struct room *room)
{
    copy_chunks(cache, room);
    for (uint32_t i = 0; i < capacity; i++)
        fill_row(cache, room->table.mapped, i, room->chunks[i]);
}

// With the lock held. Puts the arrays of `room` in the place of the cache's own.
static void use_room(struct engine_cache *cache, uint32_t capacity, struct room *room)
{
    free(cache->chunks);
    *room->old =
        (struct old_table){.job = {.after = cache->engine->last_sequence, .run = run_table_end},
                           .piece = cache->table};
    job_post(cache->engine, &room->old->job);
    cache->chunks = room->chunks;
    cache->table = room->table;
    cache->capacity = capacity;
}

// Makes room for chunk `index` in both arrays. Only one thread calls this for a cache: the maker,
// or the thread that fills its own cache. So no other thread changes the arrays meanwhile.
static enum status reserve(struct engine_cache *cache, uint32_t index, struct error *error)
{
    struct engine *engine = cache->engine;
    if (index < cache->capacity)
        return STATUS_OK;
    uint32_t capacity = cache->capacity ? cache->capacity : 4;
    while (capacity <= index)
        capacity *= 2;
    struct room room = {.chunks = calloc(capacity, sizeof *room.chunks),
                        .old = calloc(1, sizeof *room.old)};
    enum status status = STATUS_NO_MEMORY;
    if (!room.chunks || !room.old)
        error_set(error, status, "no memory for a table of %u chunks", capacity);
    else
        status = slab_take(&engine->slabs,
                           (uint64_t)capacity * cache->params.num_layers * sizeof(uint64_t),
                           &room.table, error);
    if (status != STATUS_OK) {
        free(room.chunks);
        free(room.old);
        return status;
    }
    fill_room(cache, capacity, &room);
    pthread_mutex_lock(&engine->lock);
    use_room(cache, capacity, &room);
    pthread_mutex_unlock(&engine->lock);
    return STATUS_OK;
}

// ---- grow and shrink ----

static void growth_end(struct engine *engine, struct event_node *node)
{
    (void)engine;
    free(container_of(node, struct growth, node));
}

static enum status grow(struct engine_cache *cache, uint32_t number, struct error *error)
{
    struct chunk *chunk = NULL;
    if (number < cache->capacity && cache->chunks[number])
        return error_set(error, STATUS_INVALID, "cache %s has chunk %u already", cache->params.name,
                         number);
    enum status status = reserve(cache, number, error);
    if (status == STATUS_OK)
        status = chunk_create(cache, number, &chunk, error);
    if (status != STATUS_OK)
        return status;
    pthread_mutex_lock(&cache->engine->lock);
    cache->chunks[number] = chunk;
    fill_row(cache, cache->table.mapped, number, chunk);
    pthread_mutex_unlock(&cache->engine->lock);
    return STATUS_OK;
}

static bool growth_is_moot(struct engine *engine, const struct growth *growth)
{
    pthread_mutex_lock(&engine->lock);
    bool moot = growth->cache->dead || engine->stopping || engine->lost;
    pthread_mutex_unlock(&engine->lock);
    return moot;
}

static void run_growth(struct engine *engine, struct job *job)
{
    struct growth *growth = container_of(job, struct growth, job);
    if (growth_is_moot(engine, growth)) {
        free(growth);
        return;
    }
    struct engine_event *event = &growth->node.event;
    event->error.status = STATUS_OK;
    event->error.status = grow(growth->cache, growth->chunk, &event->error);
    pthread_mutex_lock(&engine->lock);
    bool told = !growth->cache->dead && !engine->lost;
    if (told)
        event_post(engine, &growth->node);
    pthread_mutex_unlock(&engine->lock);
    if (told)
        engine_wake(engine);
    else
        free(growth);
}

bool engine_cache_grow(struct engine_cache *cache, uint32_t chunk)
{
    struct engine *engine = cache->engine;
    struct growth *growth = calloc(1, sizeof *growth);
    if (!growth)
        return false;
    growth->cache = cache;
    growth->chunk = chunk;
    growth->node.event =
        (struct engine_event){.kind = ENGINE_EVENT_CHUNK, .cache = cache, .chunk = chunk};
    growth->node.end = growth_end;
    growth->job.run = run_growth;
    pthread_mutex_lock(&engine->lock);
    // Begins after the memory that caches gave back is free: it may be needed for this chunk.
    growth->job.after = engine->freed_after;
    job_post(engine, &growth->job);
    pthread_mutex_unlock(&engine->lock);
    return true;
}

void engine_cache_shrink(struct engine_cache *cache, uint32_t chunk)
{
    struct engine *engine = cache->engine;
    pthread_mutex_lock(&engine->lock);
    struct chunk *old = chunk < cache->capacity ? cache->chunks[chunk] : NULL;
    if (old && !old->given_back) {
        old->given_back = true;
        old->end = (struct job){.after = engine->last_sequence, .run = run_chunk_end};
        engine->freed_after = engine->last_sequence;
        job_post(engine, &old->end);
    }
    pthread_mutex_unlock(&engine->lock);
}

// ---- create and destroy ----

enum status engine_cache_create(struct engine *engine, const struct engine_cache_params *params,
                                struct engine_cache **out, struct error *error)
{
    enum status status = engine_cache_check(engine, params, error);
    if (status != STATUS_OK)
        return status;
    if (engine_lost(engine))
        return error_set(error, STATUS_DEVICE_LOST, "the device is lost");
    struct engine_cache *cache = calloc(1, sizeof *cache);
    char *name = strdup(params->name ? params->name : "");
    if (!cache || !name) {
        free(cache);
        free(name);
        return error_set(error, STATUS_NO_MEMORY, "no memory for cache %s", params->name);
    }
    cache->engine = engine;
    cache->params = *params;
    cache->params.name = name;
    cache->layer_block_bytes = engine_layer_block_bytes(params);
    cache->layer_bytes = cache->layer_block_bytes * params->chunk_blocks;
    cache->chunk_shift = (uint32_t)__builtin_ctz(params->chunk_blocks);
    pthread_mutex_lock(&engine->lock);
    LIST_APPEND(engine->caches, cache);
    pthread_mutex_unlock(&engine->lock);
    *out = cache;
    return STATUS_OK;
}

void cache_free(struct engine_cache *cache)
{
    for (uint32_t i = 0; i < cache->capacity; i++)
        chunk_free(cache->engine, cache->chunks[i]);
    free(cache->chunks);
    slab_give(&cache->engine->slabs, &cache->table);
    free((char *)cache->params.name);
    free(cache);
}

static void run_cache_end(struct engine *engine, struct job *job)
{
    (void)engine;
    cache_free(container_of(job, struct engine_cache, end));
}

// With the lock held. Drops events of a destroyed cache that were not polled.
static void forget_events(struct engine *engine, const struct engine_cache *cache)
{
    struct event_node *node, *next;
    LIST_EACH_SAFE(engine->events, node, next)
        if (node->event.kind == ENGINE_EVENT_CHUNK && node->event.cache == cache) {
            LIST_DELETE(engine->events, node);
            node->end(engine, node);
        }
}

void engine_cache_destroy(struct engine_cache *cache)
{
    if (!cache)
        return;
    struct engine *engine = cache->engine;
    pthread_mutex_lock(&engine->lock);
    cache->dead = true;
    forget_events(engine, cache);
    LIST_DELETE(engine->caches, cache);
    cache->end = (struct job){.after = engine->last_sequence, .run = run_cache_end};
    engine->freed_after = engine->last_sequence;
    // Behind the growths of this cache, which then find it dead.
    job_post(engine, &cache->end);
    pthread_mutex_unlock(&engine->lock);
}

// ---- memory for other processes ----

static enum status export_part(struct engine_cache *cache, const struct chunk *chunk, uint32_t part,
                               struct engine_cache_part *out, struct error *error)
{
    const struct buffer *buffer = &chunk->parts[part];
    *out = (struct engine_cache_part){
        .memory = {.fd = -1, .allocated = buffer->allocated, .dedicated = buffer->dedicated},
        .num_parts = chunk->num_parts,
        .first_layer = part * chunk->layers_per_part,
        .num_layers = (uint32_t)(buffer->size / cache->layer_bytes),
        .layer_bytes = cache->layer_bytes,
        .block_bytes = cache->layer_block_bytes,
    };
    return buffer_export(&cache->engine->device, buffer, &out->memory.fd, error);
}

enum status engine_cache_export(struct engine_cache *cache, uint32_t part,
                                struct engine_cache_part *out, struct error *error)
{
    if (!cache->params.exported)
        return error_set(error, STATUS_UNSUPPORTED, "cache %s is not exported", cache->params.name);
    pthread_mutex_lock(&cache->engine->lock);
    const struct chunk *chunk = chunk_of(cache, 0); // only the caller's thread could give it back
    pthread_mutex_unlock(&cache->engine->lock);
    if (!chunk)
        return error_set(error, STATUS_BUSY, "cache %s has no memory yet", cache->params.name);
    if (part >= chunk->num_parts)
        return error_set(error, STATUS_OUT_OF_RANGE,
                         "cache %s lies in %u allocations; there is no allocation %u",
                         cache->params.name, chunk->num_parts, part);
    return export_part(cache, chunk, part, out, error);
}

// ---- copying one block out or in ----

struct place {
    VkBuffer buffer;
    uint64_t offset;
};

static bool find_place(struct engine_cache *cache, uint32_t layer, int32_t block,
                       struct place *place)
{
    pthread_mutex_lock(&cache->engine->lock);
    const struct chunk *chunk = chunk_of(cache, block);
    bool found = chunk && !chunk->given_back && layer < cache->params.num_layers;
    if (found)
        *place = (struct place){chunk->parts[layer / chunk->layers_per_part].handle,
                                layer_offset(cache, chunk, layer) + block_offset(cache, block)};
    pthread_mutex_unlock(&cache->engine->lock);
    return found;
}

static enum status rest(struct engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    uint64_t last = engine->last_sequence;
    pthread_mutex_unlock(&engine->lock);
    return engine_wait(engine, last, -1);
}

// Waits until the GPU is idle, then copies one block between the cache and `staging`.
static enum status copy_block(struct engine_cache *cache, uint32_t layer, int32_t block,
                              const struct buffer *staging, bool out)
{
    struct engine *engine = cache->engine;
    struct place place = {0};
    enum status status = rest(engine);
    if (status != STATUS_OK)
        return status;
    if (!find_place(cache, layer, block, &place))
        return STATUS_OUT_OF_RANGE;
    status = transfer_begin(&engine->transfer, NULL);
    if (status != STATUS_OK)
        return status;
    VkBufferCopy region = {.srcOffset = out ? place.offset : 0,
                           .dstOffset = out ? 0 : place.offset,
                           .size = cache->layer_block_bytes};
    vkCmdCopyBuffer(engine->transfer.commands, out ? place.buffer : staging->handle,
                    out ? staging->handle : place.buffer, 1, &region);
    return transfer_end(&engine->transfer, NULL);
}

static enum status staging_init(struct engine_cache *cache, struct buffer *staging)
{
    return buffer_init(&cache->engine->device, MEMORY_STAGING, cache->layer_block_bytes,
                       "block copy", staging, NULL);
}

enum status engine_block_read(struct engine_cache *cache, uint32_t layer, int32_t block,
                              void *bytes)
{
    struct buffer staging;
    enum status status = staging_init(cache, &staging);
    if (status == STATUS_OK)
        status = copy_block(cache, layer, block, &staging, true);
    if (status == STATUS_OK)
        memcpy(bytes, staging.mapped, cache->layer_block_bytes);
    buffer_finish(&cache->engine->device, &staging);
    return status;
}

enum status engine_block_write(struct engine_cache *cache, uint32_t layer, int32_t block,
                               const void *bytes)
{
    struct buffer staging;
    enum status status = staging_init(cache, &staging);
    if (status != STATUS_OK)
        return status;
    memcpy(staging.mapped, bytes, cache->layer_block_bytes);
    status = copy_block(cache, layer, block, &staging, false);
    buffer_finish(&cache->engine->device, &staging);
    return status;
}
