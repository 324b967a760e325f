// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// stock.c - see stock.h. A region begins at a multiple of PAGES_LARGE and with its header. Objects
// beyond the first `begun` were never given out. AddressSanitizer is told which objects are free.

#include "stock.h"

#include "base/list.h"
#include "base/pages.h"

#include <stdbool.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, size)   ((void)(at), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#endif

enum { LINE = 64 };

// A free object's link.
struct stock_link {
    void *next; // object
};

struct stock_region {
    struct stock_region *prev, *next; // stock->usable or stock->full
    void *free;                       // objects, linked
    uint32_t begun, used;
};
_Static_assert(sizeof(struct stock_region) <= LINE, "objects begin behind the first line");

void stock_init(struct stock *stock, size_t object_bytes, size_t link)
{
    const size_t bytes = (object_bytes + LINE - 1) & -(size_t)LINE,
                 fits = (PAGES_LARGE - LINE) / bytes, count = fits ? fits : 1;
    *stock = (struct stock){
        .object_bytes = bytes,
        .region_bytes = (LINE + count * bytes + PAGES_LARGE - 1) & -PAGES_LARGE,
        .link = link,
        .per_region = (uint32_t)count,
    };
}

static struct stock_link *link_of(const struct stock *stock, void *object)
{
    return (struct stock_link *)((char *)object + stock->link);
}

static char *objects_of(struct stock_region *region)
{
    return (char *)region + LINE;
}

// Only a region's first object may end beyond its first large page, so rounding an object's address
// down finds the region.
static struct stock_region *region_of(void *object)
{
    return (struct stock_region *)(((uintptr_t)object - LINE) & -(uintptr_t)PAGES_LARGE);
}

static struct stock_region *region_create(struct stock *stock)
{
    struct stock_region *region = pages_map(stock->region_bytes, stock->num_regions > 0);
    if (!region)
        return NULL;
    ASAN_POISON_MEMORY_REGION(objects_of(region), stock->region_bytes - LINE);
    stock->num_regions++;
    LIST_PREPEND(stock->usable, region);
    return region;
}

static void region_destroy(struct stock *stock, struct stock_region *region)
{
    ASAN_UNPOISON_MEMORY_REGION(region, stock->region_bytes);
    stock->num_regions--;
    pages_unmap(region, stock->region_bytes);
}

void *stock_take(struct stock *stock)
{
    struct stock_region *region = stock->usable ? stock->usable : region_create(stock);
    if (!region)
        return NULL;
    void *object = region->free;
    const bool fresh = !object;
    if (fresh)
        object = objects_of(region) + region->begun++ * stock->object_bytes;
    ASAN_UNPOISON_MEMORY_REGION(object, stock->object_bytes);
    if (!fresh) {
        region->free = link_of(stock, object)->next;
        memset(object, 0, stock->object_bytes);
    }
    if (++region->used == stock->per_region) {
        LIST_DELETE(stock->usable, region);
        LIST_PREPEND(stock->full, region);
    }
    return object;
}

void stock_give(struct stock *stock, void *object)
{
    if (!object)
        return;
    struct stock_region *region = region_of(object);
    if (region->used-- == stock->per_region) {
        LIST_DELETE(stock->full, region);
        LIST_PREPEND(stock->usable, region);
    }
    if (!region->used && region->prev != region) { // another one has room, too
        LIST_DELETE(stock->usable, region);
        region_destroy(stock, region);
        return;
    }
    link_of(stock, object)->next = region->free;
    region->free = object;
    ASAN_POISON_MEMORY_REGION(object, stock->object_bytes);
}

static void destroy_all(struct stock *stock, struct stock_region *regions)
{
    struct stock_region *region, *next;
    LIST_EACH_SAFE(regions, region, next)
        region_destroy(stock, region);
}

void stock_finish(struct stock *stock)
{
    destroy_all(stock, stock->usable);
    destroy_all(stock, stock->full);
    stock->usable = stock->full = NULL;
}
