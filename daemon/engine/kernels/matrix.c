// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// matrix.c - what a device lacks of cooperative matrices (vulkan/matrices.h), and a probe of which
// lane has which elements. shaders/matrix.glsl writes elements itself, although Vulkan leaves their
// place to the driver. Knows nothing of attention. The thread that opens the device.

#include "matrix.h"

#include "engine/vulkan/vk.h"
#include "pipeline.h"
#include "shaders/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void write_old_layer(uint32_t layer, const char *what, char *text, size_t size)
{
    snprintf(text, size, "a validation layer that knows %s (%u.%u.%u does not)", what,
             VK_API_VERSION_MAJOR(layer), VK_API_VERSION_MINOR(layer), VK_API_VERSION_PATCH(layer));
}

// Needs of every shader with matrices. `sized`: the device has matrices of the sizes that `sizes`
// names.
static void any_missing(const struct adapter *adapter, bool sized, const char *sizes, char *text,
                        size_t size)
{
    const struct matrices *matrices = &adapter->matrices;
#ifndef AULE_HAVE_MATRIX
    snprintf(
        text, size,
        "support in this build: aule was built without a shader compiler or headers for matrices");
    return;
#endif
    text[0] = '\0';
    if (matrices->old_layer)
        write_old_layer(matrices->old_layer, "cooperative matrices", text, size);
    else if (!matrices->extension)
        snprintf(text, size, "cooperative matrices (VK_KHR_cooperative_matrix)");
    else if (!sized)
        snprintf(text, size, "cooperative matrices of %s (f16, sums in f32)", sizes);
    else if (!matrices->half)
        snprintf(text, size, "f16 in shaders (shaderFloat16)");
    else if (!matrices->memory_model)
        snprintf(text, size, "Vulkan's memory model (vulkanMemoryModel)");
}

static void write_lanes(enum matrix_lanes lanes, const char *what, char *text, size_t size)
{
    if (lanes == MATRIX_LANES_DIFFER)
        snprintf(text, size, "%s that it can use: their elements lie in other lanes than expected",
                 what);
    else if (lanes == MATRIX_LANES_BOUNDED)
        snprintf(text, size, "%s that it can use: a sum that is too large becomes a number", what);
}

void matrix_missing(const struct adapter *adapter, char *text, size_t size)
{
    const struct matrices *matrices = &adapter->matrices;
    const VkSubgroupFeatureFlags wanted =
        VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_SHUFFLE_BIT |
        VK_SUBGROUP_FEATURE_VOTE_BIT | VK_SUBGROUP_FEATURE_BALLOT_BIT;
    any_missing(adapter, matrices->shape, "16x8x16", text, size);
    if (text[0])
        return;
    if (adapter->info.subgroup_size != 32)
        snprintf(text, size, "subgroups of 32 invocations (it has %u)",
                 adapter->info.subgroup_size);
    else if ((adapter->subgroups.operations & wanted) != wanted || !adapter->subgroups.full)
        snprintf(text, size,
                 "full subgroups with shuffles, votes and broadcasts in compute shaders");
    else
        write_lanes(matrices->lanes, "matrices", text, size);
}

void matrix_shared_missing(const struct adapter *adapter, char *text, size_t size)
{
    const VkSubgroupFeatureFlags wanted =
        VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_SHUFFLE_BIT;
    const uint32_t invocations = adapter->info.subgroup_size;
    any_missing(adapter, adapter->matrices.size.rows, "8 or 16 rows, columns and depth", text,
                size);
    if (text[0])
        return;
    if (invocations < 8 || invocations > 64)
        snprintf(text, size, "subgroups of 8 to 64 invocations (it has %u)", invocations);
    else if ((adapter->subgroups.operations & wanted) != wanted || !adapter->subgroups.full)
        snprintf(text, size, "full subgroups with shuffles in compute shaders");
}

void matrix_bfloat_missing(const struct adapter *adapter, char *text, size_t size)
{
    const struct matrices *matrices = &adapter->matrices;
    matrix_missing(adapter, text, size);
    if (text[0])
        return;
    if (matrices->bfloat_old_layer)
        write_old_layer(matrices->bfloat_old_layer, "bf16", text, size);
    else if (!matrices->bfloat_extension)
        snprintf(text, size, "bf16 in cooperative matrices (VK_KHR_shader_bfloat16)");
    else if (!matrices->bfloat_shape)
        snprintf(text, size, "cooperative matrices of 16x16x16 (bf16, sums in f32)");
    else
        write_lanes(matrices->bfloat_lanes, "matrices of bf16", text, size);
}

// ---- the probe ----

enum { LANES = 32, WARPS = 2, ROWS = 16, COLUMNS = 8, DEPTH = 16 };

// Small whole numbers: their products and sums are exact in any order.
struct problem {
    int a[ROWS][DEPTH], b[DEPTH][COLUMNS], c[ROWS][COLUMNS];
};

static int draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (int)(*state >> 24) % 31 - 15;
}

static void problem_fill(struct problem *problem, uint32_t state)
{
    for (int i = 0; i < ROWS * DEPTH; i++)
        problem->a[i / DEPTH][i % DEPTH] = draw(&state);
    for (int i = 0; i < DEPTH * COLUMNS; i++)
        problem->b[i / COLUMNS][i % COLUMNS] = draw(&state);
    for (int i = 0; i < ROWS * COLUMNS; i++)
        problem->c[i / COLUMNS][i % COLUMNS] = draw(&state);
}

// f16 of a whole number below 2^10.
static uint32_t half(int value)
{
    uint32_t magnitude = (uint32_t)(value < 0 ? -value : value), exponent = 0;
    if (magnitude == 0)
        return 0;
    while (magnitude >> exponent > 1)
        exponent++;
    return (value < 0 ? 0x8000u : 0) | (exponent + 15) << 10 |
           (magnitude << (10 - exponent) & 0x3ffu);
}

// bf16 of a whole number below 2^8.
static uint32_t bfloat(int value)
{
    float number = (float)value;
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits >> 16;
}

uint32_t matrix_element(int value, enum dtype dtype)
{
    return dtype == DTYPE_F16 ? half(value) : bfloat(value);
}

static uint32_t pair(int low, int high, enum dtype dtype)
{
    return matrix_element(low, dtype) | matrix_element(high, dtype) << 16;
}

// Fills in what matrix.glsl expects in lane 4 g + t.
static void lane_fill(const struct problem *problem, enum dtype dtype, uint32_t g, uint32_t t,
                      struct gpu_matrix_lane *lane)
{
    for (uint32_t i = 0; i < 4; i++) {
        const int *row = problem->a[g + i / 2 * 8];
        uint32_t column = 2 * t + i % 2 * 8;
        int sum = problem->c[g + i / 2 * 8][2 * t + i % 2];
        lane->a[i] = pair(row[column], row[column + 1], dtype);
        lane->c[i] = (float)sum;
        lane->sums[i] = -1e30f;
    }
    for (uint32_t i = 0; i < 2; i++)
        lane->b[i] = pair(problem->b[2 * t + i * 8][g], problem->b[2 * t + i * 8 + 1][g], dtype);
}

// Fills in a sum that is too large, as attention_prefill.comp may meet it. f16: the number itself
// is too large and is multiplied by 0 or 1. bf16: the product is too large for f32.
static void lane_fill_large(enum dtype dtype, uint32_t g, struct gpu_matrix_lane *lane)
{
    int times = dtype == DTYPE_F16 ? (int)(g % 2) : 16;
    lane->large = dtype == DTYPE_F16 ? 1e6f : 1e38f;
    for (uint32_t i = 0; i < 2; i++)
        lane->times[i] = pair(times, times, dtype);
    for (uint32_t i = 0; i < 4; i++)
        lane->beyond[i] = 0;
}

static bool lane_is_unbounded(const struct gpu_matrix_lane *lane)
{
    bool unbounded = true;
    for (uint32_t i = 0; i < 4; i++)
        unbounded &= (lane->beyond[i] & 0x7fffffffu) >= AULE_PREFILL_NO_SUM;
    return unbounded;
}

static bool lane_agrees(const struct problem *problem, uint32_t g, uint32_t t,
                        const struct gpu_matrix_lane *lane)
{
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t row = g + i / 2 * 8, column = 2 * t + i % 2;
        int sum = problem->c[row][column];
        for (int k = 0; k < DEPTH; k++)
            sum += problem->a[row][k] * problem->b[k][column];
        if (lane->sums[i] != (float)sum)
            return false;
    }
    return true;
}

// The objects that the probe needs on the GPU.
struct rig {
    struct device *device;
    struct buffer buffer; // struct gpu_matrix_lane[WARPS * LANES]
    VkShaderModule module;
    VkPipelineLayout layout;
    VkPipeline pipeline;
};

static enum status rig_init(struct rig *rig, const struct shader *shader, struct error *error)
{
    struct device *device = rig->device;
    uint32_t local_size = WARPS * LANES;
    enum status status =
        buffer_init(device, MEMORY_STAGING, WARPS * LANES * sizeof(struct gpu_matrix_lane),
                    "matrix probe", &rig->buffer, error);
    if (status == STATUS_OK)
        status = shader_module(device, shader, &rig->module, error);
    if (status != STATUS_OK)
        return status;
    VkPushConstantRange range = {.stageFlags = VK_SHADER_STAGE_COMPUTE_BIT,
                                 .size = sizeof(struct gpu_matrix_probe)};
    VkPipelineLayoutCreateInfo layout = {
        .sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
        .pushConstantRangeCount = 1,
        .pPushConstantRanges = &range,
    };
    VK_TRY(vkCreatePipelineLayout(device->handle, &layout, NULL, &rig->layout));
    VkSpecializationMapEntry entry = {AULE_SPEC_LOCAL_SIZE, 0, sizeof local_size};
    VkSpecializationInfo constants = {1, &entry, sizeof local_size, &local_size};
    VkPipelineShaderStageRequiredSubgroupSizeCreateInfo size;
    VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = rig->module,
                  .pName = "main",
                  .pSpecializationInfo = &constants},
        .layout = rig->layout,
    };
    if (shader->full_subgroups)
        shader_ask_for_subgroups(&device->adapter, &info.stage, &size);
    VK_TRY(
        vkCreateComputePipelines(device->handle, VK_NULL_HANDLE, 1, &info, NULL, &rig->pipeline));
fail:
    return status;
}

static void rig_finish(struct rig *rig) // takes a half-built one
{
    VkDevice handle = rig->device->handle;
    vkDestroyPipeline(handle, rig->pipeline, NULL);
    vkDestroyPipelineLayout(handle, rig->layout, NULL);
    vkDestroyShaderModule(handle, rig->module, NULL);
    buffer_finish(rig->device, &rig->buffer);
}

static enum status rig_run(const struct rig *rig, struct transfer *transfer, struct error *error)
{
    struct gpu_matrix_probe constants = {.lanes = rig->buffer.address};
    enum status status = transfer_begin(transfer, error);
    if (status != STATUS_OK)
        return status;
    vkCmdBindPipeline(transfer->commands, VK_PIPELINE_BIND_POINT_COMPUTE, rig->pipeline);
    vkCmdPushConstants(transfer->commands, rig->layout, VK_SHADER_STAGE_COMPUTE_BIT, 0,
                       sizeof constants, &constants);
    vkCmdDispatch(transfer->commands, 1, 1, 1);
    return transfer_end(transfer, error);
}

static enum matrix_lanes lanes_judge(const struct problem problems[WARPS],
                                     const struct gpu_matrix_lane *lanes)
{
    bool agree = true, unbounded = true;
    for (uint32_t i = 0; i < WARPS * LANES; i++) {
        agree &= lane_agrees(&problems[i / LANES], i % LANES / 4, i % 4, &lanes[i]);
        unbounded &= lane_is_unbounded(&lanes[i]);
    }
    return !agree ? MATRIX_LANES_DIFFER : unbounded ? MATRIX_LANES_AGREE : MATRIX_LANES_BOUNDED;
}

enum status matrix_probe(struct transfer *transfer, const struct shader *shader, enum dtype dtype,
                         enum matrix_lanes *found, struct error *error)
{
    struct rig rig = {.device = transfer->device};
    struct problem problems[WARPS];
    enum status status = rig_init(&rig, shader, error);
    struct gpu_matrix_lane *lanes = rig.buffer.mapped;
    for (uint32_t i = 0; i < WARPS; i++)
        problem_fill(&problems[i], 4711 + i);
    for (uint32_t i = 0; status == STATUS_OK && i < WARPS * LANES; i++) {
        lane_fill(&problems[i / LANES], dtype, i % LANES / 4, i % 4, &lanes[i]);
        lane_fill_large(dtype, i % LANES / 4, &lanes[i]);
    }
    if (status == STATUS_OK)
        status = rig_run(&rig, transfer, error);
    *found = status == STATUS_OK ? lanes_judge(problems, lanes) : MATRIX_LANES_DIFFER;
    // After a loss the GPU may still write to the buffer.
    if (status != STATUS_DEVICE_LOST)
        rig_finish(&rig);
    return status;
}

#ifdef AULE_HAVE_MATRIX
static enum matrix_lanes look(struct device *device, struct transfer *transfer,
                              const struct shader *shader, enum dtype dtype)
{
    enum matrix_lanes found = MATRIX_LANES_DIFFER;
    struct error error = {0};
    if (matrix_probe(transfer, shader, dtype, &found, &error) != STATUS_OK)
        device_log(device, 1, "%s could not check the matrices: %s", shader->name, error.text);
    return found;
}
#endif

void matrix_look(struct device *device, struct transfer *transfer)
{
#ifdef AULE_HAVE_MATRIX
    char missing[256];
    struct matrices *matrices = &device->adapter.matrices;
    matrix_missing(&device->adapter, missing, sizeof missing);
    if (missing[0])
        return;
    matrices->lanes = look(device, transfer, &shader_matrix_probe, DTYPE_F16);
    matrix_bfloat_missing(&device->adapter, missing, sizeof missing);
    if (missing[0])
        return;
    matrices->bfloat_lanes = look(device, transfer, &shader_matrix_probe_bf16, DTYPE_BF16);
#else
    (void)device;
    (void)transfer;
#endif
}
