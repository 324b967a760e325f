// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// worker.h - one worker process of the study "share": it computes prompts and decodes through the
// client library's sequences, as the study tells it to by lines on standard input.

#ifndef AULE_BENCH_SHARE_WORKER_H
#define AULE_BENCH_SHARE_WORKER_H

#include "model.h"
#include "tools/bench/options.h"

// What all workers of a run compute.
struct share_shape {
    struct model_shape model;
    uint32_t prompt, own; // tokens that all sequences have in common; of each sequence's own
    uint32_t steps;       // tokens to decode
};

enum { SHARE_WORKERS = 8 };

// `full`: layers of D1's geometry.
struct share_shape share_shape_of(bool full, uint32_t prompt);
// The process `aule-bench client share`. Answers each line:
//   prefill   "prefilled US TOKENS": time until all prompts were computed; tokens computed
//   decode    "decoded US HASH GPU SESSIONS MAKING": time of all steps; of the outputs of all its
//             sequences; in a step, GPU time in us of the dispatches that it was in; sessions in
//             a dispatch; time in us to make a step
//   blocks    "blocks N": blocks of its cache that are leased or held
// With options->whole_steps it submits all layers of a step at once.
// False: standard error says why.
bool share_worker_run(const struct options *options);

#endif
