// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// run_check.h - checks whether a run of a batch may be queued, by its parameters and tensors. Other
// files check its work, its ticket and seals. Dispatcher thread.

#ifndef AULE_CORE_RUN_CHECK_H
#define AULE_CORE_RUN_CHECK_H

#include "run_tensors.h"

// Ignores what this kind of run does not use.
enum status run_check(const struct batch *batch, const struct core_run_params *params,
                      struct run_tensors *tensors, struct error *error);
// The heads of one token of an LSE are one row.
enum status run_check_lse(const struct wire_tensor *lse, struct error *error);

#endif
