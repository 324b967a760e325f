// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// batch.c - the life of a batch: it is made from a checked draft (making.h) and references the
// blocks that it names. It is freed when it is destroyed and its last run is over. It also replaces
// a batch by its next step, which advance.c makes. Dispatcher thread only.

#include "batch.h"

#include "core/pool/ledger.h"
#include "core/pool/session.h"
#include "making.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void batch_discard(struct batch *batch)
{
    if (!batch)
        return;
    struct ledger *ledger = batch->session->ledger;
    engine_batch_destroy(batch->engine);
    void *const arrays[] = {batch->blocks,      batch->writes,        batch->write_masks,
                            batch->kept_arrays, batch->named_columns, batch->kept_full};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        ledger_free(ledger, arrays[i]);
    if (batch->mentions) // it was never registered
        mentions_finish(batch->mentions);
    free(batch->mentions);
    free(batch);
}

static enum status make_engine_batch(const struct draft *d)
{
    const struct core_batch_params *p = d->params;
    struct batch *batch = d->batch;
    bool tabled = batch->has_keys && batch->place != ENGINE_ROWS;
    struct engine_batch_params params = {
        .engine = d->session->ledger->engine,
        .cache = d->table ? d->table->cache->engine : NULL,
        .place = batch->place,
        .kv = batch->kv,
        .num_seqs = p->num_seqs,
        .max_blocks = tabled ? p->max_blocks : 0,
        .num_tokens = batch->num_tokens,
        .cu_seqlens_q = p->num_cu_seqlens_q ? p->cu_seqlens_q : NULL,
        .seq_lens_kv = batch->has_keys ? p->seq_lens_kv : NULL,
        .block_table = tabled ? p->block_table : NULL,
        .slot_mapping = batch->has_slots ? p->slot_mapping : NULL,
        .positions = batch->has_positions ? p->positions : NULL,
        .mask = batch->has_mask ? p->mask : NULL,
        .mask_bytes = p->mask_bytes,
        .q_lens = p->num_q_lens ? p->q_lens : NULL,
        .token_rows = batch->has_token_rows ? p->token_rows : NULL,
        .kv_starts = batch->has_kv_starts ? p->kv_starts : NULL,
    };
    return engine_batch_create(&params, &batch->engine, d->error);
}

// ---- what is kept for the next step ----

// Copies an array to *at and moves *at behind the copy. NULL if it is empty.
static int32_t *keep(int32_t **at, const int32_t *from, uint64_t count)
{
    if (!count)
        return NULL;
    int32_t *to = memcpy(*at, from, count * sizeof *from);
    *at += count;
    return to;
}

// Copies what a later step needs. The layout is not kept, because it is the caller's; batch->kv and
// num_layout_blocks have its values.
static enum status keep_params(struct batch *batch, const struct core_batch_params *p,
                               struct error *error)
{
    int32_t *at = batch->kept_arrays = malloc(batch->kept_bytes ? batch->kept_bytes : 1);
    if (!at)
        return error_set(error, STATUS_NO_MEMORY, "no host memory for the batch");
    batch->kept = *p;
    batch->kept.layout = NULL;
    batch->kept.cu_seqlens_q = keep(&at, p->cu_seqlens_q, p->num_cu_seqlens_q);
    batch->kept.seq_lens_kv = batch->kept_lens = keep(&at, p->seq_lens_kv, p->num_seq_lens_kv);
    batch->kept.block_table = batch->kept_table = keep(&at, p->block_table, p->num_block_table);
    batch->kept.positions = batch->kept_positions = keep(&at, p->positions, p->num_positions);
    batch->kept.q_lens = keep(&at, p->q_lens, p->num_q_lens);
    batch->kept.token_rows = keep(&at, p->token_rows, p->num_token_rows);
    batch->kept.kv_starts = keep(&at, p->kv_starts, p->num_kv_starts);
    if (batch_has_whole(batch))
        batch->kept_whole = memset(at, 0, p->num_seqs * sizeof *batch->kept_whole);
    batch->kept.slot_mapping = NULL;
    batch->kept.mask = NULL;
    batch->kept.max_context_len = 0; // limits only the call that gave it
    batch->kept.beside = 0;
    return STATUS_OK;
}

// ---- registering ----

// `old`, if given, stays registered under the same id until batch_succeed().
enum status batch_enter(struct batch *batch, const struct batch *old, struct error *error)
{
    struct core_session *session = batch->session;
    batch->id = old ? old->id : ++session->ledger->last_id;
    HASH_ADD(hh, session->batches, id, sizeof batch->id, batch);
    return HASH_ADDED(batch) ? STATUS_OK
                             : error_set(error, STATUS_NO_MEMORY, "no host memory for the batch");
}

void batch_withdraw(struct batch *batch)
{
    HASH_DEL(batch->session->batches, batch);
}

bool batch_has_whole(const struct batch *batch)
{
    return batch->table && batch->has_keys;
}

bool batch_keep_full(struct batch *batch)
{
    const size_t count = (size_t)batch->table->cache->identity.num_layers * batch->num_seqs;
    const uint64_t bytes = count * sizeof *batch->kept_full;
    if (batch->kept_full)
        return true;
    if (session_check_batch_memory(batch->session, bytes, "what a batch has checked", NULL) ==
        STATUS_OK)
        batch->kept_full = calloc(count, sizeof *batch->kept_full);
    if (!batch->kept_full)
        return false;
    batch->kept_bytes += bytes;
    session_charge(batch->session, bytes);
    return true;
}

static void lower(uint32_t *mark, uint32_t most)
{
    *mark = *mark < most ? *mark : most;
}

void batch_forget_columns(const struct batch *batch, uint32_t seq, uint32_t column)
{
    const uint32_t layers = batch->kept_full ? batch->table->cache->identity.num_layers : 0;
    lower(&batch->kept_whole[seq], column);
    for (uint32_t layer = 0; layer < layers; layer++)
        lower(&batch->kept_full[(size_t)layer * batch->num_seqs + seq], column);
}

uint64_t batch_bytes(const struct batch *batch)
{
    return batch->bytes + batch->table_bytes + batch->kept_bytes;
}

static void mark_reserved(const struct batch *batch, bool reserved)
{
    const struct cache *cache = batch->table->cache;
    for (uint32_t i = 0; i < batch->num_writes; i++) {
        uint8_t *bits = block_reserved(cache, batch->writes[i]);
        const uint8_t *mask = batch->write_masks + i * (size_t)cache->layer_bytes;
        for (uint32_t n = 0; n < cache->layer_bytes; n++)
            bits[n] = (uint8_t)(reserved ? bits[n] | mask[n] : bits[n] & ~mask[n]);
    }
}

void batch_reserve(struct batch *batch)
{
    batch->reserves = batch->table && batch->has_keys && batch->num_writes > 0;
    if (batch->reserves)
        mark_reserved(batch, true);
}

void batch_unreserve(struct batch *batch)
{
    if (batch->reserves)
        mark_reserved(batch, false);
    batch->reserves = false;
}

// Counts a batch that was entered, and unregisters `old`, if given. Cannot fail.
static void batch_register(struct batch *batch, struct batch *old)
{
    struct core_session *session = batch->session;
    batch->users = 1;
    if (old)
        HASH_DEL(session->batches, old);
    session_charge(session, batch_bytes(batch));
    if (!batch->table)
        return;
    batch->seals = batch->table->cache->seals;
    batch->table->num_users++;
}

static void take_references(struct batch *batch)
{
    hold_ref_all(batch->table, batch->blocks, batch->num_blocks);
}

static enum status check_layout(const struct engine *engine, const struct core_layout *layout,
                                struct error *error)
{
    bool blocks = layout->kv.block_size > 0;
    enum status status = blocks ? cache_check_kv(&layout->kv, error) : STATUS_OK;
    if (status == STATUS_OK && !blocks && layout->num_blocks)
        status =
            error_set(error, STATUS_INVALID,
                      "the layout has %" PRIu32 " blocks, but block_size 0: K and V are contiguous",
                      layout->num_blocks);
    if (status == STATUS_OK)
        status = engine_kv_check(engine, blocks ? ENGINE_BLOCKS : ENGINE_ROWS, &layout->kv, error);
    return status;
}

// Finds out where K and V lie and in what shape: in the cache or in the arena.
static enum status find_place(struct batch *batch, const struct core_batch_params *params,
                              struct error *error)
{
    const struct core_layout *layout = params->layout;
    if (params->cache && layout)
        return error_set(error, STATUS_INVALID,
                         "the batch names cache %" PRIu64 " and has a layout", params->cache);
    if (!params->cache && !layout)
        return error_set(error, STATUS_INVALID, "the batch names no cache and has no layout");
    if (!layout) {
        enum status status = hold_table_find(batch->session, params->cache, &batch->table, error);
        if (status == STATUS_OK)
            batch->kv = batch->table->cache->identity.kv;
        batch->place = ENGINE_POOL;
        if (status == STATUS_OK && batch->kv.block_bytes)
            status = error_set(error, STATUS_UNSUPPORTED,
                               "cache \"%.64s\" has opaque blocks (block_bytes %" PRIu32
                               "): no run reads or writes them",
                               batch->table->cache->name, batch->kv.block_bytes);
        return status;
    }
    batch->kv = layout->kv;
    batch->place = layout->kv.block_size ? ENGINE_BLOCKS : ENGINE_ROWS;
    return check_layout(batch->session->ledger->engine, layout, error);
}

// ---- making ----

enum status making_open(struct core_draft *making, struct error *error)
{
    const struct core_batch_params *params = &making->params;
    struct batch *batch = making->batch;
    struct core_session *session = making->session;
    enum status status = find_place(batch, params, error);
    if (status != STATUS_OK)
        return status;
    making->draft = (struct draft){
        .params = params,
        .session = session,
        .table = batch->table,
        .num_ids = batch->table ? cache_num_ids(batch->table->cache) : 0,
        .batch = batch,
        .block_size = batch->kv.block_size,
        .block_shift = batch->kv.block_size ? (uint32_t)__builtin_ctz(batch->kv.block_size) : 0,
        .num_blocks = params->layout ? params->layout->num_blocks : 0,
        .stamp = ++session->ledger->last_stamp,
        .error = error,
    };
    batch->num_layout_blocks = making->draft.num_blocks;
    return draft_check_sizes(&making->draft);
}

enum status making_fill(struct core_draft *making, struct error *error)
{
    making->draft.error = error;
    enum status status = draft_check_arrays(&making->draft);
    if (status == STATUS_OK)
        status = keep_params(making->batch, &making->params, error);
    return status == STATUS_OK ? make_engine_batch(&making->draft) : status;
}

// Checks the rights while the slots of `beside`, and of the step that the batch replaces, count as
// free.
static enum status check_rights(struct core_draft *making, struct error *error)
{
    struct batch *freed = making->old;
    making->draft.error = error;
    enum status status = making->params.beside
                             ? batch_find(making->session, making->params.beside, &freed, error)
                             : STATUS_OK;
    const bool reserved = freed && freed->reserves;
    if (status != STATUS_OK)
        return status;
    if (reserved)
        batch_unreserve(freed);
    status = draft_check_rights(&making->draft, making->batch->table);
    if (reserved)
        batch_reserve(freed);
    return status;
}

enum status making_close(struct core_draft *making, struct error *error)
{
    struct batch *batch = making->batch, *old = making->old;
    enum status status = check_rights(making, error);
    if (status == STATUS_OK)
        status = batch_enter(batch, old, error);
    if (status != STATUS_OK)
        return status;
    batch->again_tokens =
        (int64_t)(batch->all_keys - (uint64_t)batch->num_blocks * batch->kv.block_size);
    if (old)
        batch_unreserve(old);
    batch_register(batch, old);
    take_references(batch);
    if (!making->params.beside)
        batch_reserve(batch);
    return STATUS_OK;
}

enum status batch_make(struct core_session *session, const struct core_batch_params *params,
                       struct batch *old, struct batch **out, struct error *error)
{
    struct core_draft making = {.session = session, .old = old, .params = *params};
    making.batch = calloc(1, sizeof *making.batch);
    if (!making.batch)
        return error_set(error, STATUS_NO_MEMORY, "no host memory for the batch");
    making.batch->session = session;
    enum status status = making_open(&making, error);
    if (status == STATUS_OK)
        status = making_fill(&making, error);
    if (status == STATUS_OK)
        status = making_close(&making, error);
    draft_finish(&making.draft);
    if (status != STATUS_OK) {
        batch_discard(making.batch);
        return status;
    }
    if (old)
        batch_unref(old);
    *out = making.batch;
    return STATUS_OK;
}

enum status batch_check_number(const struct core_session *session, struct error *error)
{
    enum status status = session_usable(session, error);
    if (status != STATUS_OK)
        return status;
    if (HASH_COUNT(session->batches) >= session->ledger->params->max_batches)
        return error_set(error, STATUS_LIMIT,
                         "all %" PRIu32 " batches of the session are live (--max-batches)",
                         session->ledger->params->max_batches);
    return STATUS_OK;
}

enum status core_batch_create(struct core_session *session, const struct core_batch_params *params,
                              uint64_t *id, uint32_t *num_tokens, struct error *error)
{
    struct batch *batch;
    enum status status = batch_check_number(session, error);
    if (status == STATUS_OK)
        status = batch_make(session, params, NULL, &batch, error);
    if (status != STATUS_OK)
        return status;
    *id = batch->id;
    *num_tokens = batch->num_tokens;
    return STATUS_OK;
}

enum status batch_find(struct core_session *session, uint64_t id, struct batch **out,
                       struct error *error)
{
    HASH_FIND(hh, session->batches, &id, sizeof id, *out);
    if (*out)
        return STATUS_OK;
    error_set(error, STATUS_NOT_FOUND, "session %" PRIu64 " has no batch %" PRIu64, session->id,
              id);
    return STATUS_NOT_FOUND;
}

// ---- steps ----

void batch_succeed(struct batch *next, struct batch *old)
{
    batch_register(next, old);
    batch_reserve(next);
    next->older = old;
    old->newer = next;
    next->mentions = old->mentions;
    next->named_columns = old->named_columns;
    next->kept = old->kept;
    next->kept_arrays = old->kept_arrays;
    next->kept_lens = old->kept_lens;
    next->kept_table = old->kept_table;
    next->kept_positions = old->kept_positions;
    next->kept_whole = old->kept_whole;
    next->unwholes = old->unwholes;
    next->kept_full = old->kept_full;
    next->unwrites = old->unwrites;
    next->kept_bytes = old->kept_bytes;
    old->mentions = NULL;
    old->named_columns = NULL;
    old->kept_arrays = NULL;
    old->kept_full = NULL;
    old->kept_bytes = 0;
}

// `batch` gives up its reference to a block. True: the step `older` named the block as well and
// gets the reference. False: the reference is dropped.
static bool hand_on(struct batch *batch, struct batch *older, const struct mentioned *block)
{
    if (older && block->since <= older->step)
        return true;
    hold_unref(batch->table, block->id);
    return false;
}

// Drops from `dropped` what the older step did not name. Returns the rest, or NULL.
static struct mentions_dropped *sift_dropped(struct batch *batch, struct mentions_dropped *dropped)
{
    size_t count = dropped->count;
    dropped->count = 0;
    for (size_t i = 0; i < count; i++) {
        if (hand_on(batch, batch->older, &dropped->blocks[i]))
            dropped->blocks[dropped->count++] = dropped->blocks[i];
    }
    session_discharge(batch->session, mentions_dropped_bytes(dropped->capacity));
    dropped = mentions_dropped_fit(dropped);
    session_charge(batch->session, dropped ? mentions_dropped_bytes(dropped->capacity) : 0);
    return dropped;
}

// Moves the lists of blocks that later steps stopped naming to the step before.
static void hand_on_dropped(struct batch *batch)
{
    while (batch->dropped) {
        struct mentions_dropped *dropped = batch->dropped;
        batch->dropped = dropped->next;
        dropped = sift_dropped(batch, dropped);
        if (!dropped)
            continue;
        dropped->next = batch->older->dropped;
        batch->older->dropped = dropped;
    }
}

// The newest step hands its mentions to the step before, or frees them if it is the last one. From
// then on only their references matter: the batch is destroyed, so no further step looks blocks up.
static void hand_on_mentions(struct batch *batch)
{
    struct mentions *mentions = batch->mentions;
    for (int64_t id = mentions ? mentions_next(mentions, 0) : -1; id >= 0;
         id = mentions_next(mentions, id + 1)) {
        const struct mentioned block = mentions_get(mentions, (int32_t)id);
        if (!hand_on(batch, batch->older, &block))
            mentions_forget(mentions, (int32_t)id);
    }
    batch->mentions = NULL;
    if (mentions && batch->older) {
        batch->older->mentions = mentions;
    } else if (mentions) {
        session_discharge(batch->session, mentions_bytes(mentions));
        mentions_finish(mentions);
        free(mentions);
    }
}

// If the next step shares the engine's block table, its bytes count there from now on.
static void hand_on_table(struct batch *batch)
{
    if (!batch->newer || !batch->newer->shares_table)
        return;
    batch->newer->table_bytes = batch->table_bytes;
    batch->newer->shares_table = batch->shares_table;
    batch->table_bytes = 0;
}

static void leave_steps(struct batch *batch)
{
    hand_on_table(batch);
    hand_on_dropped(batch);
    hand_on_mentions(batch);
    if (batch->older)
        batch->older->newer = batch->newer;
    if (batch->newer)
        batch->newer->older = batch->older;
}

void batch_unref(struct batch *batch)
{
    struct hold_table *table = batch->table;
    if (--batch->users)
        return;
    leave_steps(batch);
    hold_unref_all(table, batch->blocks, batch->num_blocks);
    session_discharge(batch->session, batch_bytes(batch));
    batch_discard(batch);
    if (table)
        hold_table_unuse(table);
}

void batch_destroy(struct batch *batch)
{
    HASH_DEL(batch->session->batches, batch);
    batch_unreserve(batch);
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

enum status batch_check_seals(struct batch *batch, struct error *error)
{
    if (!batch->table || batch->seals == batch->table->cache->seals)
        return STATUS_OK;
    for (uint32_t i = 0; i < batch->num_writes; i++) {
        const struct block *block = batch->writes[i];
        if (block->sealed)
            return error_set(error, STATUS_SEALED,
                             "batch %" PRIu64 " writes block %" PRId32
                             ", which was sealed after the batch was created",
                             batch->id, block->id);
        if (block->writer != batch->session->id)
            return error_set(error, STATUS_DENIED,
                             "batch %" PRIu64 " writes block %" PRId32
                             ", which was offered after the batch was created",
                             batch->id, block->id);
    }
    batch->seals = batch->table->cache->seals;
    return STATUS_OK;
}
