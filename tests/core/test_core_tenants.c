// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_core_tenants.c - a block that moves to another tenant is zeroed before use: when, in which
// slices, and after refused submissions and freed memory.

#include "core/pool/queue.h"
#include "core/pool/tenant.h"
#include "core/state.h"
#include "rigs/check_main.h"
#include "rigs/ownership_world.h"

#include <inttypes.h>
#include <stdio.h>

START_TEST(a_block_that_changes_its_tenant_is_zeroed_before_anything_else_runs)
{
    worker_open(&c, &world, 1, "other");
    worker_lease(&a, 64, blocks);
    worker_write(&a, blocks, tokens, 64 * 8);
    worker_release(&a, blocks, 64);
    worker_lease(&b, 1, found); // the same salt
    worker_run(&b, worker_batch(&b, found, 4, 4), 0, 4, tokens);
    world_step(&world);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_zeroes, 0);
    worker_lease(&c, 2, found + 1);
    ck_assert_int_ne(fake_engine_slot(core_engine_cache(world.core, a.cache), 1, found[1], 7), 0);
    uint64_t batch = worker_batch(&c, found + 1, 4, 4);
    worker_run(&c, batch, 0, 4, tokens);
    fake_engine_finish(world.engine); // the submission of b, so that there is room for two
    world_step(&world);
    const struct fake_submission *s = fake_engine_oldest(world.engine);
    ck_assert_uint_eq(s->num_zeroes, 2);
    ck_assert_uint_eq(s->num_runs, 0);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_runs, 1);
    ck_assert_int_eq(s->zeroes[0].block, found[1]);
    ck_assert_int_eq(s->zeroes[1].block, found[2]);
    world_finish_all(&world);
    const struct engine_cache *cache = core_engine_cache(world.core, a.cache);
    for (uint32_t slot = 0; slot < 8; slot++) {
        ck_assert_int_eq(fake_engine_slot(cache, 0, found[1], slot), slot < 4 ? tokens[slot] : 0);
        ck_assert_int_eq(fake_engine_slot(cache, 1, found[1], slot), 0);
        ck_assert_int_eq(fake_engine_slot(cache, 0, found[2], slot), 0);
    }
    ck_assert_status(core_batch_destroy(c.session, batch, &error), STATUS_OK);
    worker_release(&c, found + 1, 2); // and back, to the first tenant
    worker_lease(&a, 2, found + 1);
    worker_run(&a, worker_batch(&a, found + 1, 4, 4), 0, 4, tokens);
    world_step(&world);
    ck_assert_uint_eq(fake_engine_oldest(world.engine)->num_zeroes, 2);
}
END_TEST

// Two sessions of different users have the cache "deep" open. 64 of its blocks are as many zeroes
// as one submission takes.
static void open_deep(void)
{
    struct core_cache_identity identity = world_identity("deep");
    struct core_cache_info info;
    identity.num_layers = CORE_MAX_LAYERS;
    world.core->pool.limit_blocks = 256;
    worker_open(&c, &world, 2, "");
    ck_assert_status(core_cache_open(a.session, &identity, &info, &error), STATUS_OK);
    ck_assert_status(core_cache_open(c.session, &identity, &info, &error), STATUS_OK);
    a.cache = c.cache = info.cache;
}

START_TEST(many_blocks_are_zeroed_in_slices_before_any_run_goes)
{
    open_deep();
    worker_lease(&a, 160, blocks);
    worker_release(&a, blocks, 160);
    worker_lease(&c, 160, blocks);
    uint64_t ticket = worker_run(&c, worker_batch(&c, blocks, 4, 4), 0, 4, tokens);
    world_step(&world);
    const uint32_t zeroes[] = {64, 64, 32};
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(fake_engine_oldest(world.engine)->num_zeroes, zeroes[i]);
        ck_assert_uint_eq(fake_engine_oldest(world.engine)->num_runs, 0);
        ck_assert(fake_engine_finish(world.engine));
        world_step(&world);
        world_check(&world);
    }
    ck_assert_uint_eq(fake_engine_oldest(world.engine)->num_runs, 1);
    world_finish_all(&world);
    worker_reap(&c, ticket, STATUS_OK);
    for (int i = 0; i < 160; i++)
        ck_assert_int_eq(fake_engine_slot(core_engine_cache(world.core, c.cache),
                                          CORE_MAX_LAYERS - 1, blocks[i], 0),
                         0);
}
END_TEST

START_TEST(a_refused_slice_of_zeroes_is_tried_again_smaller_or_later_and_no_run_fails)
{
    worker_lease(&a, 16, blocks);
    worker_release(&a, blocks, 16);
    worker_open(&c, &world, 2, "");
    worker_lease(&c, 3, blocks);
    uint64_t ticket = worker_run(&c, worker_batch(&c, blocks, 4, 4), 0, 4, tokens);
    fake_engine_refuse_submit(world.engine, STATUS_NO_MEMORY);
    world_step(&world); // one block, then the others
    ck_assert_uint_eq(fake_engine_oldest(world.engine)->num_zeroes, 1);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_zeroes, 2);
    world_finish_all(&world);
    worker_reap(&c, ticket, STATUS_OK);

    uint64_t batch = worker_batch(&c, blocks, 4, 4), ahead = worker_run(&c, batch, 0, 4, tokens);
    world_step(&world);
    worker_lease(&c, 1, blocks + 3);
    ticket = worker_run(&c, batch, 1, 4, tokens);
    fake_engine_refuse_submit(world.engine, STATUS_NO_MEMORY);
    world_step(&world); // waits for earlier submissions
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_runs, 1);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_zeroes, 0);
    ck_assert(fake_engine_finish(world.engine));
    world_step(&world);
    ck_assert_uint_eq(fake_engine_oldest(world.engine)->num_zeroes, 1);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_runs, 1);
    world_finish_all(&world);
    worker_reap(&c, ahead, STATUS_OK);
    worker_reap(&c, ticket, STATUS_OK);
}
END_TEST

START_TEST(zeroing_outlives_a_refused_submission_and_ends_with_the_memory)
{
    worker_lease(&a, 16, blocks);
    worker_release(&a, blocks, 16);
    worker_open(&c, &world, 2, "");
    worker_lease(&c, 1, found);
    fake_engine_refuse_submit(world.engine, STATUS_NO_MEMORY);
    uint64_t ticket = worker_run(&c, worker_batch(&c, found, 4, 4), 0, 4, tokens);
    world_step(&world);
    worker_reap(&c, ticket, STATUS_NO_MEMORY);
    worker_run(&c, worker_batch(&c, found, 4, 4), 0, 4, tokens);
    world_step(&world);
    ck_assert_uint_eq(fake_engine_oldest(world.engine)->num_zeroes, 1);
    world_finish_all(&world);
    worker_close(&c, false);
    worker_lease(&b, 3, found); // needs zeroing again, but its chunk is freed first
    worker_release(&b, found, 3);
    worker_open(&c, &world, 2, "");
    c.cache = worker_open_cache(&c, "other");
    worker_lease(&c, 64, found);
    ck_assert_uint_eq(worker_counts(&a).total, 0);
    worker_run(&c, worker_batch(&c, found, 4, 4), 0, 4, tokens);
    world_step(&world);
    ck_assert_uint_eq(fake_engine_newest(world.engine)->num_zeroes, 0);
    world_finish_all(&world);
}
END_TEST

static void publish_and_leave(struct worker *worker, uint32_t count, const int32_t *text)
{
    worker_lease(worker, count, blocks);
    worker_write(worker, blocks, text, count * WORLD_BLOCK);
    worker_publish(worker, text, count * WORLD_BLOCK, blocks);
    worker_release(worker, blocks, count);
}

START_TEST(a_hundred_thousand_look_ups_of_another_tenants_prompt_never_hit)
{
    worker_open(&c, &world, 1, "other");
    publish_and_leave(&a, 8, tokens);
    for (int i = 0; i < 100000; i++) // as whole blocks, and from each start
        ck_assert_uint_eq(worker_lookup(&c, tokens + i % 8, 64 - (uint32_t)i % 8, found), 0);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 64, found), 8);
}
END_TEST

static uint32_t num_hashed;
static uint64_t hashed_parent; // the first field of every key: salt or parent
static uint64_t (*hash_before)(uint64_t seed, const void *key, size_t size);

static uint64_t watch_hash(uint64_t seed, const void *key, size_t size)
{
    num_hashed++;
    if (size >= sizeof(hashed_parent)) // else a block's id
        memcpy(&hashed_parent, key, sizeof(hashed_parent));
    return hash_before(seed, key, size);
}

// The duration of a look-up follows from the keys that it searches. They are the same, whether
// another tenant has the prompt or not.
START_TEST(a_look_up_searches_the_same_keys_whatever_other_tenants_have_cached)
{
    uint64_t parents[2];
    worker_open(&c, &world, 1, "other");
    hash_before = world.core->ledger.hash;
    world.core->ledger.hash = watch_hash;
    for (int i = 0; i < 2; i++) {
        num_hashed = 0;
        ck_assert_uint_eq(worker_lookup(&c, tokens, 64, found), 0);
        ck_assert_uint_eq(num_hashed, 1); // the root of its salt, which does not exist
        ck_assert_uint_eq(hashed_parent, c.session->salt->id);
        if (i == 0)
            publish_and_leave(&a, 8, tokens);
    }
    publish_and_leave(&c, 1, tokens + 8); // now it exists
    for (int i = 0; i < 2; i++) {
        num_hashed = 0;
        ck_assert_uint_eq(worker_lookup(&c, tokens, 64, found), 0);
        ck_assert_uint_eq(num_hashed,
                          1 + core_piece_blocks(world.core)); // the root, and the blocks below it
        parents[i] = hashed_parent;
        worker_lease(&b, 62, blocks); // evicts a's prompt
        worker_release(&b, blocks, 62);
    }
    ck_assert_uint_eq(parents[0], parents[1]);
    world.core->ledger.hash = hash_before;
}
END_TEST

static enum status open_shaped(struct worker *worker, const char *name, uint32_t num_layers,
                               uint64_t *cache, struct error *error)
{
    struct core_cache_identity identity = world_identity(name);
    struct core_cache_info info = {0};
    identity.num_layers = num_layers;
    enum status status = core_cache_open(worker->session, &identity, &info, error);
    *cache = info.cache;
    return status;
}

START_TEST(names_of_caches_are_a_tenants_own_and_one_shape_is_shared)
{
    uint64_t one, two, other;
    worker_open(&c, &world, 2, "");
    ck_assert_status(open_shaped(&a, "chat", 2, &one, &error), STATUS_OK);
    ck_assert_status(open_shaped(&c, "chat", 1, &two, &error), STATUS_OK);
    ck_assert_uint_ne(one, two);
    ck_assert_refused(open_shaped(&b, "chat", 1, &other, &error), STATUS_MISMATCH,
                      "cache \"chat\" has num_layers 2, not 1");
    ck_assert_refused(open_shaped(&c, "chat", 2, &other, &error), STATUS_MISMATCH,
                      "cache \"chat\" has num_layers 1, not 2");
    ck_assert_status(open_shaped(&b, "chat", 2, &other, &error), STATUS_OK);
    ck_assert_uint_eq(one, other);
    static struct worker d;
    worker_open(&d, &world, 3, "");
    ck_assert_status(open_shaped(&d, "chat", 1, &other, &error), STATUS_OK);
    ck_assert_uint_eq(two, other); // memory does not multiply; prefixes are apart
    world_check(&world);
    ck_assert_status(core_cache_close(c.session, two, &error), STATUS_OK);
    ck_assert_status(open_shaped(&c, "chat", 2, &other, &error), STATUS_OK);
    ck_assert_uint_eq(one, other); // it has nothing under its former name
    a.cache = one;
    publish_and_leave(&a, 1, tokens);
    ck_assert_status(core_cache_close(a.session, one, &error), STATUS_OK);
    ck_assert_status(core_cache_close(b.session, one, &error), STATUS_OK);
    ck_assert_refused(open_shaped(&a, "chat", 1, &other, &error), STATUS_MISMATCH, "num_layers");
    ck_assert_status(core_cache_close(c.session, one, &error), STATUS_OK);
    ck_assert_status(core_cache_drop(world.core, one, &error), STATUS_OK);
    ck_assert_status(open_shaped(&a, "chat", 1, &other, &error), STATUS_OK);
    ck_assert_uint_eq(two, other);
}
END_TEST

static void open_shares(void)
{
    static const struct core_group groups[] = {{.name = "team"}, {.name = "other"}};
    world_open(&world,
               &(struct core_params){
                   .max_caches = 8, .tenant_share = 0.5, .groups = groups, .num_groups = 2});
    worker_join(&a, &world, 1, "team", "");
    worker_join(&b, &world, 2, "team", "name");
    worker_join(&c, &world, 3, "other", "");
    count_tokens(tokens, 2048, 1000);
}

// Each session also has the world's cache open, so a and b have four caches.
START_TEST(a_tenant_has_its_part_of_the_caches_and_another_one_finds_room)
{
    static const char part[] = "caches (open, pinned or below its floor): all of its part of "
                               "--max-caches 8 (--tenant-share)";
    uint64_t caches[3], cache;
    ck_assert_status(open_shaped(&a, "0", 2, &caches[0], &error), STATUS_OK);
    ck_assert_status(open_shaped(&b, "1", 2, &caches[1], &error), STATUS_OK);
    ck_assert_status(open_shaped(&a, "2", 2, &caches[2], &error), STATUS_OK);
    ck_assert_refused(open_shaped(&b, "3", 2, &cache, &error), STATUS_LIMIT, part);
    ck_assert_refused(open_shaped(&a, "3", 2, &cache, &error), STATUS_LIMIT, "\"team\" uses 4");
    // The other group has half of the five that the first one leaves, and the world's is one.
    ck_assert_status(open_shaped(&c, "0", 1, &cache, &error), STATUS_OK);
    ck_assert_refused(open_shaped(&c, "1", 1, &caches[0], &error), STATUS_LIMIT, part);
    ck_assert_status(core_cache_close(c.session, cache, &error), STATUS_OK);
    b.cache = caches[1];
    publish_and_leave(&b, 1, tokens);
    ck_assert_status(core_cache_close(b.session, caches[1], &error), STATUS_OK);
    ck_assert_status(open_shaped(&a, "3", 2, &cache, &error), STATUS_OK); // not in use: no part
    world_check(&world);
}
END_TEST

START_TEST(a_user_without_a_group_may_have_all_caches)
{
    static struct worker own;
    uint64_t cache;
    char name[8];
    worker_open(&own, &world, 4, "");
    for (uint32_t i = 0; i < 7; i++) {
        snprintf(name, sizeof name, "%" PRIu32, i);
        ck_assert_status(open_shaped(&own, name, 2, &cache, &error), STATUS_OK);
    }
    ck_assert_refused(open_shaped(&own, "7", 2, &cache, &error), STATUS_LIMIT,
                      "all 8 caches (--max-caches)");
    world_check(&world);
    worker_close(&own, false);
}
END_TEST

// A run that the engine is given for this session: who pays for what is compiled for it.
static uint64_t payer_of(struct worker *worker)
{
    worker_lease(worker, 1, found);
    worker_run(worker, worker_batch(worker, found, 4, 4), 0, 4, tokens);
    world_step(&world);
    const struct fake_submission *newest = fake_engine_newest(world.engine);
    ck_assert_ptr_nonnull(newest);
    ck_assert_uint_eq(newest->num_runs, 1);
    const struct engine_run *run = &newest->runs[0].run;
    ck_assert_uint_eq(run->line, worker->id);
    const uint64_t payer = run->payer;
    world_finish_all(&world);
    return payer;
}

START_TEST(the_runs_of_a_tenants_sessions_have_one_payer_and_those_of_others_another)
{
    const uint64_t payer = payer_of(&a);
    ck_assert_uint_ne(payer, 0);
    ck_assert_uint_eq(payer_of(&b), payer);
    ck_assert_uint_ne(payer_of(&c), payer);
}
END_TEST

static void open_limited(void)
{
    world_open(&world, &(struct core_params){.tenant_limits = {.blocks = 20, .floor = 10}});
    count_tokens(tokens, 2048, 1000);
}

// A client chooses its name, but not its uid: so names part prefixes and no more.
START_TEST(all_names_of_a_user_pay_as_one_tenant_and_share_no_prefix)
{
    static struct worker names[8];
    struct core_tenant_view view;
    char name[8];
    for (uint32_t i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "n%" PRIu32, i);
        worker_open(&names[i], &world, 1, name);
        if (i < 4)
            worker_lease(&names[i], 5, blocks + 5 * i);
    }
    for (int i = 4; i < 8; i++)
        ck_assert_refused(worker_try_lease(&names[i], 1, found, &error), STATUS_QUOTA,
                          "1 blocks more would exceed the limit of 20 of tenant \"uid:1\" "
                          "(blocks:N of --tenant); it uses 20");
    for (int i = 0; i < 4; i++)
        worker_release(&names[i], blocks + 5 * i, 5);
    for (int i = 0; i < 8; i++) {
        publish_and_leave(&names[i], 5, tokens + 100 * i);
        ck_assert_uint_eq(worker_lookup(&names[(i + 1) % 8], tokens + 100 * i, 40, found), 0);
    }
    ck_assert(core_tenant_at(world.core, 0, &view) && !core_tenant_at(world.core, 1, &view));
    ck_assert_str_eq(view.label, "uid:1");
    ck_assert_uint_eq(view.cached, 40);
    worker_open(&c, &world, 2, "");
    worker_lease(&c, 20, blocks);
    worker_open(&a, &world, 3, "");
    worker_lease(&a, 20, blocks + 20); // all names together have one floor
    worker_open(&b, &world, 4, "");
    ck_assert_status(worker_try_lease(&b, 15, found, &error), STATUS_NO_BLOCKS);
    worker_lease(&b, 14, blocks + 40);
    for (int i = 0; i < 8; i++)
        worker_close(&names[i], false);
}
END_TEST

static void open_groups(void)
{
    static const struct core_group groups[] = {{"team", {.blocks = 20}}};
    world_open(&world, &(struct core_params){.groups = groups, .num_groups = 1});
    count_tokens(tokens, 2048, 1000);
}

START_TEST(users_of_one_group_share_prompts_and_limits_and_others_share_nothing)
{
    static struct worker d;
    struct core_tenant_view view;
    worker_join(&a, &world, 1, "team", "");
    worker_join(&b, &world, 2, "team", "team"); // the group's name is no name of its own
    worker_join(&c, &world, 2, "team", "private");
    worker_open(&d, &world, 1, "");
    publish_and_leave(&a, 2, tokens);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 16, found), 2);
    ck_assert_uint_eq(worker_lookup(&c, tokens, 16, found + 2), 0);
    ck_assert_uint_eq(worker_lookup(&d, tokens, 16, found + 2), 0);
    worker_lease(&c, 10, blocks);
    ck_assert_refused(worker_try_lease(&a, 9, blocks, &error), STATUS_QUOTA,
                      "9 blocks more would exceed the limit of 20 of tenant \"team\"");
    worker_lease(&a, 8, blocks);
    ck_assert(core_tenant_at(world.core, 0, &view));
    ck_assert_str_eq(view.label, "team");
    ck_assert_uint_eq(view.used, 20);
    ck_assert_uint_eq(view.sessions, 3);
    worker_lease(&d, 30, blocks + 100); // another tenant, without a limit
    ck_assert(core_tenant_at(world.core, 1, &view) && !core_tenant_at(world.core, 2, &view));
    ck_assert_str_eq(view.label, "uid:1");
}
END_TEST

START_TEST(a_pinned_prompt_stays_until_it_is_unpinned_whoever_needs_room)
{
    uint32_t kept;
    const struct core_prefix prefix = {.tokens = tokens, .num_tokens = 20};
    publish_and_leave(&a, 3, tokens);
    ck_assert_status(core_prefix_keep(a.session, a.cache, &prefix, CORE_KEEP_PINNED, &kept, &error),
                     STATUS_OK);
    ck_assert_uint_eq(kept, 16);
    worker_close(&a, true);
    ck_assert_refused(worker_try_lease(&b, 63, found, &error), STATUS_NO_BLOCKS, "63 blocks");
    worker_lease(&b, 62, found); // the third block went
    ck_assert_uint_eq(worker_lookup(&b, tokens, 24, blocks), 2);
    worker_release(&b, blocks, 2);
    ck_assert_status(core_prefix_keep(b.session, b.cache, &prefix, CORE_KEEP_NORMAL, &kept, &error),
                     STATUS_OK);
    worker_lease(&b, 2, found + 62);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 24, blocks), 0);
    ck_assert_refused(
        core_prefix_keep(b.session, b.cache, &prefix, (enum core_keep)7, &kept, &error),
        STATUS_UNSUPPORTED, "way 7");
}
END_TEST

static void pin(struct worker *worker, const int32_t *prompt, uint32_t num_tokens)
{
    const struct core_prefix prefix = {.tokens = prompt, .num_tokens = num_tokens};
    uint32_t kept;
    ck_assert_status(
        core_prefix_keep(worker->session, worker->cache, &prefix, CORE_KEEP_PINNED, &kept, &error),
        STATUS_OK);
    ck_assert_uint_eq(kept, num_tokens);
}

static void unpin(int32_t block, uint32_t num_prefixes, uint32_t num_blocks)
{
    struct core_unpinned gone;
    ck_assert_status(core_prefix_unpin(world.core, b.cache, block, &gone, &error), STATUS_OK);
    ck_assert_uint_eq(gone.num_prefixes, num_prefixes);
    ck_assert_uint_eq(gone.num_blocks, num_blocks);
    world_check(&world);
}

// Two prompts of 4 blocks share 2. The first one is pinned also at 3 blocks.
START_TEST(an_operator_unpins_the_prefixes_behind_a_block_or_all)
{
    static int32_t other[32];
    struct core_unpinned gone;
    for (int i = 0; i < 32; i++)
        other[i] = i < 16 ? tokens[i] : 5000 + i;
    publish_and_leave(&a, 4, tokens);
    ck_assert_uint_eq(worker_lookup(&a, other, 32, blocks), 2);
    worker_lease(&a, 2, blocks + 2);
    worker_write(&a, blocks + 2, other + 16, 16);
    worker_publish(&a, other, 32, blocks);
    worker_release(&a, blocks, 4);
    pin(&a, tokens, 32);
    pin(&a, tokens, 24);
    pin(&a, other, 32);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 32, found), 4);
    ck_assert_uint_eq(worker_lookup(&b, other, 32, found + 4), 4);
    worker_release(&b, found, 4);
    worker_release(&b, found + 4, 4);
    worker_close(&a, true);
    ck_assert_refused(worker_try_lease(&b, 59, blocks, &error), STATUS_NO_BLOCKS, "59 blocks");
    unpin(found[3], 1, 1); // the prompt's end, but not what is pinned at 3 blocks
    ck_assert_refused(core_prefix_unpin(world.core, b.cache, found[3], &gone, &error),
                      STATUS_NOT_FOUND, "is in no pinned prefix");
    worker_lease(&b, 59, blocks);
    ck_assert_refused(worker_try_lease(&b, 1, blocks + 59, &error), STATUS_NO_BLOCKS, "1 block");
    unpin(found[1], 2, 5); // what begins with it: the third block, and the other prompt
    worker_lease(&b, 5, blocks + 59);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 32, found), 0);
    unpin(-1, 0, 0);
    ck_assert_refused(core_prefix_unpin(world.core, b.cache, 4096, &gone, &error), STATUS_NOT_FOUND,
                      "block 4096 of cache");
    ck_assert_refused(core_prefix_unpin(world.core, 99, -1, &gone, &error), STATUS_NOT_FOUND, "99");
}
END_TEST

START_TEST(unpinning_looks_at_each_block_once_however_many_pins_keep_it)
{
    enum { DEPTH = 40, OTHERS = 3 };
    static int32_t other[DEPTH * 8];
    worker_lease(&a, DEPTH, blocks);
    worker_write(&a, blocks, tokens, DEPTH * 8);
    worker_publish(&a, tokens, DEPTH * 8, blocks);
    for (int i = 0; i < DEPTH * 8; i++)
        other[i] = i < (DEPTH - OTHERS) * 8 ? tokens[i] : 9000 + i;
    ck_assert_uint_eq(worker_lookup(&a, other, DEPTH * 8, found), DEPTH - OTHERS);
    worker_lease(&a, OTHERS, found + DEPTH - OTHERS);
    worker_write(&a, found + DEPTH - OTHERS, other + (ptrdiff_t)(DEPTH - OTHERS) * 8, OTHERS * 8);
    worker_publish(&a, other, DEPTH * 8, found);
    for (uint32_t count = 1; count <= DEPTH; count++) // 3 of them behind the fork, on either side
        pin(&a, tokens, count * 8);
    for (uint32_t count = DEPTH - OTHERS + 1; count <= DEPTH; count++)
        pin(&a, other, count * 8);
    worker_release(&a, blocks, DEPTH);
    worker_release(&a, found, DEPTH);
    const uint64_t before = world.core->ledger.looks;
    unpin(blocks[1], DEPTH + OTHERS - 1, DEPTH + OTHERS - 1);
    ck_assert_uint_eq(world.core->ledger.looks - before, DEPTH + OTHERS);
    unpin(blocks[0], 1, 1); // its own pin alone was left
    ck_assert_uint_eq(a.session->salt->tenant->pinned, 0);
}
END_TEST

static void open_pinning(void)
{
    world_open(&world, &(struct core_params){.tenant_pinned = 0.25,
                                             .tenant_timeout_ns = 100,
                                             .tenant_limits = {.floor = 4}});
    worker_open(&a, &world, 1, "");
    worker_open(&b, &world, 2, "");
    count_tokens(tokens, 2048, 1000);
}

static struct core_tenant_view view_of(const struct worker *worker)
{
    struct core_tenant_view view;
    uint32_t index = 0;
    while (core_tenant_at(world.core, index, &view) &&
           view.tenant != worker->session->salt->tenant->id)
        index++;
    return view;
}

// The pool has 64 blocks.
START_TEST(a_tenant_pins_its_part_of_the_pool_whoever_holds_the_blocks)
{
    const struct core_prefix longer = {.tokens = tokens, .num_tokens = 17 * WORLD_BLOCK},
                             other = {.tokens = tokens + 500, .num_tokens = WORLD_BLOCK};
    uint32_t kept;
    worker_open(&c, &world, 1, "name"); // no tenant of its own
    publish_and_leave(&a, 17, tokens);
    ck_assert_uint_eq(worker_lookup(&a, tokens, 17 * WORLD_BLOCK, found), 17);
    pin(&a, tokens, 16 * WORLD_BLOCK);
    pin(&a, tokens, 16 * WORLD_BLOCK); // again, and a part of it
    pin(&a, tokens, 2 * WORLD_BLOCK);
    ck_assert_uint_eq(view_of(&a).pinned, 16);
    ck_assert_refused(
        core_prefix_keep(a.session, a.cache, &longer, CORE_KEEP_PINNED, &kept, &error),
        STATUS_QUOTA,
        "1 pinned blocks more would exceed tenant \"uid:1\"'s part of the pool "
        "(--tenant-pinned 0.25)");
    publish_and_leave(&c, 1, tokens + 500);
    ck_assert_refused(core_prefix_keep(c.session, c.cache, &other, CORE_KEEP_PINNED, &kept, &error),
                      STATUS_QUOTA, "--tenant-pinned");
    publish_and_leave(&b, 1, tokens);
    pin(&b, tokens, WORLD_BLOCK);
    worker_release(&a, found, 17);
    ck_assert_uint_eq(view_of(&a).pinned, 16);
    unpin(-1, 3, 17);
    ck_assert_uint_eq(view_of(&a).pinned, 0);
}
END_TEST

START_TEST(pins_and_floor_of_a_tenant_end_after_its_last_session_and_the_floor_comes_back)
{
    worker_open(&c, &world, 1, "name");
    publish_and_leave(&a, 8, tokens);
    pin(&a, tokens, 4 * WORLD_BLOCK);
    world.now_ns = 1000;
    world_step(&world);
    worker_close(&a, true);
    worker_lease(&b, 56, found);
    ck_assert_status(worker_try_lease(&b, 1, found + 56, &error), STATUS_NO_BLOCKS);
    world.now_ns = 2000; // c is a session of the tenant
    world_step(&world);
    worker_close(&c, true);
    world.now_ns = 2099;
    world_step(&world);
    ck_assert_int_eq(core_wake_ns(world.core), 2100);
    ck_assert_status(worker_try_lease(&b, 1, found + 56, &error), STATUS_NO_BLOCKS);
    world.now_ns = 2100;
    ck_assert(world_step(&world));
    world_check(&world);
    worker_lease(&b, 1, found + 56);
    worker_open(&a, &world, 1, "");
    ck_assert_uint_eq(worker_lookup(&a, tokens, 64, blocks), 7); // they stayed until now
    worker_release(&a, blocks, 7);
    ck_assert_status(worker_try_lease(&b, 4, found + 57, &error), STATUS_NO_BLOCKS);
    worker_lease(&b, 3, found + 57);
}
END_TEST

START_TEST(all_pins_of_a_cache_end_together_whoever_set_them)
{
    static int32_t other[24];
    for (int i = 0; i < 24; i++)
        other[i] = 5000 + i;
    worker_open(&c, &world, 1, "other");
    publish_and_leave(&a, 3, tokens);
    publish_and_leave(&c, 3, other);
    pin(&a, tokens, 24);
    pin(&c, other, 16);
    unpin(-1, 2, 5);
    worker_lease(&b, 64, blocks);
}
END_TEST

START_TEST(a_lease_takes_from_the_tenant_with_the_most_and_spares_floors_and_open_sessions)
{
    struct core_tenant_view view;
    worker_open(&c, &world, 3, "");
    c.cache = worker_open_cache(&c, "other");
    publish_and_leave(&c, 16, tokens); // one chunk of another cache, which stays open
    publish_and_leave(&a, 48, tokens); // the rest of the pool
    ck_assert(core_tenant_at(world.core, 1, &view));
    ck_assert_str_eq(view.label, "uid:3");
    const struct core_limits floor = {.floor = 10}, none = {0};
    ck_assert_status(core_tenant_limit(world.core, view.tenant, &floor, &error), STATUS_OK);
    worker_lease(&b, 20, found); // b has a's tenant
    ck_assert_uint_eq(worker_lookup(&c, tokens, 16 * 8, blocks), 16);
    worker_release(&c, blocks, 16);
    ck_assert_status(worker_try_lease(&b, 29, found + 20, &error), STATUS_NO_BLOCKS);
    ck_assert_status(core_tenant_limit(world.core, view.tenant, &none, &error), STATUS_OK);
    worker_release(&b, found, 20);
    worker_lease(&b, 64, found); // and the other cache's chunk goes, although it is open
    ck_assert(core_tenant_at(world.core, 1, &view));
    ck_assert_uint_eq(view.cached, 0);
    ck_assert_uint_eq(view.evicted, 16);
}
END_TEST

START_TEST(a_tenant_that_is_gone_ends_with_the_last_blocks_that_anothers_chunk_takes_along)
{
    static struct worker d;
    worker_open(&c, &world, 2, "");
    worker_open(&d, &world, 3, "");
    c.cache = d.cache = worker_open_cache(&c, "other");
    ck_assert_uint_eq(worker_open_cache(&d, "other"), c.cache);
    publish_and_leave(&c, 10, tokens);
    publish_and_leave(&d, 4, tokens); // in the same chunk, which is d's now
    worker_close(&c, false);
    worker_close(&d, false);
    ck_assert_uint_eq(core_num_tenants(world.core), 3);
    worker_lease(&a, 64, blocks); // asks c's tenant first, which has no chunk to give
    ck_assert_uint_eq(core_num_tenants(world.core), 1);
}
END_TEST

START_TEST(a_tenants_own_lease_takes_its_cached_blocks_below_its_floor)
{
    struct core_tenant_view view;
    worker_open(&c, &world, 2, "");
    publish_and_leave(&a, 60, tokens);
    ck_assert(core_tenant_at(world.core, 0, &view));
    ck_assert_status(
        core_tenant_limit(world.core, view.tenant, &(struct core_limits){.floor = 50}, &error),
        STATUS_OK);
    ck_assert_uint_eq(worker_counts(&c).available, 14);
    ck_assert_uint_eq(worker_counts(&a).available, 64);
    ck_assert_status(worker_try_lease(&c, 15, found, &error), STATUS_NO_BLOCKS);
    worker_lease(&c, 14, found);
    worker_lease(&b, 50, blocks); // of a's tenant
    ck_assert(core_tenant_at(world.core, 0, &view));
    ck_assert_uint_eq(view.cached, 0);
}
END_TEST

START_TEST(a_lease_that_floors_would_refuse_evicts_nothing)
{
    struct core_tenant_view view;
    worker_open(&c, &world, 2, "");
    c.cache = worker_open_cache(&c, "other");
    publish_and_leave(&c, 16, tokens);
    publish_and_leave(&a, 48, tokens);
    ck_assert(core_tenant_at(world.core, 1, &view));
    ck_assert_status(
        core_tenant_limit(world.core, view.tenant, &(struct core_limits){.floor = 16}, &error),
        STATUS_OK);
    ck_assert_uint_eq(worker_counts(&a).available, 48);
    ck_assert_refused(worker_try_lease(&b, 49, blocks, &error), STATUS_NO_BLOCKS,
                      "could get 48 now");
    ck_assert_uint_eq(worker_counts(&a).cached, 48);
}
END_TEST

START_TEST(a_lower_limit_on_cached_blocks_evicts_at_once)
{
    struct core_tenant_view view;
    publish_and_leave(&a, 20, tokens);
    ck_assert(core_tenant_at(world.core, 0, &view));
    ck_assert_refused(core_tenant_limit(world.core, view.tenant,
                                        &(struct core_limits){.cached = 5, .floor = 6}, &error),
                      STATUS_INVALID, "floor 6 exceeds cached 5");
    ck_assert_refused(core_tenant_limit(world.core, 999, &(struct core_limits){0}, &error),
                      STATUS_NOT_FOUND, "no tenant 999");
    ck_assert_status(
        core_tenant_limit(world.core, view.tenant, &(struct core_limits){.cached = 5}, &error),
        STATUS_OK);
    ck_assert_uint_eq(worker_lookup(&a, tokens, 20 * 8, found), 5);
    worker_release(&a, found, 5);
    publish_and_leave(&a, 7, tokens + 500);
    ck_assert(core_tenant_at(world.core, 0, &view));
    ck_assert_uint_eq(view.cached, 5);
}
END_TEST

START_TEST(leases_wait_in_order_inside_a_tenant_and_the_smaller_tenant_goes_first)
{
    struct core_wait large, other;
    worker_open(&c, &world, 2, "");
    worker_lease(&a, 50, blocks);
    ck_assert_status(core_wait_for_blocks(a.session, &large, a.cache, 20, false, &error),
                     STATUS_OK); // 14 are free
    ck_assert_status(queue_turn(a.session, &large, a.cache, 20, &error), STATUS_OK);
    ck_assert_status(queue_turn(b.session, NULL, b.cache, 1, &error),
                     STATUS_OK); // all of a's wait
    worker_lease(&b, 1, found);
    ck_assert_status(queue_turn(b.session, NULL, b.cache, 1, &error), STATUS_OK);
    core_wait_end(&large);

    static struct worker d; // b waits now, and a could release blocks: nobody overtakes
    worker_open(&d, &world, 1, "");
    ck_assert_status(core_wait_for_blocks(b.session, &large, b.cache, 20, false, &error),
                     STATUS_OK);
    ck_assert_refused(queue_turn(d.session, NULL, d.cache, 1, &error), STATUS_NO_BLOCKS,
                      "1 blocks wanted; session 2 of tenant \"uid:1\" waits for 20 and goes first");
    ck_assert_status(queue_turn(c.session, NULL, c.cache, 14, &error),
                     STATUS_OK); // a smaller tenant
    ck_assert_status(core_wait_for_blocks(c.session, &other, c.cache, 20, false, &error),
                     STATUS_OK);
    ck_assert_refused(queue_turn(b.session, &large, b.cache, 20, &error), STATUS_NO_BLOCKS,
                      "20 blocks wanted; a lease of another tenant waits and goes first");
    core_wait_end(&other);
    ck_assert_status(queue_turn(b.session, &large, b.cache, 20, &error), STATUS_OK);
    core_wait_end(&large);
}
END_TEST

START_TEST(when_the_last_session_that_could_release_begins_to_wait_leases_are_tried_again)
{
    struct core_wait large;
    worker_lease(&a, 20, blocks);
    worker_lease(&b, 20, found);
    ck_assert_status(core_wait_for_blocks(a.session, &large, a.cache, 30, false, &error),
                     STATUS_OK);
    world_step(&world);
    ck_assert_status(queue_turn(b.session, NULL, b.cache, 1, &error),
                     STATUS_OK); // only b could
    ck_assert_status(queue_turn(a.session, NULL, a.cache, 1, &error), STATUS_NO_BLOCKS);
    ck_assert(!world_step(&world));
    queue_count_wait(b.session, true); // for a claim or an offer
    ck_assert(world_step(&world));
    ck_assert_status(queue_turn(a.session, NULL, a.cache, 1, &error), STATUS_OK);
    queue_count_wait(b.session, true);
    ck_assert(!world_step(&world));
    queue_count_wait(b.session, false);
    queue_count_wait(b.session, false);
    ck_assert_status(queue_turn(a.session, NULL, a.cache, 1, &error), STATUS_NO_BLOCKS);
    core_wait_end(&large);
}
END_TEST

START_TEST(a_lease_that_free_blocks_satisfy_heeds_no_lease_that_waits_in_another_cache)
{
    struct core_wait other;
    static struct worker d;
    worker_open(&c, &world, 2, "");
    worker_open(&d, &world, 2, "");
    c.cache = worker_open_cache(&c, "other");
    worker_lease(&a, 44, blocks);
    worker_lease(&c, 10, found);
    worker_lease(&d, 1, found + 16); // so that d could release one
    ck_assert_status(core_wait_for_blocks(c.session, &other, c.cache, 20, false, &error),
                     STATUS_OK);
    ck_assert_status(queue_turn(b.session, NULL, b.cache, 3, &error), STATUS_OK);
    ck_assert_status(queue_turn(b.session, NULL, b.cache, 4, &error), STATUS_NO_BLOCKS);
    ck_assert_status(queue_turn(d.session, NULL, d.cache, 3, &error), STATUS_OK);
    ck_assert_status(queue_turn(b.session, NULL, c.cache, 3, &error), STATUS_NO_BLOCKS);
    core_wait_end(&other);
}
END_TEST

START_TEST(a_lease_that_free_blocks_satisfy_heeds_no_lease_that_waits_only_for_growth)
{
    struct core_wait grows;
    static struct worker d;
    bool growing;
    worker_open(&d, &world, 1, "");
    worker_lease(&a, 14, blocks);
    ck_assert_status(core_blocks_lease(b.session, NULL, b.cache, 10, found, &growing, &error),
                     STATUS_NO_BLOCKS);
    ck_assert(growing);
    ck_assert_status(core_wait_for_blocks(b.session, &grows, b.cache, 10, true, &error), STATUS_OK);
    ck_assert_status(queue_turn(d.session, NULL, d.cache, 2, &error), STATUS_OK);
    ck_assert_status(queue_turn(d.session, NULL, d.cache, 3, &error), STATUS_NO_BLOCKS);
    core_wait_end(&grows);
    world_step(&world);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("core tenants");
    check_case(suite, "tenants", open_two, close_all,
               (const TTest *const[]){
                   a_block_that_changes_its_tenant_is_zeroed_before_anything_else_runs,
                   many_blocks_are_zeroed_in_slices_before_any_run_goes,
                   a_refused_slice_of_zeroes_is_tried_again_smaller_or_later_and_no_run_fails,
                   zeroing_outlives_a_refused_submission_and_ends_with_the_memory,
                   a_hundred_thousand_look_ups_of_another_tenants_prompt_never_hit,
                   a_look_up_searches_the_same_keys_whatever_other_tenants_have_cached,
                   a_pinned_prompt_stays_until_it_is_unpinned_whoever_needs_room,
                   an_operator_unpins_the_prefixes_behind_a_block_or_all,
                   unpinning_looks_at_each_block_once_however_many_pins_keep_it,
                   all_pins_of_a_cache_end_together_whoever_set_them,
                   a_lease_takes_from_the_tenant_with_the_most_and_spares_floors_and_open_sessions,
                   a_tenant_that_is_gone_ends_with_the_last_blocks_that_anothers_chunk_takes_along,
                   a_tenants_own_lease_takes_its_cached_blocks_below_its_floor,
                   a_lease_that_floors_would_refuse_evicts_nothing,
                   a_lower_limit_on_cached_blocks_evicts_at_once,
                   leases_wait_in_order_inside_a_tenant_and_the_smaller_tenant_goes_first,
                   when_the_last_session_that_could_release_begins_to_wait_leases_are_tried_again,
                   a_lease_that_free_blocks_satisfy_heeds_no_lease_that_waits_in_another_cache,
                   a_lease_that_free_blocks_satisfy_heeds_no_lease_that_waits_only_for_growth,
                   NULL},
               1);
    check_case(suite, "pins", open_pinning, close_all,
               (const TTest *const[]){
                   a_tenant_pins_its_part_of_the_pool_whoever_holds_the_blocks,
                   pins_and_floor_of_a_tenant_end_after_its_last_session_and_the_floor_comes_back,
                   NULL},
               1);
    check_case(
        suite, "caches", open_two, close_all,
        (const TTest *const[]){names_of_caches_are_a_tenants_own_and_one_shape_is_shared, NULL}, 1);
    check_case(suite, "shares", open_shares, close_all,
               (const TTest *const[]){
                   a_tenant_has_its_part_of_the_caches_and_another_one_finds_room,
                   a_user_without_a_group_may_have_all_caches,
                   the_runs_of_a_tenants_sessions_have_one_payer_and_those_of_others_another, NULL},
               1);
    check_case(
        suite, "names", open_limited, close_all,
        (const TTest *const[]){all_names_of_a_user_pay_as_one_tenant_and_share_no_prefix, NULL}, 1);
    check_case(suite, "groups", open_groups, close_all,
               (const TTest *const[]){
                   users_of_one_group_share_prompts_and_limits_and_others_share_nothing, NULL},
               1);
    return check_main(suite);
}
