// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// jobs.c - see jobs.h. One lock guards two lists: jobs that wait and jobs that have ended. `work`
// runs without the lock.

#include "jobs.h"

#include "base/list.h"
#include "waker.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { TURN_BITS = 8 };

struct jobs {
    pthread_t thread;
    pthread_mutex_t lock;   // guards waiting, done and stop
    pthread_cond_t changed; // `waiting` or `stop` changed
    struct job *waiting, *done;
    // [hash of a tenant] the number of its last turn. Tenants with the same hash take turns as one.
    uint64_t turns[1 << TURN_BITS], num_turns;
    bool stop;
    int wake_fd; // constant; not owned
};

// Called under the lock. Moves `job` to `done` and wakes the dispatcher.
static void finish(struct jobs *jobs, struct job *job)
{
    LIST_APPEND(jobs->done, job);
    waker_ring(jobs->wake_fd);
}

// ---- whose turn it is; under the lock ----

static uint64_t *turn_of(struct jobs *jobs, const struct job *job)
{
    return &jobs->turns[job->tenant * UINT64_C(0x9E3779B97F4A7C15) >> (64 - TURN_BITS)];
}

static bool goes_before(struct jobs *jobs, const struct job *a, const struct job *b)
{
    const uint64_t turn = *turn_of(jobs, a), other = *turn_of(jobs, b);
    return turn != other ? turn < other : a->bytes < b->bytes;
}

// NULL: no job waits.
static struct job *pick(struct jobs *jobs)
{
    struct job *best = jobs->waiting, *job;
    if (!best || !best->is_long)
        return best;
    LIST_EACH(jobs->waiting, job) {
        if (goes_before(jobs, job, best))
            best = job;
    }
    LIST_EACH(jobs->waiting, job) {
        if (job == best)
            break;
        if (job->tenant == best->tenant)
            job->bytes /= 2; // so that it is not passed for ever
    }
    *turn_of(jobs, best) = ++jobs->num_turns;
    return best;
}

static void *work(void *context)
{
    struct jobs *jobs = context;
    pthread_mutex_lock(&jobs->lock);
    while (!jobs->stop) {
        struct job *job = pick(jobs);
        if (!job) {
            pthread_cond_wait(&jobs->changed, &jobs->lock);
            continue;
        }
        LIST_DELETE(jobs->waiting, job);
        pthread_mutex_unlock(&jobs->lock);
        job->work(job);
        pthread_mutex_lock(&jobs->lock);
        finish(jobs, job);
    }
    pthread_mutex_unlock(&jobs->lock);
    return NULL;
}

enum status jobs_create(int wake_fd, struct jobs **out, struct error *error)
{
    struct jobs *jobs = calloc(1, sizeof *jobs);
    if (!jobs)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the job thread");
    jobs->wake_fd = wake_fd;
    pthread_mutex_init(&jobs->lock, NULL);
    pthread_cond_init(&jobs->changed, NULL);
    int reason = pthread_create(&jobs->thread, NULL, work, jobs);
    if (reason) {
        free(jobs);
        return error_set(error, STATUS_NO_MEMORY, "cannot start the job thread: %s",
                         strerror(reason));
    }
    *out = jobs;
    return STATUS_OK;
}

void jobs_start(struct jobs *jobs, struct job *job)
{
    struct job *place = NULL, *other;
    pthread_mutex_lock(&jobs->lock);
    LIST_EACH(jobs->waiting, other) {
        if (other->is_long > job->is_long)
            break;
        place = other;
    }
    LIST_INSERT(jobs->waiting, place, job);
    pthread_cond_broadcast(&jobs->changed);
    pthread_mutex_unlock(&jobs->lock);
}

void jobs_start_first(struct jobs *jobs, struct job *job)
{
    pthread_mutex_lock(&jobs->lock);
    LIST_PREPEND(jobs->waiting, job);
    pthread_cond_broadcast(&jobs->changed);
    pthread_mutex_unlock(&jobs->lock);
}

bool jobs_cancel(struct jobs *jobs, struct job *job)
{
    struct job *waiting;
    pthread_mutex_lock(&jobs->lock);
    LIST_EACH(jobs->waiting, waiting) {
        if (waiting == job)
            break;
    }
    if (waiting)
        LIST_DELETE(jobs->waiting, waiting);
    pthread_mutex_unlock(&jobs->lock);
    return waiting;
}

void jobs_finish_done(struct jobs *jobs, void *context)
{
    pthread_mutex_lock(&jobs->lock);
    struct job *done = jobs->done, *next;
    jobs->done = NULL;
    pthread_mutex_unlock(&jobs->lock);
    for (; done; done = next) {
        next = done->next;
        done->done(done, context);
    }
}

void jobs_destroy(struct jobs *jobs)
{
    if (!jobs)
        return;
    pthread_mutex_lock(&jobs->lock);
    jobs->stop = true;
    pthread_cond_broadcast(&jobs->changed);
    pthread_mutex_unlock(&jobs->lock);
    pthread_join(jobs->thread, NULL);
    pthread_mutex_destroy(&jobs->lock);
    pthread_cond_destroy(&jobs->changed);
    free(jobs);
}
