// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// adapter.h - the machine's Vulkan devices as they are before one is opened: what each is, what it
// lacks, which one is meant.

#ifndef AULE_ENGINE_ADAPTER_H
#define AULE_ENGINE_ADAPTER_H

#include "engine/engine.h"
#include "instance.h"
#include "vk_bfloat16.h"

// The features that the engine asks for, chained; adapter_features() chains and fills them.
struct features {
    VkPhysicalDeviceFeatures2 core;
    VkPhysicalDeviceVulkan11Features v11;
    VkPhysicalDeviceVulkan12Features v12;
    VkPhysicalDeviceSubgroupSizeControlFeatures subgroups; // only where the device knows it
#ifdef VK_KHR_cooperative_matrix
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrices; // the same
#endif
    VkPhysicalDeviceShaderBfloat16FeaturesKHR bfloats;                   // the same
    VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR executables; // the same
};

// What variants may ask of subgroups in compute shaders; the usual size is info.subgroup_size.
struct subgroups {
    VkSubgroupFeatureFlags operations; // VK_SUBGROUP_FEATURE_*; 0: compute shaders have none
    bool size_control;                 // a pipeline can ask for a size
    bool full;                         // a pipeline can ask that all are full
    uint32_t least_size, most_size;    // that a pipeline can ask for
    bool extension; // by VK_EXT_subgroup_size_control: the device is older than Vulkan 1.3
};

// Whether a driver's matrices lie in the lanes that shaders/matrix.glsl expects, and hold what is
// too large for a number.
enum matrix_lanes {
    MATRIX_LANES_UNKNOWN, // nobody has looked: the device is not open, or it lacks something else
    MATRIX_LANES_AGREE,
    MATRIX_LANES_DIFFER,
    MATRIX_LANES_BOUNDED, // they agree, but what is too large comes out as if it were a number
};

// Of a product C[rows, columns] += A[rows, depth] B[depth, columns].
struct matrix_size {
    uint32_t rows, columns, depth;
};

// What shaders/matrix.glsl needs of cooperative matrices, and attention_coop.comp; headers that do
// not know them leave all as it is at 0.
struct matrices {
    uint32_t old_layer; // version of a validation layer that knows none: the rest is not asked for;
                        // 0 = no such layer
    bool extension;     // the device has them in compute shaders
    bool shape;         // 16x8x16 of f16, sums in f32, by subgroups
    bool half, memory_model; // what else a shader with them uses
    enum matrix_lanes lanes;
    struct matrix_size
        size; // for attention_coop.comp: f16, sums in f32, by subgroups; 0 = none that it takes
    // Of bf16, by the same rules.
    uint32_t bfloat_old_layer;
    bool bfloat_extension;
    bool bfloat_shape; // 16x16x16
    enum matrix_lanes bfloat_lanes;
};

struct adapter {
    VkPhysicalDevice physical;
    struct engine_device info;
    VkPhysicalDeviceMemoryProperties memory;
    uint32_t pool_heap;           // the heap that the pool lives in
    uint32_t queue_family;        // UINT32_MAX = none can compute
    uint32_t timestamp_bits;      // of that family; 0 = no timestamps
    double timestamp_ns;          // of one tick
    uint32_t max_groups[3];       // workgroups of one dispatch
    uint32_t max_invocations;     // of a workgroup
    uint32_t num_multiprocessors; // or what is taken for it where the device does not say
    struct subgroups subgroups;
    struct matrices matrices;
    bool memory_budget; // VK_EXT_memory_budget
    bool statistics; // VK_KHR_pipeline_executable_properties; of an open device, only if they are
                     // wanted
};

// A malloc'd array, best first: usable before unusable, discrete, integrated, virtual, others, CPU.
// NOT_FOUND: there is none. `least_shared_memory`: bytes a workgroup that a usable one has.
enum status adapter_list(const struct instance *instance, bool force_staging,
                         uint32_t least_shared_memory, struct adapter **out, uint32_t *count,
                         struct error *error);
// Fills *features with those of the required and of the optional ones that `adapter` has.
void adapter_features(const struct adapter *adapter, struct features *features);
// The best one that `wanted` (engine_params.device) means. NOT_FOUND lists them all; UNSUPPORTED
// says what is missing.
enum status adapter_choose(const struct adapter *list, uint32_t count, const char *wanted,
                           const struct adapter **out, struct error *error);
bool adapter_has_extension(VkPhysicalDevice physical, const char *name);
// Bytes left in the pool's heap: the driver's budget, else the heap less `used`.
uint64_t adapter_budget(const struct adapter *adapter, uint64_t used);

#endif
