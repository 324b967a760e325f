// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// kept.h - what a cache of a given type keeps of one token's keys and values of this model. Any
// thread.

#ifndef WORKER_KEPT_H
#define WORKER_KEPT_H

#include "element.h"
#include "model.h"

// The scales per tensor, as a quantised checkpoint has them: they map the model's largest value to
// the type's largest number.
float kept_key_scale(const struct element_kv *kv);
float kept_value_scale(const struct element_kv *kv);

// kv_row [MODEL_KV_WIDTH] is K and V of one token. Rounds it to `dtype`, the type of the tensors,
// and then as `kv` keeps it.
void kept_row(float *kv_row, enum aule_dtype dtype, const struct element_kv *kv);

#endif
