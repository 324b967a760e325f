// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_prefix.c - what is published, which sessions find it and when, what happens if two publish
// the same, and what is evicted first.

#include "core/state.h"
#include "rigs/check_main.h"
#include "rigs/ownership_world.h"

#include <string.h>

// Leases, writes and publishes `count` blocks of tokens[first...). Their ids are in blocks[].
static void publish(struct worker *worker, uint32_t count, const int32_t *text)
{
    worker_lease(worker, count, blocks);
    worker_write(worker, blocks, text, count * 8);
    worker_publish(worker, text, count * 8, blocks);
}

static struct core_cache_view view(void)
{
    struct core_cache_view out;
    ck_assert(core_cache_at(world.core, 0, &out));
    return out;
}

// ---- look-up ----

START_TEST(lookup_finds_the_longest_chain_of_full_blocks_and_holds_it)
{
    struct core_session_counts counts;
    publish(&a, 4, tokens);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 39, found), 4);
    ck_assert_mem_eq(found, blocks, 4 * sizeof(*blocks));
    ck_assert_uint_eq(worker_lookup(&b, tokens, 31, found), 3);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 7, found), 0);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 0, found), 0);
    ck_assert_uint_eq(worker_lookup(&b, tokens + 1, 31, found), 0);
    tokens[17] = -5; // in the third block
    ck_assert_uint_eq(worker_lookup(&b, tokens, 32, found), 2);
    core_session_counts(b.session, &counts);
    ck_assert_uint_eq(counts.lookup_tokens, 39 + 31 + 7 + 31 + 32);
    ck_assert_uint_eq(counts.hit_tokens, 32 + 24 + 16);
    ck_assert_uint_eq(counts.blocks_held, 4);
    ck_assert_uint_eq(worker_block(&b, blocks[0]).holders, 2);
}
END_TEST

START_TEST(max_tokens_bounds_a_lookup)
{
    const struct core_prefix prefix = {.tokens = tokens, .num_tokens = 32};
    uint32_t count;
    publish(&a, 4, tokens);
    const uint32_t expected[][2] = {{0, 4},  {8, 1},  {15, 1},   {16, 2},
                                    {31, 3}, {32, 4}, {1000, 4}, {1, 0}};
    for (size_t i = 0; i < sizeof(expected) / sizeof(*expected); i++) {
        ck_assert_status(
            core_prefix_lookup(b.session, b.cache, &prefix, expected[i][0], found, &count, &error),
            STATUS_OK);
        ck_assert_uint_eq(count, expected[i][1]);
    }
}
END_TEST

START_TEST(chains_that_part_share_what_they_have_in_common)
{
    int32_t other[32];
    publish(&a, 4, tokens);
    memcpy(other, tokens, sizeof(other));
    other[31]++;
    int32_t first[4], second[4];
    memcpy(first, blocks, sizeof(first));
    worker_lease(&b, 4, second);
    worker_write(&b, second, other, 32);
    ck_assert_uint_eq(worker_publish(&b, other, 32, second), 3);
    ck_assert_mem_eq(first, second, 3 * sizeof(*first));
    ck_assert_int_ne(first[3], second[3]);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 32, found), 4);
    ck_assert_mem_eq(found, first, sizeof(first));
    ck_assert_uint_eq(worker_lookup(&b, other, 32, found), 4);
    ck_assert_mem_eq(found, second, sizeof(second));
}
END_TEST

START_TEST(another_user_tenant_extra_key_or_cache_never_hits)
{
    struct worker others[3];
    const struct core_prefix lora = {.tokens = tokens,
                                     .num_tokens = 16,
                                     .extra_key = (const uint8_t *)"r1",
                                     .extra_key_size = 2};
    struct core_prefix r2 = lora;
    uint32_t count;
    publish(&a, 2, tokens);
    worker_open(&others[0], &world, 2, "");
    worker_open(&others[1], &world, 1, "tenant");
    worker_open(&others[2], &world, 1, "");
    others[2].cache = worker_open_cache(&others[2], "second");
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(worker_lookup(&others[i], tokens, 16, found), 0);
    ck_assert_status(core_prefix_lookup(b.session, b.cache, &lora, 0, found, &count, &error),
                     STATUS_OK);
    ck_assert_uint_eq(count, 0);
    worker_lease(&b, 2, found);
    worker_write(&b, found, tokens, 16);
    ck_assert_status(core_prefix_publish(b.session, b.cache, &lora, found, 2, &count, &error),
                     STATUS_OK);
    ck_assert_uint_eq(count, 0); // no block of a was taken
    ck_assert_status(core_prefix_lookup(a.session, a.cache, &lora, 0, found + 2, &count, &error),
                     STATUS_OK);
    ck_assert_uint_eq(count, 2);
    ck_assert_int_eq(found[2], found[0]);
    r2.extra_key = (const uint8_t *)"r2";
    ck_assert_status(core_prefix_lookup(a.session, a.cache, &r2, 0, found, &count, &error),
                     STATUS_OK);
    ck_assert_uint_eq(count, 0);
    for (int i = 0; i < 3; i++)
        worker_close(&others[i], false);
    worker_open(&c, &world, 1, ""); // the first user again, in a new session
    ck_assert_uint_eq(worker_lookup(&c, tokens, 16, found), 2);
}
END_TEST

static uint64_t same_hash(uint64_t seed, const void *key, size_t size)
{
    (void)seed;
    (void)key;
    (void)size;
    return 42;
}

START_TEST(colliding_hashes_change_nothing)
{
    world.core->ledger.hash = same_hash;
    int32_t text[20][16], ids[20][2];
    for (int i = 0; i < 20; i++) {
        count_tokens(text[i], 16, 100);
        text[i][i % 16] += 1 + i / 16;
        worker_lease(&a, 2, ids[i]);
        worker_write(&a, ids[i], text[i], 16);
        worker_publish(&a, text[i], 16, ids[i]);
    }
    for (int i = 0; i < 20; i++) {
        ck_assert_uint_eq(worker_lookup(&b, text[i], 16, found), 2);
        ck_assert_mem_eq(found, ids[i], sizeof(ids[i]));
    }
    count_tokens(text[0], 16, 100);
    ck_assert_uint_eq(worker_lookup(&b, text[0], 16, found),
                      1); // the first block of texts that differ later
    const struct core_prefix extra = {.tokens = text[1],
                                      .num_tokens = 16,
                                      .extra_key = (const uint8_t *)"x",
                                      .extra_key_size = 1};
    uint32_t count;
    ck_assert_status(core_prefix_lookup(b.session, b.cache, &extra, 0, found, &count, &error),
                     STATUS_OK);
    ck_assert_uint_eq(count, 0);
}
END_TEST

START_TEST(the_index_hashes_with_the_seed_it_was_given)
{
    static const char key[] = "what a client may choose";
    struct world seeded;
    world_open(&seeded, &(struct core_params){.hash_seed = 12345});
    uint64_t with = seeded.core->ledger.hash(seeded.core->params.hash_seed, key, sizeof key);
    uint64_t without = world.core->ledger.hash(world.core->params.hash_seed, key, sizeof key);
    ck_assert_uint_ne(with, without);
    world_close(&seeded);
}
END_TEST

// ---- publish ----

START_TEST(unwritten_foreign_and_part_filled_blocks_are_refused_and_nothing_is_sealed)
{
    uint32_t existing;
    worker_lease(&a, 3, blocks);
    ck_assert_refused(worker_try_publish(&a, tokens, 8, blocks, &existing, &error),
                      STATUS_UNWRITTEN, "blocks[0] = 0 has 0 of 8 slots written in layer 0");
    worker_write(&a, blocks, tokens, 8 + 5);
    ck_assert_refused(worker_try_publish(&a, tokens, 16, blocks, &existing, &error),
                      STATUS_UNWRITTEN, "blocks[1] = 1 has 5 of 8 slots written in layer 0");
    worker_run(&a, worker_batch(&a, blocks, 16, 3), 0, 3,
               tokens + 13); // the rest, but in one layer only
    world_finish_all(&world);
    ck_assert_refused(worker_try_publish(&a, tokens, 16, blocks, &existing, &error),
                      STATUS_UNWRITTEN, "5 of 8 slots written in layer 1");
    ck_assert_int_eq((int)worker_block(&a, blocks[0]).state, CORE_LEASED);
    ck_assert_uint_eq(existing, 0);
    worker_lease(&b, 1, found);
    int32_t given[] = {blocks[0], found[0]};
    ck_assert_refused(worker_try_publish(&a, tokens, 16, given, &existing, &error), STATUS_NOT_HELD,
                      "blocks[1] = 3");
    given[1] = 16;
    ck_assert_refused(worker_try_publish(&a, tokens, 16, given, &existing, &error),
                      STATUS_OUT_OF_RANGE, "blocks[1] = 16");
    given[1] = given[0];
    ck_assert_refused(worker_try_publish(&a, tokens, 16, given, &existing, &error), STATUS_INVALID,
                      "occurs twice");
    const struct core_prefix prefix = {.tokens = tokens, .num_tokens = 13};
    ck_assert_refused(
        core_prefix_publish(a.session, a.cache, &prefix, blocks, 2, &existing, &error),
        STATUS_INVALID, "2 blocks given, but 13 tokens fill 1");
    ck_assert_refused(core_prefix_publish(a.session, 55, &prefix, blocks, 1, &existing, &error),
                      STATUS_NOT_FOUND, "55");
    ck_assert_uint_eq(view().published, 0);
    ck_assert_status(core_prefix_publish(a.session, a.cache, &prefix, blocks, 1, &existing, &error),
                     STATUS_OK);
    const struct core_prefix none = {.tokens = tokens, .num_tokens = 7};
    ck_assert_status(core_prefix_publish(a.session, a.cache, &none, NULL, 0, &existing, &error),
                     STATUS_OK);
}
END_TEST

START_TEST(writing_a_block_anew_after_a_new_lease_starts_from_nothing)
{
    uint32_t existing;
    worker_lease(&a, 1, blocks);
    worker_write(&a, blocks, tokens, 8);
    worker_release(&a, blocks, 1);
    worker_lease(&a, 1, found);
    ck_assert_int_eq(found[0], blocks[0]);
    ck_assert_refused(worker_try_publish(&a, tokens, 8, blocks, &existing, &error),
                      STATUS_UNWRITTEN, "0 of 8");
}
END_TEST

START_TEST(publishing_as_it_goes_extends_the_chain_with_the_very_same_blocks)
{
    worker_lease(&a, 6, blocks);
    for (uint32_t n = 1; n <= 6; n++) {
        worker_write(&a, blocks + n - 1, tokens + 8 * (size_t)(n - 1), 8);
        int32_t given[6];
        memcpy(given, blocks, sizeof(given));
        ck_assert_uint_eq(worker_publish(&a, tokens, 8 * n, given), 0);
        ck_assert_mem_eq(given, blocks, n * sizeof(*blocks));
        ck_assert_uint_eq(worker_lookup(&b, tokens, 48, found), n);
        ck_assert_uint_eq(worker_block(&a, blocks[0]).holders, 2);
    }
    ck_assert_uint_eq(view().published, 6);
    worker_release(&a, blocks, 6); // one hold each, however often it was published
    ck_assert_refused(core_blocks_release(a.session, a.cache, blocks, 1, &error), STATUS_NOT_HELD,
                      "not held");
}
END_TEST

START_TEST(of_two_sessions_that_publish_the_same_chain_the_second_gets_the_blocks_of_the_first)
{
    int32_t mine[4];
    publish(&a, 4, tokens);
    worker_lease(&b, 4, mine);
    memcpy(found, mine, sizeof(mine));
    worker_write(&b, mine, tokens, 32);
    ck_assert_uint_eq(worker_publish(&b, tokens, 32, mine), 4);
    ck_assert_mem_eq(mine, blocks, sizeof(mine));
    for (int i = 0; i < 4; i++) {
        ck_assert_uint_eq(worker_block(&b, mine[i]).holders, 2);
        ck_assert_int_eq((int)worker_block(&b, found[i]).state, CORE_LEASED); // still leased to b
    }
    worker_release(&b, found, 4);
    worker_release(&b, mine, 4);
    ck_assert_int_eq((int)worker_block(&b, found[0]).state, CORE_FREE);
    ck_assert_int_eq((int)worker_block(&b, mine[0]).state, CORE_HELD);
}
END_TEST

START_TEST(a_chain_goes_on_behind_a_published_block)
{
    uint32_t existing;
    publish(&a, 2, tokens);
    worker_lease(&a, 2, blocks + 2);
    worker_write(&a, blocks + 2, tokens + 16, 16);
    struct core_prefix rest = {
        .tokens = tokens + 16, .num_tokens = 16, .has_parent = true, .parent = blocks[1]};
    ck_assert_status(
        core_prefix_publish(a.session, a.cache, &rest, blocks + 2, 2, &existing, &error),
        STATUS_OK);
    ck_assert_int_eq(worker_block(&a, blocks[3]).depth, 3);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 32, found), 4);
    ck_assert_mem_eq(found, blocks, 4 * sizeof *found);
    // Again, by another session: it gets the same blocks.
    int32_t mine[2];
    worker_lease(&b, 2, mine);
    worker_write(&b, mine, tokens + 16, 16);
    ck_assert_status(core_prefix_publish(b.session, b.cache, &rest, mine, 2, &existing, &error),
                     STATUS_OK);
    ck_assert_uint_eq(existing, 2);
    ck_assert_mem_eq(mine, blocks + 2, sizeof mine);
    world_check(&world);
}
END_TEST

START_TEST(a_chain_begins_behind_no_other_block)
{
    uint32_t existing;
    int32_t mine[2];
    publish(&a, 1, tokens);
    worker_lease(&b, 2, mine);
    worker_write(&b, mine, tokens + 8, 16);
    struct core_prefix rest = {
        .tokens = tokens + 8, .num_tokens = 8, .has_parent = true, .parent = blocks[0]};
    ck_assert_refused(core_prefix_publish(b.session, b.cache, &rest, mine, 1, &existing, &error),
                      STATUS_NOT_HELD, "parent block");
    rest.parent = mine[1];
    ck_assert_refused(core_prefix_publish(b.session, b.cache, &rest, mine, 1, &existing, &error),
                      STATUS_NOT_FOUND, "not in the prefix index");
    rest.parent = -1;
    ck_assert_refused(core_prefix_publish(b.session, b.cache, &rest, mine, 1, &existing, &error),
                      STATUS_NOT_HELD, "parent block -1");
    worker_lookup(&b, tokens, 8, &rest.parent);
    rest.extra_key = (const uint8_t *)"lora";
    rest.extra_key_size = 4;
    ck_assert_refused(core_prefix_publish(b.session, b.cache, &rest, mine, 1, &existing, &error),
                      STATUS_INVALID, "another extra key");
    ck_assert_uint_eq(view().published, 1);
    world_check(&world);
}
END_TEST

START_TEST(a_block_published_elsewhere_in_the_tree_cannot_be_published_again)
{
    uint32_t existing;
    publish(&a, 2, tokens);
    int32_t swapped[] = {blocks[1], blocks[0]};
    ck_assert_refused(worker_try_publish(&a, tokens, 16, swapped, &existing, &error),
                      STATUS_INVALID, "published already");
    ck_assert_refused(worker_try_publish(&a, tokens + 8, 8, blocks, &existing, &error),
                      STATUS_INVALID, "other tokens");
    ck_assert_uint_eq(view().published, 2);
}
END_TEST

// ---- pending writes ----

START_TEST(a_published_block_is_visible_once_its_last_write_has_passed)
{
    uint64_t last;
    worker_lease(&a, 2, blocks);
    worker_write_async(&a, blocks, tokens, 16, &last);
    worker_publish(&a, tokens, 16, blocks); // published before its writes are done
    world_step(&world);
    ck_assert_uint_eq(view().pending, 2);
    ck_assert_uint_eq(view().published, 0);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 16, found), 0);
    ck_assert_uint_eq(worker_lookup(&a, tokens, 16, found), 0);
    world_check(&world);
    world_finish_all(&world);
    ck_assert_uint_eq(view().pending, 0);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 16, found), 2);
    const struct engine_cache *cache = core_engine_cache(world.core, a.cache);
    for (uint32_t i = 0; i < 16; i++)
        ck_assert_int_eq(fake_engine_slot(cache, 1, found[i / 8], i % 8), tokens[i]);
}
END_TEST

START_TEST(a_failed_write_takes_its_block_and_all_below_it_out_of_the_index)
{
    uint64_t last;
    worker_lease(&a, 4, blocks);
    worker_write(&a, blocks, tokens, 8);
    worker_write_async(&a, blocks + 1, tokens + 8, 8, &last);
    worker_write(&a, blocks + 2, tokens + 16, 16); // finishes all work
    worker_lease(&a, 1, blocks + 4);
    uint64_t batch = worker_batch(&a, blocks + 1, 8, 8);
    worker_run(&a, batch, 0, 8, tokens + 8);
    world_step(&world);
    worker_publish(&a, tokens, 32, blocks);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 32, found), 1); // the second block is pending
    fake_engine_newest(world.engine)->runs[0].fail = STATUS_NO_MEMORY;
    world_finish_all(&world);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 32, found), 1);
    ck_assert_uint_eq(view().published, 1);
    uint32_t existing;
    ck_assert_refused(worker_try_publish(&a, tokens, 32, blocks, &existing, &error),
                      STATUS_UNWRITTEN, "blocks[1]");
    worker_release(&a, blocks + 1, 3);
    ck_assert_int_eq((int)worker_block(&a, blocks[2]).state,
                     CORE_FREE); // sealed, but no look-up could ever find it
    ck_assert_int_eq((int)worker_block(&a, blocks[1]).state, CORE_HELD); // the batch refers to it
    ck_assert_status(core_batch_destroy(a.session, batch, &error), STATUS_OK);
    ck_assert_int_eq((int)worker_block(&a, blocks[1]).state, CORE_FREE);
}
END_TEST

START_TEST(a_dropped_write_of_a_dead_session_is_never_seen)
{
    uint64_t last;
    worker_lease(&a, 3, blocks);
    worker_write_async(&a, blocks, tokens, 8, &last); // layer 0
    world_step(&world);                               // both layers go into one submission
    worker_write_async(&a, blocks + 1, tokens + 8, 8, &last);
    world_step(&world);
    worker_write_async(&a, blocks + 2, tokens + 16, 8, &last); // stays in the queue
    worker_publish(&a, tokens, 24, blocks);
    ck_assert_uint_eq(view().pending, 3);
    worker_close(&a, true);
    ck_assert_uint_eq(view().pending, 2);
    ck_assert_int_eq((int)worker_block(&b, blocks[2]).state, CORE_FREE);
    world_finish_all(&world);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 24, found), 2);
    ck_assert_int_eq((int)worker_block(&b, blocks[1]).state, CORE_HELD);
}
END_TEST

START_TEST(nobody_is_given_a_block_whose_writes_may_still_fail)
{
    uint64_t last;
    worker_lease(&a, 1, blocks);
    worker_write_async(&a, blocks, tokens, 8, &last);
    worker_publish(&a, tokens, 8, blocks);
    worker_lease(&b, 1, found);
    worker_write_async(&b, found, tokens, 8, &last);
    ck_assert_uint_eq(worker_publish(&b, tokens, 8, found),
                      0); // both are pending: each session keeps its own block, and a's is in the
                          // index
    ck_assert_int_eq((int)worker_block(&b, found[0]).state, CORE_HELD);
    ck_assert_int_eq(worker_block(&b, found[0]).depth, -1);
    world_check(&world);
    world_step(&world);
    struct fake_submission *s = fake_engine_oldest(world.engine);
    for (uint32_t i = 0; i < s->num_runs; i++) {
        if (s->runs[i].arena == a.arena)
            s->runs[i].fail = STATUS_NO_MEMORY;
    }
    world_finish_all(&world);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 8, found + 1), 0);
    ck_assert_uint_eq(worker_publish(&b, tokens, 8, found), 0); // b's block is good
    ck_assert_uint_eq(worker_lookup(&b, tokens, 8, found + 1), 1);
    ck_assert_int_eq(found[1], found[0]);
}
END_TEST

START_TEST(a_block_that_is_done_replaces_a_pending_one_of_the_same_chain)
{
    uint64_t last;
    worker_lease(&b, 2, found);
    worker_write(&b, found, tokens, 16);
    worker_lease(&a, 2, blocks);
    worker_write_async(&a, blocks, tokens, 16, &last);
    worker_publish(&a, tokens, 16, blocks);
    ck_assert_uint_eq(worker_publish(&b, tokens, 8, found), 0);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 16, found + 8), 1);
    ck_assert_int_eq(found[8], found[0]);
    world_check(&world);
    world_finish_all(&world);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 16, found + 8), 2);
    ck_assert_int_eq(found[8], found[0]);
    ck_assert_int_eq(found[9], blocks[1]);
    worker_release(&a, blocks, 1); // no look-up can find a's first block
    ck_assert_int_eq((int)worker_block(&a, blocks[0]).state, CORE_FREE);
}
END_TEST

// ---- eviction ----

START_TEST(the_least_recently_used_prefix_goes_first_and_children_before_their_parents)
{
    int32_t ids[4][4];
    for (int i = 0; i < 4; i++) { // 4 chains of 4: 16 cached
        publish(&a, 4, tokens + (size_t)100 * (size_t)i);
        memcpy(ids[i], blocks, sizeof(ids[i]));
        worker_release(&a, blocks, 4);
    }
    ck_assert_uint_eq(worker_lookup(&b, tokens, 16, found), 2); // uses half of chain 0 again
    worker_release(&b, found, 2);
    worker_lease(&b, 48, found);
    worker_lease(&b, 1, found + 48);
    ck_assert_int_eq(found[48], ids[0][3]);
    worker_lease(&b, 1, found + 49);
    ck_assert_int_eq(found[49], ids[0][2]);
    for (int i = 0; i < 4; i++) {
        worker_lease(&b, 1, found + 50 + i);
        ck_assert_int_eq(found[50 + i], ids[1][3 - i]);
    }
    const uint64_t *totals = core_metrics(world.core);
    ck_assert_uint_eq(totals[METRIC_EVICTIONS], 6);
    ck_assert_uint_eq(worker_lookup(&a, tokens, 32, blocks), 2);
    ck_assert_uint_eq(worker_lookup(&a, tokens + 100, 32, blocks), 0);
    ck_assert_uint_eq(worker_lookup(&a, tokens + 200, 32, blocks), 4);
}
END_TEST

START_TEST(a_held_block_is_never_evicted_and_nothing_is_evicted_in_vain)
{
    publish(&a, 8, tokens);
    worker_release(&a, blocks + 4, 4);
    worker_lease(&b, 56, found);
    ck_assert_refused(worker_try_lease(&b, 5, found + 56, &error), STATUS_NO_BLOCKS,
                      "5 blocks wanted");
    ck_assert_uint_eq(worker_counts(&b).cached, 4); // they would not have been enough
    worker_lease(&b, 4, found + 56);
    ck_assert_uint_eq(worker_counts(&b).held, 4);
    ck_assert_uint_eq(worker_lookup(&a, tokens, 64, blocks), 4);
}
END_TEST

START_TEST(a_cached_parent_of_a_held_child_is_evictable_as_a_last_resort)
{
    publish(&a, 4, tokens);
    worker_release(&a, blocks, 3); // the last one stays held
    worker_lease(&b, 60, found);
    ck_assert_uint_eq(worker_counts(&b).available, 3);
    worker_lease(&b, 1, found + 60);
    ck_assert_int_eq(found[60], blocks[2]);
    // no longer reachable, but still held by a
    ck_assert_int_eq(worker_block(&a, blocks[3]).depth, -1);
    ck_assert_int_eq((int)worker_block(&a, blocks[3]).state, CORE_HELD);
    world_check(&world);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 32, found + 61), 2);
    worker_release(&b, found + 61, 2);
    worker_lease(&b, 2, found + 61);
    worker_release(&a, blocks + 3, 1);
    ck_assert_int_eq((int)worker_block(&a, blocks[3]).state, CORE_FREE);
}
END_TEST

START_TEST(a_chain_of_a_hundred_thousand_blocks_ends_without_a_deep_stack)
{
    enum { LENGTH = 100000 };
    struct core_params params = {.max_blocks = LENGTH, .max_tickets = 4};
    struct world deep;
    world_open(&deep, &params);
    worker_open(&c, &deep, 1, "");
    int32_t *ids = calloc(LENGTH, sizeof(*ids)), *text = calloc(LENGTH, 8 * sizeof(*text));
    ck_assert_ptr_nonnull(ids);
    ck_assert_ptr_nonnull(text);
    uint32_t usable = (uint32_t)worker_counts(&c).limit;
    count_tokens(text, usable * 8, 0);
    worker_lease(&c, usable, ids);
    for (uint32_t i = 0; i < usable; i += 2000) {
        uint32_t count = usable - i < 2000 ? usable - i : 2000;
        uint64_t batch = worker_batch(&c, ids + i, count * 8, count * 8);
        for (uint32_t layer = 0; layer < WORLD_LAYERS; layer++) {
            uint64_t ticket = worker_run(&c, batch, layer, count * 8, NULL);
            world_step(&deep);
            ck_assert(fake_engine_finish(deep.engine));
            world_step(&deep);
            worker_reap(&c, ticket, STATUS_OK);
        }
        ck_assert_status(core_batch_destroy(c.session, batch, &error), STATUS_OK);
    }
    worker_publish(&c, text, usable * 8, ids);
    worker_release(&c, ids, usable);
    ck_assert_uint_eq(worker_counts(&c).cached, usable);
    worker_lease(&c, usable / 2, ids);
    ck_assert_uint_eq(worker_counts(&c).cached, usable - usable / 2);
    world_close(&deep);
    free(ids);
    free(text);
}
END_TEST

// ---- looking inside ----

START_TEST(the_index_shows_parents_hits_age_and_tenant)
{
    struct core_prefix_view view;
    world.now_ns = 1000;
    world_step(&world);
    worker_lease(&a, 3, blocks);
    worker_write(&a, blocks, tokens, 24);
    worker_publish(&a, tokens, 16, blocks);
    world.now_ns = 5000;
    world_step(&world);
    worker_lookup(&b, tokens, 16, found);
    worker_lookup(&b, tokens, 8, found);
    ck_assert(core_prefix_at(world.core, a.cache, (uint32_t)blocks[1], &view));
    ck_assert_int_eq(view.block, blocks[1]);
    ck_assert_int_eq(view.parent, blocks[0]);
    ck_assert_uint_eq(view.depth, 1);
    ck_assert_uint_eq(view.hits, 1);
    ck_assert_uint_eq(view.holders, 2);
    ck_assert_uint_eq(view.age_ns, 4000);
    ck_assert(view.visible);
    ck_assert_str_eq(view.tenant, "uid:1");
    ck_assert_int_eq((int)view.keep, (int)CORE_KEEP_NORMAL);
    ck_assert_uint_eq(view.extra_key_size, 0);
    ck_assert_mem_eq(view.tokens, tokens + 8, 8 * sizeof *tokens);
    ck_assert(core_prefix_at(world.core, a.cache, (uint32_t)blocks[0], &view));
    ck_assert_int_eq(view.parent, -1);
    ck_assert_uint_eq(view.hits, 2);
    ck_assert(!core_prefix_at(world.core, a.cache, (uint32_t)blocks[2], &view)); // not published
    ck_assert(!core_prefix_at(world.core, a.cache, 1u << 30, &view));
    ck_assert(!core_prefix_at(world.core, 12345, 0, &view));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("prefix");
    check_case(suite, "lookup", open_two, close_all,
               (const TTest *const[]){lookup_finds_the_longest_chain_of_full_blocks_and_holds_it,
                                      max_tokens_bounds_a_lookup,
                                      chains_that_part_share_what_they_have_in_common,
                                      another_user_tenant_extra_key_or_cache_never_hits,
                                      colliding_hashes_change_nothing,
                                      the_index_hashes_with_the_seed_it_was_given, NULL},
               1);
    check_case(
        suite, "publish", open_two, close_all,
        (const TTest *const[]){
            unwritten_foreign_and_part_filled_blocks_are_refused_and_nothing_is_sealed,
            writing_a_block_anew_after_a_new_lease_starts_from_nothing,
            publishing_as_it_goes_extends_the_chain_with_the_very_same_blocks,
            of_two_sessions_that_publish_the_same_chain_the_second_gets_the_blocks_of_the_first,
            a_chain_goes_on_behind_a_published_block, a_chain_begins_behind_no_other_block,
            a_block_published_elsewhere_in_the_tree_cannot_be_published_again, NULL},
        1);
    check_case(
        suite, "pending", open_two, close_all,
        (const TTest *const[]){a_published_block_is_visible_once_its_last_write_has_passed,
                               a_failed_write_takes_its_block_and_all_below_it_out_of_the_index,
                               a_dropped_write_of_a_dead_session_is_never_seen,
                               nobody_is_given_a_block_whose_writes_may_still_fail,
                               a_block_that_is_done_replaces_a_pending_one_of_the_same_chain, NULL},
        1);
    check_case(suite, "looking inside", open_two, close_all,
               (const TTest *const[]){the_index_shows_parents_hits_age_and_tenant, NULL}, 1);
    check_case(suite, "eviction", open_two, close_all,
               (const TTest *const[]){
                   the_least_recently_used_prefix_goes_first_and_children_before_their_parents,
                   a_held_block_is_never_evicted_and_nothing_is_evicted_in_vain,
                   a_cached_parent_of_a_held_child_is_evictable_as_a_last_resort,
                   a_chain_of_a_hundred_thousand_blocks_ends_without_a_deep_stack, NULL},
               1);
    return check_main(suite);
}
