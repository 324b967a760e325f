// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// metadata.h - vectors of a command that lie in the message or in the session's arena. What lies in
// the arena is copied once, under the SIGBUS guard, and only the copy is used. Dispatcher thread.

#ifndef AULE_SERVER_METADATA_H
#define AULE_SERVER_METADATA_H

#include "dispatch.h"

struct metadata {
    const char *name;        // of the field, for the sentence
    const void *inline_data; // in the message, or NULL
    uint32_t inline_count;
    struct wire_span span; // in the arena, count 0 = not given
    uint32_t element_size; // bytes
};

// *data (NULL if absent) and *count; the memory lives as long as the call. INVALID: both places
// given. MISALIGNED: the offset is no multiple of the element. OUT_OF_RANGE: past the arena. LIMIT:
// --max-metadata, over all vectors of the call. NO_SESSION: the segment was shrunk, and the session
// has ended.
enum status metadata_fetch(struct call *call, const struct metadata *field, const void **data,
                           uint32_t *count);

#endif
