// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// stopwatch.h - how long the GPU takes for a few commands.

#ifndef AULE_BENCH_STOPWATCH_H
#define AULE_BENCH_STOPWATCH_H

#include "engine/measuring.h"

struct stopwatch {
    struct transfer transfer;
    VkQueryPool queries;
};

enum status stopwatch_init(struct stopwatch *stopwatch, struct device *device, struct error *error);
void stopwatch_finish(struct stopwatch *stopwatch); // takes a zeroed or half-made one

// The median of several rounds of the commands that `record` records; 0 with *error.
double stopwatch_ns(struct stopwatch *stopwatch,
                    void (*record)(void *context, VkCommandBuffer commands), void *context,
                    struct error *error);

#endif
