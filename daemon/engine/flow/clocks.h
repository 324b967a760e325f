// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// clocks.h - GPU time of runs, from timestamps. Knows waves, groups and the bytes that they move.
// The submitter records; the completer reads.

#ifndef AULE_ENGINE_CLOCKS_H
#define AULE_ENGINE_CLOCKS_H

#include "engine/plan/submission.h"

// Timestamps that the submission needs.
uint32_t clocks_count(const struct submission *submission);
// Resets the submission's timestamps on the CPU, before they are recorded.
void clocks_begin(const struct submission *submission);
// Record the timestamps before and after the dispatches of a wave.
void clock_begin(const struct submission *submission, uint32_t wave);
void clock_end(const struct submission *submission, uint32_t wave);
// Estimates each group's part of its wave's time.
void clocks_estimate(struct submission *submission);
// Reads the timestamps when the GPU has finished, and fills in the results. Completer.
void clocks_read(struct submission *submission);

#endif
