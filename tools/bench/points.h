// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// points.h - results that aule-bench has written as lines of JSON. Knows the lines' keys, not how
// results are drawn. One thread.

#ifndef AULE_BENCH_POINTS_H
#define AULE_BENCH_POINTS_H

#include <stdbool.h>
#include <stdint.h>

// A line of a file.
struct point {
    char workload[32], variant[64], dtype[32], place[16], via[16], device[256], driver[256];
    char name[96];                                     // of a study's case; "": not a study
    double median_us, gb_per_s, tflops, ceiling_ratio; // ratio 0: unknown
    double head_dim;                                   // 0: unknown
    // Study isolation: of the neighbour alone, and beside the load.
    double alone_us, alone_p99_us, alone_worst_us, p99_us, worst_us;
    char peer[32];  // another engine, whose time on the same device was added to the line
    double peer_us; // 0: none
    bool checked;
};

struct points {
    struct point *list;
    uint32_t count, capacity;
};

// Adds the lines of a file; "-": standard input. False: standard error says why. The caller frees
// points->list.
bool points_read(const char *name, struct points *points);

#endif
