// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// submission.c - see submission.h. Allocates all host memory at the start, so a shortage shows here
// and not half-way through. Caller's thread.

#include "submission.h"

#include "base/container_of.h"
#include "base/keep.h"
#include "check.h"
#include "engine/state/state.h"
#include "plan.h"

#include <stdlib.h>
#include <string.h>

void submission_free(struct submission *submission)
{
    if (!submission)
        return;
    free(submission->zeroes);
    free(submission->runs);
    free(submission->kept);
    free(submission->wave_ends);
    for (uint32_t i = 0; submission->results && i < submission->num_runs; i++)
        free((char *)submission->results[i].message);
    free(submission->results);
    free(submission->groups);
    free(submission->wave_groups);
    free(submission->planned);
    free(submission->gpu_runs);
    free(submission->ranges);
    free(submission);
}

void submission_fail(struct submission *submission, uint32_t run, const struct error *error)
{
    struct engine_run_result *result = &submission->results[run];
    free((char *)result->message);
    result->status = error->status;
    result->message = error->text[0] ? strdup(error->text) : NULL;
}

static void end_event(struct engine *engine, struct event_node *node)
{
    (void)engine;
    submission_free(container_of(node, struct submission, node));
}

// A copy of `count` elements, or zeros if `from` is NULL. NULL only if there is no memory.
static void *copy(const void *from, uint64_t count, size_t size)
{
    void *to = calloc(count ? count : 1, size);
    if (to && from && count)
        memcpy(to, from, count * size);
    return to;
}

_Static_assert(sizeof(struct gpu_range) == ENGINE_RANGE_BYTES, "callers count them");

uint64_t submission_count_ranges(const struct engine_submission *params)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < params->num_zeroes; i++)
        count += params->zeroes[i].cache->params.num_layers;
    for (uint32_t i = 0; i < params->num_runs; i++)
        if (params->runs[i].kind == ENGINE_COPY)
            count += run_span(&params->runs[i]).count;
    return count;
}

static uint64_t count_shares(const struct engine *engine, const struct engine_submission *params)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < params->num_runs; i++)
        count += plan_num_shares(engine, &params->runs[i]);
    return count;
}

// ---- arrays that runs point to ----

static void keep_arrays(struct keeper *keeper, struct engine_run *run)
{
#define X(array, length) KEEP(keeper, array, length);
    ENGINE_RUN_ARRAYS(X, run)
#undef X
}

static uint64_t count_kept(const struct engine_submission *params)
{
    struct keeper keeper = {0};
    for (uint32_t i = 0; i < params->num_runs; i++) {
        struct engine_run run = params->runs[i];
        keep_arrays(&keeper, &run); // each below 2^40, so the sum fits
    }
    return keeper.size;
}

struct submission *submission_create(struct engine *engine, const struct engine_submission *params)
{
    struct submission *s = calloc(1, sizeof *s);
    uint64_t num_shares = count_shares(engine, params);
    if (!s)
        return NULL;
    s->engine = engine;
    s->node.end = end_event;
    s->num_zeroes = params->num_zeroes;
    s->num_runs = params->num_runs;
    s->num_waves = params->num_waves;
    s->zeroes = copy(params->zeroes, params->num_zeroes, sizeof *s->zeroes);
    s->runs = copy(params->runs, params->num_runs, sizeof *s->runs);
    s->kept = copy(NULL, count_kept(params), 1);
    s->wave_ends = copy(params->wave_ends, params->num_waves, sizeof *s->wave_ends);
    s->results = copy(NULL, params->num_runs, sizeof *s->results);
    // Most of `groups`, `planned` and `gpu_runs` stays unused, so they are not zeroed. The plan
    // writes what it uses.
    s->groups = malloc((num_shares ? num_shares : 1) * sizeof *s->groups);
    s->wave_groups = copy(NULL, (uint64_t)params->num_waves + 1, sizeof *s->wave_groups);
    s->planned = malloc((params->num_runs ? params->num_runs : 1) * sizeof *s->planned);
    s->gpu_runs = malloc((num_shares ? 3 * num_shares : 1) * sizeof *s->gpu_runs);
    s->ranges = copy(NULL, submission_count_ranges(params), sizeof *s->ranges);
    if (s->zeroes && s->runs && s->kept && s->wave_ends && s->results && s->groups &&
        s->wave_groups && s->planned && s->gpu_runs && s->ranges) {
        struct keeper keeper = {.place = s->kept};
        for (uint32_t i = 0; i < s->num_runs; i++)
            keep_arrays(&keeper, &s->runs[i]);
        return s;
    }
    submission_free(s);
    return NULL;
}
