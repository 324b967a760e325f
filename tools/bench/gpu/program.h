// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// program.h - a compute shader of the bench that gets all its inputs as push constants. It uses the
// engine's parts below engine.h.

#ifndef AULE_BENCH_PROGRAM_H
#define AULE_BENCH_PROGRAM_H

#include "engine/measuring.h"

struct program {
    struct device *device;
    VkShaderModule module;
    VkPipelineLayout layout;
    VkPipeline pipeline;
    uint32_t push_size;
};

struct program_params {
    const uint32_t *code; // SPIR-V
    size_t size;          // bytes
    uint32_t push_size;
    const VkSpecializationInfo *constants; // NULL: none
};

enum status program_init(struct program *program, struct device *device,
                         const struct program_params *params, struct error *error);
void program_finish(struct program *program); // takes a zeroed or half-made one
void program_dispatch(const struct program *program, VkCommandBuffer commands, const void *push,
                      uint32_t groups);

#endif
