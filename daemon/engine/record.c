// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// record.c - the commands of one submission: zeroes, then wave by wave all K/V writes, a barrier, all attention, a barrier.
// Dispatches between two barriers touch nothing in common, so the GPU may overlap them. Decides nothing: the plan stands.
// Submitter; the clocks are read by the completer.

#include "submission.h"

#include "vk.h"

#include <string.h>

// Clocks of a group, counted from 4 * its number.
enum { CLOCK_WRITE_BEGIN, CLOCK_WRITE_END, CLOCK_ATTENTION_BEGIN, CLOCK_ATTENTION_END, CLOCKS };

static uint64_t ranges_offset(const struct submission *s)
{
    uint64_t bytes = s->num_gpu_runs * sizeof *s->gpu_runs;
    return (bytes + 15) & ~UINT64_C(15);
}

static uint64_t floats_offset(const struct submission *s)
{
    uint64_t bytes = ranges_offset(s) + s->num_ranges * sizeof *s->ranges;
    return (bytes + 15) & ~UINT64_C(15);
}

static void upload(struct submission *s)
{
    char *to = s->slot->piece.mapped;
    uint64_t floats = s->slot->piece.address + floats_offset(s);
    for (uint32_t i = 0; i < s->num_gpu_runs; i++) { // so far offsets among the floats
        s->gpu_runs[i].slopes += floats;
        s->gpu_runs[i].sinks += floats;
    }
    memcpy(to, s->gpu_runs, s->num_gpu_runs * sizeof *s->gpu_runs);
    memcpy(to + ranges_offset(s), s->ranges, s->num_ranges * sizeof *s->ranges);
    memcpy(to + floats_offset(s), s->floats, s->num_floats * sizeof *s->floats);
}

static void barrier(VkCommandBuffer commands, VkPipelineStageFlags from, VkAccessFlags written, VkPipelineStageFlags to,
                    VkAccessFlags used)
{
    VkMemoryBarrier memory = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
        .srcAccessMask = written,
        .dstAccessMask = used,
    };
    vkCmdPipelineBarrier(commands, from, to, 0, 1, &memory, 0, NULL, 0, NULL);
}

static void shader_barrier(VkCommandBuffer commands)
{
    barrier(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
            VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
}

// Earlier submissions, new chunks and written blocks come before.
static void opening_barrier(VkCommandBuffer commands)
{
    barrier(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
            VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
            VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
}

// What the shaders wrote into arenas is for the CPU to read.
static void closing_barrier(VkCommandBuffer commands)
{
    barrier(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT, VK_PIPELINE_STAGE_HOST_BIT,
            VK_ACCESS_HOST_READ_BIT);
}

static void clock_tick(const struct submission *s, uint32_t group, uint32_t clock)
{
    if (!s->slot->queries)
        return;
    bool begin = clock == CLOCK_WRITE_BEGIN || clock == CLOCK_ATTENTION_BEGIN;
    vkCmdWriteTimestamp(s->slot->commands,
                        begin ? VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT : VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT,
                        s->slot->queries, group * CLOCKS + clock);
}

static void push(const struct submission *s, const void *constants, uint32_t size)
{
    vkCmdPushConstants(s->slot->commands, s->engine->pipelines.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, size, constants);
}

// `count` workgroups (times `x`) along y, folded into z where the device's grid ends.
static void dispatch(const struct submission *s, VkPipeline pipeline, const struct group *group, uint32_t num_runs,
                     uint32_t x, uint32_t count)
{
    uint32_t most = s->engine->device.adapter.max_groups[1];
    uint32_t y = count < most ? count : most, z = (count + y - 1) / y;
    struct gpu_dispatch constants = {
        .runs = s->slot->piece.address + group->first * sizeof *s->gpu_runs,
        .num_runs = num_runs,
        .num_items = count,
        .items_y = y,
    };
    vkCmdBindPipeline(s->slot->commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    push(s, &constants, sizeof constants);
    vkCmdDispatch(s->slot->commands, x, y, z);
}

static enum status record_zeroes(const struct submission *s, struct error *error)
{
    VkPipeline pipeline = VK_NULL_HANDLE;
    if (s->num_ranges == 0)
        return STATUS_OK;
    enum status status = pipeline_get(&s->engine->pipelines, PIPELINE_ZERO, NULL, &pipeline, error);
    if (status != STATUS_OK)
        return status;
    vkCmdBindPipeline(s->slot->commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    uint32_t most = s->engine->device.adapter.max_groups[0];
    for (uint32_t first = 0, count; first < s->num_ranges; first += count) {
        count = s->num_ranges - first < most ? s->num_ranges - first : most;
        struct gpu_zero constants = {
            .ranges = s->slot->piece.address + ranges_offset(s) + first * sizeof *s->ranges,
            .num_ranges = count,
        };
        push(s, &constants, sizeof constants);
        vkCmdDispatch(s->slot->commands, count, 1, 1);
    }
    shader_barrier(s->slot->commands);
    return STATUS_OK;
}

static bool record_write(const struct submission *s, uint32_t number)
{
    const struct group *group = &s->groups[number];
    if (!group->write)
        return false;
    clock_tick(s, number, CLOCK_WRITE_BEGIN);
    dispatch(s, group->write, group, group->num_writers, 1, group->num_tokens);
    clock_tick(s, number, CLOCK_WRITE_END);
    return true;
}

static void record_attention(const struct submission *s, uint32_t number)
{
    const struct group *group = &s->groups[number];
    clock_tick(s, number, CLOCK_ATTENTION_BEGIN);
    dispatch(s, group->attention, group, group->num_runs, group->geometry.spec[AULE_SPEC_NUM_KV_HEADS],
             group->num_items);
    clock_tick(s, number, CLOCK_ATTENTION_END);
}

static void record_wave(const struct submission *s, uint32_t wave)
{
    uint32_t first = s->wave_groups[wave], end = s->wave_groups[wave + 1];
    bool wrote = false;
    if (first == end)
        return;
    if (first > 0)
        shader_barrier(s->slot->commands);
    for (uint32_t i = first; i < end; i++)
        wrote |= record_write(s, i);
    if (wrote)
        shader_barrier(s->slot->commands);
    for (uint32_t i = first; i < end; i++)
        record_attention(s, i);
}

enum status record(struct submission *s, struct error *error)
{
    struct device *device = &s->engine->device;
    struct slot *slot = s->slot;
    uint64_t size = floats_offset(s) + s->num_floats * sizeof *s->floats;
    enum status status = slot_reserve(s->engine, slot, size, s->num_groups * CLOCKS, error);
    if (status != STATUS_OK)
        return status;
    upload(s);
    VK_TRY(vkResetCommandPool(device->handle, slot->pool, 0));
    VkCommandBufferBeginInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
        .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT,
    };
    VK_TRY(vkBeginCommandBuffer(slot->commands, &info));
    if (slot->queries && s->num_groups)
        vkCmdResetQueryPool(slot->commands, slot->queries, 0, s->num_groups * CLOCKS);
    opening_barrier(slot->commands);
    status = record_zeroes(s, error);
    if (status != STATUS_OK)
        goto fail;
    for (uint32_t wave = 0; wave < s->num_waves; wave++)
        record_wave(s, wave);
    closing_barrier(slot->commands);
    VK_TRY(vkEndCommandBuffer(slot->commands));
fail:
    return status;
}

// Nanoseconds between two clocks of a group; 0 if the device does not say.
static uint64_t elapsed(const struct submission *s, uint32_t query)
{
    const struct device *device = &s->engine->device;
    uint64_t ticks[2];
    if (vkGetQueryPoolResults(device->handle, s->slot->queries, query, 2, sizeof ticks, ticks, sizeof *ticks,
                              VK_QUERY_RESULT_64_BIT) != VK_SUCCESS)
        return 0;
    uint64_t passed = ticks[1] - ticks[0];
    if (device->adapter.timestamp_bits < 64) // the counter wraps at its width
        passed &= (UINT64_C(1) << device->adapter.timestamp_bits) - 1;
    return (uint64_t)((double)passed * device->adapter.timestamp_ns);
}

void record_clocks(struct submission *s)
{
    for (uint32_t i = 0; s->slot->queries && i < s->num_groups; i++) {
        s->groups[i].gpu_ns = elapsed(s, i * CLOCKS + CLOCK_ATTENTION_BEGIN);
        if (s->groups[i].write)
            s->groups[i].gpu_ns += elapsed(s, i * CLOCKS + CLOCK_WRITE_BEGIN);
    }
    for (uint32_t i = 0; i < s->num_runs; i++)
        if (s->planned[i].group != NO_GROUP)
            s->results[i].gpu_ns = s->groups[s->planned[i].group].gpu_ns;
}
