// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// metadata.h - fetches an array of a command from the message or from the session's arena. An array
// in the arena is copied once, under the SIGBUS guard, and only the copy is used. Knows where an
// array is, not what it means. Dispatcher thread.

#ifndef AULE_SERVER_METADATA_H
#define AULE_SERVER_METADATA_H

#include "server/dispatch.h"

struct metadata {
    const char *name;        // of the field, for error texts
    const void *inline_data; // in the message; NULL = not there
    uint32_t inline_count;   // elements
    struct wire_span span;   // in the arena; count 0 = not there
    uint32_t element_size;   // bytes
};

// Fills *data and *count; *data is NULL if the array is absent. The memory lives as long as the
// call. INVALID: the array is in both places. MISALIGNED: the offset is no multiple of
// element_size. OUT_OF_RANGE: the array reaches past the arena. LIMIT: the arrays of this call
// exceed --max-metadata. NO_SESSION: the segment was shrunk, and the session has ended.
enum status metadata_fetch(struct call *call, const struct metadata *field, const void **data,
                           uint32_t *count);

#endif
