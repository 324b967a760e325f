// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// clocks.h - how long runs took, by the GPU's timestamps.

#ifndef AULE_ENGINE_CLOCKS_H
#define AULE_ENGINE_CLOCKS_H

#include "engine/plan/submission.h"

// What is to be read: so many; none of them is read yet; around each wave; what of a wave's time is
// whose.
uint32_t clocks_count(const struct submission *submission);
void clocks_begin(const struct submission *submission);
void clock_begin(const struct submission *submission, uint32_t wave);
void clock_end(const struct submission *submission, uint32_t wave);
void clocks_share(struct submission *submission);
void clocks_read(struct submission *submission); // the GPU is done: into the results. Completer.

#endif
