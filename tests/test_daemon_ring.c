// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_daemon_ring.c - the ring lane of a real aule-daemon, by a raw client that works the rings itself: what an entry does, in which order
// the two lanes go, and what a hostile or dying client can do there (nothing to others).

#include "check_main.h"
#include "daemon_step.h"
#include "daemon_suite.h"
#include "dice.h"
#include "ring.h"

#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SLEEP_MS = 100000 };

// A raw session with its end of the rings.
struct ring_end {
    struct raw_client *raw;
    struct ring_client ring;
    int bell;
};

static const char *bell_path(void)
{
    static char path[sizeof daemon_.socket + 8];
    snprintf(path, sizeof path, "%s.bell", daemon_.socket);
    return path;
}

static struct ring_end open_end(void)
{
    struct ring_end end = {.raw = raw_session(daemon_.socket, ARENA)};
    const struct wire_hello_reply *hello = &end.raw->hello;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    ck_assert_uint_gt(hello->ring_entries, 0);
    const struct ring_place place = {
        .submissions = (uint8_t *)end.raw->segment + hello->submission_ring_offset,
        .completions = (uint8_t *)end.raw->segment + hello->completion_ring_offset,
        .num_entries = hello->ring_entries,
        .submission_size = WIRE_SUBMISSION_SIZE,
        .completion_size = WIRE_COMPLETION_SIZE,
    };
    ring_client_init(&end.ring, &place);
    ck_assert_str_eq(hello->doorbell, strrchr(bell_path(), '/') + 1);
    memcpy(address.sun_path, bell_path(), strlen(bell_path()) + 1);
    end.bell = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_eq(connect(end.bell, (const struct sockaddr *)&address, sizeof address), 0);
    return end;
}

static void close_end(struct ring_end *end)
{
    close(end->bell);
    raw_close(end->raw);
}

static void ring_bell(struct ring_end *end)
{
    if (ring_ear(&end->ring) == RING_ASLEEP)
        send(end->bell, "", 1, MSG_NOSIGNAL);
}

static uint32_t put(struct ring_end *end, struct wire_submission submission)
{
    uint64_t entry[WIRE_SUBMISSION_SIZE / 8];
    submission.sequence = end->ring.submitted;
    wire_put_submission(&submission, entry);
    ck_assert(ring_submit(&end->ring, entry));
    ring_bell(end);
    return submission.sequence;
}

static struct wire_completion get(struct ring_end *end)
{
    const struct timespec rest = {.tv_nsec = 100000000};
    uint64_t entry[WIRE_COMPLETION_SIZE / 8];
    struct wire_completion completion;
    enum ring_look look;
    for (int i = 0; (look = ring_consume(&end->ring, entry)) == RING_NOTHING && i < SLEEP_MS / 100; i++)
        ring_sleep(&end->ring, end->ring.consumed, &rest);
    ck_assert_int_eq(look, RING_TAKEN);
    wire_get_completion(entry, &completion);
    return completion;
}

static struct wire_completion call(struct ring_end *end, struct wire_submission submission)
{
    uint32_t sequence = put(end, submission);
    struct wire_completion completion = get(end);
    ck_assert_uint_eq(completion.sequence, sequence);
    return completion;
}

static struct wire_submission run_of(uint64_t batch)
{
    return (struct wire_submission){.command = WIRE_COMMAND_RUN, .run = run_request(batch, SLEEP_MS).run};
}

static struct wire_submission wait_of(uint64_t ticket)
{
    return (struct wire_submission){.command = WIRE_COMMAND_WAIT, .wait = {ticket, SLEEP_MS}};
}

// A block, and a batch that fills it; what it wrote and read is looked at by check_out().
static uint64_t fresh_batch(struct raw_client *raw, uint64_t cache)
{
    static int32_t block;
    static int64_t slots[BLOCK];
    lease(raw, cache, 1, &block);
    slots_of(block, slots);
    const struct wire_request request = fill_request(cache, &block, slots);
    return create_batch(raw, &request);
}

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

START_TEST(a_run_that_waits_is_answered_once_when_it_is_done)
{
    start(NULL);
    struct ring_end end = open_end();
    uint64_t batch = fresh_batch(end.raw, open_cache(end.raw, "c"));
    struct wire_submission run = run_of(batch);
    run.waits = true;
    run.wait_ms = SLEEP_MS;
    for (int i = 1; i < 100; i++) { // more than the ring has entries
        put_step(end.raw, (float)i);
        struct wire_completion done = call(&end, run);
        ck_assert_msg(done.status == STATUS_OK && done.answer == WIRE_ANSWER_WAIT, "%s", done.text);
        ck_assert_uint_eq(done.ticket, i);
        check_out(end.raw, (float)i);
    }
    close_end(&end);
}
END_TEST

// What was answered on one lane comes before what is sent on the other: tickets count on, and a run sees what the earlier one wrote.
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

// One that waits for a ticket is parked as a message would be, and the other lane's work waits behind it.
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
    ck_assert_int_eq(call(&end, impatient).status, STATUS_BUSY); // out of order: the parked one is not answered yet
    wait_done(end.raw, 1);
    struct wire_completion run = get(&end);
    ck_assert_uint_eq(run.sequence, parked);
    ck_assert_uint_eq(run.ticket, 2);
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

// Names that differ by their tail only have doorbells of their own.
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

START_TEST(what_a_killed_daemon_left_of_its_doorbell_goes_at_the_next_start)
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

START_TEST(what_is_in_the_doorbells_way_stays_and_stops_only_a_daemon_that_wants_one)
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

// What is parked, what lies there, and whoever comes later.
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

START_TEST(a_run_that_waits_and_gets_no_ticket_says_so)
{
    start((const char *const[]){"--max-tickets", "1", NULL});
    struct ring_end end = open_end();
    struct wire_submission run = run_of(fresh_batch(end.raw, open_cache(end.raw, "c")));
    ck_assert_uint_eq(call(&end, run).ticket, 1);
    run.waits = true;
    run.wait_ms = -2;
    ck_assert_int_eq(call(&end, run).status, STATUS_INVALID);
    run.wait_ms = SLEEP_MS;
    run.run.timeout_ms = 1;
    struct wire_completion late = call(&end, run);
    ck_assert_int_eq(late.status, STATUS_BUSY);
    ck_assert_uint_eq(late.ticket, 0); // none was given
    close_end(&end);
}
END_TEST

// A ticket that is done is reaped at once, without a place for the Wait.
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

// The session may have 65 commands parked: 64 leases, and the run, whose wait takes its place.
START_TEST(a_parked_run_that_waits_takes_one_place_from_its_begin_to_its_end)
{
    enum { LEASES = 64 };
    static struct raw_pending leases[LEASES];
    struct wire_reply reply;
    start((const char *const[]){"--max-tickets", "1", "--max-blocks", "8", NULL});
    struct ring_end end = open_end();
    uint64_t cache = open_cache(end.raw, "c");
    struct wire_submission run = run_of(fresh_batch(end.raw, cache));
    const struct wire_request lease = {.command = WIRE_COMMAND_BLOCKS_LEASE,
                                       .blocks_lease = {.cache = cache, .count = 8, .timeout_ms = -1}};
    ck_assert_uint_eq(call(&end, run).ticket, 1);
    for (int i = 0; i < LEASES; i++)
        raw_begin(end.raw, &lease, &leases[i]);
    raw_inspect(end.raw); // and all are parked
    run.waits = true;
    run.wait_ms = SLEEP_MS;
    put(&end, run);
    ck_assert_int_eq(call(&end, run).status, STATUS_LIMIT); // before the one that is parked
    reap_without_parking(end.raw, 1);
    struct wire_completion done = get(&end);
    ck_assert_msg(done.status == STATUS_OK && done.answer == WIRE_ANSWER_WAIT, "%s", done.text);
    raw_expect(end.raw, &(struct wire_request){.command = WIRE_COMMAND_CLOSE_SESSION}, STATUS_OK);
    for (int i = 0; i < LEASES; i++) {
        raw_end(&leases[i], &reply);
        ck_assert_int_eq(reply.status, STATUS_NO_SESSION);
        wire_reply_finish(&reply);
    }
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
            nap(); // it sleeps in the meantime
    }
    const struct wire_inspect_daemon_reply state = raw_inspect(end.raw);
    ck_assert_uint_ge(state.ends_awake + state.ends_asleep, 1); // all that were not there as soon as it looked
    ck_assert_uint_le(state.ends_awake + state.ends_asleep, state.submissions);
    close_end(&end);
}
END_TEST

// ---- hostile ----

// Ends the test well only if a session beside the hostile one still computes.
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
            ((uint8_t *)entry)[dice_below(&dice, i % 2 ? 48 : WIRE_SUBMISSION_SIZE)] = (uint8_t)dice_next(&dice);
        ((uint32_t *)entry)[2] = ((uint32_t *)entry)[4] = 0; // nobody waits
        uint32_t sequence = bad.ring.submitted;
        ck_assert(ring_submit(&bad.ring, entry));
        ring_bell(&bad);
        struct wire_completion answer = get(&bad);
        ck_assert_uint_eq(answer.sequence, sequence); // by the daemon's own count
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
            run.waits = true;
            run.wait_ms = SLEEP_MS;
            put(&end, run);
        }
        get(&end);
    }
}

// Forked before this process touches nng, which could not be used in them otherwise.
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
    struct wire_inspect_daemon_reply state = raw_inspect(raw);
    for (int k = 0; k < DEADLINE_S * 100 && (state.num_sessions > 1 || state.leased_blocks + state.quarantined_blocks);
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
        a_run_that_waits_is_answered_once_when_it_is_done,
        a_session_may_mix_the_lanes_and_keeps_its_order,
        entries_of_one_ring_are_served_in_their_order,
        a_run_without_a_free_ticket_waits_and_goes_first_when_one_comes_free,
        without_entries_there_is_no_ring_lane,
        two_daemons_never_share_a_doorbell,
        what_a_killed_daemon_left_of_its_doorbell_goes_at_the_next_start,
        what_is_in_the_doorbells_way_stays_and_stops_only_a_daemon_that_wants_one,
        a_session_that_the_daemon_ends_leaves_no_request_of_its_ring_waiting,
        a_run_that_waits_and_gets_no_ticket_says_so,
        a_parked_run_that_waits_takes_one_place_from_its_begin_to_its_end,
        a_daemon_that_spins_serves_as_well,
        NULL,
    };
    const TTest *const hostile[] = {
        entries_of_any_bytes_are_refused_each_and_harm_nobody,      a_count_that_cannot_be_ends_its_session_alone,
        a_segment_shrunk_under_its_rings_ends_its_session_alone,    a_flood_of_bells_keeps_nobody_from_being_served,
        clients_killed_in_the_middle_of_ring_traffic_leave_nothing, NULL,
    };
    Suite *suite = suite_create("daemon_ring");
    suite_add(suite, "entries", entries, 1);
    suite_add(suite, "hostile", hostile, 1);
    return check_main(suite);
}
