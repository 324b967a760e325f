// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// slot.c - what a submission needs while it is on the GPU: a command buffer, timestamps, metadata,
// scratch memory. There are ENGINE_SLOTS slots. They are reused, and each grows to the largest
// submission so far. Used by the thread that has the slot: the submitter, then the completer.

#include "slot.h"

#include "engine/vulkan/vk.h"

#include <string.h>

static enum status make_commands(struct engine *engine, struct slot *slot, struct error *error)
{
    struct device *device = &engine->device;
    enum status status = STATUS_OK;
    VkCommandPoolCreateInfo pool = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
        .flags = VK_COMMAND_POOL_CREATE_TRANSIENT_BIT,
        .queueFamilyIndex = device->adapter.queue_family,
    };
    VK_TRY(vkCreateCommandPool(device->handle, &pool, NULL, &slot->pool));
    VkCommandBufferAllocateInfo commands = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
        .commandPool = slot->pool,
        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
        .commandBufferCount = 1,
    };
    VK_TRY(vkAllocateCommandBuffers(device->handle, &commands, &slot->commands));
    int number = (int)(slot - engine->slots);
    DEVICE_NAME(device, COMMAND_POOL, slot->pool, "slot %d", number);
    DEVICE_NAME(device, COMMAND_BUFFER, slot->commands, "slot %d", number);
fail:
    return status;
}

static enum status make_queries(struct engine *engine, struct slot *slot, uint32_t count,
                                struct error *error)
{
    struct device *device = &engine->device;
    enum status status = STATUS_OK;
    VkQueryPool fresh = VK_NULL_HANDLE;
    VkQueryPoolCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
        .queryType = VK_QUERY_TYPE_TIMESTAMP,
        .queryCount = count,
    };
    VK_TRY(vkCreateQueryPool(device->handle, &info, NULL, &fresh));
    if (slot->queries)
        vkDestroyQueryPool(device->handle, slot->queries, NULL);
    slot->queries = fresh;
    slot->num_queries = count;
    DEVICE_NAME(device, QUERY_POOL, slot->queries, "slot %d clocks", (int)(slot - engine->slots));
fail:
    return status;
}

enum status slot_init(struct engine *engine, struct slot *slot, struct error *error)
{
    enum status status = make_commands(engine, slot, error);
    if (status == STATUS_OK)
        status = slot_reserve(engine, slot, 4096, 64, error);
    return status;
}

void slot_finish(struct engine *engine, struct slot *slot)
{
    VkDevice handle = engine->device.handle;
    if (slot->queries)
        vkDestroyQueryPool(handle, slot->queries, NULL);
    if (slot->pool)
        vkDestroyCommandPool(handle, slot->pool, NULL); // and its command buffer
    slab_give(&engine->slabs, &slot->piece);
    slab_give(&engine->slabs, &slot->counters);
    buffer_finish(&engine->device, &slot->scratch);
    *slot = (struct slot){0};
}

enum status slot_reserve(struct engine *engine, struct slot *slot, uint64_t size,
                         uint32_t num_queries, struct error *error)
{
    enum status status = STATUS_OK;
    if (size > slot->piece_size) {
        struct piece fresh;
        uint64_t wanted = size + size / 2;
        status = slab_take(&engine->slabs, wanted, &fresh, error);
        if (status != STATUS_OK)
            return status;
        slab_give(&engine->slabs, &slot->piece);
        slot->piece = fresh;
        slot->piece_size = wanted;
    }
    if (num_queries > slot->num_queries && engine->device.adapter.timestamp_bits)
        status = make_queries(engine, slot, num_queries + num_queries / 2, error);
    return status;
}

enum status slot_reserve_counters(struct engine *engine, struct slot *slot, uint64_t count,
                                  struct error *error)
{
    struct piece fresh;
    uint64_t size = count * sizeof(uint32_t), wanted = size + size / 2;
    if (size <= slot->counters_size)
        return STATUS_OK;
    enum status status = slab_take(&engine->slabs, wanted, &fresh, error);
    if (status != STATUS_OK)
        return status;
    memset(fresh.mapped, 0, wanted);
    slab_give(&engine->slabs, &slot->counters);
    slot->counters = fresh;
    slot->counters_size = wanted;
    return STATUS_OK;
}

enum status slot_reserve_scratch(struct engine *engine, struct slot *slot, uint64_t size,
                                 struct error *error)
{
    struct device *device = &engine->device;
    if (size <= slot->scratch.size)
        return STATUS_OK;
    uint64_t doubled = 2 * slot->scratch.size;
    uint64_t wanted = doubled < engine->max_scratch_bytes ? doubled : engine->max_scratch_bytes;
    enum status status = STATUS_NO_MEMORY;
    // First free the old buffer, so that memory need not hold both.
    buffer_finish(device, &slot->scratch);
    if (wanted > size)
        status = buffer_init(device, MEMORY_POOL, wanted, "partial results", &slot->scratch, error);
    // If there is no memory to grow ahead, take just what this submission needs.
    if (status != STATUS_OK && status != STATUS_DEVICE_LOST)
        status = buffer_init(device, MEMORY_POOL, size, "partial results", &slot->scratch, error);
    return status;
}
