// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_oracle.c - the oracle against examples computed by hand: what all other attention tests stand on.

#include "check_main.h"
#include "oracle.h"

#include <math.h>
#include <string.h>

#define CLOSE 1e-12

// One sequence of four keys in two blocks of two tokens, one KV head, head_dim 1, f32. The query is 1, so that with scale 1
// a key's value is its score.
struct example {
    float blocks[4][4]; // [id][K of token 0, K of token 1, V of token 0, V of token 1]
    const uint8_t *pointers[4];
    int32_t cu_seqlens[2], lens[1], table[3];
    float q[8];
    struct oracle_params params;
};

static void example_fill(struct example *e, int q_len, int kv_len, const float *k, const float *v)
{
    memset(e, 0, sizeof *e);
    memset(e->blocks, 0xff, sizeof e->blocks); // NaN
    e->table[0] = 3, e->table[1] = 1, e->table[2] = 2147483647;
    for (int i = 0; i < 4; i++)
        e->pointers[i] = (const uint8_t *)e->blocks[i];
    for (int j = 0; j < kv_len; j++) {
        e->blocks[e->table[j / 2]][j % 2] = k[j];
        e->blocks[e->table[j / 2]][2 + j % 2] = v[j];
    }
    e->cu_seqlens[1] = q_len;
    e->lens[0] = kv_len;
    for (int i = 0; i < 8; i++)
        e->q[i] = 1;
    e->params = (struct oracle_params){
        .num_seqs = 1,
        .max_blocks = 3,
        .num_heads = 1,
        .num_kv_heads = 1,
        .head_dim_k = 1,
        .head_dim_v = 1,
        .block_size = 2,
        .q_dtype = DTYPE_F32,
        .k_dtype = DTYPE_F32,
        .v_dtype = DTYPE_F32,
        .cu_seqlens_q = e->cu_seqlens,
        .seq_lens_kv = e->lens,
        .block_table = e->table,
        .blocks = e->pointers,
        .q = e->q,
        .q_token_stride = 4,
        .q_head_stride = 4,
        .scale = 1,
    };
}

static double row_out(const struct example *e, uint32_t token, double *lse)
{
    double out = NAN;
    ck_assert(oracle_row(&e->params, token, 0, &out, lse));
    return out;
}

static const float ZEROES[4] = {0}, STEPS[4] = {1, 2, 3, 4};

START_TEST(one_key_gives_its_value_and_its_score)
{
    struct example e;
    double lse;
    example_fill(&e, 1, 1, (float[]){0.5f}, (float[]){7});
    ck_assert_double_eq_tol(row_out(&e, 0, &lse), 7, CLOSE);
    ck_assert_double_eq_tol(lse, 0.5, CLOSE);
}
END_TEST

START_TEST(equal_scores_average)
{
    struct example e;
    double lse;
    example_fill(&e, 1, 3, ZEROES, STEPS);
    ck_assert_double_eq_tol(row_out(&e, 0, &lse), 2, CLOSE);
    ck_assert_double_eq_tol(lse, log(3), CLOSE);
}
END_TEST

START_TEST(weights_are_exponentials_of_the_scaled_scores)
{
    struct example e;
    example_fill(&e, 1, 2, (float[]){0, 4}, (float[]){1, 5});
    e.params.scale = log(3) / 4; // weights 1 and 3
    ck_assert_double_eq_tol(row_out(&e, 0, NULL), 4, CLOSE);
}
END_TEST

START_TEST(large_scores_do_not_overflow)
{
    struct example e;
    double lse;
    example_fill(&e, 1, 2, (float[]){5000, 5000}, (float[]){1, 2});
    ck_assert_double_eq_tol(row_out(&e, 0, &lse), 1.5, CLOSE);
    ck_assert_double_eq_tol(lse, 5000 + log(2), 1e-9);
}
END_TEST

START_TEST(causal_rows_end_at_their_own_token)
{
    struct example e;
    example_fill(&e, 2, 4, ZEROES, STEPS); // queries stand at 2 and 3
    e.params.causal = true;
    ck_assert_double_eq_tol(row_out(&e, 0, NULL), 2, CLOSE);
    ck_assert_double_eq_tol(row_out(&e, 1, NULL), 2.5, CLOSE);
    e.params.causal = false;
    ck_assert_double_eq_tol(row_out(&e, 0, NULL), 2.5, CLOSE);
}
END_TEST

START_TEST(rows_before_the_first_key_give_zero)
{
    struct example e;
    double lse;
    example_fill(&e, 3, 1, (float[]){9}, (float[]){9}); // queries stand at -2, -1 and 0
    e.params.causal = true;
    ck_assert_double_eq(row_out(&e, 0, &lse), 0);
    ck_assert_double_infinite(lse);
    ck_assert_double_lt(lse, 0);
    ck_assert_double_eq(row_out(&e, 1, NULL), 0);
    ck_assert_double_eq(row_out(&e, 2, NULL), 9);
    example_fill(&e, 1, 0, NULL, NULL);
    ck_assert_double_eq(row_out(&e, 0, &lse), 0);
    ck_assert_double_infinite(lse);
}
END_TEST

START_TEST(positions_replace_the_alignment)
{
    struct example e;
    int32_t positions[1] = {1};
    example_fill(&e, 1, 4, ZEROES, STEPS);
    e.params.causal = true;
    e.params.positions = positions;
    ck_assert_double_eq_tol(row_out(&e, 0, NULL), 1.5, CLOSE);
}
END_TEST

START_TEST(a_window_bounds_both_sides)
{
    struct example e;
    int32_t positions[1] = {2};
    example_fill(&e, 1, 4, ZEROES, (float[]){1, 2, 4, 8});
    e.params.positions = positions;
    e.params.windowed = true;
    e.params.window_left = 1, e.params.window_right = -1;
    ck_assert_double_eq_tol(row_out(&e, 0, NULL), (2 + 4 + 8) / 3.0, CLOSE);
    e.params.window_left = -1, e.params.window_right = 0;
    ck_assert_double_eq_tol(row_out(&e, 0, NULL), (1 + 2 + 4) / 3.0, CLOSE);
    e.params.window_left = 0;
    ck_assert_double_eq_tol(row_out(&e, 0, NULL), 4, CLOSE);
}
END_TEST

START_TEST(the_cap_bends_scores_before_the_bias)
{
    struct example e;
    double lse;
    float slope[1] = {0.5f};
    example_fill(&e, 1, 2, (float[]){3, 0}, (float[]){1, 1}); // the query stands at 1
    e.params.cap = 2;
    e.params.slopes = slope;
    row_out(&e, 0, &lse);
    ck_assert_double_eq_tol(lse, log(exp(2 * tanh(1.5) - 0.5) + 1), CLOSE);
}
END_TEST

START_TEST(a_sink_takes_weight_and_gives_no_value)
{
    struct example e;
    double lse;
    float sink[1] = {0};
    example_fill(&e, 1, 3, ZEROES, (float[]){4, 8, 12});
    e.params.sinks = sink;
    ck_assert_double_eq_tol(row_out(&e, 0, &lse), 6, CLOSE); // 24 / 4
    ck_assert_double_eq_tol(lse, log(4), CLOSE);
}
END_TEST

START_TEST(a_mask_replaces_causal)
{
    struct example e;
    uint8_t mask[2] = {0};
    uint64_t starts[1] = {3};
    example_fill(&e, 2, 3, ZEROES, (float[]){1, 2, 4});
    mask[0] = 1 << 3 | 1 << 5 | 1 << 7; // bits 0 and 2 of row 0, bit 1 of row 1, counted from bit 3
    e.params.causal = true;
    e.params.mask = mask;
    e.params.mask_starts = starts;
    ck_assert_double_eq_tol(row_out(&e, 0, NULL), 2.5, CLOSE);
    ck_assert_double_eq_tol(row_out(&e, 1, NULL), 2, CLOSE);
}
END_TEST

// Two sequences of one key each, two KV heads, head_dim 2, f16 keys and f32 values: where every element is looked for.
START_TEST(heads_sequences_and_dims_find_their_own_elements)
{
    struct {
        uint16_t k[4];
        float v[4];
    } a, b;
    for (uint32_t i = 0; i < 4; i++) {
        oracle_store(a.k, DTYPE_F16, i, 1 + i), oracle_store(a.v, DTYPE_F32, i, 10 + i);
        oracle_store(b.k, DTYPE_F16, i, 5 + i), oracle_store(b.v, DTYPE_F32, i, 20 + i);
    }
    const uint8_t *blocks[2] = {(const uint8_t *)&b, (const uint8_t *)&a};
    uint16_t q[2][5][2]; // a stride of five heads, four in use
    for (uint32_t i = 0; i < 20; i++)
        oracle_store(q, DTYPE_F16, i, 0.25f * i);
    struct oracle_params params = {
        .num_seqs = 3,
        .max_blocks = 1,
        .num_heads = 4,
        .num_kv_heads = 2,
        .head_dim_k = 2,
        .head_dim_v = 2,
        .block_size = 1,
        .q_dtype = DTYPE_F16,
        .k_dtype = DTYPE_F16,
        .v_dtype = DTYPE_F32,
        .cu_seqlens_q = (int32_t[]){0, 1, 1, 2},
        .seq_lens_kv = (int32_t[]){1, 0, 1},
        .block_table = (int32_t[]){1, -7, 0},
        .blocks = blocks,
        .q = q,
        .q_token_stride = 20,
        .q_head_stride = 4,
        .scale = 2,
    };
    double out[2], lse;
    ck_assert(oracle_row(&params, 0, 1, out, &lse)); // q = (0.5, 0.75), K of head 0 = (1, 2)
    ck_assert_double_eq_tol(lse, 2 * (0.5 * 1 + 0.75 * 2), CLOSE);
    ck_assert_double_eq(out[0], 10);
    ck_assert_double_eq(out[1], 11);
    ck_assert(oracle_row(&params, 1, 2, out, &lse)); // q = (3.5, 3.75), K of head 1 = (7, 8)
    ck_assert_double_eq_tol(lse, 2 * (3.5 * 7 + 3.75 * 8), CLOSE);
    ck_assert_double_eq(out[0], 22);
    ck_assert_double_eq(out[1], 23);
}
END_TEST

START_TEST(halves_have_their_ieee_values)
{
    static const struct {
        uint16_t bits;
        double value;
    } TABLE[] = {
        {0x0000, 0},        {0x0001, 0x1p-24}, {0x03ff, 1023 * 0x1p-24}, {0x0400, 0x1p-14},  {0x3555, 0.333251953125},
        {0x3c00, 1},        {0xc000, -2},      {0x7bff, 65504},          {0x7c00, INFINITY}, {0xfc00, -INFINITY},
        {0x8001, -0x1p-24},
    };
    for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++)
        ck_assert_double_eq(oracle_half_value(TABLE[i].bits), TABLE[i].value);
    ck_assert_double_nan(oracle_half_value(0x7c01));
    ck_assert(signbit(oracle_half_value(0x8000)));
}
END_TEST

START_TEST(floats_round_to_the_nearest_half_and_ties_to_even)
{
    static const struct {
        float value;
        uint16_t bits;
    } TABLE[] = {
        {0x1p-25f, 0x0000},   {0x1.8p-24f, 0x0002},   {0x1.000002p-25f, 0x0001},
        {0x1p-26f, 0},        {1 + 0x1p-11f, 0x3c00}, {1 + 0x1.8p-10f, 0x3c02},
        {0x1.ffcp0f, 0x3fff}, {0x1.ffep0f, 0x4000},   {65519.996f, 0x7bff},
        {65520, 0x7c00},      {-1e30f, 0xfc00},       {INFINITY, 0x7c00},
        {-0.0f, 0x8000},      {0x1.ffep-15f, 0x0400}, {1e-45f, 0},
    };
    for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++)
        ck_assert_uint_eq(oracle_half_round(TABLE[i].value), TABLE[i].bits);
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float value = (float)oracle_half_value((uint16_t)bits);
        if (isnan(value))
            ck_assert_uint_gt(oracle_half_round(value) & 0x7fff, 0x7c00);
        else
            ck_assert_uint_eq(oracle_half_round(value), bits);
    }
}
END_TEST

#ifdef __FLT16_MANT_DIG__
START_TEST(floats_round_as_the_compiler_rounds_them)
{
    for (uint64_t i = 0; i < 1u << 18; i++) {
        uint32_t bits = (uint32_t)(i * 16411); // odd, so that it walks through all exponents and mantissas
        float value;
        memcpy(&value, &bits, sizeof value);
        if (isnan(value))
            continue;
        _Float16 half = (_Float16)value;
        uint16_t expected;
        memcpy(&expected, &half, sizeof expected);
        ck_assert_uint_eq(oracle_half_round(value), expected);
        if (isfinite(value))
            ck_assert_double_eq(oracle_half_value(expected), (double)half);
    }
}
END_TEST
#endif

int main(void)
{
    Suite *suite = suite_create("oracle");
    TCase *formula = tcase_create("formula");
    tcase_add_test(formula, one_key_gives_its_value_and_its_score);
    tcase_add_test(formula, equal_scores_average);
    tcase_add_test(formula, weights_are_exponentials_of_the_scaled_scores);
    tcase_add_test(formula, large_scores_do_not_overflow);
    tcase_add_test(formula, heads_sequences_and_dims_find_their_own_elements);
    suite_add_tcase(suite, formula);
    TCase *visible = tcase_create("visible");
    tcase_add_test(visible, causal_rows_end_at_their_own_token);
    tcase_add_test(visible, rows_before_the_first_key_give_zero);
    tcase_add_test(visible, positions_replace_the_alignment);
    tcase_add_test(visible, a_window_bounds_both_sides);
    tcase_add_test(visible, a_mask_replaces_causal);
    suite_add_tcase(suite, visible);
    TCase *terms = tcase_create("cap, slopes, sinks");
    tcase_add_test(terms, the_cap_bends_scores_before_the_bias);
    tcase_add_test(terms, a_sink_takes_weight_and_gives_no_value);
    suite_add_tcase(suite, terms);
    TCase *halves = tcase_create("halves");
    tcase_add_test(halves, halves_have_their_ieee_values);
    tcase_add_test(halves, floats_round_to_the_nearest_half_and_ties_to_even);
#ifdef __FLT16_MANT_DIG__
    tcase_add_test(halves, floats_round_as_the_compiler_rounds_them);
#endif
    suite_add_tcase(suite, halves);
    return check_main(suite);
}
