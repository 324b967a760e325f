// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hold.c - see hold.h. A block that a session holds or names counts once against its quota, however
// often it does so.

#include "hold.h"

#include "attached.h"
#include "base/list.h"
#include "ledger.h"
#include "queue.h"
#include "salt.h"
#include "session.h"
#include "tenant.h"

#include <inttypes.h>
#include <stdlib.h>

enum status hold_table_find(const struct core_session *session, uint64_t cache,
                            struct hold_table **out, struct error *error)
{
    HASH_FIND(hh, session->tables, &cache, sizeof cache, *out);
    if (!*out || !(*out)->opens)
        return error_set(error, STATUS_NOT_FOUND,
                         "cache %" PRIu64 " is not open in session %" PRIu64, cache, session->id);
    return STATUS_OK;
}

struct hold_table *hold_table_get(struct core_session *session, struct cache *cache)
{
    struct hold_table *table;
    HASH_FIND(hh, session->tables, &cache->id, sizeof cache->id, table);
    if (table)
        return table;
    struct account *account = account_get(session->salt->tenant, cache, 0);
    table = account ? calloc(1, sizeof *table) : NULL;
    if (!table)
        return NULL;
    *table = (struct hold_table){
        .session = session, .cache = cache, .cache_id = cache->id, .account = account};
    HASH_ADD(hh, session->tables, cache_id, sizeof table->cache_id, table);
    if (!HASH_ADDED(table)) {
        free(table);
        return NULL;
    }
    LIST_APPEND(cache->tables, table);
    cache->num_tables++;
    return table;
}

struct hold_table *hold_table_sketch(const struct hold_table *table)
{
    const uint32_t words = hold_words(table->cache);
    const size_t page_size = sizeof(struct hold_page) + words * sizeof(struct hold_bits),
                 list_size = table->num_pages * sizeof(struct hold_page *);
    struct hold_table *sketch =
        calloc(1, sizeof *sketch + list_size + table->num_pages * page_size);
    if (!sketch)
        return NULL;
    sketch->cache = table->cache;
    sketch->num_pages = table->num_pages;
    sketch->pages = (struct hold_page **)(sketch + 1);
    char *at = (char *)sketch->pages + list_size;
    for (uint32_t i = 0; i < table->num_pages; i++, at += page_size) {
        sketch->pages[i] = table->pages[i] ? (struct hold_page *)at : NULL;
        for (uint32_t word = 0; table->pages[i] && word < words; word++)
            sketch->pages[i]->bits[word].held = table->pages[i]->bits[word].held;
    }
    return sketch;
}

void hold_sketch_add(struct hold_table *sketch, int32_t id)
{
    const uint32_t index = hold_index(sketch, id);
    hold_page(sketch, id)->bits[index / 64].held |= UINT64_C(1) << (index % 64);
}

static void page_destroy(struct hold_page *page)
{
    if (page)
        free(page->more_holds);
    free(page);
}

void hold_table_open(struct hold_table *table)
{
    if (table->opens++)
        return;
    table->cache->open_sessions++;
    table->account->opens++;
}

void hold_table_close(struct hold_table *table)
{
    table->opens = 0;
    table->cache->open_sessions--;
    table->account->opens--;
    table->cache->last_use = ++table->session->ledger->last_use;
}

void hold_table_settle(struct hold_table *table)
{
    if (table->opens || table->num_blocks || table->num_users)
        return;
    struct cache *cache = table->cache;
    HASH_DEL(table->session->tables, table);
    for (uint32_t i = 0; i < table->num_pages; i++)
        page_destroy(table->pages[i]);
    LIST_DELETE(cache->tables, table);
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

static struct block *block_at(const struct hold_table *table, uint32_t page, uint32_t index)
{
    return block_find(table->cache, ((int64_t)page << table->cache->chunk_shift) + index);
}

static void drop_all(struct hold_table *table, uint32_t page, uint32_t index)
{
    table->pages[page]->again[index / 64] &= ~(UINT64_C(1) << (index % 64));
    table->pages[page]->more_holds[index] = 0; // hold_drop() drops the last one
    hold_drop(table, block_at(table, page, index));
}

static void bury(struct hold_table *table, uint32_t page, uint32_t index)
{
    struct block *block = block_at(table, page, index);
    block->dead_users++;
    block_settle(table->cache, block);
}

// Calls `visit` for each block that the session holds, and if `named`, for those that it names,
// too.
static void for_each(struct hold_table *table, bool named,
                     void (*visit)(struct hold_table *table, uint32_t page, uint32_t index))
{
    for (uint32_t page = 0; page < table->num_pages; page++) {
        const struct hold_page *holds = table->pages[page];
        for (uint32_t word = 0; holds && word < hold_words(table->cache); word++) {
            uint64_t bits = holds->bits[word].held | (named ? holds->bits[word].named : 0);
            for (; bits; bits &= bits - 1)
                visit(table, page, word * 64 + (uint32_t)__builtin_ctzll(bits));
        }
    }
}

void hold_table_release_all(struct hold_table *table)
{
    for_each(table, false, drop_all);
}

void hold_table_bury(struct hold_table *table)
{
    table->dead = true;
    for_each(table, true, bury);
}

void hold_fetch(const struct hold_table *table, int32_t id)
{
    const struct block *block = block_find(table->cache, id);
    if (!block)
        return;
    prefetch(block);
    prefetch(&block->stamp);
}

enum status hold_probe(const struct hold_table *table, int64_t id, struct block **out)
{
    if (id < 0 || (uint64_t)id >= cache_num_ids(table->cache))
        return STATUS_OUT_OF_RANGE;
    *out = block_find(table->cache, id);
    return hold_has(table, id) ? STATUS_OK : STATUS_NOT_HELD;
}

enum status hold_check(const struct hold_table *table, uint64_t index, int64_t id,
                       struct block **out, struct error *error)
{
    enum status status = hold_probe(table, id, out);
    if (status == STATUS_OUT_OF_RANGE)
        return error_set(error, status,
                         "blocks[%" PRIu64 "] = %" PRId64 " is outside the cache's %" PRIu64
                         " block ids",
                         index, id, cache_num_ids(table->cache));
    if (status == STATUS_NOT_HELD)
        return error_set(error, status,
                         "blocks[%" PRIu64 "] = %" PRId64 " is not held by this session", index,
                         id);
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

static struct hold_page *page_create(const struct cache *cache)
{
    // The bits of neighbouring chunks share pages of memory, because the counts lie elsewhere.
    const uint32_t words = hold_words(cache);
    struct hold_page *page =
        calloc(1, sizeof *page + words * (sizeof *page->bits + sizeof *page->again));
    uint32_t *counts = page ? calloc(cache->chunk_blocks, 2 * sizeof *counts) : NULL;
    if (!counts) {
        free(page);
        return NULL;
    }
    page->more_holds = counts;
    page->more_refs = counts + cache->chunk_blocks;
    page->again = (uint64_t *)&page->bits[words];
    return page;
}

bool hold_reserve(struct hold_table *table, int32_t id)
{
    uint32_t page = (uint32_t)id >> table->cache->chunk_shift;
    if (!pages_reserve(table, page))
        return false;
    if (!table->pages[page])
        table->pages[page] = page_create(table->cache);
    return table->pages[page] != NULL;
}

static void count(struct hold_table *table, int by)
{
    table->num_blocks += (uint64_t)(int64_t)by;
    table->session->num_blocks += (uint64_t)(int64_t)by;
    if (table->session->num_blocks <= 1)
        queue_settle_session(table->session);
}

// The session neither holds nor names the block any more.
static void leave(struct hold_table *table, struct block *block)
{
    count(table, -1);
    block->users--;
    block->dead_users -= table->dead;
}

void hold_take(struct hold_table *table, struct block *block)
{
    struct hold_page *page = hold_page(table, block->id);
    uint32_t index = hold_index(table, block->id);
    uint64_t *held = &page->bits[index / 64].held, bit = UINT64_C(1) << (index % 64);
    if (!hold_is_used(page, index)) {
        count(table, 1);
        block->users++;
    }
    if (*held & bit) {
        page->more_holds[index]++;
        page->again[index / 64] |= bit;
    } else {
        block->holders++;
    }
    if (table->attached)
        attached_forgo_zeroes(table, block);
    *held |= bit;
    block_settle(table->cache, block);
}

void hold_drop(struct hold_table *table, struct block *block)
{
    struct hold_page *page = hold_page(table, block->id);
    uint32_t index = hold_index(table, block->id);
    uint64_t *again = &page->again[index / 64], bit = UINT64_C(1) << (index % 64);
    if (*again & bit) {
        if (!--page->more_holds[index])
            *again &= ~bit;
        return;
    }
    page->bits[index / 64].held &= ~bit;
    block->holders--;
    if (table->attached)
        attached_linger(table, block);
    if (!hold_is_used(page, index))
        leave(table, block);
    block_settle(table->cache, block);
}

void hold_ref(struct hold_table *table, int32_t id)
{
    struct hold_page *page = hold_page(table, id);
    uint32_t index = hold_index(table, id);
    uint64_t *named = &page->bits[index / 64].named, bit = UINT64_C(1) << (index % 64);
    if (*named & bit)
        page->more_refs[index]++;
    *named |= bit;
}

void hold_ref_all(struct hold_table *table, const int32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        hold_ref(table, ids[i]);
}

void hold_unref(struct hold_table *table, int32_t id)
{
    struct hold_page *page = hold_page(table, id);
    uint32_t index = hold_index(table, id);
    if (page->more_refs[index]) {
        page->more_refs[index]--;
        return;
    }
    page->bits[index / 64].named &= ~(UINT64_C(1) << (index % 64));
    if (hold_is_used(page, index))
        return; // it is held
    struct block *block = block_find(table->cache, id);
    leave(table, block);
    block_settle(table->cache, block);
}

void hold_unref_all(struct hold_table *table, const int32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        hold_unref(table, ids[i]);
}

bool hold_has_quota(const struct core_session *session)
{
    return session->quota_blocks || session->salt->tenant->limits.blocks;
}

enum status hold_check_quota(const struct core_session *session, struct hold_more more,
                             struct error *error)
{
    uint64_t quota = session->quota_blocks, has = session->num_blocks;
    if (quota && more.session && (has > quota || more.session > quota - has))
        return error_set(error, STATUS_QUOTA,
                         "%" PRIu64 " blocks more would exceed the session's limit of %" PRIu64
                         " (--session-blocks); it has %" PRIu64,
                         more.session, quota, has);
    return tenant_check(session->salt->tenant, more.tenant, error);
}

enum status hold_prepare(struct hold_table *table, const struct block *block,
                         struct hold_more *fresh, struct error *error)
{
    if (!hold_page(table, block->id) && !hold_reserve(table, block->id))
        return error_set(error, STATUS_NO_MEMORY, "no host memory to hold block %" PRId32,
                         block->id);
    const struct hold_page *page = hold_page(table, block->id);
    const uint32_t index = hold_index(table, block->id);
    const bool used = hold_is_used(page, index);
    if (used && hold_find(table, block->id).holds == UINT32_MAX)
        return error_set(error, STATUS_LIMIT,
                         "block %" PRId32 " is held %" PRIu32
                         " times, which is the most; release it",
                         block->id, UINT32_MAX);
    fresh->session += !used;
    fresh->tenant += block->charge == CHARGE_CACHED;
    return STATUS_OK;
}
