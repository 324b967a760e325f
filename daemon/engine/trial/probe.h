// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// probe.h - made-up work of one kind (tune_key), in memory of the engine's own, to be timed with
// one candidate after the other: decodes of sequences of one length over zeroes. It goes the way of
// every submission, but no event tells of it. The thread that measures, but for what submitter and
// completer fill in while it waits.

#ifndef AULE_ENGINE_PROBE_H
#define AULE_ENGINE_PROBE_H

#include "engine/tuning/tuning.h"

struct probe {
    struct engine *engine;
    struct sample sample;
    struct engine_cache *cache; // owned, as the next ones; NULL unless ENGINE_POOL
    struct engine_batch *batch;
    struct engine_arena *arena;
    uint64_t arena_bytes;
    float *zeroes; // slopes, sinks
    struct engine_run run;
};

// Fills *probe (zeroed), which must not move, with what takes at most so much of the device's
// memory; the engine ends it if the device is lost. LIMIT, NO_MEMORY and others, with why.
enum status probe_open(struct probe *probe, struct engine *engine, const struct tune_key *key,
                       uint64_t memory_bytes, struct error *error);
void probe_close(struct probe *probe); // takes a zeroed and a half-built one

// Runs it once with workgroups of that size, which it waits for. *gpu_ns is never 0. STOPPING,
// DEVICE_LOST; MISMATCH: it came out as a dispatch of another kind; UNSUPPORTED: the device has no
// clock.
enum status probe_time(struct probe *probe, uint32_t local_size, uint64_t *gpu_ns,
                       struct error *error);

#endif
