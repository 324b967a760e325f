// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_claims.c - look-ups that claim what is missing: which session computes which block, who
// waits, who inherits, and that no order of events leaves all sessions waiting.

#include "base/container_of.h"
#include "core/state.h"
#include "rigs/check_main.h"
#include "rigs/dice.h"
#include "rigs/ownership_world.h"

#include <string.h>

enum { BLOCK = WORLD_BLOCK };

static struct core_claim claim(struct worker *worker, const int32_t *text, uint32_t num_blocks)
{
    const struct core_prefix prefix = {.tokens = text, .num_tokens = num_blocks * BLOCK};
    struct core_claim out;
    ck_assert_status(
        core_prefix_claim(worker->session, worker->cache, &prefix, 0, found, &out, &error),
        STATUS_OK);
    return out;
}

// Takes what has come; `count` blocks. The claim then stands as *own says.
static void take(struct worker *worker, struct core_claim *own, uint32_t count)
{
    uint32_t num_blocks, before = own->num_found;
    ck_assert_status(core_claim_take(worker->session, worker->cache, own->claim, found, &num_blocks,
                                     own, &error),
                     STATUS_OK);
    ck_assert_uint_eq(num_blocks, count);
    ck_assert_uint_eq(own->num_found, before + count);
}

static void take_nothing(struct worker *worker, const struct core_claim *own)
{
    uint32_t num_blocks;
    struct core_claim out;
    ck_assert_refused(core_claim_take(worker->session, worker->cache, own->claim, found,
                                      &num_blocks, &out, &error),
                      STATUS_TIMEOUT, "is not there yet");
}

static void release(struct worker *worker, const struct core_claim *own, uint32_t num_blocks)
{
    ck_assert_status(
        core_claim_release(worker->session, worker->cache, own->claim, num_blocks, &error),
        STATUS_OK);
}

static bool ended(struct worker *worker, const struct core_claim *own)
{
    return core_claim_missing(worker->session, worker->cache, own->claim) == 0;
}

// Computes and publishes blocks[first .. end) of the text; those before are in ids[] already.
static void compute(struct worker *worker, const int32_t *text, int32_t *ids, uint32_t first,
                    uint32_t end)
{
    worker_lease(worker, end - first, ids + first);
    worker_write(worker, ids + first, text + (size_t)first * BLOCK, (end - first) * BLOCK);
    worker_publish(worker, text, end * BLOCK, ids);
}

static void open_three(void)
{
    open_two();
    worker_open(&c, &world, 1, "");
    worker_lease(&a, 1, blocks); // makes the chunk
    worker_release(&a, blocks, 1);
}

// ---- deadlines ----

enum { DEADLINE = 100 };

static void open_timed(void)
{
    world_open(&world, &(struct core_params){.claim_timeout_ns = DEADLINE});
    worker_open(&a, &world, 1, "");
    worker_open(&b, &world, 1, "");
    worker_open(&c, &world, 1, "");
    count_tokens(tokens, 2048, 1000);
}

static void pass_time(int64_t ns)
{
    world.now_ns += ns;
    world_step(&world);
    world_check(&world);
}

static uint64_t num_late(void)
{
    return core_metrics(world.core)[METRIC_CLAIMS_LATE];
}

START_TEST(
    the_next_inherits_from_a_session_that_stands_still_and_what_that_publishes_late_is_harmless)
{
    int32_t ids[4], late[4];
    pass_time(1);
    struct core_claim first = claim(&a, tokens, 4), second = claim(&b, tokens, 4), third;
    ck_assert_uint_eq(second.num_promised, 4);
    pass_time(DEADLINE - 1);
    take_nothing(&b, &second);
    ck_assert_int_eq(core_wake_ns(world.core), world.now_ns + 1);
    pass_time(1);
    take(&b, &second, 0);
    ck_assert_uint_eq(second.num_promised, 0);
    compute(&b, tokens, ids, 0, 2);
    pass_time(1);
    compute(&a, tokens, late, 0, 3); // it goes on after all: two of its blocks are there already
    ck_assert(late[0] == ids[0] && late[1] == ids[1]);
    ck_assert_uint_eq(num_late(), 1);
    pass_time(1);
    take(&b, &second, 3); // also a's block
    ids[2] = found[2];
    third = claim(&c, tokens, 4);
    ck_assert_uint_eq(third.num_found, 3);
    ck_assert_uint_eq(third.num_promised, 1);
    compute(&b, tokens, ids, 3, 4);
    ck_assert(ended(&b, &second));
    take(&a, &first, 4);
    take(&c, &third, 1);
}
END_TEST

START_TEST(progress_renews_a_claim_and_time_in_which_it_waits_does_not_count)
{
    int32_t ids[8], text[8 * BLOCK];
    memcpy(text, tokens, sizeof text);
    struct core_claim first = claim(&a, tokens, 4), second = claim(&b, text, 8),
                      third = claim(&c, text, 8);
    for (uint32_t i = 0; i < 4; i++) {
        pass_time(DEADLINE - 1);
        ck_assert(!ended(&a, &first));
        compute(&a, tokens, ids, i, i + 1);
    }
    ck_assert(ended(&a, &first));
    pass_time(DEADLINE - 1); // b's turn came with a's last block
    take(&c, &third, 4);
    take_nothing(&c, &third);
    take(&b, &second, 4);
    pass_time(DEADLINE - 1); // a take is progress, too
    take_nothing(&c, &third);
    ck_assert_uint_eq(num_late(), 0);
    pass_time(1);
    take(&c, &third, 0);
    ck_assert_uint_eq(third.num_promised, 0);
    ck_assert_uint_eq(num_late(), 1);
    release(&b, &second, 0);
    release(&c, &third, 0);
}
END_TEST

START_TEST(a_claim_that_comes_after_a_late_one_goes_first_and_a_late_one_alone_keeps_its_turn)
{
    struct core_claim first = claim(&a, tokens, 2);
    pass_time(5 * DEADLINE);
    ck_assert_uint_eq(num_late(), 1);
    take(&a, &first, 0); // nobody else computes it
    ck_assert_uint_eq(first.num_promised, 0);
    struct core_claim second = claim(&b, tokens, 2);
    ck_assert_uint_eq(second.num_promised, 0);
    take_nothing(&a, &first);
    worker_close(&b, true);
    take(&a, &first, 0);
    ck_assert_uint_eq(first.num_promised, 0);
    release(&a, &first, 0);
}
END_TEST

START_TEST(claims_that_are_all_late_take_turns_so_none_waits_for_one_that_hangs)
{
    int32_t ids[2];
    struct core_claim first = claim(&a, tokens, 2), second = claim(&b, tokens, 2);
    pass_time(DEADLINE);
    pass_time(DEADLINE); // both are late, and the turn is a's again
    ck_assert_uint_eq(num_late(), 2);
    take_nothing(&b, &second);
    pass_time(DEADLINE - 1);
    take_nothing(&b, &second);
    pass_time(1);
    take(&b, &second, 0);
    ck_assert_uint_eq(second.num_promised, 0);
    compute(&b, tokens, ids, 0, 2);
    ck_assert(ended(&b, &second));
    ck_assert_uint_eq(num_late(), 2);
    release(&a, &first, 0);
}
END_TEST

// ---- two workers ----

START_TEST(the_first_claim_computes_and_the_second_gets_block_by_block)
{
    struct core_claim first = claim(&a, tokens, 4), second = claim(&b, tokens, 4);
    ck_assert_uint_eq(first.num_found + first.num_promised, 0);
    ck_assert_uint_eq(second.num_promised, 4);
    for (uint32_t i = 0; i < 4; i++) {
        take_nothing(&b, &second);
        compute(&a, tokens, blocks, i, i + 1);
        ck_assert(world_step(&world)); // so that the server asks again
        take(&b, &second, 1);
        ck_assert_int_eq(found[0], blocks[i]);
        ck_assert_uint_eq(second.num_promised, 3 - i);
        ck_assert_uint_eq(worker_block(&b, blocks[i]).holders, 2);
        world_check(&world);
    }
    ck_assert_uint_eq(second.claim, 0);
    ck_assert(ended(&a, &first));
    const uint64_t *totals = core_metrics(world.core);
    ck_assert_uint_eq(totals[METRIC_CLAIMS], 2);
    ck_assert_uint_eq(totals[METRIC_CLAIM_TOKENS], 4 * BLOCK);
}
END_TEST

START_TEST(a_claim_begins_behind_what_the_cache_has)
{
    compute(&a, tokens, blocks, 0, 2);
    struct core_claim first = claim(&b, tokens, 4);
    ck_assert_uint_eq(first.num_found, 2);
    ck_assert_uint_eq(first.num_promised, 0);
    ck_assert_int_ne(first.claim, 0);
    ck_assert_uint_eq(claim(&c, tokens, 2).claim, 0); // nothing is missing
    ck_assert_uint_eq(claim(&c, tokens, 0).claim, 0);
}
END_TEST

START_TEST(a_published_block_is_promised_until_its_writes_have_ended)
{
    uint64_t last;
    struct core_claim first = claim(&a, tokens, 2), second = claim(&b, tokens, 2);
    worker_lease(&a, 2, blocks);
    worker_write_async(&a, blocks, tokens, 2 * BLOCK, &last);
    worker_publish(&a, tokens, 2 * BLOCK, blocks);
    take_nothing(&b, &second);
    ck_assert(core_claim_waits(b.session, b.cache, second.claim));
    ck_assert(!core_claim_waits(b.session, b.cache, 9999));
    ck_assert(!ended(&a, &first));
    release(&a, &first, 0); // no other claim inherits what is on its way
    take_nothing(&b, &second);
    world_finish_all(&world);
    ck_assert(!core_claim_waits(b.session, b.cache, second.claim));
    take(&b, &second, 2);
}
END_TEST

START_TEST(a_claim_whose_writes_failed_is_its_holders_again)
{
    uint64_t last;
    struct core_claim first = claim(&a, tokens, 1), second = claim(&b, tokens, 1);
    worker_lease(&a, 1, blocks);
    worker_write_async(&a, blocks, tokens, BLOCK, &last);
    worker_publish(&a, tokens, BLOCK, blocks);
    world_step(&world);
    fake_engine_newest(world.engine)->runs[0].fail = STATUS_INTERNAL;
    world_finish_all(&world);
    ck_assert(!ended(&a, &first));
    take_nothing(&b, &second);
    compute(&a, tokens, blocks + 1, 0, 1);
    ck_assert(ended(&a, &first));
    take(&b, &second, 1);
}
END_TEST

// ---- inheriting ----

START_TEST(the_next_in_the_queue_inherits_in_the_order_of_arrival)
{
    struct core_claim first = claim(&a, tokens, 3), second = claim(&b, tokens, 3),
                      third = claim(&c, tokens, 3);
    compute(&a, tokens, blocks, 0, 1);
    world_step(&world);
    release(&a, &first, 0);
    ck_assert(world_step(&world));
    take(&b, &second, 1);
    ck_assert_uint_eq(second.num_promised, 0);
    take(&c, &third, 1);
    ck_assert_uint_eq(third.num_promised, 2);
    worker_close(&b, true);
    ck_assert(world_step(&world));
    take(&c, &third, 0);
    ck_assert_uint_eq(third.num_promised, 0);
}
END_TEST

// What a holder has done when it dies. Each step is one call, in this order.
enum step { CLAIMED, LEASED, QUEUED, IN_FLIGHT, PENDING, VISIBLE, NUM_STEPS };

static void work_until(enum step step)
{
    uint64_t batch = 0;
    claim(&a, tokens, 2);
    if (step >= LEASED)
        worker_lease(&a, 2, blocks);
    for (uint32_t layer = 0; step >= QUEUED && layer < WORLD_LAYERS; layer++) {
        batch = batch ? batch : worker_batch(&a, blocks, 2 * BLOCK, 2 * BLOCK);
        worker_run(&a, batch, layer, 2 * BLOCK, tokens);
    }
    if (step >= IN_FLIGHT)
        world_step(&world);
    if (step >= PENDING)
        worker_publish(&a, tokens, 2 * BLOCK, blocks);
    if (step >= VISIBLE)
        world_finish_all(&world);
}

START_TEST(a_holder_that_dies_at_any_step_leaves_nobody_waiting)
{
    for (int step = CLAIMED; step < NUM_STEPS; step++) {
        close_all();
        open_three();
        struct core_claim second, third;
        int32_t mine[4];
        work_until((enum step)step);
        second = claim(&b, tokens, 4);
        third = claim(&c, tokens, 4);
        worker_close(&a, true);
        world_check(&world);
        world_finish_all(&world);
        uint32_t had = second.num_found, kept = step >= PENDING ? 2 : 0;
        take(&b, &second, kept - had);
        ck_assert_uint_eq(second.num_promised, 0);
        had = worker_lookup(&b, tokens, 4 * BLOCK, mine);
        ck_assert_uint_eq(had, kept);
        compute(&b, tokens, mine, had, 4);
        take(&c, &third, 4 - third.num_found);
        ck_assert_uint_eq(third.claim, 0);
        ck_assert_uint_eq(world.core->pool.caches[0]->claims.size, 0);
    }
}
END_TEST

START_TEST(closing_the_cache_ends_its_claims)
{
    struct core_claim second;
    claim(&a, tokens, 2);
    second = claim(&b, tokens, 2);
    ck_assert_status(core_cache_close(a.session, a.cache, &error), STATUS_OK);
    take(&b, &second, 0);
    ck_assert_uint_eq(second.num_promised, 0);
    ck_assert_status(core_cache_close(b.session, b.cache, &error), STATUS_OK);
    ck_assert_uint_eq(b.session->num_claimed, 0);
}
END_TEST

// ---- trees of prompts ----

START_TEST(prompts_that_part_wait_only_for_what_they_share)
{
    int32_t other[5 * BLOCK], mine[5];
    memcpy(other, tokens, sizeof(other));
    other[2 * BLOCK]++; // the third block differs
    claim(&a, tokens, 4);
    struct core_claim second = claim(&b, other, 5), third = claim(&c, other, 5);
    ck_assert_uint_eq(second.num_promised, 2);
    ck_assert_uint_eq(third.num_promised, 5);
    compute(&a, tokens, blocks, 0, 2);
    take(&b, &second, 2);
    ck_assert_uint_eq(second.num_promised, 0); // the rest is its own
    memcpy(mine, found, 2 * sizeof(*mine));
    take(&c, &third, 2);
    compute(&b, other, mine, 2, 5);
    take(&c, &third, 3);
    ck_assert_uint_eq(third.claim, 0);
}
END_TEST

START_TEST(a_longer_prompt_waits_for_its_first_part_and_computes_the_rest)
{
    claim(&a, tokens, 2);
    struct core_claim second = claim(&b, tokens, 4), third = claim(&c, tokens, 3);
    ck_assert_uint_eq(second.num_promised, 2);
    ck_assert_uint_eq(third.num_promised, 3);
    compute(&a, tokens, blocks, 0, 2);
    take(&c, &third, 2);
    ck_assert_uint_eq(third.num_promised, 1); // the second claim's
    worker_close(&b, true);
    take(&c, &third, 0);
    ck_assert_uint_eq(third.num_promised, 0);
}
END_TEST

START_TEST(releasing_the_end_of_a_claim_keeps_its_beginning)
{
    struct core_claim first = claim(&a, tokens, 4), second = claim(&b, tokens, 4);
    release(&a, &first, 1);
    ck_assert_uint_eq(core_claim_missing(a.session, a.cache, first.claim), 1);
    compute(&a, tokens, blocks, 0, 1);
    ck_assert(ended(&a, &first));
    take(&b, &second, 1);
    ck_assert_uint_eq(second.num_promised, 0);
    release(&b, &second, 1); // what is left was found already
    ck_assert(ended(&b, &second));
    release(&b, &second, 0); // an ended claim is no error
    ck_assert_refused(
        core_claim_take(b.session, b.cache, second.claim, found, &(uint32_t){0}, &second, &error),
        STATUS_NOT_FOUND, "has ended");
}
END_TEST

// ---- what else may happen ----

START_TEST(a_session_that_computes_without_a_claim_serves_those_that_wait)
{
    struct core_claim first = claim(&a, tokens, 2), second = claim(&b, tokens, 2);
    compute(&c, tokens, blocks, 0, 2);
    take(&b, &second, 2);
    compute(&a, tokens, found, 0, 2); // its blocks are replaced, and its claim ends
    ck_assert(ended(&a, &first));
}
END_TEST

START_TEST(a_session_that_does_not_wait_for_its_turn_fulfils_its_claim)
{
    struct core_claim first = claim(&a, tokens, 2), second = claim(&b, tokens, 2);
    compute(&b, tokens, blocks, 0, 2);
    ck_assert(ended(&b, &second));
    ck_assert(!ended(&a, &first));
    take(&a, &first, 2);
    ck_assert_uint_eq(first.claim, 0);
}
END_TEST

START_TEST(a_claim_whose_published_block_is_replaced_ends_with_the_replacement)
{
    uint64_t last;
    struct core_claim first = claim(&a, tokens, 1);
    worker_lease(&c, 1, found + 1);
    worker_write(&c, found + 1, tokens, BLOCK);
    worker_lease(&a, 1, blocks);
    worker_write_async(&a, blocks, tokens, BLOCK, &last);
    worker_publish(&a, tokens, BLOCK, blocks);
    ck_assert(!ended(&a, &first));
    ck_assert_uint_eq(worker_publish(&c, tokens, BLOCK, found + 1), 0);
    ck_assert(ended(&a, &first));
    world_finish_all(&world);
}
END_TEST

START_TEST(a_block_that_is_evicted_before_it_is_taken_is_the_waiting_sessions_to_compute)
{
    struct core_claim second;
    claim(&a, tokens, 2);
    second = claim(&b, tokens, 2);
    compute(&a, tokens, blocks, 0, 2);
    worker_close(&a, false);
    worker_lease(&c, 64, found); // evicts them
    worker_release(&c, found, 64);
    take(&b, &second, 0);
    ck_assert_uint_eq(second.num_promised, 0);
}
END_TEST

static void publish_pending(struct worker *worker, int32_t *id)
{
    uint64_t last;
    worker_lease(worker, 1, id);
    worker_write_async(worker, id, tokens, BLOCK, &last);
    worker_publish(worker, tokens, BLOCK, id);
}

static bool is_woken(const struct core_wait *claimer)
{
    bool woken = false;
    for (const struct core_wait *next; (next = core_next_ready(world.core));)
        woken |= next == claimer;
    return woken;
}

START_TEST(a_take_that_waits_is_woken_whatever_becomes_of_its_block)
{
    struct core_wait claimer;
    struct core_claim own = claim(&b, tokens, 2);
    publish_pending(&c, blocks); // without a claim
    ck_assert_status(core_wait_for_claim(b.session, &claimer, b.cache, own.claim, &error),
                     STATUS_OK);
    ck_assert(!is_woken(&claimer));
    world_step(&world);
    fake_engine_newest(world.engine)->runs[0].fail = STATUS_INTERNAL;
    world_finish_all(&world);
    ck_assert(is_woken(&claimer)); // it has to compute the block
    publish_pending(&b, blocks + 1);
    ck_assert(core_claim_waits(b.session, b.cache, own.claim));
    ck_assert(!is_woken(&claimer));
    world_finish_all(&world);
    ck_assert(is_woken(&claimer)); // the block that its session published is there
    worker_release(&b, blocks + 1, 1);
    worker_release(&c, blocks, 1);
    worker_lease(&c, 64, found); // evicts it
    worker_release(&c, found, 64);
    publish_pending(&c, blocks);
    ck_assert(core_claim_waits(b.session, b.cache, own.claim));
    ck_assert(!is_woken(&claimer));
    world_finish_all(&world);
    ck_assert(is_woken(&claimer));
    take(&b, &own, 1);
    release(&b, &own, 0);
    ck_assert(is_woken(&claimer)); // the claim has ended
    core_wait_end(&claimer);
    ck_assert_status(core_wait_for_claim(b.session, &claimer, b.cache, own.claim, &error),
                     STATUS_NOT_FOUND);
}
END_TEST

START_TEST(sequences_of_one_session_wait_for_each_other)
{
    struct core_claim first = claim(&a, tokens, 2), second = claim(&a, tokens, 2);
    ck_assert_uint_eq(second.num_promised, 2);
    compute(&a, tokens, blocks, 0, 1);
    worker_publish(&a, tokens, BLOCK, blocks); // again: this fulfils no second claim
    take(&a, &second, 1);
    compute(&a, tokens, blocks, 1, 2);
    ck_assert(ended(&a, &first));
    take(&a, &second, 1);
    ck_assert_uint_eq(second.claim, 0);
}
END_TEST

// Each of two sessions has the claim that the other one's second claim waits for. Claims wait only
// for older ones, so the claims are in order; the sessions need their deadlines.
START_TEST(sessions_that_wait_crosswise_are_told_so_and_can_go_on)
{
    const int32_t *x = tokens, *y = tokens + 512;
    struct core_claim ax = claim(&a, x, 1), by = claim(&b, y, 1), ay = claim(&a, y, 1),
                      bx = claim(&b, x, 1);
    take_nothing(&a, &ay);
    take_nothing(&b, &bx);
    world_check(&world);
    compute(&a, x, blocks, 0, 1); // after its deadline
    take(&b, &bx, 1);
    compute(&b, y, blocks + 1, 0, 1);
    take(&a, &ay, 1);
    ck_assert(ended(&a, &ax) && ended(&b, &by));
}
END_TEST

START_TEST(claims_of_other_users_tenants_keys_and_caches_are_apart)
{
    static struct worker other; // outlives the test, as its session does
    const struct core_prefix lora = {.tokens = tokens,
                                     .num_tokens = BLOCK,
                                     .extra_key = (const uint8_t *)"r1",
                                     .extra_key_size = 2};
    struct core_claim out;
    claim(&a, tokens, 1);
    worker_open(&other, &world, 2, "");
    ck_assert_uint_eq(claim(&other, tokens, 1).num_promised, 0);
    worker_close(&other, false);
    worker_open(&other, &world, 1, "tenant");
    ck_assert_uint_eq(claim(&other, tokens, 1).num_promised, 0);
    other.cache = worker_open_cache(&other, "second");
    ck_assert_uint_eq(claim(&other, tokens, 1).num_promised, 0);
    ck_assert_status(core_prefix_claim(b.session, b.cache, &lora, 0, found, &out, &error),
                     STATUS_OK);
    ck_assert_uint_eq(out.num_promised, 0);
    ck_assert_uint_eq(claim(&b, tokens, 1).num_promised, 1);
}
END_TEST

static uint64_t same_hash(uint64_t seed, const void *key, size_t size)
{
    (void)seed;
    (void)key;
    (void)size;
    return 42;
}

START_TEST(prompts_of_equal_hashes_have_claims_of_their_own)
{
    static const uint32_t promised[8] = {0, 0, 1, 0, 1, 2, 0, 1};
    int32_t texts[8][3 * BLOCK];
    struct core_claim own[8];
    world.core->ledger.hash = same_hash;
    for (int i = 0; i < 8; i++) {
        memcpy(texts[i], tokens, sizeof texts[i]);
        texts[i][BLOCK * (i % 3)] = -1 - i;
        own[i] = claim(&a, texts[i], 3);
        ck_assert_uint_eq(own[i].num_promised, promised[i]);
    }
    for (int i = 0; i < 8; i += 2)
        release(&a, &own[i], 0);
    for (int i = 1; i < 8; i += 2)
        ck_assert_uint_eq(claim(&b, texts[i], 3).num_promised, 3);
}
END_TEST

START_TEST(the_blocks_of_claims_have_a_limit)
{
    const struct core_prefix prefix = {.tokens = tokens, .num_tokens = 4 * BLOCK};
    struct core_claim out;
    world.core->params.max_claimed = 6;
    struct core_claim first = claim(&a, tokens, 3);
    ck_assert_refused(core_prefix_claim(a.session, a.cache, &prefix, 0, found, &out, &error),
                      STATUS_LIMIT,
                      "a claim of 4 blocks: the session's claims have 3 already, and "
                      "--max-claimed-blocks is 6");
    claim(&a, tokens + 100, 3);
    release(&a, &first, 0);
    claim(&a, tokens + 200, 3);
    ck_assert_uint_eq(a.session->num_claimed, 6);
    claim(&b, tokens, 6); // each session has its own
}
END_TEST

START_TEST(a_quota_refuses_what_was_waited_for_and_changes_nothing)
{
    struct core_claim second = claim(&a, tokens, 1);
    second = claim(&b, tokens, 2);
    compute(&a, tokens, blocks, 0, 1);
    core_session_limit(b.session, 1);
    worker_lease(&b, 1, found);
    ck_assert_refused(core_claim_take(b.session, b.cache, second.claim, found + 1, &(uint32_t){0},
                                      &second, &error),
                      STATUS_QUOTA, "--session-blocks");
    worker_release(&b, found, 1);
    take(&b, &second, 1);
}
END_TEST

// ---- at random ----

enum { WORKERS = 5, CLAIMS = 3, TEXTS = 3, LENGTH = 4, EVENTS = 600 };

static struct worker crowd[WORKERS];
static struct owned {
    struct core_claim claim;
    int text;
    struct core_wait claimer; // if `waits`
    bool waits, woken;
} owned[WORKERS][CLAIMS];

static void text_of(int text, int32_t out[LENGTH * BLOCK])
{
    memcpy(out, tokens, LENGTH * BLOCK * sizeof(*out));
    for (int i = 0; i < text; i++)
        out[(i + 1) * BLOCK] += text; // text 0 and 1 share one block, and so on
}

static void begin_one(struct worker *worker, struct owned *own, struct dice *dice)
{
    int32_t text[LENGTH * BLOCK];
    own->text = (int)dice_below(dice, TEXTS);
    text_of(own->text, text);
    own->claim = claim(worker, text, dice_between(dice, 1, LENGTH));
    worker_release(worker, found, own->claim.num_found);
}

static void begin_wait(struct worker *worker, struct owned *own)
{
    own->woken = false;
    own->waits = true;
    ck_assert_status(core_wait_for_claim(worker->session, &own->claimer, worker->cache,
                                         own->claim.claim, &error),
                     STATUS_OK);
}

static void end_wait(struct owned *own)
{
    core_wait_end(&own->claimer);
    own->waits = false;
}

static void hear_news(void)
{
    struct core_wait *wait;
    while ((wait = core_next_ready(world.core))) {
        if (wait->kind == CORE_WAIT_CLAIM)
            container_of(wait, struct owned, claimer)->woken = true;
    }
}

// A claim that has not been woken has nothing to take or to compute.
static void check_waits(void)
{
    hear_news();
    for (int w = 0; w < WORKERS; w++) {
        for (int i = 0; i < CLAIMS; i++) {
            struct owned *own = &owned[w][i];
            const bool still =
                own->waits && core_claim_waits(crowd[w].session, crowd[w].cache, own->claim.claim);
            ck_assert(!own->waits || own->woken || still);
            own->woken &= !still;
        }
    }
}

// Takes what is there, or computes the next block if it is this claim's.
static bool go_on(struct worker *worker, struct owned *own)
{
    int32_t text[LENGTH * BLOCK], ids[LENGTH];
    uint32_t count;
    struct error error;
    text_of(own->text, text);
    end_wait(own);
    enum status status = core_claim_take(worker->session, worker->cache, own->claim.claim, ids,
                                         &count, &own->claim, &error);
    if (status != STATUS_OK) {
        own->claim.claim = status == STATUS_TIMEOUT ? own->claim.claim : 0;
        if (status == STATUS_TIMEOUT)
            begin_wait(worker, own);
        return status != STATUS_TIMEOUT;
    }
    worker_release(worker, ids, count);
    if (own->claim.claim && own->claim.num_promised == 0) {
        uint32_t had = worker_lookup(worker, text, own->claim.num_found * BLOCK, ids);
        if (had == own->claim.num_found) // else one was evicted; then the next event goes on
            compute(worker, text, ids, had, had + 1);
        worker_release(worker, ids, had == own->claim.num_found ? had + 1 : had);
        if (had < own->claim.num_found) {
            release(worker, &own->claim, 0);
            own->claim.claim = 0;
        }
    }
    return true;
}

static void restart(int w)
{
    for (int i = 0; i < CLAIMS; i++)
        end_wait(&owned[w][i]);
    worker_close(&crowd[w], true);
    worker_open(&crowd[w], &world, 1, "");
    memset(owned[w], 0, sizeof(owned[w]));
}

static void one_event(struct dice *dice)
{
    int w = (int)dice_below(dice, WORKERS);
    struct owned *own = &owned[w][dice_below(dice, CLAIMS)];
    if (dice_chance(dice, 4)) {
        restart(w);
    } else if (!own->claim.claim) {
        begin_one(&crowd[w], own, dice);
    } else if (dice_chance(dice, 10)) {
        uint32_t kept = dice_below(dice, LENGTH);
        release(&crowd[w], &own->claim, kept);
        if (ended(&crowd[w], &own->claim)) {
            end_wait(own);
            own->claim.claim = 0;
        }
    } else if (dice_chance(dice, 5)) {
        worker_lease(&crowd[w], 60, found); // evicts
        worker_release(&crowd[w], found, 60);
    } else {
        go_on(&crowd[w], own);
    }
}

// As long as there is a claim, one can go on: nobody waits for ever.
static void finish_every_claim(void)
{
    for (bool any = true; any;) {
        bool moved = false;
        any = false;
        for (int w = 0; w < WORKERS; w++) {
            for (int i = 0; i < CLAIMS; i++) {
                if (!owned[w][i].claim.claim)
                    continue;
                any = true;
                moved |= go_on(&crowd[w], &owned[w][i]);
            }
        }
        ck_assert(moved || !any);
    }
}

// In two rounds a turn passes on. A claim that inherits in one round acts in the next, in time.
static bool finish_round(int hung)
{
    bool any = false;
    world.now_ns += DEADLINE / 2 + 1;
    world_step(&world);
    for (int w = 0; w < WORKERS; w++) {
        for (int i = 0; i < CLAIMS; i++) {
            if (w == hung || !owned[w][i].claim.claim)
                continue;
            any = true;
            go_on(&crowd[w], &owned[w][i]);
        }
    }
    return any;
}

START_TEST(no_order_of_events_makes_the_others_wait_for_ever_for_a_session_that_hangs)
{
    struct dice dice = {check_seed() + (uint64_t)_i};
    const int hung = _i % WORKERS;
    int rounds = 0;
    for (int w = 0; w < WORKERS; w++)
        worker_open(&crowd[w], &world, 1, "");
    for (int i = 0; i < EVENTS / 10; i++)
        one_event(&dice);
    for (int i = 0; i < WORKERS * CLAIMS; i++)
        pass_time(DEADLINE); // claims become late in turn
    while (finish_round(hung))
        ck_assert_int_lt(rounds++, EVENTS);
    finish_every_claim();
    world_check(&world);
    ck_assert_uint_eq(world.core->pool.caches[0]->claims.size, 0);
}
END_TEST

START_TEST(no_order_of_events_leaves_all_claims_waiting_or_one_unwoken)
{
    struct dice dice = {check_seed() + (uint64_t)_i};
    for (int w = 0; w < WORKERS; w++)
        worker_open(&crowd[w], &world, 1, "");
    for (int i = 0; i < EVENTS; i++) {
        one_event(&dice);
        world.now_ns += dice_below(&dice, 5); // claims become late, if they have a deadline
        world_step(&world);
        check_waits();
        if (i % 10 == 0)
            world_check(&world);
    }
    finish_every_claim();
    world_check(&world);
    ck_assert_uint_eq(world.core->pool.caches[0]->claims.size, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("claims");
    check_seed();
    check_case(suite, "two workers", open_three, close_all,
               (const TTest *const[]){the_first_claim_computes_and_the_second_gets_block_by_block,
                                      a_claim_begins_behind_what_the_cache_has,
                                      a_published_block_is_promised_until_its_writes_have_ended,
                                      a_claim_whose_writes_failed_is_its_holders_again, NULL},
               1);
    check_case(suite, "inheriting", open_three, close_all,
               (const TTest *const[]){the_next_in_the_queue_inherits_in_the_order_of_arrival,
                                      a_holder_that_dies_at_any_step_leaves_nobody_waiting,
                                      closing_the_cache_ends_its_claims, NULL},
               1);
    check_case(
        suite, "trees", open_three, close_all,
        (const TTest *const[]){prompts_that_part_wait_only_for_what_they_share,
                               a_longer_prompt_waits_for_its_first_part_and_computes_the_rest,
                               releasing_the_end_of_a_claim_keeps_its_beginning, NULL},
        1);
    check_case(suite, "what else may happen", open_three, close_all,
               (const TTest *const[]){
                   a_session_that_computes_without_a_claim_serves_those_that_wait,
                   a_session_that_does_not_wait_for_its_turn_fulfils_its_claim,
                   a_claim_whose_published_block_is_replaced_ends_with_the_replacement,
                   a_block_that_is_evicted_before_it_is_taken_is_the_waiting_sessions_to_compute,
                   a_take_that_waits_is_woken_whatever_becomes_of_its_block,
                   sequences_of_one_session_wait_for_each_other,
                   sessions_that_wait_crosswise_are_told_so_and_can_go_on,
                   claims_of_other_users_tenants_keys_and_caches_are_apart,
                   prompts_of_equal_hashes_have_claims_of_their_own,
                   the_blocks_of_claims_have_a_limit,
                   a_quota_refuses_what_was_waited_for_and_changes_nothing, NULL},
               1);
    check_case(
        suite, "deadlines", open_timed, close_all,
        (const TTest *const[]){
            the_next_inherits_from_a_session_that_stands_still_and_what_that_publishes_late_is_harmless,
            progress_renews_a_claim_and_time_in_which_it_waits_does_not_count,
            a_claim_that_comes_after_a_late_one_goes_first_and_a_late_one_alone_keeps_its_turn,
            claims_that_are_all_late_take_turns_so_none_waits_for_one_that_hangs, NULL},
        1);
    check_case(suite, "at random, with deadlines", open_timed, close_all,
               (const TTest *const[]){
                   no_order_of_events_leaves_all_claims_waiting_or_one_unwoken,
                   no_order_of_events_makes_the_others_wait_for_ever_for_a_session_that_hangs,
                   NULL},
               check_is_long() ? 200 : 10);
    check_case(
        suite, "at random", open_three, close_all,
        (const TTest *const[]){no_order_of_events_leaves_all_claims_waiting_or_one_unwoken, NULL},
        check_is_long() ? 200 : 10);
    return check_main(suite);
}
