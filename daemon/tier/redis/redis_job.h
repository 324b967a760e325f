// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// redis_job.h - a job as the units that are sent: one command each, for one part of a block or up
// to 8. The last unit that ends gives the job back to tier.c. A unit belongs to one I/O thread at a
// time, and its job's answers are set under the backend's lock.

#ifndef AULE_TIER_REDIS_JOB_H
#define AULE_TIER_REDIS_JOB_H

#include "tier/tier.h"

#include <stdatomic.h>

enum { UNIT_PARTS = 8, MOST_IO_THREADS = 4 };

struct node;
struct sent;
struct redis_job;

enum unit_place { UNIT_NOWHERE, UNIT_QUEUED, UNIT_SENT };

struct unit {
    struct unit *next, *prev;           // in an I/O thread's inbox or a node's queue
    struct unit *live_next, *live_prev; // in its share
    struct redis_job *work;
    struct node *node; // where it goes
    struct sent *sent; // UNIT_SENT: its place in the connection's queue
    enum unit_place place;
    uint32_t block, part; // the first part
    uint8_t num_parts;
    uint8_t moves;               // times that a server sent it elsewhere
    uint8_t tries;               // times that a connection was lost under it
    bool asking;                 // the server is told that it is sent there for this once
    struct stored_header header; // of a STORE
};

// The units of a job that one I/O thread has.
struct share {
    struct share *next, *prev; // in the I/O thread's list while `live` has some
    struct redis_job *work;
    struct unit *live;
};

struct redis_job {
    struct tier_job *job;
    struct tier_backend *redis;
    atomic_uint left; // units that have not ended, and holds
    int64_t started_ns;
    uint64_t queue_bytes; // counted in the backend's queue
    struct share shares[MOST_IO_THREADS];
    uint32_t num_units;
    struct unit units[];
};

// Makes the units of the job for the blocks whose reason is STORED_OK. NULL: no memory.
struct redis_job *redis_job_create(struct tier_backend *redis, struct tier_job *job);
uint32_t redis_job_count_units(const struct tier_job *job);

// The bytes that the unit moves in its direction, to say how much is under way.
uint64_t unit_bytes(const struct unit *unit);
// The length of part `index` of the unit, and its place in the job's memory.
uint32_t unit_part_bytes(const struct unit *unit, uint32_t index);
uint8_t *unit_part_data(const struct unit *unit, uint32_t index);
// Counts towards the block's answer; the first reason other than STORED_OK stays.
void unit_note(struct unit *unit, enum stored_reason reason);
// The unit is over; it is in no list. The last one ends the job, which frees the work.
void unit_end(struct unit *unit, enum stored_reason reason);
// Between the two the work is not freed, and the job does not end.
void redis_job_hold(struct redis_job *work);
void redis_job_release(struct redis_job *work);

#endif
