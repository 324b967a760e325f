// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// device.c - opens the chosen adapter with one compute queue. Knows nothing of caches or
// submissions. The caller's thread opens and closes; names, log lines and submissions come from any
// thread.

#include "device.h"

#include "native.h"
#include "vk.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void swap(uint32_t *a, uint32_t *b)
{
    const uint32_t other = *a;
    *a = *b;
    *b = other;
}

// Takes what native kernels need, or gives it back.
static void take_natives(struct adapter *adapter, bool takes)
{
    struct natives *natives = &adapter->natives;
    natives->taken = takes;
    swap(&adapter->queue_family, &natives->queue_family);
    swap(&adapter->timestamp_bits, &natives->timestamp_bits);
}

static enum status choose(struct device *device, const struct engine_params *params,
                          uint32_t least_shared_memory, bool natives, struct error *error)
{
    struct adapter *list = NULL;
    uint32_t count = 0;
    enum status status = adapter_list(&device->instance, params->force_staging, least_shared_memory,
                                      &list, &count, error);
    if (status != STATUS_OK)
        return status;
    const struct adapter *found = NULL;
    status = adapter_choose(list, count, params->device, &found, error);
    if (status == STATUS_OK)
        device->adapter = *found;
    device->adapter.statistics &= params->statistics;
    if (natives && device->adapter.natives.extension && device->adapter.natives.family)
        take_natives(&device->adapter, true);
    free(list);
    return status;
}

static enum status open_device(struct device *device, struct error *error)
{
    enum status status = STATUS_OK;
    struct features features;
    adapter_features(&device->adapter, &features);
    const char *extensions[8];
    uint32_t count = 0;
    if (device->adapter.info.host_import)
        extensions[count++] = VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME;
    if (device->adapter.info.memory_export)
        extensions[count++] = VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME;
    if (device->adapter.memory_budget)
        extensions[count++] = VK_EXT_MEMORY_BUDGET_EXTENSION_NAME;
    if (device->adapter.subgroups.extension)
        extensions[count++] = VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME;
#ifdef VK_KHR_cooperative_matrix
    if (device->adapter.matrices.extension)
        extensions[count++] = VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME;
#endif
    if (device->adapter.matrices.bfloat_extension)
        extensions[count++] = VK_KHR_SHADER_BFLOAT16_EXTENSION_NAME;
    if (device->adapter.statistics)
        extensions[count++] = VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME;
    if (device->adapter.natives.taken)
        extensions[count++] = VK_NVX_BINARY_IMPORT_EXTENSION_NAME;
    float priority = 1.0f;
    VkDeviceQueueCreateInfo queue = {
        .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
        .queueFamilyIndex = device->adapter.queue_family,
        .queueCount = 1,
        .pQueuePriorities = &priority,
    };
    VkDeviceCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
        .pNext = &features.core,
        .queueCreateInfoCount = 1,
        .pQueueCreateInfos = &queue,
        .enabledExtensionCount = count,
        .ppEnabledExtensionNames = extensions,
    };
    VK_TRY(vkCreateDevice(device->adapter.physical, &info, NULL, &device->handle));
    vkGetDeviceQueue(device->handle, device->adapter.queue_family, 0, &device->queue);
    return STATUS_OK;
fail:
    device->handle = VK_NULL_HANDLE;
    return status;
}

#define LOAD(device, NAME) (PFN_##NAME) vkGetDeviceProcAddr((device)->handle, #NAME)

static void load_native_functions(struct device *device)
{
    device->natives.create_module = LOAD(device, vkCreateCuModuleNVX);
    device->natives.create_function = LOAD(device, vkCreateCuFunctionNVX);
    device->natives.destroy_module = LOAD(device, vkDestroyCuModuleNVX);
    device->natives.destroy_function = LOAD(device, vkDestroyCuFunctionNVX);
    device->natives.launch = LOAD(device, vkCmdCuLaunchKernelNVX);
}

static void load_functions(struct device *device)
{
    if (device->instance.debug_utils)
        device->set_name = (PFN_vkSetDebugUtilsObjectNameEXT)vkGetInstanceProcAddr(
            device->instance.handle, "vkSetDebugUtilsObjectNameEXT");
    if (device->adapter.info.host_import)
        device->host_pointer_properties =
            (PFN_vkGetMemoryHostPointerPropertiesEXT)vkGetDeviceProcAddr(
                device->handle, "vkGetMemoryHostPointerPropertiesEXT");
    if (device->adapter.info.memory_export)
        device->get_memory_fd = LOAD(device, vkGetMemoryFdKHR);
}

// Opens the device. One that cannot run native kernels keeps the queue family that it has without
// them.
static enum status open_for_kernels(struct device *device, struct error *error)
{
    enum status status = open_device(device, error);
    if (status != STATUS_OK || !device->adapter.natives.taken)
        return status;
    load_native_functions(device);
    if (native_probe(device))
        return STATUS_OK;
    vkDestroyDevice(device->handle, NULL);
    take_natives(&device->adapter, false);
    memset(&device->natives, 0, sizeof device->natives);
    return open_device(device, error);
}

enum status device_init(struct device *device, const struct engine_params *params,
                        uint32_t least_shared_memory, bool natives, struct error *error)
{
    device->watchdog_ns = DEVICE_WATCHDOG_NS;
    if (pthread_mutex_init(&device->queue_lock, NULL) != 0)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a lock");
    device->queue_lock_made = true;
    enum status status = instance_init(&device->instance, params, error);
    if (status == STATUS_OK)
        status = choose(device, params, least_shared_memory, natives, error);
    if (status == STATUS_OK)
        status = open_for_kernels(device, error);
    if (status != STATUS_OK) {
        device_finish(device);
        return status;
    }
    load_functions(device);
    DEVICE_NAME(device, DEVICE, device->handle, "aule");
    DEVICE_NAME(device, QUEUE, device->queue, "aule queue");
    return STATUS_OK;
}

void device_finish(struct device *device)
{
    if (device->handle)
        vkDestroyDevice(device->handle, NULL);
    device->handle = VK_NULL_HANDLE;
    instance_finish(&device->instance);
    if (device->queue_lock_made)
        pthread_mutex_destroy(&device->queue_lock);
    device->queue_lock_made = false;
}

void device_lose(struct device *device, const char *format, ...)
{
    char why[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    device_log(device, 0, "device %s is lost: %s", device->adapter.info.name, why);
    if (device->on_lost)
        device->on_lost(device->owner, why);
}

void device_name(struct device *device, VkObjectType type, uint64_t handle, const char *format, ...)
{
    if (!device->set_name || !handle)
        return;
    char name[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    VkDebugUtilsObjectNameInfoEXT info = {
        .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_OBJECT_NAME_INFO_EXT,
        .objectType = type,
        .objectHandle = handle,
        .pObjectName = name,
    };
    device->set_name(device->handle, &info); // a name that cannot be set is no failure
}

VkResult device_submit(struct device *device, VkCommandBuffer commands, VkSemaphore timeline,
                       uint64_t value, VkFence fence)
{
    VkTimelineSemaphoreSubmitInfo values = {
        .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
        .signalSemaphoreValueCount = 1,
        .pSignalSemaphoreValues = &value,
    };
    VkSubmitInfo info = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
        .pNext = timeline ? &values : NULL,
        .commandBufferCount = 1,
        .pCommandBuffers = &commands,
        .signalSemaphoreCount = timeline ? 1 : 0,
        .pSignalSemaphores = &timeline,
    };
    pthread_mutex_lock(&device->queue_lock);
    VkResult result = vkQueueSubmit(device->queue, 1, &info, fence);
    pthread_mutex_unlock(&device->queue_lock);
    return result;
}
