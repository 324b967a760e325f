// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_users.c - what the library says and does when a real daemon refuses or closes its
// connection: another user's, one too many, an idle monitor's. It never says that the daemon is
// gone, because the daemon lives.

#include "aule/aule.h"
#include "rigs/check_main.h"
#include "rigs/daemon_harness.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STRANGER = 64010, MANY = 40, WAIT_MS = 60000 };

static struct daemon daemon_;

static void end_daemon(void)
{
    ck_assert_int_eq(daemon_end(&daemon_), 0);
}

static bool says(const char *words)
{
    return strstr(aule_error(), words) != NULL;
}

static enum aule_status open_session(struct aule_session **session)
{
    const struct aule_session_params params = {
        .socket = daemon_.socket, .arena_size = 65536, .timeout_ms = WAIT_MS};
    return aule_session_open(&params, session);
}

// ---- another user ----

// 0: each of many monitors, which stay open, and each session is told why it is refused.
static int ask_as_stranger(void)
{
    struct aule_monitor *monitors[MANY];
    struct aule_session *session;
    struct aule_ping_info info;
    for (int i = 0; i < MANY; i++) {
        if (aule_monitor_open(daemon_.socket, WAIT_MS, &monitors[i]) != AULE_OK)
            return 1;
        if (aule_monitor_ping(monitors[i], &info) != AULE_DENIED || !says("has uid 64010"))
            return 2;
        if (open_session(&session) != AULE_DENIED || !says("has uid 64010"))
            return 3;
    }
    for (int i = 0; i < MANY; i++)
        aule_monitor_close(monitors[i]);
    return 0;
}

START_TEST(a_user_whom_the_daemon_does_not_serve_reads_so_however_many_there_are)
{
    int status;
    ck_assert(daemon_launch(&daemon_, (const char *const[]){"--tenant", "team=uid:64002",
                                                            "--max-connections", "8", NULL}));
    ck_assert_int_eq(chmod(daemon_.folder, 0755), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0)
        _exit(setgid(STRANGER) || setuid(STRANGER) ? 99 : ask_as_stranger());
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
}
END_TEST

// ---- one too many ----

START_TEST(sessions_too_many_read_the_option_and_monitors_have_places_of_their_own)
{
    struct aule_session *session, *others[MANY];
    struct aule_monitor *monitor;
    struct aule_ping_info info;
    ck_assert(daemon_launch(&daemon_, (const char *const[]){"--max-connections", "1", NULL}));
    ck_assert_int_eq(open_session(&session), AULE_OK);
    for (int i = 0; i < MANY; i++) {
        ck_assert_int_eq(open_session(&others[i]), AULE_LIMIT);
        ck_assert_msg(says("--max-connections is 1"), "%s", aule_error());
    }
    ck_assert_int_eq(aule_monitor_open(daemon_.socket, WAIT_MS, &monitor), AULE_OK);
    ck_assert_int_eq(aule_monitor_ping(monitor, &info), AULE_OK);
    ck_assert_int_eq(aule_monitor_close_session(monitor, 1), AULE_OK);
    aule_monitor_close(monitor);
    aule_session_close(session);
}
END_TEST

// ---- control places ----

START_TEST(monitors_that_take_all_control_places_lock_out_no_other_monitor_and_no_order)
{
    struct aule_monitor *monitors[MANY];
    struct aule_ping_info info;
    struct aule_device_state state;
    enum aule_log_level before;
    ck_assert(daemon_launch(&daemon_, NULL));
    for (int i = 0; i < MANY; i++) {
        ck_assert_int_eq(aule_monitor_open(daemon_.socket, WAIT_MS, &monitors[i]), AULE_OK);
        ck_assert_msg(aule_monitor_ping(monitors[i], &info) == AULE_OK, "%s", aule_error());
    }
    // Those that have asked nothing for the longest time gave way, and connect anew.
    for (int i = 0; i < MANY; i++) {
        ck_assert_msg(aule_monitor_log_level(monitors[i], AULE_LOG_INFO, &before) == AULE_OK, "%s",
                      aule_error());
        ck_assert_int_eq(aule_monitor_device(monitors[i], &state), AULE_OK);
    }
    for (int i = 0; i < MANY; i++)
        aule_monitor_close(monitors[i]);
}
END_TEST

// ---- idle monitors ----

START_TEST(a_monitor_that_the_daemon_closed_as_idle_asks_on_as_if_nothing_were)
{
    struct aule_monitor *monitor;
    struct aule_ping_info info;
    enum aule_log_level before;
    ck_assert(daemon_launch(
        &daemon_, (const char *const[]){"--idle-timeout", "1", "--log-level", "debug", NULL}));
    ck_assert_int_eq(aule_monitor_open(daemon_.socket, WAIT_MS, &monitor), AULE_OK);
    ck_assert_int_eq(aule_monitor_ping(monitor, &info), AULE_OK);
    for (int i = 0; i < 6000 && !daemon_log_contains(&daemon_, ": gone"); i++)
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    ck_assert(daemon_log_contains(&daemon_, ": gone"));
    ck_assert_int_eq(aule_monitor_log_level(monitor, AULE_LOG_INFO, &before), AULE_OK);
    ck_assert_int_eq(before, AULE_LOG_DEBUG);
    ck_assert_int_eq(aule_monitor_ping(monitor, &info), AULE_OK);
    aule_monitor_close(monitor);
}
END_TEST

static void *ping(void *monitor)
{
    struct aule_ping_info info;
    static enum aule_status status;
    status = aule_monitor_ping(monitor, &info);
    return &status;
}

START_TEST(closing_a_monitor_does_not_wait_for_a_call_that_connects_anew)
{
    struct aule_monitor *monitor;
    struct aule_ping_info info;
    pthread_t thread;
    void *result;
    time_t start;
    ck_assert(daemon_launch(
        &daemon_, (const char *const[]){"--idle-timeout", "1", "--log-level", "debug", NULL}));
    ck_assert_int_eq(aule_monitor_open(daemon_.socket, WAIT_MS, &monitor), AULE_OK);
    ck_assert_int_eq(aule_monitor_ping(monitor, &info), AULE_OK);
    for (int i = 0; i < 6000 && !daemon_log_contains(&daemon_, ": gone"); i++)
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    ck_assert_int_eq(kill(daemon_.pid, SIGSTOP), 0); // it greets nobody
    ck_assert_int_eq(pthread_create(&thread, NULL, ping, monitor), 0);
    nanosleep(&(struct timespec){.tv_nsec = 200 * 1000 * 1000}, NULL);
    time(&start);
    aule_monitor_close(monitor);
    const double seconds = difftime(time(NULL), start);
    ck_assert_int_eq(kill(daemon_.pid, SIGCONT), 0);
    ck_assert_int_eq(pthread_join(thread, &result), 0);
    ck_assert_int_eq(*(enum aule_status *)result, AULE_INVALID);
    ck_assert_double_lt(seconds, WAIT_MS / 2000.0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client, users");
    check_case(suite, "places", NULL, end_daemon,
               (const TTest *const[]){
                   sessions_too_many_read_the_option_and_monitors_have_places_of_their_own,
                   monitors_that_take_all_control_places_lock_out_no_other_monitor_and_no_order,
                   a_monitor_that_the_daemon_closed_as_idle_asks_on_as_if_nothing_were,
                   closing_a_monitor_does_not_wait_for_a_call_that_connects_anew, NULL},
               1);
    if (geteuid() == 0)
        check_case(suite, "another user", NULL, end_daemon,
                   (const TTest *const[]){
                       a_user_whom_the_daemon_does_not_serve_reads_so_however_many_there_are, NULL},
                   1);
    else
        fprintf(stderr, "not root: no other user can be impersonated\n");
    return check_main(suite);
}
