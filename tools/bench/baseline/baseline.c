// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// baseline.c - see baseline.h. Cuts a workload into tiles of rows, which threads on all cores
// compute, and checks the result.

#include "baseline.h"

#include "baseline_attend.h"
#include "tools/bench/team.h"
#include "tools/bench/values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct job {
    struct shape shape; // rows
    uint16_t *q, *out, *k, *v;
    float *memory;     // scratch memory of each thread
    uint32_t *firsts;  // [num_seqs + 1] number of each sequence's first tile
    uint32_t group;    // query heads a KV head
    uint32_t per_tile; // tokens
};

static void job_finish(struct job *job)
{
    shape_finish(&job->shape);
    free(job->q);
    free(job->out);
    free(job->k);
    free(job->v);
    free(job->memory);
    free(job->firsts);
}

// Converts elements of one stream, a range at a time on each core.
struct filling {
    uint64_t stream, count;
    uint16_t *to;
};
enum { FILLED_AT_ONCE = 1 << 16 };

static void fill_some(void *context, uint32_t i, uint32_t member)
{
    struct filling *f = context;
    uint64_t first = (uint64_t)i * FILLED_AT_ONCE, left = f->count - first;
    (void)member;
    values_fill(DTYPE_F16, f->stream, first, left < FILLED_AT_ONCE ? left : FILLED_AT_ONCE,
                f->to + first);
}

static void fill(uint64_t stream, uint64_t count, uint16_t *to)
{
    struct filling filling = {stream, count, to};
    team_run((uint32_t)((count + FILLED_AT_ONCE - 1) / FILLED_AT_ONCE), fill_some, &filling);
}

static bool job_init(struct job *job, const struct workload *workload)
{
    *job = (struct job){.group = workload->num_heads / workload->num_kv_heads};
    if (!shape_init(&job->shape, workload, 0, workload_num_seqs(workload), true))
        return false;
    uint64_t queries = shape_query_elements(&job->shape), keys = shape_elements(&job->shape);
    job->per_tile = BASELINE_ROWS / job->group ? BASELINE_ROWS / job->group : 1;
    job->q = malloc(queries * sizeof *job->q);
    job->out = malloc(queries * sizeof *job->out);
    job->k = malloc(keys * sizeof *job->k);
    job->v = malloc(keys * sizeof *job->v);
    job->memory = malloc(team_size() * baseline_floats(workload->head_dim) * sizeof *job->memory);
    job->firsts = calloc(job->shape.num_seqs + 1, sizeof *job->firsts);
    if (!job->q || !job->out || !job->k || !job->v || !job->memory || !job->firsts) {
        fprintf(stderr, "aule-bench: no host memory\n");
        return false;
    }
    for (uint32_t s = 0; s < job->shape.num_seqs; s++) {
        uint32_t q_len = (uint32_t)(job->shape.cu_seqlens_q[s + 1] - job->shape.cu_seqlens_q[s]);
        job->firsts[s + 1] =
            job->firsts[s] + (q_len + job->per_tile - 1) / job->per_tile * workload->num_kv_heads;
    }
    fill(shape_stream(0, SHAPE_Q), queries, job->q);
    fill(shape_stream(0, SHAPE_K), keys, job->k);
    fill(shape_stream(0, SHAPE_V), keys, job->v);
    return true;
}

// A tile's rows are its tokens in order, each with its heads, so the number of visible keys never
// falls from row to row. The longest tiles come first.
static void attend_tile(void *context, uint32_t n, uint32_t member)
{
    struct job *job = context;
    const struct shape *shape = &job->shape;
    const struct workload *w = shape->workload;
    uint32_t seq = 0, number = job->firsts[shape->num_seqs] - 1 - n;
    while (job->firsts[seq + 1] <= number)
        seq++;
    uint32_t kv_head = (number - job->firsts[seq]) % w->num_kv_heads;
    uint32_t begin = (uint32_t)shape->cu_seqlens_q[seq],
             end = (uint32_t)shape->cu_seqlens_q[seq + 1];
    uint32_t first = begin + (number - job->firsts[seq]) / w->num_kv_heads * job->per_tile;
    uint64_t keys = shape_element(shape, seq, 0, kv_head);
    struct baseline_tile tile = {
        .dim = w->head_dim,
        .k = job->k + keys,
        .v = job->v + keys,
        .scale = 1.0f / sqrtf((float)w->head_dim),
        .memory = job->memory + member * baseline_floats(w->head_dim),
    };
    for (uint32_t token = first; token < end && token < first + job->per_tile; token++) {
        for (uint32_t i = 0; i < job->group; i++) {
            uint64_t at =
                ((uint64_t)token * w->num_heads + (uint64_t)kv_head * job->group + i) * w->head_dim;
            tile.q[tile.num_rows] = job->q + at;
            tile.out[tile.num_rows] = job->out + at;
            tile.seen[tile.num_rows++] = (uint32_t)shape->seq_lens_kv[seq] - (end - token) + 1;
        }
    }
    baseline_attend(&tile);
}

static uint64_t submit(void *context, uint32_t first_set, uint32_t count)
{
    struct job *job = context;
    (void)first_set;
    (void)count;
    team_run(job->firsts[job->shape.num_seqs], attend_tile, job);
    return 1;
}

static bool wait(void *context, uint64_t number, uint32_t count, uint64_t *gpu_ns)
{
    (void)context;
    (void)number;
    for (uint32_t i = 0; i < count; i++)
        gpu_ns[i] = 0;
    return true;
}

bool baseline_measure(const struct workload *workload, double seconds, struct baseline *baseline)
{
    struct job job;
    struct samples samples = {0};
    *baseline = (struct baseline){.threads = team_size()};
    if (workload->kind == WORKLOAD_APPEND) {
        fprintf(stderr, "aule-bench: %s is no attention: it has no baseline\n", workload->name);
        return true;
    }
    bool ok = job_init(&job, workload);
    if (workload->num_heads / workload->num_kv_heads > BASELINE_ROWS) {
        fprintf(stderr, "aule-bench: the baseline takes up to %d heads a KV head, not %u\n",
                BASELINE_ROWS, workload->num_heads / workload->num_kv_heads);
        ok = false;
    }
    const struct lane lane = {
        .context = &job, .num_sets = 1, .most = 1, .in_flight = 1, .submit = submit, .wait = wait};
    const struct check check = {
        .shape = &job.shape, .dtype = DTYPE_F16, .kv_dtype = DTYPE_F16, .out = job.out};
    ok = ok && measure(&lane, seconds, 3, NULL, &samples) && check_rows(&check, &baseline->verdict);
    samples_times(&samples, true, &baseline->times);
    if (ok)
        baseline->gflops = workload_flops(workload) / baseline->times.median_us * 1e-3;
    samples_finish(&samples);
    job_finish(&job);
    return ok;
}
