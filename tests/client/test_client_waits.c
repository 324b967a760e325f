// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_waits.c - what a run that waits for a ticket keeps of its arrays, and how it ends
// with its session: libaule-client and the real daemon.

#include "rigs/client_scene.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct waiter {
    pthread_t thread;
    struct scene *scene;
    struct aule_batch *batch;
    struct aule_ticket ticket;
    enum aule_status status;
    atomic_bool done;
};

static void *submit_and_wait(void *context)
{
    struct waiter *waiter = context;
    waiter->status = aule_run_submit(waiter->batch, &waiter->scene->run, -1, &waiter->ticket);
    atomic_store(&waiter->done, true);
    return NULL;
}

// Two processes share the arena, and the test accesses it like a third one. These accesses have no
// order with the library's, so ThreadSanitizer must not report them.
__attribute__((no_sanitize("thread"))) static bool holds(const volatile float *place,
                                                         const float *values)
{
    bool same = true;
    for (int i = 0; i < HEADS && same; i++)
        same = place[i] == values[i];
    return same;
}

__attribute__((no_sanitize("thread"))) static void spoil(volatile float *place)
{
    for (int i = 0; i < HEADS; i++)
        place[i] = NAN;
}

// Finds where the waiting call has put `values` in the arena. Only the library knows, so the test
// searches.
static float *find_values(struct scene *scene, const float *values)
{
    char *arena = aule_arena_base(scene->session);
    for (int tries = 0; tries < 10000; tries++) {
        for (size_t at = 0; at < 1 << 20; at += 16)
            if (holds((const float *)(const void *)(arena + at), values))
                return (float *)(void *)(arena + at);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    return NULL;
}

static int count_in_log(const char *words)
{
    char *log = daemon_log_text(&daemon_);
    int count = 0;
    for (const char *at = log; at && (at = strstr(at, words)); at++)
        count++;
    free(log);
    return count;
}

// How many commands the daemon has sent back because they waited long enough. It logs that before
// the library gets the answer. Another thread writes the log, in order: once the line of a SIGHUP
// is there, all lines before are.
static int count_sent_back(void)
{
    const int before = count_in_log("SIGHUP");
    ck_assert_int_eq(kill(daemon_.pid, SIGHUP), 0);
    while (count_in_log("SIGHUP") == before)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return count_in_log("parked command: ");
}

// Another run, which does not wait, is told about it.
static bool waits_in_daemon(struct scene *scene, struct aule_batch *batch)
{
    struct aule_run_params plain = scene->run;
    struct aule_ticket ticket;
    plain.alibi_slopes = plain.sinks = NULL;
    ck_assert_int_eq((int)aule_run_submit(batch, &plain, 0, &ticket), AULE_BUSY);
    return strstr(aule_error(), "wait for a ticket already") != NULL;
}

// Overwrites the arrays of a run that waits in the daemon, which has its own copies by then. From
// time to time the library asks again and writes the arrays again. An attempt near that moment does
// not count and is repeated.
static void spoil_while_it_waits(struct scene *scene, struct aule_batch *batch)
{
    bool held = false;
    for (int tries = 0; tries < 10000 && !held; tries++) {
        float *sent_slopes = find_values(scene, slopes), *sent_sinks = find_values(scene, sinks);
        ck_assert_ptr_nonnull(sent_slopes);
        ck_assert_ptr_nonnull(sent_sinks);
        int before = count_sent_back();
        if (!waits_in_daemon(scene, batch)) {
            nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
            continue;
        }
        spoil(sent_slopes);
        spoil(sent_sinks);
        held = count_sent_back() == before;
    }
    ck_assert(held);
}

START_TEST(a_run_that_waits_for_a_ticket_keeps_its_slopes_and_sinks)
{
    struct scene scene;
    struct aule_ticket tickets[MAX_TICKETS];
    struct waiter waiter = {.scene = &scene};
    open_scene(&scene);
    ok(aule_batch_create(scene.cache, &scene.batch, &waiter.batch));
    for (int i = 0; i < MAX_TICKETS; i++)
        ok(aule_run_submit(waiter.batch, &scene.run, 0, &tickets[i]));
    scene.run.alibi_slopes = slopes;
    scene.run.sinks = sinks;
    ck_assert_int_eq(pthread_create(&waiter.thread, NULL, submit_and_wait, &waiter), 0);
    spoil_while_it_waits(&scene, waiter.batch);
    ck_assert(!atomic_load(&waiter.done));
    for (int i = 0; i < MAX_TICKETS; i++)
        ok(aule_ticket_wait(scene.session, tickets[i], WAIT_MS, NULL));
    ck_assert_int_eq(pthread_join(waiter.thread, NULL), 0);
    ok(waiter.status);
    ok(aule_ticket_wait(scene.session, waiter.ticket, WAIT_MS, NULL));
    expect_scene(&scene, "a run that waited");
    aule_batch_destroy(waiter.batch);
    close_scene(&scene);
}
END_TEST

START_TEST(a_run_that_waits_ends_with_its_session)
{
    struct scene scene;
    struct waiter waiter = {.scene = &scene};
    open_scene(&scene);
    ok(aule_batch_create(scene.cache, &scene.batch, &waiter.batch));
    for (int i = 0; i < MAX_TICKETS; i++) {
        struct aule_ticket unreaped;
        ok(aule_run_submit(waiter.batch, &scene.run, 0, &unreaped));
    }
    scene.run.alibi_slopes = slopes;
    ck_assert_int_eq(pthread_create(&waiter.thread, NULL, submit_and_wait, &waiter), 0);
    ck_assert_ptr_nonnull(find_values(&scene, slopes));
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    ck_assert(!atomic_load(&waiter.done));
    close_scene(&scene);
    ck_assert_int_eq(pthread_join(waiter.thread, NULL), 0);
    ck_assert_int_ne((int)waiter.status, AULE_OK);
    aule_batch_destroy(waiter.batch);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client, waits");
    check_case(suite, "waiting", setup_few_tickets, teardown,
               (const TTest *const[]){a_run_that_waits_for_a_ticket_keeps_its_slopes_and_sinks,
                                      a_run_that_waits_ends_with_its_session, NULL},
               1);
    return check_main(suite);
}
