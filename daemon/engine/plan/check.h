// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// check.h - whether a run can be done.

#ifndef AULE_ENGINE_CHECK_H
#define AULE_ENGINE_CHECK_H

#include "engine/memory/lists.h"

// Whether a shader can do `run` at all, but for its scratch memory. Any thread.
enum status engine_run_fits(const struct engine *engine, const struct engine_run *run,
                            struct error *error);
enum status scratch_check(const struct engine_batch *batch, const struct partials *partials,
                          struct error *error);
uint64_t run_num_tokens(
    const struct engine_run *run); // tokens or rows that it works on; 0 = nothing to do

#endif
