// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// player.h - round trips of several lanes that take turns, so that what changes meanwhile (clocks,
// other load) changes for all of them.

#ifndef AULE_BENCH_PLAYER_H
#define AULE_BENCH_PLAYER_H

#include "measure.h"

struct player {
    struct lane lane; // one that runs
    uint32_t runs;    // of a round trip: steps over sets 0, 1, ...
    bool apart; // each is waited for before the next is submitted; else all go out together and are
                // waited for once
    struct samples samples; // a round trip each, from submission to end, by this side's clock
};

// In turns of some 50 ms, of which the first trips do not count (the GPU may have changed its
// owner), for about `seconds`, and until each has `least` trips. False: standard error says why.
// players_finish() takes zeroed ones.
bool players_measure(struct player *players, uint32_t count, double seconds, uint32_t least);
bool player_trip(struct player *player, double *wall_us);
void players_finish(struct player *players, uint32_t count);

#endif
