// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// measuring.h - what aule-bench uses of the engine below engine.h: Vulkan's devices, buffers and
// commands for shaders of its own, and a look at what the engine has and how it serves a run.
// Nothing else of the engine's inside is for others.

#ifndef AULE_ENGINE_MEASURING_H
#define AULE_ENGINE_MEASURING_H

#include "engine.h"
#include "engine/vulkan/transfer.h"
#include "engine/vulkan/vk.h"

// Opens a device as engine_create() would, without an engine. device_finish() ends it.
enum status measuring_device_init(struct device *device, const struct engine_params *params,
                                  struct error *error);

// The engine's own; the second is for one thread while nothing grows.
struct device *measuring_device(struct engine *engine);
struct transfer *measuring_transfer(struct engine *engine);

// An arena in the device's own memory, which counts as imported: nothing of it is staged. *buffer
// is the arena's. No run is under way when it is destroyed, which the engine does not do.
enum status measuring_arena_create(struct engine *engine, uint64_t size, struct engine_arena **out,
                                   const struct buffer **buffer, struct error *error);
void measuring_arena_destroy(struct engine_arena *arena);           // takes NULL
uint64_t measuring_arena_address(const struct engine_arena *arena); // of any arena, for shaders

uint64_t measuring_block_address(struct engine_cache *cache, uint32_t layer,
                                 int32_t block); // 0: it has no memory
uint32_t measuring_most_head_dim(void);          // of V

// How an ENGINE_ATTEND is served. Kernel `index` of the variant in use; NULL: there are no more.
const char *measuring_kernel(const struct engine *engine, uint32_t index);
// The index of the one that a sequence of `q_len` queries and `kv_len` keys goes to.
uint32_t measuring_kernel_of(const struct engine_run *run, uint64_t q_len, uint64_t kv_len);
// Parts that are computed once for several sequences, and *kernel that does it; 0: none, or no
// memory to tell.
uint32_t measuring_shared_parts(const struct engine_run *run, const char **kernel);

#endif
