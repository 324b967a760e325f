// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_core_run.c - other runs than plain attention over the pool (test_core_parameters.c): writes
// and gathers, K and V in the arena, outer strides, and the cost of all of these. Scales, RoPE and
// splits: test_core_scales.c.

#include "core/state.h"
#include "rigs/check_main.h"
#include "rigs/run_world.h"

// ---- writes ----

START_TEST(a_write_takes_k_and_v_to_their_slots_and_looks_at_nothing_else)
{
    uint64_t batch = writer(0);
    put_numbers(AT_K, 5, 100);
    ACCEPTED(
        run_of(batch, ENGINE_WRITE),
        (p.entry.q = p.entry.out = p.entry.lse = (struct wire_tensor){.memory = 9, .offset = 3},
         p.entry.num_heads = 0, p.entry.scale = NAN, p.entry.layer = 1, p.entry.window_left = -7));
    const struct engine_cache *cache = core_engine_cache(world.core, a.cache);
    const int32_t expected[] = {100, 101, 0, 104, 103};
    for (uint32_t i = 0; i < 5; i++) {
        ck_assert_int_eq(fake_engine_slot(cache, 1, blocks[0], i), expected[i]);
        ck_assert_int_eq(fake_engine_slot(cache, 0, blocks[0], i), 0);
    }
}
END_TEST

START_TEST(blocks_that_only_write_runs_have_written_can_be_published)
{
    int64_t slots[8];
    int32_t given[1] = {blocks[0]};
    uint32_t existing;
    for (int i = 0; i < 8; i++)
        slots[i] = blocks[0] * 8 + i;
    uint64_t batch = create(&(struct core_batch_params){
        .cache = a.cache, .slot_mapping = slots, .num_slot_mapping = 8});
    ACCEPTED(run_of(batch, ENGINE_WRITE), p.entry.layer = 0);
    ck_assert_refused(worker_try_publish(&a, tokens, 8, given, &existing, &error), STATUS_UNWRITTEN,
                      "layer 1");
    ACCEPTED(run_of(batch, ENGINE_WRITE), p.entry.layer = 1);
    ck_assert_uint_eq(worker_publish(&a, tokens, 8, given), 0);
}
END_TEST

START_TEST(each_kind_says_what_its_batch_lacks)
{
    const struct core_layout layout = layout_of(8);
    uint64_t only_writes = writer(0), reads = local_blocks(&layout, false);
    REFUSED(run_of(only_writes, ENGINE_ATTEND), (void)0, STATUS_INVALID,
            "was created without seq_lens_kv, which attention needs");
    REFUSED(run_of(only_writes, ENGINE_GATHER), (void)0, STATUS_INVALID,
            "seq_lens_kv, which a gather needs");
    REFUSED(run_of(reads, ENGINE_WRITE), (void)0, STATUS_INVALID,
            "was created without a slot_mapping, which a write needs");
    REFUSED(run_of(reads, ENGINE_COPY), (void)0, STATUS_INVALID, "kind 3 is none");
    REFUSED(run_of(reads, ENGINE_MERGE), (void)0, STATUS_INVALID, "kind 4 is none");
    REFUSED(run_of(reads, (enum engine_kind)77), (void)0, STATUS_INVALID, "kind 77 is none");
    REFUSED(run_of(reads, ENGINE_ATTEND), p.entry.layer = 1, STATUS_OUT_OF_RANGE,
            "layer 1 of K and V in the arena");
    REFUSED(run_of(only_writes, ENGINE_WRITE), p.entry.layer = 2, STATUS_OUT_OF_RANGE,
            "layer 2 of a cache with 2 layers");
    REFUSED(run_of(only_writes, ENGINE_WRITE), p.entry.k.dtype = DTYPE_FP8_E4M3, STATUS_UNSUPPORTED,
            "k is fp8_e4m3");
    REFUSED(run_of(only_writes, ENGINE_WRITE), p.entry.v.dtype = DTYPE_BF16, STATUS_MISMATCH,
            "v is bf16, but k is f16");
    REFUSED(run_of(only_writes, ENGINE_WRITE), p.entry.v.offset = WORLD_ARENA - 64,
            STATUS_OUT_OF_RANGE, "v at 1048512");
    ACCEPTED(run_of(only_writes, ENGINE_WRITE), p.entry.k.dtype = p.entry.v.dtype = DTYPE_BF16);
    ACCEPTED(run_of(only_writes, ENGINE_WRITE),
             (p.entry.k.dtype = p.entry.v.dtype = DTYPE_F32, p.entry.k.token_stride = 32));
}
END_TEST

START_TEST(outer_strides_step_over_the_sequences_of_a_write)
{
    put_numbers(AT_K, 3, 100);
    put_numbers(AT_K + 512, 2, 200);
    ACCEPTED(run_of(writer(2), ENGINE_WRITE),
             (p.entry.k.outer_stride = 512, p.entry.v.outer_stride = 48));
    const struct engine_cache *cache = core_engine_cache(world.core, a.cache);
    ck_assert_int_eq(fake_engine_slot(cache, 0, blocks[0], 1), 101);
    ck_assert_int_eq(fake_engine_slot(cache, 0, blocks[0], 4), 200);
    ck_assert_int_eq(fake_engine_slot(cache, 0, blocks[0], 3), 201);
    REFUSED(run_of(writer(0), ENGINE_WRITE), p.entry.k.outer_stride = 512, STATUS_INVALID,
            "k has outer stride 512, but the batch has no sequences");
}
END_TEST

// ---- gathers ----

START_TEST(a_gather_lays_the_sequences_one_after_the_other)
{
    const int32_t cu[] = {0, 0, 0}, lens[] = {10, 3},
                  table[] = {blocks[5], blocks[1], blocks[2], -1};
    put_numbers(AT_K, 64, 0);
    worker_write(&a, (int32_t[]){blocks[5], blocks[1]}, tokens, 16);
    worker_write(&a, &blocks[2], tokens + 30, 8);
    const struct core_batch_params params = sequences_over(a.cache, 2, cu, lens, table, 2);
    uint64_t batch = create(&params);
    const uint64_t *metrics = core_metrics(world.core), done = metrics[METRIC_RUNS_DONE],
                   attended = metrics[METRIC_TOKENS_ATTENDED];
    ACCEPTED(run_of(batch, ENGINE_GATHER), p.entry.layer = 1);
    ck_assert_uint_eq(metrics[METRIC_RUNS_DONE], done + 1);
    ck_assert_uint_eq(metrics[METRIC_TOKENS_ATTENDED], attended); // a gather attends no tokens
    for (uint32_t i = 0; i < 13; i++)
        ck_assert_int_eq(number_at(AT_K + 16ull * i), i < 10 ? tokens[i] : tokens[30 + i - 10]);
    REFUSED(run_of(batch, ENGINE_GATHER), p.entry.k.offset = WORLD_ARENA - 12 * 16,
            STATUS_OUT_OF_RANGE, "for 13 tokens");
    REFUSED(run_of(batch, ENGINE_GATHER), p.entry.v.offset = AT_K + 12 * 16, STATUS_INVALID,
            "k at 4096 overlaps v at 4288");
    REFUSED(run_of(batch, ENGINE_GATHER), p.entry.k.outer_stride = 512, STATUS_INVALID,
            "k has outer stride 512, but a gather's rows lie one after the other");
    REFUSED(run_of(batch, ENGINE_GATHER), p.entry.k.token_stride = 0, STATUS_INVALID,
            "k's rows of 16 bytes overlap");
    REFUSED(run_of(batch, ENGINE_GATHER), p.entry.k.dtype = DTYPE_INT8, STATUS_UNSUPPORTED,
            "k is int8");
}
END_TEST

START_TEST(a_gather_reads_every_block_and_says_which_it_may_not)
{
    const int32_t cu[] = {0, 1, 1}, lens[] = {20, 12};
    int32_t table[] = {-1, blocks[1], blocks[2], blocks[3], blocks[4], -1};
    struct core_batch_params params = sequences_over(a.cache, 2, cu, lens, table, 3);
    worker_fill(&a, blocks, 5);
    uint64_t windowed = create(&params);
    REFUSED(run_of(windowed, ENGINE_GATHER), (void)0, STATUS_INVALID,
            "block_table[0][0] = -1 names no block that the session may read; a gather reads every "
            "block");
    ACCEPTED(run_of(windowed, ENGINE_ATTEND), (p.entry.window_left = 2, p.entry.window_right = -1));
    table[0] = blocks[0];
    table[4] = 4711;
    uint64_t unseen = create(&params); // of a sequence without queries
    REFUSED(run_of(unseen, ENGINE_GATHER), (void)0, STATUS_INVALID,
            "block_table[1][1] = 4711 names no block");
    ACCEPTED(run_of(unseen, ENGINE_ATTEND), (void)0);
    table[4] = blocks[4];
    uint64_t whole = create(&params);
    worker_release(&a, &blocks[4], 1);
    ck_assert_int_eq((int)worker_block(&a, blocks[4]).state,
                     CORE_LEASED); // the batch keeps it for a gather
    ACCEPTED(run_of(whole, ENGINE_GATHER), (void)0);
}
END_TEST

// ---- K and V in blocks of the arena ----

START_TEST(attention_writes_and_reads_the_sessions_own_blocks)
{
    const struct core_layout layout = layout_of(8);
    put_numbers(AT_K, 5, 100);
    ACCEPTED(over_blocks(local_blocks(&layout, true), ENGINE_ATTEND), (void)0);
    ck_assert_int_eq(number_at(AT_KEYS + 6 * 128 + 7 * 16), 100);
    ck_assert_int_eq(number_at(AT_KEYS + 2 * 128), 101);
    ck_assert_int_eq(number_at(AT_KEYS + 4 * 128 + 3 * 16), 104);
    ACCEPTED(over_blocks(local_blocks(&layout, true), ENGINE_GATHER), p.entry.k.offset = 0);
    ck_assert_int_eq(number_at(7 * 16), 100);
    ck_assert_int_eq(number_at(8 * 16), 101);
    ck_assert_int_eq(number_at(13 * 16), 104);
}
END_TEST

START_TEST(the_arena_has_to_reach_as_far_as_the_largest_block_named)
{
    const struct core_layout layout = layout_of(8);
    uint64_t reads = local_blocks(&layout, false), writes = local_blocks(&layout, true);
    ACCEPTED(over_blocks(reads, ENGINE_ATTEND),
             p.entry.keys.offset = WORLD_ARENA - 7 * 128); // of 64
    REFUSED(over_blocks(reads, ENGINE_ATTEND), p.entry.keys.offset = WORLD_ARENA - 7 * 128 + 16,
            STATUS_OUT_OF_RANGE, "an outer stride of 128 for 7, each for 8 tokens");
    REFUSED(over_blocks(reads, ENGINE_ATTEND), p.entry.values.outer_stride = UINT64_MAX - 15,
            STATUS_OUT_OF_RANGE, "values at");
    REFUSED(over_blocks(reads, ENGINE_ATTEND), p.entry.keys.outer_stride = 0, STATUS_INVALID,
            "keys has no outer stride, that of a block, but 7 blocks");
    REFUSED(over_blocks(reads, ENGINE_ATTEND), p.entry.keys.outer_stride = 136, STATUS_MISALIGNED,
            "outer stride 136");
    REFUSED(over_blocks(reads, ENGINE_ATTEND), p.entry.keys.dtype = DTYPE_F32, STATUS_MISMATCH,
            "keys is f32; it must be f16");
    REFUSED(over_blocks(reads, ENGINE_ATTEND), p.entry.values.dtype = 0, STATUS_INVALID,
            "values has dtype 0");
    REFUSED(over_blocks(reads, ENGINE_ATTEND), p.entry.keys.memory = 2, STATUS_UNSUPPORTED,
            "keys lies in memory kind 2");
    REFUSED(over_blocks(reads, ENGINE_ATTEND), p.entry.keys.offset = AT_OUT, STATUS_INVALID,
            "out at 16384 overlaps keys");
    ACCEPTED(over_blocks(reads, ENGINE_ATTEND),
             p.entry.keys.offset = p.entry.values.offset =
                 AT_Q); // tensors that are read may overlap
    REFUSED(over_blocks(writes, ENGINE_ATTEND), p.entry.keys.offset = AT_Q, STATUS_INVALID,
            "keys at 0 overlaps q at 0");
    REFUSED(over_blocks(writes, ENGINE_ATTEND), p.entry.values.offset = AT_K, STATUS_INVALID,
            "values at 4096 overlaps k");
    REFUSED(over_blocks(writes, ENGINE_WRITE), p.entry.values.offset = AT_KEYS, STATUS_INVALID,
            "overlaps");
    REFUSED(over_blocks(writes, ENGINE_ATTEND), p.entry.keys.outer_stride = 64, STATUS_INVALID,
            "keys's rows of 16 bytes overlap: token stride 16, head stride 16, outer stride 64");
    ACCEPTED(over_blocks(reads, ENGINE_ATTEND),
             p.entry.keys.outer_stride = 64); // only the client's own data is affected
    // [blocks, K and V, tokens]: the two interleave
    ACCEPTED(over_blocks(writes, ENGINE_ATTEND),
             (p.entry.keys.outer_stride = p.entry.values.outer_stride = 256,
              p.entry.values.offset = AT_KEYS + 128));
    REFUSED(over_blocks(writes, ENGINE_ATTEND),
            (p.entry.keys.outer_stride = p.entry.values.outer_stride = 256,
             p.entry.values.offset = AT_KEYS + 112),
            STATUS_INVALID, "overlaps");
}
END_TEST

START_TEST(a_batch_of_the_cache_has_no_keys_and_values)
{
    uint64_t batch = worker_batch(&a, blocks, 8, 8);
    REFUSED(run_of(batch, ENGINE_ATTEND), p.entry.keys.dtype = DTYPE_F16, STATUS_INVALID,
            "keys is given, but K and V of batch");
    REFUSED(run_of(batch, ENGINE_WRITE), p.entry.values.dtype = DTYPE_F16, STATUS_INVALID,
            "values is given");
}
END_TEST

START_TEST(a_layout_of_8_bits_takes_keys_of_its_own_dtype_beside_any_query)
{
    struct core_layout layout = layout_of(8);
    layout.kv.k_dtype = DTYPE_INT8;
    layout.kv.v_dtype = DTYPE_FP8_E4M3;
    layout.kv.head_dim_k = layout.kv.head_dim_v = 16;
    layout.kv.scale_mode = SCALE_PER_TENSOR;
    struct core_run_params good = over_blocks(local_blocks(&layout, true), ENGINE_ATTEND);
    good.entry.keys.dtype = DTYPE_INT8;
    good.entry.values.dtype = DTYPE_FP8_E4M3;
    good.entry.q.token_stride = good.entry.k.token_stride = good.entry.v.token_stride =
        good.entry.out.token_stride = 32;
    ACCEPTED(good, (void)0);
    ACCEPTED(good, (p.entry.k_scale = 0.5f, p.entry.v_scale = 2.0f));
    REFUSED(good, p.entry.keys.dtype = DTYPE_FP8_E5M2, STATUS_MISMATCH,
            "keys is fp8_e5m2; it must be int8");
}
END_TEST

// ---- contiguous K and V ----

static struct core_run_params over_rows(uint64_t batch, uint64_t outer_stride)
{
    struct core_run_params p = run_of(batch, ENGINE_ATTEND);
    p.entry.keys = tensor(AT_KEYS, outer_stride);
    p.entry.values = tensor(AT_VALUES, outer_stride);
    return p;
}

START_TEST(ragged_rows_reach_as_far_as_the_last_key)
{
    const struct core_layout layout = layout_of(0);
    uint64_t ragged = local_rows(&layout, true), padded = local_rows(&layout, false);
    ACCEPTED(over_rows(ragged, 0), p.entry.keys.offset = WORLD_ARENA - 14 * 16);
    REFUSED(over_rows(ragged, 0), p.entry.keys.offset = WORLD_ARENA - 13 * 16, STATUS_OUT_OF_RANGE,
            "for 14 tokens");
    REFUSED(over_rows(padded, 0), (void)0, STATUS_INVALID,
            "keys has no outer stride, that of a sequence, and batch");
    ACCEPTED(over_rows(padded, 160), p.entry.keys.offset = WORLD_ARENA - 20 * 16);
    REFUSED(over_rows(padded, 160), p.entry.values.offset = WORLD_ARENA - 19 * 16,
            STATUS_OUT_OF_RANGE, "an outer stride of 160 for 2, each for 10 tokens");
    ACCEPTED(over_rows(ragged, 0), p.entry.keys.outer_stride = 160); // each on its own
    REFUSED(over_rows(ragged, 0), p.entry.kind = ENGINE_WRITE, STATUS_INVALID,
            "without a slot_mapping");
}
END_TEST

START_TEST(a_gather_over_rows_makes_padded_sequences_ragged)
{
    const struct core_layout layout = layout_of(0);
    put_numbers(AT_KEYS, 10, 100);
    put_numbers(AT_KEYS + 512, 4, 200);
    ACCEPTED(over_rows(local_rows(&layout, false), 512), p.entry.kind = ENGINE_GATHER);
    ck_assert_int_eq(number_at(AT_K + 9 * 16), 109);
    ck_assert_int_eq(number_at(AT_K + 10 * 16), 200);
}
END_TEST

// ---- outer strides of q and out ----

START_TEST(queries_may_lie_padded)
{
    const struct core_layout layout = layout_of(0);
    uint64_t batch = local_rows(&layout, true);
    ACCEPTED(over_rows(batch, 0), (p.entry.q.outer_stride = 48, p.entry.out.outer_stride = 1024));
    ACCEPTED(over_rows(batch, 0), (p.entry.out.outer_stride = 48,
                                   p.entry.out.offset = WORLD_ARENA - 96)); // 2 times 3 rows
    REFUSED(over_rows(batch, 0),
            (p.entry.out.outer_stride = 64, p.entry.out.offset = WORLD_ARENA - 96),
            STATUS_OUT_OF_RANGE, "an outer stride of 64 for 2, each for 3 tokens");
    REFUSED(over_rows(batch, 0), p.entry.out.outer_stride = 32, STATUS_INVALID,
            "out's rows of 16 bytes overlap");
    REFUSED(over_rows(batch, 0), (p.entry.out.outer_stride = AT_KEYS, p.entry.out.offset = 64),
            STATUS_INVALID, "out at 64 overlaps q at 0");
    REFUSED(over_rows(batch, 0), (p.entry.out.outer_stride = AT_KEYS, p.entry.out.offset = 128),
            STATUS_INVALID, "out at 128 overlaps keys at 32768");
    REFUSED(over_rows(batch, 0), p.entry.q.outer_stride = 24, STATUS_MISALIGNED, "outer stride 24");
    REFUSED(over_rows(batch, 0),
            p.entry.lse = ((struct wire_tensor){
                .dtype = DTYPE_F32, .offset = AT_V, .token_stride = 16, .outer_stride = 64}),
            STATUS_INVALID, "lse has outer stride 64");
    // heads between tokens and sequences: [2][2 heads][3 rows]
    ACCEPTED(over_rows(batch, 0),
             (p.entry.num_heads = 2, p.entry.q.head_stride = p.entry.out.head_stride = 48,
              p.entry.q.outer_stride = p.entry.out.outer_stride = 96));
    // q and out interleave: [2][q | out][3 rows]
    ACCEPTED(over_rows(batch, 0),
             (p.entry.q.outer_stride = p.entry.out.outer_stride = 96, p.entry.out.offset = 48));
    REFUSED(over_rows(batch, 0),
            (p.entry.q.outer_stride = p.entry.out.outer_stride = 96, p.entry.out.offset = 64),
            STATUS_INVALID, "out at 64 overlaps q at 0");
}
END_TEST

START_TEST(interleaved_tokens_have_no_outer_stride)
{
    static const int32_t cu[] = {0, 3, 5}, lens[] = {10, 4}, table[] = {6, 2, 4, 1},
                         rows[] = {4, 0, 2, 1, 3};
    const struct core_layout layout = layout_of(8);
    struct core_batch_params params = sequences_over(0, 2, cu, lens, table, 2);
    params.layout = &layout;
    params.token_rows = rows;
    params.num_token_rows = 5;
    uint64_t batch = create(&params);
    ACCEPTED(over_blocks(batch, ENGINE_ATTEND), (void)0);
    REFUSED(over_blocks(batch, ENGINE_ATTEND), p.entry.q.outer_stride = 64, STATUS_INVALID,
            "q has outer stride 64, but the batch has token_rows");
    REFUSED(over_blocks(batch, ENGINE_ATTEND), p.entry.out.outer_stride = 64, STATUS_INVALID,
            "out has outer stride 64");
}
END_TEST

// ---- MLA ----

START_TEST(values_that_are_a_part_of_the_keys_have_no_tensor)
{
    struct core_layout layout = layout_of(8);
    layout.kv.v_is_k_prefix = true;
    layout.kv.head_dim_k = 16;
    layout.kv.k_dtype = layout.kv.v_dtype = DTYPE_INT8;
    layout.kv.scale_mode = SCALE_PER_TENSOR;
    struct core_run_params good = over_blocks(local_blocks(&layout, true), ENGINE_ATTEND);
    good.entry.q.token_stride = good.entry.k.token_stride = 32;
    good.entry.keys.dtype = DTYPE_INT8;
    good.entry.v = good.entry.values =
        (struct wire_tensor){.memory = 3, .dtype = 99, .offset = 1}; // the field is not read
    ACCEPTED(good, p.entry.k_scale = 0.25f);
    ACCEPTED(good, p.entry.kind = ENGINE_GATHER);
    ACCEPTED(good, p.entry.kind = ENGINE_WRITE);
    REFUSED(good, p.entry.v_scale = 1.0f, STATUS_INVALID, "v_scale is given, but V is a part of K");
    uint64_t ticket;
    good.entry.k_scale = 0.25f;
    ck_assert_status(core_run(a.session, &good, &ticket, &error), STATUS_OK);
    world_step(&world);
    ck_assert_float_eq(fake_engine_oldest(world.engine)->runs[0].run.v_scale, 0.25f);
    world_finish_all(&world);
}
END_TEST

// ---- cost ----

// A workgroup, and a pair of a row and a key with 8 + 8 dims, in multiply-adds.
enum { GROUP = 1 << 15, PAIR = 8 + 8 + 128 };

#define WORKS(params, most)                                                                        \
    do {                                                                                           \
        struct core_run_params p_ = params;                                                        \
        uint64_t ticket_;                                                                          \
        limits->max_run_work = (most)-1;                                                           \
        ck_assert_refused(core_run(a.session, &p_, &ticket_, &error), STATUS_LIMIT,                \
                          "--max-run-work");                                                       \
        limits->max_run_work = (most);                                                             \
        ck_assert_status(core_run(a.session, &p_, &ticket_, &error), STATUS_OK);                   \
        limits->max_run_work = 0;                                                                  \
        world_finish_all(&world);                                                                  \
        worker_reap(&a, ticket_, STATUS_OK);                                                       \
    } while (0)

START_TEST(writes_and_gathers_weigh_what_they_move_and_no_queries_weigh_their_rows)
{
    struct core_params *limits = &world.core->params;
    const struct core_layout rows = layout_of(0);
    WORKS(run_of(writer(0), ENGINE_WRITE), 5 * ((8 + 8) * (2 + 2) + GROUP) + 1);
    struct core_run_params gather = over_rows(local_rows(&rows, true), 0);
    gather.entry.kind = ENGINE_GATHER;
    gather.entry.k.dtype = gather.entry.v.dtype = DTYPE_F32;
    gather.entry.k.token_stride = gather.entry.v.token_stride = 32;
    WORKS(gather, 14 * ((8 + 8) * (4 + 2) + GROUP) + 1);
    static const int32_t cu[] = {0, 4}, lens[] = {10}, q_lens[] = {1}, starts[] = {0};
    struct core_batch_params params = sequences_over(0, 1, cu, lens, NULL, 0);
    params.layout = &rows;
    params.q_lens = q_lens;
    params.num_q_lens = 1;
    params.kv_starts = starts;
    params.num_kv_starts = 1;
    uint64_t one = create(&params);
    WORKS(over_rows(one, 0),
          (10 + 4 * 512 + 512 * 7) * PAIR + 10 * 32); // one query of ten keys, four rows
}
END_TEST

static uint64_t without_queries(const struct core_layout *layout, int32_t seq_len,
                                uint32_t max_blocks)
{
    static const int32_t cu[] = {0, 0, 0}, table[4] = {0};
    const int32_t lens[] = {seq_len, seq_len};
    struct core_batch_params params =
        sequences_over(0, 2, cu, lens, max_blocks ? table : NULL, max_blocks);
    params.layout = layout;
    return create(&params);
}

START_TEST(keys_of_the_arena_weigh_their_bytes_though_no_query_sees_them)
{
    struct core_params *limits = &world.core->params;
    const struct core_layout rows = layout_of(0), local = layout_of(8);
    struct core_run_params run = over_rows(without_queries(&rows, INT32_MAX, 0), 16);
    run.entry.keys.token_stride = run.entry.values.token_stride = 0; // all of them in 32 bytes
    WORKS(run, PAIR + 2 * (uint64_t)INT32_MAX * (8 + 8) * 2);
    struct core_run_params blocks_of = over_blocks(without_queries(&local, 9, 2), ENGINE_ATTEND);
    WORKS(blocks_of, PAIR + 2 * 16 * (8 + 8) * 2); // whole blocks
    blocks_of.entry.kind = ENGINE_GATHER;
    WORKS(blocks_of, (2 * 9 + 2 * 16) * (8 + 8) * 2 + 2 * 9 * GROUP + 1);
    uint64_t ticket;
    ck_assert_status(core_run(a.session, &run, &ticket, &error), STATUS_OK);
    ck_assert_uint_eq(a.session->runs.queued->weight, 2 * (uint64_t)INT32_MAX * (8 + 8) * 2 / 4096);
    world_finish_all(&world);
    const uint64_t *totals = core_metrics(world.core);
    ck_assert_uint_eq(totals[METRIC_TOKENS_ATTENDED],
                      3); // at least one for each run, and the copies do not count
    worker_reap(&a, ticket, STATUS_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("core run");
    check_case(suite, "kinds", open_one, close_one,
               (const TTest *const[]){
                   a_write_takes_k_and_v_to_their_slots_and_looks_at_nothing_else,
                   blocks_that_only_write_runs_have_written_can_be_published,
                   each_kind_says_what_its_batch_lacks,
                   outer_strides_step_over_the_sequences_of_a_write,
                   a_gather_lays_the_sequences_one_after_the_other,
                   a_gather_reads_every_block_and_says_which_it_may_not,
                   writes_and_gathers_weigh_what_they_move_and_no_queries_weigh_their_rows,
                   keys_of_the_arena_weigh_their_bytes_though_no_query_sees_them, NULL},
               1);
    check_case(
        suite, "local", open_one, close_one,
        (const TTest *const[]){attention_writes_and_reads_the_sessions_own_blocks,
                               the_arena_has_to_reach_as_far_as_the_largest_block_named,
                               a_batch_of_the_cache_has_no_keys_and_values,
                               a_layout_of_8_bits_takes_keys_of_its_own_dtype_beside_any_query,
                               ragged_rows_reach_as_far_as_the_last_key,
                               a_gather_over_rows_makes_padded_sequences_ragged,
                               queries_may_lie_padded, interleaved_tokens_have_no_outer_stride,
                               values_that_are_a_part_of_the_keys_have_no_tensor, NULL},
        1);
    return check_main(suite);
}
