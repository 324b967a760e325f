// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// baseline_attend.c - see baseline_attend.h. It goes through the keys in blocks. A block of K and V
// is widened to f32 once for all rows, and its scores form a small matrix. Each row keeps a running
// maximum (Milakov, Gimelshein 2018). Loops are laid out for the vectoriser.

#include "baseline_attend.h"

#include <math.h>
#include <string.h>

enum { ROWS = BASELINE_ROWS, KEYS = BASELINE_KEYS };

// For finite numbers only. A product moves f16's exponent by 112, which is exact, for subnormal
// numbers too.
static void widen(const uint16_t *from, float *to, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)(from[i] & 0x7fff) << 13, sign = (uint32_t)(from[i] & 0x8000)
                                                                   << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        value *= 0x1p112f;
        memcpy(&bits, &value, sizeof bits);
        bits |= sign;
        memcpy(&to[i], &bits, sizeof bits);
    }
}

// Rounds to nearest, ties to even; below f16's normal numbers to multiples of 2^-24.
static uint16_t narrow(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits < 0x38800000)
        return (uint16_t)(sign | (uint16_t)lrintf(fabsf(value) * 0x1p24f));
    bits += 0xfff + (bits >> 13 & 1);
    return (uint16_t)(sign | (bits - 0x38000000) >> 13);
}

// Buffers for one block of keys. k is transposed: [dim, KEYS].
struct work {
    float *q, *out, *k, *v; // [ROWS, dim], [ROWS, dim], [dim, KEYS], [KEYS, dim]
    float score[KEYS];
    float maximum[ROWS], sum[ROWS];
    uint32_t dim;
};

uint64_t baseline_floats(uint32_t dim)
{
    return (uint64_t)dim * (2 * ROWS + 3 * KEYS);
}

static void turn(const float *restrict from, float *restrict to, uint32_t dim)
{
    for (uint32_t j = 0; j < KEYS; j++)
        for (uint32_t d = 0; d < dim; d++)
            to[d * KEYS + j] = from[j * dim + d];
}

static void load(struct work *w, const struct baseline_tile *tile, uint32_t first, uint32_t count,
                 float *scratch)
{
    memset(scratch, 0, sizeof(float) * KEYS * w->dim);
    widen(tile->k + (uint64_t)first * w->dim, scratch, count * w->dim);
    turn(scratch, w->k, w->dim);
    widen(tile->v + (uint64_t)first * w->dim, w->v, count * w->dim);
}

static void score_row(struct work *w, const float *restrict q)
{
    float sums[KEYS] = {0};
    for (uint32_t d = 0; d < w->dim; d++)
        for (uint32_t j = 0; j < KEYS; j++)
            sums[j] += q[d] * w->k[d * KEYS + j];
    memcpy(w->score, sums, sizeof sums);
}

// Scores of `count` keys become weights. If the maximum rises, the row's sums are scaled down.
static void weigh_row(struct work *w, uint32_t row, uint32_t count)
{
    float maximum = w->maximum[row], *out = w->out + (uint64_t)row * w->dim, sum = 0;
    for (uint32_t j = 0; j < count; j++)
        maximum = w->score[j] > maximum ? w->score[j] : maximum;
    if (maximum > w->maximum[row]) {
        float keep = expf(w->maximum[row] - maximum);
        w->sum[row] *= keep;
        for (uint32_t d = 0; d < w->dim; d++)
            out[d] *= keep;
        w->maximum[row] = maximum;
    }
    for (uint32_t j = count; j < KEYS; j++)
        w->score[j] = -1e30f;
    for (uint32_t j = 0; j < KEYS; j++) {
        w->score[j] = expf(w->score[j] - maximum);
        sum += w->score[j];
    }
    w->sum[row] += sum;
}

// Four keys at a time, so that `out` is loaded and stored less often.
static void add_row(struct work *w, uint32_t row, uint32_t count)
{
    float *restrict out = w->out + (uint64_t)row * w->dim;
    for (uint32_t j = 0; j < count; j += 4) {
        const float *v = w->v + (uint64_t)j * w->dim, *p = w->score + j;
        for (uint32_t d = 0; d < w->dim; d++)
            out[d] += p[0] * v[d] + p[1] * v[w->dim + d] + p[2] * v[2 * w->dim + d] +
                      p[3] * v[3 * w->dim + d];
    }
}

static void begin(struct work *w, const struct baseline_tile *tile)
{
    for (uint32_t r = 0; r < tile->num_rows; r++) {
        float *q = w->q + (uint64_t)r * w->dim;
        widen(tile->q[r], q, w->dim);
        for (uint32_t d = 0; d < w->dim; d++)
            q[d] *= tile->scale;
        w->maximum[r] = -1e30f;
        w->sum[r] = 0;
    }
    memset(w->out, 0, sizeof(float) * ROWS * w->dim);
    memset(w->v, 0, sizeof(float) * KEYS * w->dim);
}

void baseline_attend(const struct baseline_tile *tile)
{
    uint32_t dim = tile->dim;
    float *memory = tile->memory, *scratch = memory + (uint64_t)dim * (2 * ROWS + 2 * KEYS);
    struct work w = {.q = memory,
                     .out = memory + (uint64_t)dim * ROWS,
                     .k = memory + (uint64_t)dim * 2 * ROWS,
                     .v = memory + (uint64_t)dim * (2 * ROWS + KEYS),
                     .dim = dim};
    begin(&w, tile);
    for (uint32_t first = 0; first < tile->seen[tile->num_rows - 1]; first += KEYS) {
        uint32_t left = tile->seen[tile->num_rows - 1] - first;
        load(&w, tile, first, left < KEYS ? left : KEYS, scratch);
        for (uint32_t r = 0; r < tile->num_rows; r++) {
            if (tile->seen[r] <= first)
                continue;
            uint32_t count = tile->seen[r] - first < KEYS ? tile->seen[r] - first : KEYS;
            score_row(&w, w.q + (uint64_t)r * dim);
            weigh_row(&w, r, count);
            add_row(&w, r, count);
        }
    }
    for (uint32_t r = 0; r < tile->num_rows; r++)
        for (uint32_t d = 0; d < dim; d++)
            tile->out[r][d] = narrow(w.out[(uint64_t)r * dim + d] / w.sum[r]);
}
