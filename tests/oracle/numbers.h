// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// numbers.h - what the bits of each element type mean and how a float becomes them, in float64 on
// the CPU: what shaders and oracle are held against. Knows nothing of tensors or caches. Any
// thread; nothing is kept.
//
// Rounding is to nearest, ties to even. Too large: infinity in f16 and bf16; the largest finite in
// fp8 (448, 57344) and int8 (127), infinities too. NaN: quiet, with sign and the payload's upper
// bits in f16 and bf16; 0x7f in fp8; 0 in int8.

#ifndef AULE_NUMBERS_H
#define AULE_NUMBERS_H

#include "schema/status.h"

double numbers_value(enum dtype dtype, uint32_t bits); // exact; NaN and infinities as such
uint32_t numbers_round(enum dtype dtype, float value); // in the low bits, the others 0
uint32_t numbers_widen(
    enum dtype dtype,
    uint32_t bits); // the f32 of the same value, as bits; NaN quiet, its payload kept
// Equal types keep their bits, else through f32, which is exact on the way there.
uint32_t numbers_convert(enum dtype from, uint32_t bits, enum dtype to);

float numbers_largest(enum dtype dtype); // finite
// The scale of a row of an 8-bit type, and what its values are multiplied by before they are
// rounded: largest magnitude / largest of the type and the reverse, rounded to f32. Infinities and
// NaN do not count; 0 and 0 for a row whose largest is below 2^-100.
void numbers_scale(enum dtype dtype, const float *row, uint32_t count, float *scale,
                   float *inverse);

// Element `index` of an array.
uint32_t numbers_bits(const void *array, enum dtype dtype, uint64_t index);
void numbers_put(void *array, enum dtype dtype, uint64_t index, uint32_t bits);

#endif
