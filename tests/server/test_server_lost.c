// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_server_lost.c - the real server and core over the fake engine, in another process: what
// clients are told when the GPU is lost or a run never ends, and what the server does while a
// driver hangs or the job thread is busy with large metadata. SIGUSR1 loses the device, SIGUSR2
// finishes the oldest submission. Both act at the next engine_poll(), which the linker redirects
// here, because the fake belongs to the dispatcher.

#include "core/core.h"
#include "fakes/fake_engine.h"
#include "rigs/check_main.h"
#include "rigs/raw_client.h"
#include "rigs/small_server.h"
#include "server/log.h"
#include "server/server.h"
#include "server/socket_path.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ARENA = 65536, BLOCK = 8, DRAIN_MS = 200, LONG_DRAIN_MS = 600000 };

static char folder[64], socket_path[96];
static pid_t server_pid;

// The engine of the server's process hangs here while the test has it `closed`. It is in memory
// that both processes share.
enum gate_kind {
    GATE_SUBMIT,
    GATE_ARENA_CREATE,
    GATE_ARENA_DESTROY,
    GATE_BATCH,
    GATE_PIECE, // it does not hang: calls in pieces go on without making any
    GATE_END,
    GATE_COUNT
};
static struct gate {
    atomic_bool closed;
    atomic_uint came;
} * gates;
static atomic_bool *engine_stays; // it does not end in time

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 2 * 1000 * 1000}, NULL);
}

static void make_gates(void)
{
    gates = mmap(NULL, GATE_COUNT * sizeof *gates + sizeof *engine_stays, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(gates, MAP_FAILED);
    engine_stays = (atomic_bool *)(gates + GATE_COUNT);
}

static void await_at_gate(enum gate_kind kind, unsigned count)
{
    while (atomic_load(&gates[kind].came) < count)
        nap();
}

// ---- in the server's process ----

static volatile sig_atomic_t lose_now, finish_now;

bool __real_engine_poll(struct engine *engine, struct engine_event *event);
bool __wrap_engine_poll(struct engine *engine, struct engine_event *event);

bool __wrap_engine_poll(struct engine *engine, struct engine_event *event)
{
    static bool lost;
    if (lose_now && !lost) {
        lost = true;
        fake_engine_lose(engine, "the test pulled the plug");
    } else if (finish_now) {
        finish_now = 0; // reset before acting: another signal may come meanwhile
        fake_engine_finish(engine);
    }
    return __real_engine_poll(engine, event);
}

// The GPU runs a run that never ends, so a thread that waits for it waits for ever.
enum status __wrap_engine_wait(struct engine *engine, uint64_t sequence, int timeout_ms);

enum status __wrap_engine_wait(struct engine *engine, uint64_t sequence, int timeout_ms)
{
    (void)engine;
    (void)sequence;
    (void)timeout_ms;
    for (;;)
        pause();
}

static void pass(enum gate_kind kind)
{
    atomic_fetch_add(&gates[kind].came, 1);
    while (atomic_load(&gates[kind].closed))
        nap();
}

enum status __real_engine_submit(struct engine *engine, const struct engine_submission *submission,
                                 uint64_t *sequence, struct error *error);
enum status __wrap_engine_submit(struct engine *engine, const struct engine_submission *submission,
                                 uint64_t *sequence, struct error *error);

enum status __wrap_engine_submit(struct engine *engine, const struct engine_submission *submission,
                                 uint64_t *sequence, struct error *error)
{
    enum status status = __real_engine_submit(engine, submission, sequence, error);
    pass(GATE_SUBMIT);
    return status;
}

enum status __real_engine_arena_create(struct engine *engine, void *base, uint64_t size,
                                       struct engine_arena **out, struct error *error);
enum status __wrap_engine_arena_create(struct engine *engine, void *base, uint64_t size,
                                       struct engine_arena **out, struct error *error);

enum status __wrap_engine_arena_create(struct engine *engine, void *base, uint64_t size,
                                       struct engine_arena **out, struct error *error)
{
    pass(GATE_ARENA_CREATE);
    return __real_engine_arena_create(engine, base, size, out, error);
}

bool __real_engine_arena_destroy(struct engine_arena *arena);
bool __wrap_engine_arena_destroy(struct engine_arena *arena);

bool __wrap_engine_arena_destroy(struct engine_arena *arena)
{
    pass(GATE_ARENA_DESTROY);
    return __real_engine_arena_destroy(arena);
}

enum status __real_engine_batch_create(const struct engine_batch_params *params,
                                       struct engine_batch **out, struct error *error);
enum status __wrap_engine_batch_create(const struct engine_batch_params *params,
                                       struct engine_batch **out, struct error *error);

enum status __wrap_engine_batch_create(const struct engine_batch_params *params,
                                       struct engine_batch **out, struct error *error)
{
    pass(GATE_BATCH);
    return __real_engine_batch_create(params, out, error);
}

enum { PIECES_BEFORE_GATE = 3 };

enum status __real_core_pieces_next(struct core_pieces *pieces, bool *more, struct error *error);
enum status __wrap_core_pieces_next(struct core_pieces *pieces, bool *more, struct error *error);

enum status __wrap_core_pieces_next(struct core_pieces *pieces, bool *more, struct error *error)
{
    struct gate *gate = &gates[GATE_PIECE];
    if (!atomic_load(&gate->closed) || atomic_fetch_add(&gate->came, 1) < PIECES_BEFORE_GATE)
        return __real_core_pieces_next(pieces, more, error);
    *more = true;
    return STATUS_OK;
}

bool __real_engine_destroy_within(struct engine *engine, int timeout_ms);
bool __wrap_engine_destroy_within(struct engine *engine, int timeout_ms);

bool __wrap_engine_destroy_within(struct engine *engine, int timeout_ms)
{
    pass(GATE_END);
    return !atomic_load(engine_stays) && __real_engine_destroy_within(engine, timeout_ms);
}

static void on_signal(int number)
{
    if (number == SIGUSR1)
        lose_now = 1;
    else
        finish_now = 1;
}

enum {
    EXIT_REFUSED = 99,
    EXIT_REFUSED_AT_WORK = 97
}; // server_create() failed; and its engine did not end

static void serve(const struct server_params *params, int ready_fd)
{
    struct server *server = NULL;
    struct error error;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    log_set_level(LOG_LEVEL_ERROR);
    if (server_create(params, &server, &error) != STATUS_OK) {
        fprintf(stderr, "%s\n", error.text);
        _exit(server_destroy(server) ? EXIT_REFUSED : EXIT_REFUSED_AT_WORK);
    }
    // The signals are blocked in all threads of the server. Only the dispatcher receives them, so
    // that they wake it.
    signal(SIGUSR1, on_signal);
    signal(SIGUSR2, on_signal);
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigaddset(&signals, SIGUSR2);
    sigprocmask(SIG_UNBLOCK, &signals, NULL);
    if (write(ready_fd, "r", 1) != 1)
        _exit(98);
    enum server_exit code = server_run(server);
    server_destroy(server);
    _exit(code);
}

// ---- in the test's process ----

static void make_folder(void)
{
    strcpy(folder, "/tmp/aule-lost-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(socket_path, sizeof socket_path, "%s/0.sock", folder);
    make_gates();
}

// False: it ended before it was ready.
static bool fork_server(uint32_t drain_timeout_ms)
{
    int ends[2];
    char byte;
    struct server_params params = small_server(socket_path);
    params.drain_timeout_ms = drain_timeout_ms;
    params.core.piece_blocks = 1;
    ck_assert_int_eq(pipe(ends), 0);
    sigset_t signals; // see serve()
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigaddset(&signals, SIGUSR2);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    fflush(NULL);
    server_pid = fork();
    ck_assert_int_ge(server_pid, 0);
    if (server_pid == 0)
        serve(&params, ends[1]);
    close(ends[1]);
    bool ready = read(ends[0], &byte, 1) == 1;
    close(ends[0]);
    return ready;
}

static void start_server(uint32_t drain_timeout_ms)
{
    make_folder();
    ck_assert(fork_server(drain_timeout_ms));
}

static int wait_server(void)
{
    int status;
    ck_assert_int_eq(waitpid(server_pid, &status, 0), server_pid);
    server_pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static int wait_clean_server(void)
{
    char lock_path[128];
    int code = wait_server();
    snprintf(lock_path, sizeof lock_path, "%s.lock", socket_path);
    ck_assert_int_eq(access(socket_path, F_OK), -1);
    ck_assert_int_eq(access(lock_path, F_OK), -1);
    return code;
}

static void stop_server(void)
{
    if (server_pid > 0) {
        kill(server_pid, SIGKILL);
        waitpid(server_pid, NULL, 0);
    }
    unlink(socket_path);
    rmdir(folder);
}

static uint64_t open_cache(struct raw_client *raw)
{
    const struct wire_request request = {.command = WIRE_COMMAND_CACHE_OPEN,
                                         .cache_open = {.name = "lost",
                                                        .num_layers = 1,
                                                        .num_kv_heads = 1,
                                                        .head_dim_k = 8,
                                                        .head_dim_v = 8,
                                                        .k_dtype = DTYPE_F32,
                                                        .v_dtype = DTYPE_F32,
                                                        .block_size = BLOCK}};
    struct wire_reply reply;
    raw_call(raw, &request, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "CacheOpen: %s", reply.message);
    return reply.cache_open.cache;
}

// One token is written and attended to. The fake does not finish it by itself.
static struct wire_request endless_run(struct raw_client *raw, uint64_t cache, int32_t *blocks,
                                       uint32_t count)
{
    static const int32_t cu_seqlens_q[2] = {0, 1}, seq_lens_kv[1] = {1};
    struct wire_reply reply;
    int64_t slot;
    raw_call(raw,
             &(struct wire_request){.command = WIRE_COMMAND_BLOCKS_LEASE,
                                    .blocks_lease = {cache, count, 10000}},
             &reply);
    ck_assert_msg(reply.status == STATUS_OK, "BlocksLease: %s", reply.message);
    memcpy(blocks, reply.blocks_lease.blocks.data, count * sizeof *blocks);
    slot = (int64_t)blocks[0] * BLOCK;
    const struct wire_request create = {.command = WIRE_COMMAND_BATCH_CREATE,
                                        .batch_create = {.cache = cache,
                                                         .num_seqs = 1,
                                                         .max_blocks = 1,
                                                         .cu_seqlens_q = {cu_seqlens_q, 2},
                                                         .seq_lens_kv = {seq_lens_kv, 1},
                                                         .block_table = {blocks, 1},
                                                         .slot_mapping = {&slot, 1}}};
    raw_call(raw, &create, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "BatchCreate: %s", reply.message);
    const struct wire_tensor tensor = {.dtype = DTYPE_F32, .token_stride = 32, .head_stride = 32};
    struct wire_request run = {.command = WIRE_COMMAND_RUN,
                               .run.entry = {.batch = reply.batch_create.batch,
                                             .num_heads = 1,
                                             .q = tensor,
                                             .k = tensor,
                                             .v = tensor,
                                             .out = tensor,
                                             .window_left = -1,
                                             .window_right = -1}};
    run.run.entry.out.offset = 4096;
    return run;
}

static uint64_t submit_endless(struct raw_client *raw, uint64_t cache, int32_t *blocks,
                               uint32_t count)
{
    const struct wire_request run = endless_run(raw, cache, blocks, count);
    struct wire_reply reply;
    raw_call(raw, &run, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "Run: %s", reply.message);
    return reply.run.ticket;
}

// The daemon handles the messages of a connection in order. When the second is answered, the first
// is parked.
static void park(struct raw_client *raw, const struct wire_request *request,
                 struct raw_pending *pending)
{
    raw_begin(raw, request, pending);
    raw_inspect(raw);
}

// A run with a parked wait: a Wait, or the wait of the Run itself. The GPU has it at the return:
// the daemon may serve several messages before it submits, and a run that was not submitted is
// dropped with its session.
enum asks { RUN_AND_WAIT, RUN_THAT_WAITS, NUM_ASKS };

static void park_endless(enum asks asks, struct raw_client *raw, uint64_t cache,
                         uint32_t num_blocks, struct raw_pending *pending)
{
    int32_t blocks[SMALL_BLOCKS];
    struct wire_request request = {.command = WIRE_COMMAND_WAIT, .wait = {.timeout_ms = -1}};
    if (asks == RUN_AND_WAIT) {
        request.wait.ticket = submit_endless(raw, cache, blocks, num_blocks);
    } else {
        request = endless_run(raw, cache, blocks, num_blocks);
        request.run.waits = true;
        request.run.wait_ms = -1;
    }
    park(raw, &request, pending);
    await_at_gate(GATE_SUBMIT, 1);
}

// A client that asked for both at once learns the ticket only now.
static void check_ticket(enum asks asks, const struct wire_reply *reply)
{
    ck_assert_uint_eq(reply->ticket, asks == RUN_AND_WAIT ? 0 : 1);
}

static struct wire_reply answer_to(struct raw_pending *pending)
{
    struct wire_reply reply;
    raw_end(pending, &reply);
    return reply;
}

// Waits until `count` blocks are in quarantine, and gives that state.
static struct daemon_state await_quarantined(struct raw_client *watcher, uint32_t count)
{
    struct daemon_state state = raw_inspect(watcher);
    for (int i = 0; i < 3000 && state.quarantined_blocks != count; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
        state = raw_inspect(watcher);
    }
    ck_assert_uint_eq(state.quarantined_blocks, count);
    return state;
}

// For a session that has ended: its blocks are freed when its run ends. What waited for the run is
// answered before the blocks are in quarantine.
static void finish_run(struct raw_client *watcher)
{
    await_quarantined(watcher, 1);
    ck_assert_int_eq(kill(server_pid, SIGUSR2), 0);
    ck_assert_uint_eq(await_quarantined(watcher, 0).leased_blocks, 0);
}

static atomic_bool heard;

// A signal that arrives just before the dispatcher sleeps wakes nothing, so it is sent until it was
// handled.
static void *lose(void *context)
{
    (void)context;
    while (!atomic_load(&heard)) {
        kill(server_pid, SIGUSR1);
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    }
    return NULL;
}

START_TEST(a_lost_device_answers_all_that_waits_and_ends_with_3)
{
    start_server(DRAIN_MS);
    struct raw_client *worker = raw_session(socket_path, ARENA),
                      *waiting = raw_session(socket_path, 0);
    uint64_t cache = open_cache(worker);
    ck_assert_uint_eq(open_cache(waiting), cache);
    const struct wire_request lease = {.command = WIRE_COMMAND_BLOCKS_LEASE,
                                       .blocks_lease = {cache, 1, -1}};
    struct raw_pending run, blocked;
    pthread_t thread;
    park_endless((enum asks)_i, worker, cache, SMALL_BLOCKS, &run);
    park(waiting, &lease, &blocked);
    ck_assert_int_eq(pthread_create(&thread, NULL, lose, NULL), 0);
    struct wire_reply reply = answer_to(&run);
    ck_assert(reply.status == STATUS_DEVICE_LOST ||
              (reply.status == STATUS_OK && reply.wait.run_status == STATUS_DEVICE_LOST));
    check_ticket((enum asks)_i, &reply);
    ck_assert_int_eq(answer_to(&blocked).status, STATUS_DEVICE_LOST);
    atomic_store(&heard, true);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(wait_clean_server(), SERVER_EXIT_DEVICE_LOST);
    raw_close(worker);
    raw_close(waiting);
}
END_TEST

START_TEST(a_run_that_never_ends_does_not_keep_the_daemon)
{
    start_server(DRAIN_MS);
    struct raw_client *raw = raw_session(socket_path, ARENA);
    struct raw_pending run;
    park_endless((enum asks)_i, raw, open_cache(raw), 1, &run);
    ck_assert_int_eq(kill(server_pid, SIGTERM), 0);
    const struct wire_reply over = answer_to(&run);
    ck_assert_int_eq(over.status, STATUS_STOPPING);
    check_ticket((enum asks)_i, &over);
    ck_assert_int_eq(wait_clean_server(), SERVER_EXIT_OK);
    raw_close(raw);
}
END_TEST

START_TEST(a_run_that_never_ends_is_answered_when_its_session_is_killed)
{
    start_server(DRAIN_MS);
    struct raw_client *raw = raw_session(socket_path, ARENA), *operator= raw_open(socket_path);
    struct raw_pending run;
    park_endless((enum asks)_i, raw, open_cache(raw), 1, &run);
    raw_expect(operator, &(struct wire_request){.command = WIRE_COMMAND_KILL_SESSION,
                                                .kill_session = {raw->session}},
               STATUS_OK);
    const struct wire_reply over = answer_to(&run);
    ck_assert_int_eq(over.status, STATUS_NO_SESSION);
    ck_assert_msg(strstr(over.message, "has ended") != NULL, "%s", over.message);
    check_ticket((enum asks)_i, &over);
    finish_run(operator);
    ck_assert_int_eq(kill(server_pid, SIGTERM), 0);
    ck_assert_int_eq(wait_clean_server(), SERVER_EXIT_OK);
    raw_close(operator);
    raw_close(raw);
}
END_TEST

// Everything that the end of a daemon may wait for, within its drain timeout.
START_TEST(a_second_signal_ends_a_daemon_whose_engine_hangs_at_the_end)
{
    const enum gate_kind kind = _i ? GATE_END : GATE_ARENA_DESTROY;
    start_server(LONG_DRAIN_MS);
    struct raw_client *raw = raw_session(socket_path, ARENA);
    atomic_store(&gates[kind].closed, true);
    ck_assert_int_eq(kill(server_pid, SIGTERM), 0);
    await_at_gate(kind, 1);
    ck_assert_int_eq(kill(server_pid, SIGTERM), 0);
    ck_assert_int_eq(wait_clean_server(), SERVER_EXIT_OK);
    raw_close(raw);
}
END_TEST

// ---- failed handshakes and failed starts ----

static int begin_hello(void)
{
    const struct wire_request hello = {.command = WIRE_COMMAND_HELLO,
                                       .hello = {.major = WIRE_PROTOCOL_MAJOR,
                                                 .minor = WIRE_PROTOCOL_MINOR,
                                                 .client_name = "impatient",
                                                 .tenant = "",
                                                 .arena_size = ARENA}};
    struct wire_buffer buffer;
    struct error error;
    int fd = bare_connect(socket_path, true);
    ck_assert_int_eq(wire_encode_request(&hello, &buffer, &error), STATUS_OK);
    ck_assert(bare_send(fd, buffer.data, buffer.size, 1));
    wire_buffer_finish(&buffer);
    return fd;
}

static void await_sessions(struct raw_client *watcher, uint32_t count)
{
    while (raw_inspect(watcher).num_sessions != count)
        nap();
}

START_TEST(handshakes_whose_clients_have_gone_hold_up_nobody)
{
    enum { GONE = 5 };
    int gone[GONE];
    start_server(DRAIN_MS);
    struct raw_client *watcher = raw_open(socket_path);
    atomic_store(&gates[GATE_ARENA_CREATE].closed, true);
    int first = begin_hello();
    await_at_gate(GATE_ARENA_CREATE, 1);
    for (int i = 0; i < GONE; i++)
        gone[i] = begin_hello();
    await_sessions(watcher, 1 + GONE);
    for (int i = 0; i < GONE; i++)
        close(gone[i]);
    await_sessions(watcher, 1);
    atomic_store(&gates[GATE_ARENA_CREATE].closed, false);
    struct raw_client *raw = raw_session(socket_path, ARENA);
    ck_assert_uint_eq(atomic_load(&gates[GATE_ARENA_CREATE].came),
                      2); // clients that are gone got none
    close(first);
    await_sessions(watcher, 1);
    raw_close(raw);
    raw_close(watcher);
    ck_assert_int_eq(kill(server_pid, SIGTERM), 0);
    ck_assert_int_eq(wait_clean_server(), SERVER_EXIT_OK);
}
END_TEST

static void touch(const char *shm_name)
{
    int fd = shm_open(shm_name, O_CREAT | O_RDWR, 0600);
    ck_assert_int_ge(fd, 0);
    close(fd);
}

// A file has the path of the socket.
START_TEST(a_refused_start_leaves_what_is_not_its_own_and_says_whether_its_engine_ended)
{
    char other[64];
    make_folder();
    snprintf(other, sizeof other, "/aule-%d-left", (int)getpid());
    touch(other);
    FILE *file = fopen(socket_path, "we");
    ck_assert_ptr_nonnull(file);
    fclose(file);
    atomic_store(engine_stays, _i == 1);
    ck_assert(!fork_server(DRAIN_MS));
    ck_assert_int_eq(wait_server(), _i == 1 ? EXIT_REFUSED_AT_WORK : EXIT_REFUSED);
    ck_assert_int_eq(access(socket_path, F_OK), 0);
    ck_assert_int_eq(shm_unlink(other), 0);
}
END_TEST

static void check_dead_session(struct raw_client *watcher, uint64_t id, uint64_t arena)
{
    struct wire_reply reply;
    raw_call(watcher, &(struct wire_request){.command = WIRE_COMMAND_INSPECT_SESSIONS}, &reply);
    ck_assert_int_eq(reply.status, STATUS_OK);
    ck_assert_uint_eq(reply.inspect_sessions.total, 1);
    ck_assert_uint_eq(reply.inspect_sessions.sessions.data[0].session, id);
    ck_assert(reply.inspect_sessions.sessions.data[0].dead);
    ck_assert_uint_eq(reply.inspect_sessions.sessions.data[0].arena_bytes, arena);
    wire_reply_finish(&reply);
}

// Those that have ended and whose segment is still mapped count, too.
static uint32_t num_sessions(struct raw_client *watcher)
{
    struct wire_reply reply;
    raw_call(watcher, &(struct wire_request){.command = WIRE_COMMAND_INSPECT_SESSIONS}, &reply);
    ck_assert_int_eq(reply.status, STATUS_OK);
    const uint32_t total = reply.inspect_sessions.total;
    wire_reply_finish(&reply);
    return total;
}

START_TEST(a_dead_clients_segment_lives_until_the_gpu_is_past_it)
{
    int32_t block;
    start_server(DRAIN_MS);
    struct raw_client *raw = raw_session(socket_path, ARENA), *watcher = raw_open(socket_path);
    const uint64_t id = raw->session;
    submit_endless(raw, open_cache(raw), &block, 1);
    await_at_gate(GATE_SUBMIT, 1);
    raw_close(raw);
    // The fake aborts if the arena ends here.
    ck_assert_uint_eq(await_quarantined(watcher, 1).num_sessions, 0);
    check_dead_session(watcher, id, ARENA);
    finish_run(watcher);
    ck_assert_uint_eq(num_sessions(watcher), 0);
    ck_assert_int_eq(kill(server_pid, SIGTERM), 0);
    ck_assert_int_eq(wait_clean_server(), SERVER_EXIT_OK);
    raw_close(watcher);
}
END_TEST

// ---- large metadata ----

enum { LARGE_SEQS = 1024, LARGE_COLUMNS = 64, LARGE_ARENA = 1 << 20, TABLE_AT = 1 << 16 };

// A session with one block, and a batch whose table names it in every entry. The job thread hangs
// with it until open_gate().
static struct raw_client *begin_large(uint64_t *cache, int32_t *block, struct raw_pending *pending)
{
    static int32_t cu[LARGE_SEQS + 1], lens[LARGE_SEQS];
    struct raw_client *raw = raw_session(socket_path, LARGE_ARENA);
    struct wire_reply reply;
    *cache = open_cache(raw);
    raw_call(raw,
             &(struct wire_request){.command = WIRE_COMMAND_BLOCKS_LEASE,
                                    .blocks_lease = {*cache, 1, 10000}},
             &reply);
    ck_assert_msg(reply.status == STATUS_OK, "BlocksLease: %s", reply.message);
    *block = reply.blocks_lease.blocks.data[0];
    wire_reply_finish(&reply);
    int32_t *table = (int32_t *)(raw_arena(raw) + TABLE_AT);
    for (uint32_t i = 0; i < LARGE_SEQS * LARGE_COLUMNS; i++)
        table[i] = *block;
    for (int32_t i = 0; i < LARGE_SEQS; i++) {
        cu[i + 1] = i + 1;
        lens[i] = LARGE_COLUMNS * BLOCK;
    }
    const struct wire_request create = {
        .command = WIRE_COMMAND_BATCH_CREATE,
        .batch_create = {.cache = *cache,
                         .num_seqs = LARGE_SEQS,
                         .max_blocks = LARGE_COLUMNS,
                         .cu_seqlens_q = {cu, LARGE_SEQS + 1},
                         .seq_lens_kv = {lens, LARGE_SEQS},
                         .block_table_span = {TABLE_AT, LARGE_SEQS * LARGE_COLUMNS}}};
    atomic_store(&gates[GATE_BATCH].closed, true);
    raw_begin(raw, &create, pending);
    await_at_gate(GATE_BATCH, 1);
    return raw;
}

static void open_gate(void)
{
    atomic_store(&gates[GATE_BATCH].closed, false);
}

static void begin_release(struct raw_client *raw, uint64_t cache, const int32_t *block,
                          struct raw_pending *pending)
{
    const struct wire_request release = {.command = WIRE_COMMAND_BLOCKS_RELEASE,
                                         .blocks_release = {cache, {block, 1}}};
    raw_begin(raw, &release, pending);
}

static void give_up(struct raw_pending *pending)
{
    nng_aio_cancel(pending->aio);
    nng_aio_wait(pending->aio);
    nng_aio_free(pending->aio);
    nng_ctx_close(pending->context);
}

static void stop_and_check(void)
{
    ck_assert_int_eq(kill(server_pid, SIGTERM), 0);
    ck_assert_int_eq(wait_clean_server(), SERVER_EXIT_OK);
}

START_TEST(while_a_large_batch_is_made_its_session_waits_and_others_go_on)
{
    uint64_t cache;
    int32_t block;
    struct raw_pending create, released;
    start_server(DRAIN_MS);
    struct raw_client *other = raw_session(socket_path, ARENA);
    ck_assert_uint_ne(open_cache(other), 0);
    struct raw_client *raw = begin_large(&cache, &block, &create);
    begin_release(raw, cache, &block, &released);
    memset(raw_arena(raw) + TABLE_AT, 0xff, LARGE_SEQS * LARGE_COLUMNS * sizeof block); // copied
    for (int i = 0; i < 3; i++) // other commands of other sessions, and no release
        ck_assert_uint_eq(raw_inspect(other).leased_blocks, 1);
    open_gate();
    const struct wire_reply made = answer_to(&create);
    ck_assert_msg(made.status == STATUS_OK, "BatchCreate: %s", made.message);
    ck_assert_uint_eq(made.batch_create.num_tokens, LARGE_SEQS);
    ck_assert_int_eq(answer_to(&released).status, STATUS_OK);
    raw_close(raw);
    raw_close(other);
    stop_and_check();
}
END_TEST

START_TEST(a_session_that_ends_while_its_batch_is_made_leaves_nothing)
{
    uint64_t cache;
    int32_t block;
    struct raw_pending create, released;
    start_server(DRAIN_MS);
    struct raw_client *other = raw_open(socket_path);
    struct raw_client *raw = begin_large(&cache, &block, &create);
    begin_release(raw, cache, &block, &released);
    raw_expect(other,
               &(struct wire_request){.command = WIRE_COMMAND_KILL_SESSION,
                                      .kill_session = {raw->session}},
               STATUS_OK);
    const struct wire_reply refused = answer_to(&create);
    ck_assert_int_eq(refused.status, STATUS_NO_SESSION);
    ck_assert_msg(strstr(refused.message, "has ended") != NULL, "%s", refused.message);
    ck_assert_int_eq(answer_to(&released).status, STATUS_NO_SESSION);
    check_dead_session(other, raw->session, LARGE_ARENA);
    open_gate();
    while (num_sessions(other)) // its segment goes when the job has ended
        nap();
    ck_assert_uint_eq(raw_inspect(other).leased_blocks, 0);
    raw_close(raw);
    raw_close(other);
    stop_and_check();
}
END_TEST

START_TEST(a_client_that_dies_while_its_batch_is_made_harms_nobody)
{
    uint64_t cache;
    int32_t block;
    struct raw_pending create, released;
    start_server(DRAIN_MS);
    struct raw_client *other = raw_open(socket_path);
    struct raw_client *raw = begin_large(&cache, &block, &create);
    begin_release(raw, cache, &block, &released);
    give_up(&create);
    give_up(&released);
    raw_close(raw);
    while (raw_inspect(other).num_sessions)
        nap();
    open_gate();
    while (num_sessions(other))
        nap();
    ck_assert_uint_eq(raw_inspect(other).leased_blocks, 0);
    raw_close(other);
    stop_and_check();
}
END_TEST

// ---- calls in pieces ----

enum { HELD = 6, RELEASED = PIECES_BEFORE_GATE - 1 }; // the first piece only checks

// A session that has leased HELD blocks, and of whose release RELEASED blocks are done.
static struct raw_client *begin_pieces(uint64_t *cache, struct raw_client *other,
                                       struct raw_pending *pending)
{
    struct raw_client *raw = raw_session(socket_path, ARENA);
    struct wire_reply reply;
    int32_t blocks[HELD];
    *cache = open_cache(raw);
    raw_call(raw,
             &(struct wire_request){.command = WIRE_COMMAND_BLOCKS_LEASE,
                                    .blocks_lease = {*cache, HELD, 10000}},
             &reply);
    ck_assert_msg(reply.status == STATUS_OK, "BlocksLease: %s", reply.message);
    memcpy(blocks, reply.blocks_lease.blocks.data, sizeof blocks);
    wire_reply_finish(&reply);
    atomic_store(&gates[GATE_PIECE].closed, true);
    raw_begin(raw,
              &(struct wire_request){.command = WIRE_COMMAND_BLOCKS_RELEASE,
                                     .blocks_release = {*cache, {blocks, HELD}}},
              pending);
    await_at_gate(GATE_PIECE, PIECES_BEFORE_GATE + 1);
    ck_assert_uint_eq(raw_inspect(other).leased_blocks, HELD - RELEASED);
    return raw;
}

START_TEST(between_the_pieces_of_a_call_others_are_served_and_its_session_waits)
{
    uint64_t cache;
    struct raw_pending release, lease;
    start_server(DRAIN_MS);
    struct raw_client *other = raw_session(socket_path, ARENA);
    struct raw_client *raw = begin_pieces(&cache, other, &release);
    raw_begin(raw,
              &(struct wire_request){.command = WIRE_COMMAND_BLOCKS_LEASE,
                                     .blocks_lease = {cache, 1, 10000}},
              &lease);
    ck_assert_uint_ne(open_cache(other), 0);
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(raw_inspect(other).leased_blocks, HELD - RELEASED);
    atomic_store(&gates[GATE_PIECE].closed, false);
    ck_assert_int_eq(answer_to(&release).status, STATUS_OK);
    ck_assert_int_eq(answer_to(&lease).status, STATUS_OK);
    ck_assert_uint_eq(raw_inspect(other).leased_blocks, 1);
    raw_close(raw);
    raw_close(other);
    stop_and_check();
}
END_TEST

START_TEST(a_client_that_dies_between_two_pieces_of_a_call_leaves_nothing_leased)
{
    uint64_t cache;
    struct raw_pending release;
    start_server(DRAIN_MS);
    struct raw_client *other = raw_open(socket_path);
    struct raw_client *raw = begin_pieces(&cache, other, &release);
    give_up(&release);
    raw_close(raw);
    while (num_sessions(other))
        nap();
    ck_assert_uint_eq(raw_inspect(other).leased_blocks, 0);
    raw_close(other);
    stop_and_check();
}
END_TEST

START_TEST(a_session_or_daemon_that_ends_between_two_pieces_of_a_call_answers_it)
{
    uint64_t cache;
    struct raw_pending release;
    start_server(DRAIN_MS);
    struct raw_client *other = raw_open(socket_path);
    struct raw_client *raw = begin_pieces(&cache, other, &release);
    const struct wire_request end = {.command = WIRE_COMMAND_KILL_SESSION,
                                     .kill_session = {raw->session}};
    if (_i)
        raw_expect(other, &end, STATUS_OK);
    else
        ck_assert_int_eq(kill(server_pid, SIGTERM), 0); // its drain has no time for the pieces
    const struct wire_reply reply = answer_to(&release);
    ck_assert_int_eq(reply.status, STATUS_NO_SESSION);
    ck_assert_msg(strstr(reply.message, "has ended") != NULL, "%s", reply.message);
    if (_i)
        ck_assert_uint_eq(raw_inspect(other).leased_blocks, 0);
    raw_close(raw);
    raw_close(other);
    if (_i)
        ck_assert_int_eq(kill(server_pid, SIGTERM), 0);
    ck_assert_int_eq(wait_clean_server(), SERVER_EXIT_OK);
}
END_TEST

// ---- calls that wait for the job thread ----

enum { LONG_BLOCKS = 4, LONG_TOKENS = LONG_BLOCKS * BLOCK };
enum { LONG_LOOKUP, LONG_CLAIM, LONG_PUBLISH, NUM_LONG_CALLS };
enum { END_KILL, END_CLIENT, END_DAEMON, NUM_ENDS };

// Sends a call that is made in pieces. Its tokens are in the message, or `in_arena`.
static void begin_long_call(struct raw_client *raw, int kind, bool in_arena,
                            struct raw_pending *pending)
{
    static const int32_t tokens[LONG_TOKENS];
    const uint64_t cache = open_cache(raw);
    const struct wire_ints in_message = {in_arena ? NULL : tokens, in_arena ? 0 : LONG_TOKENS};
    const struct wire_span span = {0, in_arena ? LONG_TOKENS : 0};
    struct wire_reply reply;
    raw_call(raw,
             &(struct wire_request){.command = WIRE_COMMAND_BLOCKS_LEASE,
                                    .blocks_lease = {cache, LONG_BLOCKS, 10000}},
             &reply);
    ck_assert_msg(reply.status == STATUS_OK, "BlocksLease: %s", reply.message);
    const struct wire_request publish = {.command = WIRE_COMMAND_PREFIX_PUBLISH,
                                         .prefix_publish = {.cache = cache,
                                                            .tokens = in_message,
                                                            .token_span = span,
                                                            .blocks = reply.blocks_lease.blocks}},
                              lookup = {.command = WIRE_COMMAND_PREFIX_LOOKUP,
                                        .prefix_lookup = {.cache = cache,
                                                          .tokens = in_message,
                                                          .token_span = span,
                                                          .claim = kind == LONG_CLAIM}};
    raw_begin(raw, kind == LONG_PUBLISH ? &publish : &lookup, pending);
    wire_reply_finish(&reply);
}

START_TEST(a_session_that_ends_while_its_long_call_waits_for_the_job_thread_leaves_nothing)
{
    const int kind = _i % NUM_LONG_CALLS, end = _i / NUM_LONG_CALLS % NUM_ENDS;
    uint64_t cache;
    int32_t block;
    struct raw_pending create, call;
    start_server(DRAIN_MS);
    struct raw_client *other = raw_open(socket_path);
    struct raw_client *raw = raw_session(socket_path, ARENA);
    struct raw_client *busy = begin_large(&cache, &block, &create);
    const struct wire_request kill_it = {.command = WIRE_COMMAND_KILL_SESSION,
                                         .kill_session = {raw->session}};
    begin_long_call(raw, kind, _i / NUM_LONG_CALLS / NUM_ENDS, &call);
    ck_assert_uint_eq(raw_inspect(other).num_sessions, 2); // and the call has come
    if (end == END_KILL)
        raw_expect(other, &kill_it, STATUS_OK);
    if (end == END_DAEMON)
        ck_assert_int_eq(kill(server_pid, SIGTERM), 0);
    if (end == END_CLIENT)
        give_up(&call);
    else
        ck_assert_int_eq(answer_to(&call).status, STATUS_NO_SESSION);
    raw_close(raw);
    while (end == END_CLIENT && raw_inspect(other).num_sessions == 2)
        nap();
    open_gate();
    if (end != END_DAEMON) {
        ck_assert_int_eq(answer_to(&create).status, STATUS_OK);
        while (num_sessions(other) == 2) // its segment goes when the job has ended
            nap();
        ck_assert_uint_eq(raw_inspect(other).leased_blocks, 1);
        ck_assert_int_eq(kill(server_pid, SIGTERM), 0);
    } else
        (void)answer_to(&create);
    ck_assert_int_eq(wait_clean_server(), SERVER_EXIT_OK);
    raw_close(busy);
    raw_close(other);
}
END_TEST

START_TEST(a_daemon_that_is_stopped_while_a_batch_is_made_ends_clean)
{
    uint64_t cache;
    int32_t block;
    struct raw_pending create;
    start_server(DRAIN_MS);
    struct raw_client *raw = begin_large(&cache, &block, &create);
    ck_assert_int_eq(kill(server_pid, SIGTERM), 0);
    if (_i) // else the daemon ends the session first
        open_gate();
    const struct wire_reply reply = answer_to(&create);
    ck_assert(reply.status == STATUS_OK || reply.status == STATUS_STOPPING ||
              reply.status == STATUS_NO_SESSION);
    open_gate();
    ck_assert_int_eq(wait_clean_server(), SERVER_EXIT_OK);
    raw_close(raw);
}
END_TEST

START_TEST(messages_behind_a_large_batch_may_end_its_session_and_open_the_next_one)
{
    uint64_t cache;
    int32_t block;
    struct raw_pending create, closed, opened, asked;
    const struct wire_request close = {.command = WIRE_COMMAND_CLOSE_SESSION},
                              ping = {.command = WIRE_COMMAND_PING},
                              hello = {.command = WIRE_COMMAND_HELLO,
                                       .hello = {.major = WIRE_PROTOCOL_MAJOR,
                                                 .minor = WIRE_PROTOCOL_MINOR,
                                                 .client_name = "next",
                                                 .tenant = "",
                                                 .arena_size = ARENA}};
    start_server(DRAIN_MS);
    struct raw_client *other = raw_open(socket_path);
    struct raw_client *raw = begin_large(&cache, &block, &create);
    raw_begin(raw, &close, &closed);
    raw_begin(raw, &hello, &opened);
    raw_begin(raw, &ping, &asked);
    for (int i = 0; i < 3; i++)
        ck_assert_uint_eq(raw_inspect(other).num_sessions, 1);
    open_gate();
    ck_assert_int_eq(answer_to(&create).status, STATUS_OK);
    ck_assert_int_eq(answer_to(&closed).status, STATUS_OK);
    ck_assert_int_eq(answer_to(&opened).status, STATUS_OK);
    ck_assert_int_eq(answer_to(&asked).status, STATUS_OK);
    raw_close(raw);
    while (num_sessions(other))
        nap();
    raw_close(other);
    stop_and_check();
}
END_TEST

// --max-tickets 8 and 64 more.
START_TEST(a_session_cannot_have_more_messages_waiting_than_commands)
{
    enum { MOST = 8 + 64 };
    uint64_t cache;
    int32_t block;
    struct raw_pending create, waiting[MOST + 1];
    start_server(DRAIN_MS);
    struct raw_client *raw = begin_large(&cache, &block, &create);
    const struct wire_request state = {.command = WIRE_COMMAND_CACHE_STATE, .cache_state = {cache}};
    for (int i = 0; i <= MOST; i++)
        raw_begin(raw, &state, &waiting[i]);
    const struct wire_reply refused = answer_to(&waiting[MOST]);
    ck_assert_int_eq(refused.status, STATUS_LIMIT);
    ck_assert_msg(strstr(refused.message, "--max-tickets 8") != NULL, "%s", refused.message);
    open_gate();
    ck_assert_int_eq(answer_to(&create).status, STATUS_OK);
    for (int i = 0; i < MOST; i++)
        ck_assert_int_eq(answer_to(&waiting[i]).status, STATUS_OK);
    raw_close(raw);
    stop_and_check();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server over a fake engine");
    TCase *tcase = tcase_create("lost");
    tcase_add_checked_fixture(tcase, NULL, stop_server);
    tcase_add_loop_test(tcase, a_lost_device_answers_all_that_waits_and_ends_with_3, 0, NUM_ASKS);
    tcase_add_loop_test(tcase, a_run_that_never_ends_does_not_keep_the_daemon, 0, NUM_ASKS);
    tcase_add_loop_test(tcase, a_run_that_never_ends_is_answered_when_its_session_is_killed, 0,
                        NUM_ASKS);
    tcase_add_loop_test(tcase, a_second_signal_ends_a_daemon_whose_engine_hangs_at_the_end, 0, 2);
    tcase_add_test(tcase, handshakes_whose_clients_have_gone_hold_up_nobody);
    tcase_add_loop_test(
        tcase, a_refused_start_leaves_what_is_not_its_own_and_says_whether_its_engine_ended, 0, 2);
    tcase_add_test(tcase, a_dead_clients_segment_lives_until_the_gpu_is_past_it);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("large metadata");
    tcase_add_checked_fixture(tcase, NULL, stop_server);
    tcase_add_test(tcase, while_a_large_batch_is_made_its_session_waits_and_others_go_on);
    tcase_add_test(tcase, a_session_that_ends_while_its_batch_is_made_leaves_nothing);
    tcase_add_test(tcase, a_client_that_dies_while_its_batch_is_made_harms_nobody);
    tcase_add_test(tcase, between_the_pieces_of_a_call_others_are_served_and_its_session_waits);
    tcase_add_test(tcase, a_client_that_dies_between_two_pieces_of_a_call_leaves_nothing_leased);
    tcase_add_loop_test(
        tcase, a_session_or_daemon_that_ends_between_two_pieces_of_a_call_answers_it, 0, 2);
    tcase_add_loop_test(
        tcase, a_session_that_ends_while_its_long_call_waits_for_the_job_thread_leaves_nothing, 0,
        2 * NUM_LONG_CALLS * NUM_ENDS);
    tcase_add_loop_test(tcase, a_daemon_that_is_stopped_while_a_batch_is_made_ends_clean, 0, 2);
    tcase_add_test(tcase, messages_behind_a_large_batch_may_end_its_session_and_open_the_next_one);
    tcase_add_test(tcase, a_session_cannot_have_more_messages_waiting_than_commands);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}
