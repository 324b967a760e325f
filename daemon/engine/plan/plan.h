// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// plan.h - turns a submission's runs into groups; each group becomes a few dispatches. Knows runs,
// geometries and pipelines; records no command. Submitter only, except plan_num_shares().

#ifndef AULE_ENGINE_PLAN_H
#define AULE_ENGINE_PLAN_H

#include "submission.h"

// Plans all waves. A run that cannot be done gets its status in `results`, and no group.
void plan_build(struct submission *submission);
// The most shares that `run` can have. Any thread.
uint32_t plan_num_shares(const struct engine *engine, const struct engine_run *run);
// The first group of the run; NO_GROUP: it has nothing to do, or it failed.
uint32_t plan_group(const struct submission *submission, uint32_t run);
// Takes the run out of its groups. The groups themselves do not change.
void plan_forget(struct submission *submission, uint32_t run);
// The run has failed. If it is a slice of an attention, no slice behind it will run.
void plan_break_slices(const struct engine_run *run);
// Whether a share has large items and small ones, in a decode.
bool plan_has_tail(const struct submission *submission, const struct share *share);
// How many runs of a group stand in gpu_runs once more, with their small items.
uint32_t plan_num_tails(const struct group *group);
// Counters that the share needs because its kernel merges splits itself; else 0.
uint64_t plan_counters(const struct submission *submission, uint32_t run,
                       const struct share *share);

#endif
