// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pipeline.h - compiled shaders, made for what is used, and the file that keeps them.

#ifndef AULE_ENGINE_PIPELINE_H
#define AULE_ENGINE_PIPELINE_H

#include "engine/vulkan/device.h"
#include "geometry.h"
#include "variant.h"

#include <stdatomic.h>

enum pipeline_kind {
    PIPELINE_ATTENTION,
    PIPELINE_SPLITS, // merges what the splits of attention left
    PIPELINE_KV_WRITE,
    PIPELINE_GATHER,
    PIPELINE_COPY,  // and zeroes
    PIPELINE_MERGE, // merges a caller's partial results
    PIPELINE_KINDS
};

struct pipeline;
struct pipelines {
    struct device *device;
    const struct variant *variant;
    VkShaderModule modules[PIPELINE_KINDS]; // but for attention's, of which there is one a kernel
    VkShaderModule kernels[MOST_KERNELS];
    VkPipelineLayout layout; // push constants only
    VkPipelineCache cache;
    struct pipeline *by_key; // uthash; submitter only, as the next four
    struct pipeline *by_use; // the longest unused first
    uint32_t most;           // to keep, but for those in use
    uint64_t sequence;       // of the submission that is being planned
    uint64_t passed;         // all up to this one are done
    char *path;              // of the file; NULL = none; owned
    atomic_uint count;       // of by_key
    atomic_bool unsaved;     // some were built since the file was written
};

enum status pipelines_init(struct pipelines *pipelines, struct device *device,
                           const struct engine_params *params, struct error *error);
void pipelines_finish(struct pipelines *pipelines); // takes a zeroed and a half-built one; saves

// Submitter only: what is asked for from now on serves submission `sequence`; those up to `passed`
// are done.
void pipelines_begin(struct pipelines *pipelines, uint64_t sequence, uint64_t passed);

// Submitter only. Compiles on first use, and makes room by ending the pipelines that were unused
// for longest. What a kind does not use makes no second pipeline; the local size is attention's
// alone to choose.
enum status pipeline_get(struct pipelines *pipelines, enum pipeline_kind kind,
                         const struct geometry *geometry, VkPipeline *out, struct error *error);

// Any thread: compiles attention for `geometry` and lets go of it again, so that the driver has it
// when the submitter wants it.
enum status pipeline_warm(struct pipelines *pipelines, const struct geometry *geometry,
                          struct error *error);

// Any thread: whether the file is behind; write it (a failure is logged, and tried again after the
// next new pipeline).
bool pipelines_unsaved(struct pipelines *pipelines);
void pipelines_save(struct pipelines *pipelines);

#endif
