// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pool.h - the memory that all caches together may have, in bytes and blocks. It decides which
// cache gives some back when another needs it. Counts chunks; knows nothing of single blocks.
// Dispatcher thread only.

#ifndef AULE_CORE_POOL_H
#define AULE_CORE_POOL_H

#include "core/turns/heap.h"
#include "ledger.h"

struct block;
struct cache;
struct hold_table;
struct tenant;

struct pool {
    uint64_t limit_bytes, limit_blocks; // limit_blocks UINT64_MAX: only bytes limit the pool
    // --export-pool: each cache has one chunk of so many blocks, from its beginning to its end, and
    // processes can import it. 0 = caches grow and shrink.
    uint32_t fixed_blocks;
    uint64_t bytes, blocks;  // of all chunks that are present or growing
    uint64_t refused_bytes;  // size of the last chunk that the device had no memory for; 0 = none
    uint32_t refused_wishes; // leases that needed memory since then
    bool refused_ahead;      // the device refused a chunk, so no cache grows ahead of need now
    uint64_t num_arrived;    // chunks that the device has made so far

    struct ledger *ledger; // core's
    bool has_tiers;        // blocks are also kept outside the GPU: tiers.h
    struct cache **caches; // [num_caches], in order of creation; owned
    uint32_t num_caches, cache_capacity;

    uint64_t memory; // bytes of all sessions: core_session.memory.all

    struct tenant *tenants; // by label
    struct heap ranks;      // tenants with cached blocks above their floors, and chunks that could
                            // be emptied: the most bytes first; in line after tenants_rank()
    struct tenant *stale;   // tenants that tenants_rank() will look at
    struct {
        struct tenant *tenant;        // NULL: begin anew
        uint32_t index;               // of this tenant
    } cursor;                         // of core_tenant_at()
    struct heap turns;                // tenants with leases that wait (queue.c)
    struct tenant *old_turns;         // of these, those whose keys in the heaps are old
    struct tenant *stuck;             // of these, those whose leases need no turn
    struct queue_cache *queue_caches; // caches in which leases wait, by id
    uint64_t last_age, round;         // numbers given to waiting leases: age; tried
    bool granted;                     // one of them was granted in this round
    struct heap away;                 // tenants without sessions: tenants_expire()
    struct tenant *over;              // tenants above their cap: evict_trim() evicts

    struct heap due;     // claims that are not late (claim.h)
    uint32_t num_claims; // of all tables

    struct engine_zero *zeroes; // [num_zeroes] blocks to zero before the next run (zeroes.h); owned
    struct block **zero_blocks; // [num_zeroes] the same blocks; owned
    uint32_t num_zeroes, zero_capacity;
    uint64_t zeroes_submitted, zeroes_ended; // submissions that zero blocks, so far; in this order
};

// Blocks a chunk for a new cache: POOL_CHUNK_BLOCKS, or fewer so that the pool has several chunks.
// 0 with *error: not even one block fits.
uint32_t pool_chunk_blocks(const struct pool *pool, const struct engine_cache_params *params,
                           struct error *error);
// Blocks that this cache could have if no other cache had any.
uint64_t pool_limit(const struct cache *cache);
// Blocks that a lease of `asking` could get: free and cached ones, and those of chunks that could
// still grow. NULL: a lease of a tenant that has nothing cached.
uint64_t pool_available(const struct cache *cache, const struct tenant *asking);

void pool_take(struct pool *pool, const struct cache *cache);      // counts one chunk more
void pool_give_back(struct pool *pool, const struct cache *cache); // counts one chunk less
// The device had no memory for a chunk that pool_take() had counted. `ahead`: as in cache_grow().
void pool_refused(struct pool *pool, const struct cache *cache, bool ahead);
void pool_ask_again(struct pool *pool); // the device may have memory again

// Makes the memory of a new cache if the pool is fixed. LIMIT: the pool has no room for it.
enum status pool_fill(struct cache *cache, struct error *error);
// Call this when a cache was opened, and after each lease. It begins to grow the cache if it has
// too few spare blocks and the pool has room. Takes nothing from other caches, evicts nothing.
// Without host memory, or while leases wait, it does nothing.
void pool_keep_spare(struct cache *cache);
// Whether chunks that the cache could get are on their way: its own, or those of another cache,
// which may give back what it has ahead of need.
bool pool_grows(const struct cache *cache);
// Call this for a lease of `count` blocks by the table's session if fewer are free. It grows the
// cache, takes spare memory from other caches, and evicts cached blocks of any cache, in this
// order. OK: enough blocks are free now. NO_BLOCKS: too few are; *growing: chunks that are growing
// will help.
enum status pool_make_room(const struct hold_table *table, uint32_t count, bool *growing,
                           struct error *error);

#endif
