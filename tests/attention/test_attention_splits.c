// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_attention_splits.c - keys in parts: cut by the engine (num_splits), and cut by the caller,
// whose parts are merged by their LSE.

#include "attention_suite.h"
#include "rigs/check_main.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

// ---- num_splits ----

static const uint32_t SPLITS[] = {1, 0, 2, 3, 7, 64};

static const struct {
    uint32_t features;
    enum engine_place place;
    enum dtype io_dtype, kv_dtype;
    uint32_t head_dim_k, head_dim_v;
} SPLIT_CASES[] = {
    {FEATURE_LSE, ENGINE_POOL, DTYPE_F32, DTYPE_F32, 16, 16},
    {FEATURE_LSE | FEATURE_SINKS, ENGINE_ROWS, DTYPE_F32, DTYPE_F16, 24, 40},
    {FEATURE_LSE | FEATURE_WINDOW, ENGINE_POOL, DTYPE_F32, DTYPE_F32, 16, 16},
    {FEATURE_LSE | FEATURE_MASK | FEATURE_SINKS, ENGINE_BLOCKS, DTYPE_F16, DTYPE_F16, 16, 16},
    {FEATURE_LSE | FEATURE_ALIBI | FEATURE_SOFT_CAP | FEATURE_ROPE, ENGINE_POOL, DTYPE_BF16,
     DTYPE_FP8_E5M2, 32, 8},
    {FEATURE_LSE | FEATURE_SINKS, ENGINE_POOL, DTYPE_BF16, DTYPE_BF16, 64, 64},
};

// A decode, a piece of a prefill, one without keys, one without queries, one short, one longer than
// any rule's part.
static const uint32_t SPLIT_Q_LENS[] = {1, 7, 2, 0, 5, 1},
                      SPLIT_KV_LENS[] = {1300, 900, 0, 600, 40, 4500};

static struct attention_wish split_wish(int number)
{
    return (struct attention_wish){.shape = {.place = SPLIT_CASES[number].place,
                                             .kv = {.head_dim_k = SPLIT_CASES[number].head_dim_k,
                                                    .head_dim_v = SPLIT_CASES[number].head_dim_v,
                                                    .num_kv_heads = 2,
                                                    .block_size = 16,
                                                    .k_dtype = SPLIT_CASES[number].kv_dtype,
                                                    .v_dtype = SPLIT_CASES[number].kv_dtype},
                                             .group = 2,
                                             .chunk_blocks = 128,
                                             .causal = true,
                                             .io_dtype = SPLIT_CASES[number].io_dtype,
                                             .features = SPLIT_CASES[number].features},
                                   .num_seqs = COUNT(SPLIT_Q_LENS),
                                   .q_lens = SPLIT_Q_LENS,
                                   .kv_lens = SPLIT_KV_LENS,
                                   .writes = WRITES_NONE};
}

START_TEST(any_number_of_splits_agrees_with_the_oracle)
{
    struct stage stage;
    struct attention_wish wish = split_wish(_i);
    suite_shape_bend(&wish.shape);
    stage_set(&stage, 200 + (uint64_t)_i, &wish);
    struct attention_parameters *parameters = &stage.problem->parameters[0];
    parameters->window_left = 290,
    parameters->window_right = -1; // most parts are hidden from every query
    stage_play(&stage);
    for (size_t i = 0; i < COUNT(SPLITS); i++) {
        parameters->num_splits = SPLITS[i];
        stage_replay(&stage);
        rig_check(&stage.rig, &stage.batch);
    }
    stage_clear(&stage);
}
END_TEST

// The mask hides whole parts in the middle, and all but one key of the last.
START_TEST(parts_that_nobody_sees_count_nothing)
{
    struct stage stage;
    struct attention_wish wish = split_wish(3);
    wish.shape.place = ENGINE_POOL;
    wish.q_lens = NULL, wish.kv_lens = NULL, wish.num_seqs = 1, wish.q_len = 4, wish.kv_len = 1280;
    wish.shape.features = FEATURE_LSE | FEATURE_MASK;
    stage_set(&stage, 210, &wish);
    uint8_t *mask = stage.problem->seqs[0].mask;
    for (uint32_t i = 0; i < 4; i++)
        memset(mask + i * 160 + (i == 3 ? 0 : 32), 0,
               i == 3 ? 159 : 96); // rows 0 to 2: not the keys from 256 to 1023
    mask[4 * 160 - 1] = 1;         // row 3: key 1272 alone
    stage_play(&stage);
    for (uint32_t splits = 1; splits <= 5; splits += 4) {
        stage.problem->parameters[0].num_splits = splits;
        stage_replay(&stage);
        rig_check(&stage.rig, &stage.batch);
    }
    stage_clear(&stage);
}
END_TEST

// ---- merging ----

enum { MERGE_QUERIES = 3, MERGE_KEYS = 704, NUM_PARTS = 4, MERGE_SEQS = 3 };
static const uint32_t BORDERS[NUM_PARTS + 1] = {0, 256, 320, 640, MERGE_KEYS}; // whole blocks

// How the keys of a part are told to a run.
enum parting { BY_TABLE, BY_WINDOW, BY_MASK, PARTINGS };

static struct attention_wish merge_wish(enum parting parting, enum dtype io_dtype)
{
    static const uint32_t FEATURES[PARTINGS] = {
        [BY_TABLE] = FEATURE_LSE,
        [BY_WINDOW] = FEATURE_LSE | FEATURE_WINDOW | FEATURE_POSITIONS,
        [BY_MASK] = FEATURE_LSE | FEATURE_MASK | FEATURE_ALIBI | FEATURE_SOFT_CAP,
    };
    return (struct attention_wish){
        .shape = {.kv = {.head_dim_k = 64,
                         .head_dim_v = 40,
                         .num_kv_heads = 2,
                         .block_size = 64,
                         .k_dtype = DTYPE_F16,
                         .v_dtype = DTYPE_F16},
                  .group = 3,
                  .num_splits = 1,
                  .io_dtype = io_dtype,
                  .features = FEATURES[parting]},
        .num_seqs = MERGE_SEQS,
        .q_len = MERGE_QUERIES,
        .kv_len = MERGE_KEYS,
        .writes = WRITES_NONE,
    };
}

// One part: the whole's metadata and parameters, changed so that keys [first, end) are all it sees.
struct part {
    struct attention_batch batch;
    struct attention_parameters parameters;
    int32_t seq_lens[MERGE_SEQS], positions[MERGE_SEQS * MERGE_QUERIES];
    int32_t table[MERGE_SEQS * 16];
    uint8_t *mask;
};

static void part_by_table(struct part *part, const struct attention_batch *whole, uint32_t first,
                          uint32_t end)
{
    const uint32_t block_size = whole->problem->shape.kv.block_size;
    for (uint32_t s = 0; s < MERGE_SEQS; s++) {
        part->seq_lens[s] = (int32_t)(end - first);
        for (uint32_t j = 0; j < whole->max_blocks; j++)
            part->table[s * whole->max_blocks + j] =
                j < (end - first) / block_size
                    ? whole->block_table[s * whole->max_blocks + first / block_size + j]
                    : -1;
    }
    part->batch.seq_lens_kv = part->seq_lens;
    part->batch.block_table = part->table;
}

static void part_by_window(struct part *part, uint32_t first, uint32_t end)
{
    for (uint32_t t = 0; t < MERGE_SEQS * MERGE_QUERIES; t++)
        part->positions[t] = (int32_t)end - 1;
    part->batch.positions = part->positions;
    part->parameters.window_left = (int32_t)(end - 1 - first);
    part->parameters.window_right = 0;
}

static void part_by_mask(struct part *part, const struct attention_batch *whole, uint32_t first,
                         uint32_t end)
{
    part->mask = malloc(whole->mask_bytes);
    ck_assert_ptr_nonnull(part->mask);
    memcpy(part->mask, whole->mask, whole->mask_bytes);
    for (uint64_t row = 0; row < MERGE_SEQS * MERGE_QUERIES; row++) // rows are whole bytes
        for (uint32_t key = 0; key < MERGE_KEYS; key += 8)
            if (key < first || key >= end)
                part->mask[row * (MERGE_KEYS / 8) + key / 8] = 0;
    part->batch.mask = part->mask;
}

static void part_make(struct part *part, struct stage *stage, enum parting parting, uint32_t number,
                      struct dice *dice)
{
    const struct attention_shape *shape = &stage->problem->shape;
    uint32_t first = BORDERS[number], end = BORDERS[number + 1], tokens = stage->batch.num_tokens;
    part->batch = stage->batch;
    part->parameters = stage->problem->parameters[0];
    if (number > 0) // a sink is to count once
        part->parameters.features &= ~(uint32_t)FEATURE_SINKS;
    part->batch.parameters = &part->parameters;
    part->batch.out = attention_image_place(&stage->rig.image, dice, shape->io_dtype, tokens,
                                            shape_heads(shape), shape->kv.head_dim_v);
    part->batch.lse =
        attention_image_place_lse(&stage->rig.image, dice, tokens, shape_heads(shape));
    switch (parting) {
    case BY_TABLE: part_by_table(part, &stage->batch, first, end); break;
    case BY_WINDOW: part_by_window(part, first, end); break;
    default: part_by_mask(part, &stage->batch, first, end); break;
    }
}

// What nobody sees may hold anything.
static void out_spoil(struct stage *stage, const struct attention_batch *batch)
{
    const struct attention_shape *shape = &batch->problem->shape;
    for (uint32_t t = 0; t < batch->num_tokens; t++)
        for (uint32_t h = 0; h < shape_heads(shape); h++)
            memset(stage->rig.image.bytes + batch->out.offset + t * batch->out.token_stride +
                       h * batch->out.head_stride,
                   0xff, shape->kv.head_dim_v * dtype_size((int)shape->io_dtype));
}

static void merge_run(struct stage *stage, const struct part *parts, uint32_t num_parts)
{
    struct engine_part described[RIG_MAX_PARTS];
    struct engine_run_result result;
    for (uint32_t i = 0; i < num_parts; i++)
        described[i] = (struct engine_part){.out = parts[i].batch.out, .lse = parts[i].batch.lse};
    struct engine_run run = {
        .kind = ENGINE_MERGE,
        .arena = stage->rig.arena,
        .num_heads = shape_heads(&stage->problem->shape),
        .head_dim = stage->problem->shape.kv.head_dim_v,
        .num_tokens = stage->batch.num_tokens,
        .parts = described,
        .num_parts = num_parts,
        .out = stage->batch.out,
        .lse = stage->batch.lse,
    };
    struct engine_submission submission = {
        .runs = &run, .num_runs = 1, .wave_ends = &(uint32_t){1}, .num_waves = 1};
    rig_submit(&stage->rig, &submission, &result);
}

// The whole, which is not run as a whole: its output is what merging its parts gives.
START_TEST(parts_merged_by_their_lse_are_the_whole)
{
    static struct part parts[NUM_PARTS + 1];
    struct engine_run_result results[NUM_PARTS + 1];
    struct stage stage;
    struct dice dice = {.state = attention_seed + 5};
    enum parting parting = _i % PARTINGS;
    struct attention_wish wish = merge_wish(parting, DTYPE_F32 + (enum dtype)(_i / PARTINGS % 3));
    wish.shape.features |= _i / PARTINGS % 2 ? FEATURE_SINKS : 0;
    stage_set(&stage, 220 + (uint64_t)_i, &wish);
    struct attention_parameters *parameters = &stage.problem->parameters[0];
    parameters->window_left = parameters->window_right = -1;
    parameters->causal = false;
    stage_play(&stage);
    out_spoil(&stage, &stage.batch);
    for (uint32_t i = 0; i < NUM_PARTS; i++)
        part_make(&parts[i], &stage, parting, i, &dice);
    uint32_t num_parts = NUM_PARTS;
    if (parting == BY_MASK) { // one part without a key
        part_make(&parts[num_parts], &stage, BY_MASK, 1, &dice);
        memset(parts[num_parts].mask, 0, stage.batch.mask_bytes);
        num_parts++;
    }
    struct attention_batch batches[NUM_PARTS + 1];
    for (uint32_t i = 0; i < num_parts; i++)
        batches[i] = parts[i].batch;
    rig_run(&stage.rig, stage.cache, batches, num_parts, results);
    if (parting == BY_MASK)
        out_spoil(&stage, &parts[NUM_PARTS].batch);
    merge_run(&stage, parts, num_parts);
    rig_check(&stage.rig, &stage.batch);
    for (uint32_t i = 0; i < num_parts; i++)
        free(parts[i].mask);
    stage_clear(&stage);
}
END_TEST

void suite_add_splits(Suite *suite)
{
    TCase *splits = suite_part(suite, "splits");
    check_loop(splits, any_number_of_splits_agrees_with_the_oracle, COUNT(SPLIT_CASES));
    tcase_add_test(splits, parts_that_nobody_sees_count_nothing);
    check_loop(splits, parts_merged_by_their_lse_are_the_whole, 3 * PARTINGS);
}
