// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_vigil.c - when the dispatcher looks for the end of work and when it sleeps, under a clock of the test's own.

#include "check_main.h"
#include "vigil.h"

enum { US = 1000, SPIN = 50 * US, LATE = 35 * US, KIND = 7, OTHER = 8 };

// A dispatcher that has nothing else to do, and what it did.
struct watch {
    struct vigil vigil;
    int64_t now_ns, looked_ns, oversleeps_ns; // each sleep that ends by itself is so much longer
    uint64_t work;
    bool asleep; // when the last one ended
};

static struct watch fresh(void)
{
    return (struct watch){.vigil = {.spin_ns = SPIN}, .now_ns = 1000000 * US};
}

// Work of `kind` begins, ends after `takes_ns`, and is noticed: at once by who looks, some time later by who sleeps.
static void pass(struct watch *w, uint64_t kind, int64_t takes_ns)
{
    const int64_t end_ns = w->now_ns + takes_ns;
    int64_t until_ns;
    vigil_next(&w->vigil, ++w->work, kind, w->now_ns, false);
    w->asleep = false;
    w->looked_ns = 0;
    while (w->now_ns < end_ns) {
        if (vigil_looks(&w->vigil, w->now_ns, &until_ns)) {
            w->now_ns += US;
            w->looked_ns += US;
        } else if (until_ns < end_ns) {
            w->now_ns = until_ns + w->oversleeps_ns;
            vigil_slept(&w->vigil, until_ns, w->now_ns);
            w->asleep = w->now_ns >= end_ns;
        } else {
            w->now_ns = end_ns + LATE;
            w->asleep = true;
            vigil_slept(&w->vigil, until_ns, w->now_ns);
        }
    }
    vigil_next(&w->vigil, 0, 0, w->now_ns, w->asleep);
    w->now_ns += 10 * US;
}

START_TEST(with_nothing_under_way_nobody_looks)
{
    struct watch w = fresh();
    int64_t until_ns = 0;
    pass(&w, KIND, 62 * US);
    pass(&w, KIND, 62 * US);
    for (int i = 0; i < 100; i++) {
        ck_assert(!vigil_looks(&w.vigil, w.now_ns += US, &until_ns));
        ck_assert_int_eq(until_ns, INT64_MAX);
    }
}
END_TEST

START_TEST(work_whose_like_nobody_has_seen_is_slept_through)
{
    struct watch w = fresh();
    pass(&w, KIND, 62 * US);
    ck_assert(w.asleep);
    ck_assert_int_eq(w.looked_ns, 0);
    pass(&w, OTHER, 62 * US);
    ck_assert(w.asleep);
    ck_assert_uint_eq(w.vigil.found_asleep, 2);
}
END_TEST

START_TEST(the_end_of_work_that_takes_as_long_as_its_like_is_seen)
{
    static const int64_t takes[] = {5 * US, 62 * US, 250 * US, 8000 * US, 2000000 * US};
    for (size_t i = 0; i < sizeof takes / sizeof *takes; i++) {
        struct watch w = fresh();
        for (int n = 0; n < 20; n++)
            pass(&w, KIND, takes[i] + n % 3 * US);
        ck_assert_msg(!w.asleep, "%lld ns", (long long)takes[i]);
        ck_assert_uint_ge(w.vigil.found_awake, 17);
        ck_assert_uint_eq(w.vigil.found_awake + w.vigil.found_asleep, 20);
    }
}
END_TEST

START_TEST(one_look_a_piece_of_work_is_as_long_as_the_spin_at_most)
{
    struct watch w = fresh();
    for (int n = 0; n < 400; n++) {
        pass(&w, n % 5 ? KIND : OTHER, (n * 7919 % 500 + 1) * US); // it never does what it did before
        ck_assert_int_le(w.looked_ns, SPIN + US);
    }
}
END_TEST

START_TEST(work_that_takes_longer_or_less_than_it_did_is_followed)
{
    struct watch w = fresh();
    for (int n = 0; n < 5; n++)
        pass(&w, KIND, 60 * US);
    for (int n = 0; n < 40; n++)
        pass(&w, KIND, 900 * US);
    ck_assert(!w.asleep);
    for (int n = 0; n < 5; n++)
        pass(&w, KIND, 60 * US);
    ck_assert(!w.asleep);
}
END_TEST

START_TEST(sleeps_that_last_too_long_are_begun_to_end_earlier)
{
    struct watch w = fresh();
    w.oversleeps_ns = 60 * US; // more than half a look
    for (int n = 0; n < 10; n++)
        pass(&w, KIND, 1000 * US);
    ck_assert(!w.asleep);
    w.oversleeps_ns = 5 * US;
    for (int n = 0; n < 60; n++)
        pass(&w, KIND, 1000 * US);
    ck_assert(!w.asleep);
    ck_assert_int_lt(w.vigil.late_ns, 10 * US);
}
END_TEST

START_TEST(one_sleep_that_lasts_longer_than_the_work_is_forgotten)
{
    struct watch w = fresh();
    pass(&w, OTHER, 10000 * US);
    w.oversleeps_ns = 5000 * US;
    pass(&w, OTHER, 10000 * US);
    w.oversleeps_ns = 0;
    ck_assert_int_eq(w.vigil.late_ns, 5000 * US);
    for (int n = 0; n < 80; n++)
        pass(&w, KIND, 62 * US);
    ck_assert(!w.asleep);
    ck_assert_int_lt(w.looked_ns, SPIN);
}
END_TEST

START_TEST(without_a_spin_nobody_looks_and_ends_are_counted)
{
    struct watch w = fresh();
    w.vigil.spin_ns = 0;
    for (int n = 0; n < 10; n++) {
        pass(&w, KIND, 62 * US);
        ck_assert_int_eq(w.looked_ns, 0);
    }
    ck_assert_uint_eq(w.vigil.found_asleep, 10);
}
END_TEST

// Work of a kind that is known begins.
static void begin_known(struct watch *w, int64_t takes_ns)
{
    for (int n = 0; n < 10; n++)
        pass(w, KIND, takes_ns);
    vigil_next(&w->vigil, 100, KIND, w->now_ns, false);
}

START_TEST(what_stood_behind_another_is_counted_from_the_other_ones_end)
{
    struct watch w = fresh();
    int64_t until_ns;
    pass(&w, KIND, 400 * US);
    begin_known(&w, 400 * US);
    vigil_next(&w.vigil, 101, KIND, w.now_ns + 400 * US, false); // which was there since 100 was
    ck_assert(!vigil_looks(&w.vigil, w.now_ns + 410 * US, &until_ns));
    ck_assert_int_gt(until_ns, w.now_ns + 700 * US);
    ck_assert_int_lt(until_ns, w.now_ns + 800 * US);
}
END_TEST

START_TEST(what_follows_is_kept_back_until_the_end_is_near_and_no_longer)
{
    struct watch w = fresh();
    int64_t until_ns, begin_ns = 0;
    begin_known(&w, 400 * US);
    begin_ns = w.now_ns;
    ck_assert(vigil_keep_back(&w.vigil, begin_ns + 10 * US));
    ck_assert(!vigil_looks(&w.vigil, begin_ns + 10 * US, &until_ns));
    ck_assert_int_gt(until_ns, begin_ns + 300 * US);
    ck_assert_int_lt(until_ns, begin_ns + 400 * US - SPIN / 2);
    ck_assert(vigil_keep_back(&w.vigil, until_ns - 1));
    ck_assert(!vigil_keep_back(&w.vigil, until_ns));
    for (int64_t now_ns = until_ns; now_ns < begin_ns + 400 * US; now_ns += US)
        ck_assert(vigil_looks(&w.vigil, now_ns, &(int64_t){0}));
    ck_assert(!vigil_keep_back(&w.vigil, until_ns));
}
END_TEST

START_TEST(who_has_let_go_what_was_kept_back_sleeps_as_if_nothing_had_been)
{
    struct watch w = fresh();
    int64_t kept_ns, until_ns;
    begin_known(&w, 400 * US);
    ck_assert(vigil_keep_back(&w.vigil, w.now_ns));
    ck_assert(!vigil_looks(&w.vigil, w.now_ns, &kept_ns));
    vigil_let_go(&w.vigil);
    ck_assert(!vigil_looks(&w.vigil, w.now_ns, &until_ns));
    ck_assert_int_gt(until_ns, kept_ns);
}
END_TEST

START_TEST(what_takes_long_to_prepare_is_kept_back_for_less_long)
{
    struct watch w = fresh();
    vigil_prepared(&w.vigil, 250 * US);
    begin_known(&w, 400 * US);
    ck_assert(vigil_keep_back(&w.vigil, w.now_ns + 50 * US));
    ck_assert(!vigil_keep_back(&w.vigil, w.now_ns + 150 * US));
    for (int n = 0; n < 40; n++)
        vigil_prepared(&w.vigil, 10 * US);
    vigil_next(&w.vigil, 101, KIND, w.now_ns + 400 * US, false);
    ck_assert(vigil_keep_back(&w.vigil, w.now_ns + (400 + 300) * US));
}
END_TEST

START_TEST(who_has_time_to_sleep_when_nothing_is_kept_back_any_more_sleeps)
{
    struct watch w = fresh();
    int64_t until_ns;
    vigil_prepared(&w.vigil, 20000 * US);
    begin_known(&w, 100000 * US);
    ck_assert(vigil_keep_back(&w.vigil, w.now_ns));
    ck_assert(!vigil_looks(&w.vigil, w.now_ns, &until_ns));
    const int64_t kept_ns = until_ns;
    ck_assert(!vigil_keep_back(&w.vigil, kept_ns));
    ck_assert(!vigil_looks(&w.vigil, kept_ns, &until_ns));
    ck_assert_int_gt(until_ns, kept_ns + 10000 * US);
}
END_TEST

// The clock goes on between the two questions.
START_TEST(the_end_of_keeping_back_is_the_keepers_to_say)
{
    struct watch w = fresh();
    int64_t until_ns;
    begin_known(&w, 400 * US);
    ck_assert(vigil_keep_back(&w.vigil, w.now_ns));
    ck_assert(!vigil_looks(&w.vigil, w.now_ns, &until_ns));
    ck_assert(vigil_looks(&w.vigil, until_ns + 1, &(int64_t){0}));
    ck_assert(!vigil_keep_back(&w.vigil, until_ns + 2));
    ck_assert(vigil_looks(&w.vigil, w.now_ns + 400 * US, &(int64_t){0}));
}
END_TEST

START_TEST(nothing_is_kept_back_behind_work_whose_end_nobody_knows_or_is_near)
{
    struct watch w = fresh();
    vigil_next(&w.vigil, 1, KIND, w.now_ns, false);
    ck_assert(!vigil_keep_back(&w.vigil, w.now_ns));
    vigil_next(&w.vigil, 0, 0, w.now_ns + 30 * US, false);
    vigil_next(&w.vigil, 2, KIND, w.now_ns + 50 * US, false);
    ck_assert(!vigil_keep_back(&w.vigil, w.now_ns + 50 * US)); // it takes 30 us in all
    vigil_next(&w.vigil, 0, 0, w.now_ns + 500 * US, false);
    ck_assert(!vigil_keep_back(&w.vigil, w.now_ns + 500 * US));
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        what_follows_is_kept_back_until_the_end_is_near_and_no_longer,
        who_has_let_go_what_was_kept_back_sleeps_as_if_nothing_had_been,
        what_takes_long_to_prepare_is_kept_back_for_less_long,
        who_has_time_to_sleep_when_nothing_is_kept_back_any_more_sleeps,
        the_end_of_keeping_back_is_the_keepers_to_say,
        nothing_is_kept_back_behind_work_whose_end_nobody_knows_or_is_near,
        with_nothing_under_way_nobody_looks,
        work_whose_like_nobody_has_seen_is_slept_through,
        the_end_of_work_that_takes_as_long_as_its_like_is_seen,
        one_look_a_piece_of_work_is_as_long_as_the_spin_at_most,
        work_that_takes_longer_or_less_than_it_did_is_followed,
        sleeps_that_last_too_long_are_begun_to_end_earlier,
        one_sleep_that_lasts_longer_than_the_work_is_forgotten,
        without_a_spin_nobody_looks_and_ends_are_counted,
        what_stood_behind_another_is_counted_from_the_other_ones_end,
        NULL,
    };
    Suite *suite = suite_create("vigil");
    check_case(suite, "vigil", NULL, NULL, tests, 1);
    return check_main(suite);
}
