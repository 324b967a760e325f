// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// record.c - records the commands of one submission: zeroes, then for each wave
//
// - all K/V writes and copies, then a barrier,
// - all attention, gathers and merges of a caller's parts, then a barrier,
// - the merges of splits and the second passes, then a barrier.
//
// Dispatches between two barriers touch nothing in common, so the GPU may overlap them. Decides
// nothing: the plan does. Submitter only.

#include "record.h"

#include "clocks.h"
#include "engine/kernels/hopper.h"
#include "engine/memory/slot.h"
#include "engine/plan/encode.h"
#include "engine/plan/plan.h"
#include "engine/state/state.h"
#include "engine/vulkan/vk.h"

#include <stddef.h>

static void barrier(VkCommandBuffer commands, VkPipelineStageFlags from, VkAccessFlags written,
                    VkPipelineStageFlags to, VkAccessFlags used)
{
    VkMemoryBarrier memory = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
        .srcAccessMask = written,
        .dstAccessMask = used,
    };
    vkCmdPipelineBarrier(commands, from, to, 0, 1, &memory, 0, NULL, 0, NULL);
}

// Native kernels are no compute shaders, so a submission that has some orders all stages. Its last
// barrier orders it before later submissions, too.
static void full_barrier(VkCommandBuffer commands)
{
    VkPipelineStageFlags all = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    barrier(commands, all, VK_ACCESS_MEMORY_WRITE_BIT, all | VK_PIPELINE_STAGE_HOST_BIT,
            VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT);
}

static void shader_barrier(const struct submission *s)
{
    if (s->native) {
        full_barrier(s->slot->commands);
        return;
    }
    barrier(s->slot->commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
            VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
            VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
}

// The same, and what was written includes workgroup counts for an indirect dispatch.
static void indirect_barrier(const struct submission *s)
{
    if (s->native) {
        full_barrier(s->slot->commands);
        return;
    }
    barrier(s->slot->commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
            VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_DRAW_INDIRECT_BIT,
            VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT |
                VK_ACCESS_INDIRECT_COMMAND_READ_BIT);
}

// Makes earlier submissions, zeroed chunks and blocks that the CPU wrote visible.
static void opening_barrier(const struct submission *s)
{
    if (s->native) {
        full_barrier(s->slot->commands);
        return;
    }
    barrier(s->slot->commands,
            VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
            VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
            VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
            VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT);
}

// Makes what shaders wrote into arenas visible to the CPU.
static void closing_barrier(const struct submission *s)
{
    if (s->native) {
        full_barrier(s->slot->commands);
        return;
    }
    barrier(s->slot->commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, VK_ACCESS_SHADER_WRITE_BIT,
            VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT);
}

// ---- dispatches ----

static void bind(const struct submission *s, VkPipeline pipeline, const void *constants,
                 uint32_t size)
{
    VkCommandBuffer commands = s->slot->commands;
    vkCmdBindPipeline(commands, VK_PIPELINE_BIND_POINT_COMPUTE, pipeline);
    vkCmdPushConstants(commands, s->engine->pipelines.layout, VK_SHADER_STAGE_COMPUTE_BIT, 0, size,
                       constants);
}

// `count` workgroups along y (times `x`). Beyond the device's limit for y they continue along z.
struct grid {
    uint32_t x, y, z;
};

static struct grid fold(const struct submission *s, uint32_t x, uint32_t count)
{
    uint32_t most = s->engine->device.adapter.max_groups[1];
    uint32_t y = count < most ? count : most;
    return (struct grid){x, y, (count + y - 1) / y};
}

// Entries of each run if all have the same number. 0: the numbers differ, there is one run, or
// there are more than AULE_RUN_WAYS. `field` is that of a run's first entry.
static uint32_t entries_each(const struct gpu_run *runs, uint32_t num_runs, uint32_t count,
                             size_t field)
{
    const uint32_t each = num_runs ? count / num_runs : 0;
    if (num_runs < 2 || num_runs > AULE_RUN_WAYS || each * num_runs != count)
        return 0;
    for (uint32_t i = 1; i < num_runs; i++)
        if (*(const uint32_t *)((const char *)&runs[i] + field) != i * each)
            return 0;
    return each;
}

// Push constants for runs [first_run, first_run + num_runs), which have `count` items together.
static struct gpu_dispatch constants_of(const struct submission *s, uint32_t first_run,
                                        uint32_t num_runs, uint32_t count, size_t field,
                                        const struct grid *grid)
{
    return (struct gpu_dispatch){
        .runs = s->slot->piece.address + first_run * sizeof *s->gpu_runs,
        .num_runs = num_runs,
        .num_items = count,
        .items_y = grid->y,
        .each = entries_each(s->gpu_runs + first_run, num_runs, count, field),
    };
}

static void dispatch(const struct submission *s, VkPipeline pipeline, uint32_t first_run,
                     uint32_t num_runs, uint32_t x, uint32_t count, size_t field)
{
    if (count == 0)
        return;
    struct grid grid = fold(s, x, count);
    struct gpu_dispatch constants = constants_of(s, first_run, num_runs, count, field, &grid);
    bind(s, pipeline, &constants, sizeof constants);
    vkCmdDispatch(s->slot->commands, grid.x, grid.y, grid.z);
}

static struct gpu_dispatch attention_constants(const struct submission *s,
                                               const struct group *group, const struct grid *grid)
{
    const uint32_t num_runs = group->num_runs + plan_num_tails(group);
    const struct gpu_run *runs = s->gpu_runs + group->first;
    struct gpu_dispatch constants = constants_of(s, group->first, num_runs, group->num_items,
                                                 offsetof(struct gpu_run, first_item), grid);
    if (num_runs == 1 || runs[1].first_item == group->num_items)
        constants.items = runs[0].items;
    constants.redo = group->redo ? s->slot->piece.address + group->redo_at : 0;
    return constants;
}

// A thread block of a native kernel takes a whole multiprocessor, until the work is over. So the
// first ones leave some to the shaders of the wave, and others join when the shaders need them no
// more.
static struct hopper_launch native_launch_of(const struct submission *s, const struct group *group,
                                             const struct gpu_dispatch *constants, uint32_t left)
{
    const uint32_t all = s->engine->device.adapter.info.num_multiprocessors;
    const uint32_t most = hopper_blocks(&group->geometry, group->num_items, all);
    const uint32_t first = most < all - left ? most : all - left;
    return (struct hopper_launch){
        .constants = constants,
        .geometry = &group->geometry,
        .extras = s->slot->piece.address + group->native_at,
        .first_blocks = first,
        .later_blocks = most - first,
    };
}

// A native kernel gets what a shader gets as push constants and specialisation constants.
static void launch_native(const struct submission *s, const struct group *group, uint32_t left,
                          bool is_later)
{
    const struct grid none = {0};
    const struct gpu_dispatch constants = attention_constants(s, group, &none);
    struct hopper_launch launch = native_launch_of(s, group, &constants, left);
    launch.is_later = is_later;
    if (!is_later || launch.later_blocks > 0)
        hopper_record(&s->engine->device, s->slot->commands, group->native, &launch);
}

static void dispatch_attention(const struct submission *s, const struct group *group)
{
    if (group->num_items == 0)
        return;
    if (group->helps)
        device_count(&s->engine->device, ENGINE_METRIC_CASCADES, 1);
    struct grid grid = fold(s, group->geometry.spec[AULE_SPEC_NUM_KV_HEADS], group->num_items);
    struct gpu_dispatch constants = attention_constants(s, group, &grid);
    bind(s, group->read, &constants, sizeof constants);
    vkCmdDispatch(s->slot->commands, grid.x, grid.y, grid.z);
}

// Records the second pass over what the first one noted. The notes say how many workgroups it has.
static void dispatch_redo(const struct submission *s, const struct group *group)
{
    uint64_t piece_at;
    VkBuffer buffer = slab_buffer(&s->slot->piece, &piece_at);
    const struct grid none = {0}; // the notes name the items
    struct gpu_dispatch constants = attention_constants(s, group, &none);
    bind(s, group->redo, &constants, sizeof constants);
    vkCmdDispatchIndirect(s->slot->commands, buffer, piece_at + group->redo_at);
}

static void dispatch_merge(const struct submission *s, const struct group *group)
{
    struct grid grid = fold(s, s->runs[group->run].num_heads, group->num_tokens);
    struct gpu_merging constants = {.merge = encode_merge(s, group->run), .items_y = grid.y};
    bind(s, group->read, &constants, sizeof constants);
    vkCmdDispatch(s->slot->commands, grid.x, grid.y, grid.z);
}

// Workgroups for each range: a large block is too much for one.
static uint32_t copy_width(const struct submission *s, uint32_t first, uint32_t count)
{
    const uint64_t bytes_each = 16384; // for one workgroup
    uint64_t largest = 0, most = s->engine->device.adapter.max_groups[1];
    for (uint32_t i = first; i < first + count; i++)
        largest = s->ranges[i].bytes > largest ? s->ranges[i].bytes : largest;
    uint64_t width = (largest + bytes_each - 1) / bytes_each;
    return (uint32_t)(width < 1 ? 1 : width < most ? width : most);
}

static void dispatch_ranges(const struct submission *s, VkPipeline pipeline, uint32_t first,
                            uint32_t count)
{
    uint32_t most = s->engine->device.adapter.max_groups[0], end = first + count;
    for (; first < end; first += count) {
        count = end - first < most ? end - first : most;
        struct gpu_copy constants = {
            .ranges = s->slot->piece.address + s->ranges_at + first * sizeof *s->ranges,
            .num_ranges = count,
        };
        bind(s, pipeline, &constants, sizeof constants);
        vkCmdDispatch(s->slot->commands, count, copy_width(s, first, count), 1);
    }
}

// ---- waves ----

static enum status record_zeroes(const struct submission *s, struct error *error)
{
    VkPipeline pipeline = VK_NULL_HANDLE;
    if (s->num_zero_ranges == 0)
        return STATUS_OK;
    enum status status = pipeline_get(&s->engine->pipelines, PIPELINE_COPY, NULL,
                                      (struct line_name){PIPELINE_WAIT, 0}, &pipeline, error);
    if (status != STATUS_OK)
        return status;
    dispatch_ranges(s, pipeline, 0, s->num_zero_ranges);
    shader_barrier(s);
    return STATUS_OK;
}

static bool record_write(const struct submission *s, const struct group *group)
{
    if (!group->write)
        return false;
    if (group->kind == ENGINE_COPY)
        dispatch_ranges(s, group->write, group->first_range, group->num_ranges);
    else
        dispatch(s, group->write, group->first, group->num_writers, 1, group->num_tokens,
                 offsetof(struct gpu_run, first_token));
    return true;
}

static void record_read(const struct submission *s, const struct group *group)
{
    if (!group->read)
        return;
    if (group->helper) // first, because it takes longer
        record_read(s, &s->groups[group->helper]);
    if (group->kind == ENGINE_MERGE)
        dispatch_merge(s, group);
    else if (group->kind == ENGINE_GATHER)
        dispatch(s, group->read, group->first, group->num_runs, 1, group->num_tokens,
                 offsetof(struct gpu_run, first_token));
    else
        dispatch_attention(s, group);
}

static void record_followup(const struct submission *s, const struct group *group)
{
    if (group->merge)
        dispatch(s, group->merge, group->first_split, group->num_split_runs,
                 group->geometry.spec[AULE_SPEC_NUM_KV_HEADS], group->num_merges,
                 offsetof(struct gpu_run, first_merge));
    if (group->redo)
        dispatch_redo(s, group);
}

// Records the merges and second passes of groups [first, end).
static void record_followups(const struct submission *s, uint32_t first, uint32_t end)
{
    bool merges = false, redoes = false;
    for (uint32_t i = first; i < end; i++) {
        merges |= s->groups[i].merge != VK_NULL_HANDLE;
        redoes |= s->groups[i].redo != VK_NULL_HANDLE;
    }
    if (redoes)
        indirect_barrier(s);
    else if (merges)
        shader_barrier(s);
    for (uint32_t i = first; i < end; i++)
        record_followup(s, &s->groups[i]);
}

// Rows of a tile; 0: the group is recorded with the group that it helps.
static uint32_t rows_of(const struct group *group)
{
    if (group->helps)
        return 0;
    return group->kind == ENGINE_ATTEND ? group->geometry.spec[AULE_SPEC_TILE_ROWS] : 1;
}

// The largest number of rows of a tile that is smaller than `below`.
static uint32_t most_rows(const struct submission *s, uint32_t first, uint32_t end, uint32_t below)
{
    uint32_t most = 0;
    for (uint32_t i = first; i < end; i++) {
        uint32_t rows = rows_of(&s->groups[i]);
        most = rows < below && rows > most ? rows : most;
    }
    return most;
}

// Multiprocessors that native kernels leave to the shaders of groups [first, end) at first: enough
// for all their workgroups, but no more than half.
static uint32_t left_to_shaders(const struct submission *s, uint32_t first, uint32_t end)
{
    const uint32_t most = s->engine->device.adapter.info.num_multiprocessors / 2;
    const uint64_t workgroups_each = 4; // of decode, two warps each
    uint64_t workgroups = 0;
    for (uint32_t i = first; i < end; i++)
        if (s->groups[i].kind == ENGINE_ATTEND && !s->groups[i].is_native)
            workgroups += (uint64_t)s->groups[i].num_items *
                          s->groups[i].geometry.spec[AULE_SPEC_NUM_KV_HEADS];
    const uint64_t wanted = (workgroups + workgroups_each - 1) / workgroups_each;
    return wanted < most ? (uint32_t)wanted : most;
}

static void launch_natives(const struct submission *s, uint32_t first, uint32_t end, bool are_later)
{
    const uint32_t left = left_to_shaders(s, first, end);
    for (uint32_t i = first; i < end; i++)
        if (s->groups[i].is_native && s->groups[i].num_items > 0)
            launch_native(s, &s->groups[i], left, are_later);
}

// Records groups [first, end), then their merges and second passes. Native ones come first, and
// then groups with the most rows of a tile, because each of their workgroups takes longest.
// Workgroups of the other groups fill the multiprocessors that become free while the last long ones
// end.
static void record_together(const struct submission *s, uint32_t first, uint32_t end)
{
    launch_natives(s, first, end, false);
    for (uint32_t rows = UINT32_MAX; (rows = most_rows(s, first, end, rows)) > 0;)
        for (uint32_t i = first; i < end; i++)
            if (rows_of(&s->groups[i]) == rows)
                record_read(s, &s->groups[i]);
    launch_natives(s, first, end, true);
    record_followups(s, first, end);
}

static void record_reads(const struct submission *s, uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++) {
        if (s->groups[i].scratch_anew) {
            record_together(s, first, i);
            shader_barrier(s);
            first = i;
        }
    }
    record_together(s, first, end);
}

static void record_wave(const struct submission *s, uint32_t wave)
{
    uint32_t first = s->wave_groups[wave], end = s->wave_groups[wave + 1];
    bool wrote = false;
    if (first == end)
        return;
    if (first > 0)
        shader_barrier(s);
    clock_begin(s, wave);
    for (uint32_t i = first; i < end; i++)
        wrote |= record_write(s, &s->groups[i]);
    if (wrote)
        shader_barrier(s);
    record_reads(s, first, end);
    clock_end(s, wave);
}

enum status record(struct submission *s, struct error *error)
{
    struct device *device = &s->engine->device;
    struct slot *slot = s->slot;
    enum status status = slot_reserve(s->engine, slot, s->upload_bytes, clocks_count(s), error);
    if (status != STATUS_OK)
        return status;
    encode_upload(s);
    VK_TRY(vkResetCommandPool(device->handle, slot->pool, 0));
    VkCommandBufferBeginInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
        .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT,
    };
    VK_TRY(vkBeginCommandBuffer(slot->commands, &info));
    clocks_estimate(s);
    clocks_begin(s);
    opening_barrier(s);
    status = record_zeroes(s, error);
    if (status != STATUS_OK)
        goto fail;
    for (uint32_t wave = 0; wave < s->num_waves; wave++)
        record_wave(s, wave);
    closing_barrier(s);
    VK_TRY(vkEndCommandBuffer(slot->commands));
fail:
    return status;
}
