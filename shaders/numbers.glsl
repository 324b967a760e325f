// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// numbers.glsl - element types: how eight elements are loaded, converted and stored. Knows nothing
// of scales, caches or attention. Conversions are integer code, bit-exact on every device:
// packHalf2x16 may truncate (lavapipe does), and unpackHalf2x16 may flush subnormal f16, which a
// copy must not. Definition of each conversion: tests/oracle/numbers.h.

#ifndef AULE_NUMBERS_GLSL
#define AULE_NUMBERS_GLSL

#include "schema/dtypes.h"

#define X(name, value, text, size, largest) const uint DTYPE_##name = value;
AULE_DTYPE_MAP(X)
#undef X

// Tensors and blocks are read and written only in these units. Eight elements are two units of f32,
// one of a 16-bit type, or one Bytes8.
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Units { uvec4 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Bytes8 { uvec2 bytes; };

// ---- from f32: round to nearest, ties to even ----

// Rounds mantissa / 2^shift. `mantissa` is below 2^24, `shift` is 1 to 25.
uint shift_round(uint mantissa, uint shift)
{
    return mantissa + (1u << shift - 1u) - 1u + (mantissa >> shift & 1u) >> shift;
}

uint mantissa_of(uint magnitude)
{
    return magnitude & 0x7fffffu | 0x800000u;
}

// The magnitude in a format with `digits` bits of mantissa, at most `most`: infinity or the largest
// finite number. All three results are computed and one is selected: a shader contains eight copies
// of this, and branches cost more than arithmetic.
uint narrow(uint bits, uint digits, uint bias, uint most, uint nan)
{
    const uint magnitude = bits & 0x7fffffffu, exponent = magnitude >> 23, dropped = 23u - digits;
    // A carry out of the mantissa raises the exponent.
    const uint round = (1u << dropped - 1u) - 1u + (magnitude >> dropped & 1u);
    const uint normal = magnitude + round - (127u - bias << 23) >> dropped;
    const uint shift =
        clamp(151u - bias - digits - min(exponent, 151u - bias - digits), dropped + 1u, 25u);
    // In units of the format's smallest number.
    const uint subnormal = shift_round(mantissa_of(magnitude), shift);
    uint result = exponent > 127u - bias ? min(normal, most) : subnormal;
    return magnitude > 0x7f800000u ? nan : result;
}

// Overflow gives infinity; NaN stays a (quiet) NaN. The result is in the low 16 bits.
uint half_from_float(uint bits)
{
    return bits >> 16 & 0x8000u | narrow(bits, 10, 15, 0x7c00u, 0x7e00u | bits >> 13 & 0x3ffu);
}

uint bfloat_from_float(uint bits)
{
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return nan ? bits >> 16 | 0x40u : bits + 0x7fffu + (bits >> 16 & 1u) >> 16;
}

// Overflow gives the largest finite number; NaN gives 0x7f. The result is in the low 8 bits.
uint e4m3_from_float(uint bits)
{
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return (nan ? 0u : bits >> 24 & 0x80u) | narrow(bits, 3, 7, 0x7eu, 0x7fu);
}

uint e5m2_from_float(uint bits)
{
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    return (nan ? 0u : bits >> 24 & 0x80u) | narrow(bits, 2, 15, 0x7bu, 0x7fu);
}

// Overflow gives +-127, NaN gives 0. The result is in the low 8 bits.
uint int8_from_float(uint bits)
{
    const uint magnitude = bits & 0x7fffffffu, exponent = magnitude >> 23;
    const uint whole =
        shift_round(mantissa_of(magnitude), clamp(150u - min(exponent, 150u), 16u, 25u));
    uint result = exponent >= 134u ? 127u : min(whole, 127u); // 2^7
    result = magnitude > 0x7f800000u ? 0u : result;
    return (bits >> 31 != 0 ? ~result + 1u : result) & 0xffu;
}

// ---- to f32: exact ----

uint float_from_half(uint bits)
{
    const uint magnitude = bits & 0x7fffu;
    // Times 2^-24, a normal float, so exact.
    const uint subnormal = floatBitsToUint(float(magnitude) * 5.9604644775390625e-8);
    uint result = magnitude >= 0x400u ? (magnitude << 13) + 0x38000000u : subnormal;
    result = magnitude >= 0x7c00u ? 0x7f800000u | magnitude << 13 : result;
    result = magnitude > 0x7c00u ? result | 0x400000u : result; // quiet
    return (bits & 0x8000u) << 16 | result;
}

uint float_from_bfloat(uint bits)
{
    return bits << 16 | ((bits & 0x7fffu) > 0x7f80u ? 0x400000u : 0u);
}

uint float_from_e4m3(uint bits)
{
    const uint magnitude = bits & 0x7fu;
    const uint subnormal = floatBitsToUint(float(magnitude) * 1.953125e-3); // times 2^-9
    uint result = magnitude >= 8u ? (magnitude << 20) + 0x3c000000u : subnormal;
    result = magnitude == 0x7fu ? 0x7ff00000u : result;
    return (bits & 0x80u) << 24 | result;
}

uint float_from_int8(uint bits)
{
    return floatBitsToUint(float(bitfieldExtract(int(bits), 0, 8)));
}

uint narrow16(uint bits, uint dtype)
{
    return dtype == DTYPE_F16 ? half_from_float(bits) : bfloat_from_float(bits);
}

uint widen16(uint bits, uint dtype)
{
    return dtype == DTYPE_F16 ? float_from_half(bits) : float_from_bfloat(bits);
}

uint narrow8(uint bits, uint dtype)
{
    if (dtype == DTYPE_INT8)
        return int8_from_float(bits);
    return dtype == DTYPE_FP8_E4M3 ? e4m3_from_float(bits) : e5m2_from_float(bits);
}

uint widen8(uint bits, uint dtype)
{
    if (dtype == DTYPE_INT8)
        return float_from_int8(bits);
    // e5m2 is the upper byte of an f16
    return dtype == DTYPE_FP8_E4M3 ? float_from_e4m3(bits) : float_from_half(bits << 8);
}

// ---- eight elements in memory ----

// f32: both fields; 16-bit types: `first`; 8-bit types: first.xy. The rest is 0.
struct Oct {
    uvec4 first, second;
};

// `address` is a multiple of 16, or of 8 for 8-bit types.
Oct oct_load(uint64_t address, uint dtype)
{
    if (dtype > DTYPE_BF16)
        return Oct(uvec4(Bytes8(address).bytes, 0, 0), uvec4(0));
    Units units = Units(address);
    return Oct(units.at[0], dtype == DTYPE_F32 ? units.at[1] : uvec4(0));
}

void oct_store(uint64_t address, uint dtype, Oct oct)
{
    if (dtype > DTYPE_BF16) {
        Bytes8(address).bytes = oct.first.xy;
        return;
    }
    Units units = Units(address);
    units.at[0] = oct.first;
    if (dtype == DTYPE_F32)
        units.at[1] = oct.second;
}

uint pair16(uint low, uint high, uint dtype)
{
    return narrow16(low, dtype) | narrow16(high, dtype) << 16;
}

uint quad8(uvec4 f32, uint dtype)
{
    return narrow8(f32.x, dtype) | narrow8(f32.y, dtype) << 8 | narrow8(f32.z, dtype) << 16 |
           narrow8(f32.w, dtype) << 24;
}

Oct oct_narrow(Oct f32, uint dtype)
{
    const uvec4 a = f32.first, b = f32.second;
    if (dtype == DTYPE_F32)
        return f32;
    if (dtype > DTYPE_BF16)
        return Oct(uvec4(quad8(a, dtype), quad8(b, dtype), 0, 0), uvec4(0));
    return Oct(uvec4(pair16(a.x, a.y, dtype), pair16(a.z, a.w, dtype), pair16(b.x, b.y, dtype),
                     pair16(b.z, b.w, dtype)),
               uvec4(0));
}

uvec4 widen_pairs(uvec2 pairs, uint dtype)
{
    return uvec4(widen16(pairs.x & 0xffffu, dtype), widen16(pairs.x >> 16, dtype),
                 widen16(pairs.y & 0xffffu, dtype), widen16(pairs.y >> 16, dtype));
}

uvec4 widen_quad(uint quad, uint dtype)
{
    return uvec4(widen8(quad & 0xffu, dtype), widen8(quad >> 8 & 0xffu, dtype),
                 widen8(quad >> 16 & 0xffu, dtype), widen8(quad >> 24, dtype));
}

Oct oct_widen(Oct oct, uint dtype)
{
    if (dtype == DTYPE_F32)
        return oct;
    if (dtype > DTYPE_BF16)
        return Oct(widen_quad(oct.first.x, dtype), widen_quad(oct.first.y, dtype));
    return Oct(widen_pairs(oct.first.xy, dtype), widen_pairs(oct.first.zw, dtype));
}

// Equal types keep their bits, NaN included.
Oct oct_convert(Oct oct, uint from, uint to)
{
    return from == to ? oct : oct_narrow(oct_widen(oct, from), to);
}

#endif
