// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// measure.h - how long steps take, again and again. Says nothing of what the times mean, nor of who
// does the steps.

#ifndef AULE_BENCH_MEASURE_H
#define AULE_BENCH_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

// Who does steps: an engine in this process, or a daemon.
struct lane {
    void *context;
    uint32_t num_sets;  // of inputs, which take turns
    uint32_t most;      // steps that one submission can have
    uint32_t in_flight; // submissions
    // Queue `count` steps over sets first_set, first_set + 1, ...: a number to wait by, or 0 with a
    // message.
    uint64_t (*submit)(void *context, uint32_t first_set, uint32_t count);
    // The oldest submission: time of each step on the GPU, 0 where the device has no clock. False
    // with a message.
    bool (*wait)(void *context, uint64_t number, uint32_t count, uint64_t *gpu_ns);
    // Both in one, with nothing else under way. NULL: nobody asks for it.
    bool (*run)(void *context, uint32_t first_set, uint32_t count, uint64_t *gpu_ns);
};

struct samples {
    double *gpu_us, *wall_us; // of a step; of a submission, over its steps. Owned
    uint32_t count, capacity; // steps
    double elapsed_us;        // that they took together
};

struct times {
    double median_us,
        p99_us;     // of one step on the GPU; where the device has no clock, and beyond a process
                    // border, on the wall
    double wall_us; // of one step, with others queued behind it: mean
    double gpu_us;  // median on the GPU; 0 without a clock
    uint32_t runs;  // steps that were counted
};

double now_us(void);

// For about `seconds`, of which the first half only warms up, and at least `least` steps are
// counted. `progress` (may be NULL) is called with a share from 0 to 1. False: standard error says
// why. samples_finish() takes zeroed ones.
bool measure(const struct lane *lane, double seconds, uint32_t least,
             void (*progress)(double share), struct samples *samples);
bool samples_add(struct samples *samples, double gpu_us, double wall_us);
void samples_finish(struct samples *samples);

// Sorts. `wall` says that the wall's clock counts, whatever the GPU says.
void samples_times(struct samples *samples, bool wall, struct times *times);

#endif
