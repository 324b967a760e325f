// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_fake.c - the client library with a daemon whose answers are wrong, with several
// threads, and with long lists; and its tensors. Each test is a process with a fake daemon in it.
// test_client.c uses the real daemon; test_client_opening.c tests opening a session.

#include "aule/sequence.h"
#include "client/src/monitor/monitor.h"
#include "rigs/client_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// ---- tensors ----

START_TEST(tensors_lie_in_the_arena_and_end)
{
    struct aule_tensor a, b;
    fake_start(&fake, path, NULL, NULL);
    struct aule_session *session = open_session(0);
    ck_assert_int_eq(aule_tensor_create(session, AULE_F16, 5, 4, 64, &a), AULE_OK);
    ck_assert_uint_eq(a.head_stride, 128);
    ck_assert_uint_eq(a.token_stride, 512);
    ck_assert_uint_eq(a.offset % 256, 0);
    memset(aule_tensor_data(session, &a), 0x5a, 5 * 512);
    ck_assert_uint_eq(fake_arena(&fake)[a.offset + 5 * 512 - 1], 0x5a);
    ck_assert_int_eq(aule_tensor_create(session, AULE_F32, 0, 1, 8, &b), AULE_OK);
    ck_assert_uint_ne(a.offset, b.offset);
    aule_tensor_destroy(session, &a);
    aule_tensor_destroy(session, &a);
    aule_tensor_destroy(session, &b);
    void *all;
    ck_assert_int_eq(aule_arena_alloc(session, FAKE_ARENA, &all, NULL), AULE_OK);
    ck_assert_ptr_eq(all, aule_arena_base(session));
    aule_arena_free(session, (char *)all + 256); // no allocation begins there
    void *more;
    ck_assert_int_eq(aule_arena_alloc(session, 1, &more, NULL), AULE_NO_MEMORY);
    aule_arena_free(session, all);
    aule_session_close(session);
}
END_TEST

static const struct {
    enum aule_dtype dtype;
    uint32_t num_tokens, num_heads, head_dim;
    enum aule_status status;
    const char *words;
} shape_cases[] = {
    {(enum aule_dtype)42, 1, 1, 8, AULE_INVALID, "42"},
    {AULE_F16, 1, 0, 64, AULE_INVALID, "0 heads"},
    {AULE_F16, 1, 3, 0, AULE_INVALID, "3 heads of 0"},
    {AULE_F16, 1, 3, 4, AULE_MISALIGNED, "8 bytes"},
    {AULE_F16, 4096, 32, 128, AULE_NO_MEMORY, "33554432"},
    {AULE_F32, 4294967295u, 4294967295u, 4294967292u, AULE_OUT_OF_RANGE, "4294967292"},
};
enum { NUM_SHAPE_CASES = sizeof shape_cases / sizeof *shape_cases };

START_TEST(a_shape_that_no_tensor_has_is_refused)
{
    struct aule_tensor tensor = {.offset = 99};
    fake_start(&fake, path, NULL, NULL);
    struct aule_session *session = open_session(0);
    expect(aule_tensor_create(session, shape_cases[_i].dtype, shape_cases[_i].num_tokens,
                              shape_cases[_i].num_heads, shape_cases[_i].head_dim, &tensor),
           shape_cases[_i].status, shape_cases[_i].words);
    ck_assert_uint_eq(tensor.offset, 99);
    aule_session_close(session);
}
END_TEST

START_TEST(an_lse_tensor_has_any_number_of_heads)
{
    struct aule_tensor lse = {.offset = 99};
    fake_start(&fake, path, NULL, NULL);
    struct aule_session *session = open_session(0);
    ok(aule_tensor_create_lse(session, 5, 3, &lse));
    ck_assert_int_eq(lse.dtype, AULE_F32);
    ck_assert_uint_eq(lse.token_stride, 12);
    ck_assert_uint_eq(lse.head_stride, 4);
    ck_assert_uint_eq(lse.num_rows, 5);
    ck_assert_ptr_nonnull(aule_tensor_data(session, &lse));
    aule_tensor_destroy(session, &lse);
    expect_empty_arena(session);
    expect(aule_tensor_create_lse(session, 5, 0, &lse), AULE_INVALID, "0 heads");
    expect(aule_tensor_create_lse(session, UINT32_MAX, 3, &lse), AULE_NO_MEMORY, "free");
    aule_session_close(session);
}
END_TEST

// ---- answers that are wrong ----

static enum fake_action wrong_blocks(struct fake_daemon *daemon, const struct wire_request *request,
                                     struct wire_reply *reply)
{
    static const int32_t blocks[] = {1, 2, 3, 4};
    (void)daemon;
    switch (request->command) {
    case WIRE_COMMAND_BLOCKS_LEASE: reply->blocks_lease.blocks.count = 2; break;
    case WIRE_COMMAND_PREFIX_LOOKUP:
        reply->answer = WIRE_ANSWER_PREFIX_LOOKUP;
        reply->prefix_lookup.blocks = (struct wire_ints){.data = blocks, .count = 4};
        break;
    case WIRE_COMMAND_PREFIX_PUBLISH:
        reply->answer = WIRE_ANSWER_PREFIX_PUBLISH;
        reply->prefix_publish.blocks = (struct wire_ints){.data = blocks, .count = 4};
        break;
    default: break;
    }
    return FAKE_ANSWER;
}

START_TEST(more_or_fewer_blocks_than_fit_are_not_written)
{
    int32_t blocks[8] = {-7, -7, -7, -7, -7, -7, -7, -7}, tokens[24] = {0};
    uint32_t num_blocks = 55;
    const struct aule_prefix prefix = {.tokens = tokens, .num_tokens = 24};
    fake_start(&fake, path, wrong_blocks, NULL);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    expect(aule_blocks_lease(cache, 3, 0, blocks), AULE_MALFORMED, "3 blocks was answered with 2");
    expect(aule_prefix_lookup(cache, &prefix, 0, blocks, &num_blocks), AULE_MALFORMED,
           "4 blocks for a prefix of 3");
    ck_assert_uint_eq(num_blocks, 0);
    expect(aule_prefix_publish(cache, &prefix, blocks, NULL), AULE_MALFORMED,
           "4 blocks for a prefix of 3");
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(blocks[i], -7);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

static enum fake_action twice(struct fake_daemon *daemon, const struct wire_request *request,
                              struct wire_reply *reply)
{
    (void)daemon;
    (void)reply;
    // nng 1.5.2 may hang when it closes a connection while a message arrives. A daemon sends
    // nothing after a session's farewell.
    return request->command == WIRE_COMMAND_CLOSE_SESSION ? FAKE_ANSWER : FAKE_TWICE;
}

START_TEST(an_answer_that_comes_twice_is_taken_once)
{
    int32_t block;
    fake_start(&fake, path, twice, NULL);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    for (int i = 0; i < 20; i++)
        ck_assert_int_eq(aule_blocks_lease(cache, 1, 0, &block), AULE_OK);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// ---- several threads ----

enum { NUM_THREADS = 6, CALLS_A_THREAD = 300 };

static void *use_session(void *context)
{
    struct aule_session *session = context;
    struct aule_cache *cache = open_cache(session);
    int32_t blocks[3];
    for (int i = 0; i < CALLS_A_THREAD; i++) {
        void *data;
        ck_assert_int_eq(aule_arena_alloc(session, (uint64_t)(i % 7 + 1) * 100, &data, NULL),
                         AULE_OK);
        ck_assert_int_eq(aule_blocks_lease(cache, 3, 0, blocks), AULE_OK);
        ck_assert_int_eq(blocks[2], 2);
        ck_assert_int_eq(aule_blocks_release(cache, 3, blocks), AULE_OK);
        aule_arena_free(session, data);
    }
    aule_cache_close(cache);
    return NULL;
}

START_TEST(threads_share_a_session)
{
    pthread_t threads[NUM_THREADS];
    fake_start(&fake, path, NULL, NULL);
    struct aule_session *session = open_session(0);
    for (int i = 0; i < NUM_THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, use_session, session), 0);
    for (int i = 0; i < NUM_THREADS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_BLOCKS_LEASE]),
                      NUM_THREADS * CALLS_A_THREAD);
    expect_empty_arena(session);
    aule_session_close(session);
}
END_TEST

static atomic_bool stop_leasing;

// Whatever else happens to the session, a lease returns blocks, or says that the handle or the
// connection is gone.
static void *lease_for_ever(void *context)
{
    struct aule_cache *cache = context;
    int32_t block;
    enum aule_status status = AULE_OK;
    while (!atomic_load(&stop_leasing)) {
        status = aule_blocks_lease(cache, 1, -1, &block);
        ck_assert_msg(status == AULE_OK || status == AULE_DAEMON_GONE || status == AULE_EPOCH, "%s",
                      aule_error());
    }
    return NULL;
}

START_TEST(a_reconnect_under_load_ends_or_serves_every_call)
{
    fake_start(&fake, path, NULL, NULL);
    struct aule_session *session = open_session(0);
    for (int round = 0; round < 10; round++) {
        pthread_t threads[3];
        struct aule_cache *cache = open_cache(session);
        atomic_store(&stop_leasing, false);
        for (int i = 0; i < 3; i++)
            ck_assert_int_eq(pthread_create(&threads[i], NULL, lease_for_ever, cache), 0);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        ck_assert_int_eq(aule_session_reconnect(session), AULE_OK);
        atomic_store(&stop_leasing, true);
        for (int i = 0; i < 3; i++)
            ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        aule_cache_close(cache);
    }
    aule_session_close(session);
}
END_TEST

// ---- a daemon that stops reading ----

enum { NUM_SENDERS = 8, LONG_LIST = 100000 }; // together more than any socket keeps

// Until it is told to go on, the daemon carries out no release, and reads nothing behind it.
static enum fake_action stop_at_release(struct fake_daemon *daemon,
                                        const struct wire_request *request,
                                        struct wire_reply *reply)
{
    atomic_bool *go = daemon->context;
    (void)reply;
    while (request->command == WIRE_COMMAND_BLOCKS_RELEASE && !atomic_load(go))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return FAKE_ANSWER;
}

static void *release_many(void *context)
{
    int32_t *blocks = calloc(LONG_LIST, sizeof *blocks);
    ck_assert_ptr_nonnull(blocks);
    expect(aule_blocks_release(context, LONG_LIST, blocks), AULE_DAEMON_GONE, "closed");
    free(blocks);
    return NULL;
}

static void *close_session(void *context)
{
    aule_session_close(context);
    return NULL;
}

START_TEST(a_session_closes_while_a_thread_cannot_send)
{
    pthread_t senders[NUM_SENDERS], closer;
    static atomic_bool go;
    fake_start(&fake, path, stop_at_release, &go);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    for (int i = 0; i < NUM_SENDERS; i++)
        ck_assert_int_eq(pthread_create(&senders[i], NULL, release_many, cache), 0);
    wait_until_seen(WIRE_COMMAND_BLOCKS_RELEASE, 1);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); // the socket fills
    ck_assert_int_eq(pthread_create(&closer, NULL, close_session, session), 0);
    for (int i = 0; i < NUM_SENDERS; i++)
        ck_assert_int_eq(pthread_join(senders[i], NULL), 0);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_BLOCKS_RELEASE]), 1); // they were stuck
    atomic_store(&go, true);
    ck_assert_int_eq(pthread_join(closer, NULL), 0);
    // The rest of a frame was sent first, so the daemon could read what came behind it.
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_CLOSE_SESSION]), 1);
    ck_assert_uint_lt(atomic_load(&fake.seen[WIRE_COMMAND_BLOCKS_RELEASE]), NUM_SENDERS);
    aule_cache_close(cache);
}
END_TEST

// ---- the monitor ----

enum { NUM_ENTRIES = 2500, PAGE = 700 };

static enum fake_action paged(struct fake_daemon *daemon, const struct wire_request *request,
                              struct wire_reply *reply)
{
    static struct wire_block_state blocks[PAGE];
    static struct wire_session_state sessions[PAGE];
    static const char *names[PAGE];
    (void)daemon;
    uint32_t first = request->command == WIRE_COMMAND_INSPECT_BLOCKS
                         ? request->inspect_blocks.first
                         : request->inspect_sessions.first;
    uint32_t count = first >= NUM_ENTRIES         ? 0
                     : NUM_ENTRIES - first < PAGE ? NUM_ENTRIES - first
                                                  : PAGE;
    for (uint32_t i = 0; i < count; i++) {
        blocks[i] = (struct wire_block_state){.block = (int32_t)(first + i), .depth = -1};
        sessions[i] = (struct wire_session_state){.session = first + i};
        names[i] = "someone";
    }
    if (request->command == WIRE_COMMAND_INSPECT_BLOCKS) {
        reply->answer = WIRE_ANSWER_INSPECT_BLOCKS;
        reply->inspect_blocks =
            (struct wire_inspect_blocks_reply){.total = NUM_ENTRIES, .blocks = {blocks, count}};
    }
    if (request->command == WIRE_COMMAND_INSPECT_SESSIONS) {
        reply->answer = WIRE_ANSWER_INSPECT_SESSIONS;
        reply->inspect_sessions =
            // nine sessions ended meanwhile
            (struct wire_inspect_sessions_reply){.total = NUM_ENTRIES + 9,
                                                 .sessions = {sessions, count},
                                                 .names = {names, count},
                                                 .tenants = {names, count}};
    }
    return FAKE_ANSWER;
}

static enum fake_action other_payload(struct fake_daemon *daemon,
                                      const struct wire_request *request, struct wire_reply *reply)
{
    (void)daemon;
    if (request->command == WIRE_COMMAND_PING)
        reply->ping.payload++;
    return FAKE_ANSWER;
}

// A block, its parent, and how many ids there are.
static const struct {
    int32_t block, parent;
    uint32_t total;
} strange_prefixes[] = {{-1, -1, 8}, {8, -1, 8}, {INT32_MAX, -1, 8}, {3, -2, 8}, {3, 8, 8}};

static enum fake_action strange_prefix(struct fake_daemon *daemon,
                                       const struct wire_request *request, struct wire_reply *reply)
{
    static struct wire_prefix_state node;
    static const int32_t first_token = 7;
    static const char *const tenant = "";
    const unsigned index = *(const unsigned *)daemon->context;
    if (request->command != WIRE_COMMAND_INSPECT_PREFIX)
        return FAKE_ANSWER;
    node = (struct wire_prefix_state){.block = strange_prefixes[index].block,
                                      .parent = strange_prefixes[index].parent};
    reply->answer = WIRE_ANSWER_INSPECT_PREFIX;
    reply->inspect_prefix =
        (struct wire_inspect_prefix_reply){.next = strange_prefixes[index].total,
                                           .total = strange_prefixes[index].total,
                                           .nodes = {&node, 1},
                                           .tenants = {(const char **)&tenant, 1},
                                           .num_tokens = 1,
                                           .tokens = {&first_token, 1}};
    return FAKE_ANSWER;
}

START_TEST(a_published_block_that_cannot_be_is_refused_with_its_id)
{
    struct aule_monitor *monitor;
    struct aule_prefix_state *array = NULL;
    unsigned index = 0;
    uint32_t next = 0, count = 0;
    fake_start(&fake, path, strange_prefix, &index);
    ck_assert_int_eq(aule_monitor_open(path, 0, &monitor), AULE_OK);
    for (; index < sizeof strange_prefixes / sizeof *strange_prefixes; index++) {
        char part[64];
        snprintf(part, sizeof part, "block %d behind block %d of 8", strange_prefixes[index].block,
                 strange_prefixes[index].parent);
        expect(aule_monitor_prefix(monitor, 1, &next, &array, &count), AULE_MALFORMED, part);
        ck_assert_ptr_null(array);
    }
    aule_monitor_close(monitor);
}
END_TEST

START_TEST(a_ping_that_comes_back_as_another_fills_nothing)
{
    struct aule_monitor *monitor;
    struct aule_ping_info ping = {.epoch = 99};
    fake_start(&fake, path, other_payload, NULL);
    ck_assert_int_eq(aule_monitor_open(path, 0, &monitor), AULE_OK);
    expect(aule_monitor_ping(monitor, &ping), AULE_MALFORMED, "was answered with");
    ck_assert_uint_eq(ping.epoch, 99);
    aule_monitor_close(monitor);
}
END_TEST

START_TEST(a_list_longer_than_a_page_comes_whole)
{
    struct aule_monitor *monitor;
    struct aule_block_state *blocks;
    struct aule_session_state *sessions;
    struct aule_ping_info ping;
    uint32_t count;
    fake_start(&fake, path, paged, NULL);
    ck_assert_int_eq(aule_monitor_open(path, 0, &monitor), AULE_OK);
    ck_assert_int_eq(aule_monitor_blocks(monitor, 7, &blocks, &count), AULE_OK);
    ck_assert_uint_eq(count, NUM_ENTRIES);
    for (int32_t i = 0; i < NUM_ENTRIES; i++)
        ck_assert_int_eq(blocks[i].block, i);
    ck_assert_int_eq(aule_monitor_sessions(monitor, &sessions, &count), AULE_OK);
    ck_assert_uint_eq(count, NUM_ENTRIES);
    ck_assert_uint_eq(sessions[NUM_ENTRIES - 1].session, NUM_ENTRIES - 1);
    ck_assert_str_eq(sessions[NUM_ENTRIES - 1].name, "someone");
    ck_assert_int_eq(aule_monitor_ping(monitor, &ping), AULE_OK);
    ck_assert_uint_eq(ping.epoch, fake.epoch);
    free(blocks);
    free(sessions);
    aule_monitor_close(monitor);
}
END_TEST

static enum fake_action other_protocol(struct fake_daemon *daemon,
                                       const struct wire_request *request, struct wire_reply *reply)
{
    if (request->command == WIRE_COMMAND_PING)
        reply->ping.major = *(const uint32_t *)daemon->context;
    return FAKE_ANSWER;
}

START_TEST(a_daemon_too_old_for_a_command_is_told_so)
{
    const struct monitor_protocol daemon = {true, WIRE_PROTOCOL_MAJOR, 2};
    expect(monitor_check_protocol(&daemon, WIRE_COMMAND_DROP_CACHE, 3), AULE_UNSUPPORTED,
           "too old (protocol 3.2; DROP_CACHE needs 3.3)");
    ck_assert_int_eq(monitor_check_protocol(&daemon, WIRE_COMMAND_DROP_CACHE, 2), AULE_OK);
}
END_TEST

START_TEST(a_monitor_asks_a_daemon_of_another_major_nothing_but_its_protocol)
{
    struct aule_monitor *monitor;
    struct aule_metric *metrics;
    struct aule_ping_info ping;
    uint32_t count, major = 2;
    char versions[80];
    snprintf(versions, sizeof versions, "the daemon speaks protocol 2.0, this library %u.%u",
             WIRE_PROTOCOL_MAJOR, WIRE_PROTOCOL_MINOR);
    fake_start(&fake, path, other_protocol, &major);
    ck_assert_int_eq(aule_monitor_open(path, 0, &monitor), AULE_OK);
    expect(aule_monitor_limit_session(monitor, 7, 1), AULE_VERSION, versions);
    expect(aule_monitor_drop_cache(monitor, 7), AULE_VERSION, "protocol 2.0");
    expect(aule_monitor_metrics(monitor, &metrics, &count), AULE_VERSION, "protocol 2.0");
    ck_assert_uint_eq(fake.seen[WIRE_COMMAND_LIMIT_SESSION], 0);
    ck_assert_uint_eq(fake.seen[WIRE_COMMAND_DROP_CACHE], 0);
    ck_assert_uint_eq(fake.seen[WIRE_COMMAND_METRICS], 0);
    ck_assert_uint_eq(fake.seen[WIRE_COMMAND_PING], 1); // once for the connection
    ck_assert_int_eq(aule_monitor_ping(monitor, &ping), AULE_OK);
    ck_assert_uint_eq(ping.protocol_major, 2);
    aule_monitor_close(monitor);
}
END_TEST

// The context has how many token ids the daemon answers with.
static enum fake_action many_tokens(struct fake_daemon *daemon, const struct wire_request *request,
                                    struct wire_reply *reply)
{
    static const int32_t ids[257] = {5, 6};
    if (request->command != WIRE_COMMAND_PREFIX_TOKENS)
        return FAKE_ANSWER;
    reply->answer = WIRE_ANSWER_PREFIX_TOKENS;
    reply->prefix_tokens = (struct wire_prefix_tokens_reply){
        .tokens = {ids, *(const uint32_t *)daemon->context},
        .extra_key = {(const uint8_t *)"lora", 4},
    };
    return FAKE_ANSWER;
}

START_TEST(the_tokens_of_a_block_come_whole_and_too_many_are_refused)
{
    struct aule_monitor *monitor;
    struct aule_block_tokens tokens = {.num_tokens = 99};
    uint32_t count = 257;
    fake_start(&fake, path, many_tokens, &count);
    ck_assert_int_eq(aule_monitor_open(path, 0, &monitor), AULE_OK);
    expect(aule_monitor_tokens(monitor, 7, 3, &tokens), AULE_MALFORMED, "257 token ids");
    ck_assert_uint_eq(tokens.num_tokens, 99);
    count = 256;
    ck_assert_int_eq(aule_monitor_tokens(monitor, 7, 3, &tokens), AULE_OK);
    ck_assert_uint_eq(tokens.num_tokens, 256);
    ck_assert_int_eq(tokens.tokens[1], 6);
    ck_assert_uint_eq(tokens.extra_key_size, 4);
    ck_assert_mem_eq(tokens.extra_key, "lora", 4);
    aule_monitor_close(monitor);
}
END_TEST

// The context has the lengths of the lists, and the daemon's name.
struct table_of_shaders {
    uint32_t names, needs, missing;
};

static enum fake_action shaders(struct fake_daemon *daemon, const struct wire_request *request,
                                struct wire_reply *reply)
{
    static const char *names[] = {"matrix", "subgroup", "plain"},
                      *needs[] = {"tensor cores", "shuffles", ""};
    static const char *missing[] = {"tensor cores", "", ""};
    const struct table_of_shaders *table = daemon->context;
    if (request->command != WIRE_COMMAND_INSPECT_DEVICE)
        return FAKE_ANSWER;
    reply->answer = WIRE_ANSWER_INSPECT_DEVICE;
    reply->inspect_device =
        (struct wire_inspect_device_reply){.name = "fake",
                                           .variant = "plain",
                                           .variants = {names, table->names},
                                           .variant_needs = {needs, table->needs},
                                           .variant_missing = {missing, table->missing}};
    return FAKE_ANSWER;
}

START_TEST(the_table_of_shaders_says_which_is_used_and_what_the_others_lack)
{
    struct table_of_shaders table = {3, 3, 3};
    struct aule_monitor *monitor;
    struct aule_variant_state *variants = NULL;
    uint32_t count = 55;
    fake_start(&fake, path, shaders, &table);
    ck_assert_int_eq(aule_monitor_open(path, 0, &monitor), AULE_OK);
    ck_assert_int_eq(aule_monitor_variants(monitor, &variants, &count), AULE_OK);
    ck_assert_uint_eq(count, 3);
    ck_assert_str_eq(variants[0].name, "matrix");
    ck_assert_str_eq(variants[0].missing, "tensor cores");
    ck_assert_str_eq(variants[1].needs, "shuffles");
    ck_assert_str_eq(variants[1].missing, "");
    ck_assert(!variants[0].used && !variants[1].used && variants[2].used);
    free(variants);
    table = (struct table_of_shaders){0, 0, 0};
    ck_assert_int_eq(aule_monitor_variants(monitor, &variants, &count), AULE_OK);
    ck_assert_uint_eq(count, 0);
    ck_assert_ptr_null(variants);
    aule_monitor_close(monitor);
}
END_TEST

static enum fake_action metrics(struct fake_daemon *daemon, const struct wire_request *request,
                                struct wire_reply *reply)
{
    static const char *names[] = {"aule_a_bytes_total", "aule_b"}, *units[] = {"bytes", ""},
                      *helps[] = {"a", "b"};
    static const uint8_t kinds[] = {AULE_METRIC_COUNTER, AULE_METRIC_GAUGE};
    static const int64_t values[] = {-1, 7};
    (void)daemon;
    if (request->command != WIRE_COMMAND_METRICS)
        return FAKE_ANSWER;
    reply->answer = WIRE_ANSWER_METRICS;
    reply->metrics = (struct wire_metrics_reply){.names = {names, 2},
                                                 .units = {units, 2},
                                                 .helps = {helps, 2},
                                                 .kinds = {kinds, 2},
                                                 .values = {values, 2}};
    return FAKE_ANSWER;
}

START_TEST(metrics_come_as_names_and_values)
{
    uint32_t count = 55;
    struct aule_monitor *monitor;
    struct aule_metric *array = NULL;
    fake_start(&fake, path, metrics, NULL);
    ck_assert_int_eq(aule_monitor_open(path, 0, &monitor), AULE_OK);
    ck_assert_int_eq(aule_monitor_metrics(monitor, &array, &count), AULE_OK);
    ck_assert_uint_eq(count, 2);
    ck_assert_str_eq(array[0].name, "aule_a_bytes_total");
    ck_assert_str_eq(array[0].unit, "bytes");
    ck_assert_int_eq(array[0].kind, AULE_METRIC_COUNTER);
    ck_assert_uint_eq(array[0].value, UINT64_MAX);
    ck_assert_str_eq(array[1].help, "b");
    ck_assert_int_eq(array[1].kind, AULE_METRIC_GAUGE);
    free(array);
    aule_monitor_close(monitor);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client_fake");
    add(suite, "tensors",
        (const struct entry[]){
            {tensors_lie_in_the_arena_and_end, 0},
            {a_shape_that_no_tensor_has_is_refused, NUM_SHAPE_CASES},
            {an_lse_tensor_has_any_number_of_heads, 0},
            {NULL, 0},
        });
    add(suite, "answers",
        (const struct entry[]){
            {more_or_fewer_blocks_than_fit_are_not_written, 0},
            {an_answer_that_comes_twice_is_taken_once, 0},
            {NULL, 0},
        });
    add(suite, "threads",
        (const struct entry[]){
            {threads_share_a_session, 0},
            {a_reconnect_under_load_ends_or_serves_every_call, 0},
            {a_session_closes_while_a_thread_cannot_send, 0},
            {NULL, 0},
        });
    add(suite, "monitor",
        (const struct entry[]){
            {a_ping_that_comes_back_as_another_fills_nothing, 0},
            {a_published_block_that_cannot_be_is_refused_with_its_id, 0},
            {a_list_longer_than_a_page_comes_whole, 0},
            {a_daemon_too_old_for_a_command_is_told_so, 0},
            {a_monitor_asks_a_daemon_of_another_major_nothing_but_its_protocol, 0},
            {the_tokens_of_a_block_come_whole_and_too_many_are_refused, 0},
            {the_table_of_shaders_says_which_is_used_and_what_the_others_lack, 0},
            {metrics_come_as_names_and_values, 0},
            {NULL, 0},
        });
    return check_main(suite);
}
