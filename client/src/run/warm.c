// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// warm.c - compiles what a first run will need, by such a run over one block of its own. The block
// table names this block in every column, so the sequence may be as long as the caller's. The
// daemon chooses and compiles as for any run, so nothing here can differ from it. Any thread.

#include "client/src/arena.h"
#include "client/src/cache.h"
#include "client/src/caller.h"
#include "client/src/error.h"

#include <stdlib.h>
#include <string.h>

// One call.
struct warming {
    struct aule_cache *cache;
    const struct aule_warm_params *params;
    struct aule_run_params run; // with tensors of this call
    uint64_t arena_size, arena; // bytes of the tensors, and where they lie; size 0: not yet
    int32_t block;              // leased; -1: none
    uint32_t columns;
    int32_t *table;     // [columns]; owned, as are the next three
    int32_t *positions; // [q_len]; NULL: not wanted
    int64_t *slots;     // [q_len]
    uint8_t *mask;      // [mask_size]; NULL: not wanted
    size_t mask_size;
};

static enum aule_status check(const struct aule_warm_params *params)
{
    if (aule_dtype_size(params->run.q.dtype) == 0)
        return fail(AULE_INVALID, "run.q has the unknown dtype %d", (int)params->run.q.dtype);
    if (params->q_len == 0 || params->q_len > params->kv_len || params->kv_len > INT32_MAX)
        return fail(AULE_INVALID, "q_len = %u, kv_len = %u: a sequence has 1 <= q_len <= kv_len",
                    params->q_len, params->kv_len);
    return AULE_OK;
}

static enum aule_status allocate(struct warming *w)
{
    const struct aule_warm_params *params = w->params;
    w->columns = (params->kv_len - 1) / w->cache->block_size + 1;
    w->mask_size = ((size_t)params->q_len * params->kv_len + 7) / 8;
    w->table = malloc(w->columns * sizeof *w->table);
    w->slots = malloc(params->q_len * sizeof *w->slots);
    w->positions = params->positions ? malloc(params->q_len * sizeof *w->positions) : NULL;
    w->mask = params->mask ? malloc(w->mask_size) : NULL;
    if (w->table && w->slots && (w->positions || !params->positions) && (w->mask || !params->mask))
        return AULE_OK;
    return fail(AULE_NO_MEMORY, "no memory for a sequence of %u tokens", params->kv_len);
}

// Appends a dense tensor to those of the call. Its offset counts from the first one.
static enum aule_status add_tensor(struct warming *w, enum aule_dtype dtype, uint32_t num_heads,
                                   uint32_t head_dim, struct aule_tensor *tensor)
{
    uint64_t head = head_dim * (uint64_t)aule_dtype_size(dtype), token, size;
    if (__builtin_mul_overflow(head, num_heads, &token) ||
        __builtin_mul_overflow(token, w->params->q_len, &size) || size > UINT64_MAX / 16)
        return fail(AULE_OUT_OF_RANGE, "a run of %u queries and %u heads is too large",
                    w->params->q_len, num_heads);
    *tensor = (struct aule_tensor){.dtype = dtype,
                                   .offset = w->arena_size,
                                   .token_stride = token,
                                   .head_stride = head,
                                   .num_rows = w->params->q_len};
    w->arena_size += (size + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
    return AULE_OK;
}

static enum aule_status list_tensors(struct warming *w)
{
    const struct aule_cache *cache = w->cache;
    const enum aule_dtype dtype = w->params->run.q.dtype;
    const uint32_t num_heads = w->params->run.num_heads, kv_heads = cache->num_kv_heads;
    struct aule_run_params *run = &w->run;
    enum aule_status status = add_tensor(w, dtype, num_heads, cache->head_dim, &run->q);
    if (status == AULE_OK)
        status = add_tensor(w, dtype, num_heads, cache->head_dim_v, &run->out);
    if (status == AULE_OK)
        status = add_tensor(w, dtype, kv_heads, cache->head_dim, &run->k);
    if (status == AULE_OK && !cache->v_is_k_prefix)
        status = add_tensor(w, dtype, kv_heads, cache->head_dim_v, &run->v);
    if (status == AULE_OK && w->params->run.lse.dtype)
        status = add_tensor(w, AULE_F32, num_heads, 1, &run->lse);
    return status;
}

static enum aule_status create_tensors(struct warming *w)
{
    static const struct aule_tensor none;
    struct aule_run_params *run = &w->run;
    struct aule_tensor *const tensors[] = {&run->q, &run->k, &run->v, &run->out, &run->lse};
    *run = w->params->run;
    run->q = run->k = run->v = run->out = run->lse = run->keys = run->values = none;
    enum aule_status status = list_tensors(w);
    if (status == AULE_OK)
        status = arena_alloc(w->cache->life->arena, w->arena_size, &w->arena);
    if (status != AULE_OK)
        w->arena_size = 0;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        tensors[i]->offset += w->arena;
    return status;
}

static void fill(struct warming *w)
{
    const uint32_t q_len = w->params->q_len, size = w->cache->block_size;
    for (uint32_t c = 0; c < w->columns; c++)
        w->table[c] = w->block;
    for (uint32_t i = 0; i < q_len; i++)
        w->slots[i] = i < size ? (int64_t)w->block * size + i : -1;
    for (uint32_t i = 0; w->positions && i < q_len; i++)
        w->positions[i] = (int32_t)(w->params->kv_len - q_len + i);
    if (w->mask)
        memset(w->mask, 0xff, w->mask_size);
}

static enum aule_status run(struct warming *w, int timeout_ms)
{
    const int32_t cu[] = {0, (int32_t)w->params->q_len}, len = (int32_t)w->params->kv_len;
    const struct aule_batch_params params = {.num_seqs = 1,
                                             .max_blocks = w->columns,
                                             .cu_seqlens_q = cu,
                                             .seq_lens_kv = &len,
                                             .block_table = w->table,
                                             .slot_mapping = w->slots,
                                             .positions = w->positions,
                                             .mask = w->mask,
                                             .mask_size = w->mask ? w->mask_size : 0};
    struct aule_batch *batch = NULL;
    enum aule_status status = aule_batch_create(w->cache, &params, &batch);
    if (status != AULE_OK)
        return status;
    status = aule_run(batch, &w->run, timeout_ms, NULL);
    error_mute(true);
    aule_batch_destroy(batch);
    error_mute(false);
    return status;
}

// After a timeout the run may still write its tensors, so they stay.
static void finish(struct warming *w, bool is_running)
{
    error_mute(true);
    if (w->arena_size > 0 && !is_running)
        arena_free(w->cache->life->arena, w->arena);
    if (w->block >= 0)
        aule_blocks_release(w->cache, 1, &w->block);
    error_mute(false);
    free(w->table);
    free(w->slots);
    free(w->positions);
    free(w->mask);
}

static enum aule_status warm(struct warming *w, const struct timeout *timeout)
{
    enum aule_status status = allocate(w);
    if (status == AULE_OK)
        status = create_tensors(w);
    if (status == AULE_OK)
        status = aule_blocks_lease(w->cache, 1, timeout_left(timeout), &w->block);
    if (status == AULE_OK)
        status = aule_blocks_zero(w->cache, 1, &w->block, timeout_left(timeout), NULL);
    if (status == AULE_OK) {
        fill(w);
        status = run(w, timeout_left(timeout));
    }
    finish(w, status == AULE_TIMEOUT);
    return status;
}

enum aule_status aule_warm_sized(struct aule_cache *cache, const struct aule_warm_params *params,
                                 size_t params_size, int timeout_ms)
{
    USE(cache);
    REQUIRE(params);
    const struct timeout timeout = timeout_start(timeout_ms);
    struct aule_warm_params whole;
    struct warming w = {.cache = cache, .params = &whole, .block = -1};
    enum aule_status status = TAKE(&whole, params, params_size);
    if (status == AULE_OK)
        status = timeout_check(timeout_ms);
    if (status == AULE_OK)
        status = check(&whole);
    if (status == AULE_OK)
        status = life_enter(cache->life);
    if (status != AULE_OK)
        return status;
    status = warm(&w, &timeout);
    life_leave(cache->life);
    return status;
}
