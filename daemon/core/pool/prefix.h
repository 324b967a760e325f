// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// prefix.h - the prefix index of a cache: a tree of full blocks under roots of (salt, extra key). A
// child is found by a hash of (parent, tokens) and counts only if the token ids are equal. Knows
// blocks, not sessions.

#ifndef AULE_CORE_PREFIX_H
#define AULE_CORE_PREFIX_H

#include "cache.h"
#include "salt.h"

struct prefix_key {
    uint64_t parent; // id of the root or node above; never reused
    int32_t tokens[];
};

struct prefix_node {
    UT_hash_handle hh; // cache->nodes, by key
    uint64_t id;
    struct prefix_root *root;
    struct prefix_node *parent; // NULL: below the root
    struct prefix_node *children, *prev, *next;
    struct block *block; // sealed; its contents are this chain's
    uint32_t depth;      // 0 below the root
    struct prefix_key key;
};

struct prefix_root {
    UT_hash_handle hh; // cache->roots, by key
    uint64_t id;
    struct salt *salt; // referenced
    struct prefix_node *children;
    uint32_t key_size;
    uint8_t key[]; // salt id, then the extra key's bytes
};

// *out = NULL if there is none. STATUS_NO_MEMORY.
enum status prefix_root_find(const struct cache *cache, struct salt *salt,
                             const struct core_prefix *prefix, struct prefix_root **out);
// Finds or makes; NULL: no memory.
struct prefix_root *prefix_root_get(struct cache *cache, struct salt *salt,
                                    const struct core_prefix *prefix);
void prefix_root_settle(struct cache *cache,
                        struct prefix_root *root); // ends one without children; takes NULL

// The child of `parent` (NULL: of the root) under block_size tokens; NULL: there is none.
struct prefix_node *prefix_find(const struct cache *cache, const struct prefix_root *root,
                                const struct prefix_node *parent, const int32_t *tokens);
// A new child without a block; NULL: no memory.
struct prefix_node *prefix_add(struct cache *cache, struct prefix_root *root,
                               struct prefix_node *parent, const int32_t *tokens);
void prefix_attach(struct cache *cache, struct prefix_node *node, struct block *block);
void prefix_detach(struct cache *cache,
                   struct prefix_node *node); // from its block, which may become free
// Takes the node and all below it out of the index. Blocks that nobody holds become free; the
// others stay with their holders.
void prefix_unlink(struct cache *cache, struct prefix_node *node);
bool prefix_visible(const struct prefix_node *node); // its last write has passed

#endif
