// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// adapter.c - describes the machine's devices and finds the one that a name means. Opens none. Any
// thread; no state.

#include "adapter.h"

#include "matrices.h"
#include "statistics.h"
#include "vk.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// X(name in Vulkan, field). Without one of the required features a device is unusable.
#define REQUIRED_FEATURES(X)                                                                       \
    X(shaderInt64, core.features.shaderInt64)                                                      \
    X(timelineSemaphore, v12.timelineSemaphore)                                                    \
    X(hostQueryReset, v12.hostQueryReset)                                                          \
    X(bufferDeviceAddress, v12.bufferDeviceAddress)                                                \
    X(scalarBlockLayout, v12.scalarBlockLayout)
// Enabled if present, for kernels that use them.
#define OPTIONAL_FEATURES(X)                                                                       \
    X(shaderInt16, core.features.shaderInt16)                                                      \
    X(storageBuffer16BitAccess, v11.storageBuffer16BitAccess)                                      \
    X(storageBuffer8BitAccess, v12.storageBuffer8BitAccess)                                        \
    X(shaderFloat16, v12.shaderFloat16)                                                            \
    X(shaderInt8, v12.shaderInt8)                                                                  \
    X(vulkanMemoryModel, v12.vulkanMemoryModel)                                                    \
    X(vulkanMemoryModelDeviceScope, v12.vulkanMemoryModelDeviceScope)                              \
    X(subgroupSizeControl, subgroups.subgroupSizeControl)                                          \
    X(computeFullSubgroups, subgroups.computeFullSubgroups)                                        \
    X(pipelineExecutableInfo, executables.pipelineExecutableInfo)                                  \
    MATRIX_FEATURES(X)
#ifdef VK_KHR_cooperative_matrix
#define MATRIX_FEATURES(X)                                                                         \
    X(cooperativeMatrix, matrices.cooperativeMatrix)                                               \
    X(shaderBFloat16Type, bfloats.shaderBFloat16Type)                                              \
    X(shaderBFloat16CooperativeMatrix, bfloats.shaderBFloat16CooperativeMatrix)
#else
#define MATRIX_FEATURES(X)
#endif

struct feature {
    const char *name;
    size_t offset; // in struct features
};
#define X(name, member) {#name, offsetof(struct features, member)},
static const struct feature required[] = {REQUIRED_FEATURES(X)};
static const struct feature optional[] = {OPTIONAL_FEATURES(X)};
#undef X
#define COUNT(array) (sizeof(array) / sizeof *(array))

static const struct {
    VkPhysicalDeviceType type;
    const char *name;
    int rank; // lower is better
} types[] = {
    {VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU, "discrete", 0},
    {VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU, "integrated", 1},
    {VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU, "virtual", 2},
    {VK_PHYSICAL_DEVICE_TYPE_OTHER, "other", 3},
    {VK_PHYSICAL_DEVICE_TYPE_CPU, "cpu", 4},
};

enum {
    NEEDED_INVOCATIONS = 128, // invocations of a workgroup, for every shader
    MULTIPROCESSORS = 16,     // assumed if a GPU does not report its number: a small GPU's
};

static VkBool32 *feature_at(struct features *features, const struct feature *feature)
{
    return (VkBool32 *)((char *)features + feature->offset);
}

static void *chain(void *last, void *next)
{
    ((VkBaseOutStructure *)last)->pNext = next;
    return next;
}

static bool knows_size_control(const struct adapter *adapter)
{
    return adapter->info.api_version >= VK_API_VERSION_1_3 || adapter->subgroups.extension;
}

static void features_chain(const struct adapter *adapter, struct features *features)
{
    *features = (struct features){
        .core.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
        .v11.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
        .v12.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
        .subgroups.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES,
        .bfloats.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_BFLOAT16_FEATURES_KHR,
        .executables.sType =
            VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PIPELINE_EXECUTABLE_PROPERTIES_FEATURES_KHR,
    };
    features->core.pNext = &features->v11;
    features->v11.pNext = &features->v12;
    void *last = &features->v12;
    if (knows_size_control(adapter))
        last = chain(last, &features->subgroups);
#ifdef VK_KHR_cooperative_matrix
    features->matrices.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_FEATURES_KHR;
    if (adapter->matrices.extension)
        last = chain(last, &features->matrices);
#endif
    if (adapter->matrices.bfloat_extension)
        last = chain(last, &features->bfloats);
    if (adapter->statistics)
        chain(last, &features->executables);
}

void adapter_features(const struct adapter *adapter, struct features *features)
{
    struct features has;
    features_chain(adapter, &has);
    vkGetPhysicalDeviceFeatures2(adapter->physical, &has.core);
    features_chain(adapter, features);
    for (size_t i = 0; i < COUNT(required); i++)
        *feature_at(features, &required[i]) = *feature_at(&has, &required[i]);
    for (size_t i = 0; i < COUNT(optional); i++)
        *feature_at(features, &optional[i]) = *feature_at(&has, &optional[i]);
}

bool adapter_has_extension(VkPhysicalDevice physical, const char *name)
{
    uint32_t count = 0;
    if (vkEnumerateDeviceExtensionProperties(physical, NULL, &count, NULL) != VK_SUCCESS ||
        count == 0)
        return false;
    VkExtensionProperties *extensions = vk_list(count, sizeof *extensions);
    bool found = false;
    if (extensions && vkEnumerateDeviceExtensionProperties(physical, NULL, &count, extensions) >= 0)
        for (uint32_t i = 0; i < count && !found; i++)
            found = strcmp(extensions[i].extensionName, name) == 0;
    free(extensions);
    return found;
}

static VkExternalMemoryFeatureFlags external_features(
    VkPhysicalDevice physical, VkExternalMemoryHandleTypeFlagBits handle_type)
{
    VkPhysicalDeviceExternalBufferInfo info = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_BUFFER_INFO,
        .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT,
        .handleType = handle_type,
    };
    VkExternalBufferProperties properties = {.sType = VK_STRUCTURE_TYPE_EXTERNAL_BUFFER_PROPERTIES};
    vkGetPhysicalDeviceExternalBufferProperties(physical, &info, &properties);
    return properties.externalMemoryProperties.externalMemoryFeatures;
}

// Whether buffers can use imported host memory.
static bool host_import(VkPhysicalDevice physical)
{
    return adapter_has_extension(physical, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME) &&
           external_features(physical, VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT) &
               VK_EXTERNAL_MEMORY_FEATURE_IMPORTABLE_BIT;
}

// Whether other processes can import a buffer's memory.
static bool memory_export(VkPhysicalDevice physical)
{
    return adapter_has_extension(physical, VK_KHR_EXTERNAL_MEMORY_FD_EXTENSION_NAME) &&
           external_features(physical, VK_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD_BIT) &
               VK_EXTERNAL_MEMORY_FEATURE_EXPORTABLE_BIT;
}

static void find_haul_family(struct adapter *adapter, uint32_t index,
                             const VkQueueFamilyProperties *family)
{
    const VkQueueFlags flags = family->queueFlags;
    if (adapter->num_haul_queues || !(flags & VK_QUEUE_TRANSFER_BIT) ||
        flags & (VK_QUEUE_COMPUTE_BIT | VK_QUEUE_GRAPHICS_BIT))
        return;
    adapter->haul_family = index;
    adapter->num_haul_queues = family->queueCount;
}

// The first family that computes; for native kernels, the first that has no graphics.
static void find_queues(struct adapter *adapter)
{
    adapter->queue_family = adapter->haul_family = UINT32_MAX;
    uint32_t count = 0;
    vkGetPhysicalDeviceQueueFamilyProperties(adapter->physical, &count, NULL);
    VkQueueFamilyProperties *families = vk_list(count ? count : 1, sizeof *families);
    if (!families)
        return;
    vkGetPhysicalDeviceQueueFamilyProperties(adapter->physical, &count, families);
    for (uint32_t i = 0; i < count; i++) {
        bool computes = families[i].queueFlags & VK_QUEUE_COMPUTE_BIT;
        bool alone = computes && !(families[i].queueFlags & VK_QUEUE_GRAPHICS_BIT);
        if (computes && adapter->queue_family == UINT32_MAX) {
            adapter->queue_family = i;
            adapter->num_queues = families[i].queueCount;
            adapter->timestamp_bits = families[i].timestampValidBits;
        }
        if (alone && !adapter->natives.family) {
            adapter->natives.family = true;
            adapter->natives.queue_family = i;
            adapter->natives.num_queues = families[i].queueCount;
            adapter->natives.timestamp_bits = families[i].timestampValidBits;
        }
        find_haul_family(adapter, i, &families[i]);
    }
    free(families);
}

// Finds the largest device-local heap.
static void find_heap(struct adapter *adapter)
{
    vkGetPhysicalDeviceMemoryProperties(adapter->physical, &adapter->memory);
    uint64_t best = 0;
    for (uint32_t i = 0; i < adapter->memory.memoryHeapCount; i++) {
        const VkMemoryHeap *heap = &adapter->memory.memoryHeaps[i];
        if (heap->flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT && heap->size > best) {
            best = heap->size;
            adapter->pool_heap = i;
        }
    }
    adapter->info.heap_bytes = adapter->memory.memoryHeaps[adapter->pool_heap].size;
}

static void add_missing(struct engine_device *info, const char *name)
{
    size_t used = strlen(info->missing);
    snprintf(info->missing + used, sizeof info->missing - used, "%s%s", used ? ", " : "", name);
}

static void find_missing(struct adapter *adapter, uint32_t least_shared_memory)
{
    if (adapter->info.api_version < VK_API_VERSION_1_2) {
        add_missing(&adapter->info, "Vulkan 1.2");
    } else {
        struct features features;
        adapter_features(adapter, &features);
        for (size_t i = 0; i < COUNT(required); i++)
            if (!*feature_at(&features, &required[i]))
                add_missing(&adapter->info, required[i].name);
    }
    if (adapter->queue_family == UINT32_MAX)
        add_missing(&adapter->info, "a compute queue");
    if (adapter->max_invocations < NEEDED_INVOCATIONS)
        add_missing(&adapter->info, "workgroups of 128 invocations");
    if (adapter->info.shared_memory_bytes < least_shared_memory) {
        char need[96];
        snprintf(need, sizeof need, "shared memory (a workgroup needs %u bytes, it has %u)",
                 least_shared_memory, adapter->info.shared_memory_bytes);
        add_missing(&adapter->info, need);
    }
    adapter->info.usable = adapter->info.missing[0] == '\0';
}

struct properties {
    VkPhysicalDeviceProperties2 core;
    VkPhysicalDeviceIDProperties id;
    VkPhysicalDeviceSubgroupProperties subgroup;
    VkPhysicalDeviceMaintenance3Properties maintenance3;
    VkPhysicalDeviceDriverProperties driver;             // from Vulkan 1.2
    VkPhysicalDeviceMaintenance4Properties maintenance4; // from Vulkan 1.3
    VkPhysicalDeviceSubgroupSizeControlProperties sizes; // if the device has the extension
    VkPhysicalDeviceExternalMemoryHostPropertiesEXT host;
};

static void read_properties(VkPhysicalDevice physical, bool import, bool size_control,
                            struct properties *out)
{
    VkPhysicalDeviceProperties basic;
    vkGetPhysicalDeviceProperties(physical, &basic);
    *out = (struct properties){
        .core.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
        .id.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES,
        .subgroup.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES,
        .maintenance3.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES,
        .driver.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES,
        .maintenance4.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES,
        .maintenance4.maxBufferSize = UINT64_MAX,
        .sizes.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES,
        .host.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT,
    };
    void *last = chain(&out->core, &out->id);
    last = chain(last, &out->subgroup);
    last = chain(last, &out->maintenance3);
    if (basic.apiVersion >= VK_API_VERSION_1_2)
        last = chain(last, &out->driver);
    if (basic.apiVersion >= VK_API_VERSION_1_3)
        last = chain(last, &out->maintenance4);
    if (basic.apiVersion >= VK_API_VERSION_1_3 || size_control)
        last = chain(last, &out->sizes);
    if (import)
        chain(last, &out->host);
    vkGetPhysicalDeviceProperties2(physical, &out->core);
}

static void fill_info(struct engine_device *info, const struct properties *properties)
{
    const VkPhysicalDeviceProperties *basic = &properties->core.properties;
    snprintf(info->name, sizeof info->name, "%s", basic->deviceName);
    snprintf(info->driver, sizeof info->driver, "%.120s %.120s", properties->driver.driverName,
             properties->driver.driverInfo);
    snprintf(info->type, sizeof info->type, "other");
    for (size_t i = 0; i < COUNT(types); i++)
        if (types[i].type == basic->deviceType)
            snprintf(info->type, sizeof info->type, "%s", types[i].name);
    memcpy(info->uuid, properties->id.deviceUUID, sizeof info->uuid);
    info->api_version = basic->apiVersion;
    info->software = basic->deviceType == VK_PHYSICAL_DEVICE_TYPE_CPU;
    uint64_t allocation = properties->maintenance3.maxMemoryAllocationSize;
    uint64_t buffer = properties->maintenance4.maxBufferSize;
    info->max_allocation_bytes = allocation < buffer ? allocation : buffer;
    info->subgroup_size = properties->subgroup.subgroupSize;
    info->shared_memory_bytes = basic->limits.maxComputeSharedMemorySize;
    info->import_alignment = properties->host.minImportedHostPointerAlignment;
}

// Call it after fill_info(), which sets info.api_version.
static void fill_subgroups(struct adapter *adapter, const struct properties *properties)
{
    struct subgroups *subgroups = &adapter->subgroups;
    if (properties->subgroup.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT)
        subgroups->operations = properties->subgroup.supportedOperations;
    if (!knows_size_control(adapter) || adapter->info.api_version < VK_API_VERSION_1_2)
        return;
    struct features features;
    adapter_features(adapter, &features);
    bool controls = properties->sizes.requiredSubgroupSizeStages & VK_SHADER_STAGE_COMPUTE_BIT;
    subgroups->size_control = features.subgroups.subgroupSizeControl && controls;
    subgroups->full = features.subgroups.computeFullSubgroups;
    subgroups->least_size = properties->sizes.minSubgroupSize;
    subgroups->most_size = properties->sizes.maxSubgroupSize;
}

static uint32_t count_multiprocessors(const struct adapter *adapter)
{
    VkPhysicalDeviceShaderSMBuiltinsPropertiesNV nvidia = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV};
    VkPhysicalDeviceShaderCorePropertiesAMD amd = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_AMD};
    VkPhysicalDeviceProperties2 properties = {.sType =
                                                  VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2};
    void *last = &properties;
    if (adapter_has_extension(adapter->physical, VK_NV_SHADER_SM_BUILTINS_EXTENSION_NAME))
        last = chain(last, &nvidia);
    if (adapter_has_extension(adapter->physical, VK_AMD_SHADER_CORE_PROPERTIES_EXTENSION_NAME))
        chain(last, &amd);
    vkGetPhysicalDeviceProperties2(adapter->physical, &properties);
    uint32_t units =
        amd.shaderEngineCount * amd.shaderArraysPerEngineCount * amd.computeUnitsPerShaderArray;
    if (nvidia.shaderSMCount > 0)
        return nvidia.shaderSMCount;
    if (units > 0)
        return units;
    return adapter->info.software ? 1 : MULTIPROCESSORS;
}

static void describe(VkPhysicalDevice physical, uint32_t index, bool force_staging,
                     uint32_t least_shared_memory, struct adapter *adapter)
{
    bool import = !force_staging && host_import(physical);
    bool size_control =
        adapter_has_extension(physical, VK_EXT_SUBGROUP_SIZE_CONTROL_EXTENSION_NAME);
    struct properties properties;
    read_properties(physical, import, size_control, &properties);
    *adapter = (struct adapter){.physical = physical,
                                .info.index = index,
                                .info.host_import = import,
                                .info.memory_export = memory_export(physical)};
    fill_info(&adapter->info, &properties);
    adapter->subgroups.extension = size_control && adapter->info.api_version < VK_API_VERSION_1_3;
    fill_subgroups(adapter, &properties);
    const VkPhysicalDeviceLimits *limits = &properties.core.properties.limits;
    memcpy(adapter->max_groups, limits->maxComputeWorkGroupCount, sizeof adapter->max_groups);
    adapter->max_invocations = limits->maxComputeWorkGroupInvocations;
    adapter->info.num_multiprocessors = count_multiprocessors(adapter);
    adapter->timestamp_ns = limits->timestampPeriod;
    adapter->memory_budget = adapter_has_extension(physical, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    adapter->natives.extension =
        adapter_has_extension(physical, VK_NVX_BINARY_IMPORT_EXTENSION_NAME);
    find_queues(adapter);
    find_heap(adapter);
    find_missing(adapter, least_shared_memory);
    adapter->info.budget_bytes = adapter_budget(adapter, 0);
}

uint64_t adapter_budget(const struct adapter *adapter, uint64_t used)
{
    uint64_t bytes = adapter->info.heap_bytes;
    if (adapter->memory_budget) {
        VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = {
            .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
        VkPhysicalDeviceMemoryProperties2 properties = {
            .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2, .pNext = &budget};
        vkGetPhysicalDeviceMemoryProperties2(adapter->physical, &properties);
        bytes = budget.heapBudget[adapter->pool_heap];
        used = budget.heapUsage[adapter->pool_heap];
    }
    return bytes > used ? bytes - used : 0;
}

static int rank(const struct engine_device *info)
{
    for (size_t i = 0; i < COUNT(types); i++)
        if (strcmp(types[i].name, info->type) == 0)
            return types[i].rank;
    return (int)COUNT(types);
}

static int compare(const void *left, const void *right)
{
    const struct engine_device *a = &((const struct adapter *)left)->info,
                               *b = &((const struct adapter *)right)->info;
    if (a->usable != b->usable)
        return a->usable ? -1 : 1;
    if (rank(a) != rank(b))
        return rank(a) - rank(b);
    return a->index < b->index ? -1 : a->index > b->index;
}

enum status adapter_list(const struct instance *instance, bool force_staging,
                         uint32_t least_shared_memory, struct adapter **out, uint32_t *count,
                         struct error *error)
{
    *count = 0;
    VkResult result = vkEnumeratePhysicalDevices(instance->handle, count, NULL);
    if (result != VK_SUCCESS || *count == 0)
        return error_set(error, STATUS_NOT_FOUND, "Vulkan finds no device on this machine (%s)",
                         vk_result_name(result));
    VkPhysicalDevice *physical = calloc(*count, sizeof *physical);
    struct adapter *list = calloc(*count, sizeof *list);
    enum status status = STATUS_NO_MEMORY;
    if (!physical || !list)
        goto fail;
    result = vkEnumeratePhysicalDevices(instance->handle, count, physical);
    status = vk_result_status(result);
    if (result != VK_SUCCESS)
        goto fail;
    for (uint32_t i = 0; i < *count; i++) {
        describe(physical[i], i, force_staging, least_shared_memory, &list[i]);
        matrices_describe(instance, &list[i]);
        statistics_describe(&list[i]);
    }
    status = vk_list_failed() ? STATUS_NO_MEMORY : STATUS_OK;
    if (status != STATUS_OK)
        goto fail;
    qsort(list, *count, sizeof *list, compare);
    for (uint32_t i = 0; i < *count; i++)
        list[i].info.index = i;
    free(physical);
    *out = list;
    return STATUS_OK;
fail:
    free(physical);
    free(list);
    return error_set(error, status, "what %u Vulkan devices offer: %s", *count,
                     status_text(status));
}

// ---- which device a name means ----

// Up to three digits are an index. A longer number is part of a name, as in "4090".
static bool is_index(const char *wanted)
{
    size_t length = strlen(wanted);
    return length > 0 && length <= 3 && strspn(wanted, "0123456789") == length;
}

static bool uuid_parse(const char *text, uint8_t uuid[16])
{
    int digits = 0;
    for (; *text; text++) {
        if (*text == '-')
            continue;
        if (!isxdigit((unsigned char)*text) || digits == 32)
            return false;
        int digit =
            isdigit((unsigned char)*text) ? *text - '0' : tolower((unsigned char)*text) - 'a' + 10;
        uuid[digits / 2] = (uint8_t)(digits % 2 ? uuid[digits / 2] << 4 | digit : digit);
        digits++;
    }
    return digits == 32;
}

static bool matches(const struct engine_device *info, const char *wanted)
{
    if (is_index(wanted))
        return info->index == (uint32_t)strtoul(wanted, NULL, 10);
    uint8_t uuid[16];
    if (uuid_parse(wanted, uuid))
        return memcmp(uuid, info->uuid, sizeof uuid) == 0;
    return strcasestr(info->name, wanted) != NULL;
}

// "0: llvmpipe (...); 1: ..." in order of preference.
static void name_all(const struct adapter *list, uint32_t count, char *text, size_t size)
{
    text[0] = '\0';
    for (uint32_t i = 0, used = 0; i < count && used < size; i++)
        used += (uint32_t)snprintf(text + used, size - used, "%s%u: %s", i ? "; " : "",
                                   list[i].info.index, list[i].info.name);
}

enum status adapter_choose(const struct adapter *list, uint32_t count, const char *wanted,
                           bool require_gpu, const struct adapter **out, struct error *error)
{
    const struct adapter *found = NULL;
    for (uint32_t i = 0; i < count && !found; i++)
        if (!wanted || matches(&list[i].info, wanted))
            found = &list[i];
    if (found && found->info.software && require_gpu)
        return error_set(error, STATUS_NOT_FOUND,
                         "device %u (%.100s) runs on the CPU, and --require-gpu asks for a GPU",
                         found->info.index, found->info.name);
    if (!found) {
        char names[256];
        name_all(list, count, names, sizeof names);
        return error_set(error, STATUS_NOT_FOUND, "no device is \"%.64s\"; there %s, by index, %s",
                         wanted, count == 1 ? "is" : "are", names);
    }
    if (!found->info.usable)
        return error_set(error, STATUS_UNSUPPORTED, "device %u (%.100s) lacks %s",
                         found->info.index, found->info.name, found->info.missing);
    *out = found;
    return STATUS_OK;
}
