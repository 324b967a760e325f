// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_device.c - which queues and streams an opened device has. A device that turns out to run no
// native kernels is opened a second time, with other queues, often fewer. The Vulkan device is
// real, but the linker redirects what it says of queue families, extensions and queues, so that it
// can be any device. Exit code 77: Vulkan finds no device.

#include "engine/vulkan/device.h"
#include "engine/vulkan/native.h"
#include "rigs/engine_world.h"

#include <string.h>

enum { FAMILIES = 3, GRAPHICS = 0, COMPUTE = 1, TRANSFER = 2, NO_FAMILY = UINT32_MAX };

// ---- the device that Vulkan seems to have ----

static struct {
    uint32_t num_queues[FAMILIES]; // 0: the family is left out
    bool runs_natives;
    uint32_t opened;          // devices so far
    uint32_t taken[FAMILIES]; // queues of the latest device
} fake;

VkResult __real_vkCreateDevice(VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
                               const VkAllocationCallbacks *allocator, VkDevice *device);
VkResult __real_vkEnumerateDeviceExtensionProperties(VkPhysicalDevice physical, const char *layer,
                                                     uint32_t *count,
                                                     VkExtensionProperties *extensions);
PFN_vkVoidFunction __real_vkGetInstanceProcAddr(VkInstance instance, const char *name);
VkResult __wrap_vkCreateDevice(VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
                               const VkAllocationCallbacks *allocator, VkDevice *device);
VkResult __wrap_vkEnumerateDeviceExtensionProperties(VkPhysicalDevice physical, const char *layer,
                                                     uint32_t *count,
                                                     VkExtensionProperties *extensions);
PFN_vkVoidFunction __wrap_vkGetInstanceProcAddr(VkInstance instance, const char *name);
void __wrap_vkGetPhysicalDeviceQueueFamilyProperties(VkPhysicalDevice physical, uint32_t *count,
                                                     VkQueueFamilyProperties *families);
void __wrap_vkGetDeviceQueue(VkDevice device, uint32_t family, uint32_t index, VkQueue *queue);
bool __wrap_native_probe(struct device *device);

// The number of the family that is `kind` here: families without queues are left out.
static uint32_t family_of(int kind)
{
    uint32_t number = 0;
    if (!fake.num_queues[kind])
        return NO_FAMILY;
    for (int i = 0; i < kind; i++)
        number += fake.num_queues[i] > 0;
    return number;
}

void __wrap_vkGetPhysicalDeviceQueueFamilyProperties(VkPhysicalDevice physical, uint32_t *count,
                                                     VkQueueFamilyProperties *families)
{
    static const VkQueueFlags flags[FAMILIES] = {
        [GRAPHICS] = VK_QUEUE_GRAPHICS_BIT | VK_QUEUE_COMPUTE_BIT | VK_QUEUE_TRANSFER_BIT,
        [COMPUTE] = VK_QUEUE_COMPUTE_BIT | VK_QUEUE_TRANSFER_BIT,
        [TRANSFER] = VK_QUEUE_TRANSFER_BIT,
    };
    (void)physical;
    *count = 0;
    for (int i = 0; i < FAMILIES; i++) {
        if (!fake.num_queues[i])
            continue;
        if (families)
            families[*count] = (VkQueueFamilyProperties){
                .queueFlags = flags[i], .queueCount = fake.num_queues[i], .timestampValidBits = 64};
        ++*count;
    }
}

VkResult __wrap_vkEnumerateDeviceExtensionProperties(VkPhysicalDevice physical, const char *layer,
                                                     uint32_t *count,
                                                     VkExtensionProperties *extensions)
{
    const VkResult result =
        __real_vkEnumerateDeviceExtensionProperties(physical, layer, count, extensions);
    if (extensions && *count > 0) // in the place of any other
        strcpy(extensions[0].extensionName, VK_NVX_BINARY_IMPORT_EXTENSION_NAME);
    return result;
}

// No objects get names: the driver does not know the queues.
PFN_vkVoidFunction __wrap_vkGetInstanceProcAddr(VkInstance instance, const char *name)
{
    return strcmp(name, "vkSetDebugUtilsObjectNameEXT") == 0
               ? NULL
               : __real_vkGetInstanceProcAddr(instance, name);
}

// The real device has one queue and no extension.
VkResult __wrap_vkCreateDevice(VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
                               const VkAllocationCallbacks *allocator, VkDevice *device)
{
    static const float priority = 1;
    const VkDeviceQueueCreateInfo queue = {.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                           .queueCount = 1,
                                           .pQueuePriorities = &priority};
    VkDeviceCreateInfo real = *info;
    fake.opened++;
    memset(fake.taken, 0, sizeof fake.taken);
    for (uint32_t i = 0; i < info->queueCreateInfoCount; i++) {
        const VkDeviceQueueCreateInfo *asked = &info->pQueueCreateInfos[i];
        int kind = 0;
        while (kind < FAMILIES && family_of(kind) != asked->queueFamilyIndex)
            kind++;
        ck_assert_int_lt(kind, FAMILIES);
        ck_assert_uint_eq(fake.taken[kind], 0); // a family is named once
        ck_assert_uint_gt(asked->queueCount, 0);
        ck_assert_uint_le(asked->queueCount, fake.num_queues[kind]);
        fake.taken[kind] = asked->queueCount;
    }
    real.queueCreateInfoCount = 1;
    real.pQueueCreateInfos = &queue;
    real.enabledExtensionCount = 0;
    return __real_vkCreateDevice(physical, &real, allocator, device);
}

// A handle that says which device, family and queue it is.
static VkQueue handle_of(uint32_t opened, int kind, uint32_t index)
{
    return (VkQueue)(uintptr_t)(opened << 16 | (uint32_t)kind << 8 | (index + 1));
}

void __wrap_vkGetDeviceQueue(VkDevice device, uint32_t family, uint32_t index, VkQueue *queue)
{
    int kind = 0;
    (void)device;
    while (kind < FAMILIES && family_of(kind) != family)
        kind++;
    ck_assert_int_lt(kind, FAMILIES);
    ck_assert_uint_lt(index, fake.taken[kind]);
    *queue = handle_of(fake.opened, kind, index);
}

bool __wrap_native_probe(struct device *device)
{
    (void)device;
    return fake.runs_natives;
}

// ---- what the opened device has ----

static const struct opening {
    uint32_t num_queues[FAMILIES];
    bool natives, runs_natives; // wanted; and the device can
    enum engine_haul_mode haul;
    uint32_t opened;          // times
    int runs;                 // the family of the runs
    uint32_t copies, shaders; // queues of their own for hauls
    bool on_runs;             // hauls use the queue of the runs
} openings[] = {
    // An H200: 16 queues that draw, 8 that compute, 2 that copy.
    {{16, 8, 2}, true, true, ENGINE_HAUL_AUTO, 1, COMPUTE, 2, 2, false},
    {{16, 8, 2}, true, false, ENGINE_HAUL_AUTO, 2, GRAPHICS, 2, 2, false},
    {{16, 8, 2}, false, true, ENGINE_HAUL_AUTO, 1, GRAPHICS, 2, 2, false},
    // The second time there are fewer queues that compute, or none beside that of the runs.
    {{2, 8, 2}, true, false, ENGINE_HAUL_AUTO, 2, GRAPHICS, 2, 1, false},
    {{1, 8, 2}, true, false, ENGINE_HAUL_AUTO, 2, GRAPHICS, 2, 0, false},
    {{1, 8, 1}, true, false, ENGINE_HAUL_ON, 2, GRAPHICS, 1, 0, false},
    {{1, 8, 0}, true, false, ENGINE_HAUL_AUTO, 2, GRAPHICS, 0, 0, false},
    {{1, 8, 0}, true, false, ENGINE_HAUL_ON, 2, GRAPHICS, 0, 0, true},
    {{1, 8, 2}, true, false, ENGINE_HAUL_OFF, 2, GRAPHICS, 0, 0, false},
    // Without a family that computes alone there is nothing to try.
    {{4, 0, 2}, true, false, ENGINE_HAUL_COPIES, 1, GRAPHICS, 2, 0, false},
};

// Lane i of a pair has queue i, or the last one of `count`.
static void expect_pair(const struct device *device, enum stream_kind first, uint32_t count,
                        bool on_runs, int kind, uint32_t from)
{
    for (uint32_t i = 0; i < 2; i++) {
        const struct device_queue *queue = device->streams[first + i].queue;
        const uint32_t index = i < count ? i : count - 1;
        if (i >= count)
            ck_assert_ptr_eq(device->queues[first + i].handle, NULL);
        if (count == 0) {
            ck_assert_ptr_eq(queue, on_runs ? &device->queues[STREAM_RUNS] : NULL);
            continue;
        }
        ck_assert_ptr_nonnull(queue);
        ck_assert_ptr_eq(queue->handle, handle_of(fake.opened, kind, from + index));
        ck_assert_uint_eq(queue->family, family_of(kind));
    }
}

START_TEST(a_device_has_the_queues_of_the_way_it_was_opened_last)
{
    const struct opening *opening = &openings[_i];
    const struct engine_params params = {.haul = opening->haul};
    struct device device = {.handle = VK_NULL_HANDLE};
    struct error error = {0};
    memcpy(fake.num_queues, opening->num_queues, sizeof fake.num_queues);
    fake.runs_natives = opening->runs_natives;
    ck_assert_msg(device_init(&device, &params, 0, opening->natives, &error) == STATUS_OK, "%s",
                  error.text);
    ck_assert_uint_eq(fake.opened, opening->opened);
    ck_assert_int_eq(device.adapter.natives.taken, opening->runs == COMPUTE);
    ck_assert_ptr_eq(device.queues[STREAM_RUNS].handle, handle_of(fake.opened, opening->runs, 0));
    ck_assert_uint_eq(device.queues[STREAM_RUNS].family, family_of(opening->runs));
    expect_pair(&device, STREAM_COPY_1, opening->copies, opening->on_runs, TRANSFER, 0);
    expect_pair(&device, STREAM_SHADER_1, opening->shaders, opening->on_runs, opening->runs, 1);
    ck_assert_int_eq(device_hauls(&device),
                     opening->copies || opening->shaders || opening->on_runs);
    device_finish(&device);
}
END_TEST

static Suite *make_suite(void)
{
    Suite *suite = suite_create("device");
    const TTest *const tests[] = {a_device_has_the_queues_of_the_way_it_was_opened_last, NULL};
    check_case(suite, "queues", NULL, NULL, tests, sizeof openings / sizeof *openings);
    return suite;
}

int main(void)
{
    return run_on_device(make_suite);
}
