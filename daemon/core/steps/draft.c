// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// draft.c - checks the lengths and numbers of one model step's metadata, and adds up the work that
// it gives the GPU. See draft.h. It changes only the new batch and scratch marks, so a failed check
// leaves no trace. Dispatcher thread only.

#include "draft.h"

#include "core/pool/session.h"
#include "draft_blocks.h"

#include <inttypes.h>
#include <stdlib.h>

enum status draft_no_memory(const struct draft *d)
{
    return error_set(d->error, STATUS_NO_MEMORY, "no host memory for the batch");
}

uint32_t draft_rows(const struct draft *d, uint32_t s)
{
    return (uint32_t)(d->params->cu_seqlens_q[s + 1] - d->params->cu_seqlens_q[s]);
}

uint32_t draft_q_len(const struct draft *d, uint32_t s)
{
    return d->params->num_q_lens ? (uint32_t)d->params->q_lens[s] : draft_rows(d, s);
}

uint32_t draft_row(const struct draft *d, uint32_t t)
{
    return d->params->num_token_rows ? (uint32_t)d->params->token_rows[t] : t;
}

// ---- lengths ----

enum status draft_check_length(const char *name, uint64_t has, uint64_t wanted, struct error *error)
{
    if (has == wanted)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "%s has %" PRIu64 " entries; %" PRIu64 " are needed",
                     name, has, wanted);
}

// Without sequences a batch can only be for writes: with slots and without keys.
static enum status check_purpose(const struct draft *d)
{
    const struct core_batch_params *p = d->params;
    if (p->num_seqs == 0 && !(p->num_slot_mapping && !p->num_seq_lens_kv))
        return error_set(d->error, STATUS_INVALID,
                         "num_seqs is 0; only a batch with a slot_mapping and without seq_lens_kv "
                         "may have none");
    if (p->num_slot_mapping > INT32_MAX)
        return error_set(d->error, STATUS_INVALID,
                         "slot_mapping has %" PRIu32 " entries; at most %d are allowed",
                         p->num_slot_mapping, INT32_MAX);
    return STATUS_OK;
}

static enum status check_place(const struct draft *d)
{
    const struct core_batch_params *p = d->params;
    const char *given = NULL;
    if (d->batch->place != ENGINE_ROWS && p->num_kv_starts)
        return error_set(d->error, STATUS_INVALID, "kv_starts is given, but K and V lie in blocks");
    if (d->batch->place == ENGINE_ROWS)
        given = p->max_blocks ? "max_blocks" : p->num_block_table ? "block_table" : NULL;
    if (d->batch->place == ENGINE_ROWS && p->num_slot_mapping)
        given = "slot_mapping";
    if (given)
        return error_set(d->error, STATUS_INVALID,
                         "%s is given, but K and V are contiguous (block_size 0)", given);
    return STATUS_OK;
}

static enum status check_lengths(const struct draft *d)
{
    const struct core_batch_params *p = d->params;
    bool only_writes = !p->num_seq_lens_kv && p->num_slot_mapping;
    const struct {
        const char *name;
        uint64_t has, wanted;
        bool may_be_absent;
    } lengths[] = {
        {"cu_seqlens_q", p->num_cu_seqlens_q, (uint64_t)p->num_seqs + 1, p->num_seqs == 0},
        {"seq_lens_kv", p->num_seq_lens_kv, p->num_seqs, only_writes},
        {"block_table", p->num_block_table, (uint64_t)p->num_seqs * p->max_blocks, false},
        {"q_lens", p->num_q_lens, p->num_seqs, true},
        {"kv_starts", p->num_kv_starts, p->num_seqs, true},
    };
    enum status status = check_purpose(d);
    if (status == STATUS_OK)
        status = check_place(d);
    for (size_t i = 0; status == STATUS_OK && i < sizeof lengths / sizeof *lengths; i++) {
        if (lengths[i].has || !lengths[i].may_be_absent)
            status =
                draft_check_length(lengths[i].name, lengths[i].has, lengths[i].wanted, d->error);
    }
    return status;
}

// Adds up the bytes of the engine's arrays, and of what is kept for the next step. A later step
// (step > 0) takes over what the one before kept, and usually shares its block table.
static enum status check_memory(const struct draft *d)
{
    const struct core_batch_params *p = d->params;
    struct batch *batch = d->batch;
    uint64_t words = (uint64_t)p->num_cu_seqlens_q + p->num_seq_lens_kv + p->num_positions +
                     p->num_q_lens + p->num_token_rows + p->num_kv_starts;
    uint64_t table = p->num_block_table * sizeof(int32_t), bytes = words * sizeof(int32_t), sum;
    if (batch->step == 0) {
        batch->table_bytes = table;
        batch->kept_bytes = bytes + table;
        if (batch_has_whole(batch))
            batch->kept_bytes += p->num_seqs * sizeof *batch->kept_whole;
    }
    bytes += p->num_slot_mapping * sizeof(int64_t);
    if (__builtin_add_overflow(bytes, p->mask_bytes, &batch->bytes) ||
        __builtin_add_overflow(batch->bytes, batch->table_bytes + batch->kept_bytes, &sum))
        sum = UINT64_MAX;
    return session_check_batch_memory(d->session, sum, "metadata", d->error);
}

// ---- tokens ----

static enum status check_cu_seqlens(const struct draft *d)
{
    const int32_t *cu = d->params->cu_seqlens_q;
    if (d->params->num_seqs && cu[0] != 0)
        return error_set(d->error, STATUS_INVALID, "cu_seqlens_q[0] is %" PRId32 ", not 0", cu[0]);
    for (uint32_t s = 0; s < d->params->num_seqs; s++) {
        if (cu[s + 1] < cu[s])
            return error_set(d->error, STATUS_INVALID,
                             "cu_seqlens_q falls from [%" PRIu32 "] = %" PRId32 " to [%" PRIu32
                             "] = %" PRId32,
                             s, cu[s], s + 1, cu[s + 1]);
        if (draft_rows(d, s) > d->batch->max_rows)
            d->batch->max_rows = draft_rows(d, s);
    }
    d->batch->num_tokens =
        d->params->num_seqs ? (uint32_t)cu[d->params->num_seqs] : d->params->num_slot_mapping;
    return STATUS_OK;
}

// If the arena cannot hold even the smallest output, one query head a KV head in f16, then no run
// could use the batch. A batch that only writes has no output, and the length of slot_mapping
// bounds its tokens.
static enum status check_tokens(const struct draft *d)
{
    const struct core_batch_params *p = d->params;
    const struct engine_kv *kv = &d->batch->kv;
    uint64_t host = d->session->arena_size, device = d->session->device_arena_size;
    uint64_t size = host > device ? host : device, tokens = d->batch->num_tokens;
    unsigned __int128 least = (unsigned __int128)tokens * kv->num_kv_heads * kv->head_dim_v * 2;
    if (d->batch->has_keys && least > size)
        return error_set(d->error, STATUS_OUT_OF_RANGE,
                         "the session's arena of %" PRIu64
                         " bytes cannot hold the output of %" PRIu64 " tokens",
                         size, tokens);
    const struct {
        const char *name;
        uint64_t has;
    } arrays[] = {
        {"slot_mapping", p->num_slot_mapping},
        {"positions", p->num_positions},
        {"token_rows", p->num_token_rows},
    };
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < sizeof arrays / sizeof *arrays; i++) {
        if (arrays[i].has)
            status = draft_check_length(arrays[i].name, arrays[i].has, tokens, d->error);
    }
    return status;
}

static enum status check_positions(const struct draft *d)
{
    const struct core_batch_params *p = d->params;
    for (uint32_t t = 0; t < p->num_positions; t++) {
        if (p->positions[t] < 0)
            return error_set(d->error, STATUS_OUT_OF_RANGE,
                             "positions[%" PRIu32 "] = %" PRId32 " is negative", t,
                             p->positions[t]);
    }
    return STATUS_OK;
}

static enum status row_error(const struct draft *d, uint32_t t, int32_t row)
{
    if (row < 0 || (uint32_t)row >= d->batch->num_tokens)
        return error_set(d->error, STATUS_OUT_OF_RANGE,
                         "token_rows[%" PRIu32 "] = %" PRId32 " is outside the %" PRIu32 " rows", t,
                         row, d->batch->num_tokens);
    return error_set(d->error, STATUS_INVALID,
                     "token_rows[%" PRIu32 "] = %" PRId32 " occurs twice; each row has one token",
                     t, row);
}

static enum status check_token_rows(const struct draft *d)
{
    const struct core_batch_params *p = d->params;
    if (!p->num_token_rows)
        return STATUS_OK;
    if (p->num_q_lens)
        return error_set(d->error, STATUS_INVALID,
                         "token_rows and q_lens are given; they exclude each other");
    uint8_t *seen = calloc(((size_t)p->num_token_rows + 7) / 8, 1);
    if (!seen)
        return draft_no_memory(d);
    enum status status = STATUS_OK;
    for (uint32_t t = 0; status == STATUS_OK && t < p->num_token_rows; t++) {
        int32_t row = p->token_rows[t];
        if (row < 0 || (uint32_t)row >= p->num_token_rows || seen[row / 8] >> (row % 8) & 1)
            status = row_error(d, t, row);
        else
            seen[row / 8] |= (uint8_t)(1u << (row % 8));
    }
    free(seen);
    return status;
}

// ---- sequences ----

static enum status check_q_len(const struct draft *d, uint32_t s)
{
    const struct core_batch_params *p = d->params;
    if (p->num_q_lens && (p->q_lens[s] < 0 || (uint32_t)p->q_lens[s] > draft_rows(d, s)))
        return error_set(d->error, STATUS_OUT_OF_RANGE,
                         "q_lens[%" PRIu32 "] = %" PRId32
                         ", but cu_seqlens_q gives that sequence %" PRIu32 " rows",
                         s, p->q_lens[s], draft_rows(d, s));
    if (p->max_seqlen_q && draft_q_len(d, s) > p->max_seqlen_q)
        return error_set(d->error, STATUS_OUT_OF_RANGE,
                         "sequence %" PRIu32 " has q_len %" PRIu32
                         ", which exceeds max_seqlen_q %" PRIu32,
                         s, draft_q_len(d, s), p->max_seqlen_q);
    return STATUS_OK;
}

enum status draft_check_seq_len(const struct draft *d, uint32_t s)
{
    const struct core_batch_params *p = d->params;
    int32_t seq_len = p->seq_lens_kv[s];
    uint64_t room = (uint64_t)p->max_blocks * d->block_size;
    if (seq_len < 0)
        return error_set(d->error, STATUS_INVALID,
                         "seq_lens_kv[%" PRIu32 "] = %" PRId32 " is negative", s, seq_len);
    if (d->block_size && (uint64_t)seq_len > room)
        return error_set(d->error, STATUS_OUT_OF_RANGE,
                         "seq_lens_kv[%" PRIu32 "] = %" PRId32 " exceeds the %" PRIu64
                         " tokens of a table of %" PRIu32 " blocks",
                         s, seq_len, room, p->max_blocks);
    if (p->max_context_len && (uint32_t)seq_len > p->max_context_len)
        return error_set(d->error, STATUS_OUT_OF_RANGE,
                         "seq_lens_kv[%" PRIu32 "] = %" PRId32 " exceeds max_context_len %" PRIu32,
                         s, seq_len, p->max_context_len);
    return STATUS_OK;
}

static enum status check_kv_start(const struct draft *d, uint32_t s)
{
    const struct core_batch_params *p = d->params;
    if (!p->num_kv_starts)
        return STATUS_OK;
    if (p->kv_starts[s] < 0)
        return error_set(d->error, STATUS_OUT_OF_RANGE,
                         "kv_starts[%" PRIu32 "] = %" PRId32 " is negative", s, p->kv_starts[s]);
    uint64_t end = (uint64_t)p->kv_starts[s] + (uint64_t)p->seq_lens_kv[s];
    if (p->seq_lens_kv[s] && end > d->batch->end_row)
        d->batch->end_row = end;
    return STATUS_OK;
}

static enum status check_writes(const struct draft *d, uint32_t s)
{
    const struct core_batch_params *p = d->params;
    if (!p->num_slot_mapping || draft_q_len(d, s) <= (uint32_t)p->seq_lens_kv[s])
        return STATUS_OK;
    for (uint32_t t = (uint32_t)p->cu_seqlens_q[s]; t < (uint32_t)p->cu_seqlens_q[s + 1]; t++) {
        if (p->slot_mapping[draft_row(d, t)] != -1)
            return error_set(d->error, STATUS_INVALID,
                             "sequence %" PRIu32 " writes K/V with q_len %" PRIu32
                             " above its seq_len %" PRId32,
                             s, draft_q_len(d, s), p->seq_lens_kv[s]);
    }
    return STATUS_OK;
}

static void add_up(uint64_t *sum, uint64_t more)
{
    if (__builtin_add_overflow(*sum, more, sum))
        *sum = UINT64_MAX;
}

// Rows of K and V in the arena that a run may read, seen by a query or not. 0 in a cache.
static uint64_t local_keys(const struct draft *d, uint64_t seq_len)
{
    if (d->batch->place == ENGINE_POOL)
        return 0;
    uint64_t block_size = d->block_size ? d->block_size : 1;
    return (seq_len + block_size - 1) / block_size * block_size;
}

// Adds the sequence's work to the sums of the batch. Causal runs are aligned bottom-right: the last
// query sees seq_len keys, and each earlier one sees one key less, down to none. So n = min(q_len,
// seq_len) queries see keys, and there are n * seq_len - n * (n - 1) / 2 pairs.
static void weigh(const struct draft *d, uint32_t s)
{
    struct batch *batch = d->batch;
    uint64_t q_len = draft_q_len(d, s), seq_len = (uint64_t)d->params->seq_lens_kv[s];
    uint64_t see = q_len < seq_len ? q_len : seq_len; // n
    add_up(&batch->attended, q_len * seq_len);
    add_up(&batch->causal, see * seq_len - (see ? see * (see - 1) / 2 : 0));
    add_up(&batch->all_keys, seq_len);
    add_up(&batch->local_keys, local_keys(d, seq_len));
    if (q_len)
        add_up(&batch->keys, (seq_len + BATCH_TILE_KEYS - 1) / BATCH_TILE_KEYS * BATCH_TILE_KEYS);
    if (seq_len > batch->max_seq_len)
        batch->max_seq_len = (uint32_t)seq_len;
}

enum status draft_check_step_numbers(struct draft *d)
{
    enum status status = check_memory(d);
    return status == STATUS_OK ? check_positions(d) : status;
}

enum status draft_end_sequence(const struct draft *d, uint32_t s)
{
    enum status status = check_writes(d, s);
    if (status == STATUS_OK)
        weigh(d, s);
    return status;
}

static enum status check_sequence(struct draft *d, uint32_t s)
{
    enum status status = check_q_len(d, s);
    if (status != STATUS_OK || !d->batch->has_keys)
        return status;
    status = draft_check_seq_len(d, s);
    if (status == STATUS_OK)
        status = check_kv_start(d, s);
    if (status == STATUS_OK && d->block_size)
        status = draft_check_entries(d, s);
    return status == STATUS_OK ? draft_end_sequence(d, s) : status;
}

// Each sequence has ceil(rows * seq_len / 8) bytes. No overflow: rows and seq_len are below 2^31,
// and so is the sum of all rows.
static enum status check_mask(const struct draft *d)
{
    const struct core_batch_params *p = d->params;
    uint64_t wanted = 0;
    for (uint32_t s = 0; d->batch->has_keys && s < p->num_seqs; s++)
        wanted += ((uint64_t)draft_rows(d, s) * (uint64_t)p->seq_lens_kv[s] + 7) / 8;
    if (p->mask_bytes == 0 || p->mask_bytes == wanted)
        return STATUS_OK;
    return error_set(d->error, STATUS_INVALID,
                     "mask has %" PRIu64 " bytes; %" PRIu64
                     " are needed, the sum of ceil(rows * seq_len / 8)",
                     p->mask_bytes, wanted);
}

// Which of the optional arrays were given.
static void note_what_is_there(const struct draft *d)
{
    const struct core_batch_params *p = d->params;
    struct batch *batch = d->batch;
    batch->num_seqs = p->num_seqs;
    batch->has_keys = p->num_seq_lens_kv > 0;
    batch->has_slots = p->num_slot_mapping > 0;
    batch->has_mask = p->mask_bytes > 0;
    batch->has_positions = p->num_positions > 0;
    batch->has_token_rows = p->num_token_rows > 0;
    batch->has_kv_starts = p->num_kv_starts > 0;
}

void draft_finish(struct draft *d)
{
    for (uint32_t i = 0; d->table && d->batch->blocks && i < d->batch->num_blocks; i++)
        hold_forget(d->table, d->batch->blocks[i]);
    free(d->seen);
    free(d->writes);
    free(d->places);
}

enum status draft_check_sizes(struct draft *d)
{
    note_what_is_there(d);
    enum status status = check_lengths(d);
    return status == STATUS_OK ? check_memory(d) : status;
}

enum status draft_check_arrays(struct draft *d)
{
    enum status (*const checks[])(const struct draft *) = {
        check_cu_seqlens,
        check_tokens,
        check_positions,
        check_token_rows,
    };
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < sizeof checks / sizeof *checks; i++)
        status = checks[i](d);
    for (uint32_t s = 0; status == STATUS_OK && s < d->params->num_seqs; s++)
        status = check_sequence(d, s);
    if (status == STATUS_OK && d->batch->has_slots)
        status = draft_check_slots(d);
    if (status == STATUS_OK)
        status = draft_name_writes(d);
    if (status == STATUS_OK)
        status = check_mask(d);
    if (d->batch->attended == 0)
        d->batch->attended = 1;
    return status;
}

static enum status check_held(const struct draft *d, const struct hold_table *table)
{
    for (uint32_t i = 0; d->table != table && i < d->batch->num_blocks; i++) {
        const int32_t id = d->batch->blocks[i];
        const struct hold_page *page = hold_page(table, id);
        if (!page || !hold_is_used(page, hold_index(table, id)))
            return error_set(d->error, STATUS_NOT_HELD,
                             "block %" PRId32 " of the batch was released while it was made", id);
    }
    return STATUS_OK;
}

enum status draft_check_rights(struct draft *d, const struct hold_table *table)
{
    enum status status = check_held(d, table);
    return status == STATUS_OK ? draft_check_written(d, table) : status;
}
