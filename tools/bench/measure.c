// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// measure.c - see measure.h. Two runs are in flight, so that the GPU never waits for us.

#include "measure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { IN_FLIGHT = 2 };

struct samples {
    double *gpu_us, *wall_us;
    uint32_t count, capacity;
};

static double now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static bool add(struct samples *samples, double gpu_us, double wall_us)
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

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(double *values, uint32_t count, double q)
{
    qsort(values, count, sizeof *values, ascending);
    uint32_t at = (uint32_t)ceil(q * count);
    return values[at ? at - 1 : 0];
}

static bool sample(struct world *world, double seconds, uint32_t least, void (*progress)(double share),
                   struct samples *samples)
{
    uint64_t waiting[IN_FLIGHT] = {0}, submitted = 0, done = 0, gpu_ns;
    double begin = now_us(), end = begin + seconds * 1e6, last = begin;
    while (now_us() < end || samples->count < least) {
        while (submitted < done + IN_FLIGHT) {
            waiting[submitted % IN_FLIGHT] = world_submit(world, (uint32_t)(submitted % world->num_sets));
            if (!waiting[submitted++ % IN_FLIGHT])
                return false;
        }
        if (!world_wait(world, waiting[done++ % IN_FLIGHT], &gpu_ns))
            return false;
        double now = now_us();
        bool warm = now - begin > seconds * 0.5e6 && done > IN_FLIGHT;
        if (warm && !add(samples, (double)gpu_ns * 1e-3, now - last))
            return false;
        last = now;
        if (progress)
            progress((now - begin) / (end - begin));
    }
    for (; done < submitted; done++)
        if (!world_wait(world, waiting[done % IN_FLIGHT], &gpu_ns))
            return false;
    return true;
}

bool measure(struct world *world, double seconds, uint32_t least, void (*progress)(double share), struct times *times)
{
    struct samples samples = {0};
    bool ok = sample(world, seconds, least, progress, &samples) && samples.count;
    if (ok) {
        *times = (struct times){.runs = samples.count, .gpu_clock = samples.gpu_us[0] > 0};
        times->wall_us = quantile(samples.wall_us, samples.count, 0.5);
        double *counted = times->gpu_clock ? samples.gpu_us : samples.wall_us;
        times->median_us = quantile(counted, samples.count, 0.5);
        times->p99_us = quantile(counted, samples.count, 0.99);
    }
    free(samples.gpu_us);
    free(samples.wall_us);
    return ok;
}
