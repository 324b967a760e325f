// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// lane.c - see lane.h.

#include "lane.h"

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

struct lane {
    // constant
    struct tier_backend *redis;
    uint32_t index;
    int epoll, doorbell; // owned

    pthread_mutex_t lock;
    struct unit *inbox; // guarded by `lock`

    struct share *shares; // jobs with units here; the thread's alone
};

// ---- from other threads ----

static void ring(struct lane *lane)
{
    const uint64_t one = 1;
    while (write(lane->doorbell, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

void lane_give(struct lane *lane, struct unit *units)
{
    struct unit *unit, *after;
    pthread_mutex_lock(&lane->lock);
    const bool rings = !lane->inbox;
    LIST_EACH_SAFE(units, unit, after)
        LIST_APPEND(lane->inbox, unit);
    pthread_mutex_unlock(&lane->lock);
    if (rings)
        ring(lane);
}

uint32_t lane_index(const struct lane *lane)
{
    return lane->index;
}

// ---- units and jobs ----

void lane_drop(struct lane *lane, struct unit *unit)
{
    struct share *share = &unit->work->shares[lane->index];
    LIST_DELETE_BY(share->live, unit, live_prev, live_next);
    if (!share->live)
        LIST_DELETE(lane->shares, share);
}

static void take(struct lane *lane, struct unit *unit)
{
    struct share *share = &unit->work->shares[lane->index];
    if (!share->live)
        LIST_APPEND(lane->shares, share);
    LIST_APPEND_BY(share->live, unit, live_prev, live_next);
    unit->place = UNIT_NOWHERE;
    node_take(unit->node, unit);
}

static void take_inbox(struct lane *lane)
{
    struct unit *units, *unit, *next;
    pthread_mutex_lock(&lane->lock);
    units = lane->inbox;
    lane->inbox = NULL;
    pthread_mutex_unlock(&lane->lock);
    LIST_EACH_SAFE(units, unit, next) {
        take(lane, unit);
    }
}

static struct link *link_of(const struct unit *unit)
{
    struct node *node = unit->node;
    for (int i = 0; i < MOST_LINKS; i++) {
        struct link *link = &node->links[i];
        if (unit->sent >= link->sents && unit->sent < link->sents + LINK_DEPTH)
            return link;
    }
    return NULL;
}

// The job's time is up. A store that is half sent cannot be taken back, so its link is closed; the
// other units there are sent again.
static void expire_unit(struct lane *lane, struct unit *unit)
{
    if (unit->place == UNIT_SENT) {
        struct link *link = link_of(unit);
        if (!link_forget(link, unit)) {
            unit_note(unit, RECORD_TIMEOUT);
            unit->tries++;
            link_close(link, RECORD_CONNECTION); // ends the unit
            return;
        }
    } else if (unit->place == UNIT_QUEUED) {
        node_unqueue(unit->node, unit);
    }
    lane_drop(lane, unit);
    unit_end(unit, RECORD_TIMEOUT);
}

static void expire(struct lane *lane, struct share *share)
{
    struct work *work = share->work;
    work_hold(work);
    while (share->live)
        expire_unit(lane, share->live);
    work_release(work);
}

static struct share *find_expired(struct lane *lane, int64_t now_ns)
{
    struct share *share;
    LIST_EACH(lane->shares, share) {
        if (share->work->job->deadline_ns <= now_ns)
            return share;
    }
    return NULL;
}

// Returns when the next job's time is up.
static int64_t expire_jobs(struct lane *lane, int64_t now_ns)
{
    struct share *share;
    int64_t wake_ns = FOREVER;
    while ((share = find_expired(lane, now_ns))) // one may end others, too
        expire(lane, share);
    LIST_EACH(lane->shares, share) {
        const int64_t deadline_ns = share->work->job->deadline_ns;
        wake_ns = deadline_ns < wake_ns ? deadline_ns : wake_ns;
    }
    return wake_ns;
}

// ---- the thread ----

void lane_watch(struct lane *lane, struct link *link, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = link};
    epoll_ctl(lane->epoll, link->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, link->stream.fd, &event);
    link->events = events;
}

void lane_unwatch(struct lane *lane, struct link *link)
{
    if (link->events)
        epoll_ctl(lane->epoll, EPOLL_CTL_DEL, link->stream.fd, NULL);
    link->events = 0;
}

// Calls each of the lane's servers. Others may be added meanwhile.
static int64_t drive(struct lane *lane, int64_t now_ns)
{
    struct tier_backend *redis = lane->redis;
    int64_t wake_ns = FOREVER;
    for (uint32_t i = 0; i < atomic_load(&redis->num_nodes); i++) {
        struct node *node = redis->nodes[i];
        if (node->lane != lane)
            continue;
        const int64_t node_ns = node_drive(node, now_ns);
        wake_ns = node_ns < wake_ns ? node_ns : wake_ns;
    }
    return wake_ns;
}

static void wait_and_serve(struct lane *lane, int64_t wake_ns)
{
    struct epoll_event events[EVENTS_AT_ONCE];
    const int64_t left_ns = wake_ns == FOREVER ? FOREVER : wake_ns - clock_now_ns();
    const struct timespec time = clock_timespec(left_ns > 0 ? left_ns : 0);
    const int count =
        epoll_pwait2(lane->epoll, events, EVENTS_AT_ONCE, wake_ns == FOREVER ? NULL : &time, NULL);
    const int64_t now_ns = clock_now_ns();
    uint64_t rings;
    for (int i = 0; i < count; i++) {
        if (events[i].data.ptr)
            link_event(events[i].data.ptr, events[i].events, now_ns);
        else if (read(lane->doorbell, &rings, sizeof rings) < 0)
            continue; // it was read before
    }
}

void lane_clear(struct lane *lane)
{
    struct tier_backend *redis = lane->redis;
    take_inbox(lane);
    for (uint32_t i = 0; i < atomic_load(&redis->num_nodes); i++)
        if (redis->nodes[i]->lane == lane)
            node_stop(redis->nodes[i], RECORD_CLOSED);
}

static void run(void *argument)
{
    struct lane *lane = argument;
    sigset_t signals;
    prctl(PR_SET_TIMERSLACK, 10000L); // for this thread
    sigemptyset(&signals);
    sigaddset(&signals, SIGPIPE); // OpenSSL writes without MSG_NOSIGNAL
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    while (!atomic_load(&lane->redis->stopping)) {
        take_inbox(lane);
        const int64_t now_ns = clock_now_ns(), driven_ns = drive(lane, now_ns),
                      deadline_ns = expire_jobs(lane, now_ns);
        wait_and_serve(lane, driven_ns < deadline_ns ? driven_ns : deadline_ns);
    }
    lane_clear(lane);
}

// ---- the life of a lane ----

static bool open_files(struct lane *lane)
{
    struct epoll_event event = {.events = EPOLLIN};
    lane->epoll = epoll_create1(EPOLL_CLOEXEC);
    lane->doorbell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return lane->epoll >= 0 && lane->doorbell >= 0 &&
           epoll_ctl(lane->epoll, EPOLL_CTL_ADD, lane->doorbell, &event) == 0;
}

static void close_files(struct lane *lane)
{
    if (lane->epoll >= 0)
        close(lane->epoll);
    if (lane->doorbell >= 0)
        close(lane->doorbell);
}

struct lane *lane_create(struct tier_backend *redis, uint32_t index)
{
    struct lane *lane = calloc(1, sizeof *lane);
    if (!lane)
        return NULL;
    lane->redis = redis;
    lane->index = index;
    pthread_mutex_init(&lane->lock, NULL);
    if (open_files(lane))
        return lane;
    lane_destroy(lane);
    return NULL;
}

bool lane_start(struct lane *lane)
{
    return threads_start(&lane->redis->threads, run, lane);
}

void lane_stop(struct lane *lane)
{
    ring(lane);
}

void lane_destroy(struct lane *lane)
{
    if (!lane)
        return;
    close_files(lane);
    pthread_mutex_destroy(&lane->lock);
    free(lane);
}
