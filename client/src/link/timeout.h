// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// timeout.h - a caller's timeout in milliseconds (-1: for ever), and what is left of it when
// several steps share it.

#ifndef AULE_CLIENT_TIMEOUT_H
#define AULE_CLIENT_TIMEOUT_H

#include "aule/aule.h"
#include "base/clock.h"

#include <stdint.h>

enum { TIMEOUT_DEFAULT_MS = 10000 }; // for a session or a monitor with timeout_ms 0

struct timeout {
    int ms;           // -1 = for ever
    int64_t start_ms; // on the monotonic clock
};

// A timeout that begins now.
struct timeout timeout_start(int ms);
// The milliseconds left: -1 for ever, 0 once the timeout has passed.
int timeout_left(const struct timeout *timeout);
// The first part of what is left: the milliseconds that a wait may take before it looks whether the
// daemon and the session still live.
int timeout_look(const struct timeout *timeout);

// a + b milliseconds; if one is negative, the sum is for ever, too.
int timeout_sum(int a, int b);
// AULE_INVALID if timeout_ms is neither a time nor -1.
enum aule_status timeout_check(int timeout_ms);

#endif
