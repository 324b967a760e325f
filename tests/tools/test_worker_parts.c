// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_worker_parts.c - aule-worker's model, its reference and its element types, in this process
// and without a daemon.

#include "oracle/numbers.h"
#include "rigs/check_main.h"
#include "tools/worker/generate.h"
#include "tools/worker/kept.h"

#include <math.h>
#include <string.h>

enum { BLOCK_SIZE = 32 };

static const char quickstart_text[] = WORKER_TEXT; // path

// ---- the model with the reference, in this process ----

static int32_t *read_text(uint32_t *count)
{
    FILE *file = fopen(quickstart_text, "rb");
    ck_assert_ptr_nonnull(file);
    int32_t *tokens = NULL;
    *count = 0;
    for (int byte; (byte = fgetc(file)) != EOF; (*count)++) {
        tokens = realloc(tokens, (*count + 1) * sizeof *tokens);
        ck_assert_ptr_nonnull(tokens);
        tokens[*count] = byte;
    }
    fclose(file);
    return tokens;
}

static struct generation reference(const int32_t *prompt, uint32_t num_prompt, uint32_t num_tokens,
                                   uint32_t chunk, enum aule_dtype kv_dtype)
{
    struct failure failure = {0};
    const struct attention_params params = {.dtype = AULE_F32,
                                            .path = ATTENTION_REFERENCE,
                                            .kv = {.dtype = kv_dtype},
                                            .block_size = BLOCK_SIZE,
                                            .max_tokens = num_prompt + num_tokens,
                                            .max_count = chunk};
    struct generate_params generate_params = {
        .prompt = prompt, .num_prompt = num_prompt, .num_tokens = num_tokens, .chunk = chunk};
    struct model *model = model_create();
    struct generation generation;
    generate_params.model = model;
    generate_params.attention = attention_create(&params, &failure);
    ck_assert_msg(generate_params.attention && generate(&generate_params, &generation, &failure),
                  "%s", failure.text);
    attention_destroy(generate_params.attention);
    model_destroy(model);
    return generation;
}

START_TEST(the_quickstart_text_leads_to_varied_and_well_separated_tokens)
{
    uint32_t count;
    int32_t *text = read_text(&count);
    struct generation generation = reference(text, count, 20, 512, AULE_F16);
    ck_assert_uint_gt(count, 3000);
    ck_assert_uint_ge(generation_distinct_ids(&generation), 5);
    ck_assert_double_gt(generation_smallest_gap(&generation), 0.01);
    generation_finish(&generation);
    free(text);
}
END_TEST

START_TEST(chunks_of_any_length_give_the_same_bits)
{
    uint32_t count;
    int32_t *text = read_text(&count);
    struct generation whole = reference(text, 200, 5, 200, AULE_F16);
    const uint32_t chunks[] = {1, 7, 32, 199};
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        struct generation parts = reference(text, 200, 5, chunks[i], AULE_F16);
        ck_assert_mem_eq(whole.logits, parts.logits, 5 * MODEL_VOCABULARY * sizeof(float));
        generation_finish(&parts);
    }
    generation_finish(&whole);
    free(text);
}
END_TEST

START_TEST(every_early_token_matters)
{
    uint32_t count;
    int32_t *text = read_text(&count);
    struct generation before = reference(text, 600, 1, 600, AULE_F16);
    text[3] ^= 1;
    struct generation after = reference(text, 600, 1, 600, AULE_F16);
    ck_assert_double_gt(
        generation_largest_difference(before.logits, after.logits, MODEL_VOCABULARY), 0.01);
    generation_finish(&before);
    generation_finish(&after);
    free(text);
}
END_TEST

START_TEST(the_cache_type_rounds_what_is_stored)
{
    uint32_t count;
    int32_t *text = read_text(&count);
    struct generation half = reference(text, 200, 1, 200, AULE_F16),
                      full = reference(text, 200, 1, 200, AULE_F32);
    const double difference =
        generation_largest_difference(half.logits, full.logits, MODEL_VOCABULARY);
    ck_assert_double_gt(difference, 0);
    ck_assert_double_lt(difference, 0.1);
    generation_finish(&half);
    generation_finish(&full);
    free(text);
}
END_TEST

START_TEST(a_logit_that_is_not_finite_is_the_largest_difference)
{
    const float good[] = {1, 2}, off[] = {1, 2.5f}, bad[] = {1, NAN}, infinite[] = {INFINITY, 2};
    ck_assert_double_eq(generation_largest_difference(good, off, 2), 0.5);
    ck_assert_double_gt(generation_largest_difference(good, bad, 2), 1e30);
    ck_assert_double_gt(generation_largest_difference(infinite, infinite, 2), 1e30);
}
END_TEST

// ---- element types ----

static float random_float(uint32_t *state)
{
    float value;
    *state = *state * 1664525 + 1013904223;
    const uint32_t bits = *state ^ *state >> 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void same(float a, double b)
{
    ck_assert_msg(isnan(a) ? isnan(b) : (double)a == b, "%a is not %a", (double)a, b);
}

// tests/oracle/numbers.c defines the types, and the shaders are compared with it, too.
START_TEST(elements_of_every_type_round_as_those_of_the_shaders)
{
    const enum aule_dtype dtype = _i;
    uint32_t state = 7;
    for (int i = 0; i < 200000; i++) {
        const float any = random_float(&state), near = ldexpf(1 + ldexpf(any, -128), i % 40 - 24);
        same(element_round(any, dtype), numbers_value(_i, numbers_round(_i, any)));
        same(element_round(near, dtype), numbers_value(_i, numbers_round(_i, near)));
        same(element_round(-near, dtype), numbers_value(_i, numbers_round(_i, -near)));
    }
    const float edges[] = {0,   INFINITY, -INFINITY, NAN,    65519, 65520, 448,      464,
                           465, 57344,    61440,     127.5f, 0.5f,  1.5f,  0x1p-10f, 0x1p-17f};
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
        same(element_round(edges[i], dtype), numbers_value(_i, numbers_round(_i, edges[i])));
}
END_TEST

START_TEST(elements_come_back_from_memory_as_they_were_rounded)
{
    const enum aule_dtype dtype = _i;
    uint32_t state = 11, memory[64];
    float row[64], back[64];
    for (int i = 0; i < 64; i++)
        row[i] = random_float(&state);
    element_store(memory, row, 64, dtype);
    element_load(back, memory, 64, dtype);
    for (int i = 0; i < 64; i++) {
        same(back[i], element_round(row[i], dtype));
        ck_assert_uint_eq(numbers_bits(memory, _i, i), numbers_round(_i, row[i]));
    }
}
END_TEST

START_TEST(rows_are_kept_with_the_scale_that_a_cache_gives_them)
{
    uint32_t state = 13;
    for (int i = 0; i < 1000; i++) {
        const enum aule_dtype dtype = AULE_FP8_E4M3 + i % 3;
        const struct element_kv kv = {.dtype = dtype, .scale_mode = AULE_SCALE_PER_TOKEN_HEAD};
        float row[32], kept[32], scale, inverse;
        for (int d = 0; d < 32; d++)
            row[d] = kept[d] = i < 10 ? 0 : random_float(&state) * 0x1p-64f;
        numbers_scale((enum dtype)dtype, row, 32, &scale, &inverse);
        element_keep(kept, 32, &kv, 0);
        for (int d = 0; d < 32; d++) {
            const double stored = numbers_value((enum dtype)dtype,
                                                numbers_round((enum dtype)dtype, row[d] * inverse));
            same(kept[d], (double)(float)(stored * (double)scale));
        }
    }
}
END_TEST

START_TEST(a_scale_per_tensor_saturates_what_is_too_large)
{
    const struct element_kv kv = {.dtype = AULE_INT8, .scale_mode = AULE_SCALE_PER_TENSOR};
    float row[] = {0.24f, -0.26f, 100, -100};
    const float kept[] = {0, -0.5f, 63.5f, -63.5f};
    element_keep(row, 4, &kv, 0.5f);
    for (int i = 0; i < 4; i++)
        same(row[i], (double)kept[i]);
}
END_TEST

struct largest {
    uint32_t num_tokens;
    float key, value;
};

static bool look_for_largest(void *context, uint32_t layer, const float *qkv, float *out)
{
    struct largest *largest = context;
    (void)layer;
    memset(out, 0, (size_t)largest->num_tokens * MODEL_OUT_WIDTH * sizeof *out);
    for (uint32_t t = 0; t < largest->num_tokens; t++, qkv += MODEL_QKV_WIDTH)
        for (uint32_t i = 0; i < MODEL_KV_WIDTH; i++) {
            float *which = i < MODEL_KV_WIDTH / 2 ? &largest->key : &largest->value;
            *which = fmaxf(*which, fabsf(qkv[MODEL_HEADS * MODEL_HEAD_DIM + i]));
        }
    return true;
}

START_TEST(the_scales_per_tensor_have_room_for_the_model)
{
    struct largest largest = {0};
    float logits[MODEL_VOCABULARY];
    int32_t *text = read_text(&largest.num_tokens);
    struct model *model = model_create();
    ck_assert_int_eq(
        model_forward(model, text, largest.num_tokens, 0, look_for_largest, &largest, logits),
        MODEL_OK);
    ck_assert_float_le(largest.key, MODEL_LARGEST_KEY);
    ck_assert_float_gt(largest.key, MODEL_LARGEST_KEY / 2);
    ck_assert_float_le(largest.value, MODEL_LARGEST_VALUE);
    ck_assert_float_gt(largest.value, MODEL_LARGEST_VALUE / 2);
    model_destroy(model);
    free(text);
}
END_TEST

static Suite *parts_suite(void)
{
    Suite *suite = suite_create("worker_parts");
    TCase *model = tcase_create("model");
    tcase_add_test(model, the_quickstart_text_leads_to_varied_and_well_separated_tokens);
    tcase_add_test(model, chunks_of_any_length_give_the_same_bits);
    tcase_add_test(model, every_early_token_matters);
    tcase_add_test(model, the_cache_type_rounds_what_is_stored);
    tcase_add_test(model, a_logit_that_is_not_finite_is_the_largest_difference);
    tcase_add_test(model, the_scales_per_tensor_have_room_for_the_model);
    suite_add_tcase(suite, model);

    TCase *elements = tcase_create("elements");
    tcase_add_loop_test(elements, elements_of_every_type_round_as_those_of_the_shaders, AULE_F32,
                        AULE_INT8 + 1);
    tcase_add_loop_test(elements, elements_come_back_from_memory_as_they_were_rounded, AULE_F32,
                        AULE_BF16 + 1);
    tcase_add_test(elements, rows_are_kept_with_the_scale_that_a_cache_gives_them);
    tcase_add_test(elements, a_scale_per_tensor_saturates_what_is_too_large);
    suite_add_tcase(suite, elements);
    return suite;
}

int main(void)
{
    return check_main(parts_suite());
}
