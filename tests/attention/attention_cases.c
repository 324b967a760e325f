// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_cases.c - see attention_cases.h. Lengths and blocks are drawn so that the borders come
// often: 0 and 1 keys, the block's last and first token, shared prefixes, more queries than keys.

#include "attention_cases.h"

#include "attention_contents.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

// ---- shapes ----

static const uint32_t HEAD_DIMS[] = {8, 16, 24, 32, 40, 64, 72, 80, 96, 112, 128, 136, 192, 256};
static const struct {
    uint32_t num_kv_heads, group;
} HEADS[] = {{2, 1}, {4, 1}, {3, 1},  {2, 4}, {1, 4}, {1, 8},
             {2, 8}, {1, 3}, {1, 12}, {2, 2}, {1, 1}, {1, 16}};

static void default_u32(uint32_t *field, uint32_t value)
{
    *field = *field ? *field : value;
}

static void default_dtype(enum dtype *field, struct dice *dice, uint32_t kinds)
{
    enum dtype drawn = DTYPE_F32 + dice_below(dice, kinds);
    *field = *field ? *field : drawn;
}

static struct attention_shape shape_draw(struct dice *dice, const struct attention_shape *wish)
{
    struct attention_shape shape = *wish;
    uint32_t heads = dice_below(dice, COUNT(HEADS));
    default_u32(&shape.kv.head_dim_k, HEAD_DIMS[dice_below(dice, COUNT(HEAD_DIMS))]);
    default_u32(&shape.kv.head_dim_v, shape.kv.head_dim_k);
    default_u32(&shape.kv.num_kv_heads, HEADS[heads].num_kv_heads);
    default_u32(&shape.group, HEADS[heads].group);
    default_u32(&shape.kv.block_size, 8u << dice_below(dice, 6));
    default_u32(&shape.num_layers, dice_between(dice, 1, 3));
    default_u32(&shape.chunk_blocks, 4u << dice_below(dice, 4));
    shape.layer = dice_below(dice, shape.num_layers);
    default_dtype(&shape.io_dtype, dice, 3);
    default_dtype(&shape.kv.k_dtype, dice, 3);
    default_dtype(&shape.kv.v_dtype, dice, 3);
    if (shape.kv.v_is_k_prefix)
        shape.kv.v_dtype = shape.kv.k_dtype;
    shape.causal = wish->causal || dice_chance(dice, 70);
    float usual = 1 / sqrtf((float)shape.kv.head_dim_k);
    shape.scale = wish->scale != 0 ? wish->scale : dice_chance(dice, 80) ? usual : usual * 0.5f;
    return shape;
}

// ---- parameters ----

// Where something is written, both sets agree in what decides about the bytes that are written.
static void parameters_make(struct attention_case *problem, bool writes)
{
    const struct attention_shape *shape = &problem->shape;
    uint32_t features = shape->features, other = shape->other_features;
    if (writes)
        other = (other & ~(uint32_t)FEATURES_OF_WRITES) | (features & FEATURES_OF_WRITES);
    struct attention_parameters *sets = problem->parameters;
    sets[0] = attention_parameters_draw(&problem->dice, shape, features);
    sets[1] = attention_parameters_draw(&problem->dice, shape, other);
    if (writes) {
        sets[1].k_scale = sets[0].k_scale, sets[1].v_scale = sets[0].v_scale;
        sets[1].rope_dim = sets[0].rope_dim, sets[1].theta = sets[0].theta;
        sets[1].by_frequencies = sets[0].by_frequencies;
        memcpy(sets[1].frequencies, sets[0].frequencies, sizeof sets[0].frequencies);
    }
    if (dice_chance(&problem->dice, 30))
        sets[1].causal = !shape->causal;
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

static void seq_draw_lengths(struct attention_seq *seq, struct dice *dice,
                             const struct attention_shape *shape, const struct attention_wish *wish)
{
    seq->kv_len =
        wish->kv_len ? wish->kv_len : length_draw(dice, shape->kv.block_size, wish->longest);
    seq->q_len = wish->kv_len ? wish->q_len : queries_draw(dice, seq->kv_len);
    uint64_t dims = (shape->kv.head_dim_k + shape->kv.head_dim_v + 1) / 2;
    uint64_t one = (uint64_t)(seq->kv_len + 1) * shape_heads(shape) * dims;
    uint64_t most = (uint64_t)wish->work * 1000 / wish->num_seqs / one + 1;
    if (!wish->kv_len && seq->q_len > most)
        seq->q_len = (uint32_t)most;
}

// ---- blocks ----

static bool blocks_allocate(struct attention_case *problem, uint32_t needed)
{
    const struct attention_shape *shape = &problem->shape;
    uint32_t spare = dice_between(&problem->dice, 1, needed / 4 + 2);
    uint32_t chunks = (needed + spare + shape->chunk_blocks - 1) / shape->chunk_blocks;
    problem->num_blocks = chunks * shape->chunk_blocks;
    problem->block_bytes = block_bytes_of(shape);
    problem->before = calloc(problem->num_blocks, sizeof *problem->before);
    problem->after = calloc(problem->num_blocks, sizeof *problem->after);
    if (!problem->before || !problem->after)
        return false;
    for (uint32_t i = 0; i < problem->num_blocks; i++) {
        problem->before[i] = malloc(problem->block_bytes);
        problem->after[i] = malloc(problem->block_bytes);
        if (!problem->before[i] || !problem->after[i])
            return false;
        block_poison(shape, problem->before[i]);
        block_poison(shape, problem->after[i]);
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
    dice_shuffle(&problem->dice, ids, problem->num_blocks);
    for (uint32_t s = 0; s < problem->num_seqs; s++) {
        struct attention_seq *seq = &problem->seqs[s];
        uint32_t shared = 0;
        if (s > 0 && dice_chance(&problem->dice, 30)) {
            shared = blocks_shareable(seq - 1, seq, problem->shape.kv.block_size);
            memcpy(seq->blocks, seq[-1].blocks, shared * sizeof *seq->blocks);
        }
        memcpy(seq->blocks + shared, ids + dealt, (seq->num_blocks - shared) * sizeof *ids);
        dealt += seq->num_blocks - shared;
    }
    free(ids);
    return true;
}

// Blocks as the wish names them; enough of them that its largest id is there.
static bool blocks_assign(struct attention_case *problem, const struct attention_wish *wish)
{
    int32_t largest = 0;
    for (uint32_t s = 0; s < problem->num_seqs; s++)
        for (uint32_t j = 0; j < problem->seqs[s].num_blocks; j++) {
            int32_t id = wish->table[(size_t)s * wish->table_columns + j];
            problem->seqs[s].blocks[j] = id;
            largest = id > largest ? id : largest;
        }
    return blocks_allocate(problem, (uint32_t)largest + 1);
}

static uint32_t seq_shared_keys(const struct attention_case *problem, uint32_t s)
{
    uint32_t shared = 0;
    const struct attention_seq *seq = &problem->seqs[s];
    while (s > 0 && shared < seq->num_blocks && shared < seq[-1].num_blocks &&
           seq->blocks[shared] == seq[-1].blocks[shared])
        shared++;
    return shared * problem->shape.kv.block_size;
}

void *attention_case_element(const struct attention_case *problem, const struct attention_seq *seq,
                             uint32_t head, uint32_t key, bool value, bool after)
{
    uint32_t block_size = problem->shape.kv.block_size;
    int32_t id = seq->blocks[key / block_size];
    return (after ? problem->after[id] : problem->before[id]) +
           block_row_at(&problem->shape, head, key % block_size, value);
}

// ---- writes ----

static bool seq_draw_writes(struct attention_case *problem, struct attention_seq *seq,
                            uint32_t skip_percent)
{
    const struct attention_shape *shape = &problem->shape;
    uint64_t elements =
        (uint64_t)seq->q_len * shape->kv.num_kv_heads * dtype_size((int)shape->io_dtype);
    uint64_t k_bytes = elements * shape->kv.head_dim_k, v_bytes = elements * shape->kv.head_dim_v;
    seq->k = malloc(k_bytes + 1);
    seq->v = malloc(v_bytes + 1);
    seq->slots = calloc(seq->q_len + 1, sizeof *seq->slots);
    if (!seq->k || !seq->v || !seq->slots)
        return false;
    memset(seq->k, 0xff, k_bytes);
    memset(seq->v, 0xff, v_bytes);
    for (uint32_t i = 0; i < seq->q_len; i++) {
        uint32_t key = seq->kv_len - seq->q_len + i;
        int64_t block = seq->blocks[key / shape->kv.block_size];
        seq->slots[i] = dice_chance(&problem->dice, skip_percent)
                            ? -1
                            : block * shape->kv.block_size + key % shape->kv.block_size;
    }
    return true;
}

// ---- the case ----

static bool seqs_draw(struct attention_case *problem, const struct attention_wish *wish)
{
    for (uint32_t s = 0; s < problem->num_seqs; s++) {
        struct attention_seq *seq = &problem->seqs[s];
        if (wish->kv_lens)
            seq->q_len = wish->q_lens[s], seq->kv_len = wish->kv_lens[s];
        else
            seq_draw_lengths(seq, &problem->dice, &problem->shape, wish);
        uint32_t block_size = problem->shape.kv.block_size;
        seq->num_blocks = (seq->kv_len + block_size - 1) / block_size;
        seq->blocks = calloc(seq->num_blocks + 1, sizeof *seq->blocks);
        if (!seq->blocks)
            return false;
    }
    return wish->table ? blocks_assign(problem, wish) : blocks_deal(problem);
}

static bool case_fill(struct attention_case *problem, const struct attention_wish *wish)
{
    if (!seqs_draw(problem, wish))
        return false;
    for (uint32_t s = 0; s < problem->num_seqs; s++) {
        struct attention_seq *seq = &problem->seqs[s];
        bool writes = wish->writes == WRITES_ALL || dice_chance(&problem->dice, 60);
        writes = writes && wish->writes != WRITES_NONE && seq->q_len <= seq->kv_len;
        if (writes && !seq_draw_writes(problem, seq, wish->writes == WRITES_ALL ? 0 : 15))
            return false;
        if (!attention_seq_fill(problem, seq, seq_shared_keys(problem, s)) ||
            !attention_seq_ask(problem, seq))
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
    if (wish->shape.place == ENGINE_ROWS) // has no slots
        drawn.writes = WRITES_NONE;
    problem->shape = shape_draw(&problem->dice, &wish->shape);
    parameters_make(problem, drawn.writes != WRITES_NONE);
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
