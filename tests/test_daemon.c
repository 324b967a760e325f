// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_daemon.c - a real aule-daemon from outside: its life and death, its limits, its work for well-behaved clients. What hostile
// clients can try stands in test_daemon_hostile.c. Tests that touch tensors run over both memory paths.

#include "check_main.h"
#include "daemon_step.h"
#include "daemon_suite.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// A child process that must not use nng before this; it says when it is ready by a byte on the pipe.
static pid_t spawn(void (*body)(int ready_fd), int *ready_fd)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        close(ends[0]);
        body(ends[1]);
        _exit(0);
    }
    close(ends[1]);
    *ready_fd = ends[0];
    return pid;
}

static void wait_child_ready(int ready_fd)
{
    char byte;
    ck_assert_int_eq(read(ready_fd, &byte, 1), 1);
}

// ---- life ----

START_TEST(starts_serves_and_leaves_nothing_behind)
{
    start(NULL);
    struct raw_client *raw = raw_open(daemon_.socket);
    struct wire_reply reply;
    raw_call(raw, &(struct wire_request){.command = WIRE_COMMAND_PING, .ping = {42}}, &reply);
    ck_assert_int_eq(reply.status, STATUS_OK);
    ck_assert_uint_eq(reply.ping.payload, 42);
    ck_assert_uint_ne(reply.ping.epoch, 0);
    ck_assert_str_eq(reply.ping.version, AULE_VERSION_STRING);
    raw_attach(raw, ARENA);
    ck_assert_uint_eq(raw->epoch, reply.ping.epoch ? raw->epoch : 0);
    ck_assert_int_eq(daemon_count_segments(&daemon_), 0); // mapped, so unlinked
    stop_clean();
    raw_close(raw);
    char lock[128];
    snprintf(lock, sizeof lock, "%s.lock", daemon_.socket);
    ck_assert_int_eq(access(lock, F_OK), -1);
    ck_assert(daemon_log_contains(&daemon_, "ready: "));
    ck_assert(daemon_log_contains(&daemon_, daemon_.socket));
}
END_TEST

START_TEST(the_socket_is_private)
{
    struct stat info;
    start(NULL);
    ck_assert_int_eq(stat(daemon_.socket, &info), 0);
    ck_assert(S_ISSOCK(info.st_mode));
    ck_assert_uint_eq(info.st_mode & 0777, 0600);
    stop_clean();
}
END_TEST

START_TEST(without_options_the_best_device_listens_where_clients_look)
{
    ck_assert(daemon_init(&daemon_));
    daemon_.by_rule = true;
    ck_assert(daemon_start(&daemon_, NULL));
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(a_second_daemon_on_the_same_socket_is_refused_with_a_sentence)
{
    struct daemon second;
    char pid[32];
    start(NULL);
    ck_assert(daemon_init(&second));
    ck_assert(!daemon_start(&second, (const char *const[]){"--socket", daemon_.socket, NULL}));
    ck_assert_int_eq(second.exit_code, 1);
    snprintf(pid, sizeof pid, "(pid %d)", (int)daemon_.pid);
    ck_assert(daemon_log_contains(&second, "another aule-daemon"));
    ck_assert(daemon_log_contains(&second, pid));
    daemon_finish(&second);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA); // the first one did not notice
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(what_a_killed_daemon_left_is_removed_by_the_next)
{
    struct wire_reply reply;
    start(NULL);
    struct raw_client *raw = raw_open(daemon_.socket);
    raw_hello(raw, ARENA, &reply); // never Mapped: its segment keeps its name
    ck_assert_int_eq(reply.status, STATUS_OK);
    uint64_t epoch = raw->epoch;
    ck_assert_int_eq(daemon_count_segments(&daemon_), 1);
    daemon_kill(&daemon_);
    raw_close(raw);
    ck_assert_int_eq(access(daemon_.socket, F_OK), 0);
    ck_assert_int_eq(daemon_count_segments(&daemon_), 1);
    ck_assert(daemon_start(&daemon_, NULL));
    ck_assert_int_eq(daemon_count_segments(&daemon_), 0);
    ck_assert(daemon_log_contains(&daemon_, "removed 1 segments"));
    raw = raw_session(daemon_.socket, ARENA);
    ck_assert_uint_ne(raw->epoch, epoch);
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(a_regular_file_at_the_path_is_refused_and_stays)
{
    ck_assert(daemon_init(&daemon_));
    int fd = open(daemon_.socket, O_WRONLY | O_CREAT | O_EXCL, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, "precious", 8), 8);
    close(fd);
    ck_assert(!daemon_start(&daemon_, NULL));
    ck_assert_int_eq(daemon_.exit_code, 1);
    ck_assert(daemon_log_contains(&daemon_, "is not a socket"));
    struct stat info;
    ck_assert_int_eq(stat(daemon_.socket, &info), 0);
    ck_assert_int_eq(info.st_size, 8);
}
END_TEST

static const struct {
    const char *options[3];
    const char *sentence;
} bad_options[] = {
    {{"--max-sessions", "0"}, "--max-sessions \"0\""},
    {{"--max-pipelines", "0"}, "--max-pipelines \"0\""},
    {{"--max-sessions", "many"}, "--max-sessions \"many\""},
    {{"--max-sessions", "-1"}, "--max-sessions \"-1\""},
    {{"--max-arena", "99999999999G"}, "--max-arena \"99999999999G\""},
    {{"--memory-fraction", "1.5"}, "--memory-fraction \"1.5\""},
    {{"--memory-fraction", "nan"}, "--memory-fraction \"nan\""},
    {{"--log-level", "loud"}, "--log-level \"loud\""},
    {{"--fault", "bit-rot"}, "--fault \"bit-rot\""},
    {{"--drain-timeout"}, "--drain-timeout wants a value"},
    {{"--validation=yes"}, "--validation takes no value"},
    {{"--frobnicate"}, "\"--frobnicate\""},
    {{"somewhere"}, "\"somewhere\""},
    {{"--socket", "/nowhere/at/all/0.sock"}, "/nowhere/at/all"},
    {{"--device", "no such device"}, "no such device"},
};
enum { NUM_BAD_OPTIONS = sizeof bad_options / sizeof bad_options[0] };

START_TEST(a_bad_option_is_refused_with_its_value)
{
    ck_assert(daemon_init(&daemon_));
    ck_assert(!daemon_start(&daemon_, bad_options[_i].options));
    ck_assert_int_eq(daemon_.exit_code, 1);
    ck_assert_msg(daemon_log_contains(&daemon_, bad_options[_i].sentence), "%s", bad_options[_i].sentence);
}
END_TEST

START_TEST(a_socket_path_beyond_107_bytes_is_refused)
{
    char path[256];
    ck_assert(daemon_init(&daemon_));
    snprintf(path, sizeof path, "%s/%0100d", daemon_.folder, 0);
    ck_assert(!daemon_start(&daemon_, (const char *const[]){"--socket", path, NULL}));
    ck_assert_int_eq(daemon_.exit_code, 1);
    ck_assert(daemon_log_contains(&daemon_, "at most 107 fit"));
}
END_TEST

START_TEST(information_options_end_0)
{
    static const char *const words[] = {"--help", "--version", "--list-devices"};
    static const char *const said[] = {"--max-sessions N", AULE_VERSION_STRING, "0.sock, the default"};
    for (int i = 0; i < 3; i++) {
        ck_assert(daemon_init(&daemon_));
        ck_assert(!daemon_start(&daemon_, (const char *const[]){words[i], NULL}));
        ck_assert_int_eq(daemon_.exit_code, 0);
        ck_assert_msg(daemon_log_contains(&daemon_, said[i]), "%s", words[i]);
        daemon_finish(&daemon_);
    }
}
END_TEST

START_TEST(a_second_signal_ends_at_once_and_clean)
{
    struct wire_reply reply;
    start(NULL);
    struct raw_client *raw = raw_open(daemon_.socket);
    raw_hello(raw, ARENA, &reply);
    ck_assert_int_eq(daemon_count_segments(&daemon_), 1);
    kill(daemon_.pid, SIGINT);
    kill(daemon_.pid, SIGTERM);
    ck_assert(daemon_wait(&daemon_, DEADLINE_S));
    ck_assert_int_eq(daemon_.exit_code, 0);
    ck_assert_int_eq(access(daemon_.socket, F_OK), -1);
    ck_assert_int_eq(daemon_count_segments(&daemon_), 0);
    raw_close(raw);
}
END_TEST

START_TEST(hangup_signal_changes_nothing)
{
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    kill(daemon_.pid, SIGHUP);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_PING}, STATUS_OK);
    raw_close(raw);
    stop_clean();
}
END_TEST

static uint64_t count_switches(pid_t pid)
{
    char path[64], line[256];
    uint64_t sum = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    ck_assert_ptr_nonnull(tasks);
    for (struct dirent *task; (task = readdir(tasks));) {
        char file[384];
        snprintf(file, sizeof file, "%s/%s/status", path, task->d_name);
        FILE *status = task->d_name[0] == '.' ? NULL : fopen(file, "re");
        unsigned long long count;
        while (status && fgets(line, sizeof line, status)) {
            if (sscanf(line, "voluntary_ctxt_switches: %llu", &count) == 1)
                sum += count;
        }
        if (status)
            fclose(status);
    }
    closedir(tasks);
    return sum;
}

START_TEST(an_idle_daemon_sleeps)
{
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "idle");
    do_step(raw, cache, 1);
    sleep(1);
    uint64_t before = count_switches(daemon_.pid);
    sleep(3);
    ck_assert_uint_lt(count_switches(daemon_.pid) - before, 60); // a loop that polls every 10 ms would make 300
    raw_close(raw);
    stop_clean();
}
END_TEST

// ---- work ----

START_TEST(one_client_gets_attention)
{
    start(memory_path(_i));
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    if (_i)
        ck_assert(!raw->hello.arena_imported);
    uint64_t cache = open_cache(raw, "work");
    int32_t block = do_step(raw, cache, 3.5f);
    release(raw, cache, &block, 1);
    struct wire_inspect_daemon_reply state = raw_inspect(raw);
    ck_assert_uint_eq(state.runs_done, 1);
    ck_assert_uint_eq(state.leased_blocks, 0);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_CLOSE_SESSION}, STATUS_OK);
    ck_assert_uint_eq(raw_inspect(raw).num_sessions, 0);
    raw->session = raw->epoch = 0;
    struct wire_reply reply;
    raw_hello(raw, 0, &reply); // the connection may shake hands anew
    ck_assert_int_eq(reply.status, STATUS_OK);
    raw_close(raw);
    stop_clean();
}
END_TEST

static void publish(struct raw_client *raw, uint64_t cache, const int32_t *tokens, int32_t block)
{
    const struct wire_request request = {
        .command = WIRE_COMMAND_PREFIX_PUBLISH,
        .prefix_publish = {.cache = cache, .tokens = {tokens, BLOCK}, .blocks = {&block, 1}}};
    raw_expect(raw, &request, STATUS_OK);
}

static int32_t look_up(struct raw_client *raw, uint64_t cache, const int32_t *tokens)
{
    const struct wire_request request = {.command = WIRE_COMMAND_PREFIX_LOOKUP,
                                         .prefix_lookup = {.cache = cache, .tokens = {tokens, BLOCK}}};
    struct wire_reply reply;
    raw_call(raw, &request, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "PrefixLookup: %s", reply.message);
    ck_assert_uint_eq(reply.prefix_lookup.blocks.count, 1);
    ck_assert_uint_eq(reply.prefix_lookup.num_tokens, BLOCK);
    return reply.prefix_lookup.blocks.data[0];
}

// One publishes, another attends to what it published, without writing anything; `expected` has to come out.
static void share_a_block(float expected)
{
    static const int32_t tokens[BLOCK] = {3, 1, 4, 1, 5, 9, 2, 6};
    struct raw_client *writer = raw_session(daemon_.socket, ARENA), *reader = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(writer, "shared"), same = open_cache(reader, "shared");
    ck_assert_uint_eq(cache, same);
    publish(writer, cache, tokens, do_step(writer, cache, 2.5f));
    int32_t block = look_up(reader, cache, tokens);
    const struct wire_request request = fill_request(cache, &block, NULL);
    uint64_t batch = create_batch(reader, &request);
    put_step(reader, 999); // its own K and V are not read
    wait_done(reader, submit(reader, batch));
    check_out(reader, expected);
    raw_close(writer);
    raw_close(reader);
}

START_TEST(a_published_block_serves_another_session)
{
    start(memory_path(_i));
    share_a_block(2.5f);
    stop_clean();
}
END_TEST

START_TEST(the_corrupt_prefix_fault_spoils_what_others_get)
{
    start((const char *const[]){"--fault", "corrupt-prefix", NULL});
    share_a_block(-2.5f);
    ck_assert(daemon_log_contains(&daemon_, "fault corrupt-prefix: block"));
    stop_clean();
}
END_TEST

START_TEST(the_validation_layer_has_nothing_to_say)
{
    start((const char *const[]){"--validation", _i ? "--force-staging" : NULL, NULL});
    share_a_block(2.5f);
    stop_clean();
    ck_assert(daemon_log_contains(&daemon_, "validation: 0 messages"));
    ck_assert(!daemon_log_contains(&daemon_, "Validation Error"));
    ck_assert(!daemon_log_contains(&daemon_, "VUID-"));
}
END_TEST

// The write and the attention of one cache; those of another take their place, and they come back.
START_TEST(as_many_pipelines_are_kept_as_the_option_says)
{
    struct wire_reply reply;
    start((const char *const[]){"--max-pipelines", "2", NULL});
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    struct wire_request half = cache_request("half");
    half.cache_open.k_dtype = half.cache_open.v_dtype = DTYPE_F16;
    raw_call(raw, &half, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "CacheOpen: %s", reply.message);
    const uint64_t caches[2] = {open_cache(raw, "full"), reply.cache_open.cache};
    for (int i = 0; i < 4; i++) {
        do_step(raw, caches[i % 2], (float)i + 1);
        raw_call(raw, &(struct wire_request){.command = WIRE_COMMAND_INSPECT_DEVICE}, &reply);
        ck_assert_int_eq(reply.status, STATUS_OK);
        ck_assert_uint_eq(reply.inspect_device.pipelines, 2);
        wire_reply_finish(&reply);
    }
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(metadata_may_lie_in_the_arena)
{
    start(memory_path(_i));
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "spans");
    int32_t block;
    int64_t slots[BLOCK];
    lease(raw, cache, 1, &block);
    slots_of(block, slots);
    struct wire_request request = fill_request(cache, &block, slots);
    memcpy(raw_arena(raw) + 32768, request.batch_create.cu_seqlens_q.data, 8);
    memcpy(raw_arena(raw) + 32776, &block, 4);
    memcpy(raw_arena(raw) + 32784, slots, sizeof slots);
    request.batch_create.cu_seqlens_q = request.batch_create.block_table = (struct wire_ints){0};
    request.batch_create.slot_mapping = (struct wire_longs){0};
    request.batch_create.cu_seqlens_q_span = (struct wire_span){32768, 2};
    request.batch_create.block_table_span = (struct wire_span){32776, 1};
    request.batch_create.slot_mapping_span = (struct wire_span){32784, BLOCK};
    uint64_t batch = create_batch(raw, &request);
    memset(raw_arena(raw) + 32768, 0xff, 4096); // it was copied
    put_step(raw, 7);
    wait_done(raw, submit(raw, batch));
    check_out(raw, 7);
    raw_close(raw);
    stop_clean();
}
END_TEST

// ---- waiting ----

struct waiter {
    struct raw_client *raw;
    uint64_t cache;
    int status;
    int32_t blocks[8];
};

static void *wait_for_blocks(void *context)
{
    struct waiter *waiter = context;
    waiter->status = lease_status(waiter->raw, waiter->cache, 4, -1, waiter->blocks);
    return NULL;
}

// Until the daemon has looked at what another connection sent: nothing tells that a command is parked but that it is not answered.
static void wait_parked(void)
{
    for (int i = 0; i < 20; i++)
        nap();
}

START_TEST(a_lease_waits_until_another_session_releases)
{
    int32_t all[8];
    pthread_t thread;
    start((const char *const[]){"--max-blocks", "8", NULL});
    struct raw_client *owner = raw_session(daemon_.socket, 0);
    struct waiter waiter = {.raw = raw_session(daemon_.socket, 0), .status = -1};
    uint64_t cache = open_cache(owner, "full");
    waiter.cache = open_cache(waiter.raw, "full");
    lease(owner, cache, 8, all);
    ck_assert_int_eq(lease_status(waiter.raw, cache, 1, 0, waiter.blocks), STATUS_NO_BLOCKS);
    ck_assert_int_eq(lease_status(waiter.raw, cache, 1, 50, waiter.blocks), STATUS_NO_BLOCKS);
    ck_assert_int_eq(lease_status(waiter.raw, cache, 9, -1, waiter.blocks), STATUS_LIMIT);
    ck_assert_int_eq(pthread_create(&thread, NULL, wait_for_blocks, &waiter), 0);
    wait_parked();
    release(owner, cache, all, 4);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(waiter.status, STATUS_OK);
    raw_close(owner);
    raw_close(waiter.raw);
    stop_clean();
}
END_TEST

// Three blocks are free; the fourth is kept by the batch alone until its next step names another one.
START_TEST(a_lease_waits_until_a_step_lets_go_of_a_block)
{
    static const int32_t lens[1] = {BLOCK};
    int32_t all[8];
    int64_t slots[BLOCK];
    pthread_t thread;
    start((const char *const[]){"--max-blocks", "8", NULL});
    struct raw_client *owner = raw_session(daemon_.socket, ARENA);
    struct waiter waiter = {.raw = raw_session(daemon_.socket, 0), .status = -1};
    uint64_t cache = open_cache(owner, "full");
    waiter.cache = open_cache(waiter.raw, "full");
    lease(owner, cache, 8, all);
    slots_of(all[0], slots);
    const struct wire_request create = fill_request(cache, &all[0], slots);
    uint64_t batch = create_batch(owner, &create);
    release(owner, cache, all, 4);
    ck_assert_int_eq(lease_status(waiter.raw, cache, 4, 0, waiter.blocks), STATUS_NO_BLOCKS);
    ck_assert_int_eq(pthread_create(&thread, NULL, wait_for_blocks, &waiter), 0);
    wait_parked();
    const int32_t entry[3] = {0, 0, all[7]};
    slots_of(all[7], slots);
    const struct wire_request advance = {
        .command = WIRE_COMMAND_BATCH_ADVANCE,
        .batch_advance = {
            .batch = batch, .seq_lens_kv = {lens, 1}, .entries = {entry, 3}, .slot_mapping = {slots, BLOCK}}};
    struct wire_reply reply;
    raw_call(owner, &advance, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "BatchAdvance: %s", reply.message);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(waiter.status, STATUS_OK);
    raw_close(owner);
    raw_close(waiter.raw);
    stop_clean();
}
END_TEST

// Four of eight wait for blocks that come only when the others' small leases have let them finish.
START_TEST(a_small_lease_goes_while_a_large_one_cannot_be_met)
{
    int32_t own[2], others[6];
    pthread_t thread;
    start((const char *const[]){"--max-blocks", "8", NULL});
    struct waiter large = {.raw = raw_session(daemon_.socket, 0), .status = -1};
    struct raw_client *other = raw_session(daemon_.socket, 0);
    uint64_t cache = large.cache = open_cache(large.raw, "full");
    open_cache(other, "full");
    lease(large.raw, cache, 2, own);
    lease(other, cache, 4, others);
    ck_assert_int_eq(pthread_create(&thread, NULL, wait_for_blocks, &large), 0);
    wait_parked();
    ck_assert_int_eq(lease_status(other, cache, 1, 0, others + 4), STATUS_OK);
    ck_assert_int_eq(lease_status(other, cache, 1, 5000, others + 5), STATUS_OK);
    ck_assert_int_eq(lease_status(other, cache, 1, 0, own), STATUS_NO_BLOCKS);
    ck_assert_int_eq(large.status, -1);
    release(other, cache, others, 6);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(large.status, STATUS_OK);
    raw_close(large.raw);
    raw_close(other);
    stop_clean();
}
END_TEST

START_TEST(what_comes_free_goes_to_the_oldest_lease_first)
{
    int32_t all[8], none;
    pthread_t threads[2];
    struct waiter waiters[2];
    start((const char *const[]){"--max-blocks", "8", NULL});
    struct raw_client *owner = raw_session(daemon_.socket, 0);
    uint64_t cache = open_cache(owner, "full");
    lease(owner, cache, 8, all);
    for (int i = 0; i < 2; i++) {
        waiters[i] = (struct waiter){.raw = raw_session(daemon_.socket, 0), .cache = cache, .status = -1};
        open_cache(waiters[i].raw, "full");
        ck_assert_int_eq(pthread_create(&threads[i], NULL, wait_for_blocks, &waiters[i]), 0);
        wait_parked();
    }
    for (int i = 0; i < 2; i++) {
        release(owner, cache, all + (ptrdiff_t)i * 4, 4);
        ck_assert_int_eq(lease_status(owner, cache, 1, 0, &none), STATUS_NO_BLOCKS); // older ones had them
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        ck_assert_int_eq(waiters[i].status, STATUS_OK);
    }
    for (int i = 0; i < 2; i++)
        raw_close(waiters[i].raw);
    raw_close(owner);
    stop_clean();
}
END_TEST

START_TEST(a_parked_lease_is_told_that_the_daemon_stops)
{
    int32_t all[8];
    pthread_t thread;
    start((const char *const[]){"--max-blocks", "8", NULL});
    struct raw_client *owner = raw_session(daemon_.socket, 0);
    struct waiter waiter = {.raw = raw_session(daemon_.socket, 0), .status = -1};
    uint64_t cache = open_cache(owner, "full");
    waiter.cache = open_cache(waiter.raw, "full");
    lease(owner, cache, 8, all);
    ck_assert_int_eq(pthread_create(&thread, NULL, wait_for_blocks, &waiter), 0);
    wait_parked();
    kill(daemon_.pid, SIGTERM);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(waiter.status, STATUS_STOPPING);
    ck_assert(daemon_wait(&daemon_, DEADLINE_S));
    ck_assert_int_eq(daemon_.exit_code, 0);
    raw_close(owner);
    raw_close(waiter.raw);
}
END_TEST

START_TEST(a_ticket_is_reaped_once)
{
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "tickets");
    int32_t block = do_step(raw, cache, 1);
    const struct wire_request request = fill_request(cache, &block, NULL);
    uint64_t batch = create_batch(raw, &request), ticket = submit(raw, batch);
    wait_done(raw, ticket);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_WAIT, .wait = {ticket, -1}}, STATUS_NOT_FOUND);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_WAIT, .wait = {123456, -1}}, STATUS_NOT_FOUND);
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(a_run_of_too_much_work_is_refused_and_the_session_lives_on)
{
    static const int32_t one_query[2] = {0, 1};
    struct wire_reply reply;
    int32_t block;
    start((const char *const[]){"--max-run-work", "100000", NULL});
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "work");
    lease(raw, cache, 1, &block);
    struct wire_request create = fill_request(cache, &block, NULL), run = run_request(create_batch(raw, &create), 0);
    raw_call(raw, &run, &reply);
    ck_assert_int_eq(reply.status, STATUS_LIMIT);
    ck_assert_ptr_nonnull(strstr(reply.message, "one run may take 100000 (--max-run-work)"));
    create.batch_create.cu_seqlens_q = (struct wire_ints){one_query, 2};
    raw_call(raw, &create, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "BatchCreate: %s", reply.message);
    wait_done(raw, submit(raw, reply.batch_create.batch));
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(a_run_without_a_free_ticket_waits_and_is_told_busy)
{
    start((const char *const[]){"--max-tickets", "2", NULL});
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "tickets");
    int32_t block = do_step(raw, cache, 1);
    const struct wire_request create = fill_request(cache, &block, NULL);
    uint64_t batch = create_batch(raw, &create), first = submit(raw, batch);
    submit(raw, batch);
    struct wire_request third = run_request(batch, 0);
    raw_expect(raw, &third, STATUS_BUSY);
    third.run.timeout_ms = 50;
    raw_expect(raw, &third, STATUS_BUSY);
    wait_done(raw, first);
    raw_expect(raw, &third, STATUS_OK);
    raw_close(raw);
    stop_clean();
}
END_TEST

// ---- the end with work in flight ----

struct drainer {
    struct raw_client *raw;
    uint64_t ticket;
    int status, run_status;
};

static void *wait_for_ticket(void *context)
{
    struct drainer *drainer = context;
    const struct wire_request request = {.command = WIRE_COMMAND_WAIT, .wait = {drainer->ticket, -1}};
    struct wire_reply reply;
    raw_call(drainer->raw, &request, &reply);
    drainer->status = reply.status;
    drainer->run_status = reply.answer == WIRE_ANSWER_WAIT ? reply.wait.run_status : -1;
    return NULL;
}

// Many long rows, so that the work is still going on when the signal comes.
static uint64_t submit_long_runs(struct raw_client *raw, uint64_t cache, int count)
{
    enum { BLOCKS = 256, TOKENS = BLOCKS * BLOCK };
    static int32_t blocks[BLOCKS], cu_seqlens_q[2] = {0, TOKENS}, seq_lens_kv[1] = {TOKENS};
    struct wire_reply reply;
    uint64_t ticket = 0;
    lease(raw, cache, BLOCKS, blocks);
    const struct wire_request create = {.command = WIRE_COMMAND_BATCH_CREATE,
                                        .batch_create = {.cache = cache,
                                                         .num_seqs = 1,
                                                         .max_blocks = BLOCKS,
                                                         .cu_seqlens_q = {cu_seqlens_q, 2},
                                                         .seq_lens_kv = {seq_lens_kv, 1},
                                                         .block_table = {blocks, BLOCKS}}};
    raw_call(raw, &create, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "BatchCreate: %s", reply.message);
    struct wire_request run = run_request(reply.batch_create.batch, 0);
    run.run.q.offset = 0;
    run.run.out.offset = (uint64_t)TOKENS * ROW;
    for (int i = 0; i < count; i++) {
        raw_call(raw, &run, &reply);
        ck_assert_msg(reply.status == STATUS_OK, "Run: %s", reply.message);
        ticket = reply.run.ticket;
    }
    return ticket;
}

START_TEST(a_stop_with_runs_in_flight_finishes_them_and_exits_0)
{
    pthread_t thread;
    start((const char *const[]){"--drain-timeout", "100000", _i ? "--force-staging" : NULL, NULL});
    struct drainer drainer = {.raw = raw_session(daemon_.socket, 1 << 20), .status = -1};
    drainer.ticket = submit_long_runs(drainer.raw, open_cache(drainer.raw, "long"), 16);
    ck_assert_int_eq(pthread_create(&thread, NULL, wait_for_ticket, &drainer), 0);
    wait_parked();
    ck_assert_int_eq(kill(daemon_.pid, SIGTERM), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(drainer.status, STATUS_OK);
    ck_assert_int_eq(drainer.run_status, STATUS_OK);
    stop_clean();
    raw_close(drainer.raw);
}
END_TEST

START_TEST(a_drain_deadline_ends_what_does_not_finish)
{
    pthread_t thread;
    start((const char *const[]){"--drain-timeout", "0", NULL});
    struct drainer drainer = {.raw = raw_session(daemon_.socket, 1 << 20), .status = -1};
    drainer.ticket = submit_long_runs(drainer.raw, open_cache(drainer.raw, "long"), 64);
    ck_assert_int_eq(pthread_create(&thread, NULL, wait_for_ticket, &drainer), 0);
    wait_parked();
    stop_clean();
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert(drainer.status == STATUS_STOPPING || drainer.status == STATUS_OK); // a fast device may have been done
    raw_close(drainer.raw);
}
END_TEST

// ---- sessions that die ----

static void hold_blocks_and_work(int ready_fd)
{
    struct raw_client *raw = raw_session(daemon_.socket, 1 << 20);
    uint64_t cache = open_cache(raw, "dying");
    int32_t blocks[5];
    lease(raw, cache, 5, blocks);
    submit_long_runs(raw, cache, 8);
    if (write(ready_fd, "r", 1) != 1)
        _exit(1);
    pause();
}

static void wait_for_empty_pool(struct raw_client *raw)
{
    struct wire_inspect_daemon_reply state = raw_inspect(raw);
    for (int i = 0; i < DEADLINE_S * 100 && (state.num_sessions || state.leased_blocks || state.quarantined_blocks);
         i++) {
        nap();
        state = raw_inspect(raw);
    }
    ck_assert_uint_eq(state.num_sessions, 0);
    ck_assert_uint_eq(state.leased_blocks, 0);
    ck_assert_uint_eq(state.held_blocks, 0);
    ck_assert_uint_eq(state.quarantined_blocks, 0);
}

START_TEST(a_killed_client_gives_its_blocks_back)
{
    int ready_fd;
    start(memory_path(_i));
    pid_t child = spawn(hold_blocks_and_work, &ready_fd);
    wait_child_ready(ready_fd);
    struct raw_client *raw = raw_open(daemon_.socket);
    ck_assert_uint_ge(raw_inspect(raw).leased_blocks, 5);
    ck_assert_uint_eq(raw_inspect(raw).num_sessions, 1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    wait_for_empty_pool(raw);
    ck_assert_uint_eq(raw_inspect(raw).session_deaths, 1);
    raw_close(raw);
    stop_clean();
}
END_TEST

// Its grandchild keeps a copy of the connection open and tells its own pid.
static void hold_blocks_and_fork(int ready_fd)
{
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    int32_t blocks[5];
    lease(raw, open_cache(raw, "dying"), 5, blocks);
    pid_t grandchild = fork();
    if (grandchild == 0) {
        for (;;)
            pause();
    }
    if (write(ready_fd, &grandchild, sizeof grandchild) != sizeof grandchild)
        _exit(1);
    pause();
}

START_TEST(a_killed_client_whose_child_keeps_the_connection_gives_its_blocks_back)
{
    int ready_fd;
    pid_t grandchild;
    start(NULL);
    pid_t child = spawn(hold_blocks_and_fork, &ready_fd);
    ck_assert_int_eq(read(ready_fd, &grandchild, sizeof grandchild), sizeof grandchild);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    struct raw_client *raw = raw_open(daemon_.socket);
    wait_for_empty_pool(raw);
    ck_assert_int_eq(kill(grandchild, 0), 0);
    ck_assert(daemon_log_contains(&daemon_, "its process is gone"));
    kill(grandchild, SIGKILL);
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(a_stopped_client_holds_up_nobody)
{
    int ready_fd;
    start(memory_path(_i));
    pid_t child = spawn(hold_blocks_and_work, &ready_fd);
    wait_child_ready(ready_fd);
    kill(child, SIGSTOP);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "dying");
    for (int i = 1; i <= 10; i++)
        do_step(raw, cache, (float)i);
    ck_assert_uint_eq(raw_inspect(raw).num_sessions, 2);
    raw_close(raw);
    stop_clean();
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}
END_TEST

START_TEST(a_session_that_never_maps_its_segment_ends)
{
    struct wire_reply reply;
    start(NULL);
    struct raw_client *raw = raw_open(daemon_.socket);
    raw_hello(raw, ARENA, &reply);
    ck_assert_int_eq(reply.status, STATUS_OK);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_CACHE_STATE}, STATUS_INVALID); // not before Mapped
    wait_for_empty_pool(raw);
    ck_assert_int_eq(daemon_count_segments(&daemon_), 0);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_MAPPED}, STATUS_NO_SESSION);
    raw_close(raw);
    stop_clean();
}
END_TEST

// ---- limits and looking inside ----

static void expect_hello(struct raw_client *raw, uint64_t arena_size, int status, const char *words)
{
    struct wire_reply reply;
    raw_hello(raw, arena_size, &reply);
    ck_assert_msg(reply.status == status, "Hello: %s: %s", status_name(reply.status), reply.message);
    ck_assert_msg(!words || strstr(reply.message, words), "\"%s\" lacks \"%s\"", reply.message, words);
}

START_TEST(sessions_and_arenas_have_limits_that_the_sentence_names)
{
    start((const char *const[]){"--max-sessions", "2", "--max-arena", "64K", NULL});
    struct raw_client *clients[3];
    for (int i = 0; i < 3; i++)
        clients[i] = raw_open(daemon_.socket);
    expect_hello(clients[0], 65537, STATUS_LIMIT, "--max-arena 65536");
    expect_hello(clients[0], UINT64_MAX, STATUS_LIMIT, "--max-arena 65536");
    expect_hello(clients[0], 65536, STATUS_OK, NULL);
    expect_hello(clients[0], 65536, STATUS_INVALID, "already");
    expect_hello(clients[1], 0, STATUS_OK, NULL);
    expect_hello(clients[2], 0, STATUS_LIMIT, "--max-sessions is 2");
    raw_expect(clients[0], &(struct wire_request){.command = WIRE_COMMAND_CLOSE_SESSION}, STATUS_OK);
    expect_hello(clients[2], 0, STATUS_OK, NULL);
    for (int i = 0; i < 3; i++)
        raw_close(clients[i]);
    stop_clean();
}
END_TEST

START_TEST(an_arena_that_shared_memory_cannot_hold_is_refused_with_numbers)
{
    start((const char *const[]){"--max-arena", "900G", NULL});
    struct raw_client *raw = raw_open(daemon_.socket);
    expect_hello(raw, UINT64_C(800) << 30, STATUS_NO_MEMORY, "/dev/shm has");
    ck_assert_int_eq(daemon_count_segments(&daemon_), 0);
    expect_hello(raw, ARENA, STATUS_OK, NULL); // the connection is as good as before
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(metadata_caches_batches_and_blocks_have_limits_that_the_sentence_names)
{
    int32_t blocks[16];
    struct wire_reply reply;
    start((const char *const[]){"--max-metadata", "4096", "--max-caches", "1", "--max-batches", "1", "--session-blocks",
                                "4", NULL});
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "one");
    struct wire_request request = cache_request("two");
    raw_call(raw, &request, &reply);
    ck_assert_int_eq(reply.status, STATUS_LIMIT);
    ck_assert_ptr_nonnull(strstr(reply.message, "--max-caches"));
    request = (struct wire_request){.command = WIRE_COMMAND_PREFIX_LOOKUP,
                                    .prefix_lookup = {.cache = cache, .token_span = {0, 1025}}};
    raw_call(raw, &request, &reply);
    ck_assert_int_eq(reply.status, STATUS_LIMIT);
    ck_assert_ptr_nonnull(strstr(reply.message, "--max-metadata"));
    ck_assert_int_eq(lease_status(raw, cache, 5, 0, blocks), STATUS_QUOTA);
    lease(raw, cache, 1, blocks);
    request = fill_request(cache, blocks, NULL);
    create_batch(raw, &request);
    raw_call(raw, &request, &reply);
    ck_assert_int_eq(reply.status, STATUS_LIMIT);
    ck_assert_ptr_nonnull(strstr(reply.message, "--max-batches"));
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(an_operator_sees_sessions_and_can_end_one)
{
    struct wire_reply reply;
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA), *operator= raw_open(daemon_.socket);
    raw_call(operator, &(struct wire_request){.command = WIRE_COMMAND_INSPECT_SESSIONS}, &reply);
    ck_assert_int_eq(reply.status, STATUS_OK);
    ck_assert_uint_eq(reply.inspect_sessions.total, 1);
    ck_assert_uint_eq(reply.inspect_sessions.count, 1);
    ck_assert_uint_eq(reply.inspect_sessions.sessions[0].session, raw->session);
    ck_assert_uint_eq(reply.inspect_sessions.sessions[0].pid, (uint64_t)getpid());
    ck_assert_uint_eq(reply.inspect_sessions.sessions[0].uid, getuid());
    ck_assert_uint_eq(reply.inspect_sessions.sessions[0].arena_bytes, ARENA);
    ck_assert_str_eq(reply.inspect_sessions.names.data[0], "raw");
    ck_assert_str_eq(reply.inspect_sessions.tenants.data[0], "tests");
    wire_reply_finish(&reply);
    raw_expect(operator, &(struct wire_request){.command = WIRE_COMMAND_KILL_SESSION, .kill_session = {99}},
               STATUS_NOT_FOUND);
    raw_expect(operator, &(struct wire_request){.command = WIRE_COMMAND_KILL_SESSION, .kill_session = {raw->session}},
               STATUS_OK);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_CACHE_STATE}, STATUS_NO_SESSION);
    ck_assert_uint_eq(raw_inspect(operator).num_sessions, 0);
    raw_close(raw);
    raw_close(operator);
    stop_clean();
}
END_TEST

// Unless one is forced, the shader in use is the first of the table that lacks nothing.
static void check_variants(const struct wire_inspect_device_reply *device)
{
    uint32_t first = 0;
    while (first < device->variants.count && device->variant_missing.data[first][0])
        first++;
    ck_assert_uint_lt(first, device->variants.count);
    ck_assert_uint_eq(device->variant_needs.count, device->variants.count);
    ck_assert_uint_eq(device->variant_missing.count, device->variants.count);
    if (!getenv("AULE_VARIANT"))
        ck_assert_str_eq(device->variant, device->variants.data[first]);
}

START_TEST(an_operator_sees_device_caches_and_blocks)
{
    struct wire_reply reply;
    start(NULL);
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    uint64_t cache = open_cache(raw, "seen");
    int32_t block = do_step(raw, cache, 1);
    raw_call(raw, &(struct wire_request){.command = WIRE_COMMAND_INSPECT_DEVICE}, &reply);
    ck_assert_int_eq(reply.status, STATUS_OK);
    ck_assert_uint_gt(strlen(reply.inspect_device.name), 0);
    ck_assert_uint_ge(reply.inspect_device.pipelines, 1);
    ck_assert_uint_gt(reply.inspect_device.budget_bytes, 0);
    check_variants(&reply.inspect_device);
    wire_reply_finish(&reply);
    raw_call(raw, &(struct wire_request){.command = WIRE_COMMAND_INSPECT_CACHES}, &reply);
    ck_assert_int_eq(reply.status, STATUS_OK);
    ck_assert_uint_eq(reply.inspect_caches.total, 1);
    ck_assert_uint_eq(reply.inspect_caches.caches[0].cache, cache);
    ck_assert_uint_eq(reply.inspect_caches.caches[0].leased_blocks, 1);
    ck_assert_str_eq(reply.inspect_caches.names.data[0], "seen");
    wire_reply_finish(&reply);
    struct wire_request request = {.command = WIRE_COMMAND_INSPECT_BLOCKS,
                                   .inspect_blocks = {cache, (uint32_t)block, 1}};
    raw_call(raw, &request, &reply);
    ck_assert_int_eq(reply.status, STATUS_OK);
    ck_assert_uint_eq(reply.inspect_blocks.count, 1);
    ck_assert_int_eq(reply.inspect_blocks.blocks[0].block, block);
    ck_assert_uint_eq(reply.inspect_blocks.blocks[0].writer, raw->session);
    wire_reply_finish(&reply);
    request.inspect_blocks = (struct wire_inspect_blocks){cache + 1000, 0, 0};
    raw_expect(raw, &request, STATUS_NOT_FOUND);
    raw_close(raw);
    stop_clean();
}
END_TEST

START_TEST(hundreds_of_sessions_leave_descriptors_and_segments_flat)
{
    start(memory_path(_i));
    struct raw_client *watcher = raw_open(daemon_.socket);
    raw_close(raw_session(daemon_.socket, ARENA));
    wait_for_empty_pool(watcher);
    int before = count_fds(daemon_.pid);
    for (int i = 0; i < 300; i++) {
        struct raw_client *raw = raw_session(daemon_.socket, ARENA);
        if (i % 2)
            raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_CLOSE_SESSION}, STATUS_OK);
        raw_close(raw);
    }
    wait_for_empty_pool(watcher);
    int after = count_fds(daemon_.pid);
    for (int i = 0; i < DEADLINE_S * 100 && after > before; i++, after = count_fds(daemon_.pid))
        nap();
    ck_assert_int_le(after, before);
    ck_assert_int_eq(daemon_count_segments(&daemon_), 0);
    raw_close(watcher);
    stop_clean();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("daemon");
    suite_add(suite, "life",
              (const TTest *const[]){
                  starts_serves_and_leaves_nothing_behind, without_options_the_best_device_listens_where_clients_look,
                  the_socket_is_private, a_second_daemon_on_the_same_socket_is_refused_with_a_sentence,
                  what_a_killed_daemon_left_is_removed_by_the_next, a_regular_file_at_the_path_is_refused_and_stays,
                  a_socket_path_beyond_107_bytes_is_refused, information_options_end_0,
                  a_second_signal_ends_at_once_and_clean, hangup_signal_changes_nothing, an_idle_daemon_sleeps, NULL},
              1);
    suite_add(suite, "bad options", (const TTest *const[]){a_bad_option_is_refused_with_its_value, NULL},
              NUM_BAD_OPTIONS);
    suite_add(suite, "both memory paths",
              (const TTest *const[]){one_client_gets_attention, a_published_block_serves_another_session,
                                     the_validation_layer_has_nothing_to_say, metadata_may_lie_in_the_arena,
                                     a_stop_with_runs_in_flight_finishes_them_and_exits_0,
                                     a_killed_client_gives_its_blocks_back, a_stopped_client_holds_up_nobody,
                                     hundreds_of_sessions_leave_descriptors_and_segments_flat, NULL},
              2);
    suite_add(suite, "work",
              (const TTest *const[]){
                  the_corrupt_prefix_fault_spoils_what_others_get, as_many_pipelines_are_kept_as_the_option_says,
                  a_lease_waits_until_another_session_releases, a_lease_waits_until_a_step_lets_go_of_a_block,
                  a_small_lease_goes_while_a_large_one_cannot_be_met, what_comes_free_goes_to_the_oldest_lease_first,
                  a_parked_lease_is_told_that_the_daemon_stops, a_ticket_is_reaped_once,
                  a_run_of_too_much_work_is_refused_and_the_session_lives_on,
                  a_run_without_a_free_ticket_waits_and_is_told_busy, a_drain_deadline_ends_what_does_not_finish,
                  a_session_that_never_maps_its_segment_ends,
                  a_killed_client_whose_child_keeps_the_connection_gives_its_blocks_back, NULL},
              1);
    suite_add(suite, "limits",
              (const TTest *const[]){sessions_and_arenas_have_limits_that_the_sentence_names,
                                     an_arena_that_shared_memory_cannot_hold_is_refused_with_numbers,
                                     metadata_caches_batches_and_blocks_have_limits_that_the_sentence_names,
                                     an_operator_sees_sessions_and_can_end_one,
                                     an_operator_sees_device_caches_and_blocks, NULL},
              1);
    return check_main(suite);
}
