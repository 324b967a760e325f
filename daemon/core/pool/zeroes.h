// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// zeroes.h - the blocks that are zeroed before anything else runs.

#ifndef AULE_CORE_ZEROES_H
#define AULE_CORE_ZEROES_H

#include <stdbool.h>
#include <stdint.h>

struct block;
struct cache;
struct chunk;
struct pool;

bool zeroes_reserve(struct pool *pool, uint32_t more); // room in the list; false: no memory
void zeroes_add(struct pool *pool, struct cache *cache, struct block *block);
void zeroes_forget(struct pool *pool, const struct cache *cache,
                   const struct chunk *chunk); // its memory goes
uint32_t zeroes_slice(
    const struct pool *pool); // how many of them one submission may take; 0: there are none
void zeroes_drop(struct pool *pool, uint32_t count); // the first ones are submitted

#endif
