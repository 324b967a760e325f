// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// border.c - studies "border" and "step": the same round trips through each lane of a daemon, and
// on an engine in this process. That engine imports its memory as the daemon imports a client's.
// The places take turns. Then each lane runs alone for a while, and the daemon says whether it was
// awake when the GPU finished.

#include "player.h"
#include "study.h"
#include "tools/bench/fleet/caller.h"

#include <math.h>
#include <stdio.h>

static const double asleep_us = 100000; // how long each lane runs alone

enum {
    LEAST_TRIPS = 3,
    IN_PROCESS = 0,
    NUM_PLACES = 3,
    NUM_WAYS = 2,
    NUM_PLAYERS = NUM_PLACES * NUM_WAYS
};

static const enum via places[NUM_PLACES] = {VIA_ENGINE, VIA_RING, VIA_NNG};

struct border {
    const struct study *study;
    struct subject subject;
    uint32_t layers;
    struct fleet fleet;
    struct aule_monitor *monitor;
    struct engine *engine;
    struct world world;
    struct caller callers[NUM_PLACES]; // [0] is not used: it is the engine in this process
    struct verdict verdicts[NUM_PLACES];
};

static bool open_world(struct border *b)
{
    const struct world_params params = {
        .dtype = b->study->options.dtype,
        .kv_dtype = b->study->options.dtype,
        .layers = b->layers,
        .host = true,
        .append = true,
    };
    b->engine = world_engine(&b->study->options);
    return b->engine && world_open(&b->world, b->engine, b->subject.workload, &params);
}

static bool open_caller(struct border *b, uint32_t place)
{
    const struct caller_params params = {
        .socket = b->fleet.socket,
        .lane = via_name(places[place]),
        .workload = b->subject.workload,
        .dtype = b->study->options.dtype,
        .kv_dtype = b->study->options.dtype,
        .count = workload_num_seqs(b->subject.workload),
        .layers = b->layers,
        .append = true,
    };
    return caller_open(&b->callers[place], &params);
}

static bool open_monitor(struct border *b)
{
    if (aule_monitor_open(b->fleet.socket, 0, &b->monitor) == AULE_OK)
        return true;
    fprintf(stderr, "aule-bench: %s\n", aule_error());
    return false;
}

static bool border_open(struct border *b)
{
    bool ok = study_fleet(b->study, &b->fleet) && open_monitor(b) && open_world(b);
    for (uint32_t place = IN_PROCESS + 1; ok && place < NUM_PLACES; place++)
        ok = open_caller(b, place);
    return ok;
}

static void border_close(struct border *b)
{
    for (uint32_t place = IN_PROCESS + 1; place < NUM_PLACES; place++)
        caller_close(&b->callers[place]);
    aule_monitor_close(b->monitor);
    fleet_close(&b->fleet);
    if (b->world.engine)
        world_close(&b->world);
    engine_destroy(b->engine);
}

static struct lane lane_of(struct border *b, uint32_t place)
{
    return place == IN_PROCESS ? world_lane(&b->world) : caller_lane(&b->callers[place]);
}

static bool poison(struct border *b, uint32_t place)
{
    return place == IN_PROCESS ? world_poison(&b->world) : caller_poison(&b->callers[place]);
}

static bool look(struct border *b, uint32_t place, uint32_t set, struct verdict *verdict)
{
    return place == IN_PROCESS ? world_look(&b->world, set, verdict)
                               : caller_look(&b->callers[place], set, verdict);
}

// One more trip over all layers; checks one of them.
static bool check(struct border *b, struct player *player, uint32_t place, uint32_t layer)
{
    struct verdict now = {0};
    double wall_us;
    bool ok = poison(b, place) && player_trip(player, &wall_us) && look(b, place, layer, &now);
    b->verdicts[place].num_rows += now.num_rows;
    b->verdicts[place].worst = fmax(b->verdicts[place].worst, now.worst);
    return ok;
}

static bool ask_ends(struct border *b, double *awake, double *asleep)
{
    struct aule_daemon_state state;
    if (aule_monitor_daemon(b->monitor, &state) != AULE_OK) {
        fprintf(stderr, "aule-bench: %s\n", aule_error());
        return false;
    }
    *awake = (double)state.ends_awake;
    *asleep = (double)state.ends_asleep;
    return true;
}

// *share: how many of the submissions of the player's trips had to wake the daemon when they ended;
// NaN: there was none.
static bool count_asleep(struct border *b, struct player *player, double *share)
{
    double awake[2], asleep[2], wall_us, end = now_us() + asleep_us;
    bool ok = ask_ends(b, &awake[0], &asleep[0]);
    for (int i = 0; ok && (i < LEAST_TRIPS || now_us() < end); i++)
        ok = player_trip(player, &wall_us);
    ok = ok && ask_ends(b, &awake[1], &asleep[1]);
    *share = ok ? (asleep[1] - asleep[0]) / (asleep[1] - asleep[0] + awake[1] - awake[0]) : NAN;
    return ok;
}

// Prints a case: its times, and what they are above those of the engine in this process.
static bool say(struct border *b, const struct player *players, const struct times *times,
                const double *asleep, uint32_t i, uint32_t ways)
{
    static const char *const how[] = {", one submission", ", each layer waited for"};
    uint32_t place = i / ways;
    const struct times *base = &times[i % ways];
    struct figure figure =
        study_figure(b->study, via_name(places[place]), b->subject.workload, players[i].runs);
    figure.times = times[i];
    figure.verdict = b->verdicts[place];
    figure.checked = true;
    snprintf(figure.name, sizeof figure.name, "%s%s by %s", b->subject.name,
             ways > 1 ? how[i % ways] : "",
             place == IN_PROCESS ? "an engine of its own" : via_name(places[place]));
    figure_add_given(&figure, "layers", b->layers, "");
    if (place != IN_PROCESS) {
        figure_add(&figure, "extra_us", times[i].median_us - base->median_us, "us");
        figure_add(&figure, "extra_p99_us", times[i].p99_us - base->p99_us, "us");
        figure_add(&figure, "ratio", times[i].median_us / base->median_us, "x");
        figure_add(&figure, "asleep", asleep[i], "of the ends");
    }
    return study_say(b->study, &figure);
}

static bool measure_ways(struct border *b, uint32_t ways)
{
    struct player players[NUM_PLAYERS] = {0};
    struct times times[NUM_PLAYERS];
    double asleep[NUM_PLAYERS] = {0};
    uint32_t count = NUM_PLACES * ways;
    bool ok = true;
    for (uint32_t i = 0; i < count; i++)
        players[i] = (struct player){
            .lane = lane_of(b, i / ways), .runs = b->layers, .apart = i % ways == 1};
    for (uint32_t i = 0; ok && i < count; i++)
        ok = check(b, &players[i], i / ways, 0);
    if (ok && !b->study->options.check)
        ok = players_measure(players, count, b->study->options.seconds * ways, LEAST_TRIPS);
    for (uint32_t i = ways; ok && i < count && !b->study->options.check; i++)
        ok = count_asleep(b, &players[i], &asleep[i]);
    for (uint32_t i = 0; ok && i < count; i++)
        ok = check(b, &players[i], i / ways, b->layers - 1);
    for (uint32_t i = 0; i < count; i++)
        samples_times(&players[i].samples, true, &times[i]);
    for (uint32_t i = 0; ok && i < count; i++)
        ok = say(b, players, times, asleep, i, ways);
    players_finish(players, count);
    return ok;
}

static bool measure_subject(const struct study *study, const char *name, const char *smaller,
                            uint32_t layers, uint32_t ways)
{
    struct border border = {.study = study, .layers = layers};
    bool ok = study_subject(study, name, smaller, &border.subject);
    if (ok) {
        enum dtype dtype = study->options.dtype;
        double each = NUM_PLACES * workload_bytes(border.subject.workload, dtype, dtype);
        while (border.layers > 1 && each * border.layers > 0.8 * (double)study->heap_bytes)
            border.layers /= 2;
        ok = border_open(&border) && measure_ways(&border, ways);
        border_close(&border);
    }
    subject_finish(&border.subject);
    return ok;
}

bool study_border(const struct study *study)
{
    return measure_subject(study, "decode:1x16", NULL, 1, 1);
}

bool study_step(const struct study *study)
{
    const uint32_t layers = study->software ? 8 : 32;
    return measure_subject(study, "D1", "decode:8x128", layers, NUM_WAYS) &
           measure_subject(study, "D5", "decode:2x64", layers, NUM_WAYS);
}
