// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// haul_shader.h - the shader that copies the ranges of a haul (shaders/haul.comp), and the lists of
// ranges that it reads. Knows addresses, no blocks. The lists belong to the thread of a stream.

#ifndef AULE_ENGINE_HAUL_SHADER_H
#define AULE_ENGINE_HAUL_SHADER_H

#include "engine/vulkan/buffer.h"
#include "shaders/layout.h"

struct engine;

struct haul_shader {
    VkShaderModule module;
    VkPipeline pipeline;
};

// A list in memory that both sides reach. The GPU may read it until the haul has ended.
struct haul_ranges {
    struct buffer buffer;
    struct gpu_range *list; // [room]
    uint32_t room, count;
};

// Call after pipelines_init().
enum status haul_shader_init(struct haul_shader *shader, struct engine *engine,
                             struct error *error);
void haul_shader_finish(struct haul_shader *shader, struct device *device); // takes a zeroed one

// Empties the list and makes room for `count` ranges.
enum status haul_ranges_begin(struct haul_ranges *ranges, struct device *device, uint32_t count,
                              struct error *error);
void haul_ranges_finish(struct haul_ranges *ranges, struct device *device); // takes a zeroed one

// Records the copies of all ranges, of `bytes` bytes each.
void haul_shader_record(const struct haul_shader *shader, const struct engine *engine,
                        VkCommandBuffer commands, const struct haul_ranges *ranges, uint64_t bytes);

#endif
