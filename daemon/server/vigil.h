// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// vigil.h - when the end of work is worth being awake for. A thread that sleeps is woken some twenty to fifty microseconds late; so whoever
// waits for work whose like was seen before sleeps until shortly before its end, looks for a bounded time, and then sleeps until he is
// woken. For each piece of work he looks once, for spin_ns at the most, or three times that where he has kept something back (below); with
// no work, or of a kind that nobody knows, not at all. Knows numbers only: no clock, no GPU, no ring. Dispatcher thread.
//
// It also says how long what is to follow that work may be kept back: until the end is so near that preparing it for the GPU may take all
// that is left, by what that took of late. Who has kept something back until then looks from there on, unless that is long before the end.

#ifndef AULE_SERVER_VIGIL_H
#define AULE_SERVER_VIGIL_H

#include <stdbool.h>
#include <stdint.h>

enum { VIGIL_KINDS = 64 }; // that are remembered; two that meet in a place forget each other

struct vigil {
    int64_t spin_ns;                    // 0 = never looks
    int64_t late_ns;                    // that a sleep is too long, of late
    uint64_t work;                      // the number of that which ends next; 0 = there is none
    uint64_t kind;                      // works of one kind take about as long
    int64_t begun_ns;                   // it, or what it stood behind ended
    int64_t end_ns;                     // when its end is expected; 0 = nobody knows
    int64_t looks_until_ns;             // 0 = has not begun to look for it
    bool could_sleep;                   // before the look for it
    int64_t prepares_ns;                // that what follows needs until the GPU has it, of late
    int64_t keep_until_ns;              // at most; 0 = nothing was kept back behind this work
    bool keeps;                         // something is kept back now
    uint64_t found_awake, found_asleep; // ends
    struct vigil_kind {
        uint64_t kind;
        int64_t took_ns; // 0 = none
    } kinds[VIGIL_KINDS];
};

// What ends next is another one, `work`, since the last one ended (0: there was none before, or is none now). `asleep`: that was found out
// by being woken.
void vigil_next(struct vigil *vigil, uint64_t work, uint64_t kind, int64_t now_ns, bool asleep);

// True: look, and ask again. False: sleep, but not beyond *until_ns (INT64_MAX: for ever).
bool vigil_looks(struct vigil *vigil, int64_t now_ns, int64_t *until_ns);

// True: what is to follow is kept back, and vigil_looks() ends the sleep in time, unless it is let go before.
bool vigil_keep_back(struct vigil *vigil, int64_t now_ns);
void vigil_let_go(struct vigil *vigil);

// What ended last had needed so long until the GPU had it.
void vigil_prepared(struct vigil *vigil, int64_t took_ns);

// A sleep that was to end at `until_ns` has ended.
void vigil_slept(struct vigil *vigil, int64_t until_ns, int64_t now_ns);

#endif
