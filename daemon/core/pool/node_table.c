// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// node_table.c - see node_table.h. Linear probing; a removal moves later entries back, so there are
// no marks of removed entries, and a search ends at the first free entry.

#include "node_table.h"

#include "base/pages.h"

enum {
    LEAST_CAPACITY = 64,
    // Entries of the old array that a change looks at. The array doubles, so the next growth is as
    // many additions away as half of the old array has entries: 2 would be enough.
    MOVED_AT_ONCE = 16,
};

// ---- one array ----

static void put(struct node_array *array, struct node_entry entry)
{
    size_t at = node_array_home(array, entry.hash);
    while (array->entries[at].node)
        at = (at + 1) & (array->capacity - 1);
    array->entries[at] = entry;
}

// False: the node is not in this array.
static bool take(struct node_array *array, uint64_t hash, const void *node)
{
    const size_t mask = array->capacity - 1;
    size_t hole = array->capacity ? node_array_home(array, hash) : 0;
    while (array->capacity && array->entries[hole].node && array->entries[hole].node != node)
        hole = (hole + 1) & mask;
    if (!array->capacity || !array->entries[hole].node)
        return false;
    for (size_t at = (hole + 1) & mask; array->entries[at].node; at = (at + 1) & mask) {
        // An entry may move to the hole unless its home lies behind the hole.
        size_t home = node_array_home(array, array->entries[at].hash);
        if (((at - home) & mask) < ((at - hole) & mask))
            continue;
        array->entries[hole] = array->entries[at];
        hole = at;
    }
    array->entries[hole] = (struct node_entry){0};
    return true;
}

static void drop(struct node_array *array)
{
    pages_unmap(array->entries, array->capacity * sizeof *array->entries);
    *array = (struct node_array){0};
}

// ---- growth ----

// Moves entries up to the next free one, so that no run of entries is cut: a search in the old
// array ends at the first free one. `least`: entries to look at.
static void move(struct node_table *table, size_t least)
{
    struct node_array *old = &table->old;
    for (table->looked = 0; table->looked < old->capacity; table->looked++) {
        struct node_entry *entry = &old->entries[table->next];
        if (!entry->node && table->looked >= least)
            return;
        if (entry->node)
            put(&table->now, *entry);
        *entry = (struct node_entry){0};
        table->next = (table->next + 1) & (old->capacity - 1);
        if (table->next == table->end)
            break;
    }
    drop(old);
}

// A move begins behind a free entry, so that it does not begin within a run.
static size_t first_free(const struct node_array *array)
{
    size_t at = 0;
    while (at < array->capacity && array->entries[at].node)
        at++;
    return at;
}

static bool grow(struct node_table *table)
{
    const size_t capacity = table->now.capacity ? 2 * table->now.capacity : LEAST_CAPACITY;
    struct node_entry *entries = pages_map(capacity * sizeof *entries, true);
    if (!entries)
        return false;
    if (table->old.capacity)
        move(table, table->old.capacity);
    table->old = table->now;
    table->next = table->end = first_free(&table->old);
    table->now = (struct node_array){entries, capacity, 64 - (unsigned)__builtin_ctzll(capacity)};
    return true;
}

// ---- the table ----

static void move_some(struct node_table *table)
{
    table->looked = 0;
    if (table->old.capacity)
        move(table, MOVED_AT_ONCE);
}

bool node_table_add(struct node_table *table, uint64_t hash, void *node)
{
    if (2 * (table->size + 1) > table->now.capacity && !grow(table))
        return false;
    move_some(table);
    put(&table->now, (struct node_entry){hash, node});
    table->size++;
    return true;
}

void node_table_remove(struct node_table *table, uint64_t hash, const void *node)
{
    if (!take(&table->now, hash, node))
        take(&table->old, hash, node);
    table->size--;
    move_some(table);
}

void *node_table_each(const struct node_table *table, size_t *at)
{
    const size_t size = table->now.capacity + table->old.capacity;
    while (*at < size) {
        const struct node_entry *entry = *at < table->now.capacity
                                             ? &table->now.entries[*at]
                                             : &table->old.entries[*at - table->now.capacity];
        ++*at;
        if (entry->node)
            return entry->node;
    }
    return NULL;
}

void node_table_finish(struct node_table *table)
{
    drop(&table->now);
    drop(&table->old);
    *table = (struct node_table){0};
}
