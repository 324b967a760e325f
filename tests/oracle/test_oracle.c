// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_oracle.c - the oracle, and the numbers below it, compared with examples computed by hand.
// All other attention tests rely on this.

#include "numbers.h"
#include "oracle.h"
#include "rigs/check_main.h"

#include <math.h>
#include <string.h>

#define CLOSE 1e-12

// One sequence of four keys in two blocks of two tokens, one KV head, head_dim 1, f32. The query is
// 1, so with scale 1 a key's value is its score.
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
        .cu_seqlens_q = e->cu_seqlens,
        .seq_lens_kv = e->lens,
        .block_table = e->table,
        .k = {.dtype = DTYPE_F32, .parts = e->pointers, .token_stride = 4},
        .v = {.dtype = DTYPE_F32, .parts = e->pointers, .parts_offset = 8, .token_stride = 4},
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
    example_fill(&e, 2, 4, ZEROES, STEPS); // queries are at 2 and 3
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
    example_fill(&e, 3, 1, (float[]){9}, (float[]){9}); // queries are at -2, -1 and 0
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

START_TEST(a_query_sees_its_own_chunk_alone)
{
    struct example e;
    int32_t positions[1] = {2};
    example_fill(&e, 1, 4, ZEROES, (float[]){1, 2, 4, 8});
    e.params.positions = positions;
    e.params.chunk = 2;
    ck_assert_double_eq_tol(row_out(&e, 0, NULL), (4 + 8) / 2.0, CLOSE);
    e.params.causal = true;
    ck_assert_double_eq_tol(row_out(&e, 0, NULL), 4, CLOSE);
    e.params.chunk = 3;
    ck_assert_double_eq_tol(row_out(&e, 0, NULL), (1 + 2 + 4) / 3.0, CLOSE);
}
END_TEST

START_TEST(the_cap_bends_scores_before_the_bias)
{
    struct example e;
    double lse;
    float slope[1] = {0.5f};
    example_fill(&e, 1, 2, (float[]){3, 0}, (float[]){1, 1}); // the query is at 1
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

// Two sequences of one key each, two KV heads, head_dim 2, f16 keys and f32 values: tests where
// each element is read.
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
    uint16_t q[2][5][2]; // a stride of five heads, four of which are used
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
        .cu_seqlens_q = (int32_t[]){0, 1, 1, 2},
        .seq_lens_kv = (int32_t[]){1, 0, 1},
        .block_table = (int32_t[]){1, -7, 0},
        .k = {.dtype = DTYPE_F16, .parts = blocks, .token_stride = 4, .head_stride = 4},
        .v = {.dtype = DTYPE_F32,
              .parts = blocks,
              .parts_offset = 8,
              .token_stride = 8,
              .head_stride = 8},
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

// ---- the places of elements ----

START_TEST(tokens_that_are_no_queries_give_zero_and_see_nothing)
{
    struct example e;
    double lse;
    float sink[1] = {3};
    int32_t q_lens[1] = {1};
    example_fill(&e, 2, 4, ZEROES, STEPS); // the only query is at 3
    e.params.causal = true;
    e.params.q_lens = q_lens;
    ck_assert_double_eq_tol(row_out(&e, 0, NULL), 2.5, CLOSE);
    e.params.sinks = sink;
    ck_assert_double_eq(row_out(&e, 1, &lse), 0);
    ck_assert_double_infinite(lse);
}
END_TEST

START_TEST(token_rows_say_where_a_token_lies)
{
    struct example e;
    double lse;
    int32_t rows[2] = {1, 0}, positions[2] = {2, 0}; // by row
    example_fill(&e, 2, 4, STEPS, STEPS);
    e.q[0] = 2, e.q[1] = 5;
    e.params.token_rows = rows;
    e.params.positions = positions;
    e.params.causal = true;
    row_out(&e, 0, &lse); // q 5 at position 0 sees the key 1
    ck_assert_double_eq_tol(lse, 5, CLOSE);
    row_out(&e, 1, &lse); // q 2 at position 2 sees the keys 1, 2, 3
    ck_assert_double_eq_tol(lse, 6 + log(1 + exp(-2) + exp(-4)), CLOSE);
}
END_TEST

START_TEST(contiguous_keys_begin_where_the_sequence_does)
{
    struct example e;
    double lse;
    const float keys[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    example_fill(&e, 1, 1, STEPS, STEPS);
    int32_t cu_seqlens[3] = {0, 1, 2}, lens[2] = {1, 1}, starts[2] = {3, 1};
    e.params.num_seqs = 2;
    e.params.cu_seqlens_q = cu_seqlens;
    e.params.seq_lens_kv = lens;
    e.params.block_table = NULL;
    e.params.kv_starts = starts;
    e.params.k =
        (struct oracle_kv){.dtype = DTYPE_F32, .base = (const uint8_t *)keys, .token_stride = 8};
    e.params.v = (struct oracle_kv){
        .dtype = DTYPE_F32, .base = (const uint8_t *)keys, .outer_stride = 20, .token_stride = 4};
    ck_assert_double_eq(row_out(&e, 0, &lse), 1);
    ck_assert_double_eq(lse, 7);
    ck_assert_double_eq(row_out(&e, 1, &lse),
                        6); // the outer stride gives the start of the sequence
    ck_assert_double_eq(lse, 3);
}
END_TEST

START_TEST(block_tensors_are_reached_by_their_strides)
{
    struct example e;
    double lse;
    const float keys[12] = {0, 10, 1, 11, 2, 12,
                            3, 13, 4, 14, 5, 15}; // [3 blocks, 2 tokens, 2 heads]
    int32_t table[2] = {2, 0};
    example_fill(&e, 1, 3, STEPS, STEPS);
    e.params.num_heads = e.params.num_kv_heads = 2;
    e.params.q_head_stride = 4;
    e.params.max_blocks = 2;
    e.params.block_table = table;
    e.params.k = (struct oracle_kv){.dtype = DTYPE_F32,
                                    .base = (const uint8_t *)keys,
                                    .outer_stride = 16,
                                    .token_stride = 8,
                                    .head_stride = 4};
    e.params.v = e.params.k;
    double out;
    ck_assert(oracle_row(&e.params, 0, 1, &out, &lse)); // keys 14, 15, 10
    double weight[2] = {exp(-1), exp(-5)}, sum = 1 + weight[0] + weight[1];
    ck_assert_double_eq_tol(lse, 15 + log(sum), CLOSE);
    ck_assert_double_eq_tol(out, (15 + 14 * weight[0] + 10 * weight[1]) / sum, CLOSE);
}
END_TEST

START_TEST(a_query_has_its_sequences_outer_stride)
{
    struct example e;
    double lse;
    example_fill(&e, 1, 1, STEPS, STEPS);
    int32_t cu_seqlens[3] = {0, 1, 3}, lens[2] = {1, 1}, table[2] = {3, 3};
    e.params.num_seqs = 2, e.params.max_blocks = 1;
    e.params.cu_seqlens_q = cu_seqlens;
    e.params.seq_lens_kv = lens;
    e.params.block_table = table;
    for (int i = 0; i < 8; i++)
        e.q[i] = (float)i;
    e.params.q_outer_stride = 16;
    for (uint32_t token = 0; token < 3; token++) {
        row_out(&e, token, &lse);
        ck_assert_double_eq(lse, token == 0 ? 0 : 3 + token); // q of sequence 1 begins at element 4
    }
}
END_TEST

// Stored 8-bit values, with one scale for all and with a scale for each token and head.
START_TEST(scales_multiply_what_is_stored)
{
    struct {
        int8_t k[2], v[2]; // two tokens of one head
        float scales[4];   // of K, then of V
    } block = {{2, 4}, {-3, 5}, {0.5f, 2, 10, 100}};
    const uint8_t *parts[1] = {(const uint8_t *)&block};
    struct example e;
    double lse;
    int32_t table[1] = {0};
    example_fill(&e, 1, 2, STEPS, STEPS);
    e.params.max_blocks = 1;
    e.params.block_table = table;
    e.params.k =
        (struct oracle_kv){.dtype = DTYPE_INT8, .parts = parts, .token_stride = 1, .scale = 0.25};
    e.params.v = (struct oracle_kv){
        .dtype = DTYPE_INT8, .parts = parts, .parts_offset = 2, .token_stride = 1, .scale = 2};
    double weight = exp(-0.5);
    ck_assert_double_eq_tol(row_out(&e, 0, &lse), (10 - 6 * weight) / (1 + weight), CLOSE);
    ck_assert_double_eq_tol(lse, 1 + log(1 + weight), CLOSE);
    e.params.k.scale = e.params.v.scale = 0;
    e.params.k.scales_offset = 4, e.params.v.scales_offset = 12;
    weight = exp(-7); // scores 1 and 8
    ck_assert_double_eq_tol(row_out(&e, 0, &lse), (500 - 30 * weight) / (1 + weight), 1e-9);
    ck_assert_double_eq_tol(lse, 8 + log(1 + weight), CLOSE);
}
END_TEST

// ---- rotation ----

START_TEST(pairs_turn_by_position_times_frequency)
{
    const double quarter = acos(0), frequencies[2] = {quarter, 2 * quarter};
    struct oracle_rope rope = {.dim = 4, .interleaved = true, .frequencies = frequencies};
    double values[6] = {1, 2, 3, 4, 5, 6};
    oracle_turn(&rope, 1, values); // (x, y) -> (-y, x), and (x, y) -> (-x, -y)
    const double interleaved[6] = {-2, 1, -3, -4, 5, 6};
    for (int i = 0; i < 6; i++)
        ck_assert_double_eq_tol(values[i], interleaved[i], CLOSE);
    rope.interleaved = false;
    double others[6] = {1, 2, 3, 4, 5, 6};
    oracle_turn(&rope, -1, others); // pairs (1, 3), (2, 4)
    const double halves[6] = {3, -2, -1, -4, 5, 6};
    for (int i = 0; i < 6; i++)
        ck_assert_double_eq_tol(others[i], halves[i], CLOSE);
}
END_TEST

START_TEST(theta_gives_the_frequencies)
{
    struct oracle_rope rope = {.dim = 4, .theta = 100};
    double values[4] = {1, 1, 0, 0};
    oracle_turn(&rope, 3, values); // 3 radians, and 0.3
    const double expected[4] = {cos(3), cos(0.3), sin(3), sin(0.3)};
    for (int i = 0; i < 4; i++)
        ck_assert_double_eq_tol(values[i], expected[i], CLOSE);
}
END_TEST

START_TEST(a_query_is_turned_by_its_position_and_keys_are_not)
{
    struct example e;
    double lse;
    float k[2] = {3, 4}, q[2] = {1, 2};
    int32_t positions[1] = {5};
    double frequency = 0.1;
    example_fill(&e, 1, 1, STEPS, STEPS);
    e.params.head_dim_k = 2;
    e.params.q = q;
    e.params.positions = positions;
    e.params.block_table = NULL;
    e.params.kv_starts = (int32_t[]){0};
    e.params.k =
        (struct oracle_kv){.dtype = DTYPE_F32, .base = (const uint8_t *)k, .token_stride = 8};
    e.params.v = e.params.k;
    e.params.rope = (struct oracle_rope){.dim = 2, .frequencies = &frequency};
    row_out(&e, 0, &lse);
    double turned[2] = {cos(0.5) - 2 * sin(0.5), sin(0.5) + 2 * cos(0.5)};
    ck_assert_double_eq_tol(lse, 3 * turned[0] + 4 * turned[1], CLOSE);
}
END_TEST

// ---- doubt ----

static struct oracle_doubt row_doubt(const struct example *e)
{
    static double out;
    struct oracle_doubt doubt = {.out = &out};
    double row, lse;
    ck_assert(oracle_row(&e->params, 0, 0, &row, &lse));
    ck_assert(oracle_doubt(&e->params, 0, 0, &row, lse, &doubt));
    return doubt;
}

START_TEST(values_that_cancel_are_as_doubtful_as_their_weights)
{
    static const struct {
        enum dtype dtype;
        double weight; // half a unit, as a fraction
    } types[] = {{DTYPE_F32, 0}, {DTYPE_F16, 0x1p-11}, {DTYPE_BF16, 0x1p-8}};
    struct example e;
    for (int i = 0; i < 3; i++) {
        example_fill(&e, 1, 2, ZEROES, (float[]){1, -1});
        e.params.q_dtype = types[i].dtype;
        memset(e.q, 0, sizeof e.q);
        double doubt = *row_doubt(&e).out; // of 0
        ck_assert_double_ge(doubt, types[i].weight);
        ck_assert_double_lt(doubt, types[i].weight + 2e-6);
        example_fill(&e, 1, 2, ZEROES, (float[]){3, 3});
        e.params.q_dtype = types[i].dtype;
        memset(e.q, 0, sizeof e.q);
        ck_assert_double_eq_tol(*row_doubt(&e).out, 6 * types[i].weight,
                                6e-6); // and the output's own
    }
}
END_TEST

// One key (1, 0), and a query (1, 0) that the rotation turns into 1 - 2^-12, half way between two
// f16 numbers.
START_TEST(a_turned_query_is_in_doubt_at_the_border_of_two_numbers_only)
{
    const double border = acos(1 - 0x1p-12), inside = acos(1 - 0x1.8p-12);
    struct example e;
    example_fill(&e, 1, 1, (float[]){0}, (float[]){7});
    e.blocks[3][0] = 1, e.blocks[3][1] = 0;
    e.params.head_dim_k = 2;
    e.params.positions = (const int32_t[]){1};
    e.params.q_dtype = DTYPE_F16;
    oracle_store(e.q, DTYPE_F16, 0, 1);
    oracle_store(e.q, DTYPE_F16, 1, 0);
    e.params.rope = (struct oracle_rope){.dim = 2, .frequencies = &border};
    ck_assert_double_eq_tol(row_doubt(&e).lse, 0x1p-11, 2e-6);
    e.params.rope.frequencies = &inside;
    ck_assert_double_lt(row_doubt(&e).lse, 2e-6);
}
END_TEST

// ---- numbers ----

START_TEST(bits_have_their_values)
{
    static const struct {
        enum dtype dtype;
        uint32_t bits;
        double value;
    } TABLE[] = {
        {DTYPE_F16, 0x0001, 0x1p-24},
        {DTYPE_F16, 0x03ff, 1023 * 0x1p-24},
        {DTYPE_F16, 0x0400, 0x1p-14},
        {DTYPE_F16, 0x3555, 0.333251953125},
        {DTYPE_F16, 0xc000, -2},
        {DTYPE_F16, 0x7bff, 65504},
        {DTYPE_F16, 0xfc00, -INFINITY},
        {DTYPE_BF16, 0x3f80, 1},
        {DTYPE_BF16, 0x0001, 0x1p-133},
        {DTYPE_BF16, 0xc2f7, -123.5},
        {DTYPE_BF16, 0x7f80, INFINITY},
        {DTYPE_FP8_E4M3, 0x01, 0x1p-9},
        {DTYPE_FP8_E4M3, 0x08, 0x1p-6},
        {DTYPE_FP8_E4M3, 0x38, 1},
        {DTYPE_FP8_E4M3, 0x7e, 448},
        {DTYPE_FP8_E4M3, 0xb9, -1.125},
        {DTYPE_FP8_E5M2, 0x01, 0x1p-16},
        {DTYPE_FP8_E5M2, 0x04, 0x1p-14},
        {DTYPE_FP8_E5M2, 0x3d, 1.25},
        {DTYPE_FP8_E5M2, 0x7b, 57344},
        {DTYPE_FP8_E5M2, 0xfc, -INFINITY},
        {DTYPE_INT8, 0x7f, 127},
        {DTYPE_INT8, 0xff, -1},
        {DTYPE_INT8, 0x80, -128},
    };
    for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++)
        ck_assert_double_eq(numbers_value(TABLE[i].dtype, TABLE[i].bits), TABLE[i].value);
    ck_assert_double_nan(numbers_value(DTYPE_F16, 0x7c01));
    ck_assert_double_nan(numbers_value(DTYPE_BF16, 0xff81));
    ck_assert_double_nan(numbers_value(DTYPE_FP8_E4M3, 0xff));
    ck_assert_double_nan(numbers_value(DTYPE_FP8_E5M2, 0x7d));
}
END_TEST

START_TEST(floats_round_to_the_nearest_number_and_ties_to_even)
{
    static const struct {
        enum dtype dtype;
        float value;
        uint32_t bits;
    } TABLE[] = {
        {DTYPE_F16, 0x1p-25f, 0},
        {DTYPE_F16, 0x1.8p-24f, 2},
        {DTYPE_F16, 0x1.000002p-25f, 1},
        {DTYPE_F16, 1 + 0x1p-11f, 0x3c00},
        {DTYPE_F16, 1 + 0x1.8p-10f, 0x3c02},
        {DTYPE_F16, 0x1.ffep0f, 0x4000},
        {DTYPE_F16, 65519.996f, 0x7bff},
        {DTYPE_F16, 65520, 0x7c00},
        {DTYPE_F16, -0.0f, 0x8000},
        {DTYPE_BF16, 1 + 0x1p-8f, 0x3f80},
        {DTYPE_BF16, 1 + 0x1.8p-7f, 0x3f82},
        {DTYPE_BF16, 0x1.ffp127f, 0x7f80},
        {DTYPE_FP8_E4M3, 1.0625f, 0x38},
        {DTYPE_FP8_E4M3, 1.1875f, 0x3a},
        {DTYPE_FP8_E4M3, 463, 0x7e},
        {DTYPE_FP8_E4M3, 1e9f, 0x7e},
        {DTYPE_FP8_E4M3, -INFINITY, 0xfe},
        {DTYPE_FP8_E4M3, 0x1p-10f, 0},
        {DTYPE_FP8_E4M3, 0x1.8p-9f, 2},
        {DTYPE_FP8_E4M3, NAN, 0x7f},
        {DTYPE_FP8_E5M2, 1.125f, 0x3c},
        {DTYPE_FP8_E5M2, 1.375f, 0x3e},
        {DTYPE_FP8_E5M2, 1e9f, 0x7b},
        {DTYPE_FP8_E5M2, -INFINITY, 0xfb},
        {DTYPE_INT8, 2.5f, 2},
        {DTYPE_INT8, -3.5f, 0xfc},
        {DTYPE_INT8, -1000, 0x81},
        {DTYPE_INT8, NAN, 0},
    };
    for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++)
        ck_assert_uint_eq(numbers_round(TABLE[i].dtype, TABLE[i].value), TABLE[i].bits);
}
END_TEST

START_TEST(every_number_rounds_to_itself)
{
    for (enum dtype dtype = DTYPE_F16; dtype <= DTYPE_INT8; dtype++)
        for (uint32_t bits = 0; bits < 1u << 8 * dtype_size((int)dtype); bits++) {
            float value = (float)numbers_value(dtype, bits);
            bool outside =
                isnan(value) || (dtype >= DTYPE_FP8_E4M3 && fabsf(value) > numbers_largest(dtype));
            if (!outside)
                ck_assert_uint_eq(numbers_round(dtype, value), bits);
        }
}
END_TEST

#ifdef __FLT16_MANT_DIG__
START_TEST(floats_round_as_the_compiler_rounds_them)
{
    for (uint64_t i = 0; i < 1u << 18; i++) {
        uint32_t bits =
            (uint32_t)(i * 16411); // odd, so that the loop visits all exponents and mantissas
        float value;
        memcpy(&value, &bits, sizeof value);
        if (isnan(value))
            continue;
        _Float16 half = (_Float16)value;
        uint16_t expected;
        memcpy(&expected, &half, sizeof expected);
        ck_assert_uint_eq(numbers_round(DTYPE_F16, value), expected);
        if (isfinite(value))
            ck_assert_double_eq(numbers_value(DTYPE_F16, expected), (double)half);
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
    tcase_add_test(visible, a_query_sees_its_own_chunk_alone);
    tcase_add_test(visible, a_mask_replaces_causal);
    suite_add_tcase(suite, visible);
    TCase *terms = tcase_create("cap, slopes, sinks");
    tcase_add_test(terms, the_cap_bends_scores_before_the_bias);
    tcase_add_test(terms, a_sink_takes_weight_and_gives_no_value);
    suite_add_tcase(suite, terms);
    TCase *places = tcase_create("places");
    tcase_add_test(places, tokens_that_are_no_queries_give_zero_and_see_nothing);
    tcase_add_test(places, token_rows_say_where_a_token_lies);
    tcase_add_test(places, contiguous_keys_begin_where_the_sequence_does);
    tcase_add_test(places, block_tensors_are_reached_by_their_strides);
    tcase_add_test(places, a_query_has_its_sequences_outer_stride);
    tcase_add_test(places, scales_multiply_what_is_stored);
    suite_add_tcase(suite, places);
    TCase *rotation = tcase_create("rotation");
    tcase_add_test(rotation, pairs_turn_by_position_times_frequency);
    tcase_add_test(rotation, theta_gives_the_frequencies);
    tcase_add_test(rotation, a_query_is_turned_by_its_position_and_keys_are_not);
    suite_add_tcase(suite, rotation);
    TCase *doubt = tcase_create("doubt");
    tcase_add_test(doubt, values_that_cancel_are_as_doubtful_as_their_weights);
    tcase_add_test(doubt, a_turned_query_is_in_doubt_at_the_border_of_two_numbers_only);
    suite_add_tcase(suite, doubt);
    TCase *numbers = tcase_create("numbers");
    tcase_add_test(numbers, bits_have_their_values);
    tcase_add_test(numbers, floats_round_to_the_nearest_number_and_ties_to_even);
    tcase_add_test(numbers, every_number_rounds_to_itself);
#ifdef __FLT16_MANT_DIG__
    tcase_add_test(numbers, floats_round_as_the_compiler_rounds_them);
#endif
    suite_add_tcase(suite, numbers);
    return check_main(suite);
}
