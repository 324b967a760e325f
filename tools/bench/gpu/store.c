// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// store.c - see store.h.

#include "store.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static bool failed(const struct error *error)
{
    fprintf(stderr, "aule-bench: %s\n", error->text);
    return false;
}

static bool init_device(struct store *store, struct error *error)
{
    return measuring_arena_create(store->engine, store->size, &store->arena, &store->own, error) ==
           STATUS_OK;
}

// Shared memory like a client's segment.
static bool init_host(struct store *store, struct error *error)
{
    const uint64_t size = store->size;
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return error_set(error, STATUS_NO_MEMORY, "no shared memory for an arena of %llu bytes",
                         (unsigned long long)size) == STATUS_OK;
    if (engine_arena_create(store->engine, memory, size, &store->arena, error) == STATUS_OK) {
        store->memory = memory;
        return true;
    }
    munmap(memory, size);
    return false;
}

bool store_init(struct store *store, struct engine *engine, uint64_t arena_size, bool host)
{
    struct error error = {0};
    *store = (struct store){.engine = engine, .size = arena_size};
    if (fill_init(&store->fill, measuring_device(engine), &error) != STATUS_OK ||
        !(host ? init_host : init_device)(store, &error))
        return failed(&error);
    return true;
}

static void finish_host(struct store *store)
{
    if (engine_arena_destroy(store->arena)) // if it fails, the device is lost and may still write
                                            // there
        munmap(store->memory, store->size);
}

void store_finish(struct store *store)
{
    if (!store->engine)
        return;
    buffer_finish(measuring_device(store->engine), &store->staging);
    if (store->memory)
        finish_host(store);
    else
        measuring_arena_destroy(store->arena);
    fill_finish(&store->fill);
    *store = (struct store){0};
}

bool store_fill(struct store *store, const struct fill_params *params)
{
    struct error error = {0};
    return fill_run(&store->fill, measuring_transfer(store->engine), params, &error) == STATUS_OK ||
           failed(&error);
}

static bool reserve_staging(struct store *store, uint64_t size, struct error *error)
{
    if (store->staging.size >= size)
        return true;
    buffer_finish(measuring_device(store->engine), &store->staging);
    return buffer_init(measuring_device(store->engine), MEMORY_STAGING, size, "bench copy",
                       &store->staging, error) == STATUS_OK;
}

bool store_poison(struct store *store, uint64_t offset, uint64_t size)
{
    struct error error = {0};
    struct transfer *transfer = measuring_transfer(store->engine);
    if (store->memory) {
        memset((char *)store->memory + offset, 0xff, size);
        return true;
    }
    if (transfer_begin(transfer, &error) != STATUS_OK)
        return failed(&error);
    vkCmdFillBuffer(transfer->commands, store->own->handle, offset, size, UINT32_MAX);
    return transfer_end(transfer, &error) == STATUS_OK || failed(&error);
}

const void *store_read(struct store *store, uint64_t offset, uint64_t size)
{
    struct error error = {0};
    struct transfer *transfer = measuring_transfer(store->engine);
    const VkBufferCopy part = {.srcOffset = offset, .size = size};
    if (store->memory)
        return (char *)store->memory + offset;
    if (!reserve_staging(store, size, &error) || transfer_begin(transfer, &error) != STATUS_OK) {
        failed(&error);
        return NULL;
    }
    vkCmdCopyBuffer(transfer->commands, store->own->handle, store->staging.handle, 1, &part);
    return transfer_end(transfer, &error) == STATUS_OK || failed(&error) ? store->staging.mapped
                                                                         : NULL;
}
