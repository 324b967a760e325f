// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// haul_shader.c - see haul_shader.h. A copy engine starts each region anew, which takes it 3 to 4
// us over PCIe: with pieces of 128 KiB, those of one layer of a block, it reaches half of the bus.
// A shader has other pieces under way meanwhile.

#include "haul_shader.h"

#include "engine/state/state.h"
#include "engine/vulkan/shader.h"
#include "engine/vulkan/vk.h"
#include "haul_spv.h"

// 16 workgroups already fill the bus in either direction (H200).
enum { HAUL_WORKGROUPS = 32, LEAST_ROOM = 256 };

enum status haul_shader_init(struct haul_shader *shader, struct engine *engine, struct error *error)
{
    static const struct shader source = {"haul", haul_spv, sizeof haul_spv, AULE_HAUL_LOCAL_SIZE,
                                         false};
    struct device *device = &engine->device;
    _Static_assert(sizeof(struct gpu_haul) <= sizeof(struct gpu_dispatch), "the largest push");
    enum status status = shader_module(device, &source, &shader->module, error);
    if (status != STATUS_OK)
        return status;
    const VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = shader->module,
                  .pName = "main"},
        .layout = engine->pipelines.layout,
    };
    VK_TRY(vkCreateComputePipelines(device->handle, engine->pipelines.cache, 1, &info, NULL,
                                    &shader->pipeline));
    DEVICE_NAME(device, PIPELINE, shader->pipeline, "haul");
fail:
    return status;
}

void haul_shader_finish(struct haul_shader *shader, struct device *device)
{
    // Both take VK_NULL_HANDLE.
    vkDestroyPipeline(device->handle, shader->pipeline, NULL);
    vkDestroyShaderModule(device->handle, shader->module, NULL);
    *shader = (struct haul_shader){.pipeline = VK_NULL_HANDLE};
}

enum status haul_ranges_begin(struct haul_ranges *ranges, struct device *device, uint32_t count,
                              struct error *error)
{
    ranges->count = 0;
    if (count <= ranges->room)
        return STATUS_OK;
    haul_ranges_finish(ranges, device);
    uint64_t room = LEAST_ROOM;
    while (room < count)
        room *= 2;
    const enum status status = buffer_init(device, MEMORY_METADATA, room * sizeof *ranges->list,
                                           "ranges of a haul", &ranges->buffer, error);
    if (status != STATUS_OK)
        return status;
    ranges->list = ranges->buffer.mapped;
    ranges->room = (uint32_t)room;
    return STATUS_OK;
}

void haul_ranges_finish(struct haul_ranges *ranges, struct device *device)
{
    buffer_finish(device, &ranges->buffer);
    *ranges = (struct haul_ranges){.list = NULL};
}

void haul_shader_record(const struct haul_shader *shader, const struct engine *engine,
                        VkCommandBuffer commands, const struct haul_ranges *ranges, uint64_t bytes)
{
    const uint64_t num_tiles = (bytes + AULE_HAUL_TILE - 1) / AULE_HAUL_TILE,
                   all = num_tiles * ranges->count;
    const struct gpu_haul push = {.ranges = ranges->buffer.address,
                                  .num_ranges = ranges->count,
                                  .num_tiles = (uint32_t)num_tiles};
    if (!all)
        return;
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, shader->pipeline);
    vkCmdPushConstants(commands, engine->pipelines.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                       sizeof push, &push);
    vkCmdDispatch(commands, all < HAUL_WORKGROUPS ? (uint32_t)all : HAUL_WORKGROUPS, 1, 1);
}
