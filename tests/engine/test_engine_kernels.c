// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_engine_kernels.c - variants of several kernels: which kernel serves which sequence, that no
// bit depends on the rest of the batch, and that failures are complete. On matrix_emulated, which
// every device runs.

#include "engine/kernels/matrix.h"
#include "rigs/engine_world.h"
#include "shaders/layout.h"

#include <string.h>

enum {
    DIM = 16,
    KEYS = 16,
    COLUMNS = 160,
    KV_LEN = COLUMNS / 2 * KEYS,
    HEADS = 2,
    ROW = HEADS * DIM * 2 /* bytes */
};
enum { Q = 0, K = 1 << 16, V = 1 << 17, OUT = 1 << 18, OTHER = 1 << 19 };

// Kernels of the variant for f16: 0 is decode, 1 is prefill, and the last one serves the rest.
enum { LAST = 6, ALL = 1 << 0 | 1 << 1 | 1 << LAST };

static struct engine_cache *cache_;

static uint32_t noise_state = 815;

// f16 of 0.125 to 1, of either sign.
static void fill_halves(void *to, size_t count)
{
    uint16_t *halves = to;
    for (size_t i = 0; i < count; i++) {
        noise_state = noise_state * 1664525u + 1013904223u;
        halves[i] = (uint16_t)(0x3000 + (noise_state >> 16) % 0xc00 + (noise_state >> 3 & 0x8000));
    }
}

static void setup_kernels(void)
{
    uint16_t block[2 * KEYS * DIM];
    engine = open_engine((struct engine_params){.variant = "matrix_emulated"});
    open_arena();
    struct engine_cache_params params = shape(1, 1, DIM, DTYPE_F16);
    params.kv.block_size = KEYS;
    params.chunk_blocks = 128;
    cache_ = open_cache(params);
    grow_chunk(cache_, 0);
    for (int32_t i = 0; i < 128; i++) {
        fill_halves(block, sizeof block / sizeof *block);
        ck_assert_int_eq(engine_block_write(cache_, 0, i, block), STATUS_OK);
    }
    fill_halves(memory, OUT / 2);
}

static void teardown_kernels(void)
{
    engine_cache_destroy(cache_);
    teardown();
}

// Sequences over the same blocks. The argument before the last is NULL or [num_seqs].
static struct engine_batch *batch_of(const int32_t *q_lens, const int32_t *kv_lens,
                                     uint32_t num_seqs, const int32_t *num_queries,
                                     const int64_t *slots)
{
    int32_t cu[9] = {0}, table[8 * COLUMNS];
    for (uint32_t seq = 0; seq < num_seqs; seq++) {
        cu[seq + 1] = cu[seq] + q_lens[seq];
        for (int32_t i = 0; i < COLUMNS; i++)
            table[seq * COLUMNS + (uint32_t)i] = i * 7 % (COLUMNS / 2);
    }
    return open_batch((struct engine_batch_params){
        .cache = cache_,
        .num_seqs = num_seqs,
        .max_blocks = COLUMNS,
        .num_tokens = (uint32_t)cu[num_seqs],
        .cu_seqlens_q = cu,
        .seq_lens_kv = kv_lens,
        .block_table = table,
        .q_lens = num_queries,
        .slot_mapping = slots,
    });
}

// Its queries begin at row `row` of q.
static struct engine_run run_of(struct engine_batch *batch, uint32_t row, uint64_t out)
{
    return (struct engine_run){
        .batch = batch,
        .arena = arena,
        .num_heads = HEADS,
        .q = dense(Q + row * ROW, HEADS, DIM, DTYPE_F16),
        .k = dense(K, 1, DIM, DTYPE_F16),
        .v = dense(V, 1, DIM, DTYPE_F16),
        .out = dense(out, HEADS, DIM, DTYPE_F16),
        .scale = 1,
        .causal = true,
        .num_splits = 2,
    };
}

static struct cutting cutting(struct engine_batch *batch)
{
    struct engine_run run = run_of(batch, 0, OUT);
    return cutting_of_run(&run);
}

START_TEST(sequences_of_one_run_go_to_different_kernels_and_get_what_each_gets_alone)
{
    static const int32_t q_lens[] = {1, 20, 4, 5, 3}, kv_lens[] = {1100, 64, 700, KV_LEN, 9};
    static const int32_t num_queries[] = {1, 20, 4, 5, 0};
    struct engine_batch *batch = batch_of(q_lens, kv_lens, 5, num_queries, NULL);
    struct engine_run run = run_of(batch, 0, OUT);
    struct work works[MOST_KERNELS];
    struct cutting all = cutting(batch);
    struct error error = {0};
    ck_assert_int_eq(batch_work(batch, &all, 1, works, &error), STATUS_OK); // the submitter is idle
    ck_assert_uint_eq(works[0].num_items, 2 + 2); // 2 and 8 rows, each in two parts
    ck_assert_uint_eq(works[0].num_merges, 2);
    ck_assert_uint_eq(works[1].num_items, 2);    // 40 and 10 rows
    ck_assert_uint_eq(works[LAST].num_items, 1); // no query
    memset(memory + OUT, 0x55, 33 * ROW);
    struct engine_event event = expect_done(submit_runs(&run, 1));
    ck_assert_uint_eq(event.num_dispatches, 3);
    ck_assert_uint_eq(event.results[0].dispatch, 0);
    expect_bytes(memory + OUT + 30 * ROW, zero_block, 3 * ROW, "rows without a query");
    for (uint32_t seq = 0, row = 0; seq < 4; row += (uint32_t)q_lens[seq++]) {
        struct engine_batch *alone = batch_of(&q_lens[seq], &kv_lens[seq], 1, NULL, NULL);
        struct engine_run single = run_of(alone, row, OTHER);
        event = expect_done(submit_runs(&single, 1));
        ck_assert_uint_eq(event.num_dispatches, 1);
        expect_bytes(memory + OUT + row * ROW, memory + OTHER, (size_t)q_lens[seq] * ROW, "alone");
        engine_batch_destroy(alone);
    }
    engine_batch_destroy(batch);
}
END_TEST

START_TEST(every_kernel_of_a_run_sees_the_keys_that_it_writes)
{
    static const int32_t q_lens[] = {1, 20}, kv_lens[] = {1, 20};
    int64_t slots[21] = {100 * KEYS}; // no query sees that slot
    for (int i = 0; i < 20; i++)
        slots[i + 1] = i / KEYS * 7 * KEYS + i % KEYS;
    struct engine_batch *batch = batch_of(q_lens, kv_lens, 2, NULL, slots);
    struct engine_run run = run_of(batch, 0, OUT);
    struct engine_event event = expect_done(submit_runs(&run, 1));
    ck_assert_uint_eq(event.num_dispatches, 2);
    uint16_t block[2 * KEYS * DIM];
    ck_assert_int_eq(engine_block_read(cache_, 0, 0, block), STATUS_OK);
    expect_bytes(block, memory + K + DIM * 2, KEYS * DIM * 2, "keys of the second sequence");
    // Both sequences see only the same first key, so their first rows are its value.
    for (uint32_t head = 0; head < HEADS; head++) {
        expect_bytes(memory + OUT + head * DIM * 2, memory + V + DIM * 2, DIM * 2,
                     "the decode's row");
        expect_bytes(memory + OUT + ROW + head * DIM * 2, memory + V + DIM * 2, DIM * 2,
                     "the prefill's first row");
    }
    engine_batch_destroy(batch);
}
END_TEST

// Runs of two models in one wave share a dispatch if both have a sequence for its kernel.
START_TEST(runs_meet_in_the_dispatch_of_each_kernel)
{
    struct engine_batch *mixed = batch_of((int32_t[]){1, 20}, (int32_t[]){300, 64}, 2, NULL, NULL);
    struct engine_batch *decode = batch_of((int32_t[]){1}, (int32_t[]){200}, 1, NULL, NULL);
    struct engine_batch *prefill = batch_of((int32_t[]){20}, (int32_t[]){64}, 1, NULL, NULL);
    struct engine_run runs[3] = {run_of(mixed, 0, OUT), run_of(decode, 0, OTHER),
                                 run_of(prefill, 1, OTHER + 4096)};
    struct engine_event event = expect_done(submit_runs(runs, 3));
    ck_assert_uint_eq(event.num_dispatches, 2);
    ck_assert_uint_eq(event.results[0].dispatch, event.results[1].dispatch);
    ck_assert_uint_ne(event.results[0].dispatch, event.results[2].dispatch);
    expect_bytes(memory + OTHER + 4096, memory + OUT + ROW, 20 * ROW, "the prefill beside others");
    engine_batch_destroy(mixed);
    engine_batch_destroy(decode);
    engine_batch_destroy(prefill);
}
END_TEST

// A key far above all others, for about every second row.
static void make_key_far(int32_t key, uint16_t half)
{
    uint16_t block[2 * KEYS * DIM];
    int32_t number = key / KEYS * 7 % (COLUMNS / 2);
    ck_assert_int_eq(engine_block_read(cache_, 0, number, block), STATUS_OK);
    for (int i = 0; i < DIM; i++)
        block[key % KEYS * DIM + i] = half;
    ck_assert_int_eq(engine_block_write(cache_, 0, number, block), STATUS_OK);
}

static void expect_numbers(const char *rows, uint32_t num_rows)
{
    for (size_t i = 0; i < num_rows * (size_t)ROW; i += 2) {
        uint16_t half;
        memcpy(&half, rows + i, sizeof half);
        ck_assert_msg((half & 0x7c00) != 0x7c00, "element %zu is no number", i / 2);
    }
}

// Sequences that see a far key, among sequences that do not see it and sequences in which every
// tile updates maxima.
START_TEST(items_that_are_computed_twice_get_the_bits_that_they_get_alone)
{
    static const int32_t q_lens[] = {20, 150, 20, 20, 70}, kv_lens[] = {700, 900, 64, 300, 650};
    struct engine_batch *batch = batch_of(q_lens, kv_lens, 5, NULL, NULL);
    struct engine_run run = run_of(batch, 0, OUT);
    struct cutting all = cutting(batch);
    struct work works[MOST_KERNELS];
    struct error error = {0};
    make_key_far(400, 0x5380);                                              // 60
    make_key_far(405, 0x55a0);                                              // 90
    ck_assert_int_eq(batch_work(batch, &all, 1, works, &error), STATUS_OK); // the submitter is idle
    ck_assert_uint_eq(works[1].num_items, 1 + 3 + 1 + 1 + 2);
    ck_assert_uint_eq(works[1].num_doubtful, 1 + 3 + 1 + 2);
    for (int turn = 0; turn < 2; turn++) {
        uint32_t row = 0;
        memset(memory + OUT, 0x7f, 280 * ROW);
        ck_assert_uint_eq(expect_done(submit_runs(&run, 1)).num_dispatches, 1);
        expect_numbers(memory + OUT, 280);
        for (uint32_t seq = 0; seq < 5; row += (uint32_t)q_lens[seq++]) {
            struct engine_batch *alone = batch_of(&q_lens[seq], &kv_lens[seq], 1, NULL, NULL);
            struct engine_run single = run_of(alone, row, OTHER);
            expect_done(submit_runs(&single, 1));
            expect_bytes(memory + OUT + row * ROW, memory + OTHER, (size_t)q_lens[seq] * ROW,
                         "alone");
            engine_batch_destroy(alone);
        }
    }
    engine_batch_destroy(batch);
}
END_TEST

// All runs share one list of items to compute again. Some runs add none, and items of the first run
// cannot be added.
START_TEST(runs_that_share_a_second_pass_get_the_bits_that_each_gets_alone)
{
    static const int32_t q_lens[3][3] = {{20, 64}, {20, 150, 20}, {30, 70}};
    static const int32_t kv_lens[3][3] = {{64, 64}, {700, 900, 64}, {95, 650}};
    static const uint32_t num_seqs[] = {2, 3, 2}, num_rows[] = {84, 190, 100};
    struct engine_batch *batches[3];
    struct engine_run runs[3];
    make_key_far(400, 0x5380); // 60
    make_key_far(405, 0x55a0); // 90
    for (uint32_t i = 0, row = 0; i < 3; row += num_rows[i++]) {
        batches[i] = batch_of(q_lens[i], kv_lens[i], num_seqs[i], NULL, NULL);
        runs[i] = run_of(batches[i], i * 3, OUT + row * ROW);
    }
    for (int turn = 0; turn < 2; turn++) {
        memset(memory + OUT, 0x7f, 374 * ROW);
        ck_assert_uint_eq(expect_done(submit_runs(runs, 3)).num_dispatches, 1);
        expect_numbers(memory + OUT, 374);
        for (uint32_t i = 0, row = 0; i < 3; row += num_rows[i++]) {
            struct engine_run alone = run_of(batches[i], i * 3, OTHER);
            expect_done(submit_runs(&alone, 1));
            expect_bytes(memory + OUT + row * ROW, memory + OTHER, (size_t)num_rows[i] * ROW,
                         "alone");
        }
    }
    for (int i = 0; i < 3; i++)
        engine_batch_destroy(batches[i]);
}
END_TEST

// No run can ask for it.
START_TEST(short_prompts_make_no_pipeline_for_a_second_pass)
{
    enum { DOUBTFUL = AULE_PREFILL_DOUBTFUL_TILES * AULE_PREFILL_KEYS_EMULATED };
    static const int32_t q_lens[] = {20, 30}, short_ones[] = {40, DOUBTFUL - 1},
                         longer[] = {40, DOUBTFUL};
    struct engine_batch *few = batch_of(q_lens, short_ones, 2, NULL, NULL);
    struct engine_batch *more = batch_of(q_lens, longer, 2, NULL, NULL);
    struct engine_run run = run_of(few, 0, OUT), other = run_of(more, 0, OUT);
    expect_done(submit_runs(&run, 1));
    ck_assert_uint_eq(engine_num_pipelines(engine), 1);
    expect_done(submit_runs(&other, 1));
    ck_assert_uint_eq(engine_num_pipelines(engine), 2);
    engine_batch_destroy(few);
    engine_batch_destroy(more);
}
END_TEST

START_TEST(run_whose_split_finds_no_memory_takes_none_of_its_kernels)
{
    struct engine_batch *split = batch_of((int32_t[]){1, 20}, (int32_t[]){700, 64}, 2, NULL, NULL);
    struct engine_batch *whole = batch_of((int32_t[]){20}, (int32_t[]){64}, 1, NULL, NULL);
    struct engine_run runs[2] = {run_of(split, 0, OUT), run_of(whole, 1, OTHER)};
    struct engine_run warm[2] = {runs[0], runs[1]};
    warm[0].num_splits = 1;
    expect_done(submit_runs(warm, 2));
    struct work works[MOST_KERNELS];
    struct cutting cut = cutting(split);
    struct error error = {0};
    ck_assert_int_eq(batch_work(split, &cut, 1, works, &error), STATUS_OK); // the submitter is idle
    uint64_t most = engine->device.adapter.info.max_allocation_bytes;
    memset(memory + OUT, 0x55, 21 * ROW);
    memcpy(memory + OTHER + 4096, memory + OTHER, 20 * ROW);
    memset(memory + OTHER, 0x55, 20 * ROW);
    engine->device.adapter.info.max_allocation_bytes = 1;
    uint64_t sequence = submit_runs(runs, 2);
    ck_assert_int_eq(engine_wait(engine, sequence, DEADLINE_S * 1000), STATUS_OK);
    engine->device.adapter.info.max_allocation_bytes = most;
    struct engine_event event = expect_event(ENGINE_EVENT_DONE);
    ck_assert_int_eq(event.results[0].status, STATUS_LIMIT);
    ck_assert_uint_ge(event.results[0].dispatch, event.num_dispatches);
    ck_assert_int_eq(event.results[1].status, STATUS_OK);
    expect_bytes(memory + OTHER, memory + OTHER + 4096, 20 * ROW, "who shared a dispatch with it");
    ck_assert_uint_eq((unsigned char)memory[OUT + ROW], 0x55);
    engine_batch_destroy(split);
    engine_batch_destroy(whole);
}
END_TEST

// Takes the present metadata of one size while the device allocates no more. Returns how many
// pieces.
static uint32_t take_pieces(uint64_t size, struct piece *pieces, uint32_t most)
{
    struct error error = {0};
    uint32_t count = 0;
    while (count < most && slab_take(&engine->slabs, size, &pieces[count], &error) == STATUS_OK)
        count++;
    ck_assert_uint_lt(count, most);
    return count;
}

START_TEST(run_that_finds_no_counters_fails_alone)
{
    static struct piece pieces[1 << 14];
    struct engine_batch *batch = batch_of((int32_t[]){1}, (int32_t[]){700}, 1, NULL, NULL);
    struct engine_run runs[2] = {run_of(batch, 0, OUT), run_of(batch, 0, OTHER)};
    expect_done(submit_runs(runs, 2));
    uint64_t most = engine->device.adapter.info.max_allocation_bytes;
    for (int i = 0; i < ENGINE_SLOTS;
         i++) // the submitter is idle; each has at least the memory that one run needs
        engine->slots[i].counters_size = i == 0 ? sizeof(uint32_t) : 0;
    memcpy(memory + OUT + 4096, memory + OUT, ROW);
    memset(memory + OUT, 0x55, ROW);
    memset(memory + OTHER, 0x55, ROW);
    engine->device.adapter.info.max_allocation_bytes = 1;
    uint32_t count = take_pieces(2 * sizeof(uint32_t), pieces, sizeof pieces / sizeof *pieces);
    uint64_t sequence = submit_runs(runs, 2);
    ck_assert_int_eq(engine_wait(engine, sequence, DEADLINE_S * 1000), STATUS_OK);
    engine->device.adapter.info.max_allocation_bytes = most;
    struct engine_event event = expect_event(ENGINE_EVENT_DONE);
    ck_assert_int_eq(event.results[0].status, STATUS_OK);
    ck_assert_int_eq(event.results[1].status, STATUS_LIMIT);
    ck_assert_msg(strstr(event.results[1].message, "its splits want 1 counters and 0 are left") !=
                      NULL,
                  "%s", event.results[1].message);
    expect_bytes(memory + OUT, memory + OUT + 4096, ROW, "who found one");
    ck_assert_uint_eq((unsigned char)memory[OTHER], 0x55);
    while (count > 0)
        slab_give(&engine->slabs, &pieces[--count]);
    expect_done(submit_runs(runs, 2));
    expect_bytes(memory + OTHER, memory + OUT, ROW, "who found one later");
    engine_batch_destroy(batch);
}
END_TEST

START_TEST(kernel_that_leaves_merging_to_another_wants_no_counters)
{
    struct engine_batch *batch = batch_of((int32_t[]){1}, (int32_t[]){700}, 1, NULL, NULL);
    struct engine_run run = run_of(batch, 0, OUT);
    run.q = run.out = dense(Q, HEADS, DIM, DTYPE_F32); // no matrix kernel serves f32
    run.out.offset = OUT;
    memset(memory, 0, OUT);
    expect_done(submit_runs(&run, 1));
    for (int i = 0; i < ENGINE_SLOTS; i++)
        ck_assert_uint_eq(engine->slots[i].counters_size, 0);
    ck_assert_uint_gt(engine->slots[0].scratch.size + engine->slots[1].scratch.size +
                          engine->slots[2].scratch.size,
                      0);
    engine_batch_destroy(batch);
}
END_TEST

START_TEST(work_lists_differ_by_the_kernels_that_serve_the_run)
{
    struct engine_batch *batch = batch_of((int32_t[]){1}, (int32_t[]){40}, 1, NULL, NULL);
    struct engine_run served = run_of(batch, 0, OUT), other = served;
    other.q = other.out = dense(Q, HEADS, DIM, DTYPE_F32); // no matrix kernel serves f32
    struct cutting with = cutting_of_run(&served), without = cutting_of_run(&other);
    struct work works[MOST_KERNELS];
    struct error error = {0};
    ck_assert(!cutting_same(&with, &without));
    ck_assert_int_eq(batch_work(batch, &with, 1, works, &error), STATUS_OK);
    ck_assert_uint_eq(works[0].num_items, 1);
    ck_assert_int_eq(batch_work(batch, &without, 1, works, &error), STATUS_OK);
    ck_assert_uint_eq(works[0].num_items, 0);
    ck_assert_uint_eq(works[LAST].num_items, 1);
    engine_batch_destroy(batch);
}
END_TEST

START_TEST(few_rows_go_to_decode_and_more_where_there_are_many_keys)
{
    static const struct {
        uint64_t rows, kv_len;
        uint32_t kernel;
    } cases[] = {
        {8, 1, 0},     {8, 1 << 20, 0},  {9, 2047, 1},    {9, 2048, 0},
        {32, 2048, 0}, {33, 1 << 20, 1}, {0, 2048, LAST},
    };
    const struct variant *variant = engine->pipelines.variant;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ck_assert_uint_eq(variant_kernel(variant, ALL, cases[i].rows, cases[i].kv_len),
                          cases[i].kernel);
    ck_assert_uint_eq(variant_kernel(variant, ALL - 1, 9, 2048), 1); // where decode does not serve
    ck_assert_uint_eq(variant_kernel(variant, ALL - 1, 8, 2048), LAST);
}
END_TEST

// 20 rows are three tiles. The last query sees all keys, as if it were alone.
START_TEST(rows_of_a_later_tile_are_what_they_are_alone)
{
    struct engine_batch *batch = batch_of((int32_t[]){10}, (int32_t[]){2100}, 1, NULL, NULL);
    struct engine_batch *alone = batch_of((int32_t[]){1}, (int32_t[]){2100}, 1, NULL, NULL);
    static const uint32_t num_items[] = {6, 3, 6}; // by the rule two parts each
    for (uint32_t num_splits = 0; num_splits < 3; num_splits++) {
        struct engine_run run = run_of(batch, 0, OUT), single = run_of(alone, 9, OTHER);
        run.num_splits = single.num_splits = num_splits;
        struct cutting all = cutting_of_run(&run);
        struct work works[MOST_KERNELS];
        struct error error = {0};
        ck_assert_int_eq(batch_work(batch, &all, 1, works, &error),
                         STATUS_OK); // the submitter is idle
        ck_assert_uint_eq(works[0].num_items, num_items[num_splits]);
        memset(memory + OUT, 0x55, 10 * ROW);
        expect_done(submit_runs(&run, 1));
        expect_done(submit_runs(&single, 1));
        expect_bytes(memory + OUT + 9 * ROW, memory + OTHER, ROW, "the last query");
    }
    engine_batch_destroy(batch);
    engine_batch_destroy(alone);
}
END_TEST

START_TEST(parts_of_a_decode_follow_its_length)
{
    static const struct {
        uint32_t num_splits;
        uint64_t kv_len, keys, wide_keys; // wide_keys: with a head dim beyond 128
    } cases[] = {
        {0, 1, 2048, 4096},         {0, 4096, 2048, 4096},      {0, 4097, 4096, 4096},
        {0, 32768, 4096, 4096},     {0, 32769, 4352, 4352},     {0, 131072, 16384, 16384},
        {0, 4000000, 16384, 16384}, {1, 4000000, 0, 0},         {2, 1000, 512, 512},
        {3, 1000, 512, 512},        {1000, 1000, 256, 256},     {2, 0, 0, 0},
    };
    const struct engine_kv narrow = {.head_dim_k = 128, .head_dim_v = 128},
                           wide = {.head_dim_k = 136, .head_dim_v = 128};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ck_assert_uint_eq(kernel_part_keys(&kernel_decode_emulated, &narrow, 8, cases[i].kv_len,
                                           cases[i].num_splits),
                          cases[i].keys);
        ck_assert_uint_eq(kernel_part_keys(&kernel_decode_emulated, &wide, 8, cases[i].kv_len,
                                           cases[i].num_splits),
                          cases[i].wide_keys);
    }
    ck_assert_uint_eq(kernel_part_keys(&kernel_prefill_emulated, &narrow, 9, 100000, 0), 0);
    ck_assert_uint_eq(kernel_part_keys(&kernel_prefill_emulated, &narrow, 9, 100000, 4), 0);
}
END_TEST

static void expect_served(const struct variant *variant, const struct geometry *geometry,
                          uint64_t rows, const char *shader)
{
    uint32_t kernel = variant_kernel(variant, variant_serving(variant, geometry), rows, 1024);
    const char *name = variant->kernels[kernel]->shader.name;
    char text[160];
    geometry_text(geometry->spec, text, sizeof text);
    ck_assert_msg(strcmp(name, shader) == 0, "%s, %d rows: %s, not %s", text, (int)rows, name,
                  shader);
}

// A run goes to matrix kernels of either kind if types and head dims fit, else to the kernel that
// serves all.
START_TEST(each_geometry_goes_to_the_first_kernel_that_serves_it)
{
    static const struct {
        uint32_t head_dim, block_size;
        enum dtype io, kv;
        uint64_t rows;
        const char *shader;
    } cases[] = {
        {128, 16, DTYPE_F16, DTYPE_F16, 4, "attention_decode_matrix"},
        {128, 16, DTYPE_F16, DTYPE_F16, 400, "attention_prefill_matrix"},
        {128, 16, DTYPE_BF16, DTYPE_BF16, 400, "attention_prefill_bf16"},
        {256, 16, DTYPE_F16, DTYPE_F16, 4, "attention_decode_matrix"},
        {256, 16, DTYPE_F16, DTYPE_INT8, 4, "attention_decode_matrix"},
        {256, 16, DTYPE_F16, DTYPE_F16, 400, "attention_prefill_matrix"},
        {136, 16, DTYPE_BF16, DTYPE_FP8_E4M3, 400, "attention_prefill_bf16"},
        {264, 16, DTYPE_F16, DTYPE_F16, 400, "attention_subgroup"},
        {128, 8, DTYPE_F16, DTYPE_F16, 4, "attention_coop"},
        {128, 16, DTYPE_F16, DTYPE_FP8_E4M3, 4, "attention_decode_matrix"},
        {128, 16, DTYPE_F16, DTYPE_FP8_E4M3, 400, "attention_prefill_matrix"},
        {72, 16, DTYPE_F16, DTYPE_INT8, 400, "attention_prefill_matrix"},
        {128, 16, DTYPE_BF16, DTYPE_FP8_E5M2, 400, "attention_prefill_bf16"},
        {256, 16, DTYPE_BF16, DTYPE_BF16, 4, "attention_decode_bf16"},
        {72, 16, DTYPE_F16, DTYPE_INT8, 4,
         "attention_subgroup"}, // decode needs whole pieces of 16 bytes
        {128, 8, DTYPE_F16, DTYPE_F16, 400, "attention_coop"},
        {264, 16, DTYPE_F16, DTYPE_F16, 4, "attention_subgroup"},
        {128, 16, DTYPE_F32, DTYPE_F32, 400, "attention_subgroup"},
    };
    const struct variant *variant = variant_at(1);
    ck_assert_str_eq(variant->name, "matrix");
    for (size_t i = 0; variant->num_kernels > 1 && i < sizeof cases / sizeof *cases; i++) {
        expect_served(variant,
                      &(struct geometry){.spec = {[AULE_SPEC_HEAD_DIM_K] = cases[i].head_dim,
                                                  [AULE_SPEC_HEAD_DIM_V] = cases[i].head_dim,
                                                  [AULE_SPEC_BLOCK_SIZE] = cases[i].block_size,
                                                  [AULE_SPEC_K_DTYPE] = cases[i].kv,
                                                  [AULE_SPEC_V_DTYPE] = cases[i].kv,
                                                  [AULE_SPEC_IO_DTYPE] = cases[i].io}},
                      cases[i].rows, cases[i].shader);
    }
}
END_TEST

START_TEST(values_with_scales_of_their_own_go_to_matrix_units)
{
    static const struct {
        enum dtype io, k, v;
        uint64_t rows;
        const char *shader;
    } cases[] = {
        {DTYPE_F16, DTYPE_INT8, DTYPE_INT8, 4, "attention_decode_matrix"},
        {DTYPE_F16, DTYPE_F16, DTYPE_FP8_E5M2, 4, "attention_decode_matrix"},
        {DTYPE_BF16, DTYPE_FP8_E4M3, DTYPE_FP8_E4M3, 4, "attention_decode_bf16"},
        {DTYPE_F16, DTYPE_INT8, DTYPE_INT8, 400, "attention_prefill_matrix"},
        {DTYPE_F32, DTYPE_INT8, DTYPE_INT8, 4, "attention_subgroup"},
    };
    const struct variant *variant = variant_at(1);
    for (size_t i = 0; variant->num_kernels > 1 && i < sizeof cases / sizeof *cases; i++)
        expect_served(
            variant,
            &(struct geometry){.spec = {[AULE_SPEC_HEAD_DIM_K] = 128,
                                        [AULE_SPEC_HEAD_DIM_V] = 128,
                                        [AULE_SPEC_BLOCK_SIZE] = 16,
                                        [AULE_SPEC_SCALE_MODE] = AULE_SCALE_TOKEN_HEAD_MODE,
                                        [AULE_SPEC_K_DTYPE] = cases[i].k,
                                        [AULE_SPEC_V_DTYPE] = cases[i].v,
                                        [AULE_SPEC_IO_DTYPE] = cases[i].io}},
            cases[i].rows, cases[i].shader);
}
END_TEST

// The last variant that is tried by default has the smallest requirements.
START_TEST(device_that_can_run_no_variant_is_told_what_the_plainest_lacks)
{
    struct adapter poor = engine->device.adapter;
    const struct variant *chosen = NULL;
    struct error error = {0};
    poor.info.shared_memory_bytes = 1024;
    ck_assert_int_eq(variant_choose(&poor, NULL, &chosen, &error), STATUS_UNSUPPORTED);
    ck_assert_msg(strstr(error.text, "variant plain_small does not run") &&
                      strstr(error.text, "it has 1024"),
                  "%s", error.text);
    ck_assert_int_eq(variant_choose(&poor, "subgroup", &chosen, &error), STATUS_UNSUPPORTED);
    ck_assert_msg(strstr(error.text, "variant subgroup does not run") != NULL, "%s", error.text);
}
END_TEST

START_TEST(variant_for_tests_is_chosen_by_name_alone)
{
    const struct adapter *adapter = &engine->device.adapter;
    const struct variant *chosen = NULL;
    struct error error = {0};
    char missing[256];
    ck_assert_str_eq(engine_variant(engine), "matrix_emulated");
    ck_assert_int_eq(variant_choose(adapter, NULL, &chosen, &error), STATUS_OK);
    ck_assert(!chosen->only_by_name);
    ck_assert_int_eq(variant_choose(adapter, "matrix_emulated", &chosen, &error), STATUS_OK);
    ck_assert(chosen->only_by_name);
    variant_missing(chosen, adapter, missing, sizeof missing);
    ck_assert_str_eq(missing, ""); // a device does not lack something because a variant is for
                                   // tests
    ck_assert_msg(strstr(chosen->needs, "for tests") != NULL, "%s", chosen->needs);
    for (uint32_t i = 0; variant_at(i); i++) {
        const struct variant *variant = variant_at(i);
        const struct kernel *last = variant->kernels[variant->num_kernels - 1];
        ck_assert(!last->serves &&
                  last->most_rows == UINT32_MAX); // the last kernel serves any number of rows
    }
}
END_TEST

START_TEST(matrix_variant_says_what_the_device_lacks)
{
    struct adapter rich = engine->device.adapter;
    char missing[256];
    rich.matrices =
        (struct matrices){.extension = true, .shape = true, .half = true, .memory_model = true};
    rich.info.subgroup_size = 32;
    rich.subgroups.operations = UINT32_MAX;
    rich.subgroups.full = true;
    matrix_missing(&rich, missing, sizeof missing);
    if (strstr(missing, "built without"))
        return;
    ck_assert_str_eq(missing, "");
    matrix_bfloat_missing(&rich, missing, sizeof missing);
    ck_assert_msg(strstr(missing, "VK_KHR_shader_bfloat16") != NULL, "%s", missing);
    rich.matrices.bfloat_extension = true;
    matrix_bfloat_missing(&rich, missing, sizeof missing);
    ck_assert_msg(strstr(missing, "16x16x16") != NULL, "%s", missing);
    rich.matrices.bfloat_shape = true;
    matrix_bfloat_missing(&rich, missing, sizeof missing);
    ck_assert_str_eq(missing, "");
    rich.matrices.bfloat_lanes = MATRIX_LANES_DIFFER;
    matrix_bfloat_missing(&rich, missing, sizeof missing);
    ck_assert_msg(strstr(missing, "bf16 that it can use") != NULL, "%s", missing);
    rich.matrices.bfloat_lanes = MATRIX_LANES_BOUNDED;
    matrix_bfloat_missing(&rich, missing, sizeof missing);
    ck_assert_msg(strstr(missing, "too large becomes a number") != NULL, "%s", missing);
    rich.matrices.lanes = MATRIX_LANES_BOUNDED;
    matrix_missing(&rich, missing, sizeof missing);
    ck_assert_msg(strstr(missing, "too large becomes a number") != NULL, "%s", missing);
    rich.matrices.lanes = MATRIX_LANES_DIFFER;
    matrix_missing(&rich, missing, sizeof missing);
    ck_assert_msg(strstr(missing, "in other lanes") != NULL, "%s", missing);
    rich.info.subgroup_size = 8;
    matrix_missing(&rich, missing, sizeof missing);
    ck_assert_msg(strstr(missing, "subgroups of 32 invocations (it has 8)") != NULL, "%s", missing);
    rich.matrices.shape = false;
    matrix_missing(&rich, missing, sizeof missing);
    ck_assert_msg(strstr(missing, "16x8x16") != NULL, "%s", missing);
    rich.matrices.old_layer = VK_MAKE_API_VERSION(0, 1, 3, 239);
    matrix_missing(&rich, missing, sizeof missing);
    ck_assert_str_eq(missing,
                     "a validation layer that knows cooperative matrices (1.3.239 does not)");
}
END_TEST

START_TEST(shared_matrix_variant_takes_other_sizes_and_any_lanes)
{
    struct adapter rich = engine->device.adapter;
    char missing[256];
    rich.matrices = (struct matrices){.extension = true,
                                      .size = {8, 16, 8},
                                      .half = true,
                                      .memory_model = true,
                                      .lanes = MATRIX_LANES_DIFFER};
    rich.info.subgroup_size = 8;
    rich.subgroups.operations = UINT32_MAX;
    rich.subgroups.full = true;
    matrix_shared_missing(&rich, missing, sizeof missing);
    if (strstr(missing, "built without"))
        return;
    ck_assert_str_eq(missing, "");
    rich.info.subgroup_size = 128;
    matrix_shared_missing(&rich, missing, sizeof missing);
    ck_assert_str_eq(missing, "subgroups of 8 to 64 invocations (it has 128)");
    rich.subgroups.full = false;
    rich.info.subgroup_size = 64;
    matrix_shared_missing(&rich, missing, sizeof missing);
    ck_assert_msg(strstr(missing, "full subgroups") != NULL, "%s", missing);
    rich.matrices.size = (struct matrix_size){0};
    matrix_shared_missing(&rich, missing, sizeof missing);
    ck_assert_str_eq(missing,
                     "cooperative matrices of 8 or 16 rows, columns and depth (f16, sums in f32)");
}
END_TEST

START_TEST(probe_of_lanes_agrees_with_the_emulation)
{
    const struct shader *shader =
        _i ? &shader_matrix_probe_emulated_bf16 : &shader_matrix_probe_emulated;
    const enum dtype dtypes[] = {DTYPE_F16, DTYPE_BF16};
    struct error error = {0};
    for (int i = 0; i < 2; i++) {
        enum matrix_lanes found = MATRIX_LANES_UNKNOWN;
        enum status status = matrix_probe(&engine->transfer, shader, dtypes[i], &found, &error);
        ck_assert_msg(status == STATUS_OK, "%s", error.text);
        ck_assert_int_eq(found, i == _i ? MATRIX_LANES_AGREE
                                        : MATRIX_LANES_DIFFER); // elements of another type
    }
}
END_TEST

void add_kernel_tests(Suite *suite)
{
    TCase *tcase = tcase_create("kernels");
    tcase_set_tags(tcase, "kernels");
    tcase_add_checked_fixture(tcase, setup_kernels, teardown_kernels);
    tcase_add_test(tcase,
                   sequences_of_one_run_go_to_different_kernels_and_get_what_each_gets_alone);
    tcase_add_test(tcase, every_kernel_of_a_run_sees_the_keys_that_it_writes);
    tcase_add_test(tcase, runs_meet_in_the_dispatch_of_each_kernel);
    tcase_add_test(tcase, items_that_are_computed_twice_get_the_bits_that_they_get_alone);
    tcase_add_test(tcase, runs_that_share_a_second_pass_get_the_bits_that_each_gets_alone);
    tcase_add_test(tcase, short_prompts_make_no_pipeline_for_a_second_pass);
    tcase_add_test(tcase, run_whose_split_finds_no_memory_takes_none_of_its_kernels);
    tcase_add_test(tcase, run_that_finds_no_counters_fails_alone);
    tcase_add_test(tcase, kernel_that_leaves_merging_to_another_wants_no_counters);
    tcase_add_test(tcase, work_lists_differ_by_the_kernels_that_serve_the_run);
    tcase_add_test(tcase, few_rows_go_to_decode_and_more_where_there_are_many_keys);
    tcase_add_test(tcase, rows_of_a_later_tile_are_what_they_are_alone);
    tcase_add_test(tcase, parts_of_a_decode_follow_its_length);
    tcase_add_test(tcase, each_geometry_goes_to_the_first_kernel_that_serves_it);
    tcase_add_test(tcase, values_with_scales_of_their_own_go_to_matrix_units);
    tcase_add_test(tcase, device_that_can_run_no_variant_is_told_what_the_plainest_lacks);
    tcase_add_test(tcase, variant_for_tests_is_chosen_by_name_alone);
    tcase_add_test(tcase, matrix_variant_says_what_the_device_lacks);
    tcase_add_test(tcase, shared_matrix_variant_takes_other_sizes_and_any_lanes);
    tcase_add_loop_test(tcase, probe_of_lanes_agrees_with_the_emulation, 0, 2);
    suite_add_tcase(suite, tcase);
}
