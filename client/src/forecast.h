// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// forecast.h - when a run will be done, by what runs of its batch took lately: a guess, rather too early than too late, which decides how long
// a thread sleeps before it looks, and nothing else. Knows numbers only: the caller has the clock, and a lock.

#ifndef AULE_CLIENT_FORECAST_H
#define AULE_CLIENT_FORECAST_H

#include <stdbool.h>
#include <stdint.h>

enum { FORECAST_BATCHES = 16, FORECAST_TICKETS = 64 }; // that are remembered; later ones take their places

struct forecast {
    struct past {
        uint64_t batch;
        int64_t ns; // from its submission to its answer
    } past[FORECAST_BATCHES];
    struct queued {
        uint64_t ticket, batch;
        int64_t start_ns;
    } queued[FORECAST_TICKETS];
};

// A run of `batch` was submitted at start_ns: when its end can be expected; 0: nobody knows.
int64_t forecast_run(const struct forecast *forecast, uint64_t batch, int64_t start_ns);
void forecast_run_done(struct forecast *forecast, uint64_t batch, int64_t start_ns, int64_t end_ns);

// The same for one that is waited for by its ticket.
void forecast_ticket(struct forecast *forecast, uint64_t ticket, uint64_t batch, int64_t start_ns);
int64_t forecast_ticket_end(const struct forecast *forecast, uint64_t ticket);
// It was asked for at asked_ns, maybe long after it was done.
void forecast_ticket_done(struct forecast *forecast, uint64_t ticket, int64_t asked_ns, int64_t end_ns);

#endif
