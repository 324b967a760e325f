// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// evict.h - which cached block goes next. Knows the order, not who needs the memory.
// The tenant with the most cached bytes loses first: all tenants' shares are equal. A tenant never
// falls below its floor for another one's lease; for its own leases, at last, it does. Within a
// tenant, blocks of the preferred class go last; within a class, the least recently used block goes
// first, and a block goes after the blocks that continue its prefix. Held and pinned blocks never
// go.
// Memory moves between caches in whole chunks. A chunk is as recent as its latest used block, and
// goes when a lease of another cache finds no older block in its own cache. A step tries at most 8
// chunks of each account that it asks, and looks at their blocks and at those that continue their
// prefixes. Dispatcher thread only.

#ifndef AULE_CORE_EVICT_H
#define AULE_CORE_EVICT_H

#include <stdbool.h>
#include <stdint.h>

struct cache;
struct hold_table;
struct pool;
struct prefix_node;
struct tenant;

enum { EVICT_AHEAD = 16 };

// The evictions for one lease, and the nodes that are likely to go next: they are prefetched.
struct evictions {
    const struct hold_table *table; // of the lease
    uint32_t wanted;                // nodes that may still be foreseen: blocks that the lease needs
    // nodes[begin % EVICT_AHEAD] to [end % EVICT_AHEAD) are foreseen; those before `placed` and
    // `freed` have passed the second and the third step.
    uint32_t begin, end, placed, freed;
    uint32_t chains; // that end between begin and end
    const struct prefix_node *nodes[EVICT_AHEAD];
};

// Evicts cached blocks of `cache`, at most `most`, or empties a chunk of another cache and gives
// its memory back to the pool, for a lease of the tenant `asking`. Fewer blocks go when the next
// one to go is another tenant's or in another cache: call it again. False: nothing may go.
bool evict_for(struct cache *cache, const struct tenant *asking, uint64_t most,
               struct evictions *evictions);
// Whom evict_for() asks first. Call it after tenants_rank().
struct tenant *evict_first(const struct cache *cache);
// Evicts what tenants have above their caps. May end caches without users. Call this at the end of
// each call of core that can make blocks cached or change limits.
void evict_trim(struct pool *pool);
// Blocks of `cache` that evict_for() could free in the cache itself.
uint64_t evict_available(const struct cache *cache, const struct tenant *asking);
// Cached blocks of the tenant that may go for a lease of `asking`.
uint64_t evict_surplus(const struct tenant *tenant, const struct tenant *asking);

#endif
