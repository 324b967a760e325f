// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// vulkan_importer.c - a program: another process that imports device memory by a descriptor, with
// Vulkan alone. Knows nothing of aule. It reads and writes the memory by copies on the GPU.
//   vulkan_importer FD ALLOCATED DEDICATED    (FD is inherited)
// It says "ready UUID", then answers each line of its input:
//   put OFFSET FIRST COUNT   writes the floats FIRST, FIRST + 1, ...; says "ok"
//   get OFFSET FIRST COUNT   "ok" if they lie there, else "differs: INDEX VALUE"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vulkan/vulkan.h>

enum { STAGING_BYTES = 1 << 20 };

static VkPhysicalDevice physical;
static VkDevice device;
static VkQueue queue;
static VkCommandPool pool;
static VkBuffer imported, staging;
static float *mapped; // of `staging`

static void need(int ok, const char *what)
{
    if (ok)
        return;
    printf("failed: %s\n", what);
    exit(1);
}
#define TRY(call) need((call) == VK_SUCCESS, #call)

static uint32_t memory_type(uint32_t allowed, VkMemoryPropertyFlags flags)
{
    VkPhysicalDeviceMemoryProperties memory;
    vkGetPhysicalDeviceMemoryProperties(physical, &memory);
    for (uint32_t i = 0; i < memory.memoryTypeCount; i++) {
        if (allowed & 1u << i && (memory.memoryTypes[i].propertyFlags & flags) == flags)
            return i;
    }
    need(0, "a memory type");
    return 0;
}

static VkBuffer make_buffer(uint64_t size, const void *next, VkMemoryRequirements *needs)
{
    VkBuffer buffer;
    const VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .pNext = next,
        .size = size,
        .usage = VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
    };
    TRY(vkCreateBuffer(device, &info, NULL, &buffer));
    vkGetBufferMemoryRequirements(device, buffer, needs);
    return buffer;
}

static void bind(VkBuffer buffer, const void *next, uint64_t size, uint32_t type,
                 VkDeviceMemory *memory)
{
    const VkMemoryAllocateInfo info = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
        .pNext = next,
        .allocationSize = size,
        .memoryTypeIndex = type,
    };
    TRY(vkAllocateMemory(device, &info, NULL, memory));
    TRY(vkBindBufferMemory(device, buffer, *memory, 0));
}

static void open_device(void)
{
    const VkApplicationInfo application = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                           .apiVersion = VK_API_VERSION_1_2};
    const VkInstanceCreateInfo instance_info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                                .pApplicationInfo = &application};
    VkInstance instance;
    uint32_t count = 1;
    TRY(vkCreateInstance(&instance_info, NULL, &instance));
    need(vkEnumeratePhysicalDevices(instance, &count, &physical) >= 0 && count == 1, "a device");
    const float priority = 1;
    const VkDeviceQueueCreateInfo queue_info = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                                .queueCount = 1,
                                                .pQueuePriorities = &priority};
    const char *extension = VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME;
    const VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                     .queueCreateInfoCount = 1,
                                     .pQueueCreateInfos = &queue_info,
                                     .enabledExtensionCount = 1,
                                     .ppEnabledExtensionNames = &extension};
    TRY(vkCreateDevice(physical, &info, NULL, &device));
    vkGetDeviceQueue(device, 0, 0, &queue);
    const VkCommandPoolCreateInfo pool_info = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
    TRY(vkCreateCommandPool(device, &pool_info, NULL, &pool));
}

static void import(int fd, uint64_t allocated, int dedicated)
{
    const VkExternalMemoryBufferCreateInfo external = {
        .sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
        .handleTypes = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
    };
    VkMemoryRequirements needs;
    VkDeviceMemory memory;
    imported = make_buffer(allocated, &external, &needs);
    const VkMemoryDedicatedAllocateInfo alone = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_DEDICATED_ALLOCATE_INFO, .buffer = imported};
    const VkImportMemoryFdInfoKHR info = {
        .sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_FD_INFO_KHR,
        .pNext = dedicated ? &alone : NULL,
        .handleType = VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT,
        .fd = fd,
    };
    bind(imported, &info, allocated,
         memory_type(needs.memoryTypeBits, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT), &memory);
}

static void make_staging(void)
{
    VkMemoryRequirements needs;
    VkDeviceMemory memory;
    staging = make_buffer(STAGING_BYTES, NULL, &needs);
    bind(staging, NULL, needs.size,
         memory_type(needs.memoryTypeBits,
                     VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT),
         &memory);
    TRY(vkMapMemory(device, memory, 0, VK_WHOLE_SIZE, 0, (void **)&mapped));
}

static void copy(VkBuffer from, uint64_t from_offset, VkBuffer to, uint64_t to_offset,
                 uint64_t size)
{
    VkCommandBuffer commands;
    const VkCommandBufferAllocateInfo info = {.sType =
                                                  VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                              .commandPool = pool,
                                              .commandBufferCount = 1};
    const VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    const VkBufferCopy region = {from_offset, to_offset, size};
    const VkMemoryBarrier barrier = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                     .srcAccessMask = VK_ACCESS_TRANSFER_WRITE_BIT,
                                     .dstAccessMask = VK_ACCESS_HOST_READ_BIT};
    const VkSubmitInfo submit = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                 .commandBufferCount = 1,
                                 .pCommandBuffers = &commands};
    TRY(vkAllocateCommandBuffers(device, &info, &commands));
    TRY(vkBeginCommandBuffer(commands, &begin));
    vkCmdCopyBuffer(commands, from, to, 1, &region);
    vkCmdPipelineBarrier(commands, VK_PIPELINE_STAGE_TRANSFER_BIT, VK_PIPELINE_STAGE_HOST_BIT, 0, 1,
                         &barrier, 0, NULL, 0, NULL);
    TRY(vkEndCommandBuffer(commands));
    TRY(vkQueueSubmit(queue, 1, &submit, VK_NULL_HANDLE));
    TRY(vkQueueWaitIdle(queue));
    vkFreeCommandBuffers(device, pool, 1, &commands);
}

static void put(uint64_t offset, float first, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        mapped[i] = first + (float)i;
    copy(staging, 0, imported, offset, count * sizeof(float));
    puts("ok");
}

static void get(uint64_t offset, float first, uint32_t count)
{
    copy(imported, offset, staging, 0, count * sizeof(float));
    for (uint32_t i = 0; i < count; i++) {
        if (mapped[i] == first + (float)i)
            continue;
        printf("differs: %" PRIu32 " %g\n", i, (double)mapped[i]);
        return;
    }
    puts("ok");
}

static void say_ready(void)
{
    VkPhysicalDeviceIDProperties id = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES};
    VkPhysicalDeviceProperties2 properties = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &id};
    vkGetPhysicalDeviceProperties2(physical, &properties);
    printf("ready ");
    for (uint32_t i = 0; i < VK_UUID_SIZE; i++)
        printf("%02x", id.deviceUUID[i]);
    puts("");
}

int main(int argc, char **argv)
{
    char line[128], what[8];
    uint64_t offset;
    uint32_t count;
    float first;
    setvbuf(stdout, NULL, _IOLBF, 0);
    need(argc == 4, "three arguments");
    open_device();
    import(atoi(argv[1]), strtoull(argv[2], NULL, 10), atoi(argv[3]));
    make_staging();
    say_ready();
    while (fgets(line, sizeof line, stdin)) {
        need(sscanf(line, "%7s %" SCNu64 " %f %" SCNu32, what, &offset, &first, &count) == 4 &&
                 count * sizeof(float) <= STAGING_BYTES,
             "a line of put or get");
        if (strcmp(what, "put") == 0)
            put(offset, first, count);
        else
            get(offset, first, count);
    }
    fflush(stdout);
    _exit(0); // the end of the process frees what Vulkan has, as after a crash
}
