// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// arena.c - imports a client's memory if the device can do that, else keeps a mirror and copies
// rows. Knows offsets and strides, not what they mean. Any thread creates and destroys an arena;
// the submitter and the completer copy.

#include "arena.h"

#include "base/list.h"
#include "engine/state/event.h"
#include "engine/state/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Memory is mapped in pages, so the mapping also owns the rest of the last page.
static bool can_import(const struct engine *engine, const void *base, uint64_t size,
                       uint64_t *rounded)
{
    const struct engine_device *info = &engine->device.adapter.info;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    *rounded = (size + page - 1) / page * page;
    return info->host_import && (uintptr_t)base % info->import_alignment == 0 &&
           *rounded % info->import_alignment == 0 && *rounded <= info->max_allocation_bytes;
}

static enum status make_memory(struct engine_arena *arena, struct error *error)
{
    struct device *device = &arena->engine->device;
    uint64_t rounded = 0;
    struct error why = {0};
    if (!arena->base) {
        enum status status = buffer_init(device, MEMORY_METADATA, arena->size,
                                         "arena of the device", &arena->buffer, error);
        arena->base = arena->buffer.mapped;
        arena->imported = true; // nothing has to be copied
        return status;
    }
    if (can_import(arena->engine, arena->base, arena->size, &rounded)) {
        arena->imported =
            buffer_import(device, arena->base, rounded, "arena", &arena->buffer, &why) == STATUS_OK;
        if (arena->imported)
            return STATUS_OK;
        device_log(device, 1, "an arena of %llu bytes is mirrored, not imported: %s",
                   (unsigned long long)arena->size, why.text);
    } else if (device->adapter.info.host_import) {
        device_log(device, 1,
                   "an arena of %llu bytes at %p is mirrored: imports need multiples of %llu bytes",
                   (unsigned long long)arena->size, (void *)arena->base,
                   (unsigned long long)device->adapter.info.import_alignment);
    }
    return buffer_init(device, MEMORY_STAGING, arena->size, "arena mirror", &arena->buffer, error);
}

// Memory that the driver gives may hold what another client had there. DEVICE_LOST: the GPU may
// still write to the buffer, which stays.
static enum status make_exported(struct engine_arena *arena, struct error *error)
{
    struct device *device = &arena->engine->device;
    if (!device->get_memory_fd)
        return error_set(error, STATUS_UNSUPPORTED,
                         "device %s exports no memory (VK_KHR_external_memory_fd)",
                         device->adapter.info.name);
    enum status status =
        buffer_init(device, MEMORY_EXPORTED, arena->size, "exported arena", &arena->buffer, error);
    arena->imported = true; // nothing has to be copied
    if (status == STATUS_OK)
        status = transfer_zero(&arena->engine->transfer, &arena->buffer, error);
    if (status != STATUS_OK && status != STATUS_DEVICE_LOST)
        buffer_finish(device, &arena->buffer);
    return status;
}

static enum status create(struct engine *engine, void *base, uint64_t size, bool exported,
                          struct engine_arena **out, struct error *error)
{
    if (size == 0)
        return error_set(error, STATUS_INVALID, "an arena of 0 bytes");
    if (engine_lost(engine))
        return error_set(error, STATUS_DEVICE_LOST, "the device is lost");
    struct engine_arena *arena = calloc(1, sizeof *arena);
    if (!arena)
        return error_set(error, STATUS_NO_MEMORY, "no memory for an arena");
    arena->engine = engine;
    arena->base = base;
    arena->size = size;
    enum status status = exported ? make_exported(arena, error) : make_memory(arena, error);
    if (!arena->buffer.handle) {
        free(arena);
        return status;
    }
    pthread_mutex_lock(&engine->lock);
    LIST_APPEND(engine->arenas, arena); // ends with the engine, if not before
    pthread_mutex_unlock(&engine->lock);
    if (status == STATUS_OK)
        *out = arena;
    return status;
}

enum status engine_arena_create(struct engine *engine, void *base, uint64_t size,
                                struct engine_arena **out, struct error *error)
{
    return create(engine, base, size, false, out, error);
}

enum status engine_arena_create_exported(struct engine *engine, uint64_t size,
                                         struct engine_arena **out, struct error *error)
{
    return create(engine, NULL, size, true, out, error);
}

enum status engine_arena_export(const struct engine_arena *arena, struct engine_export *out,
                                struct error *error)
{
    *out = (struct engine_export){
        .fd = -1, .allocated = arena->buffer.allocated, .dedicated = arena->buffer.dedicated};
    return buffer_export(&arena->engine->device, &arena->buffer, &out->fd, error);
}

// ---- in parts ----

enum { PART_UNIT = 2 << 20 }; // bytes; a huge page

const struct buffer *arena_buffer(const struct engine_arena *arena, uint64_t *offset)
{
    if (!arena->part_bytes)
        return &arena->buffer;
    const struct buffer *part = &arena->parts[*offset / arena->part_bytes];
    *offset %= arena->part_bytes;
    return part;
}

uint64_t engine_arena_part_bytes(const struct engine_arena *arena)
{
    return arena->part_bytes ? arena->part_bytes : arena->size;
}

void arena_free(struct engine_arena *arena)
{
    struct device *device = &arena->engine->device;
    for (uint32_t i = 0; i < arena->num_parts; i++)
        buffer_finish(device, &arena->parts[i]);
    buffer_finish(device, &arena->buffer);
    free(arena->parts);
    free(arena);
}

static enum status import_part(struct engine_arena *arena, uint32_t index, struct error *error)
{
    struct device *device = &arena->engine->device;
    const uint64_t begin = index * arena->part_bytes, left = arena->size - begin;
    uint64_t rounded;
    char name[48];
    snprintf(name, sizeof name, "host memory, part %u", index);
    if (!can_import(arena->engine, arena->base + begin,
                    left < arena->part_bytes ? left : arena->part_bytes, &rounded))
        return error_set(error, STATUS_UNSUPPORTED,
                         "device %s does not use host memory in place, or wants it in multiples of "
                         "%llu bytes",
                         device->adapter.info.name,
                         (unsigned long long)device->adapter.info.import_alignment);
    return buffer_import(device, arena->base + begin, rounded, name, &arena->parts[index], error);
}

static enum status import_parts(struct engine_arena *arena, struct error *error)
{
    enum status status = STATUS_OK;
    const uint64_t count = (arena->size + arena->part_bytes - 1) / arena->part_bytes;
    arena->parts = calloc(count, sizeof *arena->parts);
    if (!arena->parts)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %llu parts of host memory",
                         (unsigned long long)count);
    arena->imported = true;
    for (; status == STATUS_OK && arena->num_parts < count; arena->num_parts++)
        status = import_part(arena, arena->num_parts, error);
    return status;
}

enum status engine_arena_create_parts(struct engine *engine, void *base, uint64_t size,
                                      uint64_t part_bytes, struct engine_arena **out,
                                      struct error *error)
{
    const uint64_t most = engine->device.adapter.info.max_allocation_bytes / PART_UNIT * PART_UNIT;
    if (size == 0 || part_bytes % PART_UNIT || part_bytes > most)
        return error_set(error, STATUS_INVALID,
                         "%llu bytes of host memory in parts of %llu bytes, which are to be "
                         "multiples of %d and at most %llu",
                         (unsigned long long)size, (unsigned long long)part_bytes, PART_UNIT,
                         (unsigned long long)most);
    if (engine_lost(engine))
        return error_set(error, STATUS_DEVICE_LOST, "the device is lost");
    struct engine_arena *arena = calloc(1, sizeof *arena);
    if (!arena)
        return error_set(error, STATUS_NO_MEMORY, "no memory for an arena");
    *arena = (struct engine_arena){
        .engine = engine, .base = base, .size = size, .part_bytes = part_bytes ? part_bytes : most};
    const enum status status = import_parts(arena, error);
    if (status != STATUS_OK) {
        arena_free(arena);
        return status;
    }
    pthread_mutex_lock(&engine->lock);
    LIST_APPEND(engine->arenas, arena);
    pthread_mutex_unlock(&engine->lock);
    *out = arena;
    return STATUS_OK;
}

// After a loss the GPU, or a thread that copies, may still write to the memory. The arena is then
// freed with the engine, which waits for both.
bool engine_arena_destroy(struct engine_arena *arena)
{
    if (!arena)
        return true;
    if (engine_lost(arena->engine))
        return false;
    struct engine *engine = arena->engine;
    pthread_mutex_lock(&engine->lock);
    LIST_DELETE(engine->arenas, arena);
    pthread_mutex_unlock(&engine->lock);
    arena_free(arena);
    return true;
}

void *engine_arena_base(const struct engine_arena *arena)
{
    return arena->base;
}

bool engine_arena_imported(const struct engine_arena *arena)
{
    return arena->imported;
}

// A tensor as two nested loops over contiguous runs of bytes.
struct walk {
    uint64_t outer, outer_stride, inner, inner_stride, bytes;
};

// Turns a loop over pieces that touch or overlap into one piece.
static void unite(uint64_t *count, uint64_t stride, uint64_t *bytes)
{
    if (*count < 2 || stride > *bytes)
        return;
    *bytes += (*count - 1) * stride;
    *count = 1;
}

static struct walk plan_walk(const struct wire_tensor *tensor, uint32_t num_tokens,
                             uint32_t num_heads, uint64_t row_bytes)
{
    struct walk walk = {num_tokens, tensor->token_stride, num_heads, tensor->head_stride,
                        row_bytes};
    if (tensor->token_stride < tensor->head_stride) // [heads, tokens, dim]
        walk = (struct walk){num_heads, tensor->head_stride, num_tokens, tensor->token_stride,
                             row_bytes};
    unite(&walk.inner, walk.inner_stride, &walk.bytes);
    if (walk.inner == 1)
        unite(&walk.outer, walk.outer_stride, &walk.bytes);
    return walk;
}

static void measure(struct arena_pass *pass, uint64_t offset, const struct walk *walk)
{
    if (walk->outer == 0 || walk->inner == 0)
        return;
    uint64_t end = offset + (walk->outer - 1) * walk->outer_stride +
                   (walk->inner - 1) * walk->inner_stride + walk->bytes;
    pass->begin = offset < pass->begin ? offset : pass->begin;
    pass->end = end > pass->end ? end : pass->end;
    pass->bytes += (unsigned __int128)walk->outer * walk->inner * walk->bytes;
}

void arena_stage(const struct engine_arena *arena, struct arena_pass *pass,
                 const struct wire_tensor *tensor, uint32_t num_tokens, uint32_t num_heads,
                 uint64_t row_bytes)
{
    if (arena->imported)
        return;
    const char *from = pass->what == ARENA_IN ? arena->base : arena->buffer.mapped;
    char *to = pass->what == ARENA_IN ? arena->buffer.mapped : arena->base;
    struct walk walk = plan_walk(tensor, num_tokens, num_heads, row_bytes);
    if (pass->what == ARENA_MEASURE) {
        measure(pass, tensor->offset, &walk);
        return;
    }
    for (uint64_t i = 0; i < walk.outer; i++)
        for (uint64_t j = 0; j < walk.inner; j++) {
            uint64_t at = tensor->offset + i * walk.outer_stride + j * walk.inner_stride;
            memcpy(to + at, from + at, walk.bytes);
        }
    device_count(&arena->engine->device, ENGINE_METRIC_STAGED_BYTES,
                 walk.outer * walk.inner * walk.bytes);
}

void arena_stage_span(const struct engine_arena *arena, uint64_t begin, uint64_t end)
{
    memcpy((char *)arena->buffer.mapped + begin, arena->base + begin, end - begin);
    device_count(&arena->engine->device, ENGINE_METRIC_STAGED_BYTES, end - begin);
}
