// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_ring_model.c - the ring protocol in every schedule (ring_explorer.h). Both ends use it as
// libaule-client and the daemon do.

#include "rigs/check_main.h"
#include "rigs/ring_explorer.h"

enum { ANSWER = 100 };

// ---- the client library's ends, as client/src/link/lane.c uses the ring ----

// With the lock held: takes all posted answers, also those for other threads.
static void drain(void)
{
    uint32_t completion;
    enum ring_look look;
    while ((look = ring_consume(&world.client, &completion)) == RING_TAKEN) {
        uint32_t request = completion - ANSWER;
        if (request >= MAX_REQUESTS || world.answers[request])
            fail_with("an answer that nobody waits for, or for the second time");
        else
            world.answers[request] = completion;
    }
    if (look == RING_BROKEN)
        fail_with("the client takes the ring for broken");
}

// With the lock held; it is released during the wait. False: interrupted.
static bool wait_for_news(void)
{
    uint32_t consumed = world.client.consumed;
    observe(consumed);
    unlock();
    ring_sleep(&world.client, consumed, NULL);
    bool goes_on = !ring_interrupted(&world.client);
    lock();
    return goes_on;
}

static bool is_full(void)
{
    bool full = world.num_submitted - world.client.consumed >= scenario.num_entries;
    observe(full);
    return full;
}

static bool is_over(void)
{
    observe(world.over);
    return world.over;
}

// With the lock held. False: there will be no answer. *bell: the daemon needs the doorbell.
static bool submit(uint32_t round, uint32_t *number, bool *bell)
{
    *bell = false;
    for (forget_but(1, round, 0); is_full(); forget_but(1, round, 0)) {
        drain();
        if (is_full() && !wait_for_news())
            return false;
    }
    if (is_over())
        return false;
    *number = world.num_submitted++;
    observe(*number);
    if (!ring_submit(&world.client, number))
        fail_with("a ring that had room had none");
    enum ring_ear ear = ring_ear(&world.client);
    world.over = ear == RING_OVER;
    *bell = ear == RING_ASLEEP;
    return !world.over;
}

static bool await_answer(uint32_t round, uint32_t number)
{
    bool goes_on = true;
    lock();
    for (;;) {
        forget_but(2, round, number << 1 | goes_on);
        drain();
        observe(world.answers[number]);
        if (world.answers[number] || !goes_on)
            break;
        goes_on = wait_for_news();
    }
    bool answered = world.answers[number] == number + ANSWER;
    unlock();
    return answered;
}

void run_client(void)
{
    for (uint32_t i = 0; i < scenario.num_requests && !failure; i++) {
        uint32_t number;
        lock();
        bool bell, submitted = submit(i, &number, &bell);
        unlock();
        if (bell)
            bell_ring();
        if (submitted && !await_answer(i, number) && !scenario.interrupts)
            fail_with("an answer is lost or spoilt");
    }
}

// A thread that submits as many requests as fit before it waits for any.
void run_eager_client(void)
{
    uint32_t numbers[MAX_REQUESTS], count = 0;
    for (bool bell; count < scenario.num_requests && submit(count, &numbers[count], &bell);
         count++) {
        if (bell)
            bell_ring();
    }
    for (uint32_t i = 0; i < count; i++) {
        if (!await_answer(i, numbers[i]) && !scenario.interrupts)
            fail_with("an answer is lost or spoilt");
    }
}

void run_interrupter(void)
{
    ring_interrupt(&world.client);
}

// ---- the daemon's end, as daemon/server/lane.c uses it ----

static void take_all(uint32_t *next, uint32_t all, int64_t *kept)
{
    uint32_t request, completion;
    enum ring_look look;
    bool sleeper = false;
    for (;;) {
        forget_but(3, *next, (uint32_t)*kept);
        look = ring_take(&world.daemon, &request);
        if (look == RING_NOTHING || failure)
            break;
        if (look == RING_BROKEN || request != *next)
            fail_with("a request is lost, doubled or spoilt");
        ++*next;
        if (scenario.keeps_one && *next % 2 && *next < all) {
            *kept = request;
            continue;
        }
        completion = request + ANSWER;
        sleeper |= ring_put(&world.daemon, &completion);
        if (*kept < 0)
            continue;
        completion = (uint32_t)*kept + ANSWER; // answers out of order
        *kept = -1;
        sleeper |= ring_put(&world.daemon, &completion);
    }
    if (sleeper)
        ring_wake_sleepers(&world.daemon);
}

// As lane_close() does.
static void finish(uint32_t next)
{
    uint32_t request, completion;
    ring_finish(&world.daemon);
    for (uint32_t i = 0;
         i < scenario.num_entries && ring_take(&world.daemon, &request) == RING_TAKEN; i++) {
        if (request != next++)
            fail_with("a request is lost, doubled or spoilt at the end");
        completion = request + ANSWER;
        ring_post(&world.daemon, &completion);
    }
}

void run_daemon(void)
{
    const uint32_t all =
        scenario.finishes ? scenario.last : scenario.num_clients * scenario.num_requests;
    uint32_t next = 0;
    int64_t kept = -1;
    while (next < all && !failure) {
        forget_but(4, next, (uint32_t)kept);
        bell_await();
        if (!ring_has_news(&world.daemon))
            continue; // as if another session's doorbell had rung
        ring_wake_up(&world.daemon);
        do
            take_all(&next, all, &kept);
        while (next < all && !failure && !ring_fall_asleep(&world.daemon));
    }
    if (scenario.finishes)
        finish(next);
}

// ---- the tests ----

static void expect_good(const struct scenario *which)
{
    const char *what = explore(which);
    ck_assert_msg(!what, "%s", what);
}

START_TEST(a_ring_of_one_entry_loses_and_doubles_nothing)
{
    expect_good(&(struct scenario){
        .num_entries = 1, .num_requests = 3, .num_clients = 1, .has_daemon = true});
}
END_TEST

START_TEST(a_ring_of_two_entries_loses_and_doubles_nothing)
{
    expect_good(&(struct scenario){
        .num_entries = 2, .num_requests = 3, .num_clients = 1, .has_daemon = true});
}
END_TEST

START_TEST(answers_may_come_in_another_order)
{
    expect_good(&(struct scenario){.num_entries = 2,
                                   .num_requests = 3,
                                   .num_clients = 1,
                                   .has_daemon = true,
                                   .keeps_one = true});
}
END_TEST

START_TEST(two_threads_share_a_full_ring)
{
    expect_good(&(struct scenario){
        .num_entries = 1, .num_requests = 1, .num_clients = 2, .has_daemon = true});
}
END_TEST

START_TEST(two_threads_share_a_ring_with_room)
{
    expect_good(&(struct scenario){
        .num_entries = 2, .num_requests = 1, .num_clients = 2, .has_daemon = true});
}
END_TEST

START_TEST(an_interrupt_wakes_whoever_waits_for_a_daemon_that_is_gone)
{
    expect_good(&(struct scenario){
        .num_entries = 1, .num_requests = 1, .num_clients = 2, .interrupts = true});
}
END_TEST

START_TEST(an_interrupt_may_come_between_any_two_steps)
{
    expect_good(&(struct scenario){.num_entries = 2,
                                   .num_requests = 1,
                                   .num_clients = 1,
                                   .has_daemon = true,
                                   .interrupts = true});
}
END_TEST

// Each thread that does not know yet that the ring is closed gets an answer.
START_TEST(when_a_daemon_ends_the_ring_no_thread_keeps_waiting)
{
    for (uint32_t last = 0; last < 3; last++) {
        expect_good(&(struct scenario){.num_entries = 2,
                                       .num_requests = 3,
                                       .num_clients = 1,
                                       .has_daemon = true,
                                       .finishes = true,
                                       .last = last});
        expect_good(&(struct scenario){.num_entries = 2,
                                       .num_requests = 1,
                                       .num_clients = 2,
                                       .has_daemon = true,
                                       .finishes = true,
                                       .last = last});
    }
}
END_TEST

// Checks that the explorer finds the errors that it is meant to find.
START_TEST(without_its_fences_the_protocol_loses_a_wake_up)
{
    const char *what = explore(&(struct scenario){.num_entries = 1,
                                                  .num_requests = 2,
                                                  .num_clients = 1,
                                                  .has_daemon = true,
                                                  .without_fence = true});
    ck_assert_ptr_nonnull(what);
    ck_assert_str_eq(what, "nobody can go on: a wake-up is lost");
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        a_ring_of_one_entry_loses_and_doubles_nothing,
        a_ring_of_two_entries_loses_and_doubles_nothing,
        answers_may_come_in_another_order,
        two_threads_share_a_full_ring,
        two_threads_share_a_ring_with_room,
        an_interrupt_wakes_whoever_waits_for_a_daemon_that_is_gone,
        an_interrupt_may_come_between_any_two_steps,
        when_a_daemon_ends_the_ring_no_thread_keeps_waiting,
        without_its_fences_the_protocol_loses_a_wake_up,
    };
    Suite *suite = suite_create("ring model");
    TCase *group = tcase_create("every schedule");
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        tcase_add_test(group, tests[i]);
    suite_add_tcase(suite, group);
    return check_main(suite);
}
