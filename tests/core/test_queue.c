// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_queue.c - leases that wait: over random states, whose turn it is must be what a plain scan
// of all of them says, and rounds over those that core names must miss none that could be granted.

#include "core/pool/queue.h"
#include "core/pool/tenant.h"
#include "core/state.h"
#include "rigs/check_main.h"
#include "rigs/core_world.h"
#include "rigs/dice.h"

enum { TENANTS = 5, SESSIONS = 15, CACHES = 2, WAITERS = 40, STEPS = 800, MOST = 8 };

static struct world world;
static struct worker workers[SESSIONS];
static uint64_t caches[CACHES];

struct waiter {
    bool used;
    uint32_t w, number; // worker; later ones have a higher number
    struct core_wait core;
};
static struct waiter waiters[WAITERS];
static uint32_t last_number, others_waiting[SESSIONS]; // its claims and takes that wait
static uint64_t num_waited, num_granted, num_stuck;

// Blocks that a worker has, as it has leased them.
static int32_t held[SESSIONS][CACHES][64];
static uint32_t num_held[SESSIONS][CACHES];

static void open_world(void)
{
    world_open(&world, &(struct core_params){.max_blocks = 64});
    for (uint32_t w = 0; w < SESSIONS; w++) {
        worker_open(&workers[w], &world, 1000 + w % TENANTS, "");
        caches[0] = workers[w].cache;
        caches[1] = worker_open_cache(&workers[w], "alt");
    }
}

static void close_world(void)
{
    for (uint32_t i = 0; i < WAITERS; i++)
        if (waiters[i].used)
            core_wait_end(&waiters[i].core);
    for (uint32_t w = 0; w < SESSIONS; w++)
        worker_close(&workers[w], false);
    world_finish_all(&world);
    world_close(&world);
}

// ---- a plain scan ----

static const struct tenant *tenant_of(uint32_t w)
{
    return workers[w].session->salt->tenant;
}

static bool waits(uint32_t w)
{
    bool any = others_waiting[w] > 0;
    for (uint32_t i = 0; i < WAITERS; i++)
        any |= waiters[i].used && waiters[i].w == w;
    return any;
}

static bool is_stuck(uint32_t asking)
{
    for (uint32_t w = asking % TENANTS; w < SESSIONS; w += TENANTS) {
        struct core_session_counts counts;
        core_session_counts(workers[w].session, &counts);
        if (w != asking && counts.blocks_held && !waits(w))
            return false;
    }
    return true;
}

static bool is_free(uint64_t cache, uint32_t count)
{
    struct core_counts counts;
    ck_assert_status(core_cache_counts(workers[0].session, cache, &counts, &error), STATUS_OK);
    return counts.free >= count;
}

// The tenant's oldest one; `cache` not 0: of those that free blocks of it would help.
static const struct waiter *oldest(uint32_t tenant, uint64_t cache)
{
    const struct waiter *first = NULL;
    for (const struct waiter *i = waiters; i < waiters + WAITERS; i++) {
        if (!i->used || i->w % TENANTS != tenant ||
            (cache && (i->core.cache != cache || i->core.lease.only_growth)))
            continue;
        if (!first || i->number < first->number)
            first = i;
    }
    return first;
}

// `waiter` NULL: a new lease.
static bool may_go(const struct waiter *waiter, uint32_t w, uint64_t cache, uint32_t count)
{
    const uint64_t of = is_free(cache, count) ? cache : 0, ours = tenant_of(w)->used + count;
    const uint32_t number = waiter ? waiter->number : UINT32_MAX;
    for (uint32_t t = 0; t < TENANTS; t++) {
        const struct waiter *first = oldest(t, of);
        if (!first || first == waiter)
            continue;
        const uint64_t theirs = tenant_of(t)->used + first->core.lease.count;
        const bool older = first->number < number;
        if (t == w % TENANTS ? older : theirs < ours || (theirs == ours && older))
            return is_stuck(w);
    }
    return true;
}

static void compare(struct dice *dice)
{
    uint32_t w = dice_below(dice, SESSIONS), count = 1 + dice_below(dice, MOST);
    const uint64_t cache = caches[dice_below(dice, CACHES)];
    for (const struct waiter *i = waiters; i < waiters + WAITERS; i++) {
        if (!i->used)
            continue;
        enum status status =
            queue_turn(workers[i->w].session, &i->core, i->core.cache, i->core.lease.count, NULL);
        ck_assert_int_eq(status == STATUS_OK, may_go(i, i->w, i->core.cache, i->core.lease.count));
        num_stuck += is_stuck(i->w);
    }
    enum status status = queue_turn(workers[w].session, NULL, cache, count, NULL);
    ck_assert_int_eq(status == STATUS_OK, may_go(NULL, w, cache, count));
}

static bool grows(uint32_t w, uint64_t cache)
{
    struct hold_table *table;
    return hold_table_find(workers[w].session, cache, &table, NULL) == STATUS_OK &&
           pool_grows(table->cache);
}

// ---- rounds, as the server makes them ----

static enum status lease(uint32_t w, const struct core_wait *wait, uint64_t cache, uint32_t count,
                         bool *growing)
{
    const uint32_t at = cache != caches[0];
    *growing = false;
    if (num_held[w][at] + count > 64)
        return STATUS_QUOTA;
    enum status status = core_blocks_lease(workers[w].session, wait, cache, count,
                                           held[w][at] + num_held[w][at], growing, NULL);
    if (status == STATUS_OK)
        num_held[w][at] += count;
    return status;
}

// True: it was granted.
static bool try_again(struct waiter *waiter)
{
    bool growing;
    enum status status =
        lease(waiter->w, &waiter->core, waiter->core.cache, waiter->core.lease.count, &growing);
    if (status == STATUS_NO_BLOCKS && (growing || !waiter->core.lease.only_growth))
        return false;
    core_wait_end(&waiter->core);
    waiter->used = false;
    num_granted += status == STATUS_OK;
    return status == STATUS_OK;
}

static struct waiter *waiter_of(struct core_wait *core)
{
    for (struct waiter *i = waiters; i < waiters + WAITERS; i++)
        if (&i->core == core)
            return i;
    ck_abort_msg("core names a waiter of nobody");
}

// After the rounds no waiter is left that could be granted or must give up.
static void retry(void)
{
    bool growing;
    struct core_wait *core;
    uint32_t count = 0;
    while ((core = core_next_ready(world.core))) {
        if (core->kind == CORE_WAIT_BLOCKS)
            count = try_again(waiter_of(core)) ? 0 : count + 1;
        ck_assert_uint_le(count, 2 * WAITERS); // the rest of this round, and the next one
    }
    for (struct waiter *i = waiters; i < waiters + WAITERS; i++) {
        if (!i->used)
            continue;
        if (may_go(i, i->w, i->core.cache, i->core.lease.count))
            ck_assert_int_eq(
                (int)lease(i->w, &i->core, i->core.cache, i->core.lease.count, &growing),
                STATUS_NO_BLOCKS);
        ck_assert(!i->core.lease.only_growth || grows(i->w, i->core.cache));
    }
}

// ---- random states ----

static void do_lease(uint32_t w, struct dice *dice)
{
    const uint64_t cache = caches[dice_below(dice, CACHES)];
    const uint32_t count = 1 + dice_below(dice, MOST);
    bool growing;
    const enum status status = lease(w, NULL, cache, count, &growing);
    struct waiter *waiter = &waiters[dice_below(dice, WAITERS)];
    if (status != STATUS_NO_BLOCKS || waiter->used)
        return;
    *waiter = (struct waiter){.used = true, .w = w, .number = ++last_number};
    ck_assert_status(core_wait_for_blocks(workers[w].session, &waiter->core, cache, count,
                                          growing && dice_below(dice, 2), &error),
                     STATUS_OK);
    num_waited++;
}

static void do_release(uint32_t w, struct dice *dice)
{
    const uint32_t at = dice_below(dice, CACHES);
    uint32_t count = dice_below(dice, num_held[w][at] + 1);
    workers[w].cache = caches[at];
    num_held[w][at] -= count;
    if (count)
        worker_release(&workers[w], held[w][at] + num_held[w][at], count);
}

static void do_give_up(struct dice *dice)
{
    struct waiter *waiter = &waiters[dice_below(dice, WAITERS)];
    if (waiter->used)
        core_wait_end(&waiter->core);
    waiter->used = false;
}

// Waits for something else, or no more.
static void do_other_wait(uint32_t w)
{
    queue_count_wait(workers[w].session, !others_waiting[w]);
    others_waiting[w] = !others_waiting[w];
}

START_TEST(whose_turn_it_is_and_who_is_tried_again_is_what_a_plain_scan_says)
{
    struct dice dice = {(uint64_t)_i + 1};
    for (int step = 0; step < STEPS; step++) {
        uint32_t w = dice_below(&dice, SESSIONS), what = dice_below(&dice, 20);
        if (what < 11)
            do_lease(w, &dice);
        else if (what < 16)
            do_release(w, &dice);
        else if (what < 17)
            do_give_up(&dice);
        else if (what < 18)
            do_other_wait(w);
        else
            world_step(&world); // chunks that were growing come
        compare(&dice);
        if (dice_below(&dice, 2))
            retry();
        compare(&dice);
    }
    ck_assert_uint_gt(num_waited, 50);
    ck_assert_uint_gt(num_granted, 25);
    ck_assert_uint_gt(num_stuck, 5);
}
END_TEST

START_TEST(a_lease_that_waits_in_a_cache_that_its_session_closes_is_tried_again)
{
    static struct core_wait first, second;
    bool growing;
    while (lease(1, NULL, caches[1], 1, &growing) == STATUS_OK || growing)
        world_step(&world);
    ck_assert_status(core_wait_for_blocks(workers[1].session, &first, caches[1], 2, false, &error),
                     STATUS_OK);
    ck_assert_status(core_wait_for_blocks(workers[6].session, &second, caches[1], 2, false, &error),
                     STATUS_OK); // of the same tenant, behind it
    world_step(&world);
    ck_assert_status(core_cache_close(workers[6].session, caches[1], &error), STATUS_OK);
    ck_assert(world_step(&world));
    bool named = false;
    for (struct core_wait *i; (i = core_next_ready(world.core));)
        named |= i == &second;
    ck_assert(named);
    core_wait_end(&second);
    core_wait_end(&first);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("queue");
    const TTest *const tests[] = {whose_turn_it_is_and_who_is_tried_again_is_what_a_plain_scan_says,
                                  NULL};
    const TTest *const closing[] = {
        a_lease_that_waits_in_a_cache_that_its_session_closes_is_tried_again, NULL};
    check_case(suite, "random", open_world, close_world, tests, 8);
    check_case(suite, "closing", open_world, close_world, closing, 1);
    return check_main(suite);
}
