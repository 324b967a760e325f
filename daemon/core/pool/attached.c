// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attached.c - see attached.h; also core_cache_attach(). A pool with attached sessions is one chunk
// a cache, so an array by block id has the lingering blocks, linked in the order of their marks.

#include "attached.h"

#include "hold.h"
#include "ledger.h"
#include "pool.h"
#include "session.h"
#include "zeroes.h"

#include <inttypes.h>
#include <stdlib.h>

enum { NONE = -1 };

struct lingering {
    uint64_t mark; // 0 = the block does not linger
    int32_t before, behind;
};

struct attached {
    uint64_t mark; // of releases from now on; from 1
    int32_t first, last;
    uint32_t num;
    struct lingering blocks[]; // [cache->chunk_blocks]
};

enum status attached_begin(struct hold_table *table, struct error *error)
{
    const size_t count = table->cache->chunk_blocks;
    table->attached = calloc(1, sizeof *table->attached + count * sizeof(struct lingering));
    if (!table->attached)
        return error_set(error, STATUS_NO_MEMORY, "no host memory to attach to cache \"%.64s\"",
                         table->cache->name);
    table->attached->mark = 1;
    table->attached->first = table->attached->last = NONE;
    return STATUS_OK;
}

// ---- the list ----

static void append(struct attached *attached, int32_t id)
{
    struct lingering *entry = &attached->blocks[id];
    *entry = (struct lingering){attached->mark, attached->last, NONE};
    *(attached->last == NONE ? &attached->first : &attached->blocks[attached->last].behind) = id;
    attached->last = id;
    attached->num++;
}

static void take_out(struct attached *attached, int32_t id)
{
    struct lingering *entry = &attached->blocks[id];
    *(entry->before == NONE ? &attached->first : &attached->blocks[entry->before].behind) =
        entry->behind;
    *(entry->behind == NONE ? &attached->last : &attached->blocks[entry->behind].before) =
        entry->before;
    entry->mark = 0;
    attached->num--;
}

void attached_linger(struct hold_table *table, const struct block *block)
{
    struct attached *attached = table->attached;
    if (attached->blocks[block->id].mark) // it was taken again, and is released again
        take_out(attached, block->id);
    else
        hold_ref(table, block->id);
    append(attached, block->id);
}

bool attached_lingers(const struct hold_table *table, int32_t id)
{
    return table->attached && table->attached->blocks[id].mark;
}

uint32_t attached_num(const struct hold_table *table)
{
    return table->attached ? table->attached->num : 0;
}

// ---- marks ----

uint64_t attached_mark(struct hold_table *table)
{
    return table->attached->mark++;
}

uint64_t attached_last_mark(const struct hold_table *table)
{
    return table->attached->mark - 1;
}

void attached_pass(struct hold_table *table, uint64_t mark)
{
    struct attached *attached = table->attached;
    while (attached->first != NONE && attached->blocks[attached->first].mark <= mark) {
        const int32_t id = attached->first;
        take_out(attached, id);
        hold_unref(table, id);
    }
}

void attached_end(struct hold_table *table)
{
    if (!table->attached)
        return;
    attached_pass(table, UINT64_MAX);
    free(table->attached);
    table->attached = NULL;
}

// ---- attaching ----

static enum status check_memory(const struct cache *cache, struct error *error)
{
    if (cache->num_present)
        return STATUS_OK;
    if (cache->num_growing)
        return error_set(error, STATUS_BUSY, "the memory of cache \"%.64s\" is not made yet",
                         cache->name);
    return error_set(error, STATUS_NO_MEMORY,
                     "the device has no %" PRIu64 " bytes for cache \"%.64s\" (--export-pool)",
                     cache->chunk_bytes, cache->name);
}

void attached_forgo_zeroes(const struct hold_table *table, struct block *block)
{
    if (block->zeroing)
        zeroes_cancel(table->cache->pool, block);
}

static bool any_in_flight(const struct pool *pool)
{
    return pool->zeroes_ended < pool->zeroes_submitted;
}

static enum status being_zeroed(const struct cache *cache, enum status status, struct error *error)
{
    return error_set(error, status, "blocks of cache \"%.64s\" are being zeroed", cache->name);
}

enum status attached_choose(const struct hold_table *table, uint32_t count, struct error *error)
{
    struct cache *cache = table->cache;
    if (!table->attached || !any_in_flight(cache->pool) ||
        block_prefer_zeroed(cache, count, cache->pool->zeroes_ended))
        return STATUS_OK;
    return being_zeroed(cache, STATUS_NO_BLOCKS, error);
}

enum status attached_check_zeroes(const struct hold_table *table, const int32_t *blocks,
                                  uint32_t count, struct error *error)
{
    const uint64_t ended = table->cache->pool->zeroes_ended;
    for (uint32_t i = 0; table->attached && i < count; i++)
        if (block_find(table->cache, blocks[i])->zeroed > ended)
            return being_zeroed(table->cache, STATUS_BUSY, error);
    return STATUS_OK;
}

// The session may have blocks already, which are zeroed for it.
static enum status check_own_zeroes(const struct hold_table *table, struct error *error)
{
    const struct cache *cache = table->cache;
    if (!any_in_flight(cache->pool))
        return STATUS_OK;
    for (int32_t id = 0; id < (int32_t)cache->chunk_blocks; id++)
        if (block_find(cache, id)->zeroed > cache->pool->zeroes_ended && hold_has(table, id))
            return being_zeroed(cache, STATUS_BUSY, error);
    return STATUS_OK;
}

// For the blocks that the session has already.
static void forgo_all_zeroes(const struct hold_table *table)
{
    const struct pool *pool = table->cache->pool;
    for (uint32_t i = pool->num_zeroes; i-- > 0;) {
        struct block *block = pool->zero_blocks[i];
        if (pool->zeroes[i].cache == table->cache->engine && hold_has(table, block->id))
            attached_forgo_zeroes(table, block);
    }
}

static enum status begin(struct hold_table *table, struct error *error)
{
    enum status status = check_own_zeroes(table, error);
    if (status == STATUS_OK)
        status = attached_begin(table, error);
    if (status == STATUS_OK)
        forgo_all_zeroes(table);
    return status;
}

enum status core_cache_attach(struct core_session *session, uint64_t cache,
                              struct core_attachment *out, struct error *error)
{
    struct hold_table *table;
    enum status status = hold_table_find(session, cache, &table, error);
    if (status != STATUS_OK)
        return status;
    if (!session->pool->fixed_blocks)
        return error_set(error, STATUS_UNSUPPORTED,
                         "no process can attach to cache \"%.64s\": the daemon runs without "
                         "--export-pool",
                         table->cache->name);
    if (table->cache->identity.kv.block_bytes)
        return error_set(error, STATUS_UNSUPPORTED,
                         "no process can attach to cache \"%.64s\": it has opaque blocks",
                         table->cache->name);
    status = check_memory(table->cache, error);
    if (status == STATUS_OK && !table->attached)
        status = begin(table, error);
    if (status == STATUS_OK)
        *out = (struct core_attachment){table->cache->engine, table->cache->chunk_blocks};
    return status;
}

void core_cache_want_memory(struct core_session *session, uint64_t cache)
{
    struct hold_table *table;
    struct error unheard; // core_cache_attach() says what is missing
    if (hold_table_find(session, cache, &table, NULL) == STATUS_OK && !table->cache->num_present &&
        !table->cache->num_growing)
        (void)pool_fill(table->cache, &unheard);
}

bool core_cache_attached(const struct core_session *session, uint64_t cache,
                         struct core_attachment *out)
{
    struct hold_table *table;
    if (hold_table_find(session, cache, &table, NULL) != STATUS_OK || !table->attached)
        return false;
    *out = (struct core_attachment){table->cache->engine, table->cache->chunk_blocks};
    return true;
}
