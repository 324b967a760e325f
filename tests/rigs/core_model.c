// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// core_model.c - see core_model.h.

#include "core_model.h"

#include "check_main.h"
#include "model_claims.h"
#include "model_offers.h"

#include <string.h>

struct world world;
struct model_worker workers[WORKERS];
struct model_batch batches[BATCHES];
struct model_block model[CACHES][IDS];
uint64_t cache_ids[CACHES]; // 0 = no such cache
uint64_t random_state;
uint64_t num_hits, num_exchanged, num_failed, num_evicted, num_quarantined, num_refused,
    num_unwritten;

uint32_t roll(uint32_t sides)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 16) % sides);
}

uint32_t prefix_key(uint32_t key, uint32_t depth)
{
    return (key & 0xffff0000) | (key & ((1u << (4 * depth)) - 1));
}

static uint32_t key_depth(uint32_t key)
{
    uint32_t depth = 0;
    while (depth < DEPTH && key >> (4 * depth) & 15)
        depth++;
    return depth;
}

int32_t tag(int cache, uint32_t key, uint32_t slot)
{
    return (int32_t)((key * 8 + slot) * CACHES + (uint32_t)cache + 1);
}

void text_tokens(uint32_t key, uint32_t depth, int32_t *tokens)
{
    for (uint32_t i = 0; i < depth * 8; i++)
        tokens[i] = (int32_t)((key >> (4 * (i / 8)) & 15) * 10 + i % 8);
}

// ---- the model ----

int find_node(int cache, uint32_t key)
{
    for (int id = 0; id < IDS; id++) {
        if (model[cache][id].node == key)
            return id;
    }
    return -1;
}

static void unlink_below(int cache, uint32_t key)
{
    for (int id = 0; id < IDS; id++) {
        uint32_t node = model[cache][id].node;
        if (!node || prefix_key(node, key_depth(key)) != key)
            continue;
        claims_part(cache, node);
        model[cache][id].node = 0;
    }
}

bool is_visible(int cache, uint32_t key)
{
    int id = find_node(cache, key);
    return id >= 0 && !model[cache][id].pending;
}

uint32_t count_visible(int w, const struct text *text, uint32_t from, uint32_t *fresh)
{
    uint32_t at = from;
    for (*fresh = 0; at < text->depth; at++) {
        uint32_t key = prefix_key(text->key, at + 1);
        if (!is_visible(text->cache, key))
            break;
        const struct model_block *block = &model[text->cache][find_node(text->cache, key)];
        *fresh += !block->holds[w] && !block->refs[w];
    }
    return at - from;
}

void take_hit(int w, struct text *text, uint32_t i, int32_t id)
{
    const struct engine_cache *engine = core_engine_cache(world.core, cache_ids[text->cache]);
    uint32_t key = prefix_key(text->key, i + 1);
    ck_assert_int_eq(id, find_node(text->cache, key));
    for (uint32_t k = 0; k < WORLD_LAYERS * 8; k++)
        ck_assert_int_eq(fake_engine_slot(engine, k / 8, id, k % 8), tag(text->cache, key, k % 8));
    model[text->cache][id].holds[w]++;
    text->blocks[i] = id;
    num_hits++;
}

struct text *free_text(int w)
{
    struct text *text = &workers[w].texts[roll(TEXTS)];
    return workers[w].open && !text->used && !text->waits ? text : NULL;
}

struct text *some_text(int w)
{
    struct text *text = &workers[w].texts[roll(TEXTS)];
    return workers[w].open && text->used ? text : NULL;
}

struct text draw_text(int w)
{
    const struct model_worker *worker = &workers[w];
    struct text text = {.cache = worker->opened[1] ? (int)roll(CACHES) : 0,
                        .depth = 1 + roll(DEPTH)};
    text.key = worker->salt << 16;
    for (uint32_t i = 0; i < text.depth; i++)
        text.key |= (1 + (roll(3) ? 0 : roll(3))) << (4 * i);
    return text;
}

void release(int w, int cache, const int32_t *ids, uint32_t count)
{
    ck_assert_status(
        core_blocks_release(workers[w].real.session, cache_ids[cache], ids, count, &error),
        STATUS_OK);
    for (uint32_t i = 0; i < count; i++)
        model[cache][ids[i]].holds[w]--;
}

bool lease_rest(int w, struct text *text)
{
    uint32_t wanted = text->depth - text->num_hit;
    int32_t *ids = text->blocks + text->num_hit;
    bool growing;
    if (!wanted)
        return true;
    enum status status = core_blocks_lease(workers[w].real.session, NULL, cache_ids[text->cache],
                                           wanted, ids, &growing, NULL);
    ck_assert_int_eq(status == STATUS_QUOTA, distinct(w) + wanted > QUOTA);
    if (status != STATUS_OK) {
        ck_assert(status == STATUS_QUOTA || status == STATUS_NO_BLOCKS);
        return false;
    }
    sync_evictions(text->cache); // before the evicted blocks are in use again
    for (uint32_t i = 0; i < wanted; i++) {
        struct model_block *block = &model[text->cache][ids[i]];
        ck_assert(!in_use(block));
        block->sealed = false;
        memset(block->written, 0, sizeof(block->written));
        block->holds[w] = 1;
        block->writer = workers[w].real.id;
    }
    return true;
}

bool in_use(const struct model_block *block)
{
    for (int w = 0; w < WORKERS; w++) {
        if (block->holds[w] || block->refs[w])
            return true;
    }
    return false;
}

uint32_t distinct(int w)
{
    uint32_t count = 0;
    for (int cache = 0; cache < CACHES; cache++) {
        for (int id = 0; id < IDS; id++)
            count += model[cache][id].holds[w] || model[cache][id].refs[w];
    }
    return count;
}

void batch_release(struct model_batch *batch)
{
    if (batch->registered || batch->outstanding)
        return;
    for (uint32_t i = 0; i < batch->depth; i++) {
        struct model_block *block = &model[batch->cache][batch->blocks[i]];
        block->refs[batch->worker]--;
        block->dead_refs -= batch->dead;
    }
    batch->used = false;
}

void run_over(int w, const struct model_run *run, bool ok)
{
    struct model_batch *batch = &batches[run->batch];
    for (uint32_t i = batch->num_hit; i < batch->depth; i++) {
        struct model_block *block = &model[batch->cache][batch->blocks[i]];
        block->written[run->layer] = ok;
        if (!ok && block->node)
            unlink_below(batch->cache, block->node);
        if (--block->pending == 0 && block->node)
            claims_visible(batch->cache, block->node);
    }
    ck_assert_int_eq(batch->worker, w);
    batch->outstanding--;
    batch_release(batch);
    num_failed += !ok;
}

// ---- comparing with core ----

// check writes every assertion to a file, and there are tens of millions.
#define ck_assert_same(a, b)                                                                       \
    do {                                                                                           \
        if ((a) != (b))                                                                            \
            ck_assert_int_eq((int)(a), (int)(b));                                                  \
    } while (0)

static enum core_block_kind expected_state(const struct model_block *block)
{
    uint32_t holders = 0, refs = 0;
    for (int w = 0; w < WORKERS; w++) {
        holders += block->holds[w] > 0;
        refs += block->refs[w];
    }
    if (holders || refs > block->dead_refs)
        return block->sealed ? CORE_HELD : CORE_LEASED;
    if (refs)
        return CORE_QUARANTINED;
    return block->node ? CORE_CACHED : CORE_FREE;
}

// Blocks that left the index without the model were evicted: never a block in use, unless its
// parent was evicted, too.
void sync_evictions(int cache)
{
    bool gone[IDS] = {false};
    for (int id = 0; id < IDS; id++) {
        struct core_block_view view;
        core_block_at(world.core, cache_ids[cache], (uint32_t)id, &view);
        gone[id] = model[cache][id].node && view.depth < 0;
    }
    for (int id = 0; id < IDS; id++) {
        uint32_t key = model[cache][id].node, depth = key ? key_depth(key) : 0;
        if (gone[id] && in_use(&model[cache][id])) {
            ck_assert_uint_gt(depth, 1);
            ck_assert(gone[find_node(cache, prefix_key(key, depth - 1))]);
        }
        if (key && !gone[id] && depth > 1) { // no block stays in the index without its parent
            int parent = find_node(cache, prefix_key(key, depth - 1));
            ck_assert_same(parent >= 0 && !gone[parent], true);
        }
    }
    for (int id = 0; id < IDS; id++) {
        if (gone[id]) {
            claims_part(cache, model[cache][id].node);
            model[cache][id].node = 0;
        }
        num_evicted += gone[id];
    }
}

static void compare_block(int cache, int id)
{
    struct model_block *block = &model[cache][id];
    struct core_block_view view;
    uint32_t holders = 0, refs = 0;
    for (int w = 0; w < WORKERS; w++) {
        holders += block->holds[w] > 0;
        refs += block->refs[w];
    }
    enum core_block_kind expected = expected_state(block);
    if (expected == CORE_FREE) {
        block->sealed = false;
        block->writer = 0;
    }
    core_block_at(world.core, cache_ids[cache], (uint32_t)id, &view);
    if (view.state == CORE_ABSENT)
        view.state = CORE_FREE;
    ck_assert_same(view.state, expected);
    ck_assert_same(view.holders, holders);
    ck_assert_same(view.batch_refs, refs);
    ck_assert_same(view.writer, block->writer);
    ck_assert_same(view.depth, block->node ? (int32_t)key_depth(block->node) - 1 : -1);
    num_quarantined += expected == CORE_QUARANTINED;
}

void compare(void)
{
    uint32_t ids;
    for (int cache = 0; cache < CACHES; cache++) {
        if (cache_ids[cache] &&
            core_cache_find(world.core, cache_ids[cache], &ids, NULL) != STATUS_OK) {
            for (int id = 0; id < IDS; id++)
                ck_assert(!in_use(&model[cache][id]));
            memset(model[cache], 0, sizeof(model[cache]));
            cache_ids[cache] = 0;
        }
        if (!cache_ids[cache])
            continue;
        sync_evictions(cache);
        for (int id = 0; id < IDS; id++)
            compare_block(cache, id);
    }
    for (int w = 0; w < WORKERS; w++) {
        struct core_session_counts counts;
        if (!workers[w].open)
            continue;
        core_session_counts(workers[w].real.session, &counts);
        ck_assert_same(counts.blocks_held, distinct(w));
        ck_assert_same(counts.tickets_unreaped, workers[w].num_runs + workers[w].num_done);
        if (counts.blocks_held > QUOTA)
            ck_abort_msg("session %d has %u blocks", w, (unsigned)counts.blocks_held);
    }
    model_offers_compare();
    world_check(&world);
}
