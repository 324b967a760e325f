// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_daemon_ring.c - the ring lane of a real aule-daemon, used directly by a raw client: what an
// entry does, the order between the two lanes, and that a hostile or dying client harms no other.

#include "rigs/check_main.h"
#include "rigs/daemon_step.h"
#include "rigs/daemon_suite.h"
#include "rigs/dice.h"
#include "rigs/ring_end.h"

#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// ---- what an entry does ----

START_TEST(a_run_and_a_wait_by_the_ring_do_what_their_messages_do)
{
    start(NULL);
    struct ring_end end = open_end();
    uint64_t batch = fresh_batch(end.raw, open_cache(end.raw, "c"));
    put_step(end.raw, 3);
    struct wire_completion run = call(&end, run_of(batch));
    ck_assert_msg(run.status == STATUS_OK, "%s", run.text);
    ck_assert_uint_eq(run.answer, WIRE_ANSWER_RUN);
    struct wire_completion done = call(&end, wait_of(run.ticket));
    ck_assert_msg(done.status == STATUS_OK && done.run_status == STATUS_OK, "%s", done.text);
    ck_assert_uint_eq(done.num_runs, 1);
    check_out(end.raw, 3);
    ck_assert_int_eq(call(&end, wait_of(run.ticket)).status, STATUS_NOT_FOUND); // it is reaped
    close_end(&end);
}
END_TEST

// A command that was answered on one lane comes before commands that are sent later on the other:
// tickets are numbered in order, and a run sees what an earlier one wrote.
START_TEST(a_session_may_mix_the_lanes_and_keeps_its_order)
{
    start(NULL);
    struct ring_end end = open_end();
    uint64_t batch = fresh_batch(end.raw, open_cache(end.raw, "c"));
    for (uint64_t ticket = 1; ticket < 9; ticket++) {
        put_step(end.raw, (float)ticket);
        if (ticket % 2) {
            ck_assert_uint_eq(call(&end, run_of(batch)).ticket, ticket);
            wait_done(end.raw, ticket); // by message
        } else {
            ck_assert_uint_eq(submit(end.raw, batch), ticket); // by message
            ck_assert_int_eq(call(&end, wait_of(ticket)).status, STATUS_OK);
        }
        check_out(end.raw, (float)ticket);
    }
    close_end(&end);
}
END_TEST

START_TEST(entries_of_one_ring_are_served_in_their_order)
{
    start(NULL);
    struct ring_end end = open_end();
    uint64_t batch = fresh_batch(end.raw, open_cache(end.raw, "c"));
    uint32_t count = end.raw->hello.ring_entries;
    for (uint32_t i = 0; i < count; i++)
        put(&end, run_of(batch));
    for (uint32_t i = 0; i < count; i++) {
        struct wire_completion run = get(&end);
        ck_assert_uint_eq(run.sequence, i);
        ck_assert_uint_eq(run.ticket, i + 1);
    }
    close_end(&end);
}
END_TEST

// An entry that waits for a ticket is parked like a message, and later work on the other lane waits
// behind it.
START_TEST(a_run_without_a_free_ticket_waits_and_goes_first_when_one_comes_free)
{
    start((const char *const[]){"--max-tickets", "1", NULL});
    struct ring_end end = open_end();
    uint64_t batch = fresh_batch(end.raw, open_cache(end.raw, "c"));
    struct wire_submission impatient = run_of(batch);
    impatient.run.timeout_ms = 0;
    ck_assert_uint_eq(call(&end, run_of(batch)).ticket, 1);
    ck_assert_int_eq(call(&end, impatient).status, STATUS_BUSY);
    uint32_t parked = put(&end, run_of(batch));
    ck_assert_int_eq(call(&end, impatient).status,
                     STATUS_BUSY); // out of order: the parked one is not answered yet
    wait_done(end.raw, 1);
    struct wire_completion run = get(&end);
    ck_assert_uint_eq(run.sequence, parked);
    ck_assert_uint_eq(run.ticket, 2);
    close_end(&end);
}
END_TEST

START_TEST(an_option_that_the_daemon_does_not_know_is_refused)
{
    start(NULL);
    struct ring_end end = open_end();
    struct wire_submission run = run_of(fresh_batch(end.raw, open_cache(end.raw, "c")));
    run.run.options.max_queue_ms = UINT32_MAX;
    ck_assert_int_eq(call(&end, wait_of(call(&end, run).ticket)).run_status, STATUS_OK);
    run.run.options.reserved[0] = 7;
    struct wire_completion answer = call(&end, run);
    ck_assert_int_eq(answer.status, STATUS_UNSUPPORTED);
    ck_assert_msg(strstr(answer.text, "unknown option 0x7"), "%s", answer.text);
    close_end(&end);
}
END_TEST

START_TEST(without_entries_there_is_no_ring_lane)
{
    start((const char *const[]){"--ring-entries", "0", NULL});
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    ck_assert_uint_eq(raw->hello.ring_entries, 0);
    ck_assert_uint_eq(raw->hello.submission_ring_offset, 0);
    ck_assert_int_ne(access(bell_path(), F_OK), 0);
    do_step(raw, open_cache(raw, "c"), 1);
    raw_close(raw);
}
END_TEST

// Sockets whose names differ only at the end have different doorbells.
START_TEST(two_daemons_never_share_a_doorbell)
{
    struct daemon other;
    struct stat first, second;
    start(NULL);
    ck_assert(daemon_init(&other));
    snprintf(other.socket, sizeof other.socket, "%s/0", daemon_.folder);
    ck_assert(daemon_start(&other, NULL));
    char path[sizeof other.socket + 8];
    snprintf(path, sizeof path, "%s.bell", other.socket);
    ck_assert_int_eq(stat(bell_path(), &first), 0);
    ck_assert_int_eq(stat(path, &second), 0);
    ck_assert_uint_ne(first.st_ino, second.st_ino);
    struct ring_end end = open_end();
    ck_assert_int_eq(daemon_stop(&other), 0);
    ck_assert_int_eq(access(path, F_OK), -1);
    ck_assert_int_eq(call(&end, wait_of(1)).status, STATUS_NOT_FOUND);
    close_end(&end);
    daemon_finish(&other);
}
END_TEST

START_TEST(the_next_start_removes_the_doorbell_of_a_killed_daemon)
{
    start(NULL);
    daemon_kill(&daemon_);
    ck_assert_int_eq(access(bell_path(), F_OK), 0);
    ck_assert(daemon_start(&daemon_, NULL));
    struct ring_end end = open_end();
    ck_assert_int_eq(call(&end, wait_of(1)).status, STATUS_NOT_FOUND);
    close_end(&end);
    daemon_kill(&daemon_);
    ck_assert(daemon_start(&daemon_, (const char *const[]){"--ring-entries", "0", NULL}));
    ck_assert_int_eq(access(bell_path(), F_OK), -1);
}
END_TEST

START_TEST(a_folder_at_the_doorbells_path_stays_and_stops_only_a_daemon_with_rings)
{
    struct stat info;
    start(NULL);
    ck_assert_int_eq(daemon_stop(&daemon_), 0);
    ck_assert_int_eq(mkdir(bell_path(), 0700), 0);
    ck_assert(daemon_start(&daemon_, (const char *const[]){"--ring-entries", "0", NULL}));
    ck_assert_int_eq(daemon_stop(&daemon_), 0);
    ck_assert_int_eq(stat(bell_path(), &info), 0);
    ck_assert_int_eq(rmdir(bell_path()), 0);
}
END_TEST

// Checks requests that are parked, requests in the ring, and requests that come later.
START_TEST(a_session_that_the_daemon_ends_leaves_no_request_of_its_ring_waiting)
{
    start((const char *const[]){"--max-tickets", "1", NULL});
    struct ring_end end = open_end();
    struct raw_client *operator= raw_open(daemon_.socket);
    uint64_t batch = fresh_batch(end.raw, open_cache(end.raw, "c"));
    uint64_t entry[WIRE_SUBMISSION_SIZE / 8] = {0};
    ck_assert_uint_eq(call(&end, run_of(batch)).ticket, 1);
    uint32_t parked = put(&end, run_of(batch));
    raw_expect(operator, &(struct wire_request){.command = WIRE_COMMAND_KILL_SESSION,
                                                .kill_session = {end.raw->session}},
               STATUS_OK);
    struct wire_completion run = get(&end);
    ck_assert_uint_eq(run.sequence, parked);
    ck_assert_int_eq(run.status, STATUS_NO_SESSION);
    ck_assert_msg(strstr(run.text, "has ended"), "%s", run.text);
    ck_assert(ring_submit(&end.ring, entry));
    ck_assert_int_eq(ring_ear(&end.ring), RING_OVER);
    raw_close(operator);
    close_end(&end);
}
END_TEST

START_TEST(a_daemon_that_spins_serves_as_well)
{
    start((const char *const[]){"--ring-spin", "2000", NULL});
    struct ring_end end = open_end();
    uint64_t batch = fresh_batch(end.raw, open_cache(end.raw, "c"));
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(call(&end, wait_of(call(&end, run_of(batch)).ticket)).status, STATUS_OK);
        if (i % 5 == 4)
            nap(); // the daemon sleeps in the meantime
    }
    const struct daemon_state state = raw_inspect(end.raw);
    ck_assert_uint_ge(state.ends_awake + state.ends_asleep,
                      1); // all except those that were there when it looked
    ck_assert_uint_le(state.ends_awake + state.ends_asleep, state.submissions);
    close_end(&end);
}
END_TEST

// Runs of others may wait for a session that was just served; it comes back late, or never.
START_TEST(sessions_in_step_are_served_though_one_of_them_stays_away)
{
    enum { ENDS = 3, ROUNDS = 30 };
    struct ring_end ends[ENDS];
    uint64_t batches[ENDS], tickets[ENDS];
    start((const char *const[]){"--ring-spin", "2000", NULL});
    for (int i = 0; i < ENDS; i++) {
        ends[i] = open_end();
        batches[i] = fresh_batch(ends[i].raw, open_cache(ends[i].raw, "c"));
    }
    for (int round = 0; round < ROUNDS; round++) {
        int count = round < ROUNDS / 2 || round % 5 == 0 ? ENDS : ENDS - 1;
        for (int i = 0; i < count; i++)
            put(&ends[i], run_of(batches[i]));
        for (int i = 0; i < count; i++)
            tickets[i] = get(&ends[i]).ticket;
        for (int i = 0; i < count; i++)
            ck_assert_int_eq(call(&ends[i], wait_of(tickets[i])).status, STATUS_OK);
    }
    for (int i = 0; i < ENDS; i++)
        close_end(&ends[i]);
}
END_TEST

// ---- hostile ----

// The test ends well only if a session beside the hostile one still computes.
static void others_still_work(struct ring_end *other, uint64_t batch)
{
    put_step(other->raw, 5);
    struct wire_completion run = call(other, run_of(batch));
    ck_assert_msg(run.status == STATUS_OK, "%s", run.text);
    ck_assert_int_eq(call(other, wait_of(run.ticket)).status, STATUS_OK);
    check_out(other->raw, 5);
}

START_TEST(entries_of_any_bytes_are_refused_each_and_harm_nobody)
{
    uint64_t entry[WIRE_SUBMISSION_SIZE / 8];
    struct dice dice = {11};
    start(NULL);
    struct ring_end good = open_end(), bad = open_end();
    uint64_t cache = open_cache(good.raw, "c"), batch = fresh_batch(good.raw, cache);
    uint64_t own = fresh_batch(bad.raw, open_cache(bad.raw, "c"));
    for (int i = 0; i < 500; i++) {
        const struct wire_submission right = run_of(own);
        wire_put_submission(&right, entry);
        for (int k = 0; k < 1 + i % 8; k++)
            ((uint8_t *)entry)[dice_below(&dice, i % 2 ? 48 : WIRE_SUBMISSION_SIZE)] =
                (uint8_t)dice_next(&dice);
        ((uint32_t *)entry)[2] = ((uint32_t *)entry)[4] = 0; // the client does not wait
        uint32_t sequence = bad.ring.submitted;
        ck_assert(ring_submit(&bad.ring, entry));
        ring_bell(&bad);
        struct wire_completion answer = get(&bad);
        ck_assert_uint_eq(answer.sequence, sequence); // as the daemon counts
        if (answer.status == STATUS_OK && answer.answer == WIRE_ANSWER_RUN)
            call(&bad, wait_of(answer.ticket));
    }
    others_still_work(&good, batch);
    close_end(&bad);
    close_end(&good);
}
END_TEST

START_TEST(a_count_that_cannot_be_ends_its_session_alone)
{
    start(NULL);
    struct ring_end good = open_end(), bad = open_end();
    uint64_t batch = fresh_batch(good.raw, open_cache(good.raw, "c"));
    const struct wire_request state = {.command = WIRE_COMMAND_CACHE_STATE};
    struct wire_reply reply = {.status = STATUS_OK};
    *(volatile uint32_t *)bad.ring.place.submissions = 1000000;
    send(bad.bell, "", 1, MSG_NOSIGNAL);
    for (int i = 0; i < DEADLINE_S * 100 && reply.status != STATUS_NO_SESSION; i++) {
        raw_call(bad.raw, &state, &reply);
        nap();
    }
    ck_assert_int_eq(reply.status, STATUS_NO_SESSION);
    others_still_work(&good, batch);
    close_end(&bad);
    close_end(&good);
}
END_TEST

START_TEST(a_segment_shrunk_under_its_rings_ends_its_session_alone)
{
    start(NULL);
    struct ring_end good = open_end(), bad = open_end();
    uint64_t batch = fresh_batch(good.raw, open_cache(good.raw, "c"));
    put(&bad, wait_of(1));
    ck_assert_int_eq(ftruncate(bad.raw->segment_fd, 0), 0);
    send(bad.bell, "", 1, MSG_NOSIGNAL);
    others_still_work(&good, batch);
    close_end(&bad);
    close_end(&good);
}
END_TEST

START_TEST(a_flood_of_bells_keeps_nobody_from_being_served)
{
    start(NULL);
    struct ring_end good = open_end();
    uint64_t batch = fresh_batch(good.raw, open_cache(good.raw, "c"));
    pid_t flooder = fork();
    if (flooder == 0) {
        for (;;)
            send(good.bell, "x", 1, MSG_NOSIGNAL);
    }
    for (int i = 0; i < 5; i++)
        others_still_work(&good, batch);
    kill(flooder, SIGKILL);
    waitpid(flooder, NULL, 0);
    close_end(&good);
}
END_TEST

// ---- dying ----

static void traffic_for_ever(void)
{
    struct ring_end end = open_end();
    uint64_t batch = fresh_batch(end.raw, open_cache(end.raw, "c"));
    for (;;) {
        while (end.ring.submitted - end.ring.consumed < 8) {
            struct wire_submission run = run_of(batch);
            run.run.waits = true;
            run.run.wait_ms = SLEEP_MS;
            put(&end, run);
        }
        get(&end);
    }
}

// Forked before this process uses nng, because nng does not survive a fork.
START_TEST(clients_killed_in_the_middle_of_ring_traffic_leave_nothing)
{
    enum { CLIENTS = 3 };
    pid_t clients[CLIENTS];
    start(NULL);
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = fork();
        if (clients[i] == 0)
            traffic_for_ever();
    }
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "c");
    int32_t block = do_step(raw, cache, 1); // the pool has grown
    release(raw, cache, &block, 1);
    for (int i = 0; i < CLIENTS; i++) {
        uint64_t runs = raw_inspect(raw).runs_done;
        for (int k = 0; k < DEADLINE_S * 100 && raw_inspect(raw).runs_done < runs + 3; k++)
            nap();
        ck_assert_uint_ge(raw_inspect(raw).runs_done, runs + 3);
        kill(clients[i], SIGKILL);
        waitpid(clients[i], NULL, 0);
    }
    struct daemon_state state = raw_inspect(raw);
    for (int k = 0; k < DEADLINE_S * 100 &&
                    (state.num_sessions > 1 || state.leased_blocks + state.quarantined_blocks);
         k++) {
        nap();
        state = raw_inspect(raw);
    }
    ck_assert_uint_eq(state.num_sessions, 1);
    ck_assert_uint_eq(state.leased_blocks + state.quarantined_blocks, 0);
    raw_close(raw);
}
END_TEST

int main(void)
{
    const TTest *const entries[] = {
        a_run_and_a_wait_by_the_ring_do_what_their_messages_do,
        a_session_may_mix_the_lanes_and_keeps_its_order,
        entries_of_one_ring_are_served_in_their_order,
        a_run_without_a_free_ticket_waits_and_goes_first_when_one_comes_free,
        an_option_that_the_daemon_does_not_know_is_refused,
        without_entries_there_is_no_ring_lane,
        two_daemons_never_share_a_doorbell,
        the_next_start_removes_the_doorbell_of_a_killed_daemon,
        a_folder_at_the_doorbells_path_stays_and_stops_only_a_daemon_with_rings,
        a_session_that_the_daemon_ends_leaves_no_request_of_its_ring_waiting,
        a_daemon_that_spins_serves_as_well,
        sessions_in_step_are_served_though_one_of_them_stays_away,
        NULL,
    };
    const TTest *const hostile[] = {
        entries_of_any_bytes_are_refused_each_and_harm_nobody,
        a_count_that_cannot_be_ends_its_session_alone,
        a_segment_shrunk_under_its_rings_ends_its_session_alone,
        a_flood_of_bells_keeps_nobody_from_being_served,
        clients_killed_in_the_middle_of_ring_traffic_leave_nothing,
        NULL,
    };
    Suite *suite = suite_create("daemon_ring");
    suite_add(suite, "entries", entries, 1);
    suite_add(suite, "hostile", hostile, 1);
    return check_main(suite);
}
