// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tuning.h - tuning as the engine does it: the plan asks which candidate a dispatch gets, a thread of its own measures what was asked for
// and not known, behind the work that asked, and keeps it in the file.

#ifndef AULE_ENGINE_TUNING_H
#define AULE_ENGINE_TUNING_H

#include "submission.h"

// Reads the file, if there is one. The pipelines are there.
enum status tuning_init(struct engine *engine, const struct engine_params *params, struct error *error);
bool tuning_start(struct engine *engine); // false: its thread cannot be had
void tuning_stop(struct engine *engine);  // asks the thread to end, which then sets engine->tuning_gone
bool tuning_runs(const struct engine *engine);
void tuning_join(struct engine *engine);
void tuning_finish(struct engine *engine); // no thread runs

// Submitter: the local size for a dispatch of `run` of so many workgroups; `geometry` is all the rest, its kernel included. UINT32_MAX
// workgroups: whatever was measured, what the kernel's rule says of so many.
uint32_t tuning_local_size(const struct submission *submission, const struct engine_run *run,
                           const struct geometry *geometry, uint64_t num_workgroups);
// Submitter: there is such a dispatch, of `geometry` with its local size. What is not known of it is measured later, if there is room.
void tuning_want(const struct submission *submission, const struct engine_run *run, const struct geometry *geometry,
                 uint64_t num_workgroups);

#endif
