// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// device.h - the one open Vulkan device: its queue, its log, its loss.

#ifndef AULE_ENGINE_DEVICE_H
#define AULE_ENGINE_DEVICE_H

#include "adapter.h"
#include "engine/metrics.h"
#include "instance.h"

#include <pthread.h>
#include <stdatomic.h>

// No submission of a few thousand tokens takes seconds, and a driver's own watchdog fires after
// tens of seconds at the latest: after this long the GPU will not answer any more.
#define DEVICE_WATCHDOG_NS UINT64_C(120000000000)

struct device {
    struct instance instance;
    struct adapter adapter;
    VkDevice handle;
    VkQueue queue;
    pthread_mutex_t queue_lock; // Vulkan wants one caller at a time for vkQueueSubmit
    bool queue_lock_made;
    PFN_vkSetDebugUtilsObjectNameEXT set_name;                       // NULL: no names
    PFN_vkGetMemoryHostPointerPropertiesEXT host_pointer_properties; // NULL: no import
    atomic_ullong pool_bytes;   // allocated by us in the pool's heap
    atomic_ullong buffer_bytes; // allocated by us in any heap
    atomic_ullong
        num_passed;   // submissions that the GPU has passed: as long as it gets on, nothing hangs
    atomic_bool hung; // a deadline passed: objects that the GPU was given may still be in use
    _Atomic uint64_t watchdog_ns; // DEVICE_WATCHDOG_NS, or less in tests
    atomic_ullong metrics[NUM_ENGINE_METRICS];
    void (*on_lost)(void *owner, const char *why);
    void *owner;
};

// Fills *device (zeroed by the caller, not to be moved) but for on_lost, owner. On failure nothing
// is left open. `least_shared_memory`: see adapter_list().
enum status device_init(struct device *device, const struct engine_params *params,
                        uint32_t least_shared_memory, struct error *error);
void device_finish(struct device *device); // takes a zeroed one; every object of it is gone

// Any thread, never under the engine's lock: marks the device lost, once.
void device_lose(struct device *device, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
#define device_log(device, level, ...) instance_log(&(device)->instance, level, __VA_ARGS__)

// Any thread. The counts guard nothing, so their order does not matter.
static inline void device_count(struct device *device, enum engine_metric metric, uint64_t more)
{
    atomic_fetch_add_explicit(&device->metrics[metric], more, memory_order_relaxed);
}

// The name shows in validation messages and in GPU tools.
void device_name(struct device *device, VkObjectType type, uint64_t handle, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
#define DEVICE_NAME(device, TYPE, handle, ...)                                                     \
    device_name(device, VK_OBJECT_TYPE_##TYPE, (uint64_t)(uintptr_t)(handle), __VA_ARGS__)

// vkQueueSubmit of one command buffer from any thread. `timeline`, if any, is signalled with
// `value`; `fence`, if any, too.
VkResult device_submit(struct device *device, VkCommandBuffer commands, VkSemaphore timeline,
                       uint64_t value, VkFence fence);

#endif
