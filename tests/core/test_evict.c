// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_evict.c - which tenant loses first: the ranks that core keeps, held against a plain scan of
// all tenants, over random states. test_core_sharing has the order of the blocks.

#include "base/list.h"
#include "core/pool/evict.h"
#include "core/pool/tenant.h"
#include "core/state.h"
#include "rigs/check_main.h"
#include "rigs/core_world.h"
#include "rigs/dice.h"

enum { TENANTS = 12, CACHES = 3, STEPS = 1500, MOST_BLOCKS = 96 };

static struct world world;
static struct worker workers[TENANTS];
static uint64_t caches[CACHES];
static int32_t held[TENANTS][4]; // of cache held_in[]; count num_held[]
static uint32_t num_held[TENANTS], held_in[TENANTS];

static void open_world(void)
{
    static const char *const names[CACHES] = {"kv", "alt", "third"};
    world_open(&world, &(struct core_params){.max_blocks = MOST_BLOCKS});
    for (uint32_t w = 0; w < TENANTS; w++) {
        worker_open(&workers[w], &world, 1000 + w, "");
        for (uint32_t i = 0; i < CACHES; i++)
            caches[i] = worker_open_cache(&workers[w], names[i]);
    }
}

static void close_world(void)
{
    for (uint32_t w = 0; w < TENANTS; w++)
        worker_close(&workers[w], false);
    world_finish_all(&world);
    world_close(&world);
}

// ---- a plain scan ----

static bool helps(const struct tenant *tenant, const struct cache *cache)
{
    const struct account *account;
    LIST_EACH(tenant->accounts, account) {
        if (account->idle.size || (account->cache == cache && account->victims.size))
            return true;
    }
    return false;
}

static const struct tenant *scan(const struct cache *cache)
{
    const struct tenant *best = NULL;
    for (const struct tenant *tenant = world.core->pool.tenants; tenant; tenant = tenant->hh.next)
        if (tenant->cached > tenant->limits.floor && helps(tenant, cache) &&
            (!best || tenant->cached_bytes > best->cached_bytes))
            best = tenant; // tenants come by age
    return best;
}

static uint32_t num_found;

static void compare(void)
{
    struct pool *pool = &world.core->pool;
    tenants_rank(pool);
    for (uint32_t i = 0; i < pool->num_caches; i++) {
        const struct tenant *wanted = scan(pool->caches[i]);
        ck_assert_ptr_eq(evict_first(pool->caches[i]), wanted);
        num_found += wanted != NULL;
    }
    ck_assert_ptr_null(pool->stale);
}

// ---- random states ----

// Leases, writes and publishes up to four blocks, and holds them.
static void do_publish(uint32_t w, struct dice *dice)
{
    static int32_t next;
    struct worker *worker = &workers[w];
    int32_t tokens[4 * WORLD_BLOCK];
    uint32_t count = 1 + dice_below(dice, 4);
    if (num_held[w])
        return;
    held_in[w] = dice_below(dice, CACHES);
    worker->cache = caches[held_in[w]];
    if (worker_try_lease(worker, count, held[w], NULL) != STATUS_OK)
        return;
    worker_fill(worker, held[w], count);
    for (uint32_t i = 0; i < count * WORLD_BLOCK; i++)
        tokens[i] = next++;
    worker_publish(worker, tokens, count * WORLD_BLOCK, held[w]);
    num_held[w] = count;
}

static void do_release(uint32_t w)
{
    workers[w].cache = caches[held_in[w]];
    if (num_held[w])
        worker_release(&workers[w], held[w], num_held[w]);
    num_held[w] = 0;
}

static void do_limit(struct dice *dice)
{
    struct core_tenant_view view;
    ck_assert(core_tenant_at(world.core, dice_below(dice, TENANTS), &view));
    const struct core_limits limits = {.floor = dice_below(dice, 3) ? 0 : dice_below(dice, 8)};
    ck_assert_status(core_tenant_limit(world.core, view.tenant, &limits, &error), STATUS_OK);
}

START_TEST(the_tenant_that_loses_first_is_the_one_that_a_plain_scan_finds)
{
    struct dice dice = {(uint64_t)_i + 1};
    for (int step = 0; step < STEPS; step++) {
        uint32_t w = dice_below(&dice, TENANTS), what = dice_below(&dice, 20);
        if (what < 9)
            do_publish(w, &dice);
        else if (what < 19)
            do_release(w);
        else
            do_limit(&dice);
        if (dice_below(&dice, 3)) // several changes at once, too
            compare();
        world_check(&world);
    }
    ck_assert_uint_gt(num_found, STEPS);
    ck_assert_uint_gt(core_metrics(world.core)[METRIC_EVICTIONS], 100);
}
END_TEST

START_TEST(tenants_are_listed_in_the_order_of_their_arrival_while_they_come_and_go)
{
    struct core_tenant_view view;
    uint64_t last = 0;
    uint32_t seen = 0;
    for (uint32_t i = 0; core_tenant_at(world.core, i, &view); i++) {
        ck_assert_uint_gt(view.tenant, last);
        last = view.tenant;
        seen++;
    }
    ck_assert_uint_eq(seen, TENANTS);
    ck_assert(core_tenant_at(world.core, 5, &view));
    const uint64_t fifth = view.tenant; // of index 5, then 4
    worker_close(&workers[2], false);   // before the one that was listed last
    ck_assert(core_tenant_at(world.core, 5, &view));
    ck_assert_uint_gt(view.tenant, fifth);
    ck_assert(core_tenant_at(world.core, 4, &view));
    ck_assert_uint_eq(view.tenant, fifth);
    worker_close(&workers[5], false); // the one that was listed last
    ck_assert(core_tenant_at(world.core, 4, &view));
    ck_assert_uint_gt(view.tenant, fifth);
    ck_assert(core_tenant_at(world.core, 3, &view));
    ck_assert_uint_lt(view.tenant, fifth);
    worker_open(&workers[2], &world, 1, "");
    worker_open(&workers[5], &world, 2, "");
    ck_assert(core_tenant_at(world.core, TENANTS - 1, &view));
    ck_assert_str_eq(view.label, "uid:2");
    ck_assert(!core_tenant_at(world.core, TENANTS, &view));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("evict");
    const TTest *const tests[] = {the_tenant_that_loses_first_is_the_one_that_a_plain_scan_finds,
                                  NULL};
    const TTest *const lists[] = {
        tenants_are_listed_in_the_order_of_their_arrival_while_they_come_and_go, NULL};
    check_case(suite, "ranks", open_world, close_world, tests, 6);
    check_case(suite, "list", open_world, close_world, lists, 1);
    return check_main(suite);
}
