// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_elements.glsl - loads eight or four consecutive elements as floats, for products. Every
// dtype is exact, except that a subnormal f16 may become zero (unpackHalf2x16 may flush it), which
// products do not notice. Knows no scales and no layout of K and V.

#ifndef AULE_ATTENTION_ELEMENTS_GLSL
#define AULE_ATTENTION_ELEMENTS_GLSL

#include "numbers.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Longs2 {
    u64vec2 at[];
};
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Longs1 {
    uint64_t at[];
};
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Words { uint at[]; };

struct Eight {
    vec4 low, high;
};

vec2 pair_load(uint64_t bits)
{
    return uintBitsToFloat(unpackUint2x32(bits));
}

uint64_t pair_store(float first, float second)
{
    return packUint2x32(floatBitsToUint(vec2(first, second)));
}

vec4 halves_load(uint64_t bits)
{
    const uvec2 words = unpackUint2x32(bits);
    return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
}

vec4 bfloats_load(uint64_t bits)
{
    const uvec2 words = unpackUint2x32(bits);
    return uintBitsToFloat(
        uvec4(words.x << 16, words.x & 0xffff0000u, words.y << 16, words.y & 0xffff0000u));
}

// Magnitude and sign are converted apart. With exponent 0 the unit is 2^-9; 0x7f is NaN.
vec4 e4m3_load(uvec4 bytes)
{
    const uvec4 magnitude = bytes & 0x7fu;
    const uvec4 small = floatBitsToUint(vec4(magnitude) * 1.953125e-3);
    uvec4 bits = mix((magnitude << 20) + 0x3c000000u, small, lessThan(magnitude, uvec4(8)));
    bits = mix(bits, uvec4(0x7fc00000u), equal(magnitude, uvec4(0x7fu)));
    return uintBitsToFloat(bits | (bytes & 0x80u) << 24);
}

// With exponent 0 the unit is 2^-16. 0x7c is infinity, and larger magnitudes are NaN.
vec4 e5m2_load(uvec4 bytes)
{
    const uvec4 magnitude = bytes & 0x7fu;
    const uvec4 small = floatBitsToUint(vec4(magnitude) * 1.52587890625e-5);
    uvec4 bits = mix((magnitude << 21) + 0x38000000u, small, lessThan(magnitude, uvec4(4)));
    bits =
        mix(bits, 0x7f800000u | magnitude - 0x7cu << 22, greaterThanEqual(magnitude, uvec4(0x7cu)));
    return uintBitsToFloat(bits | (bytes & 0x80u) << 24);
}

vec4 bytes_load(uint word, uint dtype)
{
    if (dtype == DTYPE_INT8)
        return vec4(ivec4(bitfieldExtract(int(word), 0, 8), bitfieldExtract(int(word), 8, 8),
                          bitfieldExtract(int(word), 16, 8), bitfieldExtract(int(word), 24, 8)));
    const uvec4 bytes = uvec4(word, word >> 8, word >> 16, word >> 24) & 0xffu;
    return dtype == DTYPE_FP8_E4M3 ? e4m3_load(bytes) : e5m2_load(bytes);
}

// `address` is a multiple of 16, or of 8 for 8-bit dtypes.
Eight eight_load(uint64_t address, uint dtype)
{
    if (dtype == DTYPE_F32) {
        Longs2 longs = Longs2(address);
        const u64vec2 first = longs.at[0], second = longs.at[1];
        return Eight(vec4(pair_load(first.x), pair_load(first.y)),
                     vec4(pair_load(second.x), pair_load(second.y)));
    }
    if (dtype == DTYPE_F16 || dtype == DTYPE_BF16) {
        const u64vec2 bits = Longs2(address).at[0];
        return dtype == DTYPE_F16 ? Eight(halves_load(bits.x), halves_load(bits.y))
                                  : Eight(bfloats_load(bits.x), bfloats_load(bits.y));
    }
    const uvec2 words = unpackUint2x32(Longs1(address).at[0]);
    return Eight(bytes_load(words.x, dtype), bytes_load(words.y, dtype));
}

// `address` is a multiple of the size of four elements.
vec4 four_load(uint64_t address, uint dtype)
{
    if (dtype == DTYPE_F32) {
        const u64vec2 bits = Longs2(address).at[0];
        return vec4(pair_load(bits.x), pair_load(bits.y));
    }
    if (dtype == DTYPE_F16)
        return halves_load(Longs1(address).at[0]);
    if (dtype == DTYPE_BF16)
        return bfloats_load(Longs1(address).at[0]);
    return bytes_load(Words(address).at[0], dtype);
}

// Element `index` of a row of f32, f16 or bf16; `row` is a multiple of 4.
float one_load(uint64_t row, uint index, uint dtype)
{
    if (dtype == DTYPE_F32)
        return uintBitsToFloat(Words(row).at[index]);
    const uint word = Words(row).at[index / 2],
               half_bits = (index & 1) != 0 ? word >> 16 : word & 0xffffu;
    return dtype == DTYPE_F16 ? unpackHalf2x16(half_bits).x : uintBitsToFloat(half_bits << 16);
}

float dot_eight(Eight a, Eight b)
{
    float sum = a.low.x * b.low.x;
    sum = fma(a.low.y, b.low.y, sum);
    sum = fma(a.low.z, b.low.z, sum);
    sum = fma(a.low.w, b.low.w, sum);
    sum = fma(a.high.x, b.high.x, sum);
    sum = fma(a.high.y, b.high.y, sum);
    sum = fma(a.high.z, b.high.z, sum);
    return fma(a.high.w, b.high.w, sum);
}

#endif
