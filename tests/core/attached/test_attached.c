// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_attached.c - attached sessions: the fixed pool, blocks that linger after their release,
// reports, and the proof of a death.

#include "rigs/check_main.h"
#include "rigs/core_world.h"
#include "rigs/dice.h"

#include <string.h>

enum { BLOCKS = 16 };

static struct world world;
static struct worker a, b, c;
static int32_t blocks[BLOCKS], found[BLOCKS], tokens[256];
static struct core_attachment attachment;

static void open_two(const char *tenant_of_b)
{
    const struct core_params params = {.export_pool = BLOCKS};
    world_open(&world, &params);
    worker_open(&a, &world, 1, "");
    worker_open(&b, &world, 1, tenant_of_b);
    count_tokens(tokens, 256, 1);
}

static void setup(void)
{
    open_two("");
}

static void teardown(void)
{
    world_check(&world);
    world_close(&world);
}

static void attach(struct worker *worker)
{
    world_step(&world); // the memory of the cache arrives
    ck_assert_status(core_cache_attach(worker->session, worker->cache, &attachment, &error),
                     STATUS_OK);
}

static enum status try_report(struct worker *worker, const int64_t *slots, uint64_t num_slots,
                              uint64_t passed, uint64_t *mark, struct error *error)
{
    const struct core_report report = {
        .cache = worker->cache, .slots = slots, .num_slots = num_slots, .passed = passed};
    return core_cache_report(worker->session, &report, mark, error);
}

static uint64_t pass(struct worker *worker, uint64_t passed)
{
    uint64_t mark = 0;
    ck_assert_status(try_report(worker, NULL, 0, passed, &mark, &error), STATUS_OK);
    world_check(&world);
    return mark;
}

static void report_blocks(struct worker *worker, const int32_t *ids, uint32_t count)
{
    int64_t slots[BLOCKS * WORLD_BLOCK];
    uint64_t mark;
    for (uint32_t i = 0; i < count * WORLD_BLOCK; i++)
        slots[i] = (int64_t)ids[i / WORLD_BLOCK] * WORLD_BLOCK + i % WORLD_BLOCK;
    ck_assert_status(try_report(worker, slots, (uint64_t)count * WORLD_BLOCK, 0, &mark, &error),
                     STATUS_OK);
    world_check(&world);
}

static void expect_free(uint64_t count)
{
    ck_assert_uint_eq(worker_counts(&b).free, count);
}

// ---- the fixed pool ----

START_TEST(a_fixed_pool_has_one_chunk_from_its_beginning_and_never_grows)
{
    struct fake_counts counts;
    struct error error = {0};
    world_step(&world);
    ck_assert_uint_eq(worker_counts(&a).total, BLOCKS);
    ck_assert_uint_eq(worker_counts(&a).limit, BLOCKS);
    worker_lease(&a, BLOCKS, blocks);
    ck_assert_int_eq(worker_try_lease(&b, 1, found, &error), STATUS_NO_BLOCKS);
    ck_assert_int_eq(worker_try_lease(&b, BLOCKS + 1, found, &error), STATUS_LIMIT);
    ck_assert_ptr_nonnull(strstr(error.text, "--export-pool"));
    worker_release(&a, blocks, BLOCKS);
    worker_lease(&b, BLOCKS, found);
    fake_engine_counts(world.engine, &counts);
    ck_assert_uint_eq(counts.asked_chunks, 1);
}
END_TEST

START_TEST(caches_of_a_fixed_pool_take_no_memory_from_each_other)
{
    const struct core_cache_identity identity = world_identity("fifth");
    struct core_cache_info info;
    struct fake_counts counts;
    for (int i = 0; i < 3; i++) // 64 blocks in all
        worker_open_cache(&a, (const char *const[]){"second", "third", "fourth"}[i]);
    world_step(&world);
    worker_lease(&b, BLOCKS, blocks);
    worker_release(&b, blocks, BLOCKS);
    fake_engine_counts(world.engine, &counts);
    ck_assert_uint_eq(counts.chunks, 4);
    ck_assert_refused(core_cache_open(a.session, &identity, &info, &error), STATUS_LIMIT,
                      "--max-caches");
    world_close(&world);
    const struct core_params params = {.export_pool = BLOCKS, .max_blocks = BLOCKS + 1};
    world_open(&world, &params);
    worker_open(&a, &world, 1, "");
    worker_open(&b, &world, 1, "");
    ck_assert_refused(core_cache_open(a.session, &identity, &info, &error), STATUS_LIMIT,
                      "such a pool does not grow");
    world_close(&world);
    const struct core_params narrow = {.export_pool = BLOCKS, .max_blocks = BLOCKS - 1};
    world_open(&world, &narrow);
    static struct worker none; // without an arena
    const struct core_session_params session = {.id = 77, .tenant = "", .owner = &none};
    struct core_session *opened;
    ck_assert_status(core_session_open(world.core, &session, &opened, &error), STATUS_OK);
    ck_assert_refused(core_cache_open(opened, &identity, &info, &error), STATUS_LIMIT,
                      "--export-pool 16");
}
END_TEST

START_TEST(attaching_needs_the_option_and_the_memory)
{
    ck_assert_refused(core_cache_attach(a.session, a.cache, &attachment, &error), STATUS_BUSY,
                      "is not made yet");
    ck_assert(!core_cache_attached(a.session, a.cache, &attachment));
    attach(&a);
    attach(&a); // once more
    ck_assert_uint_eq(attachment.num_blocks, BLOCKS);
    ck_assert(core_cache_attached(a.session, a.cache, &attachment));
    ck_assert_refused(core_cache_attach(a.session, 999, &attachment, &error), STATUS_NOT_FOUND,
                      "cache 999");
    world_close(&world);
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
    ck_assert_refused(core_cache_attach(a.session, a.cache, &attachment, &error),
                      STATUS_UNSUPPORTED, "without --export-pool");
    world_close(&world);
    const struct core_params params = {.export_pool = BLOCKS, .engine = fake_engine_create()};
    fake_engine_refuse_chunks(params.engine, 1);
    world_open(&world, &params);
    worker_open(&a, &world, 1, "");
    world_step(&world);
    ck_assert_refused(core_cache_attach(a.session, a.cache, &attachment, &error), STATUS_NO_MEMORY,
                      "the device has no 8192 bytes");
    core_cache_want_memory(a.session, 999);
    core_cache_want_memory(a.session, a.cache); // now there is memory
    ck_assert_refused(core_cache_attach(a.session, a.cache, &attachment, &error), STATUS_BUSY,
                      "is not made yet");
    core_cache_want_memory(a.session, a.cache); // it is on its way
    attach(&a);
    core_cache_want_memory(a.session, a.cache); // it is there
    world_step(&world);
    ck_assert_uint_eq(worker_counts(&a).total, BLOCKS);
}
END_TEST

// ---- releases ----

START_TEST(a_block_that_an_attached_session_releases_is_not_free_until_it_reports)
{
    attach(&a);
    worker_lease(&a, 4, blocks);
    worker_release(&a, blocks, 3);
    expect_free(BLOCKS - 4);
    ck_assert_int_eq(worker_block(&b, blocks[0]).state, CORE_LEASED);
    ck_assert_refused(core_blocks_release(a.session, a.cache, blocks, 1, &error), STATUS_NOT_HELD,
                      "is not held");
    world_check(&world);
    pass(&a, 0);
    expect_free(BLOCKS - 4);
    pass(&a, CORE_PASSED_ALL);
    expect_free(BLOCKS - 1);
}
END_TEST

START_TEST(a_mark_lets_go_of_what_was_released_before_it_and_of_nothing_else)
{
    attach(&a);
    worker_lease(&a, 6, blocks);
    worker_release(&a, blocks, 2);
    const uint64_t first = pass(&a, 0);
    worker_release(&a, blocks + 2, 2);
    const uint64_t second = pass(&a, first);
    expect_free(BLOCKS - 4);
    worker_release(&a, blocks + 4, 2);
    pass(&a, second);
    expect_free(BLOCKS - 2);
    pass(&a, CORE_PASSED_ALL);
    expect_free(BLOCKS);
    uint64_t mark;
    ck_assert_refused(try_report(&a, NULL, 0, 9, &mark, &error), STATUS_INVALID,
                      "passed = 9; the last mark was 4");
}
END_TEST

START_TEST(a_block_that_is_taken_again_while_it_lingers_gets_its_latest_mark)
{
    attach(&a);
    worker_lease(&a, 2, blocks);
    report_blocks(&a, blocks, 2);
    worker_publish(&a, tokens, 16, blocks);
    worker_release(&a, blocks, 2);
    ck_assert_int_eq(worker_block(&b, blocks[0]).state, CORE_HELD);
    const uint64_t mark = pass(&a, 0);
    ck_assert_uint_eq(worker_lookup(&a, tokens, 16, found), 2);
    worker_release(&a, found, 1); // the second one stays held
    pass(&a, mark);
    ck_assert_int_eq(worker_block(&b, blocks[0]).state, CORE_HELD);
    pass(&a, CORE_PASSED_ALL);
    ck_assert_int_eq(worker_block(&b, blocks[0]).state, CORE_CACHED);
    ck_assert_int_eq(worker_block(&b, blocks[1]).state, CORE_HELD);
}
END_TEST

START_TEST(a_published_block_that_lingers_is_not_evicted)
{
    struct error error = {0};
    attach(&a);
    worker_lease(&a, 2, blocks);
    report_blocks(&a, blocks, 2);
    worker_publish(&a, tokens, 16, blocks);
    worker_release(&a, blocks, 2);
    ck_assert_int_eq(worker_try_lease(&b, BLOCKS - 1, found, &error), STATUS_NO_BLOCKS);
    while (world_step(&world))
        ;
    pass(&a, CORE_PASSED_ALL);
    ck_assert(core_has_news(world.core)); // a lease that waits may get it
    worker_lease(&b, BLOCKS - 1, found);
}
END_TEST

START_TEST(closing_says_that_all_has_passed)
{
    attach(&a);
    worker_lease(&a, 4, blocks);
    worker_release(&a, blocks, 2);
    ck_assert_status(core_cache_close(a.session, a.cache, &error), STATUS_OK);
    expect_free(BLOCKS);
    a.cache = worker_open_cache(&a, "kv");
    ck_assert(!core_cache_attached(a.session, a.cache, &attachment));
    attach(&a);
    worker_lease(&a, 4, blocks);
    worker_release(&a, blocks, 2);
    ck_assert(!core_session_close(a.session, false));
    ck_assert(a.gone);
    expect_free(BLOCKS);
}
END_TEST

// ---- reports of what was written ----

START_TEST(reported_slots_count_as_written_and_only_those)
{
    const int64_t some[] = {-1, 0, 1, 2, 3, 4, 5, 6};
    uint64_t mark;
    uint32_t existing;
    attach(&a);
    worker_lease(&a, 2, blocks);
    ck_assert_int_eq(blocks[0], 0);
    ck_assert_refused(worker_try_publish(&a, tokens, 8, blocks, &existing, &error),
                      STATUS_UNWRITTEN, "has 0 of 8 slots written in layer 0");
    ck_assert_status(try_report(&a, some, 8, 0, &mark, &error), STATUS_OK);
    ck_assert_refused(worker_try_publish(&a, tokens, 8, blocks, &existing, &error),
                      STATUS_UNWRITTEN, "has 7 of 8 slots written in layer 0");
    const int64_t last = 7;
    struct core_report report = {.cache = a.cache, .slots = &last, .num_slots = 1, .num_layers = 1};
    ck_assert_status(core_cache_report(a.session, &report, &mark, &error), STATUS_OK);
    ck_assert_refused(worker_try_publish(&a, tokens, 8, blocks, &existing, &error),
                      STATUS_UNWRITTEN, "has 7 of 8 slots written in layer 1");
    report.first_layer = 1;
    ck_assert_status(core_cache_report(a.session, &report, &mark, &error), STATUS_OK);
    world_check(&world);
    ck_assert_uint_eq(worker_publish(&a, tokens, 8, blocks), 0);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 8, found), 1);
    ck_assert_int_eq(found[0], blocks[0]);
}
END_TEST

START_TEST(a_report_of_slots_that_the_session_may_not_write_changes_nothing)
{
    uint64_t mark;
    uint32_t existing;
    int64_t slots[] = {0, 999};
    ck_assert_refused(try_report(&a, NULL, 0, 0, &mark, &error), STATUS_INVALID,
                      "is not attached to cache \"kv\"");
    attach(&a);
    worker_lease(&a, 1, blocks);
    worker_lease(&b, 1, found);
    ck_assert_refused(try_report(&a, slots, 2, 0, &mark, &error), STATUS_OUT_OF_RANGE,
                      "slots[1] = 999 is outside the cache's 128 slots");
    slots[1] = (int64_t)found[0] * WORLD_BLOCK + 3;
    ck_assert_refused(try_report(&a, slots, 2, 0, &mark, &error), STATUS_NOT_HELD,
                      "slots[1] = 11 lies in block 1, which is not leased by this session");
    ck_assert_refused(worker_try_publish(&a, tokens, 8, blocks, &existing, &error),
                      STATUS_UNWRITTEN, "has 0 of 8");
    struct core_report report = {.cache = a.cache, .first_layer = 1, .num_layers = 2};
    ck_assert_refused(core_cache_report(a.session, &report, &mark, &error), STATUS_OUT_OF_RANGE,
                      "2 layers from 1 on; cache \"kv\" has 2");
    worker_lease(&a, 1, found);
    worker_release(&a, found, 1);
    report_blocks(&a, found, 1); // it lingers, so the session may still say what it wrote
    pass(&a, CORE_PASSED_ALL);
    slots[1] = (int64_t)found[0] * WORLD_BLOCK;
    ck_assert_refused(try_report(&a, slots, 2, 0, &mark, &error), STATUS_NOT_HELD, "is not leased");
    report_blocks(&a, blocks, 1);
    worker_publish(&a, tokens, 8, blocks);
    ck_assert_refused(try_report(&a, slots, 1, 0, &mark, &error), STATUS_SEALED,
                      "slots[0] = 0 lies in block 0, which is sealed");
}
END_TEST

START_TEST(whole_blocks_are_reported_by_their_ids)
{
    const struct core_report report = {.cache = a.cache, .passed = CORE_PASSED_ALL};
    uint64_t mark;
    ck_assert_refused(core_blocks_report(a.session, &report, blocks, 0, &mark, &error),
                      STATUS_INVALID, "is not attached to cache \"kv\"");
    attach(&a);
    worker_lease(&a, 3, blocks);
    worker_release(&a, blocks + 2, 1);
    worker_lease(&b, 1, found);
    const int32_t mixed[] = {blocks[0], found[0]};
    ck_assert_refused(core_blocks_report(a.session, &report, mixed, 2, &mark, &error),
                      STATUS_NOT_HELD, "blocks[1]");
    expect_free(BLOCKS - 4); // nothing has changed
    ck_assert_status(core_blocks_report(a.session, &report, blocks, 2, &mark, &error), STATUS_OK);
    world_check(&world);
    expect_free(BLOCKS - 3); // what was released is let go
    worker_publish(&a, tokens, 16, blocks);
    ck_assert_status(core_blocks_report(a.session, &report, blocks, 2, &mark, &error), STATUS_OK);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 16, found), 2);
    ck_assert_status(core_cache_attach(b.session, b.cache, &attachment, &error), STATUS_OK);
    // Sealed blocks that it holds are another session's, and stay as they are.
    const struct core_report others = {.cache = b.cache};
    ck_assert_status(core_blocks_report(b.session, &others, found, 2, &mark, &error), STATUS_OK);
    world_check(&world);
}
END_TEST

// ---- zeroes ----

START_TEST(zeroes_never_overwrite_what_an_attached_session_writes)
{
    world_close(&world);
    open_two("other");
    attach(&a);
    worker_lease(&b, BLOCKS, blocks);
    worker_write(&b, blocks, tokens, 8); // block 0 has values of another tenant
    worker_release(&b, blocks, BLOCKS);
    worker_lease(&a, 1, blocks);
    ck_assert_int_eq(blocks[0], 0);
    world_finish_all(&world);
    ck_assert_int_eq(fake_engine_slot(attachment.cache, 0, 0, 0), 1); // not zeroed for `a`
    worker_release(&a, blocks, 1);
    pass(&a, CORE_PASSED_ALL);
    worker_open(&c, &world, 1, ""); // the tenant of `a`
    worker_lease(&c, 2, found);
    ck_assert_int_eq(found[0], 0);
    worker_run(&c, worker_batch(&c, found + 1, 8, 8), 0, 8, tokens); // any run
    world_finish_all(&world);
    ck_assert_int_eq(fake_engine_slot(attachment.cache, 0, 0, 0), 0); // but for those that follow
}
END_TEST

START_TEST(an_offered_block_is_not_zeroed_after_an_attached_session_has_taken_it)
{
    const struct core_offer *offer;
    uint8_t access;
    world_close(&world);
    open_two("other");
    worker_open(&c, &world, 1, ""); // the tenant of `a`
    attach(&a);
    worker_lease(&b, BLOCKS, blocks);
    worker_write(&b, blocks, tokens, 8);
    worker_release(&b, blocks, BLOCKS);
    worker_lease(&c, 1, found); // to be zeroed before the next run
    ck_assert_int_eq(found[0], 0);
    const struct core_offer_params params = {.cache = c.cache,
                                             .name = "a text",
                                             .blocks = found,
                                             .num_blocks = 1,
                                             .num_tokens = 8,
                                             .expires_ns = INT64_MAX};
    ck_assert_status(core_offer_make(c.session, &params, &error), STATUS_OK);
    ck_assert_status(core_offer_take(a.session, NULL, a.cache, "a text", &offer, &error),
                     STATUS_OK);
    ck_assert_status(core_offer_settle(a.session, offer->id, true, &access, &error), STATUS_OK);
    worker_lease(&b, 1, blocks);
    worker_run(&b, worker_batch(&b, blocks, 8, 8), 0, 8, tokens);
    world_finish_all(&world);
    ck_assert_int_eq(fake_engine_slot(attachment.cache, 0, 0, 0), 1); // it was not zeroed
}
END_TEST

// A block that `a` has written, and that is being zeroed for `b`, which has released it.
static int32_t free_in_flight(void)
{
    worker_lease(&a, 1, blocks);
    report_blocks(&a, blocks, 1);
    worker_release(&a, blocks, 1);
    pass(&a, CORE_PASSED_ALL);
    worker_lease(&b, 2, found); // one is to be zeroed
    worker_run(&b, worker_batch(&b, found + 1, 8, 8), 0, 8, tokens);
    world_step(&world); // the zeroes are in flight
    ck_assert_int_eq(found[0], blocks[0]);
    worker_release(&b, found, 1);
    return found[0];
}

START_TEST(an_attached_lease_waits_for_zeroes_in_flight_of_blocks_that_it_needs)
{
    bool growing = false;
    world_close(&world);
    open_two("other");
    attach(&a);
    free_in_flight();
    ck_assert_refused(
        core_blocks_lease(a.session, NULL, a.cache, BLOCKS - 1, blocks, &growing, &error),
        STATUS_NO_BLOCKS, "are being zeroed");
    ck_assert(growing); // ask again soon
    fake_engine_finish(world.engine);
    ck_assert(world_step(&world));
    worker_lease(&a, BLOCKS - 1, blocks);
    world_finish_all(&world);
}
END_TEST

// Without this, zeroes of other tenants that never cease would keep it from any lease.
START_TEST(an_attached_lease_takes_other_blocks_than_those_that_are_being_zeroed)
{
    world_close(&world);
    open_two("other");
    attach(&a);
    const int32_t zeroed = free_in_flight();
    worker_lease(&a, BLOCKS - 2, blocks);
    for (int i = 0; i < BLOCKS - 2; i++)
        ck_assert_int_ne(blocks[i], zeroed);
    world_check(&world);
    world_finish_all(&world);
    ck_assert_int_eq(worker_block(&b, zeroed).state, CORE_FREE);
}
END_TEST

START_TEST(a_session_attaches_while_blocks_of_others_are_being_zeroed)
{
    world_close(&world);
    open_two("other");
    worker_open(&c, &world, 1, "third");
    attach(&a);
    free_in_flight();
    ck_assert_status(core_cache_attach(c.session, c.cache, &attachment, &error), STATUS_OK);
    worker_lease(&b, 1, blocks); // which `a` has written, too
    ck_assert_int_eq(blocks[0], found[0]);
    ck_assert_refused(core_cache_attach(b.session, b.cache, &attachment, &error), STATUS_BUSY,
                      "are being zeroed");
    world_finish_all(&world);
    attach(&b);
}
END_TEST

START_TEST(an_attached_take_is_woken_when_zeroes_in_flight_have_ended)
{
    const struct core_offer *offer;
    struct core_wait taker;
    world_close(&world);
    open_two("other");
    worker_open(&c, &world, 1, ""); // the tenant of `a`
    attach(&a);
    worker_lease(&b, 1, blocks);
    worker_write(&b, blocks, tokens, 8);
    worker_release(&b, blocks, 1);
    worker_lease(&c, 2, found); // one is to be zeroed
    ck_assert_int_eq(found[0], blocks[0]);
    const struct core_offer_params params = {.cache = c.cache,
                                             .name = "a text",
                                             .blocks = found,
                                             .num_blocks = 1,
                                             .num_tokens = 8,
                                             .expires_ns = INT64_MAX};
    ck_assert_status(core_offer_make(c.session, &params, &error), STATUS_OK);
    worker_run(&c, worker_batch(&c, found + 1, 8, 8), 0, 8, tokens);
    world_step(&world); // the zeroes are in flight
    ck_assert_refused(core_offer_take(a.session, NULL, a.cache, "a text", &offer, &error),
                      STATUS_BUSY, "are being zeroed");
    ck_assert_status(core_wait_for_offer(a.session, &taker, a.cache, "a text", &error), STATUS_OK);
    while (core_next_ready(world.core))
        ;
    fake_engine_finish(world.engine);
    ck_assert(world_step(&world));
    ck_assert(taker.woken);
    ck_assert_status(core_offer_take(a.session, &taker, a.cache, "a text", &offer, &error),
                     STATUS_OK);
    core_wait_end(&taker);
    world_finish_all(&world);
}
END_TEST

// ---- death ----

static void die(struct worker *worker)
{
    ck_assert(core_session_close(worker->session, true));
    world_check(&world);
}

START_TEST(blocks_of_a_dead_attached_session_wait_for_the_proof_and_for_a_fence)
{
    attach(&a);
    worker_lease(&a, 5, blocks);
    worker_release(&a, blocks, 2); // they linger
    struct core_session *dead = a.session;
    die(&a);
    ck_assert_uint_eq(worker_counts(&b).quarantined, 5);
    world_finish_all(&world);
    ck_assert_uint_eq(worker_counts(&b).quarantined, 5);
    ck_assert(!a.gone);
    core_session_proven_dead(dead);
    world_check(&world);
    ck_assert_uint_eq(worker_counts(&b).quarantined, 5);
    world_step(&world); // submits the fence
    ck_assert_uint_eq(worker_counts(&b).quarantined, 5);
    ck_assert_ptr_nonnull(fake_engine_oldest(world.engine));
    fake_engine_finish(world.engine);
    ck_assert(world_step(&world));
    ck_assert(a.gone);
    expect_free(BLOCKS);
}
END_TEST

START_TEST(a_fence_comes_behind_what_was_in_flight_at_the_proof)
{
    attach(&a);
    worker_lease(&a, 1, blocks);
    worker_lease(&b, 1, found);
    worker_run(&b, worker_batch(&b, found, 8, 8), 0, 8, tokens);
    struct core_session *dead = a.session;
    die(&a);
    world_step(&world);
    core_session_proven_dead(dead);
    world_step(&world);
    fake_engine_finish(world.engine); // the run: its end proves nothing
    world_step(&world);
    ck_assert_uint_eq(worker_counts(&b).quarantined, 1);
    fake_engine_finish(world.engine);
    world_step(&world);
    expect_free(BLOCKS - 1);
}
END_TEST

START_TEST(a_block_that_others_hold_too_stays_with_them)
{
    attach(&a);
    worker_lease(&a, 2, blocks);
    report_blocks(&a, blocks, 2);
    worker_publish(&a, tokens, 16, blocks);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 8, found), 1);
    struct core_session *dead = a.session;
    die(&a);
    ck_assert_int_eq(worker_block(&b, blocks[0]).state, CORE_HELD);
    ck_assert_int_eq(worker_block(&b, blocks[1]).state, CORE_QUARANTINED);
    core_session_proven_dead(dead);
    world_finish_all(&world);
    ck_assert_int_eq(worker_block(&b, blocks[0]).state, CORE_HELD);
    ck_assert_int_eq(worker_block(&b, blocks[1]).state, CORE_CACHED);
}
END_TEST

START_TEST(a_dead_session_without_blocks_needs_no_proof)
{
    attach(&a);
    ck_assert(!core_session_close(a.session, true));
    ck_assert(a.gone);
}
END_TEST

START_TEST(a_lost_device_and_the_end_of_core_let_go_of_everything)
{
    attach(&a);
    attach(&b);
    worker_lease(&a, 3, blocks);
    worker_lease(&b, 3, found);
    struct core_session *dead = a.session;
    die(&a);
    core_session_proven_dead(dead);
    world_step(&world);
    die(&b);
    fake_engine_lose(world.engine, "a test");
    world_step(&world);
    ck_assert(a.gone);
    ck_assert(!b.gone); // its death was never proven; the end of core frees it
}
END_TEST

// ---- at random ----

// Two attached sessions and one that is not lease, publish, find, release, report, die and are
// proven dead; core's own audit counts all after each step.
struct player {
    struct worker worker;
    int32_t held[BLOCKS * 4];
    uint32_t num_held;
    struct core_session *dead; // until it is proven
    bool alive, attached;
};

static void player_open(struct player *player, bool attached)
{
    player->num_held = 0;
    player->alive = true;
    player->attached = attached;
    worker_open(&player->worker, &world, 1, "");
    if (attached)
        attach(&player->worker);
}

static void player_take(struct player *player, struct dice *dice)
{
    struct error error = {0};
    int32_t got[BLOCKS];
    const uint32_t count = dice_below(dice, 3) + 1;
    if (player->num_held + BLOCKS > BLOCKS * 3)
        return;
    uint32_t num = 0;
    if (dice_below(dice, 2) && worker_try_lease(&player->worker, count, got, &error) == STATUS_OK)
        num = count;
    else
        num = worker_lookup(&player->worker, tokens + 8 * dice_below(dice, 4), 24, got);
    memcpy(player->held + player->num_held, got, num * sizeof *got);
    player->num_held += num;
}

static void player_publish(struct player *player, struct dice *dice)
{
    struct error error = {0};
    uint32_t existing;
    if (!player->num_held)
        return;
    int32_t *block = &player->held[dice_below(dice, player->num_held)];
    if (player->attached && worker_block(&player->worker, *block).writer == player->worker.id)
        report_blocks(&player->worker, block, 1);
    (void)worker_try_publish(&player->worker, tokens + 8 * dice_below(dice, 4), 8, block, &existing,
                             &error);
    if (existing) // the session still holds the block that it gave: give both back at the end
        return;
}

static void player_release(struct player *player, struct dice *dice)
{
    if (!player->num_held)
        return;
    const uint32_t at = dice_below(dice, player->num_held);
    worker_release(&player->worker, &player->held[at], 1);
    player->held[at] = player->held[--player->num_held];
}

static void player_die(struct player *player)
{
    struct core_session *session = player->worker.session;
    player->dead = core_session_close(session, true) ? session : NULL;
    player->alive = false;
}

static void player_step(struct player *player, struct dice *dice)
{
    const uint32_t what = dice_below(dice, 40);
    if (player->dead && what < 10) {
        core_session_proven_dead(player->dead);
        player->dead = NULL;
    } else if (!player->alive && !player->dead && player->worker.gone) {
        player_open(player, player->attached);
    } else if (player->alive && what < 14) {
        player_take(player, dice);
    } else if (player->alive && what < 24) {
        player_publish(player, dice);
    } else if (player->alive && what < 34) {
        player_release(player, dice);
    } else if (player->alive && what < 38 && player->attached) {
        pass(&player->worker, dice_below(dice, 2) ? CORE_PASSED_ALL : 0);
    } else if (player->alive && what == 39) {
        player_die(player);
    }
}

START_TEST(counts_stay_right_whatever_attached_sessions_do)
{
    static struct player players[3];
    struct dice dice = {check_draw("attached sessions")};
    memset(players, 0, sizeof players);
    for (int i = 0; i < 3; i++)
        player_open(&players[i], i < 2);
    for (int i = 0; i < 4000; i++) {
        player_step(&players[dice_below(&dice, 3)], &dice);
        if (dice_below(&dice, 3) == 0)
            world_step(&world);
        if (dice_below(&dice, 3) == 0)
            fake_engine_finish(world.engine);
        world_check(&world);
    }
    for (int i = 0; i < 3; i++)
        if (players[i].dead)
            core_session_proven_dead(players[i].dead);
    world_finish_all(&world);
}
END_TEST

int main(void)
{
    check_seed();
    Suite *suite = suite_create("attached");
    const struct {
        const char *name;
        const TTest *tests[8];
    } groups[] = {
        {"fixed pool",
         {a_fixed_pool_has_one_chunk_from_its_beginning_and_never_grows,
          caches_of_a_fixed_pool_take_no_memory_from_each_other,
          attaching_needs_the_option_and_the_memory}},
        {"releases",
         {a_block_that_an_attached_session_releases_is_not_free_until_it_reports,
          a_mark_lets_go_of_what_was_released_before_it_and_of_nothing_else,
          a_block_that_is_taken_again_while_it_lingers_gets_its_latest_mark,
          a_published_block_that_lingers_is_not_evicted, closing_says_that_all_has_passed}},
        {"reports",
         {reported_slots_count_as_written_and_only_those,
          a_report_of_slots_that_the_session_may_not_write_changes_nothing,
          whole_blocks_are_reported_by_their_ids}},
        {"zeroes",
         {zeroes_never_overwrite_what_an_attached_session_writes,
          an_offered_block_is_not_zeroed_after_an_attached_session_has_taken_it,
          an_attached_lease_waits_for_zeroes_in_flight_of_blocks_that_it_needs,
          an_attached_lease_takes_other_blocks_than_those_that_are_being_zeroed,
          a_session_attaches_while_blocks_of_others_are_being_zeroed,
          an_attached_take_is_woken_when_zeroes_in_flight_have_ended}},
        {"death",
         {blocks_of_a_dead_attached_session_wait_for_the_proof_and_for_a_fence,
          a_fence_comes_behind_what_was_in_flight_at_the_proof,
          a_block_that_others_hold_too_stays_with_them,
          a_dead_session_without_blocks_needs_no_proof,
          a_lost_device_and_the_end_of_core_let_go_of_everything}},
        {"at random", {counts_stay_right_whatever_attached_sessions_do}},
    };
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        TCase *group = tcase_create(groups[i].name);
        tcase_add_checked_fixture(group, setup, teardown);
        for (int j = 0; groups[i].tests[j]; j++)
            tcase_add_test(group, groups[i].tests[j]);
        suite_add_tcase(suite, group);
    }
    return check_main(suite);
}
