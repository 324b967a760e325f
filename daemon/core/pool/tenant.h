// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tenant.h - who blocks are charged to: the operator's groups of users, and each other user. Names
// that clients choose part their prefixes (salt.h), not what they pay. A block that is not free
// belongs to one tenant. A tenant has limits, and an account for each cache in which it has blocks.
// Knows no session and no eviction order (evict.h has it). Dispatcher thread only.

#ifndef AULE_CORE_TENANT_H
#define AULE_CORE_TENANT_H

#include "base/hash.h"
#include "core/core.h"
#include "core/turns/turns.h"
#include "order.h"
#include "pace.h"

struct block;
struct cache;
struct chunk;
struct pool;

struct tenant {
    UT_hash_handle hh; // pool->tenants, by label
    struct pool *pool;
    uint64_t id; // from ledger->last_id
    char *label; // the group's name or "uid:1000"; owned
    struct core_limits limits;
    uint32_t refs;         // salts, and one for a tenant that the operator named or limited
    bool declared;         // the operator named or limited it, so it stays
    bool is_group;         // of --tenant: --tenant-share binds it
    uint32_t opens;        // sessions that are open, without errands
    struct heap_node away; // in pool->away while it has no session, by the end of
                           // --tenant-timeout
    bool lapsed;           // --tenant-timeout has passed: the floor is 0

    struct account *accounts;      // a list; owned
    uint64_t used;                 // blocks that are leased, held, quarantined or pinned
    uint64_t cached;               // blocks that may be evicted
    uint64_t cached_bytes;         // of these
    uint64_t pinned, pinned_bytes; // blocks of pinned prefixes, whoever holds them: count_keep()
    struct heap_node rank;         // in pool->ranks: it has cached blocks above its floor, and
                                   // chunks that could be emptied
    bool stale;                    // it is in pool->stale: ranks of it and its accounts are old
    struct tenant *prev_stale, *next_stale;
    struct core_session *sessions; // a list, also of those that are leaving
    struct core_wait *waiters;     // leases that wait, oldest first
    struct heap_node turn;         // in pool->turns, if it has waiters
    struct queue_line *lines;      // of the caches in which they wait
    bool turn_is_old, stuck;       // it is in pool->old_turns, pool->stuck
    struct tenant *prev_old, *next_old, *prev_stuck, *next_stuck;
    struct core_wait *retry; // the next one to be tried in round `retry_round`
    uint64_t retry_round;
    uint32_t num_moving;      // sessions that have blocks and do not wait: they may release some
    struct tenant *next_rank; // scratch of evict_for()
    struct tenant *prev_over, *next_over; // pool->over
    bool over;                            // it is in pool->over: `cached` exceeds its cap

    uint64_t used_bytes, evicted; // of `used`; blocks
    int64_t wasted_ns; // idle time of the GPU that its waits in vain cost, less what it won back
    uint64_t stamp;    // scratch of gather.c: counted already, if it is the count's own stamp
    struct turn_payer turns; // of its sessions; turns/turns.h
    uint64_t unwholes;       // how often one of its blocks was whole and then was not (reads.c)
    uint64_t unwrites;       // how often a slot of one of its blocks was written and then was not
    uint64_t memory;         // bytes of its sessions: core_session.memory.all
    uint64_t refused_no_blocks, refused_quota; // requests that were refused for good
};

// The blocks of one tenant in one cache. It lives until either ends.
struct account {
    struct tenant *tenant;
    struct cache *cache;
    struct account *prev, *next;               // tenant->accounts
    struct account *prev_beside, *next_beside; // cache->accounts
    uint64_t blocks;                           // that are not free
    uint64_t pinned;                           // of these, blocks of pinned prefixes
    uint32_t opens;                            // sessions of the tenant that have the cache open
    struct order victims; // blocks that may be evicted; the next one to go comes first
    struct order idle; // chunks that could be emptied; their latest used block is of this account
    struct heap_node rank; // in cache->ranks: it has victims, and its tenant is above its floor
    struct account *next_counted; // scratch of the same check: accounts whose stamp is its own
    uint64_t stamp, count; // scratch of one check: if `stamp` is that check's, blocks counted
    struct pace pace;      // of the tenant's workers
};

// Finds or makes the tenant of this label, and adds a reference. NULL: no memory.
struct tenant *tenant_get(struct pool *pool, const char *label);
struct tenant *tenant_ref(struct tenant *tenant);
void tenant_unref(struct tenant *tenant); // takes NULL
void tenants_finish(struct pool *pool);   // no session and no cache is left
// Keeps the tenant, whether it has sessions and blocks or not. Its limits follow.
void tenant_declare(struct tenant *tenant, const struct core_limits *limits);

// A session of the tenant opens or closes; the ledger has the time.
void tenant_enter(struct tenant *tenant);
void tenant_leave(struct tenant *tenant);
// Tenants that have had no session for --tenant-timeout: their floors end, and their pins. keep.c
void tenants_expire(struct pool *pool, int64_t now_ns);
int64_t tenants_wake_ns(const struct pool *pool); // when to call this next; FOREVER: never

// The tenant's account in `cache`, with room for `more` blocks. NULL: no memory.
struct account *account_get(struct tenant *tenant, struct cache *cache, uint64_t more);
void account_finish(struct account *account); // it has no blocks
// True: the cache's name is this tenant's, because it has the cache open or blocks in it.
static inline bool account_is_used(const struct account *account)
{
    return account->opens || account->blocks;
}
// True: its pins, or the tenant's floor, keep an unused cache from being ended for another one.
bool account_keeps(const struct account *account);

// A block became cached (`by` 1) or is so no more (-1). Brings pool->over into line.
void tenant_count_cached(struct account *account, int by);
// Call this when what tenants_rank() looks at has changed. It costs next to nothing.
void tenant_outdate(struct tenant *tenant);
// Brings pool->ranks and cache->ranks into line: O(caches * log tenants) for each tenant that has
// changed since the last call.
void tenants_rank(struct pool *pool);
// Puts the tenant into pool->ranks if it belongs there.
void tenant_rank(struct tenant *tenant);
// Its key in these heaps: the tenant with the most cached bytes comes first, then the oldest one.
static inline uint64_t tenant_rank_key(const struct tenant *tenant)
{
    return UINT64_MAX - tenant->cached_bytes;
}
uint64_t tenant_floor(const struct tenant *tenant); // the one that holds now
// Cached blocks above the floor.
uint64_t tenant_surplus(const struct tenant *tenant);
// QUOTA if `more` leased, held or pinned blocks would bring the tenant over its limit.
enum status tenant_check(const struct tenant *tenant, uint64_t more, struct error *error);
// core_tenant_part() for this tenant; all of `total` if it is no group.
uint64_t tenant_part(const struct tenant *tenant, uint64_t total, uint64_t others);
// LIMIT if `bytes` of host memory more would exceed --max-host-memory, or the tenant's part of it.
enum status tenant_check_memory(const struct tenant *tenant, uint64_t bytes, const char *what,
                                struct error *error);
// INVALID, with the values, if the floor exceeds the cap.
enum status limits_check(const struct core_limits *limits, const char *label, struct error *error);

#endif
