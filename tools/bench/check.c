// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// check.c - see check.h. K and V are made anew from their numbers, block by block; the heads of a group share the making.

#include "check.h"

#include "values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SAMPLES = 1024 };
static const double all_rows_flops = 1e10;

static double bound(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 1e-5 : dtype == DTYPE_F16 ? 2e-3 : 1.6e-2;
}

// One query token and the heads of one KV head, against its keys one after the other (Milakov, Gimelshein 2018).
struct heads {
    uint32_t group, dim;
    float *q;                    // [group, dim]
    double *maximum, *sum, *out; // [group], [group], [group, dim]
    float *k, *v;                // [block_size, dim]
};

static bool heads_init(struct heads *h, const struct workload *w)
{
    h->group = w->num_heads / w->num_kv_heads;
    h->dim = w->head_dim;
    h->q = malloc((size_t)h->group * h->dim * sizeof *h->q);
    h->maximum = malloc(h->group * sizeof *h->maximum);
    h->sum = malloc(h->group * sizeof *h->sum);
    h->out = malloc((size_t)h->group * h->dim * sizeof *h->out);
    h->k = malloc((size_t)w->block_size * h->dim * sizeof *h->k);
    h->v = malloc((size_t)w->block_size * h->dim * sizeof *h->v);
    return h->q && h->maximum && h->sum && h->out && h->k && h->v;
}

static void heads_finish(struct heads *h)
{
    free(h->q);
    free(h->maximum);
    free(h->sum);
    free(h->out);
    free(h->k);
    free(h->v);
}

static void key_add(struct heads *h, uint32_t head, const float *k, const float *v, double scale)
{
    const float *q = h->q + (size_t)head * h->dim;
    double *out = h->out + (size_t)head * h->dim, score = 0;
    for (uint32_t d = 0; d < h->dim; d++)
        score += (double)q[d] * (double)k[d];
    score *= scale;
    if (score > h->maximum[head]) {
        double keep = exp(h->maximum[head] - score);
        h->sum[head] *= keep;
        for (uint32_t d = 0; d < h->dim; d++)
            out[d] *= keep;
        h->maximum[head] = score;
    }
    double weight = exp(score - h->maximum[head]);
    h->sum[head] += weight;
    for (uint32_t d = 0; d < h->dim; d++)
        out[d] += weight * (double)v[d];
}

static void attend(struct heads *h, const struct world *world, uint32_t set, uint32_t seq, uint32_t token,
                   uint32_t kv_head)
{
    const struct workload *w = world->workload;
    uint32_t q_len = (uint32_t)(world->cu_seqlens_q[seq + 1] - world->cu_seqlens_q[seq]);
    uint32_t seen = (uint32_t)world->seq_lens_kv[seq] - q_len + (token - (uint32_t)world->cu_seqlens_q[seq]) + 1;
    uint64_t first = ((uint64_t)token * w->num_heads + (uint64_t)kv_head * h->group) * h->dim;
    values_read(world->params.dtype, WORLD_Q_STREAM, first, (uint64_t)h->group * h->dim, h->q);
    for (uint32_t i = 0; i < h->group; i++) {
        h->maximum[i] = -1e300;
        h->sum[i] = 0;
        for (uint32_t d = 0; d < h->dim; d++)
            h->out[(size_t)i * h->dim + d] = 0;
    }
    // q has no scale of its own, and K and V have theirs in values_read()
    for (uint32_t begin = 0; begin < seen; begin += w->block_size) {
        uint32_t count = seen - begin < w->block_size ? seen - begin : w->block_size;
        int32_t block = world->block_table[(size_t)seq * world->max_blocks + begin / w->block_size];
        uint64_t element = world_element(world, block, kv_head);
        values_read(world->params.kv_dtype, world_stream(set, false), element, (uint64_t)count * h->dim, h->k);
        values_read(world->params.kv_dtype, world_stream(set, true), element, (uint64_t)count * h->dim, h->v);
        for (uint32_t j = 0; j < count; j++)
            for (uint32_t i = 0; i < h->group; i++)
                key_add(h, i, h->k + (size_t)j * h->dim, h->v + (size_t)j * h->dim, 1.0 / sqrt((double)h->dim));
    }
}

static bool row_close(const struct world *world, const struct heads *h, uint32_t token, uint32_t kv_head, uint32_t i,
                      double *worst)
{
    uint32_t head = kv_head * h->group + i;
    const char *row =
        (const char *)world->base + world->out.offset + token * world->out.token_stride + head * world->out.head_stride;
    const double *expected = h->out + (size_t)i * h->dim;
    double largest = 1e-30;
    for (uint32_t d = 0; d < h->dim; d++)
        largest = fmax(largest, fabs(expected[d] / h->sum[i]));
    for (uint32_t d = 0; d < h->dim; d++) {
        double value = (double)values_decode(world->params.dtype, row, d), wanted = expected[d] / h->sum[i];
        double error = fabs(value - wanted) / largest;
        if (!(error <= bound(world->params.dtype))) { // also when it is no number
            fprintf(stderr, "aule-bench: %s is wrong: token %u, head %u, dim %u is %.9g, not %.9g\n",
                    world->workload->name, token, head, d, value, wanted);
            return false;
        }
        *worst = fmax(*worst, error);
    }
    return true;
}

static uint32_t seq_of(const struct world *world, uint32_t token)
{
    uint32_t seq = 0;
    while ((uint32_t)world->cu_seqlens_q[seq + 1] <= token)
        seq++;
    return seq;
}

// Sample `number` of `count` among the tokens: even numbers stand at borders of 64 or of a sequence, odd ones anywhere.
static uint32_t token_pick(const struct world *world, uint32_t number, uint32_t count)
{
    uint64_t token = (uint64_t)number * world->num_tokens / count;
    if (number % 4 == 0)
        token = token / 64 * 64;
    else if (number % 4 == 2)
        token = token / 64 * 64 + 63;
    return token < world->num_tokens ? (uint32_t)token : world->num_tokens - 1;
}

bool check_rows(const struct world *world, uint32_t set, double *worst, uint32_t *num_rows)
{
    const struct workload *w = world->workload;
    struct heads heads = {0};
    bool all = workload_flops(w) <= all_rows_flops, ok = heads_init(&heads, w);
    uint32_t pairs = world->num_tokens * w->num_kv_heads, wanted = SAMPLES / (w->num_heads / w->num_kv_heads);
    uint32_t count = all || pairs < wanted ? pairs : wanted;
    *worst = 0;
    *num_rows = 0;
    for (uint32_t n = 0; ok && n < count; n++) {
        bool each = count == pairs;
        uint32_t token = each ? n / w->num_kv_heads : token_pick(world, n, count);
        uint32_t kv_head = n % w->num_kv_heads;
        attend(&heads, world, set, seq_of(world, token), token, kv_head);
        for (uint32_t i = 0; ok && i < heads.group; i++, (*num_rows)++)
            ok = row_close(world, &heads, token, kv_head, i, worst);
    }
    heads_finish(&heads);
    return ok;
}
