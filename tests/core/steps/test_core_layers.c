// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_core_layers.c - a run of several layers: what the engine gets, what is checked, how it
// fails, and what it costs. Also runs of one session that share a wave.

#include "core/scheduler.h"
#include "rigs/check_main.h"
#include "rigs/step_world.h"

#include <string.h>

// ---- layers ----

// Layers 0 and 1 of a batch of 8 new tokens. Tensors of a layer lie `stride` bytes after those of
// the layer before.
static struct core_run_params two_layers(uint64_t batch, uint64_t stride)
{
    struct core_run_params params = worker_run_params(&a, batch, 0, 8, tokens);
    params.layers =
        (struct wire_layers){.num_layers = 2, .q = stride, .k = stride, .v = stride, .out = stride};
    return params;
}

START_TEST(layers_that_touch_nothing_in_common_lie_in_one_wave)
{
    uint64_t batch = worker_batch(&a, blocks, 8, 8);
    const struct core_run_params params = two_layers(batch, 4096);
    uint64_t ticket = worker_queue(&a, &params);
    world_step(&world);
    const struct fake_submission *s = fake_engine_newest(world.engine);
    ck_assert_uint_eq(s->num_runs, 2);
    ck_assert_uint_eq(s->num_waves, 1);
    for (uint32_t i = 0; i < 2; i++) {
        ck_assert_uint_eq(s->runs[i].run.layer, i);
        ck_assert_uint_eq(s->runs[i].run.q.offset, params.entry.q.offset + i * 4096);
        ck_assert_uint_eq(s->runs[i].run.out.offset, params.entry.out.offset + i * 4096);
    }
    world_finish_all(&world);
    struct core_ticket_result result = worker_result(&a, ticket);
    ck_assert_int_eq((int)result.status, STATUS_OK);
    ck_assert_uint_eq(result.num_runs, 1);
    const uint64_t *totals = core_metrics(world.core);
    ck_assert_uint_eq(totals[METRIC_RUNS_DONE], 1);
    ck_assert_uint_eq(totals[METRIC_TOKENS_ATTENDED], 2 * 64);
}
END_TEST

START_TEST(layers_that_write_what_another_one_reads_go_one_after_the_other)
{
    uint64_t batch = worker_batch(&a, blocks, 8, 8);
    struct core_run_params params = two_layers(batch, 4096);
    params.entry.out.offset = params.entry.q.offset + 4096; // the queries of the next layer
    worker_queue(&a, &params);
    world_step(&world);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_waves, 2);
    world_finish_all(&world);
    params = two_layers(batch, 4096);
    params.layers.out = 0; // both layers have the same
    worker_queue(&a, &params);
    world_step(&world);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_waves, 2);
    world_finish_all(&world);
    // If rows of both layers lie side by side, their ranges overlap, but not their bytes.
    params = two_layers(batch, 16);
    params.entry.q.token_stride = params.entry.k.token_stride = params.entry.v.token_stride =
        params.entry.out.token_stride = 128;
    params.entry.k.offset = params.entry.q.offset + 32;
    params.entry.v.offset = params.entry.q.offset + 64;
    params.entry.out.offset = params.entry.q.offset + 96;
    worker_queue(&a, &params);
    world_step(&world);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_waves, 1);
}
END_TEST

START_TEST(every_layer_is_checked_before_any_is_queued)
{
    uint64_t batch = worker_batch(&a, blocks, 8, 8), ticket;
    struct core_run_params params = two_layers(batch, 4096);
    params.layers.num_layers = 3;
    ck_assert_refused(core_run(a.session, &params, &ticket, &error), STATUS_OUT_OF_RANGE,
                      "layer 2 of a cache with 2");
    params = two_layers(batch, 4096);
    params.layers.layer_step = UINT32_MAX;
    ck_assert_refused(core_run(a.session, &params, &ticket, &error), STATUS_OUT_OF_RANGE,
                      "layer 4294967295 of");
    params = two_layers(batch, 4096);
    params.layers.num_layers = CORE_MAX_LAYERS + 1;
    ck_assert_refused(core_run(a.session, &params, &ticket, &error), STATUS_LIMIT,
                      "a run of 1025 layers");
    params = two_layers(batch, 4096);
    params.layers.out = WORLD_ARENA;
    ck_assert_refused(core_run(a.session, &params, &ticket, &error), STATUS_OUT_OF_RANGE,
                      "in 2 layers");
    params.layers.out = UINT64_MAX - 15;
    ck_assert_refused(core_run(a.session, &params, &ticket, &error), STATUS_OUT_OF_RANGE, "out at");
    params = two_layers(batch, 4096);
    params.layers.k = 8;
    ck_assert_refused(core_run(a.session, &params, &ticket, &error), STATUS_MISALIGNED,
                      "k has layer stride 8");
    params = two_layers(batch, 4096);
    params.entry.out.offset = params.entry.q.offset + 8 * 4096; // apart in the first layer
    params.layers.q = 8 * 4096;
    params.layers.out = 0;
    ck_assert_refused(core_run(a.session, &params, &ticket, &error), STATUS_INVALID,
                      "in some layer");
    const float slopes[3] = {1, 2, 0.0f / 0.0f};
    params = two_layers(batch, 4096);
    params.slopes = slopes;
    params.layers.slopes = 2 * sizeof(float);
    ck_assert_refused(core_run(a.session, &params, &ticket, &error), STATUS_INVALID,
                      "slopes[2] is");
    world_step(&world);
    ck_assert_ptr_null(fake_engine_newest(world.engine));
}
END_TEST

START_TEST(slopes_and_sinks_of_a_layer_are_a_stride_behind_those_before_it)
{
    const float slopes[3] = {1, 2, 3}, sinks[1] = {4};
    uint64_t batch = worker_batch(&a, blocks, 8, 8);
    struct core_run_params params = two_layers(batch, 4096);
    params.slopes = slopes;
    params.sinks = sinks;
    params.layers.slopes = 2 * sizeof(float);
    ck_assert_uint_eq(core_run_heads(&params, params.layers.slopes), 3);
    ck_assert_uint_eq(core_run_heads(&params, params.layers.sinks), 1);
    worker_queue(&a, &params);
    world_step(&world);
    const struct fake_submission *s = fake_engine_newest(world.engine);
    for (uint32_t i = 0; i < 2; i++) {
        ck_assert_float_eq(s->runs[i].run.slopes[0], slopes[2 * i]);
        ck_assert_float_eq(s->runs[i].run.sinks[0], 4);
    }
}
END_TEST

START_TEST(a_run_of_layers_fails_with_its_first_failure_and_nothing_counts_as_written)
{
    uint64_t batch = worker_batch(&a, blocks, 8, 8);
    struct core_run_params params = two_layers(batch, 4096);
    uint64_t ticket = worker_queue(&a, &params);
    world_step(&world);
    struct fake_submission *s = fake_engine_newest(world.engine);
    s->runs[1].fail = STATUS_UNSUPPORTED;
    s->runs[1].why = "no shader for it";
    world_finish_all(&world);
    struct core_ticket_result result;
    struct error why = {0};
    ck_assert_int_eq((int)core_ticket_reap(a.session, ticket, &result, &why), STATUS_OK);
    ck_assert_int_eq((int)result.status, STATUS_UNSUPPORTED);
    ck_assert_str_eq(why.text, "no shader for it");
    uint32_t existing;
    ck_assert_refused(worker_try_publish(&a, tokens, 8, blocks, &existing, &error),
                      STATUS_UNWRITTEN, "");
}
END_TEST

START_TEST(the_layers_of_a_run_write_what_single_runs_would)
{
    uint64_t batch = worker_batch(&a, blocks, 8, 8);
    struct core_run_params params = two_layers(batch, 0); // the same k for both
    params.layers.out = 4096;
    uint64_t ticket = worker_queue(&a, &params);
    world_finish_all(&world);
    ck_assert_int_eq((int)worker_result(&a, ticket).status, STATUS_OK);
    ck_assert_uint_eq(worker_publish(&a, tokens, 8, blocks), 0);
}
END_TEST

START_TEST(a_session_that_ends_between_two_layers_lets_go_of_its_blocks)
{
    uint64_t batch = worker_batch(&a, blocks, 8, 8);
    struct core_run_params params = two_layers(batch, 4096);
    for (int i = 0; i < SCHEDULER_MAX_IN_FLIGHT; i++) {
        worker_run(&b, worker_batch(&b, blocks_b, 8, 8), 0, 8, tokens);
        world_step(&world);
    }
    worker_queue(&a, &params);
    worker_close(&a, true);
    world_check(&world);
    world_finish_all(&world);
    world_check(&world);
}
END_TEST

START_TEST(each_layer_has_its_share_of_the_work_that_a_submission_may_have)
{
    uint64_t batch = worker_batch(&a, blocks, 8, 8);
    struct core_run_params params = two_layers(batch, 4096);
    world_close(&world);
    world_open(&world, &(struct core_params){.max_run_work = 1});
    worker_open(&a, &world, 1, "");
    worker_open(&b, &world, 1, "");
    worker_lease(&a, 1, blocks);
    batch = worker_batch(&a, blocks, 8, 8);
    params.entry.batch = batch;
    uint64_t ticket;
    ck_assert_refused(core_run(a.session, &params, &ticket, &error), STATUS_LIMIT,
                      "each layer of the run takes");
}
END_TEST

// ---- waves ----

START_TEST(runs_of_one_session_that_touch_nothing_in_common_share_a_wave)
{
    uint64_t batch = worker_batch(&a, blocks, 8, 8), reader = worker_batch(&a, blocks + 4, 8, 8);
    uint64_t other = worker_open_cache(&a, "other");
    struct core_run_params first = worker_run_params(&a, batch, 0, 8, tokens);
    struct core_run_params second = worker_run_params(&a, reader, 1, 8, tokens);
    struct core_run_params third =
        worker_run_params(&a, reader, 0, 8, tokens); // the layer of the first one
    (void)other;
    for (int i = 0; i < SCHEDULER_MAX_IN_FLIGHT; i++) {
        worker_run(&b, worker_batch(&b, blocks_b, 8, 8), 0, 8, tokens);
        world_step(&world);
    }
    worker_queue(&a, &first);
    worker_queue(&a, &second);
    worker_queue(&a, &third);
    struct core_run_params fourth = worker_run_params(&a, batch, 1, 8, tokens);
    fourth.entry.q = third.entry.out; // reads what the third one writes
    worker_queue(&a, &fourth);
    fake_engine_finish(world.engine);
    world_step(&world);
    const struct fake_submission *s = fake_engine_newest(world.engine);
    ck_assert_uint_eq(s->num_runs, 4);
    const uint32_t waves[4] = {0, 0, 1, 2};
    for (uint32_t i = 0; i < 4; i++)
        ck_assert_uint_eq(s->runs[i].wave, waves[i]);
}
END_TEST

START_TEST(dispatches_are_counted_by_the_sessions_that_they_served)
{
    uint64_t of_a = worker_batch(&a, blocks, 8, 8), of_b = worker_batch(&b, blocks_b, 8, 8);
    worker_run(&a, of_a, 0, 8, tokens);
    world_step(&world);
    worker_run(&b, of_b, 0, 8, tokens);
    world_step(&world);
    worker_run(&a, of_a, 1, 8, tokens);
    worker_run(&b, of_b, 1, 8, tokens);
    world_finish_all(&world);
    const uint64_t *totals = core_metrics(world.core);
    ck_assert_uint_eq(totals[METRIC_DISPATCHES_OF_1], 2);
    ck_assert_uint_eq(totals[METRIC_DISPATCHES_OF_2], 1);
    ck_assert_uint_eq(totals[METRIC_DISPATCHES_OF_4], 0);
    ck_assert_uint_eq(totals[METRIC_SESSIONS_SERVED], 4);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("core layers");
    check_case(suite, "layers", open_world, close_all,
               (const TTest *const[]){
                   layers_that_touch_nothing_in_common_lie_in_one_wave,
                   layers_that_write_what_another_one_reads_go_one_after_the_other,
                   every_layer_is_checked_before_any_is_queued,
                   slopes_and_sinks_of_a_layer_are_a_stride_behind_those_before_it,
                   a_run_of_layers_fails_with_its_first_failure_and_nothing_counts_as_written,
                   the_layers_of_a_run_write_what_single_runs_would,
                   a_session_that_ends_between_two_layers_lets_go_of_its_blocks,
                   each_layer_has_its_share_of_the_work_that_a_submission_may_have, NULL},
               1);
    check_case(suite, "waves", open_world, close_all,
               (const TTest *const[]){runs_of_one_session_that_touch_nothing_in_common_share_a_wave,
                                      dispatches_are_counted_by_the_sessions_that_they_served,
                                      NULL},
               1);
    return check_main(suite);
}
