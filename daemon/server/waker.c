// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// waker.c - see waker.h. The plain atomic calls are sequentially consistent, as the proof needs.
// Only waker_wake_up() may be weaker: a thread that still reads `asleep` makes a needless write, no
// more.

#include "waker.h"

#include <stdint.h>
#include <unistd.h>

void waker_ring(int fd)
{
    const uint64_t one = 1;
    if (write(fd, &one, sizeof one) < 0)
        return; // the eventfd's counter is full, so it is readable already
}

void waker_wake(struct waker *waker)
{
    if (atomic_load(&waker->asleep))
        waker_ring(waker->fd);
}

bool waker_fall_asleep(struct waker *waker, bool (*has_news)(const void *context),
                       const void *context)
{
    atomic_store(&waker->asleep, true);
    if (!has_news(context))
        return true;
    waker_wake_up(waker);
    return false;
}

void waker_wake_up(struct waker *waker)
{
    atomic_store_explicit(&waker->asleep, false, memory_order_release);
}
