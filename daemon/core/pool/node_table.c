// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// node_table.c - see node_table.h. Linear probing; a removal moves later entries back, so there are
// no marks of removed entries, and a search ends at the first free entry.

#include "node_table.h"

#include <stdlib.h>

enum { LEAST_CAPACITY = 64 };

static void put(struct node_table *table, struct node_entry entry)
{
    size_t at = node_table_home(table, entry.hash);
    while (table->entries[at].node)
        at = (at + 1) & (table->capacity - 1);
    table->entries[at] = entry;
}

static bool grow(struct node_table *table)
{
    const struct node_table old = *table;
    const size_t capacity = old.capacity ? 2 * old.capacity : LEAST_CAPACITY;
    struct node_entry *entries = calloc(capacity, sizeof *entries);
    if (!entries)
        return false;
    table->entries = entries;
    table->capacity = capacity;
    table->shift = 64 - (unsigned)__builtin_ctzll(capacity);
    for (size_t i = 0; i < old.capacity; i++) {
        if (old.entries[i].node)
            put(table, old.entries[i]);
    }
    free(old.entries);
    return true;
}

bool node_table_add(struct node_table *table, uint64_t hash, struct prefix_node *node)
{
    if (2 * (table->size + 1) > table->capacity && !grow(table))
        return false;
    put(table, (struct node_entry){hash, node});
    table->size++;
    return true;
}

void node_table_remove(struct node_table *table, uint64_t hash, const struct prefix_node *node)
{
    const size_t mask = table->capacity - 1;
    size_t hole = node_table_home(table, hash);
    while (table->entries[hole].node != node)
        hole = (hole + 1) & mask;
    for (size_t at = (hole + 1) & mask; table->entries[at].node; at = (at + 1) & mask) {
        // An entry may move to the hole unless its home lies behind the hole.
        size_t home = node_table_home(table, table->entries[at].hash);
        if (((at - home) & mask) < ((at - hole) & mask))
            continue;
        table->entries[hole] = table->entries[at];
        hole = at;
    }
    table->entries[hole] = (struct node_entry){0};
    table->size--;
}

struct prefix_node *node_table_each(const struct node_table *table, size_t *at)
{
    while (*at < table->capacity) {
        struct prefix_node *node = table->entries[(*at)++].node;
        if (node)
            return node;
    }
    return NULL;
}

void node_table_finish(struct node_table *table)
{
    free(table->entries);
    *table = (struct node_table){0};
}
