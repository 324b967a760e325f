// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// zeroes.h - the list of blocks to zero before the next run is submitted. A leased block is zeroed
// if its last lease had another salt, so that no tenant can read another one's K and V. Knows
// blocks, not salts; lease.c adds the blocks, and the scheduler submits them. Dispatcher thread
// only.

#ifndef AULE_CORE_ZEROES_H
#define AULE_CORE_ZEROES_H

#include <stdbool.h>
#include <stdint.h>

struct block;
struct cache;
struct chunk;
struct pool;

// Makes room for `more` blocks, so that zeroes_add() cannot fail. False: no memory.
bool zeroes_reserve(struct pool *pool, uint32_t more);
void zeroes_add(struct pool *pool, struct cache *cache, struct block *block);
// Takes a block off the list that is on it. It may keep what another salt has written.
void zeroes_cancel(struct pool *pool, struct block *block);
// Takes all blocks of `chunk` off the list, because its memory goes.
void zeroes_forget(struct pool *pool, const struct cache *cache, const struct chunk *chunk);
// How many blocks, from the first, the next submission should zero. 0: the list is empty.
uint32_t zeroes_slice(const struct pool *pool);
// Takes the first `count` blocks off the list, because the last of pool->zeroes_submitted zeroes
// them.
void zeroes_drop(struct pool *pool, uint32_t count);

#endif
