// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_attention.c - the shaders on a real device, through engine.h, against the oracle: random ragged batches over both
// memory paths, the same-bits promise, exact conversions, zeroing, and silence of the validation layer.
// AULE_TEST_SEED repeats a run (the seed is printed); AULE_TEST_CASES asks for more cases; AULE_TEST_ONLY for one of them.

#include "attention_rig.h"
#include "check_main.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { CASES_A_TEST = 20, DEFAULT_CASES = 300 };

static uint64_t seed;
static uint64_t num_cases = DEFAULT_CASES;
static int64_t only = -1;

// ---- random batches ----

// What fixes a pipeline. A software device takes a second to compile one, so the cases of a test share three of these. Every
// head_dim comes round with 14 of them, every triple of dtypes with 8, every block size with 12; a round later they meet others.
static struct attention_shape geometry_draw(uint64_t number)
{
    static const uint32_t HEAD_DIMS[] = {8, 16, 24, 32, 40, 64, 72, 80, 96, 112, 128, 136, 192, 256};
    struct dice dice = {.state = seed ^ number << 20};
    uint64_t round = number / COUNT(HEAD_DIMS), dtypes = number + round;
    return (struct attention_shape){
        .head_dim = HEAD_DIMS[number % COUNT(HEAD_DIMS)],
        .block_size = 8u << (number / 2 + round) % 6,
        .io_dtype = 1 + (dtypes & 1),
        .k_dtype = 1 + (dtypes >> 1 & 1),
        .v_dtype = 1 + (dtypes >> 2 & 1),
        .num_kv_heads = dice_between(&dice, 1, 4),
    };
}

// Features are part of a pipeline too: one set for each geometry, every third without any, every second with two sets.
static void features_draw(struct attention_shape *shape, uint64_t number)
{
    struct dice dice = {.state = seed + number * 77773};
    uint32_t any = (uint32_t)dice_next(&dice) & FEATURES_ALL, other = (uint32_t)dice_next(&dice) & FEATURES_ALL;
    shape->features = number % 3 ? any : 0;
    shape->other_features = number % 2 ? other : shape->features;
}

// Most cases are small, some have sequences of several thousand keys.
static struct attention_wish wish_draw(uint64_t index, struct dice *dice)
{
    static const uint32_t GROUPS[] = {1, 1, 4, 8, 2, 3, 16};
    uint64_t geometry = index / CASES_A_TEST * 3 + index % 3 + seed % 997;
    struct attention_wish wish = {.shape = geometry_draw(geometry)};
    features_draw(&wish.shape, geometry);
    wish.shape.group = GROUPS[dice_below(dice, COUNT(GROUPS))];
    wish.writes = dice_chance(dice, 30) ? WRITES_NONE : WRITES_SOME;
    uint32_t size = dice_below(dice, 100);
    if (size >= 95) {
        wish.longest = dice_between(dice, 2000, 6000);
        wish.num_seqs = dice_between(dice, 1, 4);
        wish.work = 10000;
    } else if (size >= 75) {
        wish.longest = dice_between(dice, 300, 900);
        wish.num_seqs = dice_between(dice, 1, 16);
        wish.work = 6000;
    }
    return wish;
}

// Cuts the sequences, in random order, into one to three batches.
static uint32_t batches_cut(struct rig *rig, const struct attention_case *problem, struct dice *dice, uint32_t *order,
                            struct attention_batch *batches)
{
    uint32_t num_batches = 0, done = 0;
    for (uint32_t i = 0; i < problem->num_seqs; i++) {
        uint32_t j = dice_below(dice, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    while (done < problem->num_seqs) {
        uint32_t left = problem->num_seqs - done, count = num_batches < 2 ? dice_between(dice, 1, left) : left;
        rig_batch_init(rig, &batches[num_batches++], problem, dice_below(dice, 2), order + done, count, dice);
        done += count;
    }
    return num_batches;
}

// A window without sides is none.
static uint32_t features_at_work(const struct attention_parameters *parameters)
{
    bool unbounded = parameters->window_left < 0 && parameters->window_right < 0;
    return unbounded ? parameters->features & ~(uint32_t)FEATURE_WINDOW : parameters->features;
}

// Runs of a wave share a dispatch if they use the same features, whatever their values, and else do not.
static void dispatches_check(const struct attention_batch *batches, const struct engine_run_result *results,
                             uint32_t num_batches)
{
    for (uint32_t i = 1; i < num_batches; i++) {
        bool same = features_at_work(batches[i].parameters) == features_at_work(batches[i - 1].parameters);
        if (batches[i].num_tokens > 0 && batches[i - 1].num_tokens > 0)
            ck_assert_int_eq(results[i].dispatch == results[i - 1].dispatch, same);
    }
}

static double case_run(struct rig *rig, const struct attention_case *problem, struct dice *dice)
{
    struct attention_batch batches[3] = {0};
    struct engine_run_result results[3];
    uint32_t order[64];
    double worst = 0;
    ck_assert_uint_le(problem->num_seqs, COUNT(order));
    struct engine_cache *cache = rig_cache_open(rig, problem);
    rig_arena_clear(rig);
    uint32_t num_batches = batches_cut(rig, problem, dice, order, batches);
    rig_run(rig, cache, batches, num_batches, results);
    dispatches_check(batches, results, num_batches);
    rig_cache_check(rig, cache, problem, problem->after);
    for (uint32_t i = 0; i < num_batches; i++) {
        double error = rig_check(rig, &batches[i]);
        worst = error > worst ? error : worst;
        attention_batch_finish(&batches[i]);
    }
    engine_cache_destroy(cache);
    return worst;
}

static struct attention_case *case_make(uint64_t index, uint64_t kind, const struct attention_wish *wish)
{
    struct dice dice = {.state = seed * 1000003 + index * 31 + kind};
    struct attention_wish drawn = wish ? *wish : wish_draw(index, &dice);
    struct attention_case *problem = attention_case_create(dice_next(&dice), &drawn);
    ck_assert_ptr_nonnull(problem);
    return problem;
}

// check prints the failure; this says where it happened.
static void case_announce(uint64_t index, const struct attention_case *problem)
{
    const struct attention_shape *s = &problem->shape;
    fprintf(stderr,
            "case %" PRIu64 ": %u seqs, heads %u/%u, head_dim %u, block_size %u, io/k/v %s/%s/%s, layer %u of %u, "
            "%u blocks by %u%s, features %x and %x\n",
            index, problem->num_seqs, shape_heads(s), s->num_kv_heads, s->head_dim, s->block_size,
            dtype_name(s->io_dtype), dtype_name(s->k_dtype), dtype_name(s->v_dtype), s->layer, s->num_layers,
            problem->num_blocks, s->chunk_blocks, s->causal ? ", causal" : "", s->features, s->other_features);
}

// The build says where the layer is wanted. It costs time: a third of the random cases run under it, another one each seed.
static bool case_is_validated(int number)
{
    const char *text = getenv("AULE_TEST_VALIDATION");
    return text && strcmp(text, "1") == 0 && (seed + (uint64_t)number) % 3 == 0;
}

START_TEST(random_batches_agree_with_the_oracle)
{
    struct rig rig;
    double worst[3] = {0}; // by output dtype
    rig_open(&rig, _i % 2 != 0, case_is_validated(_i));
    for (uint64_t i = 0; i < CASES_A_TEST; i++) {
        uint64_t index = (uint64_t)_i * CASES_A_TEST + i;
        if (index >= num_cases || (only >= 0 && index != (uint64_t)only))
            continue;
        struct attention_case *problem = case_make(index, 0, NULL);
        struct dice dice = {.state = seed ^ index};
        if (only >= 0 || getenv("AULE_TEST_VERBOSE"))
            case_announce(index, problem);
        double error = case_run(&rig, problem, &dice);
        enum dtype dtype = problem->shape.io_dtype;
        worst[dtype] = error > worst[dtype] ? error : worst[dtype];
        attention_case_destroy(problem);
    }
    rig_close(&rig);
    printf("cases %d to %d, %s: worst error f32 %.1e, f16 %.1e\n", _i * CASES_A_TEST, (_i + 1) * CASES_A_TEST - 1,
           _i % 2 ? "staged" : "imported where the device can", worst[DTYPE_F32], worst[DTYPE_F16]);
}
END_TEST

// ---- large and special ----

static void wish_run(const struct attention_wish *wish, uint64_t kind, bool force_staging)
{
    struct rig rig;
    struct dice dice = {.state = seed + kind};
    rig_open(&rig, force_staging, false);
    struct attention_case *problem = case_make(0, kind, wish);
    case_run(&rig, problem, &dice);
    attention_case_destroy(problem);
    rig_close(&rig);
}

START_TEST(thousands_of_keys_stay_within_the_bound)
{
    struct attention_wish wish = {.shape = {.head_dim = 64,
                                            .num_kv_heads = 1,
                                            .group = 2,
                                            .block_size = 64,
                                            .chunk_blocks = 128,
                                            .io_dtype = DTYPE_F32,
                                            .k_dtype = DTYPE_F32,
                                            .v_dtype = DTYPE_F32},
                                  .num_seqs = 6,
                                  .longest = 12000,
                                  .work = 60000};
    wish_run(&wish, 1, false);
}
END_TEST

START_TEST(many_sequences_share_one_batch)
{
    struct attention_wish wish = {
        .shape = {.head_dim = 32, .num_kv_heads = 2, .group = 2, .block_size = 16}, .num_seqs = 60, .longest = 120};
    wish_run(&wish, 2, false);
    wish_run(&wish, 3, true);
}
END_TEST

// ---- same bits ----

struct rows {
    uint8_t *bytes; // [tokens of all sequences of the case][heads * head_dim, then heads LSE], sequence by sequence
    uint64_t token_bytes;
};

static void rows_collect(struct rows *rows, const struct attention_batch *batch, const uint32_t *order,
                         const uint8_t *arena)
{
    const struct attention_case *problem = batch->problem;
    uint64_t row = (uint64_t)problem->shape.head_dim * dtype_size(problem->shape.io_dtype);
    uint32_t heads = shape_heads(&problem->shape);
    for (uint32_t i = 0; i < batch->num_seqs; i++) {
        uint64_t first = 0;
        for (uint32_t s = 0; s < order[i]; s++)
            first += problem->seqs[s].q_len;
        for (uint32_t t = 0; t < problem->seqs[order[i]].q_len; t++) {
            uint8_t *to = rows->bytes + (first + t) * rows->token_bytes;
            uint64_t token = (uint32_t)batch->cu_seqlens_q[i] + t;
            for (uint32_t h = 0; h < heads; h++)
                memcpy(to + h * row,
                       arena + batch->out.offset + token * batch->out.token_stride + h * batch->out.head_stride, row);
            if (batch->lse.dtype)
                memcpy(to + heads * row, arena + batch->lse.offset + token * batch->lse.token_stride, heads * 4);
        }
    }
}

static uint64_t case_tokens(const struct attention_case *problem)
{
    uint64_t tokens = 0;
    for (uint32_t s = 0; s < problem->num_seqs; s++)
        tokens += problem->seqs[s].q_len;
    return tokens;
}

// All that have work to do must have shared one dispatch.
static void merged_check(const struct attention_batch *batches, const struct engine_run_result *results,
                         uint32_t num_batches)
{
    int64_t dispatch = -1;
    for (uint32_t i = 0; i < num_batches; i++) {
        if (batches[i].num_tokens == 0)
            continue;
        if (dispatch >= 0)
            ck_assert_int_eq(results[i].dispatch, dispatch);
        dispatch = results[i].dispatch;
    }
    ck_assert_int_ge(dispatch, 0);
}

// Runs the sequences order[0 .. num_seqs) as batches of `size`, all in one wave if `together`, and collects the rows.
static void rows_run(struct rig *rig, struct engine_cache *cache, const struct attention_case *problem,
                     const uint32_t *order, uint32_t size, bool together, struct dice *dice, struct rows *rows)
{
    struct attention_batch batches[RIG_MAX_RUNS] = {0};
    struct engine_run_result results[RIG_MAX_RUNS];
    uint32_t num_batches = 0;
    memset(rows->bytes, 0xff, case_tokens(problem) * rows->token_bytes);
    rig_arena_clear(rig);
    for (uint32_t at = 0; at < problem->num_seqs; at += size) {
        uint32_t count = at + size <= problem->num_seqs ? size : problem->num_seqs - at;
        rig_batch_init(rig, &batches[num_batches++], problem, 0, order + at, count, dice);
    }
    if (together) {
        rig_run(rig, cache, batches, num_batches, results);
        merged_check(batches, results, num_batches);
    }
    for (uint32_t i = 0; i < num_batches; i++) {
        if (!together)
            rig_run(rig, cache, &batches[i], 1, results);
        rows_collect(rows, &batches[i], order + i * size, rig->image.bytes);
        attention_batch_finish(&batches[i]);
    }
}

static const struct arrangement {
    const char *name;
    uint32_t size; // sequences a batch
    bool together; // in one dispatch
    bool backwards;
} ARRANGEMENTS[] = {
    {"all in one batch", 8, false, false},
    {"each alone", 1, false, false},
    {"at other places of the batch", 8, false, true},
    {"merged with other runs", 1, true, true},
    {"merged in threes", 3, true, false},
};

static void arrangement_run(struct rig *rig, struct engine_cache *cache, const struct arrangement *arrangement,
                            const struct attention_case *problem, struct rows *rows)
{
    struct dice dice = {.state = seed + arrangement->size};
    uint32_t order[8];
    for (uint32_t i = 0; i < 8; i++)
        order[i] = arrangement->backwards ? 7 - i : i;
    rows_run(rig, cache, problem, order, arrangement->size, arrangement->together, &dice, rows);
}

static void rows_compare(const struct rows *first, const struct rows *other, uint64_t size, const char *name)
{
    for (uint64_t at = 0; memcmp(first->bytes, other->bytes, size) != 0 && at < size; at++)
        if (first->bytes[at] != other->bytes[at])
            ck_abort_msg("%s: byte %" PRIu64 " of token %" PRIu64 " differs: %02x, and %02x in one batch", name,
                         at % first->token_bytes, at / first->token_bytes, other->bytes[at], first->bytes[at]);
}

// The first arrangement over imported memory gives the rows that all others must give.
static void arrangements_compare(const struct attention_case *problem, struct rows *first, struct rows *other)
{
    uint64_t size = case_tokens(problem) * first->token_bytes;
    for (int staged = 0; staged < 2; staged++) {
        struct rig rig;
        rig_open(&rig, staged, false);
        struct engine_cache *cache = rig_cache_open(&rig, problem);
        for (size_t i = 0; i < COUNT(ARRANGEMENTS); i++) {
            bool is_first = !staged && i == 0;
            arrangement_run(&rig, cache, &ARRANGEMENTS[i], problem, is_first ? first : other);
            if (!is_first)
                rows_compare(first, other, size, ARRANGEMENTS[i].name);
        }
        engine_cache_destroy(cache);
        rig_close(&rig);
    }
}

static const uint32_t SAME_BITS_FEATURES[] = {
    0,
    0,
    0,
    FEATURE_WINDOW | FEATURE_SINKS | FEATURE_LSE,
    FEATURE_MASK | FEATURE_ALIBI | FEATURE_POSITIONS,
    FEATURES_ALL,
};

START_TEST(a_row_has_the_same_bits_in_any_company)
{
    struct attention_wish wish = {.shape = {.head_dim = _i % 2 ? 40 : 64,
                                            .num_kv_heads = 2,
                                            .group = _i % 3 + 1,
                                            .block_size = 16,
                                            .features = SAME_BITS_FEATURES[_i]},
                                  .num_seqs = 8,
                                  .longest = 1300,
                                  .work = 10000,
                                  .writes = WRITES_NONE};
    struct attention_case *problem = case_make((uint64_t)_i, 4, &wish);
    struct rows first = {.token_bytes = (uint64_t)shape_heads(&problem->shape) * problem->shape.head_dim *
                                            dtype_size(problem->shape.io_dtype) +
                                        shape_heads(&problem->shape) * sizeof(float)};
    struct rows other = first;
    first.bytes = malloc(case_tokens(problem) * first.token_bytes + 1);
    other.bytes = malloc(case_tokens(problem) * first.token_bytes + 1);
    ck_assert_ptr_nonnull(first.bytes);
    ck_assert_ptr_nonnull(other.bytes);
    arrangements_compare(problem, &first, &other);
    free(first.bytes);
    free(other.bytes);
    attention_case_destroy(problem);
}
END_TEST

// ---- one feature at a time ----

// Several tiles of keys, decodes and a piece of a prefill, with each feature alone.
START_TEST(a_feature_alone_agrees_with_the_oracle)
{
    struct attention_wish wish = {.shape = {.head_dim = 16,
                                            .num_kv_heads = 2,
                                            .group = 2,
                                            .block_size = 8,
                                            .io_dtype = DTYPE_F32,
                                            .k_dtype = DTYPE_F32,
                                            .v_dtype = DTYPE_F32,
                                            .features = 1u << _i,
                                            .other_features = 1u << _i},
                                  .num_seqs = 6,
                                  .longest = 1700,
                                  .work = 4000};
    wish_run(&wish, 10 + (uint64_t)_i, _i % 2);
}
END_TEST

// A problem of f32 throughout, to be changed before it is run.
struct stage {
    struct rig rig;
    struct attention_case *problem;
    struct engine_cache *cache;
    struct attention_batch batch;
};

static void stage_set(struct stage *stage, uint32_t features, uint32_t num_seqs, uint32_t q_len, uint32_t kv_len)
{
    struct attention_wish wish = {.shape = {.head_dim = 16,
                                            .num_kv_heads = 2,
                                            .group = 2,
                                            .block_size = 8,
                                            .chunk_blocks = 64,
                                            .io_dtype = DTYPE_F32,
                                            .k_dtype = DTYPE_F32,
                                            .v_dtype = DTYPE_F32,
                                            .causal = true,
                                            .features = features},
                                  .num_seqs = num_seqs,
                                  .q_len = q_len,
                                  .kv_len = kv_len,
                                  .writes = WRITES_NONE};
    rig_open(&stage->rig, false, false);
    stage->problem = case_make(0, 20 + features, &wish);
}

static void stage_play(struct stage *stage)
{
    struct dice dice = {.state = seed};
    struct engine_run_result result;
    uint32_t order[64];
    for (uint32_t i = 0; i < stage->problem->num_seqs; i++)
        order[i] = i;
    stage->cache = rig_cache_open(&stage->rig, stage->problem);
    rig_arena_clear(&stage->rig);
    rig_batch_init(&stage->rig, &stage->batch, stage->problem, 0, order, stage->problem->num_seqs, &dice);
    rig_run(&stage->rig, stage->cache, &stage->batch, 1, &result);
}

static void stage_clear(struct stage *stage)
{
    attention_batch_finish(&stage->batch);
    engine_cache_destroy(stage->cache);
    attention_case_destroy(stage->problem);
    rig_close(&stage->rig);
}

static float stage_lse(const struct stage *stage, uint32_t token, uint32_t head)
{
    float lse;
    memcpy(&lse, stage->rig.image.bytes + stage->batch.lse.offset + token * stage->batch.lse.token_stride + head * 4,
           4);
    return lse;
}

// What lies before the window: no valid block, and in the window's first block NaN.
START_TEST(nothing_before_the_window_is_touched)
{
    const uint32_t queries = 20, keys = 1300, left = 27, first = keys - queries - left;
    struct stage stage;
    stage_set(&stage, FEATURE_WINDOW | FEATURE_LSE, 1, queries, keys);
    struct attention_seq *seq = &stage.problem->seqs[0];
    stage.problem->parameters[0].window_left = (int32_t)left;
    stage.problem->parameters[0].window_right = _i ? 0 : -1;
    for (uint32_t key = 0; key < first; key++)
        for (int i = 0; i < 4; i++)
            memset(attention_case_element(stage.problem, seq, (uint32_t)i / 2, key, i % 2, false), 0xff, 16 * 4);
    stage_play(&stage);
    for (uint32_t block = 0; block < first / 8; block++)
        stage.batch.block_table[block] = -1;
    struct engine_run_result result;
    rig_run(&stage.rig, stage.cache, &stage.batch, 1, &result);
    rig_check(&stage.rig, &stage.batch);
    stage_clear(&stage);
}
END_TEST

START_TEST(a_row_that_sees_no_key_gives_zeros_and_its_sink)
{
    struct stage stage;
    stage_set(&stage, FEATURE_MASK | FEATURE_LSE | (_i ? FEATURE_SINKS : 0), 3, 5, 700);
    for (uint32_t s = 0; s < 3; s++)
        memset(stage.problem->seqs[s].mask, 0, (5 * 700 + 7) / 8);
    stage_play(&stage);
    for (uint32_t token = 0; token < stage.batch.num_tokens; token++)
        for (uint32_t head = 0; head < 4; head++) {
            static const float ZEROES[16] = {0};
            ck_assert_mem_eq(stage.rig.image.bytes + stage.batch.out.offset + token * stage.batch.out.token_stride +
                                 head * stage.batch.out.head_stride,
                             ZEROES, sizeof ZEROES);
            float sink = _i ? stage.problem->parameters[0].sinks[head] : -INFINITY;
            if (_i)
                ck_assert_float_eq_tol(stage_lse(&stage, token, head), sink, 1e-5f);
            else
                ck_assert(stage_lse(&stage, token, head) == sink);
        }
    stage_clear(&stage);
}
END_TEST

// With one key the LSE is the score: so the cap's tanh can be read off, from 1e-6 to where it saturates.
START_TEST(the_soft_cap_is_accurate_for_small_and_for_large_scores)
{
    struct stage stage;
    stage_set(&stage, FEATURE_SOFT_CAP | FEATURE_LSE, 40, 1, 1);
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
            double score =
                (head % 2 ? -16 : 16) * (double)powf(10, (float)token / 4.5f - 6) * (double)stage.problem->shape.scale;
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
    stage_set(&stage, FEATURE_ALIBI | FEATURE_POSITIONS | FEATURE_LSE, 1, 9, 600);
    for (uint32_t i = 0; i < 9; i++)
        stage.problem->seqs[0].positions[i] = i % 3 ? 10000000 + (int32_t)i : INT32_MAX;
    for (uint32_t head = 0; head < 4; head++)
        stage.problem->parameters[0].slopes[head] = 0.5f / (float)(head + 1);
    stage_play(&stage);
    rig_check(&stage.rig, &stage.batch);
    stage_clear(&stage);
}
END_TEST

// The mask lets the first query see the last key, which causal would hide, and nothing else, which is NaN.
START_TEST(a_mask_replaces_causal)
{
    struct stage stage;
    stage_set(&stage, FEATURE_MASK | FEATURE_LSE, 3, 7, 45);
    for (uint32_t s = 0; s < 3; s++) {
        uint8_t *mask = stage.problem->seqs[s].mask;
        memset(mask, 0, (7 * 45 + 7) / 8);
        mask[44 / 8] |= 1u << 44 % 8;
        for (uint32_t key = 0; key < 44; key++)
            for (uint32_t i = 0; i < 4; i++)
                memset(attention_case_element(stage.problem, &stage.problem->seqs[s], i / 2, key, i % 2, false), 0xff,
                       16 * 4);
    }
    stage_play(&stage);
    rig_check(&stage.rig, &stage.batch);
    for (uint32_t s = 0; s < 3; s++)
        ck_assert(isfinite(stage_lse(&stage, s * 7, 0)) && !isfinite(stage_lse(&stage, s * 7 + 1, 0)));
    stage_clear(&stage);
}
END_TEST

// ---- what a row must not see ----

START_TEST(the_nan_of_a_later_token_reaches_no_earlier_row)
{
    const uint32_t tokens = 45, poisoned = 29;
    struct rig rig;
    struct attention_batch batch;
    struct engine_run_result result;
    struct dice dice = {.state = seed};
    struct attention_wish wish = {
        .shape = {.head_dim = 32, .num_kv_heads = 2, .group = 2, .block_size = 16, .causal = true},
        .num_seqs = 1,
        .q_len = tokens,
        .kv_len = tokens,
        .writes = _i ? WRITES_ALL : WRITES_NONE};
    rig_open(&rig, false, false);
    struct attention_case *problem = case_make((uint64_t)_i, 5, &wish);
    const struct attention_shape *shape = &problem->shape;
    struct attention_seq *seq = &problem->seqs[0];
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t d = 0; d < shape->head_dim; d++) { // both heads of K and of V
            uint64_t at = ((uint64_t)poisoned * 2 + i / 2) * shape->head_dim + d;
            if (seq->slots)
                oracle_store(i % 2 ? seq->v : seq->k, shape->io_dtype, at, NAN);
            else
                oracle_store(attention_case_element(problem, seq, i / 2, poisoned, i % 2, false),
                             i % 2 ? shape->v_dtype : shape->k_dtype, d, NAN);
        }
    struct engine_cache *cache = rig_cache_open(&rig, problem);
    rig_arena_clear(&rig);
    rig_batch_init(&rig, &batch, problem, 0, (uint32_t[]){0}, 1, &dice);
    rig_run(&rig, cache, &batch, 1, &result);
    batch.num_tokens = poisoned; // the rows before it
    rig_check(&rig, &batch);
    attention_batch_finish(&batch);
    engine_cache_destroy(cache);
    attention_case_destroy(problem);
    rig_close(&rig);
}
END_TEST

// ---- conversions ----

// Floats at and around every border between two halves, and what has no half of its own. Canonical NaNs only.
static float border_value(uint32_t index)
{
    static const float SPECIAL[] = {NAN,       INFINITY, -INFINITY, -0.0f,    1e-45f,
                                    65519.99f, 65520,    1e30f,     0x1p-25f, -0x1p-26f};
    if (index % 61 == 0)
        return SPECIAL[index / 61 % COUNT(SPECIAL)];
    double low = oracle_half_value((uint16_t)(index & 0xfbff)),
           high = oracle_half_value((uint16_t)((index & 0xfbff) + 1));
    float middle = isfinite(low) && isfinite(high) ? (float)((low + high) / 2) : 1;
    switch (index % 4) {
    case 0: return middle;
    case 1: return nextafterf(middle, INFINITY);
    case 2: return nextafterf(middle, -INFINITY);
    default: return isfinite(low) ? (float)low : 1;
    }
}

// 256 tokens of 4 heads of 64 dims are 65536 elements: all halves, or as many floats.
static const struct attention_wish ALL_HALVES = {
    .shape = {.head_dim = 64, .num_kv_heads = 4, .group = 1, .block_size = 32},
    .num_seqs = 1,
    .q_len = 256,
    .kv_len = 256,
    .writes = WRITES_ALL};

static void element_pour(struct attention_case *problem, uint32_t index, bool value)
{
    const struct attention_shape *shape = &problem->shape;
    const struct attention_seq *seq = &problem->seqs[0];
    enum dtype dtype = value ? shape->v_dtype : shape->k_dtype;
    uint8_t *fresh = value ? seq->v : seq->k;
    uint8_t *after = attention_case_element(problem, seq, index / 64 % 4, index / 256, value, true);
    after += index % 64 * dtype_size(dtype);
    if (shape->io_dtype == DTYPE_F16)
        memcpy(fresh + index * 2, &(uint16_t){(uint16_t)index}, 2);
    else
        oracle_store(fresh, DTYPE_F32, index, border_value(index));
    if (shape->io_dtype == dtype)
        memcpy(after, fresh + index * dtype_size(dtype), dtype_size(dtype));
    else
        oracle_store(after, dtype, 0, (float)oracle_load(fresh, shape->io_dtype, index));
}

START_TEST(writes_convert_every_value_as_ieee_does)
{
    struct rig rig;
    struct attention_batch batch;
    struct engine_run_result result;
    struct dice dice = {.state = seed};
    struct attention_wish wish = ALL_HALVES;
    wish.shape.io_dtype = _i & 1 ? DTYPE_F16 : DTYPE_F32;
    wish.shape.k_dtype = _i & 2 ? DTYPE_F16 : DTYPE_F32;
    wish.shape.v_dtype = _i & 2 ? DTYPE_F32 : DTYPE_F16;
    rig_open(&rig, false, false);
    struct attention_case *problem = case_make(0, 6, &wish);
    for (uint32_t i = 0; i < 65536; i++) {
        element_pour(problem, i, false);
        element_pour(problem, i, true);
    }
    struct engine_cache *cache = rig_cache_open(&rig, problem);
    rig_arena_clear(&rig);
    rig_batch_init(&rig, &batch, problem, 0, (uint32_t[]){0}, 1, &dice);
    rig_run(&rig, cache, &batch, 1, &result);
    rig_cache_check(&rig, cache, problem, problem->after);
    attention_batch_finish(&batch);
    engine_cache_destroy(cache);
    attention_case_destroy(problem);
    rig_close(&rig);
}
END_TEST

// A sequence of one key gives back its V: so every output is one rounding of a float.
START_TEST(outputs_round_to_the_nearest_half)
{
    struct rig rig;
    struct attention_batch batch;
    struct engine_run_result result;
    struct dice dice = {.state = seed};
    uint32_t order[256];
    struct attention_wish wish = ALL_HALVES;
    wish.num_seqs = 256, wish.q_len = wish.kv_len = 1, wish.writes = WRITES_NONE;
    wish.shape.io_dtype = DTYPE_F16, wish.shape.v_dtype = DTYPE_F32;
    rig_open(&rig, false, false);
    struct attention_case *problem = case_make(0, 7, &wish);
    for (uint32_t i = 0; i < 65536; i++) {
        order[i / 256] = i / 256;
        float *v = attention_case_element(problem, &problem->seqs[i / 256], i / 64 % 4, 0, true, false);
        v[i % 64] = isfinite(border_value(i)) ? border_value(i) : 1;
    }
    struct engine_cache *cache = rig_cache_open(&rig, problem);
    rig_arena_clear(&rig);
    rig_batch_init(&rig, &batch, problem, 0, order, 256, &dice);
    rig_run(&rig, cache, &batch, 1, &result);
    for (uint32_t i = 0; i < 65536; i++) {
        const float *v = attention_case_element(problem, &problem->seqs[i / 256], i / 64 % 4, 0, true, false);
        uint16_t expected = oracle_half_round(v[i % 64]), got;
        memcpy(&got,
               rig.image.bytes + batch.out.offset + i / 256 * batch.out.token_stride +
                   i / 64 % 4 * batch.out.head_stride + i % 64 * 2,
               2);
        if (got != expected && (got | expected) != 0x8000) // a zero may lose its sign
            ck_abort_msg("%a became %04x, expected %04x", v[i % 64], got, expected);
    }
    attention_batch_finish(&batch);
    engine_cache_destroy(cache);
    attention_case_destroy(problem);
    rig_close(&rig);
}
END_TEST

// ---- zeroing ----

START_TEST(zeroed_blocks_are_zero_and_their_neighbours_stay)
{
    struct rig rig;
    struct attention_wish wish = {
        .shape = {.head_dim = 40, .num_kv_heads = 3, .group = 1, .block_size = 8, .num_layers = 3, .chunk_blocks = 4},
        .num_seqs = 1,
        .q_len = 1,
        .kv_len = 70,
        .writes = WRITES_NONE};
    rig_open(&rig, _i != 0, false);
    struct attention_case *problem = case_make(0, 8, &wish);
    struct engine_cache *cache = rig_cache_open(&rig, problem);
    struct engine_zero zeroes[] = {{cache, 0}, {cache, 5}, {cache, (int32_t)problem->num_blocks - 1}};
    struct engine_submission submission = {.zeroes = zeroes, .num_zeroes = COUNT(zeroes)};
    rig_submit(&rig, &submission, NULL);
    for (size_t i = 0; i < COUNT(zeroes); i++)
        memset(problem->before[zeroes[i].block], 0, problem->block_bytes);
    rig_cache_check(&rig, cache, problem, problem->before);
    engine_cache_destroy(cache);
    attention_case_destroy(problem);
    rig_close(&rig);
}
END_TEST

// ---- the validation layer ----

START_TEST(the_validation_layer_has_nothing_to_say)
{
    struct rig rig;
    rig_open(&rig, _i != 0, true);
    for (uint64_t i = 0; i < 12; i++) {
        struct dice dice = {.state = seed ^ i};
        struct attention_case *problem = case_make((uint64_t)_i * 12 + i, 9, NULL);
        case_run(&rig, problem, &dice);
        attention_case_destroy(problem);
    }
    rig_close(&rig);
}
END_TEST

// ---- the program ----

static uint64_t environment_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static void environment_read(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    seed = environment_number("AULE_TEST_SEED", (uint64_t)now.tv_sec * 1000000007u + (uint64_t)now.tv_nsec);
    num_cases = environment_number("AULE_TEST_CASES", DEFAULT_CASES);
    only = getenv("AULE_TEST_ONLY") ? (int64_t)environment_number("AULE_TEST_ONLY", 0) : -1;
    printf("AULE_TEST_SEED=%" PRIu64 " AULE_TEST_CASES=%" PRIu64 "\n", seed, num_cases);
}

static TCase *tcase_add_to(Suite *suite, const char *name)
{
    TCase *tcase = tcase_create(name);
    suite_add_tcase(suite, tcase);
    return tcase;
}

int main(void)
{
    environment_read();
    if (!rig_device_present()) {
        printf("skipped: no Vulkan device that the engine can use\n");
        return 77;
    }
    Suite *suite = suite_create("attention");
    TCase *oracle = tcase_add_to(suite, "against the oracle");
    tcase_add_loop_test(oracle, random_batches_agree_with_the_oracle, 0,
                        (int)((num_cases + CASES_A_TEST - 1) / CASES_A_TEST));
    tcase_add_test(oracle, thousands_of_keys_stay_within_the_bound);
    tcase_add_test(oracle, many_sequences_share_one_batch);
    TCase *features = tcase_add_to(suite, "features");
    tcase_add_loop_test(features, a_feature_alone_agrees_with_the_oracle, 0, 7);
    tcase_add_loop_test(features, nothing_before_the_window_is_touched, 0, 2);
    tcase_add_loop_test(features, a_row_that_sees_no_key_gives_zeros_and_its_sink, 0, 2);
    tcase_add_test(features, the_soft_cap_is_accurate_for_small_and_for_large_scores);
    tcase_add_test(features, alibi_keeps_its_accuracy_at_far_positions);
    tcase_add_test(features, a_mask_replaces_causal);
    TCase *bits = tcase_add_to(suite, "bits");
    tcase_add_loop_test(bits, a_row_has_the_same_bits_in_any_company, 0, COUNT(SAME_BITS_FEATURES));
    tcase_add_loop_test(bits, the_nan_of_a_later_token_reaches_no_earlier_row, 0, 2);
    tcase_add_loop_test(bits, writes_convert_every_value_as_ieee_does, 0, 4);
    tcase_add_test(bits, outputs_round_to_the_nearest_half);
    tcase_add_loop_test(bits, zeroed_blocks_are_zero_and_their_neighbours_stay, 0, 2);
    TCase *layer = tcase_add_to(suite, "validation layer");
    tcase_add_loop_test(layer, the_validation_layer_has_nothing_to_say, 0, 2);
    return check_main(suite);
}
