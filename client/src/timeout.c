// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// timeout.c - see timeout.h. Any thread.

#include "timeout.h"

#include <limits.h>
#include <time.h>

#include "error.h"

int64_t monotonic_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int64_t now_ms(void)
{
    return monotonic_ns() / 1000000;
}

struct timeout timeout_start(int ms)
{
    return (struct timeout){.ms = ms, .start_ms = now_ms()};
}

int timeout_left(const struct timeout *timeout)
{
    if (timeout->ms < 0)
        return -1;
    int64_t left = timeout->start_ms + timeout->ms - now_ms();
    return left > 0 ? (int)left : 0;
}

void timeout_init_cond(pthread_cond_t *cond)
{
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &clock);
    pthread_condattr_destroy(&clock);
}

void timeout_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int left_ms)
{
    const int64_t end_ns = monotonic_ns() + left_ms * INT64_C(1000000);
    const struct timespec end = {.tv_sec = end_ns / 1000000000, .tv_nsec = end_ns % 1000000000};
    if (left_ms < 0)
        pthread_cond_wait(cond, mutex);
    else
        pthread_cond_timedwait(cond, mutex, &end);
}

int timeout_sum(int a, int b)
{
    if (a < 0 || b < 0)
        return -1;
    return a > INT_MAX - b ? INT_MAX : a + b;
}

enum aule_status timeout_check(int timeout_ms)
{
    if (timeout_ms >= -1)
        return AULE_OK;
    return fail(AULE_INVALID, "timeout_ms = %d is neither a time nor -1", timeout_ms);
}
