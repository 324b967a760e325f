// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// numbers.h - the meaning of the bits of each element type, and the conversion from float, in
// float64 on the CPU. Shaders and oracle are compared with it. It knows no tensors or caches. Any
// thread; no state. Rounding is to nearest, ties to even. Too large: infinity in f16 and bf16; the
// largest finite number in fp8 (448, 57344) and int8 (127), also for infinities. NaN: quiet, with
// sign and the payload's upper bits in f16 and bf16; 0x7f in fp8; 0 in int8.

#ifndef AULE_NUMBERS_H
#define AULE_NUMBERS_H

#include "schema/status.h"

double numbers_value(enum dtype dtype, uint32_t bits); // exact; NaN and infinities as such
uint32_t numbers_round(enum dtype dtype, float value); // in the low bits; the others are 0
uint32_t numbers_widen(
    enum dtype dtype,
    uint32_t bits); // the f32 of the same value, as bits; a NaN becomes quiet and keeps its payload
// Equal types keep their bits; others go through f32, which is exact for the source.
uint32_t numbers_convert(enum dtype from, uint32_t bits, enum dtype to);

float numbers_largest(enum dtype dtype); // the largest finite number
// The scale of a row of an 8-bit type, and its inverse: largest magnitude / largest number of the
// type, and the reverse, rounded to f32. The row is multiplied by the inverse before it is rounded.
// Infinities and NaN do not count. 0 and 0 if the largest magnitude is below 2^-100.
void numbers_scale(enum dtype dtype, const float *row, uint32_t count, float *scale,
                   float *inverse);

// Element `index` of an array.
uint32_t numbers_bits(const void *array, enum dtype dtype, uint64_t index);
void numbers_put(void *array, enum dtype dtype, uint64_t index, uint32_t bits);

#endif
