// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// timeout.c - see timeout.h. Any thread.

#include "timeout.h"

#include "client/src/error.h"

#include <limits.h>

static int64_t now_ms(void)
{
    return clock_now_ns() / NS_PER_MS;
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

int timeout_look(const struct timeout *timeout)
{
    enum { LOOK_MS = 200 };
    int left = timeout_left(timeout);
    return left < 0 || left > LOOK_MS ? LOOK_MS : left;
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
    return fail(AULE_INVALID, "timeout_ms = %d; it may be -1 or more", timeout_ms);
}
