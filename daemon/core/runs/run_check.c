// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// run_check.c - checks a run's parameters against its batch. A new option of a run has its rule
// here. Dispatcher thread.

#include "run_check.h"

#include "core/pool/session.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

_Static_assert((int)WIRE_RUN_ATTEND == (int)ENGINE_ATTEND &&
                   (int)WIRE_RUN_WRITE == (int)ENGINE_WRITE &&
                   (int)WIRE_RUN_GATHER == (int)ENGINE_GATHER,
               "one numbering");

// ---- kind and layer ----

static enum status check_gather(const struct batch *batch, struct error *error)
{
    if (batch->hole.there)
        return error_set(
            error, STATUS_INVALID,
            "block_table[%" PRIu32 "][%" PRIu32 "] = %" PRId32
            " names no block that the session may read; a gather reads every block of a sequence",
            batch->hole.seq, batch->hole.entry, batch->hole.id);
    if (batch->all_keys > INT32_MAX)
        return error_set(error, STATUS_INVALID,
                         "a gather of %" PRIu64 " rows; at most %d are allowed", batch->all_keys,
                         INT32_MAX);
    return STATUS_OK;
}

static enum status check_kind(const struct batch *batch, const struct core_run_params *p,
                              struct error *error)
{
    static const char *const names[] = {
        [ENGINE_ATTEND] = "attention", [ENGINE_WRITE] = "a write", [ENGINE_GATHER] = "a gather"};
    const uint32_t kind = p->entry.kind;
    if (kind >= sizeof names / sizeof *names)
        return error_set(error, STATUS_INVALID, "kind %" PRIu32 " is none of a batch's runs", kind);
    if (kind != ENGINE_WRITE && !batch->has_keys)
        return error_set(error, STATUS_INVALID,
                         "batch %" PRIu64 " was created without seq_lens_kv, which %s needs",
                         batch->id, names[kind]);
    if (kind == ENGINE_WRITE && !batch->has_slots)
        return error_set(error, STATUS_INVALID,
                         "batch %" PRIu64 " was created without a slot_mapping, which %s needs",
                         batch->id, names[kind]);
    return kind == ENGINE_GATHER ? check_gather(batch, error) : STATUS_OK;
}

uint32_t core_run_layers(const struct core_run_params *p)
{
    return p->layers.num_layers ? p->layers.num_layers : 1;
}

static enum status check_layer(const struct batch *batch, const struct core_run_params *p,
                               struct error *error)
{
    const struct wire_layers *l = &p->layers;
    uint64_t count = core_run_layers(p), step = l->layer_step ? l->layer_step : 1;
    uint64_t last = p->entry.layer + (count - 1) * step;
    if (count > CORE_MAX_LAYERS)
        return error_set(error, STATUS_LIMIT, "a run of %" PRIu32 " layers; at most %d are one run",
                         l->num_layers, CORE_MAX_LAYERS);
    if (!batch->table && p->entry.layer)
        return error_set(error, STATUS_OUT_OF_RANGE,
                         "layer %" PRIu32 " of K and V in the arena, which have one, 0",
                         p->entry.layer);
    if (batch->table && last >= batch->table->cache->identity.num_layers)
        return error_set(error, STATUS_OUT_OF_RANGE,
                         "layer %" PRIu64 " of a cache with %" PRIu32 " layers", last,
                         batch->table->cache->identity.num_layers);
    return STATUS_OK;
}

// ---- attention ----

// Shaders compute softmax with exp2 in f32: a value that they multiply by log2(e) must stay finite.
// False for NaN and infinity.
static bool is_finite_in_log2(double value)
{
    const double log2_e = 1.4426950408889634;
    return fabs(value) * log2_e <= (double)FLT_MAX;
}

static enum status check_head_count(const struct batch *batch, const struct core_run_params *p,
                                    struct error *error)
{
    if (p->entry.num_heads == 0 || p->entry.num_heads % batch->kv.num_kv_heads)
        return error_set(error, STATUS_INVALID,
                         "num_heads %" PRIu32 " is not a multiple of the %s %" PRIu32 " KV heads",
                         p->entry.num_heads, batch->table ? "cache's" : "layout's",
                         batch->kv.num_kv_heads);
    return STATUS_OK;
}

static enum status missing_error(const struct missing *missing, const struct core_run_params *p,
                                 struct error *error)
{
    uint32_t last = missing->num_entries - 1;
    if (p->entry.window_left < 0)
        return error_set(error, STATUS_INVALID,
                         "block_table[%" PRIu32 "][%" PRIu32
                         "] = -1, but the run has no left window, and only a "
                         "window_left of at most %" PRId64 " hides the keys there",
                         missing->seq, last, missing->max_left);
    return error_set(error, STATUS_INVALID,
                     "block_table[%" PRIu32 "][%" PRIu32 "] = -1, but with window_left %" PRId32
                     " queries of that sequence see keys there; at most %" PRId64 " hides them",
                     missing->seq, last, p->entry.window_left, missing->max_left);
}

static enum status check_window(const struct batch *batch, const struct core_run_params *p,
                                struct error *error)
{
    const struct missing *missing = &batch->missing;
    if (p->entry.window_left < -1 || p->entry.window_right < -1)
        return error_set(error, STATUS_INVALID,
                         "window_left %" PRId32 ", window_right %" PRId32
                         ": neither may be below -1, unbounded",
                         p->entry.window_left, p->entry.window_right);
    bool hidden = p->entry.window_left >= 0 && p->entry.window_left <= missing->max_left;
    return missing->num_entries && !hidden ? missing_error(missing, p, error) : STATUS_OK;
}

uint64_t core_run_heads(const struct core_run_params *p, uint64_t stride)
{
    uint64_t more = p->layers.num_layers > 1 ? p->layers.num_layers - 1 : 0,
             floats = stride / sizeof(float), all;
    if (__builtin_mul_overflow(more, floats, &all) ||
        __builtin_add_overflow(all, p->entry.num_heads, &all))
        return UINT64_MAX;
    return all;
}

// Slopes or sinks: a value for each head, of one layer or of all.
struct head_array {
    const char *name;
    const float *values; // NULL: the run has none
    uint64_t stride;     // bytes from layer to layer
    bool may_be_none;    // -inf is allowed: the head has none
};

// A layer stride is a multiple of 4 bytes and fits into 32 bits.
static enum status check_head_stride(const struct head_array *array, struct error *error)
{
    if (array->stride % sizeof(float))
        return error_set(error, STATUS_MISALIGNED,
                         "%s has layer stride %" PRIu64 "; it must be a multiple of %zu",
                         array->name, array->stride, sizeof(float));
    if (array->stride > UINT32_MAX)
        return error_set(error, STATUS_OUT_OF_RANGE,
                         "%s has a layer stride of %" PRIu64 " bytes; at most %" PRIu32
                         " are allowed",
                         array->name, array->stride, UINT32_MAX);
    return STATUS_OK;
}

// A slope or sink that is not finite would make the head's output NaN.
static enum status check_head_values(const struct head_array *array, uint64_t count,
                                     struct error *error)
{
    for (uint64_t h = 0; h < count; h++) {
        float value = array->values[h];
        if (!is_finite_in_log2(value) && !(array->may_be_none && value == -INFINITY))
            return error_set(error, STATUS_INVALID,
                             "%s[%" PRIu64 "] is %g; it must be finite in f32, also times log2(e)",
                             array->name, h, (double)value);
    }
    return STATUS_OK;
}

static enum status check_heads(const struct batch *batch, const struct core_run_params *p,
                               struct error *error)
{
    (void)batch;
    const struct head_array arrays[] = {{"slopes", p->slopes, p->layers.slopes, false},
                                        {"sinks", p->sinks, p->layers.sinks, true}};
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < sizeof arrays / sizeof *arrays; i++) {
        if (!arrays[i].values)
            continue;
        if (p->layers.num_layers > 1)
            status = check_head_stride(&arrays[i], error);
        if (status == STATUS_OK)
            status = check_head_values(&arrays[i], core_run_heads(p, arrays[i].stride), error);
    }
    return status;
}

// Scores are divided by the cap, and a device may read a subnormal as 0.
static enum status check_soft_cap(const struct batch *batch, const struct core_run_params *p,
                                  struct error *error)
{
    (void)batch;
    if (p->entry.logits_soft_cap == 0.0f ||
        (p->entry.logits_soft_cap >= FLT_MIN && is_finite_in_log2(p->entry.logits_soft_cap)))
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "logits_soft_cap is %g; it must be 0, or at least 2^-126 and finite in f32, "
                     "also times log2(e)",
                     (double)p->entry.logits_soft_cap);
}

enum status run_check_lse(const struct wire_tensor *lse, struct error *error)
{
    if (!lse->dtype)
        return STATUS_OK;
    if (lse->head_stride != 0 && lse->head_stride != sizeof(float))
        return error_set(error, STATUS_INVALID,
                         "lse has head stride %" PRIu64
                         "; its heads are contiguous: 4, or 0 for the same",
                         lse->head_stride);
    if (lse->outer_stride)
        return error_set(error, STATUS_INVALID,
                         "lse has outer stride %" PRIu64 "; it has no outer dimension",
                         lse->outer_stride);
    return STATUS_OK;
}

static enum status check_lse(const struct batch *batch, const struct core_run_params *p,
                             struct error *error)
{
    (void)batch;
    const uint32_t base2 = p->options.lse_base2;
    if (base2 > 1)
        return error_set(error, STATUS_INVALID, "lse_base2 is %" PRIu32 "; it is 0 or 1", base2);
    if (base2 && !p->entry.lse.dtype)
        return error_set(error, STATUS_INVALID, "lse_base2 is given, but the run has no lse");
    return run_check_lse(&p->entry.lse, error);
}

// ---- keys and values ----

static enum status check_score_scale(const struct batch *batch, const struct core_run_params *p,
                                     struct error *error)
{
    (void)batch;
    if (is_finite_in_log2(p->entry.scale))
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "scale is %g; it must be finite in f32, also times log2(e)",
                     (double)p->entry.scale);
}

// A run's scale for all its layers, or a scale for each layer. 0: not given.
struct scales {
    const char *name;
    const float *values; // [count]; NULL: not given
    uint32_t count;
    bool is_v, of_layers;
};

static void name_scale(const struct scales *scales, uint32_t i, char *name, size_t size)
{
    if (scales->of_layers)
        snprintf(name, size, "%s[%" PRIu32 "]", scales->name, i);
    else
        snprintf(name, size, "%s", scales->name);
}

static bool is_scale(float value)
{
    return value > 0.0f && value <= FLT_MAX && isfinite(1.0f / value);
}

static enum status check_scale(const struct batch *batch, const struct scales *scales, uint32_t i,
                               struct error *error)
{
    const struct engine_kv *kv = &batch->kv;
    float scale = scales->values[i];
    enum dtype dtype = scales->is_v ? kv->v_dtype : kv->k_dtype;
    bool has_one = kv->scale_mode == SCALE_PER_TENSOR && dtype_size((int)dtype) == 1;
    char name[32];
    if (scale == 0.0f || (has_one && is_scale(scale) && !(scales->is_v && kv->v_is_k_prefix)))
        return STATUS_OK;
    name_scale(scales, i, name, sizeof name);
    if (scales->is_v && kv->v_is_k_prefix)
        return error_set(error, STATUS_INVALID,
                         "%s is given, but V is a part of K and has its scale", name);
    if (kv->scale_mode != SCALE_PER_TENSOR)
        return error_set(error, STATUS_INVALID,
                         "%s is given, but K and V have scale_mode %d, not per tensor", name,
                         (int)kv->scale_mode);
    if (!has_one)
        return error_set(error, STATUS_INVALID,
                         "%s is given, but %s %s is not scaled; 8-bit ones are", name,
                         scales->is_v ? "v_dtype" : "k_dtype", dtype_name((int)dtype));
    return error_set(error, STATUS_INVALID,
                     "%s is %g; it and its inverse must be finite and above 0", name,
                     (double)scale);
}

// Kernels multiply the score scale and the scale of K into one factor.
static enum status check_product(const struct batch *batch, const struct core_run_params *p,
                                 const struct scales *scales, uint32_t i, struct error *error)
{
    double scale =
        p->entry.scale != 0.0f ? (double)p->entry.scale : 1.0 / sqrt(batch->kv.head_dim_k);
    char name[32];
    if (scales->is_v || p->entry.kind != ENGINE_ATTEND ||
        is_finite_in_log2(scale * scales->values[i]))
        return STATUS_OK;
    name_scale(scales, i, name, sizeof name);
    return error_set(
        error, STATUS_INVALID,
        "scale is %g and %s %g; their product must be finite in f32, also times log2(e)", scale,
        name, (double)scales->values[i]);
}

static enum status check_scales(const struct batch *batch, const struct core_run_params *p,
                                struct error *error)
{
    const struct scales all[] = {
        {"k_scale", &p->entry.k_scale, 1, false, false},
        {"v_scale", &p->entry.v_scale, 1, true, false},
        {"k_scales", p->k_scales, core_run_layers(p), false, true},
        {"v_scales", p->v_scales, core_run_layers(p), true, true},
    };
    enum status status = STATUS_OK;
    for (size_t n = 0; n < sizeof all / sizeof *all; n++) {
        for (uint32_t i = 0; status == STATUS_OK && all[n].values && i < all[n].count; i++) {
            status = check_scale(batch, &all[n], i, error);
            if (status == STATUS_OK)
                status = check_product(batch, p, &all[n], i, error);
        }
    }
    return status;
}

static enum status check_frequencies(const struct core_run_params *p, struct error *error)
{
    for (uint32_t n = 0; p->frequencies && n < p->entry.rope_dim / 2; n++) {
        if (!isfinite(p->frequencies[n]))
            return error_set(error, STATUS_INVALID, "rope.frequencies[%" PRIu32 "] is %f", n,
                             p->frequencies[n]);
    }
    return STATUS_OK;
}

static const char *given_of_rope(const struct core_run_params *p)
{
    if (p->frequencies)
        return "frequencies";
    if (p->entry.rope_theta != 0.0f)
        return "theta";
    return p->entry.flags & WIRE_RUN_ROPE_INTERLEAVED ? "interleaved" : NULL;
}

static enum status check_rope(const struct batch *batch, const struct core_run_params *p,
                              struct error *error)
{
    const uint32_t dim = p->entry.rope_dim;
    const float theta = p->entry.rope_theta;
    const char *given = given_of_rope(p);
    if (!dim && given)
        return error_set(error, STATUS_INVALID, "rope.%s is given, but rope.dim is 0: no rotation",
                         given);
    if (!dim)
        return STATUS_OK;
    if (dim % 2 || dim > batch->kv.head_dim_k)
        return error_set(error, STATUS_INVALID,
                         "rope.dim is %" PRIu32 "; it must be even and at most head_dim_k %" PRIu32,
                         dim, batch->kv.head_dim_k);
    if (!(theta >= 0.0f && theta <= FLT_MAX))
        return error_set(error, STATUS_INVALID,
                         "rope.theta is %f; it must be finite and above 0, or 0 for 10000",
                         (double)theta);
    if (!batch->has_keys && !batch->has_positions)
        return error_set(error, STATUS_INVALID,
                         "rope is given, but batch %" PRIu64
                         " has neither seq_lens_kv nor positions to turn by",
                         batch->id);
    return check_frequencies(p, error);
}

// ---- all ----

enum {
    ATTENDS = 1 << ENGINE_ATTEND,
    WRITES = 1 << ENGINE_WRITE,
    GATHERS = 1 << ENGINE_GATHER,
};

static const struct {
    unsigned kinds;
    enum status (*check)(const struct batch *batch, const struct core_run_params *params,
                         struct error *error);
} checks[] = {
    {ATTENDS, check_head_count},  {ATTENDS, check_window},
    {ATTENDS, check_soft_cap},    {ATTENDS, check_heads},
    {ATTENDS, check_lse},         {ATTENDS | WRITES, check_rope},
    {ATTENDS, check_score_scale}, {ATTENDS | WRITES | GATHERS, check_scales},
};

enum status run_check(const struct batch *batch, const struct core_run_params *params,
                      struct run_tensors *tensors, struct error *error)
{
    enum status status = check_kind(batch, params, error);
    if (status == STATUS_OK)
        status = check_layer(batch, params, error);
    for (size_t i = 0; status == STATUS_OK && i < sizeof checks / sizeof *checks; i++) {
        if (checks[i].kinds >> params->entry.kind & 1)
            status = checks[i].check(batch, params, error);
    }
    return status == STATUS_OK ? run_check_tensors(batch, params, tensors, error) : status;
}
