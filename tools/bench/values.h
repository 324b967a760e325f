// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// values.h - pseudo-random elements by their number, so that the check can compute them again
// instead of keeping gigabytes. Uniform from -1 to 1, rounded to the dtype; as bytes of f32, f16,
// bf16, fp8 and int8 (int8 is scaled by values_scale()).

#ifndef AULE_BENCH_VALUES_H
#define AULE_BENCH_VALUES_H

#include "schema/status.h"

// Writes elements [first, first + count) of stream `stream` to `bytes`; first and count are
// multiples of 4.
void values_fill(enum dtype dtype, uint64_t stream, uint64_t first, uint64_t count, void *bytes);
// The same as numbers, multiplied by values_scale().
void values_read(enum dtype dtype, uint64_t stream, uint64_t first, uint64_t count, float *values);
// The factor of a stored element; whether it is not 1.
float values_scale(enum dtype dtype);
bool values_scaled(enum dtype dtype);
// A stored element as a number, without a scale.
float values_decode(enum dtype dtype, const void *bytes, uint64_t index);

#endif
