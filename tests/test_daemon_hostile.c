// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_daemon_hostile.c - what a client may try against a real aule-daemon, by accident or on purpose: after each attempt a well-behaved
// client must still be served, and the daemon must still end with 0.

#include "check_main.h"
#include "daemon_suite.h"
#include "raw_client.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t open_cache(struct raw_client *raw)
{
    const struct wire_request request = {.command = WIRE_COMMAND_CACHE_OPEN,
                                         .cache_open = {.name = "shared",
                                                        .num_layers = 1,
                                                        .num_kv_heads = 1,
                                                        .head_dim_k = 8,
                                                        .head_dim_v = 8,
                                                        .k_dtype = DTYPE_F32,
                                                        .v_dtype = DTYPE_F32,
                                                        .block_size = 8}};
    struct wire_reply reply;
    raw_call(raw, &request, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "CacheOpen: %s", reply.message);
    return reply.cache_open.cache;
}

static const int32_t cu_seqlens_q[2] = {0, 1}, seq_lens_kv[1] = {1};

// One token that is written and attended to; its output is its V.
static struct wire_request batch_request(uint64_t cache, const int32_t *block, const int64_t *slot)
{
    return (struct wire_request){.command = WIRE_COMMAND_BATCH_CREATE,
                                 .batch_create = {.cache = cache,
                                                  .num_seqs = 1,
                                                  .max_blocks = 1,
                                                  .cu_seqlens_q = {cu_seqlens_q, 2},
                                                  .seq_lens_kv = {seq_lens_kv, 1},
                                                  .block_table = {block, 1},
                                                  .slot_mapping = {slot, 1}}};
}

static uint64_t create_batch(struct raw_client *raw, uint64_t cache)
{
    static int32_t block;
    static int64_t slot;
    struct wire_reply reply;
    const struct wire_request lease = {.command = WIRE_COMMAND_BLOCKS_LEASE, .blocks_lease = {cache, 1, 20000}};
    raw_call(raw, &lease, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "BlocksLease: %s", reply.message);
    block = reply.blocks_lease.blocks.data[0];
    slot = (int64_t)block * 8;
    const struct wire_request create = batch_request(cache, &block, &slot);
    raw_call(raw, &create, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "BatchCreate: %s", reply.message);
    return reply.batch_create.batch;
}

static struct wire_request run_request(uint64_t batch)
{
    const struct wire_tensor tensor = {.dtype = DTYPE_F32, .token_stride = 32, .head_stride = 32};
    struct wire_request request = {.command = WIRE_COMMAND_RUN,
                                   .run = {.batch = batch,
                                           .num_heads = 1,
                                           .q = tensor,
                                           .k = tensor,
                                           .v = tensor,
                                           .out = tensor,
                                           .window_left = -1,
                                           .window_right = -1}};
    request.run.v.offset = 4096;
    request.run.out.offset = 8192;
    return request;
}

// The daemon must be as good as new: a session, a cache, a run, the right answer.
static void check_served(void)
{
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    struct wire_reply reply;
    const struct wire_request run = run_request(create_batch(raw, open_cache(raw)));
    float *v = (float *)(void *)(raw_arena(raw) + 4096), *out = (float *)(void *)(raw_arena(raw) + 8192);
    for (int i = 0; i < 8; i++)
        v[i] = (float)i - 3.5f;
    raw_call(raw, &run, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "Run: %s", reply.message);
    const struct wire_request wait = {.command = WIRE_COMMAND_WAIT, .wait = {reply.run.ticket, 60000}};
    raw_call(raw, &wait, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "Wait: %s", reply.message);
    ck_assert_int_eq(reply.wait.run_status, STATUS_OK);
    for (int i = 0; i < 8; i++)
        ck_assert_float_eq_tol(out[i], v[i], 1e-5f);
    raw_close(raw);
}

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

// What Hello is answered on a connection of its own.
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
    for (int i = 0; i < DEADLINE_S * 100 && !daemon_log_contains(&daemon_, message); i++)
        nap();
    ck_assert(daemon_log_contains(&daemon_, message));
    raw_close(first);
    int status = STATUS_LIMIT;
    for (int i = 0; i < DEADLINE_S && status == STATUS_LIMIT; i++) {
        if (i > 0)
            sleep(1); // those refused before are to be gone: of too many at a time none is told
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
    for (int i = 0; i < DEADLINE_S * 100 && !daemon_log_contains(&daemon_, "closed at once"); i++) {
        int *fd = &fds[i % HELD];
        if (*fd >= 0)
            close(*fd);
        *fd = bare_connect(daemon_.socket, false);
        send(*fd, greeting, sizeof greeting, MSG_NOSIGNAL);
        if (i >= HELD)
            nap();
    }
    ck_assert(daemon_log_contains(&daemon_, "closed at once: 1 are open, --max-connections is 1"));
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

// What a client may make the daemon keep: as many pages as may wait for it, and what malloc makes of them. Sanitizers keep freed memory too.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { UNREAD_PAGES = (512 << 20) / 4096 };
#else
enum { UNREAD_PAGES = (16 << 20) / 4096 };
#endif

// A cache of MANY_BLOCKS blocks, all leased.
static uint64_t fill_pool(struct raw_client *raw)
{
    struct wire_reply reply;
    uint64_t cache = open_cache(raw);
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
    struct wire_request request = {.command = WIRE_COMMAND_INSPECT_BLOCKS, .inspect_blocks = {fill_pool(raw), 0, 0}};
    struct wire_reply reply;
    uint32_t *first = &request.inspect_blocks.first, count;
    do {
        raw_call(raw, &request, &reply);
        ck_assert_int_eq(reply.status, STATUS_OK);
        ck_assert_uint_eq(reply.inspect_blocks.total, MANY_BLOCKS);
        count = reply.inspect_blocks.count;
        ck_assert_uint_le(count * sizeof(struct wire_block_state), PAGE_BYTES);
        for (uint32_t i = 0; i < count; i++)
            ck_assert_int_eq(reply.inspect_blocks.blocks[i].block, (int32_t)(*first + i));
        *first += count;
        wire_reply_finish(&reply);
    } while (count > 0);
    ck_assert_uint_eq(*first, MANY_BLOCKS);
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(a_client_that_never_reads_its_replies_holds_up_nobody)
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
        bare_send(fd, buffer.data, buffer.size, i + 1); // when the daemon takes no more, that is its right
    wire_buffer_finish(&buffer);
    check_served();
    ck_assert_uint_lt(resident_pages(daemon_.pid), before + UNREAD_PAGES);
    close(fd);
    raw_close(raw);
    stop_clean();
}
END_TEST

// ---- messages ----

static void expect_malformed(struct raw_client *raw, const void *data, size_t size)
{
    struct wire_reply reply;
    raw_send(raw, data, size, &reply);
    ck_assert_msg(reply.status == STATUS_MALFORMED, "%zu bytes: %s: %s", size, status_name(reply.status),
                  reply.message);
    ck_assert_uint_gt(strlen(reply.message), 10);
    wire_reply_finish(&reply);
}

START_TEST(truncated_and_oversized_messages_are_malformed)
{
    static uint8_t large[WIRE_MAX_MESSAGE + 100];
    struct wire_buffer buffer;
    struct error error;
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    const struct wire_request request = {.session = raw->session,
                                         .epoch = raw->epoch,
                                         .command = WIRE_COMMAND_CACHE_OPEN,
                                         .cache_open = {.name = "truncated"}};
    ck_assert_int_eq(wire_encode_request(&request, &buffer, &error), STATUS_OK);
    for (size_t size = 0; size < 24; size++)
        expect_malformed(raw, buffer.data, size);
    expect_malformed(raw, large, sizeof large);
    memcpy(large, buffer.data, buffer.size);
    ((uint8_t *)buffer.data)[4] ^= 1; // the file identifier
    expect_malformed(raw, buffer.data, buffer.size);
    wire_buffer_finish(&buffer);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_PING}, STATUS_OK); // the session lives on
    raw_close(raw);
    check_served();
    stop_clean();
}
END_TEST

static uint32_t draw(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

// K and V contiguous in the arena.
static struct wire_request layout_request(void)
{
    static const int32_t starts[1] = {0};
    return (struct wire_request){
        .command = WIRE_COMMAND_BATCH_CREATE,
        .batch_create = {
            .has_layout = true,
            .layout = {.num_kv_heads = 1, .head_dim_k = 8, .head_dim_v = 8, .k_dtype = DTYPE_F32, .v_dtype = DTYPE_F32},
            .num_seqs = 1,
            .cu_seqlens_q = {cu_seqlens_q, 2},
            .seq_lens_kv = {seq_lens_kv, 1},
            .kv_starts = {starts, 1}}};
}

// Messages of a live session with a few bytes changed: any answer will do, but there must be one.
START_TEST(thousands_of_corrupt_messages_are_answered)
{
    uint32_t seed = 12345;
    static const int32_t block = 0;
    static const int64_t slot = 0;
    static const struct wire_tensor parts[2] =
        {{.dtype = DTYPE_F32, .token_stride = 32, .head_stride = 32},
         {.dtype = DTYPE_F32, .offset = 64, .token_stride = 32, .head_stride = 32}},
                                    lses[2] = {{.dtype = DTYPE_F32, .offset = 128, .token_stride = 4},
                                               {.dtype = DTYPE_F32, .offset = 144, .token_stride = 4}};
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw);
    struct wire_request waiting = run_request(1);
    waiting.run.waits = true;
    waiting.run.wait_ms = 1000;
    const struct wire_request originals[] = {
        batch_request(cache, &block, &slot),
        run_request(1),
        waiting,
        {.command = WIRE_COMMAND_BLOCKS_RELEASE, .blocks_release = {cache, {&block, 1}}},
        {.command = WIRE_COMMAND_PREFIX_PUBLISH,
         .prefix_publish = {.cache = cache, .tokens = {&block, 1}, .blocks = {&block, 1}}},
        {.command = WIRE_COMMAND_PREFIX_LOOKUP, .prefix_lookup = {.cache = cache, .token_span = {0, 64}}},
        {.command = WIRE_COMMAND_INSPECT_BLOCKS, .inspect_blocks = {cache, 0, 100}},
        {.command = WIRE_COMMAND_BLOCKS_LEASE, .blocks_lease = {cache, 1, 0}},
        layout_request(),
        {.command = WIRE_COMMAND_BLOCKS_COPY, .blocks_copy = {.cache = cache, .from = {&block, 1}, .to = {&block, 1}}},
        {.command = WIRE_COMMAND_MERGE, .merge = {1, 1, 8, {parts, 2}, {lses, 2}, parts[0], {.dtype = 0}, 0, 0}},
    };
    for (int i = 0; i < 5000; i++) {
        struct wire_request request = originals[i % (int)(sizeof originals / sizeof originals[0])];
        struct wire_buffer buffer;
        struct wire_reply reply;
        struct error error;
        request.session = raw->session;
        request.epoch = raw->epoch;
        ck_assert_int_eq(wire_encode_request(&request, &buffer, &error), STATUS_OK);
        for (uint32_t n = 1 + draw(&seed) % 4; n > 0; n--)
            ((uint8_t *)buffer.data)[8 + draw(&seed) % (buffer.size - 8)] = (uint8_t)draw(&seed);
        // A changed timeout could make a lease wait for ever, rightly: look at what came out before sending it.
        struct wire_request changed;
        bool waits = wire_decode_request(buffer.data, buffer.size, &changed, &error) == STATUS_OK &&
                     ((changed.command == WIRE_COMMAND_BLOCKS_LEASE && changed.blocks_lease.timeout_ms != 0) ||
                      (changed.command == WIRE_COMMAND_WAIT && changed.wait.timeout_ms != 0) ||
                      (changed.command == WIRE_COMMAND_RUN && changed.run.timeout_ms != 0) ||
                      (changed.command == WIRE_COMMAND_BLOCKS_COPY && changed.blocks_copy.timeout_ms != 0) ||
                      (changed.command == WIRE_COMMAND_MERGE && changed.merge.timeout_ms != 0) ||
                      changed.command == WIRE_COMMAND_CLOSE_SESSION);
        if (!waits) {
            raw_send(raw, buffer.data, buffer.size, &reply);
            wire_reply_finish(&reply);
        }
        wire_buffer_finish(&buffer);
    }
    raw_close(raw);
    check_served();
    stop_clean();
}
END_TEST

START_TEST(another_protocol_version_is_refused_with_both_versions)
{
    struct wire_reply reply;
    char theirs[32], ours[32];
    snprintf(theirs, sizeof theirs, "protocol %u.7", WIRE_PROTOCOL_MAJOR + 1);
    snprintf(ours, sizeof ours, "the daemon %u.%u", WIRE_PROTOCOL_MAJOR, WIRE_PROTOCOL_MINOR);
    start(NULL);
    struct raw_client *raw = raw_open(daemon_.socket);
    const struct wire_request request = {.command = WIRE_COMMAND_HELLO,
                                         .hello = {WIRE_PROTOCOL_MAJOR + 1, 7, "new", "", 0}};
    raw_call(raw, &request, &reply);
    ck_assert_int_eq(reply.status, STATUS_VERSION);
    ck_assert_ptr_nonnull(strstr(reply.message, theirs));
    ck_assert_ptr_nonnull(strstr(reply.message, ours));
    raw_attach(raw, 0); // the right one still works, on the same connection
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(an_empty_cache_name_is_refused)
{
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, 0);
    const struct wire_request request = {.command = WIRE_COMMAND_CACHE_OPEN, .cache_open = {.name = ""}};
    raw_expect(raw, &request, STATUS_INVALID);
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(a_name_cannot_forge_a_line_of_the_log)
{
    start(NULL);
    struct raw_client *raw = raw_open(daemon_.socket);
    raw_expect(
        raw,
        &(struct wire_request){.command = WIRE_COMMAND_HELLO, .hello = {WIRE_PROTOCOL_MAJOR, 0, "a\nFORGED", "", 0}},
        STATUS_OK);
    for (int i = 0; i < DEADLINE_S * 100 && !daemon_log_contains(&daemon_, "opened"); i++)
        nap();
    ck_assert(daemon_log_contains(&daemon_, "(a?FORGED"));
    ck_assert(!daemon_log_contains(&daemon_, "\nFORGED"));
    raw_close(raw);
    stop_clean();
}
END_TEST

// ---- whose session ----

static const enum wire_command session_commands[] = {
    WIRE_COMMAND_MAPPED,         WIRE_COMMAND_CLOSE_SESSION, WIRE_COMMAND_CACHE_OPEN,     WIRE_COMMAND_CACHE_CLOSE,
    WIRE_COMMAND_CACHE_STATE,    WIRE_COMMAND_BLOCKS_LEASE,  WIRE_COMMAND_BLOCKS_RELEASE, WIRE_COMMAND_PREFIX_LOOKUP,
    WIRE_COMMAND_PREFIX_PUBLISH, WIRE_COMMAND_BATCH_CREATE,  WIRE_COMMAND_BATCH_DESTROY,  WIRE_COMMAND_RUN,
    WIRE_COMMAND_WAIT,           WIRE_COMMAND_BLOCKS_COPY,   WIRE_COMMAND_MERGE,
};

// The strings of the commands must not be NULL.
static struct wire_request empty_request(enum wire_command command)
{
    struct wire_request request = {.command = command};
    if (command == WIRE_COMMAND_CACHE_OPEN)
        request.cache_open.name = "x";
    return request;
}

START_TEST(every_command_of_a_session_is_refused_to_others)
{
    start(NULL);
    struct raw_client *owner = raw_session(daemon_.socket, ARENA), *thief = raw_open(daemon_.socket);
    struct wire_request request = empty_request(session_commands[_i]);
    raw_expect(thief, &request, STATUS_NO_SESSION); // session 0, epoch 0
    request.session = owner->session;
    request.epoch = owner->epoch;
    raw_expect(thief, &request, STATUS_NO_SESSION); // from a connection without one
    raw_attach(thief, ARENA);
    raw_expect(thief, &request, STATUS_NO_SESSION); // from one that has its own
    request.session = thief->session;
    request.epoch = owner->epoch ^ 1;
    raw_expect(thief, &request, STATUS_EPOCH);
    struct wire_reply reply;
    raw_call(thief, &request, &reply);
    ck_assert_ptr_nonnull(strstr(reply.message, "epoch"));
    raw_expect(owner, &(struct wire_request){.command = WIRE_COMMAND_PING}, STATUS_OK);
    ck_assert_uint_eq(raw_inspect(owner).num_sessions, 2); // neither was harmed
    raw_close(owner);
    raw_close(thief);
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
    for (int i = 0; i < 3; i++) {
        const struct wire_request requests[] = {
            {.command = WIRE_COMMAND_PING},
            {.command = WIRE_COMMAND_HELLO, .hello = {WIRE_PROTOCOL_MAJOR, 0, "nobody", "", 0}},
            {.command = WIRE_COMMAND_KILL_SESSION, .kill_session = {1}},
        };
        raw_call(raw, &requests[i], &reply);
        if (reply.status != STATUS_DENIED || !strstr(reply.message, "uid 0") || !strstr(reply.message, "uid 65534"))
            _exit(11);
    }
    _exit(0);
}

START_TEST(another_user_is_denied_with_both_ids_and_hung_up_on)
{
    int status;
    start(NULL);
    ck_assert_int_eq(chmod(daemon_.folder, 0711), 0); // what an operator would have to do for this to come so far
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
    uint8_t byte;
    if (setgid(NOBODY) != 0 || setuid(NOBODY) != 0)
        _exit(10);
    int fd = bare_connect(socket_path, true);
    _exit(recv(fd, &byte, 1, 0) == 0 ? 0 : 12); // the daemon hangs up, unasked
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

// ---- memory that vanishes ----

static void wait_sessions(struct raw_client *raw, uint32_t count)
{
    for (int i = 0; i < DEADLINE_S * 100 && raw_inspect(raw).num_sessions != count; i++)
        nap();
    ck_assert_uint_eq(raw_inspect(raw).num_sessions, count);
}

START_TEST(a_client_that_shrinks_its_segment_under_metadata_harms_nobody)
{
    start(memory_path(_i));
    struct raw_client *bad = raw_session(daemon_.socket, ARENA), *good = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(bad);
    ck_assert_int_eq(ftruncate(bad->segment_fd, 0), 0);
    const struct wire_request lookup = {.command = WIRE_COMMAND_PREFIX_LOOKUP,
                                        .prefix_lookup = {.cache = cache, .token_span = {0, 1024}}};
    raw_expect(bad, &lookup, STATUS_NO_SESSION);
    raw_expect(bad, &lookup, STATUS_NO_SESSION);
    ck_assert_uint_eq(raw_inspect(good).num_sessions, 1);
    ck_assert(daemon_log_contains(&daemon_, "its segment was shrunk"));
    raw_expect(good, &(struct wire_request){.command = WIRE_COMMAND_PING}, STATUS_OK);
    check_served();
    raw_close(bad);
    raw_close(good);
    stop_clean();
}
END_TEST

START_TEST(a_client_that_shrinks_its_segment_under_a_run_harms_nobody)
{
    struct wire_reply reply;
    start(memory_path(_i));
    struct raw_client *bad = raw_session(daemon_.socket, ARENA), *good = raw_session(daemon_.socket, ARENA);
    uint64_t batch = create_batch(bad, open_cache(bad));
    ck_assert_int_eq(ftruncate(bad->segment_fd, 0), 0);
    const struct wire_request run = run_request(batch);
    raw_call(bad, &run, &reply); // OK, or its session has ended: both are right
    // A device that pinned the pages does not notice, and harms nobody either.
    if (!good->hello.arena_imported || strstr(good->hello.device_name, "llvmpipe") || _i) {
        wait_sessions(good, 1);
        ck_assert(daemon_log_contains(&daemon_, "its segment was shrunk"));
    }
    check_served();
    raw_close(bad);
    raw_close(good);
    stop_clean();
}
END_TEST

START_TEST(a_client_that_shrinks_its_segment_under_slopes_harms_nobody)
{
    start(memory_path(_i));
    struct raw_client *bad = raw_session(daemon_.socket, ARENA), *good = raw_session(daemon_.socket, ARENA);
    struct wire_request run = run_request(create_batch(bad, open_cache(bad)));
    run.run.slopes = (struct wire_span){4096, 1};
    ck_assert_int_eq(ftruncate(bad->segment_fd, 0), 0);
    raw_expect(bad, &run, STATUS_NO_SESSION);
    raw_expect(bad, &run, STATUS_NO_SESSION);
    ck_assert_uint_eq(raw_inspect(good).num_sessions, 1);
    check_served();
    raw_close(bad);
    raw_close(good);
    stop_clean();
}
END_TEST

START_TEST(spans_outside_the_arena_are_refused_each_with_its_status)
{
    static const struct {
        struct wire_span span;
        int status;
    } spans[] = {
        {{ARENA, 1}, STATUS_OUT_OF_RANGE},          {{0, ARENA / 4 + 1}, STATUS_OUT_OF_RANGE},
        {{ARENA - 4, 2}, STATUS_OUT_OF_RANGE},      {{UINT64_MAX - 3, 1}, STATUS_OUT_OF_RANGE},
        {{8, UINT64_MAX / 4}, STATUS_OUT_OF_RANGE}, {{8, UINT64_C(1) << 62}, STATUS_OUT_OF_RANGE},
        {{0, UINT64_MAX}, STATUS_OUT_OF_RANGE},     {{2, 1}, STATUS_MISALIGNED},
    };
    static const int32_t token = 1;
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA), *bare = raw_session(daemon_.socket, 0);
    uint64_t cache = open_cache(raw);
    struct wire_request lookup = {.command = WIRE_COMMAND_PREFIX_LOOKUP, .prefix_lookup = {.cache = cache}};
    for (size_t i = 0; i < sizeof spans / sizeof spans[0]; i++) {
        lookup.prefix_lookup.token_span = spans[i].span;
        raw_expect(raw, &lookup, spans[i].status);
    }
    lookup.prefix_lookup.token_span = (struct wire_span){ARENA - 4, 1};
    raw_expect(raw, &lookup, STATUS_OK);
    lookup.prefix_lookup.tokens = (struct wire_ints){&token, 1};
    raw_expect(raw, &lookup, STATUS_INVALID); // both places
    lookup = (struct wire_request){.command = WIRE_COMMAND_PREFIX_LOOKUP,
                                   .prefix_lookup = {.cache = open_cache(bare), .token_span = {0, 1}}};
    raw_expect(bare, &lookup, STATUS_OUT_OF_RANGE); // no arena at all
    raw_close(raw);
    raw_close(bare);
    stop_clean();
}
END_TEST

START_TEST(requests_beyond_a_message_and_odd_timeouts_are_refused)
{
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw), batch = create_batch(raw, cache);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_BLOCKS_LEASE, .blocks_lease = {cache, 0, 0}},
               STATUS_INVALID);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_BLOCKS_LEASE, .blocks_lease = {cache, 1, -2}},
               STATUS_INVALID);
    raw_expect(raw,
               &(struct wire_request){.command = WIRE_COMMAND_BLOCKS_LEASE, .blocks_lease = {cache, UINT32_MAX, 0}},
               STATUS_LIMIT);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_BLOCKS_LEASE, .blocks_lease = {cache + 77, 1, 0}},
               STATUS_NOT_FOUND);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_WAIT, .wait = {1, -2}}, STATUS_INVALID);
    struct wire_request run = run_request(batch);
    run.run.timeout_ms = -7;
    raw_expect(raw, &run, STATUS_INVALID);
    raw_close(raw);
    stop_clean();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("daemon, hostile clients");
    suite_add(suite, "connections",
              (const TTest *const[]){hundreds_that_connect_and_close_do_not_stop_the_listener,
                                     a_thousand_connections_leave_descriptors_flat,
                                     a_connection_too_many_is_told_the_option_until_another_goes,
                                     connections_far_beyond_the_limit_are_closed_at_once_and_the_log_names_the_option,
                                     a_header_that_claims_a_huge_length_harms_nobody,
                                     a_message_cut_off_by_the_end_of_its_connection_is_forgotten,
                                     a_list_comes_in_small_pages_and_whole,
                                     a_client_that_never_reads_its_replies_holds_up_nobody, NULL},
              1);
    suite_add(suite, "messages",
              (const TTest *const[]){
                  truncated_and_oversized_messages_are_malformed, thousands_of_corrupt_messages_are_answered,
                  another_protocol_version_is_refused_with_both_versions, an_empty_cache_name_is_refused,
                  a_name_cannot_forge_a_line_of_the_log, spans_outside_the_arena_are_refused_each_with_its_status,
                  requests_beyond_a_message_and_odd_timeouts_are_refused, NULL},
              1);
    suite_add(suite, "sessions of others",
              (const TTest *const[]){every_command_of_a_session_is_refused_to_others, NULL},
              (int)(sizeof session_commands / sizeof session_commands[0]));
    if (geteuid() == 0)
        suite_add(suite, "another user",
                  (const TTest *const[]){another_user_is_denied_with_both_ids_and_hung_up_on,
                                         another_user_cannot_keep_a_connection, NULL},
                  1);
    else
        fprintf(stderr, "not root: nobody else can be impersonated, so the tests of another user are left out\n");
    suite_add(suite, "vanishing memory",
              (const TTest *const[]){a_client_that_shrinks_its_segment_under_metadata_harms_nobody,
                                     a_client_that_shrinks_its_segment_under_a_run_harms_nobody,
                                     a_client_that_shrinks_its_segment_under_slopes_harms_nobody, NULL},
              2);
    return check_main(suite);
}
