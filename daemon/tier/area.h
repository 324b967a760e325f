// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// area.h - places for blocks in one range of host memory. A place lives while somebody has a
// reference to it, so no memory is used again while a transfer could touch it. Knows no block. No
// lock: the caller has one.

#ifndef AULE_TIER_AREA_H
#define AULE_TIER_AREA_H

#include "base/hash.h"
#include "stored.h"

#include <stdbool.h>

enum { AREA_UNIT = 4096 }; // bytes; places begin at multiples of it

struct area_place {
    UT_hash_handle hh;                        // area->used, by offset, while it is in use
    struct area_place *prev, *next;           // all places, in the order of their offsets
    struct area_place *prev_free, *next_free; // area->free, while it is not in use
    uint64_t offset, bytes;                   // multiples of AREA_UNIT
    uint32_t refs;                            // 0: free
    // [stored_num_parts(bytes)]: of the block that lies here; owned; the caller fills them.
    struct stored_header *headers;
};

struct area {
    uint8_t *base; // lent
    uint64_t size, used_bytes, part_bytes;
    struct area_place *places, *free; // lists; owned
    struct area_place *used;          // a hash table
};

// False: no memory. `size` is at least AREA_UNIT. No place crosses a multiple of `part_bytes`.
// `part_bytes` is itself a multiple of AREA_UNIT; 0 means no parts.
bool area_init(struct area *area, void *base, uint64_t size, uint64_t part_bytes);
void area_finish(struct area *area); // takes a zeroed one
// A place with one reference. NULL: no free range is long enough, or the daemon has no memory.
struct area_place *area_take(struct area *area, uint64_t bytes);
struct area_place *area_find(const struct area *area, const uint8_t *data); // NULL: not in use
void area_ref(struct area_place *place);
void area_unref(struct area *area, struct area_place *place);
static inline uint8_t *area_data(const struct area *area, const struct area_place *place)
{
    return area->base + place->offset;
}

#endif
