// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// slab.c - size classes of powers of two, each a list of slabs of equal pieces. The last empty slab
// of a class is kept, so steps that come and go allocate nothing, and memory stays flat. Any
// thread.

#include "slab.h"

#include "base/list.h"

#include <stdio.h>
#include <stdlib.h>

static const uint64_t smallest_piece = 256;
static const uint64_t smallest_slab = UINT64_C(1) << 20;
// Bytes; an empty slab of larger pieces is freed immediately.
static const uint64_t largest_kept = UINT64_C(4) << 20;

struct slab {
    struct buffer buffer;
    uint32_t level, num_pieces, num_free;
    struct slab *prev, *next;
    uint32_t free[]; // stack of num_free piece numbers
};

static uint64_t class_bytes(uint32_t level)
{
    return smallest_piece << level;
}

static uint32_t class_of(uint64_t size)
{
    uint32_t level = 0;
    while (level + 1 < SLAB_CLASSES && class_bytes(level) < size)
        level++;
    return level;
}

enum status slabs_init(struct slabs *slabs, struct device *device, struct error *error)
{
    *slabs = (struct slabs){.device = device};
    if (pthread_mutex_init(&slabs->lock, NULL) != 0)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a lock");
    slabs->lock_made = true;
    return STATUS_OK;
}

static void slab_destroy(struct slabs *slabs, struct slab *slab)
{
    buffer_finish(slabs->device, &slab->buffer);
    free(slab);
}

void slabs_finish(struct slabs *slabs)
{
    for (uint32_t level = 0; level < SLAB_CLASSES; level++) {
        struct slab *slab, *next;
        LIST_EACH_SAFE(slabs->by_class[level], slab, next)
            slab_destroy(slabs, slab);
        slabs->by_class[level] = NULL;
    }
    if (slabs->lock_made)
        pthread_mutex_destroy(&slabs->lock);
    slabs->lock_made = false;
}

static enum status slab_create(struct slabs *slabs, uint32_t level, struct slab **out,
                               struct error *error)
{
    uint64_t bytes = class_bytes(level) > smallest_slab ? class_bytes(level) : smallest_slab;
    uint32_t num_pieces = (uint32_t)(bytes / class_bytes(level));
    struct slab *slab = calloc(1, sizeof *slab + num_pieces * sizeof *slab->free);
    if (!slab)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a slab of %u pieces", num_pieces);
    char name[64];
    snprintf(name, sizeof name, "metadata, pieces of %llu", (unsigned long long)class_bytes(level));
    enum status status =
        buffer_init(slabs->device, MEMORY_METADATA, bytes, name, &slab->buffer, error);
    if (status != STATUS_OK) {
        free(slab);
        return status;
    }
    slab->level = level;
    slab->num_pieces = slab->num_free = num_pieces;
    for (uint32_t i = 0; i < num_pieces; i++)
        slab->free[i] = num_pieces - 1 - i;
    *out = slab;
    return STATUS_OK;
}

enum status slab_take(struct slabs *slabs, uint64_t size, struct piece *piece, struct error *error)
{
    *piece = (struct piece){0};
    uint32_t level = class_of(size);
    struct slab **list = &slabs->by_class[level];
    enum status status = STATUS_OK;
    pthread_mutex_lock(&slabs->lock);
    if (!*list || (*list)->num_free == 0) {
        struct slab *fresh = NULL;
        // An allocation is slow, so it is made without the lock. If two threads make a slab, both
        // get used in turn.
        pthread_mutex_unlock(&slabs->lock);
        status = slab_create(slabs, level, &fresh, error);
        pthread_mutex_lock(&slabs->lock);
        if (status == STATUS_OK)
            LIST_PREPEND(*list, fresh);
    }
    if (status == STATUS_OK) {
        struct slab *slab = *list;
        uint32_t index = slab->free[--slab->num_free];
        slabs->num_pieces++;
        uint64_t offset = index * class_bytes(level);
        *piece = (struct piece){slab, index, slab->buffer.address + offset,
                                (char *)slab->buffer.mapped + offset};
        if (slab->num_free == 0 && slab->next) { // slabs with room stay in front
            LIST_DELETE(*list, slab);
            LIST_APPEND(*list, slab);
        }
    }
    pthread_mutex_unlock(&slabs->lock);
    return status;
}

// Whether an empty slab may be freed: another one of its class has room, or its pieces are large.
static bool is_surplus(const struct slabs *slabs, const struct slab *slab)
{
    const struct slab *first = slabs->by_class[slab->level];
    const struct slab *other = first == slab ? slab->next : first;
    return class_bytes(slab->level) > largest_kept || (other && other->num_free > 0);
}

VkBuffer slab_buffer(const struct piece *piece, uint64_t *offset)
{
    *offset = piece->address - piece->slab->buffer.address;
    return piece->slab->buffer.handle;
}

void slab_give(struct slabs *slabs, struct piece *piece)
{
    struct slab *slab = piece->slab;
    if (!slab)
        return;
    pthread_mutex_lock(&slabs->lock);
    struct slab **list = &slabs->by_class[slab->level];
    slab->free[slab->num_free++] = piece->index;
    slabs->num_pieces--;
    LIST_DELETE(*list, slab);
    LIST_PREPEND(*list, slab);
    bool surplus = slab->num_free == slab->num_pieces && is_surplus(slabs, slab);
    if (surplus)
        LIST_DELETE(*list, slab);
    pthread_mutex_unlock(&slabs->lock);
    if (surplus)
        slab_destroy(slabs, slab);
    *piece = (struct piece){0};
}
