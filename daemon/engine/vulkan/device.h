// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// device.h - the open Vulkan device: its queue, its log and its loss. Knows nothing of caches or
// submissions. Each function names its threads.

#ifndef AULE_ENGINE_DEVICE_H
#define AULE_ENGINE_DEVICE_H

#include "adapter.h"
#include "engine/metrics.h"
#include "instance.h"

#include <pthread.h>
#include <stdatomic.h>

// Longest wait for a submission. A submission of a few thousand tokens takes less than a second,
// and a driver's own watchdog fires within tens of seconds. So a GPU that is silent for this long
// will not answer any more. A software device has no such limit: see device_watch().
#define DEVICE_WATCHDOG_NS UINT64_C(120000000000)

struct device_queue {
    VkQueue handle;
    uint32_t family;
    pthread_mutex_t lock; // vkQueueSubmit takes one caller at a time
    bool lock_made;
};

// RUNS carries the engine's submissions. The others carry hauls (engine_haul()): COPY by copy
// commands on transfer queues, SHADER by a shader on compute queues. Each has two streams, so that
// the bus has work while a stream goes from one haul to the next.
enum stream_kind {
    STREAM_RUNS,
    STREAM_COPY_1,
    STREAM_COPY_2,
    STREAM_SHADER_1,
    STREAM_SHADER_2,
    NUM_STREAMS,
    STREAM_FIRST_HAULS = STREAM_COPY_1
};

// Work that ends in the order in which it is submitted. Streams may share a queue.
struct device_stream {
    struct device_queue *queue; // NULL: the device has no such stream
    VkSemaphore timeline;       // becomes n when the GPU has finished piece n of the stream
    // Every piece up to this one has ended, and the CPU knows. What begins afterwards in another
    // stream sees what these pieces wrote: see device_submit().
    _Atomic uint64_t passed;
    uint64_t seen[NUM_STREAMS]; // what this stream has waited for; guard: queue->lock
};

struct device {
    struct instance instance;
    struct adapter adapter;
    VkDevice handle;
    enum engine_haul_mode haul;
    struct device_queue queues[NUM_STREAMS]; // [0] computes; others are for streams, by their kind
    struct device_stream streams[NUM_STREAMS];
    PFN_vkSetDebugUtilsObjectNameEXT set_name;                       // NULL: objects get no names
    PFN_vkGetMemoryHostPointerPropertiesEXT host_pointer_properties; // NULL: no import
    PFN_vkGetMemoryFdKHR get_memory_fd;                              // NULL: no export
    struct {
        PFN_vkCreateCuModuleNVX create_module;
        PFN_vkCreateCuFunctionNVX create_function;
        PFN_vkDestroyCuModuleNVX destroy_module;
        PFN_vkDestroyCuFunctionNVX destroy_function;
        PFN_vkCmdCuLaunchKernelNVX launch;
    } natives;                  // NULL without adapter.natives.taken
    atomic_ullong pool_bytes;   // of our allocations in the pool's heap
    atomic_ullong buffer_bytes; // of our allocations in all heaps
    // Submissions that the GPU has finished. While it grows, the GPU is not hung.
    atomic_ullong num_passed;
    atomic_bool lost;             // device_lose() was called
    atomic_bool hung;             // a deadline passed, so the GPU may still use what it was given
    _Atomic uint64_t watchdog_ns; // DEVICE_WATCHDOG_NS, or less in tests
    atomic_bool patient;          // waits without limit: a software device, except in tests
    atomic_ullong metrics[NUM_ENGINE_METRICS];
    void (*on_lost)(void *owner, const char *why);
    void *owner;
};

// Opens a device. The caller zeroes *device, sets on_lost and owner, and does not move it. On
// failure nothing stays open. `least_shared_memory`: see adapter_list(). `natives`: takes what
// native kernels need, if the device has it. Caller's thread.
enum status device_init(struct device *device, const struct engine_params *params,
                        uint32_t least_shared_memory, bool natives, struct error *error);
void device_finish(struct device *device); // takes a zeroed one; its objects are destroyed

// Reports the loss of the device; the log has only the first, and on_lost handles only the first.
// Any thread, never under the engine's lock.
void device_lose(struct device *device, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
#define device_log(device, level, ...) instance_log(&(device)->instance, level, __VA_ARGS__)

// Any thread. The counts guard nothing, so their order does not matter.
static inline void device_count(struct device *device, enum engine_metric metric, uint64_t more)
{
    atomic_fetch_add_explicit(&device->metrics[metric], more, memory_order_relaxed);
}

// Names an object in validation messages and GPU tools. Any thread.
void device_name(struct device *device, VkObjectType type, uint64_t handle, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#define DEVICE_NAME(device, TYPE, handle, ...)                                                     \
    device_name(device, VK_OBJECT_TYPE_##TYPE, (uint64_t)(uintptr_t)(handle), __VA_ARGS__)

// vkQueueSubmit for one command buffer. When the GPU has finished, the stream's timeline becomes
// `value`, unless it is 0, and `fence` is signalled, unless it is VK_NULL_HANDLE. The commands see
// what the `passed` pieces of the other streams wrote. Any thread.
VkResult device_submit(struct device *device, enum stream_kind stream, VkCommandBuffer commands,
                       uint64_t value, VkFence fence);
// Waits until the stream's timeline has reached `value`.
VkResult device_wait(const struct device *device, enum stream_kind stream, uint64_t value,
                     uint64_t timeout_ns);

// A wait that returns VK_TIMEOUT after `timeout_ns`.
typedef VkResult device_waiter(const struct device *device, const void *what, uint64_t timeout_ns);
// Waits for work of the GPU for `limit_ns` at most: then it returns VK_TIMEOUT, and the caller
// reports the device as hung. Time in which this process was stopped, or its machine, does not
// count. A software device has no limit, because it computes on busy cores: the wait then ends with
// the work, or with the device. Any thread.
VkResult device_watch(const struct device *device, uint64_t limit_ns, device_waiter *wait,
                      const void *what);
// device_watch() until the stream's timeline has reached `value`; the limit is watchdog_ns.
VkResult device_watch_stream(const struct device *device, enum stream_kind stream, uint64_t value);

static inline bool device_hauls(const struct device *device)
{
    return device->streams[STREAM_COPY_1].queue || device->streams[STREAM_SHADER_1].queue;
}

#endif
