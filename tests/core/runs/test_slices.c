// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_slices.c - long runs that are cut into slices: what goes between them, what they do
// together, and their ends. Of three sessions, over an engine whose dispatches take 1000 ns.

#include "core/runs/speed.h"
#include "core/runs/weight.h"
#include "core/scheduler.h"
#include "core/state.h"
#include "rigs/check_main.h"
#include "rigs/scheduler_world.h"

#include <stdlib.h>
#include <string.h>

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

// Slices of the session that the GPU has.
static uint32_t in_flight(const struct worker *worker)
{
    const struct scheduler *s = &world.core->scheduler;
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->num_in_flight; i++) {
        const struct submission *submission =
            &s->in_flight[(s->first_in_flight + i) % SCHEDULER_MAX_IN_FLIGHT];
        for (uint32_t k = 0; k < submission->num_links; k++)
            count += submission->links[k].run->session == worker->session;
    }
    return count;
}

// Otherwise a new run would wait for two such slices.
START_TEST(one_slice_that_is_too_long_is_in_flight_among_other_sessions)
{
    const uint64_t short_run = queue_both();
    slice_by(10); // a's run has nine pieces, of some 100 ns each
    finish_one();
    ck_assert_uint_eq(in_flight(&a), 1);
    finish_one();
    ck_assert_uint_eq(in_flight(&a), 1);
    ck_assert_uint_eq(in_flight(&b), 1);
    uint32_t slices = 0;
    for (; ask(&a, ticket) == STATUS_TIMEOUT; slices++) {
        ck_assert_uint_le(in_flight(&a), 1);
        finish_one();
        world_check(&world);
    }
    ck_assert_uint_ge(slices, 9);
    ck_assert_int_eq(ask(&b, short_run), STATUS_OK);
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
    expect_links(2 * 3, 2 * 3, 0); // in three, for its tile has no more parts
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
    expect_links(0, 0, WORLD_LAYERS); // a block of a layer stays whole
    expect_slots(to, 1, 1);
    expect_slots(to + 1, 1, 1);
}
END_TEST

// ---- when little or nothing is cut ----

enum { LATER_NS = 2 * SCHEDULER_LATELY_NS };

static void alone_from_now_on(void)
{
    slice_by(100);
    world.core->params.slice_ns = 0; // as in a daemon
    world.now_ns += LATER_NS;
}

START_TEST(a_session_alone_on_a_gpu_has_its_runs_whole)
{
    const uint64_t large = make_reader(&a, blocks[0], ROWS, KEYS);
    alone_from_now_on(); // b and c are open, and idle
    ticket = worker_run(&a, large, 0, ROWS, NULL);
    world_step(&world);
    ck_assert_uint_eq(newest()->num_slices, 0);
    world_finish_all(&world);
    run(&b, 0);
    world_finish_all(&world);
    ticket = worker_run(&a, large, 0, ROWS, NULL);
    world_step(&world);
    ck_assert_uint_eq(newest()->num_slices, 9);
    world_finish_all(&world);
}
END_TEST

START_TEST(a_very_long_run_of_a_session_alone_is_cut_into_long_slices)
{
    const uint64_t large = make_reader(&a, blocks[0], ROWS, KEYS);
    alone_from_now_on();
    world.core->scheduler.speed.ns[SPEED_PREFILL] *= 2.5 * SPEED_ALONE_NS / 885;
    ticket = worker_run(&a, large, 0, ROWS, NULL);
    world_step(&world);
    ck_assert_uint_eq(newest()->num_slices, 3);
    ck_assert_uint_eq(in_flight(&a), 2); // so that the GPU never waits
    world_finish_all(&world);
    ck_assert_int_eq(ask(&a, ticket), STATUS_OK);
}
END_TEST

START_TEST(a_prompt_is_cut_into_no_pieces_that_leave_the_device_idle)
{
    enum { PROMPT = 98000, HEADS = 8, MULTIPROCESSORS = 132 };
    struct engine_device *device = (struct engine_device *)engine_device(world.engine);
    struct core_session session = {.ledger = &world.core->ledger};
    const struct core_run_params p = {.entry = {.kind = WIRE_RUN_ATTEND, .num_heads = HEADS}};
    struct batch prompt = {.session = &session,
                           .num_seqs = 1,
                           .num_tokens = PROMPT,
                           .max_rows = PROMPT,
                           .kv = {.num_kv_heads = HEADS}};
    ck_assert_uint_eq(weight_units(&prompt, &p), 1 + PROMPT / BATCH_TILE_ROWS);
    device->num_multiprocessors = MULTIPROCESSORS;
    ck_assert_uint_eq(weight_units(&prompt, &p), 47); // each with 128 rows a multiprocessor
}
END_TEST

// a's first layer is in flight as a whole when b comes. The second layer is queued.
static uint64_t queue_layers(void)
{
    const uint64_t large = make_reader(&a, blocks[0], ROWS, KEYS);
    struct core_run_params params = worker_run_params(&a, large, 0, ROWS, NULL);
    params.layers.num_layers = WORLD_LAYERS;
    world.core->scheduler.budget = 1; // a link in each submission
    occupy();
    alone_from_now_on();
    ticket = worker_queue(&a, &params);
    finish_one();
    ck_assert_uint_eq(newest()->line, a.session->id);
    ck_assert_uint_eq(newest()->num_slices, 0);
    return run(&b, 0);
}

START_TEST(a_run_that_began_alone_is_cut_at_its_next_layer_if_another_session_comes)
{
    const uint64_t other = queue_layers();
    uint32_t links[2] = {0};
    while (fake_engine_oldest(world.engine)) {
        const struct engine_run *first = &fake_engine_oldest(world.engine)->runs[0].run;
        if (first->line == a.session->id)
            links[first->layer]++;
        finish_one();
        world_check(&world);
    }
    ck_assert_int_eq(ask(&b, other), STATUS_OK);
    ck_assert_int_eq(ask(&a, ticket), STATUS_OK);
    ck_assert_uint_eq(links[0], 1);
    ck_assert_uint_eq(links[1], 9);
}
END_TEST

// The last slice of a layer is in flight with the next layer as a whole.
START_TEST(a_slice_that_is_put_off_with_the_next_layer_goes_on_as_it_was_cut)
{
    const uint64_t large = make_reader(&a, blocks[0], ROWS, KEYS);
    struct core_run_params params = worker_run_params(&a, large, 0, ROWS, NULL);
    params.layers.num_layers = WORLD_LAYERS;
    world.core->scheduler.budget = 1; // a link in each submission
    alone_from_now_on();
    occupy();
    ticket = worker_queue(&a, &params);
    do
        finish_one();
    while (newest()->line != a.session->id || newest()->slice < 8);
    world.now_ns += LATER_NS;
    finish_one();
    ck_assert_uint_eq(newest()->layer, 1);
    ck_assert_uint_eq(newest()->num_slices, 0);
    fake_engine_put_off(world.engine, a.session->id);
    while (finish_one())
        ;
    world_check(&world);
    fake_engine_compiled(world.engine);
    world_step(&world);
    const struct engine_run *first = &fake_engine_oldest(world.engine)->runs[0].run;
    ck_assert_uint_eq(first->layer, 0);
    ck_assert_uint_eq(first->slice, 8);
    ck_assert_uint_eq(first->num_slices, 9);
    ck_assert_uint_eq(newest()->layer, 1);
    world_finish_all(&world);
    ck_assert_int_eq(ask(&a, ticket), STATUS_OK);
}
END_TEST

// 32 sequences of the same 8 blocks. By the estimate that takes four slices without a cascade.
START_TEST(a_decode_that_a_cascade_makes_short_stays_whole)
{
    enum { SEQS = 32 };
    int32_t cu[SEQS + 1] = {0}, lens[SEQS], table[SEQS * 8];
    worker_fill(&a, blocks[0], 8);
    for (int i = 0; i < SEQS; i++) {
        cu[i + 1] = i + 1;
        lens[i] = 64;
        memcpy(table + (ptrdiff_t)i * 8, blocks[0], sizeof *table * 8);
    }
    const struct core_batch_params params = sequences_over(a.cache, SEQS, cu, lens, table, 8);
    const uint64_t batch = worker_create(&a, &params);
    slice_by(50);
    ticket = worker_run(&a, batch, 0, SEQS, NULL);
    world_step(&world);
    ck_assert_uint_eq(newest()->num_slices, 0);
    slice_by(0.1); // too long, if there is none
    ticket = worker_run(&a, batch, 0, SEQS, NULL);
    world_finish_all(&world);
    ck_assert_uint_gt(worker_result(&a, ticket).gpu_ns, 1000);
}
END_TEST

// ---- what is learnt ----

START_TEST(the_time_of_each_kind_is_learnt_and_no_single_dispatch_changes_it)
{
    struct speed speed;
    speed_init(&speed, true, 0);
    const double before = speed_ns(&speed, SPEED_MERGE, 1000), slice_ns = SPEED_SLICE_NS_SOFTWARE;
    const uint64_t work = SPEED_SLICE_NS_SOFTWARE;
    speed_learn(&speed, SPEED_GATHER, work, UINT64_C(1000) * work); // with a compile
    ck_assert_double_eq(speed_ns(&speed, SPEED_GATHER, 1000), before);
    speed_learn(&speed, SPEED_GATHER, work, UINT64_C(1000) * work);
    ck_assert_double_eq(speed_ns(&speed, SPEED_GATHER, 1000), 2 * before);
    for (int i = 0; i < 60; i++)
        speed_learn(&speed, SPEED_GATHER, work, work / 10);
    ck_assert_double_eq_tol(speed_ns(&speed, SPEED_GATHER, 1000), before / 10, before / 1000);
    speed_learn(&speed, SPEED_GATHER, 1, 1000); // too short to say anything
    speed_learn(&speed, SPEED_GATHER, work, 0); // no timestamps
    ck_assert_double_eq_tol(speed_ns(&speed, SPEED_GATHER, 1000), before / 10, before / 1000);
    ck_assert_double_eq(speed_ns(&speed, SPEED_MERGE, 1000), before);
    ck_assert_uint_eq(speed_slices(&speed, SPEED_MERGE, work + 1, UINT64_MAX, slice_ns), 2);
    ck_assert_uint_eq(speed_slices(&speed, SPEED_MERGE, UINT64_MAX, UINT64_MAX, slice_ns),
                      SPEED_MOST_SLICES);
    ck_assert_uint_eq(speed_slices(&speed, SPEED_MERGE, UINT64_MAX, 3, slice_ns), 3);
}
END_TEST

START_TEST(an_estimate_that_compiles_made_too_high_comes_down_again)
{
    struct speed speed;
    speed_init(&speed, true, 0);
    const uint64_t work = SPEED_SLICE_NS_SOFTWARE;
    for (int i = 0; i < 8; i++)
        speed_learn(&speed, SPEED_DECODE, work, UINT64_C(2000000000));
    ck_assert_double_ge(speed_ns(&speed, SPEED_DECODE, work), 64.0 * work);
    for (int i = 0; i < 40; i++)
        speed_learn(&speed, SPEED_DECODE, work, work / 1000);
    ck_assert_double_le(speed_ns(&speed, SPEED_DECODE, work), SPEED_SLICE_NS_SOFTWARE);
}
END_TEST

// 6.4 million rows of 64 bytes take some ten milliseconds on a fast GPU.
START_TEST(the_first_gather_of_a_gpu_is_cut_before_anything_is_learnt)
{
    enum { ROWS_MOVED = 6400000, ROW = 64 };
    struct speed speed;
    speed_init(&speed, false, 0);
    const uint64_t work = weight_moved_work((uint64_t)ROWS_MOVED * ROW, ROWS_MOVED);
    ck_assert_uint_ge(speed_slices(&speed, SPEED_GATHER, work, ROWS_MOVED, SPEED_SLICE_NS), 10);
}
END_TEST

// The first of nine slices has nearly all of the work.
START_TEST(a_layer_whose_slices_are_unequal_is_learnt_as_a_whole)
{
    const uint64_t large = make_reader(&a, blocks[0], ROWS, KEYS);
    const double *speed = &world.core->scheduler.speed.ns[SPEED_PREFILL], before = *speed;
    for (int i = 0; i < 8; i++) {
        ticket = worker_run(&a, large, 0, ROWS, NULL);
        world_step(&world);
        while (fake_engine_oldest(world.engine)) {
            struct fake_run *first = &fake_engine_oldest(world.engine)->runs[0];
            first->own_ns = first->run.slice ? 1 : 1770;
            finish_one();
        }
        worker_reap(&a, ticket, STATUS_OK);
    }
    ck_assert_double_ge(*speed, 1.9 * before); // twice the 885 ns of the estimate
    ck_assert_double_le(*speed, 2.1 * before);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("slices");
    check_case(suite, "slices", open_sliced, close_all,
               (const TTest *const[]){
                   a_short_run_goes_between_the_slices_of_a_long_one,
                   one_slice_that_is_too_long_is_in_flight_among_other_sessions,
                   a_session_whose_compile_ends_goes_on_with_the_slice_that_was_put_off,
                   a_slice_that_fails_ends_its_run_and_no_further_slice_is_done,
                   a_session_that_ends_between_two_slices_leaves_nothing,
                   the_slices_of_a_run_write_and_copy_what_it_would_as_a_whole,
                   a_session_alone_on_a_gpu_has_its_runs_whole,
                   a_very_long_run_of_a_session_alone_is_cut_into_long_slices,
                   a_prompt_is_cut_into_no_pieces_that_leave_the_device_idle,
                   a_run_that_began_alone_is_cut_at_its_next_layer_if_another_session_comes,
                   a_slice_that_is_put_off_with_the_next_layer_goes_on_as_it_was_cut,
                   a_decode_that_a_cascade_makes_short_stays_whole,
                   a_layer_whose_slices_are_unequal_is_learnt_as_a_whole, NULL},
               1);
    check_case(
        suite, "speed", NULL, NULL,
        (const TTest *const[]){the_time_of_each_kind_is_learnt_and_no_single_dispatch_changes_it,
                               the_first_gather_of_a_gpu_is_cut_before_anything_is_learnt,
                               an_estimate_that_compiles_made_too_high_comes_down_again, NULL},
        1);
    return check_main(suite);
}
