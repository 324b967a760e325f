// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// vk.h - how the engine speaks of Vulkan's results. Any thread.

#ifndef AULE_ENGINE_VK_H
#define AULE_ENGINE_VK_H

#include "schema/status.h"

#include <vulkan/vulkan.h>

struct device;

// "VK_ERROR_DEVICE_LOST"; "VK_RESULT_UNKNOWN" for a value that is not in the list. Static string.
const char *vk_result_name(VkResult result);
enum status vk_result_status(VkResult result);

// Logs the failing call, fills `error` (may be NULL), turns a lost device into the engine's lost
// state, and returns the status that `result` means.
enum status vk_failed(struct device *device, const char *call, VkResult result,
                      struct error *error);

// Needs the locals `struct device *device`, `struct error *error`, `enum status status` and a label
// `fail`.
#define VK_TRY(call)                                                                               \
    do {                                                                                           \
        VkResult vk_try_result_ = (call);                                                          \
        if (vk_try_result_ != VK_SUCCESS) {                                                        \
            status = vk_failed(device, #call, vk_try_result_, error);                              \
            goto fail;                                                                             \
        }                                                                                          \
    } while (0)

#endif
