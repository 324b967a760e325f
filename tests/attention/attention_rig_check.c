// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_rig_check.c - the part of attention_rig.h that holds what came out against the oracle.
// Reads the arena only; knows no engine.

#include "attention_rig.h"
#include "oracle/numbers.h"

#include <check.h>
#include <math.h>

double rig_bound(enum dtype dtype)
{
    return dtype == DTYPE_F16 ? 2e-3 : dtype == DTYPE_BF16 ? 1.6e-2 : 1e-5;
}

// What a row must be, and what is asked only if it is not near enough: how far a kernel that is
// right may be from it.
struct wanted {
    const struct rig *rig;
    const struct oracle_params *params;
    uint32_t token, head;
    double out[MAX_HEAD_DIM], lse;
    double doubts[MAX_HEAD_DIM];
    struct oracle_doubt doubt; // out NULL: not asked yet
};

static const struct oracle_doubt *doubt_of(struct wanted *wanted)
{
    if (!wanted->doubt.out) {
        wanted->doubt.out = wanted->doubts;
        if (!wanted->rig->no_doubt)
            ck_assert(oracle_doubt(wanted->params, wanted->token, wanted->head, wanted->out,
                                   wanted->lse, &wanted->doubt));
    }
    return &wanted->doubt;
}

static const char *about(const struct wanted *wanted)
{
    return wanted->rig->about ? wanted->rig->about : "";
}

// Whether `value` is as far from being a number as `wanted`, rounded to the dtype, is.
static bool nonfinite_agrees(enum dtype dtype, double value, double wanted, double bound)
{
    if (isnan(wanted))
        return isnan(value);
    double rounded = numbers_value(dtype, numbers_round(dtype, (float)wanted));
    return isinf(rounded) && (isnan(value) || value == rounded ||
                              fabs(value) >= (double)numbers_largest(dtype) * (1 - bound));
}

static double row_check(const struct attention_batch *batch, const uint8_t *row,
                        struct wanted *wanted)
{
    const struct attention_shape *shape = &batch->problem->shape;
    double largest = shape->io_dtype == DTYPE_F16 ? 0x1p-14 : 1e-30,
           worst = 0; // below, numbers lose their digits
    for (uint32_t d = 0; d < shape->kv.head_dim_v; d++)
        if (isfinite(wanted->out[d]) && fabs(wanted->out[d]) > largest)
            largest = fabs(wanted->out[d]);
    for (uint32_t d = 0; d < shape->kv.head_dim_v; d++) {
        double value = oracle_load(row, shape->io_dtype, d), error = fabs(value - wanted->out[d]);
        bool near = error <= rig_bound(shape->io_dtype) * largest; // not when NaN
        if (nonfinite_agrees(shape->io_dtype, value, wanted->out[d], rig_bound(shape->io_dtype)))
            continue;
        if (!near && !(error <= doubt_of(wanted)->out[d]))
            ck_abort_msg("%stoken %u, head %u, dim %u: %.9g, expected %.9g +- %.2g; the row's "
                         "largest is %.9g, the error %.2g "
                         "of it",
                         about(wanted), wanted->token, wanted->head, d, value, wanted->out[d],
                         wanted->doubts[d], largest, error / largest);
        worst = near && error > worst * largest ? error / largest : worst;
    }
    return worst;
}

static void lse_check(const struct attention_batch *batch, const uint8_t *row,
                      struct wanted *wanted)
{
    double lse = oracle_load(row, DTYPE_F32, wanted->head), expected = wanted->lse,
           error = fabs(lse - expected);
    double bound = batch->problem->shape.io_dtype == DTYPE_F32 ? 1e-4 : 2e-3;
    bool near = isnan(expected)   ? isnan(lse)
                : isinf(expected) ? lse == expected
                                  : error <= bound * fmax(1, fabs(expected));
    if (!near && !(error <= doubt_of(wanted)->lse))
        ck_abort_msg("%stoken %u, head %u: LSE %.9g, expected %.9g +- %.2g", about(wanted),
                     wanted->token, wanted->head, lse, expected, wanted->doubt.lse);
}

double rig_check(struct rig *rig, const struct attention_batch *batch)
{
    const struct attention_shape *shape = &batch->problem->shape;
    const uint8_t *arena = rig->image.bytes;
    struct oracle_params params = attention_batch_oracle(batch, arena);
    double worst = 0;
    for (uint32_t token = 0; token < batch->num_tokens; token++) {
        uint32_t i, seq = attention_batch_seq(batch, token, &i);
        const uint8_t *out = arena + attention_batch_at(batch, &batch->out, seq, i);
        for (uint32_t head = 0; head < shape_heads(shape); head++) {
            struct wanted wanted = {.rig = rig, .params = &params, .token = token, .head = head};
            ck_assert(oracle_row(&params, token, head, wanted.out, &wanted.lse));
            double error = row_check(batch, out + head * batch->out.head_stride, &wanted);
            if (batch->lse.dtype)
                lse_check(batch, arena + attention_batch_lse_at(batch, seq, i), &wanted);
            worst = error > worst ? error : worst;
        }
    }
    return worst;
}
