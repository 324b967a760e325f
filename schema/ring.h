// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ring.h - both ends of the two rings of a session's segment. The client puts requests into the
// submission ring. The daemon answers each with exactly one entry of the completion ring, in any
// order. Knows neither what an entry means nor how a doorbell rings. schema/README.md draws the
// layout.
//
// Four words are shared. Each has one writer and lies on a cache line of its own. Counts wrap at
// 2^32:
//   submitted   client   requests put into the submission ring so far
//   sleepers    client   threads in, or about to enter, a futex wait on `posted`
//   posted      daemon   answers put into the completion ring so far
//   asleep      daemon   0: it polls `submitted`; 1: it does not, so a submitter must ring the
//                        doorbell; 2: it never will again
// Neither side says how far it has read. The client keeps submitted - consumed <= num_entries, and
// each request has one answer. So no entry of either ring is overwritten before it is read.
//
// No wake-up is lost. Before a side sleeps, it announces the sleep, and after a full fence looks
// for news again. A side that brings news writes the news, and after a full fence looks for
// sleepers. So at least one of the two sees the other. The end of a session works alike: the daemon
// first sets `asleep` to 2, then answers what lies in the ring. A later submitter sees the 2.
//
// The daemon trusts nothing that a client can write. It reads `submitted`, `sleepers` and each
// entry once, into memory of its own, and indexes by its own counts. A `submitted` that this
// protocol cannot produce is RING_BROKEN. The daemon never waits for a word to change.

#ifndef AULE_SCHEMA_RING_H
#define AULE_SCHEMA_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    RING_LINE = 128,           // bytes between two shared words: processors fetch lines in pairs
    RING_HEAD = 2 * RING_LINE, // bytes before the first entry of either ring
    RING_MAX_ENTRIES = 1 << 15,
};

// Where the rings lie in this process; 16-byte aligned.
struct ring_place {
    void *submissions, *completions;
    uint32_t num_entries; // of either ring: a power of two, at most RING_MAX_ENTRIES
    uint32_t submission_size, completion_size; // bytes of an entry
};

uint64_t ring_size(uint32_t num_entries, uint32_t entry_size); // bytes of one ring
bool ring_good_number(uint32_t num_entries);                   // true: ring_place may have it

enum ring_look {
    RING_NOTHING,
    RING_TAKEN,
    RING_BROKEN, // the other end has violated the protocol
};

// ---- the client's end: one thread at a time, except where it says "any thread" ----

struct ring_client {
    struct ring_place place;
    uint32_t submitted, consumed;
    bool interrupted; // atomic; ring_sleep() returns at once from now on
};

// The rings must be zeroed.
void ring_client_init(struct ring_client *client, const struct ring_place *place);
// False: the ring is full. It counts requests until their answers are consumed.
bool ring_submit(struct ring_client *client, const void *submission);
// Call this after ring_submit(): does the daemon look at the ring?
enum ring_ear {
    RING_AWAKE,
    RING_ASLEEP, // no: the caller must ring the doorbell
    RING_OVER,   // never again: this request may get an answer, later ones get none
};
enum ring_ear ring_ear(const struct ring_client *client);
enum ring_look ring_consume(struct ring_client *client, void *completion);
// Any thread. Sleeps until more than `consumed` answers are posted, until ring_interrupt(), or for
// `rest` (NULL: for ever). May also return too early.
void ring_sleep(struct ring_client *client, uint32_t consumed, const struct timespec *rest);
// Any thread. True: ring_sleep() would not sleep.
bool ring_posted(const struct ring_client *client, uint32_t consumed);
// Any thread. Makes ring_sleep() return in every thread, now and later. Returns when no thread
// sleeps any more.
void ring_interrupt(struct ring_client *client);
bool ring_interrupted(const struct ring_client *client);

// ---- the daemon's end: one thread ----

struct ring_daemon {
    struct ring_place place;
    uint32_t taken, posted;
};

// Zeroes the shared words. The daemon begins asleep.
void ring_daemon_init(struct ring_daemon *daemon, const struct ring_place *place);
bool ring_has_news(const struct ring_daemon *daemon);
enum ring_look ring_take(struct ring_daemon *daemon, void *submission);
// Call this once for each request that was taken. True: a thread of the client sleeps, so call
// ring_wake_sleepers() after this answer or after several. A thread that goes to sleep later has
// seen the answer.
bool ring_put(struct ring_daemon *daemon, const void *completion);
void ring_wake_sleepers(const struct ring_daemon *daemon); // the client's, if there are any
void ring_post(struct ring_daemon *daemon, const void *completion); // both
// From now on the client must ring the doorbell. False: a request came meanwhile, and the daemon is
// still awake.
bool ring_fall_asleep(struct ring_daemon *daemon);
void ring_wake_up(struct ring_daemon *daemon);
// Ends the ring. The daemon must still take and answer what lies there, at most num_entries
// requests; no others follow.
void ring_finish(struct ring_daemon *daemon);

#ifdef __cplusplus
}
#endif

#endif
