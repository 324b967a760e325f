// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// element.c - see element.h. f16 is rounded by the compiler's _Float16, other types by arithmetic
// that is exact in f32. It needs the default rounding mode.

#include "element.h"

#include <math.h>
#include <string.h>

static uint16_t bfloat_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x))
        return (uint16_t)(bits >> 16 | 0x40); // a quiet NaN
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float bfloat_value(uint16_t bfloat)
{
    const uint32_t bits = (uint32_t)bfloat << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

void element_store(void *to, const float *from, size_t count, enum aule_dtype dtype)
{
    _Float16 *half = to;
    uint16_t *bfloat = to;
    if (dtype == AULE_F32)
        memcpy(to, from, count * sizeof *from);
    for (size_t i = 0; dtype == AULE_F16 && i < count; i++)
        half[i] = (_Float16)from[i];
    for (size_t i = 0; dtype == AULE_BF16 && i < count; i++)
        bfloat[i] = bfloat_bits(from[i]);
}

void element_load(float *to, const void *from, size_t count, enum aule_dtype dtype)
{
    const _Float16 *half = from;
    const uint16_t *bfloat = from;
    if (dtype == AULE_F32)
        memcpy(to, from, count * sizeof *to);
    for (size_t i = 0; dtype == AULE_F16 && i < count; i++)
        to[i] = (float)half[i];
    for (size_t i = 0; dtype == AULE_BF16 && i < count; i++)
        to[i] = bfloat_value(bfloat[i]);
}

// The 8-bit floats, by bits of mantissa and exponent of the smallest normal number.
static float round_float8(float x, int digits, int least, float largest)
{
    if (isnan(x) || x == 0)
        return x;
    if (fabsf(x) > largest)
        return copysignf(largest, x);
    const int exponent = ilogbf(x), unit = (exponent > least ? exponent : least) - digits;
    return copysignf(fminf(ldexpf(rintf(ldexpf(fabsf(x), -unit)), unit), largest), x);
}

float element_largest(enum aule_dtype dtype)
{
    return dtype == AULE_INT8 ? 127 : dtype == AULE_FP8_E4M3 ? 448 : 57344;
}

float element_round(float x, enum aule_dtype dtype)
{
    switch (dtype) {
    case AULE_F32: return x;
    case AULE_F16: return (float)(_Float16)x;
    case AULE_BF16: return bfloat_value(bfloat_bits(x));
    case AULE_FP8_E4M3: return round_float8(x, 3, -6, element_largest(dtype));
    case AULE_FP8_E5M2: return round_float8(x, 2, -14, element_largest(dtype));
    case AULE_INT8: return isnan(x) ? 0 : rintf(fmaxf(-127, fminf(x, 127)));
    }
    return NAN;
}

// The magnitude that determines a scale per token and head. Infinities and NaN do not count.
static float largest_finite(const float *row, size_t count)
{
    float largest = 0;
    for (size_t i = 0; i < count; i++)
        if (isfinite(row[i]))
            largest = fmaxf(largest, fabsf(row[i]));
    return largest;
}

void element_keep(float *row, size_t count, const struct element_kv *kv, float scale)
{
    float inverse = 1;
    if (kv->scale_mode == AULE_SCALE_NONE)
        scale = 1;
    if (kv->scale_mode == AULE_SCALE_PER_TENSOR)
        inverse = 1 / scale;
    if (kv->scale_mode == AULE_SCALE_PER_TOKEN_HEAD) {
        const float most = element_largest(kv->dtype), largest = largest_finite(row, count);
        const bool tiny = largest < 0x1p-100f; // such a row is stored as zeroes
        scale = tiny ? 0 : largest / most;
        inverse = tiny ? 0 : most / largest;
    }
    for (size_t i = 0; i < count; i++)
        row[i] = scale * element_round(inverse * row[i], kv->dtype);
}
