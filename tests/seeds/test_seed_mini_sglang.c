// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_seed_mini_sglang.c - lesson L3 of mini_sglang: the metadata scenarios of 3.2, set_kv by flat
// slots and the block tensors of 3.3, its reference loop of 3.4 (in double, as in the lesson) and
// the harness loop of 3.6. K and V have the lesson's layout, [num_blocks, block_size, kv_heads,
// dim], in the session's arena. The harness also runs over the pool.

#include "oracle/oracle.h"
#include "rigs/seed_world.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 16, MAX_BLOCKS = 4, NUM_BLOCKS = 12 };

// ---- attn_paged_torch, by its own names ----

// One step's ForwardMeta.
struct meta {
    int32_t num_seqs;
    int32_t cu_seqlens_q[3], seq_lens_kv[2];
    int32_t block_table[2][MAX_BLOCKS];
};

struct reference {
    const struct seed_blocks *cache;
    const struct meta *meta;
    const struct aule_tensor *q;
    double scores[MAX_BLOCKS * BLOCK];
};

static double element(const uint8_t *row, uint64_t head_stride, uint32_t head, uint32_t d)
{
    return oracle_load(row + head * head_stride, DTYPE_F32, d);
}

// K_cache[block_ids].reshape(-1, H_kv, D)[j]
static const uint8_t *gathered_row(const struct reference *reference, enum seed_what what,
                                   int32_t s, int32_t j)
{
    return seed_blocks_row(reference->cache, what,
                           seed_slot(reference->meta->block_table[s], BLOCK, j));
}

// softmax(Q K^T / sqrt(D)) V of one query and head. There is_causal is q_len == kv_len, which is
// false in both cases with a chunk after cached tokens. Query q sees the keys that section 3.2
// defines: 0 .. seq_lens[s] - q_len[s] + q.
static void attend(struct reference *reference, int32_t s, int32_t query, uint32_t head,
                   double *out)
{
    const struct meta *meta = reference->meta;
    int32_t q_start = meta->cu_seqlens_q[s], q_len = meta->cu_seqlens_q[s + 1] - q_start;
    int32_t last = meta->seq_lens_kv[s] - q_len + query;
    uint32_t kv_head = head / (SEED_HEADS / SEED_KV_HEADS); // repeat_interleave
    const struct aule_tensor *q = reference->q;
    const uint8_t *q_row = (const uint8_t *)aule_tensor_data(reference->cache->session, q) +
                           (size_t)(q_start + query) * q->token_stride;
    double sum = 0;
    memset(out, 0, SEED_DIM * sizeof *out);
    for (int32_t j = 0; j <= last; j++) {
        const uint8_t *k = gathered_row(reference, SEED_K, s, j),
                      *v = gathered_row(reference, SEED_V, s, j);
        double score = 0;
        for (uint32_t d = 0; d < SEED_DIM; d++)
            score += element(q_row, q->head_stride, head, d) *
                     element(k, reference->cache->keys.head_stride, kv_head, d);
        double weight = exp(score / sqrt(SEED_DIM));
        sum += weight;
        for (uint32_t d = 0; d < SEED_DIM; d++)
            out[d] += weight * element(v, reference->cache->values.head_stride, kv_head, d);
    }
    for (uint32_t d = 0; d < SEED_DIM; d++)
        out[d] /= sum;
}

static void expect_reference(const struct seed_step *step, const struct seed_blocks *blocks,
                             const struct meta *meta, const char *name)
{
    struct reference reference = {.cache = blocks, .meta = meta, .q = &step->q};
    for (int32_t s = 0; s < meta->num_seqs; s++)
        for (int32_t t = meta->cu_seqlens_q[s]; t < meta->cu_seqlens_q[s + 1]; t++)
            for (uint32_t head = 0; head < SEED_HEADS; head++) {
                double wanted[SEED_DIM];
                attend(&reference, s, t - meta->cu_seqlens_q[s], head, wanted);
                seed_expect_row((const uint8_t *)seed_step_out(step, (uint32_t)t) +
                                    head * step->out.head_stride,
                                AULE_F32, wanted, name, (uint32_t)t, head);
            }
}

// ---- a step over the lesson's tensors ----

static struct seed_blocks open_blocks(struct aule_session *session)
{
    struct seed_blocks blocks = {
        .session = session, .dtype = AULE_F32, .num_blocks = NUM_BLOCKS, .block_size = BLOCK};
    seed_blocks_open(&blocks);
    return blocks;
}

static struct seed_step open_step(struct aule_session *session, const struct meta *meta)
{
    struct seed_step step = {.session = session,
                             .dtype = AULE_F32,
                             .num_seqs = (uint32_t)meta->num_seqs,
                             .cu_q = meta->cu_seqlens_q,
                             .lens = meta->seq_lens_kv};
    seed_step_open(&step);
    return step;
}

// slot_mapping: req.slot_indices of the positions that the step computes.
static void fill_slots(const struct meta *meta, int64_t *slots)
{
    for (int32_t s = 0; s < meta->num_seqs; s++)
        for (int32_t t = meta->cu_seqlens_q[s]; t < meta->cu_seqlens_q[s + 1]; t++)
            slots[t] = seed_slot(meta->block_table[s], BLOCK,
                                 meta->seq_lens_kv[s] - meta->cu_seqlens_q[s + 1] + t);
}

static struct aule_batch_params params_of(const struct seed_step *step, const struct meta *meta,
                                          const int64_t *slots)
{
    struct aule_batch_params params = seed_step_batch(step);
    params.max_blocks = MAX_BLOCKS;
    params.block_table = meta->block_table[0];
    params.slot_mapping = slots;
    return params;
}

// Writes the step's K and V and attends, over the block tensors.
static void run_step(struct seed_step *step, const struct seed_blocks *blocks,
                     const struct meta *meta)
{
    int64_t slots[2 * MAX_BLOCKS * BLOCK];
    struct aule_batch *batch = NULL;
    const struct aule_kv_layout layout = seed_blocks_layout(blocks);
    struct aule_run_params run = seed_step_run(step);
    fill_slots(meta, slots);
    const struct aule_batch_params params = params_of(step, meta, slots);
    run.keys = blocks->keys;
    run.values = blocks->values;
    ok(aule_batch_create_local(step->session, &layout, &params, &batch));
    seed_step_finish(step, batch, &run);
    seed_step_expect(step, NULL, &run, "the oracle");
}

// ---- the three scenarios of 3.2 ----

enum { N = 19, DECODED = 20, CHUNK = 7 };
static const struct {
    const char *name;
    struct meta meta;
} scenarios[] = {
    {"single-seq prefill of N", {1, {0, N}, {N}, {{4, 9, -1, -1}}}},
    {"single-seq decode at step 3", {1, {0, 1}, {N + 3 + 1}, {{4, 9, -1, -1}}}},
    {"A decodes, B begins its prefill",
     {2, {0, 1, 1 + CHUNK}, {N + 4, CHUNK}, {{4, 9, -1, -1}, {2, -1, -1, -1}}}},
    {"A decodes, B goes on in a second chunk",
     {2, {0, 1, 1 + CHUNK}, {N + 5, 30 + CHUNK}, {{4, 9, -1, -1}, {2, 7, 0, -1}}}},
};
enum { NUM_SCENARIOS = sizeof scenarios / sizeof *scenarios };

START_TEST(each_metadata_scenario_gives_what_the_reference_loop_gives)
{
    struct aule_session *session = seed_open(0);
    for (size_t i = 0; i < NUM_SCENARIOS; i++) {
        const struct meta *meta = &scenarios[i].meta;
        struct seed_blocks blocks = open_blocks(session);
        struct seed_step step = open_step(session, meta);
        for (int32_t s = 0; s < meta->num_seqs; s++)
            seed_blocks_put(&blocks, meta->block_table[s], s, 0,
                            meta->seq_lens_kv[s] - meta->cu_seqlens_q[s + 1] +
                                meta->cu_seqlens_q[s]);
        run_step(&step, &blocks, meta);
        expect_reference(&step, &blocks, meta, scenarios[i].name);
        seed_step_close(&step);
        seed_blocks_close(&blocks);
    }
    aule_session_close(session);
}
END_TEST

// ---- 3.3: slots are flat, table entries are blocks ----

// The drawing's slots [5, 6, 7, 21, 22, 23]: two sequences of eight tokens, the last three of each
// are new.
START_TEST(set_kv_by_flat_slots_lands_in_the_block_tensors_and_nowhere_else)
{
    static const struct meta meta = {2, {0, 3, 6}, {8, 8}, {{0, -1, -1, -1}, {1, -1, -1, -1}}};
    static const int64_t wanted[] = {5, 6, 7, 21, 22, 23};
    struct aule_session *session = seed_open(0);
    struct seed_blocks blocks = open_blocks(session), expected = open_blocks(session);
    struct seed_step step = open_step(session, &meta);
    int64_t slots[6];
    fill_slots(&meta, slots);
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(slots[i], wanted[i]);
    for (int32_t s = 0; s < 2; s++) {
        seed_blocks_put(&blocks, meta.block_table[s], s, 0, 5);
        seed_blocks_put(&expected, meta.block_table[s], s, 0, 5);
    }
    run_step(&step, &blocks, &meta);
    // K.view(-1, H_kv, D)[slot_mapping] = k
    const uint8_t *k = aule_tensor_data(session, &step.k), *v = aule_tensor_data(session, &step.v);
    uint8_t *flat_k = aule_tensor_data(session, &expected.keys),
            *flat_v = aule_tensor_data(session, &expected.values);
    size_t row = seed_row_size(AULE_F32, SEED_KV_HEADS);
    for (size_t t = 0; t < 6; t++) {
        memcpy(flat_k + (size_t)slots[t] * row, k + t * row, row);
        memcpy(flat_v + (size_t)slots[t] * row, v + t * row, row);
    }
    ck_assert_mem_eq(aule_tensor_data(session, &blocks.keys), flat_k, seed_blocks_size(&blocks));
    ck_assert_mem_eq(aule_tensor_data(session, &blocks.values), flat_v, seed_blocks_size(&blocks));
    aule_session_close(session);
}
END_TEST

START_TEST(a_slot_of_minus_one_writes_nothing)
{
    static const struct meta meta = {1, {0, N}, {N}, {{4, 9, -1, -1}}};
    struct aule_session *session = seed_open(0);
    struct seed_blocks blocks = open_blocks(session), expected = open_blocks(session);
    struct seed_step step = open_step(session, &meta);
    struct aule_batch *batch = NULL;
    const struct aule_kv_layout layout = seed_blocks_layout(&blocks);
    struct aule_run_params run = seed_step_run(&step);
    int64_t slots[N];
    for (int t = 0; t < N; t++)
        slots[t] = -1;
    seed_blocks_put(&blocks, meta.block_table[0], 0, 0, N);
    seed_blocks_put(&expected, meta.block_table[0], 0, 0, N);
    memset(aule_tensor_data(session, &step.k), 0xff, N * step.k.token_stride);
    memset(aule_tensor_data(session, &step.v), 0xff, N * step.v.token_stride);
    const struct aule_batch_params params = params_of(&step, &meta, slots);
    run.keys = blocks.keys;
    run.values = blocks.values;
    ok(aule_batch_create_local(session, &layout, &params, &batch));
    seed_step_finish(&step, batch, &run);
    seed_step_expect(&step, NULL, &run, "all keys there already");
    ck_assert_mem_eq(aule_tensor_data(session, &blocks.keys),
                     aule_tensor_data(session, &expected.keys), seed_blocks_size(&blocks));
    ck_assert_mem_eq(aule_tensor_data(session, &blocks.values),
                     aule_tensor_data(session, &expected.values), seed_blocks_size(&blocks));
    aule_session_close(session);
}
END_TEST

// ---- 3.5 and 3.7: the output is token-major ----

// Each query sees only its own key, so its output is its own V: out[t][h] = v[t][h / group], and
// .view(T, H * D) needs no transpose.
START_TEST(the_output_is_token_major_so_that_a_view_flattens_it)
{
    static const struct meta meta = {1, {0, N}, {N}, {{4, 9, -1, -1}}};
    struct aule_session *session = seed_open(0);
    struct seed_blocks blocks = open_blocks(session);
    struct seed_step step = open_step(session, &meta);
    struct aule_batch *batch = NULL;
    const struct aule_kv_layout layout = seed_blocks_layout(&blocks);
    struct aule_run_params run = seed_step_run(&step);
    int64_t slots[N];
    fill_slots(&meta, slots);
    const struct aule_batch_params params = params_of(&step, &meta, slots);
    run.keys = blocks.keys;
    run.values = blocks.values;
    run.window = (struct aule_window){.enabled = true, .left = 0, .right = 0};
    ok(aule_batch_create_local(session, &layout, &params, &batch));
    seed_step_finish(&step, batch, &run);
    const float *flat = aule_tensor_data(session, &step.out);
    for (int32_t t = 0; t < N; t++)
        for (uint32_t i = 0; i < SEED_HEADS * SEED_DIM; i++) {
            uint32_t kv_head = i / SEED_DIM / (SEED_HEADS / SEED_KV_HEADS);
            float wanted = seed_value(SEED_V, 0, t, kv_head * SEED_DIM + i % SEED_DIM);
            ck_assert_float_eq_tol(flat[(uint32_t)t * SEED_HEADS * SEED_DIM + i], wanted, 1e-6f);
        }
    aule_session_close(session);
}
END_TEST

// ---- 3.6: the harness ----

// One request, over the lesson's tensors or over the pool.
struct request {
    struct aule_session *session;
    struct aule_cache *cache;  // NULL: over `blocks`
    struct seed_blocks blocks; // else unused
    int32_t table[MAX_BLOCKS], num_blocks;
};

// reserve(req, alloc, len): leases blocks as the request grows; their order has no meaning.
static void reserve(struct request *request, int32_t len)
{
    static const int32_t order[MAX_BLOCKS] = {6, 1, 11, 3};
    for (; request->num_blocks * BLOCK < len; request->num_blocks++)
        if (request->cache)
            seed_lease(request->session, request->cache, AULE_F32, BLOCK, 1,
                       &request->table[request->num_blocks]);
        else
            request->table[request->num_blocks] = order[request->num_blocks];
}

// Computes positions from..to - 1. Their rows, [to - from, heads, dim], are then in `out`.
static void forward(struct request *request, int32_t from, int32_t to, float *out)
{
    reserve(request, to);
    struct meta meta = {.num_seqs = 1, .cu_seqlens_q = {0, to - from}, .seq_lens_kv = {to}};
    memcpy(meta.block_table[0], request->table, sizeof request->table);
    struct seed_step step = open_step(request->session, &meta);
    if (request->cache) {
        int64_t slots[MAX_BLOCKS * BLOCK];
        struct aule_batch *batch = NULL;
        const struct aule_run_params run = seed_step_run(&step);
        fill_slots(&meta, slots);
        const struct aule_batch_params params = params_of(&step, &meta, slots);
        ok(aule_batch_create(request->cache, &params, &batch));
        seed_step_finish(&step, batch, &run);
        seed_step_expect(&step, NULL, &run, "the harness over the pool");
    } else {
        run_step(&step, &request->blocks, &meta);
        expect_reference(&step, &request->blocks, &meta, "the harness");
    }
    memcpy(out, seed_step_out(&step, 0), (size_t)(to - from) * SEED_HEADS * SEED_DIM * sizeof *out);
    seed_step_close(&step);
}

static struct request open_request(struct aule_session *session, struct aule_cache *cache)
{
    struct request request = {.session = session, .cache = cache};
    memset(request.table, 0xff, sizeof request.table);
    if (!cache)
        request.blocks = open_blocks(session);
    return request;
}

static void close_request(struct request *request)
{
    if (request->cache)
        ok(aule_blocks_release(request->cache, (uint32_t)request->num_blocks, request->table));
    else
        seed_blocks_close(&request->blocks);
}

enum { ROW = SEED_HEADS * SEED_DIM, ALL = (N + DECODED) * ROW };

// Prefill, then token by token.
static void generate(struct aule_session *session, struct aule_cache *cache, float *out)
{
    struct request request = open_request(session, cache);
    forward(&request, 0, N, out);
    for (int32_t i = 0; i < DECODED; i++)
        forward(&request, N + i, N + i + 1, out + (size_t)(N + i) * ROW);
    close_request(&request);
}

static void expect_close(const float *got, const float *wanted)
{
    for (size_t row = 0; row < ALL / SEED_DIM; row++) {
        double values[SEED_DIM];
        for (size_t d = 0; d < SEED_DIM; d++)
            values[d] = (double)wanted[row * SEED_DIM + d];
        seed_expect_row(got + row * SEED_DIM, AULE_F32, values, "against one long prefill",
                        (uint32_t)(row / SEED_HEADS), row % SEED_HEADS);
    }
}

START_TEST(a_prefill_and_twenty_decode_steps_give_what_one_long_prefill_gives)
{
    static float steps[ALL], whole[ALL], pooled[ALL];
    struct aule_session *session = seed_open(0);
    struct aule_cache *cache = seed_cache(session, AULE_F32, BLOCK);
    struct request request = open_request(session, NULL);
    forward(&request, 0, N + DECODED, whole);
    close_request(&request);
    generate(session, NULL, steps);
    expect_close(steps, whole);
    generate(session, cache, pooled);
    ck_assert_mem_eq(pooled, steps,
                     sizeof steps); // the pool uses other blocks, but the rows' bits are the same
    seed_expect_all_free(cache);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("seed, mini_sglang L3");
    seed_add(suite, "paged attention", seed_setup,
             (const TTest *const[]){
                 each_metadata_scenario_gives_what_the_reference_loop_gives,
                 set_kv_by_flat_slots_lands_in_the_block_tensors_and_nowhere_else,
                 a_slot_of_minus_one_writes_nothing,
                 the_output_is_token_major_so_that_a_view_flattens_it,
                 a_prefill_and_twenty_decode_steps_give_what_one_long_prefill_gives, NULL});
    return check_main(suite);
}
