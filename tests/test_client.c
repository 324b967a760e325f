// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client.c - libaule-client against the real daemon: every public function, what it computes, every bad input with its own status
// and values, threads, fork, deaths on both sides. Each test is a process of its own with a daemon of its own.

#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "aule/aule.h"
#include "check_main.h"
#include "connection.h"
#include "daemon_harness.h"

enum { LAYERS = 2, HEADS = 4, KV_HEADS = 2, DIM = 16, BLOCK = 8, MAX_TOKENS = 64, MAX_SEQS = 4, MAX_BLOCKS = 8 };
enum { WAIT_MS = 60000, DEADLINE_S = 60 };

static struct daemon daemon_;

// ---- fixtures ----

static const char *const staging[] = {"--force-staging", NULL};
static const char *const small[] = {"--max-blocks", "16", "--max-tickets", "4", "--max-batches", "8", NULL};
static const char *const strict[] = {
    "--max-sessions",   "2", "--max-caches",   "1",  "--max-arena", "1M", "--max-batches", "2",
    "--session-blocks", "4", "--max-metadata", "4K", NULL};

static void launch(const char *const *options)
{
    ck_assert(daemon_launch(&daemon_, options));
}

static void setup(void)
{
    launch(NULL);
}

static void setup_staging(void)
{
    launch(staging);
}

static void setup_small(void)
{
    launch(small);
}

static void setup_strict(void)
{
    launch(strict);
}

static void teardown(void)
{
    int code = daemon_.pid > 0 ? daemon_stop(&daemon_) : 0;
    char *log = code == 0 ? NULL : daemon_log_text(&daemon_);
    if (log)
        fprintf(stderr, "%s", log);
    free(log);
    daemon_finish(&daemon_);
    ck_assert_int_eq(code, 0);
}

static void ok(enum aule_status status)
{
    ck_assert_msg(status == AULE_OK, "%s: %s", aule_status_name(status), aule_error());
}

static void expect(enum aule_status status, enum aule_status expected, const char *words)
{
    ck_assert_msg(status == expected, "%s instead of %s: %s", aule_status_name(status), aule_status_name(expected),
                  aule_error());
    ck_assert_msg(strstr(aule_error(), words) != NULL, "\"%s\" lacks \"%s\"", aule_error(), words);
}

static struct aule_session *open_session(const char *tenant)
{
    struct aule_session *session = NULL;
    const struct aule_session_params params = {.socket = daemon_.socket,
                                               .name = "test_client",
                                               .tenant = tenant,
                                               .arena_size = 1 << 20,
                                               .timeout_ms = WAIT_MS};
    ok(aule_session_open(&params, &session));
    return session;
}

static struct aule_cache_params cache_params(void)
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

static struct aule_cache *open_cache(struct aule_session *session)
{
    struct aule_cache *cache = NULL;
    const struct aule_cache_params params = cache_params();
    ok(aule_cache_open(session, &params, &cache));
    return cache;
}

static struct aule_cache_state state_of(struct aule_cache *cache)
{
    struct aule_cache_state state;
    ok(aule_cache_state(cache, &state));
    ck_assert_uint_eq(state.free_blocks + state.leased_blocks + state.held_blocks + state.evictable_blocks +
                          state.quarantined_blocks,
                      state.total_blocks);
    return state;
}

static void pause_briefly(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

static void await_leased(struct aule_cache *cache, uint64_t blocks)
{
    for (int i = 0; i < DEADLINE_S * 200 && state_of(cache).leased_blocks != blocks; i++)
        pause_briefly();
    ck_assert_uint_eq(state_of(cache).leased_blocks, blocks);
}

// ---- a step: the tensors of one session, and a batch over them ----

struct step {
    struct aule_session *session;
    struct aule_cache *cache;
    int32_t blocks[MAX_BLOCKS]; // leased
    struct aule_tensor q, k, v, out;
    int32_t cu[MAX_SEQS + 1], lens[MAX_SEQS], table[MAX_SEQS * MAX_BLOCKS];
    int64_t slots[MAX_TOKENS];
    struct aule_batch_params batch;
    struct aule_run_params run;
    char words[128]; // what the sentence of a bad one must contain
};

static void create_tensors(struct step *step)
{
    ok(aule_tensor_create(step->session, AULE_F32, MAX_TOKENS, HEADS, DIM, &step->q));
    ok(aule_tensor_create(step->session, AULE_F32, MAX_TOKENS, KV_HEADS, DIM, &step->k));
    ok(aule_tensor_create(step->session, AULE_F32, MAX_TOKENS, KV_HEADS, DIM, &step->v));
    ok(aule_tensor_create(step->session, AULE_F32, MAX_TOKENS, HEADS, DIM, &step->out));
}

// Two sequences: sixteen tokens from the start in blocks 0 and 1, and one of the third's.
static void reset(struct step *step)
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
    step->run = (struct aule_run_params){
        .num_heads = HEADS, .q = step->q, .k = step->k, .v = step->v, .out = step->out, .causal = true};
}

static float value_at(uint32_t seed, uint32_t i)
{
    uint32_t x = seed * 2654435761u + i * 40503u + 12345u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return (float)(x & 0xffff) / 32768 - 1;
}

static void fill(struct step *step, const struct aule_tensor *tensor, uint32_t heads, uint32_t seed)
{
    float *data = aule_tensor_data(step->session, tensor);
    for (uint32_t i = 0; i < MAX_TOKENS * heads * DIM; i++)
        data[i] = value_at(seed, i);
}

static void open_step(struct step *step, const char *tenant)
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

static void close_step(struct step *step)
{
    aule_tensor_destroy(step->session, &step->q);
    aule_tensor_destroy(step->session, &step->k);
    aule_tensor_destroy(step->session, &step->v);
    aule_tensor_destroy(step->session, &step->out);
    aule_cache_close(step->cache);
    aule_session_close(step->session);
}

static struct aule_batch *create_batch(struct step *step)
{
    struct aule_batch *batch = NULL;
    ok(aule_batch_create(step->cache, &step->batch, &batch));
    return batch;
}

static void run_every_layer(struct step *step, struct aule_batch *batch)
{
    for (step->run.layer = 0; step->run.layer < LAYERS; step->run.layer++)
        ok(aule_run(batch, &step->run, WAIT_MS, NULL));
    step->run.layer = 0;
}

static void run_once(struct step *step)
{
    struct aule_batch *batch = create_batch(step);
    run_every_layer(step, batch);
    aule_batch_destroy(batch);
}

// ---- what attention is, as two loops in double ----

// Keys and values of one sequence, as written: [tokens, KV_HEADS, DIM].
struct history {
    float k[MAX_TOKENS][KV_HEADS][DIM], v[MAX_TOKENS][KV_HEADS][DIM];
};

static void naive_row(const float *q, const struct history *history, uint32_t kv_head, uint32_t num_keys, double *out)
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
        ck_assert_msg(fabs(got[d] - wanted[d]) <= 1e-5 * largest, "token %u head %u [%u]: %.9g instead of %.9g", token,
                      head, d, (double)got[d], wanted[d]);
}

// Every row of the step's output against its sequence's history.
static void expect_attention(struct step *step, const struct history *histories)
{
    const float *q = aule_tensor_data(step->session, &step->q), *out = aule_tensor_data(step->session, &step->out);
    for (uint32_t s = 0; s < step->batch.num_seqs; s++)
        for (int32_t t = step->cu[s]; t < step->cu[s + 1]; t++)
            for (uint32_t head = 0; head < HEADS; head++) {
                int32_t keys = step->run.causal
                                   ? step->lens[s] - (step->cu[s + 1] - step->cu[s]) + (t - step->cu[s]) + 1
                                   : step->lens[s];
                double wanted[DIM];
                size_t row = ((size_t)t * HEADS + head) * DIM;
                naive_row(q + row, &histories[s], head / (HEADS / KV_HEADS), keys > 0 ? (uint32_t)keys : 0, wanted);
                expect_row(out + row, wanted, (uint32_t)t, head);
            }
}

// Append the step's keys and values of sequence `s` to its history; they end at seq_len.
static void remember(struct step *step, uint32_t s, struct history *history)
{
    const float *k = aule_tensor_data(step->session, &step->k), *v = aule_tensor_data(step->session, &step->v);
    int32_t q_len = step->cu[s + 1] - step->cu[s], first = step->lens[s] - q_len;
    for (int32_t i = 0; i < q_len; i++) {
        size_t from = (size_t)(step->cu[s] + i) * KV_HEADS * DIM;
        memcpy(history->k[first + i], k + from, sizeof history->k[0]);
        memcpy(history->v[first + i], v + from, sizeof history->v[0]);
    }
}

static void remember_all(struct step *step, struct history *histories)
{
    for (uint32_t s = 0; s < step->batch.num_seqs; s++)
        remember(step, s, &histories[s]);
}

// The prefill, then a second step that mixes a chunk of five tokens with a decode.
static void check_numbers(bool causal)
{
    static struct history histories[MAX_SEQS];
    struct step step;
    open_step(&step, NULL);
    step.run.causal = causal;
    remember_all(&step, histories);
    run_once(&step);
    expect_attention(&step, histories);

    int32_t more[4];
    ok(aule_blocks_lease(step.cache, 1, 0, more));
    fill(&step, &step.q, HEADS, 4);
    fill(&step, &step.k, KV_HEADS, 5);
    fill(&step, &step.v, KV_HEADS, 6);
    step.cu[1] = 5;
    step.cu[2] = 6;
    step.lens[0] = 21;
    step.lens[1] = 2;
    const int32_t table[] = {step.blocks[0], step.blocks[1], more[0], step.blocks[2], -1, -1};
    memcpy(step.table, table, sizeof table);
    step.batch.max_blocks = 3;
    for (int i = 0; i < 5; i++)
        step.slots[i] = (int64_t)more[0] * BLOCK + i;
    step.slots[5] = (int64_t)step.blocks[2] * BLOCK + 1;
    remember_all(&step, histories);
    run_once(&step);
    expect_attention(&step, histories);
    close_step(&step);
}

START_TEST(attention_is_what_two_loops_in_double_say)
{
    check_numbers(_i == 0);
}
END_TEST

// ---- prefixes ----

static const int32_t prompt_tokens[20] = {11, 12, 13, 14, 15, 16, 17, 18, 21, 22,
                                          23, 24, 25, 26, 27, 28, 31, 32, 33, 34};
static const struct aule_prefix prompt = {.tokens = prompt_tokens, .num_tokens = 20};

// What the prompt's last token asks becomes what the first row asks.
static void ask_last_query(struct step *step)
{
    float *q = aule_tensor_data(step->session, &step->q);
    memcpy(q, q + (size_t)15 * HEADS * DIM, HEADS * DIM * sizeof *q);
}

// Over two full blocks that were written before: the last token again, with slot -1; its rows in `out`.
static void run_last_token(struct step *step, const int32_t *blocks, float *out)
{
    static const int32_t cu[] = {0, 1}, lens[] = {16};
    static const int64_t nowhere[] = {-1};
    const struct aule_batch_params params = {.num_seqs = 1,
                                             .max_blocks = 2,
                                             .cu_seqlens_q = cu,
                                             .seq_lens_kv = lens,
                                             .block_table = blocks,
                                             .slot_mapping = nowhere};
    struct aule_batch *batch = NULL;
    ok(aule_batch_create(step->cache, &params, &batch));
    ok(aule_run(batch, &step->run, WAIT_MS, NULL));
    memcpy(out, aule_tensor_data(step->session, &step->out), HEADS * DIM * sizeof *out);
    aule_batch_destroy(batch);
}

START_TEST(two_sessions_share_a_prefix_and_get_the_same_bits)
{
    struct step first, second, stranger;
    int32_t hit[2], none[2];
    uint32_t num_hit = 0, existing = 9;
    float own[HEADS * DIM], shared[HEADS * DIM], prefill[HEADS * DIM];
    open_step(&first, "us");
    open_step(&second, "us");
    open_step(&stranger, "them");
    run_once(&first);
    const float *rows = aule_tensor_data(first.session, &first.out);
    memcpy(prefill, rows + (size_t)15 * HEADS * DIM, sizeof prefill);
    ask_last_query(&first);
    ask_last_query(&second);
    ok(aule_prefix_publish(first.cache, &prompt, first.blocks, &existing));
    ck_assert_uint_eq(existing, 0);
    run_last_token(&first, first.blocks, own);
    ck_assert_mem_eq(own, prefill, sizeof own);

    ok(aule_prefix_lookup(second.cache, &prompt, 0, hit, &num_hit));
    ck_assert_uint_eq(num_hit, 2);
    ck_assert_mem_eq(hit, first.blocks, sizeof hit);
    run_last_token(&second, hit, shared);
    ck_assert_mem_eq(own, shared, sizeof own);
    ok(aule_prefix_lookup(second.cache, &prompt, 15, none, &num_hit));
    ck_assert_uint_eq(num_hit, 1);
    ok(aule_blocks_release(second.cache, 1, none));
    ok(aule_prefix_lookup(stranger.cache, &prompt, 0, none, &num_hit));
    ck_assert_uint_eq(num_hit, 0);

    // The publisher leaves; what the other holds stays, and what nobody holds stays cached.
    close_step(&first);
    run_last_token(&second, hit, shared);
    ck_assert_mem_eq(own, shared, sizeof own);
    ok(aule_blocks_release(second.cache, 2, hit));
    ck_assert_uint_eq(state_of(second.cache).evictable_blocks, 2);
    close_step(&second);
    close_step(&stranger);
}
END_TEST

START_TEST(publishing_what_is_there_gives_the_existing_blocks)
{
    struct step first, second;
    uint32_t existing = 0, num_hit = 0;
    int32_t blocks[2];
    open_step(&first, NULL);
    open_step(&second, NULL);
    run_once(&first);
    run_once(&second);
    ok(aule_prefix_publish(first.cache, &prompt, first.blocks, NULL));
    memcpy(blocks, second.blocks, sizeof blocks);
    ok(aule_prefix_publish(second.cache, &prompt, blocks, &existing));
    ck_assert_uint_eq(existing, 2);
    ck_assert_mem_eq(blocks, first.blocks, sizeof blocks);
    ok(aule_blocks_release(second.cache, 2, second.blocks)); // his own
    ok(aule_blocks_release(second.cache, 2, blocks));        // and the shared ones

    const struct aule_prefix other_key = {
        .tokens = prompt_tokens, .num_tokens = 20, .extra_key = "lora", .extra_key_size = 4};
    ok(aule_prefix_lookup(second.cache, &other_key, 0, blocks, &num_hit));
    ck_assert_uint_eq(num_hit, 0);
    close_step(&first);
    close_step(&second);
}
END_TEST

// ---- large metadata ----

enum { WIDE = 300000 };

START_TEST(a_table_larger_than_a_message_gives_the_same_bits)
{
    struct step step;
    float narrow[17 * HEADS * DIM];
    struct aule_session *session = NULL;
    const struct aule_session_params params = {.socket = daemon_.socket, .arena_size = 16 << 20, .timeout_ms = WAIT_MS};
    ok(aule_session_open(&params, &session));
    step = (struct step){.session = session, .cache = open_cache(session)};
    ok(aule_blocks_lease(step.cache, 4, 0, step.blocks));
    create_tensors(&step);
    fill(&step, &step.q, HEADS, 1);
    fill(&step, &step.k, KV_HEADS, 2);
    fill(&step, &step.v, KV_HEADS, 3);
    reset(&step);
    run_once(&step);
    memcpy(narrow, aule_tensor_data(session, &step.out), sizeof narrow);

    int32_t *wide = malloc(2 * (size_t)WIDE * sizeof *wide);
    ck_assert_ptr_nonnull(wide);
    memset(wide, -1, 2 * (size_t)WIDE * sizeof *wide);
    wide[0] = step.blocks[0];
    wide[1] = step.blocks[1];
    wide[WIDE] = step.blocks[2];
    step.batch.max_blocks = WIDE;
    step.batch.block_table = wide;
    memset(aule_tensor_data(session, &step.out), 0xff, sizeof narrow);
    run_once(&step);
    ck_assert_mem_eq(narrow, aule_tensor_data(session, &step.out), sizeof narrow);
    free(wide);

    int32_t *tokens = calloc(WIDE, sizeof *tokens);
    ck_assert_ptr_nonnull(tokens);
    int32_t *blocks = calloc(WIDE / BLOCK, sizeof *blocks);
    ck_assert_ptr_nonnull(blocks);
    uint32_t num_hit = 7;
    const struct aule_prefix prefix = {.tokens = tokens, .num_tokens = WIDE};
    ok(aule_prefix_lookup(step.cache, &prefix, 0, blocks, &num_hit));
    ck_assert_uint_eq(num_hit, 0);
    free(tokens);
    free(blocks);
    close_step(&step);
}
END_TEST

// ---- bad input ----
// Each row spoils a step that is right; `words` gets the value that the sentence has to name.

static void say(struct step *step, const char *format, long long a, long long b)
{
    snprintf(step->words, sizeof step->words, format, a, b);
}

static void entry_out_of_range(struct step *step)
{
    step->table[1] = 1000000;
    say(step, "block_table[0][%lld] = %lld", 1, 1000000);
}

static void entry_not_held(struct step *step)
{
    ok(aule_blocks_release(step->cache, 1, &step->blocks[3]));
    step->table[1] = step->blocks[3];
    say(step, "block_table[0][%lld] = %lld", 1, step->blocks[3]);
}

static void entry_missing(struct step *step)
{
    step->table[1] = -1;
    say(step, "block_table[0][%lld] = %lld", 1, -1);
}

static void entry_negative(struct step *step)
{
    step->table[2] = -9;
    say(step, "block_table[1][%lld] = %lld", 0, -9);
}

static void seq_len_beyond_the_table(struct step *step)
{
    step->lens[0] = 17;
    say(step, "seq_lens_kv[%lld] = %lld", 0, 17);
}

static void seq_len_negative(struct step *step)
{
    step->lens[1] = -4;
    say(step, "seq_lens_kv[%lld] = %lld", 1, -4);
}

static void seq_len_beyond_the_context(struct step *step)
{
    step->batch.max_context_len = 15;
    say(step, "%lld exceeds max_context_len %lld", 16, 15);
}

static void cu_seqlens_falling(struct step *step)
{
    step->cu[1] = 18;
    say(step, "[1] = %lld to [2] = %lld", 18, 17);
}

static void cu_seqlens_not_from_zero(struct step *step)
{
    step->cu[0] = 3;
    say(step, "cu_seqlens_q[%lld] is %lld", 0, 3);
}

static void more_queries_than_keys(struct step *step)
{
    step->lens[0] = 15;
    say(step, "q_len %lld above its seq_len %lld", 16, 15);
}

static void slot_outside_held_blocks(struct step *step)
{
    ok(aule_blocks_release(step->cache, 1, &step->blocks[3]));
    step->slots[2] = (int64_t)step->blocks[3] * BLOCK;
    say(step, "slot_mapping[%lld] = %lld", 2, step->slots[2]);
}

static void slot_outside_the_cache(struct step *step)
{
    step->slots[2] = INT64_C(1) << 40;
    say(step, "slot_mapping[%lld] = %lld", 2, step->slots[2]);
}

static void slot_negative(struct step *step)
{
    step->slots[2] = -2;
    say(step, "slot_mapping[%lld] = %lld", 2, -2);
}

static void slot_in_a_sealed_block(struct step *step)
{
    run_once(step);
    ok(aule_prefix_publish(step->cache, &prompt, step->blocks, NULL));
    say(step, "slot_mapping[%lld] = %lld", 0, step->slots[0]);
}

static void slot_twice(struct step *step)
{
    step->slots[5] = step->slots[4];
    say(step, "slot_mapping[%lld] = %lld", 5, step->slots[4]);
}

static void first_entry_missing(struct step *step)
{
    step->table[0] = -1;
    say(step, "block_table[0][%lld] = %lld", 0, -1);
}

static void position_negative(struct step *step)
{
    static int32_t positions[17];
    positions[16] = -6;
    step->batch.positions = positions;
    say(step, "positions[%lld] = %lld", 16, -6);
}

static void mask_too_small(struct step *step)
{
    step->batch.mask = step->lens;
    step->batch.mask_size = 4;
    say(step, "mask has %lld bytes; %lld are needed", 4, 16 * 16 / 8 + 1);
}

static void mask_of_no_size(struct step *step)
{
    step->batch.mask = step->lens;
    say(step, "mask_size %lld, but sequence %lld has queries and keys", 0, 0);
}

struct bad {
    void (*spoil)(struct step *step);
    enum aule_status status;
};

static const struct bad bad_batches[] = {
    {entry_out_of_range, AULE_OUT_OF_RANGE},
    {entry_not_held, AULE_NOT_HELD},
    {entry_missing, AULE_INVALID},
    {entry_negative, AULE_OUT_OF_RANGE},
    {seq_len_beyond_the_table, AULE_OUT_OF_RANGE},
    {seq_len_negative, AULE_INVALID},
    {seq_len_beyond_the_context, AULE_OUT_OF_RANGE},
    {cu_seqlens_falling, AULE_INVALID},
    {cu_seqlens_not_from_zero, AULE_INVALID},
    {more_queries_than_keys, AULE_INVALID},
    {slot_outside_held_blocks, AULE_NOT_HELD},
    {slot_outside_the_cache, AULE_OUT_OF_RANGE},
    {slot_negative, AULE_OUT_OF_RANGE},
    {slot_in_a_sealed_block, AULE_SEALED},
    {slot_twice, AULE_DUPLICATE_SLOT},
    {first_entry_missing, AULE_INVALID},
    {position_negative, AULE_OUT_OF_RANGE},
    {mask_too_small, AULE_INVALID},
    {mask_of_no_size, AULE_INVALID},
};
enum { NUM_BAD_BATCHES = sizeof bad_batches / sizeof *bad_batches };

// The session lives on: fresh blocks, a good batch, a good run.
static void still_works(struct step *step)
{
    int32_t blocks[3];
    ok(aule_blocks_lease(step->cache, 3, 0, blocks));
    memcpy(step->blocks, blocks, sizeof blocks);
    reset(step);
    run_once(step);
    ok(aule_blocks_release(step->cache, 3, blocks));
    state_of(step->cache);
}

START_TEST(a_bad_batch_is_refused_with_its_values)
{
    struct step step;
    struct aule_batch *batch = NULL;
    open_step(&step, NULL);
    bad_batches[_i].spoil(&step);
    expect(aule_batch_create(step.cache, &step.batch, &batch), bad_batches[_i].status, step.words);
    ck_assert_ptr_null(batch);
    still_works(&step);
    close_step(&step);
}
END_TEST

static void past_the_arena(struct step *step)
{
    step->run.q.offset = (1 << 20) - 256;
    say(step, "q at %lld", (1 << 20) - 256, 0);
}

static void offset_that_wraps(struct step *step)
{
    step->run.out.offset = UINT64_MAX - 255;
    say(step, "out at 18446744073709551360", 0, 0);
}

static void stride_that_wraps(struct step *step)
{
    step->run.k.token_stride = UINT64_C(1) << 60;
    say(step, "k at", 0, 0);
}

static void unaligned_offset(struct step *step)
{
    step->run.v.offset += 4;
    say(step, "v has offset %lld", (long long)step->run.v.offset, 0);
}

static void unaligned_stride(struct step *step)
{
    step->run.q.token_stride += 8;
    say(step, "token stride %lld", (long long)step->run.q.token_stride, 0);
}

static void unaligned_head_stride(struct step *step)
{
    step->run.out.head_stride = 68;
    say(step, "head stride %lld", 68, 0);
}

static void dtype_that_is_none(struct step *step)
{
    step->run.q.dtype = step->run.k.dtype = step->run.v.dtype = step->run.out.dtype = (enum aule_dtype)42;
    say(step, "dtype %lld", 42, 0);
}

static void dtype_that_only_blocks_have(struct step *step)
{
    step->run.q.dtype = step->run.k.dtype = step->run.v.dtype = step->run.out.dtype = AULE_INT8;
    say(step, "is int8; it may be f32, f16 or bf16", 0, 0);
}

static void two_dtypes(struct step *step)
{
    step->run.out.dtype = AULE_F16;
    say(step, "out is f16", 0, 0);
}

static void memory_that_is_none(struct step *step)
{
    step->run.q.memory = 5;
    say(step, "memory kind %lld", 5, 0);
}

static void heads_not_divisible(struct step *step)
{
    step->run.num_heads = 3;
    say(step, "num_heads %lld is not a multiple of the cache's %lld", 3, KV_HEADS);
}

static void layer_that_is_none(struct step *step)
{
    step->run.layer = 2;
    say(step, "layer %lld of a cache with %lld", 2, LAYERS);
}

static void scale_that_is_no_number(struct step *step)
{
    step->run.scale = NAN;
    say(step, "scale is nan", 0, 0);
}

static void out_over_k(struct step *step)
{
    step->run.out.offset = step->k.offset;
    say(step, "out at %lld overlaps", (long long)step->k.offset, 0);
}

static void window_below_unbounded(struct step *step)
{
    step->run.window = (struct aule_window){.enabled = true, .left = 3, .right = -2};
    say(step, "window_left %lld, window_right %lld", 3, -2);
}

static void cap_negative(struct step *step)
{
    step->run.logits_soft_cap = -30;
    say(step, "logits_soft_cap is -%lld", 30, 0);
}

static void cap_that_is_no_number(struct step *step)
{
    step->run.logits_soft_cap = NAN;
    say(step, "logits_soft_cap is nan", 0, 0);
}

static void mask_value_that_excludes_nothing(struct step *step)
{
    step->run.mask_value = -10000;
    say(step, "mask_value is %lld", -10000, 0);
}

static void mask_value_that_is_no_number(struct step *step)
{
    step->run.mask_value = NAN;
    say(step, "mask_value is nan", 0, 0);
}

static const float odd_values[HEADS] = {1, 2, NAN, 4}, infinite_values[HEADS] = {-INFINITY, INFINITY, 0, 0};

static void slope_that_is_no_number(struct step *step)
{
    step->run.alibi_slopes = odd_values;
    say(step, "slopes[%lld] is nan", 2, 0);
}

static void slope_infinite(struct step *step)
{
    step->run.alibi_slopes = infinite_values;
    say(step, "slopes[%lld] is -inf", 0, 0);
}

static void sink_that_is_no_number(struct step *step)
{
    step->run.sinks = odd_values;
    say(step, "sinks[%lld] is nan", 2, 0);
}

static void sink_infinite(struct step *step) // minus infinity is none, and allowed
{
    step->run.sinks = infinite_values;
    say(step, "sinks[%lld] is inf", 1, 0);
}

static void give_lse(struct step *step, uint64_t offset)
{
    step->run.lse = (struct aule_tensor){.dtype = AULE_F32, .offset = offset, .token_stride = HEADS * sizeof(float)};
}

static void lse_of_other_dtype(struct step *step)
{
    give_lse(step, 0);
    step->run.lse.dtype = AULE_F16;
    say(step, "lse is f16; it must be f32", 0, 0);
}

static void lse_with_spread_heads(struct step *step)
{
    give_lse(step, 0);
    step->run.lse.head_stride = 16;
    say(step, "lse has head stride %lld", 16, 0);
}

static void lse_unaligned(struct step *step)
{
    give_lse(step, 8);
    say(step, "lse has offset %lld", 8, 0);
}

static void lse_past_the_arena(struct step *step)
{
    give_lse(step, 1 << 20);
    say(step, "lse at %lld", 1 << 20, 0);
}

static void lse_over_itself(struct step *step)
{
    give_lse(step, (1 << 20) - 4096);
    step->run.lse.token_stride = 0;
    say(step, "lse's rows of %lld bytes overlap", HEADS * sizeof(float), 0);
}

static void lse_over_q(struct step *step)
{
    give_lse(step, step->q.offset);
    say(step, "lse at %lld overlaps q", (long long)step->q.offset, 0);
}

static void lse_over_out(struct step *step)
{
    give_lse(step, step->out.offset);
    say(step, "out at %lld overlaps lse", (long long)step->out.offset, 0);
}

static void rope_of_odd_pairs(struct step *step)
{
    step->run.rope.dim = 7;
    say(step, "rope.dim is %lld; it must be even", 7, 0);
}

static void rope_past_the_head(struct step *step)
{
    step->run.rope.dim = DIM + 2;
    say(step, "rope.dim is %lld; it must be even and at most head_dim_k %lld", DIM + 2, DIM);
}

static void frequency_that_is_no_number(struct step *step)
{
    static const double frequencies[] = {1, NAN};
    step->run.rope = (struct aule_rope){.dim = 4, .frequencies = frequencies};
    say(step, "rope.frequencies[%lld]", 1, 0);
}

static void scale_without_eight_bits(struct step *step)
{
    step->run.k_scale = 2;
    say(step, "k_scale", 0, 0);
}

static const struct bad bad_runs[] = {
    {past_the_arena, AULE_OUT_OF_RANGE},
    {offset_that_wraps, AULE_OUT_OF_RANGE},
    {stride_that_wraps, AULE_OUT_OF_RANGE},
    {unaligned_offset, AULE_MISALIGNED},
    {unaligned_stride, AULE_MISALIGNED},
    {unaligned_head_stride, AULE_MISALIGNED},
    {dtype_that_is_none, AULE_INVALID},
    {dtype_that_only_blocks_have, AULE_UNSUPPORTED},
    {two_dtypes, AULE_MISMATCH},
    {memory_that_is_none, AULE_UNSUPPORTED},
    {heads_not_divisible, AULE_INVALID},
    {layer_that_is_none, AULE_OUT_OF_RANGE},
    {scale_that_is_no_number, AULE_INVALID},
    {out_over_k, AULE_INVALID},
    {window_below_unbounded, AULE_INVALID},
    {cap_negative, AULE_INVALID},
    {cap_that_is_no_number, AULE_INVALID},
    {mask_value_that_excludes_nothing, AULE_INVALID},
    {mask_value_that_is_no_number, AULE_INVALID},
    {slope_that_is_no_number, AULE_INVALID},
    {slope_infinite, AULE_INVALID},
    {sink_that_is_no_number, AULE_INVALID},
    {sink_infinite, AULE_INVALID},
    {lse_of_other_dtype, AULE_MISMATCH},
    {lse_with_spread_heads, AULE_INVALID},
    {lse_unaligned, AULE_MISALIGNED},
    {lse_past_the_arena, AULE_OUT_OF_RANGE},
    {lse_over_itself, AULE_INVALID},
    {lse_over_q, AULE_INVALID},
    {lse_over_out, AULE_INVALID},
    {rope_of_odd_pairs, AULE_INVALID},
    {rope_past_the_head, AULE_INVALID},
    {frequency_that_is_no_number, AULE_INVALID},
    {scale_without_eight_bits, AULE_INVALID},
};
enum { NUM_BAD_RUNS = sizeof bad_runs / sizeof *bad_runs };

START_TEST(a_bad_run_is_refused_with_its_values)
{
    struct step step;
    struct aule_ticket ticket = {.id = 77};
    open_step(&step, NULL);
    struct aule_batch *batch = create_batch(&step);
    bad_runs[_i].spoil(&step);
    expect(aule_run_submit(batch, &step.run, 0, &ticket), bad_runs[_i].status, step.words);
    ck_assert_uint_eq(ticket.id, 77);
    aule_batch_destroy(batch);
    still_works(&step);
    close_step(&step);
}
END_TEST

START_TEST(a_batch_whose_block_was_sealed_runs_no_more)
{
    struct step step;
    open_step(&step, NULL);
    struct aule_batch *batch = create_batch(&step);
    run_every_layer(&step, batch);
    ok(aule_prefix_publish(step.cache, &prompt, step.blocks, NULL));
    struct aule_run_result result;
    enum aule_status status = aule_run(batch, &step.run, WAIT_MS, &result);
    ck_assert_msg(status == AULE_SEALED, "%s: %s", aule_status_name(status), aule_error());
    aule_batch_destroy(batch);
    still_works(&step);
    close_step(&step);
}
END_TEST

START_TEST(publishing_what_is_not_ready_is_refused)
{
    struct step step, other;
    char words[64];
    uint32_t existing;
    open_step(&step, NULL);
    open_step(&other, NULL);
    snprintf(words, sizeof words, "blocks[0] = %d has 0 of 8 slots written", step.blocks[0]);
    expect(aule_prefix_publish(step.cache, &prompt, step.blocks, &existing), AULE_UNWRITTEN, words);

    // One layer of two is not enough, nor are seven slots of eight.
    struct aule_batch *batch = create_batch(&step);
    ok(aule_run(batch, &step.run, WAIT_MS, NULL));
    expect(aule_prefix_publish(step.cache, &prompt, step.blocks, &existing), AULE_UNWRITTEN, "layer 1");
    aule_batch_destroy(batch);
    step.slots[15] = -1;
    run_once(&step);
    snprintf(words, sizeof words, "blocks[1] = %d has 7 of 8 slots written", step.blocks[1]);
    struct aule_prefix longer = prompt;
    expect(aule_prefix_publish(step.cache, &longer, step.blocks, &existing), AULE_UNWRITTEN, words);

    // Another session's.
    snprintf(words, sizeof words, "blocks[0] = %d is not held", step.blocks[0]);
    expect(aule_prefix_publish(other.cache, &prompt, step.blocks, &existing), AULE_NOT_HELD, words);
    still_works(&step);
    still_works(&other);
    close_step(&step);
    close_step(&other);
}
END_TEST

START_TEST(releasing_what_is_not_held_releases_nothing)
{
    struct step step;
    char words[64];
    open_step(&step, NULL);
    const int32_t twice[] = {step.blocks[0], step.blocks[0]}, beyond[] = {step.blocks[0], 999999};
    snprintf(words, sizeof words, "= %d is named 2 times", step.blocks[0]);
    expect(aule_blocks_release(step.cache, 2, twice), AULE_NOT_HELD, words);
    expect(aule_blocks_release(step.cache, 2, beyond), AULE_OUT_OF_RANGE, "blocks[1] = 999999");
    ck_assert_uint_eq(state_of(step.cache).leased_blocks, 4);
    ok(aule_blocks_release(step.cache, 4, step.blocks));
    ck_assert_uint_eq(state_of(step.cache).leased_blocks, 0);
    expect(aule_blocks_lease(step.cache, 0, 0, step.blocks), AULE_INVALID, "0 blocks");
    expect(aule_blocks_lease(step.cache, 1, -3, step.blocks), AULE_INVALID, "-3");
    still_works(&step);
    close_step(&step);
}
END_TEST

// Another identity under the same name.
static void other_layers(struct aule_cache_params *params)
{
    params->num_layers = 3;
}

static void other_heads(struct aule_cache_params *params)
{
    params->num_kv_heads = 4;
}

static void other_dim(struct aule_cache_params *params)
{
    params->head_dim = params->head_dim_v = 32;
}

static void other_dtype(struct aule_cache_params *params)
{
    params->k_dtype = AULE_F16;
}

static void other_block(struct aule_cache_params *params)
{
    params->block_size = 64;
}

static void other_fingerprint(struct aule_cache_params *params)
{
    params->fingerprint = "other";
}

static const struct {
    void (*change)(struct aule_cache_params *params);
    const char *words; // the field and both values
} identities[] = {
    {other_layers, "has num_layers 2, not 3"}, {other_heads, "has num_kv_heads 2, not 4"},
    {other_dim, "has head_dim_k 16, not 32"},  {other_dtype, "has k_dtype f32, not f16"},
    {other_block, "has block_size 8, not 64"}, {other_fingerprint, "has fingerprint 7072696e74, not 6f74686572"},
};
enum { NUM_IDENTITIES = sizeof identities / sizeof *identities };

START_TEST(another_identity_is_refused_with_both_values)
{
    struct step step;
    struct aule_cache *other = NULL;
    open_step(&step, NULL);
    struct aule_cache_params params = cache_params();
    identities[_i].change(&params);
    expect(aule_cache_open(step.session, &params, &other), AULE_MISMATCH, identities[_i].words);
    ck_assert_ptr_null(other);
    still_works(&step);
    close_step(&step);
}
END_TEST

static void no_dim(struct aule_cache_params *params)
{
    params->head_dim = 0;
}

static void odd_dim(struct aule_cache_params *params)
{
    params->head_dim = 12;
}

static void odd_block(struct aule_cache_params *params)
{
    params->block_size = 24;
}

static void latent(struct aule_cache_params *params)
{
    params->v_is_k_prefix = true;
    params->head_dim_v = 2 * DIM;
}

static void vast(struct aule_cache_params *params)
{
    params->head_dim = 584;
}

static void scaled(struct aule_cache_params *params)
{
    params->scale_mode = AULE_SCALE_PER_TENSOR;
}

static void strangely_scaled(struct aule_cache_params *params)
{
    params->k_dtype = params->v_dtype = AULE_FP8_E4M3;
    params->scale_mode = (enum aule_scale_mode)3;
}

static void no_name(struct aule_cache_params *params)
{
    params->name = NULL;
}

static void long_fingerprint(struct aule_cache_params *params)
{
    params->fingerprint_size = 65;
}

static const struct {
    void (*change)(struct aule_cache_params *params);
    enum aule_status status;
    const char *words;
} bad_caches[] = {
    {no_dim, AULE_INVALID, "head_dim_k 0"},    {odd_dim, AULE_UNSUPPORTED, "12"},
    {odd_block, AULE_UNSUPPORTED, "24"},       {vast, AULE_UNSUPPORTED, "584"},
    {latent, AULE_INVALID, "v_is_k_prefix"},   {scaled, AULE_INVALID, "only 8-bit dtypes are scaled"},
    {strangely_scaled, AULE_UNSUPPORTED, "3"}, {no_name, AULE_INVALID, "name"},
    {long_fingerprint, AULE_INVALID, "65"},
};
enum { NUM_BAD_CACHES = sizeof bad_caches / sizeof *bad_caches };

START_TEST(a_cache_that_cannot_be_is_refused)
{
    struct step step;
    struct aule_cache *other = NULL;
    open_step(&step, NULL);
    struct aule_cache_params params = cache_params();
    params.name = "other";
    bad_caches[_i].change(&params);
    expect(aule_cache_open(step.session, &params, &other), bad_caches[_i].status, bad_caches[_i].words);
    ck_assert_ptr_null(other);
    still_works(&step);
    close_step(&step);
}
END_TEST

// What the library itself never sends, through its own connection.
START_TEST(a_command_for_a_session_that_is_not_ones_own_is_refused)
{
    struct step step;
    struct aule_session_info info;
    struct connection *connection = NULL;
    struct answer answer;
    const struct timeout timeout = timeout_start(WAIT_MS);
    open_step(&step, NULL);
    ok(aule_session_info(step.session, &info));
    ok(connection_open(daemon_.socket, &timeout, &connection));
    struct wire_request request = {.session = 424242, .epoch = info.epoch, .command = WIRE_COMMAND_CLOSE_SESSION};
    expect(connection_call(connection, &request, &timeout, WIRE_ANSWER_EMPTY, &answer), AULE_NO_SESSION, "424242");
    request.session = info.session; // of another connection
    expect(connection_call(connection, &request, &timeout, WIRE_ANSWER_EMPTY, &answer), AULE_NO_SESSION, "session");
    request.epoch = info.epoch + 1;
    expect(connection_call(connection, &request, &timeout, WIRE_ANSWER_EMPTY, &answer), AULE_EPOCH, "epoch");
    request = (struct wire_request){.command = WIRE_COMMAND_HELLO,
                                    .hello = {.major = 99, .client_name = "future", .tenant = ""}};
    expect(connection_call(connection, &request, &timeout, WIRE_ANSWER_HELLO, &answer), AULE_VERSION, "99.0");
    connection_close(connection);
    still_works(&step);
    close_step(&step);
}
END_TEST

// ---- limits: each error names its option ----

START_TEST(every_limit_names_its_option)
{
    struct aule_session *a = open_session(NULL), *b = open_session(NULL), *c = NULL;
    struct aule_session_params params = {.socket = daemon_.socket};
    params.arena_size = 1 << 20;
    expect(aule_session_open(&params, &c), AULE_LIMIT, "--max-sessions");
    aule_session_close(b);
    params.arena_size = 2 << 20;
    expect(aule_session_open(&params, &c), AULE_LIMIT, "--max-arena");

    struct aule_cache *cache = open_cache(a), *other = NULL;
    struct aule_cache_params second = cache_params();
    second.name = "second";
    expect(aule_cache_open(a, &second, &other), AULE_LIMIT, "--max-caches");

    int32_t blocks[5];
    expect(aule_blocks_lease(cache, 5, 0, blocks), AULE_QUOTA, "--session-blocks");
    struct aule_batch *batches[3] = {NULL};
    const int32_t cu[] = {0, 0}, lens[] = {0};
    const struct aule_batch_params padding = {.num_seqs = 1, .cu_seqlens_q = cu, .seq_lens_kv = lens};
    ok(aule_batch_create(cache, &padding, &batches[0]));
    ok(aule_batch_create(cache, &padding, &batches[1]));
    expect(aule_batch_create(cache, &padding, &batches[2]), AULE_LIMIT, "--max-batches");
    aule_batch_destroy(batches[0]);
    aule_batch_destroy(batches[1]);
    aule_cache_close(cache);
    aule_session_close(a);
}
END_TEST

START_TEST(a_pool_can_be_asked_for_no_more_than_it_can_have)
{
    struct step step;
    int32_t blocks[32];
    open_step(&step, NULL);
    ck_assert_uint_eq(state_of(step.cache).limit_blocks, 16);
    ck_assert_uint_eq(state_of(step.cache).available_blocks, 12);
    expect(aule_blocks_lease(step.cache, 17, 0, blocks), AULE_LIMIT, "--max-blocks");
    expect(aule_blocks_lease(step.cache, 13, 50, blocks), AULE_NO_BLOCKS, "");
    still_works(&step);
    close_step(&step);
}
END_TEST

// ---- waiting ----

struct lease {
    pthread_t thread;
    struct aule_cache *cache;
    uint32_t count;
    int32_t blocks[16];
    enum aule_status status;
    char error[256];
};

static void *lease_for_ever(void *context)
{
    struct lease *lease = context;
    lease->status = aule_blocks_lease(lease->cache, lease->count, -1, lease->blocks);
    snprintf(lease->error, sizeof lease->error, "%s", aule_error());
    return NULL;
}

static void start_lease(struct lease *lease, struct aule_cache *cache, uint32_t count)
{
    *lease = (struct lease){.cache = cache, .count = count};
    ck_assert_int_eq(pthread_create(&lease->thread, NULL, lease_for_ever, lease), 0);
}

static void join_lease(struct lease *lease, enum aule_status expected)
{
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += DEADLINE_S;
    ck_assert_int_eq(pthread_timedjoin_np(lease->thread, NULL, &deadline), 0);
    ck_assert_msg(lease->status == expected, "%s: %s", aule_status_name(lease->status), lease->error);
}

START_TEST(a_lease_waits_until_another_session_releases)
{
    struct step giver, taker;
    struct lease lease;
    int32_t rest[8];
    open_step(&giver, NULL);
    open_step(&taker, NULL);
    ok(aule_blocks_lease(giver.cache, 8, 0, rest));
    start_lease(&lease, taker.cache, 5);
    for (int i = 0; i < 20; i++)
        pause_briefly();
    ck_assert_uint_eq(state_of(taker.cache).leased_blocks, 16); // other calls go on beside the wait
    ok(aule_blocks_release(giver.cache, 8, rest));
    join_lease(&lease, AULE_OK);
    ck_assert_uint_eq(state_of(taker.cache).leased_blocks, 13);
    close_step(&giver);
    close_step(&taker);
}
END_TEST

START_TEST(tickets_are_limited_and_reaped_in_any_order)
{
    struct step step;
    struct aule_ticket tickets[5];
    struct aule_run_result result;
    open_step(&step, NULL);
    struct aule_batch *batch = create_batch(&step);
    for (int i = 0; i < 4; i++)
        ok(aule_run_submit(batch, &step.run, 0, &tickets[i]));
    expect(aule_run_submit(batch, &step.run, 0, &tickets[4]), AULE_BUSY, "--max-tickets");
    expect(aule_run_submit(batch, &step.run, 50, &tickets[4]), AULE_BUSY, "--max-tickets");
    ok(aule_ticket_wait(step.session, tickets[3], WAIT_MS, &result));
    ck_assert_uint_ge(result.num_runs, 1);
    ck_assert_uint_eq(result.num_sessions, 1);
    for (int i = 0; i < 3; i++) // done before the later one was
        ok(aule_ticket_wait(step.session, tickets[i], 0, NULL));
    expect(aule_ticket_wait(step.session, tickets[3], 0, NULL), AULE_NOT_FOUND, "ticket");
    for (int i = 0; i < 20; i++) // nobody waits for these, so they need no reaping
        ok(aule_run_submit(batch, &step.run, WAIT_MS, NULL));
    ok(aule_run(batch, &step.run, WAIT_MS, NULL));
    aule_batch_destroy(batch);
    close_step(&step);
}
END_TEST

// ---- threads ----

enum { NUM_THREADS = 4, STEPS_A_THREAD = 12 };

struct runner {
    pthread_t thread;
    struct step step; // shares its session and cache with the others'
    uint32_t seed;
    const struct history *histories;
};

static void *run_steps(void *context)
{
    struct runner *runner = context;
    static _Thread_local struct history histories[MAX_SEQS];
    struct step *step = &runner->step;
    for (uint32_t i = 0; i < STEPS_A_THREAD; i++) {
        fill(step, &step->q, HEADS, runner->seed + i);
        fill(step, &step->k, KV_HEADS, runner->seed + 100 + i);
        fill(step, &step->v, KV_HEADS, runner->seed + 200 + i);
        remember_all(step, histories);
        run_once(step);
        expect_attention(step, histories);
    }
    return NULL;
}

START_TEST(threads_of_one_session_get_their_own_results)
{
    static struct runner runners[NUM_THREADS];
    struct aule_session *session = open_session(NULL);
    struct aule_cache *cache = open_cache(session);
    for (uint32_t i = 0; i < NUM_THREADS; i++) {
        runners[i] = (struct runner){.step = {.session = session, .cache = cache}, .seed = i * 1000};
        ok(aule_blocks_lease(cache, 3, 0, runners[i].step.blocks));
        create_tensors(&runners[i].step);
        reset(&runners[i].step);
    }
    for (int i = 0; i < NUM_THREADS; i++)
        ck_assert_int_eq(pthread_create(&runners[i].thread, NULL, run_steps, &runners[i]), 0);
    for (int i = 0; i < NUM_THREADS; i++)
        ck_assert_int_eq(pthread_join(runners[i].thread, NULL), 0);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// ---- two daemons, fork, deaths ----

START_TEST(one_process_works_with_two_daemons)
{
    static struct history histories[MAX_SEQS];
    struct daemon other, first = daemon_;
    struct step a, b;
    ck_assert(daemon_launch(&other, NULL));
    open_step(&a, NULL);
    daemon_ = other;
    open_step(&b, NULL);
    daemon_ = first;
    struct aule_session_info info_a, info_b;
    ok(aule_session_info(a.session, &info_a));
    ok(aule_session_info(b.session, &info_b));
    ck_assert_uint_ne(info_a.epoch, info_b.epoch);
    remember_all(&a, histories);
    run_once(&a);
    run_once(&b);
    expect_attention(&a, histories);
    expect_attention(&b, histories);
    daemon_kill(&other);
    struct aule_cache_state state;
    expect(aule_cache_state(b.cache, &state), AULE_DAEMON_GONE, other.socket);
    run_once(&a);
    close_step(&a);
    close_step(&b);
    daemon_finish(&other);
}
END_TEST

static int child_of(struct step *step, struct aule_batch *batch)
{
    struct aule_session_info info;
    struct aule_session *own = NULL;
    const struct aule_session_params params = {.socket = daemon_.socket};
    int wrong = 0;
    wrong += aule_session_info(step->session, &info) != AULE_FORKED;
    wrong += aule_run(batch, &step->run, 0, NULL) != AULE_FORKED;
    wrong += aule_session_open(&params, &own) != AULE_FORKED;
    aule_batch_destroy(batch);
    close_step(step);
    return wrong;
}

START_TEST(a_forked_child_harms_nothing)
{
    struct step step;
    int status;
    open_step(&step, NULL);
    struct aule_batch *batch = create_batch(&step);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0)
        _exit(child_of(&step, batch));
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's status is 0x%x", (unsigned)status);
    run_every_layer(&step, batch);
    ck_assert_uint_eq(state_of(step.cache).leased_blocks, 4);
    aule_batch_destroy(batch);
    close_step(&step);
}
END_TEST

START_TEST(a_killed_daemon_ends_a_wait_and_a_reconnect_starts_anew)
{
    struct step step;
    struct lease lease;
    int32_t rest[12];
    struct aule_batch *again = NULL;
    struct aule_ticket ticket;
    struct aule_cache_state state;
    open_step(&step, NULL);
    struct aule_batch *batch = create_batch(&step);
    ok(aule_run_submit(batch, &step.run, 0, &ticket));
    ok(aule_blocks_lease(step.cache, 12, 0, rest));
    start_lease(&lease, step.cache, 1);
    for (int i = 0; i < 20; i++)
        pause_briefly();
    daemon_kill(&daemon_);
    join_lease(&lease, AULE_DAEMON_GONE);
    expect(aule_run_submit(batch, &step.run, -1, NULL), AULE_DAEMON_GONE, daemon_.socket);
    expect(aule_session_reconnect(step.session), AULE_DAEMON_GONE, daemon_.socket);

    ck_assert(daemon_start(&daemon_, small));
    ok(aule_session_reconnect(step.session));
    expect(aule_cache_state(step.cache, &state), AULE_EPOCH, "epoch");
    expect(aule_run_submit(batch, &step.run, 0, NULL), AULE_EPOCH, "epoch");
    expect(aule_batch_create(step.cache, &step.batch, &again), AULE_EPOCH, "epoch");
    expect(aule_ticket_wait(step.session, ticket, 0, NULL), AULE_EPOCH, "reconnect");
    aule_batch_destroy(batch);
    aule_cache_close(step.cache);

    step.cache = open_cache(step.session);
    ck_assert_uint_eq(state_of(step.cache).leased_blocks, 0);
    create_tensors(&step);
    still_works(&step);
    close_step(&step);
}
END_TEST

// In a process of its own: lease, tell, wait to be killed.
static void hold_blocks(int told)
{
    struct step step;
    open_step(&step, NULL);
    struct aule_batch *batch = create_batch(&step);
    ok(aule_run_submit(batch, &step.run, 0, NULL));
    if (write(told, "", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

START_TEST(a_killed_worker_gives_its_blocks_back)
{
    int told[2];
    char byte;
    ck_assert_int_eq(pipe(told), 0);
    pid_t worker = fork(); // before this process has a session
    ck_assert_int_ge(worker, 0);
    if (worker == 0)
        hold_blocks(told[1]);
    close(told[1]);
    ck_assert_int_eq(read(told[0], &byte, 1), 1);
    close(told[0]);
    struct step step;
    open_step(&step, NULL);
    ck_assert_uint_eq(state_of(step.cache).leased_blocks, 8);
    ck_assert_int_eq(kill(worker, SIGKILL), 0);
    ck_assert_int_eq(waitpid(worker, NULL, 0), worker);
    await_leased(step.cache, 4);
    still_works(&step);
    close_step(&step);
}
END_TEST

START_TEST(a_daemon_that_wakes_too_late_takes_back_what_it_gave)
{
    enum { GRACE_MS = 500 };
    struct step watcher;
    struct aule_session *session = NULL;
    int32_t blocks[3];
    const struct aule_session_params params = {.socket = daemon_.socket, .timeout_ms = GRACE_MS};
    open_step(&watcher, NULL);
    struct aule_monitor *monitor = NULL;
    struct aule_daemon_state state;
    ok(aule_monitor_open(daemon_.socket, WAIT_MS, &monitor));
    enum aule_status status = AULE_TIMEOUT;
    for (int i = 0; i < DEADLINE_S && status == AULE_TIMEOUT; i++)
        status = aule_session_open(&params, &session);
    ok(status);
    struct aule_cache *cache = open_cache(session);
    ck_assert_int_eq(kill(daemon_.pid, SIGSTOP), 0);
    status = aule_blocks_lease(cache, 3, 0, blocks);
    ck_assert_int_eq(kill(daemon_.pid, SIGCONT), 0);
    expect(status, AULE_TIMEOUT, "the session is ended");
    expect(aule_blocks_lease(cache, 3, 0, blocks), AULE_DAEMON_GONE, "BLOCKS_LEASE");
    do {
        pause_briefly();
        ok(aule_monitor_daemon(monitor, &state));
    } while (state.num_sessions != 1);
    await_leased(watcher.cache, 4);
    ok(aule_session_reconnect(session));
    aule_cache_close(cache);
    cache = open_cache(session);
    ok(aule_blocks_lease(cache, 3, 0, blocks));
    aule_cache_close(cache);
    aule_session_close(session);
    aule_monitor_close(monitor);
    close_step(&watcher);
}
END_TEST

START_TEST(workers_that_leave_at_once_do_not_harm_the_daemon)
{
    int status;
    for (int i = 0; i < 20; i++) {
        pid_t worker = fork();
        ck_assert_int_ge(worker, 0);
        if (worker == 0) {
            open_session(NULL);
            _exit(0); // without a close
        }
        ck_assert_int_eq(waitpid(worker, &status, 0), worker);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "worker %d's status is 0x%x", i, (unsigned)status);
    }
    struct step step;
    open_step(&step, NULL);
    still_works(&step);
    close_step(&step);
}
END_TEST

static int count_descriptors(pid_t pid)
{
    char folder[64];
    int count = 0;
    snprintf(folder, sizeof folder, "/proc/%d/fd", (int)pid);
    DIR *entries = opendir(folder);
    ck_assert_ptr_nonnull(entries);
    while (readdir(entries))
        count++;
    closedir(entries);
    return count;
}

START_TEST(sessions_leave_no_descriptor_and_no_segment_behind)
{
    struct step step;
    open_step(&step, NULL);
    close_step(&step);
    int ours = count_descriptors(getpid()), theirs = count_descriptors(daemon_.pid);
    for (int i = 0; i < 40; i++) {
        open_step(&step, NULL);
        close_step(&step);
    }
    // On both sides nng closes pipes on threads of its own; what leaks would be 40, and stay.
    for (int i = 0;
         i < DEADLINE_S * 200 && (count_descriptors(getpid()) > ours || count_descriptors(daemon_.pid) > theirs); i++)
        pause_briefly();
    ck_assert_int_le(count_descriptors(getpid()), ours);
    ck_assert_int_le(count_descriptors(daemon_.pid), theirs);
    ck_assert_int_eq(daemon_count_segments(&daemon_), 0);
}
END_TEST

// ---- the monitor ----

static struct aule_session_state *find_session(struct aule_session_state *array, uint32_t count, uint64_t session)
{
    for (uint32_t i = 0; i < count; i++)
        if (array[i].session == session)
            return &array[i];
    return NULL;
}

START_TEST(the_monitor_sees_what_sessions_do)
{
    struct step step;
    struct aule_session_info info;
    struct aule_monitor *monitor = NULL;
    open_step(&step, "them");
    run_once(&step);
    ok(aule_prefix_publish(step.cache, &prompt, step.blocks, NULL));
    ok(aule_session_info(step.session, &info));
    ok(aule_monitor_open(daemon_.socket, 0, &monitor));

    struct aule_ping_info ping;
    ok(aule_monitor_ping(monitor, &ping));
    ck_assert_uint_eq(ping.epoch, info.epoch);
    ck_assert_str_eq(ping.version, aule_version());

    struct aule_daemon_state daemon;
    ok(aule_monitor_daemon(monitor, &daemon));
    ck_assert_uint_eq(daemon.pid, (uint64_t)daemon_.pid);
    ck_assert_uint_eq(daemon.num_sessions, 1);
    ck_assert_uint_eq(daemon.num_caches, 1);
    ck_assert_uint_eq(daemon.runs_done, LAYERS);
    ck_assert_str_eq(daemon.socket, daemon_.socket);

    struct aule_device_state device;
    ok(aule_monitor_device(monitor, &device));
    ck_assert_str_eq(device.name, info.device_name);
    ck_assert_mem_eq(device.uuid, info.device_uuid, sizeof device.uuid);
    ck_assert_uint_ge(device.pipelines, 1);

    struct aule_session_state *sessions = NULL;
    uint32_t count = 0;
    ok(aule_monitor_sessions(monitor, &sessions, &count));
    const struct aule_session_state *own = find_session(sessions, count, info.session);
    ck_assert_ptr_nonnull(own);
    ck_assert_str_eq(own->name, "test_client");
    ck_assert_str_eq(own->tenant, "them");
    ck_assert_uint_eq(own->pid, (uint64_t)getpid());
    ck_assert_uint_eq(own->blocks_held, 4);
    free(sessions);

    struct aule_cache_view *caches = NULL;
    ok(aule_monitor_caches(monitor, &caches, &count));
    ck_assert_uint_eq(count, 1);
    ck_assert_str_eq(caches[0].name, "tests");
    ck_assert_uint_eq(caches[0].num_layers, LAYERS);
    ck_assert_int_eq(caches[0].k_dtype, AULE_F32);
    ck_assert_uint_eq(caches[0].published_blocks + caches[0].pending_blocks, 2);
    ck_assert_uint_eq(caches[0].leased_blocks, 2);
    ck_assert_uint_eq(caches[0].held_blocks, 2);

    struct aule_block_state *blocks = NULL;
    uint32_t kinds[AULE_BLOCK_ABSENT + 1] = {0};
    ok(aule_monitor_blocks(monitor, caches[0].cache, &blocks, &count));
    ck_assert_uint_ge(count, 4);
    for (uint32_t i = 0; i < count; i++)
        kinds[blocks[i].state]++;
    ck_assert_uint_eq(kinds[AULE_BLOCK_LEASED], 2);
    ck_assert_uint_eq(kinds[AULE_BLOCK_HELD], 2);
    ck_assert_int_eq(blocks[step.blocks[1]].depth, 1);
    ck_assert_uint_eq(blocks[step.blocks[2]].writer, info.session);
    free(blocks);
    expect(aule_monitor_blocks(monitor, 4242, &blocks, &count), AULE_NOT_FOUND, "4242");
    free(caches);
    aule_monitor_close(monitor);
    close_step(&step);
}
END_TEST

START_TEST(an_operator_can_end_a_session)
{
    struct step step;
    struct aule_session_info info;
    struct aule_cache_state state;
    struct aule_monitor *monitor = NULL;
    open_step(&step, NULL);
    ok(aule_session_info(step.session, &info));
    ok(aule_monitor_open(daemon_.socket, 0, &monitor));
    expect(aule_monitor_close_session(monitor, 424242), AULE_NOT_FOUND, "424242");
    ok(aule_monitor_close_session(monitor, info.session));
    enum aule_status status = aule_cache_state(step.cache, &state);
    ck_assert_msg(status == AULE_NO_SESSION || status == AULE_DAEMON_GONE, "%s", aule_status_name(status));
    aule_cache_close(step.cache);
    ok(aule_session_reconnect(step.session));
    step.cache = open_cache(step.session);
    ck_assert_uint_eq(state_of(step.cache).leased_blocks, 0);
    create_tensors(&step);
    still_works(&step);
    close_step(&step);
    aule_monitor_close(monitor);
}
END_TEST

// ---- the suite ----

struct entry {
    const TTest *test;
    int count; // of a loop test; 0 = once
};

static void add(Suite *suite, const char *name, void (*prepare)(void), const struct entry *entries)
{
    TCase *group = tcase_create(name);
    tcase_add_checked_fixture(group, prepare, teardown);
    for (; entries->test; entries++)
        tcase_add_loop_test(group, entries->test, 0, entries->count ? entries->count : 1);
    suite_add_tcase(suite, group);
}

int main(void)
{
    Suite *suite = suite_create("client");
    add(suite, "attention", setup,
        (const struct entry[]){{attention_is_what_two_loops_in_double_say, 2},
                               {a_table_larger_than_a_message_gives_the_same_bits, 0},
                               {threads_of_one_session_get_their_own_results, 0},
                               {NULL, 0}});
    add(suite, "attention, staging", setup_staging,
        (const struct entry[]){{attention_is_what_two_loops_in_double_say, 2},
                               {threads_of_one_session_get_their_own_results, 0},
                               {NULL, 0}});
    add(suite, "prefixes", setup,
        (const struct entry[]){{two_sessions_share_a_prefix_and_get_the_same_bits, 0},
                               {publishing_what_is_there_gives_the_existing_blocks, 0},
                               {NULL, 0}});
    add(suite, "bad input", setup,
        (const struct entry[]){{a_bad_batch_is_refused_with_its_values, NUM_BAD_BATCHES},
                               {a_bad_run_is_refused_with_its_values, NUM_BAD_RUNS},
                               {a_batch_whose_block_was_sealed_runs_no_more, 0},
                               {publishing_what_is_not_ready_is_refused, 0},
                               {releasing_what_is_not_held_releases_nothing, 0},
                               {another_identity_is_refused_with_both_values, NUM_IDENTITIES},
                               {a_cache_that_cannot_be_is_refused, NUM_BAD_CACHES},
                               {a_command_for_a_session_that_is_not_ones_own_is_refused, 0},
                               {NULL, 0}});
    add(suite, "limits", setup_strict, (const struct entry[]){{every_limit_names_its_option, 0}, {NULL, 0}});
    add(suite, "waiting", setup_small,
        (const struct entry[]){{a_pool_can_be_asked_for_no_more_than_it_can_have, 0},
                               {a_lease_waits_until_another_session_releases, 0},
                               {tickets_are_limited_and_reaped_in_any_order, 0},
                               {a_killed_daemon_ends_a_wait_and_a_reconnect_starts_anew, 0},
                               {NULL, 0}});
    add(suite, "processes", setup,
        (const struct entry[]){{one_process_works_with_two_daemons, 0},
                               {a_forked_child_harms_nothing, 0},
                               {a_killed_worker_gives_its_blocks_back, 0},
                               {a_daemon_that_wakes_too_late_takes_back_what_it_gave, 0},
                               {workers_that_leave_at_once_do_not_harm_the_daemon, 0},
                               {sessions_leave_no_descriptor_and_no_segment_behind, 0},
                               {NULL, 0}});
    add(suite, "monitor", setup,
        (const struct entry[]){{the_monitor_sees_what_sessions_do, 0}, {an_operator_can_end_a_session, 0}, {NULL, 0}});
    return check_main(suite);
}
