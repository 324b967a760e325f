// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// publish.c - core_prefix_publish(). It checks and reserves everything first; what follows cannot
// fail. Knows holds and the prefix index, not what blocks contain.
// Dispatcher thread only.

#include "claim.h"
#include "evict.h"
#include "hold.h"
#include "ledger.h"
#include "lookup.h"
#include "pool.h"
#include "prefix.h"
#include "session.h"

#include <inttypes.h>
#include <stdlib.h>

struct publication {
    struct hold_table *table;
    struct cache *cache;
    const struct core_prefix *prefix;
    struct prefix_root *root;
    struct prefix_node *parent; // of the first node of the chain; NULL: the root
    int32_t *blocks;
    uint32_t num_blocks;
    struct prefix_node **chain; // [num_blocks] nodes; owned
    uint32_t num_found;         // of these, nodes that existed before
};

static const int32_t *block_tokens(const struct publication *p, uint32_t index)
{
    return p->prefix->tokens + (size_t)index * p->cache->identity.kv.block_size;
}

static enum status find_parent(struct publication *p, struct error *error)
{
    int32_t id = p->prefix->parent;
    struct block *block;
    if (!p->prefix->has_parent)
        return STATUS_OK;
    if (hold_probe(p->table, id, &block) != STATUS_OK)
        return error_set(error, STATUS_NOT_HELD,
                         "the parent block %" PRId32 " is not held by this session", id);
    if (!block->node)
        return error_set(error, STATUS_NOT_FOUND,
                         "the parent block %" PRId32 " is not in the prefix index", id);
    if (block->node->root != p->root)
        return error_set(error, STATUS_INVALID,
                         "the parent block %" PRId32 " is published under another extra key", id);
    p->parent = block->node;
    return STATUS_OK;
}

static struct prefix_node *node_before(const struct publication *p, uint32_t i)
{
    return i ? p->chain[i - 1] : p->parent;
}

static void find_chain(struct publication *p)
{
    struct prefix_walk walk = {.cache = p->cache,
                               .root = p->root,
                               .last = p->parent,
                               .tokens = p->prefix->tokens,
                               .left = p->num_blocks};
    while ((p->chain[p->num_found] = prefix_walk_next(&walk)) && ++p->num_found < p->num_blocks)
        ;
}

static enum status check_written(const struct cache *cache, const struct block *block,
                                 uint32_t index, struct error *error)
{
    if (block->written_layers == cache->identity.num_layers)
        return STATUS_OK;
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

// Counts a block that the publication replaces, if its release takes it off the quotas. What an
// attached session releases lingers.
static void count_gone(const struct publication *p, int32_t id, struct hold_more *gone)
{
    const struct hold hold = hold_find(p->table, id);
    bool leaves = p->prefix->releases && hold.holds == 1 && !hold.refs && !p->table->attached;
    gone->session += leaves;
    gone->tenant += leaves && block_find(p->cache, id)->users == 1;
}

static uint64_t beyond(uint64_t more, uint64_t less)
{
    return more > less ? more - less : 0;
}

static enum status check_publication(struct publication *p, struct error *error)
{
    uint64_t stamp = ++p->cache->pool->ledger->last_stamp;
    struct hold_more fresh = {0}, gone = {0};
    enum status status = STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < p->num_blocks; i++)
        status = check_given(p, i, stamp, error);
    for (uint32_t i = 0; status == STATUS_OK && i < p->num_found; i++) {
        const struct block *other = exchange_for(p, i);
        if (other)
            status = hold_prepare(p->table, other, &fresh, error);
        if (other)
            count_gone(p, p->blocks[i], &gone);
    }
    if (status != STATUS_OK)
        return status;
    const struct hold_more more = {beyond(fresh.session, gone.session),
                                   beyond(fresh.tenant, gone.tenant)};
    return hold_check_quota(p->table->session, more, error);
}

static enum status extend_chain(struct publication *p, struct error *error)
{
    if (p->num_found == p->num_blocks)
        return STATUS_OK;
    if (!p->root)
        p->root = prefix_root_get(p->cache, p->table->session->salt, p->prefix);
    for (uint32_t i = p->num_found; p->root && i < p->num_blocks; i++) {
        p->chain[i] = prefix_add(p->cache, p->root, node_before(p, i), block_tokens(p, i));
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
        hold_take(p->table, other);
        block_touch(p->cache, other);
        if (p->prefix->releases)
            hold_drop(p->table, given);
        p->blocks[i] = other->id;
        claim_publish(p->cache, node, p->table->session);
        return true;
    }
    bool again = given->node == node;
    // If two sessions publish the same tokens, the block whose writes end first stays in the index.
    // The other block is sealed as well, but look-ups do not find it.
    if (node->block && node->block != given && given->pending == 0)
        prefix_detach(p->cache, node);
    if (!node->block)
        prefix_attach(p->cache, node, given);
    seal(p->cache, given);
    block_touch(p->cache, given);
    if (!again && node->block == given && prefix_visible(node))
        prefix_note_fresh(p->cache, node);
    if (!again) // else a claim that the session still has is one that waits
        claim_publish(p->cache, node, p->table->session);
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
    enum status status = find_parent(p, error);
    if (status != STATUS_OK)
        return status;
    find_chain(p);
    status = check_publication(p, error);
    if (status == STATUS_OK)
        status = extend_chain(p, error);
    if (status != STATUS_OK)
        return status;
    for (uint32_t i = p->num_blocks; i-- > 0;) // deepest first, as in lookup.c
        *num_existing += publish_block(p, i);
    evict_trim(session->pool);
    session->ledger->news = true;
    return STATUS_OK;
}

enum status core_prefix_publish(struct core_session *session, uint64_t cache,
                                const struct core_prefix *prefix, int32_t *blocks,
                                uint32_t num_blocks, uint32_t *num_existing, struct error *error)
{
    struct publication p = {.prefix = prefix, .blocks = blocks, .num_blocks = num_blocks};
    *num_existing = 0;
    enum status status = lookup_begin(session, cache, prefix, &p.table, error);
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
