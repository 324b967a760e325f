// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// run.c - queues runs of a batch for one layer or several. Sends every parameter, so that the
// daemon can check them and name the one that it refuses. Slopes, sinks, frequencies and the scales
// of layers lie in the arena during the call; the daemon copies them when the command arrives. Any
// thread.

#include "run.h"

#include "client/src/caller.h"
#include "client/src/error.h"
#include "client/src/tensor.h"
#include "client/src/ticket.h"
#include "client/src/work.h"

enum { MOST_LAYERS = 1024 };

// For runs of one layer.
static const struct aule_layers one_layer = {.num_layers = 1};

// A run to be sent. Points into itself, so it must not be copied.
struct prepared {
    struct call_work work;
    float scales[2 * MOST_LAYERS]; // of K for each layer, then of V for each layer
};

static enum aule_status check_tensors(const struct life *life, const struct aule_run_params *params)
{
    const struct {
        const struct aule_tensor *tensor;
        const char *name;
    } tensors[] = {{&params->q, "q"},          {&params->k, "k"},     {&params->v, "v"},
                   {&params->out, "out"},      {&params->lse, "lse"}, {&params->keys, "keys"},
                   {&params->values, "values"}};
    enum aule_status status = AULE_OK;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors && status == AULE_OK; i++)
        status = life_check(life, tensors[i].tensor->life, tensors[i].name);
    return status;
}

// The rows of block tensors in the arena: all blocks of the layout.
static enum aule_status check_block_rows(const struct aule_batch *batch, struct tensor_use *use)
{
    if (batch->block_size == 0 || batch->num_blocks == 0)
        return AULE_OK;
    use->num_rows = batch->block_size;
    use->num_before = batch->num_blocks - 1;
    return tensor_check_rows(use);
}

// The rows of a tensor that has one for each token, or of a gather one for each key.
static enum aule_status check_token_rows(const struct aule_batch *batch, enum wire_run_kind kind,
                                         struct tensor_use *use)
{
    bool outer = use->tensor->outer_stride != 0;
    use->num_rows = kind == WIRE_RUN_GATHER ? batch->num_keys
                    : outer                 ? batch->last_rows
                                            : batch->num_tokens;
    use->num_before = outer ? batch->last_seq : 0;
    return tensor_check_rows(use);
}

static enum aule_status check_rows(const struct aule_batch *batch, enum wire_run_kind kind,
                                   const struct aule_run_params *params,
                                   const struct aule_layers *layers)
{
    bool attends = kind == WIRE_RUN_ATTEND, moves = batch->has_slots || kind == WIRE_RUN_GATHER;
    const struct {
        bool used, in_blocks;
        const char *name;
        const struct aule_tensor *tensor;
        uint32_t num_heads;
        uint64_t layer_stride;
    } uses[] = {
        {attends, false, "q", &params->q, params->num_heads, layers->q_stride},
        {moves, false, "k", &params->k, batch->num_kv_heads, layers->k_stride},
        {moves, false, "v", &params->v, batch->num_kv_heads, layers->v_stride},
        {attends, false, "out", &params->out, params->num_heads, layers->out_stride},
        {attends, false, "lse", &params->lse, 1, layers->lse_stride},
        {true, true, "keys", &params->keys, batch->num_kv_heads, layers->keys_stride},
        {true, true, "values", &params->values, batch->num_kv_heads, layers->values_stride},
    };
    enum aule_status status = AULE_OK;
    for (size_t i = 0; i < sizeof uses / sizeof *uses && status == AULE_OK; i++) {
        struct tensor_use use = {.name = uses[i].name,
                                 .tensor = uses[i].tensor,
                                 .num_heads = uses[i].num_heads,
                                 .layers_before = layers->num_layers - UINT64_C(1),
                                 .layer_stride = uses[i].layer_stride};
        if (uses[i].used)
            status = uses[i].in_blocks ? check_block_rows(batch, &use)
                                       : check_token_rows(batch, kind, &use);
    }
    return status;
}

static struct wire_layers layers_of(const struct aule_layers *layers)
{
    return (struct wire_layers){
        .num_layers = layers->num_layers,
        .layer_step = layers->layer_step,
        .q = layers->q_stride,
        .k = layers->k_stride,
        .v = layers->v_stride,
        .out = layers->out_stride,
        .lse = layers->lse_stride,
        .keys = layers->keys_stride,
        .values = layers->values_stride,
        .slopes = layers->slopes_stride,
        .sinks = layers->sinks_stride,
    };
}

// Converts public structs to the wire's. No other function does, and both lanes send the result.
// prepare() adds the arrays.
static struct wire_run run_of(uint64_t batch, enum wire_run_kind kind,
                              const struct aule_run_params *params,
                              const struct aule_layers *layers)
{
    struct wire_run run = {
        .entry =
            {
                .batch = batch,
                .kind = kind,
                .layer = params->layer,
                .num_heads = params->num_heads,
                .q = work_tensor(&params->q),
                .k = work_tensor(&params->k),
                .v = work_tensor(&params->v),
                .out = work_tensor(&params->out),
                .lse = work_tensor(&params->lse),
                .keys = work_tensor(&params->keys),
                .values = work_tensor(&params->values),
                .scale = params->scale,
                .logits_soft_cap = params->logits_soft_cap,
                .mask_value = params->mask_value,
                .window_left = params->window.enabled ? params->window.left : -1,
                .window_right = params->window.enabled ? params->window.right : -1,
                .num_splits = params->num_splits,
                .rope_dim = params->rope.dim,
                .rope_theta = params->rope.theta,
                .k_scale = params->k_scale,
                .v_scale = params->v_scale,
                .flags = (params->causal ? WIRE_RUN_CAUSAL : 0u) |
                         (params->rope.interleaved ? WIRE_RUN_ROPE_INTERLEAVED : 0u),
            },
        .options = {.max_queue_ms = params->max_queue_ms,
                    .lse_base2 = params->lse_base2,
                    .attention_chunk = params->attention_chunk},
    };
    if (layers->num_layers > 1)
        run.layers = layers_of(layers);
    return run;
}

static enum aule_status check_layers(const struct aule_layers *layers)
{
    if (layers->num_layers == 0 || layers->num_layers > MOST_LAYERS)
        return fail(AULE_INVALID, "num_layers = %u; a run has from 1 to %d", layers->num_layers,
                    MOST_LAYERS);
    return AULE_OK;
}

// How many floats the caller's slopes or sinks have, if the part of each layer lies `stride` bytes
// behind that of the layer before.
static uint64_t num_heads_given(const struct aule_run_params *params,
                                const struct aule_layers *layers, uint64_t stride)
{
    return params->num_heads + (layers->num_layers - UINT64_C(1)) * (stride / sizeof(float));
}

static void add_array(struct call_work *work, const void *data, uint64_t count,
                      uint32_t element_size, struct wire_span *span)
{
    if (!data)
        return;
    work->arrays[work->num_arrays] =
        (struct vector){.data = data, .count = count, .element_size = element_size};
    work->spans[work->num_arrays++] = span;
}

// Joins the scales of K and V into one array. If only one side is given for each layer, the run's
// own scale fills the other. Returns the number of scales; 0: neither is given.
static uint32_t fill_scales(const struct aule_run_params *params, const struct aule_layers *layers,
                            float *scales)
{
    uint32_t count = layers->num_layers;
    if (!layers->k_scales && !layers->v_scales)
        return 0;
    for (uint32_t n = 0; n < count; n++) {
        scales[n] = layers->k_scales ? layers->k_scales[n] : params->k_scale;
        scales[count + n] = layers->v_scales ? layers->v_scales[n] : params->v_scale;
    }
    return 2 * count;
}

static enum aule_status prepare(const struct aule_batch *batch, enum wire_run_kind kind,
                                const struct aule_run_params *params,
                                const struct aule_layers *layers, struct prepared *prepared)
{
    struct call_work *work = &prepared->work;
    enum aule_status status = check_tensors(batch->life, params);
    if (status == AULE_OK && layers != &one_layer)
        status = check_layers(layers);
    if (status == AULE_OK)
        status = check_rows(batch, kind, params, layers);
    if (status != AULE_OK)
        return status;
    *work = (struct call_work){
        .request = {.command = WIRE_COMMAND_RUN, .run = run_of(batch->id, kind, params, layers)},
        .what = "slopes, sinks, frequencies and scales",
    };
    struct wire_run *run = &work->request.run;
    work->timeout_ms = &run->timeout_ms;
    work->flags = &run->entry.flags;
    uint64_t num_slopes = num_heads_given(params, layers, layers->slopes_stride);
    uint64_t num_sinks = num_heads_given(params, layers, layers->sinks_stride);
    add_array(work, params->alibi_slopes, num_slopes, sizeof(float), &run->entry.slopes);
    add_array(work, params->sinks, num_sinks, sizeof(float), &run->entry.sinks);
    add_array(work, params->rope.frequencies, params->rope.dim / 2, sizeof(double),
              &run->entry.rope_frequencies);
    uint32_t num_scales = fill_scales(params, layers, prepared->scales);
    add_array(work, num_scales ? prepared->scales : NULL, num_scales, sizeof(float), &run->scales);
    return AULE_OK;
}

static enum aule_status submit(const struct aule_batch *batch, enum wire_run_kind kind,
                               const struct aule_run_params *params,
                               const struct aule_layers *layers, int timeout_ms, uint64_t *id)
{
    struct prepared run;
    enum aule_status status = prepare(batch, kind, params, layers, &run);
    return status == AULE_OK ? work_submit(batch->life, &run.work, timeout_ms, id) : status;
}

enum aule_status run_submit(const struct aule_batch *batch, enum wire_run_kind kind,
                            const struct aule_run_params *params, int timeout_ms, uint64_t *id)
{
    return submit(batch, kind, params, &one_layer, timeout_ms, id);
}

static enum aule_status queue(const struct aule_batch *batch, enum wire_run_kind kind,
                              const struct aule_run_params *params,
                              const struct aule_layers *layers, int timeout_ms,
                              struct aule_ticket *ticket)
{
    uint64_t id = 0;
    enum aule_status status = timeout_check(timeout_ms);
    if (status == AULE_OK)
        status = life_enter(batch->life);
    if (status != AULE_OK)
        return status;
    status = submit(batch, kind, params, layers, timeout_ms, ticket ? &id : NULL);
    if (status == AULE_OK && ticket)
        *ticket =
            ticket_make(batch->life, id, kind == WIRE_RUN_ATTEND ? batch->path : AULE_PATH_AUTO);
    life_leave(batch->life);
    return status;
}

enum aule_status run_queue(const struct aule_batch *batch, enum wire_run_kind kind,
                           const struct aule_run_params *params, int timeout_ms,
                           struct aule_ticket *ticket)
{
    return queue(batch, kind, params, &one_layer, timeout_ms, ticket);
}

enum aule_status aule_run_submit_sized(struct aule_batch *batch,
                                       const struct aule_run_params *params, size_t params_size,
                                       int timeout_ms, struct aule_ticket *ticket)
{
    USE(batch);
    REQUIRE(params);
    struct aule_run_params whole;
    enum aule_status status = TAKE(&whole, params, params_size);
    return status == AULE_OK ? run_queue(batch, WIRE_RUN_ATTEND, &whole, timeout_ms, ticket)
                             : status;
}

static enum aule_status take_both(struct aule_run_params *whole,
                                  const struct aule_run_params *params, size_t params_size,
                                  struct aule_layers *whole_layers,
                                  const struct aule_layers *layers, size_t layers_size)
{
    enum aule_status status = TAKE(whole, params, params_size);
    return status == AULE_OK ? TAKE(whole_layers, layers, layers_size) : status;
}

enum aule_status aule_run_layers_submit_sized(struct aule_batch *batch,
                                              const struct aule_run_params *params,
                                              size_t params_size, const struct aule_layers *layers,
                                              size_t layers_size, int timeout_ms,
                                              struct aule_ticket *ticket)
{
    USE(batch);
    REQUIRE(params);
    REQUIRE(layers);
    struct aule_run_params whole;
    struct aule_layers whole_layers;
    enum aule_status status =
        take_both(&whole, params, params_size, &whole_layers, layers, layers_size);
    return status == AULE_OK
               ? queue(batch, WIRE_RUN_ATTEND, &whole, &whole_layers, timeout_ms, ticket)
               : status;
}

static enum aule_status run_and_wait(struct aule_batch *batch, const struct aule_run_params *params,
                                     const struct aule_layers *layers, int timeout_ms,
                                     const struct caller_result *result)
{
    struct prepared run;
    enum aule_status status = timeout_check(timeout_ms);
    if (status == AULE_OK)
        status = life_enter(batch->life);
    if (status != AULE_OK)
        return status;
    status = prepare(batch, WIRE_RUN_ATTEND, params, layers, &run);
    if (status == AULE_OK)
        status = work_run(batch->life, &run.work, timeout_ms, result);
    life_leave(batch->life);
    return status;
}

enum aule_status aule_run_sized(struct aule_batch *batch, const struct aule_run_params *params,
                                size_t params_size, int timeout_ms, struct aule_run_result *result,
                                size_t result_size)
{
    USE(batch);
    REQUIRE(params);
    struct aule_run_params whole;
    enum aule_status status = TAKE(&whole, params, params_size);
    return status == AULE_OK ? run_and_wait(batch, &whole, &one_layer, timeout_ms,
                                            CALLER_RESULT(result, result_size))
                             : status;
}

enum aule_status aule_run_layers_sized(struct aule_batch *batch,
                                       const struct aule_run_params *params, size_t params_size,
                                       const struct aule_layers *layers, size_t layers_size,
                                       int timeout_ms, struct aule_run_result *result,
                                       size_t result_size)
{
    USE(batch);
    REQUIRE(params);
    REQUIRE(layers);
    struct aule_run_params whole;
    struct aule_layers whole_layers;
    enum aule_status status =
        take_both(&whole, params, params_size, &whole_layers, layers, layers_size);
    return status == AULE_OK ? run_and_wait(batch, &whole, &whole_layers, timeout_ms,
                                            CALLER_RESULT(result, result_size))
                             : status;
}
