// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// cache.c - see cache.h. Dispatcher thread only; creating a chunk's memory is the engine's work.
//
// Identity. What a block's bytes mean depends on the whole identity, so a name with another
// identity is another cache. A tenant finds its own cache of a name first, then another tenant's of
// the same identity, whose memory it shares, but no prefix.
//
// Registry. A cache stays when its last session closes it, with its cached blocks. If --max-caches
// is reached, the one that has been unused the longest ends, unless it has a pinned block or its
// end would take a tenant below its floor.
//
// Chunks. ABSENT -> GROWING (cache_grow() asked the engine) -> PRESENT (cache_grown()) -> ABSENT
// again (cache_give_back()). Chunk numbers and so block ids stay the same over this: a table of
// addresses has a place for each. All host memory of a chunk is one piece, taken before the engine
// is asked; so what comes later cannot fail.

#include "cache.h"

#include "base/list.h"
#include "claim.h"
#include "pool.h"
#include "prefix.h"
#include "tenant.h"
#include "zeroes.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- identity ----

// block_bytes is the first: where it differs, the other numbers do, too, but say less.
static const struct identity_number {
    const char *name;
    size_t offset;
    enum { NUMBER, TYPE, FLAG } kind;
} identity_numbers[] = {
    {"block_bytes", offsetof(struct core_cache_identity, kv.block_bytes), NUMBER},
    {"num_layers", offsetof(struct core_cache_identity, num_layers), NUMBER},
    {"num_kv_heads", offsetof(struct core_cache_identity, kv.num_kv_heads), NUMBER},
    {"head_dim_k", offsetof(struct core_cache_identity, kv.head_dim_k), NUMBER},
    {"head_dim_v", offsetof(struct core_cache_identity, kv.head_dim_v), NUMBER},
    {"v_is_k_prefix", offsetof(struct core_cache_identity, kv.v_is_k_prefix), FLAG},
    {"k_dtype", offsetof(struct core_cache_identity, kv.k_dtype), TYPE},
    {"v_dtype", offsetof(struct core_cache_identity, kv.v_dtype), TYPE},
    {"scale_mode", offsetof(struct core_cache_identity, kv.scale_mode), NUMBER},
    {"block_size", offsetof(struct core_cache_identity, kv.block_size), NUMBER},
};
enum { NUM_IDENTITY_NUMBERS = sizeof identity_numbers / sizeof *identity_numbers };

static uint32_t identity_value(const struct core_cache_identity *identity,
                               const struct identity_number *number)
{
    const char *field = (const char *)identity + number->offset;
    uint32_t value;
    if (number->kind == FLAG)
        return *(const bool *)field;
    memcpy(&value, field, sizeof value);
    return value;
}

static enum status mismatch(const char *name, const struct identity_number *number, uint32_t has,
                            uint32_t wanted, struct error *error)
{
    if (number->kind == TYPE)
        return error_set(error, STATUS_MISMATCH, "cache \"%.64s\" has %s %s, not %s", name,
                         number->name, dtype_name((int)has), dtype_name((int)wanted));
    return error_set(error, STATUS_MISMATCH, "cache \"%.64s\" has %s %" PRIu32 ", not %" PRIu32,
                     name, number->name, has, wanted);
}

static const char *fingerprint_text(const struct core_cache_identity *identity,
                                    char text[2 * CORE_MAX_FINGERPRINT + 1])
{
    for (uint32_t i = 0; i < identity->fingerprint_size; i++)
        snprintf(text + 2 * (size_t)i, 3, "%02x", identity->fingerprint[i]);
    return identity->fingerprint_size ? text : "none";
}

static enum status check_same(const struct core_cache_identity *has,
                              const struct core_cache_identity *wanted, struct error *error)
{
    for (size_t i = 0; i < NUM_IDENTITY_NUMBERS; i++) {
        uint32_t a = identity_value(has, &identity_numbers[i]),
                 b = identity_value(wanted, &identity_numbers[i]);
        if (a != b)
            return mismatch(has->name, &identity_numbers[i], a, b, error);
    }
    uint32_t size = has->fingerprint_size;
    if (size == wanted->fingerprint_size &&
        (size == 0 || !memcmp(has->fingerprint, wanted->fingerprint, size)))
        return STATUS_OK;
    char a[2 * CORE_MAX_FINGERPRINT + 1], b[2 * CORE_MAX_FINGERPRINT + 1];
    return error_set(error, STATUS_MISMATCH, "cache \"%.64s\" has fingerprint %s, not %s",
                     has->name, fingerprint_text(has, a), fingerprint_text(wanted, b));
}

static struct engine_cache_params engine_params(const struct core_cache_identity *identity,
                                                uint32_t chunk_blocks, bool exported)
{
    return (struct engine_cache_params){
        .name = identity->name,
        .num_layers = identity->num_layers,
        .chunk_blocks = chunk_blocks,
        .kv = identity->kv,
        .exported = exported,
    };
}

enum status cache_check_kv(const struct engine_kv *kv, struct error *error)
{
    if (!kv->block_bytes && (!kv->num_kv_heads || !kv->head_dim_k || !kv->head_dim_v))
        return error_set(error, STATUS_INVALID,
                         "num_kv_heads %" PRIu32 ", head_dim_k %" PRIu32 ", head_dim_v %" PRIu32
                         ": each must be at least 1",
                         kv->num_kv_heads, kv->head_dim_k, kv->head_dim_v);
    if (kv->block_size < CORE_MIN_BLOCK_SIZE || kv->block_size > CORE_MAX_BLOCK_SIZE ||
        (kv->block_size & (kv->block_size - 1)))
        return error_set(error, STATUS_UNSUPPORTED,
                         "block_size %" PRIu32 " is not a power of two from %d to %d",
                         kv->block_size, CORE_MIN_BLOCK_SIZE, CORE_MAX_BLOCK_SIZE);
    return STATUS_OK;
}

// Opaque blocks have no numbers but their size and that of their keys. Core and the engine take
// them as blocks of one layer.
static enum status take_opaque(struct core_cache_identity *identity, struct error *error)
{
    if (!identity->kv.block_bytes)
        return STATUS_OK;
    for (size_t i = 1; i < NUM_IDENTITY_NUMBERS; i++) {
        const struct identity_number *number = &identity_numbers[i];
        const uint32_t value = identity_value(identity, number);
        if (value && number->offset != offsetof(struct core_cache_identity, kv.block_size))
            return error_set(error, STATUS_INVALID,
                             "%s is %" PRIu32 " and block_bytes %" PRIu32
                             ": opaque blocks have no layers, heads or types",
                             number->name, value, identity->kv.block_bytes);
    }
    identity->num_layers = 1;
    return STATUS_OK;
}

static enum status check_name(const struct core_cache_identity *identity, struct error *error)
{
    size_t length = identity->name ? strlen(identity->name) : 0;
    if (length < 1 || length > CORE_MAX_CACHE_NAME)
        return error_set(error, STATUS_INVALID,
                         "the cache's name has %zu bytes; 1 to %d are allowed", length,
                         CORE_MAX_CACHE_NAME);
    if (identity->fingerprint_size > CORE_MAX_FINGERPRINT)
        return error_set(error, STATUS_INVALID,
                         "the fingerprint has %" PRIu32 " bytes; at most %d are allowed",
                         identity->fingerprint_size, CORE_MAX_FINGERPRINT);
    return STATUS_OK;
}

// Checks what core's own arithmetic needs; the engine then checks that it has shaders for the
// shape.
static enum status check_shape(const struct pool *pool, const struct core_cache_identity *i,
                               struct error *error)
{
    const struct engine_kv *kv = &i->kv;
    if (!i->num_layers)
        return error_set(error, STATUS_INVALID, "num_layers is 0; it must be at least 1");
    if (i->num_layers > CORE_MAX_LAYERS)
        return error_set(error, STATUS_LIMIT, "num_layers is %" PRIu32 "; a cache has at most %d",
                         i->num_layers, CORE_MAX_LAYERS);
    enum status status = cache_check_kv(kv, error);
    if (status != STATUS_OK)
        return status;
    // With at least one byte an element, this keeps all products of the engine below 2^64.
    unsigned __int128 bytes = (unsigned __int128)i->num_layers * kv->num_kv_heads * kv->block_size;
    if (bytes * ((uint64_t)kv->head_dim_k + kv->head_dim_v) > pool->limit_bytes)
        return error_set(error, STATUS_LIMIT,
                         "one block of cache \"%.64s\" exceeds the pool's %" PRIu64
                         " bytes (--memory-fraction)",
                         i->name, pool->limit_bytes);
    struct engine_cache_params params = engine_params(i, 1, pool->fixed_blocks != 0);
    return engine_cache_check(pool->ledger->engine, &params, error);
}

// ---- registry ----

enum status cache_find(const struct pool *pool, uint64_t id, struct cache **out,
                       struct error *error)
{
    for (uint32_t i = 0; i < pool->num_caches; i++) {
        if (pool->caches[i]->id == id) {
            *out = pool->caches[i];
            return STATUS_OK;
        }
    }
    return error_set(error, STATUS_NOT_FOUND, "there is no cache %" PRIu64, id);
}

static bool copy_identity(struct cache *cache, const struct core_cache_identity *identity)
{
    cache->identity = *identity;
    cache->name = strdup(identity->name);
    if (identity->fingerprint_size)
        memcpy(cache->fingerprint, identity->fingerprint, identity->fingerprint_size);
    cache->identity.name = cache->name;
    cache->identity.fingerprint = cache->fingerprint;
    return cache->name != NULL;
}

// All that a block's bytes mean depends on: the same name on two machines means the same bytes.
// Without opaque blocks block_bytes is no part of it, as before there were any.
static void name_in_tiers(struct cache *cache)
{
    enum { MOST_NAME = CORE_MAX_CACHE_NAME + 1, NUM_OTHERS = NUM_IDENTITY_NUMBERS - 1 };
    struct named {
        uint32_t others[NUM_OTHERS], fingerprint_size;
        uint8_t fingerprint[CORE_MAX_FINGERPRINT];
        char name[MOST_NAME];
        uint32_t block_bytes;
    } all;
    memset(&all, 0, sizeof all);
    for (size_t i = 0; i < NUM_OTHERS; i++)
        all.others[i] = identity_value(&cache->identity, &identity_numbers[i + 1]);
    all.block_bytes = cache->identity.kv.block_bytes;
    all.fingerprint_size = cache->identity.fingerprint_size;
    memcpy(all.fingerprint, cache->fingerprint, all.fingerprint_size);
    memcpy(all.name, cache->name, strlen(cache->name));
    const size_t size = all.block_bytes ? sizeof all : offsetof(struct named, block_bytes);
    stored_fingerprint(&all, size, cache->name_in_tiers);
}

// Bytes of the arrays of a chunk, in the order in which they lie side by side.
struct chunk_sizes {
    size_t blocks, whole, free, written, reserved;
};

static struct chunk_sizes chunk_sizes(const struct cache *cache)
{
    const size_t count = cache->chunk_blocks;
    return (struct chunk_sizes){
        .blocks = count * sizeof(struct block),
        .whole = (count + 63) / 64 * sizeof(uint64_t), // `free` behind it is aligned
        .free = count * sizeof(uint32_t),
        .written = count * cache->identity.num_layers * cache->layer_bytes,
        .reserved = count * cache->layer_bytes,
    };
}

static void measure(struct cache *cache, uint32_t chunk_blocks, uint64_t block_bytes)
{
    cache->block_bytes = block_bytes;
    cache->chunk_blocks = chunk_blocks;
    cache->chunk_shift = (uint32_t)__builtin_ctz(chunk_blocks);
    cache->chunk_bytes = block_bytes * chunk_blocks;
    cache->layer_bytes = cache->identity.kv.block_size / 8;
    stock_init(&cache->node_stock,
               offsetof(struct prefix_node, tokens) +
                   cache->identity.kv.block_size * sizeof(int32_t),
               offsetof(struct prefix_node, prev));
    stock_init(&cache->claim_stock,
               offsetof(struct claim_node, tokens) +
                   cache->identity.kv.block_size * sizeof(int32_t),
               offsetof(struct claim_node, hash));
    const struct chunk_sizes sizes = chunk_sizes(cache);
    stock_init(&cache->block_stock,
               sizes.blocks + sizes.whole + sizes.free + sizes.written + sizes.reserved, 0);
}

static bool registry_reserve(struct pool *pool)
{
    if (pool->num_caches < pool->cache_capacity)
        return true;
    uint32_t capacity = pool->cache_capacity ? pool->cache_capacity * 2 : 8;
    struct cache **caches = realloc(pool->caches, capacity * sizeof(struct cache *));
    if (!caches)
        return false;
    pool->caches = caches;
    pool->cache_capacity = capacity;
    return true;
}

static bool registry_add(struct pool *pool, struct cache *cache)
{
    if (!registry_reserve(pool))
        return false;
    cache->id = ++pool->ledger->last_id;
    pool->caches[pool->num_caches++] = cache;
    return true;
}

static void registry_remove(struct pool *pool, struct cache *cache)
{
    uint32_t at = 0;
    while (pool->caches[at] != cache)
        at++;
    pool->num_caches--;
    memmove(pool->caches + at, pool->caches + at + 1,
            (pool->num_caches - at) * sizeof(struct cache *));
}

static enum status cache_create(struct pool *pool, const struct core_cache_identity *identity,
                                struct cache **out, struct error *error)
{
    struct engine_cache_params params = engine_params(identity, 1, pool->fixed_blocks != 0);
    params.chunk_blocks = pool_chunk_blocks(pool, &params, error);
    if (!params.chunk_blocks)
        return STATUS_LIMIT;
    struct cache *cache = calloc(1, sizeof *cache);
    if (!cache)
        return error_set(error, STATUS_NO_MEMORY, "no memory for cache \"%.64s\"", identity->name);
    cache->pool = pool;
    enum status status = STATUS_NO_MEMORY;
    if (!copy_identity(cache, identity) || !registry_add(pool, cache)) {
        error_set(error, status, "no memory for cache \"%.64s\"", identity->name);
        goto fail;
    }
    measure(cache, params.chunk_blocks, engine_block_bytes(&params));
    name_in_tiers(cache);
    status = engine_cache_create(pool->ledger->engine, &params, &cache->engine, error);
    if (status == STATUS_OK)
        status = pool_fill(cache, error);
    if (status != STATUS_OK)
        goto fail;
    ledger_log(pool->ledger, CORE_LOG_INFO,
               "cache %" PRIu64 " \"%s\": %" PRIu64 " bytes a block, %" PRIu32 " blocks a chunk",
               cache->id, cache->name, cache->block_bytes, cache->chunk_blocks);
    *out = cache;
    return STATUS_OK;
fail:
    cache_destroy(cache);
    return status;
}

// True if ending the cache would take neither a pinned block nor a tenant below its floor.
static bool may_end(const struct cache *cache)
{
    const struct account *account;
    LIST_EACH_BY(cache->accounts, account, next_beside) {
        if (account_keeps(account))
            return false;
    }
    return !cache->num_tables;
}

// The cache that has been unused the longest and may end; NULL: there is none.
static struct cache *oldest_unused(const struct pool *pool)
{
    struct cache *oldest = NULL;
    for (uint32_t i = 0; i < pool->num_caches; i++) {
        struct cache *cache = pool->caches[i];
        if (may_end(cache) && (!oldest || cache->last_use < oldest->last_use))
            oldest = cache;
    }
    return oldest;
}

bool cache_end_unused(struct pool *pool)
{
    struct cache *oldest = oldest_unused(pool);
    if (!oldest)
        return false;
    const struct account *account;
    LIST_EACH_BY(oldest->accounts, account, next_beside) {
        account->tenant->evicted += account->victims.size;
    }
    pool->ledger->metrics[METRIC_EVICTIONS] += oldest->counts[CORE_CACHED];
    cache_destroy(oldest);
    return true;
}

// The cache that the tenant calls so. NULL: it calls none so.
static struct cache *find_own(const struct tenant *tenant, const char *name)
{
    const struct account *account;
    LIST_EACH(tenant->accounts, account) {
        if (account_is_used(account) && !strcmp(account->cache->name, name))
            return account->cache;
    }
    return NULL;
}

// Another tenant's of this name and identity. NULL: there is none.
static struct cache *find_same(const struct pool *pool, const struct core_cache_identity *identity)
{
    for (uint32_t i = 0; i < pool->num_caches; i++) {
        struct cache *cache = pool->caches[i];
        if (!strcmp(cache->name, identity->name) &&
            check_same(&cache->identity, identity, NULL) == STATUS_OK)
            return cache;
    }
    return NULL;
}

struct counted_caches {
    uint64_t own, others; // that the tenant has open or keeps; that only other ones do
};

static void count_cache(struct counted_caches *counted, const struct cache *cache,
                        const struct tenant *tenant)
{
    const struct account *account;
    bool own = false, used = false;
    LIST_EACH_BY(cache->accounts, account, next_beside) {
        const bool uses = account->opens || account_keeps(account);
        used |= uses;
        own |= uses && account->tenant == tenant;
    }
    counted->own += own;
    counted->others += used && !own;
}

// The tenant is to have one cache more.
static enum status check_part(const struct pool *pool, const struct tenant *tenant,
                              struct error *error)
{
    const uint32_t most = pool->ledger->params->max_caches;
    struct counted_caches counted = {0};
    for (uint32_t i = 0; tenant->is_group && i < pool->num_caches; i++)
        count_cache(&counted, pool->caches[i], tenant);
    if (!tenant->is_group || counted.own < tenant_part(tenant, most, counted.others))
        return STATUS_OK;
    return error_set(error, STATUS_LIMIT,
                     "tenant \"%.64s\" uses %" PRIu64 " caches (open, pinned or below its floor): "
                     "all of its part of --max-caches %" PRIu32 " (--tenant-share)",
                     tenant->label, counted.own, most);
}

enum status cache_get(struct pool *pool, const struct tenant *tenant,
                      const struct core_cache_identity *given, struct cache **out,
                      struct error *error)
{
    struct core_cache_identity whole = *given;
    const struct core_cache_identity *identity = &whole;
    enum status status = check_name(identity, error);
    if (status == STATUS_OK)
        status = take_opaque(&whole, error);
    if (status != STATUS_OK)
        return status;
    *out = find_own(tenant, identity->name);
    if (*out)
        return check_same(&(*out)->identity, identity, error);
    status = check_part(pool, tenant, error);
    if (status != STATUS_OK || (*out = find_same(pool, identity)))
        return status;
    status = check_shape(pool, identity, error);
    if (status != STATUS_OK)
        return status;
    if (pool->num_caches >= pool->ledger->params->max_caches && !oldest_unused(pool))
        return error_set(error, STATUS_LIMIT,
                         "all %" PRIu32 " caches (--max-caches) are open, or keep blocks that are "
                         "pinned or that a tenant's floor protects",
                         pool->ledger->params->max_caches);
    return cache_create(pool, identity, out, error);
}

static void chunk_destroy(struct cache *cache, struct chunk *chunk)
{
    if (!chunk)
        return;
    stock_give(&cache->block_stock, chunk->blocks);
    free(chunk);
}

static void drop_chunks(struct cache *cache)
{
    for (uint32_t i = 0; i < cache->num_chunks; i++) {
        if (cache->chunks[i]->state != CHUNK_ABSENT)
            pool_give_back(cache->pool, cache);
        if (cache->chunks[i]->state == CHUNK_PRESENT)
            zeroes_forget(cache->pool, cache, cache->chunks[i]);
        chunk_destroy(cache, cache->chunks[i]);
    }
    free(cache->chunks);
}

void cache_destroy(struct cache *cache)
{
    if (!cache)
        return;
    struct pool *pool = cache->pool;
    while (cache->roots) // no session is left, so no root has claims, and each has children
        prefix_unlink(cache, cache->roots->children);
    node_table_finish(&cache->nodes);
    stock_finish(&cache->node_stock);
    node_table_finish(&cache->claims);
    stock_finish(&cache->claim_stock);
    while (cache->accounts)
        account_finish(cache->accounts);
    drop_chunks(cache);
    stock_finish(&cache->block_stock);
    number_set_finish(&cache->usable);
    number_set_finish(&cache->empty);
    number_set_finish(&cache->absent);
    heap_finish(&cache->ranks);
    if (cache->engine) {
        engine_cache_destroy(cache->engine);
        ledger_log(pool->ledger, CORE_LOG_INFO, "cache %" PRIu64 " \"%s\" ends", cache->id,
                   cache->name);
    }
    if (cache->id)
        registry_remove(pool, cache);
    free(cache->name);
    free(cache);
    pool->ledger->news = true;
}

void cache_settle(struct cache *cache)
{
    if (!cache->num_tables && !cache->counts[CORE_CACHED])
        cache_destroy(cache);
}

uint64_t cache_evictable(const struct cache *cache)
{
    const struct account *account;
    uint64_t count = 0;
    LIST_EACH_BY(cache->accounts, account, next_beside) {
        count += account->victims.size;
    }
    return count;
}

uint64_t cache_total(const struct cache *cache)
{
    return (uint64_t)cache->num_present * cache->chunk_blocks;
}

uint64_t cache_num_ids(const struct cache *cache)
{
    return (uint64_t)cache->num_chunks * cache->chunk_blocks;
}

// ---- chunks ----

static bool chunks_reserve(struct cache *cache)
{
    if (cache->num_chunks < cache->chunk_capacity)
        return true;
    uint32_t capacity = cache->chunk_capacity ? cache->chunk_capacity * 2 : 4;
    struct chunk **chunks = realloc(cache->chunks, capacity * sizeof(struct chunk *));
    if (!chunks)
        return false;
    cache->chunks = chunks;
    cache->chunk_capacity = capacity;
    return true;
}

// Reserves all that num_chunks chunks can ever need in the sets, so block_settle() cannot fail.
static bool sets_reserve(struct cache *cache)
{
    const uint32_t chunks = cache->num_chunks;
    return number_set_reserve(&cache->usable, chunks) &&
           number_set_reserve(&cache->empty, chunks) && number_set_reserve(&cache->absent, chunks);
}

// The absent chunk with the lowest number, or a new one, which is absent. NULL: no memory.
static struct chunk *chunk_get(struct cache *cache)
{
    if (cache->absent.size)
        return cache->chunks[number_set_first(&cache->absent)];
    if (!chunks_reserve(cache))
        return NULL;
    struct chunk *chunk = aligned_alloc(alignof(struct chunk), sizeof *chunk);
    if (!chunk)
        return NULL;
    *chunk = (struct chunk){.number = cache->num_chunks};
    cache->chunks[cache->num_chunks++] = chunk;
    if (!sets_reserve(cache)) {
        cache->num_chunks--;
        free(chunk);
        return NULL;
    }
    number_set_add(&cache->absent, chunk->number);
    return chunk;
}

static void chunk_clear(struct cache *cache, struct chunk *chunk)
{
    stock_give(&cache->block_stock, chunk->blocks);
    chunk->blocks = NULL;
    chunk->free = NULL;
    chunk->written = chunk->reserved = chunk->whole = NULL;
    chunk->num_free = 0;
    chunk->state = CHUNK_ABSENT;
    number_set_add(&cache->absent, chunk->number);
}

enum status cache_grow(struct cache *cache, bool ahead, struct error *error)
{
    struct chunk *chunk = chunk_get(cache);
    struct block *blocks = chunk ? stock_take(&cache->block_stock) : NULL;
    const bool asked = blocks && engine_cache_grow(cache->engine, chunk->number);
    if (blocks && !asked)
        stock_give(&cache->block_stock, blocks);
    if (!asked)
        return error_set(error, STATUS_NO_MEMORY,
                         "no host memory to grow cache \"%.64s\" by %" PRIu32 " blocks",
                         cache->name, cache->chunk_blocks);
    const struct chunk_sizes sizes = chunk_sizes(cache);
    number_set_remove(&cache->absent, chunk->number);
    chunk->blocks = blocks;
    chunk->whole = (uint8_t *)blocks + sizes.blocks;
    chunk->free = (uint32_t *)(void *)(chunk->whole + sizes.whole);
    chunk->written = (uint8_t *)chunk->free + sizes.free;
    chunk->reserved = chunk->written + sizes.written;
    chunk->state = CHUNK_GROWING;
    chunk->ahead = ahead;
    cache->num_growing++;
    cache->num_ahead += ahead;
    pool_take(cache->pool, cache);
    return STATUS_OK;
}

static void chunk_open(struct cache *cache, struct chunk *chunk)
{
    chunk->state = CHUNK_PRESENT;
    chunk->num_free = cache->chunk_blocks;
    for (uint32_t i = 0; i < cache->chunk_blocks; i++) {
        struct block *block = &chunk->blocks[i];
        block->id = (int32_t)((chunk->number << cache->chunk_shift) + i);
        chunk->free[cache->chunk_blocks - 1 - i] = i;
        block->state = CORE_FREE;
    }
    cache->num_present++;
    cache->counts[CORE_FREE] += cache->chunk_blocks;
    number_set_add(&cache->usable, chunk->number);
    number_set_add(&cache->empty, chunk->number);
}

void cache_grown(struct cache *cache, uint32_t number, const struct error *outcome)
{
    struct chunk *chunk = cache->chunks[number];
    struct pool *pool = cache->pool;
    const bool ahead = chunk->ahead;
    cache->num_growing--;
    cache->num_ahead -= ahead;
    pool->ledger->news = true;
    if (outcome->status == STATUS_OK) {
        chunk_open(cache, chunk);
        pool->num_arrived++;
        pool->refused_ahead = false;
        return;
    }
    chunk_clear(cache, chunk);
    pool_refused(pool, cache, ahead);
    ledger_log(pool->ledger, ahead ? CORE_LOG_INFO : CORE_LOG_WARNING,
               "cache %" PRIu64 " \"%s\": the device gave no %" PRIu64 " bytes more: %s", cache->id,
               cache->name, cache->chunk_bytes, outcome->text);
}

void cache_give_back(struct cache *cache, struct chunk *chunk)
{
    number_set_remove(&cache->empty, chunk->number);
    number_set_remove(&cache->usable, chunk->number);
    zeroes_forget(cache->pool, cache, chunk);
    cache->num_present--;
    cache->counts[CORE_FREE] -= cache->chunk_blocks;
    chunk_clear(cache, chunk);
    engine_cache_shrink(cache->engine, chunk->number);
    pool_give_back(cache->pool, cache);
}

bool cache_shrink(struct cache *cache)
{
    if (!cache->empty.size)
        return false;
    cache_give_back(cache, cache->chunks[number_set_last(&cache->empty)]);
    return true;
}
