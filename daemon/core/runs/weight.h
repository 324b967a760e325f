// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// weight.h - what a run weighs: in the queue about tokens attended, against --max-run-work
// multiply-adds. What moves K and V counts by its bytes.

#ifndef AULE_CORE_WEIGHT_H
#define AULE_CORE_WEIGHT_H

#include "core/steps/batch.h"

uint64_t weight_attended(const struct batch *batch, const struct core_run_params *params); // tokens
uint64_t weight_in_queue(const struct batch *batch, const struct core_run_params *params);
uint64_t weight_work(const struct batch *batch, const struct core_run_params *params);
// The part of that which the longest sequence takes by itself where its keys are worked on in one
// piece: all else may be done meanwhile, and the rest of the device counts as busy. 0 for what is
// spread by itself.
uint64_t weight_alone(const struct batch *batch, const struct core_run_params *params);
// weight_in_queue() and weight_work() for so many bytes read or written; at least 1 each.
uint64_t weight_moved_in_queue(unsigned __int128 bytes);
uint64_t weight_moved_work(unsigned __int128 bytes);

#endif
