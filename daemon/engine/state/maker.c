// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// maker.c - the maker thread does slow work and work that waits for the GPU. It allocates chunks,
// frees destroyed objects and saves compiled pipelines. Knows only jobs; the code of a job is
// beside the object that it serves.
//
// Most ends of submissions make no job due. To wake a thread on an idle core takes 5 to 35 us of
// the thread that wakes it, so the maker has a condition of its own, and is woken only for work.

#include "maker.h"

#include "base/list.h"
#include "state.h"

void job_post(struct engine *engine, struct job *job)
{
    LIST_APPEND(engine->jobs, job);
    if (job->after < engine->jobs_due)
        engine->jobs_due = job->after;
    if (jobs_are_due(engine))
        maker_wake(engine);
}

bool jobs_are_due(const struct engine *engine)
{
    return engine->jobs && engine->jobs_due <= engine->completed;
}

void maker_wake(struct engine *engine)
{
    pthread_cond_signal(&engine->chores);
}

// Without a ready job, notes when one will be.
static struct job *take_ready(struct engine *engine)
{
    struct job *job;
    uint64_t due = UINT64_MAX;
    LIST_EACH(engine->jobs, job) {
        if (job->after <= engine->completed) {
            LIST_DELETE(engine->jobs, job);
            return job;
        }
        due = job->after < due ? job->after : due;
    }
    engine->jobs_due = due;
    return NULL;
}

void *maker_thread(void *argument)
{
    struct engine *engine = argument;
    pthread_mutex_lock(&engine->lock);
    for (;;) {
        struct job *job = take_ready(engine);
        bool unsaved = pipelines_unsaved(&engine->pipelines);
        if (!job && !unsaved && engine->completer_gone)
            break;
        if (!job && !unsaved) {
            pthread_cond_wait(&engine->chores, &engine->lock);
            continue;
        }
        pthread_mutex_unlock(&engine->lock);
        if (job)
            job->run(engine, job);
        else
            pipelines_save(&engine->pipelines);
        pthread_mutex_lock(&engine->lock);
    }
    engine->maker_gone = true;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

void jobs_finish(struct engine *engine)
{
    while (engine->jobs) {
        struct job *job = engine->jobs;
        LIST_DELETE(engine->jobs, job);
        job->run(engine, job);
    }
}
