// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// reads.c - see reads.h. batch->kept_whole[s] counts the columns of row `s` that the check needs
// not look at again: their blocks are whole, or the entries are -1, which run_check() handles. The
// batch references these blocks, so they stay whole until tenant->unwholes changes. Where a worker
// leaves some layers of the cache out, no block is ever whole. Then batch->kept_full does the same
// for each layer.

#include "reads.h"

#include "core/pool/ledger.h"
#include "core/pool/salt.h"
#include "core/pool/session.h"
#include "core/pool/tenant.h"
#include "window.h"

#include <inttypes.h>
#include <string.h>

enum { MAX_LAYER_BYTES = CORE_MAX_BLOCK_SIZE / 8 };

struct reader {
    struct batch *batch;
    const struct cache *cache;
    const struct core_run_params *params;
    uint32_t layer, num_layers, layer_step;
    uint32_t shift; // log2 of the block size
    uint64_t stamp; // blocks that the run writes have it and their place in `mark`; 0 = not yet
};

// ---- bits ----

// bits[i] becomes the AND over the run's layers. Layers that follow each other are read 32 bytes at
// a time; layer_bytes divides 32.
static void and_layers(const struct reader *r, const struct block *block,
                       uint8_t bits[MAX_LAYER_BYTES])
{
    const uint32_t size = r->cache->layer_bytes;
    const uint32_t together = r->layer_step == 1 ? r->num_layers : 1;
    memset(bits, UINT8_MAX, MAX_LAYER_BYTES);
    for (uint32_t n = 0; n < r->num_layers; n += together) {
        const uint8_t *from = block_written(r->cache, block, r->layer + n * r->layer_step);
        size_t left = (size_t)together * size;
        for (; left >= MAX_LAYER_BYTES; left -= MAX_LAYER_BYTES, from += MAX_LAYER_BYTES)
            for (uint32_t i = 0; i < MAX_LAYER_BYTES; i++)
                bits[i] &= from[i];
        for (size_t i = 0; i < left; i++)
            bits[i] &= from[i];
    }
    for (uint32_t half = MAX_LAYER_BYTES / 2; half >= size; half /= 2)
        for (uint32_t i = 0; i < half; i++)
            bits[i] &= bits[i + half];
}

// The slots of the block that the run itself writes; NULL = none.
static const uint8_t *own_slots(struct reader *r, const struct block *block)
{
    const struct batch *batch = r->batch;
    if (r->params->entry.kind != ENGINE_ATTEND || !batch->has_slots)
        return NULL;
    if (!r->stamp) {
        r->stamp = ++batch->session->ledger->last_stamp;
        for (uint32_t i = 0; i < batch->num_writes; i++) {
            batch->writes[i]->stamp = r->stamp;
            batch->writes[i]->mark = i;
        }
    }
    return block->stamp == r->stamp
               ? batch->write_masks + block->mark * (size_t)r->cache->layer_bytes
               : NULL;
}

// The first slot in [begin, end) that has no bit in either array; `end`: there is none.
static uint32_t first_clear(const uint8_t *bits, const uint8_t *more, uint32_t begin, uint32_t end)
{
    for (uint32_t byte = begin / 8; byte * 8 < end; byte++) {
        uint32_t clear = (uint8_t) ~(bits[byte] | (more ? more[byte] : 0));
        if (byte == begin / 8)
            clear &= UINT32_MAX << begin % 8;
        if (clear) {
            uint32_t slot = byte * 8 + (uint32_t)__builtin_ctz(clear);
            return slot < end ? slot : end;
        }
    }
    return end;
}

// ---- one sequence ----

static const int32_t *row_of(const struct reader *r, uint32_t s)
{
    return r->batch->kept_table + (size_t)s * r->batch->kept.max_blocks;
}

static int64_t min_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

// The sequence's first position in `span` that is unwritten in a layer of the run; -1: there is
// none.
static int64_t first_unwritten(struct reader *r, uint32_t s, struct span span)
{
    for (int64_t at = span.begin, end; at < span.end; at = end) {
        const int64_t column = at >> r->shift, first = column << r->shift;
        const struct block *block = block_find(r->cache, row_of(r, s)[column]);
        end = min_of((column + 1) << r->shift, span.end);
        if (!block) // -1
            continue;
        r->batch->session->ledger->looks++;
        uint8_t bits[MAX_LAYER_BYTES];
        and_layers(r, block, bits);
        const uint32_t from = (uint32_t)(at - first), to = (uint32_t)(end - first);
        uint32_t slot = first_clear(bits, NULL, from, to);
        if (slot < to)
            slot = first_clear(bits, own_slots(r, block), slot, to);
        if (slot < to)
            return first + slot;
    }
    return -1;
}

static uint32_t q_len(const struct core_batch_params *p, uint32_t s)
{
    return (uint32_t)(p->num_q_lens ? p->q_lens[s] : p->cu_seqlens_q[s + 1] - p->cu_seqlens_q[s]);
}

// From the lowest position of the sequence's queries, of which there is one, to the highest.
static struct span query_positions(const struct core_batch_params *p, uint32_t s)
{
    const int32_t begin = p->cu_seqlens_q[s], end = begin + (int32_t)q_len(p, s);
    if (!p->num_positions)
        return (struct span){(int64_t)p->seq_lens_kv[s] - q_len(p, s), p->seq_lens_kv[s]};
    struct span found = {INT32_MAX, 0};
    for (int32_t t = begin; t < end; t++) {
        int64_t position = p->positions[p->num_token_rows ? p->token_rows[t] : t];
        found.begin = position < found.begin ? position : found.begin;
        found.end = position + 1 > found.end ? position + 1 : found.end;
    }
    return found;
}

// From the first key that a query of the sequence sees to the last one.
static struct span seen_keys(const struct reader *r, uint32_t s)
{
    const struct core_batch_params *batch = &r->batch->kept;
    return window_keys(r->params, query_positions(batch, s), batch->seq_lens_kv[s]);
}

// Columns that the sequence uses.
static uint32_t num_used(const struct reader *r, uint32_t s)
{
    const uint32_t last = (UINT32_C(1) << r->shift) - 1;
    return ((uint32_t)r->batch->kept_lens[s] + last) >> r->shift;
}

// Moves the row's mark over blocks that have become whole, and returns the column behind them.
static uint32_t pass_whole(const struct reader *r, uint32_t s)
{
    const uint32_t used = num_used(r, s), first = r->batch->kept_whole[s];
    const int32_t *row = row_of(r, s);
    uint32_t column = first;
    while (column < used && (row[column] < 0 || block_is_whole(r->cache, row[column])))
        column++;
    r->batch->kept_whole[s] = column;
    r->batch->session->ledger->looks += column - first + (column < used);
    return column;
}

static uint32_t *full_mark(const struct reader *r, uint32_t s, uint32_t i)
{
    const size_t layer = r->layer + (size_t)i * r->layer_step;
    return &r->batch->kept_full[layer * r->batch->num_seqs + s];
}

// The columns that are written in all layers of the run, as far as earlier runs have found.
static uint32_t known_full(const struct reader *r, uint32_t s)
{
    uint32_t least = r->batch->kept_full ? UINT32_MAX : 0;
    for (uint32_t i = 0; r->batch->kept_full && i < r->num_layers; i++)
        least = *full_mark(r, s, i) < least ? *full_mark(r, s, i) : least;
    return least;
}

static bool is_full(const struct reader *r, int32_t id)
{
    uint8_t bits[MAX_LAYER_BYTES];
    and_layers(r, block_find(r->cache, id), bits);
    return first_clear(bits, NULL, 0, UINT32_C(1) << r->shift) == UINT32_C(1) << r->shift;
}

// The same for blocks that are written in all layers of the run, from `column` on.
static uint32_t pass_full(const struct reader *r, uint32_t s, uint32_t column)
{
    const uint32_t used = num_used(r, s), known = known_full(r, s);
    const int32_t *row = row_of(r, s);
    const uint32_t first = known > column ? known : column;
    column = first;
    while (column < used && (row[column] < 0 || is_full(r, row[column])))
        column++;
    r->batch->session->ledger->looks += column - first + (column < used);
    if (column > first && batch_keep_full(r->batch))
        for (uint32_t i = 0; i < r->num_layers; i++)
            if (*full_mark(r, s, i) < column)
                *full_mark(r, s, i) = column;
    return column;
}

static enum status unwritten_error(const struct reader *r, uint32_t s, int64_t position,
                                   struct error *error)
{
    const struct block *block = block_find(r->cache, row_of(r, s)[position >> r->shift]);
    const uint32_t slot = (uint32_t)position & ((UINT32_C(1) << r->shift) - 1);
    uint32_t layer = r->layer;
    while (block_written(r->cache, block, layer)[slot / 8] >> slot % 8 & 1)
        layer += r->layer_step;
    return error_set(error, STATUS_UNWRITTEN,
                     "sequence %" PRIu32 " reads position %" PRId64 ", slot %" PRIu32
                     " of block %" PRId32 ", in layer %" PRIu32
                     "; no run, import or copy has written it",
                     s, position, slot, block->id, layer);
}

// The part of `keys` that a query of the sequence sees.
static struct span seen_of(const struct reader *r, uint32_t s, struct span keys)
{
    const struct span seen = seen_keys(r, s);
    return (struct span){seen.begin > keys.begin ? seen.begin : keys.begin, seen.end};
}

static enum status check_sequence(struct reader *r, uint32_t s, struct error *error)
{
    const struct core_batch_params *p = &r->batch->kept;
    const bool gathers = r->params->entry.kind == ENGINE_GATHER;
    if (!gathers && !q_len(p, s))
        return STATUS_OK;
    uint32_t passed = pass_whole(r, s);
    if (passed < num_used(r, s))
        passed = pass_full(r, s, passed);
    struct span keys = {(int64_t)passed << r->shift, p->seq_lens_kv[s]};
    if (!gathers && !p->num_positions)
        keys = seen_of(r, s, keys);
    int64_t position = first_unwritten(r, s, keys);
    // Positions make seen_keys() look at each query, so with them it comes only now.
    if (position >= 0 && !gathers && p->num_positions)
        position = first_unwritten(r, s, seen_of(r, s, keys));
    return position < 0 ? STATUS_OK : unwritten_error(r, s, position, error);
}

// ---- all ----

// Entries that are not known to name whole blocks; 0: a row's first one of these does not.
static uint64_t count_entries(const struct reader *r)
{
    uint64_t count = 0;
    for (uint32_t s = 0; s < r->batch->num_seqs; s++) {
        const uint32_t column = r->batch->kept_whole[s], used = num_used(r, s);
        if (column >= used)
            continue;
        const int32_t id = row_of(r, s)[column];
        if (id >= 0 && !block_is_whole(r->cache, id))
            return 0;
        count += used - column;
    }
    return count;
}

// Moves the marks of all rows to their ends if all blocks that the batch names are whole. So a
// large table that names few blocks is not looked through. Only a hole's block is not named.
static void pass_all(const struct reader *r)
{
    const struct batch *batch = r->batch;
    uint32_t i = 0;
    if (batch->hole.there || !batch->blocks || count_entries(r) <= batch->num_blocks)
        return;
    while (i < batch->num_blocks && block_is_whole(r->cache, batch->blocks[i]))
        i++;
    batch->session->ledger->looks += i + (i < batch->num_blocks);
    for (uint32_t s = 0; i == batch->num_blocks && s < batch->num_seqs; s++)
        batch->kept_whole[s] = num_used(r, s);
}

// Forgets what blocks that are written no more may have made wrong.
static void forget_void(struct batch *batch)
{
    const struct tenant *tenant = batch->session->salt->tenant;
    const size_t size = batch->num_seqs * sizeof *batch->kept_whole;
    if (batch->unwholes != tenant->unwholes)
        memset(batch->kept_whole, 0, size);
    if (batch->kept_full && batch->unwrites != tenant->unwrites)
        memset(batch->kept_full, 0, batch->table->cache->identity.num_layers * size);
    batch->unwholes = tenant->unwholes;
    batch->unwrites = tenant->unwrites;
}

enum status reads_check(struct batch *batch, const struct core_run_params *params,
                        struct error *error)
{
    enum status status = STATUS_OK;
    if (!batch->table || params->entry.kind == ENGINE_WRITE ||
        (batch->has_mask && params->entry.kind == ENGINE_ATTEND))
        return STATUS_OK;
    struct reader reader = {
        .batch = batch,
        .cache = batch->table->cache,
        .params = params,
        .layer = params->entry.layer,
        .num_layers = core_run_layers(params),
        .layer_step = params->layers.layer_step ? params->layers.layer_step : 1,
        .shift = (uint32_t)__builtin_ctz(batch->kv.block_size),
    };
    forget_void(batch);
    pass_all(&reader);
    for (uint32_t s = 0; status == STATUS_OK && s < batch->num_seqs; s++)
        status = check_sequence(&reader, s, error);
    if (status != STATUS_OK)
        batch->session->ledger->metrics[METRIC_RUNS_UNWRITTEN]++;
    return status;
}
