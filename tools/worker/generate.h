// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// generate.h - from a prompt to tokens: look up, prefill in chunks, publish, decode greedily. Knows
// neither files nor aule. One thread.

#ifndef WORKER_GENERATE_H
#define WORKER_GENERATE_H

#include "attention.h"
#include "model.h"

// `done` tokens of `all` of them are there: before the first step and after each.
typedef void generate_progress(const char *what, uint32_t done, uint32_t all);

struct generate_params {
    const struct model *model;
    struct attention
        *attention; // of a new sequence; its max_tokens is at least num_prompt + num_tokens
    const int32_t *prompt;
    uint32_t num_prompt;         // at least 1
    uint32_t num_tokens;         // to generate, at least 1
    uint32_t chunk;              // prompt tokens a step, at least 1
    generate_progress *progress; // NULL: nobody looks
};

struct generation {
    uint32_t num_tokens;
    int32_t *ids;           // [num_tokens]; owned
    float *logits;          // [num_tokens, MODEL_VOCABULARY], what each id was chosen from; owned
    uint32_t hit_tokens;    // of the prompt, found in the cache
    double prefill_seconds; // look-up included
    double decode_seconds;
};

// False: `failure` says why, and nothing is owned. Else end with generation_finish().
bool generate(const struct generate_params *params, struct generation *generation,
              struct failure *failure);
void generation_finish(struct generation *generation);

uint32_t generation_distinct_ids(const struct generation *generation);

// The least distance between the best and the second best logit of a step.
double generation_smallest_gap(const struct generation *generation);

// The largest difference between two arrays of logits; a logit that is not finite counts as FLT_MAX
// away.
double generation_largest_difference(const float *a, const float *b, size_t count);

#endif
