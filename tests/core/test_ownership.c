// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_ownership.c - the states of a block one by one, how long a batch keeps its blocks, and how
// many blocks a session may hold.

#include "rigs/check_main.h"
#include "rigs/ownership_world.h"

#include <string.h>

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

START_TEST(if_one_block_is_not_held_no_block_of_the_list_is_released)
{
    worker_lease(&a, 3, blocks);
    worker_lease(&b, 1, blocks + 3);
    ck_assert_refused(core_blocks_release(a.session, a.cache, blocks, 4, &error), STATUS_NOT_HELD,
                      "blocks[3] = 3");
    ck_assert_uint_eq(worker_counts(&a).leased, 4);
    const int32_t twice[] = {blocks[0], blocks[1], blocks[0]}, outside[] = {blocks[0], 16},
                  negative[] = {-1};
    ck_assert_refused(core_blocks_release(a.session, a.cache, twice, 3, &error), STATUS_NOT_HELD,
                      "named 2 times");
    ck_assert_refused(core_blocks_release(a.session, a.cache, outside, 2, &error),
                      STATUS_OUT_OF_RANGE, "blocks[1] = 16");
    ck_assert_refused(core_blocks_release(a.session, a.cache, negative, 1, &error),
                      STATUS_OUT_OF_RANGE, "-1");
    ck_assert_uint_eq(worker_counts(&a).leased, 4);
    worker_release(&a, blocks, 3);
    ck_assert_refused(core_blocks_release(a.session, a.cache, blocks, 1, &error), STATUS_NOT_HELD,
                      "not held");
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
    const int32_t twice[] = {blocks[0], blocks[0]}; // twice in one call
    worker_release(&a, twice, 2);
    ck_assert_state(blocks[0], CORE_CACHED);
}
END_TEST

START_TEST(repeated_look_ups_end_with_their_session)
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

// ---- batches ----

START_TEST(a_release_takes_effect_when_the_last_batch_that_names_the_block_is_gone)
{
    worker_lease(&a, 2, blocks);
    uint64_t first = worker_batch(&a, blocks, 16, 8);
    uint64_t unseen =
        worker_batch(&a, blocks, 8, 0); // no query sees its blocks, but a gather reads them
    ck_assert_uint_eq(worker_block(&a, blocks[0]).batch_refs, 2);
    ck_assert_status(core_batch_destroy(a.session, unseen, &error), STATUS_OK);
    ck_assert_uint_eq(worker_block(&a, blocks[0]).batch_refs, 1);
    uint64_t second = worker_batch(&a, blocks, 8, 8);
    ck_assert_uint_eq(worker_block(&a, blocks[0]).batch_refs, 2);
    worker_release(&a, blocks, 2);
    ck_assert_state(blocks[0], CORE_LEASED);
    ck_assert_refused(core_blocks_release(a.session, a.cache, blocks, 1, &error), STATUS_NOT_HELD,
                      "blocks[0]");
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
    world_step(&world);
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
    uint64_t batch = worker_batch(&a, blocks, 16, 16), last;
    worker_run(&a, batch, 0, 16, tokens);
    uint64_t other = worker_batch(&a, blocks + 1, 8, 8);
    worker_write_async(&a, blocks, tokens, 8, &last);
    world_finish_all(&world);
    worker_publish(&a, tokens, 8, blocks);
    struct core_run_params params = worker_run_params(&a, batch, 0, 16, tokens);
    uint64_t ticket;
    ck_assert_refused(core_run(a.session, &params, &ticket, &error), STATUS_SEALED,
                      "writes block 0");
    ck_assert_refused(core_run(a.session, &params, &ticket, &error), STATUS_SEALED, "sealed");
    params = worker_run_params(&a, other, 0, 8, tokens); // it uses another block, and continues
    ck_assert_status(core_run(a.session, &params, &ticket, &error), STATUS_OK);
    world_finish_all(&world);
    worker_reap(&a, ticket, STATUS_OK);
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
    ck_assert_uint_eq(counts.blocks_held, 4); // a block that is held twice counts once
    worker_lease(&c, 6, blocks + 4);
    ck_assert_refused(
        core_blocks_lease(c.session, NULL, c.cache, 1, found, &growing, &error), STATUS_QUOTA,
        "1 blocks more would exceed the session's limit of 10 (--session-blocks); it has 10");
    worker_lease(&d, 7, blocks + 20);
    const struct core_prefix prefix = {.tokens = tokens, .num_tokens = 32};
    ck_assert_refused(core_prefix_lookup(d.session, d.cache, &prefix, 0, found, &num, &error),
                      STATUS_QUOTA, "4 blocks more");
    ck_assert_uint_eq(num, 0);
    ck_assert_status(core_prefix_lookup(d.session, d.cache, &prefix, 24, found, &num, &error),
                     STATUS_OK);
    ck_assert_uint_eq(num, 3);
    uint64_t batch = worker_batch(&c, blocks + 4, 8, 8);
    worker_release(&c, blocks + 4, 1); // the batch still refers to it
    ck_assert_refused(core_blocks_lease(c.session, NULL, c.cache, 1, found, &growing, &error),
                      STATUS_QUOTA, "has 10");
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
    ck_assert_refused(worker_try_publish(&d, tokens, 16, found, &existing, &error), STATUS_QUOTA,
                      "2 blocks more");
    ck_assert_int_eq((int)worker_block(&d, found[0]).state, CORE_LEASED);
    worker_release(&d, found + 2, 1);
    ck_assert_status(worker_try_publish(&d, tokens, 16, found, &existing, &error), STATUS_OK);
    ck_assert_uint_eq(existing, 2);
    world_check(&small);
    world_close(&small);
}
END_TEST

START_TEST(an_exchange_that_releases_needs_no_quota_for_both_blocks)
{
    struct world small;
    struct worker d;
    uint32_t existing;
    world_open(&small, &(struct core_params){.quota_blocks = 4});
    worker_open(&c, &small, 1, "");
    worker_open(&d, &small, 1, "");
    worker_lease(&c, 4, blocks);
    worker_write(&c, blocks, tokens, 32);
    worker_publish(&c, tokens, 32, blocks);
    worker_lease(&d, 4, found);
    worker_write(&d, found, tokens, 32);
    memcpy(blocks + 4, found, 4 * sizeof *found);
    const struct core_prefix prefix = {.tokens = tokens, .num_tokens = 32, .releases = true};
    ck_assert_status(core_prefix_publish(d.session, d.cache, &prefix, found, 4, &existing, &error),
                     STATUS_OK);
    ck_assert_uint_eq(existing, 4);
    ck_assert_mem_eq(found, blocks, 4 * sizeof *found);
    for (int i = 4; i < 8; i++)
        ck_assert_int_eq((int)worker_block(&d, blocks[i]).state, CORE_FREE);
    worker_release(&d, found, 4);
    world_check(&small);
    world_close(&small);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ownership");
    check_case(suite, "states", open_two, close_all,
               (const TTest *const[]){a_block_goes_from_free_to_leased_to_held_to_cached_and_back,
                                      a_leased_block_that_was_not_published_becomes_free_again,
                                      the_sum_of_the_states_is_the_total_at_every_moment,
                                      if_one_block_is_not_held_no_block_of_the_list_is_released,
                                      a_block_that_is_held_twice_wants_two_releases,
                                      repeated_look_ups_end_with_their_session, NULL},
               1);
    check_case(suite, "batches", open_two, close_all,
               (const TTest *const[]){
                   a_release_takes_effect_when_the_last_batch_that_names_the_block_is_gone,
                   a_destroyed_batch_keeps_its_blocks_until_its_last_run_is_over,
                   a_sealed_block_stays_held_for_the_batch_that_reads_it_after_its_release,
                   sealing_a_block_that_a_live_batch_writes_fails_its_next_run, NULL},
               1);
    check_case(suite, "quota", open_two, close_all,
               (const TTest *const[]){the_quota_counts_distinct_blocks_and_is_hard,
                                      an_exchange_by_publishing_is_held_to_the_quota_too,
                                      an_exchange_that_releases_needs_no_quota_for_both_blocks,
                                      NULL},
               1);
    return check_main(suite);
}
