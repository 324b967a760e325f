// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// forecast.c - see forecast.h. The place in a table is the remainder of a number: a hash, or one
// that is counted up.

#include "forecast.h"

enum { LEAST_PART = 4 }; // a wait of at least this part of the work's time ended with the work
enum { FORGETS = 8 };    // what is not confirmed goes by eighths

// ---- how long ----

// A zeroed table works too.
static uint32_t place_of(const struct forecast *forecast, uint64_t kind)
{
    const uint32_t given = forecast->num_kinds;
    return (uint32_t)(kind % (given && given < FORECAST_KINDS ? given : FORECAST_KINDS));
}

int64_t forecast_time(const struct forecast *forecast, uint64_t kind)
{
    const struct forecast_kind *known = &forecast->kinds[place_of(forecast, kind)];
    return known->kind == kind ? known->took_ns : 0;
}

void forecast_learn(struct forecast *forecast, uint64_t kind, int64_t took_ns)
{
    const int64_t known_ns = forecast_time(forecast, kind);
    if (known_ns && took_ns > known_ns)
        took_ns = known_ns + (took_ns - known_ns) / (forecast->caution ? forecast->caution : 1);
    forecast->kinds[place_of(forecast, kind)] =
        (struct forecast_kind){kind, took_ns > 0 ? took_ns : 1};
}

int64_t forecast_end(const struct forecast *forecast, uint64_t kind, int64_t start_ns)
{
    const int64_t takes_ns = forecast_time(forecast, kind);
    return !takes_ns ? 0 : takes_ns < FOREVER - start_ns ? start_ns + takes_ns : FOREVER;
}

// ---- by ticket ----

void forecast_ticket_began(struct forecast_tickets *tickets, uint64_t ticket, uint64_t kind,
                           int64_t start_ns)
{
    tickets->queued[ticket % FORECAST_TICKETS] = (struct forecast_ticket){ticket, kind, start_ns};
}

int64_t forecast_ticket_end(const struct forecast_tickets *tickets, uint64_t ticket)
{
    const struct forecast_ticket *queued = &tickets->queued[ticket % FORECAST_TICKETS];
    return queued->ticket == ticket ? forecast_end(&tickets->times, queued->kind, queued->start_ns)
                                    : 0;
}

// An answer that came soon after the question may have been there for a long time. It only says
// that the work took no longer than that.
void forecast_ticket_ended(struct forecast_tickets *tickets, uint64_t ticket, int64_t asked_ns,
                           int64_t end_ns)
{
    const struct forecast_ticket *queued = &tickets->queued[ticket % FORECAST_TICKETS];
    if (queued->ticket != ticket)
        return;
    const int64_t took_ns = end_ns - queued->start_ns,
                  known_ns = forecast_time(&tickets->times, queued->kind);
    const bool waited = end_ns - asked_ns >= took_ns / LEAST_PART;
    if (waited || took_ns < known_ns)
        forecast_learn(&tickets->times, queued->kind, took_ns);
}

// ---- when to look ----

void forecast_watch_begin(struct forecast_watch *watch, uint64_t kind, int64_t sent_ns)
{
    watch->kind = kind;
    watch->watched = true;
    watch->begun_ns = sent_ns > watch->ended_ns ? sent_ns : watch->ended_ns;
    watch->end_ns = forecast_end(&watch->times, kind, watch->begun_ns);
    watch->look_until_ns = 0;
    watch->num_looks = 0;
    watch->could_sleep = false;
}

static bool may_look(const struct forecast_watch *watch)
{
    if (!watch->watched || !watch->look_ns)
        return false;
    return watch->end_ns
               ? !watch->longest_ns || watch->end_ns - watch->begun_ns <= watch->longest_ns
               : watch->looks_at_unknown;
}

// If late sleeps left no room for a sleep, they are forgotten step by step. Without a sleep nothing
// would show that sleeps are no longer late.
void forecast_watch_look(struct forecast_watch *watch, int64_t now_ns, int64_t until_ns)
{
    if (!watch->could_sleep && now_ns < watch->end_ns - watch->look_ns / 2)
        watch->late_ns -= watch->late_ns / FORGETS;
    watch->look_until_ns = until_ns;
}

int64_t forecast_watch_wake_ns(struct forecast_watch *watch, int64_t now_ns)
{
    const int64_t from_ns = watch->end_ns - watch->look_ns / 2 - watch->late_ns;
    if (!may_look(watch))
        return FOREVER;
    if (!watch->look_until_ns && now_ns < from_ns) {
        watch->could_sleep = true;
        return from_ns;
    }
    if (!watch->look_until_ns)
        forecast_watch_look(watch, now_ns, now_ns + watch->look_ns);
    if (now_ns >= watch->look_until_ns)
        return FOREVER;
    watch->num_looks++;
    return now_ns;
}

// One late sleep is no rule.
void forecast_watch_slept(struct forecast_watch *watch, int64_t until_ns, int64_t now_ns)
{
    const int64_t late_ns = now_ns - until_ns;
    if (until_ns == FOREVER || late_ns < 0)
        return; // woken before
    watch->late_ns =
        late_ns > watch->late_ns ? late_ns : watch->late_ns - (watch->late_ns - late_ns) / FORGETS;
}

// After a missed end, the thread sleeps until the end of the next work of that kind wakes it, which
// tells how long such work takes.
void forecast_watch_end(struct forecast_watch *watch, int64_t now_ns, bool woken)
{
    const bool missed =
        watch->sleep_ignores_end && watch->could_sleep && watch->num_looks == 1 && !woken;
    const int64_t took_ns = now_ns - watch->begun_ns - (woken ? watch->wake_delay_ns : 0);
    if (missed)
        watch->times.kinds[place_of(&watch->times, watch->kind)] =
            (struct forecast_kind){watch->kind, FOREVER};
    else
        forecast_learn(&watch->times, watch->kind, took_ns);
    watch->ended_ns = now_ns;
    watch->end_ns = 0;
    watch->watched = false;
}

bool forecast_watch_await(struct forecast_watch *watch, uint64_t kind, int64_t sent_ns,
                          const struct forecast_waiter *waiter, void *context)
{
    bool ended = false, woken = false;
    forecast_watch_begin(watch, kind, sent_ns);
    while (!ended) {
        const int64_t now_ns = waiter->now_ns(context),
                      wake_ns = forecast_watch_wake_ns(watch, now_ns);
        if (wake_ns <= now_ns) {
            ended = waiter->look(context);
        } else if (wake_ns < FOREVER) {
            waiter->sleep(context, wake_ns);
            forecast_watch_slept(watch, wake_ns, waiter->now_ns(context));
        } else if (waiter->wait(context)) {
            ended = woken = true;
        } else {
            return false;
        }
    }
    forecast_watch_end(watch, waiter->now_ns(context), woken);
    return true;
}

int64_t forecast_look_ns(int64_t look_ns, long num_cores, long least_cores)
{
    return num_cores >= least_cores ? look_ns : 0;
}
