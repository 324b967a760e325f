// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_core_death.c - the blocks of a session that ends or dies, with and without work in flight,
// at each step of its life.

#include "rigs/check_main.h"
#include "rigs/ownership_world.h"

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
    const uint64_t *totals = core_metrics(world.core);
    ck_assert_uint_eq(totals[METRIC_SESSION_DEATHS], 1);
}
END_TEST

START_TEST(blocks_of_a_dead_session_with_work_in_flight_are_quarantined_until_it_has_passed)
{
    worker_lease(&a, 3, blocks);
    uint64_t batch = worker_batch(&a, blocks, 16, 16);
    worker_run(&a, batch, 0, 16, tokens);
    world_step(&world);
    worker_run(&a, batch, 1, 16, tokens);
    world_step(&world);
    worker_run(&a, batch, 1, 16,
               tokens); // two runs in flight; this one stays in the queue and never runs
    world_step(&world);
    worker_close(&a, true);
    ck_assert(!a.gone);
    ck_assert_state(blocks[0], CORE_QUARANTINED);
    ck_assert_state(blocks[1], CORE_QUARANTINED);
    ck_assert_state(blocks[2], CORE_FREE);
    world_check(&world);
    ck_assert(world_step(&world)); // blocks[2] became free
    fake_engine_finish(world.engine);
    ck_assert(!world_step(&world)); // nothing more yet
    ck_assert(!a.gone);
    ck_assert_state(blocks[0], CORE_QUARANTINED);
    world_check(&world);
    fake_engine_finish(world.engine);
    ck_assert(world_step(&world));
    ck_assert(a.gone);
    ck_assert_state(blocks[0], CORE_FREE);
    ck_assert(core_idle(world.core));
}
END_TEST

START_TEST(a_closed_session_keeps_its_blocks_leased_until_its_work_has_passed)
{
    worker_lease(&a, 1, blocks);
    worker_run(&a, worker_batch(&a, blocks, 8, 8), 0, 8, tokens);
    world_step(&world);
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
    world_step(&world);
    worker_close(&a, true);
    ck_assert_state(blocks[0], CORE_HELD);
    worker_release(&b, found, 1);
    ck_assert_state(blocks[0], CORE_QUARANTINED);
    // reading it changes nothing for others
    ck_assert_uint_eq(worker_lookup(&b, tokens, 8, found), 1);
    ck_assert_state(blocks[0], CORE_HELD);
    worker_release(&b, found, 1);
    world_finish_all(&world);
    ck_assert_state(blocks[0], CORE_CACHED);
}
END_TEST

// The steps of a worker's life; the test ends it after each step.
enum { LIFE = 14 };

static void live(uint32_t steps)
{
    uint64_t batch = 0, other = 0;
    for (uint32_t step = 0; step < steps; step++) {
        switch (step) {
        case 0: worker_lease(&a, 20, blocks); break;
        case 1: batch = worker_batch(&a, blocks, 24, 24); break;
        case 2: worker_run(&a, batch, 0, 24, tokens); break;
        case 3: world_step(&world); break;
        case 4: worker_run(&a, batch, 1, 24, tokens); break;
        case 5: worker_publish(&a, tokens, 24, blocks); break; // one layer in flight, one queued
        case 6: world_step(&world); break;
        case 7: other = worker_batch(&a, blocks + 3, 24, 24); break;
        case 8: worker_run(&a, other, 0, 24, tokens); break; // queued behind both
        case 9: ck_assert_status(core_batch_destroy(a.session, other, &error), STATUS_OK); break;
        case 10: worker_release(&a, blocks + 3, 10); break;
        case 11: fake_engine_finish(world.engine); break; // done, but not yet noticed
        case 12: world_step(&world); break;
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
    ck_assert_uint_eq(counts.free + counts.leased + counts.held + counts.cached +
                          counts.quarantined,
                      counts.total);
    for (world_step(&world); !core_idle(world.core); world_step(&world)) {
        ck_assert(!a.gone); // its arena is in use
        ck_assert(fake_engine_finish(world.engine));
        world_check(&world);
    }
    ck_assert(a.gone);
    counts = worker_counts(&b);
    ck_assert_uint_eq(counts.free + counts.cached, counts.total);
    ck_assert_uint_eq(counts.cached,
                      steps > 6 ? 3 : 0); // before that step, the second layer was never submitted
    ck_assert_uint_eq(worker_lookup(&b, tokens, 24, found), counts.cached);
    worker_release(&b, found, (uint32_t)counts.cached);
    worker_lease(&b, 64, found); // no block is lost
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("core death");
    check_case(suite, "death", open_two, close_all,
               (const TTest *const[]){
                   a_dead_session_gives_everything_back_at_once_if_nothing_is_in_flight,
                   blocks_of_a_dead_session_with_work_in_flight_are_quarantined_until_it_has_passed,
                   a_closed_session_keeps_its_blocks_leased_until_its_work_has_passed,
                   a_block_that_a_living_session_holds_too_is_not_quarantined, NULL},
               1);
    check_case(suite, "any step", open_two, close_all,
               (const TTest *const[]){a_worker_may_die_at_any_step, NULL}, 2 * (LIFE + 1));
    return check_main(suite);
}
