// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// corrupt_daemon.c - the fault of the program aule-daemon-corrupt: it negates K and V of the first
// block that is ever published, in GPU memory, when look-ups can find the block. A test then proves
// that its comparison of results notices. Only sign bits are flipped, so all values stay finite: a
// check for NaN must not notice. The linker puts these functions before those of core (--wrap).
// Dispatcher thread.

#include "core/core.h"
#include "server/log.h"

#include <inttypes.h>
#include <stdlib.h>

static struct {
    struct core *core;
    uint64_t cache; // of the noted block; 0 = no block is noted
    int32_t block;
    bool done;
} fault;

bool __real_core_step(struct core *core, int64_t now_ns);
bool __wrap_core_step(struct core *core, int64_t now_ns);
enum status __real_core_prefix_publish(struct core_session *session, uint64_t cache,
                                       const struct core_prefix *prefix, int32_t *blocks,
                                       uint32_t num_blocks, uint32_t *num_existing,
                                       struct error *error);
enum status __wrap_core_prefix_publish(struct core_session *session, uint64_t cache,
                                       const struct core_prefix *prefix, int32_t *blocks,
                                       uint32_t num_blocks, uint32_t *num_existing,
                                       struct error *error);

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

// Waits for the GPU.
static void inject(void)
{
    struct core_cache_view view;
    if (fault.done || !fault.cache || !fault.core ||
        !core_cache_view(fault.core, fault.cache, &view) || view.published == 0 || view.pending > 0)
        return;
    struct engine_cache *cache = core_engine_cache(fault.core, fault.cache);
    enum status status = STATUS_OK;
    for (uint32_t layer = 0; layer < view.num_layers && status == STATUS_OK; layer++)
        status = corrupt_layer(cache, &view, layer, fault.block);
    log_warn("fault: block %" PRId32 " of cache \"%s\": %s", fault.block, view.name,
             status == STATUS_OK ? "K and V negated in every layer" : status_text(status));
    fault.done = true;
}

bool __wrap_core_step(struct core *core, int64_t now_ns)
{
    const bool more = __real_core_step(core, now_ns);
    fault.core = core;
    inject();
    return more;
}

// Only the first block counts.
enum status __wrap_core_prefix_publish(struct core_session *session, uint64_t cache,
                                       const struct core_prefix *prefix, int32_t *blocks,
                                       uint32_t num_blocks, uint32_t *num_existing,
                                       struct error *error)
{
    const enum status status =
        __real_core_prefix_publish(session, cache, prefix, blocks, num_blocks, num_existing, error);
    if (status == STATUS_OK && num_blocks && *num_existing == 0 && !fault.cache) {
        fault.cache = cache;
        fault.block = blocks[0];
        inject();
    }
    return status;
}
