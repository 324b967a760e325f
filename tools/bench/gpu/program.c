// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// program.c - see program.h.

#include "program.h"

enum status program_init(struct program *program, struct device *device,
                         const struct program_params *params, struct error *error)
{
    enum status status = STATUS_OK;
    VkShaderModuleCreateInfo module = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                       .codeSize = params->size,
                                       .pCode = params->code};
    VkPushConstantRange range = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT,
                                 .size = params->push_size};
    VkPipelineLayoutCreateInfo layout = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                         .pushConstantRangeCount = 1,
                                         .pPushConstantRanges = &range};
    VkComputePipelineCreateInfo pipeline = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .pName = "main",
                  .pSpecializationInfo = params->constants},
    };
    *program = (struct program){.device = device, .push_size = params->push_size};
    VK_TRY(vkCreateShaderModule(device->handle, &module, NULL, &program->module));
    VK_TRY(vkCreatePipelineLayout(device->handle, &layout, NULL, &program->layout));
    pipeline.stage.module = program->module;
    pipeline.layout = program->layout;
    VK_TRY(vkCreateComputePipelines(device->handle, VK_NULL_HANDLE, 1, &pipeline, NULL,
                                    &program->pipeline));
fail:
    return status;
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
