// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// staging.h - copies the rows of mirrored arenas before and after a submission. The submitter
// copies in, the completer out. No lock may be held.

#ifndef AULE_ENGINE_STAGING_H
#define AULE_ENGINE_STAGING_H

#include "engine/plan/submission.h"

// Waits first until earlier submissions with the same arenas have completed. false: the device was
// lost meanwhile.
bool stage_in(struct submission *submission);
void stage_out(const struct submission *submission);

#endif
