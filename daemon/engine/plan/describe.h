// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// describe.h - what shaders are to read of a planned submission.

#ifndef AULE_ENGINE_DESCRIBE_H
#define AULE_ENGINE_DESCRIBE_H

#include "submission.h"

// Measured by the plan, then put into the slot's piece, which has room. Submitter only.
void describe_measure(struct submission *submission);
void describe_upload(const struct submission *submission);
uint64_t describe_merge(const struct submission *submission,
                        uint32_t run); // where the struct gpu_merge of an ENGINE_MERGE lies

#endif
