// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_engine_check.c - what the engine refuses before a shader sees it, although its caller checks
// all of it, too: a GPU that follows a wrong address is lost. Also scarce memory for partial
// results.

#include "engine/plan/cut.h"
#include "rigs/engine_world.h"

#include <inttypes.h>
#include <stdlib.h>
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

static void expect_status(const struct engine_run *run, enum status status, const char *sentence)
{
    struct error error = {0};
    ck_assert_int_eq(engine_run_check(engine, run, &error), status);
    ck_assert_msg(strstr(error.text, sentence) != NULL, "'%s' is not in: %s", sentence, error.text);
    uint64_t sequence = submit_runs(run, 1); // without a check before, a submission fails alone
    ck_assert_int_eq(engine_wait(engine, sequence, DEADLINE_S * 1000), STATUS_OK);
    struct engine_event event = expect_event(ENGINE_EVENT_DONE);
    ck_assert_int_eq(event.results[0].status, status);
    ck_assert_str_eq(event.results[0].message, error.text);
}

static void expect_refusal(const struct engine_run *run, const char *sentence)
{
    expect_status(run, STATUS_INVALID, sentence);
}

static void expect_fine(const struct engine_run *run)
{
    struct error error = {0};
    ck_assert_msg(engine_run_check(engine, run, &error) == STATUS_OK, "%s", error.text);
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

// ---- loops of a software device ----

enum { LOOP_KEYS = 32768 }; // of the kernel that serves f32

// The least and the most that may stand at a border.
static const int32_t LENGTHS[] = {1,    255,   256,   1024,  1025,  2048,    2049,     4096,
                                  4097, 32767, 32768, 32769, 65537, 1000000, 13421773, 134217728};
static const uint32_t ROWS[] = {1, 8, 9, 32, 64, 65, 5000};
static const uint32_t SPLITS[] = {0, 1, 2, 7, 100000};

// Each of Check's assertions is a message to the parent, and these are many: one for what is wrong.
static void expect_cut(const struct engine_batch *batch, const struct cutting *cutting)
{
    const struct variant *variant = engine->pipelines.variant;
    struct cut cut = cut_sequence(batch, 0, cutting);
    const struct kernel *kernel = variant->kernels[cut.kernel];
    uint64_t keys = (uint32_t)batch->seq_lens_kv[0];
    uint64_t part = cut.length && cut.length < keys ? cut.length : keys;
    bool whole = cutting->num_splits == 1, last = cut.kernel == variant->num_kernels - 1;
    bool refused = whole && last; // if there are too many keys
    if (cut.parts != (keys + part - 1) / part || (whole && cut.parts != 1) || cut.parts > 4096 ||
        (!refused && part > kernel->loop_keys(&batch->kv)))
        ck_abort_msg("%s, %s: %" PRIu64 " rows and %" PRIu64 " keys in %u splits are %" PRIu64
                     " parts of %" PRIu64,
                     variant->name, kernel->shader.name, cut.rows, keys, cutting->num_splits,
                     cut.parts, part);
}

// Any kernel may serve; `dim` is that of K and V.
static void expect_cuts(uint32_t dim, uint32_t rows, int32_t keys)
{
    struct engine_batch *batch = open_batch((struct engine_batch_params){
        .place = ENGINE_ROWS,
        .kv = {.num_kv_heads = 1,
               .head_dim_k = dim,
               .head_dim_v = dim,
               .k_dtype = DTYPE_F16,
               .v_dtype = DTYPE_F16},
        .num_seqs = 1,
        .num_tokens = rows,
        .cu_seqlens_q = (int32_t[]){0, (int32_t)rows},
        .seq_lens_kv = &keys,
    });
    for (size_t i = 0; i < sizeof SPLITS / sizeof *SPLITS; i++)
        for (uint32_t kernels = 0; kernels < engine->pipelines.variant->num_kernels; kernels++)
            expect_cut(batch, &(struct cutting){.group = 1,
                                                .num_splits = SPLITS[i],
                                                .serving = UINT32_MAX << kernels});
    engine_batch_destroy(batch);
}

START_TEST(a_software_device_gets_no_part_with_more_keys_than_its_loops_go_through)
{
    const struct variant *chosen = engine->pipelines.variant, *variant;
    engine->device.adapter.info.software = true;
    for (uint32_t i = 0; (variant = variant_at(i)); i++) {
        engine->pipelines.variant = variant;
        for (size_t rows = 0; rows < sizeof ROWS / sizeof *ROWS; rows++)
            for (size_t length = 0; length < sizeof LENGTHS / sizeof *LENGTHS; length++) {
                expect_cuts(8, ROWS[rows], LENGTHS[length]);
                expect_cuts(256, ROWS[rows], LENGTHS[length]);
            }
    }
    engine->pipelines.variant = chosen;
}
END_TEST

START_TEST(a_part_that_must_not_be_cut_is_refused_where_a_software_devices_loops_end)
{
    struct engine_batch *fits = rows_batch(LOOP_KEYS), *batch = rows_batch(LOOP_KEYS + 1);
    struct engine_run run = rows_run(fits, 256, 256);
    engine->device.adapter.info.software = true;
    run.num_splits = 1;
    expect_fine(&run);
    run = rows_run(batch, 256, 256);
    expect_fine(&run);
    run.num_splits = 2;
    expect_fine(&run);
    run.num_splits = 1;
    expect_status(&run, STATUS_LIMIT,
                  "sequence 0: 32769 keys in 1 parts; a part has 32768 keys at most");
    run.windowed = true; // no row goes through more keys than a window has
    run.window_left = 100;
    expect_fine(&run);
    run.window_left = -1;
    expect_status(&run, STATUS_LIMIT, "num_splits 1; 0 cuts as it must");
    engine->device.adapter.info.software = false;
    expect_fine(&run);
    engine_batch_destroy(fits);
    engine_batch_destroy(batch);
}
END_TEST

START_TEST(merges_and_heads_beyond_a_software_devices_loops_are_refused)
{
    struct engine_run merge = {
        .kind = ENGINE_MERGE, .arena = arena, .num_heads = 1, .num_tokens = 1, .head_dim = 1032};
    struct engine_batch *batch = open_batch((struct engine_batch_params){
        .place = ENGINE_ROWS,
        .kv = {.num_kv_heads = 4097,
               .head_dim_k = 8,
               .head_dim_v = 8,
               .k_dtype = DTYPE_F32,
               .v_dtype = DTYPE_F32},
        .num_seqs = 1,
        .num_tokens = 1,
        .cu_seqlens_q = (int32_t[]){0, 1},
        .seq_lens_kv = (int32_t[]){1},
    });
    struct engine_run heads = rows_run(batch, 256, 256);
    heads.num_heads = 4097;
    struct engine_part *parts = calloc(15001, sizeof *parts);
    merge.parts = parts;
    engine->device.adapter.info.software = true;
    expect_refusal(&merge, "a merge of 0 parts");
    merge.num_parts = 15000;
    expect_fine(&merge);
    merge.num_parts = 15001;
    expect_status(&merge, STATUS_LIMIT, "a merge of 15001 parts of 1032 dims");
    expect_status(&heads, STATUS_UNSUPPORTED, "4097 KV heads");
    engine_batch_destroy(batch);
    free(parts);
}
END_TEST

// Values of the plain cache's blocks 0 and 1: zeroes and ones. Keys are zeroes.
static void write_halves(struct engine_cache *cache)
{
    static const int64_t slots[2 * BLOCK] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    struct engine_batch *batch = open_batch((struct engine_batch_params){
        .cache = cache, .num_tokens = 2 * BLOCK, .slot_mapping = slots});
    struct engine_run run = plain_run(batch, 0, 0, 0, 4096, 8192);
    run.kind = ENGINE_WRITE;
    for (int i = 0; i < 2 * BLOCK * 8; i++)
        floats(4096)[i] = i < BLOCK * 8 ? 0 : 1;
    expect_done(submit_runs(&run, 1));
    engine_batch_destroy(batch);
}

// 65 rows, which no rule cuts, against 700,000 keys, all of which weigh alike: whoever stops early
// has another mean. Rounds that a workgroup of plain or subgroup would make: about 80,000.
START_TEST(rows_that_see_more_keys_than_one_loop_goes_through_see_all_of_them)
{
    enum { QUERIES = 65, COLUMNS = 87500 };
    struct engine_cache *cache = plain_cache();
    int32_t *table = calloc(COLUMNS, sizeof *table);
    for (int i = COLUMNS / 2; i < COLUMNS; i++)
        table[i] = 1;
    write_halves(cache);
    struct engine_batch *batch = open_batch((struct engine_batch_params){
        .cache = cache,
        .num_seqs = 1,
        .max_blocks = COLUMNS,
        .num_tokens = QUERIES,
        .cu_seqlens_q = (int32_t[]){0, QUERIES},
        .seq_lens_kv = (int32_t[]){COLUMNS * BLOCK},
        .block_table = table,
    });
    struct engine_run run = plain_run(batch, 0, 0, 0, 0, 16384);
    run.causal = false;
    expect_done(submit_runs(&run, 1));
    for (int i = 0; i < QUERIES * 8; i++)
        ck_assert_float_eq_tol(floats(16384)[i], 0.5f, 1e-4f);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
    free(table);
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
    tcase_add_test(tcase, a_software_device_gets_no_part_with_more_keys_than_its_loops_go_through);
    tcase_add_test(tcase,
                   a_part_that_must_not_be_cut_is_refused_where_a_software_devices_loops_end);
    tcase_add_test(tcase, merges_and_heads_beyond_a_software_devices_loops_are_refused);
    tcase_add_test(tcase, rows_that_see_more_keys_than_one_loop_goes_through_see_all_of_them);
    tcase_add_test(tcase, scratch_memory_grows_by_what_is_needed_where_twice_as_much_is_not_there);
    suite_add_tcase(suite, tcase);
}
