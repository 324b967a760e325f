// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_image.c - see attention_image.h. Tensors lie dense, with gaps, head by head, as slices
// of a fused one, or with an outer dimension; block tensors with heads before tokens or after them;
// contiguous K and V ragged or dense.

#include "attention_image.h"

#include "attention_contents.h"

#include <stdlib.h>
#include <string.h>

// Who reads beside its tensors reads poison: as far ahead as the largest block of K and V is long,
// and more. An image is hundreds of times what most cases use of it, and to touch all of it costs
// more than such a case.
static void poison_ahead(struct attention_image *image)
{
    const uint64_t ahead = 8 << 20;
    uint64_t end = image->used + ahead < image->size ? image->used + ahead : image->size;
    if (end > image->poisoned) {
        memset(image->bytes + image->poisoned, 0xff, end - image->poisoned);
        image->poisoned = end;
    }
}

uint64_t attention_image_take(struct attention_image *image, struct dice *dice, uint64_t bytes)
{
    uint64_t at = (image->used + 15) / 16 * 16 +
                  16 * dice_between(dice, 1, 16); // tensors lie at multiples of 16
    image->used = at + bytes;
    poison_ahead(image);
    return at;
}

static uint64_t round16(uint64_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

// Strides for [tokens, heads] rows: dense, with gaps between heads and tokens, or head by head.
// Returns the bytes between the begins of two such things.
static uint64_t strides_draw(struct wire_tensor *tensor, struct dice *dice, uint64_t row,
                             uint32_t tokens, uint32_t heads)
{
    tensor->head_stride = row;
    tensor->token_stride = row * heads;
    switch (dice_below(dice, 3)) {
    case 1:
        tensor->head_stride += 16 * dice_between(dice, 0, 3);
        tensor->token_stride = tensor->head_stride * heads + 16 * dice_between(dice, 0, 3);
        break;
    case 2:
        tensor->token_stride = row + 16 * dice_between(dice, 0, 2);
        tensor->head_stride = tensor->token_stride * (tokens + 1);
        return tensor->head_stride * heads;
    default: break;
    }
    return tensor->token_stride * (tokens + 1);
}

static struct wire_tensor tensor_place(struct attention_image *image, struct dice *dice,
                                       enum dtype dtype, uint32_t outer, uint32_t tokens,
                                       uint32_t heads, uint32_t head_dim)
{
    struct wire_tensor tensor = {.dtype = dtype};
    uint64_t row = round16((uint64_t)head_dim * dtype_size((int)dtype));
    uint64_t bytes = strides_draw(&tensor, dice, row, tokens, heads);
    if (outer)
        tensor.outer_stride = bytes + 16 * dice_below(dice, 3);
    tensor.offset = attention_image_take(image, dice, outer ? outer * tensor.outer_stride : bytes);
    return tensor;
}

struct wire_tensor attention_image_place(struct attention_image *image, struct dice *dice,
                                         enum dtype dtype, uint32_t tokens, uint32_t heads,
                                         uint32_t head_dim)
{
    return tensor_place(image, dice, dtype, 0, tokens, heads, head_dim);
}

// [tokens, heads] f32: not only at multiples of 16.
struct wire_tensor attention_image_place_lse(struct attention_image *image, struct dice *dice,
                                             uint32_t tokens, uint32_t heads)
{
    struct wire_tensor lse = {.dtype = DTYPE_F32,
                              .token_stride = 4 * (heads + dice_below(dice, 3))};
    lse.offset =
        attention_image_take(image, dice, tokens * lse.token_stride + 32) + 4 * dice_below(dice, 4);
    return lse;
}

// ---- q, k, v, out ----

static uint32_t tokens_longest(const struct attention_batch *batch)
{
    uint32_t longest = 0;
    for (uint32_t s = 0; s < batch->num_seqs; s++) {
        uint32_t tokens = (uint32_t)(batch->cu_seqlens_q[s + 1] - batch->cu_seqlens_q[s]);
        longest = tokens > longest ? tokens : longest;
    }
    return longest;
}

static struct wire_tensor io_place(const struct attention_batch *batch,
                                   struct attention_image *image, struct dice *dice, uint32_t heads,
                                   uint32_t head_dim)
{
    bool outer = batch->form.tokens == TOKENS_DENSE && dice_chance(dice, 75);
    return tensor_place(image, dice, batch->problem->shape.io_dtype, outer ? batch->num_seqs : 0,
                        outer ? tokens_longest(batch) : batch->num_tokens, heads, head_dim);
}

// Slices of one fused projection: [tokens, heads of q, of k, of v].
static void fused_place(struct attention_batch *batch, struct attention_image *image,
                        struct dice *dice)
{
    const struct attention_shape *shape = &batch->problem->shape;
    uint64_t size = dtype_size((int)shape->io_dtype);
    uint64_t k_row = shape->kv.head_dim_k * size, v_row = shape->kv.head_dim_v * size;
    uint64_t k_at = k_row * shape_heads(shape), v_at = k_at + k_row * shape->kv.num_kv_heads;
    uint64_t stride = v_at + v_row * shape->kv.num_kv_heads + 16 * dice_below(dice, 3);
    struct wire_tensor tensor = {
        .dtype = shape->io_dtype, .head_stride = k_row, .token_stride = stride};
    tensor.offset = attention_image_take(image, dice, batch->num_tokens * stride + stride);
    batch->q = batch->k = batch->v = tensor;
    batch->k.offset += k_at;
    batch->v.offset += v_at;
    batch->v.head_stride = v_row;
}

static void io_tensors_place(struct attention_batch *batch, struct attention_image *image,
                             struct dice *dice)
{
    const struct attention_shape *shape = &batch->problem->shape;
    if (batch->form.tokens != TOKENS_DENSE && dice_chance(dice, 40)) {
        fused_place(batch, image, dice);
    } else {
        batch->q = io_place(batch, image, dice, shape_heads(shape), shape->kv.head_dim_k);
        batch->k = io_place(batch, image, dice, shape->kv.num_kv_heads, shape->kv.head_dim_k);
        batch->v = io_place(batch, image, dice, shape->kv.num_kv_heads, shape->kv.head_dim_v);
    }
    if (shape->kv.v_is_k_prefix)
        batch->v = (struct wire_tensor){0};
    batch->out = io_place(batch, image, dice, shape_heads(shape), shape->kv.head_dim_v);
    if (batch->parameters->features & FEATURE_LSE)
        batch->lse = attention_image_place_lse(image, dice, batch->num_tokens, shape_heads(shape));
}

static void tensor_fill(const struct attention_batch *batch, uint8_t *arena,
                        const struct wire_tensor *tensor, uint32_t seq, uint32_t tokens,
                        uint32_t heads, uint32_t head_dim, const uint8_t *from)
{
    uint64_t row = (uint64_t)head_dim * dtype_size((int)tensor->dtype);
    for (uint32_t i = 0; i < tokens; i++)
        for (uint32_t h = 0; h < heads; h++)
            memcpy(arena + attention_batch_at(batch, tensor, seq, i) + h * tensor->head_stride,
                   from + ((uint64_t)i * heads + h) * row, row);
}

static void io_tensors_fill(const struct attention_batch *batch, uint8_t *arena,
                            const uint32_t *order)
{
    const struct attention_shape *shape = &batch->problem->shape;
    uint32_t kv_heads = shape->kv.num_kv_heads, dim = shape->kv.head_dim_k;
    for (uint32_t s = 0; s < batch->num_seqs; s++) {
        const struct attention_seq *seq = &batch->problem->seqs[order[s]];
        tensor_fill(batch, arena, &batch->q, s, seq->q_len, shape_heads(shape), dim, seq->q);
        if (!batch->slot_mapping || !seq->slots)
            continue;
        tensor_fill(batch, arena, &batch->k, s, seq->q_len, kv_heads, dim, seq->k);
        if (!shape->kv.v_is_k_prefix)
            tensor_fill(batch, arena, &batch->v, s, seq->q_len, kv_heads, shape->kv.head_dim_v,
                        seq->v);
    }
}

// ---- block tensors ----

// [blocks, heads, tokens, d] or [blocks, tokens, heads, d], here and there with gaps, K and V of a
// block one after the other or apart.
static void blocks_place(struct attention_image *image, const struct attention_case *problem,
                         struct dice *dice)
{
    const struct attention_shape *shape = &problem->shape;
    uint32_t heads = shape->kv.num_kv_heads, tokens = shape->kv.block_size,
             blocks = problem->num_blocks;
    struct wire_tensor keys = {.dtype = shape->kv.k_dtype}, values = {.dtype = shape->kv.v_dtype};
    keys.outer_stride = strides_draw(&keys, dice, round16(shape_k_bytes(shape)), tokens, heads);
    values.outer_stride = strides_draw(&values, dice, round16(shape_v_bytes(shape)), tokens, heads);
    if (dice_chance(dice, 30)) { // [blocks, 2, ...]
        uint64_t both = keys.outer_stride + values.outer_stride;
        keys.offset = attention_image_take(image, dice, blocks * both);
        values.offset = keys.offset + keys.outer_stride;
        keys.outer_stride = values.outer_stride = both;
    } else {
        keys.offset = attention_image_take(image, dice, blocks * keys.outer_stride);
        values.offset = attention_image_take(
            image, dice, shape->kv.v_is_k_prefix ? 0 : blocks * values.outer_stride);
    }
    image->keys = keys;
    if (!shape->kv.v_is_k_prefix)
        image->values = values;
}

// Rows between the tensors of the image and blocks as the pool has them, in either direction.
static void block_copy(const struct attention_image *image, const struct attention_case *problem,
                       uint32_t block, uint8_t *bytes, bool to_image)
{
    const struct attention_shape *shape = &problem->shape;
    uint32_t rows = shape->kv.num_kv_heads * shape->kv.block_size;
    for (uint32_t i = 0; i < rows * (shape->kv.v_is_k_prefix ? 1 : 2); i++) {
        bool value = i >= rows;
        uint32_t head = i % rows / shape->kv.block_size, token = i % shape->kv.block_size;
        const struct wire_tensor *tensor = value ? &image->values : &image->keys;
        uint8_t *in_image = image->bytes + tensor->offset + block * tensor->outer_stride +
                            token * tensor->token_stride + head * tensor->head_stride;
        uint8_t *in_block = bytes + block_row_at(shape, head, token, value);
        uint64_t row = value ? shape_v_bytes(shape) : shape_k_bytes(shape);
        memcpy(to_image ? in_image : in_block, to_image ? in_block : in_image, row);
    }
}

void attention_image_block(const struct attention_image *image,
                           const struct attention_case *problem, uint32_t block, uint8_t *bytes)
{
    block_copy(image, problem, block, bytes, false);
}

static bool blocks_fill(struct attention_image *image, struct attention_batch *batch,
                        struct dice *dice)
{
    bool first = image->keys.dtype == 0;
    if (first)
        blocks_place(image, batch->problem, dice);
    if (image->used > image->size)
        return false;
    for (uint32_t i = 0; first && i < batch->problem->num_blocks; i++)
        block_copy(image, batch->problem, i, batch->problem->before[i], true);
    batch->keys = image->keys;
    batch->values = image->values;
    return true;
}

// ---- contiguous K and V ----

static void rows_copy(const struct attention_batch *batch, uint8_t *arena, const uint32_t *order,
                      bool value)
{
    const struct attention_shape *shape = &batch->problem->shape;
    const struct wire_tensor *tensor = value ? &batch->values : &batch->keys;
    for (uint32_t s = 0; s < batch->num_seqs; s++) {
        const struct attention_seq *seq = &batch->problem->seqs[order[s]];
        uint64_t begin = tensor->offset + (tensor->outer_stride ? s * tensor->outer_stride
                                                                : (uint32_t)batch->kv_starts[s] *
                                                                      tensor->token_stride);
        for (uint32_t i = 0; i < seq->kv_len * shape->kv.num_kv_heads; i++) {
            uint32_t head = i % shape->kv.num_kv_heads, key = i / shape->kv.num_kv_heads;
            memcpy(arena + begin + key * tensor->token_stride + head * tensor->head_stride,
                   attention_case_element(batch->problem, seq, head, key, value, false),
                   value ? shape_v_bytes(shape) : shape_k_bytes(shape));
        }
    }
}

// Where each sequence's rows begin, in any order and with rows between them that are nobody's.
// Returns how many rows there are.
static uint32_t starts_draw(struct attention_batch *batch, struct dice *dice)
{
    uint32_t rows = 0;
    int32_t *order = calloc(batch->num_seqs + 1, sizeof *order);
    batch->kv_starts = calloc(batch->num_seqs + 1, sizeof *batch->kv_starts);
    for (uint32_t s = 0; order && s < batch->num_seqs; s++)
        order[s] = (int32_t)s;
    if (order)
        dice_shuffle(dice, order, batch->num_seqs);
    for (uint32_t i = 0; order && batch->kv_starts && i < batch->num_seqs; i++) {
        batch->kv_starts[order[i]] = (int32_t)rows;
        rows += (uint32_t)batch->seq_lens_kv[order[i]] + dice_below(dice, 3);
    }
    free(order);
    return rows;
}

static bool rows_fill(struct attention_image *image, struct attention_batch *batch,
                      const uint32_t *order, struct dice *dice)
{
    const struct attention_shape *shape = &batch->problem->shape;
    uint32_t longest = 0, rows = starts_draw(batch, dice), form = dice_below(dice, 4);
    if (!batch->kv_starts)
        return false;
    for (uint32_t s = 0; s < batch->num_seqs; s++)
        longest =
            (uint32_t)batch->seq_lens_kv[s] > longest ? (uint32_t)batch->seq_lens_kv[s] : longest;
    for (int value = 0; value < (shape->kv.v_is_k_prefix ? 1 : 2); value++) {
        bool outer = form >> value & 1;
        struct wire_tensor *tensor = value ? &batch->values : &batch->keys;
        *tensor = tensor_place(image, dice, value ? shape->kv.v_dtype : shape->kv.k_dtype,
                               outer ? batch->num_seqs : 0, outer ? longest : rows,
                               shape->kv.num_kv_heads,
                               value ? shape->kv.head_dim_v : shape->kv.head_dim_k);
        if (image->used > image->size)
            return false;
        rows_copy(batch, image->bytes, order, value);
    }
    bool starts_used =
        !batch->keys.outer_stride || (batch->values.dtype && !batch->values.outer_stride);
    if (!starts_used && dice_chance(dice, 50)) {
        free(batch->kv_starts);
        batch->kv_starts = NULL;
    }
    return true;
}

// ---- all of them ----

bool attention_image_fill(struct attention_image *image, struct attention_batch *batch,
                          const uint32_t *order, struct dice *dice)
{
    io_tensors_place(batch, image, dice);
    if (image->used > image->size)
        return false;
    io_tensors_fill(batch, image->bytes, order);
    if (batch->form.place == ENGINE_BLOCKS && !blocks_fill(image, batch, dice))
        return false;
    if (batch->form.place == ENGINE_ROWS && !rows_fill(image, batch, order, dice))
        return false;
    attention_image_take(image, dice, 0);
    return image->used <= image->size;
}
