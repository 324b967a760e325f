// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// names.h - which blocks a batch names, and how often. A block table entry or a slot with a block
// is one mention of it; a block with mentions is named, and has one reference in the hold table.
// Only batches that advance have a `names`. A block that the next step stops naming keeps its
// reference in a names_left while older steps have runs.
// Most blocks have one mention since the first step. Such a block is only a bit; the others have an
// entry in a hash table. Knows ids and holds, not block tables. Dispatcher thread only.

#ifndef AULE_CORE_NAMES_H
#define AULE_CORE_NAMES_H

#include "hold.h"

struct name {
    uint64_t since; // the first step that names the block
    int32_t id;     // of the block
    uint32_t count; // mentions; 0: this place of the hash table is free
};

// Blocks that one step names and the next one does not.
struct names_left {
    struct names_left *next; // a list of one batch; batch->left
    size_t count, capacity;
    struct name names[]; // [capacity], the first `count` used; each has a reference
};

struct names {
    struct hold_table *table; // where blocks are referenced
    uint64_t *bits;           // [num_words] one bit an id: the block is named; owned
    uint64_t *uncounted;      // [num_words] named blocks whose first mention is not counted yet;
                              // NULL after names_counted(); owned
    size_t num_words;         // enough for the largest id so far
    struct name *places;      // [capacity] a hash table by id, at most half full; owned
    size_t capacity, count;   // places, a power of two or 0; used ones
};

// Bytes of memory that `names` takes now.
uint64_t names_bytes(const struct names *names);
// Bytes that it would take with room for ids[0 .. count) and `more` further places. `names` may be
// zeroed.
uint64_t names_bytes_for(const struct names *names, const int32_t *ids, size_t count, size_t more);
// Begins with blocks[0 .. count), which are distinct and have their references. The caller then
// calls names_count() for each mention of them, and names_counted() at the end. There are at most
// count + again mentions. False: no memory.
bool names_init(struct names *names, struct hold_table *table, const int32_t *blocks, size_t count,
                size_t again);
bool names_count(struct names *names, int32_t id); // false: the block is not named
void names_counted(struct names *names);
void names_finish(struct names *names); // takes a zeroed one; drops no reference
// Makes room, so that `more` calls of names_add() with ids of ids[0 .. count) cannot fail. False:
// no memory.
bool names_reserve(struct names *names, const int32_t *ids, size_t count, size_t more);

// One mention more, by step `step`. The first mention takes a reference.
void names_add(struct names *names, int32_t id, uint64_t step);
// One mention less. After the last one the block moves to `left` with its reference; there is room.
void names_drop(struct names *names, int32_t id, struct names_left *left);

// The lowest named id that is at least `from`; -1: there is none.
int64_t names_next(const struct names *names, int64_t from);
bool names_has(const struct names *names, int32_t id);
struct name names_get(const struct names *names, int32_t id); // the block is named
// Drops all mentions of the block. The caller gets its reference.
void names_forget(struct names *names, int32_t id);

// An empty one; free() ends it. NULL: no memory.
struct names_left *names_left_create(size_t capacity);
uint64_t names_left_bytes(size_t capacity); // bytes of memory
// Shrinks `left` to its count and returns it, perhaps moved. Frees it and returns NULL if it is
// empty. Without memory to shrink it stays as it is.
struct names_left *names_left_fit(struct names_left *left);

#endif
