// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// probe.h - made-up work of one kind (struct tune_key), to time the candidates. It consists of
// decodes of equally long sequences over zeros, in the engine's own memory. It is submitted like
// any other work, but posts no event. The tuning thread uses it; submitter and completer fill in
// the sample while that thread waits.

#ifndef AULE_ENGINE_PROBE_H
#define AULE_ENGINE_PROBE_H

#include "engine/tuning/tuning.h"

struct probe {
    struct engine *engine;
    struct sample sample;
    struct engine_cache *cache; // owned, like the next two; NULL unless ENGINE_POOL
    struct engine_batch *batch;
    struct engine_arena *arena;
    uint64_t arena_bytes; // bytes of the arena that are in use
    float *zeroes;        // [num_heads]: slopes and sinks; owned
    struct engine_run run;
};

// Fills *probe, which is zeroed and must not move afterwards. Takes at most `memory_bytes` of
// device memory. If the device is lost, the engine frees what the probe owns. LIMIT, NO_MEMORY and
// others: the error says why.
enum status probe_open(struct probe *probe, struct engine *engine, const struct tune_key *key,
                       uint64_t memory_bytes, struct error *error);
void probe_close(struct probe *probe); // takes a zeroed and a half-built one

// Runs the work once with workgroups of `local_size` and waits for it. *gpu_ns is never 0.
// STOPPING, DEVICE_LOST; MISMATCH: the plan made another kind of dispatch of it; UNSUPPORTED: the
// device has no timestamps.
enum status probe_time(struct probe *probe, uint32_t local_size, uint64_t *gpu_ns,
                       struct error *error);

#endif
