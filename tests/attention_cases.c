// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_cases.c - see attention_cases.h. Lengths, layouts and values are drawn so that the borders come often: 0 and 1
// keys, the block's last and first token, rows with one key that outweighs all, rows whose keys all weigh the same.

#include "attention_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

// ---- dice: splitmix64 ----

uint64_t dice_next(struct dice *dice)
{
    uint64_t z = dice->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint32_t dice_below(struct dice *dice, uint32_t end)
{
    return (uint32_t)((dice_next(dice) >> 32) * end >> 32);
}

uint32_t dice_between(struct dice *dice, uint32_t low, uint32_t high)
{
    return low + dice_below(dice, high - low + 1);
}

bool dice_chance(struct dice *dice, uint32_t percent)
{
    return dice_below(dice, 100) < percent;
}

float dice_normal(struct dice *dice)
{
    uint64_t bits = dice_next(dice);
    uint32_t sum = (uint32_t)(bits & 0xffff) + (uint32_t)(bits >> 16 & 0xffff) + (uint32_t)(bits >> 32 & 0xffff);
    return ((float)sum / 65536 - 1.5f) * 2;
}

// ---- shapes ----

static const uint32_t HEAD_DIMS[] = {8, 16, 24, 32, 40, 64, 72, 80, 96, 112, 128, 136, 192, 256};
static const struct {
    uint32_t num_kv_heads, group;
} HEADS[] = {{2, 1}, {4, 1}, {3, 1}, {2, 4}, {1, 4}, {1, 8}, {2, 8}, {1, 3}, {1, 12}, {2, 2}, {1, 1}, {1, 16}};

static void default_u32(uint32_t *field, uint32_t value)
{
    *field = *field ? *field : value;
}

static enum dtype dice_dtype(struct dice *dice, enum dtype wished)
{
    bool half = dice_chance(dice, 50);
    return wished ? wished : half ? DTYPE_F16 : DTYPE_F32;
}

static struct attention_shape shape_draw(struct dice *dice, const struct attention_shape *wish)
{
    struct attention_shape shape = *wish;
    uint32_t heads = dice_below(dice, COUNT(HEADS));
    default_u32(&shape.head_dim, HEAD_DIMS[dice_below(dice, COUNT(HEAD_DIMS))]);
    default_u32(&shape.num_kv_heads, HEADS[heads].num_kv_heads);
    default_u32(&shape.group, HEADS[heads].group);
    default_u32(&shape.block_size, 8u << dice_below(dice, 6));
    default_u32(&shape.num_layers, dice_between(dice, 1, 3));
    default_u32(&shape.chunk_blocks, 4u << dice_below(dice, 4));
    shape.layer = dice_below(dice, shape.num_layers);
    shape.io_dtype = dice_dtype(dice, wish->io_dtype);
    shape.k_dtype = dice_dtype(dice, wish->k_dtype);
    shape.v_dtype = dice_dtype(dice, wish->v_dtype);
    shape.causal = wish->causal || dice_chance(dice, 70);
    float usual = 1 / sqrtf((float)shape.head_dim);
    shape.scale = wish->scale != 0 ? wish->scale : dice_chance(dice, 80) ? usual : usual * 0.5f;
    return shape;
}

// ---- parameters ----

static int32_t window_draw(struct dice *dice, uint32_t block_size)
{
    const int32_t choices[] = {-1,
                               0,
                               1,
                               (int32_t)block_size - 1,
                               (int32_t)block_size,
                               (int32_t)dice_below(dice, 100),
                               (int32_t)dice_below(dice, 1500),
                               INT32_MAX};
    return choices[dice_below(dice, COUNT(choices))];
}

static struct attention_parameters parameters_draw(struct dice *dice, const struct attention_shape *shape,
                                                   uint32_t features)
{
    static const float CAPS[] = {1, 5, 30, 50};
    struct attention_parameters parameters = {
        .features = features,
        .causal = shape->causal,
        .window_left = window_draw(dice, shape->block_size),
        .window_right = window_draw(dice, shape->block_size),
        .soft_cap = CAPS[dice_below(dice, COUNT(CAPS))],
    };
    for (uint32_t head = 0; head < MAX_HEADS; head++) {
        parameters.slopes[head] = ldexpf(1, -(int)dice_below(dice, 10));
        parameters.sinks[head] = dice_normal(dice) * (dice_chance(dice, 20) ? 8 : 2);
    }
    return parameters;
}

static void parameters_make(struct attention_case *problem)
{
    const struct attention_shape *shape = &problem->shape;
    for (int i = 0; i < 2; i++)
        problem->parameters[i] = parameters_draw(&problem->dice, shape, i ? shape->other_features : shape->features);
    if (dice_chance(&problem->dice, 30))
        problem->parameters[1].causal = !shape->causal;
}

uint32_t shape_heads(const struct attention_shape *shape)
{
    return shape->num_kv_heads * shape->group;
}

// ---- lengths ----

static uint32_t length_draw(struct dice *dice, uint32_t block_size, uint32_t longest)
{
    uint32_t blocks = longest / block_size;
    uint32_t border = blocks > 1 ? block_size * dice_between(dice, 1, blocks) : block_size;
    const uint32_t choices[] = {
        0,
        1,
        block_size - 1,
        block_size,
        block_size + 1,
        border,
        border + 1,
        border - 1,
        dice_between(dice, 0, longest),
        dice_between(dice, 0, longest),
    };
    uint32_t length = choices[dice_below(dice, COUNT(choices))];
    return length < longest ? length : longest;
}

// Decodes, chunks of a prefill, whole prefills, nothing at all, and more queries than keys.
static uint32_t queries_draw(struct dice *dice, uint32_t kv_len)
{
    uint32_t kind = dice_below(dice, 100);
    if (kind < 45)
        return 1;
    if (kind < 50)
        return 0;
    if (kind < 60)
        return kv_len + dice_between(dice, 1, 5);
    if (kind < 75)
        return kv_len;
    return dice_between(dice, 1, kv_len ? kv_len : 1);
}

static void seq_draw_lengths(struct attention_seq *seq, struct dice *dice, const struct attention_shape *shape,
                             const struct attention_wish *wish)
{
    seq->kv_len = wish->kv_len ? wish->kv_len : length_draw(dice, shape->block_size, wish->longest);
    seq->q_len = wish->kv_len ? wish->q_len : queries_draw(dice, seq->kv_len);
    uint64_t one = (uint64_t)(seq->kv_len + 1) * shape_heads(shape) * shape->head_dim;
    uint64_t most = (uint64_t)wish->work * 1000 / wish->num_seqs / one + 1;
    if (!wish->kv_len && seq->q_len > most)
        seq->q_len = (uint32_t)most;
    seq->num_blocks = (seq->kv_len + shape->block_size - 1) / shape->block_size;
}

// ---- blocks ----

static void shuffle(struct dice *dice, int32_t *ids, uint32_t count)
{
    for (uint32_t i = count; i > 1; i--) {
        uint32_t j = dice_below(dice, i);
        int32_t id = ids[i - 1];
        ids[i - 1] = ids[j];
        ids[j] = id;
    }
}

static bool blocks_allocate(struct attention_case *problem, uint32_t needed)
{
    const struct attention_shape *shape = &problem->shape;
    uint32_t spare = dice_between(&problem->dice, 1, needed / 4 + 2);
    uint32_t chunks = (needed + spare + shape->chunk_blocks - 1) / shape->chunk_blocks;
    problem->num_blocks = chunks * shape->chunk_blocks;
    problem->block_bytes = (uint64_t)shape->num_kv_heads * shape->block_size * shape->head_dim *
                           (dtype_size(shape->k_dtype) + dtype_size(shape->v_dtype));
    problem->before = calloc(problem->num_blocks, sizeof *problem->before);
    problem->after = calloc(problem->num_blocks, sizeof *problem->after);
    if (!problem->before || !problem->after)
        return false;
    for (uint32_t i = 0; i < problem->num_blocks; i++) {
        problem->before[i] = malloc(problem->block_bytes);
        problem->after[i] = malloc(problem->block_bytes);
        if (!problem->before[i] || !problem->after[i])
            return false;
        memset(problem->before[i], 0xff, problem->block_bytes); // NaN as f32 and as f16
        memset(problem->after[i], 0xff, problem->block_bytes);
    }
    return true;
}

// Blocks of `donor` that `seq` may share: full ones, before the first token that either may write.
static uint32_t blocks_shareable(const struct attention_seq *donor, const struct attention_seq *seq,
                                 uint32_t block_size)
{
    uint32_t a = donor->kv_len > donor->q_len ? donor->kv_len - donor->q_len : 0;
    uint32_t b = seq->kv_len > seq->q_len ? seq->kv_len - seq->q_len : 0;
    return (a < b ? a : b) / block_size;
}

static bool blocks_deal(struct attention_case *problem)
{
    uint32_t needed = 0, dealt = 0;
    for (uint32_t s = 0; s < problem->num_seqs; s++)
        needed += problem->seqs[s].num_blocks;
    if (!blocks_allocate(problem, needed))
        return false;
    int32_t *ids = calloc(problem->num_blocks, sizeof *ids);
    if (!ids)
        return false;
    for (uint32_t i = 0; i < problem->num_blocks; i++)
        ids[i] = (int32_t)i;
    shuffle(&problem->dice, ids, problem->num_blocks);
    for (uint32_t s = 0; s < problem->num_seqs; s++) {
        struct attention_seq *seq = &problem->seqs[s];
        uint32_t shared = 0;
        if (s > 0 && dice_chance(&problem->dice, 30)) {
            shared = blocks_shareable(seq - 1, seq, problem->shape.block_size);
            memcpy(seq->blocks, seq[-1].blocks, shared * sizeof *seq->blocks);
        }
        memcpy(seq->blocks + shared, ids + dealt, (seq->num_blocks - shared) * sizeof *ids);
        dealt += seq->num_blocks - shared;
    }
    free(ids);
    return true;
}

// ---- contents ----

// Element index of (kv head, key, dim 0) in the block's K or V, and where that part begins.
static uint8_t *block_part(const struct attention_case *problem, uint8_t *block, bool value)
{
    const struct attention_shape *shape = &problem->shape;
    uint64_t k_elements = (uint64_t)shape->num_kv_heads * shape->block_size * shape->head_dim;
    return block + (value ? k_elements * dtype_size(shape->k_dtype) : 0);
}

static uint64_t block_index(const struct attention_shape *shape, uint32_t head, uint32_t key)
{
    return ((uint64_t)head * shape->block_size + key % shape->block_size) * shape->head_dim;
}

void *attention_case_element(const struct attention_case *problem, const struct attention_seq *seq, uint32_t head,
                             uint32_t key, bool value, bool after)
{
    const struct attention_shape *shape = &problem->shape;
    int32_t id = seq->blocks[key / shape->block_size];
    uint64_t size = dtype_size(value ? shape->v_dtype : shape->k_dtype);
    return block_part(problem, after ? problem->after[id] : problem->before[id], value) +
           block_index(shape, head, key) * size;
}

enum value_style { VALUES_RANDOM, VALUES_OFFSET, VALUES_CONSTANT };

// K's elements spread around 0; V's by style: all of one sign shows a sum that drifts.
static float element_draw(struct dice *dice, bool value, enum value_style style)
{
    float normal = dice_normal(dice);
    if (!value || style == VALUES_RANDOM)
        return normal;
    return style == VALUES_OFFSET ? 0.7f + 0.1f * normal : 0.7f;
}

// One token's K or V, [num_kv_heads, head_dim]: into the block, or, for a token that this run writes, into the tensor
// `fresh` and, rounded twice as the run does it, into the block as it is afterwards.
static void token_fill(struct attention_case *problem, const struct attention_seq *seq, uint32_t key, bool value,
                       enum value_style style, uint8_t *fresh)
{
    const struct attention_shape *shape = &problem->shape;
    enum dtype dtype = value ? shape->v_dtype : shape->k_dtype;
    for (uint32_t head = 0; head < shape->num_kv_heads; head++) {
        void *before = attention_case_element(problem, seq, head, key, value, false);
        void *after = attention_case_element(problem, seq, head, key, value, true);
        for (uint32_t d = 0; d < shape->head_dim; d++) {
            float element = element_draw(&problem->dice, value, style);
            if (fresh) {
                oracle_store(fresh, shape->io_dtype, head * shape->head_dim + d, element);
                element = (float)oracle_load(fresh, shape->io_dtype, head * shape->head_dim + d);
            } else {
                oracle_store(before, dtype, d, element);
            }
            oracle_store(after, dtype, d, element);
        }
    }
}

static bool seq_draw_writes(struct attention_case *problem, struct attention_seq *seq, uint32_t skip_percent)
{
    const struct attention_shape *shape = &problem->shape;
    uint64_t bytes = (uint64_t)seq->q_len * shape->num_kv_heads * shape->head_dim * dtype_size(shape->io_dtype);
    seq->k = malloc(bytes + 1);
    seq->v = malloc(bytes + 1);
    seq->slots = calloc(seq->q_len + 1, sizeof *seq->slots);
    if (!seq->k || !seq->v || !seq->slots)
        return false;
    memset(seq->k, 0xff, bytes);
    memset(seq->v, 0xff, bytes);
    for (uint32_t i = 0; i < seq->q_len; i++) {
        uint32_t key = seq->kv_len - seq->q_len + i;
        int64_t block = seq->blocks[key / shape->block_size];
        seq->slots[i] =
            dice_chance(&problem->dice, skip_percent) ? -1 : block * shape->block_size + key % shape->block_size;
    }
    return true;
}

static void seq_fill(struct attention_case *problem, struct attention_seq *seq, uint32_t shared_keys)
{
    const struct attention_shape *shape = &problem->shape;
    uint64_t token_bytes = (uint64_t)shape->num_kv_heads * shape->head_dim * dtype_size(shape->io_dtype);
    enum value_style style = dice_below(&problem->dice, 3);
    for (uint32_t key = shared_keys; key < seq->kv_len; key++) {
        uint32_t i = key + seq->q_len - seq->kv_len; // query token; only meant where the sequence writes
        bool fresh = seq->slots && key + seq->q_len >= seq->kv_len && seq->slots[i] >= 0;
        token_fill(problem, seq, key, false, style, fresh ? seq->k + i * token_bytes : NULL);
        token_fill(problem, seq, key, true, style, fresh ? seq->v + i * token_bytes : NULL);
    }
}

static uint32_t seq_shared_keys(const struct attention_case *problem, uint32_t s)
{
    uint32_t shared = 0;
    const struct attention_seq *seq = &problem->seqs[s];
    while (s > 0 && shared < seq->num_blocks && shared < seq[-1].num_blocks &&
           seq->blocks[shared] == seq[-1].blocks[shared])
        shared++;
    return shared * problem->shape.block_size;
}

// ---- queries ----

enum query_style { QUERIES_RANDOM, QUERIES_FLAT, QUERIES_ZERO, QUERIES_PEAKED, QUERIES_STYLES };

// A peaked query points along one key, which then outweighs the others.
static void row_draw(struct attention_case *problem, const struct attention_seq *seq, uint32_t kv_head, uint64_t first,
                     enum query_style style)
{
    const struct attention_shape *shape = &problem->shape;
    struct dice *dice = &problem->dice;
    uint32_t key = dice_below(dice, seq->kv_len ? seq->kv_len : 1);
    const void *k = NULL;
    if (style == QUERIES_PEAKED && seq->kv_len > 0)
        k = attention_case_element(problem, seq, kv_head, key, false, true);
    float factor = (float)dice_between(dice, 6, 16) / (shape->scale * (float)shape->head_dim);
    for (uint32_t d = 0; d < shape->head_dim; d++) {
        float element = dice_normal(dice);
        if (k)
            element = factor * (float)oracle_load(k, shape->k_dtype, d);
        else if (style == QUERIES_FLAT || style == QUERIES_ZERO)
            element *= style == QUERIES_FLAT ? 0.01f : 0;
        oracle_store(seq->q, shape->io_dtype, first + d, element);
    }
}

static bool seq_draw_queries(struct attention_case *problem, struct attention_seq *seq)
{
    const struct attention_shape *shape = &problem->shape;
    uint32_t heads = shape_heads(shape);
    seq->q = malloc((uint64_t)seq->q_len * heads * shape->head_dim * dtype_size(shape->io_dtype) + 1);
    if (!seq->q)
        return false;
    for (uint32_t row = 0; row < seq->q_len * heads; row++)
        row_draw(problem, seq, row % heads / shape->group, (uint64_t)row * shape->head_dim,
                 dice_below(&problem->dice, QUERIES_STYLES));
    return true;
}

// ---- positions and masks ----

enum position_style { POSITIONS_SHIFTED, POSITIONS_ANY, POSITIONS_REPEATED, POSITIONS_FAR, POSITIONS_STYLES };

static int32_t position_draw(struct dice *dice, enum position_style style, uint32_t query, uint32_t kv_len)
{
    switch (style) {
    case POSITIONS_SHIFTED: return (int32_t)(query + kv_len / 3);
    case POSITIONS_ANY: return (int32_t)dice_between(dice, 0, kv_len + 10);
    case POSITIONS_REPEATED: return (int32_t)(kv_len / 2 + query / 3);
    default: return dice_chance(dice, 10) ? INT32_MAX : (int32_t)(kv_len + dice_below(dice, 1000000));
    }
}

static bool seq_draw_positions(struct attention_case *problem, struct attention_seq *seq)
{
    enum position_style style = dice_below(&problem->dice, POSITIONS_STYLES);
    seq->positions = calloc(seq->q_len + 1, sizeof *seq->positions);
    for (uint32_t i = 0; seq->positions && i < seq->q_len; i++)
        seq->positions[i] = position_draw(&problem->dice, style, i, seq->kv_len);
    return seq->positions != NULL;
}

// Rows that see all, none, one key, or some share of the keys.
static void mask_row_draw(struct dice *dice, uint8_t *mask, uint64_t first, uint32_t kv_len)
{
    static const uint32_t PERCENT[] = {0, 100, 10, 50, 50, 90};
    uint32_t percent = PERCENT[dice_below(dice, COUNT(PERCENT))];
    uint32_t only = percent == 0 && dice_chance(dice, 50) ? dice_below(dice, kv_len) : kv_len;
    for (uint32_t key = 0; key < kv_len; key++)
        if (key == only || dice_chance(dice, percent))
            mask[(first + key) / 8] |= (uint8_t)(1u << (first + key) % 8);
}

static uint64_t seq_mask_bytes(const struct attention_seq *seq)
{
    return ((uint64_t)seq->q_len * seq->kv_len + 7) / 8;
}

static bool seq_draw_mask(struct attention_case *problem, struct attention_seq *seq)
{
    seq->mask = calloc(seq_mask_bytes(seq) + 1, 1);
    for (uint32_t i = 0; seq->mask && seq->kv_len && i < seq->q_len; i++)
        mask_row_draw(&problem->dice, seq->mask, (uint64_t)i * seq->kv_len, seq->kv_len);
    return seq->mask != NULL;
}

static bool seq_draw_features(struct attention_case *problem, struct attention_seq *seq)
{
    uint32_t features = problem->parameters[0].features | problem->parameters[1].features;
    if ((features & FEATURE_POSITIONS) && !seq_draw_positions(problem, seq))
        return false;
    return !(features & FEATURE_MASK) || seq_draw_mask(problem, seq);
}

// ---- the case ----

static bool case_fill(struct attention_case *problem, const struct attention_wish *wish)
{
    for (uint32_t s = 0; s < problem->num_seqs; s++) {
        struct attention_seq *seq = &problem->seqs[s];
        seq_draw_lengths(seq, &problem->dice, &problem->shape, wish);
        seq->blocks = calloc(seq->num_blocks + 1, sizeof *seq->blocks);
        if (!seq->blocks)
            return false;
    }
    if (!blocks_deal(problem))
        return false;
    for (uint32_t s = 0; s < problem->num_seqs; s++) {
        struct attention_seq *seq = &problem->seqs[s];
        bool writes = wish->writes == WRITES_ALL || dice_chance(&problem->dice, 60);
        writes = writes && wish->writes != WRITES_NONE && seq->q_len <= seq->kv_len;
        if (writes && !seq_draw_writes(problem, seq, wish->writes == WRITES_ALL ? 0 : 15))
            return false;
        seq_fill(problem, seq, seq_shared_keys(problem, s));
        if (!seq_draw_queries(problem, seq) || !seq_draw_features(problem, seq))
            return false;
    }
    return true;
}

struct attention_case *attention_case_create(uint64_t seed, const struct attention_wish *wish)
{
    struct attention_case *problem = calloc(1, sizeof *problem);
    if (!problem)
        return NULL;
    problem->dice.state = seed;
    struct attention_wish drawn = *wish;
    problem->shape = shape_draw(&problem->dice, &wish->shape);
    parameters_make(problem);
    default_u32(&drawn.num_seqs, dice_between(&problem->dice, 1, 9));
    default_u32(&drawn.longest, dice_between(&problem->dice, 1, 300));
    default_u32(&drawn.work, 4000);
    problem->num_seqs = drawn.num_seqs;
    problem->seqs = calloc(problem->num_seqs, sizeof *problem->seqs);
    if (!problem->seqs || !case_fill(problem, &drawn)) {
        attention_case_destroy(problem);
        return NULL;
    }
    return problem;
}

void attention_case_destroy(struct attention_case *problem)
{
    if (!problem)
        return;
    for (uint32_t s = 0; problem->seqs && s < problem->num_seqs; s++) {
        struct attention_seq *seq = &problem->seqs[s];
        free(seq->blocks);
        free(seq->q);
        free(seq->k);
        free(seq->v);
        free(seq->slots);
        free(seq->positions);
        free(seq->mask);
    }
    for (uint32_t i = 0; i < problem->num_blocks; i++) {
        free(problem->before ? problem->before[i] : NULL);
        free(problem->after ? problem->after[i] : NULL);
    }
    free(problem->before);
    free(problem->after);
    free(problem->seqs);
    free(problem);
}

// ---- batches ----

// A table's entry that no query may see: anything an int32 can hold.
static int32_t garbage_draw(struct dice *dice, uint32_t num_blocks)
{
    const int32_t choices[] = {
        -1, INT32_MIN, INT32_MAX, (int32_t)dice_below(dice, num_blocks), (int32_t)num_blocks, (int32_t)dice_next(dice),
    };
    return choices[dice_below(dice, COUNT(choices))];
}

// Keys [first, end) are those that some query of the sequence may see; a mask is not looked into.
static void seq_range(const struct attention_seq *seq, const struct attention_parameters *parameters, int64_t *first,
                      int64_t *end)
{
    bool windowed = parameters->features & FEATURE_WINDOW, masked = parameters->features & FEATURE_MASK;
    *first = seq->kv_len, *end = 0;
    for (uint32_t i = 0; i < seq->q_len; i++) {
        int64_t position =
            parameters->features & FEATURE_POSITIONS ? seq->positions[i] : (int64_t)seq->kv_len - seq->q_len + i;
        int64_t low = 0, last = (int64_t)seq->kv_len - 1;
        if (parameters->causal && !masked && position < last)
            last = position;
        if (windowed && parameters->window_left >= 0 && position - parameters->window_left > low)
            low = position - parameters->window_left;
        if (windowed && parameters->window_right >= 0 && position + parameters->window_right < last)
            last = position + parameters->window_right;
        if (low > last)
            continue;
        *first = low < *first ? low : *first;
        *end = last + 1 > *end ? last + 1 : *end;
    }
}

static void table_row_fill(int32_t *row, const struct attention_batch *batch, const struct attention_seq *seq,
                           struct dice *dice)
{
    int64_t first, end, block_size = batch->problem->shape.block_size;
    seq_range(seq, batch->parameters, &first, &end);
    for (uint32_t j = 0; j < batch->max_blocks; j++) {
        bool seen = j * block_size < end && (j + 1) * block_size > first;
        row[j] = seen ? seq->blocks[j] : garbage_draw(dice, batch->problem->num_blocks);
    }
}

static bool batch_metadata(struct attention_batch *batch, const uint32_t *order, struct dice *dice)
{
    const struct attention_case *problem = batch->problem;
    batch->cu_seqlens_q = calloc(batch->num_seqs + 1, sizeof *batch->cu_seqlens_q);
    batch->seq_lens_kv = calloc(batch->num_seqs + 1, sizeof *batch->seq_lens_kv);
    if (!batch->cu_seqlens_q || !batch->seq_lens_kv)
        return false;
    for (uint32_t i = 0; i < batch->num_seqs; i++) {
        const struct attention_seq *seq = &problem->seqs[order[i]];
        batch->cu_seqlens_q[i + 1] = batch->cu_seqlens_q[i] + (int32_t)seq->q_len;
        batch->seq_lens_kv[i] = (int32_t)seq->kv_len;
        batch->max_blocks = seq->num_blocks > batch->max_blocks ? seq->num_blocks : batch->max_blocks;
    }
    batch->num_tokens = (uint32_t)batch->cu_seqlens_q[batch->num_seqs];
    batch->max_blocks += dice_between(dice, batch->max_blocks ? 0 : 1, 3);
    batch->block_table = calloc((size_t)batch->num_seqs * batch->max_blocks + 1, sizeof *batch->block_table);
    if (!batch->block_table)
        return false;
    for (uint32_t i = 0; i < batch->num_seqs; i++)
        table_row_fill(batch->block_table + (size_t)i * batch->max_blocks, batch, &problem->seqs[order[i]], dice);
    return true;
}

static bool batch_positions(struct attention_batch *batch, const uint32_t *order)
{
    if (!(batch->parameters->features & FEATURE_POSITIONS))
        return true;
    batch->positions = calloc(batch->num_tokens + 1, sizeof *batch->positions);
    for (uint32_t i = 0; batch->positions && i < batch->num_seqs; i++) {
        const struct attention_seq *seq = &batch->problem->seqs[order[i]];
        memcpy(batch->positions + batch->cu_seqlens_q[i], seq->positions, seq->q_len * sizeof *seq->positions);
    }
    return batch->positions != NULL;
}

static bool batch_mask(struct attention_batch *batch, const uint32_t *order)
{
    if (!(batch->parameters->features & FEATURE_MASK))
        return true;
    batch->mask_starts = calloc(batch->num_seqs + 1, sizeof *batch->mask_starts);
    for (uint32_t i = 0; batch->mask_starts && i < batch->num_seqs; i++) {
        batch->mask_starts[i] = batch->mask_bytes * 8;
        batch->mask_bytes += seq_mask_bytes(&batch->problem->seqs[order[i]]);
    }
    batch->mask = malloc(batch->mask_bytes + 1);
    for (uint32_t i = 0; batch->mask && batch->mask_starts && i < batch->num_seqs; i++) {
        const struct attention_seq *seq = &batch->problem->seqs[order[i]];
        memcpy(batch->mask + batch->mask_starts[i] / 8, seq->mask, seq_mask_bytes(seq));
    }
    return batch->mask && batch->mask_starts;
}

static bool batch_slots(struct attention_batch *batch, const uint32_t *order)
{
    bool writes = false;
    for (uint32_t i = 0; i < batch->num_seqs; i++)
        writes |= batch->problem->seqs[order[i]].slots != NULL;
    if (!writes)
        return true;
    batch->slot_mapping = calloc(batch->num_tokens + 1, sizeof *batch->slot_mapping);
    if (!batch->slot_mapping)
        return false;
    for (uint32_t i = 0; i < batch->num_seqs; i++) {
        const struct attention_seq *seq = &batch->problem->seqs[order[i]];
        for (uint32_t t = 0; t < seq->q_len; t++)
            batch->slot_mapping[batch->cu_seqlens_q[i] + (int32_t)t] = seq->slots ? seq->slots[t] : -1;
    }
    return true;
}

static uint64_t image_take(struct attention_image *image, struct dice *dice, uint64_t bytes)
{
    uint64_t at = (image->used + 15) / 16 * 16 + 16 * dice_between(dice, 1, 16); // tensors lie at multiples of 16
    image->used = at + bytes;
    return at;
}

// A tensor of its own, [tokens, heads, head_dim]: dense, with gaps between heads and tokens, or head by head.
static struct engine_tensor tensor_place(struct attention_image *image, struct dice *dice, enum dtype dtype,
                                         uint32_t tokens, uint32_t heads, uint32_t head_dim)
{
    uint64_t row = (uint64_t)head_dim * dtype_size(dtype);
    struct engine_tensor tensor = {.dtype = dtype, .head_stride = row, .token_stride = row * heads};
    switch (dice_below(dice, 3)) {
    case 1:
        tensor.head_stride += 16 * dice_between(dice, 0, 3);
        tensor.token_stride = tensor.head_stride * heads + 16 * dice_between(dice, 0, 3);
        break;
    case 2:
        tensor.token_stride = row + 16 * dice_between(dice, 0, 2);
        tensor.head_stride = tensor.token_stride * (tokens + 1);
        break;
    default: break;
    }
    uint64_t bytes = tokens * tensor.token_stride + heads * tensor.head_stride;
    tensor.offset = image_take(image, dice, bytes);
    return tensor;
}

// Slices of one fused projection: [tokens, (heads + 2 kv heads) * head_dim].
static void tensors_place_fused(struct attention_batch *batch, struct attention_image *image, struct dice *dice)
{
    const struct attention_shape *shape = &batch->problem->shape;
    uint64_t row = (uint64_t)shape->head_dim * dtype_size(shape->io_dtype);
    uint64_t stride = row * (shape_heads(shape) + 2 * shape->num_kv_heads) + 16 * dice_between(dice, 0, 2);
    struct engine_tensor tensor = {.dtype = shape->io_dtype, .head_stride = row, .token_stride = stride};
    tensor.offset = image_take(image, dice, batch->num_tokens * stride + stride);
    batch->q = batch->k = batch->v = tensor;
    batch->k.offset += row * shape_heads(shape);
    batch->v.offset = batch->k.offset + row * shape->num_kv_heads;
}

// [tokens, heads] f32: not only at multiples of 16.
static struct engine_tensor lse_place(struct attention_image *image, struct dice *dice, uint32_t tokens, uint32_t heads)
{
    struct engine_tensor lse = {.dtype = DTYPE_F32, .token_stride = 4 * (heads + dice_below(dice, 3))};
    lse.offset = image_take(image, dice, tokens * lse.token_stride + 32) + 4 * dice_below(dice, 4);
    return lse;
}

static void tensors_place(struct attention_batch *batch, struct attention_image *image, struct dice *dice)
{
    const struct attention_shape *shape = &batch->problem->shape;
    uint32_t tokens = batch->num_tokens, heads = shape_heads(shape), d = shape->head_dim;
    if (dice_chance(dice, 40)) {
        tensors_place_fused(batch, image, dice);
    } else {
        batch->q = tensor_place(image, dice, shape->io_dtype, tokens, heads, d);
        batch->k = tensor_place(image, dice, shape->io_dtype, tokens, shape->num_kv_heads, d);
        batch->v = tensor_place(image, dice, shape->io_dtype, tokens, shape->num_kv_heads, d);
    }
    batch->out = tensor_place(image, dice, shape->io_dtype, tokens, heads, d);
    if (batch->parameters->features & FEATURE_LSE)
        batch->lse = lse_place(image, dice, tokens, heads);
    image_take(image, dice, 0);
}

static void tensor_fill(uint8_t *arena, const struct engine_tensor *tensor, uint32_t first_token, uint32_t tokens,
                        uint32_t heads, uint64_t row_bytes, const uint8_t *from)
{
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t h = 0; h < heads; h++)
            memcpy(arena + tensor->offset + (first_token + t) * tensor->token_stride + h * tensor->head_stride,
                   from + ((uint64_t)t * heads + h) * row_bytes, row_bytes);
}

bool attention_batch_init(struct attention_batch *batch, const struct attention_case *problem, uint32_t set,
                          const uint32_t *order, uint32_t num_seqs, struct attention_image *image, struct dice *dice)
{
    const struct attention_shape *shape = &problem->shape;
    *batch =
        (struct attention_batch){.problem = problem, .parameters = &problem->parameters[set], .num_seqs = num_seqs};
    if (!batch_metadata(batch, order, dice) || !batch_slots(batch, order) || !batch_positions(batch, order) ||
        !batch_mask(batch, order))
        return false;
    tensors_place(batch, image, dice);
    if (image->used > image->size)
        return false;
    uint64_t row = (uint64_t)shape->head_dim * dtype_size(shape->io_dtype);
    for (uint32_t i = 0; i < num_seqs; i++) {
        const struct attention_seq *seq = &problem->seqs[order[i]];
        uint32_t first = (uint32_t)batch->cu_seqlens_q[i];
        tensor_fill(image->bytes, &batch->q, first, seq->q_len, shape_heads(shape), row, seq->q);
        if (seq->slots) {
            tensor_fill(image->bytes, &batch->k, first, seq->q_len, shape->num_kv_heads, row, seq->k);
            tensor_fill(image->bytes, &batch->v, first, seq->q_len, shape->num_kv_heads, row, seq->v);
        }
    }
    return true;
}

void attention_batch_finish(struct attention_batch *batch)
{
    free(batch->cu_seqlens_q);
    free(batch->seq_lens_kv);
    free(batch->block_table);
    free(batch->slot_mapping);
    free(batch->positions);
    free(batch->mask);
    free(batch->mask_starts);
    *batch = (struct attention_batch){0};
}

struct oracle_params attention_batch_oracle(const struct attention_batch *batch, const uint8_t *arena)
{
    const struct attention_shape *shape = &batch->problem->shape;
    const struct attention_parameters *parameters = batch->parameters;
    return (struct oracle_params){
        .num_seqs = batch->num_seqs,
        .max_blocks = batch->max_blocks,
        .num_heads = shape_heads(shape),
        .num_kv_heads = shape->num_kv_heads,
        .head_dim_k = shape->head_dim,
        .head_dim_v = shape->head_dim,
        .block_size = shape->block_size,
        .q_dtype = shape->io_dtype,
        .k_dtype = shape->k_dtype,
        .v_dtype = shape->v_dtype,
        .cu_seqlens_q = batch->cu_seqlens_q,
        .seq_lens_kv = batch->seq_lens_kv,
        .block_table = batch->block_table,
        .blocks = (const uint8_t *const *)batch->problem->after,
        .q = arena + batch->q.offset,
        .q_token_stride = batch->q.token_stride,
        .q_head_stride = batch->q.head_stride,
        .scale = shape->scale,
        .causal = parameters->causal,
        .windowed = parameters->features & FEATURE_WINDOW,
        .window_left = parameters->window_left,
        .window_right = parameters->window_right,
        .cap = parameters->features & FEATURE_SOFT_CAP ? parameters->soft_cap : 0,
        .slopes = parameters->features & FEATURE_ALIBI ? parameters->slopes : NULL,
        .sinks = parameters->features & FEATURE_SINKS ? parameters->sinks : NULL,
        .positions = batch->positions,
        .mask = batch->mask,
        .mask_starts = batch->mask_starts,
    };
}
