// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// node_table.h - nodes by their 64-bit hashes, those of a cache's prefix index or of its claims:
// open addressing, so that a search mostly reads one cache line, which can be prefetched before the
// key is known to be there. Entries lie in the order of their hashes' highest bits, so growth reads
// and writes memory in order. A table grows in steps: each change moves some entries of the old
// array to the new one, and searches look at both until all have moved. Knows nothing of a node but
// its hash; the caller compares keys. Dispatcher thread only.

#ifndef AULE_CORE_NODE_TABLE_H
#define AULE_CORE_NODE_TABLE_H

#include "base/prefetch.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct node_entry {
    uint64_t hash;
    void *node; // NULL: free
};

enum { NODE_RUN = 3 }; // entries from a home to the next free entry, most often at most

struct node_array {
    struct node_entry *entries; // [capacity], a power of two, at most half of them used; owned
    size_t capacity;
    unsigned shift; // 64 - log2(capacity); undefined while there is no entry
};

struct node_table {
    struct node_array now, old; // old.capacity 0: nothing is left to move
    size_t size;                // entries of both
    size_t next, end;           // of `old`: the next one to move, around to `end`; runs of entries
                                // move as a whole
    size_t looked;              // entries of `old` that the last change has looked at, for tests
};

// A walk over the entries of one hash.
struct node_search {
    uint64_t hash;
    size_t at;
    bool in_old;
};

static inline size_t node_array_home(const struct node_array *array, uint64_t hash)
{
    return (size_t)(hash >> array->shift);
}

// Prefetches where a search for the hash begins.
static inline void node_table_fetch(const struct node_table *table, uint64_t hash)
{
    if (table->now.capacity)
        prefetch(&table->now.entries[node_array_home(&table->now, hash)]);
    if (table->old.capacity)
        prefetch(&table->old.entries[node_array_home(&table->old, hash)]);
}

// Prefetches what a removal reads, too: up to the next free entry, often in the next cache line.
static inline void node_table_fetch_run(const struct node_table *table, uint64_t hash)
{
    const struct node_array *now = &table->now;
    node_table_fetch(table, hash);
    if (now->capacity)
        prefetch(&now->entries[(node_array_home(now, hash) + NODE_RUN) & (now->capacity - 1)]);
}

static inline struct node_search node_table_search(const struct node_table *table, uint64_t hash)
{
    return (struct node_search){hash, table->now.capacity ? node_array_home(&table->now, hash) : 0,
                                false};
}

static inline void *node_array_next(const struct node_array *array, struct node_search *search)
{
    while (array->capacity && array->entries[search->at].node) {
        const struct node_entry *entry = &array->entries[search->at];
        search->at = (search->at + 1) & (array->capacity - 1);
        if (entry->hash == search->hash)
            return entry->node;
    }
    return NULL;
}

// The next node of this hash; NULL: there is no other one.
static inline void *node_table_next(const struct node_table *table, struct node_search *search)
{
    void *node = search->in_old ? NULL : node_array_next(&table->now, search);
    if (node || !table->old.capacity)
        return node;
    if (!search->in_old)
        search->at = node_array_home(&table->old, search->hash);
    search->in_old = true;
    return node_array_next(&table->old, search);
}

// False: no memory, and nothing has changed.
bool node_table_add(struct node_table *table, uint64_t hash, void *node);
// The node is in the table.
void node_table_remove(struct node_table *table, uint64_t hash, const void *node);
// A node of the table, in any order: the first one from entry *at on, which moves behind it. NULL:
// there is none left.
void *node_table_each(const struct node_table *table, size_t *at);
void node_table_finish(struct node_table *table); // does not touch the nodes

#endif
