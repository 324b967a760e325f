// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// waker.h - how the engine's threads wake the dispatcher. They write an eventfd only if it sleeps;
// while it is awake it polls with plain loads, and no thread makes a system call. Knows the
// eventfd, not what the events are.
// No wake-up is lost. A thread first makes its event visible, then reads `asleep`. The dispatcher
// first sets `asleep`, then looks for events. All four are sequentially consistent, so at least one
// side sees the other. Thread: dispatcher, or as a declaration says.

#ifndef AULE_SERVER_WAKER_H
#define AULE_SERVER_WAKER_H

#include <stdatomic.h>
#include <stdbool.h>

struct waker {
    int fd;             // an eventfd; not owned
    atomic_bool asleep; // the dispatcher sleeps or is about to; it alone writes this
};

// Writes the eventfd, whether the dispatcher sleeps or not: for events that it does not poll for.
// Thread: any, also a signal handler.
void waker_ring(int fd);

// Call this after an event became visible. Thread: any.
void waker_wake(struct waker *waker);

// The dispatcher calls this before it sleeps in poll() or the like. False: has_news() is true, so
// it must not sleep.
bool waker_fall_asleep(struct waker *waker, bool (*has_news)(const void *context),
                       const void *context);
// The dispatcher calls this after it slept.
void waker_wake_up(struct waker *waker);

#endif
