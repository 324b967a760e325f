// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_seed_aule.c - the test strategy of "PagedAttention Design for Aule" 0.4: paged and
// contiguous attention at 4096 tokens, the threshold between them, a batch of mixed lengths, and
// the block pool: allocation, growth by chunks, table indexing, thousands of cycles. Shapes are
// reduced so that a software device needs only seconds.

#include "oracle/oracle.h"
#include "rigs/seed_world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 32 };

// ---- q, k, v and out as [batch, heads, len, dim] ----

struct dense {
    struct aule_session *session;
    uint32_t num_seqs, q_len, kv_len;
    const int32_t *q_lens, *kv_lens; // NULL: all
    struct aule_tensor q, k, v, out;
    struct aule_attention_params params;
};

// NaN, except the first lens[s] rows of each sequence.
static void create_dense(struct dense *dense, uint32_t num_heads, uint32_t len, const int32_t *lens,
                         enum seed_what what, struct aule_tensor *tensor)
{
    uint64_t row = SEED_DIM * sizeof(float);
    ok(aule_tensor_create(dense->session, AULE_F32, dense->num_seqs * len, num_heads, SEED_DIM,
                          tensor));
    tensor->token_stride = row;
    tensor->head_stride = len * row;
    tensor->outer_stride = num_heads * len * row;
    uint8_t *data = aule_tensor_data(dense->session, tensor);
    memset(data, 0xff, dense->num_seqs * tensor->outer_stride);
    for (uint32_t s = 0; s < dense->num_seqs; s++)
        for (uint32_t i = 0; i < (lens ? (uint32_t)lens[s] : len); i++)
            seed_put_row(data + s * tensor->outer_stride + i * row, tensor->head_stride, AULE_F32,
                         num_heads, what, (int32_t)s, (int32_t)i);
}

static void open_dense(struct dense *dense)
{
    create_dense(dense, SEED_HEADS, dense->q_len, dense->q_lens, SEED_Q, &dense->q);
    create_dense(dense, SEED_KV_HEADS, dense->kv_len, dense->kv_lens, SEED_K, &dense->k);
    create_dense(dense, SEED_KV_HEADS, dense->kv_len, dense->kv_lens, SEED_V, &dense->v);
    create_dense(dense, SEED_HEADS, dense->q_len, NULL, SEED_Q, &dense->out);
    dense->params = (struct aule_attention_params){.num_seqs = dense->num_seqs,
                                                   .q_len = dense->q_len,
                                                   .kv_len = dense->kv_len,
                                                   .num_kv_heads = SEED_KV_HEADS,
                                                   .head_dim = SEED_DIM,
                                                   .q_lens = dense->q_lens,
                                                   .kv_lens = dense->kv_lens,
                                                   .run = {.num_heads = SEED_HEADS,
                                                           .q = dense->q,
                                                           .k = dense->k,
                                                           .v = dense->v,
                                                           .out = dense->out,
                                                           .causal = true}};
}

static void close_dense(struct dense *dense)
{
    struct aule_tensor *tensors[] = {&dense->q, &dense->k, &dense->v, &dense->out};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        aule_tensor_destroy(dense->session, tensors[i]);
}

static size_t out_size(const struct dense *dense)
{
    return dense->num_seqs * dense->out.outer_stride;
}

// Returns the ticket, which says which path was taken.
static struct aule_ticket attention(struct dense *dense, enum aule_path path)
{
    struct aule_ticket ticket;
    dense->params.path = path;
    memset(aule_tensor_data(dense->session, &dense->out), 0xff, out_size(dense));
    ok(aule_attention(dense->session, &dense->params, SEED_WAIT_MS, NULL, &ticket));
    return ticket;
}

static void *kept_out(const struct dense *dense)
{
    void *copy = malloc(out_size(dense));
    ck_assert_ptr_nonnull(copy);
    return memcpy(copy, aule_tensor_data(dense->session, &dense->out), out_size(dense));
}

static struct oracle_kv dense_kv(const struct dense *dense, const struct aule_tensor *tensor)
{
    return (struct oracle_kv){.dtype = DTYPE_F32,
                              .base = aule_tensor_data(dense->session, tensor),
                              .outer_stride = tensor->outer_stride,
                              .token_stride = tensor->token_stride,
                              .head_stride = tensor->head_stride};
}

// Compares every `step`th row.
static void expect_dense(const struct dense *dense, uint32_t step, const char *name)
{
    int32_t cu_q[8], kv_lens[8];
    ck_assert_uint_lt(dense->num_seqs, 8);
    for (uint32_t s = 0; s <= dense->num_seqs; s++)
        cu_q[s] = (int32_t)(s * dense->q_len);
    for (uint32_t s = 0; s < dense->num_seqs; s++)
        kv_lens[s] = dense->kv_lens ? dense->kv_lens[s] : (int32_t)dense->kv_len;
    const struct oracle_params params = {.num_seqs = dense->num_seqs,
                                         .num_heads = SEED_HEADS,
                                         .num_kv_heads = SEED_KV_HEADS,
                                         .head_dim_k = SEED_DIM,
                                         .head_dim_v = SEED_DIM,
                                         .q_dtype = DTYPE_F32,
                                         .cu_seqlens_q = cu_q,
                                         .seq_lens_kv = kv_lens,
                                         .k = dense_kv(dense, &dense->k),
                                         .v = dense_kv(dense, &dense->v),
                                         .q = aule_tensor_data(dense->session, &dense->q),
                                         .q_outer_stride = dense->q.outer_stride,
                                         .q_token_stride = dense->q.token_stride,
                                         .q_head_stride = dense->q.head_stride,
                                         .scale = 1 / sqrt(SEED_DIM),
                                         .causal = true,
                                         .q_lens = dense->q_lens};
    const uint8_t *out = aule_tensor_data(dense->session, &dense->out);
    for (uint32_t t = 0; t < dense->num_seqs * dense->q_len; t += step)
        for (uint32_t head = 0; head < SEED_HEADS; head++) {
            double wanted[SEED_DIM];
            ck_assert(oracle_row(&params, t, head, wanted, NULL));
            seed_expect_row(out + t / dense->q_len * dense->out.outer_stride +
                                t % dense->q_len * dense->out.token_stride +
                                head * dense->out.head_stride,
                            AULE_F32, wanted, name, t, head);
        }
}

// ---- paged against contiguous ----

START_TEST(paged_and_contiguous_attention_over_4096_tokens_have_the_same_bits)
{
    struct dense dense = {.session = seed_open(0), .num_seqs = 1, .q_len = 4096, .kv_len = 4096};
    open_dense(&dense);
    ck_assert_int_eq(attention(&dense, AULE_PATH_CONTIGUOUS).path, AULE_PATH_CONTIGUOUS);
    expect_dense(&dense, 29, "contiguous");
    void *contiguous = kept_out(&dense);
    ck_assert_int_eq(attention(&dense, AULE_PATH_PAGED).path, AULE_PATH_PAGED);
    ck_assert_mem_eq(aule_tensor_data(dense.session, &dense.out), contiguous, out_size(&dense));
    free(contiguous);
    aule_session_close(dense.session);
    seed_expect_nothing_leased();
}
END_TEST

// ---- the threshold ----

static void expect_path(struct aule_session *session, uint32_t kv_len, enum aule_path asked,
                        enum aule_path taken)
{
    struct dense dense = {.session = session, .num_seqs = 1, .q_len = 2, .kv_len = kv_len};
    open_dense(&dense);
    struct aule_ticket ticket = attention(&dense, asked);
    ck_assert_msg(ticket.path == taken, "%u tokens: %d taken instead of %d", kv_len,
                  (int)ticket.path, (int)taken);
    ck_assert_int_eq((int)ticket.fallback, AULE_OK);
    expect_dense(&dense, 1, "by threshold");
    close_dense(&dense);
}

START_TEST(sequences_beyond_2048_tokens_are_paged_and_shorter_ones_contiguous)
{
    struct aule_session *session = seed_open(0);
    expect_path(session, 1024, AULE_PATH_AUTO, AULE_PATH_CONTIGUOUS);
    expect_path(session, 2048, AULE_PATH_AUTO, AULE_PATH_CONTIGUOUS);
    expect_path(session, 2049, AULE_PATH_AUTO, AULE_PATH_PAGED);
    expect_path(session, 4096, AULE_PATH_AUTO, AULE_PATH_PAGED);
    aule_session_close(session);
}
END_TEST

START_TEST(a_session_may_set_the_threshold_to_1024)
{
    struct aule_session *session = seed_open(1024);
    expect_path(session, 1024, AULE_PATH_AUTO, AULE_PATH_CONTIGUOUS);
    expect_path(session, 1025, AULE_PATH_AUTO, AULE_PATH_PAGED);
    aule_session_close(session);
}
END_TEST

START_TEST(both_ways_can_be_forced)
{
    struct aule_session *session = seed_open(0);
    expect_path(session, 64, AULE_PATH_PAGED, AULE_PATH_PAGED);
    expect_path(session, 4096, AULE_PATH_CONTIGUOUS, AULE_PATH_CONTIGUOUS);
    aule_session_close(session);
}
END_TEST

// ---- a batch of 1024, 2048 and 4096 tokens, padded to 4096 ----

static const int32_t mixed_lens[] = {1024, 2048, 4096}; // the longest length decides the path

static void expect_zero_rows(const struct dense *dense)
{
    const uint8_t *out = aule_tensor_data(dense->session, &dense->out);
    for (uint32_t s = 0; s < dense->num_seqs; s++)
        for (uint32_t head = 0; head < SEED_HEADS; head++) {
            const float *rows = (const float *)(const void *)(out + s * dense->out.outer_stride +
                                                              head * dense->out.head_stride);
            for (uint32_t i = (uint32_t)dense->q_lens[s] * SEED_DIM; i < dense->q_len * SEED_DIM;
                 i++)
                ck_assert_msg(rows[i] == 0, "sequence %u, head %u, row %u: %g", s, head,
                              i / SEED_DIM, (double)rows[i]);
        }
}

// Both paths. The automatic one is paged, because of the longest sequence.
static void expect_mixed(const int32_t *q_lens, uint32_t q_len, uint32_t step)
{
    struct dense dense = {.session = seed_open(0),
                          .num_seqs = 3,
                          .q_len = q_len,
                          .kv_len = 4096,
                          .q_lens = q_lens,
                          .kv_lens = mixed_lens};
    open_dense(&dense);
    ck_assert_int_eq(attention(&dense, AULE_PATH_AUTO).path, AULE_PATH_PAGED);
    expect_dense(&dense, step, "paged");
    expect_zero_rows(&dense);
    void *paged = kept_out(&dense);
    ck_assert_int_eq(attention(&dense, AULE_PATH_CONTIGUOUS).path, AULE_PATH_CONTIGUOUS);
    ck_assert_mem_eq(aule_tensor_data(dense.session, &dense.out), paged, out_size(&dense));
    free(paged);
    aule_session_close(dense.session);
    seed_expect_nothing_leased();
}

START_TEST(a_batch_of_1024_2048_and_4096_tokens_is_padded_with_zeroes)
{
    expect_mixed(mixed_lens, 4096, 53);
}
END_TEST

START_TEST(the_last_16_32_and_64_of_1024_2048_and_4096_tokens_are_padded_with_zeroes)
{
    static const int32_t q_lens[] = {16, 32, 64};
    expect_mixed(q_lens, 64, 3);
}
END_TEST

// ---- blocks are released, also after every error ----

START_TEST(a_failure_on_the_paged_path_releases_its_blocks)
{
    struct dense dense = {.session = seed_open(64), .num_seqs = 1, .q_len = 2, .kv_len = 128};
    struct aule_ticket ticket;
    open_dense(&dense);
    dense.params.run.mask_value = -1;
    for (int i = 0; i < 50; i++)
        expect(aule_attention(dense.session, &dense.params, SEED_WAIT_MS, NULL, &ticket),
               AULE_INVALID, "mask_value");
    seed_expect_nothing_leased();
    dense.params.run.mask_value = 0;
    dense.params.run.out.offset += 8;
    expect(aule_attention(dense.session, &dense.params, SEED_WAIT_MS, NULL, &ticket),
           AULE_MISALIGNED, "out");
    dense.params.run.out.offset -= 8;
    dense.params.run.k.offset = UINT64_C(1) << 40;
    expect(aule_attention(dense.session, &dense.params, SEED_WAIT_MS, NULL, &ticket),
           AULE_OUT_OF_RANGE, "k");
    dense.params.run.k.offset = dense.k.offset;
    seed_expect_nothing_leased();
    for (int i = 0; i < 50; i++)
        ck_assert_int_eq(attention(&dense, AULE_PATH_AUTO).path, AULE_PATH_PAGED);
    expect_dense(&dense, 1, "after errors");
    seed_expect_nothing_leased();
    aule_session_close(dense.session);
}
END_TEST

// ---- a pool that other sessions use ----

enum { SMALL_POOL = 128 };

static void setup_small_pool(void)
{
    seed_launch((const char *const[]){"--max-blocks", "128", NULL});
}

START_TEST(without_blocks_the_automatic_way_is_contiguous_and_says_so)
{
    int32_t ids[SMALL_POOL];
    struct aule_session *other = seed_open(0);
    struct aule_cache *cache = seed_cache(other, AULE_F32, BLOCK);
    struct dense dense = {.session = seed_open(0), .num_seqs = 1, .q_len = 2, .kv_len = 2080};
    struct aule_ticket ticket;
    open_dense(&dense);
    ok(aule_blocks_lease(cache, SMALL_POOL, SEED_WAIT_MS, ids));
    ticket = attention(&dense, AULE_PATH_AUTO);
    ck_assert_int_eq(ticket.path, AULE_PATH_CONTIGUOUS);
    ck_assert_int_eq((int)ticket.fallback, AULE_NO_BLOCKS);
    expect_dense(&dense, 1, "without blocks");
    dense.params.path = AULE_PATH_PAGED;
    expect(aule_attention(dense.session, &dense.params, SEED_WAIT_MS, NULL, &ticket),
           AULE_NO_BLOCKS, "");

    ck_assert_uint_eq(seed_state(cache).leased_blocks, SMALL_POOL); // the others lost no block
    ok(aule_blocks_release(cache, SMALL_POOL, ids));
    ck_assert_int_eq(attention(&dense, AULE_PATH_PAGED).path, AULE_PATH_PAGED);
    expect_dense(&dense, 1, "with blocks again");
    seed_expect_nothing_leased();
    aule_session_close(dense.session);
    aule_cache_close(cache);
    aule_session_close(other);
}
END_TEST

START_TEST(a_sequence_that_no_pool_could_hold_is_contiguous_too_and_says_so)
{
    struct dense dense = {
        .session = seed_open(0), .num_seqs = 1, .q_len = 2, .kv_len = SMALL_POOL * BLOCK + 1};
    struct aule_ticket ticket;
    open_dense(&dense);
    ticket = attention(&dense, AULE_PATH_AUTO);
    ck_assert_int_eq(ticket.path, AULE_PATH_CONTIGUOUS);
    ck_assert_int_eq((int)ticket.fallback, AULE_LIMIT);
    expect_dense(&dense, 1, "larger than the pool");
    dense.params.path = AULE_PATH_PAGED;
    expect(aule_attention(dense.session, &dense.params, SEED_WAIT_MS, NULL, &ticket), AULE_LIMIT,
           "--max-blocks");
    seed_expect_nothing_leased();
    aule_session_close(dense.session);
}
END_TEST

// ---- the block pool ----

enum { POOL_LIMIT = 2048, CHUNK = 512, GROWTH = 1500, CYCLES = 1000, CYCLE = 100 };

static void setup_pool(void)
{
    seed_launch((const char *const[]){"--max-blocks", "2048", "--spare-blocks", "0", NULL});
}

// test_block_pool_allocation
START_TEST(a_hundred_blocks_of_512_leave_412_and_come_back)
{
    int32_t ids[CYCLE];
    struct aule_session *session = seed_open(0);
    struct aule_cache *cache = seed_cache(session, AULE_F32, BLOCK);
    for (int i = 0; i < CYCLE; i++)
        ok(aule_blocks_lease(cache, 1, SEED_WAIT_MS, &ids[i]));
    ck_assert_uint_eq(seed_state(cache).total_blocks, CHUNK);
    ck_assert_uint_eq(seed_state(cache).free_blocks, CHUNK - CYCLE);
    for (int i = 0; i < CYCLE; i++)
        ok(aule_blocks_release(cache, 1, &ids[i]));
    ck_assert_uint_eq(seed_state(cache).free_blocks, CHUNK);
    seed_expect_all_free(cache);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// test_block_pool_growth
START_TEST(fifteen_hundred_blocks_grow_the_pool_to_three_chunks_of_512)
{
    static int32_t ids[POOL_LIMIT];
    static bool seen[POOL_LIMIT];
    struct aule_session *session = seed_open(0);
    struct aule_cache *cache = seed_cache(session, AULE_F32, BLOCK);
    ck_assert_uint_eq(seed_state(cache).limit_blocks, POOL_LIMIT);
    for (int i = 0; i < GROWTH; i++) {
        ok(aule_blocks_lease(cache, 1, SEED_WAIT_MS, &ids[i]));
        ck_assert_int_ge(ids[i], 0);
        ck_assert_int_lt(ids[i], POOL_LIMIT);
        ck_assert_msg(!seen[ids[i]], "block %d was leased twice", ids[i]);
        seen[ids[i]] = true;
    }
    struct aule_cache_state state = seed_state(cache);
    ck_assert_uint_eq(state.total_blocks, 3 * CHUNK);
    ck_assert_uint_eq(state.leased_blocks, GROWTH);
    ck_assert_uint_eq(state.free_blocks, 3 * CHUNK - GROWTH);
    ck_assert_uint_eq(state.available_blocks, POOL_LIMIT - GROWTH);
    expect(aule_blocks_lease(cache, POOL_LIMIT - GROWTH + 1, 0, ids + GROWTH), AULE_NO_BLOCKS, "");
    expect(aule_blocks_lease(cache, POOL_LIMIT + 1, 0, ids), AULE_LIMIT, "--max-blocks");
    ok(aule_blocks_release(cache, GROWTH, ids));
    seed_expect_all_free(cache);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// test_fragmentation_handling
START_TEST(a_thousand_cycles_of_a_hundred_blocks_leak_none)
{
    int32_t ids[CYCLE], halves[2][CYCLE / 2];
    struct aule_session *session = seed_open(0);
    struct aule_cache *cache = seed_cache(session, AULE_F32, BLOCK);
    for (int cycle = 0; cycle < CYCLES; cycle++) {
        ok(aule_blocks_lease(cache, CYCLE, SEED_WAIT_MS, ids));
        for (int i = 0; i < CYCLE; i++)
            halves[i % 2][i / 2] = ids[i];
        ok(aule_blocks_release(cache, CYCLE / 2, halves[0]));
        ok(aule_blocks_release(cache, CYCLE / 2, halves[1]));
    }
    ck_assert_uint_eq(seed_state(cache).free_blocks, CHUNK);
    ck_assert_uint_eq(seed_state(cache).total_blocks, CHUNK);
    seed_expect_all_free(cache);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// ---- table indexing: BlockTable(batch=4, max_blocks=64) ----

enum {
    TABLE_SEQS = 4,
    TABLE_COLUMNS = 64,
    USED = 6,
    TABLE_BLOCKS = 128,
    PROBES = TABLE_SEQS * USED
};

// Row 0 as in the seed: table[0][5] = 123 and table[0][6] = -1. All used entries differ.
static void fill_table(int32_t *table)
{
    for (int s = 0; s < TABLE_SEQS; s++)
        for (int b = 0; b < TABLE_COLUMNS; b++)
            table[s * TABLE_COLUMNS + b] = b < USED ? 123 - (USED - 1 - b) * 7 : -1;
    for (int s = 1; s < TABLE_SEQS; s++)
        for (int b = 0; b < USED; b++)
            table[s * TABLE_COLUMNS + b] = (s - 1) * 29 + b * 3;
}

// K, or V, of a block: all elements are the block's number.
static void number_blocks(const struct seed_blocks *blocks)
{
    for (int64_t slot = 0; slot < TABLE_BLOCKS * BLOCK; slot++) {
        const int32_t block = (int32_t)(slot / BLOCK);
        float *k = (float *)(void *)seed_blocks_row(blocks, SEED_K, slot);
        float *v = (float *)(void *)seed_blocks_row(blocks, SEED_V, slot);
        for (int i = 0; i < SEED_KV_HEADS * SEED_DIM; i++) {
            k[i] = 1;
            v[i] = (float)block;
        }
    }
}

// A token of block b: the first or the last. In the last block the first, because there may be only
// one.
static int32_t probe(int32_t b)
{
    return b * BLOCK + (b % 2 == 1 && b < USED - 1 ? BLOCK - 1 : 0);
}

// A query in each used block of each sequence sees only the key at its own position. So its output
// is the number of the block in its table entry.
START_TEST(each_entry_of_four_sequences_leads_to_its_own_block)
{
    static int32_t table[TABLE_SEQS * TABLE_COLUMNS];
    static const int32_t cu_q[] = {0, USED, 2 * USED, 3 * USED, PROBES};
    static const int32_t lens[] = {USED * BLOCK, USED * BLOCK - 1, USED * BLOCK - 9,
                                   USED * BLOCK - 31};
    int32_t positions[PROBES];
    struct seed_blocks blocks = {.session = seed_open(0),
                                 .dtype = AULE_F32,
                                 .num_blocks = TABLE_BLOCKS,
                                 .block_size = BLOCK};
    struct seed_step step = {.session = blocks.session,
                             .dtype = AULE_F32,
                             .num_seqs = TABLE_SEQS,
                             .cu_q = cu_q,
                             .lens = lens};
    struct aule_batch *batch = NULL;
    fill_table(table);
    ck_assert_int_eq(table[5], 123);
    ck_assert_int_eq(table[6], -1);
    for (int32_t i = 0; i < PROBES; i++)
        positions[i] = probe(i % USED);
    seed_blocks_open(&blocks);
    number_blocks(&blocks);
    seed_step_open(&step);
    const struct aule_kv_layout layout = seed_blocks_layout(&blocks);
    struct aule_batch_params params = seed_step_batch(&step);
    struct aule_run_params run = seed_step_run(&step);
    params.max_blocks = TABLE_COLUMNS;
    params.block_table = table;
    params.positions = positions;
    run.keys = blocks.keys;
    run.values = blocks.values;
    run.window = (struct aule_window){.enabled = true, .left = 0, .right = 0};
    ok(aule_batch_create_local(blocks.session, &layout, &params, &batch));
    seed_step_finish(&step, batch, &run);
    for (uint32_t i = 0; i < PROBES; i++) {
        const int32_t block = table[i / USED * TABLE_COLUMNS + i % USED];
        for (uint32_t d = 0; d < SEED_HEADS * SEED_DIM; d++)
            ck_assert_float_eq(((const float *)seed_step_out(&step, i))[d], (float)block);
    }
    aule_session_close(blocks.session);
}
END_TEST

// table.get(0, 6) == -1: a sequence that reaches this entry is refused.
START_TEST(a_sequence_that_reaches_a_missing_entry_is_refused_with_its_place)
{
    static int32_t table[TABLE_SEQS * TABLE_COLUMNS];
    static const int32_t cu_q[] = {0, 1, 2, 3, 4}, lens[] = {USED * BLOCK + 1, 5, 5, 5};
    struct seed_blocks blocks = {.session = seed_open(0),
                                 .dtype = AULE_F32,
                                 .num_blocks = TABLE_BLOCKS,
                                 .block_size = BLOCK};
    struct aule_batch *batch = NULL;
    fill_table(table);
    const struct aule_kv_layout layout = seed_blocks_layout(&blocks);
    const struct aule_batch_params params = {.num_seqs = TABLE_SEQS,
                                             .max_blocks = TABLE_COLUMNS,
                                             .cu_seqlens_q = cu_q,
                                             .seq_lens_kv = lens,
                                             .block_table = table};
    enum aule_status status = aule_batch_create_local(blocks.session, &layout, &params, &batch);
    ck_assert_int_ne((int)status, AULE_OK);
    expect(status, status, "block_table[0][6] = -1");
    ck_assert_ptr_null(batch);
    aule_session_close(blocks.session);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("seed, aule 0.4");
    seed_add(suite, "two ways", seed_setup,
             (const TTest *const[]){
                 paged_and_contiguous_attention_over_4096_tokens_have_the_same_bits,
                 sequences_beyond_2048_tokens_are_paged_and_shorter_ones_contiguous,
                 a_session_may_set_the_threshold_to_1024, both_ways_can_be_forced,
                 a_batch_of_1024_2048_and_4096_tokens_is_padded_with_zeroes,
                 the_last_16_32_and_64_of_1024_2048_and_4096_tokens_are_padded_with_zeroes,
                 a_failure_on_the_paged_path_releases_its_blocks, NULL});
    seed_add(suite, "a small pool", setup_small_pool,
             (const TTest *const[]){
                 without_blocks_the_automatic_way_is_contiguous_and_says_so,
                 a_sequence_that_no_pool_could_hold_is_contiguous_too_and_says_so, NULL});
    seed_add(suite, "the block pool", setup_pool,
             (const TTest *const[]){
                 a_hundred_blocks_of_512_leave_412_and_come_back,
                 a_thousand_cycles_of_a_hundred_blocks_leak_none,
                 fifteen_hundred_blocks_grow_the_pool_to_three_chunks_of_512,
                 each_entry_of_four_sequences_leads_to_its_own_block,
                 a_sequence_that_reaches_a_missing_entry_is_refused_with_its_place, NULL});
    return check_main(suite);
}
