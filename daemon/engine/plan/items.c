// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// items.c - makes work lists. Each sequence goes to one kernel; its rows are cut into that kernel's
// tiles, and the keys of a tile into parts (split-KV). The cut depends only on the sequence's own
// q_len and kv_len and on the run's parameters. So its rows get the same bits in any batch. The
// order of items changes no bit. Submitter only, except batch_partials() and batch_workgroups().

#include "items.h"

#include "check.h"
#include "engine/state/state.h"
#include "run_geometry.h"
#include "shaders/layout.h"
#include "slices.h"

#include <stdlib.h>
#include <string.h>

static const struct variant *variant_of(const struct engine_batch *batch)
{
    return batch->engine->pipelines.variant;
}

// Keys that a tile goes over at most: window and chunk bound them, unless a mask or positions let
// its rows see keys that lie far apart. About; it only balances slices.
static uint32_t most_keys(const struct engine_run *run)
{
    const uint64_t *address = run->batch->address;
    const int64_t tile = 128, chunk = run->options.attention_chunk,
                  right = run->causal ? 0 : run->window_right;
    int64_t most = chunk ? chunk + tile : INT64_MAX;
    if (address[BATCH_POSITIONS] || address[BATCH_MASK_STARTS])
        return UINT32_MAX;
    if (run->windowed && run->window_left >= 0 && right >= 0 &&
        run->window_left + right + tile < most)
        most = run->window_left + right + tile;
    return most < UINT32_MAX ? (uint32_t)most : UINT32_MAX;
}

struct cutting cutting_of_run(const struct engine_run *run)
{
    struct geometry geometry = geometry_of_run(run);
    const struct variant *variant = variant_of(run->batch);
    struct cutting cutting = {
        .group = run->num_heads / run->batch->kv.num_kv_heads,
        .num_splits = run->num_splits,
        .serving = variant_serving(variant, &geometry),
        .num_slices = run_is_slice(run) ? run->num_slices : 0,
        .most_keys = run_is_slice(run) ? most_keys(run) : 0,
    };
    const enum engine_place place = (enum engine_place)geometry.spec[AULE_SPEC_PLACE];
    for (uint32_t i = 0; i < variant->num_kernels; i++)
        if (variant->kernels[i]->is_native &&
            (!hopper_takes(run, place, geometry.spec[AULE_SPEC_NUM_KV_HEADS]) ||
             pipeline_native_refused(&run->batch->engine->pipelines, &geometry)))
            cutting.serving &= ~(1u << i);
    return cutting;
}

uint64_t batch_workgroups(const struct engine_batch *batch)
{
    // As if all sequences had the same length.
    uint64_t length = batch->num_seqs ? batch->num_keys / batch->num_seqs : 0;
    return batch->num_seqs * kernel_usual_parts(length) * batch->kv.num_kv_heads;
}

static uint64_t add(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

struct partials batch_partials(const struct engine_batch *batch, const struct cutting *cutting)
{
    struct partials all = {0};
    for (uint32_t seq = 0;
         cutting->num_splits != 1 && seq < batch->num_seqs && all.count <= UINT32_MAX; seq++) {
        struct cut cut = cut_sequence(batch, seq, cutting);
        uint64_t partials = 0;
        if (cut_num_partials(&cut) > 1 &&
            __builtin_mul_overflow(cut.live_tiles, cut_num_partials(&cut), &partials))
            partials = UINT64_MAX;
        all.count = add(all.count, partials);
        all.bytes = add(all.bytes, batch_partial_bytes(batch, cut.kernel, partials));
    }
    return all;
}

uint64_t batch_partial_bytes(const struct engine_batch *batch, uint32_t kernel,
                             uint64_t num_partials)
{
    const struct engine_kv *kv = &batch->kv;
    uint32_t tile_rows = variant_of(batch)->kernels[kernel]->tile_rows(kv);
    uint64_t one =
        (uint64_t)kv->num_kv_heads * AULE_PARTIAL_FLOATS(tile_rows, kv->head_dim_v) * sizeof(float);
    uint64_t bytes;
    return __builtin_mul_overflow(num_partials, one, &bytes) ? UINT64_MAX : bytes;
}

static uint32_t num_keys(const struct engine_batch *batch, uint32_t seq)
{
    return batch->seq_lens_kv ? (uint32_t)batch->seq_lens_kv[seq] : 0;
}

// Keys that the last query of the tile sees in a causal run; an estimate.
static uint64_t tile_keys(const struct engine_batch *batch, uint32_t seq, const struct cut *cut,
                          uint64_t tile)
{
    uint64_t kv_len = (uint32_t)batch->seq_lens_kv[seq], queries = batch_num_queries(batch, seq);
    uint64_t behind = // as if a tile had a whole number of queries
        cut->live_tiles ? queries * (cut->live_tiles - 1 - tile) / cut->live_tiles : 0;
    return kv_len > behind ? kv_len - behind : 0;
}

// The same, summed over all tiles.
static double tiles_keys(const struct engine_batch *batch, uint32_t seq, const struct cut *cut)
{
    if (cut->live_tiles == 0 || num_keys(batch, seq) == 0)
        return 0;
    return (double)cut->live_tiles *
           (double)(tile_keys(batch, seq, cut, 0) +
                    tile_keys(batch, seq, cut, cut->live_tiles - 1)) /
           2;
}

// The batch whose lists have the cascade's items. There is a crowd.
static uint32_t owner_of(const struct cuts *cuts)
{
    uint32_t owner = 0;
    while (cuts->numbers[owner] == NO_MEMBERS)
        owner++;
    return owner;
}

// Counts a crowd's part for the cascade kernel, which reads the part's keys once for each work
// item. Takes the part off the tiles of the members. `owner` gets the items; what they read is
// divided among the members.
static void count_crowd(const struct cuts *cuts, const struct crowd *crowd, struct work *owner,
                        struct work (*works)[MOST_KERNELS])
{
    uint32_t items = cuts_crowd_items(cuts, crowd);
    owner->num_items += 2 * items;
    owner->num_members += 2 * crowd->count;
    owner->num_tiles += items;
    for (uint32_t i = 0; i < crowd->count; i++) {
        uint32_t seq = cuts->crowds.members[crowd->first + i];
        const struct cut *member = &cuts->of[seq];
        struct work *of = works[cuts_batch_of(cuts, seq)];
        of[cuts->helper].tile_keys += (double)items * (double)member->length / crowd->count;
        of[member->kernel].tile_keys -= (double)member->length;
    }
}

// Counts the work of one batch except its crowds. false: there are more items than a dispatch can
// count.
static bool count_batch(const struct engine_batch *batch, const struct cut *cuts,
                        struct work works[MOST_KERNELS])
{
    uint64_t items = 0; // of all kernels
    for (uint32_t seq = 0; seq < batch->num_seqs; seq++) {
        const struct cut *cut = &cuts[seq];
        struct work *work = &works[cut->kernel];
        uint64_t num_partials = cut_num_partials(cut), split_items;
        if (__builtin_mul_overflow(cut->live_tiles, num_partials, &split_items) ||
            split_items > INT32_MAX)
            return false;
        items += cut->tiles - cut->live_tiles + split_items;
        if (items > INT32_MAX)
            return false;
        work->num_items += (uint32_t)(cut->tiles - cut->live_tiles + split_items) - 2 * cut->shared;
        if (kernel_doubts(variant_of(batch)->kernels[cut->kernel], num_keys(batch, seq)))
            work->num_doubtful += (uint32_t)cut->live_tiles;
        work->num_tiles += (double)cut->live_tiles;
        work->tile_keys += tiles_keys(batch, seq, cut);
        work->num_merges += num_partials > 1 ? (uint32_t)cut->live_tiles : 0;
        work->num_partials += num_partials > 1 ? (uint32_t)split_items : 0;
    }
    return true;
}

static bool count_work(const struct cuts *cuts, const struct cutting *cutting,
                       struct work (*works)[MOST_KERNELS], struct error *error)
{
    for (uint32_t i = 0; i < cuts->num_batches; i++) {
        const struct engine_batch *batch = cuts->batches[i];
        uint64_t rows = (uint64_t)batch->num_tokens * cutting->group;
        if (rows > INT32_MAX || !count_batch(batch, cuts->of + cuts->first[i], works[i])) {
            error_set(error, STATUS_LIMIT,
                      "%u tokens with %u query heads a KV head and %u splits: one dispatch takes "
                      "at most %d rows",
                      batch->num_tokens, cutting->group, cutting->num_splits, INT32_MAX);
            return false;
        }
        if (cuts->num_batches > 1 && cuts->crowds.num_crowds)
            works[i][cuts->helper].joins = cuts->numbers[i] != NO_MEMBERS;
    }
    for (uint32_t i = 0; i < cuts->crowds.num_crowds; i++)
        count_crowd(cuts, &cuts->crowds.crowds[i], &works[owner_of(cuts)][cuts->helper], works);
    return true;
}

// ---- filling ----
// Items with many keys come first in a list, so that no long item begins last. They are sorted by
// key count, roughly: by quarters of powers of two. One pass counts and one places. No bit depends
// on the order.

enum { SIZES = 4 * 33 };

// The lists of one kernel, while they are filled.
struct fill {
    bool counting;
    struct slicing slicing;
    // For each size, the largest first: while counting, the number of items; then, the place of the
    // next one.
    uint32_t at[SIZES];
    struct gpu_item *items;
    struct gpu_merge_item *merges;
    uint32_t partial, num_merges; // numbers of the next partial result and of the next merge
};

static uint32_t size_of_keys(uint64_t keys)
{
    uint32_t log2 = keys ? 63 - (uint32_t)__builtin_clzll(keys) : 0;
    uint32_t quarter = log2 >= 2 ? keys >> (log2 - 2) & 3 : 0;
    return SIZES - 1 - (log2 * 4 + quarter);
}

static struct slice_begin here(const struct fill *fill)
{
    return (struct slice_begin){
        .item = fill->at[0], .merge = fill->num_merges, .partial = fill->partial};
}

// Items of a list with slices stay in the order of tiles.
static void fill_item(struct fill *fill, struct gpu_item item, uint64_t keys)
{
    uint32_t *at = &fill->at[fill->slicing.begins ? 0 : size_of_keys(keys)];
    if (!fill->counting)
        fill->items[*at] = item;
    (*at)++;
}

// The item for part `part` of a split tile, or for one half of the part.
static struct gpu_item item_of_part(const struct gpu_item *tile, const struct cut *cut,
                                    uint64_t part, uint32_t which_half, uint32_t partial)
{
    struct gpu_item item = *tile;
    uint64_t first = part * cut->length, kv_len = tile->tile.kv_len;
    uint64_t end = cut->length && first + cut->length < kv_len ? first + cut->length : kv_len;
    item.first_key = (uint32_t)first;
    item.end_key = (uint32_t)end;
    item.span = cut->parts > 1 ? (uint32_t)cut->length : tile->span;
    item.which_half = which_half;
    item.partial = partial;
    return item;
}

static void fill_part(struct fill *fill, const struct gpu_item *tile, const struct cut *cut,
                      uint64_t part, uint32_t which_half)
{
    const struct slice_begin at = here(fill);
    struct gpu_item item = item_of_part(tile, cut, part, which_half, fill->partial++);
    const uint64_t keys =
        (item.end_key - item.first_key) / (which_half == AULE_BOTH_HALVES ? 1 : 2);
    slicing_item(&fill->slicing, at, keys);
    fill_item(fill, item, keys);
}

// Adds the items of a split tile. Returns the item of the whole tile, from which crowds make
// theirs.
static struct gpu_item fill_split_tile(struct fill *fill, struct gpu_item tile,
                                       const struct cut *cut)
{
    tile.merge = fill->num_merges;
    tile.first_partial = fill->partial;
    tile.num_partials = (uint32_t)cut_num_partials(cut);
    tile.num_halved = cut->halves ? tile.num_partials : 2 * cut->shared;
    if (!fill->counting)
        fill->merges[fill->num_merges] =
            (struct gpu_merge_item){tile.tile, tile.first_partial, tile.num_partials};
    fill->num_merges++;
    fill->partial += 2 * cut->shared;
    for (uint64_t part = cut->shared; part < cut->parts; part++) {
        fill_part(fill, &tile, cut, part, cut->halves ? 0 : AULE_BOTH_HALVES);
        if (cut->halves)
            fill_part(fill, &tile, cut, part, 1);
    }
    return tile;
}

// The lists of the cascade kernel, while they are filled.
struct crowd_fill {
    struct gpu_crowd *to;
    char *members; // the next item's struct gpu_item[], then u32[]: AULE_MEMBER_BYTES each
    uint64_t members_address; // shader address of `members`
};

// Adds a work item: one half of a crowd's part, for members [first, end).
static void fill_crowd_item(struct crowd_fill *fill, const struct cuts *cuts,
                            const struct crowd *crowd, uint32_t first, uint32_t end,
                            uint32_t which_half)
{
    uint32_t count = end - first, width = cuts_crowd_width(cuts, crowd);
    struct gpu_item *items = (struct gpu_item *)fill->members;
    uint32_t *runs = (uint32_t *)(items + count);
    *fill->to++ = (struct gpu_crowd){fill->members_address, count, width};
    for (uint32_t i = 0; i < count; i++) {
        uint32_t seq = cuts->crowds.members[crowd->first + first + i];
        const struct gpu_item *tile = &cuts->tiles[seq];
        items[i] = item_of_part(tile, &cuts->of[seq], crowd->part, which_half,
                                tile->first_partial + 2 * crowd->part + which_half);
        runs[i] = cuts->numbers[cuts_batch_of(cuts, seq)];
    }
    fill->members += count * AULE_MEMBER_BYTES;
    fill->members_address += count * AULE_MEMBER_BYTES;
}

// Divides the members into work items of about equal size.
static void fill_crowd(struct crowd_fill *fill, const struct cuts *cuts, const struct crowd *crowd)
{
    uint64_t num_items = cuts_crowd_items(cuts, crowd);
    for (uint64_t i = 0; i < num_items; i++) {
        uint32_t first = (uint32_t)(crowd->count * i / num_items),
                 end = (uint32_t)(crowd->count * (i + 1) / num_items);
        fill_crowd_item(fill, cuts, crowd, first, end, 0);
        fill_crowd_item(fill, cuts, crowd, first, end, 1);
    }
}

static struct gpu_tile tile_of_sequence(const struct engine_batch *batch, uint32_t seq)
{
    return (struct gpu_tile){
        .seq = seq,
        .first_token = (uint32_t)batch->cu_seqlens_q[seq],
        .num_tokens = (uint32_t)(batch->cu_seqlens_q[seq + 1] - batch->cu_seqlens_q[seq]),
        .q_len = batch_num_queries(batch, seq),
        .kv_len = num_keys(batch, seq),
    };
}

// `number_of_all`: the sequence's number in `cuts`.
static void fill_sequence(const struct engine_batch *batch, uint32_t seq, const struct cuts *cuts,
                          uint32_t number_of_all, struct fill *fill)
{
    const struct cut *cut = &cuts->of[number_of_all];
    struct gpu_tile tile = tile_of_sequence(batch, seq);
    struct gpu_item item = {
        .end_key = tile.kv_len,
        .span =
            (uint32_t)divide_up(tile.kv_len ? tile.kv_len : 1, AULE_SPAN_GRAIN) * AULE_SPAN_GRAIN,
        .partial = AULE_NO_PARTIAL,
        .which_half = AULE_BOTH_HALVES,
    };
    for (uint64_t number = 0; number < cut->tiles; number++) {
        bool live = number < cut->live_tiles;
        slicing_tile(&fill->slicing, here(fill), tile.kv_len, live ? cut_num_partials(cut) : 1);
        tile.first_row = (uint32_t)(number * cut->tile_rows);
        item.tile = tile;
        if (cut_num_partials(cut) > 1 && live) {
            struct gpu_item split = fill_split_tile(fill, item, cut);
            if (cut->shared)
                cuts->tiles[number_of_all] = split;
        } else {
            const uint64_t keys = live && tile.kv_len ? tile_keys(batch, seq, cut, number) : 0;
            slicing_item(&fill->slicing, here(fill), keys);
            fill_item(fill, item, keys);
        }
    }
}

// Offsets of a kernel's lists, in bytes from its first list; `end` is where the next kernel's
// begin.
struct layout {
    uint64_t members_at, merges_at, end;
};

static struct layout layout_of(const struct engine_batch *batch, uint32_t kernel,
                               const struct work *work)
{
    bool crowds = variant_of(batch)->kernels[kernel]->helps;
    struct layout lists = {
        work->num_items * (crowds ? sizeof(struct gpu_crowd) : sizeof(struct gpu_item)), 0, 0};
    lists.merges_at = lists.members_at + work->num_members * AULE_MEMBER_BYTES;
    lists.end = padded(lists.merges_at + work->num_merges * sizeof(struct gpu_merge_item));
    return lists;
}

static uint64_t lists_bytes(const struct cuts *cuts, struct work (*works)[MOST_KERNELS])
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < cuts->num_batches; i++)
        for (uint32_t j = 0; j < variant_of(cuts->batches[i])->num_kernels; j++)
            bytes += layout_of(cuts->batches[i], j, &works[i][j]).end;
    return bytes;
}

// Sets the shader addresses in `works`, and the CPU pointers in `fills`. Returns where the next
// batch's lists begin.
static uint64_t place_lists(const struct engine_batch *batch, const struct piece *piece,
                            uint64_t at, struct work works[MOST_KERNELS],
                            struct fill fills[MOST_KERNELS])
{
    for (uint32_t i = 0; i < variant_of(batch)->num_kernels; i++) {
        struct work *work = &works[i];
        struct layout lists = layout_of(batch, i, work);
        char *to = (char *)piece->mapped + at;
        work->items = work->num_items ? piece->address + at : 0;
        work->merges = work->num_merges ? piece->address + at + lists.merges_at : 0;
        fills[i] = (struct fill){.counting = true,
                                 .items = (struct gpu_item *)to,
                                 .merges = (struct gpu_merge_item *)(to + lists.merges_at)};
        at += lists.end;
    }
    return at;
}

// How many items have at least about half as many keys as the largest. The sizes are counted.
static uint32_t count_large(const struct fill *fill)
{
    uint32_t size = 0, count = 0;
    while (size < SIZES && !fill->at[size])
        size++;
    for (uint32_t end = size + 4; size < end && size < SIZES; size++)
        count += fill->at[size];
    return count;
}

// Turns the number of items of each size into the place of the first of them.
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
    slicing_place(&fill->slicing);
}

static void fill_sequences(const struct cuts *cuts, uint32_t number,
                           struct fill fills[MOST_KERNELS])
{
    const struct engine_batch *batch = cuts->batches[number];
    for (uint32_t seq = 0; seq < batch->num_seqs; seq++) {
        uint32_t of_all = cuts->first[number] + seq;
        fill_sequence(batch, seq, cuts, of_all, &fills[cuts->of[of_all].kernel]);
    }
}

// `lists` points to the first list of the cascade kernel.
static void fill_crowds(const struct cuts *cuts, const struct work *work, void *lists)
{
    uint64_t members_at = layout_of(cuts->batches[0], cuts->helper, work).members_at;
    struct crowd_fill fill = {
        .to = lists,
        .members = (char *)lists + members_at,
        .members_address = work->items + members_at,
    };
    for (uint32_t i = 0; i < cuts->crowds.num_crowds; i++)
        fill_crowd(&fill, cuts, &cuts->crowds.crowds[i]);
}

static void fill_lists(const struct cuts *cuts, const struct cutting *cutting,
                       struct work (*works)[MOST_KERNELS], struct slice_begin *slices,
                       const struct piece *piece)
{
    uint64_t at = 0;
    void *crowds = NULL;
    for (uint32_t i = 0; i < cuts->num_batches; i++) {
        struct fill fills[MOST_KERNELS];
        at = place_lists(cuts->batches[i], piece, at, works[i], fills);
        for (uint32_t j = 0; j < variant_of(cuts->batches[i])->num_kernels; j++)
            fills[j].slicing = slicing_of(cutting, slices, j);
        if (cuts->crowds.num_crowds && i == owner_of(cuts))
            crowds = fills[cuts->helper].items;
        fill_sequences(cuts, i, fills);
        for (uint32_t j = 0; j < variant_of(cuts->batches[i])->num_kernels; j++) {
            works[i][j].num_large = count_large(&fills[j]);
            place_sizes(&fills[j]);
        }
        fill_sequences(cuts, i, fills);
        for (uint32_t j = 0; j < variant_of(cuts->batches[i])->num_kernels; j++)
            slicing_end(&fills[j].slicing, here(&fills[j]));
    }
    if (crowds)
        fill_crowds(cuts, &works[owner_of(cuts)][cuts->helper], crowds);
}

enum status items_make(struct cuts *cuts, const struct cutting *cutting,
                       struct work (*works)[MOST_KERNELS], struct slice_begin *slices,
                       struct piece *piece, struct error *error)
{
    memset(works, 0, cuts->num_batches * sizeof *works);
    if (!count_work(cuts, cutting, works, error))
        return STATUS_LIMIT;
    enum status status =
        slab_take(&cuts->batches[0]->engine->slabs, lists_bytes(cuts, works), piece, error);
    if (status == STATUS_OK)
        fill_lists(cuts, cutting, works, slices, piece);
    return status;
}

// ---- the lists of one batch ----

static enum status make_items(struct engine_batch *batch, const struct cutting *cutting,
                              struct error *error)
{
    struct items *items = calloc(1, sizeof *items);
    struct cuts cuts = {0};
    enum status status = STATUS_NO_MEMORY;
    struct slice_begin *slices =
        cutting->num_slices
            ? calloc((size_t)MOST_KERNELS * (cutting->num_slices + 1), sizeof *slices)
            : NULL;
    if (!items || (cutting->num_slices && !slices) || !cuts_make(&cuts, &batch, 1, cutting)) {
        error_set(error, status, "no memory to cut %u sequences into work", batch->num_seqs);
    } else {
        items->slabs = &batch->engine->slabs;
        items->cutting = *cutting;
        items->slices = slices;
        status = items_make(&cuts, cutting, &items->works, slices, &items->piece, error);
    }
    cuts_finish(&cuts);
    if (status == STATUS_OK) {
        if (slices)
            slices_keep(batch, items);
        lists_add(&batch->lists, batch->engine, items);
    } else {
        free(slices);
        free(items);
    }
    return status;
}

// The batch's lists for `cutting`, which become the most recent. NULL: they could not be made.
static struct items *get_items(struct engine_batch *batch, const struct cutting *cutting,
                               bool sound, struct error *error)
{
    struct items *items = lists_find(&batch->lists, cutting);
    if (items && (!sound || slices_are_sound(items)))
        return items;
    return make_items(batch, cutting, error) == STATUS_OK ? batch->lists.items : NULL;
}

enum status batch_work(struct engine_batch *batch, const struct cutting *cutting, uint64_t sequence,
                       struct work works[MOST_KERNELS], struct error *error)
{
    struct items *items = get_items(batch, cutting, false, error);
    if (!items)
        return error->status;
    items->last_sequence = sequence;
    memcpy(works, items->works, sizeof items->works);
    return STATUS_OK;
}

enum status batch_slice(struct engine_batch *batch, const struct cutting *cutting, uint32_t slice,
                        uint64_t sequence, struct work works[MOST_KERNELS], struct error *error)
{
    struct items *items = get_items(batch, cutting, slice == 0, error);
    if (!items)
        return error->status;
    items->last_sequence = sequence;
    memcpy(works, items->works, sizeof items->works);
    return slices_take(batch, items, slice, works, error);
}
