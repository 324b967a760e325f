// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// forecast.h - predicts how long work takes from recent work of its kind, and when a thread should
// be awake for the end. A sleeping thread runs tens of us after the end of the work that wakes it.
// A thread that polls sees the end at once, but uses a core. So a thread sleeps until shortly
// before the predicted end, polls ("looks") for a bounded time, and then sleeps until it is woken.
// The completer and core's delay use forecast_watch; the client's ring lane asks by ticket. Knows
// numbers only: no clock, no GPU, no lock.

#ifndef AULE_FORECAST_H
#define AULE_FORECAST_H

#include "clock.h"

#include <stdbool.h>
#include <stdint.h>

// ---- how long: a table of kinds ----

enum { FORECAST_KINDS = 256, FORECAST_TICKETS = 64 };

struct forecast {
    // How many kinds are remembered; 0 or more than FORECAST_KINDS: FORECAST_KINDS. Two kinds that
    // share a place forget each other.
    uint32_t num_kinds;
    // A shorter time than the known one is believed at once. A longer one adds 1 / caution of the
    // excess, because the work may have waited for other work. 0: as 1.
    uint32_t caution;
    struct forecast_kind {
        uint64_t kind;
        int64_t took_ns; // 0 = unknown
    } kinds[FORECAST_KINDS];
};

int64_t forecast_time(const struct forecast *forecast, uint64_t kind); // 0: unknown
void forecast_learn(struct forecast *forecast, uint64_t kind, int64_t took_ns);
// When work that began at `start_ns` is expected to end. 0: unknown.
int64_t forecast_end(const struct forecast *forecast, uint64_t kind, int64_t start_ns);

// ---- by ticket: work whose kind and start are remembered until its end is asked for ----

struct forecast_tickets {
    struct forecast times;
    struct forecast_ticket {
        uint64_t ticket, kind;
        int64_t start_ns;
    } queued[FORECAST_TICKETS]; // later tickets take the places of earlier ones
};

void forecast_ticket_began(struct forecast_tickets *tickets, uint64_t ticket, uint64_t kind,
                           int64_t start_ns);
int64_t forecast_ticket_end(const struct forecast_tickets *tickets,
                            uint64_t ticket); // expected; 0: unknown
// The caller asked at `asked_ns` and got the answer at `end_ns`. The work may have ended before.
void forecast_ticket_ended(struct forecast_tickets *tickets, uint64_t ticket, int64_t asked_ns,
                           int64_t end_ns);

// ---- when to look: one piece of work after the other ----

struct forecast_watch {
    struct forecast times;
    // Rules. Length of a look; forecast_watch_look() may set another one for one look. 0: never
    // look.
    int64_t look_ns;
    // Work that is expected to take longer gets no look, because its times vary by more than a look
    // lasts. 0 = no limit.
    int64_t longest_ns;
    // How long a woken thread takes to notice the end; subtracted from the measured time. If this
    // value is too large, the next look begins earlier.
    int64_t wake_delay_ns;
    // True: a look for unknown work begins at once. False: the thread sleeps until the end.
    bool looks_at_unknown;
    // True: a timed sleep goes on when the work ends. If the first look after such a sleep sees the
    // end, the time of the end is unknown.
    bool sleep_ignores_end;

    int64_t late_ns;  // how much later than asked recent sleeps ended
    int64_t ended_ns; // when the last work ended; work that was sent before then began then
    // The work that ends next.
    uint64_t kind;
    bool watched; // there is such work
    int64_t begun_ns;
    int64_t end_ns;        // when it is expected; 0 = unknown
    int64_t look_until_ns; // 0 = the look has not begun
    uint32_t num_looks;
    bool could_sleep; // the thread had time to sleep before this look
};

// The work that ends next is of `kind` and was sent at `sent_ns`.
void forecast_watch_begin(struct forecast_watch *watch, uint64_t kind, int64_t sent_ns);
// At most `now_ns`: look, and ask again. Later: sleep until then. FOREVER: sleep until woken.
int64_t forecast_watch_wake_ns(struct forecast_watch *watch, int64_t now_ns);
// Begins the look now and lets it last until `until_ns`.
void forecast_watch_look(struct forecast_watch *watch, int64_t now_ns, int64_t until_ns);
// A sleep that was to end at `until_ns` has ended.
void forecast_watch_slept(struct forecast_watch *watch, int64_t until_ns, int64_t now_ns);
// The work has ended. `woken`: its end woke the thread; else a look saw it.
void forecast_watch_end(struct forecast_watch *watch, int64_t now_ns, bool woken);

// The whole wait of a thread that waits for nothing else.
struct forecast_waiter {
    int64_t (*now_ns)(void *context);
    bool (*look)(void *context);                    // once; true: the work has ended
    void (*sleep)(void *context, int64_t until_ns); // the end of the work does not end it
    bool (*wait)(void *context);                    // until the end; false: there will be none
};
// Waits for work of `kind` that was sent at `sent_ns`. False: wait() failed; nothing is learned.
bool forecast_watch_await(struct forecast_watch *watch, uint64_t kind, int64_t sent_ns,
                          const struct forecast_waiter *waiter, void *context);

// A default for look_ns: 0 if the process has fewer than `least_cores`, because a look uses one.
int64_t forecast_look_ns(int64_t look_ns, long num_cores, long least_cores);

#endif
