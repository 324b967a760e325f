// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// instance.h - the Vulkan instance, its validation messages and the engine's log.

#ifndef AULE_ENGINE_INSTANCE_H
#define AULE_ENGINE_INSTANCE_H

#include "engine/engine.h"

#include <stdatomic.h>
#include <vulkan/vulkan.h>

struct instance {
    VkInstance handle;
    VkDebugUtilsMessengerEXT messenger;
    uint32_t
        layer_version; // the Vulkan that the validation layer was written for; 0 = it is not in use
    bool debug_utils;  // VK_EXT_debug_utils is enabled: objects get names
    atomic_uint validation_messages; // warnings and errors so far
    void (*log)(void *context, int level, const char *text);
    void *context;
};

// `instance` must not move until instance_finish(). NOT_FOUND: no Vulkan driver. UNSUPPORTED:
// validation was asked for, but its layer is not installed.
enum status instance_init(struct instance *instance, const struct engine_params *params,
                          struct error *error);
void instance_finish(struct instance *instance); // takes a zeroed and a half-built one

// Any thread. Levels as in engine.h.
void instance_log(const struct instance *instance, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
