// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_run.c - blocking runs (aule_run(), aule_run_layers()) by messages: how many messages
// they take, and what the library does with each answer. Each test is a process with a fake daemon
// in it.

#include "rigs/client_world.h"

// The answer of the daemon to a run that waits.
struct ending {
    int32_t status, run_status;
    uint64_t ticket;
    struct wire_run run; // the last one
    struct wire_wait wait;
};

static enum fake_action end_run(struct fake_daemon *daemon, const struct wire_request *request,
                                struct wire_reply *reply)
{
    struct ending *ending = daemon->context;
    if (request->command == WIRE_COMMAND_WAIT)
        ending->wait = request->wait;
    if (request->command == WIRE_COMMAND_RUN)
        ending->run = request->run;
    if (request->command != WIRE_COMMAND_RUN || !request->run.waits)
        return FAKE_ANSWER;
    reply->status = ending->status;
    reply->message = ending->status ? "as the test wants it" : "";
    reply->ticket = ending->ticket;
    reply->answer = ending->status ? WIRE_ANSWER_EMPTY : WIRE_ANSWER_WAIT;
    reply->wait = (struct wire_wait_reply){.run_status = ending->run_status,
                                           .gpu_ns = 77,
                                           .num_runs = 1,
                                           .num_sessions = 1,
                                           .run_message = ending->run_status ? "the GPU hung" : ""};
    return FAKE_ANSWER;
}

struct runner {
    struct aule_session *session;
    struct aule_cache *cache;
    struct aule_batch *batch;
};

static struct runner open_runner(fake_handler handler, void *context)
{
    struct runner runner;
    fake_start(&fake, path, handler, context);
    runner.session = open_session(0);
    runner.cache = open_cache(runner.session);
    runner.batch = create_batch(runner.cache);
    return runner;
}

static void close_runner(struct runner *runner)
{
    aule_batch_destroy(runner->batch);
    aule_cache_close(runner->cache);
    aule_session_close(runner->session);
}

static void expect_seen(unsigned runs, unsigned waits)
{
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_RUN]), runs);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_WAIT]), waits);
}

START_TEST(a_run_to_its_end_is_one_message_each_way)
{
    const struct aule_run_params run = {.num_heads = 1};
    struct aule_run_result result;
    struct aule_ticket ticket;
    struct ending ending = {.ticket = 1};
    struct runner runner = open_runner(end_run, &ending);
    ck_assert_int_eq(aule_run(runner.batch, &run, 60000, &result), AULE_OK);
    expect_seen(1, 0);
    ck_assert_uint_eq(result.gpu_ns, 77);
    ck_assert_uint_eq(ending.run.entry.flags & WIRE_RUN_DETACHED, 0);
    ck_assert(ending.run.wait_ms > 0 && ending.run.wait_ms <= 60000);
    ck_assert_int_eq(
        aule_run_layers(runner.batch, &run, &(struct aule_layers){.num_layers = 3}, -1, NULL),
        AULE_OK);
    expect_seen(2, 0);
    ck_assert_uint_eq(ending.run.layers.num_layers, 3);
    ck_assert_int_eq(ending.run.wait_ms, -1);
    ck_assert_int_eq(aule_run_submit(runner.batch, &run, 0, &ticket),
                     AULE_OK); // this one does not wait
    ck_assert_int_eq(aule_ticket_wait(runner.session, ticket, 0, NULL), AULE_OK);
    expect_seen(3, 1);
    close_runner(&runner);
}
END_TEST

START_TEST(a_run_to_its_end_that_failed_says_why)
{
    const struct aule_run_params run = {.num_heads = 1};
    struct ending ending = {.ticket = 12, .run_status = STATUS_DEVICE_LOST};
    struct runner runner = open_runner(end_run, &ending);
    expect(aule_run(runner.batch, &run, 0, NULL), AULE_DEVICE_LOST,
           "the run of ticket 12 failed: the GPU hung");
    expect_seen(1, 0);
    close_runner(&runner);
}
END_TEST

// If a run ends too late, the library reaps its ticket. If the run got no ticket, or one that the
// daemon does not know, there is nothing to reap.
START_TEST(a_run_to_its_end_that_came_too_late_is_reaped_by_the_next)
{
    const struct aule_run_params run = {.num_heads = 1};
    struct ending ending = {.status = STATUS_TIMEOUT, .ticket = 12};
    struct runner runner = open_runner(end_run, &ending);
    expect(aule_run(runner.batch, &run, 0, NULL), AULE_TIMEOUT, "as the test wants it");
    expect_seen(1, 0);
    ending = (struct ending){.status = STATUS_NOT_FOUND};
    expect(aule_run(runner.batch, &run, 0, NULL), AULE_NOT_FOUND, "as the test wants it");
    expect_seen(2, 1);
    ck_assert_uint_eq(ending.wait.ticket, 12);
    ck_assert_int_eq(ending.wait.timeout_ms, 0);
    ending = (struct ending){.status = STATUS_NOT_FOUND, .ticket = 13};
    expect(aule_run(runner.batch, &run, 0, NULL), AULE_NOT_FOUND, "as the test wants it");
    expect_seen(3, 1);
    ending = (struct ending){.ticket = 14};
    ck_assert_int_eq(aule_run(runner.batch, &run, 0, NULL), AULE_OK);
    expect_seen(4, 1);
    close_runner(&runner);
}
END_TEST

static enum fake_action answer_with_nothing(struct fake_daemon *daemon,
                                            const struct wire_request *request,
                                            struct wire_reply *reply)
{
    const bool *waits = daemon->context;
    if (request->command == WIRE_COMMAND_RUN)
        reply->answer = *waits ? WIRE_ANSWER_EMPTY : WIRE_ANSWER_WAIT;
    if (request->command == WIRE_COMMAND_RUN && !*waits)
        reply->wait = (struct wire_wait_reply){.run_message = ""};
    return FAKE_ANSWER;
}

START_TEST(a_run_is_answered_by_its_end_only_if_it_waits)
{
    const struct aule_run_params run = {.num_heads = 1};
    bool waits = true;
    struct runner runner = open_runner(answer_with_nothing, &waits);
    expect(aule_run(runner.batch, &run, 0, NULL), AULE_MALFORMED, "RUN was answered with kind 1");
    waits = false;
    expect(aule_run_submit(runner.batch, &run, 0, NULL), AULE_MALFORMED,
           "RUN was answered with kind");
    close_runner(&runner);
}
END_TEST

// ---- the rows of tensors ----

// A batch of three sequences of 2, 3 and 0 tokens, which writes them.
static struct aule_batch *batch_of_five(struct aule_cache *cache)
{
    struct aule_batch *batch = NULL;
    const int64_t slots[] = {0, 1, 8, 9, 10};
    const struct aule_batch_params params = {.num_seqs = 3,
                                             .max_blocks = 1,
                                             .cu_seqlens_q = (int32_t[]){0, 2, 5, 5},
                                             .seq_lens_kv = (int32_t[]){2, 3, 0},
                                             .block_table = (int32_t[]){0, 1, 2},
                                             .slot_mapping = slots};
    ok(aule_batch_create(cache, &params, &batch));
    return batch;
}

static struct aule_tensor tensor_of(struct aule_session *session, uint32_t num_rows)
{
    struct aule_tensor tensor;
    ok(aule_tensor_create(session, AULE_F32, num_rows, 1, 64, &tensor));
    ck_assert_uint_eq(tensor.num_rows, num_rows);
    return tensor;
}

START_TEST(a_run_beyond_the_rows_of_a_tensor_is_not_sent)
{
    struct runner runner = open_runner(NULL, NULL);
    struct aule_batch *batch = batch_of_five(runner.cache);
    const struct aule_tensor five = tensor_of(runner.session, 5),
                             four = tensor_of(runner.session, 4);
    const struct aule_run_params good = {
        .num_heads = 1, .q = five, .k = five, .v = five, .out = five, .lse = five};
    ok(aule_run_submit(batch, &good, 0, NULL));
    static const char *const names[] = {"q", "k", "v", "out", "lse"};
    for (int i = 0; i < 5; i++) {
        struct aule_run_params run = good;
        struct aule_tensor *const tensors[] = {&run.q, &run.k, &run.v, &run.out, &run.lse};
        char words[64];
        *tensors[i] = four;
        snprintf(words, sizeof words, "%s has num_rows = 4, but the call uses 5 rows", names[i]);
        expect(aule_run_submit(batch, &run, 0, NULL), AULE_OUT_OF_RANGE, words);
        expect(aule_run(batch, &run, 0, NULL), AULE_OUT_OF_RANGE, words);
        tensors[i]->num_rows = 0; // says nothing
        ok(aule_run_submit(batch, &run, 0, NULL));
    }
    expect_seen(6, 0);
    aule_batch_destroy(batch);
    close_runner(&runner);
}
END_TEST

START_TEST(every_layer_of_a_run_lies_in_the_rows_of_its_tensors)
{
    struct runner runner = open_runner(NULL, NULL);
    struct aule_batch *batch = batch_of_five(runner.cache);
    const struct aule_tensor all = tensor_of(runner.session, 15);
    struct aule_run_params run = {.num_heads = 1, .q = all, .k = all, .v = all, .out = all};
    const uint64_t stride = 5 * all.token_stride;
    struct aule_layers layers = {.num_layers = 3, .q_stride = stride, .out_stride = stride};
    ok(aule_run_layers_submit(batch, &run, &layers, 0, NULL));
    layers.num_layers = 4;
    expect(aule_run_layers_submit(batch, &run, &layers, 0, NULL), AULE_OUT_OF_RANGE,
           "q has num_rows = 15, but the call uses 20 rows");
    layers.q_stride = 0;
    expect(aule_run_layers(batch, &run, &layers, 0, NULL), AULE_OUT_OF_RANGE,
           "out has num_rows = 15, but the call uses 20 rows");
    // The layers of a token lie side by side.
    run.out.token_stride *= 4;
    run.out.num_rows = 5;
    layers.out_stride = all.token_stride;
    ok(aule_run_layers_submit(batch, &run, &layers, 0, NULL));
    expect_seen(2, 0);
    aule_batch_destroy(batch);
    close_runner(&runner);
}
END_TEST

START_TEST(sequences_with_an_outer_stride_and_merges_have_rows_too)
{
    struct runner runner = open_runner(NULL, NULL);
    struct aule_batch *batch = batch_of_five(runner.cache);
    struct aule_tensor rows = tensor_of(runner.session, 7), few = tensor_of(runner.session, 4);
    rows.outer_stride = 4 * rows.token_stride; // the second sequence ends with row 4 + 3
    struct aule_run_params run = {.num_heads = 1, .q = rows, .k = rows, .v = rows, .out = rows};
    ok(aule_run_submit(batch, &run, 0, NULL));
    run.out.num_rows = 6;
    expect(aule_run_submit(batch, &run, 0, NULL), AULE_OUT_OF_RANGE,
           "out has num_rows = 6, but the call uses 7 rows");
    rows.outer_stride = 0;
    struct aule_merge_params merge = {.num_parts = 1,
                                      .num_tokens = 5,
                                      .num_heads = 1,
                                      .head_dim = 64,
                                      .outs = &rows,
                                      .lses = &rows,
                                      .out = few};
    expect(aule_merge_submit(runner.session, &merge, 0, NULL), AULE_OUT_OF_RANGE,
           "out has num_rows = 4, but the call uses 5 rows");
    merge.lses = &few;
    expect(aule_merge_submit(runner.session, &merge, 0, NULL), AULE_OUT_OF_RANGE,
           "lses has num_rows = 4, but the call uses 5 rows");
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_MERGE]), 0);
    aule_batch_destroy(batch);
    close_runner(&runner);
}
END_TEST

START_TEST(a_gather_and_an_import_need_a_row_for_each_key)
{
    struct runner runner = open_runner(NULL, NULL);
    struct aule_batch *batch = batch_of_five(runner.cache);
    const struct aule_tensor five = tensor_of(runner.session, 5);
    const struct aule_kv_gather gather = {.k = five, .v = five};
    ok(aule_kv_gather(batch, &gather, 0, NULL));
    const int64_t slots[] = {0, 1, 2, 3, 4, 5};
    struct aule_kv_import import = {.num_rows = 5, .slot_mapping = slots, .k = five, .v = five};
    ok(aule_kv_import(runner.cache, &import, 0, NULL));
    import.num_rows = 6;
    expect(aule_kv_import(runner.cache, &import, 0, NULL), AULE_OUT_OF_RANGE,
           "k has num_rows = 5, but the call uses 6 rows");
    const struct aule_advance advance = {.slot_mapping = slots}; // 5 keys and 5 queries
    ok(aule_batch_advance(batch, &advance));
    expect(aule_kv_gather(batch, &gather, 0, NULL), AULE_OUT_OF_RANGE,
           "k has num_rows = 5, but the call uses 10 rows");
    aule_batch_destroy(batch);
    close_runner(&runner);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client_run");
    add(suite, "runs to their end",
        (const struct entry[]){
            {a_run_to_its_end_is_one_message_each_way, 0},
            {a_run_to_its_end_that_failed_says_why, 0},
            {a_run_to_its_end_that_came_too_late_is_reaped_by_the_next, 0},
            {a_run_is_answered_by_its_end_only_if_it_waits, 0},
            {NULL, 0},
        });
    add(suite, "rows of tensors",
        (const struct entry[]){
            {a_run_beyond_the_rows_of_a_tensor_is_not_sent, 0},
            {every_layer_of_a_run_lies_in_the_rows_of_its_tensors, 0},
            {sequences_with_an_outer_stride_and_merges_have_rows_too, 0},
            {a_gather_and_an_import_need_a_row_for_each_key, 0},
            {NULL, 0},
        });
    return check_main(suite);
}
