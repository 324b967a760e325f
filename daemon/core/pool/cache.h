// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// cache.h - one named KV cache: its identity, its chunks and blocks, the sums of their states, and
// its prefix index. Knows how many sessions use it, not which blocks each one holds. Dispatcher
// thread only.

#ifndef AULE_CORE_CACHE_H
#define AULE_CORE_CACHE_H

#include "block.h"
#include "core/core.h"
#include "node_table.h"
#include "number_set.h"
#include "stock.h"

enum { CORE_MAX_CACHE_NAME = 255, CORE_MIN_BLOCK_SIZE = 8, CORE_MAX_BLOCK_SIZE = 256 };

struct account;
struct hold_table;
struct pool;
struct prefix_root;
struct tenant;

struct cache {
    struct pool *pool;
    uint64_t id;                         // from ledger->last_id
    struct core_cache_identity identity; // name and fingerprint point to the two fields below
    char *name;                          // owned
    uint8_t fingerprint[CORE_MAX_FINGERPRINT];
    struct engine_cache *engine; // owned

    uint64_t block_bytes;               // K and V of one block, all layers
    uint32_t chunk_blocks, chunk_shift; // blocks a chunk, a power of two; its log2
    uint64_t chunk_bytes;               // block_bytes * chunk_blocks
    uint32_t layer_bytes; // bytes of a block's written bits in a layer: block_size / 8

    struct chunk **chunks; // [num_chunks]; owned; entries stay when their memory goes
    uint32_t num_chunks, chunk_capacity, num_present, num_growing;
    uint32_t num_ahead;       // of num_growing, those that began ahead of need
    struct number_set usable; // chunks with free blocks; the lowest one is used first
    struct number_set empty;  // chunks whose blocks are all free; the highest one goes first
    struct number_set absent; // chunks without memory; the lowest one grows first
    struct account *accounts; // one for each tenant with blocks here; owned
    uint32_t num_accounts;    // in `accounts`
    struct heap ranks; // accounts with victims whose tenants are above their floors, the tenant
                       // with the most cached bytes first; in line after tenants_rank()
    uint64_t counts[CORE_ABSENT]; // blocks in each state; their sum is cache_total()

    struct prefix_root *roots; // by (salt, extra key)
    struct prefix_node *fresh; // nodes whose blocks tiers shall store, oldest first; prefix.h
    uint8_t name_in_tiers[STORED_ID_BYTES]; // stored_space.fingerprint
    bool too_large;                         // for tiers: the log has been told
    struct node_table nodes;                // of the trees below the roots
    struct stock node_stock;                // of these nodes
    struct stock block_stock;               // of the chunks' blocks and what lies behind them
    struct node_table claims;               // nodes of the trees of claims; claim.h
    struct stock claim_stock;               // of these nodes
    uint64_t num_nodes;                     // nodes with a block
    uint64_t num_pending; // of these, nodes whose block has writes that are not over
    uint64_t seals;       // blocks sealed and offers made so far; while it stays the same, no
                          // session lost the right to write a block

    uint32_t open_sessions;    // sessions that have it open
    struct hold_table *tables; // a list of num_tables
    uint32_t num_tables;       // sessions that have it open or work in flight on it; 0 = unused
    uint64_t last_use;         // ledger->last_use when a session last closed it
};

// Checks what core's own arithmetic needs of a shape with blocks.
enum status cache_check_kv(const struct engine_kv *kv, struct error *error);
// NOT_FOUND if no cache has this id.
enum status cache_find(const struct pool *pool, uint64_t id, struct cache **out,
                       struct error *error);
// Finds the cache of this name and identity or makes it. Names are a tenant's own: MISMATCH if the
// tenant has another identity under this name, open or with blocks; those of other tenants do not
// matter. Tenants share a cache of one name and identity, which keeps their prefixes apart. A new
// cache may be one more than --max-caches if an unused one exists; then the caller must call
// cache_end_unused(). LIMIT: that, or the tenant's part of it.
enum status cache_get(struct pool *pool, const struct tenant *tenant,
                      const struct core_cache_identity *identity, struct cache **out,
                      struct error *error);
void cache_destroy(struct cache *cache); // it is unused; takes NULL
// Ends the cache that has been unused the longest; its cached blocks are lost. False: there is
// none, or each one has pinned blocks or blocks below a tenant's floor.
bool cache_end_unused(struct pool *pool);
// Ends the cache if it is unused and has no cached block.
void cache_settle(struct cache *cache);
uint64_t cache_evictable(const struct cache *cache); // cached blocks that are not pinned
uint64_t cache_total(const struct cache *cache);     // blocks in chunks that are present
uint64_t cache_num_ids(const struct cache *cache);   // ids run from 0 to this - 1

// Asks the engine for one chunk more; the pool has room for it. `ahead`: no lease needs it yet; a
// refusal does not stop leases from asking. NO_MEMORY: the host has none, and nothing has changed.
enum status cache_grow(struct cache *cache, bool ahead, struct error *error);
// The engine's answer, ENGINE_EVENT_CHUNK: chunk `number` is present, or could not be made.
void cache_grown(struct cache *cache, uint32_t number, const struct error *outcome);
// Gives back the highest chunk whose blocks are all free. False: there is none.
bool cache_shrink(struct cache *cache);
// Gives back this chunk, whose blocks are all free.
void cache_give_back(struct cache *cache, struct chunk *chunk);

#endif
