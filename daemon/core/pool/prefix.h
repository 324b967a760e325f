// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// prefix.h - the prefix index of a cache: one tree of full blocks for each pair of salt and extra
// key. A child is looked up by (parent, tokens); the hash finds it, and equal token ids confirm it.
// Knows blocks, not sessions. Dispatcher thread only.

#ifndef AULE_CORE_PREFIX_H
#define AULE_CORE_PREFIX_H

#include "cache.h"
#include "salt.h"

struct prefix_key {
    uint64_t parent;  // id of the parent node, or of the root; never reused
    int32_t tokens[]; // [block_size]
};

struct prefix_node {
    UT_hash_handle hh;               // cache->nodes, by key
    uint64_t id;                     // from ledger->last_id
    struct prefix_root *root;        // of its tree
    struct prefix_node *parent;      // NULL: a child of the root
    struct prefix_node *children;    // a list through prev and next; owned
    struct prefix_node *prev, *next; // siblings
    struct block *block;             // sealed; K and V of these tokens behind their ancestors'
    struct claim_node *claim;        // the same chain in cache->claims; NULL: no claim has it
    uint32_t depth;                  // 0: a child of the root
    enum core_keep keep;             // of the prefix that ends with this node
    // Nodes with this `keep` among the node itself and those behind it. So a kept prefix keeps all
    // its blocks, and a block is never kept less than one that continues its prefix.
    uint32_t num_keeps[CORE_NUM_KEEPS];
    uint64_t hits;         // look-ups that found the block
    int64_t attached_ns;   // the ledger's time when it got the block
    struct prefix_key key; // ends with the tokens
};

struct prefix_root {
    UT_hash_handle hh;            // cache->roots, by key
    uint64_t id;                  // from ledger->last_id
    struct salt *salt;            // referenced
    struct prefix_node *children; // owned
    uint32_t claims;              // claims below it; a root without claims or children is freed
    uint32_t key_size;            // bytes
    uint8_t key[];                // the salt's id, then the extra key's bytes
};

// *out is NULL if there is no such root. OK or NO_MEMORY.
enum status prefix_root_find(const struct cache *cache, struct salt *salt,
                             const struct core_prefix *prefix, struct prefix_root **out);
// Finds or makes the root. NULL: no memory.
struct prefix_root *prefix_root_get(struct cache *cache, struct salt *salt,
                                    const struct core_prefix *prefix);
// Frees the root if it has neither children nor claims. Takes NULL.
void prefix_root_settle(struct cache *cache, struct prefix_root *root);

// The child of `parent` (NULL: of the root) for tokens[0 .. block_size). NULL: there is none.
struct prefix_node *prefix_find(const struct cache *cache, const struct prefix_root *root,
                                const struct prefix_node *parent, const int32_t *tokens);
// A new child without a block. NULL: no memory.
struct prefix_node *prefix_add(struct cache *cache, struct prefix_root *root,
                               struct prefix_node *parent, const int32_t *tokens);
void prefix_attach(struct cache *cache, struct prefix_node *node, struct block *block);
// Parts the node from its block, which may become free.
void prefix_detach(struct cache *cache, struct prefix_node *node);
// Takes the node and its descendants out of the index. Their blocks become free if no session holds
// them; sessions that hold them keep them.
void prefix_unlink(struct cache *cache, struct prefix_node *node);
// True: the prefix of a node at or behind this one is kept so.
bool prefix_keeps(const struct prefix_node *node, enum core_keep keep);
// Sets how the prefix that ends with this node is kept, and brings the blocks on its path in line.
void prefix_set_keep(struct cache *cache, struct prefix_node *node, enum core_keep keep);
// True: all writes to its block have ended, so look-ups may find it.
bool prefix_visible(const struct prefix_node *node);

#endif
