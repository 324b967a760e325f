// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// mentions.h - which blocks a batch names, and how often. A block table entry or a slot with a
// block is one mention of it; a block with mentions is named, and has one reference in the hold
// table. Only batches that advance have a `mentions`. A block that the next step stops naming keeps
// its reference in a mentions_dropped while older steps have runs. Most blocks have one mention
// since the first step. Such a block is only a bit; the others have an entry in a hash table. Knows
// ids and holds, not block tables. Dispatcher thread only.

#ifndef AULE_CORE_MENTIONS_H
#define AULE_CORE_MENTIONS_H

#include "hold.h"

struct mentioned {
    uint64_t since; // the first step that names the block
    int32_t id;     // of the block
    uint32_t count; // mentions; 0: this place of the hash table is free
};

// Blocks that one step names and the next one does not.
struct mentions_dropped {
    struct mentions_dropped *next; // a list of one batch; batch->dropped
    size_t count, capacity;
    struct mentioned blocks[]; // [capacity], the first `count` used; each has a reference
};

struct mentions {
    struct hold_table *table; // where blocks are referenced
    uint64_t *bits;           // [num_words] one bit an id: the block is named; owned
    uint64_t *uncounted;      // [num_words] named blocks whose first mention is not counted yet;
                              // NULL after mentions_counted(); owned
    size_t num_words;         // enough for the largest id so far
    struct mentioned *places; // [capacity] a hash table by id, at most half full; owned
    size_t capacity, count;   // places, a power of two or 0; used ones
};

// Bytes of memory that `mentions` takes now.
uint64_t mentions_bytes(const struct mentions *mentions);
// Bytes that it would take with room for ids[0 .. count) and `more` further places. `mentions` may
// be zeroed.
uint64_t mentions_bytes_for(const struct mentions *mentions, const int32_t *ids, size_t count,
                            size_t more);
// Begins with blocks[0 .. count), which are distinct and have their references. The caller then
// calls mentions_count() for each mention of them, and mentions_counted() at the end. There are at
// most count + again mentions. False: no memory.
bool mentions_init(struct mentions *mentions, struct hold_table *table, const int32_t *blocks,
                   size_t count, size_t again);
bool mentions_count(struct mentions *mentions, int32_t id); // false: the block is not named
void mentions_counted(struct mentions *mentions);
void mentions_finish(struct mentions *mentions); // takes a zeroed one; drops no reference
// Makes room, so that `more` calls of mentions_add() with ids of ids[0 .. count) cannot fail.
// False: no memory.
bool mentions_reserve(struct mentions *mentions, const int32_t *ids, size_t count, size_t more);

// One mention more, by step `step`. The first mention takes a reference.
void mentions_add(struct mentions *mentions, int32_t id, uint64_t step);
// One mention less. After the last one the block moves to `dropped` with its reference; there is
// room.
void mentions_drop(struct mentions *mentions, int32_t id, struct mentions_dropped *dropped);

// The lowest named id that is at least `from`; -1: there is none.
int64_t mentions_next(const struct mentions *mentions, int64_t from);
bool mentions_has(const struct mentions *mentions, int32_t id);
struct mentioned mentions_get(const struct mentions *mentions, int32_t id); // the block is named
// Drops all mentions of the block. The caller gets its reference.
void mentions_forget(struct mentions *mentions, int32_t id);

// An empty one; free() ends it. NULL: no memory.
struct mentions_dropped *mentions_dropped_create(size_t capacity);
uint64_t mentions_dropped_bytes(size_t capacity); // bytes of memory
// Shrinks `dropped` to its count and returns it, perhaps moved. Frees it and returns NULL if it is
// empty. Without memory to shrink it stays as it is.
struct mentions_dropped *mentions_dropped_fit(struct mentions_dropped *dropped);

#endif
