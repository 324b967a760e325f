// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fault.c - see fault.h. It flips only sign bits, so all values stay finite: a comparison of
// results must notice the fault, not a check for NaN.

#include "fault.h"

#include "core/core.h"
#include "log.h"

#include <inttypes.h>
#include <stdlib.h>

void fault_note_publish(struct fault_state *state, uint64_t cache, int32_t block)
{
    if (state->armed != FAULT_CORRUPT_PREFIX || state->cache)
        return;
    state->cache = cache;
    state->block = block;
}

static void flip_signs(uint8_t *bytes, uint64_t size, uint32_t element)
{
    // Little-endian: the last byte has the sign bit, also of int8.
    for (uint64_t i = element - 1; i < size; i += element)
        bytes[i] ^= 0x80;
}

static enum status corrupt_layer(struct engine_cache *cache, const struct core_cache_view *view,
                                 uint32_t layer, int32_t block)
{
    const struct engine_kv *kv = &view->kv;
    const struct engine_cache_params params = {
        .num_layers = view->num_layers, .chunk_blocks = view->chunk_blocks, .kv = *kv};
    uint64_t rows = (uint64_t)kv->num_kv_heads * kv->block_size;
    uint64_t k_size = rows * kv->head_dim_k * dtype_size(kv->k_dtype);
    uint64_t v_size = kv->v_is_k_prefix ? 0 : rows * kv->head_dim_v * dtype_size(kv->v_dtype);
    uint8_t *bytes =
        malloc(engine_layer_block_bytes(&params)); // K, V, then scales if there are any
    if (!bytes)
        return STATUS_NO_MEMORY;
    enum status status = engine_block_read(cache, layer, block, bytes);
    if (status == STATUS_OK) {
        flip_signs(bytes, k_size, dtype_size(kv->k_dtype));
        flip_signs(bytes + k_size, v_size, dtype_size(kv->v_dtype));
        status = engine_block_write(cache, layer, block, bytes);
    }
    free(bytes);
    return status;
}

void fault_step(struct fault_state *state, struct core *core)
{
    struct core_cache_view view;
    if (state->armed != FAULT_CORRUPT_PREFIX || !state->cache)
        return;
    if (!core_cache_view(core, state->cache, &view) || view.published == 0 || view.pending > 0)
        return;
    enum status status = STATUS_OK;
    for (uint32_t layer = 0; layer < view.num_layers && status == STATUS_OK; layer++)
        status = corrupt_layer(core_engine_cache(core, state->cache), &view, layer, state->block);
    log_warn("fault corrupt-prefix: block %" PRId32 " of cache \"%s\": %s", state->block, view.name,
             status == STATUS_OK ? "K and V negated in every layer" : status_text(status));
    state->armed = FAULT_NONE;
}
