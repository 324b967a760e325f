// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// beside.c - decoding by one worker, alone and while another one loads blocks from host memory, at
// 10 GB/s or as fast as it can. Both take turns in one daemon. The other worker has more texts than
// the pool has room for, and reads them in turn, so each has to come back from host memory.

#include "site.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum {
    ROUNDS = 4, // of both; the first one warms up
    FIRST_TEXT = 1000,
    MOST_SEQUENCES = 64,
};
static const double target_gb_per_s = 10;

struct scene {
    struct site site;
    struct model mover;                        // its own session
    uint32_t sequences, context, steps, piece; // piece: tokens of a moved text
    uint32_t texts; // that are moved; the pool has room for half of them, beside the sequences
    struct aule_sequence *list[MOST_SEQUENCES];
    atomic_bool stops;
    bool moved_all; // the mover had no failure
};

static struct scene scene_of(bool full)
{
    if (full)
        return (struct scene){.sequences = 64, .context = 4096, .steps = 40, .piece = 1024};
    return (struct scene){.sequences = 4, .context = 128, .steps = 4, .piece = 64};
}

static bool open_scene(struct scene *s, const struct options *options, const char *queue)
{
    const struct model_shape shape = model_shape_of(options->full);
    const uint32_t own = (s->context + 2 * ROUNDS * s->steps) / shape.block_size + 1,
                   piece = s->piece / shape.block_size;
    const char *const more[] = {"--host-tier", options->full ? "16G" : "64M", "--transfer-queue",
                                queue, NULL};
    if (!site_open(&s->site, options, shape, s->sequences * own + 4 * piece, more))
        return false;
    const uint32_t room = s->site.blocks - s->sequences * (s->context / shape.block_size);
    s->texts = 2 * (room / piece + 1);
    struct model_params params = s->site.model.params;
    return model_open(&s->mover, &params);
}

static void close_scene(struct scene *s)
{
    for (uint32_t i = 0; i < s->sequences; i++)
        aule_sequence_destroy(s->list[i]);
    model_close(&s->mover);
    site_close(&s->site);
}

// Texts of their own, so that nothing is shared.
static bool fill_decode(struct scene *s)
{
    struct model *model = &s->site.model;
    for (uint32_t i = 0; i < s->sequences; i++) {
        const struct model_prompt prompt = {.text = i, .count = s->context};
        if (!model_sequence(model, &prompt, &s->list[i]) || !model_compute(model, s->list[i]))
            return false;
    }
    return true;
}

static bool move_text(struct scene *s, uint32_t text)
{
    const struct model_prompt prompt = {
        .text = FIRST_TEXT + text, .count = s->piece, .publish = true, .load = AULE_LOAD_ALWAYS};
    struct aule_sequence *sequence = NULL;
    const bool ok = model_sequence(&s->mover, &prompt, &sequence) && model_await(sequence);
    aule_sequence_destroy(sequence);
    return ok;
}

static bool fill_tier(struct scene *s)
{
    static const char stored[] = "aule_tier_stored_blocks_total{tier=\"host\"}";
    uint64_t before;
    if (!site_metric(&s->site, stored, &before))
        return false;
    for (uint32_t text = 0; text < s->texts; text++) {
        const struct model_prompt prompt = {
            .text = FIRST_TEXT + text, .count = s->piece, .publish = true};
        struct aule_sequence *sequence = NULL;
        const bool ok =
            model_sequence(&s->mover, &prompt, &sequence) && model_prefill(&s->mover, sequence);
        aule_sequence_destroy(sequence);
        if (!ok)
            return false;
    }
    return site_await(&s->site, stored, before,
                      (uint64_t)s->texts * s->piece / s->mover.params.shape.block_size);
}

static void sleep_until(double us)
{
    const double left_us = us - now_us();
    if (left_us <= 0)
        return;
    const struct timespec time = {(time_t)(left_us / 1e6),
                                  (long)((uint64_t)(left_us * 1e3) % 1000000000)};
    nanosleep(&time, NULL);
}

static void *run_mover(void *argument)
{
    struct scene *s = argument;
    const double bytes = (double)s->site.block_bytes * s->piece / s->mover.params.shape.block_size;
    double next_us = now_us();
    for (uint32_t text = 0; s->moved_all && !atomic_load(&s->stops); text = (text + 1) % s->texts) {
        sleep_until(next_us);
        next_us += bytes / target_gb_per_s / 1e3;
        s->moved_all = move_text(s, text);
    }
    return NULL;
}

// Time of `steps` steps. Making Q, K and V is not counted.
static bool decode(struct scene *s, double *us)
{
    struct aule_step_entry entries[MOST_SEQUENCES];
    struct model *model = &s->site.model;
    const double begin_us = now_us(), filled_us = model->filled_us;
    for (uint32_t step = 0; step < s->steps; step++)
        if (!model_decode(model, s->list, s->sequences, (int32_t)step, entries))
            return false;
    *us = now_us() - begin_us - (model->filled_us - filled_us);
    return true;
}

static bool decode_beside(struct scene *s, double *us, double *gb_per_s)
{
    static const char loaded[] = "aule_tier_loaded_bytes_total{tier=\"host\"}";
    pthread_t mover;
    uint64_t before, after;
    atomic_store(&s->stops, false);
    s->moved_all = true;
    if (!site_metric(&s->site, loaded, &before) || pthread_create(&mover, NULL, run_mover, s) != 0)
        return false;
    const double begin_us = now_us();
    const bool decoded = decode(s, us);
    const double took_us = now_us() - begin_us;
    const bool counted = site_metric(&s->site, loaded, &after);
    atomic_store(&s->stops, true);
    pthread_join(mover, NULL);
    *gb_per_s = (double)(after - before) / took_us / 1e3;
    return decoded && counted && s->moved_all;
}

static bool take_turns(struct scene *s, struct beside *out)
{
    for (int round = 0; round < ROUNDS; round++) {
        double alone_us, beside_us, gb_per_s;
        if (!decode(s, &alone_us) || !decode_beside(s, &beside_us, &gb_per_s))
            return false;
        if (!round)
            continue;
        out->alone_us += alone_us / (ROUNDS - 1) / s->steps;
        out->beside_us += beside_us / (ROUNDS - 1) / s->steps;
        out->gb_per_s += gb_per_s / (ROUNDS - 1);
    }
    return true;
}

bool beside_measure(const struct options *options, const char *queue, struct beside *out)
{
    struct scene scene = scene_of(options->full);
    *out = (struct beside){
        .sequences = scene.sequences, .context = scene.context, .steps = scene.steps};
    const bool ok = open_scene(&scene, options, queue) && fill_tier(&scene) &&
                    fill_decode(&scene) && take_turns(&scene, out);
    close_scene(&scene);
    return ok;
}
