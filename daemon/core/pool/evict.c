// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// evict.c - see evict.h.

#include "evict.h"

#include "base/container_of.h"
#include "base/list.h"
#include "base/prefetch.h"
#include "cache.h"
#include "hold.h"
#include "pool.h"
#include "prefix.h"
#include "tenant.h"

enum { MAX_TRIES = 8 }; // chunks of an account that may prove to be below a floor, for one eviction

// ---- one block ----

static struct prefix_node *deepest_first(struct prefix_node *node)
{
    while (node->children)
        node = node->children;
    return node;
}

// The first of the cached nodes at and behind `top` in postorder: one without cached descendants.
// So children go before their parents, also if a held block is between them. Its held descendants
// leave the index, because no look-up could reach them any more; the sessions that hold them keep
// them. Behind many held nodes it gives `top`, which takes these out of the index for good; else
// each eviction would walk over all of them again.
static struct prefix_node *lowest_cached(struct prefix_node *top)
{
    enum { MOST_HELD = 256 };
    struct prefix_node *node = deepest_first(top);
    for (int held = 0; node != top && node->block->charge != CHARGE_CACHED; held++) {
        if (held == MOST_HELD)
            return top;
        node = node->next ? deepest_first(node->next) : node->parent;
    }
    return node;
}

// Takes the node's block and all cached blocks behind it out of the cache. A salt of its tree is
// kept by the caller.
static void unlink_counted(struct cache *cache, struct prefix_node *node)
{
    struct tenant *tenant = node->block->account->tenant;
    uint64_t before = tenant->cached;
    prefix_unlink(cache, node);
    tenant->evicted += before - tenant->cached;
    cache->pool->ledger->metrics[METRIC_EVICTIONS] += before - tenant->cached;
}

// The node of the account's first victim; there is one.
static struct prefix_node *first_victim(const struct account *account)
{
    return container_of(order_first(&account->victims), struct block, eviction)->node;
}

static void evict_node(struct account *account, struct prefix_node *node)
{
    struct tenant *tenant = tenant_ref(account->tenant); // it may end with its last root
    unlink_counted(account->cache, node);
    tenant_unref(tenant);
}

// ---- prefetching ----
// An eviction reads a dozen cache lines in many places, and a large cache is in no CPU cache. Most
// often several blocks go one after the other: those of a chain from its end on, then those of the
// chain that was used next. So each eviction prefetches for the blocks that go some places later,
// in three steps, each of which reads what the one before has prefetched.

enum { PLACED_AHEAD = EVICT_AHEAD / 2, FREED_AHEAD = EVICT_AHEAD / 4 };

static bool is_only_child(const struct prefix_node *node)
{
    return node->prev == node && !node->next;
}

static const struct prefix_node *foreseen(const struct evictions *e, uint32_t number)
{
    return e->nodes[number % EVICT_AHEAD];
}

// The end of the chain that goes after the first victim's, or after `chains` more. NULL: not known.
// Prefetches the block of the end behind it.
static const struct prefix_node *next_end(const struct account *account, uint32_t chains)
{
    const struct order_node *victim = order_first(&account->victims);
    for (chains++; victim && chains; chains--)
        victim = order_next(&account->victims, victim);
    if (victim)
        prefetch(order_next(&account->victims, victim));
    return victim ? container_of(victim, const struct block, eviction)->node : NULL;
}

// The node that goes after the last one that is foreseen.
static const struct prefix_node *foresee(struct evictions *e, const struct account *account,
                                         const struct prefix_node *first)
{
    const struct prefix_node *last = e->end > e->begin ? foreseen(e, e->end - 1) : NULL;
    if (!last)
        return first;
    if (last->parent && is_only_child(last))
        return last->parent;
    return next_end(account, e->chains++);
}

// Call this before each eviction, with the node of the first victim. If evictions go another way
// than was foreseen, it begins anew. Each node that is foreseen counts, so a lease foresees no more
// nodes than it needs blocks.
static void fetch_victims(struct evictions *e, const struct account *account,
                          const struct prefix_node *first)
{
    const struct cache *cache = account->cache;
    const struct prefix_node *node;
    if (e->begin == e->end || foreseen(e, e->begin) != first)
        e->begin = e->end = e->placed = e->freed = e->chains = 0;
    while (e->end - e->begin < EVICT_AHEAD && e->wanted && (node = foresee(e, account, first))) {
        e->nodes[e->end++ % EVICT_AHEAD] = node;
        e->wanted--;
        prefix_fetch_going(cache, node);
    }
    for (; e->placed < e->end && e->placed - e->begin < PLACED_AHEAD; e->placed++) {
        const struct block *block = foreseen(e, e->placed)->block;
        block_fetch_place(cache, block);
        hold_fetch_page(e->table, block->id);
    }
    for (; e->freed < e->placed && e->freed - e->begin < FREED_AHEAD; e->freed++)
        block_fetch_freeing(cache, foreseen(e, e->freed)->block);
}

// The node goes, and all behind it: no other node that is foreseen may be among these.
static void forget(struct evictions *e, const struct prefix_node *node)
{
    const bool ends_chain = !node->parent || !is_only_child(node);
    if (e->begin == e->end || node->children || node != foreseen(e, e->begin)) {
        e->end = e->begin;
        return;
    }
    e->begin++;
    e->chains -= ends_chain && e->chains;
}

// ---- a chunk ----

// Accounts that would lose blocks, and the check's stamp.
struct losses {
    uint64_t stamp;
    struct account *accounts; // a list through next_counted
};

// False: the block was visited before, with all behind it.
static bool count_loss(struct block *block, struct losses *losses)
{
    struct account *account = block->account;
    if (block->stamp == losses->stamp)
        return false;
    block->stamp = losses->stamp;
    if (block->charge != CHARGE_CACHED)
        return true;
    if (account->stamp != losses->stamp) {
        account->count = 0;
        account->next_counted = losses->accounts;
        losses->accounts = account;
    }
    account->stamp = losses->stamp;
    account->count++;
    return true;
}

// Counts the node's block and those behind it, each one once for a stamp, in preorder and without
// recursion.
static void count_losses(const struct prefix_node *top, struct losses *losses)
{
    const struct prefix_node *node = top;
    while (node) {
        if (count_loss(node->block, losses) && node->children) {
            node = node->children;
            continue;
        }
        while (node != top && !node->next)
            node = node->parent;
        node = node == top ? NULL : node->next;
    }
}

uint64_t evict_surplus(const struct tenant *tenant, const struct tenant *asking)
{
    return tenant == asking ? tenant->cached : tenant_surplus(tenant);
}

// True if emptying the chunk for `asking` leaves every other tenant at least its floor.
static bool may_empty(const struct cache *cache, const struct chunk *chunk,
                      const struct tenant *asking)
{
    struct losses losses = {.stamp = ++cache->pool->ledger->last_stamp};
    for (uint32_t i = 0; i < cache->chunk_blocks; i++) {
        const struct block *block = &chunk->blocks[i];
        if (block->charge == CHARGE_CACHED && block->stamp != losses.stamp)
            count_losses(block->node, &losses);
    }
    const struct account *account = losses.accounts;
    while (account && account->count <= evict_surplus(account->tenant, asking))
        account = account->next_counted;
    return !account;
}

static void empty_chunk(struct cache *cache, struct chunk *chunk)
{
    for (uint32_t i = 0; i < cache->chunk_blocks; i++) {
        struct block *block = &chunk->blocks[i];
        if (block->charge != CHARGE_CACHED)
            continue;
        struct tenant *tenant = tenant_ref(block->account->tenant);
        unlink_counted(cache, block->node);
        tenant_unref(tenant);
    }
    cache_give_back(cache, chunk);
    cache_settle(cache);
}

// The account's oldest chunk that may be emptied. NULL: there is none among the first ones.
static struct chunk *oldest_chunk(struct account *account, const struct tenant *asking)
{
    struct order_node *tried[MAX_TRIES];
    uint32_t count = 0;
    struct chunk *found = NULL;
    while (!found && count < MAX_TRIES && account->idle.size) {
        struct order_node *node = order_first(&account->idle);
        struct chunk *chunk = container_of(node, struct chunk, idle);
        if (may_empty(account->cache, chunk, asking)) {
            found = chunk;
        } else {
            order_remove(&account->idle, node);
            tried[count++] = node;
        }
    }
    while (count--)
        order_add(&account->idle, tried[count], tried[count]->key);
    return found;
}

// ---- one step ----

struct choice {
    struct account *own;  // its first victim goes; NULL = none
    struct account *from; // of another cache
    struct chunk *chunk;  // of `from`; NULL = none
    uint64_t age;         // while the first victim of `own` is not younger, no chunk goes instead
};

static uint64_t age_of(const struct account *account)
{
    return order_first(&account->victims)->key & ~EVICT_INNER;
}

// What the tenant can give for a lease of `cache` by `asking`.
static struct choice choose(const struct tenant *tenant, const struct cache *cache,
                            const struct tenant *asking)
{
    struct choice choice = {.age = UINT64_MAX};
    struct account *account;
    LIST_EACH(tenant->accounts, account) {
        if (account->cache == cache && account->victims.size)
            choice.own = account;
    }
    LIST_EACH(tenant->accounts, account) {
        const struct order_node *first = order_first(&account->idle);
        if (account->cache == cache || !first || cache->pool->fixed_blocks)
            continue;
        choice.age = first->key < choice.age ? first->key : choice.age;
        if ((choice.own && age_of(choice.own) <= first->key) ||
            (choice.chunk && choice.chunk->idle.key <= first->key))
            continue;
        struct chunk *chunk = oldest_chunk(account, asking);
        if (!chunk || (choice.chunk && choice.chunk->idle.key <= chunk->idle.key) ||
            (choice.own && age_of(choice.own) <= chunk->idle.key))
            continue;
        choice.from = account;
        choice.chunk = chunk;
    }
    return choice;
}

static bool is_before(const struct tenant *tenant, const struct heap_node *rival)
{
    const uint64_t key = tenant_rank_key(tenant);
    return !rival || key < rival->key || (key == rival->key && tenant->id < rival->order);
}

// Evicts up to `most` blocks of the account, as long as the same choice would be made again. No
// other tenant comes earlier meanwhile.
static void evict_own(const struct choice *choice, uint64_t most, struct evictions *evictions)
{
    struct account *own = choice->own;
    struct cache *cache = own->cache;
    struct tenant *tenant = tenant_ref(own->tenant); // it may end with its last root
    const struct heap_node *beside = heap_first_beside(&cache->ranks, &own->rank),
                           *elsewhere = heap_first_beside(&cache->pool->ranks, &tenant->rank);
    const uint64_t least = tenant->cached > most ? tenant->cached - most : 0;
    do {
        struct prefix_node *first = first_victim(own);
        fetch_victims(evictions, own, first);
        struct prefix_node *node = lowest_cached(first);
        forget(evictions, node);
        unlink_counted(cache, node);
    } while (tenant->cached > least && own->victims.size && age_of(own) <= choice->age &&
             tenant_surplus(tenant) && is_before(tenant, beside) && is_before(tenant, elsewhere));
    tenant_unref(tenant);
}

static bool evict_from(const struct tenant *tenant, const struct cache *cache,
                       const struct tenant *asking, uint64_t most, struct evictions *evictions)
{
    const struct choice choice = choose(tenant, cache, asking);
    if (choice.chunk) {
        evictions->begin = evictions->end; // nodes may end
        empty_chunk(choice.from->cache, choice.chunk);
    } else if (choice.own) {
        evict_own(&choice, most, evictions);
    }
    return choice.chunk || choice.own;
}

// The tenant with the most cached bytes among those with victims in `cache` and those with chunks
// that could be emptied. NULL: there is none.
struct tenant *evict_first(const struct cache *cache)
{
    const struct heap_node *own = heap_first(&cache->ranks),
                           *idle = heap_first(&cache->pool->ranks);
    if (own &&
        (!idle || own->key < idle->key || (own->key == idle->key && own->order < idle->order)))
        return container_of(own, struct account, rank)->tenant;
    return idle ? container_of(idle, struct tenant, rank) : NULL;
}

bool evict_for(struct cache *cache, const struct tenant *asking, uint64_t most,
               struct evictions *evictions)
{
    struct heap *ranks = &cache->pool->ranks;
    struct tenant *skipped = NULL, *tenant, *next; // linked by `next_rank`
    bool done = false;
    tenants_rank(cache->pool);
    // A tenant with victims in the cache always helps. One without helps unless its chunks are all
    // in this cache, or floors keep them.
    while (!done && (tenant = evict_first(cache))) {
        // An eviction may help a tenant that could not.
        done = evict_from(tenant, cache, asking, skipped ? 1 : most, evictions);
        if (done)
            break;
        heap_remove(ranks, &tenant->rank);
        tenant->next_rank = skipped;
        skipped = tenant_ref(tenant); // an emptied chunk may take its last blocks
    }
    for (; skipped; skipped = next) {
        next = skipped->next_rank;
        tenant_rank(skipped);
        tenant_unref(skipped);
    }
    // Its floor holds only for others' leases.
    return done || evict_from(asking, cache, asking, 1, evictions);
}

// ---- caps ----

static struct account *oldest_account(const struct tenant *tenant)
{
    struct account *oldest = NULL, *account;
    LIST_EACH(tenant->accounts, account) {
        if (account->victims.size &&
            (!oldest || order_first(&account->victims)->key < order_first(&oldest->victims)->key))
            oldest = account;
    }
    return oldest;
}

void evict_trim(struct pool *pool)
{
    while (pool->over) {
        struct account *account = oldest_account(pool->over);
        struct cache *cache = account->cache; // `account` may end with its tenant
        evict_node(account, lowest_cached(first_victim(account)));
        cache_settle(cache);
    }
}

uint64_t evict_available(const struct cache *cache, const struct tenant *asking)
{
    const struct account *account;
    uint64_t count = 0;
    LIST_EACH_BY(cache->accounts, account, next_beside) {
        uint64_t surplus = evict_surplus(account->tenant, asking);
        count += account->victims.size < surplus ? account->victims.size : surplus;
    }
    return count;
}
