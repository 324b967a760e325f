// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// jobs.h - one worker thread, the job thread, for work that takes too long for the dispatcher:
// making, filling, importing and unmapping a segment, and preparing large metadata (offload.h).
// Knows nothing of what a job does.
// A struct job is part of the object that it works on, so starting one cannot fail. The job belongs
// to the job thread from jobs_start() until jobs_finish_done() calls its `done`. Thread:
// dispatcher.

#ifndef AULE_SERVER_JOBS_H
#define AULE_SERVER_JOBS_H

#include "schema/status.h"

#include <stdbool.h>

struct job {
    void (*work)(struct job *job);                // Thread: job thread
    void (*done)(struct job *job, void *context); // may free the job
    bool is_long;            // it may take a second: jobs that are not go first
    uint64_t tenant;         // of a long job, any number
    uint64_t bytes;          // of a long job's data: the smaller ones of a tenant go first
    struct job *prev, *next; // jobs.c's
};

struct jobs;

// `wake_fd` is an eventfd that is written when a job is done; it
// stays the caller's.
enum status jobs_create(int wake_fd, struct jobs **out, struct error *error);
// Jobs run in the order of their start, long ones behind all others. Long ones take turns among
// tenants. Each time a long job is passed by one of its tenant, its bytes count half.
void jobs_start(struct jobs *jobs, struct job *job);
void jobs_start_first(struct jobs *jobs, struct job *job); // runs before all waiting jobs
// True: the job had not begun, and neither `work` nor `done` will be called.
bool jobs_cancel(struct jobs *jobs, struct job *job);
// Calls `done` of all jobs that have ended, in the order of their ends.
void jobs_finish_done(struct jobs *jobs, void *context);
// Waits for the job that runs. No other job may be waiting. Takes NULL.
void jobs_destroy(struct jobs *jobs);

#endif
