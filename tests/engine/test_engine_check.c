// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_engine_check.c - what the engine refuses before a shader sees it, although its caller checks
// all of it, too: a GPU that follows a wrong address is lost. Also scarce memory for partial
// results.

#include "rigs/engine_world.h"

#include <string.h>

// One query over keys in contiguous rows, without kv_starts.
static struct engine_batch *rows_batch(int32_t num_keys)
{
    return open_batch((struct engine_batch_params){
        .place = ENGINE_ROWS,
        .kv = {.num_kv_heads = 2,
               .head_dim_k = 8,
               .head_dim_v = 8,
               .k_dtype = DTYPE_F32,
               .v_dtype = DTYPE_F32},
        .num_seqs = 1,
        .num_tokens = 1,
        .cu_seqlens_q = (int32_t[]){0, 1},
        .seq_lens_kv = &num_keys,
    });
}

static struct engine_run rows_run(struct engine_batch *batch, uint64_t keys_outer,
                                  uint64_t values_outer)
{
    struct engine_run run = plain_run(batch, 0, 0, 0, 0, 4096);
    run.num_heads = 2;
    run.keys = dense(8192, 2, 8, DTYPE_F32);
    run.values = dense(16384, 2, 8, DTYPE_F32);
    run.keys.outer_stride = keys_outer;
    run.values.outer_stride = values_outer;
    return run;
}

static void expect_refusal(const struct engine_run *run, const char *sentence)
{
    struct error error = {0};
    ck_assert_int_eq(engine_run_check(engine, run, &error), STATUS_INVALID);
    ck_assert_msg(strstr(error.text, sentence) != NULL, "'%s' is not in: %s", sentence, error.text);
    uint64_t sequence = submit_runs(run, 1); // without a check before, a submission fails alone
    ck_assert_int_eq(engine_wait(engine, sequence, DEADLINE_S * 1000), STATUS_OK);
    struct engine_event event = expect_event(ENGINE_EVENT_DONE);
    ck_assert_int_eq(event.results[0].status, STATUS_INVALID);
    ck_assert_str_eq(event.results[0].message, error.text);
}

START_TEST(keys_in_blocks_without_a_table_are_refused)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = open_batch((struct engine_batch_params){
        .cache = cache,
        .num_seqs = 1,
        .num_tokens = 1,
        .cu_seqlens_q = (int32_t[]){0, 1},
        .seq_lens_kv = (int32_t[]){3},
    });
    struct engine_run run = plain_run(batch, 0, 0, 0, 0, 4096);
    expect_refusal(&run, "3 keys of 1 sequences lie in blocks");
    run.kind = ENGINE_GATHER;
    expect_refusal(&run, "no block table");
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(contiguous_keys_that_begin_nowhere_are_refused)
{
    struct engine_batch *batch = rows_batch(3), *keyless = rows_batch(0);
    struct engine_run run = rows_run(batch, 0, 0);
    struct error error = {0};
    expect_refusal(&run, "the batch of 1 sequences needs kv_starts");
    run = rows_run(batch, 256, 0); // the limit of K alone is not enough
    expect_refusal(&run, "outer strides of 256 and 0 bytes");
    run = rows_run(batch, 256, 256);
    ck_assert_int_eq(engine_run_check(engine, &run, &error), STATUS_OK);
    run = rows_run(keyless, 0, 0);
    ck_assert_int_eq(engine_run_check(engine, &run, &error), STATUS_OK);
    engine_batch_destroy(batch);
    engine_batch_destroy(keyless);
}
END_TEST

START_TEST(heads_that_do_not_share_the_kv_heads_are_refused)
{
    struct engine_batch *batch = rows_batch(3);
    struct engine_run run = rows_run(batch, 256, 256);
    run.num_heads = 0;
    expect_refusal(&run, "0 heads: a multiple of the 2 KV heads is wanted");
    run.num_heads = 3;
    expect_refusal(&run, "3 heads");
    engine_batch_destroy(batch);
}
END_TEST

START_TEST(scratch_memory_grows_by_what_is_needed_where_twice_as_much_is_not_there)
{
    struct slot *slot = &engine->slots[0]; // nothing was submitted
    struct error error = {0};
    uint64_t *most = &engine->device.adapter.info.max_allocation_bytes, before = *most;
    ck_assert_int_eq(slot_reserve_scratch(engine, slot, 1000, &error), STATUS_OK);
    ck_assert_int_eq(slot_reserve_scratch(engine, slot, 1200, &error), STATUS_OK);
    ck_assert_uint_eq(slot->scratch.size, 2000);
    *most = 3000;
    ck_assert_int_eq(slot_reserve_scratch(engine, slot, 2500, &error), STATUS_OK);
    ck_assert_uint_eq(slot->scratch.size, 2500);
    ck_assert_int_eq(slot_reserve_scratch(engine, slot, 3001, &error), STATUS_LIMIT);
    ck_assert_msg(strstr(error.text, "3001 bytes exceed") != NULL, "%s", error.text);
    *most = before;
}
END_TEST

void add_check_tests(Suite *suite)
{
    TCase *tcase = tcase_create("checks");
    tcase_add_checked_fixture(tcase, setup_import, teardown);
    tcase_add_test(tcase, keys_in_blocks_without_a_table_are_refused);
    tcase_add_test(tcase, contiguous_keys_that_begin_nowhere_are_refused);
    tcase_add_test(tcase, heads_that_do_not_share_the_kv_heads_are_refused);
    tcase_add_test(tcase, scratch_memory_grows_by_what_is_needed_where_twice_as_much_is_not_there);
    suite_add_tcase(suite, tcase);
}
