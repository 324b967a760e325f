// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_server_listener.c - only the server's listener, with bare connections: requests that are cut
// or too large, answers that are not read, connections that ask nothing, the places of users, and
// allocations that fail, those of nng too.
// Time is given to listener_expire(), so no test waits for a time-out. No device, no sessions.

#include "base/clock.h"
#include "fakes/failing_memory.h"
#include "rigs/check_main.h"
#include "rigs/raw_client.h"
#include "server/listener.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEADLINE_MS = 100000, MAX_MESSAGE = 1 << 20, MAX_REPLIES = 320, MAX_BYTES = 4 << 20 };
enum { IDLE_S = 300, REQUEST_S = 30 };

static char folder[64], path[96];
static struct listener *listener;
static char no_session; // stands for a session of a peer

static void open_listener(void)
{
    struct error error;
    strcpy(folder, "/tmp/aule-listener-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/s", folder);
    const struct listener_params params = {.path = path,
                                           .max_connections = 8,
                                           .max_message = MAX_MESSAGE,
                                           .max_bytes = MAX_BYTES,
                                           .idle_ns = IDLE_S * NS_PER_S};
    ck_assert_msg(listener_open(&params, &listener, &error) == STATUS_OK, "%s", error.text);
}

static void close_listener(void)
{
    listener_close(listener);
    ck_assert_msg(rmdir(folder) == 0, "a file of the listener is left");
}

// Takes what has come until a request is there.
static struct message await_message(void)
{
    struct message message;
    struct pollfd ready = {.fd = listener_fd(listener), .events = POLLIN};
    do
        ck_assert_int_eq(poll(&ready, 1, DEADLINE_MS), 1);
    while (!listener_receive(listener, &message));
    return message;
}

// The next event, which must be of this kind. No request may come meanwhile.
static struct peer *await_event(bool removed)
{
    struct message message;
    struct peer *peer;
    bool was_removed;
    struct pollfd ready = {.fd = listener_fd(listener), .events = POLLIN};
    while (!listener_next_event(listener, &peer, &was_removed)) {
        ck_assert_int_eq(poll(&ready, 1, DEADLINE_MS), 1);
        ck_assert(!listener_receive(listener, &message));
    }
    ck_assert_int_eq(was_removed, removed);
    return peer;
}

// bare_connect() waits for the greeting, which only the listener sends; here both are one thread.
// One request goes through, so the listener has taken the greeting.
static int connect_to(const char *socket, struct peer **peer)
{
    static const uint8_t greeting[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    uint8_t answer[8];
    int fd = bare_connect(socket, false);
    *peer = await_event(false);
    ck_assert_int_eq(send(fd, greeting, sizeof greeting, MSG_NOSIGNAL), sizeof greeting);
    ck_assert_int_eq(recv(fd, answer, sizeof answer, MSG_WAITALL), sizeof answer);
    ck_assert_uint_eq(answer[5], 0x31);
    ck_assert(bare_send(fd, "ask", 4, 99));
    struct message message = await_message();
    ck_assert_ptr_eq(message.peer, *peer);
    message_finish(&message);
    return fd;
}

static int connect_peer(struct peer **peer)
{
    return connect_to(path, peer);
}

// Takes what has come, which is no request.
static void settle_for(int quiet_ms)
{
    struct message message;
    struct pollfd ready = {.fd = listener_fd(listener), .events = POLLIN};
    while (poll(&ready, 1, quiet_ms) == 1)
        ck_assert(!listener_receive(listener, &message));
}

static void settle(void)
{
    settle_for(20);
}

static void expire_in(int seconds)
{
    settle();
    listener_expire(listener, clock_now_ns() + seconds * NS_PER_S);
}

// The peer that ends because so many seconds have passed. The bytes that were sent may take a
// moment to come.
static struct peer *expire_one(int seconds)
{
    struct peer *peer;
    bool removed;
    do
        expire_in(seconds);
    while (!listener_next_event(listener, &peer, &removed));
    ck_assert(removed);
    return peer;
}

// What the listener said when it closed the connection.
static void expect_parting(int fd, enum status status, const char *words)
{
    static _Alignas(8) uint8_t message[4096];
    uint8_t head[13];
    struct wire_reply reply;
    struct error error;
    ck_assert_int_eq(recv(fd, head, sizeof head, MSG_WAITALL), sizeof head);
    const uint32_t number = (uint32_t)head[11] << 8 | head[12];
    ck_assert_uint_eq(number, 0);
    const ssize_t size = recv(fd, message, sizeof message, MSG_WAITALL);
    ck_assert_int_gt(size, 0);
    ck_assert_int_eq(wire_decode_reply(message, (size_t)size, &reply, &error), STATUS_OK);
    ck_assert_int_eq(reply.status, status);
    ck_assert_msg(strstr(reply.message, words), "%s", reply.message);
    ck_assert_int_eq(recv(fd, head, sizeof head, 0), 0);
}

// ---- requests ----

// A head that claims `size` bytes of a message.
static void send_head(int fd, uint32_t size)
{
    const uint32_t length = size + 4;
    const uint8_t head[13] = {1,
                              0,
                              0,
                              0,
                              0,
                              (uint8_t)(length >> 24),
                              (uint8_t)(length >> 16),
                              (uint8_t)(length >> 8),
                              (uint8_t)length,
                              0x80,
                              0,
                              0,
                              7};
    ck_assert_int_eq(send(fd, head, sizeof head, MSG_NOSIGNAL), sizeof head);
}

START_TEST(a_request_that_is_not_whole_in_time_ends_its_connection_with_a_reason)
{
    struct peer *peer, *idle;
    int fd = connect_peer(&peer), other = connect_peer(&idle);
    send_head(fd, 100);
    expire_in(REQUEST_S - 1);
    ck_assert_ptr_eq(expire_one(REQUEST_S + 1), peer);
    expect_parting(fd, STATUS_TIMEOUT, "a request did not come whole within 30 s");
    listener_forget(listener, peer);
    close(fd);
    close(other);
}
END_TEST

START_TEST(a_peer_that_does_not_greet_is_hung_up_on)
{
    int fd = bare_connect(path, false);
    struct peer *peer = await_event(false);
    uint8_t greeting[8];
    ck_assert_ptr_eq(expire_one(11), peer);
    ck_assert_int_eq(recv(fd, greeting, sizeof greeting, MSG_WAITALL), sizeof greeting);
    expect_parting(fd, STATUS_TIMEOUT, "a greeting did not come whole within 10 s");
    close(fd);
}
END_TEST

START_TEST(a_connection_without_a_session_that_asks_nothing_is_closed_and_told_the_option)
{
    struct peer *asks, *idle, *works;
    int asking = connect_peer(&asks), silent = connect_peer(&idle), worker = connect_peer(&works);
    works->session = &no_session;
    settle();
    asks->active_ns += 2 * NS_PER_S;
    ck_assert_ptr_eq(expire_one(IDLE_S + 1), idle);
    expect_parting(silent, STATUS_NO_SESSION, "(--idle-timeout)");
    listener_forget(listener, idle);
    ck_assert(bare_send(asking, "ask", 4, 1));
    struct message message = await_message();
    ck_assert_ptr_eq(message.peer, asks);
    message_finish(&message);
    ck_assert_ptr_eq(expire_one(10 * IDLE_S), asks);
    listener_forget(listener, asks);
    struct peer *none;
    bool removed;
    ck_assert(!listener_next_event(listener, &none, &removed));
    close(asking);
    close(silent);
    close(worker);
}
END_TEST

// As after a pause of the daemon: the bytes had come in time.
START_TEST(time_in_which_the_daemon_did_not_read_does_not_count)
{
    struct peer *peer;
    int fd = connect_peer(&peer);
    settle();
    ck_assert(bare_send(fd, "ask", 4, 1));
    listener_expire(listener, clock_now_ns() + 10 * IDLE_S * NS_PER_S);
    struct message message = await_message();
    ck_assert_ptr_eq(message.peer, peer);
    message_finish(&message);
    close(fd);
}
END_TEST

START_TEST(without_a_session_a_large_request_is_dropped_and_can_be_answered)
{
    static const uint8_t large[100000];
    struct peer *peer;
    int fd = connect_peer(&peer);
    for (int session = 0; session < 2; session++) {
        peer->session = session ? &no_session : NULL;
        ck_assert(bare_send(fd, large, sizeof large, 5));
        struct message message = await_message();
        ck_assert_uint_eq(message.size, sizeof large);
        ck_assert_int_eq(message.data != NULL, session);
        message_finish(&message);
    }
    close(fd);
}
END_TEST

// Each claims a MiB and sends none of it; the limit is four.
START_TEST(requests_that_are_not_whole_share_one_limit)
{
    enum { NUM = 5 };
    struct peer *peers[NUM];
    int fds[NUM];
    for (int i = 0; i < NUM; i++) {
        fds[i] = connect_peer(&peers[i]);
        peers[i]->session = &no_session;
    }
    for (int i = 0; i < NUM; i++)
        send_head(fds[i], MAX_MESSAGE);
    struct peer *ended = await_event(true);
    int which = 0;
    while (which < NUM - 1 && peers[which] != ended)
        which++;
    ck_assert_ptr_eq(peers[which], ended);
    expect_parting(fds[which], STATUS_LIMIT, "exceed --max-message-memory 4194304");
    listener_forget(listener, ended);
    for (int i = 0; i < NUM; i++)
        close(fds[i]);
}
END_TEST

// ---- answers that are not read ----

// So large that a socket takes only a few of the frames, each of which names the request and its
// size.
enum { ANSWER_BYTES = 4096, FRAME_BYTES = 13 + ANSWER_BYTES };
static const uint8_t answer[ANSWER_BYTES];

// Takes one request. Returns what is needed to answer it.
static struct route ask(int fd, uint32_t id)
{
    ck_assert(bare_send(fd, "ask", 4, id));
    struct message message = await_message();
    struct route route = message.route;
    message_finish(&message);
    return route;
}

// Lets the listener send what it has kept.
static void read_answer(int fd, uint32_t id)
{
    uint8_t frame[FRAME_BYTES];
    for (size_t got = 0; got < sizeof frame;) {
        ssize_t count = recv(fd, frame + got, sizeof frame - got, MSG_DONTWAIT);
        ck_assert_msg(count > 0 || (count < 0 && errno == EAGAIN), "answer %u did not come", id);
        got += count > 0 ? (size_t)count : 0;
        settle_for(0);
    }
    ck_assert_uint_eq((uint32_t)frame[11] << 8 | frame[12], id);
}

START_TEST(of_all_that_waits_for_one_peer_every_answer_comes_though_all_are_given_at_once)
{
    struct route routes[MAX_REPLIES];
    struct peer *peer;
    int fd = connect_peer(&peer);
    for (uint32_t i = 0; i < MAX_REPLIES; i++)
        routes[i] = ask(fd, i);
    for (uint32_t i = 0; i < MAX_REPLIES; i++)
        ck_assert(listener_reply(listener, &routes[i], answer, sizeof answer));
    for (uint32_t i = 0; i < MAX_REPLIES; i++)
        read_answer(fd, i);
    close(fd);
}
END_TEST

START_TEST(a_peer_that_does_not_read_its_answers_is_not_read_until_it_does)
{
    static uint8_t large[1 << 20];
    struct peer *peer;
    int fd = connect_peer(&peer);
    struct route route = ask(fd, 1);
    ck_assert(listener_reply(listener, &route, large, sizeof large));
    ck_assert(bare_send(fd, "ask", 4, 2));
    settle(); // asserts that no request came
    for (size_t got = 0; got < sizeof large + 13;) {
        ssize_t count =
            recv(fd, large,
                 sizeof large + 13 - got < sizeof large ? sizeof large + 13 - got : sizeof large,
                 MSG_DONTWAIT);
        got += count > 0 ? (size_t)count : 0;
        struct message message;
        if (count <= 0 && listener_receive(listener, &message)) {
            ck_assert_uint_eq(message.route.number & 0xffff, 2);
            message_finish(&message);
            close(fd);
            return;
        }
    }
    struct message message = await_message();
    ck_assert_uint_eq(message.route.number & 0xffff, 2);
    message_finish(&message);
    close(fd);
}
END_TEST

START_TEST(answers_that_are_not_read_share_one_limit_and_the_others_live)
{
    static const uint8_t large[65536];
    struct peer *deaf_peer, *other_peer;
    int deaf = connect_peer(&deaf_peer), other = connect_peer(&other_peer);
    struct route route = ask(deaf, 1);
    for (size_t given = 0; given < 2 * MAX_BYTES; given += sizeof large)
        ck_assert(listener_reply(listener, &route, large, sizeof large));
    route = ask(other, 2);
    ck_assert(listener_reply(listener, &route, answer, sizeof answer));
    read_answer(other, 2);
    ck_assert_ptr_eq(await_event(true), deaf_peer);
    listener_forget(listener, deaf_peer);
    close(deaf);
    close(other);
}
END_TEST

// ---- allocations that fail ----

// Opens a listener whose n-th allocation fails. False: there was no n-th.
static bool open_failing(uint64_t n, struct error *error)
{
    const struct listener_params params = {.path = path,
                                           .max_connections = 8,
                                           .max_message = MAX_MESSAGE,
                                           .max_bytes = MAX_BYTES,
                                           .idle_ns = IDLE_S * NS_PER_S};
    listener = NULL;
    failing_countdown = n;
    enum status status = listener_open(&params, &listener, error);
    const bool failed = failing_countdown == 0;
    failing_countdown = 0;
    ck_assert_int_eq(status == STATUS_OK, listener != NULL);
    return failed;
}

START_TEST(an_allocation_that_fails_at_the_start_is_told_or_made_good)
{
    struct error error;
    listener_close(listener);
    for (uint64_t n = 1; open_failing(n, &error); n++) {
        struct peer *peer;
        if (listener)
            close(connect_peer(&peer));
        else
            ck_assert_msg(error.text[0], "allocation %d failed without a sentence", (int)n);
        listener_close(listener);
    }
}
END_TEST

// Where nng is not repaired, its own threads accept, and their allocations do not fail here.
START_TEST(an_allocation_that_fails_for_a_connection_ends_that_connection_alone)
{
    struct peer *peer, *other;
    int fd = connect_peer(&peer);
    for (uint64_t n = 1; n < 12; n++) {
        struct pollfd ready = {.fd = listener_fd(listener), .events = POLLIN};
        struct message message;
        bool removed, given = false;
        int late = bare_connect(path, false);
        while (poll(&ready, 1, 20) == 1 && !given) {
            failing_countdown = n;
            given = listener_receive(listener, &message);
            failing_countdown = 0;
        }
        ck_assert(!given);
        close(late);
        settle();
        while (listener_next_event(listener, &other, &removed))
            if (removed)
                listener_forget(listener, other);
        ck_assert(bare_send(fd, "ask", 4, 7));
        message = await_message();
        ck_assert_ptr_eq(message.peer, peer);
        message_finish(&message);
    }
    close(fd);
}
END_TEST

START_TEST(a_session_that_reads_none_of_its_answers_is_closed_in_time)
{
    static const uint8_t large[1 << 20];
    struct peer *peer;
    int fd = connect_peer(&peer);
    peer->session = &no_session;
    struct route route = ask(fd, 1);
    ck_assert(listener_reply(listener, &route, large, sizeof large));
    ck_assert_ptr_eq(expire_one(IDLE_S + 1), peer);
    listener_forget(listener, peer);
    close(fd);
}
END_TEST

// The peer has hung up before its answers come.
START_TEST(nothing_wakes_the_caller_after_a_connection_has_gone)
{
    struct peer *peer;
    int fd = connect_peer(&peer);
    const struct route first = ask(fd, 1), second = ask(fd, 2);
    close(fd);
    (void)listener_reply(listener, &first, answer, sizeof answer);
    (void)listener_reply(listener, &second, answer, sizeof answer);
    ck_assert_ptr_eq(await_event(true), peer);
    listener_forget(listener, peer);
    settle();
    struct pollfd ready = {.fd = listener_fd(listener), .events = POLLIN};
    ck_assert_int_eq(poll(&ready, 1, 0), 0);
}
END_TEST

// Its sentence finds no room behind an answer. If it counted, less than nothing would be held then,
// and the next request that comes in two parts would be the worst.
START_TEST(a_sentence_to_a_peer_that_does_not_read_counts_for_nobody)
{
    enum { IN_PART = 100 };
    struct peer *deaf_peer, *peer;
    int deaf = connect_peer(&deaf_peer), fd = connect_peer(&peer);
    peer->session = deaf_peer->session = &no_session;
    for (uint32_t i = 0; i < 80; i++) { // a socket takes some 200 KiB
        struct route route = ask(deaf, i);
        ck_assert(listener_reply(listener, &route, answer, sizeof answer));
        settle_for(0);
    }
    ck_assert_ptr_eq(expire_one(IDLE_S + 1), deaf_peer);
    listener_forget(listener, deaf_peer);
    const uint8_t half[IN_PART / 2] = {0};
    send_head(fd, IN_PART);
    ck_assert_int_eq(send(fd, half, sizeof half, MSG_NOSIGNAL), sizeof half);
    settle();
    ck_assert_int_eq(send(fd, half, sizeof half, MSG_NOSIGNAL), sizeof half);
    struct message message = await_message();
    ck_assert_ptr_eq(message.peer, peer);
    message_finish(&message);
    close(deaf);
    close(fd);
}
END_TEST

// ---- the control socket ----

START_TEST(the_control_socket_has_places_of_its_own_and_only_its_user_may_open_it)
{
    char control[128];
    struct stat info;
    int fds[20];
    snprintf(control, sizeof control, "%s.control", path);
    ck_assert_int_eq(stat(control, &info), 0);
    ck_assert_int_eq(info.st_mode & 07777, 0600);
    for (int i = 0; i < 20; i++)
        fds[i] = bare_connect(path, false);
    settle();
    int fd = bare_connect(control, false);
    struct peer *peer;
    do
        peer = await_event(false);
    while (!peer->by_control);
    ck_assert_ptr_null(peer->refusal);
    close(fd);
    for (int i = 0; i < 20; i++)
        close(fds[i]);
}
END_TEST

// Its order may have been done. Without the answer its client would not know.
START_TEST(a_full_control_socket_gives_up_no_connection_that_has_answers_to_read)
{
    enum { PLACES = 32 };
    static const uint8_t large[1 << 20];
    struct peer *peers[PLACES];
    int fds[PLACES + 1];
    char control[128];
    snprintf(control, sizeof control, "%s.control", path);
    fds[0] = connect_to(control, &peers[0]);
    struct route route = ask(fds[0], 1);
    ck_assert(listener_reply(listener, &route, large, sizeof large));
    for (int i = 1; i < PLACES; i++)
        fds[i] = connect_to(control, &peers[i]);
    fds[PLACES] = bare_connect(control, false);
    ck_assert_ptr_eq(await_event(true), peers[1]);
    expect_parting(fds[1], STATUS_NO_SESSION, "another operator");
    listener_forget(listener, peers[1]);
    ck_assert(!await_event(false)->refusal);
    for (int i = 0; i <= PLACES; i++)
        close(fds[i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server, listener");
    check_case(suite, "requests", open_listener, close_listener,
               (const TTest *const[]){
                   a_request_that_is_not_whole_in_time_ends_its_connection_with_a_reason,
                   a_peer_that_does_not_greet_is_hung_up_on,
                   a_connection_without_a_session_that_asks_nothing_is_closed_and_told_the_option,
                   time_in_which_the_daemon_did_not_read_does_not_count,
                   without_a_session_a_large_request_is_dropped_and_can_be_answered,
                   requests_that_are_not_whole_share_one_limit, NULL},
               1);
    check_case(suite, "answers", open_listener, close_listener,
               (const TTest *const[]){
                   of_all_that_waits_for_one_peer_every_answer_comes_though_all_are_given_at_once,
                   a_peer_that_does_not_read_its_answers_is_not_read_until_it_does,
                   answers_that_are_not_read_share_one_limit_and_the_others_live,
                   a_session_that_reads_none_of_its_answers_is_closed_in_time,
                   nothing_wakes_the_caller_after_a_connection_has_gone,
                   a_sentence_to_a_peer_that_does_not_read_counts_for_nobody, NULL},
               1);
    check_case(suite, "memory", open_listener, close_listener,
               (const TTest *const[]){
                   an_allocation_that_fails_at_the_start_is_told_or_made_good,
                   an_allocation_that_fails_for_a_connection_ends_that_connection_alone, NULL},
               1);
    check_case(suite, "control", open_listener, close_listener,
               (const TTest *const[]){
                   the_control_socket_has_places_of_its_own_and_only_its_user_may_open_it,
                   a_full_control_socket_gives_up_no_connection_that_has_answers_to_read, NULL},
               1);
    return check_main(suite);
}
