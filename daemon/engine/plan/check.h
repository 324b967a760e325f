// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// check.h - whether the shaders can do a run, and whether its scratch memory fits. Knows shapes and
// limits; the caller has checked ids and ranges.

#ifndef AULE_ENGINE_CHECK_H
#define AULE_ENGINE_CHECK_H

#include "engine/memory/lists.h"

// Whether a shader can do `run`, without regard to scratch memory. Any thread.
enum status engine_run_fits(const struct engine *engine, const struct engine_run *run,
                            struct error *error);
// STATUS_LIMIT: the partial results exceed max_scratch_bytes. Any thread.
enum status scratch_check(const struct engine_batch *batch, const struct partials *partials,
                          struct error *error);
// Tokens that the run works on: the slice's rows of a write, gather or merge; ranges of a copy. 0 =
// there is nothing to do.
uint64_t run_num_tokens(const struct engine_run *run);
// Whether the run is a slice of one.
bool run_is_slice(const struct engine_run *run);
// The rows that a slice of a write, gather or merge moves, or the ranges that one of a copy copies
// (one for each block and layer); of a whole run all of them.
struct run_span {
    uint64_t first, count;
};
struct run_span run_span(const struct engine_run *run);

#endif
