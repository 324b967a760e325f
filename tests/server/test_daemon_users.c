// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_daemon_users.c - several users of one aule-daemon with --tenant: strangers, whom it does not
// serve, guests, who are members of a group, and operators. None takes the places of others, and a
// guest is told nothing of others. Connections are bare, because nng does not survive a fork. Only
// root can become other users.

#include "rigs/check_main.h"
#include "rigs/daemon_suite.h"
#include "rigs/raw_client.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STRANGER = 64010, GUEST = 64002, TEAM_GID = 64003, OTHER_GUEST = 64020, MANY = 120 };
#define GROUPS                                                                                     \
    "--tenant", "team=uid:64002,gid:64003,blocks:100", "--tenant", "solo=uid:64020,sessions:5"

// Other users must reach the socket, as an operator with --tenant lets them.
static void start_for_all(const char *const *options)
{
    start(options);
    ck_assert_int_eq(chmod(daemon_.folder, 0755), 0);
}

static void become(uid_t uid, gid_t gid)
{
    if (setgid(gid) != 0 || setuid(uid) != 0)
        _exit(99);
}

// ---- a bare client ----

struct bare {
    int fd;
    uint64_t session, epoch;
    uint64_t message[WIRE_MAX_MESSAGE / 8];
    struct wire_reply reply; // points into `message`
};

static bool receive(int fd, void *to, size_t size)
{
    return recv(fd, to, size, MSG_WAITALL) == (ssize_t)size;
}

// The next frame's number; -1: the connection is over.
static int64_t read_frame(struct bare *bare)
{
    uint8_t head[13];
    struct error error;
    if (!receive(bare->fd, head, sizeof head))
        return -1;
    const size_t size = ((size_t)head[6] << 16 | (size_t)head[7] << 8 | head[8]) - 4;
    if (!receive(bare->fd, bare->message, size) ||
        wire_decode_reply(bare->message, size, &bare->reply, &error) != STATUS_OK)
        return -1;
    return head[12];
}

static void open_bare(struct bare *bare, const char *suffix)
{
    static const uint8_t greeting[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0};
    uint8_t theirs[8];
    char path[160];
    *bare = (struct bare){.fd = -1};
    snprintf(path, sizeof path, "%s%s", daemon_.socket, suffix);
    bare->fd = bare_connect(path, false);
    // A connection that is closed at once takes no greeting, but has the daemon's, and a reason.
    (void)!send(bare->fd, greeting, sizeof greeting, MSG_NOSIGNAL);
    ck_assert(receive(bare->fd, theirs, sizeof theirs));
}

static void close_bare(struct bare *bare)
{
    wire_reply_finish(&bare->reply);
    close(bare->fd);
}

static enum status ask(struct bare *bare, const struct wire_request *request)
{
    struct wire_buffer buffer;
    struct error error;
    struct wire_request whole = *request;
    wire_reply_finish(&bare->reply);
    whole.session = bare->session;
    whole.epoch = bare->epoch;
    ck_assert_int_eq(wire_encode_request(&whole, &buffer, &error), STATUS_OK);
    bare_send(bare->fd, buffer.data, buffer.size, 1);
    wire_buffer_finish(&buffer);
    // A refused connection is only told why, in a frame that answers no request.
    return read_frame(bare) < 0 ? STATUS_DAEMON_GONE : (enum status)bare->reply.status;
}

static enum status open_session(struct bare *bare)
{
    open_bare(bare, "");
    const struct wire_request hello = {
        .command = WIRE_COMMAND_HELLO,
        .hello = {WIRE_PROTOCOL_MAJOR, WIRE_PROTOCOL_MINOR, "bare", "", 65536}};
    enum status status = ask(bare, &hello);
    if (status != STATUS_OK)
        return status;
    bare->session = bare->reply.hello.session;
    bare->epoch = bare->reply.hello.epoch;
    return ask(bare, &(struct wire_request){.command = WIRE_COMMAND_MAPPED});
}

// A user in a process of its own, which stays as it is until finish_user().
struct user {
    pid_t pid;
    int said, go_on; // pipes
};

static struct user start_user(uid_t uid, gid_t gid, int (*act)(void))
{
    int said[2], go_on[2];
    ck_assert_int_eq(pipe(said), 0);
    ck_assert_int_eq(pipe(go_on), 0);
    fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        char byte;
        close(go_on[1]);
        become(uid, gid);
        int result = act();
        if (write(said[1], &result, sizeof result) != sizeof result)
            _exit(98);
        _exit(read(go_on[0], &byte, 1) != 1);
    }
    close(said[1]);
    close(go_on[0]);
    return (struct user){pid, said[0], go_on[1]};
}

static int result_of(const struct user *user)
{
    int result = -1;
    ck_assert_int_eq(read(user->said, &result, sizeof result), sizeof result);
    return result;
}

static void finish_user(struct user *user)
{
    int status;
    ck_assert_int_eq(write(user->go_on, "", 1), 1);
    close(user->said);
    close(user->go_on);
    ck_assert_int_eq(waitpid(user->pid, &status, 0), user->pid);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
}

static int result_as(uid_t uid, gid_t gid, int (*act)(void))
{
    struct user user = start_user(uid, gid, act);
    const int result = result_of(&user);
    finish_user(&user);
    return result;
}

// ---- what users do ----

// How many of MANY connections, which stay, are told that this user is not served.
static int flood_as_stranger(void)
{
    static struct bare bare[MANY];
    int told = 0;
    for (int i = 0; i < MANY; i++) {
        open_bare(&bare[i], "");
        const enum status status =
            ask(&bare[i], &(struct wire_request){.command = WIRE_COMMAND_PING});
        told += status == STATUS_DENIED && strstr(bare[i].reply.message, "has uid 64010");
    }
    return told;
}

// How many of MANY connections, which stay, may ping. The others must be told a limit.
static int flood_as_guest(void)
{
    static struct bare bare[MANY];
    int served = 0;
    for (int i = 0; i < MANY; i++) {
        open_bare(&bare[i], "");
        const enum status status =
            ask(&bare[i], &(struct wire_request){.command = WIRE_COMMAND_PING});
        if (status != STATUS_OK &&
            (status != STATUS_LIMIT || !strstr(bare[i].reply.message, "--max-connections is 64")))
            return -1;
        served += status == STATUS_OK;
    }
    return served;
}

// How many sessions, which stay.
static int open_sessions(void)
{
    static struct bare bare[MANY];
    int count = 0;
    for (int i = 0; i < 20 && open_session(&bare[i]) == STATUS_OK; i++)
        count++;
    if (bare[count].reply.status != STATUS_LIMIT ||
        !strstr(bare[count].reply.message, "--max-sessions is 8") ||
        !strstr(bare[count].reply.message, "--tenant-share"))
        return -1;
    return count;
}

static int open_one_session(void)
{
    static struct bare bare;
    return (int)open_session(&bare);
}

// ---- places ----

START_TEST(strangers_take_no_place_and_each_is_told_why)
{
    start_for_all((const char *const[]){GROUPS, "--max-connections", "16", NULL});
    struct user stranger = start_user(STRANGER, STRANGER, flood_as_stranger);
    ck_assert_int_eq(result_of(&stranger), MANY);
    static struct bare workers[5], control;
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(open_session(&workers[i]), STATUS_OK);
    ck_assert_int_eq(result_as(GUEST, GUEST, open_one_session), STATUS_OK);
    open_bare(&control, ".control");
    ck_assert_int_eq(ask(&control, &(struct wire_request){.command = WIRE_COMMAND_METRICS}),
                     STATUS_OK);
    finish_user(&stranger);
    for (int i = 0; i < 5; i++)
        close_bare(&workers[i]);
    close_bare(&control);
    stop_clean();
}
END_TEST

// Of 64: the team has 48, three quarters; so one of its users 36, the next one 9 of the 12 that are
// left, and the third one 2. Another group has three quarters of the 17 that the team leaves.
START_TEST(a_guest_takes_a_part_of_the_connections_and_others_go_on)
{
    start_for_all((const char *const[]){GROUPS, "--max-connections", "64", NULL});
    struct user first = start_user(GUEST, GUEST, flood_as_guest);
    ck_assert_int_eq(result_of(&first), 36);
    struct user second = start_user(64005, TEAM_GID, flood_as_guest);
    ck_assert_int_eq(result_of(&second), 9);
    struct user third = start_user(64006, TEAM_GID, flood_as_guest);
    ck_assert_int_eq(result_of(&third), 2);
    struct user solo = start_user(OTHER_GUEST, OTHER_GUEST, flood_as_guest);
    ck_assert_int_eq(result_of(&solo), 12);
    static struct bare workers[4];
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(open_session(&workers[i]), STATUS_OK);
    struct user *users[] = {&first, &second, &third, &solo};
    for (int i = 0; i < 4; i++) {
        finish_user(users[i]);
        close_bare(&workers[i]);
    }
    stop_clean();
}
END_TEST

// Of 8: the team has 6, one of its users 4; the spec of the other group says 5.
START_TEST(a_guest_takes_a_part_of_the_sessions_and_others_go_on)
{
    start_for_all((const char *const[]){GROUPS, "--max-sessions", "8", NULL});
    struct user first = start_user(GUEST, GUEST, open_sessions);
    ck_assert_int_eq(result_of(&first), 4);
    struct user solo = start_user(OTHER_GUEST, OTHER_GUEST, open_one_session);
    ck_assert_int_eq(result_of(&solo), STATUS_OK);
    static struct bare workers[3];
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(open_session(&workers[i]), STATUS_OK);
    finish_user(&first);
    finish_user(&solo);
    for (int i = 0; i < 3; i++)
        close_bare(&workers[i]);
    stop_clean();
}
END_TEST

static void call_exports(uid_t uid, enum status expected, const char *words)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct wire_export_answer answer = {.status = 0};
    snprintf(address.sun_path, sizeof address.sun_path, "%s.export", daemon_.socket);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int fds[MANY], last = -1;
        become(uid, uid);
        for (int i = 0; i < MANY && answer.status == 0; i++) {
            last = fds[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
            if (connect(fds[i], (struct sockaddr *)&address, sizeof address) != 0)
                _exit(2);
            usleep(1000);
            recv(last, &answer, sizeof answer, MSG_DONTWAIT);
        }
        recv(last, &answer, sizeof answer, 0);
        _exit(answer.status == (int32_t)expected && strstr(answer.message, words) ? 0 : 3);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
}

// A stranger's connection used to wait for two seconds in a place.
START_TEST(the_export_socket_refuses_strangers_at_once_and_guests_above_their_part)
{
    char path[160];
    start_for_all((const char *const[]){GROUPS, "--max-connections", "128", NULL});
    snprintf(path, sizeof path, "%s.export", daemon_.socket);
    if (access(path, F_OK) == 0) { // the device exports memory
        call_exports(STRANGER, STATUS_DENIED, "has uid 64010");
        call_exports(GUEST, STATUS_LIMIT, "a sixteenth of --max-connections is 8");
    }
    stop_clean();
}
END_TEST

// ---- what is served to whom ----

static unsigned rules_of(int command)
{
    return wire_command_rules((enum wire_command)command);
}

static bool needs_no_session(int command)
{
    return rules_of(command) & WIRE_NO_SESSION && command != WIRE_COMMAND_HELLO &&
           command != WIRE_COMMAND_PING;
}

// 0: every command that looks at others or changes them is denied, without a word of others.
static int look_around(void)
{
    struct bare *bare = calloc(1, sizeof *bare);
    if (!bare || open_session(bare) != STATUS_OK)
        return 1000;
    for (int command = 1; command < WIRE_COMMAND_COUNT; command++) {
        if (!needs_no_session(command))
            continue;
        if (ask(bare, &(struct wire_request){.command = (enum wire_command)command}) !=
                STATUS_DENIED ||
            !strstr(
                bare->reply.message,
                "only uid 0 and root may look at what is of others, or change it; the caller has "
                "uid 64002"))
            return command;
    }
    return 0;
}

START_TEST(a_guest_lists_and_changes_nothing_of_others)
{
    start_for_all((const char *const[]){GROUPS, NULL});
    ck_assert_int_eq(result_as(GUEST, GUEST, look_around), 0);
    stop_clean();
}
END_TEST

static int open_control(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s.control", daemon_.socket);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return connect(fd, (struct sockaddr *)&address, sizeof address) == 0 ? 1 : 0;
}

START_TEST(what_changes_others_is_served_only_on_the_control_socket)
{
    static struct bare worker, control;
    int num_control = 0;
    start_for_all((const char *const[]){GROUPS, NULL});
    ck_assert_int_eq(open_session(&worker), STATUS_OK);
    open_bare(&control, ".control");
    for (int command = 1; command < WIRE_COMMAND_COUNT; command++) {
        const struct wire_request request = {.command = (enum wire_command)command};
        if (!needs_no_session(command))
            continue;
        const bool by_control = rules_of(command) & WIRE_BY_CONTROL;
        num_control += by_control;
        const enum status status = ask(&worker, &request);
        ck_assert_msg((status == STATUS_DENIED) == by_control, "%s: %s",
                      wire_command_name(request.command), worker.reply.message);
        ck_assert(!by_control || strstr(worker.reply.message, "0.sock.control"));
        ck_assert_int_ne(ask(&control, &request), STATUS_DENIED);
    }
    ck_assert_int_eq(num_control, 6);
    const struct wire_request end = {.command = WIRE_COMMAND_KILL_SESSION,
                                     .kill_session.session = worker.session};
    ck_assert_int_eq(ask(&worker, &end), STATUS_DENIED);
    ck_assert_int_eq(ask(&control, &end), STATUS_OK);
    const struct wire_request hello = {.command = WIRE_COMMAND_HELLO,
                                       .hello = {WIRE_PROTOCOL_MAJOR, 0, "bare", "", 0}};
    ck_assert_int_eq(ask(&control, &hello), STATUS_DENIED);
    ck_assert_ptr_nonnull(strstr(control.reply.message, "the control socket has no sessions"));
    ck_assert_int_eq(result_as(GUEST, GUEST, open_control), 0);
    ck_assert_int_eq(result_as(0, 0, open_control), 1);
    close_bare(&worker);
    close_bare(&control);
    stop_clean();
}
END_TEST

START_TEST(the_control_socket_works_while_workers_have_all_places)
{
    static struct bare worker, refused, control;
    start((const char *const[]){"--max-connections", "1", NULL});
    ck_assert_int_eq(open_session(&worker), STATUS_OK);
    ck_assert_int_eq(open_session(&refused), STATUS_LIMIT);
    open_bare(&control, ".control");
    const struct wire_request end = {.command = WIRE_COMMAND_KILL_SESSION,
                                     .kill_session.session = worker.session};
    ck_assert_int_eq(ask(&control, &end), STATUS_OK);
    close_bare(&worker);
    close_bare(&refused);
    close_bare(&control);
    stop_clean();
}
END_TEST

START_TEST(requests_that_are_not_whole_keep_no_operator_off_the_control_socket)
{
    enum { HALVES = 40 };
    static const uint8_t head[9] = {1, [8] = 100}; // of a request that does not come
    static struct bare control;
    int fds[HALVES];
    char path[160];
    start(NULL);
    snprintf(path, sizeof path, "%s.control", daemon_.socket);
    for (int i = 0; i < HALVES; i++) {
        fds[i] = bare_connect(path, true);
        ck_assert_int_eq(send(fds[i], head, sizeof head, MSG_NOSIGNAL), sizeof head);
    }
    open_bare(&control, ".control");
    const struct wire_request drop = {.command = WIRE_COMMAND_DROP_CACHE,
                                      .drop_cache = {.cache = 1}};
    ck_assert_int_eq(ask(&control, &drop), STATUS_NOT_FOUND);
    close_bare(&control);
    for (int i = 0; i < HALVES; i++)
        close(fds[i]);
    stop_clean();
}
END_TEST

// ---- what a guest is told of a pool that it shares ----

static enum status open_cache_of(struct bare *bare)
{
    static const uint8_t fingerprint[4] = {1, 2, 3, 4};
    const struct wire_request open = {.command = WIRE_COMMAND_CACHE_OPEN,
                                      .cache_open = {.name = "model",
                                                     .num_layers = 1,
                                                     .num_kv_heads = 1,
                                                     .head_dim_k = 8,
                                                     .head_dim_v = 8,
                                                     .k_dtype = DTYPE_F32,
                                                     .v_dtype = DTYPE_F32,
                                                     .block_size = 8,
                                                     .fingerprint = {fingerprint, 4}}};
    return ask(bare, &open);
}

static enum status lease_of(struct bare *bare, uint64_t cache, uint32_t count)
{
    const struct wire_request lease = {
        .command = WIRE_COMMAND_BLOCKS_LEASE,
        .blocks_lease = {.cache = cache, .count = count, .timeout_ms = 5000}};
    return ask(bare, &lease);
}

// 0: the guest reads its own counts, and what it could get.
static int count_as_guest(void)
{
    struct bare *bare = calloc(1, sizeof *bare);
    if (!bare || open_session(bare) != STATUS_OK || open_cache_of(bare) != STATUS_OK)
        return 1;
    const uint64_t cache = bare->reply.cache_open.cache;
    if (lease_of(bare, cache, 3) != STATUS_OK)
        return 2;
    const struct wire_request state = {.command = WIRE_COMMAND_CACHE_STATE,
                                       .cache_state.cache = cache};
    if (ask(bare, &state) != STATUS_OK)
        return 3;
    const struct wire_cache_state_reply *counts = &bare->reply.cache_state;
    if (counts->leased_blocks != 3 || counts->held_blocks || counts->cached_blocks ||
        counts->total_blocks != counts->free_blocks + 3)
        return 4;
    if (lease_of(bare, cache, 60) != STATUS_NO_BLOCKS)
        return 5;
    if (strstr(bare->reply.message, "free of") ||
        !strstr(bare->reply.message, "tenant \"team\" could get"))
        return 6;
    return 0;
}

START_TEST(a_guest_reads_no_count_of_blocks_of_others)
{
    static struct bare worker;
    start_for_all((const char *const[]){GROUPS, "--max-blocks", "64", NULL});
    ck_assert_int_eq(open_session(&worker), STATUS_OK);
    ck_assert_int_eq(open_cache_of(&worker), STATUS_OK);
    ck_assert_int_eq(lease_of(&worker, worker.reply.cache_open.cache, 20), STATUS_OK);
    ck_assert_int_eq(result_as(GUEST, GUEST, count_as_guest), 0);
    close_bare(&worker);
    stop_clean();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("daemon, users");
    if (geteuid() != 0) {
        fprintf(stderr, "not root: no other user can be impersonated\n");
        return 77;
    }
    suite_add(suite, "users",
              (const TTest *const[]){
                  strangers_take_no_place_and_each_is_told_why,
                  a_guest_takes_a_part_of_the_connections_and_others_go_on,
                  a_guest_takes_a_part_of_the_sessions_and_others_go_on,
                  the_export_socket_refuses_strangers_at_once_and_guests_above_their_part,
                  a_guest_lists_and_changes_nothing_of_others,
                  what_changes_others_is_served_only_on_the_control_socket,
                  the_control_socket_works_while_workers_have_all_places,
                  requests_that_are_not_whole_keep_no_operator_off_the_control_socket,
                  a_guest_reads_no_count_of_blocks_of_others, NULL},
              1);
    return check_main(suite);
}
