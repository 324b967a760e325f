// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// waker.h - how the engine's threads wake the dispatcher: through an eventfd, unless it is awake;
// then news that it sees by a plain load cost nobody a system call. No wake-up is lost: who has
// news makes them visible first and then looks whether the dispatcher sleeps; the dispatcher first
// says that it sleeps and then looks for news. Both are sequentially consistent, so one of the two
// sees the other.

#ifndef AULE_SERVER_WAKER_H
#define AULE_SERVER_WAKER_H

#include <stdatomic.h>
#include <stdbool.h>

struct waker {
    int fd; // an eventfd; not owned
    atomic_bool asleep;
};

// Writes to the dispatcher's eventfd, for news that it looks for only when it was woken. Any
// thread, and signal handlers.
void waker_ring(int fd);

// Any thread, once the news can be seen.
void waker_wake(struct waker *waker);

// The dispatcher, before it sleeps in poll() or the like: from now on it wants to be woken. False:
// has_news() has some, and it is awake still.
bool waker_fall_asleep(struct waker *waker, bool (*has_news)(const void *context),
                       const void *context);
void waker_wake_up(struct waker *waker);

#endif
