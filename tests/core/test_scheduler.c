// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_scheduler.c - which runs go into a submission, in which wave, how much work a submission may
// have, and whose turn it is.

#include "core/runs/weight.h"
#include "core/scheduler.h"
#include "core/state.h"
#include "rigs/check_main.h"
#include "rigs/scheduler_world.h"

#include <stdio.h>
#include <string.h>

// ---- compiles ----

START_TEST(a_session_whose_run_waits_for_a_compile_delays_no_other_and_keeps_its_order)
{
    occupy();
    fake_engine_put_off(world.engine, a.session->id);
    const uint64_t first = run(&a, 1), tb = run(&b, 1), second = run(&a, 0);
    for (int i = 0; i < 4; i++)
        finish_one();
    ck_assert_int_eq(ask(&b, tb), STATUS_OK);
    ck_assert_int_eq(ask(&a, first), STATUS_TIMEOUT);
    ck_assert_ptr_null(fake_engine_oldest(world.engine));
    ck_assert(!core_idle(world.core));
    const uint64_t third = run(&a, 1), again = run(&b, 1);
    world_check(&world);
    world_step(&world);
    const struct fake_submission *s = fake_engine_newest(world.engine);
    ck_assert_uint_eq(s->num_runs, 1); // of b alone
    ck_assert(finish_one());
    ck_assert_int_eq(ask(&b, again), STATUS_OK);
    fake_engine_compiled(world.engine);
    world_step(&world);
    ck_assert_uint_eq(fake_engine_num_put_off(world.engine), 0);
    world_finish_all(&world);
    ck_assert_int_eq(ask(&a, first), STATUS_OK);
    ck_assert_int_eq(ask(&a, second), STATUS_OK);
    ck_assert_int_eq(ask(&a, third), STATUS_OK);
}
END_TEST

// Both submissions in flight have runs of the session.
START_TEST(a_session_is_resumed_only_when_all_its_runs_have_come_back)
{
    fake_engine_put_off(world.engine, a.session->id);
    const uint64_t first = run(&a, 1);
    world_step(&world);
    const uint64_t second = run(&a, 0);
    world_step(&world);
    fake_engine_compiled(world.engine);
    ck_assert(finish_one());
    ck_assert_uint_eq(fake_engine_num_put_off(world.engine), 1);
    ck_assert(finish_one());
    ck_assert_uint_eq(fake_engine_num_put_off(world.engine), 0);
    world_finish_all(&world);
    ck_assert_int_eq(ask(&a, first), STATUS_OK);
    ck_assert_int_eq(ask(&a, second), STATUS_OK);
}
END_TEST

START_TEST(a_session_that_ends_drops_the_compile_that_it_waits_for)
{
    fake_engine_put_off(world.engine, a.session->id);
    run(&a, 1);
    run(&a, 0);
    world_step(&world);
    if (_i) // its runs come back before it ends
        ck_assert(finish_one());
    core_session_close(a.session, true);
    a.session = NULL;
    ck_assert_uint_eq(fake_engine_num_put_off(world.engine), 0);
    while (finish_one())
        ;
    world_check(&world);
    ck_assert(core_idle(world.core));
}
END_TEST

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
    const struct core_ticket_result results[] = {worker_result(&a, ta), worker_result(&b, tb),
                                                 worker_result(&c, tc)};
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq((int)results[i].status, STATUS_OK);
        ck_assert_uint_eq(results[i].num_runs, 3);
        ck_assert_uint_eq(results[i].num_sessions, 3);
        ck_assert_uint_eq(results[i].gpu_ns, 1000);
    }
    const uint64_t *totals = core_metrics(world.core);
    ck_assert_uint_eq(totals[METRIC_MAX_SESSIONS_SERVED], 3);
    ck_assert_uint_eq(totals[METRIC_SUBMISSIONS], 3);
    ck_assert_uint_eq(totals[METRIC_DISPATCHES], 3);
    ck_assert_uint_eq(totals[METRIC_RUNS_DONE], 5);
    ck_assert_uint_eq(totals[METRIC_TOKENS_ATTENDED], 5ull * 64);
}
END_TEST

// A batch of one query over 8192 tokens in one block, which is named again and again, and a run of
// it in all layers.
static void queue_whole_step(struct worker *worker, int32_t block)
{
    enum { ENTRIES = 1024 };
    static const int32_t cu[] = {0, 1}, lens[] = {ENTRIES * WORLD_BLOCK};
    int32_t table[ENTRIES];
    for (int i = 0; i < ENTRIES; i++)
        table[i] = block;
    const struct core_batch_params params =
        sequences_over(worker->cache, 1, cu, lens, table, ENTRIES);
    struct core_run_params run =
        worker_run_params(worker, worker_create(worker, &params), 0, 1, NULL);
    run.layers.num_layers = WORLD_LAYERS;
    worker_queue(worker, &run);
}

// The budget ends with the first link of the second layer.
START_TEST(a_full_submission_takes_the_whole_layer_of_sessions_that_share_a_prefix)
{
    int32_t first, found, own;
    worker_lease(&a, 1, &first);
    worker_lease(&b, 1, &own);
    worker_write(&a, &first, tokens, WORLD_BLOCK);
    worker_write(&b, &own, tokens, WORLD_BLOCK);
    worker_publish(&a, tokens, WORLD_BLOCK, &first);
    ck_assert_uint_eq(worker_lookup(&b, tokens, WORLD_BLOCK, &found), 1);
    for (int shares = 0; shares < 2; shares++) {
        occupy();
        queue_whole_step(&a, first);
        queue_whole_step(&b, shares ? found : own);
        world.core->scheduler.budget = UINT64_C(3) * 1024 * WORLD_BLOCK;
        ck_assert(finish_one());
        ck_assert_uint_eq(fake_engine_newest(world.engine)->num_runs,
                          shares ? 2 * WORLD_LAYERS : 3);
        world_finish_all(&world);
    }
}
END_TEST

// Three sessions queue runs of one layer, each of which overwrites the output of the one before.
static void queue_long_lines(uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        run(&a, 0);
        run(&b, 0);
        run(&c, 0);
    }
}

// So the GPU begins after a short time of preparing, and the rest is prepared while it works.
START_TEST(an_idle_gpu_gets_the_first_waves_of_all_sessions_before_the_others)
{
    enum { LINE = 15, WAVES = SCHEDULER_FIRST_LINKS / 3 };
    queue_long_lines(LINE);
    world_step(&world);
    const struct fake_submission *first = fake_engine_oldest(world.engine),
                                 *second = fake_engine_newest(world.engine);
    ck_assert_uint_eq(first->num_waves, WAVES);
    ck_assert_uint_eq(first->num_runs, 3 * WAVES);
    ck_assert_uint_eq(second->num_waves, LINE - WAVES);
    ck_assert_uint_eq(second->num_runs, 3 * (LINE - WAVES));
    world_finish_all(&world);
    ck_assert_uint_eq(core_metrics(world.core)[METRIC_RUNS_DONE], 3 * LINE);
}
END_TEST

// Each submission is prepared while the one before it runs.
START_TEST(submissions_behind_a_small_one_grow)
{
    enum {
        FIRST = SCHEDULER_FIRST_LINKS / 3,
        SECOND = FIRST * SCHEDULER_GROWTH,
        LAST = 5,
        LINE = FIRST + SECOND + LAST
    };
    queue_long_lines(LINE);
    world_step(&world);
    ck_assert_uint_eq(fake_engine_oldest(world.engine)->num_waves, FIRST);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_waves, SECOND);
    ck_assert(finish_one());
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_waves, LAST);
    queue_long_lines(FIRST); // behind one that was not cut, all go at once
    ck_assert(finish_one());
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_waves, FIRST);
    world_finish_all(&world);
    ck_assert_uint_eq(core_metrics(world.core)[METRIC_RUNS_DONE], 3 * (LINE + FIRST));
}
END_TEST

START_TEST(a_busy_gpu_gets_all_waves_at_once)
{
    enum { LINE = 15 };
    occupy();
    queue_long_lines(LINE);
    ck_assert(finish_one());
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_waves, LINE);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_runs, 3 * LINE);
    world_finish_all(&world);
}
END_TEST

START_TEST(a_session_is_billed_its_own_part_of_a_dispatch)
{
    static const uint64_t own_ns[] = {100, 700};
    struct core_session_counts before[2], after[2];
    struct worker *workers[] = {&a, &b};
    occupy();
    for (int i = 0; i < 2; i++) {
        run(workers[i], 1);
        core_session_counts(workers[i]->session, &before[i]);
    }
    ck_assert(finish_one());
    struct fake_submission *s = fake_engine_newest(world.engine);
    ck_assert_uint_eq(s->num_dispatches, 1);
    for (int i = 0; i < 2; i++)
        s->runs[i].own_ns = own_ns[i];
    world_finish_all(&world);
    for (int i = 0; i < 2; i++) {
        core_session_counts(workers[i]->session, &after[i]);
        ck_assert_uint_eq(after[i].gpu_ns - before[i].gpu_ns, own_ns[i]);
    }
}
END_TEST

START_TEST(how_much_goes_into_a_submission_is_learnt_from_what_its_runs_took_together)
{
    occupy();
    run(&a, 1);
    run(&b, 1);
    ck_assert(finish_one());
    struct fake_submission *s = fake_engine_newest(world.engine);
    ck_assert_uint_eq(s->num_runs, 2);
    const uint64_t budget = world.core->scheduler.budget;
    for (int i = 0; i < 2; i++)
        s->runs[i].own_ns = SCHEDULER_TIME_NS; // too much together with the other's time
    world_finish_all(&world);
    ck_assert_uint_lt(world.core->scheduler.budget, budget);
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
        world_step(&world);
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

// Eight queries of eight keys: 36 visible pairs, 8 * 512 keys of started tiles, 7 more rows of a
// tile; 8 + 8 dims and 128 for the rest of a pair. Eight rows are written: WRITTEN of them.
enum {
    PAIR = 8 + 8 + 128,
    WRITTEN = 8 * (1 << 15) + 8 * 2 * (8 + 8) * 2 + 1,
    CAUSAL_WORK = (36 + 8 * 512 + 7 * 512) * PAIR + WRITTEN,
    FULL_WORK = CAUSAL_WORK + 28 * PAIR
};

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
    struct core_run_params p =
        worker_run_params(&worker, worker_batch(&worker, &block, 8, 8), 0, 8, tokens);
    p.entry.flags &= ~(uint32_t)WIRE_RUN_CAUSAL;
    snprintf(numbers, sizeof numbers, "%d multiply-adds; one run may take %d (--max-run-work)",
             FULL_WORK, CAUSAL_WORK);
    ck_assert_refused(core_run(worker.session, &p, &ticket, &error), STATUS_LIMIT, numbers);
    p.entry.flags |= WIRE_RUN_CAUSAL;
    p.entry.num_heads = 2;
    p.entry.out.offset = WORLD_ARENA / 2;
    p.entry.out.token_stride = 2 * 16;
    ck_assert_refused(core_run(worker.session, &p, &ticket, &error), STATUS_LIMIT,
                      "smaller chunks");
    p.entry.num_heads = 1;
    ck_assert_status(core_run(worker.session, &p, &ticket, &error), STATUS_OK);
    world_finish_all(&strict);
    worker_reap(&worker, ticket, STATUS_OK);
    world_close(&strict);
}
END_TEST

// A table may contain one block many times. The work of the GPU counts.
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
    worker_fill(&worker, table, 1);
    for (int i = 1; i < 100000; i++)
        table[i] = table[0];
    const struct core_batch_params params =
        sequences_over(worker.cache, 1, cu, lens, table, 100000);
    batch = worker_create(&worker, &params);
    struct core_run_params p = worker_run_params(&worker, batch, 0, 1000, NULL);
    ck_assert_refused(core_run(worker.session, &p, &ticket, &error), STATUS_LIMIT,
                      "--max-run-work");
    p.entry.window_left = 4096; // each query sees only a few of them
    ck_assert_status(core_run(worker.session, &p, &ticket, &error), STATUS_OK);
    world_finish_all(&strict);
    world_close(&strict);
}
END_TEST

// One query of 800000 keys takes 8 rows of a tile in 8 + 8 dims in one workgroup, and 64 of these
// are the whole device.
START_TEST(a_long_sequence_in_one_piece_counts_the_device_that_waits_for_it)
{
    static int32_t table[100000];
    static const int32_t cu[] = {0, 1}, lens[] = {800000};
    enum { ALONE = 800000 * 8 * PAIR };
    const uint64_t most = UINT64_C(64) * ALONE;
    struct world strict;
    struct worker worker;
    uint64_t ticket;
    char words[160];
    world_open(&strict, &(struct core_params){.max_run_work = most});
    worker_open(&worker, &strict, 1, "");
    worker_lease(&worker, 1, table);
    worker_fill(&worker, table, 1);
    for (int i = 1; i < 100000; i++)
        table[i] = table[0];
    const struct core_batch_params params =
        sequences_over(worker.cache, 1, cu, lens, table, 100000);
    struct core_run_params p =
        worker_run_params(&worker, worker_create(&worker, &params), 0, 1, NULL);
    p.entry.num_splits = 1;
    ck_assert_status(core_run(worker.session, &p, &ticket, &error), STATUS_OK);
    strict.core->params.max_run_work = most - 1;
    snprintf(
        words, sizeof words,
        "the run's longest sequence, in one piece, takes %llu multiply-adds; one run may take ",
        (unsigned long long)most);
    ck_assert_refused(core_run(worker.session, &p, &ticket, &error), STATUS_LIMIT, words);
    ck_assert_refused(core_run(worker.session, &p, &ticket, &error), STATUS_LIMIT,
                      "num_splits other than 1");
    p.entry.window_left = 4096; // which leaves less work
    p.entry.window_right = 0;
    ck_assert_status(core_run(worker.session, &p, &ticket, &error), STATUS_OK);
    p.entry.window_left = p.entry.window_right = -1;
    for (p.entry.num_splits = 0; p.entry.num_splits <= 2; p.entry.num_splits += 2)
        ck_assert_status(core_run(worker.session, &p, &ticket, &error), STATUS_OK);
    p.entry.num_splits = 2;
    p.entry.num_heads = 9; // some shaders do not split the keys of that many rows
    p.entry.out.offset = WORLD_ARENA / 2;
    ck_assert_refused(core_run(worker.session, &p, &ticket, &error), STATUS_LIMIT, "in one piece");
    world_finish_all(&strict);
    world_close(&strict);
}
END_TEST

START_TEST(honest_sequences_in_one_piece_are_far_from_the_limit)
{
    const uint64_t usual = 10000000000000; // a usual limit for a GPU
    struct core_session session = {.ledger = &world.core->ledger};
    struct core_run_params p = {.entry = {.kind = WIRE_RUN_ATTEND,
                                          .num_heads = 32,
                                          .num_splits = 1,
                                          .window_left = -1,
                                          .window_right = -1}};
    struct batch decode = {.session = &session, .max_rows = 1, .max_seq_len = 1 << 20};
    decode.kv = (struct engine_kv){.num_kv_heads = 8, .head_dim_k = 128, .head_dim_v = 128};
    ck_assert_uint_lt(weight_alone(&decode, &p), usual / 20);
    struct batch latent = {.session = &session, .max_rows = 16384, .max_seq_len = 1 << 20};
    latent.kv = (struct engine_kv){.num_kv_heads = 1, .head_dim_k = 576, .head_dim_v = 512};
    ck_assert_uint_lt(weight_alone(&latent, &p), usual / 10);
    latent.max_seq_len = 1000000000;
    ck_assert_uint_gt(weight_alone(&latent, &p), usual * 10);
}
END_TEST

// Each of these took a software device over two minutes.
START_TEST(a_command_of_very_many_small_pieces_is_above_the_limit_of_a_software_device)
{
    const uint64_t software = 40000000000; // --max-run-work auto
    struct core_session session = {.ledger = &world.core->ledger};
    struct core_run_params p = {.entry = {.kind = WIRE_RUN_ATTEND,
                                          .num_heads = 8,
                                          .window_left = -1,
                                          .window_right = -1,
                                          .k = {.dtype = DTYPE_F16}}};
    struct batch many = {.session = &session, .num_seqs = 400000, .num_tokens = 400000};
    many.kv = (struct engine_kv){
        .num_kv_heads = 8, .head_dim_k = 8, .head_dim_v = 8, .k_dtype = 1, .v_dtype = 1};
    many.attended = many.all_keys = 400000;
    many.keys = UINT64_C(400000) * BATCH_TILE_KEYS;
    ck_assert_uint_gt(weight_work(&many, &p), software);
    many.all_keys = 6400000;
    p.entry.kind = WIRE_RUN_GATHER;
    ck_assert_uint_gt(weight_work(&many, &p), software);
    struct batch prompt = {.session = &session, .num_seqs = 1, .num_tokens = 30000};
    prompt.kv = (struct engine_kv){.num_kv_heads = 2, .head_dim_k = 8, .head_dim_v = 8};
    prompt.attended = prompt.causal = UINT64_C(30000) * 15000;
    prompt.keys = 30000;
    p.entry.kind = WIRE_RUN_ATTEND;
    p.entry.num_heads = 4;
    ck_assert_uint_gt(weight_work(&prompt, &p), software);
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
    world_step(&strict);
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
    uint32_t made, most = 0;
    world_open(&large, &(struct core_params){.max_tickets = 200});
    for (int i = 0; i < 13; i++) {
        worker_open(&many[i], &large, 1, "");
        const struct core_batch_params params = sequences_over(many[i].cache, 1, cu, lens, NULL, 0);
        ck_assert_status(core_batch_create(many[i].session, &params, &batches[i], &made, &error),
                         STATUS_OK);
        for (int j = 0; j < 200; j++)
            worker_run(&many[i], batches[i], 0, 0, NULL);
    }
    world_step(&large);
    while (!core_idle(large.core)) { // submissions grow until this bound
        const uint32_t num_runs = fake_engine_newest(large.engine)->num_runs;
        most = num_runs > most ? num_runs : most;
        ck_assert(fake_engine_finish(large.engine));
        world_step(&large);
    }
    ck_assert_uint_eq(most, SCHEDULER_MAX_RUNS);
    world_close(&large);
}
END_TEST

// ---- fairness ----

// Counts the runs of a and of b in all submissions in flight.
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
    count_runs(&of_a, &of_b); // two budgets of 2^22 tokens, half of each for a, half for b
    ck_assert_uint_ge(of_a, 7);
    ck_assert_uint_le(of_a, 9);
    ck_assert_uint_ge(of_b, 56);
    ck_assert_uint_le(of_b, 64);
    world_finish_all(&world);
}
END_TEST

START_TEST(a_big_run_does_not_let_its_session_go_again_before_the_others_had_theirs)
{
    uint64_t huge =
        make_reader(&a, blocks[0], 4096, 8192); // 2^25 tokens: more than the budget of a submission
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
    ck_assert_uint_eq(s->num_runs, 41); // all runs of b, then a again
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
    world.core->scheduler.speed.slice_ns = 1e18;           // runs stay whole
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
    ck_assert_uint_eq(world.core->scheduler.budget, TURNS_QUANTUM); // never less
    world_finish_all(&world);
}
END_TEST

// a and b have many runs of 2^19 tokens queued, and the GPU is occupied.
static void expect_equal_shares(void)
{
    uint32_t of_a, of_b;
    finish_one();
    finish_one();
    count_runs(&of_a, &of_b);
    ck_assert_uint_eq(of_a + of_b, 16); // two budgets of eight runs
    ck_assert_uint_ge(of_a, 7);
    ck_assert_uint_ge(of_b, 7);
    world_finish_all(&world);
}

START_TEST(a_session_that_was_away_is_not_owed_what_it_did_not_ask_for)
{
    uint64_t reader_a = make_reader(&a, blocks[0], 64, 8192),
             reader_b = make_reader(&b, blocks[1], 64, 8192);
    for (int i = 0; i < 30; i++) { // only a: b is idle all the time
        worker_run(&a, reader_a, 0, 64, NULL);
        world_finish_all(&world);
    }
    occupy();
    for (int i = 0; i < 20; i++)
        worker_run(&b, reader_b, 0, 64, NULL);
    for (int i = 0; i < 20; i++)
        worker_run(&a, reader_a, 0, 64, NULL);
    expect_equal_shares();
}
END_TEST

START_TEST(a_session_that_waited_for_a_compile_is_not_owed_that_time)
{
    uint64_t reader_a = make_reader(&a, blocks[0], 64, 8192),
             reader_b = make_reader(&b, blocks[1], 64, 8192);
    fake_engine_put_off(world.engine, a.session->id);
    for (int i = 0; i < 20; i++)
        worker_run(&a, reader_a, 0, 64, NULL);
    world_step(&world);
    while (finish_one())
        ;
    for (int i = 0; i < 30; i++) { // only b is served
        worker_run(&b, reader_b, 0, 64, NULL);
        world_step(&world);
        ck_assert(finish_one());
    }
    occupy();
    for (int i = 0; i < 20; i++)
        worker_run(&b, reader_b, 0, 64, NULL);
    fake_engine_compiled(world.engine);
    world_step(&world);
    expect_equal_shares();
}
END_TEST

// ---- tenants ----

enum { CROWD = 40, CROWD_RUNS = 8 };

static struct world crowded;
static struct worker crowd[CROWD], lone;
static uint64_t crowd_readers[CROWD], lone_reader;

static uint64_t open_reader(struct worker *worker, uint32_t uid, const char *tenant)
{
    int32_t own[8];
    worker_open(worker, &crowded, uid, tenant);
    worker_lease(worker, 8, own);
    return make_reader(worker, own, 64, 1024); // 2^16 tokens
}

// A tenant with CROWD sessions, and one with a single session.
static void open_crowd(void)
{
    world_open(&crowded, &(struct core_params){.max_blocks = 512, .max_sessions = 64});
    for (int i = 0; i < CROWD; i++)
        crowd_readers[i] = open_reader(&crowd[i], 1, "crowd");
    lone_reader = open_reader(&lone, 2, "lone");
    world_finish_all(&crowded);
}

static void close_crowd(void)
{
    world_finish_all(&crowded);
    world_close(&crowded);
}

// Its ticket is reaped by nobody.
static void queue_detached(struct worker *worker, uint64_t batch)
{
    struct core_run_params params = worker_run_params(worker, batch, 0, 64, NULL);
    params.entry.flags |= WIRE_RUN_DETACHED;
    worker_queue(worker, &params);
}

static void queue_crowd(void)
{
    for (int j = 0; j < CROWD_RUNS; j++) {
        for (int i = 0; i < CROWD; i++)
            queue_detached(&crowd[i], crowd_readers[i]);
    }
}

static void queue_lone(void)
{
    for (int i = 0; i < 60; i++)
        queue_detached(&lone, lone_reader);
}

static void finish_crowded(void)
{
    world_step(&crowded);
    ck_assert(fake_engine_finish(crowded.engine));
    world_step(&crowded);
}

// How many runs of the worker have ended.
static uint64_t done(const struct worker *worker)
{
    struct core_session_counts counts;
    core_session_counts(worker->session, &counts);
    return counts.runs_done;
}

static uint64_t done_by_crowd(void)
{
    uint64_t sum = 0, least = UINT64_MAX, most = 0;
    for (int i = 0; i < CROWD; i++) {
        const uint64_t own = done(&crowd[i]);
        least = own < least ? own : least;
        most = own > most ? own : most;
        sum += own;
    }
    ck_assert_uint_le(most - least, 1); // its sessions share alike
    return sum;
}

// Finishes submissions until `runs` more runs of the lone session have ended. Returns how many of
// the crowd's have ended meanwhile.
static uint64_t serve_lone(uint64_t runs)
{
    const uint64_t until = done(&lone) + runs, before = done_by_crowd();
    while (done(&lone) < until) {
        finish_crowded();
        world_check(&crowded);
    }
    return done_by_crowd() - before;
}

// A submission takes 64 runs of 2^16 tokens.
START_TEST(a_tenant_with_forty_sessions_gets_as_many_tokens_as_one_with_a_single_session)
{
    queue_crowd();
    queue_lone();
    const uint64_t of_crowd = serve_lone(60);
    ck_assert_uint_ge(of_crowd, 50);
    ck_assert_uint_le(of_crowd, 110); // most_waves(): the first one takes one run of each session
}
END_TEST

// Each run is of another session, which had none queued before.
START_TEST(sessions_that_come_one_after_another_share_the_part_of_their_tenant)
{
    const uint64_t before = done_by_crowd(), until = done(&lone) + 40;
    queue_lone();
    for (int next = 0; done(&lone) < until; next = (next + 8) % CROWD) {
        for (int i = next; i < next + 8; i++)
            queue_detached(&crowd[i], crowd_readers[i]);
        crowded.core->scheduler.budget = 4 << 16;
        finish_crowded();
    }
    ck_assert_uint_ge(done_by_crowd() - before, 30);
    ck_assert_uint_le(done_by_crowd() - before, 60);
}
END_TEST

// The lone session was alone, or the crowd.
START_TEST(a_tenant_that_was_away_is_not_owed_what_it_did_not_ask_for)
{
    for (int i = 0; i < 8; i++) {
        if (_i)
            queue_crowd();
        else
            queue_lone();
        world_finish_all(&crowded);
    }
    queue_lone();
    queue_crowd();
    const uint64_t of_crowd = serve_lone(60);
    ck_assert_uint_ge(of_crowd, 50);
    ck_assert_uint_le(of_crowd, 110);
}
END_TEST

// ---- waiting for company ----

static uint32_t in_flight(void)
{
    struct fake_counts counts;
    world_step(&world);
    fake_engine_counts(world.engine, &counts);
    return counts.unfinished;
}

// a and b have just been served, and the GPU works on c's run. One run of one session was seen
// before, so the end is predictable.
static void serve_two(void)
{
    run(&c, 0);
    world_step(&world);
    finish_one();
    run(&a, 0);
    run(&b, 0);
    world_step(&world);
    run(&c, 0);
    world_step(&world);
    finish_one();
}

// The next run of `a` waits for that of `b`, and both go into one submission.
static void expect_company(uint32_t layer)
{
    run(&a, layer);
    ck_assert_uint_eq(in_flight(), 1);
    run(&b, layer);
    ck_assert_uint_eq(in_flight(), 2);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_runs, 2);
    world_finish_all(&world);
}

START_TEST(runs_behind_the_gpus_work_wait_for_the_sessions_just_served)
{
    serve_two();
    expect_company(1);
}
END_TEST

START_TEST(nobody_is_waited_for_when_the_gpus_end_is_near)
{
    serve_two();
    run(&a, 1);
    ck_assert_uint_eq(in_flight(), 1);
    world.now_ns += SUBMISSION_NS - LOOK_NS / 2;
    ck_assert_uint_eq(in_flight(), 2);
    world_finish_all(&world);
}
END_TEST

START_TEST(nobody_is_waited_for_while_the_gpu_is_idle)
{
    serve_two();
    finish_one();
    run(&a, 1);
    ck_assert_uint_eq(in_flight(), 1);
    world_finish_all(&world);
}
END_TEST

START_TEST(a_session_that_ended_is_not_waited_for)
{
    serve_two();
    run(&a, 1);
    ck_assert_uint_eq(in_flight(), 1);
    worker_close(&b, true);
    ck_assert_uint_eq(in_flight(), 2);
    world_finish_all(&world);
}
END_TEST

START_TEST(sessions_served_before_the_last_submission_are_not_waited_for)
{
    serve_two();
    run(&a, 1);
    ck_assert_uint_eq(in_flight(), 1);
    finish_one(); // c's run ends, and a's is submitted; b has not come back
    run(&c, 1);
    ck_assert_uint_eq(in_flight(), 2);
    world_finish_all(&world);
}
END_TEST

START_TEST(a_session_whose_run_never_reached_the_gpu_is_not_waited_for)
{
    fake_engine_refuse_submit(world.engine, STATUS_NO_MEMORY);
    run(&b, 0);
    world_step(&world);
    world_check(&world);
    run(&a, 0);
    world_step(&world);
    finish_one();
    fake_engine_refuse_submit(world.engine, STATUS_NO_MEMORY);
    run(&b, 0);
    world_step(&world);
    world_check(&world);
    run(&c, 0);
    world_step(&world);
    run(&a, 1);
    ck_assert_uint_eq(in_flight(), 2);
    world_finish_all(&world);
}
END_TEST

START_TEST(after_the_loss_of_the_device_nobody_is_waited_for)
{
    run(&a, 0);
    world_step(&world);
    fake_engine_lose(world.engine, "for the test");
    world_step(&world);
    ck_assert_uint_eq(world.core->scheduler.turns.num_expected, 0);
}
END_TEST

START_TEST(a_session_that_has_more_queued_is_not_waited_for)
{
    run(&a, 0);
    world_step(&world);
    run(&c, 0);
    world_step(&world);
    run(&a, 1);
    finish_one();
    ck_assert_uint_eq(in_flight(), 2);
    world_finish_all(&world);
}
END_TEST

START_TEST(sessions_with_two_runs_in_flight_each_stay_together)
{
    for (uint32_t i = 0; i < 2; i++) {
        run(&a, i);
        run(&b, i);
        world_step(&world);
    }
    finish_one();
    expect_company(0);
}
END_TEST

START_TEST(core_says_when_it_wants_to_step_again)
{
    ck_assert(core_wake_ns(world.core) == FOREVER);
    serve_two();
    run(&a, 1);
    world_step(&world);
    const int64_t wake_ns = core_wake_ns(world.core), end_ns = world.now_ns + SUBMISSION_NS;
    ck_assert_int_gt(wake_ns, world.now_ns);
    ck_assert_int_lt(wake_ns, end_ns);
    world.now_ns = wake_ns;
    ck_assert_uint_eq(in_flight(), 2); // the runs that waited are submitted
    ck_assert_int_le(core_wake_ns(world.core), wake_ns);
    world.now_ns = end_ns + 2 * LOOK_NS; // the polling time is over, and nothing has ended
    world_step(&world);
    ck_assert(core_wake_ns(world.core) == FOREVER);
    world_finish_all(&world);
    ck_assert(core_wake_ns(world.core) == FOREVER);
}
END_TEST

START_TEST(ends_are_counted_by_whether_they_woke_the_caller)
{
    run(&a, 0);
    world_step(&world);
    core_slept(world.core, FOREVER, world.now_ns, true);
    finish_one();
    run(&a, 0);
    world_step(&world);
    finish_one();
    const uint64_t *totals = core_metrics(world.core);
    ck_assert_uint_eq(totals[METRIC_ENDS_ASLEEP], 1);
    ck_assert_uint_eq(totals[METRIC_ENDS_AWAKE], 1);
}
END_TEST

// ---- runs that wait too long ----

static uint64_t run_within(struct worker *worker, uint64_t batch, uint32_t max_queue_ms)
{
    struct core_run_params p = worker_run_params(worker, batch, 0, 8, tokens);
    p.options.max_queue_ms = max_queue_ms;
    return worker_queue(worker, &p);
}

// finish_one() takes one of the four milliseconds.
START_TEST(a_run_that_waited_too_long_ends_when_its_turn_comes)
{
    struct core_ticket_result result;
    struct error why = {0};
    occupy();
    uint64_t late = run_within(&a, batch_a, 4), other = run(&a, 1),
             patient = run_within(&b, batch_b, 5);
    world.now_ns += 3 * NS_PER_MS;
    ck_assert(finish_one());
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_runs, 2);
    ck_assert_int_eq((int)core_ticket_reap(a.session, late, &result, &why), STATUS_OK);
    ck_assert_int_eq((int)result.status, STATUS_LIMIT);
    ck_assert_str_eq(why.text, "it waited 4 ms for its turn; max_queue_ms is 4");
    ck_assert_uint_eq(core_metrics(world.core)[METRIC_RUNS_FAILED], 1);
    world_finish_all(&world);
    worker_reap(&a, other, STATUS_OK);
    worker_reap(&b, patient, STATUS_OK);
}
END_TEST

// The late run is over, but stays behind the first one, whose turn comes again after the compile.
START_TEST(a_late_run_behind_one_that_waits_for_a_compile_has_no_turn)
{
    run(&b, 0);
    world_step(&world);
    fake_engine_put_off(world.engine, a.session->id);
    const uint64_t first = run(&a, 1);
    world_step(&world);
    const uint64_t late = run_within(&a, batch_a, 1);
    world.now_ns += 2 * NS_PER_MS;
    ck_assert(finish_one()); // b's: now the late run has its turn
    ck_assert(finish_one()); // the first one comes back
    world_check(&world);
    fake_engine_compiled(world.engine);
    world_step(&world);
    world_check(&world);
    const uint64_t third = _i ? run(&a, 0) : 0;
    world_finish_all(&world);
    world_check(&world);
    worker_reap(&a, first, STATUS_OK);
    worker_reap(&a, late, STATUS_LIMIT);
    if (third)
        worker_reap(&a, third, STATUS_OK);
}
END_TEST

START_TEST(a_session_that_ends_ends_its_late_run_once)
{
    run(&b, 0);
    world_step(&world);
    fake_engine_put_off(world.engine, a.session->id);
    run(&a, 1);
    world_step(&world);
    run_within(&a, batch_a, 1);
    world.now_ns += 2 * NS_PER_MS;
    ck_assert(finish_one());
    ck_assert(finish_one());
    core_session_close(a.session, true);
    a.session = NULL;
    while (finish_one())
        ;
    world_check(&world);
    ck_assert_uint_eq(core_metrics(world.core)[METRIC_RUNS_FAILED], 2);
    ck_assert(core_idle(world.core));
}
END_TEST

START_TEST(what_a_late_run_would_have_written_counts_as_unwritten)
{
    uint32_t existing;
    run(&a, 1);
    world_finish_all(&world);
    occupy();
    uint64_t late = run_within(&a, batch_a, 1); // layer 0
    ck_assert(finish_one());
    worker_reap(&a, late, STATUS_LIMIT);
    world_finish_all(&world);
    ck_assert_refused(worker_try_publish(&a, tokens, 8, blocks[0], &existing, &error),
                      STATUS_UNWRITTEN, "");
    run(&a, 0);
    world_finish_all(&world);
    ck_assert_uint_eq(worker_publish(&a, tokens, 8, blocks[0]), 0);
}
END_TEST

START_TEST(runs_that_all_waited_too_long_leave_the_gpu_alone)
{
    struct core_run_params p = worker_run_params(&a, batch_a, 0, 8, tokens);
    struct core_session_counts counts;
    uint64_t detached;
    occupy();
    p.options.max_queue_ms = 1;
    p.entry.flags |= WIRE_RUN_DETACHED;
    ck_assert_status(core_run(a.session, &p, &detached, &error), STATUS_OK);
    uint64_t late = run_within(&b, batch_b, 1);
    ck_assert(finish_one());
    ck_assert_uint_eq(core_metrics(world.core)[METRIC_SUBMISSIONS], SCHEDULER_MAX_IN_FLIGHT);
    worker_reap(&b, late, STATUS_LIMIT);
    core_session_counts(a.session, &counts);
    ck_assert_uint_eq(counts.tickets_unreaped, 0);
    uint64_t next = run_within(&a, batch_a, 1);
    world_finish_all(&world);
    worker_reap(&a, next, STATUS_OK);
}
END_TEST

START_TEST(a_run_whose_first_layer_had_its_turn_goes_on_however_late_the_others_are)
{
    struct core_run_params p = worker_run_params(&a, batch_a, 0, 8, tokens);
    p.options.max_queue_ms = 1;
    p.layers.num_layers = 2;
    world.core->scheduler.budget = 1; // a layer in each submission
    run(&c, 0);
    world_step(&world);
    uint64_t ticket = worker_queue(&a, &p);
    world_step(&world);
    world.now_ns += 100 * NS_PER_MS;
    ck_assert(finish_one());
    world_finish_all(&world);
    worker_reap(&a, ticket, STATUS_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("scheduler");
    check_case(suite, "compiles", open_three, close_all,
               (const TTest *const[]){
                   a_session_whose_run_waits_for_a_compile_delays_no_other_and_keeps_its_order,
                   a_session_is_resumed_only_when_all_its_runs_have_come_back,
                   a_session_that_waited_for_a_compile_is_not_owed_that_time, NULL},
               1);
    check_case(suite, "deaths while compiling", open_three, close_all,
               (const TTest *const[]){a_session_that_ends_drops_the_compile_that_it_waits_for,
                                      a_session_that_ends_ends_its_late_run_once, NULL},
               2);
    check_case(
        suite, "late runs while compiling", open_three, close_all,
        (const TTest *const[]){a_late_run_behind_one_that_waits_for_a_compile_has_no_turn, NULL},
        2);
    check_case(suite, "waves", open_three, close_all,
               (const TTest *const[]){
                   runs_of_several_sessions_for_one_layer_share_one_dispatch,
                   a_full_submission_takes_the_whole_layer_of_sessions_that_share_a_prefix,
                   an_idle_gpu_gets_the_first_waves_of_all_sessions_before_the_others,
                   submissions_behind_a_small_one_grow, a_busy_gpu_gets_all_waves_at_once,
                   a_session_is_billed_its_own_part_of_a_dispatch,
                   how_much_goes_into_a_submission_is_learnt_from_what_its_runs_took_together,
                   runs_of_a_session_that_write_one_layer_go_into_waves_in_their_order,
                   different_layers_and_caches_do_not_share_a_dispatch,
                   a_ready_run_is_submitted_at_once_and_at_most_two_submissions_are_in_flight,
                   a_run_of_too_much_work_is_refused_and_the_session_lives_on,
                   keys_count_as_often_as_they_are_named,
                   a_long_sequence_in_one_piece_counts_the_device_that_waits_for_it,
                   honest_sequences_in_one_piece_are_far_from_the_limit,
                   a_command_of_very_many_small_pieces_is_above_the_limit_of_a_software_device,
                   the_runs_of_a_submission_are_bounded_in_work_together,
                   tiny_runs_are_bounded_in_number, NULL},
               1);
    check_case(suite, "fairness", open_three, close_all,
               (const TTest *const[]){
                   sessions_are_served_alike_in_tokens_not_in_runs,
                   a_big_run_does_not_let_its_session_go_again_before_the_others_had_theirs,
                   a_slow_device_is_given_less_at_a_time_and_a_quick_one_more_again,
                   small_work_says_nothing_about_how_much_is_too_much,
                   a_session_that_was_away_is_not_owed_what_it_did_not_ask_for, NULL},
               1);
    check_case(suite, "tenants", open_crowd, close_crowd,
               (const TTest *const[]){
                   a_tenant_with_forty_sessions_gets_as_many_tokens_as_one_with_a_single_session,
                   sessions_that_come_one_after_another_share_the_part_of_their_tenant, NULL},
               1);
    check_case(
        suite, "tenants away", open_crowd, close_crowd,
        (const TTest *const[]){a_tenant_that_was_away_is_not_owed_what_it_did_not_ask_for, NULL},
        2);
    check_case(suite, "too late", open_three, close_all,
               (const TTest *const[]){
                   a_run_that_waited_too_long_ends_when_its_turn_comes,
                   what_a_late_run_would_have_written_counts_as_unwritten,
                   runs_that_all_waited_too_long_leave_the_gpu_alone,
                   a_run_whose_first_layer_had_its_turn_goes_on_however_late_the_others_are, NULL},
               1);
    check_case(suite, "kept back", open_three_forecast, close_all,
               (const TTest *const[]){runs_behind_the_gpus_work_wait_for_the_sessions_just_served,
                                      nobody_is_waited_for_when_the_gpus_end_is_near,
                                      nobody_is_waited_for_while_the_gpu_is_idle,
                                      a_session_that_ended_is_not_waited_for,
                                      sessions_served_before_the_last_submission_are_not_waited_for,
                                      a_session_whose_run_never_reached_the_gpu_is_not_waited_for,
                                      after_the_loss_of_the_device_nobody_is_waited_for,
                                      a_session_that_has_more_queued_is_not_waited_for,
                                      sessions_with_two_runs_in_flight_each_stay_together,
                                      core_says_when_it_wants_to_step_again,
                                      ends_are_counted_by_whether_they_woke_the_caller, NULL},
               1);
    return check_main(suite);
}
