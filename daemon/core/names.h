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

// What is named no more, newest first.
struct name_left {
    struct name_left *next;
    struct name name;
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
// Once less; the last time it leaves, into *left, and keeps its reference.
void names_drop(struct names *names, const struct block *block, struct name_left *left, bool *leaves);

#endif
