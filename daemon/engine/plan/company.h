// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// company.h - finds the runs of a wave that read the same keys, whatever session, batch or step
// they come from: its companies. One cascade computes their shared parts. Submitter only.

#ifndef AULE_ENGINE_COMPANY_H
#define AULE_ENGINE_COMPANY_H

#include "submission.h"

// Sets `joint`, `number`, `next` and `leader` of the runs [begin, end), which are one wave, in
// submission->planned, and submission->in_company. A run whose sequences share nothing with other
// runs keeps its joint, which is NULL at first. `num_workgroups` is as in choice_make().
void company_find(struct submission *submission, uint32_t begin, uint32_t end,
                  uint64_t num_workgroups);

#endif
