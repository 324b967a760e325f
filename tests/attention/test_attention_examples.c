// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_attention_examples.c - the worked examples of the documents that aule grew from, with their
// numbers, on the device.

#include "attention_suite.h"
#include "rigs/check_main.h"

#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

static struct attention_wish example_of(uint32_t num_seqs, const uint32_t *q_lens,
                                        const uint32_t *kv_lens)
{
    return (struct attention_wish){
        .shape = {.kv = {.head_dim_k = 64,
                         .num_kv_heads = 2,
                         .block_size = 32,
                         .k_dtype = DTYPE_F16,
                         .v_dtype = DTYPE_F16},
                  .group = 2,
                  .num_layers = 2,
                  .io_dtype = DTYPE_F16,
                  .causal = true,
                  .features = FEATURE_LSE},
        .num_seqs = num_seqs,
        .q_lens = q_lens,
        .kv_lens = kv_lens,
        .writes = WRITES_ALL,
    };
}

static void example_play(struct stage *stage, uint64_t kind, const struct attention_wish *wish)
{
    stage_set(stage, kind, wish);
    stage_play(stage);
    rig_blocks_check(&stage->rig, stage->cache, stage->problem, stage->problem->after);
    rig_check(&stage->rig, &stage->batch);
}

// cu_seqlens_q 0, 10, 13, 14 over caches of which the second has 3 tokens more, and the third 7.
START_TEST(three_sequences_of_10_3_and_1_queries_are_one_varlen_batch)
{
    struct stage stage;
    struct attention_wish wish = example_of(3, (uint32_t[]){10, 3, 1}, (uint32_t[]){10, 6, 8});
    example_play(&stage, 300, &wish);
    ck_assert_int_eq(stage.batch.cu_seqlens_q[3], 14);
    stage_clear(&stage);
}
END_TEST

// Contiguous keys at 0, 0, 1: the first sequence has none, so that its query gives zeros.
START_TEST(contiguous_keys_of_0_1_and_7_tokens_are_read_where_they_lie)
{
    struct stage stage;
    struct attention_wish wish = example_of(3, (uint32_t[]){1, 1, 1}, (uint32_t[]){0, 1, 7});
    wish.shape.place = ENGINE_ROWS;
    stage_set(&stage, 301, &wish);
    stage_play(&stage);
    rig_check(&stage.rig, &stage.batch);
    stage_clear(&stage);
}
END_TEST

// 30, 32 and 70 cached tokens and one new one each; the blocks are those of the document.
static const int32_t DECODE_TABLE[3][4] = {{2, -1, -1, -1}, {0, 1, -1, -1}, {3, 5, 6, -1}};
static const uint32_t DECODE_Q_LENS[3] = {1, 1, 1}, DECODE_KV_LENS[3] = {31, 33, 71};

START_TEST(a_decode_appends_in_place_and_attends_the_new_token)
{
    struct stage stage;
    struct attention_wish wish = example_of(3, DECODE_Q_LENS, DECODE_KV_LENS);
    wish.table = DECODE_TABLE[0], wish.table_columns = 4;
    example_play(&stage, 302, &wish);
    ck_assert_int_eq((int)stage.batch.slot_mapping[0], 2 * 32 + 30);
    ck_assert_int_eq((int)stage.batch.slot_mapping[1], 1 * 32 + 0);
    ck_assert_int_eq((int)stage.batch.slot_mapping[2], 6 * 32 + 6);
    stage_clear(&stage);
}
END_TEST

// Tables whose unused entries are 0, a block that belongs to another sequence.
START_TEST(a_table_padded_with_zeros_reads_only_its_own_blocks)
{
    struct stage stage;
    struct attention_wish wish = example_of(3, DECODE_Q_LENS, DECODE_KV_LENS);
    wish.table = DECODE_TABLE[0], wish.table_columns = 4;
    stage_set(&stage, 303, &wish);
    stage_play(&stage);
    for (uint32_t i = 0; i < 3 * stage.batch.max_blocks; i++)
        if (i % stage.batch.max_blocks >=
            stage.problem->seqs[i / stage.batch.max_blocks].num_blocks)
            stage.batch.block_table[i] = 0;
    stage_replay(&stage);
    rig_blocks_check(&stage.rig, stage.cache, stage.problem, stage.problem->after);
    rig_check(&stage.rig, &stage.batch);
    stage_clear(&stage);
}
END_TEST

// 109 tokens, no padding; then the same prompts' next tokens.
START_TEST(prompts_of_36_37_and_36_tokens_are_one_batch_of_109)
{
    struct stage stage;
    struct attention_wish wish = example_of(3, (uint32_t[]){36, 37, 36}, (uint32_t[]){36, 37, 36});
    wish.shape.kv.block_size = 16;
    example_play(&stage, 304, &wish);
    ck_assert_uint_eq(stage.batch.num_tokens, 109);
    stage_clear(&stage);
}
END_TEST

// A prefill, a chunk of one behind its prefix, and decodes, as a scheduler mixes them.
START_TEST(prefills_chunks_and_decodes_share_a_batch)
{
    struct stage stage;
    struct attention_wish wish =
        example_of(5, (uint32_t[]){40, 16, 1, 1, 1}, (uint32_t[]){40, 112, 1, 64, 200});
    wish.shape.io_dtype = wish.shape.kv.k_dtype = wish.shape.kv.v_dtype =
        _i ? DTYPE_BF16 : DTYPE_F16;
    example_play(&stage, 305, &wish);
    stage_clear(&stage);
}
END_TEST

// 1024, 2048 and 4096 keys in one batch, from the pool and from contiguous rows: one and the same
// within the dtype's bound.
START_TEST(a_batch_of_1024_2048_and_4096_agrees_in_every_place)
{
    struct stage stage;
    struct attention_wish wish =
        example_of(3, (uint32_t[]){2, 2, 2}, (uint32_t[]){1024, 2048, 4096});
    wish.shape.place = _i;
    wish.shape.chunk_blocks = 128;
    wish.writes = WRITES_NONE;
    stage_set(&stage, 306, &wish);
    stage_play(&stage);
    rig_check(&stage.rig, &stage.batch);
    stage_clear(&stage);
}
END_TEST

void suite_add_examples(Suite *suite)
{
    TCase *examples = suite_part(suite, "worked examples");
    tcase_add_test(examples, three_sequences_of_10_3_and_1_queries_are_one_varlen_batch);
    tcase_add_test(examples, contiguous_keys_of_0_1_and_7_tokens_are_read_where_they_lie);
    tcase_add_test(examples, a_decode_appends_in_place_and_attends_the_new_token);
    tcase_add_test(examples, a_table_padded_with_zeros_reads_only_its_own_blocks);
    tcase_add_test(examples, prompts_of_36_37_and_36_tokens_are_one_batch_of_109);
    check_loop(examples, prefills_chunks_and_decodes_share_a_batch, 2);
    check_loop(examples, a_batch_of_1024_2048_and_4096_agrees_in_every_place, 3);
}
