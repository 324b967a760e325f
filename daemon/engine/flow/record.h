// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// record.h - records the commands of a planned submission into its slot. Decides nothing: the plan
// does.

#ifndef AULE_ENGINE_RECORD_H
#define AULE_ENGINE_RECORD_H

#include "engine/plan/submission.h"

// Submitter only.
enum status record(struct submission *submission, struct error *error);

#endif
