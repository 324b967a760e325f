// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// advance.c - core_batch_advance(): makes the next step of a batch from what was kept of it and
// from the changes. The new step takes the batch's id and place; runs that are not over keep the
// old one. In a cache, only what changes is checked (draft_step.h). A batch with K and V in the
// arena is made and checked from the start. Dispatcher thread only.

#include "advance.h"

#include "core/pool/ledger.h"
#include "core/pool/session.h"
#include "draft.h"
#include "draft_blocks.h"
#include "draft_step.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum status advance_check_lengths(const struct batch *batch, const struct core_advance *a,
                                  struct error *error)
{
    enum status status = STATUS_OK;
    if (batch->has_mask)
        return error_set(error, STATUS_INVALID,
                         "batch %" PRIu64 " has a mask, so it cannot advance: create a new batch",
                         batch->id);
    if (!batch->has_keys)
        return error_set(error, STATUS_INVALID,
                         "batch %" PRIu64 " was created without seq_lens_kv, so it cannot advance",
                         batch->id);
    if (a->num_seq_lens_kv)
        status = draft_check_length("seq_lens_kv", a->num_seq_lens_kv, batch->num_seqs, error);
    if (status == STATUS_OK)
        status = draft_check_length("slot_mapping", a->num_slot_mapping,
                                    batch->has_slots ? batch->num_tokens : 0, error);
    if (status == STATUS_OK && a->num_positions)
        status = draft_check_length("positions", a->num_positions,
                                    batch->has_positions ? batch->num_tokens : 0, error);
    return status;
}

static enum status check_entries(const struct batch *batch, const struct core_advance *a,
                                 struct error *error)
{
    uint32_t columns = batch->place == ENGINE_ROWS ? 0 : batch->kept.max_blocks;
    if (a->num_entries > batch->kept.num_block_table)
        return error_set(error, STATUS_INVALID,
                         "%" PRIu32 " entries change; the block table has %" PRIu64, a->num_entries,
                         batch->kept.num_block_table);
    for (uint32_t i = 0; i < a->num_entries; i++) {
        const struct core_entry *entry = &a->entries[i];
        if (entry->seq >= batch->num_seqs || entry->column >= columns)
            return error_set(error, STATUS_OUT_OF_RANGE,
                             "entries[%" PRIu32 "] sets block_table[%" PRIu32 "][%" PRIu32
                             "]; the table has %" PRIu32 " rows of %" PRIu32 " columns",
                             i, entry->seq, entry->column, batch->num_seqs, columns);
    }
    return STATUS_OK;
}

static uint32_t num_queries(const struct core_batch_params *p, uint32_t s)
{
    return (uint32_t)(p->num_q_lens ? p->q_lens[s] : p->cu_seqlens_q[s + 1] - p->cu_seqlens_q[s]);
}

// number + by, or INT32_MAX if the sum is larger; the checks that follow refuse that length.
static int32_t grown(int32_t number, int64_t by)
{
    int64_t sum = number + by;
    return sum > INT32_MAX ? INT32_MAX : (int32_t)sum;
}

static void fill_seq_lens(const struct core_batch_params *old, const struct core_advance *a,
                          int32_t *seq_lens)
{
    for (uint32_t s = 0; s < old->num_seqs; s++)
        seq_lens[s] = a->num_seq_lens_kv ? a->seq_lens_kv[s]
                                         : grown(old->seq_lens_kv[s], num_queries(old, s));
}

// `positions` is indexed by row, and token_rows says which rows are a sequence's.
static void fill_positions(const struct core_batch_params *old, const struct core_advance *a,
                           const int32_t *seq_lens, int32_t *positions)
{
    if (a->num_positions) {
        memcpy(positions, a->positions, a->num_positions * sizeof *positions);
        return;
    }
    for (uint32_t s = 0; s < old->num_seqs; s++) {
        int64_t by = (int64_t)seq_lens[s] - old->seq_lens_kv[s];
        for (int32_t t = old->cu_seqlens_q[s]; t < old->cu_seqlens_q[s + 1]; t++) {
            int32_t row = old->num_token_rows ? old->token_rows[t] : t;
            positions[row] = grown(old->positions[row], by);
        }
    }
}

// ---- K and V in the arena: a new batch ----

static void fill_table(const struct batch *batch, const struct core_advance *a, int32_t *table)
{
    const struct core_batch_params *p = &batch->kept;
    if (p->num_block_table)
        memcpy(table, p->block_table, p->num_block_table * sizeof *table);
    for (uint32_t i = 0; i < a->num_entries; i++)
        table[(size_t)a->entries[i].seq * p->max_blocks + a->entries[i].column] =
            a->entries[i].block;
}

enum status advance_fill_arrays(const struct batch *old, const struct core_advance *a,
                                struct core_batch_params *params, int32_t **arrays,
                                struct error *error)
{
    const struct core_batch_params *kept = &old->kept;
    const uint64_t count =
        (uint64_t)kept->num_seqs + kept->num_block_table + kept->num_positions + 1;
    enum status status = check_entries(old, a, error);
    if (status != STATUS_OK)
        return status;
    int32_t *lens = *arrays = malloc(count * sizeof *lens);
    if (!lens)
        return error_set(error, STATUS_NO_MEMORY,
                         "no host memory for the next step of batch %" PRIu64, old->id);
    int32_t *table = lens + kept->num_seqs, *positions = table + kept->num_block_table;
    fill_seq_lens(kept, a, lens);
    fill_table(old, a, table);
    if (kept->num_positions)
        fill_positions(kept, a, lens, positions);
    *params = *kept;
    params->seq_lens_kv = lens;
    params->block_table = table;
    params->positions = positions;
    params->slot_mapping = a->slot_mapping;
    params->num_slot_mapping = a->num_slot_mapping;
    return STATUS_OK;
}

static enum status advance_local(struct batch *batch, const struct core_advance *a,
                                 struct error *error)
{
    const struct core_layout layout = {.kv = batch->kv, .num_blocks = batch->num_layout_blocks};
    struct core_batch_params next;
    const uint64_t count =
        (uint64_t)batch->num_seqs + batch->kept.num_block_table + batch->kept.num_positions + 1;
    int32_t *arrays = NULL;
    enum status status = session_check_batch_memory(batch->session, count * sizeof *arrays,
                                                    "arrays of the next step", error);
    if (status == STATUS_OK)
        status = advance_fill_arrays(batch, a, &next, &arrays, error);
    if (status == STATUS_OK) {
        next.layout = &layout;
        status = batch_make(batch->session, &next, batch, &batch, error);
    }
    free(arrays);
    return status;
}

// ---- in a cache: at the first step, mentions are counted ----

// Counts the mentions of one row and returns its named columns. With queries these are all columns
// behind the entries of -1 that it begins with. Without queries they end at the first block that
// the session may not read.
static struct named_columns count_row(const struct batch *batch, struct mentions *mentions,
                                      uint32_t s)
{
    const struct core_batch_params *p = &batch->kept;
    const int32_t *row = batch->kept_table + (size_t)s * p->max_blocks;
    uint32_t used = ((uint32_t)p->seq_lens_kv[s] + batch->kv.block_size - 1) / batch->kv.block_size;
    bool is_query = num_queries(p, s) > 0;
    struct named_columns columns = {.from = is_query ? draft_count_missing(row, used) : 0,
                                    .is_query = is_query};
    for (columns.to = columns.from; columns.to < used && mentions_count(mentions, row[columns.to]);
         columns.to++)
        ;
    return columns;
}

// Blocks that may be mentioned again.
static uint64_t most_again(const struct batch *batch)
{
    return batch->num_again < batch->num_blocks ? batch->num_again : batch->num_blocks;
}

static uint64_t named_bytes(const struct batch *batch)
{
    return (uint64_t)batch->num_seqs * sizeof *batch->named_columns;
}

enum status steps_prepare(struct batch *batch, const struct draft_write *writes,
                          struct error *error)
{
    struct mentions *mentions = calloc(1, sizeof *mentions);
    batch->named_columns = calloc((size_t)batch->num_seqs + 1, sizeof *batch->named_columns);
    if (!mentions || !batch->named_columns ||
        !mentions_init(mentions, batch->table, batch->blocks, batch->num_blocks,
                       most_again(batch))) {
        free(mentions);
        free(batch->named_columns);
        batch->named_columns = NULL;
        return error_set(error, STATUS_NO_MEMORY, "no host memory for steps of a batch");
    }
    for (uint32_t s = 0; s < batch->num_seqs; s++)
        batch->named_columns[s] = count_row(batch, mentions, s);
    for (uint32_t i = 0; i < batch->num_writes; i++)
        mentions_count(mentions, writes ? writes[i].id : batch->writes[i]->id);
    mentions_counted(mentions);
    batch->mentions = mentions;
    return STATUS_OK;
}

uint64_t steps_bytes(const struct batch *batch)
{
    return batch->mentions ? mentions_bytes(batch->mentions) + named_bytes(batch) : 0;
}

void steps_begin(struct batch *batch)
{
    if (!batch->mentions)
        return;
    ledger_free(batch->session->ledger, batch->blocks);
    batch->blocks = NULL;
    batch->num_blocks = batch->block_capacity = 0;
    batch->kept_bytes += named_bytes(batch);
    session_charge(batch->session, steps_bytes(batch));
}

// No observable state changes, so what is begun stays if the step then fails.
static enum status begin_steps(struct batch *batch, struct error *error)
{
    const struct mentions none = {0};
    if (batch->named_columns)
        return STATUS_OK;
    const uint64_t bytes =
        mentions_bytes_for(&none, batch->blocks, batch->num_blocks, most_again(batch)) +
        named_bytes(batch);
    enum status status =
        session_check_batch_memory(batch->session, bytes, "names of blocks", error);
    if (status == STATUS_OK)
        status = steps_prepare(batch, NULL, error);
    if (status == STATUS_OK)
        steps_begin(batch);
    return status;
}

// ---- the step itself ----

struct advance {
    const struct core_advance *params;
    struct batch *old, *next;            // `next` is owned until take_place()
    int32_t *lens, *positions;           // of the next step; owned, as all pointers below
    struct draft_change *changes;        // [params->num_entries], sorted by place
    struct engine_entry *entries;        // the last change of each place
    struct named_columns *named_columns; // [num_seqs] of the next step
    struct mentions_dropped *dropped;    // with room for all drops; NULL: there are none
    struct draft_step step;
    struct error *error; // the caller's
};

static int by_place(const void *left, const void *right)
{
    const struct draft_change *a = left, *b = right;
    if (a->seq != b->seq)
        return a->seq < b->seq ? -1 : 1;
    if (a->column != b->column)
        return a->column < b->column ? -1 : 1;
    return a->index < b->index ? -1 : a->index > b->index;
}

static int32_t *place_of(const struct batch *batch, const struct core_entry *entry)
{
    return batch->kept_table + (size_t)entry->seq * batch->kept.max_blocks + entry->column;
}

static void change_table(struct advance *a)
{
    for (uint32_t i = 0; i < a->params->num_entries; i++) {
        const struct core_entry *entry = &a->params->entries[i];
        int32_t *place = place_of(a->old, entry);
        a->changes[i] = (struct draft_change){entry->seq, entry->column, i, *place};
        *place = entry->block;
        if (entry->block >= 0)
            batch_forget_columns(a->old, entry->seq, entry->column);
    }
    if (a->params->num_entries)
        qsort(a->changes, a->params->num_entries, sizeof *a->changes, by_place);
}

// Backwards, so that a place with several changes gets the value from before the first one.
static void restore_table(struct advance *a)
{
    for (uint32_t i = a->params->num_entries; i-- > 0;)
        *place_of(a->old, &a->params->entries[a->changes[i].index]) = a->changes[i].was;
}

// Checks the bytes that allocate() takes for the time of the call.
static enum status check_scratch(const struct advance *a)
{
    uint64_t seqs = a->old->num_seqs, entries = a->params->num_entries;
    uint64_t bytes = seqs * (sizeof *a->lens + sizeof *a->named_columns) +
                     a->old->kept.num_positions * sizeof *a->positions +
                     entries * (sizeof *a->changes + sizeof *a->entries);
    return session_check_batch_memory(a->old->session, bytes, "arrays of the next step", a->error);
}

static bool allocate(struct advance *a)
{
    uint64_t seqs = a->old->num_seqs, entries = a->params->num_entries;
    a->lens = calloc(seqs + 1, sizeof *a->lens);
    a->positions = calloc((uint64_t)a->old->kept.num_positions + 1, sizeof *a->positions);
    a->changes = calloc(entries + 1, sizeof *a->changes);
    a->entries = calloc(entries + 1, sizeof *a->entries);
    a->named_columns = calloc(seqs + 1, sizeof *a->named_columns);
    a->next = calloc(1, sizeof *a->next);
    if (a->next)
        a->next->session = a->old->session;
    return a->lens && a->positions && a->changes && a->entries && a->named_columns && a->next;
}

// The next step, with what does not change.
static struct batch next_of(const struct batch *old)
{
    return (struct batch){
        .id = old->id,
        .session = old->session,
        .table = old->table,
        .place = old->place,
        .kv = old->kv,
        .has_keys = old->has_keys,
        .has_slots = old->has_slots,
        .has_positions = old->has_positions,
        .has_token_rows = old->has_token_rows,
        .num_seqs = old->num_seqs,
        .num_tokens = old->num_tokens,
        .max_rows = old->max_rows,
        .again_tokens = old->again_tokens,
        .step = old->step + 1,
    };
}

static enum status check(struct advance *a)
{
    struct batch *old = a->old;
    struct core_batch_params params = old->kept;
    params.seq_lens_kv = a->lens;
    params.block_table = old->kept_table;
    params.positions = a->positions;
    params.slot_mapping = a->params->slot_mapping;
    params.num_slot_mapping = a->params->num_slot_mapping;
    struct draft draft = {
        .params = &params,
        .session = old->session,
        .table = old->table,
        .num_ids = cache_num_ids(old->table->cache),
        .batch = a->next,
        .block_size = old->kv.block_size,
        .block_shift = (uint32_t)__builtin_ctz(old->kv.block_size),
        .stamp = ++old->session->ledger->last_stamp,
        .error = a->error,
    };
    a->step.draft = &draft;
    a->step.old = old;
    a->step.changes = a->changes;
    a->step.num_changes = a->params->num_entries;
    a->step.named_columns = a->named_columns;
    const enum status status = draft_check_step(&a->step);
    draft_finish(&draft);
    return status;
}

static uint64_t table_bytes(const struct batch *batch)
{
    return batch->kept.num_block_table * sizeof(int32_t);
}

// Bytes of a block table that the step may need for itself. Replacing an entry that unfinished runs
// can still read copies the table first. This is an estimate: the engine knows exactly which
// entries earlier steps can read. A copy that was not foreseen counts from then on. So a session
// exceeds its limit by one table at most, because it gets nothing more while it does.
static uint64_t most_table_bytes(const struct advance *a)
{
    const struct batch *old = a->old;
    uint32_t size = old->kv.block_size;
    if (old->users == 1 && !old->older)
        return 0;
    for (uint32_t i = 0; i < a->params->num_entries; i++) {
        const struct core_entry *entry = &a->params->entries[i];
        if (entry->block >= 0 &&
            entry->column < ((uint32_t)old->kept_lens[entry->seq] + size - 1) / size)
            return table_bytes(old);
    }
    return 0;
}

// Checks the session's limit and reserves memory, so that exchange_mentions() cannot fail.
static enum status reserve(struct advance *a)
{
    struct core_session *session = a->old->session;
    struct mentions *mentions = a->old->mentions;
    const int32_t *adds = a->step.adds.blocks;
    size_t num_adds = a->step.adds.count, num_drops = a->step.drops.count;
    uint64_t before = mentions_bytes(mentions),
             more = mentions_bytes_for(mentions, adds, num_adds, num_adds) - before;
    more +=
        a->next->bytes + most_table_bytes(a) + (num_drops ? mentions_dropped_bytes(num_drops) : 0);
    enum status status =
        session_check_batch_memory(session, more, "metadata of the next step", a->error);
    if (status != STATUS_OK)
        return status;
    bool room = mentions_reserve(mentions, adds, num_adds, num_adds);
    session_charge(session, mentions_bytes(mentions) - before);
    a->dropped = num_drops ? mentions_dropped_create(num_drops) : NULL;
    room = room && (a->dropped || !num_drops);
    return room ? STATUS_OK
                : error_set(a->error, STATUS_NO_MEMORY,
                            "no host memory for the next step of batch %" PRIu64, a->old->id);
}

// Lists the last change of each place for the engine. Returns how many there are.
static uint32_t list_entries(struct advance *a)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < a->params->num_entries; i++) {
        const struct draft_change *change = &a->changes[i], *next = change + 1;
        bool last = i + 1 == a->params->num_entries || next->seq != change->seq ||
                    next->column != change->column;
        if (last)
            a->entries[count++] = (struct engine_entry){change->seq, change->column,
                                                        a->params->entries[change->index].block};
    }
    return count;
}

// The last call that can fail. The engine may change its block table in place, and that cannot be
// undone. So batch_enter() comes before it.
static enum status advance_engine(struct advance *a)
{
    enum status status = batch_enter(a->next, a->old, a->error);
    if (status != STATUS_OK)
        return status;
    const struct engine_advance params = {
        .seq_lens_kv = a->lens,
        .entries = a->entries,
        .num_entries = list_entries(a),
        .block_table = a->old->kept_table,
        .slot_mapping = a->old->has_slots ? a->params->slot_mapping : NULL,
        .positions = a->old->has_positions ? a->positions : NULL,
        .is_used = a->old->users > 1,
    };
    status = engine_batch_advance(a->old->engine, &params, &a->next->engine, a->error);
    if (status != STATUS_OK) {
        batch_withdraw(a->next);
        return status;
    }
    a->next->shares_table = engine_batch_shares_table(a->old->engine, a->next->engine);
    a->next->table_bytes = a->next->shares_table ? 0 : table_bytes(a->old);
    return STATUS_OK;
}

// Cannot fail. Adds come first, so that a block that is added and dropped keeps its reference.
static void exchange_mentions(struct advance *a)
{
    struct batch *old = a->old;
    struct mentions *mentions = a->next->mentions;
    for (size_t i = 0; i < a->step.adds.count; i++)
        mentions_add(mentions, a->step.adds.blocks[i], a->next->step);
    for (size_t i = 0; i < a->step.drops.count; i++)
        mentions_drop(mentions, a->step.drops.blocks[i], a->dropped);
    struct mentions_dropped *dropped = a->dropped ? mentions_dropped_fit(a->dropped) : NULL;
    a->dropped = NULL;
    if (!dropped)
        return;
    dropped->next = old->dropped;
    old->dropped = dropped;
    session_charge(old->session, mentions_dropped_bytes(dropped->capacity));
}

// What lies behind the new end of a sequence is not referenced, so its blocks may change.
static void forget_ends(const struct batch *next, const int32_t *lens)
{
    const uint32_t shift = (uint32_t)__builtin_ctz(next->kv.block_size);
    for (uint32_t s = 0; s < next->num_seqs; s++)
        if (lens[s] < next->kept_lens[s])
            batch_forget_columns(next, s, ((uint32_t)lens[s] + next->kv.block_size - 1) >> shift);
}

static void take_place(struct advance *a)
{
    struct batch *old = a->old, *next = a->next;
    batch_succeed(next, old);
    exchange_mentions(a);
    if (a->params->num_seq_lens_kv && batch_has_whole(next))
        forget_ends(next, a->lens);
    memcpy(next->kept_lens, a->lens, next->num_seqs * sizeof *a->lens);
    if (next->kept.num_positions)
        memcpy(next->kept_positions, a->positions, next->kept.num_positions * sizeof *a->positions);
    memcpy(next->named_columns, a->named_columns, next->num_seqs * sizeof *a->named_columns);
    a->next = NULL;
    batch_unref(old);
}

static void finish(struct advance *a)
{
    free(a->dropped);
    free(a->lens);
    free(a->positions);
    free(a->changes);
    free(a->entries);
    free(a->named_columns);
    free(a->step.adds.blocks);
    free(a->step.drops.blocks);
    batch_discard(a->next);
}

static enum status advance_pool(struct batch *batch, const struct core_advance *params,
                                struct error *error)
{
    struct advance a = {.params = params, .old = batch, .error = error};
    enum status status = begin_steps(batch, error);
    if (status == STATUS_OK)
        status = check_scratch(&a);
    if (status != STATUS_OK)
        return status;
    if (!allocate(&a)) {
        finish(&a);
        return error_set(error, STATUS_NO_MEMORY,
                         "no host memory for the next step of batch %" PRIu64, batch->id);
    }
    *a.next = next_of(batch);
    fill_seq_lens(&batch->kept, params, a.lens);
    if (batch->kept.num_positions)
        fill_positions(&batch->kept, params, a.lens, a.positions);
    bool reserved = batch->reserves;
    batch_unreserve(batch); // the next step may write the same slots
    change_table(&a);
    status = check(&a);
    if (status == STATUS_OK)
        status = reserve(&a);
    if (status == STATUS_OK)
        status = advance_engine(&a);
    if (status == STATUS_OK)
        take_place(&a);
    else
        restore_table(&a);
    if (status != STATUS_OK && reserved)
        batch_reserve(batch);
    finish(&a);
    return status;
}

enum status core_batch_advance(struct core_session *session, const struct core_advance *params,
                               struct error *error)
{
    struct batch *batch;
    enum status status = session_usable(session, error);
    if (status == STATUS_OK)
        status = batch_find(session, params->batch, &batch, error);
    if (status == STATUS_OK)
        status = advance_check_lengths(batch, params, error);
    if (status == STATUS_OK && batch->table)
        status = check_entries(batch, params, error);
    if (status == STATUS_OK)
        status =
            batch->table ? advance_pool(batch, params, error) : advance_local(batch, params, error);
    if (status == STATUS_OK)
        engine_expect(session->ledger->engine); // runs of the step follow
    return status;
}

// Whether the engine can take the step without a new table or a search through it.
static bool is_light(const struct batch *batch, const struct core_advance *a)
{
    int32_t *lens = calloc((size_t)batch->num_seqs + 1, sizeof *lens);
    struct engine_entry *entries = calloc((size_t)a->num_entries + 1, sizeof *entries);
    bool light = false;
    if (lens && entries) {
        fill_seq_lens(&batch->kept, a, lens);
        for (uint32_t i = 0; i < a->num_entries; i++)
            entries[i] =
                (struct engine_entry){a->entries[i].seq, a->entries[i].column, a->entries[i].block};
        const struct engine_advance step = {.seq_lens_kv = lens,
                                            .entries = entries,
                                            .num_entries = a->num_entries,
                                            .is_used = batch->users > 1};
        light = engine_batch_is_light(batch->engine, &step);
    }
    free(lens);
    free(entries);
    return light;
}

bool core_advance_is_large(struct core_session *session, const struct core_advance *a,
                           uint64_t bytes)
{
    struct batch *batch;
    struct error error;
    if (batch_find(session, a->batch, &batch, &error) != STATUS_OK ||
        advance_check_lengths(batch, a, &error) != STATUS_OK)
        return false;
    const uint64_t table = table_bytes(batch),
                   step = ((uint64_t)batch->num_seqs + batch->kept.num_positions +
                           2 * (uint64_t)a->num_slot_mapping) *
                          sizeof(int32_t);
    if ((step < bytes && table < bytes) || check_entries(batch, a, &error) != STATUS_OK)
        return false;
    if (step >= bytes)
        return true;
    return !batch->table || !batch->named_columns || !is_light(batch, a);
}
