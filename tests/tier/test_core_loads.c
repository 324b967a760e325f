// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_core_loads.c - blocks that left the GPU for a host tier and come back: what a look-up is
// promised, window by window, what a tenant may load, whether it pays, and what remains after
// failures and deaths. The fake engine's slots tell whose block came back. All tests run twice:
// with copies among the runs, and with hauls.

#include "base/clock.h"
#include "core/pool/tenant.h"
#include "rigs/dice.h"
#include "tier/files/files.h"
#include "tiered_world.h"

#include <poll.h>
#include <string.h>

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

// The tier loses blocks [first, first + count) of the text.
static void drop(struct tier *from, uint32_t first, uint32_t count)
{
    struct tier_job *job = tier_job_create(TIER_DELETE, count);
    struct stored_chain chain = stored_chain_begin("", 0);
    struct cache *cache;
    ck_assert_status(cache_find(&world.core->pool, a.cache, &cache, &error), STATUS_OK);
    job->space = errand_space(cache, a.session->salt);
    job->deadline_ns = job->abandon_ns = FOREVER;
    for (uint32_t i = 0; i < first + count; i++) {
        chain = stored_chain_next(&chain, tokens + i * BLOCK, BLOCK);
        if (i >= first)
            job->blocks[i - first].chain = chain;
    }
    tier_start(from, job);
    settle();
}

START_TEST(a_hole_keeps_what_stands_before_it)
{
    compute(&a, tokens, 4);
    evict_all(&a);
    drop(tier, 2, 1);
    ck_assert_uint_eq(load(&b, tokens, 4, CORE_LOAD_AUTO), 2);
    settle();
    expect_found(&b, 4, 2);
}
END_TEST

static void expect_looks(struct tier *in, uint64_t hits, uint64_t misses)
{
    struct tier_counts counts;
    tier_counts(in, &counts);
    ck_assert_uint_eq(counts.hits, hits);
    ck_assert_uint_eq(counts.misses, misses);
}

START_TEST(a_block_that_a_look_up_finds_is_one_hit_and_the_block_that_ends_it_a_miss)
{
    compute(&a, tokens, 4);
    evict_all(&a);
    expect_looks(tier, 0, 0); // stores and the GPU's look-ups ask no tier
    ck_assert_uint_eq(load(&b, tokens, 6, CORE_LOAD_AUTO), 4);
    settle();
    expect_looks(tier, 4, 1);
    ck_assert_uint_eq(metric(METRIC_TIER_HOST_HITS), 4);
    ck_assert_uint_eq(metric(METRIC_TIER_HOST_MISSES), 1);
    expect_found(&b, 6, 4);
    expect_looks(tier, 4, 1);
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
        order(FAULT_HOLD, TIER_LOAD, STORED_OK, 1);
        ck_assert_uint_eq(load(&b, tokens, 7, CORE_LOAD_AUTO), 7);
        while (!fault_num_held(fault))
            world_step(&world);
        ck_assert_uint_eq(world.core->tiers.errands->window, 2);
        order(FAULT_FAIL, TIER_LOAD, STORED_TIMEOUT, fails);
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
    order(FAULT_HOLD, TIER_LOAD, STORED_OK, 1);
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
            order(FAULT_HOLD, TIER_LOAD, STORED_OK, 1);
    }
    settle();
    expect_found(&b, 12, 12);
}
END_TEST

START_TEST(a_load_that_runs_out_of_time_counts_as_slow_until_one_succeeds)
{
    struct tiers *tiers = &world.core->tiers;
    compute(&a, tokens, 4);
    evict_all(&a);
    order(FAULT_FAIL, TIER_LOAD, STORED_TIMEOUT, 1);
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
    order(FAULT_FLIP, TIER_LOAD, STORED_OK, 1);
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
    order(FAULT_HOLD, TIER_LOAD, STORED_OK, 1);
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

static struct pace *pace_of(const struct worker *worker)
{
    struct hold_table *table;
    ck_assert_status(hold_table_find(worker->session, worker->cache, &table, &error), STATUS_OK);
    return &table->account->pace;
}

START_TEST(the_caller_can_forbid_and_force_loads_and_slow_ones_are_declined)
{
    compute(&a, tokens, 4);
    evict_all(&a);
    ck_assert_uint_eq(load(&b, tokens, 4, CORE_LOAD_NEVER), 0);
    pace_of(&b)->token_ns = 10;
    world.core->tiers.load_ns[0] = 1000 * NS_PER_MS;
    ck_assert_uint_eq(load(&b, tokens, 4, CORE_LOAD_AUTO), 0);
    ck_assert_uint_eq(metric(METRIC_TIER_DECLINED), 4);
    ck_assert_uint_eq(load(&b, tokens, 4, CORE_LOAD_ALWAYS), 4);
    settle();
    evict_all(&a);
    pace_of(&b)->token_ns = NS_PER_S;
    ck_assert_uint_eq(load(&b, tokens, 4, CORE_LOAD_AUTO), 4);
    settle();
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

// Writes blocks[first .. first + count), layer by layer, which takes `each_ns` for a token.
static void write_slowly(struct worker *worker, const int32_t *ids, const int32_t *text,
                         uint32_t num_tokens, uint32_t num_new, int64_t each_ns)
{
    const uint64_t batch = worker_batch(worker, ids, num_tokens, num_new);
    for (uint32_t layer = 0; layer < WORLD_LAYERS; layer++) {
        const uint64_t ticket =
            worker_run(worker, batch, layer, num_new, text + num_tokens - num_new);
        world.now_ns += each_ns * num_new / WORLD_LAYERS;
        world_finish_all(&world);
        worker_reap(worker, ticket, STATUS_OK);
    }
    ck_assert_status(core_batch_destroy(worker->session, batch, &error), STATUS_OK);
}

// The worker looks the text up, and computes four blocks, which takes it `each_ns` for a token.
// Then it idles, generates a block token by token, and publishes everything at last.
static void teach(struct worker *worker, const int32_t *text, int64_t each_ns)
{
    int32_t ids[5];
    ck_assert_uint_eq(worker_lookup(worker, text, 4 * BLOCK, ids), 0);
    worker_lease(worker, 5, ids);
    world.now_ns += NS_PER_S;
    world_step(&world);
    write_slowly(worker, ids, text, 4 * BLOCK, 4 * BLOCK, each_ns);
    world.now_ns += NS_PER_S;
    for (uint32_t i = 1; i <= BLOCK; i++)
        write_slowly(worker, ids, text, 4 * BLOCK + i, 1, NS_PER_S);
    worker_publish(worker, text, 5 * BLOCK, ids);
    settle();
    worker_release(worker, ids, 5);
}

static void expect_pace(const struct worker *worker, int64_t each_ns)
{
    ck_assert_int_ge(pace_of(worker)->token_ns, each_ns);
    ck_assert_int_le(pace_of(worker)->token_ns, each_ns + each_ns / 100);
}

START_TEST(workers_teach_what_computing_takes_and_idle_and_generating_time_does_not_count)
{
    teach(&a, tokens, 100000); // it waits for pipelines to be compiled
    expect_pace(&a, 100000);
    teach(&b, tokens + 1000, 1000);
    expect_pace(&a, 1000);
    for (int i = 2; i < 14; i++)
        teach(&a, tokens + 10 * i, i % 2 ? 9000 : 1000);
    expect_pace(&a, 1000);
    ck_assert_uint_eq(pace_of(&a)->num_learnt, 14);
    for (int i = 0; i < 14; i++)
        teach(&a, tokens + 300 + 10 * i, 9000);
    expect_pace(&a, 9000); // old times are forgotten
}
END_TEST

START_TEST(a_slow_tier_is_declined_also_if_nobody_claims_and_other_tenants_teach_nothing)
{
    compute(&a, tokens, 4);
    evict_all(&a);
    worker_open(&c, &world, 2, "");
    world.core->tiers.load_ns[0] = 1000 * NS_PER_MS;
    teach(&c, tokens + 100, 1000);
    ck_assert_int_eq(pace_of(&a)->token_ns, 0);
    ck_assert_uint_eq(load(&b, tokens, 4, CORE_LOAD_AUTO), 4); // nothing is known
    settle();
    evict_all(&a);
    teach(&a, tokens + 100, 1000);
    world.core->tiers.load_ns[0] = 1000 * NS_PER_MS;
    ck_assert_uint_eq(load(&b, tokens, 4, CORE_LOAD_AUTO), 0);
    ck_assert_uint_eq(metric(METRIC_TIER_DECLINED), 4);
}
END_TEST

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
            order(dice_chance(&dice, 50) ? FAULT_FLIP : FAULT_TRUNCATE, TIER_LOAD, STORED_OK, 1);
            break;
        case 6:
            order(FAULT_FAIL, dice_chance(&dice, 50) ? TIER_LOAD : TIER_STORE, STORED_STORE, 1);
            break;
        default: fetch(worker, text, count); break;
        }
        settle();
    }
    ck_assert_uint_gt(metric(METRIC_TIER_LOADED_TOKENS), 0);
}
END_TEST

// ---- hauls ----

static uint32_t count_hauls(void)
{
    uint32_t count = 0;
    for (const struct fake_submission *s = fake_engine_oldest_haul(engine); s; s = s->next)
        count++;
    return count;
}

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
    while (count_hauls() < 2) {
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

// ---- tiers behind the host tier ----

static char folders[2][64];
static struct tier_ops silent; // a tier of files that cannot say at once what it has

static void open_further(void)
{
    silent = files_ops;
    silent.probe = NULL;
    for (int i = 0; i < 2; i++) {
        struct tier_backend *files = make_files(folders[i], 1 << 20);
        ck_assert_status(tier_create(i ? &files_ops : &silent, files, &further[i], &error),
                         STATUS_OK);
    }
    open_world(0);
}

static void close_further(void)
{
    close_world();
    for (int i = 0; i < 2; i++) {
        ck_assert(tier_close(further[i], FOREVER));
        remove_folder(folders[i]);
    }
}

// The host tier and the last one say at once that they lack the blocks; the other is asked.
START_TEST(a_look_up_asks_each_tier_once_for_a_block)
{
    compute(&a, tokens, 2);
    evict_all(&a);
    drop(tier, 0, 2);
    drop(further[1], 0, 2);
    ck_assert_uint_eq(load(&b, tokens, 3, CORE_LOAD_AUTO), 3); // as far as is known
    settle();
    expect_looks(tier, 0, 3);
    expect_looks(further[0], 2, 1);
    expect_looks(further[1], 0, 3);
    expect_found(&b, 3, 2);
}
END_TEST

static void open_limited(void)
{
    open_world(POOL);
}

int main(void)
{
    const TTest *const tests[] = {
        evicted_blocks_come_back_with_their_contents_to_whoever_looks_them_up,
        only_what_is_missing_is_loaded_and_what_follows_is_the_claims_to_compute,
        a_hole_keeps_what_stands_before_it,
        a_block_that_a_look_up_finds_is_one_hit_and_the_block_that_ends_it_a_miss,
        a_look_up_is_told_of_the_load_that_an_earlier_one_began,
        a_long_load_comes_window_by_window_and_ends_where_a_window_fails,
        each_window_of_a_load_is_twice_as_long_as_the_one_before,
        a_load_that_runs_out_of_time_counts_as_slow_until_one_succeeds,
        a_flipped_block_is_left_to_the_next_claim,
        an_abandoned_load_frees_its_blocks_and_its_claim_and_later_its_memory,
        a_failed_copy_publishes_nothing_and_loses_no_block,
        the_caller_can_forbid_and_force_loads_and_slow_ones_are_declined,
        other_tenants_find_nothing,
        what_an_older_claim_computes_is_not_loaded,
        workers_teach_what_computing_takes_and_idle_and_generating_time_does_not_count,
        a_slow_tier_is_declined_also_if_nobody_claims_and_other_tenants_teach_nothing,
        random_loads_with_harm_never_bring_a_wrong_block,
        NULL,
    };
    const TTest *const behind[] = {a_look_up_asks_each_tier_once_for_a_block, NULL};
    const TTest *const limited[] = {a_tenant_at_its_limit_loads_nothing, NULL};
    const TTest *const hauling[] = {
        a_haul_into_blocks_of_another_tenant_follows_their_zeroing,
        windows_that_come_in_another_order_are_found_in_the_prompts_order,
        a_window_that_fails_takes_those_behind_it_along,
        NULL,
    };
    Suite *suite = suite_create("core, loads");
    add_ways(suite, (const char *[]){"loads", "loads, hauls"}, open_free, close_world, tests);
    add_ways(suite, (const char *[]){"limits", "limits, hauls"}, open_limited, close_world,
             limited);
    add_ways(suite, (const char *[]){"further", "further, hauls"}, open_further, close_further,
             behind);
    add_hauls(suite, "hauls", open_free, close_world, hauling);
    return check_main(suite);
}
