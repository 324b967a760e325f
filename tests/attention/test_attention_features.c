// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_attention_features.c - each feature of attention alone, and where its borders are.

#include "attention_contents.h"
#include "attention_suite.h"
#include "rigs/check_main.h"

#include <math.h>
#include <string.h>

// 2 KV heads of 16 dims, f32 throughout.
static const struct attention_shape PLAIN = {
    .kv = {.head_dim_k = 16,
           .num_kv_heads = 2,
           .block_size = 8,
           .k_dtype = DTYPE_F32,
           .v_dtype = DTYPE_F32},
    .group = 2,
    .chunk_blocks = 64,
    .io_dtype = DTYPE_F32,
    .num_splits = 1,
};

static struct attention_wish wish_of(uint32_t features, uint32_t num_seqs, uint32_t q_len,
                                     uint32_t kv_len)
{
    struct attention_wish wish = {.shape = PLAIN,
                                  .num_seqs = num_seqs,
                                  .q_len = q_len,
                                  .kv_len = kv_len,
                                  .writes = WRITES_NONE};
    wish.shape.causal = true;
    wish.shape.features = features;
    return wish;
}

static void plain_set(struct stage *stage, uint32_t features, uint32_t num_seqs, uint32_t q_len,
                      uint32_t kv_len)
{
    struct attention_wish wish = wish_of(features, num_seqs, q_len, kv_len);
    stage_set(stage, 20 + features, &wish);
}

// Several tiles of keys, decodes and a piece of a prefill, with each feature alone.
START_TEST(a_feature_alone_agrees_with_the_oracle)
{
    uint32_t feature = 1u << _i;
    struct attention_wish wish = {.shape = PLAIN, .num_seqs = 6, .longest = 1700, .work = 4000};
    wish.shape.features = wish.shape.other_features =
        feature == FEATURE_PAIRS ? feature | FEATURE_ROPE : feature;
    suite_shape_bend(&wish.shape);
    suite_wish_run(&wish, 10 + (uint64_t)_i, _i % 2);
}
END_TEST

// ---- K and V ----

static struct attention_shape shape_of_kv(enum dtype dtype, enum scale_mode mode)
{
    struct attention_shape shape = PLAIN;
    shape.kv.k_dtype = shape.kv.v_dtype = dtype;
    shape.kv.scale_mode = mode;
    return shape;
}

// The dtypes of K and V, each scale mode that fits, K turned as it is written in every second one.
// With which dtype of the tensors they meet changes with the seed.
START_TEST(every_dtype_and_scale_agrees_with_the_oracle)
{
    enum dtype dtype = DTYPE_F32 + (enum dtype)_i;
    enum scale_mode last = dtype_size((int)dtype) == 1 ? SCALE_PER_TOKEN_HEAD : SCALE_NONE;
    for (enum scale_mode mode = SCALE_NONE; mode <= last; mode++) {
        uint64_t drawn = attention_seed + (uint64_t)_i * 5 + mode;
        struct attention_wish wish = {
            .shape = shape_of_kv(dtype, mode), .num_seqs = 5, .longest = 400, .work = 800};
        wish.shape.io_dtype = DTYPE_F32 + (enum dtype)(drawn % 3);
        wish.shape.features = wish.shape.other_features = drawn / 3 % 2 ? FEATURE_ROPE : 0;
        suite_shape_bend(&wish.shape);
        suite_wish_run(&wish, 40 + (uint64_t)_i * 3 + mode, _i % 2);
    }
}
END_TEST

// What models have today, in shapes that tensor cores take: bf16, with keys and values of bf16
// (decodes, a chunk and a prefill) or of 8 bits (decodes, as pipelines for more take a software
// device long to compile).
START_TEST(bfloats_meet_every_kind_of_keys_and_values_that_matrices_take)
{
    static const enum dtype DTYPES[] = {DTYPE_BF16, DTYPE_FP8_E4M3, DTYPE_FP8_E5M2, DTYPE_INT8};
    static const uint32_t Q_LENS[] = {1, 4, 1, 40, 70}, KV_LENS[] = {1100, 77, 0, 300, 70};
    struct attention_wish wish = {
        .shape = shape_of_kv(DTYPES[_i], _i % 2 ? SCALE_PER_TENSOR : SCALE_NONE),
        .num_seqs = _i == 0 ? 5 : 3,
        .q_lens = Q_LENS,
        .kv_lens = KV_LENS,
        .writes = WRITES_NONE,
    };
    wish.shape.kv.head_dim_k = wish.shape.kv.head_dim_v = _i == 3 ? 32 : 64,
    wish.shape.kv.block_size = 32;
    wish.shape.io_dtype = DTYPE_BF16;
    suite_shape_bend(&wish.shape);
    suite_wish_run(&wish, 60 + (uint64_t)_i, _i % 2);
}
END_TEST

static const struct {
    enum dtype io, k, v;
    enum scale_mode mode;
    uint32_t head_dim_k, head_dim_v, features;
} PROMPTS[] = {
    {DTYPE_F16, DTYPE_FP8_E4M3, DTYPE_FP8_E4M3, SCALE_PER_TENSOR, 64, 64, 0},
    {DTYPE_F16, DTYPE_INT8, DTYPE_F16, SCALE_PER_TOKEN_HEAD, 72, 40, FEATURE_LSE},
    {DTYPE_F16, DTYPE_FP8_E5M2, DTYPE_INT8, SCALE_NONE, 32, 96, FEATURE_SOFT_CAP | FEATURE_ALIBI},
    {DTYPE_F16, DTYPE_F16, DTYPE_FP8_E5M2, SCALE_PER_TENSOR, 40, 24, FEATURE_WINDOW},
    {DTYPE_BF16, DTYPE_FP8_E4M3, DTYPE_INT8, SCALE_PER_TENSOR, 64, 64, FEATURE_ROPE},
    {DTYPE_BF16, DTYPE_FP8_E4M3, DTYPE_BF16, SCALE_PER_TOKEN_HEAD, 24, 128, FEATURE_ALIBI},
    {DTYPE_BF16, DTYPE_INT8, DTYPE_FP8_E4M3, SCALE_NONE, 40, 40, FEATURE_CHUNK},
    {DTYPE_F16, DTYPE_INT8, DTYPE_INT8, SCALE_PER_TOKEN_HEAD, 64, 64, FEATURE_LSE},
    {DTYPE_BF16, DTYPE_FP8_E4M3, DTYPE_FP8_E5M2, SCALE_PER_TOKEN_HEAD, 32, 40,
     FEATURE_SINKS | FEATURE_LSE | FEATURE_WINDOW},
    {DTYPE_F16, DTYPE_F16, DTYPE_FP8_E4M3, SCALE_PER_TOKEN_HEAD, 40, 96,
     FEATURE_ALIBI | FEATURE_SOFT_CAP},
    {DTYPE_F16, DTYPE_F16, DTYPE_F16, SCALE_NONE, 256, 256, FEATURE_LSE},
    {DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, SCALE_NONE, 192, 128, FEATURE_SINKS | FEATURE_LSE},
    {DTYPE_F16, DTYPE_FP8_E4M3, DTYPE_FP8_E4M3, SCALE_PER_TENSOR, 64, 136,
     FEATURE_WINDOW | FEATURE_LSE},
    {DTYPE_BF16, DTYPE_INT8, DTYPE_BF16, SCALE_PER_TOKEN_HEAD, 256, 176, 0},
};
enum { NUM_PROMPTS = sizeof PROMPTS / sizeof *PROMPTS };

// Rows in several items, a chunk and whole prompts, with tiles in which maxima are not followed.
START_TEST(prompts_meet_every_kind_of_keys_and_values_that_matrices_take)
{
    static const uint32_t Q_LENS[] = {40, 70, 150}, KV_LENS[] = {520, 70, 300};
    struct attention_wish wish = {
        .shape = shape_of_kv(PROMPTS[_i].k, PROMPTS[_i].mode),
        .num_seqs = 3,
        .q_lens = Q_LENS,
        .kv_lens = KV_LENS,
        .writes = WRITES_NONE,
    };
    wish.shape.kv.v_dtype = PROMPTS[_i].v, wish.shape.io_dtype = PROMPTS[_i].io;
    wish.shape.kv.head_dim_k = PROMPTS[_i].head_dim_k,
    wish.shape.kv.head_dim_v = PROMPTS[_i].head_dim_v;
    wish.shape.kv.block_size = 16u << _i % 3;
    wish.shape.features = wish.shape.other_features = PROMPTS[_i].features;
    suite_shape_bend(&wish.shape);
    suite_wish_run(&wish, 70 + (uint64_t)_i, _i % 2);
}
END_TEST

// Few rows with head dims that tensor cores have to take in turns, from one part, several and
// halves of them.
START_TEST(rows_of_wide_heads_agree_with_the_oracle)
{
    static const struct {
        uint32_t head_dim_k, head_dim_v;
        enum dtype io, k, v;
        uint32_t num_splits, features;
    } WIDE[] = {
        {256, 256, DTYPE_F16, DTYPE_F16, DTYPE_F16, 0, FEATURE_LSE},
        {256, 256, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, 0, 0},
        {256, 256, DTYPE_F16, DTYPE_INT8, DTYPE_INT8, 3, FEATURE_SINKS},
        {192, 128, DTYPE_F16, DTYPE_F16, DTYPE_F16, 1, FEATURE_WINDOW},
        {136, 248, DTYPE_F16, DTYPE_F16, DTYPE_F16, 2,
         FEATURE_ALIBI | FEATURE_SOFT_CAP | FEATURE_LSE},
        {144, 240, DTYPE_BF16, DTYPE_FP8_E4M3, DTYPE_FP8_E5M2, 0, FEATURE_ROPE},
        {72, 192, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, 2, FEATURE_WINDOW | FEATURE_LSE},
        {256, 64, DTYPE_F16, DTYPE_FP8_E4M3, DTYPE_F16, 0, FEATURE_POSITIONS},
    };
    static const uint32_t Q_LENS[] = {1, 2, 1, 1, 2, 1}, KV_LENS[] = {1100, 77, 0, 16, 2100, 1};
    struct attention_wish wish = {
        .shape = shape_of_kv(WIDE[_i].k, SCALE_NONE),
        .num_seqs = 6,
        .q_lens = Q_LENS,
        .kv_lens = KV_LENS,
        .writes = WRITES_NONE,
    };
    struct attention_shape *shape = &wish.shape;
    shape->kv.head_dim_k = WIDE[_i].head_dim_k, shape->kv.head_dim_v = WIDE[_i].head_dim_v;
    shape->kv.v_dtype = WIDE[_i].v, shape->kv.block_size = 32, shape->io_dtype = WIDE[_i].io;
    shape->features = shape->other_features = WIDE[_i].features;
    shape->num_splits = WIDE[_i].num_splits;
    suite_shape_bend(shape);
    suite_wish_run(&wish, 80 + (uint64_t)_i, _i % 2);
}
END_TEST

// Times 2^-10 to 2^6, and some to nothing.
static void value_scales_spread(struct attention_case *problem)
{
    const struct attention_shape *shape = &problem->shape;
    for (uint32_t s = 0; s < problem->num_seqs; s++)
        for (uint32_t key = 0; key < problem->seqs[s].kv_len; key++)
            for (uint32_t i = 0; i < 2 * shape->kv.num_kv_heads; i++) {
                int32_t id = problem->seqs[s].blocks[key / shape->kv.block_size];
                uint8_t *block = i % 2 ? problem->after[id] : problem->before[id];
                float factor = key % 13 == 5 ? 0 : ldexpf(1, (int)((key * 7 + i / 2) % 17) - 10),
                      scale;
                uint8_t *at =
                    block + block_scale_at(shape, i / 2, key % shape->kv.block_size, true);
                memcpy(&scale, at, sizeof scale);
                scale *= factor;
                memcpy(at, &scale, sizeof scale);
            }
}

// Scales that differ from value to value so much that no weight times its scale could be an f16.
START_TEST(values_with_scales_of_their_own_agree_with_the_oracle)
{
    static const struct {
        enum dtype io, k, v;
        uint32_t head_dim, num_splits, features;
    } SCALED[] = {
        {DTYPE_F16, DTYPE_INT8, DTYPE_INT8, 64, 0, FEATURE_LSE},
        {DTYPE_F16, DTYPE_F16, DTYPE_FP8_E4M3, 64, 2, FEATURE_WINDOW | FEATURE_SINKS},
        {DTYPE_BF16, DTYPE_FP8_E5M2, DTYPE_FP8_E5M2, 64, 1, FEATURE_SOFT_CAP | FEATURE_ALIBI},
        {DTYPE_BF16, DTYPE_FP8_E4M3, DTYPE_INT8, 144, 3, FEATURE_LSE},
    };
    static const uint32_t Q_LENS[] = {1, 2, 1, 1, 2, 1}, KV_LENS[] = {1100, 77, 0, 16, 2100, 6};
    struct stage stage;
    struct attention_wish wish = {
        .shape = shape_of_kv(SCALED[_i].k, SCALE_PER_TOKEN_HEAD),
        .num_seqs = 6,
        .q_lens = Q_LENS,
        .kv_lens = KV_LENS,
        .writes = WRITES_NONE,
    };
    struct attention_shape *shape = &wish.shape;
    shape->kv.head_dim_k = shape->kv.head_dim_v = SCALED[_i].head_dim;
    shape->kv.v_dtype = SCALED[_i].v, shape->kv.block_size = 32, shape->io_dtype = SCALED[_i].io;
    shape->features = shape->other_features = SCALED[_i].features;
    shape->num_splits = SCALED[_i].num_splits;
    suite_shape_bend(shape);
    stage_set(&stage, 70 + (uint64_t)_i, &wish);
    value_scales_spread(stage.problem);
    stage_play(&stage);
    rig_check(&stage.rig, &stage.batch);
    stage_clear(&stage);
}
END_TEST

START_TEST(v_may_be_a_prefix_of_k)
{
    static const enum dtype DTYPES[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_FP8_E4M3};
    struct attention_wish wish = {
        .shape = shape_of_kv(DTYPES[_i], _i == 3 ? SCALE_PER_TOKEN_HEAD : SCALE_NONE),
        .num_seqs = 4,
        .longest = 300,
        .work = 3000};
    wish.shape.kv.head_dim_k = 576, wish.shape.kv.head_dim_v = 512,
    wish.shape.kv.v_is_k_prefix = true;
    wish.shape.kv.num_kv_heads = 1, wish.shape.group = 16;
    wish.shape.io_dtype = _i == 3 ? DTYPE_BF16 : DTYPES[_i];
    suite_wish_run(&wish, 100 + (uint64_t)_i, _i % 2);
}
END_TEST

// ---- what is not to be seen ----

// What lies before the window: no valid block, and in the window's first block NaN.
START_TEST(nothing_before_the_window_is_touched)
{
    const uint32_t queries = 20, keys = 1300, left = 27, first = keys - queries - left;
    struct stage stage;
    plain_set(&stage, FEATURE_WINDOW | FEATURE_LSE, 1, queries, keys);
    struct attention_seq *seq = &stage.problem->seqs[0];
    struct attention_parameters *parameters = &stage.problem->parameters[0];
    parameters->window_left = (int32_t)left;
    parameters->window_right = _i % 2 ? 0 : -1;
    parameters->num_splits = _i / 2 ? 4 : 1;
    for (uint32_t key = 0; key < first; key++)
        for (int i = 0; i < 4; i++)
            memset(attention_case_element(stage.problem, seq, (uint32_t)i / 2, key, i % 2, false),
                   0xff, 16 * 4);
    stage_play(&stage);
    for (uint32_t block = 0; block < first / 8; block++)
        stage.batch.block_table[block] = -1;
    stage_replay(&stage);
    rig_check(&stage.rig, &stage.batch);
    stage_clear(&stage);
}
END_TEST

START_TEST(a_row_that_sees_no_key_gives_zeros_and_its_sink)
{
    static const float ZEROES[16] = {0};
    struct stage stage;
    bool sinks = _i % 2;
    plain_set(&stage, FEATURE_MASK | FEATURE_LSE | (sinks ? FEATURE_SINKS : 0), 3, 5, 700);
    stage.problem->parameters[0].num_splits = _i / 2 ? 3 : 1;
    for (uint32_t s = 0; s < 3; s++)
        memset(stage.problem->seqs[s].mask, 0, (5 * 700 + 7) / 8);
    stage_play(&stage);
    for (uint32_t token = 0; token < stage.batch.num_tokens; token++)
        for (uint32_t head = 0; head < 4; head++) {
            ck_assert_mem_eq(stage_row(&stage, token, head), ZEROES, sizeof ZEROES);
            float sink = sinks ? stage.problem->parameters[0].sinks[head] : -INFINITY;
            if (sinks)
                ck_assert_float_eq_tol(stage_lse(&stage, token, head), sink, 1e-5f);
            else
                ck_assert(stage_lse(&stage, token, head) == sink);
        }
    stage_clear(&stage);
}
END_TEST

// More queries than keys: the first queries stand before key 0, where there is no chunk. The
// largest chunk would reach over all keys if such a position was taken as unsigned.
START_TEST(a_query_before_the_first_key_is_in_no_chunk)
{
    static const uint32_t CHUNKS[] = {1, 3, 1u << 31, UINT32_MAX - 1, UINT32_MAX};
    struct attention_wish wish = wish_of(FEATURE_CHUNK | FEATURE_LSE, 2, 9, 5);
    struct stage stage;
    suite_shape_bend(&wish.shape);
    stage_set(&stage, 31, &wish);
    struct attention_parameters *parameters = &stage.problem->parameters[0];
    parameters->causal = false;
    parameters->attention_chunk = CHUNKS[0];
    stage_play(&stage);
    for (size_t i = 0; i < sizeof CHUNKS / sizeof *CHUNKS; i++) {
        parameters->attention_chunk = CHUNKS[i];
        stage_replay(&stage);
        rig_check(&stage.rig, &stage.batch);
        ck_assert(isinf(stage_lse(&stage, 0, 0)) && isfinite(stage_lse(&stage, 4, 0)));
    }
    stage_clear(&stage);
}
END_TEST

// The mask lets the first query see the last key, which causal would hide, and nothing else, which
// is NaN.
START_TEST(a_mask_replaces_causal)
{
    struct stage stage;
    plain_set(&stage, FEATURE_MASK | FEATURE_LSE, 3, 7, 45);
    for (uint32_t s = 0; s < 3; s++) {
        uint8_t *mask = stage.problem->seqs[s].mask;
        memset(mask, 0, (7 * 45 + 7) / 8);
        mask[44 / 8] |= 1u << 44 % 8;
        for (uint32_t key = 0; key < 44; key++)
            for (uint32_t i = 0; i < 4; i++)
                memset(attention_case_element(stage.problem, &stage.problem->seqs[s], i / 2, key,
                                              i % 2, false),
                       0xff, 16 * 4);
    }
    stage_play(&stage);
    rig_check(&stage.rig, &stage.batch);
    for (uint32_t s = 0; s < 3; s++)
        ck_assert(isfinite(stage_lse(&stage, s * 7, 0)) &&
                  !isfinite(stage_lse(&stage, s * 7 + 1, 0)));
    stage_clear(&stage);
}
END_TEST

// ---- accuracy ----

// With one key the LSE is the score: so the cap's tanh can be read off, from 1e-6 to where it
// saturates.
START_TEST(the_soft_cap_is_accurate_for_small_and_for_large_scores)
{
    struct stage stage;
    plain_set(&stage, FEATURE_SOFT_CAP | FEATURE_LSE, 40, 1, 1);
    stage.problem->parameters[0].soft_cap = 50;
    for (uint32_t s = 0; s < 40; s++)
        for (uint32_t i = 0; i < 4 * 16; i++) {
            struct attention_seq *seq = &stage.problem->seqs[s];
            float *k = attention_case_element(stage.problem, seq, i / 32, 0, false, false);
            float *after = attention_case_element(stage.problem, seq, i / 32, 0, false, true);
            k[i % 16] = after[i % 16] = 1;
            ((float *)seq->q)[i] = (i / 16 % 2 ? -1.0f : 1.0f) * powf(10, (float)s / 4.5f - 6);
        }
    stage_play(&stage);
    for (uint32_t token = 0; token < 40; token++)
        for (uint32_t head = 0; head < 4; head++) {
            double score = (head % 2 ? -16 : 16) * (double)powf(10, (float)token / 4.5f - 6) *
                           (double)stage.problem->shape.scale;
            double expected = 50 * tanh(score / 50), lse = (double)stage_lse(&stage, token, head);
            if (!(fabs(lse - expected) <= 1e-6 * fabs(expected)))
                ck_abort_msg("score %.9g became %.9g, expected %.9g", score, lse, expected);
        }
    stage_clear(&stage);
}
END_TEST

// Far from all keys the bias is large, but only its differences weigh.
START_TEST(alibi_keeps_its_accuracy_at_far_positions)
{
    struct stage stage;
    plain_set(&stage, FEATURE_ALIBI | FEATURE_POSITIONS | FEATURE_LSE, 1, 9, 600);
    stage.problem->parameters[0].num_splits = _i ? 3 : 1;
    for (uint32_t i = 0; i < 9; i++)
        stage.problem->seqs[0].positions[i] = i % 3 ? 10000000 + (int32_t)i : INT32_MAX;
    for (uint32_t head = 0; head < 4; head++)
        stage.problem->parameters[0].slopes[head] = 0.5f / (float)(head + 1);
    stage_play(&stage);
    rig_check(&stage.rig, &stage.batch);
    stage_clear(&stage);
}
END_TEST

// Written and read by runs of their own: with one key, whose rotation is undone by its query's at
// the same position, the LSE is the score of the unturned pair, as far away as a position can be.
START_TEST(a_query_and_a_key_at_one_position_meet_unturned)
{
    struct attention_wish wish = wish_of(
        FEATURE_ROPE | FEATURE_POSITIONS | FEATURE_LSE | (_i ? FEATURE_PAIRS : 0), 30, 1, 1);
    struct stage stage;
    wish.writes = WRITES_ALL;
    wish.shape.causal = false;
    stage_set(&stage, 120 + (uint64_t)_i, &wish);
    for (uint32_t s = 0; s < 30; s++)
        stage.problem->seqs[s].positions[0] = s == 29 ? INT32_MAX : (int32_t)(1u << s);
    stage_play(&stage);
    for (uint32_t s = 0; s < 30; s++)
        for (uint32_t head = 0; head < 4; head++) {
            const float *q = (const float *)stage.problem->seqs[s].q + (size_t)head * 16;
            const float *k = (const float *)stage.problem->seqs[s].k + (size_t)(head / 2) * 16;
            double score = 0, lse = (double)stage_lse(&stage, s, head);
            for (uint32_t d = 0; d < 16; d++)
                score += (double)q[d] * (double)k[d];
            score *= (double)stage.problem->shape.scale;
            if (!(fabs(lse - score) <= 1e-5 * fmax(1, fabs(score))))
                ck_abort_msg("position %d, head %u: LSE %.9g, expected %.9g",
                             stage.problem->seqs[s].positions[0], head, lse, score);
        }
    stage_clear(&stage);
}
END_TEST

// One long sequence with queries in 16 bits, which are all alike.
static void stage_set_far(struct stage *stage, enum dtype io, enum dtype k, enum dtype v,
                          uint32_t head_dim)
{
    struct attention_wish wish = wish_of(FEATURE_LSE, 1, 70, 700);
    wish.shape.io_dtype = io;
    wish.shape.kv.k_dtype = k, wish.shape.kv.v_dtype = v;
    wish.shape.kv.scale_mode = k == v ? SCALE_NONE : SCALE_PER_TOKEN_HEAD; // of V
    wish.shape.kv.head_dim_k = wish.shape.kv.head_dim_v = head_dim;
    wish.shape.kv.block_size = 16;
    stage_set(stage, 150, &wish);
    for (uint64_t i = 0; i < 70 * 4 * (uint64_t)head_dim; i++)
        oracle_store(stage->problem->seqs[0].q, io, i, 1);
}

// A key of all heads, or a value.
static void far_store(const struct stage *stage, uint32_t key, bool is_value, float element)
{
    const struct attention_shape *shape = &stage->problem->shape;
    const uint64_t dims = shape->kv.head_dim_k;
    for (uint64_t i = 0; i < 2 * 2 * dims; i++) {
        void *to = attention_case_element(stage->problem, &stage->problem->seqs[0], i / dims % 2,
                                          key, is_value, i / dims / 2);
        oracle_store(to, shape->kv.k_dtype, i % dims, element);
    }
}

static void far_play(struct stage *stage)
{
    stage_play(stage);
    rig_check(&stage->rig, &stage->batch);
    stage_clear(stage);
}

static const struct {
    enum dtype io, k, v;
    uint32_t head_dim;
} FAR[] = {
    {DTYPE_F16, DTYPE_F16, DTYPE_F16, 16},
    {DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, 16},
    {DTYPE_F16, DTYPE_FP8_E4M3, DTYPE_FP8_E4M3, 16},
    {DTYPE_F16, DTYPE_INT8, DTYPE_INT8, 16},
    {DTYPE_BF16, DTYPE_FP8_E5M2, DTYPE_FP8_E5M2, 16},
    {DTYPE_BF16, DTYPE_FP8_E4M3, DTYPE_FP8_E4M3, 16},
    {DTYPE_F16, DTYPE_F16, DTYPE_F16, 256},
    {DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, 256},
    {DTYPE_F16, DTYPE_FP8_E4M3, DTYPE_FP8_E4M3, 136},
    {DTYPE_F16, DTYPE_F16, DTYPE_INT8, 16},
    {DTYPE_BF16, DTYPE_BF16, DTYPE_FP8_E4M3, 16},
};
enum { NUM_FAR = sizeof FAR / sizeof *FAR };

// Two keys far above all others, and far from where a prefill's rows begin to look: a maximum that
// is not followed with every tile must not be trusted.
START_TEST(a_key_far_above_all_others_gets_all_the_weight)
{
    struct stage stage;
    stage_set_far(&stage, FAR[_i].io, FAR[_i].k, FAR[_i].v, FAR[_i].head_dim);
    far_store(&stage, 100, false, 10);
    far_store(&stage, 300, false, 8);
    far_play(&stage);
}
END_TEST

// So far above that its weight times its value is too large for f32, though the weight is not.
START_TEST(a_large_value_of_a_far_key_comes_out_as_it_is)
{
    static const float ELEMENTS[][2] = {
        {3.5f, 1e33f}, {2, 1e37f}}; // of the key and its value; weights 2^20 and 2^12
    struct stage stage;
    stage_set_far(&stage, DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, 16);
    stage.problem->shape.scale = 0.25f;
    for (uint32_t key = 0; key < 700; key++)
        far_store(&stage, key, false, 0);
    far_store(&stage, 300, false, ELEMENTS[_i][0]);
    far_store(&stage, 300, true, ELEMENTS[_i][1]);
    far_play(&stage);
}
END_TEST

static void far_scale_store(const struct stage *stage, uint32_t key, float scale)
{
    const struct attention_shape *shape = &stage->problem->shape;
    int32_t block = stage->problem->seqs[0].blocks[key / shape->kv.block_size];
    for (uint32_t i = 0; i < 2 * 2; i++)
        memcpy((i / 2 ? stage->problem->after : stage->problem->before)[block] +
                   block_scale_at(shape, i % 2, key % shape->kv.block_size, true),
               &scale, sizeof scale);
}

// Its value has no scale, so that there is no product of weight and scale that is too large; or one
// far above or far below the others'.
START_TEST(a_far_key_gets_all_the_weight_whatever_its_value_is_scaled_with)
{
    static const float SCALES[] = {0, 0x1p-100f, 0x1p9f, 0x1p-40f};
    struct stage stage;
    bool half = _i / 4 == 0;
    stage_set_far(&stage, half ? DTYPE_F16 : DTYPE_BF16, half ? DTYPE_F16 : DTYPE_BF16, DTYPE_INT8,
                  16);
    far_store(&stage, 100, false, 10);
    far_store(&stage, 300, false, 30);
    far_scale_store(&stage, 300, SCALES[_i % 4]);
    far_scale_store(&stage, 690, SCALES[(_i + 1) % 4]);
    far_play(&stage);
}
END_TEST

// The least numbers of e4m3 and e5m2, which f16 may have to have as subnormal ones.
START_TEST(the_least_elements_of_8_bits_are_not_lost)
{
    struct stage stage;
    enum dtype kv = _i % 2 ? DTYPE_FP8_E5M2 : DTYPE_FP8_E4M3;
    const float least = _i % 2 ? 0x1p-16f : 0x1p-9f;
    stage_set_far(&stage, _i / 2 ? DTYPE_BF16 : DTYPE_F16, kv, kv, 16);
    stage.problem->shape.scale = 0.5f / least;
    for (uint32_t key = 0; key < 700; key++)
        for (uint64_t i = 0; i < 2 * 2 * 16; i++)
            for (int value = 0; value < 2; value++)
                oracle_store(attention_case_element(stage.problem, &stage.problem->seqs[0],
                                                    i / 16 % 2, key, value, i / 32),
                             kv, i % 16, key % 3 == 0 ? -least : least);
    stage_play(&stage);
    rig_check(&stage.rig, &stage.batch);
    double element = oracle_load(stage_row(&stage, 0, 0), stage.problem->shape.io_dtype, 0);
    ck_assert_msg(element > 0.5 * (double)least, "%g", element);
    stage_clear(&stage);
}
END_TEST

// Not even one of no weight: of either sign, and where maxima are not followed.
START_TEST(a_key_that_is_no_number_makes_none_of_all_rows_that_see_it)
{
    static const struct {
        enum dtype io, kv;
        int byte;
    } KEYS[] = {{DTYPE_F16, DTYPE_FP8_E4M3, 0xff},
                {DTYPE_F16, DTYPE_FP8_E4M3, 0x7f},
                {DTYPE_F16, DTYPE_FP8_E5M2, 0xff},
                {DTYPE_BF16, DTYPE_FP8_E4M3, 0xff},
                {DTYPE_F16, DTYPE_F16, 0xff}};
    struct stage stage;
    stage_set_far(&stage, KEYS[_i].io, KEYS[_i].kv, KEYS[_i].kv, 16);
    for (uint32_t head = 0; head < 2; head++)
        memset(
            attention_case_element(stage.problem, &stage.problem->seqs[0], head, 300, false, false),
            KEYS[_i].byte, 16 * dtype_size((int)KEYS[_i].kv));
    stage_play(&stage);
    for (uint32_t token = 0; token < 70; token++)
        for (uint32_t head = 0; head < 4; head++) {
            double element = oracle_load(stage_row(&stage, token, head), KEYS[_i].io, 0);
            ck_assert_msg(isnan(element), "token %u, head %u: %g", token, head, element);
        }
    stage_clear(&stage);
}
END_TEST

void suite_add_features(Suite *suite)
{
    TCase *features = suite_part(suite, "features");
    check_loop(features, a_feature_alone_agrees_with_the_oracle, NUM_FEATURES);
    check_loop(features, every_dtype_and_scale_agrees_with_the_oracle, DTYPE_INT8);
    check_loop(features, v_may_be_a_prefix_of_k, 4);
    check_loop(features, nothing_before_the_window_is_touched, 4);
    check_loop(features, a_row_that_sees_no_key_gives_zeros_and_its_sink, 4);
    tcase_add_test(features, a_query_before_the_first_key_is_in_no_chunk);
    tcase_add_test(features, a_mask_replaces_causal);
    tcase_add_test(features, the_soft_cap_is_accurate_for_small_and_for_large_scores);
    check_loop(features, alibi_keeps_its_accuracy_at_far_positions, 2);
    check_loop(features, a_query_and_a_key_at_one_position_meet_unturned, 2);
    TCase *far = suite_part(suite, "far keys");
    check_loop(far, a_key_far_above_all_others_gets_all_the_weight, NUM_FAR);
    check_loop(far, a_large_value_of_a_far_key_comes_out_as_it_is, 2);
    check_loop(far, a_far_key_gets_all_the_weight_whatever_its_value_is_scaled_with, 8);
    check_loop(far, the_least_elements_of_8_bits_are_not_lost, 4);
    check_loop(far, a_key_that_is_no_number_makes_none_of_all_rows_that_see_it, 5);
    TCase *bfloats = suite_part(suite, "bfloats");
    check_loop(bfloats, bfloats_meet_every_kind_of_keys_and_values_that_matrices_take, 4);
    TCase *prompts = suite_part(suite, "prompts");
    check_loop(prompts, prompts_meet_every_kind_of_keys_and_values_that_matrices_take, NUM_PROMPTS);
    TCase *scales = suite_part(suite, "scales");
    check_loop(scales, values_with_scales_of_their_own_agree_with_the_oracle, 4);
    TCase *wide = suite_part(suite, "wide");
    check_loop(wide, rows_of_wide_heads_agree_with_the_oracle, 8);
}
