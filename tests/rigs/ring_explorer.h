// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ring_explorer.h - every schedule of the ring protocol, for small rings. The code under test is
// schema/ring.c itself, over a port whose every access is a step: threads are coroutines, a
// scheduler picks whose step is next and comes back for each other choice. (check's asserts stay
// out of it: each is a system call.) Stores wait in a buffer of their thread and reach memory in
// order but at any later time, as processors do it; so a fence that lacks is found, too.
//
// What a thread does next depends only on what its steps have seen, so that two schedules after
// which memory, buffers and each thread's history are the same go on alike, and the second is not
// followed (told by a hash of 64 bits). A schedule after which nobody can go on is a lost wake-up.
// One thread of the test itself runs all.

#ifndef AULE_TESTS_RING_EXPLORER_H
#define AULE_TESTS_RING_EXPLORER_H

#include "schema/ring.h"

#include <stdbool.h>
#include <stdint.h>

enum { MAX_THREADS = 4, MAX_ENTRIES = 2, MAX_REQUESTS = 4, MAX_BUFFERED = 8 };

enum wait { RUNS, ON_FUTEX, ON_BELL, ON_LOCK, ON_CHANGE, ENDED };

struct thread {
    enum wait wait;
    uint32_t *futex;
    bool behind;      // something has changed since it looked
    uint64_t history; // of all that its steps have seen
    uint32_t num_buffered;
    struct buffered {
        uint32_t *word, value;
    } buffer[MAX_BUFFERED];
};

// All that threads share; the same before each schedule, and hashed after each step.
struct world {
    struct thread threads[MAX_THREADS];
    uint32_t submissions[(RING_HEAD + MAX_ENTRIES * 4) / 4],
        completions[(RING_HEAD + MAX_ENTRIES * 4) / 4];
    struct ring_client client;
    struct ring_daemon daemon;
    uint32_t bell; // 0 or 1: a datagram that finds no room is lost
    bool locked;   // the client library's lock, which guards the rest
    bool over;     // it has heard that the daemon takes no more
    uint32_t answers[MAX_REQUESTS];
    uint32_t num_submitted;
};
extern struct world world;

// What the scenario is.
struct scenario {
    uint32_t num_entries, num_requests; // of each client thread
    uint32_t num_clients;
    bool has_daemon, interrupts,
        keeps_one;      // the daemon answers the one before only when the next has come
    bool without_fence; // a port that forgets the fence behind a store
    bool finishes;      // the daemon ends the ring when it has taken `last`
    uint32_t last;
};
extern struct scenario scenario;

extern const char *failure; // what went wrong, NULL = nothing

// Over all schedules; what went wrong in the first bad one, or NULL.
const char *explore(const struct scenario *which);

// What threads are: the test's to define. One client thread is an eager one.
void run_client(void);
void run_eager_client(void);
void run_daemon(void);
void run_interrupter(void);

// ---- for these ----

void observe(uint64_t value); // what a step has seen
// At a place that a thread comes by again: what it knows there is just `knows` and `too`, whatever
// it had seen before.
void forget_but(uint32_t place, uint32_t knows, uint32_t too);
void fail_with(const char *what);

// What lies around the rings: a doorbell, the library's lock.
void bell_ring(void);
void bell_await(void);
void lock(void);
void unlock(void);

#endif
