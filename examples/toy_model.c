// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// toy_model.c - see toy_model.h.

#include "toy_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { WAIT_MS = 60000 };

void check(enum aule_status status, const char *what)
{
    if (status == AULE_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, aule_status_name(status), aule_error());
    exit(1);
}

// A weight between -1 and 1.
static float weight(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t x = a * 0x9e3779b1u ^ b * 0x85ebca77u ^ c * 0xc2b2ae3du;
    x = (x ^ x >> 15) * 0x2c1b3c6du;
    x = (x ^ x >> 12) * 0x297a2d39u;
    return (float)((x ^ x >> 15) & 0xffff) / 32768 - 1;
}

static struct aule_tensor tensor(struct toy_model *model, uint32_t heads)
{
    struct aule_tensor tensor;
    check(aule_tensor_create(model->session, AULE_F32, MAX_ROWS, heads, DIM, &tensor), "tensor");
    return tensor;
}

void toy_open(struct toy_model *model)
{
    const struct aule_cache_params params = {.name = "toy",
                                             .num_layers = 1,
                                             .num_kv_heads = 1,
                                             .head_dim = DIM,
                                             .k_dtype = AULE_F32,
                                             .v_dtype = AULE_F32,
                                             .block_size = 16};
    check(aule_session_open(NULL, &model->session), "session");
    check(aule_cache_open(model->session, &params, &model->cache), "cache");
    check(aule_step_create(model->cache, &model->step), "step");
    model->q = tensor(model, HEADS);
    model->k = tensor(model, 1);
    model->v = tensor(model, 1);
    model->out = tensor(model, HEADS);
}

void toy_close(struct toy_model *model)
{
    aule_step_destroy(model->step);
    aule_cache_close(model->cache);
    aule_session_close(model->session);
}

struct aule_sequence *toy_sequence(struct toy_model *model, const int32_t *tokens, uint32_t count)
{
    struct aule_sequence *sequence;
    const struct aule_sequence_params params = {
        .tokens = tokens, .num_tokens = count, .publish = true};
    check(aule_sequence_create(model->cache, &params, &sequence), "sequence");
    return sequence;
}

// q, k and v of a token: its embedding and its position through made-up weights.
static void project(struct toy_model *model, uint32_t row, int32_t token, uint32_t position)
{
    float *q = (float *)aule_tensor_data(model->session, &model->q) + row * HEADS * DIM;
    float *k = (float *)aule_tensor_data(model->session, &model->k) + row * DIM;
    float *v = (float *)aule_tensor_data(model->session, &model->v) + row * DIM;
    for (uint32_t i = 0; i < HEADS * DIM; i++)
        q[i] = 2 * weight((uint32_t)token, i, 1) + weight(position, i, 2);
    for (uint32_t i = 0; i < DIM; i++) {
        k[i] = 2 * weight((uint32_t)token, i, 3) + weight(position, i, 4);
        v[i] = 4 * weight((uint32_t)token, i, 5);
    }
}

void toy_step(struct toy_model *model, struct aule_step_entry *entries, uint32_t num_entries)
{
    uint32_t num_rows = 0;
    check(aule_step_make(model->step, entries, num_entries, WAIT_MS), "step");
    for (uint32_t e = 0; e < num_entries; e++) {
        struct aule_sequence_info info;
        const int32_t *tokens = aule_sequence_tokens(entries[e].sequence);
        check(aule_sequence_info(entries[e].sequence, &info), "info");
        uint32_t first = info.num_computed - entries[e].num_tokens;
        for (uint32_t i = 0; i < entries[e].num_tokens; i++)
            project(model, entries[e].row + i, tokens[first + i], first + i);
        num_rows += entries[e].num_tokens;
    }
    const struct aule_run_params run = {.num_heads = HEADS,
                                        .q = model->q,
                                        .k = model->k,
                                        .v = model->v,
                                        .out = model->out,
                                        .causal = true};
    check(aule_run(aule_step_batch(model->step), &run, WAIT_MS, NULL), "run");
    const float *out = aule_tensor_data(model->session, &model->out);
    for (uint32_t row = 0; row < num_rows; row++)
        for (uint32_t t = 0; t < VOCABULARY; t++) {
            model->logits[row][t] = 0;
            for (uint32_t i = 0; i < HEADS * DIM; i++)
                model->logits[row][t] += out[row * HEADS * DIM + i] * weight(t, i, 6);
        }
}

int32_t toy_best(const float *logits)
{
    int32_t best = 0;
    for (int32_t t = 1; t < VOCABULARY; t++)
        if (logits[t] > logits[best])
            best = t;
    return best;
}

double toy_log_probability(const float *logits, int32_t token)
{
    double sum = 0;
    for (int32_t t = 0; t < VOCABULARY; t++)
        sum += exp((double)logits[t] - (double)logits[token]);
    return -log(sum);
}
