// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// zeroes.c - see zeroes.h. pool->zeroes is in the form that the engine takes; pool->zero_blocks has
// the same blocks in the same order.

#include "zeroes.h"

#include "cache.h"
#include "pool.h"

#include <stdlib.h>
#include <string.h>

bool zeroes_reserve(struct pool *pool, uint32_t more)
{
    uint64_t wanted = (uint64_t)pool->num_zeroes + more;
    if (wanted <= pool->zero_capacity)
        return true;
    wanted =
        wanted < 2 * (uint64_t)pool->zero_capacity ? 2 * (uint64_t)pool->zero_capacity : wanted;
    if (wanted > UINT32_MAX)
        return false;
    struct engine_zero *zeroes = realloc(pool->zeroes, wanted * sizeof *zeroes);
    if (zeroes)
        pool->zeroes = zeroes;
    struct block **blocks = realloc(pool->zero_blocks, wanted * sizeof(struct block *));
    if (blocks)
        pool->zero_blocks = blocks;
    if (!zeroes || !blocks)
        return false;
    pool->zero_capacity = (uint32_t)wanted;
    return true;
}

void zeroes_add(struct pool *pool, struct cache *cache, struct block *block)
{
    if (block->zeroing)
        return;
    block->zeroing = true;
    pool->zero_blocks[pool->num_zeroes] = block;
    pool->zeroes[pool->num_zeroes++] =
        (struct engine_zero){.cache = cache->engine, .block = block->id};
}

void zeroes_cancel(struct pool *pool, struct block *block)
{
    uint32_t at = 0;
    while (pool->zero_blocks[at] != block)
        at++;
    pool->num_zeroes--;
    pool->zeroes[at] = pool->zeroes[pool->num_zeroes];
    pool->zero_blocks[at] = pool->zero_blocks[pool->num_zeroes];
    block->zeroing = false;
    block->salt = SALT_MIXED;
}

void zeroes_forget(struct pool *pool, const struct cache *cache, const struct chunk *chunk)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < pool->num_zeroes; i++) {
        const struct engine_zero *zero = &pool->zeroes[i];
        if (zero->cache == cache->engine &&
            (uint32_t)zero->block >> cache->chunk_shift == chunk->number)
            continue;
        pool->zeroes[kept] = *zero;
        pool->zero_blocks[kept++] = pool->zero_blocks[i];
    }
    pool->num_zeroes = kept;
}

// Ranges of memory that one submission zeroes: one for each block and layer. Bounds the engine's
// lists to about a megabyte.
enum { ZEROES_MAX_RANGES = 65536 };
_Static_assert((int)ZEROES_MAX_RANGES >= (int)CORE_MAX_LAYERS, "at least one block fits");

uint32_t zeroes_slice(const struct pool *pool)
{
    uint32_t layers = 1;
    for (uint32_t i = 0; i < pool->num_caches; i++) {
        uint32_t more = pool->caches[i]->identity.num_layers;
        layers = more > layers ? more : layers;
    }
    uint32_t count = ZEROES_MAX_RANGES / layers;
    return count < pool->num_zeroes ? count : pool->num_zeroes;
}

void zeroes_drop(struct pool *pool, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        pool->zero_blocks[i]->zeroing = false;
        pool->zero_blocks[i]->zeroed = pool->zeroes_submitted;
    }
    pool->num_zeroes -= count;
    if (!pool->num_zeroes)
        return;
    memmove(pool->zeroes, pool->zeroes + count, pool->num_zeroes * sizeof *pool->zeroes);
    memmove(pool->zero_blocks, pool->zero_blocks + count,
            pool->num_zeroes * sizeof(struct block *));
}
