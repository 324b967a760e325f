// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// mentions.c - see mentions.h. The hash table uses open addressing with linear probing. Removing an
// entry moves later ones up, so there are no tombstones.

#include "mentions.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST_PLACES = 16 };

// ---- the hash table ----

// Fibonacci hashing (2^64 over the golden ratio): it spreads ids that are close together. Clients
// choose among their own ids only.
static size_t home_of(const struct mentions *mentions, int32_t id)
{
    return (size_t)(((uint64_t)(uint32_t)id * UINT64_C(0x9e3779b97f4a7c15)) >> 32) &
           (mentions->capacity - 1);
}

// The place of block `id`, or the free place that it would get.
static struct mentioned *place_of(const struct mentions *mentions, int32_t id)
{
    size_t at = home_of(mentions, id);
    while (mentions->places[at].count && mentions->places[at].id != id)
        at = (at + 1) & (mentions->capacity - 1);
    return &mentions->places[at];
}

static void take_place(struct mentions *mentions, struct mentioned block)
{
    *place_of(mentions, block.id) = block;
    mentions->count++;
}

// Frees a place. Later entries of the same probe sequence move up, until a free place ends it.
static void give_place(struct mentions *mentions, struct mentioned *place)
{
    size_t mask = mentions->capacity - 1, gap = (size_t)(place - mentions->places);
    for (size_t at = (gap + 1) & mask; mentions->places[at].count; at = (at + 1) & mask) {
        size_t home = home_of(mentions, mentions->places[at].id);
        if (((at - home) & mask) < ((at - gap) & mask))
            continue; // its home is behind the gap, so it must not move before it
        mentions->places[gap] = mentions->places[at];
        gap = at;
    }
    mentions->places[gap] = (struct mentioned){0};
    mentions->count--;
}

// Stores `block`. A block with one mention since step 0 is plain: its bit is enough, and it has no
// place. So a block may gain or lose its place here.
static void set(struct mentions *mentions, struct mentioned *place, struct mentioned block)
{
    bool plain = block.count == 1 && block.since == 0;
    if (place->count && plain)
        give_place(mentions, place);
    else if (place->count)
        *place = block;
    else if (!plain)
        take_place(mentions, block);
}

// ---- room ----

static size_t capacity_for(size_t count)
{
    size_t capacity = LEAST_PLACES;
    while (capacity < 2 * count)
        capacity *= 2;
    return capacity;
}

// The capacity that `more` further places need: the present one if they fit.
static size_t capacity_with(const struct mentions *mentions, size_t more)
{
    size_t count = mentions->count + more;
    bool fits = mentions->capacity && 2 * count <= mentions->capacity;
    return fits ? mentions->capacity : capacity_for(mentions->count ? 2 * count : count);
}

// The number of words that the bits of ids[0 .. count) need; at least the present number.
static size_t words_with(const struct mentions *mentions, const int32_t *ids, size_t count)
{
    size_t words = mentions->num_words;
    for (size_t i = 0; i < count; i++) {
        size_t word = (uint32_t)ids[i] / 64;
        words = word < words ? words : word + 1;
    }
    return words;
}

static uint64_t bytes_of(size_t words, size_t capacity)
{
    return words * sizeof(uint64_t) + capacity * sizeof(struct mentioned);
}

uint64_t mentions_bytes(const struct mentions *mentions)
{
    return bytes_of(mentions->num_words, mentions->capacity);
}

uint64_t mentions_bytes_for(const struct mentions *mentions, const int32_t *ids, size_t count,
                            size_t more)
{
    return bytes_of(words_with(mentions, ids, count), capacity_with(mentions, more));
}

static bool reserve_bits(struct mentions *mentions, const int32_t *ids, size_t count)
{
    size_t words = words_with(mentions, ids, count);
    if (words == mentions->num_words)
        return true;
    uint64_t *bits = realloc(mentions->bits, words * sizeof *bits);
    if (!bits)
        return false;
    memset(bits + mentions->num_words, 0, (words - mentions->num_words) * sizeof *bits);
    mentions->bits = bits;
    mentions->num_words = words;
    return true;
}

static bool reserve_places(struct mentions *mentions, size_t more)
{
    struct mentions larger = {.capacity = capacity_with(mentions, more)};
    if (larger.capacity == mentions->capacity)
        return true;
    larger.places = calloc(larger.capacity, sizeof *larger.places);
    if (!larger.places)
        return false;
    for (size_t i = 0; i < mentions->capacity; i++) {
        if (mentions->places[i].count)
            take_place(&larger, mentions->places[i]);
    }
    free(mentions->places);
    mentions->places = larger.places;
    mentions->capacity = larger.capacity;
    return true;
}

bool mentions_reserve(struct mentions *mentions, const int32_t *ids, size_t count, size_t more)
{
    return reserve_bits(mentions, ids, count) && reserve_places(mentions, more);
}

// ---- bits and mentions ----

static uint64_t bit_of(int32_t id)
{
    return UINT64_C(1) << ((uint32_t)id % 64);
}

bool mentions_has(const struct mentions *mentions, int32_t id)
{
    size_t word = (uint32_t)id / 64;
    return word < mentions->num_words && mentions->bits[word] & bit_of(id);
}

bool mentions_init(struct mentions *mentions, struct hold_table *table, const int32_t *blocks,
                   size_t count, size_t again)
{
    *mentions = (struct mentions){.table = table};
    if (mentions_reserve(mentions, blocks, count, again))
        mentions->uncounted = calloc(mentions->num_words + 1, sizeof *mentions->uncounted);
    if (!mentions->uncounted) {
        mentions_finish(mentions);
        return false;
    }
    for (size_t i = 0; i < count; i++)
        mentions->bits[(uint32_t)blocks[i] / 64] |= bit_of(blocks[i]);
    if (mentions->num_words)
        memcpy(mentions->uncounted, mentions->bits,
               mentions->num_words * sizeof *mentions->uncounted);
    return true;
}

bool mentions_count(struct mentions *mentions, int32_t id)
{
    if (!mentions_has(mentions, id))
        return false;
    uint64_t *uncounted = &mentions->uncounted[(uint32_t)id / 64];
    if (*uncounted & bit_of(id))
        *uncounted &= ~bit_of(id);
    else
        mentions_add(mentions, id, 0);
    return true;
}

void mentions_counted(struct mentions *mentions)
{
    free(mentions->uncounted);
    mentions->uncounted = NULL;
}

void mentions_finish(struct mentions *mentions)
{
    free(mentions->bits);
    free(mentions->uncounted);
    free(mentions->places);
    *mentions = (struct mentions){0};
}

struct mentioned mentions_get(const struct mentions *mentions, int32_t id)
{
    const struct mentioned *place = place_of(mentions, id);
    return place->count ? *place : (struct mentioned){.id = id, .count = 1};
}

void mentions_add(struct mentions *mentions, int32_t id, uint64_t step)
{
    struct mentioned *place = place_of(mentions, id), block = {.since = step, .id = id};
    if (mentions_has(mentions, id)) {
        block = mentions_get(mentions, id);
    } else {
        hold_ref(mentions->table, id);
        mentions->bits[(uint32_t)id / 64] |= bit_of(id);
    }
    block.count++;
    set(mentions, place, block);
}

void mentions_forget(struct mentions *mentions, int32_t id)
{
    struct mentioned *place = place_of(mentions, id);
    mentions->bits[(uint32_t)id / 64] &= ~bit_of(id);
    if (place->count)
        give_place(mentions, place);
}

void mentions_drop(struct mentions *mentions, int32_t id, struct mentions_dropped *dropped)
{
    struct mentioned block = mentions_get(mentions, id);
    if (block.count == 1) {
        dropped->blocks[dropped->count++] = block;
        mentions_forget(mentions, id);
        return;
    }
    block.count--;
    set(mentions, place_of(mentions, id), block);
}

int64_t mentions_next(const struct mentions *mentions, int64_t from)
{
    for (size_t word = (uint64_t)from / 64; word < mentions->num_words; word++) {
        uint64_t bits = mentions->bits[word];
        if (word == (uint64_t)from / 64)
            bits &= ~UINT64_C(0) << (from % 64);
        if (bits)
            return (int64_t)(word * 64) + __builtin_ctzll(bits);
    }
    return -1;
}

// ---- blocks that a step stops naming ----

uint64_t mentions_dropped_bytes(size_t capacity)
{
    return sizeof(struct mentions_dropped) + capacity * sizeof(struct mentioned);
}

struct mentions_dropped *mentions_dropped_create(size_t capacity)
{
    struct mentions_dropped *dropped = malloc(mentions_dropped_bytes(capacity));
    if (dropped)
        *dropped = (struct mentions_dropped){.capacity = capacity};
    return dropped;
}

struct mentions_dropped *mentions_dropped_fit(struct mentions_dropped *dropped)
{
    if (!dropped->count) {
        free(dropped);
        return NULL;
    }
    struct mentions_dropped *fitting = realloc(dropped, mentions_dropped_bytes(dropped->count));
    if (!fitting)
        return dropped;
    fitting->capacity = fitting->count;
    return fitting;
}
