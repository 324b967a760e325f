// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// generate.h - from a prompt to tokens: look up, prefill in chunks, publish, decode greedily. It
// knows neither files nor aule. One thread.

#ifndef WORKER_GENERATE_H
#define WORKER_GENERATE_H

#include "attention.h"
#include "model.h"

// `done` of `all` tokens are computed. Called before the first step and after each step.
typedef void generate_progress(const char *what, uint32_t done, uint32_t all);

struct generate_params {
    const struct model *model;
    struct attention
        *attention; // of a new sequence; its max_tokens is at least num_prompt + num_tokens
    const int32_t *prompt;
    uint32_t num_prompt;         // at least 1
    uint32_t num_tokens;         // to generate, at least 1
    uint32_t chunk;              // prompt tokens a step, at least 1
    generate_progress *progress; // NULL: not wanted
};

struct generation {
    uint32_t num_tokens;
    int32_t *ids;           // [num_tokens]; owned
    float *logits;          // [num_tokens, MODEL_VOCABULARY], from which each id was chosen; owned
    uint32_t hit_tokens;    // tokens of the prompt that were found in the cache
    double prefill_seconds; // including the look-up
    double decode_seconds;
};

// False: `failure` says why, and nothing is owned. Otherwise end with generation_finish().
bool generate(const struct generate_params *params, struct generation *generation,
              struct failure *failure);
void generation_finish(struct generation *generation);

uint32_t generation_distinct_ids(const struct generation *generation);

// The smallest lead of the best logit over the second, of all steps.
double generation_smallest_gap(const struct generation *generation);

// The largest difference between two arrays of logits. A logit that is not finite counts as a
// difference of FLT_MAX.
double generation_largest_difference(const float *a, const float *b, size_t count);

#endif
