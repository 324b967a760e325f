// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// maker.h - the maker thread and its jobs: slow work, and work that waits until the GPU has
// finished with an object.

#ifndef AULE_ENGINE_MAKER_H
#define AULE_ENGINE_MAKER_H

#include <stdbool.h>
#include <stdint.h>

struct engine;

// A job of the maker. The owner embeds it, so queueing cannot fail.
struct job {
    uint64_t after; // runs when this submission is done; 0 = now
    void (*run)(struct engine *engine, struct job *job); // also frees the job's memory
    struct job *prev, *next;
};

// Queues a job whose `after` and `run` are set. Call it with the lock held, or before any thread
// runs.
void job_post(struct engine *engine, struct job *job);
// True: the maker must be woken, because `completed` has reached a job. Call it with the lock held.
bool jobs_are_due(const struct engine *engine);
// Wakes the maker: a job is due, pipelines were compiled, or the completer has ended. Any thread,
// with or without the lock.
void maker_wake(struct engine *engine);
void *maker_thread(void *engine);
// Runs every job that is left, whatever it waits for. The threads have ended and the GPU is idle.
void jobs_finish(struct engine *engine);

#endif
