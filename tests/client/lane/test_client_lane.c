// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_lane.c - libaule-client's ring lane with the real daemon: how the library chooses it,
// threads that share a small ring, the end of the session or the death of either side, and that an
// idle session uses no CPU. The other client suites check what a run computes; they use both lanes.

#include "rigs/client_step.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 6, RUNS = 8 };

static void launch_with_two_entries(void)
{
    setenv("AULE_LANE", "ring", 1);
    launch((const char *const[]){"--ring-entries", "2", NULL});
}

static void launch_with_one_ticket(void)
{
    setenv("AULE_LANE", "ring", 1);
    launch((const char *const[]){"--ring-entries", "2", "--max-tickets", "1", NULL});
}

static void launch_without_rings(void)
{
    launch((const char *const[]){"--ring-entries", "0", NULL});
}

// Writes how many entries the session's ring has to *entries, which may be NULL.
static enum aule_status try_session(int spin_us, uint32_t *entries)
{
    struct aule_session *session = NULL;
    struct aule_session_info info;
    const struct aule_session_params params = {.socket = daemon_.socket, .ring_spin_us = spin_us};
    enum aule_status status = aule_session_open(&params, &session);
    if (status == AULE_OK)
        ok(aule_session_info(session, &info));
    if (entries)
        *entries = info.ring_entries;
    aule_session_close(session);
    return status;
}

static void expect_entries(const char *lane, uint32_t expected)
{
    uint32_t entries;
    setenv("AULE_LANE", lane, 1);
    ok(try_session(0, &entries));
    ck_assert_uint_eq(entries, expected);
}

START_TEST(an_unknown_lane_is_refused_with_its_name)
{
    setenv("AULE_LANE", "highway", 1);
    expect(try_session(0, NULL), AULE_INVALID, "\"highway\"");
    setenv("AULE_LANE", "ring", 1);
    ok(try_session(0, NULL));
}
END_TEST

START_TEST(the_ring_is_taken_where_it_is_offered_and_nobody_says_otherwise)
{
    expect_entries("", 2);
    expect_entries("ring", 2);
    expect_entries("nng", 0);
}
END_TEST

START_TEST(a_ring_that_is_not_offered_is_an_error_only_where_it_is_asked_for)
{
    expect_entries("", 0);
    expect_entries("nng", 0);
    setenv("AULE_LANE", "ring", 1);
    expect(try_session(0, NULL), AULE_UNSUPPORTED, "--ring-entries");
}
END_TEST

START_TEST(the_doorbell_of_another_user_is_not_rung)
{
    char bell[sizeof daemon_.socket + 8];
    snprintf(bell, sizeof bell, "%s.bell", daemon_.socket);
    if (geteuid() != 0) {
        fprintf(stderr, "not tested: only root can give a file away\n");
        return;
    }
    ck_assert_int_eq(chown(bell, 64001, 64001), 0);
    expect_entries("", 0); // messages do as well
    setenv("AULE_LANE", "ring", 1);
    expect(try_session(0, NULL), AULE_DENIED, "user 64001, whom");
}
END_TEST

START_TEST(a_doorbell_that_cannot_be_reached_is_an_error_only_where_the_ring_is_asked_for)
{
    char bell[sizeof daemon_.socket + 8];
    snprintf(bell, sizeof bell, "%s.bell", daemon_.socket);
    ck_assert_int_eq(unlink(bell), 0);
    expect_entries("", 0);
    setenv("AULE_LANE", "ring", 1);
    expect(try_session(0, NULL), AULE_DAEMON_GONE, bell);
}
END_TEST

START_TEST(a_time_to_spin_that_is_none_is_refused_by_its_value)
{
    static const char *const bad[] = {"-1", "x", "5us", "1000001"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        setenv("AULE_RING_SPIN", bad[i], 1);
        expect(try_session(0, NULL), AULE_INVALID, bad[i]);
        ok(try_session(1, NULL)); // the parameter wins
    }
    setenv("AULE_RING_SPIN", "0", 1);
    ok(try_session(0, NULL));
    ok(try_session(-1, NULL));
    expect(try_session(-2, NULL), AULE_INVALID, "-2");
    expect(try_session(1000001, NULL), AULE_INVALID, "1000001");
}
END_TEST

static struct crowd {
    struct step step;
    struct aule_batch *batch;
    pthread_t threads[THREADS];
    int num_threads;
    int num_runs; // of each thread; -1 = until one fails
    enum aule_status last[THREADS];
    atomic_int next, runs;
} crowd;

static void *work(void *context)
{
    int number = atomic_fetch_add(&crowd.next, 1);
    enum aule_status status = AULE_OK;
    (void)context;
    for (int i = 0; status == AULE_OK && i != crowd.num_runs; i++) {
        status = aule_run(crowd.batch, &crowd.step.run, WAIT_MS, NULL);
        atomic_fetch_add(&crowd.runs, 1);
    }
    crowd.last[number] = status;
    return NULL;
}

static void open_crowd(void)
{
    open_step(&crowd.step, NULL);
    crowd.batch = create_batch(&crowd.step);
}

// A run that nobody has waited for yet has the only ticket.
static struct aule_ticket open_crowd_behind_a_run(void)
{
    struct aule_ticket ticket;
    open_crowd();
    ok(aule_run_submit(crowd.batch, &crowd.step.run, WAIT_MS, &ticket));
    return ticket;
}

static void begin_threads(int count, int num_runs)
{
    crowd.num_threads = count;
    crowd.num_runs = num_runs;
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(pthread_create(&crowd.threads[i], NULL, work, NULL), 0);
}

static void join_threads(void)
{
    for (int i = 0; i < crowd.num_threads; i++)
        ck_assert_int_eq(pthread_join(crowd.threads[i], NULL), 0);
}

static void join_threads_with(enum aule_status expected)
{
    join_threads();
    for (int i = 0; i < crowd.num_threads; i++)
        ck_assert_int_eq(crowd.last[i], expected);
}

static void end_crowd(void)
{
    aule_batch_destroy(crowd.batch);
    close_step(&crowd.step);
}

// With spinning and without.
START_TEST(more_threads_than_a_ring_has_entries_share_it)
{
    setenv("AULE_RING_SPIN", _i ? "100" : "0", 1);
    open_crowd();
    begin_threads(THREADS, RUNS);
    join_threads_with(AULE_OK);
    end_crowd();
}
END_TEST

// The ring is full of runs that all need the only ticket.
START_TEST(a_ring_full_of_runs_keeps_no_wait_out)
{
    struct step *step = &crowd.step;
    struct aule_ticket ticket = open_crowd_behind_a_run();
    begin_threads(THREADS, 1);
    for (int i = 0; i < 10; i++)
        pause_briefly();
    ck_assert_int_eq(crowd.runs, 0);
    ok(aule_ticket_wait(step->session, ticket, WAIT_MS, NULL));
    join_threads_with(AULE_OK);
    end_crowd();
}
END_TEST

// The run that nobody waits for still has the only ticket, and the next run reaps it.
START_TEST(a_run_that_was_given_up_keeps_no_ticket_from_the_next)
{
    struct step *step = &crowd.step;
    open_crowd();
    for (int i = 0; i < 4; i++) {
        enum aule_status status = aule_run(crowd.batch, &step->run, 0, NULL);
        ck_assert_msg(status == AULE_TIMEOUT || status == AULE_OK, "%s: %s",
                      aule_status_name(status), aule_error());
        ok(aule_run(crowd.batch, &step->run, WAIT_MS, NULL));
    }
    end_crowd();
}
END_TEST

// It waits in the daemon for a while, reaps the abandoned ticket, and waits again.
START_TEST(a_run_that_finds_no_ticket_for_long_gets_the_first_that_comes_free)
{
    struct step *step = &crowd.step;
    struct aule_ticket ticket = open_crowd_behind_a_run();
    begin_threads(1, 1);
    nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 200000000}, NULL);
    ck_assert_int_eq(crowd.runs, 0);
    ok(aule_ticket_wait(step->session, ticket, WAIT_MS, NULL));
    join_threads_with(AULE_OK);
    end_crowd();
}
END_TEST

// Some wait in the ring, some by messages. Later requests get the same answer.
START_TEST(a_session_that_an_operator_ends_wakes_every_thread)
{
    struct aule_session_info info;
    struct aule_monitor *monitor;
    struct step *step = &crowd.step;
    struct aule_ticket ticket = open_crowd_behind_a_run();
    begin_threads(THREADS, -1);
    ok(aule_session_info(step->session, &info));
    ok(aule_monitor_open(daemon_.socket, 0, &monitor));
    ok(aule_monitor_close_session(monitor, info.session));
    join_threads_with(AULE_NO_SESSION);
    expect(aule_ticket_wait(step->session, ticket, WAIT_MS, NULL), AULE_NO_SESSION, "session");
    aule_monitor_close(monitor);
    end_crowd();
}
END_TEST

START_TEST(a_session_that_is_closed_wakes_every_thread)
{
    struct step *step = &crowd.step;
    open_crowd_behind_a_run();
    begin_threads(THREADS, -1);
    for (int i = 0; i < 10; i++)
        pause_briefly();
    aule_session_close(step->session);
    join_threads();
    for (int i = 0; i < THREADS; i++) // or it came after the last run
        ck_assert(crowd.last[i] == AULE_DAEMON_GONE || crowd.last[i] == AULE_NO_SESSION);
    aule_batch_destroy(crowd.batch);
    aule_cache_close(step->cache);
}
END_TEST

// Its threads are busy with runs by then.
static void work_for_ever(void)
{
    open_crowd();
    begin_threads(THREADS, -1);
    while (atomic_load(&crowd.runs) < THREADS)
        pause_briefly();
}

START_TEST(a_worker_killed_in_ring_traffic_leaves_nothing)
{
    struct step step;
    pid_t worker = fork_worker(work_for_ever);
    open_step(&step, NULL);
    kill_worker(worker);
    await_leased(step.cache, 4);
    still_works(&step);
    close_step(&step);
}
END_TEST

START_TEST(a_daemon_killed_in_ring_traffic_wakes_every_thread)
{
    open_crowd();
    begin_threads(THREADS, -1);
    while (atomic_load(&crowd.runs) < 2 * THREADS)
        pause_briefly();
    daemon_kill(&daemon_);
    join_threads_with(AULE_DAEMON_GONE);
    end_crowd();
}
END_TEST

// ---- an idle session ----

// What all threads of a process have used: CPU time in nanoseconds, and how often they went to
// sleep.
struct usage {
    int64_t cpu_ns, sleeps;
};

static int64_t count_sleeps(pid_t pid, const char *thread)
{
    char path[300], line[128];
    long long sleeps = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%s/status", (int)pid, thread);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, "voluntary_ctxt_switches:", 24) == 0)
            sleeps = strtoll(line + 24, NULL, 10);
    }
    if (file)
        fclose(file);
    return sleeps;
}

static int64_t time_of(clockid_t clock)
{
    struct timespec time;
    ck_assert_int_eq(clock_gettime(clock, &time), 0);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

// Does not count this thread's CPU time: reading the numbers takes some milliseconds under a
// sanitizer.
static struct usage usage_of(pid_t pid)
{
    char path[64];
    clockid_t clock;
    struct usage usage = {.sleeps = 0};
    ck_assert_int_eq(clock_getcpuclockid(pid, &clock), 0);
    usage.cpu_ns = time_of(clock) - (pid == getpid() ? time_of(CLOCK_THREAD_CPUTIME_ID) : 0);
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *threads = opendir(path);
    for (struct dirent *entry; threads && (entry = readdir(threads));)
        usage.sleeps += entry->d_name[0] == '.' ? 0 : count_sleeps(pid, entry->d_name);
    if (threads)
        closedir(threads);
    return usage;
}

static bool rests(pid_t pid, const struct usage *before)
{
    const struct usage after = usage_of(pid);
    int64_t cpu_ns = after.cpu_ns - before->cpu_ns, sleeps = after.sleeps - before->sleeps;
    if (cpu_ns < 5000000 && sleeps < 60)
        return true;
    printf("pid %d: %.3f ms of CPU, %d times asleep\n", (int)pid, (double)cpu_ns / 1e6,
           (int)sleeps);
    return false;
}

// One of several seconds must be quiet, whatever else the machine does: 0.5 % of a core, and few
// wake-ups (ThreadSanitizer has ten of its own).
START_TEST(an_idle_session_and_its_daemon_use_no_cpu)
{
    struct step step;
    bool idle = false;
    setenv("AULE_RING_SPIN", "50", 1);
    open_step(&step, NULL);
    run_once(&step);
    for (int i = 0; i < 20 && !idle; i++) {
        const struct usage daemon = usage_of(daemon_.pid), own = usage_of(getpid());
        nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
        idle = rests(daemon_.pid, &daemon) & rests(getpid(), &own);
    }
    ck_assert(idle);
    close_step(&step);
}
END_TEST

int main(void)
{
    const struct entry two[] = {
        {an_unknown_lane_is_refused_with_its_name, 0},
        {the_ring_is_taken_where_it_is_offered_and_nobody_says_otherwise, 0},
        {the_doorbell_of_another_user_is_not_rung, 0},
        {a_doorbell_that_cannot_be_reached_is_an_error_only_where_the_ring_is_asked_for, 0},
        {a_time_to_spin_that_is_none_is_refused_by_its_value, 0},
        {more_threads_than_a_ring_has_entries_share_it, 2},
        {a_daemon_killed_in_ring_traffic_wakes_every_thread, 0},
        {a_worker_killed_in_ring_traffic_leaves_nothing, 0},
        {an_idle_session_and_its_daemon_use_no_cpu, 0},
        {NULL, 0}};
    const struct entry one[] = {
        {a_ring_full_of_runs_keeps_no_wait_out, 0},
        {a_run_that_finds_no_ticket_for_long_gets_the_first_that_comes_free, 0},
        {a_run_that_was_given_up_keeps_no_ticket_from_the_next, 0},
        {a_session_that_an_operator_ends_wakes_every_thread, 0},
        {a_session_that_is_closed_wakes_every_thread, 0},
        {NULL, 0}};
    const struct entry none[] = {
        {a_ring_that_is_not_offered_is_an_error_only_where_it_is_asked_for, 0}, {NULL, 0}};
    Suite *suite = suite_create("client, lane");
    add(suite, "two entries", launch_with_two_entries, two);
    add(suite, "one ticket", launch_with_one_ticket, one);
    add(suite, "no rings", launch_without_rings, none);
    return check_main(suite);
}
