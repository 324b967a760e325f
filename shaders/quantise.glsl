// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// quantise.glsl - scales: f32 products and quotients, bit-exact on every device, and the scale of a
// row from its largest magnitude. A device may flush subnormal numbers, and its division may be off
// by 2.5 units. Knows no memory.

#ifndef AULE_QUANTISE_GLSL
#define AULE_QUANTISE_GLSL

#include "numbers.glsl"

// ---- products ----

// Mantissa (24 bits, the highest one set) and exponent of a number that is not 0, infinite or NaN.
ivec2 split(uint magnitude)
{
    const int up = 23 - findMSB(magnitude);
    return up > 0 ? ivec2(magnitude << up, 1 - up) : ivec2(mantissa_of(magnitude), magnitude >> 23);
}

// a * b, rounded to nearest, ties to even; subnormal numbers included.
uint product_exact(uint a, uint b)
{
    const uint sign = (a ^ b) & 0x80000000u, x = a & 0x7fffffffu, y = b & 0x7fffffffu,
               larger = max(x, y);
    if (larger > 0x7f800000u)
        return (x > 0x7f800000u ? a : b) | 0x400000u;
    if (min(x, y) == 0)
        return larger == 0x7f800000u ? 0x7fc00000u : sign;
    if (larger == 0x7f800000u)
        return sign | larger;
    const ivec2 p = split(x), q = split(y);
    const uint64_t whole = uint64_t(p.x) * uint64_t(q.x); // at least 2^46
    const int carry = whole >> 47 != 0 ? 1 : 0, exponent = p.y + q.y - 127 + carry;
    if (exponent >= 255)
        return sign | 0x7f800000u;
    const int shift = min(23 + carry + max(1 - exponent, 0), 60);
    const uint64_t odd = whole >> shift & 1ul;
    const uint mantissa = uint(whole + (1ul << shift - 1) - 1ul + odd >> shift);
    // A carry raises the exponent, up to infinity.
    return sign | (uint(max(exponent, 1) - 1) << 23) + mantissa;
}

// Whether the exponents show that neither factor nor product is subnormal or too large. All devices
// give the same product then.
bool product_plain(uint a, uint b)
{
    const uint x = a >> 23 & 0xffu, y = b >> 23 & 0xffu, sum = x + y;
    const bool plain = x != 0 && x != 0xffu && sum > 128 && sum < 380;
    return (plain || (a & 0x7fffffffu) == 0) && y != 0 && y != 0xffu;
}

uvec4 products(uvec4 values, uint factor)
{
    if (product_plain(values.x, factor) && product_plain(values.y, factor) &&
        product_plain(values.z, factor) && product_plain(values.w, factor))
        return floatBitsToUint(uintBitsToFloat(values) * uintBitsToFloat(factor));
    return uvec4(product_exact(values.x, factor), product_exact(values.y, factor),
                 product_exact(values.z, factor), product_exact(values.w, factor));
}

// `oct` and `factor` are f32, as bits.
Oct oct_scale(Oct oct, uint factor)
{
    return Oct(products(oct.first, factor), products(oct.second, factor));
}

// ---- scales of rows ----

// a / b, rounded to nearest; a, b and the quotient are positive normal numbers.
uint quotient(uint a, uint b)
{
    const uint64_t x = uint64_t(mantissa_of(a)), y = uint64_t(mantissa_of(b));
    const uint borrow = x < y ? 1u : 0u, exponent = (a >> 23) - (b >> 23) + 127u - borrow;
    const uint64_t whole = x << 24 + borrow;
    // 25 digits. A quotient of two numbers of 24 digits is never a tie.
    const uint digits = uint(whole / y);
    const bool rest = uint64_t(digits) * y != whole;
    const uint up = (digits & 1u) != 0 && (rest || (digits & 2u) != 0) ? 1u : 0u;
    return (exponent - 1u << 23) + (digits >> 1) + up;
}

// The largest finite number of an 8-bit type.
float dtype_largest(uint dtype)
{
#define X(name, value, text, size, largest) dtype == value ? float(largest) :
    return AULE_DTYPE_MAP(X) 0.0;
#undef X
}

// Scale and inverse, as bits. Both are +0 for a row that is too small to be scaled.
const uint LEAST_LARGEST = 27u << 23; // 2^-100: quotients by it and of it are normal numbers

uint row_scale(uint largest, uint dtype)
{
    return largest < LEAST_LARGEST ? 0u : quotient(largest, floatBitsToUint(dtype_largest(dtype)));
}

uint row_inverse(uint largest, uint dtype)
{
    return largest < LEAST_LARGEST ? 0u : quotient(floatBitsToUint(dtype_largest(dtype)), largest);
}

// Magnitudes of finite numbers have the order of their bits.
uint larger_finite(uint largest, uvec4 f32)
{
    const uvec4 magnitudes = f32 & 0x7fffffffu;
    const uvec4 finite =
        mix(magnitudes, uvec4(0), greaterThanEqual(magnitudes, uvec4(0x7f800000u)));
    return max(max(largest, max(finite.x, finite.y)), max(finite.z, finite.w));
}

uint oct_largest(uint largest, Oct f32)
{
    return larger_finite(larger_finite(largest, f32.first), f32.second);
}

#endif
