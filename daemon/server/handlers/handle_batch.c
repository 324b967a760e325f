// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// handle_batch.c - the handlers of batches: from a verified command to a call of core and back.
// The arrays are in the message or in the arena (metadata.h); core checks what they say. Large ones
// are copied and checked by the job thread (server/offload.h). Dispatcher thread, except the
// functions named fill_.

#include "metadata.h"
#include "server/offload.h"
#include "server/session.h"

#include <assert.h>
#include <string.h>

static_assert(sizeof(struct core_entry) == 3 * sizeof(int32_t),
              "on the wire an entry is three numbers");

// The arrays of a BatchCreate.
enum vector {
    CU_SEQLENS_Q,
    SEQ_LENS_KV,
    BLOCK_TABLE,
    SLOT_MAPPING,
    POSITIONS,
    MASK,
    Q_LENS,
    TOKEN_ROWS,
    KV_STARTS,
    NUM_VECTORS
};

#define VECTOR(name, size)                                                                         \
    {                                                                                              \
#name, given->name.data, given->name.count, given->name##_span, size                       \
    }

static void vectors_of(const struct wire_batch_create *given, struct metadata fields[NUM_VECTORS])
{
    const struct metadata all[NUM_VECTORS] = {
        [CU_SEQLENS_Q] = VECTOR(cu_seqlens_q, 4),
        [SEQ_LENS_KV] = VECTOR(seq_lens_kv, 4),
        [BLOCK_TABLE] = VECTOR(block_table, 4),
        [SLOT_MAPPING] = VECTOR(slot_mapping, 8),
        [POSITIONS] = VECTOR(positions, 4),
        [MASK] = VECTOR(mask, 1),
        [Q_LENS] = VECTOR(q_lens, 4),
        [TOKEN_ROWS] = VECTOR(token_rows, 4),
        [KV_STARTS] = VECTOR(kv_starts, 4),
    };
    memcpy(fields, all, sizeof all);
}

// A command with large arrays while the job thread prepares it. In the call's memory.
struct making {
    struct core_draft *draft;
    uint32_t num_fields;
    struct metadata fields[NUM_VECTORS];
    struct fetched vectors[NUM_VECTORS];
    struct core_batch_params params; // without arrays
    uint64_t batch;                  // that advances
};

// The same memory for a call of which no more than the arena is needed. NULL: no memory.
static struct making *keep(struct call *call, const struct metadata *fields, uint32_t num_fields,
                           const struct fetched *vectors)
{
    struct making *making = call_alloc(call, 1, sizeof *making);
    if (!making)
        return NULL;
    making->num_fields = num_fields;
    memcpy(making->fields, fields, num_fields * sizeof *fields);
    memcpy(making->vectors, vectors, num_fields * sizeof *vectors);
    return metadata_keep(call, fields, num_fields, making->vectors) == STATUS_OK ? making : NULL;
}

static enum status copy(struct call *call, struct making *making)
{
    return metadata_copy(call, making->fields, making->num_fields, making->vectors);
}

static void drop(void *context)
{
    core_draft_discard(((struct making *)context)->draft);
}

static enum status offload(struct call *call, const struct offload_steps *steps,
                           struct making *making)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < making->num_fields; i++)
        bytes += (uint64_t)making->vectors[i].count * making->fields[i].element_size;
    enum status status = offload_start(call, steps, making, bytes);
    if (status != STATUS_OK)
        core_draft_discard(making->draft);
    return status;
}

// Copies what the job needs, so that it reads nothing but this memory and the arena.
static enum status copy_now(struct call *call, const struct metadata *fields, uint32_t num_fields,
                            struct fetched *vectors)
{
    enum status status = metadata_copy(call, fields, num_fields, vectors);
    if (status != STATUS_OK)
        return status;
    status =
        session_check_copy(call->session, wire_command_name(call->request->command), &call->error);
    if (status != STATUS_OK)
        call->session = NULL;
    return status;
}

static struct core_layout layout_of(const struct wire_kv_layout *layout)
{
    return (struct core_layout){
        .kv =
            {
                .num_kv_heads = layout->num_kv_heads,
                .head_dim_k = layout->head_dim_k,
                .head_dim_v = layout->head_dim_v,
                .block_size = layout->block_size,
                .k_dtype = (enum dtype)layout->k_dtype,
                .v_dtype = (enum dtype)layout->v_dtype,
                .v_is_k_prefix = layout->v_is_k_prefix,
                .scale_mode = (enum scale_mode)layout->scale_mode,
            },
        .num_blocks = layout->num_blocks,
    };
}

static struct core_batch_params params_of(const struct wire_batch_create *create)
{
    return (struct core_batch_params){
        .cache = create->cache,
        .num_seqs = create->num_seqs,
        .max_blocks = create->max_blocks,
        .max_context_len = create->max_context_len,
        .max_seqlen_q = create->max_seqlen_q,
        .beside = create->beside,
    };
}

static void set_vectors(struct core_batch_params *params, const struct fetched *vectors)
{
    params->cu_seqlens_q = vectors[CU_SEQLENS_Q].data;
    params->num_cu_seqlens_q = vectors[CU_SEQLENS_Q].count;
    params->seq_lens_kv = vectors[SEQ_LENS_KV].data;
    params->num_seq_lens_kv = vectors[SEQ_LENS_KV].count;
    params->block_table = vectors[BLOCK_TABLE].data;
    params->num_block_table = vectors[BLOCK_TABLE].count;
    params->slot_mapping = vectors[SLOT_MAPPING].data;
    params->num_slot_mapping = vectors[SLOT_MAPPING].count;
    params->positions = vectors[POSITIONS].data;
    params->num_positions = vectors[POSITIONS].count;
    params->mask = vectors[MASK].data;
    params->mask_bytes = vectors[MASK].count;
    params->q_lens = vectors[Q_LENS].data;
    params->num_q_lens = vectors[Q_LENS].count;
    params->token_rows = vectors[TOKEN_ROWS].data;
    params->num_token_rows = vectors[TOKEN_ROWS].count;
    params->kv_starts = vectors[KV_STARTS].data;
    params->num_kv_starts = vectors[KV_STARTS].count;
}

static enum status fill_create(struct call *call, void *context)
{
    struct making *making = context;
    enum status status = copy(call, making);
    if (status != STATUS_OK)
        return status;
    set_vectors(&making->params, making->vectors);
    return core_draft_fill(making->draft, &making->params, &call->error);
}

static enum status end_create(struct call *call, void *context, bool *more)
{
    (void)more;
    struct wire_batch_create_reply *answer = &call->reply.batch_create;
    call->reply.answer = WIRE_ANSWER_BATCH_CREATE;
    return core_draft_end(((struct making *)context)->draft, &answer->batch, &answer->num_tokens,
                          &call->error);
}

// `params` have the lengths of the arrays, but not the arrays.
static enum status create_elsewhere(struct call *call, const struct core_batch_params *params,
                                    const struct metadata *fields, const struct fetched *vectors)
{
    static const struct offload_steps steps = {fill_create, end_create, drop, NULL};
    struct making *making = keep(call, fields, NUM_VECTORS, vectors);
    if (!making)
        return call->error.status;
    enum status status =
        core_batch_begin(call->session->core, params, &making->draft, &call->error);
    making->params = *params;
    making->params.layout = NULL;
    return status == STATUS_OK ? offload(call, &steps, making) : status;
}

enum status handle_batch_create(struct call *call)
{
    const struct wire_batch_create *create = &call->request->batch_create;
    const struct core_layout layout = layout_of(&create->layout);
    struct core_batch_params params = params_of(create);
    struct wire_batch_create_reply answer;
    struct metadata fields[NUM_VECTORS];
    struct fetched vectors[NUM_VECTORS] = {0};
    uint64_t bytes;
    vectors_of(create, fields);
    params.layout = create->has_layout ? &layout : NULL;
    enum status status = metadata_check(call, fields, NUM_VECTORS, vectors, &bytes);
    if (status == STATUS_OK && bytes <= OFFLOAD_BYTES)
        status = copy_now(call, fields, NUM_VECTORS, vectors);
    if (status != STATUS_OK)
        return status;
    set_vectors(&params, vectors);
    if (bytes > OFFLOAD_BYTES)
        return create_elsewhere(call, &params, fields, vectors);
    status = core_batch_create(call->session->core, &params, &answer.batch, &answer.num_tokens,
                               &call->error);
    if (status != STATUS_OK)
        return status;
    call->reply.answer = WIRE_ANSWER_BATCH_CREATE;
    call->reply.batch_create = answer;
    return STATUS_OK;
}

// ---- the next step ----

enum { NEXT_SEQ_LENS, NEXT_ENTRIES, NEXT_SLOTS, NEXT_POSITIONS, NUM_NEXT };
enum { NUMBERS_AN_ENTRY = 3 };

static void next_vectors_of(const struct wire_batch_advance *given,
                            struct metadata fields[NUM_NEXT])
{
    const struct metadata all[NUM_NEXT] = {
        [NEXT_SEQ_LENS] = VECTOR(seq_lens_kv, 4),
        [NEXT_ENTRIES] = VECTOR(entries, 4),
        [NEXT_SLOTS] = VECTOR(slot_mapping, 8),
        [NEXT_POSITIONS] = VECTOR(positions, 4),
    };
    memcpy(fields, all, sizeof all);
}

static struct core_advance advance_of(uint64_t batch, const struct fetched *next)
{
    return (struct core_advance){
        .batch = batch,
        .seq_lens_kv = next[NEXT_SEQ_LENS].data,
        .num_seq_lens_kv = next[NEXT_SEQ_LENS].count,
        .entries = next[NEXT_ENTRIES].data,
        .num_entries = next[NEXT_ENTRIES].count / NUMBERS_AN_ENTRY,
        .slot_mapping = next[NEXT_SLOTS].data,
        .num_slot_mapping = next[NEXT_SLOTS].count,
        .positions = next[NEXT_POSITIONS].data,
        .num_positions = next[NEXT_POSITIONS].count,
    };
}

static enum status fill_advance(struct call *call, void *context)
{
    struct making *making = context;
    enum status status = copy(call, making);
    const struct core_advance advance = advance_of(making->batch, making->vectors);
    return status == STATUS_OK ? core_draft_fill_next(making->draft, &advance, &call->error)
                               : status;
}

static enum status end_advance(struct call *call, void *context, bool *more)
{
    (void)more;
    uint64_t batch;
    uint32_t num_tokens;
    return core_draft_end(((struct making *)context)->draft, &batch, &num_tokens, &call->error);
}

static enum status advance_elsewhere(struct call *call, const struct core_advance *advance,
                                     const struct metadata *fields, const struct fetched *next)
{
    static const struct offload_steps steps = {fill_advance, end_advance, drop, NULL};
    struct making *making = keep(call, fields, NUM_NEXT, next);
    if (!making)
        return call->error.status;
    making->batch = advance->batch;
    enum status status =
        core_advance_begin(call->session->core, advance, &making->draft, &call->error);
    return status == STATUS_OK ? offload(call, &steps, making) : status;
}

enum status handle_batch_advance(struct call *call)
{
    const struct wire_batch_advance *given = &call->request->batch_advance;
    struct metadata fields[NUM_NEXT];
    struct fetched next[NUM_NEXT] = {0};
    uint64_t bytes;
    next_vectors_of(given, fields);
    enum status status = metadata_check(call, fields, NUM_NEXT, next, &bytes);
    if (status == STATUS_OK && bytes <= OFFLOAD_BYTES)
        status = copy_now(call, fields, NUM_NEXT, next);
    if (status != STATUS_OK)
        return status;
    if (next[NEXT_ENTRIES].count % NUMBERS_AN_ENTRY)
        return error_set(&call->error, STATUS_INVALID, "entries has %u numbers; an entry is %d",
                         next[NEXT_ENTRIES].count, NUMBERS_AN_ENTRY);
    const struct core_advance advance = advance_of(given->batch, next);
    if (bytes > OFFLOAD_BYTES ||
        core_advance_is_large(call->session->core, &advance, OFFLOAD_BYTES))
        return advance_elsewhere(call, &advance, fields, next);
    return core_batch_advance(call->session->core, &advance, &call->error);
}

enum status handle_batch_destroy(struct call *call)
{
    return core_batch_destroy(call->session->core, call->request->batch_destroy.batch,
                              &call->error);
}
