// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// kv.c - which shapes and dtypes of K and V have a shader, and how large a block is. Knows no
// memory. Any thread; no state.

#include "kv.h"

#include <inttypes.h>

uint64_t kv_block_bytes(const struct engine_kv *kv)
{
    if (kv->block_bytes)
        return kv->block_bytes;
    uint64_t row = (uint64_t)kv->head_dim_k * dtype_size(kv->k_dtype);
    uint64_t scales = kv->scale_mode == SCALE_PER_TOKEN_HEAD ? sizeof(float) : 0;
    if (!kv->v_is_k_prefix) {
        row += (uint64_t)kv->head_dim_v * dtype_size(kv->v_dtype);
        scales *= 2;
    }
    return (row + scales) * kv->num_kv_heads * kv->block_size;
}

bool kv_is_scaled(const struct engine_kv *kv, enum dtype dtype)
{
    return kv->scale_mode != SCALE_NONE && dtype_size(dtype) == 1;
}

uint32_t kv_block_size(const struct engine_kv *kv)
{
    return kv->block_size ? kv->block_size : KV_ROWS_BLOCK_SIZE;
}

static enum status check_dims(const struct engine_kv *kv, uint32_t most_heads, struct error *error)
{
    if (kv->num_kv_heads == 0 || kv->num_kv_heads > most_heads)
        return error_set(error, STATUS_UNSUPPORTED, "num_kv_heads %u: this device takes 1 to %u",
                         kv->num_kv_heads, most_heads);
    if (kv->head_dim_k == 0 || kv->head_dim_k % 8 || kv->head_dim_k > KV_MOST_HEAD_DIM_K)
        return error_set(error, STATUS_UNSUPPORTED,
                         "head_dim_k %u: no shader for it; multiples of 8 up to %d have one",
                         kv->head_dim_k, KV_MOST_HEAD_DIM_K);
    if (kv->head_dim_v == 0 || kv->head_dim_v % 8 || kv->head_dim_v > KV_MOST_HEAD_DIM_V)
        return error_set(error, STATUS_UNSUPPORTED,
                         "head_dim_v %u: no shader for it; multiples of 8 up to %d have one",
                         kv->head_dim_v, KV_MOST_HEAD_DIM_V);
    if (kv->v_is_k_prefix && kv->head_dim_v > kv->head_dim_k)
        return error_set(error, STATUS_INVALID,
                         "v_is_k_prefix: head_dim_v %u is more than head_dim_k %u", kv->head_dim_v,
                         kv->head_dim_k);
    return STATUS_OK;
}

static enum status check_dtypes(enum engine_place place, const struct engine_kv *kv,
                                struct error *error)
{
    if (dtype_size(kv->k_dtype) == 0)
        return error_set(error, STATUS_UNSUPPORTED, "K dtype %s (%d): no shader for it",
                         dtype_name(kv->k_dtype), kv->k_dtype);
    if (dtype_size(kv->v_dtype) == 0)
        return error_set(error, STATUS_UNSUPPORTED, "V dtype %s (%d): no shader for it",
                         dtype_name(kv->v_dtype), kv->v_dtype);
    if (kv->v_is_k_prefix && kv->v_dtype != kv->k_dtype)
        return error_set(error, STATUS_INVALID, "v_is_k_prefix: V dtype %s is not K's, %s",
                         dtype_name(kv->v_dtype), dtype_name(kv->k_dtype));
    if (kv->scale_mode != SCALE_NONE && kv->scale_mode != SCALE_PER_TENSOR &&
        kv->scale_mode != SCALE_PER_TOKEN_HEAD)
        return error_set(error, STATUS_UNSUPPORTED, "scale mode %d: no shader for it",
                         kv->scale_mode);
    if (kv->scale_mode != SCALE_NONE && dtype_size(kv->k_dtype) != 1 &&
        dtype_size(kv->v_dtype) != 1)
        return error_set(error, STATUS_INVALID,
                         "scale mode %d: only 8-bit dtypes are scaled, not K %s and V %s",
                         kv->scale_mode, dtype_name(kv->k_dtype), dtype_name(kv->v_dtype));
    if (kv->scale_mode == SCALE_PER_TOKEN_HEAD && place != ENGINE_POOL)
        return error_set(
            error, STATUS_UNSUPPORTED,
            "scales per token and head: no shader for them where K and V lie in an arena");
    return STATUS_OK;
}

static enum status check_block_size(enum engine_place place, const struct engine_kv *kv,
                                    struct error *error)
{
    uint32_t size = kv->block_size;
    if (place == ENGINE_ROWS)
        return size == 0 ? STATUS_OK
                         : error_set(error, STATUS_INVALID,
                                     "block_size %u: contiguous K and V have no blocks", size);
    if (size < 8 || size > 256 || size & (size - 1))
        return error_set(error, STATUS_UNSUPPORTED,
                         "block_size %u: no shader for it; powers of two from 8 to 256 have one",
                         size);
    return STATUS_OK;
}

static enum status check_opaque(enum engine_place place, const struct engine_kv *kv,
                                struct error *error)
{
    if (place != ENGINE_POOL)
        return error_set(error, STATUS_INVALID, "block_bytes %u: only caches have opaque blocks",
                         kv->block_bytes);
    return kv->block_bytes % 16 == 0
               ? STATUS_OK
               : error_set(error, STATUS_INVALID, "block_bytes %u is no multiple of 16",
                           kv->block_bytes);
}

enum status kv_check(enum engine_place place, const struct engine_kv *kv, uint32_t most_heads,
                     struct error *error)
{
    if (kv->block_bytes)
        return check_opaque(place, kv, error);
    enum status status = check_dims(kv, most_heads, error);
    if (status == STATUS_OK)
        status = check_block_size(place, kv, error);
    if (status == STATUS_OK)
        status = check_dtypes(place, kv, error);
    if (status != STATUS_OK)
        return status;
    // Inside a block, shaders count in 32 bits.
    if (place == ENGINE_POOL && kv_block_bytes(kv) > UINT32_MAX)
        return error_set(error, STATUS_UNSUPPORTED,
                         "one layer of a block takes %" PRIu64 " bytes: no shader for more than %u",
                         kv_block_bytes(kv), UINT32_MAX);
    return STATUS_OK;
}
