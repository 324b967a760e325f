// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// vk.h - the results of Vulkan calls: their names, their statuses, and what a failed call does; and
// memory for the lists that Vulkan gives. Any thread.

#ifndef AULE_ENGINE_VK_H
#define AULE_ENGINE_VK_H

#include "schema/status.h"

#include <stdbool.h>
#include <vulkan/vulkan.h>

struct device;

// calloc() for a list of what a driver offers. Without memory the list looks empty, and a flag of
// this thread is set. After reading its lists, a thread calls vk_list_failed(), which resets the
// flag.
void *vk_list(size_t count, size_t size);
bool vk_list_failed(void);

// "VK_ERROR_DEVICE_LOST", for example; "VK_RESULT_UNKNOWN" if the value is not in the list. Static.
const char *vk_result_name(VkResult result);
enum status vk_result_status(VkResult result);

// Handles a failed call: logs it, fills `error` (may be NULL), marks a lost device as lost, and
// returns the status that `result` means.
enum status vk_failed(struct device *device, const char *call, VkResult result,
                      struct error *error);

// Calls Vulkan; on failure it sets `status` and goes to `fail`. Needs the locals `struct device
// *device`, `struct error *error`, `enum status status` and the label `fail`.
#define VK_TRY(call)                                                                               \
    do {                                                                                           \
        VkResult vk_try_result_ = (call);                                                          \
        if (vk_try_result_ != VK_SUCCESS) {                                                        \
            status = vk_failed(device, #call, vk_try_result_, error);                              \
            goto fail;                                                                             \
        }                                                                                          \
    } while (0)

#endif
