// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_ownership.c - the states of a block one by one, who may name it, and what a batch keeps alive.

#include <stdlib.h>
#include <string.h>

#include "check_main.h"
#include "core_world.h"
#include "session.h"

static struct world world;
static struct worker a, b, c;
static int32_t blocks[256], tokens[1024], found[256];

static void open_two(void)
{
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
    worker_open(&b, &world, 1, "");
    count_tokens(tokens, 1024, 1000);
}

static void close_all(void)
{
    world_check(&world);
    world_close(&world);
}

#define ck_assert_state(block, expected) ck_assert_int_eq((int)worker_block(&b, (block)).state, (int)(expected))

// ---- states ----

START_TEST(a_block_goes_from_free_to_leased_to_held_to_cached_and_back)
{
    worker_lease(&a, 1, blocks);
    ck_assert_state(blocks[0], CORE_LEASED);
    ck_assert_uint_eq(worker_block(&a, blocks[0]).writer, a.id);
    ck_assert_uint_eq(worker_block(&a, blocks[0]).holders, 1);
    ck_assert_int_eq(worker_block(&a, blocks[0]).depth, -1);
    worker_write(&a, blocks, tokens, WORLD_BLOCK);
    worker_publish(&a, tokens, WORLD_BLOCK, blocks);
    ck_assert_state(blocks[0], CORE_HELD);
    ck_assert_uint_eq(worker_block(&a, blocks[0]).writer, 0);
    ck_assert_int_eq(worker_block(&a, blocks[0]).depth, 0);
    ck_assert_uint_eq(worker_lookup(&b, tokens, WORLD_BLOCK, found), 1);
    ck_assert_int_eq(found[0], blocks[0]);
    ck_assert_uint_eq(worker_block(&a, blocks[0]).holders, 2);
    worker_release(&a, blocks, 1);
    ck_assert_state(blocks[0], CORE_HELD);
    worker_release(&b, blocks, 1);
    ck_assert_state(blocks[0], CORE_CACHED);
    world_check(&world);
    ck_assert_uint_eq(worker_lookup(&b, tokens, WORLD_BLOCK, found), 1);
    ck_assert_state(blocks[0], CORE_HELD);
    worker_release(&b, blocks, 1);
    worker_lease(&b, 64, found); // needs its place
    ck_assert_state(blocks[0], CORE_LEASED);
    ck_assert_uint_eq(worker_block(&b, blocks[0]).writer, b.id);
    worker_release(&b, found, 64);
    ck_assert_state(blocks[0], CORE_FREE);
}
END_TEST

START_TEST(a_leased_block_that_was_not_published_becomes_free_again)
{
    worker_lease(&a, 2, blocks);
    worker_write(&a, blocks, tokens, 2 * WORLD_BLOCK);
    worker_release(&a, blocks, 1);
    ck_assert_state(blocks[0], CORE_FREE);
    ck_assert_state(blocks[1], CORE_LEASED);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 2 * WORLD_BLOCK, found), 0);
}
END_TEST

START_TEST(the_sum_of_the_states_is_the_total_at_every_moment)
{
    for (uint32_t i = 1; i <= 8; i++) {
        worker_lease(&a, i, blocks);
        worker_write(&a, blocks, tokens + 8 * (size_t)i, i * WORLD_BLOCK);
        worker_publish(&a, tokens + 8 * (size_t)i, i * WORLD_BLOCK, blocks);
        worker_release(&a, blocks, i / 2);
        struct core_counts n = worker_counts(&a);
        ck_assert_uint_eq(n.free + n.leased + n.held + n.cached + n.quarantined, n.total);
        ck_assert_uint_eq(n.leased, 0);
        world_check(&world);
    }
}
END_TEST

START_TEST(what_is_not_held_cannot_be_released_and_nothing_of_the_list_is)
{
    worker_lease(&a, 3, blocks);
    worker_lease(&b, 1, blocks + 3);
    ck_assert_refused(core_blocks_release(a.session, a.cache, blocks, 4, &error), STATUS_NOT_HELD, "blocks[3] = 3");
    ck_assert_uint_eq(worker_counts(&a).leased, 4);
    const int32_t twice[] = {blocks[0], blocks[1], blocks[0]}, outside[] = {blocks[0], 16}, negative[] = {-1};
    ck_assert_refused(core_blocks_release(a.session, a.cache, twice, 3, &error), STATUS_NOT_HELD, "named 2 times");
    ck_assert_refused(core_blocks_release(a.session, a.cache, outside, 2, &error), STATUS_OUT_OF_RANGE,
                      "blocks[1] = 16");
    ck_assert_refused(core_blocks_release(a.session, a.cache, negative, 1, &error), STATUS_OUT_OF_RANGE, "-1");
    ck_assert_uint_eq(worker_counts(&a).leased, 4);
    worker_release(&a, blocks, 3);
    ck_assert_refused(core_blocks_release(a.session, a.cache, blocks, 1, &error), STATUS_NOT_HELD, "not held");
}
END_TEST

START_TEST(a_block_that_is_held_twice_wants_two_releases)
{
    worker_lease(&a, 1, blocks);
    worker_write(&a, blocks, tokens, WORLD_BLOCK);
    worker_publish(&a, tokens, WORLD_BLOCK, blocks);
    worker_lookup(&a, tokens, WORLD_BLOCK, found);
    worker_release(&a, blocks, 1);
    ck_assert_state(blocks[0], CORE_HELD);
    worker_release(&a, blocks, 1);
    ck_assert_state(blocks[0], CORE_CACHED);
    worker_lookup(&a, tokens, WORLD_BLOCK, found);
    worker_lookup(&a, tokens, WORLD_BLOCK, found);
    const int32_t twice[] = {blocks[0], blocks[0]}; // both in one call
    worker_release(&a, twice, 2);
    ck_assert_state(blocks[0], CORE_CACHED);
}
END_TEST

// ---- batches ----

START_TEST(what_was_looked_up_again_and_again_ends_with_its_session)
{
    worker_lease(&a, 1, blocks);
    worker_write(&a, blocks, tokens, WORLD_BLOCK);
    worker_publish(&a, tokens, WORLD_BLOCK, blocks);
    for (int i = 0; i < 1000; i++)
        ck_assert_uint_eq(worker_lookup(&a, tokens, WORLD_BLOCK, found), 1);
    worker_close(&a, false);
    ck_assert_state(blocks[0], CORE_CACHED);
    ck_assert_uint_eq(worker_lookup(&b, tokens, WORLD_BLOCK, found), 1);
    ck_assert_uint_eq(worker_block(&b, blocks[0]).holders, 1);
}
END_TEST

START_TEST(a_release_takes_effect_when_the_last_batch_that_names_the_block_is_gone)
{
    worker_lease(&a, 2, blocks);
    uint64_t first = worker_batch(&a, blocks, 16, 16);
    uint64_t unseen = worker_batch(&a, blocks, 8, 0); // no query sees its blocks, but a gather reads them
    ck_assert_uint_eq(worker_block(&a, blocks[0]).batch_refs, 2);
    ck_assert_status(core_batch_destroy(a.session, unseen, &error), STATUS_OK);
    ck_assert_uint_eq(worker_block(&a, blocks[0]).batch_refs, 1);
    uint64_t second = worker_batch(&a, blocks, 8, 8);
    ck_assert_uint_eq(worker_block(&a, blocks[0]).batch_refs, 2);
    worker_release(&a, blocks, 2);
    ck_assert_state(blocks[0], CORE_LEASED);
    ck_assert_refused(core_blocks_release(a.session, a.cache, blocks, 1, &error), STATUS_NOT_HELD, "blocks[0]");
    world_check(&world);
    ck_assert_status(core_batch_destroy(a.session, first, &error), STATUS_OK);
    ck_assert_state(blocks[0], CORE_LEASED);
    ck_assert_state(blocks[1], CORE_FREE);
    ck_assert_status(core_batch_destroy(a.session, second, &error), STATUS_OK);
    ck_assert_state(blocks[0], CORE_FREE);
    ck_assert_refused(core_batch_destroy(a.session, second, &error), STATUS_NOT_FOUND, "no batch");
}
END_TEST

START_TEST(a_destroyed_batch_keeps_its_blocks_until_its_last_run_is_over)
{
    worker_lease(&a, 1, blocks);
    uint64_t batch = worker_batch(&a, blocks, 8, 8), ticket = worker_run(&a, batch, 0, 8, tokens);
    uint64_t queued = worker_run(&a, batch, 1, 8, tokens);
    core_step(world.core);
    ck_assert_status(core_batch_destroy(a.session, batch, &error), STATUS_OK);
    worker_release(&a, blocks, 1);
    ck_assert_state(blocks[0], CORE_LEASED);
    struct core_run_params params = worker_run_params(&a, batch, 0, 8, tokens);
    uint64_t none;
    ck_assert_refused(core_run(a.session, &params, &none, &error), STATUS_NOT_FOUND, "no batch");
    world_check(&world);
    world_finish_all(&world);
    ck_assert_state(blocks[0], CORE_FREE);
    worker_reap(&a, ticket, STATUS_OK);
    worker_reap(&a, queued, STATUS_OK);
}
END_TEST

START_TEST(a_sealed_block_stays_held_for_the_batch_that_reads_it_after_its_release)
{
    worker_lease(&a, 1, blocks);
    worker_write(&a, blocks, tokens, 8);
    worker_publish(&a, tokens, 8, blocks);
    uint64_t batch = worker_batch(&a, blocks, 8, 0);
    ck_assert_status(core_batch_destroy(a.session, batch, &error), STATUS_OK);
    const int32_t cu[] = {0, 1}, lens[] = {8};
    const struct core_batch_params params = sequences_over(a.cache, 1, cu, lens, blocks, 1);
    uint64_t reader = worker_create(&a, &params);
    worker_release(&a, blocks, 1);
    ck_assert_state(blocks[0], CORE_HELD);
    worker_lease(&b, 63, found);
    ck_assert_status(worker_try_lease(&b, 1, found + 63, &error), STATUS_NO_BLOCKS);
    ck_assert_status(core_batch_destroy(a.session, reader, &error), STATUS_OK);
    ck_assert_state(blocks[0], CORE_CACHED);
    worker_lease(&b, 1, found + 63);
    ck_assert_int_eq(found[63], blocks[0]);
}
END_TEST

START_TEST(sealing_a_block_that_a_live_batch_writes_fails_its_next_run)
{
    worker_lease(&a, 2, blocks);
    uint64_t batch = worker_batch(&a, blocks, 16, 16), other = worker_batch(&a, blocks + 1, 8, 8), last;
    worker_write_async(&a, blocks, tokens, 8, &last);
    world_finish_all(&world);
    worker_publish(&a, tokens, 8, blocks);
    struct core_run_params params = worker_run_params(&a, batch, 0, 16, tokens);
    uint64_t ticket;
    ck_assert_refused(core_run(a.session, &params, &ticket, &error), STATUS_SEALED, "writes block 0");
    ck_assert_refused(core_run(a.session, &params, &ticket, &error), STATUS_SEALED, "sealed");
    params = worker_run_params(&a, other, 0, 8, tokens); // another block: goes on
    ck_assert_status(core_run(a.session, &params, &ticket, &error), STATUS_OK);
    world_finish_all(&world);
    worker_reap(&a, ticket, STATUS_OK);
}
END_TEST

// ---- bad metadata ----

static struct {
    int32_t cu[4], lens[3], table[9];
    int64_t slots[32];
    int32_t positions[7];
    uint8_t mask[13]; // 4 * 20 bits, none, 3 * 8 bits
    struct core_batch_params params;
} good;

// Three sequences over the blocks 0..8, three a sequence: 4 new tokens of 20, none of 5, 3 new of 8.
static void make_good(void)
{
    memset(&good, 0, sizeof(good));
    memcpy(good.cu, (int32_t[]){0, 4, 4, 7}, sizeof(good.cu));
    memcpy(good.lens, (int32_t[]){20, 5, 8}, sizeof(good.lens));
    for (int i = 0; i < 9; i++)
        good.table[i] = blocks[i];
    good.table[3] = good.table[7] = good.table[8] = -99; // unseen entries may hold anything
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

#define REFUSED(change, status, text)                                                                                  \
    do {                                                                                                               \
        uint64_t none_ = 0;                                                                                            \
        uint32_t made_ = 0;                                                                                            \
        make_good();                                                                                                   \
        change;                                                                                                        \
        ck_assert_refused(core_batch_create(a.session, &good.params, &none_, &made_, &error), status, text);           \
        ck_assert_uint_eq(none_, 0);                                                                                   \
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
    ck_assert_status(core_batch_create(a.session, &good.params, &batch, &made, &error), STATUS_OK);
    ck_assert_uint_eq(made, 7);
    REFUSED(good.params.cache = 77, STATUS_NOT_FOUND, "77");
    REFUSED(good.params.num_seqs = 0, STATUS_INVALID, "num_seqs is 0");
    REFUSED(good.params.num_cu_seqlens_q = 3, STATUS_INVALID, "cu_seqlens_q has 3 entries; 4");
    REFUSED(good.params.num_seq_lens_kv = 4, STATUS_INVALID, "seq_lens_kv has 4");
    REFUSED(good.params.num_block_table = 8, STATUS_INVALID, "block_table has 8");
    REFUSED(good.params.num_slot_mapping = 6, STATUS_INVALID, "slot_mapping has 6 entries; 7");
    REFUSED(good.cu[0] = 1, STATUS_INVALID, "cu_seqlens_q[0] is 1");
    REFUSED(good.cu[2] = 3, STATUS_INVALID, "[1] = 4 to [2] = 3");
    REFUSED(good.cu[1] = -1, STATUS_INVALID, "falls");
    REFUSED((good.cu[3] = INT32_MAX, good.params.num_slot_mapping = 0), STATUS_OUT_OF_RANGE, "2147483647 tokens");
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
    REFUSED(good.slots[5] = (int64_t)found[0] * 8, STATUS_NOT_HELD, "slot_mapping[5] = 72 (block 9, offset 0)");
    REFUSED(good.slots[5] = (int64_t)blocks[9] * 8 + 7, STATUS_SEALED, "(block 10, offset 7) lies in a sealed");
    REFUSED(good.slots[5] = good.slots[1], STATUS_DUPLICATE_SLOT, "slot_mapping[5]");
    REFUSED(good.lens[2] = 2, STATUS_INVALID, "q_len 3 above its seq_len 2");
    make_good(); // legal: longer than its keys, as long as it writes none
    good.lens[2] = 2;
    good.slots[4] = good.slots[5] = good.slots[6] = -1;
    ck_assert_status(core_batch_create(a.session, &good.params, &batch, &made, &error), STATUS_OK);
    make_good(); // legal: padding
    memset(good.cu, 0, sizeof(good.cu));
    good.params.num_slot_mapping = 0;
    ck_assert_status(core_batch_create(a.session, &good.params, &batch, &made, &error), STATUS_OK);
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
    REFUSED((give_positions(7), good.positions[2] = -3), STATUS_OUT_OF_RANGE, "positions[2] = -3 is negative");
    REFUSED((give_positions(7), good.positions[6] = INT32_MIN), STATUS_OUT_OF_RANGE, "positions[6] = -2147483648");
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
    REFUSED((give_mask(13), good.lens[0] = 17), STATUS_INVALID, "mask has 13 bytes; 12"); // 68 bits: 9 bytes, and 3
    make_good();
    give_mask(13);
    good.lens[0] = 19; // 76 bits still want 10 bytes
    create_good();
    enum { MANY = 65536 }; // the product of these lengths is no 32-bit number
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
    ck_assert_refused(core_batch_create(a.session, &good.params, &none, &made, &error), STATUS_INVALID,
                      "mask has 13 bytes; 34359738368 are needed");
    free(table);
}
END_TEST

// ---- entries that are missing ----

static enum status run_window(uint64_t batch, bool windowed, int32_t left, struct error *error)
{
    struct core_run_params params = worker_run_params(&a, batch, 0, 7, tokens);
    uint64_t ticket;
    params.windowed = windowed;
    params.window_left = left;
    params.window_right = -1;
    enum status status = core_run(a.session, &params, &ticket, error);
    world_finish_all(&world); // the fake engine looks for itself which blocks are seen
    return status;
}

START_TEST(entries_before_the_left_window_may_be_missing)
{
    worker_lease(&a, 9, blocks);
    REFUSED(good.table[0] = good.table[1] = good.table[2] = -1, STATUS_INVALID, "block_table[0][2] = -1");
    REFUSED((good.table[0] = -1, good.cu[1] = good.cu[2] = 13, good.cu[3] = 16, good.params.num_slot_mapping = 0),
            STATUS_INVALID, "block_table[0][0] = -1"); // the first query stands at 7
    REFUSED(good.table[6] = -1, STATUS_INVALID, "block_table[2][0] = -1");
    make_good();
    good.table[0] = -1; // keys 0..7; the queries stand at 16..19
    uint64_t batch = create_good();
    ck_assert_status(run_window(batch, true, 8, &error), STATUS_OK);
    ck_assert_status(run_window(batch, true, 0, &error), STATUS_OK);
    ck_assert_refused(run_window(batch, true, 9, &error), STATUS_INVALID,
                      "block_table[0][0] = -1, but with window_left 9 queries of that sequence see keys there; at most "
                      "8 hides them");
    ck_assert_refused(run_window(batch, true, -1, &error), STATUS_INVALID, "the run has no left window");
    ck_assert_refused(run_window(batch, false, 5, &error), STATUS_INVALID, "the run has no left window");
    make_good();
    good.table[0] = good.table[1] = -1;
    batch = create_good();
    ck_assert_status(run_window(batch, true, 0, &error), STATUS_OK);
    ck_assert_refused(run_window(batch, true, 1, &error), STATUS_INVALID, "block_table[0][1] = -1");
    make_good(); // no queries, nothing seen: any window, or none
    memset(good.table + 3, -1, 3 * sizeof(*good.table));
    ck_assert_status(run_window(create_good(), false, 0, &error), STATUS_OK);
}
END_TEST

START_TEST(the_strictest_sequence_bounds_the_window)
{
    worker_lease(&a, 9, blocks);
    make_good();
    good.params.num_slot_mapping = 0;
    good.lens[2] = 16; // queries at 13..15
    good.table[0] = good.table[6] = -1;
    good.table[7] = blocks[7];
    uint64_t batch = create_good();
    ck_assert_status(run_window(batch, true, 5, &error), STATUS_OK);
    ck_assert_refused(
        run_window(batch, true, 6, &error), STATUS_INVALID,
        "block_table[2][0] = -1, but with window_left 6 queries of that sequence see keys there; at most 5");
}
END_TEST

START_TEST(positions_decide_what_a_window_hides)
{
    worker_lease(&a, 9, blocks);
    REFUSED((give_positions(7), good.table[0] = -1), STATUS_INVALID, "block_table[0][0] = -1"); // one stands at 0
    make_good();
    give_positions(7);
    good.positions[1] = good.positions[2] = 30;
    good.table[0] = good.table[1] = -1;
    uint64_t batch = create_good();
    ck_assert_status(run_window(batch, true, 0, &error), STATUS_OK);
    ck_assert_refused(run_window(batch, true, 1, &error), STATUS_INVALID, "at most 0");
    make_good(); // all stand behind the last key: a row may have no block at all
    give_positions(7);
    good.positions[0] = good.positions[1] = good.positions[2] = 100;
    good.table[0] = good.table[1] = good.table[2] = -1;
    batch = create_good();
    ck_assert_status(run_window(batch, true, 80, &error), STATUS_OK);
    ck_assert_refused(run_window(batch, true, 81, &error), STATUS_INVALID, "block_table[0][2] = -1");
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
    for (int i = 0; i < 64; i++)
        last = worker_create(&a, &good.params);
    ck_assert_refused(core_batch_create(a.session, &good.params, &batch, &made, &error), STATUS_LIMIT, "--max-batches");
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
    const int32_t cu[] = {0, 0}, lens[] = {8}; // with the table twice 16 bytes, of worker_batch() 96
    world_open(&strict, &(struct core_params){.max_kept_bytes = 130});
    worker_open(&worker, &strict, 1, "");
    worker_lease(&worker, 1, &block);
    const struct core_batch_params params = sequences_over(worker.cache, 1, cu, lens, &block, 1);
    batch = worker_batch(&worker, &block, 8, 8);
    worker_create(&worker, &params);
    ck_assert_refused(
        core_batch_create(worker.session, &params, &last, &made, &error), STATUS_LIMIT,
        "32 bytes of metadata more would exceed the session's 130, of which its batches and unreaped runs have 128 "
        "(--max-batch-memory)");
    worker_run(&worker, batch, 0, 8, tokens);
    ck_assert_status(core_batch_destroy(worker.session, batch, &error), STATUS_OK);
    ck_assert_refused(core_batch_create(worker.session, &params, &last, &made, &error), STATUS_LIMIT, "have 128");
    world_finish_all(&strict);
    worker_batch(&worker, &block, 8, 8);
    world_close(&strict);
}
END_TEST

// A batch of 96 bytes, and runs of 4 for the slope of their head.
START_TEST(arrays_of_runs_count_with_batches_until_they_are_reaped)
{
    struct world strict;
    struct worker worker;
    const float slope = 1;
    int32_t block;
    uint64_t batch, tickets[3], none = 0;
    world_open(&strict, &(struct core_params){.max_kept_bytes = 104});
    worker_open(&worker, &strict, 1, "");
    worker_lease(&worker, 1, &block);
    batch = worker_batch(&worker, &block, 8, 8);
    struct core_run_params params = worker_run_params(&worker, batch, 0, 8, tokens);
    params.slopes = &slope;
    for (int i = 0; i < 2; i++)
        ck_assert_status(core_run(worker.session, &params, &tickets[i], &error), STATUS_OK);
    ck_assert_refused(core_run(worker.session, &params, &none, &error), STATUS_LIMIT,
                      "4 bytes of arrays more would exceed the session's 104, of which its batches and unreaped runs "
                      "have 104 (--max-batch-memory)");
    params.slopes = NULL;
    ck_assert_status(core_run(worker.session, &params, &tickets[2], &error), STATUS_OK);
    params.slopes = &slope;
    world_check(&strict);
    world_finish_all(&strict);
    ck_assert_refused(core_run(worker.session, &params, &none, &error), STATUS_LIMIT, "have 104");
    worker_reap(&worker, tickets[1], STATUS_OK);
    ck_assert_status(core_run(worker.session, &params, &tickets[1], &error), STATUS_OK);
    ck_assert_status(core_batch_destroy(worker.session, batch, &error), STATUS_OK);
    world_check(&strict);
    world_finish_all(&strict);
    ck_assert_uint_eq(worker.session->kept_bytes, 8);
    worker_close(&worker, true); // with two tickets unreaped
    ck_assert_uint_eq(strict.gone, 1);
    world_check(&strict);
    world_close(&strict);
}
END_TEST

// ---- quota ----

START_TEST(the_quota_counts_distinct_blocks_and_is_hard)
{
    struct world small;
    struct worker d;
    struct core_session_counts counts;
    bool growing;
    uint32_t num;
    world_open(&small, &(struct core_params){.quota_blocks = 10});
    worker_open(&c, &small, 1, "");
    worker_open(&d, &small, 1, "");
    worker_lease(&c, 4, blocks);
    worker_write(&c, blocks, tokens, 32);
    worker_publish(&c, tokens, 32, blocks);
    ck_assert_uint_eq(worker_lookup(&c, tokens, 32, found), 4);
    core_session_counts(c.session, &counts);
    ck_assert_uint_eq(counts.blocks_held, 4); // twice held counts once
    worker_lease(&c, 6, blocks + 4);
    ck_assert_refused(core_blocks_lease(c.session, c.cache, 1, found, &growing, &error), STATUS_QUOTA,
                      "1 blocks more would exceed the session's 10, of which it has 10 (--session-blocks)");
    worker_lease(&d, 7, blocks + 20);
    const struct core_prefix prefix = {.tokens = tokens, .num_tokens = 32};
    ck_assert_refused(core_prefix_lookup(d.session, d.cache, &prefix, 0, found, &num, &error), STATUS_QUOTA,
                      "4 blocks more");
    ck_assert_uint_eq(num, 0);
    ck_assert_status(core_prefix_lookup(d.session, d.cache, &prefix, 24, found, &num, &error), STATUS_OK);
    ck_assert_uint_eq(num, 3);
    uint64_t batch = worker_batch(&c, blocks + 4, 8, 8);
    worker_release(&c, blocks + 4, 1); // the batch still has it
    ck_assert_refused(core_blocks_lease(c.session, c.cache, 1, found, &growing, &error), STATUS_QUOTA, "has 10");
    ck_assert_status(core_batch_destroy(c.session, batch, &error), STATUS_OK);
    worker_lease(&c, 1, blocks + 4);
    world_check(&small);
    world_close(&small);
}
END_TEST

START_TEST(an_exchange_by_publishing_is_held_to_the_quota_too)
{
    struct world small;
    struct worker d;
    uint32_t existing;
    world_open(&small, &(struct core_params){.quota_blocks = 4});
    worker_open(&c, &small, 1, "");
    worker_open(&d, &small, 1, "");
    worker_lease(&c, 2, blocks);
    worker_write(&c, blocks, tokens, 16);
    worker_publish(&c, tokens, 16, blocks);
    worker_lease(&d, 3, found);
    worker_write(&d, found, tokens, 16);
    ck_assert_refused(worker_try_publish(&d, tokens, 16, found, &existing, &error), STATUS_QUOTA, "2 blocks more");
    ck_assert_int_eq((int)worker_block(&d, found[0]).state, CORE_LEASED);
    worker_release(&d, found + 2, 1);
    ck_assert_status(worker_try_publish(&d, tokens, 16, found, &existing, &error), STATUS_OK);
    ck_assert_uint_eq(existing, 2);
    world_check(&small);
    world_close(&small);
}
END_TEST

// ---- death ----

START_TEST(a_dead_session_gives_everything_back_at_once_if_nothing_is_in_flight)
{
    worker_lease(&a, 10, blocks);
    worker_write(&a, blocks, tokens, 40);
    worker_publish(&a, tokens, 40, blocks);
    worker_batch(&a, blocks + 5, 40, 40);
    worker_close(&a, true);
    ck_assert(a.gone);
    struct core_counts counts = worker_counts(&b);
    ck_assert_uint_eq(counts.cached, 5);
    ck_assert_uint_eq(counts.free, counts.total - 5);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 40, found), 5);
    struct core_totals totals;
    core_totals(world.core, &totals);
    ck_assert_uint_eq(totals.session_deaths, 1);
}
END_TEST

START_TEST(blocks_of_a_dead_session_with_work_in_flight_are_quarantined_until_it_has_passed)
{
    worker_lease(&a, 3, blocks);
    uint64_t batch = worker_batch(&a, blocks, 16, 16);
    worker_run(&a, batch, 0, 16, tokens);
    core_step(world.core);
    worker_run(&a, batch, 1, 16, tokens);
    core_step(world.core);
    worker_run(&a, batch, 1, 16, tokens); // two in flight: this one stays in the queue and never runs
    core_step(world.core);
    worker_close(&a, true);
    ck_assert(!a.gone);
    ck_assert_state(blocks[0], CORE_QUARANTINED);
    ck_assert_state(blocks[1], CORE_QUARANTINED);
    ck_assert_state(blocks[2], CORE_FREE);
    world_check(&world);
    ck_assert(core_step(world.core)); // blocks[2] came free
    fake_engine_finish(world.engine);
    ck_assert(!core_step(world.core)); // nothing more yet
    ck_assert(!a.gone);
    ck_assert_state(blocks[0], CORE_QUARANTINED);
    world_check(&world);
    fake_engine_finish(world.engine);
    ck_assert(core_step(world.core));
    ck_assert(a.gone);
    ck_assert_state(blocks[0], CORE_FREE);
    ck_assert(core_idle(world.core));
}
END_TEST

START_TEST(a_closed_session_keeps_its_blocks_leased_until_its_work_has_passed)
{
    worker_lease(&a, 1, blocks);
    worker_run(&a, worker_batch(&a, blocks, 8, 8), 0, 8, tokens);
    core_step(world.core);
    worker_close(&a, false);
    ck_assert_state(blocks[0], CORE_LEASED);
    ck_assert_uint_eq(worker_counts(&b).quarantined, 0);
    world_check(&world);
    world_finish_all(&world);
    ck_assert_state(blocks[0], CORE_FREE);
    ck_assert(a.gone);
}
END_TEST

START_TEST(a_block_that_a_living_session_holds_too_is_not_quarantined)
{
    worker_lease(&a, 1, blocks);
    worker_write(&a, blocks, tokens, 8);
    worker_publish(&a, tokens, 8, blocks);
    worker_lookup(&b, tokens, 8, found);
    const int32_t cu[] = {0, 1}, lens[] = {8};
    const struct core_batch_params params = sequences_over(a.cache, 1, cu, lens, blocks, 1);
    uint64_t reader = worker_create(&a, &params);
    worker_run(&a, reader, 0, 1, NULL);
    core_step(world.core);
    worker_close(&a, true);
    ck_assert_state(blocks[0], CORE_HELD);
    worker_release(&b, found, 1);
    ck_assert_state(blocks[0], CORE_QUARANTINED);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 8, found), 1); // reading it harms nobody
    ck_assert_state(blocks[0], CORE_HELD);
    worker_release(&b, found, 1);
    world_finish_all(&world);
    ck_assert_state(blocks[0], CORE_CACHED);
}
END_TEST

// A worker's life, one step at a time; the test ends it after each.
enum { LIFE = 14 };

static void live(uint32_t steps)
{
    uint64_t batch = 0, other = 0;
    for (uint32_t step = 0; step < steps; step++) {
        switch (step) {
        case 0: worker_lease(&a, 20, blocks); break;
        case 1: batch = worker_batch(&a, blocks, 24, 24); break;
        case 2: worker_run(&a, batch, 0, 24, tokens); break;
        case 3: core_step(world.core); break;
        case 4: worker_run(&a, batch, 1, 24, tokens); break;
        case 5: worker_publish(&a, tokens, 24, blocks); break; // one layer in flight, one queued
        case 6: core_step(world.core); break;
        case 7: other = worker_batch(&a, blocks + 3, 24, 24); break;
        case 8: worker_run(&a, other, 0, 24, tokens); break; // queued behind both
        case 9: ck_assert_status(core_batch_destroy(a.session, other, &error), STATUS_OK); break;
        case 10: worker_release(&a, blocks + 3, 10); break;
        case 11: fake_engine_finish(world.engine); break; // done, and not yet noticed
        case 12: core_step(world.core); break;
        case 13: worker_reap(&a, 1, STATUS_OK); break;
        default: ck_abort();
        }
        world_check(&world);
    }
}

START_TEST(a_worker_may_die_at_any_step)
{
    uint32_t steps = (uint32_t)_i / 2;
    live(steps);
    worker_close(&a, _i % 2);
    world_check(&world);
    struct core_counts counts = worker_counts(&b);
    ck_assert_uint_eq(counts.free + counts.leased + counts.held + counts.cached + counts.quarantined, counts.total);
    for (core_step(world.core); !core_idle(world.core); core_step(world.core)) {
        ck_assert(!a.gone); // its arena is in use
        ck_assert(fake_engine_finish(world.engine));
        world_check(&world);
    }
    ck_assert(a.gone);
    counts = worker_counts(&b);
    ck_assert_uint_eq(counts.free + counts.cached, counts.total);
    ck_assert_uint_eq(counts.cached, steps > 6 ? 3 : 0); // before, the second layer was never submitted
    ck_assert_uint_eq(worker_lookup(&b, tokens, 24, found), counts.cached);
    worker_release(&b, found, (uint32_t)counts.cached);
    worker_lease(&b, 64, found); // nothing is lost
}
END_TEST

// ---- tenants ----

START_TEST(a_block_that_changes_its_tenant_is_zeroed_before_anything_else_runs)
{
    worker_open(&c, &world, 1, "other");
    worker_lease(&a, 64, blocks);
    worker_write(&a, blocks, tokens, 64 * 8);
    worker_release(&a, blocks, 64);
    worker_lease(&b, 1, found); // the same salt
    worker_run(&b, worker_batch(&b, found, 4, 4), 0, 4, tokens);
    core_step(world.core);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_zeroes, 0);
    worker_lease(&c, 2, found + 1);
    ck_assert_int_ne(fake_engine_slot(core_engine_cache(world.core, a.cache), 1, found[1], 7), 0);
    uint64_t batch = worker_batch(&c, found + 1, 4, 4);
    worker_run(&c, batch, 0, 4, tokens);
    fake_engine_finish(world.engine); // of b's, so that there is room for two
    core_step(world.core);
    const struct fake_submission *s = fake_engine_oldest(world.engine);
    ck_assert_uint_eq(s->num_zeroes, 2);
    ck_assert_uint_eq(s->num_runs, 0);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_runs, 1);
    ck_assert_int_eq(s->zeroes[0].block, found[1]);
    ck_assert_int_eq(s->zeroes[1].block, found[2]);
    world_finish_all(&world);
    const struct engine_cache *cache = core_engine_cache(world.core, a.cache);
    for (uint32_t slot = 0; slot < 8; slot++) {
        ck_assert_int_eq(fake_engine_slot(cache, 0, found[1], slot), slot < 4 ? tokens[slot] : 0);
        ck_assert_int_eq(fake_engine_slot(cache, 1, found[1], slot), 0);
        ck_assert_int_eq(fake_engine_slot(cache, 0, found[2], slot), 0);
    }
    ck_assert_status(core_batch_destroy(c.session, batch, &error), STATUS_OK);
    worker_release(&c, found + 1, 2); // and back, to the first tenant
    worker_lease(&a, 2, found + 1);
    worker_run(&a, worker_batch(&a, found + 1, 4, 4), 0, 4, tokens);
    core_step(world.core);
    ck_assert_uint_eq(fake_engine_oldest(world.engine)->num_zeroes, 2);
}
END_TEST

// Two sessions of different users have cache "deep" open, of which eight blocks are one submission's worth of zeroes.
static void open_deep(void)
{
    struct core_cache_identity identity = world_identity("deep");
    struct core_cache_info info;
    identity.num_layers = 8192;
    worker_open(&c, &world, 2, "");
    ck_assert_status(core_cache_open(a.session, &identity, &info, &error), STATUS_OK);
    ck_assert_status(core_cache_open(c.session, &identity, &info, &error), STATUS_OK);
    a.cache = c.cache = info.cache;
}

START_TEST(many_blocks_are_zeroed_in_slices_before_any_run_goes)
{
    open_deep();
    worker_lease(&a, 20, blocks);
    worker_release(&a, blocks, 20);
    worker_lease(&c, 20, blocks);
    uint64_t ticket = worker_run(&c, worker_batch(&c, blocks, 4, 4), 0, 4, tokens);
    core_step(world.core);
    const uint32_t zeroes[] = {8, 8, 4};
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(fake_engine_oldest(world.engine)->num_zeroes, zeroes[i]);
        ck_assert_uint_eq(fake_engine_oldest(world.engine)->num_runs, 0);
        ck_assert(fake_engine_finish(world.engine));
        core_step(world.core);
        world_check(&world);
    }
    ck_assert_uint_eq(fake_engine_oldest(world.engine)->num_runs, 1);
    world_finish_all(&world);
    worker_reap(&c, ticket, STATUS_OK);
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(fake_engine_slot(core_engine_cache(world.core, c.cache), 8191, blocks[i], 0), 0);
}
END_TEST

START_TEST(a_refused_slice_of_zeroes_is_tried_again_smaller_or_later_and_no_run_fails)
{
    worker_lease(&a, 16, blocks);
    worker_release(&a, blocks, 16);
    worker_open(&c, &world, 2, "");
    worker_lease(&c, 3, blocks);
    uint64_t ticket = worker_run(&c, worker_batch(&c, blocks, 4, 4), 0, 4, tokens);
    fake_engine_refuse_submit(world.engine, STATUS_NO_MEMORY);
    core_step(world.core); // one block, then the others
    ck_assert_uint_eq(fake_engine_oldest(world.engine)->num_zeroes, 1);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_zeroes, 2);
    world_finish_all(&world);
    worker_reap(&c, ticket, STATUS_OK);

    uint64_t batch = worker_batch(&c, blocks, 4, 4), ahead = worker_run(&c, batch, 0, 4, tokens);
    core_step(world.core);
    worker_lease(&c, 1, blocks + 3);
    ticket = worker_run(&c, batch, 1, 4, tokens);
    fake_engine_refuse_submit(world.engine, STATUS_NO_MEMORY);
    core_step(world.core); // waits for what is ahead
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_runs, 1);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_zeroes, 0);
    ck_assert(fake_engine_finish(world.engine));
    core_step(world.core);
    ck_assert_uint_eq(fake_engine_oldest(world.engine)->num_zeroes, 1);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_runs, 1);
    world_finish_all(&world);
    worker_reap(&c, ahead, STATUS_OK);
    worker_reap(&c, ticket, STATUS_OK);
}
END_TEST

START_TEST(zeroing_outlives_a_refused_submission_and_ends_with_the_memory)
{
    worker_lease(&a, 16, blocks);
    worker_release(&a, blocks, 16);
    worker_open(&c, &world, 2, "");
    worker_lease(&c, 1, found);
    fake_engine_refuse_submit(world.engine, STATUS_NO_MEMORY);
    uint64_t ticket = worker_run(&c, worker_batch(&c, found, 4, 4), 0, 4, tokens);
    core_step(world.core);
    worker_reap(&c, ticket, STATUS_NO_MEMORY);
    worker_run(&c, worker_batch(&c, found, 4, 4), 0, 4, tokens);
    core_step(world.core);
    ck_assert_uint_eq(fake_engine_oldest(world.engine)->num_zeroes, 1);
    world_finish_all(&world);
    worker_close(&c, false);
    worker_lease(&b, 3, found); // wants zeroing again, but its chunk goes first
    worker_release(&b, found, 3);
    worker_open(&c, &world, 2, "");
    c.cache = worker_open_cache(&c, "other");
    worker_lease(&c, 64, found);
    ck_assert_uint_eq(worker_counts(&a).total, 0);
    worker_run(&c, worker_batch(&c, found, 4, 4), 0, 4, tokens);
    core_step(world.core);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_zeroes, 0);
    world_finish_all(&world);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ownership");
    TCase *states = tcase_create("states"), *batches = tcase_create("batches"), *quota = tcase_create("quota");
    TCase *death = tcase_create("death"), *tenants = tcase_create("tenants");
    TCase *all[] = {states, batches, quota, death, tenants};
    tcase_add_test(states, a_block_goes_from_free_to_leased_to_held_to_cached_and_back);
    tcase_add_test(states, a_leased_block_that_was_not_published_becomes_free_again);
    tcase_add_test(states, the_sum_of_the_states_is_the_total_at_every_moment);
    tcase_add_test(states, what_is_not_held_cannot_be_released_and_nothing_of_the_list_is);
    tcase_add_test(states, a_block_that_is_held_twice_wants_two_releases);
    tcase_add_test(states, what_was_looked_up_again_and_again_ends_with_its_session);
    tcase_add_test(batches, a_release_takes_effect_when_the_last_batch_that_names_the_block_is_gone);
    tcase_add_test(batches, a_destroyed_batch_keeps_its_blocks_until_its_last_run_is_over);
    tcase_add_test(batches, a_sealed_block_stays_held_for_the_batch_that_reads_it_after_its_release);
    tcase_add_test(batches, sealing_a_block_that_a_live_batch_writes_fails_its_next_run);
    tcase_add_test(batches, each_kind_of_bad_metadata_has_its_status_and_a_sentence_with_the_values);
    tcase_add_test(batches, positions_are_one_a_token_and_not_negative);
    tcase_add_test(batches, a_mask_has_a_bit_for_each_query_and_key_and_each_sequence_begins_a_byte);
    tcase_add_test(batches, entries_before_the_left_window_may_be_missing);
    tcase_add_test(batches, the_strictest_sequence_bounds_the_window);
    tcase_add_test(batches, positions_decide_what_a_window_hides);
    tcase_add_test(batches, a_refused_batch_keeps_no_block);
    tcase_add_test(batches, too_many_batches_are_a_limit_that_names_its_option);
    tcase_add_test(batches, the_metadata_of_all_batches_is_bounded_until_their_runs_are_over);
    tcase_add_test(batches, arrays_of_runs_count_with_batches_until_they_are_reaped);
    tcase_add_test(quota, the_quota_counts_distinct_blocks_and_is_hard);
    tcase_add_test(quota, an_exchange_by_publishing_is_held_to_the_quota_too);
    tcase_add_test(death, a_dead_session_gives_everything_back_at_once_if_nothing_is_in_flight);
    tcase_add_test(death, blocks_of_a_dead_session_with_work_in_flight_are_quarantined_until_it_has_passed);
    tcase_add_test(death, a_closed_session_keeps_its_blocks_leased_until_its_work_has_passed);
    tcase_add_test(death, a_block_that_a_living_session_holds_too_is_not_quarantined);
    tcase_add_loop_test(death, a_worker_may_die_at_any_step, 0, 2 * (LIFE + 1));
    tcase_add_test(tenants, a_block_that_changes_its_tenant_is_zeroed_before_anything_else_runs);
    tcase_add_test(tenants, many_blocks_are_zeroed_in_slices_before_any_run_goes);
    tcase_add_test(tenants, a_refused_slice_of_zeroes_is_tried_again_smaller_or_later_and_no_run_fails);
    tcase_add_test(tenants, zeroing_outlives_a_refused_submission_and_ends_with_the_memory);
    for (size_t i = 0; i < sizeof(all) / sizeof(TCase *); i++) {
        tcase_add_checked_fixture(all[i], open_two, close_all);
        suite_add_tcase(suite, all[i]);
    }
    return check_main(suite);
}
