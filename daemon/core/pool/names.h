// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// names.h - which blocks a batch that advances names, and how often: each has one reference while
// it is named. What a step stops naming keeps its reference, in a list, for as long as older steps
// have runs; `since` tells which steps named it. Most blocks are named once and since the first
// step: those are a bit each, and only the others have a place in a table. Knows ids and holds, not
// tables of blocks.

#ifndef AULE_CORE_NAMES_H
#define AULE_CORE_NAMES_H

#include "hold.h"

struct name {
    uint64_t since; // the first step that named it
    int32_t id;     // of the block
    uint32_t count; // 0: a free place
};

// What one step named and the next one did not.
struct names_left {
    struct names_left *next; // another step's
    size_t count, capacity;
    struct name names[];
};

struct names {
    struct hold_table *table;
    uint64_t *bits; // [num_words], as far as ids were named so far: those that are; NULL if none
                    // was; owned
    uint64_t *uncounted; // of them those that names_count() has not come by yet; NULL after
                         // names_counted(); owned
    size_t num_words;
    struct name *places; // [capacity], a power of two; owned; a hash table by id, at most half full
    size_t capacity, count;
};

// Bytes that it takes: now, and with room to name ids [0, count) and for `more` in the table of
// places (a zeroed one: when it is begun with so much room).
uint64_t names_bytes(const struct names *names);
uint64_t names_bytes_for(const struct names *names, const int32_t *ids, size_t count, size_t more);
// Names blocks [0, count), each once, which have their references. Then each mention of them is
// counted, `again` more than there are blocks at most. false: no memory.
bool names_init(struct names *names, struct hold_table *table, const int32_t *blocks, size_t count,
                size_t again);
bool names_count(struct names *names, int32_t id); // false: it is not named
void names_counted(struct names *names);
void names_finish(struct names *names); // takes a zeroed one; the references stay
// So that names_add() of ids [0, count), `more` times in all, cannot fail. false: no memory.
bool names_reserve(struct names *names, const int32_t *ids, size_t count, size_t more);

// Once more; the first time takes a reference.
void names_add(struct names *names, int32_t id, uint64_t step);
// Once less; the last time it leaves, into `left`, which has room for it, and keeps its reference.
void names_drop(struct names *names, int32_t id, struct names_left *left);

int64_t names_next(const struct names *names,
                   int64_t from); // the lowest id from there on, -1 if there is none
bool names_has(const struct names *names, int32_t id);
struct name names_get(const struct names *names, int32_t id); // one that is named
void names_forget(struct names *names,
                  int32_t id); // whatever its count; its reference is the caller's

struct names_left *names_left_create(size_t capacity); // empty; NULL: no memory. Ends with free()
uint64_t names_left_bytes(size_t capacity);
// The same without the room that it does not need, if memory can be had for that; NULL if it is
// empty.
struct names_left *names_left_fit(struct names_left *left);

#endif
