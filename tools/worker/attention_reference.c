// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_reference.c - attention in this process, on the CPU, with keys and values in plain
// arrays: aule must equal it. It is written from the definition and rounds where aule stores: q, k,
// v and out to their type, then keys and values as the cache keeps them, with the same scales. It
// has no blocks, no prefix cache, no daemon.

#include "attention.h"
#include "kept.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reference {
    struct attention base;
    struct attention_params params;
    uint32_t first, count;
    bool write;
    float *keys;   // [layers, kv_heads, head_dim, max_tokens]: values of one dimension lie side by
                   // side for SIMD
    float *values; // [layers, kv_heads, max_tokens, head_dim]
    float *scores; // [max_tokens]
};

static float *plane(const struct reference *reference, float *of, uint32_t layer, uint32_t kv_head)
{
    return of + (size_t)(layer * MODEL_KV_HEADS + kv_head) * MODEL_HEAD_DIM *
                    reference->params.max_tokens;
}

static bool begin(struct attention *attention, uint32_t first, uint32_t count, bool write)
{
    struct reference *reference = (struct reference *)attention;
    reference->first = first;
    reference->count = count;
    reference->write = write;
    return true;
}

// Stores the keys and values of token `position`.
static void append(struct reference *reference, uint32_t layer, uint32_t position, const float *qkv)
{
    float kept[MODEL_KV_WIDTH];
    memcpy(kept, qkv + MODEL_HEADS * MODEL_HEAD_DIM, sizeof kept);
    kept_row(kept, reference->params.dtype, &reference->params.kv);
    const float *key = kept, *value = kept + MODEL_KV_HEADS * MODEL_HEAD_DIM;
    for (uint32_t head = 0; head < MODEL_KV_HEADS; head++) {
        float *keys = plane(reference, reference->keys, layer, head);
        float *values = plane(reference, reference->values, layer, head);
        for (uint32_t d = 0; d < MODEL_HEAD_DIM; d++) {
            keys[(size_t)d * reference->params.max_tokens + position] = *key++;
            values[(size_t)position * MODEL_HEAD_DIM + d] = *value++;
        }
    }
}

// scores[0..len) = exp(scale * q . k - maximum). Returns their sum.
static double score(const struct reference *reference, const float *query, const float *keys,
                    uint32_t len)
{
    const float scale = 1 / sqrtf(MODEL_HEAD_DIM);
    float *restrict scores = reference->scores, largest = -INFINITY;
    memset(scores, 0, len * sizeof *scores);
    for (uint32_t d = 0; d < MODEL_HEAD_DIM; d++) {
        const float q = scale * element_round(query[d], reference->params.dtype);
        const float *k = keys + (size_t)d * reference->params.max_tokens;
        for (uint32_t j = 0; j < len; j++)
            scores[j] += q * k[j];
    }
    for (uint32_t j = 0; j < len; j++)
        largest = fmaxf(largest, scores[j]);
    double sum = 0;
    for (uint32_t j = 0; j < len; j++)
        sum += scores[j] = expf(scores[j] - largest);
    return sum;
}

// One query head of one token, which sees keys [0, len).
static void attend(const struct reference *reference, const float *query, uint32_t layer,
                   uint32_t kv_head, uint32_t len, float *out)
{
    const double sum =
        score(reference, query, plane(reference, reference->keys, layer, kv_head), len);
    const float *values = plane(reference, reference->values, layer, kv_head);
    double mean[MODEL_HEAD_DIM] = {0};
    for (uint32_t j = 0; j < len; j++)
        for (uint32_t d = 0; d < MODEL_HEAD_DIM; d++)
            mean[d] += (double)reference->scores[j] * values[(size_t)j * MODEL_HEAD_DIM + d];
    for (uint32_t d = 0; d < MODEL_HEAD_DIM; d++)
        out[d] = element_round((float)(mean[d] / sum), reference->params.dtype);
}

static bool run(struct attention *attention, uint32_t layer, const float *qkv, float *out)
{
    struct reference *reference = (struct reference *)attention;
    for (uint32_t t = 0; t < reference->count;
         t++, qkv += MODEL_QKV_WIDTH, out += MODEL_OUT_WIDTH) {
        if (reference->write)
            append(reference, layer, reference->first + t, qkv);
        for (uint32_t head = 0; head < MODEL_HEADS; head++)
            attend(reference, qkv + head * MODEL_HEAD_DIM, layer,
                   head / (MODEL_HEADS / MODEL_KV_HEADS), reference->first + t + 1,
                   out + head * MODEL_HEAD_DIM);
    }
    return true;
}

static void end(struct attention *attention)
{
    (void)attention;
}

static void destroy(struct attention *attention)
{
    struct reference *reference = (struct reference *)attention;
    free(reference->keys);
    free(reference->values);
    free(reference->scores);
    free(reference);
}

static const struct attention_ops ops = {attention_finds_nothing,  begin,  run, end,
                                         attention_offers_nothing, destroy};

struct attention *attention_reference_create(const struct attention_params *params,
                                             struct failure *failure)
{
    struct reference *reference = calloc(1, sizeof *reference);
    if (!reference)
        goto fail;
    const size_t row = MODEL_LAYERS * MODEL_KV_HEADS * MODEL_HEAD_DIM;
    reference->base.ops = &ops;
    snprintf(reference->base.device, sizeof reference->base.device, "this process, CPU");
    reference->params = *params;
    reference->keys = calloc(params->max_tokens, row * sizeof(float));
    reference->values = calloc(params->max_tokens, row * sizeof(float));
    reference->scores = calloc(params->max_tokens, sizeof(float));
    if (reference->keys && reference->values && reference->scores)
        return &reference->base;
    destroy(&reference->base);
fail:
    failure_set(failure, EXIT_CODE_FAILED, "out of memory for the keys and values of %u tokens",
                params->max_tokens);
    return NULL;
}
