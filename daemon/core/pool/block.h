// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// block.h - one block's counters and the one state that follows from them, and the chunk that it
// lives in. A block does not know which session holds it (hold.h does), only how many do, and
// nothing of batches: what a session's batches name is the session's affair, as long as it holds or
// names the block at all.

#ifndef AULE_CORE_BLOCK_H
#define AULE_CORE_BLOCK_H

#include "core/core.h"
#include "heap.h"

struct cache;
struct prefix_node;

struct block {
    // What each slot that is written touches comes first, to lie in one cache line.
    int32_t id;    // chunk * chunk_blocks + index; what clients call it
    uint32_t mark; // scratch of one batch, publish or release: counts only under its stamp
    uint64_t stamp;
    uint32_t holders;         // sessions that hold it
    uint32_t users;           // sessions that hold it, or have batches or copies that name it
    uint32_t dead_users;      // those of `users` that died
    uint32_t pending;         // accepted runs and copies that write it and are not over
    struct prefix_node *node; // where the prefix index has it; NULL = nowhere
    uint8_t state;            // enum core_block_kind; always what block_settle() last found
    bool sealed;
    bool zeroing;      // in core's list of blocks that the next submission zeroes
    uint64_t last_use; // core's use counter
    uint64_t salt;     // of its last lease; 0 = none since its chunk was zeroed
    uint64_t writer;   // session that leased it; 0 = free or sealed
    uint64_t filled;   // the writer's ticket of the last copy into it, or zeroing of it; 0 = none
    struct heap_node eviction; // in the cache's leaves or inner heap while CORE_CACHED
};

enum {
    BLOCK_AHEAD = 8
}; // places in a list of blocks, or of free ones, that are fetched before they are wanted

enum chunk_state { CHUNK_ABSENT, CHUNK_GROWING, CHUNK_PRESENT };

// Stays in its cache's array when its memory goes, to be grown again under the same number.
struct chunk {
    uint32_t number;
    enum chunk_state state;
    struct block *blocks; // [chunk_blocks] unless ABSENT; owned
    uint8_t *written; // [chunk_blocks, num_layers, block_size / 8]: bit = slot that a run of that
                      // layer writes; owned
    uint32_t *free; // [chunk_blocks], the first num_free: indices of free blocks, the last of which
                    // goes first; owned with `blocks`
    uint32_t num_free;
    struct heap_node usable; // in cache->usable while it has free blocks, lowest chunk first
    struct heap_node spare;  // in cache->absent while ABSENT, in cache->empty while wholly free
};

// The block `id` of a chunk that is present; NULL if there is none.
struct block *block_find(const struct cache *cache, int64_t id);
struct chunk *block_chunk(const struct cache *cache, const struct block *block);
// Its bits of layer `layer` in chunk->written: block_size / 8 bytes.
uint8_t *block_written(const struct cache *cache, const struct block *block, uint32_t layer);

// Brings `state`, the cache's sums, the free stack and the eviction heaps into line with the
// counters, after any of them changed. A block that has become free is unsealed and has no writer.
void block_settle(struct cache *cache, struct block *block);
// Moves a cached block to the other eviction heap, just after its node won its first child or lost
// its last.
void block_resort(struct cache *cache, struct block *block);
// Takes a free block of the lowest chunk for `session`, with nothing written; it becomes LEASED
// with its first hold.
struct block *block_take(struct cache *cache);
void block_untake(struct cache *cache, struct block *block);
void block_touch(struct cache *cache, struct block *block); // it was used now

#endif
