// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// handle_batch.c - the handlers of batches: from a verified command to a call of core and back.
// The arrays are in the message or in the arena (metadata.h); core checks what they say. Dispatcher
// thread.

#include "metadata.h"
#include "server/dispatch.h"

#include <assert.h>

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

struct fetched {
    const void *data; // NULL = absent
    uint32_t count;
};

static enum status fetch_vectors(struct call *call, struct fetched out[NUM_VECTORS])
{
    const struct wire_batch_create *create = &call->request->batch_create;
#define VECTOR(name, size)                                                                         \
    {                                                                                              \
#name, create->name.data, create->name.count, create->name##_span, size                    \
    }
    const struct metadata fields[NUM_VECTORS] = {
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
#undef VECTOR
    for (int i = 0; i < NUM_VECTORS; i++) {
        enum status status = metadata_fetch(call, &fields[i], &out[i].data, &out[i].count);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
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

static struct core_batch_params params_of(const struct wire_batch_create *create,
                                          const struct fetched *vectors)
{
    return (struct core_batch_params){
        .cache = create->cache,
        .num_seqs = create->num_seqs,
        .max_blocks = create->max_blocks,
        .cu_seqlens_q = vectors[CU_SEQLENS_Q].data,
        .num_cu_seqlens_q = vectors[CU_SEQLENS_Q].count,
        .seq_lens_kv = vectors[SEQ_LENS_KV].data,
        .num_seq_lens_kv = vectors[SEQ_LENS_KV].count,
        .block_table = vectors[BLOCK_TABLE].data,
        .num_block_table = vectors[BLOCK_TABLE].count,
        .slot_mapping = vectors[SLOT_MAPPING].data,
        .num_slot_mapping = vectors[SLOT_MAPPING].count,
        .positions = vectors[POSITIONS].data,
        .num_positions = vectors[POSITIONS].count,
        .mask = vectors[MASK].data,
        .mask_bytes = vectors[MASK].count,
        .q_lens = vectors[Q_LENS].data,
        .num_q_lens = vectors[Q_LENS].count,
        .token_rows = vectors[TOKEN_ROWS].data,
        .num_token_rows = vectors[TOKEN_ROWS].count,
        .kv_starts = vectors[KV_STARTS].data,
        .num_kv_starts = vectors[KV_STARTS].count,
        .max_context_len = create->max_context_len,
        .max_seqlen_q = create->max_seqlen_q,
        .beside = create->beside,
    };
}

enum status handle_batch_create(struct call *call)
{
    const struct wire_batch_create *create = &call->request->batch_create;
    struct fetched vectors[NUM_VECTORS];
    struct wire_batch_create_reply answer;
    enum status status = fetch_vectors(call, vectors);
    if (status != STATUS_OK)
        return status;
    const struct core_layout layout = layout_of(&create->layout);
    struct core_batch_params params = params_of(create, vectors);
    params.layout = create->has_layout ? &layout : NULL;
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

static enum status fetch_next(struct call *call, struct fetched out[NUM_NEXT])
{
    const struct wire_batch_advance *next = &call->request->batch_advance;
#define VECTOR(name, size)                                                                         \
    {                                                                                              \
#name, next->name.data, next->name.count, next->name##_span, size                          \
    }
    const struct metadata fields[NUM_NEXT] = {
        [NEXT_SEQ_LENS] = VECTOR(seq_lens_kv, 4),
        [NEXT_ENTRIES] = VECTOR(entries, 4),
        [NEXT_SLOTS] = VECTOR(slot_mapping, 8),
        [NEXT_POSITIONS] = VECTOR(positions, 4),
    };
#undef VECTOR
    for (int i = 0; i < NUM_NEXT; i++) {
        enum status status = metadata_fetch(call, &fields[i], &out[i].data, &out[i].count);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

enum status handle_batch_advance(struct call *call)
{
    enum { NUMBERS_AN_ENTRY = 3 };
    struct fetched next[NUM_NEXT];
    enum status status = fetch_next(call, next);
    if (status != STATUS_OK)
        return status;
    if (next[NEXT_ENTRIES].count % NUMBERS_AN_ENTRY)
        return error_set(&call->error, STATUS_INVALID, "entries has %u numbers; an entry is %d",
                         next[NEXT_ENTRIES].count, NUMBERS_AN_ENTRY);
    const struct core_advance advance = {
        .batch = call->request->batch_advance.batch,
        .seq_lens_kv = next[NEXT_SEQ_LENS].data,
        .num_seq_lens_kv = next[NEXT_SEQ_LENS].count,
        .entries = next[NEXT_ENTRIES].data,
        .num_entries = next[NEXT_ENTRIES].count / NUMBERS_AN_ENTRY,
        .slot_mapping = next[NEXT_SLOTS].data,
        .num_slot_mapping = next[NEXT_SLOTS].count,
        .positions = next[NEXT_POSITIONS].data,
        .num_positions = next[NEXT_POSITIONS].count,
    };
    status = core_batch_advance(call->session->core, &advance, &call->error);
    call->server->retry |= status == STATUS_OK; // blocks may have come free
    return status;
}

enum status handle_batch_destroy(struct call *call)
{
    enum status status =
        core_batch_destroy(call->session->core, call->request->batch_destroy.batch, &call->error);
    call->server->retry |= status == STATUS_OK;
    return status;
}
