// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// threads.h - the threads of a tier, which may wait for a disk or a server. threads_end() waits at
// most until a deadline. Knows no job. One thread makes all calls.

#ifndef AULE_TIER_THREADS_H
#define AULE_TIER_THREADS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define THREADS_END_MS 5000 // for those of a tier that did not start

struct threads {
    pthread_mutex_t lock;
    pthread_cond_t news;
    struct thread *all; // [room]; owned
    uint32_t room, count;
    uint32_t running; // guarded by `lock`
};

// Ends with threads_end(). False: no memory.
bool threads_init(struct threads *threads, uint32_t room);
// False: no thread is left. At most `room` times.
bool threads_start(struct threads *threads, void (*run)(void *argument), void *argument);
// The caller has told all of them to end. False: one runs at `deadline_ns`, so this memory and what
// that thread uses must stay until the process ends. Takes a zeroed struct.
bool threads_end(struct threads *threads, int64_t deadline_ns);

#endif
