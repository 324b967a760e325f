// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// batch.c - one model step's metadata, sent to the daemon. Checks only what it needs to know how long the caller's arrays are;
// the daemon checks what is in them. Any thread.

#include "batch.h"

#include <inttypes.h>
#include <stdlib.h>

#include "cache.h"
#include "error.h"
#include "metadata.h"

// The arrays of a batch, in the order of `struct wire_batch_create`.
enum { CU_SEQLENS_Q, SEQ_LENS_KV, BLOCK_TABLE, SLOT_MAPPING, POSITIONS, MASK, NUM_VECTORS };

// A mask of no bytes looks to the daemon as if there were none, so it may be meant only where there is nothing to mask. All
// other sizes are the daemon's to check.
static enum aule_status check_mask_given(const struct aule_batch_params *params)
{
    if (!params->mask || params->mask_size > 0)
        return AULE_OK;
    for (uint32_t s = 0; s < params->num_seqs; s++) {
        if (params->cu_seqlens_q[s + 1] > params->cu_seqlens_q[s] && params->seq_lens_kv[s] > 0)
            return fail(AULE_INVALID, "mask is given and mask_size 0, but sequence %u has queries and keys", s);
    }
    return AULE_OK;
}

static enum aule_status check_params(const struct aule_batch_params *params)
{
    REQUIRE(params->cu_seqlens_q);
    int32_t num_tokens = params->cu_seqlens_q[params->num_seqs];
    if (num_tokens < 0)
        return fail(AULE_INVALID, "cu_seqlens_q[%u] = %d is no number of tokens", params->num_seqs, num_tokens);
    if (params->num_seqs > 0 && !params->seq_lens_kv)
        return fail(AULE_INVALID, "seq_lens_kv is NULL, num_seqs %u", params->num_seqs);
    if (params->num_seqs > 0 && params->max_blocks > 0 && !params->block_table)
        return fail(AULE_INVALID, "block_table is NULL, its shape [%u, %u]", params->num_seqs, params->max_blocks);
    if (!params->mask && params->mask_size > 0)
        return fail(AULE_INVALID, "mask is NULL and mask_size %zu", params->mask_size);
    return check_mask_given(params);
}

static void list_vectors(const struct aule_batch_params *params, struct vector *vectors)
{
    uint64_t num_seqs = params->num_seqs, num_tokens = (uint64_t)params->cu_seqlens_q[params->num_seqs];
    vectors[CU_SEQLENS_Q] = (struct vector){.data = params->cu_seqlens_q, .count = num_seqs + 1, .element_size = 4};
    vectors[SEQ_LENS_KV] = (struct vector){.data = params->seq_lens_kv, .count = num_seqs, .element_size = 4};
    vectors[BLOCK_TABLE] =
        (struct vector){.data = params->block_table, .count = num_seqs * params->max_blocks, .element_size = 4};
    vectors[SLOT_MAPPING] = (struct vector){
        .data = params->slot_mapping, .count = params->slot_mapping ? num_tokens : 0, .element_size = 8};
    vectors[POSITIONS] =
        (struct vector){.data = params->positions, .count = params->positions ? num_tokens : 0, .element_size = 4};
    vectors[MASK] = (struct vector){.data = params->mask, .count = params->mask_size, .element_size = 1};
}

static struct wire_batch_create command_of(uint64_t cache, const struct aule_batch_params *params,
                                           const struct vector *vectors)
{
    return (struct wire_batch_create){
        .cache = cache,
        .num_seqs = params->num_seqs,
        .max_blocks = params->max_blocks,
        .max_context_len = params->max_context_len,
        .cu_seqlens_q = vector_ints(&vectors[CU_SEQLENS_Q]),
        .seq_lens_kv = vector_ints(&vectors[SEQ_LENS_KV]),
        .block_table = vector_ints(&vectors[BLOCK_TABLE]),
        .slot_mapping = vector_longs(&vectors[SLOT_MAPPING]),
        .positions = vector_ints(&vectors[POSITIONS]),
        .mask = vector_bytes(&vectors[MASK]),
        .cu_seqlens_q_span = vectors[CU_SEQLENS_Q].span,
        .seq_lens_kv_span = vectors[SEQ_LENS_KV].span,
        .block_table_span = vectors[BLOCK_TABLE].span,
        .slot_mapping_span = vectors[SLOT_MAPPING].span,
        .positions_span = vectors[POSITIONS].span,
        .mask_span = vectors[MASK].span,
    };
}

static enum aule_status create(struct aule_cache *cache, const struct aule_batch_params *params, uint64_t *id)
{
    struct attachment *attachment = cache->attachment;
    struct vector vectors[NUM_VECTORS];
    struct metadata metadata;
    list_vectors(params, vectors);
    enum aule_status status = metadata_begin(attachment, vectors, NUM_VECTORS, 0, &metadata);
    if (status != AULE_OK)
        return status;
    struct wire_request request = {.command = WIRE_COMMAND_BATCH_CREATE,
                                   .batch_create = command_of(cache->id, params, vectors)};
    struct answer answer;
    status = attachment_call(attachment, &request, 0, WIRE_ANSWER_BATCH_CREATE, &answer);
    metadata_finish(attachment, &metadata);
    if (status == AULE_OK)
        *id = answer.reply.batch_create.batch;
    answer_finish(&answer);
    return status;
}

enum aule_status aule_batch_create(struct aule_cache *cache, const struct aule_batch_params *params,
                                   struct aule_batch **out)
{
    REQUIRE(out);
    *out = NULL;
    REQUIRE(cache);
    REQUIRE(params);
    enum aule_status status = check_params(params);
    if (status != AULE_OK)
        return status;
    struct aule_batch *batch = calloc(1, sizeof *batch);
    if (!batch)
        return fail(AULE_NO_MEMORY, "no memory for a batch");
    status = attachment_enter(cache->attachment);
    if (status == AULE_OK) {
        status = create(cache, params, &batch->id);
        attachment_leave(cache->attachment);
    }
    if (status != AULE_OK) {
        free(batch);
        return status;
    }
    batch->attachment = attachment_ref(cache->attachment);
    *out = batch;
    return AULE_OK;
}

void aule_batch_destroy(struct aule_batch *batch)
{
    if (!batch)
        return;
    struct wire_request request = {.command = WIRE_COMMAND_BATCH_DESTROY, .batch_destroy = {.batch = batch->id}};
    attachment_tell(batch->attachment, &request); // an ended session has destroyed it already
    attachment_unref(batch->attachment);
    free(batch);
}
