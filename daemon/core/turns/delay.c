// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// delay.c - see delay.h.

#include "delay.h"

// Time to spare beyond prepares_ns. An H200 starts some 10 us after it gets a submission, and the
// predicted end is wrong by that much or more.
static const int64_t ahead_ns = 35000;
enum {
    KINDS_KNOWN = 64, // kinds of submissions that the forecast remembers
    CAUTION = 4,      // forecast.h; a long time may be other processes' work on the GPU
    // When a wait ends, the GPU's end may be near. If it is at most MOST_LOOKS * look_ns away, the
    // dispatcher polls until then; else it has time to sleep.
    MOST_LOOKS = 2,
};

void delay_init(struct delay *delay, int64_t look_ns)
{
    *delay = (struct delay){
        .watch = {.times = {.num_kinds = KINDS_KNOWN, .caution = CAUTION},
                  .look_ns = look_ns,
                  .wake_delay_ns = look_ns / 2},
    };
}

void delay_next(struct delay *delay, uint64_t sequence, uint64_t kind, int64_t now_ns, bool woken)
{
    if (delay->sequence) {
        delay->ends_awake += !woken;
        delay->ends_asleep += woken;
        forecast_watch_end(&delay->watch, now_ns, woken);
    }
    if (sequence)
        forecast_watch_begin(&delay->watch, kind, now_ns);
    delay->sequence = sequence;
    delay->until_ns = 0;
    delay->keeps = false;
}

void delay_prepared(struct delay *delay, int64_t took_ns)
{
    const int64_t known_ns = delay->prepares_ns;
    delay->prepares_ns = took_ns > known_ns ? took_ns : known_ns - (known_ns - took_ns) / 8;
}

void delay_begin_step(struct delay *delay)
{
    delay->keeps = false;
}

bool delay_keep_back(struct delay *delay, int64_t now_ns)
{
    struct forecast_watch *watch = &delay->watch;
    const int64_t until_ns = watch->end_ns - ahead_ns - delay->prepares_ns - watch->late_ns;
    const int64_t left_ns = watch->end_ns > now_ns ? watch->end_ns - now_ns : 0;
    if (!watch->look_ns || !watch->end_ns || watch->look_until_ns)
        return false;
    if (!delay->until_ns && now_ns < until_ns)
        delay->until_ns = until_ns;
    delay->keeps = now_ns < delay->until_ns;
    if (!delay->keeps && delay->until_ns && left_ns <= MOST_LOOKS * watch->look_ns)
        forecast_watch_look(watch, now_ns, now_ns + watch->look_ns + left_ns);
    return delay->keeps;
}

int64_t delay_wake_ns(struct delay *delay, int64_t now_ns)
{
    if (!delay->keeps)
        return forecast_watch_wake_ns(&delay->watch, now_ns);
    delay->watch.could_sleep |= now_ns < delay->until_ns;
    return delay->until_ns;
}
