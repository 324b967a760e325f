// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_daemon_connections.c - connections to a real aule-daemon that are too many, cut off, never
// read, or another user's. After each attempt a correct client must still be served, and the daemon
// must still end with 0.

#include "rigs/check_main.h"
#include "rigs/hostile_world.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

// ---- connections ----

START_TEST(hundreds_that_connect_and_close_do_not_stop_the_listener)
{
    start(NULL);
    for (int i = 0; i < 300; i++)
        close(bare_connect(daemon_.socket, false));
    check_served();
    stop_clean();
}
END_TEST

START_TEST(a_thousand_connections_leave_descriptors_flat)
{
    start(NULL);
    check_served();
    for (int i = 0; i < DEADLINE_S * 10 && count_fds(daemon_.pid) == 0; i++)
        nap();
    close(bare_connect(daemon_.socket, true));
    nap();
    int before = count_fds(daemon_.pid);
    for (int i = 0; i < 1000; i++)
        close(bare_connect(daemon_.socket, i % 2));
    int after = count_fds(daemon_.pid);
    for (int i = 0; i < DEADLINE_S * 100 && after > before; i++, after = count_fds(daemon_.pid))
        nap();
    ck_assert_int_le(after, before);
    check_served();
    stop_clean();
}
END_TEST

// The answer to a Hello on a new connection.
static int greet_once(char *message, size_t room)
{
    struct raw_client *raw = raw_open(daemon_.socket);
    struct wire_reply reply;
    raw_hello(raw, 0, &reply);
    int status = reply.status;
    snprintf(message, room, "%s", reply.message);
    raw_close(raw);
    return status;
}

START_TEST(a_connection_too_many_is_told_the_option_until_another_goes)
{
    char message[200];
    struct raw_client *first, *second;
    start((const char *const[]){"--max-connections", "2", NULL});
    first = raw_session(daemon_.socket, ARENA);
    second = raw_session(daemon_.socket, ARENA);
    ck_assert_int_eq(greet_once(message, sizeof message), STATUS_LIMIT);
    ck_assert_str_eq(message, "the daemon has 2 connections already; --max-connections is 2");
    for (int i = 0; i < DEADLINE_S * 100 && !daemon_log_contains_now(&daemon_, message); i++)
        nap();
    ck_assert(daemon_log_contains(&daemon_, message));
    ck_assert_int_eq(raw_metric(second, "aule_refused_connections_total"), 1);
    raw_close(first);
    int status = STATUS_LIMIT;
    for (int i = 0; i < DEADLINE_S && status == STATUS_LIMIT; i++) {
        if (i > 0)
            sleep(1); // waits until refused connections are gone: those beyond the limit get no
                      // answer
        status = greet_once(message, sizeof message);
    }
    ck_assert_msg(status == STATUS_OK, "%s", message);
    ck_assert_uint_ge(raw_inspect(second).num_sessions, 1);
    raw_close(second);
    stop_clean();
}
END_TEST

START_TEST(connections_far_beyond_the_limit_are_closed_at_once_and_the_log_names_the_option)
{
    enum { HELD = 40 };
    static const uint8_t greeting[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    int fds[HELD];
    memset(fds, -1, sizeof fds);
    start((const char *const[]){"--max-connections", "1", NULL});
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    for (int i = 0; i < DEADLINE_S * 100 && !daemon_log_contains_now(&daemon_, "closed at once");
         i++) {
        int *fd = &fds[i % HELD];
        if (*fd >= 0)
            close(*fd);
        *fd = bare_connect(daemon_.socket, false);
        send(*fd, greeting, sizeof greeting, MSG_NOSIGNAL);
        if (i >= HELD)
            nap();
    }
    ck_assert(daemon_log_contains(&daemon_, "closed at once, the last one because the daemon has 1 "
                                            "connections already; --max-connections is 1"));
    ck_assert_int_ge(raw_metric(raw, "aule_refused_connections_total"), 1);
    ck_assert_uint_eq(raw_inspect(raw).num_sessions, 1);
    raw_close(raw);
    for (int i = 0; i < HELD; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    stop_clean();
}
END_TEST

START_TEST(a_header_that_claims_a_huge_length_harms_nobody)
{
    static const uint8_t lengths[][8] = {
        {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
        {0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
        {0, 0, 0x40, 0, 0, 0, 0, 0},
        {0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff},
        {0, 0, 0, 0, 0x10, 0, 0, 0},
        {0, 0, 0, 0, 0, 0, 0, 0},
    };
    start(NULL);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        uint8_t header[9] = {1};
        int fd = bare_connect(daemon_.socket, true);
        memcpy(header + 1, lengths[i], 8);
        ck_assert_int_eq(send(fd, header, sizeof header, MSG_NOSIGNAL), sizeof header);
        nap();
        close(fd);
    }
    check_served();
    stop_clean();
}
END_TEST

START_TEST(a_message_cut_off_by_the_end_of_its_connection_is_forgotten)
{
    start(NULL);
    for (size_t size = 1; size < 13; size++) {
        static const uint8_t header[13] = {1, 0, 0, 0, 0, 0, 0, 0, 100, 0x80, 0, 0, 1};
        int fd = bare_connect(daemon_.socket, true);
        ck_assert_int_eq(send(fd, header, size, MSG_NOSIGNAL), (ssize_t)size);
        close(fd);
    }
    check_served();
    stop_clean();
}
END_TEST

static uint64_t resident_pages(pid_t pid)
{
    char path[64];
    unsigned long long total = 0, resident = 0;
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    FILE *file = fopen(path, "re");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%llu %llu", &total, &resident), 2);
    fclose(file);
    return resident;
}

enum { MANY_BLOCKS = 16384, PAGE_BYTES = 8192 };

// Bounds what a client may make the daemon keep: as many pages as may wait for it, and malloc's
// overhead. Sanitizers keep freed memory, too.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { UNREAD_PAGES = (512 << 20) / 4096 };
#else
enum { UNREAD_PAGES = (16 << 20) / 4096 };
#endif

// A cache of MANY_BLOCKS blocks, all leased.
static uint64_t fill_pool(struct raw_client *raw)
{
    struct wire_reply reply;
    uint64_t cache = open_cache(raw, "shared");
    const struct wire_request lease = {.command = WIRE_COMMAND_BLOCKS_LEASE,
                                       .blocks_lease = {cache, MANY_BLOCKS, 60000}};
    raw_call(raw, &lease, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "BlocksLease: %s", reply.message);
    return cache;
}

START_TEST(a_list_comes_in_small_pages_and_whole)
{
    start((const char *const[]){"--max-blocks", "16384", NULL});
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    struct wire_request request = {.command = WIRE_COMMAND_INSPECT_BLOCKS,
                                   .inspect_blocks = {fill_pool(raw), 0, 0}};
    struct wire_reply reply;
    uint32_t *first = &request.inspect_blocks.first, count;
    do {
        raw_call(raw, &request, &reply);
        ck_assert_int_eq(reply.status, STATUS_OK);
        ck_assert_uint_eq(reply.inspect_blocks.total, MANY_BLOCKS);
        count = reply.inspect_blocks.blocks.count;
        ck_assert_uint_le(count * sizeof(struct wire_block_state), PAGE_BYTES);
        for (uint32_t i = 0; i < count; i++)
            ck_assert_int_eq(reply.inspect_blocks.blocks.data[i].block, (int32_t)(*first + i));
        *first += count;
        wire_reply_finish(&reply);
    } while (count > 0);
    ck_assert_uint_eq(*first, MANY_BLOCKS);
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(a_client_that_never_reads_its_replies_delays_no_other)
{
    struct wire_buffer buffer;
    struct error error;
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    const struct wire_request request = {.command = WIRE_COMMAND_INSPECT_BLOCKS,
                                         .inspect_blocks = {fill_pool(raw), 0, 0}};
    ck_assert_int_eq(wire_encode_request(&request, &buffer, &error), STATUS_OK);
    check_served();
    uint64_t before = resident_pages(daemon_.pid);
    int fd = bare_connect(daemon_.socket, true);
    for (uint32_t i = 0; i < 2000; i++)
        bare_send(fd, buffer.data, buffer.size,
                  i + 1); // the daemon may stop accepting more
    wire_buffer_finish(&buffer);
    check_served();
    ck_assert_uint_lt(resident_pages(daemon_.pid), before + UNREAD_PAGES);
    close(fd);
    raw_close(raw);
    stop_clean();
}
END_TEST

// ---- another user ----

enum { NOBODY = 65534 };

static void call_as_nobody(const char *socket_path)
{
    struct raw_client *raw;
    struct wire_reply reply;
    if (setgid(NOBODY) != 0 || setuid(NOBODY) != 0)
        _exit(10);
    raw = raw_open(socket_path);
    raw->one_socket = true;
    for (int i = 0; i < 3; i++) {
        const struct wire_request requests[] = {
            {.command = WIRE_COMMAND_PING},
            {.command = WIRE_COMMAND_HELLO, .hello = {WIRE_PROTOCOL_MAJOR, 0, "nobody", "", 0}},
            {.command = WIRE_COMMAND_KILL_SESSION, .kill_session = {1}},
        };
        raw_call(raw, &requests[i], &reply);
        if (reply.status != STATUS_DENIED || !strstr(reply.message, "uid 0") ||
            !strstr(reply.message, "uid 65534"))
            _exit(11);
    }
    _exit(0);
}

START_TEST(another_user_is_denied_with_both_ids_and_hung_up_on)
{
    int status;
    start(NULL);
    ck_assert_int_eq(chmod(daemon_.folder, 0711),
                     0); // an operator would have to do this before the test is possible
    ck_assert_int_eq(chmod(daemon_.socket, 0666), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        call_as_nobody(daemon_.socket);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    ck_assert_uint_eq(raw_inspect(raw).num_sessions, 1);
    raw_close(raw);
    stop_clean();
}
END_TEST

static void stay_as_nobody(const char *socket_path)
{
    char reason[512];
    if (setgid(NOBODY) != 0 || setuid(NOBODY) != 0)
        _exit(10);
    int fd = bare_connect(socket_path, true);
    // The daemon closes the connection by itself, with a reason.
    ssize_t size = recv(fd, reason, sizeof reason, MSG_WAITALL);
    _exit(size > 0 && memmem(reason, (size_t)size, "has uid 65534", 13) ? 0 : 12);
}

START_TEST(another_user_cannot_keep_a_connection)
{
    int status;
    start(NULL);
    ck_assert_int_eq(chmod(daemon_.folder, 0711), 0);
    ck_assert_int_eq(chmod(daemon_.socket, 0666), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        stay_as_nobody(daemon_.socket);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
    stop_clean();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("daemon, connections");
    suite_add(suite, "connections",
              (const TTest *const[]){
                  hundreds_that_connect_and_close_do_not_stop_the_listener,
                  a_thousand_connections_leave_descriptors_flat,
                  a_connection_too_many_is_told_the_option_until_another_goes,
                  connections_far_beyond_the_limit_are_closed_at_once_and_the_log_names_the_option,
                  a_header_that_claims_a_huge_length_harms_nobody,
                  a_message_cut_off_by_the_end_of_its_connection_is_forgotten,
                  a_list_comes_in_small_pages_and_whole,
                  a_client_that_never_reads_its_replies_delays_no_other, NULL},
              1);
    if (geteuid() == 0)
        suite_add(suite, "another user",
                  (const TTest *const[]){another_user_is_denied_with_both_ids_and_hung_up_on,
                                         another_user_cannot_keep_a_connection, NULL},
                  1);
    else
        fprintf(stderr, "not root: nobody else can be impersonated, so the tests of another user "
                        "are left out\n");
    return check_main(suite);
}
