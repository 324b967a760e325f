// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_tier.c - the bookkeeping of jobs: ends, deadlines, abandoned jobs and the quarantine of
// their memory, counts. The backend keeps each job until the test ends it.

#include "base/clock.h"
#include "rigs/check_main.h"
#include "tier_world.h"

#include <pthread.h>

static struct tier_job *kept[8];
static uint32_t num_kept;
static bool closed;
static struct tier *tier;

static void keep(struct tier_backend *backend, struct tier_job *job)
{
    (void)backend;
    kept[num_kept++] = job;
}

static void state(struct tier_backend *backend, struct tier_state *out)
{
    (void)backend;
    out->limit_bytes = 77;
}

static bool close_backend(struct tier_backend *backend, int64_t deadline_ns)
{
    (void)backend;
    (void)deadline_ns;
    closed = true;
    while (num_kept)
        tier_job_fail(kept[--num_kept], STORED_CLOSED);
    return true;
}

static const struct tier_ops ops = {.name = "kept",
                                    .store = keep,
                                    .load = keep,
                                    .lookup = keep,
                                    .state = state,
                                    .close = close_backend};

// Two backends, by their addresses: the first one never ends.
static const char two[2];
static bool told[2];

static void tell(struct tier_backend *backend)
{
    told[(const char *)backend - two] = true;
}

static bool close_one(struct tier_backend *backend, int64_t deadline_ns)
{
    (void)deadline_ns;
    ck_assert(told[0] && told[1]); // before anything waits
    return (const char *)backend != two || closed;
}

START_TEST(all_tiers_are_told_to_end_before_one_is_waited_for)
{
    static const struct tier_ops slow = {.name = "slow", .stop = tell, .close = close_one};
    struct tier *tiers[3] = {NULL};
    struct error error;
    closed = told[0] = told[1] = false;
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(tier_create(&slow, (struct tier_backend *)&two[i], &tiers[i], &error),
                         STATUS_OK);
    ck_assert(!tiers_close(tiers, 3, 0));
    ck_assert_ptr_nonnull(tiers[0]);
    ck_assert_ptr_null(tiers[1]); // though the first one is stuck
    closed = true;
    ck_assert(tiers_close(tiers, 3, 0));
}
END_TEST

static void open_tier(void)
{
    struct error error;
    num_kept = 0;
    ck_assert_int_eq(tier_create(&ops, NULL, &tier, &error), STATUS_OK);
}

static void close_tier(void)
{
    ck_assert(tier_close(tier, FOREVER));
    ck_assert(closed);
}

static struct tier_job *start(enum tier_kind kind, uint32_t count, int64_t abandon_ns)
{
    const struct stored_space space = tier_space(100, "a");
    struct tier_job *job = tier_world_job(kind, &space, 0, count);
    job->abandon_ns = abandon_ns;
    tier_start(tier, job);
    return job;
}

static struct tier_counts counts(void)
{
    struct tier_counts now;
    tier_counts(tier, &now);
    return now;
}

START_TEST(a_job_is_given_back_once_when_the_backend_ends_it)
{
    struct tier_event event;
    struct tier_job *job = start(TIER_LOAD, 2, FOREVER);
    ck_assert(!tier_poll(tier, 5, &event));
    ck_assert_uint_eq(tier_num_jobs(tier), 1);
    job->blocks[0].reason = STORED_OK;
    tier_job_fail(job, STORED_TIMEOUT);
    ck_assert(tier_has_news(tier));
    event = tier_world_wait(tier);
    ck_assert_int_eq(event.kind, TIER_DONE);
    ck_assert_ptr_eq(event.job, job);
    ck_assert_int_eq(job->blocks[0].reason, STORED_OK);
    ck_assert_int_eq(job->blocks[1].reason, STORED_TIMEOUT);
    ck_assert(!tier_poll(tier, INT64_MAX - 1, &event));
    ck_assert_uint_eq(tier_num_jobs(tier), 0);
    tier_job_destroy(job);
    num_kept = 0;
}
END_TEST

START_TEST(an_abandoned_job_keeps_its_memory_until_the_backend_ends_it)
{
    struct tier_event event;
    struct tier_job *job = start(TIER_LOAD, 1, 100);
    ck_assert_int_eq(tier_wake_ns(tier), 100);
    ck_assert(!tier_poll(tier, 99, &event));
    ck_assert(tier_poll(tier, 100, &event));
    ck_assert_int_eq(event.kind, TIER_ABANDONED);
    ck_assert_uint_eq(tier_num_abandoned(tier), 1);
    ck_assert(!tier_poll(tier, 1000, &event)); // told once
    ck_assert(tier_wake_ns(tier) == FOREVER);
    job->blocks[0].reason = STORED_OK; // too late
    tier_job_end(job);
    event = tier_world_wait(tier);
    ck_assert_int_eq(event.kind, TIER_QUIET);
    ck_assert_ptr_eq(event.job, job);
    ck_assert_uint_eq(counts().loaded, 0);
    ck_assert_uint_eq(counts().failed[STORED_ABANDONED], 1);
    ck_assert_uint_eq(tier_num_abandoned(tier), 0);
    tier_job_destroy(job);
    num_kept = 0;
}
END_TEST

START_TEST(a_job_that_ended_before_it_was_abandoned_is_done)
{
    struct tier_job *job = start(TIER_LOAD, 1, 100);
    struct tier_event event;
    job->blocks[0].reason = STORED_OK;
    tier_job_end(job);
    ck_assert(tier_poll(tier, 5000, &event));
    ck_assert_int_eq(event.kind, TIER_DONE);
    tier_job_destroy(job);
    num_kept = 0;
}
END_TEST

START_TEST(a_call_that_a_tier_lacks_finds_nothing)
{
    const struct stored_space space = tier_space(100, "a");
    struct tier_job *job = tier_world_job(TIER_DELETE, &space, 0, 1);
    tier_world_do(tier, job);
    ck_assert_int_eq(job->blocks[0].reason, STORED_ABSENT);
    const struct stored_chain chain = tier_chain(0);
    ck_assert_int_eq(tier_probe(tier, &space, &chain), TIER_UNKNOWN);
    tier_job_destroy(job);
}
END_TEST

START_TEST(blocks_are_counted_by_kind_and_reason)
{
    struct tier_job *load = start(TIER_LOAD, 3, FOREVER), *store = start(TIER_STORE, 2, FOREVER),
                    *look = start(TIER_LOOKUP, 2, FOREVER);
    load->blocks[0].reason = STORED_OK;
    load->blocks[1].reason = STORED_CHECKSUM;
    store->blocks[0].reason = store->blocks[1].reason = STORED_OK;
    look->blocks[0].answer = TIER_THERE;
    look->blocks[0].reason = STORED_OK;
    for (uint32_t i = 0; i < 3; i++) {
        tier_job_end(kept[i]);
        tier_job_destroy(tier_world_wait(tier).job);
    }
    num_kept = 0;
    const struct tier_counts now = counts();
    ck_assert_uint_eq(now.hits, 1);
    ck_assert_uint_eq(now.misses, 1);
    ck_assert_uint_eq(now.loaded, 1);
    ck_assert_uint_eq(now.loaded_bytes, 100);
    ck_assert_uint_eq(now.stored, 2);
    ck_assert_uint_eq(now.stored_bytes, 200);
    ck_assert_uint_eq(now.failed[STORED_CHECKSUM], 1);
    ck_assert_uint_eq(now.failed[STORED_ABSENT], 0);
    struct tier_state state_now;
    tier_state(tier, &state_now);
    ck_assert_uint_eq(state_now.limit_bytes, 77);
}
END_TEST

START_TEST(closing_ends_and_frees_jobs_that_run_and_jobs_that_were_abandoned)
{
    struct tier_event event;
    start(TIER_LOAD, 1, 100);
    start(TIER_STORE, 1, FOREVER);
    ck_assert(tier_poll(tier, 100, &event));
    ck_assert_int_eq(event.kind, TIER_ABANDONED);
}
END_TEST

static void *end_all(void *argument)
{
    struct tier_job **jobs = argument;
    for (int i = 0; i < 8; i++)
        tier_job_end(jobs[i]);
    return NULL;
}

START_TEST(jobs_that_end_on_another_thread_come_back_in_the_order_of_their_ends)
{
    pthread_t thread;
    struct tier_job *jobs[8];
    for (int i = 0; i < 8; i++)
        jobs[i] = start(TIER_LOAD, 1, FOREVER);
    ck_assert_int_eq(pthread_create(&thread, NULL, end_all, jobs), 0);
    for (int i = 0; i < 8; i++) {
        const struct tier_event event = tier_world_wait(tier);
        ck_assert_ptr_eq(event.job, jobs[i]);
    }
    pthread_join(thread, NULL);
    for (int i = 0; i < 8; i++)
        tier_job_destroy(jobs[i]);
    num_kept = 0;
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        a_job_is_given_back_once_when_the_backend_ends_it,
        an_abandoned_job_keeps_its_memory_until_the_backend_ends_it,
        a_job_that_ended_before_it_was_abandoned_is_done,
        a_call_that_a_tier_lacks_finds_nothing,
        blocks_are_counted_by_kind_and_reason,
        all_tiers_are_told_to_end_before_one_is_waited_for,
        closing_ends_and_frees_jobs_that_run_and_jobs_that_were_abandoned,
        jobs_that_end_on_another_thread_come_back_in_the_order_of_their_ends,
        NULL,
    };
    Suite *suite = suite_create("tier");
    check_case(suite, "tier", open_tier, close_tier, tests, 1);
    return check_main(suite);
}
