// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_batch.c - the metadata of a batch, see attention_batch.h. attention_image.c lays out
// its tensors.

#include "attention_batch.h"

#include "attention_contents.h"
#include "attention_image.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

// ---- tokens ----

static bool batch_lengths(struct attention_batch *batch, const uint32_t *order, struct dice *dice)
{
    bool padded = batch->form.tokens == TOKENS_PADDED ||
                  (batch->form.tokens == TOKENS_DENSE && dice_chance(dice, 60));
    batch->cu_seqlens_q = calloc(batch->num_seqs + 1, sizeof *batch->cu_seqlens_q);
    batch->seq_lens_kv = calloc(batch->num_seqs + 1, sizeof *batch->seq_lens_kv);
    batch->q_lens = padded ? calloc(batch->num_seqs + 1, sizeof *batch->q_lens) : NULL;
    if (!batch->cu_seqlens_q || !batch->seq_lens_kv || (padded && !batch->q_lens))
        return false;
    for (uint32_t i = 0; i < batch->num_seqs; i++) {
        const struct attention_seq *seq = &batch->problem->seqs[order[i]];
        uint32_t padding = padded ? dice_below(dice, 4) : 0;
        if (padded)
            batch->q_lens[i] = (int32_t)seq->q_len;
        batch->cu_seqlens_q[i + 1] = batch->cu_seqlens_q[i] + (int32_t)(seq->q_len + padding);
        batch->seq_lens_kv[i] = (int32_t)seq->kv_len;
    }
    batch->num_tokens = (uint32_t)batch->cu_seqlens_q[batch->num_seqs];
    return true;
}

static bool batch_rows(struct attention_batch *batch, struct dice *dice)
{
    if (batch->form.tokens != TOKENS_INTERLEAVED)
        return true;
    batch->token_rows = calloc(batch->num_tokens + 1, sizeof *batch->token_rows);
    for (uint32_t t = 0; batch->token_rows && t < batch->num_tokens; t++)
        batch->token_rows[t] = (int32_t)t;
    if (batch->token_rows)
        dice_shuffle(dice, batch->token_rows, batch->num_tokens);
    return batch->token_rows != NULL;
}

static uint32_t row_of(const struct attention_batch *batch, uint32_t seq, uint32_t i)
{
    uint32_t token = (uint32_t)batch->cu_seqlens_q[seq] + i;
    return batch->token_rows ? (uint32_t)batch->token_rows[token] : token;
}

uint32_t attention_batch_seq(const struct attention_batch *batch, uint32_t token, uint32_t *i)
{
    uint32_t seq = 0;
    while ((uint32_t)batch->cu_seqlens_q[seq + 1] <= token)
        seq++;
    *i = token - (uint32_t)batch->cu_seqlens_q[seq];
    return seq;
}

uint64_t attention_batch_at(const struct attention_batch *batch, const struct wire_tensor *tensor,
                            uint32_t seq, uint32_t i)
{
    if (tensor->outer_stride)
        return tensor->offset + seq * tensor->outer_stride + i * tensor->token_stride;
    return tensor->offset + row_of(batch, seq, i) * tensor->token_stride;
}

uint64_t attention_batch_lse_at(const struct attention_batch *batch, uint32_t seq, uint32_t i)
{
    return batch->lse.offset + row_of(batch, seq, i) * batch->lse.token_stride;
}

// ---- the table ----

// A table's entry that no query may see: anything an int32 can hold.
static int32_t garbage_draw(struct dice *dice, uint32_t num_blocks)
{
    const int32_t choices[] = {
        -1,
        INT32_MIN,
        INT32_MAX,
        (int32_t)dice_below(dice, num_blocks),
        (int32_t)num_blocks,
        (int32_t)dice_next(dice),
    };
    return choices[dice_below(dice, COUNT(choices))];
}

// Keys [first, end) are those that some query of the sequence may see; a mask is not looked into.
static void seq_range(const struct attention_seq *seq,
                      const struct attention_parameters *parameters, int64_t *first, int64_t *end)
{
    bool windowed = parameters->features & FEATURE_WINDOW,
         masked = parameters->features & FEATURE_MASK;
    *first = seq->kv_len, *end = 0;
    for (uint32_t i = 0; i < seq->q_len; i++) {
        int64_t position = parameters->features & FEATURE_POSITIONS
                               ? seq->positions[i]
                               : (int64_t)seq->kv_len - seq->q_len + i;
        int64_t low = 0, last = (int64_t)seq->kv_len - 1;
        if (parameters->causal && !masked && position < last)
            last = position;
        if (windowed && parameters->window_left >= 0 && position - parameters->window_left > low)
            low = position - parameters->window_left;
        if (windowed && parameters->window_right >= 0 && position + parameters->window_right < last)
            last = position + parameters->window_right;
        if (parameters->features & FEATURE_CHUNK) {
            const int64_t chunk = parameters->attention_chunk, start = position / chunk * chunk;
            low = start > low ? start : low;
            last = start + chunk - 1 < last ? start + chunk - 1 : last;
        }
        if (low > last || (parameters->features & FEATURE_CHUNK && position < 0))
            continue;
        *first = low < *first ? low : *first;
        *end = last + 1 > *end ? last + 1 : *end;
    }
}

static void table_row_fill(int32_t *row, const struct attention_batch *batch,
                           const struct attention_seq *seq, struct dice *dice)
{
    int64_t first, end, block_size = batch->problem->shape.kv.block_size;
    seq_range(seq, batch->parameters, &first, &end);
    for (uint32_t j = 0; j < batch->max_blocks; j++) {
        bool seen = j * block_size < end && (j + 1) * block_size > first;
        row[j] = seen ? seq->blocks[j] : garbage_draw(dice, batch->problem->num_blocks);
    }
}

static bool batch_table(struct attention_batch *batch, const uint32_t *order, struct dice *dice)
{
    if (batch->form.place == ENGINE_ROWS)
        return true;
    for (uint32_t i = 0; i < batch->num_seqs; i++) {
        uint32_t blocks = batch->problem->seqs[order[i]].num_blocks;
        batch->max_blocks = blocks > batch->max_blocks ? blocks : batch->max_blocks;
    }
    batch->max_blocks += dice_between(dice, batch->max_blocks ? 0 : 1, 3);
    batch->block_table =
        calloc((size_t)batch->num_seqs * batch->max_blocks + 1, sizeof *batch->block_table);
    for (uint32_t i = 0; batch->block_table && i < batch->num_seqs; i++)
        table_row_fill(batch->block_table + (size_t)i * batch->max_blocks, batch,
                       &batch->problem->seqs[order[i]], dice);
    return batch->block_table != NULL;
}

// ---- what goes with tokens ----

// Tokens that are no queries have positions, too: any.
static bool batch_positions(struct attention_batch *batch, const uint32_t *order, struct dice *dice)
{
    if (!(batch->parameters->features & FEATURE_POSITIONS))
        return true;
    batch->positions = calloc(batch->num_tokens + 1, sizeof *batch->positions);
    for (uint32_t t = 0; batch->positions && t < batch->num_tokens; t++)
        batch->positions[t] = (int32_t)(dice_next(dice) & INT32_MAX);
    for (uint32_t s = 0; batch->positions && s < batch->num_seqs; s++)
        for (uint32_t i = 0; i < batch->problem->seqs[order[s]].q_len; i++)
            batch->positions[row_of(batch, s, i)] = batch->problem->seqs[order[s]].positions[i];
    return batch->positions != NULL;
}

// A sequence's part has a row of bits for each of its tokens.
static uint64_t mask_bytes(const struct attention_batch *batch, const struct attention_seq *seq,
                           uint32_t s)
{
    return attention_mask_bytes(seq,
                                (uint32_t)(batch->cu_seqlens_q[s + 1] - batch->cu_seqlens_q[s]));
}

static bool batch_mask(struct attention_batch *batch, const uint32_t *order)
{
    if (!(batch->parameters->features & FEATURE_MASK))
        return true;
    batch->mask_starts = calloc(batch->num_seqs + 1, sizeof *batch->mask_starts);
    for (uint32_t s = 0; batch->mask_starts && s < batch->num_seqs; s++) {
        batch->mask_starts[s] = batch->mask_bytes * 8;
        batch->mask_bytes += mask_bytes(batch, &batch->problem->seqs[order[s]], s);
    }
    batch->mask = malloc(batch->mask_bytes + 1);
    if (!batch->mask || !batch->mask_starts)
        return false;
    memset(batch->mask, 0xff, batch->mask_bytes);
    for (uint32_t s = 0; s < batch->num_seqs; s++) {
        const struct attention_seq *seq = &batch->problem->seqs[order[s]];
        uint64_t bits = (uint64_t)seq->q_len * seq->kv_len;
        uint8_t *part = batch->mask + batch->mask_starts[s] / 8;
        memcpy(part, seq->mask, bits / 8);
        for (uint64_t bit = bits / 8 * 8; bit < bits; bit++)
            if (!(seq->mask[bit / 8] >> bit % 8 & 1))
                part[bit / 8] &= (uint8_t) ~(1u << bit % 8);
    }
    return true;
}

static bool batch_slots(struct attention_batch *batch, const uint32_t *order)
{
    bool writes = false;
    for (uint32_t s = 0; s < batch->num_seqs; s++)
        writes |= batch->problem->seqs[order[s]].slots != NULL;
    if (!writes || batch->form.place == ENGINE_ROWS)
        return true;
    batch->slot_mapping = calloc(batch->num_tokens + 1, sizeof *batch->slot_mapping);
    for (uint32_t t = 0; batch->slot_mapping && t < batch->num_tokens; t++)
        batch->slot_mapping[t] = -1;
    for (uint32_t s = 0; batch->slot_mapping && s < batch->num_seqs; s++) {
        const struct attention_seq *seq = &batch->problem->seqs[order[s]];
        for (uint32_t i = 0; seq->slots && i < seq->q_len; i++)
            batch->slot_mapping[row_of(batch, s, i)] = seq->slots[i];
    }
    return batch->slot_mapping != NULL;
}

// ---- the batch ----

bool attention_batch_init(struct attention_batch *batch, const struct attention_case *problem,
                          uint32_t set, const uint32_t *order, uint32_t num_seqs,
                          const struct attention_form *form, struct attention_image *image,
                          struct dice *dice)
{
    *batch = (struct attention_batch){
        .problem = problem, .parameters = &problem->parameters[set], .num_seqs = num_seqs};
    batch->form = form ? *form : (struct attention_form){.place = problem->shape.place};
    if (batch->form.tokens == TOKENS_ANY)
        batch->form.tokens = dice_between(dice, TOKENS_PLAIN, TOKENS_FORMS - 1);
    return batch_lengths(batch, order, dice) && batch_rows(batch, dice) &&
           batch_table(batch, order, dice) && batch_slots(batch, order) &&
           batch_positions(batch, order, dice) && batch_mask(batch, order) &&
           attention_image_fill(image, batch, order, dice);
}

void attention_batch_finish(struct attention_batch *batch)
{
    free(batch->cu_seqlens_q);
    free(batch->seq_lens_kv);
    free(batch->q_lens);
    free(batch->token_rows);
    free(batch->block_table);
    free(batch->kv_starts);
    free(batch->slot_mapping);
    free(batch->positions);
    free(batch->mask);
    free(batch->mask_starts);
    *batch = (struct attention_batch){0};
}

// ---- for the oracle ----

static struct oracle_kv oracle_pool(const struct attention_batch *batch, bool value)
{
    const struct attention_shape *shape = &batch->problem->shape;
    bool as_key = !value || shape->kv.v_is_k_prefix;
    uint64_t row = as_key ? shape_k_bytes(shape) : shape_v_bytes(shape);
    return (struct oracle_kv){
        .dtype = as_key ? shape->kv.k_dtype : shape->kv.v_dtype,
        .parts = (const uint8_t *const *)batch->problem->after,
        .parts_offset = block_row_at(shape, 0, 0, value),
        .token_stride = row,
        .head_stride = row * shape->kv.block_size,
        .scales_offset = shape->kv.scale_mode == SCALE_PER_TOKEN_HEAD && shape_scaled(shape, value)
                             ? block_scale_at(shape, 0, 0, value)
                             : 0,
    };
}

static struct oracle_kv oracle_tensor(const struct wire_tensor *tensor, const uint8_t *arena)
{
    return (struct oracle_kv){
        .dtype = tensor->dtype,
        .base = arena + tensor->offset,
        .outer_stride = tensor->outer_stride,
        .token_stride = tensor->token_stride,
        .head_stride = tensor->head_stride,
    };
}

static struct oracle_kv oracle_kv_of(const struct attention_batch *batch, bool value,
                                     const uint8_t *arena)
{
    const struct attention_shape *shape = &batch->problem->shape;
    bool as_key = !value || shape->kv.v_is_k_prefix;
    struct oracle_kv kv = batch->form.place == ENGINE_POOL
                              ? oracle_pool(batch, value)
                              : oracle_tensor(as_key ? &batch->keys : &batch->values, arena);
    if (shape->kv.scale_mode == SCALE_PER_TENSOR && shape_scaled(shape, value))
        kv.scale = (double)(as_key ? batch->parameters->k_scale : batch->parameters->v_scale);
    return kv;
}

struct oracle_params attention_batch_oracle(const struct attention_batch *batch,
                                            const uint8_t *arena)
{
    const struct attention_shape *shape = &batch->problem->shape;
    const struct attention_parameters *parameters = batch->parameters;
    return (struct oracle_params){
        .num_seqs = batch->num_seqs,
        .max_blocks = batch->max_blocks,
        .num_heads = shape_heads(shape),
        .num_kv_heads = shape->kv.num_kv_heads,
        .head_dim_k = shape->kv.head_dim_k,
        .head_dim_v = shape->kv.head_dim_v,
        .block_size = shape->kv.block_size,
        .q_dtype = shape->io_dtype,
        .cu_seqlens_q = batch->cu_seqlens_q,
        .seq_lens_kv = batch->seq_lens_kv,
        .block_table = batch->block_table,
        .k = oracle_kv_of(batch, false, arena),
        .v = oracle_kv_of(batch, true, arena),
        .q = arena + batch->q.offset,
        .q_outer_stride = batch->q.outer_stride,
        .q_token_stride = batch->q.token_stride,
        .q_head_stride = batch->q.head_stride,
        .scale = (double)shape->scale,
        .causal = parameters->causal,
        .windowed = parameters->features & FEATURE_WINDOW,
        .window_left = parameters->window_left,
        .window_right = parameters->window_right,
        .chunk = parameters->features & FEATURE_CHUNK ? parameters->attention_chunk : 0,
        .cap = parameters->features & FEATURE_SOFT_CAP ? (double)parameters->soft_cap : 0,
        .slopes = parameters->features & FEATURE_ALIBI ? parameters->slopes : NULL,
        .sinks = parameters->features & FEATURE_SINKS ? parameters->sinks : NULL,
        .positions = batch->positions,
        .mask = batch->mask,
        .mask_starts = batch->mask_starts,
        .q_lens = batch->q_lens,
        .token_rows = batch->token_rows,
        .kv_starts = batch->kv_starts,
        .rope = {.dim = parameters->features & FEATURE_ROPE ? parameters->rope_dim : 0,
                 .interleaved = parameters->features & FEATURE_PAIRS,
                 .theta = (double)parameters->theta,
                 .frequencies = parameters->by_frequencies ? parameters->frequencies : NULL},
    };
}
