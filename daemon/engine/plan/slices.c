// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// slices.c - see slices.h.

#include "slices.h"

#include "base/list.h"
#include "engine/state/state.h"
#include "items.h"
#include "shaders/layout.h"

#include <string.h>

enum {
    LEAST_ITEM_KEYS = 512, // fewer keys take about as long
    // A tile is cut if it has more than so many halves of a slice's work.
    LONG_TILE_HALVES = 3,
};

// ---- while lists are filled ----

struct slicing slicing_of(const struct cutting *cutting, struct slice_begin *slices,
                          uint32_t kernel)
{
    return (struct slicing){
        .begins = slices ? slices + (size_t)kernel * (cutting->num_slices + 1) : NULL,
        .num_slices = slices ? cutting->num_slices : 0,
        .most_keys = cutting->most_keys,
    };
}

void slicing_place(struct slicing *slicing)
{
    slicing->all_work = slicing->work;
    slicing->work = 0;
}

static uint64_t work_of_item(const struct slicing *slicing, uint64_t keys)
{
    keys = keys < slicing->most_keys ? keys : slicing->most_keys;
    return keys > LEAST_ITEM_KEYS ? keys : LEAST_ITEM_KEYS;
}

// Begins the next slice. Amid a tile that is cut, `at` tells the part.
static void begin(struct slicing *slicing, struct slice_begin at)
{
    struct slice_begin *next = &slicing->begins[slicing->next++];
    *next = at;
    if (!slicing->in_tile)
        return;
    *next = slicing->tile;
    next->item = at.item;
    next->partial = at.partial;
}

// Begins the slices that are due. Amid a tile one is left to begin behind the tile.
static void begin_due(struct slicing *slicing, struct slice_begin at)
{
    const uint32_t end = slicing->num_slices - slicing->in_tile;
    while (slicing->next < end &&
           (double)slicing->work * slicing->num_slices >= (double)slicing->all_work * slicing->next)
        begin(slicing, at);
}

static bool has_begun(const struct slicing *slicing, struct slice_begin at)
{
    return slicing->next && slicing->begins[slicing->next - 1].item == at.item;
}

static bool is_long(const struct slicing *slicing, uint32_t kv_len, uint64_t num_partials)
{
    return num_partials > 1 && kv_len <= slicing->most_keys &&
           (double)kv_len * slicing->num_slices * 2 > (double)slicing->all_work * LONG_TILE_HALVES;
}

// Begins a slice that has parts of this tile alone, if another is left to begin behind it.
static void begin_tile(struct slicing *slicing, struct slice_begin at, uint64_t num_partials)
{
    const uint32_t next = slicing->next - has_begun(slicing, at);
    if (next + 1 >= slicing->num_slices)
        return;
    slicing->next = next;
    slicing->in_tile = true;
    slicing->tile = at;
    slicing->tile.is_kept = true;
    slicing->tile.tile_partial = at.partial;
    slicing->tile.tile_partials = (uint32_t)num_partials;
    begin(slicing, at);
}

void slicing_tile(struct slicing *slicing, struct slice_begin at, uint32_t kv_len,
                  uint64_t num_partials)
{
    const bool was_cut = slicing->in_tile;
    if (!slicing->begins || !slicing->all_work)
        return;
    slicing->in_tile = false;
    begin_due(slicing, at);
    if (was_cut && !has_begun(slicing, at))
        begin(slicing, at);
    if (is_long(slicing, kv_len, num_partials))
        begin_tile(slicing, at, num_partials);
}

void slicing_item(struct slicing *slicing, struct slice_begin at, uint64_t keys)
{
    if (slicing->in_tile)
        begin_due(slicing, at);
    slicing->work += work_of_item(slicing, keys);
}

void slicing_end(struct slicing *slicing, struct slice_begin at)
{
    slicing->in_tile = false;
    while (slicing->begins && slicing->next <= slicing->num_slices)
        begin(slicing, at);
}

// ---- partial results between slices ----

// Leaves each tile to its first slice.
static void join_tiles(struct slice_begin *begins, uint32_t num_slices)
{
    for (uint32_t i = num_slices; i-- > 0;) {
        if (begins[i].is_kept && begins[i].partial != begins[i].tile_partial)
            begins[i] = begins[i + 1];
        begins[i].is_kept = false;
    }
}

static uint64_t kept_bytes(const struct engine_batch *batch, const struct items *items)
{
    const uint32_t each = items->cutting.num_slices + 1;
    uint64_t most = 0;
    for (uint32_t i = 0; i < batch->engine->pipelines.variant->num_kernels * each; i++) {
        const uint64_t bytes = batch_partial_bytes(batch, i / each, items->slices[i].tile_partials);
        most = bytes > most ? bytes : most;
    }
    return most;
}

// Each slice has a part of each kernel's list, so kernels do not share memory.
static bool make_memory(struct engine_batch *batch, struct items *items, uint64_t bytes)
{
    struct engine *engine = batch->engine;
    const uint32_t num_kernels = engine->pipelines.variant->num_kernels;
    const uint64_t counters = (uint64_t)num_kernels * batch->kv.num_kv_heads * sizeof(uint32_t),
                   size = bytes * num_kernels;
    struct error error;
    if (bytes > engine->max_scratch_bytes / num_kernels ||
        atomic_load(&engine->kept_bytes) > engine->max_scratch_bytes - size ||
        slab_take(&engine->slabs, counters, &items->counters, &error) != STATUS_OK)
        return false;
    memset(items->counters.mapped, 0, counters);
    if (buffer_init(&engine->device, MEMORY_POOL, size, "partial results of slices", &items->kept,
                    &error) != STATUS_OK)
        return false; // the counters end with the lists
    items->kept_total = &engine->kept_bytes;
    atomic_fetch_add(items->kept_total, size);
    return true;
}

void slices_keep(struct engine_batch *batch, struct items *items)
{
    const uint32_t num_slices = items->cutting.num_slices;
    const uint64_t bytes = kept_bytes(batch, items);
    if (!bytes || make_memory(batch, items, bytes))
        return;
    for (uint32_t i = 0; i < batch->engine->pipelines.variant->num_kernels; i++)
        join_tiles(items->slices + (size_t)i * (num_slices + 1), num_slices);
}

// ---- one slice ----

// The partial results and counters of the tile that the slice cuts.
static void take_kept(const struct engine_batch *batch, const struct items *items, uint32_t kernel,
                      const struct slice_begin *begin, struct work *work)
{
    const uint64_t bytes = items->kept.size / batch->engine->pipelines.variant->num_kernels,
                   heads = batch->kv.num_kv_heads;
    work->kept_partials = items->kept.address + kernel * bytes -
                          batch_partial_bytes(batch, kernel, begin->tile_partial);
    work->kept_counters =
        items->counters.address + (kernel - (uint64_t)begin->merge) * heads * sizeof(uint32_t);
    work->num_partials = 0; // in the submission's own memory
}

static void take(const struct engine_batch *batch, const struct items *items, uint32_t kernel,
                 const struct slice_begin *begin, struct work *work)
{
    const struct slice_begin *end = begin + 1;
    work->items += begin->item * sizeof(struct gpu_item);
    work->merges += begin->merge * sizeof(struct gpu_merge_item);
    work->num_items = end->item - begin->item;
    work->num_merges = end->merge - begin->merge;
    work->num_partials = end->partial - begin->partial;
    work->first_merge = begin->merge;
    work->first_partial = begin->partial;
    work->num_large = 0;
    work->num_doubtful =
        work->num_doubtful < work->num_items ? work->num_doubtful : work->num_items;
    work->num_tiles /= items->cutting.num_slices;
    work->tile_keys /= items->cutting.num_slices;
    if (begin->is_kept && work->num_items)
        take_kept(batch, items, kernel, begin, work);
}

enum status slices_take(const struct engine_batch *batch, struct items *items, uint32_t slice,
                        struct work works[MOST_KERNELS], struct error *error)
{
    const uint32_t num_slices = items->cutting.num_slices;
    if (slice && items->broken)
        return error_set(error, STATUS_INTERNAL, "slice %u of %u: an earlier slice has failed",
                         slice, num_slices);
    if (slice > items->num_taken)
        return error_set(error, STATUS_INTERNAL,
                         "slice %u of %u: its earlier slices were planned with other work lists",
                         slice, num_slices);
    items->num_taken = slice + 1;
    for (uint32_t i = 0; i < batch->engine->pipelines.variant->num_kernels; i++)
        take(batch, items, i, &items->slices[(size_t)i * (num_slices + 1) + slice], &works[i]);
    return STATUS_OK;
}

bool slices_are_sound(const struct items *items)
{
    const bool has_begun = items->num_taken && items->num_taken < items->cutting.num_slices;
    return !items->broken && !(items->kept_total && has_begun);
}

// All lists, because it is not known here which of them the run uses. Others are only made again.
void slices_break(struct engine_batch *batch)
{
    struct items *items;
    LIST_EACH(batch->lists.items, items)
        items->broken |= items->cutting.num_slices > 0;
}
