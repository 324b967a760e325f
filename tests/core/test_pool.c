// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_pool.c - how the pool grows, what it refuses, what it takes back, and which sessions may
// open which cache.

#include "rigs/check_main.h"
#include "rigs/core_world.h"

#include <string.h>

static int32_t blocks[4096];

static const uint64_t *totals(const struct world *world)
{
    return core_metrics(world->core);
}

START_TEST(a_pool_of_2048_grows_from_one_chunk_of_512_to_three_for_1500_blocks)
{
    struct world world;
    struct worker a;
    world_open(&world, &(struct core_params){.max_blocks = 2048});
    worker_open(&a, &world, 1, "");
    worker_lease(&a, 1, blocks);
    ck_assert_uint_eq(worker_counts(&a).total, 512);
    worker_lease(&a, 1499, blocks + 1);
    struct core_counts counts = worker_counts(&a);
    ck_assert_uint_eq(counts.total, 1536);
    ck_assert_uint_eq(counts.leased, 1500);
    ck_assert_uint_eq(counts.free, 36);
    ck_assert_uint_eq(counts.limit, 2048);
    ck_assert_uint_eq(counts.available, 36 + 512);
    for (int32_t i = 0; i < 1500; i++) // the lowest chunk comes first
        ck_assert_int_lt(blocks[i], 1536);
    world_check(&world);
    world_close(&world);
}
END_TEST

START_TEST(lease_hands_out_each_block_once)
{
    struct world world;
    struct worker a;
    bool seen[64] = {false};
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
    worker_lease(&a, 40, blocks);
    worker_lease(&a, 24, blocks + 40);
    for (int i = 0; i < 64; i++) {
        ck_assert_int_ge(blocks[i], 0);
        ck_assert_int_lt(blocks[i], 64);
        ck_assert(!seen[blocks[i]]);
        seen[blocks[i]] = true;
    }
    world_close(&world);
}
END_TEST

START_TEST(a_thousand_leases_and_releases_leave_nothing_behind)
{
    struct world world;
    struct worker a;
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
    for (int i = 0; i < 1000; i++) {
        worker_lease(&a, 1 + (uint32_t)i % 60, blocks);
        worker_release(&a, blocks, 1 + (uint32_t)i % 60);
    }
    ck_assert_uint_eq(worker_counts(&a).free, worker_counts(&a).total);
    ck_assert_uint_eq(worker_counts(&a).total, 64);
    world_check(&world);
    world_close(&world);
}
END_TEST

START_TEST(a_thousand_cycles_that_free_even_blocks_and_then_odd_ones_lose_none)
{
    struct world world;
    struct worker a;
    int32_t halves[2][50];
    world_open(&world, &(struct core_params){.max_blocks = 128});
    worker_open(&a, &world, 1, "");
    for (int cycle = 0; cycle < 1000; cycle++) {
        bool seen[128] = {false};
        worker_lease(&a, 100, blocks);
        for (int i = 0; i < 100; i++) {
            ck_assert_msg(!seen[blocks[i]], "cycle %d: block %d twice", cycle, (int)blocks[i]);
            seen[blocks[i]] = true;
            halves[i % 2][i / 2] = blocks[i];
        }
        worker_release(&a, halves[0], 50);
        worker_release(&a, halves[1], 50);
    }
    struct core_counts counts = worker_counts(&a);
    ck_assert_uint_eq(counts.free, 128);
    ck_assert_uint_eq(counts.total, 128);
    world_check(&world);
    world_close(&world);
}
END_TEST

START_TEST(freed_blocks_of_the_lowest_chunk_go_out_first_so_that_high_chunks_empty)
{
    struct world world;
    struct worker a;
    world_open(&world, NULL); // chunks of 16
    worker_open(&a, &world, 1, "");
    worker_lease(&a, 48, blocks);
    worker_release(&a, blocks + 5, 1);
    worker_release(&a, blocks + 40, 1);
    int32_t next;
    worker_lease(&a, 1, &next);
    ck_assert_int_eq(next, blocks[5]);
    world_close(&world);
}
END_TEST

START_TEST(a_lease_says_that_a_chunk_is_on_its_way_and_changes_nothing_meanwhile)
{
    struct world world;
    struct worker a;
    bool growing = false;
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
    fake_engine_hold_chunks(world.engine, true);
    blocks[0] = -7;
    for (int i = 0; i < 10; i++) {
        ck_assert_refused(core_blocks_lease(a.session, NULL, a.cache, 20, blocks, &growing, &error),
                          STATUS_NO_BLOCKS, "2 chunks are on their way");
        ck_assert(growing);
        ck_assert_int_eq(blocks[0], -7);
        world_step(&world);
        world_check(&world);
    }
    struct fake_counts counts;
    fake_engine_counts(world.engine, &counts);
    ck_assert_uint_eq(counts.asked_chunks, 2); // asking again does not ask the device again
    ck_assert(fake_engine_give_chunk(world.engine));
    ck_assert(world_step(&world));
    ck_assert_status(core_blocks_lease(a.session, NULL, a.cache, 20, blocks, &growing, &error),
                     STATUS_NO_BLOCKS);
    ck_assert(fake_engine_give_chunk(world.engine));
    ck_assert(world_step(&world));
    ck_assert_status(core_blocks_lease(a.session, NULL, a.cache, 20, blocks, &growing, &error),
                     STATUS_OK);
    ck_assert(!growing);
    world_close(&world);
}
END_TEST

START_TEST(a_refused_growth_is_told_with_its_bytes_and_not_asked_for_again_and_again)
{
    struct world world;
    struct worker a, b;
    struct fake_counts counts;
    bool growing;
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
    worker_lease(&a, 16, blocks);
    fake_engine_refuse_chunks(world.engine, 1000);
    for (int i = 0; i < 50; i++) {
        enum status status =
            core_blocks_lease(a.session, NULL, a.cache, 1, blocks + 16, &growing, NULL);
        ck_assert_int_eq((int)status, STATUS_NO_BLOCKS);
        ck_assert_int_eq(growing, i == 0);
        world_step(&world);
    }
    fake_engine_counts(world.engine, &counts);
    ck_assert_uint_eq(counts.asked_chunks, 2);
    ck_assert_refused(core_blocks_lease(a.session, NULL, a.cache, 1, blocks + 16, &growing, &error),
                      STATUS_NO_BLOCKS, "no memory for 8192 bytes more");
    ck_assert_ptr_nonnull(strstr(world.last_warning, "8192"));
    ck_assert_uint_eq(worker_counts(&a).available, 0);
    fake_engine_refuse_chunks(world.engine, 0);
    worker_open(&b, &world, 1, ""); // the pool may ask again now
    worker_lease(&b, 1, blocks + 16);
    world_check(&world);
    world_close(&world);
}
END_TEST

START_TEST(a_refused_growth_is_tried_again_after_many_wishes)
{
    struct world world;
    struct worker a;
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
    fake_engine_refuse_chunks(world.engine, 1);
    ck_assert_status(worker_try_lease(&a, 1, blocks, &error), STATUS_NO_BLOCKS);
    enum status status = STATUS_NO_BLOCKS;
    for (int i = 0; i < 1000 && status != STATUS_OK; i++)
        status = worker_try_lease(&a, 1, blocks, NULL);
    ck_assert_int_eq((int)status, STATUS_OK);
    world_close(&world);
}
END_TEST

START_TEST(a_growth_that_cannot_be_asked_for_is_no_memory_and_the_next_lease_asks_again)
{
    struct world world;
    struct worker a;
    bool growing = false;
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
    fake_engine_fail_to_ask(world.engine, 1);
    ck_assert_refused(core_blocks_lease(a.session, NULL, a.cache, 16, blocks, &growing, &error),
                      STATUS_NO_MEMORY, "no host memory to grow");
    ck_assert(!growing);
    world_check(&world);
    worker_lease(&a, 16, blocks);
    world_check(&world);
    world_close(&world);
}
END_TEST

START_TEST(more_than_the_pool_can_ever_hold_is_a_limit_that_names_its_option)
{
    struct world world;
    struct worker a;
    bool growing;
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
    ck_assert_refused(core_blocks_lease(a.session, NULL, a.cache, 65, blocks, &growing, &error),
                      STATUS_LIMIT, "--max-blocks");
    ck_assert_refused(core_blocks_lease(a.session, NULL, a.cache, 0, blocks, &growing, &error),
                      STATUS_INVALID, "0 blocks");
    ck_assert_refused(core_blocks_lease(a.session, NULL, 999, 1, blocks, &growing, &error),
                      STATUS_NOT_FOUND, "999");
    world_close(&world);
}
END_TEST

START_TEST(two_sessions_cannot_have_more_than_the_pool_together)
{
    struct world world;
    struct worker a, b;
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
    worker_open(&b, &world, 2, "");
    worker_lease(&a, 40, blocks);
    ck_assert_refused(worker_try_lease(&b, 25, blocks + 40, &error), STATUS_NO_BLOCKS,
                      "25 blocks wanted");
    worker_lease(&b, 24, blocks + 40);
    worker_release(&a, blocks, 40);
    ck_assert(world_step(&world)); // blocks became free
    ck_assert(!world_step(&world));
    worker_lease(&b, 25, blocks + 100);
    world_check(&world);
    world_close(&world);
}
END_TEST

// ---- chunk sizes ----

static uint32_t chunk_of(const struct core_params *params, uint64_t max_allocation)
{
    struct world world;
    struct worker a;
    struct core_cache_identity identity = world_identity("kv");
    struct core_cache_info info;
    world_open(&world, params);
    if (max_allocation)
        fake_engine_limit_allocation(world.engine, max_allocation);
    worker_open(&a, &world, 1, "");
    ck_assert_status(core_cache_open(a.session, &identity, &info, &error), STATUS_OK);
    ck_assert_uint_eq(info.block_bytes, WORLD_BLOCK_BYTES);
    worker_lease(&a, 1, blocks);
    ck_assert_uint_eq(worker_counts(&a).total, info.chunk_blocks);
    world_close(&world);
    return info.chunk_blocks;
}

START_TEST(a_chunk_is_the_largest_power_of_two_that_every_limit_allows)
{
    ck_assert_uint_eq(chunk_of(&(struct core_params){.max_blocks = 1 << 20}, 0), 512);
    ck_assert_uint_eq(chunk_of(&(struct core_params){.max_blocks = 2047}, 0), 256);
    ck_assert_uint_eq(chunk_of(&(struct core_params){.max_blocks = 3}, 0), 1);
    ck_assert_uint_eq(chunk_of(&(struct core_params){.max_blocks = 1}, 0), 1);
    ck_assert_uint_eq(
        chunk_of(&(struct core_params){.max_blocks = 4096, .pool_limit_bytes = 51200}, 0), 16);
    ck_assert_uint_eq(
        chunk_of(&(struct core_params){.max_blocks = 4096, .pool_limit_bytes = 512}, 0), 1);
    ck_assert_uint_eq(chunk_of(&(struct core_params){.max_blocks = 4096}, 2304),
                      8); // one layer of a block: 256 bytes
}
END_TEST

START_TEST(a_block_larger_than_the_pool_is_refused_when_its_cache_is_opened)
{
    struct world world;
    struct worker a;
    struct core_cache_info info;
    world_open(&world, &(struct core_params){.pool_limit_bytes = 600});
    worker_open(&a, &world, 1, "");
    struct core_cache_identity identity = world_identity("large");
    identity.num_layers = 3;
    ck_assert_refused(core_cache_open(a.session, &identity, &info, &error), STATUS_LIMIT,
                      "--memory-fraction");
    identity.num_layers = CORE_MAX_LAYERS; // the product must not wrap to a small number
    identity.kv.num_kv_heads = identity.kv.head_dim_k = identity.kv.head_dim_v = UINT32_MAX;
    ck_assert_refused(core_cache_open(a.session, &identity, &info, &error), STATUS_LIMIT,
                      "--memory-fraction");
    identity = world_identity("layer");
    fake_engine_limit_allocation(world.engine, 255);
    ck_assert_refused(core_cache_open(a.session, &identity, &info, &error), STATUS_LIMIT, "255");
    world_check(&world);
    world_close(&world);
}
END_TEST

START_TEST(bytes_limit_the_pool_as_blocks_do)
{
    struct world world;
    struct worker a;
    world_open(&world, &(struct core_params){.pool_limit_bytes = 40ull * WORLD_BLOCK_BYTES,
                                             .max_blocks = 1000000});
    worker_open(&a, &world, 1, "");
    ck_assert_uint_eq(worker_counts(&a).limit, 40);
    worker_lease(&a, 40, blocks);
    ck_assert_uint_eq(totals(&world)[METRIC_POOL_BYTES], 40ull * WORLD_BLOCK_BYTES);
    ck_assert_status(worker_try_lease(&a, 1, blocks + 40, &error), STATUS_NO_BLOCKS);
    world_close(&world);
}
END_TEST

// ---- spare blocks, in chunks of 16 ----

static uint32_t asked_chunks(const struct world *world)
{
    struct fake_counts counts;
    fake_engine_counts(world->engine, &counts);
    return counts.asked_chunks;
}

START_TEST(a_cache_grows_ahead_of_need_when_it_is_opened_and_when_few_blocks_are_left)
{
    struct world world;
    struct worker a;
    bool growing;
    world_open(&world, &(struct core_params){.spare_blocks = 8});
    worker_open(&a, &world, 1, "");
    ck_assert_uint_eq(asked_chunks(&world), 1);
    world_step(&world);
    ck_assert_uint_eq(worker_counts(&a).free, 16);
    fake_engine_hold_chunks(world.engine, true);
    ck_assert_status(core_blocks_lease(a.session, NULL, a.cache, 8, blocks, &growing, &error),
                     STATUS_OK);
    ck_assert_uint_eq(asked_chunks(&world), 1); // 8 are left
    for (int i = 8; i < 16; i++) // none of these waits, and one chunk is asked for once
        ck_assert_status(
            core_blocks_lease(a.session, NULL, a.cache, 1, blocks + i, &growing, &error),
            STATUS_OK);
    ck_assert_uint_eq(asked_chunks(&world), 2);
    ck_assert(fake_engine_give_chunk(world.engine));
    world_step(&world);
    ck_assert_uint_eq(worker_counts(&a).free, 16);
    world_check(&world);
    world_close(&world);
}
END_TEST

START_TEST(a_cache_grows_ahead_up_to_the_pools_limit_and_gives_what_it_has_ahead_to_others)
{
    struct world world;
    struct worker a, b;
    world_open(&world, &(struct core_params){.spare_blocks = 1000});
    worker_open(&a, &world, 1, "");
    world_step(&world);
    ck_assert_uint_eq(worker_counts(&a).free, 64);
    worker_open(&b, &world, 1, "");
    b.cache = worker_open_cache(&b, "other");
    world_step(&world);
    ck_assert_uint_eq(worker_counts(&b).total, 0);
    worker_lease(&b, 20, blocks);
    ck_assert_uint_eq(worker_counts(&a).total, 32);
    worker_lease(&a, 1, blocks + 32); // does not take them back
    world_step(&world);
    ck_assert_uint_eq(worker_counts(&b).total, 32);
    ck_assert_uint_eq(totals(&world)[METRIC_POOL_BLOCKS], 64);
    world_check(&world);
    world_close(&world);
}
END_TEST

static void publish_some(struct worker *worker, uint32_t count, int32_t first)
{
    int32_t ids[64], tokens[64 * WORLD_BLOCK];
    count_tokens(tokens, count * WORLD_BLOCK, first);
    worker_lease(worker, count, ids);
    worker_write(worker, ids, tokens, count * WORLD_BLOCK);
    worker_publish(worker, tokens, count * WORLD_BLOCK, ids);
    worker_release(worker, ids, count);
}

START_TEST(nothing_is_evicted_so_that_a_cache_has_spare_blocks)
{
    struct world world;
    struct worker a, b;
    world_open(&world, &(struct core_params){.spare_blocks = 16});
    fake_engine_automatic(world.engine, true);
    worker_open(&a, &world, 1, "");
    publish_some(&a, 60, 100);
    ck_assert_uint_eq(worker_counts(&a).cached, 60);
    worker_open(&b, &world, 1, "");
    b.cache = worker_open_cache(&b, "other");
    worker_lease(&a, 4, blocks);
    world_step(&world);
    ck_assert_uint_eq(worker_counts(&a).cached, 60);
    ck_assert_uint_eq(worker_counts(&a).free, 0);
    ck_assert_uint_eq(totals(&world)[METRIC_EVICTIONS], 0);
    world_check(&world);
    world_close(&world);
}
END_TEST

START_TEST(memory_that_the_device_refuses_ahead_of_need_is_not_asked_for_by_each_lease)
{
    struct world world;
    struct worker a;
    world_open(&world, &(struct core_params){.spare_blocks = 24});
    worker_open(&a, &world, 1, "");
    ck_assert_uint_eq(asked_chunks(&world), 2);
    fake_engine_refuse_chunks(world.engine, 1000);
    world_step(&world); // none of them comes
    fake_engine_refuse_chunks(world.engine, 0);
    worker_open_cache(&a, "kv"); // asks again
    world_step(&world);
    ck_assert_uint_eq(worker_counts(&a).free, 32);
    ck_assert_uint_eq(asked_chunks(&world), 4);
    fake_engine_refuse_chunks(world.engine, 1000);
    for (uint32_t i = 0; i < 32; i++) {
        worker_lease(&a, 1, blocks + i);
        world_step(&world);
    }
    ck_assert_uint_eq(asked_chunks(&world), 5);
    ck_assert_refused(worker_try_lease(&a, 1, blocks + 32, &error), STATUS_NO_BLOCKS,
                      "no memory for 8192 bytes more");
    ck_assert_uint_eq(asked_chunks(&world), 6); // a lease asks all the same
    world_check(&world);
    world_close(&world);
}
END_TEST

START_TEST(nothing_is_evicted_while_another_cache_grows_ahead)
{
    struct world world;
    struct worker a, b;
    bool growing;
    world_open(&world, &(struct core_params){.spare_blocks = 16, .max_blocks = 80});
    fake_engine_automatic(world.engine, true);
    worker_open(&a, &world, 1, "");
    worker_open(&b, &world, 1, "");
    b.cache = worker_open_cache(&b, "other");
    publish_some(&b, 30, 100);
    world_step(&world);
    ck_assert_uint_eq(worker_counts(&b).total, 48);
    fake_engine_hold_chunks(world.engine, true);
    worker_lease(&a, 1, blocks); // leaves few, so its cache asks for the pool's last chunk
    ck_assert_refused(core_blocks_lease(b.session, NULL, b.cache, 20, blocks, &growing, &error),
                      STATUS_NO_BLOCKS, "");
    ck_assert(growing);
    ck_assert(fake_engine_give_chunk(world.engine));
    fake_engine_hold_chunks(world.engine, false);
    world_step(&world);
    worker_lease(&b, 20, blocks);
    ck_assert_uint_eq(worker_counts(&a).total, 16);
    ck_assert_uint_eq(totals(&world)[METRIC_EVICTIONS], 0);
    world_check(&world);
    world_close(&world);
}
END_TEST

START_TEST(a_lease_waits_for_what_another_cache_will_have_ahead)
{
    struct world world;
    struct worker a, b;
    bool growing;
    world_open(&world, &(struct core_params){.spare_blocks = 1000});
    fake_engine_hold_chunks(world.engine, true);
    worker_open(&a, &world, 1, ""); // its cache asks for the whole pool
    worker_open(&b, &world, 1, "");
    b.cache = worker_open_cache(&b, "other");
    world_step(&world);
    ck_assert_refused(core_blocks_lease(b.session, NULL, b.cache, 20, blocks, &growing, &error),
                      STATUS_NO_BLOCKS, "could get 0 now");
    ck_assert(growing);
    fake_engine_hold_chunks(world.engine, false);
    while (fake_engine_give_chunk(world.engine))
        world_step(&world);
    worker_lease(&b, 20, blocks);
    ck_assert_uint_eq(worker_counts(&a).total, 32);
    world_check(&world);
    world_close(&world);
}
END_TEST

// ---- several caches ----

START_TEST(wholly_free_chunks_of_another_cache_are_given_back_for_a_lease)
{
    struct world world;
    struct worker a, b;
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
    worker_open(&b, &world, 1, "");
    b.cache = worker_open_cache(&b, "other");
    worker_lease(&a, 64, blocks);
    worker_release(&a, blocks + 1, 63);
    ck_assert_uint_eq(worker_counts(&b).available, 48);
    worker_lease(&b, 48, blocks + 100);
    ck_assert_uint_eq(worker_counts(&a).total, 16);
    ck_assert_uint_eq(totals(&world)[METRIC_POOL_BLOCKS], 64);
    ck_assert_status(worker_try_lease(&b, 1, blocks + 200, &error), STATUS_NO_BLOCKS);
    world_check(&world);
    worker_release(&b, blocks + 100, 48); // and back again
    worker_lease(&a, 60 - 1, blocks + 200);
    ck_assert_uint_eq(worker_counts(&b).total, 0);
    ck_assert_int_eq((int)worker_block(&b, 0).state, CORE_ABSENT);
    world_check(&world);
    world_close(&world);
}
END_TEST

START_TEST(a_cache_that_nobody_has_open_lives_by_its_cached_blocks_until_memory_is_short)
{
    struct world world;
    struct worker a, b;
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
    uint64_t kv = a.cache, first, second;
    first = a.cache = worker_open_cache(&a, "first");
    publish_some(&a, 16, 100);
    ck_assert_status(core_cache_close(a.session, first, &error), STATUS_OK);
    second = a.cache = worker_open_cache(&a, "second");
    publish_some(&a, 16, 100);
    ck_assert_status(core_cache_close(a.session, second, &error), STATUS_OK);
    ck_assert_uint_eq(core_num_caches(world.core), 3);
    a.cache = kv;
    ck_assert_uint_eq(worker_counts(&a).available, 64);
    worker_lease(&a, 33, blocks); // one chunk more than is free: the cache that was closed first is
                                  // freed
    uint32_t ids;
    ck_assert_status(core_cache_find(world.core, first, &ids, &error), STATUS_NOT_FOUND);
    ck_assert_status(core_cache_find(world.core, second, &ids, &error), STATUS_OK);
    ck_assert_uint_eq(totals(&world)[METRIC_EVICTIONS], 16);
    world_check(&world);
    worker_open(&b, &world, 1, "");
    b.cache = worker_open_cache(&b, "second"); // it still exists, with its prefix
    ck_assert_uint_eq(b.cache, second);
    int32_t tokens[128];
    count_tokens(tokens, 128, 100);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 128, blocks + 100), 16);
    world_close(&world);
}
END_TEST

START_TEST(a_cache_is_dropped_only_when_nobody_has_it_open)
{
    struct world world;
    struct worker a;
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
    uint64_t kv = a.cache, other = a.cache = worker_open_cache(&a, "other");
    publish_some(&a, 16, 100);
    ck_assert_refused(core_cache_drop(world.core, other, &error), STATUS_BUSY,
                      "\"other\" is open in 1 session");
    ck_assert_status(core_cache_close(a.session, other, &error), STATUS_OK);
    uint64_t bytes = totals(&world)[METRIC_POOL_BYTES];
    ck_assert_status(core_cache_drop(world.core, other, &error), STATUS_OK);
    world_check(&world);
    ck_assert_uint_eq(core_num_caches(world.core), 1);
    ck_assert_uint_lt(totals(&world)[METRIC_POOL_BYTES], bytes);
    ck_assert_uint_eq(totals(&world)[METRIC_EVICTIONS], 0);
    ck_assert_refused(core_cache_drop(world.core, other, &error), STATUS_NOT_FOUND,
                      "there is no cache");
    a.cache = kv;
    worker_lease(&a, 16, blocks);
    ck_assert_refused(core_cache_drop(world.core, kv, &error), STATUS_BUSY, "is open in 1 session");
    world_close(&world);
}
END_TEST

START_TEST(a_cache_is_not_dropped_under_work_that_is_not_done)
{
    struct world world;
    struct worker a;
    uint32_t ids;
    int32_t tokens[WORLD_BLOCK];
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
    uint64_t kv = a.cache, other = a.cache = worker_open_cache(&a, "other");
    publish_some(&a, 16, 100); // so that it stays
    worker_lease(&a, 1, blocks);
    count_tokens(tokens, WORLD_BLOCK, 1);
    uint64_t batch = worker_batch(&a, blocks, WORLD_BLOCK, WORLD_BLOCK);
    worker_run(&a, batch, 0, WORLD_BLOCK, tokens);
    ck_assert_status(core_batch_destroy(a.session, batch, &error), STATUS_OK);
    world_step(&world);
    ck_assert_status(core_cache_close(a.session, other, &error), STATUS_OK);
    ck_assert_refused(core_cache_drop(world.core, other, &error), STATUS_BUSY,
                      "\"other\" is not done yet");
    world_check(&world);
    a.cache = kv;
    world_finish_all(&world);
    ck_assert_status(core_cache_find(world.core, other, &ids, &error), STATUS_OK);
    ck_assert_status(core_cache_drop(world.core, other, &error), STATUS_OK);
    world_check(&world);
    world_close(&world);
}
END_TEST

START_TEST(a_cache_that_keeps_nothing_ends_with_its_last_close)
{
    struct world world;
    struct worker a, b;
    uint32_t ids;
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
    worker_open(&b, &world, 1, "");
    ck_assert_uint_eq(worker_open_cache(&a, "kv"), a.cache); // opened twice by a
    worker_lease(&a, 5, blocks);
    ck_assert_status(core_cache_close(a.session, a.cache, &error), STATUS_OK);
    ck_assert_uint_eq(worker_counts(&a).leased, 5);
    ck_assert_status(core_cache_close(a.session, a.cache, &error), STATUS_OK);
    ck_assert_uint_eq(worker_counts(&b).leased, 0);
    ck_assert_refused(core_cache_close(a.session, a.cache, &error), STATUS_NOT_FOUND, "not open");
    ck_assert_status(core_cache_close(b.session, b.cache, &error), STATUS_OK);
    ck_assert_status(core_cache_find(world.core, a.cache, &ids, &error), STATUS_NOT_FOUND);
    ck_assert_uint_eq(totals(&world)[METRIC_POOL_BYTES], 0);
    world_close(&world);
}
END_TEST

START_TEST(another_identity_is_refused_with_both_values)
{
    struct world world;
    struct worker a;
    struct core_cache_info info;
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
#define REFUSED(field, value, text)                                                                \
    do {                                                                                           \
        struct core_cache_identity identity = world_identity("kv");                                \
        identity.field = value;                                                                    \
        ck_assert_refused(core_cache_open(a.session, &identity, &info, &error), STATUS_MISMATCH,   \
                          text);                                                                   \
    } while (0)
    REFUSED(num_layers, 3, "num_layers 2, not 3");
    REFUSED(kv.num_kv_heads, 4, "num_kv_heads 1, not 4");
    REFUSED(kv.head_dim_k, 16, "head_dim_k 8, not 16");
    REFUSED(kv.head_dim_v, 16, "head_dim_v 8, not 16");
    REFUSED(kv.v_is_k_prefix, true, "v_is_k_prefix 0, not 1");
    REFUSED(kv.k_dtype, DTYPE_F32, "k_dtype f16, not f32");
    REFUSED(kv.v_dtype, DTYPE_F32, "v_dtype f16, not f32");
    REFUSED(kv.scale_mode, 1, "scale_mode 0, not 1");
    REFUSED(kv.block_size, 16, "block_size 8, not 16");
    const uint8_t print[] = {0xab, 0x01};
    struct core_cache_identity identity = world_identity("kv");
    identity.fingerprint = print;
    identity.fingerprint_size = 2;
    ck_assert_refused(core_cache_open(a.session, &identity, &info, &error), STATUS_MISMATCH,
                      "none, not ab01");
    world_close(&world);
}
END_TEST

START_TEST(a_cache_that_cannot_be_is_refused)
{
    struct world world;
    struct worker a;
    struct core_cache_info info;
    char name[257];
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
#define UNFIT(field, value, status, text)                                                          \
    do {                                                                                           \
        struct core_cache_identity identity = world_identity("unfit");                             \
        identity.field = value;                                                                    \
        ck_assert_refused(core_cache_open(a.session, &identity, &info, &error), status, text);     \
    } while (0)
    memset(name, 'x', 256);
    name[256] = 0;
    UNFIT(name, "", STATUS_INVALID, "0 bytes");
    UNFIT(name, name, STATUS_INVALID, "256 bytes");
    UNFIT(num_layers, 0, STATUS_INVALID, "num_layers is 0");
    UNFIT(num_layers, 1025, STATUS_LIMIT, "num_layers is 1025; a cache has at most 1024");
    UNFIT(num_layers, UINT32_MAX, STATUS_LIMIT, "num_layers is 4294967295");
    UNFIT(kv.num_kv_heads, 0, STATUS_INVALID, "num_kv_heads 0");
    UNFIT(kv.head_dim_v, 0, STATUS_INVALID, "head_dim_v 0");
    UNFIT(kv.block_size, 12, STATUS_UNSUPPORTED, "block_size 12");
    UNFIT(kv.block_size, 4, STATUS_UNSUPPORTED, "block_size 4");
    UNFIT(kv.block_size, 512, STATUS_UNSUPPORTED, "block_size 512");
    UNFIT(kv.head_dim_k, 12, STATUS_UNSUPPORTED, "head_dim 12");
    UNFIT(kv.k_dtype, 0, STATUS_UNSUPPORTED, "unknown");
    UNFIT(kv.scale_mode, SCALE_PER_TOKEN_HEAD, STATUS_UNSUPPORTED,
          "scale_mode 2"); // with f16: the engine's error
    UNFIT(fingerprint_size, 65, STATUS_INVALID, "65 bytes");
    ck_assert_uint_eq(core_num_caches(world.core), 1);
    world_close(&world);
}
END_TEST

START_TEST(too_many_caches_are_a_limit_unless_one_of_them_is_unused)
{
    struct world world;
    struct worker a;
    struct core_cache_info info;
    world_open(&world, &(struct core_params){.max_caches = 3});
    worker_open(&a, &world, 1, "");
    uint64_t second = worker_open_cache(&a, "second");
    uint64_t third = a.cache = worker_open_cache(&a, "third");
    struct core_cache_identity identity = world_identity("fourth");
    ck_assert_refused(core_cache_open(a.session, &identity, &info, &error), STATUS_LIMIT,
                      "--max-caches");
    publish_some(&a, 2, 0);
    ck_assert_status(core_cache_close(a.session, third, &error), STATUS_OK);
    ck_assert_uint_eq(core_num_caches(world.core), 3); // its cached blocks keep it
    fake_engine_limit_allocation(world.engine, 255);
    ck_assert_refused(core_cache_open(a.session, &identity, &info, &error), STATUS_LIMIT, "255");
    ck_assert_uint_eq(totals(&world)[METRIC_EVICTIONS], 0); // a refused lease evicts nothing
    ck_assert_uint_eq(totals(&world)[METRIC_BLOCKS_CACHED], 2);
    world_check(&world);
    fake_engine_limit_allocation(world.engine, UINT64_C(1) << 32);
    ck_assert_status(core_cache_open(a.session, &identity, &info, &error), STATUS_OK);
    ck_assert_uint_eq(totals(&world)[METRIC_EVICTIONS], 2);
    struct core_cache_view view;
    ck_assert(core_cache_at(world.core, 1, &view));
    ck_assert_uint_eq(view.cache, second);
    ck_assert(core_cache_at(world.core, 2, &view));
    ck_assert_str_eq(view.name, "fourth");
    ck_assert(!core_cache_at(world.core, 3, &view));
    world_check(&world);
    world_close(&world);
}
END_TEST

START_TEST(too_many_sessions_are_a_limit_that_names_its_option)
{
    struct world world;
    struct worker a, b;
    struct core_session *session;
    world_open(&world, &(struct core_params){.max_sessions = 2});
    worker_open(&a, &world, 1, "");
    worker_open(&b, &world, 1, "");
    ck_assert_refused(
        core_session_open(world.core, &(struct core_session_params){.id = 9}, &session, &error),
        STATUS_LIMIT, "--max-sessions");
    worker_close(&a, false);
    ck_assert(a.gone);
    worker_open(&a, &world, 1, "");
    world_close(&world);
}
END_TEST

START_TEST(a_chunk_that_arrives_after_its_cache_has_ended_is_not_missed)
{
    struct world world;
    struct worker a;
    bool growing;
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
    fake_engine_hold_chunks(world.engine, true);
    ck_assert_status(core_blocks_lease(a.session, NULL, a.cache, 40, blocks, &growing, &error),
                     STATUS_NO_BLOCKS);
    ck_assert_uint_eq(totals(&world)[METRIC_POOL_BYTES], 48ull * WORLD_BLOCK_BYTES);
    ck_assert_uint_eq(totals(&world)[METRIC_POOL_BLOCKS], 0); // none of them has come
    worker_close(&a, true);
    ck_assert_uint_eq(totals(&world)[METRIC_POOL_BYTES], 0);
    while (fake_engine_give_chunk(world.engine))
        world_step(&world);
    world_check(&world);
    world_close(&world);
}
END_TEST

START_TEST(limits_of_zero_are_refused)
{
    struct engine *engine = fake_engine_create();
    struct core_params params = {
        .engine = engine, .max_sessions = 1, .max_caches = 1, .max_batches = 1};
    struct core *core;
    ck_assert_refused(core_create(&params, &core, &error), STATUS_INVALID, "--max-tickets");
    ck_assert_ptr_null(core);
    core_destroy(NULL);
    engine_destroy(engine);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pool");
    TCase *growth = tcase_create("growth"), *sizes = tcase_create("sizes"),
          *caches = tcase_create("caches");
    tcase_add_test(growth, a_pool_of_2048_grows_from_one_chunk_of_512_to_three_for_1500_blocks);
    tcase_add_test(growth, lease_hands_out_each_block_once);
    tcase_add_test(growth, a_thousand_leases_and_releases_leave_nothing_behind);
    tcase_add_test(growth, a_thousand_cycles_that_free_even_blocks_and_then_odd_ones_lose_none);
    tcase_add_test(growth, freed_blocks_of_the_lowest_chunk_go_out_first_so_that_high_chunks_empty);
    tcase_add_test(growth, a_lease_says_that_a_chunk_is_on_its_way_and_changes_nothing_meanwhile);
    tcase_add_test(growth,
                   a_refused_growth_is_told_with_its_bytes_and_not_asked_for_again_and_again);
    tcase_add_test(growth, a_refused_growth_is_tried_again_after_many_wishes);
    tcase_add_test(growth,
                   a_growth_that_cannot_be_asked_for_is_no_memory_and_the_next_lease_asks_again);
    tcase_add_test(growth, more_than_the_pool_can_ever_hold_is_a_limit_that_names_its_option);
    tcase_add_test(growth, two_sessions_cannot_have_more_than_the_pool_together);
    tcase_add_test(growth,
                   a_cache_grows_ahead_of_need_when_it_is_opened_and_when_few_blocks_are_left);
    tcase_add_test(growth,
                   a_cache_grows_ahead_up_to_the_pools_limit_and_gives_what_it_has_ahead_to_others);
    tcase_add_test(growth, nothing_is_evicted_so_that_a_cache_has_spare_blocks);
    tcase_add_test(growth,
                   memory_that_the_device_refuses_ahead_of_need_is_not_asked_for_by_each_lease);
    tcase_add_test(growth, nothing_is_evicted_while_another_cache_grows_ahead);
    tcase_add_test(growth, a_lease_waits_for_what_another_cache_will_have_ahead);
    tcase_add_test(sizes, a_chunk_is_the_largest_power_of_two_that_every_limit_allows);
    tcase_add_test(sizes, a_block_larger_than_the_pool_is_refused_when_its_cache_is_opened);
    tcase_add_test(sizes, bytes_limit_the_pool_as_blocks_do);
    tcase_add_test(caches, wholly_free_chunks_of_another_cache_are_given_back_for_a_lease);
    tcase_add_test(caches,
                   a_cache_that_nobody_has_open_lives_by_its_cached_blocks_until_memory_is_short);
    tcase_add_test(caches, a_cache_is_dropped_only_when_nobody_has_it_open);
    tcase_add_test(caches, a_cache_is_not_dropped_under_work_that_is_not_done);
    tcase_add_test(caches, a_cache_that_keeps_nothing_ends_with_its_last_close);
    tcase_add_test(caches, another_identity_is_refused_with_both_values);
    tcase_add_test(caches, a_cache_that_cannot_be_is_refused);
    tcase_add_test(caches, too_many_caches_are_a_limit_unless_one_of_them_is_unused);
    tcase_add_test(caches, too_many_sessions_are_a_limit_that_names_its_option);
    tcase_add_test(caches, a_chunk_that_arrives_after_its_cache_has_ended_is_not_missed);
    tcase_add_test(caches, limits_of_zero_are_refused);
    suite_add_tcase(suite, growth);
    suite_add_tcase(suite, sizes);
    suite_add_tcase(suite, caches);
    return check_main(suite);
}
