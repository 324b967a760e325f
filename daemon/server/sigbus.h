// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// sigbus.h - the guard for memory that a client can take away. If a client shrinks its segment, the
// next access to a lost page, by any thread, raises SIGBUS. The guard's handler then marks the
// segment dead, maps zero pages over it, and lets the access go on. If the system refuses so much
// memory, it maps only the page of the access. Faults elsewhere go to the earlier handler. Knows
// address ranges, not sessions. Thread: main, or as a declaration says.

#ifndef AULE_SERVER_SIGBUS_H
#define AULE_SERVER_SIGBUS_H

#include "schema/status.h"

// Makes the process's one guard, for up to `capacity` segments at a time. It writes the eventfd
// `wake_fd` when a segment dies.
enum status sigbus_guard_init(uint32_t capacity, int wake_fd, struct error *error);
void sigbus_guard_finish(void); // restores the earlier handler; no segment may be left

// Returns the segment's number; -1: all `capacity` are in use. `base` is page aligned.
int sigbus_guard_add(void *base, size_t size); // Thread: any
// Call this before munmap(), when no thread accesses the segment any more. Takes -1.
void sigbus_guard_remove(int segment);  // Thread: any
bool sigbus_guard_is_dead(int segment); // Thread: any
uint64_t sigbus_guard_deaths(void);     // segments that have died so far

#endif
