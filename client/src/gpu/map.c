// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// map.c - the memory of a cache in this process: aule_cache_attach() and what follows it in aule.h,
// up to aule_cache_report(). A cache lies in few allocations of whole layers; each has a descriptor
// and an import of its own. Any thread; a mutex guards the imports.

#include "base/container_of.h"
#include "client/src/cache.h"
#include "client/src/caller.h"
#include "client/src/error.h"
#include "cuda.h"
#include "descriptor.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct map {
    struct cache_mapping mapping;
    pid_t pid;             // of the process that made it
    pthread_mutex_t mutex; // guards the rest
    bool over;             // the cache is closed
    uint32_t num_imports;
    struct cuda_import **imports; // [num_imports]; owned
    void **layers;                // [num_layers] device addresses; NULL = not mapped; owned
};

static void unmap(struct map *map)
{
    for (uint32_t i = 0; i < map->num_imports; i++)
        cuda_import_end(map->imports[i]);
    free(map->imports);
    free(map->layers);
    map->imports = NULL;
    map->layers = NULL;
    map->num_imports = 0;
}

static void close_map(struct cache_mapping *mapping)
{
    struct map *map = container_of(mapping, struct map, mapping);
    pthread_mutex_lock(&map->mutex);
    unmap(map);
    map->over = true;
    pthread_mutex_unlock(&map->mutex);
}

static void end_map(struct cache_mapping *mapping)
{
    struct map *map = container_of(mapping, struct map, mapping);
    unmap(map);
    if (map->pid == getpid()) // in a child another thread may seem to hold it
        pthread_mutex_destroy(&map->mutex);
    free(map);
}

// Finds or makes the cache's map; NULL: no memory.
static struct map *map_of(struct aule_cache *cache)
{
    struct cache_mapping *has = atomic_load(&cache->mapping);
    struct map *made = has ? NULL : calloc(1, sizeof *made);
    if (!made)
        return has ? container_of(has, struct map, mapping) : NULL;
    made->mapping = (struct cache_mapping){close_map, end_map};
    made->pid = getpid();
    pthread_mutex_init(&made->mutex, NULL);
    if (atomic_compare_exchange_strong(&cache->mapping, &has, &made->mapping))
        return made;
    end_map(&made->mapping); // another thread was faster
    return container_of(has, struct map, mapping);
}

// ---- what the daemon says ----

// Between life_enter() and life_leave().
static enum aule_status ask(const struct aule_cache *cache, uint32_t part,
                            struct wire_cache_attach_reply *reply)
{
    struct life *life = cache->life;
    struct wire_request request = {
        .command = WIRE_COMMAND_CACHE_ATTACH,
        .cache_attach = {.cache = cache->id, .part = part, .timeout_ms = life->grace_ms}};
    struct answer answer;
    enum aule_status status =
        life_call(life, &request, life->grace_ms, WIRE_ANSWER_CACHE_ATTACH, &answer);
    if (status != AULE_OK)
        return status;
    *reply = answer.reply.cache_attach;
    answer_finish(&answer);
    if (reply->num_layers == 0 || reply->first_layer >= cache->num_layers ||
        reply->num_layers > cache->num_layers - reply->first_layer)
        return fail(AULE_MALFORMED,
                    "the daemon says that allocation %u has %u layers from %u on; the cache has %u",
                    part, reply->num_layers, reply->first_layer, cache->num_layers);
    return AULE_OK;
}

static struct aule_pool_info describe(const struct aule_cache *cache,
                                      const struct wire_cache_attach_reply *reply)
{
    struct aule_pool_info info = {
        .num_parts = reply->num_parts,
        .num_layers = cache->num_layers,
        .num_blocks = reply->num_blocks,
        .block_size = cache->block_size,
        .num_kv_heads = cache->num_kv_heads,
        .head_dim_k = cache->head_dim,
        .head_dim_v = cache->head_dim_v,
        .k_dtype = cache->k_dtype,
        .v_dtype = cache->v_dtype,
        .block_stride = reply->block_bytes,
    };
    info.k_token_stride = aule_dtype_size(info.k_dtype) * (uint64_t)info.head_dim_k;
    info.k_head_stride = info.k_token_stride * info.block_size;
    info.v_token_stride = cache->v_is_k_prefix
                              ? info.k_token_stride
                              : aule_dtype_size(info.v_dtype) * (uint64_t)info.head_dim_v;
    info.v_head_stride = info.v_token_stride * info.block_size;
    info.v_offset = cache->v_is_k_prefix ? 0 : info.k_head_stride * info.num_kv_heads;
    if (cache->scale_mode == AULE_SCALE_PER_TOKEN_HEAD)
        info.scales_offset = info.v_offset + info.v_head_stride * info.num_kv_heads;
    memcpy(info.device_uuid, cache->life->info.device_uuid, sizeof info.device_uuid);
    return info;
}

enum aule_status aule_cache_attach_sized(struct aule_cache *cache, struct aule_pool_info *info,
                                         size_t info_size)
{
    struct wire_cache_attach_reply reply;
    USE(cache);
    REQUIRE(info);
    enum aule_status status = life_enter(cache->life);
    if (status != AULE_OK)
        return status;
    pthread_mutex_lock(&cache->life->token_mutex); // its token replaces another one
    status = ask(cache, 0, &reply);
    pthread_mutex_unlock(&cache->life->token_mutex);
    life_leave(cache->life);
    if (status != AULE_OK)
        return status;
    const struct aule_pool_info whole = describe(cache, &reply);
    GIVE(info, info_size, whole);
    return AULE_OK;
}

// ---- descriptors ----

// With the life's token_mutex held.
static enum aule_status trade_token(const struct aule_cache *cache, uint32_t part,
                                    struct aule_pool_part *out, uint32_t *num_parts)
{
    struct life *life = cache->life;
    struct wire_cache_attach_reply reply;
    struct sockaddr_un address;
    enum aule_status status = ask(cache, part, &reply);
    if (status == AULE_OK)
        status = descriptor_find(connection_path(life->connection), life->export_socket, &address);
    if (status != AULE_OK)
        return status;
    *out = (struct aule_pool_part){.fd = -1,
                                   .dedicated = reply.dedicated,
                                   .first_layer = reply.first_layer,
                                   .num_layers = reply.num_layers,
                                   .layer_stride = reply.layer_bytes,
                                   .allocated = reply.allocated};
    *num_parts = reply.num_parts;
    return descriptor_redeem(&address, reply.token, life->grace_ms, &out->fd);
}

// Between life_enter() and life_leave().
static enum aule_status take_part(const struct aule_cache *cache, uint32_t part,
                                  struct aule_pool_part *out, uint32_t *num_parts)
{
    pthread_mutex_lock(&cache->life->token_mutex);
    enum aule_status status = trade_token(cache, part, out, num_parts);
    pthread_mutex_unlock(&cache->life->token_mutex);
    return status;
}

enum aule_status aule_cache_export_sized(struct aule_cache *cache, uint32_t part,
                                         struct aule_pool_part *part_info, size_t part_info_size)
{
    struct aule_pool_part whole;
    uint32_t num_parts;
    USE(cache);
    REQUIRE(part_info);
    enum aule_status status = life_enter(cache->life);
    if (status != AULE_OK)
        return status;
    status = take_part(cache, part, &whole, &num_parts);
    life_leave(cache->life);
    if (status == AULE_OK)
        GIVE(part_info, part_info_size, whole);
    return status;
}

// ---- CUDA ----

static enum aule_status import_part(const struct aule_cache *cache, struct map *map,
                                    const struct aule_pool_part *part, int cuda_device)
{
    uint64_t address = 0;
    struct cuda_memory memory = {.fd = part->fd,
                                 .dedicated = part->dedicated,
                                 .size = part->num_layers * part->layer_stride,
                                 .allocated = part->allocated};
    memcpy(memory.uuid, cache->life->info.device_uuid, sizeof memory.uuid);
    enum aule_status status =
        cuda_import(&memory, cuda_device, &map->imports[map->num_imports], &address);
    if (status != AULE_OK)
        return status;
    map->num_imports++;
    for (uint32_t i = 0; i < part->num_layers; i++) // NOLINTNEXTLINE(performance-no-int-to-ptr)
        map->layers[part->first_layer + i] = (void *)(uintptr_t)(address + i * part->layer_stride);
    return AULE_OK;
}

// Descriptors are taken by a thread of their own, while CUDA imports those that have come: either
// takes some hundred microseconds for each allocation.
struct arrivals {
    const struct aule_cache *cache;
    pthread_mutex_t mutex; // guards the rest
    pthread_cond_t news;
    uint32_t num_parts, taken;
    bool over;    // nothing else comes
    bool dropped; // nobody wants what comes
    enum aule_status status;
    char why[256];                 // the sentence, if `status` is a failure
    struct aule_pool_part parts[]; // [num_layers]: each allocation has a layer
};

// The first answer says how many allocations there are.
static void *take_parts(void *context)
{
    struct arrivals *arrivals = context;
    const struct aule_cache *cache = arrivals->cache;
    uint32_t num_parts = 1;
    enum aule_status status = AULE_OK;
    bool wanted = true;
    for (uint32_t i = 0; status == AULE_OK && wanted && i < num_parts && i < cache->num_layers;
         i++) {
        status = take_part(cache, i, &arrivals->parts[i], &num_parts);
        pthread_mutex_lock(&arrivals->mutex);
        arrivals->taken += status == AULE_OK;
        wanted = !arrivals->dropped;
        pthread_cond_signal(&arrivals->news);
        pthread_mutex_unlock(&arrivals->mutex);
    }
    pthread_mutex_lock(&arrivals->mutex);
    arrivals->status = status;
    if (status != AULE_OK) // the sentence is this thread's
        snprintf(arrivals->why, sizeof arrivals->why, "%s", aule_error());
    arrivals->over = true;
    pthread_cond_signal(&arrivals->news);
    pthread_mutex_unlock(&arrivals->mutex);
    return NULL;
}

// False: the last one has come, or none could be had.
static bool await_part(struct arrivals *arrivals, uint32_t i)
{
    pthread_mutex_lock(&arrivals->mutex);
    while (arrivals->taken <= i && !arrivals->over)
        pthread_cond_wait(&arrivals->news, &arrivals->mutex);
    const bool came = arrivals->taken > i;
    pthread_mutex_unlock(&arrivals->mutex);
    return came;
}

static void drop_arrivals(struct arrivals *arrivals)
{
    pthread_mutex_lock(&arrivals->mutex);
    arrivals->dropped = true;
    pthread_mutex_unlock(&arrivals->mutex);
}

static enum aule_status import_all(struct arrivals *arrivals, struct map *map, int cuda_device)
{
    enum aule_status status = AULE_OK;
    for (uint32_t i = 0; status == AULE_OK && await_part(arrivals, i); i++)
        status = import_part(arrivals->cache, map, &arrivals->parts[i], cuda_device);
    return status;
}

static enum aule_status import_as_they_come(struct arrivals *arrivals, struct map *map,
                                            int cuda_device)
{
    pthread_t thread;
    sigset_t all, before; // signals are for the program's own threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&thread, NULL, take_parts, arrivals);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return fail(AULE_NO_MEMORY, "no thread to take the descriptors of a cache: %s",
                    strerror(error));
    enum aule_status status = import_all(arrivals, map, cuda_device);
    if (status != AULE_OK)
        drop_arrivals(arrivals);
    pthread_join(thread, NULL);
    for (uint32_t i = 0; i < arrivals->taken; i++)
        close(arrivals->parts[i].fd);
    if (status == AULE_OK && arrivals->status != AULE_OK)
        status = fail(arrivals->status, "%s", arrivals->why);
    return status;
}

// With the mutex held.
static enum aule_status map_all(const struct aule_cache *cache, struct map *map, int cuda_device)
{
    enum aule_status status;
    struct arrivals *arrivals =
        calloc(1, sizeof *arrivals + cache->num_layers * sizeof(struct aule_pool_part));
    map->imports = calloc(cache->num_layers, sizeof(struct cuda_import *));
    map->layers = calloc(cache->num_layers, sizeof(void *));
    if (arrivals && map->imports && map->layers) {
        arrivals->cache = cache;
        pthread_mutex_init(&arrivals->mutex, NULL);
        pthread_cond_init(&arrivals->news, NULL);
        status = import_as_they_come(arrivals, map, cuda_device);
        pthread_cond_destroy(&arrivals->news);
        pthread_mutex_destroy(&arrivals->mutex);
    } else {
        status = fail(AULE_NO_MEMORY, "no memory to map %u layers", cache->num_layers);
    }
    free(arrivals);
    if (status != AULE_OK)
        unmap(map);
    return status;
}

static enum aule_status check_mapped(const struct map *map, int cuda_device)
{
    const int has = cuda_import_device(map->imports[0]);
    if (cuda_device < 0 || cuda_device == has)
        return AULE_OK;
    return fail(AULE_MISMATCH, "the cache is mapped on CUDA device %d, not on %d", has,
                cuda_device);
}

enum aule_status aule_cache_map_cuda(struct aule_cache *cache, int cuda_device, void **layers,
                                     int *mapped_device)
{
    USE(cache);
    REQUIRE(layers);
    struct map *map = map_of(cache);
    if (!map)
        return fail(AULE_NO_MEMORY, "no memory to map a cache");
    enum aule_status status = life_enter(cache->life);
    if (status != AULE_OK)
        return status;
    pthread_mutex_lock(&map->mutex);
    if (map->over)
        status = fail(AULE_INVALID, "the cache was closed while it was being mapped");
    else
        status = map->layers ? check_mapped(map, cuda_device) : map_all(cache, map, cuda_device);
    if (status == AULE_OK) {
        memcpy(layers, map->layers, cache->num_layers * sizeof *layers);
        if (mapped_device)
            *mapped_device = cuda_import_device(map->imports[0]);
    }
    pthread_mutex_unlock(&map->mutex);
    life_leave(cache->life);
    return status;
}

// ---- reports ----

static enum aule_status check_report(const struct aule_cache *cache,
                                     const struct aule_report *report)
{
    const uint64_t most = life_room(cache->life) / sizeof *report->slots;
    if (report->num_slots > 0 && !report->slots)
        return fail(AULE_INVALID, "slots is NULL, but num_slots is %" PRIu64, report->num_slots);
    if (report->num_slots > most)
        return fail(AULE_LIMIT, "a report of %" PRIu64 " slots; a message holds %" PRIu64,
                    report->num_slots, most);
    return AULE_OK;
}

enum aule_status aule_cache_report_sized(struct aule_cache *cache, const struct aule_report *report,
                                         size_t report_size, uint64_t *mark)
{
    struct aule_report whole;
    USE(cache);
    REQUIRE(report);
    enum aule_status status = TAKE(&whole, report, report_size);
    if (status == AULE_OK)
        status = check_report(cache, &whole);
    if (status != AULE_OK)
        return status;
    struct wire_request request = {
        .command = WIRE_COMMAND_CACHE_REPORT,
        .cache_report = {.cache = cache->id,
                         .slots = {.data = whole.slots, .count = (uint32_t)whole.num_slots},
                         .first_layer = whole.first_layer,
                         .num_layers = whole.num_layers,
                         .passed = whole.passed}};
    struct answer answer;
    status = life_ask(cache->life, &request, 0, WIRE_ANSWER_CACHE_REPORT, &answer);
    if (status != AULE_OK)
        return status;
    if (mark)
        *mark = answer.reply.cache_report.mark;
    answer_finish(&answer);
    return AULE_OK;
}
