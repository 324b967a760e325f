// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_scheduler_fairness.c - light sessions beside a heavy one: what they wait for, and that none of them is left behind.

#include "check_main.h"
#include "scheduler.h"
#include "scheduler_world.h"
#include "state.h"

enum { LIGHT = 2 * SCHEDULER_BUDGET / SCHEDULER_WORTH, BESIDE = SCHEDULER_HEAVIER * LIGHT, HEAVY = 2 * BESIDE };

static uint64_t light_a, light_b, heavy;

static uint64_t reader(struct worker *worker, const int32_t *ids, int32_t attended)
{
    return make_reader(worker, ids, attended > 4096 ? attended / 4096 : 1, attended > 4096 ? 4096 : attended);
}

static void open_unequal(void)
{
    open_three();
    light_a = reader(&a, blocks[0], LIGHT);
    light_b = reader(&b, blocks[1], LIGHT);
    heavy = reader(&c, blocks[2], HEAVY);
}

static uint64_t read_once(struct worker *worker, uint64_t batch, int32_t attended)
{
    return worker_run(worker, batch, 0, attended > 4096 ? (uint32_t)attended / 4096 : 1, NULL);
}

// Runs in each submission in flight, the oldest first; 0: there is none.
static void assert_in_flight(uint32_t first, uint32_t second)
{
    const struct fake_submission *oldest = fake_engine_oldest(world.engine);
    ck_assert_ptr_nonnull(oldest);
    ck_assert_uint_eq(oldest->num_runs, first);
    ck_assert_uint_eq(oldest->next ? oldest->next->num_runs : 0, second);
}

START_TEST(light_runs_on_an_idle_gpu_do_not_wait_for_a_heavy_one_which_goes_right_behind_them)
{
    uint64_t ta = read_once(&a, light_a, LIGHT), tb = read_once(&b, light_b, LIGHT), tc = read_once(&c, heavy, HEAVY);
    core_step(world.core);
    assert_in_flight(2, 1);
    finish_one();
    worker_reap(&a, ta, STATUS_OK);
    worker_reap(&b, tb, STATUS_OK);
    ck_assert_int_eq((int)ask(&c, tc), STATUS_TIMEOUT);
    finish_one();
    worker_reap(&c, tc, STATUS_OK);
}
END_TEST

START_TEST(behind_another_submission_light_and_heavy_go_together)
{
    run(&a, 0);
    core_step(world.core);
    read_once(&b, light_b, LIGHT);
    read_once(&c, heavy, HEAVY);
    core_step(world.core);
    assert_in_flight(1, 2);
    world_finish_all(&world);
}
END_TEST

START_TEST(a_run_that_is_not_much_heavier_goes_along)
{
    uint64_t beside = reader(&c, blocks[2], BESIDE);
    read_once(&a, light_a, LIGHT);
    read_once(&c, beside, BESIDE);
    core_step(world.core);
    assert_in_flight(2, 0);
    world_finish_all(&world);
}
END_TEST

START_TEST(light_ones_go_along_with_a_heavy_run_whose_turn_came_first)
{
    read_once(&c, heavy, HEAVY);
    read_once(&a, light_a, LIGHT);
    read_once(&b, light_b, LIGHT);
    core_step(world.core);
    assert_in_flight(3, 0);
    world_finish_all(&world);
}
END_TEST

START_TEST(a_sessions_own_light_and_heavy_runs_go_together_until_another_one_waits_for_the_light)
{
    uint64_t heavy_a = reader(&a, blocks[0], HEAVY);
    run(&a, 0);
    read_once(&a, heavy_a, HEAVY);
    core_step(world.core);
    assert_in_flight(2, 0);
    world_finish_all(&world);
    run(&a, 0);
    run(&b, 0);
    read_once(&a, heavy_a, HEAVY);
    core_step(world.core);
    assert_in_flight(2, 1);
    world_finish_all(&world);
}
END_TEST

START_TEST(what_takes_no_time_is_not_worth_a_submission_and_what_is_follows_the_device)
{
    enum { LITTLE = SCHEDULER_BUDGET / SCHEDULER_WORTH };
    uint64_t little = reader(&c, blocks[2], LITTLE);
    run(&a, 0); // of 64 tokens
    read_once(&c, little, LITTLE);
    core_step(world.core);
    assert_in_flight(2, 0);
    fake_engine_slow(world.engine, (uint64_t)SCHEDULER_TIME_NS * 1000);
    world_finish_all(&world);
    ck_assert_uint_lt(world.core->scheduler.budget, SCHEDULER_BUDGET);
    run(&a, 0);
    read_once(&c, little, LITTLE);
    core_step(world.core);
    assert_in_flight(1, 1);
    world_finish_all(&world);
}
END_TEST

// ---- over time: clients that wait for each run and think before the next; a token takes one tick of the GPU's ----

enum { THINK = HEAVY, END = 300 * HEAVY };
static const int64_t NEVER = INT64_MAX;

struct client {
    struct worker *worker;
    uint64_t batch, ticket;
    int32_t attended;
    int64_t asks_at, asked, waited, longest; // asks_at: NEVER while it waits
    int32_t served;
};

static void ask_or_think(struct client *client, int64_t now)
{
    if (client->asks_at <= now) {
        client->ticket = read_once(client->worker, client->batch, client->attended);
        client->asked = now;
        client->asks_at = NEVER;
    } else if (client->asks_at == NEVER && ask(client->worker, client->ticket) == STATUS_OK) {
        int64_t wait = now - client->asked;
        client->waited += wait;
        client->longest = wait > client->longest ? wait : client->longest;
        client->served++;
        client->asks_at = now + THINK;
    }
}

// When the GPU will be done with the oldest submission, begun now.
static int64_t end_of_oldest(int64_t now)
{
    const struct fake_submission *oldest = fake_engine_oldest(world.engine);
    for (uint32_t i = 0; oldest && i < oldest->num_runs; i++)
        now += oldest->runs[i].arena == c.arena ? HEAVY : LIGHT;
    return oldest ? now : NEVER;
}

static void live(struct client *clients, int count)
{
    int64_t now = 0, gpu_end = NEVER;
    while (now < END) {
        for (int i = 0; i < count; i++)
            ask_or_think(&clients[i], now);
        core_step(world.core);
        gpu_end = gpu_end == NEVER ? end_of_oldest(now) : gpu_end;
        int64_t next = gpu_end;
        for (int i = 0; i < count; i++)
            next = clients[i].asks_at < next ? clients[i].asks_at : next;
        now = next;
        if (now == gpu_end) {
            finish_one();
            gpu_end = end_of_oldest(now);
        }
    }
}

START_TEST(clients_in_step_with_a_heavy_one_do_not_stay_there_and_all_are_served_sooner)
{
    struct client clients[] = {
        {.worker = &a, .batch = light_a, .attended = LIGHT},
        {.worker = &b, .batch = light_b, .attended = LIGHT},
        {.worker = &c, .batch = heavy, .attended = HEAVY},
    };
    live(clients, 3);
    // Going together, each would wait for all three each time.
    const int32_t together = END / (THINK + HEAVY + 2 * LIGHT);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_le(clients[i].longest, HEAVY + 2 * LIGHT);
        ck_assert_int_le(clients[i].waited / clients[i].served, HEAVY + LIGHT);
        ck_assert_int_gt(clients[i].served, together + together / 10);
    }
    world_finish_all(&world);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("scheduler_fairness");
    const TTest *const apart[] = {
        light_runs_on_an_idle_gpu_do_not_wait_for_a_heavy_one_which_goes_right_behind_them,
        behind_another_submission_light_and_heavy_go_together,
        a_run_that_is_not_much_heavier_goes_along,
        light_ones_go_along_with_a_heavy_run_whose_turn_came_first,
        a_sessions_own_light_and_heavy_runs_go_together_until_another_one_waits_for_the_light,
        what_takes_no_time_is_not_worth_a_submission_and_what_is_follows_the_device,
        clients_in_step_with_a_heavy_one_do_not_stay_there_and_all_are_served_sooner,
        NULL,
    };
    check_case(suite, "apart", open_unequal, close_all, apart, 1);
    return check_main(suite);
}
