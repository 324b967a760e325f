// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// element.c - see element.h. The compiler's _Float16 does the rounding.

#include "element.h"

#include <string.h>

bool element_usable(enum aule_dtype dtype)
{
    return dtype == AULE_F32 || dtype == AULE_F16;
}

void element_store(void *to, const float *from, size_t count, enum aule_dtype dtype)
{
    _Float16 *half = to;
    if (dtype == AULE_F32)
        memcpy(to, from, count * sizeof *from);
    else
        for (size_t i = 0; i < count; i++)
            half[i] = (_Float16)from[i];
}

void element_load(float *to, const void *from, size_t count, enum aule_dtype dtype)
{
    const _Float16 *half = from;
    if (dtype == AULE_F32)
        memcpy(to, from, count * sizeof *to);
    else
        for (size_t i = 0; i < count; i++)
            to[i] = (float)half[i];
}

float element_round(float x, enum aule_dtype dtype)
{
    return dtype == AULE_F32 ? x : (float)(_Float16)x;
}
