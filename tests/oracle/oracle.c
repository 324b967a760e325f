// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// oracle.c - the formula of oracle.h in float64, over the keys that a row sees: scores, their
// maximum, the weights, the weighted sum. It is written for clarity, not for speed; only the values
// of all 16-bit patterns are kept in a table.

#include "oracle.h"

#include "numbers.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static double meanings[DTYPE_INT8 + 1][65536]; // of all bit patterns; 8-bit types use the first 256
static pthread_once_t meanings_once = PTHREAD_ONCE_INIT;

static void meanings_make(void)
{
    for (enum dtype dtype = DTYPE_F16; dtype <= DTYPE_INT8; dtype++)
        for (uint32_t bits = 0; bits < 1u << 8 * dtype_size((int)dtype); bits++)
            meanings[dtype][bits] = numbers_value(dtype, bits);
}

double oracle_load(const void *array, enum dtype dtype, uint64_t index)
{
    if (dtype == DTYPE_F32) {
        float value;
        memcpy(&value, (const uint8_t *)array + index * sizeof value, sizeof value);
        return (double)value;
    }
    pthread_once(&meanings_once, meanings_make);
    return meanings[dtype][numbers_bits(array, dtype, index)];
}

void oracle_store(void *array, enum dtype dtype, uint64_t index, float value)
{
    numbers_put(array, dtype, index, numbers_round(dtype, value));
}

void oracle_turn(const struct oracle_rope *rope, int64_t position, double *values)
{
    uint32_t pairs = rope->dim / 2;
    for (uint32_t n = 0; n < pairs; n++) {
        long double frequency = rope->frequencies
                                    ? (long double)rope->frequencies[n]
                                    : powl((long double)rope->theta, -2.0L * n / rope->dim);
        double angle_cos = (double)cosl((long double)position * frequency);
        double angle_sin = (double)sinl((long double)position * frequency);
        double *x = &values[rope->interleaved ? 2 * n : n],
               *y = rope->interleaved ? x + 1 : x + pairs;
        double turned = *x * angle_cos - *y * angle_sin;
        *y = *x * angle_sin + *y * angle_cos;
        *x = turned;
    }
}

struct row {
    const struct oracle_params *params;
    uint32_t seq, query, head, kv_head; // query: i, counted in its sequence
    bool padding;                       // a token that is no query
    int64_t position, kv_len;           // p_i
    double *q;                          // [head_dim_k], rotated
};

static const uint8_t *row_q(const struct oracle_params *params, const struct row *row,
                            uint32_t token)
{
    const uint8_t *q = (const uint8_t *)params->q + row->head * params->q_head_stride;
    if (params->q_outer_stride)
        return q + row->seq * params->q_outer_stride + row->query * params->q_token_stride;
    uint64_t at = params->token_rows ? (uint64_t)params->token_rows[token] : token;
    return q + at * params->q_token_stride;
}

// With Q rotated, but not rounded.
static struct row row_load(const struct oracle_params *params, uint32_t token, uint32_t head,
                           double *q)
{
    uint32_t seq = 0;
    while ((uint32_t)params->cu_seqlens_q[seq + 1] <= token)
        seq++;
    uint32_t first = (uint32_t)params->cu_seqlens_q[seq];
    int64_t q_len = params->q_lens ? params->q_lens[seq]
                                   : params->cu_seqlens_q[seq + 1] - params->cu_seqlens_q[seq];
    struct row row = {
        .params = params,
        .seq = seq,
        .query = token - first,
        .head = head,
        .kv_head = head / (params->num_heads / params->num_kv_heads),
        .padding = token - first >= q_len,
        .kv_len = params->seq_lens_kv[seq],
        .q = q,
    };
    row.position = row.kv_len - q_len + row.query;
    if (params->positions)
        row.position =
            params->positions[params->token_rows ? (uint32_t)params->token_rows[token] : token];
    const uint8_t *stored = row_q(params, &row, token);
    for (uint32_t d = 0; d < params->head_dim_k; d++)
        q[d] = oracle_load(stored, params->q_dtype, d);
    oracle_turn(&params->rope, row.position, q);
    return row;
}

static void row_round(const struct row *row)
{
    enum dtype dtype = row->params->q_dtype;
    for (uint32_t d = 0; d < row->params->rope.dim && dtype != DTYPE_F32; d++)
        row->q[d] = numbers_value(dtype, numbers_round(dtype, (float)row->q[d]));
}

static struct row row_at(const struct oracle_params *params, uint32_t token, uint32_t head,
                         double *q)
{
    struct row row = row_load(params, token, head, q);
    row_round(&row);
    return row;
}

static bool row_sees(const struct row *row, int64_t key)
{
    const struct oracle_params *params = row->params;
    if (row->padding)
        return false;
    if (params->windowed && params->window_left >= 0 && key < row->position - params->window_left)
        return false;
    if (params->windowed && params->window_right >= 0 && key > row->position + params->window_right)
        return false;
    if (params->chunk &&
        (row->position < 0 || key / params->chunk != row->position / params->chunk))
        return false;
    if (params->mask) {
        uint64_t bit =
            params->mask_starts[row->seq] + row->query * (uint64_t)row->kv_len + (uint64_t)key;
        return params->mask[bit / 8] >> bit % 8 & 1;
    }
    return !params->causal || key <= row->position;
}

// The row's element (key, dim 0) of K or V, and the factor of its elements.
static const uint8_t *row_kv(const struct row *row, const struct oracle_kv *kv, int64_t key,
                             double *scale)
{
    const struct oracle_params *p = row->params;
    uint64_t part = row->seq, token = (uint64_t)key;
    *scale = kv->scale != 0 ? kv->scale : 1;
    if (p->block_table) {
        part =
            (uint64_t)
                p->block_table[(uint64_t)row->seq * p->max_blocks + (uint64_t)key / p->block_size];
        token = (uint64_t)key % p->block_size;
    } else if (!kv->outer_stride) {
        part = 0;
        token += (uint64_t)p->kv_starts[row->seq];
    }
    const uint8_t *begin = kv->parts ? kv->parts[part] : kv->base + part * kv->outer_stride;
    if (kv->scales_offset)
        *scale *=
            oracle_load(begin + kv->scales_offset, DTYPE_F32, row->kv_head * p->block_size + token);
    return begin + (kv->parts ? kv->parts_offset : 0) + token * kv->token_stride +
           row->kv_head * kv->head_stride;
}

static double row_score(const struct row *row, int64_t key)
{
    const struct oracle_params *params = row->params;
    double score = 0, scale;
    const uint8_t *k = row_kv(row, &params->k, key, &scale);
    for (uint32_t d = 0; d < params->head_dim_k; d++)
        score += row->q[d] * oracle_load(k, params->k.dtype, d);
    score *= params->scale * scale;
    if (params->cap > 0)
        score = params->cap * tanh(score / params->cap);
    if (params->slopes)
        score -= (double)params->slopes[row->head] * (double)llabs(row->position - key);
    return score;
}

static void row_add(const struct row *row, int64_t key, double weight, double *out)
{
    const struct oracle_params *params = row->params;
    double scale;
    const uint8_t *v = row_kv(row, &params->v, key, &scale);
    for (uint32_t d = 0; d < params->head_dim_v; d++)
        out[d] += weight * scale * oracle_load(v, params->v.dtype, d);
}

static void row_attend(const struct row *row, double *scores, double *out, double *lse)
{
    const struct oracle_params *params = row->params;
    const float *sink = params->sinks && !row->padding ? &params->sinks[row->head] : NULL;
    double maximum = sink ? (double)*sink : -INFINITY;
    for (int64_t j = 0; j < row->kv_len; j++) {
        scores[j] = row_sees(row, j) ? row_score(row, j) : -INFINITY;
        maximum = scores[j] > maximum || isnan(scores[j]) ? scores[j] : maximum;
    }
    double sum = sink ? exp((double)*sink - maximum) : 0;
    memset(out, 0, params->head_dim_v * sizeof *out);
    for (int64_t j = 0; j < row->kv_len; j++) {
        if (!row_sees(row, j))
            continue;
        double weight = exp(scores[j] - maximum);
        sum += weight;
        row_add(row, j, weight, out);
    }
    for (uint32_t d = 0; d < params->head_dim_v && sum != 0; d++)
        out[d] /= sum;
    if (lse)
        *lse = sum != 0 ? maximum + log(sum) : -INFINITY;
}

bool oracle_row(const struct oracle_params *params, uint32_t token, uint32_t head, double *out,
                double *lse)
{
    double *q = calloc((size_t)params->head_dim_k + 1, sizeof *q);
    struct row row = {0};
    if (q)
        row = row_at(params, token, head, q);
    double *scores = q ? calloc((size_t)row.kv_len + 1, sizeof *scores) : NULL;
    if (scores)
        row_attend(&row, scores, out, lse);
    free(scores);
    free(q);
    return scores != NULL;
}

// ---- doubt ----

// If a rotated element of Q is near the border between two numbers, either of them is right.
// Returns how far they are apart. `q` is rotated, but not rounded.
static void doubts_of_q(const struct row *row, const double *q, double *doubts)
{
    const struct oracle_rope *rope = &row->params->rope;
    enum dtype dtype = row->params->q_dtype;
    for (uint32_t d = 0; d < rope->dim && dtype != DTYPE_F32; d++) {
        uint32_t other = rope->interleaved ? d ^ 1 : (d + rope->dim / 2) % rope->dim;
        double reach = ORACLE_TURN * hypot(q[d], q[other]);
        double low = numbers_value(dtype, numbers_round(dtype, (float)(q[d] - reach)));
        doubts[d] = numbers_value(dtype, numbers_round(dtype, (float)(q[d] + reach))) - low;
    }
}

// The smallest distance to a key that only a mask may hide. Kernels count ALiBi's distances from
// it.
static double row_nearest(const struct row *row)
{
    struct oracle_params unmasked = *row->params;
    struct row all = *row;
    double nearest = INFINITY;
    unmasked.mask = NULL;
    unmasked.causal = row->params->causal && !row->params->mask;
    all.params = &unmasked;
    for (int64_t j = 0; j < row->kv_len; j++)
        if (row_sees(&all, j))
            nearest = fmin(nearest, (double)llabs(row->position - j));
    return nearest;
}

// How far a kernel's score of a key may be from row_score(): the doubts of Q, and rounding of sums
// and products in f32.
static double score_doubt(const struct row *row, const double *q_doubts, double nearest,
                          int64_t key)
{
    const struct oracle_params *params = row->params;
    double scale, turned = 0, size = 0;
    const uint8_t *k = row_kv(row, &params->k, key, &scale);
    for (uint32_t d = 0; d < params->head_dim_k; d++) {
        double element = fabs(oracle_load(k, params->k.dtype, d));
        size += fabs(row->q[d]) * element;
        turned += q_doubts[d] * element;
    }
    double bias = params->slopes ? (double)params->slopes[row->head] *
                                       ((double)llabs(row->position - key) - nearest)
                                 : 0;
    return params->scale * scale * turned + 0x1p-22 * (1 + params->scale * scale * size + bias);
}

// `wrong` over a sum of weights that is 1, or as small as `least`. Scores so large that f32 cannot
// tell them apart leave nothing of that sum.
static double doubt_of(double wrong, double least)
{
    double doubt = wrong / least;
    return least > 0 && !isnan(doubt) ? doubt : INFINITY;
}

static void row_doubt(const struct row *row, const double *q_doubts, const double *out, double lse,
                      struct oracle_doubt *doubt)
{
    const struct oracle_params *params = row->params;
    const double unit = params->q_dtype == DTYPE_F32   ? 0
                        : params->q_dtype == DTYPE_F16 ? 0x1p-11
                                                       : 0x1p-8;
    double nearest = params->slopes ? row_nearest(row) : 0, least = 1, top = -INFINITY;
    for (int64_t j = 0; j < row->kv_len; j++)
        top = row_sees(row, j) ? fmax(top, row_score(row, j)) : top;
    for (int64_t j = 0; j < row->kv_len; j++) {
        if (!row_sees(row, j))
            continue;
        double score = row_score(row, j), weight = exp(score - lse), scale;
        if (isinf(score)) // of an infinite element, so it is exact
            continue;
        double wrong = score_doubt(row, q_doubts, nearest, j);
        double moved = wrong < 1 ? weight * expm1(wrong)
                                 : exp(score - lse + wrong) - weight; // weight may be 0
        double rounded = weight * unit +
                         (params->q_dtype == DTYPE_F16 ? 0x1p-25 * exp(top - lse) : 0) +
                         weight * 0x1p-21;
        const uint8_t *v = row_kv(row, &params->v, j, &scale);
        for (uint32_t d = 0; d < params->head_dim_v; d++) {
            double value = scale * oracle_load(v, params->v.dtype, d);
            doubt->out[d] += moved * fabs(value - out[d]) + rounded * fabs(value);
        }
        least += weight * expm1(-wrong);
        doubt->lse += moved;
    }
    for (uint32_t d = 0; d < params->head_dim_v; d++)
        doubt->out[d] = doubt_of(doubt->out[d], least) + fabs(out[d]) * (unit + 0x1p-22);
    doubt->lse = doubt_of(doubt->lse, least) + 0x1p-22 * (1 + fabs(lse));
}

bool oracle_doubt(const struct oracle_params *params, uint32_t token, uint32_t head,
                  const double *out, double lse, struct oracle_doubt *doubt)
{
    double *q = calloc(2 * (size_t)params->head_dim_k + 1, sizeof *q);
    if (!q)
        return false;
    memset(doubt->out, 0, params->head_dim_v * sizeof *doubt->out);
    doubt->lse = 0;
    struct row row = row_load(params, token, head, q);
    doubts_of_q(&row, q, q + params->head_dim_k);
    row_round(&row);
    if (isfinite(lse))
        row_doubt(&row, q + params->head_dim_k, out, lse, doubt);
    free(q);
    return true;
}
