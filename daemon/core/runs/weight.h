// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// weight.h - what one layer of a run costs, in two units. The scheduler counts tokens attended;
// --max-run-work counts multiply-adds. Runs that only move K and V count by their bytes and
// workgroups.
// Estimates from shapes alone: nothing here is measured. Dispatcher thread only.

#ifndef AULE_CORE_WEIGHT_H
#define AULE_CORE_WEIGHT_H

#include "core/steps/batch.h"
#include "core/turns/habit.h"

// Tokens attended: queries times the keys of their window; 0 unless the run attends.
uint64_t weight_attended(const struct batch *batch, const struct core_run_params *params);
// The scheduler's cost, in tokens attended.
uint64_t weight_in_queue(const struct batch *batch, const struct core_run_params *params);
// The cost that --max-run-work limits, in multiply-adds.
uint64_t weight_work(const struct batch *batch, const struct core_run_params *params);
// Multiply-adds that the longest sequence counts for if its keys are not split. One workgroup then
// goes over all its keys while the rest of the device may be idle. So its work counts as if the
// whole device were busy for that time. weight_work() is at least this. 0 unless the run attends.
uint64_t weight_alone(const struct batch *batch, const struct core_run_params *params);
// What the run's first layer reads; `reading` is zeroed unless another session names the first
// block, too. The newest step of a batch only.
void weight_reading(const struct batch *batch, const struct core_run_params *params,
                    struct reading *reading);
// weight_work() without the minimum that weight_alone() sets.
uint64_t weight_spread(const struct batch *batch, const struct core_run_params *params);
// What writing K and V counts in weight_work(), of an attention that writes; else 0.
uint64_t weight_writes(const struct batch *batch, const struct core_run_params *params);
// What a cascade saves of weight_spread(), because it reads shared keys once.
uint64_t weight_saved(const struct batch *batch, const struct core_run_params *params);
// Into how many parts the engine can cut the run at most; its K/V writes can be cut into
// batch->num_tokens.
uint64_t weight_units(const struct batch *batch, const struct core_run_params *params);
// The same two costs for bytes that are read or written by so many workgroups; at least 1 each.
uint64_t weight_moved_in_queue(unsigned __int128 bytes, unsigned __int128 workgroups);
uint64_t weight_moved_work(unsigned __int128 bytes, unsigned __int128 workgroups);
uint64_t weight_copy_groups(uint64_t bytes); // workgroups that copy a layer's bytes of a block

#endif
