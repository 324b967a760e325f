// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// world.c - see world.h. The linker redirects four functions of the daemon's process here: each
// turn of the dispatcher counts all of core anew, and the test learns that a command waits and that
// runs are on the GPU without a guess about time.

#include "world.h"

#include "aule/aule.h"
#include "core/audit/audit.h"
#include "core/core.h"
#include "fakes/fake_engine.h"
#include "rigs/monitor_state.h"
#include "server/log.h"
#include "server/server.h"

#include <check.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    DEADLINE_MS = 60000,
    KEEPERS = TENANTS, // sessions that stay, so that cache and tenants do
    PROCESSES = WORKERS + KEEPERS,
};

// In memory that all processes share.
static struct shared {
    atomic_uint begun, submissions;
    atomic_bool hold;
} * shared;

static char folder[64], socket_path[96];
static pid_t server_pid, pids[PROCESSES];
static int fds[PROCESSES];
static uint64_t sessions[PROCESSES];
static int num_blocks;
static bool exported;
static struct aule_monitor *monitor;

void (*world_adjust)(struct server_params *params);
void (*world_in_turn)(void);
bool world_has_hauls;

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 300 * 1000}, NULL);
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// ---- in the daemon's process ----

bool __real_core_step(struct core *core, int64_t now_ns);
bool __wrap_core_step(struct core *core, int64_t now_ns);

bool __wrap_core_step(struct core *core, int64_t now_ns)
{
    struct error error = {0};
    if (world_in_turn)
        world_in_turn();
    bool news = __real_core_step(core, now_ns);
    if (!core_check(core, &error)) {
        fprintf(stderr, "core's audit: %s\n", error.text);
        _exit(96);
    }
    return news;
}

void __real_session_begin_wait(struct core_session *session, struct core_wait *wait,
                               enum core_wait_kind kind, uint64_t cache);
void __wrap_session_begin_wait(struct core_session *session, struct core_wait *wait,
                               enum core_wait_kind kind, uint64_t cache);

void __wrap_session_begin_wait(struct core_session *session, struct core_wait *wait,
                               enum core_wait_kind kind, uint64_t cache)
{
    __real_session_begin_wait(session, wait, kind, cache);
    atomic_fetch_add(&shared->begun, 1);
}

bool __real_engine_poll(struct engine *engine, struct engine_event *event);
bool __wrap_engine_poll(struct engine *engine, struct engine_event *event);

bool __wrap_engine_poll(struct engine *engine, struct engine_event *event)
{
    fake_engine_automatic(engine, !atomic_load(&shared->hold));
    fake_engine_have_hauls(engine, world_has_hauls);
    return __real_engine_poll(engine, event);
}

enum status __real_engine_submit(struct engine *engine, const struct engine_submission *submission,
                                 uint64_t *sequence, struct error *error);
enum status __wrap_engine_submit(struct engine *engine, const struct engine_submission *submission,
                                 uint64_t *sequence, struct error *error);

enum status __wrap_engine_submit(struct engine *engine, const struct engine_submission *submission,
                                 uint64_t *sequence, struct error *error)
{
    enum status status = __real_engine_submit(engine, submission, sequence, error);
    atomic_fetch_add(&shared->submissions, 1);
    return status;
}

static void serve(int ready_fd)
{
    struct server *server = NULL;
    struct error error;
    sigset_t signals;
    char groups[TENANTS][32];
    struct server_params params = {
        .socket = socket_path,
        .memory_fraction = 0.5,
        .core.max_blocks = (uint64_t)num_blocks,
        .core.export_pool = exported ? (uint32_t)num_blocks : 0,
        .core.max_sessions = 16,
        .max_connections = 64,
        .idle_timeout_s = 300,
        .max_message_memory = 64 << 20,
        .core.max_caches = 4,
        .core.max_batches = 8,
        .core.max_tickets = 16,
        .core.max_claimed = 4096,
        .core.piece_blocks = 2, // so that workers die between two pieces of a call
        .max_arena = 1 << 20,
        .max_metadata = 1 << 20,
        .ring_entries = 16,
        .drain_timeout_ms = 1000,
        .tenants = {{groups[0], groups[1]}, TENANTS},
    };
    for (int t = 0; t < TENANTS; t++)
        snprintf(groups[t], sizeof groups[t], "%s=uid:%u", t ? "two" : "one", (unsigned)geteuid());
    if (world_adjust)
        world_adjust(&params);
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    log_set_level(LOG_LEVEL_ERROR);
    if (server_create(&params, &server, &error) != STATUS_OK) {
        fprintf(stderr, "%s\n", error.text);
        _exit(99);
    }
    if (write(ready_fd, "r", 1) != 1)
        _exit(98);
    enum server_exit code = server_run(server);
    server_destroy(server);
    _exit(code);
}

// ---- processes ----

static pid_t fork_child(void)
{
    aule_monitor_close(monitor); // it has a thread, and ThreadSanitizer forks without threads only
    monitor = NULL;
    fflush(NULL);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

static void start_server(void)
{
    int ends[2];
    char byte;
    ck_assert_int_eq(pipe(ends), 0);
    server_pid = fork_child();
    if (server_pid == 0)
        serve(ends[1]);
    close(ends[1]);
    ck_assert_msg(read(ends[0], &byte, 1) == 1, "the daemon did not start");
    close(ends[0]);
}

void world_spawn(int worker)
{
    int ends[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    pids[worker] = fork_child();
    if (pids[worker] == 0) {
        for (int i = 0; i < PROCESSES; i++)
            if (fds[i] >= 0)
                close(fds[i]);
        close(ends[0]);
        worker_serve(ends[1], socket_path);
    }
    close(ends[1]);
    fds[worker] = ends[0];
}

void world_kill(int worker)
{
    ck_assert_int_eq(kill(pids[worker], SIGKILL), 0);
    ck_assert_int_eq(waitpid(pids[worker], NULL, 0), pids[worker]);
    close(fds[worker]);
    fds[worker] = pids[worker] = -1;
    sessions[worker] = 0;
}

void world_order(int worker, const struct order *order)
{
    ck_assert_int_eq(write(fds[worker], order, sizeof *order), sizeof *order);
    if (order->kind == ORDER_CLOSE)
        sessions[worker] = 0;
}

bool world_answered(int worker)
{
    struct pollfd poller = {.fd = fds[worker], .events = POLLIN};
    return poll(&poller, 1, 0) == 1;
}

void world_reply(int worker, struct reply *reply)
{
    struct pollfd poller = {.fd = fds[worker], .events = POLLIN};
    ck_assert_msg(poll(&poller, 1, DEADLINE_MS) == 1, "worker %d does not answer", worker);
    ck_assert_int_eq(read(fds[worker], reply, sizeof *reply), sizeof *reply);
    if (reply->session)
        sessions[worker] = reply->session;
}

unsigned world_begun(void)
{
    return atomic_load(&shared->begun);
}

void world_await(int worker, unsigned begun)
{
    int64_t end = now_ms() + DEADLINE_MS;
    while (!world_answered(worker) && world_begun() == begun) {
        ck_assert_msg(now_ms() < end, "worker %d neither waits nor answers", worker);
        nap();
    }
}

void world_hold(bool hold)
{
    atomic_store(&shared->hold, hold);
}

unsigned world_submissions(void)
{
    return atomic_load(&shared->submissions);
}

static struct aule_monitor *watcher(void)
{
    if (!monitor)
        ck_assert_int_eq(aule_monitor_open(socket_path, DEADLINE_MS, &monitor), AULE_OK);
    return monitor;
}

int world_blocks(void)
{
    return num_blocks;
}

static void start(void)
{
    strcpy(folder, "/tmp/aule-model-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(socket_path, sizeof socket_path, "%s/0.sock", folder);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(shared, MAP_FAILED);
    for (int i = 0; i < PROCESSES; i++)
        fds[i] = pids[i] = -1;
    start_server();
    for (int i = WORKERS; i < PROCESSES; i++) {
        struct reply reply;
        world_spawn(i);
        world_order(i, &(struct order){.kind = ORDER_OPEN, .other = i - WORKERS});
        world_reply(i, &reply);
        ck_assert_msg(reply.status == AULE_OK, "%s", reply.text);
        if (i > WORKERS)
            continue;
        world_order(i, &(struct order){.kind = ORDER_FILL, .count = (uint32_t)num_blocks});
        world_reply(i, &reply);
        ck_assert_msg(reply.status == AULE_OK, "%s", reply.text);
    }
}

void world_start(void)
{
    num_blocks = 24;
    start();
}

void world_start_exported(void)
{
    num_blocks = BLOCKS; // a power of two
    exported = true;
    start();
}

void world_stop(void)
{
    int status = 0;
    aule_monitor_close(monitor);
    monitor = NULL;
    for (int i = 0; i < PROCESSES; i++)
        if (pids[i] > 0)
            world_kill(i);
    if (server_pid > 0) {
        kill(server_pid, SIGTERM);
        waitpid(server_pid, &status, 0);
    }
    unlink(socket_path);
    rmdir(folder);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the daemon ended with %#x",
                  (unsigned)status);
}

// ---- what an operator sees ----

static bool is_label(const char *name, int tenant)
{
    static const char *const labels[TENANTS] = {"one", "two"};
    return strcmp(name, labels[tenant]) == 0;
}

static struct aule_tenant_state tenant_state(int tenant)
{
    struct aule_tenant_state *array = NULL, found = {0};
    uint32_t count = 0;
    ck_assert_int_eq(aule_monitor_tenants(watcher(), &array, &count), AULE_OK);
    for (uint32_t i = 0; i < count; i++)
        if (is_label(array[i].name, tenant))
            found = array[i];
    free(array);
    ck_assert_uint_ne(found.tenant, 0);
    return found;
}

void world_limit(int tenant, uint64_t blocks, uint64_t cached, uint64_t floor)
{
    ck_assert_int_eq(
        aule_monitor_limit_tenant(watcher(), tenant_state(tenant).tenant, blocks, cached, floor),
        AULE_OK);
}

void world_quota(int worker, uint64_t blocks)
{
    ck_assert_int_eq(aule_monitor_limit_session(watcher(), sessions[worker], blocks), AULE_OK);
}

static char difference[300];

#define DIFFERS(what, has, wants)                                                                  \
    ((has) != (wants) &&                                                                           \
     snprintf(difference, sizeof difference, "%s is %" PRIu64 ", not %" PRIu64, (what),            \
              (uint64_t)(has), (uint64_t)(wants)) > 0)

static struct daemon_state daemon_state(void)
{
    const struct daemon_state state = monitor_state(watcher());
    ck_assert_uint_eq(state.free_blocks + state.leased_blocks + state.held_blocks +
                          state.cached_blocks + state.quarantined_blocks,
                      num_blocks);
    return state;
}

void world_check_sum(void)
{
    (void)daemon_state();
}

void world_await_rest(void)
{
    const int64_t end = now_ms() + DEADLINE_MS;
    for (;;) {
        const struct daemon_state state = daemon_state();
        const uint64_t used = state.leased_blocks + state.held_blocks + state.quarantined_blocks;
        if (!used && state.num_sessions == KEEPERS)
            return;
        ck_assert_msg(now_ms() < end, "%" PRIu64 " blocks are in use by nobody", used);
        nap();
    }
}

uint64_t world_metric(const char *name)
{
    struct aule_metric *array = NULL;
    uint32_t count = 0;
    uint64_t value = UINT64_MAX;
    ck_assert_int_eq(aule_monitor_metrics(watcher(), &array, &count), AULE_OK);
    for (uint32_t i = 0; i < count; i++)
        value = strcmp(array[i].name, name) ? value : array[i].value;
    free(array);
    ck_assert_msg(value != UINT64_MAX, "there is no metric %s", name);
    return value;
}

static bool daemon_differs(const struct model *m)
{
    uint32_t open = KEEPERS;
    for (int w = 0; w < WORKERS; w++)
        open += m->sessions[w].open;
    const struct daemon_state state = daemon_state();
    return DIFFERS("num_sessions", state.num_sessions, open) ||
           DIFFERS("free", state.free_blocks, count_state(m, FREE)) ||
           DIFFERS("leased", state.leased_blocks, count_state(m, LEASED)) ||
           DIFFERS("held", state.held_blocks, count_state(m, HELD)) ||
           DIFFERS("cached", state.cached_blocks, count_state(m, CACHED)) ||
           DIFFERS("quarantined", state.quarantined_blocks, count_state(m, QUARANTINED));
}

static bool sessions_differ(const struct model *m)
{
    struct aule_session_state *array = NULL;
    uint32_t count = 0;
    bool differs = false;
    ck_assert_int_eq(aule_monitor_sessions(watcher(), &array, &count), AULE_OK);
    for (int w = 0; w < WORKERS; w++) {
        const struct aule_session_state *own = NULL;
        for (uint32_t i = 0; i < count; i++)
            if (m->sessions[w].open && array[i].session == sessions[w])
                own = &array[i];
        char what[40];
        snprintf(what, sizeof what, "session of worker %d", w);
        differs = differs || DIFFERS(what, own != NULL, m->sessions[w].open);
        snprintf(what, sizeof what, "blocks_held of worker %d", w);
        differs = differs || (own && DIFFERS(what, own->blocks_held, session_blocks(m, w)));
        differs = differs || (own && DIFFERS("quota", own->quota_blocks, m->sessions[w].quota));
    }
    free(array);
    return differs;
}

static bool tenants_differ(const struct model *m)
{
    bool differs = false;
    for (int t = 0; t < TENANTS && !differs; t++) {
        const struct aule_tenant_state state = tenant_state(t);
        const struct tenant_counts counts = tenant_counts(m, t);
        differs = DIFFERS("used", state.used_blocks, counts.used) ||
                  DIFFERS("pinned", state.pinned_blocks, counts.pinned) ||
                  DIFFERS("cached of a tenant", state.cached_blocks, counts.cached) ||
                  DIFFERS("evicted", state.evicted_blocks, m->tenants[t].evicted) ||
                  DIFFERS("limit_blocks", state.limit_blocks, m->tenants[t].blocks) ||
                  DIFFERS("limit_cached", state.limit_cached, m->tenants[t].cached) ||
                  DIFFERS("floor", state.floor, m->tenants[t].floor);
    }
    return differs;
}

static int worker_of(uint64_t session)
{
    for (int w = 0; w < WORKERS; w++)
        if (session && sessions[w] == session)
            return w;
    return NONE;
}

static bool blocks_differ(const struct model *m, uint64_t cache)
{
    struct aule_block_state *array = NULL;
    uint32_t count = 0, leased[WORKERS] = {0}, holders = 0, wanted = 0;
    ck_assert_int_eq(aule_monitor_blocks(watcher(), cache, &array, &count), AULE_OK);
    for (uint32_t i = 0; i < count; i++) {
        int writer = worker_of(array[i].writer);
        if (writer != NONE && array[i].state == AULE_BLOCK_LEASED)
            leased[writer]++;
        holders += array[i].holders;
    }
    free(array);
    for (int b = 0; b < BLOCKS; b++)
        wanted += block_holders(m, b);
    for (int w = 0; w < WORKERS; w++)
        if (DIFFERS("leased blocks of a session", leased[w], session_leased(m, w)))
            return true;
    return DIFFERS("holders", holders, wanted);
}

static int node_of(const struct model *m, const struct aule_prefix_state *state, int parent)
{
    for (int n = 0; n < BLOCKS; n++)
        if (m->nodes[n].used && m->nodes[n].parent == parent &&
            is_label(state->tenant, m->nodes[n].tenant) &&
            memcmp(m->nodes[n].tokens, state->tokens, sizeof state->tokens) == 0)
            return n;
    return NONE;
}

static bool node_differs(const struct model *m, int node, const struct aule_prefix_state *state)
{
    static const enum aule_block_kind kinds[] = {AULE_BLOCK_FREE, AULE_BLOCK_LEASED,
                                                 AULE_BLOCK_HELD, AULE_BLOCK_CACHED,
                                                 AULE_BLOCK_QUARANTINED};
    int block = m->nodes[node].block;
    return DIFFERS("state of a prefix's block", state->state, kinds[block_state(m, block)]) ||
           DIFFERS("its holders", state->holders, block_holders(m, block)) ||
           DIFFERS("its keep", (int)state->keep, (int)node_keep(m, node)) ||
           DIFFERS("its visibility", state->visible, true);
}

// The daemon's id of each model block, level by level.
static bool tree_differs(struct model *m, uint64_t cache)
{
    struct aule_prefix_state all[BLOCKS], *array = NULL;
    uint32_t num = 0, next = 0, count = 0, wanted = 0;
    do {
        ck_assert_int_eq(aule_monitor_prefix(watcher(), cache, &next, &array, &count), AULE_OK);
        ck_assert_uint_le(num + count, BLOCKS);
        if (count)
            memcpy(all + num, array, count * sizeof *array);
        num += count;
        free(array);
    } while (next);
    for (int n = 0; n < BLOCKS; n++)
        wanted += m->nodes[n].used;
    if (DIFFERS("published blocks", num, wanted))
        return true;
    int nodes[BLOCKS];
    for (uint32_t depth = 0; depth < DEPTH; depth++)
        for (uint32_t i = 0; i < num; i++) {
            int parent = NONE;
            if (all[i].depth != depth)
                continue;
            for (uint32_t p = 0; depth && p < num; p++)
                if (all[p].block == all[i].parent)
                    parent = nodes[p];
            nodes[i] = node_of(m, &all[i], parent);
            if (DIFFERS("the model's node of a prefix", nodes[i] != NONE, true) ||
                node_differs(m, nodes[i], &all[i]))
                return true;
            m->blocks[m->nodes[nodes[i]].block].id = all[i].block;
        }
    return false;
}

static bool offers_differ(const struct model *m)
{
    uint32_t wanted = 0;
    for (int o = 0; o < OFFERS; o++)
        wanted += m->offers[o].used;
    return DIFFERS("offers", world_metric("aule_offers"), wanted);
}

static bool all_differs(struct model *m)
{
    struct aule_cache_view *caches = NULL;
    uint32_t count = 0;
    ck_assert_int_eq(aule_monitor_caches(watcher(), &caches, &count), AULE_OK);
    ck_assert_uint_eq(count, 1);
    uint64_t cache = caches[0].cache;
    free(caches);
    return daemon_differs(m) || sessions_differ(m) || tenants_differ(m) ||
           blocks_differ(m, cache) || tree_differs(m, cache) || offers_differ(m);
}

// A daemon notices a death, or the end of a run, a little later.
void world_compare(struct model *m, const char *after)
{
    int64_t end = now_ms() + DEADLINE_MS;
    while (all_differs(m)) {
        ck_assert_msg(now_ms() < end, "after %s: %s", after, difference);
        nap();
    }
}
