// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hold.h - which blocks of a cache a session holds, how often, and how many of its batches,
// copies and offers name each. Dispatcher thread only.
// The counts are in pages, one for each chunk, apart from struct block. Whether a session holds a
// block is one bit. Checking a block table entry reads nothing else, and the bits of 100,000 blocks
// fit into the L1 cache of a CPU core. Counts beyond one are rare, so they have an allocation of
// their own.

#ifndef AULE_CORE_HOLD_H
#define AULE_CORE_HOLD_H

#include "base/hash.h"
#include "base/prefetch.h"
#include "cache.h"

struct hold {
    uint32_t holds; // leases and look-ups that are not released
    uint32_t refs;  // batches, copies and offers that name it
};

// One bit for each of 64 blocks.
struct hold_bits {
    uint64_t held;  // holds > 0
    uint64_t named; // refs > 0
    uint64_t seen;  // scratch of one check; all zero between checks
};

// The blocks of one chunk.
struct hold_page {
    uint32_t *more_holds;    // [chunk_blocks] holds - 1 if held, else 0; owned
    uint32_t *more_refs;     // [chunk_blocks] refs - 1 if named, else 0; in the same allocation
    uint64_t *again;         // [hold_words()] a bit for each block: holds > 1; behind `bits`
    struct hold_bits bits[]; // [hold_words()]
};

struct hold_table {
    UT_hash_handle hh;              // session->tables, by cache id
    struct hold_table *prev, *next; // cache->tables
    uint64_t cache_id;              // key of `hh`
    struct core_session *session;
    struct cache *cache;
    struct account *account;  // of the session's tenant in the cache
    uint32_t opens;           // opens without a close; 0 = only its users keep the table
    struct hold_page **pages; // [num_pages] by chunk number, NULL until needed; owned
    uint32_t num_pages;
    uint64_t num_blocks;       // blocks that are held or named: the quota counts them
    uint32_t num_users;        // batches, copies and offers that are not freed
    struct claim *claims;      // a list; owned; none unless the cache is open
    bool dead;                 // the session died
    struct attached *attached; // owned; NULL = its process has not mapped the cache
};

// The session's table of a cache that it has open, else STATUS_NOT_FOUND.
enum status hold_table_find(const struct core_session *session, uint64_t cache,
                            struct hold_table **out, struct error *error);
// A copy that knows only which blocks the session holds now, so that another thread can call
// hold_has() and hold_see() with it. It is in no session and no cache; free() ends it. NULL: no
// memory.
struct hold_table *hold_table_sketch(const struct hold_table *table);
static inline bool hold_is_sketch(const struct hold_table *table)
{
    return !table->session;
}
void hold_sketch_add(struct hold_table *sketch, int32_t id); // a block that the session names
// Finds or makes the table. NULL: no memory.
struct hold_table *hold_table_get(struct core_session *session, struct cache *cache);
// The session opens the cache; its last close says so too. Both count the sessions that have it
// open.
void hold_table_open(struct hold_table *table);
void hold_table_close(struct hold_table *table);
// Frees the table if nothing needs it any more, and then its cache if nothing needs that.
void hold_table_settle(struct hold_table *table);
void hold_table_unuse(struct hold_table *table);       // one user less; settles the table
void hold_table_release_all(struct hold_table *table); // all holds; batches keep their references
// The session died: it becomes a dead user of all its blocks.
void hold_table_bury(struct hold_table *table);

// The page of block `id`, which may be any number. NULL: the session never had a block of that
// page.
static inline struct hold_page *hold_page(const struct hold_table *table, int64_t id)
{
    uint64_t page = (uint64_t)id >> table->cache->chunk_shift;
    return page < table->num_pages ? table->pages[page] : NULL;
}

static inline uint32_t hold_index(const struct hold_table *table, int64_t id)
{
    return (uint32_t)id & (table->cache->chunk_blocks - 1);
}

// True: the session holds the block, or has batches, copies or offers that name it.
static inline bool hold_is_used(const struct hold_page *page, uint32_t index)
{
    const struct hold_bits *bits = &page->bits[index / 64];
    return (bits->held | bits->named) >> (index % 64) & 1;
}

static inline bool hold_has(const struct hold_table *table, int64_t id)
{
    const struct hold_page *page = hold_page(table, id);
    uint32_t index = hold_index(table, id);
    return page && page->bits[index / 64].held >> (index % 64) & 1;
}

static inline struct hold hold_find(const struct hold_table *table, int64_t id)
{
    const struct hold_page *page = hold_page(table, id);
    uint32_t index = hold_index(table, id);
    if (!page)
        return (struct hold){0};
    const bool again = page->again[index / 64] >> (index % 64) & 1,
               named = page->bits[index / 64].named >> (index % 64) & 1;
    return (struct hold){again ? 1 + page->more_holds[index] : hold_has(table, id),
                         named ? 1 + page->more_refs[index] : 0};
}

// Visits block `id` in a check. NONE: the session does not hold it. FIRST and AGAIN: it does, and
// this check sees it for the first time, or saw it before. At the end call hold_forget() for each
// block that was seen; one call also forgets the blocks that share its word.
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

// Prefetches the struct block that a loop over `list` reaches BLOCK_AHEAD places after `i`; in a
// large pool it is in no CPU cache. The list may have any numbers.
void hold_fetch(const struct hold_table *table, int32_t id);
static inline void hold_fetch_ahead(const struct hold_table *table, const int32_t *list, uint64_t i,
                                    uint64_t count)
{
    if (i + BLOCK_AHEAD < count)
        hold_fetch(table, list[i + BLOCK_AHEAD]);
}

static inline uint32_t hold_words(const struct cache *cache) // of a page's bits
{
    return (cache->chunk_blocks + 63) / 64;
}

// Prefetches where the session's first hold of the block is noted, if that exists. Does not read
// the page.
static inline void hold_fetch_page(const struct hold_table *table, int32_t id)
{
    const struct hold_page *page = hold_page(table, id);
    if (page)
        prefetch(&page->bits[hold_index(table, id) / 64]);
}

// Checks that the session holds block `id`. OUT_OF_RANGE: no such id. NOT_HELD: the session does
// not hold it. Sets no error text, because the caller knows where the id comes from.
enum status hold_probe(const struct hold_table *table, int64_t id, struct block **out);
// The same, with an error text that begins "blocks[index] = id".
enum status hold_check(const struct hold_table *table, uint64_t index, int64_t id,
                       struct block **out, struct error *error);

// Makes room, so that hold_take() of block `id` cannot fail. False: no memory.
bool hold_reserve(struct hold_table *table, int32_t id);
void hold_take(struct hold_table *table, struct block *block); // one hold more; settles the block
void hold_drop(struct hold_table *table, struct block *block); // one hold less; settles the block
// A batch or copy names the block, which the session holds.
void hold_ref(struct hold_table *table, int32_t id);
void hold_ref_all(struct hold_table *table, const int32_t *ids, uint32_t count);
void hold_unref(struct hold_table *table, int32_t id);
void hold_unref_all(struct hold_table *table, const int32_t *ids, uint32_t count);

// Blocks that a call would add: to those that the session holds or names, and to those that its
// tenant uses.
struct hold_more {
    uint64_t session, tenant;
};
// hold_reserve() with an error text; LIMIT: the session holds the block too often. Adds 1 to each
// part of *fresh for whose quota the block would then count and does not yet.
enum status hold_prepare(struct hold_table *table, const struct block *block,
                         struct hold_more *fresh, struct error *error);
bool hold_has_quota(const struct core_session *session); // hold_check_quota() may refuse
// STATUS_QUOTA if `more` blocks would bring the session or its tenant over a limit.
enum status hold_check_quota(const struct core_session *session, struct hold_more more,
                             struct error *error);

#endif
