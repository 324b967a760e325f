// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// advance.h - parts of advance.c that making.c uses. Knows what a next step takes over of the step
// before. Dispatcher thread, except advance_fill_arrays() and steps_prepare().

#ifndef AULE_CORE_ADVANCE_H
#define AULE_CORE_ADVANCE_H

#include "draft.h"

// The lengths of the arrays of `a`; reads none.
enum status advance_check_lengths(const struct batch *batch, const struct core_advance *a,
                                  struct error *error);
// Makes the arrays of the next step in *arrays, which is the caller's, and points *params to them.
// Any thread, while nothing advances or frees `old`.
enum status advance_fill_arrays(const struct batch *old, const struct core_advance *a,
                                struct core_batch_params *params, int32_t **arrays,
                                struct error *error);

// A batch of a cache counts mentions from its first advance on. steps_prepare() makes them, in any
// thread if the batch is not registered. steps_begin() counts their memory and puts them into the
// place of batch->blocks, if they are made. `writes` are those of batch->writes. NO_MEMORY.
enum status steps_prepare(struct batch *batch, const struct draft_write *writes,
                          struct error *error);
uint64_t steps_bytes(const struct batch *batch); // what steps_begin() will count
void steps_begin(struct batch *batch);           // the batch is registered

#endif
