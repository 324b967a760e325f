// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_daemon_waits.c - a Run that waits: one request, one answer when it is done, by the ring lane
// and by messages.

#include "rigs/check_main.h"
#include "rigs/daemon_step.h"
#include "rigs/daemon_suite.h"
#include "rigs/ring_end.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { RING, NNG, NUM_LANES }; // of a loop test

// A request in flight.
struct asked {
    struct ring_end *end;
    int lane;
    uint32_t sequence;
    struct raw_pending pending;
};

static struct asked begin(int lane, struct ring_end *end, struct wire_submission submission)
{
    struct asked asked = {.end = end, .lane = lane};
    struct wire_request request = {.command = (enum wire_command)submission.command};
    if (submission.command == WIRE_COMMAND_RUN)
        request.run = submission.run;
    else
        request.wait = submission.wait;
    if (lane == RING)
        asked.sequence = put(end, submission);
    else
        raw_begin(end->raw, &request, &asked.pending);
    return asked;
}

// Converts a message's answer to that of an entry.
static struct wire_completion answer_to(struct asked *asked)
{
    struct wire_completion completion;
    struct wire_reply reply;
    if (asked->lane == RING) {
        completion = get(asked->end);
        ck_assert_uint_eq(completion.sequence, asked->sequence);
        return completion;
    }
    raw_end(&asked->pending, &reply);
    completion = (struct wire_completion){
        .status = reply.status, .answer = reply.answer, .ticket = reply.ticket};
    if (reply.answer == WIRE_ANSWER_RUN)
        completion.ticket = reply.run.ticket;
    if (reply.answer == WIRE_ANSWER_WAIT) {
        completion.run_status = reply.wait.run_status;
        completion.num_runs = reply.wait.num_runs;
    }
    snprintf(completion.text, sizeof completion.text, "%s", reply.message);
    wire_reply_finish(&reply);
    return completion;
}

static struct wire_completion ask(int lane, struct ring_end *end, struct wire_submission submission)
{
    struct asked asked = begin(lane, end, submission);
    return answer_to(&asked);
}

static struct wire_submission waiting_run(uint64_t batch, int32_t wait_ms)
{
    struct wire_submission run = run_of(batch);
    run.run.waits = true;
    run.run.wait_ms = wait_ms;
    return run;
}

static void expect_done(const struct wire_completion *done)
{
    ck_assert_msg(done->status == STATUS_OK && done->answer == WIRE_ANSWER_WAIT, "%s", done->text);
    ck_assert_int_eq(done->run_status, STATUS_OK);
    ck_assert_uint_ge(done->num_runs, 1);
}

START_TEST(a_run_that_waits_is_answered_once_when_it_is_done)
{
    start(NULL);
    struct ring_end end = open_end();
    uint64_t batch = fresh_batch(end.raw, open_cache(end.raw, "c"));
    for (int i = 1; i < 100; i++) { // more than the ring has entries
        put_step(end.raw, (float)i);
        struct wire_completion done = ask(_i, &end, waiting_run(batch, i % 2 ? SLEEP_MS : -1));
        expect_done(&done);
        ck_assert_uint_eq(done.ticket, i);
        check_out(end.raw, (float)i);
        ck_assert_int_eq(ask(_i, &end, wait_of(done.ticket)).status,
                         STATUS_NOT_FOUND); // it is reaped
    }
    close_end(&end);
    stop_clean();
}
END_TEST

// A run cannot be done in the same turn of the dispatcher that queued it.
START_TEST(a_run_whose_wait_is_over_before_it_is_leaves_its_ticket)
{
    start(NULL);
    struct ring_end end = open_end();
    uint64_t batch = fresh_batch(end.raw, open_cache(end.raw, "c"));
    for (uint64_t i = 1; i < 4; i++) {
        put_step(end.raw, (float)i);
        struct wire_completion late = ask(_i, &end, waiting_run(batch, 0));
        ck_assert_msg(late.status == STATUS_TIMEOUT, "%s: %s", status_name(late.status), late.text);
        ck_assert_uint_eq(late.answer, WIRE_ANSWER_EMPTY);
        ck_assert_uint_eq(late.ticket, i);
        struct wire_completion done = ask(_i, &end, wait_of(i));
        expect_done(&done);
        check_out(end.raw, (float)i);
    }
    close_end(&end);
    stop_clean();
}
END_TEST

START_TEST(a_run_that_waits_and_gets_no_ticket_says_so)
{
    start((const char *const[]){"--max-tickets", "1", NULL});
    struct ring_end end = open_end();
    struct wire_submission run = run_of(fresh_batch(end.raw, open_cache(end.raw, "c")));
    ck_assert_uint_eq(ask(_i, &end, run).ticket, 1);
    run = waiting_run(run.run.entry.batch, SLEEP_MS);
    run.run.timeout_ms = 1;
    struct wire_completion late = ask(_i, &end, run);
    ck_assert_int_eq(late.status, STATUS_BUSY);
    ck_assert_uint_eq(late.ticket, 0); // none was given
    close_end(&end);
    stop_clean();
}
END_TEST

// The time that it waits for the ticket is part of its whole timeout.
START_TEST(a_run_that_waits_gets_no_ticket_once_its_wait_is_over)
{
    static const int32_t times[] = {0, 1}, no_ends[] = {-1, SLEEP_MS};
    start((const char *const[]){"--max-tickets", "1", NULL});
    struct ring_end end = open_end();
    const uint64_t batch = fresh_batch(end.raw, open_cache(end.raw, "c"));
    ck_assert_uint_eq(ask(_i, &end, run_of(batch)).ticket, 1);
    for (int i = 0; i < 4; i++) {
        struct wire_submission run = waiting_run(batch, times[i % 2]);
        run.run.timeout_ms = no_ends[i / 2];
        struct wire_completion late = ask(_i, &end, run);
        ck_assert_msg(late.status == STATUS_BUSY, "%s: %s", status_name(late.status), late.text);
        ck_assert_uint_eq(late.ticket, 0);
    }
    ck_assert_int_eq(ask(_i, &end, wait_of(1)).status, STATUS_OK); // none of the runs was queued
    ck_assert_int_eq(ask(_i, &end, wait_of(2)).status, STATUS_NOT_FOUND);
    close_end(&end);
    stop_clean();
}
END_TEST

START_TEST(a_run_that_waits_and_cannot_be_is_refused_by_its_values)
{
    static const int32_t times[] = {-2, INT32_MIN};
    start(NULL);
    struct ring_end end = open_end();
    uint64_t batch = fresh_batch(end.raw, open_cache(end.raw, "c"));
    for (int i = 0; i < 2; i++) {
        char words[64];
        struct wire_completion refused = ask(_i, &end, waiting_run(batch, times[i]));
        snprintf(words, sizeof words, "wait_ms = %d", times[i]);
        ck_assert_int_eq(refused.status, STATUS_INVALID);
        ck_assert_msg(strstr(refused.text, words) != NULL, "%s", refused.text);
        ck_assert_uint_eq(refused.ticket, 0);
    }
    struct wire_completion nothing = ask(_i, &end, waiting_run(batch + 1, -1));
    ck_assert_int_eq(nothing.status, STATUS_NOT_FOUND);
    ck_assert_uint_eq(nothing.ticket, 0);
    struct wire_submission careless = run_of(batch);
    careless.run.wait_ms = -7; // of a run that does not wait, the field is not read
    ck_assert_uint_eq(ask(_i, &end, careless).ticket, 1);
    close_end(&end);
    stop_clean();
}
END_TEST

// No client can wait for a detached run, so such a Wait fails, at once or at the run's end, and has
// no other effect.
START_TEST(a_detached_run_that_waits_is_answered)
{
    start(NULL);
    struct ring_end end = open_end();
    uint64_t batch = fresh_batch(end.raw, open_cache(end.raw, "c"));
    struct wire_submission run = waiting_run(batch, SLEEP_MS);
    run.run.entry.flags |= WIRE_RUN_DETACHED;
    ck_assert_int_eq(ask(_i, &end, run).status, STATUS_NOT_FOUND);
    put_step(end.raw, 7);
    struct wire_completion done = ask(_i, &end, waiting_run(batch, SLEEP_MS));
    expect_done(&done);
    check_out(end.raw, 7);
    close_end(&end);
    stop_clean();
}
END_TEST

// A ticket that is done is reaped at once, without room for the Wait.
static void reap_without_parking(struct raw_client *raw, uint64_t ticket)
{
    const struct wire_request wait = {.command = WIRE_COMMAND_WAIT, .wait = {.ticket = ticket}};
    struct wire_reply reply;
    for (;;) {
        raw_call(raw, &wait, &reply);
        int status = reply.status;
        wire_reply_finish(&reply);
        if (status != STATUS_TIMEOUT) {
            ck_assert_int_eq(status, STATUS_OK);
            return;
        }
        nap();
    }
}

// The session may have 65 commands parked: 64 leases, and the run. The run's wait takes the place
// of the run.
START_TEST(a_parked_run_that_waits_takes_one_place_from_its_begin_to_its_end)
{
    enum { LEASES = 64 };
    static struct raw_pending leases[LEASES];
    struct wire_reply reply;
    start((const char *const[]){"--max-tickets", "1", "--max-blocks", "8", NULL});
    struct ring_end end = open_end();
    uint64_t cache = open_cache(end.raw, "c"), batch = fresh_batch(end.raw, cache);
    const struct wire_request lease = {
        .command = WIRE_COMMAND_BLOCKS_LEASE,
        .blocks_lease = {.cache = cache, .count = 8, .timeout_ms = -1}};
    ck_assert_uint_eq(ask(_i, &end, run_of(batch)).ticket, 1);
    for (int i = 0; i < LEASES; i++)
        raw_begin(end.raw, &lease, &leases[i]);
    raw_inspect(end.raw); // now all are parked
    struct asked parked = begin(_i, &end, waiting_run(batch, SLEEP_MS));
    ck_assert_int_eq(ask(_i, &end, waiting_run(batch, SLEEP_MS)).status,
                     STATUS_LIMIT); // before the one that is parked
    reap_without_parking(end.raw, 1);
    struct wire_completion done = answer_to(&parked);
    expect_done(&done);
    raw_expect(end.raw, &(struct wire_request){.command = WIRE_COMMAND_CLOSE_SESSION}, STATUS_OK);
    for (int i = 0; i < LEASES; i++) {
        raw_end(&leases[i], &reply);
        ck_assert_int_eq(reply.status, STATUS_NO_SESSION);
        wire_reply_finish(&reply);
    }
    close_end(&end);
    stop_clean();
}
END_TEST

// A session whose only ticket is taken, and a run of it that waits for another.
static struct asked park_run(int lane, struct ring_end *end)
{
    start((const char *const[]){"--max-tickets", "1", NULL});
    *end = open_end();
    uint64_t batch = fresh_batch(end->raw, open_cache(end->raw, "c"));
    ck_assert_uint_eq(ask(lane, end, run_of(batch)).ticket, 1);
    struct asked parked = begin(lane, end, waiting_run(batch, -1));
    // Commands after it are answered only once it is parked.
    ck_assert_int_eq(ask(lane, end, waiting_run(batch, -2)).status, STATUS_INVALID);
    return parked;
}

START_TEST(a_run_that_waits_ends_with_its_session)
{
    struct ring_end end;
    struct asked parked = park_run(_i, &end);
    struct raw_client *operator= raw_open(daemon_.socket);
    raw_expect(operator, &(struct wire_request){.command = WIRE_COMMAND_KILL_SESSION,
                                                .kill_session = {end.raw->session}},
               STATUS_OK);
    struct wire_completion over = answer_to(&parked);
    ck_assert_int_eq(over.status, STATUS_NO_SESSION);
    ck_assert_msg(strstr(over.text, "has ended"), "%s", over.text);
    ck_assert_uint_eq(over.ticket, 0);
    raw_close(operator);
    close_end(&end);
    stop_clean();
}
END_TEST

START_TEST(a_run_that_waits_for_a_ticket_is_told_that_the_daemon_stops)
{
    struct ring_end end;
    struct asked parked = park_run(_i, &end);
    ck_assert_int_eq(kill(daemon_.pid, SIGTERM), 0);
    struct wire_completion over = answer_to(&parked);
    ck_assert_int_eq(over.status, STATUS_STOPPING);
    ck_assert_uint_eq(over.ticket, 0);
    ck_assert(daemon_wait(&daemon_, DEADLINE_S));
    ck_assert_int_eq(daemon_.exit_code, 0);
    close_end(&end);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("daemon_waits");
    suite_add(
        suite, "both lanes",
        (const TTest *const[]){a_run_that_waits_is_answered_once_when_it_is_done,
                               a_run_whose_wait_is_over_before_it_is_leaves_its_ticket,
                               a_run_that_waits_and_gets_no_ticket_says_so,
                               a_run_that_waits_gets_no_ticket_once_its_wait_is_over,
                               a_run_that_waits_and_cannot_be_is_refused_by_its_values,
                               a_detached_run_that_waits_is_answered,
                               a_parked_run_that_waits_takes_one_place_from_its_begin_to_its_end,
                               a_run_that_waits_ends_with_its_session,
                               a_run_that_waits_for_a_ticket_is_told_that_the_daemon_stops, NULL},
        NUM_LANES);
    return check_main(suite);
}
