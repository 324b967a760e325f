// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// keep.h - copies the arrays that a struct points to into one allocation. The same list of calls
// measures and copies: first with `place` NULL, then with a place of `size` bytes that is aligned
// to 8. Any thread.

#ifndef AULE_KEEP_H
#define AULE_KEEP_H

#include <stdint.h>
#include <string.h>

struct keeper {
    uint64_t size; // bytes so far
    void *place;   // NULL: only measure
};

// Returns the copy, or `array` while it only measures; NULL if there is nothing. Sizes must add up
// to less than 2^64. `element_size` is a multiple of the element's alignment, which is at most 8.
static inline const void *keep(struct keeper *keeper, const void *array, uint64_t count,
                               uint64_t element_size)
{
    const uint64_t align = element_size % 8 ? element_size & -element_size : 8;
    if (!array || !count)
        return NULL;
    const uint64_t at = (keeper->size + align - 1) / align * align, size = count * element_size;
    keeper->size = at + size;
    return keeper->place ? memcpy((char *)keeper->place + at, array, size) : array;
}

#define KEEP(keeper, array, count) ((array) = keep(keeper, array, count, sizeof *(array)))

#endif
