// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// baseline_attend.h - attention of some rows of one KV head. Only the file that implements it is
// compiled with -march=native -ffast-math.

#ifndef AULE_BENCH_BASELINE_ATTEND_H
#define AULE_BENCH_BASELINE_ATTEND_H

#include <stdint.h>

enum { BASELINE_ROWS = 32, BASELINE_KEYS = 64 };

// f16 as bits. Row r is a query head of a token and sees keys [0, seen[r]); seen[] never falls from
// row to row.
struct baseline_tile {
    const uint16_t *q[BASELINE_ROWS];
    uint16_t *out[BASELINE_ROWS];
    uint32_t seen[BASELINE_ROWS];
    uint32_t num_rows, dim; // dim: a multiple of 8
    const uint16_t *k, *v;  // [keys, dim]
    float scale;
    float *memory; // scratch memory of this call: baseline_floats(dim) floats
};
uint64_t baseline_floats(uint32_t dim);
void baseline_attend(const struct baseline_tile *tile);

#endif
