// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// maker.c - the maker thread does slow work and work that waits for the GPU. It allocates chunks,
// frees destroyed objects and saves compiled pipelines. Knows only jobs; the code of a job is
// beside the object that it serves.

#include "maker.h"

#include "state.h"

#include <utlist.h>

void job_post(struct engine *engine, struct job *job)
{
    DL_APPEND(engine->jobs, job);
    pthread_cond_broadcast(&engine->changed);
}

static struct job *take_ready(struct engine *engine)
{
    struct job *job;
    DL_FOREACH(engine->jobs, job)
    if (job->after <= engine->completed) {
        DL_DELETE(engine->jobs, job);
        return job;
    }
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
            pthread_cond_wait(&engine->changed, &engine->lock);
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
        DL_DELETE(engine->jobs, job);
        job->run(engine, job);
    }
}
