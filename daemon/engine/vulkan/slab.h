// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// slab.h - small pieces of memory that the CPU writes and shaders read: batch metadata, work lists,
// address tables. A device may allow only 4096 allocations in all, and each takes long; so pieces
// of one size share an allocation.

#ifndef AULE_ENGINE_SLAB_H
#define AULE_ENGINE_SLAB_H

#include "buffer.h"

enum { SLAB_CLASSES = 40 }; // class c holds pieces of 256 << c bytes: more than any allocation

struct slab;
struct slabs {
    struct device *device;
    pthread_mutex_t lock; // guards by_class and what hangs from it
    bool lock_made;
    struct slab *by_class[SLAB_CLASSES]; // those with room first; owned
    uint32_t num_pieces;                 // handed out
};
struct piece {
    struct slab *slab; // NULL: no piece
    uint32_t index;
    uint64_t address; // for shaders, a multiple of 256
    void *mapped;     // for the CPU; best written from front to back and never read
};

enum status slabs_init(struct slabs *slabs, struct device *device, struct error *error);
void slabs_finish(struct slabs *slabs); // takes a zeroed one; frees every piece

// Any thread. Contents are undefined. LIMIT and NO_MEMORY as buffer_init(). size 0 gives a piece
// too.
enum status slab_take(struct slabs *slabs, uint64_t size, struct piece *piece, struct error *error);
// Where the piece lies, for commands that take no address.
VkBuffer slab_buffer(const struct piece *piece, uint64_t *offset);
void slab_give(struct slabs *slabs, struct piece *piece); // takes a zeroed one; the GPU is past it

#endif
