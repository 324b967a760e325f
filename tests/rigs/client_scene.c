// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// client_scene.c - see client_scene.h.

#include "client_scene.h"

#include <math.h>
#include <string.h>

const int32_t lens[NUM_SEQS] = {37, 20, 9, 5}, cu_queries[NUM_SEQS + 1] = {0, 5, 6, 6, NUM_QUERIES};
static const int32_t cu_keys[NUM_SEQS + 1] = {0, 37, 57, 66, NUM_KEYS};
const float slopes[HEADS] = {0.5f, 0.25f, 0, -0.125f}, sinks[HEADS] = {0.5f, -3, 4, -INFINITY};

struct daemon daemon_;

// ---- fixtures ----

static void launch(const char *const *options)
{
    ck_assert(daemon_launch(&daemon_, options));
}

void setup(void)
{
    launch(NULL);
}

void setup_staging(void)
{
    launch((const char *const[]){DAEMON_STAGED, NULL});
}

void setup_few_tickets(void)
{
    launch((const char *const[]){"--max-tickets", "4", NULL});
}

void teardown(void)
{
    ck_assert_int_eq(daemon_end(&daemon_), 0);
}

void teardown_shared(void)
{
    daemon_end_shared(&daemon_);
}

// ---- a scene: four sequences whose keys and values are in the cache, and queries ----

void create_tensor(struct scene *scene, uint32_t tokens, uint32_t heads, uint32_t seed,
                   struct aule_tensor *tensor)
{
    ok(aule_tensor_create(scene->session, AULE_F32, tokens, heads, DIM, tensor));
    float *data = aule_tensor_data(scene->session, tensor);
    for (uint32_t i = 0; i < tokens * heads * DIM; i++)
        data[i] = 2 * value_at(seed, i);
}

static void write_keys(struct scene *scene)
{
    int64_t slots[NUM_KEYS];
    struct aule_batch *batch = NULL;
    struct aule_tensor all, none;
    for (int s = 0; s < NUM_SEQS; s++)
        for (int i = 0; i < lens[s]; i++)
            slots[cu_keys[s] + i] =
                (int64_t)scene->table[s * MAX_BLOCKS + i / BLOCK] * BLOCK + i % BLOCK;
    const struct aule_batch_params params = {.num_seqs = NUM_SEQS,
                                             .max_blocks = MAX_BLOCKS,
                                             .cu_seqlens_q = cu_keys,
                                             .seq_lens_kv = lens,
                                             .block_table = scene->table,
                                             .slot_mapping = slots};
    create_tensor(scene, NUM_KEYS, HEADS, 9, &all);
    create_tensor(scene, NUM_KEYS, HEADS, 9, &none);
    const struct aule_run_params run = {
        .num_heads = HEADS, .q = all, .k = scene->k, .v = scene->v, .out = none};
    ok(aule_batch_create(scene->cache, &params, &batch));
    ok(aule_run(batch, &run, WAIT_MS, NULL));
    aule_batch_destroy(batch);
    aule_tensor_destroy(scene->session, &all);
    aule_tensor_destroy(scene->session, &none);
}

void open_scene(struct scene *scene)
{
    const struct aule_session_params session = {
        .socket = daemon_.socket, .arena_size = 1 << 20, .timeout_ms = WAIT_MS};
    const struct aule_cache_params cache = {.name = "scene",
                                            .num_layers = 1,
                                            .num_kv_heads = KV_HEADS,
                                            .head_dim = DIM,
                                            .k_dtype = AULE_F32,
                                            .v_dtype = AULE_F32,
                                            .block_size = BLOCK};
    *scene = (struct scene){.session = NULL};
    ok(aule_session_open(&session, &scene->session));
    ok(aule_cache_open(scene->session, &cache, &scene->cache));
    ok(aule_blocks_lease(scene->cache, NUM_SEQS * MAX_BLOCKS, WAIT_MS, scene->table));
    create_tensor(scene, NUM_KEYS, KV_HEADS, 1, &scene->k);
    create_tensor(scene, NUM_KEYS, KV_HEADS, 2, &scene->v);
    create_tensor(scene, NUM_QUERIES, HEADS, 3, &scene->q);
    create_tensor(scene, NUM_QUERIES, HEADS, 4, &scene->out);
    ok(aule_tensor_create(scene->session, AULE_F32, NUM_QUERIES, 1, HEADS, &scene->lse));
    write_keys(scene);
    scene->batch = (struct aule_batch_params){.num_seqs = NUM_SEQS,
                                              .max_blocks = MAX_BLOCKS,
                                              .cu_seqlens_q = cu_queries,
                                              .seq_lens_kv = lens,
                                              .block_table = scene->table};
    scene->run = (struct aule_run_params){.num_heads = HEADS,
                                          .q = scene->q,
                                          .out = scene->out,
                                          .lse = scene->lse,
                                          .mask_value = -INFINITY};
    scene->run.lse.head_stride = sizeof(float);
}

void close_scene(struct scene *scene)
{
    aule_cache_close(scene->cache);
    aule_session_close(scene->session);
}

void run_scene(struct scene *scene)
{
    struct aule_batch *batch = NULL;
    memset(aule_tensor_data(scene->session, &scene->out), 0xff,
           NUM_QUERIES * HEADS * DIM * sizeof(float));
    memset(aule_tensor_data(scene->session, &scene->lse), 0xff,
           NUM_QUERIES * HEADS * sizeof(float));
    ok(aule_batch_create(scene->cache, &scene->batch, &batch));
    ok(aule_run(batch, &scene->run, WAIT_MS, NULL));
    aule_batch_destroy(batch);
}

// ---- attention as loops in double ----

static const uint8_t *mask_part(const struct scene *scene, int s)
{
    const uint8_t *part = scene->batch.mask;
    for (int i = 0; i < s; i++)
        part += ((cu_queries[i + 1] - cu_queries[i]) * lens[i] + 7) / 8;
    return part;
}

static bool sees(const struct scene *scene, int s, int query, int64_t position, int key)
{
    const struct aule_window *window = &scene->run.window;
    int bit = query * lens[s] + key;
    if (scene->batch.mask && !(mask_part(scene, s)[bit / 8] >> bit % 8 & 1))
        return false;
    if (!scene->batch.mask && scene->run.causal && key > position)
        return false;
    if (window->enabled && window->left >= 0 && key < position - window->left)
        return false;
    return !window->enabled || window->right < 0 || key <= position + window->right;
}

static double score(const struct scene *scene, const float *q, int position, int row, int key,
                    int head)
{
    const float *k = (const float *)aule_tensor_data(scene->session, &scene->k) +
                     ((size_t)row * KV_HEADS + (size_t)head / (HEADS / KV_HEADS)) * DIM;
    double s = 0, cap = scene->run.logits_soft_cap;
    for (int d = 0; d < DIM; d++)
        s += (double)q[d] * k[d];
    s *= scene->run.scale != 0 ? scene->run.scale : 1 / sqrt(DIM);
    if (cap > 0)
        s = cap * tanh(s / cap);
    if (scene->run.alibi_slopes)
        s -= scene->run.alibi_slopes[head] * fabs((double)position - key);
    return s;
}

// out[DIM] of one row. Returns its LSE.
static double naive_row(const struct scene *scene, int s, int query, int head, double *out)
{
    int token = cu_queries[s] + query, q_len = cu_queries[s + 1] - cu_queries[s];
    int position = scene->batch.positions ? scene->batch.positions[token] : lens[s] - q_len + query;
    const float *q = (const float *)aule_tensor_data(scene->session, &scene->q) +
                     ((size_t)token * HEADS + (size_t)head) * DIM;
    const float *v = aule_tensor_data(scene->session, &scene->v);
    double sum = scene->run.sinks ? exp(scene->run.sinks[head]) : 0;
    memset(out, 0, DIM * sizeof *out);
    for (int key = 0; key < lens[s]; key++) {
        if (!sees(scene, s, query, position, key))
            continue;
        int row = cu_keys[s] + key;
        double weight = exp(score(scene, q, position, row, key, head));
        sum += weight;
        for (int d = 0; d < DIM; d++)
            out[d] +=
                weight *
                v[((size_t)row * KV_HEADS + (size_t)head / (HEADS / KV_HEADS)) * DIM + (size_t)d];
    }
    for (int d = 0; sum > 0 && d < DIM; d++)
        out[d] /= sum;
    return log(sum);
}

static void expect_row(const float *got, const double *wanted, const char *name, int token,
                       int head)
{
    double largest = 0;
    for (int d = 0; d < DIM; d++)
        largest = fmax(largest, fabs(wanted[d]));
    for (int d = 0; d < DIM; d++)
        ck_assert_msg(fabs(got[d] - wanted[d]) <= 1e-5 * largest,
                      "%s, token %d head %d [%d]: %.9g instead of %.9g", name, token, head, d,
                      (double)got[d], wanted[d]);
}

void expect_lse(float got, double wanted, const char *name, int token, int head)
{
    bool right =
        isinf(wanted) ? got == (float)wanted : fabs(got - wanted) <= 1e-4 * fmax(1, fabs(wanted));
    ck_assert_msg(right, "%s, token %d head %d: LSE %.9g instead of %.9g", name, token, head,
                  (double)got, wanted);
}

void expect_scene(const struct scene *scene, const char *name)
{
    const float *out = aule_tensor_data(scene->session, &scene->out);
    const float *lse = aule_tensor_data(scene->session, &scene->lse);
    for (int s = 0; s < NUM_SEQS; s++)
        for (int i = 0; i < cu_queries[s + 1] - cu_queries[s]; i++)
            for (int head = 0; head < HEADS; head++) {
                double wanted[DIM], sum = naive_row(scene, s, i, head, wanted);
                int token = cu_queries[s] + i, row = token * HEADS + head;
                expect_row(out + (size_t)row * DIM, wanted, name, token, head);
                if (scene->run.lse.dtype)
                    expect_lse(lse[row], sum, name, token, head);
            }
}
