// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// shader.c - see shader.h. Any thread; no state.

#include "shader.h"

#include "vk.h"

enum status shader_module(struct device *device, const struct shader *shader, VkShaderModule *out,
                          struct error *error)
{
    enum status status = STATUS_OK;
    VkShaderModuleCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
        .codeSize = shader->size,
        .pCode = shader->code,
    };
    VK_TRY(vkCreateShaderModule(device->handle, &info, NULL, out));
    DEVICE_NAME(device, SHADER_MODULE, *out, "%s", shader->name);
fail:
    return status;
}

void shader_ask_for_subgroups(const struct adapter *adapter, VkPipelineShaderStageCreateInfo *stage,
                              VkPipelineShaderStageRequiredSubgroupSizeCreateInfo *size)
{
    const struct subgroups *subgroups = &adapter->subgroups;
    uint32_t usual = adapter->info.subgroup_size;
    if (subgroups->full)
        stage->flags = VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT;
    if (!subgroups->size_control || usual < subgroups->least_size || usual > subgroups->most_size)
        return;
    *size = (VkPipelineShaderStageRequiredSubgroupSizeCreateInfo){
        .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO,
        .requiredSubgroupSize = usual,
    };
    stage->pNext = size;
}
