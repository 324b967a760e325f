// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// sharing_model.h - a naive model of what several tenants share in two caches: quotas, pins,
// classes, floors, caps and the order of eviction. It is arrays and linear searches. It predicts
// each eviction from the use counters that the test notes after each step. A suite holds one.

#ifndef AULE_TESTS_SHARING_MODEL_H
#define AULE_TESTS_SHARING_MODEL_H

#include "core/core.h"

enum {
    TENANTS = 3,
    SESSIONS = 6, // session s is of tenant s % TENANTS
    CACHES = 2,
    CHUNK = 4,
    CHUNKS = 32, // block ids of a cache, in chunks
    IDS = CHUNK * CHUNKS,
    POOL = 64, // blocks
    DEPTH = 4,
    NONE = -1,
};

struct block_model {
    bool published, sealed;
    int tenant;        // NONE = free
    uint32_t key, seq; // of its node; order of creation
    int keep;          // of the prefix that ends with it
    uint32_t holds[SESSIONS];
    uint64_t last_use;
};

struct chunk_model {
    bool present;
    uint64_t last_use; // of the block that was cached last
    int owner;         // its tenant
};

struct tenant_model {
    struct core_limits limits;
    uint64_t id, evicted;
};

extern struct model {
    struct block_model blocks[CACHES][IDS];
    struct chunk_model chunks[CACHES][CHUNKS];
    struct tenant_model tenants[TENANTS];
    uint64_t num_evicted, num_moved; // blocks; chunks
} model;

// A key has four bits for each block of its chain, the first one in the lowest: never 0.
uint32_t key_depth(uint32_t key);
uint32_t key_cut(uint32_t key, uint32_t depth);

// The tenant's published block of this key; NONE: there is none.
int model_find(int cache, int tenant, uint32_t key);
bool model_is_held(const struct block_model *block);
bool model_is_pinned(int cache, const struct block_model *block);
bool model_may_go(int cache, const struct block_model *block);  // it may be evicted
bool model_is_used(int cache, const struct block_model *block); // it counts towards `blocks`
// The tenant's blocks that `is` says; cache NONE: in both caches.
uint64_t model_count(int tenant, int cache, bool (*is)(int, const struct block_model *));
uint64_t model_distinct(int s); // blocks that session s holds

void model_trim(void); // evicts what exceeds the tenants' caps
// Evicts and grows for a lease of `count` blocks by the tenant `asking`. False: there is no room.
bool model_make_room(int cache, uint32_t count, int asking);

#endif
