// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_paged.c - the example to read and copy: one sequence whose keys, values and attention
// are aule's. The library finds what other workers have computed, leases blocks as the sequence
// grows, and publishes full ones. If another worker computes the same prompt now, this one waits
// for it, block by block. Each failure is reported with the library's own sentence.

#include "aule/sequence.h"
#include "connection.h"
#include "kept.h"

#include <stdlib.h>

struct paged {
    struct connection connection;
    struct aule_cache *cache;
    struct aule_sequence *sequence;
    struct aule_step *step;
    uint32_t count; // tokens of the step
};

static bool failed(struct paged *paged, const char *doing, enum aule_status status)
{
    return connection_failed(&paged->connection, doing, status);
}

// Waits for the blocks that other workers compute now. A worker that waits in vain computes them.
static enum aule_status wait_for_others(struct paged *paged, struct aule_sequence_info *info)
{
    enum aule_status status;
    do {
        status = aule_sequence_info(paged->sequence, info);
        if (status == AULE_OK && info->num_promised > 0)
            status = aule_sequence_wait(paged->sequence, paged->connection.params.timeout_ms);
        else
            return status;
    } while (status == AULE_OK);
    return status == AULE_TIMEOUT ? AULE_OK : status;
}

static bool lookup(struct attention *attention, const int32_t *tokens, uint32_t num_tokens,
                   uint32_t *hit_tokens)
{
    struct paged *paged = (struct paged *)attention;
    const struct aule_sequence_params params = {
        .tokens = tokens, .num_tokens = num_tokens, .publish = true, .claim = true};
    struct aule_sequence_info info = {.num_found = 0};
    enum aule_status status = aule_sequence_create(paged->cache, &params, &paged->sequence);
    if (status)
        return failed(paged, "looking up the prompt", status);
    status = wait_for_others(paged, &info);
    if (status)
        return failed(paged, "waiting for the prompt", status);
    attention->hit_blocks = info.num_found / paged->connection.params.block_size;
    *hit_tokens = info.num_found;
    return true;
}

// The sequence knows which tokens exist already, so `write` says nothing new. Tokens behind the
// prompt are not published, so it need not know their ids.
static bool begin(struct attention *attention, uint32_t first, uint32_t count, bool write)
{
    struct paged *paged = (struct paged *)attention;
    struct aule_step_entry entry = {.sequence = paged->sequence, .num_tokens = count};
    struct aule_sequence_info info;
    (void)write;
    enum aule_status status = aule_sequence_info(paged->sequence, &info);
    if (!status && first + count > info.num_tokens)
        status = aule_sequence_append(paged->sequence, NULL, first + count - info.num_tokens);
    if (!status)
        status = aule_step_make(paged->step, &entry, 1, paged->connection.params.timeout_ms);
    paged->count = count;
    return status ? failed(paged, "making a step", status) : true;
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
        aule_run(aule_step_batch(paged->step), &params, paged->connection.params.timeout_ms, NULL);
    if (status)
        return failed(paged, "running attention", status);
    connection_load(&paged->connection, out, paged->count);
    return true;
}

// The next step is made from this one's batch.
static void end(struct attention *attention)
{
    (void)attention;
}

// The next step publishes what this one has computed; the last step's blocks are published when the
// sequence ends.
static bool publish(struct attention *attention, const int32_t *tokens, uint32_t num_tokens)
{
    (void)attention, (void)tokens, (void)num_tokens;
    return true;
}

static void destroy(struct attention *attention)
{
    struct paged *paged = (struct paged *)attention;
    aule_step_destroy(paged->step);
    aule_sequence_destroy(paged->sequence);
    aule_cache_close(paged->cache);
    connection_close(&paged->connection);
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
    if (!status)
        status = aule_step_create(paged->cache, &paged->step);
    return status ? failed(paged, "opening the cache", status) : true;
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
    if (connection_open(&paged->connection, params, 0) && open_cache(paged))
        return &paged->connection.base;
    *failure = paged->connection.base.failure;
    destroy(&paged->connection.base);
    return NULL;
}
