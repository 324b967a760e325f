// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// spread.h - draws the study "isolation": a neighbour's times from the median over p99 to the
// worst, alone and beside each load, on one logarithmic axis. One thread.

#ifndef AULE_BENCH_SPREAD_H
#define AULE_BENCH_SPREAD_H

#include "points.h"

#include <stdio.h>

bool spread_takes(const struct point *point);
// 0: no point of the study.
double spread_height(const struct points *points);
void spread_draw(FILE *file, const struct points *points, double top);

#endif
