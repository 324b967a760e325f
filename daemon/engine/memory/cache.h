// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// cache.h - a cache's memory: chunks of blocks and the table of their addresses.

#ifndef AULE_ENGINE_CACHE_H
#define AULE_ENGINE_CACHE_H

#include "engine/state/maker.h"
#include "engine/vulkan/slab.h"

struct chunk;

struct engine_cache {
    struct engine *engine;
    struct engine_cache_params params; // name: a copy, owned
    uint64_t layer_block_bytes;        // K, V and scales of one block of one layer
    uint64_t layer_bytes;              // one layer of one chunk
    uint32_t chunk_shift;              // log2 of chunk_blocks

    // engine->lock guards these. The maker writes them, the submitter and the caller's thread read
    // them.
    struct chunk **chunks; // [capacity]; NULL = no memory
    uint32_t capacity;
    struct piece table; // u64[capacity][num_layers], what shaders follow; 0 for a chunk that is
                        // absent and in no use
    bool dead;          // engine_cache_destroy() was called

    struct job end;
    struct engine_cache *prev, *next;
};

// For the shader: the address of entry [0][layer] of the table, good for submissions that have
// their number already. 0: the cache has no memory. Any thread.
uint64_t cache_table_address(struct engine_cache *cache, uint32_t layer);
// Where one block of one layer lies; 0: its chunk has no memory. Any thread.
uint64_t cache_block_address(struct engine_cache *cache, uint32_t layer, int32_t block);

// Makes chunk `chunk` at once. One thread, of a cache whose memory nobody else grows: the engine's
// own.
enum status cache_fill(struct engine_cache *cache, uint32_t chunk, struct error *error);

// Ends `cache` now: no thread and no submission uses it.
void cache_free(struct engine_cache *cache);

#endif
