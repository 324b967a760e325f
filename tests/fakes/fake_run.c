// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fake_run.c - batches and runs of the fake engine: checks every id, row and range that a real
// engine would trust, and moves the numbers of slots. Dispatcher thread only.

#include "fake_parts.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void fake_broken(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("fake engine: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

void *fake_make(size_t count, size_t size)
{
    void *memory = fake_engine_alloc(count ? count : 1, size);
    if (!memory)
        fake_broken("out of memory");
    return memory;
}

void *fake_copy(const void *data, size_t count, size_t size)
{
    void *memory = fake_make(count, size);
    if (count)
        memcpy(memory, data, count * size);
    return memory;
}

// ---- batches ----

static void *copy_given(const void *data, size_t count, size_t size)
{
    return data ? fake_copy(data, count, size) : NULL;
}

enum status engine_batch_create(const struct engine_batch_params *p, struct engine_batch **out,
                                struct error *error)
{
    (void)error;
    if ((p->cache != NULL) != (p->place == ENGINE_POOL))
        fake_broken("a batch in place %d %s a cache", (int)p->place, p->cache ? "with" : "without");
    if (p->token_rows && p->q_lens)
        fake_broken("a batch with token_rows and q_lens");
    if (p->num_seqs == 0 && (p->seq_lens_kv || !p->slot_mapping))
        fake_broken("a batch without sequences that does not only write");
    struct engine_batch *batch = fake_make(1, sizeof(*batch));
    *batch = (struct engine_batch){
        .engine = p->engine,
        .cache = p->cache,
        .place = p->place,
        .kv = p->kv,
        .refs = 1,
        .num_seqs = p->num_seqs,
        .max_blocks = p->max_blocks,
        .num_tokens = p->num_tokens,
        .cu_seqlens_q = copy_given(p->cu_seqlens_q, (size_t)p->num_seqs + 1, sizeof(int32_t)),
        .seq_lens_kv = copy_given(p->seq_lens_kv, p->num_seqs, sizeof(int32_t)),
        .block_table =
            copy_given(p->block_table, (size_t)p->num_seqs * p->max_blocks, sizeof(int32_t)),
        .slot_mapping = copy_given(p->slot_mapping, p->num_tokens, sizeof(int64_t)),
        .positions = copy_given(p->positions, p->num_tokens, sizeof(int32_t)),
        .q_lens = copy_given(p->q_lens, p->num_seqs, sizeof(int32_t)),
        .token_rows = copy_given(p->token_rows, p->num_tokens, sizeof(int32_t)),
        .kv_starts = copy_given(p->kv_starts, p->num_seqs, sizeof(int32_t)),
        .mask = copy_given(p->mask, p->mask_bytes, 1),
    };
    p->engine->batches++;
    *out = batch;
    return STATUS_OK;
}

// The new table must be the old one with the changes.
enum status engine_batch_advance(struct engine_batch *b, const struct engine_advance *a,
                                 struct engine_batch **out, struct error *error)
{
    size_t size = (size_t)b->num_seqs * b->max_blocks;
    int32_t *table = fake_copy(b->block_table, size, sizeof(*table));
    if (b->place != ENGINE_POOL || b->mask || !b->seq_lens_kv)
        fake_broken("a step of a batch that has none");
    if ((b->slot_mapping != NULL) != (a->slot_mapping != NULL) ||
        (b->positions != NULL) != (a->positions != NULL))
        fake_broken("a step with other arrays than the one before");
    for (uint32_t i = 0; i < a->num_entries; i++)
        table[(size_t)a->entries[i].seq * b->max_blocks + a->entries[i].column] =
            a->entries[i].block;
    if (size && memcmp(table, a->block_table, size * sizeof(*table)) != 0)
        fake_broken("a step whose table is not what changed of the one before");
    const struct engine_batch_params params = {
        .engine = b->engine,
        .cache = b->cache,
        .place = b->place,
        .kv = b->kv,
        .num_seqs = b->num_seqs,
        .max_blocks = b->max_blocks,
        .num_tokens = b->num_tokens,
        .cu_seqlens_q = b->cu_seqlens_q,
        .seq_lens_kv = a->seq_lens_kv,
        .block_table = table,
        .slot_mapping = a->slot_mapping,
        .positions = a->positions,
        .q_lens = b->q_lens,
        .token_rows = b->token_rows,
        .kv_starts = b->kv_starts,
    };
    enum status status = engine_batch_create(&params, out, error);
    bool stays = true; // false if a block that runs see changes
    for (uint32_t i = 0; i < a->num_entries; i++)
        stays = stays && (!a->is_used || a->entries[i].block < 0 ||
                          a->entries[i].column * b->kv.block_size >=
                              (uint32_t)b->seq_lens_kv[a->entries[i].seq]);
    if (status == STATUS_OK)
        (*out)->table = b->table + !stays;
    free(table);
    return status;
}

bool engine_batch_is_light(const struct engine_batch *batch, const struct engine_advance *a)
{
    for (uint32_t i = 0; i < a->num_entries; i++) {
        if (a->is_used && a->entries[i].block >= 0 &&
            a->entries[i].column * batch->kv.block_size <
                (uint32_t)batch->seq_lens_kv[a->entries[i].seq])
            return false;
    }
    return true;
}

bool engine_batch_shares_table(const struct engine_batch *batch, const struct engine_batch *next)
{
    return batch->table == next->table;
}

void engine_batch_destroy(struct engine_batch *batch)
{
    if (!batch || --batch->refs)
        return;
    batch->engine->batches--;
    void *arrays[] = {batch->cu_seqlens_q, batch->seq_lens_kv, batch->block_table,
                      batch->slot_mapping, batch->positions,   batch->q_lens,
                      batch->token_rows,   batch->kv_starts,   batch->mask};
    for (size_t i = 0; i < sizeof(arrays) / sizeof(*arrays); i++)
        free(arrays[i]);
    free(batch);
}

// ---- where rows lie ----

// The number at row (outer, inner), head 0 of a tensor. Aborts unless all heads of the row are in
// the arena.
static uint8_t *row_at(const struct engine_arena *arena, const char *name,
                       const struct wire_tensor *tensor, uint64_t outer, uint64_t inner,
                       uint32_t heads, uint32_t dim)
{
    unsigned __int128 at = tensor->offset;
    at += (unsigned __int128)outer * tensor->outer_stride +
          (unsigned __int128)inner * tensor->token_stride;
    unsigned __int128 end = at + (unsigned __int128)(heads - 1) * tensor->head_stride;
    end += (uint64_t)dim * dtype_size((int)tensor->dtype);
    if (!dtype_size((int)tensor->dtype) || (tensor->outer_stride == 0 && outer))
        fake_broken("%s has dtype %d, no outer stride, and row (%" PRIu64 ", %" PRIu64 ")", name,
                    (int)tensor->dtype, outer, inner);
    if (end > arena->size)
        fake_broken("row (%" PRIu64 ", %" PRIu64 ") of %s lies outside the arena", outer, inner,
                    name);
    return arena->base + (uint64_t)at;
}

static int64_t row_of(const struct engine_batch *batch, int64_t token)
{
    return batch->token_rows ? batch->token_rows[token] : token;
}

static uint32_t q_len_of(const struct engine_batch *batch, uint32_t s)
{
    return (uint32_t)(batch->q_lens ? batch->q_lens[s]
                                    : batch->cu_seqlens_q[s + 1] - batch->cu_seqlens_q[s]);
}

// Token `t`, the i-th of sequence `s`, in a tensor of the batch's rows.
static uint8_t *token_at(const struct fake_run *run, const char *name,
                         const struct wire_tensor *tensor, uint32_t s, uint32_t i, int64_t t,
                         uint32_t heads, uint32_t dim)
{
    if (tensor->outer_stride && run->batch->token_rows)
        fake_broken("%s has an outer stride beside token_rows", name);
    if (tensor->outer_stride)
        return row_at(run->arena, name, tensor, s, i, heads, dim);
    return row_at(run->arena, name, tensor, 0, (uint64_t)row_of(run->batch, t), heads, dim);
}

// The place of the number of slot `slot` of block `block`. Rows of sequences without blocks are no
// slots.
static void *slot_of(const struct fake_run *run, int64_t block, uint32_t slot)
{
    const struct engine_batch *batch = run->batch;
    void *at;
    if (batch->cache)
        at = block < 0 ? NULL : fake_slot_at(batch->cache, run->run.layer, block, slot);
    else
        at = block < 0 ? NULL
                       : row_at(run->arena, "keys", &run->run.keys, (uint64_t)block, slot,
                                batch->kv.num_kv_heads, batch->kv.head_dim_k);
    if (!at)
        fake_broken("a run names block %" PRId64 ", which has no memory", block);
    if (!batch->cache && !batch->kv.v_is_k_prefix)
        row_at(run->arena, "values", &run->run.values, (uint64_t)block, slot,
               batch->kv.num_kv_heads, batch->kv.head_dim_v);
    return at;
}

// The place of the number of key `key` of sequence `s`.
static void *key_of(const struct fake_run *run, uint32_t s, int64_t key)
{
    const struct engine_batch *batch = run->batch;
    const struct wire_tensor *keys = &run->run.keys;
    if (batch->place != ENGINE_ROWS) {
        int64_t size = batch->kv.block_size;
        return slot_of(run, batch->block_table[(int64_t)s * batch->max_blocks + key / size],
                       (uint32_t)(key % size));
    }
    if (!keys->outer_stride && !batch->kv_starts)
        fake_broken("keys without an outer stride, and no kv_starts");
    return row_at(run->arena, "keys", keys, keys->outer_stride ? s : 0,
                  (uint64_t)(keys->outer_stride ? key : batch->kv_starts[s] + key),
                  batch->kv.num_kv_heads, batch->kv.head_dim_k);
}

// ---- rules for a run ----

static int64_t position_of(const struct engine_batch *batch, uint32_t s, uint32_t i)
{
    if (batch->positions)
        return batch->positions[row_of(batch, batch->cu_seqlens_q[s] + (int64_t)i)];
    return (int64_t)batch->seq_lens_kv[s] - q_len_of(batch, s) + i;
}

// The first key that a query of the sequence sees. The right edge of the window is not checked.
static int64_t first_key(const struct engine_batch *batch, const struct engine_run *run, uint32_t s)
{
    int64_t least = INT64_MAX;
    if (!run->windowed || run->window_left < 0)
        return 0;
    for (uint32_t i = 0; i < q_len_of(batch, s); i++) {
        int64_t first = position_of(batch, s, i) - run->window_left;
        least = first < least ? first : least;
    }
    return least > 0 ? least : 0;
}

// Reads one key of each block, and the last key of all.
static void check_keys(const struct fake_run *run, uint32_t s, int64_t first)
{
    const struct engine_batch *batch = run->batch;
    int64_t seq_len = batch->seq_lens_kv[s],
            step = batch->place == ENGINE_ROWS ? 1 : batch->kv.block_size;
    for (int64_t key = first; key < seq_len; key = (key / step + 1) * step)
        key_of(run, s, key);
    if (first < seq_len)
        key_of(run, s, seq_len - 1);
}

static void check_rows(const struct fake_run *run, uint32_t s)
{
    const struct engine_batch *batch = run->batch;
    const struct engine_run *r = &run->run;
    for (int32_t t = batch->cu_seqlens_q[s]; t < batch->cu_seqlens_q[s + 1]; t++) {
        uint32_t i = (uint32_t)(t - batch->cu_seqlens_q[s]);
        token_at(run, "q", &r->q, s, i, t, r->num_heads, batch->kv.head_dim_k);
        token_at(run, "out", &r->out, s, i, t, r->num_heads, batch->kv.head_dim_v);
        if (r->lse.dtype)
            row_at(run->arena, "lse", &r->lse, 0, (uint64_t)row_of(batch, t), 1, r->num_heads);
    }
}

static void check_attention(const struct fake_run *run)
{
    const struct engine_batch *batch = run->batch;
    if (!batch->seq_lens_kv || run->run.scale == 0.0f || run->run.k_scale <= 0.0f ||
        run->run.v_scale <= 0.0f)
        fake_broken("attention without seq_lens_kv, or with a scale that is not final");
    for (uint32_t s = 0; s < batch->num_seqs; s++) {
        check_rows(run, s);
        if (q_len_of(batch, s))
            check_keys(run, s, first_key(batch, &run->run, s));
    }
}

// In the arena a block has its slots' numbers, layer after layer, each layer's at the beginning of
// its bytes there. NULL: the block has no memory.
static int32_t *copy_side(const struct engine_run *run, const struct engine_copy *copy,
                          int32_t block, uint32_t layer)
{
    const struct engine_cache_params *p = &run->cache->params;
    if (block != ENGINE_COPY_ARENA)
        return fake_slot_at(run->cache, layer, block, 0);
    if (!run->arena || copy->offset % 16 || copy->offset + engine_block_bytes(p) > run->arena->size)
        fake_broken("a block at %" PRIu64 " of an arena", copy->offset);
    return (int32_t *)((char *)run->arena->base + copy->offset +
                       layer * engine_layer_block_bytes(p));
}

static void check_copy(const struct engine_run *run)
{
    for (uint32_t i = 0; i < run->num_copies; i++) {
        const struct engine_copy *copy = &run->copies[i];
        if (!copy_side(run, copy, copy->to, 0) ||
            (copy->from != ENGINE_COPY_ZEROES && !copy_side(run, copy, copy->from, 0)))
            fake_broken("block %" PRId32 " is copied to %" PRId32 ", one without memory",
                        copy->from, copy->to);
    }
}

static void check_merge(const struct fake_run *run)
{
    const struct engine_run *r = &run->run;
    for (uint32_t t = 0; t < r->num_tokens; t++) {
        row_at(run->arena, "out", &r->out, 0, t, r->num_heads, r->head_dim);
        if (r->lse.dtype)
            row_at(run->arena, "lse", &r->lse, 0, t, 1, r->num_heads);
        for (uint32_t i = 0; i < r->num_parts; i++) {
            row_at(run->arena, "a part", &r->parts[i].out, 0, t, r->num_heads, r->head_dim);
            row_at(run->arena, "a part's lse", &r->parts[i].lse, 0, t, 1, r->num_heads);
        }
    }
}

// ---- what a run does ----

// Whether thing `i` of `count` belongs to the run, which may be a slice.
static bool in_slice(const struct engine_run *run, uint64_t i, uint64_t count)
{
    const uint64_t slices = run->num_slices ? run->num_slices : 1;
    return i >= count * run->slice / slices && i < count * (run->slice + 1) / slices;
}

static void write_token(const struct fake_run *run, uint32_t s, uint32_t i, int64_t t, bool dry)
{
    const struct engine_batch *batch = run->batch;
    int64_t slot = batch->slot_mapping[row_of(batch, t)];
    if (slot < 0 || !in_slice(&run->run, (uint64_t)t, batch->num_tokens))
        return;
    void *to = slot_of(run, slot / batch->kv.block_size, (uint32_t)(slot % batch->kv.block_size));
    const void *k =
        token_at(run, "k", &run->run.k, s, i, t, batch->kv.num_kv_heads, batch->kv.head_dim_k);
    if (!batch->kv.v_is_k_prefix)
        token_at(run, "v", &run->run.v, s, i, t, batch->kv.num_kv_heads, batch->kv.head_dim_v);
    if (!dry)
        memcpy(to, k, sizeof(int32_t));
}

static void write_slots(const struct fake_run *run, bool dry)
{
    const struct engine_batch *batch = run->batch;
    const bool was_written = run->run.kind == ENGINE_ATTEND && run->run.is_written;
    if (!batch->slot_mapping || was_written)
        return;
    for (uint32_t t = 0; batch->num_seqs == 0 && t < batch->num_tokens; t++)
        write_token(run, 0, t, t, dry);
    for (uint32_t s = 0; s < batch->num_seqs; s++) {
        for (int32_t t = batch->cu_seqlens_q[s]; t < batch->cu_seqlens_q[s + 1]; t++)
            write_token(run, s, (uint32_t)(t - batch->cu_seqlens_q[s]), t, dry);
    }
}

static void gather(const struct fake_run *run, bool dry)
{
    const struct engine_batch *batch = run->batch;
    uint64_t row = 0, rows = 0;
    for (uint32_t s = 0; s < batch->num_seqs; s++)
        rows += (uint64_t)batch->seq_lens_kv[s];
    for (uint32_t s = 0; s < batch->num_seqs; s++) {
        for (int32_t key = 0; key < batch->seq_lens_kv[s]; key++, row++) {
            const void *from = key_of(run, s, key);
            void *to = row_at(run->arena, "k", &run->run.k, 0, row, batch->kv.num_kv_heads,
                              batch->kv.head_dim_k);
            if (!batch->kv.v_is_k_prefix)
                row_at(run->arena, "v", &run->run.v, 0, row, batch->kv.num_kv_heads,
                       batch->kv.head_dim_v);
            if (!dry && in_slice(&run->run, row, rows))
                memcpy(to, from, sizeof(int32_t));
        }
    }
}

static void copy_blocks(const struct engine_run *run)
{
    const struct engine_cache_params *p = &run->cache->params;
    size_t size = p->kv.block_size * sizeof(int32_t);
    for (uint32_t i = 0; i < run->num_copies; i++) {
        for (uint32_t layer = 0; layer < p->num_layers; layer++) {
            const struct engine_copy *copy = &run->copies[i];
            int32_t *to = copy_side(run, copy, copy->to, layer);
            if (!in_slice(run, (uint64_t)i * p->num_layers + layer,
                          (uint64_t)run->num_copies * p->num_layers))
                continue;
            if (copy->from == ENGINE_COPY_ZEROES)
                memset(to, 0, size);
            else
                memcpy(to, copy_side(run, copy, copy->from, layer), size);
        }
    }
}

void fake_run_do(const struct fake_run *run)
{
    switch (run->run.kind) {
    case ENGINE_ATTEND:
    case ENGINE_WRITE: write_slots(run, false); break;
    case ENGINE_GATHER: gather(run, false); break;
    case ENGINE_COPY: copy_blocks(&run->run); break;
    case ENGINE_MERGE: break;
    }
}

static void check(const struct fake_run *run)
{
    switch (run->run.kind) {
    case ENGINE_ATTEND:
        check_attention(run); // and then its writes
    // fall through
    case ENGINE_WRITE: write_slots(run, true); break;
    case ENGINE_GATHER: gather(run, true); break;
    case ENGINE_COPY: check_copy(&run->run); break;
    case ENGINE_MERGE: check_merge(run); break;
    }
}

// ---- creation and destruction ----

// Each array has an allocation of its own, so that ASan sees reads behind it.
static void copy_arrays(struct fake_run *run)
{
    struct engine_run *r = &run->run;
    size_t i = 0;
#define X(array, length)                                                                           \
    (array) = run->arrays[i++] = (length) ? copy_given(array, length, sizeof *(array)) : NULL;
    ENGINE_RUN_ARRAYS(X, r)
#undef X
}

void fake_run_init(struct fake_run *run, const struct engine_run *from)
{
    bool batched = from->kind != ENGINE_COPY && from->kind != ENGINE_MERGE;
    *run = (struct fake_run){.batch = from->batch, .arena = from->arena, .run = *from};
    if (batched != (from->batch != NULL) || (from->kind == ENGINE_COPY) != (from->cache != NULL) ||
        (from->kind != ENGINE_COPY && !from->arena))
        fake_broken("a run of kind %d lacks its batch, cache or arena, or has another's",
                    (int)from->kind);
    if (from->slice && from->slice >= from->num_slices)
        fake_broken("slice %" PRIu32 " of %" PRIu32, from->slice, from->num_slices);
    if (run->batch)
        run->batch->refs++;
    copy_arrays(run);
    check(run);
}

void fake_run_finish(struct fake_run *run)
{
    engine_batch_destroy(run->batch);
    for (size_t i = 0; i < sizeof(run->arrays) / sizeof(*run->arrays); i++)
        free(run->arrays[i]);
}

const struct engine_cache *fake_run_cache(const struct fake_run *run)
{
    return run->batch ? run->batch->cache : run->run.cache;
}

bool fake_run_shares_dispatch(const struct fake_run *a, const struct fake_run *b)
{
    return a->wave == b->wave && a->run.kind == b->run.kind && a->run.kind != ENGINE_MERGE &&
           fake_run_cache(a) == fake_run_cache(b) && a->run.layer == b->run.layer &&
           a->run.num_heads == b->run.num_heads;
}
