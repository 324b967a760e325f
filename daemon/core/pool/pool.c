// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pool.c - see pool.h. Nothing here waits: a chunk that the engine makes arrives as an event.

#include "pool.h"

#include "base/list.h"
#include "cache.h"
#include "evict.h"
#include "hold.h"
#include "salt.h"
#include "session.h"
#include "tenant.h"

#include <inttypes.h>
#include <stdio.h>

enum {
    POOL_CHUNK_BLOCKS = 512,
    // A pool of at least four chunks can serve several caches and move chunks between them.
    POOL_MIN_CHUNKS = 4,
    // After the device refused memory, this many leases that need some pass before it is asked
    // again, because another process may have freed some. If every lease asked, parked leases would
    // cause one refusal after the other. The device is also asked again when memory comes back to
    // the pool.
    POOL_RETRY_AFTER = 64,
};

static bool chunk_fits(const struct pool *pool, const struct engine_cache_params *params,
                       uint32_t chunk_blocks, uint32_t parts)
{
    uint64_t bytes = engine_block_bytes(params) * chunk_blocks;
    return bytes <= pool->limit_bytes / parts && chunk_blocks <= pool->limit_blocks / parts &&
           engine_layer_block_bytes(params) * chunk_blocks <=
               engine_device(pool->ledger->engine)->max_allocation_bytes;
}

static uint32_t fixed_chunk(const struct pool *pool, const struct engine_cache_params *params,
                            struct error *error)
{
    if (chunk_fits(pool, params, pool->fixed_blocks, 1))
        return pool->fixed_blocks;
    error_set(error, STATUS_LIMIT,
              "--export-pool %" PRIu32 ": one block has %" PRIu64 " bytes, %" PRIu64
              " of them in one layer; the pool is limited to %" PRIu64
              " bytes (--memory-fraction, --max-blocks), a layer to one allocation of %" PRIu64,
              pool->fixed_blocks, engine_block_bytes(params), engine_layer_block_bytes(params),
              pool->limit_bytes, engine_device(pool->ledger->engine)->max_allocation_bytes);
    return 0;
}

uint32_t pool_chunk_blocks(const struct pool *pool, const struct engine_cache_params *params,
                           struct error *error)
{
    if (pool->fixed_blocks)
        return fixed_chunk(pool, params, error);
    for (uint32_t blocks = POOL_CHUNK_BLOCKS; blocks > 1; blocks /= 2) {
        if (chunk_fits(pool, params, blocks, POOL_MIN_CHUNKS))
            return blocks;
    }
    if (chunk_fits(pool, params, 1, 1))
        return 1;
    error_set(error, STATUS_LIMIT,
              "one block has %" PRIu64 " bytes, %" PRIu64
              " of them in one layer; the pool is limited to %" PRIu64
              " bytes (--memory-fraction), one allocation of the device to %" PRIu64,
              engine_block_bytes(params), engine_layer_block_bytes(params), pool->limit_bytes,
              engine_device(pool->ledger->engine)->max_allocation_bytes);
    return 0;
}

void pool_take(struct pool *pool, const struct cache *cache)
{
    pool->bytes += cache->chunk_bytes;
    pool->blocks += cache->chunk_blocks;
}

static void take_off(struct pool *pool, const struct cache *cache)
{
    pool->bytes -= cache->chunk_bytes;
    pool->blocks -= cache->chunk_blocks;
}

void pool_give_back(struct pool *pool, const struct cache *cache)
{
    take_off(pool, cache);
    pool_ask_again(pool);
}

void pool_ask_again(struct pool *pool)
{
    pool->refused_bytes = 0;
    pool->refused_ahead = false;
}

void pool_refused(struct pool *pool, const struct cache *cache, bool ahead)
{
    take_off(pool, cache);
    pool->refused_ahead = true;
    if (ahead)
        return;
    pool->refused_bytes = cache->chunk_bytes;
    pool->refused_wishes = 0;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

// Chunks of this cache that fit into `bytes` and `blocks` of the pool. It has `has` chunks already,
// and its block ids stay below 2^31.
static uint64_t chunks_in(const struct cache *cache, uint64_t bytes, uint64_t blocks, uint64_t has)
{
    uint64_t ids = cache->pool->fixed_blocks ? 1 : INT32_MAX / cache->chunk_blocks;
    uint64_t chunks = least(bytes / cache->chunk_bytes, blocks / cache->chunk_blocks);
    return least(chunks, ids > has ? ids - has : 0);
}

uint64_t pool_limit(const struct cache *cache)
{
    const struct pool *pool = cache->pool;
    return chunks_in(cache, pool->limit_bytes, pool->limit_blocks, 0) * cache->chunk_blocks;
}

// Chunks of the cache that evict_for() could empty, at most: each one costs its owner's tenant a
// cached block. Floors may keep some of them.
static uint64_t count_idle(const struct cache *cache, const struct tenant *asking)
{
    const struct account *account;
    uint64_t count = 0;
    LIST_EACH_BY(cache->accounts, account, next_beside) {
        count += least(account->idle.size, evict_surplus(account->tenant, asking));
    }
    return count;
}

// What other caches could give back for a lease of `asking`: chunks whose blocks are all free or
// may be evicted.
static void reclaimable(const struct cache *cache, const struct tenant *asking, uint64_t *bytes,
                        uint64_t *blocks)
{
    const struct pool *pool = cache->pool;
    *bytes = *blocks = 0;
    for (uint32_t i = 0; i < pool->num_caches && !pool->fixed_blocks; i++) {
        const struct cache *other = pool->caches[i];
        uint64_t chunks = other->empty.size + count_idle(other, asking);
        if (other == cache)
            continue;
        *bytes += chunks * other->chunk_bytes;
        *blocks += chunks * other->chunk_blocks;
    }
}

// Chunks that the cache may still grow by if others give back `bytes` and `blocks`.
static uint64_t growable(const struct cache *cache, uint64_t bytes, uint64_t blocks)
{
    const struct pool *pool = cache->pool;
    if (!pool->refused_bytes)
        bytes += pool->limit_bytes - pool->bytes;
    return chunks_in(cache, bytes, pool->limit_blocks - pool->blocks + blocks,
                     cache->num_present + cache->num_growing);
}

uint64_t pool_available(const struct cache *cache, const struct tenant *asking)
{
    uint64_t bytes, blocks;
    reclaimable(cache, asking, &bytes, &blocks);
    uint64_t chunks = cache->num_growing + growable(cache, bytes, blocks);
    return cache->counts[CORE_FREE] + evict_available(cache, asking) + chunks * cache->chunk_blocks;
}

// Free blocks, once all growing chunks have arrived.
static uint64_t expected(const struct cache *cache)
{
    return cache->counts[CORE_FREE] + (uint64_t)cache->num_growing * cache->chunk_blocks;
}

static enum status grow_to(struct cache *cache, uint32_t count, bool ahead, struct error *error)
{
    enum status status = STATUS_OK;
    while (status == STATUS_OK && expected(cache) < count && growable(cache, 0, 0))
        status = cache_grow(cache, ahead, error);
    return status;
}

void pool_keep_spare(struct cache *cache)
{
    const struct pool *pool = cache->pool;
    if (!pool->fixed_blocks && !pool->refused_ahead && !pool->queue_caches)
        grow_to(cache, pool->ledger->params->spare_blocks, true, NULL);
}

// Another cache grows ahead of need, so that this cache may take the chunk when it is there.
static bool others_grow(const struct cache *cache)
{
    const struct pool *pool = cache->pool;
    for (uint32_t i = 0; i < pool->num_caches && !pool->fixed_blocks; i++)
        if (pool->caches[i] != cache && pool->caches[i]->num_ahead)
            return true;
    return false;
}

bool pool_grows(const struct cache *cache)
{
    return cache->num_growing > 0 || others_grow(cache);
}

enum status pool_fill(struct cache *cache, struct error *error)
{
    const struct pool *pool = cache->pool;
    if (!pool->fixed_blocks)
        return STATUS_OK;
    if (pool->limit_bytes - pool->bytes >= cache->chunk_bytes &&
        pool->limit_blocks - pool->blocks >= cache->chunk_blocks)
        return cache_grow(cache, false, error);
    return error_set(error, STATUS_LIMIT,
                     "cache \"%.64s\" takes %" PRIu64 " bytes (--export-pool %" PRIu32
                     "); other caches leave too little of the pool's %" PRIu64
                     " bytes (--memory-fraction, --max-blocks), and such a pool does not grow; "
                     "drop a cache (aule-ctl drop-cache)",
                     cache->name, cache->chunk_bytes, pool->fixed_blocks, pool->limit_bytes);
}

// Takes a chunk whose blocks are all free from another cache. False: there is none.
static bool take_spare(const struct cache *cache)
{
    const struct pool *pool = cache->pool;
    for (uint32_t i = 0; i < pool->num_caches && !pool->fixed_blocks; i++) {
        if (pool->caches[i] != cache && cache_shrink(pool->caches[i]))
            return true;
    }
    return false;
}

static enum status no_blocks(const struct hold_table *table, uint32_t count, struct error *error)
{
    const struct cache *cache = table->cache;
    const struct tenant *asking = table->session->salt->tenant;
    const struct pool *pool = cache->pool;
    char refused[96] = "";
    if (table->session->guest)
        return error_set(error, STATUS_NO_BLOCKS,
                         "%" PRIu32 " blocks wanted, tenant \"%.64s\" could get %" PRIu64
                         " of cache \"%.64s\" now",
                         count, asking->label, pool_available(cache, asking), cache->name);
    if (pool->refused_bytes)
        snprintf(refused, sizeof refused, "; the device has no memory for %" PRIu64 " bytes more",
                 pool->refused_bytes);
    else if (cache->num_growing)
        snprintf(refused, sizeof refused, "; %" PRIu32 " chunks are on their way",
                 cache->num_growing);
    return error_set(error, STATUS_NO_BLOCKS,
                     "%" PRIu32 " blocks wanted, cache \"%.64s\" has %" PRIu64 " free of %" PRIu64
                     " and could get %" PRIu64 " now%s",
                     count, cache->name, cache->counts[CORE_FREE], cache_total(cache),
                     pool_available(cache, asking), refused);
}

enum status pool_make_room(const struct hold_table *table, uint32_t count, bool *growing,
                           struct error *error)
{
    struct cache *cache = table->cache;
    struct pool *pool = cache->pool;
    const struct tenant *asking = table->session->salt->tenant;
    if (pool->refused_bytes && ++pool->refused_wishes >= POOL_RETRY_AFTER)
        pool_ask_again(pool);
    if (pool_available(cache, asking) < count) { // evicting would lose prefixes for nothing
        *growing = others_grow(cache);
        return no_blocks(table, count, error);
    }
    struct evictions evictions = {.table = table, .wanted = count};
    enum status status = grow_to(cache, count, false, error);
    // Nothing is evicted while another cache grows ahead of need: this one may take that chunk.
    while (status == STATUS_OK && expected(cache) < count &&
           (take_spare(cache) ||
            (!others_grow(cache) && evict_for(cache, asking, count - expected(cache), &evictions))))
        status = grow_to(cache, count, false, error);
    if (status != STATUS_OK || cache->counts[CORE_FREE] >= count)
        return status;
    *growing = pool_grows(cache);
    return no_blocks(table, count, error);
}
