// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_expect.c - how long the engine's threads poll for a submission that was announced. No
// device, no second thread: the test polls, and the linker replaces the clock. Each look at the
// clock takes a nanosecond, and what other threads do happens then, as the test has planned it.

#include "engine/state/event.h"
#include "engine/state/state.h"
#include "rigs/check_main.h"

enum { LOOK = 20, LONG = 100000 };

static struct engine engine;

// Times in ns from the beginning.
static struct plan {
    int64_t announce_from, announce_to; // engine_expect() is called at each of these times
    int64_t looking_to;                 // until then the completer polls the GPU
    int64_t submit_at;                  // 0: nothing comes
} plan;
static int64_t now_ns;

int64_t __wrap_clock_now_ns(void);

int64_t __wrap_clock_now_ns(void)
{
    ck_assert_int_lt(now_ns, LONG); // it polls without end
    if (now_ns >= plan.announce_from && now_ns < plan.announce_to)
        engine_expect(&engine);
    atomic_store(&engine.looking, now_ns < plan.looking_to);
    if (plan.submit_at && now_ns == plan.submit_at)
        atomic_fetch_add(&engine.num_queued, 1);
    return now_ns++;
}

// Polls as planned. Returns for how long.
static int64_t look_out(struct plan planned, int64_t most_ns)
{
    plan = planned;
    now_ns = 0;
    pthread_mutex_lock(&engine.lock);
    const int64_t took_ns = engine_look_out(&engine, &engine.num_queued, most_ns);
    pthread_mutex_unlock(&engine.lock);
    return took_ns;
}

static void open_engine(void)
{
    struct error error;
    engine.watch.look_ns = LOOK;
    ck_assert_int_eq(engine_locks_init(&engine, &error), STATUS_OK);
}

static void close_engine(void)
{
    engine_locks_finish(&engine);
}

// As a client does that advances its batches and runs nothing.
START_TEST(announcements_without_end_end_the_polling)
{
    const int64_t patience_ns = engine_patience_ns(&engine);
    const struct plan planned = {.announce_to = LONG};
    ck_assert_int_eq(patience_ns, 4 * LOOK);
    ck_assert_int_eq(look_out(planned, patience_ns), patience_ns);
    ck_assert_int_eq(look_out(planned, LOOK + 3), LOOK + 3);
    ck_assert_int_eq(look_out(planned, LOOK / 2), LOOK / 2); // what is left of the patience
}
END_TEST

START_TEST(one_look_is_enough_if_nothing_is_announced)
{
    ck_assert_int_eq(look_out((struct plan){.announce_to = 0}, LONG), LOOK);
    ck_assert_int_eq(look_out((struct plan){.announce_to = 0}, LOOK - 1), LOOK - 1);
}
END_TEST

START_TEST(an_announcement_is_worth_one_look)
{
    const struct plan planned = {.announce_from = 12, .announce_to = 13};
    ck_assert_int_eq(look_out(planned, LONG), 12 + LOOK);
    ck_assert_int_eq(look_out(planned, LOOK + 5), LOOK + 5);
}
END_TEST

START_TEST(a_submission_ends_the_polling_at_once)
{
    ck_assert_int_eq(look_out((struct plan){.submit_at = 7}, LONG), 7);
    ck_assert_int_eq(look_out((struct plan){.announce_to = LONG, .submit_at = 55}, LONG), 55);
}
END_TEST

// The time for announcements begins when the GPU's work has ended.
START_TEST(while_the_completer_polls_the_gpu_no_patience_is_used)
{
    enum { BUSY = 500 };
    struct plan planned = {.looking_to = BUSY};
    ck_assert_int_eq(look_out(planned, 4 * LOOK), LOOK);
    ck_assert_int_eq(now_ns, BUSY + LOOK);
    planned.announce_to = LONG;
    ck_assert_int_eq(look_out(planned, 4 * LOOK), 4 * LOOK);
    ck_assert_int_eq(now_ns, BUSY + 4 * LOOK);
}
END_TEST

START_TEST(without_polling_an_announcement_costs_nothing)
{
    engine.watch.look_ns = 0;
    engine_expect(&engine);
    ck_assert_uint_eq(atomic_load(&engine.num_expected), 0);
    ck_assert_int_eq(engine_patience_ns(&engine), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("expect");
    const TTest *const polling[] = {
        announcements_without_end_end_the_polling,
        one_look_is_enough_if_nothing_is_announced,
        an_announcement_is_worth_one_look,
        a_submission_ends_the_polling_at_once,
        while_the_completer_polls_the_gpu_no_patience_is_used,
        without_polling_an_announcement_costs_nothing,
        NULL,
    };
    check_case(suite, "polling", open_engine, close_engine, polling, 1);
    return check_main(suite);
}
