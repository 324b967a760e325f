// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// maker.h - the thread for what takes long or has to wait until the GPU is past it: jobs.

#ifndef AULE_ENGINE_MAKER_H
#define AULE_ENGINE_MAKER_H

#include <stdint.h>

struct engine;

// Work for the maker. The owner embeds it, so that queueing cannot fail.
struct job {
    uint64_t after; // runs when this submission is done; 0 = at once
    void (*run)(struct engine *engine, struct job *job); // ends the job's memory
    struct job *prev, *next;
};

// `job->after` and `job->run` are set. With the lock held, or before any thread runs.
void job_post(struct engine *engine, struct job *job);
void *maker_thread(void *engine);
// Runs every job that is left, whatever it waits for: the threads are gone and the GPU rests.
void jobs_finish(struct engine *engine);

#endif
