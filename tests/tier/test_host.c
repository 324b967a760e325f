// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_host.c - the tier in host memory, behind a tier that does harm: what is stored comes back
// with the same bits, harmed blocks are misses, and who loses blocks when there is no room.

#include "base/clock.h"
#include "rigs/check_main.h"
#include "rigs/dice.h"
#include "tier/fault.h"
#include "tier/host.h"
#include "tier_world.h"

#include <dirent.h>
#include <poll.h>

enum { BLOCK = 3 * STORED_PART_BYTES / 2, ROOM = 4 }; // bytes: two parts; blocks

static struct tier *tier;
static struct tier_backend *host, *fault;
static uint8_t *memory;
static struct stored_space space;
static uint32_t num_others; // threads that are not the tier's

// Of this process.
static uint32_t num_threads(void)
{
    uint32_t count = 0;
    DIR *tasks = opendir("/proc/self/task");
    ck_assert_ptr_nonnull(tasks);
    for (const struct dirent *entry; (entry = readdir(tasks));)
        count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

static void open_with_threads(uint32_t threads)
{
    const struct tier_ops *ops;
    struct error error;
    memory = aligned_alloc(4096, (size_t)ROOM * BLOCK);
    const struct host_params params = {
        .base = memory, .size = (uint64_t)ROOM * BLOCK, .threads = threads};
    ck_assert_int_eq(host_open(&params, &host, &error), STATUS_OK);
    fault = fault_open(&host_ops, host, &ops);
    ck_assert_int_eq(tier_create(ops, fault, &tier, &error), STATUS_OK);
    space = tier_space(BLOCK, "a");
}

static void open_host(void)
{
    num_others = num_threads();
    open_with_threads(0);
}

static void close_host(void)
{
    ck_assert(tier_close(tier, FOREVER));
    free(memory);
}

static void order(enum fault_kind kind, enum tier_kind jobs, enum stored_reason reason,
                  uint64_t bytes, uint32_t times)
{
    const struct fault_order now = {kind, jobs, reason, bytes, times};
    fault_order(fault, &now);
}

// False: there was no room for all of them. Then nothing is stored.
static bool store(uint64_t tenant, uint64_t floor, uint64_t cap, uint32_t first, uint32_t count)
{
    struct tier_job *job = tier_world_job(TIER_STORE, &space, first, count);
    job->share = (struct tier_share){tenant, floor, cap};
    uint32_t taken = 0;
    for (; taken < count; taken++) {
        job->blocks[taken].data = host_reserve(host, &job->share, BLOCK);
        if (!job->blocks[taken].data)
            break;
        tier_world_fill(job->blocks[taken].data, BLOCK, first + taken);
    }
    if (taken == count)
        tier_world_do(tier, job);
    for (uint32_t i = 0; i < taken; i++)
        host_ops.give_back(host, job->blocks[i].data);
    tier_job_destroy(job);
    return taken == count;
}

// Loads one block, which must have its own bits if it comes.
static enum stored_reason load(uint32_t number)
{
    struct tier_job *job = tier_world_job(TIER_LOAD, &space, number, 1);
    tier_world_do(tier, job);
    const enum stored_reason reason = job->blocks[0].reason;
    if (reason == STORED_OK) {
        ck_assert(tier_world_holds(job->blocks[0].data, BLOCK, number));
        tier_ops(tier)->give_back(fault, job->blocks[0].data);
    }
    tier_job_destroy(job);
    return reason;
}

static bool has(uint32_t number)
{
    const struct stored_chain chain = tier_chain(number);
    return tier_probe(tier, &space, &chain) == TIER_THERE;
}

START_TEST(a_stored_block_comes_back_with_the_same_bits_and_others_are_absent)
{
    ck_assert(store(1, 0, 0, 10, 2));
    ck_assert_int_eq(load(10), STORED_OK);
    ck_assert_int_eq(load(11), STORED_OK);
    ck_assert_int_eq(load(12), STORED_ABSENT);
    space = tier_space(BLOCK, "b");
    ck_assert_int_eq(load(10), STORED_ABSENT);
}
END_TEST

START_TEST(a_full_tier_drops_the_least_recently_used_block_that_nobody_uses)
{
    ck_assert(store(1, 0, 0, 0, ROOM));
    ck_assert_int_eq(load(0), STORED_OK); // 1 is the oldest now
    ck_assert(store(1, 0, 0, 10, 1));
    ck_assert(has(0) && !has(1) && has(2) && has(3) && has(10));
    struct tier_job *job = tier_world_job(TIER_LOAD, &space, 2, 1); // 2 is lent
    tier_world_do(tier, job);
    ck_assert(store(1, 0, 0, 11, 1));
    ck_assert(store(1, 0, 0, 12, 1));
    ck_assert(has(2) && !has(3) && !has(0));
    ck_assert(tier_world_holds(job->blocks[0].data, BLOCK, 2));
    tier_ops(tier)->give_back(fault, job->blocks[0].data);
    tier_job_destroy(job);
}
END_TEST

START_TEST(a_tenant_keeps_its_floor_and_never_exceeds_its_cap)
{
    ck_assert(store(1, 2, 0, 0, 3));
    ck_assert(store(2, 0, 1, 10, 1)); // full
    ck_assert(store(2, 0, 1, 11, 1)); // of the tenant with the most bytes, 0 goes; then the cap
    ck_assert(!has(0) && has(1) && has(2) && !has(10) && has(11));
    for (uint32_t i = 0; i < 5; i++)
        ck_assert(store(3, 0, 0, 20 + i, 1));
    ck_assert(has(1) && has(2)); // its floor
}
END_TEST

START_TEST(nothing_is_stored_where_all_memory_is_in_use)
{
    uint8_t *taken[ROOM];
    const struct tier_share share = {.tenant = 1};
    for (int i = 0; i < ROOM; i++)
        ck_assert_ptr_nonnull(taken[i] = host_reserve(host, &share, BLOCK));
    ck_assert(!store(1, 0, 0, 0, 1));
    ck_assert_ptr_null(host_reserve(host, &share, UINT64_MAX / 2));
    for (int i = 0; i < ROOM; i++)
        host_ops.give_back(host, taken[i]);
    ck_assert_uint_eq(host_used_bytes(host), 0);
    ck_assert(store(1, 0, 0, 0, ROOM));
}
END_TEST

START_TEST(a_flipped_bit_makes_a_block_a_miss_for_good)
{
    ck_assert(store(1, 0, 0, 0, 1));
    order(FAULT_FLIP, TIER_LOAD, STORED_OK, 12345, 1);
    ck_assert_int_eq(load(0), STORED_CHECKSUM);
    ck_assert_int_eq(load(0), STORED_ABSENT);
    struct tier_counts counts;
    tier_counts(tier, &counts);
    ck_assert_uint_eq(counts.failed[STORED_CHECKSUM], 1);
    ck_assert_uint_eq(host_used_bytes(host), 0);
}
END_TEST

START_TEST(a_truncated_part_makes_a_block_a_miss)
{
    ck_assert(store(1, 0, 0, 0, 1));
    order(FAULT_TRUNCATE, TIER_LOAD, STORED_OK, 17, 1);
    ck_assert_int_eq(load(0), STORED_LENGTH);
    ck_assert(!has(0));
}
END_TEST

START_TEST(a_job_that_is_told_to_fail_does_not_reach_the_tier)
{
    order(FAULT_FAIL, TIER_STORE, STORED_CONNECTION, 0, 1);
    ck_assert(store(1, 0, 0, 0, 1));
    ck_assert(!has(0));
    ck_assert(store(1, 0, 0, 0, 1));
    ck_assert_int_eq(load(0), STORED_OK);
}
END_TEST

START_TEST(memory_of_an_abandoned_job_is_not_used_again_before_its_transfer_has_ended)
{
    struct tier_event event;
    const struct tier_share share = {.tenant = 1};
    struct tier_job *job = tier_world_job(TIER_STORE, &space, 0, ROOM);
    job->abandon_ns = 100;
    for (int i = 0; i < ROOM; i++)
        ck_assert_ptr_nonnull(job->blocks[i].data = host_reserve(host, &share, BLOCK));
    order(FAULT_HOLD, TIER_STORE, STORED_OK, 0, 1);
    tier_start(tier, job);
    ck_assert(tier_poll(tier, 100, &event));
    ck_assert_int_eq(event.kind, TIER_ABANDONED);
    ck_assert_ptr_null(host_reserve(host, &share, BLOCK)); // the caller has not given it back
    while (!fault_num_held(fault))
        ;
    fault_let_go(fault);
    event = tier_world_wait(tier);
    ck_assert_int_eq(event.kind, TIER_QUIET);
    for (int i = 0; i < ROOM; i++)
        host_ops.give_back(host, job->blocks[i].data);
    tier_job_destroy(job);
    ck_assert(store(1, 0, 0, 20, ROOM));
}
END_TEST

START_TEST(a_deadline_that_has_passed_ends_a_job_without_its_blocks)
{
    ck_assert(store(1, 0, 0, 0, 1));
    struct tier_job *job = tier_world_job(TIER_LOAD, &space, 0, 1);
    job->deadline_ns = 1;
    tier_world_do(tier, job);
    ck_assert_int_eq(job->blocks[0].reason, STORED_TIMEOUT);
    ck_assert_ptr_null(job->blocks[0].data);
    tier_job_destroy(job);
}
END_TEST

START_TEST(an_erased_block_is_gone)
{
    ck_assert(store(1, 0, 0, 0, 2));
    struct tier_job *job = tier_world_job(TIER_DELETE, &space, 1, 2);
    tier_world_do(tier, job);
    ck_assert_int_eq(job->blocks[0].reason, STORED_OK);
    ck_assert_int_eq(job->blocks[1].reason, STORED_ABSENT);
    tier_job_destroy(job);
    ck_assert(has(0) && !has(1));
}
END_TEST

// Blocks of several sizes and tenants at random: what comes back has its own bits, and at the end
// no memory is lost.
START_TEST(random_stores_and_loads_give_right_bits_and_lose_no_memory)
{
    struct dice dice = {check_draw("host")};
    for (int step = 0; step < 100; step++) {
        const uint32_t number = dice_below(&dice, 12);
        const uint32_t what = dice_below(&dice, 10);
        if (what < 4)
            store(1 + number % 3, number % 2, 0, number, 1 + dice_below(&dice, 2));
        else if (what < 9)
            load(number);
        else
            order(FAULT_FLIP, TIER_LOAD, STORED_OK, dice_next(&dice), 1);
    }
    struct tier_job *job = tier_world_job(TIER_DELETE, &space, 0, 14);
    tier_world_do(tier, job);
    tier_job_destroy(job);
    ck_assert_uint_eq(host_used_bytes(host), 0);
}
END_TEST

// A thread that was joined may be in the list for a moment.
static void expect_threads(uint32_t count)
{
    for (int tries = 0; num_threads() != count && tries < 5000; tries++)
        poll(NULL, 0, 1);
    ck_assert_uint_eq(num_threads(), count);
}

START_TEST(a_tier_has_as_many_threads_as_the_caller_wants_else_twelve_at_most)
{
    const uint32_t wanted[] = {1, 12, 40};
    const uint32_t chosen = num_threads() - num_others;
    ck_assert_uint_ge(chosen, 1);
    ck_assert_uint_le(chosen, 12);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        close_host();
        open_with_threads(wanted[i]);
        expect_threads(num_others + wanted[i]);
        ck_assert(store(1, 0, 0, 0, 1));
    }
}
END_TEST

// The blocks are absent, so all that the threads do is to count them: the thread that counts the
// last one ends the job, which the test frees at once.
START_TEST(threads_that_share_a_job_end_it_once)
{
    enum { FLYING = 16, JOBS = 4000 };
    close_host();
    open_with_threads(8);
    for (int i = 0; i < JOBS; i++) {
        tier_start(tier, tier_world_job(TIER_LOAD, &space, 0, 1 + i % 3));
        if (i < FLYING)
            continue;
        tier_job_destroy(tier_world_wait(tier).job);
    }
    for (int i = 0; i < FLYING; i++) {
        struct tier_job *job = tier_world_wait(tier).job;
        ck_assert_int_eq(job->blocks[0].reason, STORED_ABSENT);
        tier_job_destroy(job);
    }
    struct tier_event event;
    ck_assert(!tier_poll(tier, 0, &event));
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        a_stored_block_comes_back_with_the_same_bits_and_others_are_absent,
        a_full_tier_drops_the_least_recently_used_block_that_nobody_uses,
        a_tenant_keeps_its_floor_and_never_exceeds_its_cap,
        nothing_is_stored_where_all_memory_is_in_use,
        a_flipped_bit_makes_a_block_a_miss_for_good,
        a_truncated_part_makes_a_block_a_miss,
        a_job_that_is_told_to_fail_does_not_reach_the_tier,
        memory_of_an_abandoned_job_is_not_used_again_before_its_transfer_has_ended,
        a_deadline_that_has_passed_ends_a_job_without_its_blocks,
        an_erased_block_is_gone,
        random_stores_and_loads_give_right_bits_and_lose_no_memory,
        a_tier_has_as_many_threads_as_the_caller_wants_else_twelve_at_most,
        threads_that_share_a_job_end_it_once,
        NULL,
    };
    Suite *suite = suite_create("host");
    check_case(suite, "host", open_host, close_host, tests, 1);
    return check_main(suite);
}
