// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// audit.c - counts everything again, once by sessions and once by blocks, and compares the sums
// with core's counters. It changes only scratch stamps, and is slow by design. Runs on the
// dispatcher thread, or on the thread of a test that calls core.

#include "audit.h"

#include "core/pool/hold.h"
#include "core/pool/prefix.h"
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
    uint32_t found = batch->names && names_has(batch->names, block->id);
    for (uint32_t i = 0; i < batch->num_blocks; i++)
        found += batch->blocks[i] == block->id;
    for (const struct names_left *left = batch->left; left; left = left->next)
        for (size_t i = 0; i < left->count; i++)
            found += left->names[i].id == block->id;
    return found;
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
    uint32_t refs = 0;
    HASH_FIND(hh, session->tables, &cache->id, sizeof cache->id, table);
    if (!table)
        return true;
    for (const struct batch *batch = session->batches; batch; batch = batch->hh.next) {
        if (batch->table == table)
            refs += tally_batch(batch, block);
    }
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

static bool check_tally(const struct block *block, const struct tally *tally, struct error *error)
{
    EXPECT(block->holders == tally->holders,
           "block %" PRId32 ": %" PRIu32 " holders, counted %" PRIu32, block->id, block->holders,
           tally->holders);
    EXPECT(block->users == tally->users, "block %" PRId32 ": %" PRIu32 " users, counted %" PRIu32,
           block->id, block->users, tally->users);
    EXPECT(block->dead_users == tally->dead_users,
           "block %" PRId32 ": %" PRIu32 " dead users, counted %" PRIu32, block->id,
           block->dead_users, tally->dead_users);
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
    return node->place && node->place <= heap->size && heap->nodes[node->place - 1] == node;
}

static bool check_state(const struct cache *cache, const struct block *block, struct error *error)
{
    bool cached = block->state == CORE_CACHED, inner = block->node && block->node->children;
    EXPECT(block->state == expected_state(block), "block %" PRId32 " is in state %d, not %d",
           block->id, block->state, expected_state(block));
    EXPECT(!block->node || block->node->block == block, "block %" PRId32 " and its node disagree",
           block->id);
    EXPECT(!block->node || block->sealed, "block %" PRId32 " is in the index but not sealed",
           block->id);
    EXPECT(block->state == CORE_LEASED || block->state == CORE_QUARANTINED || !block->writer,
           "block %" PRId32 " in state %d has writer %" PRIu64, block->id, block->state,
           block->writer);
    EXPECT(in_heap(&cache->leaves, &block->eviction) == (cached && !inner),
           "block %" PRId32 " is wrongly in or not in the leaves heap", block->id);
    EXPECT(in_heap(&cache->inner, &block->eviction) == (cached && inner),
           "block %" PRId32 " is wrongly in or not in the inner heap", block->id);
    EXPECT(!cached || block->eviction.key == block->last_use,
           "block %" PRId32 " is sorted by an old last_use", block->id);
    return true;
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
    return check_tally(block, &tally, error) && check_state(cache, block, error);
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
    return check_free_stack(cache, chunk, error);
}

static bool check_index(const struct cache *cache, struct error *error)
{
    uint64_t nodes = 0, pending = 0;
    for (const struct prefix_node *node = cache->nodes; node; node = node->hh.next, nodes++) {
        const struct prefix_node *found =
            prefix_find(cache, node->root, node->parent, node->key.tokens);
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
        EXPECT(root->children, "root %" PRIu64 " has no children", root->id);
    return true;
}

static bool check_heaps(const struct cache *cache, struct error *error)
{
    const struct heap *heaps[] = {&cache->usable, &cache->empty, &cache->absent, &cache->leaves,
                                  &cache->inner};
    for (size_t i = 0; i < sizeof heaps / sizeof(struct heap *); i++)
        EXPECT(heap_sound(heaps[i]), "heap %zu of cache %" PRIu64 " is out of order", i, cache->id);
    EXPECT(cache->leaves.size + cache->inner.size == cache->counts[CORE_CACHED],
           "%zu + %zu cached blocks, not %" PRIu64, cache->leaves.size, cache->inner.size,
           cache->counts[CORE_CACHED]);
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
    return check_heaps(cache, error) && check_index(cache, error);
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

// Users of a table are its batches, registered or kept by runs, and its copies that are not over.
static bool check_users(const struct core_session *session, const struct hold_table *table,
                        struct error *error)
{
    const struct run *run;
    uint32_t users = 0;
    for (const struct batch *batch = session->batches; batch; batch = batch->hh.next)
        users += batch->table == table;
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
    uint64_t bytes = batch_bytes(batch) + (batch->names ? names_bytes(batch->names) : 0);
    for (const struct names_left *left = batch->left; left; left = left->next)
        bytes += names_left_bytes(left->capacity);
    return bytes;
}

// kept_bytes counts batches, registered or kept by runs, and runs from queueing until reaping.
static bool check_kept_bytes(const struct core_session *session, struct error *error)
{
    const struct run *run;
    uint64_t bytes = 0;
    for (const struct batch *batch = session->batches; batch; batch = batch->hh.next)
        bytes += bytes_of(batch);
    DL_FOREACH(session->runs, run)
    {
        bytes += run->bytes + (first_mention(session, run) ? bytes_of(run->batch) : 0);
        EXPECT(!run->over || (!run->batch && !run->copy),
               "run %" PRIu64 " is over and keeps what it named", run->ticket);
    }
    for (run = session->tickets; run; run = run->hh.next)
        bytes += run->delivered ? run->bytes : 0;
    EXPECT(bytes == session->kept_bytes,
           "session %" PRIu64 " counts %" PRIu64 " kept bytes, has %" PRIu64, session->id,
           session->kept_bytes, bytes);
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
    return check_kept_bytes(session, error);
}

static bool check_sessions(const struct core *core, struct error *error)
{
    const struct core_session *session;
    uint32_t open = 0, expected = 0;
    DL_FOREACH(core->sessions, session)
    {
        open++;
        expected += turns_expects(session);
        if (!check_session(session, error))
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
    return check_sessions(core, error);
}
