// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// check.h - is what a world's last run left in `out` attention? Held against float64 over the values as stored.

#ifndef AULE_BENCH_CHECK_H
#define AULE_BENCH_CHECK_H

#include "world.h"

// All rows where they take up to 10^10 operations together, else some 1024 that stand at the borders of blocks, tiles and splits and
// between them. `worst`: the largest error, of its row's largest magnitude. False: a row is off, and standard error says which.
bool check_rows(const struct world *world, uint32_t set, double *worst, uint32_t *num_rows);

#endif
