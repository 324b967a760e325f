// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_gone.c - the client library with a daemon that is silent, late or gone, with a
// reconnect, and with a fork. Each test is a process with a fake daemon in it.

#include "rigs/client_world.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// ---- the daemon ends ----

static enum fake_action silent_wait(struct fake_daemon *daemon, const struct wire_request *request,
                                    struct wire_reply *reply)
{
    (void)daemon;
    (void)reply;
    return request->command == WIRE_COMMAND_WAIT ? FAKE_SILENCE : FAKE_ANSWER;
}

struct waiter {
    pthread_t thread;
    struct aule_session *session;
    struct aule_ticket ticket;
    enum aule_status status;
    char error[256];
};

static void *wait_for_ever(void *context)
{
    struct waiter *waiter = context;
    waiter->status = aule_ticket_wait(waiter->session, waiter->ticket, -1, NULL);
    snprintf(waiter->error, sizeof waiter->error, "%s", aule_error());
    return NULL;
}

enum { NUM_WAITERS = 4 };

static void start_waiters(struct waiter *waiters, struct aule_session *session,
                          struct aule_ticket ticket)
{
    for (int i = 0; i < NUM_WAITERS; i++) {
        waiters[i] = (struct waiter){.session = session, .ticket = ticket};
        ck_assert_int_eq(pthread_create(&waiters[i].thread, NULL, wait_for_ever, &waiters[i]), 0);
    }
    wait_until_seen(WIRE_COMMAND_WAIT, NUM_WAITERS);
}

static void join_waiters(struct waiter *waiters, const char *words)
{
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += DEADLINE_S;
    for (int i = 0; i < NUM_WAITERS; i++) {
        ck_assert_int_eq(pthread_timedjoin_np(waiters[i].thread, NULL, &deadline), 0);
        ck_assert_int_eq(waiters[i].status, AULE_DAEMON_GONE);
        ck_assert_msg(strstr(waiters[i].error, words) != NULL, "%s", waiters[i].error);
    }
}

// ---- answers that never arrive ----

// The handler's context is the command that is never answered.
static enum fake_action silent(struct fake_daemon *daemon, const struct wire_request *request,
                               struct wire_reply *reply)
{
    const enum wire_command *command = daemon->context;
    (void)reply;
    return request->command == *command ? FAKE_SILENCE : FAKE_ANSWER;
}

static void wait_until_lost(unsigned connections)
{
    for (int i = 0; i < DEADLINE_S * 1000 && atomic_load(&fake.connections_lost) < connections; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ck_assert_uint_eq(atomic_load(&fake.connections_lost), connections);
}

START_TEST(a_question_without_an_answer_times_out_and_the_session_lives_on)
{
    enum wire_command command = WIRE_COMMAND_CACHE_STATE;
    struct aule_cache_state state;
    int32_t block;
    fake_start(&fake, path, silent, &command);
    struct aule_session *session = open_session(SHORT_MS);
    struct aule_cache *cache = open_cache(session);
    for (int i = 0; i < 2; i++)
        expect(aule_cache_state(cache, &state), AULE_TIMEOUT, "CACHE_STATE " SHORT_TEXT);
    ck_assert_int_eq(aule_blocks_lease(cache, 1, 0, &block), AULE_OK);
    ck_assert_uint_eq(atomic_load(&fake.connections_lost), 0);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// The state that a session can be in, and each call that changes state in the daemon.
struct client {
    struct aule_session *session;
    struct aule_cache *cache;
    struct aule_batch *batch;
    struct aule_ticket ticket;
};

static const int32_t eight_tokens[8];
static const struct aule_prefix eight = {.tokens = eight_tokens, .num_tokens = 8};

static enum aule_status try_open(struct client *client)
{
    struct aule_cache *cache = NULL;
    const struct aule_cache_params params = {
        .name = "d", .num_layers = 1, .num_kv_heads = 1, .head_dim = 64, .block_size = 8};
    enum aule_status status = aule_cache_open(client->session, &params, &cache);
    ck_assert_ptr_null(cache);
    return status;
}

static enum aule_status try_lease(struct client *client)
{
    int32_t block = -7;
    enum aule_status status = aule_blocks_lease(client->cache, 1, 50, &block);
    ck_assert_int_eq(block, -7);
    return status;
}

static enum aule_status try_release(struct client *client)
{
    const int32_t block = 0;
    return aule_blocks_release(client->cache, 1, &block);
}

static enum aule_status try_lookup(struct client *client)
{
    int32_t block = -7;
    uint32_t count = 55;
    enum aule_status status = aule_prefix_lookup(client->cache, &eight, 0, &block, &count);
    ck_assert_uint_eq(count, 0);
    ck_assert_int_eq(block, -7);
    return status;
}

static enum aule_status try_publish(struct client *client)
{
    int32_t block = 0;
    return aule_prefix_publish(client->cache, &eight, &block, NULL);
}

static enum aule_status try_batch(struct client *client)
{
    struct aule_batch *batch = NULL;
    const int32_t zero = 0;
    const struct aule_batch_params params = {.cu_seqlens_q = &zero};
    enum aule_status status = aule_batch_create(client->cache, &params, &batch);
    ck_assert_ptr_null(batch);
    return status;
}

static enum aule_status try_submit(struct client *client)
{
    const struct aule_run_params run = {.num_heads = 1};
    struct aule_ticket ticket;
    return aule_run_submit(client->batch, &run, 0, &ticket);
}

static enum aule_status try_run(struct client *client)
{
    const struct aule_run_params run = {.num_heads = 1};
    return aule_run(client->batch, &run, 0, NULL);
}

static enum aule_status try_wait(struct client *client)
{
    return aule_ticket_wait(client->session, client->ticket, 0, NULL);
}

static const struct {
    enum wire_command command;
    enum aule_status (*call)(struct client *client);
    const char *words;
} change_cases[] = {
    {WIRE_COMMAND_CACHE_OPEN, try_open, "CACHE_OPEN " SHORT_TEXT "; the session is ended"},
    {WIRE_COMMAND_BLOCKS_LEASE, try_lease, "BLOCKS_LEASE within 3050 ms; the session is ended"},
    {WIRE_COMMAND_BLOCKS_RELEASE, try_release,
     "BLOCKS_RELEASE " SHORT_TEXT "; the session is ended"},
    // The daemon may wait two seconds for tiers.
    {WIRE_COMMAND_PREFIX_LOOKUP, try_lookup, "PREFIX_LOOKUP within 5000 ms; the session is ended"},
    {WIRE_COMMAND_PREFIX_PUBLISH, try_publish,
     "PREFIX_PUBLISH " SHORT_TEXT "; the session is ended"},
    {WIRE_COMMAND_BATCH_CREATE, try_batch, "BATCH_CREATE " SHORT_TEXT "; the session is ended"},
    {WIRE_COMMAND_RUN, try_submit, "RUN " SHORT_TEXT "; the session is ended"},
    {WIRE_COMMAND_RUN, try_run, "RUN " SHORT_TEXT "; the session is ended"},
    {WIRE_COMMAND_WAIT, try_wait, "WAIT " SHORT_TEXT "; the session is ended"},
};
enum { NUM_CHANGE_CASES = sizeof change_cases / sizeof *change_cases };

static void make_client(struct client *client)
{
    client->cache = open_cache(client->session);
    client->batch = create_batch(client->cache);
    client->ticket = submit_one(client->batch);
}

START_TEST(a_change_without_an_answer_ends_the_session)
{
    enum wire_command command = WIRE_COMMAND_NONE;
    struct aule_cache_state state;
    fake_start(&fake, path, silent, &command);
    struct client client = {.session = open_session(SHORT_MS)};
    make_client(&client);
    command = change_cases[_i].command;
    expect(change_cases[_i].call(&client), AULE_TIMEOUT, change_cases[_i].words);
    wait_until_lost(1); // so the daemon takes everything back
    expect(change_cases[_i].call(&client), AULE_DAEMON_GONE, "the session ended when");
    expect(aule_cache_state(client.cache, &state), AULE_DAEMON_GONE, wire_command_name(command));
    command = WIRE_COMMAND_NONE;
    ck_assert_int_eq(aule_session_reconnect(client.session), AULE_OK);
    aule_batch_destroy(client.batch);
    aule_cache_close(client.cache);
    make_client(&client);
    ck_assert_int_eq(try_wait(&client), AULE_OK);
    aule_batch_destroy(client.batch);
    aule_cache_close(client.cache);
    aule_session_close(client.session);
}
END_TEST

START_TEST(a_change_without_an_answer_ends_the_waits_of_other_threads)
{
    enum wire_command command = WIRE_COMMAND_WAIT;
    struct waiter waiters[NUM_WAITERS];
    fake_start(&fake, path, silent, &command);
    struct client client = {.session = open_session(SHORT_MS)};
    make_client(&client);
    for (int i = 0; i < 3; i++)
        ck_assert_uint_ne(submit_one(client.batch).id, 0);
    start_waiters(waiters, client.session, client.ticket);
    expect(try_wait(&client), AULE_TIMEOUT, "WAIT " SHORT_TEXT);
    join_waiters(waiters, "WAIT");
    aule_batch_destroy(client.batch);
    aule_cache_close(client.cache);
    aule_session_close(client.session);
}
END_TEST

// ---- the daemon is gone ----

START_TEST(waits_without_end_end_with_the_daemon)
{
    struct waiter waiters[NUM_WAITERS];
    struct aule_cache_state state;
    fake_start(&fake, path, silent_wait, NULL);
    struct aule_session *session = open_session(-1);
    struct aule_cache *cache = open_cache(session);
    struct aule_batch *batch = create_batch(cache);
    start_waiters(waiters, session, submit_one(batch));
    fake_stop(&fake);
    join_waiters(waiters, path);
    expect(aule_cache_state(cache, &state), AULE_DAEMON_GONE, path);
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

START_TEST(closing_a_session_ends_the_waits_of_other_threads)
{
    struct waiter waiters[NUM_WAITERS];
    struct aule_cache_state state;
    fake_start(&fake, path, silent_wait, NULL);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    struct aule_batch *batch = create_batch(cache);
    start_waiters(waiters, session, submit_one(batch));
    aule_session_close(session);
    join_waiters(waiters, "closed");
    expect(aule_cache_state(cache, &state), AULE_NO_SESSION, "closed");
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_CACHE_CLOSE]), 0);
}
END_TEST

// ---- a daemon that does not read ----

enum { LONG_PROMPT = 200000, PROMPT_BLOCK = 8 }; // tokens; a message of 800 KB

// The fake answers no look-up and reads nothing more until the context becomes true.
static enum fake_action stop_reading(struct fake_daemon *daemon, const struct wire_request *request,
                                     struct wire_reply *reply)
{
    atomic_bool *go_on = daemon->context;
    (void)reply;
    while (request->command == WIRE_COMMAND_PREFIX_LOOKUP && !atomic_load(go_on))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return FAKE_ANSWER;
}

struct asker {
    pthread_t thread;
    struct aule_cache *cache;
    enum aule_status status;
    char error[256];
};

static void *look_up(void *context)
{
    struct asker *asker = context;
    int32_t *tokens = calloc(LONG_PROMPT, sizeof *tokens),
            *blocks = calloc(LONG_PROMPT / PROMPT_BLOCK, sizeof *blocks);
    uint32_t count;
    const struct aule_prefix prefix = {.tokens = tokens, .num_tokens = LONG_PROMPT};
    asker->status = aule_prefix_lookup(asker->cache, &prefix, 0, blocks, &count);
    snprintf(asker->error, sizeof asker->error, "%s", aule_error());
    free(tokens);
    free(blocks);
    return NULL;
}

enum { NUM_ASKERS = 8 }; // their messages are more than the socket and nng hold

static atomic_bool reads_on;

// The daemon reads again when all calls have ended, so that it hears the farewell.
static void *join_askers(void *context)
{
    struct asker *askers = context;
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += DEADLINE_S;
    for (int i = 0; i < NUM_ASKERS; i++)
        ck_assert_int_eq(pthread_timedjoin_np(askers[i].thread, NULL, &deadline), 0);
    atomic_store(&reads_on, true);
    return NULL;
}

START_TEST(closing_a_session_ends_calls_whose_requests_the_daemon_does_not_read)
{
    struct asker askers[NUM_ASKERS];
    pthread_t joiner;
    fake_start(&fake, path, stop_reading, &reads_on);
    struct aule_session *session = open_session(-1);
    struct aule_cache *cache = open_cache(session);
    for (int i = 0; i < NUM_ASKERS; i++) {
        askers[i] = (struct asker){.cache = cache};
        ck_assert_int_eq(pthread_create(&askers[i].thread, NULL, look_up, &askers[i]), 0);
    }
    wait_until_seen(WIRE_COMMAND_PREFIX_LOOKUP, 1);
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL); // the others fill the socket
    ck_assert_int_eq(pthread_create(&joiner, NULL, join_askers, askers), 0);
    aule_session_close(session);
    ck_assert_int_eq(pthread_join(joiner, NULL), 0);
    for (int i = 0; i < NUM_ASKERS; i++) { // a thread may have come too late to ask
        ck_assert(askers[i].status == AULE_DAEMON_GONE || askers[i].status == AULE_NO_SESSION);
        ck_assert_msg(strstr(askers[i].error, "closed") != NULL, "%s", askers[i].error);
    }
    aule_cache_close(cache);
}
END_TEST

START_TEST(nothing_of_an_old_session_reaches_the_next_daemon)
{
    struct aule_cache_state state;
    fake_start(&fake, path, NULL, NULL);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    fake_stop(&fake);
    fake_start(&fake, path, NULL, NULL);
    for (int i = 0; i < 50; i++) {
        expect(aule_cache_state(cache, &state), AULE_DAEMON_GONE, path);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    aule_cache_close(cache);
    aule_session_close(session);
    for (int command = 0; command < WIRE_COMMAND_COUNT; command++)
        ck_assert_uint_eq(atomic_load(&fake.seen[command]), 0);
}
END_TEST

START_TEST(after_a_reconnect_old_handles_are_of_another_epoch)
{
    struct aule_session_info before, after;
    struct aule_cache_state state;
    struct aule_batch *none;
    const struct aule_run_params run = {.num_heads = 1};
    const int32_t zero = 0;
    const struct aule_batch_params empty = {.cu_seqlens_q = &zero};
    fake_start(&fake, path, NULL, NULL);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    struct aule_batch *batch = create_batch(cache);
    struct aule_ticket ticket = submit_one(batch);
    ck_assert_int_eq(aule_session_info(session, &before), AULE_OK);
    fake_stop(&fake);
    expect(aule_session_reconnect(session), AULE_DAEMON_GONE, path);
    expect(aule_session_info(session, &after), AULE_DAEMON_GONE, path);
    ck_assert_ptr_null(aule_arena_base(session));

    fake_start(&fake, path, NULL, NULL);
    ck_assert_int_eq(aule_session_reconnect(session), AULE_OK);
    ck_assert_int_eq(aule_session_info(session, &after), AULE_OK);
    ck_assert_uint_ne(before.epoch, after.epoch);
    ck_assert_ptr_nonnull(aule_arena_base(session));
    expect(aule_cache_state(cache, &state), AULE_EPOCH, "before the reconnect");
    expect(aule_batch_create(cache, &empty, &none), AULE_EPOCH, "before the reconnect");
    expect(aule_run_submit(batch, &run, 0, NULL), AULE_EPOCH, "before the reconnect");
    expect(aule_ticket_wait(session, ticket, 0, NULL), AULE_EPOCH, "before the reconnect");
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    cache = open_cache(session);
    batch = create_batch(cache);
    ticket = submit_one(batch);
    ck_assert_int_eq(aule_ticket_wait(session, ticket, 0, NULL), AULE_OK);
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

static void expect_no_gap_of_all(struct aule_session *session)
{
    void *all;
    expect(aule_arena_alloc(session, FAKE_ARENA, &all, NULL), AULE_NO_MEMORY, "in one piece");
}

START_TEST(a_tensor_from_before_a_reconnect_frees_and_reads_nothing)
{
    struct aule_tensor old, fresh;
    fake_start(&fake, path, NULL, NULL);
    struct aule_session *session = open_session(0);
    ck_assert_int_eq(aule_tensor_create(session, AULE_F16, 5, 1, 64, &old), AULE_OK);
    ck_assert_int_eq(aule_session_reconnect(session), AULE_OK);
    ck_assert_int_eq(aule_tensor_create(session, AULE_F16, 5, 1, 64, &fresh), AULE_OK);
    ck_assert_uint_eq(old.offset, fresh.offset);
    ck_assert_ptr_null(aule_tensor_data(session, &old));
    expect(AULE_EPOCH, AULE_EPOCH, "the tensor lies in the arena of life 1");
    ck_assert_ptr_nonnull(aule_tensor_data(session, &fresh));

    struct aule_cache *cache = open_cache(session);
    struct aule_batch *batch = create_batch(cache);
    const struct {
        struct aule_run_params params;
        const char *words;
    } runs[] = {{{.num_heads = 1, .q = old}, "q lies"},
                {{.num_heads = 1, .k = old}, "k lies"},
                {{.num_heads = 1, .v = old}, "v lies"},
                {{.num_heads = 1, .q = fresh, .out = old}, "out lies"},
                {{.num_heads = 1, .q = fresh, .lse = old}, "lse lies"}};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        expect(aule_run_submit(batch, &runs[i].params, 0, NULL), AULE_EPOCH, runs[i].words);
        expect(aule_run(batch, &runs[i].params, 0, NULL), AULE_EPOCH, runs[i].words);
    }
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_RUN]), 0);
    const struct aule_run_params run = {
        .num_heads = 1, .q = fresh, .k = {.dtype = AULE_F16, .offset = 256}};
    ck_assert_int_eq(aule_run_submit(batch, &run, 0, NULL), AULE_OK);

    aule_tensor_destroy(session, &old);
    ck_assert_int_eq(old.dtype, 0);
    expect_no_gap_of_all(session);
    aule_tensor_destroy(session, &fresh);
    void *all;
    ck_assert_int_eq(aule_arena_alloc(session, FAKE_ARENA, &all, NULL), AULE_OK);
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

START_TEST(a_tensor_made_by_hand_is_not_ended_by_the_library)
{
    struct aule_tensor owner;
    fake_start(&fake, path, NULL, NULL);
    struct aule_session *session = open_session(0);
    ck_assert_int_eq(aule_tensor_create(session, AULE_F16, 5, 2, 64, &owner), AULE_OK);
    struct aule_tensor slice = {
        .dtype = AULE_F16, .offset = owner.offset, .token_stride = 256, .head_stride = 128};
    ck_assert_ptr_eq(aule_tensor_data(session, &slice), aule_tensor_data(session, &owner));
    aule_tensor_destroy(session, &slice);
    expect(AULE_INVALID, AULE_INVALID, "is not of aule_tensor_create()");
    ck_assert_int_eq(slice.dtype, AULE_F16);
    expect_no_gap_of_all(session);
    aule_tensor_destroy(session, &owner);
    aule_session_close(session);
}
END_TEST

START_TEST(two_daemons_serve_one_process)
{
    char other_path[108];
    struct fake_daemon other;
    struct aule_session_info a, b;
    struct aule_session *second = NULL;
    snprintf(other_path, sizeof other_path, "%s/1.sock", folder);
    fake_start(&fake, path, NULL, NULL);
    fake_start(&other, other_path, NULL, NULL);
    struct aule_session *first = open_session(0);
    const struct aule_session_params params = {.socket = other_path};
    ck_assert_int_eq(aule_session_open(&params, &second), AULE_OK);
    ck_assert_int_eq(aule_session_info(first, &a), AULE_OK);
    ck_assert_int_eq(aule_session_info(second, &b), AULE_OK);
    ck_assert_uint_eq(a.epoch, fake.epoch);
    ck_assert_uint_eq(b.epoch, other.epoch);
    fake_stop(&fake);
    ck_assert_int_eq(aule_session_info(second, &b), AULE_OK);
    aule_cache_close(open_cache(second));
    aule_session_close(first);
    aule_session_close(second);
    fake_stop(&other);
}
END_TEST

// ---- fork ----

static void child_of(struct aule_session *session, struct aule_cache *cache,
                     struct aule_batch *batch, struct aule_monitor *monitor)
{
    struct aule_session_info info;
    struct aule_cache_state state;
    struct aule_ping_info ping;
    struct aule_monitor *own = NULL;
    const struct aule_run_params run = {.num_heads = 1};
    void *data;
    int wrong = 0;
    wrong += aule_session_info(session, &info) != AULE_FORKED;
    wrong += aule_session_reconnect(session) != AULE_FORKED;
    wrong += aule_arena_alloc(session, 16, &data, NULL) != AULE_FORKED;
    wrong += aule_cache_state(cache, &state) != AULE_FORKED;
    wrong += aule_run_submit(batch, &run, 0, NULL) != AULE_FORKED;
    wrong += aule_monitor_ping(monitor, &ping) != AULE_FORKED;
    wrong += strstr(aule_error(), "spawn") == NULL;
    wrong += aule_arena_base(session) != NULL;
#ifndef __SANITIZE_THREAD__ // ends a forked child that starts a thread
    wrong += aule_monitor_open(path, 0, &own) != AULE_OK;
    wrong += aule_monitor_ping(own, &ping) != AULE_OK;
#endif
    aule_monitor_close(own);
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
    aule_monitor_close(monitor);
    _exit(wrong);
}

START_TEST(a_forked_child_gets_an_error_opens_its_own_and_its_parent_goes_on)
{
    struct aule_monitor *monitor;
    int status;
    fake_start(&fake, path, NULL, NULL);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    struct aule_batch *batch = create_batch(cache);
    ck_assert_int_eq(aule_monitor_open(path, 0, &monitor), AULE_OK);
    // AddressSanitizer's allocator does not survive a fork in the middle of another thread's call.
    // So the threads of nng and of the fake daemon come to rest first.
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0)
        child_of(session, cache, batch, monitor);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's status is 0x%x",
                  (unsigned)status);
    ck_assert_int_eq(aule_ticket_wait(session, submit_one(batch), 0, NULL), AULE_OK);
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
    aule_monitor_close(monitor);
    wait_until_seen(WIRE_COMMAND_CLOSE_SESSION, 1); // the library does not wait for good
}
END_TEST

// ---- the suite ----

int main(void)
{
    Suite *suite = suite_create("client_gone");
    add(suite, "silence",
        (const struct entry[]){
            {a_question_without_an_answer_times_out_and_the_session_lives_on, 0},
            {a_change_without_an_answer_ends_the_session, NUM_CHANGE_CASES},
            {a_change_without_an_answer_ends_the_waits_of_other_threads, 0},
            {NULL, 0},
        });
    add(suite, "the daemon goes",
        (const struct entry[]){
            {waits_without_end_end_with_the_daemon, 0},
            {closing_a_session_ends_the_waits_of_other_threads, 0},
            {closing_a_session_ends_calls_whose_requests_the_daemon_does_not_read, 0},
            {nothing_of_an_old_session_reaches_the_next_daemon, 0},
            {after_a_reconnect_old_handles_are_of_another_epoch, 0},
            {a_tensor_from_before_a_reconnect_frees_and_reads_nothing, 0},
            {a_tensor_made_by_hand_is_not_ended_by_the_library, 0},
            {two_daemons_serve_one_process, 0},
            {NULL, 0},
        });
    add(suite, "fork",
        (const struct entry[]){
            {a_forked_child_gets_an_error_opens_its_own_and_its_parent_goes_on, 0},
            {NULL, 0},
        });
    return check_main(suite);
}
