// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// submit.c - engine_submit(): queues a submission for the submitter. Knows nothing of the GPU.
// Caller's thread.

#include "base/list.h"
#include "engine/plan/submission.h"
#include "engine/state/state.h"

enum status engine_submit(struct engine *engine, const struct engine_submission *params,
                          uint64_t *sequence, struct error *error)
{
    if (engine_lost(engine))
        return error_set(error, STATUS_DEVICE_LOST, "the device is lost");
    if (submission_count_ranges(params) > UINT32_MAX)
        return error_set(
            error, STATUS_NO_MEMORY,
            "%u blocks to zero and the blocks that %u runs copy are too many for one submission",
            params->num_zeroes, params->num_runs);
    struct submission *submission = submission_create(engine, params);
    if (!submission)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a submission of %u runs",
                         params->num_runs);
    pthread_mutex_lock(&engine->lock);
    submission->sequence = *sequence = ++engine->last_sequence;
    engine->num_with_runs += submission->num_runs > 0;
    for (uint32_t i = 0; i < params->num_runs; i++)
        if (params->runs[i].batch)
            params->runs[i].batch->last_sequence = *sequence;
    LIST_APPEND(engine->waiting, submission);
    submission->queued_ns = clock_now_ns();
    pthread_mutex_unlock(&engine->lock);
    atomic_fetch_add(&engine->num_queued, 1);
    pthread_cond_signal(&engine->more); // makes no system call if the submitter is awake
    return STATUS_OK;
}
