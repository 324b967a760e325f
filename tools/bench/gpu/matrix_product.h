// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// matrix_product.h - how fast the device's tensor cores multiply if they do nothing else.

#ifndef AULE_BENCH_MATRIX_PRODUCT_H
#define AULE_BENCH_MATRIX_PRODUCT_H

#include "stopwatch.h"

// *tflops is 0 if the device has no f16 matrices with f32 sums, or if this build's compiler has
// none.
enum status matrix_product_tflops(struct stopwatch *stopwatch, double *tflops, struct error *error);

#endif
