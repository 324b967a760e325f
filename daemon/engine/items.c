// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// items.c - work lists: a batch's rows cut into tiles, and the keys of a tile into splits. How a sequence is cut depends on its
// own q_len and kv_len and on the run's parameters only, so that its rows get the same bits whoever is beside it. Made by the
// submitter, ended by the maker once the GPU is past.

#include "batch.h"

#include "layout.h"
#include "variant.h"

#include <stdlib.h>
#include <utlist.h>

// A model has one number of query heads, a draft model beside it another: more lists are made, used and given back.
enum { MOST_LISTS = 4 };

enum { SPLIT_GRAIN = 256 }; // keys; where a caller says how many splits he wants

struct items {
    struct engine *engine;
    uint32_t group, num_splits;
    struct work work;
    struct piece piece;     // struct gpu_item[num_items], then gpu_merge_item[num_merges]; owned
    uint64_t last_sequence; // of a submission that uses it
    struct job end;
    struct items *prev, *next;
};

// How one sequence is cut.
struct cut {
    uint64_t tiles, live_tiles; // of all its rows; of those with a query
    uint64_t length, parts;     // keys of one part; 1 = not cut
};

static uint64_t divide_up(uint64_t value, uint64_t by)
{
    return (value + by - 1) / by;
}

// Keys of one part; 0 = not cut.
static uint64_t part_length(const struct variant *variant, uint64_t rows, uint64_t kv_len, uint32_t num_splits)
{
    if (num_splits == 0)
        return rows <= variant->split_rows ? variant->split_keys : 0;
    if (num_splits == 1 || kv_len == 0)
        return 0;
    return divide_up(divide_up(kv_len, num_splits), SPLIT_GRAIN) * SPLIT_GRAIN;
}

static struct cut cut_sequence(const struct engine_batch *batch, uint32_t seq, uint32_t group, uint32_t num_splits)
{
    const struct variant *variant = batch->engine->pipelines.variant;
    uint32_t tile_rows = variant->tile_rows(&batch->kv);
    uint64_t tokens = (uint32_t)(batch->cu_seqlens_q[seq + 1] - batch->cu_seqlens_q[seq]);
    uint64_t rows = (uint64_t)batch_num_queries(batch, seq) * group;
    uint64_t kv_len = batch->seq_lens_kv ? (uint32_t)batch->seq_lens_kv[seq] : 0;
    uint64_t length = part_length(variant, rows, kv_len, num_splits);
    uint64_t parts = length ? divide_up(kv_len, length) : 1;
    return (struct cut){
        .tiles = divide_up(tokens * group, tile_rows),
        .live_tiles = divide_up(rows, tile_rows),
        .length = length,
        .parts = parts ? parts : 1,
    };
}

uint64_t batch_num_partials(const struct engine_batch *batch, uint32_t group, uint32_t num_splits)
{
    uint64_t count = 0;
    for (uint32_t seq = 0; num_splits != 1 && seq < batch->num_seqs && count <= UINT32_MAX; seq++) {
        struct cut cut = cut_sequence(batch, seq, group, num_splits);
        uint64_t partials = 0;
        if (cut.parts > 1 && __builtin_mul_overflow(cut.live_tiles, cut.parts, &partials))
            partials = UINT64_MAX - count;
        count += partials < UINT64_MAX - count ? partials : UINT64_MAX - count;
    }
    return count;
}

uint64_t batch_partial_bytes(const struct engine_batch *batch, uint64_t num_partials)
{
    const struct engine_kv *kv = &batch->kv;
    uint32_t tile_rows = batch->engine->pipelines.variant->tile_rows(kv);
    uint64_t one = (uint64_t)kv->num_kv_heads * AULE_PARTIAL_FLOATS(tile_rows, kv->head_dim_v) * sizeof(float);
    uint64_t bytes;
    return __builtin_mul_overflow(num_partials, one, &bytes) ? UINT64_MAX : bytes;
}

// false: more than a dispatch can count.
static bool count_work(const struct engine_batch *batch, uint32_t group, uint32_t num_splits, struct work *work)
{
    uint64_t items = 0, merges = 0, partials = 0;
    for (uint32_t seq = 0; seq < batch->num_seqs && items <= INT32_MAX; seq++) {
        struct cut cut = cut_sequence(batch, seq, group, num_splits);
        uint64_t split_items;
        if (__builtin_mul_overflow(cut.live_tiles, cut.parts, &split_items) || split_items > INT32_MAX)
            return false;
        items += cut.tiles - cut.live_tiles + split_items;
        merges += cut.parts > 1 ? cut.live_tiles : 0;
        partials += cut.parts > 1 ? split_items : 0;
    }
    *work =
        (struct work){.num_items = (uint32_t)items, .num_merges = (uint32_t)merges, .num_partials = (uint32_t)partials};
    return items <= INT32_MAX;
}

// ---- filling ----

struct fill {
    struct gpu_item *item;
    struct gpu_merge_item *merge;
    uint32_t partial; // the next one's number
};

static void fill_split_tile(struct fill *fill, uint32_t seq, uint32_t first_row, const struct cut *cut, uint64_t kv_len)
{
    *fill->merge++ = (struct gpu_merge_item){seq, first_row, fill->partial, (uint32_t)cut->parts};
    for (uint64_t part = 0; part < cut->parts; part++) {
        uint64_t first = part * cut->length, end = first + cut->length;
        *fill->item++ = (struct gpu_item){seq, first_row, (uint32_t)first, (uint32_t)(end < kv_len ? end : kv_len),
                                          fill->partial++, (uint32_t)cut->length};
    }
}

static void fill_sequence(const struct engine_batch *batch, uint32_t seq, const struct cut *cut, struct fill *fill)
{
    uint32_t tile_rows = batch->engine->pipelines.variant->tile_rows(&batch->kv);
    uint32_t kv_len = batch->seq_lens_kv ? (uint32_t)batch->seq_lens_kv[seq] : 0;
    uint32_t span = (uint32_t)divide_up(kv_len ? kv_len : 1, AULE_SPAN_GRAIN) * AULE_SPAN_GRAIN;
    for (uint64_t tile = 0; tile < cut->tiles; tile++) {
        uint32_t first_row = (uint32_t)(tile * tile_rows);
        if (cut->parts > 1 && tile < cut->live_tiles)
            fill_split_tile(fill, seq, first_row, cut, kv_len);
        else
            *fill->item++ = (struct gpu_item){seq, first_row, 0, kv_len, AULE_NO_PARTIAL, span};
    }
}

static void fill_items(const struct engine_batch *batch, const struct items *items)
{
    struct gpu_item *first = items->piece.mapped;
    struct fill fill = {.item = first, .merge = (struct gpu_merge_item *)(first + items->work.num_items)};
    for (uint32_t seq = 0; seq < batch->num_seqs; seq++) {
        struct cut cut = cut_sequence(batch, seq, items->group, items->num_splits);
        fill_sequence(batch, seq, &cut, &fill);
    }
}

// ---- lists ----

static void items_free(struct items *items)
{
    slab_give(&items->engine->slabs, &items->piece);
    free(items);
}

void batch_free_items(struct engine_batch *batch)
{
    while (batch->items) {
        struct items *items = batch->items;
        DL_DELETE(batch->items, items);
        items_free(items);
    }
}

static void run_items_end(struct engine *engine, struct job *job)
{
    (void)engine;
    items_free((struct items *)((char *)job - offsetof(struct items, end)));
}

// Of more lists than a batch keeps, the one that was not used for longest ends when the GPU is past it.
static void drop_oldest_items(struct engine_batch *batch)
{
    struct items *items, *oldest = batch->items ? batch->items->prev : NULL;
    int count = 0;
    DL_COUNT(batch->items, items, count);
    if (count <= MOST_LISTS)
        return;
    DL_DELETE(batch->items, oldest);
    oldest->end = (struct job){.after = oldest->last_sequence, .run = run_items_end};
    pthread_mutex_lock(&batch->engine->lock);
    job_post(batch->engine, &oldest->end);
    pthread_mutex_unlock(&batch->engine->lock);
}

static enum status make_items(struct engine_batch *batch, uint32_t group, uint32_t num_splits, struct error *error)
{
    uint64_t rows = (uint64_t)batch->num_tokens * group;
    struct work work;
    if (rows > INT32_MAX || !count_work(batch, group, num_splits, &work))
        return error_set(error, STATUS_LIMIT,
                         "%u tokens of %u heads a KV head in %u splits are more than %d rows of attention",
                         batch->num_tokens, group, num_splits, INT32_MAX);
    struct items *items = calloc(1, sizeof *items);
    if (!items)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a work list");
    uint64_t item_bytes = work.num_items * sizeof(struct gpu_item);
    uint64_t merge_bytes = work.num_merges * sizeof(struct gpu_merge_item);
    *items = (struct items){.engine = batch->engine, .group = group, .num_splits = num_splits, .work = work};
    enum status status = slab_take(&batch->engine->slabs, item_bytes + merge_bytes, &items->piece, error);
    if (status != STATUS_OK) {
        free(items);
        return status;
    }
    items->work.items = items->piece.address;
    items->work.merges = work.num_merges ? items->piece.address + item_bytes : 0;
    fill_items(batch, items);
    DL_PREPEND(batch->items, items);
    drop_oldest_items(batch);
    return STATUS_OK;
}

enum status batch_work(struct engine_batch *batch, uint32_t group, uint32_t num_splits, uint64_t sequence,
                       struct work *out, struct error *error)
{
    struct items *items;
    DL_FOREACH(batch->items, items)
    if (items->group == group && items->num_splits == num_splits)
        break;
    if (!items) {
        enum status status = make_items(batch, group, num_splits, error);
        if (status != STATUS_OK)
            return status;
        items = batch->items;
    }
    DL_DELETE(batch->items, items);
    DL_PREPEND(batch->items, items);
    items->last_sequence = sequence;
    *out = items->work;
    return STATUS_OK;
}
