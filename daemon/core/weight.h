// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// weight.h - what a run weighs: tokens attended in the queue, multiply-adds against --max-run-work. What moves K and V without
// attending counts by its bytes.

#ifndef AULE_CORE_WEIGHT_H
#define AULE_CORE_WEIGHT_H

#include "batch.h"

uint64_t weight_attended(const struct batch *batch, const struct core_run_params *params);
uint64_t weight_work(const struct batch *batch, const struct core_run_params *params);
// The same for so many bytes read or written; at least 1 each.
uint64_t weight_moved_attended(unsigned __int128 bytes);
uint64_t weight_moved_work(unsigned __int128 bytes);

#endif
