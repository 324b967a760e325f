// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_suite.c - see attention_suite.h.

#include "attention_suite.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

uint64_t attention_seed;

TCase *suite_part(Suite *suite, const char *name)
{
    TCase *tcase = tcase_create(name);
    suite_add_tcase(suite, tcase);
    return tcase;
}

static enum dtype dtype_bend(enum dtype dtype, enum dtype element)
{
    return dtype_size((int)dtype) == 1 ? dtype : element;
}

static uint32_t head_dim_bend(uint32_t head_dim, uint32_t most)
{
    while (head_dim > most)
        head_dim = head_dim / 16 * 8;
    return head_dim;
}

void suite_shape_bend(struct attention_shape *shape)
{
    const char *variant = getenv("AULE_VARIANT");
    struct engine_kv *kv = &shape->kv;
    bool shared = variant && strcmp(variant, "matrix_shared") == 0,
         native = variant && strcmp(variant, "hopper") == 0,
         both = native || (variant && strcmp(variant, "matrix") == 0);
    if (!variant || (strcmp(variant, "matrix_f16") != 0 && !both && !shared))
        return;
    shape->io_dtype = both && shape->io_dtype == DTYPE_BF16 ? DTYPE_BF16 : DTYPE_F16;
    const uint32_t most = 256;
    kv->k_dtype = dtype_bend(kv->k_dtype, shape->io_dtype);
    kv->v_dtype = dtype_bend(kv->v_dtype, shape->io_dtype);
    kv->head_dim_k = head_dim_bend(kv->head_dim_k, most);
    kv->head_dim_v = head_dim_bend(kv->head_dim_v, most);
    kv->v_is_k_prefix = kv->v_is_k_prefix && shared && kv->head_dim_v <= kv->head_dim_k;
    kv->block_size = kv->block_size < 16 && !shared ? 16 : kv->block_size;
    bool is_whole = kv->k_dtype == shape->io_dtype && kv->v_dtype == shape->io_dtype,
         is_small = dtype_size((int)kv->k_dtype) == 1 && dtype_size((int)kv->v_dtype) == 1;
    if (native && ((is_whole && kv->scale_mode == SCALE_NONE) ||
                   (is_small && kv->scale_mode != SCALE_PER_TOKEN_HEAD)))
        kv->head_dim_k = kv->head_dim_v = 128;
}

struct attention_case *suite_case(uint64_t index, uint64_t kind, const struct attention_wish *wish)
{
    struct dice dice = {.state = attention_seed * 1000003 + index * 31 + kind * 7919};
    struct attention_case *problem = attention_case_create(dice_next(&dice), wish);
    ck_assert_ptr_nonnull(problem);
    return problem;
}

// ---- one case, cut into batches ----

// Cuts the sequences, in random order, into one to three batches.
static uint32_t batches_cut(struct rig *rig, const struct attention_case *problem,
                            struct dice *dice, uint32_t *order, struct attention_batch *batches)
{
    uint32_t num_batches = 0, done = 0;
    for (uint32_t i = 0; i < problem->num_seqs; i++) {
        uint32_t j = dice_below(dice, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    while (done < problem->num_seqs) {
        uint32_t left = problem->num_seqs - done,
                 count = num_batches < 2 ? dice_between(dice, 1, left) : left;
        rig_batch_init(rig, &batches[num_batches++], problem, dice_below(dice, 2), order + done,
                       count, NULL, dice);
        done += count;
    }
    return num_batches;
}

// A window without sides is none; a chunk is a window, too.
static uint32_t features_at_work(const struct attention_parameters *parameters)
{
    bool unbounded = parameters->window_left < 0 && parameters->window_right < 0;
    uint32_t features = parameters->features;
    features &= features & FEATURE_ROPE ? FEATURES_ALL : ~(uint32_t)FEATURE_PAIRS;
    features &= unbounded ? ~(uint32_t)FEATURE_WINDOW : FEATURES_ALL;
    return features & FEATURE_CHUNK ? features | FEATURE_WINDOW : features;
}

// Runs of a wave share a dispatch if they use the same features, whatever their values, and else do
// not. Where sequences go to several kernels, the first of a run need not be its neighbour's.
static void dispatches_check(const struct rig *rig, const struct attention_batch *batches,
                             const struct engine_run_result *results, uint32_t num_batches)
{
    bool kernels = rig_has_kernels(rig);
    for (uint32_t i = 1; i < num_batches; i++) {
        const struct attention_batch *one = &batches[i - 1], *other = &batches[i];
        bool same = features_at_work(one->parameters) == features_at_work(other->parameters);
        if (one->num_tokens == 0 || other->num_tokens == 0 || (same && kernels))
            continue;
        ck_assert_int_eq(results[i].dispatch == results[i - 1].dispatch, same);
    }
}

double suite_case_run(struct rig *rig, struct attention_case *problem, struct dice *dice)
{
    struct attention_batch batches[3] = {0};
    struct engine_run_result results[3];
    uint32_t order[64];
    double worst = 0;
    ck_assert_uint_le(problem->num_seqs, COUNT(order));
    struct engine_cache *cache = rig_cache_open(rig, problem);
    rig_arena_clear(rig);
    uint32_t num_batches = batches_cut(rig, problem, dice, order, batches);
    rig_run(rig, cache, batches, num_batches, results);
    dispatches_check(rig, batches, results, num_batches);
    if (problem->shape.place != ENGINE_ROWS) {
        rig_blocks_adopt(rig, cache, problem);
        rig_blocks_check(rig, cache, problem, problem->after);
    }
    for (uint32_t i = 0; i < num_batches; i++) {
        double error = rig_check(rig, &batches[i]);
        worst = error > worst ? error : worst;
        attention_batch_finish(&batches[i]);
    }
    if (cache)
        engine_cache_destroy(cache);
    return worst;
}

void suite_wish_run(const struct attention_wish *wish, uint64_t kind, bool force_staging)
{
    struct rig rig;
    struct dice dice = {.state = attention_seed + kind};
    rig_open(&rig, force_staging, false);
    struct attention_case *problem = suite_case(0, kind, wish);
    suite_case_run(&rig, problem, &dice);
    attention_case_destroy(problem);
    rig_close(&rig);
}

// ---- the stage ----

void stage_set(struct stage *stage, uint64_t kind, const struct attention_wish *wish)
{
    memset(stage, 0, sizeof *stage);
    rig_open(&stage->rig, false, false);
    stage->problem = suite_case(0, kind, wish);
}

void stage_play(struct stage *stage)
{
    const struct attention_form form = {.tokens = TOKENS_PLAIN,
                                        .place = stage->problem->shape.place};
    struct dice dice = {.state = attention_seed};
    uint32_t order[256];
    ck_assert_uint_le(stage->problem->num_seqs, COUNT(order));
    for (uint32_t i = 0; i < stage->problem->num_seqs; i++)
        order[i] = i;
    stage->cache = rig_cache_open(&stage->rig, stage->problem);
    rig_arena_clear(&stage->rig);
    rig_batch_init(&stage->rig, &stage->batch, stage->problem, 0, order, stage->problem->num_seqs,
                   &form, &dice);
    stage_replay(stage);
}

void stage_replay(struct stage *stage)
{
    struct engine_run_result result;
    rig_run(&stage->rig, stage->cache, &stage->batch, 1, &result);
}

void stage_clear(struct stage *stage)
{
    attention_batch_finish(&stage->batch);
    if (stage->cache)
        engine_cache_destroy(stage->cache);
    attention_case_destroy(stage->problem);
    rig_close(&stage->rig);
}

const void *stage_row(const struct stage *stage, uint32_t token, uint32_t head)
{
    return stage->rig.image.bytes + stage->batch.out.offset +
           token * stage->batch.out.token_stride + head * stage->batch.out.head_stride;
}

float stage_lse(const struct stage *stage, uint32_t token, uint32_t head)
{
    float lse;
    uint64_t at =
        stage->batch.lse.offset + token * stage->batch.lse.token_stride + head * sizeof lse;
    memcpy(&lse, stage->rig.image.bytes + at, sizeof lse);
    return lse;
}
