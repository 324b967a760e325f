// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// watch.c - see watch.h.

#include "watch.h"

#include "base/clock.h"

#include <errno.h>
#include <poll.h>
#include <stdalign.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

enum { NEWS_BYTES = 16384, TICK_MS = 1000 };

static bool add(struct watch *watch, const char *path)
{
    watch->wd = inotify_add_watch(watch->fd, path, IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE);
    return watch->wd >= 0;
}

bool watch_open(struct watch *watch, const char *path)
{
    watch->fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    watch->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return watch->fd >= 0 && watch->stop_fd >= 0 && add(watch, path);
}

bool watch_follow(struct watch *watch, const char *path)
{
    if (watch->wd >= 0)
        inotify_rm_watch(watch->fd, watch->wd);
    return add(watch, path);
}

void watch_close(struct watch *watch)
{
    if (watch->fd >= 0)
        close(watch->fd);
    if (watch->stop_fd >= 0)
        close(watch->stop_fd);
    *watch = (struct watch){-1, -1, -1};
}

void watch_stop(struct watch *watch)
{
    const uint64_t one = 1;
    while (write(watch->stop_fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

static void tell(const struct inotify_event *event, const struct watch_calls *calls)
{
    if (event->mask & IN_Q_OVERFLOW)
        calls->lost(calls->context);
    else if (event->mask & IN_MOVED_TO)
        calls->came(calls->context, event->name);
    else if (event->mask & (IN_MOVED_FROM | IN_DELETE))
        calls->went(calls->context, event->name);
}

static void read_news(const struct watch *watch, const struct watch_calls *calls)
{
    alignas(struct inotify_event) char news[NEWS_BYTES];
    const ssize_t size = read(watch->fd, news, sizeof news);
    for (ssize_t at = 0; at < size;) {
        const struct inotify_event *event = (const void *)(news + at);
        tell(event, calls);
        at += (ssize_t)(sizeof *event + event->len);
    }
}

void watch_run(struct watch *watch, const struct watch_calls *calls)
{
    struct pollfd fds[2] = {{.fd = watch->fd, .events = POLLIN},
                            {.fd = watch->stop_fd, .events = POLLIN}};
    int64_t tick_ns = clock_deadline_ns(TICK_MS);
    while (!fds[1].revents) {
        const int64_t left_ns = tick_ns - clock_now_ns();
        const int ready = poll(fds, 2, left_ns > 0 ? (int)(left_ns / NS_PER_MS) + 1 : 0);
        if (ready > 0 && fds[0].revents)
            read_news(watch, calls);
        if (clock_now_ns() < tick_ns)
            continue;
        calls->tick(calls->context);
        tick_ns = clock_deadline_ns(TICK_MS);
    }
}
