// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// check.h - is `out` attention? Held against float64 over the values as stored. Knows no device.

#ifndef AULE_BENCH_CHECK_H
#define AULE_BENCH_CHECK_H

#include "shape.h"

struct check {
    const struct shape *shape;
    enum dtype dtype, kv_dtype;     // of q and out; of K and V
    uint32_t q_set, kv_set;         // which inputs the run had
    const void *out;                // [num_tokens, num_heads, head_dim], dense
    void (*progress)(double share); // is told how much is done, from one thread; NULL = nobody is
};

struct verdict {
    double worst;      // error, of its row's largest magnitude
    uint32_t num_rows; // held against float64, each once
};

// All rows where they take up to 10^10 operations together, else 1024 (see sample.h); that the
// others are numbers. False: a row is off, and standard error says which, or there is no memory.
bool check_rows(const struct check *check, struct verdict *verdict);

// Of copies of what was asked for, by numbers of values.h: `count` elements at `bytes`. False:
// standard error says which is not.
bool check_elements(enum dtype dtype, uint64_t stream, uint64_t first, uint64_t count,
                    const void *bytes);

#endif
