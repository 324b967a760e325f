// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_daemon_hostile.c - what a client may send to a real aule-daemon, by accident or on purpose:
// messages, ids of others' sessions, and changes of its memory. After each attempt a correct client
// must still be served, and the daemon must still end with 0. Connections:
// test_daemon_connections.c.

#include "rigs/check_main.h"
#include "rigs/hostile_world.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

// ---- messages ----

static void expect_malformed(struct raw_client *raw, const void *data, size_t size)
{
    struct wire_reply reply;
    raw_send(raw, data, size, &reply);
    ck_assert_msg(reply.status == STATUS_MALFORMED, "%zu bytes: %s: %s", size,
                  status_name(reply.status), reply.message);
    ck_assert_uint_gt(strlen(reply.message), 10);
    wire_reply_finish(&reply);
}

START_TEST(truncated_and_oversized_messages_are_malformed)
{
    static uint8_t large[WIRE_MAX_MESSAGE + 100];
    struct wire_buffer buffer;
    struct error error;
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    const struct wire_request request = {.session = raw->session,
                                         .epoch = raw->epoch,
                                         .command = WIRE_COMMAND_CACHE_OPEN,
                                         .cache_open = {.name = "truncated"}};
    ck_assert_int_eq(wire_encode_request(&request, &buffer, &error), STATUS_OK);
    for (size_t size = 0; size < 24; size++)
        expect_malformed(raw, buffer.data, size);
    expect_malformed(raw, large, sizeof large);
    memcpy(large, buffer.data, buffer.size);
    ((uint8_t *)buffer.data)[4] ^= 1; // the file identifier
    expect_malformed(raw, buffer.data, buffer.size);
    wire_buffer_finish(&buffer);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_PING},
               STATUS_OK); // the session still works
    raw_close(raw);
    check_served();
    stop_clean();
}
END_TEST

static uint32_t draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

// K and V contiguous in the arena.
static struct wire_request layout_request(void)
{
    static const int32_t starts[1] = {0};
    return (struct wire_request){.command = WIRE_COMMAND_BATCH_CREATE,
                                 .batch_create = {.has_layout = true,
                                                  .layout = {.num_kv_heads = 1,
                                                             .head_dim_k = 8,
                                                             .head_dim_v = 8,
                                                             .k_dtype = DTYPE_F32,
                                                             .v_dtype = DTYPE_F32},
                                                  .num_seqs = 1,
                                                  .cu_seqlens_q = {token_cu_seqlens_q, 2},
                                                  .seq_lens_kv = {token_seq_lens_kv, 1},
                                                  .kv_starts = {starts, 1}}};
}

// Messages of a live session with some bytes changed. Any answer is allowed, but there must be one.
START_TEST(thousands_of_corrupt_messages_are_answered)
{
    uint32_t seed = 12345;
    static const int32_t block = 0;
    static const int64_t slot = 0;
    static const struct wire_tensor
        parts[2] = {{.dtype = DTYPE_F32, .token_stride = 32, .head_stride = 32},
                    {.dtype = DTYPE_F32, .offset = 64, .token_stride = 32, .head_stride = 32}},
        lses[2] = {{.dtype = DTYPE_F32, .offset = 128, .token_stride = 4},
                   {.dtype = DTYPE_F32, .offset = 144, .token_stride = 4}};
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "shared");
    struct wire_request waiting = token_run(1);
    waiting.run.waits = true;
    waiting.run.wait_ms = 1000;
    const struct wire_request originals[] = {
        token_request(cache, &block, &slot),
        token_run(1),
        waiting,
        {.command = WIRE_COMMAND_BLOCKS_RELEASE, .blocks_release = {cache, {&block, 1}}},
        {.command = WIRE_COMMAND_PREFIX_PUBLISH,
         .prefix_publish = {.cache = cache, .tokens = {&block, 1}, .blocks = {&block, 1}}},
        {.command = WIRE_COMMAND_PREFIX_LOOKUP,
         .prefix_lookup = {.cache = cache, .token_span = {0, 64}}},
        {.command = WIRE_COMMAND_INSPECT_BLOCKS, .inspect_blocks = {cache, 0, 100}},
        {.command = WIRE_COMMAND_BLOCKS_LEASE, .blocks_lease = {cache, 1, 0}},
        layout_request(),
        {.command = WIRE_COMMAND_BLOCKS_COPY,
         .blocks_copy = {.cache = cache, .from = {&block, 1}, .to = {&block, 1}}},
        {.command = WIRE_COMMAND_MERGE,
         .merge = {1, 1, 8, {parts, 2}, {lses, 2}, parts[0], {.dtype = 0}, 0, 0}},
    };
    for (int i = 0; i < 5000; i++) {
        struct wire_request request = originals[i % (int)(sizeof originals / sizeof originals[0])];
        struct wire_buffer buffer;
        struct wire_reply reply;
        struct error error;
        request.session = raw->session;
        request.epoch = raw->epoch;
        ck_assert_int_eq(wire_encode_request(&request, &buffer, &error), STATUS_OK);
        for (uint32_t n = 1 + draw(&seed) % 4; n > 0; n--)
            ((uint8_t *)buffer.data)[8 + draw(&seed) % (buffer.size - 8)] = (uint8_t)draw(&seed);
        // A changed timeout could rightly make a lease wait for ever, so look at the result before
        // sending it.
        struct wire_request changed;
        bool waits =
            wire_decode_request(buffer.data, buffer.size, &changed, &error) == STATUS_OK &&
            ((changed.command == WIRE_COMMAND_BLOCKS_LEASE &&
              changed.blocks_lease.timeout_ms != 0) ||
             (changed.command == WIRE_COMMAND_WAIT && changed.wait.timeout_ms != 0) ||
             (changed.command == WIRE_COMMAND_RUN && changed.run.timeout_ms != 0) ||
             (changed.command == WIRE_COMMAND_BLOCKS_COPY && changed.blocks_copy.timeout_ms != 0) ||
             (changed.command == WIRE_COMMAND_MERGE && changed.merge.timeout_ms != 0) ||
             changed.command == WIRE_COMMAND_CLOSE_SESSION);
        if (!waits) {
            raw_send(raw, buffer.data, buffer.size, &reply);
            wire_reply_finish(&reply);
        }
        wire_buffer_finish(&buffer);
    }
    raw_close(raw);
    check_served();
    stop_clean();
}
END_TEST

START_TEST(another_protocol_version_is_refused_with_both_versions)
{
    struct wire_reply reply;
    char theirs[32], ours[32];
    snprintf(theirs, sizeof theirs, "protocol %u.7", WIRE_PROTOCOL_MAJOR + 1);
    snprintf(ours, sizeof ours, "the daemon %u.%u", WIRE_PROTOCOL_MAJOR, WIRE_PROTOCOL_MINOR);
    start(NULL);
    struct raw_client *raw = raw_open(daemon_.socket);
    const struct wire_request request = {.command = WIRE_COMMAND_HELLO,
                                         .hello = {WIRE_PROTOCOL_MAJOR + 1, 7, "new", "", 0}};
    raw_call(raw, &request, &reply);
    ck_assert_int_eq(reply.status, STATUS_VERSION);
    ck_assert_ptr_nonnull(strstr(reply.message, theirs));
    ck_assert_ptr_nonnull(strstr(reply.message, ours));
    raw_call(raw, &(struct wire_request){.command = WIRE_COMMAND_RETIRED}, &reply);
    ck_assert_int_eq(reply.status, STATUS_VERSION); // no later command has its number
    raw_attach(raw, 0); // the right one still works, on the same connection
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(an_empty_cache_name_is_refused)
{
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, 0);
    const struct wire_request request = {.command = WIRE_COMMAND_CACHE_OPEN,
                                         .cache_open = {.name = ""}};
    raw_expect(raw, &request, STATUS_INVALID);
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(a_name_cannot_forge_a_line_of_the_log)
{
    start(NULL);
    struct raw_client *raw = raw_open(daemon_.socket);
    raw_expect(raw,
               &(struct wire_request){.command = WIRE_COMMAND_HELLO,
                                      .hello = {WIRE_PROTOCOL_MAJOR, 0, "a\nFORGED", "", 0}},
               STATUS_OK);
    for (int i = 0; i < DEADLINE_S * 100 && !daemon_log_contains(&daemon_, "opened"); i++)
        nap();
    ck_assert(daemon_log_contains(&daemon_, "(a?FORGED"));
    ck_assert(!daemon_log_contains_now(&daemon_, "\nFORGED"));
    raw_close(raw);
    stop_clean();
}
END_TEST

// ---- other clients' sessions ----

static const enum wire_command session_commands[] = {
    WIRE_COMMAND_MAPPED,         WIRE_COMMAND_CLOSE_SESSION, WIRE_COMMAND_CACHE_OPEN,
    WIRE_COMMAND_CACHE_CLOSE,    WIRE_COMMAND_CACHE_STATE,   WIRE_COMMAND_BLOCKS_LEASE,
    WIRE_COMMAND_BLOCKS_RELEASE, WIRE_COMMAND_PREFIX_LOOKUP, WIRE_COMMAND_PREFIX_PUBLISH,
    WIRE_COMMAND_BATCH_CREATE,   WIRE_COMMAND_BATCH_DESTROY, WIRE_COMMAND_RUN,
    WIRE_COMMAND_WAIT,           WIRE_COMMAND_BLOCKS_COPY,   WIRE_COMMAND_MERGE,
};

// The strings of the commands must not be NULL.
static struct wire_request empty_request(enum wire_command command)
{
    struct wire_request request = {.command = command};
    if (command == WIRE_COMMAND_CACHE_OPEN)
        request.cache_open.name = "x";
    return request;
}

START_TEST(every_command_of_a_session_is_refused_to_others)
{
    start(NULL);
    struct raw_client *owner = raw_session(daemon_.socket, ARENA),
                      *thief = raw_open(daemon_.socket);
    struct wire_request request = empty_request(session_commands[_i]);
    raw_expect(thief, &request, STATUS_NO_SESSION); // session 0, epoch 0
    request.session = owner->session;
    request.epoch = owner->epoch;
    raw_expect(thief, &request, STATUS_NO_SESSION); // on a connection without a session
    raw_attach(thief, ARENA);
    raw_expect(thief, &request, STATUS_NO_SESSION); // on one that has its own session
    request.session = thief->session;
    request.epoch = owner->epoch ^ 1;
    raw_expect(thief, &request, STATUS_EPOCH);
    struct wire_reply reply;
    raw_call(thief, &request, &reply);
    ck_assert_ptr_nonnull(strstr(reply.message, "epoch"));
    raw_expect(owner, &(struct wire_request){.command = WIRE_COMMAND_PING}, STATUS_OK);
    ck_assert_uint_eq(raw_inspect(owner).num_sessions, 2); // both are unharmed
    raw_close(owner);
    raw_close(thief);
    stop_clean();
}
END_TEST

// ---- memory that vanishes ----

static void wait_sessions(struct raw_client *raw, uint32_t count)
{
    for (int i = 0; i < DEADLINE_S * 100 && raw_inspect(raw).num_sessions != count; i++)
        nap();
    ck_assert_uint_eq(raw_inspect(raw).num_sessions, count);
}

START_TEST(a_client_that_shrinks_its_segment_under_metadata_harms_nobody)
{
    start(memory_path(_i));
    struct raw_client *bad = raw_session(daemon_.socket, ARENA),
                      *good = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(bad, "shared");
    ck_assert_int_eq(ftruncate(bad->segment_fd, 0), 0);
    const struct wire_request lookup = {.command = WIRE_COMMAND_PREFIX_LOOKUP,
                                        .prefix_lookup = {.cache = cache, .token_span = {0, 1024}}};
    raw_expect(bad, &lookup, STATUS_NO_SESSION);
    raw_expect(bad, &lookup, STATUS_NO_SESSION);
    ck_assert_uint_eq(raw_inspect(good).num_sessions, 1);
    ck_assert(daemon_log_contains(&daemon_, "its segment was shrunk"));
    raw_expect(good, &(struct wire_request){.command = WIRE_COMMAND_PING}, STATUS_OK);
    check_served();
    raw_close(bad);
    raw_close(good);
    stop_clean();
}
END_TEST

START_TEST(a_client_that_shrinks_its_segment_under_a_run_harms_nobody)
{
    struct wire_reply reply;
    start(memory_path(_i));
    struct raw_client *bad = raw_session(daemon_.socket, ARENA),
                      *good = raw_session(daemon_.socket, ARENA);
    uint64_t batch = create_token_batch(bad, open_cache(bad, "shared"));
    ck_assert_int_eq(ftruncate(bad->segment_fd, 0), 0);
    const struct wire_request run = token_run(batch);
    raw_call(bad, &run, &reply); // OK, or its session has ended: both are right
    // A device that pinned the pages does not notice, which harms no one, either.
    if (!good->hello.arena_imported || strstr(good->hello.device_name, "llvmpipe") || _i) {
        wait_sessions(good, 1);
        ck_assert(daemon_log_contains(&daemon_, "its segment was shrunk"));
    }
    check_served();
    raw_close(bad);
    raw_close(good);
    stop_clean();
}
END_TEST

START_TEST(a_client_that_shrinks_its_segment_under_slopes_harms_nobody)
{
    start(memory_path(_i));
    struct raw_client *bad = raw_session(daemon_.socket, ARENA),
                      *good = raw_session(daemon_.socket, ARENA);
    struct wire_request run = token_run(create_token_batch(bad, open_cache(bad, "shared")));
    run.run.entry.slopes = (struct wire_span){4096, 1};
    ck_assert_int_eq(ftruncate(bad->segment_fd, 0), 0);
    raw_expect(bad, &run, STATUS_NO_SESSION);
    raw_expect(bad, &run, STATUS_NO_SESSION);
    ck_assert_uint_eq(raw_inspect(good).num_sessions, 1);
    check_served();
    raw_close(bad);
    raw_close(good);
    stop_clean();
}
END_TEST

START_TEST(spans_outside_the_arena_are_refused_each_with_its_status)
{
    static const struct {
        struct wire_span span;
        int status;
    } spans[] = {
        {{ARENA, 1}, STATUS_OUT_OF_RANGE},          {{0, ARENA / 4 + 1}, STATUS_OUT_OF_RANGE},
        {{ARENA - 4, 2}, STATUS_OUT_OF_RANGE},      {{UINT64_MAX - 3, 1}, STATUS_OUT_OF_RANGE},
        {{8, UINT64_MAX / 4}, STATUS_OUT_OF_RANGE}, {{8, UINT64_C(1) << 62}, STATUS_OUT_OF_RANGE},
        {{0, UINT64_MAX}, STATUS_OUT_OF_RANGE},     {{2, 1}, STATUS_MISALIGNED},
    };
    static const int32_t token = 1;
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA),
                      *bare = raw_session(daemon_.socket, 0);
    uint64_t cache = open_cache(raw, "shared");
    struct wire_request lookup = {.command = WIRE_COMMAND_PREFIX_LOOKUP,
                                  .prefix_lookup = {.cache = cache}};
    for (size_t i = 0; i < sizeof spans / sizeof spans[0]; i++) {
        lookup.prefix_lookup.token_span = spans[i].span;
        raw_expect(raw, &lookup, spans[i].status);
    }
    lookup.prefix_lookup.token_span = (struct wire_span){ARENA - 4, 1};
    raw_expect(raw, &lookup, STATUS_OK);
    lookup.prefix_lookup.tokens = (struct wire_ints){&token, 1};
    raw_expect(raw, &lookup, STATUS_INVALID); // both places are given
    lookup = (struct wire_request){
        .command = WIRE_COMMAND_PREFIX_LOOKUP,
        .prefix_lookup = {.cache = open_cache(bare, "shared"), .token_span = {0, 1}}};
    raw_expect(bare, &lookup, STATUS_OUT_OF_RANGE); // it has no arena
    raw_close(raw);
    raw_close(bare);
    stop_clean();
}
END_TEST

START_TEST(requests_beyond_a_message_and_odd_timeouts_are_refused)
{
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "shared"), batch = create_token_batch(raw, cache);
    raw_expect(
        raw,
        &(struct wire_request){.command = WIRE_COMMAND_BLOCKS_LEASE, .blocks_lease = {cache, 0, 0}},
        STATUS_INVALID);
    raw_expect(raw,
               &(struct wire_request){.command = WIRE_COMMAND_BLOCKS_LEASE,
                                      .blocks_lease = {cache, 1, -2}},
               STATUS_INVALID);
    raw_expect(raw,
               &(struct wire_request){.command = WIRE_COMMAND_BLOCKS_LEASE,
                                      .blocks_lease = {cache, UINT32_MAX, 0}},
               STATUS_LIMIT);
    raw_expect(raw,
               &(struct wire_request){.command = WIRE_COMMAND_BLOCKS_LEASE,
                                      .blocks_lease = {cache + 77, 1, 0}},
               STATUS_NOT_FOUND);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_WAIT, .wait = {1, -2}},
               STATUS_INVALID);
    struct wire_request run = token_run(batch);
    run.run.timeout_ms = -7;
    raw_expect(raw, &run, STATUS_INVALID);
    raw_close(raw);
    stop_clean();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("daemon, hostile clients");
    suite_add(suite, "messages",
              (const TTest *const[]){truncated_and_oversized_messages_are_malformed,
                                     thousands_of_corrupt_messages_are_answered,
                                     another_protocol_version_is_refused_with_both_versions,
                                     an_empty_cache_name_is_refused,
                                     a_name_cannot_forge_a_line_of_the_log,
                                     spans_outside_the_arena_are_refused_each_with_its_status,
                                     requests_beyond_a_message_and_odd_timeouts_are_refused, NULL},
              1);
    suite_add(suite, "sessions of others",
              (const TTest *const[]){every_command_of_a_session_is_refused_to_others, NULL},
              (int)(sizeof session_commands / sizeof session_commands[0]));
    suite_add(suite, "vanishing memory",
              (const TTest *const[]){a_client_that_shrinks_its_segment_under_metadata_harms_nobody,
                                     a_client_that_shrinks_its_segment_under_a_run_harms_nobody,
                                     a_client_that_shrinks_its_segment_under_slopes_harms_nobody,
                                     NULL},
              2);
    return check_main(suite);
}
