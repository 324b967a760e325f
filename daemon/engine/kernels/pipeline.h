// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pipeline.h - compiled pipelines: made on first use, kept in LRU order, and saved to a file. Knows
// geometries and shaders, nothing of runs. Each function names its threads.

#ifndef AULE_ENGINE_PIPELINE_H
#define AULE_ENGINE_PIPELINE_H

#include "engine/vulkan/device.h"
#include "geometry.h"
#include "hopper.h"
#include "variant.h"

#include <stdatomic.h>

enum pipeline_kind {
    PIPELINE_ATTENTION,
    PIPELINE_SPLITS, // merges the splits of attention
    PIPELINE_KV_WRITE,
    PIPELINE_GATHER,
    PIPELINE_COPY,  // also zeroes
    PIPELINE_MERGE, // merges a caller's partial results
    PIPELINE_KINDS
};

struct pipeline;
struct pipelines {
    struct device *device;
    const struct variant *variant;
    VkShaderModule modules[PIPELINE_KINDS]; // all but attention
    VkShaderModule kernels[MOST_KERNELS];   // attention, by the variant's list
    struct native natives[HOPPER_CODES];    // by hopper_code(); submitter only
    VkPipelineLayout layout;                // push constants only
    VkPipelineCache cache;
    struct pipeline *by_key; // uthash; submitter only, like the next four
    struct pipeline *by_use; // least recently used first
    uint32_t most;           // pipelines to keep; those that the GPU may still run do not count
    uint64_t sequence;       // of the submission that is being planned
    uint64_t passed;         // the GPU has finished this submission and all before it
    char *path;              // of the file; NULL = no file; owned
    atomic_uint count;       // entries of by_key
    atomic_bool unsaved;     // pipelines were compiled since the file was written
};

enum status pipelines_init(struct pipelines *pipelines, struct device *device,
                           const struct engine_params *params, struct error *error);
void pipelines_finish(struct pipelines *pipelines); // takes a zeroed and a half-built one; saves

// Pipelines that are asked for from now on are for submission `sequence`. The GPU has finished
// those up to `passed`. Submitter only.
void pipelines_begin(struct pipelines *pipelines, uint64_t sequence, uint64_t passed);

// Finds or compiles a pipeline. Evicts the least recently used ones if there are too many.
// Constants that the kind does not use make no second pipeline. Only attention chooses its local
// size. Submitter only.
enum status pipeline_get(struct pipelines *pipelines, enum pipeline_kind kind,
                         const struct geometry *geometry, VkPipeline *out, struct error *error);

// Finds the native kernel for `geometry`, or has the driver translate it. Submitter only.
enum status pipeline_native(struct pipelines *pipelines, const struct geometry *geometry,
                            const struct native **out, struct error *error);

// Compiles attention for `geometry` and destroys it again, so that the driver's cache has it when
// the submitter needs it. Any thread.
enum status pipeline_warm(struct pipelines *pipelines, const struct geometry *geometry,
                          struct error *error);

// Whether pipelines were compiled since the file was written, and writing it. A failure is logged;
// the next new pipeline tries again. Any thread.
bool pipelines_unsaved(struct pipelines *pipelines);
void pipelines_save(struct pipelines *pipelines);

#endif
