// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// number_set.c - see number_set.h.

#include "number_set.h"

#include <stdlib.h>

enum { WORD = 64 };

static uint64_t words_for(uint64_t bits)
{
    return (bits + WORD - 1) / WORD;
}

static uint64_t bit_of(uint64_t number)
{
    return UINT64_C(1) << number % WORD;
}

// Divides `words`, which has room for them all, into levels.
static void lay_out(struct number_set *set, uint64_t *words, uint64_t capacity)
{
    uint64_t bits = capacity;
    set->words = words;
    set->capacity = capacity;
    set->num_levels = 0;
    do {
        set->levels[set->num_levels++] = words;
        bits = words_for(bits);
        words += bits;
    } while (bits > 1);
}

static uint64_t count_words(uint64_t capacity)
{
    uint64_t count = 0, bits = capacity;
    do {
        bits = words_for(bits);
        count += bits;
    } while (bits > 1);
    return count;
}

// Sets the number's bit in each level, up to the first word that has some already.
static void raise(const struct number_set *set, uint64_t number)
{
    bool rises = true;
    for (uint32_t level = 0; rises && level < set->num_levels; level++, number /= WORD) {
        uint64_t *word = &set->levels[level][number / WORD];
        rises = !*word;
        *word |= bit_of(number);
    }
}

bool number_set_reserve(struct number_set *set, uint64_t capacity)
{
    if (capacity <= set->capacity)
        return true;
    const struct number_set before = *set;
    if (capacity < 2 * before.capacity)
        capacity = 2 * before.capacity;
    uint64_t *words = calloc(count_words(capacity), sizeof *words);
    if (!words)
        return false;
    lay_out(set, words, capacity);
    for (uint64_t number = 0; number < before.capacity; number++) {
        if (before.levels[0][number / WORD] & bit_of(number))
            raise(set, number);
    }
    free(before.words);
    return true;
}

void number_set_finish(struct number_set *set)
{
    free(set->words);
    *set = (struct number_set){0};
}

void number_set_add(struct number_set *set, uint32_t number)
{
    set->size++;
    raise(set, number);
}

bool number_set_has(const struct number_set *set, uint32_t number)
{
    return number < set->capacity && set->levels[0][number / WORD] & bit_of(number);
}

void number_set_remove(struct number_set *set, uint32_t number)
{
    if (!number_set_has(set, number))
        return;
    set->size--;
    bool falls = true;
    for (uint32_t level = 0; falls && level < set->num_levels; level++, number /= WORD) {
        uint64_t *word = &set->levels[level][number / WORD];
        *word &= ~bit_of(number);
        falls = !*word;
    }
}

uint32_t number_set_first(const struct number_set *set)
{
    uint64_t number = 0;
    for (uint32_t level = set->num_levels; level-- > 0;)
        number = number * WORD + (unsigned)__builtin_ctzll(set->levels[level][number]);
    return (uint32_t)number;
}

uint32_t number_set_last(const struct number_set *set)
{
    uint64_t number = 0;
    for (uint32_t level = set->num_levels; level-- > 0;)
        number = number * WORD + (WORD - 1) - (unsigned)__builtin_clzll(set->levels[level][number]);
    return (uint32_t)number;
}

bool number_set_sound(const struct number_set *set)
{
    uint64_t bits = set->capacity, count = 0;
    for (uint32_t level = 0; level < set->num_levels; level++) {
        const uint64_t words = words_for(bits);
        for (uint64_t word = 0; word < words; word++) {
            const uint64_t held = set->levels[level][word];
            if (level + 1 < set->num_levels &&
                !held != !(set->levels[level + 1][word / WORD] & bit_of(word)))
                return false;
            count += level ? 0 : (uint64_t)__builtin_popcountll(held);
        }
        bits = words;
    }
    return count == set->size;
}
