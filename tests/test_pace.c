// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_pace.c - when the engine looks at the GPU, sleeps and waits, under a clock and over a GPU of the test's own.

#include "check_main.h"

#include "../daemon/engine/pace.h"

enum { SHAPE = 7, POLL_US = 100, LOOK_NS = 200, WAKE_US = 25 };

// A GPU that ends its work at `end_ns`, and what was done meanwhile.
struct gpu {
    uint64_t now_ns, end_ns;
    uint64_t looked_ns, slept_ns;
    uint32_t waits;
    uint64_t oversleeps_ns; // each sleep is so much longer
    bool lost;
};

static uint64_t now(void *context)
{
    return ((struct gpu *)context)->now_ns;
}

static void sleep_until(void *context, uint64_t ns)
{
    struct gpu *gpu = context;
    ck_assert_uint_gt(ns, gpu->now_ns);
    gpu->slept_ns += ns - gpu->now_ns;
    gpu->now_ns = ns + gpu->oversleeps_ns;
}

static bool passed(void *context)
{
    struct gpu *gpu = context;
    gpu->now_ns += LOOK_NS;
    gpu->looked_ns += LOOK_NS;
    return gpu->now_ns >= gpu->end_ns;
}

// Hears late.
static bool wait_for_end(void *context)
{
    struct gpu *gpu = context;
    gpu->waits++;
    if (gpu->now_ns < gpu->end_ns)
        gpu->now_ns = gpu->end_ns + WAKE_US * 1000;
    return !gpu->lost;
}

static const struct pace_ops ops = {now, sleep_until, passed, wait_for_end};

static struct pace pace;
static uint64_t clock_ns = 1000000; // goes on from one piece of work to the next

static void setup(void)
{
    pace = (struct pace){.poll_ns = POLL_US * 1000};
}

// Work of the shape that takes so long, sent as soon as the one before was done. What was done about it.
static struct gpu work_with(uint64_t shape, uint64_t took_us, uint64_t oversleeps_us)
{
    struct gpu gpu = {.now_ns = clock_ns, .end_ns = clock_ns + took_us * 1000, .oversleeps_ns = oversleeps_us * 1000};
    ck_assert(pace_wait(&pace, shape, clock_ns, &ops, &gpu));
    ck_assert_uint_ge(gpu.now_ns, gpu.end_ns);
    clock_ns = gpu.now_ns;
    return gpu;
}

static struct gpu work(uint64_t shape, uint64_t took_us)
{
    return work_with(shape, took_us, 0);
}

START_TEST(short_work_is_seen_at_once)
{
    for (int i = 0; i < 3; i++) {
        struct gpu gpu = work(SHAPE, 15);
        ck_assert_uint_eq(gpu.waits, 0);
        ck_assert_uint_eq(gpu.slept_ns, 0);
        ck_assert_uint_le(gpu.now_ns - gpu.end_ns, LOOK_NS);
    }
}
END_TEST

START_TEST(nobody_looks_for_longer_than_is_allowed)
{
    struct gpu gpu = work(SHAPE, 100000);
    ck_assert_uint_le(gpu.looked_ns, POLL_US * 1000 + LOOK_NS);
    ck_assert_uint_eq(gpu.waits, 1);
    for (uint64_t took_us = 1; took_us < 20000; took_us += took_us / 7 + 1) {
        gpu = work(SHAPE + took_us % 5, took_us);
        ck_assert_uint_le(gpu.looked_ns, POLL_US * 1000 + LOOK_NS);
    }
}
END_TEST

START_TEST(known_work_is_slept_through_until_shortly_before_its_end)
{
    work(SHAPE, 1000); // nobody knew: seen late
    for (int i = 0; i < 20; i++) {
        struct gpu gpu = work(SHAPE, 1000 + (uint64_t)i % 3 * 10);
        ck_assert_uint_eq(gpu.waits, 0);
        ck_assert_uint_le(gpu.now_ns - gpu.end_ns, LOOK_NS);
        ck_assert_uint_ge(gpu.slept_ns, 900000);
    }
}
END_TEST

START_TEST(long_work_is_waited_for_without_a_look)
{
    work(SHAPE, 10000);
    struct gpu gpu = work(SHAPE, 10000);
    ck_assert_uint_eq(gpu.looked_ns + gpu.slept_ns, 0);
    ck_assert_uint_eq(gpu.waits, 1);
}
END_TEST

START_TEST(work_that_becomes_shorter_or_longer_is_met_again)
{
    static const uint64_t changes[][2] = {{800, 300}, {300, 800}, {250, 251}, {1500, 20}, {20, 1500}, {9000, 90}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        struct gpu gpu = {0};
        for (int j = 0; j < 5; j++)
            work(SHAPE, changes[i][0]);
        for (int j = 0; j < 60; j++)
            gpu = work(SHAPE, changes[i][1]);
        ck_assert_uint_eq(gpu.waits, 0);
        ck_assert_uint_le(gpu.now_ns - gpu.end_ns, LOOK_NS);
    }
}
END_TEST

START_TEST(one_that_took_long_does_not_make_the_next_ones_late)
{
    for (int i = 0; i < 5; i++)
        work(SHAPE, 200);
    work(SHAPE, 500); // others had the GPU
    struct gpu gpu = work(SHAPE, 200);
    ck_assert_uint_le(gpu.now_ns - gpu.end_ns, LOOK_NS);
    work(SHAPE, 1500);
    work(SHAPE, 200); // late, by an eighth of that
    gpu = work(SHAPE, 200);
    ck_assert_uint_le(gpu.now_ns - gpu.end_ns, WAKE_US * 1000);
    gpu = work(SHAPE, 200);
    ck_assert_uint_le(gpu.now_ns - gpu.end_ns, LOOK_NS);
}
END_TEST

START_TEST(a_clock_that_wakes_late_is_allowed_for)
{
    struct gpu gpu = {0};
    for (int i = 0; i < 60; i++)
        gpu = work_with(SHAPE, 400, 70);
    ck_assert_uint_eq(gpu.waits, 0);
    ck_assert_uint_le(gpu.now_ns - gpu.end_ns, 25000);
}
END_TEST

START_TEST(one_late_sleep_is_forgotten)
{
    struct gpu gpu = {0};
    for (int i = 0; i < 5; i++)
        work(SHAPE, 400);
    work_with(SHAPE, 400, 2000);
    for (int i = 0; i < 60; i++)
        gpu = work(SHAPE, 400);
    ck_assert_uint_eq(gpu.waits, 0);
    ck_assert_uint_gt(gpu.slept_ns, 0);
    ck_assert_uint_le(gpu.now_ns - gpu.end_ns, LOOK_NS);
}
END_TEST

START_TEST(what_waited_behind_others_is_counted_from_their_end)
{
    uint64_t sent = clock_ns;
    for (int i = 0; i < 20; i++) { // all were sent at once
        struct gpu gpu = {.now_ns = clock_ns, .end_ns = sent + (uint64_t)(i + 1) * 300000};
        ck_assert(pace_wait(&pace, SHAPE, sent, &ops, &gpu));
        clock_ns = gpu.now_ns;
        if (i > 2)
            ck_assert_uint_eq(gpu.waits, 0);
    }
}
END_TEST

START_TEST(without_leave_to_look_it_is_only_waited)
{
    pace.poll_ns = 0;
    for (int i = 0; i < 3; i++) {
        struct gpu gpu = work(SHAPE, 15);
        ck_assert_uint_eq(gpu.looked_ns + gpu.slept_ns, 0);
        ck_assert_uint_eq(gpu.waits, 1);
    }
}
END_TEST

START_TEST(what_never_ends_is_said)
{
    struct gpu gpu = {.now_ns = clock_ns, .end_ns = UINT64_MAX / 2, .lost = true};
    ck_assert(!pace_wait(&pace, SHAPE, clock_ns, &ops, &gpu));
    ck_assert_uint_eq(gpu.waits, 1);
}
END_TEST

START_TEST(by_itself_it_looks_only_with_cores_to_spare_and_a_gpu)
{
    ck_assert_uint_gt(pace_poll_us(0, 4, false), 0);
    ck_assert_uint_eq(pace_poll_us(0, 3, false), 0);
    ck_assert_uint_eq(pace_poll_us(0, 64, true), 0);
    ck_assert_uint_eq(pace_poll_us(40, 1, true), 40);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pace");
    TCase *tcase = tcase_create("pace");
    tcase_add_checked_fixture(tcase, setup, NULL);
    tcase_add_test(tcase, short_work_is_seen_at_once);
    tcase_add_test(tcase, nobody_looks_for_longer_than_is_allowed);
    tcase_add_test(tcase, known_work_is_slept_through_until_shortly_before_its_end);
    tcase_add_test(tcase, long_work_is_waited_for_without_a_look);
    tcase_add_test(tcase, work_that_becomes_shorter_or_longer_is_met_again);
    tcase_add_test(tcase, one_that_took_long_does_not_make_the_next_ones_late);
    tcase_add_test(tcase, a_clock_that_wakes_late_is_allowed_for);
    tcase_add_test(tcase, one_late_sleep_is_forgotten);
    tcase_add_test(tcase, what_waited_behind_others_is_counted_from_their_end);
    tcase_add_test(tcase, without_leave_to_look_it_is_only_waited);
    tcase_add_test(tcase, what_never_ends_is_said);
    tcase_add_test(tcase, by_itself_it_looks_only_with_cores_to_spare_and_a_gpu);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}
