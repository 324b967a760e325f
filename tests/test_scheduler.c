// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_scheduler.c - which runs go into a submission, in which wave, whose turn it is, and what a ticket says and when. Also
// what a run's tensors must be.

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "check_main.h"
#include "core_world.h"
#include "scheduler.h"
#include "session.h"
#include "state.h"

static struct world world;
static struct worker a, b, c;
static int32_t blocks[3][8], tokens[64];
static uint64_t batch_a, batch_b, batch_c; // 8 new tokens of 8: 64 tokens attended a run

static void open_three(void)
{
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
    worker_open(&b, &world, 1, "");
    worker_open(&c, &world, 2, "x");
    count_tokens(tokens, 64, 1);
    worker_lease(&a, 8, blocks[0]);
    worker_lease(&b, 8, blocks[1]);
    worker_lease(&c, 8, blocks[2]);
    batch_a = worker_batch(&a, blocks[0], 8, 8);
    batch_b = worker_batch(&b, blocks[1], 8, 8);
    batch_c = worker_batch(&c, blocks[2], 8, 8);
}

static void close_all(void)
{
    world_check(&world);
    world_close(&world);
}

static uint64_t run(struct worker *worker, uint32_t layer)
{
    return worker_run(worker, worker == &a ? batch_a : worker == &b ? batch_b : batch_c, layer, 8, tokens);
}

static enum status ask(struct worker *worker, uint64_t ticket)
{
    struct core_ticket_result result;
    return core_ticket_reap(worker->session, ticket, &result, NULL);
}

static bool finish_one(void)
{
    bool finished = fake_engine_finish(world.engine);
    core_step(world.core);
    return finished;
}

// Occupies both places of the GPU with runs of c; the fixture's next submission then has all that was queued meanwhile.
static void occupy(void)
{
    for (int i = 0; i < SCHEDULER_MAX_IN_FLIGHT; i++) {
        struct core_run_params params = worker_run_params(&c, batch_c, 0, 8, tokens);
        uint64_t ticket;
        params.detached = true;
        ck_assert_status(core_run(c.session, &params, &ticket, &error), STATUS_OK);
        core_step(world.core);
    }
}

// ---- submissions and waves ----

START_TEST(runs_of_several_sessions_for_one_layer_share_one_dispatch)
{
    occupy();
    uint64_t ta = run(&a, 1), tb = run(&b, 1), tc = run(&c, 1);
    ck_assert(finish_one());
    const struct fake_submission *s = fake_engine_newest(world.engine);
    ck_assert_uint_eq(s->num_runs, 3);
    ck_assert_uint_eq(s->num_waves, 1);
    ck_assert_uint_eq(s->num_dispatches, 1);
    world_finish_all(&world);
    const struct core_ticket_result results[] = {worker_result(&a, ta), worker_result(&b, tb), worker_result(&c, tc)};
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq((int)results[i].status, STATUS_OK);
        ck_assert_uint_eq(results[i].num_runs, 3);
        ck_assert_uint_eq(results[i].num_sessions, 3);
        ck_assert_uint_eq(results[i].gpu_ns, 1000);
    }
    struct core_totals totals;
    core_totals(world.core, &totals);
    ck_assert_uint_eq(totals.max_sessions_per_dispatch, 3);
    ck_assert_uint_eq(totals.submissions, 3);
    ck_assert_uint_eq(totals.dispatches, 3);
    ck_assert_uint_eq(totals.runs_done, 5);
    ck_assert_uint_eq(totals.tokens_attended, 5ull * 64);
}
END_TEST

START_TEST(runs_of_a_session_that_write_one_layer_go_into_waves_in_their_order)
{
    occupy();
    for (int i = 0; i < 4; i++)
        run(&a, 1);
    for (int i = 0; i < 2; i++)
        run(&b, 1);
    finish_one();
    const struct fake_submission *s = fake_engine_newest(world.engine);
    ck_assert_uint_eq(s->num_runs, 6);
    ck_assert_uint_eq(s->num_waves, 4);
    ck_assert_uint_eq(s->num_dispatches, 4);
    ck_assert_uint_eq(s->runs[1].wave, 0);
    ck_assert_uint_eq(s->runs[3].wave, 1);
    ck_assert_uint_eq(s->runs[4].wave, 2);
    world_finish_all(&world);
}
END_TEST

START_TEST(different_layers_and_caches_do_not_share_a_dispatch)
{
    uint64_t second = worker_open_cache(&b, "second");
    b.cache = second;
    int32_t block;
    worker_lease(&b, 1, &block);
    uint64_t other = worker_batch(&b, &block, 8, 8);
    occupy();
    uint64_t ta = run(&a, 0), tb = worker_run(&b, other, 0, 8, tokens), tc = run(&c, 1);
    finish_one();
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_dispatches, 3);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_waves, 1);
    world_finish_all(&world);
    ck_assert_uint_eq(worker_result(&a, ta).num_runs, 1);
    ck_assert_uint_eq(worker_result(&b, tb).num_sessions, 1);
    ck_assert_uint_eq(worker_result(&c, tc).num_runs, 1);
}
END_TEST

START_TEST(a_ready_run_is_submitted_at_once_and_at_most_two_submissions_are_in_flight)
{
    struct fake_counts counts;
    for (uint32_t i = 0; i < 20; i++) {
        run(&a, 0);
        core_step(world.core);
        fake_engine_counts(world.engine, &counts);
        ck_assert_uint_eq(counts.unfinished, i < 1 ? 1 : 2);
    }
    ck_assert(finish_one());
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_runs, 18);
    world_finish_all(&world);
    fake_engine_counts(world.engine, &counts);
    ck_assert_uint_eq(counts.most_unfinished, SCHEDULER_MAX_IN_FLIGHT);
    ck_assert(core_idle(world.core));
}
END_TEST

// Eight queries of eight keys: 36 visible pairs, 8 * 512 keys of tiles begun, 7 rows of a tile beside them; 8 + 8 dims.
enum { CAUSAL_WORK = (36 + 8 * 512 + 7 * 512) * 16, FULL_WORK = CAUSAL_WORK + 28 * 16 };

START_TEST(a_run_of_too_much_work_is_refused_and_the_session_lives_on)
{
    struct world strict;
    struct worker worker;
    int32_t block;
    uint64_t ticket = 0;
    char numbers[128];
    world_open(&strict, &(struct core_params){.max_run_work = CAUSAL_WORK});
    worker_open(&worker, &strict, 1, "");
    worker_lease(&worker, 1, &block);
    struct core_run_params p = worker_run_params(&worker, worker_batch(&worker, &block, 8, 8), 0, 8, tokens);
    p.causal = false;
    snprintf(numbers, sizeof numbers, "%d multiply-adds; one run may take %d (--max-run-work)", FULL_WORK, CAUSAL_WORK);
    ck_assert_refused(core_run(worker.session, &p, &ticket, &error), STATUS_LIMIT, numbers);
    p.causal = true;
    p.num_heads = 2;
    p.out.offset = WORLD_ARENA / 2;
    p.out.token_stride = 2 * 16;
    ck_assert_refused(core_run(worker.session, &p, &ticket, &error), STATUS_LIMIT, "smaller chunks");
    p.num_heads = 1;
    ck_assert_status(core_run(worker.session, &p, &ticket, &error), STATUS_OK);
    world_finish_all(&strict);
    worker_reap(&worker, ticket, STATUS_OK);
    world_close(&strict);
}
END_TEST

// A table may name one block again and again: what counts is what the GPU has to do.
START_TEST(keys_count_as_often_as_they_are_named)
{
    static int32_t table[100000];
    static const int32_t cu[] = {0, 1000}, lens[] = {800000};
    struct world strict;
    struct worker worker;
    uint64_t batch, ticket;
    world_open(&strict, &(struct core_params){.max_run_work = 10000000000});
    worker_open(&worker, &strict, 1, "");
    worker_lease(&worker, 1, table);
    for (int i = 1; i < 100000; i++)
        table[i] = table[0];
    const struct core_batch_params params = sequences_over(worker.cache, 1, cu, lens, table, 100000);
    batch = worker_create(&worker, &params);
    struct core_run_params p = worker_run_params(&worker, batch, 0, 1000, NULL);
    ck_assert_refused(core_run(worker.session, &p, &ticket, &error), STATUS_LIMIT, "--max-run-work");
    p.windowed = true; // of which each query sees few
    p.window_left = 4096;
    p.window_right = -1;
    ck_assert_status(core_run(worker.session, &p, &ticket, &error), STATUS_OK);
    world_finish_all(&strict);
    world_close(&strict);
}
END_TEST

START_TEST(the_runs_of_a_submission_are_bounded_in_work_together)
{
    struct world strict;
    struct worker worker;
    int32_t block;
    uint64_t ticket;
    world_open(&strict, &(struct core_params){.max_run_work = 3 * CAUSAL_WORK});
    worker_open(&worker, &strict, 1, "");
    worker_lease(&worker, 1, &block);
    uint64_t batch = worker_batch(&worker, &block, 8, 8);
    for (int i = 0; i < 7; i++)
        ticket = worker_run(&worker, batch, 0, 8, tokens);
    core_step(strict.core);
    ck_assert_uint_eq(fake_engine_oldest(strict.engine)->num_runs, 3);
    ck_assert_uint_eq(fake_engine_newest(strict.engine)->num_runs, 3);
    world_finish_all(&strict);
    for (uint64_t i = ticket - 6; i <= ticket; i++)
        worker_reap(&worker, i, STATUS_OK);
    world_close(&strict);
}
END_TEST

START_TEST(tiny_runs_are_bounded_in_number)
{
    struct worker many[13];
    uint64_t batches[13];
    struct world large;
    const int32_t cu[] = {0, 0}, lens[] = {0};
    uint32_t made;
    world_open(&large, &(struct core_params){.max_tickets = 200});
    for (int i = 0; i < 13; i++) {
        worker_open(&many[i], &large, 1, "");
        const struct core_batch_params params = sequences_over(many[i].cache, 1, cu, lens, NULL, 0);
        ck_assert_status(core_batch_create(many[i].session, &params, &batches[i], &made, &error), STATUS_OK);
        for (int j = 0; j < 200; j++)
            worker_run(&many[i], batches[i], 0, 0, NULL);
    }
    core_step(large.core);
    ck_assert_uint_eq(fake_engine_oldest(large.engine)->num_runs, SCHEDULER_MAX_RUNS);
    world_finish_all(&large);
    world_close(&large);
}
END_TEST

// ---- fairness ----

// Runs of a and of b in all that is in flight.
static void count_runs(uint32_t *of_a, uint32_t *of_b)
{
    *of_a = *of_b = 0;
    for (const struct fake_submission *s = fake_engine_oldest(world.engine); s; s = s->next) {
        for (uint32_t i = 0; i < s->num_runs; i++) {
            *of_a += s->runs[i].arena == a.arena;
            *of_b += s->runs[i].arena == b.arena;
        }
    }
}

// A batch without writes that attends q_len * seq_len tokens: many queries over the same few blocks.
static uint64_t make_reader(struct worker *worker, const int32_t *ids, int32_t q_len, int32_t seq_len)
{
    const int32_t cu[] = {0, q_len}, lens[] = {seq_len};
    uint32_t max_blocks = ((uint32_t)seq_len + 7) / 8;
    int32_t *table = calloc(max_blocks, sizeof(*table));
    ck_assert_ptr_nonnull(table);
    for (uint32_t i = 0; i < max_blocks; i++)
        table[i] = ids[i % 8]; // the same block may stand several times
    const struct core_batch_params params = sequences_over(worker->cache, 1, cu, lens, table, max_blocks);
    uint64_t batch = worker_create(worker, &params);
    free(table);
    return batch;
}

START_TEST(sessions_are_served_alike_in_tokens_not_in_runs)
{
    uint64_t large = make_reader(&a, blocks[0], 64, 8192); // 2^19 tokens
    uint64_t small = make_reader(&b, blocks[1], 16, 4096); // 2^16
    uint32_t of_a, of_b;
    occupy();
    for (int i = 0; i < 64; i++) {
        worker_run(&a, large, 0, 64, NULL);
        worker_run(&b, small, 0, 16, NULL);
    }
    finish_one();
    finish_one();
    count_runs(&of_a, &of_b); // two budgets of 2^22 tokens, half of them each
    ck_assert_uint_ge(of_a, 7);
    ck_assert_uint_le(of_a, 9);
    ck_assert_uint_ge(of_b, 56);
    ck_assert_uint_le(of_b, 64);
    world_finish_all(&world);
}
END_TEST

START_TEST(a_big_run_does_not_let_its_session_go_again_before_the_others_had_theirs)
{
    uint64_t huge = make_reader(&a, blocks[0], 4096, 8192); // 2^25 tokens: more than a submission's budget
    uint64_t small = make_reader(&b, blocks[1], 1, 64);
    uint32_t of_a, of_b;
    occupy();
    worker_run(&a, huge, 0, 4096, NULL);
    worker_run(&a, huge, 0, 4096, NULL);
    for (int i = 0; i < 40; i++)
        worker_run(&b, small, 0, 1, NULL);
    finish_one(); // a's first run closes its submission
    const struct fake_submission *s = fake_engine_newest(world.engine);
    ck_assert_uint_eq(s->num_runs, 1);
    ck_assert_ptr_eq(s->runs[0].arena, a.arena);
    finish_one();
    s = fake_engine_newest(world.engine);
    ck_assert_uint_eq(s->num_runs, 41); // all of b, then a again
    finish_one();
    count_runs(&of_a, &of_b);
    ck_assert_uint_eq(of_b, 40);
    for (uint32_t i = 0; i < 40; i++)
        ck_assert_uint_eq(s->runs[i].wave, 0); // they read one cache and write different rows
    world_finish_all(&world);
}
END_TEST

START_TEST(a_slow_device_is_given_less_at_a_time_and_a_quick_one_more_again)
{
    uint64_t large = make_reader(&a, blocks[0], 64, 8192); // 2^19 tokens
    occupy();
    for (int i = 0; i < 40; i++)
        worker_run(&a, large, 0, 64, NULL);
    finish_one();
    finish_one();
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_runs, 8); // 2^22 tokens
    fake_engine_slow(world.engine, 8 * (uint64_t)SCHEDULER_TIME_NS);
    finish_one();
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_runs, 1); // an eighth of it
    finish_one();
    finish_one(); // one of 2^19 took as long
    fake_engine_slow(world.engine, 1000);
    for (uint64_t budget = 1 << 16; budget < SCHEDULER_BUDGET; budget *= 2) {
        ck_assert_uint_eq(world.core->scheduler.budget, budget);
        ck_assert(finish_one());
    }
    ck_assert_uint_eq(world.core->scheduler.budget, SCHEDULER_BUDGET);
    world_finish_all(&world);
}
END_TEST

START_TEST(small_work_says_nothing_about_how_much_is_too_much)
{
    occupy();
    fake_engine_slow(world.engine, SCHEDULER_TIME_NS / 2 - 1);
    finish_one();
    ck_assert_uint_eq(world.core->scheduler.budget, SCHEDULER_BUDGET);
    fake_engine_slow(world.engine, UINT64_MAX / 2);
    finish_one();
    ck_assert_uint_eq(world.core->scheduler.budget, SCHEDULER_QUANTUM); // never less
    world_finish_all(&world);
}
END_TEST

START_TEST(a_session_that_was_away_is_not_owed_what_it_did_not_ask_for)
{
    uint64_t reader_a = make_reader(&a, blocks[0], 64, 8192), reader_b = make_reader(&b, blocks[1], 64, 8192);
    uint32_t of_a, of_b;
    for (int i = 0; i < 30; i++) { // a alone: b was idle all the time
        worker_run(&a, reader_a, 0, 64, NULL);
        world_finish_all(&world);
    }
    occupy();
    for (int i = 0; i < 20; i++)
        worker_run(&b, reader_b, 0, 64, NULL);
    for (int i = 0; i < 20; i++)
        worker_run(&a, reader_a, 0, 64, NULL);
    finish_one();
    finish_one();
    count_runs(&of_a, &of_b);
    ck_assert_uint_eq(of_a + of_b, 16); // two budgets of eight runs
    ck_assert_uint_ge(of_a, 7);
    ck_assert_uint_ge(of_b, 7);
    world_finish_all(&world);
}
END_TEST

// ---- tickets ----

START_TEST(tickets_count_from_one_and_complete_in_order)
{
    ck_assert_uint_eq(run(&a, 0), 1);
    core_step(world.core);
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
    core_step(world.core);
    fake_engine_refuse_submit(world.engine, STATUS_NO_MEMORY);
    uint64_t second = run(&a, 1);
    core_step(world.core);
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
    ck_assert_uint_eq(good.num_runs, 1); // the failed one did not share the dispatch
    worker_reap(&a, later, STATUS_OK);
    struct core_totals totals;
    core_totals(world.core, &totals);
    ck_assert_uint_eq(totals.runs_failed, 1);
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
    run(&b, 0); // another session is not concerned
}
END_TEST

START_TEST(a_detached_ticket_counts_while_in_flight_and_vanishes_when_done)
{
    struct core_run_params params = worker_run_params(&a, batch_a, 0, 8, tokens);
    uint64_t ticket;
    params.detached = true;
    for (int i = 0; i < 64; i++)
        ck_assert_status(core_run(a.session, &params, &ticket, &error), STATUS_OK);
    ck_assert_uint_eq(ticket, 64);
    ck_assert_status(core_run(a.session, &params, &ticket, &error), STATUS_BUSY);
    core_step(world.core);
    fake_engine_oldest(world.engine)->runs[3].fail = STATUS_NO_MEMORY;
    world_finish_all(&world);
    struct core_session_counts counts;
    struct core_totals totals;
    core_session_counts(a.session, &counts);
    core_totals(world.core, &totals);
    ck_assert_uint_eq(counts.tickets_unreaped, 0);
    ck_assert_uint_eq(counts.runs_done, 63);
    ck_assert_uint_eq(totals.runs_failed, 1);
    ck_assert_int_eq((int)ask(&a, 1), STATUS_NOT_FOUND);
    ck_assert_uint_eq(run(&a, 0), 65);
}
END_TEST

START_TEST(core_step_tells_once_that_something_was_done)
{
    core_step(world.core);
    run(&a, 0);
    ck_assert(!core_step(world.core));
    ck_assert(!core_idle(world.core));
    fake_engine_finish(world.engine);
    ck_assert(core_step(world.core));
    ck_assert(!core_step(world.core));
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
        core_step(world.core);
    }
    run(&b, 0);
    worker_close(&b, true);
    ck_assert_int_eq((int)core_device_status(world.core), STATUS_OK);
    fake_engine_lose(world.engine, "it fell off the bus");
    ck_assert(core_step(world.core));
    ck_assert_int_eq((int)core_device_status(world.core), STATUS_DEVICE_LOST);
    for (int i = 0; i < 5; i++)
        worker_reap(&a, tickets[i], STATUS_DEVICE_LOST);
    struct core_run_params params = worker_run_params(&a, batch_a, 0, 8, tokens);
    ck_assert_refused(core_run(a.session, &params, &ticket, &error), STATUS_DEVICE_LOST, "fell off the bus");
    ck_assert_refused(core_blocks_lease(a.session, a.cache, 1, &block, &growing, &error), STATUS_DEVICE_LOST, "lost");
    ck_assert_refused(core_cache_open(a.session, &identity, &info, &error), STATUS_DEVICE_LOST, "lost");
    ck_assert_refused(core_session_open(world.core, &(struct core_session_params){.id = 9}, &session, &error),
                      STATUS_DEVICE_LOST, "lost");
    ck_assert(core_idle(world.core));
    ck_assert(b.gone);
    worker_release(&a, blocks[0], 8); // giving back still works
}
END_TEST

START_TEST(a_submission_that_finds_the_device_lost_loses_it)
{
    run(&a, 0);
    run(&b, 0);
    fake_engine_refuse_submit(world.engine, STATUS_DEVICE_LOST);
    core_step(world.core);
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
        core_step(brief.core);
    }
    world_close(&brief);
    ck_assert_uint_eq(brief.gone, 2);
}
END_TEST

// ---- tensors ----

#define REFUSED(change, status, text)                                                                                  \
    do {                                                                                                               \
        struct core_run_params p = worker_run_params(&a, batch_a, 0, 8, tokens);                                       \
        uint64_t none_ = 0;                                                                                            \
        p.q.offset = 0, p.k.offset = 4096, p.v.offset = 8192, p.out.offset = 16384;                                    \
        change;                                                                                                        \
        ck_assert_refused(core_run(a.session, &p, &none_, &error), status, text);                                      \
        ck_assert_uint_eq(none_, 0);                                                                                   \
    } while (0)

#define ACCEPTED(change)                                                                                               \
    do {                                                                                                               \
        struct core_run_params p = worker_run_params(&a, batch_a, 0, 8, tokens);                                       \
        uint64_t ticket_ = 0;                                                                                          \
        p.q.offset = 0, p.k.offset = 4096, p.v.offset = 8192, p.out.offset = 16384;                                    \
        change;                                                                                                        \
        ck_assert_status(core_run(a.session, &p, &ticket_, &error), STATUS_OK);                                        \
        world_finish_all(&world);                                                                                      \
        worker_reap(&a, ticket_, STATUS_OK);                                                                           \
    } while (0)

START_TEST(each_kind_of_bad_run_has_its_status_and_a_sentence_with_the_values)
{
    REFUSED(p.batch = 999, STATUS_NOT_FOUND, "no batch 999");
    REFUSED(p.batch = batch_b, STATUS_NOT_FOUND, "no batch"); // another session's
    REFUSED(p.layer = 2, STATUS_OUT_OF_RANGE, "layer 2 of a cache with 2");
    REFUSED(p.num_heads = 0, STATUS_INVALID, "num_heads 0");
    REFUSED(p.scale = NAN, STATUS_INVALID, "scale is");
    REFUSED(p.scale = INFINITY, STATUS_INVALID, "scale is inf");
    REFUSED(p.q.memory = 1, STATUS_UNSUPPORTED, "q lies in memory kind 1");
    REFUSED(p.k.dtype = DTYPE_F32, STATUS_MISMATCH, "k is f32, but out is f16");
    REFUSED(p.v.dtype = 99, STATUS_INVALID, "v has dtype 99");
    REFUSED(p.out.dtype = DTYPE_INT8, STATUS_UNSUPPORTED, "out is int8; it may be f32, f16 or bf16");
    REFUSED(p.q.offset = 8, STATUS_MISALIGNED, "offset 8");
    REFUSED(p.k.token_stride = 24, STATUS_MISALIGNED, "token stride 24");
    REFUSED(p.out.head_stride = 4, STATUS_MISALIGNED, "head stride 4");
    REFUSED(p.out.offset = WORLD_ARENA - 112, STATUS_OUT_OF_RANGE, "ends past the arena's 1048576");
    REFUSED(p.q.offset = UINT64_MAX - 15, STATUS_OUT_OF_RANGE, "q at 18446744073709551600");
    REFUSED(p.q.token_stride = UINT64_MAX - 15, STATUS_OUT_OF_RANGE, "q at 0");
    REFUSED(p.v.token_stride = (uint64_t)1 << 62, STATUS_OUT_OF_RANGE, "v at"); // times 4 it would wrap to 0
    REFUSED(p.out.token_stride = 0, STATUS_INVALID, "out's rows of 16 bytes overlap");
    REFUSED((p.num_heads = 2, p.out.head_stride = 0), STATUS_INVALID, "overlap");
    REFUSED((p.num_heads = 2, p.out.head_stride = 16, p.out.token_stride = 16), STATUS_INVALID, "overlap");
    REFUSED(p.out.offset = 112, STATUS_INVALID, "out at 112 overlaps q at 0");
    REFUSED(p.out = p.v, STATUS_INVALID, "out at 8192 overlaps v");
    ck_assert_uint_eq(run(&a, 0), 1); // the session lives on, and no ticket was used up
}
END_TEST

START_TEST(a_stride_beyond_what_the_engine_counts_is_refused)
{
    a.session->arena_size = UINT64_C(1) << 42; // of which nothing is touched
    fake_engine_widen_arena(a.arena, a.session->arena_size);
    const uint64_t most = (uint64_t)UINT32_MAX * 16;
    REFUSED(p.q.token_stride = most + 16, STATUS_OUT_OF_RANGE, "q has a stride of 68719476736 bytes");
    REFUSED((p.num_heads = 2, p.out.head_stride = most + 16), STATUS_OUT_OF_RANGE, "out has a stride of 68719476736");
    REFUSED((p.lse = (struct core_tensor){.dtype = DTYPE_F32, .offset = 20480, .token_stride = most}),
            STATUS_OUT_OF_RANGE, "lse has a stride of 68719476720 bytes; at most 17179869180");
    ACCEPTED(p.q.token_stride = most);
    ACCEPTED(p.q.head_stride = most + 16); // one head: its stride means nothing
}
END_TEST

START_TEST(heads_must_divide)
{
    struct core_cache_identity identity = world_identity("grouped");
    struct core_cache_info info;
    identity.kv.num_kv_heads = 4;
    ck_assert_status(core_cache_open(a.session, &identity, &info, &error), STATUS_OK);
    a.cache = info.cache;
    int32_t block;
    worker_lease(&a, 1, &block);
    uint64_t batch = worker_batch(&a, &block, 8, 8);
    REFUSED((p.batch = batch, p.num_heads = 6), STATUS_INVALID, "num_heads 6 is not a multiple of the cache's 4");
}
END_TEST

START_TEST(rows_may_lie_in_any_order_that_does_not_overlap)
{
    ACCEPTED(p.out.offset = WORLD_ARENA - 128);        // to the last byte
    ACCEPTED((p.q.token_stride = 0, p.num_heads = 1)); // one query for all: reading may overlap
    ACCEPTED((p.num_heads = 3, p.out.head_stride = 16, p.out.token_stride = 48));  // [tokens, heads]
    ACCEPTED((p.num_heads = 3, p.out.head_stride = 128, p.out.token_stride = 16)); // [heads, tokens]
    ACCEPTED(p.out.head_stride = 0);                                               // one head: its stride means nothing
}
END_TEST

START_TEST(slices_of_one_fused_tensor_interleave_without_overlapping)
{
    // [8 tokens][q 2 heads | k | v | out 2 heads], 16 bytes a head
    ACCEPTED((p.num_heads = 2, p.q.token_stride = p.k.token_stride = p.v.token_stride = p.out.token_stride = 96,
              p.q.offset = 0, p.k.offset = 32, p.v.offset = 48, p.out.offset = 64));
    // out one head too early: its first head is v
    REFUSED((p.num_heads = 2, p.q.token_stride = p.k.token_stride = p.v.token_stride = p.out.token_stride = 96,
             p.q.offset = 0, p.k.offset = 32, p.v.offset = 48, p.out.offset = 48),
            STATUS_INVALID, "overlaps v");
    // out behind a stride that reaches into the next token's q
    REFUSED((p.num_heads = 2, p.q.token_stride = p.k.token_stride = p.v.token_stride = p.out.token_stride = 96,
             p.q.offset = 0, p.k.offset = 32, p.v.offset = 48, p.out.offset = 80),
            STATUS_INVALID, "overlaps q");
    // other strides, but q is dense and out steps into it
    REFUSED((p.q.offset = 0, p.out.offset = 64, p.out.token_stride = 160), STATUS_INVALID, "overlaps q");
    // other strides: out lies in the gaps of q
    ACCEPTED((p.q.offset = 0, p.q.token_stride = 256, p.out.offset = 16, p.out.token_stride = 16));
    // without K/V writes, k and v are not looked at
    uint64_t reader = make_reader(&a, blocks[0], 8, 8);
    ACCEPTED((p.batch = reader, p.k = (struct core_tensor){.offset = UINT64_MAX}, p.v = p.out));
}
END_TEST

START_TEST(each_parameter_of_attention_has_its_range)
{
    const float plain[] = {1.0f}, none[] = {-INFINITY}, nan[] = {NAN}, inf[] = {INFINITY};
    REFUSED((p.windowed = true, p.window_left = -2), STATUS_INVALID, "window_left -2, window_right 0");
    REFUSED((p.windowed = true, p.window_right = INT32_MIN), STATUS_INVALID, "window_right -2147483648");
    REFUSED(p.soft_cap = -1, STATUS_INVALID, "logits_soft_cap is -1;");
    REFUSED(p.soft_cap = NAN, STATUS_INVALID, "logits_soft_cap is nan");
    REFUSED(p.soft_cap = INFINITY, STATUS_INVALID, "logits_soft_cap is inf");
    REFUSED(p.slopes = nan, STATUS_INVALID, "slopes[0] is nan");
    REFUSED(p.slopes = inf, STATUS_INVALID, "slopes[0] is inf");
    REFUSED(p.slopes = none, STATUS_INVALID, "slopes[0] is -inf");
    REFUSED(p.sinks = nan, STATUS_INVALID, "sinks[0] is nan");
    REFUSED(p.sinks = inf, STATUS_INVALID, "sinks[0] is inf");
    ACCEPTED((p.windowed = true, p.window_left = p.window_right = -1));
    ACCEPTED((p.windowed = true, p.window_left = p.window_right = INT32_MAX));
    ACCEPTED((p.slopes = plain, p.sinks = none, p.soft_cap = FLT_MIN));
    ACCEPTED((p.window_left = p.window_right = -9)); // not windowed: they mean nothing
}
END_TEST

static struct core_tensor lse_at(uint64_t offset, uint64_t token_stride, uint64_t head_stride)
{
    return (struct core_tensor){
        .dtype = DTYPE_F32, .offset = offset, .token_stride = token_stride, .head_stride = head_stride};
}

START_TEST(lse_is_an_output_of_its_own_type_and_place)
{
    REFUSED((p.lse = lse_at(20480, 16, 0), p.lse.dtype = DTYPE_F16), STATUS_MISMATCH, "lse is f16; it must be f32");
    REFUSED((p.lse = lse_at(20480, 16, 0), p.lse.dtype = 77), STATUS_INVALID, "lse has dtype 77");
    REFUSED((p.lse = lse_at(20480, 16, 0), p.lse.memory = 2), STATUS_UNSUPPORTED, "lse lies in memory kind 2");
    REFUSED(p.lse = lse_at(20482, 16, 0), STATUS_MISALIGNED, "lse has offset 20482");
    REFUSED(p.lse = lse_at(20480, 6, 0), STATUS_MISALIGNED, "outer stride 0: each must be a multiple of 4");
    REFUSED(p.lse = lse_at(20480, 16, 16), STATUS_INVALID, "lse has head stride 16");
    REFUSED(p.lse = lse_at(20480, 0, 4), STATUS_INVALID, "lse's rows of 4 bytes overlap");
    REFUSED((p.num_heads = 5, p.q.head_stride = 16, p.q.token_stride = p.out.token_stride = 80, p.out.head_stride = 16,
             p.lse = lse_at(20480, 16, 4)),
            STATUS_INVALID, "lse's rows of 20 bytes overlap");
    REFUSED(p.lse = lse_at(WORLD_ARENA - 112, 16, 4), STATUS_OUT_OF_RANGE, "lse at 1048464");
    REFUSED(p.lse = lse_at(0, (uint64_t)1 << 62, 4), STATUS_OUT_OF_RANGE, "lse at 0");
    REFUSED(p.lse = lse_at(64, 16, 4), STATUS_INVALID, "lse at 64 overlaps q at 0");
    REFUSED(p.lse = lse_at(4096, 16, 4), STATUS_INVALID, "lse at 4096 overlaps k at 4096");
    REFUSED(p.lse = lse_at(8192 + 112, 16, 4), STATUS_INVALID, "overlaps v at 8192");
    REFUSED(p.lse = lse_at(16384, 16, 4), STATUS_INVALID, "out at 16384 overlaps lse at 16384");
    ACCEPTED(p.lse = lse_at(20480, 16, 4));
    ACCEPTED(p.lse = lse_at(WORLD_ARENA - 128, 16, 0)); // the last row ends 12 bytes before the arena
    uint64_t reader = make_reader(&a, blocks[0], 8, 8);
    ACCEPTED((p.batch = reader, p.lse = lse_at(4096, 16, 4))); // k is not looked at
}
END_TEST

// Eight tokens of one head in 32 bytes, of three in 96.
START_TEST(a_dense_lse_of_any_number_of_heads_is_taken)
{
#define THREE_HEADS                                                                                                    \
    p.num_heads = 3, p.q.token_stride = p.out.token_stride = 48, p.q.head_stride = p.out.head_stride = 16
    ACCEPTED(p.lse = lse_at(20484, 4, 0));
    ACCEPTED(p.lse = lse_at(WORLD_ARENA - 32, 4, 4));
    REFUSED(p.lse = lse_at(WORLD_ARENA - 28, 4, 4), STATUS_OUT_OF_RANGE, "lse at 1048548");
    ACCEPTED((THREE_HEADS, p.lse = lse_at(20484, 12, 4)));
    ACCEPTED((THREE_HEADS, p.lse = lse_at(WORLD_ARENA - 96, 12, 0)));
    ACCEPTED((THREE_HEADS, p.lse = lse_at(4096 - 96, 12, 0)));
    REFUSED((THREE_HEADS, p.lse = lse_at(4096 - 92, 12, 0)), STATUS_INVALID, "lse at 4004 overlaps k at 4096");
    REFUSED((THREE_HEADS, p.lse = lse_at(WORLD_ARENA - 92, 12, 0)), STATUS_OUT_OF_RANGE, "lse at 1048484");
    REFUSED((THREE_HEADS, p.lse = lse_at(20484, 8, 0)), STATUS_INVALID, "lse's rows of 12 bytes overlap");
    REFUSED((THREE_HEADS, p.lse = lse_at(20481, 12, 0)), STATUS_MISALIGNED, "lse has offset 20481");
    REFUSED((THREE_HEADS, p.out.offset += 4, p.lse = lse_at(20484, 12, 0)), STATUS_MISALIGNED, "a multiple of 16");
#undef THREE_HEADS
}
END_TEST

START_TEST(parameters_reach_the_engine_and_arrays_are_copied)
{
    float slopes[] = {0.5f, 0.25f}, sinks[] = {1.0f, -2.0f};
    struct core_run_params p = worker_run_params(&a, batch_a, 1, 8, tokens);
    uint64_t ticket;
    p.num_heads = 2;
    p.q.token_stride = p.out.token_stride = 32;
    p.q.offset = 4096, p.out.offset = 8192, p.k.offset = 0, p.v.offset = 512;
    p.windowed = true, p.window_left = 3, p.window_right = -1, p.soft_cap = 30.0f;
    p.slopes = slopes, p.sinks = sinks, p.lse = lse_at(20480, 16, 4);
    ck_assert_status(core_run(a.session, &p, &ticket, &error), STATUS_OK);
    p.slopes = NULL;
    ck_assert_status(core_run(a.session, &p, &ticket, &error), STATUS_OK);
    memset(slopes, 0xff, sizeof(slopes));
    memset(sinks, 0xff, sizeof(sinks));
    core_step(world.core);
    const struct fake_submission *s = fake_engine_oldest(world.engine);
    const struct engine_run *run = &s->runs[0].run;
    ck_assert(run->windowed);
    ck_assert_int_eq(run->window_left, 3);
    ck_assert_int_eq(run->window_right, -1);
    ck_assert_float_eq(run->soft_cap, 30.0f);
    ck_assert_float_eq(run->slopes[1], 0.25f);
    ck_assert_float_eq(run->sinks[1], -2.0f);
    ck_assert_uint_eq(run->lse.offset, 20480);
    ck_assert_uint_eq(run->lse.token_stride, 16);
    ck_assert_ptr_null(s->runs[1].run.slopes);
    ck_assert_float_eq(s->runs[1].run.sinks[0], 1.0f);
    world_finish_all(&world);
}
END_TEST

START_TEST(a_window_makes_a_run_weigh_less)
{
    struct core_totals totals;
    ACCEPTED((p.windowed = true, p.window_left = 1, p.window_right = -1)); // causal: 2 keys a query
    core_totals(world.core, &totals);
    ck_assert_uint_eq(totals.tokens_attended, 16);
    ACCEPTED((p.windowed = true, p.window_left = 1, p.window_right = -1, p.causal = false));
    core_totals(world.core, &totals);
    ck_assert_uint_eq(totals.tokens_attended, 16 + 64);
    ACCEPTED((p.windowed = true, p.window_left = 1, p.window_right = 2, p.causal = false));
    core_totals(world.core, &totals);
    ck_assert_uint_eq(totals.tokens_attended, 16 + 64 + 32);
    ACCEPTED((p.windowed = true, p.window_left = INT32_MAX, p.window_right = INT32_MAX, p.causal = false));
    core_totals(world.core, &totals);
    ck_assert_uint_eq(totals.tokens_attended, 16 + 64 + 32 + 64);
}
END_TEST

START_TEST(scale_is_by_default_one_over_the_root_of_the_head_dimension)
{
    struct core_run_params p = worker_run_params(&a, batch_a, 1, 8, tokens);
    uint64_t ticket;
    ck_assert_status(core_run(a.session, &p, &ticket, &error), STATUS_OK);
    p.scale = 0.25f;
    p.causal = false;
    ck_assert_status(core_run(a.session, &p, &ticket, &error), STATUS_OK);
    core_step(world.core);
    const struct fake_submission *s = fake_engine_oldest(world.engine);
    ck_assert_float_eq_tol(s->runs[0].run.scale, 1.0f / sqrtf(8.0f), FLT_EPSILON);
    ck_assert(s->runs[0].run.causal);
    ck_assert_uint_eq(s->runs[0].run.layer, 1);
    ck_assert_float_eq(s->runs[1].run.scale, 0.25f);
    ck_assert(!s->runs[1].run.causal);
    world_finish_all(&world);
}
END_TEST

START_TEST(a_session_without_an_arena_cannot_run)
{
    const struct core_session_params params = {.id = 77, .owner = &c};
    struct core_cache_identity identity = world_identity("kv");
    struct core_cache_info info;
    struct core_session *session;
    const int32_t cu[] = {0, 1}, none[] = {0, 0}, lens[] = {0};
    uint64_t batch, ticket;
    uint32_t made;
    struct world bare;
    struct worker dummy = {.world = &bare};
    world_open(&bare, NULL);
    struct core_session_params bare_params = params;
    bare_params.owner = &dummy;
    ck_assert_status(core_session_open(bare.core, &bare_params, &session, &error), STATUS_OK);
    ck_assert_status(core_cache_open(session, &identity, &info, &error), STATUS_OK);
    struct core_batch_params batch_params = sequences_over(info.cache, 1, cu, lens, NULL, 0);
    ck_assert_refused(core_batch_create(session, &batch_params, &batch, &made, &error), STATUS_OUT_OF_RANGE,
                      "arena of 0 bytes");
    batch_params.cu_seqlens_q = none;
    ck_assert_status(core_batch_create(session, &batch_params, &batch, &made, &error), STATUS_OK);
    const struct core_run_params run_params = {
        .batch = batch, .num_heads = 1, .q.dtype = DTYPE_F16, .out.dtype = DTYPE_F16};
    ck_assert_refused(core_run(session, &run_params, &ticket, &error), STATUS_INVALID, "has no arena");
    world_close(&bare);
    ck_assert(dummy.gone);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("scheduler");
    TCase *waves = tcase_create("waves"), *fair = tcase_create("fairness"), *tickets = tcase_create("tickets");
    TCase *lost = tcase_create("lost device"), *tensors = tcase_create("tensors");
    TCase *all[] = {waves, fair, tickets, lost, tensors};
    tcase_add_test(waves, runs_of_several_sessions_for_one_layer_share_one_dispatch);
    tcase_add_test(waves, runs_of_a_session_that_write_one_layer_go_into_waves_in_their_order);
    tcase_add_test(waves, different_layers_and_caches_do_not_share_a_dispatch);
    tcase_add_test(waves, a_ready_run_is_submitted_at_once_and_at_most_two_submissions_are_in_flight);
    tcase_add_test(waves, a_run_of_too_much_work_is_refused_and_the_session_lives_on);
    tcase_add_test(waves, keys_count_as_often_as_they_are_named);
    tcase_add_test(waves, the_runs_of_a_submission_are_bounded_in_work_together);
    tcase_add_test(waves, tiny_runs_are_bounded_in_number);
    tcase_add_test(fair, sessions_are_served_alike_in_tokens_not_in_runs);
    tcase_add_test(fair, a_big_run_does_not_let_its_session_go_again_before_the_others_had_theirs);
    tcase_add_test(fair, a_slow_device_is_given_less_at_a_time_and_a_quick_one_more_again);
    tcase_add_test(fair, small_work_says_nothing_about_how_much_is_too_much);
    tcase_add_test(fair, a_session_that_was_away_is_not_owed_what_it_did_not_ask_for);
    tcase_add_test(tickets, tickets_count_from_one_and_complete_in_order);
    tcase_add_test(tickets, a_run_that_fails_early_is_not_done_before_those_ahead_of_it);
    tcase_add_test(tickets, the_failure_of_one_run_leaves_the_others_of_its_submission_alone);
    tcase_add_test(tickets, unreaped_tickets_are_bounded_and_the_sentence_names_the_option);
    tcase_add_test(tickets, a_detached_ticket_counts_while_in_flight_and_vanishes_when_done);
    tcase_add_test(tickets, core_step_tells_once_that_something_was_done);
    tcase_add_test(lost, a_lost_device_fails_every_outstanding_run_and_every_later_call);
    tcase_add_test(lost, a_submission_that_finds_the_device_lost_loses_it);
    tcase_add_test(lost, ending_the_core_waits_for_the_gpu_and_hands_every_arena_back);
    tcase_add_test(tensors, each_kind_of_bad_run_has_its_status_and_a_sentence_with_the_values);
    tcase_add_test(tensors, a_stride_beyond_what_the_engine_counts_is_refused);
    tcase_add_test(tensors, heads_must_divide);
    tcase_add_test(tensors, rows_may_lie_in_any_order_that_does_not_overlap);
    tcase_add_test(tensors, slices_of_one_fused_tensor_interleave_without_overlapping);
    tcase_add_test(tensors, each_parameter_of_attention_has_its_range);
    tcase_add_test(tensors, lse_is_an_output_of_its_own_type_and_place);
    tcase_add_test(tensors, a_dense_lse_of_any_number_of_heads_is_taken);
    tcase_add_test(tensors, parameters_reach_the_engine_and_arrays_are_copied);
    tcase_add_test(tensors, a_window_makes_a_run_weigh_less);
    tcase_add_test(tensors, scale_is_by_default_one_over_the_root_of_the_head_dimension);
    tcase_add_test(tensors, a_session_without_an_arena_cannot_run);
    for (size_t i = 0; i < sizeof(all) / sizeof(TCase *); i++) {
        tcase_add_checked_fixture(all[i], open_three, close_all);
        suite_add_tcase(suite, all[i]);
    }
    return check_main(suite);
}
