// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_contiguous.c - one sequence whose attention aule computes over plain rows of keys and
// values in this worker's arena. There is no cache, and other workers can find nothing.
// aule_attention() reads rows of the queries' type. So this file rounds values as the requested
// cache type would.

#include "connection.h"
#include "kept.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct contiguous {
    struct connection connection;
    char *rows;           // in the arena: [MODEL_LAYERS, K then V, max_tokens, MODEL_KV_HEADS,
                          // MODEL_HEAD_DIM] of dtype
    uint64_t rows_offset; // of `rows` in the arena
    uint32_t first, count;
};

enum { ROW = MODEL_KV_HEADS * MODEL_HEAD_DIM }; // elements of K, or of V, for one token

// Bytes of K, or of V, of one layer.
static uint64_t plane_size(const struct attention_params *params)
{
    return (uint64_t)params->max_tokens * ROW * aule_dtype_size(params->dtype);
}

static bool begin(struct attention *attention, uint32_t first, uint32_t count, bool write)
{
    struct contiguous *contiguous = (struct contiguous *)attention;
    (void)write; // always true: nothing is there before it was computed
    contiguous->first = first;
    contiguous->count = count;
    return true;
}

static void append(struct contiguous *contiguous, uint32_t layer, uint32_t position,
                   const float *qkv)
{
    const struct attention_params *params = &contiguous->connection.params;
    const uint64_t size = plane_size(params),
                   at = (uint64_t)position * ROW * aule_dtype_size(params->dtype);
    char *keys = contiguous->rows + 2 * layer * size, *values = keys + size;
    float row[MODEL_KV_WIDTH];
    memcpy(row, qkv + MODEL_HEADS * MODEL_HEAD_DIM, sizeof row);
    kept_row(row, params->dtype, &params->kv);
    element_store(keys + at, row, ROW, params->dtype);
    element_store(values + at, row + ROW, ROW, params->dtype);
}

static bool run(struct attention *attention, uint32_t layer, const float *qkv, float *out)
{
    struct contiguous *contiguous = (struct contiguous *)attention;
    const struct attention_params *params = &contiguous->connection.params;
    const uint64_t keys = contiguous->rows_offset + 2 * layer * plane_size(params);
    struct aule_attention_params call = {.num_seqs = 1,
                                         .q_len = contiguous->count,
                                         .kv_len = contiguous->first + contiguous->count,
                                         .num_kv_heads = MODEL_KV_HEADS,
                                         .head_dim = MODEL_HEAD_DIM,
                                         .path = AULE_PATH_CONTIGUOUS,
                                         .run = contiguous->connection.run};
    call.run.k = connection_slice(keys, MODEL_KV_HEADS, 0, params->dtype);
    call.run.v = connection_slice(keys + plane_size(params), MODEL_KV_HEADS, 0, params->dtype);
    for (uint32_t t = 0; t < contiguous->count; t++)
        append(contiguous, layer, contiguous->first + t, qkv + (size_t)t * MODEL_QKV_WIDTH);
    connection_store(&contiguous->connection, qkv, contiguous->count);
    enum aule_status status =
        aule_attention(contiguous->connection.session, &call, params->timeout_ms, NULL, NULL);
    if (status)
        return connection_failed(&contiguous->connection, "running attention", status);
    connection_load(&contiguous->connection, out, contiguous->count);
    return true;
}

static void end(struct attention *attention)
{
    (void)attention;
}

static void destroy(struct attention *attention)
{
    struct contiguous *contiguous = (struct contiguous *)attention;
    connection_close(&contiguous->connection);
    free(contiguous);
}

static bool open(struct contiguous *contiguous, const struct attention_params *params)
{
    const uint64_t size = 2 * MODEL_LAYERS * plane_size(params);
    if (!connection_open(&contiguous->connection, params, size))
        return false;
    void *rows;
    enum aule_status status =
        aule_arena_alloc(contiguous->connection.session, size, &rows, &contiguous->rows_offset);
    if (status)
        return connection_failed(&contiguous->connection, "allocating keys and values in the arena",
                                 status);
    contiguous->rows = rows;
    return true;
}

static const struct attention_ops ops = {attention_finds_nothing,  begin,  run, end,
                                         attention_offers_nothing, destroy};

struct attention *attention_contiguous_create(const struct attention_params *params,
                                              struct failure *failure)
{
    struct contiguous *contiguous = calloc(1, sizeof *contiguous);
    if (!contiguous) {
        failure_set(failure, EXIT_CODE_FAILED, "out of memory");
        return NULL;
    }
    contiguous->connection.base.ops = &ops;
    if (open(contiguous, params))
        return &contiguous->connection.base;
    *failure = contiguous->connection.base.failure;
    destroy(&contiguous->connection.base);
    return NULL;
}
