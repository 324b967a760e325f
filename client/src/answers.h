// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// answers.h - the threads of one session that wait for answers from its ring. One of them, the
// leader, watches the ring: spins a while where that is wanted, then sleeps on its futex; it hands
// out all that comes, and each other sleeps until its own answer is there or it is to lead. So one
// thread spins, and one is woken, whoever else waits. Knows the ring and its entries; no doorbell,
// no daemon.

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
    int64_t
        spin_ns; // how long the leader looks before it sleeps, beyond the forecast; 0: nobody spins
    struct waiter *waiters;
    bool led;    // somebody is the leader
    bool broken; // the daemon's end is none
    bool over;   // the daemon answers nothing any more that is submitted from here on
    struct forecast_tickets
        forecast; // a kind of work is a batch: from a run's submission to its answer
};

// One request of a thread, in that thread's memory.
struct waiter {
    const struct wire_submission *submission;
    int64_t start_ns, expected_ns; // expected: 0 = nobody knows
    bool answered, sleeps;
    pthread_cond_t news; // while it sleeps
    struct wire_completion completion;
    struct waiter *prev, *next;
};

void answers_init(struct answers *answers, const struct ring_place *place, int64_t spin_ns);
void answers_finish(
    struct answers *answers); // nobody waits; in the process that did answers_init()

enum answers_place {
    ANSWERS_NO_PLACE, // nothing was submitted that anybody will answer: the ring is full, or nobody
                      // is there any more
    ANSWERS_PLACED,
    ANSWERS_PLACED_ASLEEP, // the daemon wants to hear its doorbell
};
// Puts *submission, numbered here, into the ring. Where there was a place, answers_await() must
// follow.
enum answers_place answers_submit(struct answers *answers, struct wire_submission *submission,
                                  struct waiter *waiter);
// True: waiter->completion is the answer. False: the time was over, or none will come: broken, or
// ring_interrupt().
bool answers_await(struct answers *answers, struct waiter *waiter, const struct timeout *timeout);
bool answers_broken(struct answers *answers);

#endif
