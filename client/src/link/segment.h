// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// segment.h - maps a session's shared memory.

#ifndef AULE_CLIENT_SEGMENT_H
#define AULE_CLIENT_SEGMENT_H

#include "aule/aule.h"
#include "schema/wire.h"

struct segment {
    void *base;
    size_t size;                      // bytes mapped
    void *arena;                      // inside the mapping
    uint64_t arena_size, places_size; // the places follow the arena
};

// Maps the segment that the daemon made, and checks that it is the one that `hello` describes. On
// failure *segment is zeroed. AULE_DAEMON_GONE: there is no such segment. AULE_MISMATCH: its size,
// layout or header differs. AULE_NO_MEMORY. AULE_DENIED.
enum aule_status segment_open(const struct wire_hello_reply *hello, struct segment *segment);
void segment_close(struct segment *segment); // zeroes it; takes a zeroed one

#endif
