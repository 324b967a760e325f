// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_core_drafts.c - batches whose arrays another thread checks, while their session ends or
// changes. World_create() and world_advance() of core_world.h compare the results of both ways.

#include "core/state.h"
#include "rigs/check_main.h"
#include "rigs/step_world.h"

#include <string.h>

static const int32_t cu[] = {0, 1}, lens[] = {9};
static int64_t slot;
static struct core_batch_params params;
static struct core_advance next;

static void open_drafts(void)
{
    open_world();
    slot = (int64_t)blocks[1] * WORLD_BLOCK;
    params = sequences_over(a.cache, 1, cu, lens, blocks, 3);
    params.slot_mapping = &slot;
    params.num_slot_mapping = 1;
    next = (struct core_advance){.slot_mapping = &slot, .num_slot_mapping = 1};
}

static struct core_draft *begin(bool advances)
{
    struct core_draft *draft;
    if (advances)
        ck_assert_status(core_advance_begin(a.session, &next, &draft, &error), STATUS_OK);
    else
        ck_assert_status(core_batch_begin(a.session, &params, &draft, &error), STATUS_OK);
    return draft;
}

static enum status fill(struct core_draft *draft, bool advances)
{
    return world_fill(draft, &params, advances ? &next : NULL, NULL);
}

// Before the other thread begins, or when it has ended; with a run of the batch queued.
START_TEST(a_session_that_ends_while_a_batch_is_made_is_gone_when_the_draft_is)
{
    const bool advances = _i & 1, filled = _i & 2, died = _i & 4;
    worker_fill(&a, blocks, 3);
    next.batch = worker_create(&a, &params);
    const uint64_t ticket = worker_run(&a, next.batch, 0, 1, tokens);
    struct core_draft *draft = begin(advances);
    if (filled)
        ck_assert_int_eq((int)fill(draft, advances), STATUS_OK);
    core_session_close(a.session, died);
    a.session = NULL;
    world_check(&world);
    world_finish_all(&world);
    ck_assert(!a.gone);
    (void)ticket;
    if (!filled)
        ck_assert_int_eq((int)fill(draft, advances), STATUS_OK);
    core_draft_discard(draft);
    ck_assert(a.gone);
    world_check(&world);
}
END_TEST

START_TEST(a_block_that_is_released_while_a_batch_is_made_is_refused)
{
    uint64_t batch;
    uint32_t num_tokens;
    struct core_draft *draft = begin(false);
    ck_assert_int_eq((int)fill(draft, false), STATUS_OK);
    worker_release(&a, &blocks[0], 1);
    ck_assert_refused(core_draft_end(draft, &batch, &num_tokens, &error), STATUS_NOT_HELD,
                      "was released while it was made");
    core_draft_discard(draft);
    world_check(&world);
}
END_TEST

// The slot's place in the table is free when both begin.
START_TEST(of_two_batches_that_are_made_at_a_time_one_gets_the_slot)
{
    uint64_t first, second;
    uint32_t num_tokens;
    char words[64];
    struct core_draft *drafts[] = {begin(false), begin(false)};
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq((int)fill(drafts[i], false), STATUS_OK);
    ck_assert_status(core_draft_end(drafts[0], &first, &num_tokens, &error), STATUS_OK);
    core_draft_discard(drafts[0]);
    snprintf(words, sizeof words, "is also written by batch %llu", (unsigned long long)first);
    ck_assert_refused(core_draft_end(drafts[1], &second, &num_tokens, &error),
                      STATUS_DUPLICATE_SLOT, words);
    core_draft_discard(drafts[1]);
    world_check(&world);
}
END_TEST

START_TEST(batches_that_are_made_at_a_time_stay_within_the_limit_together)
{
    struct world strict;
    struct worker worker;
    int32_t own[3];
    uint64_t batch;
    uint32_t num_tokens;
    struct core_draft *drafts[2];
    world_open(&strict, &(struct core_params){.max_batch_memory = 100});
    worker_open(&worker, &strict, 1, "");
    worker_lease(&worker, 3, own);
    const struct core_batch_params small = sequences_over(worker.cache, 1, cu, lens, own, 3);
    for (int i = 0; i < 2; i++) {
        ck_assert_status(core_batch_begin(worker.session, &small, &drafts[i], &error), STATUS_OK);
        ck_assert_int_eq((int)world_fill(drafts[i], &small, NULL, NULL), STATUS_OK);
    }
    ck_assert_status(core_draft_end(drafts[0], &batch, &num_tokens, &error), STATUS_OK);
    ck_assert_refused(core_draft_end(drafts[1], &batch, &num_tokens, &error), STATUS_LIMIT,
                      "--max-batch-memory");
    core_draft_discard(drafts[0]);
    core_draft_discard(drafts[1]);
    world_check(&strict);
    world_close(&strict);
}
END_TEST

START_TEST(an_advance_is_large_if_it_must_copy_or_count_a_large_table)
{
    const uint64_t table = 3 * sizeof(int32_t);
    const struct core_entry seen = {0, 1, blocks[4]};
    worker_fill(&a, blocks, 5);
    next.batch = worker_create(&a, &params);
    ck_assert(core_advance_is_large(a.session, &next, table)); // its mentions are not counted yet
    ck_assert_status(core_batch_advance(a.session, &next, &error), STATUS_OK);
    ck_assert(!core_advance_is_large(a.session, &next, table + 1)); // the table is small
    next.entries = &seen;
    next.num_entries = 1;
    params.slot_mapping = NULL; // a step of one sequence with one slot is smaller than the table
    params.num_slot_mapping = 0;
    next = (struct core_advance){
        .batch = worker_create(&a, &params), .entries = &seen, .num_entries = 1};
    ck_assert_status(core_batch_advance(a.session, &next, &error), STATUS_OK);
    ck_assert(!core_advance_is_large(a.session, &next, table)); // no run sees the entry
    worker_run(&a, next.batch, 0, 1, tokens);
    ck_assert(core_advance_is_large(a.session, &next, table));
    world_finish_all(&world);
    ck_assert(!core_advance_is_large(a.session, &next, table));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("core drafts");
    check_case(suite, "ends", open_drafts, close_all,
               (const TTest *const[]){
                   a_session_that_ends_while_a_batch_is_made_is_gone_when_the_draft_is, NULL},
               8);
    check_case(
        suite, "changes", open_drafts, close_all,
        (const TTest *const[]){a_block_that_is_released_while_a_batch_is_made_is_refused,
                               of_two_batches_that_are_made_at_a_time_one_gets_the_slot,
                               batches_that_are_made_at_a_time_stay_within_the_limit_together,
                               an_advance_is_large_if_it_must_copy_or_count_a_large_table, NULL},
        1);
    return check_main(suite);
}
