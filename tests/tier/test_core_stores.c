// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_core_stores.c - blocks that leave the GPU for a host tier, and for one of files behind it:
// in which stores they go, whose quota counts in each tier, and what remains after failures and
// deaths. All tests run twice: with copies among the runs, and with hauls.

#include "base/clock.h"
#include "core/pool/tenant.h"
#include "rigs/dice.h"
#include "tier/files/files.h"
#include "tiered_world.h"

#include <unistd.h>

enum { NARROW = 4 * 4096 };

// One store's blocks are checked while the next one's are copied.
START_TEST(a_burst_of_blocks_is_stored_by_several_stores)
{
    struct tier_counts counts;
    world.core->params.tiers.store_bytes = 3 * WORLD_BLOCK_BYTES;
    order(FAULT_HOLD, TIER_STORE, STORED_OK, 9);
    compute(&a, tokens, 8);
    ck_assert_uint_eq(fault_num_held(fault), 3);
    ck_assert_uint_eq(world.core->tiers.num_errands, 3);
    fault_let_go(fault);
    settle();
    tier_counts(tier, &counts);
    ck_assert_uint_eq(counts.stored, 8);
    ck_assert_uint_eq(metric(METRIC_TIER_SKIPPED), 0);
    evict_all(&a);
    ck_assert_uint_eq(load(&b, tokens, 8, CORE_LOAD_AUTO), 8);
    settle();
    expect_found(&b, 8, 8);
}
END_TEST

// A store's copies have turns as runs of the tenant do.
START_TEST(a_tenant_has_room_for_the_turns_of_all_its_stores)
{
    const struct tenant *tenant = a.session->salt->tenant;
    world.core->params.tiers.store_bytes = WORLD_BLOCK_BYTES;
    order(FAULT_HOLD, TIER_STORE, STORED_OK, 9);
    compute(&a, tokens, 12);
    ck_assert_uint_ge(world.core->tiers.num_errands, 9);
    ck_assert_uint_ge(tenant->turns.ready.capacity, tenant->opens + world.core->tiers.num_errands);
    fault_let_go(fault);
    settle();
}
END_TEST

START_TEST(a_worker_that_dies_takes_neither_a_store_nor_a_load_with_it)
{
    int32_t ids[4];
    worker_lease(&a, 4, ids);
    worker_write(&a, ids, tokens, 4 * BLOCK);
    worker_publish(&a, tokens, 4 * BLOCK, ids);
    world_step(&world); // the copy for the store is in flight
    worker_close(&a, true);
    settle();
    ck_assert_uint_eq(worker_counts(&b).cached, 4);
    evict_all(&b);
    load(&b, tokens, 4, CORE_LOAD_AUTO);
    worker_open(&c, &world, 1, "");
    const struct core_claim own = claim(&c, tokens, 4);
    worker_close(&b, true);
    settle();
    take(&c, &own, tokens, 4);
}
END_TEST

// The host tier lives by the real clock. The job's deadline has passed when a thread looks at it,
// but an hour is left until it would be abandoned.
START_TEST(a_store_ends_by_its_deadline_before_it_is_abandoned)
{
    struct core_tiers *params = &world.core->params.tiers;
    struct tier_counts counts;
    world.now_ns = clock_now_ns();
    params->abandon_ns = 3600 * NS_PER_S;
    params->deadline_ns = params->abandon_ns - 1;
    compute(&a, tokens, 4);
    settle();
    tier_counts(tier, &counts);
    ck_assert_uint_eq(counts.stored, 0);
    ck_assert_uint_eq(counts.failed[STORED_TIMEOUT], 4);
    ck_assert_uint_eq(counts.failed[STORED_ABANDONED], 0);
    params->deadline_ns = params->abandon_ns / 8;
    compute(&a, tokens + 100, 4);
    settle();
    tier_counts(tier, &counts);
    ck_assert_uint_eq(counts.stored, 4);
}
END_TEST

START_TEST(blocks_wait_for_memory_and_all_are_stored_in_the_end)
{
    struct tier_counts counts;
    compute(&a, tokens, 12);
    settle();
    tier_counts(tier, &counts);
    ck_assert_uint_eq(counts.stored, 12);
    ck_assert_uint_eq(metric(METRIC_TIER_SKIPPED), 0);
    ck_assert_uint_eq(world.core->tiers.store_bytes, 0);
    ck_assert(!world.core->tiers.full);
}
END_TEST

// ---- quotas through tiers: the host tier, and behind it one of files ----

enum { TEXTS = 12, LENGTH = 4, FILES_ROOM = 30 };

static char folder[64];
static struct worker d;
static struct tier_backend *further_fault;
static int32_t own_texts[3][TEXTS][LENGTH * BLOCK];
static struct worker *const tenants[] = {&a, &c, &d};

static void open_quotas(void)
{
    const struct tier_ops *ops;
    const uint64_t limit_bytes = FILES_ROOM * (WORLD_BLOCK_BYTES + sizeof(struct stored_header));
    struct tier_backend *files = make_files(folder, limit_bytes);
    further_fault = fault_open(&files_ops, files, &ops);
    ck_assert_status(tier_create(ops, further_fault, &further[0], &error), STATUS_OK);
    open_world(0);
    worker_open(&c, &world, 2, "");
    worker_open(&d, &world, 3, "");
    for (int i = 0; i < 3 * TEXTS; i++)
        for (int t = 0; t < LENGTH * BLOCK; t++)
            own_texts[i / TEXTS][i % TEXTS][t] = 1000 * (i + 1) + t;
}

static void close_quotas(void)
{
    close_world();
    ck_assert(tier_close(further[0], FOREVER));
    remove_folder(folder);
}

static void limit(const struct worker *worker, uint64_t cached, uint64_t floor)
{
    const struct core_limits limits = {.cached = cached, .floor = floor};
    ck_assert_status(
        core_tenant_limit(world.core, worker->session->salt->tenant->id, &limits, &error),
        STATUS_OK);
}

// How many blocks of tenant `t` the tier has.
static uint32_t count_there(struct tier *in, int t)
{
    struct cache *cache;
    uint32_t count = 0;
    ck_assert_status(cache_find(&world.core->pool, tenants[t]->cache, &cache, &error), STATUS_OK);
    const struct stored_space space = errand_space(cache, tenants[t]->session->salt);
    for (int text = 0; text < TEXTS; text++) {
        struct stored_chain chain = stored_chain_begin("", 0);
        for (int i = 0; i < LENGTH; i++) {
            chain = stored_chain_next(&chain, own_texts[t][text] + i * BLOCK, BLOCK);
            count += tier_probe(in, &space, &chain) == TIER_THERE;
        }
    }
    return count;
}

// Waits until the tier has at most `most` blocks of the tenant, and no more bytes than it may. The
// tier of files may take a file for a new one that it has just removed, until the kernel tells it.
static void await_limits(struct tier *in, int t, uint32_t most)
{
    struct tier_state state;
    tier_state(in, &state);
    while (count_there(in, t) > most || state.bytes > state.limit_bytes) {
        usleep(1000); // the test's timeout bounds it
        tier_state(in, &state);
    }
}

START_TEST(a_tenants_limit_of_cached_blocks_holds_in_each_tier)
{
    for (int text = 0; text < 3; text++)
        compute(&a, own_texts[0][text], LENGTH);
    ck_assert_uint_eq(count_there(tier, 0), 12);
    ck_assert_uint_eq(count_there(further[0], 0), 12);
    limit(&a, 3, 0);
    compute(&a, own_texts[0][5], 1); // the next store brings the limit
    await_limits(further[0], 0, 3);
    ck_assert_uint_eq(count_there(tier, 0), 3);
    ck_assert_uint_eq(count_there(further[0], 0), 3);
}
END_TEST

START_TEST(a_tenants_floor_holds_in_each_tier_while_others_fill_them)
{
    limit(&c, 0, 6);
    for (int text = 0; text < 2; text++)
        compute(&c, own_texts[1][text], LENGTH);
    for (int round = 0; round < 2 * TEXTS; round++)
        compute(round % 2 ? &a : &d, own_texts[round % 2 ? 0 : 2][round / 2], LENGTH);
    ck_assert_uint_ge(count_there(tier, 1), 6);
    ck_assert_uint_ge(count_there(further[0], 1), 6);
}
END_TEST

static void open_caps(void)
{
    cached_of_all = 3;
    open_quotas();
}

// On the GPU it is another tenant then, because nothing of the first one is left there.
START_TEST(a_tenant_that_comes_back_has_one_limit_in_each_tier)
{
    compute(&c, own_texts[1][0], LENGTH);
    evict_all(&c);
    const uint32_t before = core_num_tenants(world.core);
    worker_close(&c, false);
    settle();
    ck_assert_uint_eq(core_num_tenants(world.core), before - 1);
    worker_open(&c, &world, 2, "");
    compute(&c, own_texts[1][1], LENGTH);
    ck_assert_uint_eq(count_there(tier, 1), 3);
    await_limits(further[0], 1, 3);
    ck_assert_uint_eq(count_there(further[0], 1), 3);
}
END_TEST

// The next job or part of one of the tiers is harmed.
static void order_any(struct dice *dice)
{
    struct tier_backend *const faults[] = {fault, further_fault};
    const struct fault_order orders[] = {
        {FAULT_FLIP, TIER_LOAD, STORED_OK, 100, 1},
        {FAULT_TRUNCATE, TIER_LOAD, STORED_OK, 100, 1},
        {FAULT_FAIL, TIER_LOAD, STORED_STORE, 0, 1},
        {FAULT_FAIL, TIER_STORE, STORED_FULL, 0, 1},
    };
    fault_order(faults[dice_below(dice, 2)], &orders[dice_below(dice, 4)]);
}

// A worker of tenant `t` dies, mostly with stores and loads under way, and another one comes.
static void kill_worker(int t, struct dice *dice)
{
    const int32_t *text = own_texts[t][dice_below(dice, TEXTS)];
    struct worker *worker = tenants[t];
    int32_t ids[LENGTH];
    uint64_t last;
    load(worker, own_texts[t][dice_below(dice, TEXTS)], LENGTH, CORE_LOAD_ALWAYS);
    worker_lease(worker, LENGTH, ids);
    worker_write_async(worker, ids, text, LENGTH * BLOCK, &last);
    if (dice_chance(dice, 50))
        world_step(&world);
    worker_publish(worker, text, LENGTH * BLOCK, ids);
    if (dice_chance(dice, 50))
        fake_engine_finish(engine);
    worker_close(worker, true);
    settle();
    worker_open(worker, &world, (uint32_t)t + 1, "");
}

// Three tenants that store and load at random, with harm and deaths: one with a limit, one with a
// floor. No step of another tenant takes the floor's blocks, and no tier exceeds a limit.
START_TEST(random_stores_and_loads_keep_each_tenants_quota_in_each_tier)
{
    struct dice dice = {check_draw("quotas")};
    struct tier *const all[] = {tier, further[0]};
    limit(&a, 4, 0);
    limit(&c, 0, 6);
    for (int step = 0; step < 120; step++) {
        const int t = (int)dice_below(&dice, 3);
        const int32_t *text = own_texts[t][dice_below(&dice, TEXTS)];
        const uint32_t count = 1 + dice_below(&dice, LENGTH);
        uint32_t before[2] = {count_there(tier, 1), count_there(further[0], 1)};
        const bool loads = dice_chance(&dice, 50);
        if (dice_chance(&dice, 20))
            order_any(&dice);
        if (dice_chance(&dice, 10))
            kill_worker(t, &dice);
        else if (loads)
            fetch(tenants[t], text, count);
        else
            compute(tenants[t], text, count);
        if (dice_chance(&dice, 30))
            evict_all(&c); // a tenant's own lease may go below its floor
        for (int i = 0; i < 2; i++) {
            await_limits(all[i], 0, 4);
            before[i] = before[i] < 6 ? before[i] : 6;
            if (t != 1)
                ck_assert_uint_ge(count_there(all[i], 1), before[i]);
        }
    }
    ck_assert_uint_gt(metric(METRIC_TIER_LOADED_TOKENS), 0);
}
END_TEST

// ---- hauls ----

// Publishes four written blocks. Their store is then a haul that has begun.
static void begin_store(struct worker *worker)
{
    int32_t ids[4];
    uint64_t last;
    worker_lease(worker, 4, ids);
    worker_write_async(worker, ids, tokens, 4 * BLOCK, &last);
    world_step(&world);
    while (fake_engine_oldest(engine)) {
        fake_engine_finish(engine);
        world_step(&world);
    }
    worker_reap(worker, last, STATUS_OK);
    const struct core_prefix prefix = {.tokens = tokens, .num_tokens = 4 * BLOCK, .releases = true};
    uint32_t existing;
    ck_assert_status(
        core_prefix_publish(worker->session, worker->cache, &prefix, ids, 4, &existing, &error),
        STATUS_OK);
    worker_release(worker, ids, 4);
    world_step(&world);
    ck_assert_ptr_nonnull(fake_engine_oldest_haul(engine));
    ck_assert_ptr_null(fake_engine_oldest(engine));
}

START_TEST(copies_of_a_tier_are_no_submissions_and_a_run_does_not_wait_for_them)
{
    int32_t ids[2];
    uint64_t last;
    begin_store(&a);
    worker_lease(&b, 2, ids);
    worker_write_async(&b, ids, tokens + 1, 2 * BLOCK, &last);
    world_step(&world);
    while (fake_engine_oldest(engine)) {
        fake_engine_finish(engine);
        world_step(&world);
        world_check(&world);
    }
    worker_reap(&b, last, STATUS_OK); // while the haul goes on
    ck_assert_ptr_nonnull(fake_engine_oldest_haul(engine));
    worker_release(&b, ids, 2);
    settle();
    ck_assert_uint_eq(metric(METRIC_TIER_SKIPPED), 0);
    evict_all(&a);
    ck_assert_uint_eq(load(&a, tokens, 4, CORE_LOAD_AUTO), 4);
    settle();
    expect_found(&a, 4, 4);
}
END_TEST

START_TEST(a_core_that_ends_waits_for_its_hauls)
{
    begin_store(&a);
    ck_assert_ptr_nonnull(fake_engine_oldest_haul(engine));
}
END_TEST

START_TEST(a_lost_device_ends_hauls_and_keeps_the_sum)
{
    begin_store(&a);
    fake_engine_lose(engine, "a test");
    world_step(&world);
    world_check(&world);
    ck_assert(core_idle(world.core));
}
END_TEST

static void open_narrow(void)
{
    area = NARROW;
    open_world(0);
}

int main(void)
{
    const TTest *const tests[] = {
        a_burst_of_blocks_is_stored_by_several_stores,
        a_tenant_has_room_for_the_turns_of_all_its_stores,
        a_worker_that_dies_takes_neither_a_store_nor_a_load_with_it,
        a_store_ends_by_its_deadline_before_it_is_abandoned,
        NULL,
    };
    const TTest *const narrow[] = {blocks_wait_for_memory_and_all_are_stored_in_the_end, NULL};
    const TTest *const quotas[] = {a_tenants_limit_of_cached_blocks_holds_in_each_tier,
                                   a_tenants_floor_holds_in_each_tier_while_others_fill_them,
                                   random_stores_and_loads_keep_each_tenants_quota_in_each_tier,
                                   NULL};
    const TTest *const caps[] = {a_tenant_that_comes_back_has_one_limit_in_each_tier, NULL};
    const TTest *const hauling[] = {
        copies_of_a_tier_are_no_submissions_and_a_run_does_not_wait_for_them,
        a_core_that_ends_waits_for_its_hauls,
        a_lost_device_ends_hauls_and_keeps_the_sum,
        NULL,
    };
    Suite *suite = suite_create("core, stores");
    add_ways(suite, (const char *[]){"stores", "stores, hauls"}, open_free, close_world, tests);
    add_ways(suite, (const char *[]){"quotas", "quotas, hauls"}, open_quotas, close_quotas, quotas);
    add_ways(suite, (const char *[]){"caps", "caps, hauls"}, open_caps, close_quotas, caps);
    add_ways(suite, (const char *[]){"narrow", "narrow, hauls"}, open_narrow, close_world, narrow);
    add_hauls(suite, "hauls", open_free, close_hauling, hauling);
    return check_main(suite);
}
