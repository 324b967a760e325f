// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ops.c - see ops.h. Sums run in one fixed order. The loops compute independent outputs side by
// side, so that a compiler can use SIMD.

#include "ops.h"

#include <math.h>
#include <string.h>

enum {
    ROWS = 4, // rows that share one pass over the weights
};

static void matmul_rows(float *restrict out, const float *restrict in, const float *restrict weight,
                        size_t rows, size_t ins, size_t outs)
{
    for (size_t i = 0; i < ins; i++) {
        const float *w = weight + i * outs;
        for (size_t row = 0; row < rows; row++) {
            const float x = in[row * ins + i];
            float *o = out + row * outs;
            for (size_t j = 0; j < outs; j++)
                o[j] += x * w[j];
        }
    }
}

void ops_matmul(float *out, const float *in, const float *weight, size_t rows, size_t ins,
                size_t outs, int add)
{
    if (!add)
        memset(out, 0, rows * outs * sizeof *out);
    for (size_t row = 0; row < rows; row += ROWS) {
        size_t count = rows - row < ROWS ? rows - row : ROWS;
        matmul_rows(out + row * outs, in + row * ins, weight, count, ins, outs);
    }
}

void ops_rms_norm(float *out, const float *in, size_t rows, size_t width)
{
    for (size_t row = 0; row < rows; row++, in += width, out += width) {
        double sum = 0;
        for (size_t i = 0; i < width; i++)
            sum += (double)in[i] * in[i];
        const float factor = (float)(1 / sqrt(sum / (double)width + 1e-6));
        for (size_t i = 0; i < width; i++)
            out[i] = in[i] * factor;
    }
}

void ops_rope(float *heads, size_t num_heads, size_t head_dim, size_t position, double theta)
{
    const size_t half = head_dim / 2;
    for (size_t i = 0; i < half; i++) {
        const double angle = (double)position * pow(theta, -2.0 * (double)i / (double)head_dim);
        const float cosine = (float)cos(angle), sine = (float)sin(angle);
        for (size_t head = 0; head < num_heads; head++) {
            float *low = heads + head * head_dim + i, *high = low + half;
            const float a = *low, b = *high;
            *low = a * cosine - b * sine;
            *high = a * sine + b * cosine;
        }
    }
}

void ops_swiglu(float *gate, const float *up, size_t count)
{
    for (size_t i = 0; i < count; i++)
        gate[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
}
