// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_engine_run.c - submissions: order, waves, merging, staging, growth meanwhile. Most tests run
// with both kinds of arena.

#include "rigs/engine_world.h"

#include <string.h>

static uint32_t noise_state = 12345;

static unsigned char noise(void)
{
    noise_state = noise_state * 1664525u + 1013904223u;
    return (unsigned char)(noise_state >> 24);
}

static void fill_noise(void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        ((unsigned char *)bytes)[i] = noise();
}

// Slots in two chunks, out of order, and one that goes nowhere. Q, K, V are slices of one fused
// tensor, with gaps. Any bits must arrive unchanged, NaNs too, and nothing else may change.
static void check_kv_write(enum dtype dtype)
{
    enum { HEADS = 2, DIM = 16, TOKENS = 5, LAYER = 1 };
    const uint32_t size = dtype_size(dtype), row = DIM * size;
    const uint64_t token_stride = (4 + 2 + 2) * row + 64, base = 4096;
    const int64_t slots[TOKENS] = {2 * BLOCK + 7, 6 * BLOCK, -1, 0, 6 * BLOCK + 3};
    struct engine_cache *cache = open_cache(shape(3, HEADS, DIM, dtype));
    grow_chunk(cache, 0);
    grow_chunk(cache, 1);
    size_t block_bytes = engine_layer_block_bytes(&cache->params);
    char *wanted = calloc(8, block_bytes), *before = malloc(ARENA_BYTES);
    fill_noise(memory, ARENA_BYTES);
    memcpy(before, memory, ARENA_BYTES);
    for (int token = 0; token < TOKENS; token++)
        for (int head = 0; head < HEADS && slots[token] >= 0; head++) {
            char *block = wanted + slots[token] / BLOCK * (int64_t)block_bytes;
            const char *from = memory + base + token * token_stride + (4 + head) * row;
            char *to = block + (head * BLOCK + slots[token] % BLOCK) * row;
            memcpy(to, from, row);                                     // K
            memcpy(to + HEADS * BLOCK * row, from + HEADS * row, row); // V
        }
    struct engine_batch *batch = open_batch((struct engine_batch_params){
        .cache = cache,
        .num_seqs = 1,
        .max_blocks = 1,
        .num_tokens = TOKENS,
        .cu_seqlens_q = (int32_t[]){0, TOKENS},
        .seq_lens_kv = (int32_t[]){0}, // no query reads: out is zeroes
        .block_table = (int32_t[]){-1},
        .slot_mapping = slots,
    });
    const uint64_t out = 65536, out_stride = 4 * row + 32;
    struct engine_run run = {
        .batch = batch,
        .arena = arena,
        .layer = LAYER,
        .num_heads = 4,
        .q = {.offset = base, .token_stride = token_stride, .head_stride = row, .dtype = dtype},
        .k = {.offset = base + 4 * row,
              .token_stride = token_stride,
              .head_stride = row,
              .dtype = dtype},
        .v = {.offset = base + 6 * row,
              .token_stride = token_stride,
              .head_stride = row,
              .dtype = dtype},
        .out = {.offset = out, .token_stride = out_stride, .head_stride = row, .dtype = dtype},
        .scale = 1,
        .causal = true,
    };
    expect_done(submit_runs(&run, 1));
    for (uint32_t layer = 0; layer < 3; layer++)
        for (int32_t block = 0; block < 8; block++)
            expect_block(cache, layer, block,
                         layer == LAYER ? wanted + block * block_bytes : zero_block);
    for (int token = 0; token < TOKENS; token++)
        memset(before + out + token * out_stride, 0, 4 * row);
    expect_bytes(memory, before, ARENA_BYTES, "the arena");
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
    free(wanted);
    free(before);
}

START_TEST(f32_keys_and_values_reach_their_slots_bit_for_bit)
{
    check_kv_write(DTYPE_F32);
}
END_TEST

START_TEST(f16_keys_and_values_reach_their_slots_bit_for_bit)
{
    check_kv_write(DTYPE_F16);
}
END_TEST

START_TEST(arena_is_imported_unless_staging_is_forced)
{
    bool forced = !engine_device(engine)->host_import;
    ck_assert_int_eq(engine_arena_imported(arena), !forced);
    ck_assert_int_eq(logged("arenas mirrored"), forced);
}
END_TEST

// One key and its value through an arena of this test, which replaces the common one meanwhile.
static void attend_in(struct engine_arena *other, char *other_memory)
{
    struct engine_arena *old = arena;
    char *old_memory = memory;
    arena = other;
    memory = other_memory;
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 1, true);
    struct engine_run run = plain_run(batch, 0, 0, 64, 128, 192);
    fill(128, 3);
    expect_done(submit_runs(&run, 1));
    expect_floats(192, 3);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
    engine_arena_destroy(arena);
    arena = old;
    memory = old_memory;
}

START_TEST(unaligned_arena_is_mirrored_and_works)
{
    struct engine_arena *other;
    struct error error = {0};
    char *unaligned = memory + 16; // no import can begin here
    ck_assert_int_eq(engine_arena_create(engine, unaligned, 8192, &other, &error), STATUS_OK);
    ck_assert(!engine_arena_imported(other));
    attend_in(other, unaligned);
}
END_TEST

START_TEST(arena_without_a_base_is_the_engines_own_memory_and_works)
{
    struct engine_arena *other;
    struct error error = {0};
    ck_assert_int_eq(engine_arena_create(engine, NULL, 8192, &other, &error), STATUS_OK);
    ck_assert_ptr_nonnull(engine_arena_base(other));
    memset(engine_arena_base(other), 0, 8192);
    attend_in(other, engine_arena_base(other));
}
END_TEST

START_TEST(run_of_heads_before_tokens_layout_touches_only_its_rows)
{
    enum { TOKENS = 3 };
    struct engine_cache *cache = open_cache(shape(1, 1, 8, DTYPE_F32));
    grow_chunk(cache, 0);
    struct engine_batch *batch = open_batch((struct engine_batch_params){
        .cache = cache,
        .num_seqs = 1,
        .max_blocks = 1,
        .num_tokens = TOKENS,
        .cu_seqlens_q = (int32_t[]){0, TOKENS},
        .seq_lens_kv = (int32_t[]){1}, // only query 2 is at position 0 and sees the key
        .block_table = (int32_t[]){2},
    });
    struct engine_run run = plain_run(batch, 0, 0, 0, 0, 0);
    char *before = malloc(ARENA_BYTES);
    float key[128] = {0};
    key[64] = 42; // V of slot 0, first element
    ck_assert_int_eq(engine_block_write(cache, 0, 2, key), STATUS_OK);
    memset(memory, 0, ARENA_BYTES);
    run.num_heads = 2;
    run.q =
        (struct wire_tensor){.offset = 1024,
                             .token_stride = 32,
                             .head_stride = 512,
                             .dtype = DTYPE_F32}; // [heads, tokens, dim], a gap between the heads
    run.out = (struct wire_tensor){
        .offset = 8192, .token_stride = 32, .head_stride = 1024, .dtype = DTYPE_F32};
    memset(memory + 8192, 0x55, 4096);
    memcpy(before, memory, ARENA_BYTES);
    for (int head = 0; head < 2; head++) {
        memset(before + 8192 + head * 1024, 0, TOKENS * 32);
        memcpy(before + 8192 + head * 1024 + 2 * 32, &key[64], 32);
    }
    expect_done(submit_runs(&run, 1));
    expect_bytes(memory, before, ARENA_BYTES, "the arena");
    free(before);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(later_wave_reads_what_an_earlier_one_wrote)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *writer = one_key(cache, 3, true), *reader = one_key(cache, 3, false);
    struct engine_batch *other = one_key(cache, 1, true);
    // Wave 0 writes block 3 of layer 0; wave 1 reads it there, and writes wave 0's result into
    // block 1 of layer 1.
    struct engine_run runs[3] = {
        plain_run(writer, 0, 0, 64, 128, 192),
        plain_run(reader, 0, 192, 0, 0, 256),
        plain_run(other, 1, 0, 64, 192, 320),
    };
    struct engine_submission submission = {
        .runs = runs, .num_runs = 3, .wave_ends = (uint32_t[]){1, 3}, .num_waves = 2};
    fill(0, 1);
    fill(64, 2);
    fill(128, 1000);
    struct engine_event event = expect_done(submit(&submission));
    expect_floats(192, 1000);
    expect_floats(256, 1000);
    expect_floats(320, 1000);
    ck_assert_uint_eq(event.num_dispatches, 2);
    ck_assert_uint_ne(event.results[0].dispatch, event.results[1].dispatch);
    ck_assert_uint_eq(event.results[1].dispatch, event.results[2].dispatch);
    engine_batch_destroy(writer);
    engine_batch_destroy(reader);
    engine_batch_destroy(other);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(submissions_run_in_order_and_pass_results_on)
{
    enum { HOPS = 40 };
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batches[2] = {one_key(cache, 0, true), one_key(cache, 1, true)};
    uint64_t last = 0;
    fill(128, 7); // hop i writes the output of hop i - 1 as its value
    for (uint64_t i = 0; i < HOPS; i++) {
        struct engine_run run =
            plain_run(batches[i % 2], i % 2, 0, 64, 128 + i * 64, 128 + (i + 1) * 64);
        last = submit_runs(&run, 1);
        ck_assert_uint_eq(last, i + 1);
    }
    ck_assert_int_eq(engine_wait(engine, last, DEADLINE_S * 1000), STATUS_OK);
    for (uint64_t i = 0; i < HOPS; i++)
        ck_assert_uint_eq(expect_event(ENGINE_EVENT_DONE).sequence, i + 1);
    expect_floats(128 + HOPS * 64, 7);
    ck_assert_uint_ge(atomic_load(&wakes), 2);
    engine_batch_destroy(batches[0]);
    engine_batch_destroy(batches[1]);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(arena_may_be_rewritten_between_submissions_in_flight)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 0, true);
    for (int i = 0; i < 20; i++) {
        struct engine_run first = plain_run(batch, 0, 0, 64, 128, 192),
                          second = plain_run(batch, 1, 0, 64, 192, 128);
        fill(128, (float)i);
        fill(192, -1);
        uint64_t sequence = submit_runs(&first, 1);
        expect_done(sequence);
        expect_floats(192, (float)i);
        fill(192, (float)(i + 100));
        expect_done(submit_runs(&second, 1));
        expect_floats(128, (float)(i + 100));
    }
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(runs_of_one_geometry_share_one_dispatch)
{
    struct engine_cache *cache = plain_cache(), *twin = plain_cache();
    struct engine_cache *wide = open_cache(shape(1, 1, 16, DTYPE_F32));
    grow_chunk(wide, 0);
    struct engine_batch *a = one_key(cache, 0, true), *b = one_key(twin, 2, true),
                        *reader = one_key(cache, 3, false);
    struct engine_batch *c = one_key(wide, 1, true);
    struct engine_run runs[4] = {
        plain_run(reader, 1, 0, 0, 0, 1024),
        plain_run(a, 0, 0, 64, 128, 1088),
        plain_run(c, 0, 0, 64, 128, 1152),
        plain_run(b, 1, 0, 64, 192, 1280),
    };
    runs[2].q = dense(0, 1, 16, DTYPE_F32);
    runs[2].k = dense(64, 1, 16, DTYPE_F32);
    runs[2].v = dense(128, 1, 16, DTYPE_F32);
    runs[2].out = dense(1152, 1, 16, DTYPE_F32);
    runs[3].num_heads = 4; // another group size, in the same dispatch
    runs[3].q = dense(512, 4, 8, DTYPE_F32);
    runs[3].out = dense(1280, 4, 8, DTYPE_F32);
    fill(128, 5);
    fill(160, 13);
    fill(192, 9);
    memset(memory + 1024, 0x55, 512);
    struct engine_event event = expect_done(submit_runs(runs, 4));
    ck_assert_uint_eq(event.num_results, 4);
    ck_assert_uint_eq(event.num_dispatches, 2);
    ck_assert_uint_eq(event.results[0].dispatch, event.results[1].dispatch);
    ck_assert_uint_eq(event.results[0].dispatch, event.results[3].dispatch);
    ck_assert_uint_ne(event.results[0].dispatch, event.results[2].dispatch);
    ck_assert_uint_eq(event.results[0].gpu_ns, event.results[3].gpu_ns);
    if (engine->device.adapter.timestamp_bits)
        ck_assert_uint_gt(event.results[0].gpu_ns, 0);
    for (int i = 0; i < 8; i++)
        ck_assert_float_eq(floats(1024)[i], 0); // block 3 is zeroes
    expect_floats(1088, 5);
    expect_floats(1152, 5);
    expect_floats(1184, 13);
    for (uint64_t head = 0; head < 4; head++)
        expect_floats(1280 + head * 32, 9);
    engine_batch_destroy(a);
    engine_batch_destroy(b);
    engine_batch_destroy(c);
    engine_batch_destroy(reader);
    engine_cache_destroy(cache);
    engine_cache_destroy(twin);
    engine_cache_destroy(wide);
}
END_TEST

// Two sequences of one query each, which see a key of block 3.
static struct engine_batch *two_readers(struct engine_cache *cache)
{
    return open_batch((struct engine_batch_params){
        .cache = cache,
        .num_seqs = 2,
        .max_blocks = 1,
        .num_tokens = 2,
        .cu_seqlens_q = (int32_t[]){0, 1, 2},
        .seq_lens_kv = (int32_t[]){1, 1},
        .block_table = (int32_t[]){3, 3},
    });
}

// Each run reads the key that it writes, in a layer of its own. If they are uneven, every third one
// reads zeroes instead, with two sequences.
static void check_many_runs(struct engine_cache *cache, uint32_t count, bool uneven)
{
    struct engine_batch *writer = one_key(cache, 0, true), *reader = two_readers(cache);
    struct engine_run *runs = calloc(count, sizeof *runs);
    ck_assert_ptr_nonnull(runs);
    for (uint32_t i = 0; i < count; i++) {
        runs[i] = plain_run(uneven && i % 3 == 1 ? reader : writer, i, 0, 64, 4096 + i * 32,
                            65536 + i * 64);
        fill(4096 + i * 32, (float)(i + count));
        fill(65536 + i * 64, -100);
        fill(65536 + i * 64 + 32, -100);
    }
    const struct engine_event event = expect_done(submit_runs(runs, count));
    ck_assert_uint_eq(event.num_dispatches, 1);
    for (uint32_t i = 0; i < count; i++) {
        const bool reads = uneven && i % 3 == 1;
        for (uint64_t n = 0; n < 16 && reads; n++)
            ck_assert_float_eq(floats(65536 + i * 64)[n], 0);
        if (!reads) {
            expect_floats(65536 + i * 64, (float)(i + count));
            expect_floats(65536 + i * 64 + 32, -100);
        }
    }
    free(runs);
    engine_batch_destroy(writer);
    engine_batch_destroy(reader);
}

START_TEST(each_workgroup_finds_its_run_among_any_number_of_runs)
{
    const uint32_t counts[] = {2, 3, 15, 16, 17, 18, 31, 33, 255, 256, 257, 290};
    struct engine_cache *cache = open_cache(shape(290, 1, 8, DTYPE_F32));
    grow_chunk(cache, 0);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        check_many_runs(cache, counts[i], false);
        check_many_runs(cache, counts[i], true);
    }
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(the_time_of_a_wave_is_shared_out_by_the_bytes_that_dispatches_move)
{
    struct engine_cache *cache = plain_cache(), *wide = open_cache(shape(1, 1, 16, DTYPE_F32));
    grow_chunk(wide, 0);
    struct engine_batch *a = one_key(cache, 0, true), *b = one_key(wide, 1, true);
    struct engine_run runs[2] = {plain_run(a, 0, 0, 64, 128, 1024),
                                 plain_run(b, 0, 0, 64, 128, 1088)};
    runs[1].q = dense(0, 1, 16, DTYPE_F32);
    runs[1].k = dense(64, 1, 16, DTYPE_F32);
    runs[1].v = dense(128, 1, 16, DTYPE_F32);
    runs[1].out = dense(1088, 1, 16, DTYPE_F32);
    struct engine_event event = expect_done(submit_runs(runs, 2));
    ck_assert_uint_eq(event.num_dispatches, 2);
    uint64_t narrow_ns = event.results[0].gpu_ns, wide_ns = event.results[1].gpu_ns;
    ck_assert_uint_ge(wide_ns + 2, 2 * narrow_ns); // both are rounded down
    ck_assert_uint_le(wide_ns, 2 * narrow_ns + 2);
    ck_assert_int_eq(narrow_ns > 0, engine->device.adapter.timestamp_bits > 0);
    engine_batch_destroy(a);
    engine_batch_destroy(b);
    engine_cache_destroy(cache);
    engine_cache_destroy(wide);
}
END_TEST

START_TEST(the_time_of_a_dispatch_is_shared_out_by_the_keys_of_its_runs)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batches[2];
    for (int i = 0; i < 2; i++)
        batches[i] =
            open_batch((struct engine_batch_params){.cache = cache,
                                                    .num_seqs = 1,
                                                    .max_blocks = 12,
                                                    .num_tokens = 1,
                                                    .cu_seqlens_q = (int32_t[]){0, 1},
                                                    .seq_lens_kv = (int32_t[]){i ? 90 : 10},
                                                    .block_table = (int32_t[12]){0}});
    struct engine_run runs[2] = {plain_run(batches[0], 0, 0, 0, 0, 1024),
                                 plain_run(batches[1], 0, 0, 0, 0, 1088)};
    struct engine_event event = expect_done(submit_runs(runs, 2));
    const struct engine_run_result *results = event.results;
    ck_assert_uint_eq(event.num_dispatches, 1);
    ck_assert_uint_eq(results[0].gpu_ns, results[1].gpu_ns);
    ck_assert_uint_le(results[0].own_ns + results[1].own_ns, results[0].gpu_ns);
    ck_assert_uint_ge(results[0].own_ns + results[1].own_ns + 2,
                      results[0].gpu_ns); // both are rounded down
    ck_assert_uint_ge(results[1].own_ns + 9, 9 * results[0].own_ns);
    ck_assert_uint_le(results[1].own_ns, 9 * results[0].own_ns + 9);
    ck_assert_int_eq(results[0].own_ns > 0, engine->device.adapter.timestamp_bits > 0);
    for (int i = 0; i < 2; i++)
        engine_batch_destroy(batches[i]);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(a_window_counts_by_the_keys_that_it_has)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch =
        open_batch((struct engine_batch_params){.cache = cache,
                                                .num_seqs = 1,
                                                .max_blocks = 64,
                                                .num_tokens = 1,
                                                .cu_seqlens_q = (int32_t[]){0, 1},
                                                .seq_lens_kv = (int32_t[]){64 * BLOCK},
                                                .block_table = (int32_t[64]){0}});
    struct engine_run runs[2] = {plain_run(batch, 0, 0, 0, 0, 1024),
                                 plain_run(batch, 0, 0, 0, 0, 1088)};
    runs[1].causal = runs[1].windowed = true;
    runs[1].window_left = BLOCK - 1;
    runs[1].window_right = -1;
    struct engine_event event = expect_done(submit_runs(runs, 2));
    ck_assert_uint_eq(event.num_dispatches, 2);
    bool timed = engine->device.adapter.timestamp_bits > 0;
    ck_assert_int_eq(event.results[1].gpu_ns > 0, timed);
    if (timed)
        ck_assert_uint_lt(8 * event.results[1].gpu_ns, event.results[0].gpu_ns);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(waves_that_dispatch_nothing_take_no_time_and_no_other_ones)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 0, true);
    struct engine_batch *none =
        open_batch((struct engine_batch_params){.cache = cache, .cu_seqlens_q = (int32_t[]){0}});
    struct engine_run runs[4] = {
        plain_run(batch, 0, 0, 64, 128, 1024), plain_run(batch, 1, 0, 64, 128, 1088),
        plain_run(none, 0, 0, 0, 0, 0), plain_run(batch, 0, 0, 64, 128, 1152)};
    const uint32_t wave_ends[] = {
        2, 3, 3, 4}; // the second batch's run has no tokens, the third batch has no run
    struct engine_event event = expect_done(submit(&(struct engine_submission){
        .runs = runs, .num_runs = 4, .wave_ends = wave_ends, .num_waves = 4}));
    bool timed = engine->device.adapter.timestamp_bits > 0;
    ck_assert_int_eq(event.results[0].gpu_ns > 0, timed);
    ck_assert_uint_eq(event.results[0].gpu_ns, event.results[1].gpu_ns);
    ck_assert_uint_eq(event.results[2].gpu_ns, 0);
    ck_assert_int_eq(event.results[3].gpu_ns > 0, timed);
    engine_batch_destroy(batch);
    engine_batch_destroy(none);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(ragged_batch_spans_chunks_and_pads_with_empty_sequences)
{
    struct engine_cache *cache = plain_cache();
    grow_chunk(cache, 1);
    enum { SEQS = 5, TOKENS = 12 };
    // Sequences 0 and 3 have no query. 1 writes 10 tokens into blocks 6 and 1. 2 sees no key. 4
    // reads block 5.
    struct engine_batch *batch = open_batch((struct engine_batch_params){
        .cache = cache,
        .num_seqs = SEQS,
        .max_blocks = 2,
        .num_tokens = TOKENS,
        .cu_seqlens_q = (int32_t[]){0, 0, 10, 11, 11, 12},
        .seq_lens_kv = (int32_t[]){3, 10, 0, 0, 1},
        .block_table = (int32_t[]){-1, 99999, 6, 1, -7, 1 << 30, 0, 0, 5, -1},
        .slot_mapping = (int64_t[]){48, 49, 50, 51, 52, 53, 54, 55, 8, 9, -1, 40},
    });
    struct engine_run run = plain_run(batch, 1, 0, 1024, 2048, 4096);
    memset(memory, 0, ARENA_BYTES); // equal scores: out is the mean of the visible values
    for (int token = 0; token < TOKENS; token++)
        for (int i = 0; i < 8; i++)
            floats(2048)[token * 8 + i] = (float)(2 * token);
    memset(memory + 4096, 0x55, TOKENS * 32);
    expect_done(submit_runs(&run, 1));
    for (int token = 0; token < TOKENS; token++) {
        float wanted = token < 10 ? (float)token : token == 10 ? 0.0f : 22.0f;
        for (int i = 0; i < 8; i++)
            ck_assert_float_eq_tol(floats(4096)[token * 8 + i], wanted, 1e-4f);
    }
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(grid_folds_where_the_device_ends_it)
{
    // One sequence of 40 queries of 8 heads: 40 tiles and 40 tokens, on a device that pretends to
    // allow 7 at a time.
    enum { TOKENS = 40 };
    engine->device.adapter.max_groups[1] = 7;
    engine->device.adapter.max_groups[0] = 3;
    struct engine_cache *cache = plain_cache();
    for (uint32_t chunk = 1; chunk < 3; chunk++)
        grow_chunk(cache, chunk);
    int64_t slots[TOKENS];
    int32_t blocks[TOKENS / BLOCK] = {8, 3, 11, 0, 5};
    for (int i = 0; i < TOKENS; i++)
        slots[i] = blocks[i / BLOCK] * BLOCK + i % BLOCK;
    struct engine_batch *batch = open_batch((struct engine_batch_params){
        .cache = cache,
        .num_seqs = 1,
        .max_blocks = TOKENS / BLOCK,
        .num_tokens = TOKENS,
        .cu_seqlens_q = (int32_t[]){0, TOKENS},
        .seq_lens_kv = (int32_t[]){TOKENS},
        .block_table = blocks,
        .slot_mapping = slots,
    });
    struct engine_run run = plain_run(batch, 0, 0, 16384, 32768, 65536);
    run.num_heads = 8;
    run.q = dense(0, 8, 8, DTYPE_F32);
    run.out = dense(65536, 8, 8, DTYPE_F32);
    memset(memory, 0, 16384);
    for (int token = 0; token < TOKENS; token++)
        fill(32768 + (uint64_t)token * 32, (float)(2 * token));
    struct engine_zero zeroes[] = {
        {cache, 1}, {cache, 2}, {cache, 4}, {cache, 6}}; // 8 ranges, 3 at a time
    unsigned char bytes[512];
    for (int i = 0; i < 4; i++)
        write_pattern(cache, 1, zeroes[i].block, bytes);
    expect_done(submit(&(struct engine_submission){.zeroes = zeroes,
                                                   .num_zeroes = 4,
                                                   .runs = &run,
                                                   .num_runs = 1,
                                                   .wave_ends = (uint32_t[]){1},
                                                   .num_waves = 1}));
    for (uint64_t token = 0; token < TOKENS; token++)
        for (uint64_t head = 0; head < 8; head++)
            for (int i = 0; i < 8; i++)
                ck_assert_float_eq_tol(floats(65536 + (token * 8 + head) * 32)[i],
                                       (float)token + (float)i, 1e-3f);
    for (int i = 0; i < 4; i++)
        expect_block(cache, 1, zeroes[i].block, zero_block);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(zeroes_come_before_the_runs_and_spare_the_neighbours)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *reader = one_key(cache, 2, false);
    struct engine_run run = plain_run(reader, 0, 0, 0, 0, 192);
    unsigned char bytes[2][4][512];
    for (uint32_t layer = 0; layer < 2; layer++)
        for (int32_t block = 0; block < 4; block++)
            write_pattern(cache, layer, block, bytes[layer][block]);
    fill(192, 77);
    struct engine_zero zero = {cache, 2};
    expect_done(submit(&(struct engine_submission){.zeroes = &zero,
                                                   .num_zeroes = 1,
                                                   .runs = &run,
                                                   .num_runs = 1,
                                                   .wave_ends = (uint32_t[]){1},
                                                   .num_waves = 1}));
    for (int i = 0; i < 8; i++)
        ck_assert_float_eq(floats(192)[i], 0);
    for (uint32_t layer = 0; layer < 2; layer++)
        for (int32_t block = 0; block < 4; block++)
            expect_block(cache, layer, block,
                         block == 2 ? zero_block : (char *)bytes[layer][block]);
    expect_done(
        submit(&(struct engine_submission){.zeroes = &zero, .num_zeroes = 1})); // without a run
    engine_batch_destroy(reader);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(runs_without_tokens_are_done_without_a_dispatch)
{
    struct engine_cache *cache = open_cache(shape(2, 1, 8, DTYPE_F32)); // not even memory
    struct engine_batch *batch = open_batch((struct engine_batch_params){
        .cache = cache,
        .cu_seqlens_q = (int32_t[]){0},
    });
    struct engine_run runs[2] = {plain_run(batch, 0, 0, 0, 0, 0), plain_run(batch, 1, 0, 0, 0, 0)};
    struct engine_event event = expect_done(submit_runs(runs, 2));
    ck_assert_uint_eq(event.num_dispatches, 0);
    ck_assert_uint_ne(event.results[0].dispatch, event.results[1].dispatch);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(cache_grows_and_shrinks_while_submissions_run)
{
    enum { CHUNKS = 12 };
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 1, true);
    uint32_t grown = 0, done = 0, submitted = 0;
    for (uint32_t i = 1; i <= CHUNKS; i++) {
        engine_cache_grow(cache, i);
        for (uint32_t j = 0; j < 3; j++) {
            uint64_t value = 4096 + submitted * 64;
            fill(value, (float)submitted++);
            struct engine_run run = plain_run(batch, 0, 0, 64, value, 65536 + value);
            submit_runs(&run, 1);
        }
    }
    while (grown < CHUNKS || done < submitted) {
        struct engine_event event = next_event();
        if (event.kind == ENGINE_EVENT_CHUNK) {
            ck_assert_int_eq(event.error.status, STATUS_OK);
            grown++;
            if (event.chunk % 2)
                engine_cache_shrink(cache, event.chunk);
        } else {
            ck_assert_int_eq(event.kind, ENGINE_EVENT_DONE);
            ck_assert_int_eq(event.results[0].status, STATUS_OK);
            ck_assert_uint_eq(event.sequence, ++done);
        }
    }
    for (uint32_t i = 0; i < submitted; i++)
        expect_floats(65536 + 4096 + i * 64, (float)i);
    // A chunk that arrived while the GPU was busy can be used like any other.
    struct engine_batch *late = one_key(cache, CHUNKS * 4 + 3, true);
    struct engine_run run = plain_run(late, 1, 0, 64, 128, 192);
    fill(128, 4711);
    expect_done(submit_runs(&run, 1));
    expect_floats(192, 4711);
    engine_batch_destroy(late);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(objects_let_go_right_after_submit_serve_it_to_the_end)
{
    for (int i = 0; i < 10; i++) {
        struct engine_cache *cache = plain_cache();
        struct engine_batch *batch = one_key(cache, 2, true);
        struct engine_run run = plain_run(batch, 1, 0, 64, 128, 192);
        fill(128, (float)i);
        fill(192, -1);
        uint64_t sequence = submit_runs(&run, 1);
        engine_batch_destroy(batch);
        engine_cache_destroy(cache);
        expect_done(sequence);
        expect_floats(192, (float)i);
    }
}
END_TEST

START_TEST(steps_that_come_and_go_leave_memory_flat)
{
    struct engine_cache *cache = plain_cache();
    uint32_t pieces = num_pieces();
    uint64_t after_warm_up = 0;
    for (int i = 0; i < 300; i++) {
        struct engine_batch *batch = one_key(cache, i % 4, true);
        struct engine_run run = plain_run(batch, 0, 0, 64, 128, 192);
        expect_done(submit_runs(&run, 1));
        engine_batch_destroy(batch);
        AWAIT(DEADLINE_S,
              num_pieces() ==
                  pieces); // the maker frees it; the scheduler decides how late that may be
        if (i == 50)
            after_warm_up = atomic_load(&engine->device.buffer_bytes);
    }
    ck_assert_uint_gt(after_warm_up, 0);
    ck_assert_uint_eq(atomic_load(&engine->device.buffer_bytes), after_warm_up);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(what_is_copied_to_and_from_an_arena_is_counted)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = one_key(cache, 0, true);
    struct engine_run run = plain_run(batch, 0, 0, 64, 128, 192);
    uint64_t metrics[NUM_ENGINE_METRICS];
    expect_done(submit_runs(&run, 1));
    engine_metrics(engine, metrics);
    ck_assert_uint_eq(metrics[ENGINE_METRIC_STAGED_BYTES],
                      engine_arena_imported(arena) ? 0 : 4 * 8 * sizeof(float)); // q, k, v, out
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(equal_geometry_is_compiled_once)
{
    struct engine_cache *cache = plain_cache(), *twin = plain_cache();
    struct engine_batch *a = one_key(cache, 0, true), *b = one_key(twin, 0, true);
    struct engine_run first = plain_run(a, 0, 0, 64, 128, 192),
                      second = plain_run(b, 1, 0, 64, 128, 192);
    ck_assert_uint_eq(engine_num_pipelines(engine), 0);
    expect_done(submit_runs(&first, 1));
    ck_assert_uint_eq(engine_num_pipelines(engine), 2);
    expect_done(submit_runs(&second, 1));
    ck_assert_uint_eq(engine_num_pipelines(engine), 2);
    uint64_t metrics[NUM_ENGINE_METRICS];
    engine_metrics(engine, metrics);
    ck_assert_uint_eq(metrics[ENGINE_METRIC_PIPELINES_COMPILED], 2);
    engine_batch_destroy(a);
    engine_batch_destroy(b);
    engine_cache_destroy(cache);
    engine_cache_destroy(twin);
}
END_TEST

// Each block_size has its own two pipelines: one writes and one reads.
static void run_block_size(uint32_t block_size, float value)
{
    struct engine_cache_params params = shape(1, 1, 8, DTYPE_F32);
    params.kv.block_size = block_size;
    struct engine_cache *cache = open_cache(params);
    grow_chunk(cache, 0);
    struct engine_batch *batch = one_key(cache, 0, true);
    struct engine_run run = plain_run(batch, 0, 0, 64, 128, 192);
    fill(128, value);
    expect_done(submit_runs(&run, 1));
    expect_floats(192, value);
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}

START_TEST(pipelines_stay_within_their_number_and_come_back)
{
    teardown();
    engine = open_engine((struct engine_params){.max_pipelines = 3});
    open_arena();
    for (int round = 0; round < 2; round++)
        for (uint32_t block_size = 8; block_size <= 16; block_size *= 2) {
            run_block_size(block_size, (float)block_size);
            ck_assert_uint_le(engine_num_pipelines(engine), 3);
        }
    ck_assert_uint_eq(engine_num_pipelines(engine), 3);
}
END_TEST

// All pipelines of a submission stay until it is done, however many there are.
START_TEST(submission_of_more_pipelines_than_are_kept_runs)
{
    enum { KINDS = 3 };
    struct engine_cache *caches[KINDS];
    struct engine_batch *batches[KINDS];
    struct engine_run runs[KINDS];
    engine->pipelines.most = 2;
    for (uint32_t i = 0; i < KINDS; i++) {
        struct engine_cache_params params = shape(1, 1, 8, DTYPE_F32);
        params.kv.block_size = 8u << i;
        caches[i] = open_cache(params);
        grow_chunk(caches[i], 0);
        batches[i] = one_key(caches[i], 0, true);
        runs[i] = plain_run(batches[i], 0, 0, 64, 4096 + i * 64, 8192 + i * 64);
        fill(4096 + i * 64, (float)i);
    }
    expect_done(submit_runs(runs, KINDS));
    for (uint32_t i = 0; i < KINDS; i++)
        expect_floats(8192 + i * 64, (float)i);
    ck_assert_uint_eq(engine_num_pipelines(engine), 2 * KINDS);
    run_block_size(128, 77);
    ck_assert_uint_eq(engine_num_pipelines(engine), 2);
    for (uint32_t i = 0; i < KINDS; i++) {
        engine_batch_destroy(batches[i]);
        engine_cache_destroy(caches[i]);
    }
}
END_TEST

START_TEST(destroy_with_work_queued_and_chunks_growing_ends_all)
{
    struct engine_cache *cache = plain_cache(), *gone = plain_cache();
    struct engine_batch *batch = one_key(cache, 0, true), *dropped = one_key(gone, 1, true);
    for (uint32_t i = 0; i < 24; i++) {
        struct engine_run run = plain_run(i % 3 ? batch : dropped, 0, 0, 64, 128, 4096 + i * 64);
        submit_runs(&run, 1);
        engine_cache_grow(cache, i + 1);
        engine_cache_grow(gone, i + 1);
    }
    engine_batch_destroy(dropped);
    engine_cache_shrink(cache, 0);
    engine_cache_destroy(gone);
    close_engine(engine); // with a cache, a batch and the arena still alive
    engine = open_engine((struct engine_params){0});
    arena = NULL;
}
END_TEST

void add_run_tests(Suite *suite)
{
    const TTest *const each[] = {arena_is_imported_unless_staging_is_forced,
                                 what_is_copied_to_and_from_an_arena_is_counted,
                                 f32_keys_and_values_reach_their_slots_bit_for_bit,
                                 f16_keys_and_values_reach_their_slots_bit_for_bit,
                                 run_of_heads_before_tokens_layout_touches_only_its_rows,
                                 later_wave_reads_what_an_earlier_one_wrote,
                                 submissions_run_in_order_and_pass_results_on,
                                 arena_may_be_rewritten_between_submissions_in_flight,
                                 runs_of_one_geometry_share_one_dispatch,
                                 each_workgroup_finds_its_run_among_any_number_of_runs,
                                 the_time_of_a_wave_is_shared_out_by_the_bytes_that_dispatches_move,
                                 the_time_of_a_dispatch_is_shared_out_by_the_keys_of_its_runs,
                                 a_window_counts_by_the_keys_that_it_has,
                                 waves_that_dispatch_nothing_take_no_time_and_no_other_ones,
                                 ragged_batch_spans_chunks_and_pads_with_empty_sequences,
                                 zeroes_come_before_the_runs_and_spare_the_neighbours,
                                 cache_grows_and_shrinks_while_submissions_run,
                                 destroy_with_work_queued_and_chunks_growing_ends_all,
                                 NULL};
    check_either(suite, (const char *const[]){"runs, arena imported", "runs, arena mirrored"},
                 (const SFun[]){setup_import, setup_staging}, teardown, each);
    check_case(suite, "runs, however the arena is reached", setup_import, teardown,
               (const TTest *const[]){unaligned_arena_is_mirrored_and_works,
                                      arena_without_a_base_is_the_engines_own_memory_and_works,
                                      grid_folds_where_the_device_ends_it,
                                      runs_without_tokens_are_done_without_a_dispatch,
                                      objects_let_go_right_after_submit_serve_it_to_the_end,
                                      steps_that_come_and_go_leave_memory_flat,
                                      equal_geometry_is_compiled_once,
                                      pipelines_stay_within_their_number_and_come_back,
                                      submission_of_more_pipelines_than_are_kept_runs, NULL},
               1);
}
