// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// matrices.c - see matrices.h. No state.

#include "matrices.h"

#include "vk.h"

#include <stdlib.h>

#ifdef VK_KHR_cooperative_matrix

// Older validation layers reject shaders with matrices, and some crash on them.
static const uint32_t least_layer = VK_MAKE_API_VERSION(0, 1, 3, 255);
static const uint32_t least_bfloat_layer = VK_MAKE_API_VERSION(0, 1, 4, 316);

// Whether a size is 16 x `columns` x 16, with f32 sums.
static bool is_ours(const VkCooperativeMatrixPropertiesKHR *one, VkComponentTypeKHR element,
                    uint32_t columns)
{
    return one->MSize == 16 && one->NSize == columns && one->KSize == 16 && one->AType == element &&
           one->BType == element && one->CType == VK_COMPONENT_TYPE_FLOAT32_KHR &&
           one->ResultType == VK_COMPONENT_TYPE_FLOAT32_KHR && one->scope == VK_SCOPE_SUBGROUP_KHR;
}

// A malloc'd array of sizes; NULL: there are none.
static VkCooperativeMatrixPropertiesKHR *list_shapes(const struct instance *instance,
                                                     VkPhysicalDevice physical,
                                                     uint32_t *num_shapes)
{
    PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR get =
        (PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)vkGetInstanceProcAddr(
            instance->handle, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
    uint32_t count = 0;
    if (!get || get(physical, &count, NULL) != VK_SUCCESS || count == 0)
        return NULL;
    VkCooperativeMatrixPropertiesKHR *list = vk_list(count, sizeof *list);
    for (uint32_t i = 0; list && i < count; i++)
        list[i].sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
    *num_shapes = list && get(physical, &count, list) >= 0 ? count : 0;
    return list;
}

static bool has_shape(const struct instance *instance, VkPhysicalDevice physical,
                      VkComponentTypeKHR element, uint32_t columns)
{
    uint32_t count = 0;
    VkCooperativeMatrixPropertiesKHR *list = list_shapes(instance, physical, &count);
    bool found = false;
    for (uint32_t i = 0; i < count && !found; i++)
        found = is_ours(&list[i], element, columns);
    free(list);
    return found;
}

static bool is_small(uint32_t size)
{
    return size == 8 || size == 16;
}

// The largest size for attention_coop.comp: it needs the fewest loads for a product.
static struct matrix_size best_size(const struct instance *instance, VkPhysicalDevice physical)
{
    uint32_t count = 0;
    VkCooperativeMatrixPropertiesKHR *list = list_shapes(instance, physical, &count);
    struct matrix_size best = {0};
    for (uint32_t i = 0; i < count; i++) {
        const VkCooperativeMatrixPropertiesKHR *one = &list[i];
        bool takes = one->AType == VK_COMPONENT_TYPE_FLOAT16_KHR &&
                     one->BType == VK_COMPONENT_TYPE_FLOAT16_KHR &&
                     one->CType == VK_COMPONENT_TYPE_FLOAT32_KHR &&
                     one->ResultType == VK_COMPONENT_TYPE_FLOAT32_KHR &&
                     one->scope == VK_SCOPE_SUBGROUP_KHR && is_small(one->MSize) &&
                     is_small(one->NSize) && is_small(one->KSize);
        if (takes && one->MSize * one->NSize * one->KSize > best.rows * best.columns * best.depth)
            best = (struct matrix_size){one->MSize, one->NSize, one->KSize};
    }
    free(list);
    return best;
}

static bool in_compute(VkPhysicalDevice physical)
{
    VkPhysicalDeviceCooperativeMatrixPropertiesKHR matrices = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_COOPERATIVE_MATRIX_PROPERTIES_KHR};
    VkPhysicalDeviceProperties2 properties = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, .pNext = &matrices};
    vkGetPhysicalDeviceProperties2(physical, &properties);
    return matrices.cooperativeMatrixSupportedStages & VK_SHADER_STAGE_COMPUTE_BIT;
}

// The same for bf16, after f16 was described.
static void describe_bfloats(const struct instance *instance, struct adapter *adapter)
{
    struct matrices *matrices = &adapter->matrices;
    if (!matrices->extension ||
        !adapter_has_extension(adapter->physical, VK_KHR_SHADER_BFLOAT16_EXTENSION_NAME))
        return;
    if (instance->layer_version && instance->layer_version < least_bfloat_layer) {
        matrices->bfloat_old_layer = instance->layer_version;
        return;
    }
    matrices->bfloat_extension = true; // see matrices_describe()
    struct features features;
    adapter_features(adapter, &features);
    matrices->bfloat_extension =
        features.bfloats.shaderBFloat16Type && features.bfloats.shaderBFloat16CooperativeMatrix;
    matrices->bfloat_shape =
        matrices->bfloat_extension &&
        has_shape(instance, adapter->physical, VK_COMPONENT_TYPE_BFLOAT16_KHR, 16);
}

void matrices_describe(const struct instance *instance, struct adapter *adapter)
{
    struct matrices *matrices = &adapter->matrices;
    if (adapter->info.api_version < VK_API_VERSION_1_2 ||
        !adapter_has_extension(adapter->physical, VK_KHR_COOPERATIVE_MATRIX_EXTENSION_NAME))
        return;
    if (instance->layer_version && instance->layer_version < least_layer) {
        matrices->old_layer = instance->layer_version;
        return;
    }
    matrices->extension = true; // lets adapter_features() ask for the feature
    struct features features;
    adapter_features(adapter, &features);
    matrices->extension = features.matrices.cooperativeMatrix && in_compute(adapter->physical);
    matrices->shape = matrices->extension &&
                      has_shape(instance, adapter->physical, VK_COMPONENT_TYPE_FLOAT16_KHR, 8);
    matrices->size =
        matrices->extension ? best_size(instance, adapter->physical) : (struct matrix_size){0};
    matrices->half = features.v12.shaderFloat16;
    matrices->memory_model = features.v12.vulkanMemoryModel;
    describe_bfloats(instance, adapter);
}

#else

void matrices_describe(const struct instance *instance, struct adapter *adapter)
{
    (void)instance;
    (void)adapter;
}

#endif
