// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// halves.glsl - elements of 16 bits for matrix units, MATRIX_DTYPE: four elements of 8 bits in one word become four of them in two
// words, a few operations for two at once, every value exact; two floats become one word, rounded. e4m3 comes out as the 256th part of
// what it is (HALVES_FACTOR), since its exponent then needs no sum. Scales are not applied.

#ifndef AULE_HALVES_GLSL
#define AULE_HALVES_GLSL

#include "numbers.glsl"

#include "matrix.glsl"

// What a result is to be multiplied with.
#define HALVES_FACTOR(DTYPE) ((DTYPE) == DTYPE_FP8_E4M3 ? 256.0 : 1.0)

// Two floats as one word, to the nearest, ties to even.
uint halves_round(vec2 pair)
{
#ifdef MATRIX_EMULATED
    return pair16(floatBitsToUint(pair.x), floatBitsToUint(pair.y), MATRIX_DTYPE);
#else
    return packFloat2x16(f16vec2(pair));
#endif
}

// Two f16, which are bytes or nearly, as MATRIX_DTYPE.
uint halves_cast(uint f16)
{
    const uvec2 bits = floatBitsToUint(unpackHalf2x16(f16)); // lower halves are 0
    return MATRIX_DTYPE == DTYPE_BF16 ? halves_high(bits.x, bits.y) : f16;
}

#if defined(MATRIX_EMULATED) || defined(MATRIX_BF16)
uint halves_minus(uint words, float value)
{
    const vec2 difference = unpackHalf2x16(words) - value;
    const uvec2 bits = floatBitsToUint(difference);
    return MATRIX_DTYPE == DTYPE_BF16 ? halves_high(bits.x, bits.y) : packHalf2x16(difference);
}
#else
uint halves_minus(uint words, float value)
{
    return packFloat2x16(unpackFloat2x16(words) - float16_t(value));
}
#endif

// Bytes in the upper half of each f16. Its exponent is one bit longer, its mantissa begins right behind; 0x7f is no number.
uint e4m3_halves(uint bytes)
{
    const uint nan = (bytes & 0x7f007f00u) + 0x01000100u & 0x80008000u;
    return halves_cast(bytes & 0x80008000u | (bytes & 0x7f007f00u) >> 1 | nan - (nan >> 5));
}

// Bytes in the lower half of each f16: as the last bits of 1024 + 128 + x, a number whose mantissa counts ones.
uint int8_halves(uint bytes)
{
    return halves_minus(bytes ^ 0x64806480u, 1152.0);
}

uvec2 halves_widen(uint word, uint dtype)
{
    if (dtype == DTYPE_INT8)
        return uvec2(int8_halves(word & 0xffu | (word & 0xff00u) << 8),
                     int8_halves(word >> 16 & 0xffu | word >> 8 & 0xff0000u));
    const uvec2 bytes = uvec2((word & 0xffu) << 8 | (word & 0xff00u) << 16, word >> 8 & 0xff00u | word & 0xff000000u);
    return dtype == DTYPE_FP8_E5M2 ? uvec2(halves_cast(bytes.x), halves_cast(bytes.y))
                                   : uvec2(e4m3_halves(bytes.x), e4m3_halves(bytes.y));
}

#endif
