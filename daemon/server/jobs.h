// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// jobs.h - one worker thread for what may take long and so must not run on the dispatcher: making,
// filling, importing and unmapping a segment. A job is embedded in what it works on, so that
// starting one cannot fail. It belongs to the worker from jobs_start() until jobs_finish_done()
// calls its `done`.

#ifndef AULE_SERVER_JOBS_H
#define AULE_SERVER_JOBS_H

#include "schema/status.h"

#include <stdbool.h>

struct job {
    void (*work)(struct job *job);                // on the worker thread
    void (*done)(struct job *job, void *context); // on the dispatcher, in order; may free the job
    struct job *next;
};

struct jobs;

// `wake_fd`: an eventfd that is written when a job is done.
enum status jobs_create(int wake_fd, struct jobs **out, struct error *error);
// The dispatcher's, all of them.
void jobs_start(struct jobs *jobs, struct job *job);
void jobs_start_first(struct jobs *jobs, struct job *job); // before all that wait
bool jobs_cancel(struct jobs *jobs,
                 struct job *job); // true: it still waited; now nothing of it is called
void jobs_finish_done(struct jobs *jobs, void *context); // call `done` of all that are
void jobs_destroy(struct jobs *jobs);                    // nothing may be queued; takes NULL

#endif
