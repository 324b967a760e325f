// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// wait.c - see wait.h. To sleep is one epoll_pwait2() over the listener's descriptor, an eventfd
// (engine, jobs, SIGBUS guard), a signalfd, the doorbell and the pidfds of sessions.
// To poll is to read rings and the engine's news with plain loads, then to ask epoll without
// sleeping. The loads take some microseconds, however many rings are awake.

#include "wait.h"

#include "base/relax.h"
#include "lane.h"
#include "session.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { EVENTS_A_TURN = 64, LOADS_A_TURN = 64 };

void wait_drain(const struct server *server)
{
    uint64_t count;
    if (read(server->wake_fd, &count, sizeof count) < 0)
        return; // it was read before; its events are looked for in every turn anyway
}

static bool engine_has_something(const void *engine)
{
    return engine_has_news(engine);
}

// False: there is an event, or one is expected soon, so the dispatcher polls.
static bool fall_asleep(struct server *server, int64_t *until_ns)
{
    *until_ns = core_wake_ns(server->core);
    return !server->unfinished && (*until_ns == FOREVER || *until_ns > clock_now_ns()) &&
           !engine_has_news(server->engine) && lane_fall_asleep(server) &&
           waker_fall_asleep(&server->waker, engine_has_something, server->engine);
}

static void look(const struct server *server)
{
    const uint32_t looks = LOADS_A_TURN / (1 + lane_count_awake(server));
    for (uint32_t i = 0; !server->unfinished && i < looks && !engine_has_news(server->engine) &&
                         !lane_has_news(server);
         i++)
        cpu_relax();
}

// Waits at most `rest_ns`, which may be FOREVER. Linux before 5.11 has no epoll_pwait2(), and
// system call filters that do not know it refuse it with various errors. Then ppoll() does the
// waiting.
static int take_events(struct server *server, struct epoll_event *events, int64_t rest_ns)
{
    const struct timespec rest = clock_timespec(rest_ns);
    const struct timespec *limit = rest_ns == FOREVER ? NULL : &rest;
    if (rest_ns && !server->no_epoll_pwait2) {
        int count = epoll_pwait2(server->epoll_fd, events, EVENTS_A_TURN, limit, NULL);
        if (count >= 0 || errno == EINTR)
            return count;
        server->no_epoll_pwait2 = true;
    }
    // ppoll() takes nanoseconds; epoll_wait() takes only milliseconds.
    struct pollfd all = {.fd = server->epoll_fd, .events = POLLIN};
    if (rest_ns && ppoll(&all, 1, limit, NULL) < 0)
        return -1;
    return epoll_wait(server->epoll_fd, events, EVENTS_A_TURN, 0);
}

static int64_t rest_ns(int64_t until_ns)
{
    int64_t now_ns = until_ns == FOREVER ? 0 : clock_now_ns();
    return until_ns == FOREVER ? FOREVER : until_ns > now_ns ? until_ns - now_ns : 0;
}

static int sleep_for_events(struct server *server, struct epoll_event *events, int64_t until_ns)
{
    bool for_core = until_ns < server->next_deadline_ns;
    int count =
        take_events(server, events, rest_ns(for_core ? until_ns : server->next_deadline_ns));
    waker_wake_up(&server->waker);
    core_slept(server->core, for_core && count == 0 ? until_ns : FOREVER, clock_now_ns(),
               engine_has_news(server->engine));
    return count;
}

static int look_for_events(struct server *server, struct epoll_event *events)
{
    look(server);
    return take_events(server, events, 0);
}

void wait_for_events(struct server *server)
{
    struct epoll_event events[EVENTS_A_TURN];
    int64_t until_ns;
    int count = fall_asleep(server, &until_ns) ? sleep_for_events(server, events, until_ns)
                                               : look_for_events(server, events);
    for (int i = 0; i < count; i++) {
        const struct watch *mark = events[i].data.ptr;
        switch (mark->kind) {
        case WATCH_REQUESTS: server->has_requests = true; break;
        case WATCH_WAKE: wait_drain(server); break;
        case WATCH_SIGNALS: server_read_signals(server); break;
        case WATCH_OWNER: session_process_gone(mark->session); break;
        case WATCH_BELL: lane_hear_bell(server); break;
        case WATCH_EXPORTS:
            exports_serve(server->exports, clock_now_ns());
            server_arm(server, exports_expire(server->exports, clock_now_ns()));
            break;
        case WATCH_TIER: break; // core_step() asks in every turn
        }
    }
}
