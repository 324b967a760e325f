// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// instance.h - the Vulkan instance, its validation messages and the engine's log. Knows no device.

#ifndef AULE_ENGINE_INSTANCE_H
#define AULE_ENGINE_INSTANCE_H

#include "engine/engine.h"

#include <stdatomic.h>
#include <vulkan/vulkan.h>

struct instance {
    VkInstance handle;
    VkDebugUtilsMessengerEXT messenger;
    uint32_t layer_version;          // Vulkan version of the validation layer; 0 = it is not in use
    bool debug_utils;                // VK_EXT_debug_utils is enabled, so objects get names
    atomic_uint validation_messages; // warnings and errors so far
    void (*log)(void *context, int level, const char *format, const char *text);
    void *context;
};

// Makes the instance, which must not move until instance_finish(). NOT_FOUND: there is no Vulkan
// driver. UNSUPPORTED: the validation layer was asked for and is not installed. Caller's thread.
enum status instance_init(struct instance *instance, const struct engine_params *params,
                          struct error *error);
void instance_finish(struct instance *instance); // takes a zeroed and a half-built one

// Any thread. Levels as in engine.h.
void instance_log(const struct instance *instance, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
