// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// batch.c - sends one model step's metadata to the daemon, and what the next step changes. Checks
// only the values that say how long the caller's arrays are; the daemon checks their contents. Any
// thread.

#include "batch.h"

#include "client/src/caller.h"
#include "client/src/error.h"
#include "client/src/metadata.h"
#include "client/src/session.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

enum { DEFAULT_DTYPE = AULE_F16 };

static_assert(sizeof(struct aule_table_entry) == 3 * sizeof(int32_t),
              "on the wire an entry is three numbers");

// The arrays of a batch, in the order of `struct wire_batch_create`.
enum {
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

// To the daemon a mask of 0 bytes looks like no mask. So it is allowed only if there is nothing to
// mask. The daemon checks all other sizes.
enum aule_status batch_check_mask(const struct aule_batch_params *params)
{
    if (!params->mask && params->mask_size > 0)
        return fail(AULE_INVALID, "mask is NULL, but mask_size %zu", params->mask_size);
    if (!params->mask || params->mask_size > 0)
        return AULE_OK;
    for (uint32_t s = 0; s < params->num_seqs; s++) {
        if (params->cu_seqlens_q[s + 1] > params->cu_seqlens_q[s] && params->seq_lens_kv[s] > 0)
            return fail(AULE_INVALID,
                        "mask is given with mask_size 0, but sequence %u has queries and keys", s);
    }
    return AULE_OK;
}

static enum aule_status check_params(const struct aule_batch_params *params)
{
    if (!params->cu_seqlens_q)
        return fail(AULE_INVALID, "the batch's cu_seqlens_q is NULL");
    int32_t num_tokens = params->cu_seqlens_q[params->num_seqs];
    if (num_tokens < 0)
        return fail(AULE_INVALID, "cu_seqlens_q[%u] = %d is negative", params->num_seqs,
                    num_tokens);
    if (params->num_seqs > 0 && !params->seq_lens_kv)
        return fail(AULE_INVALID, "seq_lens_kv is NULL, but num_seqs is %u", params->num_seqs);
    if (params->num_seqs > 0 && params->max_blocks > 0 && !params->block_table)
        return fail(AULE_INVALID, "block_table is NULL, but its shape is [%u, %u]",
                    params->num_seqs, params->max_blocks);
    return batch_check_mask(params);
}

// `data` may be NULL: an absent array.
static struct vector ints_of(const int32_t *data, uint64_t count)
{
    return (struct vector){.data = data, .count = data ? count : 0, .element_size = sizeof *data};
}

static void list_vectors(const struct aule_batch_params *params, struct vector *vectors)
{
    uint64_t num_seqs = params->num_seqs,
             num_tokens = (uint64_t)params->cu_seqlens_q[params->num_seqs];
    vectors[CU_SEQLENS_Q] = ints_of(params->cu_seqlens_q, num_seqs + 1);
    vectors[SEQ_LENS_KV] = ints_of(params->seq_lens_kv, num_seqs);
    vectors[BLOCK_TABLE] = ints_of(params->block_table, num_seqs * params->max_blocks);
    vectors[SLOT_MAPPING] = (struct vector){.data = params->slot_mapping,
                                            .count = params->slot_mapping ? num_tokens : 0,
                                            .element_size = 8};
    vectors[POSITIONS] = ints_of(params->positions, num_tokens);
    vectors[MASK] =
        (struct vector){.data = params->mask, .count = params->mask_size, .element_size = 1};
    vectors[Q_LENS] = ints_of(params->q_lens, num_seqs);
    vectors[TOKEN_ROWS] = ints_of(params->token_rows, num_tokens);
    vectors[KV_STARTS] = ints_of(params->kv_starts, num_seqs);
}

static struct wire_kv_layout layout_of(const struct aule_kv_layout *layout)
{
    return (struct wire_kv_layout){
        .num_kv_heads = layout->num_kv_heads,
        .head_dim_k = layout->head_dim,
        .head_dim_v = layout->head_dim_v ? layout->head_dim_v : layout->head_dim,
        .v_is_k_prefix = layout->v_is_k_prefix,
        .k_dtype = layout->k_dtype ? layout->k_dtype : DEFAULT_DTYPE,
        .v_dtype = layout->v_dtype ? layout->v_dtype : DEFAULT_DTYPE,
        .scale_mode = layout->scale_mode,
        .block_size = layout->block_size,
        .num_blocks = layout->num_blocks,
    };
}

static struct wire_batch_create command_of(const struct aule_batch_params *params,
                                           const struct vector *vectors)
{
    return (struct wire_batch_create){
        .num_seqs = params->num_seqs,
        .max_blocks = params->max_blocks,
        .max_context_len = params->max_context_len,
        .max_seqlen_q = params->max_seqlen_q,
        .beside = params->beside ? params->beside->id : 0,
        .cu_seqlens_q = vector_ints(&vectors[CU_SEQLENS_Q]),
        .seq_lens_kv = vector_ints(&vectors[SEQ_LENS_KV]),
        .block_table = vector_ints(&vectors[BLOCK_TABLE]),
        .slot_mapping = vector_longs(&vectors[SLOT_MAPPING]),
        .positions = vector_ints(&vectors[POSITIONS]),
        .mask = vector_bytes(&vectors[MASK]),
        .q_lens = vector_ints(&vectors[Q_LENS]),
        .token_rows = vector_ints(&vectors[TOKEN_ROWS]),
        .kv_starts = vector_ints(&vectors[KV_STARTS]),
        .cu_seqlens_q_span = vectors[CU_SEQLENS_Q].span,
        .seq_lens_kv_span = vectors[SEQ_LENS_KV].span,
        .block_table_span = vectors[BLOCK_TABLE].span,
        .slot_mapping_span = vectors[SLOT_MAPPING].span,
        .positions_span = vectors[POSITIONS].span,
        .mask_span = vectors[MASK].span,
        .q_lens_span = vectors[Q_LENS].span,
        .token_rows_span = vectors[TOKEN_ROWS].span,
        .kv_starts_span = vectors[KV_STARTS].span,
    };
}

static enum aule_status ask(struct life *life, const struct batch_source *source,
                            const struct aule_batch_params *params, uint64_t *id)
{
    struct vector vectors[NUM_VECTORS];
    struct metadata metadata;
    list_vectors(params, vectors);
    enum aule_status status = metadata_begin(life, vectors, NUM_VECTORS, 0, &metadata);
    if (status != AULE_OK)
        return status;
    struct wire_request request = {.command = WIRE_COMMAND_BATCH_CREATE,
                                   .batch_create = command_of(params, vectors)};
    struct wire_batch_create *command = &request.batch_create;
    command->has_layout = source->layout != NULL;
    if (source->layout)
        command->layout = layout_of(source->layout);
    else
        command->cache = source->cache->id;
    struct answer answer;
    status = life_call(life, &request, 0, WIRE_ANSWER_BATCH_CREATE, &answer);
    metadata_finish(life, &metadata);
    if (status == AULE_OK)
        *id = answer.reply.batch_create.batch;
    answer_finish(&answer);
    return status;
}

// Another session may have a batch of the same id.
static enum aule_status check_beside(const struct life *life, const struct aule_batch *beside,
                                     struct handle **in_use)
{
    if (!beside)
        return AULE_OK;
    enum aule_status status = handle_enter(beside, &batch_handles, __func__, "beside", in_use);
    if (status != AULE_OK || beside->life == life)
        return status;
    status = life_enter(beside->life); // it may have been replaced
    if (status != AULE_OK)
        return status;
    life_leave(beside->life);
    return fail(AULE_INVALID, "beside is a batch of another session, %" PRIu64 " and not %" PRIu64,
                beside->life->info.session, life->info.session);
}

static uint64_t sum_of(const int32_t *lens, uint32_t count)
{
    uint64_t sum = 0;
    for (uint32_t s = 0; s < count; s++)
        sum += (uint64_t)lens[s];
    return sum;
}

// The daemon has checked the arrays.
static void note_rows(struct aule_batch *batch, const struct aule_batch_params *params)
{
    const int32_t *cu = params->cu_seqlens_q;
    uint32_t count = params->num_seqs;
    while (count > 0 && cu[count] == cu[count - 1])
        count--;
    if (count > 0) {
        batch->last_seq = count - 1;
        batch->last_rows = (uint32_t)(cu[count] - cu[count - 1]);
    }
    batch->has_slots = params->slot_mapping != NULL;
    batch->num_queries =
        params->q_lens ? sum_of(params->q_lens, params->num_seqs) : batch->num_tokens;
    batch->num_keys = params->seq_lens_kv ? sum_of(params->seq_lens_kv, params->num_seqs) : 0;
}

// An ended session has destroyed it already.
static void tell_destroy(const struct aule_batch *batch)
{
    struct wire_request request = {.command = WIRE_COMMAND_BATCH_DESTROY,
                                   .batch_destroy = {.batch = batch->id}};
    life_tell(batch->life, &request);
}

static void batch_end(struct handle *handle)
{
    struct aule_batch *batch = (struct aule_batch *)handle;
    life_unref(batch->life);
    free(batch);
}

const struct handle_kind batch_handles = {"the batch", AULE_INVALID, batch_end};

enum aule_status batch_create(struct life *life, const struct batch_source *source,
                              const struct aule_batch_params *params, struct aule_batch **out)
{
    struct handle *beside __attribute__((cleanup(handle_leave))) = NULL;
    enum aule_status status = check_beside(life, params->beside, &beside);
    if (status != AULE_OK)
        return status;
    struct aule_batch *batch = calloc(1, sizeof *batch);
    if (!batch)
        return fail(AULE_NO_MEMORY, "no memory for a batch");
    *batch = (struct aule_batch){
        .num_kv_heads = source->layout ? source->layout->num_kv_heads : source->cache->num_kv_heads,
        .num_seqs = params->num_seqs,
        .num_tokens = (uint32_t)params->cu_seqlens_q[params->num_seqs],
        .path = source->layout && source->layout->block_size == 0 ? AULE_PATH_CONTIGUOUS
                                                                  : AULE_PATH_PAGED,
        .num_blocks = source->layout ? source->layout->num_blocks : 0,
        .block_size = source->layout ? source->layout->block_size : 0};
    status = ask(life, source, params, &batch->id);
    if (status != AULE_OK) {
        free(batch);
        return status;
    }
    note_rows(batch, params);
    batch->life = life_ref(life);
    status = handle_open(&batch->handle, &batch_handles);
    if (status == AULE_OK) {
        *out = batch;
    } else {
        tell_destroy(batch);
        batch_end(&batch->handle);
    }
    return status;
}

enum aule_status aule_batch_create_sized(struct aule_cache *cache,
                                         const struct aule_batch_params *params, size_t params_size,
                                         struct aule_batch **out)
{
    REQUIRE(out);
    *out = NULL;
    USE(cache);
    REQUIRE(params);
    struct aule_batch_params whole;
    enum aule_status status = TAKE(&whole, params, params_size);
    if (status == AULE_OK)
        status = check_params(&whole);
    if (status == AULE_OK)
        status = life_enter(cache->life);
    if (status != AULE_OK)
        return status;
    status = batch_create(cache->life, &(struct batch_source){.cache = cache}, &whole, out);
    life_leave(cache->life);
    return status;
}

enum aule_status aule_batch_create_local_sized(struct aule_session *session,
                                               const struct aule_kv_layout *layout,
                                               size_t layout_size,
                                               const struct aule_batch_params *params,
                                               size_t params_size, struct aule_batch **out)
{
    REQUIRE(out);
    *out = NULL;
    REQUIRE(session);
    REQUIRE(layout);
    REQUIRE(params);
    struct aule_kv_layout whole_layout;
    struct aule_batch_params whole;
    struct life *life;
    enum aule_status status = TAKE(&whole_layout, layout, layout_size);
    if (status == AULE_OK)
        status = TAKE(&whole, params, params_size);
    if (status == AULE_OK)
        status = check_params(&whole);
    if (status == AULE_OK)
        status = session_get(session, &life);
    if (status != AULE_OK)
        return status;
    status = batch_create(life, &(struct batch_source){.layout = &whole_layout}, &whole, out);
    session_put(life);
    return status;
}

// ---- the next step ----

enum { NEXT_SEQ_LENS, NEXT_ENTRIES, NEXT_SLOTS, NEXT_POSITIONS, NUM_NEXT };

static enum aule_status send_advance(const struct aule_batch *batch,
                                     const struct aule_advance *advance)
{
    struct life *life = batch->life;
    struct metadata metadata;
    struct vector vectors[NUM_NEXT] = {
        [NEXT_SEQ_LENS] = ints_of(advance->seq_lens_kv, batch->num_seqs),
        [NEXT_ENTRIES] =
            ints_of((const int32_t *)advance->entries, UINT64_C(3) * advance->num_entries),
        [NEXT_SLOTS] = {.data = advance->slot_mapping,
                        .count = advance->slot_mapping ? batch->num_tokens : 0,
                        .element_size = 8},
        [NEXT_POSITIONS] = ints_of(advance->positions, batch->num_tokens),
    };
    enum aule_status status = metadata_begin(life, vectors, NUM_NEXT, 0, &metadata);
    if (status != AULE_OK)
        return status;
    struct wire_request request = {
        .command = WIRE_COMMAND_BATCH_ADVANCE,
        .batch_advance =
            {
                .batch = batch->id,
                .seq_lens_kv = vector_ints(&vectors[NEXT_SEQ_LENS]),
                .entries = vector_ints(&vectors[NEXT_ENTRIES]),
                .slot_mapping = vector_longs(&vectors[NEXT_SLOTS]),
                .positions = vector_ints(&vectors[NEXT_POSITIONS]),
                .seq_lens_kv_span = vectors[NEXT_SEQ_LENS].span,
                .entries_span = vectors[NEXT_ENTRIES].span,
                .slot_mapping_span = vectors[NEXT_SLOTS].span,
                .positions_span = vectors[NEXT_POSITIONS].span,
            },
    };
    struct answer answer;
    status = life_call(life, &request, 0, WIRE_ANSWER_EMPTY, &answer);
    metadata_finish(life, &metadata);
    answer_finish(&answer);
    return status;
}

enum aule_status aule_batch_advance_sized(struct aule_batch *batch,
                                          const struct aule_advance *advance, size_t advance_size)
{
    USE(batch);
    REQUIRE(advance);
    struct aule_advance whole;
    enum aule_status status = TAKE(&whole, advance, advance_size);
    if (status != AULE_OK)
        return status;
    if (whole.num_entries > 0 && !whole.entries)
        return fail(AULE_INVALID, "entries is NULL, but num_entries is %u", whole.num_entries);
    status = life_enter(batch->life);
    if (status != AULE_OK)
        return status;
    status = send_advance(batch, &whole);
    life_leave(batch->life);
    if (status == AULE_OK)
        batch->num_keys = whole.seq_lens_kv ? sum_of(whole.seq_lens_kv, batch->num_seqs)
                                            : batch->num_keys + batch->num_queries;
    return status;
}

void aule_batch_destroy(struct aule_batch *batch)
{
    if (!batch || !handle_close(batch, &batch_handles))
        return;
    tell_destroy(batch);
    handle_unref(&batch->handle);
}
