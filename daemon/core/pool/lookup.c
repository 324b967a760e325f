// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// lookup.c - core_prefix_lookup() and the calls over claims. Each checks and reserves everything
// first; what follows cannot fail. Knows holds, the prefix index and claims. Dispatcher thread
// only.

#include "lookup.h"

#include "claim.h"
#include "ledger.h"
#include "pool.h"
#include "session.h"

#include <inttypes.h>

static enum status check_prefix(const struct core_prefix *prefix, struct error *error)
{
    if (prefix->num_tokens > INT32_MAX)
        return error_set(error, STATUS_INVALID,
                         "a prefix of %" PRIu32 " tokens; at most %d are allowed",
                         prefix->num_tokens, INT32_MAX);
    return STATUS_OK;
}

enum status lookup_begin(struct core_session *session, uint64_t cache,
                         const struct core_prefix *prefix, struct hold_table **table,
                         struct error *error)
{
    enum status status = session_usable(session, error);
    if (status == STATUS_OK)
        status = hold_table_find(session, cache, table, error);
    return status == STATUS_OK ? check_prefix(prefix, error) : status;
}

struct lookup {
    struct hold_table *table;
    const struct core_prefix *prefix;
    uint32_t num_tokens;      // of the prefix, that are looked up
    uint32_t num_blocks;      // full ones
    struct prefix_node *last; // the deepest node found; NULL = none
    uint32_t num_found;       // nodes
    struct hold_more fresh;   // of their blocks, those new to the quotas
};

static enum status walk(struct lookup *l, const struct prefix_root *root, struct error *error)
{
    enum { PREPARED_AHEAD = 4 };
    struct prefix_walk walk = {
        .cache = l->table->cache, .root = root, .tokens = l->prefix->tokens, .left = l->num_blocks};
    struct prefix_node *node;
    while ((node = prefix_walk_next(&walk)) && prefix_visible(node)) {
        const struct prefix_node *soon = prefix_walk_peek(&walk, PREPARED_AHEAD);
        if (soon)
            hold_fetch_page(l->table, soon->block->id);
        enum status status = hold_prepare(l->table, node->block, &l->fresh, error);
        if (status != STATUS_OK)
            return status;
        block_fetch_place(l->table->cache, node->block);
        l->last = node;
        l->num_found++;
    }
    return hold_check_quota(l->table->session, l->fresh, error);
}

// Finds the blocks, and makes sure that take() will succeed.
static enum status find(struct core_session *session, uint64_t cache,
                        const struct core_prefix *prefix, uint32_t max_tokens, struct lookup *l,
                        struct error *error)
{
    struct prefix_root *root;
    *l = (struct lookup){.prefix = prefix, .num_tokens = prefix->num_tokens};
    enum status status = lookup_begin(session, cache, prefix, &l->table, error);
    if (status != STATUS_OK)
        return status;
    if (max_tokens && max_tokens < l->num_tokens)
        l->num_tokens = max_tokens;
    l->num_blocks = l->num_tokens / l->table->cache->identity.kv.block_size;
    if (prefix_root_find(l->table->cache, session->salt, prefix, &root) != STATUS_OK)
        return error_set(error, STATUS_NO_MEMORY, "no host memory to look a prefix up");
    return walk(l, root, error);
}

static void take_block(struct hold_table *table, struct block *block)
{
    hold_take(table, block);
    block_touch(table->cache, block);
    block->node->hits++;
}

static uint64_t count_hits(const struct hold_table *table, uint32_t num_blocks)
{
    uint64_t tokens = (uint64_t)num_blocks * table->cache->identity.kv.block_size;
    table->session->totals.hit_tokens += tokens;
    table->session->ledger->metrics[METRIC_HIT_TOKENS] += tokens;
    return tokens;
}

// Deepest first, so that an ancestor has a later last_use and is evicted after its descendants.
static void take(const struct lookup *l, int32_t *blocks)
{
    struct core_session *session = l->table->session;
    for (const struct prefix_node *node = l->last; node; node = node->parent)
        block_fetch_idle(l->table->cache, node->block);
    for (struct prefix_node *node = l->last; node; node = node->parent) {
        take_block(l->table, node->block);
        blocks[node->depth] = node->block->id;
    }
    session->totals.lookup_tokens += l->num_tokens;
    session->ledger->metrics[METRIC_LOOKUPS]++;
    session->ledger->metrics[METRIC_LOOKUP_TOKENS] += l->num_tokens;
    count_hits(l->table, l->num_found);
}

enum status core_prefix_lookup(struct core_session *session, uint64_t cache,
                               const struct core_prefix *prefix, uint32_t max_tokens,
                               int32_t *blocks, uint32_t *num_blocks, struct error *error)
{
    struct lookup l;
    *num_blocks = 0;
    enum status status = find(session, cache, prefix, max_tokens, &l, error);
    if (status != STATUS_OK)
        return status;
    *num_blocks = l.num_found;
    take(&l, blocks);
    return STATUS_OK;
}

// ---- claims ----

enum status core_prefix_claim(struct core_session *session, uint64_t cache,
                              const struct core_prefix *prefix, uint32_t max_tokens,
                              int32_t *blocks, struct core_claim *out, struct error *error)
{
    struct lookup l;
    *out = (struct core_claim){0};
    enum status status = find(session, cache, prefix, max_tokens, &l, error);
    bool missing = status == STATUS_OK && l.num_found < l.num_blocks;
    if (missing)
        status = claim_check_limit(l.table, prefix, l.num_blocks, error);
    if (status != STATUS_OK)
        return status;
    if (missing) {
        struct claim *claim = claim_create(l.table, prefix, l.num_blocks, l.num_found);
        if (!claim)
            return error_set(error, STATUS_NO_MEMORY,
                             "no host memory for a claim of %" PRIu32 " blocks", l.num_blocks);
        out->claim = claim->id;
        out->num_promised = claim_num_promised(claim);
    }
    out->num_found = l.num_found;
    take(&l, blocks);
    return STATUS_OK;
}

static enum status find_claim(struct core_session *session, uint64_t cache, uint64_t id,
                              struct claim **out, struct error *error)
{
    struct hold_table *table;
    enum status status = session_usable(session, error);
    if (status == STATUS_OK)
        status = hold_table_find(session, cache, &table, error);
    if (status != STATUS_OK)
        return status;
    *out = claim_find(table, id);
    return *out ? STATUS_OK
                : error_set(error, STATUS_NOT_FOUND,
                            "claim %" PRIu64 " of session %" PRIu64 " has ended", id, session->id);
}

uint32_t core_claim_missing(struct core_session *session, uint64_t cache, uint64_t id)
{
    struct error error;
    struct claim *claim;
    return find_claim(session, cache, id, &claim, &error) == STATUS_OK
               ? claim->num_blocks - claim->num_found
               : 0;
}

bool core_claim_waits(struct core_session *session, uint64_t cache, uint64_t id)
{
    struct claim *claim;
    return find_claim(session, cache, id, &claim, NULL) == STATUS_OK && claim_waits(claim);
}

enum status core_wait_for_claim(struct core_session *session, struct core_wait *wait,
                                uint64_t cache, uint64_t id, struct error *error)
{
    struct claim *claim;
    wait->session = NULL;
    enum status status = find_claim(session, cache, id, &claim, error);
    if (status != STATUS_OK)
        return status;
    session_begin_wait(session, wait, CORE_WAIT_CLAIM, cache);
    claim_begin_wait(claim, wait);
    return STATUS_OK;
}

// The visible blocks from claim->num_found on. Makes sure that they can be taken.
static enum status count_ready(const struct claim *claim, uint32_t *end, struct error *error)
{
    struct hold_more fresh = {0};
    for (*end = claim->num_found; *end < claim->num_blocks; ++*end) {
        const struct prefix_node *node = claim->places[*end].node->node;
        if (!node || !prefix_visible(node))
            break;
        enum status status = hold_prepare(claim->table, node->block, &fresh, error);
        if (status != STATUS_OK)
            return status;
    }
    return hold_check_quota(claim->table->session, fresh, error);
}

enum status core_claim_take(struct core_session *session, uint64_t cache, uint64_t id,
                            int32_t *blocks, uint32_t *num_blocks, struct core_claim *out,
                            struct error *error)
{
    struct claim *claim;
    uint32_t end;
    *num_blocks = 0;
    enum status status = find_claim(session, cache, id, &claim, error);
    if (status != STATUS_OK)
        return status;
    if (claim_waits(claim))
        return error_set(error, STATUS_TIMEOUT,
                         "block %" PRIu32 " of claim %" PRIu64 " is not there yet; session %" PRIu64
                         " computes it",
                         claim->num_found, id, claim_holder(claim));
    status = count_ready(claim, &end, error);
    if (status != STATUS_OK)
        return status;
    uint32_t first = claim->num_found, promised = claim_num_promised(claim);
    for (uint32_t i = end; i-- > first;) { // deepest first, as in take()
        struct block *block = claim->places[i].node->node->block;
        take_block(claim->table, block);
        blocks[i - first] = block->id;
    }
    *num_blocks = end - first;
    *out = (struct core_claim){
        .claim = id, .num_found = end, .num_promised = promised - (end - first)};
    session->ledger->metrics[METRIC_CLAIM_TOKENS] += count_hits(claim->table, *num_blocks);
    if (claim_advance(claim, end))
        out->claim = 0;
    return STATUS_OK;
}

enum status core_claim_release(struct core_session *session, uint64_t cache, uint64_t id,
                               uint32_t num_blocks, struct error *error)
{
    struct claim *claim;
    enum status status = find_claim(session, cache, id, &claim, error);
    if (status == STATUS_OK)
        claim_truncate(claim, num_blocks);
    return status == STATUS_NOT_FOUND ? STATUS_OK : status;
}
