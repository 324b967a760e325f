// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// numbers.c - see numbers.h. It uses float64 and one table of formats, so that it shares nothing
// with the shaders' integer code. The numbers of each format, and the middle of two of them, are
// exact in float64. It needs the default rounding mode.

#include "numbers.h"

#include <math.h>
#include <string.h>

struct format {
    uint32_t mantissa_bits, bias;
    uint32_t sign;     // the sign bit
    uint32_t infinity; // its pattern; 0 = the type has none
    uint32_t nan_from; // from here on patterns without the sign are NaN
    float largest;     // finite
    bool saturates;
};

static const struct format formats[] = {
    [DTYPE_F32] = {23, 127, 0x80000000, 0x7f800000, 0x7f800001, 0x1.fffffep127f, false},
    [DTYPE_F16] = {10, 15, 0x8000, 0x7c00, 0x7c01, 65504, false},
    [DTYPE_BF16] = {7, 127, 0x8000, 0x7f80, 0x7f81, 0x1.fep127f, false},
    [DTYPE_FP8_E4M3] = {3, 7, 0x80, 0, 0x7f, 448, true},
    [DTYPE_FP8_E5M2] = {2, 15, 0x80, 0x7c, 0x7d, 57344, true},
    [DTYPE_INT8] = {.largest = 127},
};

static uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

double numbers_value(enum dtype dtype, uint32_t bits)
{
    if (dtype == DTYPE_INT8)
        return (int8_t)(uint8_t)bits;
    const struct format *format = &formats[dtype];
    uint32_t magnitude = bits & (format->sign - 1), exponent = magnitude >> format->mantissa_bits;
    uint32_t hidden = UINT32_C(1) << format->mantissa_bits, mantissa = magnitude & (hidden - 1);
    int unit = 1 - (int)(format->bias + format->mantissa_bits); // unit of subnormal numbers: 2^unit
    double value =
        exponent ? ldexp(hidden + mantissa, unit + (int)exponent - 1) : ldexp(mantissa, unit);
    if (magnitude >= format->nan_from)
        value = NAN;
    else if (format->infinity && magnitude == format->infinity)
        value = INFINITY;
    return bits & format->sign ? -value : value;
}

// Payload and sign, as far as they fit.
static uint32_t round_nan(enum dtype dtype, uint32_t bits)
{
    const struct format *format = &formats[dtype];
    uint32_t sign = bits >> 31 ? format->sign : 0, dropped = 23 - format->mantissa_bits;
    if (dtype == DTYPE_INT8)
        return 0;
    if (dtype == DTYPE_FP8_E4M3 || dtype == DTYPE_FP8_E5M2)
        return 0x7f;
    return sign | format->infinity | UINT32_C(1) << (format->mantissa_bits - 1) |
           (bits & 0x7fffff) >> dropped;
}

static uint32_t encode(const struct format *format, double magnitude)
{
    int least = 1 - (int)format->bias,
        bits = (int)format->mantissa_bits; // the smallest normal number: 2^least
    if (magnitude < ldexp(1, least))
        return (uint32_t)ldexp(magnitude, bits - least);
    int exponent = ilogb(magnitude);
    uint32_t mantissa = (uint32_t)ldexp(magnitude, bits - exponent) - (UINT32_C(1) << bits);
    return (uint32_t)(exponent + (int)format->bias) << bits | mantissa;
}

uint32_t numbers_round(enum dtype dtype, float value)
{
    const struct format *format = &formats[dtype];
    if (dtype == DTYPE_F32)
        return float_bits(value);
    if (isnan(value))
        return round_nan(dtype, float_bits(value));
    if (dtype == DTYPE_INT8)
        return (uint8_t)(int8_t)rint(fmax(fmin((double)value, 127), -127));
    uint32_t sign = signbit(value) ? format->sign : 0;
    double magnitude = fabs((double)value), rounded = magnitude;
    if (!isinf(magnitude) && magnitude != 0) {
        int least = 1 - (int)format->bias, exponent = ilogb(magnitude);
        int unit = (exponent > least ? exponent : least) - (int)format->mantissa_bits;
        rounded = ldexp(rint(ldexp(magnitude, -unit)), unit);
    }
    if (rounded <= (double)format->largest)
        return sign | encode(format, rounded);
    return sign | (format->saturates ? encode(format, (double)format->largest) : format->infinity);
}

uint32_t numbers_widen(enum dtype dtype, uint32_t bits)
{
    const struct format *format = &formats[dtype];
    double value = numbers_value(dtype, bits);
    if (dtype == DTYPE_F32)
        return bits;
    if (!isnan(value))
        return float_bits((float)value);
    uint32_t mantissa = bits & ((UINT32_C(1) << format->mantissa_bits) - 1);
    return (bits & format->sign ? 0x80000000 : 0) | 0x7fc00000 |
           mantissa << (23 - format->mantissa_bits);
}

uint32_t numbers_convert(enum dtype from, uint32_t bits, enum dtype to)
{
    if (from == to)
        return bits;
    uint32_t wide = numbers_widen(from, bits);
    float value;
    memcpy(&value, &wide, sizeof value);
    return numbers_round(to, value);
}

float numbers_largest(enum dtype dtype)
{
    return formats[dtype].largest;
}

void numbers_scale(enum dtype dtype, const float *row, uint32_t count, float *scale, float *inverse)
{
    float largest = 0;
    for (uint32_t i = 0; i < count; i++)
        if (isfinite(row[i]) && fabsf(row[i]) > largest)
            largest = fabsf(row[i]);
    *scale = largest < 0x1p-100f ? 0 : largest / formats[dtype].largest;
    *inverse = largest < 0x1p-100f ? 0 : formats[dtype].largest / largest;
}

uint32_t numbers_bits(const void *array, enum dtype dtype, uint64_t index)
{
    uint32_t size = dtype_size((int)dtype), bits = 0;
    memcpy(&bits, (const char *)array + index * size,
           size); // the low bytes come first here
    return bits;
}

void numbers_put(void *array, enum dtype dtype, uint64_t index, uint32_t bits)
{
    uint32_t size = dtype_size((int)dtype);
    memcpy((char *)array + index * size, &bits, size);
}
