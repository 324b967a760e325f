// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tensor.c - see tensor.h. Sums of offsets have 128 bits, so that none can wrap.

#include "tensor.h"

#include <inttypes.h>
#include <stdio.h>

typedef __int128 wide;

// Rows of `row` bytes in up to three dimensions: row (o, t, h) begins at offset + the sum of index
// times stride. Strides that no row needs are 0.
enum { OUTER, TOKEN, HEAD, DIMENSIONS };
struct rows {
    wide offset, row;
    wide layers, layer; // how many times all that, each so many bytes behind the one before
    wide counts[DIMENSIONS], strides[DIMENSIONS];
};

static struct rows rows_of(const struct tensor_use *use, uint32_t num_layers)
{
    const struct wire_tensor *t = use->tensor;
    struct rows rows = {
        .offset = t->offset,
        .row = (wide)use->head_dim * dtype_size((int)t->dtype),
        .layers = num_layers ? num_layers : 1,
        .layer = num_layers > 1 ? use->layer_stride : 0,
        .counts = {use->num_outer, use->num_tokens, use->heads},
        .strides = {t->outer_stride, t->token_stride, t->head_stride},
    };
    for (int d = 0; d < DIMENSIONS; d++)
        rows.strides[d] = rows.counts[d] > 1 ? rows.strides[d] : 0;
    return rows;
}

static wide num_rows(const struct rows *r)
{
    return r->counts[OUTER] * r->counts[TOKEN] * r->counts[HEAD];
}

static wide rows_end(const struct rows *r)
{
    wide end = r->offset + r->row;
    for (int d = 0; d < DIMENSIONS; d++)
        end += (r->counts[d] - 1) * r->strides[d];
    return end;
}

// The end of the last layer's tensor.
static wide layers_end(const struct rows *r)
{
    return rows_end(r) + (r->layers - 1) * r->layer;
}

// ---- one tensor ----

static const char *const memory_names[TENSOR_MEMORIES] = {"arena", "device arena"};

static enum status check_memory(const struct tensor_check *check, const struct tensor_use *use,
                                const struct tensor_use *first, struct error *error)
{
    const uint32_t memory = use->tensor->memory;
    if (memory >= TENSOR_MEMORIES)
        return error_set(error, STATUS_UNSUPPORTED,
                         "%s lies in memory kind %" PRIu32
                         "; there are 0, the arena, and 1, the device arena",
                         use->name, memory);
    if (memory != first->tensor->memory)
        return error_set(error, STATUS_MISMATCH,
                         "%s lies in the %s, but %s in the %s; all tensors of a run lie in one",
                         use->name, memory_names[memory], first->name,
                         memory_names[first->tensor->memory]);
    if (check->arena_sizes[memory] == 0)
        return error_set(error, STATUS_INVALID, "%s lies in the %s, but the session has none",
                         use->name, memory_names[memory]);
    return STATUS_OK;
}

static enum status check_type(const struct tensor_use *use, const struct tensor_use *first,
                              struct error *error)
{
    const struct wire_tensor *t = use->tensor;
    if (dtype_size((int)t->dtype) == 0)
        return error_set(error, STATUS_INVALID, "%s has dtype %" PRIu32 ", which is none",
                         use->name, t->dtype);
    if (use->dtype)
        return t->dtype == (uint32_t)use->dtype
                   ? STATUS_OK
                   : error_set(error, STATUS_MISMATCH, "%s is %s; it must be %s", use->name,
                               dtype_name((int)t->dtype), dtype_name((int)use->dtype));
    if (t->dtype != first->tensor->dtype)
        return error_set(error, STATUS_MISMATCH, "%s is %s, but %s is %s", use->name,
                         dtype_name((int)t->dtype), first->name,
                         dtype_name((int)first->tensor->dtype));
    if (t->dtype != DTYPE_F32 && t->dtype != DTYPE_F16 && t->dtype != DTYPE_BF16)
        return error_set(error, STATUS_UNSUPPORTED, "%s is %s; it may be f32, f16 or bf16",
                         use->name, dtype_name((int)t->dtype));
    return STATUS_OK;
}

// The offset and the strides must be multiples of this, in bytes.
static uint32_t unit_of(const struct tensor_use *use)
{
    return use->counts_elements ? dtype_size((int)use->tensor->dtype) : 16;
}

static enum status check_place(const struct tensor_check *check, const struct tensor_use *use,
                               const struct rows *rows, struct error *error)
{
    const struct wire_tensor *t = use->tensor;
    const uint64_t arena_size = check->arena_sizes[t->memory];
    if (rows->layer % unit_of(use))
        return error_set(error, STATUS_MISALIGNED,
                         "%s has layer stride %" PRIu64 "; it must be a multiple of %" PRIu32,
                         use->name, use->layer_stride, unit_of(use));
    if ((t->offset | t->token_stride | t->head_stride | t->outer_stride) % unit_of(use))
        return error_set(error, STATUS_MISALIGNED,
                         "%s has offset %" PRIu64 ", token stride %" PRIu64 ", head stride %" PRIu64
                         ", outer stride %" PRIu64 ": each must be a multiple of %" PRIu32,
                         use->name, t->offset, t->token_stride, t->head_stride, t->outer_stride,
                         unit_of(use));
    if (num_rows(rows) == 0 || layers_end(rows) <= (wide)arena_size)
        return STATUS_OK;
    char outer[96] = "", layers[96] = "";
    if (use->num_outer > 1)
        snprintf(outer, sizeof outer, " and an outer stride of %" PRIu64 " for %" PRIu64 ", each",
                 t->outer_stride, use->num_outer);
    if (rows->layers > 1)
        snprintf(layers, sizeof layers,
                 " in %" PRIu32 " layers, each %" PRIu64 " bytes behind the one before,",
                 (uint32_t)rows->layers, use->layer_stride);
    return error_set(error, STATUS_OUT_OF_RANGE,
                     "%s at %" PRIu64 " with strides %" PRIu64 " and %" PRIu64 "%s for %" PRIu64
                     " tokens and %" PRIu32 " heads of %" PRIu32
                     " bytes%s ends past the %s's %" PRIu64 " bytes",
                     use->name, t->offset, t->token_stride, t->head_stride, outer, use->num_tokens,
                     use->heads, (uint32_t)rows->row, layers, memory_names[t->memory], arena_size);
}

// The engine counts the two inner strides in 32 bits, in those units.
static enum status check_strides(const struct tensor_use *use, const struct rows *rows,
                                 struct error *error)
{
    uint64_t most = (uint64_t)UINT32_MAX * unit_of(use);
    wide token = rows->strides[TOKEN], head = rows->strides[HEAD],
         stride = token > head ? token : head;
    if (stride <= (wide)most)
        return STATUS_OK;
    return error_set(error, STATUS_OUT_OF_RANGE,
                     "%s has a stride of %" PRIu64 " bytes; at most %" PRIu64 " are allowed",
                     use->name, (uint64_t)stride, most);
}

// A dimension of the rows, or of the distances between the rows of two tensors.
struct axis {
    wide first, last, stride;
};

// The largest stride first.
static void sort_axes(struct axis *axes, int count)
{
    for (int i = 1; i < count; i++) {
        for (int j = i; j > 0 && axes[j - 1].stride < axes[j].stride; j--) {
            struct axis axis = axes[j];
            axes[j] = axes[j - 1];
            axes[j - 1] = axis;
        }
    }
}

static void axes_of(const struct rows *r, struct axis axes[DIMENSIONS])
{
    for (int d = 0; d < DIMENSIONS; d++)
        axes[d] = (struct axis){0, r->counts[d] - 1, r->strides[d]};
    sort_axes(axes, DIMENSIONS);
}

static bool rows_nest(const struct rows *r)
{
    struct axis axes[DIMENSIONS];
    wide inside = r->row;
    axes_of(r, axes);
    for (int d = DIMENSIONS; d-- > 0;) {
        if (axes[d].last > 0 && axes[d].stride < inside)
            return false;
        inside += axes[d].last * axes[d].stride;
    }
    return true;
}

static enum status check_nested(const struct tensor_use *use, const struct rows *r,
                                struct error *error)
{
    const struct wire_tensor *t = use->tensor;
    if (num_rows(r) == 0 || rows_nest(r))
        return STATUS_OK;
    char outer[48] = "";
    if (use->num_outer > 1)
        snprintf(outer, sizeof outer, ", outer stride %" PRIu64, t->outer_stride);
    return error_set(error, STATUS_INVALID,
                     "%s's rows of %" PRIu32 " bytes overlap: token stride %" PRIu64
                     ", head stride %" PRIu64 "%s",
                     use->name, (uint32_t)r->row, t->token_stride, t->head_stride, outer);
}

// ---- two tensors ----

static wide floor_div(wide a, wide b)
{
    return a / b - (a % b < 0);
}

// Cuts the axis down to the i with low < at + i * stride < high; false: there are none.
static bool axis_cut(struct axis *axis, wide at, wide low, wide high)
{
    if (axis->stride == 0) {
        axis->last = axis->first;
        return low < at && at < high;
    }
    wide first = floor_div(low - at, axis->stride) + 1,
         last = -floor_div(-(high - at), axis->stride) - 1;
    axis->first = first > axis->first ? first : axis->first;
    axis->last = last < axis->last ? last : axis->last;
    return axis->first <= axis->last;
}

// Is there one step on each axis, so that low < at + the sum of these steps < high? Two rows
// overlap if the distance between their first bytes has such bounds. The search goes along the
// longest strides, and only as far as the shorter ones can reach.
static bool axes_meet(const struct axis *axes, int count, wide at, wide low, wide high,
                      uint32_t *steps)
{
    struct axis axis = axes[0];
    wide least = 0, most = 0;
    for (int d = 1; d < count; d++) {
        least += axes[d].first * axes[d].stride;
        most += axes[d].last * axes[d].stride;
    }
    if (!axis_cut(&axis, at, low - most, high - least))
        return false;
    if (count == 1)
        return true;
    for (wide i = axis.first; i <= axis.last && *steps; i++) {
        --*steps;
        if (axes_meet(axes + 1, count - 1, at + i * axis.stride, low, high, steps))
            return true;
    }
    return false;
}

static bool is_dense(const struct rows *r)
{
    return rows_nest(r) && rows_end(r) - r->offset == num_rows(r) * r->row;
}

// Does some row of `r` overlap [begin, end)?
static bool rows_touch(const struct rows *r, wide begin, wide end, uint32_t *steps)
{
    struct axis axes[DIMENSIONS];
    axes_of(r, axes);
    return axes_meet(axes, DIMENSIONS, r->offset, begin - r->row, end, steps);
}

static bool same_strides(const struct rows *a, const struct rows *b)
{
    for (int d = 0; d < DIMENSIONS; d++) {
        if (a->counts[d] > 1 && b->counts[d] > 1 && a->strides[d] != b->strides[d])
            return false;
    }
    return true;
}

// Both tensors have the same strides. `more`: one more axis of distances; NULL: none.
static bool rows_touch_rows(const struct rows *a, const struct rows *b, const struct axis *more,
                            uint32_t *steps)
{
    struct axis axes[DIMENSIONS + 1];
    for (int d = 0; d < DIMENSIONS; d++)
        axes[d] = (struct axis){1 - b->counts[d], a->counts[d] - 1,
                                a->strides[d] ? a->strides[d] : b->strides[d]};
    if (more)
        axes[DIMENSIONS] = *more;
    sort_axes(axes, DIMENSIONS + (more != NULL));
    return axes_meet(axes, DIMENSIONS + (more != NULL), a->offset - b->offset, -a->row, b->row,
                     steps);
}

static bool overlap(const struct rows *out, const struct rows *in, uint32_t *steps)
{
    if (num_rows(out) == 0 || num_rows(in) == 0 || rows_end(out) <= in->offset ||
        rows_end(in) <= out->offset)
        return false;
    if (same_strides(out, in))
        return rows_touch_rows(out, in, NULL, steps);
    if (is_dense(out))
        return rows_touch(in, out->offset, rows_end(out), steps);
    return is_dense(in) && rows_touch(out, in->offset, rows_end(in), steps);
}

// ---- two tensors in several layers ----

static bool apart_in_all(const struct rows *a, const struct rows *b)
{
    return num_rows(a) == 0 || num_rows(b) == 0 || layers_end(a) <= b->offset ||
           layers_end(b) <= a->offset;
}

// Whether two tensors overlap in one layer.
static bool overlap_in_some(const struct rows *out, const struct rows *in, uint32_t *steps)
{
    wide different = out->layer == in->layer ? 1 : out->layers;
    if (apart_in_all(out, in))
        return false;
    for (wide i = 0; i < different; i++) {
        struct rows a = *out, b = *in;
        a.offset += i * a.layer;
        b.offset += i * b.layer;
        if (overlap(&a, &b, steps))
            return true;
    }
    return false;
}

// Does the range of `a` in layer `i` meet that of `b` in another one?
static bool meets_another(const struct rows *a, const struct rows *b, wide i)
{
    wide begin = a->offset + i * a->layer, end = rows_end(a) + i * a->layer;
    if (!b->layer)
        return begin < rows_end(b) && b->offset < end;
    wide first = floor_div(begin - rows_end(b), b->layer) + 1,
         last = -floor_div(b->offset - end, b->layer) - 1;
    first = first > 0 ? first : 0;
    last = last < b->layers - 1 ? last : b->layers - 1;
    return last - first + 1 - (first <= i && i <= last) > 0;
}

// Whether two tensors overlap in two different layers. This is exact for tensors with the same
// strides; other tensors are compared by their ranges.
static bool layers_meet(const struct rows *a, const struct rows *b, uint32_t *steps)
{
    if (a->layers == 1 || apart_in_all(a, b))
        return false;
    if (a->layer == b->layer && same_strides(a, b)) {
        const struct axis ahead = {1, a->layers - 1, a->layer},
                          behind = {1 - a->layers, -1, a->layer};
        bool meet = rows_touch_rows(a, b, &ahead, steps) || rows_touch_rows(a, b, &behind, steps);
        return meet || !*steps;
    }
    for (wide i = 0; i < a->layers; i++) {
        if (meets_another(a, b, i))
            return true;
    }
    return false;
}

struct tensor_extent tensor_extent(const struct tensor_use *use, uint32_t num_layers)
{
    const struct rows rows = rows_of(use, num_layers);
    if (num_rows(&rows) == 0)
        return (struct tensor_extent){0};
    return (struct tensor_extent){(uint64_t)rows.offset, (uint64_t)layers_end(&rows), use->written};
}

// ---- all ----

static bool is_twin(const struct tensor_use *use, const struct wire_tensor *other)
{
    const struct wire_tensor *t = use->tensor;
    return use->twin == other && t->offset == other->offset &&
           t->token_stride == other->token_stride &&
           (t->head_stride == other->head_stride || use->heads < 2);
}

// Tensor `i` against those before it. A pair matters only if one of the two is written.
static enum status check_apart(struct tensor_check *check, const struct tensor_use *uses,
                               uint32_t i, struct error *error)
{
    for (uint32_t j = 0; j < i; j++) {
        const struct tensor_use *out = uses[j].written ? &uses[j] : &uses[i];
        const struct tensor_use *other = uses[j].written ? &uses[i] : &uses[j];
        if (!out->written || is_twin(&uses[i], uses[j].tensor))
            continue;
        const struct rows a = rows_of(out, check->num_layers),
                          b = rows_of(other, check->num_layers);
        if (overlap_in_some(&a, &b, &check->steps))
            return error_set(error, STATUS_INVALID,
                             "%s at %" PRIu64 " overlaps %s at %" PRIu64 "%s", out->name,
                             out->tensor->offset, other->name, other->tensor->offset,
                             a.layer == b.layer ? "" : " in some layer");
        check->chained = check->chained || layers_meet(&a, &b, &check->steps);
    }
    return STATUS_OK;
}

static void look_at_itself(struct tensor_check *check, const struct rows *rows)
{
    check->chained = check->chained || layers_meet(rows, rows, &check->steps);
}

enum status tensor_check_all(struct tensor_check *check, const struct tensor_use *uses,
                             uint32_t count, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < count; i++) {
        const struct rows rows = rows_of(&uses[i], check->num_layers);
        status = check_memory(check, &uses[i], &uses[0], error);
        if (status == STATUS_OK)
            status = check_type(&uses[i], &uses[0], error);
        if (status == STATUS_OK)
            status = check_place(check, &uses[i], &rows, error);
        if (status == STATUS_OK)
            status = check_strides(&uses[i], &rows, error);
        if (status == STATUS_OK && uses[i].written)
            status = check_nested(&uses[i], &rows, error);
        if (status == STATUS_OK)
            status = check_apart(check, uses, i, error);
        if (status == STATUS_OK && uses[i].written)
            look_at_itself(check, &rows);
    }
    return status;
}
