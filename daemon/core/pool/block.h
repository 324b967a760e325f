// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// block.h - a block's counters, the state that follows from them, and the chunk that it lives in.
// A block knows how many sessions hold it, not which ones (hold.h does). It knows no batches: a
// session whose batches, copies or offers name the block is one user, however many they are.
// Dispatcher thread only.
//
// The files of pool/ are one module: a block's state follows from its holds, its node in the prefix
// index and what keeps that node. A file that changes one of these first completes its change, then
// calls block_settle() for the block, and block_resort() behind that:
//
//     hold.c     holders, users, dead_users: then settle
//     publish.c  sealed: then settle
//     prefix.c   the node, its keeps: then settle; its children, its class: then resort
//
// block_settle() asks prefix_keeps() and calls none of these files back. It moves the block between
// the free stack, its tenant's sums and the queue of victims, and notes the news for what waits. So
// all counts of a cache and a tenant are right between two calls, and only then may a lease, an
// eviction or an audit look at them.

#ifndef AULE_CORE_BLOCK_H
#define AULE_CORE_BLOCK_H

#include "core/core.h"
#include "core/turns/heap.h"
#include "order.h"

#include <stdalign.h>

struct account;
struct cache;
struct prefix_node;

// How a block counts for its tenant. USED: leased, held, quarantined or pinned. CACHED: it may be
// evicted.
enum block_charge { CHARGE_NONE, CHARGE_USED, CHARGE_CACHED };

struct block {
    // Two cache lines. Holding, releasing and evicting it, and reading it, need the first one only.
    alignas(64) int32_t id;   // chunk number * chunk_blocks + index; clients use this id
    uint32_t holders;         // sessions that hold it
    uint32_t users;           // sessions that hold it, or whose batches, copies or offers name it
    uint32_t dead_users;      // of `users`, those that died
    uint32_t pending;         // accepted runs and copies that write it and are not over
    uint8_t state;            // enum core_block_kind, as block_settle() last computed it
    uint8_t charge;           // enum block_charge, likewise
    bool preferred;           // while CHARGE_CACHED: it is in the preferred class
    bool sealed;              // its contents never change again until it is free
    struct prefix_node *node; // its node in the prefix index; NULL = not published
    struct account *account;  // that it is charged to; NULL = free
    // In account->victims while CHARGE_CACHED. Its key always holds the last use; so the block
    // is touched only while it is in no queue.
    struct order_node eviction;

    uint64_t stamp;          // the check that set `mark`, from ledger->last_stamp
    uint32_t mark;           // scratch of one check; valid only while `stamp` is that check's
    bool zeroing;            // in pool->zero_blocks: it is zeroed before the next run
    uint16_t written_layers; // layers in which all its slots are written
    uint64_t salt;           // id of its last lease's salt; 0 = not leased since it was zeroed;
                             // SALT_MIXED = it may have what several salts have written
    uint64_t writer;         // session that leased it; 0 = free, sealed or offered (offer.h)
    uint64_t filled;         // ticket of the last copy into it, or zeroing of it; 0 = none
    uint64_t zeroed; // the last submission that zeroes it, of pool->zeroes_submitted; 0 = none
    uint32_t offers; // offers with a giver that name it: nobody may write it (offer.h)
};
_Static_assert(sizeof(struct block) == 128, "two cache lines");

// No id of a salt.
#define SALT_MIXED UINT64_MAX

// Loops over blocks prefetch the one that is this many places ahead.
enum { BLOCK_AHEAD = 8 };

enum chunk_state { CHUNK_ABSENT, CHUNK_GROWING, CHUNK_PRESENT };

// The struct stays in cache->chunks when its memory goes, and may grow again under its number.
struct chunk {
    // What each change of a block's state touches.
    alignas(64) uint32_t number; // its place in cache->chunks
    enum chunk_state state;
    uint32_t num_free, num_used; // blocks that are free; blocks that are CHARGE_USED
    uint32_t num_cached;         // blocks that are CHARGE_CACHED
    uint32_t num_preferred;      // of these, blocks of the preferred class
    uint64_t last_use;           // of the block that was cached last
    struct account *owner;       // that block's account; NULL = that account has ended
    struct order_node idle;      // in owner->idle while it has cached blocks and none is used

    // NULL while ABSENT. The other four lie behind the blocks, in the same object of block_stock
    // and in this order. `whole` and `free` come first, so that freeing a block of a full chunk
    // touches one page of both.
    struct block *blocks; // [chunk_blocks]; owned
    // [chunk_blocks / 8, rounded up]: a bit is set if the block is whole: all its slots are written
    // in all layers.
    uint8_t *whole;
    uint32_t *free; // [chunk_blocks] a stack of free blocks' indices
    // [chunk_blocks, num_layers, block_size / 8]: a bit is set if an accepted run of that layer
    // writes the slot.
    uint8_t *written;
    // [chunk_blocks, block_size / 8]: a bit is set if a live batch writes the slot and has not run
    // yet.
    uint8_t *reserved;
    bool ahead; // while GROWING: no lease needed it when it began
};

// `id` may be any number. NULL: no present chunk has this block.
struct block *block_find(const struct cache *cache, int64_t id);
// Prefetching in steps, each of which reads what the one before has prefetched. The first one is
// that of the block itself. `place`: its chunk, and its neighbours in the order of eviction.
// `idle`: the neighbours of its chunk. `freeing`: also what it takes to free and to lease it.
void block_fetch_place(const struct cache *cache, const struct block *block);
void block_fetch_idle(const struct cache *cache, const struct block *block);
void block_fetch_freeing(const struct cache *cache, const struct block *block);
struct chunk *block_chunk(const struct cache *cache, const struct block *block);
// The block's bits of one layer in chunk->written: block_size / 8 bytes.
uint8_t *block_written(const struct cache *cache, const struct block *block, uint32_t layer);
uint8_t *block_reserved(const struct cache *cache, const struct block *block); // as many bytes
bool block_is_whole(const struct cache *cache, int32_t id); // of a block in a present chunk
// A copy of what block_is_whole() says of all ids, for another thread; the caller frees it. NULL:
// no memory. block_was_whole() reads it.
uint8_t *block_whole_bits(const struct cache *cache);
bool block_was_whole(const struct cache *cache, const uint8_t *bits, int32_t id);
// Call this after the block's written bits have changed. If a block that batches may name is no
// longer fully written, its tenant's `unwholes` grows.
void block_set_written(struct cache *cache, struct block *block, uint32_t layers);

// Call this after any counter of the block changed, or after it was pinned or unpinned. It computes
// the state, and brings all sums, the free stack and the heaps into line. A block that becomes free
// is unsealed and loses its writer and its account.
void block_settle(struct cache *cache, struct block *block);
// Call this after the node of a block got its first child or lost its last one, or changed its
// class. It changes the place of a cached block in the order of eviction.
void block_resort(struct cache *cache, struct block *block);
// The parts of a victim's or idle chunk's key: first the class, then whether it has descendants in
// the index, then the last use.
#define EVICT_PREFERRED (UINT64_C(1) << 63)
#define EVICT_INNER     (UINT64_C(1) << 62)
static inline uint64_t block_last_use(const struct block *block)
{
    return block->eviction.key & ~(EVICT_PREFERRED | EVICT_INNER);
}
// Its owner ends: another account with cached blocks in it owns the chunk.
void chunk_disown(struct chunk *chunk);
// Takes a block off the free stack of the lowest chunk; there is one. No slot of it counts as
// written. It becomes LEASED with its first hold.
struct block *block_take(struct cache *cache);
void block_untake(struct cache *cache, struct block *block); // puts it back before its first hold
// Lets block_take() give `count` blocks next that no later submission than `zeroed` zeroes. False:
// the lowest chunk has not so many free ones.
bool block_prefer_zeroed(struct cache *cache, uint32_t count, uint64_t zeroed);
// Makes now its last use. The block is not CHARGE_CACHED.
void block_touch(struct cache *cache, struct block *block);

#endif
