// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pace.c - see pace.h.

#include "pace.h"

#include "cache.h"
#include "ledger.h"
#include "pool.h"

#include <xxhash.h>

// The first workers wait for pipelines to be compiled. So a much shorter time replaces the mean of
// fewer times than these. Later it may be that of a short prompt, which takes less for a token.
enum { FIRST_LEARNT = 4 };

static uint64_t key_of(const struct cache *cache, uint32_t number, const int32_t *tokens)
{
    return XXH3_64bits_withSeed(tokens, cache->identity.kv.block_size * sizeof *tokens, number);
}

void pace_look(struct pace *pace, const struct cache *cache, uint32_t first, uint32_t num_blocks,
               const int32_t *tokens)
{
    const uint64_t key = key_of(cache, first, tokens);
    for (int i = 0; i < PACE_LOOKS; i++)
        if (pace->looks[i].key == key)
            pace->looks[i].num_blocks = 0;
    pace->looks[pace->next++ % PACE_LOOKS] =
        (struct pace_look){key, cache->pool->ledger->now_ns, num_blocks};
}

void pace_publish(struct pace *pace, struct cache *cache, uint32_t first, uint32_t num_blocks,
                  const int32_t *tokens)
{
    const uint64_t key = key_of(cache, first, tokens);
    for (int i = 0; i < PACE_LOOKS; i++) {
        struct pace_look *look = &pace->looks[i];
        if (look->key != key || !look->num_blocks)
            continue;
        pace_learn(cache, num_blocks < look->num_blocks ? num_blocks : look->num_blocks,
                   cache->pool->ledger->now_ns - look->at_ns);
        look->num_blocks = 0;
    }
}

void pace_learn(struct cache *cache, uint32_t num_blocks, int64_t took_ns)
{
    const int64_t tokens = (int64_t)num_blocks * cache->identity.kv.block_size;
    if (!tokens || took_ns <= 0)
        return;
    const int64_t each_ns = took_ns / tokens + 1, before_ns = cache->compute_ns;
    const bool replaces =
        !before_ns || (cache->num_learnt < FIRST_LEARNT && each_ns < before_ns / 2);
    cache->compute_ns = replaces ? each_ns : before_ns + (each_ns - before_ns) / 4;
    cache->num_learnt++;
}
