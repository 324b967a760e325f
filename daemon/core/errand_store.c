// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// errand_store.c - stores blocks that became visible: on the GPU into the host tier's memory, then
// into the other tiers. A block for which there is no room or no memory is skipped and counted; the
// next time that it is published it is tried again. Dispatcher thread only.

#include "base/clock.h"
#include "core/pool/hold.h"
#include "core/pool/prefix.h"
#include "errand.h"
#include "tier/host.h"

#include <stdlib.h>

enum {
    STORE_BLOCKS = 64, // of one errand
    STORE_JOBS = 64,   // of one further tier; with more under way, blocks are skipped
};

static void skip(struct core *core, uint64_t count)
{
    core->ledger.metrics[METRIC_TIER_SKIPPED] += count;
}

// ---- the further tiers ----

static bool is_kept(const struct errand_block *block, uint32_t source)
{
    (void)source;
    return block->data && block->reason == RECORD_OK;
}

static bool is_copied(const struct errand_block *block, uint32_t source)
{
    (void)source;
    return block->data;
}

static void pass_on(struct errand *errand)
{
    struct core *core = errand->core;
    for (uint32_t i = 1; i <= core->params.tiers.num_more; i++) {
        if (tier_num_jobs(errand_tier(core, i)) < STORE_JOBS)
            errand_start(errand, TIER_STORE, i, is_kept);
        else
            skip(core, errand->count);
    }
}

bool store_advance(struct errand *errand)
{
    if (errand->stage == ERRAND_COPYING) {
        if (errand_copies(errand))
            return false;
        if (!errand_copied(errand)) {
            skip(errand->core, errand->count);
            errand_end(errand);
            return true;
        }
        errand->stage = ERRAND_KEEPING;
        hold_table_release_all(errand->table); // the blocks may go; their bytes are in host memory
        errand_start(errand, TIER_STORE, 0, is_copied);
        if (errand->num_jobs)
            return false;
    }
    if (errand->num_jobs)
        return false;
    if (!errand->passed_on) {
        errand->passed_on = true;
        pass_on(errand);
        if (errand->num_jobs)
            return false;
    }
    errand_end(errand);
    return true;
}

// ---- the beginning ----

static bool is_there(struct core *core, const struct record_space *space,
                     const struct prefix_node *node)
{
    return tier_probe(core->params.tiers.host, space, &node->chain) == TIER_THERE;
}

// Takes the node's block into the errand. False: there is no memory for it.
static bool take_node(struct errand *errand, struct prefix_node *node)
{
    struct hold_more fresh = {0};
    struct error error;
    if (hold_prepare(errand->table, node->block, &fresh, &error) != STATUS_OK)
        return false;
    uint8_t *data =
        host_reserve(errand->core->params.tiers.area, &errand->share, errand->space.block_bytes);
    if (!data)
        return false;
    hold_take(errand->table, node->block);
    errand->blocks[errand->count++] =
        (struct errand_block){.chain = node->chain, .block = node->block->id, .data = data};
    return true;
}

// Takes the first nodes of the list that have one salt.
static void take_nodes(struct errand *errand, struct cache *cache, const struct salt *salt)
{
    for (int i = 0; i < STORE_BLOCKS && cache->fresh && cache->fresh->root->salt == salt; i++) {
        struct prefix_node *node = cache->fresh;
        prefix_forget_fresh(cache, node);
        if (!node->block || !prefix_visible(node) || is_there(errand->core, &errand->space, node))
            continue;
        skip(errand->core, !take_node(errand, node));
    }
}

// False: no further errand can begin now.
static bool begin(struct core *core, struct cache *cache)
{
    struct salt *salt = cache->fresh->root->salt;
    if (core->tiers.num_errands > core->params.tiers.max_errands / 2) // the rest is for loads
        return false;
    struct errand *errand = errand_create(core, cache, salt, STORE_BLOCKS);
    if (!errand)
        return false;
    errand->stage = ERRAND_COPYING;
    errand->count = 0;
    take_nodes(errand, cache, salt);
    const uint32_t copied = errand->count ? errand_copy(errand, COPY_OUT, 0, errand->count) : 0;
    skip(core, errand->count - copied);
    for (; errand->count > copied; errand->count--)
        host_ops.give_back(core->params.tiers.area, errand->blocks[errand->count - 1].data);
    if (errand->count)
        return true;
    core->ledger.news = true; // for the nodes that are left
    errand_end(errand);       // the cache may have ended with it
    return false;
}

void store_begin_all(struct core *core)
{
    for (uint32_t i = 0; i < core->pool.num_caches; i++) {
        struct cache *cache = core->pool.caches[i];
        while (cache->fresh) {
            if (!begin(core, cache))
                return;
        }
    }
}
