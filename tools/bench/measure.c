// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// measure.c - see measure.h. Short steps are queued by the dozen and submissions overlap, so that
// the GPU is never idle and keeps its clocks up.

#include "measure.h"

#include "base/clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_IN_FLIGHT = 64, MOST_STEPS = 64, ROUND_US = 1000 };

double now_us(void)
{
    return (double)clock_now_ns() * 1e-3;
}

static int by_size(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

double quantile(double *numbers, uint32_t count, double q)
{
    qsort(numbers, count, sizeof *numbers, by_size);
    const uint32_t at = (uint32_t)ceil(q * count);
    return numbers[at ? at - 1 : 0];
}

bool samples_add(struct samples *samples, double gpu_us, double wall_us)
{
    if (samples->count == samples->capacity) {
        uint32_t capacity = samples->capacity ? 2 * samples->capacity : 256;
        double *gpu = realloc(samples->gpu_us, capacity * sizeof *gpu);
        if (gpu)
            samples->gpu_us = gpu;
        double *wall = realloc(samples->wall_us, capacity * sizeof *wall);
        if (wall)
            samples->wall_us = wall;
        if (!gpu || !wall) {
            fprintf(stderr, "aule-bench: no host memory\n");
            return false;
        }
        samples->capacity = capacity;
    }
    samples->gpu_us[samples->count] = gpu_us;
    samples->wall_us[samples->count++] = wall_us;
    return true;
}

void samples_finish(struct samples *samples)
{
    free(samples->gpu_us);
    free(samples->wall_us);
    *samples = (struct samples){0};
}

void samples_times(struct samples *samples, bool wall, struct times *times)
{
    *times = (struct times){.runs = samples->count};
    if (!samples->count)
        return;
    times->gpu_us = quantile(samples->gpu_us, samples->count, 0.5);
    double *counted = wall || !(times->gpu_us > 0) ? samples->wall_us : samples->gpu_us;
    times->median_us = quantile(counted, samples->count, 0.5);
    times->p99_us = quantile(counted, samples->count, 0.99);
    times->wall_us = samples->elapsed_us / samples->count;
}

// One measurement.
struct rounds {
    const struct lane *lane;
    uint32_t steps; // of each submission from now on
    uint32_t set;   // the next one
    struct round {
        uint64_t number;
        uint32_t steps;
    } flying[MOST_IN_FLIGHT];
    uint64_t submitted, done;
    uint64_t gpu_ns[MOST_STEPS]; // of the last submission that was waited for
};

static bool submit(struct rounds *r)
{
    struct round *round = &r->flying[r->submitted % MOST_IN_FLIGHT];
    *round = (struct round){r->lane->submit(r->lane->context, r->set, r->steps), r->steps};
    r->set = (r->set + r->steps) % r->lane->num_sets;
    r->submitted++;
    return round->number != 0;
}

// Waits for the oldest round. Returns its number of steps; 0: it failed.
static uint32_t finish(struct rounds *r)
{
    const struct round *round = &r->flying[r->done++ % MOST_IN_FLIGHT];
    return r->lane->wait(r->lane->context, round->number, round->steps, r->gpu_ns) ? round->steps
                                                                                   : 0;
}

// Submissions that do not overlap are waited for at once, as one request.
static uint32_t run_alone(struct rounds *r)
{
    const uint32_t steps = r->steps, set = r->set;
    r->set = (r->set + steps) % r->lane->num_sets;
    r->submitted = ++r->done;
    return r->lane->run(r->lane->context, set, steps, r->gpu_ns) ? steps : 0;
}

// Queues what may be in flight, and waits for the oldest. Returns as finish() does.
static uint32_t go_on(struct rounds *r, uint32_t in_flight)
{
    if (in_flight == 1 && r->lane->run)
        return run_alone(r);
    while (r->submitted < r->done + in_flight)
        if (!submit(r))
            return 0;
    return finish(r);
}

// How many steps take about ROUND_US, given the time of one.
static uint32_t steps_for(const struct rounds *r, double step_us)
{
    double steps = ROUND_US / (step_us > 1 ? step_us : 1);
    uint32_t most = r->lane->most < MOST_STEPS ? r->lane->most : MOST_STEPS;
    return steps < 1 ? 1 : steps > most ? most : (uint32_t)steps;
}

static bool count(struct samples *samples, const struct rounds *r, uint32_t steps,
                  double elapsed_us)
{
    for (uint32_t i = 0; i < steps; i++) {
        if (!samples_add(samples, (double)r->gpu_ns[i] * 1e-3, elapsed_us / steps))
            return false;
    }
    samples->elapsed_us += elapsed_us;
    return true;
}

bool measure(const struct lane *lane, double seconds, uint32_t least,
             void (*progress)(double share), struct samples *samples)
{
    struct rounds r = {.lane = lane, .steps = 1};
    uint32_t in_flight = lane->in_flight < MOST_IN_FLIGHT ? lane->in_flight : MOST_IN_FLIGHT;
    double begin = now_us(), end = begin + seconds * 1e6, last = begin;
    while (now_us() < end || samples->count < least) {
        uint32_t steps = go_on(&r, in_flight);
        double now = now_us();
        if (!steps)
            return false;
        if (now - begin > seconds * 0.5e6 && r.done > in_flight &&
            !count(samples, &r, steps, now - last))
            return false;
        r.steps = steps_for(&r, r.gpu_ns[0] ? (double)r.gpu_ns[0] * 1e-3 : (now - last) / steps);
        last = now;
        if (progress)
            progress((now - begin) / (end - begin));
    }
    while (r.done < r.submitted)
        if (!finish(&r))
            return false;
    return true;
}
