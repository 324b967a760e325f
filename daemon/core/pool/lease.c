// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// lease.c - core_blocks_lease() and core_blocks_release(). Both check and reserve everything first;
// what follows cannot fail. Knows which free block to take, not how to get more (pool.h).
// Dispatcher thread only.

#include "attached.h"
#include "base/container_of.h"
#include "evict.h"
#include "hold.h"
#include "ledger.h"
#include "pieces.h"
#include "pool.h"
#include "queue.h"
#include "salt.h"
#include "session.h"
#include "tenant.h"
#include "zeroes.h"

#include <inttypes.h>
#include <stdlib.h>

static void lease_undo(struct cache *cache, const int32_t *blocks, uint32_t count)
{
    while (count--)
        block_untake(cache, block_find(cache, blocks[count]));
}

static enum status lease_take(struct hold_table *table, uint32_t count, int32_t *blocks,
                              struct account **account, struct error *error)
{
    *account = account_get(table->session->salt->tenant, table->cache, count);
    bool room = *account && zeroes_reserve(table->session->pool, count);
    // In a pass of its own, so that the pages are prefetched.
    for (uint32_t i = 0; room && i < count; i++) {
        blocks[i] = block_take(table->cache)->id;
        hold_fetch_page(table, blocks[i]);
    }
    uint32_t reserved = 0;
    while (room && reserved < count && hold_reserve(table, blocks[reserved]))
        reserved++;
    if (room && reserved == count)
        return STATUS_OK;
    if (room)
        lease_undo(table->cache, blocks, count);
    return error_set(error, STATUS_NO_MEMORY, "no host memory to lease %" PRIu32 " blocks", count);
}

// A block that another salt last wrote is zeroed before any run of this session.
static void take_salt(const struct hold_table *table, struct block *block)
{
    const struct core_session *session = table->session;
    if (table->attached) {
        attached_forgo_zeroes(table, block);
        block->salt =
            block->salt && block->salt != session->salt->id ? SALT_MIXED : session->salt->id;
        return;
    }
    if (block->salt && block->salt != session->salt->id)
        zeroes_add(session->pool, table->cache, block);
    block->salt = session->salt->id;
}

// Cannot fail.
static void lease_commit(struct hold_table *table, struct block *block, struct account *account)
{
    const struct core_session *session = table->session;
    take_salt(table, block);
    block->writer = session->id;
    block->account = account;
    block_touch(table->cache, block);
    hold_take(table, block);
}

static enum status lease_check(const struct hold_table *table, uint32_t count, struct error *error)
{
    uint64_t limit = pool_limit(table->cache);
    if (count == 0)
        return error_set(error, STATUS_INVALID, "a lease of 0 blocks");
    if (count > limit)
        return error_set(
            error, STATUS_LIMIT,
            "%" PRIu32 " blocks wanted; cache \"%.64s\" can never have more than %" PRIu64 " (%s)",
            count, table->cache->name, limit,
            table->cache->pool->fixed_blocks ? "--export-pool" : "--max-blocks, --memory-fraction");
    return hold_check_quota(table->session, (struct hold_more){count, count}, error);
}

enum status core_blocks_lease(struct core_session *session, const struct core_wait *wait,
                              uint64_t cache, uint32_t count, int32_t *blocks, bool *growing,
                              struct error *error)
{
    struct hold_table *table;
    struct account *account = NULL;
    *growing = false;
    enum status status = session_usable(session, error);
    if (status == STATUS_OK)
        status = hold_table_find(session, cache, &table, error);
    if (status == STATUS_OK)
        status = lease_check(table, count, error);
    if (status != STATUS_OK)
        return status;
    status = queue_turn(session, wait, cache, count, error);
    if (status != STATUS_OK)
        *growing = pool_grows(table->cache);
    else if (table->cache->counts[CORE_FREE] < count)
        status = pool_make_room(table, count, growing, error);
    if (status == STATUS_OK) {
        status = attached_choose(table, count, error);
        *growing |= status != STATUS_OK; // ask again soon
    }
    if (status == STATUS_OK)
        status = lease_take(table, count, blocks, &account, error);
    if (status != STATUS_OK)
        return status;
    for (uint32_t i = 0; i < count; i++)
        lease_commit(table, block_find(table->cache, blocks[i]), account);
    pool_keep_spare(table->cache);
    if (wait)
        queue_granted(session->pool);
    return STATUS_OK;
}

// block->mark counts how often the list has had the block so far.
static enum status release_check(const struct hold_table *table, const int32_t *blocks,
                                 uint32_t count, struct error *error)
{
    uint64_t stamp = ++table->session->ledger->last_stamp;
    for (uint32_t i = 0; i < count; i++) {
        struct block *block;
        hold_fetch_ahead(table, blocks, i, count);
        enum status status = hold_check(table, i, blocks[i], &block, error);
        if (status != STATUS_OK)
            return status;
        if (block->stamp != stamp)
            block->mark = 0;
        block->stamp = stamp;
        if (block->mark++ >= hold_find(table, block->id).holds)
            return error_set(error, STATUS_NOT_HELD,
                             "blocks[%" PRIu32 "] = %" PRId32 " is named %" PRIu32
                             " times but held %" PRIu32 " times",
                             i, blocks[i], block->mark, hold_find(table, block->id).holds);
    }
    return STATUS_OK;
}

// The last one first: lists begin with the root of their prefix, and what is cached last is evicted
// last.
static void release(struct hold_table *table, const int32_t *blocks, uint32_t first, uint32_t count)
{
    for (uint32_t i = first + count; i-- > first;) {
        if (i >= first + BLOCK_AHEAD)
            hold_fetch(table, blocks[i - BLOCK_AHEAD]);
        hold_drop(table, block_find(table->cache, blocks[i]));
    }
    evict_trim(table->session->pool);
}

enum status core_blocks_release(struct core_session *session, uint64_t cache, const int32_t *blocks,
                                uint32_t count, struct error *error)
{
    struct hold_table *table;
    enum status status = hold_table_find(session, cache, &table, error);
    if (status == STATUS_OK)
        status = release_check(table, blocks, count, error);
    if (status == STATUS_OK)
        release(table, blocks, 0, count);
    return status;
}

// ---- in pieces ----

struct releasing {
    struct core_pieces pieces;
    struct hold_table *table;
    const int32_t *blocks;
    uint32_t count, left; // `left`: not released
    bool checked;
};

static enum status release_next(struct core_pieces *pieces, bool *more, struct error *error)
{
    struct releasing *r = container_of(pieces, struct releasing, pieces);
    enum status status = STATUS_OK;
    if (!r->checked) {
        status = release_check(r->table, r->blocks, r->count, error);
        r->checked = true;
    } else {
        const uint32_t count = piece_of(r->table->session, r->left);
        r->left -= count;
        release(r->table, r->blocks, r->left, count);
    }
    *more = r->left > 0;
    return status;
}

static void release_discard(struct core_pieces *pieces)
{
    free(container_of(pieces, struct releasing, pieces));
}

enum status core_release_begin(struct core_session *session, uint64_t cache, const int32_t *blocks,
                               uint32_t count, struct core_pieces **out, struct error *error)
{
    struct hold_table *table;
    enum status status = hold_table_find(session, cache, &table, error);
    if (status != STATUS_OK)
        return status;
    struct releasing *r = malloc(sizeof *r);
    if (!r)
        return error_set(error, STATUS_NO_MEMORY, "no host memory to release %" PRIu32 " blocks",
                         count);
    *r = (struct releasing){{release_next, release_discard}, table, blocks, count, count, false};
    *out = &r->pieces;
    return STATUS_OK;
}
