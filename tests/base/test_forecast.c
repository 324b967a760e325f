// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_forecast.c - how long work is expected to take, and when threads look for its end, sleep and
// wait, under a clock of the test's own. Two threads with the rules of real ones: the engine's
// completer, whose sleeps end at their time, and the daemon's dispatcher, whose sleeps end with the
// work.

#include "base/forecast.h"
#include "rigs/check_main.h"

enum { US = 1000, LOOK = 100 * US, SPIN = 50 * US, A_LOOK = 200, KIND = 7, OTHER = 8 };

// A thread that has nothing else to do, and what it did for the last work.
struct thread {
    struct forecast_watch watch;
    int64_t now_ns, end_ns;
    int64_t oversleeps_ns; // each sleep that ends at its time is so much longer
    int64_t wake_delay_ns; // a thread that is woken goes on so long after the end
    int64_t pause_ns;      // between two pieces of work
    int64_t looked_ns, slept_ns;
    uint32_t waits;
    bool woken;
    bool is_lost; // waits end at once, without an end of the work
};

static struct thread completer(void)
{
    return (struct thread){
        .watch = {.times = {.num_kinds = 256, .caution = 8},
                  .look_ns = LOOK,
                  .longest_ns = 16 * LOOK,
                  .wake_delay_ns = LOOK / 4,
                  .looks_at_unknown = true,
                  .sleep_ignores_end = true},
        .now_ns = 1000000,
        .wake_delay_ns = 25 * US,
    };
}

static struct thread dispatcher(void)
{
    return (struct thread){
        .watch = {.times = {.num_kinds = 64, .caution = 4},
                  .look_ns = SPIN,
                  .wake_delay_ns = SPIN / 2},
        .now_ns = 1000000,
        .wake_delay_ns = 35 * US,
        .pause_ns = 10 * US,
    };
}

static void sleep_until(struct thread *t, int64_t until_ns)
{
    const bool ends_itself =
        until_ns < FOREVER && (t->watch.sleep_ignores_end || until_ns < t->end_ns);
    const int64_t begun_ns = t->now_ns,
                  end_ns = begun_ns < t->end_ns ? t->end_ns + t->wake_delay_ns : begun_ns;
    t->now_ns = ends_itself ? until_ns + t->oversleeps_ns : end_ns;
    t->slept_ns += ends_itself ? t->now_ns - begun_ns : 0;
    t->waits += until_ns == FOREVER;
    t->woken = t->now_ns >= t->end_ns && !(t->watch.sleep_ignores_end && ends_itself);
}

static int64_t now_ns(void *thread)
{
    return ((const struct thread *)thread)->now_ns;
}

static bool look(void *thread)
{
    struct thread *t = thread;
    t->now_ns += A_LOOK;
    t->looked_ns += A_LOOK;
    return t->now_ns >= t->end_ns;
}

static void sleep_blindly(void *thread, int64_t until_ns)
{
    sleep_until(thread, until_ns);
}

static bool wait_for_end(void *thread)
{
    struct thread *t = thread;
    sleep_until(t, FOREVER);
    return !t->is_lost;
}

static const struct forecast_waiter waiter = {now_ns, look, sleep_blindly, wait_for_end};

// The dispatcher's loop has more to do than this: see daemon/server/wait.c.
static void await_among_others(struct thread *t, uint64_t kind, int64_t sent_ns)
{
    bool seen = false;
    forecast_watch_begin(&t->watch, kind, sent_ns);
    while (!seen && !t->woken) {
        const int64_t wake_ns = forecast_watch_wake_ns(&t->watch, t->now_ns);
        if (wake_ns > t->now_ns) {
            sleep_until(t, wake_ns);
            forecast_watch_slept(&t->watch, wake_ns, t->now_ns);
        } else {
            seen = look(t);
        }
    }
    forecast_watch_end(&t->watch, t->now_ns, t->woken);
}

// Work that was sent at `sent_ns` ends at t->end_ns; returns how much later the thread notices.
static int64_t await(struct thread *t, uint64_t kind, int64_t sent_ns)
{
    t->looked_ns = t->slept_ns = t->waits = 0;
    t->woken = false;
    if (t->watch.sleep_ignores_end)
        ck_assert(forecast_watch_await(&t->watch, kind, sent_ns, &waiter, t));
    else
        await_among_others(t, kind, sent_ns);
    const int64_t late_ns = t->now_ns - t->end_ns;
    ck_assert_int_ge(late_ns, 0);
    t->now_ns += t->pause_ns;
    return late_ns;
}

// Work that is sent now.
static int64_t pass(struct thread *t, uint64_t kind, int64_t takes_ns)
{
    t->end_ns = t->now_ns + takes_ns;
    return await(t, kind, t->now_ns);
}

static int64_t pass_times(struct thread *t, int times, int64_t takes_ns)
{
    int64_t late_ns = 0;
    for (int i = 0; i < times; i++)
        late_ns = pass(t, KIND, takes_ns);
    return late_ns;
}

// ---- how long ----

static struct forecast batches(void)
{
    return (struct forecast){.num_kinds = 16, .caution = 4};
}

START_TEST(a_kind_that_never_ran_has_no_forecast)
{
    const struct forecast forecast = batches();
    ck_assert_int_eq(forecast_time(&forecast, 0), 0);
    ck_assert_int_eq(forecast_end(&forecast, 7, 5), 0);
}
END_TEST

START_TEST(a_shorter_time_is_believed_at_once_and_a_longer_one_in_part)
{
    struct forecast forecast = batches();
    forecast_learn(&forecast, 7, 800);
    ck_assert_int_eq(forecast_end(&forecast, 7, 5000), 5800);
    forecast_learn(&forecast, 7, 1200);
    ck_assert_int_eq(forecast_end(&forecast, 7, 5000), 5900);
    forecast_learn(&forecast, 7, 100);
    ck_assert_int_eq(forecast_end(&forecast, 7, 5000), 5100);
    forecast.caution = 8;
    forecast_learn(&forecast, 7, 900);
    ck_assert_int_eq(forecast_time(&forecast, 7), 200);
}
END_TEST

START_TEST(two_kinds_in_one_place_forget_each_other)
{
    struct forecast forecast = batches();
    forecast_learn(&forecast, 7, 100);
    ck_assert_int_eq(forecast_time(&forecast, 7 + 16), 0);
    forecast_learn(&forecast, 7 + 16, 50);
    ck_assert_int_eq(forecast_time(&forecast, 7), 0);
    ck_assert_int_eq(forecast_time(&forecast, 7 + 16), 50);
}
END_TEST

START_TEST(a_table_without_rules_has_all_places_and_believes_each_time)
{
    struct forecast forecast = {.num_kinds = 0};
    forecast_learn(&forecast, 7, 100);
    forecast_learn(&forecast, 7, 300);
    ck_assert_int_eq(forecast_time(&forecast, 7), 300);
    forecast_learn(&forecast, 7 + FORECAST_KINDS - 1, 50);
    ck_assert_int_eq(forecast_time(&forecast, 7), 300);
    forecast.num_kinds = UINT32_MAX; // more than there are places
    forecast_learn(&forecast, 1000, 20);
    ck_assert_int_eq(forecast_time(&forecast, 1000), 20);
}
END_TEST

// ---- by ticket ----

START_TEST(a_ticket_is_forecast_from_its_own_start)
{
    struct forecast_tickets tickets = {.times = batches()};
    ck_assert_int_eq(forecast_ticket_end(&tickets, 0), 0);
    forecast_ticket_began(&tickets, 1, 7, 1000);
    ck_assert_int_eq(forecast_ticket_end(&tickets, 1), 0);
    forecast_ticket_ended(&tickets, 1, 1010, 1500);
    forecast_ticket_began(&tickets, 2, 7, 3000);
    ck_assert_int_eq(forecast_ticket_end(&tickets, 2), 3500);
    ck_assert_int_eq(forecast_ticket_end(&tickets, 2 + FORECAST_TICKETS), 0);
}
END_TEST

START_TEST(an_end_that_is_noticed_late_is_only_an_upper_bound)
{
    struct forecast_tickets tickets = {.times = batches()};
    forecast_ticket_began(&tickets, 1, 7, 1000);
    forecast_ticket_ended(&tickets, 1, 6000, 6030);
    ck_assert_int_eq(forecast_time(&tickets.times, 7), 0);
    forecast_ticket_began(&tickets, 2, 7, 10000);
    forecast_ticket_ended(&tickets, 2, 10010, 10800);
    forecast_ticket_began(&tickets, 3, 7, 20000);
    forecast_ticket_ended(&tickets, 3, 25000, 25030);
    ck_assert_int_eq(forecast_time(&tickets.times, 7), 800);
    forecast_ticket_began(&tickets, 4, 7, 30000);
    forecast_ticket_ended(&tickets, 4, 30480, 30500);
    ck_assert_int_eq(forecast_time(&tickets.times, 7), 500);
}
END_TEST

// ---- the completer ----

START_TEST(short_work_is_seen_at_once)
{
    struct thread t = completer();
    for (int i = 0; i < 3; i++) {
        ck_assert_int_le(pass(&t, KIND, 15 * US), A_LOOK);
        ck_assert_int_eq(t.slept_ns + t.waits, 0);
    }
}
END_TEST

START_TEST(no_look_is_longer_than_is_allowed)
{
    struct thread t = completer();
    pass(&t, KIND, 100000 * US);
    ck_assert_int_le(t.looked_ns, LOOK + A_LOOK);
    ck_assert_uint_eq(t.waits, 1);
    for (int64_t takes_us = 1; takes_us < 20000; takes_us += takes_us / 7 + 1) {
        pass(&t, KIND + (uint64_t)takes_us % 5, takes_us * US);
        ck_assert_int_le(t.looked_ns, LOOK + A_LOOK);
    }
}
END_TEST

START_TEST(known_work_is_slept_through_until_shortly_before_its_end)
{
    struct thread t = completer();
    pass(&t, KIND, 1000 * US); // unknown: noticed late
    for (int i = 0; i < 20; i++) {
        ck_assert_int_le(pass(&t, KIND, (1000 + i % 3 * 10) * US), A_LOOK);
        ck_assert_uint_eq(t.waits, 0);
        ck_assert_int_ge(t.slept_ns, 900 * US);
    }
}
END_TEST

START_TEST(work_that_takes_too_long_is_waited_for_without_a_look)
{
    struct thread t = completer();
    pass_times(&t, 2, 10000 * US);
    ck_assert_int_eq(t.looked_ns + t.slept_ns, 0);
    ck_assert_uint_eq(t.waits, 1);
}
END_TEST

START_TEST(work_that_becomes_shorter_or_longer_is_seen_again)
{
    static const int64_t changes[][2] = {{800, 300}, {300, 800}, {250, 251},
                                         {1500, 20}, {20, 1500}, {9000, 90}};
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        struct thread t = completer();
        pass_times(&t, 5, changes[i][0] * US);
        ck_assert_int_le(pass_times(&t, 60, changes[i][1] * US), A_LOOK);
        ck_assert_uint_eq(t.waits, 0);
    }
}
END_TEST

START_TEST(one_that_took_long_does_not_make_the_next_ones_late)
{
    struct thread t = completer();
    pass_times(&t, 5, 200 * US);
    pass(&t, KIND, 500 * US); // other processes had the GPU
    ck_assert_int_le(pass(&t, KIND, 200 * US), A_LOOK);
    pass(&t, KIND, 1500 * US);
    pass(&t, KIND, 200 * US); // late, by an eighth of that
    ck_assert_int_le(pass(&t, KIND, 200 * US), t.wake_delay_ns);
    ck_assert_int_le(pass(&t, KIND, 200 * US), A_LOOK);
}
END_TEST

START_TEST(a_clock_that_wakes_late_is_allowed_for)
{
    struct thread t = completer();
    t.oversleeps_ns = 70 * US;
    ck_assert_int_le(pass_times(&t, 60, 400 * US), 25 * US);
    ck_assert_uint_eq(t.waits, 0);
}
END_TEST

START_TEST(one_late_sleep_is_forgotten)
{
    struct thread t = completer();
    pass_times(&t, 5, 400 * US);
    t.oversleeps_ns = 2000 * US;
    pass(&t, KIND, 400 * US);
    t.oversleeps_ns = 0;
    ck_assert_int_le(pass_times(&t, 60, 400 * US), A_LOOK);
    ck_assert_uint_eq(t.waits, 0);
    ck_assert_int_gt(t.slept_ns, 0);
}
END_TEST

START_TEST(queued_work_is_timed_from_the_end_of_the_work_before_it)
{
    struct thread t = completer();
    const int64_t sent_ns = t.now_ns;
    for (int i = 0; i < 20; i++) { // all were sent at once
        t.end_ns = sent_ns + (i + 1) * 300 * US;
        await(&t, KIND, sent_ns);
        if (i > 2)
            ck_assert_uint_eq(t.waits, 0);
    }
}
END_TEST

START_TEST(without_polling_threads_only_block)
{
    struct thread t = completer();
    t.watch.look_ns = 0;
    for (int i = 0; i < 3; i++) {
        pass(&t, KIND, 15 * US);
        ck_assert_int_eq(t.looked_ns + t.slept_ns, 0);
        ck_assert_uint_eq(t.waits, 1);
    }
}
END_TEST

START_TEST(work_that_never_ends_is_looked_for_then_given_up_and_teaches_nothing)
{
    struct thread t = completer();
    pass_times(&t, 5, 200 * US);
    const int64_t known_ns = forecast_time(&t.watch.times, KIND);
    t.end_ns = t.now_ns + 100000 * US;
    t.is_lost = true;
    t.looked_ns = t.waits = 0;
    ck_assert(!forecast_watch_await(&t.watch, KIND, t.now_ns, &waiter, &t));
    ck_assert_int_gt(t.looked_ns, 0);
    ck_assert_int_le(t.looked_ns, LOOK + A_LOOK);
    ck_assert_uint_eq(t.waits, 1);
    ck_assert_int_eq(forecast_time(&t.watch.times, KIND), known_ns);
}
END_TEST

// ---- the dispatcher ----

START_TEST(without_work_in_flight_there_is_no_polling)
{
    struct thread t = dispatcher();
    pass_times(&t, 2, 62 * US);
    for (int i = 0; i < 100; i++)
        ck_assert(forecast_watch_wake_ns(&t.watch, t.now_ns += US) == FOREVER);
}
END_TEST

START_TEST(unknown_work_is_slept_through)
{
    struct thread t = dispatcher();
    pass(&t, KIND, 62 * US);
    ck_assert(t.woken);
    ck_assert_int_eq(t.looked_ns, 0);
    pass(&t, OTHER, 62 * US);
    ck_assert(t.woken);
}
END_TEST

START_TEST(the_end_of_work_that_takes_as_long_as_its_like_is_seen)
{
    static const int64_t takes_us[] = {5, 62, 250, 8000, 2000000};
    for (size_t i = 0; i < sizeof takes_us / sizeof *takes_us; i++) {
        struct thread t = dispatcher();
        int seen = 0;
        for (int n = 0; n < 20; n++) {
            pass(&t, KIND, (takes_us[i] + n % 3) * US);
            seen += !t.woken;
        }
        ck_assert_msg(!t.woken, "%lld us", (long long)takes_us[i]);
        ck_assert_int_ge(seen, 17);
    }
}
END_TEST

START_TEST(one_look_a_piece_of_work_is_as_long_as_the_spin_at_most)
{
    struct thread t = dispatcher();
    for (int n = 0; n < 400; n++) {
        pass(&t, n % 5 ? KIND : OTHER,
             (n * 7919 % 500 + 1) * US); // it never does what it did before
        ck_assert_int_le(t.looked_ns, SPIN + A_LOOK);
    }
}
END_TEST

START_TEST(work_that_takes_longer_or_less_than_it_did_is_followed)
{
    struct thread t = dispatcher();
    pass_times(&t, 5, 60 * US);
    pass_times(&t, 40, 900 * US);
    ck_assert(!t.woken);
    pass_times(&t, 5, 60 * US);
    ck_assert(!t.woken);
}
END_TEST

// Of 100 pieces of work in a row, every third one is `late_ns` longer. How many of these ends found
// the thread asleep, after it has learned.
static int ends_asleep(int64_t spin_ns, int64_t late_ns)
{
    struct thread t = dispatcher();
    int count = 0;
    t.watch.look_ns = spin_ns;
    t.watch.wake_delay_ns = spin_ns / 2;
    for (int i = 0; i < 100; i++) {
        pass(&t, KIND, 60 * US + (i % 3 == 2 ? late_ns : 0));
        count += i >= 10 && t.woken;
    }
    return count;
}

// This is what docs/performance.md says of the ring lane.
START_TEST(an_end_later_than_half_a_spin_after_the_shortest_finds_the_thread_asleep)
{
    ck_assert_int_eq(ends_asleep(SPIN, SPIN / 2 - 5 * US), 0);
    ck_assert_int_eq(ends_asleep(SPIN, SPIN / 2 + 15 * US), 30);
    ck_assert_int_eq(ends_asleep(2 * SPIN, SPIN / 2 + 15 * US), 0);
    ck_assert_int_eq(ends_asleep(4 * SPIN, SPIN + 20 * US), 0);
}
END_TEST

START_TEST(sleeps_that_last_too_long_are_begun_to_end_earlier)
{
    struct thread t = dispatcher();
    t.oversleeps_ns = 60 * US; // more than half a look
    pass_times(&t, 10, 1000 * US);
    ck_assert(!t.woken);
    t.oversleeps_ns = 5 * US;
    pass_times(&t, 60, 1000 * US);
    ck_assert(!t.woken);
    ck_assert_int_lt(t.watch.late_ns, 10 * US);
}
END_TEST

START_TEST(one_sleep_that_lasts_longer_than_the_work_is_forgotten)
{
    struct thread t = dispatcher();
    pass(&t, OTHER, 10000 * US);
    t.oversleeps_ns = 5000 * US;
    pass(&t, OTHER, 10000 * US);
    t.oversleeps_ns = 0;
    ck_assert_int_eq(t.watch.late_ns, 5000 * US);
    pass_times(&t, 80, 62 * US);
    ck_assert(!t.woken);
    ck_assert_int_lt(t.looked_ns, SPIN);
}
END_TEST

START_TEST(without_spinning_there_is_no_polling)
{
    struct thread t = dispatcher();
    t.watch.look_ns = 0;
    for (int n = 0; n < 10; n++) {
        pass(&t, KIND, 62 * US);
        ck_assert_int_eq(t.looked_ns, 0);
        ck_assert(t.woken);
    }
}
END_TEST

START_TEST(queued_work_begins_when_the_work_before_it_ends)
{
    struct thread t = dispatcher();
    pass_times(&t, 11, 400 * US);
    forecast_watch_begin(&t.watch, KIND, t.now_ns);
    forecast_watch_end(&t.watch, t.now_ns + 400 * US, false);
    forecast_watch_begin(&t.watch, KIND, t.now_ns); // was there since then
    const int64_t wake_ns = forecast_watch_wake_ns(&t.watch, t.now_ns + 410 * US);
    ck_assert_int_gt(wake_ns, t.now_ns + 700 * US);
    ck_assert_int_lt(wake_ns, t.now_ns + 800 * US);
}
END_TEST

START_TEST(by_itself_a_thread_looks_only_with_cores_to_spare)
{
    ck_assert_int_eq(forecast_look_ns(LOOK, 4, 4), LOOK);
    ck_assert_int_eq(forecast_look_ns(LOOK, 3, 4), 0);
}
END_TEST

int main(void)
{
    const TTest *const times[] = {
        a_kind_that_never_ran_has_no_forecast,
        a_shorter_time_is_believed_at_once_and_a_longer_one_in_part,
        two_kinds_in_one_place_forget_each_other,
        a_table_without_rules_has_all_places_and_believes_each_time,
        a_ticket_is_forecast_from_its_own_start,
        an_end_that_is_noticed_late_is_only_an_upper_bound,
        NULL,
    };
    const TTest *const deaf[] = {
        short_work_is_seen_at_once,
        no_look_is_longer_than_is_allowed,
        known_work_is_slept_through_until_shortly_before_its_end,
        work_that_takes_too_long_is_waited_for_without_a_look,
        work_that_becomes_shorter_or_longer_is_seen_again,
        one_that_took_long_does_not_make_the_next_ones_late,
        a_clock_that_wakes_late_is_allowed_for,
        one_late_sleep_is_forgotten,
        queued_work_is_timed_from_the_end_of_the_work_before_it,
        without_polling_threads_only_block,
        work_that_never_ends_is_looked_for_then_given_up_and_teaches_nothing,
        NULL,
    };
    const TTest *const woken[] = {
        without_work_in_flight_there_is_no_polling,
        unknown_work_is_slept_through,
        the_end_of_work_that_takes_as_long_as_its_like_is_seen,
        one_look_a_piece_of_work_is_as_long_as_the_spin_at_most,
        work_that_takes_longer_or_less_than_it_did_is_followed,
        an_end_later_than_half_a_spin_after_the_shortest_finds_the_thread_asleep,
        sleeps_that_last_too_long_are_begun_to_end_earlier,
        one_sleep_that_lasts_longer_than_the_work_is_forgotten,
        without_spinning_there_is_no_polling,
        queued_work_begins_when_the_work_before_it_ends,
        by_itself_a_thread_looks_only_with_cores_to_spare,
        NULL,
    };
    Suite *suite = suite_create("forecast");
    check_case(suite, "times", NULL, NULL, times, 1);
    check_case(suite, "completer", NULL, NULL, deaf, 1);
    check_case(suite, "dispatcher", NULL, NULL, woken, 1);
    return check_main(suite);
}
