// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// cached.c - study "cached": what the daemon's core needs for a look-up, an append, a fork and an
// eviction, with 100 to 1,000,000 blocks in its cache. Chains of 20 blocks are cached, and each
// chain's blocks are scattered over the whole pool, as they are after long use.

#include "cost.h"
#include "tools/bench/wrong.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    CHAIN = 20, // blocks of a prompt
    BLOCK_SIZE = 16,
    HEAD_DIM = 16,
    SPARE = 1024, // blocks of the pool beside those that are cached
    ROUNDS = 500,
    SLOW_ROUNDS = 100, // of those that need the GPU in between
};
static const uint32_t sizes[] = {100, 10000, 1000000};

struct cached {
    const struct study *study;
    struct bare_core core;
    uint32_t size;       // blocks that are cached
    uint32_t num_chains; // chains published so far; those of equal number have equal tokens
    uint32_t num_blocks; // in `blocks`
    int32_t source;      // a block that is written
    int32_t *blocks;     // [num_blocks] of the whole pool but the source; owned
    uint32_t looked_up;  // the next chain
};

static struct core_prefix prompt_of(uint32_t chain)
{
    static int32_t tokens[CHAIN * BLOCK_SIZE];
    for (uint32_t i = 0; i < CHAIN * BLOCK_SIZE; i++)
        tokens[i] = (int32_t)((chain * UINT32_C(2654435761) ^ i * UINT32_C(40503)) >> 1);
    return (struct core_prefix){.tokens = tokens, .num_tokens = CHAIN * BLOCK_SIZE};
}

// Makes a cached chain of the blocks, which are filled and leased.
static bool cache_chain(struct cached *c, int32_t *blocks)
{
    struct error error = {0};
    const struct core_prefix prompt = prompt_of(c->num_chains++);
    uint32_t existing;
    if (core_prefix_publish(c->core.session, c->core.cache, &prompt, blocks, CHAIN, &existing,
                            &error) != STATUS_OK)
        return bare_core_failed(&error);
    return bare_core_release(&c->core, blocks, CHAIN);
}

// Fills the cache and leaves the rest of the pool free.
static bool fill_cache(struct cached *c)
{
    struct error error = {0};
    struct core_counts counts;
    if (!bare_core_lease(&c->core, 1, &c->source) || !bare_core_write(&c->core, c->source))
        return false;
    if (core_cache_counts(c->core.session, c->core.cache, &counts, &error) != STATUS_OK)
        return bare_core_failed(&error);
    c->num_blocks = (uint32_t)counts.limit - 1;
    c->blocks = calloc(c->num_blocks, sizeof *c->blocks);
    if (!c->blocks || c->num_blocks < c->size) {
        fprintf(stderr, "aule-bench: no memory for %" PRIu32 " blocks\n", c->size);
        return false;
    }
    if (!bare_core_lease(&c->core, c->num_blocks, c->blocks))
        return false;
    blocks_shuffle(c->blocks, c->num_blocks);
    bool ok = bare_core_fill(&c->core, c->source, c->blocks, c->size);
    for (uint32_t i = 0; ok && i < c->size; i += CHAIN)
        ok = cache_chain(c, c->blocks + i);
    return ok && bare_core_release(&c->core, c->blocks + c->size, c->num_blocks - c->size);
}

// ---- what is timed ----

static bool look_up(struct cached *c, struct cost *cost)
{
    struct error error = {0};
    c->looked_up = (uint32_t)(c->looked_up * UINT64_C(48271) % 2147483647);
    const struct core_prefix prompt = prompt_of(c->looked_up % c->num_chains);
    int32_t found[CHAIN];
    uint32_t num_found;
    const struct moment before = cost_begin();
    if (core_prefix_lookup(c->core.session, c->core.cache, &prompt, 0, found, &num_found, &error) !=
        STATUS_OK)
        return bare_core_failed(&error);
    if (!cost_note(cost, before))
        return false;
    if (num_found != CHAIN)
        wrong_say("a look-up found %" PRIu32 " of %d blocks", num_found, CHAIN);
    return num_found == CHAIN && bare_core_release(&c->core, found, CHAIN);
}

static bool append(struct cached *c, struct cost *cost)
{
    int32_t block;
    const struct moment before = cost_begin();
    return bare_core_lease(&c->core, 1, &block) && cost_note(cost, before) &&
           bare_core_release(&c->core, &block, 1);
}

static bool fork_one(struct cached *c, struct cost *cost)
{
    int32_t block;
    uint64_t ticket;
    const struct moment before = cost_begin();
    return bare_core_lease(&c->core, 1, &block) &&
           bare_core_copy(&c->core, c->source, &block, 1, &ticket) && cost_note(cost, before) &&
           bare_core_reap(&c->core, ticket) && bare_core_release(&c->core, &block, 1);
}

// The pool has no free block. Evicts the chain that was used longest ago, and caches another one.
static bool evict(struct cached *c, struct cost *cost)
{
    int32_t blocks[CHAIN];
    const struct moment before = cost_begin();
    return bare_core_lease(&c->core, CHAIN, blocks) && cost_note(cost, before) &&
           bare_core_fill(&c->core, c->source, blocks, CHAIN) && cache_chain(c, blocks);
}

// In this order: the last one needs a full pool.
static const struct {
    struct cost cost;
    bool (*call)(struct cached *c, struct cost *cost);
    int rounds;
    bool full;
} calls[] = {
    {{"look-up of a cached block", "blocks cached", 300, CHAIN, {0}}, look_up, ROUNDS, false},
    {{"append: a sequence leases a block", "blocks cached", 1000, 1, {0}}, append, ROUNDS, false},
    {{"fork: a lease, and the copy's order", "blocks cached", 2000, 1, {0}},
     fork_one,
     SLOW_ROUNDS,
     false},
    {{"eviction and lease of a block", "blocks cached", 500, CHAIN, {0}}, evict, SLOW_ROUNDS, true},
};

static bool measure_calls(struct cached *c)
{
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        struct cost cost = calls[i].cost;
        const int rounds = c->study->options.check ? 2 : calls[i].rounds;
        bool ok = !calls[i].full ||
                  bare_core_lease(&c->core, c->num_blocks - c->size, c->blocks + c->size);
        for (int j = 0; ok && j < rounds; j++)
            ok = calls[i].call(c, &cost);
        ok = ok && cost_say(&cost, c->study, &c->core, c->size);
        samples_finish(&cost.samples);
        if (!ok)
            return false;
    }
    return true;
}

static bool measure_size(const struct study *study, struct engine *engine, uint32_t size)
{
    const struct bare_core_params params = {.pool_bytes = UINT64_C(1) << 31,
                                            .arena_size = UINT64_C(1) << 16,
                                            .max_blocks = size + SPARE,
                                            .block_size = BLOCK_SIZE,
                                            .head_dim = HEAD_DIM};
    struct cached c = {.study = study, .size = size, .looked_up = 20};
    const bool ok = bare_core_open(&c.core, engine, &params) && fill_cache(&c) && measure_calls(&c);
    bare_core_close(&c.core);
    free(c.blocks);
    return ok;
}

bool study_cached(const struct study *study)
{
    struct rig rig;
    bool ok = rig_engine(&rig, &study->options);
    // A check leaves out the million, which takes a gigabyte.
    const size_t count = sizeof sizes / sizeof *sizes - (study->options.check ? 1 : 0);
    for (size_t i = 0; ok && i < count; i++)
        ok = measure_size(study, rig.engine, sizes[i]);
    rig_close(&rig);
    return ok;
}
