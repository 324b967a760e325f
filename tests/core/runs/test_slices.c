// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_slices.c - long runs that are cut into slices: what goes between them, what they do
// together, and their ends. Of three sessions, over an engine whose dispatches take 1000 ns.

#include "core/runs/speed.h"
#include "core/scheduler.h"
#include "core/state.h"
#include "rigs/check_main.h"
#include "rigs/scheduler_world.h"

#include <stdlib.h>

enum { ROWS = 64, KEYS = 8192 };

static uint64_t ticket;

// From now on a slice should take so long.
static void slice_by(double ns)
{
    world.core->params.slice_ns = 1;
    world.core->scheduler.speed.slice_ns = ns;
}

static void open_sliced(void)
{
    open_three();
    slice_by(100);
}

// a has a run of 885 ns by the estimate queued, b one of 6 ns, and the GPU is occupied. Returns
// b's ticket.
static uint64_t queue_both(void)
{
    const uint64_t large = make_reader(&a, blocks[0], ROWS, KEYS),
                   small = make_reader(&b, blocks[1], 1, 1);
    occupy();
    ticket = worker_run(&a, large, 0, ROWS, NULL);
    return worker_run(&b, small, 0, 1, NULL);
}

static const struct engine_run *newest(void)
{
    const struct fake_submission *s = fake_engine_newest(world.engine);
    return s ? &s->runs[s->num_runs - 1].run : NULL;
}

START_TEST(a_short_run_goes_between_the_slices_of_a_long_one)
{
    const uint64_t short_run = queue_both();
    finish_one();
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_runs, 1); // a's first slice alone
    ck_assert_uint_eq(newest()->num_slices, 9);
    finish_one();
    ck_assert_uint_eq(newest()->line, b.session->id);
    finish_one();
    finish_one();
    ck_assert_int_eq(ask(&b, short_run), STATUS_OK);
    ck_assert_int_eq(ask(&a, ticket), STATUS_TIMEOUT);
    world_check(&world);
    world_finish_all(&world);
    const struct core_ticket_result result = worker_result(&a, ticket);
    ck_assert_int_eq((int)result.status, STATUS_OK);
    ck_assert_uint_eq(result.gpu_ns, 9 * 1000);
    ck_assert_uint_eq(result.num_runs, 1);
    ck_assert_uint_eq(core_metrics(world.core)[METRIC_TOKENS_ATTENDED], ROWS * KEYS + 1 + 2 * 64);
}
END_TEST

START_TEST(a_session_whose_compile_ends_goes_on_with_the_slice_that_was_put_off)
{
    queue_both();
    for (int i = 0; i < 4; i++)
        finish_one();
    ck_assert_uint_eq(newest()->slice, 2);
    const uint32_t next = fake_engine_oldest(world.engine)->runs[0].run.slice;
    fake_engine_put_off(world.engine, a.session->id);
    while (finish_one())
        ;
    ck_assert_int_eq(ask(&a, ticket), STATUS_TIMEOUT);
    world_check(&world);
    fake_engine_compiled(world.engine);
    world_step(&world);
    ck_assert_uint_eq(fake_engine_oldest(world.engine)->runs[0].run.slice, next);
    ck_assert_uint_eq(newest()->slice, next + 1);
    world_finish_all(&world);
    ck_assert_int_eq(ask(&a, ticket), STATUS_OK);
}
END_TEST

START_TEST(a_slice_that_fails_ends_its_run_and_no_further_slice_is_done)
{
    queue_both();
    for (int i = 0; i < 4; i++)
        finish_one();
    fake_engine_oldest(world.engine)->runs[0].fail = STATUS_NO_MEMORY;
    finish_one();
    finish_one(); // the one in flight behind it
    ck_assert_ptr_null(newest());
    worker_reap(&a, ticket, STATUS_NO_MEMORY);
    ticket = run(&a, 0);
    world_finish_all(&world);
    ck_assert_int_eq(ask(&a, ticket), STATUS_OK);
}
END_TEST

START_TEST(a_session_that_ends_between_two_slices_leaves_nothing)
{
    queue_both();
    for (int i = 0; i < 4; i++)
        finish_one();
    core_session_close(a.session, true);
    a.session = NULL;
    world_check(&world);
    while (finish_one())
        ;
    world_check(&world);
    ck_assert(core_idle(world.core));
}
END_TEST

// ---- what slices do together ----

// Every slot of the blocks in both layers.
static void expect_slots(const int32_t *ids, uint32_t count, int32_t first)
{
    const struct engine_cache *cache = core_engine_cache(world.core, a.cache);
    for (uint32_t i = 0; i < count * WORLD_BLOCK; i++)
        for (uint32_t layer = 0; layer < WORLD_LAYERS; layer++)
            ck_assert_int_eq(fake_engine_slot(cache, layer, ids[i / WORLD_BLOCK], i % WORLD_BLOCK),
                             first + (int32_t)i);
}

// In so many links of so many kinds.
static void expect_links(uint32_t writes, uint32_t attends, uint32_t copies)
{
    uint32_t links[5] = {0};
    while (fake_engine_oldest(world.engine)) {
        const struct fake_submission *s = fake_engine_oldest(world.engine);
        for (uint32_t i = 0; i < s->num_runs; i++) {
            ck_assert(s->runs[i].run.kind != ENGINE_ATTEND || s->runs[i].run.is_written);
            links[s->runs[i].run.kind]++;
        }
        finish_one();
    }
    ck_assert_uint_eq(links[ENGINE_WRITE], writes);
    ck_assert_uint_eq(links[ENGINE_ATTEND], attends);
    ck_assert_uint_eq(links[ENGINE_COPY], copies);
}

// By the estimate, attention takes 11.1 ns, writing 2.6 ns and copying 0.34 ns. Nothing is learnt.
START_TEST(the_slices_of_a_run_write_and_copy_what_it_would_as_a_whole)
{
    int32_t to[2];
    worker_lease(&a, 2, to);
    slice_by(1);
    fake_engine_slow(world.engine, 0);
    struct core_run_params params = worker_run_params(&a, batch_a, 0, 8, tokens);
    params.layers.num_layers = WORLD_LAYERS;
    ticket = worker_queue(&a, &params);
    world_step(&world);
    expect_links(2 * 3, 2 * 12, 0);
    ck_assert_int_eq(ask(&a, ticket), STATUS_OK);
    expect_slots(blocks[0], 1, 1);
    ck_assert_status(core_blocks_copy(a.session, a.cache, blocks[0], to, 1, false, &ticket, &error),
                     STATUS_OK);
    world_step(&world);
    expect_links(0, 0, 1);
    slice_by(0.1);
    ck_assert_status(
        core_blocks_copy(a.session, a.cache, blocks[0], to + 1, 1, false, &ticket, &error),
        STATUS_OK);
    world_step(&world);
    expect_links(0, 0, 4);
    expect_slots(to, 1, 1);
    expect_slots(to + 1, 1, 1);
}
END_TEST

// ---- when nothing is cut ----

START_TEST(a_session_alone_on_a_gpu_has_its_runs_whole)
{
    const uint64_t large = make_reader(&a, blocks[0], ROWS, KEYS);
    slice_by(100);
    world.core->params.slice_ns = 0; // as in a daemon
    ticket = worker_run(&a, large, 0, ROWS, NULL);
    world_step(&world);
    ck_assert_uint_eq(newest()->num_slices, 9);
    world_finish_all(&world);
    worker_close(&b, false);
    worker_close(&c, false);
    ticket = worker_run(&a, large, 0, ROWS, NULL);
    world_step(&world);
    ck_assert_uint_eq(newest()->num_slices, 0);
    world_finish_all(&world);
}
END_TEST

// ---- what is learnt ----

START_TEST(the_time_of_each_kind_is_learnt_and_no_single_dispatch_changes_it_much)
{
    struct speed speed;
    speed_init(&speed, true, 0);
    const double before = speed_ns(&speed, SPEED_MERGE, 1000);
    const uint64_t work = SPEED_SLICE_NS_SOFTWARE;
    speed_learn(&speed, SPEED_GATHER, work, UINT64_C(1000) * work);
    ck_assert_double_eq(speed_ns(&speed, SPEED_GATHER, 1000), 2 * before); // with a compile
    for (int i = 0; i < 60; i++)
        speed_learn(&speed, SPEED_GATHER, work, work / 10);
    ck_assert_double_eq_tol(speed_ns(&speed, SPEED_GATHER, 1000), before / 10, before / 1000);
    speed_learn(&speed, SPEED_GATHER, 1, 1000); // too short to say anything
    speed_learn(&speed, SPEED_GATHER, work, 0); // no timestamps
    ck_assert_double_eq_tol(speed_ns(&speed, SPEED_GATHER, 1000), before / 10, before / 1000);
    ck_assert_double_eq(speed_ns(&speed, SPEED_MERGE, 1000), before);
    ck_assert_uint_eq(speed_slices(&speed, SPEED_MERGE, work + 1), 2);
    ck_assert_uint_eq(speed_slices(&speed, SPEED_MERGE, UINT64_MAX), SPEED_MOST_SLICES);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("slices");
    check_case(
        suite, "slices", open_sliced, close_all,
        (const TTest *const[]){a_short_run_goes_between_the_slices_of_a_long_one,
                               a_session_whose_compile_ends_goes_on_with_the_slice_that_was_put_off,
                               a_slice_that_fails_ends_its_run_and_no_further_slice_is_done,
                               a_session_that_ends_between_two_slices_leaves_nothing,
                               the_slices_of_a_run_write_and_copy_what_it_would_as_a_whole,
                               a_session_alone_on_a_gpu_has_its_runs_whole, NULL},
        1);
    check_case(suite, "speed", NULL, NULL,
               (const TTest *const[]){
                   the_time_of_each_kind_is_learnt_and_no_single_dispatch_changes_it_much, NULL},
               1);
    return check_main(suite);
}
