// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// audit.c - counts everything again, once by sessions and once by blocks, and compares the sums
// with core's counters. It changes only scratch stamps, and is slow by design. Runs on the
// dispatcher thread, or on the thread of a test that calls core.

#include "audit.h"

#include "base/clock.h"
#include "core/pool/claim.h"
#include "core/pool/hold.h"
#include "core/pool/prefix.h"
#include "core/pool/tenant.h"
#include "core/runs/run.h"
#include "state.h"

#include <inttypes.h>
#include <string.h>

#define EXPECT(condition, ...)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            error_set(error, STATUS_INTERNAL, __VA_ARGS__);                                        \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

// What the counters of one block should be; see struct block.
struct tally {
    uint32_t holders, users, dead_users, pending;
    uint32_t reserved; // slots
    uint32_t offers;   // with a giver
};

static uint32_t writes(struct block *const *blocks, uint32_t count, const struct block *block)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++)
        found += blocks[i] == block;
    return found;
}

// True if `run` is the session's first run of a batch that is not registered: a destroyed one or an
// earlier step. With the registered batches, these runs then name every live batch once.
static bool first_mention(const struct core_session *session, const struct run *run)
{
    const struct run *earlier;
    if (run->over || !run->batch)
        return false;
    const struct batch *found;
    HASH_FIND(hh, session->batches, &run->batch->id, sizeof run->batch->id, found);
    if (found == run->batch) // registered; else `found` is a later step
        return false;
    for (earlier = session->runs; earlier != run; earlier = earlier->next) {
        if (!earlier->over && earlier->batch == run->batch)
            return false;
    }
    return true;
}

static uint32_t tally_batch(const struct batch *batch, const struct block *block)
{
    uint32_t found = batch->mentions && mentions_has(batch->mentions, block->id);
    for (uint32_t i = 0; i < batch->num_blocks; i++)
        found += batch->blocks[i] == block->id;
    for (const struct mentions_dropped *dropped = batch->dropped; dropped; dropped = dropped->next)
        for (size_t i = 0; i < dropped->count; i++)
            found += dropped->blocks[i].id == block->id;
    return found;
}

static uint32_t count_bits(const uint8_t *bits, uint32_t num_bytes)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < num_bytes; i++)
        count += (uint32_t)__builtin_popcount(bits[i]);
    return count;
}

// The slots of the block that the batch reserves.
static uint32_t reserved_slots(const struct batch *batch, const struct block *block)
{
    uint32_t size = batch->kv.block_size / 8, count = 0;
    for (uint32_t i = 0; batch->reserves && i < batch->num_writes; i++)
        if (batch->writes[i] == block)
            count += count_bits(batch->write_masks + i * (size_t)size, size);
    return count;
}

static uint32_t tally_copy(const struct copy *copy, const struct block *block, struct tally *tally)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < copy->count; i++) {
        found += (copy->pairs[i].from == block) + (copy->pairs[i].to == block);
        tally->pending += copy->pairs[i].to == block;
    }
    return found;
}

static bool tally_session(const struct core_session *session, const struct cache *cache,
                          const struct block *block, struct tally *tally, struct error *error)
{
    const struct hold_table *table;
    const struct run *run;
    uint32_t refs = 0, before = tally->offers;
    HASH_FIND(hh, session->tables, &cache->id, sizeof cache->id, table);
    if (!table)
        return true;
    for (const struct batch *batch = session->batches; batch; batch = batch->hh.next) {
        if (batch->table == table)
            refs += tally_batch(batch, block);
        if (batch->table == table)
            tally->reserved += reserved_slots(batch, block);
    }
    for (const struct offer *offer = session->given; offer; offer = offer->given_next)
        tally->offers += offer->table == table && offer_names(offer, block->id);
    refs += tally->offers - before;
    DL_FOREACH(session->runs, run)
    {
        if (!run->over && run->copy && run->copy->table == table)
            refs += tally_copy(run->copy, block, tally);
        if (run->over || !run->batch || run->batch->table != table)
            continue;
        if (first_mention(session, run))
            refs += tally_batch(run->batch, block);
        if (run->engine.kind != ENGINE_GATHER)
            tally->pending += writes(run->batch->writes, run->batch->num_writes, block);
    }
    const struct hold hold = hold_find(table, block->id);
    EXPECT(hold.refs == refs,
           "block %" PRId32 ": session %" PRIu64 " counts %" PRIu32 " batch refs, has %" PRIu32,
           block->id, session->id, hold.refs, refs);
    EXPECT(hold_has(table, block->id) == (hold.holds > 0),
           "block %" PRId32 ": session %" PRIu64 " has a wrong held bit", block->id, session->id);
    tally->holders += hold.holds > 0;
    tally->users += hold.holds || hold.refs;
    tally->dead_users += table->dead && (hold.holds || hold.refs);
    return true;
}

static bool check_tally(const struct cache *cache, const struct block *block,
                        const struct tally *tally, struct error *error)
{
    const uint32_t reserved = count_bits(block_reserved(cache, block), cache->layer_bytes);
    EXPECT(reserved == tally->reserved,
           "block %" PRId32 ": %" PRIu32 " reserved slots, counted %" PRIu32, block->id, reserved,
           tally->reserved);
    EXPECT(block->holders == tally->holders,
           "block %" PRId32 ": %" PRIu32 " holders, counted %" PRIu32, block->id, block->holders,
           tally->holders);
    EXPECT(block->users == tally->users, "block %" PRId32 ": %" PRIu32 " users, counted %" PRIu32,
           block->id, block->users, tally->users);
    EXPECT(block->dead_users == tally->dead_users,
           "block %" PRId32 ": %" PRIu32 " dead users, counted %" PRIu32, block->id,
           block->dead_users, tally->dead_users);
    EXPECT(block->offers == tally->offers,
           "block %" PRId32 ": %" PRIu32 " offers, counted %" PRIu32, block->id, block->offers,
           tally->offers);
    EXPECT(block->pending == tally->pending,
           "block %" PRId32 ": %" PRIu32 " pending writes, counted %" PRIu32, block->id,
           block->pending, tally->pending);
    return true;
}

static enum core_block_kind expected_state(const struct block *block)
{
    if (block->users == 0)
        return block->node ? CORE_CACHED : CORE_FREE;
    if (block->users == block->dead_users)
        return CORE_QUARANTINED;
    return block->sealed ? CORE_HELD : CORE_LEASED;
}

static bool in_heap(const struct heap *heap, const struct heap_node *node)
{
    return node->place && node->place <= heap->size && heap->entries[node->place - 1].node == node;
}

static bool check_charge(const struct block *block, struct error *error)
{
    bool cached = block->state == CORE_CACHED;
    bool pinned = cached && block->node->num_keeps[CORE_KEEP_PINNED];
    bool preferred = cached && block->node->num_keeps[CORE_KEEP_PREFERRED];
    enum block_charge expected = block->state == CORE_FREE ? CHARGE_NONE
                                 : cached && !pinned       ? CHARGE_CACHED
                                                           : CHARGE_USED;
    EXPECT(block->charge == expected, "block %" PRId32 " in state %d is charged as %d", block->id,
           block->state, block->charge);
    EXPECT(!block->account == (block->charge == CHARGE_NONE),
           "block %" PRId32 " is free and has an account, or the reverse", block->id);
    EXPECT(!block->account || order_has(&block->account->victims, &block->eviction) ==
                                  (block->charge == CHARGE_CACHED),
           "block %" PRId32 " is wrongly among the victims or not", block->id);
    EXPECT(block->charge != CHARGE_CACHED ||
               block->eviction.key == (block_last_use(block) | (preferred ? EVICT_PREFERRED : 0) |
                                       (block->node->children ? EVICT_INNER : 0)),
           "block %" PRId32 " has a wrong place in the order of eviction", block->id);
    EXPECT(!block->node || block->account->tenant == block->node->root->salt->tenant,
           "block %" PRId32 " is charged to another tenant than its prefix", block->id);
    return true;
}

static bool check_state(const struct block *block, struct error *error)
{
    EXPECT(block->state == expected_state(block), "block %" PRId32 " is in state %d, not %d",
           block->id, block->state, expected_state(block));
    EXPECT(!block->node || block->node->block == block, "block %" PRId32 " and its node disagree",
           block->id);
    EXPECT(!block->node || block->sealed, "block %" PRId32 " is in the index but not sealed",
           block->id);
    EXPECT(block->state == CORE_LEASED || block->state == CORE_QUARANTINED || !block->writer,
           "block %" PRId32 " in state %d has writer %" PRIu64, block->id, block->state,
           block->writer);
    return check_charge(block, error);
}

static bool check_block(const struct core *core, const struct cache *cache,
                        const struct block *block, struct error *error)
{
    const struct core_session *session;
    struct tally tally = {0};
    DL_FOREACH(core->sessions, session)
    {
        if (!tally_session(session, cache, block, &tally, error))
            return false;
    }
    DL_FOREACH(core->leaving, session)
    {
        if (!tally_session(session, cache, block, &tally, error))
            return false;
    }
    return check_tally(cache, block, &tally, error) && check_state(block, error);
}

static bool check_free_stack(const struct cache *cache, const struct chunk *chunk,
                             struct error *error)
{
    uint32_t length = chunk->num_free;
    uint64_t stamp = ++cache->pool->ledger->last_stamp;
    EXPECT(length <= cache->chunk_blocks, "chunk %" PRIu32 ": the free stack is too long",
           chunk->number);
    for (uint32_t i = 0; i < length; i++) {
        struct block *block = &chunk->blocks[chunk->free[i]];
        EXPECT(block->state == CORE_FREE, "block %" PRId32 " is on the free stack", block->id);
        EXPECT(block->stamp != stamp, "block %" PRId32 " is on the free stack twice", block->id);
        block->stamp = stamp;
    }
    EXPECT(in_heap(&cache->usable, &chunk->usable) == (length > 0),
           "chunk %" PRIu32 " is wrongly in or not in the usable heap", chunk->number);
    EXPECT(in_heap(&cache->empty, &chunk->spare) == (length == cache->chunk_blocks),
           "chunk %" PRIu32 " is wrongly in or not in the empty heap", chunk->number);
    return true;
}

static bool check_idle(const struct cache *cache, const struct chunk *chunk, struct error *error)
{
    uint32_t used = 0, cached = 0, preferred = 0;
    for (uint32_t i = 0; i < cache->chunk_blocks; i++) {
        const struct block *block = &chunk->blocks[i];
        used += block->charge == CHARGE_USED;
        cached += block->charge == CHARGE_CACHED;
        preferred += block->charge == CHARGE_CACHED && block->node->num_keeps[CORE_KEEP_PREFERRED];
    }
    EXPECT(used == chunk->num_used && cached == chunk->num_cached &&
               preferred == chunk->num_preferred,
           "chunk %" PRIu32 " counts %" PRIu32 " used, %" PRIu32 " cached, %" PRIu32
           " preferred blocks; has %" PRIu32 ", %" PRIu32 ", %" PRIu32,
           chunk->number, chunk->num_used, chunk->num_cached, chunk->num_preferred, used, cached,
           preferred);
    EXPECT((chunk->owner && order_has(&chunk->owner->idle, &chunk->idle)) == (cached && !used),
           "chunk %" PRIu32 " is wrongly idle or not", chunk->number);
    EXPECT(used || !cached ||
               chunk->idle.key == (chunk->last_use | (preferred ? EVICT_PREFERRED : 0)),
           "chunk %" PRIu32 " has a wrong age", chunk->number);
    return true;
}

static bool check_chunk(const struct core *core, const struct cache *cache,
                        const struct chunk *chunk, uint64_t counts[CORE_ABSENT],
                        struct error *error)
{
    EXPECT(in_heap(&cache->absent, &chunk->spare) == (chunk->state == CHUNK_ABSENT),
           "chunk %" PRIu32 " is wrongly in or not in the absent heap", chunk->number);
    if (chunk->state != CHUNK_PRESENT)
        return true;
    for (uint32_t i = 0; i < cache->chunk_blocks; i++) {
        if (!check_block(core, cache, &chunk->blocks[i], error))
            return false;
        counts[chunk->blocks[i].state]++;
    }
    return check_free_stack(cache, chunk, error) && check_idle(cache, chunk, error);
}

static bool check_index(const struct cache *cache, struct error *error)
{
    uint64_t nodes = 0, pending = 0;
    const struct prefix_node *node;
    size_t at = 0;
    for (; (node = node_table_each(&cache->nodes, &at)); nodes++) {
        const struct prefix_node *found =
            prefix_find(cache, node->root, node->parent, node->tokens);
        EXPECT(found == node, "node %" PRIu64 " is not found under its key", node->id);
        EXPECT(node->block && node->block->node == node, "node %" PRIu64 " has no block of its own",
               node->id);
        EXPECT(node->depth == (node->parent ? node->parent->depth + 1 : 0),
               "node %" PRIu64 " has a wrong depth", node->id);
        pending += node->block->pending > 0;
    }
    EXPECT(nodes == cache->num_nodes && pending == cache->num_pending,
           "%" PRIu64 " nodes, %" PRIu64 " pending; counted %" PRIu64 ", %" PRIu64,
           cache->num_nodes, cache->num_pending, nodes, pending);
    for (const struct prefix_root *root = cache->roots; root; root = root->hh.next)
        EXPECT(root->children || root->claims, "root %" PRIu64 " has neither children nor claims",
               root->id);
    return true;
}

// Every queue has the order of the claims' ids, so no wait can deadlock.
static bool check_queue(const struct cache *cache, const struct claim_node *node,
                        struct error *error)
{
    uint64_t last = 0;
    const struct claim_place *place;
    EXPECT(node->refs, "claim node %" PRIu64 " has no claim", node->id);
    EXPECT(!node->node || node->node->claim == node,
           "claim node %" PRIu64 " and its node of the index disagree", node->id);
    EXPECT(!node->node || !memcmp(node->key.tokens, node->node->tokens,
                                  cache->identity.kv.block_size * sizeof(int32_t)),
           "claim node %" PRIu64 " has other tokens than its node of the index", node->id);
    DL_FOREACH(node->queue, place)
    {
        EXPECT(place->queued && place->node == node && place->claim->id > last,
               "the queue of claim node %" PRIu64 " is out of order", node->id);
        last = place->claim->id;
    }
    return true;
}

static bool check_claim(const struct claim *claim, struct error *error)
{
    uint32_t queued = 0;
    for (uint32_t i = 0; i < claim->num_blocks; i++) {
        const struct claim_place *place = &claim->places[i];
        const struct claim_node *parent = i ? place[-1].node : NULL;
        queued += place->queued;
        EXPECT(place->node->key.parent == (parent ? parent->id : claim->root->id),
               "claim %" PRIu64 ": place %" PRIu32 " is not below the one before", claim->id, i);
        EXPECT(!place->queued || i >= claim->num_found,
               "claim %" PRIu64 " wants block %" PRIu32 ", which it has", claim->id, i);
    }
    EXPECT(queued && queued == claim->num_queued,
           "claim %" PRIu64 " wants %" PRIu32 " blocks, counted %" PRIu32, claim->id,
           claim->num_queued, queued);
    return true;
}

// Each claim node has an index node of the same chain if there is one, and as many refs as claims.
static bool check_claims(const struct cache *cache, struct error *error)
{
    const struct hold_table *table;
    const struct claim *claim;
    uint64_t refs = 0, places = 0;
    for (const struct claim_node *node = cache->claims; node; node = node->hh.next) {
        refs += node->refs;
        if (!check_queue(cache, node, error))
            return false;
    }
    DL_FOREACH(cache->tables, table)
    {
        DL_FOREACH(table->claims, claim)
        {
            places += claim->num_blocks;
            if (!check_claim(claim, error))
                return false;
        }
    }
    EXPECT(refs == places, "cache %" PRIu64 ": claim nodes have %" PRIu64 " refs, claims %" PRIu64,
           cache->id, refs, places);
    const struct prefix_node *own;
    size_t at = 0;
    while ((own = node_table_each(&cache->nodes, &at)))
        EXPECT(!own->claim || own->claim->node == own,
               "node %" PRIu64 " and its claim node disagree", own->id);
    return true;
}

static bool check_heaps(const struct cache *cache, struct error *error)
{
    const struct heap *heaps[] = {&cache->usable, &cache->empty, &cache->absent};
    for (size_t i = 0; i < sizeof heaps / sizeof(struct heap *); i++)
        EXPECT(heap_sound(heaps[i]), "heap %zu of cache %" PRIu64 " is out of order", i, cache->id);
    return true;
}

// What core counts of an account or a tenant.
struct charged {
    uint64_t used, cached, pinned, used_bytes, cached_bytes;
};

static void charge_account(const struct account *account, struct charged *sum)
{
    const struct cache *cache = account->cache;
    for (uint64_t id = 0; id < cache_num_ids(cache); id++) {
        const struct block *block = block_find(cache, (int64_t)id);
        if (!block || block->account != account)
            continue;
        bool used = block->charge == CHARGE_USED;
        sum->used += used;
        sum->cached += !used;
        sum->pinned += used && block->state == CORE_CACHED;
        sum->used_bytes += used ? cache->block_bytes : 0;
        sum->cached_bytes += used ? 0 : cache->block_bytes;
    }
}

static bool check_tenant(const struct pool *pool, const struct tenant *tenant, struct error *error)
{
    const struct account *account;
    struct charged sum = {0};
    DL_FOREACH(tenant->accounts, account)
    {
        uint64_t before = sum.used + sum.cached;
        charge_account(account, &sum);
        EXPECT(account->blocks == sum.used + sum.cached - before,
               "tenant \"%s\" miscounts its blocks of cache %" PRIu64, tenant->label,
               account->cache->id);
        EXPECT(order_sound(&account->victims) && order_sound(&account->idle),
               "a queue of tenant \"%s\" is out of order", tenant->label);
    }
    EXPECT(sum.used == tenant->used && sum.cached == tenant->cached &&
               sum.pinned == tenant->pinned && sum.used_bytes == tenant->used_bytes &&
               sum.cached_bytes == tenant->cached_bytes,
           "tenant \"%s\" counts %" PRIu64 " used, %" PRIu64 " cached, %" PRIu64
           " pinned; has %" PRIu64 ", %" PRIu64 ", %" PRIu64,
           tenant->label, tenant->used, tenant->cached, tenant->pinned, sum.used, sum.cached,
           sum.pinned);
    EXPECT(in_heap(&pool->ranks, &tenant->rank) == (tenant_surplus(tenant) > 0),
           "tenant \"%s\" is wrongly ranked or not", tenant->label);
    EXPECT(tenant->over == (tenant->limits.cached && tenant->cached > tenant->limits.cached),
           "tenant \"%s\" has %" PRIu64 " cached blocks, its limit is %" PRIu64, tenant->label,
           tenant->cached, tenant->limits.cached);
    return true;
}

static bool check_tenants(const struct pool *pool, struct error *error)
{
    const struct tenant *tenant;
    for (tenant = pool->tenants; tenant; tenant = tenant->hh.next) {
        if (!check_tenant(pool, tenant, error))
            return false;
    }
    EXPECT(heap_sound(&pool->ranks), "the heap of tenants is out of order");
    return true;
}

static bool check_cache(const struct core *core, const struct cache *cache, struct error *error)
{
    uint64_t counts[CORE_ABSENT] = {0}, sum = 0;
    uint32_t present = 0, growing = 0;
    for (uint32_t i = 0; i < cache->num_chunks; i++) {
        present += cache->chunks[i]->state == CHUNK_PRESENT;
        growing += cache->chunks[i]->state == CHUNK_GROWING;
        if (!check_chunk(core, cache, cache->chunks[i], counts, error))
            return false;
    }
    EXPECT(present == cache->num_present && growing == cache->num_growing,
           "cache %" PRIu64 " miscounts its chunks", cache->id);
    for (int state = 0; state < CORE_ABSENT; state++) {
        EXPECT(counts[state] == cache->counts[state],
               "cache %" PRIu64 ": %" PRIu64 " blocks in state %d, counted %" PRIu64, cache->id,
               cache->counts[state], state, counts[state]);
        sum += counts[state];
    }
    EXPECT(sum == cache_total(cache),
           "cache %" PRIu64 ": the states sum to %" PRIu64 " of %" PRIu64, cache->id, sum,
           cache_total(cache));
    EXPECT(cache->num_tables || cache->counts[CORE_CACHED],
           "cache %" PRIu64 " has neither a user nor a cached block", cache->id);
    return check_heaps(cache, error) && check_index(cache, error) && check_claims(cache, error);
}

static uint64_t count_entries(const struct hold_table *table)
{
    uint64_t entries = 0;
    for (uint32_t page = 0; page < table->num_pages; page++) {
        for (uint32_t i = 0; table->pages[page] && i < table->cache->chunk_blocks; i++)
            entries += hold_is_used(table->pages[page], i);
    }
    return entries;
}

static bool check_pages(const struct core_session *session, const struct hold_table *table,
                        struct error *error)
{
    for (uint32_t page = 0; page < table->num_pages; page++) {
        for (uint32_t i = 0; table->pages[page] && i < table->cache->chunk_blocks; i += 64)
            EXPECT(!table->pages[page]->bits[i / 64].seen,
                   "session %" PRIu64 ": page %" PRIu32 " has a seen bit outside a check",
                   session->id, page);
    }
    return true;
}

// Users of a table are its batches, registered or kept by runs, its copies that are not over, and
// its offers.
static bool check_users(const struct core_session *session, const struct hold_table *table,
                        struct error *error)
{
    const struct run *run;
    uint32_t users = 0;
    for (const struct batch *batch = session->batches; batch; batch = batch->hh.next)
        users += batch->table == table;
    for (const struct offer *offer = session->given; offer; offer = offer->given_next)
        users += offer->table == table;
    DL_FOREACH(session->runs, run)
    {
        users += first_mention(session, run) && run->batch->table == table;
        users += run->copy && run->copy->table == table;
    }
    EXPECT(users == table->num_users,
           "session %" PRIu64 " counts %" PRIu32 " users of cache %" PRIu64 ", has %" PRIu32,
           session->id, table->num_users, table->cache_id, users);
    return true;
}

static uint64_t bytes_of(const struct batch *batch)
{
    uint64_t bytes = batch_bytes(batch) + (batch->mentions ? mentions_bytes(batch->mentions) : 0);
    for (const struct mentions_dropped *dropped = batch->dropped; dropped; dropped = dropped->next)
        bytes += mentions_dropped_bytes(dropped->capacity);
    return bytes;
}

// batch_memory counts batches, registered or kept by runs, runs from queueing until reaping, and
// offers.
static bool check_batch_memory(const struct core_session *session, struct error *error)
{
    const struct run *run;
    uint64_t bytes = 0;
    for (const struct batch *batch = session->batches; batch; batch = batch->hh.next)
        bytes += bytes_of(batch);
    for (const struct offer *offer = session->given; offer; offer = offer->given_next)
        bytes += offer->bytes;
    DL_FOREACH(session->runs, run)
    {
        bytes += run->bytes + (first_mention(session, run) ? bytes_of(run->batch) : 0);
        EXPECT(!run->over || (!run->batch && !run->copy),
               "run %" PRIu64 " is over and keeps what it named", run->ticket);
    }
    for (run = session->tickets; run; run = run->hh.next)
        bytes += run->delivered ? run->bytes : 0;
    EXPECT(bytes == session->batch_memory,
           "session %" PRIu64 " counts %" PRIu64 " bytes of batch memory, has %" PRIu64,
           session->id, session->batch_memory, bytes);
    return true;
}

static bool check_offer(const struct offers *offers, const struct offer *offer, struct error *error)
{
    const bool waits = offer->giver && !offer->taker && offer->expires_ns != FOREVER;
    const struct offer *found = NULL;
    if (offer->giver) {
        unsigned hash = ledger_hash(offer->giver->ledger, offer->key, offer->key_size);
        HASH_FIND_BYHASHVALUE(hh, offers->by_name, offer->key, offer->key_size, hash, found);
    }
    EXPECT(found == (offer->giver ? offer : NULL), "offer %" PRIu64 " is not found by its name",
           offer->view.id);
    EXPECT((offer->table != NULL) == (offer->giver != NULL),
           "offer %" PRIu64 " has a table without a giver, or the reverse", offer->view.id);
    EXPECT(in_heap(&offers->expiring, &offer->expiry) == waits,
           "offer %" PRIu64 " is wrongly in or not in the heap of deadlines", offer->view.id);
    for (uint32_t i = 0; i < offer->view.num_blocks; i++) {
        const struct block *block = block_find(offer->cache, offer->view.blocks[i]);
        EXPECT(!offer->giver || (block && block->users && !block->writer),
               "block %" PRId32 " of offer %" PRIu64 " can be written", offer->view.blocks[i],
               offer->view.id);
    }
    return true;
}

static bool check_offers_of(const struct core_session *session, uint32_t *num, struct error *error)
{
    uint32_t given = 0, taken = 0;
    for (const struct offer *offer = session->given; offer; offer = offer->given_next, given++) {
        EXPECT(offer->giver == session, "offer %" PRIu64 " has another giver", offer->view.id);
        if (!check_offer(session->offers, offer, error))
            return false;
    }
    for (const struct offer *offer = session->taken; offer; offer = offer->taken_next, taken++) {
        EXPECT(offer->taker == session, "offer %" PRIu64 " has another taker", offer->view.id);
        if (!check_offer(session->offers, offer, error))
            return false;
        *num += !offer->giver;
    }
    EXPECT(given == session->num_given && taken == session->num_taken,
           "session %" PRIu64 " counts %" PRIu32 " given and %" PRIu32 " taken offers, has %" PRIu32
           " and %" PRIu32,
           session->id, session->num_given, session->num_taken, given, taken);
    *num += given;
    return true;
}

static bool check_session(const struct core_session *session, struct error *error)
{
    const struct run *run;
    uint64_t blocks = 0;
    uint32_t in_flight = 0, detached = 0;
    for (const struct hold_table *table = session->tables; table; table = table->hh.next) {
        EXPECT(count_entries(table) == table->num_blocks,
               "session %" PRIu64 " miscounts its blocks of cache %" PRIu64, session->id,
               table->cache_id);
        blocks += table->num_blocks;
        if (!check_pages(session, table, error) || !check_users(session, table, error))
            return false;
    }
    EXPECT(blocks == session->num_blocks,
           "session %" PRIu64 " counts %" PRIu64 " blocks, has %" PRIu64, session->id,
           session->num_blocks, blocks);
    DL_FOREACH(session->runs, run)
    {
        in_flight += run->over ? 0 : run->num_picked - run->num_over;
        detached += run->detached;
    }
    EXPECT((session->queued != NULL) ==
               in_heap(&session->core->scheduler.turns.ready, &session->ready),
           "session %" PRIu64 " has queued runs but is not in the ready heap, or the reverse",
           session->id);
    EXPECT(session->num_in_flight == in_flight,
           "session %" PRIu64 ": %" PRIu32 " layers of runs in flight, not %" PRIu32, session->id,
           session->num_in_flight, in_flight);
    EXPECT(session->closed || session->num_unreaped == HASH_COUNT(session->tickets) + detached,
           "session %" PRIu64 ": %" PRIu32 " tickets unreaped, not %" PRIu32, session->id,
           session->num_unreaped, HASH_COUNT(session->tickets) + detached);
    return check_batch_memory(session, error);
}

static bool check_sessions(const struct core *core, struct error *error)
{
    const struct core_session *session;
    uint32_t open = 0, expected = 0, offers = 0;
    DL_FOREACH(core->sessions, session)
    {
        open++;
        expected += turns_expects(session);
        if (!check_session(session, error) || !check_offers_of(session, &offers, error))
            return false;
    }
    DL_FOREACH(core->leaving, session)
    {
        EXPECT(session->num_in_flight, "session %" PRIu64 " should be gone", session->id);
        if (!check_session(session, error))
            return false;
    }
    EXPECT(expected == core->scheduler.turns.num_expected,
           "%" PRIu32 " sessions expected back, counted %" PRIu32, expected,
           core->scheduler.turns.num_expected);
    EXPECT(offers == core->offers.num && heap_sound(&core->offers.expiring),
           "%" PRIu32 " offers, counted %" PRIu32, core->offers.num, offers);
    EXPECT(open == core->num_sessions, "%" PRIu32 " sessions, counted %" PRIu32, core->num_sessions,
           open);
    return true;
}

bool core_check(const struct core *core, struct error *error)
{
    uint64_t bytes = 0, blocks = 0;
    for (uint32_t i = 0; i < core->pool.num_caches; i++) {
        const struct cache *cache = core->pool.caches[i];
        uint64_t chunks = (uint64_t)cache->num_present + cache->num_growing;
        bytes += chunks * cache->chunk_bytes;
        blocks += chunks * cache->chunk_blocks;
        if (!check_cache(core, cache, error))
            return false;
    }
    EXPECT(bytes == core->pool.bytes && blocks == core->pool.blocks,
           "the pool counts %" PRIu64 " bytes, has %" PRIu64, core->pool.bytes, bytes);
    EXPECT(bytes <= core->pool.limit_bytes && blocks <= core->pool.limit_blocks,
           "the pool exceeds its limit");
    EXPECT(heap_sound(&core->scheduler.turns.ready), "the scheduler's heap is out of order");
    for (uint32_t i = 0; i < core->pool.num_zeroes; i++)
        EXPECT(core->pool.zero_blocks[i]->zeroing &&
                   core->pool.zero_blocks[i]->id == core->pool.zeroes[i].block,
               "zero %" PRIu32, i);
    return check_tenants(&core->pool, error) && check_sessions(core, error);
}
