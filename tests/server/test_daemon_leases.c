// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_daemon_leases.c - leases that wait in a real aule-daemon until blocks are free: for which
// sessions, in which order, and until when.

#include "rigs/check_main.h"
#include "rigs/daemon_step.h"
#include "rigs/daemon_suite.h"

#include <signal.h>
#include <stddef.h>
#include <string.h>

// Leases four blocks without a deadline.
struct waiter {
    struct raw_client *raw;
    uint64_t cache;
    struct raw_pending lease;
    int32_t blocks[8];
};

static struct waiter open_waiter(void)
{
    struct waiter waiter = {.raw = raw_session(daemon_.socket, 0)};
    waiter.cache = open_cache(waiter.raw, "full");
    return waiter;
}

// The daemon handles the messages of a connection in order. When the second is answered, the lease
// is parked.
static void begin_waiting(struct waiter *waiter)
{
    const struct wire_request lease = {.command = WIRE_COMMAND_BLOCKS_LEASE,
                                       .blocks_lease = {waiter->cache, 4, -1}};
    raw_begin(waiter->raw, &lease, &waiter->lease);
    raw_inspect(waiter->raw);
}

static void end_waiting(struct waiter *waiter, int expected)
{
    struct wire_reply reply;
    raw_end(&waiter->lease, &reply);
    ck_assert_msg(reply.status == expected, "%s: %s", status_name(reply.status), reply.message);
    wire_reply_finish(&reply);
}

// A daemon with eight blocks, and a session that holds them all.
static struct raw_client *start_full(uint64_t arena_size, uint64_t *cache, int32_t all[8])
{
    start((const char *const[]){"--max-blocks", "8", NULL});
    struct raw_client *owner = raw_session(daemon_.socket, arena_size);
    *cache = open_cache(owner, "full");
    lease(owner, *cache, 8, all);
    return owner;
}

START_TEST(a_lease_waits_until_another_session_releases)
{
    int32_t all[8];
    uint64_t cache;
    struct raw_client *owner = start_full(0, &cache, all);
    struct waiter waiter = open_waiter();
    ck_assert_int_eq(lease_status(waiter.raw, cache, 1, 0, waiter.blocks), STATUS_NO_BLOCKS);
    ck_assert_int_eq(lease_status(waiter.raw, cache, 1, 50, waiter.blocks), STATUS_NO_BLOCKS);
    ck_assert_int_eq(lease_status(waiter.raw, cache, 9, -1, waiter.blocks), STATUS_LIMIT);
    begin_waiting(&waiter);
    release(owner, cache, all, 4);
    end_waiting(&waiter, STATUS_OK);
    raw_close(owner);
    raw_close(waiter.raw);
    stop_clean();
}
END_TEST

// Three blocks are free. Only the batch keeps the fourth, until its next step uses another block.
START_TEST(a_lease_waits_until_a_step_lets_go_of_a_block)
{
    static const int32_t lens[1] = {BLOCK};
    int32_t all[8];
    int64_t slots[BLOCK];
    uint64_t cache;
    struct raw_client *owner = start_full(ARENA, &cache, all);
    struct waiter waiter = open_waiter();
    slots_of(all[0], slots);
    const struct wire_request create = fill_request(cache, &all[0], slots);
    uint64_t batch = create_batch(owner, &create);
    release(owner, cache, all, 4);
    ck_assert_int_eq(lease_status(waiter.raw, cache, 4, 0, waiter.blocks), STATUS_NO_BLOCKS);
    begin_waiting(&waiter);
    const int32_t entry[3] = {0, 0, all[7]};
    slots_of(all[7], slots);
    const struct wire_request advance = {.command = WIRE_COMMAND_BATCH_ADVANCE,
                                         .batch_advance = {.batch = batch,
                                                           .seq_lens_kv = {lens, 1},
                                                           .entries = {entry, 3},
                                                           .slot_mapping = {slots, BLOCK}}};
    struct wire_reply reply;
    raw_call(owner, &advance, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "BatchAdvance: %s", reply.message);
    end_waiting(&waiter, STATUS_OK);
    raw_close(owner);
    raw_close(waiter.raw);
    stop_clean();
}
END_TEST

// A lease of four of eight blocks waits for blocks that become free only when the others' small
// leases were granted. The small ones take the last two, so the large one was not granted before.
START_TEST(a_small_lease_goes_while_a_large_one_cannot_be_met)
{
    int32_t own[2], others[6];
    start((const char *const[]){"--max-blocks", "8", NULL});
    struct waiter large = open_waiter();
    struct raw_client *other = raw_session(daemon_.socket, 0);
    uint64_t cache = open_cache(other, "full");
    lease(large.raw, cache, 2, own);
    lease(other, cache, 4, others);
    begin_waiting(&large);
    ck_assert_int_eq(lease_status(other, cache, 1, 0, others + 4), STATUS_OK);
    ck_assert_int_eq(lease_status(other, cache, 1, 5000, others + 5), STATUS_OK);
    ck_assert_int_eq(lease_status(other, cache, 1, 0, own), STATUS_NO_BLOCKS);
    release(other, cache, others, 6);
    end_waiting(&large, STATUS_OK);
    raw_close(large.raw);
    raw_close(other);
    stop_clean();
}
END_TEST

START_TEST(freed_blocks_go_to_the_oldest_lease_first)
{
    int32_t all[8], none;
    struct waiter waiters[2];
    uint64_t cache;
    struct raw_client *owner = start_full(0, &cache, all);
    for (int i = 0; i < 2; i++) {
        waiters[i] = open_waiter();
        begin_waiting(&waiters[i]);
    }
    for (int i = 0; i < 2; i++) {
        release(owner, cache, all + (ptrdiff_t)i * 4, 4);
        ck_assert_int_eq(lease_status(owner, cache, 1, 0, &none),
                         STATUS_NO_BLOCKS); // older leases got them
        end_waiting(&waiters[i], STATUS_OK);
    }
    for (int i = 0; i < 2; i++)
        raw_close(waiters[i].raw);
    raw_close(owner);
    stop_clean();
}
END_TEST

START_TEST(a_parked_lease_is_told_that_the_daemon_stops)
{
    int32_t all[8];
    uint64_t cache;
    struct raw_client *owner = start_full(0, &cache, all);
    struct waiter waiter = open_waiter();
    begin_waiting(&waiter);
    kill(daemon_.pid, SIGTERM);
    end_waiting(&waiter, STATUS_STOPPING);
    ck_assert(daemon_wait(&daemon_, DEADLINE_S));
    ck_assert_int_eq(daemon_.exit_code, 0);
    raw_close(owner);
    raw_close(waiter.raw);
}
END_TEST

// More than nng queues for a client that cannot read as fast.
START_TEST(a_session_that_ends_answers_everything_of_it_that_waits)
{
    enum { MANY = 300 };
    static struct waiter waiters[MANY];
    int32_t all[8];
    uint64_t cache;
    struct raw_client *owner = start_full(0, &cache, all);
    waiters[0] = open_waiter();
    for (int i = 0; i < MANY; i++) {
        waiters[i] = waiters[0];
        begin_waiting(&waiters[i]);
    }
    const struct wire_request end = {.command = WIRE_COMMAND_KILL_SESSION,
                                     .kill_session = {waiters[0].raw->session}};
    raw_expect(owner, &end, STATUS_OK);
    for (int i = 0; i < MANY; i++)
        end_waiting(&waiters[i], STATUS_NO_SESSION);
    raw_close(waiters[0].raw);
    raw_close(owner);
    stop_clean();
}
END_TEST

// Two parts of a wait that goes on, and so would not end here.
static void lease_in_parts(struct raw_client *raw, uint64_t cache, enum status expected)
{
    for (int timeout_ms = 0; timeout_ms <= 20; timeout_ms += 20) {
        const struct wire_request part = {
            .command = WIRE_COMMAND_BLOCKS_LEASE,
            .blocks_lease = {.cache = cache, .count = 1, .timeout_ms = timeout_ms, .again = true}};
        raw_expect(raw, &part, expected);
    }
}

START_TEST(a_lease_that_is_refused_counts_once_and_a_part_of_a_wait_not_at_all)
{
    static const char no_blocks[] = "aule_refused_requests_total{status=\"NO_BLOCKS\"}",
                      quota[] = "aule_refused_requests_total{status=\"QUOTA\"}";
    int32_t most[6], rest[2], none;
    start((const char *const[]){"--max-blocks", "8", "--session-blocks", "6", NULL});
    struct raw_client *owner = raw_session(daemon_.socket, 0),
                      *other = raw_session(daemon_.socket, 0);
    uint64_t cache = open_cache(owner, "full"), same = open_cache(other, "full");
    lease(owner, cache, 6, most);
    lease(other, same, 2, rest);
    ck_assert_int_eq(raw_metric(owner, no_blocks), 0);
    ck_assert_int_eq(raw_metric(owner, quota), 0);
    ck_assert_int_eq(lease_status(owner, cache, 1, 0, &none), STATUS_QUOTA);
    ck_assert_int_eq(lease_status(other, same, 1, 0, &none), STATUS_NO_BLOCKS);
    ck_assert_int_eq(lease_status(other, same, 1, 50, &none), STATUS_NO_BLOCKS);
    ck_assert_int_eq(raw_metric(owner, no_blocks), 2);
    ck_assert_int_eq(raw_metric(owner, quota), 1);
    lease_in_parts(other, same, STATUS_NO_BLOCKS);
    ck_assert_int_eq(raw_metric(owner, no_blocks), 2);
    lease_in_parts(owner, cache, STATUS_QUOTA); // waiting is of no use
    ck_assert_int_eq(raw_metric(owner, quota), 3);
    raw_close(owner);
    raw_close(other);
    stop_clean();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("daemon leases");
    suite_add(suite, "leases",
              (const TTest *const[]){
                  a_lease_waits_until_another_session_releases,
                  a_lease_waits_until_a_step_lets_go_of_a_block,
                  a_small_lease_goes_while_a_large_one_cannot_be_met,
                  freed_blocks_go_to_the_oldest_lease_first,
                  a_parked_lease_is_told_that_the_daemon_stops,
                  a_session_that_ends_answers_everything_of_it_that_waits,
                  a_lease_that_is_refused_counts_once_and_a_part_of_a_wait_not_at_all, NULL},
              1);
    return check_main(suite);
}
