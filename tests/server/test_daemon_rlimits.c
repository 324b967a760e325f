// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_daemon_rlimits.c - a real aule-daemon whose process has small resource limits: it says which
// one is in the way, and goes on.

#include "base/clock.h"
#include "base/exit_code.h"
#include "rigs/check_main.h"
#include "rigs/daemon_step.h"
#include "rigs/daemon_suite.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static bool start_limited(int resource, unsigned long limit, const char *const *options)
{
    ck_assert(daemon_init(&daemon_));
    daemon_.has_limit = true;
    daemon_.resource = resource;
    daemon_.limit = limit;
    return daemon_start(&daemon_, options);
}

static void expect_refused(int status, const char *sentence)
{
    ck_assert_int_eq(daemon_.exit_code, status);
    ck_assert_msg(daemon_log_contains(&daemon_, sentence), "%s", sentence);
}

START_TEST(a_segment_beyond_rlimit_fsize_is_refused_and_the_daemon_goes_on)
{
    struct wire_reply reply;
    ck_assert(start_limited(RLIMIT_FSIZE, 2 << 20, NULL));
    struct raw_client *raw = raw_open(daemon_.socket);
    raw_hello(raw, 4 << 20, &reply);
    ck_assert_int_eq(reply.status, STATUS_NO_MEMORY);
    ck_assert_msg(strstr(reply.message, "RLIMIT_FSIZE of the daemon is 2097152"), "%s",
                  reply.message);
    raw_attach(raw, ARENA);
    do_step(raw, open_cache(raw, "small"), 1);
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(few_descriptors_lower_the_limits_and_the_log_says_so)
{
    enum { MOST = 300 };
    struct raw_client *raws[MOST];
    int status = STATUS_OK, count = 0;
    ck_assert(start_limited(RLIMIT_NOFILE, MOST, NULL));
    ck_assert(daemon_log_contains(&daemon_, "RLIMIT_NOFILE allows 300 descriptors"));
    while (status == STATUS_OK && count < MOST) {
        struct wire_reply reply;
        raws[count] = raw_open(daemon_.socket);
        raw_hello(raws[count++], ARENA, &reply); // its segment keeps its descriptor
        status = reply.status;
    }
    ck_assert_int_eq(status, STATUS_LIMIT);
    ck_assert_int_gt(count, 5);
    ck_assert_int_ge(raw_metric(raws[0], "aule_sessions"), count - 1);
    while (count > 0)
        raw_close(raws[--count]);
    stop_clean();
}
END_TEST

START_TEST(too_few_descriptors_are_refused_at_the_start)
{
    ck_assert(!start_limited(RLIMIT_NOFILE, 100, NULL));
    expect_refused(EXIT_CODE_FAILED, "RLIMIT_NOFILE allows 100 descriptors");
}
END_TEST

#ifndef __SANITIZE_ADDRESS__
START_TEST(too_little_address_space_is_refused_at_the_start)
{
    ck_assert(!start_limited(RLIMIT_AS, 1000ul << 20, NULL));
    expect_refused(EXIT_CODE_FAILED, "RLIMIT_AS allows 1000 MiB of memory");
}
END_TEST

START_TEST(an_arena_beyond_rlimit_as_is_refused_and_the_daemon_goes_on)
{
    struct wire_reply reply;
    ck_assert(start_limited(RLIMIT_AS, 3000ul << 20, NULL));
    ck_assert(daemon_log_contains(&daemon_, "RLIMIT_AS allows 3000 MiB of memory"));
    struct raw_client *raw = raw_open(daemon_.socket);
    raw_hello(raw, 1ul << 31, &reply);
    ck_assert_int_eq(reply.status, STATUS_LIMIT); // --max-arena
    raw_close(raw);
    ck_assert_int_eq(daemon_stop(&daemon_), 0);
    ck_assert(daemon_start(&daemon_, (const char *const[]){"--max-arena", "8G", NULL}));
    raw = raw_open(daemon_.socket);
    raw_hello(raw, 1ul << 31, &reply);
    ck_assert_int_eq(reply.status, STATUS_NO_MEMORY);
    ck_assert_msg(strstr(reply.message, "RLIMIT_AS"), "%s", reply.message);
    raw_attach(raw, ARENA);
    do_step(raw, open_cache(raw, "small"), 1);
    raw_close(raw);
    stop_clean();
}
END_TEST
#endif

START_TEST(the_soft_limit_of_processor_time_drains_the_daemon)
{
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    kill(daemon_.pid, SIGXCPU); // as the kernel does, each second
    kill(daemon_.pid, SIGXCPU);
    ck_assert(daemon_wait(&daemon_, DEADLINE_S));
    ck_assert_int_eq(daemon_.exit_code, 0);
    ck_assert(daemon_log_contains(&daemon_, "SIGXCPU (RLIMIT_CPU): stopping"));
    raw_close(raw);
}
END_TEST

// The lowest number that no descriptor of the daemon has.
static rlim_t first_free(void)
{
    char path[64];
    for (rlim_t number = 0;; number++) {
        snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)daemon_.pid, (int)number);
        if (faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) != 0)
            return number;
    }
}

// Returns the limit.
static rlim_t leave_no_descriptor(void)
{
    const rlim_t most = first_free();
    const struct rlimit none = {most, most};
    ck_assert_int_eq(prlimit(daemon_.pid, RLIMIT_NOFILE, &none, NULL), 0);
    return most;
}

// The daemon takes its spare descriptor back, though nothing else happens.
static void await_spare(rlim_t most)
{
    enum { MOST_S = DEADLINE_S / 2 }; // before other deadlines of the test wake the daemon
    const int64_t end_ns = clock_now_ns() + MOST_S * NS_PER_S;
    while (first_free() < most) {
        ck_assert_msg(clock_now_ns() < end_ns, "no spare descriptor after %d s", MOST_S);
        usleep(1000);
    }
}

START_TEST(without_descriptors_a_connection_is_told_why)
{
    static const char sentence[] = "no descriptor for another connection (RLIMIT_NOFILE";
    char path[128];
    uint8_t bytes[512];
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    const rlim_t most = leave_no_descriptor();
    int fd = bare_connect(daemon_.socket, false);
    ck_assert_int_ge(recv(fd, bytes, sizeof bytes, 0), 0); // told, then closed
    close(fd);
    ck_assert(daemon_log_contains(&daemon_, sentence));
    do_step(raw, open_cache(raw, "goes on"), 1);
    await_spare(most);
    snprintf(path, sizeof path, "%s.export", daemon_.socket);
    if (access(path, F_OK) == 0) {
        fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        strcpy(address.sun_path, path);
        ck_assert_int_eq(connect(fd, (const struct sockaddr *)&address, sizeof address), 0);
        struct wire_export_answer answer;
        ck_assert_int_eq(recv(fd, &answer, sizeof answer, 0), sizeof answer);
        ck_assert_int_eq(answer.status, STATUS_LIMIT);
        ck_assert_ptr_nonnull(strstr(answer.message, sentence));
        close(fd);
    }
    raw_close(raw);
    stop_clean();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("daemon resource limits");
    suite_add(
        suite, "limits",
        (const TTest *const[]){a_segment_beyond_rlimit_fsize_is_refused_and_the_daemon_goes_on,
                               few_descriptors_lower_the_limits_and_the_log_says_so,
                               too_few_descriptors_are_refused_at_the_start,
#ifndef __SANITIZE_ADDRESS__
                               too_little_address_space_is_refused_at_the_start,
                               an_arena_beyond_rlimit_as_is_refused_and_the_daemon_goes_on,
#endif
                               the_soft_limit_of_processor_time_drains_the_daemon,
                               without_descriptors_a_connection_is_told_why, NULL},
        1);
    return check_main(suite);
}
