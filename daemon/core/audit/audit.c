// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// audit.c - counts everything again, once by sessions and once by blocks, and compares the sums
// with core's counters. Here are the pool's: blocks, chunks, prefixes, claims and tenants. It
// changes only scratch stamps, and is slow by design. Runs on the dispatcher thread, or on the
// thread of a test that calls core.

#include "audit.h"

#include "audit_session.h"
#include "base/list.h"
#include "core/pool/attached.h"
#include "core/pool/claim.h"
#include "core/pool/hold.h"
#include "core/pool/prefix.h"
#include "core/pool/tenant.h"
#include "core/runs/run.h"
#include "core/state.h"
#include "core/steps/making.h"

#include <inttypes.h>
#include <string.h>

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
    for (const struct offer *offer = session->offers.given; offer; offer = offer->given_next)
        tally->offers += offer->table == table && offer_names(offer, block->id);
    refs += tally->offers - before + attached_lingers(table, block->id);
    LIST_EACH(session->runs.list, run) {
        if (!run->over && run->copy && run->copy->table == table)
            refs += tally_copy(run->copy, block, tally);
        if (run->over || !run->batch || run->batch->table != table)
            continue;
        if (audit_first_mention(session, run))
            refs += tally_batch(run->batch, block);
        if (run->engine.kind != ENGINE_GATHER)
            tally->pending += writes(run->batch->writes, run->batch->num_writes, block);
    }
    for (const struct core_draft *draft = session->drafts; draft; draft = draft->next) {
        if (draft->table == table && audit_kept_by(draft))
            refs += tally_batch(draft->old, block);
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

static bool check_written(const struct cache *cache, const struct block *block, struct error *error)
{
    uint32_t layers = 0;
    for (uint32_t layer = 0; layer < cache->identity.num_layers; layer++)
        layers += count_bits(block_written(cache, block, layer), cache->layer_bytes) ==
                  cache->identity.kv.block_size;
    EXPECT(block->written_layers == layers,
           "block %" PRId32 ": %d layers with all slots written, counted %" PRIu32, block->id,
           block->written_layers, layers);
    EXPECT(block_is_whole(cache, block->id) == (layers == cache->identity.num_layers),
           "block %" PRId32 " is wrongly whole or not", block->id);
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
    LIST_EACH(core->sessions, session) {
        if (!tally_session(session, cache, block, &tally, error))
            return false;
    }
    LIST_EACH(core->leaving, session) {
        if (!tally_session(session, cache, block, &tally, error))
            return false;
    }
    return check_tally(cache, block, &tally, error) && check_written(cache, block, error) &&
           check_state(block, error);
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
    EXPECT(number_set_has(&cache->usable, chunk->number) == (length > 0),
           "chunk %" PRIu32 " is wrongly usable or not", chunk->number);
    EXPECT(number_set_has(&cache->empty, chunk->number) == (length == cache->chunk_blocks),
           "chunk %" PRIu32 " is wrongly empty or not", chunk->number);
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
    const bool present = chunk->state == CHUNK_PRESENT;
    EXPECT(number_set_has(&cache->absent, chunk->number) == (chunk->state == CHUNK_ABSENT),
           "chunk %" PRIu32 " is wrongly absent or not", chunk->number);
    EXPECT(present || (!number_set_has(&cache->usable, chunk->number) &&
                       !number_set_has(&cache->empty, chunk->number)),
           "chunk %" PRIu32 " has no memory and is usable or empty", chunk->number);
    if (!present)
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
    EXPECT(node->refs, "claim node %" PRIx64 " has no claim", node->hash);
    EXPECT(!node->node || node->node->claim == node,
           "claim node %" PRIx64 " and its node of the index disagree", node->hash);
    EXPECT(!node->node || node->node->hash == node->hash,
           "claim node %" PRIx64 " has another hash than its node of the index", node->hash);
    EXPECT(!node->node || !memcmp(node->tokens, node->node->tokens,
                                  cache->identity.kv.block_size * sizeof(int32_t)),
           "claim node %" PRIx64 " has other tokens than its node of the index", node->hash);
    LIST_EACH(node->queue, place) {
        EXPECT(place->queued && place->node == node && place->claim->rank > last,
               "the queue of claim node %" PRIx64 " is out of order", node->hash);
        last = place->claim->rank;
    }
    return true;
}

static bool check_claim(const struct cache *cache, const struct claim *claim, struct error *error)
{
    uint32_t queued = 0;
    for (uint32_t i = 0; i < claim->num_blocks; i++) {
        const struct claim_place *place = &claim->places[i];
        const void *parent = i ? (const void *)place[-1].node : claim->root;
        queued += place->queued;
        EXPECT(place->node->parent == parent,
               "claim %" PRIu64 ": place %" PRIu32 " is not below the one before", claim->id, i);
        EXPECT(!place->queued || i >= claim->num_found,
               "claim %" PRIu64 " wants block %" PRIu32 ", which it has", claim->id, i);
    }
    EXPECT(in_heap(&cache->pool->due, &claim->due) ==
               (cache->pool->ledger->params->claim_timeout_ns != 0 && !claim->grows),
           "claim %" PRIu64 " is wrongly in or not in the heap of deadlines", claim->id);
    EXPECT((queued || claim->grows) && queued == claim->num_queued,
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
    const struct claim_node *node;
    for (size_t at = 0; (node = node_table_each(&cache->claims, &at));) {
        refs += node->refs;
        if (!check_queue(cache, node, error))
            return false;
    }
    LIST_EACH(cache->tables, table) {
        LIST_EACH(table->claims, claim) {
            places += claim->num_blocks;
            if (!check_claim(cache, claim, error))
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
    const struct number_set *sets[] = {&cache->usable, &cache->empty, &cache->absent};
    for (size_t i = 0; i < sizeof sets / sizeof(struct number_set *); i++)
        EXPECT(number_set_sound(sets[i]), "set %zu of cache %" PRIu64 " is unsound", i, cache->id);
    EXPECT(heap_sound(&cache->ranks), "the ranks of cache %" PRIu64 " are out of order", cache->id);
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
        sum->pinned += block->node && prefix_keeps(block->node, CORE_KEEP_PINNED);
        sum->used_bytes += used ? cache->block_bytes : 0;
        sum->cached_bytes += used ? 0 : cache->block_bytes;
    }
}

static bool is_rank_of(const struct tenant *tenant, const struct heap_node *node)
{
    return node->key == UINT64_MAX - tenant->cached_bytes && node->order == tenant->id;
}

static bool check_tenant(const struct pool *pool, const struct tenant *tenant, struct error *error)
{
    const struct account *account;
    struct charged sum = {0};
    uint64_t pinned_bytes = 0;
    LIST_EACH(tenant->accounts, account) {
        uint64_t before = sum.used + sum.cached, pinned = sum.pinned;
        charge_account(account, &sum);
        pinned_bytes += (sum.pinned - pinned) * account->cache->block_bytes;
        EXPECT(account->blocks == sum.used + sum.cached - before &&
                   account->pinned == sum.pinned - pinned,
               "tenant \"%s\" miscounts its blocks of cache %" PRIu64, tenant->label,
               account->cache->id);
        EXPECT(order_sound(&account->victims) && order_sound(&account->idle),
               "a queue of tenant \"%s\" is out of order", tenant->label);
    }
    EXPECT(sum.used == tenant->used && sum.cached == tenant->cached &&
               sum.pinned == tenant->pinned && pinned_bytes == tenant->pinned_bytes &&
               sum.used_bytes == tenant->used_bytes && sum.cached_bytes == tenant->cached_bytes,
           "tenant \"%s\" counts %" PRIu64 " used, %" PRIu64 " cached, %" PRIu64
           " pinned; has %" PRIu64 ", %" PRIu64 ", %" PRIu64,
           tenant->label, tenant->used, tenant->cached, tenant->pinned, sum.used, sum.cached,
           sum.pinned);
    uint64_t idle = 0;
    LIST_EACH(tenant->accounts, account) {
        const bool has = account->victims.size && tenant_surplus(tenant);
        idle += account->idle.size;
        EXPECT(tenant->stale || (in_heap(&account->cache->ranks, &account->rank) == has &&
                                 (!has || is_rank_of(tenant, &account->rank))),
               "tenant \"%s\" is wrongly ranked or not in cache %" PRIu64, tenant->label,
               account->cache->id);
    }
    const bool ranked = idle && tenant_surplus(tenant);
    EXPECT(tenant->stale || (in_heap(&pool->ranks, &tenant->rank) == ranked &&
                             (!ranked || is_rank_of(tenant, &tenant->rank))),
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
    EXPECT(heap_sound(&pool->ranks) && heap_sound(&pool->away),
           "a heap of tenants is out of order");
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
    EXPECT(present == cache->num_present && growing == cache->num_growing &&
               cache->num_ahead <= growing,
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
    const struct account *account;
    uint32_t opens = 0;
    LIST_EACH_BY(cache->accounts, account, next_beside) {
        opens += account->opens;
    }
    EXPECT(opens == cache->open_sessions,
           "cache %" PRIu64 " is open in %" PRIu32 " sessions, tenants count %" PRIu32, cache->id,
           cache->open_sessions, opens);
    return check_heaps(cache, error) && check_index(cache, error) && check_claims(cache, error);
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
    EXPECT(turns_sound(&core->scheduler.turns), "the scheduler's heaps are out of order");
    for (uint32_t i = 0; i < core->pool.num_zeroes; i++)
        EXPECT(core->pool.zero_blocks[i]->zeroing &&
                   core->pool.zero_blocks[i]->id == core->pool.zeroes[i].block,
               "zero %" PRIu32, i);
    return check_tenants(&core->pool, error) && audit_sessions(core, error);
}
