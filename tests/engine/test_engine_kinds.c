// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_engine_kinds.c - other work than attention: writes, gathers, copies of blocks, merges of a
// caller's parts; their order inside a wave; K and V in the arena. Most tests run with both kinds
// of arena. Other suites test what the shaders compute; here one value shows its origin.

#include "engine/memory/arena.h"
#include "rigs/engine_world.h"

#include <math.h>
#include <string.h>

// Eight tokens of the plain cache, and one sequence that sees all of them in `block`. Slots there
// if `write`.
static struct engine_batch *eight_keys(struct engine_cache *cache, int32_t block, bool write)
{
    int64_t slots[BLOCK];
    for (int i = 0; i < BLOCK; i++)
        slots[i] = (int64_t)block * BLOCK + i;
    return open_batch((struct engine_batch_params){
        .cache = cache,
        .num_seqs = 1,
        .max_blocks = 1,
        .num_tokens = BLOCK,
        .cu_seqlens_q = (int32_t[]){0, BLOCK},
        .seq_lens_kv = (int32_t[]){BLOCK},
        .block_table = &block,
        .slot_mapping = write ? slots : NULL,
    });
}

static struct engine_run kind_run(enum engine_kind kind, struct engine_batch *batch, uint64_t k,
                                  uint64_t v)
{
    struct engine_run run = plain_run(batch, 0, 0, k, v, 0);
    run.kind = kind;
    return run;
}

static void fill_rows(uint64_t offset, float first)
{
    for (uint64_t i = 0; i < BLOCK; i++)
        fill(offset + i * 32, first + (float)i * 100);
}

static void expect_rows(uint64_t offset, float first)
{
    for (uint64_t i = 0; i < BLOCK; i++)
        expect_floats(offset + i * 32, first + (float)i * 100);
}

START_TEST(a_gather_returns_what_a_write_run_stored)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *writer = eight_keys(cache, 2, true), *reader = eight_keys(cache, 2, false);
    struct engine_run runs[2] = {kind_run(ENGINE_GATHER, reader, 4096, 8192),
                                 kind_run(ENGINE_WRITE, writer, 1024, 2048)};
    fill_rows(1024, 1);
    fill_rows(2048, 5000);
    memset(memory + 4096, 0x55, 8192);
    struct engine_event event =
        expect_done(submit_runs(runs, 2)); // one wave: the write comes first
    ck_assert_uint_eq(event.num_dispatches, 2);
    ck_assert_uint_ne(event.results[0].dispatch, event.results[1].dispatch);
    expect_rows(4096, 1);
    expect_rows(8192, 5000);
    for (uint64_t i = 4096 + BLOCK * 32; i < 8192; i++)
        ck_assert_int_eq(memory[i], 0x55);
    engine_batch_destroy(writer);
    engine_batch_destroy(reader);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(batch_without_sequences_is_written_through)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *writer = open_batch((struct engine_batch_params){
        .cache = cache, .num_tokens = 2, .slot_mapping = (int64_t[]){-1, 3 * BLOCK}});
    struct engine_batch *reader = one_key(cache, 3, false);
    struct engine_run runs[2] = {kind_run(ENGINE_WRITE, writer, 1024, 2048),
                                 plain_run(reader, 0, 0, 0, 0, 4096)};
    fill_rows(2048, 7);
    expect_done(submit_runs(runs, 2));
    expect_floats(4096, 107);
    runs[0].kind = ENGINE_ATTEND; // but not read
    uint64_t sequence = submit_runs(runs, 1);
    ck_assert_int_eq(engine_wait(engine, sequence, DEADLINE_S * 1000), STATUS_OK);
    ck_assert_int_eq(expect_event(ENGINE_EVENT_DONE).results[0].status, STATUS_INVALID);
    struct error error = {0};
    ck_assert_int_eq(engine_run_check(engine, runs, &error), STATUS_INVALID);
    engine_batch_destroy(writer);
    engine_batch_destroy(reader);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(gathers_of_several_batches_share_a_dispatch_and_keep_their_rows)
{
    struct engine_cache *cache = plain_cache(), *twin = plain_cache();
    unsigned char bytes[2][512];
    write_pattern(cache, 0, 1, bytes[0]);
    write_pattern(twin, 0, 3, bytes[1]);
    // Sequences of 0, 3, 0 and 2 keys.
    struct engine_batch *ragged = open_batch((struct engine_batch_params){
        .cache = cache,
        .num_seqs = 4,
        .max_blocks = 1,
        .cu_seqlens_q = (int32_t[]){0, 0, 0, 0, 0},
        .seq_lens_kv = (int32_t[]){0, 3, 0, 2},
        .block_table = (int32_t[]){-1, 1, -1, 1},
    });
    struct engine_batch *other = one_key(twin, 3, false);
    struct engine_run runs[2] = {kind_run(ENGINE_GATHER, ragged, 1024, 2048),
                                 kind_run(ENGINE_GATHER, other, 4096, 8192)};
    struct engine_event event = expect_done(submit_runs(runs, 2));
    ck_assert_uint_eq(event.num_dispatches, 1);
    for (int i = 0; i < 5; i++) {
        int key = i < 3 ? i : i - 3;
        expect_bytes(memory + 1024 + i * 32, bytes[0] + key * 32, 32, "a key");
        expect_bytes(memory + 2048 + i * 32, bytes[0] + 256 + key * 32, 32, "a value");
    }
    expect_bytes(memory + 4096, bytes[1], 32, "the other's key");
    expect_bytes(memory + 8192, bytes[1] + 256, 32, "the other's value");
    engine_batch_destroy(ragged);
    engine_batch_destroy(other);
    engine_cache_destroy(cache);
    engine_cache_destroy(twin);
}
END_TEST

START_TEST(copies_move_whole_blocks_of_every_layer_before_the_wave_reads)
{
    struct engine_cache *cache = plain_cache();
    grow_chunk(cache, 1);
    unsigned char bytes[2][512];
    write_pattern(cache, 0, 0, bytes[0]);
    write_pattern(cache, 1, 0, bytes[1]);
    unsigned char untouched[512];
    write_pattern(cache, 1, 1, untouched);
    fill(0, 3); // V of the key that is read
    ck_assert_int_eq(engine_block_write(cache, 0, 5, bytes[1]), STATUS_OK);
    struct engine_batch *reader = one_key(cache, 6, false);
    struct engine_copy first[] = {{0, 6, 0}, {-1, 5, 0}}, second[] = {{0, 2, 0}};
    struct engine_run runs[3] = {
        plain_run(reader, 0, 0, 0, 0, 4096),
        {.kind = ENGINE_COPY, .cache = cache, .copies = first, .num_copies = 2},
        {.kind = ENGINE_COPY, .cache = cache, .copies = second, .num_copies = 1},
    };
    struct engine_event event = expect_done(submit_runs(runs, 3));
    ck_assert_uint_eq(event.num_dispatches, 2);
    ck_assert_uint_eq(event.results[1].dispatch, event.results[2].dispatch);
    for (uint32_t layer = 0; layer < 2; layer++) {
        expect_block(cache, layer, 0, bytes[layer]);
        expect_block(cache, layer, 6, bytes[layer]);
        expect_block(cache, layer, 2, bytes[layer]);
        expect_block(cache, layer, 5, zero_block);
    }
    expect_block(cache, 1, 1, untouched);
    expect_bytes(memory + 4096, bytes[0] + 256, 32, "what the wave read");
    engine_batch_destroy(reader);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(copies_of_later_waves_see_those_of_earlier_ones)
{
    struct engine_cache *cache = plain_cache();
    unsigned char bytes[512];
    write_pattern(cache, 1, 0, bytes);
    struct engine_copy pairs[] = {{0, 1, 0}, {1, 2, 0}, {-1, 1, 0}};
    struct engine_run runs[3];
    for (int i = 0; i < 3; i++)
        runs[i] = (struct engine_run){
            .kind = ENGINE_COPY, .cache = cache, .copies = &pairs[i], .num_copies = 1};
    expect_done(submit(&(struct engine_submission){
        .runs = runs, .num_runs = 3, .wave_ends = (uint32_t[]){1, 2, 3}, .num_waves = 3}));
    expect_block(cache, 1, 0, bytes);
    expect_block(cache, 1, 1, zero_block);
    expect_block(cache, 1, 2, bytes);
    engine_cache_destroy(cache);
}
END_TEST

// Blocks of two layers; the third and fourth of six ranges are both layers of block 1.
START_TEST(a_slice_of_a_copy_copies_its_blocks_and_layers_alone)
{
    struct engine_cache *cache = plain_cache();
    unsigned char bytes[3][2][512];
    struct engine_copy pairs[] = {{0, 4, 0}, {1, 5, 0}, {2, 6, 0}};
    struct engine_run run = {
        .kind = ENGINE_COPY, .cache = cache, .copies = pairs, .num_copies = 3, .num_slices = 4};
    grow_chunk(cache, 1);
    for (int32_t i = 0; i < 6; i++)
        write_pattern(cache, (uint32_t)i % 2, i / 2, bytes[i / 2][i % 2]);
    const uint32_t ends[] = {1, 3, 4, 6}; // of 6 ranges
    for (uint32_t slice = 0; slice < 4; slice++) {
        run.slice = slice;
        expect_done(submit_runs(&run, 1));
        for (uint32_t i = 0; i < 6; i++)
            expect_block(cache, i % 2, (int32_t)(4 + i / 2),
                         i < ends[slice] ? (const void *)bytes[i / 2][i % 2] : zero_block);
    }
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(copies_of_large_blocks_arrive_to_the_last_byte)
{
    struct engine_cache_params params = shape(1, 8, 64, DTYPE_F32);
    params.kv.block_size = 32;
    struct engine_cache *cache = open_cache(params);
    grow_chunk(cache, 0);
    unsigned char *bytes = malloc(engine_layer_block_bytes(&params));
    write_pattern(cache, 0, 1, bytes);
    engine->device.adapter.max_groups[1] = 3; // fewer than the dispatch needs
    struct engine_run run = {.kind = ENGINE_COPY,
                             .cache = cache,
                             .copies = (struct engine_copy[]){{1, 3, 0}},
                             .num_copies = 1};
    expect_done(submit_runs(&run, 1));
    expect_block(cache, 0, 3, bytes);
    free(bytes);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(blocks_go_to_an_imported_arena_and_come_back_with_all_layers)
{
    struct engine_cache *cache = plain_cache();
    unsigned char bytes[2][512];
    if (!engine_arena_imported(arena)) {
        struct engine_copy copy = {ENGINE_COPY_ARENA, 1, 0};
        struct engine_run run = {
            .kind = ENGINE_COPY, .cache = cache, .arena = arena, .copies = &copy, .num_copies = 1};
        struct error error = {0};
        ck_assert_int_eq(engine_run_check(engine, &run, &error), STATUS_INVALID);
        engine_cache_destroy(cache);
        return;
    }
    write_pattern(cache, 0, 1, bytes[0]);
    write_pattern(cache, 1, 1, bytes[1]);
    memset(memory, 0x55, 8192);
    struct engine_copy out[] = {{1, ENGINE_COPY_ARENA, 4096}},
                       in[] = {{ENGINE_COPY_ARENA, 3, 4096}, {ENGINE_COPY_ARENA, 2, 16384}};
    struct engine_run runs[2] = {
        {.kind = ENGINE_COPY, .cache = cache, .arena = arena, .copies = out, .num_copies = 1},
        {.kind = ENGINE_COPY, .cache = cache, .arena = arena, .copies = in, .num_copies = 2},
    };
    memset(memory + 16384, 0x77, 1024);
    expect_done(submit_runs(runs, 1));
    expect_bytes(memory + 4096, bytes[0], 512, "layer 0");
    expect_bytes(memory + 4096 + 512, bytes[1], 512, "layer 1");
    ck_assert_int_eq(memory[4095], 0x55);
    ck_assert_int_eq(memory[4096 + 1024], 0x55);
    expect_done(submit_runs(runs + 1, 1));
    unsigned char sevens[512];
    memset(sevens, 0x77, sizeof sevens);
    for (uint32_t layer = 0; layer < 2; layer++) {
        expect_block(cache, layer, 3, bytes[layer]);
        expect_block(cache, layer, 2, sevens);
    }
    engine_cache_destroy(cache);
}
END_TEST

// Two tokens of two heads. Part n is n + 1 everywhere; for token 1 the second part saw no key.
static struct engine_run merge_run(const struct engine_part *parts, uint32_t num_parts)
{
    return (struct engine_run){
        .kind = ENGINE_MERGE,
        .arena = arena,
        .num_heads = 2,
        .out = dense(0, 2, 8, DTYPE_F32),
        .lse = {.offset = 512, .token_stride = 12, .dtype = DTYPE_F32},
        .parts = parts,
        .num_parts = num_parts,
        .num_tokens = 2,
        .head_dim = 8,
    };
}

START_TEST(merges_weigh_a_callers_parts_and_tell_their_lse)
{
    struct engine_part parts[2];
    for (uint64_t part = 0; part < 2; part++) {
        parts[part] = (struct engine_part){
            .out = dense(4096 + part * 4096, 2, 8, DTYPE_F32),
            .lse = {.offset = 16384 + part * 64, .token_stride = 8, .dtype = DTYPE_F32},
        };
        for (int i = 0; i < 32; i++)
            floats(4096 + part * 4096)[i] = (float)part + 1;
        for (int i = 0; i < 4; i++)
            floats(16384 + part * 64)[i] = part && i >= 2 ? -INFINITY : logf(part ? 3 : 1);
    }
    struct engine_run runs[2] = {merge_run(parts, 2), merge_run(parts, 1)};
    runs[1].out.offset = 1024;
    runs[1].lse.dtype = 0; // not wanted
    struct engine_event event = expect_done(submit_runs(runs, 2));
    ck_assert_uint_eq(event.num_dispatches, 2);
    for (int i = 0; i < 32; i++) {
        ck_assert_float_eq_tol(floats(0)[i], i < 16 ? 1.75f : 1.0f, 1e-6f);
        ck_assert_float_eq(floats(1024)[i], 1);
    }
    for (int head = 0; head < 2; head++) {
        ck_assert_float_eq_tol(floats(512)[head], logf(4), 1e-6f);
        ck_assert_float_eq_tol(floats(512)[3 + head], 0, 1e-6f);
    }
    ck_assert_float_eq(floats(512)[2], 0); // between the rows
}
END_TEST

START_TEST(merge_of_more_heads_than_the_device_takes_is_refused)
{
    struct engine_part part = {.out = dense(4096, 2, 8, DTYPE_F32)};
    struct engine_run run = merge_run(&part, 1);
    struct error error = {0};
    ck_assert_int_eq(engine_run_check(engine, &run, &error), STATUS_OK);
    engine->device.adapter.max_groups[0] = 1;
    ck_assert_int_eq(engine_run_check(engine, &run, &error), STATUS_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(error.text, "2 heads"));
}
END_TEST

// ---- K and V in the arena ----

enum { KEYS = 65536, VALUES = 131072 }; // offsets in the arena

static struct engine_kv plain_kv(uint32_t block_size)
{
    return (struct engine_kv){.num_kv_heads = 1,
                              .head_dim_k = 8,
                              .head_dim_v = 8,
                              .block_size = block_size,
                              .k_dtype = DTYPE_F32,
                              .v_dtype = DTYPE_F32};
}

// A tensor of 8 f32 whose rows are 64 bytes apart, so that a test can see that staging does not
// copy the gaps.
static struct wire_tensor wide(uint64_t offset, uint64_t outer)
{
    return (struct wire_tensor){.offset = offset,
                                .token_stride = 64,
                                .head_stride = 32,
                                .dtype = DTYPE_F32,
                                .outer_stride = outer};
}

static struct engine_run local_run(struct engine_batch *batch, uint64_t outer)
{
    struct engine_run run = plain_run(batch, 0, 0, 1024, 2048, 4096);
    run.keys = wide(KEYS, outer);
    run.values = wide(VALUES, outer);
    return run;
}

START_TEST(block_tensors_in_the_arena_are_written_and_read)
{
    const uint64_t outer = BLOCK * 64 + 128;
    struct engine_batch *batch = open_batch((struct engine_batch_params){
        .place = ENGINE_BLOCKS,
        .kv = plain_kv(BLOCK),
        .num_seqs = 2,
        .max_blocks = 2,
        .num_tokens = 3,
        .cu_seqlens_q = (int32_t[]){0, 1, 3},
        .seq_lens_kv = (int32_t[]){9, 2},
        .block_table =
            (int32_t[]){1 << 30, 5, 3,
                        1 << 30}, // the window hides the first block, the second is not used
        .slot_mapping = (int64_t[]){5 * BLOCK, 3 * BLOCK, -1},
    });
    struct engine_run run = local_run(batch, outer);
    run.windowed = true;
    run.window_left = 0;
    memset(memory, 0, ARENA_BYTES);
    memset(memory + KEYS, 0x11, 65536);
    fill_rows(1024, 1);
    fill_rows(2048, 10);
    fill(VALUES + 3 * outer + 64, 500); // key 1 of sequence 1: the run does not write it, but it is
                                        // there
    char *before = malloc(ARENA_BYTES);
    memcpy(before, memory, ARENA_BYTES);
    expect_done(submit_runs(&run, 1));
    expect_floats(4096, 10);
    expect_floats(4096 + 32, 110);
    expect_floats(4096 + 64, 500);
    memcpy(before + 4096, memory + 4096, 96);
    memcpy(before + KEYS + 5 * outer, memory + 1024, 32);
    memcpy(before + KEYS + 3 * outer, memory + 1024 + 32, 32);
    memcpy(before + VALUES + 5 * outer, memory + 2048, 32);
    memcpy(before + VALUES + 3 * outer, memory + 2048 + 32, 32);
    expect_bytes(memory, before, ARENA_BYTES, "the arena");
    free(before);
    engine_batch_destroy(batch);
}
END_TEST

// Two entries of three rows each. The second has two keys and one query, so two rows of `out` are
// zeroes.
START_TEST(contiguous_rows_with_outer_strides_and_lengths_are_read)
{
    const uint64_t outer = 4 * 64;
    struct engine_batch *batch = open_batch((struct engine_batch_params){
        .place = ENGINE_ROWS,
        .kv = plain_kv(0),
        .num_seqs = 2,
        .num_tokens = 6,
        .cu_seqlens_q = (int32_t[]){0, 3, 6},
        .seq_lens_kv = (int32_t[]){3, 2},
        .q_lens = (int32_t[]){3, 1},
    });
    struct engine_run run = local_run(batch, outer);
    run.q = wide(0, outer);
    run.out = wide(4096, 512);
    run.windowed = true;
    run.window_left = run.window_right = 0; // each query sees the key at its own position
    memset(memory, 0, ARENA_BYTES);
    memset(memory + 4096, 0x55, 1024);
    for (uint64_t seq = 0; seq < 2; seq++)
        for (uint64_t key = 0; key < 3; key++)
            fill(VALUES + seq * outer + key * 64, (float)(seq * 1000 + key * 100));
    expect_done(submit_runs(&run, 1));
    expect_floats(4096, 0);
    expect_floats(4096 + 64, 100);
    expect_floats(4096 + 128, 200);
    expect_floats(4096 + 512, 1100); // position 1: the last of two keys
    for (uint64_t row = 1; row < 3; row++)
        for (int i = 0; i < 8; i++)
            ck_assert_float_eq(floats(4096 + 512 + row * 64)[i], 0);
    ck_assert_int_eq(memory[4096 + 32], 0x55);
    ck_assert_int_eq(memory[4096 + 3 * 64], 0x55);
    engine_batch_destroy(batch);
}
END_TEST

START_TEST(contiguous_rows_of_ragged_sequences_are_read_and_gathered)
{
    struct engine_batch *batch = open_batch((struct engine_batch_params){
        .place = ENGINE_ROWS,
        .kv = plain_kv(0),
        .num_seqs = 2,
        .num_tokens = 2,
        .cu_seqlens_q = (int32_t[]){0, 1, 2},
        .seq_lens_kv = (int32_t[]){1, 3},
        .kv_starts = (int32_t[]){7, 2},
    });
    struct engine_run runs[2] = {local_run(batch, 0), local_run(batch, 0)};
    runs[0].windowed = true;
    runs[0].window_left = 0;
    runs[1].kind = ENGINE_GATHER;
    runs[1].k = dense(8192, 1, 8, DTYPE_F32);
    runs[1].v = dense(16384, 1, 8, DTYPE_F32);
    memset(memory, 0, ARENA_BYTES);
    for (uint64_t row = 0; row < 8; row++) {
        fill(KEYS + row * 64, -(float)(row * 100));
        fill(VALUES + row * 64, (float)(row * 100));
    }
    expect_done(submit_runs(runs, 2));
    expect_floats(4096, 700);
    expect_floats(4096 + 32, 400);
    const uint64_t rows[] = {7, 2, 3, 4};
    for (uint64_t i = 0; i < 4; i++) {
        expect_floats(8192 + i * 32, -(float)(rows[i] * 100));
        expect_floats(16384 + i * 32, (float)(rows[i] * 100));
    }
    engine_batch_destroy(batch);
}
END_TEST

// Sequences of one query each that all begin at row 0.
static struct engine_batch *sequences_of_the_same_rows(int32_t num_keys)
{
    enum { SEQS = 64 };
    int32_t cu[SEQS + 1], lens[SEQS], starts[SEQS] = {0};
    for (int32_t i = 0; i <= SEQS; i++)
        cu[i] = i;
    for (int i = 0; i < SEQS; i++)
        lens[i] = num_keys;
    return open_batch((struct engine_batch_params){
        .place = ENGINE_ROWS,
        .kv = plain_kv(0),
        .num_seqs = SEQS,
        .num_tokens = SEQS,
        .cu_seqlens_q = cu,
        .seq_lens_kv = lens,
        .kv_starts = starts,
    });
}

// Copied one by one, 64 times a billion rows would take very long.
START_TEST(rows_that_a_tensor_repeats_are_staged_once)
{
    struct engine_batch *batch = sequences_of_the_same_rows(1000000000);
    struct engine_run run = local_run(batch, 0);
    run.keys.token_stride = run.values.token_stride = 0;
    run.windowed = true;
    run.window_left = 0;
    run.num_splits = 1;
    memset(memory, 0, ARENA_BYTES);
    fill(VALUES, 300);
    expect_done(submit_runs(&run, 1));
    expect_floats(4096, 300);
    expect_floats(4096 + 63 * 32, 300);
    engine_batch_destroy(batch);
}
END_TEST

// If rows are more bytes than the range has, the whole range is copied, with the bytes between the
// rows.
START_TEST(rows_that_sequences_share_are_staged_once)
{
    struct engine_batch *batch = sequences_of_the_same_rows(1000);
    struct engine_run run = local_run(batch, 0);
    run.windowed = true;
    run.window_left = 0;
    memset(memory, 0x55, ARENA_BYTES);
    memset(memory, 0, 4096); // q
    memset(memory + KEYS, 0, 65536);
    memset(memory + VALUES + 32, 0x77, 32);
    fill(VALUES + 999 * 64, 700);
    if (!arena->imported)
        memset(arena->buffer.mapped, 0x11, ARENA_BYTES);
    expect_done(submit_runs(&run, 1));
    expect_floats(4096, 700);
    expect_floats(4096 + 63 * 32, 700);
    if (!arena->imported)
        expect_bytes((char *)arena->buffer.mapped + VALUES + 32, memory + VALUES + 32, 32,
                     "what is between two rows");
    engine_batch_destroy(batch);
}
END_TEST

// Tokens of two interleaved sequences. Their rows, slots and positions are in the caller's order.
START_TEST(interleaved_tokens_find_their_rows)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = open_batch((struct engine_batch_params){
        .cache = cache,
        .num_seqs = 2,
        .max_blocks = 1,
        .num_tokens = 4,
        .cu_seqlens_q = (int32_t[]){0, 2, 4},
        .seq_lens_kv = (int32_t[]){2, 2},
        .block_table = (int32_t[]){1, 3},
        .slot_mapping = (int64_t[]){3 * BLOCK, BLOCK, 3 * BLOCK + 1, BLOCK + 1},
        .positions = (int32_t[]){0, 0, 1, 1},
        .token_rows = (int32_t[]){1, 3, 0, 2},
    });
    struct engine_run run = plain_run(batch, 0, 0, 1024, 2048, 4096);
    run.windowed = true;
    run.window_left = 0; // each query sees only itself
    memset(memory, 0, 1024);
    fill_rows(2048, 1);
    expect_done(submit_runs(&run, 1));
    for (uint64_t row = 0; row < 4; row++)
        expect_floats(4096 + row * 32, 1 + (float)row * 100);
    unsigned char bytes[512] = {0};
    ck_assert_int_eq(engine_block_read(cache, 0, 1, bytes), STATUS_OK);
    expect_bytes(bytes + 256 + 32, memory + 2048 + 3 * 32, 32, "sequence 0, key 1");
    engine_batch_destroy(batch);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(slots_of_contiguous_rows_are_refused)
{
    struct engine_batch *batch = NULL;
    struct error error = {0};
    struct engine_batch_params params = {.engine = engine,
                                         .place = ENGINE_ROWS,
                                         .kv = plain_kv(0),
                                         .num_tokens = 1,
                                         .slot_mapping = (int64_t[]){0}};
    ck_assert_int_eq(engine_batch_create(&params, &batch, &error), STATUS_INVALID);
    ck_assert_ptr_null(batch);
}
END_TEST

// ---- RoPE ----

// K of token t is (1, 0, ...) in each pair. After a rotation by angle t and back, a gather must
// return cos and sin.
START_TEST(keys_are_turned_as_they_are_written)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *writer = eight_keys(cache, 1, true);
    const double frequencies[4] = {1, 0.5, 6.283185307179586, -0.25};
    struct engine_run runs[2] = {kind_run(ENGINE_WRITE, writer, 1024, 2048),
                                 kind_run(ENGINE_GATHER, writer, 4096, 8192)};
    runs[0].rope = (struct engine_rope){.dim = 8, .interleaved = true, .frequencies = frequencies};
    for (int i = 0; i < BLOCK * 8; i++)
        floats(1024)[i] = i % 2 ? 0 : 1;
    expect_done(submit_runs(runs, 2));
    for (int token = 0; token < BLOCK; token++)
        for (int pair = 0; pair < 4; pair++) {
            double angle = token * frequencies[pair];
            ck_assert_float_eq_tol(floats(4096)[token * 8 + pair * 2], (float)cos(angle), 1e-6f);
            ck_assert_float_eq_tol(floats(4096)[token * 8 + pair * 2 + 1], (float)sin(angle),
                                   1e-6f);
        }
    runs[0].rope = (struct engine_rope){.dim = 8, .theta = 100}; // pairs of halves, by theta
    expect_done(submit_runs(runs, 2));
    for (int token = 0; token < BLOCK; token++)
        for (int pair = 0; pair < 4; pair++) {
            double angle = token * pow(100, -pair / 4.0),
                   x = pair % 2 ? 0 : 1; // and the same for the partner
            ck_assert_float_eq_tol(floats(4096)[token * 8 + pair],
                                   (float)(x * cos(angle) - x * sin(angle)), 1e-6f);
            ck_assert_float_eq_tol(floats(4096)[token * 8 + pair + 4],
                                   (float)(x * cos(angle) + x * sin(angle)), 1e-6f);
        }
    engine_batch_destroy(writer);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(rope_that_shaders_cannot_follow_is_refused)
{
    struct engine_cache *cache = plain_cache();
    struct engine_batch *batch = eight_keys(cache, 1, true);
    struct engine_batch *bare = open_batch((struct engine_batch_params){
        .cache = cache, .num_tokens = 1, .slot_mapping = (int64_t[]){0}});
    struct engine_run run = kind_run(ENGINE_WRITE, batch, 1024, 2048);
    struct error error = {0};
    run.rope = (struct engine_rope){.dim = 8, .theta = 10000};
    ck_assert_int_eq(engine_run_check(engine, &run, &error), STATUS_OK);
    run.rope.dim = 10;
    ck_assert_int_eq(engine_run_check(engine, &run, &error), STATUS_INVALID);
    run.rope.dim = 7;
    ck_assert_int_eq(engine_run_check(engine, &run, &error), STATUS_INVALID);
    run.rope.dim = 8;
    run.batch = bare;
    ck_assert_int_eq(engine_run_check(engine, &run, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "needs positions"));
    engine_batch_destroy(batch);
    engine_batch_destroy(bare);
    engine_cache_destroy(cache);
}
END_TEST

void add_kind_tests(Suite *suite)
{
    const TTest *const each[] = {a_gather_returns_what_a_write_run_stored,
                                 batch_without_sequences_is_written_through,
                                 gathers_of_several_batches_share_a_dispatch_and_keep_their_rows,
                                 copies_move_whole_blocks_of_every_layer_before_the_wave_reads,
                                 merges_weigh_a_callers_parts_and_tell_their_lse,
                                 block_tensors_in_the_arena_are_written_and_read,
                                 contiguous_rows_with_outer_strides_and_lengths_are_read,
                                 contiguous_rows_of_ragged_sequences_are_read_and_gathered,
                                 rows_that_a_tensor_repeats_are_staged_once,
                                 rows_that_sequences_share_are_staged_once,
                                 interleaved_tokens_find_their_rows,
                                 keys_are_turned_as_they_are_written,
                                 NULL};
    check_either(suite, (const char *const[]){"kinds, arena imported", "kinds, arena mirrored"},
                 (const SFun[]){setup_import, setup_staging}, teardown, each);
    check_case(suite, "kinds, however the arena is reached", setup_import, teardown,
               (const TTest *const[]){copies_of_later_waves_see_those_of_earlier_ones,
                                      a_slice_of_a_copy_copies_its_blocks_and_layers_alone,
                                      copies_of_large_blocks_arrive_to_the_last_byte,
                                      blocks_go_to_an_imported_arena_and_come_back_with_all_layers,
                                      merge_of_more_heads_than_the_device_takes_is_refused,
                                      slots_of_contiguous_rows_are_refused,
                                      rope_that_shaders_cannot_follow_is_refused, NULL},
               1);
}
