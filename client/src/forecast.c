// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// forecast.c - see forecast.h. Both tables are indexed by the low bits of their ids, which the daemon counts up.

#include "forecast.h"

enum { LEAST_PART = 4 }; // what was waited for so large a part of its time was not done before

static const struct past *past_of(const struct forecast *forecast, uint64_t batch)
{
    return &forecast->past[batch % FORECAST_BATCHES];
}

int64_t forecast_run(const struct forecast *forecast, uint64_t batch, int64_t start_ns)
{
    const struct past *past = past_of(forecast, batch);
    return past->batch == batch && past->ns ? start_ns + past->ns : 0;
}

// What took less is believed at once, what took longer by a quarter: it may have stood behind others' work.
void forecast_run_done(struct forecast *forecast, uint64_t batch, int64_t start_ns, int64_t end_ns)
{
    struct past *past = &forecast->past[batch % FORECAST_BATCHES];
    int64_t took_ns = end_ns - start_ns;
    bool known = past->batch == batch && past->ns;
    past->batch = batch;
    past->ns = known && took_ns > past->ns ? past->ns + (took_ns - past->ns) / 4 : took_ns;
}

void forecast_ticket(struct forecast *forecast, uint64_t ticket, uint64_t batch, int64_t start_ns)
{
    forecast->queued[ticket % FORECAST_TICKETS] = (struct queued){ticket, batch, start_ns};
}

int64_t forecast_ticket_end(const struct forecast *forecast, uint64_t ticket)
{
    const struct queued *queued = &forecast->queued[ticket % FORECAST_TICKETS];
    return queued->ticket == ticket ? forecast_run(forecast, queued->batch, queued->start_ns) : 0;
}

// An answer that came soon after the question may have lain there for long: it says only that the run took no longer than that.
void forecast_ticket_done(struct forecast *forecast, uint64_t ticket, int64_t asked_ns, int64_t end_ns)
{
    const struct queued *queued = &forecast->queued[ticket % FORECAST_TICKETS];
    if (queued->ticket != ticket)
        return;
    int64_t took_ns = end_ns - queued->start_ns, expected_ns = forecast_run(forecast, queued->batch, queued->start_ns);
    bool waited = end_ns - asked_ns >= took_ns / LEAST_PART, less = expected_ns && end_ns < expected_ns;
    if (waited || less)
        forecast_run_done(forecast, queued->batch, queued->start_ns, end_ns);
}
