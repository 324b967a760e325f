// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_fake.c - what the client library makes of a daemon that is silent, late, gone, broken or of another version, and what it
// puts on the wire. Each test is a process of its own with a fake daemon in it; the real one is test_client.c's.

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "aule/aule.h"
#include "check_main.h"
#include "fake_daemon.h"

enum { SHORT_MS = 200, DEADLINE_S = 20 };

static char folder[64], path[108];
static struct fake_daemon fake;

static void make_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/aule-fake-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/0.sock", folder);
}

static void remove_folder(void)
{
    fake_stop(&fake);
    unlink(path);
    ck_assert_int_eq(rmdir(folder), 0);
}

static struct aule_session_params params_of(int timeout_ms)
{
    return (struct aule_session_params){.socket = path, .name = "test", .timeout_ms = timeout_ms};
}

static struct aule_session *open_session(int timeout_ms)
{
    struct aule_session *session = NULL;
    struct aule_session_params params = params_of(timeout_ms);
    enum aule_status status = aule_session_open(&params, &session);
    ck_assert_msg(status == AULE_OK, "%s: %s", aule_status_name(status), aule_error());
    return session;
}

static void expect_open(enum aule_status expected, const char *words)
{
    struct aule_session *session = NULL;
    struct aule_session_params params = params_of(SHORT_MS);
    ck_assert_str_eq(aule_status_name(aule_session_open(&params, &session)), aule_status_name(expected));
    ck_assert_ptr_null(session);
    ck_assert_msg(strstr(aule_error(), words) != NULL, "\"%s\" lacks \"%s\"", aule_error(), words);
}

static void expect(enum aule_status status, enum aule_status expected, const char *words)
{
    ck_assert_msg(status == expected, "%s instead of %s: %s", aule_status_name(status), aule_status_name(expected),
                  aule_error());
    ck_assert_msg(strstr(aule_error(), words) != NULL, "\"%s\" lacks \"%s\"", aule_error(), words);
}

static struct aule_cache *open_cache(struct aule_session *session)
{
    struct aule_cache *cache = NULL;
    const struct aule_cache_params params = {
        .name = "c", .num_layers = 1, .num_kv_heads = 1, .head_dim = 64, .block_size = 8};
    ck_assert_int_eq(aule_cache_open(session, &params, &cache), AULE_OK);
    return cache;
}

static struct aule_batch *create_batch(struct aule_cache *cache)
{
    struct aule_batch *batch = NULL;
    const int32_t cu[] = {0, 1}, lens[] = {1}, table[] = {0};
    const struct aule_batch_params params = {
        .num_seqs = 1, .max_blocks = 1, .cu_seqlens_q = cu, .seq_lens_kv = lens, .block_table = table};
    ck_assert_int_eq(aule_batch_create(cache, &params, &batch), AULE_OK);
    return batch;
}

static void wait_until_seen(enum wire_command command, unsigned count)
{
    for (int i = 0; i < DEADLINE_S * 1000 && atomic_load(&fake.seen[command]) < count; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ck_assert_uint_eq(atomic_load(&fake.seen[command]), count);
}

// ---- opening ----

START_TEST(nobody_listening_is_told_at_once)
{
    expect_open(AULE_DAEMON_GONE, path);
}
END_TEST

START_TEST(a_file_at_the_path_is_no_daemon_and_stays)
{
    struct stat info;
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    ck_assert_int_ge(fd, 0);
    close(fd);
    expect_open(AULE_DAEMON_GONE, path);
    ck_assert_int_eq(stat(path, &info), 0);
}
END_TEST

START_TEST(a_daemon_that_never_greets_runs_into_the_timeout)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(fd, 4), 0);
    expect_open(AULE_TIMEOUT, "200 ms");
    struct aule_monitor *monitor;
    ck_assert_int_eq(aule_monitor_open(path, SHORT_MS, &monitor), AULE_TIMEOUT);
    close(fd);
}
END_TEST

START_TEST(a_timeout_that_is_none_is_refused)
{
    struct aule_session *session = NULL;
    struct aule_session_params params = params_of(-5);
    expect(aule_session_open(&params, &session), AULE_INVALID, "-5");
}
END_TEST

struct hello_case {
    const char *name;
    void (*change)(struct fake_daemon *fake, struct wire_reply *reply);
    enum fake_action action;
    enum aule_status status;
    const char *words;
};

static void other_major(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)daemon;
    reply->hello.major = 9;
}

static void refused_version(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)daemon;
    reply->status = STATUS_VERSION;
    reply->message = "protocol 1.0 is not mine, 9.3";
    reply->answer = WIRE_ANSWER_EMPTY;
}

static void refused_user(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)daemon;
    reply->status = STATUS_DENIED;
    reply->message = "uid 12 is not uid 34";
    reply->answer = WIRE_ANSWER_EMPTY;
}

static void other_kind(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)daemon;
    reply->answer = WIRE_ANSWER_EMPTY;
}

static void unknown_status(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)daemon;
    reply->status = 4711;
    reply->message = "from the future";
    reply->answer = WIRE_ANSWER_EMPTY;
}

static void missing_segment(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)daemon;
    reply->hello.segment_name = "/aule-nowhere";
}

static void foreign_segment(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)daemon;
    reply->hello.segment_name = "/other-things";
}

static void escaping_segment(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)daemon;
    reply->hello.segment_name = "/aule-/../../etc/passwd";
}

static void other_size(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)daemon;
    reply->hello.segment_size += WIRE_PAGE;
}

static void arena_past_the_end(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)daemon;
    reply->hello.arena_size = UINT64_MAX - 4096;
}

static void other_magic(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)reply;
    ((struct wire_segment_header *)daemon->segment)->magic = 0x656c7562;
}

static void other_layout_version(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)reply;
    ((struct wire_segment_header *)daemon->segment)->version = 77;
}

static void other_session(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)reply;
    ((struct wire_segment_header *)daemon->segment)->session = 4242;
}

static void other_arena(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)reply;
    ((struct wire_segment_header *)daemon->segment)->arena_size = 12288;
}

static const struct hello_case hello_cases[] = {
    {"other major", other_major, FAKE_ANSWER, AULE_VERSION, "9.0"},
    {"refused version", refused_version, FAKE_ANSWER, AULE_VERSION, "protocol 1.0 is not mine, 9.3"},
    {"refused user", refused_user, FAKE_ANSWER, AULE_DENIED, "uid 12 is not uid 34"},
    {"other kind", other_kind, FAKE_ANSWER, AULE_MALFORMED, "HELLO"},
    {"unknown status", unknown_status, FAKE_ANSWER, AULE_MALFORMED, "4711"},
    {"garbage", NULL, FAKE_GARBAGE, AULE_MALFORMED, "HELLO"},
    {"silence", NULL, FAKE_SILENCE, AULE_TIMEOUT, "HELLO within 200 ms"},
    {"hang up", NULL, FAKE_HANG_UP, AULE_DAEMON_GONE, path},
    {"missing segment", missing_segment, FAKE_ANSWER, AULE_DAEMON_GONE, "/aule-nowhere"},
    {"foreign segment", foreign_segment, FAKE_ANSWER, AULE_MISMATCH, "/other-things"},
    {"escaping segment", escaping_segment, FAKE_ANSWER, AULE_MISMATCH, "/aule-/../../etc/passwd"},
    {"other size", other_size, FAKE_ANSWER, AULE_MISMATCH, "4202496"},
    {"arena past the end", arena_past_the_end, FAKE_ANSWER, AULE_MISMATCH, "18446744073709547519"},
    {"other magic", other_magic, FAKE_ANSWER, AULE_MISMATCH, "0x656c7562"},
    {"other layout version", other_layout_version, FAKE_ANSWER, AULE_MISMATCH, "version 77"},
    {"other session", other_session, FAKE_ANSWER, AULE_MISMATCH, "4242"},
    {"other arena", other_arena, FAKE_ANSWER, AULE_MISMATCH, "12288"},
};
enum { NUM_HELLO_CASES = sizeof hello_cases / sizeof *hello_cases };

static enum fake_action spoil_hello(struct fake_daemon *daemon, const struct wire_request *request,
                                    struct wire_reply *reply)
{
    const struct hello_case *it = daemon->context;
    if (request->command != WIRE_COMMAND_HELLO)
        return FAKE_ANSWER;
    if (it->change)
        it->change(daemon, reply);
    return it->action;
}

START_TEST(a_greeting_that_is_wrong_is_refused_with_its_values)
{
    const struct hello_case *it = &hello_cases[_i];
    fake_start(&fake, path, spoil_hello, (void *)it);
    expect_open(it->status, it->words);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_MAPPED]), 0);
}
END_TEST

enum { HANDSHAKE_MS = 1000 };

static enum fake_action slow_handshake(struct fake_daemon *daemon, const struct wire_request *request,
                                       struct wire_reply *reply)
{
    (void)daemon;
    (void)reply;
    if (request->command == WIRE_COMMAND_HELLO || request->command == WIRE_COMMAND_MAPPED)
        nanosleep(&(struct timespec){.tv_nsec = 6 * HANDSHAKE_MS / 10 * 1000000L}, NULL);
    return FAKE_ANSWER;
}

START_TEST(the_steps_of_a_handshake_share_one_timeout)
{
    struct aule_session *session = NULL;
    struct aule_session_params params = params_of(HANDSHAKE_MS);
    fake_start(&fake, path, slow_handshake, NULL);
    expect(aule_session_open(&params, &session), AULE_TIMEOUT, "within 1000 ms");
    ck_assert_ptr_null(session);
}
END_TEST

static enum fake_action tell_a_small_message(struct fake_daemon *daemon, const struct wire_request *request,
                                             struct wire_reply *reply)
{
    (void)daemon;
    if (request->command == WIRE_COMMAND_HELLO)
        reply->hello.max_message = 100;
    return FAKE_ANSWER;
}

START_TEST(a_message_too_small_for_any_block_takes_none)
{
    int32_t block;
    fake_start(&fake, path, tell_a_small_message, NULL);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    expect(aule_blocks_lease(cache, 1, 0, &block), AULE_LIMIT, "100 bytes takes 0");
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// A process of its own that may open no descriptor above `limit`; it opens a session, and tells by its exit code.
static int open_with_descriptors(rlim_t limit)
{
    pid_t child = fork(); // before this process has a session
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        const struct rlimit few = {.rlim_cur = limit, .rlim_max = limit};
        struct aule_session *session = NULL;
        struct aule_session_params params = params_of(0);
        if (setrlimit(RLIMIT_NOFILE, &few) != 0)
            _exit(100);
        enum aule_status status = aule_session_open(&params, &session);
        if (status == AULE_NO_MEMORY && !strstr(aule_error(), "ulimit -n"))
            _exit(101);
        aule_session_close(session);
        _exit((int)status);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status), "the child's status is 0x%x", (unsigned)status);
    return WEXITSTATUS(status);
}

// From none to enough: nng's own, the socket, the segment.
START_TEST(too_few_descriptors_are_no_memory_and_the_limit_is_named)
{
    int status = AULE_NO_MEMORY;
    unsigned refused = 0;
    int ends[2];
    char byte;
    ck_assert_int_eq(pipe(ends), 0);
    pid_t server = fork(); // nng works in one process of a family only
    ck_assert_int_ge(server, 0);
    if (server == 0) {
        close(ends[1]);
        fake_start(&fake, path, NULL, NULL);
        while (read(ends[0], &byte, 1) > 0) // until the test ends, in whatever way
            continue;
        fake_stop(&fake);
        _exit(0);
    }
    close(ends[0]);
    for (int i = 0; i < DEADLINE_S * 1000 && access(path, F_OK) != 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    for (rlim_t limit = 4; limit < 64 && status != AULE_OK; limit++) {
        status = open_with_descriptors(limit);
        refused += status == AULE_NO_MEMORY;
        ck_assert_msg(status == AULE_OK || status == AULE_NO_MEMORY, "limit %u gives %d, %s", (unsigned)limit, status,
                      aule_status_name((enum aule_status)status));
    }
    ck_assert_int_eq(status, AULE_OK);
    ck_assert_uint_gt(refused, 3);
    close(ends[1]);
    ck_assert_int_eq(waitpid(server, &status, 0), server);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the server's status is 0x%x", (unsigned)status);
}
END_TEST

START_TEST(a_session_tells_what_the_handshake_said)
{
    struct aule_session_info info;
    fake_start(&fake, path, NULL, NULL);
    struct aule_session *session = open_session(0);
    ck_assert_int_eq(aule_session_info(session, &info), AULE_OK);
    ck_assert_uint_eq(info.epoch, fake.epoch);
    ck_assert_uint_eq(info.arena_size, FAKE_ARENA);
    ck_assert_uint_eq(info.max_tickets, 4);
    ck_assert_str_eq(info.device_name, "fake");
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_MAPPED]), 1);
    aule_session_close(session);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_CLOSE_SESSION]), 1);
}
END_TEST

START_TEST(a_socket_from_the_environment_is_found)
{
    struct aule_session *session = NULL;
    fake_start(&fake, path, NULL, NULL);
    setenv("AULE_RUNTIME_DIR", folder, 1);
    ck_assert_int_eq(aule_session_open(NULL, &session), AULE_OK);
    aule_session_close(session);
}
END_TEST

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
    aule_arena_free(session, (char *)all + 256); // begins nothing
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
    expect(aule_tensor_create(session, shape_cases[_i].dtype, shape_cases[_i].num_tokens, shape_cases[_i].num_heads,
                              shape_cases[_i].head_dim, &tensor),
           shape_cases[_i].status, shape_cases[_i].words);
    ck_assert_uint_eq(tensor.offset, 99);
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
    expect(aule_prefix_lookup(cache, &prefix, 0, blocks, &num_blocks), AULE_MALFORMED, "4 blocks for a prefix of 3");
    ck_assert_uint_eq(num_blocks, 0);
    expect(aule_prefix_publish(cache, &prefix, blocks, NULL), AULE_MALFORMED, "4 blocks for a prefix of 3");
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(blocks[i], -7);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

static enum fake_action twice(struct fake_daemon *daemon, const struct wire_request *request, struct wire_reply *reply)
{
    (void)daemon;
    (void)request;
    (void)reply;
    return FAKE_TWICE;
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

// ---- the daemon goes ----

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

static void start_waiters(struct waiter *waiters, struct aule_session *session, struct aule_ticket ticket)
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

static struct aule_ticket submit_one(struct aule_batch *batch)
{
    struct aule_ticket ticket = {0};
    const struct aule_run_params run = {.num_heads = 1};
    ck_assert_int_eq(aule_run_submit(batch, &run, 0, &ticket), AULE_OK);
    return ticket;
}

// ---- answers that never come ----

// The handler's context is the command that is never answered.
static enum fake_action silent(struct fake_daemon *daemon, const struct wire_request *request, struct wire_reply *reply)
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
        expect(aule_cache_state(cache, &state), AULE_TIMEOUT, "CACHE_STATE within 200 ms");
    ck_assert_int_eq(aule_blocks_lease(cache, 1, 0, &block), AULE_OK);
    ck_assert_uint_eq(atomic_load(&fake.connections_lost), 0);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// What a session can be in the middle of, and each call that changes something in the daemon.
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
    {WIRE_COMMAND_CACHE_OPEN, try_open, "CACHE_OPEN within 200 ms; the session is ended"},
    {WIRE_COMMAND_BLOCKS_LEASE, try_lease, "BLOCKS_LEASE within 250 ms; the session is ended"},
    {WIRE_COMMAND_BLOCKS_RELEASE, try_release, "BLOCKS_RELEASE within 200 ms; the session is ended"},
    {WIRE_COMMAND_PREFIX_LOOKUP, try_lookup, "PREFIX_LOOKUP within 200 ms; the session is ended"},
    {WIRE_COMMAND_PREFIX_PUBLISH, try_publish, "PREFIX_PUBLISH within 200 ms; the session is ended"},
    {WIRE_COMMAND_BATCH_CREATE, try_batch, "BATCH_CREATE within 200 ms; the session is ended"},
    {WIRE_COMMAND_RUN, try_submit, "RUN within 200 ms; the session is ended"},
    {WIRE_COMMAND_WAIT, try_run, "WAIT within 200 ms; the session is ended"},
    {WIRE_COMMAND_WAIT, try_wait, "WAIT within 200 ms; the session is ended"},
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
    expect(try_wait(&client), AULE_TIMEOUT, "WAIT within 200 ms");
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
    const struct aule_run_params run = {.num_heads = 1, .q = fresh, .k = {.dtype = AULE_F16, .offset = 256}};
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
    struct aule_tensor slice = {.dtype = AULE_F16, .offset = owner.offset, .token_stride = 256, .head_stride = 128};
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

static void child_of(struct aule_session *session, struct aule_cache *cache, struct aule_batch *batch,
                     struct aule_monitor *monitor)
{
    struct aule_session_info info;
    struct aule_cache_state state;
    struct aule_ping_info ping;
    struct aule_session *own = NULL;
    const struct aule_run_params run = {.num_heads = 1};
    void *data;
    const struct aule_session_params params = params_of(0);
    int wrong = 0;
    wrong += aule_session_info(session, &info) != AULE_FORKED;
    wrong += aule_session_reconnect(session) != AULE_FORKED;
    wrong += aule_arena_alloc(session, 16, &data, NULL) != AULE_FORKED;
    wrong += aule_cache_state(cache, &state) != AULE_FORKED;
    wrong += aule_run_submit(batch, &run, 0, NULL) != AULE_FORKED;
    wrong += aule_monitor_ping(monitor, &ping) != AULE_FORKED;
    wrong += aule_session_open(&params, &own) != AULE_FORKED;
    wrong += strstr(aule_error(), "forked") == NULL;
    wrong += aule_arena_base(session) != NULL;
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
    aule_monitor_close(monitor);
    _exit(wrong);
}

START_TEST(a_forked_child_gets_an_error_and_its_parent_goes_on)
{
    struct aule_monitor *monitor;
    int status;
    fake_start(&fake, path, NULL, NULL);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    struct aule_batch *batch = create_batch(cache);
    ck_assert_int_eq(aule_monitor_open(path, 0, &monitor), AULE_OK);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0)
        child_of(session, cache, batch, monitor);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's status is 0x%x", (unsigned)status);
    ck_assert_int_eq(aule_ticket_wait(session, submit_one(batch), 0, NULL), AULE_OK);
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
    aule_monitor_close(monitor);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_CLOSE_SESSION]), 1);
}
END_TEST

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

static void expect_empty_arena(struct aule_session *session)
{
    void *all;
    ck_assert_int_eq(aule_arena_alloc(session, FAKE_ARENA, &all, NULL), AULE_OK);
    aule_arena_free(session, all);
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
    expect(aule_run_submit(batch, &rich, 0, &ticket), AULE_NO_MEMORY, "slopes and sinks: 32 bytes have no room");
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

// ---- several threads ----

enum { NUM_THREADS = 6, CALLS_A_THREAD = 300 };

static void *use_session(void *context)
{
    struct aule_session *session = context;
    struct aule_cache *cache = open_cache(session);
    int32_t blocks[3];
    for (int i = 0; i < CALLS_A_THREAD; i++) {
        void *data;
        ck_assert_int_eq(aule_arena_alloc(session, (uint64_t)(i % 7 + 1) * 100, &data, NULL), AULE_OK);
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
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_BLOCKS_LEASE]), NUM_THREADS * CALLS_A_THREAD);
    expect_empty_arena(session);
    aule_session_close(session);
}
END_TEST

static atomic_bool stop_leasing;

// Whatever the session does meanwhile, a lease gives blocks, or says that the handle or the connection is gone.
static void *lease_for_ever(void *context)
{
    struct aule_cache *cache = context;
    int32_t block;
    enum aule_status status = AULE_OK;
    while (!atomic_load(&stop_leasing)) {
        status = aule_blocks_lease(cache, 1, -1, &block);
        ck_assert_msg(status == AULE_OK || status == AULE_DAEMON_GONE || status == AULE_EPOCH, "%s", aule_error());
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

// ---- the monitor ----

enum { NUM_ENTRIES = 2500, PAGE = 700 };

static enum fake_action paged(struct fake_daemon *daemon, const struct wire_request *request, struct wire_reply *reply)
{
    static struct wire_block_state blocks[PAGE];
    static struct wire_session_state sessions[PAGE];
    static const char *names[PAGE];
    (void)daemon;
    uint32_t first =
        request->command == WIRE_COMMAND_INSPECT_BLOCKS ? request->inspect_blocks.first : request->inspect_range.first;
    uint32_t count = first >= NUM_ENTRIES ? 0 : NUM_ENTRIES - first < PAGE ? NUM_ENTRIES - first : PAGE;
    for (uint32_t i = 0; i < count; i++) {
        blocks[i] = (struct wire_block_state){.block = (int32_t)(first + i), .depth = -1};
        sessions[i] = (struct wire_session_state){.session = first + i};
        names[i] = "someone";
    }
    if (request->command == WIRE_COMMAND_INSPECT_BLOCKS) {
        reply->answer = WIRE_ANSWER_INSPECT_BLOCKS;
        reply->inspect_blocks =
            (struct wire_inspect_blocks_reply){.total = NUM_ENTRIES, .count = count, .blocks = blocks};
    }
    if (request->command == WIRE_COMMAND_INSPECT_SESSIONS) {
        reply->answer = WIRE_ANSWER_INSPECT_SESSIONS;
        reply->inspect_sessions = (struct wire_inspect_sessions_reply){.total = NUM_ENTRIES + 9, // nine left meanwhile
                                                                       .count = count,
                                                                       .sessions = sessions,
                                                                       .names = {names, count},
                                                                       .tenants = {names, count}};
    }
    return FAKE_ANSWER;
}

static enum fake_action other_payload(struct fake_daemon *daemon, const struct wire_request *request,
                                      struct wire_reply *reply)
{
    (void)daemon;
    if (request->command == WIRE_COMMAND_PING)
        reply->ping.payload++;
    return FAKE_ANSWER;
}

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

// ---- the suite ----

struct entry {
    const TTest *test;
    int count; // of a loop test; 0 = once
};

static void add(Suite *suite, const char *name, const struct entry *entries)
{
    TCase *group = tcase_create(name);
    tcase_add_checked_fixture(group, make_folder, remove_folder);
    for (; entries->test; entries++)
        tcase_add_loop_test(group, entries->test, 0, entries->count ? entries->count : 1);
    suite_add_tcase(suite, group);
}

int main(void)
{
    Suite *suite = suite_create("client_fake");
    add(suite, "opening",
        (const struct entry[]){
            {nobody_listening_is_told_at_once, 0},
            {a_file_at_the_path_is_no_daemon_and_stays, 0},
            {a_daemon_that_never_greets_runs_into_the_timeout, 0},
            {a_timeout_that_is_none_is_refused, 0},
            {a_greeting_that_is_wrong_is_refused_with_its_values, NUM_HELLO_CASES},
            {the_steps_of_a_handshake_share_one_timeout, 0},
            {a_message_too_small_for_any_block_takes_none, 0},
            {too_few_descriptors_are_no_memory_and_the_limit_is_named, 0},
            {a_session_tells_what_the_handshake_said, 0},
            {a_socket_from_the_environment_is_found, 0},
            {NULL, 0},
        });
    add(suite, "tensors",
        (const struct entry[]){
            {tensors_lie_in_the_arena_and_end, 0},
            {a_shape_that_no_tensor_has_is_refused, NUM_SHAPE_CASES},
            {NULL, 0},
        });
    add(suite, "answers",
        (const struct entry[]){
            {more_or_fewer_blocks_than_fit_are_not_written, 0},
            {an_answer_that_comes_twice_is_taken_once, 0},
            {NULL, 0},
        });
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
            {nothing_of_an_old_session_reaches_the_next_daemon, 0},
            {after_a_reconnect_old_handles_are_of_another_epoch, 0},
            {a_tensor_from_before_a_reconnect_frees_and_reads_nothing, 0},
            {a_tensor_made_by_hand_is_not_ended_by_the_library, 0},
            {two_daemons_serve_one_process, 0},
            {NULL, 0},
        });
    add(suite, "fork",
        (const struct entry[]){
            {a_forked_child_gets_an_error_and_its_parent_goes_on, 0},
            {NULL, 0},
        });
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
    add(suite, "threads",
        (const struct entry[]){
            {threads_share_a_session, 0},
            {a_reconnect_under_load_ends_or_serves_every_call, 0},
            {NULL, 0},
        });
    add(suite, "monitor",
        (const struct entry[]){
            {a_ping_that_comes_back_as_another_fills_nothing, 0},
            {a_list_longer_than_a_page_comes_whole, 0},
            {NULL, 0},
        });
    return check_main(suite);
}
