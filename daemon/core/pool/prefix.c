// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// prefix.c - see prefix.h. Roots and nodes are compared by their whole keys, so a hash collision
// costs time but never returns a wrong prefix. A root's key begins with the salt, and a node's hash
// follows from its root's id. A search may step over entries of other salts. It compares only their
// hashes and never reads their nodes.

#include "prefix.h"

#include "base/list.h"
#include "base/prefetch.h"
#include "claim.h"
#include "pool.h"
#include "tenant.h"

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
    fresh->chain = stored_chain_begin(prefix->extra_key, prefix->extra_key_size);
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

static size_t tokens_size(const struct cache *cache)
{
    return cache->identity.kv.block_size * sizeof(int32_t);
}

uint64_t prefix_hash_next(const struct cache *cache, uint64_t parent, const int32_t *tokens)
{
    struct {
        uint64_t parent;
        int32_t tokens[CORE_MAX_BLOCK_SIZE];
    } key;
    key.parent = parent;
    memcpy(key.tokens, tokens, tokens_size(cache));
    return ledger_hash64(cache->pool->ledger, &key, sizeof key.parent + tokens_size(cache));
}

static uint64_t parent_hash(const struct prefix_root *root, const struct prefix_node *parent)
{
    return parent ? parent->hash : root->id;
}

static bool is_child(const struct cache *cache, const struct prefix_node *node,
                     const struct prefix_root *root, const struct prefix_node *parent,
                     const int32_t *tokens)
{
    return node->parent == parent && (parent || node->root == root) &&
           !memcmp(node->tokens, tokens, tokens_size(cache));
}

struct prefix_node *prefix_find_hashed(const struct cache *cache, const struct prefix_root *root,
                                       const struct prefix_node *parent, const int32_t *tokens,
                                       uint64_t hash)
{
    struct node_search search = node_table_search(&cache->nodes, hash);
    struct prefix_node *node;
    do
        node = node_table_next(&cache->nodes, &search);
    while (node && !is_child(cache, node, root, parent, tokens));
    return node;
}

struct prefix_node *prefix_find(const struct cache *cache, const struct prefix_root *root,
                                const struct prefix_node *parent, const int32_t *tokens)
{
    return prefix_find_hashed(cache, root, parent, tokens,
                              prefix_hash_next(cache, parent_hash(root, parent), tokens));
}

// ---- walks ----

static void fetch_found(const struct cache *cache, const struct prefix_node *node)
{
    const char *end = (const char *)node->tokens + tokens_size(cache);
    for (const char *from = (const char *)&node->hash; from < end; from += 64)
        prefetch(from);
}

void prefix_fetch_going(const struct cache *cache, const struct prefix_node *node)
{
    for (int i = 0; i < PREFIX_FARTHER && node->farther[i]; i++) {
        prefetch(&node->farther[i]->prev);
        prefetch(&node->farther[i]->hash);
    }
    prefetch(node->block);
    prefetch(&node->block->stamp);
    node_table_fetch_run(&cache->nodes, node->hash);
}

static void hash_next(struct prefix_walk *walk)
{
    const struct cache *cache = walk->cache;
    const uint32_t ahead = walk->hashed - walk->at;
    const uint64_t before = ahead ? walk->hashes[(walk->hashed - 1) % PREFIX_AHEAD]
                                  : parent_hash(walk->root, walk->last);
    const uint64_t hash = prefix_hash_next(
        cache, before, walk->tokens + (size_t)ahead * cache->identity.kv.block_size);
    walk->hashes[walk->hashed++ % PREFIX_AHEAD] = hash;
    node_table_fetch(&cache->nodes, hash);
}

// False: no node has the hash, so what follows is not there, either.
static bool guess_next(struct prefix_walk *walk)
{
    const uint32_t place = walk->known % PREFIX_AHEAD;
    struct node_search search = node_table_search(&walk->cache->nodes, walk->hashes[place]);
    struct prefix_node *node = node_table_next(&walk->cache->nodes, &search);
    if (!node)
        return false;
    fetch_found(walk->cache, node);
    walk->nodes[place] = node;
    walk->known++;
    return true;
}

// Each step reads what the one before has prefetched some blocks ago.
static void look_ahead(struct prefix_walk *walk)
{
    enum { KNOWN_AHEAD = 20, FETCHED_AHEAD = 12 };
    while (walk->hashed - walk->at < PREFIX_AHEAD && walk->hashed - walk->at < walk->left)
        hash_next(walk);
    while (walk->known < walk->hashed && walk->known - walk->at < KNOWN_AHEAD && guess_next(walk))
        ;
    for (; walk->fetched < walk->known && walk->fetched - walk->at < FETCHED_AHEAD; walk->fetched++)
        prefetch(walk->nodes[walk->fetched % PREFIX_AHEAD]->block);
}

struct prefix_node *prefix_walk_next(struct prefix_walk *walk)
{
    if (!walk->root || !walk->left)
        return NULL;
    look_ahead(walk);
    const uint32_t place = walk->at % PREFIX_AHEAD;
    struct prefix_node *node = walk->known > walk->at ? walk->nodes[place] : NULL;
    if (node && !is_child(walk->cache, node, walk->root, walk->last, walk->tokens))
        node = prefix_find_hashed(walk->cache, walk->root, walk->last, walk->tokens,
                                  walk->hashes[place]);
    if (!node)
        return NULL;
    walk->at++;
    walk->left--;
    walk->tokens += walk->cache->identity.kv.block_size;
    walk->last = node;
    return node;
}

const struct prefix_node *prefix_walk_peek(const struct prefix_walk *walk, uint32_t skipped)
{
    const uint32_t number = walk->at + skipped;
    return number < walk->fetched ? walk->nodes[number % PREFIX_AHEAD] : NULL;
}

static void note_ancestors(struct prefix_node *node)
{
    const struct prefix_node *parent = node->parent;
    if (!parent)
        return;
    node->farther[0] = parent->parent;
    for (int i = 1; i < PREFIX_FARTHER; i++)
        node->farther[i] = parent->farther[i - 1];
}

struct prefix_node *prefix_add(struct cache *cache, struct prefix_root *root,
                               struct prefix_node *parent, const int32_t *tokens)
{
    struct prefix_node *node = stock_take(&cache->node_stock);
    if (!node)
        return NULL;
    *node =
        (struct prefix_node){.root = root,
                             .parent = parent,
                             .depth = parent ? parent->depth + 1 : 0,
                             .hash = prefix_hash_next(cache, parent_hash(root, parent), tokens)};
    note_ancestors(node);
    memcpy(node->tokens, tokens, tokens_size(cache));
    if (cache->pool->has_tiers)
        node->chain = stored_chain_next(parent ? &parent->chain : &root->chain, tokens,
                                        cache->identity.kv.block_size);
    if (!node_table_add(&cache->nodes, node->hash, node)) {
        stock_give(&cache->node_stock, node);
        return NULL;
    }
    node->id = ++cache->pool->ledger->last_id;
    LIST_PREPEND(*(parent ? &parent->children : &root->children), node);
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

// A pin begins or ceases to keep the block.
static void count_pinned(struct cache *cache, const struct prefix_node *node, int by)
{
    struct account *account = node->block->account;
    account->pinned += (uint64_t)(int64_t)by;
    account->tenant->pinned += (uint64_t)(int64_t)by;
    account->tenant->pinned_bytes += (uint64_t)((int64_t)by * (int64_t)cache->block_bytes);
}

static void count_keep(struct cache *cache, struct prefix_node *node, enum core_keep keep, int by)
{
    for (; node && keep != CORE_KEEP_NORMAL; node = node->parent) {
        const bool had = prefix_keeps(node, keep);
        node->num_keeps[keep] += (uint32_t)by;
        if (keep == CORE_KEEP_PINNED && had != prefix_keeps(node, keep))
            count_pinned(cache, node, by);
    }
}

void prefix_set_keep(struct cache *cache, struct prefix_node *node, enum core_keep keep)
{
    count_keep(cache, node, node->keep, -1);
    count_keep(cache, node, keep, 1);
    node->keep = keep;
    for (; node; node = node->parent) {
        block_settle(cache, node->block);
        block_resort(cache, node->block);
    }
}

// The first of the siblings from `node` on that a pin keeps. NULL: there is none.
static struct prefix_node *next_pinned(struct prefix_node *node)
{
    while (node && !prefix_keeps(node, CORE_KEEP_PINNED))
        node = node->next;
    return node;
}

// Down to a node that has a pin, and none behind it.
static struct prefix_node *last_pinned(struct prefix_node *node)
{
    struct prefix_node *child;
    while ((child = next_pinned(node->children)))
        node = child;
    return node;
}

static void drop_pins(struct cache *cache, struct prefix_node *node, uint32_t count)
{
    cache->pool->ledger->looks++;
    node->num_keeps[CORE_KEEP_PINNED] -= count;
    if (!prefix_keeps(node, CORE_KEEP_PINNED))
        count_pinned(cache, node, -1);
    block_settle(cache, node->block);
    block_resort(cache, node->block);
}

// Deepest first, as when a prefix is published; each node once, however many pins it has.
uint32_t prefix_unpin(struct cache *cache, struct prefix_node *node)
{
    const uint32_t count = node->num_keeps[CORE_KEEP_PINNED];
    struct prefix_node *next, *at = count ? last_pinned(node) : NULL;
    for (; at; at = next) {
        struct prefix_node *beside = at == node ? NULL : next_pinned(at->next);
        next = beside ? last_pinned(beside) : at == node ? NULL : at->parent;
        if (at->keep == CORE_KEEP_PINNED)
            at->keep = CORE_KEEP_NORMAL;
        drop_pins(cache, at, at->num_keeps[CORE_KEEP_PINNED]);
    }
    for (at = count ? node->parent : NULL; at; at = at->parent)
        drop_pins(cache, at, count);
    return count;
}

// Removes a node without children. Also removes its root if the root has no other child.
static void node_remove(struct cache *cache, struct prefix_node *node)
{
    struct prefix_node *parent = node->parent;
    struct prefix_root *root = node->root;
    if (node->keep)
        prefix_set_keep(cache, node, CORE_KEEP_NORMAL);
    claim_part(cache, node);
    if (node->is_fresh)
        cache->pool->ledger->metrics[METRIC_TIER_SKIPPED]++;
    prefix_forget_fresh(cache, node);
    prefix_detach(cache, node);
    node_table_remove(&cache->nodes, node->hash, node);
    LIST_DELETE(*(parent ? &parent->children : &root->children), node);
    stock_give(&cache->node_stock, node);
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

void prefix_note_fresh(struct cache *cache, struct prefix_node *node)
{
    if (!cache->pool->has_tiers || node->is_fresh)
        return;
    LIST_APPEND_BY(cache->fresh, node, prev_fresh, next_fresh);
    node->is_fresh = true;
}

void prefix_forget_fresh(struct cache *cache, struct prefix_node *node)
{
    if (!node->is_fresh)
        return;
    LIST_DELETE_BY(cache->fresh, node, prev_fresh, next_fresh);
    node->is_fresh = false;
}
