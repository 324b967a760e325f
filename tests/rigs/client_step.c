// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// client_step.c - see client_step.h.

#include "client_step.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct daemon daemon_;

static const int32_t prompt_tokens[20] = {11, 12, 13, 14, 15, 16, 17, 18, 21, 22,
                                          23, 24, 25, 26, 27, 28, 31, 32, 33, 34};
const struct aule_prefix prompt = {.tokens = prompt_tokens, .num_tokens = 20};

// ---- fixtures ----

void launch(const char *const *options)
{
    ck_assert(daemon_launch(&daemon_, options));
}

static void teardown(void)
{
    ck_assert_int_eq(daemon_end(&daemon_), 0);
}

static void teardown_shared(void)
{
    daemon_end_shared(&daemon_);
}

uint64_t step_device_arena;

struct aule_session *open_session(const char *tenant)
{
    struct aule_session *session = NULL;
    const struct aule_session_params params = {.socket = daemon_.socket,
                                               .name = "test_client",
                                               .tenant = tenant,
                                               .arena_size = 1 << 20,
                                               .timeout_ms = WAIT_MS,
                                               .device_arena_size = step_device_arena};
    ok(aule_session_open(&params, &session));
    return session;
}

struct aule_cache_params cache_params(void)
{
    return (struct aule_cache_params){.name = "tests",
                                      .num_layers = LAYERS,
                                      .num_kv_heads = KV_HEADS,
                                      .head_dim = DIM,
                                      .k_dtype = AULE_F32,
                                      .v_dtype = AULE_F32,
                                      .block_size = BLOCK,
                                      .fingerprint = "print",
                                      .fingerprint_size = 5};
}

struct aule_cache *open_cache(struct aule_session *session)
{
    struct aule_cache *cache = NULL;
    const struct aule_cache_params params = cache_params();
    ok(aule_cache_open(session, &params, &cache));
    return cache;
}

struct aule_cache_state state_of(struct aule_cache *cache)
{
    struct aule_cache_state state;
    ok(aule_cache_state(cache, &state));
    ck_assert_uint_eq(state.free_blocks + state.leased_blocks + state.held_blocks +
                          state.evictable_blocks + state.quarantined_blocks,
                      state.total_blocks);
    return state;
}

void pause_briefly(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

void await_leased(struct aule_cache *cache, uint64_t blocks)
{
    for (int i = 0; i < DEADLINE_S * 200 && state_of(cache).leased_blocks != blocks; i++)
        pause_briefly();
    ck_assert_uint_eq(state_of(cache).leased_blocks, blocks);
}

// ---- a step: the tensors of one session, and a batch over them ----

void create_tensors(struct step *step)
{
    ok(aule_tensor_create(step->session, AULE_F32, MAX_TOKENS, HEADS, DIM, &step->q));
    ok(aule_tensor_create(step->session, AULE_F32, MAX_TOKENS, KV_HEADS, DIM, &step->k));
    ok(aule_tensor_create(step->session, AULE_F32, MAX_TOKENS, KV_HEADS, DIM, &step->v));
    ok(aule_tensor_create(step->session, AULE_F32, MAX_TOKENS, HEADS, DIM, &step->out));
}

// Two sequences: sixteen tokens from the start, in blocks 0 and 1, and a token of a third.
void reset(struct step *step)
{
    memset(step->table, -1, sizeof step->table);
    step->cu[0] = 0;
    step->cu[1] = 16;
    step->cu[2] = 17;
    step->lens[0] = 16;
    step->lens[1] = 1;
    step->table[0] = step->blocks[0];
    step->table[1] = step->blocks[1];
    step->table[2] = step->blocks[2];
    for (int t = 0; t < 16; t++)
        step->slots[t] = (int64_t)step->blocks[t / BLOCK] * BLOCK + t % BLOCK;
    step->slots[16] = (int64_t)step->blocks[2] * BLOCK;
    step->batch = (struct aule_batch_params){.num_seqs = 2,
                                             .max_blocks = 2,
                                             .cu_seqlens_q = step->cu,
                                             .seq_lens_kv = step->lens,
                                             .block_table = step->table,
                                             .slot_mapping = step->slots};
    step->run = (struct aule_run_params){.num_heads = HEADS,
                                         .q = step->q,
                                         .k = step->k,
                                         .v = step->v,
                                         .out = step->out,
                                         .causal = true};
}

void fill(struct step *step, const struct aule_tensor *tensor, uint32_t heads, uint32_t seed)
{
    float *data = aule_tensor_data(step->session, tensor);
    for (uint32_t i = 0; i < MAX_TOKENS * heads * DIM; i++)
        data[i] = value_at(seed, i);
}

void open_step(struct step *step, const char *tenant)
{
    *step = (struct step){.session = open_session(tenant)};
    step->cache = open_cache(step->session);
    ok(aule_blocks_lease(step->cache, 4, 0, step->blocks));
    create_tensors(step);
    fill(step, &step->q, HEADS, 1);
    fill(step, &step->k, KV_HEADS, 2);
    fill(step, &step->v, KV_HEADS, 3);
    reset(step);
}

void close_step(struct step *step)
{
    aule_tensor_destroy(step->session, &step->q);
    aule_tensor_destroy(step->session, &step->k);
    aule_tensor_destroy(step->session, &step->v);
    aule_tensor_destroy(step->session, &step->out);
    aule_cache_close(step->cache);
    aule_session_close(step->session);
}

struct aule_batch *create_batch(struct step *step)
{
    struct aule_batch *batch = NULL;
    ok(aule_batch_create(step->cache, &step->batch, &batch));
    return batch;
}

void run_every_layer(struct step *step, struct aule_batch *batch)
{
    for (step->run.layer = 0; step->run.layer < LAYERS; step->run.layer++)
        ok(aule_run(batch, &step->run, WAIT_MS, NULL));
    step->run.layer = 0;
}

void run_once(struct step *step)
{
    struct aule_batch *batch = create_batch(step);
    run_every_layer(step, batch);
    aule_batch_destroy(batch);
}

// ---- attention as two loops in double ----

// Keys and values of one sequence, as written: [tokens, KV_HEADS, DIM].
static void naive_row(const float *q, const struct history *history, uint32_t kv_head,
                      uint32_t num_keys, double *out)
{
    double scores[MAX_TOKENS], most = -INFINITY, sum = 0;
    for (uint32_t j = 0; j < num_keys; j++) {
        scores[j] = 0;
        for (uint32_t d = 0; d < DIM; d++)
            scores[j] += (double)q[d] * history->k[j][kv_head][d] / sqrt(DIM);
        most = fmax(most, scores[j]);
    }
    memset(out, 0, DIM * sizeof *out);
    for (uint32_t j = 0; j < num_keys; j++) {
        double weight = exp(scores[j] - most);
        sum += weight;
        for (uint32_t d = 0; d < DIM; d++)
            out[d] += weight * history->v[j][kv_head][d];
    }
    for (uint32_t d = 0; num_keys > 0 && d < DIM; d++)
        out[d] /= sum;
}

static void expect_row(const float *got, const double *wanted, uint32_t token, uint32_t head)
{
    double largest = 0;
    for (uint32_t d = 0; d < DIM; d++)
        largest = fmax(largest, fabs(wanted[d]));
    for (uint32_t d = 0; d < DIM; d++)
        ck_assert_msg(fabs(got[d] - wanted[d]) <= 1e-5 * largest,
                      "token %u head %u [%u]: %.9g instead of %.9g", token, head, d, (double)got[d],
                      wanted[d]);
}

// Compares every row of the step's output with its sequence's history.
void expect_attention(struct step *step, const struct history *histories)
{
    const float *q = aule_tensor_data(step->session, &step->q),
                *out = aule_tensor_data(step->session, &step->out);
    for (uint32_t s = 0; s < step->batch.num_seqs; s++)
        for (int32_t t = step->cu[s]; t < step->cu[s + 1]; t++)
            for (uint32_t head = 0; head < HEADS; head++) {
                int32_t keys = step->run.causal ? step->lens[s] - (step->cu[s + 1] - step->cu[s]) +
                                                      (t - step->cu[s]) + 1
                                                : step->lens[s];
                double wanted[DIM];
                size_t row = ((size_t)t * HEADS + head) * DIM;
                naive_row(q + row, &histories[s], head / (HEADS / KV_HEADS),
                          keys > 0 ? (uint32_t)keys : 0, wanted);
                expect_row(out + row, wanted, (uint32_t)t, head);
            }
}

// Appends the step's keys and values of sequence `s` to its history, which ends at seq_len.
static void remember(struct step *step, uint32_t s, struct history *history)
{
    const float *k = aule_tensor_data(step->session, &step->k),
                *v = aule_tensor_data(step->session, &step->v);
    int32_t q_len = step->cu[s + 1] - step->cu[s], first = step->lens[s] - q_len;
    for (int32_t i = 0; i < q_len; i++) {
        size_t from = (size_t)(step->cu[s] + i) * KV_HEADS * DIM;
        memcpy(history->k[first + i], k + from, sizeof history->k[0]);
        memcpy(history->v[first + i], v + from, sizeof history->v[0]);
    }
}

void remember_all(struct step *step, struct history *histories)
{
    for (uint32_t s = 0; s < step->batch.num_seqs; s++)
        remember(step, s, &histories[s]);
}

pid_t fork_worker(void (*body)(void))
{
    int told[2];
    char byte;
    ck_assert_int_eq(pipe(told), 0);
    pid_t worker = fork();
    ck_assert_int_ge(worker, 0);
    if (worker == 0) {
        body();
        if (write(told[1], "", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(told[1]);
    ck_assert_int_eq(read(told[0], &byte, 1), 1);
    close(told[0]);
    return worker;
}

void kill_worker(pid_t worker)
{
    ck_assert_int_eq(kill(worker, SIGKILL), 0);
    ck_assert_int_eq(waitpid(worker, NULL, 0), worker);
}

// The session still works: fresh blocks, a good batch, a good run.
void still_works(struct step *step)
{
    int32_t blocks[3];
    ok(aule_blocks_lease(step->cache, 3, 0, blocks));
    memcpy(step->blocks, blocks, sizeof blocks);
    reset(step);
    run_once(step);
    ok(aule_blocks_release(step->cache, 3, blocks));
    state_of(step->cache);
}

// ---- the suite ----

static void add_group(Suite *suite, TCase *group, const struct entry *entries)
{
    for (; entries->test; entries++)
        tcase_add_loop_test(group, entries->test, 0, entries->count ? entries->count : 1);
    suite_add_tcase(suite, group);
}

void add(Suite *suite, const char *name, void (*prepare)(void), const struct entry *entries)
{
    TCase *group = tcase_create(name);
    tcase_add_checked_fixture(group, prepare, teardown);
    add_group(suite, group, entries);
}

void add_shared(Suite *suite, const char *name, void (*prepare)(void), const struct entry *entries)
{
    TCase *group = tcase_create(name);
    tcase_add_unchecked_fixture(group, prepare, teardown_shared);
    add_group(suite, group, entries);
}
