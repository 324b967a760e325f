// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// errand.h - what stores and loads have in common: the session, the memory, the jobs of tiers, and
// the copies on the GPU. Knows not why. Dispatcher thread only.

#ifndef AULE_CORE_ERRAND_H
#define AULE_CORE_ERRAND_H

#include "core/state.h"

// In the order of a store: COPYING, KEEPING; of a load: ASKING, then for each window LEASING,
// LOADING and COPYING.
// ENDING: a load waits for its last copies.
enum errand_stage {
    ERRAND_ASKING,
    ERRAND_LEASING,
    ERRAND_LOADING,
    ERRAND_COPYING,
    ERRAND_KEEPING,
    ERRAND_ENDING
};

enum { ERRAND_NO_SOURCE = UINT8_MAX };

struct errand_block {
    struct stored_chain chain;
    int32_t block;             // on the GPU; a load's is leased; -1 = none yet
    uint8_t source;            // a load's: index of the tier; ERRAND_NO_SOURCE = not known yet
    uint8_t unknown;           // a load's: bits of the tiers that a look-up must ask
    uint8_t *data;             // in the host tier's memory, with a reference; NULL = none
    bool moved;                // a load's: its copy is queued
    enum stored_reason reason; // of its last job
};

struct errand {
    struct errand *prev, *next; // core->tiers.errands
    struct core *core;
    struct core_session *session; // owned
    struct hold_table *table;
    bool loads;
    enum errand_stage stage;
    struct stored_space space;
    struct tier_share share;
    int64_t started_ns, give_up_ns; // core's clock; a lease is not waited for beyond give_up_ns
    uint32_t num_jobs;              // that tiers work on
    bool passed_on;                 // a store's: the further tiers have got it
    uint64_t store_bytes;           // a store's: memory that it has taken, in tiers.store_bytes

    // A load's.
    uint64_t claim;
    uint32_t first;      // its first block's place in the prompt
    uint32_t num_wanted; // of `blocks`: the first ones, which are to come
    uint32_t num_done;   // of these: published, and their copies are queued
    uint32_t num_copied; // of these: their copies are over, and their memory is given back
    // num_done and num_copies just before the copies of the newest window were queued.
    uint32_t last_done, last_copies;
    uint32_t window;           // blocks[num_done .. window) are being loaded
    uint64_t window_bytes;     // at most, but at least one block
    uint64_t ramp_bytes;       // limit of the next window in bytes; doubles with each window up to
                               // window_bytes
    int32_t parent;            // the block before the first one, held; -1 = none
    struct core_prefix prefix; // the whole prompt up to its last block; owned

    enum status *outcomes; // [num_copies]; owned
    uint32_t num_copies;
    uint32_t count;
    struct errand_block blocks[]; // [count]
};

// An errand with the cache open and in the list. NULL: no memory, or there are too many.
struct errand *errand_create(struct core *core, struct cache *cache, struct salt *salt,
                             uint32_t count);
// The load that brings the block with this chain and this place in its prompt. NULL: none does.
struct errand *errand_find_load(const struct core *core, const struct cache *cache,
                                const struct salt *salt, uint32_t place,
                                const struct stored_chain *chain);
// Closes its session, gives its memory back and frees it. No job and no copy is under way.
void errand_end(struct errand *errand);
// Tier `source` of core's list.
struct tier *errand_tier(const struct core *core, uint32_t source);
// Starts a job over the blocks for which `wanted` is true. Those of a STORE, and of a LOAD from a
// tier that does not lend, get memory: a block without is left out. No block: nothing happens.
void errand_start(struct errand *errand, enum tier_kind kind, uint32_t source,
                  bool (*wanted)(const struct errand_block *block, uint32_t source));
// Queues copies of blocks[first .. first + count) between the GPU and their memory, in pieces, so
// that other sessions' runs come between. Each block is copied once at most. Returns how many
// blocks are under way.
uint32_t errand_copy(struct errand *errand, enum copy_way way, uint32_t first, uint32_t count);
// Gives the memory of blocks[first .. first + count) back.
void errand_give_back(struct errand *errand, uint32_t first, uint32_t count);
// Of its first `count` copies some are under way.
bool errand_copies(const struct errand *errand, uint32_t count);
bool errand_copied(const struct errand *errand); // none has failed so far
// A tier's event. Returns the errand whose turn it is; NULL: none.
struct errand *errand_event(struct core *core, const struct tier_event *event);
struct stored_space errand_space(const struct cache *cache, const struct salt *salt);
struct tier_share errand_share(const struct tenant *tenant);

// errand_load.c, errand_store.c: go on as far as possible. True: it has ended, and is freed.
bool load_advance(struct errand *errand);
bool store_advance(struct errand *errand);
void store_begin_all(struct core *core); // stores of blocks that became visible

#endif
