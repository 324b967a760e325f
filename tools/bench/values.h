// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// values.h - pseudo-random elements by their number, so that the check makes them anew instead of
// keeping gigabytes. Uniform from -1 to 1, rounded to the dtype; as bytes of f32, f16, bf16, fp8
// and int8 (there times values_scale()).

#ifndef AULE_BENCH_VALUES_H
#define AULE_BENCH_VALUES_H

#include "schema/status.h"

// Elements [first, first + count) of stream `stream` to `bytes`; first and count are multiples
// of 4.
void values_fill(enum dtype dtype, uint64_t stream, uint64_t first, uint64_t count, void *bytes);
// The same as numbers, with what values_scale() says; a row's own scale is not in them.
void values_read(enum dtype dtype, uint64_t stream, uint64_t first, uint64_t count, float *values);
// What a stored element is multiplied by.
float values_scale(enum dtype dtype);
// The same in row `row` of the stream where each has a scale of its own: head_dim elements from row
// * head_dim on.
float values_row_scale(enum dtype dtype, uint64_t stream, uint64_t row);
// A stored element as a number; no scale.
float values_decode(enum dtype dtype, const void *bytes, uint64_t index);

#endif
