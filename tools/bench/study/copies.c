// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// copies.c - study "copies": what it costs that q, out and the new K and V lie in shared memory
// instead of device memory. In shared memory the GPU uses them in place, over the bus, or the
// engine copies them. Each way runs one layer at a time, and several layers at once, where compute
// can hide the copies.

#include "player.h"
#include "study.h"

#include <math.h>
#include <stdio.h>

enum {
    LAYERS = 8,
    LEAST_TRIPS = 3,
    NUM_PLACES = 3,
    NUM_WAYS = 2,
    NUM_PLAYERS = NUM_PLACES * NUM_WAYS
};
enum place { ON_DEVICE, IN_PLACE, STAGED };

static const char *const place_names[NUM_PLACES] = {"in device memory", "shared memory in place",
                                                    "shared memory, staged"};

struct copies {
    const struct study *study;
    struct subject subject;
    struct engine *engines[NUM_PLACES];
    struct world worlds[NUM_PLACES];
    struct verdict verdicts[NUM_PLACES];
};

static bool open_place(struct copies *c, enum place place)
{
    struct options options = c->study->options;
    const struct world_params params = {
        .dtype = options.dtype,
        .kv_dtype = options.dtype,
        .layers = LAYERS,
        .host = place != ON_DEVICE,
        .append = true,
    };
    options.force_staging = place == STAGED;
    c->engines[place] = world_engine(&options);
    return c->engines[place] &&
           world_open(&c->worlds[place], c->engines[place], c->subject.workload, &params);
}

static bool check(struct copies *c, struct player *player, enum place place)
{
    double wall_us;
    bool ok = world_poison(&c->worlds[place]) && player_trip(player, &wall_us);
    for (uint32_t set = 0; ok && set < LAYERS; set += LAYERS - 1) {
        struct verdict now = {0};
        ok = world_look(&c->worlds[place], set, &now);
        c->verdicts[place].num_rows += now.num_rows;
        c->verdicts[place].worst = fmax(c->verdicts[place].worst, now.worst);
    }
    return ok;
}

// Times are for one layer. `hidden` is the part of a lone layer's copying that several layers at
// once do not pay.
static bool say(const struct copies *c, const struct times *times, uint32_t i)
{
    enum place place = (enum place)(i / NUM_WAYS);
    bool chained = i % NUM_WAYS == 0;
    const struct times *base = &times[i % NUM_WAYS];
    struct figure figure = study_figure(c->study, "engine", c->subject.workload, 1);
    figure.times = times[i];
    figure.times.median_us /= LAYERS;
    figure.times.p99_us /= LAYERS;
    figure.verdict = c->verdicts[place];
    figure.checked = true;
    snprintf(figure.name, sizeof figure.name, "%s, %s, %s", c->subject.name, place_names[place],
             chained ? "8 layers at once" : "layer by layer");
    figure_add_given(&figure, "layers", LAYERS, "");
    if (place != ON_DEVICE) {
        double alone = times[i + 1 - i % NUM_WAYS].median_us - times[1].median_us,
               extra = times[i].median_us - base->median_us;
        figure_add(&figure, "extra_us", extra / LAYERS, "us a layer");
        figure_add(&figure, "ratio", times[i].median_us / base->median_us, "x");
        if (chained && alone > 0)
            figure_add(&figure, "hidden", 1 - extra / alone, "of it");
    }
    return study_say(c->study, &figure);
}

static bool measure_places(struct copies *c)
{
    struct player players[NUM_PLAYERS] = {0};
    struct times times[NUM_PLAYERS];
    bool ok = true;
    for (uint32_t i = 0; i < NUM_PLAYERS; i++)
        players[i] = (struct player){.lane = world_lane(&c->worlds[i / NUM_WAYS]),
                                     .runs = LAYERS,
                                     .apart = i % NUM_WAYS == 1};
    for (uint32_t i = 0; ok && i < NUM_PLAYERS; i++)
        ok = check(c, &players[i], (enum place)(i / NUM_WAYS));
    if (ok && !c->study->options.check)
        ok = players_measure(players, NUM_PLAYERS, c->study->options.seconds * NUM_WAYS,
                             LEAST_TRIPS);
    for (uint32_t i = 0; ok && i < NUM_PLAYERS; i++)
        ok = check(c, &players[i], (enum place)(i / NUM_WAYS));
    for (uint32_t i = 0; i < NUM_PLAYERS; i++)
        samples_times(&players[i].samples, true, &times[i]);
    for (uint32_t i = 0; ok && i < NUM_PLAYERS; i++)
        ok = say(c, times, i);
    players_finish(players, NUM_PLAYERS);
    return ok;
}

bool study_copies(const struct study *study)
{
    struct copies copies = {.study = study};
    bool ok = study_subject(study, "D1", "decode:8x64", &copies.subject);
    for (int place = 0; ok && place < NUM_PLACES; place++)
        ok = open_place(&copies, (enum place)place);
    ok = ok && measure_places(&copies);
    for (int place = 0; place < NUM_PLACES; place++) {
        if (copies.worlds[place].engine)
            world_close(&copies.worlds[place]);
        engine_destroy(copies.engines[place]);
    }
    subject_finish(&copies.subject);
    return ok;
}
