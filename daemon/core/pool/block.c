// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// block.c - see block.h. The state is a function of the counters: code that changes a counter calls
// block_settle(), and nothing else sets the state of a block in use.

#include "block.h"

#include "base/container_of.h"
#include "cache.h"
#include "pool.h"
#include "prefix.h"

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

static enum core_block_kind rightful_state(const struct block *block)
{
    if (block->holders || block->users > block->dead_users)
        return block->sealed ? CORE_HELD : CORE_LEASED;
    if (block->users)
        return CORE_QUARANTINED;
    return block->sealed && block->node ? CORE_CACHED : CORE_FREE;
}

static struct heap *eviction_heap(struct cache *cache, const struct block *block)
{
    return block->node && block->node->children ? &cache->inner : &cache->leaves;
}

void block_touch(struct cache *cache, struct block *block)
{
    block->last_use = ++cache->pool->ledger->last_use;
}

static void push_free(struct cache *cache, struct block *block)
{
    struct chunk *chunk = block_chunk(cache, block);
    chunk->free[chunk->num_free] = (uint32_t)block->id & (cache->chunk_blocks - 1);
    if (chunk->num_free++ == 0)
        heap_add(&cache->usable, &chunk->usable, chunk->number);
    if (chunk->num_free == cache->chunk_blocks) // cache_shrink() takes the highest chunk first
        heap_add(&cache->empty, &chunk->spare, UINT32_MAX - chunk->number);
}

// Updates all that depends on the block's new state.
static void enter(struct cache *cache, struct block *block)
{
    cache->counts[block->state]++;
    if (block->state == CORE_CACHED) {
        block_touch(cache, block);
        heap_add(eviction_heap(cache, block), &block->eviction, block->last_use);
    } else if (block->state == CORE_FREE) {
        block->sealed = false;
        block->writer = 0;
        push_free(cache, block);
    }
    if (block->state == CORE_CACHED || block->state == CORE_FREE)
        cache->pool->ledger->news = true;
}

void block_settle(struct cache *cache, struct block *block)
{
    enum core_block_kind state = rightful_state(block);
    if (state == block->state)
        return;
    if (block->state == CORE_CACHED)
        heap_remove(eviction_heap(cache, block), &block->eviction);
    cache->counts[block->state]--;
    block->state = (uint8_t)state;
    enter(cache, block);
}

void block_resort(struct cache *cache, struct block *block)
{
    if (block->state != CORE_CACHED)
        return;
    struct heap *to = eviction_heap(cache, block);
    heap_remove(to == &cache->leaves ? &cache->inner : &cache->leaves, &block->eviction);
    heap_add(to, &block->eviction, block->last_use);
}

struct block *block_take(struct cache *cache)
{
    struct chunk *chunk = container_of(heap_first(&cache->usable), struct chunk, usable);
    struct block *block = &chunk->blocks[chunk->free[chunk->num_free - 1]];
    if (chunk->num_free > BLOCK_AHEAD)
        __builtin_prefetch(&chunk->blocks[chunk->free[chunk->num_free - 1 - BLOCK_AHEAD]], 1);
    if (chunk->num_free == cache->chunk_blocks)
        heap_remove(&cache->empty, &chunk->spare);
    if (--chunk->num_free == 0)
        heap_remove(&cache->usable, &chunk->usable);
    block->filled = 0;
    memset(block_written(cache, block, 0), 0,
           (size_t)cache->identity.num_layers * cache->layer_bytes);
    return block;
}

void block_untake(struct cache *cache, struct block *block)
{
    push_free(cache, block);
}
