// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// clock.c - see clock.h.

#include "clock.h"

int64_t clock_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * NS_PER_S + now.tv_nsec;
}

int64_t clock_deadline_ns(int timeout_ms)
{
    return timeout_ms < 0 ? FOREVER : clock_now_ns() + timeout_ms * NS_PER_MS;
}

struct timespec clock_timespec(int64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)};
}

int clock_init_cond(pthread_cond_t *cond)
{
    pthread_condattr_t attributes;
    int error = pthread_condattr_init(&attributes);
    if (error)
        return error;
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    error = pthread_cond_init(cond, &attributes);
    pthread_condattr_destroy(&attributes);
    return error;
}

int clock_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns)
{
    const struct timespec deadline = clock_timespec(deadline_ns);
    return deadline_ns == FOREVER ? pthread_cond_wait(cond, mutex)
                                  : pthread_cond_timedwait(cond, mutex, &deadline);
}
