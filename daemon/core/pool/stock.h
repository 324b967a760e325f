// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// stock.h - memory for many objects of one size, which begin at multiples of a cache line. They lie
// in regions of one large page or more, because a read of an object that is in no CPU cache would
// also walk the page table. The first region has small pages, so that few objects take little
// memory. A region goes back to the system with its last object, unless no other has room. No lock:
// dispatcher thread only.

#ifndef AULE_CORE_STOCK_H
#define AULE_CORE_STOCK_H

#include <stddef.h>
#include <stdint.h>

struct stock_region;

struct stock {
    size_t object_bytes, region_bytes;
    size_t link;         // of a free object's bytes, those with its link begin here
    uint32_t per_region; // objects
    uint32_t num_regions;
    struct stock_region *usable; // regions with room for an object
    struct stock_region *full;
};

// stock_give() writes 8 bytes of the object, from `link` on, a multiple of 8: best in a line that
// the caller has just used.
void stock_init(struct stock *stock, size_t object_bytes, size_t link);
// A zeroed object. NULL: no memory.
void *stock_take(struct stock *stock);
void stock_give(struct stock *stock, void *object); // takes NULL
void stock_finish(struct stock *stock);             // with all objects

#endif
