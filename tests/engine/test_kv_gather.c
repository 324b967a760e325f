// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_kv_gather.c - K and V from a tensor to where they are kept and back, for each place, and
// what copies of blocks leave unchanged. A run may change nothing but its output.

#include "rigs/kv_world.h"

#include <math.h>
#include <string.h>

enum { HEADS = 2, BLOCK_TOKENS = 16, BLOCKS = 16, SEQS = 4, TABLE = 4, KEYS = 100 };
enum {
    K_AT = 0,
    V_AT = 64 << 10,
    KEYS_AT = 128 << 10,
    VALUES_AT = 320 << 10,
    K_TO = 512 << 10,
    V_TO = 640 << 10
};

static const int32_t kv_lens[SEQS] = {50, 0, 17, 33};
static const int32_t kv_begins[SEQS + 1] = {0, 50, 50, 67, KEYS};
static const int32_t table[SEQS][TABLE] = {
    {7, 0, 12, 3}, {-1, -1, -1, -1}, {14, 9, -1, -1}, {1, 15, 8, 99}};

enum layout { POOL, HEADS_FIRST, TOKENS_FIRST };

struct trip {
    enum layout layout;
    enum dtype io;
    struct engine_kv kv;
    float k_scale, v_scale;
};

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + 15) & ~UINT64_C(15);
}

// [blocks, heads, tokens, dim] or [blocks, tokens, heads, dim], rows at multiples of 16.
static struct wire_tensor block_tensor(const struct trip *trip, uint64_t offset, enum dtype dtype,
                                       uint32_t dim)
{
    uint64_t row = round_up((uint64_t)dim * dtype_size(dtype));
    bool heads_first = trip->layout == HEADS_FIRST;
    return (struct wire_tensor){.offset = offset,
                                .dtype = dtype,
                                .outer_stride = row * HEADS * BLOCK_TOKENS + 32,
                                .token_stride = heads_first ? row : row * HEADS,
                                .head_stride = heads_first ? row * BLOCK_TOKENS : row};
}

static enum engine_place place_of(const struct trip *trip)
{
    return trip->layout == POOL ? ENGINE_POOL : ENGINE_BLOCKS;
}

// ---- what may change ----

static void allow(uint8_t *allowed, const struct wire_tensor *tensor, uint64_t outer,
                  uint64_t token, uint32_t dim)
{
    for (uint32_t h = 0; h < HEADS; h++)
        memset(allowed + tensor->offset + outer * tensor->outer_stride +
                   token * tensor->token_stride + h * tensor->head_stride,
               1, dim * dtype_size(tensor->dtype));
}

static void expect_untouched(const uint8_t *before, const uint8_t *allowed)
{
    for (uint32_t at = 0; at < ARENA_BYTES; at++)
        if (!allowed[at] && (uint8_t)memory[at] != before[at])
            ck_abort_msg("byte %u of the arena changed from %02x to %02x", at, before[at],
                         (uint8_t)memory[at]);
}

static uint8_t *arena_copy(void)
{
    uint8_t *copy = malloc(ARENA_BYTES);
    ck_assert_ptr_nonnull(copy);
    return memcpy(copy, memory, ARENA_BYTES);
}

// ---- writing ----

static int64_t slot_of(uint32_t seq, uint32_t key)
{
    return (int64_t)table[seq][key / BLOCK_TOKENS] * BLOCK_TOKENS + key % BLOCK_TOKENS;
}

static struct engine_run base_run(const struct trip *trip, enum engine_kind kind,
                                  struct engine_batch *batch)
{
    return (struct engine_run){
        .kind = kind,
        .batch = batch,
        .arena = arena,
        .num_heads = HEADS,
        .k_scale = trip->k_scale,
        .v_scale = trip->v_scale,
        .keys = block_tensor(trip, KEYS_AT, trip->kv.k_dtype, trip->kv.head_dim_k),
        .values = block_tensor(trip, VALUES_AT, trip->kv.v_dtype, trip->kv.head_dim_v),
    };
}

static struct wire_tensor moved(struct wire_tensor tensor, uint32_t tokens)
{
    tensor.offset += tokens * tensor.token_stride;
    return tensor;
}

// Sequences [first, end), read from or written to rows [kv_begins[first], kv_begins[end]) of the
// tensors.
static struct engine_run part_run(const struct trip *trip, struct engine_cache *cache,
                                  enum engine_kind kind, uint32_t first, uint32_t end)
{
    int64_t slots[KEYS];
    int32_t cu[SEQS + 1] = {0};
    uint32_t begin = (uint32_t)kv_begins[first], count = (uint32_t)kv_begins[end] - begin, used = 0;
    for (uint32_t s = first; s < end; s++)
        for (uint32_t j = 0; j < (uint32_t)kv_lens[s]; j++)
            slots[used++] = slot_of(s, j);
    bool writes = kind == ENGINE_WRITE;
    struct engine_run run = base_run(trip, kind,
                                     open_batch((struct engine_batch_params){
                                         .engine = engine,
                                         .cache = cache,
                                         .place = place_of(trip),
                                         .kv = trip->kv,
                                         .num_seqs = writes ? 0 : end - first,
                                         .max_blocks = writes ? 0 : TABLE,
                                         .num_tokens = writes ? count : 0,
                                         .cu_seqlens_q = writes ? NULL : cu,
                                         .seq_lens_kv = writes ? NULL : kv_lens + first,
                                         .block_table = writes ? NULL : table[first],
                                         .slot_mapping = writes ? slots : NULL,
                                     }));
    run.k = moved(dense(writes ? K_AT : K_TO, HEADS, trip->kv.head_dim_k, trip->io), begin);
    run.v = moved(dense(writes ? V_AT : V_TO, HEADS, trip->kv.head_dim_v, trip->io), begin);
    return run;
}

// Both directions, each by two runs, one after the other.
static void go_by_slices(const struct engine_run runs[4])
{
    for (int i = 0; i < 4; i++)
        kv_run(&runs[i]);
}

// Both directions in one submission, each by two runs that share a dispatch.
static void go_there_and_back(const struct trip *trip, struct engine_cache *cache)
{
    struct engine_run runs[4] = {
        part_run(trip, cache, ENGINE_WRITE, 0, 2),
        part_run(trip, cache, ENGINE_WRITE, 2, 4),
        part_run(trip, cache, ENGINE_GATHER, 0, 3),
        part_run(trip, cache, ENGINE_GATHER, 3, 4),
    };
    if (kv_slices())
        go_by_slices(runs);
    else
        expect_done(submit(&(struct engine_submission){
            .runs = runs, .num_runs = 4, .wave_ends = (uint32_t[]){2, 4}, .num_waves = 2}));
    for (int i = 0; i < 4; i++)
        engine_batch_destroy(runs[i].batch);
}

// ---- the expected result of reading back ----

static float float_at(const struct wire_tensor *tensor, uint32_t row, uint32_t head, uint32_t d)
{
    return word_float(numbers_widen(tensor->dtype, tensor_bits(tensor, row, head, d)));
}

static void expect_row(const struct trip *trip, uint32_t row, uint32_t head, bool v)
{
    uint32_t dim = v ? trip->kv.head_dim_v : trip->kv.head_dim_k;
    enum dtype dtype = v ? trip->kv.v_dtype : trip->kv.k_dtype, io = trip->io;
    struct wire_tensor from = dense(v ? V_AT : K_AT, HEADS, dim, io),
                       to = dense(v ? V_TO : K_TO, HEADS, dim, io);
    bool is_scaled = trip->kv.scale_mode != SCALE_NONE && dtype_size(dtype) == 1;
    float values[128], scale = v ? trip->v_scale : trip->k_scale, inverse = 1 / scale;
    for (uint32_t d = 0; d < dim; d++)
        values[d] = float_at(&from, row, head, d);
    if (trip->kv.scale_mode == SCALE_PER_TOKEN_HEAD && is_scaled)
        numbers_scale(dtype, values, dim, &scale, &inverse);
    for (uint32_t d = 0; d < dim; d++) {
        uint32_t bits = tensor_bits(&from, row, head, d), got = tensor_bits(&to, row, head, d);
        uint32_t stored = is_scaled ? numbers_round(dtype, values[d] * inverse)
                                    : numbers_convert(io, bits, dtype);
        float back = word_float(numbers_widen(dtype, stored));
        uint32_t wanted =
            is_scaled ? numbers_round(io, back * scale) : numbers_convert(dtype, stored, io);
        if (got != wanted && !(isnan(numbers_value(io, got)) && isnan(numbers_value(io, wanted))))
            ck_abort_msg("row %u, head %u, dim %u of %c: %x went as %x and came as %x, expected %x",
                         row, head, d, v ? 'V' : 'K', bits, stored, got, wanted);
    }
}

static void fill_rows(const struct trip *trip)
{
    struct dice dice = {trip->kv.k_dtype * 8 + trip->io};
    memset(memory, 0xa5, ARENA_BYTES);
    for (uint32_t i = 0; i < KEYS * HEADS * trip->kv.head_dim_k; i++)
        numbers_put(memory + K_AT, trip->io, i,
                    numbers_round(trip->io, dice_normal(&dice) * 4 * trip->k_scale));
    for (uint32_t i = 0; i < KEYS * HEADS * trip->kv.head_dim_v; i++)
        numbers_put(memory + V_AT, trip->io, i,
                    trip->kv.scale_mode
                        ? numbers_round(trip->io, dice_normal(&dice) * trip->v_scale)
                        : (uint32_t)dice_next(&dice));
}

static void allow_trip(const struct trip *trip, uint8_t *allowed)
{
    struct engine_run run = base_run(trip, ENGINE_GATHER, NULL);
    struct wire_tensor k = dense(K_TO, HEADS, trip->kv.head_dim_k, trip->io);
    struct wire_tensor v = dense(V_TO, HEADS, trip->kv.head_dim_v, trip->io);
    for (uint32_t s = 0, row = 0; s < SEQS; s++)
        for (uint32_t j = 0; j < (uint32_t)kv_lens[s]; j++, row++) {
            uint64_t block = (uint64_t)slot_of(s, j) / BLOCK_TOKENS, token = j % BLOCK_TOKENS;
            allow(allowed, &k, 0, row, trip->kv.head_dim_k);
            if (!trip->kv.v_is_k_prefix)
                allow(allowed, &v, 0, row, trip->kv.head_dim_v);
            if (trip->layout == POOL)
                continue;
            allow(allowed, &run.keys, block, token, trip->kv.head_dim_k);
            if (!trip->kv.v_is_k_prefix)
                allow(allowed, &run.values, block, token, trip->kv.head_dim_v);
        }
}

#define KV(K, V, K_DIM, V_DIM, MODE)                                                               \
    .kv = {.num_kv_heads = HEADS,                                                                  \
           .head_dim_k = K_DIM,                                                                    \
           .head_dim_v = V_DIM,                                                                    \
           .block_size = BLOCK_TOKENS,                                                             \
           .k_dtype = DTYPE_##K,                                                                   \
           .v_dtype = DTYPE_##V,                                                                   \
           .scale_mode = SCALE_##MODE}
#define MLA(K, K_DIM, V_DIM, MODE)                                                                 \
    .kv = {.num_kv_heads = HEADS,                                                                  \
           .head_dim_k = K_DIM,                                                                    \
           .head_dim_v = V_DIM,                                                                    \
           .v_is_k_prefix = true,                                                                  \
           .block_size = BLOCK_TOKENS,                                                             \
           .k_dtype = DTYPE_##K,                                                                   \
           .v_dtype = DTYPE_##K,                                                                   \
           .scale_mode = SCALE_##MODE}

static const struct trip trips[] = {
    {POOL, DTYPE_F16, KV(F16, F16, 24, 40, NONE), 1, 1},
    {POOL, DTYPE_F32, KV(BF16, F32, 8, 72, NONE), 1, 1},
    {POOL, DTYPE_BF16, KV(FP8_E4M3, FP8_E5M2, 8, 24, NONE), 1, 1},
    {POOL, DTYPE_F16, KV(INT8, F16, 64, 16, PER_TENSOR), 0.11f, 1},
    {POOL, DTYPE_BF16, KV(FP8_E4M3, INT8, 24, 8, PER_TOKEN_HEAD), 1, 1},
    {POOL, DTYPE_F32, KV(F16, FP8_E5M2, 40, 24, PER_TOKEN_HEAD), 1, 1},
    {POOL, DTYPE_F16, MLA(FP8_E4M3, 72, 64, PER_TOKEN_HEAD), 1, 1},
    {POOL, DTYPE_BF16, MLA(BF16, 72, 64, NONE), 1, 1},
    {POOL, DTYPE_F32, KV(FP8_E5M2, INT8, 16, 8, PER_TENSOR), 0x1p-122f,
     0x1.8p-128f}, // a subnormal number of f32
    {HEADS_FIRST, DTYPE_F16, KV(F16, BF16, 24, 40, NONE), 1, 1},
    {TOKENS_FIRST, DTYPE_BF16, KV(BF16, BF16, 40, 24, NONE), 1, 1},
    {HEADS_FIRST, DTYPE_F32, KV(FP8_E5M2, INT8, 24, 8, PER_TENSOR), 0.5f, 0.03f},
    {TOKENS_FIRST, DTYPE_F16, KV(INT8, F32, 8, 64, NONE), 1, 1},
    {TOKENS_FIRST, DTYPE_F32, MLA(INT8, 40, 32, PER_TENSOR), 0.07f, 1},
};
enum { TRIPS = sizeof trips / sizeof *trips };

START_TEST(what_is_written_comes_back_from_each_place_as_its_dtype_keeps_it)
{
    const struct trip *trip = &trips[_i];
    fill_rows(trip);
    uint8_t *before = arena_copy(), *allowed = calloc(1, ARENA_BYTES);
    struct engine_cache *cache = trip->layout == POOL ? kv_cache(trip->kv, BLOCKS) : NULL;
    go_there_and_back(trip, cache);
    for (uint32_t row = 0; row < KEYS; row++)
        for (uint32_t h = 0; h < HEADS; h++) {
            expect_row(trip, row, h, false);
            if (!trip->kv.v_is_k_prefix)
                expect_row(trip, row, h, true);
        }
    allow_trip(trip, allowed);
    expect_untouched(before, allowed);
    engine_cache_destroy(cache);
    free(before);
    free(allowed);
}
END_TEST

// Sequences that begin anywhere in one tensor, or are an outer stride apart.
START_TEST(contiguous_rows_are_gathered_by_their_starts_or_by_an_outer_stride)
{
    static const int32_t starts[SEQS] = {60, 3, 43, 5}, cu[SEQS + 1] = {0};
    struct trip trip = {.io = DTYPE_F16, KV(BF16, FP8_E4M3, 24, 8, NONE)};
    trip.kv.block_size = 0;
    fill_rows(&trip);
    struct engine_run run = {
        .kind = ENGINE_GATHER, .arena = arena, .num_heads = HEADS, .k_scale = 1, .v_scale = 1};
    run.k = dense(K_TO, HEADS, 24, DTYPE_F16);
    run.v = dense(V_TO, HEADS, 8, DTYPE_F16);
    run.keys = (struct wire_tensor){
        .offset = KEYS_AT, .token_stride = 112, .head_stride = 48, .dtype = DTYPE_BF16};
    run.values = (struct wire_tensor){.offset = VALUES_AT,
                                      .token_stride = 16,
                                      .head_stride = 6416,
                                      .dtype = DTYPE_FP8_E4M3,
                                      .outer_stride = _i ? 1600 : 0};
    for (uint32_t i = 0; i < 64 << 10; i++)
        memory[KEYS_AT + i] = (char)(i * 7 % 251);
    for (uint32_t i = 0; i < 64 << 10; i++)
        memory[VALUES_AT + i] = (char)(i * 11 % 127);
    run.batch = open_batch((struct engine_batch_params){.engine = engine,
                                                        .place = ENGINE_ROWS,
                                                        .kv = trip.kv,
                                                        .num_seqs = SEQS,
                                                        .cu_seqlens_q = cu,
                                                        .seq_lens_kv = kv_lens,
                                                        .kv_starts = starts});
    kv_run(&run);
    for (uint32_t s = 0, row = 0; s < SEQS; s++)
        for (uint32_t j = 0; j < (uint32_t)kv_lens[s]; j++, row++)
            for (uint32_t h = 0; h < HEADS; h++) {
                uint64_t at =
                    run.values.offset + (_i ? s * 1600 + j * 16 : ((uint64_t)starts[s] + j) * 16);
                for (uint32_t d = 0; d < 24; d++) {
                    uint32_t bits = tensor_bits(&run.keys, (uint32_t)starts[s] + j, h, d);
                    expect_equal_uint(tensor_bits(&run.k, row, h, d),
                                      numbers_convert(DTYPE_BF16, bits, DTYPE_F16));
                }
                for (uint32_t d = 0; d < 8; d++) {
                    uint32_t bits =
                        numbers_bits(memory + at + (uint64_t)h * 6416, DTYPE_FP8_E4M3, d);
                    expect_equal_uint(tensor_bits(&run.v, row, h, d),
                                      numbers_convert(DTYPE_FP8_E4M3, bits, DTYPE_F16));
                }
            }
    engine_batch_destroy(run.batch);
}
END_TEST

// ---- which row goes where ----

enum { ROWS = 20, ROW_DIM = 8 };
static const int32_t row_cu[] = {0, 5, 5, 12, ROWS}, row_kv_lens[] = {5, 9, 7, 8};

// Slots 0 .. 4 * BLOCK_TOKENS of layer 0 are unchanged except those of the mapping.
static void expect_slots(const uint8_t *before, const uint8_t *after, const struct engine_kv *kv,
                         const struct wire_tensor *v, const int64_t *slots)
{
    for (int64_t slot = 0; slot < 4 * BLOCK_TOKENS; slot++) {
        uint32_t writer = ROWS;
        for (uint32_t r = 0; r < ROWS; r++)
            writer = slots[r] == slot ? r : writer;
        for (uint32_t h = 0; h < HEADS; h++)
            for (uint32_t d = 0; d < ROW_DIM; d++) {
                expect_equal_uint(kv_element(after, kv, slot, h, d, true),
                                  writer < ROWS ? tensor_bits(v, writer, h, d)
                                                : kv_element(before, kv, slot, h, d, true));
                if (writer == ROWS)
                    expect_equal_uint(kv_element(after, kv, slot, h, d, false),
                                      kv_element(before, kv, slot, h, d, false));
            }
    }
}

// K is stored by sequences, V by rows. Rows are not in the order of tokens, and some go nowhere.
START_TEST(a_token_is_found_by_its_row_or_by_its_place_in_its_sequence)
{
    struct engine_kv kv = {.num_kv_heads = HEADS,
                           .head_dim_k = ROW_DIM,
                           .head_dim_v = ROW_DIM,
                           .block_size = BLOCK_TOKENS,
                           .k_dtype = DTYPE_F16,
                           .v_dtype = DTYPE_F16};
    struct engine_cache *cache = kv_cache(kv, 4);
    int32_t rows[ROWS], blocks[4] = {0, 1, 2, 3};
    int64_t slots[ROWS];
    uint8_t pattern[4096];
    for (uint32_t i = 0; i < ROWS; i++) {
        rows[i] = (int32_t)(i * 7 % ROWS);
        slots[i] = i % 6 == 5 ? -1 : (int64_t)i * 11 % (4 * BLOCK_TOKENS);
    }
    for (int32_t i = 0; i < 4; i++)
        write_pattern(cache, 0, i, pattern);
    for (uint32_t i = 0; i < 1 << 15; i++)
        ((uint16_t *)memory)[i] = (uint16_t)(i * 3);
    uint8_t *before = kv_blocks(cache, 4);
    struct engine_run run = {
        .kind = ENGINE_WRITE, .arena = arena, .num_heads = HEADS, .k_scale = 1, .v_scale = 1};
    run.k = (struct wire_tensor){.offset = 256,
                                 .token_stride = 48,
                                 .head_stride = 16,
                                 .dtype = DTYPE_F16,
                                 .outer_stride = 1024};
    run.v = dense(16384, HEADS, ROW_DIM, DTYPE_F16);
    run.batch = open_batch((struct engine_batch_params){.engine = engine,
                                                        .cache = cache,
                                                        .kv = kv,
                                                        .num_seqs = 4,
                                                        .max_blocks = 1,
                                                        .num_tokens = ROWS,
                                                        .cu_seqlens_q = row_cu,
                                                        .seq_lens_kv = row_kv_lens,
                                                        .block_table = blocks,
                                                        .slot_mapping = slots,
                                                        .token_rows = rows});
    kv_run(&run);
    uint8_t *after = kv_blocks(cache, 4);
    expect_slots(before, after, &kv, &run.v, slots);
    for (uint32_t s = 0; s < 4; s++)
        for (int32_t t = row_cu[s]; t < row_cu[s + 1]; t++)
            for (uint32_t d = 0; slots[rows[t]] >= 0 && d < HEADS * ROW_DIM; d++) {
                const char *row = memory + 256 + s * 1024 + (uint32_t)(t - row_cu[s]) * 48;
                uint32_t head = d / ROW_DIM,
                         bits = numbers_bits(row + (uint64_t)head * 16, DTYPE_F16, d % ROW_DIM);
                expect_equal_uint(kv_element(after, &kv, slots[rows[t]], head, d % ROW_DIM, false),
                                  bits);
            }
    free(before);
    free(after);
    engine_batch_destroy(run.batch);
    engine_cache_destroy(cache);
}
END_TEST

// More KV heads than scales that a workgroup keeps at once.
START_TEST(three_hundred_kv_heads_get_a_scale_each)
{
    enum { MANY = 300 };
    struct engine_kv kv = {.num_kv_heads = MANY,
                           .head_dim_k = 8,
                           .head_dim_v = 16,
                           .block_size = 8,
                           .k_dtype = DTYPE_INT8,
                           .v_dtype = DTYPE_FP8_E4M3,
                           .scale_mode = SCALE_PER_TOKEN_HEAD};
    struct engine_cache *cache = kv_cache(kv, 1);
    struct dice dice = {300};
    int64_t slots[] = {3, 0};
    for (uint32_t i = 0; i < 1 << 16; i++)
        ((float *)memory)[i] = dice_normal(&dice);
    struct engine_run run = {
        .kind = ENGINE_WRITE, .arena = arena, .num_heads = MANY, .k_scale = 1, .v_scale = 1};
    run.k = dense(0, MANY, 8, DTYPE_F32);
    run.v = dense(64 << 10, MANY, 16, DTYPE_F32);
    run.batch = open_batch((struct engine_batch_params){
        .engine = engine, .cache = cache, .kv = kv, .num_tokens = 2, .slot_mapping = slots});
    kv_run(&run);
    uint8_t *blocks = kv_blocks(cache, 1);
    for (uint32_t i = 0; i < 2 * MANY * 2; i++) {
        bool v = i >= 2 * MANY;
        const struct wire_tensor *tensor = v ? &run.v : &run.k;
        uint32_t token = i / MANY % 2, head = i % MANY, dim = v ? 16 : 8;
        const char *row =
            memory + tensor->offset + token * tensor->token_stride + head * tensor->head_stride;
        float scale, inverse;
        numbers_scale(v ? kv.v_dtype : kv.k_dtype, (const float *)row, dim, &scale, &inverse);
        ck_assert_uint_eq(float_word(kv_scale(blocks, &kv, slots[token], head, v)),
                          float_word(scale));
        for (uint32_t d = 0; d < dim; d++)
            expect_equal_uint(
                kv_element(blocks, &kv, slots[token], head, d, v),
                numbers_round(v ? kv.v_dtype : kv.k_dtype, ((const float *)row)[d] * inverse));
    }
    free(blocks);
    engine_batch_destroy(run.batch);
    engine_cache_destroy(cache);
}
END_TEST

// ---- copies ----

enum { LAYERS = 3, COPY_BLOCKS = 8 };

START_TEST(copies_and_zeroes_of_blocks_touch_no_other_block)
{
    static const struct engine_copy copies[] = {{0, 5, 0}, {6, 1, 0}, {-1, 3, 0}, {0, 7, 0}};
    struct engine_kv kv = {.num_kv_heads = 2,
                           .head_dim_k = 24,
                           .head_dim_v = 8,
                           .block_size = 8,
                           .k_dtype = DTYPE_FP8_E4M3,
                           .v_dtype = DTYPE_F16,
                           .scale_mode = SCALE_PER_TOKEN_HEAD};
    struct engine_cache *cache = open_cache((struct engine_cache_params){
        .name = "copies", .num_layers = LAYERS, .chunk_blocks = 4, .kv = kv});
    uint64_t size = engine_layer_block_bytes(&cache->params);
    unsigned char *wanted = malloc(LAYERS * COPY_BLOCKS * size);
    ck_assert_ptr_nonnull(wanted);
    grow_chunk(cache, 0);
    grow_chunk(cache, 1);
    for (uint32_t i = 0; i < LAYERS * COPY_BLOCKS; i++)
        write_pattern(cache, i / COPY_BLOCKS, (int32_t)(i % COPY_BLOCKS), wanted + i * size);
    kv_run(&(struct engine_run){
        .kind = ENGINE_COPY, .cache = cache, .copies = copies, .num_copies = 4});
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t i = 0; i < 4; i++) {
            unsigned char *blocks = wanted + layer * COPY_BLOCKS * size;
            if (copies[i].from < 0)
                memset(blocks + (uint64_t)copies[i].to * size, 0, size);
            else
                memcpy(blocks + (uint64_t)copies[i].to * size,
                       blocks + (uint64_t)copies[i].from * size, size);
        }
    for (uint32_t i = 0; i < LAYERS * COPY_BLOCKS; i++)
        expect_block(cache, i / COPY_BLOCKS, (int32_t)(i % COPY_BLOCKS), wanted + i * size);
    free(wanted);
    engine_cache_destroy(cache);
}
END_TEST

void add_gather_tests(Suite *suite)
{
    for (int staging = 0; staging < 2; staging++) {
        TCase *tests = tcase_create(staging ? "gather, staging" : "gather");
        tcase_add_checked_fixture(tests, staging ? setup_staging : setup_import, teardown);
        tcase_add_loop_test(tests, what_is_written_comes_back_from_each_place_as_its_dtype_keeps_it,
                            staging ? TRIPS - 5 : 0, TRIPS);
        tcase_add_loop_test(
            tests, contiguous_rows_are_gathered_by_their_starts_or_by_an_outer_stride, 0, 2);
        tcase_add_test(tests, a_token_is_found_by_its_row_or_by_its_place_in_its_sequence);
        if (!staging) {
            tcase_add_test(tests, three_hundred_kv_heads_get_a_scale_each);
            tcase_add_test(tests, copies_and_zeroes_of_blocks_touch_no_other_block);
        }
        suite_add_tcase(suite, tests);
    }
    TCase *slices = tcase_create("gather, slices");
    tcase_add_checked_fixture(slices, setup_slices, teardown);
    tcase_add_loop_test(slices, what_is_written_comes_back_from_each_place_as_its_dtype_keeps_it,
                        TRIPS - 4, TRIPS);
    suite_add_tcase(suite, slices);
}
