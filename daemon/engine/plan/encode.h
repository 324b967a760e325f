// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// encode.h - writes what shaders read about a planned submission: struct gpu_run, ranges and
// extras. Knows layout.h and the plan; records nothing. Submitter only.

#ifndef AULE_ENGINE_ENCODE_H
#define AULE_ENGINE_ENCODE_H

#include "submission.h"

// The plan calls encode_measure() to size the data; encode_upload() writes it into the slot's
// piece, which has that much room.
void encode_measure(struct submission *submission);
void encode_upload(const struct submission *submission);
// Shader address of the struct gpu_merge of run `run`, an ENGINE_MERGE.
uint64_t encode_merge(const struct submission *submission, uint32_t run);

#endif
