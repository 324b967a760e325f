// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// check.h - compares `out` with float64 attention over the values as stored. It knows no device.

#ifndef AULE_BENCH_CHECK_H
#define AULE_BENCH_CHECK_H

#include "shape.h"

struct check {
    const struct shape *shape;
    enum dtype dtype, kv_dtype;     // of q and out; of K and V
    uint32_t q_set, kv_set;         // which sets of inputs the run had
    const void *out;                // [num_tokens, num_heads, head_dim], dense
    void (*progress)(double share); // called with the part that is done, from one thread; NULL =
                                    // not wanted
};

struct verdict {
    double worst;      // largest error, relative to the largest magnitude of its row
    uint32_t num_rows; // rows that were compared with float64, each once
};

// Compares all rows if they take up to 10^10 operations together, else 1024 of them (see sample.h);
// the other rows must be finite. False: a row is wrong, and standard error says which, or there is
// no memory.
bool check_rows(const struct check *check, struct verdict *verdict);

#endif
