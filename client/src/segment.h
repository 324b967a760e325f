// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// segment.h - a session's shared memory, mapped.

#ifndef AULE_CLIENT_SEGMENT_H
#define AULE_CLIENT_SEGMENT_H

#include "aule/aule.h"
#include "schema/wire.h"

struct segment {
    void *base;
    size_t size; // bytes mapped
    void *arena; // inside the mapping
    uint64_t arena_size;
};

// Maps the segment that the daemon made and checks that it is the one the answer describes. On
// failure *segment is zeroed. AULE_DAEMON_GONE: it is not there any more. AULE_MISMATCH: its size,
// layout or header is another one. AULE_NO_MEMORY.
enum aule_status segment_open(const struct wire_hello_reply *hello, struct segment *segment);
void segment_close(struct segment *segment); // takes a zeroed one, and zeroes it

#endif
