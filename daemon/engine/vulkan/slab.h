// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// slab.h - small pieces of memory that the CPU writes and shaders read: batch metadata, work lists,
// address tables. A device may allow only 4096 allocations, and each is slow; so pieces of equal
// size share one. Knows no contents. Any thread.

#ifndef AULE_ENGINE_SLAB_H
#define AULE_ENGINE_SLAB_H

#include "buffer.h"

enum { SLAB_CLASSES = 40 }; // class c has pieces of 256 << c bytes

struct slab;
struct slabs {
    struct device *device;
    pthread_mutex_t lock; // guards by_class, its slabs and num_pieces
    bool lock_made;
    struct slab *by_class[SLAB_CLASSES]; // slabs with room first; owned
    uint32_t num_pieces;                 // in use
};
struct piece {
    struct slab *slab; // NULL: no piece
    uint32_t index;
    uint64_t address; // shader address, a multiple of 256
    void *mapped;     // CPU address; write it from front to back, do not read it
};

enum status slabs_init(struct slabs *slabs, struct device *device, struct error *error);
void slabs_finish(struct slabs *slabs); // takes a zeroed one; frees every piece

// Takes a piece of at least `size` bytes; 0 is allowed. Its contents are undefined. LIMIT and
// NO_MEMORY as buffer_init(). Any thread.
enum status slab_take(struct slabs *slabs, uint64_t size, struct piece *piece, struct error *error);
// The buffer and offset of the piece, for commands that take no address.
VkBuffer slab_buffer(const struct piece *piece, uint64_t *offset);
// Gives a piece back when the GPU has finished with it. Takes a zeroed piece. Any thread.
void slab_give(struct slabs *slabs, struct piece *piece);

#endif
