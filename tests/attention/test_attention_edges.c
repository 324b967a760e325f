// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_attention_edges.c - numbers at the edge of their types: the largest ones, subnormal ones,
// infinities and NaN in Q, K and V, and rows that are all alike. A result that is finite in
// float64, rounded to the type, must be within the bound. One that is NaN must be NaN, with its
// LSE.

#include "attention_contents.h"
#include "attention_suite.h"
#include "rigs/check_main.h"

#include <math.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { DIM = 64, KV_HEADS = 2, GROUP = 2 };

// What an element of Q, K or V is made from.
struct place {
    struct dice *dice;
    enum dtype dtype;     // of Q and the results
    uint32_t token, head; // the query or the key, counted in its sequence
    uint32_t tokens;      // as many there are
    uint32_t d;
    bool special; // the one query or key that differs from all others
};

// Numbers of a type whose scores stay within f32: a large one, and about the largest.
static float large(const struct place *at)
{
    return at->dtype == DTYPE_F16 ? 3e4f : 1e10f;
}

static float most(const struct place *at)
{
    return at->dtype == DTYPE_F16 ? 65504 : 1e18f;
}

// The largest value whose sums over all keys stay within f32.
static float most_value(const struct place *at)
{
    return at->dtype == DTYPE_F16 ? 65504 : 1e35f;
}

static float sign_of(uint32_t number)
{
    return number % 2 ? -1.0f : 1.0f;
}

static float any(const struct place *at)
{
    return dice_normal(at->dice);
}

static float flat(const struct place *at)
{
    return 0.01f * dice_normal(at->dice);
}

static float one(const struct place *at)
{
    (void)at;
    return 1;
}

static float hot_query(const struct place *at)
{
    return at->d == (at->token * 7 + at->head) % 16 ? large(at) : 0;
}

static float hot_key(const struct place *at)
{
    return at->d == at->token % 16 ? large(at) * (at->token % 5 == 4 ? -1 : 1) : 0;
}

static float any_large(const struct place *at)
{
    return large(at) / 4 * dice_normal(at->dice);
}

static float wave(const struct place *at)
{
    return sign_of(at->d);
}

static float key_wave(const struct place *at)
{
    return sign_of(at->d + at->token);
}

static float most_wave(const struct place *at)
{
    return most(at) * sign_of(at->d);
}

static float most_key_wave(const struct place *at)
{
    return most(at) * sign_of(at->d + at->token);
}

// Its square has more digits than the square of a power of two. All dtypes but those of 8 bits hold
// it.
static const float heavy = 65280;

static float heavy_wave(const struct place *at)
{
    return heavy * sign_of(at->d);
}

static float heavy_key_wave(const struct place *at)
{
    return heavy * sign_of(at->d + at->token);
}

static float value_wave(const struct place *at)
{
    return most_value(at) * sign_of(at->token);
}

static float dim_wave(const struct place *at)
{
    return most_value(at) * sign_of(at->d);
}

static float subnormal(const struct place *at)
{
    float unit = at->dtype == DTYPE_F16 ? 0x1p-24f : 0x1p-133f; // bf16's least number
    return unit * (float)dice_between(at->dice, 1, at->dtype == DTYPE_F16 ? 1023 : 127) *
           sign_of(dice_below(at->dice, 2));
}

static float tiny(const struct place *at)
{
    return dice_normal(at->dice) / most(at);
}

static float special(const struct place *at, uint32_t d, float what)
{
    return at->special && at->d == d ? what : dice_normal(at->dice);
}

static float with_nan(const struct place *at)
{
    return special(at, 5, NAN);
}

static float with_infinity(const struct place *at)
{
    return special(at, 5, INFINITY);
}

static float with_minus_infinity(const struct place *at)
{
    return special(at, 5, -INFINITY);
}

static float with_both(const struct place *at)
{
    return at->special && at->d > 60 ? INFINITY * sign_of(at->d) : dice_normal(at->dice);
}

static float negative(const struct place *at)
{
    return at->d == 5 ? -1 : 0.1f * dice_normal(at->dice);
}

static float infinite_in_one_dim(const struct place *at)
{
    return at->d == 5 ? (at->special ? INFINITY : 1) : 0.1f * dice_normal(at->dice);
}

// Names end as a failure's message goes on. `doubt`: values cancel each other, so the bound is too
// strict.
static const struct style {
    const char *name;
    float (*q)(const struct place *), (*k)(const struct place *), (*v)(const struct place *);
    bool doubt;
} STYLES[] = {
    {"one-hot rows: ", hot_query, hot_key, any, false},
    {"large random numbers: ", any_large, any_large, any, false},
    {"rows that are all equal: ", one, one, dim_wave, false},
    {"the largest numbers, all equal: ", most, most, dim_wave, false},
    {"the largest numbers in alternating signs: ", most_wave, most_key_wave, any, false},
    {"the largest values in alternating signs: ", wave, key_wave, value_wave, false},
    {"the largest values: ", any, any, most_value, false},
    {"the largest values, which cancel each other: ", flat, any, value_wave, true},
    {"subnormal numbers: ", subnormal, subnormal, subnormal, true},
    {"large queries and tiny keys: ", most, tiny, any, true},
    {"NaN in a query: ", with_nan, any, any, true},
    {"NaN in a key: ", any, with_nan, any, true},
    {"infinity in a query: ", with_infinity, any, any, true},
    {"infinity in a key: ", any, with_infinity, any, true},
    {"minus infinity in a key: ", any, with_minus_infinity, any, true},
    {"infinities of both signs in a key: ", any, with_both, any, true},
    {"a query whose scores are all minus infinity: ", infinite_in_one_dim, negative, any, true},
    {"NaN in a value: ", any, any, with_nan, true},
    {"infinity in a value: ", any, any, with_infinity, true},
    {"infinities of both signs in a value: ", any, any, with_both, true},
};

static const struct {
    enum dtype io, kv;
    enum scale_mode mode;
    uint32_t features;
} KINDS[] = {
    {DTYPE_F16, DTYPE_F16, SCALE_NONE, 0},
    {DTYPE_BF16, DTYPE_BF16, SCALE_NONE, 0},
    {DTYPE_F32, DTYPE_F32, SCALE_NONE, 0},
    {DTYPE_F16, DTYPE_INT8, SCALE_PER_TOKEN_HEAD, 0},
    {DTYPE_F16, DTYPE_FP8_E4M3, SCALE_PER_TENSOR, 0},
    {DTYPE_BF16, DTYPE_FP8_E4M3, SCALE_PER_TOKEN_HEAD, 0},
    {DTYPE_F16, DTYPE_FP8_E5M2, SCALE_NONE, 0},
    {DTYPE_F16, DTYPE_F16, SCALE_NONE, FEATURE_MASK},
    {DTYPE_BF16, DTYPE_BF16, SCALE_NONE, FEATURE_WINDOW},
    {DTYPE_F16, DTYPE_F16, SCALE_NONE, FEATURE_SINKS | FEATURE_ALIBI},
    {DTYPE_BF16, DTYPE_BF16, SCALE_NONE, FEATURE_SOFT_CAP | FEATURE_SINKS},
};

// Decodes, of which some are cut into parts; prompts, of which the last two are long enough for a
// second pass; and decodes that share keys, which matrix variants compute together.
static const struct {
    uint32_t num_seqs, num_splits, q_lens[6], kv_lens[6];
} BATCHES[] = {
    {3, 3, {1, 3, 1}, {300, 77, 1100}},
    {3, 1, {80, 20, 150}, {80, 330, 300}},
    {6, 3, {1, 2, 1, 1, 2, 1}, {600, 600, 600, 600, 600, 600}},
};
enum { BLOCK = 32, PROMPTS = 1, SHARED_BATCH = 2, SHARED_BLOCKS = 16, COLUMNS = 19 };
static const float K_SCALE = 0.5f; // also V's; exact

// Of SHARED_BATCH: the sequences have 16 blocks in common and 3 of their own.
static const int32_t *shared_table(void)
{
    static int32_t table[6][COLUMNS];
    for (int32_t s = 0; s < 6; s++)
        for (int32_t i = 0; i < COLUMNS; i++)
            table[s][i] = i < SHARED_BLOCKS ? i : s * (COLUMNS - SHARED_BLOCKS) + i;
    return table[0];
}

static struct attention_wish edge_wish(int kind, int batch)
{
    struct attention_wish wish = {
        .shape = {.kv = {.head_dim_k = DIM,
                         .head_dim_v = DIM,
                         .num_kv_heads = KV_HEADS,
                         .block_size = BLOCK,
                         .k_dtype = KINDS[kind].kv,
                         .v_dtype = KINDS[kind].kv,
                         .scale_mode = KINDS[kind].mode},
                  .group = GROUP,
                  .num_layers = 1,
                  .chunk_blocks = 64,
                  .io_dtype = KINDS[kind].io,
                  .causal = true,
                  .features = FEATURE_LSE | KINDS[kind].features,
                  .num_splits = BATCHES[batch].num_splits},
        .num_seqs = BATCHES[batch].num_seqs,
        .q_lens = BATCHES[batch].q_lens,
        .kv_lens = BATCHES[batch].kv_lens,
        .writes = WRITES_NONE,
    };
    if (batch == SHARED_BATCH)
        wish.table = shared_table(), wish.table_columns = COLUMNS;
    return wish;
}

// The key whose value is not finite, or no key. With tensor cores such a value reaches all rows of
// a decode of several tokens, and of a short prompt. So there it is a key that all rows see.
static uint32_t special_value(const struct stage *stage, const struct attention_seq *seq)
{
    const char *variant = engine_variant(stage->rig.engine);
    bool has_second_pass = seq->kv_len >= 192 && strcmp(variant, "matrix_shared") != 0;
    if (seq->q_len == 1)
        return seq->kv_len / 3;
    if (!rig_has_kernels(&stage->rig) || (seq->q_len > 8 && has_second_pass))
        return seq->kv_len - seq->q_len / 2 - 1;
    bool windowed = stage->problem->parameters[0].features & FEATURE_WINDOW;
    return windowed ? seq->kv_len : 0;
}

static void seq_fill(struct stage *stage, struct attention_seq *seq, const struct style *style,
                     struct dice *dice)
{
    const uint32_t heads = KV_HEADS * GROUP, value_key = special_value(stage, seq);
    struct place at = {.dice = dice, .dtype = stage->problem->shape.io_dtype};
    at.tokens = seq->q_len;
    for (uint32_t i = 0; i < seq->q_len * heads * DIM; i++) {
        at.token = i / DIM / heads, at.head = i / DIM % heads, at.d = i % DIM;
        at.special = at.token == seq->q_len / 2 && at.head % 2 == 0;
        oracle_store(seq->q, at.dtype, i, style->q(&at));
    }
    at.tokens = seq->kv_len;
    for (uint32_t i = 0; i < seq->kv_len * KV_HEADS * 2; i++) {
        float row[DIM];
        bool value = i % 2;
        at.head = i / 2 % KV_HEADS, at.token = i / 2 / KV_HEADS;
        at.special = at.token == (value ? value_key : seq->kv_len / 2);
        for (at.d = 0; at.d < DIM; at.d++)
            row[at.d] = value ? style->v(&at) : style->k(&at);
        attention_row_put(stage->problem, seq, at.head, at.token, value, row);
    }
}

static void style_run(struct stage *stage, const struct style *style)
{
    struct dice dice = {.state = 77}; // such numbers that no two large scores are nearly equal
    for (uint32_t s = 0; s < stage->problem->num_seqs; s++)
        seq_fill(stage, &stage->problem->seqs[s], style, &dice);
    stage->rig.about = style->name;
    // Large scores that differ only by ALiBi differ by less than a digit of f32.
    bool biased = stage->problem->parameters[0].features & FEATURE_ALIBI;
    stage->rig.no_doubt = !style->doubt && !biased;
    stage_play(stage);
    rig_check(&stage->rig, &stage->batch);
    attention_batch_finish(&stage->batch);
    if (stage->cache)
        engine_cache_destroy(stage->cache);
    stage->batch = (struct attention_batch){0};
    stage->cache = NULL;
}

static void edges_set(struct stage *stage, uint64_t kind, const struct attention_wish *wish)
{
    stage_set(stage, kind, wish);
    struct attention_parameters *parameters = &stage->problem->parameters[0];
    parameters->window_left = 40, parameters->window_right = -1;
    parameters->k_scale = parameters->v_scale = K_SCALE;
}

START_TEST(numbers_at_the_edge_agree_with_the_oracle)
{
    struct stage stage;
    struct attention_wish wish = edge_wish(_i / (int)COUNT(BATCHES), _i % (int)COUNT(BATCHES));
    edges_set(&stage, 400 + (uint64_t)_i, &wish);
    for (size_t i = 0; i < COUNT(STYLES); i++)
        style_run(&stage, &STYLES[i]);
    stage_clear(&stage);
}
END_TEST

// ---- equal scores with large weights ----

// A kernel may compute weights as 2^(score * factor - base) with one rounding. The base is the
// largest score * factor, rounded to f32. Then a row's largest weights are 2^rest, not 1.
static double rest_of(double score, float scale)
{
    const float factor = (float)((double)scale * 1.4426950408889634), base = (float)score * factor;
    return score * (double)factor - (double)base;
}

// A scale for which f16 holds such weights, while their sum in a tile is beyond it.
static float heavy_scale(int kind)
{
    const float factor = KINDS[kind].mode == SCALE_PER_TENSOR ? K_SCALE : 1;
    uint8_t key[sizeof(float)];
    oracle_store(key, KINDS[kind].kv, 0, heavy / factor);
    const double score = DIM * (double)heavy * oracle_load(key, KINDS[kind].kv, 0) * (double)factor;
    float scale = 0.0625f;
    while (!(rest_of(score, scale) >= 12 && rest_of(score, scale) < 15) && scale < 16)
        scale *= 1.0001f;
    ck_assert_float_lt(scale, 16);
    return scale;
}

START_TEST(equal_scores_weigh_the_same_in_all_tiles)
{
    static const struct style equal = {"equal scores with large weights: ", heavy_wave,
                                       heavy_key_wave, any, false};
    struct stage stage;
    struct attention_wish wish = edge_wish(_i, PROMPTS);
    wish.shape.scale = heavy_scale(_i);
    edges_set(&stage, 500 + (uint64_t)_i, &wish);
    style_run(&stage, &equal);
    stage_clear(&stage);
}
END_TEST

void suite_add_edges(Suite *suite)
{
    TCase *edges = suite_part(suite, "edges");
    check_loop(edges, numbers_at_the_edge_agree_with_the_oracle, COUNT(KINDS) * COUNT(BATCHES));
    check_loop(edges, equal_scores_weigh_the_same_in_all_tiles, COUNT(KINDS));
}
