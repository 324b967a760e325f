// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_attention.c - the shaders on a real device, through engine.h, against the oracle: random
// ragged batches over both memory paths and every place of K and V, large ones, and silence of the
// validation layer. The suite's other tests are in test_attention_*.c.
//
// AULE_TEST_SEED and AULE_VARIANT repeat a run; a seed that was drawn is printed. AULE_TEST_CASES
// says how many random cases there are, and AULE_TEST_LONG=1 makes 20 times as many of them.
// AULE_TEST_ONLY runs one case. AULE_VARIANT names another attention shader than the best.

#include "attention_suite.h"
#include "rigs/check_main.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum {
    CASES_A_TEST = 13, // of one geometry, with memory imported or staged by turns
    DEFAULT_CASES = 300,
    LONG_FACTOR = 20,
    KIND_RANDOM = 0,
    KIND_VALIDATION = 9
};

static uint64_t num_cases = DEFAULT_CASES;
static int64_t only = -1;

// ---- random batches ----

static const struct {
    uint32_t k, v;
    bool v_in_k;
} DIMS[] = {
    {64, 64, 0},   {8, 8, 0},     {128, 128, 0}, {40, 40, 0},   {576, 512, 1}, {16, 48, 0},
    {72, 72, 0},   {256, 256, 0}, {24, 24, 0},   {192, 128, 0}, {80, 80, 0},   {64, 512, 0},
    {112, 112, 0}, {32, 32, 0},   {96, 8, 0},    {136, 136, 0}, {576, 512, 1}, {16, 16, 0},
    {248, 120, 0}, {192, 192, 0}, {72, 64, 1},   {8, 256, 0},   {320, 320, 0},
};

static enum dtype any_dtype(struct dice *dice)
{
    return DTYPE_F32 + dice_below(dice, DTYPE_INT8);
}

static void dtypes_draw(struct attention_shape *shape, struct dice *dice)
{
    shape->io_dtype = DTYPE_F32 + dice_below(dice, DTYPE_BF16);
    shape->kv.k_dtype = dice_chance(dice, 30) ? shape->io_dtype : any_dtype(dice);
    shape->kv.v_dtype =
        dice_chance(dice, 60) || shape->kv.v_is_k_prefix ? shape->kv.k_dtype : any_dtype(dice);
    bool narrow =
        dtype_size((int)shape->kv.k_dtype) == 1 || dtype_size((int)shape->kv.v_dtype) == 1;
    if (narrow)
        shape->kv.scale_mode = dice_below(dice, shape->place == ENGINE_POOL ? 3 : 2);
}

static uint32_t splits_draw(struct dice *dice)
{
    static const uint32_t SPLITS[] = {1, 1, 0, 0, 2, 3, 9};
    return SPLITS[dice_below(dice, COUNT(SPLITS))];
}

// What fixes a pipeline. A software device takes a second to compile one, so the cases of a test
// share a geometry. Head dims and places come round, the rest is drawn.
static struct attention_shape geometry_draw(uint64_t number)
{
    struct dice dice = {.state = attention_seed ^ number << 20};
    uint64_t round = number / COUNT(DIMS);
    struct attention_shape shape = {
        .place = dice_chance(&dice, 40) ? ENGINE_POOL : (number + round) % 3,
        .kv = {.head_dim_k = DIMS[number % COUNT(DIMS)].k,
               .head_dim_v = DIMS[number % COUNT(DIMS)].v,
               .v_is_k_prefix = DIMS[number % COUNT(DIMS)].v_in_k,
               .block_size = 8u << (number / 2 + round) % 6},
        .num_splits = splits_draw(&dice),
    };
    shape.kv.num_kv_heads =
        shape.kv.head_dim_k > 256 ? dice_between(&dice, 1, 2) : dice_between(&dice, 1, 4);
    if (shape.kv.v_is_k_prefix && shape.kv.head_dim_k == 576)
        shape.kv.num_kv_heads = 1;
    dtypes_draw(&shape, &dice);
    if (number % 4)
        suite_shape_bend(&shape);
    return shape;
}

// Features are part of a pipeline too: one set for each geometry, every third without any, every
// second with two sets.
static void features_draw(struct attention_shape *shape, uint64_t number)
{
    struct dice dice = {.state = attention_seed + number * 77773};
    uint32_t any = (uint32_t)dice_next(&dice) & FEATURES_ALL,
             other = (uint32_t)dice_next(&dice) & FEATURES_ALL;
    shape->features = number % 3 ? any : 0;
    shape->other_features = number % 2 ? other : shape->features;
}

// K and V of a case are to fit its arena, where they may lie once a batch.
static void longest_limit(struct attention_wish *wish)
{
    const uint64_t most = 6 << 20;
    uint64_t token = wish->shape.kv.num_kv_heads *
                     (shape_k_bytes(&wish->shape) + shape_v_bytes(&wish->shape) + 32);
    uint64_t longest = most / token / (wish->num_seqs ? wish->num_seqs : 9);
    wish->longest = wish->longest < longest ? wish->longest : (uint32_t)longest;
}

// Most cases are small, some have sequences of several thousand keys.
static struct attention_wish wish_draw(uint64_t index, struct dice *dice)
{
    static const uint32_t GROUPS[] = {1, 1, 4, 8, 2, 3, 16};
    uint64_t geometry = index / CASES_A_TEST + attention_seed % 997;
    struct attention_wish wish = {.shape = geometry_draw(geometry)};
    features_draw(&wish.shape, geometry);
    wish.shape.group = GROUPS[dice_below(dice, COUNT(GROUPS))];
    wish.writes = dice_chance(dice, 30) ? WRITES_NONE : WRITES_SOME;
    wish.longest = dice_between(dice, 1, 300);
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
    longest_limit(&wish);
    return wish;
}

static struct attention_case *random_case(uint64_t index, uint64_t kind)
{
    struct dice dice = {.state = attention_seed * 1000003 + index * 31 + kind};
    struct attention_wish wish = wish_draw(index, &dice);
    return suite_case(index, kind, &wish);
}

// What a wrong row's message begins with: check prints the numbers, this says where they are from.
static const char *case_text(uint64_t index, const struct attention_case *problem)
{
    static const char *const PLACES[] = {"pool", "block tensors", "rows"};
    static const char *const SCALES[] = {"", ", scaled", ", scaled by token and head"};
    static char text[400];
    const struct attention_shape *s = &problem->shape;
    (void)snprintf(text, sizeof text,
                   "case %" PRIu64
                   ": %s, %u seqs, heads %u/%u, head_dim %u/%u%s, block_size %u, io/k/v "
                   "%s/%s/%s%s, layer %u of "
                   "%u, %u blocks by %u%s, splits %u, features %x and %x: ",
                   index, PLACES[s->place], problem->num_seqs, shape_heads(s), s->kv.num_kv_heads,
                   s->kv.head_dim_k, s->kv.head_dim_v, s->kv.v_is_k_prefix ? " (V in K)" : "",
                   s->kv.block_size, dtype_name((int)s->io_dtype), dtype_name((int)s->kv.k_dtype),
                   dtype_name((int)s->kv.v_dtype), SCALES[s->kv.scale_mode], s->layer,
                   s->num_layers, problem->num_blocks, s->chunk_blocks, s->causal ? ", causal" : "",
                   s->num_splits, problem->parameters[0].features, problem->parameters[1].features);
    return text;
}

// The build says where the layer is wanted. It costs time: a third of the random cases run under
// it, another one each seed.
static bool case_is_validated(int number)
{
    const char *text = getenv("AULE_TEST_VALIDATION");
    return text && strcmp(text, "1") == 0 && (attention_seed + (uint64_t)number) % 3 == 0;
}

START_TEST(random_batches_agree_with_the_oracle)
{
    struct rig rig;
    double worst[DTYPE_BF16 + 1] = {0}; // by output dtype
    rig_open(&rig, _i % 2 != 0, case_is_validated(_i));
    for (uint64_t i = 0; i < CASES_A_TEST; i++) {
        uint64_t index = (uint64_t)_i * CASES_A_TEST + i;
        if (index >= num_cases || (only >= 0 && index != (uint64_t)only))
            continue;
        struct attention_case *problem = random_case(index, KIND_RANDOM);
        struct dice dice = {.state = attention_seed ^ index};
        rig.about = case_text(index, problem);
        if (only >= 0 || getenv("AULE_TEST_VERBOSE"))
            fprintf(stderr, "%s\n", rig.about);
        double error = suite_case_run(&rig, problem, &dice);
        enum dtype dtype = problem->shape.io_dtype;
        worst[dtype] = error > worst[dtype] ? error : worst[dtype];
        attention_case_destroy(problem);
    }
    rig_close(&rig);
    printf("cases %d to %d, %s: worst error f32 %.1e, f16 %.1e, bf16 %.1e\n", _i * CASES_A_TEST,
           (_i + 1) * CASES_A_TEST - 1, _i % 2 ? "staged" : "imported where the device can",
           worst[DTYPE_F32], worst[DTYPE_F16], worst[DTYPE_BF16]);
}
END_TEST

// ---- large and special ----

START_TEST(thousands_of_keys_stay_within_the_bound)
{
    struct attention_wish wish = {.shape = {.kv = {.head_dim_k = 64,
                                                   .num_kv_heads = 1,
                                                   .block_size = 64,
                                                   .k_dtype = DTYPE_F32,
                                                   .v_dtype = DTYPE_F32},
                                            .group = 2,
                                            .chunk_blocks = 128,
                                            .io_dtype = DTYPE_F32,
                                            .num_splits = _i ? 0 : 1},
                                  .num_seqs = 6,
                                  .longest = 12000,
                                  .work = 60000};
    suite_wish_run(&wish, 1, false);
}
END_TEST

START_TEST(many_sequences_share_one_batch)
{
    struct attention_wish wish = {
        .shape = {.kv = {.head_dim_k = 32, .num_kv_heads = 2, .block_size = 16}, .group = 2},
        .num_seqs = 60,
        .longest = 120};
    suite_wish_run(&wish, 2, false);
    suite_wish_run(&wish, 3, true);
}
END_TEST

// ---- the validation layer ----

START_TEST(the_validation_layer_has_nothing_to_say)
{
    struct rig rig;
    rig_open(&rig, _i != 0, true);
    for (uint64_t i = 0; i < (check_is_long() ? 10 : 3); i++) {
        struct dice dice = {.state = attention_seed ^ i};
        struct attention_case *problem =
            random_case((uint64_t)_i * CASES_A_TEST + i, KIND_VALIDATION);
        rig.about = case_text(i, problem);
        suite_case_run(&rig, problem, &dice);
        attention_case_destroy(problem);
    }
    rig_close(&rig);
}
END_TEST

// ---- the program ----

static void environment_read(void)
{
    attention_seed = check_draw("attention");
    num_cases =
        check_number("AULE_TEST_CASES", DEFAULT_CASES) * (check_is_long() ? LONG_FACTOR : 1);
    only = getenv("AULE_TEST_ONLY") ? (int64_t)check_number("AULE_TEST_ONLY", 0) : -1;
    const char *variant = getenv("AULE_VARIANT");
    printf("AULE_VARIANT=%s AULE_TEST_CASES=%" PRIu64 "\n", variant ? variant : "", num_cases);
}

int main(void)
{
    environment_read();
    if (!rig_device_present()) {
        printf("skipped: no Vulkan device that the engine can use\n");
        return 77;
    }
    Suite *suite = suite_create("attention");
    TCase *oracle = suite_part(suite, "against the oracle");
    check_whole_loop(oracle, random_batches_agree_with_the_oracle,
                     (int)((num_cases + CASES_A_TEST - 1) / CASES_A_TEST));
    check_loop(oracle, thousands_of_keys_stay_within_the_bound, 2);
    tcase_add_test(oracle, many_sequences_share_one_batch);
    suite_add_features(suite);
    suite_add_bits(suite);
    suite_add_splits(suite);
    suite_add_examples(suite);
    suite_add_edges(suite);
    TCase *layer = suite_part(suite, "validation layer");
    check_loop(layer, the_validation_layer_has_nothing_to_say, 2);
    return check_main(suite);
}
