// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// halves.glsl - 16-bit elements (MATRIX_DTYPE) for tensor cores. Four 8-bit elements in a word
// become four elements in two words, two at a time, every value exact; two floats become one word,
// rounded. e4m3 becomes 144 times its value (HALVES_FACTOR). The bit pattern of NaN would be 480;
// times 144 it exceeds f16 and becomes infinite, and no other value does. So users of the sums turn
// an infinite sum into NaN: halves_numbers(). Scales are not applied.

#ifndef AULE_HALVES_GLSL
#define AULE_HALVES_GLSL

#include "numbers.glsl"

#include "matrix.glsl"

// The factor for results of such elements.
#define HALVES_FACTOR(DTYPE) ((DTYPE) == DTYPE_FP8_E4M3 ? 1.0 / 144 : 1.0)

// Turns infinite sums of products with e4m3 elements into NaN.
vec4 halves_numbers(vec4 sums, uint dtype)
{
    if (dtype != DTYPE_FP8_E4M3)
        return sums;
    const uvec4 bits = floatBitsToUint(sums);
    return uintBitsToFloat(
        mix(bits, uvec4(0x7fc00000u), equal(bits & 0x7fffffffu, uvec4(0x7f800000u))));
}

// Two floats as one word, rounded to nearest, ties to even. A number that f16 cannot hold becomes
// infinite. Vulkan promises neither; matrix_probe.comp checks the latter.
uint halves_round(vec2 pair)
{
#ifdef MATRIX_EMULATED
    return pair16(floatBitsToUint(pair.x), floatBitsToUint(pair.y), MATRIX_DTYPE);
#else
    return packFloat2x16(f16vec2(pair));
#endif
}

// Two f16, exact results of bytes, as MATRIX_DTYPE.
uint halves_cast(uint f16)
{
    const uvec2 bits = floatBitsToUint(unpackHalf2x16(f16)); // lower halves are 0
    return MATRIX_DTYPE == DTYPE_BF16 ? halves_high(bits.x, bits.y) : f16;
}

// Subtracts from, or multiplies, two f16 in a word; the result is MATRIX_DTYPE. Both are exact.
#if defined(MATRIX_EMULATED) || defined(MATRIX_BF16)
uint halves_minus(uint words, float value)
{
    const vec2 difference = unpackHalf2x16(words) - value;
    const uvec2 bits = floatBitsToUint(difference);
    return MATRIX_DTYPE == DTYPE_BF16 ? halves_high(bits.x, bits.y) : packHalf2x16(difference);
}

// A product that f16 cannot hold becomes infinite, which packHalf2x16 does not promise.
uint halves_times(uint words, float value)
{
    const vec2 product = unpackHalf2x16(words) * value;
    const uvec2 bits =
        mix(floatBitsToUint(product), floatBitsToUint(product) & 0x80000000u | 0x7f800000u,
            greaterThan(abs(product), vec2(65504)));
    return MATRIX_DTYPE == DTYPE_BF16 ? halves_high(bits.x, bits.y)
                                      : packHalf2x16(uintBitsToFloat(bits));
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

// Bytes 0 and 2 of a word; halves_odd(): bytes 1 and 3. e5m2 is the upper half of an f16. e4m3 has
// one exponent bit less; shifted right by one bit it is an f16 of 1/256 of its value. int8 x
// becomes the low bits of the f16 1024 + 128 + x, whose mantissa counts ones.
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
