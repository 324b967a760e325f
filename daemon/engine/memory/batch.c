// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// batch.c - uploads a model step's metadata once, and makes the batch of the next step from it.
// Trusts the numbers: the caller has checked them. The caller's thread makes batches; the maker
// frees them when the GPU has finished with them.

#include "batch.h"

#include "base/container_of.h"
#include "base/list.h"
#include "engine/state/event.h"
#include "engine/state/state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SHARING_QUERIES = 8 };
// Sequences with more queries than this are not searched for shared keys.

// One array on the GPU. `from` NULL: upload() computes it.
struct array {
    const void *from;
    uint64_t bytes; // 0 = the array is absent
    uint64_t at;    // offset in the piece, a multiple of 16
};

struct arrays {
    struct array by_name[BATCH_ARRAYS];
    uint64_t bytes; // of all arrays
};

static bool has_sequences(const struct engine_batch_params *params)
{
    return params->num_seqs > 0 && params->seq_lens_kv;
}

static struct array array(const void *from, uint64_t count, size_t size)
{
    return (struct array){.from = from, .bytes = from ? count * size : 0};
}

// Bytes of the block table. 0: there is none. UINT64_MAX: the size overflows.
static uint64_t table_bytes(const struct engine_batch_params *params)
{
    uint64_t entries = (uint64_t)params->num_seqs * params->max_blocks, bytes; // u32 * u32 fits
    if (!has_sequences(params) || params->place == ENGINE_ROWS || !params->block_table)
        return 0;
    return __builtin_mul_overflow(entries, sizeof(int32_t), &bytes) ? UINT64_MAX : bytes;
}

// Sets the offset of each array except the block table. false: the size overflows.
static bool place_arrays(const struct engine_batch_params *params, struct arrays *arrays)
{
    uint64_t seqs = params->num_seqs, tokens = params->num_tokens;
    bool sequences = has_sequences(params), overflow = false;
    *arrays = (struct arrays){
        .by_name = {
            [BATCH_CU_SEQLENS_Q] =
                array(seqs ? params->cu_seqlens_q : NULL, seqs + 1, sizeof(int32_t)),
            [BATCH_SEQ_LENS_KV] = array(params->seq_lens_kv, seqs, sizeof(int32_t)),
            [BATCH_SLOT_MAPPING] = array(params->slot_mapping, tokens, sizeof(int64_t)),
            [BATCH_POSITIONS] = array(params->positions, tokens, sizeof(int32_t)),
            [BATCH_Q_LENS] = array(sequences ? params->q_lens : NULL, seqs, sizeof(int32_t)),
            [BATCH_TOKEN_ROWS] = array(params->token_rows, tokens, sizeof(int32_t)),
            [BATCH_KV_STARTS] = array(sequences ? params->kv_starts : NULL, seqs, sizeof(int32_t)),
            [BATCH_KV_OFFSETS] = {.bytes = sequences ? (seqs + 1) * sizeof(int32_t) : 0},
            [BATCH_MASK_STARTS] = {.bytes =
                                       sequences && params->mask ? seqs * sizeof(uint64_t) : 0},
            [BATCH_MASK] = array(sequences ? params->mask : NULL, params->mask_bytes, 1),
        }};
    for (int i = 0; i < BATCH_ARRAYS; i++) {
        struct array *array = &arrays->by_name[i];
        uint64_t room = 0;
        array->at = arrays->bytes;
        overflow = overflow || __builtin_add_overflow(array->bytes, UINT64_C(15), &room) ||
                   __builtin_add_overflow(arrays->bytes, room & ~UINT64_C(15), &arrays->bytes);
    }
    return !overflow;
}

static enum status measure(const struct engine_batch_params *params, struct arrays *arrays,
                           struct error *error)
{
    uint64_t limit = params->engine->device.adapter.info.max_allocation_bytes;
    if (params->place == ENGINE_ROWS && params->slot_mapping)
        return error_set(error, STATUS_INVALID,
                         "a slot mapping of %u tokens: contiguous K and V have no slots",
                         params->num_tokens);
    bool fits = table_bytes(params) <= limit;
    if (place_arrays(params, arrays) && fits && arrays->bytes <= limit)
        return STATUS_OK;
    return error_set(error, STATUS_LIMIT,
                     "a batch of %u sequences, %u table columns, %u tokens and %" PRIu64
                     " bytes of mask needs more "
                     "metadata than the device's largest allocation of %" PRIu64 " bytes",
                     params->num_seqs, params->max_blocks, params->num_tokens,
                     params->mask ? params->mask_bytes : 0, limit);
}

// ---- on the CPU ----

// Copies an array to *out. With nothing to copy *out becomes NULL, which is a success. false: no
// memory.
static bool keep(void *out, const void *from, uint64_t count, size_t size)
{
    void *to = from && count ? malloc(count * size) : NULL;
    if (to)
        memcpy(to, from, count * size);
    memcpy(out, &to, sizeof to); // *out may be any pointer type
    return to || !from || !count;
}

uint32_t batch_num_columns(const struct engine_batch *batch, uint32_t seq)
{
    uint32_t kv_len = (uint32_t)batch->seq_lens_kv[seq], size = batch->kv.block_size;
    uint32_t blocks = kv_len / size + (kv_len % size != 0);
    return blocks < batch->max_blocks ? blocks : batch->max_blocks;
}

// Copies the entries of columns that hold keys. Entries in other columns may be any number, because
// no query sees them.
static bool keep_blocks(struct engine_batch *batch, const int32_t *table)
{
    uint64_t count = 0;
    for (uint32_t seq = 0; seq < batch->num_seqs; seq++)
        count += batch_num_columns(batch, seq);
    batch->blocks = count ? malloc(count * sizeof *batch->blocks) : NULL;
    for (uint32_t seq = 0; batch->blocks && seq < batch->num_seqs; seq++)
        for (uint32_t i = 0; i < batch_num_columns(batch, seq); i++) {
            int32_t block = table[(uint64_t)seq * batch->max_blocks + i];
            if (block >= 0)
                batch->blocks[batch->num_blocks++] = block;
        }
    return batch->blocks || !count;
}

// Whether the sequence is searched for shared keys. The answer is the same in all steps.
static bool may_share(const struct engine_batch *batch, uint32_t seq)
{
    uint32_t queries = batch_num_queries(batch, seq);
    bool whole = queries == (uint32_t)(batch->cu_seqlens_q[seq + 1] - batch->cu_seqlens_q[seq]);
    return queries > 0 && queries <= MOST_SHARING_QUERIES && whole;
}

// Whether any sequence is searched for shared keys, in this step or a later one. With a mask or
// with positions a query might not see all of a prefix, so such batches are not searched.
static bool is_searched(const struct engine_batch *batch, const struct engine_batch_params *params)
{
    if (batch->engine->no_cascade || params->place == ENGINE_ROWS || !params->block_table ||
        params->mask || params->positions || !has_sequences(params))
        return false;
    bool searched = false;
    for (uint32_t seq = 0; !searched && seq < batch->num_seqs; seq++)
        searched = may_share(batch, seq);
    return searched;
}

// Finds sequences with few queries whose leading blocks are the same: a shared prefix.
static bool find_sharing(struct engine_batch *batch, const struct engine_batch_params *params)
{
    if (!is_searched(batch, params))
        return true;
    uint32_t *used = calloc(batch->num_seqs, sizeof *used);
    const int32_t **rows = malloc(batch->num_seqs * sizeof *rows);
    for (uint32_t seq = 0; used && rows && seq < batch->num_seqs; seq++) {
        used[seq] = may_share(batch, seq) ? batch_num_columns(batch, seq) : 0;
        rows[seq] = params->block_table + (uint64_t)seq * batch->max_blocks;
    }
    bool found = used && rows &&
                 sharing_find(&batch->sharing, &(struct sharing_tables){
                                                   .rows = rows,
                                                   .used = used,
                                                   .num_seqs = batch->num_seqs,
                                               });
    free(used);
    free(rows);
    return found;
}

static bool keep_all(struct engine_batch *batch, const struct engine_batch_params *params)
{
    uint64_t seqs = params->num_seqs;
    bool sequences = has_sequences(params);
    if (!keep(&batch->cu_seqlens_q, seqs ? params->cu_seqlens_q : NULL, seqs + 1,
              sizeof(int32_t)) ||
        !keep(&batch->seq_lens_kv, params->seq_lens_kv, seqs, sizeof(int32_t)) ||
        !keep(&batch->q_lens, sequences ? params->q_lens : NULL, seqs, sizeof(int32_t)) ||
        !keep(&batch->kv_starts, sequences ? params->kv_starts : NULL, seqs, sizeof(int32_t)) ||
        !keep(&batch->token_rows, params->token_rows, params->num_tokens, sizeof(int32_t)))
        return false;
    for (uint32_t seq = 0; sequences && seq < seqs; seq++)
        batch->num_keys += (uint32_t)params->seq_lens_kv[seq];
    if (!batch->sharing_known && !find_sharing(batch, params))
        return false;
    if (params->place != ENGINE_BLOCKS)
        return true;
    return keep(&batch->slots, params->slot_mapping, params->num_tokens, sizeof(int64_t)) &&
           (!sequences || !params->block_table || keep_blocks(batch, params->block_table));
}

static int compare_blocks(const void *left, const void *right)
{
    int32_t a = *(const int32_t *)left, b = *(const int32_t *)right;
    return a < b ? -1 : a > b;
}

void batch_sort_blocks(struct engine_batch *batch)
{
    uint64_t count = 0;
    if (batch->blocks_sorted)
        return;
    if (batch->num_blocks)
        qsort(batch->blocks, batch->num_blocks, sizeof *batch->blocks, compare_blocks);
    for (uint64_t i = 0; i < batch->num_blocks; i++)
        if (i == 0 || batch->blocks[i] != batch->blocks[i - 1])
            batch->blocks[count++] = batch->blocks[i];
    batch->num_blocks = count;
    batch->blocks_sorted = true;
}

uint32_t batch_num_queries(const struct engine_batch *batch, uint32_t seq)
{
    return (uint32_t)(batch->q_lens ? batch->q_lens[seq]
                                    : batch->cu_seqlens_q[seq + 1] - batch->cu_seqlens_q[seq]);
}

// ---- on the GPU ----

// Writes the byte where each sequence's part of the mask begins.
static void put_mask_starts(const struct engine_batch *batch, uint64_t *starts)
{
    uint64_t start = 0;
    for (uint32_t seq = 0; seq < batch->num_seqs; seq++) {
        uint64_t rows = (uint32_t)(batch->cu_seqlens_q[seq + 1] - batch->cu_seqlens_q[seq]);
        starts[seq] = start;
        start += (rows * (uint32_t)batch->seq_lens_kv[seq] + 7) / 8;
    }
}

// Writes prefix sums of seq_lens_kv. Only batches with at most INT32_MAX keys are gathered, so
// larger sums are capped.
static void put_kv_offsets(const struct engine_batch *batch, int32_t *offsets)
{
    uint64_t sum = 0;
    offsets[0] = 0;
    for (uint32_t seq = 0; seq < batch->num_seqs; seq++) {
        sum += (uint32_t)batch->seq_lens_kv[seq];
        offsets[seq + 1] = sum <= INT32_MAX ? (int32_t)sum : INT32_MAX;
    }
}

static void upload(struct engine_batch *batch, const struct arrays *arrays)
{
    batch->address[BATCH_BLOCK_TABLE] = batch->table ? batch->table->piece.address : 0;
    for (int i = 0; i < BATCH_ARRAYS; i++) {
        const struct array *array = &arrays->by_name[i];
        char *to = (char *)batch->piece.mapped + array->at;
        if (array->bytes == 0)
            continue;
        batch->address[i] = batch->piece.address + array->at;
        if (i == BATCH_KV_OFFSETS)
            put_kv_offsets(batch, (int32_t *)to);
        else if (i == BATCH_MASK_STARTS)
            put_mask_starts(batch, (uint64_t *)to);
        else
            memcpy(to, array->from, array->bytes);
    }
}

// ---- the block table ----

static struct table *table_use(struct table *table)
{
    atomic_fetch_add(&table->users, 1);
    return table;
}

static void table_release(struct engine *engine, struct table *table)
{
    if (!table || atomic_fetch_sub(&table->users, 1) != 1)
        return;
    slab_give(&engine->slabs, &table->piece);
    free(table->rows);
    free(table->seen);
    free(table);
}

// `planned`: the planner needs the entries, too.
static enum status table_create(const struct engine_batch_params *params, bool planned,
                                struct table **out, struct error *error)
{
    uint64_t bytes = table_bytes(params);
    struct table *table = calloc(1, sizeof *table);
    if (!table)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a block table");
    atomic_init(&table->users, 1);
    enum status status = slab_take(&params->engine->slabs, bytes, &table->piece, error);
    if (status == STATUS_OK && planned && !keep(&table->rows, params->block_table, bytes, 1)) {
        slab_give(&params->engine->slabs, &table->piece);
        status = error_set(error, STATUS_NO_MEMORY,
                           "no memory for a copy of a block table of %" PRIu64 " bytes", bytes);
    }
    if (status != STATUS_OK) {
        free(table);
        return status;
    }
    memcpy(table->piece.mapped, params->block_table, bytes);
    *out = table;
    return STATUS_OK;
}

// Raises `seen` to the columns that this step can read. false: no memory.
static bool table_note_seen(struct engine_batch *batch)
{
    struct table *table = batch->table;
    if (!table->seen)
        table->seen = calloc((size_t)batch->num_seqs + 1, sizeof *table->seen);
    for (uint32_t seq = 0; table->seen && seq < batch->num_seqs; seq++) {
        uint32_t used = batch_num_columns(batch, seq);
        table->seen[seq] = used > table->seen[seq] ? used : table->seen[seq];
    }
    return table->seen != NULL;
}

// A window turns the entries that it leaves behind into -1. No run of the next step reads them, so
// the table keeps the old block for runs of earlier steps.
static bool is_looked_at(const struct engine_entry *entry)
{
    return entry->block >= 0;
}

// No other step lives, and no run is left.
static bool table_is_free(const struct table *table, const struct engine_advance *a)
{
    return !a->is_used && atomic_load(&table->users) == 1;
}

// No step, this one included, can read the entries that change.
static bool table_is_unseen(const struct engine_batch *old, const struct engine_advance *a)
{
    const uint32_t *seen = old->table->seen;
    for (uint32_t i = 0; i < a->num_entries; i++) {
        const struct engine_entry *entry = &a->entries[i];
        if (is_looked_at(entry) && (entry->column < batch_num_columns(old, entry->seq) ||
                                    (seen && entry->column < seen[entry->seq])))
            return false;
    }
    return true;
}

// Whether the table of `old` can take the changes in place.
static bool table_may_change(struct engine_batch *old, const struct engine_advance *a)
{
    struct table *table = old->table;
    if (table_is_free(table, a)) { // `seen` begins anew with the next step
        free(table->seen);
        table->seen = NULL;
        return true;
    }
    return table->seen && table_is_unseen(old, a);
}

static void table_change(const struct engine_batch *old, const struct engine_advance *a)
{
    int32_t *entries = old->table->piece.mapped;
    for (uint32_t i = 0; i < a->num_entries; i++) {
        const struct engine_entry *entry = &a->entries[i];
        uint64_t at = (uint64_t)entry->seq * old->max_blocks + entry->column;
        if (!is_looked_at(entry))
            continue;
        entries[at] = entry->block;
        if (old->table->rows)
            old->table->rows[at] = entry->block;
    }
}

// ---- create and destroy ----

// `table` NULL: the batch gets a table of its own. `sharing` is what was found for the step before,
// and is copied; NULL: it is searched anew.
static enum status make_batch(const struct engine_batch_params *params, struct table *table,
                              const struct sharing *sharing, struct engine_batch **out,
                              struct error *error)
{
    struct engine *engine = params->engine;
    struct arrays arrays;
    enum status status = measure(params, &arrays, error);
    if (status == STATUS_OK && engine_lost(engine))
        status = error_set(error, STATUS_DEVICE_LOST, "the device is lost");
    if (status != STATUS_OK)
        return status;
    struct engine_batch *batch = calloc(1, sizeof *batch);
    if (!batch)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a batch");
    batch->engine = engine;
    batch->cache = params->cache;
    batch->place = params->place;
    batch->kv = params->cache ? params->cache->params.kv : params->kv;
    batch->num_seqs = params->num_seqs;
    batch->max_blocks = params->max_blocks;
    batch->num_tokens = params->num_tokens;
    batch->sharing_known = sharing != NULL;
    if ((sharing && !sharing_copy(&batch->sharing, sharing)) || !keep_all(batch, params))
        status = error_set(error, STATUS_NO_MEMORY, "no memory for a batch of %u sequences",
                           params->num_seqs);
    else
        status = slab_take(&engine->slabs, arrays.bytes, &batch->piece, error);
    if (status == STATUS_OK && table_bytes(params) && !table)
        status = table_create(params, is_searched(batch, params), &batch->table, error);
    else if (status == STATUS_OK && table)
        batch->table = table_use(table);
    if (status != STATUS_OK) {
        batch_free(batch);
        return status;
    }
    upload(batch, &arrays);
    pthread_mutex_lock(&engine->lock);
    LIST_APPEND(engine->batches, batch);
    batch->serial = ++engine->num_batches;
    pthread_mutex_unlock(&engine->lock);
    *out = batch;
    return STATUS_OK;
}

enum status engine_batch_create(const struct engine_batch_params *params, struct engine_batch **out,
                                struct error *error)
{
    return make_batch(params, NULL, NULL, out, error);
}

// Whether a sequence may share more than in the step before: it had no keys, or one of its blocks
// in use was replaced. A sequence that only grows gets blocks of its own and shares no more than it
// did.
static bool may_begin(const struct engine_batch *old, const struct engine_advance *a)
{
    bool begins = false;
    for (uint32_t seq = 0; !begins && seq < old->num_seqs; seq++)
        begins = old->seq_lens_kv[seq] == 0 && a->seq_lens_kv[seq] > 0 && may_share(old, seq);
    for (uint32_t i = 0; !begins && i < a->num_entries; i++) {
        const struct engine_entry *entry = &a->entries[i];
        begins = entry->block >= 0 && entry->column < batch_num_columns(old, entry->seq) &&
                 may_share(old, entry->seq);
    }
    return begins;
}

// Whether the sharing found for the step before is still right. No entry that sequences have in
// common has changed, and no further sequence may share.
static bool sharing_stands(const struct engine_batch *old, const struct engine_advance *a)
{
    const struct sharing *sharing = &old->sharing;
    if (may_begin(old, a))
        return false;
    uint32_t size = old->kv.block_size, *alike = calloc((size_t)old->num_seqs + 1, sizeof *alike);
    bool stands = alike != NULL;
    for (uint32_t i = 0; stands && i < sharing->num_places; i++) {
        uint32_t seq = sharing->places[i].seq,
                 next = i + 1 < sharing->num_places ? sharing->places[i + 1].alike : 0;
        alike[seq] = sharing->places[i].alike > next ? sharing->places[i].alike : next;
        bool whole = (uint32_t)a->seq_lens_kv[seq] / size >= alike[seq];
        // Its blocks were the first ones of another sequence; the next one parts them.
        bool parts = alike[seq] == batch_num_columns(old, seq) &&
                     (uint32_t)a->seq_lens_kv[seq] > alike[seq] * size;
        stands = whole && !parts;
    }
    for (uint32_t i = 0; stands && i < a->num_entries; i++)
        stands = a->entries[i].column >= alike[a->entries[i].seq];
    free(alike);
    return stands;
}

bool engine_batch_is_light(const struct engine_batch *batch, const struct engine_advance *a)
{
    return sharing_stands(batch, a) &&
           (!batch->table || table_is_free(batch->table, a) || table_is_unseen(batch, a));
}

enum status engine_batch_advance(struct engine_batch *old, const struct engine_advance *a,
                                 struct engine_batch **out, struct error *error)
{
    const struct engine_batch_params params = {
        .engine = old->engine,
        .cache = old->cache,
        .place = old->place,
        .kv = old->kv,
        .num_seqs = old->num_seqs,
        .max_blocks = old->max_blocks,
        .num_tokens = old->num_tokens,
        .cu_seqlens_q = old->cu_seqlens_q,
        .seq_lens_kv = a->seq_lens_kv,
        .block_table = a->block_table,
        .slot_mapping = a->slot_mapping,
        .positions = a->positions,
        .q_lens = old->q_lens,
        .token_rows = old->token_rows,
    };
    const struct sharing *sharing = sharing_stands(old, a) ? &old->sharing : NULL;
    bool in_place = old->table && table_note_seen(old) && table_may_change(old, a);
    enum status status = make_batch(&params, in_place ? old->table : NULL, sharing, out, error);
    if (status == STATUS_OK && in_place)
        table_change(old, a);
    return status;
}

bool engine_batch_shares_table(const struct engine_batch *batch, const struct engine_batch *next)
{
    return batch->table == next->table;
}

void batch_free(struct engine_batch *batch)
{
    lists_finish(&batch->lists);
    table_release(batch->engine, batch->table);
    slab_give(&batch->engine->slabs, &batch->piece);
    free(batch->cu_seqlens_q);
    free(batch->seq_lens_kv);
    free(batch->q_lens);
    free(batch->kv_starts);
    free(batch->token_rows);
    free(batch->slots);
    free(batch->blocks);
    sharing_finish(&batch->sharing);
    free(batch);
}

static void run_batch_end(struct engine *engine, struct job *job)
{
    (void)engine;
    batch_free(container_of(job, struct engine_batch, end));
}

void engine_batch_destroy(struct engine_batch *batch)
{
    if (!batch)
        return;
    struct engine *engine = batch->engine;
    pthread_mutex_lock(&engine->lock);
    LIST_DELETE(engine->batches, batch);
    batch->end = (struct job){.after = batch->last_sequence, .run = run_batch_end};
    job_post(engine, &batch->end);
    pthread_mutex_unlock(&engine->lock);
}
