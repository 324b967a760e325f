// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// daemon_suite.c - see daemon_suite.h.

#include "daemon_suite.h"

#include "check_main.h"

#include <dirent.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

struct daemon daemon_;

const char *const *memory_path(int index)
{
    static const char *const staging[] = {DAEMON_STAGED, NULL};
    return index ? staging : NULL;
}

void start(const char *const *options)
{
    ck_assert(daemon_launch(&daemon_, options));
}

void stop_clean(void)
{
    int code = daemon_stop(&daemon_);
    if (code != 0) {
        char *text = daemon_log_text(&daemon_);
        fprintf(stderr, "%s", text ? text : ""); // too long for check's own message
        ck_abort_msg("the daemon ended with %d; its log stands above", code);
    }
    ck_assert_int_eq(access(daemon_.socket, F_OK), -1);
    ck_assert_int_eq(daemon_count_segments(&daemon_), 0);
}

void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
}

int count_fds(pid_t pid)
{
    char path[64];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *entries = opendir(path);
    ck_assert_ptr_nonnull(entries);
    while (readdir(entries))
        count++;
    closedir(entries);
    return count;
}

static void finish(void)
{
    daemon_finish(&daemon_);
}

void suite_add(Suite *suite, const char *name, const TTest *const *tests, int loops)
{
    TCase *tcase = tcase_create(name);
    for (; *tests; tests++)
        check_loop(tcase, *tests, loops);
    tcase_add_checked_fixture(tcase, NULL, finish);
    suite_add_tcase(suite, tcase);
}
