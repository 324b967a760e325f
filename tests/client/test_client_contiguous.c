// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_contiguous.c - contiguous attention through the real daemon: both paths give the same
// bits with all parameters. Without blocks the automatic path still works. Neither path leaves
// anything behind, after success or failure.

#include "rigs/client_rig.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

enum {
    SEQS = 3,
    Q_LEN = 5,
    KV_LEN = 70,
    HEADS = 4,
    KV_HEADS = 2,
    DIM = 16,
    DIM_V = 24,
    T = SEQS * Q_LEN
};
static const int32_t kv_lens[SEQS] = {70, 33, 0}, q_lens[SEQS] = {5, 2, 4};
static const float slopes[HEADS] = {0.5f, 0.25f, 0, -0.125f},
                   sinks[HEADS] = {0.5f, -3, 4, -INFINITY};
enum { MASK_SIZE = (Q_LEN * 70 + 7) / 8 + (Q_LEN * 33 + 7) / 8 };
static uint8_t mask[MASK_SIZE];

struct scene {
    struct aule_session *session;
    struct aule_attention_params params;
    struct rig_shape out;
};

static void open_scene(struct scene *scene, enum aule_dtype dtype, bool tokens_first)
{
    const struct rig_shape q = {dtype, SEQS, Q_LEN, HEADS, DIM, tokens_first};
    const struct rig_shape k = {dtype, SEQS, KV_LEN, KV_HEADS, DIM, tokens_first};
    const struct rig_shape v = {dtype, SEQS, KV_LEN, KV_HEADS, DIM_V, tokens_first};
    *scene = (struct scene){.session = rig_session(16),
                            .out = {dtype, SEQS, Q_LEN, HEADS, DIM_V, tokens_first}};
    scene->params =
        (struct aule_attention_params){.num_seqs = SEQS,
                                       .q_len = Q_LEN,
                                       .kv_len = KV_LEN,
                                       .num_kv_heads = KV_HEADS,
                                       .head_dim = DIM,
                                       .head_dim_v = DIM_V,
                                       .run = {.num_heads = HEADS,
                                               .q = rig_tensor(scene->session, &q, 1),
                                               .k = rig_tensor(scene->session, &k, 2),
                                               .v = rig_tensor(scene->session, &v, 3),
                                               .out = rig_tensor(scene->session, &scene->out, 4)}};
    ok(aule_tensor_create(scene->session, AULE_F32, T, 1, HEADS, &scene->params.run.lse));
    scene->params.run.lse.head_stride = 0;
}

static void close_scene(struct scene *scene)
{
    aule_session_close(scene->session);
}

// Runs it on one path with a fresh out and LSE, and copies both.
static void attend(struct scene *scene, enum aule_path path, char *out, float *lse)
{
    struct aule_ticket ticket;
    void *data = aule_tensor_data(scene->session, &scene->params.run.out);
    float *sums = aule_tensor_data(scene->session, &scene->params.run.lse);
    memset(data, 0xff, rig_size(&scene->out));
    memset(sums, 0xff, T * HEADS * sizeof *sums);
    scene->params.path = path;
    ok(aule_attention(scene->session, &scene->params, WAIT_MS, NULL, &ticket));
    ck_assert_int_eq(ticket.path, path);
    memcpy(out, data, rig_size(&scene->out));
    memcpy(lse, sums, T * HEADS * sizeof *lse);
}

// ---- both paths ----

static const struct {
    const char *name;
    bool causal, short_keys, short_queries, alibi, sink, masked;
    struct aule_window window;
    float cap;
    uint32_t num_splits;
} cases[] = {
    {"plain", .causal = false},
    {"causal", .causal = true},
    {"shorter keys", .causal = true, .short_keys = true},
    {"shorter queries", .causal = true, .short_keys = true, .short_queries = true},
    {"window", .window = {true, 20, 3}, .short_keys = true},
    {"ALiBi, cap and sinks", .alibi = true, .sink = true, .cap = 2, .causal = true},
    {"mask", .masked = true, .short_keys = true},
    {"one split", .num_splits = 1},
};
enum { NUM_CASES = sizeof cases / sizeof *cases };

static void prepare(struct scene *scene, size_t i)
{
    struct aule_attention_params *params = &scene->params;
    params->kv_lens = cases[i].short_keys ? kv_lens : NULL;
    params->q_lens = cases[i].short_queries ? q_lens : NULL;
    params->mask = cases[i].masked ? mask : NULL;
    params->mask_size = cases[i].masked ? MASK_SIZE : 0;
    params->run.causal = cases[i].causal;
    params->run.window = cases[i].window;
    params->run.logits_soft_cap = cases[i].cap;
    params->run.num_splits = cases[i].num_splits;
    params->run.alibi_slopes = cases[i].alibi ? slopes : NULL;
    params->run.sinks = cases[i].sink ? sinks : NULL;
}

static void expect_same_bits(enum aule_dtype dtype, bool tokens_first)
{
    static char out[2][T * HEADS * DIM_V * sizeof(float)];
    static float lse[2][T * HEADS];
    struct scene scene;
    open_scene(&scene, dtype, tokens_first);
    for (uint32_t i = 0; i < MASK_SIZE; i++)
        mask[i] = (uint8_t)(value_at(9, i) * 2000);
    for (size_t i = 0; i < NUM_CASES; i++) {
        prepare(&scene, i);
        attend(&scene, AULE_PATH_CONTIGUOUS, out[0], lse[0]);
        attend(&scene, AULE_PATH_PAGED, out[1], lse[1]);
        ck_assert_msg(memcmp(out[0], out[1], rig_size(&scene.out)) == 0, "%s: out differs",
                      cases[i].name);
        ck_assert_msg(memcmp(lse[0], lse[1], sizeof lse[0]) == 0, "%s: the LSE differs",
                      cases[i].name);
    }
    rig_expect_nothing_held();
    close_scene(&scene);
}

START_TEST(both_ways_give_the_same_bits_in_f32)
{
    expect_same_bits(AULE_F32, false);
}
END_TEST

START_TEST(both_ways_give_the_same_bits_in_f16)
{
    expect_same_bits(AULE_F16, true);
}
END_TEST

START_TEST(both_ways_give_the_same_bits_in_bf16)
{
    expect_same_bits(AULE_BF16, false);
}
END_TEST

// ---- against loops in double ----

static const float *row_of(const struct scene *scene, const struct aule_tensor *tensor, uint32_t s,
                           uint32_t i, uint32_t head)
{
    const char *data = aule_tensor_data(scene->session, tensor);
    return (const float *)(const void *)(data + s * tensor->outer_stride +
                                         i * tensor->token_stride + head * tensor->head_stride);
}

// Row i of sequence s, which has this q_len and kv_len. Zeros for a row that is no query or sees no
// key.
static void expect_row(const struct scene *scene, uint32_t s, uint32_t i, uint32_t head,
                       int32_t q_len, int32_t kv_len)
{
    const struct aule_run_params *run = &scene->params.run;
    const float *q = row_of(scene, &run->q, s, i, head),
                *out = row_of(scene, &run->out, s, i, head);
    double wanted[DIM_V] = {0}, sum = 0;
    for (int32_t j = 0; (int32_t)i < q_len && j <= kv_len - q_len + (int32_t)i; j++) {
        const float *k = row_of(scene, &run->k, s, (uint32_t)j, head / (HEADS / KV_HEADS));
        const float *v = row_of(scene, &run->v, s, (uint32_t)j, head / (HEADS / KV_HEADS));
        double score = 0;
        for (int d = 0; d < DIM; d++)
            score += (double)q[d] * k[d];
        double weight = exp(score / sqrt(DIM));
        sum += weight;
        for (int d = 0; d < DIM_V; d++)
            wanted[d] += weight * v[d];
    }
    for (int d = 0; d < DIM_V; d++) {
        double value = sum > 0 ? wanted[d] / sum : 0;
        ck_assert_msg(fabs(out[d] - value) <= 2e-5,
                      "sequence %u row %u head %u [%d]: %.9g instead of %.9g", s, i, head, d,
                      (double)out[d], value);
    }
    const float *lse =
        (float *)aule_tensor_data(scene->session, &run->lse) + (s * Q_LEN + i) * HEADS + head;
    ck_assert_msg(sum > 0 ? fabs(*lse - log(sum)) <= 1e-4 : *lse == -INFINITY,
                  "sequence %u row %u head %u: LSE %.9g instead of %.9g", s, i, head, (double)*lse,
                  log(sum));
}

START_TEST(ragged_causal_attention_is_what_loops_in_double_say)
{
    static char out[T * HEADS * DIM_V * sizeof(float)];
    static float lse[T * HEADS];
    struct scene scene;
    open_scene(&scene, AULE_F32, false);
    prepare(&scene, 3);
    attend(&scene, AULE_PATH_CONTIGUOUS, out, lse);
    for (uint32_t s = 0; s < SEQS; s++)
        for (uint32_t i = 0; i < Q_LEN; i++)
            for (uint32_t head = 0; head < HEADS; head++)
                expect_row(&scene, s, i, head, q_lens[s], kv_lens[s]);
    close_scene(&scene);
}
END_TEST

// ---- the threshold ----

enum { LONG = 4096 };

START_TEST(four_thousand_keys_go_into_the_pool_by_themselves_and_have_the_bits_of_contiguous_ones)
{
    struct aule_session *session = rig_session(0);
    const struct rig_shape q = {AULE_F16, 1, 1, HEADS, 64, false},
                           kv = {AULE_F16, 1, LONG, KV_HEADS, 64, false};
    struct aule_attention_params params = {.num_seqs = 1,
                                           .q_len = 1,
                                           .kv_len = LONG,
                                           .num_kv_heads = KV_HEADS,
                                           .head_dim = 64,
                                           .run = {.num_heads = HEADS, .causal = true}};
    struct aule_ticket ticket;
    char paged[HEADS * 64 * 2];
    params.run.q = rig_tensor(session, &q, 1);
    params.run.k = rig_tensor(session, &kv, 2);
    params.run.v = rig_tensor(session, &kv, 3);
    params.run.out = rig_tensor(session, &q, 4);
    void *out = aule_tensor_data(session, &params.run.out);
    ok(aule_attention(session, &params, WAIT_MS, NULL, &ticket));
    ck_assert_int_eq(ticket.path, AULE_PATH_PAGED);
    memcpy(paged, out, sizeof paged);
    memset(out, 0, sizeof paged);
    params.path = AULE_PATH_CONTIGUOUS;
    ok(aule_attention(session, &params, WAIT_MS, NULL, &ticket));
    ck_assert_int_eq(ticket.path, AULE_PATH_CONTIGUOUS);
    ck_assert_mem_eq(paged, out, sizeof paged);
    params.path = AULE_PATH_AUTO;
    params.kv_len = 2048; // the rest of each head is not read
    ok(aule_attention(session, &params, WAIT_MS, NULL, &ticket));
    ck_assert_int_eq(ticket.path, AULE_PATH_CONTIGUOUS);
    rig_expect_nothing_held();
    aule_session_close(session);
}
END_TEST

// ---- no blocks ----

static void setup_few_blocks(void)
{
    rig_launch((const char *const[]){"--max-blocks", "4", NULL}); // the scene needs 9
}

static void setup_quota(void)
{
    rig_launch((const char *const[]){"--session-blocks", "2", NULL});
}

static void setup_sixteen_blocks(void)
{
    rig_launch((const char *const[]){"--max-blocks", "16", NULL});
}

static void setup_one_cache(void)
{
    rig_launch((const char *const[]){"--max-caches", "1", NULL});
}

// The automatic path tries the pool, gets no blocks, and gives the bits of the contiguous path.
static void expect_fallback(struct scene *scene, enum aule_status why, const char *words)
{
    static char forced[T * HEADS * DIM_V * sizeof(float)];
    static float lse[T * HEADS];
    struct aule_ticket ticket;
    void *out = aule_tensor_data(scene->session, &scene->params.run.out);
    attend(scene, AULE_PATH_CONTIGUOUS, forced, lse);
    memset(out, 0xff, rig_size(&scene->out));
    scene->params.path = AULE_PATH_AUTO;
    ok(aule_attention(scene->session, &scene->params, WAIT_MS, NULL, &ticket));
    ck_assert_int_eq(ticket.path, AULE_PATH_CONTIGUOUS);
    ck_assert_str_eq(aule_status_name(ticket.fallback), aule_status_name(why));
    ck_assert_mem_eq(forced, out, rig_size(&scene->out));
    scene->params.path = AULE_PATH_PAGED;
    expect(aule_attention(scene->session, &scene->params, WAIT_MS, NULL, &ticket), why, words);
}

START_TEST(a_pool_that_is_too_small_is_a_limit)
{
    struct scene scene;
    open_scene(&scene, AULE_F32, false);
    expect_fallback(&scene, AULE_LIMIT, "--max-blocks");
    rig_expect_nothing_held();
    close_scene(&scene);
}
END_TEST

START_TEST(a_quota_that_is_too_small_is_named)
{
    struct scene scene;
    open_scene(&scene, AULE_F32, false);
    expect_fallback(&scene, AULE_QUOTA, "");
    rig_expect_nothing_held();
    close_scene(&scene);
}
END_TEST

static struct aule_cache *open_other(struct aule_session *session)
{
    struct aule_cache *cache = NULL;
    const struct aule_cache_params params = {
        .name = "other", .num_layers = 1, .num_kv_heads = 1, .head_dim = 8};
    ok(aule_cache_open(session, &params, &cache));
    return cache;
}

START_TEST(blocks_that_another_session_has_are_not_waited_for_and_used_once_they_are_free)
{
    int32_t blocks[12];
    struct scene scene;
    struct aule_ticket ticket;
    struct aule_session *session = rig_session(0);
    struct aule_cache *cache = open_other(session);
    ok(aule_blocks_lease(cache, 12, WAIT_MS, blocks));
    open_scene(&scene, AULE_F32, false);
    expect_fallback(&scene, AULE_NO_BLOCKS, "");
    aule_cache_close(cache);
    aule_session_close(session);
    rig_expect_nothing_held();
    scene.params.path = AULE_PATH_PAGED;
    ok(aule_attention(scene.session, &scene.params, WAIT_MS, NULL, &ticket));
    rig_expect_nothing_held();
    close_scene(&scene);
}
END_TEST

START_TEST(no_room_for_another_cache_is_a_limit)
{
    struct scene scene;
    struct aule_session *session = rig_session(0);
    struct aule_cache *cache = open_other(session);
    open_scene(&scene, AULE_F32, false);
    expect_fallback(&scene, AULE_LIMIT, "--max-caches");
    aule_cache_close(cache);
    aule_session_close(session);
    close_scene(&scene);
}
END_TEST

// Any session may use any cache name, also the library's own.
START_TEST(another_cache_of_the_librarys_name_takes_the_pool_from_nobody)
{
    struct scene scene;
    struct aule_ticket ticket;
    struct aule_cache *cache = NULL;
    struct aule_session *session = rig_session(0);
    const struct aule_cache_params params = {.name = "aule_attention f32, 2 heads of 16 and 24",
                                             .num_layers = 2,
                                             .num_kv_heads = 1,
                                             .head_dim = 8};
    ok(aule_cache_open(session, &params, &cache));
    open_scene(&scene, AULE_F32, false);
    scene.params.path = AULE_PATH_PAGED;
    ok(aule_attention(scene.session, &scene.params, WAIT_MS, NULL, &ticket));
    ck_assert_int_eq(ticket.path, AULE_PATH_PAGED);
    rig_expect_nothing_held();
    aule_cache_close(cache);
    aule_session_close(session);
    close_scene(&scene);
}
END_TEST

// ---- nothing is left ----

static void outside(struct aule_attention_params *params)
{
    params->run.q.offset = 1ull << 40;
}

static void outside_keys(struct aule_attention_params *params)
{
    params->run.k.offset = 1ull << 40;
}

static void crooked(struct aule_attention_params *params)
{
    params->run.v.head_stride += 8;
}

static void uneven_heads(struct aule_attention_params *params)
{
    params->run.num_heads = 3;
    params->run.q.num_rows = params->run.out.num_rows = 0; // of two heads
}

static void soft_mask(struct aule_attention_params *params)
{
    params->run.mask_value = -5;
}

static void small_mask(struct aule_attention_params *params)
{
    params->mask = mask;
    params->mask_size = 3;
}

static const struct {
    void (*change)(struct aule_attention_params *params);
    const char *words;
} wrong_cases[] = {
    {outside, "q"},
    {outside_keys, "k"},
    {crooked, "v"},
    {uneven_heads, "num_heads"},
    {soft_mask, "mask_value"},
    {small_mask, "mask"},
};
enum { NUM_WRONG_CASES = sizeof wrong_cases / sizeof *wrong_cases };

START_TEST(calls_that_the_daemon_refuses_leave_nothing_behind_on_either_path)
{
    static const enum aule_path ways[] = {AULE_PATH_CONTIGUOUS, AULE_PATH_PAGED, AULE_PATH_AUTO};
    struct scene scene;
    open_scene(&scene, AULE_F32, false);
    for (size_t i = 0; i < NUM_WRONG_CASES; i++)
        for (size_t w = 0; w < 3; w++) {
            struct aule_attention_params params = scene.params;
            struct aule_ticket ticket = {.id = 4711};
            wrong_cases[i].change(&params);
            params.path = ways[w];
            enum aule_status status =
                aule_attention(scene.session, &params, WAIT_MS, NULL, &ticket);
            ck_assert_msg(status == AULE_INVALID || status == AULE_OUT_OF_RANGE ||
                              status == AULE_MISALIGNED,
                          "case %zu way %zu: %s: %s", i, w, aule_status_name(status), aule_error());
            ck_assert_msg(strstr(aule_error(), wrong_cases[i].words) != NULL, "case %zu: \"%s\"", i,
                          aule_error());
            ck_assert_uint_eq(ticket.id, 4711);
        }
    rig_expect_nothing_held();
    close_scene(&scene);
}
END_TEST

enum { NUM_THREADS = 4, CALLS_A_THREAD = 25 };

static void *attend_often(void *context)
{
    const struct scene *shared = context;
    for (int i = 0; i < CALLS_A_THREAD; i++) {
        struct aule_attention_params params = shared->params;
        params.path = i % 2 ? AULE_PATH_PAGED : AULE_PATH_CONTIGUOUS;
        ok(aule_attention(shared->session, &params, -1, NULL, NULL));
    }
    return NULL;
}

START_TEST(threads_of_one_session_leave_nothing_behind)
{
    pthread_t threads[NUM_THREADS];
    struct scene scene;
    open_scene(&scene, AULE_F32, false);
    for (int i = 0; i < NUM_THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, attend_often, &scene), 0);
    for (int i = 0; i < NUM_THREADS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    rig_expect_nothing_held();
    close_scene(&scene);
}
END_TEST

static void setup_one_ticket(void)
{
    rig_launch((const char *const[]){"--max-tickets", "1", NULL});
}

START_TEST(one_ticket_is_enough_for_the_paged_way)
{
    struct scene scene;
    struct aule_ticket ticket;
    open_scene(&scene, AULE_F32, false);
    scene.params.path = AULE_PATH_PAGED;
    for (int i = 0; i < 5; i++)
        ok(aule_attention(scene.session, &scene.params, -1, NULL, NULL));
    ok(aule_attention_submit(scene.session, &scene.params, -1, &ticket));
    ok(aule_ticket_wait(scene.session, ticket, -1, NULL));
    rig_expect_nothing_held();
    close_scene(&scene);
}
END_TEST

START_TEST(after_a_reconnect_both_ways_work_again)
{
    static char out[2][T * HEADS * DIM_V * sizeof(float)];
    static float lse[T * HEADS];
    struct scene before, after;
    open_scene(&before, AULE_F32, false);
    attend(&before, AULE_PATH_PAGED, out[0], lse);
    ok(aule_session_reconnect(before.session));
    expect(aule_attention(before.session, &before.params, WAIT_MS, NULL, NULL), AULE_EPOCH,
           "life 1");
    open_scene(&after, AULE_F32, false);
    attend(&after, AULE_PATH_PAGED, out[1], lse);
    ck_assert_mem_eq(out[0], out[1], rig_size(&after.out));
    close_scene(&before);
    close_scene(&after);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client, contiguous attention");
    const TTest *const bits[] = {
        both_ways_give_the_same_bits_in_f32,
        both_ways_give_the_same_bits_in_f16,
        both_ways_give_the_same_bits_in_bf16,
        ragged_causal_attention_is_what_loops_in_double_say,
        four_thousand_keys_go_into_the_pool_by_themselves_and_have_the_bits_of_contiguous_ones,
        NULL};
    rig_share(suite, bits);
    rig_add(suite, "few blocks", setup_few_blocks,
            (const TTest *const[]){a_pool_that_is_too_small_is_a_limit, NULL});
    rig_add(suite, "quota", setup_quota,
            (const TTest *const[]){a_quota_that_is_too_small_is_named, NULL});
    rig_add(
        suite, "blocks of others", setup_sixteen_blocks,
        (const TTest *const[]){
            blocks_that_another_session_has_are_not_waited_for_and_used_once_they_are_free, NULL});
    rig_add(suite, "one cache", setup_one_cache,
            (const TTest *const[]){no_room_for_another_cache_is_a_limit, NULL});
    rig_add(suite, "one ticket", setup_one_ticket,
            (const TTest *const[]){one_ticket_is_enough_for_the_paged_way, NULL});
    rig_add(
        suite, "nothing is left", rig_setup,
        (const TTest *const[]){calls_that_the_daemon_refuses_leave_nothing_behind_on_either_path,
                               another_cache_of_the_librarys_name_takes_the_pool_from_nobody,
                               threads_of_one_session_leave_nothing_behind,
                               after_a_reconnect_both_ways_work_again, NULL});
    return check_main(suite);
}
