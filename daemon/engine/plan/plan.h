// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// plan.h - from runs to groups, which are dispatches.

#ifndef AULE_ENGINE_PLAN_H
#define AULE_ENGINE_PLAN_H

#include "submission.h"

// A run that cannot be done gets its status in `results` and no group. Submitter only, as all but
// plan_num_shares().
void plan_build(struct submission *submission);
uint32_t plan_num_shares(const struct engine *engine,
                         const struct engine_run *run); // that it has at most
// The first group of the run; NO_GROUP: nothing to do, or it failed.
uint32_t plan_group(const struct submission *submission, uint32_t run);
void plan_forget(struct submission *submission,
                 uint32_t run); // it has no group any more; the groups stay
// Counters that the run's share wants, since its kernel merges splits itself.
uint64_t plan_counters(const struct submission *submission, uint32_t run,
                       const struct share *share);

#endif
