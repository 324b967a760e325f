// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// check.c - see check.h. K and V are computed again from the element numbers, block by block, on
// all cores. The heads of a group share this work.

#include "check.h"

#include "sample.h"
#include "team.h"
#include "values.h"
#include "wrong.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { SAMPLES = 1024, LANES = 8 };
static const double all_rows_flops = 1e10;

static double bound(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 1e-5 : dtype == DTYPE_F16 ? 2e-3 : 1.6e-2;
}

// One query token and the heads of one KV head, against its keys one after the other (Milakov,
// Gimelshein 2018).
struct heads {
    uint32_t group, dim;
    float *q;                    // [group, dim]
    double *maximum, *sum, *out; // [group], [group], [group, dim]
    float *k, *v;                // [block_size, dim]
    double worst;
};

struct job {
    const struct check *check;
    struct heads *heads; // [team_size()]
    uint32_t *pairs; // [count]: token * KV heads + KV head, each once; NULL: all of them in order
    uint32_t count;
    atomic_bool wrong;
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

static void heads_begin(struct heads *h)
{
    for (uint32_t i = 0; i < h->group; i++) {
        h->maximum[i] = -1e300;
        h->sum[i] = 0;
        for (uint32_t d = 0; d < h->dim; d++)
            h->out[(size_t)i * h->dim + d] = 0;
    }
}

// Sums in independent lanes: a compiler may use SIMD, and the result is the same in each run.
static double dot(const float *q, const float *k, uint32_t dim)
{
    double lanes[LANES] = {0}, sum = 0;
    for (uint32_t d = 0; d < dim; d += LANES)
        for (uint32_t i = 0; i < LANES; i++)
            lanes[i] += (double)q[d + i] * (double)k[d + i];
    for (uint32_t i = 0; i < LANES; i++)
        sum += lanes[i];
    return sum;
}

static void key_add(struct heads *h, uint32_t head, const float *k, const float *v, double scale)
{
    double *out = h->out + (size_t)head * h->dim,
           score = scale * dot(h->q + (size_t)head * h->dim, k, h->dim);
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

// [count, dim] of K or V, from `element` on.
static void rows_read(const struct check *check, enum shape_part part, uint64_t element,
                      uint32_t count, float *rows)
{
    values_read(check->kv_dtype, shape_stream(check->kv_set, part), element,
                (uint64_t)count * check->shape->workload->head_dim, rows);
}

static void attend(struct heads *h, const struct check *check, uint32_t token, uint32_t kv_head)
{
    const struct shape *shape = check->shape;
    const struct workload *w = shape->workload;
    uint32_t seq = shape_seq_of(shape, token);
    uint32_t seen =
        (uint32_t)(shape->seq_lens_kv[seq] - (shape->cu_seqlens_q[seq + 1] - (int32_t)token)) + 1;
    uint64_t first = ((uint64_t)token * w->num_heads + (uint64_t)kv_head * h->group) * h->dim;
    double scale =
        1.0 /
        sqrt((double)h->dim); // q is not scaled, and the scales of K and V are in values_read()
    values_read(check->dtype, shape_stream(check->q_set, SHAPE_Q), first,
                (uint64_t)h->group * h->dim, h->q);
    heads_begin(h);
    for (uint32_t begin = 0; begin < seen; begin += w->block_size) {
        uint32_t count = seen - begin < w->block_size ? seen - begin : w->block_size;
        uint64_t element = shape_element(shape, seq, begin, kv_head);
        rows_read(check, SHAPE_K, element, count, h->k);
        rows_read(check, SHAPE_V, element, count, h->v);
        for (uint32_t j = 0; j < count; j++)
            for (uint32_t i = 0; i < h->group; i++)
                key_add(h, i, h->k + (size_t)j * h->dim, h->v + (size_t)j * h->dim, scale);
    }
}

static bool row_close(const struct check *check, struct heads *h, uint32_t token, uint32_t kv_head,
                      uint32_t i)
{
    const struct workload *w = check->shape->workload;
    uint32_t head = kv_head * h->group + i;
    uint64_t first = ((uint64_t)token * w->num_heads + head) * h->dim;
    const double *expected = h->out + (size_t)i * h->dim;
    double largest = 1e-30;
    for (uint32_t d = 0; d < h->dim; d++)
        largest = fmax(largest, fabs(expected[d] / h->sum[i]));
    for (uint32_t d = 0; d < h->dim; d++) {
        double value = (double)values_decode(check->dtype, check->out, first + d),
               wanted = expected[d] / h->sum[i];
        double error = fabs(value - wanted) / largest;
        if (!(error <= bound(check->dtype))) { // true for NaN, too
            wrong_say("%s is wrong: token %u, head %u, dim %u is %.9g, not %.9g", w->name, token,
                      head, d, value, wanted);
            return false;
        }
        h->worst = fmax(h->worst, error);
    }
    return true;
}

static void check_pair(void *context, uint32_t n, uint32_t member)
{
    struct job *job = context;
    const struct workload *w = job->check->shape->workload;
    struct heads *heads = &job->heads[member];
    uint32_t pair = job->pairs ? job->pairs[n] : n, token = pair / w->num_kv_heads,
             kv_head = pair % w->num_kv_heads;
    if (atomic_load(&job->wrong))
        return;
    if (member == 0 && job->check->progress)
        job->check->progress((double)n / job->count);
    attend(heads, job->check, token, kv_head);
    for (uint32_t i = 0; i < heads->group; i++) {
        if (!row_close(job->check, heads, token, kv_head, i)) {
            atomic_store(&job->wrong, true);
            return;
        }
    }
}

// A row that was not written still has its poison (NaN). A row that went wrong is often not finite.
static void check_numbers(void *context, uint32_t token, uint32_t member)
{
    struct job *job = context;
    const struct workload *w = job->check->shape->workload;
    uint64_t elements = (uint64_t)w->num_heads * w->head_dim, first = token * elements;
    (void)member;
    for (uint64_t i = 0; i < elements && !atomic_load_explicit(&job->wrong, memory_order_relaxed);
         i++) {
        double value = (double)values_decode(job->check->dtype, job->check->out, first + i);
        if (isfinite(value))
            continue;
        wrong_say("%s is wrong: token %u, head %u, dim %u is %g", w->name, token,
                  (uint32_t)(i / w->head_dim), (uint32_t)(i % w->head_dim), value);
        atomic_store(&job->wrong, true);
    }
}

static bool job_init(struct job *job, const struct check *check)
{
    const struct workload *w = check->shape->workload;
    uint32_t group = w->num_heads / w->num_kv_heads, wanted = (SAMPLES + group - 1) / group;
    uint32_t size = team_size(), all = check->shape->num_tokens * w->num_kv_heads;
    bool some = workload_flops(w) > all_rows_flops && all > wanted, ok = true;
    *job = (struct job){
        .check = check, .heads = calloc(size, sizeof *job->heads), .count = some ? wanted : all};
    for (uint32_t i = 0; ok && i < size; i++)
        ok = job->heads && heads_init(&job->heads[i], w);
    if (!ok || !some)
        return ok;
    job->pairs = malloc(wanted * sizeof *job->pairs);
    return job->pairs && sample_draw(check->shape, wanted, job->pairs);
}

static void job_finish(struct job *job, struct verdict *verdict)
{
    for (uint32_t i = 0; job->heads && i < team_size(); i++) {
        verdict->worst = fmax(verdict->worst, job->heads[i].worst);
        heads_finish(&job->heads[i]);
    }
    free(job->heads);
    free(job->pairs);
}

bool check_rows(const struct check *check, struct verdict *verdict)
{
    const struct workload *w = check->shape->workload;
    struct job job;
    bool ok = job_init(&job, check);
    if (ok) {
        team_run(check->shape->num_tokens, check_numbers, &job);
        team_run(job.count, check_pair, &job);
    } else {
        fprintf(stderr, "aule-bench: no host memory\n");
    }
    *verdict = (struct verdict){.num_rows = job.count * (w->num_heads / w->num_kv_heads)};
    ok = ok && !atomic_load(&job.wrong);
    job_finish(&job, verdict);
    return ok;
}
