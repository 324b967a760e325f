// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// seed_world.c - see seed_world.h.

#include "seed_world.h"

#include "monitor_state.h"
#include "oracle/oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// ---- the daemon of a test case, and statuses ----

static struct daemon daemon_;

void seed_launch(const char *const *options)
{
    ck_assert(daemon_launch(&daemon_, options));
}

void seed_setup(void)
{
    seed_launch(NULL);
}

void seed_teardown(void)
{
    daemon_end_shared(&daemon_);
}

void seed_add(Suite *suite, const char *name, void (*setup)(void), const TTest *const *tests)
{
    check_shared_case(suite, name, setup, seed_teardown, tests, 1);
}

// ---- sessions and caches ----

struct aule_session *seed_open(uint32_t paged_threshold)
{
    const struct aule_session_params params = {.socket = daemon_.socket,
                                               .arena_size = 32 << 20,
                                               .timeout_ms = SEED_WAIT_MS,
                                               .paged_threshold = paged_threshold};
    struct aule_session *session = NULL;
    ok(aule_session_open(&params, &session));
    return session;
}

struct aule_cache *seed_cache(struct aule_session *session, enum aule_dtype dtype,
                              uint32_t block_size)
{
    char name[64];
    snprintf(name, sizeof name, "seed, %s, blocks of %u", aule_dtype_name(dtype), block_size);
    const struct aule_cache_params params = {.name = name,
                                             .num_layers = 1,
                                             .num_kv_heads = SEED_KV_HEADS,
                                             .head_dim = SEED_DIM,
                                             .k_dtype = dtype,
                                             .v_dtype = dtype,
                                             .block_size = block_size};
    struct aule_cache *cache = NULL;
    ok(aule_cache_open(session, &params, &cache));
    return cache;
}

struct aule_cache_state seed_state(struct aule_cache *cache)
{
    struct aule_cache_state state;
    ok(aule_cache_state(cache, &state));
    return state;
}

void seed_expect_all_free(struct aule_cache *cache)
{
    struct aule_cache_state state = seed_state(cache);
    ck_assert_uint_eq(state.leased_blocks, 0);
    ck_assert_uint_eq(state.held_blocks, 0);
    ck_assert_uint_eq(state.quarantined_blocks, 0);
    ck_assert_uint_eq(state.free_blocks + state.evictable_blocks, state.total_blocks);
}

void seed_expect_nothing_leased(void)
{
    struct aule_monitor *monitor = NULL;
    struct daemon_state state;
    ok(aule_monitor_open(daemon_.socket, SEED_WAIT_MS, &monitor));
    for (int i = 0; i < SEED_WAIT_MS / 10; i++) {
        state = monitor_state(monitor);
        if (state.leased_blocks + state.held_blocks + state.quarantined_blocks == 0)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    ck_assert_uint_eq(state.leased_blocks, 0);
    ck_assert_uint_eq(state.held_blocks, 0);
    ck_assert_uint_eq(state.quarantined_blocks, 0);
    ck_assert_uint_eq(state.free_blocks + state.cached_blocks, state.pool_blocks);
    aule_monitor_close(monitor);
}

// ---- numbers ----

static uint32_t mix(uint32_t x, uint32_t y)
{
    x = (x ^ y) * 2654435761u;
    x ^= x >> 15;
    x *= 2246822519u;
    return x ^ x >> 13;
}

float seed_value(enum seed_what what, int32_t seq, int32_t position, uint32_t index)
{
    uint32_t x = mix(mix(mix((uint32_t)what + 1, (uint32_t)seq), (uint32_t)position), index);
    return 2 * ((float)(x & 0xffff) / 32768 - 1);
}

void seed_put_row(void *row, uint64_t head_stride, enum aule_dtype dtype, uint32_t num_heads,
                  enum seed_what what, int32_t seq, int32_t position)
{
    for (uint32_t head = 0; head < num_heads; head++)
        for (uint32_t d = 0; d < SEED_DIM; d++)
            oracle_store((uint8_t *)row + head * head_stride, (enum dtype)dtype, d,
                         seed_value(what, seq, position, head * SEED_DIM + d));
}

int64_t seed_slot(const int32_t *table_row, uint32_t block_size, int32_t position)
{
    return (int64_t)table_row[(uint32_t)position / block_size] * block_size +
           (uint32_t)position % block_size;
}

size_t seed_row_size(enum aule_dtype dtype, uint32_t num_heads)
{
    return num_heads * SEED_DIM * aule_dtype_size(dtype);
}

// ---- one step ----

uint32_t seed_step_tokens(const struct seed_step *step)
{
    return (uint32_t)step->cu_q[step->num_seqs];
}

static size_t row_of(const struct seed_step *step, uint32_t token)
{
    return step->rows ? (size_t)step->rows[token] : token;
}

static void create(const struct seed_step *step, uint32_t num_heads, enum seed_what what,
                   struct aule_tensor *tensor)
{
    ok(aule_tensor_create(step->session, step->dtype, seed_step_tokens(step) + 1, num_heads,
                          SEED_DIM, tensor));
    uint8_t *data = aule_tensor_data(step->session, tensor);
    memset(data, 0xff, (seed_step_tokens(step) + 1) * tensor->token_stride);
    for (uint32_t s = 0; s < step->num_seqs; s++)
        for (int32_t t = step->cu_q[s]; t < step->cu_q[s + 1]; t++)
            seed_put_row(data + row_of(step, (uint32_t)t) * tensor->token_stride,
                         tensor->head_stride, step->dtype, num_heads, what,
                         step->first_seq + (int32_t)s, step->lens[s] - step->cu_q[s + 1] + t);
}

void seed_step_open(struct seed_step *step)
{
    create(step, SEED_HEADS, SEED_Q, &step->q);
    create(step, SEED_KV_HEADS, SEED_K, &step->k);
    create(step, SEED_KV_HEADS, SEED_V, &step->v);
    create(step, SEED_HEADS, SEED_Q, &step->out);
    ok(aule_tensor_create(step->session, AULE_F32, seed_step_tokens(step) + 1, 1, SEED_HEADS,
                          &step->lse));
    step->lse.head_stride = sizeof(float);
    seed_step_clear(step);
}

void seed_step_close(struct seed_step *step)
{
    struct aule_tensor *tensors[] = {&step->q, &step->k, &step->v, &step->out, &step->lse};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        aule_tensor_destroy(step->session, tensors[i]);
}

struct aule_batch_params seed_step_batch(const struct seed_step *step)
{
    return (struct aule_batch_params){.num_seqs = step->num_seqs,
                                      .cu_seqlens_q = step->cu_q,
                                      .seq_lens_kv = step->lens,
                                      .token_rows = step->rows};
}

struct aule_run_params seed_step_run(const struct seed_step *step)
{
    return (struct aule_run_params){.num_heads = SEED_HEADS,
                                    .q = step->q,
                                    .k = step->k,
                                    .v = step->v,
                                    .out = step->out,
                                    .lse = step->lse,
                                    .causal = true};
}

void seed_step_clear(struct seed_step *step)
{
    uint32_t rows = seed_step_tokens(step) + 1;
    memset(aule_tensor_data(step->session, &step->out), 0xff, rows * step->out.token_stride);
    memset(aule_tensor_data(step->session, &step->lse), 0xff, rows * step->lse.token_stride);
}

void seed_step_finish(struct seed_step *step, struct aule_batch *batch,
                      const struct aule_run_params *run)
{
    seed_step_clear(step);
    ok(aule_run(batch, run, SEED_WAIT_MS, NULL));
    aule_batch_destroy(batch);
}

const void *seed_step_out(const struct seed_step *step, uint32_t token)
{
    return (const uint8_t *)aule_tensor_data(step->session, &step->out) +
           row_of(step, token) * step->out.token_stride;
}

// ---- float64 ----

// K and V of all sequences, one after the other, and the oracle's parameters.
struct truth {
    struct oracle_params params;
    int32_t *starts;
    uint64_t *mask_starts; // bits
    void *k, *v;
};

static uint64_t count_keys(const struct seed_step *step, struct truth *truth)
{
    int32_t total = 0;
    truth->starts = calloc(step->num_seqs + 1, sizeof *truth->starts);
    truth->mask_starts = calloc(step->num_seqs + 1, sizeof *truth->mask_starts);
    ck_assert_ptr_nonnull(truth->starts);
    ck_assert_ptr_nonnull(truth->mask_starts);
    for (uint32_t s = 0; s < step->num_seqs; s++) {
        uint64_t bits = (uint64_t)(step->cu_q[s + 1] - step->cu_q[s]) * (uint64_t)step->lens[s];
        truth->starts[s] = total;
        total += step->lens[s];
        truth->mask_starts[s + 1] = truth->mask_starts[s] + (bits + 7) / 8 * 8;
    }
    return (uint64_t)total;
}

static void *ragged(const struct seed_step *step, const struct truth *truth, uint64_t rows,
                    enum seed_what what)
{
    size_t size = seed_row_size(step->dtype, SEED_KV_HEADS);
    uint8_t *array = calloc(rows + 1, size);
    ck_assert_ptr_nonnull(array);
    for (uint32_t s = 0; s < step->num_seqs; s++)
        for (int32_t j = 0; j < step->lens[s]; j++)
            seed_put_row(array + (size_t)(truth->starts[s] + j) * size, size / SEED_KV_HEADS,
                         step->dtype, SEED_KV_HEADS, what, step->first_seq + (int32_t)s, j);
    return array;
}

static struct oracle_kv ragged_kv(const struct seed_step *step, const void *array)
{
    size_t size = seed_row_size(step->dtype, SEED_KV_HEADS);
    return (struct oracle_kv){.dtype = (enum dtype)step->dtype,
                              .base = array,
                              .token_stride = size,
                              .head_stride = size / SEED_KV_HEADS};
}

static void truth_make(const struct seed_step *step, const struct aule_batch_params *batch,
                       const struct aule_run_params *run, struct truth *truth)
{
    *truth = (struct truth){.k = NULL};
    uint64_t rows = count_keys(step, truth);
    truth->k = ragged(step, truth, rows, SEED_K);
    truth->v = ragged(step, truth, rows, SEED_V);
    truth->params =
        (struct oracle_params){.num_seqs = step->num_seqs,
                               .num_heads = SEED_HEADS,
                               .num_kv_heads = SEED_KV_HEADS,
                               .head_dim_k = SEED_DIM,
                               .head_dim_v = SEED_DIM,
                               .q_dtype = (enum dtype)step->dtype,
                               .cu_seqlens_q = step->cu_q,
                               .seq_lens_kv = step->lens,
                               .k = ragged_kv(step, truth->k),
                               .v = ragged_kv(step, truth->v),
                               .q = aule_tensor_data(step->session, &step->q),
                               .q_token_stride = step->q.token_stride,
                               .q_head_stride = step->q.head_stride,
                               .scale = run->scale != 0 ? (double)run->scale : 1 / sqrt(SEED_DIM),
                               .causal = run->causal,
                               .windowed = run->window.enabled,
                               .window_left = run->window.left,
                               .window_right = run->window.right,
                               .cap = (double)run->logits_soft_cap,
                               .slopes = run->alibi_slopes,
                               .sinks = run->sinks,
                               .positions = batch ? batch->positions : NULL,
                               .mask = batch ? batch->mask : NULL,
                               .mask_starts = truth->mask_starts,
                               .q_lens = batch ? batch->q_lens : NULL,
                               .token_rows = step->rows,
                               .kv_starts = truth->starts};
}

static void truth_finish(struct truth *truth)
{
    free(truth->starts);
    free(truth->mask_starts);
    free(truth->k);
    free(truth->v);
}

static double bound_of(enum aule_dtype dtype)
{
    return dtype == AULE_F32 ? 1e-5 : dtype == AULE_F16 ? 2e-3 : 1.6e-2;
}

void seed_expect_row(const void *got, enum aule_dtype dtype, const double *wanted, const char *name,
                     uint32_t token, uint32_t head)
{
    double largest = 0;
    for (uint32_t d = 0; d < SEED_DIM; d++)
        largest = fmax(largest, fabs(wanted[d]));
    for (uint32_t d = 0; d < SEED_DIM; d++) {
        double value = oracle_load(got, (enum dtype)dtype, d);
        ck_assert_msg(fabs(value - wanted[d]) <= bound_of(dtype) * largest,
                      "%s, %s, token %u head %u [%u]: %.9g instead of %.9g", name,
                      aule_dtype_name(dtype), token, head, d, value, wanted[d]);
    }
}

static void expect_lse(const struct seed_step *step, double wanted, const char *name,
                       uint32_t token, uint32_t head)
{
    const uint8_t *data = aule_tensor_data(step->session, &step->lse);
    double got = oracle_load(data + row_of(step, token) * step->lse.token_stride, DTYPE_F32, head);
    double bound = step->dtype == AULE_F32 ? 1e-4 : 2e-3;
    ck_assert_msg(isinf(wanted) ? got == wanted
                                : fabs(got - wanted) <= bound * fmax(1, fabs(wanted)),
                  "%s, %s, token %u head %u: LSE %.9g instead of %.9g", name,
                  aule_dtype_name(step->dtype), token, head, got, wanted);
}

void seed_step_expect(const struct seed_step *step, const struct aule_batch_params *batch,
                      const struct aule_run_params *run, const char *name)
{
    struct truth truth;
    truth_make(step, batch, run, &truth);
    for (uint32_t t = 0; t < seed_step_tokens(step); t++)
        for (uint32_t head = 0; head < SEED_HEADS; head++) {
            double wanted[SEED_DIM], lse;
            ck_assert(oracle_row(&truth.params, t, head, wanted, &lse));
            seed_expect_row((const uint8_t *)seed_step_out(step, t) + head * step->out.head_stride,
                            step->dtype, wanted, name, t, head);
            if (run->lse.dtype)
                expect_lse(step, lse, name, t, head);
        }
    truth_finish(&truth);
}

// ---- K and V in blocks ----

// Copies rows of k and v to their slots.
static void import_rows(struct aule_session *session, struct aule_cache *cache, uint32_t num_rows,
                        const int64_t *slots, const struct aule_tensor *k,
                        const struct aule_tensor *v)
{
    const struct aule_kv_import params = {
        .num_rows = num_rows, .slot_mapping = slots, .k = *k, .v = *v};
    struct aule_ticket ticket;
    ok(aule_kv_import(cache, &params, SEED_WAIT_MS, &ticket));
    ok(aule_ticket_wait(session, ticket, SEED_WAIT_MS, NULL));
}

void seed_lease(struct aule_session *session, struct aule_cache *cache, enum aule_dtype dtype,
                uint32_t block_size, uint32_t count, int32_t *block_ids)
{
    uint32_t num_rows = count * block_size;
    int64_t *slots = calloc(num_rows, sizeof *slots);
    struct aule_tensor nans;
    ck_assert_ptr_nonnull(slots);
    ok(aule_blocks_lease(cache, count, SEED_WAIT_MS, block_ids));
    ok(aule_tensor_create(session, dtype, num_rows, SEED_KV_HEADS, SEED_DIM, &nans));
    memset(aule_tensor_data(session, &nans), 0xff, num_rows * nans.token_stride);
    for (uint32_t i = 0; i < num_rows; i++)
        slots[i] = (int64_t)block_ids[i / block_size] * block_size + i % block_size;
    import_rows(session, cache, num_rows, slots, &nans, &nans);
    aule_tensor_destroy(session, &nans);
    free(slots);
}

void seed_import(struct aule_session *session, struct aule_cache *cache, enum aule_dtype dtype,
                 const int32_t *table_row, uint32_t block_size, int32_t seq, int32_t from,
                 int32_t to)
{
    const int32_t cu[] = {0, to - from}, len = to;
    int64_t *slots = calloc((size_t)(to - from) + 1, sizeof *slots);
    struct seed_step rows = {.session = session,
                             .dtype = dtype,
                             .num_seqs = 1,
                             .cu_q = cu,
                             .lens = &len,
                             .first_seq = seq};
    ck_assert_ptr_nonnull(slots);
    seed_step_open(&rows);
    for (int32_t j = from; j < to; j++)
        slots[j - from] = seed_slot(table_row, block_size, j);
    import_rows(session, cache, (uint32_t)(to - from), slots, &rows.k, &rows.v);
    seed_step_close(&rows);
    free(slots);
}

static void create_blocks(const struct seed_blocks *blocks, struct aule_tensor *tensor)
{
    uint64_t size = aule_dtype_size(blocks->dtype) * SEED_DIM, tokens = blocks->block_size;
    ok(aule_tensor_create(blocks->session, blocks->dtype, blocks->num_blocks * blocks->block_size,
                          SEED_KV_HEADS, SEED_DIM, tensor));
    tensor->outer_stride = tokens * SEED_KV_HEADS * size;
    tensor->token_stride = blocks->heads_first ? size : SEED_KV_HEADS * size;
    tensor->head_stride = blocks->heads_first ? tokens * size : size;
    memset(aule_tensor_data(blocks->session, tensor), 0xff, seed_blocks_size(blocks));
}

void seed_blocks_open(struct seed_blocks *blocks)
{
    create_blocks(blocks, &blocks->keys);
    create_blocks(blocks, &blocks->values);
}

void seed_blocks_close(struct seed_blocks *blocks)
{
    aule_tensor_destroy(blocks->session, &blocks->keys);
    aule_tensor_destroy(blocks->session, &blocks->values);
}

struct aule_kv_layout seed_blocks_layout(const struct seed_blocks *blocks)
{
    return (struct aule_kv_layout){.num_kv_heads = SEED_KV_HEADS,
                                   .head_dim = SEED_DIM,
                                   .k_dtype = blocks->dtype,
                                   .v_dtype = blocks->dtype,
                                   .block_size = blocks->block_size,
                                   .num_blocks = blocks->num_blocks};
}

size_t seed_blocks_size(const struct seed_blocks *blocks)
{
    return (size_t)blocks->num_blocks * blocks->block_size *
           seed_row_size(blocks->dtype, SEED_KV_HEADS);
}

uint8_t *seed_blocks_row(const struct seed_blocks *blocks, enum seed_what what, int64_t slot)
{
    const struct aule_tensor *tensor = what == SEED_K ? &blocks->keys : &blocks->values;
    uint64_t block = (uint64_t)slot / blocks->block_size,
             offset = (uint64_t)slot % blocks->block_size;
    return (uint8_t *)aule_tensor_data(blocks->session, tensor) + block * tensor->outer_stride +
           offset * tensor->token_stride;
}

void seed_blocks_put(const struct seed_blocks *blocks, const int32_t *table_row, int32_t seq,
                     int32_t from, int32_t to)
{
    for (int32_t j = from; j < to; j++) {
        int64_t slot = seed_slot(table_row, blocks->block_size, j);
        seed_put_row(seed_blocks_row(blocks, SEED_K, slot), blocks->keys.head_stride, blocks->dtype,
                     SEED_KV_HEADS, SEED_K, seq, j);
        seed_put_row(seed_blocks_row(blocks, SEED_V, slot), blocks->values.head_stride,
                     blocks->dtype, SEED_KV_HEADS, SEED_V, seq, j);
    }
}
