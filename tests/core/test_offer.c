// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_offer.c - a sequence goes from one session to another: who may write, who pays, what a death
// of either side at each step leaves, and deadlines. After each test core counts all of itself
// anew, and a third session leases every block: none is lost.

#include "base/clock.h"
#include "core/state.h"
#include "rigs/check_main.h"
#include "rigs/ownership_world.h"

#include <string.h>

enum { STORED = 20 }; // tokens: two full blocks and half a block

static const struct core_offer *offer;
static uint8_t access_of[256];

static enum status try_offer(struct worker *worker, const char *name, const int32_t *ids,
                             int64_t expires_ns, struct error *error)
{
    const struct core_offer_params params = {.cache = worker->cache,
                                             .name = name,
                                             .blocks = ids,
                                             .num_blocks = 3,
                                             .num_stored = STORED,
                                             .num_computed = STORED,
                                             .num_tokens = STORED + 1,
                                             .tokens = tokens,
                                             .num_known = STORED + 1,
                                             .expires_ns = expires_ns};
    return core_offer_make(worker->session, &params, error);
}

static enum status try_take(struct worker *worker, const char *name, struct error *error)
{
    return core_offer_take(worker->session, NULL, worker->cache, name, &offer, error);
}

static enum status try_settle(struct worker *worker, bool accept, struct error *error)
{
    return core_offer_settle(worker->session, offer->id, accept, access_of, error);
}

static void write_and_offer(int64_t expires_ns)
{
    worker_lease(&a, 3, blocks);
    worker_write(&a, blocks, tokens, STORED);
    ck_assert_status(try_offer(&a, "seq", blocks, expires_ns, &error), STATUS_OK);
}

// The giver keeps the blocks whose `keep` is 1. The token ids are not known.
static void write_and_offer_keeping(const char *name, const uint8_t *keep)
{
    const struct core_offer_params params = {.cache = a.cache,
                                             .name = name,
                                             .blocks = blocks,
                                             .num_blocks = 3,
                                             .keep = keep,
                                             .num_stored = STORED,
                                             .num_tokens = STORED,
                                             .expires_ns = FOREVER};
    worker_lease(&a, 3, blocks);
    worker_write(&a, blocks, tokens, STORED);
    ck_assert_status(core_offer_make(a.session, &params, &error), STATUS_OK);
}

static void take(struct worker *worker)
{
    ck_assert_status(try_take(worker, "seq", &error), STATUS_OK);
}

static void accept_as(struct worker *worker)
{
    ck_assert_status(try_settle(worker, true, &error), STATUS_OK);
}

// The number of blocks that are not free or cached.
static uint64_t in_use(struct worker *worker)
{
    struct core_counts n = worker_counts(worker);
    ck_assert_uint_eq(n.free + n.leased + n.held + n.cached + n.quarantined, n.total);
    return n.leased + n.held + n.quarantined;
}

static enum status try_write_slot(struct worker *worker, int32_t block, struct error *error)
{
    const int32_t cu[] = {0, 1}, lens[] = {STORED + 1};
    const int64_t slots[] = {(int64_t)block * WORLD_BLOCK + STORED % WORLD_BLOCK};
    struct core_batch_params params = sequences_over(worker->cache, 1, cu, lens, blocks, 3);
    uint32_t made;
    uint64_t batch;
    params.slot_mapping = slots;
    params.num_slot_mapping = 1;
    enum status status = world_create(worker->session, &params, &batch, &made, error);
    return status == STATUS_OK ? core_batch_destroy(worker->session, batch, error) : status;
}

static void expect_contents(void)
{
    const struct engine_cache *engine = core_engine_cache(world.core, a.cache);
    for (uint32_t layer = 0; layer < WORLD_LAYERS; layer++)
        for (uint32_t i = 0; i < STORED; i++)
            ck_assert_int_eq(
                fake_engine_slot(engine, layer, blocks[i / WORLD_BLOCK], i % WORLD_BLOCK),
                tokens[i]);
}

// ---- what each side has ----

START_TEST(a_sequence_with_a_part_filled_block_goes_to_the_taker)
{
    write_and_offer(FOREVER);
    ck_assert_uint_eq(in_use(&a), 3);
    ck_assert_uint_eq(worker_block(&a, blocks[0]).holders, 0); // the offer names the block
    take(&b);
    ck_assert_uint_eq(offer->num_blocks, 3);
    ck_assert_mem_eq(offer->blocks, blocks, 3 * sizeof *blocks);
    ck_assert_mem_eq(offer->tokens, tokens, (STORED + 1) * sizeof *tokens);
    ck_assert_uint_eq(offer->num_stored, STORED);
    ck_assert_uint_eq(offer->num_tokens, STORED + 1);
    ck_assert_int_eq((int)core_offer_access(b.session, offer, 2), (int)CORE_ACCESS_READ);
    accept_as(&b);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(access_of[i], CORE_ACCESS_WRITE);
    ck_assert_uint_eq(worker_block(&b, blocks[2]).writer, b.id);
    ck_assert_uint_eq(worker_block(&b, blocks[2]).holders, 1);
    ck_assert_status(try_write_slot(&b, blocks[2], &error), STATUS_OK);
    worker_close(&a, true); // it has nothing to do with the blocks any more
    ck_assert_uint_eq(in_use(&b), 3);
    expect_contents();
    worker_release(&b, blocks, 3);
    ck_assert_uint_eq(in_use(&b), 0);
}
END_TEST

START_TEST(published_blocks_stay_sealed_and_come_with_the_others)
{
    worker_lease(&a, 3, blocks);
    worker_write(&a, blocks, tokens, STORED);
    worker_publish(&a, tokens, 2 * WORLD_BLOCK, blocks);
    ck_assert_status(try_offer(&a, "seq", blocks, FOREVER, &error), STATUS_OK);
    ck_assert_state(blocks[0], CORE_HELD);
    take(&b);
    ck_assert_int_eq((int)core_offer_access(b.session, offer, 0), (int)CORE_ACCESS_SEALED);
    accept_as(&b);
    ck_assert_int_eq(access_of[1], CORE_ACCESS_SEALED);
    ck_assert_int_eq(access_of[2], CORE_ACCESS_WRITE);
    worker_release(&b, blocks, 3);
    ck_assert_state(blocks[0], CORE_CACHED);
    ck_assert_state(blocks[2], CORE_FREE);
}
END_TEST

START_TEST(nobody_writes_the_blocks_between_offer_and_accept)
{
    worker_lease(&a, 3, blocks);
    worker_write(&a, blocks, tokens, STORED);
    uint64_t batch = worker_batch(&a, blocks, STORED + 1, 1); // writes the part-filled block
    ck_assert_refused(try_offer(&a, "seq", blocks, FOREVER, &error), STATUS_BUSY, "has not run");
    uint64_t ran = worker_run(&a, batch, 0, 1, tokens);
    world_finish_all(&world);
    worker_reap(&a, ran, STATUS_OK);
    ck_assert_status(try_offer(&a, "seq", blocks, FOREVER, &error), STATUS_OK);
    struct core_run_params run = worker_run_params(&a, batch, 0, 1, tokens);
    uint64_t ticket;
    ck_assert_refused(core_run(a.session, &run, &ticket, &error), STATUS_DENIED, "was offered");
    ck_assert_refused(try_write_slot(&a, blocks[2], &error), STATUS_NOT_HELD, "not held");
    take(&b);
    ck_assert_refused(try_write_slot(&b, blocks[2], &error), STATUS_DENIED, "offered to another");
    int32_t free_block;
    worker_lease(&b, 1, &free_block);
    ck_assert_refused(
        core_blocks_copy(b.session, b.cache, &free_block, &blocks[2], 1, false, &ticket, &error),
        STATUS_DENIED, "offered to another");
    accept_as(&b);
    ck_assert_refused(core_run(a.session, &run, &ticket, &error), STATUS_DENIED, "was offered");
    ck_assert_status(core_batch_destroy(a.session, batch, &error), STATUS_OK); // has b's slot
    ck_assert_status(try_write_slot(&b, blocks[2], &error), STATUS_OK);
}
END_TEST

START_TEST(the_giver_takes_back_what_it_offered_and_may_write_again)
{
    write_and_offer(FOREVER);
    take(&a);
    accept_as(&a);
    ck_assert_int_eq(access_of[2], CORE_ACCESS_WRITE);
    ck_assert_uint_eq(worker_block(&a, blocks[2]).writer, a.id);
    ck_assert_status(try_write_slot(&a, blocks[2], &error), STATUS_OK);
    ck_assert_refused(try_take(&b, "seq", &error), STATUS_NOT_FOUND, "no offer named \"seq\"");
    worker_release(&a, blocks, 3);
    ck_assert_uint_eq(in_use(&a), 0);
}
END_TEST

START_TEST(a_block_that_the_giver_keeps_is_leased_to_nobody)
{
    const uint8_t keep[] = {1, 0, 1};
    write_and_offer_keeping("seq", keep);
    take(&b);
    accept_as(&b);
    ck_assert_int_eq(access_of[0], CORE_ACCESS_READ);
    ck_assert_int_eq(access_of[1], CORE_ACCESS_WRITE);
    ck_assert_int_eq(access_of[2], CORE_ACCESS_READ);
    ck_assert_refused(try_write_slot(&a, blocks[2], &error), STATUS_NOT_HELD, "not held");
    ck_assert_refused(try_write_slot(&b, blocks[2], &error), STATUS_DENIED, "offered to another");
    const int32_t kept[] = {blocks[0], blocks[2]};
    worker_release(&a, kept, 2);
    worker_release(&b, blocks, 3);
    ck_assert_uint_eq(in_use(&a), 0);
}
END_TEST

START_TEST(a_block_that_another_offer_names_is_leased_only_with_the_last_of_them)
{
    const uint8_t keep[] = {1, 1, 1};
    write_and_offer_keeping("fork", keep);
    ck_assert_status(try_offer(&a, "seq", blocks, FOREVER, &error), STATUS_OK);
    take(&b);
    accept_as(&b);
    ck_assert_int_eq(access_of[2], CORE_ACCESS_READ);
    ck_assert_refused(try_write_slot(&b, blocks[2], &error), STATUS_DENIED, "offered to another");
    world_check(&world);
    worker_release(&b, blocks, 3);
    ck_assert_status(try_take(&b, "fork", &error), STATUS_OK);
    accept_as(&b);
    ck_assert_int_eq(access_of[2], CORE_ACCESS_WRITE);
    worker_release(&b, blocks, 3);
    ck_assert_uint_eq(in_use(&a), 0);
}
END_TEST

// ---- when it can be taken ----

START_TEST(an_offer_can_be_taken_when_its_writes_have_ended_well)
{
    uint64_t last;
    worker_lease(&a, 3, blocks);
    worker_write_async(&a, blocks, tokens, STORED, &last);
    ck_assert_status(try_offer(&a, "seq", blocks, FOREVER, &error), STATUS_OK);
    ck_assert_refused(try_take(&b, "seq", &error), STATUS_BUSY, "have not ended");
    world_finish_all(&world);
    take(&b);
    ck_assert_refused(try_take(&a, "seq", &error), STATUS_BUSY, "has taken offer");
    ck_assert_refused(try_take(&b, "seq", &error), STATUS_BUSY, "has taken offer");
    accept_as(&b);
    expect_contents();
}
END_TEST

START_TEST(an_offer_whose_writes_failed_goes_back_to_the_giver_alone)
{
    uint64_t last;
    worker_lease(&a, 3, blocks);
    worker_write_async(&a, blocks, tokens, STORED, &last);
    ck_assert_status(try_offer(&a, "seq", blocks, FOREVER, &error), STATUS_OK);
    world_step(&world);
    fake_engine_oldest(world.engine)->runs[0].fail = STATUS_UNSUPPORTED;
    world_finish_all(&world);
    ck_assert_refused(try_take(&b, "seq", &error), STATUS_UNWRITTEN, "slots of blocks[0]");
    take(&a);
    accept_as(&a);
}
END_TEST

START_TEST(takes_of_one_name_go_in_the_order_of_their_arrival)
{
    struct core_wait first, second;
    ck_assert_status(core_wait_for_offer(b.session, &first, b.cache, "seq", &error), STATUS_OK);
    ck_assert_status(core_wait_for_offer(a.session, &second, a.cache, "seq", &error), STATUS_OK);
    ck_assert_status(try_take(&a, "seq", &error), STATUS_NOT_FOUND);
    write_and_offer(FOREVER);
    ck_assert_refused(try_take(&a, "seq", &error), STATUS_BUSY, "waits for offer");
    ck_assert_status(core_offer_take(a.session, &second, a.cache, "seq", &offer, &error),
                     STATUS_BUSY);
    ck_assert_status(try_take(&a, "other", &error), STATUS_NOT_FOUND);
    world_step(&world);
    core_wait_end(&first);
    ck_assert(world_step(&world)); // the second one is to be tried again
    ck_assert_refused(try_take(&b, "seq", &error), STATUS_BUSY, "waits for offer");
    ck_assert_status(core_offer_take(a.session, &second, a.cache, "seq", &offer, &error),
                     STATUS_OK);
    core_wait_end(&second);
    accept_as(&a);
    ck_assert_status(core_wait_for_offer(a.session, &first, a.cache, "", &error), STATUS_INVALID);
    ck_assert_status(core_wait_for_offer(a.session, &first, 99, "seq", &error), STATUS_NOT_FOUND);
}
END_TEST

// True: it is the only take that is named.
static bool is_woken(const struct core_wait *take)
{
    const struct core_wait *next;
    bool woken = false;
    world_step(&world);
    while ((next = core_next_ready(world.core))) {
        ck_assert(next == take || next == &a.wait || next == &b.wait);
        woken |= next == take;
    }
    return woken;
}

START_TEST(only_the_first_take_of_a_name_is_woken_and_only_by_its_offer)
{
    struct core_wait first, second, other;
    uint64_t last;
    worker_lease(&a, 3, blocks);
    worker_write_async(&a, blocks, tokens, STORED, &last);
    ck_assert_status(core_wait_for_offer(b.session, &first, b.cache, "seq", &error), STATUS_OK);
    ck_assert_status(core_wait_for_offer(b.session, &second, b.cache, "seq", &error), STATUS_OK);
    ck_assert_status(core_wait_for_offer(b.session, &other, b.cache, "other", &error), STATUS_OK);
    ck_assert(!is_woken(&first));
    ck_assert_status(try_offer(&a, "seq", blocks, FOREVER, &error), STATUS_OK);
    ck_assert(is_woken(&first));
    ck_assert_status(core_offer_take(b.session, &first, b.cache, "seq", &offer, &error),
                     STATUS_BUSY); // it is being written
    ck_assert(!is_woken(&first));
    world_finish_all(&world);
    ck_assert(is_woken(&first));
    ck_assert_status(core_offer_take(b.session, &first, b.cache, "seq", &offer, &error), STATUS_OK);
    core_wait_end(&first);
    ck_assert(is_woken(&second)); // it finds that the offer is taken
    ck_assert(!is_woken(&second));
    worker_release(&b, offer->blocks, 3);
    ck_assert_status(try_settle(&b, false, &error), STATUS_OK);
    ck_assert(is_woken(&second));
    core_wait_end(&second);
    ck_assert(!is_woken(&other));
    core_wait_end(&other);
    take(&a);
    accept_as(&a);
}
END_TEST

// So a take may go ahead of a lease that waits. If it waited behind the lease, and the lease for
// the giver's blocks, neither would ever end.
START_TEST(a_take_needs_no_free_block_and_its_tenant_uses_no_more_by_it)
{
    struct core_wait waiter;
    struct core_tenant_view before, after;
    bool growing;
    int32_t more[64];
    write_and_offer(FOREVER);
    uint32_t rest = 0;
    while (worker_try_lease(&b, 1, more + rest, NULL) == STATUS_OK)
        rest++;
    ck_assert_status(core_wait_for_blocks(b.session, &waiter, b.cache, 1, false, &error),
                     STATUS_OK);
    ck_assert(core_tenant_at(world.core, 0, &before));
    const struct core_counts free_before = worker_counts(&b);
    take(&b);
    ck_assert(core_tenant_at(world.core, 0, &after));
    const struct core_counts free_after = worker_counts(&b);
    ck_assert_mem_eq(&free_before, &free_after, sizeof free_before);
    ck_assert_uint_eq(before.used, after.used);
    accept_as(&b);
    worker_release(&b, blocks, 3);
    ck_assert_status(
        core_blocks_lease(b.session, &waiter, b.cache, 1, more + rest, &growing, &error),
        STATUS_OK);
    core_wait_end(&waiter);
    worker_release(&b, more, rest + 1);
}
END_TEST

START_TEST(names_are_of_one_tenant_and_one_cache)
{
    write_and_offer(FOREVER);
    worker_open(&c, &world, 1, "other tenant");
    ck_assert_refused(try_take(&c, "seq", &error), STATUS_NOT_FOUND, "no offer");
    const uint64_t alt = worker_open_cache(&b, "alt");
    ck_assert_refused(core_offer_take(b.session, NULL, alt, "seq", &offer, &error),
                      STATUS_NOT_FOUND, "\"alt\" has no offer");
    ck_assert_refused(try_take(&b, "sequel", &error), STATUS_NOT_FOUND, "\"sequel\"");
    int32_t others[3];
    worker_lease(&b, 3, others);
    worker_write(&b, others, tokens, STORED);
    ck_assert_refused(try_offer(&b, "seq", others, FOREVER, &error), STATUS_INVALID, "already");
    worker_close(&c, false);
}
END_TEST

START_TEST(an_offer_that_nobody_takes_ends_at_its_deadline)
{
    write_and_offer(1000);
    ck_assert_int_eq(core_wake_ns(world.core), FOREVER); // core has not stepped since
    world.now_ns = 999;
    ck_assert(world_step(&world)); // waiting takers are tried
    ck_assert_int_eq(core_wake_ns(world.core), 1000);
    take(&b);
    ck_assert_status(try_settle(&b, false, &error), STATUS_OK);
    worker_release(&b, blocks, 3);
    ck_assert_uint_eq(in_use(&a), 3);
    world.now_ns = 1000;
    world_step(&world);
    ck_assert_uint_eq(in_use(&a), 0);
    ck_assert_refused(try_take(&a, "seq", &error), STATUS_NOT_FOUND, "no offer");
    ck_assert_uint_eq(core_metrics(world.core)[METRIC_OFFERS_EXPIRED], 1);
}
END_TEST

START_TEST(a_taken_offer_expires_only_when_it_comes_back)
{
    write_and_offer(1000);
    take(&b);
    world.now_ns = 5000;
    world_step(&world);
    ck_assert_uint_eq(in_use(&a), 3);
    worker_close(&b, true);
    world_step(&world);
    ck_assert_uint_eq(in_use(&a), 0);
}
END_TEST

// ---- limits ----

// An offer without blocks and with many tokens: some 8.5 KiB.
static enum status offer_tokens(struct worker *worker, const char *name, struct error *error)
{
    const struct core_offer_params large = {.cache = worker->cache,
                                            .name = name,
                                            .num_tokens = 2048,
                                            .tokens = tokens,
                                            .num_known = 2048,
                                            .expires_ns = FOREVER};
    return core_offer_make(worker->session, &large, error);
}

START_TEST(a_taker_pays_for_what_it_has_taken_and_not_settled_also_when_the_givers_are_gone)
{
    struct world strict;
    struct worker giver, taker;
    const struct core_offer *taken[3];
    world_open(&strict, &(struct core_params){.max_batch_memory = 20000});
    worker_open(&taker, &strict, 1, "");
    for (int i = 0; i < 3; i++) {
        worker_open(&giver, &strict, 1, "");
        ck_assert_status(offer_tokens(&giver, "tokens", &error), STATUS_OK);
        if (i < 2)
            ck_assert_status(
                core_offer_take(taker.session, NULL, taker.cache, "tokens", &taken[i], &error),
                STATUS_OK);
        else
            ck_assert_refused(
                core_offer_take(taker.session, NULL, taker.cache, "tokens", &taken[i], &error),
                STATUS_LIMIT, "--max-batch-memory");
        worker_close(&giver, i % 2);
        world_check(&strict);
    }
    ck_assert_uint_gt(taker.session->memory.batches, 2 * 8192);
    ck_assert_uint_eq(strict.core->pool.memory, taker.session->memory.batches);
    for (int i = 0; i < 2; i++)
        ck_assert_status(
            core_offer_settle(taker.session, taken[i]->id, i % 2, (uint8_t[1]){0}, &error),
            STATUS_OK);
    ck_assert_uint_eq(strict.core->pool.memory, 0);
    world_check(&strict);
    world_close(&strict);
}
END_TEST

START_TEST(the_sessions_of_a_tenant_share_its_part_of_the_host_memory_and_give_it_back)
{
    struct world strict;
    static struct worker one[2], two, three;
    struct core_claim out;
    const struct core_group group = {.name = "team"};
    world_open(&strict,
               &(struct core_params){
                   .max_memory = 20000, .tenant_share = 0.5, .groups = &group, .num_groups = 1});
    worker_join(&one[0], &strict, 1, "team", "");
    worker_join(&one[1], &strict, 1, "team", "name");
    worker_open(&two, &strict, 2, "");
    worker_open(&three, &strict, 3, "");
    ck_assert_status(offer_tokens(&one[0], "tokens", &error), STATUS_OK);
    ck_assert_refused(offer_tokens(&one[1], "tokens", &error), STATUS_LIMIT,
                      "bytes of an offer more would exceed the part of tenant \"team\" of "
                      "--max-host-memory 20000 (--tenant-share)");
    const struct core_prefix prompt = {.tokens = tokens, .num_tokens = 2048};
    ck_assert_refused(
        core_prefix_claim(one[1].session, one[1].cache, &prompt, 0, blocks, &out, &error),
        STATUS_LIMIT, "bytes of a claim more");
    core_memory_count(two.session, 9000); // the caller's
    ck_assert_refused(offer_tokens(&three, "tokens", &error), STATUS_LIMIT,
                      "the 20000 bytes of all sessions (--max-host-memory)");
    core_memory_count(two.session, -9000);
    world_check(&strict);
    ck_assert_status(offer_tokens(&three, "tokens", &error), STATUS_OK);
    worker_close(&one[0], true);
    ck_assert_status(
        core_prefix_claim(one[1].session, one[1].cache,
                          &(struct core_prefix){.tokens = tokens, .num_tokens = 16 * WORLD_BLOCK},
                          0, blocks, &out, &error),
        STATUS_OK);
    ck_assert_uint_gt(one[1].session->memory.all, 0);
    world_check(&strict);
    worker_close(&one[1], true);
    worker_close(&three, true);
    ck_assert_uint_eq(strict.core->pool.memory, 0);
    world_check(&strict);
    world_close(&strict);
}
END_TEST

START_TEST(offers_count_against_quota_memory_and_their_own_limit)
{
    struct world strict;
    struct worker giver, taker;
    int32_t ids[9];
    world_open(&strict, &(struct core_params){.quota_blocks = 9,
                                              .max_tickets = WORLD_LAYERS,
                                              .max_batch_memory = 8192});
    worker_open(&giver, &strict, 1, "");
    worker_open(&taker, &strict, 1, "");
    worker_lease(&giver, 9, ids);
    worker_write(&giver, ids, tokens, 9 * WORLD_BLOCK);
    ck_assert_status(try_offer(&giver, "one", ids, FOREVER, &error), STATUS_OK);
    ck_assert_status(try_offer(&giver, "two", ids + 3, FOREVER, &error), STATUS_OK);
    ck_assert_refused(try_offer(&giver, "three", ids + 6, FOREVER, &error), STATUS_LIMIT,
                      "--max-tickets");
    int32_t more;
    ck_assert_refused(worker_try_lease(&giver, 1, &more, &error), STATUS_QUOTA,
                      "--session-blocks"); // what it has offered counts
    int32_t own[7];
    worker_lease(&taker, 7, own);
    ck_assert_refused(try_take(&taker, "one", &error), STATUS_QUOTA, "--session-blocks");
    worker_release(&taker, own, 1);
    ck_assert_status(try_take(&taker, "one", &error), STATUS_OK);
    ck_assert_status(try_settle(&taker, true, &error), STATUS_OK);
    worker_lease(&giver, 3, own); // its quota has room again
    const struct core_offer_params large = {.cache = giver.cache,
                                            .name = "large",
                                            .num_tokens = 2048,
                                            .tokens = tokens,
                                            .num_known = 2048,
                                            .expires_ns = FOREVER};
    ck_assert_refused(core_offer_make(giver.session, &large, &error), STATUS_LIMIT,
                      "--max-batch-memory");
    world_check(&strict);
    world_close(&strict);
}
END_TEST

START_TEST(wrong_offers_are_refused_and_change_nothing)
{
    char name[300];
    const int32_t twice[] = {0, 0, 1}, absent[] = {0, 1, 63};
    worker_lease(&a, 3, blocks);
    worker_write(&a, blocks, tokens, STORED - 1);
    struct core_offer_params params = {.cache = a.cache, .name = "x", .expires_ns = FOREVER};
    memset(name, 'x', sizeof name);
    name[299] = 0;
    ck_assert_refused(try_offer(&a, name, blocks, FOREVER, &error), STATUS_INVALID, "299 bytes");
    ck_assert_refused(try_offer(&a, "", blocks, FOREVER, &error), STATUS_INVALID, "0 bytes");
    ck_assert_refused(try_offer(&a, "x", blocks, FOREVER, &error), STATUS_UNWRITTEN,
                      "first 4 slots of blocks[2] = 2");
    ck_assert_refused(try_offer(&a, "x", twice, FOREVER, &error), STATUS_INVALID, "twice");
    ck_assert_refused(try_offer(&a, "x", absent, FOREVER, &error), STATUS_OUT_OF_RANGE, "63");
    ck_assert_refused(try_offer(&b, "x", blocks, FOREVER, &error), STATUS_NOT_HELD, "blocks[0]");
    params.num_stored = params.num_tokens = 1;
    ck_assert_refused(core_offer_make(a.session, &params, &error), STATUS_INVALID, "hold 0 tokens");
    params.num_stored = params.num_tokens = 0;
    params.num_known = 1;
    ck_assert_refused(core_offer_make(a.session, &params, &error), STATUS_INVALID, "1 token ids");
    params.num_known = 0;
    ck_assert_status(core_offer_make(a.session, &params, &error), STATUS_OK); // an empty sequence
    ck_assert_uint_eq(core_metrics(world.core)[METRIC_OFFERS], 1);
    ck_assert_refused(core_offer_settle(a.session, 12345, true, access_of, &error),
                      STATUS_NOT_FOUND, "12345");
    worker_release(&a, blocks, 3);
}
END_TEST

START_TEST(closing_the_cache_ends_what_was_given_and_returns_what_was_taken)
{
    write_and_offer(FOREVER);
    take(&b);
    ck_assert_status(core_cache_close(b.session, b.cache, &error), STATUS_OK);
    worker_open(&c, &world, 1, "");
    ck_assert_status(try_take(&c, "seq", &error), STATUS_OK);
    ck_assert_status(core_cache_close(a.session, a.cache, &error), STATUS_OK);
    ck_assert_status(try_settle(&c, true, &error), STATUS_OK);
    ck_assert_int_eq(access_of[2], CORE_ACCESS_WRITE);
    worker_release(&c, blocks, 3);
    ck_assert_uint_eq(in_use(&c), 0);
    worker_close(&c, false);
}
END_TEST

// ---- either side dies at each step ----

enum { LIFE = 7 };
static uint64_t taker_batch;

// Step 0 to 6 of a hand-over.
static void live(int step)
{
    uint64_t last;
    switch (step) {
    case 0: worker_lease(&a, 3, blocks); break;
    case 1: worker_write_async(&a, blocks, tokens, STORED, &last); break;
    case 2: ck_assert_status(try_offer(&a, "seq", blocks, FOREVER, &error), STATUS_OK); break;
    case 3: world_finish_all(&world); break;
    case 4: take(&b); break;
    case 5: accept_as(&b); break;
    case 6:
        taker_batch = worker_batch(&b, blocks, STORED + 1, 1);
        worker_run(&b, taker_batch, 0, 1, tokens + STORED);
        world_step(&world);
        break;
    }
}

// The survivor `worker` has the sequence, or can take it, after `steps` steps.
static void expect_survivor(struct worker *worker, int steps)
{
    if (steps < 5) // nobody has taken it
        ck_assert_status(try_take(worker, "seq", &error), STATUS_OK);
    if (steps < 6) // or nobody has accepted it
        accept_as(worker);
    ck_assert_int_eq(access_of[2], CORE_ACCESS_WRITE);
    expect_contents();
    worker_release(worker, blocks, 3);
    if (steps > 6)
        ck_assert_status(core_batch_destroy(worker->session, taker_batch, &error), STATUS_OK);
}

// Every block can be leased.
static void expect_none_lost(void)
{
    struct worker last;
    world_finish_all(&world);
    worker_open(&last, &world, 1, "");
    ck_assert_uint_eq(in_use(&last), 0);
    worker_lease(&last, 64, found);
    worker_close(&last, false);
}

START_TEST(the_giver_may_die_at_any_step)
{
    const int steps = _i / 2;
    const bool died = _i % 2;
    for (int step = 0; step < steps; step++)
        live(step);
    worker_close(&a, died);
    world_check(&world);
    if (steps >= 5) {
        world_finish_all(&world);
        expect_survivor(&b, steps);
    } else {
        ck_assert_refused(try_take(&b, "seq", &error), STATUS_NOT_FOUND, "no offer");
    }
    expect_none_lost();
}
END_TEST

START_TEST(the_taker_may_die_at_any_step)
{
    const int steps = _i / 2;
    const bool died = _i % 2;
    for (int step = 0; step < steps; step++)
        live(step);
    worker_close(&b, died);
    world_check(&world);
    if (steps >= 3 && steps < 6) { // offered: the giver takes it back, during its writes, too
        ck_assert_status(try_take(&a, "seq", &error), STATUS_OK);
        accept_as(&a);
        ck_assert_int_eq(access_of[2], CORE_ACCESS_WRITE);
        world_finish_all(&world);
        expect_contents();
        worker_release(&a, blocks, 3);
    } else if (steps > 0 && steps < 3) {
        worker_release(&a, blocks, 3);
    }
    expect_none_lost();
}
END_TEST

START_TEST(both_sides_may_die_at_any_step)
{
    const int steps = _i / 2;
    for (int step = 0; step < steps; step++)
        live(step);
    worker_close(_i % 2 ? &a : &b, true);
    world_check(&world);
    worker_close(_i % 2 ? &b : &a, true);
    expect_none_lost();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("offer");
    check_case(suite, "sides", open_two, close_all,
               (const TTest *const[]){
                   a_sequence_with_a_part_filled_block_goes_to_the_taker,
                   published_blocks_stay_sealed_and_come_with_the_others,
                   nobody_writes_the_blocks_between_offer_and_accept,
                   the_giver_takes_back_what_it_offered_and_may_write_again,
                   a_block_that_the_giver_keeps_is_leased_to_nobody,
                   a_block_that_another_offer_names_is_leased_only_with_the_last_of_them, NULL},
               1);
    check_case(suite, "taking", open_two, close_all,
               (const TTest *const[]){an_offer_can_be_taken_when_its_writes_have_ended_well,
                                      an_offer_whose_writes_failed_goes_back_to_the_giver_alone,
                                      takes_of_one_name_go_in_the_order_of_their_arrival,
                                      only_the_first_take_of_a_name_is_woken_and_only_by_its_offer,
                                      a_take_needs_no_free_block_and_its_tenant_uses_no_more_by_it,
                                      names_are_of_one_tenant_and_one_cache,
                                      an_offer_that_nobody_takes_ends_at_its_deadline,
                                      a_taken_offer_expires_only_when_it_comes_back, NULL},
               1);
    check_case(suite, "limits", open_two, close_all,
               (const TTest *const[]){
                   offers_count_against_quota_memory_and_their_own_limit,
                   a_taker_pays_for_what_it_has_taken_and_not_settled_also_when_the_givers_are_gone,
                   the_sessions_of_a_tenant_share_its_part_of_the_host_memory_and_give_it_back,
                   wrong_offers_are_refused_and_change_nothing,
                   closing_the_cache_ends_what_was_given_and_returns_what_was_taken, NULL},
               1);
    check_case(suite, "death", open_two, close_all,
               (const TTest *const[]){the_giver_may_die_at_any_step, the_taker_may_die_at_any_step,
                                      both_sides_may_die_at_any_step, NULL},
               2 * (LIFE + 1));
    return check_main(suite);
}
