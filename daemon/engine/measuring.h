// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// measuring.h - what aule-bench may use below engine.h: the Vulkan device, buffers and command
// buffers for its own shaders. It can also ask how the engine serves a run. Other programs include
// only engine.h. Caller's thread.

#ifndef AULE_ENGINE_MEASURING_H
#define AULE_ENGINE_MEASURING_H

#include "engine.h"
#include "engine/vulkan/transfer.h"
#include "engine/vulkan/vk.h"

// Opens a device as engine_create() does, without an engine. End it with device_finish().
enum status measuring_device_init(struct device *device, const struct engine_params *params,
                                  struct error *error);

// The engine's own objects. Use the transfer on one thread, while no chunk is being made.
struct device *measuring_device(struct engine *engine);
struct transfer *measuring_transfer(struct engine *engine);

// An arena in device memory. It counts as imported, so nothing is staged. *buffer is the arena's.
// The engine does not destroy it: do so when no run uses it.
enum status measuring_arena_create(struct engine *engine, uint64_t size, struct engine_arena **out,
                                   const struct buffer **buffer, struct error *error);
void measuring_arena_destroy(struct engine_arena *arena);           // takes NULL
uint64_t measuring_arena_address(const struct engine_arena *arena); // of any arena; for shaders

// Shader address of a block; 0: its chunk has no memory.
uint64_t measuring_block_address(struct engine_cache *cache, uint32_t layer, int32_t block);

// Name of kernel `index` of the variant in use; NULL: there are no more.
const char *measuring_kernel(const struct engine *engine, uint32_t index);
// Index of the kernel that attends a sequence of `q_len` queries and `kv_len` keys.
uint32_t measuring_kernel_of(const struct engine_run *run, uint64_t q_len, uint64_t kv_len);
// Number of parts that a cascade computes for several sequences together. *kernel: its name. 0:
// none, or no memory to find out.
uint32_t measuring_shared_parts(const struct engine_run *run, const char **kernel);

#endif
