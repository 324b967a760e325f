// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// matrix_product.c - see matrix_product.h. Tries each shape that the device offers, and keeps the
// best rate.

#include "matrix_product.h"

#ifdef AULE_HAVE_MATRIX

#include "engine/measuring.h"
#include "program.h"

#include "matrix_product_spv.h"

#include <stdlib.h>

enum { LOCAL_SIZE = 256, COLUMNS = 8 };

// Mirrors matrix_product.comp.
struct push {
    uint64_t sum;
    float seed;
    uint32_t rounds;
};

// The products that are recorded next.
struct products {
    struct program program;
    struct push push;
    uint32_t groups;
};

static void record(void *context, VkCommandBuffer commands)
{
    const struct products *p = context;
    program_dispatch(&p->program, commands, &p->push, p->groups);
}

static bool is_asked_for(const VkCooperativeMatrixPropertiesKHR *shape)
{
    return shape->AType == VK_COMPONENT_TYPE_FLOAT16_KHR &&
           shape->BType == VK_COMPONENT_TYPE_FLOAT16_KHR &&
           shape->CType == VK_COMPONENT_TYPE_FLOAT32_KHR &&
           shape->ResultType == VK_COMPONENT_TYPE_FLOAT32_KHR &&
           shape->scope == VK_SCOPE_SUBGROUP_KHR;
}

// A malloc'd list; NULL: there is none.
static VkCooperativeMatrixPropertiesKHR *shapes_of(const struct device *device, uint32_t *count)
{
    PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR get =
        (PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)vkGetInstanceProcAddr(
            device->instance.handle, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
    *count = 0;
    if (!get || get(device->adapter.physical, count, NULL) != VK_SUCCESS || !*count)
        return NULL;
    VkCooperativeMatrixPropertiesKHR *list = calloc(*count, sizeof *list);
    for (uint32_t i = 0; list && i < *count; i++)
        list[i].sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
    if (list && get(device->adapter.physical, count, list) < 0)
        *count = 0;
    return list;
}

static double measure(struct stopwatch *watch, const struct buffer *sum,
                      const VkCooperativeMatrixPropertiesKHR *shape, struct error *error)
{
    struct device *device = watch->transfer.device;
    const struct engine_device *info = &device->adapter.info;
    struct products products = {
        .push = {.sum = sum->address, .seed = 0x1p-8f, .rounds = info->software ? 16 : 4096},
        .groups = info->software ? 4 : 1056};
    const uint32_t constants[] = {shape->MSize, shape->NSize, shape->KSize, LOCAL_SIZE};
    const struct program_params params = {.code = matrix_product_spv,
                                          .size = sizeof matrix_product_spv,
                                          .push_size = sizeof(struct push),
                                          .constants = constants,
                                          .num_constants = sizeof constants / sizeof *constants};
    double ns = 0;
    if (program_init(&products.program, device, &params, error) == STATUS_OK)
        ns = stopwatch_ns(watch, record, &products, error);
    program_finish(&products.program);
    double subgroups = (double)products.groups * LOCAL_SIZE / info->subgroup_size;
    double flops = 2.0 * shape->MSize * shape->NSize * shape->KSize * COLUMNS *
                   products.push.rounds * subgroups;
    return ns > 0 ? flops / ns * 1e-3 : 0;
}

enum status matrix_product_tflops(struct stopwatch *watch, double *tflops, struct error *error)
{
    struct device *device = watch->transfer.device;
    const struct matrices *matrices = &device->adapter.matrices;
    struct buffer sum = {0};
    uint32_t count = 0;
    *tflops = 0;
    if (!matrices->extension || !matrices->half || !matrices->memory_model)
        return STATUS_OK;
    enum status status = buffer_init(device, MEMORY_POOL, 256, "sum of products", &sum, error);
    VkCooperativeMatrixPropertiesKHR *shapes = shapes_of(device, &count);
    for (uint32_t i = 0; shapes && status == STATUS_OK && i < count; i++) {
        if (!is_asked_for(&shapes[i]))
            continue;
        double reached = measure(watch, &sum, &shapes[i], error);
        if (!(reached > 0))
            status = error->status;
        *tflops = reached > *tflops ? reached : *tflops;
    }
    free(shapes);
    buffer_finish(device, &sum);
    return status;
}

#else

enum status matrix_product_tflops(struct stopwatch *watch, double *tflops, struct error *error)
{
    (void)watch;
    (void)error;
    *tflops = 0;
    return STATUS_OK;
}

#endif
