// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// number_set.h - a set of small numbers that knows its smallest and its largest one. It is a tree
// of bits: a bit of a level says whether a word of the level below has one. So adding, removing and
// finding take one step for each factor of 64, and 2,000 numbers lie in five cache lines. Memory is
// reserved ahead, so that adding never fails. No lock: dispatcher thread only.

#ifndef AULE_CORE_NUMBER_SET_H
#define AULE_CORE_NUMBER_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NUMBER_SET_LEVELS = 6 }; // 64^6 exceeds all numbers of 32 bits

struct number_set {
    uint64_t *levels[NUMBER_SET_LEVELS]; // the numbers first; the last one has one word
    uint64_t *words;                     // of all levels; owned
    uint64_t capacity;                   // numbers are below it
    uint32_t num_levels;                 // 0: nothing was reserved yet
    uint32_t size;                       // numbers in the set
};

// Makes room for numbers below `capacity`. False: no memory, and nothing has changed.
bool number_set_reserve(struct number_set *set, uint64_t capacity);
void number_set_finish(struct number_set *set);
void number_set_add(struct number_set *set, uint32_t number);    // below the capacity, not in it
void number_set_remove(struct number_set *set, uint32_t number); // does nothing if it is not in it
bool number_set_has(const struct number_set *set, uint32_t number);
uint32_t number_set_first(const struct number_set *set); // the smallest one; the set is not empty
uint32_t number_set_last(const struct number_set *set);  // the largest one; likewise
bool number_set_sound(const struct number_set *set);     // checks all levels; for tests

#endif
