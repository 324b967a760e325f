// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// shader.h - a shader as it was compiled at build time, on its way to a pipeline.

#ifndef AULE_ENGINE_SHADER_H
#define AULE_ENGINE_SHADER_H

#include "device.h"

struct shader {
    const char *name;
    const uint32_t *code; // SPIR-V
    size_t size;          // bytes
    uint32_t local_size;  // invocations a workgroup; of a kernel that chooses: the most
    bool full_subgroups; // all subgroups full, of the adapter's usual size where the device lets us
                         // ask for it
};

enum status shader_module(struct device *device, const struct shader *shader, VkShaderModule *out,
                          struct error *error);
// How a stage asks for full subgroups of the usual size, with *size at its side; what the device
// does not let us ask for is left to it.
void shader_ask_for_subgroups(const struct adapter *adapter, VkPipelineShaderStageCreateInfo *stage,
                              VkPipelineShaderStageRequiredSubgroupSizeCreateInfo *size);

#endif
