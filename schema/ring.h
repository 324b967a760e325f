// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ring.h - the two rings of a session's segment, as both ends use them: the client puts requests
// into the submission ring, the daemon answers each one with just one entry of the completion ring,
// in whatever order. Knows neither what an entry means nor how a doorbell sounds. schema/README.md
// draws the layout.
//
// Four words are shared, each with one writer and on a line of its own. Counts wrap at 2^32:
//   submitted   client   requests that lie in the submission ring, in all
//   sleepers    client   threads that sleep, or are about to, until `posted` changes: the futex
//   posted      daemon   answers that lie in the completion ring, in all
//   asleep      daemon   1: it does not look at `submitted` any more, and whoever submits rings the
//   doorbell; 2: it never will again
// Nobody tells the other how far it has read. The client keeps submitted - consumed <= num_entries,
// and as each request has one answer, neither a request nor an answer is ever overwritten before it
// is read.
//
// No wake-up is lost: whoever goes to sleep says so first and looks again after a full fence;
// whoever brings something writes it first and looks for sleepers after a full fence. One of the
// two sees the other. So it is with the end, too: the daemon says that it is over, then answers
// what lies there; who submits later sees that nobody will.
//
// What the daemon does with a hostile client: it reads `submitted` and `sleepers`, and every entry
// once, into memory of its own. All indices are its own counts; a `submitted` that no client of
// this protocol could write is RING_BROKEN. It never waits for a word.

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
    RING_HEAD = 2 * RING_LINE, // bytes before the entries of either ring
    RING_MAX_ENTRIES = 1 << 15,
};

// Where the rings lie in this end's mapping: 16-byte aligned.
struct ring_place {
    void *submissions, *completions;
    uint32_t num_entries; // of either ring: a power of two, at most RING_MAX_ENTRIES
    uint32_t submission_size, completion_size; // bytes of an entry
};

uint64_t ring_size(uint32_t num_entries, uint32_t entry_size); // bytes of one ring
bool ring_good_number(uint32_t num_entries);                   // one that ring_place may have

enum ring_look {
    RING_NOTHING,
    RING_TAKEN,
    RING_BROKEN, // the other end does not keep to the protocol
};

// ---- the client's end: one thread at a time, but for ring_sleep() and ring_interrupt() ----

struct ring_client {
    struct ring_place place;
    uint32_t submitted, consumed;
    bool interrupted; // atomic: ring_sleep() does not sleep any more
};

void ring_client_init(struct ring_client *client,
                      const struct ring_place *place); // of a zeroed pair of rings
// False: as many requests as the ring has entries are not answered yet, or their answers not
// consumed.
bool ring_submit(struct ring_client *client, const void *submission);
// After ring_submit(), how the daemon is.
enum ring_ear {
    RING_AWAKE,
    RING_ASLEEP, // it wants to hear its doorbell
    RING_OVER,   // it may or may not have seen the request, and answers nothing any more that is
                 // submitted from here on
};
enum ring_ear ring_ear(const struct ring_client *client);
enum ring_look ring_consume(struct ring_client *client, void *completion);
// Any thread: sleeps until more than `consumed` answers are posted, for at most `rest` (NULL: for
// ever) or until ring_interrupt(); may also return for no reason.
void ring_sleep(struct ring_client *client, uint32_t consumed, const struct timespec *rest);
// Any thread: true if ring_sleep() would not sleep.
bool ring_posted(const struct ring_client *client, uint32_t consumed);
// Any thread: ring_sleep() returns, now and later, in every thread. Returns when nobody sleeps any
// more.
void ring_interrupt(struct ring_client *client);
bool ring_interrupted(const struct ring_client *client);

// ---- the daemon's end: one thread ----

struct ring_daemon {
    struct ring_place place;
    uint32_t taken, posted;
};

void ring_daemon_init(
    struct ring_daemon *daemon,
    const struct ring_place *place); // zeroes the shared words; the daemon is asleep
bool ring_has_news(const struct ring_daemon *daemon);
enum ring_look ring_take(struct ring_daemon *daemon, void *submission);
// One answer for each request that was taken. Wakes the client's sleepers.
void ring_post(struct ring_daemon *daemon, const void *completion);
// From now on the client rings the doorbell. False: something came in the meantime, and it is awake
// still.
bool ring_fall_asleep(struct ring_daemon *daemon);
void ring_wake_up(struct ring_daemon *daemon);
// The end: what can be taken after this, at most num_entries requests, is to be answered, and that
// is all.
void ring_finish(struct ring_daemon *daemon);

#ifdef __cplusplus
}
#endif

#endif
