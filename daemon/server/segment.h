// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// segment.h - a session's shared memory: made by the daemon, filled so that no page can be missing
// later, unlinked as soon as the client has mapped it. Laid out as in wire.h: a header, the rings,
// the arena. Knows nothing of sessions or the GPU. create and destroy may take long (every page is
// touched) and run on the job thread; a segment belongs to one thread at a time.

#ifndef AULE_SERVER_SEGMENT_H
#define AULE_SERVER_SEGMENT_H

#include "schema/status.h"

enum { SEGMENT_NAME_ROOM = 64 };

struct segment_params {
    const char *prefix; // socket_path_segment_prefix()
    uint64_t epoch, session;
    uint64_t arena_size;   // bytes, a multiple of the page; 0 = none
    uint32_t ring_entries; // a power of two; 0 = no rings
    uint64_t alignment; // bytes, of the arena's address and offset: a power of two, at least a page
};

struct segment {
    char name[SEGMENT_NAME_ROOM]; // for shm_open; "" once unlinked
    void *reserved;               // address space that holds the mapping, aligned by hand; owned
    size_t reserved_size;
    void *base;                                                 // of the mapping; owned
    uint64_t size, arena_offset, arena_size;                    // bytes
    uint64_t submissions_offset, completions_offset, ring_size; // bytes; 0 = there are none
    uint32_t ring_entries;
    int guard; // sigbus.h; -1 = none
};

// NO_MEMORY with what /dev/shm has left; LIMIT if the guard has no room (--max-sessions).
enum status segment_create(const struct segment_params *params, struct segment *out,
                           struct error *error);
void segment_unlink(struct segment *segment);  // the name goes, the memory stays; may be repeated
void segment_destroy(struct segment *segment); // takes a zeroed or half-made one
bool segment_is_dead(const struct segment *segment); // shrunk by its client and touched since

// Remove every segment whose name begins with `prefix`: what a killed daemon left. Returns how
// many.
unsigned segment_sweep(const char *prefix);

#endif
