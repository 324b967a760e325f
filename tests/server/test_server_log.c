// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_server_log.c - the log's limit for each kind of line, without a clock, and its thread with a
// reader that stops. The log is one for the process, so each test of it runs in its own process.

#include "base/clock.h"
#include "rigs/check_main.h"
#include "server/log.h"
#include "server/log_limit.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- the limit ----

static struct log_limit limit;

// How many of `count` lines may be written at `now_ns`; *told is what their last one stands for.
static int write_some(const char *format, int count, int64_t now_ns, uint64_t *told)
{
    int written = 0;
    for (int i = 0; i < count; i++) {
        uint64_t left_out;
        char text[32];
        snprintf(text, sizeof text, "line %d", i);
        if (!log_limit_allows(&limit, LOG_LEVEL_INFO, format, text, now_ns, &left_out))
            continue;
        *told = left_out;
        written++;
    }
    return written;
}

START_TEST(a_kind_of_line_has_64_at_once_and_then_one_a_second)
{
    uint64_t told = 0;
    int64_t now_ns = 1000 * NS_PER_S;
    ck_assert_int_eq(write_some("a", 1000, now_ns, &told), LOG_BURST);
    ck_assert_uint_eq(told, 0);
    ck_assert_int_eq(write_some("a", 1000, now_ns + NS_PER_S / 2, &told), 0);
    ck_assert_int_eq(write_some("a", 1000, now_ns + NS_PER_S, &told), 1);
    ck_assert_uint_eq(told, 1000 - LOG_BURST + 1000);
    ck_assert_int_eq(write_some("a", 1000, now_ns + 1000 * NS_PER_S, &told), LOG_BURST);
}
END_TEST

START_TEST(one_kind_takes_nothing_from_another)
{
    uint64_t told = 0;
    write_some("a", 1000, NS_PER_S, &told);
    ck_assert_int_eq(write_some("b", 1, NS_PER_S, &told), 1);
    ck_assert_uint_eq(told, 0);
}
END_TEST

START_TEST(more_kinds_than_the_table_has_share_one_limit)
{
    static const char formats[2 * LOG_KINDS];
    uint64_t told = 0;
    int written = 0;
    for (int i = 0; i < 2 * LOG_KINDS; i++)
        written += write_some(&formats[i], 1, NS_PER_S, &told);
    ck_assert_int_eq(written, LOG_KINDS + LOG_BURST);
}
END_TEST

START_TEST(the_last_line_that_was_left_out_is_kept_with_its_number)
{
    uint64_t left_out, told;
    write_some("a", LOG_BURST + 10, NS_PER_S, &told);
    ck_assert_ptr_null(log_limit_next(&limit, false, NS_PER_S, &left_out));
    const struct log_kind *kind = log_limit_next(&limit, false, 2 * NS_PER_S, &left_out);
    ck_assert_ptr_nonnull(kind);
    ck_assert_uint_eq(left_out, 10);
    ck_assert_str_eq(kind->last, "line 73");
    ck_assert_ptr_null(log_limit_next(&limit, true, 2 * NS_PER_S, &left_out));
}
END_TEST

// ---- the thread ----

static int ends[2]; // of the pipe that is standard error

static void become_a_pipe(void)
{
    ck_assert_int_eq(pipe(ends), 0);
    ck_assert_int_eq(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    log_set_level(LOG_LEVEL_DEBUG);
    ck_assert(log_start());
}

// All that comes until the pipe has `words`.
static char *read_until(const char *words)
{
    enum { ROOM = 4 << 20 };
    char *text = calloc(1, ROOM);
    for (size_t size = 0; !strstr(text, words);) {
        ck_assert_uint_lt(size, ROOM - 65536);
        const ssize_t more = read(ends[0], text + size, 65536);
        ck_assert_int_gt(more, 0);
        size += (size_t)more;
    }
    return text;
}

// Of level debug, so that no limit but the queue's holds.
static void fill_queue(void)
{
    char filler[1000];
    memset(filler, 'x', sizeof filler);
    for (int i = 0; i < 3000; i++)
        log_debug("%.*s", (int)sizeof filler, filler);
}

// Lines may be dropped at several places.
static uint64_t sum_of_dropped(const char *text)
{
    uint64_t sum = 0;
    for (const char *at = text; (at = strstr(at, "log: ")); at++)
        sum += strtoull(at + strlen("log: "), NULL, 10);
    return sum;
}

START_TEST(a_reader_that_stops_loses_lines_and_is_told_how_many)
{
    become_a_pipe();
    fill_queue();
    const uint64_t dropped = log_dropped();
    ck_assert_uint_gt(dropped, 1000);
    char *text = read_until("lines dropped: standard error was not read in time\n");
    uint64_t told = sum_of_dropped(text);
    free(text);
    log_info("it goes on");
    text = read_until("it goes on\n");
    told += sum_of_dropped(text);
    free(text);
    ck_assert_uint_eq(told, dropped);
    log_stop(60000);
}
END_TEST

START_TEST(the_end_does_not_wait_for_a_reader_that_stopped)
{
    become_a_pipe();
    fill_queue();
    log_stop(100); // returns
    log_info("nobody gets this");
    ck_assert_uint_gt(log_dropped(), 0);
}
END_TEST

START_TEST(the_end_writes_all_lines_and_what_was_left_out)
{
    become_a_pipe();
    for (int i = 0; i < 200; i++)
        log_info("number %d", i);
    log_stop(60000);
    char *text = read_until("number 199 (the last of 136 such lines");
    ck_assert_ptr_nonnull(strstr(text, "number 63\n"));
    ck_assert_ptr_null(strstr(text, "number 64"));
    free(text);
}
END_TEST

START_TEST(a_kind_that_went_quiet_is_counted_while_another_goes_on)
{
    enum { ROOM = 1 << 20 };
    const int64_t end_ns = clock_now_ns() + 60 * NS_PER_S;
    char *text = calloc(1, ROOM);
    size_t size = 0;
    become_a_pipe();
    ck_assert_int_eq(fcntl(ends[0], F_SETFL, O_NONBLOCK), 0);
    for (int i = 0; i < 100; i++)
        log_info("number %d", i);
    while (!strstr(text, "number 99 (the last of 36 such lines") && clock_now_ns() < end_ns) {
        log_debug("another kind");
        usleep(10000);
        const ssize_t more = read(ends[0], text + size, ROOM - 1 - size);
        size += more > 0 ? (size_t)more : 0;
    }
    ck_assert_ptr_nonnull(strstr(text, "number 99 (the last of 36 such lines"));
    free(text);
    log_stop(60000);
}
END_TEST

START_TEST(a_kind_that_went_quiet_is_counted_while_the_log_sleeps)
{
    become_a_pipe();
    for (int i = 0; i < LOG_BURST; i++)
        log_info("number %d", i % LOG_BURST);
    free(read_until("number 63\n"));
    usleep(100000); // so that the thread sleeps, most likely
    log_info("number %d", 64);
    free(read_until("number 64\n"));
    log_stop(60000);
}
END_TEST

START_TEST(a_log_that_cannot_be_written_counts_its_lines)
{
    become_a_pipe();
    const int full = open("/dev/full", O_WRONLY);
    ck_assert_int_eq(dup2(full, STDERR_FILENO), STDERR_FILENO);
    log_info("lost");
    while (log_dropped() == 0)
        usleep(1000);
    ck_assert_int_eq(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
    log_info("there");
    char *text = read_until("there\n");
    ck_assert_ptr_nonnull(strstr(text, "log: 1 lines dropped: standard error could not be written: "
                                       "No space left on device\n"));
    free(text);
    log_stop(60000);
}
END_TEST

static void forget(void)
{
    memset(&limit, 0, sizeof limit);
}

int main(void)
{
    Suite *suite = suite_create("server log");
    check_case(suite, "limit", forget, NULL,
               (const TTest *const[]){a_kind_of_line_has_64_at_once_and_then_one_a_second,
                                      one_kind_takes_nothing_from_another,
                                      more_kinds_than_the_table_has_share_one_limit,
                                      the_last_line_that_was_left_out_is_kept_with_its_number,
                                      NULL},
               1);
    check_case(suite, "thread", NULL, NULL,
               (const TTest *const[]){a_reader_that_stops_loses_lines_and_is_told_how_many,
                                      the_end_does_not_wait_for_a_reader_that_stopped,
                                      the_end_writes_all_lines_and_what_was_left_out,
                                      a_kind_that_went_quiet_is_counted_while_another_goes_on,
                                      a_kind_that_went_quiet_is_counted_while_the_log_sleeps,
                                      a_log_that_cannot_be_written_counts_its_lines, NULL},
               1);
    return check_main(suite);
}
