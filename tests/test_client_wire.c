// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_wire.c - what runs and large metadata put on the wire, and which tickets the library reaps itself. Each test is a process
// of its own with a fake daemon in it.

#include <math.h>
#include <string.h>
#include <time.h>

#include "client_world.h"

// ---- what goes onto the wire ----

// A run as the daemon sees it when the command arrives.
struct seen_run {
    struct wire_run run;
    float slopes[3], sinks[3];
};

static enum fake_action keep_run(struct fake_daemon *daemon, const struct wire_request *request,
                                 struct wire_reply *reply)
{
    struct seen_run *seen = daemon->context;
    (void)reply;
    if (request->command != WIRE_COMMAND_RUN)
        return FAKE_ANSWER;
    seen->run = request->run;
    if (request->run.slopes.count == 3)
        memcpy(seen->slopes, fake_arena(daemon) + request->run.slopes.offset, sizeof seen->slopes);
    if (request->run.sinks.count == 3)
        memcpy(seen->sinks, fake_arena(daemon) + request->run.sinks.offset, sizeof seen->sinks);
    return FAKE_ANSWER;
}

START_TEST(every_parameter_of_a_run_reaches_the_daemon)
{
    static const float slopes[3] = {1, 2, 3}, sinks[3] = {-4, 5, -INFINITY};
    struct seen_run kept = {.slopes = {0}};
    const struct wire_run *seen = &kept.run;
    fake_start(&fake, path, keep_run, &kept);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    struct aule_batch *batch = create_batch(cache);
    const struct aule_run_params plain = {
        .layer = 2,
        .num_heads = 3,
        .q = {.dtype = AULE_F16, .offset = 256, .token_stride = 384, .head_stride = 128},
        .scale = 0.5f};
    ck_assert_int_eq(aule_run_submit(batch, &plain, 17, NULL), AULE_OK);
    ck_assert_uint_eq(seen->batch, 9);
    ck_assert_uint_eq(seen->layer, 2);
    ck_assert_uint_eq(seen->q.token_stride, 384);
    ck_assert_uint_eq(seen->flags, WIRE_RUN_DETACHED);
    ck_assert_int_eq(seen->window_left, -1);
    ck_assert_int_eq(seen->window_right, -1);
    ck_assert_uint_eq(seen->slopes.count, 0);
    ck_assert_int_eq(seen->timeout_ms, 17);
    ck_assert_float_eq(seen->scale, 0.5f);
    struct aule_ticket ticket;
    const struct aule_run_params rich = {
        .num_heads = 3,
        .causal = true,
        .window = {.enabled = true, .left = 7, .right = 0},
        .logits_soft_cap = 30,
        .mask_value = -5,
        .alibi_slopes = slopes,
        .sinks = sinks,
        .lse = {.dtype = AULE_F32, .offset = 512},
        .num_splits = 6,
    };
    ck_assert_int_eq(aule_run_submit(batch, &rich, 0, &ticket), AULE_OK);
    ck_assert_uint_eq(seen->flags, WIRE_RUN_CAUSAL);
    ck_assert_int_eq(seen->window_left, 7);
    ck_assert_int_eq(seen->window_right, 0);
    ck_assert_float_eq(seen->logits_soft_cap, 30);
    ck_assert_float_eq(seen->mask_value, -5);
    ck_assert_uint_eq(seen->slopes.count, 3);
    ck_assert_uint_eq(seen->sinks.count, 3);
    ck_assert_uint_eq(seen->lse.dtype, AULE_F32);
    ck_assert_uint_eq(seen->num_splits, 6);
    ck_assert_mem_eq(kept.slopes, slopes, sizeof slopes);
    ck_assert_mem_eq(kept.sinks, sinks, sizeof sinks);
    expect_empty_arena(session);
    void *most;
    ck_assert_int_eq(aule_arena_alloc(session, FAKE_ARENA, &most, NULL), AULE_OK);
    unsigned seen_before = atomic_load(&fake.seen[WIRE_COMMAND_RUN]);
    expect(aule_run_submit(batch, &rich, 0, &ticket), AULE_NO_MEMORY,
           "slopes, sinks and frequencies: 32 bytes have no room");
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_RUN]), seen_before);
    ck_assert_int_eq(aule_run_submit(batch, &plain, 0, NULL), AULE_OK); // without arrays no room is needed
    aule_arena_free(session, most);
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

static enum fake_action failing_wait(struct fake_daemon *daemon, const struct wire_request *request,
                                     struct wire_reply *reply)
{
    (void)daemon;
    if (request->command == WIRE_COMMAND_WAIT) {
        reply->wait.run_status = STATUS_DEVICE_LOST;
        reply->wait.run_message = "the GPU hung";
    }
    return FAKE_ANSWER;
}

START_TEST(a_run_that_failed_says_why)
{
    fake_start(&fake, path, failing_wait, NULL);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    struct aule_batch *batch = create_batch(cache);
    expect(aule_ticket_wait(session, submit_one(batch), 0, NULL), AULE_DEVICE_LOST, "the GPU hung");
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

static enum fake_action late_run(struct fake_daemon *daemon, const struct wire_request *request,
                                 struct wire_reply *reply)
{
    bool *done = daemon->context;
    if (request->command == WIRE_COMMAND_WAIT && !*done) {
        reply->status = STATUS_TIMEOUT;
        reply->message = "ticket 1 is not done";
        reply->answer = WIRE_ANSWER_EMPTY;
    }
    return FAKE_ANSWER;
}

START_TEST(a_run_whose_wait_timed_out_is_reaped_by_the_next_submission)
{
    bool done = false;
    const struct aule_run_params run = {.num_heads = 1};
    fake_start(&fake, path, late_run, &done);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    struct aule_batch *batch = create_batch(cache);
    for (int i = 0; i < 12; i++)
        expect(aule_run(batch, &run, 0, NULL), AULE_TIMEOUT, "ticket 1");
    done = true;
    unsigned before = atomic_load(&fake.seen[WIRE_COMMAND_WAIT]);
    ck_assert_int_eq(aule_run_submit(batch, &run, 0, NULL), AULE_OK);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_WAIT]), before + 12);
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// As the daemon: a run that finds max_tickets unreaped waits for one to be reaped, for ever if need be.
struct crowd {
    unsigned unreaped;
    bool stuck; // no run ever ends
};

static enum fake_action crowded(struct fake_daemon *daemon, const struct wire_request *request,
                                struct wire_reply *reply)
{
    struct crowd *crowd = daemon->context;
    if (request->command == WIRE_COMMAND_RUN && crowd->unreaped == 4) {
        reply->status = STATUS_BUSY;
        reply->message = "4 tickets of the session are unreaped";
        reply->answer = WIRE_ANSWER_EMPTY;
        return request->run.timeout_ms == 0 ? FAKE_ANSWER : FAKE_SILENCE;
    }
    if (request->command == WIRE_COMMAND_RUN)
        crowd->unreaped++;
    if (request->command == WIRE_COMMAND_WAIT && (crowd->stuck || request->wait.timeout_ms == 0)) {
        reply->status = STATUS_TIMEOUT;
        reply->message = "the ticket is not done";
        reply->answer = WIRE_ANSWER_EMPTY;
        nanosleep(&(struct timespec){.tv_nsec = request->wait.timeout_ms * 1000000L}, NULL);
    } else if (request->command == WIRE_COMMAND_WAIT) {
        crowd->unreaped--;
    }
    return FAKE_ANSWER;
}

// With as many tickets of the caller's own as the loop says.
START_TEST(a_run_without_end_waits_for_the_runs_that_were_abandoned)
{
    struct crowd crowd = {0};
    const struct aule_run_params run = {.num_heads = 1};
    fake_start(&fake, path, crowded, &crowd);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    struct aule_batch *batch = create_batch(cache);
    for (int i = 0; i < _i; i++)
        submit_one(batch);
    for (int i = _i; i < 4; i++)
        expect(aule_run(batch, &run, 0, NULL), AULE_TIMEOUT, "not done");
    expect(aule_run(batch, &run, 0, NULL), AULE_BUSY, "4 tickets");
    crowd.stuck = true;
    expect(aule_run(batch, &run, 50, NULL), AULE_BUSY, "4 tickets");
    crowd.stuck = false;
    for (int i = 0; i < 10; i++)
        ck_assert_int_eq(aule_run(batch, &run, -1, NULL), AULE_OK);
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// ---- large metadata ----

enum { MANY_SEQS = 300, MANY_BLOCKS = 1000, MANY_TOKENS = 300000 };

static enum fake_action check_spans(struct fake_daemon *daemon, const struct wire_request *request,
                                    struct wire_reply *reply)
{
    const uint8_t *arena = fake_arena(daemon);
    bool *right = daemon->context;
    switch (request->command) {
    case WIRE_COMMAND_BATCH_CREATE: {
        const struct wire_batch_create *batch = &request->batch_create;
        *right = batch->block_table.count == 0 && batch->block_table_span.count == MANY_SEQS * MANY_BLOCKS &&
                 batch->cu_seqlens_q_span.count == MANY_SEQS + 1 && batch->seq_lens_kv_span.count == MANY_SEQS &&
                 batch->slot_mapping_span.count == MANY_SEQS && batch->positions_span.count == 0;
        const int32_t *table = (const int32_t *)(const void *)(arena + batch->block_table_span.offset);
        for (int32_t i = 0; *right && i < MANY_SEQS * MANY_BLOCKS; i++)
            *right = table[i] == i * 3;
        const int64_t *slots = (const int64_t *)(const void *)(arena + batch->slot_mapping_span.offset);
        for (int32_t i = 0; *right && i < MANY_SEQS; i++)
            *right = slots[i] == i * 7;
        break;
    }
    case WIRE_COMMAND_PREFIX_PUBLISH: {
        const struct wire_prefix_publish *publish = &request->prefix_publish;
        const int32_t *tokens = (const int32_t *)(const void *)(arena + publish->token_span.offset);
        *right = publish->token_span.count == MANY_TOKENS && publish->tokens.count == 0 &&
                 publish->blocks.count == MANY_TOKENS / 8;
        for (int32_t i = 0; *right && i < MANY_TOKENS; i++)
            *right = tokens[i] == i;
        reply->answer = WIRE_ANSWER_PREFIX_PUBLISH;
        reply->prefix_publish.blocks = (struct wire_ints){.data = daemon->blocks, .count = MANY_TOKENS / 8};
        break;
    }
    default: break;
    }
    return FAKE_ANSWER;
}

START_TEST(metadata_larger_than_a_message_travels_through_the_arena)
{
    static int32_t cu[MANY_SEQS + 1], lens[MANY_SEQS], table[MANY_SEQS * MANY_BLOCKS];
    static int64_t slots[MANY_SEQS];
    bool right = false;
    struct aule_batch *batch = NULL;
    void *most;
    for (int32_t i = 0; i < MANY_SEQS; i++) {
        cu[i + 1] = i + 1;
        slots[i] = i * 7;
    }
    for (int32_t i = 0; i < MANY_SEQS * MANY_BLOCKS; i++)
        table[i] = i * 3;
    const struct aule_batch_params params = {.num_seqs = MANY_SEQS,
                                             .max_blocks = MANY_BLOCKS,
                                             .cu_seqlens_q = cu,
                                             .seq_lens_kv = lens,
                                             .block_table = table,
                                             .slot_mapping = slots};
    fake_start(&fake, path, check_spans, &right);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    ck_assert_int_eq(aule_batch_create(cache, &params, &batch), AULE_OK);
    ck_assert(right);
    aule_batch_destroy(batch);
    expect_empty_arena(session);
    ck_assert_int_eq(aule_arena_alloc(session, FAKE_ARENA - 1000000, &most, NULL), AULE_OK);
    expect(aule_batch_create(cache, &params, &batch), AULE_NO_MEMORY,
           "metadata too large for a message: 1204816 bytes");
    ck_assert_ptr_null(batch);
    aule_arena_free(session, most);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

START_TEST(a_prompt_larger_than_a_message_travels_through_the_arena)
{
    static int32_t tokens[MANY_TOKENS], blocks[MANY_TOKENS / 8];
    bool right = false;
    const struct aule_prefix prefix = {.tokens = tokens, .num_tokens = MANY_TOKENS};
    for (int32_t i = 0; i < MANY_TOKENS; i++)
        tokens[i] = i;
    fake_start(&fake, path, check_spans, &right);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    ck_assert_int_eq(aule_blocks_lease(cache, MANY_TOKENS / 8, 0, blocks), AULE_OK);
    ck_assert_int_eq(aule_prefix_publish(cache, &prefix, blocks, NULL), AULE_OK);
    ck_assert(right);
    expect_empty_arena(session);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

START_TEST(a_list_of_blocks_larger_than_a_message_is_refused)
{
    enum { TOO_MANY = 300000 };
    static int32_t blocks[TOO_MANY];
    fake_start(&fake, path, NULL, NULL);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    expect(aule_blocks_lease(cache, TOO_MANY, 0, blocks), AULE_LIMIT, "300000 blocks");
    expect(aule_blocks_release(cache, TOO_MANY, blocks), AULE_LIMIT, "1048576 bytes");
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_BLOCKS_LEASE]), 0);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

static const int32_t rising[] = {0, 2}, negative[] = {0, -3}, one[] = {1};

static const struct {
    struct aule_batch_params params;
    const char *words;
} batch_cases[] = {
    {{.num_seqs = 1}, "cu_seqlens_q is NULL"},
    {{.num_seqs = 1, .cu_seqlens_q = negative, .seq_lens_kv = one}, "cu_seqlens_q[1] = -3"},
    {{.num_seqs = 1, .cu_seqlens_q = rising}, "seq_lens_kv is NULL"},
    {{.num_seqs = 1, .max_blocks = 6, .cu_seqlens_q = rising, .seq_lens_kv = one}, "[1, 6]"},
    {{.num_seqs = 1, .cu_seqlens_q = rising, .seq_lens_kv = one, .mask = one}, "mask_size 0"},
    {{.num_seqs = 1, .cu_seqlens_q = rising, .seq_lens_kv = one, .mask_size = 11}, "mask_size 11"},
};
enum { NUM_BATCH_CASES = sizeof batch_cases / sizeof *batch_cases };

START_TEST(arrays_that_are_missing_are_named)
{
    struct aule_batch *batch = NULL;
    fake_start(&fake, path, NULL, NULL);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    expect(aule_batch_create(cache, &batch_cases[_i].params, &batch), AULE_INVALID, batch_cases[_i].words);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_BATCH_CREATE]), 0);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// ---- the suite ----

int main(void)
{
    Suite *suite = suite_create("client_wire");
    add(suite, "the wire",
        (const struct entry[]){
            {every_parameter_of_a_run_reaches_the_daemon, 0},
            {a_run_that_failed_says_why, 0},
            {a_run_whose_wait_timed_out_is_reaped_by_the_next_submission, 0},
            {a_run_without_end_waits_for_the_runs_that_were_abandoned, 4},
            {metadata_larger_than_a_message_travels_through_the_arena, 0},
            {a_prompt_larger_than_a_message_travels_through_the_arena, 0},
            {a_list_of_blocks_larger_than_a_message_is_refused, 0},
            {arrays_that_are_missing_are_named, NUM_BATCH_CASES},
            {NULL, 0},
        });
    return check_main(suite);
}
