// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// adapter.h - describes the machine's Vulkan devices before one is opened: what each is, what it
// lacks, and which one a name means. Opens none. Any thread; no state.

#ifndef AULE_ENGINE_ADAPTER_H
#define AULE_ENGINE_ADAPTER_H

#include "engine/engine.h"
#include "instance.h"
#include "vk_bfloat16.h"

// The Vulkan features that the engine asks for. adapter_features() chains and fills the structs.
struct features {
    VkPhysicalDeviceFeatures2 core;
    VkPhysicalDeviceVulkan11Features v11;
    VkPhysicalDeviceVulkan12Features v12;
    VkPhysicalDeviceSubgroupSizeControlFeatures subgroups; // chained only if the device knows it
#ifdef VK_KHR_cooperative_matrix
    VkPhysicalDeviceCooperativeMatrixFeaturesKHR matrices; // likewise
#endif
    VkPhysicalDeviceShaderBfloat16FeaturesKHR bfloats;                   // likewise
    VkPhysicalDevicePipelineExecutablePropertiesFeaturesKHR executables; // likewise
};

// Subgroups in compute shaders. The usual size is info.subgroup_size.
struct subgroups {
    VkSubgroupFeatureFlags operations; // VK_SUBGROUP_FEATURE_*; 0: compute shaders have none
    bool size_control;                 // a pipeline can ask for a subgroup size
    bool full;                         // a pipeline can ask for full subgroups
    uint32_t least_size, most_size;    // sizes that a pipeline can ask for
    bool extension; // VK_EXT_subgroup_size_control: the device is older than Vulkan 1.3
};

// Whether a driver puts matrix elements into the lanes that shaders/matrix.glsl expects, and
// whether sums that are too large become Inf or NaN.
enum matrix_lanes {
    MATRIX_LANES_UNKNOWN, // not probed: the device is not open, or it lacks something else
    MATRIX_LANES_AGREE,
    MATRIX_LANES_DIFFER,
    MATRIX_LANES_BOUNDED, // elements as expected, but a sum that is too large becomes a number
};

// The size of a product C[rows, columns] += A[rows, depth] B[depth, columns].
struct matrix_size {
    uint32_t rows, columns, depth;
};

// Cooperative matrices, as shaders/matrix.glsl and attention_coop.comp need them. All 0 if the
// headers do not know them.
struct matrices {
    // Vulkan version of a validation layer that does not know matrices; the device is then not
    // asked for the rest. 0 = no such layer.
    uint32_t old_layer;
    bool extension;          // compute shaders have cooperative matrices
    bool shape;              // 16x8x16 of f16, f32 sums, subgroup scope
    bool half, memory_model; // shaderFloat16 and vulkanMemoryModel, which matrix shaders use
    enum matrix_lanes lanes;
    // The largest size for attention_coop.comp: f16, f32 sums, subgroup scope. 0 = none that fits.
    struct matrix_size size;
    // The same for bf16.
    uint32_t bfloat_old_layer;
    bool bfloat_extension;
    bool bfloat_shape; // 16x16x16
    enum matrix_lanes bfloat_lanes;
};

// Native kernels (native.h).
struct natives {
    bool extension; // VK_NVX_binary_import
    // The device has a queue family for compute without graphics. On one with graphics, a launch
    // with more than 48 KiB of shared memory loses the device.
    bool family;
    // That family, its queues and its valid bits; the other one's, if `taken`.
    uint32_t queue_family, num_queues, timestamp_bits;
    bool taken;        // the open device has the extension and that family
    char failure[128]; // what else it lacks, if it has the extension and the family; "" = nothing
};

struct adapter {
    VkPhysicalDevice physical;
    struct engine_device info;
    VkPhysicalDeviceMemoryProperties memory;
    uint32_t pool_heap;       // index of the heap that holds the pool
    uint32_t queue_family;    // UINT32_MAX = no family can compute
    uint32_t num_queues;      // queues of that family
    uint32_t timestamp_bits;  // valid bits in that family; 0 = no timestamps
    uint32_t haul_family;     // the first family that only transfers; UINT32_MAX = none
    uint32_t num_haul_queues; // queues of that family
    double timestamp_ns;      // ns of one tick
    uint32_t max_groups[3];   // most workgroups of a dispatch in x, y and z
    uint32_t max_invocations; // most invocations of a workgroup
    struct subgroups subgroups;
    struct matrices matrices;
    struct natives natives;
    bool memory_budget; // VK_EXT_memory_budget
    // VK_KHR_pipeline_executable_properties. For an open device only if asked for.
    bool statistics;
};

// A malloc'd array, best first: usable before unusable; then discrete, integrated, virtual, other,
// CPU. A usable device has `least_shared_memory` bytes for a workgroup. NOT_FOUND: there is none.
enum status adapter_list(const struct instance *instance, bool force_staging,
                         uint32_t least_shared_memory, struct adapter **out, uint32_t *count,
                         struct error *error);
// Sets *features to the required and optional ones that `adapter` has.
void adapter_features(const struct adapter *adapter, struct features *features);
// Finds the best device that matches `wanted` (engine_params.device). NOT_FOUND: the error lists
// all devices, or with `require_gpu` names the one that runs on the CPU. UNSUPPORTED: the error
// says what the device lacks.
enum status adapter_choose(const struct adapter *list, uint32_t count, const char *wanted,
                           bool require_gpu, const struct adapter **out, struct error *error);
bool adapter_has_extension(VkPhysicalDevice physical, const char *name);
// Bytes left in the pool's heap: the driver's budget, else the heap's size minus `used`.
uint64_t adapter_budget(const struct adapter *adapter, uint64_t used);

#endif
