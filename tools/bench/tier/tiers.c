// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tiers.c - study "tiers": the time to the first token of a prompt that is computed, that comes
// from host memory and that comes from Redis; what tiers cost if they have nothing; how fast blocks
// are stored; and what a decode loses while blocks move. Cases take turns in one run, each with a
// daemon of its own. The last token's output has the same bits in all cases.

#include "server.h"
#include "site.h"
#include "tools/bench/quantile.h"
#include "tools/bench/study/study.h"
#include "tools/bench/wrong.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// A daemon for each: without tiers; with host memory; one that stores in Redis; two that find
// there what they never computed. DECIDER also stores what it learns from.
enum place { PLAIN, HOST, WRITER, READER, DECIDER, NUM_PLACES };

enum manner { COMPUTED, NOTHING_FOUND, FROM_HOST, HOST_AUTO, FROM_REDIS, REDIS_AUTO, NUM_MANNERS };

static const char *const names[NUM_MANNERS] = {
    [COMPUTED] = "computed, without tiers",
    [NOTHING_FOUND] = "computed, host tier has nothing",
    [FROM_HOST] = "from host memory",
    [HOST_AUTO] = "host memory, the daemon decides",
    [FROM_REDIS] = "from Redis",
    [REDIS_AUTO] = "Redis, the daemon decides",
};

static const char stored_in_host[] = "aule_tier_stored_blocks_total{tier=\"host\"}",
                  stored_in_redis[] = "aule_tier_stored_blocks_total{tier=\"redis\"}";

// The first round warms up: it compiles the pipelines, and the daemons learn speeds.
enum { ROUNDS = 5, REDIS_ROUNDS = 3, LATE_TEXT = 100, STALE_TEXT = 200 };

struct tiers {
    const struct study *study;
    struct model_shape shape;
    uint32_t prompt;
    struct server server;
    struct site sites[NUM_PLACES];
    struct reading readings[NUM_MANNERS][ROUNDS];
    double store_us[ROUNDS];
};

static bool open_all(struct tiers *t)
{
    const bool full = t->study->options.full;
    const char *second = t->study->options.second_device;
    const uint32_t blocks = t->prompt / t->shape.block_size + 64;
    char url[64];
    if (!server_start(&t->server, "16gb"))
        return false;
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", t->server.port);
    const char *const none[] = {NULL}, *const host[] = {"--host-tier", full ? "12G" : "64M", NULL};
    const char *const reader[] = {"--device",         second, "--tier", url, "--tier-memory",
                                  full ? "1G" : "4M", NULL};
    // A whole prompt is stored at once, so it waits for long.
    const char *const writer[] = {"--device",
                                  second,
                                  "--tier",
                                  url,
                                  "--tier-memory",
                                  full ? "6G" : "64M",
                                  "--tier-queue",
                                  "4G",
                                  "--tier-deadline",
                                  "1000",
                                  NULL};
    enum { NO_DEVICE = 2 }; // how many words name the second device
    const int skipped = second ? 0 : NO_DEVICE;
    const char *const *const more[NUM_PLACES] = {none, host, writer + NO_DEVICE, reader + skipped,
                                                 writer + skipped};
    for (int i = 0; i < NUM_PLACES; i++)
        if (!site_open(&t->sites[i], &t->study->options, t->shape, blocks, more[i]))
            return false;
    return true;
}

static void close_all(struct tiers *t)
{
    for (int i = 0; i < NUM_PLACES; i++)
        site_close(&t->sites[i]);
    server_stop(&t->server);
}

// ---- a round ----

static uint32_t num_blocks(const struct tiers *t)
{
    return t->prompt / t->shape.block_size;
}

static bool read(struct tiers *t, enum place place, uint32_t round, enum aule_load load,
                 enum manner manner)
{
    return site_read(&t->sites[place], round, t->prompt, load, &t->readings[manner][round]);
}

// Computes the prompt of the round, and waits until the tier has it.
static bool read_and_store(struct tiers *t, enum place place, const char *stored, uint32_t round,
                           struct reading *reading)
{
    uint64_t before;
    return site_metric(&t->sites[place], stored, &before) &&
           site_read(&t->sites[place], round, t->prompt, AULE_LOAD_AUTO, reading) &&
           site_await(&t->sites[place], stored, before, num_blocks(t));
}

static bool run_host_round(struct tiers *t, uint32_t round)
{
    return read(t, PLAIN, round, AULE_LOAD_AUTO, COMPUTED) &&
           read_and_store(t, HOST, stored_in_host, round, &t->readings[NOTHING_FOUND][round]) &&
           site_evict(&t->sites[HOST]) && read(t, HOST, round, AULE_LOAD_ALWAYS, FROM_HOST) &&
           site_evict(&t->sites[HOST]) && read(t, HOST, round, AULE_LOAD_AUTO, HOST_AUTO) &&
           site_store(&t->sites[HOST], LATE_TEXT + round, t->prompt, stored_in_host,
                      &t->store_us[round]);
}

// The daemon sees a worker compute a prompt of this length. Making Q, K and V takes no time then,
// as in a model whose matrices the GPU multiplies. The blocks are stored before the next reading,
// which is timed.
static bool learn_to_compute(struct tiers *t, enum place place, uint32_t round)
{
    struct site *site = &t->sites[place];
    struct reading ignored;
    uint64_t before;
    site->model.stale = true;
    const bool ok = site_metric(site, stored_in_redis, &before) &&
                    site_read(site, STALE_TEXT + round, t->prompt, AULE_LOAD_NEVER, &ignored);
    site->model.stale = false;
    return ok && site_await(site, stored_in_redis, before, num_blocks(t)) && site_evict(site);
}

static bool run_redis_round(struct tiers *t, uint32_t round)
{
    struct reading ignored;
    return read_and_store(t, WRITER, stored_in_redis, round, &ignored) &&
           read(t, READER, round, AULE_LOAD_ALWAYS, FROM_REDIS) &&
           learn_to_compute(t, DECIDER, round) &&
           read(t, DECIDER, round, AULE_LOAD_AUTO, REDIS_AUTO);
}

// ---- figures ----

static int rounds_of(enum manner manner)
{
    return manner >= FROM_REDIS ? REDIS_ROUNDS : ROUNDS;
}

static double median_of(const struct tiers *t, enum manner manner, size_t field)
{
    double numbers[ROUNDS - 1];
    const int rounds = rounds_of(manner);
    for (int i = 1; i < rounds; i++)
        numbers[i - 1] = *(const double *)((const char *)&t->readings[manner][i] + field);
    return quantile_median(numbers, (uint32_t)rounds - 1);
}

// All rounds gave the bits of the computed prompt.
static bool is_right(const struct tiers *t, enum manner manner)
{
    for (int i = 0; i < rounds_of(manner); i++)
        if (t->readings[manner][i].hash != t->readings[COMPUTED][i].hash)
            return false;
    return true;
}

static struct figure figure_of(const struct tiers *t, const char *name, double us, bool right)
{
    struct figure figure = study_figure(t->study, "ring", NULL, 0);
    figure.dtype = "f16";
    figure.checked = right;
    figure.times = (struct times){.median_us = us, .p99_us = us, .runs = ROUNDS - 1};
    snprintf(figure.name, sizeof figure.name, "%s", name);
    if (!right)
        wrong_note();
    return figure;
}

static bool say(const struct tiers *t, enum manner manner)
{
    const double us = median_of(t, manner, offsetof(struct reading, us)),
                 computed_us = median_of(t, COMPUTED, offsetof(struct reading, us)),
                 awaited_us = median_of(t, manner, offsetof(struct reading, awaited_us));
    const uint64_t last = t->readings[manner][rounds_of(manner) - 1].computed;
    const double found = (double)(t->prompt - last) / t->shape.block_size;
    struct figure figure = figure_of(t, names[manner], us, is_right(t, manner));
    figure_add_given(&figure, "prompt", t->prompt, "tokens");
    figure_add_given(&figure, "layers", t->shape.layers, "layers");
    figure_add(&figure, "first_token_us", us, "us");
    figure_add(&figure, "first_token_ratio", us / computed_us, "x");
    figure_add_given(&figure, "computed", (double)last, "tokens");
    figure_add(&figure, "load_gb_per_s",
               last < t->prompt ? found * (double)t->sites[HOST].block_bytes / awaited_us / 1e3 : 0,
               "GB/s");
    return study_say(t->study, &figure);
}

static bool say_store(const struct tiers *t)
{
    double numbers[ROUNDS - 1];
    memcpy(numbers, t->store_us + 1, sizeof numbers);
    const double us = quantile_median(numbers, ROUNDS - 1);
    struct figure figure = figure_of(t, "to host memory", us, true);
    figure_add_given(&figure, "prompt", t->prompt, "tokens");
    figure_add(&figure, "store_gb_per_s",
               (double)num_blocks(t) * (double)t->sites[HOST].block_bytes / us / 1e3, "GB/s");
    return study_say(t->study, &figure);
}

static bool say_some(const struct tiers *t, enum manner first, enum manner end)
{
    bool right = true;
    for (int manner = first; manner < (int)end; manner++)
        right &= say(t, (enum manner)manner);
    return right;
}

static bool first_tokens(struct tiers *t)
{
    bool ok = open_all(t);
    for (uint32_t round = 0; ok && round < ROUNDS; round++)
        ok = run_host_round(t, round);
    bool right = ok && say_some(t, COMPUTED, FROM_REDIS) && say_store(t);
    for (uint32_t round = 0; ok && round < REDIS_ROUNDS; round++)
        ok = run_redis_round(t, round);
    right &= ok && say_some(t, FROM_REDIS, NUM_MANNERS);
    close_all(t);
    return right;
}

static bool decode_beside(const struct tiers *t, const char *queue, const char *name)
{
    struct beside beside;
    if (!beside_measure(&t->study->options, queue, &beside))
        return false;
    struct figure figure = figure_of(t, name, beside.beside_us, true);
    figure_add_given(&figure, "sequences", beside.sequences, "sequences");
    figure_add_given(&figure, "context", beside.context, "tokens");
    figure_add_given(&figure, "layers", t->shape.layers, "layers");
    figure_add(&figure, "alone_us", beside.alone_us, "us");
    figure_add(&figure, "beside_us", beside.beside_us, "us");
    figure_add(&figure, "beside_over_alone", beside.beside_us / beside.alone_us, "x");
    figure_add(&figure, "moved_gb_per_s", beside.gb_per_s, "GB/s");
    return study_say(t->study, &figure);
}

// `on`: on transfer and further compute queues; without them, on the queue of the runs, but apart.
bool study_tiers(const struct study *study)
{
    const struct options *options = &study->options;
    struct tiers *t = calloc(1, sizeof *t);
    if (!t)
        return false;
    t->study = study;
    t->shape = model_shape_of(options->full);
    t->prompt = options->prompt ? options->prompt : options->full ? 16384 : 256;
    const bool ok = first_tokens(t) &&
                    decode_beside(t, "on", "decode while blocks move, on a queue of their own") &&
                    decode_beside(t, "off", "decode while blocks move, among the runs");
    free(t);
    return ok;
}
