// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_kv.c - the suite of K/V writes, gathers, copies and merges on a real device, under the
// validation layer if the build asks for it; exit code 77: Vulkan finds no device. This file: what
// is written, bit for bit, for every pair of types and every scale mode.

#include "rigs/kv_world.h"

#include <math.h>
#include <string.h>

enum { HEADS = 4, DIM = 64, SLOTS = 256, BLOCKS = 8, NUMBERS = SLOTS * HEADS * DIM };

static const enum dtype dtypes[] = {DTYPE_F32,      DTYPE_F16,      DTYPE_BF16,
                                    DTYPE_FP8_E4M3, DTYPE_FP8_E5M2, DTYPE_INT8};
static const enum dtype small_dtypes[] = {DTYPE_FP8_E4M3, DTYPE_FP8_E5M2, DTYPE_INT8};

static struct engine_kv kv_of(enum dtype k, enum dtype v, enum scale_mode mode)
{
    return (struct engine_kv){.num_kv_heads = HEADS,
                              .head_dim_k = DIM,
                              .head_dim_v = DIM,
                              .block_size = SLOTS / BLOCKS,
                              .k_dtype = k,
                              .v_dtype = v,
                              .scale_mode = mode};
}

// Rows have another order in the blocks than in the tensor.
static int64_t slot_of(uint32_t token)
{
    return (token * 37 + 5) % SLOTS;
}

// Writes the tensor at the start of the arena, all NUMBERS of it, to K and to V. Returns the blocks
// afterwards; malloc'd.
static uint8_t *write_numbers(struct engine_kv kv, enum dtype io, float k_scale, float v_scale)
{
    int64_t slots[SLOTS];
    for (uint32_t i = 0; i < SLOTS; i++)
        slots[i] = slot_of(i);
    struct engine_cache *cache = kv_cache(kv, BLOCKS);
    struct engine_batch *batch = open_batch((struct engine_batch_params){
        .engine = engine, .cache = cache, .num_tokens = SLOTS, .slot_mapping = slots, .kv = kv});
    struct engine_tensor rows = dense(0, HEADS, DIM, io);
    kv_run(&(struct engine_run){.kind = ENGINE_WRITE,
                                .batch = batch,
                                .arena = arena,
                                .num_heads = HEADS,
                                .k = rows,
                                .v = rows,
                                .k_scale = k_scale,
                                .v_scale = v_scale});
    uint8_t *blocks = kv_blocks(cache, BLOCKS);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
    return blocks;
}

static void expect_element(const uint8_t *blocks, const struct engine_kv *kv, enum dtype io,
                           uint32_t index, bool v, uint32_t wanted)
{
    uint32_t token = index / (HEADS * DIM), head = index / DIM % HEADS, dim = index % DIM;
    uint32_t got = kv_element(blocks, kv, slot_of(token), head, dim, v),
             bits = numbers_bits(memory, io, index);
    if (got != wanted)
        ck_abort_msg(
            "%s %x (%g), token %u head %u dim %u, as %s of %c, scale mode %d: %x, expected %x",
            dtype_name(io), bits, numbers_value(io, bits), token, head, dim,
            dtype_name(v ? kv->v_dtype : kv->k_dtype), v ? 'V' : 'K', kv->scale_mode, got, wanted);
}

// ---- without scales ----

// Each type once for K and once for V.
static void expect_conversions(enum dtype io)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        struct engine_kv kv = kv_of(dtypes[i], dtypes[(i + 1) % 6], SCALE_NONE);
        uint8_t *blocks = write_numbers(kv, io, 1, 1);
        for (uint32_t n = 0; n < NUMBERS; n++) {
            uint32_t bits = numbers_bits(memory, io, n);
            expect_element(blocks, &kv, io, n, false, numbers_convert(io, bits, kv.k_dtype));
            expect_element(blocks, &kv, io, n, true, numbers_convert(io, bits, kv.v_dtype));
        }
        free(blocks);
    }
}

START_TEST(every_pattern_of_16_bits_becomes_what_it_should_in_every_dtype)
{
    for (uint32_t i = 0; i < NUMBERS; i++)
        numbers_put(memory, DTYPE_F16, i, i);
    expect_conversions(_i ? DTYPE_BF16 : DTYPE_F16);
}
END_TEST

START_TEST(floats_at_each_border_of_each_dtype_round_to_nearest_even_in_all)
{
    border_floats(dtypes[_i], (float *)memory, NUMBERS);
    expect_conversions(DTYPE_F32);
}
END_TEST

// ---- scales ----

static const struct {
    float k, v;
} tensor_scales[] = {{0.0371f, 1.0f}, {7.5f, 0x1p-90f}, {2e38f, 0x1p-120f}};

static float io_value(enum dtype io, uint32_t index)
{
    return word_float(numbers_widen(io, numbers_bits(memory, io, index)));
}

static uint32_t scaled(enum dtype dtype, float value, float inverse)
{
    return numbers_round(dtype, dtype_size(dtype) == 1 ? value * inverse : value);
}

START_TEST(a_scale_for_the_tensor_divides_what_is_written)
{
    enum dtype k = small_dtypes[_i], io = _i == 1 ? DTYPE_F16 : _i == 2 ? DTYPE_BF16 : DTYPE_F32;
    struct engine_kv kv = kv_of(k, small_dtypes[(_i + 1) % 3], SCALE_PER_TENSOR);
    for (uint32_t i = 0; i < NUMBERS && io != DTYPE_F32; i++)
        numbers_put(memory, io, i, i);
    for (size_t set = 0; set < sizeof tensor_scales / sizeof *tensor_scales; set++) {
        float k_scale = tensor_scales[set].k, v_scale = tensor_scales[set].v;
        if (io == DTYPE_F32) { // borders after the scale is applied
            border_floats(k, (float *)memory, NUMBERS);
            for (uint32_t i = 0; i < NUMBERS; i++)
                ((float *)memory)[i] *= i % 2 ? k_scale : 1;
        }
        uint8_t *blocks = write_numbers(kv, io, k_scale, v_scale);
        for (uint32_t n = 0; n < NUMBERS; n++) {
            expect_element(blocks, &kv, io, n, false,
                           scaled(kv.k_dtype, io_value(io, n), 1 / k_scale));
            expect_element(blocks, &kv, io, n, true,
                           scaled(kv.v_dtype, io_value(io, n), 1 / v_scale));
        }
        free(blocks);
    }
}
END_TEST

// Rows of all sizes: only zeroes, too small for a scale, the smallest and the largest possible,
// with infinities and with NaNs.
static void fill_rows(void)
{
    static const float sizes[] = {1,
                                  0,
                                  0x1p-101f,
                                  0x1p-100f,
                                  0x1.fffffep-101f,
                                  0x1.fffffep127f,
                                  0x1p-149f,
                                  0x1.8p-90f,
                                  3e-3f,
                                  0x1.0002p0f,
                                  448,
                                  1e30f};
    struct dice dice = {7};
    float *numbers = (float *)memory;
    for (uint32_t row = 0; row < NUMBERS / DIM; row++) {
        float size = sizes[row % 12] *
                     (row / 12 % 3 == 1 ? (float)dice_between(&dice, 500, 1000) / 1000 : 1);
        for (uint32_t d = 0; d < DIM; d++)
            numbers[row * DIM + d] = size * (dice_normal(&dice) / 4);
        numbers[row * DIM + row % DIM] = row % 2 ? size : -size;
        if (row % 5 == 1)
            numbers[row * DIM + (row + 1) % DIM] = row % 3 ? INFINITY : -INFINITY;
        if (row % 7 == 1)
            numbers[row * DIM + (row + 2) % DIM] = word_float(row % 3 ? 0x7fc00000 : 0xff800001);
        if (row % 11 == 1)
            numbers[row * DIM + (row + 3) % DIM] =
                word_float(0x80000000 | dice_below(&dice, 0x800000));
    }
    for (uint32_t d = 0; d < DIM; d++) // a row without a finite number
        numbers[100 * DIM + d] = d % 2 ? INFINITY : NAN;
}

static void expect_row(const uint8_t *blocks, const struct engine_kv *kv, enum dtype io,
                       uint32_t row, bool v)
{
    enum dtype dtype = v ? kv->v_dtype : kv->k_dtype;
    float values[DIM], scale = 1, inverse = 1;
    for (uint32_t d = 0; d < DIM; d++)
        values[d] = io_value(io, row * DIM + d);
    if (dtype_size(dtype) == 1)
        numbers_scale(dtype, values, DIM, &scale, &inverse);
    float got = kv_scale(blocks, kv, slot_of(row / HEADS), row % HEADS, v);
    if (float_word(got) != float_word(scale))
        ck_abort_msg("row %u, %s of %c: scale %a, expected %a", row, dtype_name(dtype),
                     v ? 'V' : 'K', got, scale);
    for (uint32_t d = 0; d < DIM; d++)
        expect_element(blocks, kv, io, row * DIM + d, v, scaled(dtype, values[d], inverse));
}

static const struct {
    enum dtype k, v, io;
} row_dtypes[] = {
    {DTYPE_FP8_E4M3, DTYPE_FP8_E5M2, DTYPE_F32}, {DTYPE_FP8_E5M2, DTYPE_INT8, DTYPE_F32},
    {DTYPE_INT8, DTYPE_FP8_E4M3, DTYPE_F32},     {DTYPE_FP8_E4M3, DTYPE_F16, DTYPE_F32},
    {DTYPE_BF16, DTYPE_INT8, DTYPE_F32},         {DTYPE_INT8, DTYPE_FP8_E5M2, DTYPE_BF16},
    {DTYPE_FP8_E4M3, DTYPE_INT8, DTYPE_F16},
};

START_TEST(each_row_gets_the_scale_that_makes_its_largest_magnitude_the_dtypes)
{
    enum dtype io = row_dtypes[_i].io;
    struct engine_kv kv = kv_of(row_dtypes[_i].k, row_dtypes[_i].v, SCALE_PER_TOKEN_HEAD);
    fill_rows();
    // in place: reading is ahead of writing
    for (uint32_t i = 0; i < NUMBERS && io != DTYPE_F32; i++)
        numbers_put(memory, io, i,
                    numbers_convert(DTYPE_F32, numbers_bits(memory, DTYPE_F32, i), io));
    uint8_t *blocks = write_numbers(kv, io, 1, 1);
    for (uint32_t row = 0; row < NUMBERS / DIM; row++) {
        expect_row(blocks, &kv, io, row, false);
        expect_row(blocks, &kv, io, row, true);
    }
    free(blocks);
}
END_TEST

static void add_write_tests(Suite *suite)
{
    TCase *tests = tcase_create("numbers");
    tcase_add_checked_fixture(tests, setup_import, teardown);
    tcase_add_loop_test(tests, every_pattern_of_16_bits_becomes_what_it_should_in_every_dtype, 0,
                        2);
    tcase_add_loop_test(tests, floats_at_each_border_of_each_dtype_round_to_nearest_even_in_all, 0,
                        6);
    tcase_add_loop_test(tests, a_scale_for_the_tensor_divides_what_is_written, 0, 3);
    tcase_add_loop_test(tests, each_row_gets_the_scale_that_makes_its_largest_magnitude_the_dtypes,
                        0, sizeof row_dtypes / sizeof *row_dtypes);
    suite_add_tcase(suite, tests);
}

static Suite *kv_suite(void)
{
    Suite *suite = suite_create("kv");
    add_write_tests(suite);
    add_rope_tests(suite);
    add_gather_tests(suite);
    add_merge_tests(suite);
    return suite;
}

int main(void)
{
    return run_on_device(kv_suite);
}
