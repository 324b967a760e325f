// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_rig_check.c - the part of attention_rig.h that holds what came out against the oracle. Reads the arena only; knows no engine.

#include "attention_rig.h"

#include <check.h>
#include <math.h>

double rig_bound(enum dtype dtype)
{
    return dtype == DTYPE_F16 ? 2e-3 : dtype == DTYPE_BF16 ? 1.6e-2 : 1e-5;
}

static double row_check(const struct attention_batch *batch, const uint8_t *row, uint32_t token, uint32_t head,
                        const double *expected)
{
    const struct attention_shape *shape = &batch->problem->shape;
    double largest = shape->io_dtype == DTYPE_F16 ? 0x1p-14 : 1e-30, worst = 0; // below, numbers lose their digits
    for (uint32_t d = 0; d < shape->kv.head_dim_v; d++)
        largest = fabs(expected[d]) > largest ? fabs(expected[d]) : largest;
    for (uint32_t d = 0; d < shape->kv.head_dim_v; d++) {
        double value = oracle_load(row, shape->io_dtype, d), error = fabs(value - expected[d]);
        if (!(error <= rig_bound(shape->io_dtype) * largest)) // also when NaN
            ck_abort_msg(
                "token %u, head %u, dim %u: %.9g, expected %.9g; the row's largest is %.9g, the error %.2g of it",
                token, head, d, value, expected[d], largest, error / largest);
        worst = error > worst * largest ? error / largest : worst;
    }
    return worst;
}

static void lse_check(const struct attention_batch *batch, const uint8_t *row, uint32_t token, uint32_t head,
                      double expected)
{
    double lse = oracle_load(row, DTYPE_F32, head), bound = batch->problem->shape.io_dtype == DTYPE_F32 ? 1e-4 : 2e-3;
    bool close = isinf(expected) ? lse == expected : fabs(lse - expected) <= bound * fmax(1, fabs(expected));
    if (!close)
        ck_abort_msg("token %u, head %u: LSE %.9g, expected %.9g", token, head, lse, expected);
}

double rig_check(struct rig *rig, const struct attention_batch *batch)
{
    const struct attention_shape *shape = &batch->problem->shape;
    const uint8_t *arena = rig->image.bytes;
    struct oracle_params params = attention_batch_oracle(batch, arena);
    double expected[MAX_HEAD_DIM], worst = 0, lse;
    for (uint32_t token = 0; token < batch->num_tokens; token++) {
        uint32_t i, seq = attention_batch_seq(batch, token, &i);
        const uint8_t *out = arena + attention_batch_at(batch, &batch->out, seq, i);
        for (uint32_t head = 0; head < shape_heads(shape); head++) {
            ck_assert(oracle_row(&params, token, head, expected, &lse));
            double error = row_check(batch, out + head * batch->out.head_stride, token, head, expected);
            if (batch->lse.dtype)
                lse_check(batch, arena + attention_batch_lse_at(batch, seq, i), token, head, lse);
            worst = error > worst ? error : worst;
        }
    }
    return worst;
}
