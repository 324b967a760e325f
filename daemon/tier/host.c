// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// host.c - see host.h. One lock guards the index, the tenants and the area. The thread computes
// without it. A block that is in use stays in the index until its turn to go has come again.

#include "host.h"

#include "area.h"
#include "base/clock.h"
#include "base/hash.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

// Blocks in use that are stepped over in search of one to drop.
enum { MOST_IN_USE = 256 };

struct host_key {
    uint8_t fingerprint[RECORD_ID_BYTES], salt[RECORD_ID_BYTES], chain[RECORD_ID_BYTES];
};

struct host_block {
    UT_hash_handle hh; // by key
    struct host_key key;
    struct area_place *place; // one reference
    struct host_tenant *tenant;
    struct host_block *prev, *next; // tenant->blocks, the least recently used one first
    uint64_t last_use;
};

struct host_tenant {
    UT_hash_handle hh; // by share.tenant
    struct tier_share share;
    struct host_block *blocks;
    uint64_t num_blocks, bytes;
};

struct tier_backend {
    pthread_mutex_t lock;
    pthread_cond_t news;
    pthread_t thread;
    bool stops;
    struct tier_job *first, *last; // the thread's jobs, through job->work
    struct area area;
    struct host_block *blocks;   // by key; owned
    struct host_tenant *tenants; // owned; those without blocks go
    uint64_t last_use, evicted, num_blocks;
};

// ---- the index; under the lock ----

static struct host_key key_of(const struct record_space *space, const struct record_chain *chain)
{
    struct host_key key;
    memcpy(key.fingerprint, space->fingerprint, sizeof key.fingerprint);
    memcpy(key.salt, space->salt, sizeof key.salt);
    memcpy(key.chain, chain->id, sizeof key.chain);
    return key;
}

static struct host_block *find(const struct tier_backend *host, const struct record_space *space,
                               const struct record_chain *chain)
{
    const struct host_key key = key_of(space, chain);
    struct host_block *block;
    HASH_FIND(hh, host->blocks, &key, sizeof key, block);
    return block;
}

static void touch(struct tier_backend *host, struct host_block *block)
{
    DL_DELETE(block->tenant->blocks, block);
    DL_APPEND(block->tenant->blocks, block);
    block->last_use = ++host->last_use;
}

static void tenant_settle(struct tier_backend *host, struct host_tenant *tenant)
{
    if (tenant->num_blocks)
        return;
    HASH_DEL(host->tenants, tenant);
    free(tenant);
}

static void drop(struct tier_backend *host, struct host_block *block)
{
    struct host_tenant *tenant = block->tenant;
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): it is in the table
    HASH_DEL(host->blocks, block);
    DL_DELETE(tenant->blocks, block);
    tenant->num_blocks--;
    tenant->bytes -= block->place->bytes;
    host->num_blocks--;
    area_unref(&host->area, block->place);
    free(block);
    tenant_settle(host, tenant);
}

// NULL: no memory.
static struct host_tenant *tenant_get(struct tier_backend *host, const struct tier_share *share)
{
    struct host_tenant *tenant;
    HASH_FIND(hh, host->tenants, &share->tenant, sizeof share->tenant, tenant);
    if (!tenant && (tenant = calloc(1, sizeof *tenant))) {
        tenant->share = *share;
        HASH_ADD(hh, host->tenants, share.tenant, sizeof share->tenant, tenant);
        if (!HASH_ADDED(tenant)) {
            free(tenant);
            return NULL;
        }
    }
    if (tenant)
        tenant->share = *share;
    return tenant;
}

// The tenant's least recently used block that nobody uses. NULL: there is none among the first.
static struct host_block *oldest(const struct host_tenant *tenant)
{
    struct host_block *block;
    int tries = 0;
    DL_FOREACH(tenant->blocks, block)
    {
        if (block->place->refs == 1)
            return block;
        if (++tries == MOST_IN_USE)
            return NULL;
    }
    return NULL;
}

// The block to drop for one of the tenant `asking`: of the tenant with the most bytes. A tenant
// goes below its own floor for itself alone.
static struct host_block *victim(const struct tier_backend *host, uint64_t asking)
{
    struct host_block *best = NULL;
    for (struct host_tenant *tenant = host->tenants; tenant; tenant = tenant->hh.next) {
        if (tenant->share.tenant != asking && tenant->num_blocks <= tenant->share.floor)
            continue;
        struct host_block *block =
            !best || tenant->bytes > best->tenant->bytes ? oldest(tenant) : NULL;
        best = block ? block : best;
    }
    return best;
}

static void evict(struct tier_backend *host, struct host_block *block)
{
    host->evicted++;
    drop(host, block);
}

static void keep_cap(struct tier_backend *host, struct host_tenant *tenant)
{
    struct host_block *block;
    while (tenant->share.cap && tenant->num_blocks > tenant->share.cap && (block = oldest(tenant)))
        evict(host, block);
}

// Takes over the memory of a stored block.
static enum record_reason insert(struct tier_backend *host, const struct tier_job *job,
                                 const struct tier_block *stored)
{
    struct area_place *place = area_find(&host->area, stored->data);
    struct host_block *block = find(host, &job->space, &stored->chain);
    if (block) {
        touch(host, block);
        return RECORD_OK;
    }
    struct host_tenant *tenant = tenant_get(host, &job->share);
    block = tenant ? calloc(1, sizeof *block) : NULL;
    if (block) {
        block->key = key_of(&job->space, &stored->chain);
        HASH_ADD(hh, host->blocks, key, sizeof block->key, block);
    }
    if (!block || !HASH_ADDED(block)) {
        free(block);
        if (tenant)
            tenant_settle(host, tenant);
        return RECORD_MEMORY;
    }
    block->place = place;
    block->tenant = tenant;
    block->last_use = ++host->last_use;
    area_ref(place);
    DL_APPEND(tenant->blocks, block);
    tenant->num_blocks++;
    tenant->bytes += place->bytes;
    host->num_blocks++;
    keep_cap(host, tenant);
    return RECORD_OK;
}

// ---- the thread ----

static bool is_late(const struct tier_job *job)
{
    return clock_now_ns() >= job->deadline_ns;
}

static enum record_reason store_block(struct tier_backend *host, const struct tier_job *job,
                                      struct tier_block *block)
{
    struct area_place *place;
    pthread_mutex_lock(&host->lock);
    place = area_find(&host->area, block->data);
    pthread_mutex_unlock(&host->lock);
    const uint32_t num_parts = record_num_parts(job->space.block_bytes);
    for (uint32_t i = 0; i < num_parts; i++)
        record_header_fill(&place->headers[i], &job->space, &block->chain, i,
                           block->data + record_part_offset(i));
    pthread_mutex_lock(&host->lock);
    const enum record_reason reason = insert(host, job, block);
    pthread_mutex_unlock(&host->lock);
    return reason;
}

// Takes a reference to the block's memory. NULL: it is not there.
static struct area_place *lend(struct tier_backend *host, const struct tier_job *job,
                               struct tier_block *block)
{
    pthread_mutex_lock(&host->lock);
    struct host_block *own = find(host, &job->space, &block->chain);
    if (own) {
        touch(host, own);
        area_ref(own->place);
        block->data = area_data(&host->area, own->place);
    }
    pthread_mutex_unlock(&host->lock);
    return own ? own->place : NULL;
}

// The memory does not have what was stored: nobody shall get it any more.
static void reject(struct tier_backend *host, const struct tier_job *job, struct tier_block *block,
                   struct area_place *place)
{
    pthread_mutex_lock(&host->lock);
    struct host_block *own = find(host, &job->space, &block->chain);
    if (own && own->place == place)
        drop(host, own);
    area_unref(&host->area, place);
    pthread_mutex_unlock(&host->lock);
    block->data = NULL;
}

static enum record_reason load_block(struct tier_backend *host, struct tier_job *job,
                                     uint32_t index)
{
    struct tier_block *block = &job->blocks[index];
    struct area_place *place = lend(host, job, block);
    enum record_reason reason = place ? RECORD_OK : RECORD_ABSENT;
    const uint32_t num_parts = record_num_parts(job->space.block_bytes);
    for (uint32_t i = 0; reason == RECORD_OK && i < num_parts; i++)
        reason = tier_part_check(job, index, i, &place->headers[i],
                                 record_part_bytes(job->space.block_bytes, i));
    if (place && reason != RECORD_OK)
        reject(host, job, block, place);
    return reason;
}

static void work(struct tier_backend *host, struct tier_job *job)
{
    uint32_t i = 0;
    for (; i < job->num_blocks && !is_late(job); i++) {
        struct tier_block *block = &job->blocks[i];
        block->reason =
            job->kind == TIER_STORE ? store_block(host, job, block) : load_block(host, job, i);
    }
    for (; i < job->num_blocks; i++)
        job->blocks[i].reason = RECORD_TIMEOUT;
    tier_job_end(job);
}

static void *run_thread(void *argument)
{
    struct tier_backend *host = argument;
    pthread_mutex_lock(&host->lock);
    while (!host->stops || host->first) {
        struct tier_job *job = host->first;
        if (!job) {
            pthread_cond_wait(&host->news, &host->lock);
            continue;
        }
        host->first = job->work;
        pthread_mutex_unlock(&host->lock);
        work(host, job);
        pthread_mutex_lock(&host->lock);
    }
    pthread_mutex_unlock(&host->lock);
    return NULL;
}

// ---- the calls ----

static void hand_over(struct tier_backend *host, struct tier_job *job)
{
    job->work = NULL;
    pthread_mutex_lock(&host->lock);
    if (host->first)
        host->last->work = job;
    else
        host->first = job;
    host->last = job;
    pthread_cond_signal(&host->news);
    pthread_mutex_unlock(&host->lock);
}

static void host_lookup(struct tier_backend *host, struct tier_job *job)
{
    pthread_mutex_lock(&host->lock);
    for (uint32_t i = 0; i < job->num_blocks; i++) {
        struct tier_block *block = &job->blocks[i];
        if (!find(host, &job->space, &block->chain))
            continue;
        block->answer = TIER_THERE;
        block->reason = RECORD_OK;
    }
    pthread_mutex_unlock(&host->lock);
    tier_job_end(job);
}

static void host_erase(struct tier_backend *host, struct tier_job *job)
{
    pthread_mutex_lock(&host->lock);
    for (uint32_t i = 0; i < job->num_blocks; i++) {
        struct host_block *block = find(host, &job->space, &job->blocks[i].chain);
        if (!block)
            continue;
        drop(host, block);
        job->blocks[i].reason = RECORD_OK;
    }
    pthread_mutex_unlock(&host->lock);
    tier_job_end(job);
}

static enum tier_answer host_probe(struct tier_backend *host, const struct record_space *space,
                                   const struct record_chain *chain)
{
    pthread_mutex_lock(&host->lock);
    const bool there = find(host, space, chain);
    pthread_mutex_unlock(&host->lock);
    return there ? TIER_THERE : TIER_MISS;
}

static void host_give_back(struct tier_backend *host, uint8_t *data)
{
    pthread_mutex_lock(&host->lock);
    area_unref(&host->area, area_find(&host->area, data));
    pthread_mutex_unlock(&host->lock);
}

void host_ref(struct tier_backend *host, uint8_t *data)
{
    pthread_mutex_lock(&host->lock);
    area_ref(area_find(&host->area, data));
    pthread_mutex_unlock(&host->lock);
}

uint8_t *host_reserve(struct tier_backend *host, const struct tier_share *share, uint64_t bytes)
{
    struct area_place *place = NULL;
    struct host_block *block;
    pthread_mutex_lock(&host->lock);
    while (bytes <= host->area.size && !(place = area_take(&host->area, bytes)) &&
           (block = victim(host, share->tenant)))
        evict(host, block);
    pthread_mutex_unlock(&host->lock);
    return place ? area_data(&host->area, place) : NULL;
}

uint64_t host_used_bytes(struct tier_backend *host)
{
    pthread_mutex_lock(&host->lock);
    const uint64_t bytes = host->area.used_bytes;
    pthread_mutex_unlock(&host->lock);
    return bytes;
}

static void host_state(struct tier_backend *host, struct tier_state *out)
{
    pthread_mutex_lock(&host->lock);
    *out = (struct tier_state){
        .bytes = host->area.used_bytes,
        .limit_bytes = host->area.size,
        .blocks = host->num_blocks,
        .evicted = host->evicted,
    };
    pthread_mutex_unlock(&host->lock);
}

static void free_index(struct tier_backend *host)
{
    struct host_block *block, *next;
    struct host_tenant *tenant, *after;
    HASH_ITER(hh, host->blocks, block, next)
    {
        HASH_DEL(host->blocks, block);
        free(block);
    }
    HASH_ITER(hh, host->tenants, tenant, after)
    {
        HASH_DEL(host->tenants, tenant);
        free(tenant);
    }
}

static void host_free(struct tier_backend *host)
{
    free_index(host);
    area_finish(&host->area);
    pthread_cond_destroy(&host->news);
    pthread_mutex_destroy(&host->lock);
    free(host);
}

// Its jobs only compute, so they end.
static bool host_close(struct tier_backend *host, int64_t deadline_ns)
{
    (void)deadline_ns;
    pthread_mutex_lock(&host->lock);
    host->stops = true;
    pthread_cond_signal(&host->news);
    pthread_mutex_unlock(&host->lock);
    pthread_join(host->thread, NULL);
    host_free(host);
    return true;
}

const struct tier_ops host_ops = {
    .name = "host",
    .lends = true,
    .lookup = host_lookup,
    .store = hand_over,
    .load = hand_over,
    .erase = host_erase,
    .probe = host_probe,
    .give_back = host_give_back,
    .state = host_state,
    .close = host_close,
};

enum status host_open(void *base, uint64_t size, struct tier_backend **out, struct error *error)
{
    *out = NULL;
    if (size < AREA_UNIT)
        return error_set(error, STATUS_INVALID,
                         "a host tier of %llu bytes; it needs %d (--host-tier)",
                         (unsigned long long)size, AREA_UNIT);
    struct tier_backend *host = calloc(1, sizeof *host);
    if (!host)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the host tier");
    pthread_mutex_init(&host->lock, NULL);
    pthread_cond_init(&host->news, NULL);
    if (!area_init(&host->area, base, size) ||
        pthread_create(&host->thread, NULL, run_thread, host)) {
        host_free(host);
        return error_set(error, STATUS_NO_MEMORY, "no memory or thread for the host tier");
    }
    *out = host;
    return STATUS_OK;
}
