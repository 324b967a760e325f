// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_daemon_limits.c - the limits of a real aule-daemon, whose errors name their options, and
// what an operator sees and can do.

#include "rigs/check_main.h"
#include "rigs/daemon_step.h"
#include "rigs/daemon_suite.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void expect_hello(struct raw_client *raw, uint64_t arena_size, int status, const char *words)
{
    struct wire_reply reply;
    raw_hello(raw, arena_size, &reply);
    ck_assert_msg(reply.status == status, "Hello: %s: %s", status_name(reply.status),
                  reply.message);
    ck_assert_msg(!words || strstr(reply.message, words), "\"%s\" lacks \"%s\"", reply.message,
                  words);
}

START_TEST(sessions_and_arenas_have_limits_that_the_sentence_names)
{
    start((const char *const[]){"--max-sessions", "2", "--max-arena", "64K", NULL});
    struct raw_client *clients[3];
    for (int i = 0; i < 3; i++)
        clients[i] = raw_open(daemon_.socket);
    expect_hello(clients[0], 65537, STATUS_LIMIT, "--max-arena 65536");
    expect_hello(clients[0], UINT64_MAX, STATUS_LIMIT, "--max-arena 65536");
    expect_hello(clients[0], 65536, STATUS_OK, NULL);
    expect_hello(clients[0], 65536, STATUS_INVALID, "already");
    expect_hello(clients[1], 0, STATUS_OK, NULL);
    expect_hello(clients[2], 0, STATUS_LIMIT,
                 "the daemon has 2 sessions already; --max-sessions is 2");
    raw_expect(clients[0], &(struct wire_request){.command = WIRE_COMMAND_CLOSE_SESSION},
               STATUS_OK);
    expect_hello(clients[2], 0, STATUS_OK, NULL);
    for (int i = 0; i < 3; i++)
        raw_close(clients[i]);
    stop_clean();
}
END_TEST

START_TEST(an_arena_that_shared_memory_cannot_hold_is_refused_with_numbers)
{
    start((const char *const[]){"--max-arena", "900G", "--max-arena-memory", "0", NULL});
    struct raw_client *raw = raw_open(daemon_.socket);
    expect_hello(raw, UINT64_C(800) << 30, STATUS_NO_MEMORY, "/dev/shm has");
    ck_assert_int_eq(daemon_count_segments(&daemon_), 0);
    expect_hello(raw, ARENA, STATUS_OK, NULL); // the connection still works
    raw_close(raw);
    stop_clean();
}
END_TEST

// A group of which the daemon's user is a member, and what it may take of a total.
static void start_with_share(const char *option, const char *total)
{
    char group[32];
    snprintf(group, sizeof group, "team=uid:%u", geteuid());
    start((const char *const[]){"--tenant", group, "--tenant-share", "0.5", option, total, NULL});
}

// A segment of 256 KiB of arena has more than half of the tenant's part.
START_TEST(arenas_of_all_sessions_have_a_total_and_a_tenant_has_its_part_until_they_are_unmapped)
{
    struct raw_client *clients[4];
    start_with_share("--max-arena-memory", "1M");
    for (int i = 0; i < 4; i++)
        clients[i] = raw_open(daemon_.socket);
    expect_hello(clients[0], 1 << 20, STATUS_LIMIT, "(--max-arena-memory 1048576)");
    expect_hello(clients[0], 600 << 10, STATUS_LIMIT,
                 "the tenant's part of --max-arena-memory 1048576 (--tenant-share)");
    expect_hello(clients[0], 256 << 10, STATUS_OK, NULL);
    expect_hello(clients[1], 256 << 10, STATUS_LIMIT, "--max-arena-memory");
    for (int round = 0; round < 3; round++) {
        raw_close(clients[0]);
        clients[0] = raw_open(daemon_.socket);
        struct wire_reply reply = {.status = STATUS_LIMIT};
        const struct wire_request hello = {
            .command = WIRE_COMMAND_HELLO,
            .hello = {WIRE_PROTOCOL_MAJOR, WIRE_PROTOCOL_MINOR, "raw", "name", 256 << 10}};
        while (reply.status == STATUS_LIMIT) { // until the session before is unmapped
            raw_call(clients[0], &hello, &reply);
            const int status = reply.status;
            wire_reply_finish(&reply);
            reply.status = status;
        }
        ck_assert_int_eq(reply.status, STATUS_OK);
    }
    for (int i = 0; i < 4; i++)
        raw_close(clients[i]);
    stop_clean();
}
END_TEST

START_TEST(metadata_caches_batches_and_blocks_have_limits_that_the_sentence_names)
{
    int32_t blocks[16];
    struct wire_reply reply;
    start((const char *const[]){"--max-metadata", "4096", "--max-caches", "1", "--max-batches", "1",
                                "--session-blocks", "4", NULL});
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "one");
    struct wire_request request = cache_request("two");
    raw_call(raw, &request, &reply);
    ck_assert_int_eq(reply.status, STATUS_LIMIT);
    ck_assert_ptr_nonnull(strstr(reply.message, "--max-caches"));
    request = (struct wire_request){.command = WIRE_COMMAND_PREFIX_LOOKUP,
                                    .prefix_lookup = {.cache = cache, .token_span = {0, 1025}}};
    raw_call(raw, &request, &reply);
    ck_assert_int_eq(reply.status, STATUS_LIMIT);
    ck_assert_ptr_nonnull(strstr(reply.message, "--max-metadata"));
    ck_assert_int_eq(lease_status(raw, cache, 5, 0, blocks), STATUS_QUOTA);
    lease(raw, cache, 1, blocks);
    request = fill_request(cache, blocks, NULL);
    create_batch(raw, &request);
    raw_call(raw, &request, &reply);
    ck_assert_int_eq(reply.status, STATUS_LIMIT);
    ck_assert_ptr_nonnull(strstr(reply.message, "--max-batches"));
    raw_close(raw);
    stop_clean();
}
END_TEST

// A machine of one user keeps nothing free for others.
START_TEST(the_daemons_own_user_may_take_all_sessions_caches_and_arenas)
{
    struct raw_client *clients[4];
    char name[2] = "a";
    start((const char *const[]){"--max-arena-memory", "4M", "--max-caches", "4", "--max-sessions",
                                "4", NULL});
    clients[0] = raw_session(daemon_.socket, 3 << 20);
    for (int i = 0; i < 4; i++, name[0]++)
        open_cache(clients[0], name);
    for (int i = 1; i < 4; i++)
        clients[i] = raw_session(daemon_.socket, 4096);
    for (int i = 0; i < 4; i++)
        raw_close(clients[i]);
    stop_clean();
}
END_TEST

static enum status claim_tokens(struct raw_client *raw, uint64_t cache, uint32_t num_tokens,
                                const char *words)
{
    struct wire_reply reply;
    const struct wire_request request = {
        .command = WIRE_COMMAND_PREFIX_LOOKUP,
        .prefix_lookup = {.cache = cache, .token_span = {0, num_tokens}, .claim = true}};
    raw_call(raw, &request, &reply);
    const enum status status = (enum status)reply.status;
    ck_assert(status == STATUS_OK || strstr(reply.message, words));
    wire_reply_finish(&reply);
    return status;
}

// A claim of 1024 tokens takes more than 8 KiB, one of 256 tokens less.
START_TEST(host_memory_of_all_sessions_has_a_total_and_comes_back_with_the_end_of_a_session)
{
    static const char words[] = "of a claim more would exceed the part of tenant";
    uint64_t cache = 0;
    start_with_share("--max-host-memory", "16K");
    struct raw_client *first = raw_session(daemon_.socket, ARENA),
                      *second = raw_session(daemon_.socket, ARENA);
    cache = open_cache(first, "one");
    ck_assert_uint_eq(open_cache(second, "one"), cache);
    ck_assert_int_eq(claim_tokens(first, cache, 1024, words), STATUS_LIMIT);
    uint32_t claims = 0;
    while (claim_tokens(first, cache, 256, words) == STATUS_OK)
        claims++;
    ck_assert_uint_ge(claims, 1);
    ck_assert_int_eq(claim_tokens(second, cache, 256, words), STATUS_LIMIT);
    raw_close(first);
    while (claim_tokens(second, cache, 256, words) != STATUS_OK) // until the daemon has seen it
        ;
    raw_close(second);
    stop_clean();
}
END_TEST

// The tokens are copied for the job thread.
START_TEST(a_look_up_in_pieces_counts_as_host_memory_until_it_has_ended)
{
    enum { TOKENS = 20000 };
    uint64_t cache = 0;
    start_with_share("--max-host-memory", "128K");
    struct raw_client *raw = raw_session(daemon_.socket, 2 * ARENA);
    struct wire_reply reply;
    cache = open_cache(raw, "one");
    const struct wire_request request = {
        .command = WIRE_COMMAND_PREFIX_LOOKUP,
        .prefix_lookup = {.cache = cache, .token_span = {0, TOKENS}}};
    raw_call(raw, &request, &reply);
    ck_assert_int_eq(reply.status, STATUS_LIMIT);
    ck_assert_ptr_nonnull(strstr(reply.message, "bytes of a long look-up more would exceed"));
    wire_reply_finish(&reply);
    raw_close(raw);
    stop_clean();
    start_with_share("--max-host-memory", "1M");
    raw = raw_session(daemon_.socket, 2 * ARENA);
    cache = open_cache(raw, "one");
    for (int i = 0; i < 20; i++)
        raw_expect(raw, &request, STATUS_OK);
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(an_operator_sees_sessions_and_can_end_one)
{
    struct wire_reply reply;
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA),
                      *operator= raw_open(daemon_.socket);
    raw_call(operator, &(struct wire_request){.command = WIRE_COMMAND_INSPECT_SESSIONS}, &reply);
    ck_assert_int_eq(reply.status, STATUS_OK);
    ck_assert_uint_eq(reply.inspect_sessions.total, 1);
    ck_assert_uint_eq(reply.inspect_sessions.sessions.count, 1);
    ck_assert_uint_eq(reply.inspect_sessions.sessions.data[0].session, raw->session);
    ck_assert_uint_eq(reply.inspect_sessions.sessions.data[0].pid, (uint64_t)getpid());
    ck_assert_uint_eq(reply.inspect_sessions.sessions.data[0].uid, getuid());
    ck_assert_uint_eq(reply.inspect_sessions.sessions.data[0].arena_bytes, ARENA);
    ck_assert_str_eq(reply.inspect_sessions.names.data[0], "raw");
    ck_assert_str_eq(reply.inspect_sessions.tenants.data[0], "tests");
    wire_reply_finish(&reply);
    raw_expect(operator, &(struct wire_request){.command = WIRE_COMMAND_KILL_SESSION,
                                                .kill_session = {99}},
               STATUS_NOT_FOUND);
    raw_expect(operator, &(struct wire_request){.command = WIRE_COMMAND_KILL_SESSION,
                                                .kill_session = {raw->session}},
               STATUS_OK);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_CACHE_STATE}, STATUS_NO_SESSION);
    ck_assert_uint_eq(raw_inspect(operator).num_sessions, 0);
    raw_close(raw);
    raw_close(operator);
    stop_clean();
}
END_TEST

// The name that a client gives has to fit the lists that operators read. Who pays is its user.
START_TEST(an_operator_sees_the_longest_tenant_and_a_longer_one_is_refused)
{
    enum { LONGEST = WIRE_MAX_TENANT };
    char tenant[LONGEST + 2] = "", label[32];
    struct wire_reply reply;
    // The client never maps its segment, and its session has to outlive any pause of this test.
    start((const char *const[]){"--idle-timeout", "3600", NULL});
    struct raw_client *raw = raw_open(daemon_.socket), *operator= raw_open(daemon_.socket);
    struct wire_request hello = {
        .command = WIRE_COMMAND_HELLO,
        .hello = {WIRE_PROTOCOL_MAJOR, WIRE_PROTOCOL_MINOR, "raw", tenant, ARENA}};
    memset(tenant, 't', LONGEST + 1);
    raw_call(raw, &hello, &reply);
    ck_assert_int_eq(reply.status, STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(reply.message, "a tenant's of 241; at most 255 and 240 fit"));
    tenant[LONGEST] = 0;
    raw_call(raw, &hello, &reply);
    ck_assert_int_eq(reply.status, STATUS_OK);
    snprintf(label, sizeof label, "uid:%u", (unsigned)getuid());
    raw_call(operator, &(struct wire_request){.command = WIRE_COMMAND_INSPECT_TENANTS}, &reply);
    ck_assert_int_eq(reply.status, STATUS_OK);
    ck_assert_uint_eq(reply.inspect_tenants.total, 1);
    ck_assert_uint_eq(reply.inspect_tenants.names.count, 1);
    ck_assert_str_eq(reply.inspect_tenants.names.data[0], label);
    wire_reply_finish(&reply);
    raw_call(operator, &(struct wire_request){.command = WIRE_COMMAND_INSPECT_SESSIONS}, &reply);
    ck_assert_uint_eq(reply.inspect_sessions.tenants.count, 1);
    ck_assert_str_eq(reply.inspect_sessions.tenants.data[0], tenant);
    wire_reply_finish(&reply);
    raw_close(raw);
    raw_close(operator);
    stop_clean();
}
END_TEST

// Unless one is forced, the shader in use is the first of the table that lacks nothing.
static void check_variants(const struct wire_inspect_device_reply *device)
{
    uint32_t first = 0;
    while (first < device->variants.count && device->variant_missing.data[first][0])
        first++;
    ck_assert_uint_lt(first, device->variants.count);
    ck_assert_uint_eq(device->variant_needs.count, device->variants.count);
    ck_assert_uint_eq(device->variant_missing.count, device->variants.count);
    if (!getenv("AULE_VARIANT"))
        ck_assert_str_eq(device->variant, device->variants.data[first]);
}

START_TEST(an_operator_sees_device_caches_and_blocks)
{
    struct wire_reply reply;
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "seen");
    int32_t block = do_step(raw, cache, 1);
    raw_call(raw, &(struct wire_request){.command = WIRE_COMMAND_INSPECT_DEVICE}, &reply);
    ck_assert_int_eq(reply.status, STATUS_OK);
    ck_assert_uint_gt(strlen(reply.inspect_device.name), 0);
    ck_assert_uint_ge(reply.inspect_device.pipelines, 1);
    ck_assert_uint_gt(reply.inspect_device.budget_bytes, 0);
    check_variants(&reply.inspect_device);
    wire_reply_finish(&reply);
    raw_call(raw, &(struct wire_request){.command = WIRE_COMMAND_INSPECT_CACHES}, &reply);
    ck_assert_int_eq(reply.status, STATUS_OK);
    ck_assert_uint_eq(reply.inspect_caches.total, 1);
    ck_assert_uint_eq(reply.inspect_caches.caches.data[0].cache, cache);
    ck_assert_uint_eq(reply.inspect_caches.caches.data[0].leased_blocks, 1);
    ck_assert_str_eq(reply.inspect_caches.names.data[0], "seen");
    wire_reply_finish(&reply);
    struct wire_request request = {.command = WIRE_COMMAND_INSPECT_BLOCKS,
                                   .inspect_blocks = {cache, (uint32_t)block, 1}};
    raw_call(raw, &request, &reply);
    ck_assert_int_eq(reply.status, STATUS_OK);
    ck_assert_uint_eq(reply.inspect_blocks.blocks.count, 1);
    ck_assert_int_eq(reply.inspect_blocks.blocks.data[0].block, block);
    ck_assert_uint_eq(reply.inspect_blocks.blocks.data[0].writer, raw->session);
    wire_reply_finish(&reply);
    request.inspect_blocks = (struct wire_inspect_blocks){cache + 1000, 0, 0};
    raw_expect(raw, &request, STATUS_NOT_FOUND);
    raw_close(raw);
    stop_clean();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("daemon limits");
    suite_add(
        suite, "limits",
        (const TTest *const[]){
            sessions_and_arenas_have_limits_that_the_sentence_names,
            an_arena_that_shared_memory_cannot_hold_is_refused_with_numbers,
            arenas_of_all_sessions_have_a_total_and_a_tenant_has_its_part_until_they_are_unmapped,
            metadata_caches_batches_and_blocks_have_limits_that_the_sentence_names,
            the_daemons_own_user_may_take_all_sessions_caches_and_arenas,
            host_memory_of_all_sessions_has_a_total_and_comes_back_with_the_end_of_a_session,
            a_look_up_in_pieces_counts_as_host_memory_until_it_has_ended,
            an_operator_sees_sessions_and_can_end_one,
            an_operator_sees_the_longest_tenant_and_a_longer_one_is_refused,
            an_operator_sees_device_caches_and_blocks, NULL},
        1);
    return check_main(suite);
}
