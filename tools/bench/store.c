// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// store.c - see store.h.

#include "store.h"

#include <stdio.h>

static bool failed(const struct error *error)
{
    fprintf(stderr, "aule-bench: %s\n", error->text);
    return false;
}

bool store_init(struct store *store, struct engine *engine, uint64_t arena_size)
{
    struct error error = {0};
    *store = (struct store){.engine = engine};
    // An arena that counts as imported: the engine finds it in place and copies nothing.
    store->arena = (struct engine_arena){.engine = engine, .size = arena_size, .imported = true};
    if (fill_init(&store->fill, &engine->device, &error) != STATUS_OK ||
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
    fill_finish(&store->fill);
    *store = (struct store){0};
}

bool store_fill(struct store *store, const struct fill_params *params)
{
    struct error error = {0};
    return fill_run(&store->fill, &store->engine->transfer, params, &error) == STATUS_OK || failed(&error);
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
