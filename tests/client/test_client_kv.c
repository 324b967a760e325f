// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_kv.c - keys and values through the real daemon, without attention, before it and
// beside it: imported, gathered, copied, zeroed, in eight bits, rotated, in block tensors of the
// arena. Also merging of partial results, and the same bits from every form of a step's metadata.

#include "rigs/client_rig.h"

#include <math.h>
#include <string.h>

enum {
    BLOCK = 8,
    LEN = 21,
    NUM_BLOCKS = 3,
    HEADS = 4,
    KV_HEADS = 2,
    DIM = 16,
    KV_SIZE = LEN * KV_HEADS * DIM
};

// A cache of one layer, a sequence of LEN tokens in three of its blocks, and tensors for it.
struct scene {
    struct aule_session *session;
    struct aule_cache *cache;
    int32_t blocks[2 * NUM_BLOCKS]; // the second half is for copies
    int64_t slots[LEN];
    struct aule_tensor k, v, k_out, v_out; // [LEN, KV_HEADS, DIM]
};

static struct aule_tensor rows(struct aule_session *session, uint32_t count, uint32_t heads,
                               uint32_t seed)
{
    struct aule_tensor tensor =
        rig_tensor(session, &(struct rig_shape){AULE_F32, 1, count, heads, DIM, true}, seed);
    tensor.outer_stride = 0;
    return tensor;
}

static void open_scene(struct scene *scene, enum aule_dtype dtype, enum aule_scale_mode scale_mode)
{
    char name[32]; // a cache for each type: the tests share a daemon
    snprintf(name, sizeof name, "kv, %s, %d", aule_dtype_name(dtype), (int)scale_mode);
    const struct aule_cache_params params = {.name = name,
                                             .num_layers = 1,
                                             .num_kv_heads = KV_HEADS,
                                             .head_dim = DIM,
                                             .k_dtype = dtype,
                                             .v_dtype = dtype,
                                             .scale_mode = scale_mode,
                                             .block_size = BLOCK};
    *scene = (struct scene){.session = rig_session(0)};
    ok(aule_cache_open(scene->session, &params, &scene->cache));
    ok(aule_blocks_lease(scene->cache, 2 * NUM_BLOCKS, WAIT_MS, scene->blocks));
    for (int32_t i = 0; i < LEN; i++)
        scene->slots[i] = (int64_t)scene->blocks[i / BLOCK] * BLOCK + i % BLOCK;
    scene->k = rows(scene->session, LEN, KV_HEADS, 1);
    scene->v = rows(scene->session, LEN, KV_HEADS, 2);
    scene->k_out = rows(scene->session, LEN, KV_HEADS, 3);
    scene->v_out = rows(scene->session, LEN, KV_HEADS, 4);
}

static void close_scene(struct scene *scene)
{
    aule_cache_close(scene->cache);
    aule_session_close(scene->session);
}

static float *data_of(const struct scene *scene, const struct aule_tensor *tensor)
{
    return aule_tensor_data(scene->session, tensor);
}

static void wait_for(struct scene *scene, struct aule_ticket ticket)
{
    ok(aule_ticket_wait(scene->session, ticket, WAIT_MS, NULL));
}

static void import_all(struct scene *scene, float scale)
{
    struct aule_ticket ticket;
    const struct aule_kv_import params = {.num_rows = LEN,
                                          .slot_mapping = scene->slots,
                                          .k = scene->k,
                                          .v = scene->v,
                                          .k_scale = scale,
                                          .v_scale = scale};
    ok(aule_kv_import(scene->cache, &params, WAIT_MS, &ticket));
    wait_for(scene, ticket);
}

// Gathers into k_out and v_out from these blocks.
static void gather(struct scene *scene, const int32_t *blocks, float scale)
{
    const int32_t cu[] = {0, 0}, len = LEN;
    struct aule_batch *batch = NULL;
    struct aule_ticket ticket;
    const struct aule_batch_params params = {.num_seqs = 1,
                                             .max_blocks = NUM_BLOCKS,
                                             .cu_seqlens_q = cu,
                                             .seq_lens_kv = &len,
                                             .block_table = blocks};
    const struct aule_kv_gather into = {
        .k = scene->k_out, .v = scene->v_out, .k_scale = scale, .v_scale = scale};
    memset(data_of(scene, &scene->k_out), 0xff, KV_SIZE * sizeof(float));
    memset(data_of(scene, &scene->v_out), 0xff, KV_SIZE * sizeof(float));
    ok(aule_batch_create(scene->cache, &params, &batch));
    ok(aule_kv_gather(batch, &into, WAIT_MS, &ticket));
    wait_for(scene, ticket);
    aule_batch_destroy(batch);
}

static void expect_gathered(struct scene *scene)
{
    ck_assert_mem_eq(data_of(scene, &scene->k_out), data_of(scene, &scene->k),
                     KV_SIZE * sizeof(float));
    ck_assert_mem_eq(data_of(scene, &scene->v_out), data_of(scene, &scene->v),
                     KV_SIZE * sizeof(float));
}

// ---- in and out ----

START_TEST(what_is_imported_is_gathered_bit_for_bit)
{
    struct scene scene;
    open_scene(&scene, AULE_F32, AULE_SCALE_NONE);
    import_all(&scene, 0);
    gather(&scene, scene.blocks, 0);
    expect_gathered(&scene);
    struct aule_kv_export export = {
        .num_rows = LEN, .block_ids = scene.blocks, .k = scene.k_out, .v = scene.v_out};
    struct aule_ticket ticket;
    memset(data_of(&scene, &scene.k_out), 0xff, KV_SIZE * sizeof(float));
    memset(data_of(&scene, &scene.v_out), 0xff, KV_SIZE * sizeof(float));
    ok(aule_kv_export(scene.cache, &export, WAIT_MS, &ticket));
    wait_for(&scene, ticket);
    expect_gathered(&scene);
    export.num_rows = 0;
    expect(aule_kv_export(scene.cache, &export, WAIT_MS, NULL), AULE_INVALID, "num_rows = 0");
    export.num_rows = LEN + 1;
    expect(aule_kv_export(scene.cache, &export, WAIT_MS, NULL), AULE_OUT_OF_RANGE,
           "k has num_rows");
    export.num_rows = 1;
    export.block_ids = (int32_t[]){12345};
    expect(aule_kv_export(scene.cache, &export, WAIT_MS, NULL), AULE_INVALID, "12345");
    close_scene(&scene);
    rig_expect_nothing_held();
}
END_TEST

// [blocks, block_size, heads, dim] with padding between the blocks: the outer stride is that of
// five tokens.
// A staged arena is refused with a sentence, because whole blocks have no staging.
START_TEST(whole_blocks_keep_their_bytes_through_an_arena_that_is_used_in_place)
{
    struct scene scene;
    struct aule_session_info info;
    struct aule_cache_state state;
    struct aule_ticket ticket;
    uint64_t offset;
    void *bytes;
    open_scene(&scene, AULE_F32, AULE_SCALE_NONE);
    ok(aule_session_info(scene.session, &info));
    ok(aule_cache_state(scene.cache, &state));
    ok(aule_arena_alloc(scene.session, NUM_BLOCKS * state.block_bytes, &bytes, &offset));
    import_all(&scene, 0);
    expect(aule_blocks_export(scene.cache, NUM_BLOCKS, scene.blocks, offset, WAIT_MS, &ticket),
           info.arena_imported ? AULE_UNWRITTEN : AULE_UNSUPPORTED,
           info.arena_imported ? "is wholly written in 0 of" : "does not use this session's arena");
    if (info.arena_imported) {
        ok(aule_blocks_export(scene.cache, 1, scene.blocks, offset, WAIT_MS, NULL));
        ok(aule_blocks_zero(scene.cache, 1, scene.blocks, WAIT_MS, NULL));
        ok(aule_blocks_import(scene.cache, 1, scene.blocks, offset, WAIT_MS, NULL));
        gather(&scene, scene.blocks, 0); // in the session's order
        expect_gathered(&scene);
        expect(aule_blocks_import(scene.cache, 1, scene.blocks, offset + 1, WAIT_MS, NULL),
               AULE_MISALIGNED, "multiples of 16");
    }
    aule_arena_free(scene.session, bytes);
    close_scene(&scene);
    rig_expect_nothing_held();
}
END_TEST

START_TEST(block_tensors_with_gaps_are_imported_by_their_outer_stride)
{
    enum { ROWS = 5, GAP = 2, STEP = ROWS + GAP, PARTS = (LEN + ROWS - 1) / ROWS };
    struct scene scene;
    struct aule_ticket ticket;
    open_scene(&scene, AULE_F32, AULE_SCALE_NONE);
    struct aule_tensor spread = rows(scene.session, PARTS * STEP, KV_HEADS, 5);
    for (int i = 0; i < LEN; i++)
        memcpy(data_of(&scene, &spread) +
                   ((size_t)(i / ROWS) * STEP + (size_t)(i % ROWS)) * KV_HEADS * DIM,
               data_of(&scene, &scene.k) + (size_t)i * KV_HEADS * DIM,
               KV_HEADS * DIM * sizeof(float));
    spread.outer_stride = STEP * spread.token_stride;
    const struct aule_kv_import params = {.num_rows = LEN,
                                          .outer_rows = ROWS,
                                          .slot_mapping = scene.slots,
                                          .k = spread,
                                          .v = scene.v}; // dense: its rows follow each other
    ok(aule_kv_import(scene.cache, &params, WAIT_MS, &ticket));
    wait_for(&scene, ticket);
    gather(&scene, scene.blocks, 0);
    expect_gathered(&scene);
    close_scene(&scene);
}
END_TEST

START_TEST(rows_without_a_slot_are_left_out)
{
    struct scene scene;
    open_scene(&scene, AULE_F32, AULE_SCALE_NONE);
    float *k = data_of(&scene, &scene.k) + (size_t)3 * KV_HEADS * DIM, was[2][KV_HEADS * DIM];
    float *v = data_of(&scene, &scene.v) + (size_t)3 * KV_HEADS * DIM;
    import_all(&scene, 0);
    memcpy(was[0], k, sizeof was[0]);
    memcpy(was[1], v, sizeof was[1]);
    memset(k, 0, sizeof was[0]);
    memset(v, 0, sizeof was[1]);
    scene.slots[3] = -1;
    import_all(&scene, 0);
    gather(&scene, scene.blocks, 0);
    memcpy(k, was[0], sizeof was[0]);
    memcpy(v, was[1], sizeof was[1]);
    expect_gathered(&scene);
    close_scene(&scene);
}
END_TEST

START_TEST(copied_blocks_hold_the_same_and_count_as_written)
{
    static const int32_t tokens[2 * BLOCK] = {1, 2, 3};
    const struct aule_prefix prefix = {.tokens = tokens, .num_tokens = 2 * BLOCK};
    struct scene scene;
    struct aule_ticket ticket;
    open_scene(&scene, AULE_F32, AULE_SCALE_NONE);
    import_all(&scene, 0);
    ok(aule_blocks_copy(scene.cache, NUM_BLOCKS, scene.blocks, scene.blocks + NUM_BLOCKS, WAIT_MS,
                        &ticket));
    wait_for(&scene, ticket);
    gather(&scene, scene.blocks + NUM_BLOCKS, 0);
    expect_gathered(&scene);
    ok(aule_prefix_publish(scene.cache, &prefix, scene.blocks + NUM_BLOCKS, NULL));
    expect(aule_blocks_copy(scene.cache, 1, scene.blocks, scene.blocks + NUM_BLOCKS, 0, NULL),
           AULE_SEALED, "");
    close_scene(&scene);
}
END_TEST

// ---- eight bits ----

// e4m3 of these values: ties to even, saturation, NaN, and the smallest.
START_TEST(fp8_blocks_round_to_even_saturate_and_keep_nan)
{
    static const float given[] = {1.0625f, 1.1875f, 500, -1e30f, NAN, 0.0009765625f, -0.0f, 17};
    static const float wanted[] = {1, 1.25f, 448, -448, NAN, 0, -0.0f, 16};
    struct scene scene;
    open_scene(&scene, AULE_FP8_E4M3, AULE_SCALE_NONE);
    memcpy(data_of(&scene, &scene.k), given, sizeof given);
    import_all(&scene, 0);
    gather(&scene, scene.blocks, 0);
    const float *got = data_of(&scene, &scene.k_out);
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        ck_assert_msg(isnan(wanted[i])
                          ? isnan(got[i])
                          : got[i] == wanted[i] && !signbit(got[i]) == !signbit(wanted[i]),
                      "%.9g became %.9g instead of %.9g", (double)given[i], (double)got[i],
                      (double)wanted[i]);
    close_scene(&scene);
}
END_TEST

static void expect_near(struct scene *scene, double relative)
{
    const struct aule_tensor *pairs[2][2] = {{&scene->k, &scene->k_out},
                                             {&scene->v, &scene->v_out}};
    for (int p = 0; p < 2; p++) {
        const float *given = data_of(scene, pairs[p][0]), *got = data_of(scene, pairs[p][1]);
        for (int i = 0; i < KV_SIZE; i++)
            ck_assert_msg(fabs(got[i] - given[i]) <= relative * 2, "[%d]: %.9g became %.9g", i,
                          (double)given[i], (double)got[i]);
    }
}

START_TEST(int8_blocks_are_scaled_per_tensor_or_per_token_and_head)
{
    struct scene scene;
    open_scene(&scene, AULE_INT8, AULE_SCALE_PER_TENSOR);
    import_all(&scene, 2.0f / 127);
    gather(&scene, scene.blocks, 2.0f / 127);
    expect_near(&scene, 0.5 / 127 * 1.001);
    close_scene(&scene);
    open_scene(&scene, AULE_INT8, AULE_SCALE_PER_TOKEN_HEAD);
    import_all(&scene, 0);
    gather(&scene, scene.blocks, 0);
    expect_near(&scene, 0.5 / 127 * 1.001);
    close_scene(&scene);
}
END_TEST

// ---- attention over what was imported ----

static struct aule_run_params run_of(struct scene *scene, uint32_t tokens, uint32_t seed)
{
    struct aule_run_params run = {.num_heads = HEADS, .causal = true};
    run.q = rows(scene->session, tokens, HEADS, seed);
    run.out = rows(scene->session, tokens, HEADS, seed + 1);
    memset(data_of(scene, &run.out), 0xff, tokens * HEADS * DIM * sizeof(float));
    return run;
}

// The last three tokens are queries; the keys are in the pool.
static void attend_pool(struct scene *scene, const struct aule_run_params *run)
{
    static const int32_t cu[] = {0, 3}, len = LEN;
    struct aule_batch *batch = NULL;
    const struct aule_batch_params params = {.num_seqs = 1,
                                             .max_blocks = NUM_BLOCKS,
                                             .cu_seqlens_q = cu,
                                             .seq_lens_kv = &len,
                                             .block_table = scene->blocks};
    ok(aule_batch_create(scene->cache, &params, &batch));
    ok(aule_run(batch, run, WAIT_MS, NULL));
    aule_batch_destroy(batch);
}

// Runs with a mask read what they like: zeroes have scores of 0, so the LSE is ln(LEN).
static void expect_zeroes(struct scene *scene)
{
    static const int32_t cu[] = {0, 1}, len = LEN;
    static const uint8_t mask[] = {0xff, 0xff, 0xff};
    struct aule_batch *batch = NULL;
    struct aule_run_params run = run_of(scene, 1, 7);
    const struct aule_batch_params params = {.num_seqs = 1,
                                             .max_blocks = NUM_BLOCKS,
                                             .cu_seqlens_q = cu,
                                             .seq_lens_kv = &len,
                                             .block_table = scene->blocks,
                                             .mask = mask,
                                             .mask_size = sizeof mask};
    ok(aule_tensor_create_lse(scene->session, 1, HEADS, &run.lse));
    ok(aule_batch_create(scene->cache, &params, &batch));
    ok(aule_run(batch, &run, WAIT_MS, NULL));
    aule_batch_destroy(batch);
    for (int i = 0; i < HEADS; i++)
        ck_assert_float_eq_tol(data_of(scene, &run.lse)[i], logf(LEN), 1e-5f);
    for (int i = 0; i < HEADS * DIM; i++)
        ck_assert_float_eq(data_of(scene, &run.out)[i], 0);
}

START_TEST(zeroed_blocks_hold_zeroes_and_count_as_unwritten)
{
    static const int32_t tokens[2 * BLOCK] = {1, 2, 3};
    const struct aule_prefix prefix = {.tokens = tokens, .num_tokens = 2 * BLOCK};
    struct scene scene;
    struct aule_ticket ticket;
    open_scene(&scene, AULE_F32, AULE_SCALE_NONE);
    import_all(&scene, 0);
    ok(aule_blocks_zero(scene.cache, NUM_BLOCKS, scene.blocks, WAIT_MS, &ticket));
    wait_for(&scene, ticket);
    expect_zeroes(&scene);
    expect(aule_prefix_publish(scene.cache, &prefix, scene.blocks, NULL), AULE_UNWRITTEN, "");
    const struct aule_kv_export export = {
        .num_rows = LEN, .block_ids = scene.blocks, .k = scene.k_out, .v = scene.v_out};
    expect(aule_kv_export(scene.cache, &export, WAIT_MS, NULL), AULE_UNWRITTEN,
           "sequence 0 reads position 0, slot 0 of block");
    close_scene(&scene);
}
END_TEST

START_TEST(block_tensors_of_the_arena_give_the_bits_of_the_pool_and_take_new_tokens)
{
    enum { COUNT = 5, BYTES = COUNT * BLOCK * KV_HEADS * DIM * sizeof(float) };
    static const int32_t table[NUM_BLOCKS] = {4, 0, 2}, cu[] = {0, 3}, len = LEN;
    struct scene scene;
    int64_t slots[3];
    struct aule_batch *batch = NULL;
    open_scene(&scene, AULE_F32, AULE_SCALE_NONE);
    import_all(&scene, 0);
    struct aule_run_params run = run_of(&scene, 3, 7), local = run_of(&scene, 3, 7);
    attend_pool(&scene, &run);
    // [blocks, kv_heads, block_size, d]; the run brings the last three tokens.
    const struct rig_shape shape = {AULE_F32, COUNT, BLOCK, KV_HEADS, DIM, false};
    local.keys = rig_tensor(scene.session, &shape, 8);
    local.values = rig_tensor(scene.session, &shape, 9);
    const struct aule_tensor *from[] = {&scene.k, &scene.v};
    struct aule_tensor *to[] = {&local.keys, &local.values}, *fresh[] = {&local.k, &local.v};
    for (int p = 0; p < 2; p++) {
        memset(data_of(&scene, to[p]), 0, BYTES);
        for (int i = 0; i < LEN - 3; i++)
            for (int h = 0; h < KV_HEADS; h++)
                memcpy(data_of(&scene, to[p]) +
                           (((size_t)table[i / BLOCK] * KV_HEADS + (size_t)h) * BLOCK +
                            (size_t)(i % BLOCK)) *
                               DIM,
                       data_of(&scene, from[p]) + ((size_t)i * KV_HEADS + (size_t)h) * DIM,
                       DIM * sizeof(float));
        *fresh[p] = *from[p];
        fresh[p]->offset += (LEN - 3) * from[p]->token_stride;
    }
    for (int i = 0; i < 3; i++)
        slots[i] = (int64_t)table[(LEN - 3 + i) / BLOCK] * BLOCK + (LEN - 3 + i) % BLOCK;
    const struct aule_kv_layout layout = {.num_kv_heads = KV_HEADS,
                                          .head_dim = DIM,
                                          .k_dtype = AULE_F32,
                                          .v_dtype = AULE_F32,
                                          .block_size = BLOCK,
                                          .num_blocks = COUNT};
    const struct aule_batch_params params = {.num_seqs = 1,
                                             .max_blocks = NUM_BLOCKS,
                                             .cu_seqlens_q = cu,
                                             .seq_lens_kv = &len,
                                             .block_table = table,
                                             .slot_mapping = slots};
    ok(aule_batch_create_local(scene.session, &layout, &params, &batch));
    ok(aule_run(batch, &local, WAIT_MS, NULL));
    ck_assert_mem_eq(data_of(&scene, &run.out), data_of(&scene, &local.out),
                     3 * HEADS * DIM * sizeof(float));
    const float *last = data_of(&scene, &local.keys) +
                        ((size_t)table[2] * KV_HEADS * BLOCK + (LEN - 1) % BLOCK) * DIM;
    ck_assert_mem_eq(last, data_of(&scene, &scene.k) + (size_t)(LEN - 1) * KV_HEADS * DIM,
                     DIM * sizeof(float));
    aule_batch_destroy(batch);
    const int32_t beyond[NUM_BLOCKS] = {4, 5, 2};
    struct aule_batch_params wrong = params;
    wrong.block_table = beyond;
    expect(aule_batch_create_local(scene.session, &layout, &wrong, &batch), AULE_OUT_OF_RANGE, "5");
    close_scene(&scene);
}
END_TEST

// ---- merging ----

START_TEST(two_halves_merged_by_their_lse_are_the_whole)
{
    enum { HALF = 11, ASKING = 3 };
    const uint32_t lens[] = {LEN, HALF, LEN - HALF};
    struct scene scene;
    struct aule_tensor outs[3], lses[3];
    open_scene(&scene, AULE_F32, AULE_SCALE_NONE);
    struct aule_run_params run = run_of(&scene, ASKING, 7);
    run.causal = false;
    for (int n = 0; n < 3; n++) {
        struct aule_attention_params params = {.num_seqs = 1,
                                               .q_len = ASKING,
                                               .kv_len = lens[n],
                                               .num_kv_heads = KV_HEADS,
                                               .head_dim = DIM,
                                               .path = AULE_PATH_CONTIGUOUS,
                                               .run = run};
        params.run.k = scene.k;
        params.run.v = scene.v;
        params.run.k.offset += n == 2 ? HALF * scene.k.token_stride : 0;
        params.run.v.offset += n == 2 ? HALF * scene.v.token_stride : 0;
        outs[n] = params.run.out = rows(scene.session, ASKING, HEADS, 10);
        ok(aule_tensor_create_lse(scene.session, ASKING, HEADS, &lses[n]));
        params.run.lse = lses[n];
        ok(aule_attention(scene.session, &params, WAIT_MS, NULL, NULL));
    }
    struct aule_ticket ticket;
    const struct aule_merge_params merge = {.num_parts = 2,
                                            .num_tokens = ASKING,
                                            .num_heads = HEADS,
                                            .head_dim = DIM,
                                            .outs = outs + 1,
                                            .lses = lses + 1,
                                            .out = outs[1], // one of the parts
                                            .lse = lses[1]};
    ok(aule_merge_submit(scene.session, &merge, WAIT_MS, &ticket));
    wait_for(&scene, ticket);
    const float *whole = data_of(&scene, &outs[0]), *merged = data_of(&scene, &outs[1]);
    for (int i = 0; i < ASKING * HEADS * DIM; i++)
        ck_assert_msg(fabs(whole[i] - merged[i]) <= 1e-5, "[%d]: %.9g and %.9g", i,
                      (double)whole[i], (double)merged[i]);
    const float *lse = data_of(&scene, &lses[0]), *merged_lse = data_of(&scene, &lses[1]);
    for (int i = 0; i < ASKING * HEADS; i++)
        ck_assert_msg(fabs(lse[i] - merged_lse[i]) <= 1e-5, "LSE [%d]: %.9g and %.9g", i,
                      (double)lse[i], (double)merged_lse[i]);
    close_scene(&scene);
}
END_TEST

// ---- rotation ----

static void rotate(float *row, const struct aule_rope *rope, int position)
{
    for (uint32_t n = 0; n < rope->dim / 2; n++) {
        double theta = rope->theta > 0 ? rope->theta : 10000;
        double frequency =
            rope->frequencies ? rope->frequencies[n] : pow(theta, -2.0 * n / rope->dim);
        float *x = &row[rope->interleaved ? 2 * n : n],
              *y = &row[rope->interleaved ? 2 * n + 1 : n + rope->dim / 2];
        double a = *x, b = *y, angle = position * frequency;
        *x = (float)(a * cos(angle) - b * sin(angle));
        *y = (float)(a * sin(angle) + b * cos(angle));
    }
}

// A prefill of all LEN tokens, which writes its keys.
static void prefill(struct scene *scene, const struct aule_run_params *run)
{
    static const int32_t cu[] = {0, LEN}, len = LEN;
    struct aule_batch *batch = NULL;
    const struct aule_batch_params params = {.num_seqs = 1,
                                             .max_blocks = NUM_BLOCKS,
                                             .cu_seqlens_q = cu,
                                             .seq_lens_kv = &len,
                                             .block_table = scene->blocks,
                                             .slot_mapping = scene->slots};
    ok(aule_batch_create(scene->cache, &params, &batch));
    ok(aule_run(batch, run, WAIT_MS, NULL));
    aule_batch_destroy(batch);
}

// An import with a run's rotation stores the bits that were gathered. It turns by positions: the
// rows of the second half come first.
static void expect_import_like(struct scene *scene, const struct aule_run_params *run)
{
    enum { FIRST = LEN / 2 };
    static float stored[KV_SIZE];
    int32_t positions[LEN];
    int64_t slots[LEN];
    struct aule_ticket ticket;
    struct aule_tensor k = rows(scene->session, LEN, KV_HEADS, 1);
    memcpy(stored, data_of(scene, &scene->k_out), sizeof stored);
    for (int i = 0; i < LEN; i++) {
        positions[i] = (i + FIRST) % LEN;
        slots[i] = scene->slots[positions[i]];
        memcpy(data_of(scene, &k) + (size_t)i * KV_HEADS * DIM,
               data_of(scene, &scene->k) + (size_t)positions[i] * KV_HEADS * DIM,
               KV_HEADS * DIM * sizeof(float));
    }
    struct aule_kv_import import = {.num_rows = LEN,
                                    .slot_mapping = slots,
                                    .k = k,
                                    .v = scene->v,
                                    .rope = run->rope,
                                    .positions = positions};
    ok(aule_blocks_zero(scene->cache, NUM_BLOCKS, scene->blocks, WAIT_MS, NULL));
    ok(aule_kv_import(scene->cache, &import, WAIT_MS, &ticket));
    wait_for(scene, ticket);
    const struct aule_kv_export export = {
        .num_rows = LEN, .block_ids = scene->blocks, .k = scene->k_out, .v = scene->v_out};
    memset(data_of(scene, &scene->k_out), 0xff, sizeof stored);
    ok(aule_kv_export(scene->cache, &export, WAIT_MS, &ticket));
    wait_for(scene, ticket);
    ck_assert_mem_eq(data_of(scene, &scene->k_out), stored, sizeof stored);
    import.positions = NULL;
    expect(aule_kv_import(scene->cache, &import, WAIT_MS, NULL), AULE_INVALID, "positions is NULL");
    aule_tensor_destroy(scene->session, &k);
}

START_TEST(rotation_in_the_kernel_is_rotation_before_it)
{
    static const double frequencies[] = {1, 0.3, 0.07, 0.001};
    static const struct aule_rope ropes[] = {{.dim = DIM},
                                             {.dim = 8, .interleaved = true, .theta = 500},
                                             {.dim = 8, .frequencies = frequencies}};
    struct scene scene;
    open_scene(&scene, AULE_F32, AULE_SCALE_NONE);
    struct aule_run_params turned = run_of(&scene, LEN, 7), plain = run_of(&scene, LEN, 7);
    for (size_t r = 0; r < 3; r++) {
        turned.k = plain.k = scene.k;
        turned.v = plain.v = scene.v;
        turned.rope = ropes[r];
        plain.q = rows(scene.session, LEN, HEADS, 7);
        plain.k = rows(scene.session, LEN, KV_HEADS, 1);
        for (int i = 0; i < LEN; i++) {
            for (int h = 0; h < HEADS; h++)
                rotate(data_of(&scene, &plain.q) + ((size_t)i * HEADS + (size_t)h) * DIM, &ropes[r],
                       i);
            for (int h = 0; h < KV_HEADS; h++)
                rotate(data_of(&scene, &plain.k) + ((size_t)i * KV_HEADS + (size_t)h) * DIM,
                       &ropes[r], i);
        }
        prefill(&scene, &turned);
        gather(&scene, scene.blocks, 0); // stored rotated
        expect_import_like(&scene, &turned);
        const float *stored = data_of(&scene, &scene.k_out), *wanted = data_of(&scene, &plain.k);
        for (int i = 0; i < KV_SIZE; i++)
            ck_assert_msg(fabs(stored[i] - wanted[i]) <= 2e-6,
                          "rope %zu: key [%d] is %.9g instead of %.9g", r, i, (double)stored[i],
                          (double)wanted[i]);
        prefill(&scene, &plain);
        const float *a = data_of(&scene, &turned.out), *b = data_of(&scene, &plain.out);
        for (int i = 0; i < LEN * HEADS * DIM; i++)
            ck_assert_msg(fabs(a[i] - b[i]) <= 2e-5, "rope %zu: out [%d] is %.9g instead of %.9g",
                          r, i, (double)a[i], (double)b[i]);
    }
    close_scene(&scene);
}
END_TEST

// ---- forms ----

// Three sequences of 5, 7 and 9 tokens, each in a block or two: as a plain batch, and interleaved
// in reverse order.
START_TEST(interleaved_tokens_get_the_bits_of_grouped_ones)
{
    enum { SEQS = 3, COLUMNS = 2 };
    static const int32_t lens[SEQS] = {5, 7, 9}, cu[] = {0, 5, 12, LEN};
    int32_t table[SEQS * COLUMNS], ids[LEN], positions[LEN], order[LEN];
    int64_t slots[LEN], mixed_slots[LEN];
    struct scene scene;
    struct aule_batch *batch = NULL;
    struct aule_metadata metadata;
    open_scene(&scene, AULE_F32, AULE_SCALE_NONE);
    memcpy(table, scene.blocks, sizeof table);
    struct aule_run_params plain = run_of(&scene, LEN, 7), mixed = run_of(&scene, LEN, 7);
    plain.k = scene.k;
    plain.v = scene.v;
    mixed.k = rows(scene.session, LEN, KV_HEADS, 1);
    mixed.v = rows(scene.session, LEN, KV_HEADS, 2);
    int at = 0;
    for (int32_t i = 0; i < 9; i++)
        for (int32_t s = SEQS - 1; s >= 0; s--)
            if (i < lens[s]) {
                ids[at] = s;
                positions[at] = i;
                order[at++] = cu[s] + i;
            }
    for (int t = 0; t < LEN; t++) {
        int32_t s = ids[t], i = positions[t];
        mixed_slots[t] = slots[order[t]] =
            (int64_t)table[s * COLUMNS + i / BLOCK] * BLOCK + i % BLOCK;
        memcpy(data_of(&scene, &mixed.q) + (size_t)t * HEADS * DIM,
               data_of(&scene, &plain.q) + (size_t)order[t] * HEADS * DIM,
               HEADS * DIM * sizeof(float));
        memcpy(data_of(&scene, &mixed.k) + (size_t)t * KV_HEADS * DIM,
               data_of(&scene, &plain.k) + (size_t)order[t] * KV_HEADS * DIM,
               KV_HEADS * DIM * sizeof(float));
        memcpy(data_of(&scene, &mixed.v) + (size_t)t * KV_HEADS * DIM,
               data_of(&scene, &plain.v) + (size_t)order[t] * KV_HEADS * DIM,
               KV_HEADS * DIM * sizeof(float));
    }
    const struct aule_batch_params grouped = {.num_seqs = SEQS,
                                              .max_blocks = COLUMNS,
                                              .cu_seqlens_q = cu,
                                              .seq_lens_kv = lens,
                                              .block_table = table,
                                              .slot_mapping = slots};
    ok(aule_batch_create(scene.cache, &grouped, &batch));
    ok(aule_run(batch, &plain, WAIT_MS, NULL));
    aule_batch_destroy(batch);
    struct aule_ticket ticket;
    ok(aule_blocks_zero(scene.cache, SEQS * COLUMNS, table, WAIT_MS, &ticket));
    wait_for(&scene, ticket);
    const struct aule_token_form form = {.num_tokens = LEN,
                                         .num_seqs = SEQS,
                                         .seq_ids = ids,
                                         .positions = positions,
                                         .slot_mapping = mixed_slots,
                                         .block_table = table,
                                         .max_blocks = COLUMNS};
    ok(aule_metadata_tokens(&form, &metadata));
    ok(aule_batch_create(scene.cache, &metadata.params, &batch));
    aule_metadata_finish(&metadata);
    ok(aule_run(batch, &mixed, WAIT_MS, NULL));
    aule_batch_destroy(batch);
    for (int t = 0; t < LEN; t++)
        ck_assert_msg(memcmp(data_of(&scene, &mixed.out) + (size_t)t * HEADS * DIM,
                             data_of(&scene, &plain.out) + (size_t)order[t] * HEADS * DIM,
                             HEADS * DIM * sizeof(float)) == 0,
                      "token %d of sequence %d at %d differs", t, ids[t], positions[t]);
    close_scene(&scene);
}
END_TEST

// A prefill of all but one token, then the last one appended: the same bits as a batch written by
// hand.
START_TEST(an_appended_token_is_written_and_attended_in_one_run)
{
    static const int32_t cached = LEN - 1;
    struct scene scene;
    struct aule_batch *batch = NULL;
    struct aule_metadata metadata;
    float wanted[HEADS * DIM];
    open_scene(&scene, AULE_F32, AULE_SCALE_NONE);
    import_all(&scene, 0);
    struct aule_run_params run = run_of(&scene, 3, 7);
    attend_pool(&scene, &run);
    memcpy(wanted, data_of(&scene, &run.out) + (size_t)2 * HEADS * DIM, sizeof wanted);
    struct aule_ticket ticket;
    ok(aule_blocks_zero(scene.cache, 1, scene.blocks + 2, WAIT_MS,
                        &ticket)); // the last five tokens
    wait_for(&scene, ticket);
    scene.slots[LEN - 1] = -1;
    import_all(&scene, 0);
    run.q.offset += 2 * run.q.token_stride;
    run.k = scene.k;
    run.v = scene.v;
    run.k.offset += (LEN - 1) * run.k.token_stride;
    run.v.offset += (LEN - 1) * run.v.token_stride;
    ok(aule_metadata_append(1, &cached, scene.blocks, NUM_BLOCKS, BLOCK, &metadata));
    ok(aule_batch_create(scene.cache, &metadata.params, &batch));
    aule_metadata_finish(&metadata);
    ok(aule_run(batch, &run, WAIT_MS, NULL));
    aule_batch_destroy(batch);
    ck_assert_mem_eq(data_of(&scene, &run.out), wanted, sizeof wanted);
    close_scene(&scene);
}
END_TEST

// Ragged contiguous K and V: each sequence alone, and all in one varlen call.
START_TEST(varlen_sequences_get_the_bits_of_each_alone)
{
    enum { SEQS = 3, T = 14 };
    static const int32_t cu_q[] = {0, 10, 13, T}, cu_k[] = {0, 0, 1, 8};
    struct scene scene;
    struct aule_batch *batch = NULL;
    struct aule_metadata metadata;
    open_scene(&scene, AULE_F32, AULE_SCALE_NONE);
    const struct aule_kv_layout layout = {
        .num_kv_heads = KV_HEADS, .head_dim = DIM, .k_dtype = AULE_F32, .v_dtype = AULE_F32};
    struct aule_run_params run = run_of(&scene, T, 7);
    run.keys = scene.k;
    run.values = scene.v;
    ok(aule_metadata_varlen(SEQS, cu_q, cu_k, 10, 7, &metadata));
    ok(aule_batch_create_local(scene.session, &layout, &metadata.params, &batch));
    aule_metadata_finish(&metadata);
    ok(aule_run(batch, &run, WAIT_MS, NULL));
    aule_batch_destroy(batch);
    for (int s = 0; s < SEQS; s++) {
        uint32_t q_len = (uint32_t)(cu_q[s + 1] - cu_q[s]),
                 kv_len = (uint32_t)(cu_k[s + 1] - cu_k[s]);
        struct aule_attention_params params = {.num_seqs = 1,
                                               .q_len = q_len,
                                               .kv_len = kv_len,
                                               .num_kv_heads = KV_HEADS,
                                               .head_dim = DIM,
                                               .path = AULE_PATH_CONTIGUOUS,
                                               .run = run};
        params.run.q.offset += (uint64_t)cu_q[s] * run.q.token_stride;
        params.run.k = scene.k;
        params.run.v = scene.v;
        params.run.k.offset += (uint64_t)cu_k[s] * scene.k.token_stride;
        params.run.v.offset += (uint64_t)cu_k[s] * scene.v.token_stride;
        params.run.out = rows(scene.session, q_len, HEADS, 11);
        ok(aule_attention(scene.session, &params, WAIT_MS, NULL, NULL));
        ck_assert_msg(memcmp(data_of(&scene, &params.run.out),
                             data_of(&scene, &run.out) + (size_t)cu_q[s] * HEADS * DIM,
                             q_len * HEADS * DIM * sizeof(float)) == 0,
                      "sequence %d differs", s);
    }
    close_scene(&scene);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client, keys and values");
    const TTest *const tests[] = {
        what_is_imported_is_gathered_bit_for_bit,
        whole_blocks_keep_their_bytes_through_an_arena_that_is_used_in_place,
        block_tensors_with_gaps_are_imported_by_their_outer_stride,
        rows_without_a_slot_are_left_out,
        copied_blocks_hold_the_same_and_count_as_written,
        zeroed_blocks_hold_zeroes_and_count_as_unwritten,
        fp8_blocks_round_to_even_saturate_and_keep_nan,
        int8_blocks_are_scaled_per_tensor_or_per_token_and_head,
        block_tensors_of_the_arena_give_the_bits_of_the_pool_and_take_new_tokens,
        two_halves_merged_by_their_lse_are_the_whole,
        rotation_in_the_kernel_is_rotation_before_it,
        interleaved_tokens_get_the_bits_of_grouped_ones,
        an_appended_token_is_written_and_attended_in_one_run,
        varlen_sequences_get_the_bits_of_each_alone,
        NULL};
    rig_share(suite, tests);
    return check_main(suite);
}
