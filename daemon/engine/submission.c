// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// submission.c - engine_submit(): copies what the caller wants done, with all the host memory that doing it will take, so that
// want of memory shows here and not half-way. Caller's thread.

#include "submission.h"

#include "batch.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

void submission_free(struct submission *submission)
{
    if (!submission)
        return;
    free(submission->zeroes);
    free(submission->runs);
    free(submission->floats);
    free(submission->wave_ends);
    free(submission->results);
    free(submission->groups);
    free(submission->wave_groups);
    free(submission->planned);
    free(submission->gpu_runs);
    free(submission->ranges);
    free(submission);
}

static void end_event(struct engine *engine, struct event_node *node)
{
    (void)engine;
    submission_free((struct submission *)((char *)node - offsetof(struct submission, node)));
}

// A copy of `count` elements, or zeroes if `from` is NULL; never NULL but for want of memory.
static void *copy(const void *from, uint64_t count, size_t size)
{
    void *to = calloc(count ? count : 1, size);
    if (to && from && count)
        memcpy(to, from, count * size);
    return to;
}

static uint64_t count_ranges(const struct engine_submission *params)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < params->num_zeroes; i++)
        count += params->zeroes[i].cache->params.num_layers;
    return count;
}

static uint64_t count_floats(const struct engine_submission *params)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < params->num_runs; i++)
        count +=
            ((uint64_t)(params->runs[i].slopes != NULL) + (params->runs[i].sinks != NULL)) * params->runs[i].num_heads;
    return count;
}

// Copies `count` floats of the caller's behind those that are there already.
static const float *keep_floats(struct submission *s, const float *from, uint32_t count)
{
    if (!from)
        return NULL;
    float *to = s->floats + s->num_floats;
    memcpy(to, from, count * sizeof *to);
    s->num_floats += count;
    return to;
}

static void keep_parameters(struct submission *s)
{
    for (uint32_t i = 0; i < s->num_runs; i++) {
        struct engine_run *run = &s->runs[i];
        run->slopes = keep_floats(s, run->slopes, run->num_heads);
        run->sinks = keep_floats(s, run->sinks, run->num_heads);
    }
}

static struct submission *submission_create(struct engine *engine, const struct engine_submission *params)
{
    struct submission *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->engine = engine;
    s->node.end = end_event;
    s->num_zeroes = params->num_zeroes;
    s->num_runs = params->num_runs;
    s->num_waves = params->num_waves;
    s->zeroes = copy(params->zeroes, params->num_zeroes, sizeof *s->zeroes);
    s->runs = copy(params->runs, params->num_runs, sizeof *s->runs);
    s->floats = copy(NULL, count_floats(params), sizeof *s->floats);
    s->wave_ends = copy(params->wave_ends, params->num_waves, sizeof *s->wave_ends);
    s->results = copy(NULL, params->num_runs, sizeof *s->results);
    s->groups = copy(NULL, params->num_runs, sizeof *s->groups);
    s->wave_groups = copy(NULL, (uint64_t)params->num_waves + 1, sizeof *s->wave_groups);
    s->planned = copy(NULL, params->num_runs, sizeof *s->planned);
    s->gpu_runs = copy(NULL, params->num_runs, sizeof *s->gpu_runs);
    s->ranges = copy(NULL, count_ranges(params), sizeof *s->ranges);
    if (s->zeroes && s->runs && s->floats && s->wave_ends && s->results && s->groups && s->wave_groups && s->planned &&
        s->gpu_runs && s->ranges) {
        keep_parameters(s);
        return s;
    }
    submission_free(s);
    return NULL;
}

enum status engine_submit(struct engine *engine, const struct engine_submission *params, uint64_t *sequence,
                          struct error *error)
{
    if (engine_lost(engine))
        return error_set(error, STATUS_DEVICE_LOST, "the device is lost");
    if (count_ranges(params) > UINT32_MAX)
        return error_set(error, STATUS_NO_MEMORY, "%u blocks to zero are too many for one submission",
                         params->num_zeroes);
    struct submission *submission = submission_create(engine, params);
    if (!submission)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a submission of %u runs", params->num_runs);
    pthread_mutex_lock(&engine->lock);
    submission->sequence = *sequence = ++engine->last_sequence;
    for (uint32_t i = 0; i < params->num_runs; i++)
        params->runs[i].batch->last_sequence = *sequence;
    DL_APPEND(engine->waiting, submission);
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    return STATUS_OK;
}
