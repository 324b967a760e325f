// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// drain.c - how the daemon ends. After a signal it takes no new work and finishes what is in
// flight. Then it lingers for a moment, because answers that the kernel has not taken are lost
// when it closes. If the GPU is lost, it answers all waiting commands, lingers, and ends with
// another exit code. Dispatcher thread.

#include "dispatch.h"
#include "log.h"
#include "park.h"
#include "segment.h"
#include "server/process/notify.h"
#include "session.h"

#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

static const int64_t linger_ns = 200 * NS_PER_MS;
enum { FAREWELL_LOG_MS = 200 };

static void refuse_parked(struct server *server, bool waits_too, enum status status,
                          const char *why)
{
    struct error error;
    error_set(&error, status, "%s", why);
    park_refuse_all(server, &error, waits_too);
}

static void start_drain(struct server *server, const char *signal_name)
{
    log_info("daemon: %s: stopping; up to %u ms for %u sessions' work in flight (--drain-timeout)",
             signal_name, server->params->drain_timeout_ms, server->num_live);
    notify_manager("STOPPING=1");
    server->stopping = true;
    server->drain_deadline_ns = clock_now_ns() + server->params->drain_timeout_ms * NS_PER_MS;
    server_arm(server, server->drain_deadline_ns);
    refuse_parked(server, false, STATUS_STOPPING, "the daemon is stopping and takes no new work");
}

void server_remove_traces(const struct server *server)
{
    if (server->lock.fd < 0)
        return; // without the lock these files are another daemon's
    segment_sweep(server->segment_prefix);
    if (server->listener)
        listener_unlink(server->listener);
    side_socket_remove(&server->bell);
    exports_remove(server->exports);
    bound_remove(&server->lock.bound, server->lock.path);
}

enum server_exit server_exit_code(const struct server *server)
{
    return server->device_lost ? SERVER_EXIT_DEVICE_LOST : SERVER_EXIT_OK;
}

static void end_at_once(const struct server *server)
{
    log_warn("daemon: a second signal: ends without draining");
    server_remove_traces(server);
    log_stop(FAREWELL_LOG_MS);
    _exit(server_exit_code(server));
}

// For on_signal(), which may use only async-signal-safe calls and constant data.
static struct {
    char lock_path[sizeof((struct socket_lock *)NULL)->path];
    struct bound lock;
    enum server_exit code;
} last;

static void on_signal(int number)
{
    (void)number;
    bound_remove(&last.lock, last.lock_path);
    _exit(last.code);
}

static void mask_signals(int how)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(how, &signals, NULL);
}

void server_unblock_signals(const struct server *server)
{
    const struct sigaction action = {.sa_handler = on_signal};
    memcpy(last.lock_path, server->lock.path, sizeof last.lock_path);
    last.lock = server->lock.bound;
    last.code = server_exit_code(server);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    mask_signals(SIG_UNBLOCK);
}

void server_block_signals(void)
{
    mask_signals(SIG_BLOCK);
}

void server_read_signals(struct server *server)
{
    struct signalfd_siginfo info;
    while (read(server->signal_fd, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGHUP) {
            log_info("daemon: SIGHUP: there is nothing to reload");
            continue;
        }
        // It comes again each second, until the hard limit kills.
        if (info.ssi_signo == SIGXCPU) {
            if (!server->stopping)
                start_drain(server, "SIGXCPU (RLIMIT_CPU)");
            continue;
        }
        if (++server->stop_signals > 1)
            end_at_once(server);
        if (!server->stopping)
            start_drain(server, info.ssi_signo == SIGINT ? "SIGINT" : "SIGTERM");
    }
}

static void linger(struct server *server, int64_t now_ns)
{
    server->linger_deadline_ns = now_ns + linger_ns;
    server_arm(server, server->linger_deadline_ns);
}

static void lose_device(struct server *server, int64_t now_ns)
{
    log_error("daemon: the GPU is lost; sessions are told and the daemon ends with exit code %d",
              SERVER_EXIT_DEVICE_LOST);
    server->device_lost = true;
    server->stopping = true;
    refuse_parked(server, false, STATUS_DEVICE_LOST,
                  "the GPU stopped; reopen the session with the next daemon");
    park_retry(server); // answers the waits: every ticket is done, with DEVICE_LOST
    linger(server, now_ns);
}

static bool clients_rest(const struct server *server)
{
    return !server->parked && !server->num_offloads && !server->deferred;
}

// A tier whose disk or server does not answer delays the end by no more than --drain-timeout.
static int64_t patience_ns(const struct server *server)
{
    return clients_rest(server) && core_waits_for_tiers(server->core)
               ? server->drain_deadline_ns - SERVER_FAREWELL_MS * NS_PER_MS - linger_ns
               : server->drain_deadline_ns;
}

static void give_up(struct server *server, int64_t now_ns)
{
    if (now_ns < server->drain_deadline_ns)
        log_warn("daemon: what tiers have not stored yet is given up, so that the daemon ends "
                 "within --drain-timeout %u ms",
                 server->params->drain_timeout_ms);
    else
        log_warn("daemon: --drain-timeout %u ms has passed with work in flight",
                 server->params->drain_timeout_ms);
    refuse_parked(server, true, STATUS_STOPPING,
                  "the daemon stops before the run was done (--drain-timeout)");
    session_end_all(server, "the daemon is stopping");
    linger(server, now_ns);
}

void server_step_drain(struct server *server)
{
    int64_t now_ns =
        server->stopping || core_device_status(server->core) != STATUS_OK ? clock_now_ns() : 0;
    if (!server->device_lost && core_device_status(server->core) == STATUS_DEVICE_LOST)
        lose_device(server, now_ns);
    if (!server->stopping)
        return;
    if (server->linger_deadline_ns) {
        server->finished = now_ns >= server->linger_deadline_ns;
        if (!server->finished)
            server_arm(server, server->linger_deadline_ns);
    } else if (core_idle(server->core) && clients_rest(server)) {
        linger(server, now_ns);
    } else if (now_ns >= patience_ns(server)) {
        give_up(server, now_ns);
    } else {
        server_arm(server, patience_ns(server));
    }
}
