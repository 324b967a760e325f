// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// lane.h - an I/O thread: one epoll over the links of its servers, and the deadlines of the jobs
// that have units here.

#ifndef AULE_TIER_REDIS_LANE_H
#define AULE_TIER_REDIS_LANE_H

#include "work.h"

#include <stdbool.h>

struct lane;
struct link;

struct lane *lane_create(struct tier_backend *redis, uint32_t index); // NULL: no memory
bool lane_start(struct lane *lane); // the thread; its servers exist
// The backend is stopping: soon all units end with RECORD_CLOSED, and then the thread. Any thread.
void lane_stop(struct lane *lane);
// All lanes have stopped: ends units that one had sent to another meanwhile.
void lane_clear(struct lane *lane);
void lane_destroy(struct lane *lane); // not started, or stopped; takes NULL

// Hands units over; `units` is a list through `next` and `prev`. NULL: only wakes it. Any thread.
void lane_give(struct lane *lane, struct unit *units);

// ---- the lane's own thread ----

uint32_t lane_index(const struct lane *lane);
// The unit ends, or goes to another lane: its job's deadline is not this lane's any more.
void lane_drop(struct lane *lane, struct unit *unit);
void lane_watch(struct lane *lane, struct link *link, uint32_t events);
// Call this before the link's socket is closed. The close alone is not enough while another thread
// of the daemon starts a process: for a moment that process has the socket, too.
void lane_unwatch(struct lane *lane, struct link *link);

#endif
