// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// caller.c - see caller.h.

#include "caller.h"

#include "error.h"

#include <string.h>

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

void caller_give(void *to, size_t size, const void *whole, size_t whole_size)
{
    size_t common = smaller(size, whole_size);
    memcpy(to, whole, common);
    memset((char *)to + common, 0, size - common);
}

enum aule_status caller_take(void *whole, size_t whole_size, const void *from, size_t size,
                             const char *name)
{
    size_t common = smaller(size, whole_size);
    for (size_t i = common; i < size; i++)
        if (((const char *)from)[i])
            return fail(AULE_UNSUPPORTED,
                        "%s: byte %zu of %zu is set, but this library (%s) knows only the first "
                        "%zu; it is too old",
                        name, i, size, aule_version(), common);
    memcpy(whole, from, common);
    memset((char *)whole + common, 0, whole_size - common);
    return AULE_OK;
}
