// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// kv.c - writes keys and values into blocks and reads them back, without attention. An import and
// an export use a batch of their own that ends with the call; the daemon keeps it for the queued
// run. Any thread.

#include "kv.h"

#include "client/src/caller.h"
#include "client/src/error.h"
#include "run.h"

#include <inttypes.h>
#include <stdlib.h>

// Queues one run over a batch that is made for it.
static enum aule_status run_through(struct life *life, const struct aule_cache *cache,
                                    const struct aule_batch_params *params, enum wire_run_kind kind,
                                    const struct aule_run_params *run, int timeout_ms, uint64_t *id)
{
    struct aule_batch *batch = NULL;
    enum aule_status status =
        batch_create(life, &(struct batch_source){.cache = cache}, params, &batch);
    if (status != AULE_OK)
        return status;
    status = run_submit(batch, kind, run, timeout_ms, id);
    error_mute(true);
    aule_batch_destroy(batch);
    error_mute(false);
    return status;
}

// ---- into blocks ----

enum aule_status kv_write(struct life *life, const struct aule_cache *cache,
                          const struct aule_kv_import *params, int timeout_ms, uint64_t *id)
{
    uint32_t rows = params->outer_rows ? params->outer_rows : params->num_rows;
    uint32_t num_seqs = rows ? params->num_rows / rows + (params->num_rows % rows != 0) : 0;
    int32_t *cu = malloc(((size_t)num_seqs + 1) * sizeof *cu);
    if (!cu)
        return fail(AULE_NO_MEMORY, "no memory for an import of %u rows", params->num_rows);
    for (uint32_t s = 0; s < num_seqs; s++)
        cu[s] = (int32_t)(s * rows);
    cu[num_seqs] = (int32_t)params->num_rows;
    const struct aule_batch_params batch = {.num_seqs = num_seqs,
                                            .cu_seqlens_q = cu,
                                            .slot_mapping = params->slot_mapping,
                                            .positions = params->positions};
    const struct aule_run_params run = {.layer = params->layer,
                                        .num_heads = cache->num_kv_heads,
                                        .k = params->k,
                                        .v = params->v,
                                        .k_scale = params->k_scale,
                                        .v_scale = params->v_scale,
                                        .rope = params->rope};
    enum aule_status status =
        run_through(life, cache, &batch, WIRE_RUN_WRITE, &run, timeout_ms, id);
    free(cu);
    return status;
}

static enum aule_status check_import(const struct aule_kv_import *params)
{
    if (params->num_rows > INT32_MAX)
        return fail(AULE_OUT_OF_RANGE, "num_rows = %u; at most %d are allowed", params->num_rows,
                    INT32_MAX);
    if (params->num_rows == 0)
        return fail(AULE_INVALID, "num_rows = 0: there is nothing to import");
    if (!params->slot_mapping)
        return fail(AULE_INVALID, "slot_mapping is NULL, but num_rows is %u", params->num_rows);
    if (params->rope.dim > 0 && !params->positions)
        return fail(AULE_INVALID, "positions is NULL, but rope.dim is %u", params->rope.dim);
    if (params->rope.dim == 0 && params->positions)
        return fail(AULE_INVALID, "positions is given, but rope.dim is 0: no rotation");
    uint64_t outer = params->k.outer_stride ? params->k.outer_stride : params->v.outer_stride;
    if (params->outer_rows == 0 && outer > 0)
        return fail(AULE_INVALID,
                    "%s.outer_stride = %" PRIu64
                    ", but outer_rows is 0; it must be the rows between two outer strides",
                    params->k.outer_stride ? "k" : "v", outer);
    return AULE_OK;
}

static enum aule_status enter(const struct aule_cache *cache, int timeout_ms)
{
    enum aule_status status = timeout_check(timeout_ms);
    return status == AULE_OK ? life_enter(cache->life) : status;
}

// The end of a call after enter(): makes the ticket of the queued run `id`, if there is one and the
// caller wants it.
static enum aule_status leave(const struct aule_cache *cache, enum aule_status status, uint64_t id,
                              struct aule_ticket *ticket)
{
    if (status == AULE_OK && ticket)
        *ticket = ticket_make(cache->life, id, AULE_PATH_AUTO);
    life_leave(cache->life);
    return status;
}

enum aule_status aule_kv_import_sized(struct aule_cache *cache, const struct aule_kv_import *params,
                                      size_t params_size, int timeout_ms,
                                      struct aule_ticket *ticket)
{
    USE(cache);
    REQUIRE(params);
    uint64_t id = 0;
    struct aule_kv_import whole;
    enum aule_status status = TAKE(&whole, params, params_size);
    if (status == AULE_OK)
        status = check_import(&whole);
    if (status == AULE_OK)
        status = enter(cache, timeout_ms);
    if (status != AULE_OK)
        return status;
    status = kv_write(cache->life, cache, &whole, timeout_ms, ticket ? &id : NULL);
    return leave(cache, status, id, ticket);
}

// ---- out of them ----

enum aule_status aule_kv_gather_sized(struct aule_batch *batch, const struct aule_kv_gather *params,
                                      size_t params_size, int timeout_ms,
                                      struct aule_ticket *ticket)
{
    USE(batch);
    REQUIRE(params);
    struct aule_kv_gather whole;
    enum aule_status status = TAKE(&whole, params, params_size);
    if (status != AULE_OK)
        return status;
    const struct aule_run_params run = {.layer = whole.layer,
                                        .num_heads = batch->num_kv_heads,
                                        .k = whole.k,
                                        .v = whole.v,
                                        .keys = whole.keys,
                                        .values = whole.values,
                                        .k_scale = whole.k_scale,
                                        .v_scale = whole.v_scale};
    return run_queue(batch, WIRE_RUN_GATHER, &run, timeout_ms, ticket);
}

static enum aule_status export_rows(const struct aule_cache *cache,
                                    const struct aule_kv_export *params, int timeout_ms,
                                    uint64_t *id)
{
    const int32_t no_queries[] = {0, 0}, len = (int32_t)params->num_rows;
    const struct aule_batch_params batch = {.num_seqs = 1,
                                            .max_blocks =
                                                (params->num_rows - 1) / cache->block_size + 1,
                                            .cu_seqlens_q = no_queries,
                                            .seq_lens_kv = &len,
                                            .block_table = params->block_ids};
    const struct aule_run_params run = {.layer = params->layer,
                                        .num_heads = cache->num_kv_heads,
                                        .k = params->k,
                                        .v = params->v,
                                        .k_scale = params->k_scale,
                                        .v_scale = params->v_scale};
    return run_through(cache->life, cache, &batch, WIRE_RUN_GATHER, &run, timeout_ms, id);
}

enum aule_status aule_kv_export_sized(struct aule_cache *cache, const struct aule_kv_export *params,
                                      size_t params_size, int timeout_ms,
                                      struct aule_ticket *ticket)
{
    USE(cache);
    REQUIRE(params);
    uint64_t id = 0;
    struct aule_kv_export whole;
    enum aule_status status = TAKE(&whole, params, params_size);
    if (status == AULE_OK && (whole.num_rows == 0 || whole.num_rows > INT32_MAX))
        status = fail(whole.num_rows == 0 ? AULE_INVALID : AULE_OUT_OF_RANGE,
                      "num_rows = %u; an export has from 1 to %d", whole.num_rows, INT32_MAX);
    if (status == AULE_OK && !whole.block_ids)
        status = fail(AULE_INVALID, "block_ids is NULL, but num_rows is %u", whole.num_rows);
    if (status == AULE_OK)
        status = enter(cache, timeout_ms);
    if (status != AULE_OK)
        return status;
    status = export_rows(cache, &whole, timeout_ms, ticket ? &id : NULL);
    return leave(cache, status, id, ticket);
}
