// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// run.h - one accepted run, from the queue to its reaped ticket.

#ifndef AULE_CORE_RUN_H
#define AULE_CORE_RUN_H

#include "batch.h"

struct run {
    UT_hash_handle hh;       // session->tickets, unless detached
    struct run *prev, *next; // session->runs until delivered
    struct core_session *session;
    struct batch *batch; // referenced until the run is over
    uint64_t ticket;
    uint64_t attended; // tokens
    uint64_t work;     // multiply-adds
    uint32_t wave;     // in its submission
    bool detached;
    bool over;      // `result` is final
    bool delivered; // and every earlier ticket of the session is over too
    struct core_ticket_result result;
    struct engine_run engine;
    float heads[]; // what engine.slopes and engine.sinks point to
};

// The run is over: failed before or on the GPU, or done. run_deliver() then shows it, once the earlier ones are over too.
void run_end(struct run *run, const struct core_ticket_result *result);
void run_drop_queued(struct core_session *session, enum status status); // ends every run that was not submitted
// Makes what is over reapable, in the order of tickets. Frees runs that nobody can reap: detached, or of a closed session.
void run_deliver(struct core_session *session);

#endif
