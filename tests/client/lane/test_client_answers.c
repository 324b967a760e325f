// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_answers.c - threads of one session that share a ring. Here a thread plays the daemon.
// Each thread gets its own answer, and none waits for good when the leader leaves, the connection
// ends or the ring closes. No daemon, no socket.

#include "base/list.h"
#include "client/src/link/answers.h"
#include "rigs/check_main.h"

#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { THREADS = 6, CALLS = 100, ENTRIES = 4, ROUNDS_KEPT = 3, ANSWER = 1000 };
enum { BATCH = 7, LATE_US = 2000, SLACK_NS = 70000, SHORT_SLACK_NS = 1000 };

static const struct timeout for_ever = {.ms = -1};

// The session's ring, with both ends.
static struct world {
    struct ring_place place;
    struct answers answers;
    struct ring_daemon daemon;
    sem_t bell;
    atomic_int placed, let_go, wrong;
    pid_t asker; // the thread whose timer slack serve_late() reads
    long slack;  // while it slept, in ns; -1: this process may not read it
    struct timeout timeout;
} world;

static void *lines(uint64_t size)
{
    void *memory = NULL;
    ck_assert_int_eq(posix_memalign(&memory, RING_LINE, size), 0);
    return memory;
}

static void open_world(uint32_t num_entries, int64_t spin_ns)
{
    world.place = (struct ring_place){
        .submissions = lines(ring_size(num_entries, WIRE_SUBMISSION_SIZE)),
        .completions = lines(ring_size(num_entries, WIRE_COMPLETION_SIZE)),
        .num_entries = num_entries,
        .submission_size = WIRE_SUBMISSION_SIZE,
        .completion_size = WIRE_COMPLETION_SIZE,
    };
    ring_daemon_init(&world.daemon, &world.place);
    answers_init(&world.answers, &world.place, spin_ns);
    sem_init(&world.bell, 0, 0);
    world.timeout = for_ever;
}

static void close_world(void)
{
    answers_finish(&world.answers);
    sem_destroy(&world.bell);
    free(world.place.submissions);
    free(world.place.completions);
}

// ---- the daemon's end ----

static void post(const struct wire_submission *submission)
{
    uint64_t entry[WIRE_COMPLETION_SIZE / 8];
    const struct wire_completion completion = {
        .sequence = submission->sequence,
        .answer = WIRE_ANSWER_WAIT,
        .ticket = submission->wait.ticket + ANSWER,
    };
    wire_put_completion(&completion, entry);
    ring_post(&world.daemon, entry);
}

static bool take(struct wire_submission *submission)
{
    uint64_t entry[WIRE_SUBMISSION_SIZE / 8];
    if (ring_take(&world.daemon, entry) != RING_TAKEN)
        return false;
    wire_get_submission(entry, submission);
    return true;
}

// If there are several requests, answers them in another order.
static void *serve(void *context)
{
    struct wire_submission kept[ROUNDS_KEPT];
    uint32_t left = THREADS * CALLS;
    (void)context;
    while (left) {
        uint32_t count = 0;
        while (count < ROUNDS_KEPT && take(&kept[count]))
            count++;
        left -= count;
        if (count == 0 && ring_fall_asleep(&world.daemon)) {
            sem_wait(&world.bell);
            ring_wake_up(&world.daemon);
        }
        while (count)
            post(&kept[--count]);
    }
    return NULL;
}

// ---- the threads ----

// False: no answer came.
static bool ask(uint64_t ticket, struct wire_completion *completion)
{
    struct wire_submission submission = {.command = WIRE_COMMAND_WAIT, .wait = {.ticket = ticket}};
    struct waiter waiter;
    enum answers_place place;
    while ((place = answers_submit(&world.answers, &submission, &waiter)) == ANSWERS_NO_PLACE) {
        if (ring_interrupted(&world.answers.ring))
            return false;
        sched_yield(); // the ring is full
    }
    atomic_fetch_add(&world.placed, 1);
    if (place == ANSWERS_PLACED_ASLEEP)
        sem_post(&world.bell);
    bool answered = answers_await(&world.answers, &waiter, &world.timeout);
    *completion = waiter.completion;
    return answered;
}

static void *ask_often(void *context)
{
    struct wire_completion completion;
    uint64_t first = (uint64_t)(uintptr_t)context * CALLS;
    for (uint64_t i = 1; i <= CALLS; i++) {
        if (!ask(first + i, &completion) || completion.ticket != first + i + ANSWER)
            atomic_fetch_add(&world.wrong, 1);
    }
    return NULL;
}

static void *ask_in_vain(void *context)
{
    struct wire_completion completion;
    (void)context;
    if (!ask(1, &completion))
        atomic_fetch_add(&world.let_go, 1);
    return NULL;
}

static void begin(pthread_t *threads, int count, void *(*work)(void *))
{
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)i), 0);
}

static void join(pthread_t *threads, int count)
{
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

START_TEST(each_thread_gets_its_own_answers_in_any_order)
{
    pthread_t threads[THREADS], daemon;
    open_world(ENTRIES, _i * 20000);
    begin(&daemon, 1, serve);
    begin(threads, THREADS, ask_often);
    join(threads, THREADS);
    join(&daemon, 1);
    ck_assert_int_eq(world.wrong, 0);
    close_world();
}
END_TEST

START_TEST(the_end_of_the_connection_lets_every_thread_go)
{
    pthread_t threads[THREADS];
    open_world(ENTRIES, _i * 20000);
    begin(threads, THREADS, ask_in_vain);
    while (atomic_load(&world.placed) < ENTRIES)
        sched_yield();
    ring_interrupt(&world.answers.ring);
    join(threads, THREADS);
    ck_assert_int_eq(world.let_go, THREADS);
    close_world();
}
END_TEST

static void *ask_shortly(void *context)
{
    struct wire_submission submission = {.command = WIRE_COMMAND_WAIT};
    const struct timeout timeout = timeout_start(20);
    struct waiter waiter;
    (void)context;
    if (answers_submit(&world.answers, &submission, &waiter) != ANSWERS_NO_PLACE &&
        !answers_await(&world.answers, &waiter, &timeout))
        atomic_fetch_add(&world.let_go, 1);
    return NULL;
}

// A thread's timer slack in ns; -1: this process may not read it.
static long slack_of(pid_t thread)
{
    char path[64];
    long slack = -1;
    snprintf(path, sizeof path, "/proc/%d/timerslack_ns", thread);
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%ld", &slack) != 1)
        slack = -1;
    if (file)
        fclose(file);
    return slack;
}

// Answers one request when the asker sleeps with another slack than its own.
static void *serve_late(void *context)
{
    struct wire_submission submission;
    (void)context;
    while (!take(&submission))
        sched_yield();
    do {
        usleep(LATE_US);
        world.slack = slack_of(world.asker);
    } while (world.slack == SLACK_NS);
    post(&submission);
    return NULL;
}

// The answer is expected long after it comes, so the thread sleeps on a timer until it is woken.
START_TEST(a_timed_sleep_has_a_short_timer_slack_and_leaves_the_thread_its_own)
{
    struct wire_submission submission = {.command = WIRE_COMMAND_RUN,
                                         .run = {.entry.batch = BATCH, .waits = true}};
    struct waiter waiter;
    pthread_t daemon;
    open_world(ENTRIES, 20000);
    forecast_learn(&world.answers.forecast.times, BATCH, NS_PER_S);
    ck_assert_int_eq(prctl(PR_SET_TIMERSLACK, (unsigned long)SLACK_NS), 0);
    world.asker = gettid();
    begin(&daemon, 1, serve_late);
    ck_assert_int_ne(answers_submit(&world.answers, &submission, &waiter), ANSWERS_NO_PLACE);
    ck_assert(answers_await(&world.answers, &waiter, &for_ever));
    ck_assert_int_eq(prctl(PR_GET_TIMERSLACK), SLACK_NS);
    join(&daemon, 1);
    if (world.slack >= 0)
        ck_assert_int_eq(world.slack, SHORT_SLACK_NS);
    else
        printf("the slack of a sleeping thread was not read: that takes CAP_SYS_NICE\n");
    close_world();
}
END_TEST

// The first thread leads; the others sleep until it does.
START_TEST(a_leader_whose_time_is_over_leaves_the_watch_to_another)
{
    pthread_t leader, others[ENTRIES - 1];
    struct wire_submission submission;
    open_world(ENTRIES, 0);
    begin(&leader, 1, ask_shortly);
    begin(others, ENTRIES - 1, ask_in_vain);
    join(&leader, 1);
    ck_assert_int_eq(world.let_go, 1);
    for (int answered = 0; answered < ENTRIES;) {
        if (take(&submission)) {
            post(&submission); // also an answer for the thread that has left: it is dropped
            answered++;
        }
    }
    join(others, ENTRIES - 1);
    ck_assert_int_eq(world.let_go, 1);
    close_world();
}
END_TEST

START_TEST(a_thread_that_would_spin_for_hours_looks_no_longer_than_it_may_wait)
{
    open_world(ENTRIES, INT64_C(10000000000000));
    ask_shortly(NULL);
    ck_assert_int_eq(world.let_go, 1);
    close_world();
}
END_TEST

START_TEST(a_full_ring_and_one_that_is_over_have_no_place)
{
    struct wire_submission submissions[2] = {{.command = WIRE_COMMAND_WAIT},
                                             {.command = WIRE_COMMAND_WAIT}};
    struct wire_submission taken;
    struct waiter waiter, other;
    open_world(1, 0);
    ck_assert_int_eq(answers_submit(&world.answers, &submissions[0], &waiter),
                     ANSWERS_PLACED_ASLEEP);
    ck_assert_int_eq(answers_submit(&world.answers, &submissions[1], &other), ANSWERS_NO_PLACE);
    ring_finish(&world.daemon);
    ck_assert(take(&taken));
    post(&taken);
    ck_assert(
        // a thread that already waited still gets its answer
        answers_await(&world.answers, &waiter, &for_ever));
    ck_assert_int_eq(answers_submit(&world.answers, &submissions[1], &other), ANSWERS_NO_PLACE);
    ck_assert(world.answers.over);
    close_world();
}
END_TEST

START_TEST(an_answer_that_nobody_asked_for_breaks_the_ring)
{
    struct wire_submission submission = {.command = WIRE_COMMAND_WAIT};
    struct waiter waiter;
    open_world(ENTRIES, 0);
    ck_assert_int_eq(answers_submit(&world.answers, &submission, &waiter), ANSWERS_PLACED_ASLEEP);
    for (int i = 0; i < 3; i++)
        post(&(struct wire_submission){.sequence = 77});
    ck_assert(!answers_await(&world.answers, &waiter, &for_ever));
    ck_assert(answers_broken(&world.answers));
    ck_assert_int_eq(answers_submit(&world.answers, &submission, &waiter), ANSWERS_NO_PLACE);
    close_world();
}
END_TEST

// As a thread with a forecast leads while another one waits for a lease without end.
START_TEST(a_forecast_counts_beside_an_answer_that_is_overdue)
{
    struct waiter lease = {.expected_ns = 1000}, run = {.expected_ns = 90000},
                  done = {.expected_ns = 50000, .answered = true};
    open_world(ENTRIES, 5000);
    LIST_APPEND(world.answers.waiters, &lease);
    ck_assert_int_eq(answers_expected(&world.answers, 1000), 1000);
    ck_assert_int_eq(answers_expected(&world.answers, 7000), 0);
    LIST_APPEND(world.answers.waiters, &done);
    LIST_APPEND(world.answers.waiters, &run);
    ck_assert_int_eq(answers_expected(&world.answers, 1000), 1000); // the lease may come at once
    ck_assert_int_eq(answers_expected(&world.answers, 7000), 90000);
    ck_assert_int_eq(answers_expected(&world.answers, 94000), 90000);
    ck_assert_int_eq(answers_expected(&world.answers, 96000), 0);
    world.answers.waiters = NULL;
    close_world();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client_answers");
    TCase *threads = tcase_create("threads");
    tcase_add_loop_test(threads, each_thread_gets_its_own_answers_in_any_order, 0, 2);
    tcase_add_loop_test(threads, the_end_of_the_connection_lets_every_thread_go, 0, 2);
    tcase_add_test(threads, a_timed_sleep_has_a_short_timer_slack_and_leaves_the_thread_its_own);
    tcase_add_test(threads, a_leader_whose_time_is_over_leaves_the_watch_to_another);
    tcase_add_test(threads, a_thread_that_would_spin_for_hours_looks_no_longer_than_it_may_wait);
    tcase_add_test(threads, a_full_ring_and_one_that_is_over_have_no_place);
    tcase_add_test(threads, a_forecast_counts_beside_an_answer_that_is_overdue);
    tcase_add_test(threads, an_answer_that_nobody_asked_for_breaks_the_ring);
    suite_add_tcase(suite, threads);
    return check_main(suite);
}
