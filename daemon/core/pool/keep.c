// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// keep.c - core_prefix_keep(): pins a cached prefix, prefers it, or lets it go the usual way. The
// pins of a tenant end with its --tenant-timeout, or by an operator. Knows the prefix index, not
// the order of eviction. Dispatcher thread only.

#include "base/clock.h"
#include "base/container_of.h"
#include "evict.h"
#include "lookup.h"
#include "pool.h"
#include "prefix.h"
#include "session.h"
#include "tenant.h"

#include <inttypes.h>

// Blocks that a pin would add.
struct pin_more {
    struct hold_more used; // to those that the tenant uses
    uint64_t pinned;       // to its pinned ones
};

// The deepest visible node of the prefix. NULL: its first block is not cached.
static struct prefix_node *deepest(const struct cache *cache, const struct prefix_root *root,
                                   const struct core_prefix *prefix, struct pin_more *more)
{
    struct prefix_walk walk = {.cache = cache,
                               .root = root,
                               .tokens = prefix->tokens,
                               .left = prefix->num_tokens / cache->identity.kv.block_size};
    struct prefix_node *node, *last = NULL;
    while ((node = prefix_walk_next(&walk)) && prefix_visible(node)) {
        more->used.tenant += node->block->charge == CHARGE_CACHED;
        more->pinned += !prefix_keeps(node, CORE_KEEP_PINNED);
        last = node;
    }
    return last;
}

static bool exceeds(uint64_t has, uint64_t more, double share, uint64_t total)
{
    return (double)has + (double)more > share * (double)total;
}

static enum status check_pins(const struct hold_table *table, const struct pin_more *more,
                              struct error *error)
{
    const struct pool *pool = table->cache->pool;
    const struct tenant *tenant = table->session->salt->tenant;
    const double share = pool->ledger->params->tenant_pinned;
    if (share && more->pinned &&
        (exceeds(tenant->pinned_bytes, more->pinned * table->cache->block_bytes, share,
                 pool->limit_bytes) ||
         (pool->limit_blocks != UINT64_MAX &&
          exceeds(tenant->pinned, more->pinned, share, pool->limit_blocks))))
        return error_set(
            error, STATUS_QUOTA,
            "%" PRIu64 " pinned blocks more would exceed tenant \"%.64s\"'s part of "
            "the pool (--tenant-pinned %g); it has %" PRIu64 " of %" PRIu64 " bytes pinned",
            more->pinned, tenant->label, share, tenant->pinned_bytes, pool->limit_bytes);
    return hold_check_quota(table->session, more->used, error);
}

enum status core_prefix_keep(struct core_session *session, uint64_t cache,
                             const struct core_prefix *prefix, enum core_keep keep,
                             uint32_t *num_tokens, struct error *error)
{
    struct hold_table *table;
    struct prefix_root *root;
    struct pin_more more = {0};
    *num_tokens = 0;
    enum status status = lookup_begin(session, cache, prefix, &table, error);
    if (status != STATUS_OK)
        return status;
    if ((unsigned)keep >= CORE_NUM_KEEPS)
        return error_set(error, STATUS_UNSUPPORTED, "a prefix cannot be kept in way %d", (int)keep);
    if (prefix_root_find(table->cache, session->salt, prefix, &root) != STATUS_OK)
        return error_set(error, STATUS_NO_MEMORY, "no host memory to look a prefix up");
    struct prefix_node *node = deepest(table->cache, root, prefix, &more);
    if (keep == CORE_KEEP_PINNED)
        status = check_pins(table, &more, error);
    if (status != STATUS_OK || !node)
        return status;
    prefix_set_keep(table->cache, node, keep);
    evict_trim(session->pool);
    *num_tokens = (node->depth + 1) * table->cache->identity.kv.block_size;
    return STATUS_OK;
}

// ---- ends of pins ----

uint32_t prefix_unpin_all(struct cache *cache, const struct tenant *tenant)
{
    uint32_t count = 0;
    for (struct prefix_root *root = cache->roots; root; root = root->hh.next) {
        if (tenant && root->salt->tenant != tenant)
            continue;
        for (struct prefix_node *node = root->children; node; node = node->next)
            count += prefix_unpin(cache, node);
    }
    return count;
}

int64_t tenants_wake_ns(const struct pool *pool)
{
    const struct heap_node *first = heap_first(&pool->away);
    return first ? (int64_t)first->key : FOREVER;
}

void tenants_expire(struct pool *pool, int64_t now_ns)
{
    while (tenants_wake_ns(pool) <= now_ns) {
        struct tenant *tenant = container_of(heap_first(&pool->away), struct tenant, away);
        heap_remove(&pool->away, &tenant->away);
        tenant->lapsed = true;
        for (uint32_t i = 0; tenant->pinned && i < pool->num_caches; i++)
            prefix_unpin_all(pool->caches[i], tenant);
        tenant_outdate(tenant);
        pool->ledger->news = true; // leases that wait may get what it kept
    }
}
