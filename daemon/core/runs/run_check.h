// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// run_check.h - may this run of this batch be queued? Parameters and tensors alone: neither work,
// tickets nor seals.

#ifndef AULE_CORE_RUN_CHECK_H
#define AULE_CORE_RUN_CHECK_H

#include "run_tensors.h"

// What a kind of run does not use is not looked at.
enum status run_check(const struct batch *batch, const struct core_run_params *params,
                      struct run_tensors *tensors, struct error *error);
bool run_is_causal(const struct core_run_params *params);
// The heads of one token of an LSE are one row.
enum status run_check_lse(const struct wire_tensor *lse, struct error *error);

#endif
