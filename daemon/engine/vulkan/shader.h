// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// shader.h - a shader as the build compiled it, and how a pipeline asks for its subgroups. Any
// thread; no state.

#ifndef AULE_ENGINE_SHADER_H
#define AULE_ENGINE_SHADER_H

#include "device.h"

struct shader {
    const char *name;
    const uint32_t *code; // SPIR-V
    size_t size;          // bytes
    uint32_t local_size;  // invocations of a workgroup; the most, if the kernel chooses
    // Needs full subgroups of the device's usual size. Asked for only if the device allows it.
    bool full_subgroups;
};

enum status shader_module(struct device *device, const struct shader *shader, VkShaderModule *out,
                          struct error *error);
// Makes a stage ask for full subgroups of the usual size, in *size, which must live until the
// pipeline is created. If the device does not allow this, the driver decides.
void shader_ask_for_subgroups(const struct adapter *adapter, VkPipelineShaderStageCreateInfo *stage,
                              VkPipelineShaderStageRequiredSubgroupSizeCreateInfo *size);

#endif
