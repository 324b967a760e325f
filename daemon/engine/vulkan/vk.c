// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// vk.c - see vk.h: one table of Vulkan's results and the statuses that they become. Any thread; no
// state.

#include "vk.h"

#include "device.h"

#include <stdlib.h>
#include <string.h>

#define VK_RESULT_MAP(X)                                                                           \
    X(VK_SUCCESS, STATUS_OK)                                                                       \
    X(VK_NOT_READY, STATUS_TIMEOUT)                                                                \
    X(VK_TIMEOUT, STATUS_TIMEOUT)                                                                  \
    X(VK_INCOMPLETE, STATUS_INTERNAL)                                                              \
    X(VK_ERROR_OUT_OF_HOST_MEMORY, STATUS_NO_MEMORY)                                               \
    X(VK_ERROR_OUT_OF_DEVICE_MEMORY, STATUS_NO_MEMORY)                                             \
    X(VK_ERROR_OUT_OF_POOL_MEMORY, STATUS_NO_MEMORY)                                               \
    X(VK_ERROR_FRAGMENTATION, STATUS_NO_MEMORY)                                                    \
    X(VK_ERROR_TOO_MANY_OBJECTS, STATUS_NO_MEMORY)                                                 \
    X(VK_ERROR_MEMORY_MAP_FAILED, STATUS_NO_MEMORY)                                                \
    X(VK_ERROR_INVALID_EXTERNAL_HANDLE, STATUS_UNSUPPORTED)                                        \
    X(VK_ERROR_INVALID_OPAQUE_CAPTURE_ADDRESS, STATUS_INTERNAL)                                    \
    X(VK_ERROR_INITIALIZATION_FAILED, STATUS_UNSUPPORTED)                                          \
    X(VK_ERROR_LAYER_NOT_PRESENT, STATUS_UNSUPPORTED)                                              \
    X(VK_ERROR_EXTENSION_NOT_PRESENT, STATUS_UNSUPPORTED)                                          \
    X(VK_ERROR_FEATURE_NOT_PRESENT, STATUS_UNSUPPORTED)                                            \
    X(VK_ERROR_INCOMPATIBLE_DRIVER, STATUS_NOT_FOUND)                                              \
    X(VK_ERROR_INVALID_SHADER_NV, STATUS_INTERNAL)                                                 \
    X(VK_ERROR_UNKNOWN, STATUS_INTERNAL)                                                           \
    X(VK_ERROR_DEVICE_LOST, STATUS_DEVICE_LOST)

static const struct {
    VkResult result;
    const char *name;
    enum status status;
} results[] = {
#define X(result, status) {result, #result, status},
    VK_RESULT_MAP(X)
#undef X
};

static _Thread_local bool list_failed;

void *vk_list(size_t count, size_t size)
{
    void *list = calloc(count, size);
    list_failed |= list == NULL;
    return list;
}

bool vk_list_failed(void)
{
    const bool failed = list_failed;
    list_failed = false;
    return failed;
}

const char *vk_result_name(VkResult result)
{
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        if (results[i].result == result)
            return results[i].name;
    return "VK_RESULT_UNKNOWN";
}

enum status vk_result_status(VkResult result)
{
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        if (results[i].result == result)
            return results[i].status;
    return STATUS_INTERNAL;
}

enum status vk_failed(struct device *device, const char *call, VkResult result, struct error *error)
{
    int length = (int)strcspn(call, "(");
    device_log(device, 0, "%.*s: %s (%d)", length, call, vk_result_name(result), result);
    error_set(error, vk_result_status(result), "%.*s: %s (%d)", length, call,
              vk_result_name(result), result);
    if (result == VK_ERROR_DEVICE_LOST)
        device_lose(device, "%.*s: %s", length, call, vk_result_name(result));
    return vk_result_status(result);
}
