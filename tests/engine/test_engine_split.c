// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_engine_split.c - keys that are split and merged again: which sequences are split, the memory
// of their partial results, and that a row's bits do not depend on its neighbours. Then the table
// of attention variants.

#include "engine/plan/plan.h"
#include "rigs/engine_world.h"

#include <math.h>
#include <string.h>

enum {
    MOST_KEYS = 5000,
    SPLIT_BLOCK = 256,
    NUM_BLOCKS = 4 * ((MOST_KEYS + SPLIT_BLOCK - 1) / SPLIT_BLOCK)
};

enum { LITTLE_SCRATCH = 2048 }; // bytes: six partial results
// A head dim whose tiles have 4 rows instead of 8, and memory for two of its partial results or
// three of the others, not for both.
enum { WIDE = 288, WIDE_OUT = 524288, EITHER_SCRATCH = 2 * 4 * (WIDE + 2) * 4 + 256 };

static struct engine_cache *cache_; // one layer, one KV head of 8 f32, filled with noise

static uint32_t noise_state = 4711;

static float noise(void)
{
    noise_state = noise_state * 1664525u + 1013904223u;
    return (float)(noise_state >> 8) / (float)(1 << 24) - 0.5f;
}

static void fill_cache(void)
{
    struct engine_cache_params params = shape(1, 1, 8, DTYPE_F32);
    params.kv.block_size = SPLIT_BLOCK;
    params.chunk_blocks = 128;
    cache_ = open_cache(params);
    grow_chunk(cache_, 0);
    float values[2 * SPLIT_BLOCK * 8];
    for (int32_t block = 0; block < NUM_BLOCKS; block++) {
        for (size_t i = 0; i < sizeof values / sizeof *values; i++)
            values[i] = noise();
        ck_assert_int_eq(engine_block_write(cache_, 0, block, values), STATUS_OK);
    }
    for (int i = 0; i < 4096; i++)
        floats(0)[i] = 8 * noise();
}

static struct engine_cache *wide_cache(void)
{
    static float values[2 * SPLIT_BLOCK * WIDE];
    struct engine_cache_params params = shape(1, 1, WIDE, DTYPE_F32);
    params.kv.block_size = SPLIT_BLOCK;
    params.chunk_blocks = 2;
    struct engine_cache *cache = open_cache(params);
    grow_chunk(cache, 0);
    for (int32_t block = 0; block < 2; block++) {
        for (size_t i = 0; i < sizeof values / sizeof *values; i++)
            values[i] = noise();
        ck_assert_int_eq(engine_block_write(cache, 0, block, values), STATUS_OK);
    }
    return cache;
}

static void setup_split(void)
{
    setup_import();
    fill_cache();
}

static void open_with_scratch(uint64_t bytes)
{
    engine = open_engine((struct engine_params){.max_scratch_bytes = bytes});
    open_arena();
    fill_cache();
}

static void setup_little_scratch(void)
{
    open_with_scratch(LITTLE_SCRATCH);
}

static void setup_either_scratch(void)
{
    open_with_scratch(EITHER_SCRATCH);
}

static void teardown_split(void)
{
    engine_cache_destroy(cache_);
    teardown();
}

// Sequence s has q_lens[s] queries and kv_lens[s] keys, in its own blocks from 4 * s on.
static struct engine_batch *split_batch(const int32_t *q_lens, const int32_t *kv_lens,
                                        uint32_t num_seqs)
{
    enum { COLUMNS = (MOST_KEYS + SPLIT_BLOCK - 1) / SPLIT_BLOCK };
    int32_t cu[9] = {0}, table[8 * COLUMNS];
    for (uint32_t seq = 0; seq < num_seqs; seq++) {
        cu[seq + 1] = cu[seq] + q_lens[seq];
        for (int32_t i = 0; i < COLUMNS; i++)
            table[seq * COLUMNS + (uint32_t)i] = (kv_lens[seq] % 4 * COLUMNS + i * 7) % NUM_BLOCKS;
    }
    return open_batch((struct engine_batch_params){
        .cache = cache_,
        .num_seqs = num_seqs,
        .max_blocks = COLUMNS,
        .num_tokens = (uint32_t)cu[num_seqs],
        .cu_seqlens_q = cu,
        .seq_lens_kv = kv_lens,
        .block_table = table,
    });
}

static struct engine_run split_run(struct engine_batch *batch, uint32_t num_splits, uint64_t out)
{
    struct engine_run run = plain_run(batch, 0, 0, 0, 0, out);
    run.num_heads = 2;
    run.q = dense(0, 2, 8, DTYPE_F32);
    run.out = dense(out, 2, 8, DTYPE_F32);
    run.num_splits = num_splits;
    run.lse = (struct wire_tensor){.offset = out + 16384, .token_stride = 8, .dtype = DTYPE_F32};
    return run;
}

static void expect_near(uint64_t got, uint64_t wanted, int count)
{
    for (int i = 0; i < count; i++) {
        float a = floats(got)[i], b = floats(wanted)[i];
        ck_assert_msg(a == b || fabsf(a - b) < 1e-5f, "float %d is %g, not %g", i, (double)a,
                      (double)b); // -inf too
    }
}

START_TEST(splits_give_what_one_pass_gives)
{
    static const uint32_t splits[] = {0, 2, 3, 8, 1000};
    struct engine_batch *batch =
        split_batch((int32_t[]){1, 5, 0, 3}, (int32_t[]){5000, 4999, 17, 2}, 4);
    struct engine_run run = split_run(batch, 1, 65536);
    expect_done(submit_runs(&run, 1));
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        run = split_run(batch, splits[i], 131072);
        memset(memory + 131072, 0x55, 32768);
        expect_done(submit_runs(&run, 1));
        expect_near(131072, 65536, 9 * 16);
        expect_near(131072 + 16384, 65536 + 16384, 9 * 2);
    }
    engine_batch_destroy(batch);
}
END_TEST

// Whether a run's sequences of few rows and those of more go to different kernels.
static bool rows_part(void)
{
    const char *variant = engine_variant(engine);
    return strcmp(variant, "hopper") == 0 || strcmp(variant, "matrix") == 0 ||
           strcmp(variant, "matrix_f16") == 0;
}

START_TEST(features_survive_the_splits)
{
    struct engine_batch *batch = split_batch((int32_t[]){3, 2}, (int32_t[]){5000, 2500}, 2);
    const float slopes[2] = {0.01f, 0.5f}, sinks[2] = {1, -2};
    struct engine_run runs[2] = {split_run(batch, 1, 65536), split_run(batch, 4, 131072)};
    for (int i = 0; i < 2; i++) {
        runs[i].slopes = slopes;
        runs[i].sinks = sinks;
        runs[i].soft_cap = 3;
        runs[i].windowed = true;
        runs[i].window_left = 3000;
        runs[i].window_right = -1;
        runs[i].rope = (struct engine_rope){.dim = 8, .theta = 10000};
    }
    struct engine_event event = expect_done(submit_runs(runs, 2));
    ck_assert_uint_eq(event.num_dispatches, rows_part() ? 4 : 2);
    expect_near(131072, 65536, 5 * 16);
    expect_near(131072 + 16384, 65536 + 16384, 5 * 2);
    engine_batch_destroy(batch);
}
END_TEST

// Sequence B has the same bits alone, behind A, with A in another run of the dispatch, and with
// little scratch memory.
START_TEST(split_rows_keep_their_bits_in_any_company)
{
    struct engine_batch *alone = split_batch((int32_t[]){2}, (int32_t[]){4500}, 1);
    struct engine_batch *both = split_batch((int32_t[]){1, 2}, (int32_t[]){5000, 4500}, 2);
    struct engine_batch *large = split_batch((int32_t[]){1, 1}, (int32_t[]){5000, 3000}, 2);
    for (uint32_t num_splits = 0; num_splits < 4; num_splits++) {
        struct engine_run run = split_run(alone, num_splits, 65536);
        expect_done(submit_runs(&run, 1));
        struct engine_run runs[3] = {split_run(large, num_splits, 524288),
                                     split_run(alone, num_splits, 262144),
                                     split_run(both, num_splits, 131072)};
        runs[2].q.offset = 4096;
        memcpy(memory + 4096 + 64, memory, 128); // the queries of sequence B are behind A's
        struct engine_event event = expect_done(submit_runs(runs, 3));
        bool one = num_splits == 1 || engine->max_scratch_bytes > LITTLE_SCRATCH;
        if (!rows_part())
            ck_assert_int_eq(event.num_dispatches == 1, one);
        expect_bytes(memory + 131072 + 64, memory + 65536, 128, "behind another");
        expect_bytes(memory + 262144, memory + 65536, 128, "in a dispatch with others");
    }
    engine_batch_destroy(alone);
    engine_batch_destroy(both);
    engine_batch_destroy(large);
}
END_TEST

// Runs with more rows a tile are recorded first, but never before the run whose scratch memory they
// reuse.
START_TEST(tiles_of_many_rows_wait_for_the_scratch_memory_that_those_of_few_rows_have)
{
    static const int32_t cu[] = {0, 1}, lens[] = {9 * SPLIT_BLOCK},
                         table[] = {0, 1, 0, 1, 1, 0, 0, 1, 0};
    struct engine_cache *wide = wide_cache();
    struct engine_batch *few = open_batch((struct engine_batch_params){.cache = wide,
                                                                       .num_seqs = 1,
                                                                       .max_blocks = 9,
                                                                       .num_tokens = 1,
                                                                       .cu_seqlens_q = cu,
                                                                       .seq_lens_kv = lens,
                                                                       .block_table = table});
    struct engine_batch *many = split_batch((int32_t[]){2}, (int32_t[]){5000}, 1);
    struct engine_run runs[2] = {plain_run(few, 0, 0, 0, 0, WIDE_OUT), split_run(many, 3, 65536)};
    runs[0].q = dense(0, 1, WIDE, DTYPE_F32);
    runs[0].out = dense(WIDE_OUT, 1, WIDE, DTYPE_F32);
    runs[0].num_splits = 2;
    for (int i = 0; i < 2; i++)
        expect_done(submit_runs(runs + i, 1));
    memcpy(memory + 131072, memory + 65536, 128);
    memcpy(memory + WIDE_OUT + 16384, memory + WIDE_OUT, sizeof(float[WIDE]));
    memset(memory + 65536, 0x55, 128);
    memset(memory + WIDE_OUT, 0x55, sizeof(float[WIDE]));
    ck_assert_uint_eq(expect_done(submit_runs(runs, 2)).num_dispatches, 2);
    expect_bytes(memory + 65536, memory + 131072, 128, "tiles of 8 rows");
    expect_bytes(memory + WIDE_OUT, memory + WIDE_OUT + 16384, sizeof(float[WIDE]),
                 "tiles of 4 rows");
    engine_batch_destroy(few);
    engine_batch_destroy(many);
    engine_cache_destroy(wide);
}
END_TEST

// ---- slices ----

enum { SLICES = 9, SLICED_OUT = 131072 };

static struct engine_event run_slice(const struct engine_run *whole, uint32_t slice)
{
    struct engine_run run = *whole;
    run.out.offset = SLICED_OUT;
    run.slice = slice;
    run.num_slices = SLICES;
    const uint64_t sequence = submit_runs(&run, 1);
    ck_assert_int_eq(engine_wait(engine, sequence, DEADLINE_S * 1000), STATUS_OK);
    return expect_event(ENGINE_EVENT_DONE);
}

static void expect_sliced(const struct engine_run *whole)
{
    memset(memory + SLICED_OUT, 0x55, 128);
    for (uint32_t slice = 0; slice < SLICES; slice++)
        ck_assert_int_eq(run_slice(whole, slice).results[0].status, STATUS_OK);
    expect_bytes(memory + SLICED_OUT, memory + 65536, 128, "the slices' rows");
}

// One tile of seven parts, and one key.
START_TEST(a_tile_that_is_cut_between_its_parts_keeps_its_bits)
{
    struct engine_batch *batch = split_batch((int32_t[]){2, 1}, (int32_t[]){5000, 1}, 2);
    struct engine_run whole = split_run(batch, 8, 65536);
    const struct lists *lists = &batch->lists;
    expect_done(submit_runs(&whole, 1));
    expect_sliced(&whole);
    ck_assert_ptr_nonnull(lists->items->kept_total); // it was cut
    expect_sliced(&whole);                           // the next layer
    for (uint32_t slice = 0; slice < 3; slice++)     // and one that ends amid the tile
        run_slice(&whole, slice);
    expect_sliced(&whole);
    engine_batch_destroy(batch);
    AWAIT(DEADLINE_S, atomic_load(&engine->kept_bytes) == 0);
}
END_TEST

START_TEST(without_memory_for_its_parts_a_tile_stays_in_one_slice)
{
    struct engine_batch *batch = split_batch((int32_t[]){2, 1}, (int32_t[]){5000, 1}, 2);
    struct engine_run whole = split_run(batch, 8, 65536);
    expect_done(submit_runs(&whole, 1));
    atomic_store(&engine->kept_bytes, engine->max_scratch_bytes);
    expect_sliced(&whole);
    ck_assert_ptr_null(batch->lists.items->kept_total);
    atomic_store(&engine->kept_bytes, 0);
    engine_batch_destroy(batch);
}
END_TEST

START_TEST(a_slice_whose_earlier_parts_are_missing_fails)
{
    struct engine_batch *batch = split_batch((int32_t[]){2, 1}, (int32_t[]){5000, 1}, 2);
    struct engine_run whole = split_run(batch, 8, 65536);
    const struct engine_event event = run_slice(&whole, 2);
    ck_assert_int_eq(event.results[0].status, STATUS_INTERNAL);
    ck_assert_ptr_nonnull(strstr(event.results[0].message, "slice 2 of 9"));
    engine_batch_destroy(batch);
}
END_TEST

// So a kernel that the device refuses is refused before the layer's lists are in use.
START_TEST(the_first_slice_has_work_for_every_kernel_of_its_layer)
{
    struct engine_batch *batch = split_batch((int32_t[]){2, 64}, (int32_t[]){5000, 3000}, 2);
    const struct engine_run whole = split_run(batch, 8, 65536);
    struct work works[MOST_KERNELS];
    struct error error = {0};
    uint32_t num_kernels = 0;
    run_slice(&whole, 0);
    const struct items *items = batch->lists.items;
    // the submitter is idle
    ck_assert_int_eq(batch_slice(batch, &items->cutting, 0, items->last_sequence, works, &error),
                     STATUS_OK);
    for (uint32_t i = 0; i < engine->pipelines.variant->num_kernels; i++) {
        ck_assert_int_eq(works[i].num_items > 0, items->works[i].num_items > 0);
        num_kernels += works[i].num_items > 0;
    }
    ck_assert_uint_ge(num_kernels, 1);
    engine_batch_destroy(batch);
}
END_TEST

// Slice 7 is planned, then it fails, while slice 8 is on its way.
START_TEST(a_slice_that_fails_behind_its_plan_leaves_no_counters_to_the_next_layer)
{
    struct engine_batch *batch = split_batch((int32_t[]){2, 1}, (int32_t[]){5000, 1}, 2);
    struct engine_run whole = split_run(batch, 8, 65536), slice = whole;
    struct work works[MOST_KERNELS];
    struct error error = {0};
    expect_done(submit_runs(&whole, 1));
    for (uint32_t i = 0; i < 7; i++)
        run_slice(&whole, i);
    const struct items *items = batch->lists.items;
    ck_assert_ptr_nonnull(items->kept_total);
    // the submitter is idle
    ck_assert_int_eq(batch_slice(batch, &items->cutting, 7, items->last_sequence, works, &error),
                     STATUS_OK);
    slice.num_slices = SLICES;
    plan_break_slices(&slice);
    const enum status status = run_slice(&whole, 8).results[0].status;
    expect_sliced(&whole);
    expect_sliced(&whole);
    ck_assert_ptr_ne(batch->lists.items, items);
    ck_assert_int_eq(status, STATUS_INTERNAL);
    engine_batch_destroy(batch);
}
END_TEST

// Another run of the submission wants scratch memory, and there is none.
START_TEST(a_slice_of_one_tile_needs_no_scratch_memory)
{
    struct engine_batch *batch = split_batch((int32_t[]){2, 1}, (int32_t[]){5000, 1}, 2);
    struct engine_batch *other = split_batch((int32_t[]){2}, (int32_t[]){5000}, 1);
    struct engine_run runs[2] = {split_run(batch, 8, 65536), split_run(other, 2, 131072)};
    struct error error = {0};
    struct work works[MOST_KERNELS];
    const struct cutting cutting = cutting_of_run(&runs[1]);
    for (uint32_t i = 0; i < 7; i++)
        run_slice(&runs[0], i);
    ck_assert_ptr_nonnull(batch->lists.items->kept_total);
    // the submitter is idle
    ck_assert_int_eq(batch_work(other, &cutting, 1, works, &error), STATUS_OK);
    const uint64_t most = engine->device.adapter.info.max_allocation_bytes;
    engine->device.adapter.info.max_allocation_bytes = 1;
    runs[0].slice = 7;
    runs[0].num_slices = SLICES;
    const uint64_t sequence = submit_runs(runs, 2);
    ck_assert_int_eq(engine_wait(engine, sequence, DEADLINE_S * 1000), STATUS_OK);
    engine->device.adapter.info.max_allocation_bytes = most;
    const struct engine_event event = expect_event(ENGINE_EVENT_DONE);
    ck_assert_int_eq(event.results[0].status, STATUS_OK);
    ck_assert_int_eq(event.results[1].status, STATUS_LIMIT);
    engine_batch_destroy(batch);
    engine_batch_destroy(other);
}
END_TEST

static uint64_t partials(struct engine_batch *batch, uint32_t num_splits)
{
    struct engine_run run = split_run(batch, num_splits, 0);
    struct cutting cutting = cutting_of_run(&run);
    return batch_partials(batch, &cutting).count;
}

START_TEST(sequences_are_cut_by_their_own_lengths_alone)
{
    // 33 queries of 2 heads are 66 rows: too many to be split by default.
    struct engine_batch *many = split_batch((int32_t[]){33}, (int32_t[]){5000}, 1);
    struct engine_batch *few = split_batch((int32_t[]){32}, (int32_t[]){5000}, 1);
    struct engine_batch *near = split_batch((int32_t[]){1}, (int32_t[]){2048}, 1);
    struct engine_batch *over = split_batch((int32_t[]){1}, (int32_t[]){2049}, 1);
    ck_assert_uint_eq(partials(many, 0), 0);
    ck_assert_uint_eq(partials(many, 1), 0);
    ck_assert_uint_eq(partials(many, 2), 9 * 2); // tiles of 8 rows
    ck_assert_uint_eq(partials(few, 0), 8 * 3);
    ck_assert_uint_eq(partials(near, 0), 0);
    ck_assert_uint_eq(partials(over, 0), 2);
    ck_assert_uint_eq(partials(near, 1000), 8); // no part has fewer than 256 keys
    ck_assert_uint_eq(partials(over, 3), 3);    // of 768 keys
    ck_assert_uint_eq(partials(over, 4), 3);    // 513 keys become 768
    engine_batch_destroy(many);
    engine_batch_destroy(few);
    engine_batch_destroy(near);
    engine_batch_destroy(over);
}
END_TEST

START_TEST(padding_rows_are_not_split)
{
    struct engine_batch *batch = open_batch((struct engine_batch_params){
        .cache = cache_,
        .num_seqs = 1,
        .max_blocks = 20,
        .num_tokens = 40,
        .cu_seqlens_q = (int32_t[]){0, 40},
        .seq_lens_kv = (int32_t[]){5000},
        .q_lens = (int32_t[]){2},
        .block_table =
            (int32_t[]){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19},
    });
    ck_assert_uint_eq(partials(batch, 0), 3); // one tile has queries
    struct engine_run run = split_run(batch, 0, 65536);
    memset(memory + 65536, 0x55, 40 * 64);
    expect_done(submit_runs(&run, 1));
    ck_assert_float_ne(floats(65536)[0], 0);
    for (int i = 2 * 16; i < 40 * 16; i++)
        ck_assert_float_eq(floats(65536)[i], 0);
    engine_batch_destroy(batch);
}
END_TEST

START_TEST(run_that_needs_more_scratch_than_there_is_names_the_option)
{
    struct engine_batch *batch = split_batch((int32_t[]){32}, (int32_t[]){5000}, 1);
    struct engine_run runs[2] = {split_run(batch, 0, 65536), split_run(batch, 1, 131072)};
    struct error error = {0};
    ck_assert_int_eq(engine_run_check(engine, &runs[0], &error), STATUS_LIMIT);
    ck_assert_msg(strstr(error.text, "24 splits take 7680 bytes; --max-scratch allows 2048") !=
                      NULL,
                  "%s", error.text);
    // the refusal is remembered
    ck_assert_int_eq(engine_run_check(engine, &runs[0], &error), STATUS_LIMIT);
    ck_assert_int_eq(engine_run_check(engine, &runs[1], &error), STATUS_OK);
    uint64_t sequence = submit_runs(runs, 2); // without asking first, only the submission fails
    ck_assert_int_eq(engine_wait(engine, sequence, DEADLINE_S * 1000), STATUS_OK);
    struct engine_event event = expect_event(ENGINE_EVENT_DONE);
    ck_assert_int_eq(event.results[0].status, STATUS_LIMIT);
    ck_assert_int_eq(event.results[1].status, STATUS_OK);
    engine_batch_destroy(batch);
}
END_TEST

START_TEST(split_run_without_memory_fails_alone)
{
    struct engine_batch *batch = split_batch((int32_t[]){2}, (int32_t[]){5000}, 1);
    struct engine_run runs[2] = {split_run(batch, 2, 65536), split_run(batch, 1, 131072)};
    struct engine_run warm[2] = {split_run(batch, 1, 65536), split_run(batch, 1, 131072)};
    expect_done(submit_runs(warm, 2)); // everything except the scratch memory exists
    batch->checked = false;
    uint64_t most = engine->device.adapter.info.max_allocation_bytes;
    struct error error = {0};
    struct work works[MOST_KERNELS];
    struct cutting cutting = cutting_of_run(&runs[0]);
    ck_assert_int_eq(batch_work(batch, &cutting, 1, works, &error),
                     STATUS_OK); // the submitter is idle
    engine->device.adapter.info.max_allocation_bytes = 1;
    uint64_t sequence = submit_runs(runs, 2);
    ck_assert_int_eq(engine_wait(engine, sequence, DEADLINE_S * 1000), STATUS_OK);
    engine->device.adapter.info.max_allocation_bytes = most;
    struct engine_event event = expect_event(ENGINE_EVENT_DONE);
    ck_assert_int_eq(event.results[0].status, STATUS_LIMIT);
    ck_assert_int_eq(event.results[1].status, STATUS_OK);
    expect_done(submit_runs(runs, 2));
    expect_near(65536, 131072, 2 * 16);
    engine_batch_destroy(batch);
}
END_TEST

// One pipeline serves a sequence alone and beside a split one.
START_TEST(runs_that_are_cut_and_runs_that_are_not_share_a_dispatch)
{
    struct engine_batch *whole = split_batch((int32_t[]){2}, (int32_t[]){2000}, 1);
    struct engine_batch *cut = split_batch((int32_t[]){2}, (int32_t[]){5000}, 1);
    struct engine_run runs[2] = {split_run(whole, 0, 65536), split_run(cut, 0, 131072)};
    struct error error = {0};
    struct work works[MOST_KERNELS];
    struct cutting cutting = cutting_of_run(&runs[1]);
    expect_done(submit_runs(runs, 1));
    memcpy(memory + 196608, memory + 65536, 128);
    memset(memory + 65536, 0x55, 128);
    // the submitter is idle
    ck_assert_int_eq(batch_work(cut, &cutting, 1, works, &error), STATUS_OK);
    uint64_t most = engine->device.adapter.info.max_allocation_bytes;
    engine->device.adapter.info.max_allocation_bytes = 1;
    uint64_t sequence = submit_runs(runs, 2);
    ck_assert_int_eq(engine_wait(engine, sequence, DEADLINE_S * 1000), STATUS_OK);
    engine->device.adapter.info.max_allocation_bytes = most;
    struct engine_event event = expect_event(ENGINE_EVENT_DONE);
    ck_assert_int_eq(event.results[0].status, STATUS_OK);
    ck_assert_int_eq(event.results[1].status, STATUS_LIMIT);
    ck_assert_ptr_null(event.results[0].message);
    ck_assert_ptr_nonnull(event.results[1].message);
    ck_assert_msg(strstr(event.results[1].message,
                         "bytes exceed the device's largest allocation of 1 bytes") != NULL,
                  "%s", event.results[1].message);
    expect_bytes(memory + 65536, memory + 196608, 128, "beside one that found no memory");
    uint32_t pipelines = engine_num_pipelines(engine);
    expect_done(submit_runs(runs + 1, 1));
    ck_assert_uint_eq(engine_num_pipelines(engine),
                      pipelines); // the pipeline of the merge existed already
    memcpy(memory + 229376, memory + 131072, 128);
    for (int order = 0; order < 2; order++) {
        struct engine_run both[2] = {runs[order], runs[1 - order]};
        memset(memory + 65536, 0x55, 128);
        memset(memory + 131072, 0x55, 128);
        event = expect_done(submit_runs(both, 2));
        ck_assert_uint_eq(event.num_dispatches, 1);
        expect_bytes(memory + 65536, memory + 196608, 128, "the whole one");
        expect_bytes(memory + 131072, memory + 229376, 128, "the one that is cut");
    }
    engine_batch_destroy(whole);
    engine_batch_destroy(cut);
}
END_TEST

// ---- variants ----

START_TEST(table_of_variants_names_the_one_in_use)
{
    struct engine_variant_info info;
    bool in_use = false;
    uint32_t count = 0;
    for (; engine_variant_at(engine, count, &info); count++) {
        ck_assert_uint_gt(strlen(info.name), 0);
        ck_assert_uint_gt(strlen(info.needs), 0);
        in_use |= strcmp(info.name, engine_variant(engine)) == 0 && info.missing[0] == '\0';
    }
    ck_assert(in_use);
    ck_assert_uint_gt(count, 0);
}
END_TEST

START_TEST(every_variant_that_the_device_has_can_be_forced)
{
    struct engine_variant_info info;
    for (uint32_t i = 0; engine_variant_at(engine, i, &info); i++) {
        if (info.missing[0])
            continue;
        struct engine *forced = open_engine((struct engine_params){.variant = info.name});
        ck_assert_str_eq(engine_variant(forced), info.name);
        close_engine(forced);
    }
}
END_TEST

START_TEST(unknown_variant_is_refused_with_the_list)
{
    struct engine *forced = NULL;
    struct error error = {0};
    struct engine_params params = {.variant = "no such shader"};
    ck_assert_int_eq(engine_create(&params, &forced, &error), STATUS_NOT_FOUND);
    ck_assert_msg(strstr(error.text, "\"no such shader\"") && strstr(error.text, "plain"), "%s",
                  error.text);
    ck_assert_ptr_null(forced);
}
END_TEST

START_TEST(variant_that_the_device_cannot_run_says_what_is_missing)
{
    struct adapter poor = engine->device.adapter;
    const struct variant *chosen = NULL;
    struct error error = {0};
    poor.info.shared_memory_bytes = 16384;
    ck_assert_int_eq(variant_choose(&poor, "plain", &chosen, &error), STATUS_UNSUPPORTED);
    ck_assert_msg(strstr(error.text, "27168 bytes, it has 16384") != NULL, "%s", error.text);
    poor.info.shared_memory_bytes = 8192;
    ck_assert_int_eq(variant_choose(&poor, NULL, &chosen, &error), STATUS_UNSUPPORTED);
    ck_assert_int_eq(variant_choose(&engine->device.adapter, "", &chosen, &error), STATUS_OK);
    ck_assert_ptr_nonnull(chosen);
}
END_TEST

START_TEST(device_with_the_least_shared_memory_of_vulkan_has_a_variant)
{
    struct adapter poor = engine->device.adapter;
    const struct variant *chosen = NULL;
    struct error error = {0};
    poor.info.shared_memory_bytes = 16384;
    ck_assert_uint_le(variant_least_shared_memory(), 16384);
    ck_assert_msg(variant_choose(&poor, NULL, &chosen, &error) == STATUS_OK, "%s", error.text);
    ck_assert_str_eq(chosen->name, poor.info.subgroup_size < 8 ? "plain_small" : "subgroup_small");
    poor.info.subgroup_size = 4;
    ck_assert_msg(variant_choose(&poor, NULL, &chosen, &error) == STATUS_OK, "%s", error.text);
    ck_assert_str_eq(chosen->name, "plain_small");
}
END_TEST

void add_split_tests(Suite *suite)
{
    TCase *tcase = tcase_create("splits");
    tcase_set_tags(tcase, "kernels");
    tcase_add_checked_fixture(tcase, setup_split, teardown_split);
    tcase_add_test(tcase, splits_give_what_one_pass_gives);
    tcase_add_test(tcase, features_survive_the_splits);
    tcase_add_test(tcase, split_rows_keep_their_bits_in_any_company);
    tcase_add_test(tcase, sequences_are_cut_by_their_own_lengths_alone);
    tcase_add_test(tcase, padding_rows_are_not_split);
    tcase_add_test(tcase, split_run_without_memory_fails_alone);
    tcase_add_test(tcase, a_tile_that_is_cut_between_its_parts_keeps_its_bits);
    tcase_add_test(tcase, without_memory_for_its_parts_a_tile_stays_in_one_slice);
    tcase_add_test(tcase, a_slice_whose_earlier_parts_are_missing_fails);
    tcase_add_test(tcase, the_first_slice_has_work_for_every_kernel_of_its_layer);
    tcase_add_test(tcase, a_slice_that_fails_behind_its_plan_leaves_no_counters_to_the_next_layer);
    tcase_add_test(tcase, a_slice_of_one_tile_needs_no_scratch_memory);
    tcase_add_test(tcase, runs_that_are_cut_and_runs_that_are_not_share_a_dispatch);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("splits, little scratch memory");
    tcase_set_tags(tcase, "kernels");
    tcase_add_checked_fixture(tcase, setup_little_scratch, teardown_split);
    tcase_add_test(tcase, split_rows_keep_their_bits_in_any_company);
    tcase_add_test(tcase, run_that_needs_more_scratch_than_there_is_names_the_option);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("splits, scratch memory for either");
    tcase_set_tags(tcase, "kernels");
    tcase_add_checked_fixture(tcase, setup_either_scratch, teardown_split);
    tcase_add_test(tcase,
                   tiles_of_many_rows_wait_for_the_scratch_memory_that_those_of_few_rows_have);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("variants");
    tcase_add_checked_fixture(tcase, setup_import, teardown);
    tcase_add_test(tcase, table_of_variants_names_the_one_in_use);
    tcase_add_test(tcase, every_variant_that_the_device_has_can_be_forced);
    tcase_add_test(tcase, unknown_variant_is_refused_with_the_list);
    tcase_add_test(tcase, variant_that_the_device_cannot_run_says_what_is_missing);
    tcase_add_test(tcase, device_with_the_least_shared_memory_of_vulkan_has_a_variant);
    suite_add_tcase(suite, tcase);
}
