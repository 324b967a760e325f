// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// publish.c - core_prefix_lookup() and core_prefix_publish(). Both check and reserve everything
// first; what follows cannot fail. Knows holds and the prefix index, not what blocks contain.
// Dispatcher thread only.

#include "hold.h"
#include "ledger.h"
#include "pool.h"
#include "prefix.h"
#include "session.h"

#include <inttypes.h>
#include <stdlib.h>

static enum status check_prefix(const struct core_prefix *prefix, struct error *error)
{
    if (prefix->num_tokens > INT32_MAX)
        return error_set(error, STATUS_INVALID,
                         "a prefix of %" PRIu32 " tokens; at most %d are allowed",
                         prefix->num_tokens, INT32_MAX);
    return STATUS_OK;
}

static enum status begin(struct core_session *session, uint64_t cache,
                         const struct core_prefix *prefix, struct hold_table **table,
                         struct error *error)
{
    enum status status = session_usable(session, error);
    if (status == STATUS_OK)
        status = hold_table_find(session, cache, table, error);
    return status == STATUS_OK ? check_prefix(prefix, error) : status;
}

// Makes sure that hold_take() will succeed. Adds 1 to *fresh if the block would then count against
// the quota and does not yet.
static enum status prepare_hold(struct hold_table *table, const struct block *block,
                                uint64_t *fresh, struct error *error)
{
    if (!hold_reserve(table, block))
        return error_set(error, STATUS_NO_MEMORY, "no host memory to hold block %" PRId32,
                         block->id);
    const struct hold hold = hold_find(table, block->id);
    if (hold.holds == UINT32_MAX)
        return error_set(error, STATUS_LIMIT,
                         "block %" PRId32 " is held %" PRIu32
                         " times, which is the most; release it",
                         block->id, hold.holds);
    *fresh += !hold.holds && !hold.refs;
    return STATUS_OK;
}

// ---- look-up ----

struct hit {
    struct prefix_node *last; // the deepest node found; NULL = none
    uint32_t count;           // nodes found
    uint64_t fresh;           // of their blocks, those new to the quota
};

static enum status walk(struct hold_table *table, const struct prefix_root *root,
                        const int32_t *tokens, uint32_t blocks, struct hit *hit,
                        struct error *error)
{
    uint32_t block_size = table->cache->identity.kv.block_size;
    while (root && hit->count < blocks) {
        struct prefix_node *node =
            prefix_find(table->cache, root, hit->last, tokens + (size_t)hit->count * block_size);
        if (!node || !prefix_visible(node))
            break;
        enum status status = prepare_hold(table, node->block, &hit->fresh, error);
        if (status != STATUS_OK)
            return status;
        hit->last = node;
        hit->count++;
    }
    return hold_check_quota(table->session, hit->fresh, error);
}

static void count_lookup(struct core_session *session, uint32_t tokens, uint64_t hit)
{
    session->lookup_tokens += tokens;
    session->hit_tokens += hit;
    session->ledger->metrics[METRIC_LOOKUPS]++;
    session->ledger->metrics[METRIC_LOOKUP_TOKENS] += tokens;
    session->ledger->metrics[METRIC_HIT_TOKENS] += hit;
}

enum status core_prefix_lookup(struct core_session *session, uint64_t cache,
                               const struct core_prefix *prefix, uint32_t max_tokens,
                               int32_t *blocks, uint32_t *num_blocks, struct error *error)
{
    struct hold_table *table;
    struct prefix_root *root;
    struct hit hit = {0};
    *num_blocks = 0;
    enum status status = begin(session, cache, prefix, &table, error);
    if (status != STATUS_OK)
        return status;
    uint32_t tokens =
        max_tokens && max_tokens < prefix->num_tokens ? max_tokens : prefix->num_tokens;
    uint32_t block_size = table->cache->identity.kv.block_size;
    if (prefix_root_find(table->cache, session->salt, prefix, &root) != STATUS_OK)
        return error_set(error, STATUS_NO_MEMORY, "no host memory to look a prefix up");
    status = walk(table, root, prefix->tokens, tokens / block_size, &hit, error);
    if (status != STATUS_OK)
        return status;
    *num_blocks = hit.count;
    // Deepest first, so that an ancestor has a later last_use and is evicted after its descendants.
    for (struct prefix_node *node = hit.last; node; node = node->parent) {
        block_touch(table->cache, node->block);
        hold_take(table, node->block);
        blocks[node->depth] = node->block->id;
    }
    count_lookup(session, tokens, (uint64_t)hit.count * block_size);
    return STATUS_OK;
}

// ---- publish ----

struct publication {
    struct hold_table *table;
    struct cache *cache;
    const struct core_prefix *prefix;
    struct prefix_root *root;
    int32_t *blocks;
    uint32_t num_blocks;
    struct prefix_node **chain; // [num_blocks] nodes; owned
    uint32_t num_found;         // of these, nodes that existed before
};

static const int32_t *block_tokens(const struct publication *p, uint32_t index)
{
    return p->prefix->tokens + (size_t)index * p->cache->identity.kv.block_size;
}

static void find_chain(struct publication *p)
{
    for (uint32_t i = 0; p->root && i < p->num_blocks; i++) {
        p->chain[i] =
            prefix_find(p->cache, p->root, i ? p->chain[i - 1] : NULL, block_tokens(p, i));
        if (!p->chain[i])
            return;
        p->num_found = i + 1;
    }
}

static enum status check_written(const struct cache *cache, const struct block *block,
                                 uint32_t index, struct error *error)
{
    for (uint32_t layer = 0; layer < cache->identity.num_layers; layer++) {
        const uint8_t *bits = block_written(cache, block, layer);
        int written = 0;
        for (uint32_t i = 0; i < cache->layer_bytes; i++)
            written += __builtin_popcount(bits[i]);
        if ((uint32_t)written != cache->identity.kv.block_size)
            return error_set(error, STATUS_UNWRITTEN,
                             "blocks[%" PRIu32 "] = %" PRId32 " has %d of %" PRIu32
                             " slots written in layer %" PRIu32,
                             index, block->id, written, cache->identity.kv.block_size, layer);
    }
    return STATUS_OK;
}

static enum status check_given(const struct publication *p, uint32_t i, uint64_t stamp,
                               struct error *error)
{
    struct block *block;
    enum status status = hold_check(p->table, i, p->blocks[i], &block, error);
    if (status != STATUS_OK)
        return status;
    if (block->stamp == stamp)
        return error_set(error, STATUS_INVALID, "blocks[%" PRIu32 "] = %" PRId32 " occurs twice", i,
                         block->id);
    block->stamp = stamp;
    if (block->node && block->node == p->chain[i])
        return STATUS_OK;
    if (block->node)
        return error_set(error, STATUS_INVALID,
                         "blocks[%" PRIu32 "] = %" PRId32
                         " is published already, under other tokens at depth %" PRIu32,
                         i, block->id, block->node->depth);
    return check_written(p->cache, block, i, error);
}

// The existing block that replaces blocks[i]; NULL: blocks[i] stays. A block with unfinished writes
// replaces none: the writes may fail, and runs of this session could read before they end.
static struct block *exchange_for(const struct publication *p, uint32_t i)
{
    struct block *has = p->chain[i]->block;
    return has && has->id != p->blocks[i] && prefix_visible(p->chain[i]) ? has : NULL;
}

static enum status check_publication(struct publication *p, struct error *error)
{
    uint64_t stamp = ++p->cache->pool->ledger->last_stamp, fresh = 0;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < p->num_blocks; i++)
        status = check_given(p, i, stamp, error);
    for (uint32_t i = 0; status == STATUS_OK && i < p->num_found; i++) {
        const struct block *other = exchange_for(p, i);
        if (other)
            status = prepare_hold(p->table, other, &fresh, error);
    }
    return status == STATUS_OK ? hold_check_quota(p->table->session, fresh, error) : status;
}

static enum status extend_chain(struct publication *p, struct error *error)
{
    if (p->num_found == p->num_blocks)
        return STATUS_OK;
    if (!p->root)
        p->root = prefix_root_get(p->cache, p->table->session->salt, p->prefix);
    for (uint32_t i = p->num_found; p->root && i < p->num_blocks; i++) {
        p->chain[i] = prefix_add(p->cache, p->root, i ? p->chain[i - 1] : NULL, block_tokens(p, i));
        if (!p->chain[i])
            break;
    }
    if (p->root && p->chain[p->num_blocks - 1])
        return STATUS_OK;
    if (p->root && p->chain[p->num_found])
        prefix_unlink(p->cache, p->chain[p->num_found]);
    else if (p->root)
        prefix_root_settle(p->cache, p->root);
    return error_set(error, STATUS_NO_MEMORY, "no host memory to publish %" PRIu32 " blocks",
                     p->num_blocks);
}

static void seal(struct cache *cache, struct block *block)
{
    if (block->sealed)
        return;
    block->sealed = true;
    block->writer = 0;
    cache->seals++;
    block_settle(cache, block);
}

// True if blocks[i] became the existing block.
static bool publish_block(struct publication *p, uint32_t i)
{
    struct prefix_node *node = p->chain[i];
    struct block *given = block_find(p->cache, p->blocks[i]), *other = exchange_for(p, i);
    if (other) {
        block_touch(p->cache, other);
        hold_take(p->table, other);
        p->blocks[i] = other->id;
        return true;
    }
    // If two sessions publish the same tokens, the block whose writes end first stays in the index.
    // The other block is sealed as well, but look-ups do not find it.
    if (node->block && node->block != given && given->pending == 0)
        prefix_detach(p->cache, node);
    if (!node->block)
        prefix_attach(p->cache, node, given);
    seal(p->cache, given);
    block_touch(p->cache, given);
    return false;
}

static enum status check_count(const struct publication *p, struct error *error)
{
    uint32_t full = p->prefix->num_tokens / p->cache->identity.kv.block_size;
    if (p->num_blocks == full)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "%" PRIu32 " blocks given, but %" PRIu32 " tokens fill %" PRIu32
                     " blocks of %" PRIu32,
                     p->num_blocks, p->prefix->num_tokens, full, p->cache->identity.kv.block_size);
}

static enum status publish(struct publication *p, uint32_t *num_existing, struct error *error)
{
    struct core_session *session = p->table->session;
    if (prefix_root_find(p->cache, session->salt, p->prefix, &p->root) != STATUS_OK)
        return error_set(error, STATUS_NO_MEMORY, "no host memory to publish %" PRIu32 " blocks",
                         p->num_blocks);
    find_chain(p);
    enum status status = check_publication(p, error);
    if (status == STATUS_OK)
        status = extend_chain(p, error);
    if (status != STATUS_OK)
        return status;
    for (uint32_t i = p->num_blocks; i-- > 0;) // deepest first, as in core_prefix_lookup()
        *num_existing += publish_block(p, i);
    session->ledger->news = true;
    return STATUS_OK;
}

enum status core_prefix_publish(struct core_session *session, uint64_t cache,
                                const struct core_prefix *prefix, int32_t *blocks,
                                uint32_t num_blocks, uint32_t *num_existing, struct error *error)
{
    struct publication p = {.prefix = prefix, .blocks = blocks, .num_blocks = num_blocks};
    *num_existing = 0;
    enum status status = begin(session, cache, prefix, &p.table, error);
    if (status != STATUS_OK)
        return status;
    p.cache = p.table->cache;
    status = check_count(&p, error);
    if (status != STATUS_OK || num_blocks == 0)
        return status;
    p.chain = calloc(num_blocks, sizeof(struct prefix_node *));
    if (!p.chain)
        return error_set(error, STATUS_NO_MEMORY, "no host memory to publish %" PRIu32 " blocks",
                         num_blocks);
    status = publish(&p, num_existing, error);
    free(p.chain);
    return status;
}
