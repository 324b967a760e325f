// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_paged.c - the example to read and copy: one sequence whose keys, values and attention
// are aule's. It looks up what other workers have computed, leases blocks as the sequence grows,
// makes one batch a step, runs it once a layer, and publishes its full blocks. Each failure is
// reported with the library's own sentence.

#include "connection.h"
#include "kept.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct paged {
    struct connection connection;
    struct aule_cache *cache;
    struct aule_batch *batch; // of the current step, or NULL
    uint32_t count;           // tokens of the step
    uint32_t num_blocks;      // held or leased: block_ids[0..num_blocks)
    int32_t *block_ids; // [max_tokens / block_size, rounded up], the sequence's blocks in order
    int32_t *published; // as block_ids
    int64_t *slots;     // [max_count]
};

static bool failed(struct paged *paged, const char *doing, enum aule_status status)
{
    return connection_failed(&paged->connection, doing, status);
}

static uint32_t blocks_for(const struct paged *paged, uint32_t num_tokens)
{
    return num_tokens / paged->connection.params.block_size +
           (num_tokens % paged->connection.params.block_size != 0);
}

static bool lookup(struct attention *attention, const int32_t *tokens, uint32_t num_tokens,
                   uint32_t *hit_tokens)
{
    struct paged *paged = (struct paged *)attention;
    const struct aule_prefix prefix = {.tokens = tokens, .num_tokens = num_tokens};
    enum aule_status status =
        aule_prefix_lookup(paged->cache, &prefix, 0, paged->block_ids, &paged->num_blocks);
    if (status)
        return failed(paged, "looking up the prompt", status);
    attention->hit_blocks = paged->num_blocks;
    *hit_tokens = paged->num_blocks * paged->connection.params.block_size;
    return true;
}

static bool grow(struct paged *paged, uint32_t num_tokens)
{
    const uint32_t want = blocks_for(paged, num_tokens);
    if (want <= paged->num_blocks)
        return true;
    enum aule_status status = aule_blocks_lease(paged->cache, want - paged->num_blocks,
                                                paged->connection.params.timeout_ms,
                                                paged->block_ids + paged->num_blocks);
    if (status)
        return failed(paged, "leasing blocks", status);
    paged->num_blocks = want;
    return true;
}

// Where the step's keys and values go; -1 = nowhere, because they exist already.
static void map_slots(struct paged *paged, uint32_t first, uint32_t count, bool write)
{
    const uint32_t block_size = paged->connection.params.block_size;
    for (uint32_t t = 0; t < count; t++) {
        const uint32_t position = first + t;
        const int64_t block = paged->block_ids[position / block_size];
        paged->slots[t] = write ? block * block_size + position % block_size : -1;
    }
}

static bool begin(struct attention *attention, uint32_t first, uint32_t count, bool write)
{
    struct paged *paged = (struct paged *)attention;
    if (!grow(paged, first + count))
        return false;
    map_slots(paged, first, count, write);
    const int32_t cu_seqlens_q[] = {0, (int32_t)count}, seq_lens_kv[] = {(int32_t)(first + count)};
    const struct aule_batch_params params = {.num_seqs = 1,
                                             .max_blocks = paged->num_blocks,
                                             .cu_seqlens_q = cu_seqlens_q,
                                             .seq_lens_kv = seq_lens_kv,
                                             .block_table = paged->block_ids,
                                             .slot_mapping = paged->slots};
    paged->count = count;
    enum aule_status status = aule_batch_create(paged->cache, &params, &paged->batch);
    return status ? failed(paged, "creating a batch", status) : true;
}

static bool run(struct attention *attention, uint32_t layer, const float *qkv, float *out)
{
    struct paged *paged = (struct paged *)attention;
    struct aule_run_params params = paged->connection.run;
    params.layer = layer;
    params.k_scale = kept_key_scale(&paged->connection.params.kv);
    params.v_scale = kept_value_scale(&paged->connection.params.kv);
    connection_store(&paged->connection, qkv, paged->count);
    enum aule_status status =
        aule_run(paged->batch, &params, paged->connection.params.timeout_ms, NULL);
    if (status)
        return failed(paged, "running attention", status);
    connection_load(&paged->connection, out, paged->count);
    return true;
}

static void end(struct attention *attention)
{
    struct paged *paged = (struct paged *)attention;
    aule_batch_destroy(paged->batch);
    paged->batch = NULL;
}

// Another worker may have published the same blocks first. Then our blocks are released, and the
// published ones, which hold the same bits, take their places.
static bool exchange(struct paged *paged, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const int32_t mine = paged->block_ids[i];
        if (mine == paged->published[i])
            continue;
        paged->block_ids[i] = paged->published[i];
        enum aule_status status = aule_blocks_release(paged->cache, 1, &mine);
        if (status)
            return failed(paged, "giving back a block that was there already", status);
    }
    return true;
}

static bool publish(struct attention *attention, const int32_t *tokens, uint32_t num_tokens)
{
    struct paged *paged = (struct paged *)attention;
    const uint32_t count = num_tokens / paged->connection.params.block_size;
    if (count == 0)
        return true;
    const struct aule_prefix prefix = {.tokens = tokens,
                                       .num_tokens = count * paged->connection.params.block_size};
    memcpy(paged->published, paged->block_ids, count * sizeof *paged->published);
    enum aule_status status = aule_prefix_publish(paged->cache, &prefix, paged->published, NULL);
    return status ? failed(paged, "publishing the prompt", status) : exchange(paged, count);
}

// The daemon takes all blocks back when the session ends. A worker that goes on to a second
// sequence would release this one's blocks here: aule_blocks_release(cache, num_blocks, block_ids).
static void destroy(struct attention *attention)
{
    struct paged *paged = (struct paged *)attention;
    aule_batch_destroy(paged->batch);
    aule_cache_close(paged->cache);
    connection_close(&paged->connection);
    free(paged->block_ids);
    free(paged->published);
    free(paged->slots);
    free(paged);
}

static bool open_cache(struct paged *paged)
{
    const struct aule_cache_params params = {.name = paged->connection.params.cache_name,
                                             .num_layers = MODEL_LAYERS,
                                             .num_kv_heads = MODEL_KV_HEADS,
                                             .head_dim = MODEL_HEAD_DIM,
                                             .k_dtype = paged->connection.params.kv.dtype,
                                             .v_dtype = paged->connection.params.kv.dtype,
                                             .scale_mode = paged->connection.params.kv.scale_mode,
                                             .block_size = paged->connection.params.block_size,
                                             .fingerprint = MODEL_FINGERPRINT,
                                             .fingerprint_size = sizeof MODEL_FINGERPRINT - 1};
    enum aule_status status = aule_cache_open(paged->connection.session, &params, &paged->cache);
    return status ? failed(paged, "opening the cache", status) : true;
}

static bool allocate(struct paged *paged)
{
    const size_t blocks = blocks_for(paged, paged->connection.params.max_tokens);
    paged->block_ids = calloc(blocks, sizeof *paged->block_ids);
    paged->published = calloc(blocks, sizeof *paged->published);
    paged->slots = calloc(paged->connection.params.max_count, sizeof *paged->slots);
    if (paged->block_ids && paged->published && paged->slots)
        return true;
    return failure_set(&paged->connection.base.failure, EXIT_CODE_FAILED,
                       "out of memory for the tables of %u tokens",
                       paged->connection.params.max_tokens);
}

static const struct attention_ops ops = {lookup, begin, run, end, publish, destroy};

struct attention *attention_paged_create(const struct attention_params *params,
                                         struct failure *failure)
{
    struct paged *paged = calloc(1, sizeof *paged);
    if (!paged) {
        failure_set(failure, EXIT_CODE_FAILED, "out of memory");
        return NULL;
    }
    paged->connection.base.ops = &ops;
    if (connection_open(&paged->connection, params, 0) && allocate(paged) && open_cache(paged))
        return &paged->connection.base;
    *failure = paged->connection.base.failure;
    destroy(&paged->connection.base);
    return NULL;
}
