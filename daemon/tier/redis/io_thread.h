// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// io_thread.h - an I/O thread: one epoll over the connections of its servers, and the deadlines of
// the jobs that have units here.

#ifndef AULE_TIER_REDIS_IO_THREAD_H
#define AULE_TIER_REDIS_IO_THREAD_H

#include "redis_job.h"

#include <stdbool.h>

struct io_thread;
struct conn;

struct io_thread *io_thread_create(struct tier_backend *redis, uint32_t index); // NULL: no memory
bool io_thread_start(struct io_thread *io); // the thread; its servers exist
// The backend is stopping: soon all units end with STORED_CLOSED, and then the thread. Any thread.
void io_thread_stop(struct io_thread *io);
// All I/O threads have stopped: ends units that one had sent to another meanwhile.
void io_thread_clear(struct io_thread *io);
void io_thread_destroy(struct io_thread *io); // not started, or stopped; takes NULL

// Hands units over; `units` is a list through `next` and `prev`. NULL: only wakes it. Any thread.
void io_thread_give(struct io_thread *io, struct unit *units);

// ---- for the I/O thread itself ----

uint32_t io_thread_index(const struct io_thread *io);
// The unit ends, or goes to another I/O thread: its job's deadline is not this one's any
// more.
void io_thread_drop(struct io_thread *io, struct unit *unit);
void io_thread_watch(struct io_thread *io, struct conn *conn, uint32_t events);
// Call this before the connection's socket is closed. The close alone is not enough while another
// thread of the daemon starts a process: for a moment that process has the socket, too.
void io_thread_unwatch(struct io_thread *io, struct conn *conn);

#endif
