// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// breaker.c - see breaker.h.

#include "breaker.h"

void breaker_init(struct breaker *breaker, int64_t moment_ns)
{
    atomic_init(&breaker->state, BREAKER_CLOSED);
    atomic_init(&breaker->opens, 0);
    breaker->moment_ns = moment_ns;
    breaker->failures = 0;
    breaker->failed_ns = 0;
    breaker->pause_ns = BREAKER_FIRST_NS;
    breaker->until_ns = 0;
}

enum breaker_state breaker_state(const struct breaker *breaker)
{
    return (enum breaker_state)atomic_load_explicit(&breaker->state, memory_order_relaxed);
}

void breaker_success(struct breaker *breaker)
{
    breaker->failures = 0;
    breaker->pause_ns = BREAKER_FIRST_NS;
    atomic_store(&breaker->state, BREAKER_CLOSED);
}

bool breaker_trip(struct breaker *breaker, int64_t now_ns)
{
    enum breaker_state state = breaker_state(breaker);
    if (state == BREAKER_OPEN)
        return false;
    if (state == BREAKER_HALF_OPEN)
        breaker->pause_ns =
            breaker->pause_ns < BREAKER_LAST_NS / 2 ? 2 * breaker->pause_ns : BREAKER_LAST_NS;
    else
        atomic_fetch_add(&breaker->opens, 1);
    breaker->until_ns = now_ns + breaker->pause_ns;
    atomic_store(&breaker->state, BREAKER_OPEN);
    return true;
}

bool breaker_failure(struct breaker *breaker, int64_t now_ns)
{
    if (breaker_state(breaker) == BREAKER_HALF_OPEN)
        return breaker_trip(breaker, now_ns);
    if (breaker->failures > 0 && now_ns - breaker->failed_ns < breaker->moment_ns)
        return false;
    breaker->failed_ns = now_ns;
    return ++breaker->failures >= BREAKER_FAILURES && breaker_trip(breaker, now_ns);
}

bool breaker_tries(struct breaker *breaker, int64_t now_ns)
{
    if (breaker_state(breaker) != BREAKER_OPEN || now_ns < breaker->until_ns)
        return false;
    atomic_store(&breaker->state, BREAKER_HALF_OPEN);
    return true;
}
