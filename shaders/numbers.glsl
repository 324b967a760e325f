// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// numbers.glsl - element types: how eight elements at a 16-byte border are loaded, converted and stored. Knows nothing of
// caches or attention. The conversions are integer code, bit-exact on every device: packHalf2x16 may truncate (lavapipe
// does), and unpackHalf2x16 may flush subnormal halves, which is harmless for a product but not for a copy.

#ifndef AULE_NUMBERS_GLSL
#define AULE_NUMBERS_GLSL

const uint DTYPE_F32 = 1; // status.h, AULE_DTYPE_MAP
const uint DTYPE_F16 = 2;

// 16-byte units, the only way tensors and blocks are touched.
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Units { uvec4 at[]; };

uint dtype_bytes(uint dtype)
{
    return dtype == DTYPE_F32 ? 4 : 2;
}

// The 16-byte units of eight elements.
uint oct_units(uint dtype)
{
    return dtype == DTYPE_F32 ? 2 : 1;
}

// Round to nearest, ties to even; overflow to infinity; NaN stays a (quiet) NaN. Result in the low 16 bits. All three
// answers are computed and one is chosen: eight copies of this stand in a shader, and branches cost more than sums.
uint half_from_float(uint bits)
{
    const uint magnitude = bits & 0x7fffffffu, mantissa = magnitude & 0x7fffffu | 0x800000u;
    // a carry out of the mantissa moves into the exponent, up to infinity
    const uint normal = magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u >> 13;
    const uint shift = clamp(126u - (magnitude >> 23), 14u, 25u); // to units of 2^-24
    const uint subnormal = mantissa + (1u << shift - 1u) - 1u + (mantissa >> shift & 1u) >> shift;
    uint result = magnitude >= 0x38800000u ? normal : subnormal;  // 2^-14
    result = magnitude >= 0x47800000u ? 0x7c00u : result;         // 2^16
    result = magnitude > 0x7f800000u ? 0x7e00u | magnitude >> 13 & 0x3ffu : result;
    return bits >> 16 & 0x8000u | result;
}

uint float_from_half(uint bits)
{
    const uint magnitude = bits & 0x7fffu;
    const uint subnormal = floatBitsToUint(float(magnitude) * 5.9604644775390625e-8); // 2^-24; a normal float, so exact
    uint result = magnitude >= 0x400u ? (magnitude << 13) + 0x38000000u : subnormal;
    result = magnitude >= 0x7c00u ? 0x7f800000u | magnitude << 13 : result;
    result = magnitude > 0x7c00u ? result | 0x400000u : result; // quiet
    return (bits & 0x8000u) << 16 | result;
}

uint half2_from_float2(uint low, uint high)
{
    return half_from_float(low) | half_from_float(high) << 16;
}

// Eight elements as they lie in memory: one unit (f16, `second` unused) or two (f32).
struct Oct {
    uvec4 first, second;
};

Oct oct_load(uint64_t address, uint dtype)
{
    Units units = Units(address);
    return Oct(units.at[0], dtype == DTYPE_F32 ? units.at[1] : uvec4(0));
}

void oct_store(uint64_t address, uint dtype, Oct oct)
{
    Units units = Units(address);
    units.at[0] = oct.first;
    if (dtype == DTYPE_F32)
        units.at[1] = oct.second;
}

Oct oct_narrow(Oct f32)
{
    const uvec4 a = f32.first, b = f32.second;
    return Oct(uvec4(half2_from_float2(a.x, a.y), half2_from_float2(a.z, a.w), half2_from_float2(b.x, b.y),
                     half2_from_float2(b.z, b.w)),
               uvec4(0));
}

uvec2 float2_from_half2(uint pair)
{
    return uvec2(float_from_half(pair & 0xffffu), float_from_half(pair >> 16));
}

Oct oct_widen(Oct f16)
{
    const uvec4 h = f16.first;
    return Oct(uvec4(float2_from_half2(h.x), float2_from_half2(h.y)), uvec4(float2_from_half2(h.z), float2_from_half2(h.w)));
}

// Equal types keep their bits, whatever they mean.
Oct oct_convert(Oct oct, uint from, uint to)
{
    if (from == to)
        return oct;
    return to == DTYPE_F16 ? oct_narrow(oct) : oct_widen(oct);
}

#endif
