// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// arena.c - a best-fit allocator of offsets. Its bookkeeping lies in this process's own memory, not
// in the shared segment. So a tensor written past its end damages its neighbours, but not the
// allocator. An allocation searches all gaps, which are few because tensors live long. A free finds
// its span by hash and joins neighbouring gaps. One mutex.

#include "arena.h"

#include "base/list.h"
#include "error.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

struct span {
    uint64_t offset, size;            // bytes
    struct span *prev, *next;         // all spans, in order of offset: they tile the arena
    struct span *gap_prev, *gap_next; // the gaps, in no order
    bool gap;
    UT_hash_handle hh; // allocations, by offset
};

struct arena {
    pthread_mutex_t mutex; // guards the rest
    struct span *spans, *gaps, *allocations;
    uint64_t free_bytes;
};

static void gap_add(struct arena *arena, struct span *span)
{
    span->gap = true;
    LIST_APPEND_BY(arena->gaps, span, gap_prev, gap_next);
    arena->free_bytes += span->size;
}

static void gap_remove(struct arena *arena, struct span *span)
{
    span->gap = false;
    LIST_DELETE_BY(arena->gaps, span, gap_prev, gap_next);
    arena->free_bytes -= span->size;
}

// False: no memory; the span is not in the table.
static bool allocation_add(struct arena *arena, struct span *span)
{
    HASH_ADD(hh, arena->allocations, offset, sizeof span->offset, span);
    return span->hh.tbl != NULL;
}

enum aule_status arena_create(uint64_t size, struct arena **out)
{
    struct arena *arena = calloc(1, sizeof *arena);
    struct span *span = calloc(1, sizeof *span);
    if (!arena || !span) {
        free(arena);
        free(span);
        return fail(AULE_NO_MEMORY, "no memory for the arena's bookkeeping");
    }
    pthread_mutex_init(&arena->mutex, NULL);
    span->size = size / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
    LIST_APPEND(arena->spans, span);
    gap_add(arena, span);
    *out = arena;
    return AULE_OK;
}

void arena_destroy(struct arena *arena)
{
    if (!arena)
        return;
    // Another thread may have held the mutex at a fork. Its child then keeps the bookkeeping, which
    // is small.
    if (pthread_mutex_trylock(&arena->mutex) != 0)
        return;
    HASH_CLEAR(hh, arena->allocations);
    struct span *span, *next;
    LIST_EACH_SAFE(arena->spans, span, next)
        free(span);
    pthread_mutex_unlock(&arena->mutex);
    pthread_mutex_destroy(&arena->mutex);
    free(arena);
}

static struct span *best_gap(struct arena *arena, uint64_t size)
{
    struct span *best = NULL, *gap;
    for (gap = arena->gaps; gap; gap = gap->gap_next)
        if (gap->size >= size && (!best || gap->size < best->size))
            best = gap;
    return best;
}

static uint64_t largest_gap(const struct arena *arena)
{
    uint64_t largest = 0;
    for (const struct span *gap = arena->gaps; gap; gap = gap->gap_next)
        largest = gap->size > largest ? gap->size : largest;
    return largest;
}

// Cuts `size` bytes off the front of a gap. False: no memory, and nothing has changed.
static bool take(struct arena *arena, struct span *gap, uint64_t size)
{
    struct span *rest = NULL;
    if (gap->size > size && !(rest = calloc(1, sizeof *rest)))
        return false;
    gap_remove(arena, gap);
    if (!allocation_add(arena, gap)) {
        gap_add(arena, gap);
        free(rest);
        return false;
    }
    if (rest) {
        *rest = (struct span){.offset = gap->offset + size, .size = gap->size - size};
        gap->size = size;
        LIST_INSERT(arena->spans, gap, rest);
        gap_add(arena, rest);
    }
    return true;
}

static enum aule_status alloc_locked(struct arena *arena, uint64_t size, uint64_t *offset)
{
    uint64_t grains = size / ARENA_ALIGNMENT + (size % ARENA_ALIGNMENT != 0);
    struct span *gap =
        grains <= UINT64_MAX / ARENA_ALIGNMENT ? best_gap(arena, grains * ARENA_ALIGNMENT) : NULL;
    if (!gap)
        return fail(AULE_NO_MEMORY,
                    "the arena has no %" PRIu64 " bytes in one piece: %" PRIu64
                    " are free, the largest gap is %" PRIu64,
                    size, arena->free_bytes, largest_gap(arena));
    if (!take(arena, gap, grains * ARENA_ALIGNMENT))
        return fail(AULE_NO_MEMORY, "no memory for the arena's bookkeeping");
    *offset = gap->offset;
    return AULE_OK;
}

enum aule_status arena_alloc(struct arena *arena, uint64_t size, uint64_t *offset)
{
    if (size == 0)
        return fail(AULE_INVALID, "an allocation of 0 bytes");
    pthread_mutex_lock(&arena->mutex);
    enum aule_status status = alloc_locked(arena, size, offset);
    pthread_mutex_unlock(&arena->mutex);
    return status;
}

// Makes one gap of `span` and the span after it, which are both gaps.
static void join(struct arena *arena, struct span *span)
{
    struct span *next = span->next;
    gap_remove(arena, span);
    gap_remove(arena, next);
    span->size += next->size;
    LIST_DELETE(arena->spans, next);
    free(next);
    gap_add(arena, span);
}

static void release(struct arena *arena, struct span *span)
{
    HASH_DELETE(hh, arena->allocations, span);
    gap_add(arena, span);
    if (span->next && span->next->gap)
        join(arena, span);
    if (span != arena->spans && span->prev->gap)
        join(arena, span->prev);
}

enum aule_status arena_free(struct arena *arena, uint64_t offset)
{
    struct span *span;
    pthread_mutex_lock(&arena->mutex);
    HASH_FIND(hh, arena->allocations, &offset, sizeof offset, span);
    if (span)
        release(arena, span);
    pthread_mutex_unlock(&arena->mutex);
    return span ? AULE_OK
                : fail(AULE_NOT_FOUND, "no allocation begins at offset %" PRIu64 " of the arena",
                       offset);
}

void arena_room(struct arena *arena, uint64_t *free_bytes, uint64_t *largest)
{
    pthread_mutex_lock(&arena->mutex);
    *free_bytes = arena->free_bytes;
    *largest = largest_gap(arena);
    pthread_mutex_unlock(&arena->mutex);
}
