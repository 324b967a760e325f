// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tenant.c - see tenant.h. A tenant lives while a salt refers to it: sessions and the roots of the
// prefix index keep salts, so a tenant with blocks never ends.

#include "tenant.h"

#include "base/list.h"
#include "cache.h"
#include "pool.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// ---- the registry ----

static struct tenant *tenant_find(const struct pool *pool, const char *label)
{
    struct tenant *tenant;
    HASH_FIND(hh, pool->tenants, label, strlen(label), tenant);
    return tenant;
}

static struct tenant *tenant_create(struct pool *pool, const char *label)
{
    struct tenant *tenant = calloc(1, sizeof *tenant);
    if (!tenant)
        return NULL;
    tenant->pool = pool;
    tenant->label = strdup(label);
    tenant->limits = pool->ledger->params->tenant_limits;
    const size_t count = HASH_COUNT(pool->tenants) + (size_t)1;
    bool made =
        tenant->label && heap_reserve(&pool->ranks, count) && heap_reserve(&pool->away, count);
    if (made) {
        HASH_ADD_KEYPTR(hh, pool->tenants, tenant->label, strlen(tenant->label), tenant);
        made = HASH_ADDED(tenant);
    }
    if (!made) {
        free(tenant->label);
        free(tenant);
        return NULL;
    }
    tenant->id = ++pool->ledger->last_id;
    return tenant;
}

struct tenant *tenant_get(struct pool *pool, const char *label)
{
    struct tenant *tenant = tenant_find(pool, label);
    if (!tenant)
        tenant = tenant_create(pool, label);
    return tenant ? tenant_ref(tenant) : NULL;
}

struct tenant *tenant_ref(struct tenant *tenant)
{
    tenant->refs++;
    return tenant;
}

void tenant_unref(struct tenant *tenant)
{
    if (!tenant || --tenant->refs)
        return;
    while (tenant->accounts)
        account_finish(tenant->accounts);
    if (tenant->stale)
        LIST_DELETE_BY(tenant->pool->stale, tenant, prev_stale, next_stale);
    if (tenant->turn_is_old)
        LIST_DELETE_BY(tenant->pool->old_turns, tenant, prev_old, next_old);
    heap_remove(&tenant->pool->turns, &tenant->turn);
    heap_remove(&tenant->pool->away, &tenant->away);
    if (tenant->pool->cursor.tenant == tenant)
        tenant->pool->cursor.tenant = tenant->hh.next;
    else if (tenant->pool->cursor.tenant && tenant->id < tenant->pool->cursor.tenant->id)
        tenant->pool->cursor.index--;
    heap_remove(&tenant->pool->ranks, &tenant->rank);
    heap_finish(&tenant->turns.ready);
    HASH_DEL(tenant->pool->tenants, tenant);
    free(tenant->label);
    free(tenant);
}

void tenants_finish(struct pool *pool)
{
    struct tenant *tenant, *next;
    pool->cursor.tenant = NULL;
    HASH_ITER(hh, pool->tenants, tenant, next) {
        tenant_unref(tenant);
    }
    heap_finish(&pool->ranks);
    heap_finish(&pool->turns);
    heap_finish(&pool->away);
}

enum status limits_check(const struct core_limits *limits, const char *label, struct error *error)
{
    if (!limits->cached || limits->floor <= limits->cached)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "tenant \"%.64s\": floor %" PRIu64 " exceeds cached %" PRIu64, label,
                     limits->floor, limits->cached);
}

// Puts a node of the tenant into the heap or takes it out.
static void rank(struct heap *ranks, struct heap_node *node, const struct tenant *tenant, bool in)
{
    const uint64_t key = tenant_rank_key(tenant);
    if (in && node->place && node->key == key)
        return;
    heap_remove(ranks, node);
    if (in)
        heap_add_as(ranks, node, key, tenant->id);
}

void tenant_rank(struct tenant *tenant)
{
    bool idle = false;
    for (const struct account *account = tenant->accounts; account && !idle;
         account = account->next)
        idle = account->idle.size > 0;
    rank(&tenant->pool->ranks, &tenant->rank, tenant, idle && tenant_surplus(tenant));
}

void tenant_outdate(struct tenant *tenant)
{
    if (!tenant->stale)
        LIST_APPEND_BY(tenant->pool->stale, tenant, prev_stale, next_stale);
    tenant->stale = true;
}

void tenants_rank(struct pool *pool)
{
    struct tenant *tenant, *next;
    struct account *account;
    LIST_EACH_SAFE_BY(pool->stale, tenant, next, next_stale) {
        LIST_DELETE_BY(pool->stale, tenant, prev_stale, next_stale);
        tenant->stale = false;
        tenant_rank(tenant);
        LIST_EACH(tenant->accounts, account) {
            rank(&account->cache->ranks, &account->rank, tenant,
                 account->victims.size && tenant_surplus(tenant));
        }
    }
}

// Brings what depends on `cached` and the limits into line.
static void settle(struct tenant *tenant)
{
    struct pool *pool = tenant->pool;
    bool over = tenant->limits.cached && tenant->cached > tenant->limits.cached;
    tenant_outdate(tenant);
    if (over && !tenant->over)
        LIST_APPEND_BY(pool->over, tenant, prev_over, next_over);
    else if (!over && tenant->over)
        LIST_DELETE_BY(pool->over, tenant, prev_over, next_over);
    tenant->over = over;
}

void tenant_declare(struct tenant *tenant, const struct core_limits *limits)
{
    if (!tenant->declared)
        tenant_ref(tenant);
    tenant->declared = true;
    tenant->limits = *limits;
    settle(tenant);
}

uint64_t tenant_floor(const struct tenant *tenant)
{
    return tenant->lapsed ? 0 : tenant->limits.floor;
}

uint64_t tenant_surplus(const struct tenant *tenant)
{
    const uint64_t floor = tenant_floor(tenant);
    return tenant->cached > floor ? tenant->cached - floor : 0;
}

void tenant_enter(struct tenant *tenant)
{
    tenant->opens++;
    heap_remove(&tenant->pool->away, &tenant->away);
    if (tenant->lapsed)
        tenant_outdate(tenant);
    tenant->lapsed = false;
}

void tenant_leave(struct tenant *tenant)
{
    const struct ledger *ledger = tenant->pool->ledger;
    const int64_t timeout_ns = ledger->params->tenant_timeout_ns;
    if (--tenant->opens == 0 && timeout_ns)
        heap_add(&tenant->pool->away, &tenant->away, (uint64_t)(ledger->now_ns + timeout_ns));
}

enum status tenant_check(const struct tenant *tenant, uint64_t more, struct error *error)
{
    uint64_t limit = tenant->limits.blocks;
    if (!limit || !more || (tenant->used <= limit && more <= limit - tenant->used))
        return STATUS_OK;
    return error_set(error, STATUS_QUOTA,
                     "%" PRIu64 " blocks more would exceed the limit of %" PRIu64
                     " of tenant \"%.64s\" (blocks:N of --tenant); it uses %" PRIu64,
                     more, limit, tenant->label, tenant->used);
}

uint64_t core_tenant_part(double share, uint64_t total, uint64_t others)
{
    if (share <= 0 || share >= 1)
        return total;
    const uint64_t part = total > others ? (uint64_t)(share * (double)(total - others)) : 0;
    return part ? part : 1;
}

uint64_t tenant_part(const struct tenant *tenant, uint64_t total, uint64_t others)
{
    const double share = tenant->pool->ledger->params->tenant_share;
    return tenant->is_group ? core_tenant_part(share, total, others) : total;
}

static bool has_room(uint64_t limit, uint64_t has, uint64_t more)
{
    return has <= limit && more <= limit - has;
}

enum status tenant_check_memory(const struct tenant *tenant, uint64_t bytes, const char *what,
                                struct error *error)
{
    const struct pool *pool = tenant->pool;
    const uint64_t most = pool->ledger->params->max_memory,
                   part = tenant_part(tenant, most, pool->memory - tenant->memory);
    if (!most || (has_room(part, tenant->memory, bytes) && has_room(most, pool->memory, bytes)))
        return STATUS_OK;
    if (part == most || has_room(part, tenant->memory, bytes))
        return error_set(error, STATUS_LIMIT,
                         "%" PRIu64 " bytes of %s more would exceed the %" PRIu64
                         " bytes of all sessions (--max-host-memory)",
                         bytes, what, most);
    return error_set(error, STATUS_LIMIT,
                     "%" PRIu64 " bytes of %s more would exceed the part of tenant \"%.64s\" of "
                     "--max-host-memory %" PRIu64 " (--tenant-share); its sessions have %" PRIu64,
                     bytes, what, tenant->label, most, tenant->memory);
}

// ---- accounts ----

static struct account *account_find(const struct tenant *tenant, const struct cache *cache)
{
    struct account *account = tenant->accounts;
    while (account && account->cache != cache)
        account = account->next;
    return account;
}

struct account *account_get(struct tenant *tenant, struct cache *cache, uint64_t more)
{
    struct account *account = account_find(tenant, cache);
    if (!account) {
        account = heap_reserve(&cache->ranks, (size_t)cache->num_accounts + 1)
                      ? calloc(1, sizeof *account)
                      : NULL;
        if (!account)
            return NULL;
        cache->num_accounts++;
        account->tenant = tenant;
        account->cache = cache;
        LIST_APPEND(tenant->accounts, account);
        LIST_APPEND_BY(cache->accounts, account, prev_beside, next_beside);
    }
    return order_reserve(&account->victims, account->blocks + more) &&
                   order_reserve(&account->idle, cache->num_chunks)
               ? account
               : NULL;
}

// Chunks whose latest used block was of this account get another owner.
static void leave_chunks(struct account *account)
{
    const struct cache *cache = account->cache;
    for (uint32_t i = 0; i < cache->num_chunks; i++) {
        if (cache->chunks[i]->owner == account)
            chunk_disown(cache->chunks[i]);
    }
}

bool account_keeps(const struct account *account)
{
    return account->pinned || account->victims.size > tenant_surplus(account->tenant);
}

void account_finish(struct account *account)
{
    leave_chunks(account);
    LIST_DELETE(account->tenant->accounts, account);
    LIST_DELETE_BY(account->cache->accounts, account, prev_beside, next_beside);
    account->cache->num_accounts--;
    heap_remove(&account->cache->ranks, &account->rank);
    order_finish(&account->victims);
    order_finish(&account->idle);
    free(account);
}

void tenant_count_cached(struct account *account, int by)
{
    struct tenant *tenant = account->tenant;
    tenant->cached += (uint64_t)(int64_t)by;
    tenant->cached_bytes += (uint64_t)((int64_t)by * (int64_t)account->cache->block_bytes);
    settle(tenant);
}
