// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_coop.c - compiler, loader and driver agree on what a cooperative matrix is: plain products
// of every shape that the device offers in f16 or bf16 with sums in f32. Whole numbers, so that
// each is exact in whatever order it is summed. Knows nothing of attention. Exit code 77: the build
// or the device has none.

#include <stdint.h>
#include <stdio.h>

#ifdef AULE_HAVE_MATRIX

#include "engine/kernels/variant.h"
#include "engine/vulkan/transfer.h"
#include "tools/bench/gpu/program.h"

#include "coop_multiply_bf16_spv.h"
#include "coop_multiply_spv.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST = 64,
    LARGEST = 16
}; // rows or columns of a matrix that is looked at; magnitude of a number in A and B

struct push {
    uint64_t a, b, c;
};

struct operands {
    uint16_t a[MOST * MOST], b[MOST * MOST];
    float c[MOST * MOST];
};

static struct device device;
static struct transfer transfer;
static struct buffer buffer;
static VkCooperativeMatrixPropertiesKHR *shapes;
static uint32_t num_shapes, noise = 4711;

static void on_log(void *context, int level, const char *format, const char *text)
{
    (void)context;
    (void)format;
    (void)level;
    if (strstr(text, "validation:"))
        ck_abort_msg("%s", text);
}

static bool is_element(VkComponentTypeKHR type)
{
    return type == VK_COMPONENT_TYPE_FLOAT16_KHR ||
           (type == VK_COMPONENT_TYPE_BFLOAT16_KHR && device.adapter.matrices.bfloat_extension);
}

// In f16 or bf16 with sums in f32, of no more than MOST.
static bool is_looked_at(const VkCooperativeMatrixPropertiesKHR *shape)
{
    return is_element(shape->AType) && shape->BType == shape->AType &&
           shape->CType == VK_COMPONENT_TYPE_FLOAT32_KHR &&
           shape->ResultType == VK_COMPONENT_TYPE_FLOAT32_KHR &&
           shape->scope == VK_SCOPE_SUBGROUP_KHR && !shape->saturatingAccumulation &&
           shape->MSize <= MOST && shape->NSize <= MOST && shape->KSize <= MOST;
}

// Keeps of the device's list what is looked at.
static void find_shapes(void)
{
    PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR get =
        (PFN_vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR)vkGetInstanceProcAddr(
            device.instance.handle, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
    uint32_t count = 0;
    const struct matrices *matrices = &device.adapter.matrices;
    if (!get || !matrices->extension || !matrices->half || !matrices->memory_model ||
        get(device.adapter.physical, &count, NULL) != VK_SUCCESS || !count)
        return;
    shapes = calloc(count, sizeof *shapes);
    for (uint32_t i = 0; i < count; i++)
        shapes[i].sType = VK_STRUCTURE_TYPE_COOPERATIVE_MATRIX_PROPERTIES_KHR;
    if (get(device.adapter.physical, &count, shapes) != VK_SUCCESS)
        return;
    for (uint32_t i = 0; i < count; i++)
        if (is_looked_at(&shapes[i]))
            shapes[num_shapes++] = shapes[i];
}

static int whole_number(void)
{
    noise = noise * 1664525u + 1013904223u;
    return (int)(noise >> 16) % (2 * LARGEST + 1) - LARGEST;
}

static uint16_t element_of(int number, VkComponentTypeKHR type)
{
    const float wide = (float)number;
    const _Float16 half = (_Float16)wide;
    uint32_t bits = 0;
    if (type == VK_COMPONENT_TYPE_BFLOAT16_KHR) {
        memcpy(&bits, &wide, sizeof wide);
        return (uint16_t)(bits >> 16);
    }
    memcpy(&bits, &half, sizeof half);
    return (uint16_t)bits;
}

static void multiply(const VkCooperativeMatrixPropertiesKHR *shape)
{
    struct error error = {0};
    struct program program = {0};
    const uint32_t values[] = {shape->MSize, shape->NSize, shape->KSize,
                               device.adapter.info.subgroup_size};
    VkSpecializationMapEntry entries[sizeof values / sizeof *values];
    for (uint32_t i = 0; i < sizeof values / sizeof *values; i++)
        entries[i] = (VkSpecializationMapEntry){i, i * (uint32_t)sizeof *values, sizeof *values};
    const VkSpecializationInfo constants = {.mapEntryCount = sizeof values / sizeof *values,
                                            .pMapEntries = entries,
                                            .dataSize = sizeof values,
                                            .pData = values};
    const bool bfloat = shape->AType == VK_COMPONENT_TYPE_BFLOAT16_KHR;
    const struct program_params params = {
        .code = bfloat ? coop_multiply_bf16_spv : coop_multiply_spv,
        .size = bfloat ? sizeof coop_multiply_bf16_spv : sizeof coop_multiply_spv,
        .push_size = sizeof(struct push),
        .constants = &constants};
    const struct push push = {.a = buffer.address + offsetof(struct operands, a),
                              .b = buffer.address + offsetof(struct operands, b),
                              .c = buffer.address + offsetof(struct operands, c)};
    ck_assert_msg(program_init(&program, &device, &params, &error) == STATUS_OK, "%s", error.text);
    ck_assert_msg(transfer_begin(&transfer, &error) == STATUS_OK, "%s", error.text);
    program_dispatch(&program, transfer.commands, &push, 1);
    ck_assert_msg(transfer_end(&transfer, &error) == STATUS_OK, "%s", error.text);
    program_finish(&program);
}

START_TEST(products_of_every_shape_are_exact)
{
    const VkCooperativeMatrixPropertiesKHR *shape = &shapes[_i];
    const uint32_t rows = shape->MSize, columns = shape->NSize, inner = shape->KSize;
    struct operands *operands = buffer.mapped;
    static int a[MOST * MOST], b[MOST * MOST];
    float expected[MOST * MOST];
    for (uint32_t i = 0; i < MOST * MOST; i++) {
        operands->a[i] = element_of(a[i] = whole_number(), shape->AType);
        operands->b[i] = element_of(b[i] = whole_number(), shape->AType);
        operands->c[i] = (float)whole_number();
    }
    for (uint32_t row = 0; row < rows; row++)
        for (uint32_t column = 0; column < columns; column++) {
            float *sum = &expected[row * columns + column];
            *sum = operands->c[row * columns + column];
            for (uint32_t i = 0; i < inner; i++)
                *sum += (float)(a[row * inner + i] * b[i * columns + column]);
        }
    printf("%u x %u x %u of %s\n", rows, columns, inner,
           shape->AType == VK_COMPONENT_TYPE_FLOAT16_KHR ? "f16" : "bf16");
    multiply(shape);
    for (uint32_t i = 0; i < rows * columns; i++)
        ck_assert_msg(operands->c[i] == expected[i], "%u x %u x %u: element %u is %g, expected %g",
                      rows, columns, inner, i, (double)operands->c[i], (double)expected[i]);
}
END_TEST

static int run_suite(void)
{
    Suite *suite = suite_create("coop");
    TCase *tcase = tcase_create("products");
    tcase_add_loop_test(tcase, products_of_every_shape_are_exact, 0, (int)num_shapes);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK); // the device is open
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

int main(void)
{
    struct error error = {0};
    int code = 77;
    const struct engine_params params = {.log = on_log,
                                         .validation = getenv("AULE_TEST_VALIDATION") != NULL};
    if (device_init(&device, &params, variant_least_shared_memory(), false, &error) != STATUS_OK)
        printf("skipped: %s\n", error.text);
    else
        find_shapes();
    if (device.handle && !num_shapes)
        printf("skipped: %s has no cooperative matrices of f16 with sums in f32\n",
               device.adapter.info.name);
    if (num_shapes && !device.adapter.matrices.bfloat_extension)
        printf("bf16 is left out: %s has no VK_KHR_shader_bfloat16 with matrices\n",
               device.adapter.info.name);
    if (num_shapes) {
        code = EXIT_FAILURE;
        if (transfer_init(&transfer, &device, &error) == STATUS_OK &&
            buffer_init(&device, MEMORY_STAGING, sizeof(struct operands), "operands", &buffer,
                        &error) == STATUS_OK)
            code = run_suite();
        else
            printf("%s\n", error.text);
    }
    free(shapes);
    buffer_finish(&device, &buffer);
    transfer_finish(&transfer);
    device_finish(&device);
    return code;
}

#else

int main(void)
{
    printf("skipped: built without cooperative matrices, which compiler or headers do not know\n");
    return 77;
}

#endif
