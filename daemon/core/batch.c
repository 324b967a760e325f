// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// batch.c - checks one model step's metadata against what the session holds, and keeps the blocks that it names. After
// core_batch_create() the engine may use every id and length without a further look.

#include "batch.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "prefix.h"
#include "state.h"

// A batch under construction. Blocks that it has seen carry its stamp, and in `mark` their place in batch->writes, plus one.
struct draft {
    const struct core_batch_params *params;
    const struct hold_table *table;
    const struct cache *cache;
    struct batch *batch;
    uint32_t block_size, block_shift;
    uint64_t stamp;
    struct error *error;
};

// ---- lengths ----

static enum status check_length(const char *name, uint64_t has, uint64_t wanted, struct error *error)
{
    if (has == wanted)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "%s has %" PRIu64 " entries; %" PRIu64 " are needed", name, has, wanted);
}

static enum status check_lengths(const struct core_batch_params *p, struct error *error)
{
    if (p->num_seqs == 0)
        return error_set(error, STATUS_INVALID, "num_seqs is 0");
    const struct {
        const char *name;
        uint64_t has, wanted;
    } lengths[] = {
        {"cu_seqlens_q", p->num_cu_seqlens_q, (uint64_t)p->num_seqs + 1},
        {"seq_lens_kv", p->num_seq_lens_kv, p->num_seqs},
        {"block_table", p->num_block_table, (uint64_t)p->num_seqs * p->max_blocks},
    };
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < sizeof lengths / sizeof *lengths; i++)
        status = check_length(lengths[i].name, lengths[i].has, lengths[i].wanted, error);
    return status;
}

static enum status check_cu_seqlens(const struct core_batch_params *p, struct error *error)
{
    if (p->cu_seqlens_q[0] != 0)
        return error_set(error, STATUS_INVALID, "cu_seqlens_q[0] is %" PRId32 ", not 0", p->cu_seqlens_q[0]);
    for (uint32_t s = 0; s < p->num_seqs; s++) {
        if (p->cu_seqlens_q[s + 1] < p->cu_seqlens_q[s])
            return error_set(error, STATUS_INVALID,
                             "cu_seqlens_q falls from [%" PRIu32 "] = %" PRId32 " to [%" PRIu32 "] = %" PRId32, s,
                             p->cu_seqlens_q[s], s + 1, p->cu_seqlens_q[s + 1]);
    }
    return STATUS_OK;
}

// No run could hold its output if the arena is too small for the least of it: f16 rows of one query head a KV head.
static enum status check_tokens(const struct draft *d, struct error *error)
{
    const struct core_cache_identity *identity = &d->cache->identity;
    uint64_t size = d->table->session->arena_size, tokens = d->batch->num_tokens;
    unsigned __int128 least = (unsigned __int128)tokens * identity->num_kv_heads * identity->head_dim_v * 2;
    if (least > size)
        return error_set(error, STATUS_OUT_OF_RANGE,
                         "the session's arena of %" PRIu64 " bytes cannot hold the output of %" PRIu64 " tokens", size,
                         tokens);
    enum status status = STATUS_OK;
    if (d->params->num_slot_mapping)
        status = check_length("slot_mapping", d->params->num_slot_mapping, tokens, error);
    if (status == STATUS_OK && d->params->num_positions)
        status = check_length("positions", d->params->num_positions, tokens, error);
    return status;
}

static enum status check_positions(const struct core_batch_params *p, struct error *error)
{
    for (uint32_t t = 0; t < p->num_positions; t++) {
        if (p->positions[t] < 0)
            return error_set(error, STATUS_OUT_OF_RANGE, "positions[%" PRIu32 "] = %" PRId32 " is negative", t,
                             p->positions[t]);
    }
    return STATUS_OK;
}

static enum status check_seq_len(const struct draft *d, uint32_t s, struct error *error)
{
    int32_t seq_len = d->params->seq_lens_kv[s];
    uint64_t room = (uint64_t)d->params->max_blocks * d->block_size;
    if (seq_len < 0)
        return error_set(error, STATUS_INVALID, "seq_lens_kv[%" PRIu32 "] = %" PRId32 " is negative", s, seq_len);
    if ((uint64_t)seq_len > room)
        return error_set(error, STATUS_OUT_OF_RANGE,
                         "seq_lens_kv[%" PRIu32 "] = %" PRId32 " exceeds the %" PRIu64 " tokens of a table of %" PRIu32
                         " blocks",
                         s, seq_len, room, d->params->max_blocks);
    if (d->params->max_context_len && (uint32_t)seq_len > d->params->max_context_len)
        return error_set(error, STATUS_OUT_OF_RANGE,
                         "seq_lens_kv[%" PRIu32 "] = %" PRId32 " exceeds max_context_len %" PRIu32, s, seq_len,
                         d->params->max_context_len);
    return STATUS_OK;
}

// The lengths are checked: no part exceeds 2^62 bits, and all q_len together are below 2^31, so 64 bits hold the sum.
static enum status check_mask(const struct core_batch_params *p, struct error *error)
{
    uint64_t wanted = 0;
    for (uint32_t s = 0; s < p->num_seqs; s++) {
        uint64_t q_len = (uint64_t)(p->cu_seqlens_q[s + 1] - p->cu_seqlens_q[s]);
        wanted += (q_len * (uint64_t)p->seq_lens_kv[s] + 7) / 8;
    }
    if (p->mask_bytes == 0 || p->mask_bytes == wanted)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "mask has %" PRIu64 " bytes; %" PRIu64 " are needed, the sum of ceil(q_len * seq_len / 8)",
                     p->mask_bytes, wanted);
}

// ---- blocks ----

static bool add_block(struct draft *d, struct block *block)
{
    struct batch *batch = d->batch;
    if (block->stamp == d->stamp)
        return true;
    if (batch->num_blocks == batch->block_capacity) {
        uint32_t capacity = batch->block_capacity ? 2 * batch->block_capacity : 16;
        struct block **blocks = realloc(batch->blocks, capacity * sizeof(struct block *));
        if (!blocks)
            return false;
        batch->blocks = blocks;
        batch->block_capacity = capacity;
    }
    block->stamp = d->stamp;
    block->mark = 0;
    batch->blocks[batch->num_blocks++] = block;
    return true;
}

static bool grow_writes(struct batch *batch, size_t mask_size)
{
    uint32_t capacity = batch->write_capacity ? 2 * batch->write_capacity : 16;
    struct block **writes = realloc(batch->writes, capacity * sizeof(struct block *));
    if (writes)
        batch->writes = writes;
    uint8_t *masks = realloc(batch->masks, capacity * mask_size);
    if (masks)
        batch->masks = masks;
    if (!writes || !masks)
        return false;
    batch->write_capacity = capacity;
    return true;
}

// The block's mask of written slots; NULL: no memory.
static uint8_t *add_write(struct draft *d, struct block *block)
{
    struct batch *batch = d->batch;
    size_t mask_size = d->cache->layer_bytes;
    if (!add_block(d, block))
        return NULL;
    if (!block->mark) {
        if (batch->num_writes == batch->write_capacity && !grow_writes(batch, mask_size))
            return NULL;
        memset(batch->masks + batch->num_writes * mask_size, 0, mask_size);
        batch->writes[batch->num_writes] = block;
        block->mark = ++batch->num_writes;
    }
    return batch->masks + (block->mark - 1) * mask_size;
}

static enum status no_memory(struct error *error)
{
    return error_set(error, STATUS_NO_MEMORY, "no host memory for the batch");
}

static enum status entry_error(const struct draft *d, enum status status, uint32_t s, uint32_t i, int32_t id)
{
    if (id == -1)
        return error_set(d->error, STATUS_INVALID,
                         "block_table[%" PRIu32 "][%" PRIu32 "] = -1, but the queries of that sequence see keys there",
                         s, i);
    if (status == STATUS_OUT_OF_RANGE)
        return error_set(d->error, status,
                         "block_table[%" PRIu32 "][%" PRIu32 "] = %" PRId32 " is outside the cache's %" PRIu64
                         " block ids",
                         s, i, id, cache_num_ids(d->cache));
    return error_set(d->error, status,
                     "block_table[%" PRIu32 "][%" PRIu32 "] = %" PRId32 " is not held by this session", s, i, id);
}

// Where the sequence's first query stands; it has one. Negative if it has more queries than keys.
static int64_t least_position(const struct core_batch_params *p, uint32_t s)
{
    int32_t first = p->cu_seqlens_q[s], end = p->cu_seqlens_q[s + 1];
    if (!p->num_positions)
        return (int64_t)p->seq_lens_kv[s] - (end - first);
    int32_t least = p->positions[first];
    for (int32_t t = first + 1; t < end; t++)
        least = p->positions[t] < least ? p->positions[t] : least;
    return least;
}

// The row begins with `entries` times -1. Which window a run has is not known yet, so the batch remembers the widest that
// hides them; if not even window_left 0 does, no run could be made.
static enum status check_missing(struct draft *d, uint32_t s, uint32_t entries)
{
    struct missing *missing = &d->batch->missing;
    int64_t seq_len = d->params->seq_lens_kv[s], keys = (int64_t)entries << d->block_shift;
    int64_t position = least_position(d->params, s);
    int64_t max_left = position - (keys < seq_len ? keys : seq_len);
    if (max_left < 0)
        return entry_error(d, STATUS_INVALID, s, position > 0 ? (uint32_t)(position >> d->block_shift) : 0, -1);
    if (missing->num_entries == 0 || max_left < missing->max_left)
        *missing = (struct missing){.num_entries = entries, .seq = s, .max_left = max_left};
    return STATUS_OK;
}

static uint32_t count_missing(const int32_t *row, uint32_t visible)
{
    uint32_t count = 0;
    while (count < visible && row[count] == -1)
        count++;
    return count;
}

// The entries that some query may see; whether a run is causal is not known yet.
static enum status check_entries(struct draft *d, uint32_t s)
{
    const struct core_batch_params *p = d->params;
    const int32_t *row = p->block_table + (size_t)s * p->max_blocks;
    bool queries = p->cu_seqlens_q[s + 1] > p->cu_seqlens_q[s];
    uint32_t visible = queries ? ((uint32_t)p->seq_lens_kv[s] + d->block_size - 1) >> d->block_shift : 0;
    uint32_t missing = count_missing(row, visible);
    enum status status = missing ? check_missing(d, s, missing) : STATUS_OK;
    if (status != STATUS_OK)
        return status;
    for (uint32_t i = missing; i < visible; i++) {
        struct block *block;
        status = hold_probe(d->table, row[i], &block);
        if (status != STATUS_OK)
            return entry_error(d, status, s, i, row[i]);
        if (!add_block(d, block))
            return no_memory(d->error);
    }
    return STATUS_OK;
}

// ---- slots ----

static enum status slot_error(const struct draft *d, enum status status, uint32_t token, int64_t slot, const char *why)
{
    return error_set(d->error, status,
                     "slot_mapping[%" PRIu32 "] = %" PRId64 " (block %" PRId64 ", offset %" PRId64 ") %s", token, slot,
                     slot >> d->block_shift, slot & (d->block_size - 1), why);
}

static enum status check_slot(struct draft *d, uint32_t token, int64_t slot)
{
    struct block *block;
    if (slot < 0)
        return error_set(d->error, STATUS_OUT_OF_RANGE, "slot_mapping[%" PRIu32 "] = %" PRId64 " is below -1", token,
                         slot);
    enum status status = hold_probe(d->table, slot >> d->block_shift, &block);
    if (status == STATUS_OUT_OF_RANGE)
        return slot_error(d, status, token, slot, "is outside the cache");
    if (status != STATUS_OK)
        return slot_error(d, status, token, slot, "lies in a block that this session does not hold");
    if (block->sealed)
        return slot_error(d, STATUS_SEALED, token, slot, "lies in a sealed block");
    uint8_t *mask = add_write(d, block);
    if (!mask)
        return no_memory(d->error);
    uint32_t offset = (uint32_t)slot & (d->block_size - 1);
    uint8_t bit = (uint8_t)(1u << (offset & 7));
    if (mask[offset >> 3] & bit)
        return slot_error(d, STATUS_DUPLICATE_SLOT, token, slot, "occurs twice");
    mask[offset >> 3] |= bit;
    return STATUS_OK;
}

static enum status check_slots(struct draft *d, uint32_t s)
{
    const struct core_batch_params *p = d->params;
    int32_t first = p->cu_seqlens_q[s], end = p->cu_seqlens_q[s + 1];
    bool writes = false;
    for (int32_t t = first; t < end; t++) {
        if (p->slot_mapping[t] == -1)
            continue;
        writes = true;
        enum status status = check_slot(d, (uint32_t)t, p->slot_mapping[t]);
        if (status != STATUS_OK)
            return status;
    }
    if (writes && end - first > p->seq_lens_kv[s])
        return error_set(d->error, STATUS_INVALID,
                         "sequence %" PRIu32 " writes K/V with q_len %" PRId32 " above its seq_len %" PRId32, s,
                         end - first, p->seq_lens_kv[s]);
    return STATUS_OK;
}

static void add_up(uint64_t *sum, uint64_t more)
{
    if (__builtin_add_overflow(*sum, more, sum))
        *sum = UINT64_MAX;
}

// What the sequence asks of the GPU. Query i of q_len sees keys up to number seq_len - q_len + i if the run is causal.
static void weigh_sequence(struct draft *d, uint32_t s)
{
    struct batch *batch = d->batch;
    uint64_t q_len = (uint64_t)(d->params->cu_seqlens_q[s + 1] - d->params->cu_seqlens_q[s]);
    uint64_t seq_len = (uint64_t)d->params->seq_lens_kv[s];
    uint64_t see = q_len < seq_len ? q_len : seq_len; // queries that see any key
    add_up(&batch->attended, q_len * seq_len);
    add_up(&batch->causal, see * seq_len - (see ? see * (see - 1) / 2 : 0));
    if (q_len)
        add_up(&batch->keys, (seq_len + BATCH_TILE_KEYS - 1) / BATCH_TILE_KEYS * BATCH_TILE_KEYS);
}

static enum status check_sequence(struct draft *d, uint32_t s)
{
    enum status status = check_seq_len(d, s, d->error);
    if (status == STATUS_OK)
        status = check_entries(d, s);
    if (status == STATUS_OK && d->params->num_slot_mapping)
        status = check_slots(d, s);
    if (status == STATUS_OK)
        weigh_sequence(d, s);
    return status;
}

static enum status check_memory(struct draft *d)
{
    const struct core_batch_params *p = d->params;
    const struct core_session *session = d->table->session;
    uint64_t most = session->core->params.max_batch_bytes, has = session->batch_bytes;
    uint64_t words = (uint64_t)p->num_cu_seqlens_q + p->num_seq_lens_kv + p->num_block_table + p->num_positions;
    d->batch->bytes = words * sizeof(int32_t) + p->num_slot_mapping * sizeof(int64_t) + p->mask_bytes;
    if (!most || (has <= most && d->batch->bytes <= most - has))
        return STATUS_OK;
    return error_set(d->error, STATUS_LIMIT,
                     "%" PRIu64 " bytes of metadata more would exceed the session's %" PRIu64
                     ", of which its batches have %" PRIu64 " (--max-batch-memory)",
                     d->batch->bytes, most, has);
}

static enum status check(struct draft *d)
{
    enum status status = check_lengths(d->params, d->error);
    if (status == STATUS_OK)
        status = check_memory(d);
    if (status == STATUS_OK)
        status = check_cu_seqlens(d->params, d->error);
    if (status != STATUS_OK)
        return status;
    d->batch->num_tokens = (uint32_t)d->params->cu_seqlens_q[d->params->num_seqs];
    d->batch->has_slots = d->params->num_slot_mapping > 0;
    d->batch->has_mask = d->params->mask_bytes > 0;
    d->batch->has_positions = d->params->num_positions > 0;
    status = check_tokens(d, d->error);
    if (status == STATUS_OK)
        status = check_positions(d->params, d->error);
    for (uint32_t s = 0; status == STATUS_OK && s < d->params->num_seqs; s++)
        status = check_sequence(d, s);
    if (status == STATUS_OK)
        status = check_mask(d->params, d->error);
    if (d->batch->attended == 0)
        d->batch->attended = 1;
    return status;
}

// ---- life ----

static void batch_free(struct batch *batch)
{
    if (!batch)
        return;
    engine_batch_destroy(batch->engine);
    free(batch->blocks);
    free(batch->writes);
    free(batch->masks);
    free(batch);
}

static enum status make_engine_batch(const struct draft *d)
{
    const struct core_batch_params *p = d->params;
    struct engine_batch_params params = {
        .cache = d->cache->engine,
        .num_seqs = p->num_seqs,
        .max_blocks = p->max_blocks,
        .num_tokens = d->batch->num_tokens,
        .cu_seqlens_q = p->cu_seqlens_q,
        .seq_lens_kv = p->seq_lens_kv,
        .block_table = p->block_table,
        .slot_mapping = d->batch->has_slots ? p->slot_mapping : NULL,
        .positions = p->num_positions ? p->positions : NULL,
        .mask = d->batch->has_mask ? p->mask : NULL,
        .mask_bytes = p->mask_bytes,
    };
    return engine_batch_create(&params, &d->batch->engine, d->error);
}

static enum status batch_register(struct core_session *session, struct hold_table *table, struct batch *batch,
                                  struct error *error)
{
    batch->id = ++session->core->last_id;
    batch->session = session;
    batch->table = table;
    batch->users = 1;
    batch->seals = table->cache->seals;
    HASH_ADD(hh, session->batches, id, sizeof batch->id, batch);
    if (!HASH_ADDED(batch))
        return no_memory(error);
    table->num_batches++;
    session->batch_bytes += batch->bytes;
    for (uint32_t i = 0; i < batch->num_blocks; i++)
        hold_ref(table, batch->blocks[i]);
    return STATUS_OK;
}

static enum status batch_build(struct core_session *session, struct hold_table *table,
                               const struct core_batch_params *params, struct batch *batch, struct error *error)
{
    struct draft draft = {
        .params = params,
        .table = table,
        .cache = table->cache,
        .batch = batch,
        .block_size = table->cache->identity.block_size,
        .block_shift = (uint32_t)__builtin_ctz(table->cache->identity.block_size),
        .stamp = ++session->core->last_stamp,
        .error = error,
    };
    enum status status = check(&draft);
    if (status == STATUS_OK)
        status = make_engine_batch(&draft);
    return status == STATUS_OK ? batch_register(session, table, batch, error) : status;
}

enum status core_batch_create(struct core_session *session, const struct core_batch_params *params, uint64_t *id,
                              uint32_t *num_tokens, struct error *error)
{
    struct hold_table *table;
    enum status status = session_usable(session, error);
    if (status == STATUS_OK)
        status = hold_table_find(session, params->cache, &table, error);
    if (status != STATUS_OK)
        return status;
    if (HASH_COUNT(session->batches) >= session->core->params.max_batches)
        return error_set(error, STATUS_LIMIT, "all %" PRIu32 " batches of the session are live (--max-batches)",
                         session->core->params.max_batches);
    struct batch *batch = calloc(1, sizeof *batch);
    if (!batch)
        return no_memory(error);
    status = batch_build(session, table, params, batch, error);
    if (status != STATUS_OK) {
        batch_free(batch);
        return status;
    }
    *id = batch->id;
    *num_tokens = batch->num_tokens;
    return STATUS_OK;
}

enum status batch_find(struct core_session *session, uint64_t id, struct batch **out, struct error *error)
{
    HASH_FIND(hh, session->batches, &id, sizeof id, *out);
    if (*out)
        return STATUS_OK;
    error_set(error, STATUS_NOT_FOUND, "session %" PRIu64 " has no batch %" PRIu64, session->id, id);
    return STATUS_NOT_FOUND;
}

void batch_unref(struct batch *batch)
{
    struct hold_table *table = batch->table;
    if (--batch->users)
        return;
    for (uint32_t i = 0; i < batch->num_blocks; i++)
        hold_unref(table, batch->blocks[i], batch->dead);
    table->session->batch_bytes -= batch->bytes;
    batch_free(batch);
    table->num_batches--;
    hold_table_settle(table);
}

void batch_destroy(struct batch *batch)
{
    HASH_DEL(batch->session->batches, batch);
    batch_unref(batch);
}

enum status core_batch_destroy(struct core_session *session, uint64_t id, struct error *error)
{
    struct batch *batch;
    enum status status = batch_find(session, id, &batch, error);
    if (status == STATUS_OK)
        batch_destroy(batch);
    return status;
}

void batch_bury(struct batch *batch)
{
    if (batch->dead)
        return;
    batch->dead = true;
    for (uint32_t i = 0; i < batch->num_blocks; i++) {
        batch->blocks[i]->dead_refs++;
        block_settle(batch->table->cache, batch->blocks[i]);
    }
}

// ---- writes ----

enum status batch_check_seals(struct batch *batch, struct error *error)
{
    if (batch->seals == batch->table->cache->seals)
        return STATUS_OK;
    for (uint32_t i = 0; i < batch->num_writes; i++) {
        if (batch->writes[i]->sealed)
            return error_set(error, STATUS_SEALED,
                             "batch %" PRIu64 " writes block %" PRId32 ", which was sealed after the batch was created",
                             batch->id, batch->writes[i]->id);
    }
    batch->seals = batch->table->cache->seals;
    return STATUS_OK;
}

static void mark_written(const struct batch *batch, uint32_t index, uint32_t layer, bool written)
{
    const struct cache *cache = batch->table->cache;
    uint8_t *bits = block_written(cache, batch->writes[index], layer);
    const uint8_t *mask = batch->masks + index * (size_t)cache->layer_bytes;
    for (uint32_t i = 0; i < cache->layer_bytes; i++)
        bits[i] = (uint8_t)(written ? bits[i] | mask[i] : bits[i] & ~mask[i]);
}

void batch_write_begins(struct batch *batch, uint32_t layer)
{
    for (uint32_t i = 0; i < batch->num_writes; i++) {
        batch->writes[i]->pending++;
        mark_written(batch, i, layer, true);
    }
}

void batch_write_ends(struct batch *batch, uint32_t layer, bool ok)
{
    struct cache *cache = batch->table->cache;
    for (uint32_t i = 0; i < batch->num_writes; i++) {
        struct block *block = batch->writes[i];
        mark_written(batch, i, layer, ok); // again, if a failed run before this one took the bits back
        if (!ok && block->node)            // what was published on trust must never be seen
            prefix_unlink(cache, block->node);
        if (--block->pending == 0 && block->node) {
            cache->num_pending--;
            cache->core->news = true;
        }
    }
}
