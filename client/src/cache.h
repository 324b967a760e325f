// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// cache.h - what the other files may know about an open cache.

#ifndef AULE_CLIENT_CACHE_H
#define AULE_CLIENT_CACHE_H

#include "handle.h"
#include "life.h"

// What gpu/map.c keeps for a cache.
struct cache_mapping {
    void (*close)(struct cache_mapping *mapping); // waits for CUDA's kernels and unmaps, for good
    void (*end)(struct cache_mapping *mapping);   // frees it; no call uses the cache
};

struct aule_cache {
    struct handle handle; // not opened in an own_cache
    struct life *life;    // a reference, except in an own_cache
    uint64_t id;
    uint32_t block_size; // tokens
    uint32_t num_layers, num_kv_heads, head_dim, head_dim_v;
    bool v_is_k_prefix;
    enum aule_dtype k_dtype, v_dtype;
    enum aule_scale_mode scale_mode;
    _Atomic(struct cache_mapping *) mapping; // owned; NULL: this process has not mapped the cache
};

// Opens a cache and fills *cache, but takes no reference for it. Between life_enter() and
// life_leave().
enum aule_status cache_open_in(struct life *life, const struct aule_cache_params *params,
                               struct aule_cache *cache);

// aule_blocks_lease() and aule_blocks_release(), also on a cache that is closed, or an own_cache.
enum aule_status blocks_lease(struct aule_cache *cache, uint32_t count, int timeout_ms,
                              int32_t *block_ids);
enum aule_status blocks_release(struct aule_cache *cache, uint32_t count, const int32_t *block_ids);

// AULE_LIMIT: `count` block ids do not fit one message, so `what` must go in parts.
enum aule_status cache_check_count(const struct aule_cache *cache, const char *what,
                                   uint64_t count);

#endif
