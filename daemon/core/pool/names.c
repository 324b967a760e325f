// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// names.c - see names.h. The hash table uses open addressing with linear probing. Removing an entry
// moves later ones up, so there are no tombstones.

#include "names.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST_PLACES = 16 };

// ---- the hash table ----

// Fibonacci hashing (2^64 over the golden ratio): it spreads ids that are close together. Clients
// choose among their own ids only.
static size_t home_of(const struct names *names, int32_t id)
{
    return (size_t)(((uint64_t)(uint32_t)id * UINT64_C(0x9e3779b97f4a7c15)) >> 32) &
           (names->capacity - 1);
}

// The place of block `id`, or the free place that it would get.
static struct name *place_of(const struct names *names, int32_t id)
{
    size_t at = home_of(names, id);
    while (names->places[at].count && names->places[at].id != id)
        at = (at + 1) & (names->capacity - 1);
    return &names->places[at];
}

static void take_place(struct names *names, struct name name)
{
    *place_of(names, name.id) = name;
    names->count++;
}

// Frees a place. Later entries of the same probe sequence move up, until a free place ends it.
static void give_place(struct names *names, struct name *place)
{
    size_t mask = names->capacity - 1, gap = (size_t)(place - names->places);
    for (size_t at = (gap + 1) & mask; names->places[at].count; at = (at + 1) & mask) {
        size_t home = home_of(names, names->places[at].id);
        if (((at - home) & mask) < ((at - gap) & mask))
            continue; // its home is behind the gap, so it must not move before it
        names->places[gap] = names->places[at];
        gap = at;
    }
    names->places[gap] = (struct name){0};
    names->count--;
}

// Stores `name`. A block with one mention since step 0 is plain: its bit is enough, and it has no
// place. So a block may gain or lose its place here.
static void set(struct names *names, struct name *place, struct name name)
{
    bool plain = name.count == 1 && name.since == 0;
    if (place->count && plain)
        give_place(names, place);
    else if (place->count)
        *place = name;
    else if (!plain)
        take_place(names, name);
}

// ---- room ----

static size_t capacity_for(size_t count)
{
    size_t capacity = LEAST_PLACES;
    while (capacity < 2 * count)
        capacity *= 2;
    return capacity;
}

// The capacity that `more` further names need: the present one if they fit.
static size_t capacity_with(const struct names *names, size_t more)
{
    size_t count = names->count + more;
    bool fits = names->capacity && 2 * count <= names->capacity;
    return fits ? names->capacity : capacity_for(names->count ? 2 * count : count);
}

// The number of words that the bits of ids[0 .. count) need; at least the present number.
static size_t words_with(const struct names *names, const int32_t *ids, size_t count)
{
    size_t words = names->num_words;
    for (size_t i = 0; i < count; i++) {
        size_t word = (uint32_t)ids[i] / 64;
        words = word < words ? words : word + 1;
    }
    return words;
}

static uint64_t bytes_of(size_t words, size_t capacity)
{
    return words * sizeof(uint64_t) + capacity * sizeof(struct name);
}

uint64_t names_bytes(const struct names *names)
{
    return bytes_of(names->num_words, names->capacity);
}

uint64_t names_bytes_for(const struct names *names, const int32_t *ids, size_t count, size_t more)
{
    return bytes_of(words_with(names, ids, count), capacity_with(names, more));
}

static bool reserve_bits(struct names *names, const int32_t *ids, size_t count)
{
    size_t words = words_with(names, ids, count);
    if (words == names->num_words)
        return true;
    uint64_t *bits = realloc(names->bits, words * sizeof *bits);
    if (!bits)
        return false;
    memset(bits + names->num_words, 0, (words - names->num_words) * sizeof *bits);
    names->bits = bits;
    names->num_words = words;
    return true;
}

static bool reserve_places(struct names *names, size_t more)
{
    struct names larger = {.capacity = capacity_with(names, more)};
    if (larger.capacity == names->capacity)
        return true;
    larger.places = calloc(larger.capacity, sizeof *larger.places);
    if (!larger.places)
        return false;
    for (size_t i = 0; i < names->capacity; i++) {
        if (names->places[i].count)
            take_place(&larger, names->places[i]);
    }
    free(names->places);
    names->places = larger.places;
    names->capacity = larger.capacity;
    return true;
}

bool names_reserve(struct names *names, const int32_t *ids, size_t count, size_t more)
{
    return reserve_bits(names, ids, count) && reserve_places(names, more);
}

// ---- bits and mentions ----

static uint64_t bit_of(int32_t id)
{
    return UINT64_C(1) << ((uint32_t)id % 64);
}

bool names_has(const struct names *names, int32_t id)
{
    size_t word = (uint32_t)id / 64;
    return word < names->num_words && names->bits[word] & bit_of(id);
}

bool names_init(struct names *names, struct hold_table *table, const int32_t *blocks, size_t count,
                size_t again)
{
    *names = (struct names){.table = table};
    if (names_reserve(names, blocks, count, again))
        names->uncounted = calloc(names->num_words + 1, sizeof *names->uncounted);
    if (!names->uncounted) {
        names_finish(names);
        return false;
    }
    for (size_t i = 0; i < count; i++)
        names->bits[(uint32_t)blocks[i] / 64] |= bit_of(blocks[i]);
    if (names->num_words)
        memcpy(names->uncounted, names->bits, names->num_words * sizeof *names->uncounted);
    return true;
}

bool names_count(struct names *names, int32_t id)
{
    if (!names_has(names, id))
        return false;
    uint64_t *uncounted = &names->uncounted[(uint32_t)id / 64];
    if (*uncounted & bit_of(id))
        *uncounted &= ~bit_of(id);
    else
        names_add(names, id, 0);
    return true;
}

void names_counted(struct names *names)
{
    free(names->uncounted);
    names->uncounted = NULL;
}

void names_finish(struct names *names)
{
    free(names->bits);
    free(names->uncounted);
    free(names->places);
    *names = (struct names){0};
}

struct name names_get(const struct names *names, int32_t id)
{
    const struct name *place = place_of(names, id);
    return place->count ? *place : (struct name){.id = id, .count = 1};
}

void names_add(struct names *names, int32_t id, uint64_t step)
{
    struct name *place = place_of(names, id), name = {.since = step, .id = id};
    if (names_has(names, id)) {
        name = names_get(names, id);
    } else {
        hold_ref(names->table, id);
        names->bits[(uint32_t)id / 64] |= bit_of(id);
    }
    name.count++;
    set(names, place, name);
}

void names_forget(struct names *names, int32_t id)
{
    struct name *place = place_of(names, id);
    names->bits[(uint32_t)id / 64] &= ~bit_of(id);
    if (place->count)
        give_place(names, place);
}

void names_drop(struct names *names, int32_t id, struct names_left *left)
{
    struct name name = names_get(names, id);
    if (name.count == 1) {
        left->names[left->count++] = name;
        names_forget(names, id);
        return;
    }
    name.count--;
    set(names, place_of(names, id), name);
}

int64_t names_next(const struct names *names, int64_t from)
{
    for (size_t word = (uint64_t)from / 64; word < names->num_words; word++) {
        uint64_t bits = names->bits[word];
        if (word == (uint64_t)from / 64)
            bits &= ~UINT64_C(0) << (from % 64);
        if (bits)
            return (int64_t)(word * 64) + __builtin_ctzll(bits);
    }
    return -1;
}

// ---- blocks that are named no more ----

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
