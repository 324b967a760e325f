// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_clock.c - deadlines of the monotonic clock, and waiting on a condition until a deadline.

#include "base/clock.h"
#include "base/container_of.h"
#include "rigs/check_main.h"

#include <errno.h>

START_TEST(a_deadline_lies_its_timeout_ahead_and_a_negative_timeout_never_ends)
{
    const int64_t before_ns = clock_now_ns(), deadline_ns = clock_deadline_ns(2000),
                  after_ns = clock_now_ns();
    ck_assert_int_ge(deadline_ns, before_ns + 2000 * NS_PER_MS);
    ck_assert_int_le(deadline_ns, after_ns + 2000 * NS_PER_MS);
    ck_assert(clock_deadline_ns(-1) == FOREVER);
    ck_assert_int_gt(clock_deadline_ns(INT32_MAX), after_ns);
}
END_TEST

START_TEST(a_time_has_whole_seconds_and_the_rest)
{
    const struct timespec time = clock_timespec(3 * NS_PER_S + 5 * NS_PER_MS);
    ck_assert_int_eq(time.tv_sec, 3);
    ck_assert_int_eq(time.tv_nsec, 5000000);
}
END_TEST

START_TEST(a_condition_that_nobody_signals_is_waited_for_until_the_deadline)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t cond;
    int result = 0;
    ck_assert_int_eq(clock_init_cond(&cond), 0);
    pthread_mutex_lock(&mutex);
    const int64_t deadline_ns = clock_deadline_ns(5);
    while (result != ETIMEDOUT) {
        result = clock_wait(&cond, &mutex, deadline_ns);
        ck_assert(result == 0 || result == ETIMEDOUT);
    }
    ck_assert_int_ge(clock_now_ns(), deadline_ns);
    pthread_mutex_unlock(&mutex);
    pthread_cond_destroy(&cond);
}
END_TEST

struct signalled {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    bool told;
};

static void *tell(void *argument)
{
    struct signalled *signalled = container_of(argument, struct signalled, cond);
    pthread_mutex_lock(&signalled->mutex);
    signalled->told = true;
    pthread_mutex_unlock(&signalled->mutex);
    pthread_cond_signal(&signalled->cond);
    return NULL;
}

START_TEST(without_a_deadline_a_condition_is_waited_for_until_it_is_signalled)
{
    struct signalled signalled = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    pthread_t thread;
    ck_assert_int_eq(clock_init_cond(&signalled.cond), 0);
    pthread_mutex_lock(&signalled.mutex);
    ck_assert_int_eq(pthread_create(&thread, NULL, tell, &signalled.cond), 0);
    while (!signalled.told)
        ck_assert_int_eq(clock_wait(&signalled.cond, &signalled.mutex, FOREVER), 0);
    pthread_mutex_unlock(&signalled.mutex);
    pthread_join(thread, NULL);
    pthread_cond_destroy(&signalled.cond);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        a_deadline_lies_its_timeout_ahead_and_a_negative_timeout_never_ends,
        a_time_has_whole_seconds_and_the_rest,
        a_condition_that_nobody_signals_is_waited_for_until_the_deadline,
        without_a_deadline_a_condition_is_waited_for_until_it_is_signalled,
        NULL,
    };
    Suite *suite = suite_create("clock");
    check_case(suite, "clock", NULL, NULL, tests, 1);
    return check_main(suite);
}
