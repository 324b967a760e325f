// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hold.h - what one session has of one cache: how often it holds each block, and how many of its batches name it. One array
// entry a block, in pages of a chunk each, so that checking a table entry costs two loads.

#ifndef AULE_CORE_HOLD_H
#define AULE_CORE_HOLD_H

#include "cache.h"

struct hold {
    uint32_t holds; // leases and look-ups not yet released
    uint32_t refs;  // batches and copies
};

struct hold_page {
    uint32_t used; // entries that are not zero
    struct hold holds[];
};

struct hold_table {
    UT_hash_handle hh; // session->tables, by cache id
    uint64_t cache_id;
    struct core_session *session;
    struct cache *cache;
    uint32_t opens; // core_cache_open() calls not yet closed; 0 = only batches and copies in flight keep the table
    struct hold_page **pages; // [num_pages], one a chunk, NULL until needed; owned
    uint32_t num_pages;
    uint64_t num_blocks; // entries that are not zero: what the quota counts
    uint32_t num_users;  // batches and copies that are not freed yet
};

// The session's table of a cache that it has open, else STATUS_NOT_FOUND.
enum status hold_table_find(const struct core_session *session, uint64_t cache, struct hold_table **out,
                            struct error *error);
struct hold_table *hold_table_get(struct core_session *session, struct cache *cache); // finds or makes; NULL: no memory
void hold_table_settle(struct hold_table *table);      // ends one that nothing needs, and its cache if it was the last
void hold_table_unuse(struct hold_table *table);       // a user less; settles it
void hold_table_release_all(struct hold_table *table); // every hold; batches keep their refs

static inline const struct hold *hold_find(const struct hold_table *table, const struct block *block)
{
    static const struct hold none;
    uint32_t page = (uint32_t)block->id >> table->cache->chunk_shift;
    if (page >= table->num_pages || !table->pages[page])
        return &none;
    return &table->pages[page]->holds[(uint32_t)block->id & (table->cache->chunk_blocks - 1)];
}

// What the calls below touch of the block some places on in a list is fetched meanwhile: of a large pool it is in no cache. Any number may
// stand there.
void hold_fetch(const struct hold_table *table, int32_t id);
static inline void hold_fetch_ahead(const struct hold_table *table, const int32_t *list, uint64_t i, uint64_t count)
{
    if (i + BLOCK_AHEAD < count)
        hold_fetch(table, list[i + BLOCK_AHEAD]);
}

// OUT_OF_RANGE: no such id; NOT_HELD: not by this session; no sentence yet, the caller knows where the id came from.
enum status hold_probe(const struct hold_table *table, int64_t id, struct block **out);
// The same with the sentence "blocks[index] = id ...".
enum status hold_check(const struct hold_table *table, uint64_t index, int64_t id, struct block **out,
                       struct error *error);

bool hold_reserve(struct hold_table *table,
                  const struct block *block);                  // so that hold_take() cannot fail; false: no memory
void hold_take(struct hold_table *table, struct block *block); // one hold more
void hold_drop(struct hold_table *table, struct block *block); // one hold less; settles the block
void hold_ref(struct hold_table *table, struct block *block);  // a batch or copy names it, which the session holds
void hold_unref(struct hold_table *table, struct block *block, bool dead);

// STATUS_QUOTA if `more` blocks would bring the session over its limit.
enum status hold_check_quota(const struct core_session *session, uint64_t more, struct error *error);

#endif
