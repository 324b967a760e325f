// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_daemon_exports.c - device arenas of a real aule-daemon, and its export socket, which also
// hears from hostile clients. Another process imports the memory.

#include "rigs/check_main.h"
#include "rigs/dice.h"
#include "rigs/hostile_world.h"
#include "rigs/importer.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEVICE_ARENA = 1 << 20 };

// ---- the export socket ----

static int export_connect(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s.export", daemon_.socket);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_msg(connect(fd, (struct sockaddr *)&address, sizeof address) == 0, "%s: %s",
                  address.sun_path, strerror(errno));
    return fd;
}

// Reads the answer and closes the connection. Returns its status, -1 if there is none. *fd is the
// descriptor, or -1.
static int take_answer(int peer, char message[252], int *fd)
{
    struct wire_export_answer answer;
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof *fd)];
    struct iovec bytes = {&answer, sizeof answer};
    struct msghdr header = {.msg_iov = &bytes,
                            .msg_iovlen = 1,
                            .msg_control = control,
                            .msg_controllen = sizeof control};
    ssize_t size = recvmsg(peer, &header, MSG_CMSG_CLOEXEC);
    const struct cmsghdr *first = CMSG_FIRSTHDR(&header);
    close(peer);
    *fd = -1;
    if (size <= 0)
        return -1;
    ck_assert_int_eq(size, sizeof answer);
    memcpy(message, answer.message, sizeof answer.message);
    ck_assert_int_eq(message[sizeof answer.message - 1], 0);
    if (first)
        memcpy(fd, CMSG_DATA(first), sizeof *fd);
    ck_assert_int_eq(first != NULL, answer.status == STATUS_OK);
    return answer.status;
}

static int redeem(const uint8_t token[WIRE_TOKEN_SIZE], char message[252], int *fd)
{
    struct wire_export_request request = {.magic = {0}};
    int peer = export_connect();
    memcpy(request.magic, WIRE_EXPORT_MAGIC, sizeof request.magic);
    memcpy(request.token, token, sizeof request.token);
    send(peer, &request, sizeof request, MSG_NOSIGNAL); // fails if the daemon has refused already
    return take_answer(peer, message, fd);
}

static struct wire_device_arena_reply ask_export(struct raw_client *raw)
{
    struct wire_reply reply;
    raw_call(raw, &(struct wire_request){.command = WIRE_COMMAND_DEVICE_ARENA}, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "DeviceArena: %s", reply.message);
    return reply.device_arena;
}

static int take_descriptor(struct raw_client *raw, struct wire_device_arena_reply *export)
{
    char message[252];
    int fd;
    *export = ask_export(raw);
    ck_assert_msg(redeem(export->token, message, &fd) == STATUS_OK, "%s", message);
    return fd;
}

static struct raw_client *device_session(void)
{
    raw_device_arena = DEVICE_ARENA;
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    raw_device_arena = 0;
    return raw;
}

// False, with a line: the daemon's device exports no memory.
static bool exports(void)
{
    struct raw_client *raw = raw_open(daemon_.socket);
    struct wire_reply reply;
    raw_hello(raw, 0, &reply);
    ck_assert_int_eq(reply.status, STATUS_OK);
    bool does = reply.hello.export_socket[0] != '\0';
    raw_close(raw);
    if (!does)
        fprintf(stderr, "not tested: the device exports no memory\n");
    return does;
}

static bool begin(const char *const *options)
{
    start(options);
    return exports();
}

// ---- what a client may do ----

static struct wire_request device_run(uint64_t batch)
{
    struct wire_request request = token_run(batch);
    struct wire_run_entry *entry = &request.run.entry;
    entry->q.memory = entry->k.memory = entry->v.memory = entry->out.memory = 1;
    return request;
}

static void run_on_device(struct raw_client *raw, struct importer *importer, uint64_t batch,
                          float first)
{
    struct wire_reply reply;
    const struct wire_request run = device_run(batch);
    importer_put(importer, 4096, first, 8); // v
    raw_call(raw, &run, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "Run: %s", reply.message);
    wait_done(raw, reply.run.ticket);
    ck_assert(importer_has(importer, 8192, first, 8)); // out
}

START_TEST(a_run_works_on_memory_that_another_process_has_imported)
{
    struct importer importer;
    struct wire_device_arena_reply export;
    if (!begin(NULL))
        return;
    struct raw_client *raw = device_session();
    int fd = take_descriptor(raw, &export);
    ck_assert_uint_eq(export.size, DEVICE_ARENA);
    ck_assert_uint_ge(export.allocated, DEVICE_ARENA);
    importer_start(&importer, fd, export.allocated, export.dedicated);
    close(fd);
    const uint64_t batch = create_token_batch(raw, open_cache(raw, "kv"));
    run_on_device(raw, &importer, batch, 5);
    run_on_device(raw, &importer, batch, -3);
    importer_end(&importer);
    raw_close(raw);
    check_served();
    stop_clean();
}
END_TEST

START_TEST(a_token_is_good_for_one_descriptor_of_a_session_that_lives)
{
    struct wire_device_arena_reply first, second;
    char message[252];
    int fd;
    if (!begin(NULL))
        return;
    struct raw_client *raw = device_session();
    first = ask_export(raw);
    second = ask_export(raw);
    ck_assert_int_ne(memcmp(first.token, second.token, sizeof first.token), 0);
    ck_assert_int_eq(redeem(first.token, message, &fd), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(message, "no open session has this token"));
    ck_assert_int_eq(redeem(second.token, message, &fd), STATUS_OK);
    close(fd);
    ck_assert_int_eq(redeem(second.token, message, &fd), STATUS_NOT_FOUND);
    first = ask_export(raw);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_CLOSE_SESSION}, STATUS_OK);
    ck_assert_int_eq(redeem(first.token, message, &fd), STATUS_NOT_FOUND);
    raw_close(raw);
    raw = raw_session(daemon_.socket, ARENA);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_DEVICE_ARENA}, STATUS_NOT_FOUND);
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(a_token_is_of_no_use_to_another_process_of_the_user)
{
    char message[252];
    int fd, code;
    if (!begin(NULL))
        return;
    struct raw_client *raw = device_session();
    const struct wire_device_arena_reply export = ask_export(raw);
    const pid_t child = fork();
    if (child == 0) {
        const bool refused = redeem(export.token, message, &fd) == STATUS_DENIED &&
                             strstr(message, "did not ask for this token");
        _exit(refused ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &code, 0), child);
    ck_assert_int_eq(code, 0);
    ck_assert_int_eq(redeem(export.token, message, &fd), STATUS_OK); // it was not used up
    close(fd);
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(tensors_in_a_device_arena_are_checked_like_all_others)
{
    if (!begin(NULL))
        return;
    struct raw_client *raw = device_session(), *plain = raw_session(daemon_.socket, ARENA);
    struct wire_request run = device_run(create_token_batch(raw, open_cache(raw, "kv")));
    run.run.entry.out.offset = DEVICE_ARENA - 16;
    raw_expect(raw, &run, STATUS_OUT_OF_RANGE);
    run.run.entry.out.offset = 8;
    raw_expect(raw, &run, STATUS_MISALIGNED);
    run.run.entry.out.offset = 8192;
    run.run.entry.k.memory = 0;
    raw_expect(raw, &run, STATUS_MISMATCH);
    run.run.entry.k.memory = 7;
    raw_expect(raw, &run, STATUS_UNSUPPORTED);
    run = device_run(create_token_batch(plain, open_cache(plain, "kv")));
    raw_expect(plain, &run, STATUS_INVALID);
    raw_close(raw);
    raw_close(plain);
    stop_clean();
}
END_TEST

// ---- attached caches ----

static struct wire_cache_attach_reply attach(struct raw_client *raw, uint64_t cache)
{
    struct wire_reply reply;
    raw_call(raw,
             &(struct wire_request){.command = WIRE_COMMAND_CACHE_ATTACH,
                                    .cache_attach = {.cache = cache, .timeout_ms = 60000}},
             &reply);
    ck_assert_msg(reply.status == STATUS_OK, "CacheAttach: %s", reply.message);
    return reply.cache_attach;
}

START_TEST(a_token_of_a_cache_is_good_while_the_session_is_attached_to_it)
{
    char message[252];
    int fd;
    if (!begin((const char *const[]){"--export-pool", "16", "--device-arenas", "0", NULL}))
        return;
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    const uint64_t cache = open_cache(raw, "kv"), other = open_cache(raw, "other");
    struct wire_cache_attach_reply first = attach(raw, cache), second = attach(raw, other);
    ck_assert_uint_eq(first.num_blocks, 16);
    ck_assert_int_eq(redeem(first.token, message, &fd), STATUS_NOT_FOUND); // it was replaced
    ck_assert_int_eq(redeem(second.token, message, &fd), STATUS_OK);
    close(fd);
    ck_assert_int_eq(redeem(second.token, message, &fd), STATUS_NOT_FOUND);
    second = attach(raw, other);
    raw_expect(raw,
               &(struct wire_request){.command = WIRE_COMMAND_CACHE_CLOSE,
                                      .cache_close = {.cache = other}},
               STATUS_OK);
    ck_assert_int_eq(redeem(second.token, message, &fd), STATUS_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(message, "is not attached to cache"));
    raw_close(raw);
    check_served();
    stop_clean();
}
END_TEST

START_TEST(reports_of_nonsense_are_refused)
{
    static int64_t slots[4096];
    struct dice dice = {check_draw("reports of nonsense")};
    if (!begin((const char *const[]){"--export-pool", "16", NULL}))
        return;
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    const uint64_t cache = open_cache(raw, "kv");
    struct wire_request report = {.command = WIRE_COMMAND_CACHE_REPORT,
                                  .cache_report = {.cache = cache}};
    raw_expect(raw, &report, STATUS_INVALID); // not attached
    (void)attach(raw, cache);
    raw_expect(raw, &report, STATUS_OK);
    for (int i = 0; i < 300; i++) {
        const uint32_t count = dice_below(&dice, 4096) + 1;
        for (uint32_t j = 0; j < count; j++)
            slots[j] = (int64_t)((uint64_t)dice_below(&dice, UINT32_MAX) << dice_below(&dice, 32));
        report.cache_report.slots = (struct wire_longs){slots, count};
        report.cache_report.first_layer = dice_below(&dice, 2) ? dice_below(&dice, UINT32_MAX) : 0;
        report.cache_report.num_layers = dice_below(&dice, 2) ? dice_below(&dice, UINT32_MAX) : 0;
        report.cache_report.passed = dice_below(&dice, 1000) + 1000;
        struct wire_reply reply;
        raw_call(raw, &report, &reply);
        ck_assert_int_ne(reply.status, STATUS_OK);
    }
    raw_close(raw);
    check_served();
    stop_clean();
}
END_TEST

// ---- limits ----

static void expect_hello(uint64_t size, int status, const char *text)
{
    struct raw_client *raw = raw_open(daemon_.socket);
    struct wire_reply reply;
    raw_device_arena = size;
    raw_hello(raw, 4096, &reply);
    raw_device_arena = 0;
    ck_assert_msg(reply.status == status && strstr(reply.message, text), "%s: %s",
                  status_name(reply.status), reply.message);
    raw_close(raw);
}

// A session that ends gives its memory back on the daemon's job thread, a moment later.
static struct raw_client *device_session_when_free(void)
{
    for (int i = 0; i < DEADLINE_S * 100; i++, nap()) {
        struct raw_client *raw = raw_open(daemon_.socket);
        struct wire_reply reply;
        raw_device_arena = DEVICE_ARENA;
        raw_hello(raw, 4096, &reply);
        raw_device_arena = 0;
        if (reply.status == STATUS_OK)
            return raw;
        ck_assert_int_eq(reply.status, STATUS_LIMIT);
        raw_close(raw);
    }
    ck_abort_msg("the memory of device arenas does not come back");
    return NULL;
}

START_TEST(device_arenas_of_all_sessions_have_one_limit)
{
    if (!begin((const char *const[]){"--device-arenas", "1M", NULL}))
        return;
    for (int i = 0; i < 30; i++) {
        struct raw_client *raw = device_session_when_free();
        expect_hello(4096, STATUS_LIMIT,
                     "does not fit beside those of other sessions (--device-arenas 1048576)");
        raw_close(raw); // while the daemon waits for Mapped
    }
    expect_hello(DEVICE_ARENA + 1, STATUS_LIMIT, "--device-arenas");
    expect_hello(UINT64_MAX, STATUS_LIMIT, "--device-arenas");
    check_served();
    stop_clean();
}
END_TEST

START_TEST(without_the_option_there_is_no_device_arena_and_no_socket)
{
    char path[160];
    start((const char *const[]){"--device-arenas", "0", NULL});
    snprintf(path, sizeof path, "%s.export", daemon_.socket);
    ck_assert_int_ne(access(path, F_OK), 0);
    expect_hello(4096, STATUS_LIMIT, "(--device-arenas 0)");
    check_served();
    stop_clean();
}
END_TEST

// ---- hostile ----

static void shout(const void *bytes, size_t size)
{
    char message[252];
    int fd, peer = export_connect();
    send(peer, bytes, size, MSG_NOSIGNAL);
    ck_assert_int_ne(take_answer(peer, message, &fd), STATUS_OK);
}

static void send_descriptors(void)
{
    char message[252], control[CMSG_SPACE(64 * sizeof(int))] = {0}, byte = 0;
    int fd, peer = export_connect();
    struct iovec bytes = {&byte, 1};
    struct msghdr header = {.msg_iov = &bytes,
                            .msg_iovlen = 1,
                            .msg_control = control,
                            .msg_controllen = sizeof control};
    struct cmsghdr *first = CMSG_FIRSTHDR(&header);
    *first = (struct cmsghdr){
        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(64 * sizeof(int))};
    for (int i = 0; i < 64; i++)
        memcpy(CMSG_DATA(first) + (size_t)i * sizeof(int), &peer, sizeof(int));
    ck_assert_int_eq(sendmsg(peer, &header, MSG_NOSIGNAL), 1);
    ck_assert_int_eq(take_answer(peer, message, &fd), STATUS_MALFORMED);
}

START_TEST(hostile_bytes_cost_nothing)
{
    static uint8_t noise[65536];
    struct dice dice = {check_draw("hostile bytes on the export socket")};
    if (!begin(NULL))
        return;
    struct raw_client *raw = device_session();
    check_served();
    int before = count_fds(daemon_.pid);
    for (int i = 0; i < 300; i++) {
        size_t size = dice_below(&dice, i % 10 ? 64 : sizeof noise) + 1;
        for (size_t j = 0; j < size; j++)
            noise[j] = (uint8_t)dice_below(&dice, 256);
        if (i % 3 == 0)
            memcpy(noise, WIRE_EXPORT_MAGIC, 8);
        shout(noise, i % 5 == 0 ? sizeof(struct wire_export_request) : size);
        close(export_connect());
    }
    for (int i = 0; i < 20; i++)
        send_descriptors();
    int after = count_fds(daemon_.pid);
    for (int i = 0; i < DEADLINE_S * 100 && after > before; i++, after = count_fds(daemon_.pid))
        nap();
    ck_assert_int_le(after, before);
    (void)ask_export(raw);
    raw_close(raw);
    check_served();
    stop_clean();
}
END_TEST

START_TEST(silent_connections_end_and_the_others_wait_for_their_places)
{
    struct wire_device_arena_reply export;
    char message[252];
    int silent[4], fd = -1;
    if (!begin((const char *const[]){"--max-connections", "48", NULL}))
        return;
    struct raw_client *raw = device_session();
    int before = count_fds(daemon_.pid);
    for (int i = 0; i < 4; i++)
        silent[i] = export_connect();
    export = ask_export(raw);
    ck_assert_int_le(count_fds(daemon_.pid), before + 3);
    ck_assert_int_eq(redeem(export.token, message, &fd), STATUS_OK);
    close(fd);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(recv(silent[i], message, sizeof message, 0), 0); // it was ended
        close(silent[i]);
    }
    raw_close(raw);
    check_served();
    stop_clean();
}
END_TEST

// ---- death ----

START_TEST(a_client_that_goes_at_any_step_harms_nobody)
{
    if (!begin(NULL))
        return;
    int before = 0;
    for (int i = 0; i < 24; i++) {
        struct wire_device_arena_reply export = {.size = 0};
        struct importer importer;
        struct raw_client *raw = device_session();
        int fd = i % 4 > 0 ? take_descriptor(raw, &export) : -1;
        if (i % 4 > 1)
            importer_start(&importer, fd, export.allocated, export.dedicated);
        if (i % 4 > 2) {
            const struct wire_request run =
                device_run(create_token_batch(raw, open_cache(raw, "kv")));
            importer_put(&importer, 4096, 1, 8);
            raw_expect(raw, &run, STATUS_OK);
        }
        raw_close(raw); // with its run in flight
        if (i % 4 > 1)
            importer_kill(&importer);
        if (fd >= 0)
            close(fd);
        check_served();
        before = i == 3 ? count_fds(daemon_.pid) : before;
    }
    int after = count_fds(daemon_.pid);
    for (int i = 0; i < DEADLINE_S * 100 && after > before; i++, after = count_fds(daemon_.pid))
        nap();
    ck_assert_int_le(after, before);
    stop_clean();
}
END_TEST

START_TEST(a_killed_daemon_leaves_a_socket_that_the_next_one_replaces)
{
    struct wire_device_arena_reply export;
    if (!begin(NULL))
        return;
    daemon_kill(&daemon_);
    ck_assert(daemon_start(&daemon_, NULL));
    struct raw_client *raw = device_session();
    close(take_descriptor(raw, &export));
    raw_close(raw);
    stop_clean();
}
END_TEST

int main(void)
{
    check_seed();
    Suite *suite = suite_create("daemon exports");
    suite_add(suite, "use",
              (const TTest *const[]){a_run_works_on_memory_that_another_process_has_imported,
                                     a_token_is_good_for_one_descriptor_of_a_session_that_lives,
                                     a_token_is_of_no_use_to_another_process_of_the_user,
                                     tensors_in_a_device_arena_are_checked_like_all_others, NULL},
              1);
    suite_add(suite, "attached caches",
              (const TTest *const[]){a_token_of_a_cache_is_good_while_the_session_is_attached_to_it,
                                     reports_of_nonsense_are_refused, NULL},
              1);
    suite_add(suite, "limits",
              (const TTest *const[]){device_arenas_of_all_sessions_have_one_limit,
                                     without_the_option_there_is_no_device_arena_and_no_socket,
                                     silent_connections_end_and_the_others_wait_for_their_places,
                                     NULL},
              1);
    suite_add(suite, "hostile",
              (const TTest *const[]){
                  hostile_bytes_cost_nothing, a_client_that_goes_at_any_step_harms_nobody,
                  a_killed_daemon_leaves_a_socket_that_the_next_one_replaces, NULL},
              1);
    return check_main(suite);
}
