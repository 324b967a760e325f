// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// model.c - weights from a seed, and one forward pass with them.

#include "model.h"

#include "ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double rope_theta = 1e4;
static const uint64_t seed = 29; // chosen because its greedy text is varied and has no near ties

struct layer {
    float qkv[MODEL_WIDTH][MODEL_QKV_WIDTH];
    float out[MODEL_OUT_WIDTH][MODEL_WIDTH];
    float gate[MODEL_WIDTH][MODEL_INNER];
    float up[MODEL_WIDTH][MODEL_INNER];
    float down[MODEL_INNER][MODEL_WIDTH];
};

struct model {
    float embedding[MODEL_VOCABULARY][MODEL_WIDTH];
    struct layer layers[MODEL_LAYERS];
    float logits[MODEL_WIDTH][MODEL_VOCABULARY];
};

// splitmix64, by Sebastiano Vigna (public domain): the same numbers on every machine.
static uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// A weight [ins, outs], uniform, so that inputs of variance 1 give outputs of variance gain^2.
static void fill(float *weight, size_t ins, size_t outs, double gain, uint64_t *state)
{
    const double bound = gain * sqrt(3.0 / (double)ins);
    for (size_t i = 0; i < ins * outs; i++)
        weight[i] = (float)(bound * ((double)(random_bits(state) >> 11) * 0x1p-52 - 1));
}

static void fill_layer(struct layer *layer, uint64_t *state)
{
    // The gain gives scores a standard deviation of about 2. Attention then picks some tokens out
    // of thousands, as in trained models. With flat attention, a mean of all tokens, a wrong block
    // would hardly show.
    fill(&layer->qkv[0][0], MODEL_WIDTH, MODEL_QKV_WIDTH, 1.4, state);
    fill(&layer->out[0][0], MODEL_OUT_WIDTH, MODEL_WIDTH, 1, state);
    fill(&layer->gate[0][0], MODEL_WIDTH, MODEL_INNER, 1, state);
    fill(&layer->up[0][0], MODEL_WIDTH, MODEL_INNER, 1, state);
    fill(&layer->down[0][0], MODEL_INNER, MODEL_WIDTH, 1, state);
}

struct model *model_create(void)
{
    struct model *model = malloc(sizeof *model);
    if (!model)
        return NULL;
    uint64_t state = seed;
    fill(&model->embedding[0][0], 1, MODEL_VOCABULARY * MODEL_WIDTH, 1, &state);
    for (int i = 0; i < MODEL_LAYERS; i++)
        fill_layer(&model->layers[i], &state);
    fill(&model->logits[0][0], MODEL_WIDTH, MODEL_VOCABULARY, 2, &state);
    return model;
}

void model_destroy(struct model *model)
{
    free(model);
}

// Buffers of one pass; num_tokens rows each.
struct pass {
    uint32_t num_tokens, first_position;
    float *memory;    // one allocation for all of the following
    float *residual;  // [MODEL_WIDTH]
    float *normed;    // [MODEL_WIDTH]
    float *qkv;       // [MODEL_QKV_WIDTH]
    float *out;       // [MODEL_OUT_WIDTH]
    float *gate, *up; // [MODEL_INNER]
};

static bool pass_init(struct pass *pass, uint32_t num_tokens, uint32_t first_position)
{
    const size_t width = 2 * MODEL_WIDTH + MODEL_QKV_WIDTH + MODEL_OUT_WIDTH + 2 * MODEL_INNER,
                 n = num_tokens;
    *pass = (struct pass){.num_tokens = num_tokens, .first_position = first_position};
    pass->memory = calloc(n, width * sizeof(float));
    if (!pass->memory)
        return false;
    pass->residual = pass->memory;
    pass->normed = pass->residual + n * MODEL_WIDTH;
    pass->qkv = pass->normed + n * MODEL_WIDTH;
    pass->out = pass->qkv + n * MODEL_QKV_WIDTH;
    pass->gate = pass->out + n * MODEL_OUT_WIDTH;
    pass->up = pass->gate + n * MODEL_INNER;
    return true;
}

static void embed(const struct model *model, const int32_t *tokens, struct pass *pass)
{
    for (uint32_t t = 0; t < pass->num_tokens; t++)
        memcpy(pass->residual + (size_t)t * MODEL_WIDTH, model->embedding[tokens[t]],
               sizeof model->embedding[0]);
}

// Queries and keys lie side by side in a row, so one call rotates both.
static void turn(struct pass *pass)
{
    for (uint32_t t = 0; t < pass->num_tokens; t++)
        ops_rope(pass->qkv + (size_t)t * MODEL_QKV_WIDTH, MODEL_HEADS + MODEL_KV_HEADS,
                 MODEL_HEAD_DIM, pass->first_position + t, rope_theta);
}

static bool attention(const struct layer *layer, uint32_t index, struct pass *pass,
                      model_attend *attend, void *context)
{
    const size_t n = pass->num_tokens;
    ops_rms_norm(pass->normed, pass->residual, n, MODEL_WIDTH);
    ops_matmul(pass->qkv, pass->normed, &layer->qkv[0][0], n, MODEL_WIDTH, MODEL_QKV_WIDTH, 0);
    turn(pass);
    if (!attend(context, index, pass->qkv, pass->out))
        return false;
    ops_matmul(pass->residual, pass->out, &layer->out[0][0], n, MODEL_OUT_WIDTH, MODEL_WIDTH, 1);
    return true;
}

static void feed_forward(const struct layer *layer, struct pass *pass)
{
    const size_t n = pass->num_tokens;
    ops_rms_norm(pass->normed, pass->residual, n, MODEL_WIDTH);
    ops_matmul(pass->gate, pass->normed, &layer->gate[0][0], n, MODEL_WIDTH, MODEL_INNER, 0);
    ops_matmul(pass->up, pass->normed, &layer->up[0][0], n, MODEL_WIDTH, MODEL_INNER, 0);
    ops_swiglu(pass->gate, pass->up, n * MODEL_INNER);
    ops_matmul(pass->residual, pass->gate, &layer->down[0][0], n, MODEL_INNER, MODEL_WIDTH, 1);
}

enum model_result model_forward(const struct model *model, const int32_t *tokens,
                                uint32_t num_tokens, uint32_t first_position, model_attend *attend,
                                void *context, float *logits)
{
    struct pass pass;
    if (!pass_init(&pass, num_tokens, first_position))
        return MODEL_NO_MEMORY;
    enum model_result result = MODEL_OK;
    embed(model, tokens, &pass);
    for (uint32_t i = 0; i < MODEL_LAYERS && result == MODEL_OK; i++) {
        if (attention(&model->layers[i], i, &pass, attend, context))
            feed_forward(&model->layers[i], &pass);
        else
            result = MODEL_ATTEND_FAILED;
    }
    if (result == MODEL_OK) {
        const float *last = pass.residual + (size_t)(num_tokens - 1) * MODEL_WIDTH;
        ops_rms_norm(pass.normed, last, 1, MODEL_WIDTH);
        ops_matmul(logits, pass.normed, &model->logits[0][0], 1, MODEL_WIDTH, MODEL_VOCABULARY, 0);
    }
    free(pass.memory);
    return result;
}
