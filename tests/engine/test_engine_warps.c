// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_engine_warps.c - the number of warps in a workgroup of decode, which must not change a bit:
// the rule, and rows of every kind with both sizes that emulated matrices have. With f16, four
// warps compute halves of a part; with bf16, two share each half, as on a GPU.

#include "rigs/dice.h"
#include "rigs/engine_world.h"
#include "shaders/layout.h"

#include <math.h>
#include <string.h>

enum { KEYS = 16, COLUMNS = 70, BLOCKS = 128, HEADS = 2, SEQS = 6, TOKENS = 9, MOST_DIM = 144 };
enum { Q = 0, OUT = 1 << 18, OTHER = 1 << 19 };

static const struct kind {
    enum dtype io, kv;
    uint32_t head_dim;
    bool token_scales, windowed;
} kinds[] = {
    {DTYPE_F16, DTYPE_F16, 16, false, false},
    {DTYPE_F16, DTYPE_F16, 136, false, true},
    {DTYPE_BF16, DTYPE_BF16, 144, false, false},
    {DTYPE_BF16, DTYPE_INT8, 32, true, true},
};
enum { NUM_KINDS = sizeof kinds / sizeof *kinds };

// Lengths at which units have odd and even numbers of tiles, and some have none.
static const int32_t q_lens[SEQS] = {1, 1, 4, 1, 1, 1},
                     kv_lens[SEQS] = {1100, 300, 700, 208, 5, 513};

static struct engine_cache *cache_;

static void setup_warps(void)
{
    engine = open_engine((struct engine_params){.variant = "matrix_emulated"});
    open_arena();
}

// 0.125 to 1, of either sign.
static void fill_numbers(struct dice *dice, enum dtype dtype, void *to, uint64_t count)
{
    uint32_t least = dtype == DTYPE_BF16 ? 0x3e00 : 0x3000,
             one = dtype == DTYPE_BF16 ? 0x3f80 : 0x3c00;
    for (uint64_t i = 0; i < count; i++) {
        if (dtype_size((int)dtype) == 1)
            ((uint8_t *)to)[i] =
                (uint8_t)(dice_below(dice, 0x70) | (dice_chance(dice, 50) ? 0x80 : 0));
        else
            ((uint16_t *)to)[i] = (uint16_t)(least + dice_below(dice, one - least) +
                                             (dice_chance(dice, 50) ? 0x8000 : 0));
    }
}

// Scales of all sizes from 2^-40 to 2^4; some tokens have none.
static void fill_scales(struct dice *dice, float *to, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        to[i] = dice_chance(dice, 10)
                    ? 0
                    : ldexpf(1 + (float)dice_below(dice, 8) / 8, (int)dice_below(dice, 44) - 40);
}

static void open_kind(const struct kind *kind)
{
    static char block[2 * KEYS * (MOST_DIM * 2 + sizeof(float))];
    struct dice dice = {.state = 4711};
    struct engine_cache_params params = shape(1, 1, kind->head_dim, kind->io);
    uint32_t elements = 2 * KEYS * kind->head_dim;
    params.kv.block_size = KEYS;
    params.kv.k_dtype = params.kv.v_dtype = kind->kv;
    params.kv.scale_mode = kind->token_scales ? SCALE_PER_TOKEN_HEAD : SCALE_NONE;
    params.chunk_blocks = BLOCKS;
    cache_ = open_cache(params);
    grow_chunk(cache_, 0);
    ck_assert_uint_le(engine_layer_block_bytes(&params), sizeof block);
    for (int32_t i = 0; i < BLOCKS; i++) {
        fill_numbers(&dice, kind->kv, block, elements);
        if (kind->token_scales)
            fill_scales(&dice, (float *)(void *)(block + elements * dtype_size((int)kind->kv)),
                        2 * KEYS);
        ck_assert_int_eq(engine_block_write(cache_, 0, i, block), STATUS_OK);
    }
    fill_numbers(&dice, kind->io, memory + Q, (uint64_t)TOKENS * HEADS * kind->head_dim);
}

static struct engine_batch *batch_of_kind(void)
{
    int32_t cu[SEQS + 1] = {0}, table[SEQS * COLUMNS];
    for (int32_t seq = 0; seq < SEQS; seq++) {
        cu[seq + 1] = cu[seq] + q_lens[seq];
        for (int32_t i = 0; i < COLUMNS; i++)
            table[seq * COLUMNS + i] = (i * 7 + seq) % BLOCKS;
    }
    ck_assert_int_eq(cu[SEQS], TOKENS);
    return open_batch((struct engine_batch_params){
        .cache = cache_,
        .num_seqs = SEQS,
        .max_blocks = COLUMNS,
        .num_tokens = TOKENS,
        .cu_seqlens_q = cu,
        .seq_lens_kv = kv_lens,
        .block_table = table,
    });
}

static struct engine_run run_of_kind(const struct kind *kind, struct engine_batch *batch,
                                     uint64_t out)
{
    return (struct engine_run){
        .batch = batch,
        .arena = arena,
        .num_heads = HEADS,
        .q = dense(Q, HEADS, kind->head_dim, kind->io),
        .out = dense(out, HEADS, kind->head_dim, kind->io),
        .scale = 1,
        .k_scale = 1,
        .v_scale = 1,
        .causal = true,
        .windowed = kind->windowed,
        .window_left = 391,
        .window_right = -1,
        .num_splits = 2,
    };
}

START_TEST(size_of_workgroups_follows_their_number)
{
    static const uint32_t narrow[SPEC_CONSTANTS] = {
        [AULE_SPEC_HEAD_DIM_K] = 128, [AULE_SPEC_HEAD_DIM_V] = 128};
    static const uint32_t wide[SPEC_CONSTANTS] = {
        [AULE_SPEC_HEAD_DIM_K] = 192, [AULE_SPEC_HEAD_DIM_V] = 128};
    const struct variant *variant = variant_at(0);
    const struct kernel *decode = variant->kernels[0], *emulated = &kernel_decode_emulated;
    ck_assert_uint_eq(emulated->local_size(narrow, 3001, 1000),
                      64); // a part by two or four warps, or half a part
    ck_assert_uint_eq(emulated->local_size(narrow, 3000, 1000), 128);
    ck_assert_uint_eq(emulated->local_size(narrow, 1000, 1000), 256);
    ck_assert_uint_eq(kernel_local_size(emulated, narrow, 1, 1000),
                      128); // the most that its shader supports
    ck_assert_uint_eq(kernel_local_size(emulated, wide, UINT64_MAX, 1000), 64);
    ck_assert_uint_eq(kernel_local_size(&kernel_plain, narrow, 1, 1000), 128);
    if (variant->num_kernels == 1) // built without tensor cores
        return;
    ck_assert_uint_eq(kernel_local_size(decode, narrow, 3001, 1000), 64);
    ck_assert_uint_eq(kernel_local_size(decode, wide, 3001, 1000),
                      128); // where others have two warps
    ck_assert_uint_eq(kernel_local_size(decode, wide, UINT64_MAX, 1000), 128);
    ck_assert_uint_eq(kernel_local_size(decode, wide, 1000, 1000), 256);
}
END_TEST

START_TEST(size_of_workgroups_changes_no_bit)
{
    static const uint32_t multiprocessors[] = {1, 1000};
    const struct kind *kind = &kinds[_i];
    open_kind(kind);
    struct engine_batch *batch = batch_of_kind();
    uint64_t bytes = (uint64_t)TOKENS * HEADS * kind->head_dim * 2;
    memset(memory + OUT, 0x55, bytes);
    for (uint32_t i = 0; i < 2; i++) {
        struct engine_run run = run_of_kind(kind, batch, i ? OTHER : OUT);
        uint32_t before = engine_num_pipelines(engine);
        engine->device.adapter.info.num_multiprocessors =
            multiprocessors[i]; // the submitter is idle
        expect_done(submit_runs(&run, 1));
        ck_assert_uint_gt(engine_num_pipelines(engine), before);
    }
    expect_bytes(memory + OTHER, memory + OUT, bytes, "in larger workgroups");
    engine_batch_destroy(batch);
    engine_cache_destroy(cache_);
}
END_TEST

void add_warp_tests(Suite *suite)
{
    TCase *tcase = tcase_create("warps");
    tcase_set_tags(tcase, "kernels");
    tcase_add_checked_fixture(tcase, setup_warps, teardown);
    tcase_add_test(tcase, size_of_workgroups_follows_their_number);
    check_loop(tcase, size_of_workgroups_changes_no_bit, NUM_KINDS);
    suite_add_tcase(suite, tcase);
}
