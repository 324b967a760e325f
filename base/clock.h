// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// clock.h - the monotonic clock in nanoseconds, and deadlines on it. Timeouts are in milliseconds;
// a negative one never ends. Any thread.

#ifndef AULE_CLOCK_H
#define AULE_CLOCK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

#define NS_PER_MS INT64_C(1000000)
#define NS_PER_S  INT64_C(1000000000)
#define FOREVER   INT64_MAX // a deadline that never comes

int64_t clock_now_ns(void);
int64_t clock_deadline_ns(int timeout_ms); // a negative timeout: FOREVER
struct timespec clock_timespec(int64_t ns);

static inline int64_t clock_earlier(int64_t a_ns, int64_t b_ns)
{
    return a_ns < b_ns ? a_ns : b_ns;
}

// Initialises a condition variable for clock_wait(). 0 or an errno.
int clock_init_cond(pthread_cond_t *cond);
// Waits for the condition until `deadline_ns`. Returns 0, ETIMEDOUT or another errno. 0 can also be
// a spurious wake-up, so the caller checks its condition in a loop.
int clock_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns);

#endif
