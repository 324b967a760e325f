// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// text_world.c - see text_world.h.

#include "text_world.h"

#include <math.h>
#include <string.h>

enum { Q, K, V };

const struct aule_cache_params text_cache = {.name = "texts",
                                             .num_layers = TEXT_LAYERS,
                                             .num_kv_heads = 1,
                                             .head_dim = TEXT_DIM,
                                             .k_dtype = AULE_F32,
                                             .v_dtype = AULE_F32,
                                             .block_size = TEXT_BLOCK};

// An element of q, k or v.
static float element(int32_t token, uint32_t position, uint32_t layer, uint32_t kind, uint32_t i)
{
    return value_at((uint32_t)token * 31 + kind * 7 + layer, position * 64 + i);
}

void text_open(struct text_world *world)
{
    struct aule_session *session = rig_session(0);
    *world = (struct text_world){.session = session};
    ok(aule_cache_open(session, &text_cache, &world->cache));
    ok(aule_step_create(world->cache, &world->step));
    ok(aule_tensor_create(session, AULE_F32, TEXT_ROWS, TEXT_HEADS, TEXT_DIM, &world->q));
    ok(aule_tensor_create(session, AULE_F32, TEXT_ROWS, 1, TEXT_DIM, &world->k));
    ok(aule_tensor_create(session, AULE_F32, TEXT_ROWS, 1, TEXT_DIM, &world->v));
    ok(aule_tensor_create(session, AULE_F32, TEXT_ROWS, TEXT_HEADS, TEXT_DIM, &world->out));
}

void text_close(struct text_world *world)
{
    aule_step_destroy(world->step);
    rig_expect_nothing_held();
    aule_cache_close(world->cache);
    aule_session_close(world->session);
}

// ---- texts ----

static void expect_state(const struct text *text)
{
    struct aule_sequence_info info;
    ok(aule_sequence_info(text->sequence, &info));
    ck_assert_uint_eq(info.num_tokens, text->num_tokens);
    ck_assert_uint_eq(info.num_computed, text->num_computed);
}

// Found tokens count as computed, except the last token of the text.
static void note_found(struct text *text)
{
    struct aule_sequence_info info;
    ok(aule_sequence_info(text->sequence, &info));
    uint32_t found =
        info.num_found && info.num_found == text->num_tokens ? info.num_found - 1 : info.num_found;
    if (text->num_computed < found)
        text->num_computed = found;
    expect_state(text);
}

enum aule_load text_load;

static void create(struct text_world *world, struct text *text, const int32_t *tokens,
                   uint32_t count, bool publish, bool claim)
{
    const struct aule_sequence_params params = {.tokens = tokens,
                                                .num_tokens = count,
                                                .publish = publish,
                                                .claim = claim,
                                                .load = text_load};
    *text = (struct text){.num_tokens = count};
    memcpy(text->tokens, tokens, count * sizeof *tokens);
    ok(aule_sequence_create(world->cache, &params, &text->sequence));
    note_found(text);
}

void text_create(struct text_world *world, struct text *text, const int32_t *tokens, uint32_t count,
                 bool publish)
{
    create(world, text, tokens, count, publish, false);
}

void text_claim(struct text_world *world, struct text *text, const int32_t *tokens, uint32_t count)
{
    create(world, text, tokens, count, true, true);
}

enum aule_status text_wait(struct text *text, int timeout_ms)
{
    enum aule_status status = aule_sequence_wait(text->sequence, timeout_ms);
    if (status == AULE_OK)
        note_found(text);
    return status;
}

void text_append(struct text *text, const int32_t *tokens, uint32_t count)
{
    ok(aule_sequence_append(text->sequence, tokens, count));
    memcpy(text->tokens + text->num_tokens, tokens, count * sizeof *tokens);
    text->num_tokens += count;
    expect_state(text);
}

void text_truncate(struct text *text, uint32_t num_tokens)
{
    ok(aule_sequence_truncate(text->sequence, num_tokens));
    text->num_tokens = num_tokens;
    if (text->num_computed > num_tokens)
        text->num_computed = num_tokens;
    expect_state(text);
}

void text_fork(const struct text *from, struct text *to)
{
    *to = *from;
    ok(aule_sequence_fork(from->sequence, &to->sequence));
    expect_state(to);
}

void text_destroy(struct text *text)
{
    aule_sequence_destroy(text->sequence);
    text->sequence = NULL;
}

// ---- steps ----

static void fill_row(struct text_world *world, uint32_t row, int32_t token, uint32_t position,
                     uint32_t layer)
{
    float *q = aule_tensor_data(world->session, &world->q);
    float *k = aule_tensor_data(world->session, &world->k);
    float *v = aule_tensor_data(world->session, &world->v);
    for (uint32_t i = 0; i < TEXT_HEADS * TEXT_DIM; i++)
        q[row * TEXT_HEADS * TEXT_DIM + i] = element(token, position, layer, Q, i);
    for (uint32_t i = 0; i < TEXT_DIM; i++) {
        k[row * TEXT_DIM + i] = element(token, position, layer, K, i);
        v[row * TEXT_DIM + i] = element(token, position, layer, V, i);
    }
}

// Causal attention of the token at `position`.
static void attend(const struct text *text, uint32_t position, uint32_t layer, uint32_t head,
                   double *out)
{
    double sum = 0;
    memset(out, 0, TEXT_DIM * sizeof *out);
    for (uint32_t key = 0; key <= position; key++) {
        double score = 0;
        for (uint32_t i = 0; i < TEXT_DIM; i++)
            score +=
                (double)element(text->tokens[position], position, layer, Q, head * TEXT_DIM + i) *
                (double)element(text->tokens[key], key, layer, K, i);
        double weight = exp(score / sqrt(TEXT_DIM));
        sum += weight;
        for (uint32_t i = 0; i < TEXT_DIM; i++)
            out[i] += weight * (double)element(text->tokens[key], key, layer, V, i);
    }
    for (uint32_t i = 0; i < TEXT_DIM; i++)
        out[i] /= sum;
}

static void check_row(struct text_world *world, const struct text *text, uint32_t row,
                      uint32_t position, uint32_t layer)
{
    const float *out = aule_tensor_data(world->session, &world->out);
    double wanted[TEXT_DIM];
    for (uint32_t head = 0; head < TEXT_HEADS; head++) {
        attend(text, position, layer, head, wanted);
        for (uint32_t i = 0; i < TEXT_DIM; i++)
            ck_assert_double_eq_tol(out[(row * TEXT_HEADS + head) * TEXT_DIM + i], wanted[i], 1e-5);
    }
}

static void run_layer(struct text_world *world, const struct aule_step_entry *entries,
                      struct text *const *texts, uint32_t num_texts, uint32_t layer)
{
    for (uint32_t s = 0; s < num_texts; s++)
        for (uint32_t i = 0; i < entries[s].num_tokens; i++) {
            uint32_t position = texts[s]->num_computed + i;
            fill_row(world, entries[s].row + i, texts[s]->tokens[position], position, layer);
        }
    const struct aule_run_params run = {.layer = layer,
                                        .num_heads = TEXT_HEADS,
                                        .q = world->q,
                                        .k = world->k,
                                        .v = world->v,
                                        .out = world->out,
                                        .causal = true};
    ok(aule_run(aule_step_batch(world->step), &run, WAIT_MS, NULL));
    for (uint32_t s = 0; s < num_texts; s++)
        for (uint32_t i = 0; i < entries[s].num_tokens; i++)
            check_row(world, texts[s], entries[s].row + i, texts[s]->num_computed + i, layer);
}

void text_step(struct text_world *world, struct text *const *texts, const uint32_t *counts,
               uint32_t num_texts, float *outs)
{
    struct aule_step_entry entries[64];
    uint32_t num_rows = 0;
    ck_assert_uint_le(num_texts, 64);
    for (uint32_t s = 0; s < num_texts; s++)
        entries[s] = (struct aule_step_entry){.sequence = texts[s]->sequence,
                                              .num_tokens = counts ? counts[s] : 0};
    ok(aule_step_make(world->step, entries, num_texts, WAIT_MS));
    for (uint32_t s = 0; s < num_texts; s++) {
        ck_assert_uint_eq(entries[s].row, num_rows);
        num_rows += entries[s].num_tokens;
    }
    ck_assert_uint_le(num_rows, TEXT_ROWS);
    for (uint32_t layer = 0; layer < TEXT_LAYERS; layer++)
        run_layer(world, entries, texts, num_texts, layer);
    for (uint32_t s = 0; s < num_texts; s++) {
        texts[s]->num_computed += entries[s].num_tokens;
        expect_state(texts[s]);
    }
    if (outs)
        memcpy(outs, aule_tensor_data(world->session, &world->out),
               (size_t)num_rows * TEXT_HEADS * TEXT_DIM * sizeof *outs);
}
