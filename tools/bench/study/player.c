// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// player.c - see player.h.

#include "player.h"

enum { TURN_US = 50000, WARM_US = 2000, MOST_RUNS = 64 };

static bool go(struct player *p, uint32_t set, uint32_t count)
{
    uint64_t gpu_ns[MOST_RUNS];
    return p->lane.run(p->lane.context, set, count, gpu_ns);
}

bool player_trip(struct player *p, double *wall_us)
{
    double begin = now_us();
    bool ok = true;
    if (!p->apart)
        ok = go(p, 0, p->runs);
    for (uint32_t i = 0; ok && p->apart && i < p->runs; i++)
        ok = go(p, i, 1);
    *wall_us = now_us() - begin;
    return ok;
}

static bool play(struct player *p)
{
    double begin = now_us(), wall_us;
    do {
        if (!player_trip(p, &wall_us))
            return false;
    } while (now_us() < begin + WARM_US);
    do {
        if (!player_trip(p, &wall_us) || !samples_add(&p->samples, 0, wall_us))
            return false;
        p->samples.elapsed_us += wall_us;
    } while (now_us() < begin + TURN_US);
    return true;
}

static bool all_have(const struct player *players, uint32_t count, uint32_t least)
{
    for (uint32_t i = 0; i < count; i++) {
        if (players[i].samples.count < least)
            return false;
    }
    return true;
}

bool players_measure(struct player *players, uint32_t count, double seconds, uint32_t least)
{
    double end = now_us() + seconds * 1e6;
    while (now_us() < end || !all_have(players, count, least)) {
        for (uint32_t i = 0; i < count; i++)
            if (!play(&players[i]))
                return false;
    }
    return true;
}

void players_finish(struct player *players, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        samples_finish(&players[i].samples);
}
