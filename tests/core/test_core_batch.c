// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_core_batch.c - metadata of special batches (plain ones: test_core_metadata.c): K and V in
// the session's own arena, rows that are no queries, interleaved tokens, batches that only write.

#include "rigs/check_main.h"
#include "rigs/core_world.h"

#include <string.h>

static struct world world;
static struct worker a;
static int32_t tokens[64];

static void open_one(void)
{
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
    count_tokens(tokens, 64, 1);
}

static void close_one(void)
{
    world_check(&world);
    world_close(&world);
}

// Two sequences: 3 new tokens of 10, 2 new of 4.
static struct {
    struct core_layout layout;
    int32_t cu[3], lens[2], table[4], q_lens[2], rows[5], starts[2], positions[5];
    int64_t slots[5];
    int32_t leased[3];
    struct core_batch_params params;
} m;

static void make_local(uint32_t block_size)
{
    memset(&m, 0, sizeof(m));
    m.layout.kv = world_identity("").kv;
    m.layout.kv.block_size = block_size;
    m.layout.num_blocks = block_size ? 16 : 0;
    memcpy(m.cu, (int32_t[]){0, 3, 5}, sizeof(m.cu));
    memcpy(m.lens, (int32_t[]){10, 4}, sizeof(m.lens));
    memcpy(m.table, (int32_t[]){7, 3, 5, -9}, sizeof(m.table)); // the last entry is not read
    memcpy(m.slots, (int64_t[]){3 * 8 - 1 - 16, 3 * 8, 3 * 8 + 1, 5 * 8 + 2, 5 * 8 + 3},
           sizeof(m.slots));
    memcpy(m.rows, (int32_t[]){4, 0, 2, 1, 3}, sizeof(m.rows));
    memcpy(m.starts, (int32_t[]){0, 10}, sizeof(m.starts));
    m.params = (struct core_batch_params){
        .layout = &m.layout,
        .num_seqs = 2,
        .max_blocks = block_size ? 2 : 0,
        .cu_seqlens_q = m.cu,
        .num_cu_seqlens_q = 3,
        .seq_lens_kv = m.lens,
        .num_seq_lens_kv = 2,
        .block_table = m.table,
        .num_block_table = block_size ? 4 : 0,
        .slot_mapping = m.slots,
        .num_slot_mapping = block_size ? 5 : 0,
        .q_lens = m.q_lens,
        .token_rows = m.rows,
        .kv_starts = m.starts,
        .positions = m.positions,
    };
}

// The same over blocks of the cache.
static void make_pooled(void)
{
    int32_t blocks[3];
    make_local(WORLD_BLOCK);
    worker_lease(&a, 3, blocks);
    for (int i = 0; i < 3; i++)
        m.leased[i] = m.table[i] = blocks[i];
    for (int i = 0; i < 3; i++)
        m.slots[i] = blocks[1] * 8 + i - (i == 0 ? 0 : 1);
    m.slots[0] = blocks[0] * 8 + 7;
    m.slots[3] = blocks[2] * 8 + 2;
    m.slots[4] = blocks[2] * 8 + 3;
    m.params.layout = NULL;
    m.params.cache = a.cache;
}

static uint64_t create(void)
{
    uint64_t batch = worker_create(&a, &m.params);
    world_check(&world);
    return batch;
}

static void destroy(uint64_t batch)
{
    ck_assert_status(core_batch_destroy(a.session, batch, &error), STATUS_OK);
    world_check(&world);
}

#define REFUSED(change, status, text)                                                              \
    do {                                                                                           \
        uint64_t none_ = 0;                                                                        \
        uint32_t made_ = 0;                                                                        \
        change;                                                                                    \
        ck_assert_refused(core_batch_create(a.session, &m.params, &none_, &made_, &error), status, \
                          text);                                                                   \
        ck_assert_uint_eq(none_, 0);                                                               \
    } while (0)
#define BLOCKS(change, status, text) REFUSED((make_local(8), (change)), status, text)
#define ROWS(change, status, text)                                                                 \
    REFUSED((make_local(0), m.params.num_kv_starts = 2, (change)), status, text)
#define POOL(change, status, text)                                                                 \
    do {                                                                                           \
        make_pooled();                                                                             \
        REFUSED(change, status, text);                                                             \
        worker_release(&a, m.leased, 3);                                                           \
    } while (0)

// ---- K and V in the arena ----

START_TEST(a_batch_over_the_sessions_own_blocks_holds_nothing)
{
    struct core_session_counts counts;
    make_local(8);
    uint64_t batch = create();
    core_session_counts(a.session, &counts);
    ck_assert_uint_eq(counts.blocks_held, 0);
    ck_assert_uint_eq(counts.batches, 1);
    destroy(batch);
}
END_TEST

START_TEST(an_id_of_the_sessions_own_blocks_is_checked_against_their_number)
{
    BLOCKS(m.table[1] = 16, STATUS_OUT_OF_RANGE,
           "block_table[0][1] = 16 is outside the layout's 16 block ids");
    BLOCKS(m.table[0] = -2, STATUS_OUT_OF_RANGE, "block_table[0][0] = -2");
    BLOCKS(m.table[1] = -1, STATUS_INVALID, "block_table[0][1] = -1, but the queries");
    BLOCKS(m.slots[4] = 16 * 8, STATUS_OUT_OF_RANGE,
           "slot_mapping[4] = 128 (block 16, offset 0) is outside the layout");
    BLOCKS(m.slots[4] = -2, STATUS_OUT_OF_RANGE, "slot_mapping[4] = -2 is below -1");
    BLOCKS(m.slots[4] = INT64_MAX, STATUS_OUT_OF_RANGE, "slot_mapping[4]");
    BLOCKS(m.slots[4] = m.slots[1], STATUS_DUPLICATE_SLOT,
           "slot_mapping[4] = 24 (block 3, offset 0) occurs twice");
    BLOCKS(m.layout.num_blocks = 7, STATUS_OUT_OF_RANGE, "the layout's 7 block ids");
    make_local(8);
    m.table[1] = m.table[2] = m.table[0]; // the same entry may occur several times
    destroy(create());
    make_local(8);
    m.slots[0] = m.slots[4] = -1;
    destroy(create());
}
END_TEST

START_TEST(a_layout_that_cannot_be_is_refused)
{
    BLOCKS(m.params.cache = a.cache, STATUS_INVALID, "and has a layout");
    BLOCKS(m.params.layout = NULL, STATUS_INVALID, "names no cache and has no layout");
    BLOCKS(m.layout.kv.block_size = 12, STATUS_UNSUPPORTED, "block_size 12");
    BLOCKS(m.layout.kv.block_size = 512, STATUS_UNSUPPORTED, "block_size 512");
    BLOCKS(m.layout.kv.num_kv_heads = 0, STATUS_INVALID, "num_kv_heads 0");
    BLOCKS(m.layout.kv.head_dim_k = 12, STATUS_UNSUPPORTED, "head_dim 12");
    BLOCKS((m.layout.kv.k_dtype = m.layout.kv.v_dtype = DTYPE_INT8,
            m.layout.kv.scale_mode = SCALE_PER_TOKEN_HEAD),
           STATUS_UNSUPPORTED, "scale_mode 2"); // the engine's error
    ROWS(m.layout.num_blocks = 4, STATUS_INVALID, "4 blocks, but block_size 0");
    ROWS(m.layout.kv.head_dim_v = 0, STATUS_UNSUPPORTED, "head_dim 0");
}
END_TEST

START_TEST(contiguous_keys_have_neither_table_nor_slots)
{
    ROWS((m.params.max_blocks = 2, m.params.num_block_table = 4), STATUS_INVALID,
         "max_blocks is given, but K and V are contiguous");
    ROWS(m.params.num_block_table = 4, STATUS_INVALID, "block_table is given");
    ROWS(m.params.num_slot_mapping = 5, STATUS_INVALID, "slot_mapping is given");
    ROWS(m.params.num_kv_starts = 1, STATUS_INVALID, "kv_starts has 1 entries; 2 are needed");
    ROWS(m.starts[1] = -1, STATUS_OUT_OF_RANGE, "kv_starts[1] = -1 is negative");
    ROWS(m.lens[0] = -1, STATUS_INVALID, "seq_lens_kv[0] = -1");
    ROWS(m.params.max_context_len = 9, STATUS_OUT_OF_RANGE, "max_context_len 9");
    BLOCKS(m.params.num_kv_starts = 2, STATUS_INVALID,
           "kv_starts is given, but K and V lie in blocks");
    make_local(0);
    destroy(create()); // without kv_starts: its runs have outer strides
    make_local(0);
    m.lens[0] = INT32_MAX; // the run checks whether they fit
    destroy(create());
}
END_TEST

START_TEST(local_batches_count_against_the_limits_of_all)
{
    struct world strict;
    struct worker worker;
    uint64_t batch, last;
    uint32_t made;
    world_open(&strict, &(struct core_params){.max_batches = 2, .max_batch_memory = 300});
    worker_open(&worker, &strict, 1, "");
    make_local(8); // twice (3 + 2 + 4) * 4, and 5 * 8: 112 bytes
    batch = worker_create(&worker, &m.params);
    m.params.num_q_lens = 2;
    m.params.num_positions = 5;
    m.params.mask_bytes = 100;
    ck_assert_refused(core_batch_create(worker.session, &m.params, &last, &made, &error),
                      STATUS_LIMIT, "268 bytes of metadata more");
    m.params.mask_bytes = UINT64_MAX;
    ck_assert_refused(core_batch_create(worker.session, &m.params, &last, &made, &error),
                      STATUS_LIMIT, "--max-batch-memory");
    make_local(8);
    worker_create(&worker, &m.params);
    ck_assert_refused(core_batch_create(worker.session, &m.params, &last, &made, &error),
                      STATUS_LIMIT, "--max-batches");
    ck_assert_status(core_batch_destroy(worker.session, batch, &error), STATUS_OK);
    worker_create(&worker, &m.params);
    world_check(&strict);
    worker_close(&worker, true);
    ck_assert_uint_eq(strict.gone, 1);
    world_close(&strict);
}
END_TEST

// ---- rows that are no queries ----

START_TEST(rows_beyond_q_lens_are_no_queries)
{
    POOL((m.params.num_q_lens = 1), STATUS_INVALID, "q_lens has 1 entries; 2 are needed");
    POOL((m.params.num_q_lens = 2, m.q_lens[0] = 4), STATUS_OUT_OF_RANGE,
         "q_lens[0] = 4, but cu_seqlens_q gives that sequence 3 rows");
    POOL((m.params.num_q_lens = 2, m.q_lens[1] = -1), STATUS_OUT_OF_RANGE, "q_lens[1] = -1");
    POOL((m.params.num_q_lens = 2, m.q_lens[1] = 2, m.params.num_token_rows = 5), STATUS_INVALID,
         "token_rows and q_lens are given");
    POOL((m.params.max_seqlen_q = 2), STATUS_OUT_OF_RANGE,
         "sequence 0 has q_len 3, which exceeds max_seqlen_q 2");
    POOL((m.lens[0] = 2), STATUS_INVALID, "q_len 3 above its seq_len 2");
    POOL((m.params.num_q_lens = 2, m.q_lens[0] = 3, m.lens[0] = 2), STATUS_INVALID,
         "q_len 3 above its seq_len 2");
    make_pooled();
    m.params.num_q_lens = 2;
    m.params.max_seqlen_q = 2;
    m.q_lens[0] = m.lens[0] = 2; // only queries count for bottom-right alignment and for the bound
    m.q_lens[1] = 1;
    destroy(create());
    m.lens[0] = 10;
    m.q_lens[0] = 0; // no query: its entries may have any value
    m.table[0] = -77;
    destroy(create());
}
END_TEST

START_TEST(missing_entries_go_by_the_first_query_alone)
{
    POOL((m.params.num_slot_mapping = 0, m.table[0] = -1, m.lens[0] = 9), STATUS_INVALID,
         "block_table[0][0] = -1"); // a query is at 6
    make_pooled();
    m.params.num_slot_mapping = 0;
    m.table[0] = -1;
    m.lens[0] = 9;
    m.params.num_q_lens = 2;
    m.q_lens[0] = 1; // it is at 8
    m.q_lens[1] = 2;
    destroy(create());
}
END_TEST

START_TEST(a_mask_has_a_bit_for_each_row_and_key)
{
    static const uint8_t mask[8];
    POOL((m.params.mask = mask, m.params.mask_bytes = 4, m.params.num_q_lens = 2, m.q_lens[0] = 1),
         STATUS_INVALID,
         "mask has 4 bytes; 5 are needed"); // 3 * 10 bits and 2 * 4
    make_pooled();
    m.params.mask = mask;
    m.params.mask_bytes = 5;
    m.params.num_q_lens = 2;
    m.q_lens[0] = 1;
    destroy(create());
}
END_TEST

// ---- interleaved tokens ----

START_TEST(token_rows_name_each_row_once)
{
    POOL((m.params.num_token_rows = 4), STATUS_INVALID, "token_rows has 4 entries; 5 are needed");
    POOL((m.params.num_token_rows = 5, m.rows[3] = 5), STATUS_OUT_OF_RANGE,
         "token_rows[3] = 5 is outside the 5 rows");
    POOL((m.params.num_token_rows = 5, m.rows[3] = -1), STATUS_OUT_OF_RANGE, "token_rows[3] = -1");
    POOL((m.params.num_token_rows = 5, m.rows[3] = 2), STATUS_INVALID,
         "token_rows[3] = 2 occurs twice");
    make_pooled();
    m.params.num_token_rows = 5;
    destroy(create());
}
END_TEST

START_TEST(slots_and_positions_go_by_the_row)
{
    make_pooled();
    m.params.num_token_rows = 5; // sequence 0 has the rows 4, 0, 2
    m.lens[0] = 2;
    m.slots[4] = m.slots[0] = m.slots[2] = -1; // and writes nothing
    destroy(create());
    m.slots[2] = (int64_t)m.table[1] * 8;
    REFUSED((void)0, STATUS_INVALID, "sequence 0 writes K/V with q_len 3 above its seq_len 2");
    m.lens[0] = 9;
    m.table[0] = -1;
    m.params.num_positions = 5;
    memcpy(m.positions, (int32_t[]){8, 0, 8, 1, 8},
           sizeof(m.positions)); // only those of sequence 1 are too low
    m.params.num_slot_mapping = 0;
    destroy(create());
    m.positions[4] = 7;
    REFUSED((void)0, STATUS_INVALID, "block_table[0][0] = -1");
}
END_TEST

// ---- batches that only write ----

START_TEST(a_batch_without_sequences_has_a_slot_mapping_and_nothing_else)
{
    uint64_t batch;
    uint32_t made;
    make_pooled();
    m.params.num_seqs = m.params.max_blocks = m.params.num_cu_seqlens_q = m.params.num_seq_lens_kv =
        0;
    m.params.num_block_table = 0;
    ck_assert_status(core_batch_create(a.session, &m.params, &batch, &made, &error), STATUS_OK);
    ck_assert_uint_eq(made, 5); // as many tokens as slots
    destroy(batch);
    REFUSED(m.params.num_slot_mapping = 0, STATUS_INVALID,
            "num_seqs is 0; only a batch with a slot_mapping");
    m.params.num_slot_mapping = 5;
    REFUSED(m.params.num_q_lens = 1, STATUS_INVALID, "q_lens has 1 entries; 0 are needed");
    m.params.num_q_lens = 0;
    REFUSED(m.params.num_positions = 4, STATUS_INVALID, "positions has 4 entries; 5 are needed");
    m.params.num_positions = 0;
    REFUSED(m.params.mask_bytes = 1, STATUS_INVALID, "mask has 1 bytes; 0 are needed");
    m.params.mask_bytes = 0;
    REFUSED(m.slots[3] = m.slots[2], STATUS_DUPLICATE_SLOT, "occurs twice");
    m.slots[3] = -1;
    m.params.num_seqs = 2; // sequences are needed only for outer strides
    m.params.num_cu_seqlens_q = 3;
    destroy(create());
    m.params.num_slot_mapping = 0;
    REFUSED((void)0, STATUS_INVALID, "seq_lens_kv has 0 entries; 2 are needed");
}
END_TEST

// ---- the seeds' example ----

// Four sequences that share one pool of interleaved blocks. The table must lead to the K of each
// token, in the order of the sequence.
START_TEST(four_sequences_find_their_tokens_through_the_block_table)
{
    const uint32_t lens[] = {5, 16, 17, 30};
    int32_t blocks[4][4], all[16], text[32];
    worker_lease(&a, 16, all);
    for (int i = 0; i < 16; i++)
        blocks[i % 4][i / 4] = all[i];
    for (int s = 0; s < 4; s++) {
        count_tokens(text, lens[s], 1000 * (s + 1));
        worker_write(&a, blocks[s], text, lens[s]);
    }
    const struct engine_cache *cache = core_engine_cache(world.core, a.cache);
    for (int s = 0; s < 4; s++) {
        for (uint32_t t = 0; t < lens[s]; t++) {
            int32_t number =
                fake_engine_slot(cache, 1, blocks[s][t / WORLD_BLOCK], t % WORLD_BLOCK);
            ck_assert_int_eq(number, 1000 * (s + 1) + (int32_t)t);
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("core batch");
    check_case(suite, "local", open_one, close_one,
               (const TTest *const[]){
                   a_batch_over_the_sessions_own_blocks_holds_nothing,
                   an_id_of_the_sessions_own_blocks_is_checked_against_their_number,
                   a_layout_that_cannot_be_is_refused, contiguous_keys_have_neither_table_nor_slots,
                   local_batches_count_against_the_limits_of_all, NULL},
               1);
    check_case(suite, "queries", open_one, close_one,
               (const TTest *const[]){
                   rows_beyond_q_lens_are_no_queries, missing_entries_go_by_the_first_query_alone,
                   a_mask_has_a_bit_for_each_row_and_key, token_rows_name_each_row_once,
                   slots_and_positions_go_by_the_row, NULL},
               1);
    check_case(suite, "writes", open_one, close_one,
               (const TTest *const[]){a_batch_without_sequences_has_a_slot_mapping_and_nothing_else,
                                      four_sequences_find_their_tokens_through_the_block_table,
                                      NULL},
               1);
    return check_main(suite);
}
