// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// publish.c - core_prefix_publish(). It checks and reserves everything first; what follows cannot
// fail. Knows holds and the prefix index, not what blocks contain.
// Dispatcher thread only.

#include "base/container_of.h"
#include "claim.h"
#include "evict.h"
#include "hold.h"
#include "ledger.h"
#include "lookup.h"
#include "pieces.h"
#include "pool.h"
#include "prefix.h"
#include "session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct publication {
    struct hold_table *table;
    struct cache *cache;
    struct core_prefix prefix; // of these blocks; its arrays are the caller's
    struct prefix_root *root;
    struct prefix_node *parent; // of the first node of the chain; NULL: the root
    int32_t *blocks;
    uint32_t first; // number of blocks[0] in the caller's list, for texts
    uint32_t num_blocks;
    uint32_t num_unnamed;       // the first ones of the caller's list: published ones, not given
    struct prefix_node **chain; // [num_blocks] nodes; owned
    uint32_t num_found;         // of these, nodes that existed before
};

static const int32_t *block_tokens(const struct publication *p, uint32_t index)
{
    return p->prefix.tokens + (size_t)index * p->cache->identity.kv.block_size;
}

static enum status find_parent(struct publication *p, struct error *error)
{
    int32_t id = p->prefix.parent;
    struct block *block;
    if (!p->prefix.has_parent)
        return STATUS_OK;
    if (hold_probe(p->table, id, &block) != STATUS_OK)
        return error_set(error, STATUS_NOT_HELD,
                         "the parent block %" PRId32 " is not held by this session", id);
    if (!block->node)
        return error_set(error, STATUS_NOT_FOUND,
                         "the parent block %" PRId32 " is not in the prefix index", id);
    if (block->node->root != p->root)
        return error_set(error, STATUS_INVALID,
                         "the parent block %" PRId32 " is published under another extra key", id);
    p->parent = block->node;
    return STATUS_OK;
}

static enum status lost_block(const struct publication *p, uint32_t at, struct error *error)
{
    if (at < p->num_unnamed)
        return error_set(error, STATUS_NOT_FOUND,
                         "blocks[%" PRIu32 "] = -1, but no block is published under its tokens",
                         at);
    return error_set(error, STATUS_NOT_FOUND,
                     "the prefix index has lost block %" PRIu32 " of the list", at);
}

// A slice goes on behind the last block before it. That block may have no node: if two sessions
// publish the same tokens at once, one block is not in the index. Then, and behind blocks that the
// caller does not name, the tokens tell the place.
static enum status find_place(struct publication *p, struct error *error)
{
    const int32_t *before = p->blocks - p->first; // the caller's whole list
    uint32_t at = p->first;
    while (at > p->num_unnamed && !block_find(p->cache, before[at - 1])->node)
        at--;
    const bool is_known = at > p->num_unnamed;
    enum status status = is_known ? STATUS_OK : find_parent(p, error);
    if (is_known)
        p->parent = block_find(p->cache, before[at - 1])->node;
    else
        at = 0;
    if (status != STATUS_OK || at == p->first)
        return status;
    struct prefix_walk walk = {.cache = p->cache,
                               .root = p->root,
                               .last = p->parent,
                               .tokens = block_tokens(p, 0) -
                                         (size_t)(p->first - at) * p->cache->identity.kv.block_size,
                               .left = p->first - at};
    while (at < p->first && (p->parent = prefix_walk_next(&walk)))
        at++;
    return p->parent ? STATUS_OK : lost_block(p, at, error);
}

static struct prefix_node *node_before(const struct publication *p, uint32_t i)
{
    return i ? p->chain[i - 1] : p->parent;
}

static void find_chain(struct publication *p)
{
    struct prefix_walk walk = {.cache = p->cache,
                               .root = p->root,
                               .last = p->parent,
                               .tokens = p->prefix.tokens,
                               .left = p->num_blocks};
    while ((p->chain[p->num_found] = prefix_walk_next(&walk)) && ++p->num_found < p->num_blocks)
        ;
}

static enum status check_written(const struct cache *cache, const struct block *block,
                                 uint32_t index, struct error *error)
{
    if (block->written_layers == cache->identity.num_layers)
        return STATUS_OK;
    for (uint32_t layer = 0; layer < cache->identity.num_layers; layer++) {
        const uint8_t *bits = block_written(cache, block, layer);
        int written = 0;
        for (uint32_t i = 0; i < cache->layer_bytes; i++)
            written += __builtin_popcount(bits[i]);
        if ((uint32_t)written != cache->identity.kv.block_size)
            return error_set(error, STATUS_UNWRITTEN,
                             "blocks[%" PRIu32 "] = %" PRId32 " has %d of %" PRIu32
                             " slots written in layer %" PRIu32,
                             index, block->id, written, cache->identity.kv.block_size, layer);
    }
    return STATUS_OK;
}

// That the session holds the block, and that the list names it once.
static enum status check_held(const struct hold_table *table, const int32_t *blocks, uint32_t i,
                              uint64_t stamp, struct block **block, struct error *error)
{
    enum status status = hold_check(table, i, blocks[i], block, error);
    if (status != STATUS_OK)
        return status;
    if ((*block)->stamp == stamp)
        return error_set(error, STATUS_INVALID, "blocks[%" PRIu32 "] = %" PRId32 " occurs twice", i,
                         (*block)->id);
    (*block)->stamp = stamp;
    return STATUS_OK;
}

static enum status check_given(const struct publication *p, uint32_t i, uint64_t stamp,
                               struct error *error)
{
    struct block *block;
    enum status status =
        check_held(p->table, p->blocks - p->first, p->first + i, stamp, &block, error);
    if (status != STATUS_OK || (block->node && block->node == p->chain[i]))
        return status;
    if (block->node)
        return error_set(error, STATUS_INVALID,
                         "blocks[%" PRIu32 "] = %" PRId32
                         " is published already, under other tokens at depth %" PRIu32,
                         p->first + i, block->id, block->node->depth);
    return check_written(p->cache, block, p->first + i, error);
}

// The existing block that replaces blocks[i]; NULL: blocks[i] stays. A block with unfinished writes
// replaces none: the writes may fail, and runs of this session could read before they end.
static struct block *exchange_for(const struct publication *p, uint32_t i)
{
    struct block *has = p->chain[i]->block;
    return has && has->id != p->blocks[i] && prefix_visible(p->chain[i]) ? has : NULL;
}

// Counts a block that the publication replaces, if its release takes it off the quotas. What an
// attached session releases lingers.
static void count_gone(const struct publication *p, int32_t id, struct hold_more *gone)
{
    const struct hold hold = hold_find(p->table, id);
    bool leaves = p->prefix.releases && hold.holds == 1 && !hold.refs && !p->table->attached;
    gone->session += leaves;
    gone->tenant += leaves && block_find(p->cache, id)->users == 1;
}

static uint64_t beyond(uint64_t more, uint64_t less)
{
    return more > less ? more - less : 0;
}

static enum status check_publication(struct publication *p, struct error *error)
{
    uint64_t stamp = ++p->cache->pool->ledger->last_stamp;
    struct hold_more fresh = {0}, gone = {0};
    enum status status = STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < p->num_blocks; i++)
        status = check_given(p, i, stamp, error);
    for (uint32_t i = 0; status == STATUS_OK && i < p->num_found; i++) {
        const struct block *other = exchange_for(p, i);
        if (other)
            status = hold_prepare(p->table, other, &fresh, error);
        if (other)
            count_gone(p, p->blocks[i], &gone);
    }
    if (status != STATUS_OK)
        return status;
    const struct hold_more more = {beyond(fresh.session, gone.session),
                                   beyond(fresh.tenant, gone.tenant)};
    return hold_check_quota(p->table->session, more, error);
}

static enum status extend_chain(struct publication *p, struct error *error)
{
    if (p->num_found == p->num_blocks)
        return STATUS_OK;
    if (!p->root)
        p->root = prefix_root_get(p->cache, p->table->session->salt, &p->prefix);
    for (uint32_t i = p->num_found; p->root && i < p->num_blocks; i++) {
        p->chain[i] = prefix_add(p->cache, p->root, node_before(p, i), block_tokens(p, i));
        if (!p->chain[i])
            break;
    }
    if (p->root && p->chain[p->num_blocks - 1])
        return STATUS_OK;
    if (p->root && p->chain[p->num_found])
        prefix_unlink(p->cache, p->chain[p->num_found]);
    else if (p->root)
        prefix_root_settle(p->cache, p->root);
    return error_set(error, STATUS_NO_MEMORY, "no host memory to publish %" PRIu32 " blocks",
                     p->num_blocks);
}

static void seal(struct cache *cache, struct block *block)
{
    if (block->sealed)
        return;
    block->sealed = true;
    block->writer = 0;
    cache->seals++;
    block_settle(cache, block);
}

// True if blocks[i] became the existing block.
static bool publish_block(struct publication *p, uint32_t i)
{
    struct prefix_node *node = p->chain[i];
    struct block *given = block_find(p->cache, p->blocks[i]), *other = exchange_for(p, i);
    if (other) {
        hold_take(p->table, other);
        block_touch(p->cache, other);
        if (p->prefix.releases)
            hold_drop(p->table, given);
        p->blocks[i] = other->id;
        claim_publish(p->cache, node, p->table->session);
        return true;
    }
    bool again = given->node == node;
    // If two sessions publish the same tokens, the block whose writes end first stays in the index.
    // The other block is sealed as well, but look-ups do not find it.
    if (node->block && node->block != given && given->pending == 0)
        prefix_detach(p->cache, node);
    if (!node->block)
        prefix_attach(p->cache, node, given);
    seal(p->cache, given);
    block_touch(p->cache, given);
    if (!again && node->block == given && prefix_visible(node))
        prefix_note_fresh(p->cache, node);
    if (!again) // else a claim that the session still has is one that waits
        claim_publish(p->cache, node, p->table->session);
    return false;
}

static enum status publish(struct publication *p, uint32_t *num_existing, struct error *error)
{
    struct core_session *session = p->table->session;
    if (prefix_root_find(p->cache, session->salt, &p->prefix, &p->root) != STATUS_OK)
        return error_set(error, STATUS_NO_MEMORY, "no host memory to publish %" PRIu32 " blocks",
                         p->num_blocks);
    enum status status = find_place(p, error);
    if (status != STATUS_OK || !p->num_blocks)
        return status;
    find_chain(p);
    status = check_publication(p, error);
    if (status == STATUS_OK)
        status = extend_chain(p, error);
    if (status != STATUS_OK)
        return status;
    for (uint32_t i = p->num_blocks; i-- > 0;) // deepest first, as in lookup.c
        *num_existing += publish_block(p, i);
    evict_trim(session->pool);
    session->ledger->news = true;
    return STATUS_OK;
}

// `count` blocks of the list from `first` on, and their tokens.
static struct publication slice_of(struct hold_table *table, const struct core_prefix *prefix,
                                   int32_t *blocks, uint32_t num_unnamed, uint32_t first,
                                   uint32_t count)
{
    const uint32_t block_size = table->cache->identity.kv.block_size;
    struct publication p = {.table = table,
                            .cache = table->cache,
                            .prefix = *prefix,
                            .blocks = blocks + first,
                            .first = first,
                            .num_blocks = count,
                            .num_unnamed = num_unnamed};
    p.prefix.tokens += (size_t)first * block_size;
    p.prefix.num_tokens = count * block_size;
    return p;
}

static enum status publish_slice(struct publication *p, uint32_t *num_existing, struct error *error)
{
    p->chain = calloc(p->num_blocks + 1, sizeof(struct prefix_node *));
    if (!p->chain)
        return error_set(error, STATUS_NO_MEMORY, "no host memory to publish %" PRIu32 " blocks",
                         p->num_blocks);
    enum status status = publish(p, num_existing, error);
    free(p->chain);
    return status;
}

static uint32_t count_unnamed(const int32_t *blocks, uint32_t num_blocks)
{
    uint32_t count = 0;
    while (count < num_blocks && blocks[count] == -1)
        count++;
    return count;
}

// Finds the table, and checks the list's length.
static enum status find_table(struct core_session *session, uint64_t cache,
                              const struct core_prefix *prefix, uint32_t num_blocks,
                              struct hold_table **table, struct error *error)
{
    enum status status = lookup_begin(session, cache, prefix, table, error);
    if (status != STATUS_OK)
        return status;
    const uint32_t block_size = (*table)->cache->identity.kv.block_size,
                   full = prefix->num_tokens / block_size;
    if (num_blocks == full)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "%" PRIu32 " blocks given, but %" PRIu32 " tokens fill %" PRIu32
                     " blocks of %" PRIu32,
                     num_blocks, prefix->num_tokens, full, block_size);
}

enum status core_prefix_publish(struct core_session *session, uint64_t cache,
                                const struct core_prefix *prefix, int32_t *blocks,
                                uint32_t num_blocks, uint32_t *num_existing, struct error *error)
{
    struct hold_table *table;
    const uint32_t num_unnamed = count_unnamed(blocks, num_blocks);
    *num_existing = 0;
    enum status status = find_table(session, cache, prefix, num_blocks, &table, error);
    if (status != STATUS_OK || num_blocks == 0)
        return status;
    struct publication p =
        slice_of(table, prefix, blocks, num_unnamed, num_unnamed, num_blocks - num_unnamed);
    return publish_slice(&p, num_existing, error);
}

// ---- in pieces: each is a publication behind the last block of the one before ----

struct publishing {
    struct core_pieces pieces;
    struct hold_table *table;
    struct core_prefix prefix; // its arrays are the caller's
    int32_t *blocks;           // the caller's
    uint32_t num_blocks, num_unnamed, *num_existing;
    bool whole;         // it is one piece
    bool checked;       // check_all() was called
    uint32_t done;      // blocks that are published, the unnamed ones included
    uint32_t left;      // of these, blocks that are not looked at again yet
    enum status status; // not OK: a piece failed
    int32_t given[];    // [num_blocks] as they were
};

// That the blocks that the caller does not name are published.
static enum status check_place(struct publishing *p, struct error *error)
{
    struct publication first =
        slice_of(p->table, &p->prefix, p->blocks, p->num_unnamed, p->num_unnamed, 0);
    return publish_slice(&first, p->num_existing, error);
}

// Checks all blocks before anything is published, in one piece, because the check marks blocks. It
// takes a small part of the time of publishing them.
static enum status check_all(struct publishing *p, struct error *error)
{
    const struct cache *cache = p->table->cache;
    const uint64_t stamp = ++cache->pool->ledger->last_stamp;
    struct block *block;
    p->checked = true;
    p->status = check_place(p, error);
    for (uint32_t i = p->num_unnamed; p->status == STATUS_OK && i < p->num_blocks; i++) {
        hold_fetch_ahead(p->table, p->blocks, i, p->num_blocks);
        p->status = check_held(p->table, p->blocks, i, stamp, &block, error);
        if (p->status == STATUS_OK && !block->node)
            p->status = check_written(cache, block, i, error);
    }
    return p->status;
}

static enum status next_slice(struct publishing *p, struct error *error)
{
    const uint32_t left = p->num_blocks - p->done,
                   count = p->whole ? left : piece_of(p->table->session, left);
    p->status = lookup_begin(p->table->session, p->table->cache_id, &p->prefix, &p->table, error);
    if (p->status != STATUS_OK)
        return p->status;
    struct publication slice =
        slice_of(p->table, &p->prefix, p->blocks, p->num_unnamed, p->done, count);
    slice.prefix.releases &= p->whole;
    p->status = publish_slice(&slice, p->num_existing, error);
    if (p->status != STATUS_OK)
        return p->status;
    p->done += count;
    p->left = p->done;
    return STATUS_OK;
}

// Each exchange holds both blocks. On success the given one is dropped, on failure the other.
static void end_exchanges(struct publishing *p)
{
    for (uint32_t count = piece_of(p->table->session, p->left); count; count--) {
        int32_t *block = &p->blocks[--p->left];
        const int32_t given = p->given[p->left];
        if (*block == given)
            continue;
        hold_drop(p->table, block_find(p->table->cache, p->status == STATUS_OK ? given : *block));
        if (p->status != STATUS_OK)
            *block = given;
    }
    evict_trim(p->table->session->pool);
}

static enum status publish_next(struct core_pieces *pieces, bool *more, struct error *error)
{
    struct publishing *p = container_of(pieces, struct publishing, pieces);
    if (!p->checked)
        check_all(p, error);
    else if (p->status == STATUS_OK && p->done < p->num_blocks)
        next_slice(p, error);
    else
        end_exchanges(p);
    const bool exchanged = (p->prefix.releases && !p->whole) || p->status != STATUS_OK;
    *more = (p->status == STATUS_OK && p->done < p->num_blocks) ||
            (*p->num_existing && exchanged && p->left);
    return *more ? STATUS_OK : p->status;
}

static void publish_discard(struct core_pieces *pieces)
{
    free(container_of(pieces, struct publishing, pieces));
}

enum status core_publish_begin(struct core_session *session, uint64_t cache,
                               const struct core_prefix *prefix, int32_t *blocks,
                               uint32_t num_blocks, uint32_t *num_existing,
                               struct core_pieces **out, struct error *error)
{
    struct hold_table *table;
    const uint32_t num_unnamed = count_unnamed(blocks, num_blocks);
    enum status status = find_table(session, cache, prefix, num_blocks, &table, error);
    if (status != STATUS_OK)
        return status;
    struct publishing *own = malloc(sizeof *own + num_blocks * sizeof *own->given);
    if (!own)
        return error_set(error, STATUS_NO_MEMORY, "no host memory to publish %" PRIu32 " blocks",
                         num_blocks);
    *own = (struct publishing){.pieces = {publish_next, publish_discard},
                               .table = table,
                               .prefix = *prefix,
                               .blocks = blocks,
                               .num_blocks = num_blocks,
                               .num_unnamed = num_unnamed,
                               .done = num_unnamed,
                               .whole = hold_has_quota(session),
                               .checked = hold_has_quota(session),
                               .num_existing = num_existing};
    memcpy(own->given, blocks, num_blocks * sizeof *blocks);
    *num_existing = 0;
    *out = &own->pieces;
    return STATUS_OK;
}
