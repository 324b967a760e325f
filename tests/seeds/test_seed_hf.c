// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_seed_hf.c - the two worked examples of "Paged attention" (continuous batching of
// transformers): ragged prefill of three sequences, whose keys are gathered from the cache, and
// decode of three sequences with in-place append. They run through the client and a daemon, and are
// compared with float64.

#include "rigs/seed_world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NUM_SEQS = 3, BLOCK = 32 };
static const enum aule_dtype dtypes[] = {AULE_F32, AULE_F16, AULE_BF16};
enum { NUM_DTYPES = sizeof dtypes / sizeof *dtypes };

// ---- varlen: query lengths 10, 3 and 1, key lengths 0, 1 and 7 ----

enum { VARLEN_TOKENS = 14, VARLEN_KEYS = 8 };
static const int32_t varlen_cu_q[] = {0, 10, 13, VARLEN_TOKENS},
                     varlen_cu_k[] = {0, 0, 1, VARLEN_KEYS};
static const int32_t varlen_lens[] = {0, 1, 7};

// The keys as the example's K and V: [8, kv_heads, dim], sequence by sequence.
static void create_keys(const struct seed_step *step, enum seed_what what,
                        struct aule_tensor *tensor)
{
    ok(aule_tensor_create(step->session, step->dtype, VARLEN_KEYS, SEED_KV_HEADS, SEED_DIM,
                          tensor));
    uint8_t *data = aule_tensor_data(step->session, tensor);
    for (int32_t s = 0; s < NUM_SEQS; s++)
        for (int32_t j = 0; j < varlen_lens[s]; j++)
            seed_put_row(data + (size_t)(varlen_cu_k[s] + j) * tensor->token_stride,
                         tensor->head_stride, step->dtype, SEED_KV_HEADS, what, s, j);
}

static struct aule_kv_layout contiguous_layout(enum aule_dtype dtype)
{
    return (struct aule_kv_layout){
        .num_kv_heads = SEED_KV_HEADS, .head_dim = SEED_DIM, .k_dtype = dtype, .v_dtype = dtype};
}

static struct aule_batch *create_varlen(const struct seed_step *step)
{
    const struct aule_kv_layout layout = contiguous_layout(step->dtype);
    struct aule_metadata metadata;
    struct aule_batch *batch = NULL;
    ok(aule_metadata_varlen(NUM_SEQS, varlen_cu_q, varlen_cu_k, 10, 7, &metadata));
    ok(aule_batch_create_local(step->session, &layout, &metadata.params, &batch));
    aule_metadata_finish(&metadata);
    return batch;
}

static struct seed_step open_varlen(struct aule_session *session, enum aule_dtype dtype)
{
    struct seed_step step = {.session = session,
                             .dtype = dtype,
                             .num_seqs = NUM_SEQS,
                             .cu_q = varlen_cu_q,
                             .lens = varlen_lens};
    seed_step_open(&step);
    return step;
}

// Whether all bytes are zero.
static bool is_zero(const void *data, size_t size)
{
    const uint8_t *bytes = data;
    for (size_t i = 0; i < size; i++)
        if (bytes[i])
            return false;
    return true;
}

static void expect_r0_sees_nothing(const struct seed_step *step)
{
    const float *lse = aule_tensor_data(step->session, &step->lse);
    ck_assert(is_zero(seed_step_out(step, 0), 10 * seed_row_size(step->dtype, SEED_HEADS)));
    for (int i = 0; i < 10 * SEED_HEADS; i++)
        ck_assert(isinf(lse[i]) && lse[i] < 0);
}

START_TEST(varlen_q_10_3_1_over_k_0_1_7_and_the_first_sees_no_key)
{
    struct aule_session *session = seed_open(0);
    struct seed_step step = open_varlen(session, dtypes[_i]);
    struct aule_run_params run = seed_step_run(&step);
    create_keys(&step, SEED_K, &run.keys);
    create_keys(&step, SEED_V, &run.values);
    seed_step_finish(&step, create_varlen(&step), &run);
    seed_step_expect(&step, NULL, &run, "causal");
    expect_r0_sees_nothing(&step);
    run.causal = false;
    seed_step_finish(&step, create_varlen(&step), &run);
    seed_step_expect(&step, NULL, &run, "every key");
    expect_r0_sees_nothing(&step);
    aule_session_close(session);
}
END_TEST

// "The kernel assigns each query and key token to a sequence": r1 does not see r2's keys.
START_TEST(varlen_queries_read_the_keys_of_their_own_request_alone)
{
    struct aule_session *session = seed_open(0);
    struct seed_step step = open_varlen(session, AULE_F32);
    struct aule_run_params run = seed_step_run(&step);
    uint8_t before[3 * SEED_HEADS * SEED_DIM * sizeof(float)];
    create_keys(&step, SEED_K, &run.keys);
    create_keys(&step, SEED_V, &run.values);
    seed_step_finish(&step, create_varlen(&step), &run);
    memcpy(before, seed_step_out(&step, 10), sizeof before);
    memset((uint8_t *)aule_tensor_data(session, &run.keys) + run.keys.token_stride, 0xff,
           7 * run.keys.token_stride);
    memset((uint8_t *)aule_tensor_data(session, &run.values) + run.values.token_stride, 0xff,
           7 * run.values.token_stride);
    seed_step_finish(&step, create_varlen(&step), &run);
    ck_assert_mem_eq(before, seed_step_out(&step, 10), sizeof before);
    expect_r0_sees_nothing(&step);
    ck_assert(isnan(((const float *)seed_step_out(&step, 13))[0]));
    aule_session_close(session);
}
END_TEST

// ---- update(): the cache's contents, gathered for the varlen kernel ----

struct gathered {
    struct aule_kv_gather params; // k and v: [rows, kv_heads, dim]
    uint32_t rows;
};

static struct gathered gather(const struct seed_step *step, struct aule_batch *batch, uint32_t rows)
{
    struct gathered gathered = {.rows = rows};
    struct aule_ticket ticket;
    struct aule_tensor *tensors[] = {&gathered.params.k, &gathered.params.v};
    for (int i = 0; i < 2; i++) {
        ok(aule_tensor_create(step->session, step->dtype, rows, SEED_KV_HEADS, SEED_DIM,
                              tensors[i]));
        memset(aule_tensor_data(step->session, tensors[i]), 0xff, rows * tensors[i]->token_stride);
    }
    ok(aule_kv_gather(batch, &gathered.params, SEED_WAIT_MS, &ticket));
    ok(aule_ticket_wait(step->session, ticket, SEED_WAIT_MS, NULL));
    return gathered;
}

// The bits of a row of `what`, as in the seed's own K and V.
static void expect_stored(const void *got, const struct seed_step *step, enum seed_what what,
                          int32_t seq, int32_t j)
{
    uint8_t wanted[SEED_KV_HEADS * SEED_DIM * sizeof(float)];
    size_t size = seed_row_size(step->dtype, SEED_KV_HEADS);
    seed_put_row(wanted, size / SEED_KV_HEADS, step->dtype, SEED_KV_HEADS, what, seq, j);
    for (size_t i = 0; i < size; i++)
        ck_assert_msg(wanted[i] == ((const uint8_t *)got)[i],
                      "%s of sequence %d, key %d: byte %zu is %02x, not %02x",
                      what == SEED_K ? "K" : "V", seq, j, i, ((const uint8_t *)got)[i], wanted[i]);
}

static void expect_gathered(const struct seed_step *step, const struct gathered *gathered,
                            const int32_t *lens)
{
    const struct aule_tensor *k = &gathered->params.k, *v = &gathered->params.v;
    uint32_t row = 0;
    for (int32_t s = 0; s < NUM_SEQS; s++)
        for (int32_t j = 0; j < lens[s]; j++, row++) {
            expect_stored((uint8_t *)aule_tensor_data(step->session, k) + row * k->token_stride,
                          step, SEED_K, s, j);
            expect_stored((uint8_t *)aule_tensor_data(step->session, v) + row * v->token_stride,
                          step, SEED_V, s, j);
        }
    ck_assert_uint_eq(row, gathered->rows);
}

// The example's keys are in blocks. Gathered, they are the K and V of its drawing, and both kernels
// then give the same bits.
START_TEST(update_hands_the_cached_keys_and_values_to_the_varlen_path)
{
    int32_t table[NUM_SEQS];
    struct aule_session *session = seed_open(0);
    struct aule_cache *cache = seed_cache(session, AULE_F32, BLOCK);
    struct seed_step step = open_varlen(session, AULE_F32);
    struct aule_run_params run = seed_step_run(&step);
    struct aule_batch_params params = seed_step_batch(&step);
    struct aule_batch *batch = NULL;
    uint8_t paged[VARLEN_TOKENS * SEED_HEADS * SEED_DIM * sizeof(float)];
    seed_lease(session, cache, AULE_F32, BLOCK, NUM_SEQS, table);
    for (int32_t s = 0; s < NUM_SEQS; s++)
        if (varlen_lens[s] > 0)
            seed_import(session, cache, AULE_F32, &table[s], BLOCK, s, 0, varlen_lens[s]);
    params.max_blocks = 1;
    params.block_table = table;
    ok(aule_batch_create(cache, &params, &batch));
    struct gathered gathered = gather(&step, batch, VARLEN_KEYS);
    expect_gathered(&step, &gathered, varlen_lens);
    seed_step_finish(&step, batch, &run);
    seed_step_expect(&step, NULL, &run, "over blocks");
    memcpy(paged, seed_step_out(&step, 0), sizeof paged);

    run.keys = gathered.params.k;
    run.values = gathered.params.v;
    seed_step_finish(&step, create_varlen(&step), &run);
    ck_assert_mem_eq(paged, seed_step_out(&step, 0), sizeof paged);
    ok(aule_blocks_release(cache, NUM_SEQS, table));
    seed_expect_all_free(cache);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// As update() does in each step: this step's keys are appended to the earlier ones, and all are
// gathered.
START_TEST(update_writes_the_new_keys_and_hands_out_old_and_new)
{
    static const int32_t lens[] = {10, 4, 8}; // including those of the queries
    int32_t table[NUM_SEQS];
    int64_t slots[VARLEN_TOKENS];
    struct aule_session *session = seed_open(0);
    struct aule_cache *cache = seed_cache(session, AULE_F32, BLOCK);
    struct seed_step step = {.session = session,
                             .dtype = AULE_F32,
                             .num_seqs = NUM_SEQS,
                             .cu_q = varlen_cu_q,
                             .lens = lens};
    struct aule_batch *batch = NULL;
    seed_step_open(&step);
    struct aule_run_params run = seed_step_run(&step);
    struct aule_batch_params params = seed_step_batch(&step);
    seed_lease(session, cache, AULE_F32, BLOCK, NUM_SEQS, table);
    for (int32_t s = 0; s < NUM_SEQS; s++) {
        if (varlen_lens[s] > 0)
            seed_import(session, cache, AULE_F32, &table[s], BLOCK, s, 0, varlen_lens[s]);
        for (int32_t t = varlen_cu_q[s]; t < varlen_cu_q[s + 1]; t++)
            slots[t] = seed_slot(&table[s], BLOCK, varlen_lens[s] + t - varlen_cu_q[s]);
    }
    params.max_blocks = 1;
    params.block_table = table;
    params.slot_mapping = slots;
    ok(aule_batch_create(cache, &params, &batch));
    seed_step_clear(&step);
    ok(aule_run(batch, &run, SEED_WAIT_MS, NULL));
    seed_step_expect(&step, NULL, &run, "old and new keys");
    struct gathered gathered = gather(&step, batch, 10 + 4 + 8);
    expect_gathered(&step, &gathered, lens);
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// ---- decode: 30, 32 and 70 cached tokens, blocks of 32 ----

enum { COLUMNS = 4, NUM_BLOCKS = 7, DECODE_KEYS = 31 + 33 + 71 };
static const int32_t decode_cu_q[] = {0, 1, 2, 3}, cache_seqlens[] = {30, 32, 70},
                     decode_lens[] = {31, 33, 71};
static const int32_t decode_table[NUM_SEQS * COLUMNS] = {2, -1, -1, -1, 0, 1, -1, -1, 3, 5, 6, -1};
// The places of the new tokens: after 30 tokens of block 2, at the start of block 1, after 6 tokens
// of block 6.
static const int64_t decode_slots[] = {2 * BLOCK + 30, 1 * BLOCK + 0, 6 * BLOCK + 6};

static struct seed_step open_decode(struct aule_session *session, enum aule_dtype dtype)
{
    struct seed_step step = {.session = session,
                             .dtype = dtype,
                             .num_seqs = NUM_SEQS,
                             .cu_q = decode_cu_q,
                             .lens = decode_lens};
    seed_step_open(&step);
    return step;
}

static void append(const int32_t *table, struct aule_metadata *metadata)
{
    ok(aule_metadata_append(NUM_SEQS, cache_seqlens, table, COLUMNS, BLOCK, metadata));
    for (int s = 0; s < NUM_SEQS; s++)
        ck_assert_int_eq(metadata->params.seq_lens_kv[s], decode_lens[s]);
}

START_TEST(decode_30_32_70_appends_in_place_in_the_pool)
{
    int32_t ids[NUM_BLOCKS], table[NUM_SEQS * COLUMNS];
    struct aule_session *session = seed_open(0);
    struct aule_cache *cache = seed_cache(session, dtypes[_i], BLOCK);
    struct seed_step step = open_decode(session, dtypes[_i]);
    struct aule_run_params run = seed_step_run(&step);
    struct aule_metadata metadata;
    struct aule_batch *batch = NULL;
    seed_lease(session, cache, dtypes[_i], BLOCK, NUM_BLOCKS,
               ids); // they stand for the example's block addresses
    for (int i = 0; i < NUM_SEQS * COLUMNS; i++)
        table[i] = decode_table[i] < 0 ? -1 : ids[decode_table[i]];
    for (int32_t s = 0; s < NUM_SEQS; s++)
        seed_import(session, cache, dtypes[_i], table + (size_t)s * COLUMNS, BLOCK, s, 0,
                    cache_seqlens[s]);
    append(table, &metadata);
    ok(aule_batch_create(cache, &metadata.params, &batch));
    aule_metadata_finish(&metadata);
    seed_step_clear(&step);
    ok(aule_run(batch, &run, SEED_WAIT_MS, NULL));
    seed_step_expect(&step, NULL, &run, "decode in the pool");
    struct gathered gathered = gather(&step, batch, DECODE_KEYS);
    expect_gathered(&step, &gathered, decode_lens);
    aule_batch_destroy(batch);
    ok(aule_blocks_release(cache, NUM_BLOCKS, ids));
    seed_expect_all_free(cache);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// The tensors as flash_attn_with_kvcache() has them, with the example's own addresses. No sequence
// uses block 4.
static struct seed_blocks open_decode_blocks(struct aule_session *session, enum aule_dtype dtype)
{
    struct seed_blocks blocks = {
        .session = session, .dtype = dtype, .num_blocks = NUM_BLOCKS, .block_size = BLOCK};
    seed_blocks_open(&blocks);
    for (int32_t s = 0; s < NUM_SEQS; s++)
        seed_blocks_put(&blocks, decode_table + (size_t)s * COLUMNS, s, 0, cache_seqlens[s]);
    return blocks;
}

static void *copy_of(const struct seed_blocks *blocks, const struct aule_tensor *tensor)
{
    size_t size = seed_blocks_size(blocks);
    void *copy = malloc(size);
    ck_assert_ptr_nonnull(copy);
    return memcpy(copy, aule_tensor_data(blocks->session, tensor), size);
}

// Three rows are new, and no other byte has changed.
static void expect_appended(const struct seed_step *step, const struct seed_blocks *blocks,
                            enum seed_what what, uint8_t *before)
{
    const struct aule_tensor *tensor = what == SEED_K ? &blocks->keys : &blocks->values;
    size_t size = seed_row_size(step->dtype, SEED_KV_HEADS);
    for (int32_t s = 0; s < NUM_SEQS; s++) {
        const uint8_t *row = seed_blocks_row(blocks, what, decode_slots[s]);
        expect_stored(row, step, what, s, cache_seqlens[s]);
        memcpy(before + (size_t)decode_slots[s] * size, row, size);
    }
    ck_assert_mem_eq(before, aule_tensor_data(blocks->session, tensor), seed_blocks_size(blocks));
    free(before);
}

START_TEST(decode_30_32_70_appends_in_place_over_block_tensors_of_the_caller)
{
    struct aule_session *session = seed_open(0);
    struct seed_blocks blocks = open_decode_blocks(session, dtypes[_i]);
    struct seed_step step = open_decode(session, dtypes[_i]);
    struct aule_run_params run = seed_step_run(&step);
    const struct aule_kv_layout layout = seed_blocks_layout(&blocks);
    struct aule_metadata metadata;
    struct aule_batch *batch = NULL;
    uint8_t *keys = copy_of(&blocks, &blocks.keys), *values = copy_of(&blocks, &blocks.values);
    run.keys = blocks.keys;
    run.values = blocks.values;
    append(decode_table, &metadata);
    ok(aule_batch_create_local(session, &layout, &metadata.params, &batch));
    aule_metadata_finish(&metadata);
    seed_step_finish(&step, batch, &run);
    seed_step_expect(&step, NULL, &run, "decode over block tensors");
    expect_appended(&step, &blocks, SEED_K, keys);
    expect_appended(&step, &blocks, SEED_V, values);
    aule_session_close(session);
}
END_TEST

// "A second block is needed since 32 + 1 > 32": without it nothing is written.
START_TEST(decode_without_the_second_block_is_refused_by_name)
{
    static const int32_t table[NUM_SEQS * COLUMNS] = {2, -1, -1, -1, 0, -1, -1, -1, 3, 5, 6, -1};
    struct aule_metadata metadata;
    expect(aule_metadata_append(NUM_SEQS, cache_seqlens, table, COLUMNS, BLOCK, &metadata),
           AULE_OUT_OF_RANGE, "block_table[1][1] = -1");
}
END_TEST

// "Cannot handle batches with prefilling requests" is no limit here: a prompt of 40 tokens between
// the decodes.
START_TEST(a_prefill_may_stand_between_the_decodes)
{
    static const int32_t cu_q[] = {0, 1, 41, 42}, lens[] = {31, 40, 71};
    static const int32_t table[NUM_SEQS * COLUMNS] = {2, -1, -1, -1, 0, 1, -1, -1, 3, 5, 6, -1};
    int64_t slots[42] = {decode_slots[0], [41] = decode_slots[2]};
    struct aule_session *session = seed_open(0);
    struct seed_blocks blocks = open_decode_blocks(session, AULE_F32);
    struct seed_step step = {
        .session = session, .dtype = AULE_F32, .num_seqs = NUM_SEQS, .cu_q = cu_q, .lens = lens};
    const struct aule_kv_layout layout = seed_blocks_layout(&blocks);
    struct aule_batch *batch = NULL;
    for (int32_t i = 0; i < 40; i++)
        slots[1 + i] = seed_slot(&table[COLUMNS], BLOCK, i);
    seed_step_open(&step);
    struct aule_run_params run = seed_step_run(&step);
    struct aule_batch_params params = seed_step_batch(&step);
    params.max_blocks = COLUMNS;
    params.block_table = table;
    params.slot_mapping = slots;
    run.keys = blocks.keys;
    run.values = blocks.values;
    ok(aule_batch_create_local(session, &layout, &params, &batch));
    seed_step_finish(&step, batch, &run);
    seed_step_expect(&step, NULL, &run, "decode, prefill, decode");
    aule_session_close(session);
}
END_TEST

// If the device cannot use the arena in place, K and V in it are copied to the GPU, and the
// appended rows are copied back.
static void setup_staging(void)
{
    seed_launch((const char *const[]){DAEMON_STAGED, NULL});
}

static void add_examples(Suite *suite, const char *name, void (*setup)(void), int num_dtypes)
{
    TCase *group = tcase_create(name);
    tcase_add_unchecked_fixture(group, setup, seed_teardown);
    tcase_add_loop_test(group, varlen_q_10_3_1_over_k_0_1_7_and_the_first_sees_no_key, 0,
                        num_dtypes);
    tcase_add_test(group, update_hands_the_cached_keys_and_values_to_the_varlen_path);
    tcase_add_test(group, update_writes_the_new_keys_and_hands_out_old_and_new);
    tcase_add_loop_test(group, decode_30_32_70_appends_in_place_in_the_pool, 0, num_dtypes);
    tcase_add_loop_test(group, decode_30_32_70_appends_in_place_over_block_tensors_of_the_caller, 0,
                        num_dtypes);
    suite_add_tcase(suite, group);
}

int main(void)
{
    Suite *suite = suite_create("seed, HF paged attention");
    add_examples(suite, "imported arena", seed_setup, NUM_DTYPES);
    add_examples(suite, "staged arena", setup_staging, 1);
    seed_add(suite, "beside the examples", seed_setup,
             (const TTest *const[]){varlen_queries_read_the_keys_of_their_own_request_alone,
                                    decode_without_the_second_block_is_refused_by_name,
                                    a_prefill_may_stand_between_the_decodes, NULL});
    return check_main(suite);
}
