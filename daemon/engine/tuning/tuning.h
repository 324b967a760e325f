// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tuning.h - which of the ways that give the same bits a dispatch gets: the plan asks, and what is
// not known waits to be measured. trial/tuner.h measures it.

#ifndef AULE_ENGINE_TUNING_H
#define AULE_ENGINE_TUNING_H

#include "tune_store.h"

struct tuning {
    struct tune table;
    struct tune_store store;
    uint32_t time_ms;    // that measuring one kind of dispatch may take
    bool has_candidates; // some kernel of the variant
};

// What a submission that measures is to use, and what came of it. The submitter writes is_kind, the
// completer the next two.
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

// Submitter: the local size for a dispatch of `run` of so many workgroups; `geometry` is all the
// rest, its kernel included. UINT32_MAX workgroups: whatever was measured, what the kernel's rule
// says of so many. `sample`: NULL unless it is a measurement.
uint32_t tuning_local_size(const struct engine *engine, const struct sample *sample,
                           const struct engine_run *run, const struct geometry *geometry,
                           uint64_t num_workgroups);
// Submitter: there is such a dispatch, of `geometry` with its local size. What is not known of it
// is measured later, if there is room.
void tuning_want(const struct engine *engine, struct sample *sample, const struct engine_run *run,
                 const struct geometry *geometry, uint64_t num_workgroups);

#endif
