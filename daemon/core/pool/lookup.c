// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// lookup.c - core_prefix_lookup() and the calls over claims. Each piece checks and reserves
// everything first; what follows cannot fail. Knows holds, the prefix index and claims. Thread:
// dispatcher.
//
// The block that a look-up has found last is visible and held, so its node stays in the index, and
// so do all above it: the next piece goes on there.

#include "lookup.h"

#include "base/container_of.h"
#include "claim.h"
#include "evict.h"
#include "ledger.h"
#include "pieces.h"
#include "pool.h"
#include "session.h"

#include <inttypes.h>
#include <stdlib.h>

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

// ---- a look-up, piece by piece ----

struct lookup {
    struct core_pieces pieces;
    struct hold_table *table;
    struct core_prefix prefix; // its arrays are the caller's
    bool claims;
    bool whole;                // all blocks are found in one piece
    int32_t *blocks;           // the caller's
    struct core_claim *result; // likewise
    uint32_t num_tokens;       // of the prefix, that are looked up
    uint32_t num_blocks;       // full ones
    struct prefix_root *root;  // NULL: the index has nothing of the prompt
    struct prefix_node *last;  // the deepest node found, whose block is held; NULL = none
    uint32_t num_found;        // nodes whose blocks are held
    bool found_all;            // the next block is missing, or there is none
    struct claim *claim;       // that grows; NULL: not yet
    enum status status;        // not OK: it failed, and what it holds is taken back
};

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

static const int32_t *tokens_from(const struct lookup *l, uint32_t index)
{
    return l->prefix.tokens + (size_t)index * l->table->cache->identity.kv.block_size;
}

// Finds the next `most` blocks at most, and makes sure that they can be held. *count of them.
static enum status walk(const struct lookup *l, uint32_t most, struct prefix_node **last,
                        uint32_t *count, struct error *error)
{
    enum { PREPARED_AHEAD = 4 };
    struct prefix_walk walk = {.cache = l->table->cache,
                               .root = l->root,
                               .last = l->last,
                               .tokens = tokens_from(l, l->num_found),
                               .left = most};
    struct hold_more fresh = {0}; // those new to the quotas
    struct prefix_node *node;
    *last = l->last;
    for (*count = 0; *count < most && (node = prefix_walk_next(&walk)) && prefix_visible(node);
         ++*count) {
        const struct prefix_node *soon = prefix_walk_peek(&walk, PREPARED_AHEAD);
        if (soon)
            hold_fetch_page(l->table, soon->block->id);
        enum status status = hold_prepare(l->table, node->block, &fresh, error);
        if (status != STATUS_OK)
            return status;
        block_fetch_place(l->table->cache, node->block);
        *last = node;
    }
    return hold_check_quota(l->table->session, fresh, error);
}

static enum status find_next(struct lookup *l, struct error *error)
{
    const uint32_t left = l->num_blocks - l->num_found,
                   most = l->whole ? left : piece_of(l->table->session, left);
    struct prefix_node *last, *node;
    uint32_t count;
    enum status status = walk(l, most, &last, &count, error);
    if (status != STATUS_OK)
        return status;
    for (node = last; node != l->last; node = node->parent)
        block_fetch_idle(l->table->cache, node->block);
    for (node = last; node != l->last; node = node->parent) {
        take_block(l->table, node->block);
        l->blocks[node->depth] = node->block->id;
    }
    l->last = last;
    l->num_found += count;
    l->found_all = count < most || l->num_found == l->num_blocks;
    return STATUS_OK;
}

static enum status claim_next(struct lookup *l, struct error *error)
{
    const struct core_session *session = l->table->session;
    if (!l->claim) {
        enum status status = claim_check_limit(l->table, &l->prefix, l->num_blocks, error);
        if (status != STATUS_OK)
            return status;
        l->claim = claim_begin(l->table, &l->prefix, l->num_blocks, l->num_found);
    }
    const uint32_t begun = l->claim ? l->claim->num_blocks : 0;
    if (l->claim &&
        claim_grow(l->claim, tokens_from(l, begun), piece_of(session, l->num_blocks - begun)))
        return STATUS_OK;
    if (l->claim)
        claim_end(l->claim);
    l->claim = NULL;
    return error_set(error, STATUS_NO_MEMORY, "no host memory for a claim of %" PRIu32 " blocks",
                     l->num_blocks);
}

static void finish(const struct lookup *l)
{
    struct core_session *session = l->table->session;
    *l->result = (struct core_claim){.num_found = l->num_found};
    if (l->claim) {
        l->result->claim = l->claim->id;
        l->result->num_promised = claim_num_promised(l->claim);
    }
    session->totals.lookup_tokens += l->num_tokens;
    session->ledger->metrics[METRIC_LOOKUPS]++;
    session->ledger->metrics[METRIC_LOOKUP_TOKENS] += l->num_tokens;
    count_hits(l->table, l->num_found);
}

static enum status undo_next(struct lookup *l, bool *more)
{
    for (uint32_t count = piece_of(l->table->session, l->num_found); count; count--)
        hold_drop(l->table, block_find(l->table->cache, l->blocks[--l->num_found]));
    evict_trim(l->table->session->pool);
    *more = l->num_found > 0;
    return *more ? STATUS_OK : l->status;
}

static enum status lookup_next(struct core_pieces *pieces, bool *more, struct error *error)
{
    struct lookup *l = container_of(pieces, struct lookup, pieces);
    if (l->status != STATUS_OK)
        return undo_next(l, more);
    l->status = session_usable(l->table->session, error);
    if (l->status == STATUS_OK)
        l->status = l->found_all ? claim_next(l, error) : find_next(l, error);
    if (l->status != STATUS_OK) {
        *more = l->num_found > 0;
        return *more ? STATUS_OK : l->status;
    }
    *more = !l->found_all ||
            (l->claims && l->num_found < l->num_blocks && (!l->claim || l->claim->grows));
    if (!*more)
        finish(l);
    return STATUS_OK;
}

static void lookup_discard(struct core_pieces *pieces)
{
    free(container_of(pieces, struct lookup, pieces));
}

static enum status begin(struct core_session *session, uint64_t cache,
                         const struct core_prefix *prefix, uint32_t max_tokens, struct lookup *l,
                         struct error *error)
{
    enum status status = lookup_begin(session, cache, prefix, &l->table, error);
    if (status != STATUS_OK)
        return status;
    l->pieces = (struct core_pieces){lookup_next, lookup_discard};
    l->prefix = *prefix;
    // What an attached session lets go of lingers, so a failure could not be undone.
    l->whole = l->table->attached && hold_has_quota(session);
    l->num_tokens = max_tokens && max_tokens < prefix->num_tokens ? max_tokens : prefix->num_tokens;
    l->num_blocks = l->num_tokens / l->table->cache->identity.kv.block_size;
    if (prefix_root_find(l->table->cache, session->salt, prefix, &l->root) != STATUS_OK)
        return error_set(error, STATUS_NO_MEMORY, "no host memory to look a prefix up");
    return STATUS_OK;
}

enum status core_lookup_begin(struct core_session *session, uint64_t cache,
                              const struct core_prefix *prefix, uint32_t max_tokens, bool claims,
                              int32_t *blocks, struct core_claim *result, struct core_pieces **out,
                              struct error *error)
{
    struct lookup *l = malloc(sizeof *l);
    if (!l)
        return error_set(error, STATUS_NO_MEMORY, "no host memory to look a prefix up");
    *l = (struct lookup){.claims = claims, .blocks = blocks, .result = result};
    enum status status = begin(session, cache, prefix, max_tokens, l, error);
    if (status == STATUS_OK)
        *out = &l->pieces;
    else
        free(l);
    return status;
}

static enum status look_up(struct core_session *session, uint64_t cache,
                           const struct core_prefix *prefix, uint32_t max_tokens, bool claims,
                           int32_t *blocks, struct core_claim *result, struct error *error)
{
    struct lookup l = {.claims = claims, .blocks = blocks, .result = result};
    *result = (struct core_claim){0};
    enum status status = begin(session, cache, prefix, max_tokens, &l, error);
    for (bool more = true; status == STATUS_OK && more;) {
        more = false;
        status = lookup_next(&l.pieces, &more, error);
    }
    return status;
}

enum status core_prefix_lookup(struct core_session *session, uint64_t cache,
                               const struct core_prefix *prefix, uint32_t max_tokens,
                               int32_t *blocks, uint32_t *num_blocks, struct error *error)
{
    struct core_claim result;
    enum status status = look_up(session, cache, prefix, max_tokens, false, blocks, &result, error);
    *num_blocks = result.num_found;
    return status;
}

enum status core_prefix_claim(struct core_session *session, uint64_t cache,
                              const struct core_prefix *prefix, uint32_t max_tokens,
                              int32_t *blocks, struct core_claim *out, struct error *error)
{
    return look_up(session, cache, prefix, max_tokens, true, blocks, out, error);
}

// ---- claims ----

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
    for (uint32_t i = end; i-- > first;) { // deepest first, as in find_next()
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
