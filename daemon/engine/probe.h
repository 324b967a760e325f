// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// probe.h - made-up work of one kind (tune_key), in memory of the engine's own, to be timed with one candidate after the other: decodes
// of sequences of one length over zeroes. It goes the way of every submission, but no event tells of it.
// The thread that measures, but for what submitter and completer fill in while it waits.

#ifndef AULE_ENGINE_PROBE_H
#define AULE_ENGINE_PROBE_H

#include "batch.h"
#include "tune.h"

struct probe {
    struct engine *engine;
    struct tune_key key;
    struct engine_cache *cache; // owned, as the next ones; NULL unless ENGINE_POOL
    struct engine_batch *batch;
    struct engine_arena *arena;
    uint64_t arena_bytes;
    float *zeroes; // slopes, sinks
    struct engine_run run;

    uint32_t local_size; // that the next submission uses
    bool is_kind;        // by the submitter: its dispatch is of the kind
    uint64_t gpu_ns;     // by the completer, as the next
    struct error error;
};

// Fills *probe (zeroed), which must not move, with what takes at most so much of the device's memory; the engine ends it if the device is
// lost. LIMIT, NO_MEMORY and others, with why.
enum status probe_open(struct probe *probe, struct engine *engine, const struct tune_key *key, uint64_t memory_bytes,
                       struct error *error);
void probe_close(struct probe *probe); // takes a zeroed and a half-built one

// Runs it once with workgroups of that size, which it waits for. *gpu_ns is never 0. STOPPING, DEVICE_LOST; MISMATCH: it came out as a
// dispatch of another kind; UNSUPPORTED: the device has no clock.
enum status probe_time(struct probe *probe, uint32_t local_size, uint64_t *gpu_ns, struct error *error);

// Submitter: it became such a dispatch; a plan may have had to take another local size than was asked for.
void probe_note(struct probe *probe, const struct tune_key *key, uint32_t local_size);

#endif
