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

// Fills rows from `row` on with tokens [first, first + count) of the sequence.
static void fill_tokens(const struct model *m, const struct model_inputs *inputs, uint32_t row,
                        const struct aule_sequence *sequence, uint32_t first, uint32_t count)
{
    const int32_t *tokens = aule_sequence_tokens(sequence);
    for (uint32_t i = 0; !m->stale && i < count; i++) {
        const uint32_t seed = (uint32_t)tokens[first + i] * 31 + first + i;
        fill_row(m, &inputs->q, row + i, m->params.shape.num_heads, seed + 1);
        fill_row(m, &inputs->k, row + i, m->params.shape.num_kv_heads, seed + 2);
        fill_row(m, &inputs->v, row + i, m->params.shape.num_kv_heads, seed + 3);
    }
}

// ---- opening ----

static bool make_tensor(struct model *m, uint32_t heads, struct aule_tensor *tensor)
{
    return model_fine(aule_tensor_create(m->session, AULE_F16, MODEL_CHUNK, heads,
                                         m->params.shape.head_dim, tensor),
                      "tensor");
}

static bool make_inputs(struct model *m, struct model_inputs *inputs)
{
    const struct model_shape *shape = &m->params.shape;
    return make_tensor(m, shape->num_heads, &inputs->q) &&
           make_tensor(m, shape->num_kv_heads, &inputs->k) &&
           make_tensor(m, shape->num_kv_heads, &inputs->v);
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
    m->now = &m->inputs[0];
    return make_numbers(m) && model_fine(aule_session_open(&session, &m->session), "session") &&
           model_fine(aule_cache_open(m->session, &cache, &m->cache), "cache") &&
           model_fine(aule_step_create(m->cache, &m->step), "step") &&
           make_inputs(m, &m->inputs[0]) && make_inputs(m, &m->inputs[1]) &&
           make_tensor(m, shape->num_heads, &m->out);
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

static struct aule_run_params run_of(const struct model *m)
{
    return (struct aule_run_params){.num_heads = m->params.shape.num_heads,
                                    .q = m->now->q,
                                    .k = m->now->k,
                                    .v = m->now->v,
                                    .out = m->out,
                                    .causal = true};
}

// Either all layers at once, or each waits for the one before. All layers have the same q, k and v,
// so the last one leaves the same output.
static bool run_all_layers(struct model *m)
{
    struct aule_run_result result;
    struct aule_run_params run = run_of(m);
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

static bool make_step(struct model *m, struct aule_step_entry *entries, uint32_t num_entries)
{
    const double begin_us = now_us();
    const bool made =
        model_fine(aule_step_make(m->step, entries, num_entries, MODEL_WAIT_MS), "step");
    m->spent.making_us += now_us() - begin_us;
    return made;
}

static void note_entry(struct model *m, const struct aule_step_entry *entry)
{
    m->computed += entry->num_tokens;
    m->last_row = entry->row + entry->num_tokens - 1;
}

bool model_step(struct model *m, struct aule_step_entry *entries, uint32_t num_entries)
{
    struct aule_sequence_info info;
    if (!make_step(m, entries, num_entries))
        return false;
    const double begin_us = now_us();
    for (uint32_t i = 0; i < num_entries; i++) {
        const struct aule_step_entry *entry = &entries[i];
        if (!model_fine(aule_sequence_info(entry->sequence, &info), "info"))
            return false;
        fill_tokens(m, m->now, entry->row, entry->sequence, info.num_computed - entry->num_tokens,
                    entry->num_tokens);
        note_entry(m, entry);
    }
    m->filled_us += now_us() - begin_us;
    return run_all_layers(m);
}

// ---- prompts ----

// Waits for the last run of the step before.
static bool reap(struct model *m)
{
    struct aule_run_result result;
    const bool waits = m->waits;
    m->waits = false;
    return !waits ||
           (model_fine(aule_ticket_wait(m->session, m->last, MODEL_WAIT_MS, &result), "wait") &&
            note_run(m, &result));
}

// Submits the next layer, or with whole steps all of them.
static bool submit(struct model *m, const struct aule_run_params *run)
{
    const struct aule_layers layers = {.num_layers = m->params.shape.layers};
    struct aule_batch *batch = aule_step_batch(m->step);
    struct aule_ticket ticket;
    const enum aule_status status =
        m->params.whole_steps ? aule_run_layers_submit(batch, run, &layers, MODEL_WAIT_MS, &ticket)
                              : aule_run_submit(batch, run, MODEL_WAIT_MS, &ticket);
    if (!model_fine(status, "run") || !reap(m)) // the step before has ended then
        return false;
    m->last = ticket;
    m->waits = true;
    return true;
}

static struct model_inputs *others(struct model *m)
{
    return m->now == &m->inputs[0] ? &m->inputs[1] : &m->inputs[0];
}

// Fills up to `count` tokens more of the next step.
static void fill_ahead(struct model *m, uint32_t count)
{
    struct model_ahead *ahead = &m->ahead;
    const uint32_t left = ahead->count - ahead->filled;
    count = count < left ? count : left;
    fill_tokens(m, others(m), ahead->filled, ahead->sequence, ahead->first + ahead->filled, count);
    ahead->filled += count;
}

// Submits all layers. The last run is reaped by the next step's submit(). Each layer waits for the
// one before, and the next step's inputs are filled meanwhile.
static bool submit_all_layers(struct model *m)
{
    const uint32_t num_runs = m->params.whole_steps ? 1 : m->params.shape.layers,
                   share = (m->ahead.count + num_runs - 1) / num_runs;
    struct aule_run_params run = run_of(m);
    for (; run.layer < num_runs; run.layer++) {
        if ((run.layer && !reap(m)) || !submit(m, &run))
            return false;
        fill_ahead(m, share);
    }
    return true;
}

// Tokens of the prompt's next step, of `left` tokens.
static uint32_t next_chunk(uint32_t left)
{
    const uint32_t most = left > 1 ? left - 1 : left;
    return most < MODEL_CHUNK ? most : MODEL_CHUNK;
}

// The step computes `entry` from token `first` on. Its inputs were filled ahead, or are filled now.
static void take_inputs(struct model *m, const struct aule_step_entry *entry, uint32_t first)
{
    const double begin_us = now_us();
    if (m->ahead.sequence == entry->sequence && m->ahead.first == first &&
        m->ahead.filled == entry->num_tokens && !m->stale)
        m->now = others(m);
    else
        fill_tokens(m, m->now, entry->row, entry->sequence, first, entry->num_tokens);
    m->filled_us += now_us() - begin_us;
    note_entry(m, entry);
}

static void look_ahead(struct model *m, const struct aule_sequence *sequence, uint32_t first,
                       uint32_t num_tokens)
{
    m->ahead = (struct model_ahead){.sequence = first < num_tokens ? sequence : NULL,
                                    .first = first,
                                    .count = next_chunk(num_tokens - first)};
}

static bool prompt_step(struct model *m, struct aule_sequence *sequence,
                        const struct aule_sequence_info *info)
{
    struct aule_step_entry entry = {
        .sequence = sequence, .num_tokens = next_chunk(info->num_tokens - info->num_computed)};
    if (!make_step(m, &entry, 1))
        return false;
    take_inputs(m, &entry, info->num_computed);
    look_ahead(m, sequence, info->num_computed + entry.num_tokens, info->num_tokens);
    return submit_all_layers(m);
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
    while (info.num_computed < info.num_tokens)
        if (!prompt_step(m, sequence, &info) ||
            (publishes && !model_fine(aule_sequence_publish(sequence), "publish")) ||
            !model_fine(aule_sequence_info(sequence, &info), "info"))
            return false;
    return reap(m);
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
