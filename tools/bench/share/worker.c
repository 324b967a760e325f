// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// worker.c - see worker.h. The outputs of a sequence are hashed; the hashes of a process are
// added, so that they do not depend on how sequences are divided among processes.

#include "worker.h"

#include "tools/bench/measure.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct share_shape share_shape_of(bool full, uint32_t prompt)
{
    if (full)
        return (struct share_shape){.model = model_shape_of(true),
                                    .prompt = prompt ? prompt : 4096,
                                    .own = 128,
                                    .steps = 64};
    return (struct share_shape){
        .model = model_shape_of(false), .prompt = prompt ? prompt : 512, .own = 16, .steps = 16};
}

struct worker {
    const struct options *options;
    struct share_shape shape;
    struct model model;
    uint32_t first, count; // its sequences, by their number among all
    struct aule_sequence *sequences[SHARE_WORKERS];
    uint64_t hashes[SHARE_WORKERS];
};

static bool open_worker(struct worker *w)
{
    const struct model_params params = {.socket = w->options->socket,
                                        .cache = w->options->cache,
                                        .shape = w->shape.model,
                                        .whole_steps = w->options->whole_steps};
    return model_open(&w->model, &params);
}

static void close_worker(struct worker *w)
{
    for (uint32_t i = 0; i < w->count; i++)
        aule_sequence_destroy(w->sequences[i]);
    model_close(&w->model);
}

static bool decode(struct worker *w)
{
    struct aule_step_entry entries[SHARE_WORKERS];
    for (uint32_t step = 0; step < w->shape.steps; step++) {
        if (!model_decode(&w->model, w->sequences, w->count, (int32_t)(2000 + step), entries))
            return false;
        for (uint32_t i = 0; i < w->count; i++)
            w->hashes[i] = model_hash(&w->model, entries[i].row, w->hashes[i]);
    }
    return true;
}

// ---- lines ----

static bool prefill(struct worker *w, uint32_t index)
{
    const struct model_prompt prompt = {
        .count = w->shape.prompt, .number = w->first + index, .own = w->shape.own, .publish = true};
    return model_sequence(&w->model, &prompt, &w->sequences[index]) &&
           model_prefill(&w->model, w->sequences[index]);
}

static bool do_prefill(struct worker *w)
{
    double begin = now_us();
    bool ok = true;
    for (uint32_t i = 0; ok && i < w->count; i++)
        ok = prefill(w, i);
    if (ok)
        printf("prefilled %.3f %" PRIu64 "\n", now_us() - begin, w->model.computed);
    return ok;
}

static bool do_decode(struct worker *w)
{
    double begin = now_us();
    uint64_t sum = 0;
    w->model.spent = (struct model_spent){0};
    if (!decode(w))
        return false;
    const double took = now_us() - begin, steps = w->shape.steps;
    const struct model_spent *spent = &w->model.spent;
    for (uint32_t i = 0; i < w->count; i++)
        sum += w->hashes[i];
    printf("decoded %.3f %" PRIu64 " %.3f %.3f %.3f\n", took, sum,
           (double)spent->gpu_ns * 1e-3 / steps,
           (double)spent->num_sessions / (double)spent->num_runs, spent->making_us / steps);
    return true;
}

static bool do_blocks(struct worker *w)
{
    struct aule_cache_state state;
    if (!model_fine(aule_cache_state(w->model.cache, &state), "state"))
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
