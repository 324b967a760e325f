// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// player.h - round trips on several lanes that take turns, so that changes meanwhile (clocks, other
// load) affect all lanes alike.

#ifndef AULE_BENCH_PLAYER_H
#define AULE_BENCH_PLAYER_H

#include "tools/bench/measure.h"

struct player {
    struct lane lane; // one that runs
    uint32_t runs;    // of a round trip: steps over sets 0, 1, ...
    bool apart; // each run is waited for before the next is submitted; else all are submitted at
                // once and waited for once
    struct samples samples; // a sample for each round trip, from submission to end, by this side's
                            // clock
};

// Lanes take turns of some 50 ms. The first trips of a turn do not count, because the GPU may
// switch between processes. Runs for about `seconds`, and until each lane has `least` trips. False:
// standard error says why. players_finish() takes zeroed players.
bool players_measure(struct player *players, uint32_t count, double seconds, uint32_t least);
bool player_trip(struct player *player, double *wall_us);
void players_finish(struct player *players, uint32_t count);

#endif
