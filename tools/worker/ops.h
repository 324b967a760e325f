// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ops.h - the arithmetic of a transformer on rows of floats. It knows no model and no attention.
// Plain C that a compiler vectorises. A row's result depends on that row alone, not on the number
// of rows in a call, so chunks of any length give the same bits.

#ifndef WORKER_OPS_H
#define WORKER_OPS_H

#include <stddef.h>

// out[rows, outs] = in[rows, ins] * weight[ins, outs]; with `add`, out += instead.
void ops_matmul(float *out, const float *in, const float *weight, size_t rows, size_t ins,
                size_t outs, int add);

// Each row divided by its root mean square. `out` may be `in`.
void ops_rms_norm(float *out, const float *in, size_t rows, size_t width);

// Rotates the pairs (x[i], x[i + head_dim / 2]) of each head of one token by position * theta ^ (-2
// i / head_dim).
void ops_rope(float *heads, size_t num_heads, size_t head_dim, size_t position, double theta);

// gate = silu(gate) * up, count elements.
void ops_swiglu(float *gate, const float *up, size_t count);

#endif
