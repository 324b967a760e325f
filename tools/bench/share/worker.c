// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// worker.c - see worker.h. Q, K and V depend only on token and position, so any worker writes the
// same for a common prompt. They are copied from a table, because their making is not what the
// study measures. The outputs of a sequence are hashed; the hashes of a process are
// added, so that they do not depend on how sequences are divided among processes.

#include "worker.h"

#include "tools/bench/measure.h"

#include <aule/sequence.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 512, WAIT_MS = 120000, TOKEN_OWN = 1000000, NUM_NUMBERS = 1 << 20 };

struct share_shape share_shape_of(bool full, uint32_t prompt)
{
    if (full)
        return (struct share_shape){.layers = 32,
                                    .num_heads = 32,
                                    .num_kv_heads = 8,
                                    .head_dim = 128,
                                    .block_size = 32,
                                    .prompt = prompt ? prompt : 4096,
                                    .own = 128,
                                    .steps = 64};
    return (struct share_shape){.layers = 2,
                                .num_heads = 4,
                                .num_kv_heads = 2,
                                .head_dim = 64,
                                .block_size = 16,
                                .prompt = prompt ? prompt : 512,
                                .own = 16,
                                .steps = 16};
}

struct worker {
    const struct options *options;
    struct share_shape shape;
    struct aule_session *session;
    struct aule_cache *cache;
    struct aule_step *step;
    struct aule_tensor q, k, v, out;
    uint32_t first, count; // its sequences, by their number among all
    struct aule_sequence *sequences[SHARE_WORKERS];
    uint64_t hashes[SHARE_WORKERS];
    uint64_t computed; // tokens
    // Of all layers that it waited for: their GPU time, and the sessions of their dispatches. Of
    // all steps: the time to make them. Cleared where decoding begins.
    uint64_t gpu_ns, num_sessions, num_runs;
    double making_us;
    uint16_t *numbers; // [NUM_NUMBERS]; owned
};

static bool fine(enum aule_status status, const char *what)
{
    if (status != AULE_OK)
        fprintf(stderr, "aule-bench: share: %s: %s: %s\n", what, aule_status_name(status),
                aule_error());
    return status == AULE_OK;
}

// ---- inputs ----

static uint32_t mix(uint32_t x)
{
    x = (x ^ x >> 15) * 0x2c1b3c6du;
    return x ^ x >> 12;
}

// Numbers between 0.25 and 1 of either sign, as f16.
static bool make_numbers(struct worker *w)
{
    w->numbers = malloc(NUM_NUMBERS * sizeof *w->numbers);
    if (!w->numbers)
        fprintf(stderr, "aule-bench: share: no memory\n");
    for (uint32_t i = 0; w->numbers && i < NUM_NUMBERS; i++) {
        const uint32_t x = mix(i * 0x9e3779b1u + 1);
        w->numbers[i] = (uint16_t)(0x3400 + (x >> 8 & 0x7ff) + (x >> 31 ? 0x8000 : 0));
    }
    return w->numbers != NULL;
}

static void fill_row(const struct worker *w, const struct aule_tensor *tensor, uint32_t row,
                     uint32_t heads, uint32_t seed)
{
    const uint32_t count = heads * w->shape.head_dim,
                   first = mix(seed * 0x85ebca77u) % (NUM_NUMBERS - count);
    uint16_t *to = (uint16_t *)aule_tensor_data(w->session, tensor) + (uint64_t)row * count;
    memcpy(to, w->numbers + first, count * sizeof *to);
}

static void fill_token(const struct worker *w, uint32_t row, int32_t token, uint32_t position)
{
    uint32_t seed = (uint32_t)token * 31 + position;
    fill_row(w, &w->q, row, w->shape.num_heads, seed + 1);
    fill_row(w, &w->k, row, w->shape.num_kv_heads, seed + 2);
    fill_row(w, &w->v, row, w->shape.num_kv_heads, seed + 3);
}

// ---- opening ----

static bool make_sequence(struct worker *w, uint32_t index)
{
    uint32_t count = w->shape.prompt + w->shape.own;
    int32_t *tokens = malloc(count * sizeof *tokens);
    for (uint32_t i = 0; tokens && i < count; i++)
        tokens[i] = (int32_t)(i < w->shape.prompt ? i : (w->first + index + 1) * TOKEN_OWN + i);
    const struct aule_sequence_params params = {
        .tokens = tokens, .num_tokens = count, .publish = true, .claim = true};
    bool made =
        tokens && fine(aule_sequence_create(w->cache, &params, &w->sequences[index]), "sequence");
    free(tokens);
    return made;
}

static bool make_tensor(struct worker *w, uint32_t heads, struct aule_tensor *tensor)
{
    return fine(aule_tensor_create(w->session, AULE_F16, CHUNK, heads, w->shape.head_dim, tensor),
                "tensor");
}

static bool open_worker(struct worker *w)
{
    const struct share_shape *shape = &w->shape;
    const struct aule_session_params session = {
        .socket = w->options->socket, .timeout_ms = WAIT_MS, .arena_size = 64 << 20};
    const struct aule_cache_params cache = {.name = w->options->cache,
                                            .num_layers = shape->layers,
                                            .num_kv_heads = shape->num_kv_heads,
                                            .head_dim = shape->head_dim,
                                            .k_dtype = AULE_F16,
                                            .v_dtype = AULE_F16,
                                            .block_size = shape->block_size};
    return make_numbers(w) && fine(aule_session_open(&session, &w->session), "session") &&
           fine(aule_cache_open(w->session, &cache, &w->cache), "cache") &&
           fine(aule_step_create(w->cache, &w->step), "step") &&
           make_tensor(w, shape->num_heads, &w->q) && make_tensor(w, shape->num_kv_heads, &w->k) &&
           make_tensor(w, shape->num_kv_heads, &w->v) && make_tensor(w, shape->num_heads, &w->out);
}

static void close_worker(struct worker *w)
{
    for (uint32_t i = 0; i < w->count; i++)
        aule_sequence_destroy(w->sequences[i]);
    aule_step_destroy(w->step);
    aule_cache_close(w->cache);
    aule_session_close(w->session);
    free(w->numbers);
}

// ---- steps ----

static bool note_run(struct worker *w, const struct aule_run_result *result)
{
    w->gpu_ns += result->gpu_ns;
    w->num_sessions += result->num_sessions;
    w->num_runs++;
    return true;
}

// Either all layers at once, or each waits for the one before. All layers have the same q, k and v,
// so the last one leaves the same output.
static bool run_all_layers(struct worker *w)
{
    struct aule_run_result result;
    struct aule_run_params run = {.num_heads = w->shape.num_heads,
                                  .q = w->q,
                                  .k = w->k,
                                  .v = w->v,
                                  .out = w->out,
                                  .causal = true};
    const struct aule_layers layers = {.num_layers = w->shape.layers};
    struct aule_batch *batch = aule_step_batch(w->step);
    if (w->options->whole_steps)
        return fine(aule_run_layers(batch, &run, &layers, WAIT_MS, &result), "run") &&
               note_run(w, &result);
    for (; run.layer < w->shape.layers; run.layer++)
        if (!fine(aule_run(batch, &run, WAIT_MS, &result), "run") || !note_run(w, &result))
            return false;
    return true;
}

// Makes and runs a step.
static bool run_step(struct worker *w, struct aule_step_entry *entries, uint32_t num_entries)
{
    const double begin = now_us();
    if (!fine(aule_step_make(w->step, entries, num_entries, WAIT_MS), "step"))
        return false;
    w->making_us += now_us() - begin;
    for (uint32_t e = 0; e < num_entries; e++) {
        struct aule_sequence_info info;
        const int32_t *tokens = aule_sequence_tokens(entries[e].sequence);
        if (!fine(aule_sequence_info(entries[e].sequence, &info), "info"))
            return false;
        uint32_t first = info.num_computed - entries[e].num_tokens;
        for (uint32_t i = 0; i < entries[e].num_tokens; i++)
            fill_token(w, entries[e].row + i, tokens[first + i], first + i);
        w->computed += entries[e].num_tokens;
    }
    return run_all_layers(w);
}

// Takes what others compute, and computes the rest.
static bool prefill(struct worker *w, uint32_t index)
{
    struct aule_sequence_info info;
    struct aule_sequence *sequence = w->sequences[index];
    do {
        if (!fine(aule_sequence_info(sequence, &info), "info"))
            return false;
    } while (info.num_promised && fine(aule_sequence_wait(sequence, WAIT_MS), "wait"));
    while (info.num_computed < info.num_tokens) {
        uint32_t left = info.num_tokens - info.num_computed;
        struct aule_step_entry entry = {.sequence = sequence,
                                        .num_tokens = left < CHUNK ? left : CHUNK};
        if (!run_step(w, &entry, 1) || !fine(aule_sequence_publish(sequence), "publish") ||
            !fine(aule_sequence_info(sequence, &info), "info"))
            return false;
    }
    return true;
}

static void take_hash(struct worker *w, uint32_t index, uint32_t row)
{
    const uint32_t count =
        w->shape.num_heads * w->shape.head_dim / 4; // head_dim is a multiple of 4
    const uint64_t *out = (const uint64_t *)aule_tensor_data(w->session, &w->out) + row * count;
    uint64_t hash = w->hashes[index] ? w->hashes[index] : 0xcbf29ce484222325u;
    for (uint32_t i = 0; i < count; i++)
        hash = (hash ^ hash >> 32 ^ out[i]) * 0x9e3779b97f4a7c15u;
    w->hashes[index] = hash;
}

static bool decode(struct worker *w)
{
    for (uint32_t step = 0; step < w->shape.steps; step++) {
        struct aule_step_entry entries[SHARE_WORKERS];
        for (uint32_t i = 0; i < w->count; i++) {
            int32_t token = (int32_t)(2000 + step);
            entries[i] = (struct aule_step_entry){.sequence = w->sequences[i]};
            if (!fine(aule_sequence_append(w->sequences[i], &token, 1), "append"))
                return false;
        }
        if (!run_step(w, entries, w->count))
            return false;
        for (uint32_t i = 0; i < w->count; i++)
            take_hash(w, i, entries[i].row);
    }
    return true;
}

// ---- lines ----

static bool do_prefill(struct worker *w)
{
    double begin = now_us();
    bool ok = true;
    for (uint32_t i = 0; ok && i < w->count; i++)
        ok = make_sequence(w, i) && prefill(w, i);
    if (ok)
        printf("prefilled %.3f %" PRIu64 "\n", now_us() - begin, w->computed);
    return ok;
}

static bool do_decode(struct worker *w)
{
    double begin = now_us();
    uint64_t sum = 0;
    w->gpu_ns = w->num_sessions = w->num_runs = 0;
    w->making_us = 0;
    if (!decode(w))
        return false;
    const double took = now_us() - begin, steps = w->shape.steps;
    for (uint32_t i = 0; i < w->count; i++)
        sum += w->hashes[i];
    printf("decoded %.3f %" PRIu64 " %.3f %.3f %.3f\n", took, sum, (double)w->gpu_ns * 1e-3 / steps,
           (double)w->num_sessions / (double)w->num_runs, w->making_us / steps);
    return true;
}

static bool do_blocks(struct worker *w)
{
    struct aule_cache_state state;
    if (!fine(aule_cache_state(w->cache, &state), "state"))
        return false;
    printf("blocks %" PRIu64 "\n", state.leased_blocks + state.held_blocks);
    return true;
}

static bool serve(struct worker *w)
{
    static const struct {
        const char *line;
        bool (*act)(struct worker *w);
    } acts[] = {{"prefill\n", do_prefill}, {"decode\n", do_decode}, {"blocks\n", do_blocks}};
    char line[32];
    while (fgets(line, sizeof line, stdin))
        for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
            if (strcmp(line, acts[i].line) == 0 && (!acts[i].act(w) || fflush(stdout) != 0))
                return false;
    return true;
}

bool share_worker_run(const struct options *options)
{
    struct worker worker = {
        .options = options,
        .shape = share_shape_of(options->full, options->prompt),
        .first = options->part,
        .count = SHARE_WORKERS / options->clients,
    };
    bool ok = open_worker(&worker) && puts("ready") >= 0 && fflush(stdout) == 0 && serve(&worker);
    close_worker(&worker);
    return ok;
}
