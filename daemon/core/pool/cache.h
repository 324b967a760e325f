// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// cache.h - one named KV cache: its identity, its chunks and blocks, the sums of their states, its
// part of the prefix index. Knows nothing of which session holds what.

#ifndef AULE_CORE_CACHE_H
#define AULE_CORE_CACHE_H

#include "base/hash.h"
#include "block.h"
#include "core/core.h"

enum { CORE_MAX_CACHE_NAME = 255, CORE_MIN_BLOCK_SIZE = 8, CORE_MAX_BLOCK_SIZE = 256 };

struct hold_table;
struct pool;
struct prefix_root;

struct cache {
    UT_hash_handle hh; // core->caches_by_name
    struct pool *pool;
    uint64_t id;
    struct core_cache_identity identity; // name and fingerprint point to the two fields below
    char *name;                          // owned
    uint8_t fingerprint[CORE_MAX_FINGERPRINT];
    struct engine_cache *engine; // owned

    uint64_t block_bytes;
    uint32_t chunk_blocks, chunk_shift; // blocks a chunk, and its log2
    uint64_t chunk_bytes;
    uint32_t layer_bytes; // of one block's written bits in one layer: block_size / 8

    struct chunk **chunks; // [num_chunks]; owned; entries stay when their memory goes
    uint32_t num_chunks, chunk_capacity, num_present, num_growing;
    struct heap usable;        // chunks with free blocks
    struct heap empty, absent; // chunks wholly free, chunks without memory
    struct heap leaves,
        inner; // cached blocks without and with children in the index, least recently used first
    uint64_t counts[CORE_ABSENT]; // blocks in each state; their sum is the cache's total

    struct prefix_root *roots; // by (salt, extra key)
    struct prefix_node *nodes; // by (parent, tokens)
    uint64_t num_nodes, num_pending;
    uint64_t seals; // ever done; a batch that saw this value knows that nothing was sealed since

    uint32_t open_sessions;
    struct hold_table *tables;
    uint32_t num_tables; // of sessions that have it open or still have work in flight on it; 0 =
                         // nobody uses it
    uint64_t last_use;   // core's use counter when the last session closed it
};

// What core's own arithmetic needs of a shape with blocks.
enum status cache_check_kv(const struct engine_kv *kv, struct error *error);
// STATUS_NOT_FOUND if no cache has this number.
enum status cache_find(const struct pool *pool, uint64_t id, struct cache **out,
                       struct error *error);
// Makes or finds the cache of this name; checks the identity in either case. A new one may be one
// more than --max-caches: who opens it then ends an unused one, of which there is one.
enum status cache_get(struct pool *pool, const struct core_cache_identity *identity,
                      struct cache **out, struct error *error);
void cache_destroy(struct cache *cache); // it has no tables; takes NULL
// The unused cache that was closed first, with what is cached in it; false: there is none.
bool cache_end_unused(struct pool *pool);
// Ends a cache that nobody uses and that keeps no cached block.
void cache_settle(struct cache *cache);
uint64_t cache_total(const struct cache *cache);
uint64_t cache_num_ids(const struct cache *cache);

// Asks the engine for one chunk more; the pool has room for it. STATUS_NO_MEMORY: the host has
// none, nothing has changed.
enum status cache_grow(struct cache *cache, struct error *error);
void cache_grown(struct cache *cache, uint32_t number,
                 const struct error *outcome); // ENGINE_EVENT_CHUNK
bool cache_shrink(
    struct cache *cache); // gives the highest wholly free chunk back; false: there is none
// Evicts at least one cached block, least recently used first, children before parents; false:
// nothing is cached.
bool cache_evict(struct cache *cache);

#endif
