// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// prefix.h - the prefix index of a cache: one tree of full blocks for each pair of salt and extra
// key. A node's hash covers the whole chain from its root on. So the hashes of a prompt follow from
// its tokens alone, and what a look-up will read can be prefetched for many blocks at once. The
// hash finds a child, and equal parents and token ids confirm it. Knows blocks, not sessions.
// Dispatcher thread only.

#ifndef AULE_CORE_PREFIX_H
#define AULE_CORE_PREFIX_H

#include "cache.h"
#include "salt.h"

#include <stdalign.h>
#include <stddef.h>

enum { PREFIX_FARTHER = 3 };

// Layout, in cache->node_stock: three parts, each on cache lines of its own. A look-up reads the
// third one, an eviction the second and third. Adjacent lines are fetched together.
//   at 0     names, ids and times, which few calls read
//   at 64    the links of the tree, and what keeps the node
//   at 128   what a look-up compares: hash, parent, block, tokens
struct prefix_node {
    struct stored_chain chain; // its name in tiers; unset while pool->has_tiers is not
    struct prefix_node *prev_fresh, *next_fresh; // cache->fresh, while is_fresh
    uint64_t id;                                 // from ledger->last_id
    int64_t attached_ns;                         // the ledger's time when it got the block

    alignas(64) struct prefix_node *prev; // siblings
    struct prefix_node *next;
    struct prefix_node *children; // a list through prev and next; owned
    struct claim_node *claim;     // the same chain in cache->claims; NULL: no claim has it
    struct prefix_root *root;     // of its tree
    // Nodes with this `keep` among the node itself and those behind it. So a kept prefix keeps all
    // its blocks, and a block is never kept less than one that continues its prefix.
    uint32_t num_keeps[CORE_NUM_KEEPS];
    enum core_keep keep; // of the prefix that ends with this node
    bool is_fresh;       // its block became visible and is not stored yet

    alignas(64) uint64_t hash;  // of the parent's hash and the tokens; in cache->nodes
    struct prefix_node *parent; // NULL: a child of the root
    struct prefix_node *farther[PREFIX_FARTHER]; // 2, 3 and 4 levels above; NULL: there is none
    struct block *block; // sealed; K and V of its tokens behind its ancestors'
    uint64_t hits;       // look-ups that found the block
    uint32_t depth;      // 0: a child of the root
    int32_t tokens[];    // [block_size]
};
_Static_assert(offsetof(struct prefix_node, tokens) < 192, "tokens begin in the third line");

struct prefix_root {
    UT_hash_handle hh;            // cache->roots, by key
    uint64_t id;                  // from ledger->last_id
    struct salt *salt;            // referenced
    struct prefix_node *children; // owned
    struct stored_chain chain;    // before its children's
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
// The hash of the chain that ends with tokens[0 .. block_size). `before`: the hash of the chain
// before; at the beginning of a prompt, the root's id.
uint64_t prefix_hash_next(const struct cache *cache, uint64_t before, const int32_t *tokens);
// prefix_find() for a chain whose hash is known.
struct prefix_node *prefix_find_hashed(const struct cache *cache, const struct prefix_root *root,
                                       const struct prefix_node *parent, const int32_t *tokens,
                                       uint64_t hash);
enum { PREFIX_AHEAD = 32 };
// Follows a prompt from its root on, block by block. Prefetches what it reads, and the blocks.
struct prefix_walk {
    const struct cache *cache;
    const struct prefix_root *root; // NULL: the index has nothing of the prompt
    struct prefix_node *last;       // the node before the next one; NULL: the root
    const int32_t *tokens;          // of the next block
    uint32_t left;                  // blocks, with the next one
    // Blocks so far: passed, hashed, whose nodes are known, and whose blocks are prefetched. The
    // last three are ahead of the first. Hashes and nodes lie at the block's number % PREFIX_AHEAD.
    uint32_t at, hashed, known, fetched;
    uint64_t hashes[PREFIX_AHEAD];
    struct prefix_node *nodes[PREFIX_AHEAD]; // that have the hashes; keys are not compared yet
};
// The node of the next block, visible or not. NULL: there is none.
struct prefix_node *prefix_walk_next(struct prefix_walk *walk);
// The node that will most likely be returned after `skipped` others, if its block is prefetched.
// NULL: it is not known.
const struct prefix_node *prefix_walk_peek(const struct prefix_walk *walk, uint32_t skipped);
// Prefetches what it takes to remove the node, which has a block.
void prefix_fetch_going(const struct cache *cache, const struct prefix_node *node);
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
// Unpins each prefix that this node is part of. Returns their number. Visits each node once.
uint32_t prefix_unpin(struct cache *cache, struct prefix_node *node);
// Unpins each prefix of the tenant; NULL: of all tenants. Returns their number. keep.c
uint32_t prefix_unpin_all(struct cache *cache, const struct tenant *tenant);
// True: all writes to its block have ended, so look-ups may find it.
bool prefix_visible(const struct prefix_node *node);
// The node got a block and is visible. With tiers the block is to be stored: it joins cache->fresh.
void prefix_note_fresh(struct cache *cache, struct prefix_node *node);
void prefix_forget_fresh(struct cache *cache, struct prefix_node *node);

#endif
