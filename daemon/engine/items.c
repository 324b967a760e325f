// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// items.c - work lists: each sequence goes to one kernel, its rows are cut into that kernel's tiles, and the keys of a tile into
// splits. How a sequence is cut depends on its own q_len and kv_len and on the run's parameters only, so that its rows get the same
// bits whoever is beside it. Made by the submitter, ended by the maker once the GPU is past.

#include "batch.h"

#include "layout.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

// A model has one number of query heads, a draft model beside it another: more lists are made, used and given back.
enum { MOST_LISTS = 4 };

struct items {
    struct engine *engine;
    struct cutting cutting;
    struct work works[MOST_KERNELS];
    struct piece piece;     // for each kernel struct gpu_item[num_items], then gpu_merge_item[num_merges]; owned
    uint64_t last_sequence; // of a submission that uses it
    struct job end;
    struct items *prev, *next;
};

// How one sequence is cut.
struct cut {
    uint32_t kernel;            // number in the variant's list
    uint32_t tile_rows;         // of that one
    uint64_t tiles, live_tiles; // of all its rows; of those with a query
    uint64_t length, parts;     // keys of one part
    bool halves;                // each part is two items
};

static uint64_t num_partials(const struct cut *cut) // of a tile; 1 = it is not cut
{
    return cut->parts * (cut->halves ? 2 : 1);
}

static const struct variant *variant_of(const struct engine_batch *batch)
{
    return batch->engine->pipelines.variant;
}

struct cutting cutting_of_run(const struct engine_run *run)
{
    struct geometry geometry = geometry_of_run(run);
    return (struct cutting){
        .group = run->num_heads / run->batch->kv.num_kv_heads,
        .num_splits = run->num_splits,
        .serving = variant_serving(variant_of(run->batch), &geometry),
    };
}

uint64_t batch_workgroups(const struct engine_batch *batch)
{
    const uint64_t part = 4096; // keys, or nearly so many
    return (batch->num_seqs + batch->num_keys / part) * batch->kv.num_kv_heads;
}

static struct cut cut_sequence(const struct engine_batch *batch, uint32_t seq, const struct cutting *cutting)
{
    const struct variant *variant = variant_of(batch);
    uint64_t tokens = (uint32_t)(batch->cu_seqlens_q[seq + 1] - batch->cu_seqlens_q[seq]);
    uint64_t rows = (uint64_t)batch_num_queries(batch, seq) * cutting->group;
    uint64_t kv_len = batch->seq_lens_kv ? (uint32_t)batch->seq_lens_kv[seq] : 0;
    uint32_t number = variant_kernel(variant, cutting->serving, rows, kv_len);
    const struct kernel *kernel = variant->kernels[number];
    uint32_t tile_rows = kernel->tile_rows(&batch->kv);
    uint64_t length = kernel_part_keys(kernel, rows, kv_len, cutting->num_splits);
    uint64_t parts = length ? divide_up(kv_len, length) : 1;
    return (struct cut){
        .kernel = number,
        .tile_rows = tile_rows,
        .tiles = divide_up(tokens * cutting->group, tile_rows),
        .live_tiles = divide_up(rows, tile_rows),
        .length = length,
        .parts = parts ? parts : 1,
        .halves = cutting->halves >> number & 1,
    };
}

static uint64_t add(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

struct partials batch_partials(const struct engine_batch *batch, const struct cutting *cutting)
{
    struct partials all = {0};
    for (uint32_t seq = 0; cutting->num_splits != 1 && seq < batch->num_seqs && all.count <= UINT32_MAX; seq++) {
        struct cut cut = cut_sequence(batch, seq, cutting);
        uint64_t partials = 0;
        if (num_partials(&cut) > 1 && __builtin_mul_overflow(cut.live_tiles, num_partials(&cut), &partials))
            partials = UINT64_MAX;
        all.count = add(all.count, partials);
        all.bytes = add(all.bytes, batch_partial_bytes(batch, cut.kernel, partials));
    }
    return all;
}

uint64_t batch_partial_bytes(const struct engine_batch *batch, uint32_t kernel, uint64_t num_partials)
{
    const struct engine_kv *kv = &batch->kv;
    uint32_t tile_rows = variant_of(batch)->kernels[kernel]->tile_rows(kv);
    uint64_t one = (uint64_t)kv->num_kv_heads * AULE_PARTIAL_FLOATS(tile_rows, kv->head_dim_v) * sizeof(float);
    uint64_t bytes;
    return __builtin_mul_overflow(num_partials, one, &bytes) ? UINT64_MAX : bytes;
}

// false: more than a dispatch can count.
static bool count_work(const struct engine_batch *batch, const struct cutting *cutting, struct work works[MOST_KERNELS])
{
    uint64_t items = 0; // of all kernels
    for (uint32_t seq = 0; seq < batch->num_seqs; seq++) {
        struct cut cut = cut_sequence(batch, seq, cutting);
        struct work *work = &works[cut.kernel];
        uint64_t split_items;
        if (__builtin_mul_overflow(cut.live_tiles, num_partials(&cut), &split_items) || split_items > INT32_MAX)
            return false;
        items += cut.tiles - cut.live_tiles + split_items;
        if (items > INT32_MAX)
            return false;
        work->num_items += (uint32_t)(cut.tiles - cut.live_tiles + split_items);
        work->num_merges += num_partials(&cut) > 1 ? (uint32_t)cut.live_tiles : 0;
        work->num_partials += num_partials(&cut) > 1 ? (uint32_t)split_items : 0;
    }
    return true;
}

// ---- filling ----
// Items with many keys come first, since what begins last should end soon: sorted roughly, by quarters of powers of two, in one
// pass that counts and one that places. The order is the GPU's alone: no bits depend on it.

enum { SIZES = 4 * 33 };

// Of one kernel.
struct fill {
    bool counting;
    uint32_t at[SIZES]; // of each size, the largest first: how many there are; then, where the next one goes
    struct gpu_item *items;
    struct gpu_merge_item *merges;
    uint32_t partial, num_merges; // the next ones' numbers
};

static uint32_t size_of_keys(uint64_t keys)
{
    uint32_t log2 = keys ? 63 - (uint32_t)__builtin_clzll(keys) : 0;
    uint32_t quarter = log2 >= 2 ? keys >> (log2 - 2) & 3 : 0;
    return SIZES - 1 - (log2 * 4 + quarter);
}

static void fill_item(struct fill *fill, struct gpu_item item, uint64_t keys)
{
    uint32_t *at = &fill->at[size_of_keys(keys)];
    if (!fill->counting)
        fill->items[*at] = item;
    (*at)++;
}

// Part `part` of a tile that is cut, or one half of it.
static void fill_part(struct fill *fill, const struct gpu_item *tile, const struct cut *cut, uint64_t part,
                      uint32_t which_half)
{
    struct gpu_item item = *tile;
    uint64_t first = part * cut->length, kv_len = tile->tile.kv_len;
    uint64_t end = cut->length && first + cut->length < kv_len ? first + cut->length : kv_len;
    item.first_key = (uint32_t)first;
    item.end_key = (uint32_t)end;
    item.span = cut->parts > 1 ? (uint32_t)cut->length : tile->span;
    item.which_half = which_half;
    item.partial = fill->partial++;
    fill_item(fill, item, (end - first) / (which_half == AULE_BOTH_HALVES ? 1 : 2));
}

static void fill_split_tile(struct fill *fill, struct gpu_item tile, const struct cut *cut)
{
    tile.merge = fill->num_merges;
    tile.first_partial = fill->partial;
    tile.num_partials = (uint32_t)num_partials(cut);
    if (!fill->counting)
        fill->merges[fill->num_merges] = (struct gpu_merge_item){tile.tile, tile.first_partial, tile.num_partials};
    fill->num_merges++;
    for (uint64_t part = 0; part < cut->parts; part++) {
        fill_part(fill, &tile, cut, part, cut->halves ? 0 : AULE_BOTH_HALVES);
        if (cut->halves)
            fill_part(fill, &tile, cut, part, 1);
    }
}

// Keys that the tile's last query sees if it is causal.
static uint64_t tile_keys(const struct engine_batch *batch, uint32_t seq, const struct cut *cut, uint64_t tile)
{
    uint64_t kv_len = (uint32_t)batch->seq_lens_kv[seq], queries = batch_num_queries(batch, seq);
    uint64_t behind = cut->live_tiles ? queries * (cut->live_tiles - 1 - tile) / cut->live_tiles : 0; // about
    return kv_len > behind ? kv_len - behind : 0;
}

static struct gpu_tile tile_of_sequence(const struct engine_batch *batch, uint32_t seq)
{
    return (struct gpu_tile){
        .seq = seq,
        .first_token = (uint32_t)batch->cu_seqlens_q[seq],
        .num_tokens = (uint32_t)(batch->cu_seqlens_q[seq + 1] - batch->cu_seqlens_q[seq]),
        .q_len = batch_num_queries(batch, seq),
        .kv_len = batch->seq_lens_kv ? (uint32_t)batch->seq_lens_kv[seq] : 0,
    };
}

static void fill_sequence(const struct engine_batch *batch, uint32_t seq, const struct cut *cut, struct fill *fill)
{
    struct gpu_tile tile = tile_of_sequence(batch, seq);
    struct gpu_item item = {
        .end_key = tile.kv_len,
        .span = (uint32_t)divide_up(tile.kv_len ? tile.kv_len : 1, AULE_SPAN_GRAIN) * AULE_SPAN_GRAIN,
        .partial = AULE_NO_PARTIAL,
        .which_half = AULE_BOTH_HALVES,
    };
    for (uint64_t number = 0; number < cut->tiles; number++) {
        bool live = number < cut->live_tiles;
        tile.first_row = (uint32_t)(number * cut->tile_rows);
        item.tile = tile;
        if (num_partials(cut) > 1 && live)
            fill_split_tile(fill, item, cut);
        else
            fill_item(fill, item, live && tile.kv_len ? tile_keys(batch, seq, cut, number) : 0);
    }
}

static uint64_t work_bytes(const struct work *work)
{
    return work->num_items * sizeof(struct gpu_item) + work->num_merges * sizeof(struct gpu_merge_item);
}

// Where each kernel's lists lie in the piece, for shaders and in `fills` for us.
static void place_lists(struct items *items, struct fill fills[MOST_KERNELS])
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < MOST_KERNELS; i++) {
        struct work *work = &items->works[i];
        char *to = (char *)items->piece.mapped + at;
        uint64_t item_bytes = work->num_items * sizeof(struct gpu_item);
        work->items = work->num_items ? items->piece.address + at : 0;
        work->merges = work->num_merges ? items->piece.address + at + item_bytes : 0;
        fills[i] = (struct fill){
            .counting = true, .items = (struct gpu_item *)to, .merges = (struct gpu_merge_item *)(to + item_bytes)};
        at += work_bytes(work);
    }
}

// From how many there are of each size to where the first of them goes.
static void place_sizes(struct fill *fill)
{
    uint32_t next = 0;
    for (uint32_t size = 0; size < SIZES; size++) {
        uint32_t count = fill->at[size];
        fill->at[size] = next;
        next += count;
    }
    fill->counting = false;
    fill->partial = fill->num_merges = 0;
}

static void fill_sequences(const struct engine_batch *batch, const struct items *items, struct fill fills[MOST_KERNELS])
{
    for (uint32_t seq = 0; seq < batch->num_seqs; seq++) {
        struct cut cut = cut_sequence(batch, seq, &items->cutting);
        fill_sequence(batch, seq, &cut, &fills[cut.kernel]);
    }
}

static void fill_items(const struct engine_batch *batch, struct items *items)
{
    struct fill fills[MOST_KERNELS];
    place_lists(items, fills);
    fill_sequences(batch, items, fills);
    for (uint32_t i = 0; i < MOST_KERNELS; i++)
        place_sizes(&fills[i]);
    fill_sequences(batch, items, fills);
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

static enum status make_items(struct engine_batch *batch, const struct cutting *cutting, struct error *error)
{
    uint64_t rows = (uint64_t)batch->num_tokens * cutting->group;
    struct work works[MOST_KERNELS] = {{0}};
    uint64_t bytes = 0;
    if (rows > INT32_MAX || !count_work(batch, cutting, works))
        return error_set(error, STATUS_LIMIT,
                         "%u tokens of %u heads a KV head in %u splits are more than %d rows of attention",
                         batch->num_tokens, cutting->group, cutting->num_splits, INT32_MAX);
    struct items *items = calloc(1, sizeof *items);
    if (!items)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a work list of %zu bytes", sizeof *items);
    *items = (struct items){.engine = batch->engine, .cutting = *cutting};
    memcpy(items->works, works, sizeof works);
    for (uint32_t i = 0; i < MOST_KERNELS; i++)
        bytes += work_bytes(&works[i]);
    enum status status = slab_take(&batch->engine->slabs, bytes, &items->piece, error);
    if (status != STATUS_OK) {
        free(items);
        return status;
    }
    fill_items(batch, items);
    DL_PREPEND(batch->items, items);
    drop_oldest_items(batch);
    return STATUS_OK;
}

bool cutting_same(const struct cutting *a, const struct cutting *b)
{
    return a->group == b->group && a->num_splits == b->num_splits && a->serving == b->serving && a->halves == b->halves;
}

enum status batch_work(struct engine_batch *batch, const struct cutting *cutting, uint64_t sequence,
                       struct work works[MOST_KERNELS], struct error *error)
{
    struct items *items;
    DL_FOREACH(batch->items, items)
    if (cutting_same(&items->cutting, cutting))
        break;
    if (!items) {
        enum status status = make_items(batch, cutting, error);
        if (status != STATUS_OK)
            return status;
        items = batch->items;
    }
    DL_DELETE(batch->items, items);
    DL_PREPEND(batch->items, items);
    items->last_sequence = sequence;
    memcpy(works, items->works, sizeof items->works);
    return STATUS_OK;
}
