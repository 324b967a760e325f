// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// io_thread.c - see io_thread.h.

#include "io_thread.h"

#include "base/clock.h"
#include "base/list.h"
#include "node.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { EVENTS_AT_ONCE = 32 };

struct io_thread {
    // constant
    struct tier_backend *redis;
    uint32_t index;
    int epoll, doorbell; // owned

    pthread_mutex_t lock;
    struct unit *inbox; // guarded by `lock`

    struct share *shares; // jobs with units here; the thread's alone
};

// ---- from other threads ----

static void ring(struct io_thread *io)
{
    const uint64_t one = 1;
    while (write(io->doorbell, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

void io_thread_give(struct io_thread *io, struct unit *units)
{
    struct unit *unit, *after;
    pthread_mutex_lock(&io->lock);
    const bool rings = !io->inbox;
    LIST_EACH_SAFE(units, unit, after)
        LIST_APPEND(io->inbox, unit);
    pthread_mutex_unlock(&io->lock);
    if (rings)
        ring(io);
}

uint32_t io_thread_index(const struct io_thread *io)
{
    return io->index;
}

// ---- units and jobs ----

void io_thread_drop(struct io_thread *io, struct unit *unit)
{
    struct share *share = &unit->work->shares[io->index];
    LIST_DELETE_BY(share->live, unit, live_prev, live_next);
    if (!share->live)
        LIST_DELETE(io->shares, share);
}

static void take(struct io_thread *io, struct unit *unit)
{
    struct share *share = &unit->work->shares[io->index];
    if (!share->live)
        LIST_APPEND(io->shares, share);
    LIST_APPEND_BY(share->live, unit, live_prev, live_next);
    unit->place = UNIT_NOWHERE;
    node_take(unit->node, unit);
}

static void take_inbox(struct io_thread *io)
{
    struct unit *units, *unit, *next;
    pthread_mutex_lock(&io->lock);
    units = io->inbox;
    io->inbox = NULL;
    pthread_mutex_unlock(&io->lock);
    LIST_EACH_SAFE(units, unit, next) {
        take(io, unit);
    }
}

static struct conn *conn_of(const struct unit *unit)
{
    struct node *node = unit->node;
    for (int i = 0; i < MOST_CONNS; i++) {
        struct conn *conn = &node->conns[i];
        if (unit->sent >= conn->sents && unit->sent < conn->sents + CONN_DEPTH)
            return conn;
    }
    return NULL;
}

// The job's time is up. A store that is half sent cannot be taken back, so its connection is
// closed; the other units there are sent again.
static void expire_unit(struct io_thread *io, struct unit *unit)
{
    if (unit->place == UNIT_SENT) {
        struct conn *conn = conn_of(unit);
        if (!conn_forget(conn, unit)) {
            unit_note(unit, STORED_TIMEOUT);
            unit->tries++;
            conn_close(conn, STORED_CONNECTION); // ends the unit
            return;
        }
    } else if (unit->place == UNIT_QUEUED) {
        node_unqueue(unit->node, unit);
    }
    io_thread_drop(io, unit);
    unit_end(unit, STORED_TIMEOUT);
}

static void expire(struct io_thread *io, struct share *share)
{
    struct redis_job *work = share->work;
    redis_job_hold(work);
    while (share->live)
        expire_unit(io, share->live);
    redis_job_release(work);
}

static struct share *find_expired(struct io_thread *io, int64_t now_ns)
{
    struct share *share;
    LIST_EACH(io->shares, share) {
        if (share->work->job->deadline_ns <= now_ns)
            return share;
    }
    return NULL;
}

// Returns when the next job's time is up.
static int64_t expire_jobs(struct io_thread *io, int64_t now_ns)
{
    struct share *share;
    int64_t wake_ns = FOREVER;
    while ((share = find_expired(io, now_ns))) // one may end others, too
        expire(io, share);
    LIST_EACH(io->shares, share) {
        const int64_t deadline_ns = share->work->job->deadline_ns;
        wake_ns = deadline_ns < wake_ns ? deadline_ns : wake_ns;
    }
    return wake_ns;
}

// ---- the thread ----

void io_thread_watch(struct io_thread *io, struct conn *conn, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = conn};
    epoll_ctl(io->epoll, conn->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, conn->stream.fd, &event);
    conn->events = events;
}

void io_thread_unwatch(struct io_thread *io, struct conn *conn)
{
    if (conn->events)
        epoll_ctl(io->epoll, EPOLL_CTL_DEL, conn->stream.fd, NULL);
    conn->events = 0;
}

// Calls each of the I/O thread's servers. Others may be added meanwhile.
static int64_t drive(struct io_thread *io, int64_t now_ns)
{
    struct tier_backend *redis = io->redis;
    int64_t wake_ns = FOREVER;
    for (uint32_t i = 0; i < atomic_load(&redis->num_nodes); i++) {
        struct node *node = redis->nodes[i];
        if (node->io != io)
            continue;
        const int64_t node_ns = node_drive(node, now_ns);
        wake_ns = node_ns < wake_ns ? node_ns : wake_ns;
    }
    return wake_ns;
}

static void wait_and_serve(struct io_thread *io, int64_t wake_ns)
{
    struct epoll_event events[EVENTS_AT_ONCE];
    const int64_t left_ns = wake_ns == FOREVER ? FOREVER : wake_ns - clock_now_ns();
    const struct timespec time = clock_timespec(left_ns > 0 ? left_ns : 0);
    const int count =
        epoll_pwait2(io->epoll, events, EVENTS_AT_ONCE, wake_ns == FOREVER ? NULL : &time, NULL);
    const int64_t now_ns = clock_now_ns();
    uint64_t rings;
    for (int i = 0; i < count; i++) {
        if (events[i].data.ptr)
            conn_event(events[i].data.ptr, events[i].events, now_ns);
        else if (read(io->doorbell, &rings, sizeof rings) < 0)
            continue; // it was read before
    }
}

void io_thread_clear(struct io_thread *io)
{
    struct tier_backend *redis = io->redis;
    take_inbox(io);
    for (uint32_t i = 0; i < atomic_load(&redis->num_nodes); i++)
        if (redis->nodes[i]->io == io)
            node_stop(redis->nodes[i], STORED_CLOSED);
}

static void run(void *argument)
{
    struct io_thread *io = argument;
    sigset_t signals;
    prctl(PR_SET_TIMERSLACK, 10000L); // for this thread
    sigemptyset(&signals);
    sigaddset(&signals, SIGPIPE); // OpenSSL writes without MSG_NOSIGNAL
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    while (!atomic_load(&io->redis->stopping)) {
        take_inbox(io);
        const int64_t now_ns = clock_now_ns(), driven_ns = drive(io, now_ns),
                      deadline_ns = expire_jobs(io, now_ns);
        wait_and_serve(io, driven_ns < deadline_ns ? driven_ns : deadline_ns);
    }
    io_thread_clear(io);
}

// ---- the life of an I/O thread ----

static bool open_files(struct io_thread *io)
{
    struct epoll_event event = {.events = EPOLLIN};
    io->epoll = epoll_create1(EPOLL_CLOEXEC);
    io->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return io->epoll >= 0 && io->doorbell >= 0 &&
           epoll_ctl(io->epoll, EPOLL_CTL_ADD, io->doorbell, &event) == 0;
}

static void close_files(struct io_thread *io)
{
    if (io->epoll >= 0)
        close(io->epoll);
    if (io->doorbell >= 0)
        close(io->doorbell);
}

struct io_thread *io_thread_create(struct tier_backend *redis, uint32_t index)
{
    struct io_thread *io = calloc(1, sizeof *io);
    if (!io)
        return NULL;
    io->redis = redis;
    io->index = index;
    pthread_mutex_init(&io->lock, NULL);
    if (open_files(io))
        return io;
    io_thread_destroy(io);
    return NULL;
}

bool io_thread_start(struct io_thread *io)
{
    return threads_start(&io->redis->threads, run, io);
}

void io_thread_stop(struct io_thread *io)
{
    ring(io);
}

void io_thread_destroy(struct io_thread *io)
{
    if (!io)
        return;
    close_files(io);
    pthread_mutex_destroy(&io->lock);
    free(io);
}
