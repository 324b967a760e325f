// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tensor.c - see tensor.h. All sums of offsets are made in 128 bits, where none can wrap.

#include "tensor.h"

#include <inttypes.h>

typedef __int128 wide;

// The rows of a tensor: row (t, h) is [offset + t * token_stride + h * head_stride, + row) bytes. Strides that no row needs are 0.
struct rows {
    wide offset, token_stride, head_stride, row;
    wide tokens, heads;
};

static struct rows rows_of(const struct tensor_use *use, uint32_t num_tokens)
{
    const struct core_tensor *t = use->tensor;
    return (struct rows){
        .offset = t->offset,
        .token_stride = num_tokens > 1 ? t->token_stride : 0,
        .head_stride = use->heads > 1 ? t->head_stride : 0,
        .row = (wide)use->head_dim * dtype_size((int)t->dtype),
        .tokens = num_tokens,
        .heads = use->heads,
    };
}

static wide rows_end(const struct rows *r)
{
    return r->offset + (r->tokens - 1) * r->token_stride + (r->heads - 1) * r->head_stride + r->row;
}

// ---- one tensor ----

static enum status check_type(const struct tensor_use *use, const struct tensor_use *first, struct error *error)
{
    const struct core_tensor *t = use->tensor;
    if (t->memory != 0)
        return error_set(error, STATUS_UNSUPPORTED,
                         "%s lies in memory kind %" PRIu32 "; only 0, the arena, is supported", use->name, t->memory);
    if (dtype_size((int)t->dtype) == 0)
        return error_set(error, STATUS_INVALID, "%s has dtype %" PRIu32 ", which is none", use->name, t->dtype);
    if (use->dtype)
        return t->dtype == (uint32_t)use->dtype
                   ? STATUS_OK
                   : error_set(error, STATUS_MISMATCH, "%s is %s; it must be %s", use->name, dtype_name((int)t->dtype),
                               dtype_name((int)use->dtype));
    if (t->dtype != first->tensor->dtype)
        return error_set(error, STATUS_MISMATCH, "%s is %s, but %s is %s", use->name, dtype_name((int)t->dtype),
                         first->name, dtype_name((int)first->tensor->dtype));
    if (t->dtype != DTYPE_F32 && t->dtype != DTYPE_F16)
        return error_set(error, STATUS_UNSUPPORTED, "%s is %s; only f32 and f16 are supported yet", use->name,
                         dtype_name((int)t->dtype));
    return STATUS_OK;
}

static enum status check_place(const struct tensor_use *use, const struct rows *rows, uint64_t arena_size,
                               struct error *error)
{
    const struct core_tensor *t = use->tensor;
    if ((t->offset | t->token_stride | t->head_stride) % 16)
        return error_set(error, STATUS_MISALIGNED,
                         "%s has offset %" PRIu64 ", token stride %" PRIu64 ", head stride %" PRIu64
                         ": each must be a multiple of 16",
                         use->name, t->offset, t->token_stride, t->head_stride);
    if (rows->tokens == 0 || rows_end(rows) <= (wide)arena_size)
        return STATUS_OK;
    return error_set(error, STATUS_OUT_OF_RANGE,
                     "%s at %" PRIu64 " with strides %" PRIu64 " and %" PRIu64 " for %" PRIu32 " tokens and %" PRIu32
                     " heads of %" PRIu32 " bytes ends past the arena's %" PRIu64 " bytes",
                     use->name, t->offset, t->token_stride, t->head_stride, (uint32_t)rows->tokens, use->heads,
                     (uint32_t)rows->row, arena_size);
}

// The engine counts strides in 32 bits: in units of 16 bytes, those of the LSE in its numbers.
static enum status check_strides(const struct tensor_use *use, const struct rows *rows, struct error *error)
{
    uint64_t most = (uint64_t)UINT32_MAX * (use->dtype ? dtype_size((int)use->dtype) : 16);
    wide stride = rows->token_stride > rows->head_stride ? rows->token_stride : rows->head_stride;
    if (stride <= (wide)most)
        return STATUS_OK;
    return error_set(error, STATUS_OUT_OF_RANGE,
                     "%s has a stride of %" PRIu64 " bytes; at most %" PRIu64 " are allowed", use->name,
                     (uint64_t)stride, most);
}

static bool nests(wide inner, wide num_inner, wide outer, wide num_outer, wide row)
{
    return (num_inner < 2 || inner >= row) && (num_outer < 2 || outer >= (num_inner - 1) * inner + row);
}

static bool rows_nest(const struct rows *r)
{
    return nests(r->head_stride, r->heads, r->token_stride, r->tokens, r->row) ||
           nests(r->token_stride, r->tokens, r->head_stride, r->heads, r->row);
}

static enum status check_nested(const struct tensor_use *use, const struct rows *r, struct error *error)
{
    if (r->tokens == 0 || rows_nest(r))
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "%s's rows of %" PRIu32 " bytes overlap: token stride %" PRIu64 ", head stride %" PRIu64,
                     use->name, (uint32_t)r->row, use->tensor->token_stride, use->tensor->head_stride);
}

// ---- two tensors ----

static wide floor_div(wide a, wide b)
{
    return a / b - (a % b < 0);
}

struct axis {
    wide first, last, stride;
};

// Is there an i on the axis with low < at + i * stride < high? Two rows overlap if the distance of their begins is so bounded.
static bool axis_meets(const struct axis *axis, wide at, wide low, wide high)
{
    if (axis->stride == 0)
        return low < at && at < high;
    wide first = floor_div(low - at, axis->stride) + 1, last = -floor_div(-(high - at), axis->stride) - 1;
    first = first > axis->first ? first : axis->first;
    last = last < axis->last ? last : axis->last;
    return first <= last;
}

// The same for the sum of two axes, in steps along the shorter one.
static bool axes_meet(const struct axis *a, const struct axis *b, wide at, wide low, wide high)
{
    if (a->last - a->first > b->last - b->first)
        return axes_meet(b, a, at, low, high);
    for (wide i = a->first; i <= a->last; i++) {
        if (axis_meets(b, at + i * a->stride, low, high))
            return true;
    }
    return false;
}

static bool is_dense(const struct rows *r)
{
    return rows_nest(r) && rows_end(r) - r->offset == r->tokens * r->heads * r->row;
}

// Does some row of `r` overlap [begin, end)?
static bool rows_touch(const struct rows *r, wide begin, wide end)
{
    struct axis tokens = {0, r->tokens - 1, r->token_stride}, heads = {0, r->heads - 1, r->head_stride};
    return axes_meet(&tokens, &heads, r->offset, begin - r->row, end);
}

static bool rows_touch_rows(const struct rows *a, const struct rows *b)
{
    struct axis tokens = {1 - b->tokens, a->tokens - 1, a->token_stride};
    struct axis heads = {1 - b->heads, a->heads - 1, a->heads > 1 ? a->head_stride : b->head_stride};
    return axes_meet(&tokens, &heads, a->offset - b->offset, -a->row, b->row);
}

static bool overlap(const struct rows *out, const struct rows *in)
{
    if (rows_end(out) <= in->offset || rows_end(in) <= out->offset)
        return false;
    bool same_heads = out->heads < 2 || in->heads < 2 || out->head_stride == in->head_stride;
    if (out->token_stride == in->token_stride && same_heads)
        return rows_touch_rows(out, in);
    if (is_dense(out))
        return rows_touch(in, out->offset, rows_end(out));
    return is_dense(in) && rows_touch(out, in->offset, rows_end(in));
}

// Tensor `i` against those before it: one of the two must be written to matter.
static enum status check_apart(const struct tensor_use *uses, uint32_t i, uint32_t num_tokens, struct error *error)
{
    for (uint32_t j = 0; num_tokens && j < i; j++) {
        const struct tensor_use *out = uses[j].written ? &uses[j] : &uses[i];
        const struct tensor_use *other = uses[j].written ? &uses[i] : &uses[j];
        const struct rows a = rows_of(out, num_tokens), b = rows_of(other, num_tokens);
        if (out->written && overlap(&a, &b))
            return error_set(error, STATUS_INVALID, "%s at %" PRIu64 " overlaps %s at %" PRIu64, out->name,
                             out->tensor->offset, other->name, other->tensor->offset);
    }
    return STATUS_OK;
}

enum status tensor_check_run(const struct tensor_use *uses, uint32_t count, uint32_t num_tokens, uint64_t arena_size,
                             struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < count; i++) {
        const struct rows rows = rows_of(&uses[i], num_tokens);
        status = check_type(&uses[i], &uses[0], error);
        if (status == STATUS_OK)
            status = check_place(&uses[i], &rows, arena_size, error);
        if (status == STATUS_OK)
            status = check_strides(&uses[i], &rows, error);
        if (status == STATUS_OK && uses[i].written)
            status = check_nested(&uses[i], &rows, error);
        if (status == STATUS_OK)
            status = check_apart(uses, i, num_tokens, error);
    }
    return status;
}
