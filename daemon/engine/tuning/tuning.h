// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tuning.h - which of several local sizes with the same bits a dispatch gets. The plan asks; an
// unknown kind of dispatch waits to be measured by trial/tuner.h.

#ifndef AULE_ENGINE_TUNING_H
#define AULE_ENGINE_TUNING_H

#include "tune_store.h"

struct tuning {
    struct tune table;
    struct tune_store store;
    uint32_t time_ms;    // --tune-time: for one kind of dispatch
    bool has_candidates; // some kernel of the variant has several local sizes
};

// What a measuring submission is to use, and its result. The submitter writes is_kind, the
// completer writes gpu_ns and error.
struct sample {
    struct tune_key key;
    uint32_t local_size;
    bool is_kind;    // its dispatch is of that kind
    uint64_t gpu_ns; // 0: the device has no clock
    struct error error;
};

// Reads the file, if there is one. The pipelines are there.
enum status tuning_init(struct engine *engine, const struct engine_params *params,
                        struct error *error);
void tuning_finish(struct engine *engine); // no thread runs

// Submitter: the local size for a dispatch of `run` with `num_workgroups`. `geometry` has all the
// rest, including the kernel. UINT32_MAX workgroups: the kernel's rule decides, whatever was
// measured. `sample`: NULL unless this is a measurement.
uint32_t tuning_local_size(const struct engine *engine, const struct sample *sample,
                           const struct engine_run *run, const struct geometry *geometry,
                           uint64_t num_workgroups);
// The part of a kind that depends on the lengths of the run's sequences.
uint32_t tuning_keys(const struct engine_run *run);
// Submitter: there is such a dispatch, of `geometry` with its local size. If its kind is unknown,
// it is measured later, as far as there is room.
void tuning_want(const struct engine *engine, struct sample *sample, const struct engine_run *run,
                 const struct geometry *geometry, uint64_t num_workgroups);

#endif
