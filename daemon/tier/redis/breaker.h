// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// breaker.h - whether a server is asked at all. Closed: it is. After BREAKER_FAILURES failures in a
// row it opens: nothing is asked, for a second at first and twice as long after each trial that
// fails, up to 30 seconds. Then it is half open: one trial connection, which no caller waits for,
// closes it or opens it again. Failures of one moment count once. Knows no server. One thread; the
// state may be read by any.

#ifndef AULE_TIER_REDIS_BREAKER_H
#define AULE_TIER_REDIS_BREAKER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { BREAKER_FAILURES = 3 };
#define BREAKER_FIRST_NS INT64_C(1000000000)
#define BREAKER_LAST_NS  INT64_C(30000000000)

enum breaker_state { BREAKER_CLOSED, BREAKER_OPEN, BREAKER_HALF_OPEN };

struct breaker {
    _Atomic int state;      // enum breaker_state
    _Atomic uint64_t opens; // times that it opened from closed
    int64_t moment_ns;      // how long failures count as one
    uint32_t failures;      // in a row
    int64_t failed_ns;      // when the last one was counted
    int64_t pause_ns;       // the next one's, or the one it is in
    int64_t until_ns;       // the end of the pause
};

void breaker_init(struct breaker *breaker, int64_t moment_ns);
enum breaker_state breaker_state(const struct breaker *breaker);
// It worked.
void breaker_success(struct breaker *breaker);
// It failed. True: it opened now.
bool breaker_failure(struct breaker *breaker, int64_t now_ns);
// The same, where more trials are of no use before a pause.
bool breaker_trip(struct breaker *breaker, int64_t now_ns);
// True: the pause is over, and it is half open from now on. The caller begins a trial.
bool breaker_tries(struct breaker *breaker, int64_t now_ns);

#endif
