// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hold.h - what one session has of one cache: how often it holds each block, and how many of its
// batches name it. Numbers of a block lie apart from its record, in pages of a chunk each: whether
// the session holds it is one bit, so that the bits of 100,000 blocks lie in a core's nearest cache
// and checking a table entry touches nothing else.

#ifndef AULE_CORE_HOLD_H
#define AULE_CORE_HOLD_H

#include "cache.h"

struct hold {
    uint32_t holds; // leases and look-ups not yet released
    uint32_t refs;  // batches and copies
};

// Of 64 blocks, a bit each.
struct hold_bits {
    uint64_t held;  // `holds` is not zero
    uint64_t named; // by a batch or copy
    uint64_t seen;  // scratch of one check, all zero between calls
};

struct hold_page {
    uint32_t used;               // blocks with numbers that are not zero
    uint32_t *holds, *more_refs; // [chunk_blocks], behind the bits; what names a block beyond the
                                 // first, which is a bit
    struct hold_bits bits[];     // [chunk_blocks / 64, rounded up]
};

struct hold_table {
    UT_hash_handle hh;              // session->tables, by cache id
    struct hold_table *prev, *next; // cache->tables
    uint64_t cache_id;
    struct core_session *session;
    struct cache *cache;
    uint32_t opens; // core_cache_open() calls not yet closed; 0 = only batches and copies in flight
                    // keep the table
    struct hold_page **pages; // [num_pages], one a chunk, NULL until needed; owned
    uint32_t num_pages;
    uint64_t num_blocks; // entries that are not zero: what the quota counts
    uint32_t num_users;  // batches and copies that are not freed yet
    bool dead;           // its session died
};

// The session's table of a cache that it has open, else STATUS_NOT_FOUND.
enum status hold_table_find(const struct core_session *session, uint64_t cache,
                            struct hold_table **out, struct error *error);
struct hold_table *hold_table_get(struct core_session *session,
                                  struct cache *cache); // finds or makes; NULL: no memory
void hold_table_settle(
    struct hold_table *table); // ends one that nothing needs, and its cache if it was the last
void hold_table_unuse(struct hold_table *table);       // a user less; settles it
void hold_table_release_all(struct hold_table *table); // every hold; batches keep their refs
void hold_table_bury(
    struct hold_table *table); // its session died: what its batches and copies name is the dead's

// The page of block `id`, NULL if the session has nothing there. Any number may be asked for.
static inline struct hold_page *hold_page(const struct hold_table *table, int64_t id)
{
    uint64_t page = (uint64_t)id >> table->cache->chunk_shift;
    return page < table->num_pages ? table->pages[page] : NULL;
}

static inline uint32_t hold_index(const struct hold_table *table, int64_t id)
{
    return (uint32_t)id & (table->cache->chunk_blocks - 1);
}

// The session holds the block, or has batches or copies that name it.
static inline bool hold_is_used(const struct hold_page *page, uint32_t index)
{
    const struct hold_bits *bits = &page->bits[index / 64];
    return (bits->held | bits->named) >> (index % 64) & 1;
}

static inline struct hold hold_find(const struct hold_table *table, int64_t id)
{
    const struct hold_page *page = hold_page(table, id);
    uint32_t index = hold_index(table, id);
    if (!page)
        return (struct hold){0};
    bool named = page->bits[index / 64].named >> (index % 64) & 1;
    return (struct hold){page->holds[index], named + page->more_refs[index]};
}

static inline bool hold_has(const struct hold_table *table, int64_t id)
{
    const struct hold_page *page = hold_page(table, id);
    uint32_t index = hold_index(table, id);
    return page && page->bits[index / 64].held >> (index % 64) & 1;
}

// A check comes by block `id`: not held by the session, seen for the first time, or again. What was
// seen is forgotten with hold_forget() of each, in any order: those beside it go with it.
enum hold_sight { HOLD_NONE, HOLD_FIRST, HOLD_AGAIN };
static inline enum hold_sight hold_see(const struct hold_table *table, int64_t id)
{
    struct hold_page *page = hold_page(table, id);
    uint32_t index = hold_index(table, id);
    struct hold_bits *bits = page ? &page->bits[index / 64] : NULL;
    uint64_t bit = UINT64_C(1) << (index % 64);
    if (!page || !(bits->held & bit))
        return HOLD_NONE;
    if (bits->seen & bit)
        return HOLD_AGAIN;
    bits->seen |= bit;
    return HOLD_FIRST;
}

static inline void hold_forget(const struct hold_table *table, int64_t id)
{
    hold_page(table, id)->bits[hold_index(table, id) / 64].seen = 0;
}

// What the calls below touch of the block some places on in a list is fetched meanwhile: of a large
// pool it is in no cache. Any number may stand there.
void hold_fetch(const struct hold_table *table, int32_t id);
static inline void hold_fetch_ahead(const struct hold_table *table, const int32_t *list, uint64_t i,
                                    uint64_t count)
{
    if (i + BLOCK_AHEAD < count)
        hold_fetch(table, list[i + BLOCK_AHEAD]);
}

// OUT_OF_RANGE: no such id; NOT_HELD: not by this session; no sentence yet, the caller knows where
// the id came from.
enum status hold_probe(const struct hold_table *table, int64_t id, struct block **out);
// The same with the sentence "blocks[index] = id ...".
enum status hold_check(const struct hold_table *table, uint64_t index, int64_t id,
                       struct block **out, struct error *error);

bool hold_reserve(struct hold_table *table,
                  const struct block *block); // so that hold_take() cannot fail; false: no memory
void hold_take(struct hold_table *table, struct block *block); // one hold more
void hold_drop(struct hold_table *table, struct block *block); // one hold less; settles the block
void hold_ref(struct hold_table *table,
              int32_t id); // a batch or copy names it, which the session holds
void hold_ref_all(struct hold_table *table, const int32_t *ids, uint32_t count);
void hold_unref(struct hold_table *table, int32_t id);
void hold_unref_all(struct hold_table *table, const int32_t *ids, uint32_t count);

// STATUS_QUOTA if `more` blocks would bring the session over its limit.
enum status hold_check_quota(const struct core_session *session, uint64_t more,
                             struct error *error);

#endif
