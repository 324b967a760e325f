// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_core_metadata.c - rules for the metadata of a batch over the pool, field by field; which
// entries of its block table may be missing; and how much metadata a session may keep. Batches over
// the arena, padded and interleaved ones: test_core_batch.c.

#include "core/pool/session.h"
#include "rigs/check_main.h"
#include "rigs/ownership_world.h"

#include <stdlib.h>
#include <string.h>

// ---- bad metadata ----

static struct {
    int32_t cu[4], lens[3], table[9];
    int64_t slots[32];
    int32_t positions[7];
    uint8_t mask[13]; // 4 * 20 bits, none, 3 * 8 bits
    struct core_batch_params params;
} good;

// Three sequences over the blocks 0..8, three blocks each: 4 new tokens of 20, none of 5, 3 new of
// 8.
static void make_good(void)
{
    memset(&good, 0, sizeof(good));
    memcpy(good.cu, (int32_t[]){0, 4, 4, 7}, sizeof(good.cu));
    memcpy(good.lens, (int32_t[]){20, 5, 8}, sizeof(good.lens));
    for (int i = 0; i < 9; i++)
        good.table[i] = blocks[i];
    good.table[3] = good.table[7] = good.table[8] = -99; // entries that no query sees may have any
                                                         // value
    for (int i = 0; i < 4; i++)
        good.slots[i] = (int64_t)blocks[2] * 8 + i;
    for (int i = 0; i < 3; i++)
        good.slots[4 + i] = (int64_t)blocks[6] * 8 + 5 + i;
    good.params = (struct core_batch_params){
        .cache = a.cache,
        .num_seqs = 3,
        .max_blocks = 3,
        .cu_seqlens_q = good.cu,
        .num_cu_seqlens_q = 4,
        .seq_lens_kv = good.lens,
        .num_seq_lens_kv = 3,
        .block_table = good.table,
        .num_block_table = 9,
        .slot_mapping = good.slots,
        .num_slot_mapping = 7,
    };
}

#define REFUSED(change, status, text)                                                              \
    do {                                                                                           \
        uint64_t none_ = 0;                                                                        \
        uint32_t made_ = 0;                                                                        \
        make_good();                                                                               \
        change;                                                                                    \
        ck_assert_refused(world_create(a.session, &good.params, &none_, &made_, &error), status,   \
                          text);                                                                   \
        ck_assert_uint_eq(none_, 0);                                                               \
    } while (0)

START_TEST(each_kind_of_bad_metadata_has_its_status_and_a_sentence_with_the_values)
{
    uint64_t batch;
    uint32_t made;
    worker_lease(&a, 9, blocks);
    worker_lease(&b, 1, found);
    worker_lease(&a, 1, blocks + 9);
    worker_write(&a, blocks + 9, tokens, 8);
    worker_publish(&a, tokens, 8, blocks + 9);
    make_good();
    ck_assert_status(world_create(a.session, &good.params, &batch, &made, &error), STATUS_OK);
    ck_assert_uint_eq(made, 7);
    ck_assert_status(core_batch_destroy(a.session, batch, &error), STATUS_OK);
    REFUSED(good.params.cache = 77, STATUS_NOT_FOUND, "77");
    REFUSED(good.params.num_seqs = 0, STATUS_INVALID, "num_seqs is 0");
    REFUSED(good.params.num_cu_seqlens_q = 3, STATUS_INVALID, "cu_seqlens_q has 3 entries; 4");
    REFUSED(good.params.num_seq_lens_kv = 4, STATUS_INVALID, "seq_lens_kv has 4");
    REFUSED(good.params.num_block_table = 8, STATUS_INVALID, "block_table has 8");
    REFUSED(good.params.num_slot_mapping = 6, STATUS_INVALID, "slot_mapping has 6 entries; 7");
    REFUSED(good.cu[0] = 1, STATUS_INVALID, "cu_seqlens_q[0] is 1");
    REFUSED(good.cu[2] = 3, STATUS_INVALID, "[1] = 4 to [2] = 3");
    REFUSED(good.cu[1] = -1, STATUS_INVALID, "falls");
    REFUSED((good.cu[3] = INT32_MAX, good.params.num_slot_mapping = 0), STATUS_OUT_OF_RANGE,
            "2147483647 tokens");
    REFUSED(good.lens[1] = -5, STATUS_INVALID, "seq_lens_kv[1] = -5");
    REFUSED(good.lens[0] = 25, STATUS_OUT_OF_RANGE, "seq_lens_kv[0] = 25");
    REFUSED(good.params.max_context_len = 19, STATUS_OUT_OF_RANGE, "max_context_len 19");
    REFUSED(good.table[1] = 16, STATUS_OUT_OF_RANGE, "block_table[0][1] = 16");
    REFUSED(good.table[1] = -2, STATUS_OUT_OF_RANGE, "block_table[0][1] = -2");
    REFUSED(good.table[1] = -1, STATUS_INVALID, "block_table[0][1] = -1");
    REFUSED(good.table[6] = found[0], STATUS_NOT_HELD, "block_table[2][0] = 9 is not held");
    REFUSED(good.table[6] = 15, STATUS_NOT_HELD, "block_table[2][0] = 15");
    REFUSED(good.slots[5] = -2, STATUS_OUT_OF_RANGE, "slot_mapping[5] = -2");
    REFUSED(good.slots[5] = 128, STATUS_OUT_OF_RANGE, "slot_mapping[5] = 128");
    REFUSED(good.slots[5] = INT64_MAX, STATUS_OUT_OF_RANGE, "slot_mapping[5]");
    REFUSED(good.slots[5] = INT64_MIN, STATUS_OUT_OF_RANGE, "slot_mapping[5]");
    REFUSED(good.slots[5] = (int64_t)found[0] * 8, STATUS_NOT_HELD,
            "slot_mapping[5] = 72 (block 9, offset 0)");
    REFUSED(good.slots[5] = (int64_t)blocks[9] * 8 + 7, STATUS_SEALED,
            "(block 10, offset 7) lies in a sealed");
    REFUSED(good.slots[5] = good.slots[1], STATUS_DUPLICATE_SLOT, "slot_mapping[5]");
    REFUSED(good.lens[2] = 2, STATUS_INVALID, "q_len 3 above its seq_len 2");
    make_good(); // legal: more queries than keys, if it writes nothing
    good.lens[2] = 2;
    good.slots[4] = good.slots[5] = good.slots[6] = -1;
    ck_assert_status(world_create(a.session, &good.params, &batch, &made, &error), STATUS_OK);
    make_good(); // legal: padding
    memset(good.cu, 0, sizeof(good.cu));
    good.params.num_slot_mapping = 0;
    ck_assert_status(world_create(a.session, &good.params, &batch, &made, &error), STATUS_OK);
    ck_assert_uint_eq(made, 0);
}
END_TEST

static void give_positions(uint32_t count)
{
    memcpy(good.positions, (int32_t[]){16, 0, 3, INT32_MAX, 5, 5, 5}, sizeof(good.positions));
    good.params.positions = good.positions;
    good.params.num_positions = count;
}

static void give_mask(uint64_t bytes)
{
    good.params.mask = good.mask;
    good.params.mask_bytes = bytes;
}

static uint64_t create_good(void)
{
    return worker_create(&a, &good.params);
}

START_TEST(positions_are_one_a_token_and_not_negative)
{
    worker_lease(&a, 9, blocks);
    REFUSED(give_positions(6), STATUS_INVALID, "positions has 6 entries; 7 are needed");
    REFUSED((give_positions(7), good.positions[2] = -3), STATUS_OUT_OF_RANGE,
            "positions[2] = -3 is negative");
    REFUSED((give_positions(7), good.positions[6] = INT32_MIN), STATUS_OUT_OF_RANGE,
            "positions[6] = -2147483648");
    make_good();
    give_positions(7);
    create_good();
}
END_TEST

START_TEST(a_mask_has_a_bit_for_each_query_and_key_and_each_sequence_begins_a_byte)
{
    worker_lease(&a, 9, blocks);
    REFUSED(give_mask(12), STATUS_INVALID, "mask has 12 bytes; 13 are needed");
    REFUSED(give_mask(14), STATUS_INVALID, "mask has 14 bytes; 13");
    REFUSED((give_mask(13), good.lens[0] = 17), STATUS_INVALID,
            "mask has 13 bytes; 12"); // 68 bits: 9 bytes, and 3
    make_good();
    give_mask(13);
    good.lens[0] = 19; // 76 bits still want 10 bytes
    create_good();
    enum { MANY = 65536 }; // the product of these lengths does not fit into 32 bits
    const int32_t cu[] = {0, MANY, MANY, MANY}, lens[] = {1 << 22, 5, 0};
    make_good();
    give_mask(13);
    good.params.cu_seqlens_q = cu;
    good.params.seq_lens_kv = lens;
    good.params.max_blocks = 1 << 19;
    good.params.num_block_table = 3 << 19;
    good.params.num_slot_mapping = 0;
    int32_t *table = calloc(3 << 19, sizeof(*table));
    uint64_t none;
    uint32_t made;
    ck_assert_ptr_nonnull(table);
    for (int i = 0; i < 1 << 19; i++)
        table[i] = blocks[0];
    good.params.block_table = table;
    ck_assert_refused(world_create(a.session, &good.params, &none, &made, &error), STATUS_INVALID,
                      "mask has 13 bytes; 34359738368 are needed");
    free(table);
}
END_TEST

// ---- entries that are missing ----

static enum status run_window(uint64_t batch, int32_t left, struct error *error)
{
    struct core_run_params params = worker_run_params(&a, batch, 0, 7, tokens);
    uint64_t ticket;
    params.entry.window_left = left;
    enum status status = core_run(a.session, &params, &ticket, error);
    world_finish_all(&world); // the fake engine itself finds which blocks are seen
    return status;
}

START_TEST(entries_before_the_left_window_may_be_missing)
{
    worker_lease(&a, 9, blocks);
    worker_fill(&a, blocks, 9);
    REFUSED(good.table[0] = good.table[1] = good.table[2] = -1, STATUS_INVALID,
            "block_table[0][2] = -1");
    REFUSED((good.table[0] = -1, good.cu[1] = good.cu[2] = 13, good.cu[3] = 16,
             good.params.num_slot_mapping = 0),
            STATUS_INVALID, "block_table[0][0] = -1"); // the first query is at 7
    REFUSED(good.table[6] = -1, STATUS_INVALID, "block_table[2][0] = -1");
    make_good();
    good.table[0] = -1; // keys 0..7; the queries are at 16..19
    uint64_t batch = create_good();
    ck_assert_status(run_window(batch, 8, &error), STATUS_OK);
    ck_assert_status(run_window(batch, 0, &error), STATUS_OK);
    ck_assert_refused(run_window(batch, 9, &error), STATUS_INVALID,
                      "block_table[0][0] = -1, but with window_left 9 queries of that sequence see "
                      "keys there; at most "
                      "8 hides them");
    ck_assert_refused(run_window(batch, -1, &error), STATUS_INVALID, "the run has no left window");
    make_good();
    good.table[0] = good.table[1] = -1;
    batch = create_good();
    ck_assert_status(run_window(batch, 0, &error), STATUS_OK);
    ck_assert_refused(run_window(batch, 1, &error), STATUS_INVALID, "block_table[0][1] = -1");
    make_good(); // no queries see no key: any window, or none
    memset(good.table + 3, -1, 3 * sizeof(*good.table));
    ck_assert_status(run_window(create_good(), -1, &error), STATUS_OK);
}
END_TEST

START_TEST(the_strictest_sequence_bounds_the_window)
{
    worker_lease(&a, 9, blocks);
    worker_fill(&a, blocks, 9);
    make_good();
    good.params.num_slot_mapping = 0;
    good.lens[2] = 16; // queries at 13..15
    good.table[0] = good.table[6] = -1;
    good.table[7] = blocks[7];
    uint64_t batch = create_good();
    ck_assert_status(run_window(batch, 5, &error), STATUS_OK);
    ck_assert_refused(run_window(batch, 6, &error), STATUS_INVALID,
                      "block_table[2][0] = -1, but with window_left 6 queries of that sequence see "
                      "keys there; at most 5");
}
END_TEST

START_TEST(positions_decide_what_a_window_hides)
{
    worker_lease(&a, 9, blocks);
    worker_fill(&a, blocks, 9);
    REFUSED((give_positions(7), good.table[0] = -1), STATUS_INVALID,
            "block_table[0][0] = -1"); // one query is at 0
    make_good();
    give_positions(7);
    good.positions[1] = good.positions[2] = 30;
    good.table[0] = good.table[1] = -1;
    uint64_t batch = create_good();
    ck_assert_status(run_window(batch, 0, &error), STATUS_OK);
    ck_assert_refused(run_window(batch, 1, &error), STATUS_INVALID, "at most 0");
    make_good(); // all queries are behind the last key: a row may have no block at all
    give_positions(7);
    good.positions[0] = good.positions[1] = good.positions[2] = 100;
    good.table[0] = good.table[1] = good.table[2] = -1;
    batch = create_good();
    ck_assert_status(run_window(batch, 80, &error), STATUS_OK);
    ck_assert_refused(run_window(batch, 81, &error), STATUS_INVALID, "block_table[0][2] = -1");
}
END_TEST

START_TEST(a_refused_batch_keeps_no_block)
{
    worker_lease(&a, 9, blocks);
    REFUSED(good.slots[6] = good.slots[5], STATUS_DUPLICATE_SLOT, "occurs twice");
    world_check(&world);
    for (int i = 0; i < 9; i++)
        ck_assert_uint_eq(worker_block(&a, blocks[i]).batch_refs, 0);
    worker_release(&a, blocks, 9);
    ck_assert_uint_eq(worker_counts(&a).leased, 0);
}
END_TEST

START_TEST(too_many_batches_are_a_limit_that_names_its_option)
{
    uint64_t batch, last = 0;
    uint32_t made;
    worker_lease(&a, 9, blocks);
    make_good();
    good.params.num_slot_mapping = 0;
    for (int i = 0; i < 64; i++)
        last = worker_create(&a, &good.params);
    ck_assert_refused(world_create(a.session, &good.params, &batch, &made, &error), STATUS_LIMIT,
                      "--max-batches");
    ck_assert_status(core_batch_destroy(a.session, last, &error), STATUS_OK);
    worker_create(&a, &good.params);
    struct core_session_counts counts;
    core_session_counts(a.session, &counts);
    ck_assert_uint_eq(counts.batches, 64);
    ck_assert_uint_eq(counts.blocks_held, 9);
}
END_TEST

START_TEST(the_metadata_of_all_batches_is_bounded_until_their_runs_are_over)
{
    struct world strict;
    struct worker worker;
    int32_t block;
    uint64_t batch, last;
    uint32_t made;
    const int32_t cu[] = {0, 0},
                  lens[] = {8}; // with the table twice 16 bytes, and 4; of worker_batch() 96 and 4
    world_open(&strict, &(struct core_params){.max_batch_memory = 138});
    worker_open(&worker, &strict, 1, "");
    worker_lease(&worker, 1, &block);
    const struct core_batch_params params = sequences_over(worker.cache, 1, cu, lens, &block, 1);
    batch = worker_batch(&worker, &block, 8, 8);
    worker_create(&worker, &params);
    ck_assert_refused(world_create(worker.session, &params, &last, &made, &error), STATUS_LIMIT,
                      "36 bytes of metadata more would exceed the session's limit of 138 "
                      "(--max-batch-memory); its batches and unreaped runs have 136");
    worker_run(&worker, batch, 0, 8, tokens);
    ck_assert_status(core_batch_destroy(worker.session, batch, &error), STATUS_OK);
    ck_assert_refused(world_create(worker.session, &params, &last, &made, &error), STATUS_LIMIT,
                      "have 136");
    world_finish_all(&strict);
    worker_batch(&worker, &block, 8, 8);
    world_close(&strict);
}
END_TEST

// A batch of 100 bytes, and runs of 4 bytes each for the slope of their head.
START_TEST(arrays_of_runs_count_with_batches_until_they_are_reaped)
{
    struct world strict;
    struct worker worker;
    const float slope = 1;
    int32_t block;
    uint64_t batch, tickets[3], none = 0;
    world_open(&strict, &(struct core_params){.max_batch_memory = 108});
    worker_open(&worker, &strict, 1, "");
    worker_lease(&worker, 1, &block);
    batch = worker_batch(&worker, &block, 8, 8);
    struct core_run_params params = worker_run_params(&worker, batch, 0, 8, tokens);
    params.slopes = &slope;
    for (int i = 0; i < 2; i++)
        ck_assert_status(core_run(worker.session, &params, &tickets[i], &error), STATUS_OK);
    ck_assert_refused(core_run(worker.session, &params, &none, &error), STATUS_LIMIT,
                      "4 bytes of arrays more would exceed the session's limit of 108 "
                      "(--max-batch-memory); its batches and unreaped runs have 108");
    params.slopes = NULL;
    ck_assert_status(core_run(worker.session, &params, &tickets[2], &error), STATUS_OK);
    params.slopes = &slope;
    world_check(&strict);
    world_finish_all(&strict);
    ck_assert_refused(core_run(worker.session, &params, &none, &error), STATUS_LIMIT, "have 108");
    worker_reap(&worker, tickets[1], STATUS_OK);
    ck_assert_status(core_run(worker.session, &params, &tickets[1], &error), STATUS_OK);
    ck_assert_status(core_batch_destroy(worker.session, batch, &error), STATUS_OK);
    world_check(&strict);
    world_finish_all(&strict);
    ck_assert_uint_eq(worker.session->memory.batches, 8);
    worker_close(&worker, true); // with two tickets unreaped
    ck_assert_uint_eq(strict.gone, 1);
    world_check(&strict);
    world_close(&strict);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("core metadata");
    check_case(suite, "kinds", open_two, close_all,
               (const TTest *const[]){
                   each_kind_of_bad_metadata_has_its_status_and_a_sentence_with_the_values,
                   positions_are_one_a_token_and_not_negative,
                   a_mask_has_a_bit_for_each_query_and_key_and_each_sequence_begins_a_byte, NULL},
               1);
    check_case(suite, "missing entries", open_two, close_all,
               (const TTest *const[]){entries_before_the_left_window_may_be_missing,
                                      the_strictest_sequence_bounds_the_window,
                                      positions_decide_what_a_window_hides, NULL},
               1);
    check_case(
        suite, "limits", open_two, close_all,
        (const TTest *const[]){a_refused_batch_keeps_no_block,
                               too_many_batches_are_a_limit_that_names_its_option,
                               the_metadata_of_all_batches_is_bounded_until_their_runs_are_over,
                               arrays_of_runs_count_with_batches_until_they_are_reaped, NULL},
        1);
    return check_main(suite);
}
