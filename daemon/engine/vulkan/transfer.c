// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// transfer.c - records one command buffer, submits it and waits for it. The maker uses it for new
// chunks, the caller's thread for engine_block_read() and engine_block_write(), any thread for an
// exported arena; a lock keeps them apart.

#include "transfer.h"

#include "vk.h"

static enum status make_objects(struct transfer *transfer, struct error *error)
{
    struct device *device = transfer->device;
    enum status status = STATUS_OK;
    VkCommandPoolCreateInfo pool = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
        .flags = VK_COMMAND_POOL_CREATE_TRANSIENT_BIT,
        .queueFamilyIndex = device->adapter.queue_family,
    };
    VK_TRY(vkCreateCommandPool(device->handle, &pool, NULL, &transfer->pool));
    VkCommandBufferAllocateInfo buffer = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
        .commandPool = transfer->pool,
        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
        .commandBufferCount = 1,
    };
    VK_TRY(vkAllocateCommandBuffers(device->handle, &buffer, &transfer->commands));
    VkFenceCreateInfo fence = {.sType = VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
    VK_TRY(vkCreateFence(device->handle, &fence, NULL, &transfer->fence));
    DEVICE_NAME(device, COMMAND_POOL, transfer->pool, "transfer");
    DEVICE_NAME(device, COMMAND_BUFFER, transfer->commands, "transfer");
    DEVICE_NAME(device, FENCE, transfer->fence, "transfer");
    return STATUS_OK;
fail:
    return status;
}

enum status transfer_init(struct transfer *transfer, struct device *device, struct error *error)
{
    *transfer = (struct transfer){.device = device};
    if (pthread_mutex_init(&transfer->lock, NULL) != 0)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a lock");
    transfer->lock_made = true;
    enum status status = make_objects(transfer, error);
    if (status != STATUS_OK)
        transfer_finish(transfer);
    return status;
}

void transfer_finish(struct transfer *transfer)
{
    struct device *device = transfer->device;
    if (transfer->fence)
        vkDestroyFence(device->handle, transfer->fence, NULL);
    if (transfer->pool)
        vkDestroyCommandPool(device->handle, transfer->pool, NULL); // also frees its command buffer
    if (transfer->lock_made)
        pthread_mutex_destroy(&transfer->lock);
    *transfer = (struct transfer){0};
}

// Orders all commands before it in the queue before all commands after it.
static void full_barrier(VkCommandBuffer commands)
{
    VkMemoryBarrier barrier = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
        .srcAccessMask = VK_ACCESS_MEMORY_WRITE_BIT,
        .dstAccessMask = VK_ACCESS_MEMORY_READ_BIT | VK_ACCESS_MEMORY_WRITE_BIT,
    };
    VkPipelineStageFlags all = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    vkCmdPipelineBarrier(commands, all, all | VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &barrier, 0, NULL,
                         0, NULL);
}

enum status transfer_begin(struct transfer *transfer, struct error *error)
{
    struct device *device = transfer->device;
    enum status status = STATUS_OK;
    pthread_mutex_lock(&transfer->lock);
    VK_TRY(vkResetCommandPool(device->handle, transfer->pool, 0));
    VkCommandBufferBeginInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
        .flags = VK_COMMAND_BUFFER_USAGE_ONE_TIME_SUBMIT_BIT,
    };
    VK_TRY(vkBeginCommandBuffer(transfer->commands, &info));
    full_barrier(transfer->commands);
    return STATUS_OK;
fail:
    pthread_mutex_unlock(&transfer->lock);
    return status;
}

static uint64_t limit_of(const struct transfer *transfer)
{
    const uint64_t watchdog_ns = transfer->device->watchdog_ns, limit_ns = transfer->limit_ns;
    return limit_ns && limit_ns < watchdog_ns ? limit_ns : watchdog_ns;
}

static VkResult wait_for_fence(const struct device *device, const void *fence, uint64_t timeout_ns)
{
    return vkWaitForFences(device->handle, 1, fence, VK_TRUE, timeout_ns);
}

// Submissions that are earlier in the queue take time of their own. So the deadline begins anew
// whenever one of them has ended.
static VkResult watch_fence(struct transfer *transfer)
{
    struct device *device = transfer->device;
    VkResult result = VK_TIMEOUT;
    unsigned long long before, passed = atomic_load(&device->num_passed);
    do {
        before = passed;
        result = device_watch(device, limit_of(transfer), wait_for_fence, &transfer->fence);
        passed = atomic_load(&device->num_passed);
    } while (result == VK_TIMEOUT && passed != before);
    return result;
}

static enum status wait(struct transfer *transfer, struct error *error)
{
    struct device *device = transfer->device;
    enum status status = STATUS_OK;
    VkResult result = watch_fence(transfer);
    if (result == VK_TIMEOUT) {
        const unsigned long long ms = limit_of(transfer) / 1000000;
        atomic_store(&device->hung, true);
        device_lose(device, "a transfer did not end in %llu ms", ms);
        return error_set(error, STATUS_DEVICE_LOST, "a transfer did not end in %llu ms", ms);
    }
    if (result != VK_SUCCESS)
        return vk_failed(device, "vkWaitForFences", result, error);
    transfer->pending = false;
    VK_TRY(vkResetFences(device->handle, 1, &transfer->fence));
fail:
    return status;
}

enum status transfer_end(struct transfer *transfer, struct error *error)
{
    struct device *device = transfer->device;
    enum status status = STATUS_OK;
    full_barrier(transfer->commands);
    VK_TRY(vkEndCommandBuffer(transfer->commands));
    VK_TRY(device_submit(device, STREAM_RUNS, transfer->commands, 0, transfer->fence));
    transfer->pending = true;
    status = wait(transfer, error);
fail:
    transfer->limit_ns = 0;
    pthread_mutex_unlock(&transfer->lock);
    return status;
}

bool transfer_at_rest(struct transfer *transfer, uint64_t timeout_ns)
{
    return !transfer->pending || vkWaitForFences(transfer->device->handle, 1, &transfer->fence,
                                                 VK_TRUE, timeout_ns) == VK_SUCCESS;
}

enum status transfer_zero(struct transfer *transfer, const struct buffer *buffer,
                          struct error *error)
{
    enum status status = transfer_begin(transfer, error);
    if (status != STATUS_OK)
        return status;
    vkCmdFillBuffer(transfer->commands, buffer->handle, 0, VK_WHOLE_SIZE, 0);
    return transfer_end(transfer, error);
}
