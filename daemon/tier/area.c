// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// area.c - see area.h. First fit; free neighbours become one. With blocks of one size the first
// free place always fits.

#include "area.h"

#include "base/list.h"

#include <stdlib.h>

static struct area_place *place_create(uint64_t offset, uint64_t bytes)
{
    struct area_place *place = calloc(1, sizeof *place);
    if (place) {
        place->offset = offset;
        place->bytes = bytes;
    }
    return place;
}

bool area_init(struct area *area, void *base, uint64_t size, uint64_t part_bytes)
{
    *area = (struct area){.base = base, .size = size / AREA_UNIT * AREA_UNIT};
    area->part_bytes = part_bytes && part_bytes < area->size ? part_bytes : area->size;
    for (uint64_t begin = 0; begin < area->size; begin += area->part_bytes) {
        const uint64_t left = area->size - begin;
        struct area_place *whole =
            place_create(begin, left < area->part_bytes ? left : area->part_bytes);
        if (!whole)
            return false;
        LIST_APPEND(area->places, whole);
        LIST_APPEND_BY(area->free, whole, prev_free, next_free);
    }
    return true;
}

void area_finish(struct area *area)
{
    struct area_place *place, *next;
    HASH_CLEAR(hh, area->used);
    LIST_EACH_SAFE(area->places, place, next) {
        free(place->headers);
        free(place);
    }
    *area = (struct area){0};
}

// Cuts the place, so that it is `bytes` long. False: no memory.
static bool cut(struct area *area, struct area_place *place, uint64_t bytes)
{
    if (place->bytes == bytes)
        return true;
    struct area_place *rest = place_create(place->offset + bytes, place->bytes - bytes);
    if (!rest)
        return false;
    LIST_INSERT(area->places, place, rest);
    LIST_PREPEND_BY(area->free, rest, prev_free, next_free);
    place->bytes = bytes;
    return true;
}

struct area_place *area_take(struct area *area, uint64_t bytes)
{
    struct area_place *place;
    struct stored_header *headers = calloc(stored_num_parts(bytes), sizeof *headers);
    bytes = (bytes + AREA_UNIT - 1) / AREA_UNIT * AREA_UNIT;
    LIST_EACH_BY(area->free, place, next_free) {
        if (place->bytes >= bytes)
            break;
    }
    if (!place || !headers || !cut(area, place, bytes)) {
        free(headers);
        return NULL;
    }
    HASH_ADD(hh, area->used, offset, sizeof place->offset, place);
    if (!HASH_ADDED(place)) {
        free(headers);
        return NULL;
    }
    LIST_DELETE_BY(area->free, place, prev_free, next_free);
    place->refs = 1;
    place->headers = headers;
    area->used_bytes += bytes;
    return place;
}

struct area_place *area_find(const struct area *area, const uint8_t *data)
{
    struct area_place *place;
    const uint64_t offset = (uint64_t)(data - area->base);
    HASH_FIND(hh, area->used, &offset, sizeof offset, place);
    return place;
}

void area_ref(struct area_place *place)
{
    place->refs++;
}

// `behind` becomes a part of `place`, which is before it. Both are free. Places of
// different parts are never joined.
static void unite(struct area *area, struct area_place *place, struct area_place *behind)
{
    if (behind->offset % area->part_bytes == 0)
        return;
    place->bytes += behind->bytes;
    LIST_DELETE_BY(area->free, behind, prev_free, next_free);
    LIST_DELETE(area->places, behind);
    free(behind);
}

void area_unref(struct area *area, struct area_place *place)
{
    if (--place->refs)
        return;
    HASH_DEL(area->used, place);
    free(place->headers);
    place->headers = NULL;
    area->used_bytes -= place->bytes;
    LIST_PREPEND_BY(area->free, place, prev_free, next_free);
    if (place->next && !place->next->refs)
        unite(area, place, place->next);
    if (place != area->places && !place->prev->refs)
        unite(area, place->prev, place);
}
