// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// instance.c - makes the Vulkan instance, with the validation layer if asked for, and turns the
// layer's messages into log lines. Knows no device. The caller's thread makes and destroys it;
// messages and log lines come from any thread.

#include "instance.h"

#include "vk.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char validation_layer[] = "VK_LAYER_KHRONOS_validation";

#ifdef __SANITIZE_ADDRESS__
// The layer (1.3.239) leaks about 14 KB for each instance. It reports leaked Vulkan objects itself,
// as errors.
const char *__lsan_default_suppressions(void);
const char *__lsan_default_options(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libVkLayer_khronos_validation.so\n";
}

const char *__lsan_default_options(void)
{
    return "print_suppressions=0";
}
#endif

struct names {
    const char *at[4];
    uint32_t count;
};

void instance_log(const struct instance *instance, int level, const char *format, ...)
{
    if (!instance->log)
        return;
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    instance->log(instance->context, level, format, text);
}

// The layer gives its own threads ten seconds. On loaded cores they need more, and it reports "most
// likely a validation bug". That is no fault of ours.
static bool is_own_delay(const VkDebugUtilsMessengerCallbackDataEXT *data)
{
    return data->pMessageIdName && strstr(data->pMessageIdName, "-state-timeout");
}

static VKAPI_ATTR VkBool32 VKAPI_CALL on_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                                 VkDebugUtilsMessageTypeFlagsEXT types,
                                                 const VkDebugUtilsMessengerCallbackDataEXT *data,
                                                 void *user)
{
    (void)types;
    struct instance *instance = user;
    if (is_own_delay(data))
        return VK_FALSE;
    atomic_fetch_add(&instance->validation_messages, 1);
    bool fatal = severity >= VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT;
    instance_log(instance, fatal ? 0 : 1, "validation: %s", data->pMessage);
    return VK_FALSE;
}

// The Vulkan version of the validation layer; 0 = it is not installed.
static uint32_t layer_version(void)
{
    uint32_t count = 0, version = 0;
    if (vkEnumerateInstanceLayerProperties(&count, NULL) != VK_SUCCESS || count == 0)
        return 0;
    VkLayerProperties *layers = vk_list(count, sizeof *layers);
    if (layers && vkEnumerateInstanceLayerProperties(&count, layers) >= 0)
        for (uint32_t i = 0; i < count && !version; i++)
            version =
                strcmp(layers[i].layerName, validation_layer) == 0 ? layers[i].specVersion : 0;
    free(layers);
    return version;
}

// Whether one layer has the extension; `layer` NULL: whether the loader and the drivers have it.
static bool extension_exists(const char *layer, const char *name)
{
    uint32_t count = 0;
    if (vkEnumerateInstanceExtensionProperties(layer, &count, NULL) != VK_SUCCESS || count == 0)
        return false;
    VkExtensionProperties *extensions = vk_list(count, sizeof *extensions);
    bool found = false;
    if (extensions && vkEnumerateInstanceExtensionProperties(layer, &count, extensions) >= 0)
        for (uint32_t i = 0; i < count && !found; i++)
            found = strcmp(extensions[i].extensionName, name) == 0;
    free(extensions);
    return found;
}

// The loader says only that there is no driver. This says where it was looked for.
static enum status no_driver(struct error *error)
{
    static const char *const variables[] = {"VK_DRIVER_FILES", "VK_ICD_FILENAMES"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *files = getenv(variables[i]);
        if (files)
            return error_set(error, STATUS_NOT_FOUND,
                             "there is no Vulkan driver among the files that %s names: %.300s",
                             variables[i], files);
    }
    return error_set(
        error, STATUS_NOT_FOUND,
        "this machine has no Vulkan driver, not even a software one (Debian: mesa-vulkan-drivers)");
}

static enum status make_instance(struct instance *instance, bool validation, struct error *error)
{
    struct names extensions = {0};
    if (instance->debug_utils)
        extensions.at[extensions.count++] = VK_EXT_DEBUG_UTILS_EXTENSION_NAME;
    const char *layer = validation_layer;
    bool features =
        validation && extension_exists(layer, VK_EXT_VALIDATION_FEATURES_EXTENSION_NAME);
    if (features)
        extensions.at[extensions.count++] = VK_EXT_VALIDATION_FEATURES_EXTENSION_NAME;
    VkValidationFeatureEnableEXT synchronization =
        VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT;
    VkValidationFeaturesEXT enabled = {
        .sType = VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT,
        .enabledValidationFeatureCount = 1,
        .pEnabledValidationFeatures = &synchronization,
    };
    VkApplicationInfo application = {
        .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
        .pApplicationName = "aule",
        .pEngineName = "aule",
        .apiVersion = VK_API_VERSION_1_3, // the newest that is used; 1.2 is enough
    };
    VkInstanceCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
        .pNext = features ? &enabled : NULL,
        .pApplicationInfo = &application,
        .enabledLayerCount = validation,
        .ppEnabledLayerNames = &layer,
        .enabledExtensionCount = extensions.count,
        .ppEnabledExtensionNames = extensions.at,
    };
    VkResult result = vkCreateInstance(&info, NULL, &instance->handle);
    if (result == VK_SUCCESS)
        return STATUS_OK;
    instance->handle = VK_NULL_HANDLE;
    if (result == VK_ERROR_INCOMPATIBLE_DRIVER)
        return no_driver(error);
    return error_set(error, vk_result_status(result), "vkCreateInstance: %s (%d)",
                     vk_result_name(result), result);
}

static enum status make_messenger(struct instance *instance, struct error *error)
{
    PFN_vkCreateDebugUtilsMessengerEXT create =
        (PFN_vkCreateDebugUtilsMessengerEXT)vkGetInstanceProcAddr(instance->handle,
                                                                  "vkCreateDebugUtilsMessengerEXT");
    VkDebugUtilsMessengerCreateInfoEXT info = {
        .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
        .messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT |
                           VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
        .messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT |
                       VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT,
        .pfnUserCallback = on_message,
        .pUserData = instance,
    };
    VkResult result =
        create ? create(instance->handle, &info, NULL, &instance->messenger) : VK_ERROR_UNKNOWN;
    if (result == VK_SUCCESS)
        return STATUS_OK;
    instance->messenger = VK_NULL_HANDLE;
    return error_set(error, vk_result_status(result), "vkCreateDebugUtilsMessengerEXT: %s",
                     vk_result_name(result));
}

// Keeps a library loaded. Unloading lavapipe leaks 128 bytes each time, and leaks of an unloaded
// layer have no name in reports. If there is no such library, nothing happens.
static void pin(const char *library)
{
    dlopen(library, RTLD_NOW | RTLD_NODELETE);
}

enum status instance_init(struct instance *instance, const struct engine_params *params,
                          struct error *error)
{
    pin("libvulkan_lvp.so");
    if (params->validation)
        pin("libVkLayer_khronos_validation.so");
    *instance = (struct instance){.log = params->log, .context = params->context};
    instance->layer_version = params->validation ? layer_version() : 0;
    instance->debug_utils = extension_exists(NULL, VK_EXT_DEBUG_UTILS_EXTENSION_NAME);
    if (vk_list_failed())
        return error_set(error, STATUS_NO_MEMORY, "no memory for what Vulkan offers");
    if (params->validation && !instance->layer_version)
        return error_set(
            error, STATUS_UNSUPPORTED,
            "validation was asked for, but %s (package vulkan-validationlayers) is not installed",
            validation_layer);
    enum status status = make_instance(instance, params->validation, error);
    if (status == STATUS_OK && params->validation)
        status = make_messenger(instance, error);
    if (status != STATUS_OK)
        instance_finish(instance);
    return status;
}

void instance_finish(struct instance *instance)
{
    if (instance->messenger) {
        PFN_vkDestroyDebugUtilsMessengerEXT destroy =
            (PFN_vkDestroyDebugUtilsMessengerEXT)vkGetInstanceProcAddr(
                instance->handle, "vkDestroyDebugUtilsMessengerEXT");
        destroy(instance->handle, instance->messenger, NULL);
    }
    if (instance->handle)
        vkDestroyInstance(instance->handle, NULL);
    instance->messenger = VK_NULL_HANDLE;
    instance->handle = VK_NULL_HANDLE;
}
