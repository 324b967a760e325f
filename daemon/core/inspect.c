// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// inspect.c - what core shows to operators: metrics, counts, caches and blocks. Changes nothing but
// the gauges among the metrics. Dispatcher thread only.

#include "base/list.h"
#include "core/pool/evict.h"
#include "core/pool/hold.h"
#include "core/pool/prefix.h"
#include "core/pool/tenant.h"
#include "state.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

// asking: the tenant whose leases `available` is about; NULL: of no one.
static void count_cache(const struct cache *cache, const struct tenant *asking,
                        struct core_counts *out)
{
    *out = (struct core_counts){
        .total = cache_total(cache),
        .free = cache->counts[CORE_FREE],
        .leased = cache->counts[CORE_LEASED],
        .held = cache->counts[CORE_HELD],
        .cached = cache->counts[CORE_CACHED],
        .quarantined = cache->counts[CORE_QUARANTINED],
        .limit = pool_limit(cache),
        .available = pool_available(cache, asking),
        .block_bytes = cache->block_bytes,
    };
}

// What a guest may know: blocks of its tenant, and those that the tenant could get.
static void count_of_tenant(const struct cache *cache, const struct tenant *tenant,
                            struct core_counts *counts)
{
    const struct account *account;
    *counts = (struct core_counts){
        .limit = counts->limit, .available = counts->available, .block_bytes = counts->block_bytes};
    LIST_EACH(tenant->accounts, account) {
        if (account->cache == cache) {
            counts->cached = account->victims.size;
            counts->leased = account->blocks - counts->cached;
        }
    }
    counts->free = counts->available > counts->cached ? counts->available - counts->cached : 0;
    counts->total = counts->free + counts->leased + counts->cached;
}

enum status core_cache_counts(struct core_session *session, uint64_t cache, struct core_counts *out,
                              struct error *error)
{
    struct hold_table *table;
    enum status status = hold_table_find(session, cache, &table, error);
    if (status == STATUS_OK)
        count_cache(table->cache, session->salt->tenant, out);
    if (status == STATUS_OK && session->guest)
        count_of_tenant(table->cache, session->salt->tenant, out);
    return status;
}

uint32_t core_cache_block_size(const struct core_session *session, uint64_t cache)
{
    struct hold_table *table;
    return hold_table_find(session, cache, &table, NULL) == STATUS_OK
               ? table->cache->identity.kv.block_size
               : 0;
}

static void count_blocks(const struct core *core, uint64_t *metrics)
{
    static const enum metric states[] = {
        [CORE_FREE] = METRIC_BLOCKS_FREE,
        [CORE_LEASED] = METRIC_BLOCKS_LEASED,
        [CORE_HELD] = METRIC_BLOCKS_HELD,
        [CORE_CACHED] = METRIC_BLOCKS_CACHED,
        [CORE_QUARANTINED] = METRIC_BLOCKS_QUARANTINED,
    };
    for (size_t state = 0; state < sizeof states / sizeof *states; state++) {
        metrics[states[state]] = 0;
        for (uint32_t i = 0; i < core->pool.num_caches; i++)
            metrics[states[state]] += core->pool.caches[i]->counts[state];
    }
    metrics[METRIC_POOL_BLOCKS] = 0;
    for (uint32_t i = 0; i < core->pool.num_caches; i++)
        metrics[METRIC_POOL_BLOCKS] += cache_total(core->pool.caches[i]);
}

// The metrics of tiers come in groups of one name, in the order of these tiers.
enum { TIER_HOST, TIER_REDIS, TIER_FILES, NUM_TIER_NAMES };
_Static_assert(METRIC_TIER_REDIS_BYTES == METRIC_TIER_HOST_BYTES + TIER_REDIS, "");
_Static_assert(METRIC_TIER_FILES_BYTES == METRIC_TIER_HOST_BYTES + TIER_FILES, "");
enum {
    NUM_FAILED = METRIC_TIER_REDIS_FAILED_OTHER_VERSION - METRIC_TIER_HOST_FAILED_OTHER_VERSION
};
_Static_assert((int)NUM_FAILED == STORED_NUM_REASONS - STORED_OTHER_VERSION,
               "a counter for each reason that is a failure");

static int tier_index(const struct tier *tier, bool is_host)
{
    return is_host ? TIER_HOST : strcmp(tier_ops(tier)->name, "redis") ? TIER_FILES : TIER_REDIS;
}

// Adds what the tier has counted; further tiers of one name count together.
static void count_tier(struct tier *tier, int64_t load_ns, uint64_t *metrics, int index)
{
    struct tier_counts counts;
    struct tier_state state;
    tier_counts(tier, &counts);
    tier_state(tier, &state);
    const struct {
        enum metric metric; // of the host tier
        uint64_t value;
    } values[] = {
        {METRIC_TIER_HOST_BYTES, state.bytes},
        {METRIC_TIER_HOST_LIMIT, state.limit_bytes},
        {METRIC_TIER_HOST_BLOCKS, state.blocks},
        {METRIC_TIER_HOST_BROKEN, state.broken},
        {METRIC_TIER_HOST_HITS, counts.hits},
        {METRIC_TIER_HOST_MISSES, counts.misses},
        {METRIC_TIER_HOST_LOADED, counts.loaded},
        {METRIC_TIER_HOST_STORED, counts.stored},
        {METRIC_TIER_HOST_LOADED_BYTES, counts.loaded_bytes},
        {METRIC_TIER_HOST_STORED_BYTES, counts.stored_bytes},
        {METRIC_TIER_HOST_LOAD_NS, counts.load_ns},
        {METRIC_TIER_HOST_STORE_NS, counts.store_ns},
        {METRIC_TIER_HOST_SPEED, load_ns ? (UINT64_C(1000000000) << 20) / (uint64_t)load_ns : 0},
        {METRIC_TIER_HOST_EVICTED, state.evicted},
        {METRIC_TIER_HOST_CONNECTS, state.connects},
        {METRIC_TIER_HOST_BREAKS, state.breaks},
    };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        metrics[(int)values[i].metric + index] += values[i].value;
    for (int i = 0; i < NUM_FAILED; i++)
        metrics[METRIC_TIER_HOST_FAILED_OTHER_VERSION + index * NUM_FAILED + i] +=
            counts.failed[STORED_OTHER_VERSION + i];
}

static void count_tiers(struct core *core, uint64_t *metrics)
{
    for (int i = METRIC_TIER_HOST_BYTES; i <= METRIC_TIER_FILES_FAILED_CLOSED; i++)
        metrics[i] = 0;
    for (uint32_t i = 0; core->pool.has_tiers && i <= core->params.tiers.num_more; i++) {
        struct tier *tier = i ? core->params.tiers.more[i - 1] : core->params.tiers.host;
        count_tier(tier, core->tiers.load_ns[i], metrics, tier_index(tier, !i));
    }
}

uint64_t *core_metrics(struct core *core)
{
    uint64_t *metrics = core->ledger.metrics;
    metrics[METRIC_CACHES] = core->pool.num_caches;
    metrics[METRIC_OFFERS] = core->offers.num;
    metrics[METRIC_CACHES_LIMIT] = core->params.max_caches;
    metrics[METRIC_HOST_MEMORY] = core->pool.memory;
    metrics[METRIC_HOST_MEMORY_LIMIT] = core->params.max_memory;
    metrics[METRIC_POOL_BYTES] = core->pool.bytes;
    metrics[METRIC_POOL_LIMIT_BYTES] = core->pool.limit_bytes;
    metrics[METRIC_POOL_LIMIT_BLOCKS] = core->params.max_blocks;
    metrics[METRIC_ENDS_AWAKE] = core->delay.ends_awake;
    metrics[METRIC_ENDS_ASLEEP] = core->delay.ends_asleep;
    count_blocks(core, metrics);
    count_tiers(core, metrics);
    engine_metrics(core->ledger.engine, metrics + METRIC_ENGINE);
    return metrics;
}

void core_session_counts(const struct core_session *session, struct core_session_counts *out)
{
    *out = (struct core_session_counts){
        .blocks_held = session->num_blocks,
        .quota_blocks = session->quota_blocks,
        .batches = HASH_COUNT(session->batches),
        .tickets_unreaped = session->runs.num_unreaped,
        .runs_done = session->totals.runs_done,
        .tokens_attended = session->totals.tokens_attended,
        .gpu_ns = session->totals.gpu_ns,
        .lookup_tokens = session->totals.lookup_tokens,
        .hit_tokens = session->totals.hit_tokens,
    };
}

void core_session_limit(struct core_session *session, uint64_t blocks)
{
    session->quota_blocks = blocks;
    session->ledger->news = true; // a lease that waits may exceed it now
}

uint32_t core_num_tenants(const struct core *core)
{
    return HASH_COUNT(core->pool.tenants);
}

bool core_tenant_at(struct core *core, uint32_t index, struct core_tenant_view *out)
{
    struct tenant *tenant = core->pool.cursor.tenant;
    uint32_t at = core->pool.cursor.index;
    if (!tenant || index < at) {
        tenant = core->pool.tenants;
        at = 0;
    }
    for (; tenant && at < index; at++)
        tenant = tenant->hh.next;
    if (!tenant)
        return false;
    core->pool.cursor.tenant = tenant;
    core->pool.cursor.index = at;
    *out = (struct core_tenant_view){
        .tenant = tenant->id,
        .label = tenant->label,
        .limits = tenant->limits,
        .sessions = tenant->opens,
        .used = tenant->used,
        .pinned = tenant->pinned,
        .cached = tenant->cached,
        .used_bytes = tenant->used_bytes,
        .cached_bytes = tenant->cached_bytes,
        .evicted = tenant->evicted,
        .refused_no_blocks = tenant->refused_no_blocks,
        .refused_quota = tenant->refused_quota,
    };
    return true;
}

enum status core_tenant_limit(struct core *core, uint64_t id, const struct core_limits *limits,
                              struct error *error)
{
    struct tenant *tenant = core->pool.tenants;
    while (tenant && tenant->id != id)
        tenant = tenant->hh.next;
    if (!tenant)
        return error_set(error, STATUS_NOT_FOUND, "there is no tenant %" PRIu64, id);
    enum status status = limits_check(limits, tenant->label, error);
    if (status != STATUS_OK)
        return status;
    tenant_declare(tenant, limits);
    evict_trim(&core->pool);
    core->ledger.news = true;
    return STATUS_OK;
}

void core_count_refusal(struct core_session *session, enum status status)
{
    struct tenant *tenant = session->salt->tenant;
    bool full = status == STATUS_NO_BLOCKS;
    ++*(full ? &tenant->refused_no_blocks : &tenant->refused_quota);
    session->ledger->metrics[full ? METRIC_REFUSED_NO_BLOCKS : METRIC_REFUSED_QUOTA]++;
}

uint32_t core_num_caches(const struct core *core)
{
    return core->pool.num_caches;
}

static void view_cache(const struct cache *cache, struct core_cache_view *out)
{
    const struct core_cache_identity *identity = &cache->identity;
    *out = (struct core_cache_view){
        .cache = cache->id,
        .name = cache->name,
        .num_layers = identity->kv.block_bytes ? 0 : identity->num_layers,
        .kv = identity->kv,
        .chunk_blocks = cache->chunk_blocks,
        .num_chunks = cache->num_present,
        .open_sessions = cache->open_sessions,
        .published = cache->num_nodes - cache->num_pending,
        .pending = cache->num_pending,
        .fingerprint = identity->fingerprint,
        .fingerprint_size = identity->fingerprint_size,
    };
    count_cache(cache, NULL, &out->counts);
}

bool core_cache_at(const struct core *core, uint32_t index, struct core_cache_view *out)
{
    if (index >= core->pool.num_caches)
        return false;
    view_cache(core->pool.caches[index], out);
    return true;
}

bool core_cache_view(const struct core *core, uint64_t id, struct core_cache_view *out)
{
    struct cache *cache;
    if (cache_find(&core->pool, id, &cache, NULL) != STATUS_OK)
        return false;
    view_cache(cache, out);
    return true;
}

enum status core_cache_find(const struct core *core, uint64_t id, uint32_t *num_ids,
                            struct error *error)
{
    struct cache *cache;
    enum status status = cache_find(&core->pool, id, &cache, error);
    *num_ids = status == STATUS_OK ? (uint32_t)cache_num_ids(cache) : 0;
    return status;
}

// References to the block by batches and copies of all sessions. Most blocks have one user, so the
// search stops when it has met as many sessions as use the block.
static uint32_t count_batch_refs(const struct cache *cache, const struct block *block)
{
    uint32_t refs = 0, users = block->users;
    for (const struct hold_table *table = cache->tables; users && table; table = table->next) {
        const struct hold hold = hold_find(table, block->id);
        refs += hold.refs;
        users -= hold.holds || hold.refs;
    }
    return refs;
}

void core_block_at(const struct core *core, uint64_t id, uint32_t index,
                   struct core_block_view *out)
{
    struct cache *cache;
    const struct block *block = NULL;
    if (cache_find(&core->pool, id, &cache, NULL) == STATUS_OK)
        block = block_find(cache, index);
    *out = (struct core_block_view){.block = (int32_t)index, .state = CORE_ABSENT, .depth = -1};
    if (!block)
        return;
    out->state = block->state;
    out->holders = block->holders;
    out->batch_refs = count_batch_refs(cache, block);
    out->writer = block->writer;
    out->last_use = block_last_use(block);
    out->depth = block->node ? (int32_t)block->node->depth : -1;
}

static enum core_keep keep_of(const struct prefix_node *node)
{
    return prefix_keeps(node, CORE_KEEP_PINNED)      ? CORE_KEEP_PINNED
           : prefix_keeps(node, CORE_KEEP_PREFERRED) ? CORE_KEEP_PREFERRED
                                                     : CORE_KEEP_NORMAL;
}

bool core_prefix_at(const struct core *core, uint64_t id, uint32_t index,
                    struct core_prefix_view *out)
{
    struct cache *cache;
    const struct block *block = NULL;
    if (cache_find(&core->pool, id, &cache, NULL) == STATUS_OK)
        block = block_find(cache, index);
    if (!block || !block->node)
        return false;
    const struct prefix_node *node = block->node;
    const struct prefix_root *root = node->root;
    *out = (struct core_prefix_view){
        .tree = root->id,
        .tenant = root->salt->label,
        .tokens = node->tokens,
        .num_tokens = cache->identity.kv.block_size,
        .extra_key = root->key + sizeof root->salt->id,
        .extra_key_size = root->key_size - (uint32_t)sizeof root->salt->id,
        .block = block->id,
        .parent = node->parent && node->parent->block ? node->parent->block->id : -1,
        .depth = node->depth,
        .keep = keep_of(node),
        .state = block->state,
        .holders = block->holders,
        .visible = prefix_visible(node),
        .hits = node->hits,
        .age_ns = (uint64_t)(core->ledger.now_ns - node->attached_ns),
    };
    return true;
}

struct engine_cache *core_engine_cache(struct core *core, uint64_t id)
{
    struct cache *cache;
    return cache_find(&core->pool, id, &cache, NULL) == STATUS_OK ? cache->engine : NULL;
}
