// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// element.h - rows of floats to and from the element types that this worker can use: f32 and f16. Rounds to nearest even.

#ifndef WORKER_ELEMENT_H
#define WORKER_ELEMENT_H

#include "aule/aule.h"

// False for a dtype that this worker cannot use.
bool element_usable(enum aule_dtype dtype);

// count elements; dtype must be usable.
void element_store(void *to, const float *from, size_t count, enum aule_dtype dtype);
void element_load(float *to, const void *from, size_t count, enum aule_dtype dtype);

// What is left of x after it was stored as dtype.
float element_round(float x, enum aule_dtype dtype);

#endif
