// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_attention_bits.c - what holds to the last bit: a row in any company and from any place, NaN
// that stays where it is, outputs that are one rounding, blocks that are zeroed. The conversions of
// what is written are test_kv.c's.

#include "attention_suite.h"
#include "oracle/numbers.h"
#include "rigs/check_main.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

// ---- same bits ----

struct rows {
    uint8_t *bytes; // [tokens of all sequences of the case][heads * head_dim, then heads LSE],
                    // sequence by sequence
    uint64_t token_bytes;
};

static void token_collect(uint8_t *to, const struct attention_batch *batch, uint32_t seq,
                          uint32_t i, const uint8_t *arena)
{
    const struct attention_shape *shape = &batch->problem->shape;
    uint64_t row = (uint64_t)shape->kv.head_dim_v * dtype_size((int)shape->io_dtype);
    const uint8_t *from = arena + attention_batch_at(batch, &batch->out, seq, i);
    uint32_t heads = shape_heads(shape);
    for (uint32_t h = 0; h < heads; h++)
        memcpy(to + h * row, from + h * batch->out.head_stride, row);
    if (batch->lse.dtype)
        memcpy(to + heads * row, arena + attention_batch_lse_at(batch, seq, i),
               heads * sizeof(float));
}

static void rows_collect(struct rows *rows, const struct attention_batch *batch,
                         const uint32_t *order, const uint8_t *arena)
{
    const struct attention_case *problem = batch->problem;
    for (uint32_t s = 0; s < batch->num_seqs; s++) {
        uint64_t first = 0;
        for (uint32_t before = 0; before < order[s]; before++)
            first += problem->seqs[before].q_len;
        for (uint32_t i = 0; i < problem->seqs[order[s]].q_len; i++)
            token_collect(rows->bytes + (first + i) * rows->token_bytes, batch, s, i, arena);
    }
}

static uint64_t case_tokens(const struct attention_case *problem)
{
    uint64_t tokens = 0;
    for (uint32_t s = 0; s < problem->num_seqs; s++)
        tokens += problem->seqs[s].q_len;
    return tokens;
}

// All that have work to do must have shared one dispatch. Where sequences go to several kernels,
// and these choose their size by how much there is to do, they need not.
static void merged_check(const struct rig *rig, const struct attention_batch *batches,
                         const struct engine_run_result *results, uint32_t num_batches)
{
    int64_t dispatch = -1;
    if (rig_has_kernels(rig))
        return;
    for (uint32_t i = 0; i < num_batches; i++) {
        if (batches[i].num_tokens == 0)
            continue;
        if (dispatch >= 0)
            ck_assert_int_eq(results[i].dispatch, dispatch);
        dispatch = results[i].dispatch;
    }
    ck_assert_int_ge(dispatch, 0);
}

enum { SEQUENCES = 8 };

static const struct arrangement {
    const char *name;
    uint32_t size; // sequences a batch
    bool together; // in one dispatch
    bool backwards;
    struct attention_form form;
    bool mixed; // each batch in another place than the one before, which needs other dispatches
    uint32_t slices; // as of struct rig; not with mirrored arenas
} ARRANGEMENTS[] = {
    {"all in one batch", 8, false, false, {TOKENS_PLAIN, ENGINE_POOL}, false, 0},
    {"each alone", 1, false, false, {TOKENS_PLAIN, ENGINE_POOL}, false, 0},
    {"at other places of the batch", 8, false, true, {TOKENS_PLAIN, ENGINE_POOL}, false, 0},
    {"merged with other runs", 1, true, true, {TOKENS_ANY, ENGINE_POOL}, false, 0},
    {"merged in threes", 3, true, false, {TOKENS_ANY, ENGINE_POOL}, false, 0},
    {"with interleaved tokens", 8, false, false, {TOKENS_INTERLEAVED, ENGINE_POOL}, false, 0},
    {"among tokens that are no queries", 8, false, true, {TOKENS_PADDED, ENGINE_POOL}, false, 0},
    {"with an outer stride", 8, false, false, {TOKENS_DENSE, ENGINE_POOL}, false, 0},
    {"in slices", 8, false, true, {TOKENS_ANY, ENGINE_POOL}, false, 3},
    {"in more slices than tiles", 8, false, false, {TOKENS_PADDED, ENGINE_POOL}, false, 40},
    {"in slices, from block tensors", 3, false, false, {TOKENS_ANY, ENGINE_BLOCKS}, false, 5},
    {"in slices, from contiguous rows", 8, false, false, {TOKENS_ANY, ENGINE_ROWS}, false, 4},
    {"from block tensors", 8, false, false, {TOKENS_PLAIN, ENGINE_BLOCKS}, false, 0},
    {"from block tensors, merged in threes",
     3,
     true,
     true,
     {TOKENS_INTERLEAVED, ENGINE_BLOCKS},
     false,
     0},
    {"from contiguous rows", 8, false, false, {TOKENS_PLAIN, ENGINE_ROWS}, false, 0},
    {"from contiguous rows, each alone", 1, false, false, {TOKENS_ANY, ENGINE_ROWS}, false, 0},
    {"from contiguous rows, in threes", 3, true, true, {TOKENS_DENSE, ENGINE_ROWS}, false, 0},
    {"beside runs over other places", 3, true, false, {TOKENS_ANY, ENGINE_BLOCKS}, true, 0},
};

// Runs the case's sequences as the arrangement says and collects the rows.
static void arrangement_run(struct rig *rig, struct engine_cache *cache,
                            const struct arrangement *arrangement,
                            const struct attention_case *problem, struct rows *rows)
{
    struct attention_batch batches[RIG_MAX_RUNS] = {0};
    struct engine_run_result results[RIG_MAX_RUNS];
    struct dice dice = {.state = attention_seed + arrangement->size};
    uint32_t order[SEQUENCES], num_batches = 0, size = arrangement->size;
    for (uint32_t i = 0; i < SEQUENCES; i++)
        order[i] = arrangement->backwards ? SEQUENCES - 1 - i : i;
    memset(rows->bytes, 0xff, case_tokens(problem) * rows->token_bytes);
    rig->slices = arrangement->slices;
    rig_arena_clear(rig);
    for (uint32_t at = 0; at < SEQUENCES; at += size) {
        uint32_t count = at + size <= SEQUENCES ? size : SEQUENCES - at;
        struct attention_form form = arrangement->form;
        if (arrangement->mixed)
            form.place = num_batches % 3;
        rig_batch_init(rig, &batches[num_batches++], problem, 0, order + at, count, &form, &dice);
    }
    if (arrangement->together)
        rig_run(rig, cache, batches, num_batches, results);
    if (arrangement->together && !arrangement->mixed)
        merged_check(rig, batches, results, num_batches);
    for (uint32_t i = 0; i < num_batches; i++) {
        if (!arrangement->together)
            rig_run(rig, cache, &batches[i], 1, results);
        rows_collect(rows, &batches[i], order + i * size, rig->image.bytes);
        attention_batch_finish(&batches[i]);
    }
}

static void rows_compare(const struct rows *first, const struct rows *other, uint64_t size,
                         const char *name)
{
    for (uint64_t at = 0; memcmp(first->bytes, other->bytes, size) != 0 && at < size; at++)
        if (first->bytes[at] != other->bytes[at])
            ck_abort_msg("%s: byte %" PRIu64 " of token %" PRIu64
                         " differs: %02x, and %02x in one batch",
                         name, at % first->token_bytes, at / first->token_bytes, other->bytes[at],
                         first->bytes[at]);
}

// The first arrangement over imported memory gives the rows that all others must give. Scales by
// token and head are the pool's alone.
static void arrangements_compare(const struct attention_case *problem, struct rows *first,
                                 struct rows *other)
{
    uint64_t size = case_tokens(problem) * first->token_bytes;
    for (int staged = 0; staged < 2; staged++) {
        struct rig rig;
        rig_open(&rig, staged, false);
        struct engine_cache *cache = rig_cache_open(&rig, problem);
        for (size_t i = 0; i < COUNT(ARRANGEMENTS); i++) {
            bool is_first = !staged && i == 0;
            if (staged && ARRANGEMENTS[i].slices)
                continue;
            if (ARRANGEMENTS[i].form.place != ENGINE_POOL &&
                problem->shape.kv.scale_mode == SCALE_PER_TOKEN_HEAD)
                continue;
            arrangement_run(&rig, cache, &ARRANGEMENTS[i], problem, is_first ? first : other);
            if (!is_first)
                rows_compare(first, other, size, ARRANGEMENTS[i].name);
        }
        engine_cache_destroy(cache);
        rig_close(&rig);
    }
}

static const struct {
    uint32_t features, num_splits, head_dim_k, head_dim_v;
    enum dtype kv_dtype; // 0: any
    enum scale_mode scale_mode;
    bool v_in_k;
    enum dtype io_dtype; // 0: any
} SAME_BITS[] = {
    {0, 1, 64, 64, 0, SCALE_NONE, false, 0},
    {FEATURE_CHUNK, 0, 40, 40, 0, SCALE_NONE, false, 0},
    {0, 3, 64, 128, DTYPE_F16, SCALE_NONE, false, 0},
    {FEATURE_WINDOW | FEATURE_SINKS | FEATURE_LSE, 1, 40, 40, 0, SCALE_NONE, false, 0},
    {FEATURE_MASK | FEATURE_ALIBI | FEATURE_POSITIONS, 4, 64, 64, DTYPE_BF16, SCALE_NONE, false, 0},
    {FEATURES_ALL, 1, 40, 24, 0, SCALE_NONE, false, 0},
    {FEATURES_ALL, 5, 64, 64, DTYPE_FP8_E4M3, SCALE_PER_TENSOR, false, 0},
    {FEATURE_ROPE | FEATURE_LSE, 2, 128, 128, DTYPE_INT8, SCALE_PER_TOKEN_HEAD, false, 0},
    {FEATURE_LSE | FEATURE_SINKS, 2, 72, 64, DTYPE_F16, SCALE_NONE, true, 0},
    {FEATURE_LSE, 2, 64, 64, DTYPE_BF16, SCALE_NONE, false, DTYPE_BF16},
    {FEATURE_LSE, 1, 64, 40, DTYPE_FP8_E4M3, SCALE_PER_TENSOR, false, DTYPE_F16},
    {FEATURE_LSE, 1, 136, 160, DTYPE_F16, SCALE_NONE, false, DTYPE_F16},
    {FEATURE_LSE, 0, 256, 256, DTYPE_F16, SCALE_NONE, false, DTYPE_F16},
    {FEATURE_WINDOW, 2, 192, 128, DTYPE_INT8, SCALE_PER_TENSOR, false, DTYPE_F16},
    {0, 3, 96, 136, DTYPE_BF16, SCALE_NONE, false, DTYPE_BF16},
    {FEATURE_LSE, 0, 64, 64, DTYPE_FP8_E4M3, SCALE_PER_TOKEN_HEAD, false, DTYPE_F16},
    {0, 3, 32, 32, DTYPE_INT8, SCALE_PER_TOKEN_HEAD, false, DTYPE_BF16},
    {FEATURE_LSE | FEATURE_SINKS, 1, 32, 32, DTYPE_INT8, SCALE_PER_TOKEN_HEAD, false, DTYPE_F16},
};

static struct attention_wish same_bits_wish(int number)
{
    return (struct attention_wish){
        .shape = {.kv = {.head_dim_k = SAME_BITS[number].head_dim_k,
                         .head_dim_v = SAME_BITS[number].head_dim_v,
                         .num_kv_heads = SAME_BITS[number].v_in_k ? 1 : 2,
                         .block_size = number % 2 ? 64 : 16,
                         .k_dtype = SAME_BITS[number].kv_dtype,
                         .v_dtype = SAME_BITS[number].kv_dtype,
                         .scale_mode = SAME_BITS[number].scale_mode,
                         .v_is_k_prefix = SAME_BITS[number].v_in_k},
                  .group = (uint32_t)number % 3 + 1,
                  .io_dtype = SAME_BITS[number].io_dtype,
                  .features = SAME_BITS[number].features,
                  .num_splits = SAME_BITS[number].num_splits},
        .num_seqs = SEQUENCES,
        .longest = number ? 1300 : 2500,
        .work = 8000,
        .writes = WRITES_NONE};
}

START_TEST(a_row_has_the_same_bits_in_any_company_and_from_any_place)
{
    struct attention_wish wish = same_bits_wish(_i);
    suite_shape_bend(&wish.shape);
    struct attention_case *problem = suite_case((uint64_t)_i, 4, &wish);
    const struct attention_shape *shape = &problem->shape;
    uint64_t row =
        (uint64_t)shape->kv.head_dim_v * dtype_size((int)shape->io_dtype) + sizeof(float);
    struct rows first = {.token_bytes = shape_heads(shape) * row};
    struct rows other = first;
    first.bytes = malloc(case_tokens(problem) * first.token_bytes + 1);
    other.bytes = malloc(case_tokens(problem) * first.token_bytes + 1);
    ck_assert_ptr_nonnull(first.bytes);
    ck_assert_ptr_nonnull(other.bytes);
    arrangements_compare(problem, &first, &other);
    free(first.bytes);
    free(other.bytes);
    attention_case_destroy(problem);
}
END_TEST

// A prefill and its tokens read once more by a run that writes nothing, a wave later: the same
// rows. Both are split, so that one wave's partial results follow another's.
START_TEST(a_later_wave_reads_what_an_earlier_one_wrote)
{
    struct stage stage;
    struct attention_batch batches[2];
    struct engine_run_result results[2];
    struct dice dice = {.state = attention_seed + 3};
    struct attention_wish wish = {
        .shape = {.place = _i,
                  .kv = {.head_dim_k = 40, .num_kv_heads = 2, .block_size = 16},
                  .group = 2,
                  .causal = true,
                  .num_splits = 3,
                  .features = FEATURE_LSE},
        .num_seqs = 2,
        .q_len = 9,
        .kv_len = 800,
        .writes = WRITES_ALL};
    stage_set(&stage, 30 + (uint64_t)_i, &wish);
    const struct attention_shape *shape = &stage.problem->shape;
    stage.cache = rig_cache_open(&stage.rig, stage.problem);
    rig_arena_clear(&stage.rig);
    const struct attention_form form = {.tokens = TOKENS_PLAIN, .place = wish.shape.place};
    rig_batch_init(&stage.rig, &stage.batch, stage.problem, 0, (uint32_t[]){0, 1}, 2, &form, &dice);
    batches[0] = batches[1] = stage.batch;
    batches[1].slot_mapping = NULL;
    batches[1].out =
        attention_image_place(&stage.rig.image, &dice, shape->io_dtype, stage.batch.num_tokens,
                              shape_heads(shape), shape->kv.head_dim_v);
    batches[1].lse = attention_image_place_lse(&stage.rig.image, &dice, stage.batch.num_tokens,
                                               shape_heads(shape));
    rig_run_waves(&stage.rig, stage.cache, batches, (uint32_t[]){1, 2}, 2, results);
    rig_blocks_check(&stage.rig, stage.cache, stage.problem, stage.problem->after);
    uint64_t token_bytes =
        shape_heads(shape) * ((uint64_t)shape->kv.head_dim_v * 4 + sizeof(float));
    uint8_t *one = calloc(2, token_bytes);
    ck_assert_ptr_nonnull(one);
    for (uint32_t t = 0; t < stage.batch.num_tokens; t++) {
        token_collect(one, &batches[0], t / 9, t % 9, stage.rig.image.bytes);
        token_collect(one + token_bytes, &batches[1], t / 9, t % 9, stage.rig.image.bytes);
        ck_assert_mem_eq(one, one + token_bytes, token_bytes);
    }
    free(one);
    rig_check(&stage.rig, &batches[1]);
    stage_clear(&stage);
}
END_TEST

// ---- what a row must not see ----

// Keys, and values where they are weighed one by one: a product of matrices takes all values of a
// tile, and nothing times NaN is NaN.
static void token_spoil(const struct attention_case *problem, uint32_t token, bool values)
{
    const struct attention_shape *shape = &problem->shape;
    const struct attention_seq *seq = &problem->seqs[0];
    for (uint32_t i = 0; i < 4; i += values ? 1 : 2)
        for (uint32_t d = 0; d < shape->kv.head_dim_k; d++) { // both heads of K and of V
            uint64_t at = ((uint64_t)token * 2 + i / 2) * shape->kv.head_dim_k + d;
            if (seq->slots)
                oracle_store(i % 2 ? seq->v : seq->k, shape->io_dtype, at, NAN);
            else
                oracle_store(attention_case_element(problem, seq, i / 2, token, i % 2, false),
                             i % 2 ? shape->kv.v_dtype : shape->kv.k_dtype, d, NAN);
        }
}

START_TEST(the_nan_of_a_later_token_reaches_no_earlier_row)
{
    const uint32_t tokens = 45, poisoned = 29;
    struct stage stage;
    struct attention_wish wish = {
        .shape = {.place = _i / 2,
                  .kv = {.head_dim_k = 32, .num_kv_heads = 2, .block_size = 16},
                  .group = 2,
                  .causal = true,
                  .num_splits = 1},
        .num_seqs = 1,
        .q_len = tokens,
        .kv_len = tokens,
        .writes = _i % 2 ? WRITES_ALL : WRITES_NONE};
    stage_set(&stage, 5, &wish);
    token_spoil(stage.problem, poisoned, !rig_has_kernels(&stage.rig));
    stage_play(&stage);
    stage.batch.num_tokens = poisoned; // the rows before it
    rig_check(&stage.rig, &stage.batch);
    stage_clear(&stage);
}
END_TEST

// ---- outputs ----

// Floats at and around every border between two numbers of the type.
static float border_value(enum dtype dtype, uint32_t index)
{
    uint32_t bits = index * 0x9e37u & 0xffffu;
    double low = numbers_value(dtype, bits & 0xfffe),
           high = numbers_value(dtype, (bits & 0xfffe) + 1);
    float middle = (float)((low + high) / 2);
    if (!isfinite(middle))
        return 1;
    switch (index % 4) {
    case 0: return middle;
    case 1: return nextafterf(middle, INFINITY);
    case 2: return nextafterf(middle, -INFINITY);
    default: return (float)low;
    }
}

static void output_check(const struct stage *stage, uint32_t seq, uint32_t head, uint32_t d)
{
    enum dtype dtype = stage->problem->shape.io_dtype;
    const float *v =
        attention_case_element(stage->problem, &stage->problem->seqs[seq], head, 0, true, false);
    uint32_t expected = numbers_round(dtype, v[d]),
             got = numbers_bits(stage_row(stage, seq, head), dtype, d);
    bool flushed = fabsf(v[d]) < 0x1p-126f &&
                   (got & 0x7fff) == 0; // a device may treat what is subnormal as f32 as 0
    if (got != expected && (got | expected) != 0x8000 && !flushed) // a zero may lose its sign
        ck_abort_msg("%a became %04x, expected %04x", (double)v[d], got, expected);
}

// A sequence of one key gives back its V: so every output is one rounding of a float. 256
// sequences, 4 heads of 64 dims.
START_TEST(outputs_round_to_the_nearest_number)
{
    struct stage stage;
    struct attention_wish wish = {.shape = {.kv = {.head_dim_k = 64,
                                                   .num_kv_heads = 4,
                                                   .block_size = 32,
                                                   .v_dtype = DTYPE_F32},
                                            .group = 1,
                                            .io_dtype = _i ? DTYPE_BF16 : DTYPE_F16,
                                            .num_splits = 1},
                                  .num_seqs = 256,
                                  .q_len = 1,
                                  .kv_len = 1,
                                  .writes = WRITES_NONE};
    stage_set(&stage, 7, &wish);
    for (uint32_t i = 0; i < 65536; i++) {
        float *v = attention_case_element(stage.problem, &stage.problem->seqs[i / 256], i / 64 % 4,
                                          0, true, false);
        v[i % 64] = border_value(wish.shape.io_dtype, i);
    }
    stage_play(&stage);
    for (uint32_t i = 0; i < 65536; i++)
        output_check(&stage, i / 256, i / 64 % 4, i % 64);
    stage_clear(&stage);
}
END_TEST

// ---- zeroing ----

START_TEST(zeroed_blocks_are_zero_and_their_neighbours_stay)
{
    struct rig rig;
    struct attention_wish wish = {
        .shape = {.kv = {.head_dim_k = 40,
                         .num_kv_heads = 3,
                         .block_size = 8,
                         .k_dtype = _i / 2 ? DTYPE_INT8 : DTYPE_F32,
                         .v_dtype = _i / 2 ? DTYPE_FP8_E5M2 : DTYPE_F16,
                         .scale_mode = _i / 2 ? SCALE_PER_TOKEN_HEAD : SCALE_NONE},
                  .group = 1,
                  .num_layers = 3,
                  .chunk_blocks = 4},
        .num_seqs = 1,
        .q_len = 1,
        .kv_len = 70,
        .writes = WRITES_NONE};
    rig_open(&rig, _i % 2, false);
    struct attention_case *problem = suite_case((uint64_t)_i, 8, &wish);
    struct engine_cache *cache = rig_cache_open(&rig, problem);
    struct engine_zero zeroes[] = {
        {cache, 0}, {cache, 5}, {cache, (int32_t)problem->num_blocks - 1}};
    struct engine_submission submission = {.zeroes = zeroes, .num_zeroes = COUNT(zeroes)};
    rig_submit(&rig, &submission, NULL);
    for (size_t i = 0; i < COUNT(zeroes); i++)
        memset(problem->before[zeroes[i].block], 0, problem->block_bytes);
    rig_blocks_check(&rig, cache, problem, problem->before);
    engine_cache_destroy(cache);
    attention_case_destroy(problem);
    rig_close(&rig);
}
END_TEST

void suite_add_bits(Suite *suite)
{
    TCase *bits = suite_part(suite, "bits");
    check_loop(bits, a_row_has_the_same_bits_in_any_company_and_from_any_place, COUNT(SAME_BITS));
    check_loop(bits, a_later_wave_reads_what_an_earlier_one_wrote, 2);    // pool, block tensors
    check_loop(bits, the_nan_of_a_later_token_reaches_no_earlier_row, 5); // rows write nothing
    check_loop(bits, outputs_round_to_the_nearest_number, 2);
    check_loop(bits, zeroed_blocks_are_zero_and_their_neighbours_stay, 4);
}
