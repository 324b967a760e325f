// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// generate.c - see generate.h.

#include "generate.h"

#include "base/clock.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double now(void)
{
    return (double)clock_now_ns() * 1e-9;
}

static bool attend(void *context, uint32_t layer, const float *qkv, float *out)
{
    struct attention *attention = context;
    return attention->ops->run(attention, layer, qkv, out);
}

// One forward pass of the tokens at positions `first` and up. False: attention->failure says why.
static bool step(const struct generate_params *params, const int32_t *tokens, uint32_t count,
                 uint32_t first, bool write, float *logits)
{
    struct attention *attention = params->attention;
    if (!attention->ops->begin(attention, first, count, write))
        return false;
    enum model_result result =
        model_forward(params->model, tokens, count, first, attend, attention, logits);
    attention->ops->end(attention);
    if (result == MODEL_NO_MEMORY)
        failure_set(&attention->failure, EXIT_CODE_FAILED, "out of memory for a step of %u tokens",
                    count);
    return result == MODEL_OK;
}

static void tell(const struct generate_params *params, const char *what, uint32_t done,
                 uint32_t all)
{
    if (params->progress)
        params->progress(what, done, all);
}

// Computes the prompt and leaves the logits of its last token.
static bool prefill(const struct generate_params *params, uint32_t *hit_tokens, float *logits)
{
    struct attention *attention = params->attention;
    if (!attention->ops->lookup(attention, params->prompt, params->num_prompt, hit_tokens))
        return false;
    tell(params, "prompt", *hit_tokens, params->num_prompt);
    // All tokens are in the cache: only the last one is computed again, and nothing is written.
    const uint32_t last = params->num_prompt - 1;
    if (*hit_tokens == params->num_prompt)
        return step(params, params->prompt + last, 1, last, false, logits);
    for (uint32_t first = *hit_tokens; first < params->num_prompt;) {
        const uint32_t rest = params->num_prompt - first,
                       count = rest < params->chunk ? rest : params->chunk;
        if (!step(params, params->prompt + first, count, first, true, logits))
            return false;
        first += count;
        tell(params, "prompt", first, params->num_prompt);
        if (!attention->ops->publish(attention, params->prompt, first))
            return false;
    }
    return true;
}

static int32_t best(const float *logits)
{
    int32_t id = 0;
    for (int32_t i = 1; i < MODEL_VOCABULARY; i++)
        if (logits[i] > logits[id])
            id = i;
    return id;
}

// Greedy decoding: each token is the one with the largest logit. The first token comes from the
// prefill's logits.
static bool decode(const struct generate_params *params, struct generation *generation)
{
    float *logits = generation->logits;
    for (uint32_t i = 0;; i++, logits += MODEL_VOCABULARY) {
        generation->ids[i] = best(logits);
        tell(params, "text", i + 1, generation->num_tokens);
        if (i + 1 == generation->num_tokens)
            return true;
        if (!step(params, &generation->ids[i], 1, params->num_prompt + i, true,
                  logits + MODEL_VOCABULARY))
            return false;
    }
}

static bool run(const struct generate_params *params, struct generation *generation)
{
    const double start = now();
    if (!prefill(params, &generation->hit_tokens, generation->logits))
        return false;
    const double prefilled = now();
    generation->prefill_seconds = prefilled - start;
    const bool done = decode(params, generation);
    generation->decode_seconds = now() - prefilled;
    return done;
}

bool generate(const struct generate_params *params, struct generation *generation,
              struct failure *failure)
{
    *generation = (struct generation){.num_tokens = params->num_tokens};
    generation->ids = calloc(params->num_tokens, sizeof *generation->ids);
    generation->logits = calloc(params->num_tokens, MODEL_VOCABULARY * sizeof *generation->logits);
    const bool allocated = generation->ids && generation->logits;
    if (allocated && run(params, generation))
        return true;
    if (allocated)
        *failure = params->attention->failure;
    else
        failure_set(failure, EXIT_CODE_FAILED, "out of memory for the logits of %u tokens",
                    params->num_tokens);
    generation_finish(generation);
    return false;
}

void generation_finish(struct generation *generation)
{
    free(generation->ids);
    free(generation->logits);
    *generation = (struct generation){0};
}

uint32_t generation_distinct_ids(const struct generation *generation)
{
    bool seen[MODEL_VOCABULARY] = {0};
    uint32_t count = 0;
    for (uint32_t i = 0; i < generation->num_tokens; i++) {
        count += !seen[generation->ids[i]];
        seen[generation->ids[i]] = true;
    }
    return count;
}

double generation_smallest_gap(const struct generation *generation)
{
    double smallest = DBL_MAX;
    for (uint32_t i = 0; i < generation->num_tokens; i++) {
        const float *logits = generation->logits + (size_t)i * MODEL_VOCABULARY;
        for (int32_t id = 0; id < MODEL_VOCABULARY; id++)
            if (id != generation->ids[i])
                smallest = fmin(smallest, (double)logits[generation->ids[i]] - logits[id]);
    }
    return smallest;
}

double generation_largest_difference(const float *a, const float *b, size_t count)
{
    double largest = 0;
    for (size_t i = 0; i < count; i++) {
        const double difference =
            isfinite(a[i]) && isfinite(b[i]) ? fabs((double)a[i] - b[i]) : FLT_MAX;
        largest = fmax(largest, difference);
    }
    return largest;
}
