// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// batch.c - uploads a model step's metadata once and cuts its rows into tiles. Trusts the numbers: the caller has checked
// them. Made by the caller's thread, work lists by the submitter, ended by the maker once the GPU is past.

#include "batch.h"

#include "layout.h"
#include "variant.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

// A model has one number of query heads, a draft model beside it another: more lists are made, used and given back.
enum { MOST_LISTS = 4 };

struct items {
    struct engine *engine;
    uint32_t group, count;
    struct piece piece;     // struct gpu_item[count]; owned
    uint64_t last_sequence; // of a submission that uses it
    struct job end;
    struct items *prev, *next;
};

// The arrays inside the piece, one after the other, each at a multiple of 16 bytes.
struct sizes {
    uint64_t cu, seq_lens, table, slots, positions, mask_starts, mask; // bytes
    uint64_t all;
};

static uint64_t padded(uint64_t bytes)
{
    return (bytes + 15) & ~UINT64_C(15);
}

static enum status measure(const struct engine_batch_params *params, struct sizes *sizes, struct error *error)
{
    uint64_t limit = params->cache->engine->device.adapter.info.max_allocation_bytes;
    uint64_t entries = (uint64_t)params->num_seqs * params->max_blocks; // u32 * u32: no overflow
    uint64_t table = 0, all = 0;
    *sizes = (struct sizes){
        .cu = padded(((uint64_t)params->num_seqs + 1) * sizeof(int32_t)),
        .seq_lens = padded((uint64_t)params->num_seqs * sizeof(int32_t)),
        .slots = params->slot_mapping ? padded((uint64_t)params->num_tokens * sizeof(int64_t)) : 0,
    };
    if (params->positions)
        sizes->positions = padded((uint64_t)params->num_tokens * sizeof(int32_t));
    if (params->mask)
        sizes->mask_starts = padded((uint64_t)params->num_seqs * sizeof(uint64_t));
    bool overflow = __builtin_mul_overflow(entries, sizeof(int32_t), &table) || table > UINT64_MAX - 15 ||
                    (params->mask && params->mask_bytes > UINT64_MAX - 15);
    sizes->table = padded(table);
    sizes->mask = params->mask ? padded(params->mask_bytes) : 0;
    all = sizes->cu + sizes->seq_lens + sizes->slots + sizes->positions + sizes->mask_starts;
    overflow =
        overflow || __builtin_add_overflow(all, sizes->table, &all) || __builtin_add_overflow(all, sizes->mask, &all);
    sizes->all = all;
    if (!overflow && all <= limit)
        return STATUS_OK;
    return error_set(error, STATUS_LIMIT,
                     "a batch of %u sequences, %u table columns, %u tokens and %" PRIu64 " bytes of mask needs more "
                     "metadata than the device's largest allocation of %" PRIu64 " bytes",
                     params->num_seqs, params->max_blocks, params->num_tokens, params->mask ? params->mask_bytes : 0,
                     limit);
}

static uint64_t put(const struct piece *piece, uint64_t *offset, const void *data, uint64_t bytes, uint64_t room)
{
    uint64_t at = *offset;
    if (bytes)
        memcpy((char *)piece->mapped + at, data, bytes);
    *offset += room;
    return piece->address + at;
}

// Where each sequence's part of the mask begins.
static uint64_t put_mask_starts(const struct piece *piece, uint64_t *offset, const struct engine_batch_params *params,
                                uint64_t room)
{
    uint64_t at = *offset, start = 0;
    uint64_t *starts = (uint64_t *)((char *)piece->mapped + at);
    for (uint32_t seq = 0; seq < params->num_seqs; seq++) {
        uint64_t q_len = (uint32_t)(params->cu_seqlens_q[seq + 1] - params->cu_seqlens_q[seq]);
        starts[seq] = start;
        start += (q_len * (uint32_t)params->seq_lens_kv[seq] + 7) / 8;
    }
    *offset += room;
    return piece->address + at;
}

static void upload(struct engine_batch *batch, const struct engine_batch_params *params, const struct sizes *sizes)
{
    uint64_t at = 0, num_seqs = params->num_seqs;
    batch->cu_address = put(&batch->piece, &at, params->cu_seqlens_q, (num_seqs + 1) * sizeof(int32_t), sizes->cu);
    batch->seq_lens_address = put(&batch->piece, &at, params->seq_lens_kv, num_seqs * sizeof(int32_t), sizes->seq_lens);
    batch->table_address =
        put(&batch->piece, &at, params->block_table, num_seqs * params->max_blocks * sizeof(int32_t), sizes->table);
    if (params->slot_mapping)
        batch->slots_address =
            put(&batch->piece, &at, params->slot_mapping, params->num_tokens * sizeof(int64_t), sizes->slots);
    if (params->positions)
        batch->positions_address =
            put(&batch->piece, &at, params->positions, params->num_tokens * sizeof(int32_t), sizes->positions);
    if (!params->mask)
        return;
    batch->mask_starts_address = put_mask_starts(&batch->piece, &at, params, sizes->mask_starts);
    batch->mask_address = put(&batch->piece, &at, params->mask, params->mask_bytes, sizes->mask);
}

enum status engine_batch_create(const struct engine_batch_params *params, struct engine_batch **out,
                                struct error *error)
{
    struct engine *engine = params->cache->engine;
    struct sizes sizes;
    enum status status = measure(params, &sizes, error);
    if (status == STATUS_OK && engine_lost(engine))
        status = error_set(error, STATUS_DEVICE_LOST, "the device is lost");
    if (status != STATUS_OK)
        return status;
    size_t cu_bytes = ((size_t)params->num_seqs + 1) * sizeof(int32_t);
    struct engine_batch *batch = calloc(1, sizeof *batch);
    if (!batch)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a batch");
    batch->engine = engine;
    batch->cache = params->cache;
    batch->num_seqs = params->num_seqs;
    batch->max_blocks = params->max_blocks;
    batch->num_tokens = params->num_tokens;
    batch->cu_seqlens_q = malloc(cu_bytes);
    if (!batch->cu_seqlens_q)
        status = error_set(error, STATUS_NO_MEMORY, "no memory for a batch of %u sequences", params->num_seqs);
    else
        status = slab_take(&engine->slabs, sizes.all, &batch->piece, error);
    if (status != STATUS_OK) {
        batch_free(batch);
        return status;
    }
    memcpy(batch->cu_seqlens_q, params->cu_seqlens_q, cu_bytes);
    upload(batch, params, &sizes);
    pthread_mutex_lock(&engine->lock);
    DL_APPEND(engine->batches, batch);
    pthread_mutex_unlock(&engine->lock);
    *out = batch;
    return STATUS_OK;
}

static void items_free(struct items *items)
{
    slab_give(&items->engine->slabs, &items->piece);
    free(items);
}

void batch_free(struct engine_batch *batch)
{
    while (batch->items) {
        struct items *items = batch->items;
        DL_DELETE(batch->items, items);
        items_free(items);
    }
    slab_give(&batch->engine->slabs, &batch->piece);
    free(batch->cu_seqlens_q);
    free(batch);
}

static void run_batch_end(struct engine *engine, struct job *job)
{
    (void)engine;
    batch_free((struct engine_batch *)((char *)job - offsetof(struct engine_batch, end)));
}

void engine_batch_destroy(struct engine_batch *batch)
{
    if (!batch)
        return;
    struct engine *engine = batch->engine;
    pthread_mutex_lock(&engine->lock);
    DL_DELETE(engine->batches, batch);
    batch->end = (struct job){.after = batch->last_sequence, .run = run_batch_end};
    job_post(engine, &batch->end);
    pthread_mutex_unlock(&engine->lock);
}

// ---- work lists ----

static uint64_t rows_of(const struct engine_batch *batch, uint32_t seq, uint32_t group)
{
    return (uint64_t)(uint32_t)(batch->cu_seqlens_q[seq + 1] - batch->cu_seqlens_q[seq]) * group;
}

static uint64_t count_items(const struct engine_batch *batch, uint32_t group, uint32_t tile_rows)
{
    uint64_t count = 0;
    for (uint32_t seq = 0; seq < batch->num_seqs; seq++)
        count += (rows_of(batch, seq, group) + tile_rows - 1) / tile_rows;
    return count;
}

static void fill_items(const struct engine_batch *batch, uint32_t group, uint32_t tile_rows, struct gpu_item *item)
{
    for (uint32_t seq = 0; seq < batch->num_seqs; seq++) {
        uint64_t rows = rows_of(batch, seq, group);
        for (uint64_t row = 0; row < rows; row += tile_rows)
            *item++ = (struct gpu_item){seq, (uint32_t)row};
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

static enum status make_items(struct engine_batch *batch, uint32_t group, struct error *error)
{
    uint32_t tile_rows = batch->engine->pipelines.variant->tile_rows;
    uint64_t count = count_items(batch, group, tile_rows);
    uint64_t rows = (uint64_t)batch->num_tokens * group;
    if (rows > INT32_MAX || count > INT32_MAX)
        return error_set(error, STATUS_LIMIT, "%u tokens of %u heads a KV head are more than %d rows of attention",
                         batch->num_tokens, group, INT32_MAX);
    struct items *items = calloc(1, sizeof *items);
    if (!items)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a work list");
    *items = (struct items){.engine = batch->engine, .group = group, .count = (uint32_t)count};
    enum status status = slab_take(&batch->engine->slabs, count * sizeof(struct gpu_item), &items->piece, error);
    if (status != STATUS_OK) {
        free(items);
        return status;
    }
    fill_items(batch, group, tile_rows, items->piece.mapped);
    DL_PREPEND(batch->items, items);
    drop_oldest_items(batch);
    return STATUS_OK;
}

enum status batch_items(struct engine_batch *batch, uint32_t group, uint64_t sequence, uint64_t *address,
                        uint32_t *count, struct error *error)
{
    struct items *items = NULL;
    DL_SEARCH_SCALAR(batch->items, items, group, group);
    if (!items) {
        enum status status = make_items(batch, group, error);
        if (status != STATUS_OK)
            return status;
        items = batch->items;
    }
    DL_DELETE(batch->items, items);
    DL_PREPEND(batch->items, items);
    items->last_sequence = sequence;
    *address = items->piece.address;
    *count = items->count;
    return STATUS_OK;
}
