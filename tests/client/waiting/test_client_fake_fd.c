// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_fake_fd.c - when a session's descriptor is readable, with a fake daemon that says
// which tickets have ended, and when.

#include "rigs/client_world.h"

#include <dirent.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static struct script {
    atomic_ulong ended;   // the last ticket that has ended
    atomic_bool refuses;  // requests for ended tickets
    atomic_bool lies;     // each answer is below the ticket that was asked for
    atomic_bool leaving;  // the test is over
    enum fake_action how; // the answer to a request for ended tickets
} script;

// The fake has one thread: it answers nothing else until the wanted ticket has ended.
static enum fake_action answer(struct fake_daemon *daemon, const struct wire_request *request,
                               struct wire_reply *reply)
{
    (void)daemon;
    if (request->command != WIRE_COMMAND_TICKETS_ENDED)
        return FAKE_ANSWER;
    while (script.ended < request->tickets_ended.ticket && !script.refuses && !script.lies &&
           !script.leaving)
        usleep(1000);
    reply->tickets_ended.ticket = script.lies ? request->tickets_ended.ticket - 1 : script.ended;
    if (script.refuses)
        *reply = (struct wire_reply){
            .status = STATUS_LIMIT, .message = "no room", .answer = WIRE_ANSWER_EMPTY};
    return script.how;
}

static void open_script(void)
{
    make_folder();
    script = (struct script){.how = FAKE_ANSWER};
    fake_start(&fake, path, answer, NULL);
}

static void close_script(void)
{
    script.leaving = true;
    remove_folder();
}

struct world {
    struct aule_session *session;
    struct aule_cache *cache;
    struct aule_batch *batch;
    int fd;
};

static struct world open_world(void)
{
    struct world world = {.session = open_session(SHORT_MS)};
    world.cache = open_cache(world.session);
    world.batch = create_batch(world.cache);
    ck_assert_int_eq(aule_session_fd(world.session, &world.fd), AULE_OK);
    return world;
}

static void close_world(struct world *world)
{
    script.leaving = true;
    aule_batch_destroy(world->batch);
    aule_cache_close(world->cache);
    aule_session_close(world->session);
}

static bool is_readable(int fd, int timeout_ms)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    return poll(&entry, 1, timeout_ms) == 1 && entry.revents == POLLIN;
}

static void reap(const struct world *world, struct aule_ticket ticket)
{
    ck_assert_int_eq(aule_ticket_wait(world->session, ticket, 0, NULL), AULE_OK);
}

START_TEST(it_is_readable_while_an_ended_ticket_is_not_reaped)
{
    struct world world = open_world();
    ck_assert(!is_readable(world.fd, 0));
    struct aule_ticket first = submit_one(world.batch);
    ck_assert(!is_readable(world.fd, 20));
    script.ended = 1;
    ck_assert(is_readable(world.fd, SHORT_MS));
    ck_assert(is_readable(world.fd, 0)); // until it is reaped
    reap(&world, first);
    ck_assert(!is_readable(world.fd, 20));
    close_world(&world);
}
END_TEST

START_TEST(one_request_at_a_time_serves_any_number_of_tickets)
{
    struct aule_ticket tickets[4];
    script.ended = 3;
    struct world world = open_world();
    for (int i = 0; i < 4; i++)
        tickets[i] = submit_one(world.batch);
    ck_assert(is_readable(world.fd, SHORT_MS));
    wait_until_seen(WIRE_COMMAND_TICKETS_ENDED, 2); // for the first ticket and for the fourth
    script.ended = 4;
    for (int i = 0; i < 4; i++) {
        ck_assert(is_readable(world.fd, SHORT_MS));
        reap(&world, tickets[i]);
    }
    ck_assert(!is_readable(world.fd, 20));
    ck_assert_uint_eq(fake.seen[WIRE_COMMAND_TICKETS_ENDED], 2);
    close_world(&world);
}
END_TEST

START_TEST(a_session_that_never_asked_sends_nothing)
{
    struct aule_session *session = open_session(SHORT_MS);
    struct aule_cache *cache = open_cache(session);
    struct aule_batch *batch = create_batch(cache);
    struct aule_ticket ticket = submit_one(batch);
    ck_assert_int_eq(aule_ticket_wait(session, ticket, 0, NULL), AULE_OK);
    ck_assert_uint_eq(fake.seen[WIRE_COMMAND_TICKETS_ENDED], 0);
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

START_TEST(without_an_answer_that_helps_it_is_readable_while_a_ticket_is_open)
{
    static const enum fake_action ways[] = {FAKE_ANSWER, FAKE_GARBAGE, FAKE_TWICE, FAKE_ANSWER};
    script.how = ways[_i];
    script.refuses = _i == 0;
    script.lies = _i == 3;
    script.ended = 100;
    struct world world = open_world();
    struct aule_ticket ticket = submit_one(world.batch);
    ck_assert(is_readable(world.fd, SHORT_MS));
    ck_assert_uint_eq(fake.seen[WIRE_COMMAND_TICKETS_ENDED], 1); // it does not ask on and on
    reap(&world, ticket);
    ck_assert(!is_readable(world.fd, 20));
    close_world(&world);
}
END_TEST

START_TEST(without_a_daemon_it_is_readable_until_a_reconnect)
{
    int fd;
    struct world world = open_world();
    fake_stop(&fake);
    ck_assert(is_readable(world.fd, SHORT_MS));
    ck_assert_int_ne(aule_session_reconnect(world.session), AULE_OK);
    ck_assert(is_readable(world.fd, 0));
    fake_start(&fake, path, answer, NULL);
    ck_assert_int_eq(aule_session_reconnect(world.session), AULE_OK);
    ck_assert(!is_readable(world.fd, 0));
    ck_assert_int_eq(aule_session_fd(world.session, &fd), AULE_OK);
    ck_assert_int_eq(fd, world.fd);
    struct aule_cache *cache = open_cache(world.session);
    struct aule_batch *batch = create_batch(cache);
    script.ended = 1;
    struct aule_ticket ticket = submit_one(batch);
    ck_assert(is_readable(world.fd, SHORT_MS));
    reap(&world, ticket);
    ck_assert(!is_readable(world.fd, 20));
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    close_world(&world);
}
END_TEST

static int count_entries(const char *directory)
{
    DIR *list = opendir(directory);
    int count = 0;
    while (readdir(list))
        count++;
    closedir(list);
    return count;
}

START_TEST(it_needs_no_thread_and_leaves_nothing)
{
    int descriptors = count_entries("/proc/self/fd"), threads = count_entries("/proc/self/task");
    struct world world = open_world();
    submit_one(world.batch);
    ck_assert_int_le(count_entries("/proc/self/task"), threads + 1); // the connection's reader
    close_world(&world);                                             // with a request under way
    for (int i = 0; i < SHORT_MS && count_entries("/proc/self/fd") > descriptors; i++)
        usleep(1000); // the fake, in the same process, closes its end of the connection
    ck_assert_int_eq(count_entries("/proc/self/fd"), descriptors);
}
END_TEST

START_TEST(of_several_tickets_the_oldest_ends_first)
{
    struct aule_ticket tickets[3];
    uint32_t index = 9;
    script.ended = 3;
    struct world world = open_world();
    for (int i = 0; i < 3; i++)
        tickets[2 - i] = submit_one(world.batch);
    for (uint32_t i = 3; i-- > 0;) {
        ck_assert_int_eq(aule_wait_any(world.session, tickets, i + 1, SHORT_MS, &index, NULL),
                         AULE_OK);
        ck_assert_uint_eq(index, i);
    }
    ck_assert(!is_readable(world.fd, 20));
    expect(aule_wait_any(world.session, tickets, 0, 0, &index, NULL), AULE_INVALID,
           "num_tickets is 0");
    close_world(&world);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("a session's descriptor");
    check_case(suite, "fd", open_script, close_script,
               (const TTest *const[]){it_is_readable_while_an_ended_ticket_is_not_reaped,
                                      one_request_at_a_time_serves_any_number_of_tickets,
                                      a_session_that_never_asked_sends_nothing,
                                      without_a_daemon_it_is_readable_until_a_reconnect,
                                      it_needs_no_thread_and_leaves_nothing,
                                      of_several_tickets_the_oldest_ends_first, NULL},
               1);
    check_case(suite, "answers", open_script, close_script,
               (const TTest *const[]){
                   without_an_answer_that_helps_it_is_readable_while_a_ticket_is_open, NULL},
               4);
    return check_main(suite);
}
