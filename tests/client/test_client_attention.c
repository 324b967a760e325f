// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_attention.c - each parameter of attention, from libaule-client through the real
// daemon, compared with loops in double: window, soft cap, ALiBi, sinks, mask, positions, LSE, and
// table entries that a window hides.

#include "rigs/client_scene.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- one parameter at a time, then several ----

static const int32_t positions[NUM_QUERIES] = {36, 0, 12, 2000000000, 7, 3, 0, 4, 2, 2, 50, 1, 9};
static uint8_t mask[MASK_SIZE]; // the third query of the first sequence sees no key

static void fill_mask(void)
{
    for (uint32_t i = 0; i < MASK_SIZE * 8; i++)
        if (value_at(77, i) < 0.2f && (i < 2 * MAX_LEN || i >= 3 * MAX_LEN))
            mask[i / 8] |= (uint8_t)(1u << i % 8);
}

static const struct {
    const char *name;
    bool causal, alibi, sink, positioned, masked, without_lse;
    struct aule_window window;
    float cap, scale, mask_value;
    uint32_t num_splits;
} cases[] = {
    {"plain", .causal = false},
    {"causal", .causal = true},
    {"no lse", .causal = true, .without_lse = true},
    {"one split", .num_splits = 1, .mask_value = -1e38f},
    {"left window", .window = {true, 6, -1}},
    {"right window", .window = {true, -1, 2}},
    {"both windows", .window = {true, 9, 3}},
    {"itself alone", .window = {true, 0, 0}},
    {"a window without bounds", .window = {true, -1, -1}},
    {"the widest window", .window = {true, INT32_MAX, INT32_MAX}},
    {"a causal window", .causal = true, .window = {true, 11, 5}},
    {"a window that is not enabled", .window = {false, 1, 1}},
    {"soft cap", .cap = 0.75f},
    {"soft cap and scale", .cap = 2, .scale = 1.5f, .causal = true},
    {"ALiBi", .alibi = true},
    {"causal ALiBi", .alibi = true, .causal = true},
    {"sinks", .sink = true},
    {"sinks of a causal window", .sink = true, .causal = true, .window = {true, 4, -1}},
    {"positions", .positioned = true},
    {"causal positions", .positioned = true, .causal = true},
    {"positions and a window", .positioned = true, .window = {true, 3, 4}},
    {"positions and ALiBi", .positioned = true, .alibi = true, .causal = true,
     .window = {true, 40, 40}},
    {"mask", .masked = true},
    {"mask instead of causal", .masked = true, .causal = true},
    {"mask and a window", .masked = true, .window = {true, 20, 1}},
    {"mask and sinks", .masked = true, .sink = true},
    {"all", true, true, true, true, true, false, {true, 30, 30}, 3, 0.5f, -1e30f, 0},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

static void prepare_case(struct scene *scene, size_t i)
{
    scene->run.causal = cases[i].causal;
    scene->run.window = cases[i].window;
    scene->run.logits_soft_cap = cases[i].cap;
    scene->run.scale = cases[i].scale;
    scene->run.mask_value = cases[i].mask_value;
    scene->run.num_splits = cases[i].num_splits;
    scene->run.alibi_slopes = cases[i].alibi ? slopes : NULL;
    scene->run.sinks = cases[i].sink ? sinks : NULL;
    scene->run.lse.dtype = cases[i].without_lse ? 0 : AULE_F32;
    scene->batch.positions = cases[i].positioned ? positions : NULL;
    scene->batch.mask = cases[i].masked ? mask : NULL;
    scene->batch.mask_size = cases[i].masked ? MASK_SIZE : 0;
}

START_TEST(each_parameter_does_what_loops_in_double_say)
{
    struct scene scene;
    fill_mask();
    open_scene(&scene);
    for (size_t i = 0; i < NUM_CASES; i++) {
        prepare_case(&scene, i);
        run_scene(&scene);
        expect_scene(&scene, cases[i].name);
    }
    close_scene(&scene);
}
END_TEST

// ---- an LSE without padding ----

enum { FEW = 5, LSE_WORDS = 64, UNTOUCHED = -777 };

// Five tokens that attend to each other; all heads use one KV head.
struct few {
    struct scene scene;
    struct aule_batch *batch;
    struct aule_run_params run;
    float *words; // LSE_WORDS words at `offset` of the arena
    uint64_t offset;
};

static void open_few(struct few *few, uint32_t heads)
{
    static const int32_t cu[] = {0, FEW}, len = FEW;
    const struct aule_cache_params params = {.name = "few",
                                             .num_layers = 1,
                                             .num_kv_heads = 1,
                                             .head_dim = DIM,
                                             .k_dtype = AULE_F32,
                                             .v_dtype = AULE_F32,
                                             .block_size = BLOCK};
    struct scene *scene = &few->scene;
    void *words;
    int64_t slots[FEW];
    int32_t block;
    open_scene(scene);
    aule_cache_close(scene->cache);
    ok(aule_cache_open(scene->session, &params, &scene->cache));
    ok(aule_blocks_lease(scene->cache, 1, WAIT_MS, &block));
    for (int i = 0; i < FEW; i++)
        slots[i] = (int64_t)block * BLOCK + i;
    const struct aule_batch_params batch = {.num_seqs = 1,
                                            .max_blocks = 1,
                                            .cu_seqlens_q = cu,
                                            .seq_lens_kv = &len,
                                            .block_table = &block,
                                            .slot_mapping = slots};
    ok(aule_batch_create(scene->cache, &batch, &few->batch));
    few->run = (struct aule_run_params){.num_heads = heads};
    create_tensor(scene, FEW, heads, 11, &few->run.q);
    create_tensor(scene, FEW, 1, 12, &few->run.k);
    create_tensor(scene, FEW, 1, 13, &few->run.v);
    create_tensor(scene, FEW, heads, 14, &few->run.out);
    ok(aule_arena_alloc(scene->session, LSE_WORDS * sizeof(float), &words, &few->offset));
    few->words = words;
}

// Each token has `stride` words; its LSE begins `at` words after their start.
static struct aule_tensor lse_at(const struct few *few, uint32_t at, uint32_t stride)
{
    return (struct aule_tensor){.dtype = AULE_F32,
                                .offset = few->offset + at * sizeof(float),
                                .token_stride = stride * sizeof(float)};
}

static void clear_words(const struct few *few)
{
    for (int i = 0; i < LSE_WORDS; i++)
        few->words[i] = UNTOUCHED;
}

// Moves the LSE at `at` to `lse`, and restores the words that it had overwritten.
static void take_words(const struct few *few, uint32_t at, uint32_t stride, float *lse)
{
    for (uint32_t token = 0; token < FEW; token++)
        for (uint32_t head = 0; head < few->run.num_heads; head++) {
            float *word = &few->words[at + token * stride + head];
            lse[token * few->run.num_heads + head] = *word;
            *word = UNTOUCHED;
        }
}

static void expect_untouched(const struct few *few)
{
    for (int i = 0; i < LSE_WORDS; i++)
        ck_assert_msg(few->words[i] == UNTOUCHED, "word %d is %.9g", i, (double)few->words[i]);
}

static void run_few(struct few *few, uint32_t at, uint32_t stride, float *lse)
{
    clear_words(few);
    few->run.lse = lse_at(few, at, stride);
    ok(aule_run(few->batch, &few->run, WAIT_MS, NULL));
    take_words(few, at, stride, lse);
    expect_untouched(few);
}

// Both parts are the run's own LSE, and the result's LSE follows directly.
static void merge_few(struct few *few, float *lse)
{
    uint32_t heads = few->run.num_heads, size = FEW * heads;
    struct aule_tensor parts[] = {few->run.out, few->run.out},
                       lses[] = {lse_at(few, 1, heads), lse_at(few, 1, heads)};
    const struct aule_merge_params merge = {.num_parts = 2,
                                            .num_tokens = FEW,
                                            .num_heads = heads,
                                            .head_dim = DIM,
                                            .outs = parts,
                                            .lses = lses,
                                            .out = few->run.q,
                                            .lse = lse_at(few, 1 + size, heads),
                                            .lse_base2 = few->run.lse_base2};
    struct aule_ticket ticket;
    clear_words(few);
    memcpy(few->words + 1, lse, size * sizeof *lse);
    ok(aule_merge_submit(few->scene.session, &merge, WAIT_MS, &ticket));
    ok(aule_ticket_wait(few->scene.session, ticket, WAIT_MS, NULL));
    ck_assert_mem_eq(few->words + 1, lse, size * sizeof *lse);
    take_words(few, 1, heads, lse);
    take_words(few, 1 + size, heads, lse);
    expect_untouched(few);
}

static double naive_few(const struct few *few, uint32_t token, uint32_t head)
{
    const float *q = aule_tensor_data(few->scene.session, &few->run.q);
    const float *k = aule_tensor_data(few->scene.session, &few->run.k);
    double sum = 0;
    for (int key = 0; key < FEW; key++) {
        double s = 0;
        for (int d = 0; d < DIM; d++)
            s += (double)q[(token * few->run.num_heads + head) * DIM + (uint32_t)d] *
                 k[key * DIM + d];
        sum += exp(s / sqrt(DIM));
    }
    return log(sum);
}

START_TEST(an_lse_to_base_2_is_the_natural_one_in_another_unit)
{
    struct few few;
    float natural[FEW * 3], base2[FEW * 3], merged[FEW * 3];
    open_few(&few, 3);
    run_few(&few, 0, 4, natural);
    few.run.lse_base2 = true;
    run_few(&few, 0, 4, base2);
    for (int i = 0; i < FEW * 3; i++) {
        const double expected = (double)natural[i] / log(2);
        ck_assert_msg(fabs((double)base2[i] - expected) <= 1e-6 * fmax(1, fabs(expected)),
                      "LSE %d is %.9g, expected %.9g", i, (double)base2[i], expected);
    }
    memcpy(merged, base2, sizeof merged);
    merge_few(&few, merged);
    for (int i = 0; i < FEW * 3; i++)
        expect_lse(merged[i], (double)base2[i] + 1, "merged", i / 3, i % 3);
    few.run.lse.dtype = 0;
    expect(aule_run(few.batch, &few.run, WAIT_MS, NULL), AULE_INVALID, "the run has no lse");
    aule_batch_destroy(few.batch);
    close_scene(&few.scene);
}
END_TEST

// One or three heads: rows of 4 or 12 bytes, at an offset of 4. No byte beside them is written, in
// either kind of arena.
START_TEST(an_lse_of_any_number_of_heads_may_be_dense)
{
    for (uint32_t heads = 1; heads <= 3; heads += 2) {
        struct few few;
        float spread[FEW * 3] = {0}, dense[FEW * 3] = {0}, merged[FEW * 3];
        open_few(&few, heads);
        run_few(&few, 0, 4, spread);
        run_few(&few, 1, heads, dense);
        ck_assert_mem_eq(dense, spread, FEW * heads * sizeof *dense);
        for (uint32_t i = 0; i < FEW * heads; i++)
            expect_lse(dense[i], naive_few(&few, i / heads, i % heads), "dense", (int)(i / heads),
                       (int)(i % heads));
        memcpy(merged, dense, sizeof merged);
        merge_few(&few, merged);
        for (uint32_t i = 0; i < FEW * heads; i++)
            expect_lse(merged[i], (double)dense[i] + log(2), "merged", (int)(i / heads),
                       (int)(i % heads));
        aule_batch_destroy(few.batch);
        close_scene(&few.scene);
    }
}
END_TEST

// ---- runs among others ----

// The runs are submitted together, so that runs of one batch share dispatches with runs of other
// parameters.
START_TEST(runs_of_different_parameters_do_not_mix)
{
    struct scene scene;
    struct aule_batch *batch = NULL;
    struct aule_ticket tickets[NUM_CASES];
    struct aule_tensor outs[NUM_CASES];
    open_scene(&scene);
    ok(aule_batch_create(scene.cache, &scene.batch, &batch));
    for (size_t i = 0; i < NUM_CASES; i++) {
        prepare_case(&scene, i);
        create_tensor(&scene, NUM_QUERIES, HEADS, 4, &outs[i]);
        scene.run.out = outs[i];
        scene.run.lse.dtype = 0;
        ok(aule_run_submit(batch, &scene.run, WAIT_MS, &tickets[i]));
    }
    for (size_t i = 0; i < NUM_CASES; i++) {
        ok(aule_ticket_wait(scene.session, tickets[i], WAIT_MS, NULL));
        prepare_case(&scene, i);
        scene.batch.positions = NULL;
        scene.batch.mask = NULL;
        scene.run.lse.dtype = 0;
        scene.out = outs[i];
        expect_scene(&scene, cases[i].name);
    }
    aule_batch_destroy(batch);
    close_scene(&scene);
}
END_TEST

// ---- large masks ----

enum {
    LONG_QUERIES = 66000,
    LONG_KEYS = 128,
    LONG_DIM = 8,
    LONG_MASK = LONG_QUERIES * LONG_KEYS / 8
};

struct long_scene {
    struct aule_session *session;
    struct aule_cache *cache;
    struct aule_tensor q, k, v, out;
    int32_t table[LONG_KEYS / BLOCK];
    int32_t *positions;
    uint8_t *mask;
};

static const float long_slope = 0.0625f;

static float *long_tensor(struct long_scene *scene, uint32_t tokens, uint32_t seed,
                          struct aule_tensor *tensor)
{
    ok(aule_tensor_create(scene->session, AULE_F32, tokens, 1, LONG_DIM, tensor));
    float *data = aule_tensor_data(scene->session, tensor);
    for (uint32_t i = 0; i < tokens * LONG_DIM; i++)
        data[i] = value_at(seed, i);
    return data;
}

static void open_long(struct long_scene *scene)
{
    const struct aule_session_params session = {
        .socket = daemon_.socket, .arena_size = 8 << 20, .timeout_ms = WAIT_MS};
    const struct aule_cache_params cache = {.name = "long",
                                            .num_layers = 1,
                                            .num_kv_heads = 1,
                                            .head_dim = LONG_DIM,
                                            .k_dtype = AULE_F32,
                                            .v_dtype = AULE_F32,
                                            .block_size = BLOCK};
    ok(aule_session_open(&session, &scene->session));
    ok(aule_cache_open(scene->session, &cache, &scene->cache));
    ok(aule_blocks_lease(scene->cache, LONG_KEYS / BLOCK, WAIT_MS, scene->table));
    long_tensor(scene, LONG_QUERIES, 1, &scene->q);
    long_tensor(scene, LONG_KEYS, 2, &scene->k);
    long_tensor(scene, LONG_KEYS, 3, &scene->v);
    long_tensor(scene, LONG_QUERIES, 4, &scene->out);
    scene->mask = malloc(LONG_MASK);
    scene->positions = malloc(LONG_QUERIES * sizeof *scene->positions);
    ck_assert_ptr_nonnull(scene->mask);
    ck_assert_ptr_nonnull(scene->positions);
    for (uint32_t i = 0; i < LONG_MASK; i++)
        scene->mask[i] = (uint8_t)(128 * (1 + value_at(5, i)));
    for (int32_t i = 0; i < LONG_QUERIES; i++)
        scene->positions[i] = i % 200;
}

// LONG_KEYS queries write the keys. `slots` NULL: all queries, with mask, positions and ALiBi.
static void run_long(struct long_scene *scene, uint32_t num_queries, const int64_t *slots)
{
    const int32_t cu[] = {0, (int32_t)num_queries}, len = LONG_KEYS;
    struct aule_batch *batch = NULL;
    const struct aule_batch_params params = {.num_seqs = 1,
                                             .max_blocks = LONG_KEYS / BLOCK,
                                             .cu_seqlens_q = cu,
                                             .seq_lens_kv = &len,
                                             .block_table = scene->table,
                                             .slot_mapping = slots,
                                             .positions = slots ? NULL : scene->positions,
                                             .mask = slots ? NULL : scene->mask,
                                             .mask_size = slots ? 0 : LONG_MASK};
    const struct aule_run_params run = {.num_heads = 1,
                                        .q = scene->q,
                                        .k = scene->k,
                                        .v = scene->v,
                                        .out = scene->out,
                                        .scale = 1,
                                        .alibi_slopes = slots ? NULL : &long_slope};
    ok(aule_batch_create(scene->cache, &params, &batch));
    ok(aule_run(batch, &run, WAIT_MS, NULL));
    aule_batch_destroy(batch);
}

static void expect_long_row(const struct long_scene *scene, uint32_t query)
{
    const float *q =
        (float *)aule_tensor_data(scene->session, &scene->q) + (size_t)query * LONG_DIM;
    const float *k = aule_tensor_data(scene->session, &scene->k),
                *v = aule_tensor_data(scene->session, &scene->v);
    const float *out =
        (float *)aule_tensor_data(scene->session, &scene->out) + (size_t)query * LONG_DIM;
    double wanted[LONG_DIM] = {0}, sum = 0;
    for (uint32_t j = 0; j < LONG_KEYS; j++) {
        uint32_t bit = query * LONG_KEYS + j;
        double s = 0;
        if (!(scene->mask[bit / 8] >> bit % 8 & 1))
            continue;
        for (uint32_t d = 0; d < LONG_DIM; d++)
            s += (double)q[d] * k[j * LONG_DIM + d];
        s -= long_slope * fabs((double)scene->positions[query] - j);
        sum += exp(s);
        for (uint32_t d = 0; d < LONG_DIM; d++)
            wanted[d] += exp(s) * v[j * LONG_DIM + d];
    }
    for (uint32_t d = 0; d < LONG_DIM; d++)
        ck_assert_msg(fabs(out[d] - wanted[d] / sum) <= 1e-5, "query %u [%u]: %.9g instead of %.9g",
                      query, d, (double)out[d], wanted[d] / sum);
}

START_TEST(a_mask_larger_than_a_message_travels_through_the_arena_and_positions_with_it)
{
    struct long_scene scene;
    int64_t slots[LONG_KEYS];
    open_long(&scene);
    for (int i = 0; i < LONG_KEYS; i++)
        slots[i] = (int64_t)scene.table[i / BLOCK] * BLOCK + i % BLOCK;
    run_long(&scene, LONG_KEYS, slots);
    ck_assert_uint_gt(LONG_MASK, 1 << 20);
    run_long(&scene, LONG_QUERIES, NULL);
    for (uint32_t i = 0; i < LONG_QUERIES; i++)
        expect_long_row(&scene, i);
    free(scene.mask);
    free(scene.positions);
    aule_cache_close(scene.cache);
    aule_session_close(scene.session);
}
END_TEST

// ---- entries that a window hides ----

START_TEST(entries_before_the_left_window_may_be_missing_and_the_bits_are_the_same)
{
    struct scene scene;
    float whole[NUM_QUERIES * HEADS * DIM];
    struct aule_batch *batch = NULL;
    open_scene(&scene);
    scene.run.causal = true;
    scene.run.window =
        (struct aule_window){true, 8, -1}; // the first query is at 32 and sees keys from 24 on
    run_scene(&scene);
    expect_scene(&scene, "all entries");
    memcpy(whole, aule_tensor_data(scene.session, &scene.out), sizeof whole);
    scene.table[0] = scene.table[1] = scene.table[2] = -1;
    scene.table[MAX_BLOCKS] = -1; // a decode at 19 sees keys from 11 on
    run_scene(&scene);
    ck_assert_mem_eq(whole, aule_tensor_data(scene.session, &scene.out), sizeof whole);
    ok(aule_batch_create(scene.cache, &scene.batch, &batch));
    scene.run.window.left = 9;
    expect(aule_run(batch, &scene.run, WAIT_MS, NULL), AULE_INVALID,
           "block_table[0][2] = -1, but with window_left 9");
    scene.run.window.left = -1;
    expect(aule_run(batch, &scene.run, WAIT_MS, NULL), AULE_INVALID, "the run has no left window");
    scene.run.window.enabled = false;
    expect(aule_run(batch, &scene.run, WAIT_MS, NULL), AULE_INVALID, "block_table[0][2] = -1");
    aule_batch_destroy(batch);
    close_scene(&scene);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client, attention");
    const TTest *const numbers[] = {
        each_parameter_does_what_loops_in_double_say,
        runs_of_different_parameters_do_not_mix,
        an_lse_of_any_number_of_heads_may_be_dense,
        an_lse_to_base_2_is_the_natural_one_in_another_unit,
        a_mask_larger_than_a_message_travels_through_the_arena_and_positions_with_it,
        entries_before_the_left_window_may_be_missing_and_the_bits_are_the_same,
        NULL};
    check_shared_either(suite, (const char *const[]){"imported arena", "staged arena"},
                        (const SFun[]){setup, setup_staging}, teardown_shared, numbers);
    return check_main(suite);
}
