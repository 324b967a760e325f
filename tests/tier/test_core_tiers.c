// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_core_tiers.c - blocks that leave the GPU for a host tier and come back: what is stored, what
// a look-up is promised, whose quota counts, and what remains after failures and deaths. The tier
// is the real one, behind a tier that does harm. The fake engine's slots tell whose block came
// back. All tests run twice: with copies among the runs, and with hauls.

#include "base/clock.h"
#include "core/errand.h"
#include "core/pool/tenant.h"
#include "core/state.h"
#include "rigs/check_main.h"
#include "rigs/dice.h"
#include "rigs/ownership_world.h"
#include "tier/fault.h"
#include "tier/files/files.h"
#include "tier/host.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = WORLD_BLOCK, POOL = 16, AREA = 64 * 4096, NARROW = 4 * 4096 };

static struct engine *engine;
static struct engine_arena *arena;
static struct tier *tier;
static struct tier_backend *host, *fault;
static uint8_t *memory;
static uint64_t load_id;       // of the last load()
static struct tier *further;   // a tier behind the host tier; NULL: there is none
static uint64_t cached_of_all; // limit of each tenant
static uint64_t area = AREA;
static bool hauls; // the engine has hauls

static void open_world(uint64_t tenant_blocks)
{
    const struct tier_ops *ops;
    engine = fake_engine_create();
    fake_engine_have_hauls(engine, hauls);
    memory = aligned_alloc(4096, area);
    ck_assert_status(host_open(&(struct host_params){.base = memory, .size = area}, &host, &error),
                     STATUS_OK);
    fault = fault_open(&host_ops, host, &ops);
    ck_assert_status(tier_create(ops, fault, &tier, &error), STATUS_OK);
    ck_assert_status(engine_arena_create(engine, memory, area, &arena, &error), STATUS_OK);
    const struct core_params params = {
        .engine = engine,
        .max_blocks = POOL,
        .tenant_limits = {.blocks = tenant_blocks, .cached = cached_of_all},
        .tiers = {.host = tier,
                  .area = host,
                  .base = memory,
                  .arena = arena,
                  .more = {further},
                  .num_more = further != NULL,
                  .deadline_ns = FOREVER,
                  .abandon_ns = FOREVER,
                  .max_errands = 16},
    };
    world_open(&world, &params);
    worker_open(&a, &world, 1, "");
    worker_open(&b, &world, 1, "");
    count_tokens(tokens, 2048, 1000);
}

static void open_free(void)
{
    open_world(0);
}

static void close_world(void)
{
    world_check(&world);
    core_destroy(world.core);
    ck_assert(tier_close(tier, FOREVER));
    ck_assert(engine_arena_destroy(arena));
    engine_destroy(engine);
    free(memory);
}

// Finishes all submissions and the jobs of the tier, but those that it holds.
static void settle(void)
{
    world_step(&world);
    while (!core_idle(world.core)) {
        if (!fake_engine_finish(engine)) {
            struct pollfd news[2] = {
                {.fd = tier_fd(tier), .events = POLLIN},
                {.fd = further ? tier_fd(further) : -1, .events = POLLIN},
            };
            if (tier_num_jobs(tier) && tier_num_jobs(tier) == fault_num_held(fault))
                break;
            poll(news, 2, 20); // the time only bounds the wait for a job that is then held
        }
        world_step(&world);
        world_check(&world);
    }
    world_step(&world);
    world_check(&world);
}

// The oldest of the copies that are under way.
static struct fake_submission *first_copy(void)
{
    return hauls ? fake_engine_oldest_haul(engine) : fake_engine_oldest(engine);
}

static void order(enum fault_kind kind, enum tier_kind jobs, enum record_reason reason,
                  uint32_t times)
{
    const struct fault_order now = {kind, jobs, reason, 100, times};
    fault_order(fault, &now);
}

// Computes and publishes the first blocks of the text, and lets them go.
static void compute(struct worker *worker, const int32_t *text, uint32_t count)
{
    int32_t ids[POOL];
    worker_lease(worker, count, ids);
    uint64_t last;
    worker_write_async(worker, ids, text, count * BLOCK, &last);
    settle();
    worker_reap(worker, last, STATUS_OK);
    const struct core_prefix prefix = {
        .tokens = text, .num_tokens = count * BLOCK, .releases = true};
    uint32_t existing;
    ck_assert_status(
        core_prefix_publish(worker->session, worker->cache, &prefix, ids, count, &existing, &error),
        STATUS_OK);
    settle();
    worker_release(worker, ids, count);
}

// Evicts all that is cached.
static void evict_all(struct worker *worker)
{
    int32_t ids[POOL];
    worker_lease(worker, POOL, ids);
    worker_release(worker, ids, POOL);
    settle();
}

static uint32_t load(struct worker *worker, const int32_t *text, uint32_t count,
                     enum core_load rule)
{
    const struct core_prefix prefix = {.tokens = text, .num_tokens = count * BLOCK};
    const uint32_t begun =
        core_prefix_load(worker->session, worker->cache, &prefix, 0, rule, &load_id);
    world_check(&world);
    return begun;
}

static struct core_claim claim(struct worker *worker, const int32_t *text, uint32_t count)
{
    const struct core_prefix prefix = {.tokens = text, .num_tokens = count * BLOCK};
    struct core_claim out;
    ck_assert_status(
        core_prefix_claim(worker->session, worker->cache, &prefix, 0, found, &out, &error),
        STATUS_OK);
    return out;
}

// The `count` blocks in `found` have the numbers of these tokens in all layers.
static void expect_numbers(const struct worker *worker, const int32_t *text, uint32_t count)
{
    const struct engine_cache *cache = core_engine_cache(world.core, worker->cache);
    for (uint32_t i = 0; i < count * BLOCK; i++)
        for (uint32_t layer = 0; layer < WORLD_LAYERS; layer++)
            ck_assert_int_eq(fake_engine_slot(cache, layer, found[i / BLOCK], i % BLOCK), text[i]);
}

// Of `asked` blocks the worker finds the first `count`, with their contents. It lets them go.
static void expect_found(struct worker *worker, uint32_t asked, uint32_t count)
{
    ck_assert_uint_eq(worker_lookup(worker, tokens, asked * BLOCK, found), count);
    expect_numbers(worker, tokens, count);
    if (count)
        worker_release(worker, found, count);
}

// Takes `count` blocks that have come, which have the numbers of their tokens.
static void take(struct worker *worker, const struct core_claim *own, const int32_t *text,
                 uint32_t count)
{
    struct core_claim out;
    uint32_t num_blocks;
    ck_assert_status(core_claim_take(worker->session, worker->cache, own->claim, found, &num_blocks,
                                     &out, &error),
                     STATUS_OK);
    ck_assert_uint_eq(num_blocks, count);
    expect_numbers(worker, text + own->num_found * BLOCK, count);
    worker_release(worker, found, count);
}

static uint64_t metric(enum metric which)
{
    return core_metrics(world.core)[which];
}

START_TEST(evicted_blocks_come_back_with_their_contents_to_whoever_looks_them_up)
{
    compute(&a, tokens, 4);
    evict_all(&a);
    expect_found(&b, 4, 0);
    ck_assert_uint_eq(load(&b, tokens, 4, CORE_LOAD_AUTO), 4);
    const struct core_claim own = claim(&b, tokens, 4), other = claim(&a, tokens, 4);
    ck_assert_uint_eq(own.num_found, 0);
    ck_assert_uint_eq(own.num_promised, 4);
    ck_assert_uint_eq(other.num_promised, 4);
    settle();
    take(&b, &own, tokens, 4);
    take(&a, &other, tokens, 4);
    ck_assert_uint_eq(metric(METRIC_TIER_LOADED_TOKENS), 4 * BLOCK);
    ck_assert_uint_eq(worker_counts(&a).cached, 4);
}
END_TEST

START_TEST(only_what_is_missing_is_loaded_and_what_follows_is_the_claims_to_compute)
{
    compute(&a, tokens, 4);
    evict_all(&a);
    compute(&a, tokens, 2);
    ck_assert_uint_eq(load(&b, tokens, 6, CORE_LOAD_AUTO), 2);
    const struct core_claim own = claim(&b, tokens, 6);
    ck_assert_uint_eq(own.num_found, 2);
    ck_assert_uint_eq(own.num_promised, 2);
    settle();
    take(&b, &own, tokens, 2);
    worker_close(&b, false);
    settle();
}
END_TEST

START_TEST(a_hole_keeps_what_stands_before_it)
{
    compute(&a, tokens, 4);
    evict_all(&a);
    struct tier_job *job = tier_job_create(TIER_DELETE, 1);
    struct cache *cache;
    ck_assert_status(cache_find(&world.core->pool, a.cache, &cache, &error), STATUS_OK);
    memcpy(job->space.fingerprint, cache->name_in_tiers, RECORD_ID_BYTES);
    memcpy(job->space.salt, a.session->salt->name_in_tiers, RECORD_ID_BYTES);
    job->deadline_ns = job->abandon_ns = FOREVER;
    struct record_chain chain = record_chain_begin("", 0);
    for (int i = 0; i < 3; i++)
        chain = record_chain_next(&chain, tokens + i * BLOCK, BLOCK);
    job->blocks[0].chain = chain;
    tier_start(tier, job);
    settle();
    ck_assert_uint_eq(load(&b, tokens, 4, CORE_LOAD_AUTO), 2);
    settle();
    expect_found(&b, 4, 2);
}
END_TEST

START_TEST(a_look_up_is_told_of_the_load_that_an_earlier_one_began)
{
    compute(&a, tokens, 4);
    evict_all(&a);
    ck_assert_uint_eq(load(&b, tokens, 4, CORE_LOAD_AUTO), 4);
    const uint64_t first = load_id;
    ck_assert_uint_ne(first, 0);
    ck_assert_uint_eq(load(&a, tokens, 3, CORE_LOAD_AUTO), 0);
    ck_assert_uint_eq(load_id, first);
    ck_assert(core_load_runs(world.core, first));
    ck_assert_uint_eq(load(&a, tokens + 1, 3, CORE_LOAD_AUTO), 0);
    ck_assert_uint_eq(load_id, 0);
    worker_open(&c, &world, 1, "other");
    ck_assert_uint_eq(load(&c, tokens, 4, CORE_LOAD_AUTO), 0);
    ck_assert_uint_eq(load_id, 0);
    settle();
    ck_assert(!core_load_runs(world.core, first));
    expect_found(&a, 4, 4);
}
END_TEST

START_TEST(a_long_load_comes_window_by_window_and_ends_where_a_window_fails)
{
    struct core_tiers *params = &world.core->params.tiers;
    struct cache *cache;
    compute(&a, tokens, 7);
    ck_assert_status(cache_find(&world.core->pool, a.cache, &cache, &error), STATUS_OK);
    for (uint32_t fails = 0; fails < 2; fails++) {
        evict_all(&a);
        // So slow that two blocks come in half of the time that an operation has.
        params->deadline_ns = INT64_C(1) << 52;
        world.core->tiers.load_ns[0] = (int64_t)((double)params->deadline_ns / 2 * (1 << 20) /
                                                 (2.01 * (double)cache->block_bytes));
        order(FAULT_HOLD, TIER_LOAD, RECORD_OK, 1);
        ck_assert_uint_eq(load(&b, tokens, 7, CORE_LOAD_AUTO), 7);
        while (!fault_num_held(fault))
            world_step(&world);
        ck_assert_uint_eq(world.core->tiers.errands->window, 2);
        order(FAULT_FAIL, TIER_LOAD, RECORD_TIMEOUT, fails);
        fault_let_go(fault);
        settle();
        const uint32_t count = fails ? 2 : 7;
        expect_found(&b, 7, count);
        ck_assert_uint_eq(metric(METRIC_TIER_LOADED_TOKENS), (fails ? 9 : 7) * BLOCK);
    }
}
END_TEST

// Nothing is copied while the first window is checked, so it is short.
START_TEST(each_window_of_a_load_is_twice_as_long_as_the_one_before)
{
    static const uint32_t ends[] = {1, 3, 7, 11, 12}; // at most four blocks
    struct core_tiers *params = &world.core->params.tiers;
    compute(&a, tokens, 12);
    evict_all(&a);
    params->first_window = WORLD_BLOCK_BYTES;
    params->deadline_ns = INT64_C(1) << 52;
    world.core->tiers.load_ns[0] =
        (int64_t)((double)params->deadline_ns / 2 * (1 << 20) / (4.01 * WORLD_BLOCK_BYTES));
    order(FAULT_HOLD, TIER_LOAD, RECORD_OK, 1);
    ck_assert_uint_eq(load(&b, tokens, 12, CORE_LOAD_AUTO), 12);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        while (!fault_num_held(fault)) {
            while (fake_engine_oldest_haul(engine))
                fake_engine_finish_haul(engine, NULL);
            while (fake_engine_oldest(engine))
                fake_engine_finish(engine);
            world_step(&world);
            world_check(&world);
        }
        ck_assert_uint_eq(world.core->tiers.errands->window, ends[i]);
        fault_let_go(fault);
        if (i + 1 < sizeof ends / sizeof *ends)
            order(FAULT_HOLD, TIER_LOAD, RECORD_OK, 1);
    }
    settle();
    expect_found(&b, 12, 12);
}
END_TEST

// One store's blocks are checked while the next one's are copied.
START_TEST(a_burst_of_blocks_is_stored_by_several_stores)
{
    struct tier_counts counts;
    world.core->params.tiers.store_bytes = 3 * WORLD_BLOCK_BYTES;
    order(FAULT_HOLD, TIER_STORE, RECORD_OK, 9);
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

START_TEST(a_load_that_runs_out_of_time_counts_as_slow_until_one_succeeds)
{
    struct tiers *tiers = &world.core->tiers;
    compute(&a, tokens, 4);
    evict_all(&a);
    order(FAULT_FAIL, TIER_LOAD, RECORD_TIMEOUT, 1);
    load(&b, tokens, 4, CORE_LOAD_AUTO);
    settle();
    ck_assert_int_gt(tiers->load_ns[0], 0);
    ck_assert(tiers->ran_out[0]);
    tiers->load_ns[0] = NS_PER_S;
    load(&b, tokens, 4, CORE_LOAD_ALWAYS);
    settle();
    ck_assert_int_lt(tiers->load_ns[0], NS_PER_S / 2); // not a mean of both
    ck_assert(!tiers->ran_out[0]);
}
END_TEST

START_TEST(a_flipped_block_is_left_to_the_next_claim)
{
    compute(&a, tokens, 4);
    evict_all(&a);
    order(FAULT_FLIP, TIER_LOAD, RECORD_OK, 1);
    ck_assert_uint_eq(load(&b, tokens, 4, CORE_LOAD_AUTO), 4);
    const struct core_claim own = claim(&b, tokens, 4);
    ck_assert_uint_eq(own.num_promised, 4);
    settle();
    ck_assert(!core_claim_waits(b.session, b.cache, own.claim));
    ck_assert_uint_eq(core_claim_missing(b.session, b.cache, own.claim), 4);
    ck_assert_uint_eq(worker_counts(&a).free, POOL);
    ck_assert_uint_eq(world.core->tiers.num_errands, 0);
}
END_TEST

START_TEST(an_abandoned_load_frees_its_blocks_and_its_claim_and_later_its_memory)
{
    compute(&a, tokens, 4);
    evict_all(&a);
    world.core->params.tiers.abandon_ns = 1000; // of the fake clock, so only for the load
    order(FAULT_HOLD, TIER_LOAD, RECORD_OK, 1);
    load(&b, tokens, 4, CORE_LOAD_AUTO);
    const struct core_claim own = claim(&b, tokens, 4);
    while (!fault_num_held(fault))
        ;
    world_step(&world);
    ck_assert(core_claim_waits(b.session, b.cache, own.claim));
    world.now_ns += 1000;
    ck_assert_int_le(core_wake_ns(world.core), world.now_ns);
    world_step(&world);
    ck_assert(!core_claim_waits(b.session, b.cache, own.claim));
    ck_assert_uint_eq(worker_counts(&a).free, POOL);
    ck_assert_uint_eq(tier_num_abandoned(tier), 1);
    fault_let_go(fault);
    while (tier_num_jobs(tier))
        world_step(&world);
    core_claim_release(b.session, b.cache, own.claim, 0, NULL);
    ck_assert_uint_eq(load(&b, tokens, 4, CORE_LOAD_AUTO), 4); // it is still there
    settle();
    expect_found(&b, 4, 4);
}
END_TEST

START_TEST(a_failed_copy_publishes_nothing_and_loses_no_block)
{
    compute(&a, tokens, 4);
    evict_all(&a);
    load(&b, tokens, 4, CORE_LOAD_AUTO);
    while (!first_copy()) {
        struct pollfd news = {.fd = tier_fd(tier), .events = POLLIN};
        poll(&news, 1, 20);
        world_step(&world);
    }
    for (struct fake_submission *s = first_copy(); s; s = s->next)
        for (uint32_t i = 0; i < s->num_runs; i++)
            s->runs[i].fail = STATUS_INTERNAL;
    settle();
    expect_found(&b, 4, 0);
    ck_assert_uint_eq(worker_counts(&a).free, POOL);
}
END_TEST

START_TEST(a_tenant_at_its_limit_loads_nothing)
{
    compute(&a, tokens, 4);
    evict_all(&a);
    int32_t ids[POOL];
    worker_lease(&a, POOL - 3, ids);
    ck_assert_uint_eq(load(&b, tokens, 4, CORE_LOAD_AUTO), 0);
    worker_release(&a, ids, 1);
    ck_assert_uint_eq(load(&b, tokens, 4, CORE_LOAD_AUTO), 4);
    settle();
}
END_TEST

START_TEST(the_caller_can_forbid_and_force_loads_and_slow_ones_are_declined)
{
    struct cache *cache;
    compute(&a, tokens, 4);
    evict_all(&a);
    ck_assert_uint_eq(load(&b, tokens, 4, CORE_LOAD_NEVER), 0);
    ck_assert_status(cache_find(&world.core->pool, a.cache, &cache, &error), STATUS_OK);
    cache->compute_ns = 10;
    world.core->tiers.load_ns[0] = 1000 * NS_PER_MS;
    ck_assert_uint_eq(load(&b, tokens, 4, CORE_LOAD_AUTO), 0);
    ck_assert_uint_eq(metric(METRIC_TIER_DECLINED), 4);
    ck_assert_uint_eq(load(&b, tokens, 4, CORE_LOAD_ALWAYS), 4);
    settle();
    evict_all(&a);
    cache->compute_ns = NS_PER_S;
    ck_assert_uint_eq(load(&b, tokens, 4, CORE_LOAD_AUTO), 4);
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

START_TEST(other_tenants_find_nothing)
{
    compute(&a, tokens, 4);
    evict_all(&a);
    worker_open(&c, &world, 1, "other");
    ck_assert_uint_eq(load(&c, tokens, 4, CORE_LOAD_ALWAYS), 0);
}
END_TEST

START_TEST(what_an_older_claim_computes_is_not_loaded)
{
    compute(&a, tokens, 4);
    evict_all(&a);
    const struct core_claim own = claim(&a, tokens, 4);
    ck_assert_uint_eq(own.num_promised, 0);
    ck_assert_uint_eq(load(&b, tokens, 4, CORE_LOAD_ALWAYS), 0);
}
END_TEST

// The worker claims the text and computes it, which takes it `each_ns` for a token.
static void teach(struct worker *worker, const int32_t *text, int64_t each_ns)
{
    int32_t ids[4];
    const struct core_claim own = claim(worker, text, 4);
    ck_assert_uint_eq(own.num_found + own.num_promised, 0);
    worker_lease(worker, 4, ids);
    worker_write(worker, ids, text, 4 * BLOCK);
    world.now_ns += each_ns * 4 * BLOCK;
    world_step(&world);
    worker_publish(worker, text, 4 * BLOCK, ids);
    settle();
    worker_release(worker, ids, 4);
}

// The first one waits for pipelines to be compiled. That must not count for long.
START_TEST(workers_teach_what_computing_takes)
{
    struct cache *cache;
    ck_assert_status(cache_find(&world.core->pool, a.cache, &cache, &error), STATUS_OK);
    teach(&a, tokens, 100000);
    ck_assert_int_ge(cache->compute_ns, 100000);
    teach(&a, tokens + 100, 1000);
    ck_assert_int_ge(cache->compute_ns, 1000);
    ck_assert_int_lt(cache->compute_ns, 2000);
    teach(&a, tokens + 200, 9000); // one that is slow for once
    ck_assert_int_ge(cache->compute_ns, 3000);
    ck_assert_int_lt(cache->compute_ns, 4000);
}
END_TEST

// A short prompt takes less for each token. That must not halve what long ones have taught.
START_TEST(one_fast_worker_among_many_does_not_replace_the_mean)
{
    struct cache *cache;
    ck_assert_status(cache_find(&world.core->pool, a.cache, &cache, &error), STATUS_OK);
    for (int i = 0; i < 8; i++)
        teach(&a, tokens + 100 * i, 10000);
    const int64_t mean_ns = cache->compute_ns;
    ck_assert_int_ge(mean_ns, 10000);
    teach(&a, tokens + 800, 1000);
    ck_assert_int_lt(cache->compute_ns, mean_ns);
    ck_assert_int_gt(cache->compute_ns, mean_ns / 2);
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
    ck_assert_uint_eq(counts.failed[RECORD_TIMEOUT], 4);
    ck_assert_uint_eq(counts.failed[RECORD_ABANDONED], 0);
    params->deadline_ns = params->abandon_ns / 8;
    compute(&a, tokens + 100, 4);
    settle();
    tier_counts(tier, &counts);
    ck_assert_uint_eq(counts.stored, 4);
}
END_TEST

// Loads what the tiers have of the text, and lets it go. It has the numbers of its tokens.
static void fetch(struct worker *worker, const int32_t *text, uint32_t count)
{
    load(worker, text, count, CORE_LOAD_ALWAYS);
    const struct core_claim own = claim(worker, text, count);
    if (own.num_found)
        worker_release(worker, found, own.num_found);
    settle();
    const uint32_t missing =
        own.claim ? core_claim_missing(worker->session, worker->cache, own.claim) : 0;
    struct core_claim out;
    uint32_t num_blocks = 0;
    if (missing && !core_claim_waits(worker->session, worker->cache, own.claim))
        core_claim_take(worker->session, worker->cache, own.claim, found, &num_blocks, &out, NULL);
    expect_numbers(worker, text + own.num_found * BLOCK, num_blocks);
    if (num_blocks)
        worker_release(worker, found, num_blocks);
    if (own.claim)
        core_claim_release(worker->session, worker->cache, own.claim, 0, NULL);
}

// Texts that share beginnings, at random: stored, evicted, loaded and computed again, with harm.
// What comes back always has the numbers of its tokens, and the audit holds after each step.
START_TEST(random_loads_with_harm_never_bring_a_wrong_block)
{
    static int32_t texts[4][5 * BLOCK];
    struct dice dice = {check_draw("tiers")};
    for (int text = 0; text < 4; text++)
        for (int i = 0; i < 5 * BLOCK; i++)
            texts[text][i] = 1 + i + (i >= 2 * BLOCK ? text * 1000 : 0);
    for (int step = 0; step < 250; step++) {
        struct worker *worker = dice_chance(&dice, 50) ? &a : &b;
        const int32_t *text = texts[dice_below(&dice, 4)];
        const uint32_t count = 1 + dice_below(&dice, 5);
        switch (dice_below(&dice, 12)) {
        case 0:
        case 1: compute(worker, text, count); break;
        case 2:
        case 3:
        case 4: evict_all(worker); break;
        case 5:
            order(dice_chance(&dice, 50) ? FAULT_FLIP : FAULT_TRUNCATE, TIER_LOAD, RECORD_OK, 1);
            break;
        case 6:
            order(FAULT_FAIL, dice_chance(&dice, 50) ? TIER_LOAD : TIER_STORE, RECORD_STORE, 1);
            break;
        default: fetch(worker, text, count); break;
        }
        settle();
    }
    ck_assert_uint_gt(metric(METRIC_TIER_LOADED_TOKENS), 0);
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
    const struct files_params params = {
        .path = folder,
        .limit_bytes = FILES_ROOM * (WORLD_BLOCK_BYTES + sizeof(struct record_header)),
    };
    const struct tier_ops *ops;
    struct tier_backend *files;
    snprintf(folder, sizeof folder, "/tmp/aule-core-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_status(files_create(&params, &files, &error), STATUS_OK);
    further_fault = fault_open(&files_ops, files, &ops);
    ck_assert_status(tier_create(ops, further_fault, &further, &error), STATUS_OK);
    open_world(0);
    worker_open(&c, &world, 1, "second");
    worker_open(&d, &world, 1, "third");
    for (int i = 0; i < 3 * TEXTS; i++)
        for (int t = 0; t < LENGTH * BLOCK; t++)
            own_texts[i / TEXTS][i % TEXTS][t] = 1000 * (i + 1) + t;
}

static void close_quotas(void)
{
    char command[80];
    close_world();
    ck_assert(tier_close(further, FOREVER));
    snprintf(command, sizeof command, "rm -rf %s", folder);
    ck_assert_int_eq(system(command), 0);
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
    const struct record_space space = errand_space(cache, tenants[t]->session->salt);
    for (int text = 0; text < TEXTS; text++) {
        struct record_chain chain = record_chain_begin("", 0);
        for (int i = 0; i < LENGTH; i++) {
            chain = record_chain_next(&chain, own_texts[t][text] + i * BLOCK, BLOCK);
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
    ck_assert_uint_eq(count_there(further, 0), 12);
    limit(&a, 3, 0);
    compute(&a, own_texts[0][5], 1); // the next store brings the limit
    await_limits(further, 0, 3);
    ck_assert_uint_eq(count_there(tier, 0), 3);
    ck_assert_uint_eq(count_there(further, 0), 3);
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
    ck_assert_uint_ge(count_there(further, 1), 6);
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
    worker_open(&c, &world, 1, "second");
    compute(&c, own_texts[1][1], LENGTH);
    ck_assert_uint_eq(count_there(tier, 1), 3);
    await_limits(further, 1, 3);
    ck_assert_uint_eq(count_there(further, 1), 3);
}
END_TEST

// The next job or part of one of the tiers is harmed.
static void order_any(struct dice *dice)
{
    struct tier_backend *const faults[] = {fault, further_fault};
    const struct fault_order orders[] = {
        {FAULT_FLIP, TIER_LOAD, RECORD_OK, 100, 1},
        {FAULT_TRUNCATE, TIER_LOAD, RECORD_OK, 100, 1},
        {FAULT_FAIL, TIER_LOAD, RECORD_STORE, 0, 1},
        {FAULT_FAIL, TIER_STORE, RECORD_FULL, 0, 1},
    };
    fault_order(faults[dice_below(dice, 2)], &orders[dice_below(dice, 4)]);
}

// A worker of tenant `t` dies, mostly with stores and loads under way, and another one comes.
static void kill_worker(int t, struct dice *dice)
{
    static const char *const names[] = {"", "second", "third"};
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
    worker_open(worker, &world, 1, names[t]);
}

// Three tenants that store and load at random, with harm and deaths: one with a limit, one with a
// floor. No step of another tenant takes the floor's blocks, and no tier exceeds a limit.
START_TEST(random_stores_and_loads_keep_each_tenants_quota_in_each_tier)
{
    struct dice dice = {check_draw("quotas")};
    struct tier *const all[] = {tier, further};
    limit(&a, 4, 0);
    limit(&c, 0, 6);
    for (int step = 0; step < 120; step++) {
        const int t = (int)dice_below(&dice, 3);
        const int32_t *text = own_texts[t][dice_below(&dice, TEXTS)];
        const uint32_t count = 1 + dice_below(&dice, LENGTH);
        uint32_t before[2] = {count_there(tier, 1), count_there(further, 1)};
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

// ---- hauls ----

static uint32_t count_list(const struct fake_submission *list)
{
    uint32_t count = 0;
    for (; list; list = list->next)
        count++;
    return count;
}

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

// All blocks have been another tenant's, so those that a load gets are zeroed.
START_TEST(a_haul_into_blocks_of_another_tenant_follows_their_zeroing)
{
    compute(&a, tokens, 4);
    worker_open(&c, &world, 1, "other");
    compute(&c, tokens + 7, POOL);
    ck_assert_uint_eq(load(&a, tokens, 4, CORE_LOAD_AUTO), 4);
    uint64_t zeroed = 0;
    while (!fake_engine_oldest_haul(engine)) {
        const struct fake_submission *s = fake_engine_oldest(engine);
        if (s && s->num_zeroes)
            zeroed = s->sequence;
        if (!fake_engine_finish(engine)) {
            struct pollfd news = {.fd = tier_fd(tier), .events = POLLIN};
            poll(&news, 1, 20);
        }
        world_step(&world);
        world_check(&world);
        s = fake_engine_newest(engine);
        zeroed = s && s->num_zeroes ? s->sequence : zeroed;
    }
    ck_assert_uint_ne(zeroed, 0);
    ck_assert_uint_ge(fake_engine_oldest_haul(engine)->after, zeroed);
    settle();
    expect_found(&a, 4, 4);
    worker_close(&c, false);
    settle();
}
END_TEST

// Loads seven blocks in windows of two, until the hauls of the first two windows are on the GPU.
static void begin_two_windows(void)
{
    struct core_tiers *params = &world.core->params.tiers;
    struct cache *cache;
    ck_assert_status(cache_find(&world.core->pool, a.cache, &cache, &error), STATUS_OK);
    params->deadline_ns = INT64_C(1) << 52;
    world.core->tiers.load_ns[0] = (int64_t)((double)params->deadline_ns / 2 * (1 << 20) /
                                             (2.01 * (double)cache->block_bytes));
    ck_assert_uint_eq(load(&b, tokens, 7, CORE_LOAD_AUTO), 7);
    while (count_list(fake_engine_oldest_haul(engine)) < 2) {
        struct pollfd news = {.fd = tier_fd(tier), .events = POLLIN};
        poll(&news, 1, 20);
        world_step(&world);
        while (fake_engine_oldest(engine)) // zeroes
            fake_engine_finish(engine);
    }
}

START_TEST(windows_that_come_in_another_order_are_found_in_the_prompts_order)
{
    compute(&a, tokens, 7);
    evict_all(&a);
    begin_two_windows();
    const struct core_claim own = claim(&b, tokens, 7);
    ck_assert_uint_eq(own.num_promised, 7);
    fake_engine_finish_haul(engine, fake_engine_oldest_haul(engine)->next);
    world_step(&world);
    world_check(&world);
    expect_found(&a, 7, 0);
    ck_assert(core_claim_waits(b.session, b.cache, own.claim));
    fake_engine_finish_haul(engine, NULL);
    world_step(&world);
    world_check(&world);
    expect_found(&a, 7, 4);
    settle();
    take(&b, &own, tokens, 7);
}
END_TEST

START_TEST(a_window_that_fails_takes_those_behind_it_along)
{
    compute(&a, tokens, 7);
    evict_all(&a);
    begin_two_windows();
    const struct core_claim own = claim(&b, tokens, 7);
    fake_engine_finish_haul(engine, fake_engine_oldest_haul(engine)->next);
    world_step(&world);
    fake_engine_oldest_haul(engine)->runs[0].fail = STATUS_INTERNAL;
    settle();
    ck_assert(!core_claim_waits(b.session, b.cache, own.claim)); // the blocks are its to compute
    expect_found(&a, 7, 0);
    core_claim_release(b.session, b.cache, own.claim, 0, NULL);
    settle();
    ck_assert_uint_eq(worker_counts(&a).free, POOL);
    world.core->params.tiers.deadline_ns = FOREVER;
    ck_assert_uint_eq(load(&b, tokens, 7, CORE_LOAD_ALWAYS), 7); // it is still in the tier
    settle();
    expect_found(&b, 7, 7);
}
END_TEST

START_TEST(a_core_that_ends_waits_for_its_hauls)
{
    begin_store(&a);
    ck_assert_uint_ge(count_list(fake_engine_oldest_haul(engine)), 1);
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

static void close_hauling(void)
{
    world_check(&world);
    core_destroy(world.core); // the fake refuses an arena with hauls
    ck_assert(tier_close(tier, FOREVER));
    engine_arena_destroy(arena);
    engine_destroy(engine);
    free(memory);
}

static void open_narrow(void)
{
    area = NARROW;
    open_world(0);
}

static void open_limited(void)
{
    open_world(POOL);
}

static void with_hauls(void)
{
    hauls = true;
}

static void without_hauls(void)
{
    hauls = false;
}

// `way` comes before `open`.
static void add_case(Suite *suite, const char *name, SFun way, SFun open, SFun close,
                     const TTest *const *tests)
{
    TCase *tcase = check_new_case(suite, name, tests, 1);
    tcase_add_checked_fixture(tcase, way, NULL);
    tcase_add_checked_fixture(tcase, open, close);
}

int main(void)
{
    const TTest *const tests[] = {
        evicted_blocks_come_back_with_their_contents_to_whoever_looks_them_up,
        only_what_is_missing_is_loaded_and_what_follows_is_the_claims_to_compute,
        a_hole_keeps_what_stands_before_it,
        a_look_up_is_told_of_the_load_that_an_earlier_one_began,
        a_long_load_comes_window_by_window_and_ends_where_a_window_fails,
        each_window_of_a_load_is_twice_as_long_as_the_one_before,
        a_burst_of_blocks_is_stored_by_several_stores,
        a_load_that_runs_out_of_time_counts_as_slow_until_one_succeeds,
        a_flipped_block_is_left_to_the_next_claim,
        an_abandoned_load_frees_its_blocks_and_its_claim_and_later_its_memory,
        a_failed_copy_publishes_nothing_and_loses_no_block,
        the_caller_can_forbid_and_force_loads_and_slow_ones_are_declined,
        a_worker_that_dies_takes_neither_a_store_nor_a_load_with_it,
        other_tenants_find_nothing,
        what_an_older_claim_computes_is_not_loaded,
        workers_teach_what_computing_takes,
        one_fast_worker_among_many_does_not_replace_the_mean,
        a_store_ends_by_its_deadline_before_it_is_abandoned,
        random_loads_with_harm_never_bring_a_wrong_block,
        NULL,
    };
    const TTest *const narrow[] = {blocks_wait_for_memory_and_all_are_stored_in_the_end, NULL};
    const TTest *const limited[] = {a_tenant_at_its_limit_loads_nothing, NULL};
    const TTest *const quotas[] = {a_tenants_limit_of_cached_blocks_holds_in_each_tier,
                                   a_tenants_floor_holds_in_each_tier_while_others_fill_them,
                                   random_stores_and_loads_keep_each_tenants_quota_in_each_tier,
                                   NULL};
    const TTest *const caps[] = {a_tenant_that_comes_back_has_one_limit_in_each_tier, NULL};
    const TTest *const hauling[] = {
        copies_of_a_tier_are_no_submissions_and_a_run_does_not_wait_for_them,
        a_haul_into_blocks_of_another_tenant_follows_their_zeroing,
        windows_that_come_in_another_order_are_found_in_the_prompts_order,
        a_window_that_fails_takes_those_behind_it_along,
        a_core_that_ends_waits_for_its_hauls,
        a_lost_device_ends_hauls_and_keeps_the_sum,
        NULL,
    };
    Suite *suite = suite_create("core tiers");
    for (int i = 0; i < 2; i++) {
        SFun way = i ? with_hauls : without_hauls;
        add_case(suite, i ? "tiers, hauls" : "tiers", way, open_free, close_world, tests);
        add_case(suite, i ? "limits, hauls" : "limits", way, open_limited, close_world, limited);
        add_case(suite, i ? "quotas, hauls" : "quotas", way, open_quotas, close_quotas, quotas);
        add_case(suite, i ? "caps, hauls" : "caps", way, open_caps, close_quotas, caps);
        add_case(suite, i ? "narrow, hauls" : "narrow", way, open_narrow, close_world, narrow);
    }
    add_case(suite, "hauls", with_hauls, open_free, close_hauling, hauling);
    return check_main(suite);
}
