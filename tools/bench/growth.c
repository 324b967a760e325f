// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// growth.c - see growth.h. Steps run one at a time, so a delay is what a waiting worker sees.

#include "growth.h"

#include <math.h>

enum { LEAST_CHUNKS = 2, MOST_CHUNKS = 8, LEAST_STEPS = 3 };

static bool step(struct world *world, uint32_t number, struct samples *samples, double *worst_us)
{
    struct lane lane = world_lane(world);
    double begin = now_us();
    uint64_t gpu_ns, sequence = lane.submit(lane.context, number % lane.num_sets, 1);
    if (!sequence || !lane.wait(lane.context, sequence, 1, &gpu_ns))
        return false;
    double took = now_us() - begin;
    samples->elapsed_us += took;
    *worst_us = fmax(*worst_us, took);
    return samples_add(samples, (double)gpu_ns * 1e-3, took);
}

static bool stand_still(struct world *world, double seconds, struct samples *samples,
                        double *worst_us)
{
    double end = now_us() + seconds * 1e6;
    uint32_t number = 0;
    struct samples warm = {0};
    double ignored = 0;
    bool ok = step(world, number++, &warm, &ignored);
    while (ok && (now_us() < end || samples->count < LEAST_STEPS))
        ok = step(world, number++, samples, worst_us);
    samples_finish(&warm);
    return ok;
}

static bool grow(struct world *world, double seconds, struct samples *samples, double *worst_us)
{
    double end = now_us() + seconds * 1e6;
    uint32_t number = 0;
    for (uint32_t i = 0; i < MOST_CHUNKS && (i < LEAST_CHUNKS || now_us() < end); i++) {
        uint32_t before = world->num_chunks;
        world_grow(world);
        while (world->num_chunks == before && !world->chunks_failed)
            if (!step(world, number++, samples, worst_us))
                return false;
        if (world->chunks_failed)
            return false;
    }
    return true;
}

bool growth_measure(struct world *world, double seconds, struct growth *growth)
{
    struct samples still = {0}, growing = {0};
    uint32_t before = world->num_chunks;
    double chunk_bytes = 2.0 * (double)shape_block_elements(&world->shape) *
                         dtype_size(world->params.kv_dtype) * world->chunk_blocks * world->num_sets;
    *growth = (struct growth){0};
    bool ok = stand_still(world, seconds / 2, &still, &growth->worst_still_us) &&
              grow(world, seconds / 2, &growing, &growth->worst_us);
    samples_times(&still, true, &growth->still);
    samples_times(&growing, true, &growth->growing);
    growth->num_chunks = world->num_chunks - before;
    growth->grown_gib = growth->num_chunks * chunk_bytes / 0x1p30;
    samples_finish(&still);
    samples_finish(&growing);
    return ok;
}
