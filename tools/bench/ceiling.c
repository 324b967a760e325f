// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ceiling.c - see ceiling.h. Uses the engine's parts below engine.h: a device, buffers, commands.

#include "ceiling.h"

#include "buffer.h"
#include "transfer.h"
#include "vk.h"

#include "read_spv.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 11, LOCAL_SIZE = 256, GROUPS = 4224 };

struct push {
    uint64_t from, sum;
    uint32_t pieces, reserved;
};

struct bench {
    struct device device;
    struct transfer transfer;
    struct buffer from, to;
    VkShaderModule module;
    VkPipelineLayout layout;
    VkPipeline pipeline;
    VkQueryPool queries;
    uint32_t groups;
};

static void on_lost(void *owner, const char *why)
{
    (void)owner;
    fprintf(stderr, "aule-bench: the device is lost: %s\n", why);
}

static enum status make_pipeline(struct bench *b, struct error *error)
{
    struct device *device = &b->device;
    enum status status = STATUS_OK;
    VkShaderModuleCreateInfo module = {
        .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO, .codeSize = sizeof read_spv, .pCode = read_spv};
    VkPushConstantRange range = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT, .size = sizeof(struct push)};
    VkPipelineLayoutCreateInfo layout = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                         .pushConstantRangeCount = 1,
                                         .pPushConstantRanges = &range};
    VkQueryPoolCreateInfo queries = {
        .sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO, .queryType = VK_QUERY_TYPE_TIMESTAMP, .queryCount = 2};
    VK_TRY(vkCreateShaderModule(device->handle, &module, NULL, &b->module));
    VK_TRY(vkCreatePipelineLayout(device->handle, &layout, NULL, &b->layout));
    VK_TRY(vkCreateQueryPool(device->handle, &queries, NULL, &b->queries));
    VkComputePipelineCreateInfo pipeline = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = b->module,
                  .pName = "main"},
        .layout = b->layout,
    };
    VK_TRY(vkCreateComputePipelines(device->handle, VK_NULL_HANDLE, 1, &pipeline, NULL, &b->pipeline));
fail:
    return status;
}

static void record_read(struct bench *b)
{
    VkCommandBuffer commands = b->transfer.commands;
    const struct push push = {b->from.address, b->to.address, (uint32_t)(b->from.size / 16), 0};
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, b->pipeline);
    vkCmdPushConstants(commands, b->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof push, &push);
    vkCmdDispatch(commands, b->groups, 1, 1);
}

static void record_copy(struct bench *b)
{
    const VkBufferCopy all = {.size = b->from.size};
    vkCmdCopyBuffer(b->transfer.commands, b->from.handle, b->to.handle, 1, &all);
}

// One round's time; 0 with *error.
static double round_ns(struct bench *b, void (*record)(struct bench *b), struct error *error)
{
    uint64_t ticks[2] = {0};
    if (transfer_begin(&b->transfer, error) != STATUS_OK)
        return 0;
    VkCommandBuffer commands = b->transfer.commands;
    vkCmdResetQueryPool(commands, b->queries, 0, 2);
    vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, b->queries, 0);
    record(b);
    vkCmdWriteTimestamp(commands, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, b->queries, 1);
    if (transfer_end(&b->transfer, error) != STATUS_OK)
        return 0;
    vkGetQueryPoolResults(b->device.handle, b->queries, 0, 2, sizeof ticks, ticks, sizeof *ticks,
                          VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT);
    double ns = (double)(ticks[1] - ticks[0]) * b->device.adapter.timestamp_ns;
    if (!(ns > 0))
        error_set(error, STATUS_UNSUPPORTED, "%s has no clock", b->device.adapter.info.name);
    return ns;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_ns(struct bench *b, void (*record)(struct bench *b), struct error *error)
{
    double times[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        times[i] = round_ns(b, record, error);
        if (!(times[i] > 0))
            return 0;
    }
    qsort(times, ROUNDS, sizeof *times, ascending);
    return times[ROUNDS / 2];
}

static enum status run(struct bench *b, struct ceiling *ceiling, struct error *error)
{
    double read = median_ns(b, record_read, error), copy = read > 0 ? median_ns(b, record_copy, error) : 0;
    if (!(copy > 0))
        return error->status;
    *ceiling = (struct ceiling){
        .read_gb_per_s = (double)b->from.size / read,
        .copy_gb_per_s = 2.0 * (double)b->from.size / copy,
        .bytes = b->from.size,
    };
    return STATUS_OK;
}

static enum status prepare(struct bench *b, const char *device, uint64_t bytes, struct error *error)
{
    const struct engine_params params = {.device = device};
    enum status status = device_init(&b->device, &params, error);
    if (status != STATUS_OK)
        return status;
    b->device.on_lost = on_lost;
    const struct engine_device *info = &b->device.adapter.info;
    bytes = bytes < info->max_allocation_bytes ? bytes : info->max_allocation_bytes;
    bytes = bytes < info->heap_bytes / 4 ? bytes : info->heap_bytes / 4;
    b->groups = info->software ? GROUPS / 66 : GROUPS;
    uint64_t grain = (uint64_t)LOCAL_SIZE * b->groups * 8 * 16;
    bytes = bytes < grain ? grain : bytes / grain * grain;
    status = transfer_init(&b->transfer, &b->device, error);
    if (status == STATUS_OK)
        status = buffer_init(&b->device, MEMORY_POOL, bytes, "read", &b->from, error);
    if (status == STATUS_OK)
        status = buffer_init(&b->device, MEMORY_POOL, bytes, "copied", &b->to, error);
    if (status == STATUS_OK)
        status = transfer_zero(&b->transfer, &b->from, error);
    return status == STATUS_OK ? make_pipeline(b, error) : status;
}

static void finish(struct bench *b)
{
    VkDevice handle = b->device.handle;
    if (handle) {
        vkDestroyPipeline(handle, b->pipeline, NULL);
        vkDestroyPipelineLayout(handle, b->layout, NULL);
        vkDestroyShaderModule(handle, b->module, NULL);
        vkDestroyQueryPool(handle, b->queries, NULL);
        buffer_finish(&b->device, &b->from);
        buffer_finish(&b->device, &b->to);
        transfer_finish(&b->transfer);
    }
    device_finish(&b->device);
}

bool ceiling_measure(const char *device, uint64_t bytes, struct ceiling *ceiling)
{
    struct bench *b = calloc(1, sizeof *b);
    struct error error = {0};
    enum status status =
        b ? prepare(b, device, bytes, &error) : error_set(&error, STATUS_NO_MEMORY, "no host memory for the ceiling");
    if (status == STATUS_OK)
        status = run(b, ceiling, &error);
    if (status != STATUS_OK)
        fprintf(stderr, "aule-bench: the ceiling was not measured: %s\n", error.text);
    if (b)
        finish(b);
    free(b);
    return status == STATUS_OK;
}
