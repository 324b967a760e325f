// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// speed.h - how long work of each kind takes on this device, and into how many slices a layer of a
// run is cut, so that other sessions' runs find a place between them. Learns from layers that have
// ended. Knows no queue and no engine. Dispatcher thread only.

#ifndef AULE_CORE_SPEED_H
#define AULE_CORE_SPEED_H

#include <stdbool.h>
#include <stdint.h>

enum {
    // GPU time of a slice. A new run may wait for three slices: two in flight, and one in its own
    // submission. On a GPU that must be a few milliseconds together, on a software device less than
    // 100.
    SPEED_SLICE_NS = 1500 * 1000,
    SPEED_SLICE_NS_SOFTWARE = 15 * 1000 * 1000,
    // GPU time of a slice while no other session has runs. The first run of another one waits for
    // two of them.
    SPEED_ALONE_NS = 25 * 1000 * 1000,
    // Slices cannot use a cascade. A run that a cascade at least halves stays whole if it takes at
    // most so many slices' time without one, as the cascade may not come about.
    SPEED_CASCADE_SLICES = 6,
    // Slices of one layer. Larger layers get longer slices.
    SPEED_MOST_SLICES = 8192,
};

enum speed_kind {
    SPEED_DECODE,
    SPEED_PREFILL,
    SPEED_WRITE,
    SPEED_GATHER,
    SPEED_COPY,
    SPEED_MERGE,
    SPEEDS
};

// A slice that takes this many times as long as one should is long.
#define SPEED_LONG 1.25

struct speed {
    double ns[SPEEDS];   // time of a multiply-add of weight.h
    double last[SPEEDS]; // as it was seen last
    double slice_ns;     // time that one slice should take, among other sessions' runs
};

// `slice_ns` 0: by the device.
void speed_init(struct speed *speed, bool software, uint64_t slice_ns);
// The time that so much work takes, in ns; an estimate.
double speed_ns(const struct speed *speed, enum speed_kind kind, uint64_t work);
// Slices of about `slice_ns`; at most one for each unit, which cannot be cut itself, and at
// least 1.
uint32_t speed_slices(const struct speed *speed, enum speed_kind kind, uint64_t work,
                      uint64_t units, double slice_ns);
// So much work, a whole layer's, took `ns` of GPU time; 0: unknown.
void speed_learn(struct speed *speed, enum speed_kind kind, uint64_t work, uint64_t ns);

#endif
