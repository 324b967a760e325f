// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_lane.c - libaule-client's ring lane against the real daemon: how it is chosen, threads that share a small ring, and a daemon
// killed under them. What a run does is held by the other client suites, which also run with AULE_LANE=ring.

#include "client_step.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

enum { THREADS = 6, RUNS = 8 };

static void launch_with_two_entries(void)
{
    setenv("AULE_LANE", "ring", 1);
    launch((const char *const[]){"--ring-entries", "2", NULL});
}

static void launch_without_rings(void)
{
    setenv("AULE_LANE", "ring", 1);
    launch((const char *const[]){"--ring-entries", "0", NULL});
}

static enum aule_status try_session(void)
{
    struct aule_session *session = NULL;
    const struct aule_session_params params = {.socket = daemon_.socket};
    enum aule_status status = aule_session_open(&params, &session);
    aule_session_close(session);
    return status;
}

START_TEST(a_lane_that_is_none_is_refused_by_its_name)
{
    setenv("AULE_LANE", "highway", 1);
    expect(try_session(), AULE_INVALID, "\"highway\"");
    setenv("AULE_LANE", "", 1);
    ok(try_session());
}
END_TEST

START_TEST(a_ring_that_is_asked_for_and_not_offered_is_an_error)
{
    expect(try_session(), AULE_UNSUPPORTED, "--ring-entries");
    setenv("AULE_LANE", "nng", 1);
    ok(try_session());
}
END_TEST

static struct crowd {
    struct step step;
    struct aule_batch *batch;
    int num_runs; // of a thread; -1 = until one fails
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

static void begin_crowd(pthread_t threads[THREADS], int num_runs)
{
    open_step(&crowd.step, NULL);
    crowd.batch = create_batch(&crowd.step);
    crowd.num_runs = num_runs;
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, work, NULL), 0);
}

START_TEST(more_threads_than_a_ring_has_entries_share_it)
{
    pthread_t threads[THREADS];
    begin_crowd(threads, RUNS);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(crowd.last[i], AULE_OK);
    aule_batch_destroy(crowd.batch);
    close_step(&crowd.step);
}
END_TEST

START_TEST(a_daemon_killed_in_ring_traffic_wakes_every_thread)
{
    pthread_t threads[THREADS];
    begin_crowd(threads, -1);
    while (atomic_load(&crowd.runs) < 2 * THREADS)
        pause_briefly();
    daemon_kill(&daemon_);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++)
        ck_assert_int_eq(crowd.last[i], AULE_DAEMON_GONE);
    aule_batch_destroy(crowd.batch);
    close_step(&crowd.step);
}
END_TEST

int main(void)
{
    const struct entry two[] = {{a_lane_that_is_none_is_refused_by_its_name, 0},
                                {more_threads_than_a_ring_has_entries_share_it, 0},
                                {a_daemon_killed_in_ring_traffic_wakes_every_thread, 0},
                                {NULL, 0}};
    const struct entry none[] = {{a_ring_that_is_asked_for_and_not_offered_is_an_error, 0}, {NULL, 0}};
    Suite *suite = suite_create("client, lane");
    add(suite, "two entries", launch_with_two_entries, two);
    add(suite, "no rings", launch_without_rings, none);
    return check_main(suite);
}
