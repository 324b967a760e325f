// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_opening.c - how the client library opens a session: what it makes of a daemon that is
// not there, broken or of another version, and of too little to open one with. Each test is a
// process of its own with a fake daemon in it.

#include "rigs/client_world.h"

#include <fcntl.h>
#include <nng/nng.h>
#include <nng/protocol/pubsub0/pub.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void expect_open(enum aule_status expected, const char *words)
{
    struct aule_session *session = NULL;
    struct aule_session_params params = params_of(SHORT_MS);
    ck_assert_str_eq(aule_status_name(aule_session_open(&params, &session)),
                     aule_status_name(expected));
    ck_assert_ptr_null(session);
    ck_assert_msg(strstr(aule_error(), words) != NULL, "\"%s\" lacks \"%s\"", aule_error(), words);
}

// These words tell a client that waits for a daemon whether one can come.
static void expect_words_first(const char *words)
{
    ck_assert_msg(strncmp(aule_error(), words, strlen(words)) == 0, "\"%s\"", aule_error());
}

START_TEST(nobody_listening_is_told_at_once)
{
    expect_open(AULE_DAEMON_GONE, path);
    expect_open(AULE_DAEMON_GONE, "there is no such socket; aule-daemon --socket /");
    expect_words_first("no daemon listens at /");
}
END_TEST

START_TEST(a_socket_that_a_daemon_left_behind_is_told_from_none)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
    expect_open(AULE_DAEMON_GONE, "the daemon that made it has ended");
    expect_words_first("no daemon listens at /");
    unlink(path);
}
END_TEST

START_TEST(a_file_at_the_path_is_no_daemon_and_stays)
{
    struct stat info;
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    ck_assert_int_ge(fd, 0);
    close(fd);
    expect_open(AULE_DAEMON_GONE, "this is another file, no socket, and a daemon leaves it alone");
    expect_words_first("no daemon can listen at /");
    ck_assert_int_eq(stat(path, &info), 0);
}
END_TEST

START_TEST(a_folder_at_the_path_is_no_place_where_a_daemon_is_advised)
{
    ck_assert_int_eq(mkdir(path, 0700), 0);
    expect_open(AULE_DAEMON_GONE, "this is a folder, no socket, and a daemon leaves it alone");
    expect_words_first("no daemon can listen at /");
    ck_assert_ptr_null(strstr(aule_error(), "starts one"));
    ck_assert_int_eq(rmdir(path), 0);
}
END_TEST

START_TEST(a_daemon_that_never_greets_runs_into_the_timeout)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(fd, 4), 0);
    expect_open(AULE_TIMEOUT, SHORT_TEXT);
    struct aule_monitor *monitor;
    ck_assert_int_eq(aule_monitor_open(path, SHORT_MS, &monitor), AULE_TIMEOUT);
    close(fd);
}
END_TEST

// However little time there is.
START_TEST(what_is_no_daemon_is_told_and_not_waited_for)
{
    enum { ATTEMPTS = 100 };
    struct aule_monitor *monitor = NULL;
    for (int i = 0; i < ATTEMPTS; i++) {
        ck_assert_int_eq(aule_monitor_open(path, 1, &monitor), AULE_DAEMON_GONE);
        ck_assert_msg(strstr(aule_error(), "there is no such socket") != NULL, "%s", aule_error());
    }
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    expect_open(AULE_DAEMON_GONE, "that socket takes datagrams and no connections");
    expect_words_first("no daemon can listen at /");
    close(fd);
    unlink(path);
}
END_TEST

START_TEST(a_socket_of_packets_is_no_place_where_a_daemon_is_advised)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(fd, 4), 0);
    expect_open(AULE_DAEMON_GONE, "that socket takes packets and no streams");
    expect_words_first("no daemon can listen at /");
    close(fd);
    unlink(path);
}
END_TEST

START_TEST(a_peer_of_another_protocol_is_no_daemon)
{
    char url[160];
    nng_socket other;
    snprintf(url, sizeof url, "ipc://%s", path);
    ck_assert_int_eq(nng_pub0_open(&other), 0);
    ck_assert_int_eq(nng_listen(other, url, NULL, 0), 0);
    expect_open(AULE_DAEMON_GONE, "is no daemon");
    expect_words_first("no daemon can listen at /");
    nng_close(other);
}
END_TEST

START_TEST(a_timeout_that_is_none_is_refused)
{
    struct aule_session *session = NULL;
    struct aule_session_params params = params_of(-5);
    expect(aule_session_open(&params, &session), AULE_INVALID, "-5");
}
END_TEST

struct hello_case {
    const char *name;
    void (*change)(struct fake_daemon *fake, struct wire_reply *reply);
    enum fake_action action;
    enum aule_status status;
    const char *words;
};

static void other_major(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)daemon;
    reply->hello.major = 9;
}

static void refused_version(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)daemon;
    reply->status = STATUS_VERSION;
    reply->message = "protocol 1.0 is not mine, 9.3";
    reply->answer = WIRE_ANSWER_EMPTY;
}

static void refused_user(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)daemon;
    reply->status = STATUS_DENIED;
    reply->message = "uid 12 is not uid 34";
    reply->answer = WIRE_ANSWER_EMPTY;
}

static void other_kind(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)daemon;
    reply->answer = WIRE_ANSWER_EMPTY;
}

static void unknown_status(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)daemon;
    reply->status = 4711;
    reply->message = "from the future";
    reply->answer = WIRE_ANSWER_EMPTY;
}

static void missing_segment(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)daemon;
    reply->hello.segment_name = "/aule-nowhere";
}

static void foreign_segment(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)daemon;
    reply->hello.segment_name = "/other-things";
}

static void escaping_segment(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)daemon;
    reply->hello.segment_name = "/aule-/../../etc/passwd";
}

static void other_size(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)daemon;
    reply->hello.segment_size += WIRE_PAGE;
}

static void arena_past_the_end(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)daemon;
    reply->hello.arena_size = UINT64_MAX - 4096;
}

static void other_magic(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)reply;
    ((struct wire_segment_header *)daemon->segment)->magic = 0x656c7562;
}

static void other_layout_version(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)reply;
    ((struct wire_segment_header *)daemon->segment)->version = 77;
}

static void other_session(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)reply;
    ((struct wire_segment_header *)daemon->segment)->session = 4242;
}

static void other_arena(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)reply;
    ((struct wire_segment_header *)daemon->segment)->arena_size = 12288;
}

static void offer_rings(struct wire_reply *reply, uint32_t entry_size)
{
    reply->hello.ring_entries = 4;
    reply->hello.ring_entry_size = entry_size;
    reply->hello.doorbell = "nobody.bell";
    reply->hello.submission_ring_offset = WIRE_PAGE;
    reply->hello.completion_ring_offset = 3 * WIRE_PAGE;
}

static void rings_without_room(struct fake_daemon *daemon, struct wire_reply *reply)
{
    (void)daemon;
    offer_rings(reply, WIRE_SUBMISSION_SIZE);
}

static const struct hello_case hello_cases[] = {
    {"other major", other_major, FAKE_ANSWER, AULE_VERSION, "protocol 9."},
    {"refused version", refused_version, FAKE_ANSWER, AULE_VERSION,
     "protocol 1.0 is not mine, 9.3"},
    {"refused user", refused_user, FAKE_ANSWER, AULE_DENIED, "uid 12 is not uid 34"},
    {"other kind", other_kind, FAKE_ANSWER, AULE_MALFORMED, "HELLO"},
    {"unknown status", unknown_status, FAKE_ANSWER, AULE_MALFORMED, "4711"},
    {"garbage", NULL, FAKE_GARBAGE, AULE_MALFORMED, "HELLO"},
    {"silence", NULL, FAKE_SILENCE, AULE_TIMEOUT, "HELLO " SHORT_TEXT},
    {"hang up", NULL, FAKE_HANG_UP, AULE_DAEMON_GONE, path},
    {"missing segment", missing_segment, FAKE_ANSWER, AULE_DAEMON_GONE, "/aule-nowhere"},
    {"foreign segment", foreign_segment, FAKE_ANSWER, AULE_MISMATCH, "/other-things"},
    {"escaping segment", escaping_segment, FAKE_ANSWER, AULE_MISMATCH, "/aule-/../../etc/passwd"},
    {"other size", other_size, FAKE_ANSWER, AULE_MISMATCH, "4202496"},
    {"arena past the end", arena_past_the_end, FAKE_ANSWER, AULE_MISMATCH, "18446744073709547519"},
    {"other magic", other_magic, FAKE_ANSWER, AULE_MISMATCH, "0x656c7562"},
    {"other layout version", other_layout_version, FAKE_ANSWER, AULE_MISMATCH, "version 77"},
    {"other session", other_session, FAKE_ANSWER, AULE_MISMATCH, "4242"},
    {"other arena", other_arena, FAKE_ANSWER, AULE_MISMATCH, "12288"},
    {"rings without room", rings_without_room, FAKE_ANSWER, AULE_MISMATCH,
     "rings of 4 entries at 4096 and 12288"},
};
enum { NUM_HELLO_CASES = sizeof hello_cases / sizeof *hello_cases };

static enum fake_action spoil_hello(struct fake_daemon *daemon, const struct wire_request *request,
                                    struct wire_reply *reply)
{
    const struct hello_case *it = daemon->context;
    if (request->command != WIRE_COMMAND_HELLO)
        return FAKE_ANSWER;
    if (it->change)
        it->change(daemon, reply);
    return it->action;
}

START_TEST(a_greeting_that_is_wrong_is_refused_with_its_values)
{
    const struct hello_case *it = &hello_cases[_i];
    fake_start(&fake, path, spoil_hello, (void *)it);
    expect_open(it->status, it->words);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_MAPPED]), 0);
}
END_TEST

static enum fake_action offer_other_rings(struct fake_daemon *daemon,
                                          const struct wire_request *request,
                                          struct wire_reply *reply)
{
    (void)daemon;
    if (request->command == WIRE_COMMAND_HELLO)
        offer_rings(reply, 448);
    return FAKE_ANSWER;
}

// As a daemon of another version would have them.
START_TEST(rings_of_other_entries_are_left_alone)
{
    struct aule_session_info info;
    fake_start(&fake, path, offer_other_rings, NULL);
    struct aule_session *session = open_session(0);
    ok(aule_session_info(session, &info));
    ck_assert_uint_eq(info.ring_entries, 0);
    aule_session_close(session);
    setenv("AULE_LANE", "ring", 1);
    expect_open(AULE_VERSION, "entries of 448 bytes");
}
END_TEST

enum { HANDSHAKE_MS = 2000, HELLO_MS = 1200, MAPPED_MS = 1800 };

static enum fake_action slow_handshake(struct fake_daemon *daemon,
                                       const struct wire_request *request, struct wire_reply *reply)
{
    int ms = 0;
    if (request->command == WIRE_COMMAND_HELLO)
        ms = HELLO_MS;
    else if (request->command == WIRE_COMMAND_MAPPED)
        ms = MAPPED_MS;
    (void)daemon;
    (void)reply;
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L}, NULL);
    return FAKE_ANSWER;
}

// Each of them is in time, both are not; and the client is gone long before the second answer
// comes.
START_TEST(the_steps_of_a_handshake_share_one_timeout)
{
    struct aule_session *session = NULL;
    struct aule_session_params params = params_of(HANDSHAKE_MS);
    fake_start(&fake, path, slow_handshake, NULL);
    expect(aule_session_open(&params, &session), AULE_TIMEOUT, "within 2000 ms");
    ck_assert_ptr_null(session);
}
END_TEST

static enum fake_action tell_a_small_message(struct fake_daemon *daemon,
                                             const struct wire_request *request,
                                             struct wire_reply *reply)
{
    (void)daemon;
    if (request->command == WIRE_COMMAND_HELLO)
        reply->hello.max_message = 100;
    return FAKE_ANSWER;
}

START_TEST(a_message_too_small_for_any_block_takes_none)
{
    int32_t block;
    fake_start(&fake, path, tell_a_small_message, NULL);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    expect(aule_blocks_lease(cache, 1, 0, &block), AULE_LIMIT, "100 bytes holds 0");
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// A process of its own that may open no descriptor above `limit`; it opens a session, and tells by
// its exit code.
static int open_with_descriptors(rlim_t limit)
{
    pid_t child = fork(); // before this process has a session
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        const struct rlimit few = {.rlim_cur = limit, .rlim_max = limit};
        struct aule_session *session = NULL;
        struct aule_session_params params = params_of(0);
        if (setrlimit(RLIMIT_NOFILE, &few) != 0)
            _exit(100);
        enum aule_status status = aule_session_open(&params, &session);
        if (status == AULE_NO_MEMORY && !strstr(aule_error(), "ulimit -n"))
            _exit(101);
        aule_session_close(session);
        _exit((int)status);
    }
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status), "the child's status is 0x%x", (unsigned)status);
    return WEXITSTATUS(status);
}

// From none to enough: the socket, the segment, the lane's bell.
START_TEST(too_few_descriptors_are_no_memory_and_the_limit_is_named)
{
    int status = AULE_NO_MEMORY;
    unsigned refused = 0;
    int ends[2];
    char byte;
    ck_assert_int_eq(pipe(ends), 0);
    pid_t server = fork(); // nng works in one process of a family only
    ck_assert_int_ge(server, 0);
    if (server == 0) {
        close(ends[1]);
        fake_start(&fake, path, NULL, NULL);
        while (read(ends[0], &byte, 1) > 0) // until the test ends, in whatever way
            continue;
        fake_stop(&fake);
        _exit(0);
    }
    close(ends[0]);
    for (int i = 0; i < DEADLINE_S * 1000 && access(path, F_OK) != 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    for (rlim_t limit = 4; limit < 64 && status != AULE_OK; limit++) {
        status = open_with_descriptors(limit);
        refused += status == AULE_NO_MEMORY;
        ck_assert_msg(status == AULE_OK || status == AULE_NO_MEMORY, "limit %u gives %d, %s",
                      (unsigned)limit, status, aule_status_name((enum aule_status)status));
    }
    ck_assert_int_eq(status, AULE_OK);
    ck_assert_uint_gt(refused, 3);
    close(ends[1]);
    ck_assert_int_eq(waitpid(server, &status, 0), server);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the server's status is 0x%x",
                  (unsigned)status);
}
END_TEST

START_TEST(a_session_tells_what_the_handshake_said)
{
    struct aule_session_info info;
    fake_start(&fake, path, NULL, NULL);
    struct aule_session *session = open_session(0);
    ck_assert_int_eq(aule_session_info(session, &info), AULE_OK);
    ck_assert_uint_eq(info.epoch, fake.epoch);
    ck_assert_uint_eq(info.arena_size, FAKE_ARENA);
    ck_assert_uint_eq(info.max_tickets, 4);
    ck_assert_str_eq(info.device_name, "fake");
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_MAPPED]), 1);
    aule_session_close(session);
    wait_until_seen(WIRE_COMMAND_CLOSE_SESSION, 1); // the library does not wait for ever
}
END_TEST

START_TEST(a_socket_from_the_environment_is_found)
{
    struct aule_session *session = NULL;
    fake_start(&fake, path, NULL, NULL);
    setenv("AULE_RUNTIME_DIR", folder, 1);
    ck_assert_int_eq(aule_session_open(NULL, &session), AULE_OK);
    aule_session_close(session);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client_opening");
    add(suite, "opening",
        (const struct entry[]){
            {nobody_listening_is_told_at_once, 0},
            {a_socket_that_a_daemon_left_behind_is_told_from_none, 0},
            {a_file_at_the_path_is_no_daemon_and_stays, 0},
            {a_folder_at_the_path_is_no_place_where_a_daemon_is_advised, 0},
            {a_daemon_that_never_greets_runs_into_the_timeout, 0},
            {what_is_no_daemon_is_told_and_not_waited_for, 0},
            {a_socket_of_packets_is_no_place_where_a_daemon_is_advised, 0},
            {a_peer_of_another_protocol_is_no_daemon, 0},
            {a_timeout_that_is_none_is_refused, 0},
            {a_greeting_that_is_wrong_is_refused_with_its_values, NUM_HELLO_CASES},
            {rings_of_other_entries_are_left_alone, 0},
            {the_steps_of_a_handshake_share_one_timeout, 0},
            {a_message_too_small_for_any_block_takes_none, 0},
            {too_few_descriptors_are_no_memory_and_the_limit_is_named, 0},
            {a_session_tells_what_the_handshake_said, 0},
            {a_socket_from_the_environment_is_found, 0},
            {NULL, 0},
        });
    return check_main(suite);
}
