// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// advance.c - a batch becomes the next step's: what it was and what changes make the parameters of the new one, which takes the old one's
// place and number. Runs that are not over keep the old one.

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "state.h"

static enum status check_length(const char *name, uint64_t has, uint64_t wanted, struct error *error)
{
    if (has == wanted)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "%s has %" PRIu64 " entries; %" PRIu64 " are needed", name, has, wanted);
}

static enum status check_lengths(const struct batch *batch, const struct core_advance *a, struct error *error)
{
    enum status status = STATUS_OK;
    if (batch->has_mask)
        return error_set(error, STATUS_INVALID, "batch %" PRIu64 " has a mask, which is one step's: create a new batch",
                         batch->id);
    if (!batch->has_keys)
        return error_set(error, STATUS_INVALID, "batch %" PRIu64 " was created without seq_lens_kv, which would grow",
                         batch->id);
    if (a->num_seq_lens_kv)
        status = check_length("seq_lens_kv", a->num_seq_lens_kv, batch->num_seqs, error);
    if (status == STATUS_OK)
        status = check_length("slot_mapping", a->num_slot_mapping, batch->has_slots ? batch->num_tokens : 0, error);
    if (status == STATUS_OK && a->num_positions)
        status = check_length("positions", a->num_positions, batch->has_positions ? batch->num_tokens : 0, error);
    return status;
}

static enum status check_entries(const struct batch *batch, const struct core_advance *a, struct error *error)
{
    uint32_t columns = batch->place == ENGINE_ROWS ? 0 : batch->kept.max_blocks;
    for (uint32_t i = 0; i < a->num_entries; i++) {
        const struct core_entry *entry = &a->entries[i];
        if (entry->seq >= batch->num_seqs || entry->column >= columns)
            return error_set(error, STATUS_OUT_OF_RANGE,
                             "entries[%" PRIu32 "] is of block_table[%" PRIu32 "][%" PRIu32 "]; the table has %" PRIu32
                             " rows of %" PRIu32,
                             i, entry->seq, entry->column, batch->num_seqs, columns);
    }
    return STATUS_OK;
}

static uint32_t num_queries(const struct core_batch_params *p, uint32_t s)
{
    return (uint32_t)(p->num_q_lens ? p->q_lens[s] : p->cu_seqlens_q[s + 1] - p->cu_seqlens_q[s]);
}

// INT32_MAX where there would be more: no table and no check lets that pass.
static int32_t grown(int32_t number, int64_t by)
{
    int64_t sum = number + by;
    return sum > INT32_MAX ? INT32_MAX : (int32_t)sum;
}

static void fill_seq_lens(const struct core_batch_params *old, const struct core_advance *a, int32_t *seq_lens)
{
    for (uint32_t s = 0; s < old->num_seqs; s++)
        seq_lens[s] = a->num_seq_lens_kv ? a->seq_lens_kv[s] : grown(old->seq_lens_kv[s], num_queries(old, s));
}

// Where a sequence's tokens lie is old->token_rows to say.
static void fill_positions(const struct core_batch_params *old, const struct core_advance *a, const int32_t *seq_lens,
                           int32_t *positions)
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

static enum status advance(struct batch *batch, const struct core_advance *a, int32_t *memory, struct error *error)
{
    struct core_batch_params next = batch->kept;
    const struct core_layout layout = {.kv = batch->kv, .num_blocks = batch->num_layout_blocks};
    int32_t *seq_lens = memory, *table = seq_lens + next.num_seqs, *positions = table + next.num_block_table;
    fill_seq_lens(&batch->kept, a, seq_lens);
    if (next.num_block_table)
        memcpy(table, next.block_table, next.num_block_table * sizeof *table);
    for (uint32_t i = 0; i < a->num_entries; i++)
        table[(size_t)a->entries[i].seq * next.max_blocks + a->entries[i].column] = a->entries[i].block;
    if (next.num_positions)
        fill_positions(&batch->kept, a, seq_lens, positions);
    next.layout = batch->table ? NULL : &layout;
    next.seq_lens_kv = seq_lens;
    next.block_table = table;
    next.positions = positions;
    next.slot_mapping = a->slot_mapping;
    next.num_slot_mapping = a->num_slot_mapping;
    return batch_make(batch->session, &next, batch, &batch, error);
}

enum status core_batch_advance(struct core_session *session, const struct core_advance *a, struct error *error)
{
    struct batch *batch;
    enum status status = session_usable(session, error);
    if (status == STATUS_OK)
        status = batch_find(session, a->batch, &batch, error);
    if (status == STATUS_OK)
        status = check_lengths(batch, a, error);
    if (status == STATUS_OK)
        status = check_entries(batch, a, error);
    if (status != STATUS_OK)
        return status;
    const struct core_batch_params *p = &batch->kept;
    uint64_t count = (uint64_t)p->num_seqs + p->num_block_table + p->num_positions + 1;
    int32_t *memory = malloc(count * sizeof *memory);
    if (!memory)
        return error_set(error, STATUS_NO_MEMORY, "no host memory for the next step of batch %" PRIu64, batch->id);
    status = advance(batch, a, memory, error);
    free(memory);
    return status;
}
