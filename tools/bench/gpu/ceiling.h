// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ceiling.h - the most that the device can do, measured in the same run as the workloads: reading
// memory. One thread.

#ifndef AULE_BENCH_CEILING_H
#define AULE_BENCH_CEILING_H

#include <stdbool.h>
#include <stdint.h>

struct ceiling;

// Medians. `device` as in engine_params. NULL: standard error says why. ceiling_close() takes NULL.
struct ceiling *ceiling_open(const char *device, bool software);
void ceiling_close(struct ceiling *ceiling);
// A shader that reads gigabytes once, in 16-byte pieces; the best of several grid sizes.
double ceiling_gb_per_s(const struct ceiling *ceiling);

// Microseconds of a linear read of `bytes`, including launch and barrier, in a row of such reads:
// the least time of a workload that reads as much. 0: standard error says why.
double ceiling_floor_us(struct ceiling *ceiling, double bytes);

#endif
