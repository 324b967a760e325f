// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// sigbus.h - the guard around memory that a client can take away. A client may shrink its segment;
// the next touch of a lost page, by any thread, also a driver's, raises SIGBUS. The guard then
// marks the segment dead, maps anonymous zero pages over it (over the touched page alone if the
// system refuses so much) and returns to the touch. Faults elsewhere go to the handler that was
// there before. add, remove and is_dead: any thread.

#ifndef AULE_SERVER_SIGBUS_H
#define AULE_SERVER_SIGBUS_H

#include "schema/status.h"

// Guards up to `capacity` segments at a time; writes to the eventfd `wake_fd` when one died. One
// guard a process.
enum status sigbus_guard_init(uint32_t capacity, int wake_fd, struct error *error);
void sigbus_guard_finish(void); // puts the earlier handler back; no segment may be left

// The segment's number, or -1 if all `capacity` are in use. `base` is page aligned.
int sigbus_guard_add(void *base, size_t size);
void sigbus_guard_remove(int segment); // before munmap, when nobody touches it any more; takes -1
bool sigbus_guard_is_dead(int segment);

#endif
