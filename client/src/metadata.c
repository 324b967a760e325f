// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// metadata.c - vectors that exceed a message travel through the arena: they are copied into one
// allocation, sent as spans, and freed when the command is answered. The daemon copies them out
// before it reads them. But a Run that waits is answered only at its end, and keeps its allocation
// until then. Any thread.

#include "metadata.h"

#include "error.h"

#include <inttypes.h>
#include <string.h>

enum { VECTOR_ALIGNMENT = 16 }; // bytes

static uint64_t round_up(uint64_t size)
{
    return (size + VECTOR_ALIGNMENT - 1) / VECTOR_ALIGNMENT * VECTOR_ALIGNMENT;
}

// UINT64_MAX if the sum overflows.
static uint64_t total_size(const struct vector *vectors, uint32_t num_vectors)
{
    uint64_t total = 0, size;
    for (uint32_t i = 0; i < num_vectors; i++)
        if (__builtin_mul_overflow(vectors[i].count, vectors[i].element_size, &size) ||
            size > UINT64_MAX / 16 || __builtin_add_overflow(total, round_up(size), &total))
            return UINT64_MAX;
    return total;
}

static void copy_in(struct life *life, struct vector *vectors, uint32_t num_vectors,
                    uint64_t offset)
{
    for (uint32_t i = 0; i < num_vectors; i++) {
        struct vector *vector = &vectors[i];
        if (vector->count == 0)
            continue;
        uint64_t size = vector->count * vector->element_size;
        memcpy((char *)life->segment.arena + offset, vector->data, size);
        vector->span = (struct wire_span){.offset = offset, .count = vector->count};
        offset += round_up(size);
    }
}

static enum aule_status place(struct life *life, struct vector *vectors, uint32_t num_vectors,
                              const char *what, struct metadata *metadata)
{
    uint64_t size = total_size(vectors, num_vectors), room, largest;
    if (arena_alloc(life->arena, size, &metadata->offset) == AULE_OK) {
        metadata->in_arena = true;
        copy_in(life, vectors, num_vectors, metadata->offset);
        return AULE_OK;
    }
    arena_room(life->arena, &room, &largest);
    return fail(AULE_NO_MEMORY,
                "%s: %" PRIu64 " bytes have no room in the arena: %" PRIu64
                " bytes are free, the largest gap is %" PRIu64,
                what, size, room, largest);
}

enum aule_status metadata_begin(struct life *life, struct vector *vectors, uint32_t num_vectors,
                                uint64_t beside, struct metadata *metadata)
{
    uint64_t size = total_size(vectors, num_vectors);
    *metadata = (struct metadata){.in_arena = false};
    uint64_t room = life_room(life);
    if (beside <= room && size <= room - beside)
        return AULE_OK;
    return place(life, vectors, num_vectors, "metadata too large for a message", metadata);
}

enum aule_status metadata_place(struct life *life, struct vector *vectors, uint32_t num_vectors,
                                const char *what, struct metadata *metadata)
{
    *metadata = (struct metadata){.in_arena = false};
    if (total_size(vectors, num_vectors) == 0)
        return AULE_OK;
    return place(life, vectors, num_vectors, what, metadata);
}

void metadata_finish(struct life *life, struct metadata *metadata)
{
    if (metadata->in_arena)
        arena_free(life->arena, metadata->offset);
}

struct wire_ints vector_ints(const struct vector *vector)
{
    if (vector->span.count > 0)
        return (struct wire_ints){.data = NULL};
    return (struct wire_ints){.data = vector->data, .count = (uint32_t)vector->count};
}

struct wire_longs vector_longs(const struct vector *vector)
{
    if (vector->span.count > 0)
        return (struct wire_longs){.data = NULL};
    return (struct wire_longs){.data = vector->data, .count = (uint32_t)vector->count};
}

struct wire_bytes vector_bytes(const struct vector *vector)
{
    if (vector->span.count > 0)
        return (struct wire_bytes){.data = NULL};
    return (struct wire_bytes){.data = vector->data, .count = (uint32_t)vector->count};
}
