// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// choice.h - the pipelines' geometries for a run's shares, and how the run is cut for them. Knows
// runs and kernels; makes no work list. Submitter only.

#ifndef AULE_ENGINE_CHOICE_H
#define AULE_ENGINE_CHOICE_H

#include "engine/kernels/variant.h"
#include "engine/memory/lists.h"

struct submission;

struct choice {
    // By the variant's kernels. Zeroed if cutting.serving says that the kernel does not serve the
    // run. The last one is never zeroed, because it also gets sequences without queries.
    struct geometry geometries[MOST_KERNELS];
    struct cutting cutting;
};

// What a choice depends on, besides the pipelines that are there. No padding, so that two can be
// compared as bytes.
struct choice_inputs {
    struct geometry geometry; // of the run, without a kernel
    uint32_t group, num_splits, serving, num_slices;
    uint32_t has_line, alone, in_company, is_known;
    uint64_t most_keys, num_workgroups, own_workgroups;
};
_Static_assert(sizeof(struct choice_inputs) ==
                   sizeof(struct geometry) + 8 * sizeof(uint32_t) + 3 * sizeof(uint64_t),
               "it has no padding");

// The choice that was made last. Most runs of a wave are alike.
struct choice_memo {
    struct choice_inputs inputs; // all 0: none
    struct choice choice;
};

// Sets *choice for `run`, an ENGINE_ATTEND. `num_workgroups` is an estimate for the whole wave;
// UINT64_MAX: whole parts, no halves. `alone`: no cascade. Keeps it in submission->choice_memo.
void choice_make(struct choice *choice, struct submission *submission, const struct engine_run *run,
                 uint64_t num_workgroups, bool alone);
// Whether two runs with these choices are cut alike and use the same pipelines.
bool choice_same(const struct choice *a, const struct choice *b, uint32_t num_kernels);

#endif
