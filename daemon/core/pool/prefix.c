// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// prefix.c - see prefix.h. The tables of roots and nodes compare whole keys, so a hash collision
// costs time but never returns a wrong prefix.

#include "prefix.h"

#include "claim.h"
#include "pool.h"

#include <stdlib.h>
#include <string.h>

static unsigned prefix_hash(const struct cache *cache, const void *key, size_t size)
{
    return ledger_hash(cache->pool->ledger, key, size);
}

// ---- roots ----

static struct prefix_root *root_create(struct salt *salt, const struct core_prefix *prefix)
{
    struct prefix_root *root = calloc(1, sizeof *root + sizeof salt->id + prefix->extra_key_size);
    if (!root)
        return NULL;
    root->key_size = (uint32_t)sizeof salt->id + prefix->extra_key_size;
    memcpy(root->key, &salt->id, sizeof salt->id);
    if (prefix->extra_key_size)
        memcpy(root->key + sizeof salt->id, prefix->extra_key, prefix->extra_key_size);
    root->salt = salt;
    return root;
}

enum status prefix_root_find(const struct cache *cache, struct salt *salt,
                             const struct core_prefix *prefix, struct prefix_root **out)
{
    struct prefix_root *wanted = root_create(salt, prefix);
    *out = NULL;
    if (!wanted)
        return STATUS_NO_MEMORY;
    unsigned hash = prefix_hash(cache, wanted->key, wanted->key_size);
    HASH_FIND_BYHASHVALUE(hh, cache->roots, wanted->key, wanted->key_size, hash, *out);
    free(wanted);
    return STATUS_OK;
}

struct prefix_root *prefix_root_get(struct cache *cache, struct salt *salt,
                                    const struct core_prefix *prefix)
{
    struct prefix_root *root = NULL, *fresh;
    if (prefix_root_find(cache, salt, prefix, &root) != STATUS_OK || root)
        return root;
    fresh = root_create(salt, prefix);
    if (!fresh)
        return NULL;
    unsigned hash = prefix_hash(cache, fresh->key, fresh->key_size);
    HASH_ADD_KEYPTR_BYHASHVALUE(hh, cache->roots, fresh->key, fresh->key_size, hash, fresh);
    if (!HASH_ADDED(fresh)) {
        free(fresh);
        return NULL;
    }
    fresh->id = ++cache->pool->ledger->last_id;
    salt_ref(salt);
    return fresh;
}

void prefix_root_settle(struct cache *cache, struct prefix_root *root)
{
    if (!root || root->children || root->claims)
        return;
    HASH_DEL(cache->roots, root);
    salt_unref(root->salt);
    free(root);
}

// ---- nodes ----

static unsigned key_size(const struct cache *cache)
{
    return (unsigned)(sizeof(struct prefix_key) + cache->identity.kv.block_size * sizeof(int32_t));
}

struct prefix_node *prefix_find(const struct cache *cache, const struct prefix_root *root,
                                const struct prefix_node *parent, const int32_t *tokens)
{
    struct {
        uint64_t parent;
        int32_t tokens[CORE_MAX_BLOCK_SIZE];
    } key;
    struct prefix_node *node;
    key.parent = parent ? parent->id : root->id;
    memcpy(key.tokens, tokens, cache->identity.kv.block_size * sizeof *tokens);
    unsigned hash = prefix_hash(cache, &key, key_size(cache));
    HASH_FIND_BYHASHVALUE(hh, cache->nodes, &key, key_size(cache), hash, node);
    return node;
}

struct prefix_node *prefix_add(struct cache *cache, struct prefix_root *root,
                               struct prefix_node *parent, const int32_t *tokens)
{
    struct prefix_node *node =
        calloc(1, sizeof *node + cache->identity.kv.block_size * sizeof *tokens);
    if (!node)
        return NULL;
    *node = (struct prefix_node){
        .root = root, .parent = parent, .depth = parent ? parent->depth + 1 : 0};
    node->key.parent = parent ? parent->id : root->id;
    memcpy(node->key.tokens, tokens, cache->identity.kv.block_size * sizeof *tokens);
    unsigned hash = prefix_hash(cache, &node->key, key_size(cache));
    HASH_ADD_KEYPTR_BYHASHVALUE(hh, cache->nodes, &node->key, key_size(cache), hash, node);
    if (!HASH_ADDED(node)) {
        free(node);
        return NULL;
    }
    node->id = ++cache->pool->ledger->last_id;
    DL_PREPEND(*(parent ? &parent->children : &root->children), node);
    if (parent && parent->block && !node->next) // its first child
        block_resort(cache, parent->block);
    claim_meet(cache, node);
    return node;
}

void prefix_attach(struct cache *cache, struct prefix_node *node, struct block *block)
{
    node->block = block;
    node->attached_ns = cache->pool->ledger->now_ns;
    block->node = node;
    cache->num_nodes++;
    if (block->pending)
        cache->num_pending++;
}

void prefix_detach(struct cache *cache, struct prefix_node *node)
{
    struct block *block = node->block;
    if (!block)
        return;
    node->block = NULL;
    block->node = NULL;
    cache->num_nodes--;
    if (block->pending)
        cache->num_pending--;
    block_settle(cache, block);
}

bool prefix_keeps(const struct prefix_node *node, enum core_keep keep)
{
    return node->num_keeps[keep] > 0;
}

static void count_keep(struct prefix_node *node, enum core_keep keep, uint32_t by)
{
    for (; node && keep != CORE_KEEP_NORMAL; node = node->parent)
        node->num_keeps[keep] += by;
}

void prefix_set_keep(struct cache *cache, struct prefix_node *node, enum core_keep keep)
{
    count_keep(node, node->keep, UINT32_MAX); // adding UINT32_MAX subtracts 1
    count_keep(node, keep, 1);
    node->keep = keep;
    for (; node; node = node->parent) {
        block_settle(cache, node->block);
        block_resort(cache, node->block);
    }
}

// Removes a node without children. Also removes its root if the root has no other child.
static void node_remove(struct cache *cache, struct prefix_node *node)
{
    struct prefix_node *parent = node->parent;
    struct prefix_root *root = node->root;
    if (node->keep)
        prefix_set_keep(cache, node, CORE_KEEP_NORMAL);
    claim_part(cache, node);
    prefix_detach(cache, node);
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the node is in the table
    HASH_DEL(cache->nodes, node);
    DL_DELETE(*(parent ? &parent->children : &root->children), node);
    free(node);
    if (parent && parent->block && !parent->children)
        block_resort(cache, parent->block);
    if (!parent)
        prefix_root_settle(cache, root);
}

void prefix_unlink(struct cache *cache, struct prefix_node *node)
{
    bool done = false;
    // Deepest first, without recursion: a chain may be deeper than the thread's stack allows.
    for (struct prefix_node *at = node; !done;) {
        while (at->children)
            at = at->children;
        struct prefix_node *parent = at->parent;
        done = at == node;
        node_remove(cache, at);
        at = parent;
    }
}

bool prefix_visible(const struct prefix_node *node)
{
    return node->block->pending == 0;
}
