// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// oracle.c - the formula of oracle.h, written from the formula. It follows the text, not speed: scores, their maximum,
// the weights, the weighted sum, all in float64 over the keys that the row sees.

#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double oracle_half_value(uint16_t bits)
{
    uint64_t exponent = bits >> 10 & 31, mantissa = bits & 1023, sign = (uint64_t)(bits >> 15) << 63;
    if (exponent == 0)
        return (sign ? -0x1p-24 : 0x1p-24) * (double)mantissa;
    exponent = exponent == 31 ? 2047 : exponent + 1008; // the bias of a double less that of a half
    uint64_t wide = sign | exponent << 52 | mantissa << 42;
    double value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

uint16_t oracle_half_round(float value)
{
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    double magnitude = fabs((double)value);
    if (isnan(value))
        return sign | 0x7e00;
    if (magnitude >= 65520) // halfway between the largest half and 65536
        return sign | 0x7c00;
    int exponent = magnitude < ldexp(1, -14) ? -14 : ilogb(magnitude);
    double units = nearbyint(ldexp(magnitude, 10 - exponent)); // ties to even: the default rounding mode
    return sign | (uint16_t)((uint32_t)(exponent + 14) * 1024 + (uint32_t)units);
}

double oracle_load(const void *array, enum dtype dtype, uint64_t index)
{
    if (dtype == DTYPE_F16) {
        uint16_t bits;
        memcpy(&bits, (const uint8_t *)array + index * sizeof bits, sizeof bits);
        return oracle_half_value(bits);
    }
    float value;
    memcpy(&value, (const uint8_t *)array + index * sizeof value, sizeof value);
    return value;
}

void oracle_store(void *array, enum dtype dtype, uint64_t index, float value)
{
    if (dtype == DTYPE_F16) {
        uint16_t bits = oracle_half_round(value);
        memcpy((uint8_t *)array + index * sizeof bits, &bits, sizeof bits);
    } else {
        memcpy((uint8_t *)array + index * sizeof value, &value, sizeof value);
    }
}

struct row {
    const struct oracle_params *params;
    uint32_t seq, query, head, kv_head; // query: i, counted in the sequence
    int64_t position, kv_len;           // p_i
    const void *q;
};

static struct row row_at(const struct oracle_params *params, uint32_t token, uint32_t head)
{
    uint32_t seq = 0;
    while ((uint32_t)params->cu_seqlens_q[seq + 1] <= token)
        seq++;
    uint32_t first = (uint32_t)params->cu_seqlens_q[seq];
    int64_t q_len = params->cu_seqlens_q[seq + 1] - params->cu_seqlens_q[seq];
    struct row row = {
        .params = params,
        .seq = seq,
        .query = token - first,
        .head = head,
        .kv_head = head / (params->num_heads / params->num_kv_heads),
        .kv_len = params->seq_lens_kv[seq],
        .q = (const uint8_t *)params->q + token * params->q_token_stride + head * params->q_head_stride,
    };
    row.position = params->positions ? params->positions[token] : row.kv_len - q_len + row.query;
    return row;
}

static bool row_sees(const struct row *row, int64_t key)
{
    const struct oracle_params *params = row->params;
    if (params->windowed && params->window_left >= 0 && key < row->position - params->window_left)
        return false;
    if (params->windowed && params->window_right >= 0 && key > row->position + params->window_right)
        return false;
    if (params->mask) {
        uint64_t bit = params->mask_starts[row->seq] + row->query * (uint64_t)row->kv_len + (uint64_t)key;
        return params->mask[bit / 8] >> bit % 8 & 1;
    }
    return !params->causal || key <= row->position;
}

// The head's K (or V) of key `key`, and where in it the key's elements begin.
static const uint8_t *row_block(const struct row *row, int64_t key, bool value, uint64_t *first)
{
    const struct oracle_params *p = row->params;
    int32_t id = p->block_table[(uint64_t)row->seq * p->max_blocks + (uint64_t)key / p->block_size];
    uint64_t k_bytes = (uint64_t)p->num_kv_heads * p->block_size * p->head_dim_k * dtype_size(p->k_dtype);
    *first = ((uint64_t)row->kv_head * p->block_size + (uint64_t)key % p->block_size) *
             (value ? p->head_dim_v : p->head_dim_k);
    return p->blocks[id] + (value ? k_bytes : 0);
}

static double row_score(const struct row *row, int64_t key)
{
    const struct oracle_params *params = row->params;
    uint64_t first;
    const uint8_t *k = row_block(row, key, false, &first);
    double score = 0;
    for (uint32_t d = 0; d < params->head_dim_k; d++)
        score += oracle_load(row->q, params->q_dtype, d) * oracle_load(k, params->k_dtype, first + d);
    score *= params->scale;
    if (params->cap > 0)
        score = params->cap * tanh(score / params->cap);
    if (params->slopes)
        score -= (double)params->slopes[row->head] * (double)llabs(row->position - key);
    return score;
}

static void row_add(const struct row *row, int64_t key, double weight, double *out)
{
    const struct oracle_params *params = row->params;
    uint64_t first;
    const uint8_t *v = row_block(row, key, true, &first);
    for (uint32_t d = 0; d < params->head_dim_v; d++)
        out[d] += weight * oracle_load(v, params->v_dtype, first + d);
}

bool oracle_row(const struct oracle_params *params, uint32_t token, uint32_t head, double *out, double *lse)
{
    struct row row = row_at(params, token, head);
    double *scores = calloc((size_t)row.kv_len + 1, sizeof *scores);
    if (!scores)
        return false;
    double maximum = params->sinks ? params->sinks[head] : -INFINITY;
    for (int64_t j = 0; j < row.kv_len; j++) {
        scores[j] = row_sees(&row, j) ? row_score(&row, j) : -INFINITY;
        maximum = scores[j] > maximum || isnan(scores[j]) ? scores[j] : maximum;
    }
    double sum = params->sinks ? exp(params->sinks[head] - maximum) : 0;
    memset(out, 0, params->head_dim_v * sizeof *out);
    for (int64_t j = 0; j < row.kv_len; j++) {
        if (!row_sees(&row, j))
            continue;
        double weight = exp(scores[j] - maximum);
        sum += weight;
        row_add(&row, j, weight, out);
    }
    for (uint32_t d = 0; d < params->head_dim_v && sum != 0; d++)
        out[d] /= sum;
    if (lse)
        *lse = sum != 0 ? maximum + log(sum) : -INFINITY;
    free(scores);
    return true;
}
