// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_kv_rope.c - K rotated when it is written into blocks, compared with long double.

#include "rigs/kv_world.h"

#include <math.h>
#include <string.h>

enum { HEADS = 2, DIM = 64, TOKENS = 96, BLOCKS = 4, BLOCK_TOKENS = 32 };

static const long double two_pi = 6.283185307179586476925286766559005768L;

static const int32_t far_positions[] = {0,       1,          2,         3,
                                        100,     4095,       4096,      131071,
                                        1000000, 9999999,    1 << 24,   (1 << 24) + 1,
                                        1 << 30, 2147483646, 2147483647};

static const struct engine_kv f32_kv = {.num_kv_heads = HEADS,
                                        .head_dim_k = DIM,
                                        .head_dim_v = 8,
                                        .block_size = BLOCK_TOKENS,
                                        .k_dtype = DTYPE_F32,
                                        .v_dtype = DTYPE_F32};

struct turned { // what a run does to its K
    struct engine_rope rope;
    const int32_t *positions; // [TOKENS] as expected
};

static long double frequency(const struct engine_rope *rope, uint32_t pair)
{
    if (rope->frequencies)
        return rope->frequencies[pair];
    return powl(rope->theta, -2.0L * pair / rope->dim);
}

// Element `dim` of a rotated row of K, and the length of its pair.
static double turned_element(const struct turned *turned, int32_t position, const float *row,
                             uint32_t dim, double *norm)
{
    const struct engine_rope *rope = &turned->rope;
    uint32_t pairs = rope->dim / 2, pair = rope->interleaved ? dim / 2 : dim % pairs;
    uint32_t first = rope->interleaved ? pair * 2 : pair,
             second = rope->interleaved ? first + 1 : first + pairs;
    long double angle = fmodl(frequency(rope, pair) * position, two_pi), x = row[first],
                y = row[second];
    *norm = (double)hypotl(x, y);
    return (double)(dim == first ? x * cosl(angle) - y * sinl(angle)
                                 : x * sinl(angle) + y * cosl(angle));
}

static double expect_row(const uint8_t *blocks, const struct turned *turned, const float *rows,
                         uint32_t token, uint32_t head)
{
    const float *row = rows + (token * HEADS + head) * DIM;
    double worst = 0, norm;
    for (uint32_t d = 0; d < DIM; d++) {
        uint32_t bits = kv_element(blocks, &f32_kv, token, head, d, false);
        if (d >= turned->rope.dim) {
            expect_equal_uint(bits, float_word(row[d]));
            continue;
        }
        double wanted = turned_element(turned, turned->positions[token], row, d, &norm);
        double got = (double)word_float(bits), error = fabs(got - wanted) / norm;
        if (!(error <= 2e-7))
            ck_abort_msg("position %d, rope dim %u, dim %u: %.9g, expected %.9g; of a pair of %.9g "
                         "that is %.3g",
                         turned->positions[token], turned->rope.dim, d, got, wanted, norm, error);
        worst = error > worst ? error : worst;
    }
    return worst;
}

// Rotates TOKENS rows with the batch's metadata. The slots are 0, 1, ...
static void expect_turned(struct engine_batch_params params, const struct turned *turned)
{
    float *rows = (float *)memory;
    struct dice dice = {turned->rope.dim};
    for (uint32_t i = 0; i < TOKENS * HEADS * DIM; i++)
        rows[i] = dice_normal(&dice);
    int64_t slots[TOKENS];
    for (uint32_t i = 0; i < TOKENS; i++)
        slots[i] = i;
    struct engine_cache *cache = kv_cache(f32_kv, BLOCKS);
    params.engine = engine;
    params.cache = cache;
    params.kv = f32_kv;
    params.num_tokens = TOKENS;
    params.slot_mapping = slots;
    struct engine_batch *batch = open_batch(params);
    kv_run(&(struct engine_run){.kind = ENGINE_WRITE,
                                .batch = batch,
                                .arena = arena,
                                .num_heads = HEADS,
                                .k = dense(0, HEADS, DIM, DTYPE_F32),
                                .v = dense(0, HEADS, 8, DTYPE_F32),
                                .rope = turned->rope});
    uint8_t *blocks = kv_blocks(cache, BLOCKS);
    double worst = 0;
    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t h = 0; h < HEADS; h++)
            worst = fmax(worst, expect_row(blocks, turned, rows, t, h));
    printf("rope dim %u, %s: worst error %.3g of the pair\n", turned->rope.dim,
           turned->rope.interleaved ? "interleaved" : "halves", worst);
    free(blocks);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}

static void spread_positions(int32_t *positions)
{
    struct dice dice = {3};
    uint32_t given = sizeof far_positions / sizeof *far_positions;
    for (uint32_t i = 0; i < TOKENS; i++)
        positions[i] = i < given ? far_positions[i]
                                 : (int32_t)(dice_next(&dice) >> 33 >> dice_below(&dice, 24));
}

static void expect_positions(struct engine_rope rope)
{
    int32_t positions[TOKENS], table[BLOCKS - 1] = {0, 1, 2};
    spread_positions(positions);
    struct turned turned = {rope, positions};
    expect_turned((struct engine_batch_params){.num_seqs = 1,
                                               .max_blocks = BLOCKS - 1,
                                               .cu_seqlens_q = (int32_t[]){0, TOKENS},
                                               .seq_lens_kv = (int32_t[]){TOKENS},
                                               .block_table = table,
                                               .positions = positions},
                  &turned);
}

START_TEST(k_is_turned_by_any_position_up_to_two_to_the_31_in_both_pairings)
{
    static const uint32_t dims[] = {DIM, 36, 2}; // halves of 18 and 1 begin inside eight elements
    expect_positions(
        (struct engine_rope){.dim = dims[_i / 2], .interleaved = _i % 2, .theta = 10000});
}
END_TEST

START_TEST(frequencies_of_the_caller_take_the_place_of_theta)
{
    double frequencies[DIM / 2];
    for (uint32_t i = 0; i < DIM / 2; i++)
        frequencies[i] = i == 0   ? 3.1
                         : i == 1 ? -0.25
                         : i == 2 ? 0
                                  : pow(500000, -2.0 * i / DIM) / 8;
    expect_positions((struct engine_rope){.dim = DIM, .frequencies = frequencies});
}
END_TEST

// Three sequences whose queries are the last of 50, 40 and 20 keys. Only 30 tokens of the second
// one are queries.
START_TEST(without_positions_k_stands_where_the_query_of_its_token_does)
{
    static const int32_t cu[] = {0, 16, 56, 96}, kv_lens[] = {50, 40, 64}, q_lens[] = {16, 30, 40};
    int32_t positions[TOKENS], table[6] = {0, 1, 1, 2, 0, 2};
    for (int s = 0; s < 3; s++)
        for (int32_t t = cu[s]; t < cu[s + 1]; t++)
            positions[t] = kv_lens[s] - (_i ? q_lens[s] : cu[s + 1] - cu[s]) + t - cu[s];
    struct turned turned = {{.dim = DIM, .theta = 1000, .interleaved = true}, positions};
    expect_turned((struct engine_batch_params){.num_seqs = 3,
                                               .max_blocks = 2,
                                               .cu_seqlens_q = cu,
                                               .seq_lens_kv = kv_lens,
                                               .block_table = table,
                                               .q_lens = _i ? q_lens : NULL},
                  &turned);
}
END_TEST

void add_rope_tests(Suite *suite)
{
    TCase *tests = tcase_create("rope");
    tcase_add_checked_fixture(tests, setup_import, teardown);
    tcase_add_loop_test(tests, k_is_turned_by_any_position_up_to_two_to_the_31_in_both_pairings, 0,
                        6);
    tcase_add_test(tests, frequencies_of_the_caller_take_the_place_of_theta);
    tcase_add_loop_test(tests, without_positions_k_stands_where_the_query_of_its_token_does, 0, 2);
    suite_add_tcase(suite, tests);
}
