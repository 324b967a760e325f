// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// cache.h - a cache's memory: chunks of blocks, and the table of their addresses that shaders read.
// Knows nothing of holds.

#ifndef AULE_ENGINE_CACHE_H
#define AULE_ENGINE_CACHE_H

#include "engine/state/maker.h"
#include "engine/vulkan/slab.h"

struct chunk;

struct engine_cache {
    struct engine *engine;
    struct engine_cache_params params; // name: a copy, owned
    uint64_t layer_block_bytes;        // bytes of K, V and scales of one block in one layer
    uint64_t layer_bytes;              // bytes of one layer of one chunk
    uint32_t chunk_shift;              // log2 of chunk_blocks

    // engine->lock guards these. The maker writes them; the submitter and the caller's thread read
    // them.
    struct chunk **chunks; // [capacity]; NULL = no memory; one that was given back stays until no
                           // submission uses it
    uint32_t capacity;
    struct piece table; // u64[capacity][num_layers], read by shaders; 0: the chunk has no memory,
                        // and no run uses it
    bool dead;          // engine_cache_destroy() was called

    struct job end;
    struct engine_cache *prev, *next;
};

// Shader address of the table's entry for chunk 0 and `layer`. Valid for submissions that already
// have their sequence number. 0: the cache has no memory. Any thread.
uint64_t cache_table_address(struct engine_cache *cache, uint32_t layer);
// Shader address of one block of one layer; 0: its chunk has no memory. Any thread.
uint64_t cache_block_address(struct engine_cache *cache, uint32_t layer, int32_t block);
// The buffer and the offset there of the same block. False: its chunk has no memory.
bool cache_block_place(struct engine_cache *cache, uint32_t layer, int32_t block, VkBuffer *buffer,
                       uint64_t *offset);

// Frees `cache` now. No thread and no submission uses it.
void cache_free(struct engine_cache *cache);

#endif
