// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// names.c - see names.h. Open addressing by the block's id; who leaves is filled from behind, so that no look-up passes graves.

#include "names.h"

#include <stdlib.h>

enum { LEAST_PLACES = 16 };

// Ids are close together, and clients choose among theirs: a product spreads them, and its upper half is taken.
static size_t home_of(const struct names *names, int32_t id)
{
    return (size_t)(((uint64_t)(uint32_t)id * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (names->capacity - 1);
}

static struct name *place_of(const struct names *names, int32_t id)
{
    size_t at = home_of(names, id);
    while (names->places[at].block && names->places[at].id != id)
        at = (at + 1) & (names->capacity - 1);
    return &names->places[at];
}

static size_t capacity_for(size_t count)
{
    size_t capacity = LEAST_PLACES;
    while (capacity < 2 * count)
        capacity *= 2;
    return capacity;
}

// What it has, if the names so far and so many more find room there.
static size_t capacity_with(const struct names *names, size_t more)
{
    size_t count = names->count + more;
    return 2 * count <= names->capacity ? names->capacity : capacity_for(names->count ? 2 * count : count);
}

uint64_t names_bytes(const struct names *names)
{
    return names->capacity * sizeof *names->places;
}

uint64_t names_bytes_for(const struct names *names, size_t more)
{
    return capacity_with(names, more) * sizeof *names->places;
}

bool names_init(struct names *names, struct hold_table *table, size_t room)
{
    *names = (struct names){.table = table, .capacity = capacity_for(room)};
    names->places = calloc(names->capacity, sizeof *names->places);
    return names->places != NULL;
}

void names_finish(struct names *names)
{
    free(names->places);
    names->places = NULL;
}

bool names_reserve(struct names *names, size_t more)
{
    struct names larger = {.table = names->table, .count = names->count};
    larger.capacity = capacity_with(names, more);
    if (larger.capacity == names->capacity)
        return true;
    larger.places = calloc(larger.capacity, sizeof *larger.places);
    if (!larger.places)
        return false;
    for (size_t i = 0; i < names->capacity; i++) {
        if (names->places[i].block)
            *place_of(&larger, names->places[i].id) = names->places[i];
    }
    free(names->places);
    *names = larger;
    return true;
}

void names_enter(struct names *names, struct block *block)
{
    *place_of(names, block->id) = (struct name){.block = block, .id = block->id};
    names->count++;
}

bool names_again(struct names *names, int32_t id)
{
    struct name *name = place_of(names, id);
    name->count += name->block != NULL;
    return name->block != NULL;
}

void names_add(struct names *names, struct block *block, uint64_t step)
{
    struct name *name = place_of(names, block->id);
    if (!name->block) {
        hold_ref(names->table, block);
        *name = (struct name){.block = block, .id = block->id, .since = step};
        names->count++;
    }
    name->count++;
}

// What stands behind the place and could stand there moves up, until there is a gap anyway.
static void close_up(struct names *names, size_t gap)
{
    size_t mask = names->capacity - 1;
    for (size_t at = (gap + 1) & mask; names->places[at].block; at = (at + 1) & mask) {
        size_t home = home_of(names, names->places[at].id);
        if (((at - home) & mask) < ((at - gap) & mask))
            continue; // its home lies behind the gap
        names->places[gap] = names->places[at];
        gap = at;
    }
    names->places[gap] = (struct name){0};
}

void names_drop(struct names *names, const struct block *block, struct names_left *left)
{
    struct name *name = place_of(names, block->id);
    if (--name->count)
        return;
    left->names[left->count++] = *name;
    names->count--;
    close_up(names, (size_t)(name - names->places));
}

uint64_t names_left_bytes(size_t capacity)
{
    return sizeof(struct names_left) + capacity * sizeof(struct name);
}

struct names_left *names_left_create(size_t capacity)
{
    struct names_left *left = malloc(names_left_bytes(capacity));
    if (left)
        *left = (struct names_left){.capacity = capacity};
    return left;
}

struct names_left *names_left_fit(struct names_left *left)
{
    if (!left->count) {
        free(left);
        return NULL;
    }
    struct names_left *fitting = realloc(left, names_left_bytes(left->count));
    if (!fitting)
        return left;
    fitting->capacity = fitting->count;
    return fitting;
}
