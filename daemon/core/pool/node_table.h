// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// node_table.h - the nodes of a cache's prefix index by their 64-bit hashes: open addressing, so
// that a search mostly reads one cache line, which can be prefetched before the key is known to be
// there. Entries lie in the order of their hashes' highest bits, so growth reads and writes memory
// in order. Knows nothing of a node but its hash; the caller compares keys. Dispatcher thread only.

#ifndef AULE_CORE_NODE_TABLE_H
#define AULE_CORE_NODE_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct prefix_node;

struct node_entry {
    uint64_t hash;
    struct prefix_node *node; // NULL: free
};

struct node_table {
    struct node_entry *entries; // [capacity], a power of two, at most half of them used; owned
    size_t capacity, size;
    unsigned shift; // 64 - log2(capacity); undefined while there is no entry
};

// A walk over the entries of one hash.
struct node_search {
    uint64_t hash;
    size_t at;
};

static inline size_t node_table_home(const struct node_table *table, uint64_t hash)
{
    return (size_t)(hash >> table->shift);
}

static inline void node_table_fetch(const struct node_table *table, uint64_t hash)
{
    if (table->capacity)
        __builtin_prefetch(&table->entries[node_table_home(table, hash)]);
}

static inline struct node_search node_table_search(const struct node_table *table, uint64_t hash)
{
    return (struct node_search){hash, table->capacity ? node_table_home(table, hash) : 0};
}

// The next node of this hash; NULL: there is no other one.
static inline struct prefix_node *node_table_next(const struct node_table *table,
                                                  struct node_search *search)
{
    while (table->capacity && table->entries[search->at].node) {
        const struct node_entry *entry = &table->entries[search->at];
        search->at = (search->at + 1) & (table->capacity - 1);
        if (entry->hash == search->hash)
            return entry->node;
    }
    return NULL;
}

// False: no memory, and nothing has changed.
bool node_table_add(struct node_table *table, uint64_t hash, struct prefix_node *node);
// The node is in the table.
void node_table_remove(struct node_table *table, uint64_t hash, const struct prefix_node *node);
// A node of the table, in any order: the first one from entry *at on, which moves behind it. NULL:
// there is none left.
struct prefix_node *node_table_each(const struct node_table *table, size_t *at);
void node_table_finish(struct node_table *table); // does not touch the nodes

#endif
