// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// device.c - opens the chosen adapter with one compute queue for runs and, for hauls, others.
// Knows nothing of caches or submissions. The caller's thread opens and closes; names, log lines
// and submissions come from any thread.

#include "device.h"

#include "base/clock.h"
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
    swap(&adapter->num_queues, &natives->num_queues);
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
    status = adapter_choose(list, count, params->device, params->require_gpu, &found, error);
    if (status == STATUS_OK)
        device->adapter = *found;
    device->adapter.statistics &= params->statistics;
    if (natives && device->adapter.natives.extension && device->adapter.natives.family)
        take_natives(&device->adapter, true);
    device->haul = params->haul;
    if (params->haul == ENGINE_HAUL_OFF)
        device->adapter.num_haul_queues = 0;
    free(list);
    return status;
}

// ---- queues and streams ----

enum { LANES_OF_A_KIND = 2 }; // each has a queue of its own if the family has enough

static uint32_t at_most(uint32_t count, uint32_t most)
{
    return count < most ? count : most;
}

static uint32_t num_copy_queues(const struct device *device)
{
    return at_most(device->adapter.num_haul_queues, LANES_OF_A_KIND);
}

// Queues that compute, beside that of the runs.
static uint32_t num_shader_queues(const struct device *device)
{
    const bool wanted = device->haul == ENGINE_HAUL_AUTO || device->haul == ENGINE_HAUL_ON;
    return wanted ? at_most(device->adapter.num_queues - 1, LANES_OF_A_KIND) : 0;
}

static void forget_queues(struct device *device)
{
    for (int i = 0; i < NUM_STREAMS; i++)
        device->queues[i].handle = VK_NULL_HANDLE;
}

static void take_queue(struct device *device, uint32_t place, uint32_t family, uint32_t index)
{
    struct device_queue *queue = &device->queues[place];
    queue->family = family;
    vkGetDeviceQueue(device->handle, family, index, &queue->handle);
}

static void take_queues(struct device *device)
{
    const struct adapter *adapter = &device->adapter;
    take_queue(device, STREAM_RUNS, adapter->queue_family, 0);
    for (uint32_t i = 0; i < num_copy_queues(device); i++)
        take_queue(device, STREAM_COPY_1 + i, adapter->haul_family, i);
    for (uint32_t i = 0; i < num_shader_queues(device); i++)
        take_queue(device, STREAM_SHADER_1 + i, adapter->queue_family, 1 + i);
}

static void name_queues(struct device *device)
{
    DEVICE_NAME(device, QUEUE, device->queues[STREAM_RUNS].handle, "aule queue");
    for (int i = STREAM_FIRST_HAULS; i < NUM_STREAMS; i++) {
        if (device->queues[i].handle)
            DEVICE_NAME(device, QUEUE, device->queues[i].handle, "aule hauls %d", i);
    }
}

static enum status make_stream(struct device *device, enum stream_kind kind,
                               struct device_queue *queue, struct error *error)
{
    static const char *const names[NUM_STREAMS] = {
        [STREAM_RUNS] = "submissions",
        [STREAM_COPY_1] = "hauls by copies, first",
        [STREAM_COPY_2] = "hauls by copies, second",
        [STREAM_SHADER_1] = "hauls by a shader, first",
        [STREAM_SHADER_2] = "hauls by a shader, second",
    };
    struct device_stream *stream = &device->streams[kind];
    enum status status = STATUS_OK;
    VkSemaphoreTypeCreateInfo type = {
        .sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
        .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE,
    };
    VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type};
    VK_TRY(vkCreateSemaphore(device->handle, &info, NULL, &stream->timeline));
    stream->queue = queue;
    DEVICE_NAME(device, SEMAPHORE, stream->timeline, "%s", names[kind]);
fail:
    return status;
}

// Both streams of a kind, on `count` queues; 0: on the queue of the runs.
static enum status make_pair(struct device *device, enum stream_kind first, uint32_t count,
                             struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < LANES_OF_A_KIND; i++) {
        const uint32_t place = count ? first + at_most(i, count - 1) : STREAM_RUNS;
        status = make_stream(device, first + (enum stream_kind)i, &device->queues[place], error);
    }
    return status;
}

// A kind without queues has no streams. If no kind has queues, the caller may want the streams on
// the queue of the runs.
static enum status make_streams(struct device *device, struct error *error)
{
    const uint32_t copies = num_copy_queues(device), shaders = num_shader_queues(device);
    const bool anyway = !copies && !shaders &&
                        (device->haul == ENGINE_HAUL_ON || device->haul == ENGINE_HAUL_COPIES);
    enum status status = make_stream(device, STREAM_RUNS, &device->queues[STREAM_RUNS], error);
    if (status == STATUS_OK && (copies || anyway))
        status = make_pair(device, STREAM_COPY_1, copies, error);
    if (status == STATUS_OK && (shaders || (anyway && device->haul == ENGINE_HAUL_ON)))
        status = make_pair(device, STREAM_SHADER_1, shaders, error);
    return status;
}

static void finish_streams(struct device *device)
{
    for (int i = 0; i < NUM_STREAMS; i++) {
        if (device->streams[i].timeline)
            vkDestroySemaphore(device->handle, device->streams[i].timeline, NULL);
        device->streams[i] = (struct device_stream){.queue = NULL};
    }
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
    static const float priorities[1 + LANES_OF_A_KIND] = {1.0f, 1.0f, 1.0f};
    const VkDeviceQueueCreateInfo queues[] = {
        {
            .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
            .queueFamilyIndex = device->adapter.queue_family,
            .queueCount = 1 + num_shader_queues(device),
            .pQueuePriorities = priorities,
        },
        {
            .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
            .queueFamilyIndex = device->adapter.haul_family,
            .queueCount = num_copy_queues(device),
            .pQueuePriorities = priorities,
        },
    };
    VkDeviceCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
        .pNext = &features.core,
        .queueCreateInfoCount = num_copy_queues(device) ? 2 : 1,
        .pQueueCreateInfos = queues,
        .enabledExtensionCount = count,
        .ppEnabledExtensionNames = extensions,
    };
    VK_TRY(vkCreateDevice(device->adapter.physical, &info, NULL, &device->handle));
    take_queues(device);
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
    forget_queues(device); // the other family may have fewer
    take_natives(&device->adapter, false);
    memset(&device->natives, 0, sizeof device->natives);
    return open_device(device, error);
}

enum status device_init(struct device *device, const struct engine_params *params,
                        uint32_t least_shared_memory, bool natives, struct error *error)
{
    device->watchdog_ns = DEVICE_WATCHDOG_NS;
    for (int i = 0; i < NUM_STREAMS; i++) {
        struct device_queue *queue = &device->queues[i];
        queue->lock_made = pthread_mutex_init(&queue->lock, NULL) == 0;
        if (!queue->lock_made) {
            device_finish(device);
            return error_set(error, STATUS_NO_MEMORY, "no memory for a lock");
        }
    }
    enum status status = instance_init(&device->instance, params, error);
    if (status == STATUS_OK)
        status = choose(device, params, least_shared_memory, natives, error);
    if (status == STATUS_OK)
        status = open_for_kernels(device, error);
    if (status != STATUS_OK) {
        device_finish(device);
        return status;
    }
    device->patient = device->adapter.info.software;
    load_functions(device);
    DEVICE_NAME(device, DEVICE, device->handle, "aule");
    name_queues(device);
    status = make_streams(device, error);
    if (status != STATUS_OK)
        device_finish(device);
    return status;
}

void device_finish(struct device *device)
{
    if (device->handle) {
        finish_streams(device);
        vkDestroyDevice(device->handle, NULL);
    }
    device->handle = VK_NULL_HANDLE;
    instance_finish(&device->instance);
    for (int i = 0; i < NUM_STREAMS; i++) {
        if (device->queues[i].lock_made)
            pthread_mutex_destroy(&device->queues[i].lock);
        device->queues[i].lock_made = false;
    }
}

void device_lose(struct device *device, const char *format, ...)
{
    char why[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    if (!atomic_exchange(&device->lost, true))
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

// Under the queue's lock. Waits for what other streams have passed since this one last waited.
// Nothing really waits, because these pieces have ended: the semaphores only make their writes
// visible. The stream has seen passed[] once its submission is accepted.
static uint32_t add_waits(struct device *device, enum stream_kind kind, VkSemaphore *timelines,
                          uint64_t *values, uint64_t passed[NUM_STREAMS])
{
    const struct device_stream *stream = &device->streams[kind];
    uint32_t count = 0;
    for (int i = 0; i < NUM_STREAMS; i++) {
        passed[i] = i == (int)kind ? stream->seen[i] : atomic_load(&device->streams[i].passed);
        if (passed[i] == stream->seen[i])
            continue;
        timelines[count] = device->streams[i].timeline;
        values[count++] = passed[i];
    }
    return count;
}

VkResult device_submit(struct device *device, enum stream_kind kind, VkCommandBuffer commands,
                       uint64_t value, VkFence fence)
{
    static const VkPipelineStageFlags stages[NUM_STREAMS] = {
        VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
        VK_PIPELINE_STAGE_ALL_COMMANDS_BIT, VK_PIPELINE_STAGE_ALL_COMMANDS_BIT,
        VK_PIPELINE_STAGE_ALL_COMMANDS_BIT};
    struct device_stream *stream = &device->streams[kind];
    VkSemaphore awaited[NUM_STREAMS];
    uint64_t awaited_values[NUM_STREAMS], passed[NUM_STREAMS];
    pthread_mutex_lock(&stream->queue->lock);
    const uint32_t count = add_waits(device, kind, awaited, awaited_values, passed);
    VkTimelineSemaphoreSubmitInfo values = {
        .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
        .waitSemaphoreValueCount = count,
        .pWaitSemaphoreValues = awaited_values,
        .signalSemaphoreValueCount = value ? 1 : 0,
        .pSignalSemaphoreValues = &value,
    };
    VkSubmitInfo info = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
        .pNext = &values,
        .waitSemaphoreCount = count,
        .pWaitSemaphores = awaited,
        .pWaitDstStageMask = stages,
        .commandBufferCount = 1,
        .pCommandBuffers = &commands,
        .signalSemaphoreCount = value ? 1 : 0,
        .pSignalSemaphores = &stream->timeline,
    };
    VkResult result = vkQueueSubmit(stream->queue->handle, 1, &info, fence);
    if (result == VK_SUCCESS)
        memcpy(stream->seen, passed, sizeof passed);
    pthread_mutex_unlock(&stream->queue->lock);
    return result;
}

VkResult device_wait(const struct device *device, enum stream_kind stream, uint64_t value,
                     uint64_t timeout_ns)
{
    const VkSemaphoreWaitInfo info = {
        .sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
        .semaphoreCount = 1,
        .pSemaphores = &device->streams[stream].timeline,
        .pValues = &value,
    };
    return vkWaitSemaphores(device->handle, &info, timeout_ns);
}

enum { NUM_WAITS = 16 };
static const uint64_t longest_wait_ns = NS_PER_S;

// Each wait counts with its timeout. If it took longer, the process was stopped.
VkResult device_watch(const struct device *device, uint64_t limit_ns, device_waiter *wait,
                      const void *what)
{
    const uint64_t part_ns = limit_ns / NUM_WAITS + 1,
                   wait_ns = part_ns < longest_wait_ns ? part_ns : longest_wait_ns;
    VkResult result;
    uint64_t waited_ns = 0;
    do {
        result = wait(device, what, wait_ns);
        waited_ns += wait_ns;
    } while (result == VK_TIMEOUT &&
             (device->patient ? !atomic_load(&device->lost) : waited_ns < limit_ns));
    return result;
}

struct stream_value {
    enum stream_kind stream;
    uint64_t value;
};

static VkResult wait_for_stream(const struct device *device, const void *what, uint64_t timeout_ns)
{
    const struct stream_value *awaited = what;
    return device_wait(device, awaited->stream, awaited->value, timeout_ns);
}

VkResult device_watch_stream(const struct device *device, enum stream_kind stream, uint64_t value)
{
    const struct stream_value awaited = {stream, value};
    return device_watch(device, device->watchdog_ns, wait_for_stream, &awaited);
}
