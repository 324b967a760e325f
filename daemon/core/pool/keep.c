// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// keep.c - core_prefix_keep(): pins a cached prefix, prefers it, or lets it go the usual way. Knows
// the prefix index, not the order of eviction. Dispatcher thread only.

#include "evict.h"
#include "lookup.h"
#include "prefix.h"
#include "session.h"

// The deepest visible node of the prefix. NULL: its first block is not cached. Counts the blocks
// that a pin would add to those that the tenant uses.
static struct prefix_node *deepest(const struct cache *cache, const struct prefix_root *root,
                                   const struct core_prefix *prefix, struct hold_more *fresh)
{
    struct prefix_walk walk = {.cache = cache,
                               .root = root,
                               .tokens = prefix->tokens,
                               .left = prefix->num_tokens / cache->identity.kv.block_size};
    struct prefix_node *node, *last = NULL;
    while ((node = prefix_walk_next(&walk)) && prefix_visible(node)) {
        fresh->tenant += node->block->charge == CHARGE_CACHED;
        last = node;
    }
    return last;
}

enum status core_prefix_keep(struct core_session *session, uint64_t cache,
                             const struct core_prefix *prefix, enum core_keep keep,
                             uint32_t *num_tokens, struct error *error)
{
    struct hold_table *table;
    struct prefix_root *root;
    struct hold_more fresh = {0};
    *num_tokens = 0;
    enum status status = lookup_begin(session, cache, prefix, &table, error);
    if (status != STATUS_OK)
        return status;
    if ((unsigned)keep >= CORE_NUM_KEEPS)
        return error_set(error, STATUS_UNSUPPORTED, "a prefix cannot be kept in way %d", (int)keep);
    if (prefix_root_find(table->cache, session->salt, prefix, &root) != STATUS_OK)
        return error_set(error, STATUS_NO_MEMORY, "no host memory to look a prefix up");
    struct prefix_node *node = deepest(table->cache, root, prefix, &fresh);
    if (keep == CORE_KEEP_PINNED)
        status = hold_check_quota(session, fresh, error);
    if (status != STATUS_OK || !node)
        return status;
    prefix_set_keep(table->cache, node, keep);
    evict_trim(session->pool);
    *num_tokens = (node->depth + 1) * table->cache->identity.kv.block_size;
    return STATUS_OK;
}
