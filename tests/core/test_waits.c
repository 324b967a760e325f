// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_waits.c - what wakes commands that wait: each call that may help one is news, and names only
// those that it may help.

#include "rigs/check_main.h"
#include "rigs/ownership_world.h"

#include <stdio.h>

enum { HELD = 60 }; // blocks of `a`; the pool has 64

static uint64_t batch;

// ---- calls that let something go ----

static void let_release(void)
{
    worker_release(&a, blocks, 1);
}

static void let_close_cache(void)
{
    ck_assert_status(core_cache_close(a.session, a.cache, &error), STATUS_OK);
}

static void let_close(void)
{
    worker_close(&a, false);
}

static void let_die(void)
{
    worker_close(&a, true);
}

static void make_batch(void)
{
    batch = worker_batch(&a, blocks, 2 * WORLD_BLOCK, 1);
    worker_release(&a, blocks, 2); // only the batch names them
}

static void let_destroy(void)
{
    ck_assert_status(core_batch_destroy(a.session, batch, &error), STATUS_OK);
}

static void let_advance(void)
{
    const int32_t seq_len = WORLD_BLOCK + 1;
    const int64_t slot = (int64_t)blocks[2] * WORLD_BLOCK;
    const struct core_entry entry = {0, 1, blocks[2]};
    const struct core_advance advance = {.batch = batch,
                                         .seq_lens_kv = &seq_len,
                                         .num_seq_lens_kv = 1,
                                         .entries = &entry,
                                         .num_entries = 1,
                                         .slot_mapping = &slot,
                                         .num_slot_mapping = 1};
    ck_assert_status(core_batch_advance(a.session, &advance, &error), STATUS_OK);
}

static void keep(enum core_keep how)
{
    const struct core_prefix prefix = {.tokens = tokens, .num_tokens = 2 * WORLD_BLOCK};
    uint32_t num_tokens;
    ck_assert_status(core_prefix_keep(a.session, a.cache, &prefix, how, &num_tokens, &error),
                     STATUS_OK);
    ck_assert_uint_eq(num_tokens, prefix.num_tokens);
}

static void make_pinned(void)
{
    worker_write(&a, blocks, tokens, 2 * WORLD_BLOCK);
    ck_assert_uint_eq(worker_publish(&a, tokens, 2 * WORLD_BLOCK, blocks), 0);
    keep(CORE_KEEP_PINNED);
    worker_release(&a, blocks, 2);
}

static void let_keep(void)
{
    keep(CORE_KEEP_NORMAL);
}

static void let_unpin(void)
{
    struct core_unpinned out;
    ck_assert_status(core_prefix_unpin(world.core, a.cache, -1, &out, &error), STATUS_OK);
}

static void make_published(void)
{
    worker_write(&a, blocks, tokens, 2 * WORLD_BLOCK);
    worker_write(&a, blocks + 2, tokens, 2 * WORLD_BLOCK);
    worker_publish(&a, tokens, 2 * WORLD_BLOCK, blocks);
}

// Two blocks that others replace become free.
static void let_publish(void)
{
    const struct core_prefix prefix = {
        .tokens = tokens, .num_tokens = 2 * WORLD_BLOCK, .releases = true};
    uint32_t existing;
    ck_assert_status(core_prefix_publish(a.session, a.cache, &prefix,
                                         (int32_t[]){blocks[2], blocks[3]}, 2, &existing, &error),
                     STATUS_OK);
    ck_assert_uint_eq(existing, 2);
}

static void let_limit(void)
{
    core_session_limit(b.session, 1);
}

static void let_limit_tenant(void)
{
    struct core_tenant_view view;
    ck_assert(core_tenant_at(world.core, 0, &view));
    view.limits.blocks = 63;
    ck_assert_status(core_tenant_limit(world.core, view.tenant, &view.limits, &error), STATUS_OK);
}

static const struct {
    void (*before)(void);
    void (*call)(void);
} calls[] = {
    {NULL, let_release},     {NULL, let_close_cache},   {NULL, let_close},
    {NULL, let_die},         {make_batch, let_destroy}, {make_batch, let_advance},
    {make_pinned, let_keep}, {make_pinned, let_unpin},  {make_published, let_publish},
    {NULL, let_limit},       {NULL, let_limit_tenant},
};

// How often core names the wait; all others count in *others.
static uint32_t count_names(const struct core_wait *wanted, uint32_t *others)
{
    uint32_t count = 0;
    *others = 0;
    for (const struct core_wait *next; (next = core_next_ready(world.core));)
        ++*(next == wanted ? &count : others);
    return count;
}

static void step_until_quiet(void)
{
    uint32_t others;
    do
        count_names(NULL, &others);
    while (world_step(&world));
}

START_TEST(each_call_that_may_help_a_lease_is_news_and_names_it_once)
{
    struct core_wait lease;
    uint32_t others;
    worker_lease(&a, HELD, blocks);
    if (calls[_i].before)
        calls[_i].before();
    ck_assert_status(core_wait_for_blocks(b.session, &lease, b.cache, 20, false, &error),
                     STATUS_OK);
    step_until_quiet();
    ck_assert(!core_has_news(world.core));
    calls[_i].call();
    ck_assert(core_has_news(world.core));
    ck_assert(world_step(&world));
    ck_assert_uint_eq(count_names(&lease, &others), 1);
    ck_assert_uint_eq(others, 0);
    ck_assert(!core_has_news(world.core));
    core_wait_end(&lease);
}
END_TEST

enum { MANY = 20 };
static struct core_wait leases[MANY], claims[MANY], takes[MANY], any;

static void wait_for_all(void)
{
    const struct core_prefix prefix = {.tokens = tokens, .num_tokens = 2 * WORLD_BLOCK};
    struct core_claim claim;
    char name[16];
    ck_assert_status(core_prefix_claim(a.session, a.cache, &prefix, 0, found, &claim, &error),
                     STATUS_OK); // `a` computes it
    for (uint32_t i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "text %u", i);
        ck_assert_status(core_wait_for_blocks(b.session, &leases[i], b.cache, 20, false, &error),
                         STATUS_OK);
        ck_assert_status(core_prefix_claim(b.session, b.cache, &prefix, 0, found, &claim, &error),
                         STATUS_OK);
        ck_assert_status(core_wait_for_claim(b.session, &claims[i], b.cache, claim.claim, &error),
                         STATUS_OK);
        ck_assert_status(core_wait_for_offer(b.session, &takes[i], b.cache, name, &error),
                         STATUS_OK);
    }
    core_wait_for_news(b.session, &any, b.cache);
}

static void end_all(void)
{
    for (uint32_t i = 0; i < MANY; i++) {
        core_wait_end(&leases[i]);
        core_wait_end(&claims[i]);
        core_wait_end(&takes[i]);
    }
    core_wait_end(&any);
}

// The lease is the one whose turn it is.
START_TEST(an_event_names_what_it_may_help_and_one_lease_however_much_waits)
{
    uint32_t others;
    worker_lease(&a, HELD, blocks);
    wait_for_all();
    step_until_quiet();
    const struct core_offer_params offer = {.cache = a.cache,
                                            .name = "text 7",
                                            .blocks = blocks,
                                            .num_blocks = 1,
                                            .expires_ns = INT64_MAX};
    ck_assert_status(core_offer_make(a.session, &offer, &error), STATUS_OK);
    ck_assert(world_step(&world));
    ck_assert_uint_eq(count_names(&takes[7], &others), 1);
    ck_assert_uint_eq(others, 2); // a lease and what waits for any news
    worker_release(&a, blocks + 1, 1);
    ck_assert(world_step(&world));
    ck_assert_uint_eq(count_names(&leases[0], &others), 1);
    ck_assert_uint_eq(others, 1);
    end_all();
}
END_TEST

START_TEST(what_waits_in_a_cache_that_its_session_closes_is_named)
{
    uint32_t others;
    worker_lease(&a, HELD, blocks);
    wait_for_all();
    step_until_quiet();
    const uint64_t other = worker_open_cache(&b, "other");
    ck_assert_status(core_cache_close(b.session, other, &error), STATUS_OK);
    world_step(&world);
    count_names(NULL, &others);
    ck_assert_uint_eq(others, 2);
    ck_assert_status(core_cache_close(b.session, b.cache, &error), STATUS_OK);
    ck_assert(world_step(&world));
    count_names(NULL, &others);
    ck_assert_uint_eq(others, 3 * MANY + 1 + 1); // one lease once more, as its turn comes
    end_all();
    b.cache = worker_open_cache(&b, "kv");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("waits");
    check_case(
        suite, "news", open_two, close_all,
        (const TTest *const[]){each_call_that_may_help_a_lease_is_news_and_names_it_once, NULL},
        sizeof calls / sizeof calls[0]);
    check_case(
        suite, "names", open_two, close_all,
        (const TTest *const[]){an_event_names_what_it_may_help_and_one_lease_however_much_waits,
                               what_waits_in_a_cache_that_its_session_closes_is_named, NULL},
        1);
    return check_main(suite);
}
