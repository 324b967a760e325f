// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// model.c - see model.h. Q, K and V are copied from a table, because their making is not what
// studies measure.

#include "model.h"

#include "tools/bench/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKEN_OWN = 1000000, TOKEN_TEXT = 32768, NUM_NUMBERS = 1 << 20 };

struct model_shape model_shape_of(bool full)
{
    if (full)
        return (struct model_shape){
            .layers = 32, .num_heads = 32, .num_kv_heads = 8, .head_dim = 128, .block_size = 32};
    return (struct model_shape){
        .layers = 2, .num_heads = 4, .num_kv_heads = 2, .head_dim = 64, .block_size = 16};
}

bool model_fine(enum aule_status status, const char *what)
{
    if (status != AULE_OK)
        fprintf(stderr, "aule-bench: %s: %s: %s\n", what, aule_status_name(status), aule_error());
    return status == AULE_OK;
}

// ---- inputs ----

static uint32_t mix(uint32_t x)
{
    x = (x ^ x >> 15) * 0x2c1b3c6du;
    return x ^ x >> 12;
}

// Numbers between 0.25 and 1 of either sign, as f16.
static bool make_numbers(struct model *m)
{
    m->numbers = malloc(NUM_NUMBERS * sizeof *m->numbers);
    if (!m->numbers)
        fprintf(stderr, "aule-bench: no memory\n");
    for (uint32_t i = 0; m->numbers && i < NUM_NUMBERS; i++) {
        const uint32_t x = mix(i * 0x9e3779b1u + 1);
        m->numbers[i] = (uint16_t)(0x3400 + (x >> 8 & 0x7ff) + (x >> 31 ? 0x8000 : 0));
    }
    return m->numbers != NULL;
}

static void fill_row(const struct model *m, const struct aule_tensor *tensor, uint32_t row,
                     uint32_t heads, uint32_t seed)
{
    const uint32_t count = heads * m->params.shape.head_dim,
                   first = mix(seed * 0x85ebca77u) % (NUM_NUMBERS - count);
    uint16_t *to = (uint16_t *)aule_tensor_data(m->session, tensor) + (uint64_t)row * count;
    memcpy(to, m->numbers + first, count * sizeof *to);
}

static void fill_token(const struct model *m, uint32_t row, int32_t token, uint32_t position)
{
    uint32_t seed = (uint32_t)token * 31 + position;
    fill_row(m, &m->q, row, m->params.shape.num_heads, seed + 1);
    fill_row(m, &m->k, row, m->params.shape.num_kv_heads, seed + 2);
    fill_row(m, &m->v, row, m->params.shape.num_kv_heads, seed + 3);
}

// ---- opening ----

static bool make_tensor(struct model *m, uint32_t heads, struct aule_tensor *tensor)
{
    return model_fine(aule_tensor_create(m->session, AULE_F16, MODEL_CHUNK, heads,
                                         m->params.shape.head_dim, tensor),
                      "tensor");
}

bool model_open(struct model *m, const struct model_params *params)
{
    const struct model_shape *shape = &params->shape;
    const struct aule_session_params session = {
        .socket = params->socket, .timeout_ms = MODEL_WAIT_MS, .arena_size = MODEL_ARENA};
    const struct aule_cache_params cache = {.name = params->cache,
                                            .num_layers = shape->layers,
                                            .num_kv_heads = shape->num_kv_heads,
                                            .head_dim = shape->head_dim,
                                            .k_dtype = AULE_F16,
                                            .v_dtype = AULE_F16,
                                            .block_size = shape->block_size};
    *m = (struct model){.params = *params};
    return make_numbers(m) && model_fine(aule_session_open(&session, &m->session), "session") &&
           model_fine(aule_cache_open(m->session, &cache, &m->cache), "cache") &&
           model_fine(aule_step_create(m->cache, &m->step), "step") &&
           make_tensor(m, shape->num_heads, &m->q) && make_tensor(m, shape->num_kv_heads, &m->k) &&
           make_tensor(m, shape->num_kv_heads, &m->v) && make_tensor(m, shape->num_heads, &m->out);
}

void model_close(struct model *m)
{
    aule_step_destroy(m->step);
    aule_cache_close(m->cache);
    aule_session_close(m->session);
    free(m->numbers);
    *m = (struct model){.session = NULL};
}

static int32_t token_of(uint32_t text, uint32_t position)
{
    return (int32_t)(text * TOKEN_TEXT + position);
}

int32_t *model_tokens(uint32_t text, uint32_t count)
{
    int32_t *tokens = malloc(count * sizeof *tokens);
    for (uint32_t i = 0; tokens && i < count; i++)
        tokens[i] = token_of(text, i);
    return tokens;
}

bool model_sequence(struct model *m, const struct model_prompt *prompt, struct aule_sequence **out)
{
    const uint32_t count = prompt->count + prompt->own;
    int32_t *tokens = malloc(count * sizeof *tokens);
    for (uint32_t i = 0; tokens && i < count; i++)
        tokens[i] = i < prompt->count ? token_of(prompt->text, i)
                                      : (int32_t)((prompt->number + 1) * TOKEN_OWN + i);
    const struct aule_sequence_params params = {.tokens = tokens,
                                                .num_tokens = count,
                                                .publish = prompt->publish,
                                                .claim = prompt->publish,
                                                .load = prompt->load};
    const bool made =
        tokens && model_fine(aule_sequence_create(m->cache, &params, out), "sequence");
    free(tokens);
    return made;
}

// ---- steps ----

static bool note_run(struct model *m, const struct aule_run_result *result)
{
    m->spent.gpu_ns += result->gpu_ns;
    m->spent.num_sessions += result->num_sessions;
    m->spent.num_runs++;
    return true;
}

// Either all layers at once, or each waits for the one before. All layers have the same q, k and v,
// so the last one leaves the same output.
static bool run_all_layers(struct model *m)
{
    struct aule_run_result result;
    struct aule_run_params run = {.num_heads = m->params.shape.num_heads,
                                  .q = m->q,
                                  .k = m->k,
                                  .v = m->v,
                                  .out = m->out,
                                  .causal = true};
    const struct aule_layers layers = {.num_layers = m->params.shape.layers};
    struct aule_batch *batch = aule_step_batch(m->step);
    if (m->params.whole_steps)
        return model_fine(aule_run_layers(batch, &run, &layers, MODEL_WAIT_MS, &result), "run") &&
               note_run(m, &result);
    for (; run.layer < m->params.shape.layers; run.layer++)
        if (!model_fine(aule_run(batch, &run, MODEL_WAIT_MS, &result), "run") ||
            !note_run(m, &result))
            return false;
    return true;
}

static bool fill_entry(struct model *m, const struct aule_step_entry *entry)
{
    struct aule_sequence_info info;
    const int32_t *tokens = aule_sequence_tokens(entry->sequence);
    if (!model_fine(aule_sequence_info(entry->sequence, &info), "info"))
        return false;
    const uint32_t first = info.num_computed - entry->num_tokens;
    for (uint32_t i = 0; !m->stale && i < entry->num_tokens; i++)
        fill_token(m, entry->row + i, tokens[first + i], first + i);
    m->computed += entry->num_tokens;
    m->last_row = entry->row + entry->num_tokens - 1;
    return true;
}

bool model_step(struct model *m, struct aule_step_entry *entries, uint32_t num_entries)
{
    const double make_us = now_us();
    if (!model_fine(aule_step_make(m->step, entries, num_entries, MODEL_WAIT_MS), "step"))
        return false;
    const double begin_us = now_us();
    m->spent.making_us += begin_us - make_us;
    for (uint32_t i = 0; i < num_entries; i++)
        if (!fill_entry(m, &entries[i]))
            return false;
    m->filled_us += now_us() - begin_us;
    return run_all_layers(m);
}

bool model_await(struct aule_sequence *sequence)
{
    struct aule_sequence_info info;
    do {
        if (!model_fine(aule_sequence_info(sequence, &info), "info"))
            return false;
    } while (info.num_promised && model_fine(aule_sequence_wait(sequence, MODEL_WAIT_MS), "wait"));
    return info.num_promised == 0;
}

static bool compute(struct model *m, struct aule_sequence *sequence, bool publishes)
{
    struct aule_sequence_info info;
    if (!model_fine(aule_sequence_info(sequence, &info), "info"))
        return false;
    while (info.num_computed < info.num_tokens) {
        const uint32_t left = info.num_tokens - info.num_computed - 1;
        struct aule_step_entry entry = {.sequence = sequence,
                                        .num_tokens = !left                ? 1
                                                      : left < MODEL_CHUNK ? left
                                                                           : MODEL_CHUNK};
        if (!model_step(m, &entry, 1) ||
            (publishes && !model_fine(aule_sequence_publish(sequence), "publish")) ||
            !model_fine(aule_sequence_info(sequence, &info), "info"))
            return false;
    }
    return true;
}

bool model_compute(struct model *m, struct aule_sequence *sequence)
{
    return compute(m, sequence, false);
}

bool model_prefill(struct model *m, struct aule_sequence *sequence)
{
    return model_await(sequence) && compute(m, sequence, true);
}

bool model_let_go(struct model *m)
{
    aule_step_destroy(m->step);
    m->step = NULL;
    return model_fine(aule_step_create(m->cache, &m->step), "step");
}

uint64_t model_hash(const struct model *m, uint32_t row, uint64_t hash)
{
    const struct model_shape *shape = &m->params.shape;
    const uint32_t count = shape->num_heads * shape->head_dim / 4; // head_dim is a multiple of 4
    const uint64_t *out =
        (const uint64_t *)aule_tensor_data(m->session, &m->out) + (size_t)row * count;
    hash = hash ? hash : 0xcbf29ce484222325u;
    for (uint32_t i = 0; i < count; i++)
        hash = (hash ^ hash >> 32 ^ out[i]) * 0x9e3779b97f4a7c15u;
    return hash;
}

bool model_decode(struct model *m, struct aule_sequence *const *sequences, uint32_t count,
                  int32_t token, struct aule_step_entry *entries)
{
    for (uint32_t i = 0; i < count; i++) {
        entries[i] = (struct aule_step_entry){.sequence = sequences[i]};
        if (!model_fine(aule_sequence_append(sequences[i], &token, 1), "append"))
            return false;
    }
    return model_step(m, entries, count);
}
