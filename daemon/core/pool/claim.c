// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// claim.c - see claim.h. A node of the tree of claims and the node of the prefix index with the
// same chain point to each other, so nothing here walks a chain from its root.

#include "claim.h"

#include "base/clock.h"
#include "base/container_of.h"
#include "base/list.h"
#include "base/prefetch.h"
#include "ledger.h"
#include "pool.h"
#include "queue.h"
#include "session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// At most: claims of one prompt share nodes and the root.
static uint64_t bytes_for(const struct cache *cache, const struct core_prefix *prefix,
                          uint32_t count)
{
    const uint64_t each = sizeof(struct claim_place) + cache->claim_stock.object_bytes;
    return sizeof(struct claim) + sizeof(struct prefix_root) + prefix->extra_key_size +
           count * each;
}

enum status claim_check_limit(const struct hold_table *table, const struct core_prefix *prefix,
                              uint32_t count, struct error *error)
{
    const struct core_session *session = table->session;
    uint64_t most = session->ledger->params->max_claimed, has = session->num_claimed;
    if (has <= most && count <= most - has)
        return core_memory_check(session, bytes_for(table->cache, prefix, count), "a claim", error);
    return error_set(error, STATUS_LIMIT,
                     "a claim of %" PRIu32 " blocks: the session's claims have %" PRIu64
                     " already, and --max-claimed-blocks is %" PRIu64,
                     count, has, most);
}

// ---- nodes ----

static size_t tokens_size(const struct cache *cache)
{
    return cache->identity.kv.block_size * sizeof(int32_t);
}

static struct claim_node *node_find(const struct cache *cache, const void *parent, uint64_t hash,
                                    const int32_t *tokens)
{
    struct node_search search = node_table_search(&cache->claims, hash);
    struct claim_node *node;
    do
        node = node_table_next(&cache->claims, &search);
    while (node &&
           (node->parent != parent || memcmp(node->tokens, tokens, tokens_size(cache)) != 0));
    return node;
}

// `parent` NULL: below the root.
static struct claim_node *node_create(struct cache *cache, struct prefix_root *root,
                                      const struct claim_node *parent, uint64_t hash,
                                      const int32_t *tokens)
{
    struct claim_node *node = stock_take(&cache->claim_stock);
    if (!node || !node_table_add(&cache->claims, hash, node)) {
        stock_give(&cache->claim_stock, node);
        return NULL;
    }
    node->hash = hash;
    node->parent = parent ? (const void *)parent : root;
    memcpy(node->tokens, tokens, tokens_size(cache));
    if (!parent || parent->node)
        node->node = prefix_find_hashed(cache, root, parent ? parent->node : NULL, tokens, hash);
    if (node->node)
        node->node->claim = node;
    return node;
}

static void node_unref(struct cache *cache, struct claim_node *node)
{
    if (--node->refs)
        return;
    if (node->node)
        node->node->claim = NULL;
    node_table_remove(&cache->claims, node->hash, node);
    stock_give(&cache->claim_stock, node);
}

// ---- queues ----

// Claims come in the order of their ranks, so the place is nearly always at the end.
static void insert(struct claim_place *place)
{
    struct claim_node *node = place->node;
    struct claim_place *before = node->queue ? node->queue->prev : NULL; // the last one
    while (before && before->claim->rank > place->claim->rank)
        before = before == node->queue ? NULL : before->prev;
    if (before)
        LIST_INSERT(node->queue, before, place);
    else
        LIST_PREPEND(node->queue, place);
}

static void enqueue(struct claim_place *place)
{
    insert(place);
    place->queued = true;
    place->claim->num_queued++;
}

static void wake_claimers(const struct claim *claim)
{
    struct core_wait *wait;
    LIST_EACH_BY(claim->claimers, wait, beside_next) {
        ledger_wake(wait->session->ledger, wait);
    }
}

// The place may have news for those that wait for it. Its claim's deadline begins anew.
static void wake(const struct claim_place *place)
{
    struct claim *claim = place ? place->claim : NULL;
    if (!claim)
        return;
    claim->progress_ns = claim->table->session->ledger->now_ns;
    if (place == &claim->places[claim->num_found])
        wake_claimers(claim);
}

static void wake_queue(const struct claim_node *node)
{
    const struct claim_place *place;
    LIST_EACH(node->queue, place) {
        wake(place);
    }
}

static void dequeue(struct claim_place *place)
{
    const bool first = place->node->queue == place;
    if (!place->queued)
        return;
    LIST_DELETE(place->node->queue, place);
    place->queued = place->published = false;
    place->claim->num_queued--;
    place->claim->table->session->ledger->news = true; // the next in the queue may inherit
    if (first)
        wake(place->node->queue);
}

// ---- deadlines ----

static void set_due(struct claim *claim, int64_t from_ns)
{
    struct pool *pool = claim->table->cache->pool;
    const int64_t timeout_ns = pool->ledger->params->claim_timeout_ns;
    heap_remove(&pool->due, &claim->due);
    if (timeout_ns)
        heap_add(&pool->due, &claim->due, (uint64_t)(from_ns + timeout_ns));
}

// All of its places at once, so that one order holds in all queues. Only the next in a queue that
// it was first in inherits.
static void move_to(struct claim *claim, uint64_t rank)
{
    claim->rank = rank;
    for (uint32_t i = claim->num_found; i < claim->num_blocks; i++) {
        struct claim_place *place = &claim->places[i];
        const bool was_first = place->node->queue == place;
        if (!place->queued)
            continue;
        LIST_DELETE(place->node->queue, place);
        insert(place);
        if (was_first && place->node->queue != place)
            wake(place->node->queue);
    }
}

// Its session has done something for it.
static void renew(struct claim *claim)
{
    struct ledger *ledger = claim->table->session->ledger;
    claim->progress_ns = ledger->now_ns;
    if (!(claim->rank & CLAIM_LATE))
        return;
    move_to(claim, ++ledger->last_id);
}

// True: the next block that the claim lacks is its own to compute, and nothing of it has been
// published. It lacks none that it has published itself, also if that has been evicted since.
static bool has_turn(const struct claim *claim)
{
    const struct claim_place *place = &claim->places[claim->num_found],
                             *end = &claim->places[claim->num_blocks];
    while (place < end &&
           (!place->queued || (place->node->node && prefix_visible(place->node->node))))
        place++;
    return place < end && !place->node->node && place->node->queue == place;
}

int64_t claims_wake_ns(const struct pool *pool)
{
    const struct heap_node *first = heap_first(&pool->due);
    return first ? (int64_t)first->key : FOREVER;
}

void claims_expire(struct pool *pool, int64_t now_ns)
{
    while (claims_wake_ns(pool) <= now_ns) {
        struct claim *claim = container_of(heap_first(&pool->due), struct claim, due);
        if (claim->progress_ns + pool->ledger->params->claim_timeout_ns > now_ns) {
            set_due(claim, claim->progress_ns);
            continue;
        }
        set_due(claim, now_ns);
        if (!has_turn(claim))
            continue;
        pool->ledger->metrics[METRIC_CLAIMS_LATE] += !(claim->rank & CLAIM_LATE);
        move_to(claim, CLAIM_LATE | ++pool->ledger->last_id);
    }
}

// ---- the life of a claim ----

static void add_place(struct claim *claim, uint32_t index, struct claim_node *node)
{
    claim->places[index] = (struct claim_place){.claim = claim, .node = node};
    node->refs++;
}

// Prefetches what it takes to drop places before the one of this index.
static void fetch_dropped(const struct claim *claim, uint32_t index)
{
    enum { NEAR = 8, FAR = 16 };
    if (index >= FAR)
        prefetch(claim->places[index - FAR].node);
    if (index >= NEAR)
        node_table_fetch_run(&claim->table->cache->claims, claim->places[index - NEAR].node->hash);
}

static void drop_places(struct claim *claim, uint32_t first)
{
    struct cache *cache = claim->table->cache;
    for (uint32_t i = claim->num_blocks; i-- > first;) {
        fetch_dropped(claim, i);
        dequeue(&claim->places[i]);
        node_unref(cache, claim->places[i].node);
    }
    claim->table->session->num_claimed -= claim->num_blocks - first;
    claim->num_blocks = first;
}

// The hashes of a chain, some blocks ahead, so that what searches read is prefetched.
enum { HASHED_AHEAD = 16 };
struct claim_hashes {
    uint64_t last, ahead[HASHED_AHEAD]; // of block i: ahead[i % HASHED_AHEAD]
    uint32_t count;
};

static uint64_t hash_of(struct claim_hashes *hashes, const struct cache *cache,
                        const int32_t *tokens, uint32_t index, uint32_t num_blocks)
{
    for (; hashes->count < num_blocks && hashes->count < index + HASHED_AHEAD; hashes->count++) {
        const int32_t *own = tokens + (size_t)hashes->count * cache->identity.kv.block_size;
        hashes->last = prefix_hash_next(cache, hashes->last, own);
        hashes->ahead[hashes->count % HASHED_AHEAD] = hashes->last;
        node_table_fetch(&cache->claims, hashes->last);
    }
    return hashes->ahead[index % HASHED_AHEAD];
}

// Adds places for `count` blocks with these tokens. False: no memory.
static bool fill_places(struct claim *claim, const int32_t *tokens, uint32_t count)
{
    struct cache *cache = claim->table->cache;
    const struct claim_node *parent =
        claim->num_blocks ? claim->places[claim->num_blocks - 1].node : NULL;
    struct claim_hashes hashes = {.last = parent ? parent->hash : claim->root->id};
    for (uint32_t i = 0; i < count; i++) {
        const int32_t *own = tokens + (size_t)i * cache->identity.kv.block_size;
        const uint64_t hash = hash_of(&hashes, cache, tokens, i, count);
        struct claim_node *node =
            node_find(cache, parent ? (const void *)parent : claim->root, hash, own);
        if (!node)
            node = node_create(cache, claim->root, parent, hash, own);
        if (!node)
            return false;
        add_place(claim, claim->num_blocks++, node);
        claim->table->session->num_claimed++;
        parent = node;
    }
    return true;
}

static void part_from_claimers(struct claim *claim)
{
    wake_claimers(claim);
    while (claim->claimers) {
        struct core_wait *wait = claim->claimers;
        LIST_DELETE_BY(claim->claimers, wait, beside_prev, beside_next);
        wait->claim = NULL;
    }
}

static void claim_free(struct claim *claim)
{
    struct cache *cache = claim->table->cache;
    part_from_claimers(claim);
    drop_places(claim, 0);
    heap_remove(&cache->pool->due, &claim->due);
    cache->pool->num_claims--;
    session_count_memory(claim->table->session, -claim->bytes);
    claim->root->claims--;
    prefix_root_settle(cache, claim->root);
    ledger_free(claim->table->session->ledger, claim);
}

struct claim *claim_begin(struct hold_table *table, const struct core_prefix *prefix,
                          uint32_t num_blocks, uint32_t num_found)
{
    struct core_session *session = table->session;
    struct pool *pool = session->pool;
    struct claim *claim =
        heap_reserve(&pool->due, (size_t)pool->num_claims + 1)
            ? calloc(1, sizeof *claim + (size_t)num_blocks * sizeof(struct claim_place))
            : NULL;
    struct prefix_root *root = claim ? prefix_root_get(table->cache, session->salt, prefix) : NULL;
    if (!root) {
        free(claim);
        return NULL;
    }
    claim->table = table;
    claim->root = root;
    claim->num_found = num_found;
    claim->num_wanted = num_blocks;
    claim->grows = true;
    claim->id = claim->rank = ++session->ledger->last_id;
    root->claims++;
    pool->num_claims++;
    claim->bytes = bytes_for(table->cache, prefix, num_blocks);
    session_count_memory(session, claim->bytes);
    LIST_APPEND(table->claims, claim);
    return claim;
}

bool claim_grow(struct claim *claim, const int32_t *tokens, uint32_t count)
{
    struct ledger *ledger = claim->table->session->ledger;
    uint32_t i = claim->num_blocks;
    const bool filled = fill_places(claim, tokens, count);
    for (i = i < claim->num_found ? claim->num_found : i; i < claim->num_blocks; i++)
        enqueue(&claim->places[i]);
    claim->grows = claim->num_blocks < claim->num_wanted;
    if (!filled || claim->grows)
        return filled;
    claim->progress_ns = ledger->now_ns;
    set_due(claim, claim->progress_ns);
    ledger->metrics[METRIC_CLAIMS]++;
    return true;
}

struct claim *claim_create(struct hold_table *table, const struct core_prefix *prefix,
                           uint32_t num_blocks, uint32_t num_found)
{
    struct claim *claim = claim_begin(table, prefix, num_blocks, num_found);
    if (!claim || claim_grow(claim, prefix->tokens, num_blocks))
        return claim;
    claim_end(claim);
    return NULL;
}

struct claim *claim_find(const struct hold_table *table, uint64_t id)
{
    struct claim *claim;
    LIST_EACH(table->claims, claim) {
        if (claim->id == id)
            break;
    }
    return claim;
}

void claim_end(struct claim *claim)
{
    LIST_DELETE(claim->table->claims, claim);
    claim_free(claim);
}

void claim_end_all(struct hold_table *table)
{
    while (table->claims)
        claim_end(table->claims);
}

static bool end_if_over(struct claim *claim)
{
    bool over = claim->num_queued == 0;
    if (over)
        claim_end(claim);
    return over;
}

void claim_truncate(struct claim *claim, uint32_t num_blocks)
{
    if (num_blocks < claim->num_blocks)
        drop_places(claim, num_blocks);
    if (claim->num_found > claim->num_blocks)
        claim->num_found = claim->num_blocks;
    end_if_over(claim);
}

bool claim_advance(struct claim *claim, uint32_t num_found)
{
    if (claim->num_found < num_found)
        renew(claim);
    for (; claim->num_found < num_found; claim->num_found++)
        dequeue(&claim->places[claim->num_found]);
    return end_if_over(claim);
}

// ---- whose turn it is ----

// A place that left its queue because its session had published the block comes back if the block
// was evicted since then.
static bool is_promised(struct claim_place *place)
{
    const struct claim_node *node = place->node;
    if (node->node)
        return true;
    if (!place->queued)
        enqueue(place);
    return node->queue != place;
}

uint32_t claim_num_promised(struct claim *claim)
{
    uint32_t end = claim->num_found;
    while (end < claim->num_blocks && is_promised(&claim->places[end]))
        end++;
    return end - claim->num_found;
}

bool claim_waits(struct claim *claim)
{
    struct claim_place *next = &claim->places[claim->num_found];
    const struct prefix_node *node = next->node->node;
    const bool waits = !(node && prefix_visible(node)) && is_promised(next);
    if (waits && claim->claimers && !next->queued)
        enqueue(next); // because the news of a block goes to the claims in its queue
    return waits;
}

void claim_begin_wait(struct claim *claim, struct core_wait *wait)
{
    wait->claim = claim;
    LIST_APPEND_BY(claim->claimers, wait, beside_prev, beside_next);
    queue_count_wait(wait->session, true);
    if (!claim_waits(claim))
        ledger_wake(wait->session->ledger, wait);
}

void claim_end_wait(struct core_wait *wait)
{
    if (wait->claim)
        LIST_DELETE_BY(wait->claim->claimers, wait, beside_prev, beside_next);
    queue_count_wait(wait->session, false);
}

uint64_t claim_holder(const struct claim *claim)
{
    const struct claim_place *first = claim->places[claim->num_found].node->queue;
    return first ? first->claim->table->session->id : 0;
}

// ---- the prefix index ----

void claim_meet(struct cache *cache, struct prefix_node *node)
{
    const struct claim_node *parent = node->parent ? node->parent->claim : NULL;
    if (node->parent ? !parent : !node->root->claims)
        return;
    node->claim =
        node_find(cache, parent ? (const void *)parent : node->root, node->hash, node->tokens);
    if (node->claim)
        node->claim->node = node;
}

void claim_part(struct cache *cache, struct prefix_node *node)
{
    struct claim_place *place;
    if (!node->claim)
        return;
    LIST_EACH(node->claim->queue, place) {
        place->published = false;
    }
    wake_queue(node->claim);
    node->claim->node = NULL;
    node->claim = NULL;
    cache->pool->ledger->news = true; // its block is the first claim's to compute again
}

void claim_publish(struct cache *cache, struct prefix_node *node,
                   const struct core_session *session)
{
    struct claim_place *own = node->claim ? node->claim->queue : NULL;
    while (own && (own->published || own->claim->table->session != session))
        own = own->next;
    if (own) {
        own->published = true;
        renew(own->claim);
    }
    if (prefix_visible(node)) // perhaps by replacing a block whose publishers' claims still wait
        claim_visible(cache, node);
}

void claim_visible(struct cache *cache, struct prefix_node *node)
{
    struct claim_node *own = node->claim;
    struct claim_place *place, *next;
    if (!own)
        return;
    own->refs++; // so that the end of its last claim leaves it until the loop is over
    LIST_EACH_SAFE(own->queue, place, next) {
        if (!place->published)
            continue;
        wake(place);
        dequeue(place);
        end_if_over(place->claim);
    }
    wake_queue(own); // the others may take it
    node_unref(cache, own);
    cache->pool->ledger->news = true;
}
