// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_gather.c - which runs wait for sessions that are about to read the same prompt, and for how
// long. Most tests simulate a GPU and sessions with one run at a time (crowd_world.h).

#include "base/clock.h"
#include "core/gather.h"
#include "core/pool/salt.h"
#include "core/pool/tenant.h"
#include "core/state.h"
#include "rigs/check_main.h"
#include "rigs/crowd_world.h"

enum { US = 1000, ALL = CROWD_MOST, LAYERS = 32 };

static struct crowd crowd;
static const uint32_t one_prompt[ALL], eight_prompts[ALL] = {0, 1, 2, 3, 4, 5, 6, 7};

static void pass_us(int64_t us)
{
    crowd_pass(&crowd, crowd.world.now_ns + us * US);
}

static int64_t steady(struct crowd *c, uint32_t member)
{
    (void)c;
    (void)member;
    return 30 * US;
}

// Passes a while. All members then share each submission, which reads the prompt once.
static void expect_one_group(uint32_t count)
{
    const uint32_t before = crowd.submissions, prompts = crowd.prompts;
    const uint64_t runs = crowd_runs(&crowd);
    pass_us(20000);
    const uint32_t submissions = crowd.submissions - before;
    ck_assert_uint_gt(submissions, 50);
    ck_assert_uint_eq(crowd.prompts - prompts, submissions);
    ck_assert_uint_ge(crowd_runs(&crowd) - runs + count, (uint64_t)submissions * count);
    ck_assert_uint_eq(crowd.last_runs, count);
}

// ---- groups ----

// Half of the sessions come 100 us late, while the GPU works for the others.
static void open_two_groups(uint32_t num_layers, bool hidden)
{
    crowd_open(&crowd, ALL, num_layers, one_prompt, hidden);
    crowd.gap_ns = steady;
    for (uint32_t i = ALL / 2; i < ALL; i++)
        crowd.members[i].back_ns += 100 * US;
}

START_TEST(two_groups_that_share_a_prompt_become_one)
{
    open_two_groups(1, false);
    pass_us(5000);
    expect_one_group(ALL);
    crowd_close(&crowd);
}
END_TEST

START_TEST(without_the_rule_the_groups_stay_apart)
{
    open_two_groups(1, true);
    pass_us(5000);
    const uint32_t before = crowd.submissions;
    const uint64_t runs = crowd_runs(&crowd);
    pass_us(20000);
    ck_assert_uint_le(crowd_runs(&crowd) - runs, (crowd.submissions - before) * (ALL / 2 + 1));
    crowd_close(&crowd);
}
END_TEST

START_TEST(a_group_that_is_a_layer_ahead_waits_for_the_other)
{
    open_two_groups(LAYERS, false);
    pass_us(100000); // the gap between steps is known after some steps
    expect_one_group(ALL);
    for (uint32_t i = 1; i < ALL; i++)
        ck_assert_uint_eq(crowd.members[i].layer, crowd.members[0].layer);
    crowd_close(&crowd);
}
END_TEST

START_TEST(sessions_all_around_the_circle_of_layers_become_one_group)
{
    crowd_open(&crowd, ALL, LAYERS, one_prompt, false);
    crowd.gap_ns = steady;
    for (uint32_t i = 0; i < ALL; i++)
        crowd.members[i].layer = i * LAYERS / ALL;
    pass_us(150000);
    expect_one_group(ALL);
    crowd_close(&crowd);
}
END_TEST

// The gap between two steps is longer than reading the prompt in one layer takes.
static int64_t between_steps(struct crowd *c, uint32_t member)
{
    (void)c;
    return (3 * CROWD_PROMPT_NS / US + 5 * (int64_t)member) * US;
}

START_TEST(sessions_that_submit_whole_steps_wait_for_what_all_layers_save)
{
    enum { STEP_LAYERS = 8 };
    const int64_t round_ns = between_steps(&crowd, ALL - 1) + CROWD_START_NS +
                             STEP_LAYERS * (CROWD_PROMPT_NS + (int64_t)ALL * CROWD_OWN_NS);
    crowd_open(&crowd, ALL, STEP_LAYERS, one_prompt, false);
    crowd.whole = true;
    crowd.gap_ns = between_steps;
    for (uint32_t i = ALL / 2; i < ALL; i++)
        crowd.members[i].back_ns += 500 * US;
    crowd_pass(&crowd, crowd.world.now_ns + 20 * round_ns);
    const uint32_t prompts = crowd.prompts;
    const uint64_t runs = crowd_runs(&crowd);
    crowd_pass(&crowd, crowd.world.now_ns + 20 * round_ns);
    ck_assert_uint_ge(crowd_runs(&crowd) - runs, 19 * ALL);
    ck_assert_uint_le(crowd.prompts - prompts, 21 * STEP_LAYERS);
    crowd_close(&crowd);
}
END_TEST

enum { STEP_US = 1500 }; // a step of 8 layers, and a little more

// Before its decode begins, a member is away for longer than all layers save, one for much longer.
static int64_t decodes_after_prompts(struct crowd *c, uint32_t member)
{
    if (c->members[member].runs > 1)
        return (60 + 20 * (int64_t)member) * US;
    return (member == ALL - 1 ? 9 : 1) * STEP_US * US;
}

START_TEST(a_decode_after_prompts_becomes_one_group_in_a_few_steps)
{
    enum { STEP_LAYERS = 8, FEW = 5 };
    crowd_open(&crowd, ALL, STEP_LAYERS, one_prompt, false);
    crowd.whole = true;
    crowd.gap_ns = decodes_after_prompts;
    for (uint32_t i = 0; i < ALL; i++)
        crowd.members[i].back_ns += 150 * (i % 3) * US;
    pass_us((10 + FEW) * STEP_US); // until all decode, and for a few steps
    const uint32_t prompts = crowd.prompts;
    const uint64_t runs = crowd_runs(&crowd);
    pass_us(10 * STEP_US);
    const uint64_t steps = (crowd_runs(&crowd) - runs) / ALL;
    ck_assert_uint_ge(steps, 6);
    ck_assert_uint_le(crowd.prompts - prompts, (steps + 1) * STEP_LAYERS);
    crowd_close(&crowd);
}
END_TEST

START_TEST(each_of_two_prompts_has_its_group)
{
    const uint32_t two_prompts[ALL] = {0, 1, 0, 1, 0, 1, 0, 1};
    crowd_open(&crowd, ALL, 1, two_prompts, false);
    crowd.gap_ns = steady;
    for (uint32_t i = 0; i < ALL; i++)
        crowd.members[i].back_ns += i * 60 * US;
    pass_us(20000);
    const uint32_t prompts = crowd.prompts;
    const uint64_t runs = crowd_runs(&crowd);
    pass_us(20000);
    ck_assert_uint_le((crowd.prompts - prompts) * (ALL / 2), crowd_runs(&crowd) - runs + ALL);
    crowd_close(&crowd);
}
END_TEST

// ---- bounds ----

static int64_t staggered(struct crowd *c, uint32_t member)
{
    (void)c;
    return (20 + 2 * (int64_t)member) * US;
}

START_TEST(a_wait_ends_when_the_last_session_has_come)
{
    crowd_open(&crowd, ALL, 1, one_prompt, false);
    crowd.gap_ns = staggered;
    pass_us(10000);
    const uint32_t before = crowd.submissions;
    const int64_t last_ns = 20 * US + 2 * (ALL - 1) * US,
                  round_ns = last_ns + CROWD_START_NS + CROWD_PROMPT_NS + ALL * CROWD_OWN_NS;
    pass_us(100 * round_ns / US);
    ck_assert_uint_ge(crowd.submissions - before, 99);
    ck_assert_uint_le(crowd.submissions - before, 101);
    ck_assert_int_le(crowd.longest_idle_ns, CROWD_PROMPT_NS);
    crowd_close(&crowd);
}
END_TEST

static int64_t last_stays_away(struct crowd *c, uint32_t member)
{
    return member == ALL - 1 && c->members[member].runs >= 50 ? FOREVER : 30 * US;
}

START_TEST(a_session_that_stays_away_is_waited_for_once)
{
    crowd_open(&crowd, ALL, 1, one_prompt, false);
    crowd.gap_ns = last_stays_away;
    while (crowd.members[ALL - 1].runs < 50)
        crowd_next(&crowd, FOREVER);
    const int64_t idle_ns = crowd.idle_ns;
    pass_us(1000);
    ck_assert_int_gt(crowd.idle_ns, idle_ns);
    ck_assert_int_le(crowd.idle_ns, idle_ns + CROWD_PROMPT_NS);
    const int64_t once_ns = crowd.idle_ns;
    expect_one_group(ALL - 1);
    ck_assert_int_eq(crowd.idle_ns, once_ns);
    crowd_close(&crowd);
}
END_TEST

// As when one thread in ten returns has to be woken.
static int64_t sometimes_woken(struct crowd *c, uint32_t member)
{
    return c->members[member].runs % (10 + member) == 0 ? 45 * US : 2 * US;
}

START_TEST(a_session_that_is_a_little_late_keeps_its_group)
{
    crowd_open(&crowd, ALL, 1, one_prompt, false);
    crowd.gap_ns = sometimes_woken;
    pass_us(5000);
    expect_one_group(ALL);
    crowd_close(&crowd);
}
END_TEST

static int64_t slow(struct crowd *c, uint32_t member)
{
    (void)member;
    return dice_between(&c->dice, 200 * US, 210 * US);
}

START_TEST(sessions_whose_gaps_outlast_the_gain_are_not_waited_for)
{
    crowd_open(&crowd, ALL, 1, one_prompt, false);
    crowd.gap_ns = slow;
    pass_us(20000);
    ck_assert_int_eq(crowd.idle_ns, 0);
    crowd_close(&crowd);
}
END_TEST

START_TEST(sessions_that_share_nothing_do_not_wait)
{
    uint32_t submissions[2];
    uint64_t runs[2];
    int64_t busy_ns[2];
    for (int hidden = 0; hidden < 2; hidden++) {
        crowd_open(&crowd, ALL, 1, eight_prompts, hidden);
        crowd.gap_ns = staggered;
        pass_us(50000);
        submissions[hidden] = crowd.submissions;
        runs[hidden] = crowd_runs(&crowd);
        busy_ns[hidden] = crowd.busy_ns;
        ck_assert_int_eq(crowd.idle_ns, 0);
        crowd_close(&crowd);
    }
    ck_assert_uint_eq(submissions[0], submissions[1]);
    ck_assert_uint_eq(runs[0], runs[1]);
    ck_assert_int_eq(busy_ns[0], busy_ns[1]);
}
END_TEST

START_TEST(a_session_alone_with_its_prompt_does_not_wait)
{
    crowd_open(&crowd, 1, 1, one_prompt, false);
    crowd.gap_ns = steady;
    pass_us(20000);
    ck_assert_int_eq(crowd.idle_ns, 0);
    crowd_close(&crowd);
}
END_TEST

// Just often enough in time to be trusted again.
static int64_t often_late(struct crowd *c, uint32_t member)
{
    return member % 2 && c->members[member].runs % (HABIT_TRUST + 2) == 0 ? 2000 * US : 30 * US;
}

START_TEST(sessions_that_are_often_late_cost_the_others_next_to_nothing)
{
    uint64_t runs[2];
    for (int hidden = 0; hidden < 2; hidden++) {
        crowd_open(&crowd, 2, 1, one_prompt, hidden);
        crowd.gap_ns = often_late;
        pass_us(500000);
        runs[hidden] = crowd_runs(&crowd);
        crowd_close(&crowd);
    }
    ck_assert_uint_ge(runs[0] * 100, runs[1] * 98);
}
END_TEST

static uint32_t crews_of(struct crews *crews, uint64_t tenant)
{
    uint32_t count = 0;
    for (int32_t mark = 0; mark < CREWS_MOST; mark++) {
        const struct reading reading = {.cache = 1, .tenant = tenant, .marks = {mark}};
        count += crews_get(crews, &reading) != NULL;
    }
    return count;
}

START_TEST(a_tenant_has_so_many_crews_and_leaves_places_to_the_others)
{
    static struct crews crews;
    for (uint64_t tenant = 1; tenant <= CREWS_MOST / CREWS_OF_TENANT; tenant++)
        ck_assert_uint_eq(crews_of(&crews, tenant), CREWS_OF_TENANT);
    ck_assert_uint_eq(crews_of(&crews, 99), 0);
    ck_assert_uint_eq(crews_of(&crews, 1), CREWS_OF_TENANT); // it keeps those that it has
}
END_TEST

static struct tenant *tenant_of(uint32_t member)
{
    return crowd.members[member].worker.session->salt->tenant;
}

// Of four members, 0 and 1 share a prompt, and so do 2 and 3 of another tenant.
static uint32_t first_present; // only this one and the next one come back

static int64_t two_are_present(struct crowd *c, uint32_t member)
{
    (void)c;
    return member / 2 == first_present / 2 ? (20 + 20 * (int64_t)(member % 2)) * US : FOREVER;
}

// How often one of the two was found waiting for the other one.
static uint32_t count_waits(uint32_t first)
{
    uint32_t waits = 0;
    pass_us(5000); // the others have left, and their last runs are over
    first_present = first;
    for (uint32_t i = first; i < first + 2; i++)
        crowd.members[i].back_ns = crowd.world.now_ns;
    for (int event = 0; event < 400; event++) {
        crowd_next(&crowd, FOREVER);
        for (uint32_t i = first; i < first + 2; i++)
            waits += crowd.members[i].worker.session->turn.held_ns != 0;
    }
    first_present = 4;
    return waits;
}

START_TEST(a_tenant_that_waits_in_vain_uses_up_its_own_time_and_not_that_of_others)
{
    const uint32_t prompts[] = {0, 0, 1, 1}, tenants[] = {0, 0, 1, 1}; // of each member
    crowd_open_tenants(&crowd, 4, 1, prompts, tenants);
    crowd.gap_ns = two_are_present;
    crowd.members[0].back_ns = crowd.members[1].back_ns = FOREVER;
    ck_assert_uint_gt(count_waits(2), 0);
    tenant_of(2)->wasted_ns = (int64_t)1000 * GATHER_SPARE_NS;
    const int64_t wasted_ns = tenant_of(2)->wasted_ns;
    ck_assert_uint_gt(count_waits(0), 0);
    ck_assert_uint_eq(count_waits(2), 0);                 // its runs wait no more
    ck_assert_int_lt(tenant_of(2)->wasted_ns, wasted_ns); // and it wins some time back
    tenant_of(2)->wasted_ns = 0;
    ck_assert_uint_gt(count_waits(2), 0);
    crowd.world.core->scheduler.gather.spare_ns = INT64_MIN / 2; // all tenants together
    ck_assert_uint_eq(count_waits(0), 0);
    crowd_close(&crowd);
}
END_TEST

// Members 0 and 1 share a prompt, and 1 stays away; 2 comes with another prompt.
static int64_t one_stays_away(struct crowd *c, uint32_t member)
{
    if (c->members[1].runs < 50)
        return member == 2 ? FOREVER : 30 * US;
    return FOREVER;
}

START_TEST(a_session_of_another_prompt_does_not_make_a_wait_fruitful)
{
    const uint32_t prompts[] = {0, 0, 1};
    int64_t wasted_ns[2];
    for (int comes = 0; comes < 2; comes++) {
        crowd_open(&crowd, 3, 1, prompts, false);
        crowd.gap_ns = one_stays_away;
        crowd.members[2].back_ns = FOREVER;
        while (crowd.members[1].runs < 50)
            crowd_next(&crowd, FOREVER);
        const int64_t now_ns = crowd.world.now_ns;
        crowd.members[0].back_ns = now_ns + 30 * US;
        crowd.members[2].back_ns = comes ? now_ns + 50 * US : FOREVER; // while 0 waits for 1
        pass_us(1000);
        wasted_ns[comes] = tenant_of(0)->wasted_ns;
        ck_assert_int_gt(wasted_ns[comes], 0);
        crowd_close(&crowd);
    }
    ck_assert_int_le(wasted_ns[1],
                     wasted_ns[0]); // the wait ends when another run keeps the GPU busy
}
END_TEST

START_TEST(sessions_that_wait_keep_their_place_among_those_that_are_ready)
{
    uint64_t orders[ALL];
    uint32_t held = 0;
    crowd_open(&crowd, ALL, 1, one_prompt, false);
    crowd.gap_ns = staggered;
    pass_us(10000);
    for (int step = 0; step < 400; step++) {
        struct core *core = crowd.world.core;
        crowd_next(&crowd, FOREVER);
        for (uint32_t i = 0; i < ALL; i++)
            orders[i] = crowd.members[i].worker.session->turn.node.order;
        world_step(&crowd.world); // nothing has changed
        for (uint32_t i = 0; i < ALL; i++) {
            const struct core_session *session = crowd.members[i].worker.session;
            held += session->turn.held_ns != 0;
            ck_assert_uint_eq(session->turn.node.order, orders[i]);
        }
        ck_assert(heap_sound(&core->scheduler.turns.ready));
    }
    ck_assert_uint_gt(held, 20);
    crowd_close(&crowd);
}
END_TEST

// Rounds: of the own crew, and of one for each layer that a crew may be ahead.
START_TEST(no_run_waits_longer_than_about_a_model_step)
{
    const int64_t round_ns = CROWD_START_NS + 2 * (CROWD_PROMPT_NS + ALL * CROWD_OWN_NS);
    for (uint64_t seed = 1; seed <= 4; seed++) {
        crowd_open(&crowd, ALL, LAYERS, one_prompt, false);
        crowd.gap_ns = steady;
        crowd.dice.state = seed;
        for (uint32_t i = 0; i < ALL; i++)
            crowd.members[i].layer = dice_below(&crowd.dice, LAYERS);
        pass_us(100000);
        for (uint32_t i = 0; i < ALL; i++)
            ck_assert_int_le(crowd.members[i].longest_ns, (GATHER_ROUNDS + LAYERS) * round_ns);
        ck_assert_int_le(crowd.longest_idle_ns, CROWD_PROMPT_NS);
        crowd_close(&crowd);
    }
}
END_TEST

// ---- random gaps ----

// Gaps in us; so many of a thousand are longer by 50 to 300 us.
static const struct gaps {
    uint32_t low_us, high_us, hiccups;
    bool gains; // by waiting for them
} kinds_of_gaps[] = {
    {20, 40, 0, true},   {20, 40, 10, true},   {5, 120, 20, true},   {30, 80, 50, true},
    {80, 120, 0, false}, {100, 400, 0, false}, {20, 1000, 0, false}, {1, 2, 200, true},
};
enum { NUM_KINDS = sizeof kinds_of_gaps / sizeof *kinds_of_gaps };
// Of sessions that submit whole steps of WHOLE_LAYERS.
static const struct gaps gaps_of_steps[] = {
    {100, 200, 0, true}, {200, 400, 10, true}, {300, 600, 50, true}, {2000, 4000, 0, false}};
enum { NUM_STEP_KINDS = sizeof gaps_of_steps / sizeof *gaps_of_steps, WHOLE_LAYERS = 8 };
static const struct gaps *gaps;

static int64_t random_gap(struct crowd *c, uint32_t member)
{
    (void)member;
    const int64_t us = dice_between(&c->dice, gaps->low_us, gaps->high_us);
    const bool hiccup = dice_below(&c->dice, 1000) < gaps->hiccups;
    return (us + (hiccup ? dice_between(&c->dice, 50, 300) : 0)) * US;
}

struct totals {
    double runs, gpu_us; // GPU time of a run
};

static struct totals simulate(uint32_t num_layers, bool whole, bool hidden)
{
    crowd_open(&crowd, ALL, num_layers, one_prompt, hidden);
    crowd.whole = whole;
    crowd.gap_ns = random_gap;
    for (uint32_t i = 0; i < ALL; i++)
        crowd.members[i].back_ns += dice_below(&crowd.dice, 300) * US;
    pass_us(whole ? 300000 : 60000);
    const double runs = (double)crowd_runs(&crowd);
    const struct totals totals = {runs, (double)crowd.busy_ns / US / runs};
    crowd_close(&crowd);
    return totals;
}

static void expect_gain(uint32_t num_layers, bool whole)
{
    const struct totals with = simulate(num_layers, whole, false),
                        without = simulate(num_layers, whole, true);
    const double gpu = gaps->gains ? 0.8 : 1.02, runs = gaps->gains ? 1.05 : 0.98;
    ck_assert_msg(with.gpu_us <= without.gpu_us * gpu && with.runs >= without.runs * runs,
                  "gaps of %u to %u us, %u layers: %.1f us a run, not %.1f; %.0f runs, not %.0f",
                  gaps->low_us, gaps->high_us, num_layers, with.gpu_us, without.gpu_us, with.runs,
                  without.runs);
}

// Half of the kinds with one layer, half with 32.
START_TEST(with_random_gaps_the_gpu_works_less_and_the_sessions_more)
{
    gaps = &kinds_of_gaps[_i % NUM_KINDS];
    expect_gain(_i < NUM_KINDS ? 1 : LAYERS, false);
}
END_TEST

START_TEST(with_random_gaps_between_whole_steps_too)
{
    gaps = &gaps_of_steps[_i];
    expect_gain(WHOLE_LAYERS, true);
}
END_TEST

// ---- sessions that end, and the device ----

START_TEST(a_session_may_end_while_others_wait_for_it_or_while_it_waits)
{
    crowd_open(&crowd, ALL, LAYERS, one_prompt, false);
    crowd.gap_ns = staggered;
    for (uint32_t i = 0; i + 1 < ALL; i++) {
        pass_us(3000 + 17 * i);
        worker_close(&crowd.members[i].worker, true);
        crowd.members[i].ticket = 0;
        crowd.members[i].back_ns = FOREVER;
        world_step(&crowd.world);
        world_check(&crowd.world);
    }
    pass_us(3000);
    expect_one_group(1);
    crowd_close(&crowd);
}
END_TEST

START_TEST(the_device_may_be_lost_while_runs_wait)
{
    crowd_open(&crowd, ALL, LAYERS, one_prompt, false);
    crowd.gap_ns = staggered;
    pass_us(10000);
    fake_engine_lose(crowd.world.engine, "for the test");
    world_step(&crowd.world);
    world_check(&crowd.world);
    ck_assert(core_idle(crowd.world.core));
    ck_assert_ptr_null(crowd.world.core->scheduler.turns.away);
    world_close(&crowd.world);
}
END_TEST

// ---- habits ----

static struct reading reading_at(uint32_t layer, int32_t first_other)
{
    struct reading reading = {.cache = 1, .layer = layer, .num_layers = 4, .block_size = 16};
    for (int i = 0; i < READING_MARKS; i++)
        reading.marks[i] = i < 8 ? 100 + i + (i >= first_other ? 1000 : 0) : -1;
    return reading;
}

START_TEST(shared_tokens_are_those_of_the_blocks_that_both_begin_with)
{
    const struct reading a = reading_at(0, 8), b = reading_at(1, 3), c = reading_at(0, 0);
    struct reading other = a;
    ck_assert_uint_eq(reading_shared(&a, &a), 16 << 7);
    ck_assert_uint_eq(reading_shared(&a, &b), 16 << 2);
    ck_assert_uint_eq(reading_shared(&a, &c), 0);
    other.cache = 2;
    ck_assert_uint_eq(reading_shared(&a, &other), 0);
    other.cache = 0;
    ck_assert_uint_eq(reading_shared(&other, &other), 0);
}
END_TEST

// A session goes through the layers; every gap is `gap_us`, but those of `late_us` from a layer on.
static void go(struct habit *habit, uint32_t runs, uint32_t *layer, int64_t *now_ns, int64_t gap_us)
{
    for (uint32_t i = 0; i < runs; i++) {
        const struct reading reading = reading_at(*layer, 8);
        *now_ns += gap_us * US;
        habit_queued(habit, &reading, *now_ns);
        *now_ns += 200 * US;
        habit_served(habit, 200 * US, 2048);
        habit_ended(habit, *now_ns);
        *layer = (*layer + 1) % 4;
    }
}

START_TEST(a_session_is_trusted_after_it_came_back_in_time_three_times)
{
    struct habit habit = {0};
    struct reading next;
    uint32_t layer = 0;
    int64_t now_ns = US;
    go(&habit, 1, &layer, &now_ns, 30);
    ck_assert_ptr_null(habit_next(&habit, &next));
    go(&habit, 4 * (HABIT_TRUST + 2), &layer, &now_ns, 30);
    const struct habit_gap *gap = habit_next(&habit, &next);
    ck_assert_ptr_nonnull(gap);
    ck_assert_uint_eq(next.layer, layer);
    ck_assert_int_eq(gap->mean_ns, 30 * US);
    ck_assert_int_ge(habit_gap_most_ns(gap), 40 * US);
    ck_assert_int_le(habit_gap_most_ns(gap), 90 * US);
}
END_TEST

START_TEST(a_session_that_was_long_away_or_does_something_else_is_not_trusted)
{
    struct reading next;
    for (int other = 0; other < 2; other++) {
        struct habit habit = {0};
        uint32_t layer = 0;
        int64_t now_ns = US;
        go(&habit, 42, &layer, &now_ns, 30); // the next layer is 2
        ck_assert_ptr_nonnull(habit_next(&habit, &next));
        layer = other ? 1 : layer;
        go(&habit, 1, &layer, &now_ns, other ? 30 : 5000);
        layer = 3;
        ck_assert_uint_eq(habit.gaps[0].on_time, 0);
    }
}
END_TEST

START_TEST(the_end_of_a_step_has_a_gap_of_its_own)
{
    struct habit habit = {0};
    uint32_t layer = 0;
    int64_t now_ns = US;
    for (int step = 0; step < 40; step++) {
        go(&habit, 1, &layer, &now_ns, 2000);
        go(&habit, 3, &layer, &now_ns, 30);
    }
    ck_assert_int_eq(habit.gaps[0].mean_ns, 30 * US);
    ck_assert_int_gt(habit.gaps[1].mean_ns, 1900 * US);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gather");
    check_case(
        suite, "groups", NULL, NULL,
        (const TTest *const[]){two_groups_that_share_a_prompt_become_one,
                               without_the_rule_the_groups_stay_apart,
                               a_group_that_is_a_layer_ahead_waits_for_the_other,
                               sessions_all_around_the_circle_of_layers_become_one_group,
                               sessions_that_submit_whole_steps_wait_for_what_all_layers_save,
                               a_decode_after_prompts_becomes_one_group_in_a_few_steps,
                               each_of_two_prompts_has_its_group, NULL},
        1);
    check_case(suite, "bounds", NULL, NULL,
               (const TTest *const[]){
                   a_wait_ends_when_the_last_session_has_come,
                   a_session_that_stays_away_is_waited_for_once,
                   a_session_that_is_a_little_late_keeps_its_group,
                   sessions_whose_gaps_outlast_the_gain_are_not_waited_for,
                   sessions_that_share_nothing_do_not_wait,
                   a_session_alone_with_its_prompt_does_not_wait,
                   sessions_that_are_often_late_cost_the_others_next_to_nothing,
                   no_run_waits_longer_than_about_a_model_step,
                   a_tenant_has_so_many_crews_and_leaves_places_to_the_others,
                   a_tenant_that_waits_in_vain_uses_up_its_own_time_and_not_that_of_others,
                   a_session_of_another_prompt_does_not_make_a_wait_fruitful,
                   sessions_that_wait_keep_their_place_among_those_that_are_ready, NULL},
               1);
    check_case(
        suite, "random gaps", NULL, NULL,
        (const TTest *const[]){with_random_gaps_the_gpu_works_less_and_the_sessions_more, NULL},
        2 * NUM_KINDS);
    check_case(suite, "random steps", NULL, NULL,
               (const TTest *const[]){with_random_gaps_between_whole_steps_too, NULL},
               NUM_STEP_KINDS);
    check_case(suite, "ends", NULL, NULL,
               (const TTest *const[]){a_session_may_end_while_others_wait_for_it_or_while_it_waits,
                                      the_device_may_be_lost_while_runs_wait, NULL},
               1);
    check_case(
        suite, "habits", NULL, NULL,
        (const TTest *const[]){shared_tokens_are_those_of_the_blocks_that_both_begin_with,
                               a_session_is_trusted_after_it_came_back_in_time_three_times,
                               a_session_that_was_long_away_or_does_something_else_is_not_trusted,
                               the_end_of_a_step_has_a_gap_of_its_own, NULL},
        1);
    return check_main(suite);
}
