// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_delay.c - how long runs wait for company while the GPU is busy, and when the dispatcher must
// be awake for that.

#include "core/turns/delay.h"
#include "rigs/check_main.h"

enum { US = 1000, SPIN = 50 * US, KIND = 7, OTHER = 8 };

static struct delay delay;
static int64_t begun_ns; // start of the GPU's current work

// Submissions of this length were seen, and another one has just begun.
static void begin_known(int64_t takes_ns)
{
    delay_init(&delay, SPIN);
    begun_ns = 1000000 * US;
    for (uint64_t sequence = 1; sequence <= 10; sequence++, begun_ns += takes_ns)
        delay_next(&delay, sequence, KIND, begun_ns, false);
    delay_next(&delay, 100, KIND, begun_ns, false);
}

// Whether the dispatcher must be awake this long after the start.
static bool is_awake(int64_t after_ns)
{
    return delay_wake_ns(&delay, begun_ns + after_ns) <= begun_ns + after_ns;
}

static bool keeps_back(int64_t after_ns)
{
    delay_begin_step(&delay);
    return delay_keep_back(&delay, begun_ns + after_ns);
}

START_TEST(runs_are_kept_back_until_the_end_is_near_and_no_longer)
{
    begin_known(400 * US);
    ck_assert(keeps_back(10 * US));
    const int64_t kept_ns = delay_wake_ns(&delay, begun_ns + 10 * US) - begun_ns;
    ck_assert_int_gt(kept_ns, 300 * US);
    ck_assert_int_lt(kept_ns, 400 * US - SPIN / 2);
    ck_assert(keeps_back(kept_ns - 1));
    ck_assert(!keeps_back(kept_ns));
    for (int64_t after_ns = kept_ns; after_ns < 400 * US; after_ns += US)
        ck_assert(is_awake(after_ns));
    ck_assert(!keeps_back(kept_ns));
}
END_TEST

START_TEST(a_wait_that_has_ended_wakes_no_thread)
{
    begin_known(400 * US);
    ck_assert(keeps_back(0));
    const int64_t kept_ns = delay_wake_ns(&delay, begun_ns);
    delay_begin_step(&delay); // no run waits in it
    ck_assert_int_gt(delay_wake_ns(&delay, begun_ns), kept_ns);
}
END_TEST

START_TEST(runs_that_take_long_to_prepare_wait_for_less_time)
{
    begin_known(400 * US);
    delay_prepared(&delay, 250 * US);
    ck_assert(keeps_back(50 * US));
    ck_assert(!keeps_back(150 * US));
    for (int n = 0; n < 40; n++)
        delay_prepared(&delay, 10 * US);
    delay_next(&delay, 101, KIND, begun_ns += 400 * US, false);
    ck_assert(keeps_back(300 * US));
}
END_TEST

START_TEST(where_time_is_left_after_the_delay_the_dispatcher_sleeps_again)
{
    begin_known(100000 * US);
    delay_prepared(&delay, 20000 * US);
    ck_assert(keeps_back(0));
    const int64_t kept_ns = delay_wake_ns(&delay, begun_ns) - begun_ns;
    ck_assert(!keeps_back(kept_ns));
    ck_assert_int_gt(delay_wake_ns(&delay, begun_ns + kept_ns), begun_ns + kept_ns + 10000 * US);
}
END_TEST

START_TEST(a_delay_that_is_over_keeps_the_dispatcher_awake_until_the_next_step)
{
    begin_known(400 * US);
    ck_assert(keeps_back(0));
    const int64_t kept_ns = delay_wake_ns(&delay, begun_ns) - begun_ns;
    ck_assert(is_awake(kept_ns + 1));
    ck_assert(!keeps_back(kept_ns + 2));
    ck_assert(is_awake(400 * US));
}
END_TEST

// As --ring-spin says in the manual.
START_TEST(a_look_behind_a_delay_lasts_three_times_as_long_at_most)
{
    int64_t longest_ns = 0;
    for (int64_t prepares_us = 0; prepares_us <= 100; prepares_us += 5) {
        begin_known(1000 * US);
        delay_prepared(&delay, prepares_us * US);
        ck_assert(keeps_back(0));
        const int64_t kept_ns = delay_wake_ns(&delay, begun_ns) - begun_ns;
        int64_t looked_ns = 0;
        ck_assert(!keeps_back(kept_ns));
        while (is_awake(kept_ns + looked_ns))
            looked_ns += US;
        ck_assert_int_le(looked_ns, 3 * SPIN);
        longest_ns = looked_ns > longest_ns ? looked_ns : longest_ns;
    }
    ck_assert_int_gt(longest_ns, 2 * SPIN);
}
END_TEST

START_TEST(nothing_is_kept_back_behind_work_whose_end_is_unknown_or_near)
{
    delay_init(&delay, SPIN);
    delay_next(&delay, 1, KIND, begun_ns = 1000 * US, false);
    ck_assert(!keeps_back(0));
    delay_next(&delay, 0, 0, begun_ns + 30 * US, false);
    delay_next(&delay, 2, KIND, begun_ns += 50 * US, false);
    ck_assert(!keeps_back(0)); // it takes 30 us in all
    delay_next(&delay, 0, 0, begun_ns + 450 * US, false);
    ck_assert(!keeps_back(450 * US)); // nothing is in flight
}
END_TEST

START_TEST(without_polling_no_run_waits_for_company)
{
    begin_known(400 * US);
    delay.watch.look_ns = 0;
    ck_assert(!keeps_back(0));
    ck_assert(delay_wake_ns(&delay, begun_ns) == FOREVER);
}
END_TEST

START_TEST(ends_are_counted_by_whether_they_woke_the_dispatcher)
{
    delay_init(&delay, SPIN);
    delay_next(&delay, 1, KIND, 0, true); // no submission has ended
    delay_next(&delay, 2, OTHER, 10 * US, true);
    delay_next(&delay, 3, KIND, 20 * US, false);
    delay_next(&delay, 0, 0, 30 * US, false);
    ck_assert_uint_eq(delay.ends_asleep, 1);
    ck_assert_uint_eq(delay.ends_awake, 2);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        runs_are_kept_back_until_the_end_is_near_and_no_longer,
        a_wait_that_has_ended_wakes_no_thread,
        runs_that_take_long_to_prepare_wait_for_less_time,
        where_time_is_left_after_the_delay_the_dispatcher_sleeps_again,
        a_delay_that_is_over_keeps_the_dispatcher_awake_until_the_next_step,
        a_look_behind_a_delay_lasts_three_times_as_long_at_most,
        nothing_is_kept_back_behind_work_whose_end_is_unknown_or_near,
        without_polling_no_run_waits_for_company,
        ends_are_counted_by_whether_they_woke_the_dispatcher,
        NULL,
    };
    Suite *suite = suite_create("delay");
    check_case(suite, "delay", NULL, NULL, tests, 1);
    return check_main(suite);
}
