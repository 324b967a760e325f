// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// queue.c - whose turn it is to lease blocks while some leases wait. Inside a tenant the oldest
// waiting lease goes first. Among tenants, a lease goes ahead of another tenant's waiting lease
// only if its tenant would then have no more blocks than the other one with its lease: so tenants
// get equal numbers of blocks, and a large lease of a small tenant is not starved by small leases
// of a large one. A lease that free blocks of its cache satisfy needs no memory of other caches, so
// it heeds only leases that wait in its own one, and of these none that waits only for a chunk that
// is being made. Knows no deadline. Dispatcher thread only.
//
// If every session of a tenant that has blocks waits for a lease, a claim or an offer, none of them
// releases any. Then its leases need no turn, because otherwise a large lease and a small one could
// wait for each other.

#include "hold.h"
#include "ledger.h"
#include "pool.h"
#include "salt.h"
#include "session.h"
#include "tenant.h"

#include <inttypes.h>

void core_count_wait(struct core_session *session, bool begins)
{
    if (!begins)
        session->num_waiting--;
    else if (session->num_waiting++ == 0)
        session->ledger->news = true; // leases of its tenant may need no turn any more
}

void core_wait(struct core_session *session, struct core_waiter *waiter, uint64_t cache,
               uint32_t count, bool only_growth)
{
    struct tenant *tenant = session->salt->tenant;
    struct pool *pool = session->pool;
    *waiter = (struct core_waiter){
        .session = session, .cache = cache, .count = count, .only_growth = only_growth};
    if (!tenant->waiters)
        DL_APPEND2(pool->queue, tenant, prev_queued, next_queued);
    DL_APPEND(tenant->waiters, waiter);
    core_count_wait(session, true);
}

void core_wait_end(struct core_waiter *waiter)
{
    struct tenant *tenant = waiter->session->salt->tenant;
    struct pool *pool = waiter->session->pool;
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): it is in the list
    DL_DELETE(tenant->waiters, waiter);
    if (!tenant->waiters)
        DL_DELETE2(pool->queue, tenant, prev_queued, next_queued);
    core_count_wait(waiter->session, false);
    pool->ledger->news = true; // the next one may have its turn
}

static bool is_stuck(const struct core_session *asking)
{
    const struct core_session *session;
    DL_FOREACH2(asking->salt->tenant->sessions, session, tenant_next)
    {
        if (session != asking && session->num_blocks && !session->num_waiting)
            return false;
    }
    return true;
}

static bool has_free(const struct core_session *session, uint64_t cache, uint32_t count)
{
    struct hold_table *table;
    return hold_table_find(session, cache, &table, NULL) == STATUS_OK &&
           table->cache->counts[CORE_FREE] >= count;
}

// The tenant's oldest waiting lease. free_of: of those that free blocks of this cache would help;
// 0: of all. NULL: there is none.
static const struct core_waiter *oldest(const struct tenant *tenant, uint64_t free_of)
{
    const struct core_waiter *waiter = tenant->waiters;
    while (waiter && free_of && (waiter->cache != free_of || waiter->only_growth))
        waiter = waiter->next;
    return waiter;
}

// The waiting lease that goes first. NULL: there is none.
static const struct core_waiter *first_before(const struct core_session *session,
                                              const struct core_waiter *waiter, uint64_t cache,
                                              uint32_t count)
{
    const uint64_t free_of = has_free(session, cache, count) ? cache : 0;
    const struct tenant *own = session->salt->tenant, *other;
    const struct core_waiter *first = oldest(own, free_of);
    if (first && first != waiter)
        return first;
    DL_FOREACH2(session->pool->queue, other, next_queued)
    {
        first = oldest(other, free_of);
        if (other != own && first && own->used + count > other->used + first->count)
            return first;
    }
    return NULL;
}

bool core_cache_grows(const struct core_session *session, uint64_t cache)
{
    struct hold_table *table;
    return hold_table_find(session, cache, &table, NULL) == STATUS_OK &&
           table->cache->num_growing > 0;
}

enum status core_lease_turn(const struct core_session *session, const struct core_waiter *waiter,
                            uint64_t cache, uint32_t count, struct error *error)
{
    const struct core_waiter *first = first_before(session, waiter, cache, count);
    if (!first || is_stuck(session))
        return STATUS_OK;
    if (first->session->salt->tenant !=
        session->salt->tenant) // who it is, is not this one's affair
        return error_set(
            error, STATUS_NO_BLOCKS,
            "%" PRIu32 " blocks wanted; a lease of another tenant waits and goes first", count);
    return error_set(error, STATUS_NO_BLOCKS,
                     "%" PRIu32 " blocks wanted; session %" PRIu64 " of tenant \"%.64s\" waits for "
                     "%" PRIu32 " and goes first",
                     count, first->session->id, first->session->salt->tenant->label, first->count);
}
