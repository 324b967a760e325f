// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pool.h - how much memory all caches together may have, in bytes and blocks, and whose turn it is
// to give some back. Counts chunks; knows nothing of single blocks.

#ifndef AULE_CORE_POOL_H
#define AULE_CORE_POOL_H

#include "ledger.h"

struct block;
struct cache;

struct pool {
    uint64_t limit_bytes, limit_blocks; // limit_blocks UINT64_MAX: bytes alone limit
    uint64_t bytes, blocks;             // of all chunks that are there or on their way
    uint64_t refused_bytes;  // of the last chunk that the device had no memory for; 0 = it has not
                             // refused
    uint32_t refused_wishes; // growths wished for since then

    struct ledger *ledger; // core's
    struct cache **caches; // [num_caches], in order of creation; owned
    uint32_t num_caches, cache_capacity;
    struct cache *caches_by_name;

    struct engine_zero *zeroes; // to be submitted before the next run (zeroes.h); owned
    struct block **zero_blocks; // whose they are; owned
    uint32_t num_zeroes, zero_capacity;
};

// The largest chunk that leaves the pool divisible; 0 with *error if not even one block fits.
uint32_t pool_chunk_blocks(const struct pool *pool, const struct engine_cache_params *params,
                           struct error *error);
uint64_t pool_limit(
    const struct cache *cache); // blocks this cache could have if it had the pool alone
uint64_t pool_available(const struct cache *cache); // blocks that a lease could get: free, cached,
                                                    // and what may still grow

void pool_take(struct pool *pool, const struct cache *cache);      // one chunk
void pool_give_back(struct pool *pool, const struct cache *cache); // one chunk
void pool_refused(struct pool *pool,
                  const struct cache *cache); // one chunk that the device had no memory for

// For a lease of `count` blocks that the free ones do not cover: grow, evict, reclaim from other
// caches, in this order. OK: the free blocks suffice now. NO_BLOCKS: they do not; *growing if
// chunks on their way will help.
enum status pool_make_room(struct cache *cache, uint32_t count, bool *growing, struct error *error);

#endif
