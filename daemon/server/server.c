// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// server.c - makes the daemon, runs the dispatcher's loop, and ends it. Each turn of the loop waits
// for events (wait.c), then takes connections (connections.c), messages, ring entries, finished
// jobs, deadlines and finished runs. Nothing in the loop blocks on a client or on the GPU. The main
// thread runs it and becomes the dispatcher; wake() and log_below() are called on any thread.

#include "server.h"

#include "connections.h"
#include "dispatch.h"
#include "lane.h"
#include "log.h"
#include "offload.h"
#include "park.h"
#include "server/process/device_mark.h"
#include "server/process/limits.h"
#include "server/process/notify.h"
#include "session.h"
#include "sigbus.h"
#include "state.h"
#include "wait.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

// Bounds on the messages of one turn: time and number.
static const int64_t messages_ns = 4 * NS_PER_MS;
enum { MESSAGES_A_TURN = 256, GPU_NAP_MS = 500 };

void server_arm(struct server *server, int64_t deadline_ns)
{
    if (deadline_ns < server->next_deadline_ns)
        server->next_deadline_ns = deadline_ns;
}

// ---- callbacks from other threads ----

static void wake(void *context)
{
    struct server *server = context;
    waker_wake(&server->waker);
}

static void log_below(void *context, int level, const char *format, const char *text)
{
    (void)context;
    log_write_text(level < 0 || level >= LOG_LEVEL_COUNT ? LOG_LEVEL_DEBUG : (enum log_level)level,
                   format, text);
}

// ---- making ----

static enum status watch(struct server *server, int fd, struct watch *mark, enum watch_kind kind,
                         struct error *error)
{
    *mark = (struct watch){kind, NULL};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = mark};
    if (fd < 0 || epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0)
        return error_set(error, STATUS_INTERNAL, "cannot watch a descriptor: %s", strerror(errno));
    return STATUS_OK;
}

static enum status open_descriptors(struct server *server, struct error *error)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    sigaddset(&signals, SIGXCPU);
    server->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    server->wake_fd = server->waker.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    server->signal_fd = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    enum status status = watch(server, server->wake_fd, &server->wake_watch, WATCH_WAKE, error);
    return status == STATUS_OK
               ? watch(server, server->signal_fd, &server->signal_watch, WATCH_SIGNALS, error)
               : status;
}

static uint32_t completion_poll(uint64_t asked)
{
    return asked == SERVER_UNSET ? 0 : asked == 0 ? ENGINE_NO_POLL : (uint32_t)asked;
}

// True: SIGTERM or SIGINT came within `timeout_ms`.
static bool is_told_to_stop(const struct server *server, int timeout_ms)
{
    struct pollfd signals = {.fd = server->signal_fd, .events = POLLIN};
    struct signalfd_siginfo info;
    return poll(&signals, 1, timeout_ms) > 0 &&
           read(server->signal_fd, &info, sizeof info) == sizeof info && info.ssi_signo != SIGHUP;
}

// A GPU's driver may come up after the daemon. Each try asks Vulkan anew.
static enum status create_engine(struct server *server, const struct engine_params *engine_params,
                                 struct error *error)
{
    const uint64_t patience_s = server->params->require_gpu_s;
    const int64_t deadline_ns = server->started_ns + (int64_t)patience_s * NS_PER_S;
    char state[128];
    for (bool told = false;; told = true) {
        enum status status = engine_create(engine_params, &server->engine, error);
        if (status != STATUS_NOT_FOUND || !engine_params->require_gpu ||
            clock_now_ns() >= deadline_ns)
            return status;
        if (!told) {
            log_warn("daemon: %s; it waits up to %" PRIu64 " s for one", error->text, patience_s);
            snprintf(state, sizeof state,
                     "STATUS=waits for a GPU (--require-gpu)\nEXTEND_TIMEOUT_USEC=%" PRIu64,
                     (patience_s + 30) * 1000000);
            notify_manager(state);
        }
        if (is_told_to_stop(server, GPU_NAP_MS))
            return error_set(error, STATUS_STOPPING, "a signal ends the wait for a GPU");
    }
}

static enum status open_engine(struct server *server, struct error *error)
{
    const struct server_params *params = server->params;
    const struct engine_params engine_params = {
        .device = params->device,
        .require_gpu = params->require_gpu_s != SERVER_UNSET,
        .haul = params->transfer_queue,
        .validation = params->validation,
        .statistics = log_writes(LOG_LEVEL_DEBUG),
        .cache_folder = params->cache_folder,
        .compile_program = params->compile_program,
        .completion_poll_us = completion_poll(params->completion_poll_us),
        .max_pipelines = params->max_pipelines,
        .max_scratch_bytes = params->max_scratch_bytes,
        .variant = params->variant,
        .wake = wake,
        .log = log_below,
        .context = server,
    };
    return create_engine(server, &engine_params, error);
}

// Locks the socket's path for this daemon, and removes what a killed daemon left there.
static enum status take_place(struct server *server, struct error *error)
{
    const uint32_t number = engine_device(server->engine)->index;
    enum status status = socket_path_resolve(server->params->socket, number, server->socket, error);
    if (status != STATUS_OK)
        return status;
    // Before the lock: server_remove_traces() sweeps by this prefix once the lock is held.
    snprintf(server->segment_prefix, sizeof server->segment_prefix, "%s%016" PRIx64 "-",
             WIRE_SEGMENT_PREFIX + 1, server->epoch);
    log_debug("daemon: its segments are %s*", server->segment_prefix);
    status = socket_lock_take(server->socket, &server->lock, error);
    if (status == STATUS_OK)
        status = socket_path_clear(server->socket, error);
    if (status != STATUS_OK)
        return status;
    unsigned swept = segment_sweep_dead();
    if (swept)
        log_warn("daemon: removed %u segments that killed daemons left", swept);
    const struct engine_device *device = engine_device(server->engine);
    server->device_mark = device_mark_set(device->name, device->uuid, server->epoch);
    return STATUS_OK;
}

// --max-run-work auto. A run must end long before the engine takes the device for lost (120 s).
// What a run at the limit takes, by measured or assumed speeds:
//   device                           multiply-adds a second   limit    time
//   lavapipe on two loaded cores     1.0e9                    4e10     40 s
//   H200                             1.2e13                   2e13     1.7 s
//   a GPU of a fortieth of an H200   3e11                     2e13     67 s
//   one workgroup of an H200         1.5e11                   3.1e11   2.1 s
// The last line is a sequence whose keys are not split: it counts 64 times (core/runs/weight.c).
static uint64_t max_run_work(const struct server *server)
{
    if (server->params->core.max_run_work != SERVER_UNSET)
        return server->params->core.max_run_work;
    return engine_device(server->engine)->software ? UINT64_C(40000000000)
                                                   : UINT64_C(20000000000000);
}

static enum status open_groups(struct server *server, struct error *error)
{
    const struct option_texts *specs = &server->params->tenants;
    return groups_create(specs->texts, specs->count, &server->others, &server->groups, error);
}

static enum status watch_tier(struct server *server, struct tier *tier, struct watch *mark,
                              struct error *error)
{
    return watch(server, tier_fd(tier), mark, WATCH_TIER, error);
}

static enum status open_tiers(struct server *server, struct error *error)
{
    const struct core_tiers *tiers = &server->tiering.core;
    enum status status = tiering_open(&server->tiering, server->engine, server->params, error);
    if (status == STATUS_OK && tiers->host)
        status = watch_tier(server, tiers->host, &server->tier_watches[0], error);
    for (uint32_t i = 0; status == STATUS_OK && i < tiers->num_more; i++)
        status = watch_tier(server, tiers->more[i], &server->tier_watches[1 + i], error);
    return status;
}

// At most half of what the process may still map, so that arenas get some.
static uint64_t pool_limit(const struct server *server)
{
    const double fraction = server->params->memory_fraction;
    const uint64_t room = limits_address_room();
    const uint64_t bytes = (uint64_t)((double)engine_budget_bytes(server->engine) * fraction);
    return room != UINT64_MAX && bytes > room / 2 ? room / 2 : bytes;
}

static void free_later(void *context, void *memory)
{
    offload_free(context, memory);
}

static enum status open_core(struct server *server, struct error *error)
{
    const struct server_params *params = server->params;
    struct core_params core = params->core;
    core.engine = server->engine;
    core.pool_limit_bytes = pool_limit(server);
    core.tenant_timeout_ns = params->tenant_timeout_s * NS_PER_S;
    core.claim_timeout_ns = params->claim_timeout_ms * NS_PER_MS;
    core.tenant_limits = server->others;
    core.groups = groups_core(server->groups, &core.num_groups);
    core.max_run_work = max_run_work(server);
    core.session_gone = session_gone;
    core.tiers = server->tiering.core;
    core.look_ns = server->ring_spin_ns;
    core.log = log_below;
    core.free_later = free_later;
    core.context = server;
    if (getrandom(&core.hash_seed, sizeof core.hash_seed, 0) != sizeof core.hash_seed)
        return error_set(error, STATUS_INTERNAL, "getrandom: %s", strerror(errno));
    return core_create(&core, &server->core, error);
}

static enum status open_listener(struct server *server, struct error *error)
{
    const struct server_params *p = server->params;
    const struct listener_params params = {
        .path = server->socket,
        .groups = server->groups,
        .max_connections = p->max_connections,
        .tenant_share = p->core.tenant_share,
        .max_message = WIRE_MAX_MESSAGE,
        .max_bytes = p->max_message_memory,
        .idle_ns = p->idle_timeout_s * NS_PER_S,
    };
    enum status status = listener_open(&params, &server->listener, error);
    if (status != STATUS_OK)
        return status;
    return watch(server, listener_fd(server->listener), &server->request_watch, WATCH_REQUESTS,
                 error);
}

static enum status open_guard(struct server *server, struct error *error)
{
    // Twice as many as sessions, because an ended session keeps its segment until the GPU has ended
    // its last run.
    enum status status =
        sigbus_guard_init(server->params->core.max_sessions * 2 + 16, server->wake_fd, error);
    server->guarded = status == STATUS_OK;
    return status;
}

// Before the listener, whose clients ask for its name.
static enum status open_exports(struct server *server, struct error *error)
{
    const struct exports_params params = {
        .socket = server->socket,
        .max_peers = exports_most(server->params->max_connections),
        .tenant_share = server->params->core.tenant_share,
        .groups = server->groups,
        .epoll_fd = server->epoll_fd,
        .mark = &server->export_watch,
        .redeem = session_redeem,
        .context = server,
    };
    server->export_watch = (struct watch){WATCH_EXPORTS, NULL};
    const struct server_params *p = server->params;
    const struct engine_device *device = engine_device(server->engine);
    if (p->core.export_pool && !device->memory_export)
        return error_set(error, STATUS_UNSUPPORTED,
                         "--export-pool %u: device %s exports no memory "
                         "(VK_KHR_external_memory_fd)",
                         p->core.export_pool, device->name);
    if (!device->memory_export || (p->device_arenas == 0 && p->core.export_pool == 0))
        return STATUS_OK;
    return exports_open(&params, &server->exports, error);
}

static enum status draw_epoch(struct server *server, struct error *error)
{
    do {
        if (getrandom(&server->epoch, sizeof server->epoch, 0) != sizeof server->epoch)
            return error_set(error, STATUS_INTERNAL, "getrandom: %s", strerror(errno));
    } while (server->epoch == 0); // on the wire 0 means "no epoch yet"
    server->message = calloc(1, WIRE_MAX_MESSAGE);
    server->reply = calloc(1, WIRE_ENCODE_ROOM);
    return server->message && server->reply
               ? STATUS_OK
               : error_set(error, STATUS_NO_MEMORY, "no memory for a message");
}

static enum status start_jobs(struct server *server, struct error *error)
{
    return jobs_create(server->wake_fd, &server->jobs, error);
}

static enum status measure_arenas(struct server *server, struct error *error)
{
    const uint64_t asked = server->params->max_arena_memory;
    server->max_arena_memory = asked == SERVER_UNSET ? segment_room() / 2 : asked;
    if (server->max_arena_memory || asked == 0)
        return STATUS_OK;
    return error_set(error, STATUS_UNSUPPORTED,
                     "the size of /dev/shm is not known: %s; give --max-arena-memory",
                     strerror(errno));
}

enum status server_check(const struct server_params *params, struct error *error)
{
    struct groups *groups;
    struct core_limits others;
    enum status status =
        groups_create(params->tenants.texts, params->tenants.count, &others, &groups, error);
    if (status != STATUS_OK)
        return status;
    groups_destroy(groups);
    return tiering_check(params, error);
}

enum status server_create(const struct server_params *params, struct server **out,
                          struct error *error)
{
    *out = NULL;
    static enum status (*const steps[])(struct server *, struct error *) = {
        open_groups,    measure_arenas, open_descriptors, draw_epoch, open_engine,  take_place,
        lane_open_bell, // before open_core: sets ring_spin_ns
        open_tiers,     open_core,      open_guard,       start_jobs, open_exports, open_listener,
    };
    struct server *server = calloc(1, sizeof *server);
    if (!server)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the server");
    server->params = params;
    server->started_ns = clock_now_ns();
    server->next_session = 1;
    server->next_deadline_ns = FOREVER;
    server->wake_fd = server->signal_fd = server->epoll_fd = server->bell.fd = server->lock.fd = -1;
    server->device_mark = -1;
    *out = server;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && status == STATUS_OK; i++)
        status = steps[i](server, error);
    return status;
}

// ---- running ----

// Takes a bounded number of messages in a bounded time, so that rings and finished runs get their
// turn. Messages that are left keep the listener's descriptor readable.
static void take_messages(struct server *server)
{
    struct message message;
    const int64_t end_ns = server->has_requests ? clock_now_ns() + messages_ns : 0;
    for (int i = 0; server->has_requests && i < MESSAGES_A_TURN && clock_now_ns() < end_ns &&
                    listener_receive(server->listener, &message);
         i++) {
        dispatch_message(server, &message);
        message_finish(&message);
    }
    server->has_requests = false;
}

static void expire(struct server *server)
{
    int64_t now_ns = clock_now_ns();
    if (server->next_deadline_ns > now_ns)
        return;
    server->next_deadline_ns = FOREVER; // each deadline that is left arms it again
    park_expire(server, now_ns);
    session_expire(server, now_ns);
    listener_expire(server->listener, now_ns);
    server_arm(server, exports_expire(server->exports, now_ns));
}

// Steps core and retries parked commands. A retried command may queue a run, so both are repeated
// until nothing came free any more.
static void advance(struct server *server)
{
    while (core_step(server->core, clock_now_ns())) {
        park_retry(server);
        lane_wake_clients(server);
    }
}

static void serve_once(struct server *server)
{
    wait_for_events(server);
    take_messages(server);
    connections_take(server);
    lane_serve(server);
    session_check_segments(server);
    jobs_finish_done(server->jobs, server);
    offload_step(server);
    offload_replay(server);
    expire(server);
    lane_wake_clients(server);
    advance(server);
    server_step_drain(server);
    lane_wake_clients(server);
    server_arm(server, listener_deadline_ns(server->listener));
}

static void log_readiness(const struct server *server)
{
    const struct server_params *params = server->params;
    const struct engine_device *device = engine_device(server->engine);
    const uint64_t pool_limit_bytes = core_metrics(server->core)[METRIC_POOL_LIMIT_BYTES];
    if (device->software)
        log_warn("device %s runs on the CPU: results are right but slow; no GPU was %s",
                 device->name, params->device ? "asked for" : "found");
    if (device->software && !params->compile_program)
        log_warn("device %s compiles new shapes among the runs, because Mesa's cache has no folder "
                 "of the user's own or is disabled",
                 device->name);
    log_info("ready: aule-daemon %s, device %s (%s, %s), socket %s, pool of at most %" PRIu64
             " bytes, %u sessions, %u caches, arenas of "
             "%" PRIu64 " bytes, %s",
             AULE_VERSION_STRING, device->name, device->type, device->driver, server->socket,
             pool_limit_bytes, params->core.max_sessions, params->core.max_caches,
             params->max_arena,
             device->host_import ? "imported in place"
                                 : "staged (runs that use them are not cut into slices)");
}

enum server_exit server_run(struct server *server)
{
    log_readiness(server);
    notify_manager("READY=1");
    prctl(PR_SET_TIMERSLACK, 1000L); // this thread's timer slack in ns; the default is 50 us
    while (!server->finished)
        serve_once(server);
    return server_exit_code(server);
}

// ---- ending ----

static bool at_rest(const struct server *server)
{
    return !server->sessions && !server->num_offloads && core_idle(server->core);
}

// Ends all sessions and waits until the GPU has ended their runs. False: that took too long.
static bool end_sessions(struct server *server, int64_t deadline_ns)
{
    atomic_store(&server->waker.asleep, true); // for good: each event must write wake_fd now
    core_stop_tiers(server->core);
    if (server->jobs)
        session_end_all(server, "the daemon ends");
    while (!at_rest(server) && clock_now_ns() < deadline_ns) {
        struct pollfd news[] = {{.fd = server->wake_fd, .events = POLLIN},
                                {.fd = server->signal_fd, .events = POLLIN}};
        core_step(server->core, clock_now_ns());
        jobs_finish_done(server->jobs, server);
        offload_step(server);
        if (!at_rest(server) && poll(news, 2, 100) > 0) {
            wait_drain(server);
            server_read_signals(server);
        }
    }
    if (!at_rest(server))
        return false;
    core_destroy(server->core);
    server->core = NULL;
    return true;
}

// SERVER_FAREWELL_MS from now, or the end of --drain-timeout if that is later.
static int64_t end_deadline_ns(const struct server *server)
{
    int64_t deadline_ns = clock_now_ns() + SERVER_FAREWELL_MS * NS_PER_MS;
    return server->drain_deadline_ns > deadline_ns ? server->drain_deadline_ns : deadline_ns;
}

// Milliseconds until the deadline, at least 0.
static int rest_ms(int64_t deadline_ns)
{
    int64_t rest = (deadline_ns - clock_now_ns()) / NS_PER_MS;
    return rest < 0 ? 0 : (int)rest;
}

static const char gpu_is_busy[] = "the GPU does not become idle",
                  tier_is_silent[] = "a tier's disk or server does not answer";

// The GPU or a tier does not end. The memory that it may still use, and the objects that threads
// may still call, stay until the process ends.
static bool leave_behind(const struct server *server, const char *why)
{
    const unsigned num_sessions = HASH_COUNT(server->sessions);
    if (num_sessions)
        log_warn("daemon: %s; it may still use memory of %u sessions", why, num_sessions);
    else
        log_warn("daemon: %s", why);
    server_remove_traces(server);
    return false;
}

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

bool server_destroy(struct server *server)
{
    if (!server)
        return true;
    const int64_t deadline_ns = end_deadline_ns(server);
    if (server->core && !end_sessions(server, deadline_ns))
        return leave_behind(server,
                            core_waits_for_tiers(server->core) ? tier_is_silent : gpu_is_busy);
    lane_close_bell(server);
    exports_close(server->exports);
    server->exports = NULL;
    if (server->lock.fd >= 0 && server->listener)
        listener_unlink(server->listener);
    // From here on a driver may hang, and then no code reads the signalfd. So signals end
    // the process by themselves.
    if (server->stopping)
        server_unblock_signals(server);
    offload_forget_all(server);
    listener_close(server->listener);
    jobs_destroy(server->jobs);
    if (!tiering_close(&server->tiering, deadline_ns))
        return leave_behind(server, tier_is_silent);
    if (server->engine && server->params->validation)
        log_info("validation: %u messages", engine_validation_messages(server->engine));
    bool ended = engine_destroy_within(server->engine, rest_ms(deadline_ns));
    server_block_signals();
    if (!ended)
        return leave_behind(server, gpu_is_busy);
    if (server->guarded)
        sigbus_guard_finish();
    socket_lock_release(&server->lock);
    close_fd(server->device_mark);
    close_fd(server->signal_fd);
    close_fd(server->wake_fd);
    close_fd(server->epoll_fd);
    groups_destroy(server->groups);
    free(server->message);
    free(server->reply);
    free(server);
    return true;
}
