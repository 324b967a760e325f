// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// block.h - a block's counters, the state that follows from them, and the chunk that it lives in.
// A block knows how many sessions hold it, not which ones (hold.h does). It knows no batches: a
// session that has batches or copies with the block is one user, however many they are.
// Dispatcher thread only.

#ifndef AULE_CORE_BLOCK_H
#define AULE_CORE_BLOCK_H

#include "core/core.h"
#include "heap.h"

struct cache;
struct prefix_node;

struct block {
    // Checking a slot reads these first fields, so they share a cache line.
    int32_t id;                // chunk number * chunk_blocks + index; clients use this id
    uint32_t mark;             // scratch of one check; valid only while `stamp` is that check's
    uint64_t stamp;            // the check that set `mark`, from ledger->last_stamp
    uint32_t holders;          // sessions that hold it
    uint32_t users;            // sessions that hold it, or have batches or copies that name it
    uint32_t dead_users;       // of `users`, those that died
    uint32_t pending;          // accepted runs and copies that write it and are not over
    struct prefix_node *node;  // its node in the prefix index; NULL = not published
    uint8_t state;             // enum core_block_kind, as block_settle() last computed it
    bool sealed;               // its contents never change again until it is free
    bool zeroing;              // in pool->zero_blocks: it is zeroed before the next run
    uint64_t last_use;         // value of ledger->last_use
    uint64_t salt;             // id of its last lease's salt; 0 = not leased since it was zeroed
    uint64_t writer;           // session that leased it; 0 = free or sealed
    uint64_t filled;           // ticket of the last copy into it, or zeroing of it; 0 = none
    struct heap_node eviction; // in cache->leaves or cache->inner while CORE_CACHED
};

// Loops over blocks prefetch the one that is this many places ahead.
enum { BLOCK_AHEAD = 8 };

enum chunk_state { CHUNK_ABSENT, CHUNK_GROWING, CHUNK_PRESENT };

// The struct stays in cache->chunks when its memory goes, and may grow again under its number.
struct chunk {
    uint32_t number; // its place in cache->chunks
    enum chunk_state state;
    struct block *blocks; // [chunk_blocks] unless ABSENT; owned
    // [chunk_blocks, num_layers, block_size / 8] unless ABSENT: a bit is set if an accepted run of
    // that layer writes the slot; owned.
    uint8_t *written;
    uint32_t *free; // [chunk_blocks] unless ABSENT: a stack of free blocks' indices; owned
    uint32_t num_free;
    struct heap_node usable; // in cache->usable while it has free blocks; lowest chunk first
    struct heap_node spare;  // in cache->absent while ABSENT, in cache->empty while all are free
};

// `id` may be any number. NULL: no present chunk has this block.
struct block *block_find(const struct cache *cache, int64_t id);
struct chunk *block_chunk(const struct cache *cache, const struct block *block);
// The block's bits of one layer in chunk->written: block_size / 8 bytes.
uint8_t *block_written(const struct cache *cache, const struct block *block, uint32_t layer);

// Call this after any counter of the block changed. It computes the state, and brings the cache's
// sums, the free stack and the eviction heaps into line. A block that becomes free is unsealed and
// loses its writer.
void block_settle(struct cache *cache, struct block *block);
// Call this after the node of a block got its first child or lost its last one. It moves a cached
// block to the other eviction heap.
void block_resort(struct cache *cache, struct block *block);
// Takes a block off the free stack of the lowest chunk; there is one. No slot of it counts as
// written. It becomes LEASED with its first hold.
struct block *block_take(struct cache *cache);
void block_untake(struct cache *cache, struct block *block); // puts it back before its first hold
void block_touch(struct cache *cache, struct block *block);  // last_use = now

#endif
