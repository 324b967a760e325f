// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// handlers_run.c - batches, runs and waits: from a verified command to core's call and back. What the schema defines and core does not do
// yet is named here and refused. Dispatcher thread.

#include "dispatch.h"
#include "metadata.h"
#include "park.h"

#include <inttypes.h>

// More slopes or sinks than any model has heads: a bound on what a parked run keeps.
enum { MAX_HEAD_VALUES = 65536 };

// ---- batches ----

// Fetches all vectors of a BatchCreate into *params.
static enum status fetch_batch(struct call *call, const struct wire_batch_create *create,
                               struct core_batch_params *params)
{
    const void *lens, *kv_lens, *table, *slots, *positions, *mask;
    uint32_t num_lens, num_kv_lens, num_table, num_slots, num_positions, mask_bytes;
    const struct {
        struct metadata field;
        const void **data;
        uint32_t *count;
    } vectors[] = {
        {{"cu_seqlens_q", create->cu_seqlens_q.data, create->cu_seqlens_q.count, create->cu_seqlens_q_span, 4},
         &lens,
         &num_lens},
        {{"seq_lens_kv", create->seq_lens_kv.data, create->seq_lens_kv.count, create->seq_lens_kv_span, 4},
         &kv_lens,
         &num_kv_lens},
        {{"block_table", create->block_table.data, create->block_table.count, create->block_table_span, 4},
         &table,
         &num_table},
        {{"slot_mapping", create->slot_mapping.data, create->slot_mapping.count, create->slot_mapping_span, 8},
         &slots,
         &num_slots},
        {{"positions", create->positions.data, create->positions.count, create->positions_span, 4},
         &positions,
         &num_positions},
        {{"mask", create->mask.data, create->mask.count, create->mask_span, 1}, &mask, &mask_bytes},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++) {
        enum status status = metadata_fetch(call, &vectors[i].field, vectors[i].data, vectors[i].count);
        if (status != STATUS_OK)
            return status;
    }
    *params = (struct core_batch_params){
        .cache = create->cache,
        .num_seqs = create->num_seqs,
        .max_blocks = create->max_blocks,
        .cu_seqlens_q = lens,
        .num_cu_seqlens_q = num_lens,
        .seq_lens_kv = kv_lens,
        .num_seq_lens_kv = num_kv_lens,
        .block_table = table,
        .num_block_table = num_table,
        .slot_mapping = slots,
        .num_slot_mapping = num_slots,
        .positions = positions,
        .num_positions = num_positions,
        .mask = mask,
        .mask_bytes = mask_bytes,
        .max_context_len = create->max_context_len,
    };
    return STATUS_OK;
}

enum status handle_batch_create(struct call *call)
{
    struct core_batch_params params;
    struct wire_batch_create_reply answer;
    enum status status = fetch_batch(call, &call->request->batch_create, &params);
    if (status == STATUS_OK)
        status = core_batch_create(call->session->core, &params, &answer.batch, &answer.num_tokens, &call->error);
    if (status != STATUS_OK)
        return status;
    call->reply.answer = WIRE_ANSWER_BATCH_CREATE;
    call->reply.batch_create = answer;
    return STATUS_OK;
}

enum status handle_batch_destroy(struct call *call)
{
    call->server->retry = true;
    return core_batch_destroy(call->session->core, call->request->batch_destroy.batch, &call->error);
}

// ---- runs ----

// The first feature that `run` asks for and this version lacks; NULL if it has all.
static const char *find_unsupported(const struct wire_run *run)
{
    const struct {
        const char *name;
        bool asked;
    } features[] = {
        {"num_splits above 1", run->num_splits > 1},
        {"rope_theta", run->rope_theta != 0},
        {"rope_dim", run->rope_dim != 0},
        {"k_scale", run->k_scale != 0 && run->k_scale != 1},
        {"v_scale", run->v_scale != 0 && run->v_scale != 1},
        {"RopeInterleaved", run->flags & WIRE_RUN_ROPE_INTERLEAVED},
        {"ForceContiguous", run->flags & WIRE_RUN_FORCE_CONTIGUOUS},
        {"an unknown flag", run->flags & ~(WIRE_RUN_FORCE_CONTIGUOUS * 2u - 1u)},
    };
    for (size_t i = 0; i < sizeof features / sizeof features[0]; i++) {
        if (features[i].asked)
            return features[i].name;
    }
    return NULL;
}

static struct core_tensor tensor_of(const struct wire_tensor *tensor)
{
    return (struct core_tensor){tensor->memory, tensor->dtype, tensor->offset, tensor->token_stride,
                                tensor->head_stride};
}

// The kernels leave excluded keys out; a value that would let them in is none that could be meant.
static enum status check_mask_value(struct call *call, float value)
{
    if (value == 0 || value <= -1e30f)
        return STATUS_OK;
    return error_set(&call->error, STATUS_INVALID,
                     "mask_value is %g; 0, -inf or anything from -1e30 down means excluded, others are not done",
                     (double)value);
}

// One f32 a head, from the arena. *values is NULL if the span is not given; the memory lives as long as the call.
static enum status fetch_heads(struct call *call, const char *name, const struct wire_span *span, const float **values)
{
    const struct metadata field = {.name = name, .span = *span, .element_size = sizeof(float)};
    uint32_t num_heads = call->request->run.num_heads, count;
    const void *data;
    if (span->count && span->count != num_heads)
        return error_set(&call->error, STATUS_INVALID, "%s has %" PRIu64 " entries; num_heads is %" PRIu32, name,
                         span->count, num_heads);
    if (span->count > MAX_HEAD_VALUES)
        return error_set(&call->error, STATUS_LIMIT, "%s has %" PRIu64 " entries; at most %d are taken", name,
                         span->count, MAX_HEAD_VALUES);
    enum status status = metadata_fetch(call, &field, &data, &count);
    *values = status == STATUS_OK ? data : NULL;
    return status;
}

static struct core_run_params run_params(const struct wire_run *run)
{
    return (struct core_run_params){
        .batch = run->batch,
        .layer = run->layer,
        .num_heads = run->num_heads,
        .q = tensor_of(&run->q),
        .k = tensor_of(&run->k),
        .v = tensor_of(&run->v),
        .out = tensor_of(&run->out),
        .scale = run->scale,
        .causal = run->flags & WIRE_RUN_CAUSAL,
        .detached = run->flags & WIRE_RUN_DETACHED,
        .windowed = run->window_left != -1 || run->window_right != -1,
        .window_left = run->window_left,
        .window_right = run->window_right,
        .soft_cap = run->logits_soft_cap,
        .lse = tensor_of(&run->lse),
        .unsupported = find_unsupported(run), // a static string: it may be parked
    };
}

// What the run says of itself, before core is asked; *params then lives as long as the call.
static enum status fetch_run(struct call *call, struct core_run_params *params)
{
    const struct wire_run *run = &call->request->run;
    if (run->timeout_ms < -1)
        return error_set(&call->error, STATUS_INVALID, "timeout_ms = %d; -1 waits for ever", run->timeout_ms);
    *params = run_params(run);
    enum status status = check_mask_value(call, run->mask_value);
    if (status == STATUS_OK)
        status = fetch_heads(call, "slopes", &run->slopes, &params->slopes);
    if (status == STATUS_OK)
        status = fetch_heads(call, "sinks", &run->sinks, &params->sinks);
    return status;
}

// BUSY now: park it, unless the client does not want to wait.
static enum status wait_for_ticket(struct call *call, const struct core_run_params *params)
{
    int32_t timeout_ms = call->request->run.timeout_ms;
    if (timeout_ms == 0)
        return STATUS_BUSY;
    const struct parked parked = {.kind = PARKED_RUN, .deadline_ns = clock_deadline_ns(timeout_ms), .run = *params};
    return park(call, &parked);
}

enum status handle_run(struct call *call)
{
    struct core_run_params params;
    struct session *session = call->session;
    uint64_t ticket;
    enum status status = fetch_run(call, &params);
    if (status != STATUS_OK)
        return status;
    if (session->num_parked_runs > 0) {
        error_set(&call->error, STATUS_BUSY, "%u runs of session %" PRIu64 " wait for a ticket already (--max-tickets)",
                  session->num_parked_runs, session->id);
        return wait_for_ticket(call, &params);
    }
    status = core_run(session->core, &params, &ticket, &call->error);
    if (status == STATUS_BUSY)
        return wait_for_ticket(call, &params);
    call->reply.answer = WIRE_ANSWER_RUN;
    call->reply.run.ticket = ticket;
    return status;
}

enum status handle_wait(struct call *call)
{
    const struct wire_wait *wait = &call->request->wait;
    struct core_ticket_result result;
    if (wait->timeout_ms < -1)
        return error_set(&call->error, STATUS_INVALID, "timeout_ms = %d; -1 waits for ever", wait->timeout_ms);
    enum status status = core_ticket_reap(call->session->core, wait->ticket, &result, &call->error);
    if (status == STATUS_TIMEOUT && wait->timeout_ms != 0) {
        const struct parked parked = {
            .kind = PARKED_WAIT, .deadline_ns = clock_deadline_ns(wait->timeout_ms), .ticket = wait->ticket};
        return park(call, &parked);
    }
    if (status == STATUS_OK) {
        park_fill_wait(&call->reply, &result);
        call->server->retry = true; // a ticket came free
    }
    return status;
}
