// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// measure.h - measures how long steps take, again and again. It does not know what a step is or
// where it runs.

#ifndef AULE_BENCH_MEASURE_H
#define AULE_BENCH_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

// A place where steps run: an engine in this process, or a daemon.
struct lane {
    void *context;
    uint32_t num_sets;  // of inputs; steps use them in turn
    uint32_t most;      // steps that one submission can have
    uint32_t in_flight; // submissions
    // Queues `count` steps over sets first_set, first_set + 1, ... Returns a number to wait for, or
    // 0 with a message.
    uint64_t (*submit)(void *context, uint32_t first_set, uint32_t count);
    // Waits for the oldest submission: the time of each step on the GPU, 0 if the device has no
    // clock. False: there is a message.
    bool (*wait)(void *context, uint64_t number, uint32_t count, uint64_t *gpu_ns);
    // Both in one call, while nothing else is in flight. NULL: not used.
    bool (*run)(void *context, uint32_t first_set, uint32_t count, uint64_t *gpu_ns);
};

struct samples {
    double *gpu_us, *wall_us; // of a step; of a submission, divided by its steps. Owned
    uint32_t count, capacity; // steps
    double elapsed_us;        // wall time of all steps together
};

struct times {
    // Time of one step on the GPU. By the wall clock if the device has no clock, or if another
    // process computes the step.
    double median_us, p99_us;
    double wall_us; // of one step, with others queued behind it: the mean
    double gpu_us;  // median on the GPU; 0 without a clock
    uint32_t runs;  // steps that were counted
};

double now_us(void);

// Measures for about `seconds`. The first half only warms up, and at least `least` steps are
// counted. `progress` (may be NULL) is called with a share from 0 to 1. False: standard error says
// why. samples_finish() takes a zeroed struct.
bool measure(const struct lane *lane, double seconds, uint32_t least,
             void (*progress)(double share), struct samples *samples);
bool samples_add(struct samples *samples, double gpu_us, double wall_us);
void samples_finish(struct samples *samples);

// The least of the numbers that a share `q` of them does not exceed. Sorts them; there is at least
// one.
double quantile(double *numbers, uint32_t count, double q);
// Sorts the samples. `wall`: use the wall clock, even if there are times of the GPU.
void samples_times(struct samples *samples, bool wall, struct times *times);

#endif
