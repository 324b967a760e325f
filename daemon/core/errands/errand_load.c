// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// errand_load.c - core_prefix_load(): brings blocks of a prompt back to the GPU. The errand holds
// the part of the prompt that is there, so that it stays, and claims the blocks behind it. It loads
// them window by window: while the GPU copies one window, the next one is loaded. Blocks that do
// not come are left to the next claim. Dispatcher thread only.

#include "base/list.h"
#include "core/pool/claim.h"
#include "core/pool/lookup.h"
#include "core/pool/prefix.h"
#include "core/pool/tenant.h"
#include "errand.h"

#include <stdlib.h>
#include <string.h>

enum {
    LOAD_BLOCKS = 4096,      // of one errand
    LOAD_TRY_ONE_IN = 32,    // of the loads that seem too slow, so that the estimate can get better
    WINDOW_BYTES = 16 << 20, // as long as nothing is known of a tier's speed
    MOST_WINDOW = 128 << 20, // bytes: so that a window is checked while the one before is copied
    // Bytes of the first window, which is short, because no copy runs while it is checked. Each
    // later one is twice as long as the one before, up to the longest.
    FIRST_WINDOW = 32 << 20,
    WINDOWS = 4, // that the memory has room for, at least
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

// Fills in the block's source. ERRAND_NO_SOURCE: only a look-up can say. False: no tier has it.
static bool probe(const struct core *core, const struct stored_space *space,
                  const struct stored_chain *chain, struct errand_block *block)
{
    *block = (struct errand_block){.chain = *chain, .block = -1, .source = ERRAND_NO_SOURCE};
    for (uint32_t i = 0; i <= core->params.tiers.num_more; i++) {
        const enum tier_answer answer = tier_look(errand_tier(core, i), space, chain);
        if (answer == TIER_THERE) {
            block->source = (uint8_t)i;
            return true;
        }
        block->unknown |= (uint8_t)((answer == TIER_UNKNOWN) << i);
    }
    return block->unknown != 0;
}

static struct stored_chain next_chain(const struct plan *plan)
{
    const struct core_prefix *prefix = plan->prefix;
    const uint32_t block_size = plan->table->cache->identity.kv.block_size;
    const struct stored_chain before =
        plan->last ? plan->last->chain
                   : stored_chain_begin(prefix->extra_key, prefix->extra_key_size);
    return stored_chain_next(&before, prefix->tokens + (size_t)plan->num_found * block_size,
                             block_size);
}

// Fills `blocks`, up to the first one that no tier has. Returns their number.
static uint32_t probe_all(const struct plan *plan, struct errand_block *blocks, uint32_t most)
{
    const struct cache *cache = plan->table->cache;
    const uint32_t block_size = cache->identity.kv.block_size;
    const struct stored_space space = errand_space(cache, plan->session->salt);
    const int32_t *tokens = plan->prefix->tokens + (size_t)plan->num_found * block_size;
    struct stored_chain chain = next_chain(plan);
    uint32_t count = 0;
    for (; count < most; count++) {
        if (count)
            chain = stored_chain_next(&chain, tokens + (size_t)count * block_size, block_size);
        if (!probe(plan->session->core, &space, &chain, &blocks[count]))
            break;
    }
    return count;
}

// Nanoseconds for a MiB. An unknown source counts as the slowest tier. 0 = not known.
static int64_t load_ns_of(const struct core *core, uint8_t source)
{
    int64_t slowest = 0;
    if (source != ERRAND_NO_SOURCE)
        return core->tiers.load_ns[source];
    for (uint32_t i = 1; i < TIERS_SOURCES; i++)
        slowest = core->tiers.load_ns[i] > slowest ? core->tiers.load_ns[i] : slowest;
    return slowest;
}

// What loading takes, in ns; 0 = not known.
static int64_t estimate(const struct core *core, const struct cache *cache,
                        const struct errand_block *blocks, uint32_t count)
{
    double sum_ns = 0;
    for (uint32_t i = 0; i < count; i++) {
        const int64_t one_ns = load_ns_of(core, blocks[i].source);
        if (!one_ns)
            return 0;
        sum_ns += (double)one_ns * (double)cache->block_bytes / (1 << 20);
    }
    return (int64_t)sum_ns;
}

static bool pays(struct core *core, const struct hold_table *table,
                 const struct errand_block *blocks, uint32_t count, enum core_load load)
{
    const struct cache *cache = table->cache;
    const int64_t load_ns = estimate(core, cache, blocks, count),
                  compute_ns =
                      table->account->pace.token_ns * cache->identity.kv.block_size * count;
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
    if (claim_check_limit(errand->table, &errand->prefix, end, NULL) != STATUS_OK)
        return false;
    struct claim *claim = claim_create(errand->table, &errand->prefix, end, errand->first);
    if (!claim)
        return false;
    errand->claim = claim->id;
    return claim_num_promised(claim) == 0;
}

static bool needs_asking(const struct errand_block *block, uint32_t source)
{
    return block->source == ERRAND_NO_SOURCE && block->unknown >> source & 1;
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
    errand->num_wanted = count;
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

// The load that brings the first missing block, which an earlier look-up may have begun. 0: none.
static uint64_t find_load(const struct plan *plan)
{
    if (!plan->session->core->tiers.errands)
        return 0;
    const struct stored_chain chain = next_chain(plan);
    const struct errand *errand = errand_find_load(plan->session->core, plan->table->cache,
                                                   plan->session->salt, plan->num_found, &chain);
    return errand ? errand->session->id : 0;
}

bool core_load_runs(const struct core *core, uint64_t load)
{
    const struct errand *errand;
    LIST_EACH(core->tiers.errands, errand) {
        if (errand->session->id == load)
            return true;
    }
    return false;
}

static uint32_t load_missing(struct plan *plan, enum core_load load)
{
    const uint32_t missing = plan->num_blocks - plan->num_found,
                   most = missing < LOAD_BLOCKS ? missing : LOAD_BLOCKS;
    struct errand_block *blocks = malloc(most * sizeof *blocks);
    const uint32_t count = blocks ? probe_all(plan, blocks, most) : 0;
    const bool goes = count && pays(plan->session->core, plan->table, blocks, count, load);
    const uint32_t begun = goes ? begin(plan, blocks, count) : 0;
    free(blocks);
    return begun;
}

uint32_t core_prefix_load(struct core_session *session, uint64_t cache,
                          const struct core_prefix *prefix, uint32_t max_tokens,
                          enum core_load load, uint64_t *id)
{
    struct plan plan = {.session = session, .prefix = prefix};
    *id = 0;
    if (!session->core->pool.has_tiers || load == CORE_LOAD_NEVER ||
        find(&plan, cache, max_tokens) != STATUS_OK || plan.num_found == plan.num_blocks)
        return 0;
    *id = find_load(&plan);
    const uint32_t begun = *id ? 0 : load_missing(&plan, load);
    if (begun)
        *id = find_load(&plan);
    return begun;
}

// ---- what is learnt ----

static bool uses(const struct errand *errand, uint32_t count, uint32_t source)
{
    for (uint32_t i = 0; i < count; i++) {
        if (errand->blocks[i].source == source)
            return true;
    }
    return false;
}

// A time that ran out says only that a tier is slower than this, so the next measure replaces it.
static void learn_one(struct tiers *tiers, uint32_t source, int64_t each_ns, bool ran_out)
{
    const int64_t before_ns = tiers->load_ns[source];
    if (ran_out && each_ns <= before_ns)
        return;
    if (ran_out || !before_ns || tiers->ran_out[source])
        tiers->load_ns[source] = each_ns;
    else
        tiers->load_ns[source] = before_ns + (each_ns - before_ns) / 4;
    tiers->ran_out[source] = ran_out;
}

// The time runs from the first window's load to the end of the last window's copy. A load from
// several tiers does not say which one took how long, so it counts only where nothing is known.
static void learn(const struct errand *errand)
{
    struct tiers *tiers = &errand->core->tiers;
    uint32_t num_sources = 0;
    const struct errand_block *next = &errand->blocks[errand->num_done];
    const bool ran_out =
        !errand->num_done && (next->reason == STORED_TIMEOUT || next->reason == STORED_ABANDONED);
    const uint32_t count = ran_out ? 1 : errand->num_done;
    const int64_t took_ns = errand->core->ledger.now_ns - errand->started_ns;
    const double mib = (double)count * (double)errand->space.block_bytes / (1 << 20);
    for (uint32_t source = 0; source < TIERS_SOURCES; source++)
        num_sources += uses(errand, count, source);
    for (uint32_t source = 0; count && source < TIERS_SOURCES; source++) {
        if (uses(errand, count, source) && (num_sources == 1 || !tiers->load_ns[source]))
            learn_one(tiers, source, (int64_t)((double)took_ns / mib) + 1, ran_out);
    }
}

// ---- the stages: each returns false if it waits for something ----

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

static int64_t slowest(const struct errand *errand)
{
    int64_t slowest_ns = 0;
    for (uint32_t source = 0; source < TIERS_SOURCES; source++) {
        const int64_t own_ns = errand->core->tiers.load_ns[source];
        if (own_ns > slowest_ns && uses(errand, errand->num_wanted, source))
            slowest_ns = own_ns;
    }
    return slowest_ns;
}

// A window should come in half of the time that it has, and leave memory for other transfers.
static uint64_t window_bytes(const struct errand *errand)
{
    const struct core_tiers *params = &errand->core->params.tiers;
    const int64_t each_ns = slowest(errand);
    struct tier_state host;
    tier_state(params->host, &host);
    const double most = (double)host.limit_bytes / WINDOWS,
                 fit = params->deadline_ns == FOREVER ? most
                       : each_ns ? (double)params->deadline_ns / 2 / (double)each_ns * (1 << 20)
                                 : WINDOW_BYTES;
    const uint64_t bytes = (uint64_t)(fit < most ? fit : most);
    return bytes < MOST_WINDOW ? bytes : MOST_WINDOW;
}

static void next_window(struct errand *errand)
{
    const struct core *core = errand->core;
    const int64_t abandon_ns = core->params.tiers.abandon_ns;
    const uint64_t most = errand->window_bytes, ramp = errand->ramp_bytes,
                   fit = (ramp < most ? ramp : most) / errand->space.block_bytes;
    const uint32_t left = errand->num_wanted - errand->num_done;
    errand->window = errand->num_done + (fit < 1 ? 1 : fit < left ? (uint32_t)fit : left);
    errand->ramp_bytes = ramp < most ? 2 * ramp : ramp;
    errand->give_up_ns = abandon_ns == FOREVER ? FOREVER : core->ledger.now_ns + abandon_ns;
    errand->stage = ERRAND_LEASING;
}

static bool ask_answered(struct errand *errand)
{
    const uint64_t first_window = errand->core->params.tiers.first_window;
    uint32_t count = 0;
    while (count < errand->count && errand->blocks[count].source != ERRAND_NO_SOURCE)
        count++;
    cut(errand, count);
    errand->stage = ERRAND_ENDING;
    if (count) {
        errand->window_bytes = window_bytes(errand);
        errand->ramp_bytes = first_window ? first_window : FIRST_WINDOW;
        next_window(errand);
    }
    return true;
}

// False: there are no blocks. *waits: they may come in time.
static bool lease(struct errand *errand, bool *waits)
{
    struct core_session *session = errand->session;
    const uint64_t cache = errand->table->cache_id;
    const uint32_t count = errand->window - errand->num_done;
    int32_t *blocks = malloc(count * sizeof *blocks);
    bool growing = false;
    const enum status status =
        blocks ? core_blocks_lease(session, NULL, cache, count, blocks, &growing, NULL)
               : STATUS_NO_MEMORY;
    for (uint32_t i = 0; status == STATUS_OK && i < count; i++)
        errand->blocks[errand->num_done + i].block = blocks[i];
    free(blocks);
    *waits =
        status == STATUS_NO_BLOCKS && growing && errand->core->ledger.now_ns < errand->give_up_ns;
    return status == STATUS_OK;
}

static bool lies_there(const struct errand_block *block, uint32_t source)
{
    return block->source == source && block->block >= 0 && !block->moved;
}

static bool lease_and_load(struct errand *errand)
{
    bool waits;
    if (!lease(errand, &waits)) {
        if (waits)
            return false;
        cut(errand, errand->num_done);
        errand->stage = ERRAND_ENDING;
        return true;
    }
    errand->stage = ERRAND_LOADING;
    if (!errand->num_done)
        errand->started_ns = errand->core->ledger.now_ns;
    for (uint32_t i = 0; i <= errand->core->params.tiers.num_more; i++)
        errand_start(errand, TIER_LOAD, i, lies_there);
    return true;
}

static bool loaded(struct errand *errand)
{
    uint32_t end = errand->num_done;
    while (end < errand->window && errand->blocks[end].data)
        end++;
    if (end < errand->window)
        cut(errand, end);
    errand->window = end;
    errand->stage = end > errand->num_done ? ERRAND_COPYING : ERRAND_ENDING;
    return true;
}

static bool comes_from_afar(const struct errand_block *block, uint32_t source)
{
    return block->source != source && block->moved && block->data;
}

// Publishes the `count` blocks behind those that are done. Their copies are queued, and they become
// visible when these are over.
static bool publish(struct errand *errand, uint32_t count)
{
    const uint32_t block_size = errand->table->cache->identity.kv.block_size,
                   done = errand->num_done, before = errand->first + done;
    struct core_prefix prefix = errand->prefix;
    struct error error;
    uint32_t existing;
    int32_t *blocks = malloc(count * sizeof *blocks);
    if (!blocks)
        return false;
    for (uint32_t i = 0; i < count; i++)
        blocks[i] = errand->blocks[done + i].block;
    prefix.has_parent = before > 0;
    prefix.parent = done ? errand->blocks[done - 1].block : errand->parent;
    prefix.tokens += (size_t)before * block_size;
    prefix.num_tokens = count * block_size;
    const enum status status = core_prefix_publish(errand->session, errand->table->cache_id,
                                                   &prefix, blocks, count, &existing, &error);
    for (uint32_t i = 0; status == STATUS_OK && i < count; i++)
        errand->blocks[done + i].block = blocks[i]; // another one, if it was published meanwhile
    free(blocks);
    return status == STATUS_OK;
}

// Copies of a window stand behind those of the one before. Those before that one are over.
static bool copy(struct errand *errand)
{
    const uint32_t done = errand->num_done, count = errand->window - done;
    if (errand_copies(errand, errand->last_copies))
        return false;
    errand_give_back(errand, errand->num_copied, errand->last_done - errand->num_copied);
    errand->num_copied = errand->last_done;
    errand->last_done = done;
    errand->last_copies = errand->num_copies;
    errand->stage = ERRAND_ENDING;
    const uint32_t queued = errand_copied(errand) ? errand_copy(errand, COPY_IN, done, count) : 0;
    if (queued < count)
        cut(errand, done + queued);
    for (uint32_t i = 0; i < queued; i++)
        errand->blocks[done + i].moved = true;
    if (!queued || !publish(errand, queued))
        return true;
    errand_start(errand, TIER_STORE, 0, comes_from_afar); // so that the next load is a near one
    errand->num_done += queued;
    if (errand->num_done < errand->num_wanted)
        next_window(errand);
    return true;
}

static void end(struct errand *errand)
{
    struct core *core = errand->core;
    if (!core->ledger.lost && errand_copied(errand)) {
        learn(errand);
        core->ledger.metrics[METRIC_TIER_LOADED_TOKENS] +=
            (uint64_t)errand->num_done * errand->table->cache->identity.kv.block_size;
    }
    errand_end(errand);
}

bool load_advance(struct errand *errand)
{
    static bool (*const stages[])(struct errand *) = {
        [ERRAND_ASKING] = ask_answered,
        [ERRAND_LEASING] = lease_and_load,
        [ERRAND_LOADING] = loaded,
        [ERRAND_COPYING] = copy,
    };
    if (errand->core->ledger.lost)
        errand->stage = ERRAND_ENDING;
    while (!errand->num_jobs && errand->stage != ERRAND_ENDING) {
        if (!stages[errand->stage](errand))
            return false;
    }
    if (errand->num_jobs || errand_copies(errand, errand->num_copies))
        return false;
    end(errand);
    return true;
}
