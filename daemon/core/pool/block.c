// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// block.c - see block.h, which says who calls block_settle() and when. The state is a function of
// the counters; nothing else sets the state of a block in use. Allocates nothing, so it cannot
// fail: all memory that it needs was reserved before. Dispatcher thread only.
//
// One settle. rightful_state() and rightful_charge() tell what the counters ask for. If that is
// what the block has, nothing is touched. Otherwise the block leaves all sums of its old charge
// (tenant, cache, queue of victims) and enters those of the new one; a free block goes to its
// chunk's stack.
//
// Three orders are kept up to date here, and only here: the victims of each account (which cached
// block goes next), the idle chunks (which chunk could be emptied), and the usable chunks (where
// the next lease takes from: the lowest number, so that high chunks become empty).

#include "block.h"

#include "base/prefetch.h"
#include "cache.h"
#include "pool.h"
#include "prefix.h"
#include "queue.h"
#include "tenant.h"

#include <stdlib.h>
#include <string.h>

struct block *block_find(const struct cache *cache, int64_t id)
{
    if (id < 0 || (uint64_t)id >> cache->chunk_shift >= cache->num_chunks)
        return NULL;
    const struct chunk *chunk = cache->chunks[id >> cache->chunk_shift];
    return chunk->state == CHUNK_PRESENT ? &chunk->blocks[id & (cache->chunk_blocks - 1)] : NULL;
}

struct chunk *block_chunk(const struct cache *cache, const struct block *block)
{
    return cache->chunks[(uint32_t)block->id >> cache->chunk_shift];
}

uint8_t *block_written(const struct cache *cache, const struct block *block, uint32_t layer)
{
    size_t index = (uint32_t)block->id & (cache->chunk_blocks - 1);
    return block_chunk(cache, block)->written +
           (index * cache->identity.num_layers + layer) * cache->layer_bytes;
}

uint8_t *block_reserved(const struct cache *cache, const struct block *block)
{
    size_t index = (uint32_t)block->id & (cache->chunk_blocks - 1);
    return block_chunk(cache, block)->reserved + index * cache->layer_bytes;
}

bool block_is_whole(const struct cache *cache, int32_t id)
{
    uint32_t index = (uint32_t)id & (cache->chunk_blocks - 1);
    return cache->chunks[(uint32_t)id >> cache->chunk_shift]->whole[index / 8] >> index % 8 & 1;
}

static size_t whole_bytes(const struct cache *cache) // of a chunk
{
    return (cache->chunk_blocks + 7) / 8;
}

uint8_t *block_whole_bits(const struct cache *cache)
{
    const size_t size = whole_bytes(cache);
    uint8_t *bits = calloc(cache->num_chunks + (size_t)1, size);
    for (uint32_t i = 0; bits && i < cache->num_chunks; i++)
        if (cache->chunks[i]->state == CHUNK_PRESENT)
            memcpy(bits + i * size, cache->chunks[i]->whole, size);
    return bits;
}

bool block_was_whole(const struct cache *cache, const uint8_t *bits, int32_t id)
{
    const uint32_t index = (uint32_t)id & (cache->chunk_blocks - 1);
    return bits[((uint32_t)id >> cache->chunk_shift) * whole_bytes(cache) + index / 8] >>
               index % 8 &
           1;
}

void block_set_written(struct cache *cache, struct block *block, uint32_t layers)
{
    const uint32_t index = (uint32_t)block->id & (cache->chunk_blocks - 1);
    const uint8_t bit = (uint8_t)(1u << index % 8);
    uint8_t *whole = &block_chunk(cache, block)->whole[index / 8];
    block->written_layers = (uint16_t)layers;
    if (layers == cache->identity.num_layers) {
        *whole |= bit;
    } else if (*whole & bit) {
        *whole &= (uint8_t)~bit;
        block->account->tenant->unwholes++;
    }
}

void block_fetch_place(const struct cache *cache, const struct block *block)
{
    const struct chunk *chunk = block_chunk(cache, block);
    prefetch(chunk);
    prefetch(&chunk->blocks);
    order_fetch(&block->eviction);
}

void block_fetch_idle(const struct cache *cache, const struct block *block)
{
    order_fetch(&block_chunk(cache, block)->idle);
}

void block_fetch_freeing(const struct cache *cache, const struct block *block)
{
    const struct chunk *chunk = block_chunk(cache, block);
    block_fetch_idle(cache, block);
    prefetch(&chunk->free[chunk->num_free]);
    prefetch(block_written(cache, block, 0));
    prefetch(&chunk->whole[((uint32_t)block->id & (cache->chunk_blocks - 1)) / 8]);
}

static enum core_block_kind rightful_state(const struct block *block)
{
    if (block->holders || block->users > block->dead_users)
        return block->sealed ? CORE_HELD : CORE_LEASED;
    if (block->users)
        return CORE_QUARANTINED;
    return block->sealed && block->node ? CORE_CACHED : CORE_FREE;
}

static enum block_charge rightful_charge(const struct block *block, enum core_block_kind state)
{
    if (state == CORE_FREE)
        return CHARGE_NONE;
    return state == CORE_CACHED && !prefix_keeps(block->node, CORE_KEEP_PINNED) ? CHARGE_CACHED
                                                                                : CHARGE_USED;
}

void block_touch(struct cache *cache, struct block *block)
{
    block->eviction.key = ++cache->pool->ledger->last_use;
}

static void push_free(struct cache *cache, struct block *block)
{
    struct chunk *chunk = block_chunk(cache, block);
    chunk->free[chunk->num_free] = (uint32_t)block->id & (cache->chunk_blocks - 1);
    if (chunk->num_free++ == 0)
        number_set_add(&cache->usable, chunk->number);
    if (chunk->num_free == cache->chunk_blocks)
        number_set_add(&cache->empty, chunk->number);
}

// ---- chunks that could be emptied ----

static void chunk_rest(struct chunk *chunk)
{
    if (!chunk->owner)
        return;
    order_remove(&chunk->owner->idle, &chunk->idle);
    if (!chunk->owner->idle.size)
        tenant_outdate(chunk->owner->tenant);
}

static struct account *some_account(const struct chunk *chunk, uint32_t chunk_blocks)
{
    for (uint32_t i = 0; i < chunk_blocks; i++) {
        if (chunk->blocks[i].charge == CHARGE_CACHED)
            return chunk->blocks[i].account;
    }
    return NULL;
}

static uint64_t idle_key(const struct chunk *chunk)
{
    return chunk->last_use | (chunk->num_preferred ? EVICT_PREFERRED : 0);
}

// Brings the chunk's place among the idle ones into line with its counts. Most often it has the
// right place: then nothing else is touched.
static void chunk_settle(struct cache *cache, struct chunk *chunk)
{
    const bool idle = chunk->num_cached && !chunk->num_used;
    if (idle && chunk->owner && order_is_in(&chunk->idle) && chunk->idle.key == idle_key(chunk))
        return;
    chunk_rest(chunk);
    if (!idle)
        return;
    if (!chunk->owner)
        chunk->owner = some_account(chunk, cache->chunk_blocks);
    if (!chunk->owner->idle.size)
        tenant_outdate(chunk->owner->tenant);
    order_add(&chunk->owner->idle, &chunk->idle, idle_key(chunk));
}

void chunk_disown(struct chunk *chunk)
{
    struct cache *cache = chunk->owner->cache;
    chunk_rest(chunk);
    chunk->owner = NULL;
    chunk_settle(cache, chunk);
}

// ---- states ----

static uint64_t victim_key(const struct block *block)
{
    return block_last_use(block) | (block->node->children ? EVICT_INNER : 0) |
           (prefix_keeps(block->node, CORE_KEEP_PREFERRED) ? EVICT_PREFERRED : 0);
}

static void add_victim(struct block *block, struct chunk *chunk)
{
    const uint64_t key = victim_key(block);
    block->preferred = key & EVICT_PREFERRED;
    chunk->num_preferred += block->preferred;
    order_add(&block->account->victims, &block->eviction, key);
}

static void remove_victim(struct block *block, struct chunk *chunk)
{
    chunk->num_preferred -= block->preferred;
    order_remove(&block->account->victims, &block->eviction);
}

// Takes the block out of all that counts it under its present charge.
static void uncharge(struct cache *cache, struct block *block, struct chunk *chunk)
{
    struct account *account = block->account;
    if (block->charge == CHARGE_USED) {
        chunk->num_used--;
        account->tenant->used--;
        queue_outdate(account->tenant);
        account->tenant->used_bytes -= cache->block_bytes;
    } else if (block->charge == CHARGE_CACHED) {
        remove_victim(block, chunk);
        chunk->num_cached--;
        tenant_count_cached(account, -1);
    } else {
        account->blocks++; // it was free
    }
}

static void charge(struct cache *cache, struct block *block, struct chunk *chunk)
{
    struct account *account = block->account;
    if (block->charge == CHARGE_USED) {
        chunk->num_used++;
        account->tenant->used++;
        queue_outdate(account->tenant);
        account->tenant->used_bytes += cache->block_bytes;
    } else if (block->charge == CHARGE_CACHED) {
        block_touch(cache, block);
        chunk_rest(chunk);
        chunk->last_use = block_last_use(block);
        chunk->owner = account;
        chunk->num_cached++;
        add_victim(block, chunk);
        tenant_count_cached(account, 1);
    } else {
        account->blocks--;
        block->account = NULL;
        block->sealed = false;
        block->writer = 0;
        push_free(cache, block);
    }
}

void block_settle(struct cache *cache, struct block *block)
{
    enum core_block_kind state = rightful_state(block);
    enum block_charge now = rightful_charge(block, state);
    if (state == block->state && now == block->charge)
        return;
    struct chunk *chunk = block_chunk(cache, block);
    uncharge(cache, block, chunk);
    cache->counts[block->state]--;
    block->state = (uint8_t)state;
    block->charge = (uint8_t)now;
    cache->counts[state]++;
    charge(cache, block, chunk);
    chunk_settle(cache, chunk);
    if (now != CHARGE_USED)
        cache->pool->ledger->news = true;
}

void block_resort(struct cache *cache, struct block *block)
{
    if (block->charge != CHARGE_CACHED)
        return;
    struct chunk *chunk = block_chunk(cache, block);
    remove_victim(block, chunk);
    add_victim(block, chunk);
    chunk_settle(cache, chunk);
}

// There is one.
static struct chunk *lowest_usable(const struct cache *cache)
{
    return cache->chunks[number_set_first(&cache->usable)];
}

struct block *block_take(struct cache *cache)
{
    struct chunk *chunk = lowest_usable(cache);
    const uint32_t index = chunk->free[chunk->num_free - 1];
    struct block *block = &chunk->blocks[index];
    if (chunk->num_free > BLOCK_AHEAD)
        prefetch(&chunk->blocks[chunk->free[chunk->num_free - 1 - BLOCK_AHEAD]]);
    if (chunk->num_free == cache->chunk_blocks)
        number_set_remove(&cache->empty, chunk->number);
    if (--chunk->num_free == 0)
        number_set_remove(&cache->usable, chunk->number);
    block->filled = 0;
    memset(block_written(cache, block, 0), 0,
           (size_t)cache->identity.num_layers * cache->layer_bytes);
    block->written_layers = 0;
    chunk->whole[index / 8] &= (uint8_t) ~(1u << index % 8); // no batch names it: no unwholes
    return block;
}

bool block_prefer_zeroed(struct cache *cache, uint32_t count, uint64_t zeroed)
{
    struct chunk *chunk = lowest_usable(cache);
    uint32_t top = chunk->num_free;
    for (uint32_t i = chunk->num_free; i-- > 0 && count;) {
        const uint32_t index = chunk->free[i];
        if (chunk->blocks[index].zeroed > zeroed)
            continue;
        chunk->free[i] = chunk->free[--top];
        chunk->free[top] = index;
        count--;
    }
    return count == 0;
}

void block_untake(struct cache *cache, struct block *block)
{
    push_free(cache, block);
}
