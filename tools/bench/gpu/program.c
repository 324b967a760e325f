// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// program.c - see program.h.

#include "program.h"

enum { MOST_CONSTANTS = 8 };

static enum status make_layout(struct program *program, const struct program_params *params,
                               struct error *error)
{
    struct device *device = program->device;
    enum status status = STATUS_OK;
    VkShaderModuleCreateInfo module = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                       .codeSize = params->size,
                                       .pCode = params->code};
    VkPushConstantRange range = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT,
                                 .size = params->push_size};
    VkPipelineLayoutCreateInfo layout = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                         .pushConstantRangeCount = 1,
                                         .pPushConstantRanges = &range};
    VK_TRY(vkCreateShaderModule(device->handle, &module, NULL, &program->module));
    VK_TRY(vkCreatePipelineLayout(device->handle, &layout, NULL, &program->layout));
fail:
    return status;
}

static enum status make_pipeline(struct program *program, const struct program_params *params,
                                 struct error *error)
{
    struct device *device = program->device;
    enum status status = STATUS_OK;
    VkSpecializationMapEntry entries[MOST_CONSTANTS];
    for (uint32_t i = 0; i < params->num_constants; i++)
        entries[i] =
            (VkSpecializationMapEntry){i, i * (uint32_t)sizeof(uint32_t), sizeof(uint32_t)};
    VkSpecializationInfo constants = {.mapEntryCount = params->num_constants,
                                      .pMapEntries = entries,
                                      .dataSize = params->num_constants * sizeof(uint32_t),
                                      .pData = params->constants};
    VkComputePipelineCreateInfo pipeline = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = program->module,
                  .pName = "main",
                  .pSpecializationInfo = params->num_constants ? &constants : NULL},
        .layout = program->layout,
    };
    VK_TRY(vkCreateComputePipelines(device->handle, VK_NULL_HANDLE, 1, &pipeline, NULL,
                                    &program->pipeline));
fail:
    return status;
}

enum status program_init(struct program *program, struct device *device,
                         const struct program_params *params, struct error *error)
{
    *program = (struct program){.device = device, .push_size = params->push_size};
    if (params->num_constants > MOST_CONSTANTS)
        return error_set(error, STATUS_LIMIT, "%u constants of a shader, more than %d",
                         params->num_constants, MOST_CONSTANTS);
    enum status status = make_layout(program, params, error);
    return status == STATUS_OK ? make_pipeline(program, params, error) : status;
}

void program_finish(struct program *program)
{
    if (!program->device || !program->device->handle)
        return;
    vkDestroyPipeline(program->device->handle, program->pipeline, NULL);
    vkDestroyPipelineLayout(program->device->handle, program->layout, NULL);
    vkDestroyShaderModule(program->device->handle, program->module, NULL);
    *program = (struct program){0};
}

void program_dispatch(const struct program *program, VkCommandBuffer commands, const void *push,
                      uint32_t groups)
{
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, program->pipeline);
    vkCmdPushConstants(commands, program->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                       program->push_size, push);
    vkCmdDispatch(commands, groups, 1, 1);
}
