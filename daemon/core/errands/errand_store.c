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

#include <inttypes.h>
#include <stdlib.h>

enum {
    STORE_BLOCKS = 64, // of one errand
    // Bytes of one errand, but at least one block. One errand's blocks are checked while the next
    // one's are copied.
    STORE_BYTES = 128 << 20,
    STORE_JOBS = 64, // of one further tier; with more under way, blocks are skipped
};

static void skip(struct core *core, uint64_t count)
{
    core->ledger.metrics[METRIC_TIER_SKIPPED] += count;
}

// ---- the further tiers ----

static bool is_kept(const struct errand_block *block, uint32_t source)
{
    (void)source;
    return block->data && block->reason == STORED_OK;
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
        if (errand_copies(errand, errand->num_copies))
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

// A tier has the block. If a load has just brought it, the host tier will have it when this ends.
static bool is_there(const struct errand *errand, const struct prefix_node *node)
{
    const struct core *core = errand->core;
    const struct errand *load =
        errand_find_load(core, errand->table->cache, node->root->salt, node->depth, &node->chain);
    return (load && load->blocks[node->depth - load->first].moved) ||
           tier_probe(core->params.tiers.host, &errand->space, &node->chain) == TIER_THERE;
}

// Takes the node's block into the errand. False: there is no memory for it.
static bool take_node(struct errand *errand, struct prefix_node *node, uint64_t most_bytes)
{
    struct tiers *tiers = &errand->core->tiers;
    const uint64_t bytes = errand->space.block_bytes;
    struct hold_more fresh = {0};
    struct error error;
    if (hold_prepare(errand->table, node->block, &fresh, &error) != STATUS_OK ||
        (tiers->store_bytes && tiers->store_bytes + bytes > most_bytes))
        return false;
    uint8_t *data = host_reserve(errand->core->params.tiers.area, &errand->share, bytes);
    if (!data)
        return false;
    hold_take(errand->table, node->block);
    errand->store_bytes += bytes;
    tiers->store_bytes += bytes;
    errand->blocks[errand->count++] =
        (struct errand_block){.chain = node->chain, .block = node->block->id, .data = data};
    return true;
}

static bool may_take_more(const struct errand *errand)
{
    const uint64_t wish = errand->core->params.tiers.store_bytes, most = wish ? wish : STORE_BYTES;
    return !errand->count || errand->store_bytes + errand->space.block_bytes <= most;
}

static void check_size(struct core *core, struct cache *cache, uint64_t limit_bytes)
{
    if (cache->too_large || cache->block_bytes <= limit_bytes)
        return;
    cache->too_large = true;
    ledger_log(&core->ledger, CORE_LOG_WARNING,
               "cache \"%s\": a block of %" PRIu64 " bytes does not fit the %" PRIu64
               " bytes of --host-tier, so tiers keep none",
               cache->identity.name, cache->block_bytes, limit_bytes);
}

// Takes the first nodes of the list that have one salt. A block for which there is no memory waits
// if an errand will give some back.
static void take_nodes(struct errand *errand, struct cache *cache, const struct salt *salt)
{
    struct tiers *tiers = &errand->core->tiers;
    struct tier_state host;
    tier_state(errand->core->params.tiers.host, &host);
    check_size(errand->core, cache, host.limit_bytes);
    for (int i = 0; i < STORE_BLOCKS && cache->fresh && cache->fresh->root->salt == salt &&
                    may_take_more(errand);
         i++) {
        struct prefix_node *node = cache->fresh;
        const bool wanted = node->block && prefix_visible(node) && !is_there(errand, node);
        if (wanted && !take_node(errand, node, host.limit_bytes / 2)) {
            tiers->full = errand->count || tiers->num_errands > 1;
            if (tiers->full)
                return;
            skip(errand->core, 1);
        }
        prefix_forget_fresh(cache, node);
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
        return !core->tiers.full;
    const bool full = core->tiers.full && core->tiers.num_errands > 1;
    core->ledger.news |= !full; // for the nodes that are left
    errand_end(errand);         // the cache may have ended with it
    core->tiers.full = full;
    return false;
}

void store_begin_all(struct core *core)
{
    if (core->tiers.full)
        return;
    for (uint32_t i = 0; i < core->pool.num_caches; i++) {
        struct cache *cache = core->pool.caches[i];
        while (cache->fresh) {
            if (!begin(core, cache))
                return;
        }
    }
}
