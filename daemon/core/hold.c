// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hold.c - see hold.h. An entry that is not zero counts once against the session's quota, whatever its numbers.

#include "hold.h"

#include <inttypes.h>
#include <stdlib.h>

#include "state.h"

enum status hold_table_find(const struct core_session *session, uint64_t cache, struct hold_table **out,
                            struct error *error)
{
    HASH_FIND(hh, session->tables, &cache, sizeof cache, *out);
    if (!*out || !(*out)->opens)
        return error_set(error, STATUS_NOT_FOUND, "cache %" PRIu64 " is not open in session %" PRIu64, cache,
                         session->id);
    return STATUS_OK;
}

struct hold_table *hold_table_get(struct core_session *session, struct cache *cache)
{
    struct hold_table *table;
    HASH_FIND(hh, session->tables, &cache->id, sizeof cache->id, table);
    if (table)
        return table;
    table = calloc(1, sizeof *table);
    if (!table)
        return NULL;
    *table = (struct hold_table){.session = session, .cache = cache, .cache_id = cache->id};
    HASH_ADD(hh, session->tables, cache_id, sizeof table->cache_id, table);
    if (!HASH_ADDED(table)) {
        free(table);
        return NULL;
    }
    cache->num_tables++;
    return table;
}

void hold_table_settle(struct hold_table *table)
{
    if (table->opens || table->num_blocks || table->num_users)
        return;
    struct cache *cache = table->cache;
    HASH_DEL(table->session->tables, table);
    for (uint32_t i = 0; i < table->num_pages; i++)
        free(table->pages[i]);
    free(table->pages);
    free(table);
    cache->num_tables--;
    cache_settle(cache);
}

void hold_table_unuse(struct hold_table *table)
{
    table->num_users--;
    hold_table_settle(table);
}

static void drop_all(struct hold_table *table, uint32_t page, uint32_t index)
{
    struct block *block = block_find(table->cache, ((int64_t)page << table->cache->chunk_shift) + index);
    struct hold *hold = &table->pages[page]->holds[index];
    if (!hold->holds)
        return;
    hold->holds = 1; // however often it was looked up
    hold_drop(table, block);
}

void hold_table_release_all(struct hold_table *table)
{
    for (uint32_t page = 0; page < table->num_pages; page++) {
        struct hold_page *holds = table->pages[page];
        for (uint32_t i = 0; holds && holds->used && i < table->cache->chunk_blocks; i++)
            drop_all(table, page, i);
    }
}

void hold_fetch(const struct hold_table *table, int32_t id)
{
    const struct block *block = block_find(table->cache, id);
    uint32_t page = (uint32_t)id >> table->cache->chunk_shift;
    if (!block)
        return;
    __builtin_prefetch(block, 1);
    __builtin_prefetch(&block->last_use, 1);
    if (page < table->num_pages && table->pages[page])
        __builtin_prefetch(&table->pages[page]->holds[(uint32_t)id & (table->cache->chunk_blocks - 1)], 1);
}

enum status hold_probe(const struct hold_table *table, int64_t id, struct block **out)
{
    if (id < 0 || (uint64_t)id >= cache_num_ids(table->cache))
        return STATUS_OUT_OF_RANGE;
    *out = block_find(table->cache, id);
    return *out && hold_find(table, *out)->holds ? STATUS_OK : STATUS_NOT_HELD;
}

enum status hold_check(const struct hold_table *table, uint64_t index, int64_t id, struct block **out,
                       struct error *error)
{
    enum status status = hold_probe(table, id, out);
    if (status == STATUS_OUT_OF_RANGE)
        return error_set(error, status,
                         "blocks[%" PRIu64 "] = %" PRId64 " is outside the cache's %" PRIu64 " block ids", index, id,
                         cache_num_ids(table->cache));
    if (status == STATUS_NOT_HELD)
        return error_set(error, status, "blocks[%" PRIu64 "] = %" PRId64 " is not held by this session", index, id);
    return STATUS_OK;
}

static bool pages_reserve(struct hold_table *table, uint32_t page)
{
    if (page < table->num_pages)
        return true;
    uint32_t count = table->num_pages * 2 > page + 1 ? table->num_pages * 2 : page + 1;
    struct hold_page **pages = realloc(table->pages, count * sizeof(struct hold_page *));
    if (!pages)
        return false;
    for (uint32_t i = table->num_pages; i < count; i++)
        pages[i] = NULL;
    table->pages = pages;
    table->num_pages = count;
    return true;
}

bool hold_reserve(struct hold_table *table, const struct block *block)
{
    uint32_t page = (uint32_t)block->id >> table->cache->chunk_shift;
    if (!pages_reserve(table, page))
        return false;
    if (!table->pages[page])
        table->pages[page] = calloc(1, sizeof(struct hold_page) + table->cache->chunk_blocks * sizeof(struct hold));
    return table->pages[page] != NULL;
}

static struct hold *entry(struct hold_table *table, const struct block *block, struct hold_page **page)
{
    *page = table->pages[(uint32_t)block->id >> table->cache->chunk_shift];
    return &(*page)->holds[(uint32_t)block->id & (table->cache->chunk_blocks - 1)];
}

// Before and after a change of an entry: it counts while it is not zero.
static void count(struct hold_table *table, struct hold_page *page, const struct hold *hold, int by)
{
    if (hold->holds || hold->refs)
        return;
    page->used += (uint32_t)by;
    table->num_blocks += (uint64_t)(int64_t)by;
    table->session->num_blocks += (uint64_t)(int64_t)by;
}

void hold_take(struct hold_table *table, struct block *block)
{
    struct hold_page *page;
    struct hold *hold = entry(table, block, &page);
    count(table, page, hold, 1);
    if (hold->holds++ == 0)
        block->holders++;
    block_settle(table->cache, block);
}

void hold_drop(struct hold_table *table, struct block *block)
{
    struct hold_page *page;
    struct hold *hold = entry(table, block, &page);
    if (--hold->holds == 0)
        block->holders--;
    count(table, page, hold, -1);
    block_settle(table->cache, block);
}

void hold_ref(struct hold_table *table, struct block *block)
{
    struct hold_page *page;
    entry(table, block, &page)->refs++;
    block->refs++;
}

void hold_unref(struct hold_table *table, struct block *block, bool dead)
{
    struct hold_page *page;
    struct hold *hold = entry(table, block, &page);
    hold->refs--;
    count(table, page, hold, -1);
    block->refs--;
    if (dead)
        block->dead_refs--;
    block_settle(table->cache, block);
}

enum status hold_check_quota(const struct core_session *session, uint64_t more, struct error *error)
{
    uint64_t quota = session->core->params.quota_blocks;
    if (!quota || (session->num_blocks <= quota && more <= quota - session->num_blocks))
        return STATUS_OK;
    return error_set(error, STATUS_QUOTA,
                     "%" PRIu64 " blocks more would exceed the session's %" PRIu64 ", of which it has %" PRIu64
                     " (--session-blocks)",
                     more, quota, session->num_blocks);
}
