// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pipeline.h - compiled pipelines: made on first use by a thread of their own, kept in LRU order,
// and saved to a file. Knows geometries and shaders, nothing of runs. Each function names its
// threads.

#ifndef AULE_ENGINE_PIPELINE_H
#define AULE_ENGINE_PIPELINE_H

#include "compile_helper.h"
#include "compiler.h"
#include "engine/vulkan/device.h"
#include "geometry.h"
#include "hopper_states.h"
#include "variant.h"

#include <stdatomic.h>

enum pipeline_kind {
    PIPELINE_ATTENTION,
    PIPELINE_SPLITS, // merges the splits of attention
    PIPELINE_KV_WRITE,
    PIPELINE_GATHER,
    PIPELINE_COPY,  // also zeroes
    PIPELINE_MERGE, // merges a caller's partial results
    PIPELINE_KINDS,
    PIPELINE_NATIVE = PIPELINE_KINDS // no pipeline: a native kernel, by hopper_code()
};

struct pipelines {
    struct device *device;
    const struct variant *variant;
    VkShaderModule modules[PIPELINE_KINDS]; // all but attention
    VkShaderModule kernels[MOST_KERNELS];   // attention, by the variant's list
    VkPipelineLayout layout;                // push constants only
    VkPipelineCache cache;
    struct compiler compiler;
    struct compile_helper helper;
    struct pipeline *by_key; // uthash; guard: compiler.lock, as of the next four
    struct pipeline *by_use; // least recently used first
    uint32_t most;           // pipelines to keep; those that the GPU may still run do not count
    uint64_t sequence;       // of the submission that was planned last
    uint64_t passed;         // the GPU has finished this submission and all before it
    struct hopper_states natives;
    char *path;          // of the file; NULL = no file; owned
    atomic_uint count;   // entries of by_key
    atomic_bool unsaved; // pipelines were compiled since the file was written
};

// The caller has set compiler.news and compiler.owner. The compiler's thread runs
// compiler_run(&pipelines->compiler).
enum status pipelines_init(struct pipelines *pipelines, struct device *device,
                           struct transfer *transfer, const struct engine_params *params,
                           struct error *error);
void pipelines_finish(struct pipelines *pipelines); // takes a zeroed and a half-built one; saves
// From now on only what a thread waits for is compiled, and no helper runs. Any thread.
void pipelines_quit(struct pipelines *pipelines);

// Pipelines that are asked for from now on are for submission `sequence`. The GPU has finished
// those up to `passed`. Submitter only.
void pipelines_begin(struct pipelines *pipelines, uint64_t sequence, uint64_t passed);

// What pipeline_get() does if the pipeline is missing: numbers that name no line.
enum { PIPELINE_WAIT = 0 };       // compiles it at once: no line
#define PIPELINE_LATER UINT64_MAX // returns BUSY; it is queued behind those that lines wait for

// Finds a pipeline, or has it compiled. `line`: one of the above, or the line that is put off.
// BUSY: it is not there yet. If there are too many pipelines, evicts the least recently used of the
// payer that has the most. One that several payers use counts for one with few.
// Constants that the kind does not use make no second pipeline. Only attention chooses its local
// size. Submitter only.
enum status pipeline_get(struct pipelines *pipelines, enum pipeline_kind kind,
                         const struct geometry *geometry, struct line_name line, VkPipeline *out,
                         struct error *error);
// Whether the pipeline of attention for `geometry`, and that of its second pass, are there. If only
// they are missing and `wanted`, they are compiled beforehand, for `payer`. Submitter only.
bool pipeline_is_there(struct pipelines *pipelines, const struct geometry *geometry, bool wanted,
                       uint64_t payer);

// Finds the native kernel for `geometry`, or has it translated and tested, with the statuses of
// pipeline_get(). UNSUPPORTED: it is refused. Submitter only.
enum status pipeline_native(struct pipelines *pipelines, const struct geometry *geometry,
                            struct line_name line, const struct native **out, struct error *error);
// Whether the native kernel for `geometry` was refused. Any thread.
bool pipeline_native_refused(const struct pipelines *pipelines, const struct geometry *geometry);

// Whether pipelines were compiled since the file was written, and writing it. A failure is logged;
// the next new pipeline tries again. Any thread.
bool pipelines_unsaved(struct pipelines *pipelines);
void pipelines_save(struct pipelines *pipelines);

#endif
