// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_daemon_ends.c - a real aule-daemon when something ends: the daemon with work in flight,
// clients that are killed, stopped or inactive, and hundreds of sessions that must leave nothing
// behind.

#include "base/clock.h"
#include "rigs/check_main.h"
#include "rigs/daemon_step.h"
#include "rigs/daemon_suite.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// ---- the end with work in flight ----

// A session with runs in flight that waits for the last of them.
struct drainer {
    struct raw_client *raw;
    struct raw_pending wait;
};

static void await_ticket(struct raw_client *raw, uint64_t ticket)
{
    const struct wire_request wait = {.command = WIRE_COMMAND_WAIT, .wait = {ticket, -1}};
    struct wire_reply reply;
    raw_call(raw, &wait, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "Wait: %s", reply.message);
}

// Many long rows, so that the work still runs when the signal comes. The first run is waited for,
// because it compiles its shader, which may take longer than the drain timeout on a busy machine.
static uint64_t submit_long_runs(struct raw_client *raw, uint64_t cache, int count)
{
    enum { BLOCKS = 256, TOKENS = BLOCKS * BLOCK };
    static int32_t blocks[BLOCKS], cu_seqlens_q[2] = {0, TOKENS}, seq_lens_kv[1] = {TOKENS};
    struct wire_reply reply;
    uint64_t ticket = 0;
    lease(raw, cache, BLOCKS, blocks);
    store(raw, cache, blocks, BLOCKS);
    const struct wire_request create = {.command = WIRE_COMMAND_BATCH_CREATE,
                                        .batch_create = {.cache = cache,
                                                         .num_seqs = 1,
                                                         .max_blocks = BLOCKS,
                                                         .cu_seqlens_q = {cu_seqlens_q, 2},
                                                         .seq_lens_kv = {seq_lens_kv, 1},
                                                         .block_table = {blocks, BLOCKS}}};
    raw_call(raw, &create, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "BatchCreate: %s", reply.message);
    struct wire_request run = run_request(reply.batch_create.batch, 0);
    run.run.entry.q.offset = 0;
    run.run.entry.out.offset = (uint64_t)TOKENS * ROW;
    for (int i = 0; i <= count; i++) {
        raw_call(raw, &run, &reply);
        ck_assert_msg(reply.status == STATUS_OK, "Run: %s", reply.message);
        ticket = reply.run.ticket;
        if (i == 0)
            await_ticket(raw, ticket);
    }
    return ticket;
}

// The daemon handles the messages of a connection in order. When the second is answered, the wait
// is parked.
static void begin_long_runs(struct drainer *drainer, int count)
{
    drainer->raw = raw_session(daemon_.socket, 1 << 20);
    const uint64_t ticket = submit_long_runs(drainer->raw, open_cache(drainer->raw, "long"), count);
    raw_begin(drainer->raw,
              &(struct wire_request){.command = WIRE_COMMAND_WAIT, .wait = {ticket, -1}},
              &drainer->wait);
    raw_inspect(drainer->raw);
}

START_TEST(a_stop_with_runs_in_flight_finishes_them_and_exits_0)
{
    start((const char *const[]){"--drain-timeout", "100000", _i ? DAEMON_STAGED : NULL, NULL});
    struct drainer drainer;
    struct wire_reply reply;
    begin_long_runs(&drainer, 16);
    ck_assert_int_eq(kill(daemon_.pid, SIGTERM), 0);
    raw_end(&drainer.wait, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "%s: %s", status_name(reply.status), reply.message);
    ck_assert_int_eq(reply.wait.run_status, STATUS_OK);
    stop_clean();
    raw_close(drainer.raw);
}
END_TEST

START_TEST(a_drain_deadline_ends_what_does_not_finish)
{
    start((const char *const[]){"--drain-timeout", "0", NULL});
    struct drainer drainer;
    struct wire_reply reply;
    begin_long_runs(&drainer, 64);
    stop_clean();
    raw_end(&drainer.wait, &reply);
    ck_assert(reply.status == STATUS_STOPPING ||
              reply.status == STATUS_OK); // a fast device may have finished
    raw_close(drainer.raw);
}
END_TEST

// ---- sessions that die ----

// A child process. This process must not use nng before. The child sends a byte on the pipe when it
// is ready.
static pid_t spawn(void (*body)(int ready_fd), int *ready_fd)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        close(ends[0]);
        body(ends[1]);
        _exit(0);
    }
    close(ends[1]);
    *ready_fd = ends[0];
    return pid;
}

static void wait_child_ready(int ready_fd)
{
    char byte;
    ck_assert_int_eq(read(ready_fd, &byte, 1), 1);
}

static void hold_blocks_and_work(int ready_fd)
{
    struct raw_client *raw = raw_session(daemon_.socket, 1 << 20);
    uint64_t cache = open_cache(raw, "dying");
    int32_t blocks[5];
    lease(raw, cache, 5, blocks);
    submit_long_runs(raw, cache, 8);
    if (write(ready_fd, "r", 1) != 1)
        _exit(1);
    pause();
}

static void wait_for_empty_pool(struct raw_client *raw)
{
    struct daemon_state state = raw_inspect(raw);
    for (int i = 0; i < DEADLINE_S * 100 &&
                    (state.num_sessions || state.leased_blocks || state.quarantined_blocks);
         i++) {
        nap();
        state = raw_inspect(raw);
    }
    ck_assert_uint_eq(state.num_sessions, 0);
    ck_assert_uint_eq(state.leased_blocks, 0);
    ck_assert_uint_eq(state.held_blocks, 0);
    ck_assert_uint_eq(state.quarantined_blocks, 0);
}

START_TEST(a_killed_client_gives_its_blocks_back)
{
    int ready_fd;
    start(memory_path(_i));
    pid_t child = spawn(hold_blocks_and_work, &ready_fd);
    wait_child_ready(ready_fd);
    struct raw_client *raw = raw_open(daemon_.socket);
    ck_assert_uint_ge(raw_inspect(raw).leased_blocks, 5);
    ck_assert_uint_eq(raw_inspect(raw).num_sessions, 1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    wait_for_empty_pool(raw);
    ck_assert_uint_eq(raw_inspect(raw).session_deaths, 1);
    raw_close(raw);
    stop_clean();
}
END_TEST

// Its grandchild keeps a copy of the connection open and reports its own pid.
static void hold_blocks_and_fork(int ready_fd)
{
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    int32_t blocks[5];
    lease(raw, open_cache(raw, "dying"), 5, blocks);
    pid_t grandchild = fork();
    if (grandchild == 0) {
        for (;;)
            pause();
    }
    if (write(ready_fd, &grandchild, sizeof grandchild) != sizeof grandchild)
        _exit(1);
    pause();
}

START_TEST(a_killed_client_whose_child_keeps_the_connection_gives_its_blocks_back)
{
    int ready_fd;
    pid_t grandchild;
    start(NULL);
    pid_t child = spawn(hold_blocks_and_fork, &ready_fd);
    ck_assert_int_eq(read(ready_fd, &grandchild, sizeof grandchild), sizeof grandchild);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    struct raw_client *raw = raw_open(daemon_.socket);
    wait_for_empty_pool(raw);
    ck_assert_int_eq(kill(grandchild, 0), 0);
    ck_assert(daemon_log_contains(&daemon_, "its process is gone"));
    kill(grandchild, SIGKILL);
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(a_stopped_client_holds_up_nobody)
{
    int ready_fd;
    start(memory_path(_i));
    pid_t child = spawn(hold_blocks_and_work, &ready_fd);
    wait_child_ready(ready_fd);
    kill(child, SIGSTOP);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "dying");
    for (int i = 1; i <= 10; i++)
        do_step(raw, cache, (float)i);
    ck_assert_uint_eq(raw_inspect(raw).num_sessions, 2);
    raw_close(raw);
    stop_clean();
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}
END_TEST

static void greet_only(struct raw_client *raw)
{
    struct wire_reply reply;
    raw_hello(raw, ARENA, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "Hello: %s", reply.message);
}

START_TEST(a_session_is_served_nothing_before_it_is_mapped)
{
    start((const char *const[]){"--idle-timeout", "2147483647", NULL}); // the maximum
    struct raw_client *raw = raw_open(daemon_.socket);
    greet_only(raw);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_CACHE_STATE}, STATUS_INVALID);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_MAPPED}, STATUS_OK);
    open_cache(raw, "mapped");
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(a_session_that_is_not_mapped_in_time_ends_and_its_client_is_told_why)
{
    struct wire_reply reply;
    start((const char *const[]){"--idle-timeout", "2", NULL});
    struct raw_client *raw = raw_open(daemon_.socket);
    const int64_t from_ns = clock_now_ns();
    greet_only(raw);
    wait_for_empty_pool(raw);
    ck_assert_int_ge(clock_now_ns() - from_ns, 2 * NS_PER_S);
    ck_assert_int_eq(daemon_count_segments(&daemon_), 0);
    raw_call(raw, &(struct wire_request){.command = WIRE_COMMAND_MAPPED}, &reply);
    ck_assert_int_eq(reply.status, STATUS_NO_SESSION);
    ck_assert_ptr_nonnull(strstr(reply.message, "was not mapped within 2 s (--idle-timeout)"));
    ck_assert(daemon_log_contains(&daemon_, "did not map the segment within 2 s (--idle-timeout)"));
    greet_only(raw); // the connection may start again
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(hundreds_of_sessions_leave_descriptors_and_segments_flat)
{
    start(memory_path(_i));
    struct raw_client *watcher = raw_open(daemon_.socket);
    raw_close(raw_session(daemon_.socket, ARENA));
    wait_for_empty_pool(watcher);
    int before = count_fds(daemon_.pid);
    for (int i = 0; i < 300; i++) {
        struct raw_client *raw = raw_session(daemon_.socket, ARENA);
        if (i % 2)
            raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_CLOSE_SESSION},
                       STATUS_OK);
        raw_close(raw);
    }
    wait_for_empty_pool(watcher);
    int after = count_fds(daemon_.pid);
    for (int i = 0; i < DEADLINE_S * 100 && after > before; i++, after = count_fds(daemon_.pid))
        nap();
    ck_assert_int_le(after, before);
    ck_assert_int_eq(daemon_count_segments(&daemon_), 0);
    raw_close(watcher);
    stop_clean();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("daemon ends");
    suite_add(suite, "both memory paths",
              (const TTest *const[]){
                  a_stop_with_runs_in_flight_finishes_them_and_exits_0,
                  a_killed_client_gives_its_blocks_back, a_stopped_client_holds_up_nobody,
                  hundreds_of_sessions_leave_descriptors_and_segments_flat, NULL},
              2);
    suite_add(suite, "ends",
              (const TTest *const[]){
                  a_drain_deadline_ends_what_does_not_finish,
                  a_session_is_served_nothing_before_it_is_mapped,
                  a_session_that_is_not_mapped_in_time_ends_and_its_client_is_told_why,
                  a_killed_client_whose_child_keeps_the_connection_gives_its_blocks_back, NULL},
              1);
    return check_main(suite);
}
