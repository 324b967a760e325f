// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// names.h - which blocks a batch that advances names, and how often: each has one reference while it is named. What a step stops naming
// keeps its reference, in a list, for as long as older steps have runs; `since` tells which steps named it. Knows blocks, not tables.

#ifndef AULE_CORE_NAMES_H
#define AULE_CORE_NAMES_H

#include "hold.h"

struct name {
    struct block *block; // NULL: a free place
    int32_t id;          // of the block
    uint32_t count;
    uint64_t since; // the first step that named it
};

// What one step named and the next one did not.
struct names_left {
    struct names_left *next; // an older step's
    size_t count, capacity;
    struct name names[];
};

struct names {
    struct hold_table *table;
    struct name *places; // [capacity], a power of two; owned; a hash table by id, at most half full
    size_t capacity, count;
};

// Bytes that it takes: now, and with room for so many more (of a zeroed one: when it is begun with so much room).
uint64_t names_bytes(const struct names *names);
uint64_t names_bytes_for(const struct names *names, size_t more);
bool names_init(struct names *names, struct hold_table *table, size_t room); // false: no memory
void names_finish(struct names *names);                                      // takes a zeroed one; the references stay
bool names_reserve(struct names *names, size_t more);                        // so that names_add() cannot fail

void names_enter(struct names *names, struct block *block); // not at all so far; it has its reference
bool names_again(struct names *names, int32_t id);          // one that is there once more; false: it is not there
// Once more; the first time takes a reference.
void names_add(struct names *names, struct block *block, uint64_t step);
// Once less; the last time it leaves, into `left`, which has room for it, and keeps its reference.
void names_drop(struct names *names, const struct block *block, struct names_left *left);

struct names_left *names_left_create(size_t capacity); // empty; NULL: no memory. Ends with free()
uint64_t names_left_bytes(size_t capacity);
// The same without the room that it does not need, if memory can be had for that; NULL if it is empty.
struct names_left *names_left_fit(struct names_left *left);

#endif
