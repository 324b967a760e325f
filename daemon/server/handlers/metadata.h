// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// metadata.h - fetches an array of a command from the message or from the session's arena. An array
// in the arena is copied once, under the SIGBUS guard, and only the copy is used. Knows where an
// array is, not what it means. Thread: dispatcher, except metadata_copy().

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

// The same in parts, for several arrays.
struct fetched {
    const void *data; // NULL = absent, or in the arena and not copied yet
    uint32_t count;
};
// Checks where the arrays are, and fills in all but the data of those in the arena. *bytes: of all.
// INVALID, MISALIGNED, OUT_OF_RANGE, LIMIT.
enum status metadata_check(struct call *call, const struct metadata *fields, uint32_t num_fields,
                           struct fetched *out, uint64_t *bytes);
// Copies the arrays of the message, so that they outlive it. NO_MEMORY.
enum status metadata_keep(struct call *call, const struct metadata *fields, uint32_t num_fields,
                          struct fetched *out);
// Copies the arrays of the arena. If the segment was shrunk, the copies are wrong; then
// session_check_copy() tells the dispatcher. NO_MEMORY. Any thread that has the call to itself.
enum status metadata_copy(struct call *call, const struct metadata *fields, uint32_t num_fields,
                          struct fetched *out);

#endif
