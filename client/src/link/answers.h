// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// answers.h - threads of one session that wait for answers from its ring. One of them, the leader,
// watches the ring: it may spin for a while, then sleeps on the ring's futex. It hands out all
// answers that come. Each other thread sleeps until its answer is there or it becomes the leader.
// So at most one thread spins, and the daemon wakes one, however many wait. Knows the ring and its
// entries; no doorbell, no daemon.

#ifndef AULE_CLIENT_ANSWERS_H
#define AULE_CLIENT_ANSWERS_H

#include "base/forecast.h"
#include "schema/ring.h"
#include "schema/wire.h"
#include "timeout.h"

#include <pthread.h>
#include <stdbool.h>

struct answers {
    pthread_mutex_t mutex; // guards the rest, but ring_interrupt()
    struct ring_client ring;
    // How long the leader spins before it sleeps, beyond the forecast; 0: no thread spins.
    int64_t spin_ns;
    struct waiter *waiters;
    bool led;    // one of them is the leader
    bool broken; // the daemon violated the ring's protocol
    bool over;   // the daemon answers no submission from now on
    // A kind of work is a batch. Its time runs from a run's submission to its answer.
    struct forecast_tickets forecast;
};

// One request of a thread, in that thread's memory.
struct waiter {
    const struct wire_submission *submission;
    int64_t start_ns, expected_ns; // expected_ns: start_ns if nothing is known; 0: no thread spins
    bool answered, sleeps;
    pthread_cond_t news; // while it sleeps
    struct wire_completion completion;
    struct waiter *prev, *next;
};

void answers_init(struct answers *answers, const struct ring_place *place, int64_t spin_ns);
// No thread may be waiting. Only in the process that called answers_init().
void answers_finish(struct answers *answers);

enum answers_place {
    ANSWERS_NO_PLACE, // no answer will come: the ring is full, broken or over
    ANSWERS_PLACED,
    ANSWERS_PLACED_ASLEEP, // the caller must ring the daemon's doorbell
};
// Numbers *submission and puts it into the ring. answers_await() must follow, except after
// ANSWERS_NO_PLACE.
enum answers_place answers_submit(struct answers *answers, struct wire_submission *submission,
                                  struct waiter *waiter);
// True: waiter->completion is the answer. False: the time is over, or no answer will come, because
// the ring is broken or ring_interrupt() was called.
bool answers_await(struct answers *answers, struct waiter *waiter, const struct timeout *timeout);
bool answers_broken(struct answers *answers);
// With the mutex. When the earliest answer is expected; 0: no time is known. An answer whose time
// and spin_ns are over does not count. So a lease that waits for long hides no forecast.
int64_t answers_expected(const struct answers *answers, int64_t now_ns);

#endif
