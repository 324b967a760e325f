// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// buffer.c - chooses a memory type for each use and makes buffers in it. Each buffer is one
// allocation; slab.c divides buffers into small pieces. Any thread; no state except the byte counts
// in struct device.

#include "buffer.h"

#include "vk.h"

#include <string.h>

static const struct {
    VkMemoryPropertyFlags wanted, preferred;
} uses[MEMORY_USES] = {
    // No fallback to other memory: a full device must report it.
    [MEMORY_POOL] = {VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0},
    [MEMORY_METADATA] = {VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
                         VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT},
    [MEMORY_STAGING] = {VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
                        VK_MEMORY_PROPERTY_HOST_CACHED_BIT},
    [MEMORY_EXPORTED] = {VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT, 0},
};

// Types that need a feature of their own, or are slow.
static const VkMemoryPropertyFlags avoided =
    VK_MEMORY_PROPERTY_PROTECTED_BIT | VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT |
    VK_MEMORY_PROPERTY_DEVICE_COHERENT_BIT_AMD | VK_MEMORY_PROPERTY_DEVICE_UNCACHED_BIT_AMD;

// The first type in `allowed` with all of `flags`; UINT32_MAX: none. Drivers list better types
// first.
static uint32_t find_type(const struct device *device, uint32_t allowed,
                          VkMemoryPropertyFlags flags)
{
    const VkPhysicalDeviceMemoryProperties *memory = &device->adapter.memory;
    for (uint32_t i = 0; i < memory->memoryTypeCount; i++) {
        VkMemoryPropertyFlags has = memory->memoryTypes[i].propertyFlags;
        if (allowed & 1u << i && (has & flags) == flags && !(has & avoided))
            return i;
    }
    return UINT32_MAX;
}

static enum status make_buffer(struct device *device, const void *next, uint64_t size,
                               struct buffer *buffer, struct error *error)
{
    enum status status = STATUS_OK;
    const uint32_t families[] = {device->adapter.queue_family, device->adapter.haul_family};
    const bool shared = device->adapter.num_haul_queues > 0;
    VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .pNext = next,
        .size = size,
        .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT |
                 VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT |
                 VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT,
        .sharingMode = shared ? VK_SHARING_MODE_CONCURRENT : VK_SHARING_MODE_EXCLUSIVE,
        .queueFamilyIndexCount = shared ? 2 : 0,
        .pQueueFamilyIndices = families,
    };
    *buffer = (struct buffer){.size = size};
    VK_TRY(vkCreateBuffer(device->handle, &info, NULL, &buffer->handle));
    return STATUS_OK;
fail:
    buffer->handle = VK_NULL_HANDLE;
    return status;
}

static VkResult allocate(struct device *device, const void *next, uint64_t size, uint32_t type,
                         struct buffer *buffer)
{
    VkMemoryAllocateFlagsInfo flags = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
        .pNext = next,
        .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT,
    };
    VkMemoryAllocateInfo info = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
        .pNext = &flags,
        .allocationSize = size,
        .memoryTypeIndex = type,
    };
    VkResult result = vkAllocateMemory(device->handle, &info, NULL, &buffer->memory);
    if (result != VK_SUCCESS) {
        buffer->memory = VK_NULL_HANDLE;
        return result;
    }
    buffer->allocated = size;
    buffer->in_pool_heap =
        device->adapter.memory.memoryTypes[type].heapIndex == device->adapter.pool_heap;
    return result;
}

// Tries the preferred type first. A device may have little of it, such as a small window of device
// memory that the CPU can write.
static enum status allocate_for(struct device *device, enum memory_use use, const void *next,
                                const VkMemoryRequirements *needs, struct buffer *buffer,
                                struct error *error)
{
    VkMemoryPropertyFlags flags[2] = {uses[use].wanted | uses[use].preferred, uses[use].wanted};
    VkResult result = VK_ERROR_OUT_OF_DEVICE_MEMORY;
    for (int i = 0; i < 2 && result != VK_SUCCESS; i++) {
        uint32_t type = find_type(device, needs->memoryTypeBits, flags[i]);
        if (type != UINT32_MAX)
            result = allocate(device, next, needs->size, type, buffer);
    }
    if (result == VK_SUCCESS)
        return STATUS_OK;
    vk_failed(device, "vkAllocateMemory", result, NULL);
    return error_set(error, vk_result_status(result),
                     "the device has no %llu bytes of memory left (%s)",
                     (unsigned long long)needs->size, vk_result_name(result));
}

// Allocates memory that other processes can import. A driver may want one allocation for each
// buffer (dedicated), and an importer must then say the same.
static enum status allocate_exported(struct device *device, struct buffer *buffer,
                                     struct error *error)
{
    VkMemoryDedicatedRequirements wish = {.sType = VK_STRUCTURE_TYPE_MEMORY_DEDICATED_REQUIREMENTS};
    VkMemoryRequirements2 needs = {.sType = VK_STRUCTURE_TYPE_MEMORY_REQUIREMENTS_2,
                                   .pNext = &wish};
    VkBufferMemoryRequirementsInfo2 info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_MEMORY_REQUIREMENTS_INFO_2, .buffer = buffer->handle};
    vkGetBufferMemoryRequirements2(device->handle, &info, &needs);
    buffer->dedicated = wish.requiresDedicatedAllocation || wish.prefersDedicatedAllocation;
    VkMemoryDedicatedAllocateInfo dedicated = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO, .buffer = buffer->handle};
    VkExportMemoryAllocateInfo export = {
        .sType = VK_STRUCTURE_TYPE_EXPORT_MEMORY_ALLOCATE_INFO,
        .pNext = buffer->dedicated ? &dedicated : NULL,
        .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
    };
    return allocate_for(device, MEMORY_EXPORTED, &export, &needs.memoryRequirements, buffer, error);
}

static enum status allocate_own(struct device *device, enum memory_use use, struct buffer *buffer,
                                struct error *error)
{
    if (use == MEMORY_EXPORTED)
        return allocate_exported(device, buffer, error);
    VkMemoryRequirements needs;
    vkGetBufferMemoryRequirements(device->handle, buffer->handle, &needs);
    return allocate_for(device, use, NULL, &needs, buffer, error);
}

static enum status bind(struct device *device, struct buffer *buffer, const char *name,
                        struct error *error)
{
    enum status status = STATUS_OK;
    VK_TRY(vkBindBufferMemory(device->handle, buffer->handle, buffer->memory, 0));
    VkBufferDeviceAddressInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
                                      .buffer = buffer->handle};
    buffer->address = vkGetBufferDeviceAddress(device->handle, &info);
    DEVICE_NAME(device, BUFFER, buffer->handle, "%s", name);
    DEVICE_NAME(device, DEVICE_MEMORY, buffer->memory, "%s", name);
    atomic_fetch_add(&device->buffer_bytes, buffer->imported ? 0 : buffer->size);
    if (buffer->in_pool_heap)
        atomic_fetch_add(&device->pool_bytes, buffer->size);
    return STATUS_OK;
fail:
    buffer->in_pool_heap = false;
    return status;
}

enum status buffer_init(struct device *device, enum memory_use use, uint64_t size, const char *name,
                        struct buffer *buffer, struct error *error)
{
    *buffer = (struct buffer){0};
    if (size > device->adapter.info.max_allocation_bytes)
        return error_set(error, STATUS_LIMIT,
                         "%s: %llu bytes exceed the device's largest allocation of %llu bytes",
                         name, (unsigned long long)size,
                         (unsigned long long)device->adapter.info.max_allocation_bytes);
    const VkExternalMemoryBufferCreateInfo external = {
        .sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
        .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
    };
    enum status status =
        make_buffer(device, use == MEMORY_EXPORTED ? &external : NULL, size, buffer, error);
    if (status != STATUS_OK)
        goto fail;
    status = allocate_own(device, use, buffer, error);
    if (status == STATUS_OK)
        status = bind(device, buffer, name, error);
    if (status != STATUS_OK)
        goto fail;
    if (use != MEMORY_POOL && use != MEMORY_EXPORTED)
        VK_TRY(vkMapMemory(device->handle, buffer->memory, 0, VK_WHOLE_SIZE, 0, &buffer->mapped));
    return STATUS_OK;
fail:
    buffer_finish(device, buffer);
    return status;
}

// Finds a coherent memory type that can import the memory at `base`.
static enum status import_type(struct device *device, void *base, uint64_t size,
                               const struct buffer *buffer, uint32_t *type, struct error *error)
{
    enum status status = STATUS_OK;
    VkMemoryHostPointerPropertiesEXT properties = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT};
    VK_TRY(device->host_pointer_properties(
        device->handle, VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT, base, &properties));
    VkMemoryRequirements needs;
    vkGetBufferMemoryRequirements(device->handle, buffer->handle, &needs);
    *type = find_type(device, properties.memoryTypeBits & needs.memoryTypeBits,
                      uses[MEMORY_STAGING].wanted);
    if (needs.size <= size && *type != UINT32_MAX)
        return STATUS_OK;
    return error_set(error, STATUS_UNSUPPORTED,
                     "no coherent memory type takes this host memory of %llu bytes",
                     (unsigned long long)size);
fail:
    return status;
}

enum status buffer_import(struct device *device, void *base, uint64_t size, const char *name,
                          struct buffer *buffer, struct error *error)
{
    *buffer = (struct buffer){0};
    uint32_t type = 0;
    VkExternalMemoryBufferCreateInfo external = {
        .sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
        .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT,
    };
    VkImportMemoryHostPointerInfoEXT host = {
        .sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
        .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT,
        .pHostPointer = base,
    };
    enum status status = make_buffer(device, &external, size, buffer, error);
    if (status == STATUS_OK)
        status = import_type(device, base, size, buffer, &type, error);
    if (status != STATUS_OK)
        goto fail;
    VK_TRY(allocate(device, &host, size, type, buffer));
    buffer->in_pool_heap = false;
    buffer->imported = true; // the client's memory
    status = bind(device, buffer, name, error);
    if (status == STATUS_OK)
        return STATUS_OK;
fail:
    buffer_finish(device, buffer);
    return status;
}

enum status buffer_export(struct device *device, const struct buffer *buffer, int *fd,
                          struct error *error)
{
    enum status status = STATUS_OK;
    const VkMemoryGetFdInfoKHR info = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_GET_FD_INFO_KHR,
        .memory = buffer->memory,
        .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
    };
    VK_TRY(device->get_memory_fd(device->handle, &info, fd));
    return STATUS_OK;
fail:
    *fd = -1;
    return status;
}

void buffer_finish(struct device *device, struct buffer *buffer)
{
    if (buffer->address && !buffer->imported)
        atomic_fetch_sub(&device->buffer_bytes, buffer->size);
    if (buffer->in_pool_heap && buffer->address)
        atomic_fetch_sub(&device->pool_bytes, buffer->size);
    if (buffer->handle)
        vkDestroyBuffer(device->handle, buffer->handle, NULL);
    if (buffer->memory)
        vkFreeMemory(device->handle, buffer->memory, NULL);
    *buffer = (struct buffer){0};
}
