// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_server_listener.c - only the server's listener, with bare connections: a connection that the
// daemon closes while requests arrive, and answers that their peer does not read. No device, no
// sessions.

#include "rigs/check_main.h"
#include "rigs/raw_client.h"
#include "server/listener.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROUNDS = 400, DEADLINE_MS = 100000, MAX_MESSAGE = 65536, MAX_REPLIES = 320 };

static char folder[64], path[96];
static struct listener *listener;
static int wake_fd;

static void open_listener(void)
{
    struct error error;
    strcpy(folder, "/tmp/aule-listener-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/s", folder);
    wake_fd = eventfd(0, EFD_CLOEXEC);
    const struct listener_params params = {.path = path,
                                           .max_connections = 8,
                                           .max_replies = MAX_REPLIES,
                                           .max_message = MAX_MESSAGE,
                                           .wake_fd = wake_fd};
    ck_assert_int_eq(listener_open(&params, &listener, &error), STATUS_OK);
}

static void close_listener(void)
{
    listener_close(listener);
    close(wake_fd);
    rmdir(folder);
}

// The next event, which must be of this kind. Messages stay queued.
static struct peer *await_event(bool removed)
{
    struct peer *peer;
    bool was_removed;
    while (!listener_next_event(listener, &peer, &was_removed)) {
        struct pollfd fd = {.fd = wake_fd, .events = POLLIN};
        uint64_t count;
        ck_assert_msg(poll(&fd, 1, DEADLINE_MS) == 1,
                      "a connection that was hung up is not gone after %d ms", DEADLINE_MS);
        ck_assert_int_eq(read(wake_fd, &count, sizeof count), sizeof count);
    }
    ck_assert_int_eq(was_removed, removed);
    return peer;
}

// Answers them; meanwhile the connection may be closed.
static void take_messages(int count)
{
    while (count) {
        struct message message;
        struct pollfd fd = {.fd = listener_fd(listener), .events = POLLIN};
        ck_assert_int_eq(poll(&fd, 1, DEADLINE_MS), 1);
        if (!listener_receive(listener, &message))
            continue;
        ck_assert(listener_reply(listener, &message.route, "an answer", 10));
        message_finish(&message);
        count--;
    }
}

// Waits until the other end is closed.
static void *pour(void *context)
{
    const uint8_t payload[16] = {0};
    const int fd = *(const int *)context;
    struct pollfd writable = {.fd = fd, .events = POLLOUT};
    for (uint32_t i = 0;; i++) {
        poll(&writable, 1, DEADLINE_MS);
        if (!bare_send(fd, payload, sizeof payload, i) && writable.revents & (POLLERR | POLLHUP))
            return NULL;
    }
}

START_TEST(a_connection_that_is_hung_up_between_a_messages_head_and_its_body_is_gone_all_the_same)
{
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t thread;
        int fd = bare_connect(path, true);
        struct peer *peer = await_event(false);
        ck_assert_int_eq(pthread_create(&thread, NULL, pour, &fd), 0);
        take_messages(1 + round % 7);
        listener_hang_up(listener, peer);
        ck_assert_ptr_eq(await_event(true), peer);
        listener_forget(listener, peer);
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        close(fd);
    }
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
    struct message message;
    struct pollfd readable = {.fd = listener_fd(listener), .events = POLLIN};
    ck_assert(bare_send(fd, "ask", 4, id));
    do
        ck_assert_int_eq(poll(&readable, 1, DEADLINE_MS), 1);
    while (!listener_receive(listener, &message));
    struct route route = message.route;
    message_finish(&message);
    return route;
}

static void read_answer(int fd, uint32_t id)
{
    const struct timeval deadline = {.tv_sec = DEADLINE_MS / 1000};
    uint8_t frame[FRAME_BYTES];
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline), 0);
    ck_assert_msg(recv(fd, frame, sizeof frame, MSG_WAITALL) == sizeof frame,
                  "answer %u did not come", id);
    ck_assert_uint_eq((uint32_t)frame[11] << 8 | frame[12], id);
}

START_TEST(of_all_that_waits_for_one_peer_every_answer_comes_though_all_are_given_at_once)
{
    struct route routes[MAX_REPLIES];
    int fd = bare_connect(path, true);
    await_event(false);
    for (uint32_t i = 0; i < MAX_REPLIES; i++)
        routes[i] = ask(fd, i);
    for (uint32_t i = 0; i < MAX_REPLIES; i++)
        ck_assert(listener_reply(listener, &routes[i], answer, sizeof answer));
    for (uint32_t i = 0; i < MAX_REPLIES; i++)
        read_answer(fd, i);
    close(fd);
}
END_TEST

START_TEST(a_peer_that_never_reads_keeps_nobody_elses_answer)
{
    int deaf = bare_connect(path, true), other = bare_connect(path, true);
    struct route route = ask(deaf, 1);
    for (int i = 0; i < 10 * MAX_REPLIES; i++)
        ck_assert(listener_reply(listener, &route, answer, sizeof answer));
    route = ask(other, 2);
    ck_assert(listener_reply(listener, &route, answer, sizeof answer));
    read_answer(other, 2);
    close(deaf);
    close(other);
}
END_TEST

// Counts bytes until none arrives for a while.
static size_t read_all(int fd)
{
    const struct timeval pause = {.tv_sec = 1};
    static uint8_t bytes[1 << 20];
    size_t sum = 0;
    ssize_t got;
    ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &pause, sizeof pause), 0);
    while ((got = recv(fd, bytes, sizeof bytes, 0)) > 0)
        sum += (size_t)got;
    return sum;
}

// nng keeps 64; the socket and the layers between keep some more.
START_TEST(large_answers_to_a_peer_that_does_not_read_are_kept_to_a_bound)
{
    static const uint8_t large[65536];
    int deaf = bare_connect(path, true), other = bare_connect(path, true);
    struct route route = ask(deaf, 1);
    for (int i = 0; i < MAX_REPLIES; i++)
        ck_assert(listener_reply(listener, &route, large, sizeof large));
    route = ask(other, 2);
    ck_assert(listener_reply(listener, &route, answer, sizeof answer));
    read_answer(
        other,
        2); // nng moves answers in order, so all for the deaf client are kept or dropped by now
    size_t came = read_all(deaf);
    ck_assert_uint_gt(came, 0);
    ck_assert_uint_le(came, 80 * sizeof large);
    close(deaf);
    close(other);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server, listener");
    check_case(
        suite, "hang up", open_listener, close_listener,
        (const TTest *const[]){
            a_connection_that_is_hung_up_between_a_messages_head_and_its_body_is_gone_all_the_same,
            NULL},
        1);
    check_case(suite, "answers", open_listener, close_listener,
               (const TTest *const[]){
                   of_all_that_waits_for_one_peer_every_answer_comes_though_all_are_given_at_once,
                   a_peer_that_never_reads_keeps_nobody_elses_answer,
                   large_answers_to_a_peer_that_does_not_read_are_kept_to_a_bound, NULL},
               1);
    return check_main(suite);
}
