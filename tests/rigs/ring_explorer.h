// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ring_explorer.h - runs every schedule of the ring protocol, for small rings. The code under test
// is schema/ring.c itself, over a port in which every access is a step. Threads are coroutines. A
// scheduler chooses which thread steps next, and later comes back for each other choice. (No assert
// of check is inside, because each is a system call.) Stores wait in a buffer of their thread and
// reach memory in order, but at any later time, as on processors. So a missing fence is found, too.
// What a thread does next depends only on what its steps have seen. So two schedules continue alike
// if they lead to the same memory, buffers and histories of threads (compared by a hash of 64
// bits), and the second is not followed. A schedule after which no thread can continue is a lost
// wake-up. One thread of the test runs everything.

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
    bool behind;      // something has changed since the thread looked
    uint64_t history; // hash of all that its steps have seen
    uint32_t num_buffered;
    struct buffered {
        uint32_t *word, value;
    } buffer[MAX_BUFFERED];
};

// What all threads share. It is the same before each schedule, and hashed after each step.
struct world {
    struct thread threads[MAX_THREADS];
    uint32_t submissions[(RING_HEAD + MAX_ENTRIES * 4) / 4],
        completions[(RING_HEAD + MAX_ENTRIES * 4) / 4];
    struct ring_client client;
    struct ring_daemon daemon;
    uint32_t bell; // 0 or 1: a datagram that finds no room is dropped
    bool locked;   // the client library's lock, which guards the rest
    bool over;     // it knows that the daemon accepts no more
    uint32_t answers[MAX_REQUESTS];
    uint32_t num_submitted;
};
extern struct world world;

// The scenario.
struct scenario {
    uint32_t num_entries, num_requests; // of each client thread
    uint32_t num_clients;
    bool has_daemon, interrupts,
        keeps_one;      // the daemon delays an answer until the next request comes
    bool without_fence; // a port without the fence after a store
    bool finishes;      // the daemon ends the ring after it has taken `last`
    uint32_t last;
};
extern struct scenario scenario;

extern const char *failure; // what went wrong; NULL = nothing

// Runs all schedules. Returns what went wrong in the first bad one, or NULL.
const char *explore(const struct scenario *which);

// The test defines what threads do. One client thread is eager.
void run_client(void);
void run_eager_client(void);
void run_daemon(void);
void run_interrupter(void);

// ---- for these threads ----

void observe(uint64_t value); // records what a step has seen
// A thread that returns to this place knows only `knows` and `too`, whatever it has seen before.
void forget_but(uint32_t place, uint32_t knows, uint32_t too);
void fail_with(const char *what);

// The other shared objects: a doorbell, the library's lock.
void bell_ring(void);
void bell_await(void);
void lock(void);
void unlock(void);

#endif
