// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_daemon_work.c - a real aule-daemon's work for correct clients: attention, shared prefixes,
// metadata in the arena, pipelines and tickets. Tests that use tensors run with both kinds of arena
// memory.

#include "rigs/check_main.h"
#include "rigs/daemon_step.h"
#include "rigs/daemon_suite.h"

#include <string.h>

START_TEST(one_client_gets_attention)
{
    start(memory_path(_i));
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    if (_i)
        ck_assert(!raw->hello.arena_imported);
    uint64_t cache = open_cache(raw, "work");
    int32_t block = do_step(raw, cache, 3.5f);
    release(raw, cache, &block, 1);
    struct daemon_state state = raw_inspect(raw);
    ck_assert_uint_eq(state.runs_done, 1);
    ck_assert_uint_eq(state.leased_blocks, 0);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_CLOSE_SESSION}, STATUS_OK);
    ck_assert_uint_eq(raw_inspect(raw).num_sessions, 0);
    raw->session = raw->epoch = 0;
    struct wire_reply reply;
    raw_hello(raw, 0, &reply); // the connection may shake hands again
    ck_assert_int_eq(reply.status, STATUS_OK);
    raw_close(raw);
    stop_clean();
}
END_TEST

static void publish(struct raw_client *raw, uint64_t cache, const int32_t *tokens, int32_t block)
{
    const struct wire_request request = {
        .command = WIRE_COMMAND_PREFIX_PUBLISH,
        .prefix_publish = {.cache = cache, .tokens = {tokens, BLOCK}, .blocks = {&block, 1}}};
    raw_expect(raw, &request, STATUS_OK);
}

static int32_t look_up(struct raw_client *raw, uint64_t cache, const int32_t *tokens)
{
    const struct wire_request request = {
        .command = WIRE_COMMAND_PREFIX_LOOKUP,
        .prefix_lookup = {.cache = cache, .tokens = {tokens, BLOCK}}};
    struct wire_reply reply;
    raw_call(raw, &request, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "PrefixLookup: %s", reply.message);
    ck_assert_uint_eq(reply.prefix_lookup.blocks.count, 1);
    ck_assert_uint_eq(reply.prefix_lookup.num_tokens, BLOCK);
    return reply.prefix_lookup.blocks.data[0];
}

// One session publishes; another attends to the published blocks without writing. The output must
// be `expected`.
static void share_a_block(float expected)
{
    static const int32_t tokens[BLOCK] = {3, 1, 4, 1, 5, 9, 2, 6};
    struct raw_client *writer = raw_session(daemon_.socket, ARENA),
                      *reader = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(writer, "shared"), same = open_cache(reader, "shared");
    ck_assert_uint_eq(cache, same);
    publish(writer, cache, tokens, do_step(writer, cache, 2.5f));
    int32_t block = look_up(reader, cache, tokens);
    const struct wire_request request = fill_request(cache, &block, NULL);
    uint64_t batch = create_batch(reader, &request);
    put_step(reader, 999); // its own K and V are not read
    wait_done(reader, submit(reader, batch));
    check_out(reader, expected);
    raw_close(writer);
    raw_close(reader);
}

START_TEST(a_published_block_serves_another_session)
{
    start(memory_path(_i));
    share_a_block(2.5f);
    stop_clean();
}
END_TEST

START_TEST(a_corrupt_block_spoils_what_others_get)
{
    ck_assert(daemon_init(&daemon_));
    daemon_.corrupt = true;
    ck_assert(daemon_start(&daemon_, NULL));
    share_a_block(-2.5f);
    ck_assert(daemon_log_contains(&daemon_, "fault: block"));
    stop_clean();
}
END_TEST

START_TEST(the_validation_layer_has_nothing_to_say)
{
    start((const char *const[]){"--validation", _i ? DAEMON_STAGED : NULL, NULL});
    share_a_block(2.5f);
    stop_clean();
    ck_assert(daemon_log_contains(&daemon_, "validation: 0 messages"));
    ck_assert(!daemon_log_contains_now(&daemon_, "Validation Error"));
    ck_assert(!daemon_log_contains_now(&daemon_, "VUID-"));
}
END_TEST

// Writes and attends in one cache. Then the pipelines of other caches replace its pipelines, and
// they are made again.
START_TEST(as_many_pipelines_are_kept_as_the_option_says)
{
    struct wire_reply reply;
    start((const char *const[]){"--max-pipelines", "2", NULL});
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    struct wire_request half = cache_request("half");
    half.cache_open.k_dtype = half.cache_open.v_dtype = DTYPE_F16;
    raw_call(raw, &half, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "CacheOpen: %s", reply.message);
    const uint64_t caches[2] = {open_cache(raw, "full"), reply.cache_open.cache};
    for (int i = 0; i < 4; i++) {
        do_step(raw, caches[i % 2], (float)i + 1);
        raw_call(raw, &(struct wire_request){.command = WIRE_COMMAND_INSPECT_DEVICE}, &reply);
        ck_assert_int_eq(reply.status, STATUS_OK);
        ck_assert_uint_eq(reply.inspect_device.pipelines, 2);
        wire_reply_finish(&reply);
    }
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(metadata_may_lie_in_the_arena)
{
    start(memory_path(_i));
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "spans");
    int32_t block;
    int64_t slots[BLOCK];
    lease(raw, cache, 1, &block);
    slots_of(block, slots);
    struct wire_request request = fill_request(cache, &block, slots);
    memcpy(raw_arena(raw) + 32768, request.batch_create.cu_seqlens_q.data, 8);
    memcpy(raw_arena(raw) + 32776, &block, 4);
    memcpy(raw_arena(raw) + 32784, slots, sizeof slots);
    request.batch_create.cu_seqlens_q = request.batch_create.block_table = (struct wire_ints){0};
    request.batch_create.slot_mapping = (struct wire_longs){0};
    request.batch_create.cu_seqlens_q_span = (struct wire_span){32768, 2};
    request.batch_create.block_table_span = (struct wire_span){32776, 1};
    request.batch_create.slot_mapping_span = (struct wire_span){32784, BLOCK};
    uint64_t batch = create_batch(raw, &request);
    memset(raw_arena(raw) + 32768, 0xff, 4096); // it was copied
    put_step(raw, 7);
    wait_done(raw, submit(raw, batch));
    check_out(raw, 7);
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(a_ticket_is_reaped_once)
{
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "tickets");
    int32_t block = do_step(raw, cache, 1);
    const struct wire_request request = fill_request(cache, &block, NULL);
    uint64_t batch = create_batch(raw, &request), ticket = submit(raw, batch);
    wait_done(raw, ticket);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_WAIT, .wait = {ticket, -1}},
               STATUS_NOT_FOUND);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_WAIT, .wait = {123456, -1}},
               STATUS_NOT_FOUND);
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(a_run_of_too_much_work_is_refused_and_the_session_lives_on)
{
    static const int32_t one_query[2] = {0, 1};
    struct wire_reply reply;
    int32_t block;
    start((const char *const[]){"--max-run-work", "1000000", NULL});
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "work");
    lease(raw, cache, 1, &block);
    store(raw, cache, &block, 1);
    struct wire_request create = fill_request(cache, &block, NULL),
                        run = run_request(create_batch(raw, &create), 0);
    raw_call(raw, &run, &reply);
    ck_assert_int_eq(reply.status, STATUS_LIMIT);
    ck_assert_ptr_nonnull(strstr(reply.message, "one run may take 1000000 (--max-run-work)"));
    create.batch_create.cu_seqlens_q = (struct wire_ints){one_query, 2};
    raw_call(raw, &create, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "BatchCreate: %s", reply.message);
    wait_done(raw, submit(raw, reply.batch_create.batch));
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(a_run_without_a_free_ticket_waits_and_is_told_busy)
{
    start((const char *const[]){"--max-tickets", "2", NULL});
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "tickets");
    int32_t block = do_step(raw, cache, 1);
    const struct wire_request create = fill_request(cache, &block, NULL);
    uint64_t batch = create_batch(raw, &create), first = submit(raw, batch);
    submit(raw, batch);
    struct wire_request third = run_request(batch, 0);
    raw_expect(raw, &third, STATUS_BUSY);
    third.run.timeout_ms = 50;
    raw_expect(raw, &third, STATUS_BUSY);
    wait_done(raw, first);
    raw_expect(raw, &third, STATUS_OK);
    raw_close(raw);
    stop_clean();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("daemon work");
    suite_add(suite, "both memory paths",
              (const TTest *const[]){
                  one_client_gets_attention, a_published_block_serves_another_session,
                  the_validation_layer_has_nothing_to_say, metadata_may_lie_in_the_arena, NULL},
              2);
    suite_add(suite, "work",
              (const TTest *const[]){a_corrupt_block_spoils_what_others_get,
                                     as_many_pipelines_are_kept_as_the_option_says,
                                     a_ticket_is_reaped_once,
                                     a_run_of_too_much_work_is_refused_and_the_session_lives_on,
                                     a_run_without_a_free_ticket_waits_and_is_told_busy, NULL},
              1);
    return check_main(suite);
}
