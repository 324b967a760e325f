// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_core_tickets.c - the result of a ticket and when it is there, how many tickets there may be,
// and what a lost device and the end of core do to work in flight.

#include "rigs/check_main.h"
#include "rigs/scheduler_world.h"

#include <string.h>

// ---- tickets ----

START_TEST(tickets_count_from_one_and_complete_in_order)
{
    ck_assert_uint_eq(run(&a, 0), 1);
    world_step(&world);
    ck_assert_uint_eq(run(&a, 1), 2);
    ck_assert_uint_eq(run(&b, 1), 1);
    ck_assert_int_eq((int)ask(&a, 1), STATUS_TIMEOUT);
    ck_assert_int_eq((int)ask(&a, 3), STATUS_NOT_FOUND);
    ck_assert_int_eq((int)ask(&a, 0), STATUS_NOT_FOUND);
    ck_assert(finish_one());
    ck_assert_int_eq((int)ask(&a, 2), STATUS_TIMEOUT);
    worker_reap(&a, 1, STATUS_OK);
    ck_assert_int_eq((int)ask(&a, 1), STATUS_NOT_FOUND);
    world_finish_all(&world);
    worker_reap(&a, 2, STATUS_OK);
    worker_reap(&b, 1, STATUS_OK);
}
END_TEST

START_TEST(a_run_that_fails_early_is_not_done_before_those_ahead_of_it)
{
    uint64_t first = run(&a, 0);
    world_step(&world);
    fake_engine_refuse_submit(world.engine, STATUS_NO_MEMORY);
    uint64_t second = run(&a, 1);
    world_step(&world);
    ck_assert_int_eq((int)ask(&a, second), STATUS_TIMEOUT);
    world_check(&world);
    world_finish_all(&world);
    worker_reap(&a, second, STATUS_NO_MEMORY);
    worker_reap(&a, first, STATUS_OK);
}
END_TEST

START_TEST(the_failure_of_one_run_leaves_the_others_of_its_submission_alone)
{
    occupy();
    uint64_t ta = run(&a, 1), tb = run(&b, 1), later = run(&a, 0);
    finish_one();
    struct fake_submission *s = fake_engine_newest(world.engine);
    s->runs[0].fail = STATUS_UNSUPPORTED;
    s->runs[0].why = "the device gave no 17 bytes";
    world_finish_all(&world);
    struct core_ticket_result bad;
    struct error why = {0};
    ck_assert_int_eq((int)core_ticket_reap(a.session, ta, &bad, &why), STATUS_OK);
    ck_assert_int_eq((int)bad.status, STATUS_UNSUPPORTED);
    ck_assert_int_eq((int)why.status, STATUS_UNSUPPORTED);
    ck_assert_str_eq(why.text, "the device gave no 17 bytes");
    const struct core_ticket_result good = worker_result(&b, tb);
    ck_assert_int_eq((int)good.status, STATUS_OK);
    ck_assert_uint_eq(good.num_runs, 1); // the failed run did not share the dispatch
    worker_reap(&a, later, STATUS_OK);
    const uint64_t *totals = core_metrics(world.core);
    ck_assert_uint_eq(totals[METRIC_RUNS_FAILED], 1);
}
END_TEST

START_TEST(unreaped_tickets_are_bounded_and_the_sentence_names_the_option)
{
    struct core_run_params params = worker_run_params(&a, batch_a, 0, 8, tokens);
    struct core_session_counts counts;
    uint64_t ticket;
    for (int i = 0; i < 64; i++)
        run(&a, 0);
    ck_assert_refused(core_run(a.session, &params, &ticket, &error), STATUS_BUSY, "64 tickets");
    ck_assert_refused(core_run(a.session, &params, &ticket, &error), STATUS_BUSY, "--max-tickets");
    world_finish_all(&world); // done, but not reaped
    ck_assert_refused(core_run(a.session, &params, &ticket, &error), STATUS_BUSY, "--max-tickets");
    worker_reap(&a, 40, STATUS_OK);
    ck_assert_uint_eq(run(&a, 0), 65);
    core_session_counts(a.session, &counts);
    ck_assert_uint_eq(counts.tickets_unreaped, 64);
    ck_assert_uint_eq(counts.runs_done, 64);
    ck_assert_uint_eq(counts.tokens_attended, 64ull * 64);
    run(&b, 0); // another session is not affected
}
END_TEST

// The session that has news; NULL: none. No other one has any.
static const struct worker *next_woken(void)
{
    const struct core_wait *first = core_next_ready(world.core);
    ck_assert_ptr_null(core_next_ready(world.core));
    return first == &a.wait ? &a : first == &b.wait ? &b : NULL;
}

START_TEST(a_session_is_woken_by_the_ends_of_its_own_runs_and_by_its_own_tickets)
{
    const uint64_t ticket = run(&a, 0);
    world_step(&world);
    run(&b, 0);
    world_step(&world);
    ck_assert_ptr_null(next_woken());
    finish_one();
    ck_assert_ptr_eq(next_woken(), &a);
    finish_one();
    ck_assert_ptr_eq(next_woken(), &b);
    ck_assert_ptr_null(next_woken());
    worker_reap(&a, ticket, STATUS_OK);
    ck_assert(world_step(&world));
    ck_assert_ptr_eq(next_woken(), &a);
    run(&a, 0);
    world_step(&world);
    finish_one();
    worker_close(&a, true); // while it is woken
    ck_assert_ptr_null(next_woken());
}
END_TEST

START_TEST(a_detached_ticket_counts_while_in_flight_and_vanishes_when_done)
{
    struct core_run_params params = worker_run_params(&a, batch_a, 0, 8, tokens);
    uint64_t ticket;
    params.entry.flags |= WIRE_RUN_DETACHED;
    for (int i = 0; i < 64; i++)
        ck_assert_status(core_run(a.session, &params, &ticket, &error), STATUS_OK);
    ck_assert_uint_eq(ticket, 64);
    ck_assert_status(core_run(a.session, &params, &ticket, &error), STATUS_BUSY);
    world_step(&world);
    fake_engine_oldest(world.engine)->runs[3].fail = STATUS_NO_MEMORY;
    world_finish_all(&world);
    struct core_session_counts counts;
    core_session_counts(a.session, &counts);
    const uint64_t *totals = core_metrics(world.core);
    ck_assert_uint_eq(counts.tickets_unreaped, 0);
    ck_assert_uint_eq(counts.runs_done, 63);
    ck_assert_uint_eq(totals[METRIC_RUNS_FAILED], 1);
    ck_assert_int_eq((int)ask(&a, 1), STATUS_NOT_FOUND);
    ck_assert_uint_eq(run(&a, 0), 65);
}
END_TEST

START_TEST(core_step_tells_once_that_something_was_done)
{
    world_step(&world);
    run(&a, 0);
    ck_assert(!world_step(&world));
    ck_assert(!core_idle(world.core));
    fake_engine_finish(world.engine);
    ck_assert(world_step(&world));
    ck_assert(!world_step(&world));
    ck_assert(core_idle(world.core));
}
END_TEST

// ---- the lost device ----

START_TEST(a_lost_device_fails_every_outstanding_run_and_every_later_call)
{
    uint64_t tickets[5], ticket;
    bool growing;
    int32_t block;
    struct core_cache_info info;
    struct core_session *session;
    struct core_cache_identity identity = world_identity("kv");
    for (int i = 0; i < 5; i++) {
        tickets[i] = run(&a, 0);
        world_step(&world);
    }
    run(&b, 0);
    worker_close(&b, true);
    ck_assert_int_eq((int)core_device_status(world.core), STATUS_OK);
    fake_engine_lose(world.engine, "it fell off the bus");
    ck_assert(world_step(&world));
    ck_assert_int_eq((int)core_device_status(world.core), STATUS_DEVICE_LOST);
    for (int i = 0; i < 5; i++)
        worker_reap(&a, tickets[i], STATUS_DEVICE_LOST);
    struct core_run_params params = worker_run_params(&a, batch_a, 0, 8, tokens);
    ck_assert_refused(core_run(a.session, &params, &ticket, &error), STATUS_DEVICE_LOST,
                      "fell off the bus");
    ck_assert_refused(core_blocks_lease(a.session, NULL, a.cache, 1, &block, &growing, &error),
                      STATUS_DEVICE_LOST, "lost");
    ck_assert_refused(core_cache_open(a.session, &identity, &info, &error), STATUS_DEVICE_LOST,
                      "lost");
    ck_assert_refused(
        core_session_open(world.core, &(struct core_session_params){.id = 9}, &session, &error),
        STATUS_DEVICE_LOST, "lost");
    ck_assert(core_idle(world.core));
    ck_assert(b.gone);
    worker_release(&a, blocks[0], 8); // releasing still works
}
END_TEST

START_TEST(a_submission_that_finds_the_device_lost_loses_it)
{
    run(&a, 0);
    run(&b, 0);
    fake_engine_refuse_submit(world.engine, STATUS_DEVICE_LOST);
    world_step(&world);
    worker_reap(&a, 1, STATUS_DEVICE_LOST);
    worker_reap(&b, 1, STATUS_DEVICE_LOST);
    ck_assert_int_eq((int)core_device_status(world.core), STATUS_DEVICE_LOST);
}
END_TEST

START_TEST(ending_the_core_waits_for_the_gpu_and_hands_every_arena_back)
{
    struct world brief;
    struct worker one, two;
    int32_t block[2];
    world_open(&brief, NULL);
    worker_open(&one, &brief, 1, "");
    worker_open(&two, &brief, 1, "");
    worker_lease(&one, 2, block);
    uint64_t batch = worker_batch(&one, block, 8, 8);
    for (int i = 0; i < 5; i++) {
        worker_run(&one, batch, 0, 8, tokens);
        world_step(&brief);
    }
    world_close(&brief);
    ck_assert_uint_eq(brief.gone, 2);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("core tickets");
    check_case(suite, "tickets", open_three, close_all,
               (const TTest *const[]){
                   tickets_count_from_one_and_complete_in_order,
                   a_run_that_fails_early_is_not_done_before_those_ahead_of_it,
                   the_failure_of_one_run_leaves_the_others_of_its_submission_alone,
                   unreaped_tickets_are_bounded_and_the_sentence_names_the_option,
                   a_session_is_woken_by_the_ends_of_its_own_runs_and_by_its_own_tickets,
                   a_detached_ticket_counts_while_in_flight_and_vanishes_when_done,
                   core_step_tells_once_that_something_was_done, NULL},
               1);
    check_case(
        suite, "lost device", open_three, close_all,
        (const TTest *const[]){a_lost_device_fails_every_outstanding_run_and_every_later_call,
                               a_submission_that_finds_the_device_lost_loses_it,
                               ending_the_core_waits_for_the_gpu_and_hands_every_arena_back, NULL},
        1);
    return check_main(suite);
}
