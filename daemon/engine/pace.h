// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pace.h - how to wait for the GPU: looking at it costs a core and hears at once, sleeping costs nothing and hears some twenty microseconds
// late. So the wait for work whose like was seen before sleeps until shortly before its end, looks for a bounded time, and only then
// waits for as long as it takes. Knows neither GPU nor clock, which come from outside. One thread; no lock.

#ifndef AULE_ENGINE_PACE_H
#define AULE_ENGINE_PACE_H

#include <stdbool.h>
#include <stdint.h>

enum { PACE_SHAPES = 256 }; // that are remembered; two that meet in a place forget each other

struct pace_shape {
    uint64_t shape;   // 0 = none
    uint64_t took_ns; // the GPU to do it, waiting included; about
};

struct pace {
    uint64_t poll_ns; // at most so long for one piece of work; 0 = never
    uint64_t late_ns; // that a sleep is too long, of late
    uint64_t done_ns; // when the last one was seen to have passed: it kept the GPU from the next
    struct pace_shape shapes[PACE_SHAPES];
};

// While a core only looks, its other thread may have it.
static inline void pace_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// How long the GPU may be looked at, in microseconds. `asked` 0: what suits a machine of so many cores and such a device.
uint64_t pace_poll_us(uint32_t asked, long num_cores, bool software);

struct pace_ops {
    uint64_t (*now_ns)(void *context);
    void (*sleep_until)(void *context, uint64_t ns);
    bool (*passed)(void *context); // by now; without waiting
    bool (*wait)(void *context);   // for as long as it takes; false: it never will
};

// Waits for work of such a shape (not 0), which the GPU was given at `sent_ns`. What wait() says.
bool pace_wait(struct pace *pace, uint64_t shape, uint64_t sent_ns, const struct pace_ops *ops, void *context);

#endif
