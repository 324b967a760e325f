// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// errand_load.c - core_prefix_load(): brings blocks of a prompt back to the GPU. The errand holds
// the part of the prompt that is there, so that it stays, and claims the blocks behind it. Blocks
// that do not come are left to the next claim. Dispatcher thread only.

#include "core/pool/claim.h"
#include "core/pool/lookup.h"
#include "core/pool/prefix.h"
#include "errand.h"

#include <stdlib.h>
#include <string.h>

enum {
    LOAD_BLOCKS = 4096,   // of one errand
    LOAD_TRY_ONE_IN = 32, // of the loads that seem too slow, so that the estimate can get better
};

// ---- what to load ----

struct plan {
    struct core_session *session;
    struct hold_table *table;
    struct prefix_root *root;
    struct prefix_node *last; // of the part that is on the GPU; NULL = none
    const struct core_prefix *prefix;
    uint32_t num_blocks, num_found; // of the prompt; of these, on the GPU
};

static enum status find(struct plan *plan, uint64_t cache, uint32_t max_tokens)
{
    const struct core_prefix *prefix = plan->prefix;
    uint32_t num_tokens = prefix->num_tokens;
    struct prefix_node *node;
    enum status status = lookup_begin(plan->session, cache, prefix, &plan->table, NULL);
    if (status == STATUS_OK)
        status = prefix_root_find(plan->table->cache, plan->session->salt, prefix, &plan->root);
    if (status != STATUS_OK)
        return status;
    num_tokens = max_tokens && max_tokens < num_tokens ? max_tokens : num_tokens;
    plan->num_blocks = num_tokens / plan->table->cache->identity.kv.block_size;
    struct prefix_walk walk = {.cache = plan->table->cache,
                               .root = plan->root,
                               .tokens = prefix->tokens,
                               .left = plan->num_blocks};
    while ((node = prefix_walk_next(&walk)) && prefix_visible(node)) {
        plan->last = node;
        plan->num_found++;
    }
    return STATUS_OK;
}

// The source of a block; ERRAND_NO_SOURCE: a look-up must ask. TIERS_SOURCES: no tier has it.
static uint32_t probe(const struct core *core, const struct record_space *space,
                      const struct record_chain *chain)
{
    uint32_t source = TIERS_SOURCES;
    for (uint32_t i = 0; i <= core->params.tiers.num_more; i++) {
        const enum tier_answer answer = tier_probe(errand_tier(core, i), space, chain);
        if (answer == TIER_THERE)
            return i;
        if (answer == TIER_UNKNOWN)
            source = ERRAND_NO_SOURCE;
    }
    return source;
}

// Fills `blocks`, up to the first one that no tier has. Returns their number.
static uint32_t probe_all(const struct plan *plan, struct errand_block *blocks, uint32_t most)
{
    const struct cache *cache = plan->table->cache;
    const uint32_t block_size = cache->identity.kv.block_size;
    const struct record_space space = errand_space(cache, plan->session->salt);
    struct record_chain chain =
        plan->last ? plan->last->chain
                   : record_chain_begin(plan->prefix->extra_key, plan->prefix->extra_key_size);
    uint32_t count = 0;
    for (; count < most; count++) {
        const uint64_t at = (uint64_t)(plan->num_found + count) * block_size;
        chain = record_chain_next(&chain, plan->prefix->tokens + at, block_size);
        const uint32_t source = probe(plan->session->core, &space, &chain);
        if (source == TIERS_SOURCES)
            break;
        blocks[count] =
            (struct errand_block){.chain = chain, .block = -1, .source = (uint8_t)source};
    }
    return count;
}

// What loading takes, in ns; 0 = not known.
static int64_t estimate(const struct core *core, const struct cache *cache,
                        const struct errand_block *blocks, uint32_t count)
{
    double sum_ns = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t source = blocks[i].source == ERRAND_NO_SOURCE ? 1 : blocks[i].source;
        if (!core->tiers.load_ns[source])
            return 0;
        sum_ns += (double)core->tiers.load_ns[source] * (double)cache->block_bytes / (1 << 20);
    }
    return (int64_t)sum_ns;
}

static bool pays(struct core *core, const struct cache *cache, const struct errand_block *blocks,
                 uint32_t count, enum core_load load)
{
    const int64_t load_ns = estimate(core, cache, blocks, count),
                  compute_ns = cache->compute_ns * cache->identity.kv.block_size * count;
    if (load == CORE_LOAD_ALWAYS || !load_ns || !compute_ns || load_ns < compute_ns)
        return true;
    core->ledger.metrics[METRIC_TIER_DECLINED] += count;
    return ++core->tiers.declined % LOAD_TRY_ONE_IN == 0;
}

// ---- the beginning ----

static bool copy_prefix(struct errand *errand, const struct core_prefix *from, uint32_t num_tokens)
{
    int32_t *tokens = malloc((size_t)num_tokens * sizeof *tokens);
    uint8_t *extra = malloc((size_t)from->extra_key_size + 1);
    errand->prefix = (struct core_prefix){.tokens = tokens,
                                          .num_tokens = num_tokens,
                                          .extra_key = extra,
                                          .extra_key_size = from->extra_key_size};
    if (!tokens || !extra)
        return false;
    memcpy(tokens, from->tokens, (size_t)num_tokens * sizeof *tokens);
    if (from->extra_key_size)
        memcpy(extra, from->extra_key, from->extra_key_size);
    return true;
}

static bool hold_found(const struct errand *errand, const struct plan *plan)
{
    struct hold_more fresh = {0};
    const struct prefix_node *node;
    for (node = plan->last; node; node = node->parent) {
        if (hold_prepare(errand->table, node->block, &fresh, NULL) != STATUS_OK)
            return false;
    }
    if (hold_check_quota(errand->session, fresh, NULL) != STATUS_OK)
        return false;
    for (node = plan->last; node; node = node->parent)
        hold_take(errand->table, node->block);
    return true;
}

// False: there is no memory, or an older claim computes the first block already.
static bool claim_blocks(struct errand *errand)
{
    const uint32_t end = errand->first + errand->count;
    if (claim_check_limit(errand->session, end, NULL) != STATUS_OK)
        return false;
    struct claim *claim = claim_create(errand->table, &errand->prefix, end, errand->first);
    if (!claim)
        return false;
    errand->claim = claim->id;
    return claim_num_promised(claim) == 0;
}

static bool needs_asking(const struct errand_block *block, uint32_t source)
{
    (void)source;
    return block->source == ERRAND_NO_SOURCE;
}

static void ask(struct errand *errand)
{
    const struct core *core = errand->core;
    for (uint32_t i = 1; i <= core->params.tiers.num_more; i++)
        errand_start(errand, TIER_LOOKUP, i, needs_asking);
    errand->stage = ERRAND_ASKING;
}

static uint32_t begin(struct plan *plan, const struct errand_block *blocks, uint32_t count)
{
    struct cache *cache = plan->table->cache;
    struct errand *errand = errand_create(plan->session->core, cache, plan->session->salt, count);
    if (!errand)
        return 0;
    memcpy(errand->blocks, blocks, count * sizeof *blocks);
    errand->loads = true;
    errand->first = plan->num_found;
    errand->parent = plan->last ? plan->last->block->id : -1;
    if (!copy_prefix(errand, plan->prefix,
                     (plan->num_found + count) * cache->identity.kv.block_size) ||
        !hold_found(errand, plan) || !claim_blocks(errand)) {
        errand_end(errand);
        return 0;
    }
    ask(errand);
    return load_advance(errand) ? 0 : count;
}

uint32_t core_prefix_load(struct core_session *session, uint64_t cache,
                          const struct core_prefix *prefix, uint32_t max_tokens,
                          enum core_load load)
{
    struct plan plan = {.session = session, .prefix = prefix};
    struct core *core = session->core;
    if (!core->pool.has_tiers || load == CORE_LOAD_NEVER ||
        find(&plan, cache, max_tokens) != STATUS_OK || plan.num_found == plan.num_blocks)
        return 0;
    const uint32_t missing = plan.num_blocks - plan.num_found,
                   most = missing < LOAD_BLOCKS ? missing : LOAD_BLOCKS;
    struct errand_block *blocks = malloc(most * sizeof *blocks);
    const uint32_t count = blocks ? probe_all(&plan, blocks, most) : 0;
    const bool goes = count && pays(core, plan.table->cache, blocks, count, load);
    const uint32_t begun = goes ? begin(&plan, blocks, count) : 0;
    free(blocks);
    return begun;
}

// ---- the stages ----

// Only the first `count` blocks go on. The claim of the others ends.
static void cut(struct errand *errand, uint32_t count)
{
    for (uint32_t i = count; i < errand->count; i++) {
        struct errand_block *block = &errand->blocks[i];
        if (block->block >= 0)
            core_blocks_release(errand->session, errand->table->cache_id, &block->block, 1, NULL);
        block->block = -1;
    }
    if (count < errand->count)
        core_claim_release(errand->session, errand->table->cache_id, errand->claim,
                           errand->first + count, NULL);
    errand->num_wanted = count;
}

static bool end(struct errand *errand)
{
    errand_end(errand);
    return true;
}

static bool asked(struct errand *errand)
{
    uint32_t count = 0;
    while (count < errand->count && errand->blocks[count].source != ERRAND_NO_SOURCE)
        count++;
    cut(errand, count);
    errand->stage = ERRAND_LEASING;
    return count > 0;
}

// False: there are no blocks, and none will come in time. *waits: they may.
static bool lease(struct errand *errand, bool *waits)
{
    struct core_session *session = errand->session;
    const uint64_t cache = errand->table->cache_id;
    const uint32_t count = errand->num_wanted;
    int32_t *blocks = malloc(count * sizeof *blocks);
    bool growing = false;
    enum status status =
        blocks ? core_lease_turn(session, NULL, cache, count, NULL) : STATUS_NO_MEMORY;
    if (status == STATUS_OK)
        status = core_blocks_lease(session, cache, count, blocks, &growing, NULL);
    for (uint32_t i = 0; status == STATUS_OK && i < count; i++)
        errand->blocks[i].block = blocks[i];
    free(blocks);
    *waits =
        status == STATUS_NO_BLOCKS && growing && errand->core->ledger.now_ns < errand->give_up_ns;
    return status == STATUS_OK;
}

static bool lies_there(const struct errand_block *block, uint32_t source)
{
    return block->source == source && block->block >= 0;
}

static void load(struct errand *errand)
{
    errand->stage = ERRAND_LOADING;
    errand->started_ns = errand->core->ledger.now_ns;
    for (uint32_t i = 0; i <= errand->core->params.tiers.num_more; i++)
        errand_start(errand, TIER_LOAD, i, lies_there);
}

static bool comes_from_afar(const struct errand_block *block, uint32_t source)
{
    return block->source != source && block->block >= 0 && block->data;
}

// Publishes the blocks whose copies are queued: they become visible when these are over.
static bool publish(struct errand *errand, uint32_t count)
{
    const uint32_t block_size = errand->table->cache->identity.kv.block_size;
    const uint64_t cache = errand->table->cache_id;
    struct core_prefix prefix = errand->prefix;
    struct error error;
    uint32_t existing;
    int32_t *blocks = malloc(count * sizeof *blocks);
    prefix.num_tokens = (errand->first + count) * block_size;
    enum status status = blocks ? STATUS_OK : STATUS_NO_MEMORY;
    if (errand->first) {
        prefix.parent = errand->parent;
        prefix.has_parent = true;
        prefix.tokens += (size_t)errand->first * block_size;
        prefix.num_tokens -= errand->first * block_size;
    }
    for (uint32_t i = 0; status == STATUS_OK && i < count; i++)
        blocks[i] = errand->blocks[i].block;
    if (status == STATUS_OK)
        status =
            core_prefix_publish(errand->session, cache, &prefix, blocks, count, &existing, &error);
    free(blocks);
    return status == STATUS_OK;
}

static bool copy(struct errand *errand)
{
    uint32_t count = 0;
    while (count < errand->num_wanted && errand->blocks[count].data)
        count++;
    cut(errand, count);
    errand->stage = ERRAND_COPYING;
    const uint32_t queued = count ? errand_copy(errand, COPY_IN, count) : 0;
    cut(errand, queued);
    if (!queued || !publish(errand, queued)) {
        errand->num_wanted = 0;
        return false;
    }
    errand_start(errand, TIER_STORE, 0, comes_from_afar); // so that the next load is a near one
    return true;
}

static void learn(const struct errand *errand)
{
    struct tiers *tiers = &errand->core->tiers;
    const int64_t took_ns = errand->core->ledger.now_ns - errand->started_ns;
    const double mib = (double)errand->num_wanted * (double)errand->space.block_bytes / (1 << 20);
    const int64_t each_ns = (int64_t)((double)took_ns / mib) + 1;
    for (uint32_t source = 0; source < TIERS_SOURCES; source++) {
        bool used = false;
        for (uint32_t i = 0; i < errand->num_wanted; i++)
            used |= errand->blocks[i].source == source;
        const int64_t before_ns = tiers->load_ns[source];
        if (used)
            tiers->load_ns[source] = before_ns ? before_ns + (each_ns - before_ns) / 4 : each_ns;
    }
}

static void succeed(struct errand *errand)
{
    struct core *core = errand->core;
    learn(errand);
    core->ledger.metrics[METRIC_TIER_LOADED_TOKENS] +=
        (uint64_t)errand->num_wanted * errand->table->cache->identity.kv.block_size;
}

bool load_advance(struct errand *errand)
{
    bool waits = false;
    if (errand->num_jobs)
        return false;
    if (errand->core->ledger.lost)
        return errand_copies(errand) ? false : end(errand);
    if (errand->stage == ERRAND_ASKING && !asked(errand))
        return end(errand);
    if (errand->stage == ERRAND_LEASING) {
        if (!lease(errand, &waits))
            return waits ? false : end(errand);
        load(errand);
        if (errand->num_jobs)
            return false;
    }
    if (errand->stage == ERRAND_LOADING && !copy(errand) && !errand_copies(errand))
        return end(errand);
    if (errand_copies(errand) || errand->num_jobs)
        return false;
    if (errand->num_wanted && errand_copied(errand))
        succeed(errand);
    return end(errand);
}
