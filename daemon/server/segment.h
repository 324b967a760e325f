// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// segment.h - a session's shared memory: a header, the rings, the arena, as in wire.h. The daemon
// makes it, allocates all its pages at once, and unlinks it when the client has mapped it. Knows
// nothing of sessions or the GPU.
// A segment belongs to one thread at a time. Thread: dispatcher, or as a declaration says.

#ifndef AULE_SERVER_SEGMENT_H
#define AULE_SERVER_SEGMENT_H

#include "schema/status.h"

enum { SEGMENT_NAME_ROOM = 64, SEGMENT_PREFIX_ROOM = 32 };

struct segment_params {
    const char *prefix;      // of the segment's name, without a slash
    uint64_t epoch, session; // for the header
    uint32_t uid;            // the user that will open it
    uint64_t arena_size;     // bytes, a multiple of the page size; 0 = none
    uint64_t places_size;    // bytes, a multiple of the page size; 0 = none
    uint32_t ring_entries;   // in each ring, a power of two; 0 = no rings
    uint64_t alignment;      // bytes: of the arena's address and offset; a power of two, >= a page
};

struct segment {
    char name[SEGMENT_NAME_ROOM]; // for shm_open; "" once unlinked
    void *reserved;       // address space with the mapping inside, at an aligned address; owned
    size_t reserved_size; // bytes
    void *base;           // of the mapping, in `reserved`
    uint64_t size, arena_offset, arena_size, places_size;       // bytes
    uint64_t submissions_offset, completions_offset, ring_size; // bytes; 0 = there are none
    uint32_t ring_entries;
    int lock;  // a descriptor with the lock that says that this daemon lives; owned; -1 = none
    int guard; // number in the SIGBUS guard, sigbus.h; -1 = none
};

uint64_t segment_size(const struct segment_params *params); // bytes that it takes of /dev/shm
uint64_t segment_room(void); // bytes of /dev/shm, used ones too; 0: not known, and errno says why
// Takes all of the memory at once. NO_MEMORY: the error says what /dev/shm has left. LIMIT: the
// guard has no room (--max-sessions). Thread: job thread.
enum status segment_create(const struct segment_params *params, struct segment *out,
                           struct error *error);
void segment_unlink(struct segment *segment);  // removes the name, not the memory; may be repeated
void segment_destroy(struct segment *segment); // takes a zeroed or half-made one. Thread: job
                                               // thread
// True: the client shrank it, and a thread touched a lost page.
bool segment_is_dead(const struct segment *segment);

// A segment is locked for as long as it has a name, and its lock ends with its daemon. So any
// daemon that may remove a segment without a lock does so when it starts: those of other sockets,
// and those of containers with the same /dev/shm. Returns their number.
unsigned segment_sweep_dead(void);
// Removes every segment whose name begins with `prefix`; at the end of their daemon.
void segment_sweep(const char *prefix);

#endif
