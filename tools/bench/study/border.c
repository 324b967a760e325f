// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// border.c - study "border": the same round trips through each lane of a daemon, and on an engine
// in this process, which imports its memory as the daemon imports a client's. The places take turns
// of some 50 ms, so that changes meanwhile (clocks, other load) affect all alike. Then each lane
// runs alone for a while, and the daemon says whether it was awake when the GPU finished.

#include "study.h"
#include "tools/bench/rig/caller.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_TRIPS = 3, TURN_US = 50000, WARM_US = 2000, ALONE_US = 100000 };
enum { IN_PROCESS, NUM_PLACES = 3 };

static const enum via places[NUM_PLACES] = {VIA_ENGINE, VIA_RING, VIA_NNG};

struct border {
    const struct study *study;
    struct subject subject;
    struct rig rig;
    struct aule_monitor *monitor;
    struct engine *engine;
    struct world world;
    struct place {
        struct caller caller; // not of IN_PROCESS
        struct lane lane;
        struct samples samples; // a round trip each, by this side's clock
        struct times times;
        struct verdict verdict;
        double asleep; // the share of ends that had to wake the daemon
    } places[NUM_PLACES];
};

// ---- the places ----

static bool open_world(struct border *b)
{
    const struct world_params params = {.dtype = b->study->options.dtype,
                                        .kv_dtype = b->study->options.dtype,
                                        .host = true,
                                        .append = true};
    b->engine = world_engine(&b->study->options);
    if (!b->engine || !world_open(&b->world, b->engine, b->subject.workload, &params))
        return false;
    b->places[IN_PROCESS].lane = world_lane(&b->world);
    return true;
}

static bool open_caller(struct border *b, uint32_t i)
{
    const struct caller_params params = {.socket = b->rig.socket,
                                         .lane = via_name(places[i]),
                                         .workload = b->subject.workload,
                                         .dtype = b->study->options.dtype,
                                         .kv_dtype = b->study->options.dtype,
                                         .count = workload_num_seqs(b->subject.workload),
                                         .append = true};
    const bool ok = caller_open(&b->places[i].caller, &params);
    b->places[i].lane = caller_lane(&b->places[i].caller);
    return ok;
}

static bool asked(enum aule_status status)
{
    if (status != AULE_OK)
        fprintf(stderr, "aule-bench: %s\n", aule_error());
    return status == AULE_OK;
}

static bool border_open(struct border *b)
{
    bool ok = study_subject(b->study, "decode:1x16", NULL, &b->subject) &&
              rig_daemon(&b->rig, &b->study->options, NULL) &&
              asked(aule_monitor_open(b->rig.socket, 0, &b->monitor)) && open_world(b);
    for (uint32_t i = IN_PROCESS + 1; ok && i < NUM_PLACES; i++)
        ok = open_caller(b, i);
    return ok;
}

static void border_close(struct border *b)
{
    for (uint32_t i = 0; i < NUM_PLACES; i++) {
        caller_close(&b->places[i].caller);
        samples_finish(&b->places[i].samples);
    }
    aule_monitor_close(b->monitor);
    rig_close(&b->rig);
    if (b->world.engine)
        world_close(&b->world);
    engine_destroy(b->engine);
    subject_finish(&b->subject);
}

// ---- round trips ----

static bool trip(struct place *p, double *wall_us)
{
    uint64_t gpu_ns;
    const double begin = now_us();
    const bool ok = p->lane.run(p->lane.context, 0, 1, &gpu_ns);
    *wall_us = now_us() - begin;
    return ok;
}

static bool check(struct border *b, struct place *p)
{
    struct verdict now = {0};
    const bool ok = p == &b->places[IN_PROCESS] ? world_check(&b->world, 0, &now)
                                                : caller_check(&p->caller, 0, &now);
    p->verdict.num_rows += now.num_rows;
    p->verdict.worst = fmax(p->verdict.worst, now.worst);
    return ok;
}

// The first trips do not count, because the GPU may switch between processes.
static bool take_turn(struct place *p)
{
    const double begin = now_us();
    double wall_us;
    do {
        if (!trip(p, &wall_us))
            return false;
    } while (now_us() < begin + WARM_US);
    do {
        if (!trip(p, &wall_us) || !samples_add(&p->samples, 0, wall_us))
            return false;
        p->samples.elapsed_us += wall_us;
    } while (now_us() < begin + TURN_US || p->samples.count < LEAST_TRIPS);
    return true;
}

static bool ask_ends(struct border *b, double *awake, double *asleep)
{
    struct aule_metric *metrics = NULL;
    uint32_t count = 0;
    const bool ok = asked(aule_monitor_metrics(b->monitor, &metrics, &count));
    *awake = *asleep = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(metrics[i].name, "aule_gpu_ends_total{daemon=\"awake\"}") == 0)
            *awake = (double)metrics[i].value;
        if (strcmp(metrics[i].name, "aule_gpu_ends_total{daemon=\"asleep\"}") == 0)
            *asleep = (double)metrics[i].value;
    }
    free(metrics);
    return ok;
}

// NaN: there was no submission.
static bool count_asleep(struct border *b, struct place *p)
{
    double awake[2], asleep[2], wall_us, end = now_us() + ALONE_US;
    bool ok = ask_ends(b, &awake[0], &asleep[0]);
    for (int i = 0; ok && (i < LEAST_TRIPS || now_us() < end); i++)
        ok = trip(p, &wall_us);
    ok = ok && ask_ends(b, &awake[1], &asleep[1]);
    p->asleep = ok ? (asleep[1] - asleep[0]) / (asleep[1] - asleep[0] + awake[1] - awake[0]) : NAN;
    return ok;
}

// Prints a place: its times, and what they are above those of the engine in this process.
static bool say(struct border *b, uint32_t i)
{
    const struct place *p = &b->places[i];
    const struct times *base = &b->places[IN_PROCESS].times;
    struct figure figure = study_figure(b->study, via_name(places[i]), b->subject.workload, 1);
    figure.times = p->times;
    figure.verdict = p->verdict;
    figure.checked = true;
    snprintf(figure.name, sizeof figure.name, "%s by %s", b->subject.name,
             i == IN_PROCESS ? "an engine of its own" : via_name(places[i]));
    if (i != IN_PROCESS) {
        figure_add(&figure, "extra_us", p->times.median_us - base->median_us, "us");
        figure_add(&figure, "extra_p99_us", p->times.p99_us - base->p99_us, "us");
        figure_add(&figure, "ratio", p->times.median_us / base->median_us, "x");
        figure_add(&figure, "asleep", p->asleep, "of the ends");
    }
    return study_say(b->study, &figure);
}

static bool measure_all(struct border *b)
{
    const double end = now_us() + b->study->options.seconds * 1e6;
    bool ok = true;
    do {
        for (uint32_t i = 0; ok && i < NUM_PLACES; i++)
            ok = take_turn(&b->places[i]);
    } while (ok && now_us() < end);
    for (uint32_t i = IN_PROCESS + 1; ok && i < NUM_PLACES; i++)
        ok = count_asleep(b, &b->places[i]);
    for (uint32_t i = 0; i < NUM_PLACES; i++)
        samples_times(&b->places[i].samples, true, &b->places[i].times);
    return ok;
}

bool study_border(const struct study *study)
{
    struct border border = {.study = study};
    bool ok = border_open(&border);
    for (uint32_t i = 0; ok && i < NUM_PLACES; i++)
        ok = check(&border, &border.places[i]);
    ok = ok && (study->options.check || measure_all(&border));
    for (uint32_t i = 0; ok && i < NUM_PLACES; i++)
        ok = check(&border, &border.places[i]);
    for (uint32_t i = 0; ok && i < NUM_PLACES; i++)
        ok = say(&border, i);
    border_close(&border);
    return ok;
}
