// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// share.c - study "share": eight workers whose prompts begin alike. With a daemon and a cache each,
// as processes that share nothing but the GPU; with one daemon and a cache each; with one cache for
// all, one worker first or all at the same instant; and as one process that does everything. The
// ratios are those of one run. Outputs have the same bits in all cases.

#include "tools/bench/quantile.h"
#include "tools/bench/study/study.h"
#include "tools/bench/wrong.h"
#include "worker.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum manner { OWN_DAEMONS, OWN_CACHES, ONE_FIRST, ALL_AT_ONCE, ONE_PROCESS, NUM_MANNERS };

static const char *const names[] = {
    [OWN_DAEMONS] = "eight processes, a daemon each",
    [OWN_CACHES] = "eight processes, a cache each",
    [ONE_FIRST] = "eight processes, one starts first",
    [ALL_AT_ONCE] = "eight processes, all start at once",
    [ONE_PROCESS] = "one process",
};

// Cases take turns. The first round warms up: it compiles the pipelines.
enum { ROUNDS = 4 };

struct share {
    const struct study *study;
    struct fleet fleet;
    struct fleet own[SHARE_WORKERS]; // of OWN_DAEMONS
    struct share_shape shape;
    uint32_t round; // each round has caches of its own
};

// What a decode step is made of, as the mean of the workers.
struct parts {
    double gpu_us;   // of the dispatches that it was in
    double sessions; // in such a dispatch
    double make_us;  // to make the step
};

// What the workers of a case have said.
struct outcome {
    double first_us;  // until the slowest worker's first token; ONE_FIRST: but the first worker's
    double decode_us; // of the slowest worker
    struct parts parts;
    uint64_t computed; // prompt tokens
    uint64_t blocks;   // of K and V: of the prompts
    uint64_t decoded;  // and with what was decoded
    uint64_t hash;     // of all outputs
};

static bool has_own_caches(enum manner manner)
{
    return manner == OWN_DAEMONS || manner == OWN_CACHES;
}

static uint32_t num_workers(enum manner manner)
{
    return manner == ONE_PROCESS ? 1 : SHARE_WORKERS;
}

// ---- workers ----

static bool start(const struct share *s, enum manner manner, uint32_t part, struct process *process)
{
    char self[4096], number[16], clients[16], prompt[16], cache[32];
    snprintf(number, sizeof number, "%u", part);
    snprintf(clients, sizeof clients, "%u", num_workers(manner));
    snprintf(prompt, sizeof prompt, "%u", s->shape.prompt);
    snprintf(cache, sizeof cache, "share %u %d %u", s->round, (int)manner,
             has_own_caches(manner) ? part : 0);
    const char *argv[] = {self,
                          "client",
                          "share",
                          "--socket",
                          manner == OWN_DAEMONS ? s->own[part].socket : s->fleet.socket,
                          "--part",
                          number,
                          "--clients",
                          clients,
                          "--prompt",
                          prompt,
                          "--cache",
                          cache,
                          NULL,
                          NULL,
                          NULL};
    int n = sizeof argv / sizeof *argv - 3;
    if (s->study->options.full)
        argv[n++] = "--full";
    if (s->study->options.whole_steps)
        argv[n++] = "--whole-steps";
    return process_find("aule-bench", self, sizeof self) && process_start(process, argv);
}

static bool tell(struct process *process, const char *line)
{
    return fputs(line, process->in) >= 0 && fflush(process->in) == 0;
}

static bool hear(struct process *process, const char *word, double *number, uint64_t *count,
                 struct parts *parts)
{
    char line[256], said[32];
    return fgets(line, sizeof line, process->out) &&
           sscanf(line, "%31s %lf %" SCNu64 " %lf %lf %lf", said, number, count, &parts->gpu_us,
                  &parts->sessions, &parts->make_us) >= 2 &&
           strcmp(said, word) == 0;
}

static bool hear_ready(struct process *process)
{
    char line[32];
    return fgets(line, sizeof line, process->out) && strcmp(line, "ready\n") == 0;
}

static void add_part(struct parts *mean, const struct parts *parts, uint32_t count)
{
    mean->gpu_us += parts->gpu_us / count;
    mean->sessions += parts->sessions / count;
    mean->make_us += parts->make_us / count;
}

// Tells workers [first, end) and waits for their answers. *slowest and *sum are of all answers.
// `mean` may be NULL.
static bool ask(struct process *workers, uint32_t first, uint32_t end, const char *what,
                const char *word, double *slowest, uint64_t *sum, struct parts *mean)
{
    char line[32];
    snprintf(line, sizeof line, "%s\n", what);
    for (uint32_t i = first; i < end; i++)
        if (!tell(&workers[i], line))
            return false;
    *slowest = 0;
    for (uint32_t i = first; i < end; i++) {
        double number;
        uint64_t count = 0;
        struct parts parts = {0};
        if (!hear(&workers[i], word, &number, &count, &parts))
            return false;
        *slowest = fmax(*slowest, number);
        *sum += count;
        if (mean)
            add_part(mean, &parts, end - first);
    }
    return true;
}

static bool ask_blocks(struct process *workers, enum manner manner, uint64_t *sum)
{
    uint32_t caches = has_own_caches(manner) ? SHARE_WORKERS : 1;
    for (uint32_t i = 0; i < caches; i++) {
        double blocks;
        uint64_t none = 0;
        if (!ask(workers, i, i + 1, "blocks", "blocks", &blocks, &none, NULL))
            return false;
        *sum += (uint64_t)blocks;
    }
    return true;
}

static bool converse(struct process *workers, enum manner manner, struct outcome *outcome)
{
    uint32_t count = num_workers(manner), first = manner == ONE_FIRST;
    double ignored;
    for (uint32_t i = 0; i < count; i++)
        if (!hear_ready(&workers[i]))
            return false;
    return (!first ||
            ask(workers, 0, 1, "prefill", "prefilled", &ignored, &outcome->computed, NULL)) &&
           ask(workers, first, count, "prefill", "prefilled", &outcome->first_us,
               &outcome->computed, NULL) &&
           ask_blocks(workers, manner, &outcome->blocks) &&
           ask(workers, 0, count, "decode", "decoded", &outcome->decode_us, &outcome->hash,
               &outcome->parts) &&
           ask_blocks(workers, manner, &outcome->decoded);
}

static bool run_manner(const struct share *s, enum manner manner, struct outcome *outcome)
{
    struct process workers[SHARE_WORKERS] = {{0}};
    uint32_t count = num_workers(manner);
    bool ok = true;
    *outcome = (struct outcome){0};
    for (uint32_t i = 0; ok && i < count; i++)
        ok = start(s, manner, i, &workers[i]);
    ok = ok && converse(workers, manner, outcome);
    for (uint32_t i = 0; i < count; i++)
        ok &= process_end(&workers[i], !ok) == 0;
    if (!ok)
        fprintf(stderr, "aule-bench: share: %s: a worker failed\n", names[manner]);
    return ok;
}

// ---- figures ----

static bool say(const struct share *s, enum manner manner, const struct outcome *outcomes)
{
    const struct outcome *o = &outcomes[manner], *own = &outcomes[OWN_DAEMONS],
                         *caches = &outcomes[OWN_CACHES], *one = &outcomes[ONE_PROCESS];
    struct figure figure = study_figure(s->study, "ring", NULL, 0);
    double tokens = (double)s->shape.steps * SHARE_WORKERS;
    figure.dtype = "f16";
    figure.checked = o->hash == own->hash;
    figure.times = (struct times){.median_us = o->decode_us / s->shape.steps,
                                  .p99_us = o->decode_us / s->shape.steps,
                                  .runs = s->shape.steps * s->shape.model.layers};
    snprintf(figure.name, sizeof figure.name, "%s", names[manner]);
    figure_add_given(&figure, "prompt", s->shape.prompt, "common tokens");
    figure_add_given(&figure, "layers", s->shape.model.layers, "layers");
    figure_add_given(&figure, "whole_steps", s->study->options.whole_steps, "");
    figure_add(&figure, "first_token_us", o->first_us, "us");
    figure_add(&figure, "first_token_ratio", o->first_us / own->first_us, "x");
    figure_add(&figure, "first_token_over_caches", o->first_us / caches->first_us, "x");
    figure_add_given(&figure, "prefilled", (double)o->computed, "tokens");
    figure_add_given(&figure, "prefilled_ratio", (double)o->computed / (double)own->computed, "");
    figure_add_given(&figure, "kv_ratio", (double)o->blocks / (double)own->blocks, "");
    figure_add_given(&figure, "kv_decoded_ratio", (double)o->decoded / (double)own->decoded, "");
    figure_add(&figure, "decode_tokens_per_s", tokens / o->decode_us * 1e6, "/s");
    figure_add(&figure, "decode_over_own", own->decode_us / o->decode_us, "x");
    figure_add(&figure, "decode_over_caches", caches->decode_us / o->decode_us, "x");
    figure_add(&figure, "decode_over_one", one->decode_us / o->decode_us, "x");
    figure_add(&figure, "decode_gpu_us", o->parts.gpu_us, "us");
    figure_add(&figure, "decode_sessions", o->parts.sessions, "sessions");
    figure_add(&figure, "decode_make_us", o->parts.make_us, "us");
    if (!figure.checked)
        wrong_note();
    return study_say(s->study, &figure);
}

// The median of a field of all rounds' outcomes but the first.
static double median_of(const struct outcome *rounds, size_t field)
{
    double numbers[ROUNDS - 1];
    for (int i = 1; i < ROUNDS; i++)
        numbers[i - 1] = *(const double *)((const char *)&rounds[i] + field);
    return quantile_median(numbers, ROUNDS - 1);
}

// Checked: the outputs and counts are those of every round.
static bool sum_up(const struct outcome *rounds, struct outcome *all)
{
    bool same = true;
    *all = rounds[0];
    for (int i = 1; i < ROUNDS; i++)
        same &= rounds[i].hash == all->hash && rounds[i].computed == all->computed;
    all->first_us = median_of(rounds, offsetof(struct outcome, first_us));
    all->decode_us = median_of(rounds, offsetof(struct outcome, decode_us));
    all->parts.gpu_us = median_of(rounds, offsetof(struct outcome, parts.gpu_us));
    all->parts.sessions = median_of(rounds, offsetof(struct outcome, parts.sessions));
    all->parts.make_us = median_of(rounds, offsetof(struct outcome, parts.make_us));
    return same;
}

// The daemons live through all rounds, so that the first round warms them up, too. They and the one
// daemon divide the memory that the device has.
static bool open_daemons(struct share *s)
{
    bool ok = fleet_open_part(&s->fleet, &s->study->options, false, "0.5");
    for (int i = 0; ok && i < SHARE_WORKERS; i++)
        ok = fleet_open_part(&s->own[i], &s->study->options, false, "0.045");
    return ok;
}

static void close_daemons(struct share *s)
{
    fleet_close(&s->fleet);
    for (int i = 0; i < SHARE_WORKERS; i++)
        fleet_close(&s->own[i]);
}

bool study_share(const struct study *study)
{
    struct share share = {
        .study = study,
        .shape = share_shape_of(study->options.full, study->options.prompt),
    };
    struct outcome rounds[NUM_MANNERS][ROUNDS], outcomes[NUM_MANNERS];
    bool ok = open_daemons(&share);
    for (share.round = 0; ok && share.round < ROUNDS; share.round++)
        for (int manner = 0; ok && manner < NUM_MANNERS; manner++)
            ok = run_manner(&share, (enum manner)manner, &rounds[manner][share.round]);
    bool right = ok;
    for (int manner = 0; ok && manner < NUM_MANNERS; manner++)
        right &= sum_up(rounds[manner], &outcomes[manner]);
    if (ok && !right) {
        fprintf(stderr, "aule-bench: share: two rounds computed different tokens or outputs\n");
        wrong_note();
    }
    for (int manner = 0; ok && manner < NUM_MANNERS; manner++)
        right &= say(&share, (enum manner)manner, outcomes);
    close_daemons(&share);
    return right;
}
