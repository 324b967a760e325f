// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_daemon_log.c - a real aule-daemon whose standard error nobody reads, or that has none, and
// clients that cause many lines.

#include "base/clock.h"
#include "rigs/check_main.h"
#include "rigs/daemon_step.h"
#include "rigs/daemon_suite.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static void start_with_output(int fd)
{
    ck_assert(daemon_init(&daemon_));
    daemon_.output_fd = fd;
    ck_assert(daemon_start(&daemon_, NULL));
}

// Each causes a line of level debug.
static void cause_refusals(struct raw_client *raw, int count)
{
    for (int i = 0; i < count; i++)
        raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_CACHE_CLOSE},
                   STATUS_NOT_FOUND);
}

static void read_until_told(int fd)
{
    static char text[1 << 21];
    for (size_t size = 0; !strstr(text, " lines dropped: standard error was not read in time");) {
        ck_assert_uint_lt(size, sizeof text - 4096);
        const ssize_t more = read(fd, text + size, 4095);
        ck_assert_int_gt(more, 0);
        size += (size_t)more;
        text[size] = 0;
    }
}

START_TEST(a_log_that_nobody_reads_stops_no_client_and_not_the_end)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    start_with_output(ends[1]);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    for (int i = 0; i < 100 && raw_metric(raw, "aule_log_dropped_lines_total") == 0; i++)
        cause_refusals(raw, 1000);
    ck_assert_int_gt(raw_metric(raw, "aule_log_dropped_lines_total"), 0);
    read_until_told(ends[0]);
    cause_refusals(raw, 2000); // the pipe is full again
    raw_close(raw);
    daemon_.validated = false; // its last line has no reader
    ck_assert_int_eq(daemon_stop(&daemon_), 0);
    close(ends[0]);
    close(ends[1]);
}
END_TEST

static void expect_null(int number)
{
    char path[64], target[64] = "";
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)daemon_.pid, number);
    ck_assert_int_gt(readlink(path, target, sizeof target - 1), 0);
    ck_assert_str_eq(target, "/dev/null");
}

START_TEST(closed_standard_descriptors_become_none_of_the_daemons_own)
{
    start_with_output(-1);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    for (int number = 0; number <= 2; number++)
        expect_null(number);
    ck_assert_int_gt(raw_metric(raw, "aule_log_dropped_lines_total"), 0);
    raw_close(raw);
    daemon_.validated = false; // it has no log
    ck_assert_int_eq(daemon_stop(&daemon_), 0);
}
END_TEST

static int count_lines(const char *words)
{
    char *log = daemon_log_text(&daemon_);
    int count = 0;
    for (const char *at = log; (at = strstr(at, words)); at++)
        count++;
    free(log);
    return count;
}

START_TEST(a_client_that_comes_and_goes_fills_no_log)
{
    enum { SESSIONS = 400, BURST = 64 };
    const int64_t from_ns = clock_now_ns();
    start((const char *const[]){"--log-level", "info", NULL});
    for (int i = 0; i < SESSIONS; i++)
        raw_close(raw_session(daemon_.socket, ARENA));
    stop_clean();
    const int seconds = (int)((clock_now_ns() - from_ns) / NS_PER_S);
    ck_assert_int_ge(count_lines(": opened, "), BURST);
    ck_assert_int_le(count_lines(": opened, "), BURST + seconds + 2);
    ck_assert_int_ge(count_lines(" such lines; the others were left out)"), 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("daemon log");
    suite_add(suite, "log",
              (const TTest *const[]){a_log_that_nobody_reads_stops_no_client_and_not_the_end,
                                     closed_standard_descriptors_become_none_of_the_daemons_own,
                                     a_client_that_comes_and_goes_fills_no_log, NULL},
              1);
    return check_main(suite);
}
