// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client.c - libaule-client with the real daemon: attention, prefixes, large metadata, waiting
// and threads. Each test is a process with its own daemon.

#include "rigs/client_step.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// ---- fixtures ----

static void setup(void)
{
    launch(NULL);
}

static const char *const staging[] = {DAEMON_STAGED, NULL};

static void setup_staging(void)
{
    launch(staging);
}

static const char *const small[] = {
    "--max-blocks", "16", "--spare-blocks", "0", "--max-tickets", "4", "--max-batches", "8", NULL};

static void setup_small(void)
{
    launch(small);
}

// ---- attention ----

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

// Makes the query of the prompt's last token that of the first row.
static void ask_last_query(struct step *step)
{
    float *q = aule_tensor_data(step->session, &step->q);
    memcpy(q, q + (size_t)15 * HEADS * DIM, HEADS * DIM * sizeof *q);
}

// Attends with the last token again, over two full blocks that are written already, with slot -1.
// Its rows are in `out`.
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

    // The publisher leaves: blocks that the other session holds stay held, the others stay cached.
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
    expect(aule_blocks_release(second.cache, 1, second.blocks), AULE_NOT_HELD, "not held");
    ok(aule_blocks_release(second.cache, 2, blocks));

    const struct aule_prefix other_key = {
        .tokens = prompt.tokens, .num_tokens = 20, .extra_key = "lora", .extra_key_size = 4};
    ok(aule_prefix_lookup(second.cache, &other_key, 0, blocks, &num_hit));
    ck_assert_uint_eq(num_hit, 0);
    close_step(&first);
    close_step(&second);
}
END_TEST

// ---- compiling in advance ----

static uint64_t num_compiled(void)
{
    struct aule_monitor *monitor;
    struct aule_metric *metrics;
    uint32_t count;
    uint64_t compiled = UINT64_MAX;
    ok(aule_monitor_open(daemon_.socket, 0, &monitor));
    ok(aule_monitor_metrics(monitor, &metrics, &count));
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(metrics[i].name, "aule_compiled_pipelines_total") == 0)
            compiled = metrics[i].value;
    free(metrics);
    aule_monitor_close(monitor);
    return compiled;
}

START_TEST(after_warming_a_first_run_compiles_nothing)
{
    static const float slopes[HEADS] = {0.1f, 0.2f, 0.3f, 0.4f};
    struct step step;
    open_step(&step, NULL);
    step.run.rope = (struct aule_rope){.dim = DIM};
    step.run.alibi_slopes = slopes;
    ok(aule_tensor_create_lse(step.session, MAX_TOKENS, HEADS, &step.run.lse));
    uint64_t before = num_compiled();
    for (uint32_t s = 0; s < step.batch.num_seqs; s++) {
        struct aule_warm_params warm = {.q_len = (uint32_t)(step.cu[s + 1] - step.cu[s]),
                                        .kv_len = (uint32_t)step.lens[s],
                                        .run = step.run};
        if (warm.q_len > 0)
            ok(aule_warm(step.cache, &warm, WAIT_MS));
    }
    uint64_t warm = num_compiled();
    ck_assert_uint_gt(warm, before);
    run_once(&step);
    ck_assert_uint_eq(num_compiled(), warm);
    await_leased(step.cache, 4); // the step's own
    const struct aule_warm_params more = {.q_len = 2, .kv_len = 1, .run = step.run};
    expect(aule_warm(step.cache, &more, WAIT_MS), AULE_INVALID, "q_len = 2, kv_len = 1");
    const struct aule_warm_params none = {.q_len = 1, .kv_len = 1};
    expect(aule_warm(step.cache, &none, WAIT_MS), AULE_INVALID, "unknown dtype 0");
    close_step(&step);
}
END_TEST

// ---- large metadata ----

enum { WIDE = 300000 };

START_TEST(a_table_larger_than_a_message_gives_the_same_bits)
{
    struct step step;
    float narrow[17 * HEADS * DIM];
    struct aule_session *session = NULL;
    const struct aule_session_params params = {
        .socket = daemon_.socket, .arena_size = 16 << 20, .timeout_ms = WAIT_MS};
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

// ---- waiting ----

START_TEST(a_pool_can_be_asked_for_no_more_than_it_can_have)
{
    struct step step;
    int32_t blocks[32];
    open_step(&step, NULL);
    ck_assert_uint_eq(state_of(step.cache).limit_blocks, 16);
    ck_assert_uint_eq(state_of(step.cache).available_blocks, 12);
    expect(aule_blocks_lease(step.cache, 17, 0, blocks), AULE_LIMIT, "--max-blocks");
    expect(aule_blocks_lease(step.cache, 13, 50, blocks), AULE_NO_BLOCKS,
           "13 blocks wanted, cache \"tests\" has 0 free of 4 and could get 12 now");
    still_works(&step);
    close_step(&step);
}
END_TEST

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
    ck_assert_msg(lease->status == expected, "%s: %s", aule_status_name(lease->status),
                  lease->error);
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
    ck_assert_uint_eq(state_of(taker.cache).leased_blocks, 16); // other calls run during the wait
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
    for (int i = 0; i < 3; i++) // these are done before the later ones
        ok(aule_ticket_wait(step.session, tickets[i], 0, NULL));
    expect(aule_ticket_wait(step.session, tickets[3], 0, NULL), AULE_NOT_FOUND, "ticket");
    for (int i = 0; i < 20; i++) // nobody waits for these, so they need not be reaped
        ok(aule_run_submit(batch, &step.run, WAIT_MS, NULL));
    ok(aule_run(batch, &step.run, WAIT_MS, NULL));
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

// ---- threads ----

enum { NUM_THREADS = 4, STEPS_A_THREAD = 12 };

struct runner {
    pthread_t thread;
    struct step step; // uses the same session and cache as the others
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
        runners[i] =
            (struct runner){.step = {.session = session, .cache = cache}, .seed = i * 1000};
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

// ---- the suite ----

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
                               {after_warming_a_first_run_compiles_nothing, 0},
                               {NULL, 0}});
    add(suite, "waiting", setup_small,
        (const struct entry[]){{a_pool_can_be_asked_for_no_more_than_it_can_have, 0},
                               {a_lease_waits_until_another_session_releases, 0},
                               {tickets_are_limited_and_reaped_in_any_order, 0},
                               {a_killed_daemon_ends_a_wait_and_a_reconnect_starts_anew, 0},
                               {NULL, 0}});
    return check_main(suite);
}
