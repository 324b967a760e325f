// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// values.c - see values.h. One hash of a number gives four elements.

#include "values.h"

#include <math.h>
#include <string.h>

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
static uint64_t mixed(uint64_t stream, uint64_t number)
{
    uint64_t x = (stream << 40) + number * 0x9e3779b97f4a7c15u + 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

// From -1 to 1 in steps of 2^-10, which f16 and f32 hold exactly; bf16 rounds.
static float even(uint16_t bits)
{
    return (float)((int)(bits >> 5) - 1024) * 0x1p-10f;
}

static uint16_t bf16_round(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Bytes of all finite magnitudes below 1: a sign, and a magnitude that is less than that of 1.0.
static uint8_t fp8_bits(uint16_t bits, uint8_t one)
{
    return (uint8_t)((bits & 0x80) | (bits >> 8) % one);
}

static void put(enum dtype dtype, uint16_t bits, void *to)
{
    float value = even(bits);
    switch (dtype) {
    case DTYPE_F32: memcpy(to, &value, sizeof value); break;
    case DTYPE_F16: {
        _Float16 narrow = (_Float16)value;
        memcpy(to, &narrow, sizeof narrow);
        break;
    }
    case DTYPE_BF16: {
        uint16_t narrow = bf16_round(value);
        memcpy(to, &narrow, sizeof narrow);
        break;
    }
    case DTYPE_FP8_E4M3: *(uint8_t *)to = fp8_bits(bits, 0x38); break;
    case DTYPE_FP8_E5M2: *(uint8_t *)to = fp8_bits(bits, 0x3c); break;
    case DTYPE_INT8: *(int8_t *)to = (int8_t)((int)(bits >> 8) % 255 - 127); break;
    }
}

void values_fill(enum dtype dtype, uint64_t stream, uint64_t first, uint64_t count, void *bytes)
{
    char *to = bytes;
    uint32_t size = dtype_size(dtype);
    for (uint64_t i = 0; i < count; i += 4) {
        uint64_t bits = mixed(stream, (first + i) / 4);
        for (int j = 0; j < 4; j++, to += size)
            put(dtype, (uint16_t)(bits >> 16 * j), to);
    }
}

static float fp8_value(uint8_t bits, int mantissa_bits, int bias)
{
    int magnitude = bits & 0x7f, exponent = magnitude >> mantissa_bits,
        mantissa = magnitude & ((1 << mantissa_bits) - 1);
    float value =
        exponent ? ldexpf((float)((1 << mantissa_bits) + mantissa), exponent - bias - mantissa_bits)
                 : ldexpf((float)mantissa, 1 - bias - mantissa_bits);
    return bits & 0x80 ? -value : value;
}

float values_decode(enum dtype dtype, const void *bytes, uint64_t index)
{
    const char *at = (const char *)bytes + index * dtype_size(dtype);
    switch (dtype) {
    case DTYPE_F32: {
        float value;
        memcpy(&value, at, sizeof value);
        return value;
    }
    case DTYPE_F16: {
        _Float16 value;
        memcpy(&value, at, sizeof value);
        return (float)value;
    }
    case DTYPE_BF16: {
        uint16_t half;
        memcpy(&half, at, sizeof half);
        uint32_t bits = (uint32_t)half << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    case DTYPE_FP8_E4M3: return fp8_value(*(const uint8_t *)at, 3, 7);
    case DTYPE_FP8_E5M2: return fp8_value(*(const uint8_t *)at, 2, 15);
    case DTYPE_INT8: return *(const int8_t *)at;
    }
    return NAN;
}

float values_scale(enum dtype dtype)
{
    return dtype == DTYPE_INT8 ? 0x1p-7f : 1;
}

bool values_scaled(enum dtype dtype)
{
    return values_scale(dtype) != 1;
}

// Converts `bits` without going through memory, because the check reads billions of them.
static float rounded(uint16_t bits)
{
    uint32_t wide = (uint32_t)bf16_round(even(bits)) << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static void read_floats(enum dtype dtype, uint64_t stream, uint64_t first, uint64_t count,
                        float *values)
{
    for (uint64_t i = 0; i < count; i += 4) {
        uint64_t bits = mixed(stream, (first + i) / 4);
        for (int j = 0; j < 4; j++)
            values[i + (uint64_t)j] = dtype == DTYPE_BF16 ? rounded((uint16_t)(bits >> 16 * j))
                                                          : even((uint16_t)(bits >> 16 * j));
    }
}

static void read_bytes(enum dtype dtype, uint64_t stream, uint64_t first, uint64_t count,
                       float *values)
{
    float all[256];
    for (int i = 0; i < 256; i++) {
        uint8_t bytes[4] = {(uint8_t)i}; // as long as the longest element
        all[i] = values_decode(dtype, bytes, 0) * values_scale(dtype);
    }
    for (uint64_t i = 0; i < count; i += 4) {
        uint8_t four[4];
        values_fill(dtype, stream, first + i, 4, four);
        for (uint64_t j = 0; j < 4; j++)
            values[i + j] = all[four[j]];
    }
}

void values_read(enum dtype dtype, uint64_t stream, uint64_t first, uint64_t count, float *values)
{
    if (dtype_size(dtype) > 1)
        read_floats(dtype, stream, first, count, values);
    else
        read_bytes(dtype, stream, first, count, values);
}
