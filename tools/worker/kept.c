// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// kept.c - see kept.h.

#include "kept.h"

float kept_key_scale(const struct element_kv *kv)
{
    return kv->scale_mode == AULE_SCALE_PER_TENSOR ? MODEL_LARGEST_KEY / element_largest(kv->dtype)
                                                   : 0;
}

float kept_value_scale(const struct element_kv *kv)
{
    return kv->scale_mode == AULE_SCALE_PER_TENSOR
               ? MODEL_LARGEST_VALUE / element_largest(kv->dtype)
               : 0;
}

void kept_row(float *kv_row, enum aule_dtype dtype, const struct element_kv *kv)
{
    for (uint32_t i = 0; i < MODEL_KV_WIDTH; i++)
        kv_row[i] = element_round(kv_row[i], dtype);
    for (uint32_t head = 0; head < 2 * MODEL_KV_HEADS; head++)
        element_keep(kv_row + head * MODEL_HEAD_DIM, MODEL_HEAD_DIM, kv,
                     head < MODEL_KV_HEADS ? kept_key_scale(kv) : kept_value_scale(kv));
}
