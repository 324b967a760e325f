// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// metadata.h - a command's vectors: inside its message, or in the arena if they are too large for a
// message.

#ifndef AULE_CLIENT_METADATA_H
#define AULE_CLIENT_METADATA_H

#include "life.h"

struct vector {
    const void *data;      // NULL if count is 0
    uint64_t count;        // elements
    uint32_t element_size; // bytes
    struct wire_span span; // where it lies in the arena; count 0: in the message
};

struct metadata {
    bool in_arena;
    uint64_t offset; // of the allocation
};

// Places all `num_vectors` either in the message, of which other vectors take `beside` bytes, or in
// the arena; then fills their spans. AULE_NO_MEMORY: the arena has no room. The life must be
// entered until metadata_finish().
enum aule_status metadata_begin(struct life *life, struct vector *vectors, uint32_t num_vectors,
                                uint64_t beside, struct metadata *metadata);
// The same for vectors that always go into the arena. `what` names them in the sentence of
// AULE_NO_MEMORY.
enum aule_status metadata_place(struct life *life, struct vector *vectors, uint32_t num_vectors,
                                const char *what, struct metadata *metadata);
void metadata_finish(struct life *life, struct metadata *metadata);

// The vector for the message; empty if it lies in the arena.
struct wire_ints vector_ints(const struct vector *vector);
struct wire_longs vector_longs(const struct vector *vector);
struct wire_bytes vector_bytes(const struct vector *vector);

#endif
