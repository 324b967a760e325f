// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// matrix_product.h - how fast the device's matrix units multiply when nothing else is asked of
// them.

#ifndef AULE_BENCH_MATRIX_PRODUCT_H
#define AULE_BENCH_MATRIX_PRODUCT_H

#include "stopwatch.h"

// *tflops is 0 where the device has no f16 matrices with f32 sums, and in a build whose compiler
// knows none.
enum status matrix_product_tflops(struct stopwatch *stopwatch, double *tflops, struct error *error);

#endif
