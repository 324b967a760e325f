// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// quantile.h - quantiles of measured numbers. Both functions sort the numbers; there is at least
// one.

#ifndef AULE_BENCH_QUANTILE_H
#define AULE_BENCH_QUANTILE_H

#include <stdint.h>

// The least of the numbers that a share `q` of them does not exceed.
double quantile(double *numbers, uint32_t count, double q);
// The median; of an even count, the mean of the two in the middle.
double quantile_median(double *numbers, uint32_t count);

#endif
