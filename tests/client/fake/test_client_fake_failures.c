// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_fake_failures.c - contiguous attention releases everything, whichever of its commands
// fails; the tickets of a call that has two runs; and a daemon that ends or a process that forks in
// between. Each test is a process with a fake daemon in it.

#include "attention/attention_journal.h"

#include <sys/wait.h>
#include <unistd.h>

// ---- everything is released ----

// What must be released if the command of that number fails: 1 open, 2 lease, 3 import, 4 write, 5
// end, 6 batch, 7 attend.
static const struct {
    unsigned at;
    enum status status;
    const char *words;
} failure_cases[] = {
    {1, STATUS_DEVICE_LOST, "open "},
    {2, STATUS_DEVICE_LOST, "open lease:4 "},
    {3, STATUS_INVALID, "open lease:4 import release:4 "},
    {3, STATUS_DEVICE_LOST, "open lease:4 import release:4 "},
    {4, STATUS_BUSY, "open lease:4 import write end release:4 "},
    {4, STATUS_UNSUPPORTED, "open lease:4 import write end release:4 "},
    {6, STATUS_INVALID, "open lease:4 import write end batch wait:1 release:4 "},
    {7, STATUS_LIMIT, "open lease:4 import write end batch attend end wait:1 release:4 "},
    {7, STATUS_DEVICE_LOST, "open lease:4 import write end batch attend end wait:1 release:4 "},
};
enum { NUM_FAILURE_CASES = sizeof failure_cases / sizeof *failure_cases };

START_TEST(if_a_command_fails_everything_is_released_and_its_error_stays)
{
    const enum aule_path ways[] = {AULE_PATH_AUTO, AULE_PATH_PAGED};
    for (int i = 0; i < 4; i++) {
        struct journal journal = {.fail_at = failure_cases[_i].at,
                                  .fail_with = failure_cases[_i].status};
        struct aule_session *session = open_journal(&journal, 16);
        struct aule_attention_params params = attention(ways[i % 2]);
        struct aule_ticket ticket = {.id = 4711};
        enum aule_status status = i < 2 ? aule_attention_submit(session, &params, 0, &ticket)
                                        : aule_attention(session, &params, 0, NULL, &ticket);
        expect(status, (enum aule_status)failure_cases[_i].status, "as the test wants it");
        expect_words(&journal, failure_cases[_i].words);
        ck_assert_uint_eq(ticket.id, 4711);
        expect_empty_arena(session);
        aule_session_close(session);
        fake_stop(&fake);
    }
}
END_TEST

// If the command of that number fails, the call sends these commands and fails with the same
// status.
static void expect_failure(enum aule_path way, unsigned at, enum status status, const char *words)
{
    struct journal journal = {.fail_at = at, .fail_with = status};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(way);
    expect(aule_attention(session, &params, 0, NULL, NULL), (enum aule_status)status,
           "as the test wants it");
    expect_words(&journal, words);
    aule_session_close(session);
}

START_TEST(the_contiguous_way_ends_its_batch_when_the_run_fails)
{
    expect_failure(AULE_PATH_CONTIGUOUS, 2, STATUS_INVALID, "local attend end ");
}
END_TEST

START_TEST(a_failure_while_giving_back_does_not_hide_the_first_one)
{
    struct journal journal = {.fail_at = 4, .fail_with = STATUS_UNSUPPORTED};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    journal.for_good = true;
    expect(aule_attention(session, &params, 0, NULL, NULL), AULE_UNSUPPORTED,
           "as the test wants it");
    expect_words(&journal, "open lease:4 import write end release:4 ");
    // Allows errors to be recorded again.
    expect(aule_attention(session, &params, -2, NULL, NULL), AULE_INVALID, "timeout_ms = -2");
    aule_session_close(session);
}
END_TEST

// ---- two runs, one ticket ----

// 8 end, 9 release, 10 wait for the run, 11 wait for the copy. Both are done, and one of them
// failed.
START_TEST(a_copy_or_a_run_that_fails_fails_the_call_and_takes_both_tickets_along)
{
    for (unsigned at = 10; at <= 11; at++) {
        struct journal journal = {.fail_at = at, .fail_with = STATUS_NO_MEMORY, .of_run = true};
        struct aule_session *session = open_journal(&journal, 0);
        struct aule_attention_params params = attention(AULE_PATH_PAGED);
        expect(aule_attention(session, &params, 0, NULL, NULL), AULE_NO_MEMORY,
               "failed: as the test wants it");
        params.path = AULE_PATH_CONTIGUOUS;
        ok(aule_attention_submit(session, &params, 0, NULL)); // there is no ticket to reap
        expect_words(&journal, "open lease:4 import write end batch attend end release:4 wait:2 "
                               "wait:1 local attend! end ");
        aule_session_close(session);
        fake_stop(&fake);
    }
}
END_TEST

// The run is not done, or there is no room to wait for it.
static const enum status no_wait_cases[] = {STATUS_TIMEOUT, STATUS_LIMIT, STATUS_NO_MEMORY};
enum { NUM_NO_WAIT_CASES = sizeof no_wait_cases / sizeof *no_wait_cases };

START_TEST(a_wait_that_ends_before_the_run_leaves_both_tickets_and_a_call_abandons_both)
{
    const enum status status = no_wait_cases[_i];
    struct journal journal = {.fail_at = 10, .fail_with = status};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    struct aule_ticket ticket;
    ok(aule_attention_submit(session, &params, 0, &ticket));
    expect(aule_ticket_wait(session, ticket, 0, NULL), (enum aule_status)status,
           "as the test wants it");
    ok(aule_ticket_wait(session, ticket, 0, NULL));
    expect_words(&journal,
                 "open lease:4 import write end batch attend end release:4 wait:2 wait:2 wait:1 ");

    forget(&journal);
    journal.fail_at = 9;
    journal.fail_with = status;
    expect(aule_attention(session, &params, 0, NULL, NULL), (enum aule_status)status,
           "as the test wants it");
    params.path = AULE_PATH_CONTIGUOUS;
    ok(aule_attention_submit(session, &params, 0, NULL)); // reaps the abandoned tickets
    expect_words(&journal, "lease:4 import write end batch attend end release:4 wait:4 local "
                           "wait:3 wait:4 attend! end ");
    aule_session_close(session);
}
END_TEST

// The call's own first ticket may be the one that fills the session. The call must not wait for
// itself.
START_TEST(where_one_ticket_is_left_the_copy_is_waited_for_first)
{
    struct journal journal = {.full = true};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    struct aule_ticket ticket;
    ok(aule_attention_submit(session, &params, -1, &ticket));
    expect_words(&journal,
                 "open lease:4 import write end batch attend wait:1 attend end release:4 ");
    ck_assert_uint_eq(ticket.before, 0);
    ck_assert_int_eq(ticket.path, AULE_PATH_PAGED);
    ok(aule_ticket_wait(session, ticket, 0, NULL));
    aule_session_close(session);
}
END_TEST

// 8 waits for the copy; the library asks once more when the call gives up.
START_TEST(a_copy_that_is_waited_for_first_in_vain_is_reaped_by_the_next_submission)
{
    struct journal journal = {
        .fail_at = 8, .fail_with = no_wait_cases[_i], .full = true, .for_good = true};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    struct aule_ticket ticket;
    ck_assert_int_ne(aule_attention_submit(session, &params, 0, &ticket), AULE_OK);
    forget(&journal);
    params.path = AULE_PATH_CONTIGUOUS;
    ok(aule_attention_submit(session, &params, 0, NULL));
    expect_words(&journal, "local wait:1 attend! end ");
    aule_session_close(session);
}
END_TEST

START_TEST(without_a_ticket_nobody_waits_for_either_run)
{
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    ok(aule_attention_submit(session, &params, 0, NULL));
    expect_words(&journal, "open lease:4 import write! end batch attend! end release:4 ");
    aule_session_close(session);
}
END_TEST

// ---- the daemon ends, the process forks ----

START_TEST(after_a_reconnect_tensors_and_tickets_of_before_are_of_another_epoch)
{
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    struct aule_ticket ticket;
    ok(aule_attention_submit(session, &params, 0, &ticket));
    ok(aule_session_reconnect(session));
    expect(aule_ticket_wait(session, ticket, 0, NULL), AULE_EPOCH, "before the reconnect");
    params.run.k.life = 1;
    expect(aule_attention_submit(session, &params, 0, &ticket), AULE_EPOCH,
           "k lies in the arena of life 1");
    params.path = AULE_PATH_CONTIGUOUS;
    expect(aule_attention_submit(session, &params, 0, &ticket), AULE_EPOCH,
           "keys lies in the arena of life 1");
    const struct aule_merge_params merge = {
        .num_parts = 1, .outs = &params.run.q, .lses = &params.run.k};
    expect(aule_merge_submit(session, &merge, 0, NULL), AULE_EPOCH,
           "a tensor of lses lies in the arena of life 1");
    aule_session_close(session);
}
END_TEST

static enum aule_status create_beside(struct aule_cache *cache, const struct aule_batch *beside)
{
    const int32_t cu[] = {0, 1}, lens[] = {1}, table[] = {0};
    const struct aule_batch_params params = {.num_seqs = 1,
                                             .max_blocks = 1,
                                             .cu_seqlens_q = cu,
                                             .seq_lens_kv = lens,
                                             .block_table = table,
                                             .beside = beside};
    struct aule_batch *batch;
    return aule_batch_create(cache, &params, &batch);
}

START_TEST(a_batch_lies_beside_one_of_its_own_session_only)
{
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 0), *other = open_session(0);
    struct aule_cache *cache = open_cache(session), *others = open_cache(other);
    struct aule_batch *batch = create_batch(cache);
    const unsigned asked = atomic_load(&fake.seen[WIRE_COMMAND_BATCH_CREATE]);
    expect(create_beside(others, batch), AULE_INVALID, "beside is a batch of another session");
    ok(aule_session_reconnect(session));
    expect(create_beside(others, batch), AULE_EPOCH, "before the reconnect");
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_BATCH_CREATE]), asked);
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_cache_close(others);
    aule_session_close(other);
    aule_session_close(session);
}
END_TEST

START_TEST(a_daemon_that_goes_in_the_middle_ends_the_call)
{
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    ok(aule_attention(session, &params, 0, NULL, NULL));
    fake_stop(&fake);
    expect(aule_attention(session, &params, -1, NULL, NULL), AULE_DAEMON_GONE, path);
    aule_session_close(session);
}
END_TEST

START_TEST(a_forked_child_can_attend_to_nothing)
{
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_cache *cache = open_cache(session);
    struct aule_batch *batch = create_batch(cache), *local = NULL;
    const struct aule_attention_params params = attention(AULE_PATH_PAGED);
    const struct aule_merge_params merge = {
        .num_parts = 1, .outs = &params.run.q, .lses = &params.run.q};
    const int64_t slot = 0;
    const struct aule_kv_import import = {.num_rows = 1, .slot_mapping = &slot};
    const struct aule_kv_gather gather = {.layer = 0};
    const struct aule_kv_layout layout = {.num_kv_heads = 1, .head_dim = 64};
    const int32_t zero = 0;
    const struct aule_batch_params empty = {.cu_seqlens_q = &zero};
    int status;
    ok(aule_attention(session, &params, 0, NULL, NULL));
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        int wrong = 0;
        wrong += aule_attention(session, &params, 0, NULL, NULL) != AULE_FORKED;
        wrong += aule_merge_submit(session, &merge, 0, NULL) != AULE_FORKED;
        wrong += aule_blocks_copy(cache, 1, &zero, &zero, 0, NULL) != AULE_FORKED;
        wrong += aule_blocks_zero(cache, 1, &zero, 0, NULL) != AULE_FORKED;
        wrong += aule_kv_import(cache, &import, 0, NULL) != AULE_FORKED;
        wrong += aule_kv_gather(batch, &gather, 0, NULL) != AULE_FORKED;
        wrong += aule_batch_create_local(session, &layout, &empty, &local) != AULE_FORKED;
        aule_batch_destroy(batch);
        aule_cache_close(cache);
        aule_session_close(session);
        _exit(wrong);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's status is 0x%x",
                  (unsigned)status);
    ok(aule_attention(session, &params, 0, NULL, NULL));
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client_fake_failures");
    add(suite, "giving back",
        (const struct entry[]){
            {if_a_command_fails_everything_is_released_and_its_error_stays, NUM_FAILURE_CASES},
            {a_failure_while_giving_back_does_not_hide_the_first_one, 0},
            {the_contiguous_way_ends_its_batch_when_the_run_fails, 0},
            {NULL, 0},
        });
    add(suite, "tickets",
        (const struct entry[]){
            {a_copy_or_a_run_that_fails_fails_the_call_and_takes_both_tickets_along, 0},
            {a_wait_that_ends_before_the_run_leaves_both_tickets_and_a_call_abandons_both,
             NUM_NO_WAIT_CASES},
            {a_copy_that_is_waited_for_first_in_vain_is_reaped_by_the_next_submission,
             NUM_NO_WAIT_CASES},
            {where_one_ticket_is_left_the_copy_is_waited_for_first, 0},
            {without_a_ticket_nobody_waits_for_either_run, 0},
            {NULL, 0},
        });
    add(suite, "ends",
        (const struct entry[]){
            {after_a_reconnect_tensors_and_tickets_of_before_are_of_another_epoch, 0},
            {a_batch_lies_beside_one_of_its_own_session_only, 0},
            {a_daemon_that_goes_in_the_middle_ends_the_call, 0},
            {a_forked_child_can_attend_to_nothing, 0},
            {NULL, 0},
        });
    return check_main(suite);
}
