// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// queue.c - whose turn it is to lease blocks while some leases wait. Inside a tenant the oldest
// waiting lease goes first. Among tenants, a lease goes ahead of another tenant's waiting lease
// only if its tenant would then have no more blocks than the other one with its lease: so tenants
// get equal numbers of blocks (the older lease goes first if they would be equal), and a large
// lease of a small tenant is not starved by small leases of a large one. A lease that free blocks
// of its cache satisfy needs no memory of other caches, so it heeds only leases that wait in its
// own one, and of these none that waits only for a chunk that is being made. Knows no deadline.
// Dispatcher thread only.
//
// If every session of a tenant that has blocks waits for a lease, a claim or an offer, none of them
// releases any. Then its leases need no turn, because otherwise a large lease and a small one could
// wait for each other.
//
// Heaps answer all of this. The pool has one of the tenants that wait, by the blocks that each
// would have with its oldest lease; each cache has one of the same kind for the leases that free
// blocks of it would help. A key that has become old is renewed before the next question. So of all
// leases that wait, only the first one of each heap can have its turn, beside those of tenants that
// need none; queue_next() names these only.

#include "queue.h"

#include "base/container_of.h"
#include "base/list.h"
#include "hold.h"
#include "ledger.h"
#include "pool.h"
#include "salt.h"
#include "session.h"

#include <inttypes.h>
#include <stdlib.h>

// The waiting leases of one cache. It has the cache's id only, because a session may close the
// cache while its lease waits.
struct queue_cache {
    UT_hash_handle hh; // pool->queue_caches, by cache
    uint64_t cache;
    struct heap turns;        // lines, by what the tenant would have with its oldest lease
    uint32_t num_lines;       // in `turns`
    struct core_wait *growth; // those that wait only for growth, oldest first
    struct core_wait *retry;  // of these, the next one to be tried in round `retry_round`
    uint64_t retry_round;
    uint64_t arrived; // pool->num_arrived when `growth` was tried last
};

// The leases of one tenant in one cache that do not wait only for growth.
struct queue_line {
    struct tenant *tenant;
    struct queue_cache *entry;
    struct queue_line *prev, *next; // tenant->lines
    struct core_wait *first;        // oldest first
    struct heap_node turn;          // in entry->turns
};

// ---- turns ----

// The lease with the smaller (key, order) goes first.
static void set_turn(struct heap *heap, struct heap_node *node, const struct tenant *tenant,
                     const struct core_wait *first)
{
    heap_remove(heap, node);
    if (first)
        heap_add_as(heap, node, tenant->used + first->lease.count, first->lease.age);
}

void queue_outdate(struct tenant *tenant)
{
    if (!tenant->waiters || tenant->turn_is_old)
        return;
    LIST_APPEND_BY(tenant->pool->old_turns, tenant, prev_old, next_old);
    tenant->turn_is_old = true;
}

static void renew(struct pool *pool)
{
    struct tenant *tenant, *next;
    struct queue_line *line;
    LIST_EACH_SAFE_BY(pool->old_turns, tenant, next, next_old) {
        LIST_DELETE_BY(pool->old_turns, tenant, prev_old, next_old);
        tenant->turn_is_old = false;
        set_turn(&pool->turns, &tenant->turn, tenant, tenant->waiters);
        LIST_EACH(tenant->lines, line) {
            set_turn(&line->entry->turns, &line->turn, tenant, line->first);
        }
    }
}

// ---- tenants that need no turn ----

static void settle_stuck(struct tenant *tenant)
{
    const bool is = tenant->waiters && !tenant->num_moving;
    if (is && !tenant->stuck)
        LIST_APPEND_BY(tenant->pool->stuck, tenant, prev_stuck, next_stuck);
    else if (!is && tenant->stuck)
        LIST_DELETE_BY(tenant->pool->stuck, tenant, prev_stuck, next_stuck);
    tenant->stuck = is;
}

void queue_settle_session(struct core_session *session)
{
    struct tenant *tenant = session->salt->tenant;
    const bool moves = session->num_blocks && !session->waits.num_waiting;
    if (moves == session->waits.moves)
        return;
    session->waits.moves = moves;
    tenant->num_moving += moves ? 1 : UINT32_MAX; // adding UINT32_MAX subtracts 1
    settle_stuck(tenant);
}

static bool is_stuck(const struct core_session *asking)
{
    return asking->salt->tenant->num_moving == asking->waits.moves;
}

void queue_count_wait(struct core_session *session, bool begins)
{
    if (!begins)
        session->waits.num_waiting--;
    else if (session->waits.num_waiting++ == 0)
        session->ledger->news = true; // leases of its tenant may need no turn any more
    queue_settle_session(session);
}

// ---- in and out ----

static struct queue_cache *entry_find(const struct pool *pool, uint64_t cache)
{
    struct queue_cache *entry;
    HASH_FIND(hh, pool->queue_caches, &cache, sizeof cache, entry);
    return entry;
}

static struct queue_cache *entry_get(struct pool *pool, uint64_t cache)
{
    struct queue_cache *entry = entry_find(pool, cache);
    if (entry)
        return entry;
    entry = calloc(1, sizeof *entry);
    if (!entry)
        return NULL;
    entry->cache = cache;
    HASH_ADD(hh, pool->queue_caches, cache, sizeof entry->cache, entry);
    if (HASH_ADDED(entry))
        return entry;
    free(entry);
    return NULL;
}

static void entry_settle(struct pool *pool, struct queue_cache *entry)
{
    if (entry->num_lines || entry->growth)
        return;
    HASH_DEL(pool->queue_caches, entry);
    heap_finish(&entry->turns);
    free(entry);
}

static struct queue_line *line_find(const struct tenant *tenant, uint64_t cache)
{
    struct queue_line *line = tenant->lines;
    while (line && line->entry->cache != cache)
        line = line->next;
    return line;
}

static struct queue_line *line_get(struct tenant *tenant, struct queue_cache *entry)
{
    struct queue_line *line = line_find(tenant, entry->cache);
    if (line || !heap_reserve(&entry->turns, (size_t)entry->num_lines + 1))
        return line;
    line = calloc(1, sizeof *line);
    if (!line)
        return NULL;
    line->tenant = tenant;
    line->entry = entry;
    entry->num_lines++;
    LIST_APPEND(tenant->lines, line);
    return line;
}

static void line_settle(struct queue_line *line)
{
    if (line->first)
        return;
    heap_remove(&line->entry->turns, &line->turn);
    line->entry->num_lines--;
    LIST_DELETE(line->tenant->lines, line);
    free(line);
}

enum status core_wait_for_blocks(struct core_session *session, struct core_wait *wait,
                                 uint64_t cache, uint32_t count, bool only_growth,
                                 struct error *error)
{
    struct tenant *tenant = session->salt->tenant;
    struct pool *pool = session->pool;
    bool room = heap_reserve(&pool->turns, HASH_COUNT(pool->tenants));
    struct queue_cache *entry = room ? entry_get(pool, cache) : NULL;
    struct queue_line *line = entry && !only_growth ? line_get(tenant, entry) : NULL;
    wait->session = NULL;
    if (entry && !only_growth && !line)
        entry_settle(pool, entry);
    if (!entry || (!only_growth && !line))
        return error_set(error, STATUS_NO_MEMORY, "no host memory for a lease that waits");
    session_begin_wait(session, wait, CORE_WAIT_BLOCKS, cache);
    wait->lease.count = count;
    wait->lease.only_growth = only_growth;
    wait->lease.age = ++pool->last_age;
    wait->lease.entry = entry;
    wait->lease.line = line;
    LIST_APPEND_BY(tenant->waiters, wait, lease.tenant_prev, lease.tenant_next);
    LIST_APPEND_BY(*(line ? &line->first : &entry->growth), wait, beside_prev, beside_next);
    queue_outdate(tenant);
    settle_stuck(tenant);
    queue_count_wait(session, true);
    return STATUS_OK;
}

void queue_end_wait(struct core_wait *wait)
{
    struct tenant *tenant = wait->session->salt->tenant;
    struct pool *pool = wait->session->pool;
    struct queue_cache *entry = wait->lease.entry;
    struct queue_line *line = wait->lease.line;
    queue_outdate(tenant);
    if (tenant->retry == wait)
        tenant->retry = wait->lease.tenant_next;
    if (entry->retry == wait)
        entry->retry = wait->beside_next;
    LIST_DELETE_BY(tenant->waiters, wait, lease.tenant_prev, lease.tenant_next);
    LIST_DELETE_BY(*(line ? &line->first : &entry->growth), wait, beside_prev, beside_next);
    if (line)
        line_settle(line);
    entry_settle(pool, entry);
    settle_stuck(tenant);
    queue_count_wait(wait->session, false);
    pool->ledger->news = true; // the next one may have its turn
}

// ---- whose turn it is ----

static bool has_free(const struct core_session *session, uint64_t cache, uint32_t count)
{
    struct hold_table *table;
    return hold_table_find(session, cache, &table, NULL) == STATUS_OK &&
           table->cache->counts[CORE_FREE] >= count;
}

static const struct core_wait *first_of(const struct heap_node *node, bool of_cache)
{
    return of_cache ? container_of(node, const struct queue_line, turn)->first
                    : container_of(node, const struct tenant, turn)->waiters;
}

// The waiting lease of another tenant that goes first. `own`: the asking tenant's node in the heap,
// NULL: it has none.
static const struct core_wait *first_of_others(struct heap *turns, struct heap_node *own,
                                               bool of_cache)
{
    const struct heap_node *first = heap_first(turns);
    if (!first || first != own)
        return first ? first_of(first, of_cache) : NULL;
    const uint64_t key = own->key, order = own->order;
    heap_remove(turns, own);
    first = heap_first(turns);
    heap_add_as(turns, own, key, order);
    return first ? first_of(first, of_cache) : NULL;
}

// True: `other` goes ahead of a lease of `count` blocks; NULL: that lease is new.
static bool goes_ahead(const struct core_wait *other, const struct tenant *own, uint32_t count,
                       const struct core_wait *waiter)
{
    const uint64_t theirs = other->session->salt->tenant->used + other->lease.count,
                   ours = own->used + count;
    return theirs != ours ? theirs < ours : !waiter || other->lease.age < waiter->lease.age;
}

// The waiting lease that goes first. NULL: there is none.
static const struct core_wait *first_before(const struct core_session *session,
                                            const struct core_wait *waiter, uint64_t cache,
                                            uint32_t count)
{
    struct tenant *own = session->salt->tenant;
    const bool of_cache = has_free(session, cache, count);
    struct queue_cache *entry = of_cache ? entry_find(session->pool, cache) : NULL;
    struct queue_line *line = entry ? line_find(own, cache) : NULL;
    const struct core_wait *first = of_cache ? (line ? line->first : NULL) : own->waiters;
    if (of_cache && !entry)
        return NULL;
    renew(session->pool);
    if (first && first != waiter && (!waiter || first->lease.age < waiter->lease.age))
        return first;
    struct heap_node *node = of_cache ? (line ? &line->turn : NULL) : &own->turn;
    first = first_of_others(of_cache ? &entry->turns : &session->pool->turns, node, of_cache);
    return first && goes_ahead(first, own, count, waiter) ? first : NULL;
}

// ---- trying again ----

// The next one that this round has not tried yet. NULL: there is none.
static struct core_wait *next_of_tenant(struct tenant *tenant, uint64_t round)
{
    if (tenant->retry_round != round)
        tenant->retry = tenant->waiters;
    tenant->retry_round = round;
    struct core_wait *waiter = tenant->retry;
    if (waiter)
        tenant->retry = waiter->lease.tenant_next;
    return waiter;
}

static struct core_wait *try_first(const struct heap *turns, bool of_cache, uint64_t round)
{
    const struct heap_node *node = heap_first(turns);
    struct core_wait *waiter = node ? (struct core_wait *)first_of(node, of_cache) : NULL;
    if (!waiter || waiter->lease.tried == round ||
        (of_cache && !has_free(waiter->session, waiter->cache, waiter->lease.count)))
        return NULL;
    return waiter;
}

static bool grows(const struct core_session *session, uint64_t cache)
{
    struct hold_table *table;
    return hold_table_find(session, cache, &table, NULL) == STATUS_OK && pool_grows(table->cache);
}

// Those that wait for growth may have their turn if there are free blocks or a chunk has come,
// which another cache may give back. They give up if nothing grows any more.
static struct core_wait *next_of_growth(const struct pool *pool, struct queue_cache *entry)
{
    const uint64_t round = pool->round;
    struct core_wait *first = entry->growth;
    if (first && entry->retry_round != round)
        entry->retry = has_free(first->session, entry->cache, 1) ||
                               entry->arrived != pool->num_arrived ||
                               !grows(first->session, entry->cache)
                           ? first
                           : NULL;
    entry->retry_round = round;
    entry->arrived = pool->num_arrived;
    struct core_wait *waiter = entry->retry;
    if (waiter)
        entry->retry = waiter->beside_next;
    return waiter;
}

static struct core_wait *next_of_lanes(const struct pool *pool)
{
    struct core_wait *waiter = NULL;
    for (struct queue_cache *entry = pool->queue_caches; entry && !waiter; entry = entry->hh.next) {
        waiter = next_of_growth(pool, entry);
        if (!waiter)
            waiter = try_first(&entry->turns, true, pool->round);
    }
    return waiter;
}

// All leases of these tenants may have their turn at once.
static struct core_wait *next_of_stuck(const struct pool *pool)
{
    struct core_wait *waiter = NULL;
    for (struct tenant *tenant = pool->stuck; tenant && !waiter; tenant = tenant->next_stuck)
        waiter = next_of_tenant(tenant, pool->round);
    return waiter;
}

void queue_begin_round(struct pool *pool)
{
    pool->round++;
    pool->granted = false;
}

void queue_granted(struct pool *pool)
{
    pool->granted = true;
}

struct core_wait *queue_next(struct pool *pool)
{
    renew(pool);
    struct core_wait *waiter = next_of_stuck(pool);
    if (!waiter)
        waiter = next_of_lanes(pool);
    if (!waiter)
        waiter = try_first(&pool->turns, false, pool->round);
    if (waiter)
        waiter->lease.tried = pool->round;
    if (waiter || !pool->granted)
        return waiter;
    queue_begin_round(pool);
    return queue_next(pool);
}

enum status queue_turn(const struct core_session *session, const struct core_wait *waiter,
                       uint64_t cache, uint32_t count, struct error *error)
{
    const struct core_wait *first = first_before(session, waiter, cache, count);
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
                     count, first->session->id, first->session->salt->tenant->label,
                     first->lease.count);
}
