// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_core_tenants.c - a block that moves to another tenant is zeroed before use: when, in which
// slices, and after refused submissions and freed memory.

#include "core/state.h"
#include "rigs/check_main.h"
#include "rigs/ownership_world.h"

START_TEST(a_block_that_changes_its_tenant_is_zeroed_before_anything_else_runs)
{
    worker_open(&c, &world, 1, "other");
    worker_lease(&a, 64, blocks);
    worker_write(&a, blocks, tokens, 64 * 8);
    worker_release(&a, blocks, 64);
    worker_lease(&b, 1, found); // the same salt
    worker_run(&b, worker_batch(&b, found, 4, 4), 0, 4, tokens);
    world_step(&world);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_zeroes, 0);
    worker_lease(&c, 2, found + 1);
    ck_assert_int_ne(fake_engine_slot(core_engine_cache(world.core, a.cache), 1, found[1], 7), 0);
    uint64_t batch = worker_batch(&c, found + 1, 4, 4);
    worker_run(&c, batch, 0, 4, tokens);
    fake_engine_finish(world.engine); // the submission of b, so that there is room for two
    world_step(&world);
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
    world_step(&world);
    ck_assert_uint_eq(fake_engine_oldest(world.engine)->num_zeroes, 2);
}
END_TEST

// Two sessions of different users have the cache "deep" open. 64 of its blocks are as many zeroes
// as one submission takes.
static void open_deep(void)
{
    struct core_cache_identity identity = world_identity("deep");
    struct core_cache_info info;
    identity.num_layers = CORE_MAX_LAYERS;
    world.core->pool.limit_blocks = 256;
    worker_open(&c, &world, 2, "");
    ck_assert_status(core_cache_open(a.session, &identity, &info, &error), STATUS_OK);
    ck_assert_status(core_cache_open(c.session, &identity, &info, &error), STATUS_OK);
    a.cache = c.cache = info.cache;
}

START_TEST(many_blocks_are_zeroed_in_slices_before_any_run_goes)
{
    open_deep();
    worker_lease(&a, 160, blocks);
    worker_release(&a, blocks, 160);
    worker_lease(&c, 160, blocks);
    uint64_t ticket = worker_run(&c, worker_batch(&c, blocks, 4, 4), 0, 4, tokens);
    world_step(&world);
    const uint32_t zeroes[] = {64, 64, 32};
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(fake_engine_oldest(world.engine)->num_zeroes, zeroes[i]);
        ck_assert_uint_eq(fake_engine_oldest(world.engine)->num_runs, 0);
        ck_assert(fake_engine_finish(world.engine));
        world_step(&world);
        world_check(&world);
    }
    ck_assert_uint_eq(fake_engine_oldest(world.engine)->num_runs, 1);
    world_finish_all(&world);
    worker_reap(&c, ticket, STATUS_OK);
    for (int i = 0; i < 160; i++)
        ck_assert_int_eq(fake_engine_slot(core_engine_cache(world.core, c.cache),
                                          CORE_MAX_LAYERS - 1, blocks[i], 0),
                         0);
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
    world_step(&world); // one block, then the others
    ck_assert_uint_eq(fake_engine_oldest(world.engine)->num_zeroes, 1);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_zeroes, 2);
    world_finish_all(&world);
    worker_reap(&c, ticket, STATUS_OK);

    uint64_t batch = worker_batch(&c, blocks, 4, 4), ahead = worker_run(&c, batch, 0, 4, tokens);
    world_step(&world);
    worker_lease(&c, 1, blocks + 3);
    ticket = worker_run(&c, batch, 1, 4, tokens);
    fake_engine_refuse_submit(world.engine, STATUS_NO_MEMORY);
    world_step(&world); // waits for earlier submissions
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_runs, 1);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_zeroes, 0);
    ck_assert(fake_engine_finish(world.engine));
    world_step(&world);
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
    world_step(&world);
    worker_reap(&c, ticket, STATUS_NO_MEMORY);
    worker_run(&c, worker_batch(&c, found, 4, 4), 0, 4, tokens);
    world_step(&world);
    ck_assert_uint_eq(fake_engine_oldest(world.engine)->num_zeroes, 1);
    world_finish_all(&world);
    worker_close(&c, false);
    worker_lease(&b, 3, found); // needs zeroing again, but its chunk is freed first
    worker_release(&b, found, 3);
    worker_open(&c, &world, 2, "");
    c.cache = worker_open_cache(&c, "other");
    worker_lease(&c, 64, found);
    ck_assert_uint_eq(worker_counts(&a).total, 0);
    worker_run(&c, worker_batch(&c, found, 4, 4), 0, 4, tokens);
    world_step(&world);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_zeroes, 0);
    world_finish_all(&world);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("core tenants");
    check_case(suite, "tenants", open_two, close_all,
               (const TTest *const[]){
                   a_block_that_changes_its_tenant_is_zeroed_before_anything_else_runs,
                   many_blocks_are_zeroed_in_slices_before_any_run_goes,
                   a_refused_slice_of_zeroes_is_tried_again_smaller_or_later_and_no_run_fails,
                   zeroing_outlives_a_refused_submission_and_ends_with_the_memory, NULL},
               1);
    return check_main(suite);
}
