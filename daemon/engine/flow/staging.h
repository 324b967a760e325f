// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// staging.h - copies the rows of mirrored arenas around a submission.

#ifndef AULE_ENGINE_STAGING_H
#define AULE_ENGINE_STAGING_H

#include "engine/plan/submission.h"

// Waits until the arenas' earlier submissions are staged out; false: the device was lost meanwhile.
bool stage_in(struct submission *submission);
void stage_out(const struct submission *submission);

#endif
