// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// halves.glsl - elements of 16 bits for matrix units, MATRIX_DTYPE: four elements of 8 bits in one word become four of them in two
// words, a few operations for two at once, every value exact; two floats become one word, rounded. e4m3 comes out as 144 times
// what it is (HALVES_FACTOR): the one number that is none, 480 by its bits, is then beyond what f16 holds and infinite, all others
// are not, and 8 bits of mantissa hold them. Whoever sums them takes an infinite sum for no number: halves_numbers(). Scales are not applied.

#ifndef AULE_HALVES_GLSL
#define AULE_HALVES_GLSL

#include "numbers.glsl"

#include "matrix.glsl"

// What a result is to be multiplied with.
#define HALVES_FACTOR(DTYPE) ((DTYPE) == DTYPE_FP8_E4M3 ? 1.0 / 144 : 1.0)

// Sums of products with such elements.
vec4 halves_numbers(vec4 sums, uint dtype)
{
    if (dtype != DTYPE_FP8_E4M3)
        return sums;
    const uvec4 bits = floatBitsToUint(sums);
    return uintBitsToFloat(mix(bits, uvec4(0x7fc00000u), equal(bits & 0x7fffffffu, uvec4(0x7f800000u))));
}

// Two floats as one word, to the nearest, ties to even; what f16 does not hold becomes infinite. Vulkan promises neither: matrix_probe.comp
// asks for the latter.
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

// Two f16 with two f16 in each, as MATRIX_DTYPE: sums and products that are exact.
#if defined(MATRIX_EMULATED) || defined(MATRIX_BF16)
uint halves_minus(uint words, float value)
{
    const vec2 difference = unpackHalf2x16(words) - value;
    const uvec2 bits = floatBitsToUint(difference);
    return MATRIX_DTYPE == DTYPE_BF16 ? halves_high(bits.x, bits.y) : packHalf2x16(difference);
}

// What is beyond f16 becomes infinite, which packHalf2x16 need not do.
uint halves_times(uint words, float value)
{
    const vec2 product = unpackHalf2x16(words) * value;
    const uvec2 bits = mix(floatBitsToUint(product), floatBitsToUint(product) & 0x80000000u | 0x7f800000u,
                           greaterThan(abs(product), vec2(65504)));
    return MATRIX_DTYPE == DTYPE_BF16 ? halves_high(bits.x, bits.y) : packHalf2x16(uintBitsToFloat(bits));
}
#else
uint halves_minus(uint words, float value)
{
    return packFloat2x16(unpackFloat2x16(words) - float16_t(value));
}

uint halves_times(uint words, float value)
{
    return packFloat2x16(unpackFloat2x16(words) * float16_t(value));
}
#endif

// Bytes 0 and 2 of a word, and bytes 1 and 3. e5m2 is the upper half of an f16. e4m3 has an exponent one bit shorter, and its mantissa
// begins right behind: one bit to the right it is the 256th part of what it is. int8: the last bits of 1024 + 128 + x, a number whose
// mantissa counts ones.
uint halves_even(uint word, uint dtype)
{
    if (dtype == DTYPE_INT8)
        return halves_minus((word & 0x00ff00ffu) ^ 0x64806480u, 1152.0);
    if (dtype == DTYPE_FP8_E5M2)
        return halves_cast((word & 0x00ff00ffu) << 8);
    return halves_times(word << 8 & 0x80008000u | word << 7 & 0x3f803f80u, 36864.0);
}

uint halves_odd(uint word, uint dtype)
{
    if (dtype == DTYPE_INT8)
        return halves_minus((word >> 8 & 0x00ff00ffu) ^ 0x64806480u, 1152.0);
    if (dtype == DTYPE_FP8_E5M2)
        return halves_cast(word & 0xff00ff00u);
    return halves_times(word & 0x80008000u | word >> 1 & 0x3f803f80u, 36864.0);
}

#endif
