// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// element.h - converts floats to and from aule's element types as aule's shaders do: to nearest,
// ties to even. Any thread.

#ifndef WORKER_ELEMENT_H
#define WORKER_ELEMENT_H

#include "aule/aule.h"

// `count` elements of f32, f16 or bf16, the types of q, k, v and out.
void element_store(void *to, const float *from, size_t count, enum aule_dtype dtype);
void element_load(float *to, const void *from, size_t count, enum aule_dtype dtype);

// Rounds x to any dtype. A value that is too large becomes infinity in f16 and bf16, else the
// largest finite number.
float element_round(float x, enum aule_dtype dtype);

float element_largest(enum aule_dtype dtype); // the largest finite number; 8-bit types only

// How a cache keeps keys and values.
struct element_kv {
    enum aule_dtype dtype;
    enum aule_scale_mode scale_mode;
};

// A row is K, or V, of one token and KV head. Replaces it by what a cache would give back. `scale`
// is that of AULE_SCALE_PER_TENSOR.
void element_keep(float *row, size_t count, const struct element_kv *kv, float scale);

#endif
