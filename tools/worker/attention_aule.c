// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_aule.c - the part to read and copy: one sequence whose keys, values and attention are aule's. It looks up what
// others have computed, leases blocks as the sequence grows, makes one batch a step, runs it once a layer, and publishes
// its full blocks. Every failure is passed on with the library's own sentence.

#include "attention.h"

#include "element.h"
#include "model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct shared {
    struct attention base;
    struct attention_params params;
    struct aule_session *session;
    struct aule_cache *cache;
    struct aule_batch *batch;   // of the step that is under way, or NULL
    struct aule_run_params run; // the same for every layer but for `layer`
    void *qkv, *out;            // in the arena: [max_count, MODEL_QKV_WIDTH] and [max_count, MODEL_OUT_WIDTH], of dtype
    uint32_t count;             // tokens of the step
    uint32_t num_blocks;        // held or leased: block_ids[0..num_blocks)
    int32_t *block_ids;         // [max_tokens / block_size, rounded up]; the sequence's, in order
    int32_t *published;         // as block_ids
    int64_t *slots;             // [max_count]
};

static bool failed(struct shared *shared, const char *doing, enum aule_status status)
{
    snprintf(shared->base.error, sizeof shared->base.error, "%s: %s: %s", doing, aule_status_name(status),
             aule_error());
    return false;
}

static uint32_t blocks_for(const struct shared *shared, uint32_t num_tokens)
{
    return num_tokens / shared->params.block_size + (num_tokens % shared->params.block_size != 0);
}

static bool lookup(struct attention *attention, const int32_t *tokens, uint32_t num_tokens, uint32_t *hit_tokens)
{
    struct shared *shared = (struct shared *)attention;
    const struct aule_prefix prefix = {.tokens = tokens, .num_tokens = num_tokens};
    enum aule_status status = aule_prefix_lookup(shared->cache, &prefix, 0, shared->block_ids, &shared->num_blocks);
    if (status)
        return failed(shared, "looking up the prompt", status);
    attention->hit_blocks = shared->num_blocks;
    *hit_tokens = shared->num_blocks * shared->params.block_size;
    return true;
}

static bool grow(struct shared *shared, uint32_t num_tokens)
{
    const uint32_t want = blocks_for(shared, num_tokens);
    if (want <= shared->num_blocks)
        return true;
    enum aule_status status = aule_blocks_lease(shared->cache, want - shared->num_blocks, shared->params.timeout_ms,
                                                shared->block_ids + shared->num_blocks);
    if (status)
        return failed(shared, "leasing blocks", status);
    shared->num_blocks = want;
    return true;
}

// Where the step's keys and values go; -1 = nowhere, because they are there.
static void map_slots(struct shared *shared, uint32_t first, uint32_t count, bool write)
{
    const uint32_t block_size = shared->params.block_size;
    for (uint32_t t = 0; t < count; t++) {
        const uint32_t position = first + t;
        const int64_t block = shared->block_ids[position / block_size];
        shared->slots[t] = write ? block * block_size + position % block_size : -1;
    }
}

static bool begin(struct attention *attention, uint32_t first, uint32_t count, bool write)
{
    struct shared *shared = (struct shared *)attention;
    if (!grow(shared, first + count))
        return false;
    map_slots(shared, first, count, write);
    const int32_t cu_seqlens_q[] = {0, (int32_t)count}, seq_lens_kv[] = {(int32_t)(first + count)};
    const struct aule_batch_params params = {.num_seqs = 1,
                                             .max_blocks = shared->num_blocks,
                                             .cu_seqlens_q = cu_seqlens_q,
                                             .seq_lens_kv = seq_lens_kv,
                                             .block_table = shared->block_ids,
                                             .slot_mapping = shared->slots};
    shared->count = count;
    enum aule_status status = aule_batch_create(shared->cache, &params, &shared->batch);
    return status ? failed(shared, "creating a batch", status) : true;
}

static bool run(struct attention *attention, uint32_t layer, const float *qkv, float *out)
{
    struct shared *shared = (struct shared *)attention;
    element_store(shared->qkv, qkv, (size_t)shared->count * MODEL_QKV_WIDTH, shared->params.dtype);
    shared->run.layer = layer;
    enum aule_status status = aule_run(shared->batch, &shared->run, shared->params.timeout_ms, NULL);
    if (status)
        return failed(shared, "running attention", status);
    element_load(out, shared->out, (size_t)shared->count * MODEL_OUT_WIDTH, shared->params.dtype);
    return true;
}

static void end(struct attention *attention)
{
    struct shared *shared = (struct shared *)attention;
    aule_batch_destroy(shared->batch);
    shared->batch = NULL;
}

// Another worker may have published the same blocks first: then ours are given back, and the common ones, which hold the
// same bits, take their places.
static bool exchange(struct shared *shared, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const int32_t mine = shared->block_ids[i];
        if (mine == shared->published[i])
            continue;
        shared->block_ids[i] = shared->published[i];
        enum aule_status status = aule_blocks_release(shared->cache, 1, &mine);
        if (status)
            return failed(shared, "giving back a block that was there already", status);
    }
    return true;
}

static bool publish(struct attention *attention, const int32_t *tokens, uint32_t num_tokens)
{
    struct shared *shared = (struct shared *)attention;
    const uint32_t count = num_tokens / shared->params.block_size;
    if (count == 0)
        return true;
    const struct aule_prefix prefix = {.tokens = tokens, .num_tokens = count * shared->params.block_size};
    memcpy(shared->published, shared->block_ids, count * sizeof *shared->published);
    enum aule_status status = aule_prefix_publish(shared->cache, &prefix, shared->published, NULL);
    return status ? failed(shared, "publishing the prompt", status) : exchange(shared, count);
}

// The daemon takes everything back when the session ends; a worker with a second sequence would release this one's blocks
// here: aule_blocks_release(cache, num_blocks, block_ids).
static void destroy(struct attention *attention)
{
    struct shared *shared = (struct shared *)attention;
    aule_batch_destroy(shared->batch);
    aule_cache_close(shared->cache);
    aule_session_close(shared->session);
    free(shared->block_ids);
    free(shared->published);
    free(shared->slots);
    free(shared);
}

static bool open_session(struct shared *shared)
{
    const struct attention_params *params = &shared->params;
    const uint64_t row = (MODEL_QKV_WIDTH + MODEL_OUT_WIDTH) * sizeof(float);
    const struct aule_session_params session_params = {
        .socket = params->socket,
        .name = params->name,
        .tenant = params->tenant,
        // Room for the tensors, and for metadata that is too large for a message.
        .arena_size = params->max_count * row + (uint64_t)params->max_tokens * 16 + (1 << 20),
        .timeout_ms = params->timeout_ms};
    enum aule_status status = aule_session_open(&session_params, &shared->session);
    if (status)
        return failed(shared, "opening a session", status);
    struct aule_session_info info;
    status = aule_session_info(shared->session, &info);
    if (status)
        return failed(shared, "asking about the session", status);
    shared->base.session = info.session;
    snprintf(shared->base.device, sizeof shared->base.device, "%s", info.device_name);
    return true;
}

static bool open_cache(struct shared *shared)
{
    const struct aule_cache_params params = {.name = shared->params.cache_name,
                                             .num_layers = MODEL_LAYERS,
                                             .num_kv_heads = MODEL_KV_HEADS,
                                             .head_dim = MODEL_HEAD_DIM,
                                             .k_dtype = shared->params.kv_dtype,
                                             .v_dtype = shared->params.kv_dtype,
                                             .block_size = shared->params.block_size,
                                             .fingerprint = MODEL_FINGERPRINT,
                                             .fingerprint_size = sizeof MODEL_FINGERPRINT - 1};
    enum aule_status status = aule_cache_open(shared->session, &params, &shared->cache);
    return status ? failed(shared, "opening the cache", status) : true;
}

// A view of `num_heads` heads from `first_head` on, in rows of row_heads heads that begin at `offset`.
static struct aule_tensor slice(uint64_t offset, uint32_t row_heads, uint32_t first_head, enum aule_dtype dtype)
{
    const uint64_t head_stride = MODEL_HEAD_DIM * aule_dtype_size(dtype);
    return (struct aule_tensor){.dtype = dtype,
                                .offset = offset + first_head * head_stride,
                                .token_stride = row_heads * head_stride,
                                .head_stride = head_stride};
}

static bool place_tensors(struct shared *shared)
{
    const enum aule_dtype dtype = shared->params.dtype;
    const uint64_t rows = shared->params.max_count, size = aule_dtype_size(dtype);
    const uint32_t qkv_heads = MODEL_HEADS + 2 * MODEL_KV_HEADS;
    uint64_t qkv, out;
    enum aule_status status = aule_arena_alloc(shared->session, rows * MODEL_QKV_WIDTH * size, &shared->qkv, &qkv);
    if (!status)
        status = aule_arena_alloc(shared->session, rows * MODEL_OUT_WIDTH * size, &shared->out, &out);
    if (status)
        return failed(shared, "allocating tensors in the arena", status);
    shared->run = (struct aule_run_params){.num_heads = MODEL_HEADS,
                                           .q = slice(qkv, qkv_heads, 0, dtype),
                                           .k = slice(qkv, qkv_heads, MODEL_HEADS, dtype),
                                           .v = slice(qkv, qkv_heads, MODEL_HEADS + MODEL_KV_HEADS, dtype),
                                           .out = slice(out, MODEL_HEADS, 0, dtype),
                                           .causal = true};
    return true;
}

static bool allocate(struct shared *shared)
{
    const size_t blocks = blocks_for(shared, shared->params.max_tokens);
    shared->block_ids = calloc(blocks, sizeof *shared->block_ids);
    shared->published = calloc(blocks, sizeof *shared->published);
    shared->slots = calloc(shared->params.max_count, sizeof *shared->slots);
    if (shared->block_ids && shared->published && shared->slots)
        return true;
    snprintf(shared->base.error, sizeof shared->base.error, "out of memory for the tables of %u tokens",
             shared->params.max_tokens);
    return false;
}

static const struct attention_ops ops = {lookup, begin, run, end, publish, destroy};

struct attention *attention_aule_create(const struct attention_params *params, char *error, size_t size)
{
    struct shared *shared = calloc(1, sizeof *shared);
    if (!shared) {
        snprintf(error, size, "out of memory");
        return NULL;
    }
    shared->base.ops = &ops;
    shared->params = *params;
    if (allocate(shared) && open_session(shared) && open_cache(shared) && place_tensors(shared))
        return &shared->base;
    snprintf(error, size, "%s", shared->base.error);
    destroy(&shared->base);
    return NULL;
}
