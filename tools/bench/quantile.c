// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// quantile.c - see quantile.h.

#include "quantile.h"

#include <math.h>
#include <stdlib.h>

static int by_size(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

double quantile(double *numbers, uint32_t count, double q)
{
    qsort(numbers, count, sizeof *numbers, by_size);
    const uint32_t at = (uint32_t)ceil(q * count);
    return numbers[at ? at - 1 : 0];
}

double quantile_median(double *numbers, uint32_t count)
{
    qsort(numbers, count, sizeof *numbers, by_size);
    return (numbers[(count - 1) / 2] + numbers[count / 2]) / 2;
}
