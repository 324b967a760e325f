// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// store.c - see store.h.

#include "store.h"

#include "fill_spv.h"

#include <stdio.h>

enum { GROUPS = 1024 };

// Mirrors fill.comp.
struct push {
    uint64_t to, first_quad, k_stream, v_stream;
    uint32_t quads, part_quads, parts, dtype;
};

static bool failed(const struct error *error)
{
    fprintf(stderr, "aule-bench: %s\n", error->text);
    return false;
}

bool store_init(struct store *store, struct engine *engine, uint64_t arena_size)
{
    struct error error = {0};
    const struct program_params fill = {.code = fill_spv, .size = sizeof fill_spv, .push_size = sizeof(struct push)};
    *store = (struct store){.engine = engine};
    // An arena that counts as imported: the engine finds it in place and copies nothing.
    store->arena = (struct engine_arena){.engine = engine, .size = arena_size, .imported = true};
    if (program_init(&store->fill, &engine->device, &fill, &error) != STATUS_OK ||
        buffer_init(&engine->device, MEMORY_POOL, arena_size, "bench arena", &store->arena.buffer, &error) != STATUS_OK)
        return failed(&error);
    return true;
}

void store_finish(struct store *store)
{
    if (!store->engine)
        return;
    buffer_finish(&store->engine->device, &store->staging);
    buffer_finish(&store->engine->device, &store->arena.buffer);
    program_finish(&store->fill);
    *store = (struct store){0};
}

bool store_fill(struct store *store, const struct store_fill *fill)
{
    struct error error = {0};
    struct transfer *transfer = &store->engine->transfer;
    uint32_t parts = fill->v_stream ? 2 : 1;
    const struct push push = {
        .to = fill->address,
        .first_quad = fill->first / 4,
        .k_stream = fill->k_stream,
        .v_stream = fill->v_stream,
        .quads = (uint32_t)(fill->num_parts * parts * (fill->part_elements / 4)),
        .part_quads = (uint32_t)(fill->part_elements / 4),
        .parts = parts,
        .dtype = fill->dtype,
    };
    if (transfer_begin(transfer, &error) != STATUS_OK)
        return failed(&error);
    program_dispatch(&store->fill, transfer->commands, &push, GROUPS);
    return transfer_end(transfer, &error) == STATUS_OK || failed(&error);
}

bool store_poison(struct store *store, uint64_t offset, uint64_t size)
{
    struct error error = {0};
    struct transfer *transfer = &store->engine->transfer;
    if (transfer_begin(transfer, &error) != STATUS_OK)
        return failed(&error);
    vkCmdFillBuffer(transfer->commands, store->arena.buffer.handle, offset, size, UINT32_MAX);
    return transfer_end(transfer, &error) == STATUS_OK || failed(&error);
}

const void *store_read(struct store *store, uint64_t offset, uint64_t size)
{
    struct error error = {0};
    struct transfer *transfer = &store->engine->transfer;
    const VkBufferCopy part = {.srcOffset = offset, .size = size};
    if (store->staging.size < size) {
        buffer_finish(&store->engine->device, &store->staging);
        if (buffer_init(&store->engine->device, MEMORY_STAGING, size, "bench copy", &store->staging, &error) !=
            STATUS_OK) {
            failed(&error);
            return NULL;
        }
    }
    if (transfer_begin(transfer, &error) != STATUS_OK) {
        failed(&error);
        return NULL;
    }
    vkCmdCopyBuffer(transfer->commands, store->arena.buffer.handle, store->staging.handle, 1, &part);
    return transfer_end(transfer, &error) == STATUS_OK || failed(&error) ? store->staging.mapped : NULL;
}
